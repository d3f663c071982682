//! Replication of files of a head that are not written through [`ReplicatedFiles`]: by other
//! commands on the head's machine, or as copies for people.
//!
//! [`ReplicatedFiles`]: super::ReplicatedFiles
//!
//! A flush compares the files with those of the last flush, and commits the differences. Small
//! files of the authority and of enrolment are replicated when a head begins to act; others when
//! they change.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use super::files::{ChangeLog, appended};
use super::replica::{self, FileChange, PARTIAL, read_part};

/// Parts of a head's directory whose files are always replicated as a whole.
const WHOLE: &[&str] = &["ca", "join.records", "incarnation"];
/// Parts of a head's directory that stores write through replicated files.
const STORES: &[&str] = &["scheduler.records", "jobs.records"];

/// The state of a file at the last flush.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct KnownFile {
    length: u64,
    changed: Option<SystemTime>,
    /// Whether the other head has got the file from this process.
    is_sent: bool,
}

/// The mirror of the acting head's files.
#[derive(Debug)]
pub struct Mirror {
    log: Arc<ChangeLog>,
    known: Mutex<BTreeMap<String, KnownFile>>,
}

fn is_part(path: &str, of: &[&str]) -> bool {
    let first = path.split('/').next().unwrap_or(path);
    of.contains(&first)
}

/// The mirrored files in a directory.
fn find(dir: &Path) -> io::Result<BTreeMap<String, KnownFile>> {
    let files = replica::list(dir)?;
    let file = |entry: replica::ListedFile| {
        let changed = fs::metadata(dir.join(&entry.path)).and_then(|about| about.modified()).ok();
        (entry.path, KnownFile { length: entry.length, changed, is_sent: false })
    };
    Ok(files.into_iter().filter(|file| !is_part(&file.path, STORES)).map(file).collect())
}

impl Mirror {
    /// The mirror of a head that begins to act.
    ///
    /// # Errors
    /// The files cannot be listed.
    pub fn new(log: Arc<ChangeLog>) -> io::Result<Self> {
        let mut known = find(log.dir())?;
        known.retain(|path, _| !is_part(path, WHOLE));
        Ok(Self { log, known: Mutex::new(known) })
    }

    /// Commits all differences since the last flush. Blocks until they are committed.
    ///
    /// # Errors
    /// The files cannot be read; or the head has lost its right to act.
    pub fn flush(&self) -> io::Result<()> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let mut found = find(self.log.dir())?;
        let mut changes = Vec::new();
        for (path, file) in &mut found {
            let before = known.get(path).copied();
            file.is_sent = before.is_some_and(|before| before.is_sent);
            if before.is_some_and(|before| before == *file) {
                continue;
            }
            let offset = match before {
                Some(before)
                    if before.is_sent && before.length < file.length && !is_part(path, WHOLE) =>
                {
                    before.length
                }
                _ => 0,
            };
            let at = self.log.dir().join(path);
            // It may be removed meanwhile, which the next flush finds.
            let Some(bytes) = read_part(&at, offset, file.length - offset)? else { continue };
            file.length = offset + bytes.len() as u64;
            file.is_sent = true;
            if offset > 0 {
                changes.extend(appended(path, offset, &bytes));
            } else {
                let partial = format!("{path}{PARTIAL}");
                changes.push(FileChange::Create { path: partial.clone() });
                changes.extend(appended(&partial, 0, &bytes));
                changes.push(FileChange::Rename { from: partial, to: path.clone() });
            }
        }
        let gone = known.keys().filter(|path| !found.contains_key(*path));
        changes.extend(gone.map(|path| FileChange::Remove { path: path.clone() }));
        if !changes.is_empty() {
            self.log.commit_made(changes)?;
        }
        *known = found;
        Ok(())
    }
}
