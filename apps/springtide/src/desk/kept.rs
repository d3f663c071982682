//! A job of the desk: its files, and what of it is in memory.
//!
//! Must not know how jobs are submitted, nor how heads begin.

use std::collections::VecDeque;
use std::fs;
use std::io::{self, BufRead as _, BufReader};
use std::path::{Path, PathBuf};

use serde_json::Value;
use springtide_actors::client::News;
use springtide_actors::job::{JobError, NoteKind};
use springtide_runtime::event::Manifest;
use springtide_runtime::records::RecordError;
use springtide_runtime::work::Outcome;

use super::records::{JobRecords, JobResult};
use super::{JobEnd, JobEntry, JobRecord, since_epoch};
use crate::exit::{Exit, Failed};
use crate::outdir::{OutDir, append, make_dir, write_file};
use crate::report::Ended;
use crate::run::conclude;

/// Lines of a job kept in memory, the last ones; all are in its file.
pub(super) const LINES_MAX: usize = 1000;
/// Of a longer line only so many bytes are in memory; the whole is in its file.
pub(super) const LINE_MAX: usize = 4096;

/// A job.
pub(super) struct Kept {
    pub(super) entry: JobEntry,
    pub(super) progress: Option<String>,
    /// The last ones, until it has ended, and after that if they are not in its file.
    pub(super) lines: VecDeque<String>,
    pub(super) said: u64,
    /// Not all of its lines are in its file.
    pub(super) unlogged: bool,
    pub(super) dir: PathBuf,
    /// Its run's directory, until it has ended.
    pub(super) open: Option<OutDir>,
    /// Its result, where that could not be kept, and why not.
    pub(super) unwritten: Option<(JobResult, String)>,
    /// The last outcome that the job published on its way. The next head learns of the next one.
    preliminary: Option<Outcome>,
    records: JobRecords,
}

/// The last lines of a job's log, and how many it has in all.
fn tail(log: &Path, most: usize) -> io::Result<(VecDeque<String>, u64)> {
    let (mut last, mut said) = (VecDeque::new(), 0);
    for line in BufReader::new(fs::File::open(log)?).split(b'\n') {
        if last.len() == most {
            last.pop_front();
        }
        if most > 0 {
            last.push_back(short(&String::from_utf8_lossy(&line?)));
        }
        said += 1;
    }
    Ok((last, said))
}

/// A line as it is kept in memory.
fn short(line: &str) -> String {
    match line.len() > LINE_MAX {
        true => {
            let end = (0..=LINE_MAX).rev().find(|&at| line.is_char_boundary(at));
            format!("{} ...", &line[..end.unwrap_or(0)])
        }
        false => line.to_owned(),
    }
}

impl Kept {
    pub(super) fn of(dir: PathBuf, entry: JobEntry, records: JobRecords) -> Self {
        Self {
            entry,
            progress: None,
            lines: VecDeque::new(),
            said: 0,
            unlogged: false,
            dir,
            open: None,
            unwritten: None,
            preliminary: None,
            records,
        }
    }

    /// One that is being submitted.
    ///
    /// # Errors
    /// It cannot be recorded: the next head would not know it.
    pub(super) fn begin(
        dir: PathBuf,
        entry: JobEntry,
        records: JobRecords,
        about: &Manifest,
        (config, log_max): (&str, u64),
    ) -> Result<Self, Failed> {
        make_dir(&dir)?;
        records.submitted(&entry)?;
        let out = OutDir::create_closed(&dir, about, config, log_max);
        let mut kept = Self::of(dir, entry, records);
        kept.open = Some(kept.or_files_only(out));
        Ok(kept)
    }

    /// A job runs all the same where nothing can be written of what happens.
    fn or_files_only(&self, out: Result<OutDir, Failed>) -> OutDir {
        out.unwrap_or_else(|failed| {
            tracing::warn!("{}: what happens is not written down: {failed}", self.entry.job);
            let mut out = OutDir::files_only(self.dir.clone());
            out.add(failed);
            out
        })
    }

    /// It has ended, and no end was reported; its outcome may be known all the same.
    pub(super) fn lose(&mut self, why: &str) {
        let unwritten = self.close();
        let name = self.entry.name.clone();
        match self.records.outcome(self.entry.job) {
            Ok(Some(outcome)) => {
                let ended = Ended::new(&name, Ok(outcome), None);
                let ended = Ended { unwritten, ..ended };
                self.conclude(&ended, false, Exit::Ok);
            }
            Ok(None) => {
                let ended = Ended::early(&name, why).or_preliminary(self.preliminary.take());
                self.conclude(&Ended { unwritten, ..ended }, false, Exit::Failure);
            }
            Err(error) => {
                let why = format!("{error}; or submit the job again");
                self.conclude(&Ended::early(&name, &why), false, Exit::Failure);
            }
        }
    }

    /// Ends the log. Returns what of the job's files could not be written, which fails it.
    fn close(&mut self) -> Option<String> {
        self.progress = None;
        let mut open = self.open.take()?;
        if let Err(failed) = open.end_log() {
            tracing::warn!("{}: {failed}", self.entry.job);
        }
        open.unwritten()
    }

    /// Keeps its result and its end. What cannot be kept is in memory as long as the head runs.
    fn conclude(&mut self, ended: &Ended, cancelled: bool, exit: Exit) {
        let end = JobEnd::of(ended, cancelled, exit);
        let (mut object, summary) = (ended.json(), ended.summary());
        if let (Some(_), Some(object)) = (&end.error, object.as_object_mut()) {
            object.insert("cancelled".to_owned(), end.cancelled.into());
            object.insert("exit".to_owned(), (end.exit() as u8).into());
        }
        // Copies for people and their programs.
        let write = |name: &str, text: &str| write_file(&self.dir.join(name), text.as_bytes());
        let written = write("summary.txt", &summary)
            .and_then(|()| write("result.json", &format!("{object:#}\n")));
        if let Err(failed) = written {
            tracing::warn!("{}: {failed}", self.entry.job);
            self.say(&failed.message);
        }
        let (at, result) = (since_epoch(), JobResult { object, summary });
        if let Err(error) = self.records.ended(self.entry.job, &end, at, &result) {
            tracing::warn!("{}: its result is in memory alone: {error}", self.entry.job);
            self.unwritten = Some((result, error.to_string()));
        }
        (self.entry.ended, self.entry.ended_unix_s) = (Some(end), Some(at));
        self.preliminary = None;
        if !self.unlogged {
            self.lines = VecDeque::new();
        }
    }

    /// Whether what came of it is known, though it has no end.
    pub(super) fn has_outcome(&self) -> bool {
        // A damaged one is one: the job has failed.
        !matches!(self.records.outcome(self.entry.job), Ok(None))
    }

    /// Takes the last lines of its log into memory, unless it has ended.
    pub(super) fn read_lines(&mut self) {
        if self.entry.ended.is_none()
            && let Ok((lines, said)) = tail(&self.dir.join("log.txt"), LINES_MAX)
        {
            (self.lines, self.said) = (lines, said);
        }
    }

    /// It goes on, or begins anew.
    pub(super) fn resume(&mut self, log_max: u64) {
        let out = OutDir::resume(&self.dir, log_max);
        self.open = Some(self.or_files_only(out));
        self.say("the grid's head began anew");
    }

    fn say(&mut self, text: &str) {
        for line in text.lines() {
            if self.lines.len() == LINES_MAX {
                self.lines.pop_front();
            }
            self.lines.push_back(short(line));
            self.said += 1;
        }
        // They are rare: it need not stay open between them.
        let lines: String = text.lines().map(|line| format!("{line}\n")).collect();
        if let Err(error) = append(&self.dir.join("log.txt"), lines.as_bytes()) {
            self.unlogged = true;
            tracing::warn!("{}: its lines are not written: {error}", self.entry.job);
        }
    }

    pub(super) fn take(&mut self, news: News) {
        if self.entry.ended.is_some() {
            return; // it was given up
        }
        match news {
            News::Note(note) => {
                if let Err(failed) = self.note(*note) {
                    tracing::warn!("{}: {failed}", self.entry.job);
                    // Whoever wants its files looks here; that the disk is full is said once.
                    if self.lines.back() != Some(&failed.message) {
                        self.say(&failed.message);
                    }
                }
            }
            News::Ended(ended) => {
                let cancelled = matches!(ended.outcome, Err(JobError::Cancelled { .. }));
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
                self.say(&format!("{count} workers joined; the root runs on {root}"));
            }
            NoteKind::Progress { done, total, what } => {
                self.progress = Some(format!("{done} of {total} {what}"));
            }
            NoteKind::Say { text } => self.say(&text),
            NoteKind::Artifact { name, bytes } => {
                if let Some(open) = &mut self.open {
                    open.file(&name, &bytes)?;
                }
                self.say(&format!("wrote {name}"));
            }
            NoteKind::Events { records } => {
                if let Some(open) = &mut self.open {
                    open.records(&records)?;
                }
            }
            // Should the head die before it hears the end, the job need not be done again.
            NoteKind::Outcome { outcome } => self.records.has_outcome(self.entry.job, &outcome)?,
            NoteKind::Preliminary { outcome } => self.preliminary = Some(*outcome),
            NoteKind::Iteration { .. } | NoteKind::Period { .. } => {}
        }
        Ok(())
    }

    /// Its result, if it has one.
    ///
    /// # Errors
    /// It is damaged or cannot be read.
    pub(super) fn result(&self) -> Result<Option<(Value, String)>, RecordError> {
        let result = match &self.unwritten {
            Some((result, _)) => Some(result.clone()),
            None => self.records.result(self.entry.job)?,
        };
        Ok(result.map(|JobResult { object, summary }| (object, summary)))
    }

    /// So many of its last lines, and how many it has said.
    fn last_lines(&self, most: usize) -> (Vec<String>, u64) {
        if most > 0 && self.entry.ended.is_some() && self.lines.is_empty() {
            let read = tail(&self.dir.join("log.txt"), most.min(LINES_MAX));
            // An error: it has said nothing.
            return read.map(|(lines, said)| (lines.into(), said)).unwrap_or_default();
        }
        let skip = self.lines.len().saturating_sub(most);
        (self.lines.iter().skip(skip).cloned().collect(), self.said)
    }

    pub(super) fn record(&self, lines: usize, result: bool) -> JobRecord {
        let (lines, said) = self.last_lines(lines);
        let (result, unreadable) = match result.then(|| self.result()) {
            None => (None, None),
            Some(Ok(result)) => (result, None),
            Some(Err(error)) => (None, Some(error.to_string())),
        };
        JobRecord {
            entry: self.entry.clone(),
            progress: self.progress.clone(),
            lines,
            said,
            result,
            unwritten: self.unwritten.as_ref().map(|(_, why)| why.clone()),
            unreadable,
            dir: self.dir.clone(),
        }
    }
}
