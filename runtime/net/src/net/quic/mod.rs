//! The QUIC network: one connection per pair of nodes, opened on demand, under mutual TLS with the
//! grid's own authority.
//!
//! Threads: all code runs on the endpoint's thread (a current-thread runtime), except `send` and
//! similar methods. These may be called from every thread, but only push onto a queue and, on an
//! idle link, start an attempt. Each event of a link is therefore handled completely before the
//! next.

mod congestion;
mod gate;
mod handshake;
mod link;
mod machine;
mod parse;
mod queue;
mod relay;
mod settings;

use std::collections::{BTreeMap, VecDeque};
use std::future::Future;
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use quinn::{Connection, Endpoint, RecvStream, Runtime as _, SendStream, VarInt};
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::Instant;

pub use self::gate::{GateCondition, gated};
use self::link::LiveLink;
use self::machine::{Conn, ConnectionAction, ConnectionEvent, LinkMachine, LinkPhase};
use self::queue::FrameQueue;
use self::relay::{RelayedTraffic, Routes};
use self::settings::Configs;
pub(in crate::net) use self::settings::{ALL_INCOMING_BYTES, INCOMING_BYTES, raise_buffers};
use super::callers::Callers;
use super::hello::Refuse;
use super::tls::{NodeIdentity, Role, TlsError};
use super::{
    Address, Buffers, Class, Contact, Events, LinkPolicy, LinkState, LinkStats, NetConfig,
    RefuseReason, RefusedCounts, SendError, Transport, Violations,
};
use crate::checksum::checksum_from;
use crate::id::{ClusterId, Incarnation, NodeId, Peer};
use crate::wire::{Frame, Kind};

/// The reason why the network cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum NetError {
    /// The socket cannot be opened.
    #[error(
        "cannot listen on {address}: {source}; choose another address or port range for the node"
    )]
    Bind {
        /// The address or port range.
        address: String,
        /// The error of the system.
        source: io::Error,
    },
    /// The node has no address that others can connect to.
    #[error(
        "{bind} is every address of this machine, which others cannot connect to: set `advertise`"
    )]
    Advertise {
        /// The address that the node listens on.
        bind: SocketAddr,
    },
    /// The certificates are unusable.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// There is no runtime, or it has several threads.
    #[error("the network must be opened inside a current-thread tokio runtime (an actix arbiter)")]
    Runtime,
}

/// Code of a closed connection on the wire. Numbers are never reused; 0 is the code of quinn when a
/// handle is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Code {
    /// An orderly close.
    Goodbye = 1,
    /// The hello was refused.
    Refused = 2,
    /// Another connection between the two nodes stays.
    Crossed = 3,
    /// The peer's frames are invalid.
    Protocol = 4,
}

impl From<Code> for VarInt {
    fn from(code: Code) -> Self {
        VarInt::from_u32(code as u32)
    }
}

const CLASSES: [Class; 3] = [Class::Control, Class::Steal, Class::Bulk];

/// Number of packets after which a connection's round-trip time is measured rather than initially
/// estimated.
const RTT_PACKETS: u64 = 8;

/// Time for the last packets to leave. Closes are sent immediately, and peers have acknowledged the
/// goodbyes. quinn would wait longer only to answer late packets.
const DRAIN: Duration = Duration::from_millis(100);

/// The socket, clock and randomness below an endpoint.
pub(crate) struct EndpointParts {
    /// Socket that sends and receives datagrams.
    pub socket: Arc<dyn quinn::AsyncUdpSocket>,
    /// Address under which others reach the endpoint.
    pub address: SocketAddr,
    /// Sizes of the socket's buffers, if the system reports them.
    pub buffers: Option<Buffers>,
    /// Seed of the endpoint's random choices; `None`: the system's randomness.
    pub rng_seed: Option<[u8; 32]>,
    /// Source of the date; `None`: the system's.
    pub calendar: Option<Arc<dyn quinn::TimeSource>>,
    /// Clock, timers and tasks of the endpoint.
    pub timers: Arc<dyn quinn::Runtime>,
}

/// The system's socket without a wrapper. Call it inside a tokio runtime.
///
/// # Errors
/// The system's.
pub fn plain_socket(socket: UdpSocket) -> io::Result<Arc<dyn quinn::AsyncUdpSocket>> {
    quinn::TokioRuntime.wrap_udp_socket(socket)
}

/// The current runtime, which must be a current-thread one.
fn current_thread_runtime() -> Result<Handle, NetError> {
    let runtime = Handle::try_current().map_err(|_| NetError::Runtime)?;
    match runtime.runtime_flavor() {
        RuntimeFlavor::CurrentThread => Ok(runtime),
        _ => Err(NetError::Runtime),
    }
}

/// A QUIC network, which closes when it is dropped.
pub(crate) struct Quic(Arc<EndpointState>);

struct EndpointState {
    me: Peer,
    grid: String,
    config: NetConfig,
    /// The quinn configurations; replaced with the node's certificate.
    configs: RwLock<Arc<Configs>>,
    /// Source of the date; `None`: the system's.
    calendar: Option<Arc<dyn quinn::TimeSource>>,
    /// Nodes whose certificates are revoked, with the reasons.
    revoked: Mutex<BTreeMap<NodeId, String>>,
    start: Instant,
    address: SocketAddr,
    buffers: Option<Buffers>,
    endpoint: Endpoint,
    relay: Arc<RelayedTraffic>,
    routes: Mutex<Routes>,
    runtime: Handle,
    events: Arc<dyn Events>,
    peers: RwLock<BTreeMap<NodeId, Arc<PeerEntry>>>,
    refused: Mutex<RefusedCounts>,
    closing: AtomicBool,
    /// Tells the links to close, with the reason.
    close_reason: watch::Sender<Option<String>>,
    closed: watch::Sender<bool>,
    next_conn: AtomicU64,
    /// Callers whose handshakes are in progress.
    handshakes: Mutex<Callers>,
}

/// A peer. Its queues exist as long as the endpoint, its connections come and go.
struct PeerEntry {
    node: NodeId,
    queues: [FrameQueue; CLASSES.len()],
    link: Mutex<PeerLink>,
    /// Whether no connection is open or under way, so that a frame must start an attempt.
    idle: AtomicBool,
    reconnects: AtomicU64,
    unknown_kinds: AtomicU64,
    strikes: Mutex<Violations>,
}

struct PeerLink {
    machine: LinkMachine,
    address: Option<SocketAddr>,
    /// The relay that the node names in its address.
    via: Option<NodeId>,
    cluster: ClusterId,
    conns: BTreeMap<Conn, ConnState>,
    /// Time since which a link that was up or tried is down.
    down_since: Option<Instant>,
}

/// The state of a connection.
enum ConnState {
    /// This side's attempt, before its reply.
    Dialling(Dial),
    /// Hello, and for an attempt of this side the welcome, have been exchanged; not yet in use.
    Greeted(Greeted),
    /// In use by a link.
    InUse(Arc<LiveLink>),
}

/// An attempt of this side that is under way.
struct Dial {
    task: AbortHandle,
    state: Arc<DialState>,
}

/// The progress of an attempt, as its task reports it.
#[derive(Default)]
struct DialState {
    /// Whether the connection is established; before that it must not be dropped.
    connected: AtomicBool,
    /// Whether the attempt goes through a relay.
    relayed: AtomicBool,
}

impl Dial {
    /// Abandons the attempt. A connection that is not yet established is completed first.
    ///
    /// If it were closed earlier, each Retry packet of the other side would trigger another close
    /// and another Retry. This would last for a second at full packet rate.
    fn abandon(&self) {
        if self.state.connected.load(Ordering::Acquire) {
            self.task.abort();
        }
    }
}

/// A connection after the exchange of hello and welcome.
struct Greeted {
    conn: Connection,
    send: SendStream,
    recv: RecvStream,
    /// The role in the peer's certificate.
    role: Role,
    /// Minor protocol version of the link.
    protocol: u16,
    /// A frame to write before all others.
    first: Option<Frame>,
}

impl Quic {
    /// Opens the socket and wraps it with `wrap`. Nothing is accepted before `start`.
    ///
    /// # Errors
    /// [`NetError`].
    pub fn open(
        config: NetConfig,
        identity: &NodeIdentity,
        incarnation: Incarnation,
        wrap: impl FnOnce(UdpSocket) -> io::Result<Arc<dyn quinn::AsyncUdpSocket>>,
        events: Arc<dyn Events>,
    ) -> Result<Self, NetError> {
        current_thread_runtime()?; // the socket is registered with the runtime
        let bind_error = |source| NetError::Bind { address: config.bind.to_string(), source };
        let (socket, buffers) = settings::socket(&config)?;
        let bound = socket.local_addr().map_err(bind_error)?;
        let address = match config.advertise {
            Some(address) if address.port() == 0 => SocketAddr::new(address.ip(), bound.port()),
            Some(address) => address,
            None if bound.ip().is_unspecified() => {
                return Err(NetError::Advertise { bind: config.bind });
            }
            None => bound,
        };
        let socket = wrap(socket).map_err(bind_error)?;
        let timers = Arc::new(quinn::TokioRuntime);
        let parts =
            EndpointParts { socket, address, buffers, rng_seed: None, calendar: None, timers };
        Self::over(config, identity, incarnation, parts, events)
    }

    /// Opens an endpoint over given parts. Nothing is accepted before `start`.
    ///
    /// # Errors
    /// [`NetError`].
    pub fn over(
        config: NetConfig,
        identity: &NodeIdentity,
        incarnation: Incarnation,
        parts: EndpointParts,
        events: Arc<dyn Events>,
    ) -> Result<Self, NetError> {
        let runtime = current_thread_runtime()?;
        let EndpointParts { socket, address, buffers, rng_seed, calendar, timers } = parts;
        let configs = Configs::new(&config, identity, calendar.clone())?;
        let server = configs.accept(None).as_ref().clone();
        let mut endpoint_config = quinn::EndpointConfig::default();
        endpoint_config.rng_seed(rng_seed);
        let relay = RelayedTraffic::new();
        let endpoint = relay
            .wrap_socket(socket)
            .and_then(|socket| {
                let server = Some(server);
                Endpoint::new_with_abstract_socket(endpoint_config, server, socket, timers)
            })
            .map_err(|source| NetError::Bind { address: address.to_string(), source })?;
        let name = identity.name();
        let me = Peer { node: name.node.clone(), incarnation, cluster: name.cluster.clone() };
        let shared = Arc::new(EndpointState {
            me,
            grid: identity.grid().to_owned(),
            config,
            configs: RwLock::new(Arc::new(configs)),
            calendar,
            revoked: Mutex::default(),
            start: Instant::now(),
            address,
            buffers,
            endpoint,
            relay,
            routes: Mutex::default(),
            runtime,
            events,
            peers: RwLock::default(),
            refused: Mutex::default(),
            closing: AtomicBool::new(false),
            close_reason: watch::Sender::new(None),
            closed: watch::Sender::new(false),
            next_conn: AtomicU64::new(1),
            handshakes: Mutex::default(),
        });
        shared.relay.attach(&shared);
        Ok(Self(shared))
    }
}

impl Drop for Quic {
    fn drop(&mut self) {
        self.close("the endpoint was dropped");
    }
}

impl Transport for Quic {
    fn me(&self) -> &Peer {
        &self.0.me
    }

    fn address(&self) -> Address {
        Address::Socket(self.0.address)
    }

    fn start(&self) {
        self.0.runtime.spawn(self.0.clone().accept_all());
    }

    fn learn(&self, contact: Contact, incarnation: Option<Incarnation>) {
        if contact.node == self.0.me.node {
            return;
        }
        let entry = self.0.entry(&contact.node, &contact.cluster);
        let mut link = entry.lock();
        let known = link.machine.incarnation();
        if incarnation.is_some_and(|incarnation| known.is_some_and(|known| incarnation < known)) {
            return tracing::debug!(node = %contact.node, "an outdated contact is ignored");
        }
        link.cluster = contact.cluster;
        let (address, via) = match contact.address {
            Address::Socket(address) => (Some(address), None),
            Address::Relayed(relay) => (None, Some(relay)),
            Address::Memory => {
                tracing::warn!(node = %contact.node, address = ?contact.address,
                    "QUIC cannot reach this address; the node can still connect to this one");
                (None, None)
            }
        };
        let up = match link.machine.phase() {
            LinkPhase::Up(conn) => Some(conn),
            _ => None,
        };
        let is_newer = incarnation.is_some() && known.is_some() && incarnation != known;
        // A link to the reported incarnation itself stays up at any address.
        let stays = up.is_some() && incarnation.is_some() && incarnation == known;
        let moved = link.address.is_some() && address.is_some() && link.address != address;
        (link.address, link.via) = (address, via);
        if !is_newer && (stays || !moved) {
            return;
        }
        if let Some(ConnState::InUse(live)) = up.and_then(|conn| link.conns.get(&conn)) {
            live.retire(); // later frames wait for the new link
        }
        drop(link);
        let shared = self.0.clone();
        // On the endpoint's thread, where events are reported.
        self.0.runtime.spawn(async move {
            let pending = !entry.is_empty() && !shared.closing.load(Ordering::Acquire);
            shared.handle_event(&entry, ConnectionEvent::Moved { up, incarnation, pending });
        });
    }

    fn forget(&self, node: &NodeId) {
        let Some(entry) = self.0.find(node) else { return };
        {
            let mut link = entry.lock();
            (link.address, link.via) = (None, None);
        }
        self.0.routes().forget(node);
        let shared = self.0.clone();
        // On the endpoint's thread, where events are reported.
        self.0.runtime.spawn(async move { shared.handle_event(&entry, ConnectionEvent::Forget) });
    }

    fn send(&self, to: &NodeId, class: Class, frame: Frame) -> Result<(), SendError> {
        let shared = &self.0;
        if shared.closing.load(Ordering::Acquire) {
            return Err(SendError::Closed);
        }
        // The hot path locks the table for reading and the queue, without cloning or waiting.
        let peers = shared.peers.read().unwrap_or_else(PoisonError::into_inner);
        let entry = peers.get(to).ok_or_else(|| SendError::Unknown(to.clone()))?;
        if entry.idle.load(Ordering::SeqCst) && !entry.lock().has_address() {
            return Err(SendError::Unknown(to.clone()));
        }
        entry.queue(class).push(frame).map_err(|_| SendError::Full(to.clone()))?;
        if entry.idle.load(Ordering::SeqCst) {
            let entry = entry.clone();
            drop(peers);
            shared.handle_event(&entry, ConnectionEvent::SendRequested);
        }
        Ok(())
    }

    fn room(&self, to: &NodeId, class: Class) -> usize {
        self.0.find(to).map_or(0, |entry| entry.queue(class).room())
    }

    fn buffers(&self) -> Option<Buffers> {
        self.0.buffers
    }

    fn role(&self, node: &NodeId) -> Option<Role> {
        let entry = self.0.find(node)?;
        let link = entry.lock();
        link.live().next().map(|live| live.role)
    }

    fn expected(&self, node: &NodeId) -> Option<LinkPolicy> {
        let cluster = self.0.find(node)?.lock().cluster.clone();
        self.expected_of(&cluster)
    }

    fn expected_of(&self, cluster: &ClusterId) -> Option<LinkPolicy> {
        self.0.config.links.get(cluster).copied()
    }

    fn links(&self) -> Vec<LinkStats> {
        let peers = self.0.peers.read().unwrap_or_else(PoisonError::into_inner);
        peers.values().map(|entry| entry.stats()).collect()
    }

    fn lost(&self, to: &NodeId) -> u64 {
        let Some(entry) = self.0.find(to) else { return 0 };
        let link = entry.lock();
        link.live().next().map_or(0, |live| live.conn.stats().path.lost_packets)
    }

    fn set_relays(&self, relays: &BTreeMap<ClusterId, NodeId>) {
        self.0.routes().set_relays(relays);
    }

    fn relayed_datagrams(&self) -> u64 {
        self.0.relay.passed_on()
    }

    fn refused(&self) -> RefusedCounts {
        self.0.refused.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn renew(&self, identity: &NodeIdentity) -> Result<(), TlsError> {
        let shared = &self.0;
        let (name, me) = (identity.name(), &shared.me);
        if (&name.node, &name.cluster) != (&me.node, &me.cluster) {
            return Err(TlsError::Malformed {
                file: Default::default(),
                reason: format!("the certificate names {name}, but this node is {}", me.node),
            });
        }
        let configs = Configs::new(&shared.config, identity, shared.calendar.clone())?;
        if !shared.closing.load(Ordering::Acquire) {
            let server = configs.accept(None).as_ref().clone();
            shared.endpoint.set_server_config(Some(server));
        }
        *shared.configs.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(configs);
        Ok(())
    }

    fn revoke(&self, nodes: &BTreeMap<NodeId, String>) {
        self.0.revoked.lock().unwrap_or_else(PoisonError::into_inner).clone_from(nodes);
        let shared = self.0.clone();
        let nodes: Vec<NodeId> = nodes.keys().cloned().collect();
        // On the endpoint's thread, where events are reported.
        self.0
            .runtime
            .spawn(async move { nodes.iter().for_each(|node| shared.close_revoked(node)) });
    }

    fn report_violation(&self, peer: &Peer, why: &str) {
        let Some(entry) = self.0.find(&peer.node) else { return };
        let live = entry.lock().live().find(|live| live.peer == *peer).cloned();
        if let Some(live) = live {
            self.0.report_violation(&entry, &live, why);
        }
    }

    fn close(&self, reason: &str) {
        let shared = &self.0;
        if shared.closing.swap(true, Ordering::AcqRel) {
            return;
        }
        shared.close_reason.send_replace(Some(reason.to_owned()));
        shared.runtime.spawn(shared.clone().close_all());
    }

    fn closed(&self) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        let mut closed = self.0.closed.subscribe();
        Box::pin(async move {
            // An error means that the endpoint is gone.
            let _ = closed.wait_for(|closed| *closed).await;
        })
    }
}

impl PeerLink {
    /// Whether a link to the peer can be opened.
    fn has_address(&self) -> bool {
        self.address.is_some() || self.via.is_some()
    }

    /// The connections in use: at most one, except briefly.
    fn live(&self) -> impl Iterator<Item = &Arc<LiveLink>> {
        self.conns.values().filter_map(|state| match state {
            ConnState::InUse(live) => Some(live),
            _ => None,
        })
    }
}

#[cfg(test)]
impl Quic {
    /// Extends the downtime of all links that are down.
    fn age_links(&self, by: Duration) {
        for entry in self.0.peers.read().unwrap().values() {
            let mut link = entry.lock();
            link.down_since = link.down_since.map(|since| since - by);
        }
    }
}

impl PeerEntry {
    fn lock(&self) -> MutexGuard<'_, PeerLink> {
        self.link.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn strikes(&self) -> MutexGuard<'_, Violations> {
        self.strikes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn queue(&self, class: Class) -> &FrameQueue {
        &self.queues[class as usize]
    }

    fn is_empty(&self) -> bool {
        self.queues.iter().all(FrameQueue::is_empty)
    }

    fn stats(&self) -> LinkStats {
        let link = self.lock();
        let state = match link.machine.phase() {
            LinkPhase::Idle => LinkState::Idle,
            LinkPhase::Dialling(_) => LinkState::Connecting,
            LinkPhase::Backoff(_) => LinkState::Backoff,
            LinkPhase::Up(_) => LinkState::Up,
        };
        let live = link.live().next();
        let path = live.map(|live| live.conn.stats().path);
        let rtt = path.filter(|path| path.sent_packets >= RTT_PACKETS).map(|path| path.rtt);
        LinkStats {
            peer: self.peer(&link),
            state,
            rtt,
            mtu: path.map(|path| path.current_mtu),
            relayed: live.is_some_and(|live| live.relayed),
            protocol: live.map(|live| live.protocol),
            classes: CLASSES.map(|class| (class, self.queue(class).stats())).into(),
            reconnects: self.reconnects.load(Ordering::Relaxed),
            unknown_kinds: self.unknown_kinds.load(Ordering::Relaxed),
            strikes: self.strikes().count(),
        }
    }

    fn peer(&self, link: &PeerLink) -> Peer {
        Peer {
            node: self.node.clone(),
            incarnation: link.machine.incarnation().unwrap_or_default(),
            cluster: link.cluster.clone(),
        }
    }
}

impl EndpointState {
    fn find(&self, node: &NodeId) -> Option<Arc<PeerEntry>> {
        self.peers.read().unwrap_or_else(PoisonError::into_inner).get(node).cloned()
    }

    fn entry(&self, node: &NodeId, cluster: &ClusterId) -> Arc<PeerEntry> {
        if let Some(entry) = self.find(node) {
            return entry;
        }
        let mut peers = self.peers.write().unwrap_or_else(PoisonError::into_inner);
        let new = || {
            let config = &self.config;
            let queue = |class| {
                let bytes = match class {
                    Class::Bulk => config.bulk_queue_bytes(),
                    Class::Control | Class::Steal => config.queue_bytes,
                };
                FrameQueue::new(config.queue_frames, bytes)
            };
            // Seeded by the pair, so that two sides that lost each other have different delays.
            let seed = [self.me.node.as_str(), node.as_str()].concat();
            let seed = checksum_from(self.me.incarnation.0, seed.bytes());
            let backoff = Duration::from_millis(config.backoff_ms);
            let own_dial_stays = self.me.node < *node;
            Arc::new(PeerEntry {
                node: node.clone(),
                queues: CLASSES.map(queue),
                link: Mutex::new(PeerLink {
                    machine: LinkMachine::new(own_dial_stays, config.attempts, backoff, seed),
                    address: None,
                    via: None,
                    cluster: cluster.clone(),
                    conns: BTreeMap::new(),
                    down_since: None,
                }),
                idle: AtomicBool::new(true),
                reconnects: AtomicU64::new(0),
                unknown_kinds: AtomicU64::new(0),
                strikes: Mutex::default(),
            })
        };
        peers.entry(node.clone()).or_insert_with(new).clone()
    }

    /// The expected cluster of a node at this address, whose policy applies before the node has
    /// identified itself.
    ///
    /// A node connects from the address on which it listens. Behind address translation only the
    /// host is known, which decides if all known nodes on it belong to one cluster.
    fn cluster_at(&self, remote: SocketAddr) -> Option<ClusterId> {
        if self.config.links.is_empty() {
            return None;
        }
        if relay::is_stand_in(remote) {
            let entry = self.find(&self.relay.name(remote)?)?;
            let cluster = entry.lock().cluster.clone();
            return Some(cluster);
        }
        let peers = self.peers.read().unwrap_or_else(PoisonError::into_inner);
        let mut of_host = None;
        let mut ambiguous = false;
        for entry in peers.values() {
            let link = entry.lock();
            let Some(address) = link.address.filter(|known| known.ip() == remote.ip()) else {
                continue;
            };
            if address == remote {
                return Some(link.cluster.clone());
            }
            ambiguous |= of_host.as_ref().is_some_and(|other| *other != link.cluster);
            of_host = Some(link.cluster.clone());
        }
        of_host.filter(|_| !ambiguous)
    }

    /// Handles a protocol violation of the peer: the stream cannot continue, so the link is closed.
    fn report_violation(&self, entry: &PeerEntry, live: &LiveLink, why: &str) {
        if !live.abandon(Code::Protocol, why) {
            return; // one strike per link suffices
        }
        let banned = entry.strikes().strike(self.start.elapsed());
        tracing::warn!(
            peer = %live.peer,
            why,
            banned,
            "the peer broke the protocol; the link is closed"
        );
        self.events.struck(&live.peer, why, banned);
    }

    /// The reason why a node's certificate is revoked, if it is.
    fn revoked(&self, node: &NodeId) -> Option<String> {
        let revoked = self.revoked.lock().unwrap_or_else(PoisonError::into_inner);
        let why = revoked.get(node)?;
        Some(format!(
            "the certificate of {node} is revoked ({why}): it may join again with another token"
        ))
    }

    /// Closes all connections to a node whose certificate is revoked.
    fn close_revoked(&self, node: &NodeId) {
        let (Some(entry), Some(why)) = (self.find(node), self.revoked(node)) else { return };
        let link = entry.lock();
        let mut closed = false;
        for slot in link.conns.values() {
            match slot {
                ConnState::InUse(live) => closed |= live.abandon(Code::Refused, &why),
                ConnState::Greeted(greeted) => {
                    greeted.conn.close(Code::Refused.into(), why.as_bytes())
                }
                // The attempt itself detects that the node is revoked.
                ConnState::Dialling(_) => {}
            }
        }
        drop(link);
        if closed {
            tracing::warn!(%node, why, "the link is closed");
        }
    }

    fn is_banned(&self, entry: &PeerEntry) -> bool {
        entry.strikes().is_banned(self.start.elapsed())
    }

    /// Passes an event to a link's state machine and executes its actions. `SendRequested` may come
    /// from any thread, because it only starts an attempt; other events come from the endpoint's
    /// thread.
    fn handle_event(self: &Arc<Self>, entry: &Arc<PeerEntry>, event: ConnectionEvent) {
        let mut link = entry.lock();
        if self.closing.load(Ordering::Acquire) && event == ConnectionEvent::SendRequested {
            return;
        }
        let actions = link.machine.handle(event);
        let idle = link.machine.phase() == LinkPhase::Idle;
        // Undelivered frames are removed first, because the user may send again while they are
        // reported. A lost link also drops the queue of bulk transfers, because the next link
        // cannot use partial ones.
        let ended = actions.iter().any(|action| matches!(action, ConnectionAction::Down { .. }));
        let classes = if actions.contains(&ConnectionAction::DropQueue) {
            &CLASSES[..]
        } else if ended {
            &[Class::Bulk][..]
        } else {
            &[][..]
        };
        let dropped: Vec<_> =
            classes.iter().map(|class| (*class, entry.queue(*class).take_unsent())).collect();
        entry.idle.store(idle, Ordering::SeqCst);
        for action in &actions {
            if let ConnectionAction::Dial(dial) = *action {
                let state = Arc::<DialState>::default();
                let call = self.clone().dial(entry.clone(), dial, state.clone());
                let task = self.runtime.spawn(call).abort_handle();
                link.conns.insert(Conn::Dialled(dial), ConnState::Dialling(Dial { task, state }));
            }
        }
        drop(link);
        for action in actions {
            self.execute(entry, action);
        }
        for (class, (frames, drained)) in dropped {
            self.return_frames(entry, class, frames, drained);
        }
        // A frame may have been queued after the state machine saw an empty queue, and before it
        // became idle.
        if idle && !entry.is_empty() && entry.lock().machine.phase() == LinkPhase::Idle {
            self.handle_event(entry, ConnectionEvent::SendRequested);
        }
    }

    fn execute(self: &Arc<Self>, entry: &Arc<PeerEntry>, action: ConnectionAction) {
        match action {
            ConnectionAction::Dial(_) | ConnectionAction::DropQueue => {} // done by `handle_event`
            ConnectionAction::Welcome { conn, dials } => self.welcome(entry, conn, dials),
            ConnectionAction::Refuse { conn, reason } => {
                let (slot, known) = {
                    let mut link = entry.lock();
                    (link.conns.remove(&conn), link.machine.incarnation())
                };
                if let Some(ConnState::Greeted(greeted)) = slot {
                    let known = known.filter(|_| reason == RefuseReason::StaleIncarnation);
                    let detail = match known {
                        Some(_) => {
                            format!("{} knows a later incarnation of {}", self.me.node, entry.node)
                        }
                        None => format!("{}: refused by {}", entry.node, self.me.node),
                    };
                    let remote = greeted.conn.remote_address();
                    self.count_refused(reason, remote, &detail);
                    let refuse = Refuse { reason, detail, known };
                    self.runtime.spawn(self.clone().refuse(greeted, refuse));
                }
            }
            ConnectionAction::Abandon(conn) => match entry.lock().conns.remove(&conn) {
                Some(ConnState::Dialling(dial)) => dial.abandon(),
                Some(ConnState::Greeted(greeted)) => {
                    greeted.conn.close(Code::Crossed.into(), b"crossed")
                }
                Some(ConnState::InUse(live)) => {
                    // It may have been retired.
                    let _ = live.abandon(Code::Crossed, "replaced or forgotten");
                }
                None => {}
            },
            ConnectionAction::Retry { after, serial } => {
                let (shared, entry) = (self.clone(), entry.clone());
                self.runtime.spawn(async move {
                    tokio::time::sleep(after).await;
                    let pending = !entry.is_empty() && !shared.closing.load(Ordering::Acquire);
                    shared.handle_event(&entry, ConnectionEvent::Retry { serial, pending });
                });
            }
            ConnectionAction::Up { conn, incarnation, again } => {
                if again {
                    entry.reconnects.fetch_add(1, Ordering::Relaxed);
                }
                let mut link = entry.lock();
                let peer = Peer { incarnation, ..entry.peer(&link) };
                let Some(ConnState::Greeted(greeted)) = link.conns.remove(&conn) else {
                    return; // closed by `close_all`
                };
                let live = Arc::new(LiveLink::new(
                    greeted.conn.clone(),
                    peer,
                    greeted.role,
                    greeted.protocol,
                ));
                link.conns.insert(conn, ConnState::InUse(live.clone()));
                link.down_since = None;
                drop(link);
                tracing::debug!(
                    peer = %live.peer,
                    remote = %greeted.conn.remote_address(),
                    "link up"
                );
                self.events.up(&live.peer);
                let run = link::run(self.clone(), entry.clone(), conn, live, greeted);
                self.runtime.spawn(run);
            }
            ConnectionAction::Down { incarnation, why } => {
                let mut link = entry.lock();
                link.down_since.get_or_insert_with(Instant::now);
                let peer = Peer { incarnation, ..entry.peer(&link) };
                drop(link);
                tracing::debug!(%peer, %why, "link down");
                self.events.down(&peer, &why);
            }
        }
    }

    fn return_frames(
        &self,
        entry: &PeerEntry,
        class: Class,
        frames: VecDeque<Frame>,
        drained: bool,
    ) {
        // Relayed datagrams have no sender on this node.
        for frame in frames.into_iter().filter(|frame| frame.kind != Kind::RELAY) {
            self.events.undelivered(&entry.node, class, frame);
        }
        if drained {
            self.events.drained(&entry.node, class);
        }
    }

    fn count_refused(&self, reason: RefuseReason, remote: SocketAddr, detail: &str) {
        *self.refused.lock().unwrap_or_else(PoisonError::into_inner).entry(reason).or_default() +=
            1;
        match reason {
            // Both occur in a healthy grid.
            RefuseReason::Crossed | RefuseReason::Closing => {
                tracing::debug!(?reason, %remote, detail, "link refused");
            }
            _ => tracing::warn!(?reason, %remote, detail, "link refused"),
        }
    }

    /// Closes the endpoint in order: refuses new links, sends queued frames and goodbyes, then
    /// closes the endpoint itself.
    async fn close_all(self: Arc<Self>) {
        self.endpoint.set_server_config(None);
        let entries: Vec<_> =
            self.peers.read().unwrap_or_else(PoisonError::into_inner).values().cloned().collect();
        let abandon = |entry: &PeerEntry| {
            entry.lock().conns.retain(|_, slot| match slot {
                ConnState::Dialling(dial) => {
                    dial.task.abort();
                    false
                }
                ConnState::Greeted(greeted) => {
                    greeted.conn.close(Code::Refused.into(), b"the endpoint closes");
                    false
                }
                ConnState::InUse(_) => true,
            });
        };
        // Attempts without queued frames need not complete.
        entries.iter().filter(|entry| entry.is_empty()).for_each(|entry| abandon(entry));
        // Links that are up close within the grace period. Attempts have the same time to come up.
        let all_closed = async || {
            while entries.iter().any(|entry| !entry.lock().conns.is_empty()) {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        let grace = self.config.close_grace();
        let _ = tokio::time::timeout(grace, all_closed()).await;
        entries.iter().for_each(|entry| abandon(entry));
        let _ = tokio::time::timeout(grace, all_closed()).await;
        self.endpoint.close(Code::Goodbye.into(), b"closed");
        let _ = tokio::time::timeout(DRAIN, self.endpoint.wait_idle()).await;
        self.closed.send_replace(true);
    }
}

#[cfg(test)]
mod tests;
