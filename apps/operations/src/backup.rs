//! `backup` and `restore`: the head's state as one file.
//!
//! ```text
//! scheduler.records/ jobs.records/ join.records/    the stores, each as it was at one time
//! ca/                   the authority with its key, unless the config names another directory
//! jobs/ audit.jsonl scheduler.history incarnation   the other files of the head
//! backup.json           the last entry: format, grid, and the SHA-256 of each file
//! ```
//!
//! The file is a tar archive. A copy may be made while the head runs. Each record is written once,
//! at the end of its log, so that a log without its last records is an earlier state. The archive
//! records the end of a job before the scheduler forgets it. So the two logs belong together if the
//! archive's log is the same before and after the scheduler's is read; otherwise the copy begins
//! again. This module does not know the contents of the stores.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, BufReader, BufWriter, Read as _, Write as _};
use std::path::{Component, Path, PathBuf};
use std::thread::yield_now;

use ring::digest::{SHA256, digest};
use serde::{Deserialize, Serialize};
use springtide_actors::enrol::EnrolmentStore;
use springtide_actors::lease::Lease;
use springtide_actors::store::{Store, lease_path};
use springtide_cli::exit::{Exit, Failed, cannot};
use springtide_runtime::net::tls::{Ca, calendar};
use springtide_runtime::private;
use tar::{Archive, Builder, EntryType, Header};
use tempfile::NamedTempFile;

use super::attach::{directory_user, grid_config, record_command};
use super::desk::check_records;
use super::grid_files::{dir_of, make_private_dir};

/// The version of the file that this program writes, and the newest that it reads.
const FORMAT: u32 = 1;
/// The name of the entry with the description.
const MANIFEST: &str = "backup.json";
/// The maximum size of the description in bytes.
const MANIFEST_MAX: u64 = 1 << 30;
/// Directories whose files make one state together.
const STORES: [&str; 3] = ["jobs.records", "scheduler.records", "join.records"];
/// Further files and directories of a head.
const OTHERS: [&str; 6] =
    ["ca", "jobs", "audit.jsonl", "scheduler.history", "scheduler.history.1", "incarnation"];
/// The maximum number of attempts to copy a state that changes meanwhile.
const ATTEMPTS_MAX: u32 = 1000;

/// The description of a backup.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BackupManifest {
    /// Version of the file.
    pub format: u32,
    /// Version of the program that wrote it.
    pub springtide: String,
    /// Name of the grid.
    pub grid: String,
    /// Time of the backup, in seconds since 1970.
    pub made_unix_s: i64,
    /// SHA-256 of each file in hexadecimal digits, by path.
    pub files: BTreeMap<String, String>,
}

/// Files of a head that belong together: those that change, read at one time, and the names of
/// those that are written once.
struct HeadState {
    read: BTreeMap<String, Vec<u8>>,
    left: BTreeSet<String>,
}

/// Why an attempt to copy failed.
enum CopyError {
    /// The state changed meanwhile.
    Changed,
    Failed(Failed),
}

impl From<Failed> for CopyError {
    fn from(failed: Failed) -> Self {
        Self::Failed(failed)
    }
}

/// Writes the state of the head of a config's grid into a file that only its owner can read.
///
/// # Errors
/// The grid has no state, the file exists, or the operating system reports an error.
pub fn backup(config: &Path, file: &Path, version: &str) -> Result<BackupManifest, Failed> {
    let grid = grid_config(config)?;
    let dir = dir_of(config, &grid);
    let user = directory_user(&grid)?;
    if !STORES.iter().any(|store| dir.join(store).exists()) {
        return Err(Failed::failure(format!(
            "the grid of {} has no state in {}: its head has never run here",
            config.display(),
            dir.display()
        )));
    }
    if file.exists() {
        let shown = file.display();
        return Err(Failed::usage(format!("{shown} exists: choose another file, or remove it")));
    }
    // A new file of a random name, for its owner alone: the backup has the authority's key.
    let parent = file.parent().filter(|parent| !parent.as_os_str().is_empty());
    let mut attempts = 0;
    let (manifest, temporary) = loop {
        let temporary = NamedTempFile::new_in(parent.unwrap_or(Path::new(".")));
        let temporary = temporary.map_err(|error| cannot("write", file, &error))?;
        match copy(&dir, &temporary, grid.grid.as_str(), version) {
            Ok(manifest) => break (manifest, temporary),
            Err(CopyError::Failed(failed)) => return Err(failed),
            Err(CopyError::Changed) => attempts += 1,
        }
        if attempts == ATTEMPTS_MAX {
            return Err(Failed::failure(format!(
                "the state in {} changed during each of {ATTEMPTS_MAX} attempts to copy it: try \
                 again when fewer jobs start and end",
                dir.display()
            )));
        }
        yield_now();
    };
    temporary.persist_noclobber(file).map_err(|error| cannot("write", file, &error.error))?;
    record_command(&dir, user, "backup", &file.display().to_string());
    Ok(manifest)
}

fn with_suffix(file: &Path, suffix: &str) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// Writes one state of the head into a file.
fn copy(
    dir: &Path,
    to: &NamedTempFile,
    grid: &str,
    version: &str,
) -> Result<BackupManifest, CopyError> {
    let HeadState { read, left } = read_state(dir)?;
    let failed = |error: &dyn std::fmt::Display| cannot("write", to.path(), error);
    let mut tar = Builder::new(BufWriter::new(to.as_file()));
    let mut files = BTreeMap::new();
    let mut add = |name: &str, bytes: &[u8]| {
        files.insert(name.to_owned(), sha256(bytes));
        append(&mut tar, name, bytes).map_err(|error| failed(&error))
    };
    for (name, bytes) in &read {
        add(name, bytes)?;
    }
    for name in &left {
        add(name, &read_file(dir, name)?)?;
    }
    let made_unix_s = calendar()();
    let (grid, springtide) = (grid.to_owned(), version.to_owned());
    let manifest = BackupManifest { format: FORMAT, springtide, grid, made_unix_s, files };
    let text = serde_json::to_vec_pretty(&manifest).map_err(Failed::failure)?;
    append(&mut tar, MANIFEST, &text).map_err(|error| failed(&error))?;
    let written = tar.into_inner().and_then(|buffer| {
        let out = buffer.into_inner().map_err(io::IntoInnerError::into_error)?;
        out.sync_all()
    });
    written.map_err(|error| failed(&error))?;
    Ok(manifest)
}

fn append(tar: &mut Builder<impl io::Write>, name: &str, bytes: &[u8]) -> io::Result<()> {
    let mut header = Header::new_gnu();
    header.set_entry_type(EntryType::Regular);
    header.set_size(bytes.len() as u64);
    header.set_mode(0o600);
    tar.append_data(&mut header, name, bytes)
}

fn sha256(bytes: &[u8]) -> String {
    digest(&SHA256, bytes).as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Reads what changes, and lists the rest. Submissions are read too, since they are removed when
/// their jobs end.
fn read_state(dir: &Path) -> Result<HeadState, CopyError> {
    let archive = read_logs(dir, "jobs.records")?;
    let mut read = read_logs(dir, "scheduler.records")?;
    for name in names(dir, "scheduler.records/blobs")? {
        let bytes = read_file(dir, &name)?;
        read.insert(name, bytes);
    }
    let mut left: BTreeSet<String> = names(dir, "jobs.records/blobs")?.into_iter().collect();
    if read_logs(dir, "jobs.records")? != archive {
        return Err(CopyError::Changed);
    }
    read.extend(archive);
    read.extend(read_logs(dir, "join.records")?);
    for name in OTHERS {
        match fs::metadata(dir.join(name)) {
            Ok(about) if about.is_dir() => left.extend(names(dir, name)?),
            Ok(_) => drop(read.insert(name.to_owned(), read_file(dir, name)?)),
            Err(_) => {}
        }
    }
    Ok(HeadState { read, left })
}

/// The newest segment of a store's log.
fn read_logs(dir: &Path, store: &str) -> Result<BTreeMap<String, Vec<u8>>, CopyError> {
    let path = dir.join(store);
    let entries = match fs::read_dir(&path) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(BTreeMap::new()),
        Err(error) => return Err(cannot("read", &path, &error).into()),
    };
    let mut newest = None;
    for entry in entries {
        let name = entry.map_err(|error| cannot("read", &path, &error))?.file_name();
        let name = name.to_string_lossy().into_owned();
        if name.ends_with(".log") {
            newest = newest.max(Some(name));
        }
    }
    let Some(name) = newest else { return Ok(BTreeMap::new()) };
    let name = format!("{store}/{name}");
    let bytes = read_file(dir, &name)?;
    Ok(BTreeMap::from([(name, bytes)]))
}

/// The files under a directory, as paths in the grid's directory. Unfinished files are left out.
fn names(dir: &Path, under: &str) -> Result<Vec<String>, CopyError> {
    let path = dir.join(under);
    let entries = match fs::read_dir(&path) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(cannot("read", &path, &error).into()),
    };
    let mut found = Vec::new();
    for entry in entries {
        let entry = entry.map_err(|error| cannot("read", &path, &error))?;
        let name = entry.file_name().into_string().map_err(|name| {
            let text = format!("{} has a name that is not UTF-8", path.join(name).display());
            Failed::failure(text)
        })?;
        let kind = entry.file_type().map_err(|error| cannot("read", &path, &error))?;
        let name = format!("{under}/{name}");
        if kind.is_dir() {
            found.extend(names(dir, &name)?);
        } else if kind.is_file() && !name.ends_with(".tmp") {
            found.push(name);
        }
    }
    Ok(found)
}

/// Reads a file. One that is missing was removed since it was listed.
fn read_file(dir: &Path, name: &str) -> Result<Vec<u8>, CopyError> {
    let path = dir.join(name);
    fs::read(&path).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => CopyError::Changed,
        _ => cannot("read", &path, &error).into(),
    })
}

/// Writes the state in a backup into the directory of a config's grid, which must have none.
///
/// # Errors
/// The file is not a backup, is damaged, of another grid or of a newer version; a head runs, or the
/// grid has a state; the operating system reports an error. Then the directory is unchanged.
pub fn restore(config: &Path, file: &Path) -> Result<BackupManifest, Failed> {
    let grid = grid_config(config)?;
    let dir = dir_of(config, &grid);
    let user = directory_user(&grid)?;
    let manifest = read_manifest(file)?;
    if manifest.grid != grid.grid.as_str() {
        return Err(Failed::usage(format!(
            "{} is a backup of grid {}, and {} is the config of grid {}",
            file.display(),
            manifest.grid,
            config.display(),
            grid.grid
        )));
    }
    make_private_dir(&dir)?;
    // No head may start meanwhile.
    let _lease = Lease::take(&lease_path(&dir)).map_err(Failed::failure)?;
    // A second head's log would not fit to the restored files.
    let parts = STORES.iter().chain(&OTHERS).chain(&["member"]);
    let has_state = parts.into_iter().find(|name| dir.join(name).exists());
    if let Some(name) = has_state {
        return Err(Failed::usage(format!(
            "the grid has a state already ({}): move {} away first",
            dir.join(name).display(),
            dir.display()
        )));
    }
    let staging = with_suffix(&dir, ".restore");
    // A restore that was killed may have left it.
    let _ = fs::remove_dir_all(&staging);
    make_private_dir(&staging)?;
    let restored = extract(file, &manifest, &staging).and_then(|()| check(&staging));
    let moved = restored.and_then(|()| {
        for name in STORES.iter().chain(&OTHERS).filter(|name| staging.join(name).exists()) {
            let to = dir.join(name);
            fs::rename(staging.join(name), &to).map_err(|error| cannot("write", &to, &error))?;
        }
        File::open(&dir)
            .and_then(|dir| dir.sync_all())
            .map_err(|error| cannot("write", &dir, &error))
    });
    // Left files do no harm, and the next restore removes them.
    let _ = fs::remove_dir_all(&staging);
    moved?;
    record_command(&dir, user, "restore", &file.display().to_string());
    Ok(manifest)
}

fn open(file: &Path) -> Result<Archive<BufReader<File>>, Failed> {
    let open = File::open(file).map_err(|error| cannot("read", file, &error))?;
    Ok(Archive::new(BufReader::new(open)))
}

fn not_a_backup(file: &Path, reason: &dyn std::fmt::Display) -> Failed {
    Failed::usage(format!("{} is not a complete backup: {reason}", file.display()))
}

/// Reads the description, which is the last entry.
fn read_manifest(file: &Path) -> Result<BackupManifest, Failed> {
    #[derive(Deserialize)]
    struct Versions {
        format: u32,
        springtide: String,
    }
    let wrong = |reason: &dyn std::fmt::Display| not_a_backup(file, reason);
    let mut archive = open(file)?;
    let mut text = None;
    for entry in archive.entries().map_err(|error| wrong(&error))? {
        let mut entry = entry.map_err(|error| wrong(&error))?;
        if entry.path().is_ok_and(|path| path == Path::new(MANIFEST)) {
            let mut bytes = Vec::new();
            let read = entry.by_ref().take(MANIFEST_MAX).read_to_end(&mut bytes);
            read.map_err(|error| wrong(&error))?;
            text = Some(bytes);
        }
    }
    let text = text.ok_or_else(|| wrong(&format!("it has no {MANIFEST}")))?;
    // A newer description may have other fields.
    let versions: Versions = serde_json::from_slice(&text).map_err(|error| wrong(&error))?;
    if versions.format > FORMAT {
        return Err(Failed::new(
            Exit::Version,
            format!(
                "{} has format {} of springtide {}, and this program reads up to {FORMAT}: use \
                 that version",
                file.display(),
                versions.format,
                versions.springtide
            ),
        ));
    }
    serde_json::from_slice(&text).map_err(|error| wrong(&error))
}

/// Writes the files of a backup into an empty directory, and compares them with the description.
fn extract(file: &Path, manifest: &BackupManifest, to: &Path) -> Result<(), Failed> {
    let wrong = |reason: &dyn std::fmt::Display| not_a_backup(file, reason);
    let mut missing: BTreeSet<&str> = manifest.files.keys().map(String::as_str).collect();
    for entry in open(file)?.entries().map_err(|error| wrong(&error))? {
        let mut entry = entry.map_err(|error| wrong(&error))?;
        let path = entry.path().map_err(|error| wrong(&error))?.into_owned();
        if path == Path::new(MANIFEST) {
            continue;
        }
        let name = path.to_string_lossy().into_owned();
        let Some(sum) = manifest.files.get(&name).filter(|_| is_of_head(&path)) else {
            return Err(wrong(&format!("{name} is no file of a head")));
        };
        let mut bytes = Vec::new();
        entry.read_to_end(&mut bytes).map_err(|error| wrong(&error))?;
        if sha256(&bytes) != *sum {
            return Err(wrong(&format!("the checksum of {name} differs")));
        }
        let target = to.join(&path);
        if let Some(parent) = target.parent() {
            make_private_dir(parent)?;
        }
        let written = private::make_file(&target).and_then(|mut out| {
            out.write_all(&bytes)?;
            out.sync_all()
        });
        written.map_err(|error| cannot("write", &target, &error))?;
        missing.remove(name.as_str());
    }
    match missing.first() {
        None => Ok(()),
        Some(name) => Err(wrong(&format!("{name} is missing"))),
    }
}

/// Whether a path is below one of the head's files, and not outside of the directory.
fn is_of_head(path: &Path) -> bool {
    let mut parts = path.components();
    let Some(Component::Normal(first)) = parts.next() else { return false };
    let known = STORES.iter().chain(&OTHERS).any(|name| *first == **name);
    known && parts.all(|part| matches!(part, Component::Normal(_)))
}

/// Reads each store as a head would.
///
/// # Errors
/// A store is damaged, or has records of a newer version.
fn check(dir: &Path) -> Result<(), Failed> {
    drop(Store::open(dir)?);
    check_records(dir)?;
    EnrolmentStore::of(dir).read()?;
    if dir.join("ca").exists() {
        Ca::load(&dir.join("ca"))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_files_of_a_head_are_written() {
        for name in ["scheduler.records/00000001.log", "jobs/job-1/log.txt", "audit.jsonl"] {
            assert!(is_of_head(Path::new(name)), "{name}");
        }
        for name in ["", "/etc/passwd", "../jobs", "jobs/../../x", "node/ams-1/node.key"] {
            assert!(!is_of_head(Path::new(name)), "{name}");
        }
    }

    #[test]
    fn unfinished_files_are_left_out() {
        let temp = tempfile::tempdir().unwrap();
        let blobs = temp.path().join("jobs.records/blobs");
        fs::create_dir_all(&blobs).unwrap();
        for name in ["job-1.0", "job-2.0.tmp"] {
            fs::write(blobs.join(name), "x").unwrap();
        }
        let Ok(found) = names(temp.path(), "jobs.records") else { panic!("it is readable") };
        assert_eq!(found, ["jobs.records/blobs/job-1.0"]);
    }
}
