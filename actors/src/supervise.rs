//! Own supervision of actors: restart within limits, then give up loudly.
//!
//! actix's `Supervisor` does not restart an actor that panics: its handler's panic ends the actor, and its address just
//! closes. For users' actors and stateless ones a fresh actor is made and published in its place. (A panic in one of the
//! runtime's own actors ends the process instead; its site starts a new life.) Must not know what actors do.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use actix::prelude::*;
use springtide_runtime::remote::{Hub, Published};
use tokio::time::Instant;

/// How soon an actor's end is noticed.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// How often an actor may be restarted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// So many restarts
    pub restarts: u32,
    /// within this time; one more, and supervision gives up.
    pub within: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self { restarts: 5, within: Duration::from_secs(60) }
    }
}

/// Counts restarts against their limits. No clock of its own.
#[derive(Clone, Debug)]
pub struct Intensity {
    limits: Limits,
    restarts: VecDeque<Instant>,
}

impl Intensity {
    /// No restart so far.
    pub fn new(limits: Limits) -> Self {
        Self { limits, restarts: VecDeque::new() }
    }

    /// The actor has ended: whether it may be restarted, which then counts.
    pub fn may_restart(&mut self, now: Instant) -> bool {
        while self.restarts.front().is_some_and(|at| now - *at >= self.limits.within) {
            self.restarts.pop_front();
        }
        let allowed = self.restarts.len() < self.limits.restarts as usize;
        if allowed {
            self.restarts.push_back(now);
        }
        allowed
    }
}

/// Starts an actor on this arbiter, publishes it under `name`, and keeps it: when it ends by a panic or by itself, a new one
/// takes its place, within `limits`; beyond them its name is taken back, so that callers get `NoActor`. `accept` says what
/// it accepts: `|published| published.accepts::<Ping>()`.
///
/// A message that was being handled, or waited in the mailbox, when the actor ended is answered by an error.
pub fn supervise<A: Actor<Context = Context<A>>>(
    hub: &Arc<Hub>,
    name: &str,
    limits: Limits,
    make: impl Fn() -> A + 'static,
    accept: impl Fn(Published<A>) -> Published<A> + 'static,
) {
    let (hub, name) = (hub.clone(), name.to_owned());
    let start = move |hub: &Arc<Hub>, name: &str| {
        let addr = make().start();
        accept(hub.publish(name, addr.clone()));
        addr
    };
    let mut addr = start(&hub, &name);
    actix_rt::spawn(async move {
        let mut intensity = Intensity::new(limits);
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            if addr.connected() {
                continue;
            }
            if !intensity.may_restart(Instant::now()) {
                tracing::error!(
                    actor = name,
                    "ended more than {} times within {} s: given up",
                    limits.restarts,
                    limits.within.as_secs()
                );
                hub.unpublish(&name);
                return;
            }
            tracing::warn!(actor = name, "ended: a new one takes its place");
            addr = start(&hub, &name);
        }
    });
}

#[cfg(test)]
mod tests {
    use serde::{Deserialize, Serialize};
    use springtide_runtime::id::{Incarnation, Peer};
    use springtide_runtime::net::{MemoryNet, Router};
    use springtide_runtime::remote::RemoteError;
    use springtide_runtime::remote_message;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn restarts_are_counted_in_a_sliding_window() {
        let limits = Limits { restarts: 2, within: Duration::from_secs(10) };
        let mut intensity = Intensity::new(limits);
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        assert!(intensity.may_restart(at(0)));
        assert!(intensity.may_restart(at(5)));
        assert!(!intensity.may_restart(at(9)));
        assert!(intensity.may_restart(at(10)));
        assert!(!intensity.may_restart(at(14)));
        assert!(intensity.may_restart(at(15)));
    }

    struct Touchy {
        asked: u32,
    }

    impl Actor for Touchy {
        type Context = Context<Self>;
    }

    #[derive(Serialize, Deserialize)]
    struct Ask {
        panic: bool,
    }

    remote_message! { "ask" => Ask -> u32; }

    impl Handler<Ask> for Touchy {
        type Result = MessageResult<Ask>;

        fn handle(&mut self, ask: Ask, _ctx: &mut Context<Self>) -> Self::Result {
            assert!(!ask.panic, "asked to");
            self.asked += 1;
            MessageResult(self.asked)
        }
    }

    fn hub() -> Arc<Hub> {
        let peer = Peer { node: "n".into(), incarnation: Incarnation(1), cluster: "c".into() };
        let net = MemoryNet::new(1).join(peer).expect("the only one");
        let hub = Hub::new(net.clone());
        net.start(Arc::new(Router::default()));
        hub
    }

    #[test]
    fn a_panicking_actor_is_replaced_until_the_limit() {
        actix::System::new().block_on(async {
            let hub = hub();
            let limits = Limits { restarts: 2, within: Duration::from_secs(60) };
            supervise(&hub, "touchy", limits, || Touchy { asked: 0 }, |p| p.accepts::<Ask>());
            let remote = hub.remote::<Touchy>(&"n".into(), "touchy");
            for _ in 0..3 {
                // A fresh one counts from one.
                let mut answer = remote.send(Ask { panic: false }).await;
                for _ in 0..100 {
                    if answer.is_ok() {
                        break;
                    }
                    tokio::time::sleep(LOOK_EVERY).await;
                    answer = remote.send(Ask { panic: false }).await;
                }
                assert_eq!(answer, Ok(1));
                assert!(remote.send(Ask { panic: true }).await.is_err());
            }
            for _ in 0..100 {
                if let Err(RemoteError::NoActor { .. }) = remote.send(Ask { panic: false }).await {
                    return;
                }
                tokio::time::sleep(LOOK_EVERY).await;
            }
            panic!("beyond its limits it is still published");
        });
    }
}
