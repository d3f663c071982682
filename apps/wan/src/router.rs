//! The router: which packet leaves by which port, and when. No I/O, no clock.
//!
//! A port is where packets come from and go to: a node's network interface, or that of a whole cluster. What lies between two ports
//! are the links of their clusters in series. Must not know how a packet came here.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use springtide_runtime::id::ClusterId;
use springtide_runtime::net::{LinkProfile, Path, Paths};
use springtide_runtime::topology::{LinkId, Site, Topology};

/// Packets that may be on the way at most: beyond it they are dropped, and counted, however long a queue a file asks for.
const MOST: usize = 1 << 20;

/// A port's place.
pub type Port = usize;

/// Whether a port is a node's, or that of all nodes of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PortOf {
    /// Each node has one: what is inside a cluster passes the router too.
    Node,
    /// A cluster's nodes share one: what is inside never comes here.
    Cluster,
}

/// What became of packets from one cluster to another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Packets taken.
    pub packets: u64,
    /// Their bytes, IP headers included.
    pub bytes: u64,
    /// Of those, lost by the link's will or for want of room.
    pub lost: u64,
}

struct Parcel {
    at: Duration,
    seq: u64,
    to: Port,
    packet: Vec<u8>,
}

impl PartialEq for Parcel {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.seq) == (other.at, other.seq)
    }
}
impl Eq for Parcel {}
impl PartialOrd for Parcel {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Parcel {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.seq).cmp(&(other.at, other.seq))
    }
}

/// What travels between two clusters, in one direction.
struct Way {
    path: Path,
    cut: bool,
    counts: Counts,
}

/// A packet that is due.
#[derive(Debug, PartialEq, Eq)]
pub struct Due {
    /// By which port it leaves.
    pub to: Port,
    /// Itself.
    pub packet: Vec<u8>,
    /// When it should.
    pub at: Duration,
}

/// Something about the network is to change.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Change {
    /// The line from a cluster to another, or inside one.
    Line {
        /// From this cluster.
        from: ClusterId,
        /// To this one.
        to: ClusterId,
        /// What it is like from now on.
        profile: LinkProfile,
    },
    /// What all traffic out of a cluster goes through first, or into it last.
    Stub {
        /// Which cluster.
        cluster: ClusterId,
        /// Out of it.
        up: bool,
        /// What it is like from now on.
        profile: LinkProfile,
    },
    /// Two clusters do not reach each other, or do again. One and the same: the cluster and all others.
    Cut {
        /// Between this one,
        a: ClusterId,
        /// and this one.
        b: ClusterId,
        /// Whether it is cut.
        cut: bool,
    },
}

impl Change {
    /// Whom it is about: two clusters, or twice the same.
    fn clusters(&self) -> [&ClusterId; 2] {
        match self {
            Self::Line { from: a, to: b, .. } | Self::Cut { a, b, .. } => [a, b],
            Self::Stub { cluster, .. } => [cluster, cluster],
        }
    }
}

/// Whether all clusters that these changes name are there.
pub(crate) fn check<'a>(
    changes: &[Change],
    known: impl Iterator<Item = &'a ClusterId> + Clone,
) -> Result<(), UnknownCluster> {
    let mut names = changes.iter().flat_map(Change::clusters);
    names.try_for_each(|name| place_of(name, known.clone()).map(drop))
}

/// What a change names is not there.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no cluster named {name:?}: the topology has {known}")]
pub struct UnknownCluster {
    name: String,
    known: String,
}

/// Where a cluster is among those that there are.
pub(crate) fn place_of<'a>(
    name: &ClusterId,
    known: impl Iterator<Item = &'a ClusterId> + Clone,
) -> Result<usize, UnknownCluster> {
    known.clone().position(|other| other == name).ok_or_else(|| {
        let known: Vec<&str> = known.map(ClusterId::as_str).collect();
        UnknownCluster { name: name.to_string(), known: known.join(", ") }
    })
}

/// Whether a cut between two clusters, or of one from all others where both are the same, lies on this way.
pub(crate) fn is_between<T: PartialEq>((a, b): (&T, &T), (from, to): (&T, &T)) -> bool {
    match a == b {
        true => (from == a) != (to == a),
        false => [(a, b), (b, a)].contains(&(from, to)),
    }
}

/// The network as a state machine.
pub struct Router {
    topology: Topology,
    /// The cluster of each port, by its place in the topology.
    port_site: Vec<usize>,
    /// The port of each address: by cluster and node.
    by_address: BTreeMap<(u8, u8), Port>,
    paths: Paths,
    ways: BTreeMap<(usize, usize), Way>,
    on_the_way: BinaryHeap<Reverse<Parcel>>,
    seq: u64,
    unroutable: u64,
}

impl Router {
    /// A router for this topology; losses and jitter follow from `seed`.
    pub fn new(topology: Topology, ports: PortOf, seed: u64) -> Self {
        let mut paths = topology.paths(seed);
        let (mut port_site, mut by_address) = (Vec::new(), BTreeMap::new());
        for (at, site) in topology.sites.iter().enumerate() {
            if ports == PortOf::Cluster {
                port_site.push(at);
            }
            for node in 1..=site.nodes {
                if ports == PortOf::Node {
                    port_site.push(at);
                }
                by_address.insert((site.number, node), port_site.len() - 1);
            }
            if ports == PortOf::Cluster {
                // The address of the interface itself: what is not bound to a node's.
                by_address.insert((site.number, GATE), port_site.len() - 1);
            }
        }
        let mut ways = BTreeMap::new();
        for (from, a) in topology.sites.iter().enumerate() {
            for (to, b) in topology.sites.iter().enumerate() {
                let path = paths.path(&(a.name.clone(), b.name.clone()));
                ways.insert((from, to), Way { path, cut: false, counts: Counts::default() });
            }
        }
        let (on_the_way, seq, unroutable) = (BinaryHeap::new(), 0, 0);
        Self { topology, port_site, by_address, paths, ways, on_the_way, seq, unroutable }
    }

    /// How many ports it has, in the order of clusters and nodes of the topology.
    pub fn ports(&self) -> usize {
        self.port_site.len()
    }

    /// A packet came from a port. Whether it is on its way now.
    pub fn take(&mut self, from: Port, packet: Vec<u8>, now: Duration) -> bool {
        // Linux asks for IPv6 routers of itself: nothing that anybody sent.
        if packet.first().is_none_or(|byte| byte >> 4 != 4) {
            return false;
        }
        let Some(to) = self.port_of(&packet) else {
            self.unroutable += 1;
            return false;
        };
        let sites = (self.port_site[from], self.port_site[to]);
        let Some(way) = self.ways.get_mut(&sites) else { return false };
        way.counts.packets += 1;
        way.counts.bytes += packet.len() as u64;
        let passes = !way.cut && self.on_the_way.len() < MOST;
        let at = passes.then(|| self.paths.offer(&way.path, now, packet.len())).flatten();
        let Some(at) = at else {
            way.counts.lost += 1;
            return false;
        };
        self.seq += 1;
        self.on_the_way.push(Reverse(Parcel { at, seq: self.seq, to, packet }));
        true
    }

    /// Where an IPv4 packet goes.
    fn port_of(&self, packet: &[u8]) -> Option<Port> {
        let to = packet.get(16..20)?;
        let ours = to[..2] == self.topology.prefix;
        ours.then(|| self.by_address.get(&(to[2], to[3])).copied()).flatten()
    }

    /// When the next packet is due.
    pub fn next_at(&self) -> Option<Duration> {
        self.on_the_way.peek().map(|Reverse(parcel)| parcel.at)
    }

    /// The next packet that is due.
    pub fn due(&mut self, now: Duration) -> Option<Due> {
        if self.next_at()? > now {
            return None;
        }
        let Reverse(Parcel { at, to, packet, .. }) = self.on_the_way.pop()?;
        Some(Due { to, packet, at })
    }

    /// Its clusters, in the order of the topology.
    pub fn clusters(&self) -> impl Iterator<Item = &ClusterId> + Clone {
        self.topology.sites.iter().map(|site| &site.name)
    }

    /// What a link is like. An uplink that was never limited is one without limits.
    ///
    /// # Errors
    /// A cluster is not there.
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
                stubs.find(|(of, way, _)| (*of, way) == (cluster, up)).map(|(.., profile)| profile)
            }
        };
        Ok(found.cloned().unwrap_or_default())
    }

    /// Changes it from now on. What is on its way keeps its time.
    ///
    /// # Errors
    /// A cluster is not there; nothing has changed.
    pub fn change(&mut self, change: &Change, now: Duration) -> Result<(), UnknownCluster> {
        let place = |name: &ClusterId| place_of(name, self.clusters());
        match change {
            Change::Line { from, to, profile } => {
                place(from)?;
                place(to)?;
                self.paths.set_line(&(from.clone(), to.clone()), profile.clone(), now);
            }
            Change::Stub { cluster, up, profile } => {
                place(cluster)?;
                self.paths.set_stub(cluster, *up, profile.clone(), now);
                // There may have been none.
                for ((from, to), way) in &mut self.ways {
                    let [from, to] = [from, to].map(|at| self.topology.sites[*at].name.clone());
                    way.path = self.paths.path(&(from, to));
                }
            }
            Change::Cut { a, b, cut } => {
                let (a, b) = (place(a)?, place(b)?);
                for ((from, to), way) in &mut self.ways {
                    if is_between((&a, &b), (from, to)) {
                        way.cut = *cut;
                    }
                }
            }
        }
        Ok(())
    }

    /// What became of packets so far, by cluster of the sender and of the receiver; those without any are left out.
    pub fn counts(&self) -> Vec<(&Site, &Site, Counts)> {
        let of = |at: &usize| &self.topology.sites[*at];
        let some = self.ways.iter().filter(|(_, way)| way.counts.packets > 0);
        some.map(|((from, to), way)| (of(from), of(to), way.counts)).collect()
    }

    /// All lines: from which cluster to which, what they are like, whether they are cut, and what they carried.
    pub fn lines(
        &self,
    ) -> impl Iterator<Item = (&ClusterId, &ClusterId, &LinkProfile, bool, Counts)> {
        self.ways.iter().filter_map(|((from, to), way)| {
            let [from, to] = [from, to].map(|at| &self.topology.sites[*at].name);
            let profile = self.paths.line_profile(&(from.clone(), to.clone()))?;
            Some((from, to, profile, way.cut, way.counts))
        })
    }

    /// Uplinks (true) and downlinks that are limited.
    pub fn stubs(&self) -> impl Iterator<Item = (&ClusterId, bool, &LinkProfile)> {
        self.paths.stub_profiles()
    }

    /// IPv4 packets that were for nobody here.
    pub fn unroutable(&self) -> u64 {
        self.unroutable
    }

    /// Packets on the way.
    pub fn on_the_way(&self) -> usize {
        self.on_the_way.len()
    }
}

/// The last number of the address of a cluster's own interface.
pub const GATE: u8 = 254;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use springtide_runtime::config::{Sources, TopologyConfig, load};

    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn topology(text: &str) -> Topology {
        let config = load::<TopologyConfig>(&Sources::of_text("t.toml", text));
        Topology::of(&config.unwrap_or_else(|error| panic!("{error}")).value)
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
    fn packets_arrive_when_their_links_say_at_the_port_of_their_address() {
        for (ports, count, port) in [(PortOf::Node, 4, 3), (PortOf::Cluster, 2, 1)] {
            let mut router = Router::new(two(), ports, 1);
            assert_eq!(router.ports(), count);
            assert!(router.take(0, packet([10, 77, 2, 2], 1000), Duration::ZERO));
            assert_eq!(router.next_at(), Some(11 * MS));
            assert_eq!(router.due(10 * MS), None);
            let due = router.due(12 * MS).expect("it is due");
            assert_eq!((due.to, due.at, due.packet.len()), (port, 11 * MS, 1000));
            let odd = [
                packet([10, 78, 2, 2], 100),
                packet([10, 77, 3, 1], 100),
                packet([10, 77, 2, 3], 100),
                vec![0x60; 60],
                vec![0x45; 12],
                Vec::new(),
            ];
            for odd in odd {
                assert!(!router.take(0, odd, Duration::ZERO));
            }
            assert_eq!((router.unroutable(), router.on_the_way()), (4, 0));
        }
        // Inside a cluster too, where each node has a port.
        let mut router = Router::new(two(), PortOf::Node, 1);
        assert!(router.take(0, packet([10, 77, 1, 2], 1000), Duration::ZERO));
        assert_eq!(router.due(MS).map(|due| (due.to, due.at)), Some((1, MS / 20)));
    }

    #[test]
    fn a_full_queue_drops_and_a_cut_lets_nothing_through() {
        let mut router = Router::new(two(), PortOf::Cluster, 1);
        let to_b = || packet([10, 77, 2, 1], 1000);
        let taken = (0..20).filter(|_| router.take(0, to_b(), Duration::ZERO)).count();
        assert_eq!(taken, 10);
        let cut = |a: &str, b: &str, cut| Change::Cut { a: a.into(), b: b.into(), cut };
        router.change(&cut("b", "a", true), MS).unwrap();
        assert!(!router.take(0, to_b(), 1000 * MS));
        router.change(&cut("b", "a", false), MS).unwrap();
        router.change(&cut("b", "b", true), MS).unwrap();
        assert!(!router.take(0, to_b(), 1000 * MS));
        assert!(!router.take(1, packet([10, 77, 1, 1], 100), 1000 * MS));
        router.change(&cut("b", "b", false), MS).unwrap();
        assert!(router.take(0, to_b(), 1000 * MS));
        let told = router.counts();
        assert_eq!(told[0].2, Counts { packets: 23, bytes: 23_000, lost: 12 });
        let nobody = router.change(&cut("b", "c", true), MS).unwrap_err().to_string();
        assert_eq!(nobody, "there is no cluster named \"c\": the topology has a, b");
    }

    #[test]
    fn an_uplink_that_is_set_later_lies_on_all_ways_out() {
        let mut router = Router::new(two(), PortOf::Cluster, 1);
        let profile = LinkProfile::default().rate(100_000).queue(100_000);
        let stub = Change::Stub { cluster: "a".into(), up: true, profile };
        router.change(&stub, Duration::ZERO).unwrap();
        assert!(router.take(0, packet([10, 77, 2, 1], 1000), Duration::ZERO));
        assert_eq!(router.next_at(), Some(21 * MS));
        assert!(router.take(1, packet([10, 77, 1, 1], 1000), Duration::ZERO));
        assert_eq!(router.next_at(), Some(11 * MS));
        let rate = |link| router.profile(&link).map(|profile| profile.rate);
        assert_eq!(rate(LinkId::Stub("a".into(), true)), Ok(Some(100_000)));
        assert_eq!(rate(LinkId::Stub("a".into(), false)), Ok(None));
        assert_eq!(rate(LinkId::Line("b".into(), "a".into())), Ok(Some(1_000_000)));
        assert!(rate(LinkId::Stub("c".into(), true)).is_err());
    }

    proptest! {
        #[test]
        fn what_is_taken_leaves_once_in_order_of_its_time(
            sent in prop::collection::vec((0usize..4, 1u8..4, 0u8..4, 20usize..1500, 0u64..3000), 1..200)
        ) {
            let mut router = Router::new(two(), PortOf::Node, 7);
            let (mut now, mut taken, mut left, mut last) = (Duration::ZERO, 0, 0, Duration::ZERO);
            for (from, cluster, node, len, pause_us) in sent {
                now += Duration::from_micros(pause_us);
                while let Some(due) = router.due(now) {
                    prop_assert!(due.at <= now && due.at >= last);
                    (last, left) = (due.at, left + 1);
                }
                taken += u32::from(router.take(from, packet([10, 77, cluster, node], len), now));
                // What is taken later may be due earlier, but never in the past.
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
