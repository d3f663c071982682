//! What a config may hold, as data for whoever writes it down: the book's reference is made from it.
//!
//! Knows the schema's form, not its keys.

use super::Config;
use super::schema::{Fallback, Kind, Schema};

/// One key of a config.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Described {
    /// Where it stands: empty for keys outside all tables, else as in `net` or `cluster.slurm`.
    pub table: String,
    /// Its name.
    pub key: &'static str,
    /// What it is for, in one line.
    pub about: String,
    /// Its type's name in Rust, without `Option`: `Time`, `Whole<1,64>`, `bool`.
    pub of: String,
    /// The words it may be, where it is a choice.
    pub choices: &'static [&'static str],
    /// What holds where it is not given.
    pub unset: Unset,
}

/// What holds where a key is not given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unset {
    /// This, in TOML.
    Is(&'static str),
    /// It must be given; for example so.
    Required(&'static str),
    /// Nothing; it could be this.
    Absent(&'static str),
    /// It is a table.
    Table,
    /// It is a table, and there is none unless it is given.
    NoTable,
    /// It is an array of tables.
    Tables,
}

impl Unset {
    /// Whether the key is a table, or an array of them.
    pub fn is_table(self) -> bool {
        matches!(self, Self::Table | Self::NoTable | Self::Tables)
    }
}

/// Every key of a config, tables before what is in them.
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
    fn keys_are_told_with_their_place_type_and_default() {
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
