//! The network of a node: one handle over QUIC or over an in-memory network.
//!
//! This module does not know the meaning of frames, roles, jobs or tasks.

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
mod segments;
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
/// The socket interface below QUIC: see [`Net::quic_over`].
pub use quinn::AsyncUdpSocket;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

pub use self::bulk::{BulkConfig, BulkError};
pub use self::config::{Congestion, IDLE_TIMEOUT, KEEP_ALIVE, LinkPolicy, NetConfig};
pub use self::hello::Protocols;
pub use self::link::{DropCause, Link, LinkProfile};
pub use self::memory::{EventCounts, JoinError, LinkUnit, MemoryConfig, MemoryNet};
pub use self::paths::{Path, Paths};
pub use self::quic::{GateCondition, NetError, gated, plain_socket};
pub use self::router::Router;
pub use self::segments::SegmentPool;
pub(crate) use self::strikes::Violations;
pub use self::strikes::{BAN_DURATION, VIOLATION_WINDOW, VIOLATIONS_MAX};
pub use self::transport::{
    Buffers, ClassStats, LinkError, LinkState, LinkStats, RefuseReason, RefusedCounts,
};
pub(crate) use self::transport::{Events, Transport};
use crate::id::{ClusterId, Incarnation, NodeId, Peer};
use crate::membership::{Member, Members};
use crate::wire::{Frame, INLINE_MAX, Kind};

/// The address of a node: its own, or through another node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Address {
    /// A socket address to connect to.
    Socket(std::net::SocketAddr),
    /// In memory, where the name of the node suffices.
    Memory,
    /// Through the named node, which relays.
    Relayed(NodeId),
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Socket(address) => address.fmt(f),
            Self::Memory => f.write_str("its name in memory"),
            Self::Relayed(node) => write!(f, "node {node}"),
        }
    }
}

/// Name, cluster and address of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Contact {
    /// Name of the node.
    pub node: NodeId,
    /// Cluster of the node.
    pub cluster: ClusterId,
    /// Address of the node.
    pub address: Address,
}

/// The class of a message. Each class has its own ordered stream per peer and direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Class {
    /// Calls, replies and statistics.
    Control,
    /// Steals and results of tasks.
    Steal,
    /// Large payloads, in chunks under credits.
    Bulk,
}

/// The receiver of a network's payloads and link events. The endpoint's thread calls it, so it must
/// return quickly.
pub trait NetworkHandler: Send + Sync {
    /// A complete payload has arrived, after reassembly of bulk transfers. `from` is the peer by
    /// its certificate and hello.
    fn frame(&self, from: &Peer, kind: Kind, body: Bytes);
    /// A link is up: both sides have sent hello and welcome.
    fn up(&self, _peer: &Peer) {}
    /// A link went down: unanswered messages may be lost. Also called if a node could not be
    /// reached at all; its incarnation is then the last known one, or 0.
    fn down(&self, _peer: &Peer, _why: &LinkError) {}
    /// A peer violated the protocol and its link was closed. `banned`: it did so [`VIOLATIONS_MAX`]
    /// times within [`VIOLATION_WINDOW`], and its links are refused for [`BAN_DURATION`].
    fn violation(&self, _peer: &Peer, _why: &str, _banned: bool) {}
    /// A peer knows a later incarnation of this node and refuses its link. `known` is absent if the
    /// peer runs an older version.
    fn superseded(&self, _peer: &NodeId, _known: Option<Incarnation>) {}
    /// A bulk transfer of this size arrived from a peer in this interval; its payload follows.
    fn transferred(&self, _from: &Peer, _bytes: u64, _began: Instant, _ended: Instant) {}
    /// A queued payload was certainly not delivered. Follows [`NetworkHandler::down`].
    fn undelivered(&self, _payload: Undelivered) {}
}

/// The reason why a payload was refused. No part of it was sent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// No address is known for the node.
    #[error("no address is known for node {0}")]
    Unknown(NodeId),
    /// The queue to the node is full: send less, or drop and count.
    #[error("the queue to node {0} is full")]
    Full(NodeId),
    /// The payload is longer than the cap of its kind.
    #[error("a {kind:?} payload of {len} bytes is over the cap of {cap} bytes")]
    TooLong {
        /// Kind of the payload.
        kind: Kind,
        /// Length of the payload in bytes.
        len: usize,
        /// Cap of the kind in bytes.
        cap: usize,
    },
    /// The endpoint is closed.
    #[error("the endpoint is closed")]
    Closed,
}

/// Recipient, kind and bytes of a payload that was certainly not delivered when its link went down.
/// It is returned so that a stolen task can be reclaimed immediately.
pub type Undelivered = (NodeId, Kind, Bytes);

/// A handle to the network of a node: cheap to clone, usable from every thread.
#[derive(Clone)]
pub struct Net(Arc<NetState>);

struct NetState {
    transport: Arc<dyn Transport>,
    bulk: bulk::BulkTransfers,
    handler: OnceLock<Arc<dyn NetworkHandler>>,
    /// Members of the node's job, to look up addresses that the transport does not know yet.
    members: Mutex<Members>,
    /// Whether new payloads are refused.
    closing: AtomicBool,
}

/// Time that [`Net::close`] waits for bulk transfers under way.
pub const BULK_GRACE: Duration = Duration::from_secs(2);

impl Net {
    /// Opens a node on a QUIC network; its certificate names the node.
    ///
    /// Call it on the endpoint's thread, inside its current-thread runtime. Nothing is sent or
    /// received before [`Net::start`].
    ///
    /// # Errors
    /// [`NetError`].
    pub fn quic(
        config: NetConfig,
        identity: &tls::NodeIdentity,
        incarnation: Incarnation,
    ) -> Result<Self, NetError> {
        Self::quic_over(config, identity, incarnation, quic::plain_socket)
    }

    /// Opens a node on a QUIC network over a wrapped UDP socket, for example one with an emulated
    /// link.
    ///
    /// `wrap` converts the bound socket. It is called once, inside the runtime, before this
    /// returns.
    ///
    /// # Errors
    /// [`NetError`]; errors of `wrap` become [`NetError::Bind`].
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

    /// Opens a handle over a transport. `build` creates the transport with its event receiver; no
    /// event is reported before [`Net::start`].
    pub(crate) fn over<E>(
        bulk: BulkConfig,
        build: impl FnOnce(Arc<dyn Events>) -> Result<Arc<dyn Transport>, E>,
    ) -> Result<Self, E> {
        // The transport owns its event receiver, which refers to the handle weakly, so that
        // dropping the last handle drops all.
        let forwarder = Arc::new(EventForwarder(OnceLock::new()));
        let transport = build(forwarder.clone())?;
        // Ids of transfers of two incarnations of a node must differ.
        let bulk = bulk::BulkTransfers::new(bulk, transport.me().incarnation.0);
        let closing = AtomicBool::new(false);
        let (handler, members) = (OnceLock::new(), Mutex::default());
        let inner = Arc::new(NetState { transport, bulk, handler, members, closing });
        let _ = forwarder.0.set(Arc::downgrade(&inner)); // this is the only place that sets it
        Ok(Self(inner))
    }

    /// Starts to accept links and payloads, which go to `handler`. Call it on the endpoint's
    /// thread.
    ///
    /// # Panics
    /// The network was already started.
    pub fn start(&self, handler: Arc<dyn NetworkHandler>) {
        assert!(self.0.handler.set(handler).is_ok(), "the network was already started");
        self.0.transport.start();
    }

    /// This node, as it identifies itself to peers.
    pub fn me(&self) -> &Peer {
        self.0.transport.me()
    }

    /// The address under which others reach this node.
    pub fn address(&self) -> Address {
        self.0.transport.address()
    }

    /// Name, cluster and address of this node.
    pub fn contact(&self) -> Contact {
        let me = self.me();
        Contact { node: me.node.clone(), cluster: me.cluster.clone(), address: self.address() }
    }

    /// Sets the address of a node. The first payload to the node opens a link.
    ///
    /// A link to another address of the node is closed, and its queue moves to the new one.
    pub fn learn(&self, contact: Contact) {
        self.0.transport.learn(contact, None);
    }

    /// Sets the address of an incarnation of a node. Earlier incarnations are ignored.
    ///
    /// A link to an earlier incarnation is closed; one to this incarnation stays up at any
    /// address.
    pub fn learn_incarnation(&self, contact: Contact, incarnation: Incarnation) {
        self.0.transport.learn(contact, Some(incarnation));
    }

    /// Sets the address of a member of a job, in its incarnation.
    pub fn learn_member(&self, node: &NodeId, member: &Member) {
        self.0.learn(node, member);
    }

    /// Sets the addresses of all members of the node's job, as [`Net::learn_member`] does for each.
    ///
    /// In memory, where a name suffices, addresses of unknown members are looked up when a payload
    /// is sent. Otherwise a process with all nodes of a large job would need memory for every pair
    /// of them.
    pub fn follow(&self, members: &Members) {
        let NetState { transport, members: followed, .. } = &*self.0;
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

    /// Sets the address of a node unless a link to it is up. For indirect contacts, whose address
    /// may differ from the one that works from here.
    pub fn learn_if_down(&self, contact: Contact) {
        let up = |link: &LinkStats| link.peer.node == contact.node && link.state == LinkState::Up;
        if !self.links().iter().any(up) {
            self.learn(contact);
        }
    }

    /// Sets the relay of each cluster. A node without a direct path is reached through the relay of
    /// its own cluster, or of this node's.
    ///
    /// The link is still end to end between the two nodes; see [`LinkStats::relayed`].
    pub fn set_relays(&self, gates: &BTreeMap<ClusterId, NodeId>) {
        self.0.transport.set_relays(gates);
    }

    /// Number of datagrams that this node relayed for other nodes' links.
    pub fn relayed_datagrams(&self) -> u64 {
        self.0.transport.relayed_datagrams()
    }

    /// Forgets a node and closes its link; its queue is returned as undelivered.
    pub fn forget(&self, node: &NodeId) {
        self.0.transport.forget(node);
    }

    /// Queues a payload, without blocking. It is delivered at most once.
    ///
    /// Payloads of one class to a peer stay in order. A payload longer than [`INLINE_MAX`], or of
    /// the class [`Class::Bulk`], travels as a bulk transfer, and later ones may overtake it.
    ///
    /// # Errors
    /// [`SendError`]; no part of the payload was sent then.
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
        if self.0.handler.get().is_none() || self.0.closing.load(Ordering::Acquire) {
            return Err(SendError::Closed);
        }
        let send = |body| {
            if class == Class::Bulk || len > INLINE_MAX {
                return self.0.bulk.send(&*self.0.transport, to, kind, body);
            }
            self.0.transport.send(to, class, Frame::new(kind, body))
        };
        match send(body.clone()) {
            Err(SendError::Unknown(_)) if self.0.look_up(to) => send(body),
            sent => sent,
        }
    }

    /// Free bytes in the queue to a peer in a class; for bulk, bytes of payloads.
    pub fn room(&self, to: &NodeId, class: Class) -> usize {
        match class {
            Class::Bulk => self.0.bulk.room(to),
            _ => self.0.transport.room(to, class),
        }
    }

    /// Whether a long message of a kind is on its way to a peer: it is queued, or the peer has not
    /// received all of it.
    pub fn is_sending(&self, to: &NodeId, kind: Kind) -> bool {
        self.0.bulk.is_sending(to, kind)
    }

    /// The role in the certificate of a node whose link is up. `None` without a link, and in
    /// memory, where there are no certificates.
    pub fn role(&self, node: &NodeId) -> Option<tls::Role> {
        self.0.transport.role(node)
    }

    /// Sizes of the socket's buffers, if there is a socket and the system reports them.
    pub fn buffers(&self) -> Option<Buffers> {
        self.0.transport.buffers()
    }

    /// Policy of links to a cluster that the settings name. `None` for other clusters, and in
    /// memory.
    pub fn expected(&self, cluster: &ClusterId) -> Option<LinkPolicy> {
        self.0.transport.expected_of(cluster)
    }

    /// The pool of object segments that the nodes of this process share; `None` where each node has
    /// a process of its own.
    pub fn segments(&self) -> Option<Arc<SegmentPool>> {
        self.0.transport.segments()
    }

    /// Statistics of current and former links, in order of node.
    pub fn links(&self) -> Vec<LinkStats> {
        self.0.transport.links()
    }

    /// Measured round-trip times of the links that are up, smoothed, with the cluster of the other
    /// end.
    pub fn round_trips(&self) -> Vec<(ClusterId, Duration)> {
        self.0.transport.round_trips()
    }

    /// Payload bytes sent to each node so far, in any order.
    pub fn bytes_out(&self) -> Vec<(NodeId, u64)> {
        self.0.transport.bytes_out()
    }

    /// Uses a new certificate of the same node for links that are opened from now on. Links that
    /// are up stay.
    ///
    /// # Errors
    /// [`tls::TlsError`]: the certificate is unusable or names another node. The old one stays in
    /// use.
    pub fn renew(&self, identity: &tls::NodeIdentity) -> Result<(), tls::TlsError> {
        self.0.transport.renew(identity)
    }

    /// Replaces the revoked certificates, by node and with a reason. Such nodes get no link
    /// ([`RefuseReason::Revoked`]), and their links are closed.
    pub fn revoke(&self, nodes: &BTreeMap<NodeId, String>) {
        self.0.transport.revoke(nodes);
    }

    /// Numbers of links that this side refused, by reason.
    pub fn refused(&self) -> RefusedCounts {
        self.0.transport.refused()
    }

    #[cfg(test)]
    pub(crate) fn transport(&self) -> &dyn Transport {
        &*self.0.transport
    }

    /// Reports a malformed payload of `peer`, and closes its link with this reason. After
    /// [`VIOLATIONS_MAX`] reports within [`VIOLATION_WINDOW`] the peer gets no link for
    /// [`BAN_DURATION`].
    ///
    /// Decoders of payloads call it on the endpoint's thread, from within
    /// [`NetworkHandler::frame`].
    pub fn report_violation(&self, peer: &Peer, why: &str) {
        self.0.transport.report_violation(peer, why);
    }

    /// Closes the network: refuses new payloads, sends queued ones for a limited time, says goodbye
    /// and closes every link.
    ///
    /// Bulk transfers have [`BULK_GRACE`]; the transport has its own limit for the rest.
    pub async fn close(&self, reason: &str) {
        self.0.closing.store(true, Ordering::Release);
        // Chunks are sent as credits arrive, so the links must stay open for both.
        let bulk = async {
            while self.0.bulk.is_busy() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        if tokio::time::timeout(BULK_GRACE, bulk).await.is_err() {
            tracing::warn!("closed before all bulk transfers had completed");
        }
        self.0.transport.close(reason);
        self.0.transport.closed().await;
    }
}

/// Forwards a transport's events to the handle.
struct EventForwarder(OnceLock<Weak<NetState>>);

impl EventForwarder {
    fn inner(&self) -> Option<Arc<NetState>> {
        self.0.get()?.upgrade()
    }
}

impl NetState {
    fn learn(&self, node: &NodeId, member: &Member) {
        let Member { incarnation, cluster, address, .. } = member;
        let (node, cluster, address) = (node.clone(), cluster.clone(), address.clone());
        self.transport.learn(Contact { node, cluster, address }, Some(*incarnation));
    }

    /// Passes the address of a member to the transport. Returns false if the node is not a member.
    fn look_up(&self, node: &NodeId) -> bool {
        let members = self.members.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let member = members.get(node);
        if let Some(member) = member {
            self.learn(node, member);
        }
        member.is_some()
    }

    /// The receiver of payloads, which is set before the transport reports events.
    fn handler(&self) -> Option<&dyn NetworkHandler> {
        self.handler.get().map(|handler| &**handler)
    }
}

impl Events for EventForwarder {
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

    fn down(&self, peer: &Peer, why: &LinkError) {
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

impl Events for NetState {
    fn frame(&self, from: &Peer, _class: Class, frame: Frame) {
        let Some(handler) = self.handler() else { return };
        if !bulk::is_bulk(frame.kind) {
            return handler.frame(from, frame.kind, frame.body);
        }
        match self.bulk.frame(&*self.transport, from, frame) {
            Ok(None) => {}
            Ok(Some(bulk::BulkEvent::Payload(whole))) => {
                let began = self.bulk.moment(whole.began);
                handler.transferred(from, whole.body.len() as u64, began, Instant::now());
                handler.frame(from, whole.kind, whole.body);
            }
            Ok(Some(bulk::BulkEvent::Undelivered(payload))) => handler.undelivered(payload),
            Err(error) if error.is_breach() => {
                self.transport.report_violation(from, &error.to_string())
            }
            Err(error) => {
                tracing::info!(peer = %from, %error, "a part of a bulk transfer is dropped")
            }
        }
    }

    fn up(&self, peer: &Peer) {
        let Some(handler) = self.handler() else { return };
        handler.up(peer);
    }

    fn down(&self, peer: &Peer, why: &LinkError) {
        let Some(handler) = self.handler() else { return };
        let back = self.bulk.down(&peer.node);
        handler.down(peer, why);
        back.into_iter().for_each(|payload| handler.undelivered(payload));
    }

    fn struck(&self, peer: &Peer, why: &str, banned: bool) {
        let Some(handler) = self.handler() else { return };
        handler.violation(peer, why, banned);
    }

    fn superseded(&self, peer: &NodeId, known: Option<Incarnation>) {
        let Some(handler) = self.handler() else { return };
        handler.superseded(peer, known);
    }

    fn drained(&self, to: &NodeId, class: Class) {
        self.bulk.drained(&*self.transport, to, class);
    }

    fn undelivered(&self, to: &NodeId, _class: Class, frame: Frame) {
        let Some(handler) = self.handler() else { return };
        if !bulk::is_bulk(frame.kind) {
            return handler.undelivered((to.clone(), frame.kind, frame.body));
        }
        if let Some(payload) = self.bulk.undelivered(to, &frame) {
            handler.undelivered(payload);
        }
    }
}

#[cfg(test)]
mod tests;
