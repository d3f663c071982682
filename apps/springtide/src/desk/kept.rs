//! A job of the desk: its files, and what of it is in memory.
//!
//! Must not know how jobs are submitted, nor how heads begin.

use std::collections::VecDeque;
use std::fs;
use std::io::{self, BufRead as _, BufReader};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use springtide_actors::client::News;
use springtide_actors::job::{JobError, NoteKind};
use springtide_runtime::event::Manifest;
use springtide_runtime::work::Outcome;

use super::{JobEnd, JobEntry, JobRecord};
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
    /// Its result, where that could not be written, and why not.
    pub(super) unwritten: Option<(Value, String, String)>,
}

pub(super) fn write_entry(dir: &Path, entry: &JobEntry) -> Result<(), Failed> {
    let path = dir.join("job.json");
    let bytes = serde_json::to_vec(entry).map_err(Failed::failure)?;
    write_file(&path, &bytes)
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

/// What the files of a job tell of its end.
pub(super) struct Told {
    /// The job's registered name.
    pub(super) name: String,
    end: Result<JobEnd, Outcome>,
}

/// What is written when a job has told what came of it.
#[derive(Serialize, Deserialize)]
struct Came {
    job: String,
    outcome: Outcome,
}

impl Kept {
    pub(super) fn of(dir: PathBuf, entry: JobEntry) -> Self {
        let (lines, said, unlogged) = (VecDeque::new(), 0, false);
        Self { entry, progress: None, lines, said, unlogged, dir, open: None, unwritten: None }
    }

    /// One that is being submitted.
    ///
    /// # Errors
    /// Its entry cannot be written: the next head would not know it.
    pub(super) fn begin(
        dir: PathBuf,
        entry: JobEntry,
        about: &Manifest,
        config: &str,
        log_max: u64,
    ) -> Result<Self, Failed> {
        make_dir(&dir)?;
        write_entry(&dir, &entry)?;
        let out = OutDir::create_closed(&dir, about, config, log_max);
        let mut kept = Self::of(dir, entry);
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

    /// It has ended, and nobody has said how; unless its result was written before its end could be noted.
    pub(super) fn lose(&mut self, why: &str) {
        let unwritten = self.close();
        let end = match self.told().map(|told| told.end) {
            Some(Ok(end)) => end,
            Some(Err(outcome)) => {
                let ended = Ended::new(&self.entry.name, Ok(outcome), None);
                let ended = Ended { unwritten, ..ended };
                self.conclude(&ended, false, Exit::Ok)
            }
            None => self.conclude(&Ended::early(&self.entry.name, why), false, Exit::Failure),
        };
        self.note_end(end);
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

    fn conclude(&mut self, ended: &Ended, cancelled: bool, exit: Exit) -> JobEnd {
        let end = JobEnd::of(ended, cancelled, exit);
        self.write_result(ended, &end);
        end
    }

    /// What its files tell of its end, if they do. Its result is written before its end is noted; its outcome may be known long
    /// before.
    pub(super) fn told(&self) -> Option<Told> {
        let read = |name: &str| fs::read(self.dir.join(name)).ok();
        let result = read("result.json").and_then(|bytes| {
            let object: Value = serde_json::from_slice(&bytes).ok()?;
            let name = object["job"].as_str().unwrap_or_default().to_owned();
            Some(Told { name, end: Ok(serde_json::from_value(object).ok()?) })
        });
        result.or_else(|| {
            let Came { job, outcome } = serde_json::from_slice(&read("outcome.json")?).ok()?;
            Some(Told { name: job, end: Err(outcome) })
        })
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
                let (mut ended, exit) = conclude(&self.entry.name, *ended);
                ended.unwritten = self.close();
                let end = self.conclude(&ended, cancelled, exit);
                self.note_end(end);
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
            NoteKind::Outcome { outcome } => {
                let path = self.dir.join("outcome.json");
                let came = Came { job: self.entry.name.clone(), outcome: *outcome };
                let bytes = serde_json::to_vec(&came).map_err(Failed::failure)?;
                write_file(&path, &bytes)?;
            }
            NoteKind::Iteration { .. } | NoteKind::Period { .. } => {}
        }
        Ok(())
    }

    /// Writes the result, with what tells its end from others; what cannot be written is kept in memory.
    fn write_result(&mut self, ended: &Ended, end: &JobEnd) {
        let (mut object, summary) = (ended.json(), ended.summary());
        if let (Some(_), Some(object)) = (&end.error, object.as_object_mut()) {
            object.insert("cancelled".to_owned(), end.cancelled.into());
            object.insert("exit".to_owned(), (end.exit() as u8).into());
        }
        // The object last: where it is, all is.
        let write = |name: &str, text: &str| write_file(&self.dir.join(name), text.as_bytes());
        let written = write("summary.txt", &summary)
            .and_then(|()| write("result.json", &format!("{object:#}\n")));
        if let Err(failed) = written {
            tracing::warn!("{}: its result is in memory alone: {failed}", self.entry.job);
            self.unwritten = Some((object, summary, failed.message));
        }
    }

    /// Last: from here on it has ended, whatever becomes of the head.
    fn note_end(&mut self, end: JobEnd) {
        self.entry.ended = Some(end);
        if let Err(failed) = write_entry(&self.dir, &self.entry) {
            // The next head finds its result, and takes that for its end.
            tracing::warn!("{}: {failed}", self.entry.job);
        }
        if self.unwritten.is_none() {
            // An error: it has told none.
            let _ = fs::remove_file(self.dir.join("outcome.json"));
        }
        if !self.unlogged {
            self.lines = VecDeque::new();
        }
    }

    /// Its result, if it has one.
    pub(super) fn result(&self) -> Option<(Value, String)> {
        self.entry.ended.as_ref()?;
        if let Some((object, summary, _)) = &self.unwritten {
            return Some((object.clone(), summary.clone()));
        }
        let bytes = fs::read(self.dir.join("result.json")).ok()?;
        let summary = fs::read_to_string(self.dir.join("summary.txt")).unwrap_or_default();
        Some((serde_json::from_slice(&bytes).ok()?, summary))
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
        JobRecord {
            entry: self.entry.clone(),
            progress: self.progress.clone(),
            lines,
            said,
            result: result.then(|| self.result()).flatten(),
            unwritten: self.unwritten.as_ref().map(|(_, _, why)| why.clone()),
            dir: self.dir.clone(),
        }
    }
}
