//! Who keeps one stub of a site: asks for it, carries out orders about it, and tells its end.
//!
//! Must not know what the stub is for, nor what follows from its end.

use std::future::Future;
use std::pin::pin;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};

use crate::provider::{Ended, NodeRequest, ProviderError, Stub, StubNews};

/// A node that is started anew by order gets this long to end.
pub(super) const REPLACE_GRACE: Duration = Duration::from_secs(3);

/// What the keeper of a process is told.
pub(super) enum Order {
    /// End it in order within this time; answered when it has ended, and its processor is free.
    Stop(Duration, oneshot::Sender<()>),
    /// Let it run this in place of what it runs, in the processor that it holds.
    Recruit(Box<NodeRequest>),
    /// Kill it: it is taken for dead.
    Kill,
}

/// How a stub ended.
pub(super) enum End {
    /// There never was one.
    Never(ProviderError),
    /// By itself.
    Itself(Ended),
    /// Another program was to be started in it, and was not.
    NotRecruited(ProviderError),
    /// By order.
    Ordered,
}

/// A stub that is being asked for, unless it is to be ended meanwhile: then it is dropped, and with it what there is of it.
pub(super) async fn unless_ended<T>(
    asked: impl Future<Output = T>,
    orders: &mut mpsc::Receiver<Order>,
) -> Option<T> {
    let mut asked = pin!(asked);
    loop {
        tokio::select! {
            biased;
            held = &mut asked => return Some(held),
            order = orders.recv() => match order {
                Some(Order::Stop(_, done)) => {
                    let _ = done.send(());
                    return None;
                }
                // There is nothing to be killed yet, and what it is to run is known when it is there.
                Some(Order::Kill | Order::Recruit(_)) => {}
                None => return None,
            },
        }
    }
}

/// Waits for the end of a stub, and carries out orders meanwhile.
pub(super) async fn keep(
    mut stub: Box<dyn Stub>,
    mut orders: mpsc::Receiver<Order>,
    tell: impl Fn(StubNews),
) -> End {
    loop {
        let order = tokio::select! {
            biased;
            order = orders.recv() => order,
            news = stub.news() => match news {
                StubNews::Ended(ended) => return End::Itself(ended),
                news => {
                    tell(news);
                    continue;
                }
            },
        };
        match order {
            Some(Order::Stop(grace, done)) => {
                stub.release(grace).await;
                let _ = done.send(());
                return End::Ordered;
            }
            Some(Order::Recruit(request)) => {
                if let Err(error) = stub.recruit(&request, REPLACE_GRACE).await {
                    return End::NotRecruited(error);
                }
            }
            Some(Order::Kill) => stub.kill(),
            None => {
                // The site is gone: what can live without it is taken over by the next.
                stub.leave();
                return End::Ordered;
            }
        }
    }
}

/// Ends a process and waits for its end.
pub(super) async fn stop(keeper: &mpsc::Sender<Order>, grace: Duration) {
    let (done, ended) = oneshot::channel();
    // An error of either means that the process has ended and its keeper with it.
    if keeper.send(Order::Stop(grace, done)).await.is_ok() {
        let _ = ended.await;
    }
}
