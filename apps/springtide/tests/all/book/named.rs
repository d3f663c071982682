//! Checks that `code` in the text names existing commands, options, config keys and metrics.
//!
//! Code without one of their forms is ignored.

use std::collections::BTreeSet;

use clap::Command;

use super::reference::{KINDS, metrics};

/// Options of other programs that the book mentions.
const OTHERS: &[&str] = &["--workspace", "--release", "--example", "--features", "--root"];

/// All names that exist.
pub struct Names {
    command: Command,
    options: BTreeSet<String>,
    keys: BTreeSet<String>,
    tables: BTreeSet<String>,
    metrics: BTreeSet<String>,
}

impl Names {
    pub fn of(command: &Command) -> Self {
        let mut command = command.clone();
        command.build();
        let mut options: BTreeSet<String> = OTHERS.iter().map(|&other| other.to_owned()).collect();
        collect(&command, &mut options);
        let (mut keys, mut tables) = (BTreeSet::new(), BTreeSet::new());
        for kind in KINDS {
            for one in (kind.keys)() {
                let path = if one.table.is_empty() {
                    one.key.to_owned()
                } else {
                    format!("{}.{}", one.table, one.key)
                };
                if matches!(one.type_name.as_str(), "BTreeMap<String,String>")
                    || one.unset.is_table()
                {
                    tables.insert(path.clone());
                }
                keys.insert(path);
            }
        }
        let metrics = metrics().into_iter().map(|metric| metric.name).collect();
        Self { command, options, keys, tables, metrics }
    }

    /// Checks that a name exists, if the code has the form of one.
    pub fn check(&self, code: &str) -> Result<(), String> {
        if let Some(line) = code.strip_prefix("springtide ") {
            return self.line(line);
        }
        if code.starts_with("--") {
            let name = code.split([' ', '=']).next().unwrap_or(code);
            // `--run-NAME` stands for many options.
            let many = name.chars().any(|c| c.is_ascii_uppercase());
            return if many {
                Ok(())
            } else {
                known(&self.options, name, "no command has this option")
            };
        }
        if code.starts_with("springtide_") && !code.contains("::") && !code.contains(['(', '/']) {
            let name = code.split(['{', ' ']).next().unwrap_or(code);
            let crates = ["springtide_runtime", "springtide_actors", "springtide_stochastic"];
            if crates.contains(&name) {
                return Ok(());
            }
            return known(&self.metrics, name, "no metric has this name");
        }
        if let Some(table) = code.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            let table = table.strip_prefix('[').and_then(|t| t.strip_suffix(']')).unwrap_or(table);
            let word = |c: char| c.is_ascii_lowercase() || c == '_' || c == '.';
            if !table.is_empty() && table.chars().all(word) {
                return known(&self.tables, table, "no config has this table");
            }
            return Ok(());
        }
        if let Some(key) = code.strip_prefix("SPRINGTIDE_").filter(|key| key.contains("__")) {
            let key = key.split('=').next().unwrap_or(key).to_lowercase().replace("__", ".");
            let of_cluster = key.starts_with("cluster.");
            return if of_cluster {
                Ok(())
            } else {
                known(&self.keys, &key, "no config has this key")
            };
        }
        // A dotted name with the name of a table as its first part is a key.
        let word = |c: char| c.is_ascii_lowercase() || c == '_' || c == '.';
        if let Some((table, rest)) = code.split_once('.')
            && code.chars().all(word)
            && self.tables.contains(table)
            // A setting of Linux.
            && !code.starts_with("net.core.")
            && !["toml", "md", "rs", "json", "jsonl", "pem", "key", "csv", "txt"].contains(&rest)
        {
            return known(&self.keys, code, "no config has this key");
        }
        Ok(())
    }

    /// Checks a command line, perhaps with words in capitals as placeholders.
    fn line(&self, line: &str) -> Result<(), String> {
        let mut at = &self.command;
        let mut known_here: BTreeSet<String> = BTreeSet::new();
        add(at, &mut known_here);
        let mut deeper = true;
        for word in line.split_whitespace() {
            if word == "..." || word.starts_with('[') {
                deeper = false;
                continue;
            }
            if word.starts_with("--") && word.len() > 2 {
                let name = word.split('=').next().unwrap_or(word).trim_end_matches(']');
                known(&known_here, name, &format!("`{}` has no option", at.get_name()))?;
                deeper = false;
            } else if deeper && at.has_subcommands() {
                if let Some(found) = at.find_subcommand(word) {
                    at = found;
                    add(at, &mut known_here);
                } else if word.chars().any(|c| c.is_ascii_lowercase()) && !word.contains('|') {
                    return Err(format!("`{}` has no command {word}", at.get_name()));
                } else {
                    // `run JOB --out`: options of any job.
                    if let Some(some) = at.get_subcommands().next() {
                        add(some, &mut known_here);
                    }
                    deeper = false;
                }
            } else {
                deeper = false;
            }
        }
        Ok(())
    }
}

fn known(names: &BTreeSet<String>, name: &str, what: &str) -> Result<(), String> {
    if names.contains(name) { Ok(()) } else { Err(format!("{what}: {name}")) }
}

fn add(command: &Command, options: &mut BTreeSet<String>) {
    let long = command.get_arguments().filter_map(|arg| arg.get_long());
    options.extend(long.map(|long| format!("--{long}")));
    options.insert("--help".to_owned());
}

fn collect(command: &Command, options: &mut BTreeSet<String>) {
    add(command, options);
    for deeper in command.get_subcommands() {
        collect(deeper, options);
    }
}
