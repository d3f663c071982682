//! The topologies that are part of the program: data in `netem-scripts/topologies`.

/// A topology file that is part of the program.
#[derive(Clone, Copy, Debug)]
pub struct BuiltinFile {
    /// The name by which users ask for the file.
    pub name: &'static str,
    /// The text of the file.
    pub text: &'static str,
}

/// All topologies of the program.
pub const TOPOLOGIES: &[BuiltinFile] = &[
    BuiltinFile { name: "pair", text: include_str!("../netem-scripts/topologies/pair.toml") },
    BuiltinFile { name: "das2", text: include_str!("../netem-scripts/topologies/das2.toml") },
    BuiltinFile {
        name: "congested",
        text: include_str!("../netem-scripts/topologies/congested.toml"),
    },
    BuiltinFile {
        name: "three-continents",
        text: include_str!("../netem-scripts/topologies/three-continents.toml"),
    },
];

#[cfg(test)]
mod tests {
    use springtide_runtime::config::{Sources, TopologyConfig, load};
    use springtide_runtime::topology::Topology;

    use super::*;

    /// The script uses tables where there is no `springtide`; each must follow from its topology.
    #[test]
    fn all_topologies_load_and_match_their_tables() {
        let tables = [
            include_str!("../netem-scripts/tables/pair.table"),
            include_str!("../netem-scripts/tables/das2.table"),
            include_str!("../netem-scripts/tables/congested.table"),
            include_str!("../netem-scripts/tables/three-continents.table"),
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
            assert_eq!(
                lines(table),
                lines(&Topology::from_config(&read).table()),
                "{}",
                shipped.name
            );
        }
    }
}
