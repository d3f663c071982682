//! The live QUIC back end on sockets in memory: nodes of a simulated grid with real endpoints.
//!
//! What differs between two runs of one seed is what is in the datagrams (keys, connection ids), not when they come nor how
//! long they are: the endpoints' choices are seeded, and the certificates' keys are of a kind whose signatures have one
//! length. BBR draws its lots from elsewhere: with it, histories differ. Must not know what frames mean.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, IoSliceMut};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::task::{Context, Poll};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use quinn::udp::{RecvMeta, Transmit};
use quinn::{AsyncUdpSocket, TimeSource, UdpPoller};
use tokio::time::Instant;

use super::clockwork::Clockwork;
use super::datagrams::{Datagrams, Ix};
use super::ticks::Ticking;
use super::{JoinError, MemoryConfig};
use crate::id::{ClusterId, Incarnation, NodeId, Peer};
use crate::net::quic::{Below, Quic};
use crate::net::tls::{Ca, EPHEMERAL_VALIDITY, Role};
use crate::net::{
    Address, Buffers, Class, Contact, Events, LinkPolicy, LinkStats, Net, NetConfig, NetError,
    Protocols, RefusedCounts, SendError, Transport, Why,
};
use crate::random::SplitMix;
use crate::wire::Frame;

/// Dates of simulated tokens count from here: any day does.
const EPOCH: Duration = Duration::from_secs(1_600_000_000);

/// The name in every certificate.
const GRID: &str = "memory";

/// A network of QUIC endpoints.
pub(super) struct Endpoints {
    pub(super) clockwork: Arc<Clockwork<Datagrams>>,
    config: NetConfig,
    protocols: BTreeMap<NodeId, Protocols>,
    seed: u64,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    /// Made with the first node, for not all networks get any.
    ca: Option<Ca>,
    lives: BTreeMap<NodeId, Life>,
}

/// The last life of a name so far.
struct Life {
    incarnation: Incarnation,
    socket: Ix,
    gate: Arc<Gate>,
    node: Weak<Quic>,
}

impl Endpoints {
    pub(super) fn new(seed: u64, config: &MemoryConfig, net: NetConfig) -> Arc<Self> {
        let datagrams = Datagrams::new(seed, config.inside.clone(), config.between.clone());
        let clockwork = Clockwork::new(datagrams);
        let protocols = config.protocols.clone();
        Arc::new(Self { clockwork, config: net, protocols, seed, inner: Mutex::default() })
    }

    /// See [`MemoryNet::join_as`](super::MemoryNet::join_as).
    pub(super) fn join(self: &Arc<Self>, peer: Peer, role: &str) -> Result<Net, JoinError> {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        if inner.lives.get(&peer.node).is_some_and(|life| life.incarnation >= peer.incarnation) {
            return Err(JoinError::Taken(peer.node));
        }
        let ca = match inner.ca.take() {
            Some(ca) => ca,
            None => Ca::simulated(GRID).map_err(NetError::from)?,
        };
        let ca = inner.ca.insert(ca);
        let identity = ca
            .issue(&peer.node, &peer.cluster, role, EPHEMERAL_VALIDITY)
            .map_err(NetError::from)?;
        self.clockwork.go();
        let (socket, address) =
            self.clockwork.with(|datagrams, _| datagrams.open(&peer.node, &peer.cluster));
        let below = Below {
            socket: Arc::new(Socket { clockwork: self.clockwork.clone(), ix: socket, address }),
            address,
            buffers: None,
            rng_seed: Some(seed_of(self.seed, &peer)),
            calendar: Some(Arc::new(Calendar(self.clockwork.start))),
            timers: Arc::<Ticking>::default(),
        };
        let (gate, mut node) = (Arc::new(Gate::default()), Weak::new());
        let net = Net::over(self.config.bulk(), |events| {
            let events = Arc::new(Muted { gate: gate.clone(), events });
            let mut config = self.config.clone();
            config.protocols = self.protocols.get(&peer.node).copied().unwrap_or(config.protocols);
            let quic = Arc::new(Quic::over(config, &identity, peer.incarnation, below, events)?);
            node = Arc::downgrade(&quic);
            let transport: Arc<dyn Transport> = Arc::new(Node { gate: gate.clone(), quic });
            Ok::<_, NetError>(transport)
        })?;
        let life = Life { incarnation: peer.incarnation, socket, gate, node };
        let former = inner.lives.insert(peer.node, life);
        drop(inner);
        if let Some(former) = former {
            self.end(&former);
        }
        Ok(net)
    }

    /// See [`MemoryNet::kill`](super::MemoryNet::kill).
    pub(super) fn kill(&self, node: &NodeId) -> bool {
        let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(life) = inner.lives.get(node) else { return false };
        self.end(life);
        true
    }

    fn end(&self, life: &Life) {
        life.gate.0.store(true, Ordering::Release);
        let reader = self.clockwork.with(|datagrams, _| datagrams.close(life.socket));
        drop(reader);
        // Nobody hears its goodbyes: this only ends its tasks.
        if let Some(quic) = life.node.upgrade() {
            quic.close("killed");
        }
    }
}

/// What an endpoint's choices follow from.
fn seed_of(seed: u64, peer: &Peer) -> [u8; 32] {
    let begin = SplitMix(seed ^ peer.incarnation.0).next();
    let mut rng = SplitMix::of(begin, &peer.to_string());
    let mut bytes = [0; 32];
    for chunk in bytes.chunks_mut(8) {
        chunk.copy_from_slice(&rng.next().to_le_bytes());
    }
    bytes
}

/// Whether a node was killed: its user hears nothing then, and nothing of it leaves.
#[derive(Debug, Default)]
struct Gate(AtomicBool);

impl Gate {
    fn is_shut(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// A node's events, until it is killed.
struct Muted {
    gate: Arc<Gate>,
    events: Arc<dyn Events>,
}

impl Muted {
    fn events(&self) -> Option<&dyn Events> {
        (!self.gate.is_shut()).then_some(&*self.events)
    }
}

impl Events for Muted {
    fn frame(&self, from: &Peer, class: Class, frame: Frame) {
        if let Some(events) = self.events() {
            events.frame(from, class, frame);
        }
    }

    fn receiver(&self) -> Option<Arc<dyn Events>> {
        self.events().and_then(Events::receiver)
    }

    fn up(&self, peer: &Peer) {
        if let Some(events) = self.events() {
            events.up(peer);
        }
    }

    fn down(&self, peer: &Peer, why: &Why) {
        if let Some(events) = self.events() {
            events.down(peer, why);
        }
    }

    fn struck(&self, peer: &Peer, why: &str, banned: bool) {
        if let Some(events) = self.events() {
            events.struck(peer, why, banned);
        }
    }

    fn superseded(&self, peer: &NodeId, known: Option<Incarnation>) {
        if let Some(events) = self.events() {
            events.superseded(peer, known);
        }
    }

    fn drained(&self, to: &NodeId, class: Class) {
        if let Some(events) = self.events() {
            events.drained(to, class);
        }
    }

    fn undelivered(&self, to: &NodeId, class: Class, frame: Frame) {
        if let Some(events) = self.events() {
            events.undelivered(to, class, frame);
        }
    }
}

/// A node's transport: QUIC's, until it is killed.
struct Node {
    gate: Arc<Gate>,
    quic: Arc<Quic>,
}

impl Transport for Node {
    fn me(&self) -> &Peer {
        self.quic.me()
    }

    fn address(&self) -> Address {
        self.quic.address()
    }

    fn start(&self) {
        self.quic.start();
    }

    fn learn(&self, contact: Contact, life: Option<Incarnation>) {
        self.quic.learn(contact, life);
    }

    fn forget(&self, node: &NodeId) {
        self.quic.forget(node);
    }

    fn send(&self, to: &NodeId, class: Class, frame: Frame) -> Result<(), SendError> {
        match self.gate.is_shut() {
            true => Err(SendError::Closed),
            false => self.quic.send(to, class, frame),
        }
    }

    fn room(&self, to: &NodeId, class: Class) -> usize {
        self.quic.room(to, class)
    }

    fn role(&self, node: &NodeId) -> Option<Role> {
        self.quic.role(node)
    }

    fn buffers(&self) -> Option<Buffers> {
        self.quic.buffers()
    }

    fn expected(&self, node: &NodeId) -> Option<LinkPolicy> {
        self.quic.expected(node)
    }

    fn expected_of(&self, cluster: &ClusterId) -> Option<LinkPolicy> {
        self.quic.expected_of(cluster)
    }

    fn links(&self) -> Vec<LinkStats> {
        self.quic.links()
    }

    fn gates(&self, gates: &BTreeMap<ClusterId, NodeId>) {
        self.quic.gates(gates);
    }

    fn passed_on(&self) -> u64 {
        self.quic.passed_on()
    }

    fn refused(&self) -> RefusedCounts {
        self.quic.refused()
    }

    fn breach(&self, peer: &Peer, why: &str) {
        self.quic.breach(peer, why);
    }

    fn close(&self, reason: &str) {
        self.quic.close(reason);
    }

    fn closed(&self) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        self.quic.closed()
    }
}

/// A node's socket.
struct Socket {
    clockwork: Arc<Clockwork<Datagrams>>,
    ix: Ix,
    address: SocketAddr,
}

impl fmt::Debug for Socket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Socket({})", self.address)
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        let reader = self.clockwork.with(|datagrams, _| datagrams.close(self.ix));
        drop(reader);
    }
}

impl AsyncUdpSocket for Socket {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        Box::pin(Writable)
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        let Transmit { destination, ecn, contents, .. } = *transmit;
        self.clockwork
            .with(|datagrams, now| datagrams.send(self.ix, destination, contents, ecn, now));
        Ok(())
    }

    fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        buffers: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        let mut datagrams = self.clockwork.lock();
        let mut next = match datagrams.receive(self.ix, cx) {
            Poll::Ready(first) => Some(first),
            Poll::Pending => return Poll::Pending,
        };
        let mut count = 0;
        for (buffer, meta) in buffers.iter_mut().zip(meta) {
            let Some(datagram) = next.or_else(|| datagrams.more(self.ix)) else { break };
            next = None;
            let len = datagram.contents.len().min(buffer.len());
            buffer[..len].copy_from_slice(&datagram.contents[..len]);
            *meta = RecvMeta::default();
            (meta.addr, meta.len, meta.stride) = (datagram.from, len, len);
            meta.ecn = datagram.ecn;
            count += 1;
        }
        Poll::Ready(Ok(count))
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.address)
    }

    fn may_fragment(&self) -> bool {
        false
    }
}

/// A socket in memory takes all at once: what is too much its links drop.
#[derive(Debug)]
struct Writable;

impl UdpPoller for Writable {
    fn poll_writable(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// What the date is in simulated time: QUIC's tokens hold for seconds.
struct Calendar(Instant);

impl TimeSource for Calendar {
    fn now(&self) -> SystemTime {
        UNIX_EPOCH + EPOCH + self.0.elapsed()
    }
}
