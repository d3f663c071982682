//! Connections to the dashboard: bounded in number and in time, so that nobody keeps others out.
//!
//! A connection *waits* while it has no request that is served: before its head is complete, between
//! requests, and after a refusal. One that waits too long is closed. If too many wait, those of the same
//! host or else the oldest are closed; one that has just come gets a moment to show its request. So a caller without a token can hold no place against a new one,
//! and a request that is complete is answered however many connections are slow.
//!
//! Must not know HTTP.

use std::collections::BTreeMap;
use std::net::{IpAddr, Shutdown};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// How many connections may wait, and for how long.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// All that wait.
    pub waiting: usize,
    /// The same with those that have just come.
    pub at_once: usize,
    /// One that waits for less than this has just come.
    pub moment: Duration,
    /// Those of one host, other than this machine.
    pub of_host: usize,
    /// How long one waits for a request.
    pub patience: Duration,
    /// How long one gets to read a refusal.
    pub refusal: Duration,
}

/// A connection that can be closed from outside.
pub trait Close: Send {
    /// Closes it both ways.
    fn close(&self);
}

impl Close for socket2::Socket {
    fn close(&self) {
        // It may have ended already.
        let _ = self.shutdown(Shutdown::Both);
    }
}

/// All connections there are.
#[derive(Clone)]
pub struct Connections {
    limits: Limits,
    table: Arc<Mutex<Table>>,
}

#[derive(Default)]
struct Table {
    last: u64,
    entries: BTreeMap<u64, Entry>,
}

struct Entry {
    host: IpAddr,
    state: State,
    socket: Option<Box<dyn Close>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Waiting {
        since: Instant,
    },
    /// So many requests are served.
    Serving(u32),
    Refused {
        since: Instant,
    },
    Closed,
}

impl Entry {
    /// Since when it waits, if it does.
    fn waits_since(&self) -> Option<Instant> {
        match self.state {
            State::Waiting { since } | State::Refused { since } => Some(since),
            State::Serving(_) | State::Closed => None,
        }
    }

    fn close(&mut self) {
        self.state = State::Closed;
        if let Some(socket) = self.socket.take() {
            socket.close();
        }
    }
}

/// One connection. Dropped, it is forgotten.
pub struct Connection {
    all: Connections,
    id: u64,
}

/// A request of a connection that is served as long as this value lives.
pub struct Serving {
    all: Connections,
    id: u64,
}

impl Connections {
    /// None so far.
    pub fn new(limits: Limits) -> Self {
        Self { limits, table: Arc::default() }
    }

    /// One is opened by this host. Others may be closed for it.
    pub fn open(&self, host: IpAddr, socket: Option<Box<dyn Close>>, now: Instant) -> Connection {
        let mut table = self.lock();
        table.last += 1;
        let id = table.last;
        table.entries.insert(id, Entry { host, state: State::Waiting { since: now }, socket });
        let Limits { waiting, at_once, of_host, moment, .. } = self.limits;
        if !host.is_loopback() {
            table.close_oldest(of_host, now, moment, |entry| entry.host == host);
        }
        table.close_oldest(waiting, now, moment, |_| true);
        table.close_oldest(at_once, now, Duration::ZERO, |_| true);
        drop(table);
        Connection { all: self.clone(), id }
    }

    /// Closes those that wait too long.
    pub fn sweep(&self, now: Instant) {
        let Limits { patience, refusal, .. } = self.limits;
        for entry in self.lock().entries.values_mut() {
            let late = match entry.state {
                State::Waiting { since } => now - since >= patience,
                State::Refused { since } => now - since >= refusal,
                State::Serving(_) | State::Closed => false,
            };
            if late {
                entry.close();
            }
        }
    }

    fn change(&self, id: u64, change: impl FnOnce(&mut State)) {
        if let Some(entry) = self.lock().entries.get_mut(&id)
            && entry.state != State::Closed
        {
            change(&mut entry.state);
        }
    }

    /// The table is whole after each step.
    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    /// Closes the oldest that wait until at most `max` of a kind do, but none that waits for less than
    /// `moment`.
    fn close_oldest(
        &mut self,
        max: usize,
        now: Instant,
        moment: Duration,
        kind: impl Fn(&Entry) -> bool,
    ) {
        let of_kind = self.entries.iter().filter(|(_, entry)| kind(entry));
        let mut waiting: Vec<(Instant, u64)> =
            of_kind.filter_map(|(id, entry)| Some((entry.waits_since()?, *id))).collect();
        let surplus = waiting.len().saturating_sub(max);
        waiting.sort_unstable();
        let old = waiting.into_iter().take(surplus).filter(|(since, _)| now - *since >= moment);
        for (_, id) in old {
            if let Some(entry) = self.entries.get_mut(&id) {
                entry.close();
            }
        }
    }
}

impl Connection {
    /// A request of it is served from now on.
    pub fn serve(&self) -> Serving {
        self.all.change(self.id, |state| {
            let served = if let State::Serving(served) = state { *served } else { 0 };
            *state = State::Serving(served + 1);
        });
        Serving { all: self.all.clone(), id: self.id }
    }

    /// It has been refused, and is closed before long.
    pub fn refuse(&self, now: Instant) {
        self.all.change(self.id, |state| {
            // Others wait no longer for one that repeats what is refused.
            if matches!(state, State::Waiting { .. }) {
                *state = State::Refused { since: now };
            }
        });
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.all.lock().entries.remove(&self.id);
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.all.change(self.id, |state| {
            *state = match *state {
                State::Serving(served) if served > 1 => State::Serving(served - 1),
                _ => State::Waiting { since: Instant::now() },
            };
        });
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const LIMITS: Limits = Limits {
        waiting: 4,
        at_once: 8,
        moment: SECOND,
        of_host: 2,
        patience: Duration::from_secs(10),
        refusal: SECOND,
    };

    struct Flag(Arc<AtomicBool>);

    impl Close for Flag {
        fn close(&self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    struct Opened(Connection, Arc<AtomicBool>);

    impl Opened {
        fn is_closed(&self) -> bool {
            self.1.load(Ordering::Relaxed)
        }
    }

    fn open(all: &Connections, host: &str) -> Opened {
        let closed = Arc::new(AtomicBool::new(false));
        let socket: Box<dyn Close> = Box::new(Flag(closed.clone()));
        Opened(all.open(host.parse().unwrap(), Some(socket), Instant::now()), closed)
    }

    fn closed(all: &[Opened]) -> Vec<bool> {
        all.iter().map(Opened::is_closed).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn the_oldest_that_waits_makes_room() {
        let all = Connections::new(LIMITS);
        let mut opened: Vec<Opened> = (0..4).map(|_| open(&all, "127.0.0.1")).collect();
        tokio::time::advance(SECOND).await;
        assert_eq!(closed(&opened), [false; 4]);
        // One that is served keeps its place.
        let serving = opened[0].0.serve();
        opened.push(open(&all, "127.0.0.1"));
        assert_eq!(closed(&opened), [false; 5]);
        opened.push(open(&all, "127.0.0.1"));
        assert_eq!(closed(&opened), [false, true, false, false, false, false]);
        tokio::time::advance(SECOND).await;
        drop(serving);
        // It waits since its request was served: others are older.
        opened.push(open(&all, "127.0.0.1"));
        assert_eq!(closed(&opened), [false, true, true, true, false, false, false]);
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_has_just_come_gets_a_moment_unless_very_many_have() {
        let all = Connections::new(LIMITS);
        let mut opened: Vec<Opened> = (0..8).map(|_| open(&all, "127.0.0.1")).collect();
        assert_eq!(closed(&opened), [false; 8]);
        opened.push(open(&all, "127.0.0.1"));
        assert!(opened[0].is_closed() && !opened[1].is_closed());
        tokio::time::advance(SECOND).await;
        opened.push(open(&all, "127.0.0.1"));
        assert_eq!(opened.iter().filter(|it| !it.is_closed()).count(), 4);
    }

    #[tokio::test(start_paused = true)]
    async fn a_host_holds_its_own_share_alone() {
        let all = Connections::new(LIMITS);
        let other = open(&all, "10.0.0.2");
        let mut opened: Vec<Opened> = Vec::new();
        for _ in 0..8 {
            opened.push(open(&all, "10.0.0.1"));
            tokio::time::advance(SECOND).await;
        }
        assert!(!other.is_closed());
        assert_eq!(opened.iter().filter(|it| !it.is_closed()).count(), 2);
        assert!(!opened[7].is_closed() && !opened[6].is_closed());
    }

    #[tokio::test(start_paused = true)]
    async fn who_waits_or_was_refused_is_closed_in_time_and_who_is_served_is_not() {
        let all = Connections::new(LIMITS);
        let (slow, refused, served) =
            (open(&all, "127.0.0.1"), open(&all, "127.0.0.1"), open(&all, "127.0.0.1"));
        let serving = served.0.serve();
        let again = served.0.serve();
        drop(again);
        tokio::time::advance(SECOND).await;
        refused.0.refuse(Instant::now());
        tokio::time::advance(SECOND / 2).await;
        // To be refused again gives no more time.
        refused.0.refuse(Instant::now());
        all.sweep(Instant::now());
        assert!(!refused.is_closed());
        tokio::time::advance(SECOND / 2).await;
        all.sweep(Instant::now());
        assert!(refused.is_closed() && !slow.is_closed());
        tokio::time::advance(9 * SECOND).await;
        all.sweep(Instant::now());
        assert!(slow.is_closed() && !served.is_closed());
        drop(serving);
        tokio::time::advance(10 * SECOND).await;
        all.sweep(Instant::now());
        assert!(served.is_closed());
        drop((slow, refused, served));
        assert_eq!(all.lock().entries.len(), 0);
    }
}
