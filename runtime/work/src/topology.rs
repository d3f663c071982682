//! The meaning of a topology file's links in the link model, for the simulator, the router, shaped
//! sockets and kernel shaping.
//!
//! Pure: no I/O, no clock.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::net::Ipv4Addr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::config::{ByteRate, LinkProperties, SiteSection, TopologyConfig, profile};
use crate::id::{ClusterId, NodeId};
use crate::net::{LinkProfile, Paths};

/// The time that a queue takes to drain at the link's rate.
const QUEUE_TIME: Duration = Duration::from_millis(100);
/// The minimum capacity of a queue in bytes.
const QUEUE_MIN: u64 = 100_000;

/// Limits a link by a rate with a queue in front of it; without a given queue, one of 100 ms.
pub fn limited(profile: LinkProfile, rate: Option<ByteRate>, queue: Option<u32>) -> LinkProfile {
    let queue = queue.map(|queue| usize::try_from(queue).unwrap_or(usize::MAX));
    match (rate.map(|rate| rate.bytes_per_second() as u64), queue) {
        (None, None) => profile,
        // The queue takes effect once there is a rate.
        (None, Some(queue)) => profile.queue(queue),
        (Some(rate), Some(queue)) => profile.rate(rate).queue(queue),
        (Some(rate), None) => profile.rate(rate).queue(usual_queue(Some(rate))),
    }
}

/// The default capacity in bytes of a queue in front of a rate in bytes a second.
pub fn usual_queue(rate: Option<u64>) -> usize {
    let default_size = rate.map_or(0, |rate| (rate as f64 * QUEUE_TIME.as_secs_f64()) as u64);
    usize::try_from(default_size.max(QUEUE_MIN)).unwrap_or(usize::MAX)
}

/// Both directions of a line: from the cluster that is named first to the other, and back.
pub fn directions(line: &LinkProperties) -> [LinkProfile; 2] {
    let direction = LinkProfile::default().delay(line.rtt / 2).jitter(line.jitter).loss(line.loss);
    let direction = direction.reorder(line.reorder);
    [line.bandwidth, line.bandwidth_back].map(|rate| limited(direction.clone(), rate, line.queue))
}

/// Both directions of a cluster's uplink with this profile: out and in. Only its rates and its
/// queue are used. `None` for a direction without a limit.
pub fn uplink(line: &LinkProperties) -> [Option<LinkProfile>; 2] {
    let stub = |rate: Option<ByteRate>| {
        rate.map(|rate| limited(LinkProfile::default(), Some(rate), line.queue))
    };
    [line.bandwidth, line.bandwidth_back].map(stub)
}

/// The identifier of one direction of a link.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LinkId {
    /// The line from a cluster to another, or inside a cluster if both are the same.
    Line(ClusterId, ClusterId),
    /// The first link of all traffic out of a cluster (`true`), or the last link of traffic into
    /// it.
    Stub(ClusterId, bool),
}

/// A cluster of a [`Topology`].
#[derive(Clone, Debug, PartialEq)]
pub struct TopologyCluster {
    /// The name of the cluster.
    pub name: ClusterId,
    /// The third number of its nodes' addresses, from 1.
    pub number: u8,
    /// The number of its nodes.
    pub nodes: u8,
    /// The link profile inside the cluster.
    pub inside: LinkProfile,
    /// The first link of all traffic out of it, if that is limited.
    pub up: Option<LinkProfile>,
    /// The last link of all traffic into it, if that is limited.
    pub down: Option<LinkProfile>,
}

/// A link that fails and recovers periodically, in both directions.
#[derive(Clone, Debug, PartialEq)]
pub struct LinkFlap {
    /// One end of the line.
    pub from: ClusterId,
    /// The other end of the line; the same cluster means its uplink.
    pub to: ClusterId,
    /// The time for which the link works.
    pub up: Duration,
    /// The time for which it then fails.
    pub down: Duration,
}

/// Clusters, their addresses and links, with all defaults filled in.
#[derive(Clone, Debug, PartialEq)]
pub struct Topology {
    /// The name of the topology.
    pub name: String,
    /// The first two numbers of all addresses.
    pub prefix: [u8; 2],
    /// The clusters, in the order of the file.
    pub sites: Vec<TopologyCluster>,
    /// The lines between pairs of clusters, each direction separately, in order.
    pub lines: Vec<(ClusterId, ClusterId, LinkProfile)>,
    /// The links that fail periodically.
    pub flaps: Vec<LinkFlap>,
    /// Links with a configured queue; the queue of others follows from their rate.
    pub queues: BTreeSet<LinkId>,
    /// Links whose rate is configured in bits a second, and is shown so.
    pub bit_rates: BTreeSet<LinkId>,
}

/// The profile inside a cluster, and whether its queue was configured.
fn inside(site: &SiteSection) -> (LinkProfile, bool) {
    let named = site.profile.as_deref().and_then(profile).map(LinkProperties::from);
    let is_given = named.as_ref().is_some_and(|line| line.queue.is_some());
    let plain = named.map_or_else(LinkProfile::lan, |line| directions(&line)[0].clone());
    match site.delay {
        Some(delay) => (plain.delay(delay.get()), is_given),
        None => (plain, is_given),
    }
}

impl Topology {
    /// Builds the topology that a file describes.
    pub fn from_config(config: &TopologyConfig) -> Self {
        let (mut flaps, mut queues) = (Vec::new(), BTreeSet::new());
        let mut bit_rates = BTreeSet::new();
        let is_in_bits = |rate: Option<ByteRate>| rate.is_some_and(ByteRate::is_in_bits);
        let site = |(at, site): (usize, &SiteSection)| {
            let name = ClusterId::from(site.name.as_str());
            let named = site.uplink_profile.as_deref().and_then(profile).map(LinkProperties::from);
            let [up, down] = match &named {
                Some(line) => uplink(line),
                None => [site.uplink; 2]
                    .map(|rate| rate.map(|rate| limited(LinkProfile::default(), Some(rate), None))),
            };
            let rates = named
                .as_ref()
                .map_or([site.uplink; 2], |line| [line.bandwidth, line.bandwidth_back]);
            for (up, rate) in [true, false].into_iter().zip(rates) {
                if is_in_bits(rate) {
                    bit_rates.insert(LinkId::Stub(name.clone(), up));
                }
            }
            if named.as_ref().is_some_and(|line| line.queue.is_some()) {
                queues.extend([true, false].map(|up| LinkId::Stub(name.clone(), up)));
            }
            if let Some((up, down)) = named.and_then(|line| line.up_and_down) {
                flaps.push(LinkFlap { from: name.clone(), to: name.clone(), up, down });
            }
            let (inside, is_given) = inside(site);
            if is_given {
                queues.insert(LinkId::Line(name.clone(), name.clone()));
            }
            TopologyCluster {
                name,
                // A topology has at most 250 of each.
                number: u8::try_from(at + 1).unwrap_or(u8::MAX),
                nodes: u8::try_from(site.nodes.get()).unwrap_or(u8::MAX),
                inside,
                up,
                down,
            }
        };
        let sites: Vec<TopologyCluster> = config.cluster.iter().enumerate().map(site).collect();
        let mut lines = Vec::new();
        for a in &sites {
            for b in sites.iter().filter(|b| b.name != a.name) {
                let line = config.line(a.name.as_str(), b.name.as_str());
                let [there, _] = directions(&line);
                lines.push((a.name.clone(), b.name.clone(), there));
                if is_in_bits(line.bandwidth) {
                    bit_rates.insert(LinkId::Line(a.name.clone(), b.name.clone()));
                }
                if line.queue.is_some() {
                    queues.insert(LinkId::Line(a.name.clone(), b.name.clone()));
                }
                if let Some((up, down)) = line.up_and_down.filter(|_| a.number < b.number) {
                    flaps.push(LinkFlap { from: a.name.clone(), to: b.name.clone(), up, down });
                }
            }
        }
        let (name, prefix) = (config.name.to_string(), config.net.prefix());
        Self { name, prefix, sites, lines, flaps, queues, bit_rates }
    }

    /// The cluster of this name.
    pub fn site(&self, name: &str) -> Option<&TopologyCluster> {
        self.sites.iter().find(|site| site.name.as_str() == name)
    }

    /// The address that ends in these two numbers.
    pub fn address(&self, third: u8, fourth: u8) -> Ipv4Addr {
        let [first, second] = self.prefix;
        Ipv4Addr::new(first, second, third, fourth)
    }

    /// The cluster and address of the node of this name.
    pub fn node(&self, name: &str) -> Option<(&TopologyCluster, Ipv4Addr)> {
        let (cluster, number) = name.rsplit_once('-')?;
        let site = self.site(cluster)?;
        let number = number.parse().ok().filter(|number| (1..=site.nodes).contains(number))?;
        Some((site, self.address(site.number, number)))
    }

    /// All nodes with their addresses, in the order of the file.
    pub fn nodes(&self) -> impl Iterator<Item = (NodeId, &TopologyCluster, Ipv4Addr)> {
        self.sites.iter().flat_map(move |site| {
            (1..=site.nodes).map(move |n| {
                let name = NodeId::from(format!("{}-{n}", site.name));
                (name, site, self.address(site.number, n))
            })
        })
    }

    /// The paths of the link model, whose losses and jitter follow from `seed`.
    pub fn paths(&self, seed: u64) -> Paths {
        let mut paths = Paths::new(seed, LinkProfile::lan(), LinkProfile::default());
        let start = Duration::ZERO;
        for site in &self.sites {
            let own = (site.name.clone(), site.name.clone());
            paths.set_line(&own, site.inside.clone(), start);
            for (up, stub) in [(true, &site.up), (false, &site.down)] {
                if let Some(stub) = stub {
                    paths.set_access_link(&site.name, up, stub.clone(), start);
                }
            }
        }
        for (from, to, line) in &self.lines {
            paths.set_line(&(from.clone(), to.clone()), line.clone(), start);
        }
        paths
    }

    /// The topology as a table of plain lines, which `netem-scripts/kernel.sh` reads.
    pub fn table(&self) -> String {
        let [first, second] = self.prefix;
        let mut table = format!("net {first}.{second}\n");
        for TopologyCluster { name, number, nodes, .. } in &self.sites {
            // A write to a string does not fail.
            let _ = writeln!(table, "cluster {name} {number} {nodes}");
        }
        for site in &self.sites {
            let plain = LinkProfile::default();
            for (up, stub) in [(true, &site.up), (false, &site.down)] {
                table += &uplink_row(&site.name, up, stub.as_ref().unwrap_or(&plain));
            }
        }
        let inside =
            |site: &TopologyCluster| (site.name.clone(), site.name.clone(), site.inside.clone());
        for (from, to, link) in self.sites.iter().map(inside).chain(self.lines.iter().cloned()) {
            table += &line_row(&from, &to, &link);
        }
        table
    }
}

fn rate_word(link: &LinkProfile) -> String {
    link.rate.map_or("-".to_owned(), |rate| rate.to_string())
}

/// The row of a [table](Topology::table) for all traffic out of a cluster (`up`), or into it.
pub fn uplink_row(cluster: &ClusterId, up: bool, link: &LinkProfile) -> String {
    let word = if up { "uplink" } else { "downlink" };
    let rate = if link.up { rate_word(link) } else { "0".to_owned() };
    format!("{word} {cluster} {rate} {}\n", link.queue)
}

/// The row of a [table](Topology::table) for one direction of a line.
pub fn line_row(from: &ClusterId, to: &ClusterId, link: &LinkProfile) -> String {
    let LinkProfile { delay_us, jitter_us, loss, queue, reorder, up, .. } = link;
    let (rate, reorder) = (rate_word(link), u8::from(*reorder));
    let loss = if *up { *loss } else { 1.0 };
    format!("link {from} {to} {delay_us} {jitter_us} {loss} {rate} {queue} {reorder}\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Sources, load};

    const TEXT: &str = r#"
        name = "three"
        [wide]
        profile = "wan-50"
        rtt = "40ms"
        loss = 0.0
        jitter = "0ms"
        bandwidth = "2MB/s"
        [[cluster]]
        name = "a"
        nodes = 2
        uplink = "5MB/s"
        [[cluster]]
        name = "b"
        nodes = 3
        uplink_profile = "congested-uplink-100KBps"
        [[cluster]]
        name = "c"
        delay = "100us"
        [[link]]
        between = ["c", "a"]
        profile = "flapping"
        queue = 300000
    "#;

    fn topology() -> Topology {
        let config = load::<TopologyConfig>(&Sources::of_text("three.toml", TEXT));
        Topology::from_config(&config.expect("it is right").value)
    }

    #[test]
    fn nodes_have_addresses_and_links_have_profiles() {
        let topology = topology();
        let names: Vec<String> = topology.nodes().map(|(node, ..)| node.to_string()).collect();
        assert_eq!(names, ["a-1", "a-2", "b-1", "b-2", "b-3", "c-1"]);
        assert_eq!(topology.node("b-3").unwrap().1, Ipv4Addr::new(10, 77, 2, 3));
        for none in ["b-4", "b-0", "d-1", "b", "b-x"] {
            assert!(topology.node(none).is_none(), "{none}");
        }
        assert_eq!(topology.site("c").unwrap().inside.delay_us, 100);
        assert_eq!(topology.flaps.len(), 1);
        assert_eq!((topology.flaps[0].from.as_str(), topology.flaps[0].to.as_str()), ("a", "c"));
        let given = [
            LinkId::Line("a".into(), "c".into()),
            LinkId::Line("c".into(), "a".into()),
            LinkId::Stub("b".into(), false),
            LinkId::Stub("b".into(), true),
        ];
        assert_eq!(Vec::from_iter(topology.queues.clone()), given);
        let table = topology.table();
        for line in [
            "net 10.77",
            "cluster b 2 3",
            "uplink a 5000000 500000",
            "downlink c - 100000",
            "link a b 20000 0 0 2000000 200000 0",
            "link c c 100 0 0 - 100000 0",
            "link a c 15000 1000 0 12500000 300000 0",
        ] {
            assert!(table.lines().any(|other| other == line), "{line} is not in\n{table}");
        }
    }

    #[test]
    fn a_path_is_its_links_in_series() {
        let mut paths = topology().paths(1);
        let direction = paths.path(&("a".into(), "b".into()));
        assert_eq!(direction.len(), 3);
        // 1000 bytes at 5 MB/s, 2 MB/s and 100 kB/s, and 20 ms.
        let at = paths.offer(&direction, Duration::ZERO, 1000).unwrap();
        assert_eq!(at, Duration::from_micros(200 + 500 + 20_000 + 10_000));
        let inside = paths.path(&("c".into(), "c".into()));
        assert_eq!(paths.offer(&inside, Duration::ZERO, 1000), Some(Duration::from_micros(100)));
    }
}
