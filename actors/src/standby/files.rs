//! The files of the acting head, as its stores write them: a change is durable when both heads have
//! it, or when the witness has its position.
//!
//! Changes wait until a sync. A sync makes them one record, and returns when it is committed and
//! applied here. So the files contain nothing that another head could miss. Syncs of several
//! threads share a record. This module does not know the stores.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::Duration;

use actix::Addr;
use bytes::Bytes;
use springtide_runtime::id::NodeId;
use springtide_runtime::records::{Disk, Files, OpenFile};

use super::replica::{ChangeRecord, FileChange, is_replicated};
use super::{AppendRecords, StandbyMember};

/// Bytes of a change or record; longer writes are divided.
const CHUNK_BYTES: usize = 256 << 10;
/// Bytes of records that are appended at once.
const APPEND_BYTES: usize = 4 << 20;
/// Time limit of a sync. It exceeds the lease, after which a record that is not committed fails.
const COMMIT_TIMEOUT: Duration = Duration::from_secs(20);

/// Appends to the replicated log of a head.
#[derive(Debug)]
pub struct ChangeLog {
    dir: PathBuf,
    me: NodeId,
    member: Addr<StandbyMember>,
    /// Changes that no record has yet.
    pending: Mutex<Vec<FileChange>>,
    /// The present paths of open files. A file stays open when it is renamed.
    open: Mutex<BTreeMap<u64, String>>,
    /// Why nothing is appended any more. Held while a record is being committed.
    committing: Mutex<Option<String>>,
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    // Each step leaves the value valid.
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ChangeLog {
    /// The log of the member that acts as head `me` with this directory.
    pub fn new(dir: &Path, me: NodeId, member: Addr<StandbyMember>) -> Arc<Self> {
        let (pending, open, committing) = Default::default();
        Arc::new(Self { dir: dir.to_owned(), me, member, pending, open, committing })
    }

    /// Opens a file for writing.
    fn open(self: &Arc<Self>, path: String) -> Box<dyn OpenFile> {
        let mut open = lock(&self.open);
        let number = open.last_key_value().map_or(0, |(last, _)| last + 1);
        open.insert(number, path);
        Box::new(ReplicatedFile { number, log: Arc::clone(self) })
    }

    /// The directory of the head.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The path of a replicated file in a record.
    fn relative(&self, path: &Path) -> io::Result<String> {
        let relative = path.strip_prefix(&self.dir).ok().and_then(Path::to_str);
        relative.filter(|path| is_replicated(path)).map(str::to_owned).ok_or_else(|| {
            let reason = format!("{} is no file of both heads", path.display());
            io::Error::new(io::ErrorKind::InvalidInput, reason)
        })
    }

    fn add(&self, change: FileChange) {
        lock(&self.pending).push(change);
    }

    /// Commits all changes of earlier calls.
    fn commit(&self) -> io::Result<()> {
        let mut failed = lock(&self.committing);
        let changes = std::mem::take(&mut *lock(&self.pending));
        self.append(&mut failed, None, changes)
    }

    /// Commits changes of files that other processes of this head have made.
    ///
    /// # Errors
    /// They may be committed later or never; the head must stop.
    pub fn commit_made(&self, changes: Vec<FileChange>) -> io::Result<()> {
        let mut failed = lock(&self.committing);
        self.append(&mut failed, Some(self.me.clone()), changes)
    }

    fn append(
        &self,
        failed: &mut Option<String>,
        made_by: Option<NodeId>,
        changes: Vec<FileChange>,
    ) -> io::Result<()> {
        if let Some(reason) = failed {
            return Err(io::Error::other(reason.clone()));
        }
        let mut appended = Ok(());
        for values in divided(made_by, changes)? {
            let (answer, answered) = mpsc::channel();
            // A sync that has failed waits no more.
            let reply = Box::new(move |result| _ = answer.send(result));
            self.member.do_send(AppendRecords { values, reply });
            appended = match answered.recv_timeout(COMMIT_TIMEOUT) {
                Ok(Ok(_)) => continue,
                Ok(Err(error)) => Err(error.to_string()),
                Err(_) => Err("the member of this head does not answer".to_owned()),
            };
            break;
        }
        appended.map_err(|reason| {
            // The stores' memory may differ from the log now.
            *failed = Some(reason.clone());
            io::Error::other(reason)
        })
    }
}

/// Bytes of a change, about.
fn size(change: &FileChange) -> usize {
    match change {
        FileChange::Append { path, bytes, .. } => path.len() + bytes.len(),
        FileChange::Rename { from, to } => from.len() + to.len(),
        FileChange::Create { path }
        | FileChange::Truncate { path, .. }
        | FileChange::Remove { path } => path.len(),
    }
}

/// The records of changes, in groups that are appended at once.
fn divided(made_by: Option<NodeId>, changes: Vec<FileChange>) -> io::Result<Vec<Vec<Vec<u8>>>> {
    let (mut groups, mut group, mut group_bytes) = (Vec::new(), Vec::new(), 0);
    let mut changes = changes.into_iter().peekable();
    while changes.peek().is_some() {
        let (mut some, mut bytes) = (Vec::new(), 0);
        while let Some(change) =
            changes.next_if(|change| bytes == 0 || bytes + size(change) <= CHUNK_BYTES)
        {
            bytes += size(&change).max(1);
            some.push(change);
        }
        group.push(ChangeRecord { made_by: made_by.clone(), changes: some }.encode()?);
        group_bytes += bytes;
        if group_bytes >= APPEND_BYTES {
            groups.push(std::mem::take(&mut group));
            group_bytes = 0;
        }
    }
    groups.push(group);
    groups.retain(|group| !group.is_empty());
    Ok(groups)
}

/// The changes that replace everything of a file from an offset on.
pub(super) fn appended(path: &str, offset: u64, bytes: &[u8]) -> Vec<FileChange> {
    let chunks = bytes.chunks(CHUNK_BYTES).zip((offset..).step_by(CHUNK_BYTES));
    let change = |(chunk, offset): (&[u8], u64)| FileChange::Append {
        path: path.to_owned(),
        offset,
        bytes: Bytes::copy_from_slice(chunk),
    };
    chunks.map(change).collect()
}

/// The files of the acting head.
#[derive(Clone, Debug)]
pub struct ReplicatedFiles(pub Arc<ChangeLog>);

impl Files for ReplicatedFiles {
    /// A directory of the other head is created with its first file.
    fn make_dir(&self, dir: &Path) -> io::Result<()> {
        Disk.make_dir(dir)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        Disk.list(dir)
    }

    fn read(&self, path: &Path, offset: u64) -> io::Result<Vec<u8>> {
        Disk.read(path, offset)
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn OpenFile>> {
        let path = self.0.relative(path)?;
        self.0.add(FileChange::Create { path: path.clone() });
        Ok(self.0.open(path))
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn OpenFile>> {
        // Without such a file this fails.
        path.metadata()?;
        Ok(self.0.open(self.0.relative(path)?))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let (from, to) = (self.0.relative(from)?, self.0.relative(to)?);
        let mut open = lock(&self.0.open);
        open.values_mut().filter(|path| **path == from).for_each(|path| path.clone_from(&to));
        self.0.add(FileChange::Rename { from, to });
        Ok(())
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        path.metadata()?;
        let path = self.0.relative(path)?;
        self.0.add(FileChange::Remove { path });
        Ok(())
    }

    fn sync_dir(&self, _: &Path) -> io::Result<()> {
        self.0.commit()
    }
}

/// A file of the acting head that is open for writing.
#[derive(Debug)]
struct ReplicatedFile {
    /// The key of its path.
    number: u64,
    log: Arc<ChangeLog>,
}

impl ReplicatedFile {
    /// Adds changes of the file under its present path.
    fn add(&self, changes: impl FnOnce(&str) -> Vec<FileChange>) {
        let open = lock(&self.log.open);
        changes(&open[&self.number]).into_iter().for_each(|change| self.log.add(change));
    }
}

impl Drop for ReplicatedFile {
    fn drop(&mut self) {
        lock(&self.log.open).remove(&self.number);
    }
}

impl OpenFile for ReplicatedFile {
    fn write(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.add(|path| appended(path, offset, bytes));
        Ok(())
    }

    fn truncate(&mut self, length: u64) -> io::Result<()> {
        self.add(|path| vec![FileChange::Truncate { path: path.to_owned(), length }]);
        Ok(())
    }

    fn sync(&mut self) -> io::Result<()> {
        self.log.commit()
    }
}

#[cfg(test)]
mod tests {
    use springtide_runtime::wire::decode_stored;

    use super::*;

    #[test]
    fn long_writes_are_divided_in_their_order() {
        let bytes: Vec<u8> = (0..9_000_000_u32).map(|number| number as u8).collect();
        let mut changes = vec![FileChange::Create { path: "jobs/a".to_owned() }];
        changes.extend(appended("jobs/a", 0, &bytes));
        changes.push(FileChange::Rename { from: "jobs/a".to_owned(), to: "jobs/b".to_owned() });
        let groups = divided(None, changes.clone()).unwrap();
        assert!(groups.len() >= 2);
        let mut found = Vec::new();
        for record in groups.iter().flatten() {
            assert!(record.len() < CHUNK_BYTES + 1000, "{}", record.len());
            found.extend(decode_stored::<ChangeRecord>(record).unwrap().changes);
        }
        assert_eq!(found, changes);
        assert_eq!(divided(None, Vec::new()).unwrap(), Vec::<Vec<Vec<u8>>>::new());
    }
}
