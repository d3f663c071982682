//! A whole network in one process: nodes on the link model, for tests and the simulator.
//!
//! Frames really are bytes; only sockets, TLS and QUIC are left out. Under tokio's paused clock one seed gives one history:
//! a single dispatcher delivers in the order of (time, sequence), for tokio's timers are no finer than a millisecond.
//! Time runs finer than that inside the network: what arrives within a millisecond is handled in order, each instant after
//! the consequences of the one before, and what is sent then counts from that instant. So a round trip inside a cluster
//! takes its 100 us although tokio's clock shows 0 or 1 ms.
//!
//! How a frame travels: it waits at its sender, by class, until the links have room (the rate is shared by all nodes of two
//! clusters); more urgent classes overtake there, as with QUIC's stream priorities. Losses are made good after a round
//! trip. Order is kept per node pair and class. A cut line takes frames again when it heals in time; after the idle
//! timeout both sides are told that the link is down, and what was queued is given back.

mod end;
mod lines;
mod pipe;
mod state;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep, sleep_until};

use self::state::State;
pub use self::state::Traffic;
use super::link::{DATAGRAM, LinkProfile};
use super::{
    Address, BulkConfig, Class, Contact, Events, LinkStats, Net, RefusedCounts, SendError,
    Transport,
};
use crate::id::{ClusterId, Incarnation, NodeId, Peer};
use crate::wire::Frame;

/// What holds for every node of an in-memory network.
#[derive(Clone, Debug, PartialEq)]
pub struct MemoryConfig {
    /// Lines inside a cluster that were not set.
    pub inside: LinkProfile,
    /// Lines between clusters that were not set.
    pub between: LinkProfile,
    /// A link is down when nothing was heard for so long.
    pub idle_timeout: Duration,
    /// A node that has not answered for so long cannot be reached.
    pub connect_timeout: Duration,
    /// A node that closes has so long to send what is queued.
    pub linger: Duration,
    /// Bytes (headers count) that may be under way per peer and class, from `send` to delivery.
    pub queue_bytes: usize,
    /// The same in frames.
    pub queue_frames: usize,
    /// Bounds of bulk transfers.
    pub bulk: BulkConfig,
}

impl Default for MemoryConfig {
    /// As over QUIC, with 50 us inside clusters and 10 ms between them.
    fn default() -> Self {
        Self {
            inside: LinkProfile::lan(),
            between: LinkProfile::default().delay(Duration::from_millis(10)),
            idle_timeout: Duration::from_secs(15),
            connect_timeout: Duration::from_secs(10),
            linger: Duration::from_secs(1),
            queue_bytes: 32 << 20,
            queue_frames: 65_536,
            bulk: BulkConfig::default(),
        }
    }
}

/// A network in memory. Cheap to clone; usable from every thread.
#[derive(Clone)]
pub struct MemoryNet(Arc<Core>);

struct Core {
    state: Mutex<State>,
    bulk: BulkConfig,
    /// Something became due earlier than the dispatcher knows.
    changed: Arc<Notify>,
    start: Instant,
    dispatching: std::sync::Once,
}

/// A node of this name with this or a later life is on the network.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "node {0} has joined the network in this life or a later one: give it a larger incarnation"
)]
pub struct JoinError(pub NodeId);

impl MemoryNet {
    /// A network without nodes; losses and jitter follow from `seed`.
    pub fn new(seed: u64) -> Self {
        Self::with(seed, MemoryConfig::default())
    }

    /// A network without nodes under the given settings.
    pub fn with(seed: u64, config: MemoryConfig) -> Self {
        Self(Arc::new(Core {
            bulk: config.bulk.clone(),
            state: Mutex::new(State::new(seed, config)),
            changed: Arc::new(Notify::new()),
            start: Instant::now(),
            dispatching: std::sync::Once::new(),
        }))
    }

    /// A node appears; it takes part when its handle is [started](Net::start), inside tokio's context. A later life of a
    /// name takes the place of the former one, which dies.
    ///
    /// # Errors
    /// [`JoinError`] when the name is taken by this life or a later one.
    pub fn join(&self, peer: Peer) -> Result<Net, JoinError> {
        let taken = JoinError(peer.node.clone());
        self.0.with(|state, now| state.join(peer.clone(), now)).ok_or(taken)?;
        let core = Arc::clone(&self.0);
        let bulk = self.0.bulk.clone();
        let net = Net::over(bulk, |events| {
            let transport: Arc<dyn Transport> = Arc::new(Node { core, me: peer, events });
            Ok::<_, Infallible>(transport)
        });
        match net {
            Ok(net) => Ok(net),
            Err(never) => match never {},
        }
    }

    /// What the line from one cluster to another (or inside one) is like, from now on. A queue shorter than a datagram is
    /// taken for one datagram.
    pub fn set_link(&self, from: &ClusterId, to: &ClusterId, profile: LinkProfile) {
        let profile = sane(profile);
        self.0.with(|state, now| state.set_line(from, to, profile, now));
    }

    /// The same in both directions.
    pub fn set_links(&self, a: &ClusterId, b: &ClusterId, profile: &LinkProfile) {
        self.set_link(a, b, profile.clone());
        self.set_link(b, a, profile.clone());
    }

    /// What all traffic out of a cluster goes through first.
    pub fn set_uplink(&self, cluster: &ClusterId, profile: LinkProfile) {
        let profile = sane(profile);
        self.0.with(|state, now| state.set_stub(cluster, true, profile, now));
    }

    /// What all traffic into a cluster goes through last.
    pub fn set_downlink(&self, cluster: &ClusterId, profile: LinkProfile) {
        let profile = sane(profile);
        self.0.with(|state, now| state.set_stub(cluster, false, profile, now));
    }

    /// Cuts two clusters off from each other, or heals the cut.
    pub fn partition(&self, a: &ClusterId, b: &ClusterId, cut: bool) {
        self.0.with(|state, now| state.partition(a, b, cut, now));
    }

    /// A node vanishes without a word, as after `kill -9`. Its user hears nothing more; its peers learn it after the idle
    /// timeout. Returns whether there is such a node.
    pub fn kill(&self, node: &NodeId) -> bool {
        self.0.with(|state, now| match state.by_name(node) {
            Some(ix) => {
                state.kill(ix, now);
                true
            }
            None => false,
        })
    }

    /// Payload by pair of clusters, in order; those without traffic are left out.
    pub fn traffic(&self) -> BTreeMap<(ClusterId, ClusterId), Traffic> {
        self.0.lock().traffic()
    }

    /// A digest of every arrival so far (time, ends, class, kind, length): equal for equal histories.
    pub fn digest(&self) -> u64 {
        self.0.lock().digest()
    }
}

fn sane(mut profile: LinkProfile) -> LinkProfile {
    profile.queue = profile.queue.max(DATAGRAM);
    profile
}

impl Core {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Changes the state, and wakes the dispatcher when something became due earlier.
    fn with<R>(&self, change: impl FnOnce(&mut State, Duration) -> R) -> R {
        let mut state = self.lock();
        let before = state.next_at();
        let result = change(&mut state, self.start.elapsed());
        let after = state.next_at();
        drop(state);
        if after != before {
            self.changed.notify_one();
        }
        result
    }

    /// Handles what is due at the next instant. Returns when there is more to do: `None` for at once.
    fn tick(&self) -> Option<Pin<Box<dyn Future<Output = ()> + Send>>> {
        // Whole milliseconds: see the head of this file.
        let millis = self.start.elapsed().as_millis() as u64;
        let limit = Duration::from_millis(millis + 1) - Duration::from_nanos(1);
        let (calls, next) = {
            let mut state = self.lock();
            (state.step(limit), state.next_at())
        };
        for call in calls {
            call.make();
        }
        match next {
            Some(next) if next <= limit => None,
            Some(next) => {
                let at = self.start + Duration::from_millis(next.as_millis() as u64);
                Some(Box::pin(sleep_until(at)))
            }
            None => Some(Box::pin(std::future::pending())),
        }
    }

    /// Delivers what is due, for as long as somebody holds the network.
    async fn dispatch(core: Weak<Core>, changed: Arc<Notify>) {
        while let Some(due) = core.upgrade().map(|core| core.tick()) {
            match due {
                // Lets everything that can run do so: what it sends counts from this instant.
                None => tokio::task::yield_now().await,
                Some(due) => tokio::select! {
                    biased;
                    () = changed.notified() => {}
                    () = due => {}
                },
            }
        }
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        self.changed.notify_one(); // so that the dispatcher ends
    }
}

/// One node's transport.
struct Node {
    core: Arc<Core>,
    me: Peer,
    events: Arc<dyn Events>,
}

impl Transport for Node {
    fn me(&self) -> &Peer {
        &self.me
    }

    fn address(&self) -> Address {
        Address::Memory
    }

    fn start(&self) {
        let events = Arc::clone(&self.events);
        self.core.with(|state, _| state.start(&self.me, events));
        self.core.dispatching.call_once(|| {
            let core = Arc::downgrade(&self.core);
            tokio::spawn(Core::dispatch(core, Arc::clone(&self.core.changed)));
        });
    }

    fn learn(&self, contact: Contact, life: Option<Incarnation>) {
        self.core.with(|state, now| state.learn(&self.me, &contact, life, now));
    }

    fn forget(&self, node: &NodeId) {
        self.core.with(|state, now| state.forget(&self.me, node, now));
    }

    fn send(&self, to: &NodeId, class: Class, frame: Frame) -> Result<(), SendError> {
        self.core.with(|state, now| state.send(&self.me, to, class, frame, now))
    }

    fn room(&self, to: &NodeId, class: Class) -> usize {
        self.core.lock().room(&self.me, to, class)
    }

    fn links(&self) -> Vec<LinkStats> {
        self.core.lock().link_stats(&self.me)
    }

    fn refused(&self) -> RefusedCounts {
        self.core.lock().refused(&self.me)
    }

    fn breach(&self, peer: &Peer, why: &str) {
        let banned = self.core.with(|state, now| state.breach(&self.me, peer, why, now));
        if let Some(banned) = banned {
            tracing::warn!(%peer, why, banned, "the peer broke the protocol; the link is closed");
            self.events.struck(peer, why, banned);
        }
    }

    fn close(&self, reason: &str) {
        self.core.with(|state, now| state.close(&self.me, reason, now));
    }

    fn closed(&self) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        let (core, me) = (Arc::clone(&self.core), self.me.clone());
        Box::pin(async move {
            // Bounded by the linger time, after which the node is over.
            while !core.lock().is_closed(&me) {
                sleep(Duration::from_millis(1)).await;
            }
            core.with(|state, now| state.finish(&me, now));
        })
    }
}
