//! One job of the archive: its files and its state in memory.
//!
//! This module knows neither submission nor the start of heads.

use std::collections::VecDeque;
use std::fs;
use std::io::{self, BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use serde_json::Value;
use springtide_actors::client::JobUpdate;
use springtide_actors::job::{JobError, NoteKind};
use springtide_cli::exit::{Exit, Failed};
use springtide_cli::format::many;
use springtide_cli::outdir::{OutDir, append, make_dir, manifest, write_copy};
use springtide_cli::run_end::RunEnd;
use springtide_runtime::event::Manifest;
use springtide_runtime::records::RecordError;
use springtide_runtime::work::Outcome;

use super::entry::{ArchiveEntry, JobEnd, JobRecord, JobUsage, since_epoch};
use super::output::{LineSplitter, OutputChunk, OutputFile, file_name, last_attempt, read_chunk};
use super::records::{JobRecords, JobResult};
use springtide_cli::run_end::conclude;

/// The maximum number of a job's last lines in memory. Its log file holds all lines.
pub(super) const LINES_MAX: usize = 1000;
/// The maximum length of a line in memory, in bytes. The log file holds the whole line.
pub(super) const LINE_MAX: usize = 4096;

/// One job of the archive.
pub(super) struct ArchivedJob {
    pub(super) entry: ArchiveEntry,
    pub(super) progress: Option<String>,
    /// The last lines. Empty once the job has ended, unless the log file lacks lines.
    pub(super) lines: VecDeque<String>,
    pub(super) line_count: u64,
    /// Whether the log file lacks lines of the job.
    pub(super) unlogged: bool,
    pub(super) dir: PathBuf,
    /// The job's run directory, until the job ends.
    pub(super) files: JobFiles,
    /// The result that could not be stored, with the reason.
    pub(super) unwritten: Option<(JobResult, String)>,
    /// The last preliminary outcome of the job. A later head receives only later ones.
    preliminary: Option<Outcome>,
    records: JobRecords,
    /// Incomplete last lines of the processes' output.
    splitter: LineSplitter,
    /// What the job has used so far.
    usage: JobUsage,
}

/// The run directory of a job.
pub(super) enum JobFiles {
    /// It is made with the first of its files, for many jobs may wait.
    Planned(Box<PlannedFiles>),
    /// It exists.
    Open(OutDir),
    /// The job has ended.
    Closed,
}

/// A run directory that does not exist yet.
pub(super) struct PlannedFiles {
    pub(super) about: Manifest,
    /// The grid's config in its printed form.
    pub(super) config: Arc<str>,
    /// The maximum size of the event log in bytes.
    pub(super) log_max: u64,
}

/// Reads the last lines of a job's log, and counts all its lines.
fn tail(log: &Path, max: usize) -> io::Result<(VecDeque<String>, u64)> {
    let (mut last, mut line_count) = (VecDeque::new(), 0);
    for line in BufReader::new(fs::File::open(log)?).split(b'\n') {
        if last.len() == max {
            last.pop_front();
        }
        if max > 0 {
            last.push_back(shorten(&String::from_utf8_lossy(&line?)));
        }
        line_count += 1;
    }
    Ok((last, line_count))
}

/// Shortens a line to its maximum length in memory.
fn shorten(line: &str) -> String {
    if line.len() > LINE_MAX {
        let end = (0..=LINE_MAX).rev().find(|&index| line.is_char_boundary(index));
        format!("{} ...", &line[..end.unwrap_or(0)])
    } else {
        line.to_owned()
    }
}

impl ArchivedJob {
    pub(super) fn new(dir: PathBuf, entry: ArchiveEntry, records: JobRecords) -> Self {
        Self {
            entry,
            progress: None,
            lines: VecDeque::new(),
            line_count: 0,
            unlogged: false,
            dir,
            files: JobFiles::Closed,
            unwritten: None,
            preliminary: None,
            records,
            splitter: LineSplitter::default(),
            usage: JobUsage::default(),
        }
    }

    /// A submitted job, whose record exists. Its files are made when they have contents.
    pub(super) fn submitted(
        dir: PathBuf,
        entry: ArchiveEntry,
        records: JobRecords,
        planned: PlannedFiles,
    ) -> Self {
        let mut job = Self::new(dir, entry, records);
        job.files = JobFiles::Planned(Box::new(planned));
        job
    }

    /// Makes the job's directory, unless it exists.
    pub(super) fn make_files(&mut self) {
        let JobFiles::Planned(planned) = &self.files else { return };
        let PlannedFiles { about, config, log_max } = &**planned;
        let out = make_dir(&self.dir)
            .and_then(|()| OutDir::create_closed(&self.dir, about, config, *log_max));
        self.files = JobFiles::Open(self.open_or_files_only(out));
    }

    /// The job's directory, until the job ends.
    fn open_files(&mut self) -> Option<&mut OutDir> {
        self.make_files();
        match &mut self.files {
            JobFiles::Open(out) => Some(out),
            JobFiles::Planned(_) | JobFiles::Closed => None,
        }
    }

    /// Opens a directory for files alone where events cannot be written: the job runs all the same.
    fn open_or_files_only(&self, out: Result<OutDir, Failed>) -> OutDir {
        out.unwrap_or_else(|failed| {
            tracing::warn!("{}: its events are not written: {failed}", self.entry.job);
            let mut out = OutDir::files_only(self.dir.clone());
            out.add(failed);
            out
        })
    }

    /// Ends a job whose end was not reported. Its outcome may have been stored all the same.
    pub(super) fn end_unreported(&mut self, why: &str) {
        let unwritten = self.close();
        let name = self.entry.name.clone();
        match self.records.outcome(self.entry.job) {
            Ok(Some(outcome)) => {
                let ended = RunEnd::new(&name, Ok(outcome), None);
                let ended = RunEnd { unwritten, ..ended };
                self.conclude(&ended, false, Exit::Ok);
            }
            Ok(None) => {
                let ended = RunEnd::early(&name, why).or_preliminary(self.preliminary.take());
                self.conclude(&RunEnd { unwritten, ..ended }, false, Exit::Failure);
            }
            Err(error) => {
                let why = format!("{error}; or submit the job again");
                self.conclude(&RunEnd::early(&name, &why), false, Exit::Failure);
            }
        }
    }

    /// Ends the event log. Returns the reason why files of the job are missing, which fails the
    /// job.
    fn close(&mut self) -> Option<String> {
        self.progress = None;
        self.make_files();
        let JobFiles::Open(mut open) = std::mem::replace(&mut self.files, JobFiles::Closed) else {
            return None;
        };
        if let Err(failed) = open.end_log() {
            tracing::warn!("{}: {failed}", self.entry.job);
        }
        open.unwritten()
    }

    /// Stores the result and the end of the job. What cannot be stored stays in memory until the
    /// head ends.
    fn conclude(&mut self, ended: &RunEnd, cancelled: bool, exit: Exit) {
        let end = JobEnd { usage: self.usage.clone(), ..JobEnd::of(ended, cancelled, exit) };
        let (mut object, summary) = (ended.json(), ended.summary());
        if let (Some(_), Some(object)) = (&end.error, object.as_object_mut()) {
            object.insert("cancelled".to_owned(), end.cancelled.into());
            object.insert("exit".to_owned(), end.exit().code().into());
        }
        // Copies for people and their programs.
        let write = |name: &str, text: &str| write_copy(&self.dir.join(name), text.as_bytes());
        let written = write("summary.txt", &summary)
            .and_then(|()| write("result.json", &format!("{object:#}\n")));
        if let Err(failed) = written {
            tracing::warn!("{}: {failed}", self.entry.job);
            self.say(&failed.message);
        }
        let (time, result) = (since_epoch(), JobResult { object, summary });
        if let Err(error) = self.records.ended(self.entry.job, &end, time, &result) {
            tracing::warn!("{}: its result is in memory alone: {error}", self.entry.job);
            self.unwritten = Some((result, error.to_string()));
        }
        (self.entry.ended, self.entry.ended_unix_s) = (Some(end), Some(time));
        self.preliminary = None;
        if !self.unlogged {
            self.lines = VecDeque::new();
        }
    }

    /// Whether the outcome of a job without an end is stored.
    pub(super) fn has_outcome(&self) -> bool {
        // A damaged outcome counts as one: the job has failed.
        !matches!(self.records.outcome(self.entry.job), Ok(None))
    }

    /// Reads the last lines of the log into memory, unless the job has ended.
    pub(super) fn read_lines(&mut self) {
        if self.entry.ended.is_none()
            && let Ok((lines, line_count)) = tail(&self.dir.join("log.txt"), LINES_MAX)
        {
            (self.lines, self.line_count) = (lines, line_count);
        }
    }

    /// Opens the files of a job that continues or restarts under a new head.
    pub(super) fn resume(&mut self, version: &str, config: &str, log_max: u64) {
        // A waiting job may have no files yet.
        let out = if self.dir.join("manifest.json").exists() {
            OutDir::resume(&self.dir, log_max)
        } else {
            let about = manifest(&self.entry.name, version, None);
            make_dir(&self.dir)
                .and_then(|()| OutDir::create_closed(&self.dir, &about, config, log_max))
        };
        self.files = JobFiles::Open(self.open_or_files_only(out));
        self.say("a new head continues the grid");
    }

    fn say(&mut self, text: &str) {
        if text.is_empty() {
            return;
        }
        self.make_files();
        for line in text.lines() {
            if self.lines.len() == LINES_MAX {
                self.lines.pop_front();
            }
            self.lines.push_back(shorten(line));
            self.line_count += 1;
        }
        // Lines are rare, so that the file need not stay open.
        let lines: String = text.lines().map(|line| format!("{line}\n")).collect();
        if let Err(error) = append(&self.dir.join("log.txt"), lines.as_bytes()) {
            self.unlogged = true;
            tracing::warn!("{}: its lines are not written: {error}", self.entry.job);
        }
    }

    pub(super) fn take(&mut self, news: JobUpdate) {
        if self.entry.ended.is_some() {
            return; // its end is stored already
        }
        match news {
            JobUpdate::Note(note) => {
                if let Err(failed) = self.note(*note) {
                    tracing::warn!("{}: {failed}", self.entry.job);
                    // The log names the failure. A repeated one, such as a full disk, is logged
                    // once.
                    if self.lines.back() != Some(&failed.message) {
                        self.say(&failed.message);
                    }
                }
            }
            JobUpdate::Ended(ended) => {
                let rest = self.splitter.rest();
                self.say(&rest);
                let cancelled = matches!(ended.outcome, Err(JobError::Cancelled { .. }));
                self.usage.end(&ended.report);
                let (ended, exit) = conclude(&self.entry.name, *ended);
                let mut ended = ended.or_preliminary(self.preliminary.take());
                ended.unwritten = self.close();
                self.conclude(&ended, cancelled, exit);
            }
        }
    }

    fn note(&mut self, note: NoteKind) -> Result<(), Failed> {
        match note {
            NoteKind::Started { root, workers } => {
                let count: u32 = workers.values().sum();
                self.usage.begin(count, since_epoch());
                self.say(&format!(
                    "{} joined; the root runs on {root}",
                    many(count.into(), "worker")
                ));
            }
            NoteKind::Progress { done, total, what } => {
                self.progress = Some(format!("{done} of {total} {what}"));
            }
            NoteKind::Text { text } => self.say(&text),
            NoteKind::Artifact { name, bytes } => {
                if let Some(open) = self.open_files() {
                    open.file(&name, &bytes)?;
                }
                self.say(&format!("wrote {name}"));
            }
            NoteKind::Output { rank, attempt, processes, stream, bytes } => {
                self.make_files();
                let lines = self.splitter.add(rank, attempt, stream, processes, &bytes);
                let path = self.dir.join(file_name(rank, attempt, stream));
                let written = append(&path, &bytes);
                self.say(&lines);
                written?;
            }
            NoteKind::Events { records } => {
                self.usage.resize(&records);
                if let Some(open) = self.open_files() {
                    open.records(&records)?;
                }
            }
            // Stored before the end, so that the job need not run again if the head fails in
            // between.
            NoteKind::Outcome { outcome } => self.records.has_outcome(self.entry.job, &outcome)?,
            NoteKind::Preliminary { outcome } => self.preliminary = Some(*outcome),
            NoteKind::Message { .. } | NoteKind::Iteration { .. } | NoteKind::Period { .. } => {}
        }
        Ok(())
    }

    /// The result of the job, if it has one.
    ///
    /// # Errors
    /// The result is damaged or cannot be read.
    pub(super) fn result(&self) -> Result<Option<(Value, String)>, RecordError> {
        let result = match &self.unwritten {
            Some((result, _)) => Some(result.clone()),
            None => self.records.result(self.entry.job)?,
        };
        Ok(result.map(|JobResult { object, summary }| (object, summary)))
    }

    /// A part of a file of the job's output.
    pub(super) fn read_output(&self, file: OutputFile, offset: u64) -> OutputChunk {
        let (name, attempt) = match file {
            OutputFile::Log => ("log.txt".to_owned(), 0),
            OutputFile::Stream { rank, attempt, stream } => {
                let last = || last_attempt(&self.dir, rank, stream);
                let attempt = attempt.unwrap_or_else(last);
                (file_name(rank, attempt, stream), attempt)
            }
        };
        let (read, unreadable) = match read_chunk(&self.dir.join(name), offset) {
            Ok(read) => (read, None),
            Err(error) => ((Bytes::new(), 0), Some(error.to_string())),
        };
        let (bytes, length) = read;
        let has_ended = self.entry.ended.is_some();
        OutputChunk { bytes, length, attempt, has_ended, unreadable }
    }

    /// The last lines, at most `max`, and the number of all lines.
    fn last_lines(&self, max: usize) -> (Vec<String>, u64) {
        if max > 0 && self.entry.ended.is_some() && self.lines.is_empty() {
            let read = tail(&self.dir.join("log.txt"), max.min(LINES_MAX));
            // A log that cannot be read counts as empty.
            return read.map(|(lines, line_count)| (lines.into(), line_count)).unwrap_or_default();
        }
        let skip = self.lines.len().saturating_sub(max);
        (self.lines.iter().skip(skip).cloned().collect(), self.line_count)
    }

    pub(super) fn record(&self, lines: usize, result: bool) -> JobRecord {
        let (lines, line_count) = self.last_lines(lines);
        let (result, unreadable) = match result.then(|| self.result()) {
            None => (None, None),
            Some(Ok(result)) => (result, None),
            Some(Err(error)) => (None, Some(error.to_string())),
        };
        JobRecord {
            entry: self.entry.clone(),
            progress: self.progress.clone(),
            lines,
            said: line_count,
            result,
            unwritten: self.unwritten.as_ref().map(|(_, why)| why.clone()),
            unreadable,
            dir: self.dir.clone(),
        }
    }
}
