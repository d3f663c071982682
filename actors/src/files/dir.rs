//! A cluster's directory of input files on disk: scanning, reading and writing.
//!
//! All functions block, so call them on threads that may block. No name leads out of the directory,
//! and no link is followed. A file gets its name only when it is complete and its checksum is
//! right. This module must not depend on the network.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use ring::digest::{Context, SHA256};
use springtide_runtime::files::check_name;
use springtide_runtime::id::ClusterId;

use springtide_protocol::files::{FileEntry, FileError};

/// Size of the pieces in which files are read and hashed.
const PIECE_SIZE: usize = 1 << 20;
/// Digits of the checksum in the name of an incomplete file.
const PART_DIGITS: usize = 16;

/// A directory of input files.
#[derive(Clone, Debug)]
pub(crate) struct Dir {
    pub(crate) cluster: ClusterId,
    pub(crate) path: PathBuf,
    /// Largest accepted file, in bytes.
    pub(crate) largest: u64,
    /// Permissions of received files.
    pub(crate) mode: u32,
}

/// Permissions of input files, which nodes of other users may read.
pub(crate) const FILE_MODE: u32 = 0o644;

/// Metadata that identify an unchanged file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stamp {
    pub(super) bytes: u64,
    modified: (i64, i64),
    inode: u64,
}

impl Stamp {
    fn of(file: &fs::Metadata) -> Self {
        let modified = (file.mtime(), file.mtime_nsec());
        Self { bytes: file.len(), modified, inode: file.ino() }
    }
}

fn hex(digest: &[u8]) -> String {
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn disk_error(name: &str, error: &io::Error) -> FileError {
    FileError::Disk { name: name.to_owned(), reason: error.to_string() }
}

impl Dir {
    /// Creates the directory if it does not exist.
    pub(super) fn create(&self) -> io::Result<()> {
        fs::create_dir_all(&self.path)
    }

    /// Lists the regular files. Skips names that are not allowed, files that are too large, and
    /// others.
    pub(crate) fn list(&self) -> io::Result<BTreeMap<String, Stamp>> {
        let mut all = BTreeMap::new();
        for entry in fs::read_dir(&self.path)? {
            let entry = entry?;
            let Ok(name) = entry.file_name().into_string() else { continue };
            // The file has disappeared or cannot be accessed: it counts as absent.
            let Ok(found) = fs::symlink_metadata(entry.path()) else { continue };
            if check_name(&name).is_ok() && found.is_file() && found.len() <= self.largest {
                all.insert(name, Stamp::of(&found));
            }
        }
        Ok(all)
    }

    /// Removes files. Absent files are not an error.
    pub(super) fn remove(&self, names: &[String]) -> Result<(), FileError> {
        for name in names {
            check_name(name)?;
            match fs::remove_file(self.path.join(name)) {
                Err(error) if error.kind() != ErrorKind::NotFound => {
                    return Err(disk_error(name, &error));
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn open(&self, name: &str) -> Result<(File, Stamp), FileError> {
        check_name(name)?;
        let unknown =
            || FileError::Unknown { cluster: self.cluster.clone(), name: name.to_owned() };
        // Does not wait: the file may be a pipe without a writer.
        let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_CLOEXEC;
        let opened = OpenOptions::new().read(true).custom_flags(flags).open(self.path.join(name));
        let file = opened.map_err(|error| match error.kind() {
            ErrorKind::NotFound => unknown(),
            // A link may lead out of the directory.
            _ if error.raw_os_error() == Some(libc::ELOOP) => unknown(),
            _ => disk_error(name, &error),
        })?;
        let found = file.metadata().map_err(|error| disk_error(name, &error))?;
        if !found.is_file() {
            return Err(unknown());
        }
        Ok((file, Stamp::of(&found)))
    }

    /// Reads the whole file and computes its checksum.
    pub(crate) fn read_entry(&self, name: &str) -> Result<(Stamp, FileEntry), FileError> {
        let (mut file, stamp) = self.open(name)?;
        let mut hash = Context::new(&SHA256);
        let bytes =
            hash_rest(&mut file, &mut hash, u64::MAX).map_err(|error| disk_error(name, &error))?;
        let entry = FileEntry { name: name.to_owned(), bytes, sum: hex(hash.finish().as_ref()) };
        Ok((Stamp { bytes, ..stamp }, entry))
    }

    /// The present stamp of a file.
    pub(crate) fn stamp(&self, name: &str) -> Result<Stamp, FileError> {
        Ok(self.open(name)?.1)
    }

    /// Reads bytes of a file that is unchanged since this stamp.
    pub(crate) fn read(
        &self,
        name: &str,
        stamp: Stamp,
        at: u64,
        len: u32,
    ) -> Result<Vec<u8>, FileError> {
        let (file, now) = self.open(name)?;
        if now != stamp {
            return Err(FileError::Conflict {
                cluster: self.cluster.clone(),
                name: name.to_owned(),
            });
        }
        let left = stamp.bytes.saturating_sub(at).min(u64::from(len));
        let mut bytes = vec![0; usize::try_from(left).unwrap_or(0)];
        file.read_exact_at(&mut bytes, at).map_err(|error| disk_error(name, &error))?;
        Ok(bytes)
    }

    pub(crate) fn part_path(&self, file: &FileEntry) -> PathBuf {
        let digits = file.sum.get(..PART_DIGITS).unwrap_or(&file.sum);
        self.path.join(format!(".{}.{digits}.part", file.name))
    }

    /// Begins to write a file, or resumes from its stored part.
    pub(crate) fn open_part(&self, entry: &FileEntry) -> Result<PartialFile, FileError> {
        entry.check()?;
        let (name, bytes, largest) = (entry.name.clone(), entry.bytes, self.largest);
        if bytes > largest {
            return Err(FileError::TooLarge { name, bytes, largest });
        }
        let failed = |error: io::Error| disk_error(&name, &error);
        let path = self.part_path(entry);
        let options = || {
            let mut options = OpenOptions::new();
            let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_CLOEXEC;
            options
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .custom_flags(flags)
                .mode(self.mode);
            options
        };
        let mut file = options().open(&path).map_err(failed)?;
        let found = file.metadata().map_err(failed)?;
        if !found.is_file() || found.len() > bytes {
            // The path holds something else.
            drop(file);
            fs::remove_file(&path).map_err(failed)?;
            file = options().open(&path).map_err(failed)?;
        }
        let mut hash = Context::new(&SHA256);
        let received = hash_rest(&mut file, &mut hash, bytes).map_err(failed)?;
        file.seek(SeekFrom::Start(received)).map_err(failed)?;
        Ok(PartialFile { dir: self.clone(), entry: entry.clone(), path, file, hash, received })
    }

    /// Removes stored parts of other files of this name.
    fn discard_others(&self, name: &str) {
        let Ok(all) = fs::read_dir(&self.path) else { return };
        for entry in all.filter_map(Result::ok) {
            let of_name = entry.file_name().to_str().is_some_and(|part| {
                let digits = part.strip_prefix('.').and_then(|part| part.strip_prefix(name));
                let digits = digits.and_then(|part| part.strip_prefix('.')?.strip_suffix(".part"));
                digits.is_some_and(|digits| digits.len() == PART_DIGITS && !digits.contains('.'))
            });
            if of_name {
                // A failure does no harm.
                let _ = fs::remove_file(entry.path());
            }
        }
    }

    /// Removes the stored part of a file that no job needs.
    pub(crate) fn discard(&self, entry: &FileEntry) {
        // A failure does no harm.
        let _ = fs::remove_file(self.part_path(entry));
    }
}

/// Hashes up to `most` bytes from the file's position to its end.
fn hash_rest(file: &mut File, hash: &mut Context, most: u64) -> io::Result<u64> {
    let (mut buffer, mut count) = (vec![0; PIECE_SIZE], 0u64);
    loop {
        let room = most.saturating_sub(count).min(PIECE_SIZE as u64) as usize;
        let read = file.read(&mut buffer[..room])?;
        if read == 0 {
            return Ok(count);
        }
        hash.update(&buffer[..read]);
        count += read as u64;
    }
}

/// An incomplete file, which is being received.
pub(crate) struct PartialFile {
    dir: Dir,
    pub(super) entry: FileEntry,
    path: PathBuf,
    file: File,
    hash: Context,
    /// Number of received bytes.
    pub(crate) received: u64,
}

impl PartialFile {
    pub(crate) fn is_whole(&self) -> bool {
        self.received == self.entry.bytes
    }

    /// Appends the next bytes.
    pub(crate) fn append(&mut self, bytes: &[u8]) -> Result<(), FileError> {
        let (received, len) = (self.received, bytes.len() as u64);
        if received.checked_add(len).is_none_or(|sum| sum > self.entry.bytes) {
            return Err(FileError::UnexpectedOffset {
                name: self.entry.name.clone(),
                at: received,
            });
        }
        self.file.write_all(bytes).map_err(|error| disk_error(&self.entry.name, &error))?;
        self.hash.update(bytes);
        self.received += len;
        Ok(())
    }

    /// Checks a complete file, and gives it its name.
    pub(crate) fn finish(self) -> Result<Stamp, FileError> {
        let Self { dir, entry, path, file, hash, .. } = self;
        let name = &entry.name;
        let found = hex(hash.finish().as_ref());
        if found != entry.sum {
            dir.discard(&entry);
            let (name, expected) = (name.clone(), entry.sum);
            return Err(FileError::Damaged { name, expected, found });
        }
        let failed = |error: io::Error| disk_error(name, &error);
        file.sync_all().map_err(failed)?;
        let place = dir.path.join(name);
        match fs::symlink_metadata(&place) {
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(failed(error)),
            // The file has arrived by another way, or belongs to a user: it is not overwritten.
            Ok(_) => {
                let there = dir.read_entry(name);
                dir.discard(&entry);
                return match there {
                    Ok((stamp, same)) if same == entry => Ok(stamp),
                    _ => Err(FileError::Conflict { cluster: dir.cluster, name: name.clone() }),
                };
            }
        }
        fs::rename(&path, &place).map_err(failed)?;
        dir.discard_others(name);
        sync_dir(&dir.path).map_err(failed)?;
        Ok(Stamp::of(&file.metadata().map_err(failed)?))
    }
}

/// Makes a rename durable across a crash of the machine.
fn sync_dir(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

/// Computes the entry of a file at any path, before it is sent.
pub fn entry_of(path: &Path, name: &str) -> io::Result<FileEntry> {
    let mut file = File::open(path)?;
    let mut hash = Context::new(&SHA256);
    let bytes = hash_rest(&mut file, &mut hash, u64::MAX)?;
    Ok(FileEntry { name: name.to_owned(), bytes, sum: hex(hash.finish().as_ref()) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dir(path: &Path) -> Dir {
        Dir { cluster: "ams".into(), path: path.to_owned(), largest: 1000, mode: FILE_MODE }
    }

    fn entry(name: &str, content: &[u8]) -> FileEntry {
        let sum = hex(ring::digest::digest(&SHA256, content).as_ref());
        FileEntry { name: name.to_owned(), bytes: content.len() as u64, sum }
    }

    #[test]
    fn only_regular_files_of_the_directory_are_listed() {
        let temp = tempfile::tempdir().unwrap();
        let (inside, outside) = (temp.path().join("in"), temp.path().join("secret"));
        fs::create_dir_all(inside.join("sub")).unwrap();
        fs::write(&outside, "s").unwrap();
        fs::write(inside.join("a.txt"), "hello").unwrap();
        fs::write(inside.join(".hidden"), "h").unwrap();
        fs::write(inside.join("long"), [0; 1001]).unwrap();
        std::os::unix::fs::symlink(&outside, inside.join("link")).unwrap();
        let dir = dir(&inside);
        let seen = dir.list().unwrap();
        assert_eq!(seen.keys().collect::<Vec<_>>(), ["a.txt"]);
        let (stamp, known) = dir.read_entry("a.txt").unwrap();
        assert_eq!((stamp, &known), (seen["a.txt"], &entry("a.txt", b"hello")));
        for name in ["link", "sub", "nothing"] {
            assert!(matches!(dir.read_entry(name), Err(FileError::Unknown { .. })), "{name}");
        }
        for name in ["../secret", ".hidden", "sub/../../secret", ""] {
            assert!(matches!(dir.read_entry(name), Err(FileError::Name(_))), "{name}");
        }
        assert_eq!(dir.read("a.txt", stamp, 1, 3).unwrap(), b"ell");
        assert_eq!(dir.read("a.txt", stamp, 4, 100).unwrap(), b"o");
        assert_eq!(dir.read("a.txt", stamp, 9, 100).unwrap(), b"");
        // The file has changed since.
        fs::write(inside.join("a.txt"), "hello!").unwrap();
        assert!(matches!(dir.read("a.txt", stamp, 0, 5), Err(FileError::Conflict { .. })));
    }

    #[test]
    fn file_gets_its_name_once_complete_and_verified() {
        let temp = tempfile::tempdir().unwrap();
        let dir = dir(temp.path());
        let wanted = entry("b.bin", b"0123456789");
        let mut part = dir.open_part(&wanted).unwrap();
        part.append(b"01234").unwrap();
        assert!(!part.is_whole() && dir.list().unwrap().is_empty());
        drop(part);
        // Resume the file.
        let mut part = dir.open_part(&wanted).unwrap();
        assert_eq!(part.received, 5);
        assert!(matches!(part.append(b"5678901"), Err(FileError::UnexpectedOffset { .. })));
        part.append(b"56789").unwrap();
        let stamp = part.finish().unwrap();
        assert_eq!(dir.list().unwrap(), [("b.bin".to_owned(), stamp)].into());
        assert_eq!(dir.read_entry("b.bin").unwrap(), (stamp, wanted.clone()));
        assert_eq!(fs::read_dir(temp.path()).unwrap().count(), 1, "parts are left");
        // Damaged in transit, or too large.
        let mut part = dir.open_part(&entry("c.bin", b"abc")).unwrap();
        part.append(b"abd").unwrap();
        assert!(matches!(part.finish(), Err(FileError::Damaged { .. })));
        let long = FileEntry { bytes: 1001, ..entry("d.bin", b"") };
        assert!(matches!(dir.open_part(&long).map(drop), Err(FileError::TooLarge { .. })));
        let bad = FileEntry { sum: "../../x".to_owned(), ..entry("d.bin", b"") };
        assert_eq!(dir.open_part(&bad).map(drop), Err(FileError::Sum));
        // Existing files are not overwritten; an identical file is accepted.
        let mut part = dir.open_part(&entry("b.bin", b"other")).unwrap();
        part.append(b"other").unwrap();
        assert!(matches!(part.finish(), Err(FileError::Conflict { .. })));
        let mut part = dir.open_part(&wanted).unwrap();
        part.append(b"0123456789").unwrap();
        assert_eq!(part.finish().unwrap(), stamp);
        assert_eq!(fs::read(temp.path().join("b.bin")).unwrap(), b"0123456789");
        assert_eq!(fs::read_dir(temp.path()).unwrap().count(), 1, "parts are left");
        // Other files at the path of a part are replaced.
        drop(dir.open_part(&entry("f.bin", b"old")).unwrap());
        dir.open_part(&entry("f.bin", b"")).unwrap().finish().unwrap();
        assert_eq!(fs::read_dir(temp.path()).unwrap().count(), 2, "parts are left");
        fs::remove_file(temp.path().join("f.bin")).unwrap();
        let odd = entry("e.bin", b"xyz");
        fs::write(dir.part_path(&odd), "longer than it").unwrap();
        let part = dir.open_part(&odd).unwrap();
        assert_eq!(part.received, 0);
        drop(part);
        dir.discard(&odd);
        assert_eq!(fs::read_dir(temp.path()).unwrap().count(), 1, "parts are left");
    }
}
