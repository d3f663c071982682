//! A lease for the scheduler of a grid: only its holder may act, and each holder has a higher
//! number than all previous ones.
//!
//! The lease is a locked file next to the scheduler's store. The lock ends with its process in any
//! case. On a file system without reliable locks, two processes could take it. Then the number in
//! the file identifies the last one, and the earlier one detects that before it writes. This module
//! does not know the scheduler.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// Why a process does not hold the lease.
#[derive(Debug, thiserror::Error)]
pub enum LeaseError {
    /// Another process holds the lease.
    #[error(
        "a scheduler of this grid runs already ({holder}): end it first, or use it (lock file {})",
        path.display()
    )]
    Held {
        /// Process and host of the holder.
        holder: String,
        /// Path of the file.
        path: PathBuf,
    },
    /// Another process has taken it since.
    #[error("another scheduler of this grid has taken over (number {theirs}, this one is {ours})")]
    Superseded {
        /// Number of this holder.
        ours: u64,
        /// Number in the file.
        theirs: u64,
    },
    /// The system returned an error.
    #[error("cannot use {}: {source}", path.display())]
    Io {
        /// Path of the file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

/// The last holder of a lease, as its file contains it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseHolder {
    number: u64,
    /// Process id of the holder.
    pub pid: u32,
    /// Host of the process.
    pub host: String,
}

impl LeaseHolder {
    /// Whether the file was written on this host, so that its process id counts here.
    pub fn is_here(&self) -> bool {
        self.host == host()
    }
}

/// The lease, held as long as this value lives.
#[derive(Debug)]
pub struct Lease {
    path: PathBuf,
    /// The locked file.
    _file: File,
    number: u64,
}

impl Lease {
    /// Takes the lease under a new, higher number.
    ///
    /// # Errors
    /// [`LeaseError`] if another process holds it, or the file is unusable.
    pub fn take(path: &Path) -> Result<Self, LeaseError> {
        let io = |source| LeaseError::Io { path: path.to_owned(), source };
        let mut options = OpenOptions::new();
        let options = options.read(true).write(true).create(true).truncate(false);
        let mut file = options.open(path).map_err(io)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let holder = read(&mut file).map_err(io)?;
                let holder = holder
                    .map_or("unknown".to_owned(), |LeaseHolder { pid, host, .. }| {
                        format!("process {pid} on {host}")
                    });
                return Err(LeaseError::Held { holder, path: path.to_owned() });
            }
            Err(TryLockError::Error(source)) => return Err(io(source)),
        }
        let number = read(&mut file).map_err(io)?.map_or(0, |holder| holder.number) + 1;
        let holder = LeaseHolder { number, pid: std::process::id(), host: host() };
        let text = serde_json::to_vec(&holder).map_err(|error| io(io::Error::other(error)))?;
        file.seek(SeekFrom::Start(0))
            .and_then(|_| file.write_all(&text))
            .and_then(|()| file.set_len(text.len() as u64))
            .and_then(|()| file.sync_data())
            .map_err(io)?;
        Ok(Self { path: path.to_owned(), _file: file, number })
    }

    /// Reads the last holder of a lease, which may have ended. None if no process ever held it.
    ///
    /// # Errors
    /// [`LeaseError::Io`] if the file is unreadable.
    pub fn last_holder(path: &Path) -> Result<Option<LeaseHolder>, LeaseError> {
        let io = |source| LeaseError::Io { path: path.to_owned(), source };
        match File::open(path) {
            Ok(mut file) => read(&mut file).map_err(io),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(io(error)),
        }
    }

    /// Returns this holder's number.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Checks that no other process has taken the lease since.
    ///
    /// # Errors
    /// [`LeaseError::Superseded`]; [`LeaseError::Io`] if the file is unreadable.
    pub fn check(&self) -> Result<(), LeaseError> {
        let io = |source| LeaseError::Io { path: self.path.clone(), source };
        // Opens it by name: a replaced file counts.
        let mut file = File::open(&self.path).map_err(io)?;
        let theirs = read(&mut file).map_err(io)?.map_or(0, |holder| holder.number);
        if theirs == self.number {
            Ok(())
        } else {
            Err(LeaseError::Superseded { ours: self.number, theirs })
        }
    }
}

/// Reads the holder. An empty or damaged file has none.
fn read(file: &mut File) -> io::Result<Option<LeaseHolder>> {
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
    fn one_process_holds_it_and_the_next_has_a_higher_number() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("scheduler.lease");
        let first = Lease::take(&path).unwrap();
        assert_eq!(first.number(), 1);
        let holder = Lease::last_holder(&path).unwrap().unwrap();
        assert!(holder.is_here() && holder.pid == std::process::id(), "{holder:?}");
        assert_eq!(Lease::last_holder(&dir.path().join("other")).unwrap(), None);
        let refused = Lease::take(&path).unwrap_err().to_string();
        assert!(refused.contains(&format!("process {}", std::process::id())), "{refused}");
        first.check().unwrap();
        drop(first);
        let second = Lease::take(&path).unwrap();
        assert_eq!(second.number(), 2);
    }

    #[test]
    fn without_reliable_locks_the_first_holder_detects_the_second() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("scheduler.lease");
        let first = Lease::take(&path).unwrap();
        // Simulates a lost lock by another file of the same name, which continues the numbers.
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
