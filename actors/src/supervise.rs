//! Supervision of actors: restarts within limits, then an error.
//!
//! actix's `Supervisor` does not restart an actor that panics: the panic ends the actor, and its
//! address closes. Users' actors and stateless ones are replaced by a new instance under the same
//! name. (A panic in one of the runtime's own actors ends the process instead, and its site
//! restarts it.) This module does not know the actors' work.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use actix::prelude::*;
use springtide_runtime::remote::{Hub, Published};
use tokio::time::Instant;

/// Interval of checks for an ended actor.
const CHECK_INTERVAL: Duration = Duration::from_millis(50);

/// Maximum rate of an actor's restarts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RestartLimits {
    /// Maximum number of restarts in the window.
    pub restarts: u32,
    /// Length of the window.
    pub window: Duration,
}

impl Default for RestartLimits {
    fn default() -> Self {
        Self { restarts: 5, window: Duration::from_secs(60) }
    }
}

/// Counts restarts against their limits. Time is an argument.
#[derive(Clone, Debug)]
pub struct RestartCounter {
    limits: RestartLimits,
    restarts: VecDeque<Instant>,
}

impl RestartCounter {
    /// Creates a counter without restarts.
    pub fn new(limits: RestartLimits) -> Self {
        Self { limits, restarts: VecDeque::new() }
    }

    /// Whether an ended actor may be restarted now; if so, the restart is counted.
    pub fn may_restart(&mut self, now: Instant) -> bool {
        while self.restarts.front().is_some_and(|at| now - *at >= self.limits.window) {
            self.restarts.pop_front();
        }
        let allowed = self.restarts.len() < self.limits.restarts as usize;
        if allowed {
            self.restarts.push_back(now);
        }
        allowed
    }
}

/// Delays between restarts of a process that keeps ending: a few short ones, then growing ones,
/// without limit on their number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RestartDelays {
    /// Number of restarts after the short delay.
    pub soon: u32,
    /// Length of the short delay.
    pub short: Duration,
    /// Delay before the next restart. Each further delay is twice as long.
    pub first: Duration,
    /// Maximum length of a delay.
    pub max: Duration,
    /// A process that ran for this long has recovered: its failures no longer count.
    pub recovered: Duration,
}

impl RestartDelays {
    fn after(&self, failures: u32) -> Duration {
        match failures.checked_sub(self.soon + 1) {
            None => self.short,
            Some(doublings) => self.first.saturating_mul(1 << doublings.min(16)).min(self.max),
        }
    }
}

/// Counts failures of one process in a row. Time is an argument.
#[derive(Clone, Copy, Debug)]
pub struct RestartSchedule {
    delays: RestartDelays,
    failures: u32,
    /// Time of its last or next start.
    started: Option<Instant>,
}

impl RestartSchedule {
    /// Creates a counter without failures.
    pub fn new(delays: RestartDelays) -> Self {
        Self { delays, failures: 0, started: None }
    }

    /// Records the end of the process. Returns the time of its next start.
    pub fn failed(&mut self, now: Instant) -> Instant {
        let ran = self.started.map(|started| now.saturating_duration_since(started));
        if ran.is_some_and(|ran| ran >= self.delays.recovered) {
            self.failures = 0;
        }
        self.failures = self.failures.saturating_add(1);
        let next = now + self.delays.after(self.failures);
        self.started = Some(next);
        next
    }

    /// Number of failures in a row.
    pub fn failures(&self) -> u32 {
        self.failures
    }

    /// Whether the next restart follows after the short delay.
    pub fn is_soon(&self) -> bool {
        self.failures <= self.delays.soon
    }
}

/// Starts an actor on this arbiter and publishes it under `name`. `accept` registers the messages
/// that it accepts.
pub(crate) fn start_published<A: Actor<Context = Context<A>>>(
    hub: &Hub,
    name: &str,
    make: impl Fn() -> A,
    accept: impl Fn(Published<A>) -> Published<A>,
) -> Addr<A> {
    let addr = make().start();
    accept(hub.publish(name, addr.clone()));
    addr
}

/// Starts an actor on this arbiter, publishes it under `name`, and supervises it.
///
/// When it ends, by a panic or by itself, a new instance replaces it, within `limits`. Beyond the
/// limits its name is unpublished, so that callers get `NoActor`. `accept` registers the messages
/// that it accepts: `|published| published.accepts::<Ping>()`.
///
/// Messages that the ended actor was handling, or that were in its mailbox, are answered by an
/// error.
pub fn supervise<A: Actor<Context = Context<A>>>(
    hub: &Arc<Hub>,
    name: &str,
    limits: RestartLimits,
    make: impl Fn() -> A + 'static,
    accept: impl Fn(Published<A>) -> Published<A> + 'static,
) {
    let (hub, name) = (hub.clone(), name.to_owned());
    let mut addr = start_published(&hub, &name, &make, &accept);
    actix_rt::spawn(async move {
        let mut intensity = RestartCounter::new(limits);
        loop {
            tokio::time::sleep(CHECK_INTERVAL).await;
            if addr.connected() {
                continue;
            }
            if !intensity.may_restart(Instant::now()) {
                tracing::error!(
                    actor = name,
                    "ended more than {} times within {} s and is not restarted",
                    limits.restarts,
                    limits.window.as_secs()
                );
                hub.unpublish(&name);
                return;
            }
            tracing::warn!(actor = name, "ended and is restarted");
            addr = start_published(&hub, &name, &make, &accept);
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
        let limits = RestartLimits { restarts: 2, window: Duration::from_secs(10) };
        let mut intensity = RestartCounter::new(limits);
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        assert!(intensity.may_restart(at(0)));
        assert!(intensity.may_restart(at(5)));
        assert!(!intensity.may_restart(at(9)));
        assert!(intensity.may_restart(at(10)));
        assert!(!intensity.may_restart(at(14)));
        assert!(intensity.may_restart(at(15)));
    }

    #[tokio::test(start_paused = true)]
    async fn restarts_of_a_process_have_no_end_and_longer_delays() {
        let seconds = Duration::from_secs;
        let delays = RestartDelays {
            soon: 3,
            short: Duration::from_millis(200),
            first: seconds(10),
            max: seconds(300),
            recovered: seconds(60),
        };
        let mut restarts = RestartSchedule::new(delays);
        let mut now = Instant::now();
        let mut waits = Vec::new();
        for _ in 0..40 {
            let next = restarts.failed(now);
            waits.push((next - now).as_millis());
            assert_eq!(restarts.is_soon(), waits.len() <= 3);
            now = next + seconds(1);
        }
        let first = [200, 200, 200, 10_000, 20_000, 40_000, 80_000, 160_000, 300_000];
        assert_eq!(waits[..9], first);
        assert!(waits[9..].iter().all(|wait| *wait == 300_000));
        // It ran for long enough.
        now += seconds(59);
        assert_eq!(restarts.failed(now) - now, delays.short);
        assert_eq!(restarts.failures(), 1);
    }

    struct PanicOnDemand {
        asked: u32,
    }

    impl Actor for PanicOnDemand {
        type Context = Context<Self>;
    }

    #[derive(Serialize, Deserialize)]
    struct Ask {
        panic: bool,
    }

    remote_message! { "ask" => Ask -> u32; }

    impl Handler<Ask> for PanicOnDemand {
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
            let limits = RestartLimits { restarts: 2, window: Duration::from_secs(60) };
            supervise(
                &hub,
                "touchy",
                limits,
                || PanicOnDemand { asked: 0 },
                |p| p.accepts::<Ask>(),
            );
            let remote = hub.remote::<PanicOnDemand>(&"n".into(), "touchy");
            for _ in 0..3 {
                // A new instance counts from one.
                let mut answer = remote.send(Ask { panic: false }).await;
                for _ in 0..100 {
                    if answer.is_ok() {
                        break;
                    }
                    tokio::time::sleep(CHECK_INTERVAL).await;
                    answer = remote.send(Ask { panic: false }).await;
                }
                assert_eq!(answer, Ok(1));
                assert!(remote.send(Ask { panic: true }).await.is_err());
            }
            for _ in 0..100 {
                if let Err(RemoteError::NoActor { .. }) = remote.send(Ask { panic: false }).await {
                    return;
                }
                tokio::time::sleep(CHECK_INTERVAL).await;
            }
            panic!("it is still published beyond its limits");
        });
    }
}
