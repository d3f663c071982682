//! The keeper of one stub of a site: it requests the stub, executes orders, and reports the stub's
//! end.
//!
//! This module does not know the stub's use.

use std::future::Future;
use std::pin::pin;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};

use crate::provider::{NodeRequest, ProviderError, Stub, StubEnd, StubEvent};

/// Time for a node to end before an ordered restart.
pub(super) const REPLACE_GRACE: Duration = Duration::from_secs(3);

/// An order to the keeper of a process.
pub(super) enum KeeperOrder {
    /// End it in order within this time. The reply follows when it has ended and its processor is
    /// free.
    Stop(Duration, oneshot::Sender<()>),
    /// Run this program instead of the current one, in the processor that it holds.
    Recruit(Box<NodeRequest>),
    /// Kill it, since it is declared dead.
    Kill,
}

/// How a stub ended.
pub(super) enum StubExit {
    /// It never started.
    Never(ProviderError),
    /// It ended by itself.
    Itself(StubEnd),
    /// Starting another program in it failed.
    NotRecruited(ProviderError),
    /// It ended by order.
    Ordered,
}

/// Waits for a requested stub. An order to stop drops the request, and with it any part of the
/// stub.
pub(super) async fn unless_ended<T>(
    asked: impl Future<Output = T>,
    orders: &mut mpsc::Receiver<KeeperOrder>,
) -> Option<T> {
    let mut asked = pin!(asked);
    loop {
        tokio::select! {
            biased;
            held = &mut asked => return Some(held),
            order = orders.recv() => match order {
                Some(KeeperOrder::Stop(_, done)) => {
                    let _ = done.send(());
                    return None;
                }
                // There is no process to kill yet, and the program to run is known at its start.
                Some(KeeperOrder::Kill | KeeperOrder::Recruit(_)) => {}
                None => return None,
            },
        }
    }
}

/// Waits for the end of a stub, and executes orders meanwhile.
pub(super) async fn keep(
    mut stub: Box<dyn Stub>,
    mut orders: mpsc::Receiver<KeeperOrder>,
    tell: impl Fn(StubEvent),
) -> StubExit {
    loop {
        let order = tokio::select! {
            biased;
            order = orders.recv() => order,
            news = stub.news() => match news {
                StubEvent::Ended(ended) => return StubExit::Itself(ended),
                news => {
                    tell(news);
                    continue;
                }
            },
        };
        match order {
            Some(KeeperOrder::Stop(grace, done)) => {
                stub.release(grace).await;
                let _ = done.send(());
                return StubExit::Ordered;
            }
            Some(KeeperOrder::Recruit(request)) => {
                if let Err(error) = stub.recruit(&request, REPLACE_GRACE).await {
                    return StubExit::NotRecruited(error);
                }
            }
            Some(KeeperOrder::Kill) => stub.kill(),
            None => {
                // The site is gone: the next one takes over surviving stubs.
                stub.leave();
                return StubExit::Ordered;
            }
        }
    }
}

/// Ends a process and waits for its end.
pub(super) async fn stop(keeper: &mpsc::Sender<KeeperOrder>, grace: Duration) {
    let (done, ended) = oneshot::channel();
    // An error of either means that the process has ended and its keeper with it.
    if keeper.send(KeeperOrder::Stop(grace, done)).await.is_ok() {
        let _ = ended.await;
    }
}
