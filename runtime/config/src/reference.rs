//! The keys of a config as data, from which the book's reference is made.
//!
//! It uses the schema, not individual keys.

use super::Config;
use super::schema::{ConfigSchema, Fallback, KeyKind};

/// One key of a config.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyDescription {
    /// The table of the key, as `net` or `cluster.slurm`; empty for keys outside of all tables.
    pub table: String,
    /// The name of the key.
    pub key: &'static str,
    /// The purpose of the key, in one line.
    pub about: String,
    /// The name of its type in Rust, without `Option`: `Time`, `BoundedInt<1,64>`, `bool`.
    pub type_name: String,
    /// The valid words, if it is a choice.
    pub choices: &'static [&'static str],
    /// The value if the key is not given.
    pub unset: KeyFallback,
}

/// The value of a key that is not given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyFallback {
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

impl KeyFallback {
    /// Whether the key is a table or an array of tables.
    pub fn is_table(self) -> bool {
        matches!(self, Self::Table | Self::NoTable | Self::Tables)
    }
}

/// All keys of a config, with tables before their keys.
pub fn describe<T: Config>() -> Vec<KeyDescription> {
    let mut all = Vec::new();
    described(&T::SCHEMA, "", &mut all);
    all
}

fn described(schema: &ConfigSchema, table: &str, all: &mut Vec<KeyDescription>) {
    for field in schema.fields {
        let unset = match field.fallback {
            Fallback::Is(value) => KeyFallback::Is(value),
            Fallback::Required(example) => KeyFallback::Required(example),
            Fallback::Absent(example) => KeyFallback::Absent(example),
            Fallback::Section => KeyFallback::Table,
            Fallback::Optional => KeyFallback::NoTable,
            Fallback::Elements(_) | Fallback::Examples(_) => KeyFallback::Tables,
        };
        let choices = match field.kind {
            KeyKind::Leaf { choices, .. } => choices,
            KeyKind::Section(_) | KeyKind::List(_) | KeyKind::Texts => &[],
        };
        let of: String = field.of.split_whitespace().collect();
        let of = of.strip_prefix("Option<").and_then(|of| of.strip_suffix('>')).unwrap_or(&of);
        let lines: Vec<&str> = field.about.iter().map(|line| line.trim()).collect();
        all.push(KeyDescription {
            table: table.to_owned(),
            key: field.key,
            about: lines.join(" "),
            type_name: of.to_owned(),
            choices,
            unset,
        });
    }
    for field in schema.fields {
        if let KeyKind::Section(inner) | KeyKind::List(inner) = field.kind {
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
        assert_eq!((poll.type_name.as_str(), poll.unset), ("Time", KeyFallback::Is("\"2s\"")));
        let threads = find("cluster", "threads");
        assert_eq!(threads.type_name, "BoundedInt<1,4096>");
        assert_eq!(threads.unset, KeyFallback::Absent("1"));
        assert_eq!(find("work", "steal").choices, ["cluster-aware", "random"]);
        assert_eq!(find("", "cluster").unset, KeyFallback::Tables);
        assert_eq!(find("cluster", "slurm").unset, KeyFallback::NoTable);
    }
}
