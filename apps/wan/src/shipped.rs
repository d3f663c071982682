//! The topologies that come along: data in `netem-scripts/topologies`.

/// A file that comes along.
#[derive(Clone, Copy, Debug)]
pub struct Shipped {
    /// Its name.
    pub name: &'static str,
    /// What it says.
    pub text: &'static str,
}

/// All of them.
pub const TOPOLOGIES: &[Shipped] = &[
    Shipped { name: "pair", text: include_str!("../../../netem-scripts/topologies/pair.toml") },
    Shipped { name: "das2", text: include_str!("../../../netem-scripts/topologies/das2.toml") },
    Shipped {
        name: "congested",
        text: include_str!("../../../netem-scripts/topologies/congested.toml"),
    },
    Shipped {
        name: "three-continents",
        text: include_str!("../../../netem-scripts/topologies/three-continents.toml"),
    },
];

#[cfg(test)]
mod tests {
    use springtide_runtime::config::{Sources, TopologyConfig, load};
    use springtide_runtime::topology::Topology;

    use super::*;

    /// The tables beside them are for those who have no `springtide` at hand.
    #[test]
    fn all_load_and_their_tables_are_what_follows_from_them() {
        let tables = [
            include_str!("../../../netem-scripts/tables/pair.table"),
            include_str!("../../../netem-scripts/tables/das2.table"),
            include_str!("../../../netem-scripts/tables/congested.table"),
            include_str!("../../../netem-scripts/tables/three-continents.table"),
        ];
        for (shipped, table) in TOPOLOGIES.iter().zip(tables) {
            let read = load::<TopologyConfig>(&Sources::of_text(shipped.name, shipped.text));
            let read = read.unwrap_or_else(|error| panic!("{error}")).value;
            assert_eq!(read.name.as_str(), shipped.name);
            assert!(!read.about.is_empty());
            let lines = |text: &str| {
                let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
                lines.map(str::to_owned).collect::<Vec<_>>()
            };
            assert_eq!(lines(table), lines(&Topology::of(&read).table()), "{}", shipped.name);
        }
    }
}
