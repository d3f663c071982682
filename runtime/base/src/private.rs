//! Files and directories that only their owner may use: keys, tokens and the state of a grid.
//!
//! Knows modes and owners, not what the files hold. On systems without modes every check passes.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Permission bits of the group and of everybody else.
#[cfg(unix)]
const OTHERS: u32 = 0o077;

/// A private file or directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PrivateError {
    /// Its mode lets others use it.
    #[error("{} is open to others than its owner (mode {mode:03o}): run `chmod {wanted:03o} {}`, \
             and replace what it holds if others may have read it", path.display(), path.display())]
    Open {
        /// Which file or directory.
        path: PathBuf,
        /// Its mode.
        mode: u32,
        /// The mode it must have.
        wanted: u32,
    },
    /// The system refuses.
    #[error("cannot use {}: {source}", path.display())]
    Io {
        /// Which file or directory.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

/// Checks that others than its owner can neither read nor write a file.
///
/// # Errors
/// [`PrivateError`].
pub fn check_file(path: &Path) -> Result<(), PrivateError> {
    check(path, 0o600)
}

/// Checks that others than its owner cannot enter, list or change a directory.
///
/// # Errors
/// [`PrivateError`].
pub fn check_dir(path: &Path) -> Result<(), PrivateError> {
    check(path, 0o700)
}

#[cfg(unix)]
fn check(path: &Path, wanted: u32) -> Result<(), PrivateError> {
    use std::os::unix::fs::PermissionsExt as _;
    let io = |source| PrivateError::Io { path: path.to_owned(), source };
    let mode = fs::metadata(path).map_err(io)?.permissions().mode() & 0o777;
    match mode & OTHERS {
        0 => Ok(()),
        _ => Err(PrivateError::Open { path: path.to_owned(), mode, wanted }),
    }
}

#[cfg(not(unix))]
fn check(path: &Path, _: u32) -> Result<(), PrivateError> {
    let io = |source| PrivateError::Io { path: path.to_owned(), source };
    fs::metadata(path).map(drop).map_err(io)
}

/// Makes a directory and its parents, where they do not exist, for their owner alone.
///
/// # Errors
/// The system's.
pub fn make_dir(dir: &Path) -> io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(dir)
}

/// Makes an empty file for its owner alone, or empties the one that exists.
///
/// # Errors
/// The system's.
pub fn make_file(path: &Path) -> io::Result<fs::File> {
    let mut options = fs::OpenOptions::new();
    options.read(true).write(true).create(true).truncate(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)
}

/// Gives what root makes in another user's directory to that user, whose service must read it.
/// Changes nothing for other users, and in root's own directories.
///
/// # Errors
/// The system's.
#[cfg(unix)]
pub fn give_to_owner(path: &Path) -> io::Result<()> {
    use std::os::unix::fs::{MetadataExt as _, chown};
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let (parent, own) = (fs::metadata(parent.unwrap_or(Path::new(".")))?, fs::metadata(path)?);
    match own.uid() == 0 && parent.uid() != 0 {
        true => chown(path, Some(parent.uid()), Some(parent.gid())),
        false => Ok(()),
    }
}

/// There are no owners elsewhere.
///
/// # Errors
/// None.
#[cfg(not(unix))]
pub fn give_to_owner(_: &Path) -> io::Result<()> {
    Ok(())
}

#[cfg(all(test, unix))]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn every_mode_that_lets_others_in_is_refused_with_the_command_that_mends_it() {
        let temp = tempfile::tempdir().unwrap();
        let (dir, file) = (temp.path().join("dir"), temp.path().join("file"));
        make_dir(&dir).unwrap();
        make_file(&file).unwrap();
        for bits in 0..0o777 {
            for (path, wanted) in [(&dir, 0o700), (&file, 0o600)] {
                fs::set_permissions(path, fs::Permissions::from_mode(bits)).unwrap();
                let checked = check(path, wanted);
                assert_eq!(checked.is_ok(), bits & 0o077 == 0, "{bits:03o}");
                if let Err(error) = checked {
                    let mend = format!("chmod {wanted:03o} {}", path.display());
                    assert!(error.to_string().contains(&mend), "{error}");
                }
            }
        }
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o700)).unwrap();
        assert!(check_file(&dir.join("none")).is_err());
    }
}
