//! What a run leaves behind: its directory, its log of events, and the job's files.
//!
//! Must not know where news come from.

use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use springtide_runtime::event::{Manifest, Record, RunDir, RunLog, SCHEMA, write_atomic};

use crate::dates::stamp;
use crate::exit::Failed;
use crate::grid::cannot;

/// Makes a directory and what is above it, where they are not there.
///
/// # Errors
/// The system refuses.
pub fn make_dir(dir: &Path) -> Result<(), Failed> {
    std::fs::create_dir_all(dir).map_err(|error| cannot("make", dir, &error))
}

/// Writes a file, whole or not at all.
///
/// # Errors
/// The system refuses.
pub fn write_file(path: &Path, bytes: &[u8]) -> Result<(), Failed> {
    write_atomic(path, bytes).map_err(|error| cannot("write", path, &error))
}

/// Writes a file into a directory, which is made if it is not there. Returns where it is.
///
/// # Errors
/// The system refuses.
pub fn keep(dir: &Path, name: &str, bytes: &[u8]) -> Result<PathBuf, Failed> {
    make_dir(dir)?;
    let path = dir.join(name);
    write_file(&path, bytes)?;
    Ok(path)
}

/// A run's directory, or none: then only files of the job, if it has any, are kept.
pub struct OutDir {
    dir: Option<RunDir>,
    log: Option<RunLog>,
    /// The log is begun, and opened again when there is something to write: its most bytes.
    closed: Option<u64>,
    /// Where files go when there is no directory; made with the first.
    files: PathBuf,
    written: Vec<PathBuf>,
}

impl OutDir {
    /// With a directory: manifest, config and log are begun there.
    ///
    /// # Errors
    /// There is a run already, or the system refuses.
    pub fn create(
        dir: &Path,
        manifest: &Manifest,
        config: &str,
        log_max: u64,
    ) -> Result<Self, Failed> {
        let run = RunDir::create(dir)?;
        run.write_manifest(manifest)?;
        run.write_config(config)?;
        let log = run.begin_log(manifest, log_max)?;
        Ok(Self::of(run, Some(log), None))
    }

    /// The same, and no file of it stays open before there is something to write.
    ///
    /// # Errors
    /// As of [`OutDir::create`].
    pub fn create_closed(
        dir: &Path,
        manifest: &Manifest,
        config: &str,
        log_max: u64,
    ) -> Result<Self, Failed> {
        let out = Self::create(dir, manifest, config, log_max)?;
        Ok(Self { log: None, closed: Some(log_max), ..out })
    }

    /// Goes on with that of a run whose writer has died, when there is something to write.
    ///
    /// # Errors
    /// There is none.
    pub fn resume(dir: &Path, log_max: u64) -> Result<Self, Failed> {
        Ok(Self::of(RunDir::open(dir)?, None, Some(log_max)))
    }

    /// Without one.
    pub fn none(manifest: &Manifest) -> Self {
        Self::files_only(PathBuf::from(format!("springtide-{}", manifest.run)))
    }

    /// Without one, and the job's files go into this directory.
    pub fn files_only(files: PathBuf) -> Self {
        Self { dir: None, log: None, closed: None, files, written: Vec::new() }
    }

    fn of(run: RunDir, log: Option<RunLog>, closed: Option<u64>) -> Self {
        let files = run.path().to_owned();
        Self { dir: Some(run), log, closed, files, written: Vec::new() }
    }

    fn open_log(&mut self) -> Result<(), Failed> {
        if let (Some(run), Some(log_max)) = (&self.dir, self.closed) {
            self.log = Some(run.resume_log(log_max)?);
            self.closed = None;
        }
        Ok(())
    }

    /// Where the run's directory is.
    pub fn path(&self) -> Option<&Path> {
        self.dir.as_ref().map(RunDir::path)
    }

    /// Adds records to the log.
    ///
    /// # Errors
    /// They cannot be written.
    pub fn records(&mut self, records: &[Record]) -> Result<(), Failed> {
        if records.is_empty() {
            return Ok(());
        }
        self.open_log()?;
        match &mut self.log {
            Some(log) => Ok(log.append(records)?),
            None => Ok(()),
        }
    }

    /// Writes a file of the job, whole or not at all.
    ///
    /// # Errors
    /// Its name is no plain file name, or it cannot be written.
    pub fn file(&mut self, name: &str, bytes: &[u8]) -> Result<&Path, Failed> {
        check_name(name)?;
        self.put(name, bytes)
    }

    /// The same for a file of the run's own, which no job may write.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn own_file(&mut self, name: &'static str, bytes: &[u8]) -> Result<&Path, Failed> {
        self.put(name, bytes)
    }

    fn put(&mut self, name: &str, bytes: &[u8]) -> Result<&Path, Failed> {
        let path = keep(&self.files, name, bytes)?;
        if !self.written.contains(&path) {
            self.written.push(path);
        }
        Ok(self.written.last().map_or(&*self.files, PathBuf::as_path))
    }

    /// The job's files, in order of first writing.
    pub fn files(&self) -> &[PathBuf] {
        &self.written
    }

    /// Ends the log and writes the result: the run is whole.
    ///
    /// # Errors
    /// They cannot be written. The result is written, if it can be, though the log cannot.
    pub fn finish(&mut self, result: &serde_json::Value) -> Result<(), Failed> {
        let logged = self.end_log();
        if let Some(dir) = &self.dir {
            dir.write_result(result)?;
        }
        logged
    }

    /// Ends the log.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn end_log(&mut self) -> Result<(), Failed> {
        self.open_log()?;
        match self.log.take() {
            Some(log) => Ok(log.finish()?),
            None => Ok(()),
        }
    }
}

/// Names come from other machines: nothing may be written but beside the run's own files, and not over them.
fn check_name(name: &str) -> Result<(), Failed> {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let own = [
        "manifest.json",
        "config.toml",
        "events.jsonl",
        "result.json",
        "head.json",
        "scheduler.log",
        "scheduler.lease",
        "scheduler.jobs",
        "wan.json",
        "job.json",
        "log.txt",
        "outcome.json",
        "summary.txt",
    ];
    let wrong = if name.is_empty() || name.len() > 128 || !name.chars().all(plain) {
        "use up to 128 letters, digits, `-`, `_` and `.`"
    } else if name.starts_with('.') {
        "it must not begin with a point"
    } else if own.contains(&name) {
        "the run has a file of its own of that name"
    } else {
        return Ok(());
    };
    let shown: String = name.escape_default().take(80).collect();
    Err(Failed::failure(format!("the job's file `{shown}` is not written: {wrong}")))
}

/// A new run: its name is the job's and the time in UTC.
pub fn manifest(job: &str, version: &str, seed: Option<u64>) -> Manifest {
    // The system's clock names the run and is no part of it.
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Manifest {
        schema: SCHEMA,
        run: format!("{job}-{}", stamp(since.as_secs())),
        job: job.to_owned(),
        command: std::env::args_os().map(|arg| arg.to_string_lossy().into_owned()).collect(),
        version: version.to_owned(),
        started_unix_us: u64::try_from(since.as_micros()).unwrap_or(u64::MAX),
        seed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_writes_only_beside_the_runs_own_files() {
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
            "scheduler.log",
            "wan.json",
            &"x".repeat(129),
        ] {
            assert!(out.file(name, b"evil").is_err(), "{name:?}");
        }
        assert_eq!(out.file("a.png", b"one").unwrap(), dir.join("a.png"));
        out.file("a.png", b"two").unwrap();
        out.finish(&serde_json::json!({})).unwrap();
        assert_eq!(out.files(), [dir.join("a.png")]);
        assert_eq!(std::fs::read(dir.join("a.png")).unwrap(), b"two");
        let left = std::fs::read_dir(temp.path()).unwrap().count();
        assert_eq!(left, 1);
        let Err(again) = OutDir::create(&dir, &manifest("fib", "1", None), "", 0) else {
            panic!("taken")
        };
        assert!(again.message.contains("holds another run"), "{again}");
    }
}
