//! Who has which input file, as the file servers tell it. Must not know how files are moved, nor for whom.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use springtide_runtime::id::ClusterId;

use super::messages::{FileEntry, FilesHere};

/// So many files are named where one is missing.
const NAMED: usize = 8;

/// A file of the grid, by its name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileStatus {
    /// Its name.
    pub name: String,
    /// What each cluster has under it.
    pub clusters: BTreeMap<ClusterId, FileEntry>,
}

impl FileStatus {
    /// The file, if all have the same.
    pub fn entry(&self) -> Option<&FileEntry> {
        let mut all = self.clusters.values();
        let first = all.next()?;
        all.all(|other| other == first).then_some(first)
    }

    /// Any cluster that has it, and what it has.
    pub fn anywhere(&self) -> Option<(ClusterId, FileEntry)> {
        let (cluster, entry) = self.clusters.iter().next()?;
        Some((cluster.clone(), entry.clone()))
    }

    /// What differs between the clusters, if anything does.
    pub fn differs(&self) -> Option<String> {
        if self.entry().is_some() || self.clusters.is_empty() {
            return None;
        }
        let one = |(cluster, entry): (&ClusterId, &FileEntry)| {
            format!("{cluster} has {} bytes ({})", entry.bytes, entry.short_sum())
        };
        let all: Vec<String> = self.clusters.iter().map(one).collect();
        Some(format!("{}; remove the wrong ones, or give them other names", all.join(", ")))
    }
}

/// All files, and who was heard.
#[derive(Debug, Default)]
pub struct Catalogue {
    files: BTreeMap<String, BTreeMap<ClusterId, FileEntry>>,
    heard: BTreeSet<ClusterId>,
}

impl Catalogue {
    /// A cluster says what it has. Returns the names of which that is a change.
    pub fn here(&mut self, here: FilesHere) -> BTreeSet<String> {
        let FilesHere { cluster, files } = here;
        // What is not known is not there: nobody is to be sent to where nothing can be read.
        let files = files.unwrap_or_default();
        self.heard.insert(cluster.clone());
        let mut changed = BTreeSet::new();
        let mut now: BTreeMap<String, FileEntry> =
            files.into_iter().map(|file| (file.name.clone(), file)).collect();
        for (name, clusters) in &mut self.files {
            match (clusters.get(&cluster), now.remove(name)) {
                (Some(was), Some(is)) if *was == is => {}
                (None, None) => {}
                (_, Some(is)) => {
                    clusters.insert(cluster.clone(), is);
                    changed.insert(name.clone());
                }
                (Some(_), None) => {
                    clusters.remove(&cluster);
                    changed.insert(name.clone());
                }
            }
        }
        for (name, file) in now {
            changed.insert(name.clone());
            self.files.insert(name, [(cluster.clone(), file)].into());
        }
        self.files.retain(|_, clusters| !clusters.is_empty());
        changed
    }

    /// A cluster has this file now, whatever it said before.
    pub fn has(&mut self, cluster: &ClusterId, file: FileEntry) {
        self.files.entry(file.name.clone()).or_default().insert(cluster.clone(), file);
    }

    /// What is known of a name; nobody has it if nothing is.
    pub fn file(&self, name: &str) -> FileStatus {
        let clusters = self.files.get(name).cloned().unwrap_or_default();
        FileStatus { name: name.to_owned(), clusters }
    }

    /// All that anybody has, by name.
    pub fn files(&self) -> Vec<FileStatus> {
        self.files.keys().map(|name| self.file(name)).collect()
    }

    /// Whether there are these files.
    ///
    /// # Errors
    /// Which is nowhere, and which there are; `clusters` are those that keep files, of which some may not have been heard yet.
    pub fn check<'a>(
        &self,
        names: impl IntoIterator<Item = &'a String>,
        clusters: &BTreeSet<ClusterId>,
    ) -> Result<(), String> {
        for name in names {
            if self.files.contains_key(name) {
                continue;
            }
            let known: Vec<&str> = self.files.keys().map(String::as_str).collect();
            let unheard: Vec<&str> =
                clusters.difference(&self.heard).map(ClusterId::as_str).collect();
            let mut text = match &known[..] {
                _ if clusters.is_empty() => {
                    format!(
                        "no cluster keeps files, so {name} is nowhere: set `files` of a [[cluster]]"
                    )
                }
                [] => format!(
                    "no cluster has a file {name}, or any other: put it there with `files put`"
                ),
                all => {
                    let names = all[..all.len().min(NAMED)].join(", ");
                    let more = match all.len().saturating_sub(NAMED) {
                        0 => String::new(),
                        more => format!(" and {more} more"),
                    };
                    format!("no cluster has a file {name}: there are {names}{more}")
                }
            };
            if !unheard.is_empty() {
                text += &format!("; {} did not say yet what they have", unheard.join(", "));
            }
            return Err(text);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn here(cluster: &str, files: &[(&str, u64)]) -> FilesHere {
        let entry = |&(name, bytes): &(&str, u64)| FileEntry {
            name: name.to_owned(),
            bytes,
            sum: format!("{bytes:064}"),
        };
        FilesHere { cluster: cluster.into(), files: Ok(files.iter().map(entry).collect()) }
    }

    fn names(changed: BTreeSet<String>) -> Vec<String> {
        changed.into_iter().collect()
    }

    #[test]
    fn what_clusters_say_is_what_is_there() {
        let mut catalogue = Catalogue::default();
        assert_eq!(names(catalogue.here(here("ams", &[("a", 1), ("b", 2)]))), ["a", "b"]);
        assert_eq!(names(catalogue.here(here("ams", &[("a", 1), ("b", 2)]))), [""; 0]);
        assert_eq!(names(catalogue.here(here("del", &[("b", 2)]))), ["b"]);
        let both = catalogue.file("b");
        assert_eq!((both.clusters.len(), both.differs()), (2, None));
        // Another file of the name; then it is the same again, then gone.
        assert_eq!(names(catalogue.here(here("del", &[("b", 3)]))), ["b"]);
        let told = catalogue.file("b").differs().unwrap();
        assert!(told.starts_with("ams has 2 bytes (000000000000), del has 3 bytes"), "{told}");
        assert_eq!(names(catalogue.here(here("del", &[]))), ["b"]);
        assert_eq!(catalogue.file("b").differs(), None);
        // Who cannot read has nothing.
        let files = Err("permission denied".to_owned());
        assert_eq!(names(catalogue.here(FilesHere { cluster: "ams".into(), files })), ["a", "b"]);
        assert_eq!(catalogue.files(), []);
    }

    #[test]
    fn unknown_files_are_told_with_those_there_are() {
        let mut catalogue = Catalogue::default();
        let keep = [ClusterId::from("ams"), "del".into()].into();
        let wanted = ["bodies".to_owned()];
        let told = catalogue.check(&wanted, &BTreeSet::new()).unwrap_err();
        assert!(told.contains("no cluster keeps files"), "{told}");
        let told = catalogue.check(&wanted, &keep).unwrap_err();
        assert!(told.contains("or any other") && told.contains("ams, del did not say"), "{told}");
        catalogue.here(here("ams", &[("stars", 1), ("text", 2)]));
        catalogue.here(here("del", &[]));
        let told = catalogue.check(&wanted, &keep).unwrap_err();
        assert_eq!(told, "no cluster has a file bodies: there are stars, text");
        assert_eq!(catalogue.check(&["text".to_owned()], &keep), Ok(()));
    }
}
