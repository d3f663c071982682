//! The one way to the network: a handle over QUIC or over an in-memory network.
//!
//! Must not know what frames mean, nor roles, jobs or tasks.

mod bulk;
mod callers;
mod config;
mod hello;
pub mod join;
pub mod link;
pub mod memory;
mod paths;
mod quic;
mod router;
mod strikes;
pub mod tls;
mod transport;

use std::collections::BTreeMap;
use std::io;
use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::Duration;

use bytes::Bytes;
/// What QUIC stands on: see [`Net::quic_over`].
pub use quinn::AsyncUdpSocket;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

pub use self::bulk::{BulkConfig, BulkError};
pub use self::config::{Congestion, IDLE_TIMEOUT, KEEP_ALIVE, LinkPolicy, NetConfig};
pub use self::hello::Protocols;
pub use self::link::{Link, LinkProfile};
pub use self::memory::{JoinError, MemoryConfig, MemoryNet, Wire};
pub use self::paths::{Path, Paths};
pub use self::quic::NetError;
pub use self::router::Router;
pub(crate) use self::strikes::Strikes;
pub use self::strikes::{BAN, STRIKES, STRIKES_WITHIN};
pub use self::transport::{
    Buffers, ClassStats, LinkState, LinkStats, RefuseReason, RefusedCounts, Why,
};
pub(crate) use self::transport::{Events, Transport};
use crate::id::{ClusterId, Incarnation, NodeId, Peer};
use crate::membership::{Member, Members};
use crate::wire::{Frame, INLINE_MAX, Kind};

/// Where a node is reached: its own address, or through another node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Address {
    /// A socket address to connect to.
    Socket(std::net::SocketAddr),
    /// In memory: the name alone suffices.
    Memory,
    /// Through the named node.
    Via(NodeId),
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Socket(address) => address.fmt(f),
            Self::Memory => f.write_str("its name in memory"),
            Self::Via(node) => write!(f, "node {node}"),
        }
    }
}

/// What one must know to reach a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Contact {
    /// Its name.
    pub node: NodeId,
    /// Its cluster.
    pub cluster: ClusterId,
    /// Where it is reached.
    pub address: Address,
}

/// Traffic class: an ordered stream each, per peer and direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Class {
    /// Calls, answers, statistics.
    Control,
    /// Steals and results.
    Steal,
    /// Large payloads, in chunks under credits.
    Bulk,
}

/// What the network tells its user. Called on the endpoint's thread; must be quick.
pub trait Inbox: Send + Sync {
    /// A whole payload has come (bulk transfers put together). `from` is the peer as its certificate and hello say.
    fn frame(&self, from: &Peer, kind: Kind, body: Bytes);
    /// A link is up: both sides have said hello and welcome.
    fn up(&self, _peer: &Peer) {}
    /// A link went down: what was sent over it and not answered may be lost. Also told when a node could not be reached
    /// at all; its incarnation is then the last known, or 0.
    fn down(&self, _peer: &Peer, _why: &Why) {}
    /// A peer broke the protocol and lost its link for it. `banned`: it did [`STRIKES`] times within [`STRIKES_WITHIN`],
    /// and its links are refused for [`BAN`].
    fn struck(&self, _peer: &Peer, _why: &str, _banned: bool) {}
    /// A peer knows a later incarnation of this node and gives it no link. `known` is absent where a
    /// former version refused.
    fn superseded(&self, _peer: &NodeId, _known: Option<Incarnation>) {}
    /// So many bytes came from a peer in one transfer between these moments; its payload follows. Told of payloads that
    /// went in bulk.
    fn transferred(&self, _from: &Peer, _bytes: u64, _began: Instant, _ended: Instant) {}
    /// A payload that was taken for sending surely was not delivered. Follows [`Inbox::down`].
    fn undelivered(&self, _payload: Undelivered) {}
}

/// Why a payload was not taken for sending. Nothing of it was sent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// No address is known for the node.
    #[error("no address is known for node {0}")]
    Unknown(NodeId),
    /// The queue to the node is full: slow down, or drop and count.
    #[error("the queue to node {0} is full")]
    Full(NodeId),
    /// The payload is over its kind's cap.
    #[error("a {kind:?} payload of {len} bytes is over the cap of {cap} bytes")]
    TooLong {
        /// Which kind.
        kind: Kind,
        /// Its length.
        len: usize,
        /// The kind's cap.
        cap: usize,
    },
    /// The endpoint is closed.
    #[error("the endpoint is closed")]
    Closed,
}

/// A payload that was taken for sending and surely was not delivered when its link went down: given back so that a stolen
/// task can be reclaimed at once.
pub type Undelivered = (NodeId, Kind, Bytes);

/// The handle: cheap to clone, usable from every thread.
#[derive(Clone)]
pub struct Net(Arc<Inner>);

struct Inner {
    transport: Arc<dyn Transport>,
    bulk: bulk::Layer,
    inbox: OnceLock<Arc<dyn Inbox>>,
    /// Where nodes are reached of which the transport knows nothing yet.
    members: Mutex<Members>,
    /// No more payloads are taken.
    closing: AtomicBool,
}

/// How long [`Net::close`] waits for bulk transfers that are under way.
pub const BULK_GRACE: Duration = Duration::from_secs(2);

impl Net {
    /// A node on a QUIC network. To be called on the endpoint's thread, inside its current-thread runtime; nothing comes or
    /// goes before [`Net::start`]. Who the node is stands in its certificate.
    ///
    /// # Errors
    /// [`NetError`].
    pub fn quic(
        config: NetConfig,
        identity: &tls::NodeIdentity,
        incarnation: Incarnation,
    ) -> Result<Self, NetError> {
        Self::quic_over(config, identity, incarnation, quic::plain)
    }

    /// The same over what `wrap` makes of the bound UDP socket: for what stands between QUIC and the system, such as an emulated
    /// link. `wrap` is called once, inside the runtime, before this returns.
    ///
    /// # Errors
    /// [`NetError`]; what `wrap` fails with is [`NetError::Bind`].
    pub fn quic_over(
        config: NetConfig,
        identity: &tls::NodeIdentity,
        incarnation: Incarnation,
        wrap: impl FnOnce(UdpSocket) -> io::Result<Arc<dyn AsyncUdpSocket>>,
    ) -> Result<Self, NetError> {
        Self::over(config.bulk(), |events| {
            let quic = quic::Quic::open(config, identity, incarnation, wrap, events)?;
            Ok(Arc::new(quic) as Arc<dyn Transport>)
        })
    }

    /// A handle over a transport. `build` makes the transport and gets the events it must tell; nothing is told before
    /// [`Net::start`].
    pub(crate) fn over<E>(
        bulk: BulkConfig,
        build: impl FnOnce(Arc<dyn Events>) -> Result<Arc<dyn Transport>, E>,
    ) -> Result<Self, E> {
        // The transport holds its events, and they lead to the handle: weak, so that the last handle to go takes all.
        let upward = Arc::new(Upward(OnceLock::new()));
        let transport = build(upward.clone())?;
        // Transfers of two lives of a node must not be taken for each other's.
        let bulk = bulk::Layer::new(bulk, transport.me().incarnation.0);
        let closing = AtomicBool::new(false);
        let (inbox, members) = (OnceLock::new(), Mutex::default());
        let inner = Arc::new(Inner { transport, bulk, inbox, members, closing });
        let _ = upward.0.set(Arc::downgrade(&inner)); // this is the only place that sets it
        Ok(Self(inner))
    }

    /// Begins to take links and payloads: all that comes goes to `inbox`. To be called on the endpoint's thread.
    ///
    /// # Panics
    /// When called twice: a second inbox would never hear anything.
    pub fn start(&self, inbox: Arc<dyn Inbox>) {
        assert!(self.0.inbox.set(inbox).is_ok(), "the network was started before");
        self.0.transport.start();
    }

    /// This node, as it presents itself.
    pub fn me(&self) -> &Peer {
        self.0.transport.me()
    }

    /// Where others reach this node.
    pub fn address(&self) -> Address {
        self.0.transport.address()
    }

    /// How others reach this node.
    pub fn contact(&self) -> Contact {
        let me = self.me();
        Contact { node: me.node.clone(), cluster: me.cluster.clone(), address: self.address() }
    }

    /// Notes where a node is reached. Opens nothing: links are opened by the first payload. A link to another address of
    /// the node is closed, and what is queued goes to the new one.
    pub fn learn(&self, contact: Contact) {
        self.0.transport.learn(contact, None);
    }

    /// The same, of a certain life of the node: old news are ignored, a link to an earlier life is closed, and one to this
    /// very life stands, whatever the address.
    pub fn learn_life(&self, contact: Contact, life: Incarnation) {
        self.0.transport.learn(contact, Some(life));
    }

    /// The same of a member of a job.
    pub fn learn_member(&self, node: &NodeId, member: &Member) {
        self.0.learn(node, member);
    }

    /// These nodes are members of the job that this node takes part in: as [`Net::learn_member`] of each. In memory, where a name
    /// suffices to reach a node, those that nothing was heard of are looked up when there is something to send to them: in
    /// one process with all nodes of a large job, every pair of them would take memory.
    pub fn follow(&self, members: &Members) {
        let Inner { transport, members: followed, .. } = &*self.0;
        let Some(known) = transport.known_by_name() else {
            let others = members.iter().filter(|(node, _)| **node != self.me().node);
            others.for_each(|(node, member)| self.0.learn(node, member));
            return;
        };
        *followed.lock().unwrap_or_else(PoisonError::into_inner) = members.clone();
        for node in known {
            self.0.look_up(&node);
        }
    }

    /// Notes where a node is reached, unless a link to it is up: for contacts at second hand, which may name another of
    /// the node's addresses than the one that works from here.
    pub fn introduce(&self, contact: Contact) {
        let up = |link: &LinkStats| link.peer.node == contact.node && link.state == LinkState::Up;
        if !self.links().iter().any(up) {
            self.learn(contact);
        }
    }

    /// Which node speaks for each cluster: a node that cannot be reached directly is then reached through the one of its own cluster,
    /// or of this node's. The link is the two nodes' own all the same; see [`LinkStats::relayed`].
    pub fn gates(&self, gates: &BTreeMap<ClusterId, NodeId>) {
        self.0.transport.gates(gates);
    }

    /// Datagrams of other nodes' links that went through this one.
    pub fn passed_on(&self) -> u64 {
        self.0.transport.passed_on()
    }

    /// Forgets a node and closes its link; what is queued to it is given back.
    pub fn forget(&self, node: &NodeId) {
        self.0.transport.forget(node);
    }

    /// Queues a payload. Never blocks. Delivered at most once; ordered per peer and class, save that a payload longer than
    /// [`INLINE_MAX`], or of the class [`Class::Bulk`], goes as a bulk transfer and may be
    /// overtaken by others sent after it.
    ///
    /// # Errors
    /// [`SendError`]; nothing of the payload was sent then.
    pub fn send(
        &self,
        to: &NodeId,
        class: Class,
        kind: Kind,
        body: impl Into<Bytes>,
    ) -> Result<(), SendError> {
        let body = body.into();
        let len = body.len();
        let cap = kind.info().map_or(0, |info| info.cap);
        if len > cap {
            return Err(SendError::TooLong { kind, len, cap });
        }
        if self.0.inbox.get().is_none() || self.0.closing.load(Ordering::Acquire) {
            return Err(SendError::Closed);
        }
        let send = |body| {
            if class == Class::Bulk || len > INLINE_MAX {
                return self.0.bulk.send(&*self.0.transport, to, kind, body);
            }
            self.0.transport.send(to, class, Frame { kind, body })
        };
        match send(body.clone()) {
            Err(SendError::Unknown(_)) if self.0.look_up(to) => send(body),
            sent => sent,
        }
    }

    /// Bytes that may still be queued to a peer in a class; for bulk, bytes of payloads.
    pub fn room(&self, to: &NodeId, class: Class) -> usize {
        match class {
            Class::Bulk => self.0.bulk.room(to),
            _ => self.0.transport.room(to, class),
        }
    }

    /// What the certificate of a node whose link is up lets it do. None without a link, and in memory, where there are no
    /// certificates.
    pub fn role(&self, node: &NodeId) -> Option<tls::Role> {
        self.0.transport.role(node)
    }

    /// The socket's buffers, where there is one and the system tells.
    pub fn buffers(&self) -> Option<Buffers> {
        self.0.transport.buffers()
    }

    /// What is expected of links to a cluster, where the settings name it. None otherwise, and in memory.
    pub fn expected(&self, cluster: &ClusterId) -> Option<LinkPolicy> {
        self.0.transport.expected_of(cluster)
    }

    /// The links there are or were, in order of node.
    pub fn links(&self) -> Vec<LinkStats> {
        self.0.transport.links()
    }

    /// Smoothed round trips of the links that are up, as far as measured, by the cluster of the other end.
    pub fn round_trips(&self) -> Vec<(ClusterId, Duration)> {
        self.0.transport.round_trips()
    }

    /// Payload bytes sent to each node so far, in any order.
    pub fn bytes_out(&self) -> Vec<(NodeId, u64)> {
        self.0.transport.bytes_out()
    }

    /// Shows this certificate, of the same node, in links that are opened from now on. Those that are up stay.
    ///
    /// # Errors
    /// [`tls::TlsError`]: it cannot be used, or is of another node; the former one is shown on.
    pub fn renew(&self, identity: &tls::NodeIdentity) -> Result<(), tls::TlsError> {
        self.0.transport.renew(identity)
    }

    /// Whose certificates are not valid any more, and why: they get no link ([`RefuseReason::Revoked`]), and those that they have
    /// are closed. Replaces what was said before.
    pub fn revoke(&self, nodes: &BTreeMap<NodeId, String>) {
        self.0.transport.revoke(nodes);
    }

    /// Links refused by this side, by reason.
    pub fn refused(&self) -> RefusedCounts {
        self.0.transport.refused()
    }

    #[cfg(test)]
    pub(crate) fn transport(&self) -> &dyn Transport {
        &*self.0.transport
    }

    /// To be told by whoever decodes payloads: this one of `peer` is malformed. Its link is closed with that reason; after
    /// [`STRIKES`] within [`STRIKES_WITHIN`] it gets none for [`BAN`]. To be called on the endpoint's thread, from within
    /// [`Inbox::frame`].
    pub fn breach(&self, peer: &Peer, why: &str) {
        self.0.transport.breach(peer, why);
    }

    /// Takes no more payloads, sends what is queued for a short time ([`BULK_GRACE`] for bulk transfers, then the
    /// transport's own for the rest), says goodbye and closes every link.
    pub async fn close(&self, reason: &str) {
        self.0.closing.store(true, Ordering::Release);
        // Chunks go as credits come, so the links must stay open for both.
        let bulk = async {
            while self.0.bulk.is_busy() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        if tokio::time::timeout(BULK_GRACE, bulk).await.is_err() {
            tracing::warn!("closed before all bulk transfers were through");
        }
        self.0.transport.close(reason);
        self.0.transport.closed().await;
    }
}

/// Leads a transport's events to the handle.
struct Upward(OnceLock<Weak<Inner>>);

impl Upward {
    fn inner(&self) -> Option<Arc<Inner>> {
        self.0.get()?.upgrade()
    }
}

impl Inner {
    fn learn(&self, node: &NodeId, member: &Member) {
        let Member { incarnation, cluster, address, .. } = member;
        let (node, cluster, address) = (node.clone(), cluster.clone(), address.clone());
        self.transport.learn(Contact { node, cluster, address }, Some(*incarnation));
    }

    /// Tells the transport of this node, if it is a member. False if it is none.
    fn look_up(&self, node: &NodeId) -> bool {
        let members = self.members.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let member = members.get(node);
        if let Some(member) = member {
            self.learn(node, member);
        }
        member.is_some()
    }

    /// Where payloads go: set before the transport begins to tell anything.
    fn inbox(&self) -> Option<&dyn Inbox> {
        self.inbox.get().map(|inbox| &**inbox)
    }
}

impl Events for Upward {
    fn frame(&self, from: &Peer, class: Class, frame: Frame) {
        if let Some(inner) = self.inner() {
            inner.frame(from, class, frame);
        }
    }

    fn receiver(&self) -> Option<Arc<dyn Events>> {
        self.inner().map(|inner| inner as Arc<dyn Events>)
    }

    fn up(&self, peer: &Peer) {
        if let Some(inner) = self.inner() {
            inner.up(peer);
        }
    }

    fn down(&self, peer: &Peer, why: &Why) {
        if let Some(inner) = self.inner() {
            inner.down(peer, why);
        }
    }

    fn struck(&self, peer: &Peer, why: &str, banned: bool) {
        if let Some(inner) = self.inner() {
            inner.struck(peer, why, banned);
        }
    }

    fn superseded(&self, peer: &NodeId, known: Option<Incarnation>) {
        if let Some(inner) = self.inner() {
            inner.superseded(peer, known);
        }
    }

    fn drained(&self, to: &NodeId, class: Class) {
        if let Some(inner) = self.inner() {
            inner.drained(to, class);
        }
    }

    fn undelivered(&self, to: &NodeId, class: Class, frame: Frame) {
        if let Some(inner) = self.inner() {
            inner.undelivered(to, class, frame);
        }
    }
}

impl Events for Inner {
    fn frame(&self, from: &Peer, _class: Class, frame: Frame) {
        let Some(inbox) = self.inbox() else { return };
        if !bulk::is_bulk(frame.kind) {
            return inbox.frame(from, frame.kind, frame.body);
        }
        match self.bulk.frame(&*self.transport, from, frame) {
            Ok(None) => {}
            Ok(Some(bulk::Told::Payload(whole))) => {
                let began = self.bulk.moment(whole.began);
                inbox.transferred(from, whole.body.len() as u64, began, Instant::now());
                inbox.frame(from, whole.kind, whole.body);
            }
            Ok(Some(bulk::Told::Undelivered(payload))) => inbox.undelivered(payload),
            Err(error) if error.is_breach() => self.transport.breach(from, &error.to_string()),
            Err(error) => {
                tracing::info!(peer = %from, %error, "a part of a bulk transfer is dropped")
            }
        }
    }

    fn up(&self, peer: &Peer) {
        let Some(inbox) = self.inbox() else { return };
        inbox.up(peer);
    }

    fn down(&self, peer: &Peer, why: &Why) {
        let Some(inbox) = self.inbox() else { return };
        let back = self.bulk.down(&peer.node);
        inbox.down(peer, why);
        back.into_iter().for_each(|payload| inbox.undelivered(payload));
    }

    fn struck(&self, peer: &Peer, why: &str, banned: bool) {
        let Some(inbox) = self.inbox() else { return };
        inbox.struck(peer, why, banned);
    }

    fn superseded(&self, peer: &NodeId, known: Option<Incarnation>) {
        let Some(inbox) = self.inbox() else { return };
        inbox.superseded(peer, known);
    }

    fn drained(&self, to: &NodeId, class: Class) {
        self.bulk.drained(&*self.transport, to, class);
    }

    fn undelivered(&self, to: &NodeId, _class: Class, frame: Frame) {
        let Some(inbox) = self.inbox() else { return };
        if !bulk::is_bulk(frame.kind) {
            return inbox.undelivered((to.clone(), frame.kind, frame.body));
        }
        if let Some(payload) = self.bulk.undelivered(to, &frame) {
            inbox.undelivered(payload);
        }
    }
}

#[cfg(test)]
mod tests;
