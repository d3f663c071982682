//! Files and directories that only their owner may use: keys, tokens and the state of a grid.
//!
//! It handles modes and owners and does not know the contents. On systems without modes every check
//! passes.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// The permission bits of all users except the owner.
#[cfg(unix)]
const OTHERS: u32 = 0o077;

/// The reason why a private file or directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PrivateError {
    /// Its mode lets other users access it.
    #[error("{} is open to others than its owner (mode {mode:03o}): run `chmod {wanted:03o} {}`, \
             and replace what it holds if others may have read it", path.display(), path.display())]
    Open {
        /// The path of the file or directory.
        path: PathBuf,
        /// The mode that it has.
        mode: u32,
        /// The mode that it must have.
        wanted: u32,
    },
    /// The system denies access.
    #[error("cannot use {}: {source}", path.display())]
    Io {
        /// The path of the file or directory.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
}

/// Checks that only its owner can read and write a file.
///
/// # Errors
/// It is open to others or cannot be read: [`PrivateError`].
pub fn check_file(path: &Path) -> Result<(), PrivateError> {
    check(path, 0o600)
}

/// Checks that only its owner can enter, list and change a directory.
///
/// # Errors
/// It is open to others or cannot be read: [`PrivateError`].
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

/// Creates a directory for its owner alone, with missing parents.
///
/// # Errors
/// The system refuses it.
pub fn make_dir(dir: &Path) -> io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(dir)
}

/// Creates an empty file for its owner alone, or truncates an existing one, which then is for its
/// owner alone.
///
/// # Errors
/// The system refuses it, or the file is a link.
pub fn make_file(path: &Path) -> io::Result<fs::File> {
    if path.is_symlink() {
        let why = format!("{} is a link: remove it", path.display());
        return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
    }
    let mut options = fs::OpenOptions::new();
    options.read(true).write(true).create(true).truncate(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let file = options.open(path)?;
    // The mode above is only that of a new file.
    #[cfg(unix)]
    file.set_permissions(std::os::unix::fs::PermissionsExt::from_mode(0o600))?;
    Ok(file)
}

/// Gives a file that root created in another user's directory to that user, whose service must read
/// it. No effect for other users, or in root's own directories.
///
/// # Errors
/// The system refuses it.
#[cfg(unix)]
pub fn give_to_owner(path: &Path) -> io::Result<()> {
    use std::os::unix::fs::{MetadataExt as _, chown};
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let (parent, own) = (fs::metadata(parent.unwrap_or(Path::new(".")))?, fs::metadata(path)?);
    if own.uid() == 0 && parent.uid() != 0 {
        chown(path, Some(parent.uid()), Some(parent.gid()))
    } else {
        Ok(())
    }
}

/// Does nothing: other systems have no owners.
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
    fn every_mode_with_access_for_others_is_refused_with_a_remedy() {
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

    #[test]
    fn a_file_is_for_its_owner_alone_even_if_it_existed() {
        let temp = tempfile::tempdir().unwrap();
        let (file, link) = (temp.path().join("file"), temp.path().join("link"));
        fs::write(&file, "old").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
        make_file(&file).unwrap();
        let made = fs::metadata(&file).unwrap();
        assert_eq!((made.permissions().mode() & 0o777, made.len()), (0o600, 0));
        // Another user may have made the link, to read what is written.
        std::os::unix::fs::symlink(temp.path().join("elsewhere"), &link).unwrap();
        assert!(make_file(&link).unwrap_err().to_string().contains("is a link"));
        assert!(!temp.path().join("elsewhere").exists());
    }
}
