//! A topology: the clusters and links of an emulated wide-area network, as a file.
//!
//! It defines the format, independent of its use.

use std::collections::BTreeMap;

use super::limits::{check_delay, check_rate};
use super::problem::nearest;
use super::profile::LinkProperties;
use super::scenario::{
    LineSection, WideSection, check_line, check_lines, check_profile, line_between,
};
use super::schema::{
    Fallback::{Absent, Elements, Is, Required, Section},
    section,
};
use super::units::{BoundedInt, ByteRate, Name, Pair, Subnet, Time};
use super::{CONFIG_VERSION, Checker, Config};

/// The most clusters, and the most nodes of each. Address 254 is a cluster's gateway, and 255 is
/// unused.
const CLUSTERS_MAX: u32 = 250;

section! {
    /// Clusters and the links between them.
    TopologyConfig {
        /// Version of the file format.
        config_version: BoundedInt<1, CONFIG_VERSION> = Is("1");
        /// Name of the topology.
        name: Name = Required("\"pair\"");
        /// Purpose of the topology, in a sentence.
        about: String = Is("\"\"");
        /// Addresses of the emulated network: node N of the file's cluster C has A.B.C.N. For
        /// shaped sockets use one of loopback, such as "127.77.0.0/16".
        net: Subnet = Is("\"10.77.0.0/16\"");
        /// Links between two clusters without an entry.
        wide: WideSection = Section;
        /// A cluster: nodes that share a local network and an uplink. One table each.
        cluster: Vec<SiteSection> = Elements(&[
            &[("name", "\"ams\""), ("nodes", "4"), ("uplink", "\"50MB/s\"")],
            &[("name", "\"del\""), ("nodes", "4")],
        ]);
        /// A link between two clusters. One table each.
        link: Vec<LineSection> = Elements(&[
            &[("between", "[\"ams\", \"del\"]"), ("profile", "\"wan-50\"")],
        ]);
    }

    /// A cluster of the topology.
    SiteSection {
        /// Name of the cluster; its nodes are called NAME-1, NAME-2 and so on.
        name: Name = Required("\"ams\"");
        /// Number of nodes.
        nodes: BoundedInt<1, 250> = Is("1");
        /// Named profile of the links within the cluster; default: a round trip of 100 us.
        profile: Option<String> = Absent("\"lan\"");
        /// One-way delay between two of its nodes, instead of the profile's.
        delay: Option<Time> = Absent("\"50us\"");
        /// Bandwidth of its uplink in each direction; default: no limit.
        uplink: Option<ByteRate> = Absent("\"100MB/s\"");
        /// Named profile of its uplink: `bandwidth` out, and `bandwidth_back` in.
        uplink_profile: Option<String> = Absent("\"congested-uplink-100KBps\"");
    }
}

impl TopologyConfig {
    /// A commented example with every key. It loads without error.
    pub fn template() -> String {
        super::template::<Self>(
            "# A topology for an emulated wide-area network. Every key is here with its default; \
             what is commented out is not set by\n\
             # default. Make it with: springtide wan up FILE\n\n",
        )
    }

    /// The link between two clusters, with the direction from `a` first.
    pub fn line(&self, a: &str, b: &str) -> LinkProperties {
        line_between(&self.link, &self.wide, self.cluster.iter().map(|site| &site.name), (a, b))
    }
}

impl Config for TopologyConfig {
    const WHAT: &'static str = "topology";

    fn check(&self, checker: &mut Checker<'_>) {
        let mut names = BTreeMap::new();
        for (i, site) in self.cluster.iter().enumerate() {
            let path = |key: &str| format!("cluster[{i}].{key}");
            let name = site.name.as_str();
            if let Some(first) = names.insert(name.to_owned(), i) {
                checker.tell_taken(&path("name"), &format!("cluster[{first}].name"), name);
            }
            check_profile(site.profile.as_deref(), &path("profile"), checker);
            check_profile(site.uplink_profile.as_deref(), &path("uplink_profile"), checker);
            check_delay(site.delay, &path("delay"), checker);
            check_rate(site.uplink, &path("uplink"), checker);
            if site.uplink.is_some() && site.uplink_profile.is_some() {
                checker
                    .report(&path("uplink_profile"), "give `uplink` or `uplink_profile`, not both");
            }
        }
        if self.cluster.is_empty() {
            checker.report("cluster", "there is no cluster: add a [[cluster]]");
        }
        if self.cluster.len() > CLUSTERS_MAX as usize {
            let reason = format!(
                "there are addresses for {CLUSTERS_MAX} clusters, found {}",
                self.cluster.len()
            );
            checker.report(&format!("cluster[{CLUSTERS_MAX}].name"), reason);
        }
        check_lines(&self.link, checker);
        for (i, line) in self.link.iter().enumerate() {
            let Pair(a, b) = &line.between;
            for name in [a, b] {
                if !names.contains_key(name.as_str()) {
                    let reason = format!("there is no cluster named \"{name}\"");
                    let meant = nearest(name.as_str(), names.keys().map(String::as_str));
                    checker.report_with_suggestion(&format!("link[{i}].between"), reason, meant);
                }
            }
        }
        check_line(&self.wide.own(), |key| format!("wide.{key}"), checker);
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Sources, load};
    use super::*;

    #[test]
    fn the_template_loads_and_errors_have_their_places() {
        let load = |text: &str| load::<TopologyConfig>(&Sources::of_text("t.toml", text));
        load(&TopologyConfig::template()).expect("it is right");
        let text = "name = \"x\"\nnet = \"8.8.0.0/16\"\n[wide]\nprofile = \"wan-5O\"\n\
            [[cluster]]\nname = \"a\"\nnodes = 251\n[[cluster]]\nname = \"a\"\nuplink = \"0B/s\"\n\
            [[link]]\nbetween = [\"a\", \"c\"]\n";
        let errors = load(text).expect_err("it is wrong").to_string();
        for part in
            ["t.toml:2:7: `net` must be a private network", "found \"8.8.0.0/16\"", "found 251"]
        {
            assert!(errors.contains(part), "{part} is not in\n{errors}");
        }
        let text = text.replace("8.8.0.0", "10.8.0.0").replace("251", "2");
        let errors = load(&text).expect_err("it is wrong").to_string();
        for part in [
            "t.toml:4:1: there is no profile named \"wan-5O\"",
            "did you mean `wan-50`?",
            "t.toml:9:1: there are two clusters named \"a\"; the other is on line 6",
            "t.toml:10:1: nothing passes at this rate",
            "t.toml:12:1: there is no cluster named \"c\"",
        ] {
            assert!(errors.contains(part), "{part} is not in\n{errors}");
        }
    }

    #[test]
    fn a_rate_below_a_byte_per_second_is_an_error_in_every_place() {
        let text = "name = \"x\"\n[wide]\nbandwidth = \"7bit/s\"\n\
            [[cluster]]\nname = \"a\"\nuplink = \"1bit/s\"\n\
            [[cluster]]\nname = \"b\"\nuplink = \"8bit/s\"\n\
            [[link]]\nbetween = [\"a\", \"b\"]\nbandwidth = \"1MB/s\"\n\
            bandwidth_back = \"0.5B/s\"\n";
        let errors = load::<TopologyConfig>(&Sources::of_text("t.toml", text)).expect_err("wrong");
        let lines: Vec<String> =
            errors.problems().iter().map(|problem| problem.to_string()).collect();
        for (errors, line) in lines.iter().zip([3, 6, 13]) {
            assert!(
                errors.starts_with(&format!("t.toml:{line}:1: nothing passes at this rate")),
                "{errors}"
            );
        }
        assert_eq!(lines.len(), 3, "{lines:?}");
    }

    #[test]
    fn a_link_is_the_same_from_both_ends_but_for_its_bandwidths() {
        let text = "name = \"x\"\n[wide]\nprofile = \"wan-50\"\n\
            bandwidth = \"2MB/s\"\nbandwidth_back = \"1MB/s\"\n\
            [[cluster]]\nname = \"a\"\n[[cluster]]\nname = \"b\"\n[[cluster]]\nname = \"c\"\n\
            [[link]]\nbetween = [\"c\", \"a\"]\nrtt = \"8ms\"\n\
            bandwidth = \"3MB/s\"\nbandwidth_back = \"4MB/s\"\n";
        let read = load::<TopologyConfig>(&Sources::of_text("t.toml", text)).unwrap().value;
        let rates = |a, b| {
            let line = read.line(a, b);
            let of = |rate: Option<ByteRate>| rate.map(|rate| rate.bytes_per_second() / 1e6);
            (line.rtt.as_millis(), of(line.bandwidth), of(line.bandwidth_back))
        };
        assert_eq!(rates("a", "b"), (50, Some(2.0), Some(1.0)));
        assert_eq!(rates("b", "a"), (50, Some(1.0), Some(2.0)));
        assert_eq!(rates("c", "a"), (8, Some(3.0), Some(4.0)));
        assert_eq!(rates("a", "c"), (8, Some(4.0), Some(3.0)));
    }
}
