//! The QUIC network: one connection a pair of nodes, opened on demand, under mutual TLS of the grid's own authority.
//!
//! Threads: everything here runs on the endpoint's thread (a current-thread runtime), save that `send` and its kin may be
//! called from every thread; those only push onto a queue and, on an idle link, start a dial. So each event of a link is
//! handled whole before the next.

mod congestion;
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

use self::link::Live;
use self::machine::{Action, Conn, Event, Machine, Phase};
use self::queue::Queue;
use self::relay::{Relay, Ways};
use self::settings::Configs;
pub(in crate::net) use self::settings::{ALL_INCOMING_BYTES, INCOMING_BYTES, raise_buffers};
use super::callers::Callers;
use super::hello::Refuse;
use super::tls::{NodeIdentity, Role, TlsError};
use super::{
    Address, Buffers, Class, Contact, Events, LinkPolicy, LinkState, LinkStats, NetConfig,
    RefuseReason, RefusedCounts, SendError, Strikes, Transport,
};
use crate::checksum::checksum_from;
use crate::id::{ClusterId, Incarnation, NodeId, Peer};
use crate::wire::{Frame, Kind};

/// Why the network cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum NetError {
    /// The socket cannot be opened.
    #[error("cannot listen on {what}: {source}; choose another address or port range for the node")]
    Bind {
        /// The address or port range.
        what: String,
        /// What the system says.
        source: io::Error,
    },
    /// Others cannot be told where this node is.
    #[error(
        "{bind} is every address of this machine, which others cannot connect to: set `advertise`"
    )]
    Advertise {
        /// Where the node listens.
        bind: SocketAddr,
    },
    /// The certificates cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The runtime around is missing, or has several threads.
    #[error("the network must be opened inside a current-thread tokio runtime (an actix arbiter)")]
    Runtime,
}

/// Why a connection is closed, on the wire. Numbers are never used again for another reason; 0 is what quinn sends when
/// a handle is merely dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Code {
    /// An orderly end.
    Goodbye = 1,
    /// The hello was refused.
    Refused = 2,
    /// Another connection between the two stays.
    Crossed = 3,
    /// The peer's frames cannot be understood.
    Protocol = 4,
}

impl From<Code> for VarInt {
    fn from(code: Code) -> Self {
        VarInt::from_u32(code as u32)
    }
}

const CLASSES: [Class; 3] = [Class::Control, Class::Steal, Class::Bulk];

/// Packets after which a connection's round trip is a measurement and no longer the guess it began with.
const RTT_PACKETS: u64 = 8;

/// Time for the last packets to leave. The closes themselves are sent at once, and peers have acknowledged the goodbyes;
/// all that quinn waits for longer is to answer packets that come late.
const DRAIN: Duration = Duration::from_millis(100);

/// What an endpoint stands on.
pub(crate) struct Below {
    /// Where datagrams go and come from.
    pub socket: Arc<dyn quinn::AsyncUdpSocket>,
    /// Where others reach it.
    pub address: SocketAddr,
    /// The socket's, where the system tells.
    pub buffers: Option<Buffers>,
    /// What its choices follow from; the system's randomness when absent.
    pub rng_seed: Option<[u8; 32]>,
    /// The date; the system's when absent.
    pub calendar: Option<Arc<dyn quinn::TimeSource>>,
    /// Its clock, and what its timers and tasks run on.
    pub timers: Arc<dyn quinn::Runtime>,
}

/// The system's socket as it is. To be called inside a tokio runtime.
pub(crate) fn plain(socket: UdpSocket) -> io::Result<Arc<dyn quinn::AsyncUdpSocket>> {
    quinn::TokioRuntime.wrap_udp_socket(socket)
}

/// The runtime around, which must be one that keeps all on one thread.
fn on_one_thread() -> Result<Handle, NetError> {
    let runtime = Handle::try_current().map_err(|_| NetError::Runtime)?;
    match runtime.runtime_flavor() {
        RuntimeFlavor::CurrentThread => Ok(runtime),
        _ => Err(NetError::Runtime),
    }
}

/// A QUIC network. Dropped, it closes.
pub(crate) struct Quic(Arc<Shared>);

struct Shared {
    me: Peer,
    grid: String,
    config: NetConfig,
    /// Others when this node has another certificate.
    configs: RwLock<Arc<Configs>>,
    /// The date; the system's when absent.
    calendar: Option<Arc<dyn quinn::TimeSource>>,
    /// Whose certificates are not valid any more, and why.
    revoked: Mutex<BTreeMap<NodeId, String>>,
    start: Instant,
    address: SocketAddr,
    buffers: Option<Buffers>,
    endpoint: Endpoint,
    relay: Arc<Relay>,
    ways: Mutex<Ways>,
    runtime: Handle,
    events: Arc<dyn Events>,
    peers: RwLock<BTreeMap<NodeId, Arc<Entry>>>,
    refused: Mutex<RefusedCounts>,
    closing: AtomicBool,
    /// The links' word that the end has come; carries the reason.
    close_reason: watch::Sender<Option<String>>,
    closed: watch::Sender<bool>,
    next_conn: AtomicU64,
    /// Handshakes of callers in progress.
    greeting: Mutex<Callers>,
}

/// A peer: its queues live as long as the endpoint, its connections come and go.
struct Entry {
    node: NodeId,
    queues: [Queue; CLASSES.len()],
    link: Mutex<Link>,
    /// Nothing is open or under way: a frame must start a dial.
    idle: AtomicBool,
    reconnects: AtomicU64,
    unknown_kinds: AtomicU64,
    strikes: Mutex<Strikes>,
}

struct Link {
    machine: Machine,
    address: Option<SocketAddr>,
    /// Through whom it is reached, where it says so itself.
    via: Option<NodeId>,
    cluster: ClusterId,
    conns: BTreeMap<Conn, Slot>,
    /// Since when no link is up that was, or was tried.
    down_since: Option<Instant>,
}

enum Slot {
    /// This side's dial, before its answer.
    Dialling(Dial),
    /// Hello (and for a dial, welcome) have been said; not in use yet.
    Greeted(Greeted),
    /// In use.
    Live(Arc<Live>),
}

/// A dial under way.
struct Dial {
    task: AbortHandle,
    state: Arc<DialState>,
}

/// What the task of a dial says of it.
#[derive(Default)]
struct DialState {
    /// Whether there is a connection: before that it must not be dropped.
    connected: AtomicBool,
    /// It goes through a gate.
    relayed: AtomicBool,
}

impl Dial {
    /// Nobody wants it any more. A connection that is not made yet is made first: closed before the other side has shown
    /// that it takes it, it would answer each of that side's requests to show its address (QUIC's Retry) with another
    /// close, and be asked again for each, as fast as packets go, for a second.
    fn abandon(&self) {
        if self.state.connected.load(Ordering::Acquire) {
            self.task.abort();
        }
    }
}

struct Greeted {
    conn: Connection,
    send: SendStream,
    recv: RecvStream,
    /// What its certificate lets it do.
    role: Role,
    /// The minor version of the protocol that both speak.
    protocol: u16,
    /// What must be written before anything else.
    first: Option<Frame>,
}

impl Quic {
    /// Opens the socket, and stands on what `wrap` makes of it. Nothing is accepted before `start`.
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
        on_one_thread()?; // the socket is registered with the runtime
        let bind_error = |source| NetError::Bind { what: config.bind.to_string(), source };
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
        let below = Below { socket, address, buffers, rng_seed: None, calendar: None, timers };
        Self::over(config, identity, incarnation, below, events)
    }

    /// The same over what is there already. Nothing is accepted before `start`.
    ///
    /// # Errors
    /// [`NetError`].
    pub fn over(
        config: NetConfig,
        identity: &NodeIdentity,
        incarnation: Incarnation,
        below: Below,
        events: Arc<dyn Events>,
    ) -> Result<Self, NetError> {
        let runtime = on_one_thread()?;
        let Below { socket, address, buffers, rng_seed, calendar, timers } = below;
        let configs = Configs::new(&config, identity, calendar.clone())?;
        let server = configs.accept(None).as_ref().clone();
        let mut endpoint_config = quinn::EndpointConfig::default();
        endpoint_config.rng_seed(rng_seed);
        let relay = Relay::new();
        let endpoint = relay
            .below(socket)
            .and_then(|socket| {
                let server = Some(server);
                Endpoint::new_with_abstract_socket(endpoint_config, server, socket, timers)
            })
            .map_err(|source| NetError::Bind { what: address.to_string(), source })?;
        let name = identity.name();
        let me = Peer { node: name.node.clone(), incarnation, cluster: name.cluster.clone() };
        let shared = Arc::new(Shared {
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
            ways: Mutex::default(),
            runtime,
            events,
            peers: RwLock::default(),
            refused: Mutex::default(),
            closing: AtomicBool::new(false),
            close_reason: watch::Sender::new(None),
            closed: watch::Sender::new(false),
            next_conn: AtomicU64::new(1),
            greeting: Mutex::default(),
        });
        shared.relay.belongs_to(&shared);
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

    fn learn(&self, contact: Contact, life: Option<Incarnation>) {
        if contact.node == self.0.me.node {
            return;
        }
        let entry = self.0.entry(&contact.node, &contact.cluster);
        let mut link = entry.lock();
        let known = link.machine.incarnation();
        if life.is_some_and(|life| known.is_some_and(|known| life < known)) {
            return tracing::debug!(node = %contact.node, "old news of where it is");
        }
        link.cluster = contact.cluster;
        let (address, via) = match contact.address {
            Address::Socket(address) => (Some(address), None),
            Address::Via(gate) => (None, Some(gate)),
            Address::Memory => {
                tracing::warn!(node = %contact.node, address = ?contact.address,
                    "an address that QUIC cannot reach; the node can still connect to this one");
                (None, None)
            }
        };
        let up = match link.machine.phase() {
            Phase::Up(conn) => Some(conn),
            _ => None,
        };
        let newer = life.is_some() && known.is_some() && life != known;
        // A link to the very life that is told of stands, by whatever way it was made.
        let stands = up.is_some() && life.is_some() && life == known;
        let elsewhere = link.address.is_some() && address.is_some() && link.address != address;
        (link.address, link.via) = (address, via);
        if !newer && (stands || !elsewhere) {
            return;
        }
        if let Some(Slot::Live(live)) = up.and_then(|conn| link.conns.get(&conn)) {
            live.retire(); // what is sent from now on waits for the new link
        }
        drop(link);
        let shared = self.0.clone();
        // On the endpoint's thread, where events are told.
        self.0.runtime.spawn(async move {
            let wanted = !entry.is_empty() && !shared.closing.load(Ordering::Acquire);
            shared.feed(&entry, Event::Moved { up, life, wanted });
        });
    }

    fn forget(&self, node: &NodeId) {
        let Some(entry) = self.0.find(node) else { return };
        {
            let mut link = entry.lock();
            (link.address, link.via) = (None, None);
        }
        self.0.ways().forget(node);
        let shared = self.0.clone();
        // On the endpoint's thread, where events are told.
        self.0.runtime.spawn(async move { shared.feed(&entry, Event::Forget) });
    }

    fn send(&self, to: &NodeId, class: Class, frame: Frame) -> Result<(), SendError> {
        let shared = &self.0;
        if shared.closing.load(Ordering::Acquire) {
            return Err(SendError::Closed);
        }
        // The hot path takes the lock for reading, the queue's, and no more: nothing is cloned or waited for.
        let peers = shared.peers.read().unwrap_or_else(PoisonError::into_inner);
        let entry = peers.get(to).ok_or_else(|| SendError::Unknown(to.clone()))?;
        if entry.idle.load(Ordering::SeqCst) && !entry.lock().has_address() {
            return Err(SendError::Unknown(to.clone()));
        }
        entry.queue(class).push(frame).map_err(|_| SendError::Full(to.clone()))?;
        if entry.idle.load(Ordering::SeqCst) {
            let entry = entry.clone();
            drop(peers);
            shared.feed(&entry, Event::Wanted);
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

    fn gates(&self, gates: &BTreeMap<ClusterId, NodeId>) {
        self.0.ways().set_gates(gates);
    }

    fn passed_on(&self) -> u64 {
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
                reason: format!("the certificate is of {name}, and this is {}", me.node),
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
        // On the endpoint's thread, where events are told.
        self.0.runtime.spawn(async move { nodes.iter().for_each(|node| shared.cut_off(node)) });
    }

    fn breach(&self, peer: &Peer, why: &str) {
        let Some(entry) = self.0.find(&peer.node) else { return };
        let live = entry.lock().live().find(|live| live.peer == *peer).cloned();
        if let Some(live) = live {
            self.0.broken(&entry, &live, why);
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
            let _ = closed.wait_for(|closed| *closed).await; // an error says that all is gone already
        })
    }
}

impl Link {
    /// Whether anything can be sent there without a link.
    fn has_address(&self) -> bool {
        self.address.is_some() || self.via.is_some()
    }

    /// The connections in use: one, but for moments.
    fn live(&self) -> impl Iterator<Item = &Arc<Live>> {
        self.conns.values().filter_map(|slot| match slot {
            Slot::Live(live) => Some(live),
            _ => None,
        })
    }
}

#[cfg(test)]
impl Quic {
    /// Makes the links that are down so for longer.
    fn age_links(&self, by: Duration) {
        for entry in self.0.peers.read().unwrap().values() {
            let mut link = entry.lock();
            link.down_since = link.down_since.map(|since| since - by);
        }
    }
}

impl Entry {
    fn lock(&self) -> MutexGuard<'_, Link> {
        self.link.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn strikes(&self) -> MutexGuard<'_, Strikes> {
        self.strikes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn queue(&self, class: Class) -> &Queue {
        &self.queues[class as usize]
    }

    fn is_empty(&self) -> bool {
        self.queues.iter().all(Queue::is_empty)
    }

    fn stats(&self) -> LinkStats {
        let link = self.lock();
        let state = match link.machine.phase() {
            Phase::Idle => LinkState::Idle,
            Phase::Dialling(_) => LinkState::Connecting,
            Phase::Backoff(_) => LinkState::Backoff,
            Phase::Up(_) => LinkState::Up,
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

    fn peer(&self, link: &Link) -> Peer {
        Peer {
            node: self.node.clone(),
            incarnation: link.machine.incarnation().unwrap_or_default(),
            cluster: link.cluster.clone(),
        }
    }
}

impl Shared {
    fn find(&self, node: &NodeId) -> Option<Arc<Entry>> {
        self.peers.read().unwrap_or_else(PoisonError::into_inner).get(node).cloned()
    }

    fn entry(&self, node: &NodeId, cluster: &ClusterId) -> Arc<Entry> {
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
                Queue::new(config.queue_frames, bytes)
            };
            // Seeded by the pair, so that two sides that lost each other do not wait alike.
            let seed = [self.me.node.as_str(), node.as_str()].concat();
            let seed = checksum_from(self.me.incarnation.0, seed.bytes());
            let backoff = Duration::from_millis(config.backoff_ms);
            let mine_stays = self.me.node < *node;
            Arc::new(Entry {
                node: node.clone(),
                queues: CLASSES.map(queue),
                link: Mutex::new(Link {
                    machine: Machine::new(mine_stays, config.attempts, backoff, seed),
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

    /// The cluster that a node at this address was said to be in: its policy is used before the node has said its name.
    /// A node dials from where it listens; behind a translation of addresses the host alone says something, if all nodes
    /// known there are of one cluster.
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
        let mut several = false;
        for entry in peers.values() {
            let link = entry.lock();
            let Some(address) = link.address.filter(|known| known.ip() == remote.ip()) else {
                continue;
            };
            if address == remote {
                return Some(link.cluster.clone());
            }
            several |= of_host.as_ref().is_some_and(|other| *other != link.cluster);
            of_host = Some(link.cluster.clone());
        }
        of_host.filter(|_| !several)
    }

    /// The peer broke the protocol: the stream cannot go on, so the link does not either.
    fn broken(&self, entry: &Entry, live: &Live, why: &str) {
        if !live.abandon(Code::Protocol, why) {
            return; // one strike a link is enough
        }
        let banned = entry.strikes().strike(self.start.elapsed());
        tracing::warn!(peer = %live.peer, why, banned, "the peer broke the protocol; the link is closed");
        self.events.struck(&live.peer, why, banned);
    }

    /// Why a node's certificate is not valid any more, if it is not.
    fn revoked(&self, node: &NodeId) -> Option<String> {
        let revoked = self.revoked.lock().unwrap_or_else(PoisonError::into_inner);
        let why = revoked.get(node)?;
        Some(format!(
            "the certificate of {node} is revoked ({why}): it may join anew with another token"
        ))
    }

    /// Closes what there is of a link to a node whose certificate is not valid any more.
    fn cut_off(&self, node: &NodeId) {
        let (Some(entry), Some(why)) = (self.find(node), self.revoked(node)) else { return };
        let link = entry.lock();
        let mut closed = false;
        for slot in link.conns.values() {
            match slot {
                Slot::Live(live) => closed |= live.abandon(Code::Refused, &why),
                Slot::Greeted(greeted) => greeted.conn.close(Code::Refused.into(), why.as_bytes()),
                // It sees by itself that the node may have no link.
                Slot::Dialling(_) => {}
            }
        }
        drop(link);
        if closed {
            tracing::warn!(%node, why, "the link is closed");
        }
    }

    fn is_banned(&self, entry: &Entry) -> bool {
        entry.strikes().is_banned(self.start.elapsed())
    }

    /// Lets a link's machine handle an event and does what it says. `Wanted` may come from any thread (it only ever
    /// starts a dial), every other event on the endpoint's thread.
    fn feed(self: &Arc<Self>, entry: &Arc<Entry>, event: Event) {
        let mut link = entry.lock();
        if self.closing.load(Ordering::Acquire) && event == Event::Wanted {
            return;
        }
        let actions = link.machine.handle(event);
        let idle = link.machine.phase() == Phase::Idle;
        // What is to be given back is taken out first: the user may send anew while it is told.
        // A link that goes down takes with it what waits of bulk transfers, for half a transfer is of no use to the next.
        let ended = actions.iter().any(|action| matches!(action, Action::Down { .. }));
        let classes = match actions.contains(&Action::DropQueue) {
            true => &CLASSES[..],
            false if ended => &[Class::Bulk],
            false => &[],
        };
        let dropped: Vec<_> =
            classes.iter().map(|class| (*class, entry.queue(*class).give_back())).collect();
        entry.idle.store(idle, Ordering::SeqCst);
        for action in &actions {
            if let Action::Dial(dial) = *action {
                let state = Arc::<DialState>::default();
                let call = self.clone().dial(entry.clone(), dial, state.clone());
                let task = self.runtime.spawn(call).abort_handle();
                link.conns.insert(Conn::Ours(dial), Slot::Dialling(Dial { task, state }));
            }
        }
        drop(link);
        for action in actions {
            self.carry_out(entry, action);
        }
        for (class, (frames, drained)) in dropped {
            self.give_back(entry, class, frames, drained);
        }
        // A frame may have been queued after the machine was told that nothing waits, and before it was seen idle.
        if idle && !entry.is_empty() && entry.lock().machine.phase() == Phase::Idle {
            self.feed(entry, Event::Wanted);
        }
    }

    fn carry_out(self: &Arc<Self>, entry: &Arc<Entry>, action: Action) {
        match action {
            Action::Dial(_) | Action::DropQueue => {} // done by `feed`
            Action::Welcome { conn, dials } => self.welcome(entry, conn, dials),
            Action::Refuse { conn, reason } => {
                let (slot, known) = {
                    let mut link = entry.lock();
                    (link.conns.remove(&conn), link.machine.incarnation())
                };
                if let Some(Slot::Greeted(greeted)) = slot {
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
            Action::Abandon(conn) => match entry.lock().conns.remove(&conn) {
                Some(Slot::Dialling(dial)) => dial.abandon(),
                Some(Slot::Greeted(greeted)) => {
                    greeted.conn.close(Code::Crossed.into(), b"crossed")
                }
                Some(Slot::Live(live)) => {
                    let _ = live.abandon(Code::Crossed, "replaced or forgotten"); // it may have been retired
                }
                None => {}
            },
            Action::Retry { after, serial } => {
                let (shared, entry) = (self.clone(), entry.clone());
                self.runtime.spawn(async move {
                    tokio::time::sleep(after).await;
                    let wanted = !entry.is_empty() && !shared.closing.load(Ordering::Acquire);
                    shared.feed(&entry, Event::Retry { serial, wanted });
                });
            }
            Action::Up { conn, incarnation, again } => {
                if again {
                    entry.reconnects.fetch_add(1, Ordering::Relaxed);
                }
                let mut link = entry.lock();
                let peer = Peer { incarnation, ..entry.peer(&link) };
                let Some(Slot::Greeted(greeted)) = link.conns.remove(&conn) else {
                    return; // closed by `close_all`
                };
                let live =
                    Arc::new(Live::new(greeted.conn.clone(), peer, greeted.role, greeted.protocol));
                link.conns.insert(conn, Slot::Live(live.clone()));
                link.down_since = None;
                drop(link);
                tracing::debug!(peer = %live.peer, remote = %greeted.conn.remote_address(), "link up");
                self.events.up(&live.peer);
                let run = link::run(self.clone(), entry.clone(), conn, live, greeted);
                self.runtime.spawn(run);
            }
            Action::Down { incarnation, why } => {
                let mut link = entry.lock();
                link.down_since.get_or_insert_with(Instant::now);
                let peer = Peer { incarnation, ..entry.peer(&link) };
                drop(link);
                tracing::debug!(%peer, %why, "link down");
                self.events.down(&peer, &why);
            }
        }
    }

    fn give_back(&self, entry: &Entry, class: Class, frames: VecDeque<Frame>, drained: bool) {
        // Nobody here sent the parcels of others.
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
            // Both are part of a healthy grid's life.
            RefuseReason::Crossed | RefuseReason::Closing => {
                tracing::debug!(?reason, %remote, detail, "link refused");
            }
            _ => tracing::warn!(?reason, %remote, detail, "link refused"),
        }
    }

    /// Ends everything, in order: no new links, what is queued, goodbyes, then the endpoint itself.
    async fn close_all(self: Arc<Self>) {
        self.endpoint.set_server_config(None);
        let entries: Vec<_> =
            self.peers.read().unwrap_or_else(PoisonError::into_inner).values().cloned().collect();
        let give_up = |entry: &Entry| {
            entry.lock().conns.retain(|_, slot| match slot {
                Slot::Dialling(dial) => {
                    dial.task.abort();
                    false
                }
                Slot::Greeted(greeted) => {
                    greeted.conn.close(Code::Refused.into(), b"the endpoint closes");
                    false
                }
                Slot::Live(_) => true,
            });
        };
        // Nothing to say once it were open.
        entries.iter().filter(|entry| entry.is_empty()).for_each(|entry| give_up(entry));
        // Links that are up end by themselves within the grace; what is being opened has as long to come up.
        let gone = async || {
            while entries.iter().any(|entry| !entry.lock().conns.is_empty()) {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        let grace = self.config.close_grace();
        let _ = tokio::time::timeout(grace, gone()).await;
        entries.iter().for_each(|entry| give_up(entry));
        let _ = tokio::time::timeout(grace, gone()).await;
        self.endpoint.close(Code::Goodbye.into(), b"closed");
        let _ = tokio::time::timeout(DRAIN, self.endpoint.wait_idle()).await;
        self.closed.send_replace(true);
    }
}

#[cfg(test)]
mod tests;
