//! Changes of the files of a head's directory, and their application on the machine of each head.
//!
//! A record of the replicated log is a list of changes. Both heads apply committed records in their
//! order, so that their files are equal byte by byte. Files are written without syncs: the log has
//! the records until [`Replica::sync`]. After a restart the records in the log are applied again.
//! Then a change may find a file in a later state, which the following changes restore.
//!
//! This module knows neither the files' contents nor the protocol.

use std::collections::BTreeSet;
use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Component, Path, PathBuf};

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use springtide_runtime::id::NodeId;
use springtide_runtime::private;
use springtide_runtime::wire::decode_stored;

/// Parts of a head's directory that both heads have. The rest concerns one process or machine.
const REPLICATED: &[&str] = &[
    "scheduler.records",
    "jobs.records",
    "join.records",
    "ca",
    "jobs",
    "incarnation",
    "scheduler.history",
    "scheduler.history.1",
    "audit.jsonl",
];

/// End of the name of a file that is being replaced as a whole.
pub(super) const PARTIAL: &str = ".mirror.tmp";

/// A change of a file. Paths are relative to the head's directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FileChange {
    /// The file exists and is empty.
    Create {
        /// The file.
        path: String,
    },
    /// The bytes replace everything from an offset on.
    Append {
        /// The file.
        path: String,
        /// The length of the file before it.
        offset: u64,
        /// The bytes.
        bytes: Bytes,
    },
    /// The file is cut off.
    Truncate {
        /// The file.
        path: String,
        /// Its length.
        length: u64,
    },
    /// The file has another name, and replaces a file of that name.
    Rename {
        /// Its name before.
        from: String,
        /// Its name after.
        to: String,
    },
    /// The file is gone.
    Remove {
        /// The file.
        path: String,
    },
}

/// What changes, without the bytes.
impl fmt::Display for FileChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Create { path } => write!(f, "{path} is created"),
            Self::Append { path, offset, bytes } => {
                write!(f, "{path} gets {} bytes at {offset}", bytes.len())
            }
            Self::Truncate { path, length } => write!(f, "{path} is cut to {length} bytes"),
            Self::Rename { from, to } => write!(f, "{from} is renamed to {to}"),
            Self::Remove { path } => write!(f, "{path} is removed"),
        }
    }
}

/// The contents of a record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChangeRecord {
    /// The head whose files have the changes already. Its other processes may write these files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub made_by: Option<NodeId>,
    /// The changes in their order.
    pub changes: Vec<FileChange>,
}

impl ChangeRecord {
    /// The record as bytes.
    ///
    /// # Errors
    /// It does not encode.
    pub fn encode(&self) -> io::Result<Vec<u8>> {
        rmp_serde::to_vec_named(self).map_err(io::Error::other)
    }
}

/// A replicated file and its length.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ListedFile {
    /// Path of the file.
    pub path: String,
    /// Its length in bytes.
    pub length: u64,
}

/// The replicated files on the machine of a head.
#[derive(Debug)]
pub struct Replica {
    dir: PathBuf,
    me: NodeId,
    /// Index of the last applied record.
    applied: u64,
    /// Index up to which records may have been applied before.
    repeated_until: u64,
    /// Files and directories with changes that may not be durable.
    unsynced: BTreeSet<PathBuf>,
}

/// Whether a path names a file that both heads have.
pub fn is_replicated(path: &str) -> bool {
    let mut parts = Path::new(path).components();
    let is_known = match parts.next() {
        Some(Component::Normal(first)) => {
            let first = first.to_str().unwrap_or_default();
            let first = first.strip_suffix(PARTIAL).unwrap_or(first);
            REPLICATED.contains(&first)
        }
        _ => false,
    };
    is_known && parts.all(|part| matches!(part, Component::Normal(_)))
}

/// Whether a file is written as a whole under a temporary name, or only locked.
fn is_transient(name: &str) -> bool {
    name.ends_with(".tmp") || name.ends_with(".lock")
}

/// The replicated files in a head's directory, in the order of their paths.
///
/// # Errors
/// The system's.
pub fn list(dir: &Path) -> io::Result<Vec<ListedFile>> {
    fn visit(dir: &Path, path: &str, found: &mut Vec<ListedFile>) -> io::Result<()> {
        let full = dir.join(path);
        // Another process may remove files meanwhile.
        let about = match fs::symlink_metadata(&full) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            about => about?,
        };
        if about.is_file() && !is_transient(path) {
            found.push(ListedFile { path: path.to_owned(), length: about.len() });
        } else if about.is_dir() {
            let entries = match fs::read_dir(&full) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
                entries => entries?,
            };
            let names: Result<Vec<_>, io::Error> =
                entries.map(|entry| entry.map(|entry| entry.file_name())).collect();
            let mut names = names?;
            names.sort_unstable();
            // No name is other than UTF-8, as paths of records are texts.
            for name in names.iter().filter_map(|name| name.to_str()) {
                visit(dir, &format!("{path}/{name}"), found)?;
            }
        }
        Ok(())
    }
    let mut found = Vec::new();
    for root in REPLICATED {
        visit(dir, root, &mut found)?;
    }
    Ok(found)
}

/// Reads a part of a file, at most up to its end. None if there is no such file.
///
/// # Errors
/// The system's.
pub fn read_part(path: &Path, offset: u64, length: u64) -> io::Result<Option<Vec<u8>>> {
    let mut file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        file => file?,
    };
    file.seek(SeekFrom::Start(offset))?;
    let mut bytes = Vec::new();
    file.take(length).read_to_end(&mut bytes)?;
    Ok(Some(bytes))
}

impl Replica {
    /// The files in this directory of the head `me`. They have the effect of the log's records up
    /// to `base`, and possibly of those up to `last`.
    pub fn new(dir: &Path, me: NodeId, base: u64, last: u64) -> Self {
        let unsynced = BTreeSet::new();
        Self { dir: dir.to_owned(), me, applied: base, repeated_until: last, unsynced }
    }

    /// The directory of the head.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Index of the last applied record.
    pub fn applied(&self) -> u64 {
        self.applied
    }

    /// The files are a copy with the effect of the records up to `base`, and possibly of those up
    /// to `until`.
    pub fn copied(&mut self, base: u64, until: u64) {
        self.applied = base;
        self.repeated_until = self.repeated_until.max(until);
    }

    /// Applies the next record; without a value it is the own one of a leader.
    ///
    /// # Errors
    /// The record is unreadable, or the system reports an error.
    pub fn apply(&mut self, index: u64, value: Option<&[u8]>) -> io::Result<()> {
        if let Some(value) = value {
            let record: ChangeRecord = decode_stored(value).map_err(io::Error::other)?;
            let is_mine = record.made_by.as_ref() == Some(&self.me);
            // Others than the head write these files, so that they may differ.
            let is_lenient = index <= self.repeated_until || record.made_by.is_some();
            for change in record.changes.iter().filter(|_| !is_mine) {
                match self.apply_change(change) {
                    Err(error) if is_lenient && error.kind() == io::ErrorKind::NotFound => {
                        tracing::debug!("a change does not fit: {change}: {error}");
                    }
                    applied => applied.map_err(|error| {
                        io::Error::new(error.kind(), format!("record {index}: {change}: {error}"))
                    })?,
                }
            }
        }
        self.applied = index;
        Ok(())
    }

    /// The place of a replicated file.
    fn place(&self, path: &str) -> io::Result<PathBuf> {
        if is_replicated(path) {
            Ok(self.dir.join(path))
        } else {
            let reason = format!("{path} is no file of both heads");
            Err(io::Error::new(io::ErrorKind::InvalidData, reason))
        }
    }

    /// Applies a change. `NotFound`: it does not fit to the file.
    fn apply_change(&mut self, change: &FileChange) -> io::Result<()> {
        match change {
            FileChange::Create { path } => {
                let path = self.place(path)?;
                self.make_parent(&path)?;
                private::make_file(&path)?;
                private::give_to_owner(&path)?;
                self.mark(&path);
            }
            FileChange::Append { path, offset, bytes } => {
                let path = self.place(path)?;
                self.write(&path, *offset, bytes)?;
            }
            FileChange::Truncate { path, length } => {
                let path = self.place(path)?;
                OpenOptions::new().write(true).open(&path)?.set_len(*length)?;
                self.mark(&path);
            }
            FileChange::Rename { from, to } => {
                let (from, to) = (self.place(from)?, self.place(to)?);
                self.make_parent(&to)?;
                fs::rename(&from, &to)?;
                self.unsynced.remove(&from);
                self.mark(&to);
            }
            FileChange::Remove { path } => {
                let path = self.place(path)?;
                match fs::remove_file(&path) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                    _ => {}
                }
                self.unsynced.remove(&path);
                self.unsynced.extend(path.parent().map(Path::to_owned));
            }
        }
        Ok(())
    }

    /// Replaces everything from an offset on by these bytes.
    fn write(&mut self, path: &Path, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let mut file = OpenOptions::new().write(true).open(path)?;
        let length = file.metadata()?.len();
        if length < offset {
            let reason = format!("{} has {length} bytes, not {offset}", path.display());
            return Err(io::Error::new(io::ErrorKind::NotFound, reason));
        }
        file.set_len(offset)?;
        file.seek(SeekFrom::Start(offset))?;
        file.write_all(bytes)?;
        self.mark(path);
        Ok(())
    }

    /// Writes a part of a copied file, which is created if need be.
    ///
    /// # Errors
    /// The system's; or the path names no replicated file.
    pub fn write_copied(&mut self, path: &str, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let place = self.place(path)?;
        if !place.exists() {
            self.apply_change(&FileChange::Create { path: path.to_owned() })?;
        }
        let mut file = OpenOptions::new().write(true).open(&place)?;
        file.seek(SeekFrom::Start(offset))?;
        file.write_all(bytes)?;
        self.mark(&place);
        Ok(())
    }

    /// Cuts a copied file, or removes it.
    ///
    /// # Errors
    /// The system's; or the path names no replicated file.
    pub fn cut_copied(&mut self, path: &str, length: Option<u64>) -> io::Result<()> {
        let path = path.to_owned();
        self.apply_change(&match length {
            Some(length) => FileChange::Truncate { path, length },
            None => FileChange::Remove { path },
        })
    }

    fn make_parent(&mut self, path: &Path) -> io::Result<()> {
        let Some(parent) = path.parent().filter(|parent| !parent.is_dir()) else { return Ok(()) };
        private::make_dir(parent)?;
        private::give_to_owner(parent)?;
        self.unsynced.extend(
            parent
                .ancestors()
                .skip(1)
                .map_while(|above| above.starts_with(&self.dir).then(|| above.to_owned())),
        );
        Ok(())
    }

    /// Notes that a file and its name may not be durable.
    fn mark(&mut self, path: &Path) {
        self.unsynced.insert(path.to_owned());
        self.unsynced.extend(path.parent().map(Path::to_owned));
    }

    /// Makes all applied records durable in the files.
    ///
    /// # Errors
    /// The system's.
    pub fn sync(&mut self) -> io::Result<()> {
        for path in &self.unsynced {
            match File::open(path).and_then(|file| file.sync_all()) {
                // A later record has removed or renamed it.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                synced => synced?,
            }
        }
        self.unsynced.clear();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(changes: Vec<FileChange>) -> Vec<u8> {
        ChangeRecord { made_by: None, changes }.encode().unwrap()
    }

    fn append(path: &str, offset: u64, text: &str) -> FileChange {
        FileChange::Append { path: path.to_owned(), offset, bytes: Bytes::from(text.to_owned()) }
    }

    fn create(path: &str) -> FileChange {
        FileChange::Create { path: path.to_owned() }
    }

    fn rename(from: &str, to: &str) -> FileChange {
        FileChange::Rename { from: from.to_owned(), to: to.to_owned() }
    }

    fn files(dir: &Path) -> Vec<(String, String)> {
        let text = |ListedFile { path, .. }| {
            let text = fs::read_to_string(dir.join(&path)).unwrap();
            (path, text)
        };
        list(dir).unwrap().into_iter().map(text).collect()
    }

    /// Records as a store makes them.
    fn records() -> Vec<Vec<u8>> {
        const LOG: &str = "scheduler.records/00000001.log";
        const NEXT: &str = "scheduler.records/00000002.log";
        let blob = "scheduler.records/blobs/a";
        vec![
            record(vec![create(&format!("{LOG}.tmp")), append(&format!("{LOG}.tmp"), 0, "one ")]),
            record(vec![rename(&format!("{LOG}.tmp"), LOG)]),
            record(vec![append(LOG, 4, "two "), create(&format!("{blob}.tmp"))]),
            record(vec![append(&format!("{blob}.tmp"), 0, "blob")]),
            record(vec![rename(&format!("{blob}.tmp"), blob), append(LOG, 8, "three ")]),
            record(vec![FileChange::Truncate { path: LOG.to_owned(), length: 8 }]),
            record(vec![append(LOG, 8, "four "), create(&format!("{NEXT}.tmp"))]),
            record(vec![append(&format!("{NEXT}.tmp"), 0, "net "), create("ca/ca.pem")]),
            record(vec![rename(&format!("{NEXT}.tmp"), NEXT), append("ca/ca.pem", 0, "pem")]),
            record(vec![
                FileChange::Remove { path: LOG.to_owned() },
                FileChange::Remove { path: blob.to_owned() },
            ]),
            record(vec![create(&format!("{blob}.tmp")), append(&format!("{blob}.tmp"), 0, "b")]),
            record(vec![rename(&format!("{blob}.tmp"), blob)]),
        ]
    }

    fn apply(replica: &mut Replica, records: &[Vec<u8>], indices: std::ops::RangeInclusive<u64>) {
        for index in indices {
            let record = &records[index as usize - 1];
            replica.apply(index, Some(record)).unwrap_or_else(|error| panic!("{error}"));
        }
    }

    #[test]
    fn repeated_records_end_in_the_same_files() {
        let (all, temp) = (records(), tempfile::tempdir().unwrap());
        let last = all.len() as u64;
        let whole = temp.path().join("whole");
        apply(&mut Replica::new(&whole, "head-1".into(), 0, 0), &all, 1..=last);
        let expected = files(&whole);
        assert_eq!(expected.len(), 3, "{expected:?}");
        // The files have the effect of more records than the log says.
        for base in 0..=last {
            for reached in base..=last {
                let dir = temp.path().join(format!("{base}-{reached}"));
                apply(&mut Replica::new(&dir, "head-1".into(), 0, 0), &all, 1..=reached);
                let mut replica = Replica::new(&dir, "head-1".into(), base, reached);
                apply(&mut replica, &all, base + 1..=last);
                assert_eq!(files(&dir), expected, "from {base}, with {reached}");
                replica.sync().unwrap();
            }
        }
    }

    #[test]
    fn a_record_that_does_not_fit_is_an_error() {
        let temp = tempfile::tempdir().unwrap();
        let mut replica = Replica::new(temp.path(), "head-2".into(), 0, 0);
        let gap = record(vec![create("ca/ca.pem"), append("ca/ca.pem", 3, "x")]);
        let error = replica.apply(1, Some(&gap)).unwrap_err().to_string();
        assert!(error.contains("record 1") && error.contains("has 0 bytes, not 3"), "{error}");
        for path in ["head.json", "../ca/x", "ca/../../x", "/etc/x", "ca/./../x", ""] {
            let error = replica.apply(1, Some(&record(vec![create(path)]))).unwrap_err();
            assert!(error.to_string().contains("no file of both heads"), "{path}: {error}");
        }
        replica.apply(1, Some(b"\xc1")).unwrap_err();
        replica.apply(1, None).unwrap();
        assert_eq!(replica.applied(), 1);
    }

    #[test]
    fn a_head_leaves_the_files_of_its_own_mirror_alone() {
        let temp = tempfile::tempdir().unwrap();
        let changes = vec![create("ca/ca.pem")];
        let record = ChangeRecord { made_by: Some("head-1".into()), changes }.encode().unwrap();
        for (me, count) in [("head-1", 0), ("head-2", 1)] {
            let dir = temp.path().join(me);
            Replica::new(&dir, me.into(), 0, 0).apply(1, Some(&record)).unwrap();
            assert_eq!(list(&dir).unwrap().len(), count);
        }
    }
}
