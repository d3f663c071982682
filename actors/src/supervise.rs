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

/// Delays between restarts of a process that keeps ending: a few soon, then longer ones, without an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RestartDelays {
    /// Restarts that come soon.
    pub soon: u32,
    /// Delay before each of them.
    pub short: Duration,
    /// Delay before the next one. Each further delay is twice as long.
    pub first: Duration,
    /// The longest delay.
    pub max: Duration,
    /// A process that ran for this long has recovered: its failures are forgotten.
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

/// Counts failures of one process in a row. No clock of its own.
#[derive(Clone, Copy, Debug)]
pub struct Restarts {
    delays: RestartDelays,
    failures: u32,
    /// When it is or was started again.
    started: Option<Instant>,
}

impl Restarts {
    /// No failure so far.
    pub fn new(delays: RestartDelays) -> Self {
        Self { delays, failures: 0, started: None }
    }

    /// The process has ended. Returns when it is to be started again.
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

    /// Failures in a row.
    pub fn failures(&self) -> u32 {
        self.failures
    }

    /// Whether the next restart comes soon.
    pub fn is_soon(&self) -> bool {
        self.failures <= self.delays.soon
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
        let mut restarts = Restarts::new(delays);
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
