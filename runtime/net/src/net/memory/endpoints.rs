//! The QUIC back end on sockets in memory: nodes of a simulated grid with real endpoints.
//!
//! Two runs with one seed differ in the contents of datagrams (keys, connection ids), but not in
//! their times and lengths. The endpoints' random choices are seeded, and the certificates' keys
//! have signatures of constant length. BBR has its own randomness, so its histories differ. This
//! module does not know the meaning of frames.

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

use super::datagrams::{Datagrams, SocketIndex};
use super::dispatcher::Dispatcher;
use super::ticks::TickingRuntime;
use super::{JoinError, MemoryConfig};
use crate::id::{ClusterId, Incarnation, NodeId, Peer};
use crate::net::quic::{EndpointParts, Quic};
use crate::net::tls::{Ca, EPHEMERAL_VALIDITY, Role};
use crate::net::{
    Address, Buffers, Class, Contact, Events, LinkError, LinkPolicy, LinkStats, Net, NetConfig,
    NetError, Protocols, RefusedCounts, SendError, Transport,
};
use crate::random::SplitMix;
use crate::wire::Frame;

/// The start of simulated dates, which token lifetimes need; any day would do.
const EPOCH: Duration = Duration::from_secs(1_600_000_000);

/// Name of the grid in all certificates.
const GRID: &str = "memory";

/// A network of QUIC endpoints.
pub(super) struct Endpoints {
    pub(super) dispatcher: Arc<Dispatcher<Datagrams>>,
    config: NetConfig,
    protocols: BTreeMap<NodeId, Protocols>,
    seed: u64,
    inner: Mutex<MemoryEndpoints>,
}

#[derive(Default)]
struct MemoryEndpoints {
    /// Created with the first node, because not all networks get one.
    ca: Option<Ca>,
    processes: BTreeMap<NodeId, NodeProcess>,
}

/// The last process of a name so far.
struct NodeProcess {
    incarnation: Incarnation,
    socket: SocketIndex,
    kill_switch: Arc<KillSwitch>,
    node: Weak<Quic>,
}

impl Endpoints {
    pub(super) fn new(seed: u64, config: &MemoryConfig, net: NetConfig) -> Arc<Self> {
        let datagrams = Datagrams::new(seed, config.inside.clone(), config.between.clone());
        let dispatcher = Dispatcher::new(datagrams);
        let protocols = config.protocols.clone();
        Arc::new(Self { dispatcher, config: net, protocols, seed, inner: Mutex::default() })
    }

    /// Adds a node: see [`MemoryNet::join_as`](super::MemoryNet::join_as).
    pub(super) fn join(self: &Arc<Self>, peer: Peer, role: &str) -> Result<Net, JoinError> {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        if inner
            .processes
            .get(&peer.node)
            .is_some_and(|process| process.incarnation >= peer.incarnation)
        {
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
        self.dispatcher.start_dispatching();
        let (socket, address) =
            self.dispatcher.with(|datagrams, _| datagrams.open(&peer.node, &peer.cluster));
        let parts = EndpointParts {
            socket: Arc::new(NodeSocket {
                dispatcher: self.dispatcher.clone(),
                index: socket,
                address,
            }),
            address,
            buffers: None,
            rng_seed: Some(seed_of(self.seed, &peer)),
            calendar: Some(Arc::new(SimulatedCalendar(self.dispatcher.start))),
            timers: Arc::<TickingRuntime>::default(),
        };
        let (kill_switch, mut node) = (Arc::new(KillSwitch::default()), Weak::new());
        let net = Net::over(self.config.bulk(), |events| {
            let events = Arc::new(EventFilter { kill_switch: kill_switch.clone(), events });
            let mut config = self.config.clone();
            config.protocols = self.protocols.get(&peer.node).copied().unwrap_or(config.protocols);
            let quic = Arc::new(Quic::over(config, &identity, peer.incarnation, parts, events)?);
            node = Arc::downgrade(&quic);
            let transport: Arc<dyn Transport> =
                Arc::new(KillableTransport { kill_switch: kill_switch.clone(), quic });
            Ok::<_, NetError>(transport)
        })?;
        let process = NodeProcess { incarnation: peer.incarnation, socket, kill_switch, node };
        let former = inner.processes.insert(peer.node, process);
        drop(inner);
        if let Some(former) = former {
            self.kill_process(&former);
        }
        Ok(net)
    }

    /// Kills a node: see [`MemoryNet::kill`](super::MemoryNet::kill).
    pub(super) fn kill(&self, node: &NodeId) -> bool {
        let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(process) = inner.processes.get(node) else { return false };
        self.kill_process(process);
        true
    }

    fn kill_process(&self, process: &NodeProcess) {
        process.kill_switch.0.store(true, Ordering::Release);
        let reader = self.dispatcher.with(|datagrams, _| datagrams.close(process.socket));
        drop(reader);
        // No peer receives its goodbyes: this only ends its tasks.
        if let Some(quic) = process.node.upgrade() {
            quic.close("killed");
        }
    }
}

/// The seed of an endpoint's random choices.
fn seed_of(seed: u64, peer: &Peer) -> [u8; 32] {
    let begin = SplitMix(seed ^ peer.incarnation.0).next();
    let mut rng = SplitMix::with_text(begin, &peer.to_string());
    let mut bytes = [0; 32];
    for chunk in bytes.chunks_mut(8) {
        chunk.copy_from_slice(&rng.next().to_le_bytes());
    }
    bytes
}

/// Whether a node was killed. Then its user receives no event, and no datagram leaves it.
#[derive(Debug, Default)]
struct KillSwitch(AtomicBool);

impl KillSwitch {
    fn is_killed(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// Forwards a node's events until it is killed.
struct EventFilter {
    kill_switch: Arc<KillSwitch>,
    events: Arc<dyn Events>,
}

impl EventFilter {
    fn events(&self) -> Option<&dyn Events> {
        (!self.kill_switch.is_killed()).then_some(&*self.events)
    }
}

impl Events for EventFilter {
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

    fn down(&self, peer: &Peer, why: &LinkError) {
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

/// A node's transport, which is that of QUIC until the node is killed.
struct KillableTransport {
    kill_switch: Arc<KillSwitch>,
    quic: Arc<Quic>,
}

impl Transport for KillableTransport {
    fn me(&self) -> &Peer {
        self.quic.me()
    }

    fn address(&self) -> Address {
        self.quic.address()
    }

    fn start(&self) {
        self.quic.start();
    }

    fn learn(&self, contact: Contact, incarnation: Option<Incarnation>) {
        self.quic.learn(contact, incarnation);
    }

    fn forget(&self, node: &NodeId) {
        self.quic.forget(node);
    }

    fn send(&self, to: &NodeId, class: Class, frame: Frame) -> Result<(), SendError> {
        if self.kill_switch.is_killed() {
            return Err(SendError::Closed);
        }
        self.quic.send(to, class, frame)
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

    fn set_relays(&self, relays: &BTreeMap<ClusterId, NodeId>) {
        self.quic.set_relays(relays);
    }

    fn relayed_datagrams(&self) -> u64 {
        self.quic.relayed_datagrams()
    }

    fn refused(&self) -> RefusedCounts {
        self.quic.refused()
    }

    fn report_violation(&self, peer: &Peer, why: &str) {
        self.quic.report_violation(peer, why);
    }

    fn close(&self, reason: &str) {
        self.quic.close(reason);
    }

    fn closed(&self) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        self.quic.closed()
    }
}

/// The socket of a node.
struct NodeSocket {
    dispatcher: Arc<Dispatcher<Datagrams>>,
    index: SocketIndex,
    address: SocketAddr,
}

impl fmt::Debug for NodeSocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Socket({})", self.address)
    }
}

impl Drop for NodeSocket {
    fn drop(&mut self) {
        let reader = self.dispatcher.with(|datagrams, _| datagrams.close(self.index));
        drop(reader);
    }
}

impl AsyncUdpSocket for NodeSocket {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        Box::pin(Writable)
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        let Transmit { destination, ecn, contents, .. } = *transmit;
        self.dispatcher
            .with(|datagrams, now| datagrams.send(self.index, destination, contents, ecn, now));
        Ok(())
    }

    fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        buffers: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        let mut datagrams = self.dispatcher.lock();
        let mut next = match datagrams.receive(self.index, cx) {
            Poll::Ready(first) => Some(first),
            Poll::Pending => return Poll::Pending,
        };
        let mut count = 0;
        for (buffer, meta) in buffers.iter_mut().zip(meta) {
            let Some(datagram) = next.or_else(|| datagrams.receive_more(self.index)) else { break };
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

/// A socket in memory is always writable; the links drop what they cannot carry.
#[derive(Debug)]
struct Writable;

impl UdpPoller for Writable {
    fn poll_writable(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// The date in simulated time, for QUIC's tokens, which are valid for seconds.
struct SimulatedCalendar(Instant);

impl TimeSource for SimulatedCalendar {
    fn now(&self) -> SystemTime {
        UNIX_EPOCH + EPOCH + self.0.elapsed()
    }
}
