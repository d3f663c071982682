//! Incarnations of real nodes: their issue, and the behaviour of a process that peers refuse as an
//! earlier one.
//!
//! No clock is involved. Each process takes the number after the last one in the directory of its
//! node's certificate, under a lock. So of two processes of one directory the later one has the
//! larger number, independent of the machine's clock.
//!
//! A directory can be lost, restored or copied. Its number may then be smaller than one that peers
//! remember. They refuse the process, and report the number that they know. The consequence depends
//! on the refusing peer:
//!
//! - Its site or the head refuses a process that was never registered: it restarts above the known
//!   number.
//! - Its site or the head refuses a process that was registered before: it ends, since a later
//!   process has replaced it.
//! - Another node refuses it: that node forgets the number after a minute without a link to the
//!   process that had it.
//!
//! A process also ends if a later one has taken a number from the same directory. It exceeds others
//! only until its first registration, so two live processes cannot exceed each other in turn.
//!
//! A head counts in the grid's directory while it holds the lease. If that directory is lost, nodes
//! and sites forget the former head's number in the same way. A client's name is used once.
//!
//! This module knows neither roles nor messages.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

use ring::rand::{SecureRandom, SystemRandom};

use crate::atomic_file::write_atomic;
use crate::id::Incarnation;

/// Name of the file with the last number issued, in decimal digits.
pub const FILE: &str = "incarnation";
/// Name of the file that is locked while a number is issued.
const LOCK: &str = "incarnation.lock";

/// Why no incarnation is available.
#[derive(Debug, thiserror::Error)]
pub enum IncarnationError {
    /// The system returned an error.
    #[error("cannot use {}: {source}", .file.display())]
    Io {
        /// Path of the file.
        file: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The file does not contain a number.
    #[error(
        "{} holds no number ({text:?}): remove it, and the node restarts above the number that its \
         site knows", .file.display()
    )]
    Malformed {
        /// Path of the file.
        file: PathBuf,
        /// Contents of the file.
        text: String,
    },
    /// A later process has taken a number from the same directory.
    #[error("a later process of this node was started from {}", .dir.display())]
    Superseded {
        /// Path of the directory.
        dir: PathBuf,
    },
}

/// Issues the next incarnation of the node whose certificate is in `dir`.
///
/// # Errors
/// `Io`, `Malformed`.
pub fn issue(dir: &Path) -> Result<Incarnation, IncarnationError> {
    let _lock = lock(dir)?;
    let next = match latest(dir)? {
        Some(latest) => after(latest),
        None => only(),
    };
    write(dir, next)
}

/// Makes the node's next process exceed `known`, which a peer remembers.
///
/// `own` is the incarnation of the calling process. `known` is absent if a peer of an older version
/// refused without a number.
///
/// # Errors
/// `Superseded`, `Io`, `Malformed`.
pub fn raise(
    dir: &Path,
    own: Incarnation,
    known: Option<Incarnation>,
) -> Result<(), IncarnationError> {
    let _lock = lock(dir)?;
    if latest(dir)?.is_some_and(|latest| latest > own) {
        return Err(IncarnationError::Superseded { dir: dir.to_owned() });
    }
    write(dir, known.unwrap_or(own).max(own)).map(drop)
}

/// Returns the last incarnation issued from `dir`.
///
/// # Errors
/// `Io`, `Malformed`.
pub fn latest(dir: &Path) -> Result<Option<Incarnation>, IncarnationError> {
    let file = dir.join(FILE);
    match fs::read_to_string(&file) {
        Ok(text) => match text.trim().parse() {
            Ok(number) => Ok(Some(Incarnation(number))),
            Err(_) => Err(IncarnationError::Malformed { file, text }),
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(IncarnationError::Io { file, source }),
    }
}

/// The only incarnation of a node whose name is used once, such as a client's.
pub fn only() -> Incarnation {
    Incarnation::first(tie_break())
}

/// The next incarnation after one, without a file that counts them.
pub fn after(known: Incarnation) -> Incarnation {
    known.next(tie_break())
}

/// A random number for unique names.
///
/// # Panics
/// Panics if the system has no random numbers.
pub fn unique() -> u64 {
    u64::from_le_bytes(random())
}

fn tie_break() -> u16 {
    u16::from_le_bytes(random())
}

fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    SystemRandom::new().fill(&mut bytes).expect("the system has random numbers");
    bytes
}

fn lock(dir: &Path) -> Result<File, IncarnationError> {
    let file = dir.join(LOCK);
    let mut options = OpenOptions::new();
    let opened = options.write(true).create(true).truncate(false).open(&file);
    let locked = opened.and_then(|opened| opened.lock().map(|()| opened));
    locked.map_err(|source| IncarnationError::Io { file, source })
}

fn write(dir: &Path, incarnation: Incarnation) -> Result<Incarnation, IncarnationError> {
    let file = dir.join(FILE);
    let written = write_atomic(&file, format!("{}\n", incarnation.0).as_bytes());
    written.map_err(|source| IncarnationError::Io { file, source })?;
    Ok(incarnation)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_process_of_a_directory_has_a_larger_number_for_any_clock() {
        let temp = tempfile::tempdir().unwrap();
        let dir = temp.path();
        assert_eq!(latest(dir).unwrap(), None);
        let first = issue(dir).unwrap();
        let mut last = first;
        for _ in 0..20 {
            // The file's time, as after a clock was set back, must not matter.
            let file = File::options().write(true).open(dir.join(FILE)).unwrap();
            file.set_modified(std::time::UNIX_EPOCH).unwrap();
            let next = issue(dir).unwrap();
            assert!(next > last, "{next:?} {last:?}");
            last = next;
        }
        assert_eq!(latest(dir).unwrap(), Some(last));
    }

    #[test]
    fn processes_that_start_at_once_get_different_numbers() {
        let temp = tempfile::tempdir().unwrap();
        let dir = temp.path();
        let mut all: Vec<Incarnation> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(|| issue(dir).unwrap())).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        all.sort_unstable();
        // Apart from tie-breaks, each took the next counter.
        let counters: Vec<u64> = all.iter().map(|it| it.0 >> 16).collect();
        assert!(counters.windows(2).all(|two| two[0] + 1 == two[1]), "{counters:?}");
    }

    #[test]
    fn a_refused_process_exceeds_the_known_number_unless_superseded() {
        let temp = tempfile::tempdir().unwrap();
        let dir = temp.path();
        let own = issue(dir).unwrap();
        let known = Incarnation(own.0 + (77 << 16));
        raise(dir, own, Some(known)).unwrap();
        let again = issue(dir).unwrap();
        assert!(again > known);
        // The process that was refused before is outdated.
        let refused = raise(dir, own, Some(Incarnation(u64::MAX)));
        assert!(matches!(refused, Err(IncarnationError::Superseded { .. })), "{refused:?}");
        assert_eq!(latest(dir).unwrap(), Some(again));
        // A peer of an older version reports no number.
        raise(dir, again, None).unwrap();
        assert!(issue(dir).unwrap() > again);
        // The known number may be smaller, but the counter never decreases.
        let own = issue(dir).unwrap();
        raise(dir, own, Some(Incarnation(1))).unwrap();
        assert!(issue(dir).unwrap() > own);
    }

    #[test]
    fn a_file_without_a_number_is_refused_by_its_name() {
        let temp = tempfile::tempdir().unwrap();
        fs::write(temp.path().join(FILE), "yesterday\n").unwrap();
        let error = issue(temp.path()).unwrap_err().to_string();
        assert!(error.contains("incarnation holds no number") && error.contains("remove it"));
    }
}
