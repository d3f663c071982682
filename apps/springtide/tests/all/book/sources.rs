//! Checks that contributors find each file and item that a page names in `code`.
//!
//! Reads the sources as text, so an item counts as existing if its name occurs in them.

use std::collections::BTreeSet;
use std::path::Path;

use super::page::{Code, Page};

/// The directories with sources.
const DIRECTORIES: &[&str] = &["runtime", "actors", "apps", "tests", "netem-scripts"];
/// The kinds of files whose words are names.
const ENDINGS: &[&str] = &["rs", "py", "sh", "js", "toml"];

/// All words of the sources and the stems of their files.
pub struct Sources(BTreeSet<String>);

impl Sources {
    pub fn read(root: &Path) -> Self {
        let mut words = BTreeSet::new();
        DIRECTORIES.iter().for_each(|directory| collect(&root.join(directory), &mut words));
        assert!(words.len() > 5000, "{} words", words.len());
        Self(words)
    }

    /// The names of a page without a file or an item, each with its place in the page.
    pub fn missing(&self, root: &Path, page: &Page) -> Vec<String> {
        let report = |code: &Code| {
            let error = self.check(root, &code.text).err()?;
            Some(format!("{}:{}: `{}`: {error}", page.name(), code.at, code.text))
        };
        page.code.iter().filter_map(report).collect()
    }

    fn check(&self, root: &Path, code: &str) -> Result<(), String> {
        let below = |directory: &str| {
            code.strip_prefix(directory).is_some_and(|rest| rest.starts_with('/'))
        };
        let in_tree = DIRECTORIES.iter().any(|directory| below(directory)) || below(".ci");
        let in_root =
            !code.contains('/') && [".rs", ".md", ".toml"].iter().any(|e| code.ends_with(e));
        // A pattern, a command or a file of a user is none of the tree.
        let plain = code.chars().all(|c| c.is_ascii_alphanumeric() || "/._-".contains(c));
        if plain && (in_tree || in_root) {
            let exists = root.join(code).exists() || self.0.contains(code);
            return if exists { Ok(()) } else { Err("no such file".to_owned()) };
        }
        let name = code.trim_end_matches("()").trim_end_matches('!');
        let item = name.contains("::") || name.starts_with(|c: char| c.is_ascii_uppercase());
        let identifier = name.chars().all(|c| c.is_ascii_alphanumeric() || "_:".contains(c));
        if item && identifier {
            let unknown = name.split("::").find(|part| !self.0.contains(*part));
            return unknown.map_or(Ok(()), |part| Err(format!("no source contains {part}")));
        }
        Ok(())
    }
}

fn collect(directory: &Path, words: &mut BTreeSet<String>) {
    for entry in std::fs::read_dir(directory).expect("a directory of the tree").flatten() {
        let (path, name) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
        if path.is_dir() {
            // Pages must not prove their own names.
            if name != "target" && name != "book" {
                collect(&path, words);
            }
            words.insert(name);
        } else if path.extension().is_some_and(|e| ENDINGS.iter().any(|ending| e == *ending)) {
            let text = std::fs::read_to_string(&path).unwrap_or_default();
            let of_text = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
            words.extend(of_text.map(str::to_owned));
            words.extend(path.file_stem().map(|stem| stem.to_string_lossy().into_owned()));
            words.insert(name);
        }
    }
}

#[test]
fn missing_files_and_items_are_found() {
    let root = super::root();
    let sources = Sources(["Detector", "membership", "judged"].map(str::to_owned).into());
    for good in [
        "membership::Detector",
        "judged!",
        "actors/src",
        "Cargo.toml",
        "cargo test",
        "blobs/NAME",
        "--flag",
    ] {
        assert_eq!(sources.check(&root, good), Ok(()), "{good}");
    }
    for wrong in ["membership::Oracle", "Oracle", "actors/src/oracle.rs", "ORACLE.md"] {
        assert!(sources.check(&root, wrong).is_err(), "{wrong}");
    }
}
