//! What a file's links stand for in the link model: one meaning for the simulator, the router, shaped sockets and kernel shaping.
//!
//! Pure: no I/O, no clock.

use std::fmt::Write as _;
use std::net::Ipv4Addr;
use std::time::Duration;

use crate::config::{Line, Rate, SiteSection, TopologyConfig, profile};
use crate::id::{ClusterId, NodeId};
use crate::net::{LinkProfile, Paths};

/// A queue holds what a link carries in this time..
const QUEUE_TIME: Duration = Duration::from_millis(100);
/// ..and no less than so many bytes.
const QUEUE_LEAST: u64 = 100_000;

/// A link with a rate and a queue in front of it, which holds what passes in 100 ms where nothing else is said.
pub fn limited(profile: LinkProfile, rate: Option<Rate>, queue: Option<u32>) -> LinkProfile {
    match rate.map(|rate| rate.bytes_per_second() as u64) {
        None => profile,
        Some(rate) => {
            let usual = (rate as f64 * QUEUE_TIME.as_secs_f64()) as u64;
            let queue = queue.map_or(usual.max(QUEUE_LEAST), u64::from);
            profile.rate(rate).queue(usize::try_from(queue).unwrap_or(usize::MAX))
        }
    }
}

/// Both directions of a line: from the cluster that is named first to the other, and back.
pub fn directions(line: &Line) -> [LinkProfile; 2] {
    let way = LinkProfile::default().delay(line.rtt / 2).jitter(line.jitter).loss(line.loss);
    let way = way.reorder(line.reorder);
    [line.bandwidth, line.bandwidth_back].map(|rate| limited(way.clone(), rate, line.queue))
}

/// A cluster of a [`Topology`].
#[derive(Clone, Debug, PartialEq)]
pub struct Site {
    /// Its name.
    pub name: ClusterId,
    /// The third number of its nodes' addresses, from 1.
    pub number: u8,
    /// How many nodes it has.
    pub nodes: u8,
    /// What it is like inside.
    pub inside: LinkProfile,
    /// What all traffic out of it goes through first, if that is limited.
    pub up: Option<LinkProfile>,
    /// What all traffic into it goes through last, if that is limited.
    pub down: Option<LinkProfile>,
}

/// Something that comes and goes by itself.
#[derive(Clone, Debug, PartialEq)]
pub struct Flap {
    /// The line from this cluster..
    pub from: ClusterId,
    /// ..to this one, or the uplink of the first where they are the same; in both directions.
    pub to: ClusterId,
    /// For how long it carries.
    pub up: Duration,
    /// And then nothing.
    pub down: Duration,
}

/// Clusters, their addresses and links, with nothing left to a default.
#[derive(Clone, Debug, PartialEq)]
pub struct Topology {
    /// Its name.
    pub name: String,
    /// The first two numbers of all addresses.
    pub prefix: [u8; 2],
    /// Its clusters, in the order of the file.
    pub sites: Vec<Site>,
    /// The lines between two clusters, each direction by itself, in order.
    pub lines: Vec<(ClusterId, ClusterId, LinkProfile)>,
    /// What comes and goes.
    pub flaps: Vec<Flap>,
}

fn inside(site: &SiteSection) -> LinkProfile {
    let named = site.profile.as_deref().and_then(profile).map(Line::from);
    let plain = named.map_or_else(LinkProfile::lan, |line| directions(&line)[0].clone());
    match site.delay {
        Some(delay) => plain.delay(delay.get()),
        None => plain,
    }
}

impl Topology {
    /// What a file describes.
    pub fn of(config: &TopologyConfig) -> Self {
        let mut flaps = Vec::new();
        let site = |(at, site): (usize, &SiteSection)| {
            let name = ClusterId::from(site.name.as_str());
            let uplink = site.uplink_profile.as_deref().and_then(profile).map(Line::from);
            let (out, into, queue) = match &uplink {
                Some(line) => (line.bandwidth, line.bandwidth_back, line.queue),
                None => (site.uplink, site.uplink, None),
            };
            if let Some((up, down)) = uplink.and_then(|line| line.flap) {
                flaps.push(Flap { from: name.clone(), to: name.clone(), up, down });
            }
            let stub =
                |rate: Option<Rate>| rate.map(|_| limited(LinkProfile::default(), rate, queue));
            Site {
                name,
                // A topology has at most 250 of each.
                number: u8::try_from(at + 1).unwrap_or(u8::MAX),
                nodes: u8::try_from(site.nodes.get()).unwrap_or(u8::MAX),
                inside: inside(site),
                up: stub(out),
                down: stub(into),
            }
        };
        let sites: Vec<Site> = config.cluster.iter().enumerate().map(site).collect();
        let mut lines = Vec::new();
        for a in &sites {
            for b in sites.iter().filter(|b| b.name != a.name) {
                let line = config.line(a.name.as_str(), b.name.as_str());
                let [there, _] = directions(&line);
                lines.push((a.name.clone(), b.name.clone(), there));
                if let Some((up, down)) = line.flap.filter(|_| a.number < b.number) {
                    flaps.push(Flap { from: a.name.clone(), to: b.name.clone(), up, down });
                }
            }
        }
        let (name, prefix) = (config.name.to_string(), config.net.prefix());
        Self { name, prefix, sites, lines, flaps }
    }

    /// A cluster.
    pub fn site(&self, name: &str) -> Option<&Site> {
        self.sites.iter().find(|site| site.name.as_str() == name)
    }

    /// The address that ends in these two numbers.
    pub fn address(&self, third: u8, fourth: u8) -> Ipv4Addr {
        let [first, second] = self.prefix;
        Ipv4Addr::new(first, second, third, fourth)
    }

    /// A node's cluster and address, by its name.
    pub fn node(&self, name: &str) -> Option<(&Site, Ipv4Addr)> {
        let (cluster, number) = name.rsplit_once('-')?;
        let site = self.site(cluster)?;
        let number = number.parse().ok().filter(|number| (1..=site.nodes).contains(number))?;
        Some((site, self.address(site.number, number)))
    }

    /// All nodes with their addresses, in the order of the file.
    pub fn nodes(&self) -> impl Iterator<Item = (NodeId, &Site, Ipv4Addr)> {
        self.sites.iter().flat_map(move |site| {
            (1..=site.nodes).map(move |n| {
                let name = NodeId::from(format!("{}-{n}", site.name));
                (name, site, self.address(site.number, n))
            })
        })
    }

    /// Its links, whose losses and jitter follow from `seed`.
    pub fn paths(&self, seed: u64) -> Paths {
        let mut paths = Paths::new(seed, LinkProfile::lan(), LinkProfile::default());
        let start = Duration::ZERO;
        for site in &self.sites {
            let own = (site.name.clone(), site.name.clone());
            paths.set_line(&own, site.inside.clone(), start);
            for (up, stub) in [(true, &site.up), (false, &site.down)] {
                if let Some(stub) = stub {
                    paths.set_stub(&site.name, up, stub.clone(), start);
                }
            }
        }
        for (from, to, line) in &self.lines {
            paths.set_line(&(from.clone(), to.clone()), line.clone(), start);
        }
        paths
    }

    /// As a table of plain lines: what `netem-scripts/kernel.sh` reads.
    pub fn table(&self) -> String {
        let [first, second] = self.prefix;
        let mut table = format!("net {first}.{second}\n");
        for Site { name, number, nodes, .. } in &self.sites {
            // Writing to text does not fail.
            let _ = writeln!(table, "cluster {name} {number} {nodes}");
        }
        for site in &self.sites {
            let plain = LinkProfile::default();
            for (up, stub) in [(true, &site.up), (false, &site.down)] {
                table += &stub_row(&site.name, up, stub.as_ref().unwrap_or(&plain));
            }
        }
        let inside = |site: &Site| (site.name.clone(), site.name.clone(), site.inside.clone());
        for (from, to, link) in self.sites.iter().map(inside).chain(self.lines.iter().cloned()) {
            table += &line_row(&from, &to, &link);
        }
        table
    }
}

fn rate_word(link: &LinkProfile) -> String {
    link.rate.map_or("-".to_owned(), |rate| rate.to_string())
}

/// The row of a [table](Topology::table) for all that leaves a cluster (`up`), or enters it.
pub fn stub_row(cluster: &ClusterId, up: bool, link: &LinkProfile) -> String {
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
    "#;

    fn topology() -> Topology {
        let config = load::<TopologyConfig>(&Sources::of_text("three.toml", TEXT));
        Topology::of(&config.expect("it is right").value)
    }

    #[test]
    fn nodes_have_addresses_and_links_their_numbers() {
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
        let table = topology.table();
        for line in [
            "net 10.77",
            "cluster b 2 3",
            "uplink a 5000000 500000",
            "downlink c - 100000",
            "link a b 20000 0 0 2000000 200000 0",
            "link c c 100 0 0 - 100000 0",
        ] {
            assert!(table.lines().any(|other| other == line), "{line} is not in\n{table}");
        }
    }

    #[test]
    fn a_path_is_its_links_in_series() {
        let mut paths = topology().paths(1);
        let way = paths.path(&("a".into(), "b".into()));
        assert_eq!(way.len(), 3);
        // 1000 bytes at 5 MB/s, 2 MB/s and 100 kB/s, and 20 ms.
        let at = paths.offer(&way, Duration::ZERO, 1000).unwrap();
        assert_eq!(at, Duration::from_micros(200 + 500 + 20_000 + 10_000));
        let inside = paths.path(&("c".into(), "c".into()));
        assert_eq!(paths.offer(&inside, Duration::ZERO, 1000), Some(Duration::from_micros(100)));
    }
}
