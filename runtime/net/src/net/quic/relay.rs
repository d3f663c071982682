//! Links through a relay between two nodes that cannot reach each other. Datagrams of their
//! connection travel inside frames to the relay, which reaches both.
//!
//! As a rule, a relay is the coordinator of one of the two clusters. The connection is end to end
//! between the two nodes, with its own certificates, hello, windows and loss recovery. A relay can
//! drop datagrams, but neither read nor forge them. The socket below the endpoint gives each
//! relayed node a *stand-in* address, of a range that is never routed. This module does not know
//! the purpose of links.
//!
//! Bounds:
//! - bytes queued at a relay for one peer ([`QUEUED_MAX`]),
//! - datagrams that wait for the endpoint ([`WAITING_MAX`]),
//! - stand-in addresses ([`STAND_INS_MAX`]),
//! - relays on one path ([`HOPS_MAX`]).
//!
//! Datagrams beyond them are lost, as on any network.

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

use super::machine::ConnectionEvent;
use super::{EndpointState, PeerEntry};
use crate::id::{ClusterId, NodeId, Peer};
use crate::net::Class;
use crate::wire::{self, Frame, Kind};

/// Maximum number of bytes in a link's queue when a relayed datagram is appended: a tenth of a
/// second at 2.5 MB/s.
///
/// A longer queue would delay the relay's own steals, and delay the loss signal to the congestion
/// control at the ends.
const QUEUED_MAX: usize = 256 << 10;
/// Maximum number of received datagrams that the endpoint has not read, and of sent ones not yet
/// passed to relays.
const WAITING_MAX: usize = 4096;
/// Maximum number of stand-in addresses.
const STAND_INS_MAX: usize = 16_384;
/// Maximum number of relays of a datagram: that of the sender's cluster, that of the receiver's,
/// and one more.
const HOPS_MAX: u8 = 3;
/// Time after which a direct connection to a relayed node is attempted again.
const DIRECT_RETRY_DELAY: Duration = Duration::from_secs(120);

/// A datagram in transit through relays.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct RelayedDatagram {
    pub to: NodeId,
    pub from: NodeId,
    /// Number of relays that it has passed.
    pub hops: u8,
    pub datagram: Bytes,
}

/// The first stand-in address: 240.0.0.0/4 is reserved, and routers drop it.
const FIRST: u32 = 0xf000_0000;
const PORT: u16 = 1;

/// Whether an address is the stand-in of a relayed node.
pub(super) fn is_stand_in(address: SocketAddr) -> bool {
    number(address).is_some()
}

fn number(address: SocketAddr) -> Option<usize> {
    match address.ip().to_canonical() {
        IpAddr::V4(ip) => u32::from(ip).checked_sub(FIRST).map(|number| number as usize),
        IpAddr::V6(_) => None,
    }
}

/// Known routes: which nodes need a relay, and the relay of each cluster. Pure.
#[derive(Debug, Default)]
pub(super) struct Routes {
    relays: BTreeMap<ClusterId, NodeId>,
    nodes: BTreeMap<NodeId, NodeRoute>,
    /// Clusters with a node that was reached only through a relay, and the time until which this
    /// applies to all their nodes.
    clusters: BTreeMap<ClusterId, Duration>,
}

/// The route to a node after past attempts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NodeRoute {
    /// The last direct attempt failed.
    Failed,
    /// The last direct attempt failed, but a relay reached the node: no direct attempt before this
    /// time.
    Relayed(Duration),
}

impl Routes {
    /// Sets the relay of each cluster.
    pub fn set_relays(&mut self, relays: &BTreeMap<ClusterId, NodeId>) {
        self.relays.clone_from(relays);
    }

    /// Whether the next attempt should use a relay. A cluster's own relay is judged separately,
    /// because it may be the only reachable node of a private network.
    pub fn needs_relay(&self, node: &NodeId, cluster: &ClusterId, now: Duration) -> bool {
        match self.nodes.get(node) {
            Some(NodeRoute::Failed) => true,
            Some(NodeRoute::Relayed(until)) => now < *until,
            None => {
                let cluster_is_relayed =
                    self.clusters.get(cluster).is_some_and(|until| now < *until);
                cluster_is_relayed && self.relays.get(cluster) != Some(node)
            }
        }
    }

    /// Records the outcome of an attempt.
    pub fn record_attempt(
        &mut self,
        node: &NodeId,
        cluster: &ClusterId,
        relayed: bool,
        reached: bool,
        now: Duration,
    ) {
        match (relayed, reached) {
            (false, true) => {
                self.nodes.remove(node);
                self.clusters.remove(cluster);
            }
            (false, false) => {
                self.nodes.insert(node.clone(), NodeRoute::Failed);
            }
            (true, true) => {
                let until = now + DIRECT_RETRY_DELAY;
                // Only a node whose direct attempt failed is evidence about its cluster. Other
                // nodes were relayed without an attempt.
                if self.nodes.insert(node.clone(), NodeRoute::Relayed(until)).is_some() {
                    self.clusters.insert(cluster.clone(), until);
                }
            }
            // Direct and relayed attempts alternate until one succeeds.
            (true, false) => {
                self.nodes.remove(node);
                self.clusters.remove(cluster);
            }
        }
    }

    pub fn forget(&mut self, node: &NodeId) {
        self.nodes.remove(node);
    }

    /// Relays that may reach a cluster's nodes, best first: the cluster's own, that of `mine`, then
    /// others, which help if the line between the two clusters is down.
    fn relays_to(&self, cluster: &ClusterId, mine: &ClusterId) -> Vec<NodeId> {
        let first = [cluster, mine];
        let others = self.relays.iter().filter(|(other, _)| !first.contains(other));
        let relays = first.iter().filter_map(|cluster| self.relays.get(*cluster));
        relays.chain(others.map(|(_, relay)| relay)).cloned().collect()
    }
}

/// The socket below an endpoint: the inner socket plus relayed datagrams.
pub(super) struct RelaySocket {
    inner: Arc<dyn AsyncUdpSocket>,
    relay: Arc<RelayedTraffic>,
    /// Whether the endpoint writes IPv4 addresses as IPv6 ones.
    mapped: bool,
}

/// The relayed datagrams of one endpoint.
#[derive(Default)]
pub(super) struct RelayedTraffic {
    endpoint: OnceLock<(Weak<EndpointState>, Handle)>,
    state: Mutex<TrafficState>,
    passed_on: AtomicU64,
}

#[derive(Default)]
struct TrafficState {
    /// Names of relayed nodes, by the number of their stand-in address.
    names: Vec<NodeId>,
    numbers: BTreeMap<NodeId, usize>,
    /// The relay that delivered the last datagram of each node.
    last_relay: BTreeMap<usize, NodeId>,
    inbound: VecDeque<(usize, Bytes)>,
    reader: Option<Waker>,
    outbound: VecDeque<(usize, Bytes)>,
    /// Whether a task is scheduled to send the outbound datagrams.
    send_scheduled: bool,
}

impl TrafficState {
    fn number_of(&mut self, node: &NodeId) -> Option<usize> {
        if let Some(number) = self.numbers.get(node) {
            return Some(*number);
        }
        let number = self.names.len();
        if number >= STAND_INS_MAX {
            return None;
        }
        self.names.push(node.clone());
        self.numbers.insert(node.clone(), number);
        Some(number)
    }
}

impl RelayedTraffic {
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Wraps the socket for the endpoint.
    pub fn wrap_socket(
        self: &Arc<Self>,
        inner: Arc<dyn AsyncUdpSocket>,
    ) -> io::Result<Arc<dyn AsyncUdpSocket>> {
        let mapped = inner.local_addr()?.is_ipv6();
        Ok(Arc::new(RelaySocket { inner, relay: self.clone(), mapped }))
    }

    /// Connects this with the endpoint; called once, when the endpoint exists.
    pub fn attach(&self, shared: &Arc<EndpointState>) {
        let _ = self.endpoint.set((Arc::downgrade(shared), shared.runtime.clone()));
    }

    /// The stand-in address of a node; `None` if there are too many.
    pub fn stand_in(&self, node: &NodeId) -> Option<SocketAddr> {
        let number = self.lock().number_of(node)?;
        Some(address(number, false))
    }

    /// The node of a stand-in address.
    pub fn name(&self, stand_in: SocketAddr) -> Option<NodeId> {
        self.lock().names.get(number(stand_in)?).cloned()
    }

    /// Number of datagrams forwarded for other nodes.
    pub fn passed_on(&self) -> u64 {
        self.passed_on.load(Ordering::Relaxed)
    }

    fn lock(&self) -> MutexGuard<'_, TrafficState> {
        // Each step leaves the state consistent.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues the datagrams of a transmit. Datagrams beyond the bound are lost, and QUIC
    /// retransmits them.
    ///
    /// The caller holds the connection's lock, under which no link may be locked, so a task sends
    /// them.
    fn send(&self, number: usize, transmit: &Transmit<'_>) {
        let Some((shared, runtime)) = self.endpoint.get() else { return };
        let segment = transmit.segment_size.unwrap_or(transmit.contents.len()).max(1);
        let mut state = self.lock();
        let room = WAITING_MAX.saturating_sub(state.outbound.len());
        let datagrams = transmit.contents.chunks(segment).take(room);
        state.outbound.extend(datagrams.map(|contents| (number, Bytes::copy_from_slice(contents))));
        if !std::mem::replace(&mut state.send_scheduled, true) {
            let shared = shared.clone();
            runtime.spawn(async move {
                if let Some(shared) = shared.upgrade() {
                    shared.send_outbound();
                }
            });
        }
    }

    /// Receives a relayed datagram for this endpoint.
    fn receive(&self, from: &NodeId, relay: &NodeId, datagram: Bytes) {
        let mut state = self.lock();
        let Some(number) = state.number_of(from) else { return };
        if state.inbound.len() >= WAITING_MAX {
            return;
        }
        if state.last_relay.get(&number) != Some(relay) {
            state.last_relay.insert(number, relay.clone());
        }
        state.inbound.push_back((number, datagram));
        let reader = state.reader.take();
        drop(state);
        if let Some(reader) = reader {
            reader.wake();
        }
    }
}

fn address(number: usize, mapped: bool) -> SocketAddr {
    // Numbers are below `STAND_INS_MAX`.
    let ip = Ipv4Addr::from(FIRST + number as u32);
    let ip = if mapped { IpAddr::V6(ip.to_ipv6_mapped()) } else { IpAddr::V4(ip) };
    SocketAddr::new(ip, PORT)
}

impl fmt::Debug for RelaySocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Socket").field("inner", &self.inner).finish_non_exhaustive()
    }
}

impl AsyncUdpSocket for RelaySocket {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        // Relayed datagrams are always accepted; the others wait for the inner socket.
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
            // The reader polls again until nothing is left.
            return read;
        }
        let mut state = self.relay.lock();
        let mut count = 0;
        for (buffer, meta) in bufs.iter_mut().zip(meta) {
            let Some((number, datagram)) = state.inbound.pop_front() else { break };
            let len = datagram.len().min(buffer.len());
            buffer[..len].copy_from_slice(&datagram[..len]);
            *meta = RecvMeta::default();
            (meta.addr, meta.len, meta.stride) = (address(number, self.mapped), len, len);
            count += 1;
        }
        if count > 0 {
            return Poll::Ready(Ok(count));
        }
        state.reader = Some(cx.waker().clone());
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

impl EndpointState {
    pub(super) fn routes(&self) -> MutexGuard<'_, Routes> {
        self.routes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The relay for a node that this one does not reach directly. `from` delivered the datagram
    /// and is excluded.
    pub(super) fn relay_to(&self, to: &NodeId, from: Option<&NodeId>) -> Option<Arc<PeerEntry>> {
        let (via, cluster) = match self.find(to) {
            Some(entry) => {
                let link = entry.lock();
                (link.via.clone(), Some(link.cluster.clone()))
            }
            None => (None, None),
        };
        let cluster = cluster.as_ref().unwrap_or(&self.me.cluster);
        let relays = self.routes().relays_to(cluster, &self.me.cluster);
        let is_usable =
            |relay: &NodeId| *relay != self.me.node && relay != to && Some(relay) != from;
        let entries: Vec<_> = via
            .into_iter()
            .chain(relays)
            .filter(is_usable)
            .filter_map(|relay| self.find(&relay))
            .filter(|entry| self.has_direct_route(entry))
            .collect();
        // A link that is up has priority over a better position.
        let up = entries.iter().position(|entry| entry.is_up_directly());
        entries.into_iter().nth(up.unwrap_or(0))
    }

    /// Whether a node is directly reachable, as far as known.
    fn has_direct_route(&self, entry: &PeerEntry) -> bool {
        if entry.is_up_directly() {
            return true;
        }
        let (known, cluster) = {
            let link = entry.lock();
            (link.address.is_some(), link.cluster.clone())
        };
        known && !self.routes().needs_relay(&entry.node, &cluster, self.start.elapsed())
    }

    /// Passes the outbound datagrams of this node to relays.
    fn send_outbound(self: &Arc<Self>) {
        let outbound = {
            let mut state = self.relay.lock();
            state.send_scheduled = false;
            std::mem::take(&mut state.outbound)
        };
        let mut routes: BTreeMap<usize, Option<(NodeId, Arc<PeerEntry>)>> = BTreeMap::new();
        for (number, datagram) in outbound {
            let route = routes.entry(number).or_insert_with(|| {
                let (to, last_relay) = {
                    let state = self.relay.lock();
                    (state.names.get(number)?.clone(), state.last_relay.get(&number).cloned())
                };
                // The route back exists, even if no relay is known.
                let back = last_relay.and_then(|relay| self.find(&relay));
                let back = back.filter(|relay| relay.is_up_directly());
                let relay = back.or_else(|| self.relay_to(&to, None))?;
                Some((to, relay))
            });
            if let Some((to, relay)) = route {
                let (to, from) = (to.clone(), self.me.node.clone());
                self.enqueue(relay, &RelayedDatagram { to, from, hops: 0, datagram });
            }
        }
    }

    /// Appends a relayed datagram to the queue of a node, or drops it.
    fn enqueue(self: &Arc<Self>, next: &Arc<PeerEntry>, relayed: &RelayedDatagram) {
        let queue = next.queue(Class::Steal);
        if self.config.queue_bytes.saturating_sub(queue.room()) > QUEUED_MAX {
            return tracing::trace!(
                to = %relayed.to,
                via = %next.node,
                "a relayed datagram is dropped: the queue is full"
            );
        }
        let Ok(body) = wire::encode(Kind::RELAY, relayed) else { return };
        if queue.push(Frame::new(Kind::RELAY, body)).is_ok() && next.idle.load(Ordering::SeqCst) {
            self.handle_event(next, ConnectionEvent::SendRequested);
        }
    }

    /// Receives a relayed datagram from a peer, for this node or another one. An error describes a
    /// protocol violation.
    pub(super) fn receive_relayed(
        self: &Arc<Self>,
        from: &Peer,
        body: &[u8],
    ) -> Result<(), String> {
        let relayed: RelayedDatagram =
            wire::decode(Kind::RELAY, body).map_err(|error| error.to_string())?;
        if relayed.to == self.me.node {
            self.relay.receive(&relayed.from, &from.node, relayed.datagram);
            return Ok(());
        }
        let hops = relayed.hops.saturating_add(1);
        let direct = || self.find(&relayed.to).filter(|entry| self.has_direct_route(entry));
        let next = direct().or_else(|| self.relay_to(&relayed.to, Some(&from.node)));
        match next {
            Some(next) if hops <= HOPS_MAX && next.node != from.node => {
                self.relay.passed_on.fetch_add(1, Ordering::Relaxed);
                self.enqueue(&next, &RelayedDatagram { hops, ..relayed });
            }
            _ => tracing::trace!(
                to = %relayed.to,
                %from,
                "a relayed datagram is dropped: no route is known"
            ),
        }
        Ok(())
    }

    /// Whether any link uses a relay.
    pub(super) fn has_relayed_links(&self) -> bool {
        let peers = self.peers.read().unwrap_or_else(PoisonError::into_inner);
        peers.values().any(|entry| entry.lock().live().any(|live| live.relayed))
    }
}

impl PeerEntry {
    /// Whether a link without a relay is up.
    fn is_up_directly(&self) -> bool {
        self.lock().live().any(|live| !live.relayed)
    }
}

#[cfg(test)]
#[path = "relay_tests.rs"]
mod tests;
