//! The router: computes the port and the time at which each packet leaves. It has no I/O and no
//! clock.
//!
//! A port is the source and destination of packets: the network interface of a node, or of a whole
//! cluster. The links of two ports' clusters lie between them in series. This module does not
//! depend on the source of packets.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use springtide_runtime::id::ClusterId;
use springtide_runtime::net::{DropCause, LinkProfile, Path, Paths};
use springtide_runtime::random::SplitMix;
use springtide_runtime::topology::{LinkId, Topology, TopologyCluster};

use crate::border::{Border, BorderRules};
use crate::impair::{Impairments, TraceQueue};

/// The maximum number of packets under way; more are dropped and counted, however long a queue a
/// file demands.
const PACKETS_MAX: usize = 1 << 20;

/// The index of a port.
pub type Port = usize;

/// Whether each node has a port, or each cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PortKind {
    /// Each node has a port, so that packets inside a cluster pass the router too.
    Node,
    /// The nodes of a cluster share a port, so that packets inside it never reach the router.
    Cluster,
}

/// Counts of packets from one cluster to another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RouterCounts {
    /// Packets that were offered.
    pub packets: u64,
    /// Bytes of these packets, IP headers included.
    pub bytes: u64,
    /// Packets that did not arrive, for any of the following causes.
    pub lost: u64,
    /// Packets lost because a link was down, or the clusters were cut off from each other.
    pub down: u64,
    /// Packets lost because a queue was full.
    pub queue_full: u64,
    /// Packets lost by a link's loss rate.
    pub random: u64,
    /// Packets lost in bursts.
    pub burst: u64,
    /// Packets that an address translator or a firewall blocked.
    pub filtered: u64,
    /// Packets that arrived twice.
    pub duplicated: u64,
    /// Packets that arrived with a wrong bit.
    pub corrupted: u64,
    /// Packets that were held back.
    pub reordered: u64,
}

impl RouterCounts {
    /// Counts a packet that a link did not carry.
    pub(crate) fn drop(&mut self, cause: DropCause) {
        self.lost += 1;
        match cause {
            DropCause::Down => self.down += 1,
            DropCause::QueueFull => self.queue_full += 1,
            DropCause::Loss => self.random += 1,
        }
    }
}

struct QueuedPacket {
    at: Duration,
    seq: u64,
    /// The clusters of the sender and of the receiver.
    sites: (usize, usize),
    packet: Vec<u8>,
}

impl PartialEq for QueuedPacket {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.seq) == (other.at, other.seq)
    }
}
impl Eq for QueuedPacket {}
impl PartialOrd for QueuedPacket {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for QueuedPacket {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.seq).cmp(&(other.at, other.seq))
    }
}

/// The path between two clusters, in one direction.
struct LinkState {
    path: Path,
    cut: bool,
    counts: RouterCounts,
    impairments: Impairments,
    /// Whether the channel of the bursts is bad.
    is_bad: bool,
    rng: SplitMix,
    trace: TraceQueue,
}

/// A packet that is due.
#[derive(Debug, PartialEq, Eq)]
pub struct Due {
    /// The port that it leaves by.
    pub to: Port,
    /// The contents of the packet.
    pub packet: Vec<u8>,
    /// The time at which it should leave.
    pub at: Duration,
}

/// A change of the network.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RouterChange {
    /// Sets the line from a cluster to another, or inside one.
    Line {
        /// The cluster of the senders.
        from: ClusterId,
        /// The cluster of the receivers.
        to: ClusterId,
        /// The new profile of the line.
        profile: LinkProfile,
    },
    /// Sets the link that all traffic out of a cluster passes first, or all traffic into it last.
    Stub {
        /// The cluster of the link.
        cluster: ClusterId,
        /// Whether it is the uplink.
        up: bool,
        /// The new profile of the link.
        profile: LinkProfile,
    },
    /// Cuts or restores the connection of two clusters; if both are the same, that of the cluster
    /// to all others.
    Cut {
        /// The first of the two clusters.
        a: ClusterId,
        /// The second of the two clusters.
        b: ClusterId,
        /// Whether the connection is cut.
        cut: bool,
    },
    /// Sets the impairments of the line from a cluster to another, or inside one.
    Impair {
        /// The cluster of the senders.
        from: ClusterId,
        /// The cluster of the receivers.
        to: ClusterId,
        /// All impairments of the line.
        impairments: Impairments,
    },
    /// Sets the address translator and the firewall of a cluster.
    Border {
        /// The cluster of the border.
        cluster: ClusterId,
        /// The rules of the border.
        rules: BorderRules,
    },
}

impl RouterChange {
    /// The two clusters of a change, or one of them twice.
    fn clusters(&self) -> [&ClusterId; 2] {
        match self {
            Self::Line { from: a, to: b, .. }
            | Self::Cut { a, b, .. }
            | Self::Impair { from: a, to: b, .. } => [a, b],
            Self::Stub { cluster, .. } | Self::Border { cluster, .. } => [cluster, cluster],
        }
    }
}

/// Checks that all clusters that the changes name exist.
pub(crate) fn check<'a>(
    changes: &[RouterChange],
    known: impl Iterator<Item = &'a ClusterId> + Clone,
) -> Result<(), UnknownCluster> {
    let mut names = changes.iter().flat_map(RouterChange::clusters);
    names.try_for_each(|name| place_of(name, known.clone()).map(drop))
}

/// A change names an unknown cluster.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no cluster named {name:?}: the topology has {known}")]
pub struct UnknownCluster {
    name: String,
    known: String,
}

/// The index of a cluster among the known ones.
pub(crate) fn place_of<'a>(
    name: &ClusterId,
    known: impl Iterator<Item = &'a ClusterId> + Clone,
) -> Result<usize, UnknownCluster> {
    known.clone().position(|other| other == name).ok_or_else(|| {
        let known: Vec<&str> = known.map(ClusterId::as_str).collect();
        UnknownCluster { name: name.to_string(), known: known.join(", ") }
    })
}

/// Whether a path is affected by a cut of two clusters; if both are the same, of the cluster from
/// all others.
pub(crate) fn is_between<T: PartialEq>((a, b): (&T, &T), (from, to): (&T, &T)) -> bool {
    if a == b { (from == a) != (to == a) } else { [(a, b), (b, a)].contains(&(from, to)) }
}

/// The network as a state machine.
pub struct Router {
    topology: Topology,
    /// The index in the topology of each port's cluster.
    port_site: Vec<usize>,
    /// The port of each address, by cluster and node.
    by_address: BTreeMap<(u8, u8), Port>,
    paths: Paths,
    links: BTreeMap<(usize, usize), LinkState>,
    /// The borders of the clusters, in the order of the topology.
    borders: Vec<Border>,
    in_flight: BinaryHeap<Reverse<QueuedPacket>>,
    seq: u64,
    unroutable: u64,
}

impl Router {
    /// Creates a router for a topology; losses and jitter follow from `seed`.
    pub fn new(topology: Topology, ports: PortKind, seed: u64) -> Self {
        let mut paths = topology.paths(seed);
        let (mut port_site, mut by_address) = (Vec::new(), BTreeMap::new());
        for (at, site) in topology.sites.iter().enumerate() {
            if ports == PortKind::Cluster {
                port_site.push(at);
            }
            for node in 1..=site.nodes {
                if ports == PortKind::Node {
                    port_site.push(at);
                }
                by_address.insert((site.number, node), port_site.len() - 1);
            }
            if ports == PortKind::Cluster {
                // The address of the interface itself, for sockets that are not bound to a node's
                // address.
                by_address.insert((site.number, GATE), port_site.len() - 1);
            }
        }
        let mut links = BTreeMap::new();
        for (from, a) in topology.sites.iter().enumerate() {
            for (to, b) in topology.sites.iter().enumerate() {
                let path = paths.path(&(a.name.clone(), b.name.clone()));
                let state = LinkState {
                    path,
                    cut: false,
                    counts: RouterCounts::default(),
                    impairments: Impairments::default(),
                    is_bad: false,
                    rng: SplitMix::with_text(seed, &format!("impair {}>{}", a.name, b.name)),
                    trace: TraceQueue::default(),
                };
                links.insert((from, to), state);
            }
        }
        let border =
            |site: &TopologyCluster| Border::new(topology.address(site.number, PUBLIC).octets());
        let borders = topology.sites.iter().map(border).collect();
        let (in_flight, seq, unroutable) = (BinaryHeap::new(), 0, 0);
        Self { topology, port_site, by_address, paths, links, borders, in_flight, seq, unroutable }
    }

    /// The number of ports, in the order of clusters and nodes of the topology.
    pub fn ports(&self) -> usize {
        self.port_site.len()
    }

    /// Accepts a packet from a port. Returns whether the packet is under way.
    pub fn accept(&mut self, from: Port, mut packet: Vec<u8>, now: Duration) -> bool {
        // The kernel sends IPv6 router solicitations by itself.
        if packet.first().is_none_or(|byte| byte >> 4 != 4) {
            return false;
        }
        let site = self.port_site[from];
        let Some(to) = self.destination(&packet).filter(|to| *to != site || self.is_node(&packet))
        else {
            self.unroutable += 1;
            return false;
        };
        let sites = (site, to);
        let Some(link) = self.links.get_mut(&sites) else { return false };
        link.counts.packets += 1;
        link.counts.bytes += packet.len() as u64;
        if site != to && self.borders[site].outgoing(&mut packet, now).is_err() {
            link.counts.lost += 1;
            link.counts.filtered += 1;
            return false;
        }
        let offered = if link.cut {
            Err(DropCause::Down)
        } else if self.in_flight.len() >= PACKETS_MAX {
            Err(DropCause::QueueFull)
        } else {
            self.paths.try_offer(&link.path, now, packet.len())
        };
        let offered = match (&link.impairments.trace, offered) {
            // Behind the other links, which a packet that waits for the trace does not occupy.
            (Some(trace), Ok(at)) => {
                let [a, b] = [site, to].map(|at| self.topology.sites[at].name.clone());
                let queue = self.paths.line_profile(&(a, b)).map_or(0, |profile| profile.queue);
                link.trace.offer(trace, queue, at, packet.len()).ok_or(DropCause::QueueFull)
            }
            (_, offered) => offered,
        };
        let at = match offered {
            Ok(at) => at,
            Err(cause) => {
                link.counts.drop(cause);
                return false;
            }
        };
        let fate = link.impairments.draw(&mut link.is_bad, &mut link.rng);
        if fate.is_lost {
            link.counts.lost += 1;
            link.counts.burst += 1;
            return false;
        }
        if fate.flip.is_some() {
            // A wrong IP header would be lost at the first router.
            let header = (usize::from(packet[0] & 15) * 4).min(packet.len());
            fate.corrupt(&mut packet[header..]);
            link.counts.corrupted += 1;
        }
        link.counts.reordered += u64::from(fate.hold > Duration::ZERO);
        link.counts.duplicated += u64::from(fate.is_duplicated);
        let at = at + fate.hold;
        let twice = fate.is_duplicated.then(|| packet.clone());
        for packet in twice.into_iter().chain([packet]) {
            self.seq += 1;
            self.in_flight.push(Reverse(QueuedPacket { at, seq: self.seq, sites, packet }));
        }
        true
    }

    /// The cluster of an IPv4 packet's destination: a node, or the address of its translator.
    fn destination(&self, packet: &[u8]) -> Option<usize> {
        if let Some(port) = self.port_of(packet) {
            return Some(self.port_site[port]);
        }
        let public = |border: &Border| {
            border.rules().nat.is_some() && packet.get(16..20) == Some(&border.public())
        };
        self.borders.iter().position(public)
    }

    /// Whether a packet's destination is a node, or a cluster's own interface.
    fn is_node(&self, packet: &[u8]) -> bool {
        self.port_of(packet).is_some()
    }

    /// The destination port of an IPv4 packet.
    fn port_of(&self, packet: &[u8]) -> Option<Port> {
        let to = packet.get(16..20)?;
        let ours = to[..2] == self.topology.prefix;
        ours.then(|| self.by_address.get(&(to[2], to[3])).copied()).flatten()
    }

    /// The time at which the next packet is due.
    pub fn next_at(&self) -> Option<Duration> {
        self.in_flight.peek().map(|Reverse(packet)| packet.at)
    }

    /// Takes the next packet that is due.
    pub fn due(&mut self, now: Duration) -> Option<Due> {
        loop {
            if self.next_at()? > now {
                return None;
            }
            let Reverse(QueuedPacket { at, sites, mut packet, .. }) = self.in_flight.pop()?;
            let (from, to) = sites;
            // The border judges by its state at the arrival, not at the start.
            if from != to && self.borders[to].incoming(&mut packet, at).is_err() {
                if let Some(link) = self.links.get_mut(&sites) {
                    link.counts.lost += 1;
                    link.counts.filtered += 1;
                }
                continue;
            }
            match self.port_of(&packet) {
                Some(to) => return Some(Due { to, packet, at }),
                None => self.unroutable += 1,
            }
        }
    }

    /// The bytes that wait in the queue of a link.
    ///
    /// # Errors
    /// The link names an unknown cluster.
    pub fn queued(&mut self, link: &LinkId, now: Duration) -> Result<usize, UnknownCluster> {
        let place = |name: &ClusterId| place_of(name, self.clusters());
        match link {
            LinkId::Line(from, to) => {
                let sites = (place(from)?, place(to)?);
                let trace = self.links.get_mut(&sites).map_or(0, |link| link.trace.queued(now));
                Ok(trace + self.paths.line_queue(&(from.clone(), to.clone()), now))
            }
            LinkId::Stub(cluster, up) => {
                place(cluster)?;
                Ok(self.paths.access_link_queue(cluster, *up, now))
            }
        }
    }

    /// The borders of the clusters.
    pub fn borders(&self) -> impl Iterator<Item = (&ClusterId, &Border)> {
        self.clusters().zip(&self.borders)
    }

    /// The clusters, in the order of the topology.
    pub fn clusters(&self) -> impl Iterator<Item = &ClusterId> + Clone {
        self.topology.sites.iter().map(|site| &site.name)
    }

    /// The profile of a link; an uplink that was never limited has no limits.
    ///
    /// # Errors
    /// The link names an unknown cluster.
    pub fn profile(&self, link: &LinkId) -> Result<LinkProfile, UnknownCluster> {
        let place = |name: &ClusterId| place_of(name, self.clusters());
        let found = match link {
            LinkId::Line(from, to) => {
                place(from)?;
                place(to)?;
                self.paths.line_profile(&(from.clone(), to.clone()))
            }
            LinkId::Stub(cluster, up) => {
                place(cluster)?;
                let mut stubs = self.stubs();
                stubs
                    .find(|(of, link, _)| (*of, link) == (cluster, up))
                    .map(|(.., profile)| profile)
            }
        };
        Ok(found.cloned().unwrap_or_default())
    }

    /// Applies a change; packets under way keep their times.
    ///
    /// # Errors
    /// The change names an unknown cluster; nothing changes.
    pub fn change(&mut self, change: &RouterChange, now: Duration) -> Result<(), UnknownCluster> {
        let place = |name: &ClusterId| place_of(name, self.clusters());
        match change {
            RouterChange::Line { from, to, profile } => {
                place(from)?;
                place(to)?;
                self.paths.set_line(&(from.clone(), to.clone()), profile.clone(), now);
            }
            RouterChange::Stub { cluster, up, profile } => {
                place(cluster)?;
                self.paths.set_access_link(cluster, *up, profile.clone(), now);
                // There may have been no such link.
                for ((from, to), link) in &mut self.links {
                    let [from, to] = [from, to].map(|at| self.topology.sites[*at].name.clone());
                    link.path = self.paths.path(&(from, to));
                }
            }
            RouterChange::Cut { a, b, cut } => {
                let (a, b) = (place(a)?, place(b)?);
                for ((from, to), link) in &mut self.links {
                    if is_between((&a, &b), (from, to)) {
                        link.cut = *cut;
                    }
                }
            }
            RouterChange::Impair { from, to, impairments } => {
                let sites = (place(from)?, place(to)?);
                if let Some(link) = self.links.get_mut(&sites) {
                    if link.impairments.trace != impairments.trace {
                        link.trace = TraceQueue::default();
                    }
                    link.impairments = impairments.clone();
                }
            }
            RouterChange::Border { cluster, rules } => {
                let at = place(cluster)?;
                self.borders[at].set_rules(*rules);
            }
        }
        Ok(())
    }

    /// The counts by cluster of the sender and of the receiver, without empty ones.
    pub fn counts(&self) -> Vec<(&TopologyCluster, &TopologyCluster, RouterCounts)> {
        let of = |at: &usize| &self.topology.sites[*at];
        let some = self.links.iter().filter(|(_, link)| link.counts.packets > 0);
        some.map(|((from, to), link)| (of(from), of(to), link.counts)).collect()
    }

    /// All lines: source, destination, profile, whether it is cut, and counts.
    pub fn lines(
        &self,
    ) -> impl Iterator<Item = (&ClusterId, &ClusterId, &LinkProfile, bool, RouterCounts)> {
        self.links.iter().filter_map(|((from, to), link)| {
            let [from, to] = [from, to].map(|at| &self.topology.sites[*at].name);
            let profile = self.paths.line_profile(&(from.clone(), to.clone()))?;
            Some((from, to, profile, link.cut, link.counts))
        })
    }

    /// The limited uplinks (true) and downlinks.
    pub fn stubs(&self) -> impl Iterator<Item = (&ClusterId, bool, &LinkProfile)> {
        self.paths.access_link_profiles()
    }

    /// The number of IPv4 packets with an unknown destination.
    pub fn unroutable(&self) -> u64 {
        self.unroutable
    }

    /// The number of packets under way.
    pub fn in_flight(&self) -> usize {
        self.in_flight.len()
    }
}

/// The last byte of the address of a cluster's own interface.
pub const GATE: u8 = 254;
/// The last byte of the address of a cluster's address translator.
pub const PUBLIC: u8 = 253;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use springtide_runtime::config::{Sources, TopologyConfig, load};

    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn topology(text: &str) -> Topology {
        let config = load::<TopologyConfig>(&Sources::of_text("t.toml", text));
        Topology::from_config(&config.unwrap_or_else(|error| panic!("{error}")).value)
    }

    fn two() -> Topology {
        topology(
            "name = \"two\"\n[wide]\nrtt = \"20ms\"\nbandwidth = \"1MB/s\"\nqueue = 10000\n\
             [[cluster]]\nname = \"a\"\nnodes = 2\n[[cluster]]\nname = \"b\"\nnodes = 2\n",
        )
    }

    /// An IPv4 packet of this length to an address.
    fn packet(to: [u8; 4], len: usize) -> Vec<u8> {
        let mut packet = vec![0; len.max(20)];
        packet[0] = 0x45;
        packet[16..20].copy_from_slice(&to);
        packet
    }

    #[test]
    fn packets_arrive_at_their_links_time_and_their_addresss_port() {
        for (ports, count, port) in [(PortKind::Node, 4, 3), (PortKind::Cluster, 2, 1)] {
            let mut router = Router::new(two(), ports, 1);
            assert_eq!(router.ports(), count);
            assert!(router.accept(0, packet([10, 77, 2, 2], 1000), Duration::ZERO));
            assert_eq!(router.next_at(), Some(11 * MS));
            assert_eq!(router.due(10 * MS), None);
            let due = router.due(12 * MS).expect("it is due");
            assert_eq!((due.to, due.at, due.packet.len()), (port, 11 * MS, 1000));
            let invalid = [
                packet([10, 78, 2, 2], 100),
                packet([10, 77, 3, 1], 100),
                packet([10, 77, 2, 3], 100),
                vec![0x60; 60],
                vec![0x45; 12],
                Vec::new(),
            ];
            for packet in invalid {
                assert!(!router.accept(0, packet, Duration::ZERO));
            }
            assert_eq!((router.unroutable(), router.in_flight()), (4, 0));
        }
        // Packets inside a cluster pass the router too if each node has a port.
        let mut router = Router::new(two(), PortKind::Node, 1);
        assert!(router.accept(0, packet([10, 77, 1, 2], 1000), Duration::ZERO));
        assert_eq!(router.due(MS).map(|due| (due.to, due.at)), Some((1, MS / 20)));
    }

    #[test]
    fn a_full_queue_drops_and_a_cut_lets_nothing_through() {
        let mut router = Router::new(two(), PortKind::Cluster, 1);
        let to_b = || packet([10, 77, 2, 1], 1000);
        let taken = (0..20).filter(|_| router.accept(0, to_b(), Duration::ZERO)).count();
        assert_eq!(taken, 10);
        let cut = |a: &str, b: &str, cut| RouterChange::Cut { a: a.into(), b: b.into(), cut };
        router.change(&cut("b", "a", true), MS).unwrap();
        assert!(!router.accept(0, to_b(), 1000 * MS));
        router.change(&cut("b", "a", false), MS).unwrap();
        router.change(&cut("b", "b", true), MS).unwrap();
        assert!(!router.accept(0, to_b(), 1000 * MS));
        assert!(!router.accept(1, packet([10, 77, 1, 1], 100), 1000 * MS));
        router.change(&cut("b", "b", false), MS).unwrap();
        assert!(router.accept(0, to_b(), 1000 * MS));
        let counts = router.counts();
        assert_eq!(
            counts[0].2,
            RouterCounts {
                packets: 23,
                bytes: 23_000,
                lost: 12,
                queue_full: 10,
                down: 2,
                ..RouterCounts::default()
            }
        );
        let error = router.change(&cut("b", "c", true), MS).unwrap_err().to_string();
        assert_eq!(error, "there is no cluster named \"c\": the topology has a, b");
    }

    #[test]
    fn a_later_uplink_lies_on_all_paths_out() {
        let mut router = Router::new(two(), PortKind::Cluster, 1);
        let profile = LinkProfile::default().rate(100_000).queue(100_000);
        let stub = RouterChange::Stub { cluster: "a".into(), up: true, profile };
        router.change(&stub, Duration::ZERO).unwrap();
        assert!(router.accept(0, packet([10, 77, 2, 1], 1000), Duration::ZERO));
        assert_eq!(router.next_at(), Some(21 * MS));
        assert!(router.accept(1, packet([10, 77, 1, 1], 1000), Duration::ZERO));
        assert_eq!(router.next_at(), Some(11 * MS));
        let rate = |link| router.profile(&link).map(|profile| profile.rate);
        assert_eq!(rate(LinkId::Stub("a".into(), true)), Ok(Some(100_000)));
        assert_eq!(rate(LinkId::Stub("a".into(), false)), Ok(None));
        assert_eq!(rate(LinkId::Line("b".into(), "a".into())), Ok(Some(1_000_000)));
        assert!(rate(LinkId::Stub("c".into(), true)).is_err());
    }

    #[test]
    fn impairments_apply_to_one_direction_and_are_counted() {
        let mut router = Router::new(two(), PortKind::Cluster, 1);
        let impairments = Impairments {
            burst: Some("10%/50%".parse().unwrap()),
            duplicate: 0.2,
            corrupt: 0.1,
            reorder: Some("5%/3ms".parse().unwrap()),
            trace: None,
        };
        let change = RouterChange::Impair { from: "a".into(), to: "b".into(), impairments };
        router.change(&change, Duration::ZERO).unwrap();
        let (mut arrived, mut wrong) = (0, 0);
        for step in 0..10_000 {
            let now = 2 * step * MS;
            router.accept(0, packet([10, 77, 2, 1], 1000), now);
            router.accept(1, packet([10, 77, 1, 1], 1000), now);
            while let Some(due) = router.due(now) {
                arrived += u64::from(due.to == 1);
                wrong += u64::from(due.packet[20..].iter().any(|byte| *byte != 0));
            }
        }
        while router.due(Duration::MAX).is_some_and(|due| {
            arrived += u64::from(due.to == 1);
            wrong += u64::from(due.packet[20..].iter().any(|byte| *byte != 0));
            true
        }) {}
        let counts = router.counts();
        let (there, back) = (counts[0].2, counts[1].2);
        assert_eq!(arrived, there.packets - there.burst + there.duplicated);
        assert_eq!((there.lost, back.lost, back.duplicated), (there.burst, 0, 0));
        assert!((1400..1950).contains(&there.burst), "{there:?}");
        assert!(wrong >= there.corrupted && there.corrupted > 700, "{there:?}, {wrong}");
        assert!((300..550).contains(&there.reordered), "{there:?}");
    }

    #[test]
    fn a_border_judges_packets_when_they_arrive() {
        let mut router = Router::new(two(), PortKind::Cluster, 1);
        let rules = BorderRules { nat: None, firewall: true };
        let change = RouterChange::Border { cluster: "b".into(), rules };
        router.change(&change, Duration::ZERO).unwrap();
        let datagram = |from: [u8; 4], to: [u8; 4]| {
            let mut packet = packet(to, 40);
            packet[9] = 17;
            packet[12..16].copy_from_slice(&from);
            packet
        };
        let (a, b) = ([10, 77, 1, 1], [10, 77, 2, 1]);
        assert!(router.accept(0, datagram(a, b), Duration::ZERO));
        assert_eq!(router.due(20 * MS), None);
        // This one is under way when the answer's way opens.
        assert!(router.accept(0, datagram(a, b), 20 * MS));
        assert!(router.accept(1, datagram(b, a), 25 * MS));
        assert_eq!(router.due(31 * MS).map(|due| due.to), Some(1));
        let counts = router.counts();
        assert_eq!((counts[0].2.lost, counts[0].2.filtered), (1, 1));
    }

    proptest! {
        #[test]
        fn accepted_packets_leave_once_in_order_of_time(
            sent in prop::collection::vec(
                (0usize..4, 1u8..4, 0u8..4, 20usize..1500, 0u64..3000), 1..200
            )
        ) {
            let mut router = Router::new(two(), PortKind::Node, 7);
            let (mut now, mut taken, mut left, mut last) = (Duration::ZERO, 0, 0, Duration::ZERO);
            for (from, cluster, node, len, pause_us) in sent {
                now += Duration::from_micros(pause_us);
                while let Some(due) = router.due(now) {
                    prop_assert!(due.at <= now && due.at >= last);
                    (last, left) = (due.at, left + 1);
                }
                taken += u32::from(router.accept(from, packet([10, 77, cluster, node], len), now));
                // A packet that arrives later may be due earlier, but never in the past.
                prop_assert!(router.next_at().is_none_or(|at| at >= now));
                last = Duration::ZERO;
            }
            while router.due(Duration::MAX).is_some() {
                left += 1;
            }
            prop_assert_eq!(taken, left);
            let lost: u64 = router.counts().iter().map(|(.., counts)| counts.lost).sum();
            let packets: u64 = router.counts().iter().map(|(.., counts)| counts.packets).sum();
            prop_assert_eq!(packets - lost, u64::from(left));
        }
    }
}
