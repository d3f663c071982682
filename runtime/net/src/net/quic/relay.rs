//! Links through a third node, where two nodes cannot reach each other: datagrams of their connection travel inside frames to a
//! node that reaches both, a *gate*, as a rule the coordinator of one of their clusters.
//!
//! The connection is the two nodes' own, end to end, with its certificates, hello, windows and loss recovery; a gate can drop what it
//! passes on, but neither read nor forge it. Below the endpoint stands a socket that gives each node without a way of its own a
//! *stand-in* address, of a range that is never routed. Must not know what links are used for.
//!
//! Bounds: what waits at a gate for one peer ([`QUEUED_MAX`]), what waits for the endpoint ([`WAITING_MAX`]), names that others
//! speak of ([`NAMES_MAX`]), and gates on one way ([`HOPS_MAX`]). What exceeds them is lost, as on any network.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::io::{self, IoSliceMut};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use quinn::udp::{RecvMeta, Transmit};
use quinn::{AsyncUdpSocket, UdpPoller};
use serde::{Deserialize, Serialize};
use tokio::runtime::Handle;

use super::machine::Event;
use super::{Entry, Shared};
use crate::id::{ClusterId, NodeId, Peer};
use crate::net::Class;
use crate::wire::{self, Frame, Kind};

/// Bytes that may wait for a link in its queue when a parcel is to follow: a tenth of a second at 2.5 MB/s. What is longer delays
/// steals of the gate itself, and tells the ends' congestion control too late.
const QUEUED_MAX: usize = 256 << 10;
/// Datagrams that have come for this endpoint and were not read yet, or go from it and were not given to gates.
const WAITING_MAX: usize = 4096;
/// Stand-ins of nodes that this one was not told of.
const NAMES_MAX: usize = 16_384;
/// Gates that a parcel passes at most: that of the sender's cluster, that of the receiver's, and one more.
const HOPS_MAX: u8 = 3;
/// After so long it is tried again whether a node can be reached directly.
const RELAYED_FOR: Duration = Duration::from_secs(120);

/// A datagram on its way through gates.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Parcel {
    pub to: NodeId,
    pub from: NodeId,
    /// Gates that it has passed.
    pub hops: u8,
    pub datagram: Bytes,
}

/// The first stand-in: 240.0.0.0/4 is reserved, and no router takes it.
const FIRST: u32 = 0xf000_0000;
const PORT: u16 = 1;

/// Whether an address stands for a node that is reached through others.
pub(super) fn is_stand_in(address: SocketAddr) -> bool {
    number(address).is_some()
}

fn number(address: SocketAddr) -> Option<usize> {
    match address.ip().to_canonical() {
        IpAddr::V4(ip) => u32::from(ip).checked_sub(FIRST).map(|number| number as usize),
        IpAddr::V6(_) => None,
    }
}

/// What is known of ways to nodes: which need a gate, and who the gates are. Pure.
#[derive(Debug, Default)]
pub(super) struct Ways {
    gates: BTreeMap<ClusterId, NodeId>,
    nodes: BTreeMap<NodeId, Known>,
    /// Clusters of which a node was reached through a gate alone, and until when that is taken for all of them.
    clusters: BTreeMap<ClusterId, Duration>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Known {
    /// The last direct attempt failed.
    Failed,
    /// So it did, and through a gate it was reached: no direct attempt before this time.
    Relayed(Duration),
}

impl Ways {
    /// Which node speaks for each cluster.
    pub fn set_gates(&mut self, gates: &BTreeMap<ClusterId, NodeId>) {
        self.gates.clone_from(gates);
    }

    /// Whether the next attempt is to go through a gate. A cluster's gate is judged by itself: it may be the one node of a private
    /// network that others reach.
    pub fn wants_gate(&self, node: &NodeId, cluster: &ClusterId, now: Duration) -> bool {
        match self.nodes.get(node) {
            Some(Known::Failed) => true,
            Some(Known::Relayed(until)) => now < *until,
            None => {
                let of_cluster = self.clusters.get(cluster).is_some_and(|until| now < *until);
                of_cluster && self.gates.get(cluster) != Some(node)
            }
        }
    }

    /// An attempt was made, and this came of it.
    pub fn tried(
        &mut self,
        (node, cluster): (&NodeId, &ClusterId),
        through_gate: bool,
        reached: bool,
        now: Duration,
    ) {
        match (through_gate, reached) {
            (false, true) => {
                self.nodes.remove(node);
                self.clusters.remove(cluster);
            }
            (false, false) => {
                self.nodes.insert(node.clone(), Known::Failed);
            }
            (true, true) => {
                let until = now + RELAYED_FOR;
                // A cluster is judged by a node that was tried both ways: others were reached as it was.
                if self.nodes.insert(node.clone(), Known::Relayed(until)).is_some() {
                    self.clusters.insert(cluster.clone(), until);
                }
            }
            // Turn by turn, until one of both works.
            (true, false) => {
                self.nodes.remove(node);
                self.clusters.remove(cluster);
            }
        }
    }

    pub fn forget(&mut self, node: &NodeId) {
        self.nodes.remove(node);
    }

    /// Gates that may know a way to a cluster's nodes, the best first: its own, that of `mine`, and others, which help where the line
    /// between two clusters is cut.
    fn gates_to(&self, cluster: &ClusterId, mine: &ClusterId) -> Vec<NodeId> {
        let first = [cluster, mine];
        let others = self.gates.iter().filter(|(other, _)| !first.contains(other));
        let gates = first.iter().filter_map(|cluster| self.gates.get(*cluster));
        gates.chain(others.map(|(_, gate)| gate)).cloned().collect()
    }
}

/// The socket below an endpoint: the inner one, and parcels.
pub(super) struct Socket {
    inner: Arc<dyn AsyncUdpSocket>,
    relay: Arc<Relay>,
    /// The endpoint writes IPv4 addresses as IPv6 ones.
    mapped: bool,
}

/// Parcels of one endpoint.
#[derive(Default)]
pub(super) struct Relay {
    endpoint: OnceLock<(Weak<Shared>, Handle)>,
    mail: Mutex<Mail>,
    passed_on: AtomicU64,
}

#[derive(Default)]
struct Mail {
    /// By number.
    names: Vec<NodeId>,
    numbers: BTreeMap<NodeId, usize>,
    /// Who brought the last parcel of each.
    brought: BTreeMap<usize, NodeId>,
    came: VecDeque<(usize, Bytes)>,
    reader: Option<Waker>,
    goes: VecDeque<(usize, Bytes)>,
    /// Somebody is about to carry what goes.
    carried: bool,
}

impl Mail {
    fn number_of(&mut self, node: &NodeId) -> Option<usize> {
        if let Some(number) = self.numbers.get(node) {
            return Some(*number);
        }
        let number = self.names.len();
        if number >= NAMES_MAX {
            return None;
        }
        self.names.push(node.clone());
        self.numbers.insert(node.clone(), number);
        Some(number)
    }
}

impl Relay {
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// The socket for the endpoint.
    pub fn below(
        self: &Arc<Self>,
        inner: Arc<dyn AsyncUdpSocket>,
    ) -> io::Result<Arc<dyn AsyncUdpSocket>> {
        let mapped = inner.local_addr()?.is_ipv6();
        Ok(Arc::new(Socket { inner, relay: self.clone(), mapped }))
    }

    /// To be called once, when the endpoint is there.
    pub fn belongs_to(&self, shared: &Arc<Shared>) {
        let _ = self.endpoint.set((Arc::downgrade(shared), shared.runtime.clone()));
    }

    /// The address that stands for a node; none where there are too many.
    pub fn stand_in(&self, node: &NodeId) -> Option<SocketAddr> {
        let number = self.lock().number_of(node)?;
        Some(address(number, false))
    }

    /// Whom a stand-in stands for.
    pub fn name(&self, stand_in: SocketAddr) -> Option<NodeId> {
        self.lock().names.get(number(stand_in)?).cloned()
    }

    /// Datagrams of others that were passed on.
    pub fn passed_on(&self) -> u64 {
        self.passed_on.load(Ordering::Relaxed)
    }

    fn lock(&self) -> MutexGuard<'_, Mail> {
        // Each step leaves it whole.
        self.mail.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whatever does not arrive is lost, as on any network: QUIC sends it again. Whoever calls holds the connection, which must not
    /// be held while links are looked at: so that is left to a task.
    fn send(&self, number: usize, transmit: &Transmit<'_>) {
        let Some((shared, runtime)) = self.endpoint.get() else { return };
        let segment = transmit.segment_size.unwrap_or(transmit.contents.len()).max(1);
        let mut mail = self.lock();
        let room = WAITING_MAX.saturating_sub(mail.goes.len());
        let datagrams = transmit.contents.chunks(segment).take(room);
        mail.goes.extend(datagrams.map(|contents| (number, Bytes::copy_from_slice(contents))));
        if !std::mem::replace(&mut mail.carried, true) {
            let shared = shared.clone();
            runtime.spawn(async move {
                if let Some(shared) = shared.upgrade() {
                    shared.carry();
                }
            });
        }
    }

    /// A parcel for this endpoint.
    fn take_in(&self, from: &NodeId, gate: &NodeId, datagram: Bytes) {
        let mut mail = self.lock();
        let Some(number) = mail.number_of(from) else { return };
        if mail.came.len() >= WAITING_MAX {
            return;
        }
        if mail.brought.get(&number) != Some(gate) {
            mail.brought.insert(number, gate.clone());
        }
        mail.came.push_back((number, datagram));
        let reader = mail.reader.take();
        drop(mail);
        if let Some(reader) = reader {
            reader.wake();
        }
    }
}

fn address(number: usize, mapped: bool) -> SocketAddr {
    // Numbers are below `NAMES_MAX`.
    let ip = Ipv4Addr::from(FIRST + number as u32);
    let ip = if mapped { IpAddr::V6(ip.to_ipv6_mapped()) } else { IpAddr::V4(ip) };
    SocketAddr::new(ip, PORT)
}

impl fmt::Debug for Socket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Socket").field("inner", &self.inner).finish_non_exhaustive()
    }
}

impl AsyncUdpSocket for Socket {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        // Parcels are always taken; the rest waits for the inner socket.
        self.inner.clone().create_io_poller()
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        match number(transmit.destination) {
            None => self.inner.try_send(transmit),
            Some(number) => {
                self.relay.send(number, transmit);
                Ok(())
            }
        }
    }

    fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        bufs: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        let read = self.inner.poll_recv(cx, bufs, meta);
        if read.is_ready() {
            // Whoever reads comes again until nothing is left.
            return read;
        }
        let mut mail = self.relay.lock();
        let mut count = 0;
        for (buffer, meta) in bufs.iter_mut().zip(meta) {
            let Some((number, datagram)) = mail.came.pop_front() else { break };
            let len = datagram.len().min(buffer.len());
            buffer[..len].copy_from_slice(&datagram[..len]);
            *meta = RecvMeta::default();
            (meta.addr, meta.len, meta.stride) = (address(number, self.mapped), len, len);
            count += 1;
        }
        if count > 0 {
            return Poll::Ready(Ok(count));
        }
        mail.reader = Some(cx.waker().clone());
        Poll::Pending
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.inner.local_addr()
    }

    fn max_transmit_segments(&self) -> usize {
        self.inner.max_transmit_segments()
    }

    fn max_receive_segments(&self) -> usize {
        self.inner.max_receive_segments()
    }

    fn may_fragment(&self) -> bool {
        self.inner.may_fragment()
    }
}

impl Shared {
    pub(super) fn ways(&self) -> MutexGuard<'_, Ways> {
        self.ways.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whom to give what is for a node that this one does not reach itself; `from` gave it, and does not get it back.
    pub(super) fn gate_to(&self, to: &NodeId, from: Option<&NodeId>) -> Option<Arc<Entry>> {
        let (via, cluster) = match self.find(to) {
            Some(entry) => {
                let link = entry.lock();
                (link.via.clone(), Some(link.cluster.clone()))
            }
            None => (None, None),
        };
        let cluster = cluster.as_ref().unwrap_or(&self.me.cluster);
        let gates = self.ways().gates_to(cluster, &self.me.cluster);
        let usable = |gate: &NodeId| *gate != self.me.node && gate != to && Some(gate) != from;
        let entries: Vec<_> = via
            .into_iter()
            .chain(gates)
            .filter(usable)
            .filter_map(|gate| self.find(&gate))
            .filter(|entry| self.reaches(entry))
            .collect();
        // A link that is up is worth more than a better place.
        let up = entries.iter().position(|entry| entry.is_up_directly());
        entries.into_iter().nth(up.unwrap_or(0))
    }

    /// Whether a node is reached without a gate, as far as is known.
    fn reaches(&self, entry: &Entry) -> bool {
        if entry.is_up_directly() {
            return true;
        }
        let (known, cluster) = {
            let link = entry.lock();
            (link.address.is_some(), link.cluster.clone())
        };
        known && !self.ways().wants_gate(&entry.node, &cluster, self.start.elapsed())
    }

    /// Gives what goes from here to gates.
    fn carry(self: &Arc<Self>) {
        let goes = {
            let mut mail = self.relay.lock();
            mail.carried = false;
            std::mem::take(&mut mail.goes)
        };
        let mut ways: BTreeMap<usize, Option<(NodeId, Arc<Entry>)>> = BTreeMap::new();
        for (number, datagram) in goes {
            let way = ways.entry(number).or_insert_with(|| {
                let (to, brought) = {
                    let mail = self.relay.lock();
                    (mail.names.get(number)?.clone(), mail.brought.get(&number).cloned())
                };
                // The way back is there, whatever is known of gates.
                let back = brought.and_then(|gate| self.find(&gate));
                let back = back.filter(|gate| gate.is_up_directly());
                let gate = back.or_else(|| self.gate_to(&to, None))?;
                Some((to, gate))
            });
            if let Some((to, gate)) = way {
                let (to, from) = (to.clone(), self.me.node.clone());
                self.post(gate, &Parcel { to, from, hops: 0, datagram });
            }
        }
    }

    /// Puts a parcel among what waits for a node, or drops it.
    fn post(self: &Arc<Self>, next: &Arc<Entry>, parcel: &Parcel) {
        let queue = next.queue(Class::Steal);
        if self.config.queue_bytes.saturating_sub(queue.room()) > QUEUED_MAX {
            return tracing::trace!(to = %parcel.to, via = %next.node, "a parcel is dropped: too many wait");
        }
        let Ok(body) = wire::encode(Kind::RELAY, parcel) else { return };
        if queue.push(Frame::new(Kind::RELAY, body)).is_ok() && next.idle.load(Ordering::SeqCst) {
            self.feed(next, Event::Wanted);
        }
    }

    /// A parcel has come from a peer, for this node or for another one. An error says what is wrong with it.
    pub(super) fn parcel(self: &Arc<Self>, from: &Peer, body: &[u8]) -> Result<(), String> {
        let parcel: Parcel = wire::decode(Kind::RELAY, body).map_err(|error| error.to_string())?;
        if parcel.to == self.me.node {
            self.relay.take_in(&parcel.from, &from.node, parcel.datagram);
            return Ok(());
        }
        let hops = parcel.hops.saturating_add(1);
        let itself = || self.find(&parcel.to).filter(|entry| self.reaches(entry));
        let next = itself().or_else(|| self.gate_to(&parcel.to, Some(&from.node)));
        match next {
            Some(next) if hops <= HOPS_MAX && next.node != from.node => {
                self.relay.passed_on.fetch_add(1, Ordering::Relaxed);
                self.post(&next, &Parcel { hops, ..parcel });
            }
            _ => tracing::trace!(to = %parcel.to, %from, "no way on for a parcel"),
        }
        Ok(())
    }

    /// Whether any link goes through a gate.
    pub(super) fn has_relayed_links(&self) -> bool {
        let peers = self.peers.read().unwrap_or_else(PoisonError::into_inner);
        peers.values().any(|entry| entry.lock().live().any(|live| live.relayed))
    }
}

impl Entry {
    /// Whether a link is up that needs no gate.
    fn is_up_directly(&self) -> bool {
        self.lock().live().any(|live| !live.relayed)
    }
}

#[cfg(test)]
#[path = "relay_tests.rs"]
mod tests;
