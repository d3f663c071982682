//! Temporary directories of runs: they contain keys, and are removed with their run, even if it is
//! killed.
//!
//! The process that created a directory holds a lock in it. The next start removes the directories
//! whose lock is free: their processes have ended. Process ids are not reliable.

use std::collections::hash_map::RandomState;
use std::fs::{self, DirBuilder, File};
use std::hash::{BuildHasher as _, Hasher as _};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use springtide_cli::exit::{Failed, cannot};

use super::grid_files::clear;

/// Prefix of the names of directories in use or left over.
const PREFIX: &str = "springtide-run-";
/// Prefix of the name before the lock is held.
const NEW: &str = ".springtide-new-";
/// The lock file of the owning process.
const LOCK: &str = "owner.lock";

/// A temporary directory for this process alone. Dropping it removes the directory.
#[derive(Debug)]
pub struct Scratch {
    path: PathBuf,
    /// Locked as long as the directory is in use.
    _lock: File,
}

impl Scratch {
    /// Creates a directory, and removes those of processes that ended without removing theirs.
    ///
    /// # Errors
    /// The operating system reports an error.
    pub fn make() -> Result<Self, Failed> {
        Self::make_in(&std::env::temp_dir())
    }

    #[allow(clippy::disallowed_methods)] // the caller reports the error
    fn make_in(base: &Path) -> Result<Self, Failed> {
        let random = RandomState::new().build_hasher().finish();
        let (new, path) =
            (base.join(format!("{NEW}{random:016x}")), base.join(format!("{PREFIX}{random:016x}")));
        let make = || -> io::Result<File> {
            // The name must be unused, because other users can write here.
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

    /// The path of the directory.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // The next start removes a directory that stays.
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// The directory of a grid that ends with its program: a given one, or a temporary one. Files of
/// the grid are removed at the end, above all its keys; logs stay in a given directory.
#[derive(Debug)]
pub enum GridDir {
    /// A given directory, such as that of a run.
    Given(PathBuf),
    /// A temporary directory.
    Temporary(Scratch),
}

impl GridDir {
    /// Uses this directory, or creates a temporary one.
    ///
    /// # Errors
    /// The operating system reports an error.
    pub fn make(given: Option<&Path>) -> Result<Self, Failed> {
        match given {
            Some(path) => Ok(Self::Given(path.to_owned())),
            None => Scratch::make().map(Self::Temporary),
        }
    }

    /// The path of the directory.
    pub fn path(&self) -> &Path {
        match self {
            Self::Given(path) => path,
            Self::Temporary(scratch) => scratch.path(),
        }
    }
}

impl Drop for GridDir {
    fn drop(&mut self) {
        if let Self::Given(path) = self {
            clear(path);
        }
    }
}

/// Removes the directories of the owner of `own` whose process has ended.
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
    fn directories_of_killed_processes_are_removed_and_others_stay() {
        let base = tempfile::tempdir().unwrap();
        let used = Scratch::make_in(base.path()).unwrap();
        fs::write(used.path().join("node.key"), "key").unwrap();
        // A killed process leaves the directory and a free lock.
        let leftover = base.path().join(format!("{PREFIX}{:016x}", 1));
        fs::create_dir(&leftover).unwrap();
        fs::write(leftover.join(LOCK), "").unwrap();
        fs::write(leftover.join("node.key"), "key").unwrap();
        // A directory without a lock, or behind a link, is not one of a run.
        let other = base.path().join(format!("{PREFIX}other"));
        fs::create_dir(&other).unwrap();
        let target = base.path().join("target");
        fs::create_dir(&target).unwrap();
        fs::write(target.join(LOCK), "").unwrap();
        std::os::unix::fs::symlink(&target, base.path().join(format!("{PREFIX}link"))).unwrap();
        let next = Scratch::make_in(base.path()).unwrap();
        assert!(!leftover.exists());
        assert!(used.path().join("node.key").exists() && other.exists() && target.exists());
        assert_eq!(fs::metadata(next.path()).unwrap().mode() & 0o777, 0o700);
        let path = next.path().to_owned();
        drop(next);
        assert!(!path.exists());
    }
}
