//! A complete network in one process: nodes over the link model, for tests and the simulator.
//!
//! Frames are encoded to bytes; only sockets, TLS and QUIC are omitted. Under tokio's paused clock
//! one seed gives one history: a single dispatcher delivers in the order of (time, sequence),
//! because tokio's timers have a resolution of a millisecond. The network's own time is finer.
//! Arrivals within a millisecond are processed in order, each instant after the consequences of the
//! former one. Messages sent in an instant count from it. A round trip inside a cluster thus takes
//! its 100 us, although tokio's clock shows 0 or 1 ms.
//!
//! A frame waits at its sender, by class, until the links have room; all nodes of two clusters
//! share the rate. More urgent classes overtake there, as with QUIC's stream priorities. Losses are
//! repaired after a round trip. The order is kept per pair of nodes and class. A line that is cut
//! accepts frames again if it heals in time. After the idle timeout both sides report the link as
//! down, and their queues return.
//!
//! The slower form, [`LinkUnit::Quic`], carries datagrams over the same links. Its nodes have real
//! QUIC endpoints on sockets in memory. Loss recovery, classes, windows and link failures are then
//! real instead of modelled. It validates the faster form.

mod datagrams;
mod dispatcher;
mod end;
mod endpoints;
mod faults;
mod lines;
mod pipe;
mod state;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod tests_quic;
mod ticks;

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;

use self::dispatcher::Dispatcher;
use self::endpoints::Endpoints;
pub use self::faults::{FaultCounts, RepeatRule};
pub use self::state::{EventCounts, Traffic};
use self::state::{NetworkState, NodeRef};
use super::link::{DATAGRAM, LinkProfile};
use super::{
    Address, BulkConfig, Class, Contact, Events, LinkStats, Net, NetConfig, NetError, Protocols,
    RefusedCounts, SegmentPool, SendError, Transport,
};
use crate::id::{ClusterId, Incarnation, NodeId, Peer};
use crate::wire::Frame;

/// The unit that the links of an in-memory network carry.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum LinkUnit {
    /// Frames: losses, classes and link failures are modelled.
    #[default]
    Frames,
    /// Datagrams of real QUIC endpoints with these settings, except those of sockets and the
    /// system. Of [`MemoryConfig`] only the links apply.
    Quic(Box<NetConfig>),
}

impl LinkUnit {
    /// Real endpoints with default settings.
    pub fn quic() -> Self {
        Self::Quic(Box::default())
    }
}

/// The settings of all nodes of an in-memory network.
#[derive(Clone, Debug, PartialEq)]
pub struct MemoryConfig {
    /// Profile of lines inside a cluster that are not set.
    pub inside: LinkProfile,
    /// Profile of lines between clusters that are not set.
    pub between: LinkProfile,
    /// Time without a message after which a link is closed.
    pub idle_timeout: Duration,
    /// Time without a reply after which a node is unreachable.
    pub connect_timeout: Duration,
    /// Time that a closing node has to send its queue.
    pub linger: Duration,
    /// Maximum number of bytes in transit per peer and class, from `send` to delivery, with
    /// headers.
    pub queue_bytes: usize,
    /// Maximum number of frames in transit per peer and class.
    pub queue_frames: usize,
    /// Bounds of bulk transfers.
    pub bulk: BulkConfig,
    /// The unit that the links carry.
    pub wire: LinkUnit,
    /// Protocol versions of nodes that differ from those of [`LinkUnit::Quic`]'s settings, for
    /// grids of mixed versions.
    pub protocols: BTreeMap<NodeId, Protocols>,
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
            wire: LinkUnit::Frames,
            protocols: BTreeMap::new(),
        }
    }
}

/// A network in memory: cheap to clone, usable from every thread.
#[derive(Clone)]
pub struct MemoryNet(Backend);

#[derive(Clone)]
enum Backend {
    Frames(Arc<Core>),
    Quic(Arc<Endpoints>),
}

type Core = Dispatcher<NetworkState>;

/// The reason why a node cannot join the network.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    /// A node of this name has joined with this incarnation or a later one.
    #[error(
        "node {0} has joined the network with this incarnation or a later one: give it a larger \
         incarnation"
    )]
    Taken(NodeId),
    /// The node's endpoint cannot be opened.
    #[error(transparent)]
    Endpoint(#[from] NetError),
}

impl MemoryNet {
    /// Creates a network without nodes; losses and jitter derive from `seed`.
    pub fn new(seed: u64) -> Self {
        Self::with(seed, MemoryConfig::default())
    }

    /// Creates a network without nodes under the given settings.
    pub fn with(seed: u64, config: MemoryConfig) -> Self {
        Self(match &config.wire {
            LinkUnit::Frames => Backend::Frames(Dispatcher::new(NetworkState::new(seed, config))),
            LinkUnit::Quic(net) => Backend::Quic(Endpoints::new(seed, &config, (**net).clone())),
        })
    }

    /// Adds a node with the role `node`; see [`join_as`](Self::join_as).
    ///
    /// # Errors
    /// [`JoinError`].
    pub fn join(&self, peer: Peer) -> Result<Net, JoinError> {
        self.join_as(peer, "node")
    }

    /// Adds a node, which takes part once its handle is [started](Net::start) inside a tokio
    /// runtime.
    ///
    /// A later incarnation of a name replaces the former one, which is killed. The role is part of
    /// the certificate, which exists only over [`LinkUnit::Quic`]; that also needs a tokio runtime
    /// for this call.
    ///
    /// # Errors
    /// [`JoinError`].
    pub fn join_as(&self, peer: Peer, role: &str) -> Result<Net, JoinError> {
        let core = match &self.0 {
            Backend::Frames(core) => Arc::clone(core),
            Backend::Quic(endpoints) => return endpoints.join(peer, role),
        };
        let taken = JoinError::Taken(peer.node.clone());
        let index = core.with(|state, now| state.join(peer.clone(), now)).ok_or(taken)?;
        let bulk = core.lock().config.bulk.clone();
        Net::over(bulk, |events| {
            let transport: Arc<dyn Transport> =
                Arc::new(NodeTransport { core, me: NodeRef { peer, index }, events });
            Ok(transport)
        })
    }

    /// Sets the profile of the line from one cluster to another, or inside one. A queue shorter
    /// than a datagram holds one datagram.
    pub fn set_link(&self, from: &ClusterId, to: &ClusterId, profile: LinkProfile) {
        let profile = with_min_queue(profile);
        match &self.0 {
            Backend::Frames(core) => core.with(|state, now| state.set_line(from, to, profile, now)),
            Backend::Quic(endpoints) => {
                endpoints.dispatcher.with(|net, now| net.set_line(from, to, profile, now));
            }
        }
    }

    /// Sets the profile of the lines in both directions.
    pub fn set_links(&self, a: &ClusterId, b: &ClusterId, profile: &LinkProfile) {
        self.set_link(a, b, profile.clone());
        self.set_link(b, a, profile.clone());
    }

    /// Sets the first link of all traffic out of a cluster.
    pub fn set_uplink(&self, cluster: &ClusterId, profile: LinkProfile) {
        self.set_stub(cluster, true, with_min_queue(profile));
    }

    /// Sets the last link of all traffic into a cluster.
    pub fn set_downlink(&self, cluster: &ClusterId, profile: LinkProfile) {
        self.set_stub(cluster, false, with_min_queue(profile));
    }

    fn set_stub(&self, cluster: &ClusterId, up: bool, profile: LinkProfile) {
        match &self.0 {
            Backend::Frames(core) => {
                core.with(|state, now| state.set_stub(cluster, up, profile, now))
            }
            Backend::Quic(endpoints) => {
                endpoints.dispatcher.with(|net, now| net.set_stub(cluster, up, profile, now));
            }
        }
    }

    /// Cuts all lines between two clusters, or heals them.
    pub fn partition(&self, a: &ClusterId, b: &ClusterId, cut: bool) {
        match &self.0 {
            Backend::Frames(core) => core.with(|state, now| state.partition(a, b, cut, now)),
            Backend::Quic(endpoints) => {
                endpoints.dispatcher.with(|net, _| net.partition(a, b, cut))
            }
        }
    }

    /// Kills a node without a goodbye, as `kill -9` does. Returns whether the node exists.
    ///
    /// Its user receives no further events; its peers detect the loss after the idle timeout.
    pub fn kill(&self, node: &NodeId) -> bool {
        match &self.0 {
            Backend::Frames(core) => core.with(|state, now| {
                let index = state.by_name(node);
                index.map(|index| state.kill(index, now)).is_some()
            }),
            Backend::Quic(endpoints) => endpoints.kill(node),
        }
    }

    /// Number of references to this network, by its nodes and clones. The network ends with the
    /// last one.
    pub fn references(&self) -> usize {
        match &self.0 {
            Backend::Frames(core) => Arc::strong_count(core),
            Backend::Quic(endpoints) => Arc::strong_count(endpoints),
        }
    }

    /// Stops a node's process, as `SIGSTOP` does. It receives nothing until it
    /// resumes, and its peers close their links after the idle timeout.
    ///
    /// The caller must stop its timers and threads. Returns false if the node does not exist or is
    /// already stopped, or if the network has real endpoints, which cannot be stopped.
    pub fn stop(&self, node: &NodeId) -> bool {
        self.frames().is_some_and(|core| core.with(|state, now| state.stop(node, now)))
    }

    /// Resumes a stopped process, which then receives all deferred messages. Returns false if it is
    /// not stopped.
    pub fn resume(&self, node: &NodeId) -> bool {
        self.frames().is_some_and(|core| core.with(|state, now| state.resume(node, now)))
    }

    /// Repeats some messages from one cluster to another from now on; `None` ends it. It has no
    /// effect on real endpoints.
    pub fn repeat(&self, from: &ClusterId, to: &ClusterId, repeat: Option<RepeatRule>) {
        if let Some(core) = self.frames() {
            core.with(|state, _| state.repeat(from, to, repeat));
        }
    }

    /// Counts of unusual events so far; zero with real endpoints.
    pub fn fault_counts(&self) -> FaultCounts {
        self.frames().map(|core| core.lock().oddities).unwrap_or_default()
    }

    /// Counts of the events so far.
    pub fn event_counts(&self) -> EventCounts {
        match &self.0 {
            Backend::Frames(core) => core.lock().counts.clone(),
            Backend::Quic(endpoints) => {
                let events = endpoints.dispatcher.lock().events();
                EventCounts { events, ..EventCounts::default() }
            }
        }
    }

    fn frames(&self) -> Option<&Arc<Core>> {
        match &self.0 {
            Backend::Frames(core) => Some(core),
            Backend::Quic(_) => None,
        }
    }

    /// Traffic by pair of clusters, in order, without pairs that have none.
    ///
    /// With QUIC it counts datagrams: frames are accepted datagrams, bytes are theirs, and lost
    /// ones are not repaired here.
    pub fn traffic(&self) -> BTreeMap<(ClusterId, ClusterId), Traffic> {
        match &self.0 {
            Backend::Frames(core) => core.lock().traffic(),
            Backend::Quic(endpoints) => endpoints.dispatcher.lock().traffic(),
        }
    }

    /// A digest of all arrivals so far (time, ends, class, kind, length; for datagrams time, ends
    /// and length). Equal histories have equal digests.
    pub fn digest(&self) -> u64 {
        match &self.0 {
            Backend::Frames(core) => core.lock().digest(),
            Backend::Quic(endpoints) => endpoints.dispatcher.lock().digest(),
        }
    }
}

fn with_min_queue(mut profile: LinkProfile) -> LinkProfile {
    profile.queue = profile.queue.max(DATAGRAM);
    profile
}

/// The transport of one node.
struct NodeTransport {
    core: Arc<Core>,
    me: NodeRef,
    events: Arc<dyn Events>,
}

impl Transport for NodeTransport {
    fn me(&self) -> &Peer {
        &self.me.peer
    }

    fn address(&self) -> Address {
        Address::Memory
    }

    fn start(&self) {
        let events = Arc::clone(&self.events);
        self.core.with(|state, _| state.start(&self.me, events));
        self.core.start_dispatching();
    }

    fn learn(&self, contact: Contact, incarnation: Option<Incarnation>) {
        self.core.with(|state, now| state.learn(&self.me, &contact, incarnation, now));
    }

    fn known_by_name(&self) -> Option<Vec<NodeId>> {
        Some(self.core.lock().known(&self.me))
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

    fn segments(&self) -> Option<Arc<SegmentPool>> {
        Some(Arc::clone(&self.core.lock().segments))
    }

    fn links(&self) -> Vec<LinkStats> {
        self.core.lock().link_stats(&self.me)
    }

    fn round_trips(&self) -> Vec<(ClusterId, Duration)> {
        self.core.lock().round_trips(&self.me)
    }

    fn bytes_out(&self) -> Vec<(NodeId, u64)> {
        self.core.lock().bytes_out(&self.me)
    }

    fn refused(&self) -> RefusedCounts {
        self.core.lock().refused(&self.me)
    }

    fn report_violation(&self, peer: &Peer, why: &str) {
        let banned = self.core.with(|state, now| state.breach(&self.me, peer, why, now));
        if let Some(banned) = banned {
            tracing::warn!(
                %peer,
                why,
                banned,
                "the peer broke the protocol; the link is closed"
            );
            self.events.struck(peer, why, banned);
        }
    }

    fn close(&self, reason: &str) {
        self.core.with(|state, now| state.close(&self.me, reason, now));
    }

    fn closed(&self) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        let (core, me) = (Arc::clone(&self.core), self.me.clone());
        Box::pin(async move {
            // Bounded by the linger time, after which the node is killed.
            while !core.lock().is_closed(&me) {
                sleep(Duration::from_millis(1)).await;
            }
            core.with(|state, now| state.finish(&me, now));
        })
    }
}
