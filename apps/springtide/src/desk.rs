//! Jobs that nobody waits for: the head is their client, and keeps what they say and what comes of them.
//!
//! ```text
//! DIR/jobs/JOB/job.json      what was submitted
//! DIR/jobs/JOB/log.txt       the job's own lines
//! DIR/jobs/JOB/outcome.json  what came of it, from when it has said so to its end
//! DIR/jobs/JOB/result.json   its end, with all else that a run's directory has
//! DIR/jobs/JOB/summary.txt   the same for people
//! ```
//!
//! `job.json` is first and last: a job without one was never submitted, and one whose `job.json` says so has ended. Whoever tells
//! an outcome or an end is answered when it is on disk here, and the scheduler forgets a job only then. A head that begins looks
//! whether the two agree, and the desk looks again and again whether the scheduler still knows what has no end. No file of a job
//! that waits is open: there may be far more of them than a process may have files open. The desk has a thread of its own, for
//! its disk may be slow, and of a job that has ended nothing is in memory that is on disk.
//!
//! Must not know how jobs are scheduled, nor how the command shows them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs::{self, OpenOptions};
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use actix::prelude::*;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use springtide_actors::admit;
use springtide_actors::client::{Client, News, Receipt};
use springtide_actors::endpoint::Endpoint;
use springtide_actors::job::{JobError, JobReport, NoteKind};
use springtide_actors::scheduler::core::Recovered;
use springtide_actors::scheduler::{CancelJob, Enqueue, GetKnown, Scheduler, Submit, SubmitError};
use springtide_runtime::event::{Manifest, write_atomic};
use springtide_runtime::id::JobId;
use springtide_runtime::net::Contact;
use springtide_runtime::remote_message;
use springtide_runtime::work::Outcome;
use tokio::time::Instant;

use crate::exit::{Exit, Failed};
use crate::grid::cannot;
use crate::outdir::{OutDir, manifest};
use crate::report::Ended;
use crate::run::conclude;

/// The desk's name on the head.
pub const DESK: &str = "desk";

/// Lines of a job kept in memory, the last ones; all are in its file.
const LINES_MAX: usize = 1000;
/// Of a longer line only so many bytes are in memory; the whole is in its file.
const LINE_MAX: usize = 4096;
/// What a job without an end has, when its head has gone.
const LOST: &str = "the grid ended before the job did: submit it again";
/// What one has that the scheduler does not know.
const UNKNOWN: &str =
    "the scheduler does not know the job, and nobody has told its end: submit it again";
/// It is looked so often whether the scheduler knows all jobs that have no end.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// A job that the scheduler does not know has this time for the word of its end, which may wait for notes that are late.
const UNKNOWN_WITHIN: Duration = Duration::from_secs(15);

/// To the desk: submit this, and keep what comes of it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SubmitJob {
    /// The submission. Its client is the head, whoever it names.
    pub submit: Submit,
    /// The job with its options, as people write it.
    pub line: String,
}

/// To the desk: which jobs were submitted?
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct ListJobs {}

/// To the desk: all of one job.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct ReadJob {
    /// Which.
    pub job: JobId,
    /// So many of its last lines.
    pub lines: usize,
    /// Its result as well, if it has one. Former versions do not say, and want it.
    #[serde(default = "wanted")]
    pub result: bool,
}

fn wanted() -> bool {
    true
}

remote_message! {
    "desk-submit" => SubmitJob -> Result<JobId, SubmitError>;
    "desk-list" => ListJobs -> Vec<JobEntry>;
    "desk-read" => ReadJob -> Option<JobRecord>;
}

/// A job that was submitted here.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobEntry {
    /// Its number.
    pub job: JobId,
    /// The registered name.
    pub name: String,
    /// With its options.
    pub line: String,
    /// When, in seconds since the Unix epoch.
    pub submitted_unix_s: u64,
    /// How it ended, if it has.
    #[serde(default)]
    pub ended: Option<JobEnd>,
}

/// How a job ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobEnd {
    /// Why it has no outcome, if it has none.
    pub error: Option<String>,
    /// It was cancelled.
    #[serde(default)]
    pub cancelled: bool,
    /// What `run` would end with, where that is not 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit: Option<u8>,
}

impl JobEnd {
    fn of(ended: &Ended, cancelled: bool, exit: Exit) -> Self {
        let error = ended.outcome.as_ref().err().cloned();
        let own = !matches!(exit, Exit::Ok | Exit::Failure);
        Self { error, cancelled, exit: own.then_some(exit as u8) }
    }

    /// What a command that tells of it ends with.
    pub fn exit(&self) -> Exit {
        match (&self.error, self.exit) {
            (None, _) => Exit::Ok,
            (Some(_), None) => Exit::Failure,
            (Some(_), Some(code)) => Exit::of(code),
        }
    }

    /// In a word.
    pub fn word(&self) -> &'static str {
        match (self.cancelled, &self.error) {
            (true, _) => "cancelled",
            (false, Some(_)) => "failed",
            (false, None) => "done",
        }
    }
}

/// All that is known of a job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JobRecord {
    /// Which.
    pub entry: JobEntry,
    /// How far it says that it is.
    pub progress: Option<String>,
    /// Its last lines.
    pub lines: Vec<String>,
    /// How many lines it has said in all.
    #[serde(default)]
    pub said: u64,
    /// Its result as one object, and for people, if it has ended and that was asked for.
    pub result: Option<(Value, String)>,
    /// Why its result is not on disk, if it is in the head's memory alone.
    #[serde(default)]
    pub unwritten: Option<String>,
    /// Where its files are, on the head's machine.
    pub dir: PathBuf,
}

/// The desk, published as [`DESK`] on a head that stays.
pub struct Desk {
    dir: PathBuf,
    scheduler: Addr<Scheduler>,
    me: Contact,
    config: String,
    version: &'static str,
    log_max: u64,
    book: Book,
}

/// All jobs of a desk.
#[derive(Default)]
struct Book {
    jobs: BTreeMap<JobId, Kept>,
    /// Submissions whose number is on its way.
    submitting: usize,
    /// The highest number when none was: of those up to it, what is not in `jobs` is nobody's.
    settled: JobId,
    /// News of jobs whose number is on its way.
    early: Vec<(JobId, News, Receipt)>,
    /// Jobs without an end that the scheduler does not know, and since when.
    unknown: BTreeMap<JobId, Instant>,
}

/// A job.
struct Kept {
    entry: JobEntry,
    progress: Option<String>,
    /// The last ones, until it has ended, and after that if they are not in its file.
    lines: VecDeque<String>,
    said: u64,
    /// Not all of its lines are in its file.
    unlogged: bool,
    dir: PathBuf,
    /// Its run's directory, until it has ended.
    open: Option<OutDir>,
    /// Its result, where that could not be written, and why not.
    unwritten: Option<(Value, String, String)>,
}

/// What a desk is made with.
pub struct Setting {
    /// The grid's directory.
    pub dir: PathBuf,
    /// The grid's config, as it is shown.
    pub config: String,
    /// The program's version.
    pub version: &'static str,
    /// Most bytes of a job's log of events.
    pub log_max: u64,
}

/// The desk's thread. Dropped, it ends when what the desk is at is on disk.
pub struct DeskThread(Option<Arbiter>);

impl Drop for DeskThread {
    fn drop(&mut self) {
        let Some(arbiter) = self.0.take() else { return };
        arbiter.stop();
        // An error: a panic over there, which was told.
        let _ = arbiter.join();
    }
}

impl Desk {
    /// Opens the desk of a head before anybody can call that: what was submitted to former heads is known, and goes on if the
    /// scheduler has it still.
    pub fn open(
        drawer: Drawer,
        endpoint: &Endpoint,
        scheduler: &Addr<Scheduler>,
        recovered: &[JobId],
    ) -> DeskThread {
        let Drawer { setting, dir, mut jobs, last, .. } = drawer;
        let Setting { config, version, log_max, .. } = setting;
        for (job, kept) in jobs.iter_mut().filter(|(_, kept)| kept.entry.ended.is_none()) {
            match recovered.contains(job) {
                true => kept.resume(log_max),
                false => kept.lose(LOST),
            }
        }
        let (_, mut news) = Client::publish_again(endpoint, recovered.iter().copied());
        let desk = Self {
            dir,
            scheduler: scheduler.clone(),
            me: endpoint.net.contact(),
            config,
            version,
            log_max,
            book: Book { jobs, settled: last, ..Book::default() },
        };
        // The scheduler's need not wait for this one's disk.
        let thread = Arbiter::new();
        let desk = Self::start_in_arbiter(&thread.handle(), move |_| desk);
        let hub = &endpoint.hub;
        hub.publish(DESK, desk.clone())
            .accepts_from::<SubmitJob>(admit::client)
            .accepts_from::<ListJobs>(admit::client)
            .accepts_from::<ReadJob>(admit::client);
        actix::spawn(async move {
            while let Some((job, news, receipt)) = news.recv().await {
                // The desk lives as long as the head does.
                let _ = desk.send(Heard { job, news, receipt }).await;
            }
        });
        DeskThread(Some(thread))
    }

    fn begin(&mut self, job: JobId, submit: &Submit, line: &str) -> Result<(), Failed> {
        let dir = self.dir.join(job.to_string());
        let mut about = manifest(&submit.name, self.version, Some(submit.params.seed));
        about.command = line.split(' ').map(str::to_owned).collect();
        let (name, line) = (submit.name.clone(), line.to_owned());
        let entry = JobEntry { job, name, line, submitted_unix_s: since_epoch(), ended: None };
        let kept = Kept::begin(dir, entry, &about, &self.config, self.log_max)?;
        self.book.jobs.insert(job, kept);
        Ok(())
    }
}

impl Book {
    /// The number of a submission has come, or will not.
    fn numbered(&mut self, job: Option<JobId>) {
        self.submitting -= 1;
        if self.submitting == 0 {
            let known = self.jobs.last_key_value().map(|(job, _)| *job);
            self.settled = self.settled.max(job.max(known).unwrap_or_default());
        }
        for (of, news, receipt) in std::mem::take(&mut self.early) {
            self.hear(of, news, receipt);
        }
    }

    /// The receipt is dropped when they are on disk.
    fn hear(&mut self, job: JobId, news: News, receipt: Receipt) {
        match self.jobs.get_mut(&job) {
            Some(kept) => kept.take(news),
            // Its number may be on its way. Of others nobody wants to hear.
            None if self.submitting > 0 && job > self.settled => {
                self.early.push((job, news, receipt));
            }
            None => {}
        }
    }

    /// Ends what has no end and is not among the jobs that the scheduler knows, if that stays so.
    fn compare(&mut self, known: &BTreeSet<JobId>, now: Instant) {
        let lost =
            |(job, kept): &(&JobId, &Kept)| kept.entry.ended.is_none() && !known.contains(job);
        let lost: BTreeSet<JobId> = self.jobs.iter().filter(lost).map(|(&job, _)| job).collect();
        self.unknown.retain(|job, _| lost.contains(job));
        for job in lost {
            let since = *self.unknown.entry(job).or_insert(now);
            if now.saturating_duration_since(since) < UNKNOWN_WITHIN {
                continue;
            }
            self.unknown.remove(&job);
            if let Some(kept) = self.jobs.get_mut(&job) {
                tracing::warn!("{job} is not known to the scheduler: it is taken for ended");
                kept.lose(UNKNOWN);
            }
        }
    }
}

fn write_entry(dir: &Path, entry: &JobEntry) -> Result<(), Failed> {
    let path = dir.join("job.json");
    let bytes = serde_json::to_vec(entry).map_err(Failed::failure)?;
    write_atomic(&path, &bytes).map_err(|error| cannot("write", &path, &error))
}

/// Seconds since the Unix epoch.
pub fn since_epoch() -> u64 {
    // Only people read it.
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// What former heads have left of their jobs.
pub struct Drawer {
    setting: Setting,
    dir: PathBuf,
    jobs: BTreeMap<JobId, Kept>,
    /// Those whose entry is damaged.
    damaged: BTreeSet<JobId>,
    /// The highest number that anything is left of, whole or not.
    last: JobId,
}

impl Drawer {
    /// Looks what there is. To be called by the only head that may be there: what another writes meanwhile is not seen.
    ///
    /// # Errors
    /// The directory cannot be read or made, or something of it cannot be read: to go on without a job would be to lose it.
    pub fn open(setting: Setting) -> Result<Self, Failed> {
        let dir = setting.dir.join("jobs");
        fs::create_dir_all(&dir).map_err(|error| cannot("make", &dir, &error))?;
        let Found { mut jobs, mut damaged, last } = read(&dir)?;
        // What came of them is known: the head died before it could note that they have ended.
        for kept in jobs.values_mut().filter(|kept| kept.entry.ended.is_none()) {
            if kept.told().is_some() {
                kept.lose(LOST);
            }
        }
        damaged.retain(|&job| {
            let mut kept = Kept::of(dir.join(job.to_string()), anew(&dir, job, ""));
            let Some(Told { name, .. }) = kept.told() else { return true };
            kept.entry = anew(&dir, job, &name);
            kept.lose(LOST);
            jobs.insert(job, kept);
            false
        });
        Ok(Self { setting, dir, jobs, damaged, last })
    }

    /// The highest number that anything is left of: a new job must have another.
    pub fn last(&self) -> JobId {
        self.last
    }

    /// Whether a job was submitted, and has no end. Of one that is not known whoever submitted it has had no answer.
    pub fn wants(&self, job: JobId) -> bool {
        let goes_on = |kept: &Kept| kept.entry.ended.is_none();
        self.jobs.get(&job).map_or_else(|| self.damaged.contains(&job), goes_on)
    }

    /// Writes the damaged entries of jobs that the scheduler still has anew, by what was submitted.
    ///
    /// # Errors
    /// It has not all of them, or they cannot be written.
    pub fn mend(&mut self, recovered: &[Recovered]) -> Result<(), Failed> {
        for job in std::mem::take(&mut self.damaged) {
            let dir = self.dir.join(job.to_string());
            let Some(found) = recovered.iter().find(|found| found.job == job) else {
                return Err(Failed::failure(format!(
                    "{} is damaged, and nothing else tells of the job: restore the file, or move {} away",
                    dir.join("job.json").display(),
                    dir.display()
                )));
            };
            let mut kept = Kept::of(dir.clone(), anew(&self.dir, job, &found.submit.name));
            tracing::warn!("the job.json of {job} was damaged, and is written anew");
            write_entry(&dir, &kept.entry)?;
            kept.read_lines();
            self.jobs.insert(job, kept);
        }
        Ok(())
    }
}

/// The entry of a job whose own is damaged. With which options it was submitted nothing else tells, and when only that file.
fn anew(dir: &Path, job: JobId, name: &str) -> JobEntry {
    let about = fs::metadata(dir.join(job.to_string()).join("job.json"));
    let at = about.and_then(|about| about.modified()).ok();
    let at = at.and_then(|at| at.duration_since(UNIX_EPOCH).ok()).unwrap_or_default().as_secs();
    let (name, line) = (name.to_owned(), name.to_owned());
    JobEntry { job, name, line, submitted_unix_s: at, ended: None }
}

/// Jobs of former heads.
struct Found {
    jobs: BTreeMap<JobId, Kept>,
    damaged: BTreeSet<JobId>,
    /// The highest number of their directories.
    last: JobId,
}

/// Looks for jobs of former heads. What is no job's is passed over.
fn read(dir: &Path) -> Result<Found, Failed> {
    let (mut jobs, mut damaged, mut last) = (BTreeMap::new(), BTreeSet::new(), JobId(0));
    for entry in fs::read_dir(dir).map_err(|error| cannot("read", dir, &error))? {
        let entry = entry.map_err(|error| cannot("read", dir, &error))?;
        let (dir, name) = (entry.path(), entry.file_name());
        let number = name.to_str().and_then(|name| name.strip_prefix("job-")?.parse().ok());
        // A copy that somebody made under another name is none of ours.
        let Some(job) = number.map(JobId).filter(|job| name == *job.to_string()) else { continue };
        last = last.max(job);
        let path = dir.join("job.json");
        let bytes = match fs::read(&path) {
            Ok(bytes) => bytes,
            // It was never submitted.
            Err(error) if is_absent(&error) => continue,
            Err(error) => return Err(cannot("read", &path, &error)),
        };
        match serde_json::from_slice::<JobEntry>(&bytes) {
            Ok(entry) if entry.job == job => {
                let mut kept = Kept::of(dir, entry);
                kept.read_lines();
                jobs.insert(job, kept);
            }
            _ => drop(damaged.insert(job)),
        }
    }
    Ok(Found { jobs, damaged, last })
}

fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
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
struct Told {
    /// The job's registered name.
    name: String,
    end: Result<JobEnd, Outcome>,
}

/// What is written when a job has told what came of it.
#[derive(Serialize, Deserialize)]
struct Came {
    job: String,
    outcome: Outcome,
}

impl Kept {
    fn of(dir: PathBuf, entry: JobEntry) -> Self {
        let (lines, said, unlogged) = (VecDeque::new(), 0, false);
        Self { entry, progress: None, lines, said, unlogged, dir, open: None, unwritten: None }
    }

    /// One that is being submitted.
    ///
    /// # Errors
    /// Its entry cannot be written: the next head would not know it.
    fn begin(
        dir: PathBuf,
        entry: JobEntry,
        about: &Manifest,
        config: &str,
        log_max: u64,
    ) -> Result<Self, Failed> {
        fs::create_dir_all(&dir).map_err(|error| cannot("make", &dir, &error))?;
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
            OutDir::files_only(self.dir.clone())
        })
    }

    /// It has ended, and nobody has said how; unless its result was written before its end could be noted.
    fn lose(&mut self, why: &str) {
        // Else the log would end in the middle.
        if let Some(Err(failed)) = self.open.take().map(|mut open| open.end_log()) {
            tracing::warn!("{}: {failed}", self.entry.job);
        }
        self.progress = None;
        let end = match self.told().map(|told| told.end) {
            Some(Ok(end)) => end,
            Some(Err(outcome)) => {
                let (job, report) = (self.entry.name.clone(), JobReport::default());
                self.conclude(&Ended { job, outcome: Ok(outcome), report }, Exit::Ok)
            }
            None => self.conclude(&Ended::early(&self.entry.name, why), Exit::Failure),
        };
        self.note_end(end);
    }

    fn conclude(&mut self, ended: &Ended, exit: Exit) -> JobEnd {
        let end = JobEnd::of(ended, false, exit);
        self.write_result(ended, &end);
        end
    }

    /// What its files tell of its end, if they do. Its result is written before its end is noted; its outcome may be known long
    /// before.
    fn told(&self) -> Option<Told> {
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
    fn read_lines(&mut self) {
        if self.entry.ended.is_none()
            && let Ok((lines, said)) = tail(&self.dir.join("log.txt"), LINES_MAX)
        {
            (self.lines, self.said) = (lines, said);
        }
    }

    /// It goes on, or begins anew.
    fn resume(&mut self, log_max: u64) {
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
        let log = OpenOptions::new().create(true).append(true).open(self.dir.join("log.txt"));
        let lines: String = text.lines().map(|line| format!("{line}\n")).collect();
        if let Err(error) = log.and_then(|mut log| log.write_all(lines.as_bytes())) {
            self.unlogged = true;
            tracing::warn!("{}: its lines are not written: {error}", self.entry.job);
        }
    }

    fn take(&mut self, news: News) {
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
                self.end(&ended, cancelled, exit);
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
                write_atomic(&path, &bytes).map_err(|error| cannot("write", &path, &error))?;
            }
            NoteKind::Iteration { .. } | NoteKind::Period { .. } => {}
        }
        Ok(())
    }

    fn end(&mut self, ended: &Ended, cancelled: bool, exit: Exit) {
        self.progress = None;
        if let Some(Err(failed)) = self.open.take().map(|mut open| open.end_log()) {
            // Its result is worth more than the log of how that came about.
            tracing::warn!("{}: {failed}", self.entry.job);
        }
        let end = JobEnd::of(ended, cancelled, exit);
        self.write_result(ended, &end);
        self.note_end(end);
    }

    /// Writes the result, with what tells its end from others; what cannot be written is kept in memory.
    fn write_result(&mut self, ended: &Ended, end: &JobEnd) {
        let (mut object, summary) = (ended.json(), ended.summary());
        if let (Some(_), Some(object)) = (&end.error, object.as_object_mut()) {
            object.insert("cancelled".to_owned(), end.cancelled.into());
            object.insert("exit".to_owned(), (end.exit() as u8).into());
        }
        // The object last: where it is, all is.
        let write = |name: &str, text: &str| {
            let path = self.dir.join(name);
            write_atomic(&path, text.as_bytes()).map_err(|error| cannot("write", &path, &error))
        };
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
    fn result(&self) -> Option<(Value, String)> {
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

    fn record(&self, lines: usize, result: bool) -> JobRecord {
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

impl Actor for Desk {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        ctx.run_interval(LOOK_EVERY, |desk, ctx| {
            if desk.book.jobs.values().all(|kept| kept.entry.ended.is_some()) {
                return;
            }
            let call = desk.scheduler.send(GetKnown).into_actor(desk);
            ctx.spawn(call.map(|known, desk, _| {
                // Where another head has taken over, its desk keeps the jobs.
                if let Ok(Some(known)) = known {
                    desk.book.compare(&known, Instant::now());
                }
            }));
        });
    }
}

impl Handler<SubmitJob> for Desk {
    type Result = ResponseActFuture<Self, Result<JobId, SubmitError>>;

    fn handle(&mut self, order: SubmitJob, _: &mut Self::Context) -> Self::Result {
        let SubmitJob { mut submit, line } = order;
        submit.client = self.me.clone();
        self.book.submitting += 1;
        let call = self.scheduler.send(Enqueue(submit.clone()));
        let then = move |answer: Result<_, MailboxError>, desk: &mut Self, _: &mut _| {
            let ended = || SubmitError::Cancelled { reason: "the scheduler ended".to_owned() };
            let answer = answer.unwrap_or_else(|_| Err(ended()));
            let begun = match &answer {
                Ok(job) => desk.begin(*job, &submit, &line),
                Err(_) => Ok(()),
            };
            desk.book.numbered(answer.as_ref().ok().copied());
            let job = answer?;
            if let Err(failed) = begun {
                // Nobody would find it again: better to say so now.
                let reason = failed.message;
                tracing::warn!("{job} is withdrawn: {reason}");
                desk.scheduler.do_send(CancelJob { job, reason: reason.clone() });
                return Err(SubmitError::Store { reason });
            }
            Ok(job)
        };
        Box::pin(call.into_actor(self).map(then))
    }
}

/// News of a job.
#[derive(Message)]
#[rtype(result = "()")]
struct Heard {
    job: JobId,
    news: News,
    receipt: Receipt,
}

impl Handler<Heard> for Desk {
    type Result = ();

    fn handle(&mut self, Heard { job, news, receipt }: Heard, _: &mut Self::Context) {
        self.book.hear(job, news, receipt);
    }
}

impl Handler<ListJobs> for Desk {
    type Result = MessageResult<ListJobs>;

    fn handle(&mut self, _: ListJobs, _: &mut Self::Context) -> Self::Result {
        MessageResult(self.book.jobs.values().map(|kept| kept.entry.clone()).collect())
    }
}

impl Handler<ReadJob> for Desk {
    type Result = MessageResult<ReadJob>;

    fn handle(&mut self, ask: ReadJob, _: &mut Self::Context) -> Self::Result {
        let ReadJob { job, lines, result } = ask;
        MessageResult(self.book.jobs.get(&job).map(|kept| kept.record(lines, result)))
    }
}

#[cfg(test)]
mod tests {
    use springtide_actors::job::JobEnded;
    use springtide_runtime::id::Epoch;

    use super::*;

    fn entry(job: u64, ended: Option<JobEnd>) -> JobEntry {
        let (name, line) = ("queens".to_owned(), "queens --size 8".to_owned());
        JobEntry { job: JobId(job), name, line, submitted_unix_s: 7, ended }
    }

    fn text(job: u64, ended: Option<JobEnd>) -> String {
        serde_json::to_string(&entry(job, ended)).unwrap()
    }

    fn done() -> JobEnd {
        JobEnd { error: None, cancelled: false, exit: None }
    }

    fn write(dir: &Path, job: &str, file: &str, text: &str) {
        fs::create_dir_all(dir.join(job)).unwrap();
        fs::write(dir.join(job).join(file), text).unwrap();
    }

    fn begin(dir: &Path, job: u64) -> Result<Kept, Failed> {
        let about = manifest("queens", "1", None);
        Kept::begin(dir.join(JobId(job).to_string()), entry(job, None), &about, "", u64::MAX)
    }

    fn ended(job: u64, outcome: Result<Outcome, JobError>) -> News {
        let (job, report) = (JobId(job), JobReport::default());
        News::Ended(Box::new(JobEnded { job, epoch: Some(Epoch(1)), outcome, report }))
    }

    fn outcome() -> Outcome {
        Outcome { checksum: 7, result: Value::Null }
    }

    /// Files below a directory that this process has open.
    #[cfg(target_os = "linux")]
    fn open_below(dir: &Path) -> usize {
        let all = fs::read_dir("/proc/self/fd").unwrap().flatten();
        let below = |entry: &fs::DirEntry| {
            fs::read_link(entry.path()).is_ok_and(|target| target.starts_with(dir))
        };
        all.filter(below).count()
    }

    #[test]
    fn jobs_of_a_head_that_is_gone_are_known_and_end_if_nobody_has_them() {
        let temp = tempfile::tempdir().unwrap();
        let write = |job: &str, file: &str, text: &str| write(temp.path(), job, file, text);
        write("job-1", "job.json", &text(1, Some(done())));
        write("job-1", "result.json", r#"{"ok": true}"#);
        write("job-1", "log.txt", "one\ntwo\n");
        write("job-2", "job.json", &text(2, None));
        write("job-3", "job.json", "damaged");
        write("other", "file", "");
        for round in 0..2 {
            let Found { mut jobs, damaged, last } = read(temp.path()).unwrap();
            // A damaged one has its number still.
            assert_eq!((last, damaged), (JobId(3), [JobId(3)].into()));
            if round == 0 {
                assert!(jobs[&JobId(2)].entry.ended.is_none());
                jobs.get_mut(&JobId(2)).unwrap().lose(LOST);
            }
            let ends: Vec<_> = jobs
                .values()
                .map(|kept| (kept.entry.job.0, kept.entry.ended.clone().unwrap().error))
                .collect();
            assert_eq!(ends, [(1, None), (2, Some(LOST.to_owned()))]);
            // Of one that has ended they are read when somebody wants them.
            let record = jobs[&JobId(1)].record(1, false);
            assert!(jobs[&JobId(1)].lines.is_empty() && record.result.is_none());
            assert_eq!((record.lines, record.said), (vec!["two".to_owned()], 2));
            let (result, _) = jobs[&JobId(2)].result().unwrap();
            assert_eq!(result["error"], LOST);
        }
    }

    #[test]
    fn a_result_that_is_there_is_the_end_though_the_head_died_before_it_noted_that() {
        let temp = tempfile::tempdir().unwrap();
        let failed = JobError::Start { reason: "nowhere".to_owned() };
        let cancelled = JobError::Cancelled { reason: "told to".to_owned() };
        let ways = [(1, Ok(outcome())), (2, Err(failed)), (3, Err(cancelled))];
        for (job, outcome) in ways {
            let mut kept = begin(temp.path(), job).unwrap();
            kept.take(ended(job, outcome));
            let before = (kept.entry.ended.clone().unwrap(), kept.result());
            // As if it had died before the last of what it writes.
            write(temp.path(), &format!("job-{job}"), "job.json", &text(job, None));
            let mut jobs = read(temp.path()).unwrap().jobs;
            let kept = jobs.get_mut(&JobId(job)).unwrap();
            assert!(kept.entry.ended.is_none());
            kept.lose(LOST);
            let end = kept.entry.ended.clone().unwrap();
            assert_eq!((&end.error, end.cancelled), (&before.0.error, before.0.cancelled));
            assert_eq!(end.exit(), before.0.exit());
            assert_eq!(kept.result(), before.1);
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn no_file_of_a_job_that_waits_is_open() {
        let temp = tempfile::tempdir().unwrap();
        let mut all: Vec<Kept> = (1..=50).map(|job| begin(temp.path(), job).unwrap()).collect();
        all.push(Kept::of(temp.path().join("job-1"), entry(1, None)));
        all.last_mut().unwrap().resume(u64::MAX);
        assert_eq!(open_below(temp.path()), 0);
        let (kept, rest) = all.split_first_mut().unwrap();
        kept.take(News::Note(Box::new(NoteKind::Say { text: "one\ntwo".to_owned() })));
        let record = springtide_runtime::event::Recorder::new(
            "ams-1".into(),
            springtide_runtime::id::Incarnation(1),
            Instant::now(),
            10,
        );
        record.record(springtide_runtime::event::Event::RunEnded {
            ok: true,
            wall_us: 1,
            error: None,
        });
        let records = record.drain();
        kept.take(News::Note(Box::new(NoteKind::Events { records })));
        assert_eq!(open_below(temp.path()), 1);
        assert_eq!(
            fs::read_to_string(kept.dir.join("log.txt")).unwrap(),
            "the grid's head began anew\none\ntwo\n"
        );
        kept.take(ended(1, Ok(outcome())));
        rest[0].take(ended(2, Ok(outcome())));
        assert_eq!(open_below(temp.path()), 0);
        for (job, records) in [("job-1", 1), ("job-2", 0)] {
            let log = springtide_runtime::event::read(&temp.path().join(job).join("events.jsonl"));
            let log = log.unwrap();
            assert_eq!((log.records.len(), log.complete), (records, true));
        }
    }

    #[test]
    fn a_job_that_the_next_head_would_not_know_is_none() {
        let temp = tempfile::tempdir().unwrap();
        fs::write(temp.path().join("job-1"), "in the way").unwrap();
        assert!(begin(temp.path(), 1).is_err());
        // Where only what happens cannot be written, it is one.
        fs::create_dir_all(temp.path().join("job-2")).unwrap();
        fs::write(temp.path().join("job-2/nodes"), "in the way").unwrap();
        let mut kept = begin(temp.path(), 2).unwrap();
        kept.take(ended(2, Ok(outcome())));
        assert_eq!(kept.result().unwrap().0["ok"], true);
        assert!(kept.dir.join("result.json").exists());
    }

    #[test]
    fn a_result_that_cannot_be_written_is_kept_as_long_as_the_head_lives() {
        let temp = tempfile::tempdir().unwrap();
        let mut kept = begin(temp.path(), 1).unwrap();
        fs::create_dir_all(kept.dir.join("result.json/full")).unwrap();
        kept.take(ended(1, Ok(outcome())));
        let record = kept.record(0, true);
        assert_eq!(record.entry.ended, Some(done()));
        assert_eq!(record.result.unwrap().0["checksum"], "0000000000000007");
        assert!(record.unwritten.unwrap().contains("result.json"));
        let jobs = read(temp.path()).unwrap().jobs;
        assert_eq!((&jobs[&JobId(1)].entry.ended, jobs[&JobId(1)].result()), (&Some(done()), None));
    }

    #[test]
    fn what_the_scheduler_does_not_know_ends_and_what_nobody_submitted_is_not_kept() {
        let temp = tempfile::tempdir().unwrap();
        let mut book = Book { settled: JobId(2), ..Book::default() };
        for job in [1, 2] {
            book.jobs.insert(JobId(job), begin(temp.path(), job).unwrap());
        }
        let now = Instant::now();
        let at = |s| now + Duration::from_secs(s);
        let both: BTreeSet<JobId> = [JobId(1), JobId(2)].into();
        let one: BTreeSet<JobId> = [JobId(1)].into();
        let ends = |book: &Book| book.jobs[&JobId(2)].entry.ended.clone();
        book.compare(&one, at(0));
        book.compare(&both, at(10));
        book.compare(&one, at(20));
        book.compare(&one, at(34));
        assert_eq!(ends(&book), None);
        book.compare(&one, at(35));
        assert_eq!(ends(&book).unwrap().error.as_deref(), Some(UNKNOWN));
        assert!(book.jobs[&JobId(1)].entry.ended.is_none() && book.unknown.is_empty());
        // News of a job whose number is not known is kept only while one is awaited that it may be of.
        let say = || News::Note(Box::new(NoteKind::Say { text: "early".to_owned() }));
        book.hear(JobId(9), say(), Receipt::default());
        assert!(book.early.is_empty());
        book.submitting = 2;
        book.hear(JobId(2), say(), Receipt::default());
        book.hear(JobId(3), say(), Receipt::default());
        book.hear(JobId(4), say(), Receipt::default());
        assert_eq!(book.early.len(), 2);
        book.jobs.insert(JobId(4), begin(temp.path(), 4).unwrap());
        book.numbered(Some(JobId(4)));
        assert_eq!((book.early.len(), book.settled), (1, JobId(2)));
        assert_eq!(book.jobs[&JobId(4)].lines, ["early"]);
        book.numbered(None);
        assert!(book.early.is_empty());
    }

    fn open(dir: &Path) -> Result<Drawer, Failed> {
        let (dir, config) = (dir.to_owned(), String::new());
        Drawer::open(Setting { dir, config, version: "1", log_max: u64::MAX })
    }

    #[test]
    fn a_job_that_has_told_its_outcome_is_not_done_again() {
        let temp = tempfile::tempdir().unwrap();
        let jobs = temp.path().join("jobs");
        let mut kept = begin(&jobs, 1).unwrap();
        kept.take(News::Note(Box::new(NoteKind::Outcome { outcome: Box::new(outcome()) })));
        // One whose result is there, and whose end was not noted, neither; nor one whose entry is damaged.
        begin(&jobs, 2).unwrap().take(ended(2, Ok(outcome())));
        write(&jobs, "job-2", "job.json", &text(2, None));
        begin(&jobs, 3).unwrap().take(ended(3, Ok(outcome())));
        write(&jobs, "job-3", "job.json", "");
        begin(&jobs, 4).unwrap();
        let drawer = open(temp.path()).unwrap();
        assert_eq!([1, 2, 3, 4].map(|job| drawer.wants(JobId(job))), [false, false, false, true]);
        for job in 1..4 {
            let kept = &drawer.jobs[&JobId(job)];
            assert_eq!((&kept.entry.ended, &*kept.entry.name), (&Some(done()), "queens"));
            assert_eq!(kept.result().unwrap().0["checksum"], "0000000000000007");
            assert!(!kept.dir.join("outcome.json").exists());
        }
        assert_eq!(read(&jobs).unwrap().jobs[&JobId(1)].entry.ended, Some(done()));
    }

    #[test]
    fn a_damaged_entry_is_written_anew_or_ends_the_start() {
        let temp = tempfile::tempdir().unwrap();
        let jobs = temp.path().join("jobs");
        for job in [1, 2] {
            begin(&jobs, job).unwrap();
        }
        // Another job's entry is no better than none.
        for wrong in ["", "damaged", &text(2, None)] {
            write(&jobs, "job-1", "job.json", wrong);
            let mut drawer = open(temp.path()).unwrap();
            assert!(drawer.wants(JobId(1)) && drawer.wants(JobId(2)));
            let refused = drawer.mend(&[]).unwrap_err();
            assert!(refused.message.contains("job-1/job.json is damaged"), "{refused}");
        }
        let submit = springtide_actors::scheduler::Submit {
            name: "fib".to_owned(),
            body: bytes::Bytes::new(),
            fingerprint: 1,
            params: Default::default(),
            clusters: None,
            client: Contact {
                node: "head".into(),
                cluster: "head".into(),
                address: springtide_runtime::net::Address::Memory,
            },
            program: None,
            need: None,
        };
        let (job, epoch, submit) = (JobId(1), Epoch(1), Box::new(submit));
        let found = Recovered { job, epoch, submit, begun: None, limit: None };
        let mut drawer = open(temp.path()).unwrap();
        drawer.mend(&[found]).unwrap();
        assert_eq!(drawer.jobs[&JobId(1)].entry.name, "fib");
        assert_eq!(read(&jobs).unwrap().jobs[&JobId(1)].entry.line, "fib");
        // A copy under another name is nobody's, and one that cannot be read is not taken for none.
        write(&jobs, "job-2.old", "job.json", &text(2, Some(done())));
        assert!(open(temp.path()).unwrap().wants(JobId(2)));
        fs::remove_file(jobs.join("job-2/job.json")).unwrap();
        assert!(!open(temp.path()).unwrap().wants(JobId(2)));
        fs::create_dir(jobs.join("job-2/job.json")).unwrap();
        let Err(refused) = open(temp.path()) else { panic!("it begins") };
        assert!(refused.message.contains("cannot read"), "{refused}");
    }

    #[test]
    fn a_file_that_is_lost_is_told_in_the_jobs_log() {
        let temp = tempfile::tempdir().unwrap();
        let mut kept = begin(temp.path(), 1).unwrap();
        let bytes = b"all of it".to_vec();
        let file = NoteKind::Artifact { name: "result.json".to_owned(), bytes: bytes.into() };
        kept.take(News::Note(Box::new(file)));
        let log = fs::read_to_string(kept.dir.join("log.txt")).unwrap();
        assert!(log.contains("the job's file `result.json` is not written"), "{log}");
    }

    #[test]
    fn what_is_in_memory_of_a_job_has_an_end() {
        let temp = tempfile::tempdir().unwrap();
        let mut kept = begin(temp.path(), 1).unwrap();
        let long = "\u{e9}".repeat(LINE_MAX);
        let text = format!("x{long}\n{}", "short\n".repeat(LINES_MAX - 1));
        kept.take(News::Note(Box::new(NoteKind::Say { text: text.clone() })));
        let before = kept.record(LINES_MAX, true);
        assert_eq!((before.lines.len(), before.said), (LINES_MAX, LINES_MAX as u64));
        assert!(before.lines[0].len() <= LINE_MAX + 4 && before.lines[0].ends_with("\u{e9} ..."));
        assert_eq!(fs::read_to_string(kept.dir.join("log.txt")).unwrap(), text);
        kept.take(ended(1, Ok(outcome())));
        assert!(kept.lines.is_empty());
        let after = kept.record(LINES_MAX, false);
        assert_eq!((&after.lines, after.said, after.result), (&before.lines, before.said, None));
        assert!(kept.record(0, true).result.is_some());
    }
}
