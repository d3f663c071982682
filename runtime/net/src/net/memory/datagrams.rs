//! A network of sockets as a state machine: datagrams that the links carry, or lose. No I/O, no clock.
//!
//! Must not know what is in a datagram.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::{Ipv4Addr, SocketAddr};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use quinn::udp::EcnCodepoint;

use super::clockwork::World;
use super::lines::{DIGEST, fnv};
use super::state::Traffic;
use crate::id::{ClusterId, NodeId};
use crate::net::LinkProfile;
use crate::net::paths::{Path, Paths};

/// The port of a node's first life; each later one has the next, as processes do that take any free one.
const FIRST_PORT: u16 = 20_000;

/// A socket's place in [`Datagrams::sockets`].
pub(super) type Ix = usize;

pub(super) struct Datagram {
    pub(super) from: SocketAddr,
    pub(super) contents: Vec<u8>,
    pub(super) ecn: Option<EcnCodepoint>,
}

struct Socket {
    address: SocketAddr,
    cluster: ClusterId,
    open: bool,
    came: VecDeque<Datagram>,
    reader: Option<Waker>,
}

/// What is known between two clusters.
#[derive(Default)]
struct Way {
    path: Path,
    traffic: Traffic,
}

pub(super) struct Datagrams {
    paths: Paths,
    ways: BTreeMap<(ClusterId, ClusterId), Way>,
    cuts: BTreeSet<(ClusterId, ClusterId)>,
    sockets: Vec<Socket>,
    by_address: BTreeMap<SocketAddr, Ix>,
    /// A host for each name, and how many lives it has had.
    hosts: BTreeMap<NodeId, (Ipv4Addr, u16)>,
    /// By arrival, then by order of sending.
    on_the_way: BTreeMap<(Duration, u64), (Ix, Ix, Datagram)>,
    seq: u64,
    /// The time of the event handled last: time runs in it finer than tokio's milliseconds.
    fine: Duration,
    digest: u64,
}

impl Datagrams {
    pub(super) fn new(seed: u64, inside: LinkProfile, between: LinkProfile) -> Self {
        Self {
            paths: Paths::new(seed, inside, between),
            ways: BTreeMap::new(),
            cuts: BTreeSet::new(),
            sockets: Vec::new(),
            by_address: BTreeMap::new(),
            hosts: BTreeMap::new(),
            on_the_way: BTreeMap::new(),
            seq: 0,
            fine: Duration::ZERO,
            digest: DIGEST,
        }
    }

    /// A socket for a life of a node. Its address follows from the order of names and lives alone.
    pub(super) fn open(&mut self, node: &NodeId, cluster: &ClusterId) -> (Ix, SocketAddr) {
        let number = self.hosts.len() as u32 + 1;
        let host = Ipv4Addr::from(u32::from(Ipv4Addr::new(10, 0, 0, 0)) + number);
        let (host, lives) = self.hosts.entry(node.clone()).or_insert((host, 0));
        let address = SocketAddr::from((*host, FIRST_PORT + *lives));
        *lives = (*lives + 1) % (u16::MAX - FIRST_PORT);
        let ix = self.sockets.len();
        let cluster = cluster.clone();
        let (came, reader) = (VecDeque::new(), None);
        self.sockets.push(Socket { address, cluster, open: true, came, reader });
        self.by_address.insert(address, ix);
        (ix, address)
    }

    /// Nothing comes or goes there any more. Returns whom nobody will wake, to be dropped when this is not locked: what it
    /// belongs to may own the socket.
    #[must_use]
    pub(super) fn close(&mut self, ix: Ix) -> Option<Waker> {
        let socket = &mut self.sockets[ix];
        socket.open = false;
        socket.came.clear();
        socket.reader.take()
    }

    /// Sends a datagram. Like UDP it does not say whether it arrives.
    pub(super) fn send(
        &mut self,
        from: Ix,
        to: SocketAddr,
        contents: &[u8],
        ecn: Option<EcnCodepoint>,
        now: Duration,
    ) {
        let Some(&to) = self.by_address.get(&to) else { return };
        if !self.sockets[from].open {
            return;
        }
        let now = now.max(self.fine);
        let clusters = (self.sockets[from].cluster.clone(), self.sockets[to].cluster.clone());
        let is_cut = self.cuts.contains(&clusters);
        let paths = &mut self.paths;
        let new = |paths: &mut Paths| Way { path: paths.path(&clusters), ..Way::default() };
        let way = match self.ways.get_mut(&clusters) {
            Some(way) => way,
            None => self.ways.entry(clusters.clone()).or_insert(new(paths)),
        };
        let len = contents.len();
        let arrival = match is_cut {
            true => None,
            false => paths.offer(&way.path, now, len),
        };
        let Some(arrival) = arrival else {
            way.traffic.lost += 1;
            return;
        };
        way.traffic.frames += 1;
        way.traffic.bytes += len as u64;
        self.seq += 1;
        let from_address = self.sockets[from].address;
        let datagram = Datagram { from: from_address, contents: contents.to_vec(), ecn };
        self.on_the_way.insert((arrival, self.seq), (from, to, datagram));
    }

    /// What came for a socket, or a promise to wake the reader.
    pub(super) fn receive(&mut self, ix: Ix, cx: &Context<'_>) -> Poll<Datagram> {
        let socket = &mut self.sockets[ix];
        match socket.came.pop_front() {
            Some(datagram) => Poll::Ready(datagram),
            None => {
                socket.reader = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }

    /// As [`receive`](Self::receive), without the promise.
    pub(super) fn more(&mut self, ix: Ix) -> Option<Datagram> {
        self.sockets[ix].came.pop_front()
    }

    pub(super) fn set_line(
        &mut self,
        from: &ClusterId,
        to: &ClusterId,
        profile: LinkProfile,
        now: Duration,
    ) {
        let now = now.max(self.fine);
        self.paths.set_line(&(from.clone(), to.clone()), profile, now);
    }

    pub(super) fn set_stub(
        &mut self,
        cluster: &ClusterId,
        up: bool,
        profile: LinkProfile,
        now: Duration,
    ) {
        self.paths.set_stub(cluster, up, profile, now.max(self.fine));
        for (clusters, way) in &mut self.ways {
            way.path = self.paths.path(clusters);
        }
    }

    pub(super) fn partition(&mut self, a: &ClusterId, b: &ClusterId, cut: bool) {
        for clusters in [(a.clone(), b.clone()), (b.clone(), a.clone())] {
            match cut {
                true => self.cuts.insert(clusters),
                false => self.cuts.remove(&clusters),
            };
        }
    }

    pub(super) fn traffic(&self) -> BTreeMap<(ClusterId, ClusterId), Traffic> {
        self.ways.iter().map(|(clusters, way)| (clusters.clone(), way.traffic)).collect()
    }

    pub(super) fn digest(&self) -> u64 {
        self.digest
    }
}

impl World for Datagrams {
    type Call = Waker;

    fn next_at(&self) -> Option<Duration> {
        self.on_the_way.first_key_value().map(|((at, _), _)| *at)
    }

    fn step(&mut self, limit: Duration) -> Vec<Waker> {
        let mut readers = Vec::new();
        let Some(at) = self.next_at().filter(|at| *at <= limit) else { return readers };
        self.fine = self.fine.max(at);
        while self.next_at() == Some(at)
            && let Some((_, (from, to, datagram))) = self.on_the_way.pop_first()
        {
            let socket = &mut self.sockets[to];
            if !socket.open {
                continue;
            }
            let nanos = u64::try_from(self.fine.as_nanos()).unwrap_or(u64::MAX);
            let len = datagram.contents.len() as u64;
            fnv(&mut self.digest, &[nanos, from as u64, to as u64, len]);
            tracing::trace!(at = ?self.fine, from, to, len, "a datagram");
            socket.came.push_back(datagram);
            readers.extend(socket.reader.take());
        }
        readers
    }

    fn make(reader: Waker) {
        reader.wake();
    }
}
