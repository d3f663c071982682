//! A directory as one file, so that it is stored and moved like a file of a task.
//!
//! The file is a tar archive. Its content depends only on names, contents and the right to execute
//! of what is in the directory, so that equal directories have equal archives. All functions block.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use tar::{Archive, Builder, EntryType, Header};

/// The deepest nesting of directories. A cycle of links ends there.
const DEPTH_MAX: usize = 64;

/// Whether the name of a file means a directory: it ends with a slash.
pub(super) fn is_directory_name(name: &str) -> bool {
    name.ends_with('/')
}

/// Packs a directory with all that is in it. A link to a file is packed as that file.
///
/// # Errors
/// The operating system's. [`io::ErrorKind::FileTooLarge`] if contents have more than `bytes_max`
/// bytes. [`io::ErrorKind::Unsupported`] if there is something other than files and directories.
#[allow(clippy::disallowed_methods)] // the callers choose paths of their own
pub fn pack(directory: &Path, archive: &Path, bytes_max: u64) -> io::Result<()> {
    let mut builder = Builder::new(io::BufWriter::new(File::create(archive)?));
    let mut bytes_left = bytes_max;
    append(&mut builder, directory, Path::new(""), &mut bytes_left, 0)?;
    let buffer = builder.into_inner()?;
    buffer.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all()
}

fn append(
    builder: &mut Builder<impl io::Write>,
    directory: &Path,
    inside: &Path,
    bytes_left: &mut u64,
    depth: usize,
) -> io::Result<()> {
    let named = |path: &Path, error: io::Error| {
        io::Error::new(error.kind(), format!("{}: {error}", path.display()))
    };
    if depth > DEPTH_MAX {
        let reason = format!("directories are nested more than {DEPTH_MAX} deep");
        return Err(named(inside, io::Error::new(io::ErrorKind::Unsupported, reason)));
    }
    let mut entries: Vec<_> = fs::read_dir(directory)?.collect::<io::Result<_>>()?;
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        let (path, inside) = (entry.path(), inside.join(entry.file_name()));
        let found = fs::metadata(&path).map_err(|error| named(&inside, error))?;
        let mut header = Header::new_gnu();
        header.set_mtime(0);
        if found.is_dir() {
            header.set_entry_type(EntryType::Directory);
            header.set_mode(0o755);
            header.set_size(0);
            builder.append_data(&mut header, &inside, io::empty())?;
            append(builder, &path, &inside, bytes_left, depth + 1)?;
        } else if found.is_file() {
            *bytes_left = bytes_left.checked_sub(found.len()).ok_or_else(|| {
                io::Error::new(io::ErrorKind::FileTooLarge, "the directory has too many bytes")
            })?;
            let is_program = found.permissions().mode() & 0o100 != 0;
            header.set_entry_type(EntryType::Regular);
            header.set_mode(if is_program { 0o755 } else { 0o644 });
            header.set_size(found.len());
            let file = File::open(&path).map_err(|error| named(&inside, error))?;
            // A file that grows meanwhile is cut, and one that shrinks is an error.
            let appended = builder.append_data(&mut header, &inside, file.take(found.len()));
            appended.map_err(|error| named(&inside, error))?;
        } else {
            let reason = "neither a file nor a directory";
            return Err(named(&inside, io::Error::new(io::ErrorKind::Unsupported, reason)));
        }
    }
    Ok(())
}

/// Unpacks an archive of [`pack`] into a new directory.
///
/// # Errors
/// The operating system's. [`io::ErrorKind::InvalidData`] if the file is no such archive; then
/// nothing is outside of the directory.
pub fn unpack(archive: &Path, directory: &Path) -> io::Result<()> {
    fs::create_dir(directory)?;
    let mut archive = Archive::new(io::BufReader::new(File::open(archive)?));
    archive.set_preserve_mtime(false);
    for entry in archive.entries()? {
        let mut entry = entry?;
        let is_known =
            matches!(entry.header().entry_type(), EntryType::Regular | EntryType::Directory);
        // `unpack_in` leaves out what would be outside.
        if !is_known || !entry.unpack_in(directory)? {
            let path = entry.path().map(|path| path.display().to_string()).unwrap_or_default();
            let reason = format!("{path} is no entry of a packed directory");
            return Err(io::Error::new(io::ErrorKind::InvalidData, reason));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_packed_directory_comes_back_whole_and_equal_ones_are_equal_files() {
        let temporary = tempfile::tempdir().unwrap();
        let path = |name: &str| temporary.path().join(name);
        let make = |name: &str, order: &[&str]| {
            fs::create_dir_all(path(name).join("sub/empty")).unwrap();
            for file in order {
                fs::write(path(name).join(file), file.repeat(1000)).unwrap();
            }
            let program = path(name).join("sub/run.sh");
            fs::write(&program, "exit 0").unwrap();
            fs::set_permissions(&program, fs::Permissions::from_mode(0o700)).unwrap();
        };
        make("a", &["x", "sub/ä b", ".hidden"]);
        make("b", &[".hidden", "sub/ä b", "x"]);
        pack(&path("a"), &path("a.tar"), 1 << 20).unwrap();
        pack(&path("b"), &path("b.tar"), 1 << 20).unwrap();
        assert!(fs::read(path("a.tar")).unwrap() == fs::read(path("b.tar")).unwrap());
        unpack(&path("a.tar"), &path("c")).unwrap();
        for file in ["x", "sub/ä b", ".hidden"] {
            assert_eq!(fs::read_to_string(path("c").join(file)).unwrap(), file.repeat(1000));
        }
        assert!(path("c/sub/empty").is_dir());
        assert_eq!(fs::metadata(path("c/sub/run.sh")).unwrap().permissions().mode() & 0o777, 0o755);
        pack(&path("c"), &path("c.tar"), 1 << 20).unwrap();
        assert!(fs::read(path("a.tar")).unwrap() == fs::read(path("c.tar")).unwrap());
        assert!(unpack(&path("a.tar"), &path("c")).is_err(), "an existing directory is kept");
    }

    #[test]
    fn what_cannot_be_packed_or_unpacked_is_an_error() {
        let temporary = tempfile::tempdir().unwrap();
        let path = |name: &str| temporary.path().join(name);
        fs::create_dir(path("a")).unwrap();
        fs::write(path("a/large"), [0; 2000]).unwrap();
        let error = pack(&path("a"), &path("a.tar"), 1999).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::FileTooLarge);
        symlink("..", path("a/cycle")).unwrap();
        assert!(pack(&path("a"), &path("a.tar"), 1 << 40).is_err());
        fs::write(path("text"), "no archive".repeat(100)).unwrap();
        assert!(unpack(&path("text"), &path("t")).is_err());
        // An archive that leads out of its directory, and one with a link.
        let attempt = |name: &str, kind: EntryType, entry: &[u8]| {
            let mut header = Header::new_gnu();
            header.as_gnu_mut().unwrap().name[..entry.len()].copy_from_slice(entry);
            header.set_entry_type(kind);
            header.set_size(0);
            header.set_mode(0o644);
            header.set_cksum();
            let mut builder = Builder::new(File::create(path(name)).unwrap());
            builder.append(&header, io::empty()).unwrap();
            builder.into_inner().unwrap();
            unpack(&path(name), &path(&format!("{name}.out"))).unwrap_err().kind()
        };
        assert_eq!(attempt("out", EntryType::Regular, b"../escaped"), io::ErrorKind::InvalidData);
        assert_eq!(attempt("link", EntryType::Symlink, b"link"), io::ErrorKind::InvalidData);
        assert!(!path("escaped").exists());
    }
}
