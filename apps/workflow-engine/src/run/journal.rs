//! The journal of a run: a line of JSON for each event, by which a later process continues.
//!
//! A line is written at once, so that a killed process loses none. The operating system writes it
//! to the disk within a second. A line that a crash cut off is ignored.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use ring::digest::{SHA256, digest};
use serde::{Deserialize, Serialize};
use springtide_cli::exit::{Failed, cannot};
use springtide_cli::outdir::open_append;
use springtide_runtime::id::{ClusterId, NodeId};
use tokio::time::Instant;

/// The interval at which the journal is synchronised with the disk.
const SYNC_INTERVAL: Duration = Duration::from_secs(1);

/// An event of a run, with its time in seconds since the Unix epoch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum JournalEntry {
    /// A process begins or continues the run.
    Begun {
        /// Time of the event.
        at_s: f64,
        /// Number of the workflow's tasks.
        tasks: usize,
        /// Completed tasks of earlier processes that are not run again.
        restored: usize,
        /// Whether tasks run without reservations.
        best_effort: bool,
        /// The source of the workflow; none in journals of earlier versions.
        source: Option<WorkflowSource>,
    },
    /// An attempt of a task has started.
    Started {
        /// Time of the event.
        at_s: f64,
        /// Id of the task.
        task: String,
        /// Its attempt, from 1.
        attempt: u32,
        /// The cluster of its node.
        cluster: Option<ClusterId>,
        /// Its node.
        node: Option<NodeId>,
    },
    /// A task was completed.
    Completed {
        /// Time of the event.
        at_s: f64,
        /// Id of the task.
        task: String,
        /// The digest of what it computed.
        key: String,
        /// Its attempt, from 1.
        attempt: u32,
        /// The start of the attempt.
        start_s: f64,
        /// The cluster that has its outputs.
        cluster: Option<ClusterId>,
        /// Its node.
        node: Option<NodeId>,
        /// Its running time in seconds.
        wall_s: f64,
        /// Its processor time in seconds.
        cpu_s: f64,
        /// The most memory that it used, in bytes; 0 if unknown.
        memory_bytes: u64,
    },
    /// An attempt of a task failed.
    Failed {
        /// Time of the event.
        at_s: f64,
        /// Id of the task.
        task: String,
        /// Its attempt, from 1; 0 if none could start.
        attempt: u32,
        /// The start of the attempt, if it started.
        start_s: Option<f64>,
        /// The cluster of its node.
        cluster: Option<ClusterId>,
        /// The reason.
        reason: String,
        /// Whether another attempt follows.
        again: bool,
    },
    /// Slots were reserved.
    Reserved {
        /// Time of the event.
        at_s: f64,
        /// Number of the reservation.
        reservation: u64,
        /// The reason.
        reason: String,
        /// Number of tasks.
        tasks: usize,
        /// The planned running time of these tasks in seconds.
        makespan_s: f64,
        /// The price.
        cost: f64,
    },
    /// A file was copied to the cluster of a task that reads it.
    Staged {
        /// Time of the event.
        at_s: f64,
        /// Id of the task.
        task: String,
        /// Name of the file.
        file: String,
        /// The cluster that sent it.
        from: ClusterId,
        /// The cluster that received it.
        cluster: ClusterId,
        /// Its size in bytes, as transferred.
        bytes: u64,
        /// Duration of the transfer in seconds.
        seconds: f64,
    },
    /// A result was copied to its final place.
    Fetched {
        /// Time of the event.
        at_s: f64,
        /// Name of the file.
        file: String,
        /// Its path.
        path: PathBuf,
    },
    /// A process ended the run.
    Ended {
        /// Time of the event.
        at_s: f64,
        /// The reason, if tasks are left.
        error: Option<String>,
        /// Whether a user ended it, by a signal or `workflow cancel`.
        #[serde(default)]
        interrupted: bool,
    },
}

/// The source of a run's workflow: its file, and the options that change what the file says.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct WorkflowSource {
    /// SHA-256 digest of the file, in hexadecimal digits.
    pub digest: String,
    /// The format, if an option names it.
    pub format: Option<String>,
    /// The absolute path of the table of overrides.
    pub overrides: Option<PathBuf>,
    /// The absolute path of the table of commands.
    pub programs: Option<PathBuf>,
    /// The scale of placeholders, if they run instead of the commands.
    pub pretend: Option<f64>,
    /// The time limit in seconds of tasks without a limit of their own.
    pub time_limit_s: Option<f64>,
    /// The memory limit in bytes of tasks without a limit of their own.
    pub memory_bytes: Option<u64>,
}

impl JournalEntry {
    /// Time of the event.
    pub fn at_s(&self) -> f64 {
        match self {
            Self::Begun { at_s, .. }
            | Self::Started { at_s, .. }
            | Self::Completed { at_s, .. }
            | Self::Failed { at_s, .. }
            | Self::Reserved { at_s, .. }
            | Self::Staged { at_s, .. }
            | Self::Fetched { at_s, .. }
            | Self::Ended { at_s, .. } => *at_s,
        }
    }
}

impl WorkflowSource {
    /// The digest of a workflow's text.
    pub fn digest_of(text: &[u8]) -> String {
        let digest = digest(&SHA256, text);
        digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// The journal of a run, open for new entries.
#[derive(Debug)]
pub struct Journal {
    file: File,
    path: PathBuf,
    sync_at: Instant,
}

impl Journal {
    /// Opens the journal of a run, and reads its entries.
    ///
    /// # Errors
    /// It cannot be read or written, or a line is damaged: with the line.
    pub fn open(path: &Path) -> Result<(Self, Vec<JournalEntry>), Failed> {
        let file = open_append(path)?;
        let (entries, whole) = read_entries(&file, path)?;
        // A cut-off line would join the next one.
        file.set_len(whole).map_err(|error| cannot("write", path, &error))?;
        Ok((Self { file, path: path.to_owned(), sync_at: Instant::now() }, entries))
    }

    /// Adds an entry.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn add(&mut self, entry: &JournalEntry) -> Result<(), Failed> {
        let written = serde_json::to_vec(entry).map_err(io::Error::other).and_then(|mut line| {
            line.push(b'\n');
            self.file.write_all(&line)
        });
        written.map_err(|error| cannot("write", &self.path, &error))?;
        let now = Instant::now();
        if now >= self.sync_at {
            self.sync_at = now + SYNC_INTERVAL;
            self.file.sync_data().map_err(|error| cannot("write", &self.path, &error))?;
        }
        Ok(())
    }
}

/// Reads the entries of a journal without changing it.
///
/// # Errors
/// It cannot be read, or a line is damaged: with the line.
pub fn read_journal(path: &Path) -> Result<Vec<JournalEntry>, Failed> {
    let file = File::open(path).map_err(|error| cannot("read", path, &error))?;
    Ok(read_entries(&file, path)?.0)
}

/// The entries, and the length of their lines in bytes.
fn read_entries(mut file: &File, path: &Path) -> Result<(Vec<JournalEntry>, u64), Failed> {
    let failed = |error: io::Error| cannot("read", path, &error);
    file.seek(SeekFrom::Start(0)).map_err(failed)?;
    let (mut reader, mut line) = (BufReader::new(file), Vec::new());
    let (mut entries, mut whole) = (Vec::new(), 0);
    loop {
        line.clear();
        let read = reader.read_until(b'\n', &mut line).map_err(failed)?;
        if read == 0 || line.last() != Some(&b'\n') {
            return Ok((entries, whole));
        }
        let entry = serde_json::from_slice(&line).map_err(|error| {
            let at = entries.len() + 1;
            Failed::usage(format!("{}:{at}: a damaged line: {error}", path.display()))
        })?;
        entries.push(entry);
        whole += read as u64;
    }
}

/// A completed task, as a journal has it.
#[derive(Clone, Debug, PartialEq)]
pub struct CompletedTask {
    /// The digest of what it computed.
    pub key: String,
    /// The cluster that has its outputs.
    pub cluster: Option<ClusterId>,
    /// Its start, in seconds since the Unix epoch.
    pub start_s: f64,
    /// Its end, in seconds since the Unix epoch.
    pub end_s: f64,
}

/// The completed tasks of a journal, by id.
pub fn completed_tasks(entries: &[JournalEntry]) -> BTreeMap<String, CompletedTask> {
    let completed = |entry: &JournalEntry| match entry {
        JournalEntry::Completed { at_s, task, key, start_s, cluster, .. } => {
            let (key, cluster) = (key.clone(), cluster.clone());
            Some((task.clone(), CompletedTask { key, cluster, start_s: *start_s, end_s: *at_s }))
        }
        _ => None,
    };
    entries.iter().filter_map(completed).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(at_s: f64) -> JournalEntry {
        JournalEntry::Ended { at_s, error: None, interrupted: false }
    }

    #[test]
    fn a_cut_off_line_is_ignored_and_a_damaged_one_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal.jsonl");
        let (mut journal, entries) = Journal::open(&path).unwrap();
        assert_eq!(entries, []);
        journal.add(&ended(1.0)).unwrap();
        drop(journal);
        let mut text = std::fs::read_to_string(&path).unwrap();
        text.push_str("{\"event\":\"en");
        std::fs::write(&path, &text).unwrap();
        let (mut journal, entries) = Journal::open(&path).unwrap();
        assert_eq!(entries, [ended(1.0)]);
        journal.add(&ended(2.0)).unwrap();
        drop(journal);
        assert_eq!(read_journal(&path).unwrap(), [ended(1.0), ended(2.0)]);
        std::fs::write(&path, "{}\n").unwrap();
        let error = Journal::open(&path).unwrap_err();
        assert!(error.message.contains("journal.jsonl:1: a damaged line"), "{}", error.message);
    }
}
