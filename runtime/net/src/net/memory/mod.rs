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
//!
//! The same links carry datagrams in the slower form of it, [`Wire::Quic`]: there nodes have the live QUIC endpoints, on
//! sockets in memory, and what the faster form models (losses made good, classes, windows, links that go down) is the real
//! thing. It is there to keep the faster one honest.

mod clockwork;
mod datagrams;
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

use self::clockwork::Clockwork;
use self::endpoints::Endpoints;
pub use self::faults::{Oddities, Repeat};
pub use self::state::Traffic;
use self::state::{Me, State};
use super::link::{DATAGRAM, LinkProfile};
use super::{
    Address, BulkConfig, Class, Contact, Events, LinkStats, Net, NetConfig, NetError, Protocols,
    RefusedCounts, SendError, Transport,
};
use crate::id::{ClusterId, Incarnation, NodeId, Peer};
use crate::wire::Frame;

/// What travels over the links.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Wire {
    /// Frames: losses, classes and links that go down are modelled.
    #[default]
    Frames,
    /// Datagrams of real QUIC endpoints with these settings, those of sockets and the system apart. What [`MemoryConfig`]
    /// says of anything but links does not hold.
    Quic(Box<NetConfig>),
}

impl Wire {
    /// Real endpoints with their default settings.
    pub fn quic() -> Self {
        Self::Quic(Box::default())
    }
}

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
    /// What travels.
    pub wire: Wire,
    /// Nodes that speak other versions of the protocol than [`Wire::Quic`]'s settings say: for grids of mixed versions.
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
            wire: Wire::Frames,
            protocols: BTreeMap::new(),
        }
    }
}

/// A network in memory. Cheap to clone; usable from every thread.
#[derive(Clone)]
pub struct MemoryNet(Form);

#[derive(Clone)]
enum Form {
    Frames(Arc<Core>),
    Quic(Arc<Endpoints>),
}

type Core = Clockwork<State>;

/// A node cannot be on the network.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    /// One of its name is, or was, in this life or a later one.
    #[error(
        "node {0} has joined the network in this life or a later one: give it a larger incarnation"
    )]
    Taken(NodeId),
    /// Its endpoint cannot be opened.
    #[error(transparent)]
    Endpoint(#[from] NetError),
}

impl MemoryNet {
    /// A network without nodes; losses and jitter follow from `seed`.
    pub fn new(seed: u64) -> Self {
        Self::with(seed, MemoryConfig::default())
    }

    /// A network without nodes under the given settings.
    pub fn with(seed: u64, config: MemoryConfig) -> Self {
        Self(match &config.wire {
            Wire::Frames => Form::Frames(Clockwork::new(State::new(seed, config))),
            Wire::Quic(net) => Form::Quic(Endpoints::new(seed, &config, (**net).clone())),
        })
    }

    /// A node of the role `node` appears; see [`join_as`](Self::join_as).
    ///
    /// # Errors
    /// [`JoinError`].
    pub fn join(&self, peer: Peer) -> Result<Net, JoinError> {
        self.join_as(peer, "node")
    }

    /// A node appears; it takes part when its handle is [started](Net::start), inside tokio's context. A later life of a
    /// name takes the place of the former one, which dies. Its role stands in its certificate, where there are any: over
    /// [`Wire::Quic`], which needs tokio's context here already.
    ///
    /// # Errors
    /// [`JoinError`].
    pub fn join_as(&self, peer: Peer, role: &str) -> Result<Net, JoinError> {
        let core = match &self.0 {
            Form::Frames(core) => Arc::clone(core),
            Form::Quic(endpoints) => return endpoints.join(peer, role),
        };
        let taken = JoinError::Taken(peer.node.clone());
        let ix = core.with(|state, now| state.join(peer.clone(), now)).ok_or(taken)?;
        let bulk = core.lock().config.bulk.clone();
        Net::over(bulk, |events| {
            let transport: Arc<dyn Transport> =
                Arc::new(Node { core, me: Me { peer, ix }, events });
            Ok(transport)
        })
    }

    /// What the line from one cluster to another (or inside one) is like, from now on. A queue shorter than a datagram is
    /// taken for one datagram.
    pub fn set_link(&self, from: &ClusterId, to: &ClusterId, profile: LinkProfile) {
        let profile = sane(profile);
        match &self.0 {
            Form::Frames(core) => core.with(|state, now| state.set_line(from, to, profile, now)),
            Form::Quic(endpoints) => {
                endpoints.clockwork.with(|net, now| net.set_line(from, to, profile, now));
            }
        }
    }

    /// The same in both directions.
    pub fn set_links(&self, a: &ClusterId, b: &ClusterId, profile: &LinkProfile) {
        self.set_link(a, b, profile.clone());
        self.set_link(b, a, profile.clone());
    }

    /// What all traffic out of a cluster goes through first.
    pub fn set_uplink(&self, cluster: &ClusterId, profile: LinkProfile) {
        self.set_stub(cluster, true, sane(profile));
    }

    /// What all traffic into a cluster goes through last.
    pub fn set_downlink(&self, cluster: &ClusterId, profile: LinkProfile) {
        self.set_stub(cluster, false, sane(profile));
    }

    fn set_stub(&self, cluster: &ClusterId, up: bool, profile: LinkProfile) {
        match &self.0 {
            Form::Frames(core) => core.with(|state, now| state.set_stub(cluster, up, profile, now)),
            Form::Quic(endpoints) => {
                endpoints.clockwork.with(|net, now| net.set_stub(cluster, up, profile, now));
            }
        }
    }

    /// Cuts two clusters off from each other, or heals the cut.
    pub fn partition(&self, a: &ClusterId, b: &ClusterId, cut: bool) {
        match &self.0 {
            Form::Frames(core) => core.with(|state, now| state.partition(a, b, cut, now)),
            Form::Quic(endpoints) => endpoints.clockwork.with(|net, _| net.partition(a, b, cut)),
        }
    }

    /// A node vanishes without a word, as after `kill -9`. Its user hears nothing more; its peers learn it after the idle
    /// timeout. Returns whether there is such a node.
    pub fn kill(&self, node: &NodeId) -> bool {
        match &self.0 {
            Form::Frames(core) => core.with(|state, now| {
                let ix = state.by_name(node);
                ix.map(|ix| state.kill(ix, now)).is_some()
            }),
            Form::Quic(endpoints) => endpoints.kill(node),
        }
    }

    /// How many hold this network: what is left on it, and clones of this. One that nobody else holds ends with this.
    pub fn holders(&self) -> usize {
        match &self.0 {
            Form::Frames(core) => Arc::strong_count(core),
            Form::Quic(endpoints) => Arc::strong_count(endpoints),
        }
    }

    /// A node's process stands still, as after `SIGSTOP`: nothing reaches it before it [goes on](Self::go_on), and its peers take
    /// their links for dead after the idle timeout. Its timers and threads are the caller's to stop. False: there is no such
    /// node, it stands already, or real endpoints are on the network, to which this cannot be done.
    pub fn stop(&self, node: &NodeId) -> bool {
        self.frames().is_some_and(|core| core.with(|state, now| state.stop(node, now)))
    }

    /// It goes on, and finds all that came meanwhile. False: it does not stand.
    pub fn go_on(&self, node: &NodeId) -> bool {
        self.frames().is_some_and(|core| core.with(|state, now| state.go_on(node, now)))
    }

    /// Some messages from one cluster to another are said twice from now on, or, with `None`, no more. Where there are frames: real
    /// endpoints say what they say.
    pub fn repeat(&self, from: &ClusterId, to: &ClusterId, repeat: Option<Repeat>) {
        if let Some(core) = self.frames() {
            core.with(|state, _| state.repeat(from, to, repeat));
        }
    }

    /// What was met so far that is not usual; nothing where there are real endpoints.
    pub fn oddities(&self) -> Oddities {
        self.frames().map(|core| core.lock().oddities).unwrap_or_default()
    }

    fn frames(&self) -> Option<&Arc<Core>> {
        match &self.0 {
            Form::Frames(core) => Some(core),
            Form::Quic(_) => None,
        }
    }

    /// Payload by pair of clusters, in order; those without traffic are left out. Of QUIC its datagrams count: frames are
    /// datagrams that the links took, bytes are theirs, and those lost are not made good here.
    pub fn traffic(&self) -> BTreeMap<(ClusterId, ClusterId), Traffic> {
        match &self.0 {
            Form::Frames(core) => core.lock().traffic(),
            Form::Quic(endpoints) => endpoints.clockwork.lock().traffic(),
        }
    }

    /// A digest of every arrival so far (time, ends, class, kind, length; of datagrams time, ends and length): equal for
    /// equal histories.
    pub fn digest(&self) -> u64 {
        match &self.0 {
            Form::Frames(core) => core.lock().digest(),
            Form::Quic(endpoints) => endpoints.clockwork.lock().digest(),
        }
    }
}

fn sane(mut profile: LinkProfile) -> LinkProfile {
    profile.queue = profile.queue.max(DATAGRAM);
    profile
}

/// One node's transport.
struct Node {
    core: Arc<Core>,
    me: Me,
    events: Arc<dyn Events>,
}

impl Transport for Node {
    fn me(&self) -> &Peer {
        &self.me.peer
    }

    fn address(&self) -> Address {
        Address::Memory
    }

    fn start(&self) {
        let events = Arc::clone(&self.events);
        self.core.with(|state, _| state.start(&self.me, events));
        self.core.go();
    }

    fn learn(&self, contact: Contact, life: Option<Incarnation>) {
        self.core.with(|state, now| state.learn(&self.me, &contact, life, now));
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
