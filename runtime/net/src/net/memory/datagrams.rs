//! A network of sockets as a state machine: the links carry datagrams or lose them. No I/O, no
//! clock.
//!
//! This module does not know the contents of datagrams.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::{Ipv4Addr, SocketAddr};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use quinn::udp::EcnCodepoint;

use super::dispatcher::Simulation;
use super::lines::{DIGEST, fnv};
use super::state::Traffic;
use crate::id::{ClusterId, NodeId};
use crate::net::LinkProfile;
use crate::net::paths::{Path, Paths};

/// The port of a node's first incarnation. Each later one has the next port, as processes that bind
/// any free one.
const FIRST_PORT: u16 = 20_000;

/// Index of a socket in [`Datagrams::sockets`].
pub(super) type SocketIndex = usize;

pub(super) struct Datagram {
    pub(super) from: SocketAddr,
    pub(super) contents: Vec<u8>,
    pub(super) ecn: Option<EcnCodepoint>,
}

struct MemorySocket {
    address: SocketAddr,
    cluster: ClusterId,
    open: bool,
    received: VecDeque<Datagram>,
    reader: Option<Waker>,
}

/// The path and the traffic between two clusters.
#[derive(Default)]
struct Connection {
    path: Path,
    traffic: Traffic,
}

pub(super) struct Datagrams {
    paths: Paths,
    connections: BTreeMap<(ClusterId, ClusterId), Connection>,
    cuts: BTreeSet<(ClusterId, ClusterId)>,
    sockets: Vec<MemorySocket>,
    by_address: BTreeMap<SocketAddr, SocketIndex>,
    /// The host of each name, and the number of its incarnations.
    hosts: BTreeMap<NodeId, (Ipv4Addr, u16)>,
    /// Sockets and datagram, by arrival time and order of sending.
    in_transit: BTreeMap<(Duration, u64), (SocketIndex, SocketIndex, Datagram)>,
    seq: u64,
    /// Time of the last event, which is finer than tokio's milliseconds.
    event_time: Duration,
    digest: u64,
    events: u64,
}

impl Datagrams {
    pub(super) fn new(seed: u64, inside: LinkProfile, between: LinkProfile) -> Self {
        Self {
            paths: Paths::new(seed, inside, between),
            connections: BTreeMap::new(),
            cuts: BTreeSet::new(),
            sockets: Vec::new(),
            by_address: BTreeMap::new(),
            hosts: BTreeMap::new(),
            in_transit: BTreeMap::new(),
            seq: 0,
            event_time: Duration::ZERO,
            digest: DIGEST,
            events: 0,
        }
    }

    /// Opens a socket for an incarnation of a node. Its address depends only on the order of names
    /// and incarnations.
    pub(super) fn open(&mut self, node: &NodeId, cluster: &ClusterId) -> (SocketIndex, SocketAddr) {
        let number = self.hosts.len() as u32 + 1;
        let host = Ipv4Addr::from(u32::from(Ipv4Addr::new(10, 0, 0, 0)) + number);
        let (host, incarnations) = self.hosts.entry(node.clone()).or_insert((host, 0));
        let address = SocketAddr::from((*host, FIRST_PORT + *incarnations));
        *incarnations = (*incarnations + 1) % (u16::MAX - FIRST_PORT);
        let index = self.sockets.len();
        let cluster = cluster.clone();
        let (received, reader) = (VecDeque::new(), None);
        self.sockets.push(MemorySocket { address, cluster, open: true, received, reader });
        self.by_address.insert(address, index);
        (index, address)
    }

    /// Closes a socket. Returns its reader, which will not be woken again.
    ///
    /// Drop the reader after unlocking the network, because its task may own the socket.
    #[must_use]
    pub(super) fn close(&mut self, index: SocketIndex) -> Option<Waker> {
        let socket = &mut self.sockets[index];
        socket.open = false;
        socket.received.clear();
        socket.reader.take()
    }

    /// Sends a datagram. As with UDP, the sender does not learn whether it arrives.
    pub(super) fn send(
        &mut self,
        from: SocketIndex,
        to: SocketAddr,
        contents: &[u8],
        ecn: Option<EcnCodepoint>,
        now: Duration,
    ) {
        let Some(&to) = self.by_address.get(&to) else { return };
        if !self.sockets[from].open {
            return;
        }
        let now = now.max(self.event_time);
        let clusters = (self.sockets[from].cluster.clone(), self.sockets[to].cluster.clone());
        let is_cut = self.cuts.contains(&clusters);
        let paths = &mut self.paths;
        let new =
            |paths: &mut Paths| Connection { path: paths.path(&clusters), ..Connection::default() };
        let connection = match self.connections.get_mut(&clusters) {
            Some(connection) => connection,
            None => self.connections.entry(clusters.clone()).or_insert(new(paths)),
        };
        let len = contents.len();
        let arrival = if is_cut { None } else { paths.offer(&connection.path, now, len) };
        let Some(arrival) = arrival else {
            connection.traffic.lost += 1;
            return;
        };
        connection.traffic.frames += 1;
        connection.traffic.bytes += len as u64;
        self.seq += 1;
        let from_address = self.sockets[from].address;
        let datagram = Datagram { from: from_address, contents: contents.to_vec(), ecn };
        self.in_transit.insert((arrival, self.seq), (from, to, datagram));
    }

    /// Returns a received datagram, or registers the reader to be woken.
    pub(super) fn receive(&mut self, index: SocketIndex, cx: &Context<'_>) -> Poll<Datagram> {
        let socket = &mut self.sockets[index];
        match socket.received.pop_front() {
            Some(datagram) => Poll::Ready(datagram),
            None => {
                socket.reader = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }

    /// Returns a received datagram as [`receive`](Self::receive) does, without registering the
    /// reader.
    pub(super) fn receive_more(&mut self, index: SocketIndex) -> Option<Datagram> {
        self.sockets[index].received.pop_front()
    }

    pub(super) fn set_line(
        &mut self,
        from: &ClusterId,
        to: &ClusterId,
        profile: LinkProfile,
        now: Duration,
    ) {
        let now = now.max(self.event_time);
        self.paths.set_line(&(from.clone(), to.clone()), profile, now);
    }

    pub(super) fn set_stub(
        &mut self,
        cluster: &ClusterId,
        up: bool,
        profile: LinkProfile,
        now: Duration,
    ) {
        self.paths.set_access_link(cluster, up, profile, now.max(self.event_time));
        for (clusters, connection) in &mut self.connections {
            connection.path = self.paths.path(clusters);
        }
    }

    pub(super) fn partition(&mut self, a: &ClusterId, b: &ClusterId, cut: bool) {
        for clusters in [(a.clone(), b.clone()), (b.clone(), a.clone())] {
            if cut {
                self.cuts.insert(clusters);
            } else {
                self.cuts.remove(&clusters);
            }
        }
    }

    pub(super) fn traffic(&self) -> BTreeMap<(ClusterId, ClusterId), Traffic> {
        self.connections
            .iter()
            .map(|(clusters, connection)| (clusters.clone(), connection.traffic))
            .collect()
    }

    /// Number of datagrams that arrived.
    pub(super) fn events(&self) -> u64 {
        self.events
    }

    pub(super) fn digest(&self) -> u64 {
        self.digest
    }
}

impl Simulation for Datagrams {
    type Call = Waker;

    fn next_at(&self) -> Option<Duration> {
        self.in_transit.first_key_value().map(|((at, _), _)| *at)
    }

    fn step(&mut self, limit: Duration) -> Vec<Waker> {
        let mut readers = Vec::new();
        let Some(at) = self.next_at().filter(|at| *at <= limit) else { return readers };
        self.event_time = self.event_time.max(at);
        while self.next_at() == Some(at)
            && let Some((_, (from, to, datagram))) = self.in_transit.pop_first()
        {
            self.events += 1;
            let socket = &mut self.sockets[to];
            if !socket.open {
                continue;
            }
            let nanos = u64::try_from(self.event_time.as_nanos()).unwrap_or(u64::MAX);
            let len = datagram.contents.len() as u64;
            fnv(&mut self.digest, &[nanos, from as u64, to as u64, len]);
            tracing::trace!(at = ?self.event_time, from, to, len, "a datagram");
            socket.received.push_back(datagram);
            readers.extend(socket.reader.take());
        }
        readers
    }

    fn execute(reader: Waker) {
        reader.wake();
    }
}
