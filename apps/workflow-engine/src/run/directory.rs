//! The directory of a run: its journal, its tasks' logs, and the lock of the process that runs it.
//!
//! ```text
//! run.json        the workflow, the grid, and the id of the run
//! run.lock        locked while a process runs it, whose number it contains
//! journal.jsonl   a line for each event
//! logs/           TASK.out and TASK.err; of earlier attempts TASK.N.out
//! runner.log      messages of a process that `workflow submit` has started
//! result.json     the result of the last process, and tasks.csv
//! report.html     the page of `workflow report`
//! ```

use std::fs::{self, File, TryLockError};
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use springtide_actors::files::RUN_FILES;
use springtide_cli::exit::{Failed, cannot};
use springtide_cli::outdir::{append, make_dir, open_append, write_file};
use springtide_runtime::work::OutputStream;

use super::journal::{Journal, JournalEntry, read_journal};

/// The version of the format.
const SCHEMA: u32 = 1;
/// The name of the directory of tasks' logs.
const LOGS: &str = "logs";

/// The description of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunManifest {
    /// The version of the format.
    pub schema: u32,
    /// The id of the run, which begins all its stored names.
    pub id: String,
    /// The name of the workflow.
    pub workflow: String,
    /// The absolute path of its file.
    pub file: PathBuf,
    /// The absolute path of the grid's config.
    pub config: PathBuf,
}

/// The directory of a run that this process runs.
#[derive(Debug)]
pub struct RunDirectory {
    path: PathBuf,
    /// Locked as long as it is open.
    _lock: File,
    /// The description of the run.
    pub manifest: RunManifest,
    /// The journal of the run.
    pub journal: Journal,
    /// The journal of the cache, if the run has one.
    pub cache: Option<Journal>,
}

/// How to open a directory that has a run already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExistingRun {
    /// Continue an unfinished run. Move a finished one aside.
    ContinueUnfinished,
    /// Continue it in any case.
    Continue,
    /// Move it aside.
    MoveAside,
}

impl RunDirectory {
    /// Opens the directory for a run, and locks it. Returns it with the entries of its journal.
    ///
    /// # Errors
    /// Another process runs it, it has a run of another workflow or grid, or a file is damaged.
    pub fn open(
        path: &Path,
        manifest: RunManifest,
        existing: ExistingRun,
    ) -> Result<(Self, Vec<JournalEntry>), Failed> {
        make_dir(path)?;
        let lock = lock(path)?;
        let file = path.join("run.json");
        if !file.exists() {
            let text = serde_json::to_vec_pretty(&manifest)
                .map_err(|error| cannot("write", &file, &error))?;
            write_file(&file, &text)?;
        }
        let found = read_manifest(path)?;
        if (&found.file, &found.config) != (&manifest.file, &manifest.config) {
            return Err(Failed::usage(format!(
                "{} has a run of {} on the grid {}: name another directory with --dir",
                path.display(),
                found.file.display(),
                found.config.display()
            )));
        }
        let journal_path = path.join("journal.jsonl");
        let (journal, entries) = Journal::open(&journal_path)?;
        let is_finished = matches!(entries.last(), Some(JournalEntry::Ended { error: None, .. }));
        let moves = existing == ExistingRun::MoveAside && !entries.is_empty()
            || existing == ExistingRun::ContinueUnfinished && is_finished;
        if moves {
            let aside = free_name(path);
            fs::rename(path, &aside).map_err(|error| cannot("rename", path, &error))?;
            drop(lock);
            return Self::open(path, manifest, existing);
        }
        make_dir(&path.join(LOGS))?;
        let (path, manifest, cache) = (path.to_owned(), found, None);
        Ok((Self { path, _lock: lock, manifest, journal, cache }, entries))
    }

    /// The path of the directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Adds a piece to the log of an attempt.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn add_log(
        &self,
        task: TaskName<'_>,
        attempt: u32,
        stream: OutputStream,
        bytes: &[u8],
    ) -> Result<(), Failed> {
        append(&log_path(&self.path, task, attempt, stream), bytes)
    }
}

/// A task of a workflow, by index and by id.
#[derive(Clone, Copy, Debug)]
pub struct TaskName<'a> {
    /// Index of the task.
    pub task: usize,
    /// Id of the task in the workflow.
    pub id: &'a str,
}

/// The path of the log of an attempt.
pub fn log_path(
    dir: &Path,
    TaskName { task, id }: TaskName<'_>,
    attempt: u32,
    stream: OutputStream,
) -> PathBuf {
    let plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    let is_plain = id.chars().all(plain) && !id.starts_with('.') && id.len() <= 100;
    let name = if is_plain {
        id.to_owned()
    } else {
        let own: String = id.chars().map(|c| if plain(c) { c } else { '_' }).take(80).collect();
        format!("task-{task}-{own}")
    };
    let stream = match stream {
        OutputStream::Stdout => "out",
        OutputStream::Stderr => "err",
    };
    dir.join(LOGS).join(format!("{name}.{attempt}.{stream}"))
}

/// The log of an attempt of a task whose index is unknown; none if the attempt wrote nothing.
pub fn find_log(dir: &Path, id: &str, attempt: u32, stream: OutputStream) -> Option<PathBuf> {
    let path = log_path(dir, TaskName { task: 0, id }, attempt, stream);
    if path.exists() {
        return Some(path);
    }
    // A name that is not plain has the task's index.
    let name = path.file_name()?.to_string_lossy().into_owned();
    let tail = name.strip_prefix("task-0")?.to_owned();
    let logs = fs::read_dir(dir.join("logs")).into_iter().flatten().flatten();
    logs.map(|entry| entry.path()).find(|path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let number = name.strip_prefix("task-").and_then(|name| name.strip_suffix(&tail));
        number.is_some_and(|number| number.bytes().all(|byte| byte.is_ascii_digit()))
    })
}

/// Reads the description of a run.
///
/// # Errors
/// The directory has none, or one of another version.
pub fn read_manifest(dir: &Path) -> Result<RunManifest, Failed> {
    let path = dir.join("run.json");
    let text = fs::read(&path).map_err(|error| {
        let shown = dir.display();
        Failed::usage(format!("{shown} is no directory of a run: run.json: {error}"))
    })?;
    let manifest: RunManifest = serde_json::from_slice(&text)
        .map_err(|error| Failed::usage(format!("{}: {error}", path.display())))?;
    if manifest.schema != SCHEMA {
        let (path, schema) = (path.display(), manifest.schema);
        return Err(Failed::usage(format!(
            "{path}: a run of version {schema}, and this program reads version {SCHEMA}"
        )));
    }
    Ok(manifest)
}

/// Reads the journal of a run.
///
/// # Errors
/// As [`read_journal`].
pub fn read_entries(dir: &Path) -> Result<Vec<JournalEntry>, Failed> {
    read_journal(&dir.join("journal.jsonl"))
}

impl RunManifest {
    /// A run of a workflow on a grid, with a new id.
    pub fn new(workflow: String, file: PathBuf, config: PathBuf, id: u64) -> Self {
        Self { schema: SCHEMA, id: format!("{:08x}", id as u32), workflow, file, config }
    }

    /// The text that begins all stored names of the run.
    pub fn prefix(&self) -> String {
        format!("{RUN_FILES}{}", self.id)
    }
}

/// Locks the directory for this process.
fn lock(dir: &Path) -> Result<File, Failed> {
    let path = dir.join("run.lock");
    let mut file = open_append(&path)?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let process = runner(dir).map_or_else(String::new, |id| format!(" {id}"));
            let dir = dir.display();
            return Err(Failed::failure(format!(
                "process{process} runs {dir}: see `workflow watch {dir}` and `workflow cancel \
                 {dir}`"
            )));
        }
        Err(TryLockError::Error(error)) => return Err(cannot("lock", &path, &error)),
    }
    let written = file.set_len(0).and_then(|()| write!(file, "{}", std::process::id()));
    written.map_err(|error| cannot("write", &path, &error))?;
    Ok(file)
}

/// The process that runs a directory; `None` if none does.
pub fn runner(dir: &Path) -> Option<u32> {
    let mut file = File::open(dir.join("run.lock")).ok()?;
    if file.try_lock_shared().is_ok() {
        return None;
    }
    let mut text = String::new();
    file.read_to_string(&mut text).ok()?;
    text.trim().parse().ok()
}

/// A name next to the directory that does not exist.
fn free_name(dir: &Path) -> PathBuf {
    let name = dir.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let numbered = |number: u32| dir.with_file_name(format!("{name}.{number}"));
    (1..).map(numbered).find(|path| !path.exists()).unwrap_or_else(|| dir.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manifest(file: &str, id: u64) -> RunManifest {
        RunManifest::new("w".to_owned(), file.into(), "grid.toml".into(), id)
    }

    #[test]
    fn an_unfinished_run_continues_and_a_finished_one_moves_aside() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("run");
        let open = |id, existing| RunDirectory::open(&path, manifest("a", id), existing);
        let unfinished = ExistingRun::ContinueUnfinished;
        let (mut run, entries) = open(1, unfinished).unwrap();
        assert_eq!((run.manifest.prefix().as_str(), entries.len()), ("wf-00000001", 0));
        let locked = open(2, unfinished).unwrap_err();
        let process = format!("process {} runs", std::process::id());
        assert!(locked.message.contains(&process), "{}", locked.message);
        assert_eq!(runner(&path), Some(std::process::id()));
        let error = Some("killed".to_owned());
        run.journal.add(&JournalEntry::Ended { at_s: 1.0, error, interrupted: false }).unwrap();
        drop(run);
        assert_eq!(runner(&path), None);
        let (mut run, entries) = open(2, unfinished).unwrap();
        assert_eq!((run.manifest.id.as_str(), entries.len()), ("00000001", 1));
        let ended = JournalEntry::Ended { at_s: 2.0, error: None, interrupted: false };
        run.journal.add(&ended).unwrap();
        drop(run);
        let other = RunDirectory::open(&path, manifest("b", 3), unfinished).unwrap_err();
        assert!(other.message.contains("has a run of a on the grid"), "{}", other.message);
        let (run, entries) = open(3, ExistingRun::Continue).unwrap();
        assert_eq!((run.manifest.id.as_str(), entries.len()), ("00000001", 2));
        drop(run);
        let (run, entries) = open(4, unfinished).unwrap();
        assert_eq!((run.manifest.id.as_str(), entries.len()), ("00000004", 0));
        assert!(dir.path().join("run.1/journal.jsonl").exists());
        drop(run);
    }

    #[test]
    fn logs_are_named_after_their_tasks() {
        let name = |id: &str| {
            let path = log_path(Path::new("d"), TaskName { task: 7, id }, 2, OutputStream::Stderr);
            path.to_string_lossy().into_owned()
        };
        assert_eq!(name("sort-a"), "d/logs/sort-a.2.err");
        assert_eq!(name("a/b c"), "d/logs/task-7-a_b_c.2.err");
        assert_eq!(name("../x"), "d/logs/task-7-.._x.2.err");
    }
}
