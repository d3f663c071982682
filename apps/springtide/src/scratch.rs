//! Temporary directories of runs: they hold keys, and end with their run, also one that is killed.
//!
//! The process that made a directory holds a lock in it. The next start removes the directories
//! whose lock is free: their processes have ended, however that was. Process numbers say nothing.

use std::collections::hash_map::RandomState;
use std::fs::{self, DirBuilder, File};
use std::hash::{BuildHasher as _, Hasher as _};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use crate::exit::Failed;
use crate::grid::cannot;

/// Beginning of the name of a directory that is in use or left over.
const PREFIX: &str = "springtide-run-";
/// Beginning of its name before its lock is held.
const NEW: &str = ".springtide-new-";
/// The file in it that its process has locked.
const LOCK: &str = "owner.lock";

/// A temporary directory for this process alone. Dropped, it is removed.
#[derive(Debug)]
pub struct Scratch {
    path: PathBuf,
    /// Locked as long as the directory is in use.
    _lock: File,
}

impl Scratch {
    /// Makes one, and removes those of processes that have ended without removing theirs.
    ///
    /// # Errors
    /// The system refuses.
    pub fn make() -> Result<Self, Failed> {
        Self::make_in(&std::env::temp_dir())
    }

    #[allow(clippy::disallowed_methods)] // Its error is the caller's.
    fn make_in(base: &Path) -> Result<Self, Failed> {
        let random = RandomState::new().build_hasher().finish();
        let (new, path) =
            (base.join(format!("{NEW}{random:016x}")), base.join(format!("{PREFIX}{random:016x}")));
        let make = || -> io::Result<File> {
            // Of this name nothing may be there: others can write here, too.
            DirBuilder::new().mode(0o700).create(&new)?;
            let lock = File::create_new(new.join(LOCK))?;
            lock.lock()?;
            fs::rename(&new, &path)?;
            Ok(lock)
        };
        let lock = make().map_err(|error| cannot("make", &path, &error))?;
        remove_left_over(base, &path);
        Ok(Self { path, _lock: lock })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // What cannot be removed is left to the next start.
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// Removes the directories that the owner of `own` made and whose process has ended.
fn remove_left_over(base: &Path, own: &Path) {
    let Ok(user) = fs::metadata(own).map(|about| about.uid()) else { return };
    for entry in fs::read_dir(base).into_iter().flatten().flatten() {
        if !entry.file_name().to_string_lossy().starts_with(PREFIX) {
            continue;
        }
        let path = entry.path();
        let ours = |about: fs::Metadata| about.is_dir() && about.uid() == user;
        if !fs::symlink_metadata(&path).is_ok_and(ours) {
            continue;
        }
        let Ok(lock) = File::open(path.join(LOCK)) else { continue };
        if lock.try_lock().is_err() {
            continue;
        }
        match fs::remove_dir_all(&path) {
            Ok(()) => tracing::info!("{} of a run that has ended is removed", path.display()),
            Err(error) => tracing::warn!("{} cannot be removed: {error}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_that_a_killed_process_left_is_removed_and_one_in_use_is_not() {
        let base = tempfile::tempdir().unwrap();
        let used = Scratch::make_in(base.path()).unwrap();
        fs::write(used.path().join("node.key"), "key").unwrap();
        // Of a killed process the directory is there and the lock is free.
        let left = base.path().join(format!("{PREFIX}{:016x}", 1));
        fs::create_dir(&left).unwrap();
        fs::write(left.join(LOCK), "").unwrap();
        fs::write(left.join("node.key"), "key").unwrap();
        // Without a lock a directory is none of ours; under a link neither.
        let other = base.path().join(format!("{PREFIX}other"));
        fs::create_dir(&other).unwrap();
        let target = base.path().join("target");
        fs::create_dir(&target).unwrap();
        fs::write(target.join(LOCK), "").unwrap();
        std::os::unix::fs::symlink(&target, base.path().join(format!("{PREFIX}link"))).unwrap();
        let next = Scratch::make_in(base.path()).unwrap();
        assert!(!left.exists());
        assert!(used.path().join("node.key").exists() && other.exists() && target.exists());
        assert_eq!(fs::metadata(next.path()).unwrap().mode() & 0o777, 0o700);
        let path = next.path().to_owned();
        drop(next);
        assert!(!path.exists());
    }
}
