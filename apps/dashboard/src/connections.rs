//! Connections to the dashboard, bounded in number and time, so that no client excludes others.
//!
//! A connection *waits* while it has no complete request: before its first head is complete,
//! between requests, and after a refusal. A connection that waits too long is closed. If too many
//! wait, the oldest are closed, first those of the same host. New connections have a short time to
//! send their request. So a client without a token cannot keep a place from new clients, and a
//! complete request is answered however many connections are slow.
//!
//! This module does not know HTTP.

use std::collections::BTreeMap;
use std::net::{IpAddr, Shutdown};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// Limits on waiting connections and their times.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionLimits {
    /// The maximum number of waiting connections.
    pub waiting: usize,
    /// The maximum number including new ones.
    pub at_once: usize,
    /// The time during which a connection counts as new.
    pub moment: Duration,
    /// The maximum number from one host, except this host.
    pub of_host: usize,
    /// The maximum time until a complete request.
    pub patience: Duration,
    /// The time to read a refusal.
    pub refusal: Duration,
}

/// A connection that can be closed from outside.
pub trait Close: Send {
    /// Closes both directions of the connection.
    fn close(&self);
}

impl Close for socket2::Socket {
    fn close(&self) {
        // The connection may have ended already.
        let _ = self.shutdown(Shutdown::Both);
    }
}

/// The table of all connections.
#[derive(Clone)]
pub struct Connections {
    limits: ConnectionLimits,
    table: Arc<Mutex<ConnectionTable>>,
}

#[derive(Default)]
struct ConnectionTable {
    last: u64,
    entries: BTreeMap<u64, ConnectionEntry>,
}

struct ConnectionEntry {
    host: IpAddr,
    state: ConnectionState,
    socket: Option<Box<dyn Close>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ConnectionState {
    Waiting {
        since: Instant,
    },
    /// The number of requests that are served.
    Serving(u32),
    Refused {
        since: Instant,
    },
    Closed,
}

impl ConnectionEntry {
    /// The start of its waiting time, if it waits.
    fn waits_since(&self) -> Option<Instant> {
        match self.state {
            ConnectionState::Waiting { since } | ConnectionState::Refused { since } => Some(since),
            ConnectionState::Serving(_) | ConnectionState::Closed => None,
        }
    }

    fn close(&mut self) {
        self.state = ConnectionState::Closed;
        if let Some(socket) = self.socket.take() {
            socket.close();
        }
    }
}

/// One connection of the table. Dropping it removes it.
pub struct Connection {
    all: Connections,
    id: u64,
}

/// A request that is served as long as this value lives.
pub struct Serving {
    all: Connections,
    id: u64,
}

impl Connections {
    /// Creates an empty table.
    pub fn new(limits: ConnectionLimits) -> Self {
        Self { limits, table: Arc::default() }
    }

    /// Adds a connection from this host, which may close others.
    pub fn open(&self, host: IpAddr, socket: Option<Box<dyn Close>>, now: Instant) -> Connection {
        let mut table = self.lock();
        table.last += 1;
        let id = table.last;
        table.entries.insert(
            id,
            ConnectionEntry { host, state: ConnectionState::Waiting { since: now }, socket },
        );
        let ConnectionLimits { waiting, at_once, of_host, moment, .. } = self.limits;
        if !host.is_loopback() {
            table.close_oldest(of_host, now, moment, |entry| entry.host == host);
        }
        table.close_oldest(waiting, now, moment, |_| true);
        table.close_oldest(at_once, now, Duration::ZERO, |_| true);
        drop(table);
        Connection { all: self.clone(), id }
    }

    /// Closes connections that have waited too long.
    pub fn sweep(&self, now: Instant) {
        let ConnectionLimits { patience, refusal, .. } = self.limits;
        for entry in self.lock().entries.values_mut() {
            let late = match entry.state {
                ConnectionState::Waiting { since } => now - since >= patience,
                ConnectionState::Refused { since } => now - since >= refusal,
                ConnectionState::Serving(_) | ConnectionState::Closed => false,
            };
            if late {
                entry.close();
            }
        }
    }

    fn change(&self, id: u64, change: impl FnOnce(&mut ConnectionState)) {
        if let Some(entry) = self.lock().entries.get_mut(&id)
            && entry.state != ConnectionState::Closed
        {
            change(&mut entry.state);
        }
    }

    /// The table is consistent after each step.
    fn lock(&self) -> MutexGuard<'_, ConnectionTable> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ConnectionTable {
    /// Closes the oldest waiting connections of a kind until at most `max` remain, but none that is
    /// newer than `moment`.
    fn close_oldest(
        &mut self,
        max: usize,
        now: Instant,
        moment: Duration,
        kind: impl Fn(&ConnectionEntry) -> bool,
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
    /// Marks a request as served from now on.
    pub fn serve(&self) -> Serving {
        self.all.change(self.id, |state| {
            let served = if let ConnectionState::Serving(served) = state { *served } else { 0 };
            *state = ConnectionState::Serving(served + 1);
        });
        Serving { all: self.all.clone(), id: self.id }
    }

    /// Marks the connection as refused: it is closed after a short time.
    pub fn refuse(&self, now: Instant) {
        self.all.change(self.id, |state| {
            // A client that repeats a refused request gets no more time.
            if matches!(state, ConnectionState::Waiting { .. }) {
                *state = ConnectionState::Refused { since: now };
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
                ConnectionState::Serving(served) if served > 1 => {
                    ConnectionState::Serving(served - 1)
                }
                _ => ConnectionState::Waiting { since: Instant::now() },
            };
        });
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const LIMITS: ConnectionLimits = ConnectionLimits {
        waiting: 4,
        at_once: 8,
        moment: SECOND,
        of_host: 2,
        patience: Duration::from_secs(10),
        refusal: SECOND,
    };

    struct CloseFlag(Arc<AtomicBool>);

    impl Close for CloseFlag {
        fn close(&self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    struct TestConnection(Connection, Arc<AtomicBool>);

    impl TestConnection {
        fn is_closed(&self) -> bool {
            self.1.load(Ordering::Relaxed)
        }
    }

    fn open(all: &Connections, host: &str) -> TestConnection {
        let closed = Arc::new(AtomicBool::new(false));
        let socket: Box<dyn Close> = Box::new(CloseFlag(closed.clone()));
        TestConnection(all.open(host.parse().unwrap(), Some(socket), Instant::now()), closed)
    }

    fn closed(all: &[TestConnection]) -> Vec<bool> {
        all.iter().map(TestConnection::is_closed).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn the_oldest_waiting_connection_is_closed() {
        let all = Connections::new(LIMITS);
        let mut opened: Vec<TestConnection> = (0..4).map(|_| open(&all, "127.0.0.1")).collect();
        tokio::time::advance(SECOND).await;
        assert_eq!(closed(&opened), [false; 4]);
        // A connection that is served keeps its place.
        let serving = opened[0].0.serve();
        opened.push(open(&all, "127.0.0.1"));
        assert_eq!(closed(&opened), [false; 5]);
        opened.push(open(&all, "127.0.0.1"));
        assert_eq!(closed(&opened), [false, true, false, false, false, false]);
        tokio::time::advance(SECOND).await;
        drop(serving);
        // Its waiting time starts after its request, so that others are older.
        opened.push(open(&all, "127.0.0.1"));
        assert_eq!(closed(&opened), [false, true, true, true, false, false, false]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_new_connection_has_a_moment_unless_too_many_are_new() {
        let all = Connections::new(LIMITS);
        let mut opened: Vec<TestConnection> = (0..8).map(|_| open(&all, "127.0.0.1")).collect();
        assert_eq!(closed(&opened), [false; 8]);
        opened.push(open(&all, "127.0.0.1"));
        assert!(opened[0].is_closed() && !opened[1].is_closed());
        tokio::time::advance(SECOND).await;
        opened.push(open(&all, "127.0.0.1"));
        assert_eq!(opened.iter().filter(|it| !it.is_closed()).count(), 4);
    }

    #[tokio::test(start_paused = true)]
    async fn a_host_is_limited_to_its_own_share() {
        let all = Connections::new(LIMITS);
        let other = open(&all, "10.0.0.2");
        let mut opened: Vec<TestConnection> = Vec::new();
        for _ in 0..8 {
            opened.push(open(&all, "10.0.0.1"));
            tokio::time::advance(SECOND).await;
        }
        assert!(!other.is_closed());
        assert_eq!(opened.iter().filter(|it| !it.is_closed()).count(), 2);
        assert!(!opened[7].is_closed() && !opened[6].is_closed());
    }

    #[tokio::test(start_paused = true)]
    async fn waiting_and_refused_connections_are_closed_in_time_and_served_ones_stay() {
        let all = Connections::new(LIMITS);
        let (slow, refused, served) =
            (open(&all, "127.0.0.1"), open(&all, "127.0.0.1"), open(&all, "127.0.0.1"));
        let serving = served.0.serve();
        let again = served.0.serve();
        drop(again);
        tokio::time::advance(SECOND).await;
        refused.0.refuse(Instant::now());
        tokio::time::advance(SECOND / 2).await;
        // A second refusal gives no more time.
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
