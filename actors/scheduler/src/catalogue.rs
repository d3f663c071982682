//! Catalogue of all input files, as the file servers report them.
//!
//! This module must not depend on how files are transferred, nor on jobs.

use std::collections::{BTreeMap, BTreeSet};

use springtide_base::id::ClusterId;

use crate::files::{FileEntry, FileStatus, FilesReport};

/// Greatest number of files that an error message lists.
const LISTED_MAX: usize = 8;

/// All files of the grid, and the clusters that have reported.
#[derive(Debug, Default)]
pub(crate) struct Catalogue {
    files: BTreeMap<String, BTreeMap<ClusterId, FileEntry>>,
    reported: BTreeSet<ClusterId>,
}

impl Catalogue {
    /// Records a cluster's report. Returns the names whose entries changed.
    pub(crate) fn here(&mut self, here: FilesReport) -> BTreeSet<String> {
        let FilesReport { cluster, files } = here;
        // Unknown files count as absent, so that no job is placed where its files cannot be read.
        let files = files.unwrap_or_default();
        self.reported.insert(cluster.clone());
        let mut changed = BTreeSet::new();
        let mut new: BTreeMap<String, FileEntry> =
            files.into_iter().map(|file| (file.name.clone(), file)).collect();
        for (name, clusters) in &mut self.files {
            match (clusters.get(&cluster), new.remove(name)) {
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
        for (name, file) in new {
            changed.insert(name.clone());
            self.files.insert(name, [(cluster.clone(), file)].into());
        }
        self.files.retain(|_, clusters| !clusters.is_empty());
        changed
    }

    /// Records that a cluster has this file now, regardless of its last report.
    pub(crate) fn has(&mut self, cluster: &ClusterId, file: FileEntry) {
        self.files.entry(file.name.clone()).or_default().insert(cluster.clone(), file);
    }

    /// Status of a file name. Its clusters are empty if no cluster has the file.
    pub(crate) fn file(&self, name: &str) -> FileStatus {
        let clusters = self.files.get(name).cloned().unwrap_or_default();
        FileStatus { name: name.to_owned(), clusters }
    }

    /// All files of all clusters, by name.
    pub(crate) fn files(&self) -> Vec<FileStatus> {
        self.files.keys().map(|name| self.file(name)).collect()
    }

    /// Checks that all these files exist. `clusters` are those that keep files.
    ///
    /// # Errors
    /// Names the missing file, the known files, and the clusters that have not reported yet.
    pub(crate) fn check<'a>(
        &self,
        names: impl IntoIterator<Item = &'a String>,
        clusters: &BTreeSet<ClusterId>,
    ) -> Result<(), String> {
        for name in names {
            if self.files.contains_key(name) {
                continue;
            }
            let known: Vec<&str> = self.files.keys().map(String::as_str).collect();
            let unreported: Vec<&str> =
                clusters.difference(&self.reported).map(ClusterId::as_str).collect();
            let mut text = match &known[..] {
                _ if clusters.is_empty() => {
                    format!(
                        "no cluster keeps files, so {name} does not exist: set `files` of a \
                         [[cluster]]"
                    )
                }
                [] => format!(
                    "no cluster has a file {name}, or any other: put it there with `files put`"
                ),
                all => {
                    let names = all[..all.len().min(LISTED_MAX)].join(", ");
                    let more = match all.len().saturating_sub(LISTED_MAX) {
                        0 => String::new(),
                        more => format!(" and {more} more"),
                    };
                    format!("no cluster has a file {name}: there are {names}{more}")
                }
            };
            if !unreported.is_empty() {
                text += &format!("; {} did not report their files yet", unreported.join(", "));
            }
            return Err(text);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn here(cluster: &str, files: &[(&str, u64)]) -> FilesReport {
        let entry = |&(name, bytes): &(&str, u64)| FileEntry {
            name: name.to_owned(),
            bytes,
            sum: format!("{bytes:064}"),
        };
        FilesReport { cluster: cluster.into(), files: Ok(files.iter().map(entry).collect()) }
    }

    fn names(changed: BTreeSet<String>) -> Vec<String> {
        changed.into_iter().collect()
    }

    #[test]
    fn catalogue_follows_the_reports_of_clusters() {
        let mut catalogue = Catalogue::default();
        assert_eq!(names(catalogue.here(here("ams", &[("a", 1), ("b", 2)]))), ["a", "b"]);
        assert_eq!(names(catalogue.here(here("ams", &[("a", 1), ("b", 2)]))), [""; 0]);
        assert_eq!(names(catalogue.here(here("del", &[("b", 2)]))), ["b"]);
        let both = catalogue.file("b");
        assert_eq!((both.clusters.len(), both.differs()), (2, None));
        // The other cluster has another file of this name, then the same one again, then none.
        assert_eq!(names(catalogue.here(here("del", &[("b", 3)]))), ["b"]);
        let text = catalogue.file("b").differs().unwrap();
        assert!(text.starts_with("ams has 2 bytes (000000000000), del has 3 bytes"), "{text}");
        assert_eq!(names(catalogue.here(here("del", &[]))), ["b"]);
        assert_eq!(catalogue.file("b").differs(), None);
        // A cluster that cannot read its directory has no files.
        let files = Err("permission denied".to_owned());
        assert_eq!(names(catalogue.here(FilesReport { cluster: "ams".into(), files })), ["a", "b"]);
        assert_eq!(catalogue.files(), []);
    }

    #[test]
    fn missing_file_error_lists_the_known_files() {
        let mut catalogue = Catalogue::default();
        let keep = [ClusterId::from("ams"), "del".into()].into();
        let wanted = ["bodies".to_owned()];
        let text = catalogue.check(&wanted, &BTreeSet::new()).unwrap_err();
        assert!(text.contains("no cluster keeps files"), "{text}");
        let text = catalogue.check(&wanted, &keep).unwrap_err();
        assert!(
            text.contains("or any other") && text.contains("ams, del did not report"),
            "{text}"
        );
        catalogue.here(here("ams", &[("stars", 1), ("text", 2)]));
        catalogue.here(here("del", &[]));
        let text = catalogue.check(&wanted, &keep).unwrap_err();
        assert_eq!(text, "no cluster has a file bodies: there are stars, text");
        assert_eq!(catalogue.check(&["text".to_owned()], &keep), Ok(()));
    }
}
