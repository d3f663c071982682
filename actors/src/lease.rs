//! One scheduler a grid: whoever has the lease may act, and each holder has a number higher than all before it.
//!
//! The lease is a locked file beside the scheduler's store. The lock ends with the process that has it, however that ends. Where a
//! file system does not keep locks, two could take it: then the file's number says who came last, and who came before finds
//! that out before it writes anything. Must not know what the scheduler does.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// Why there is no lease.
#[derive(Debug, thiserror::Error)]
pub enum LeaseError {
    /// Another process has it.
    #[error(
        "a scheduler of this grid runs already ({holder}): end it first, or use it (lock file {})", path.display()
    )]
    Held {
        /// Who.
        holder: String,
        /// The file.
        path: PathBuf,
    },
    /// Another process has taken it since.
    #[error("another scheduler of this grid has taken over (number {theirs}, this one is {ours})")]
    Superseded {
        /// This one's number.
        ours: u64,
        /// The number in the file.
        theirs: u64,
    },
    /// The system refused.
    #[error("cannot use {}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's word.
        source: io::Error,
    },
}

/// What the file says of its holder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Holder {
    number: u64,
    pid: u32,
    host: String,
}

/// The lease, held as long as this value lives.
#[derive(Debug)]
pub struct Lease {
    path: PathBuf,
    /// Locked.
    _file: File,
    number: u64,
}

impl Lease {
    /// Takes the lease under a number that nobody had before.
    ///
    /// # Errors
    /// [`LeaseError`].
    pub fn take(path: &Path) -> Result<Self, LeaseError> {
        let io = |source| LeaseError::Io { path: path.to_owned(), source };
        let mut options = OpenOptions::new();
        let options = options.read(true).write(true).create(true).truncate(false);
        let mut file = options.open(path).map_err(io)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let holder = read(&mut file).map_err(io)?;
                let holder = holder.map_or("unknown".to_owned(), |Holder { pid, host, .. }| {
                    format!("process {pid} on {host}")
                });
                return Err(LeaseError::Held { holder, path: path.to_owned() });
            }
            Err(TryLockError::Error(source)) => return Err(io(source)),
        }
        let number = read(&mut file).map_err(io)?.map_or(0, |holder| holder.number) + 1;
        let holder = Holder { number, pid: std::process::id(), host: host() };
        let text = serde_json::to_vec(&holder).map_err(|error| io(io::Error::other(error)))?;
        file.seek(SeekFrom::Start(0))
            .and_then(|_| file.write_all(&text))
            .and_then(|()| file.set_len(text.len() as u64))
            .and_then(|()| file.sync_data())
            .map_err(io)?;
        Ok(Self { path: path.to_owned(), _file: file, number })
    }

    /// This holder's number.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Whether nobody has taken it since.
    ///
    /// # Errors
    /// [`LeaseError::Superseded`]; [`LeaseError::Io`]: nobody can know.
    pub fn check(&self) -> Result<(), LeaseError> {
        let io = |source| LeaseError::Io { path: self.path.clone(), source };
        // By name: where the file was replaced, the new one counts.
        let mut file = File::open(&self.path).map_err(io)?;
        let theirs = read(&mut file).map_err(io)?.map_or(0, |holder| holder.number);
        match theirs == self.number {
            true => Ok(()),
            false => Err(LeaseError::Superseded { ours: self.number, theirs }),
        }
    }
}

/// An empty file has no holder, and a damaged one none that is known.
fn read(file: &mut File) -> io::Result<Option<Holder>> {
    let mut bytes = Vec::new();
    file.seek(SeekFrom::Start(0))?;
    file.take(1 << 16).read_to_end(&mut bytes)?;
    Ok(serde_json::from_slice(&bytes).ok())
}

fn host() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    if name.trim().is_empty() { "this machine".to_owned() } else { name.trim().to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_has_it_and_the_next_has_a_higher_number() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("scheduler.lease");
        let first = Lease::take(&path).unwrap();
        assert_eq!(first.number(), 1);
        let refused = Lease::take(&path).unwrap_err().to_string();
        assert!(refused.contains(&format!("process {}", std::process::id())), "{refused}");
        first.check().unwrap();
        drop(first);
        let second = Lease::take(&path).unwrap();
        assert_eq!(second.number(), 2);
    }

    #[test]
    fn where_locks_are_not_kept_the_first_finds_out() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("scheduler.lease");
        let first = Lease::take(&path).unwrap();
        // As if the lock had been lost: another file of the same name, which continues the numbers.
        let text = std::fs::read(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, text).unwrap();
        let second = Lease::take(&path).unwrap();
        second.check().unwrap();
        let error = first.check().unwrap_err();
        assert!(matches!(error, LeaseError::Superseded { ours: 1, theirs: 2 }), "{error}");
    }

    #[test]
    fn a_damaged_file_is_no_holder() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("scheduler.lease");
        std::fs::write(&path, b"\xff{").unwrap();
        assert_eq!(Lease::take(&path).unwrap().number(), 1);
    }
}
