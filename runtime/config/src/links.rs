//! The properties of a grid's links, as a file. The prediction of a run needs it and the grid's
//! config.
//!
//! It defines the format, independent of its use.

use std::collections::BTreeMap;

use super::limits::{check_delay, check_rate};
use super::scenario::{LineSection, WideSection, check_line, check_lines};
use super::schema::{
    Fallback::{Absent, Elements, Is, Required, Section},
    section,
};
use super::units::{BoundedInt, ByteRate, Name, Time};
use super::{CONFIG_VERSION, Checker, Config};

section! {
    /// The links and machines of a grid.
    LinksConfig {
        /// Version of the file format.
        config_version: BoundedInt<1, CONFIG_VERSION> = Is("1");
        /// Links between two clusters without an entry here or in the grid's config.
        wide: WideSection = Section;
        /// A link between two clusters. One table each.
        link: Vec<LineSection> = Elements(&[
            &[("between", "[\"ams\", \"del\"]"), ("bandwidth", "\"10MB/s\"")],
        ]);
        /// Properties of a cluster. One table each.
        cluster: Vec<InsideSection> = Elements(&[
            &[("name", "\"ams\""), ("uplink", "\"100MB/s\"")],
        ]);
    }

    /// The properties of a cluster.
    InsideSection {
        /// Name of the cluster.
        name: Name = Required("\"ams\"");
        /// Speed of its threads relative to the recorded run; default: as recorded, and 1 for
        /// clusters that were not in it.
        speed: Option<f64> = Absent("1.0");
        /// Delay between two of its nodes.
        delay: Time = Is("\"50us\"");
        /// Bandwidth of its uplink in each direction; default: no limit.
        uplink: Option<ByteRate> = Absent("\"100MB/s\"");
    }
}

impl LinksConfig {
    /// A commented example with every key. It loads without error.
    pub fn template() -> String {
        super::template::<Self>(
            "# The links of a Springtide grid. Every key is here with its default; what is \
             commented out is not set by default.\n\
             # Predict a run with it: springtide sim run --config GRID --links FILE --recorded \
             DIR\n\n",
        )
    }
}

impl Config for LinksConfig {
    const WHAT: &'static str = "links";

    fn check(&self, checker: &mut Checker<'_>) {
        check_lines(&self.link, checker);
        check_line(&self.wide.own(), |key| format!("wide.{key}"), checker);
        let mut names = BTreeMap::new();
        for (i, cluster) in self.cluster.iter().enumerate() {
            let path = |key: &str| format!("cluster[{i}].{key}");
            let name = cluster.name.as_str();
            if let Some(first) = names.insert(name, i) {
                checker.tell_taken(&path("name"), &format!("cluster[{first}].name"), name);
            }
            if let Some(speed) = cluster.speed.filter(|speed| *speed <= 0.0 || speed.is_nan()) {
                checker.report(&path("speed"), format!("must be above 0, found {speed}"));
            }
            check_delay(Some(cluster.delay), &path("delay"), checker);
            check_rate(cluster.uplink, &path("uplink"), checker);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Sources, load};
    use super::*;

    #[test]
    fn the_template_loads_and_errors_have_their_places() {
        let load = |text: &str| load::<LinksConfig>(&Sources::of_text("links.toml", text));
        load(&LinksConfig::template()).expect("it is right");
        let text = "[wide]\nloss = 2.0\n[[link]]\nbetween = [\"a\", \"a\"]\nrtt = \"11s\"\n\
            [[cluster]]\nname = \"a\"\nspeed = 0.0\n[[cluster]]\nname = \"a\"\n\
            spede = 1.0\nuplink = \"7bit/s\"\n";
        let errors = load(text).expect_err("it is wrong").to_string();
        for part in [
            "links.toml:2:1: must lie within 0 and 1, found 2",
            "links.toml:4:1: a link must be between two clusters, found \"a\" twice",
            "links.toml:5:1: must be at most \"10s\", found \"11s\"",
            "links.toml:8:1: must be above 0, found 0",
            "links.toml:10:1: there are two clusters named \"a\"; the other is on line 7",
            "links.toml:11:1",
            "did you mean `speed`?",
            "links.toml:12:1: nothing passes at this rate: give at least \"1B/s\"",
        ] {
            assert!(errors.contains(part), "{part} is not in\n{errors}");
        }
    }
}
