//! Files that commands write: a run's directory with its log and the job's files, and artefacts of
//! other commands.
//!
//! Commands write every file through this module, so that a failed write fails the command;
//! `clippy.toml` forbids the other ways. This module does not know the origin of events.
#![allow(clippy::disallowed_methods)]

use std::fs::{self, File, OpenOptions};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::Value;
use springtide_runtime::event::{
    Manifest, Record, RunDir, RunLog, SCHEMA, write_atomic, write_unsynced,
};

use crate::dates::stamp;
use crate::exit::{Failed, cannot};
use crate::print::print;

/// Creates a directory and its parents, unless they exist.
///
/// # Errors
/// The operating system reports an error.
pub fn make_dir(dir: &Path) -> Result<(), Failed> {
    fs::create_dir_all(dir).map_err(|error| cannot("make", dir, &error))
}

/// Creates a new directory: `dir`, or else the first free one of `dir-2`, `dir-3` and so on.
///
/// # Errors
/// The operating system reports an error.
pub fn make_new_dir(dir: &Path) -> Result<PathBuf, Failed> {
    if let Some(parent) = dir.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        make_dir(parent)?;
    }
    let mut number = 1_u32;
    loop {
        let mut name = dir.as_os_str().to_owned();
        if number > 1 {
            name.push(format!("-{number}"));
        }
        let path = PathBuf::from(name);
        match fs::create_dir(&path) {
            Ok(()) => return Ok(path),
            Err(error) if error.kind() == ErrorKind::AlreadyExists && number < u32::MAX => {
                number += 1;
            }
            Err(error) => return Err(cannot("make", &path, &error)),
        }
    }
}

/// Creates an empty file, or empties it, for a process to write to.
///
/// # Errors
/// The operating system reports an error.
pub fn create_file(path: &Path) -> Result<File, Failed> {
    File::create(path).map_err(|error| cannot("write", path, &error))
}

/// Appends to a file, which is created if it does not exist.
///
/// # Errors
/// The operating system reports an error.
pub fn append(path: &Path, bytes: &[u8]) -> Result<(), Failed> {
    use std::io::Write as _;
    let file = OpenOptions::new().create(true).append(true).open(path);
    let written = file.and_then(|mut file| file.write_all(bytes));
    written.map_err(|error| cannot("write", path, &error))
}

/// Opens a file to read it and to append to it. It is created if it does not exist.
///
/// # Errors
/// The operating system reports an error.
pub fn open_append(path: &Path) -> Result<File, Failed> {
    let file = OpenOptions::new().read(true).append(true).create(true).open(path);
    file.map_err(|error| cannot("write", path, &error))
}

/// Writes a file, completely or not at all.
///
/// # Errors
/// The operating system reports an error.
pub fn write_file(path: &Path, bytes: &[u8]) -> Result<(), Failed> {
    write_atomic(path, bytes).map_err(|error| cannot("write", path, &error))
}

/// Writes a copy of what is stored elsewhere, completely or not at all. A crash of the machine may
/// lose it.
///
/// # Errors
/// The operating system reports an error.
pub fn write_copy(path: &Path, bytes: &[u8]) -> Result<(), Failed> {
    write_unsynced(path, bytes).map_err(|error| cannot("write", path, &error))
}

/// Failed writes: the first reason in full, and the number of others.
#[derive(Clone, Debug, Default)]
pub struct Unwritten {
    first: Option<String>,
    more: u64,
}

impl Unwritten {
    /// Records a failure. Returns its message if it is the first.
    pub fn add(&mut self, failed: Failed) -> Option<&str> {
        if self.first.is_some() {
            self.more += 1;
            return None;
        }
        Some(self.first.insert(failed.message))
    }

    /// The failures in one line, if any.
    pub fn error(&self) -> Option<String> {
        let first = self.first.as_ref()?;
        Some(match self.more {
            0 => first.clone(),
            1 => format!("{first} (and 1 more that could not be written)"),
            more => format!("{first} (and {more} more that could not be written)"),
        })
    }
}

/// Files that a command writes into a directory, if one was given. A failed write affects neither
/// other files nor the result; the command fails at its end.
pub struct Artefacts {
    dir: Option<PathBuf>,
    unwritten: Unwritten,
}

impl Artefacts {
    /// The files of this directory.
    pub fn of(dir: Option<&Path>) -> Self {
        Self { dir: dir.map(Path::to_owned), unwritten: Unwritten::default() }
    }

    /// Whether there is a directory for them.
    pub fn are_wanted(&self) -> bool {
        self.dir.is_some()
    }

    /// Writes a file, if a directory was given.
    pub fn keep(&mut self, name: &str, contents: impl AsRef<[u8]>) {
        let Some(dir) = &self.dir else { return };
        if let Err(failed) = keep(dir, name, contents.as_ref()) {
            self.unwritten.add(failed);
        }
    }

    /// Records the failure of another write.
    pub fn add(&mut self, written: Result<(), Failed>) {
        if let Err(failed) = written {
            self.unwritten.add(failed);
        }
    }

    /// Prints a command's result, as JSON with the key `error` if a write failed.
    ///
    /// # Errors
    /// A file or the result could not be written.
    pub fn print(
        self,
        json: bool,
        mut object: Value,
        text: impl FnOnce() -> String,
    ) -> Result<(), Failed> {
        let error = self.unwritten.error();
        if let (Some(error), Some(object)) = (&error, object.as_object_mut()) {
            // An earlier error takes precedence.
            if object.get("error").is_none_or(Value::is_null) {
                object.insert("error".to_owned(), error.as_str().into());
            }
            if let Some(ok) = object.get_mut("ok") {
                *ok = false.into();
            }
        }
        print(&if json { format!("{object}\n") } else { text() })?;
        error.map_or(Ok(()), |error| Err(Failed::failure(error)))
    }
}

/// Writes a file into a directory, which is created if needed. Returns its path.
///
/// # Errors
/// The operating system reports an error.
pub fn keep(dir: &Path, name: &str, bytes: &[u8]) -> Result<PathBuf, Failed> {
    make_dir(dir)?;
    let path = dir.join(name);
    write_file(&path, bytes)?;
    Ok(path)
}

/// A run's directory; or none, with only the job's files.
pub struct OutDir {
    dir: Option<RunDir>,
    log: Option<RunLog>,
    /// The size limit of a log that is reopened at the next write.
    closed: Option<u64>,
    /// The directory of files if there is no run directory; created with the first file.
    files: PathBuf,
    written: Vec<PathBuf>,
    /// Whether the directory of files belongs to this run and does not exist yet.
    is_unmade: bool,
    unwritten: Unwritten,
}

impl OutDir {
    /// Creates a run's directory with manifest, config and log.
    ///
    /// # Errors
    /// It contains a run already, or as of the system.
    pub fn create(
        dir: &Path,
        manifest: &Manifest,
        config: &str,
        log_max: u64,
    ) -> Result<Self, Failed> {
        Self::begin(RunDir::create(dir)?, manifest, config, log_max)
    }

    fn begin(run: RunDir, manifest: &Manifest, config: &str, log_max: u64) -> Result<Self, Failed> {
        // The log is a new file: of two runs that start here at once, one fails.
        let log = run.begin_log(manifest, log_max)?;
        run.write_manifest(manifest)?;
        run.write_config(config)?;
        Ok(Self::of(run, Some(log), None))
    }

    /// Creates a run's directory without open files before the first write, and without waits for
    /// the disk: many jobs may start at once, and their results are stored elsewhere.
    ///
    /// # Errors
    /// As [`OutDir::create`].
    pub fn create_closed(
        dir: &Path,
        manifest: &Manifest,
        config: &str,
        log_max: u64,
    ) -> Result<Self, Failed> {
        let out = Self::begin(RunDir::create(dir)?.unsynced(), manifest, config, log_max)?;
        Ok(Self { log: None, closed: Some(log_max), ..out })
    }

    /// Continues the directory of a run whose writer has died, at the first write.
    ///
    /// # Errors
    /// No run exists there.
    pub fn resume(dir: &Path, log_max: u64) -> Result<Self, Failed> {
        Ok(Self::of(RunDir::open(dir)?, None, Some(log_max)))
    }

    /// No run directory: the job's files go into a new directory with the run's name.
    pub fn none(manifest: &Manifest) -> Self {
        let files = PathBuf::from(format!("springtide-{}", manifest.run));
        Self { is_unmade: true, ..Self::files_only(files) }
    }

    /// No run directory: the job's files go into this directory.
    pub fn files_only(files: PathBuf) -> Self {
        let (written, unwritten) = (Vec::new(), Unwritten::default());
        Self { dir: None, log: None, closed: None, files, written, is_unmade: false, unwritten }
    }

    fn of(run: RunDir, log: Option<RunLog>, closed: Option<u64>) -> Self {
        let files_only = Self::files_only(run.path().to_owned());
        Self { dir: Some(run), log, closed, ..files_only }
    }

    fn open_log(&mut self) -> Result<(), Failed> {
        if let (Some(run), Some(log_max)) = (&self.dir, self.closed) {
            self.log = Some(run.resume_log(log_max)?);
            self.closed = None;
        }
        Ok(())
    }

    /// The path of the run's directory.
    pub fn path(&self) -> Option<&Path> {
        self.dir.as_ref().map(RunDir::path)
    }

    /// The reason why files are missing, which fails the run at its end.
    pub fn unwritten(&self) -> Option<String> {
        self.unwritten.error()
    }

    /// Records the failure of another write of the run.
    pub fn add(&mut self, failed: Failed) {
        self.unwritten.add(failed);
    }

    /// Records a failed write, and returns it.
    fn remember<T>(&mut self, written: Result<T, Failed>) -> Result<T, Failed> {
        if let Err(failed) = &written {
            self.unwritten.add(failed.clone());
        }
        written
    }

    /// Adds records to the log.
    ///
    /// # Errors
    /// They cannot be written.
    pub fn records(&mut self, records: &[Record]) -> Result<(), Failed> {
        let written = self.add_records(records);
        self.remember(written)
    }

    fn add_records(&mut self, records: &[Record]) -> Result<(), Failed> {
        if records.is_empty() {
            return Ok(());
        }
        self.open_log()?;
        match &mut self.log {
            Some(log) => Ok(log.append(records)?),
            None => Ok(()),
        }
    }

    /// Writes a file of the job, completely or not at all.
    ///
    /// # Errors
    /// Its name is not a plain file name, or it cannot be written.
    pub fn file(&mut self, name: &str, bytes: &[u8]) -> Result<PathBuf, Failed> {
        let written = check_name(name).and_then(|()| self.put(name, bytes));
        self.remember(written)
    }

    /// Writes a file of the run itself, which no job may write.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn own_file(&mut self, name: &'static str, bytes: &[u8]) -> Result<PathBuf, Failed> {
        let written = self.put(name, bytes);
        self.remember(written)
    }

    fn put(&mut self, name: &str, bytes: &[u8]) -> Result<PathBuf, Failed> {
        if self.is_unmade {
            self.files = make_new_dir(&self.files)?;
            self.is_unmade = false;
        }
        let path = keep(&self.files, name, bytes)?;
        if !self.written.contains(&path) {
            self.written.push(path.clone());
        }
        Ok(path)
    }

    /// The job's files, in order of first writing.
    pub fn files(&self) -> &[PathBuf] {
        &self.written
    }

    /// Ends the log and writes the result, which completes the run.
    ///
    /// # Errors
    /// They cannot be written. The result is also written if the log fails.
    pub fn finish(&mut self, result: &Value) -> Result<(), Failed> {
        let logged = self.end_log();
        let written = match &self.dir {
            Some(dir) => dir.write_result(result).map_err(Failed::from),
            None => Ok(()),
        };
        let written = self.remember(written);
        logged.and(written)
    }

    /// Ends the event log.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn end_log(&mut self) -> Result<(), Failed> {
        let ended = self.open_log().and_then(|()| match self.log.take() {
            Some(log) => Ok(log.finish()?),
            None => Ok(()),
        });
        self.remember(ended)
    }
}

/// Names come from other hosts: they must not leave the directory or replace the run's own files.
fn check_name(name: &str) -> Result<(), Failed> {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let own = [
        "manifest.json",
        "config.toml",
        "events.jsonl",
        "result.json",
        "head.json",
        "scheduler.records",
        "scheduler.lease",
        "wan.json",
        "log.txt",
        "summary.txt",
    ];
    let wrong = if name.is_empty() || name.len() > 128 || !name.chars().all(plain) {
        "use up to 128 letters, digits, `-`, `_` and `.`"
    } else if name.starts_with('.') {
        "it must not begin with a point"
    } else if own.contains(&name) {
        "the run itself has a file with that name"
    } else {
        return Ok(());
    };
    let shown: String = name.escape_default().take(80).collect();
    Err(Failed::failure(format!("the job's file `{shown}` is not written: {wrong}")))
}

/// The manifest of a new run, which is named by the job and the time in UTC.
pub fn manifest(job: &str, version: &str, seed: Option<u64>) -> Manifest {
    // The system's clock only names the run.
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Manifest {
        schema: SCHEMA,
        run: format!("{job}-{}", stamp(since.as_secs())),
        job: job.to_owned(),
        command: std::env::args_os().map(|arg| arg.to_string_lossy().into_owned()).collect(),
        version: version.to_owned(),
        started_unix_us: u64::try_from(since.as_micros()).unwrap_or(u64::MAX),
        seed,
        mode: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_cannot_replace_the_runs_own_files() {
        let temp = tempfile::tempdir().unwrap();
        let dir = temp.path().join("out");
        let mut out = OutDir::create(&dir, &manifest("fib", "1", None), "", u64::MAX).unwrap();
        for name in [
            "",
            "..",
            ".x",
            "a/b",
            "/etc/passwd",
            "a\\b",
            "a\nb",
            "result.json",
            "scheduler.lease",
            "scheduler.records",
            "wan.json",
            &"x".repeat(129),
        ] {
            assert!(out.file(name, b"evil").is_err(), "{name:?}");
        }
        assert!(out.unwritten().unwrap().ends_with("(and 11 more that could not be written)"));
        assert_eq!(out.file("a.png", b"one").unwrap(), dir.join("a.png"));
        out.file("a.png", b"two").unwrap();
        out.finish(&serde_json::json!({})).unwrap();
        assert_eq!(out.files(), [dir.join("a.png")]);
        assert_eq!(std::fs::read(dir.join("a.png")).unwrap(), b"two");
        let entries = std::fs::read_dir(temp.path()).unwrap().count();
        assert_eq!(entries, 1);
        let Err(again) = OutDir::create(&dir, &manifest("fib", "1", None), "", 0) else {
            panic!("taken")
        };
        assert!(again.message.contains("holds another run"), "{again}");
    }

    #[test]
    fn concurrent_runs_share_no_directory() {
        let temp = tempfile::tempdir().unwrap();
        let (dir, named) = (temp.path().join("springtide-fib"), temp.path().join("out"));
        let start = std::sync::Barrier::new(8);
        let begin = |number: u8| {
            start.wait();
            let mut out = OutDir { is_unmade: true, ..OutDir::files_only(dir.clone()) };
            let own = out.file("a.png", &[number]).unwrap();
            assert_eq!(std::fs::read(&own).unwrap(), [number]);
            assert_eq!(out.file("b.png", &[number]).unwrap().parent(), own.parent());
            let named = OutDir::create(&named, &manifest("fib", "1", None), "", u64::MAX);
            (own, named.is_ok())
        };
        let begun: Vec<(PathBuf, bool)> = std::thread::scope(|scope| {
            let begin = &begin;
            let threads: Vec<_> = (0..8).map(|number| scope.spawn(move || begin(number))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let own: std::collections::BTreeSet<_> = begun.iter().map(|(own, _)| own).collect();
        assert_eq!(own.len(), 8, "{own:?}");
        assert!(
            own.contains(&dir.join("a.png"))
                && own.contains(&temp.path().join("springtide-fib-8/a.png"))
        );
        assert_eq!(begun.iter().filter(|(_, named)| *named).count(), 1);
    }

    #[test]
    fn failed_writes_are_recorded_and_block_nothing() {
        let temp = tempfile::tempdir().unwrap();
        let dir = temp.path().join("out");
        std::fs::create_dir_all(dir.join("a.svg/full")).unwrap();
        let mut artefacts = Artefacts::of(Some(&dir));
        ["a.svg", "b.svg"].iter().for_each(|name| artefacts.keep(name, "drawn"));
        assert_eq!(std::fs::read(dir.join("b.svg")).unwrap(), b"drawn");
        let failed = artefacts.print(false, Value::Null, String::new).unwrap_err();
        assert!(failed.message.contains("a.svg"), "{failed}");
        assert_eq!(failed.exit, crate::exit::Exit::Failure);
        let mut below = Artefacts::of(Some(&dir.join("b.svg/below")));
        below.keep("c.svg", "drawn");
        below.keep("d.svg", "drawn");
        let failed = below.print(false, Value::Null, String::new).unwrap_err();
        assert!(
            failed.message.contains("b.svg") && failed.message.contains("and 1 more"),
            "{failed}"
        );
        let mut none = Artefacts::of(None);
        none.keep("e.svg", "drawn");
        none.print(false, Value::Null, String::new).unwrap();
    }
}
