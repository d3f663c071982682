//! Atomic replacement of a file's content.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

/// Writes a file atomically: a reader sees the old content or the new one, at any moment and after
/// a crash.
///
/// It writes and syncs a temporary file in the same directory, then renames it. When this returns,
/// the new content survives a crash of the host.
///
/// # Errors
/// The system's error: the old content remains, and the temporary file is removed. If only the sync
/// of the directory fails, the new content remains but may not survive a crash.
pub fn write_atomic(path: &Path, bytes: &[u8]) -> io::Result<()> {
    replace(path, bytes, File::sync_all).and_then(|()| sync_dir(path))
}

/// Writes a file, completely or not at all, without a wait for the disk. A crash of the machine may
/// lose it, or leave it empty. For copies of what is stored elsewhere.
///
/// # Errors
/// The system's error: the old content remains, and the temporary file is removed.
pub fn write_unsynced(path: &Path, bytes: &[u8]) -> io::Result<()> {
    replace(path, bytes, |_| Ok(()))
}

fn replace(
    path: &Path,
    bytes: &[u8],
    sync: impl FnOnce(&File) -> io::Result<()>,
) -> io::Result<()> {
    let Some(name) = path.file_name() else {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "the path names no file"));
    };
    let mut temporary = std::ffi::OsString::from(".");
    temporary.push(name);
    temporary.push(format!(".{}.tmp", std::process::id()));
    let temporary = path.with_file_name(temporary);
    let written = File::create(&temporary)
        .and_then(|mut file| file.write_all(bytes).and_then(|()| sync(&file)))
        .and_then(|()| fs::rename(&temporary, path));
    if written.is_err() {
        let _ = fs::remove_file(&temporary);
    }
    written
}

/// Syncs the parent directory of a path, which makes a rename durable.
fn sync_dir(path: &Path) -> io::Result<()> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    match File::open(parent.unwrap_or(Path::new("."))).and_then(|dir| dir.sync_all()) {
        // Some file systems cannot sync a directory, and some directories cannot be opened for
        // reading.
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::InvalidInput
                    | io::ErrorKind::Unsupported
                    | io::ErrorKind::PermissionDenied
            ) =>
        {
            Ok(())
        }
        synced => synced,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_write_leaves_the_old_content_and_no_temporary_file() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("result.json");
        write_atomic(&path, b"old").unwrap();
        // A directory blocks the rename.
        let blocked = temp.path().join("blocked");
        fs::create_dir_all(blocked.join("full")).unwrap();
        assert!(write_atomic(&blocked, b"new").is_err());
        assert!(write_atomic(Path::new("/"), b"new").is_err());
        assert_eq!(fs::read(&path).unwrap(), b"old");
        assert_eq!(fs::read_dir(temp.path()).unwrap().count(), 2);
    }

    #[test]
    fn a_bare_file_name_is_in_the_current_directory() {
        sync_dir(Path::new("name")).unwrap();
        let error = sync_dir(Path::new("no/such/name")).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }
}
