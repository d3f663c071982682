//! The audit log of a grid: who gave which command, about which jobs, and with which outcome.
//!
//! ```text
//! DIR/audit.jsonl    one JSON object a line, in the order of the outcomes; only appended to
//! ```
//!
//! A line is written before the sender gets its answer. It is not synced: a crash of the process
//! keeps it, a failure of the machine may lose the last ones. This module does not know the
//! commands.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use springtide_protocol::admit::{AuditOutcome, Principal};
use springtide_runtime::id::JobId;
use springtide_runtime::net::tls::Calendar;
use springtide_runtime::remote::Refusal;

/// The result of a command, as the log names it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AuditResult {
    /// The command was executed.
    #[default]
    Done,
    /// The sender may give the command, and it failed.
    Failed,
    /// The sender may not give the command, or the grid could not execute it.
    Refused,
}

/// A line of the log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditEntry {
    /// Time of the command, in seconds since 1970 by the clock of the writing host.
    pub time_unix_s: i64,
    /// Owner of the certificate that gave the command.
    pub who: Principal,
    /// Name of the command: that of its message, or of the program's subcommand.
    pub command: String,
    /// Jobs that the command concerns.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub jobs: Vec<JobId>,
    /// Result of the command.
    #[serde(default)]
    pub result: AuditResult,
    /// Reason of a failure or refusal, or what a command without jobs concerns.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
}

impl AuditEntry {
    /// The entry after the command's completion.
    #[must_use]
    pub fn completed(mut self, outcome: AuditOutcome) -> Self {
        self.jobs.extend(outcome.jobs);
        if outcome.error.is_some() {
            (self.result, self.detail) = (AuditResult::Failed, outcome.error);
        }
        self
    }

    /// The entry after a refusal.
    #[must_use]
    pub fn refused(self, why: Refusal) -> Self {
        Self { result: AuditResult::Refused, detail: Some(why.to_string()), ..self }
    }
}

/// A grid's audit log, for appending.
pub struct AuditLog {
    path: PathBuf,
    calendar: Calendar,
}

impl fmt::Debug for AuditLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AuditLog").field("path", &self.path).finish_non_exhaustive()
    }
}

impl AuditLog {
    /// The log of the grid in this directory. `calendar` gives the times of entries.
    pub fn of(dir: &Path, calendar: Calendar) -> Self {
        Self { path: Self::path(dir), calendar }
    }

    /// Path of the log of the grid in this directory.
    pub fn path(dir: &Path) -> PathBuf {
        dir.join("audit.jsonl")
    }

    /// A new entry for a command that begins now.
    pub fn entry(&self, who: Principal, command: &str, job: Option<JobId>) -> AuditEntry {
        AuditEntry {
            time_unix_s: (self.calendar)(),
            who,
            command: command.to_owned(),
            jobs: job.into_iter().collect(),
            result: AuditResult::Done,
            detail: None,
        }
    }

    /// Appends an entry. A failure is logged, and the command continues.
    pub fn append(&self, entry: &AuditEntry) {
        if let Err(error) = self.try_append(entry) {
            let path = self.path.display();
            tracing::error!("{path} lacks the command {} of {}: {error}", entry.command, entry.who);
        }
    }

    /// Appends an entry.
    ///
    /// # Errors
    /// The system's error.
    pub fn try_append(&self, entry: &AuditEntry) -> io::Result<()> {
        let mut line = serde_json::to_vec(entry)?;
        line.push(b'\n');
        // Opened for each line, so that a file that was moved away is replaced.
        let mut options = OpenOptions::new();
        let mut file: File = options.append(true).create(true).mode(0o600).open(&self.path)?;
        // One system call, so that lines of several processes do not mix.
        file.write_all(&line)
    }
}

/// The readable entries of an audit log, and the numbers of its other lines, from 1.
#[derive(Debug, Default)]
pub struct AuditContents {
    /// The entries in the order of the file.
    pub entries: Vec<AuditEntry>,
    /// Lines that are not entries, with the reasons.
    pub damaged: Vec<(usize, String)>,
}

impl AuditContents {
    /// Reads the log of the grid in this directory. A missing file has no entries.
    ///
    /// # Errors
    /// The system's error.
    pub fn read(dir: &Path) -> io::Result<Self> {
        let text = match std::fs::read(AuditLog::path(dir)) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(error),
        };
        let mut contents = Self::default();
        for (index, line) in text.split(|byte| *byte == b'\n').enumerate() {
            if line.is_empty() {
                continue;
            }
            match serde_json::from_slice(line) {
                Ok(entry) => contents.entries.push(entry),
                Err(error) => contents.damaged.push((index + 1, error.to_string())),
            }
        }
        Ok(contents)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn log(dir: &Path) -> AuditLog {
        AuditLog::of(dir, Arc::new(|| 1_700_000_000))
    }

    fn principal(name: &str) -> Principal {
        Principal { name: name.into(), cluster: "users".into(), role: Some("client".into()) }
    }

    #[test]
    fn entries_are_read_as_they_were_written() {
        let dir = tempfile::tempdir().unwrap();
        let log = log(dir.path());
        let submit = log.entry(principal("alice"), "desk-submit", None);
        let submit = submit.completed(AuditOutcome::of_jobs(vec![JobId(1), JobId(2)]));
        let cancel = log.entry(principal("bob"), "cancel-job", Some(JobId(1)));
        let cancel = cancel.refused(Refusal::Owner);
        let resize = log.entry(principal("alice"), "resize-job", Some(JobId(2)));
        let resize = resize.completed(AuditOutcome::failed("it is fixed"));
        for entry in [&submit, &cancel, &resize] {
            log.try_append(entry).unwrap();
        }
        assert_eq!(submit.jobs, [JobId(1), JobId(2)]);
        assert_eq!(resize.result, AuditResult::Failed);
        assert!(cancel.detail.as_ref().unwrap().contains("another user"), "{cancel:?}");
        let read = AuditContents::read(dir.path()).unwrap();
        assert_eq!(read.entries, [submit, cancel, resize]);
        assert!(read.damaged.is_empty());
    }

    #[test]
    fn a_damaged_line_hides_no_other() {
        let dir = tempfile::tempdir().unwrap();
        assert!(AuditContents::read(dir.path()).unwrap().entries.is_empty());
        let log = log(dir.path());
        let entry = log.entry(principal("alice"), "drain", None);
        log.try_append(&entry).unwrap();
        let path = AuditLog::path(dir.path());
        let mut text = std::fs::read(&path).unwrap();
        text.extend(b"{\"time_unix_s\":17\n");
        std::fs::write(&path, text).unwrap();
        log.try_append(&entry).unwrap();
        let read = AuditContents::read(dir.path()).unwrap();
        assert_eq!(read.entries, [entry.clone(), entry]);
        assert_eq!(read.damaged.iter().map(|(line, _)| *line).collect::<Vec<_>>(), [2]);
    }

    #[test]
    fn only_the_owner_reads_the_log() {
        use std::os::unix::fs::PermissionsExt as _;
        let dir = tempfile::tempdir().unwrap();
        let log = log(dir.path());
        log.try_append(&log.entry(principal("alice"), "drain", None)).unwrap();
        let mode = std::fs::metadata(AuditLog::path(dir.path())).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }
}
