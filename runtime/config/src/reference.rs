//! The keys of a config as data, from which the book's reference is made.
//!
//! It uses the schema, not individual keys.

use super::Config;
use super::schema::{Fallback, Kind, Schema};

/// One key of a config.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Described {
    /// The table of the key, as `net` or `cluster.slurm`; empty for keys outside of all tables.
    pub table: String,
    /// The name of the key.
    pub key: &'static str,
    /// The purpose of the key, in one line.
    pub about: String,
    /// The name of its type in Rust, without `Option`: `Time`, `Whole<1,64>`, `bool`.
    pub of: String,
    /// The valid words, if it is a choice.
    pub choices: &'static [&'static str],
    /// The value if the key is not given.
    pub unset: Unset,
}

/// The value of a key that is not given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unset {
    /// This default, in TOML.
    Is(&'static str),
    /// The key is required; an example.
    Required(&'static str),
    /// There is no value; an example.
    Absent(&'static str),
    /// A table with its own defaults.
    Table,
    /// A table that exists only if given.
    NoTable,
    /// An array of tables.
    Tables,
}

impl Unset {
    /// Whether the key is a table or an array of tables.
    pub fn is_table(self) -> bool {
        matches!(self, Self::Table | Self::NoTable | Self::Tables)
    }
}

/// All keys of a config, with tables before their keys.
pub fn describe<T: Config>() -> Vec<Described> {
    let mut all = Vec::new();
    described(&T::SCHEMA, "", &mut all);
    all
}

fn described(schema: &Schema, table: &str, all: &mut Vec<Described>) {
    for field in schema.fields {
        let unset = match field.fallback {
            Fallback::Is(value) => Unset::Is(value),
            Fallback::Required(example) => Unset::Required(example),
            Fallback::Absent(example) => Unset::Absent(example),
            Fallback::Section => Unset::Table,
            Fallback::Optional => Unset::NoTable,
            Fallback::Elements(_) | Fallback::Examples(_) => Unset::Tables,
        };
        let choices = match field.kind {
            Kind::Leaf { choices, .. } => choices,
            Kind::Section(_) | Kind::List(_) | Kind::Texts => &[],
        };
        let of: String = field.of.split_whitespace().collect();
        let of = of.strip_prefix("Option<").and_then(|of| of.strip_suffix('>')).unwrap_or(&of);
        let lines: Vec<&str> = field.about.iter().map(|line| line.trim()).collect();
        all.push(Described {
            table: table.to_owned(),
            key: field.key,
            about: lines.join(" "),
            of: of.to_owned(),
            choices,
            unset,
        });
    }
    for field in schema.fields {
        if let Kind::Section(inner) | Kind::List(inner) = field.kind {
            let path = if table.is_empty() {
                field.key.to_owned()
            } else {
                format!("{table}.{}", field.key)
            };
            described(inner, &path, all);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::GridConfig;

    #[test]
    fn keys_are_described_with_place_type_and_default() {
        let all = describe::<GridConfig>();
        let find = |table: &str, key: &str| {
            all.iter().find(|one| one.table == table && one.key == key).unwrap()
        };
        let poll = find("cluster.slurm", "poll");
        assert_eq!((poll.of.as_str(), poll.unset), ("Time", Unset::Is("\"2s\"")));
        let threads = find("cluster", "threads");
        assert_eq!(threads.of, "Whole<1,4096>");
        assert_eq!(threads.unset, Unset::Absent("1"));
        assert_eq!(find("work", "steal").choices, ["cluster-aware", "random"]);
        assert_eq!(find("", "cluster").unset, Unset::Tables);
        assert_eq!(find("cluster", "slurm").unset, Unset::NoTable);
    }
}
