//! Jobs that nobody waits for: the head is their client, and keeps what they say and what comes of them.
//!
//! ```text
//! DIR/jobs/JOB/job.json      what was submitted
//! DIR/jobs/JOB/log.txt       the job's own lines
//! DIR/jobs/JOB/result.json   its end, with all else that a run's directory has
//! DIR/jobs/JOB/summary.txt   the same for people
//! ```
//!
//! `job.json` is first and last: a job without one was never submitted, and one whose `job.json` says so has ended. Between
//! these the desk and the scheduler's store note a job's end each by itself, so a head that begins looks whether they agree, and
//! the desk looks again and again whether the scheduler still knows what has no end. No file of a job that waits is open:
//! there may be far more of them than a process may have files open.
//!
//! Must not know how jobs are scheduled, nor how the command shows them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use actix::prelude::*;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use springtide_actors::admit;
use springtide_actors::client::{Client, News};
use springtide_actors::endpoint::Endpoint;
use springtide_actors::job::{JobError, NoteKind};
use springtide_actors::scheduler::{CancelJob, Enqueue, GetKnown, Scheduler, Submit, SubmitError};
use springtide_runtime::event::{Manifest, write_atomic};
use springtide_runtime::id::JobId;
use springtide_runtime::net::Contact;
use springtide_runtime::remote_message;
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
    /// Its result as one object, and for people, if it has ended.
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
    early: Vec<(JobId, News)>,
    /// Jobs without an end that the scheduler does not know, and since when.
    unknown: BTreeMap<JobId, Instant>,
}

/// A job.
struct Kept {
    entry: JobEntry,
    progress: Option<String>,
    lines: VecDeque<String>,
    said: u64,
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

impl Desk {
    /// Opens the desk of a head before anybody can call that: what was submitted to former heads is known, and goes on if the
    /// scheduler has it still.
    pub fn open(
        drawer: Drawer,
        endpoint: &Endpoint,
        scheduler: &Addr<Scheduler>,
        recovered: &[JobId],
    ) {
        let Drawer { setting, dir, mut jobs, last } = drawer;
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
        let desk = desk.start();
        let hub = &endpoint.hub;
        hub.publish(DESK, desk.clone())
            .accepts_from::<SubmitJob>(admit::client)
            .accepts_from::<ListJobs>(admit::client)
            .accepts_from::<ReadJob>(admit::client);
        actix::spawn(async move {
            while let Some((job, news)) = news.recv().await {
                // The desk lives as long as the head does.
                let _ = desk.send(Heard { job, news }).await;
            }
        });
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
        for (of, news) in std::mem::take(&mut self.early) {
            self.hear(of, news);
        }
    }

    fn hear(&mut self, job: JobId, news: News) {
        match self.jobs.get_mut(&job) {
            Some(kept) => kept.take(news),
            // Its number may be on its way. Of others nobody wants to hear.
            None if self.submitting > 0 && job > self.settled => self.early.push((job, news)),
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
    /// The highest number that anything is left of, whole or not.
    last: JobId,
}

impl Drawer {
    /// Looks what there is. To be called by the only head that may be there: what another writes meanwhile is not seen.
    ///
    /// # Errors
    /// The directory cannot be read or made.
    pub fn open(setting: Setting) -> Result<Self, Failed> {
        let dir = setting.dir.join("jobs");
        fs::create_dir_all(&dir).map_err(|error| cannot("make", &dir, &error))?;
        let (jobs, last) = read(&dir)?;
        Ok(Self { setting, dir, jobs, last })
    }

    /// The highest number that anything is left of: a new job must have another.
    pub fn last(&self) -> JobId {
        self.last
    }

    /// Whether a job was submitted, and has no end. Of one that is not known whoever submitted it has had no answer.
    pub fn wants(&self, job: JobId) -> bool {
        self.jobs.get(&job).is_some_and(|kept| kept.entry.ended.is_none())
    }
}

/// Jobs of former heads, and the highest number of their directories. What is no job's is passed over.
fn read(dir: &Path) -> Result<(BTreeMap<JobId, Kept>, JobId), Failed> {
    let (mut jobs, mut last) = (BTreeMap::new(), JobId(0));
    let all = fs::read_dir(dir).map_err(|error| cannot("read", dir, &error))?;
    for entry in all.filter_map(Result::ok) {
        let dir = entry.path();
        let name = entry.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix("job-")?.parse().ok());
        last = last.max(JobId(number.unwrap_or(0)));
        let Ok(bytes) = fs::read(dir.join("job.json")) else { continue };
        let Ok(entry) = serde_json::from_slice::<JobEntry>(&bytes) else {
            tracing::warn!("{} is damaged and passed over", dir.join("job.json").display());
            continue;
        };
        last = last.max(entry.job);
        let text = fs::read_to_string(dir.join("log.txt")).unwrap_or_default();
        let said = text.lines().count();
        let lines = text.lines().skip(said.saturating_sub(LINES_MAX)).map(str::to_owned).collect();
        let kept = Kept { lines, said: said as u64, ..Kept::of(dir, entry) };
        jobs.insert(kept.entry.job, kept);
    }
    Ok((jobs, last))
}

impl Kept {
    fn of(dir: PathBuf, entry: JobEntry) -> Self {
        let (lines, said) = (VecDeque::new(), 0);
        Self { entry, progress: None, lines, said, dir, open: None, unwritten: None }
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
        let path = self.dir.join("result.json");
        let whole = fs::read(&path).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok());
        let end = whole.unwrap_or_else(|| {
            let lost = Ended::early(&self.entry.name, why);
            let end = JobEnd::of(&lost, false, Exit::Failure);
            self.write_result(&lost, &end);
            end
        });
        self.note_end(end);
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
            self.lines.push_back(line.to_owned());
            self.said += 1;
        }
        // They are rare: it need not stay open between them.
        let log = OpenOptions::new().create(true).append(true).open(self.dir.join("log.txt"));
        let lines: String = text.lines().map(|line| format!("{line}\n")).collect();
        if let Err(error) = log.and_then(|mut log| log.write_all(lines.as_bytes())) {
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
            NoteKind::Iteration { .. } | NoteKind::Outcome { .. } | NoteKind::Period { .. } => {}
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

    fn record(&self, lines: usize) -> JobRecord {
        let skip = self.lines.len().saturating_sub(lines);
        JobRecord {
            entry: self.entry.clone(),
            progress: self.progress.clone(),
            lines: self.lines.iter().skip(skip).cloned().collect(),
            said: self.said,
            result: self.result(),
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
}

impl Handler<Heard> for Desk {
    type Result = ();

    fn handle(&mut self, Heard { job, news }: Heard, _: &mut Self::Context) {
        self.book.hear(job, news);
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

    fn handle(&mut self, ReadJob { job, lines }: ReadJob, _: &mut Self::Context) -> Self::Result {
        MessageResult(self.book.jobs.get(&job).map(|kept| kept.record(lines)))
    }
}

#[cfg(test)]
mod tests {
    use springtide_actors::job::{JobEnded, JobReport};
    use springtide_runtime::id::Epoch;
    use springtide_runtime::work::Outcome;

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
            let (mut jobs, last) = read(temp.path()).unwrap();
            // A damaged one has its number still.
            assert_eq!(last, JobId(3));
            if round == 0 {
                assert!(jobs[&JobId(2)].entry.ended.is_none());
                jobs.get_mut(&JobId(2)).unwrap().lose(LOST);
            }
            let ends: Vec<_> = jobs
                .values()
                .map(|kept| (kept.entry.job.0, kept.entry.ended.clone().unwrap().error))
                .collect();
            assert_eq!(ends, [(1, None), (2, Some(LOST.to_owned()))]);
            assert_eq!(
                (&jobs[&JobId(1)].lines, jobs[&JobId(1)].said),
                (&["one", "two"].map(str::to_owned).into(), 2)
            );
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
            let (mut jobs, _) = read(temp.path()).unwrap();
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
        let record = kept.record(0);
        assert_eq!(record.entry.ended, Some(done()));
        assert_eq!(record.result.unwrap().0["checksum"], "0000000000000007");
        assert!(record.unwritten.unwrap().contains("result.json"));
        let (jobs, _) = read(temp.path()).unwrap();
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
        book.hear(JobId(9), say());
        assert!(book.early.is_empty());
        book.submitting = 2;
        book.hear(JobId(2), say());
        book.hear(JobId(3), say());
        book.hear(JobId(4), say());
        assert_eq!(book.early.len(), 2);
        book.jobs.insert(JobId(4), begin(temp.path(), 4).unwrap());
        book.numbered(Some(JobId(4)));
        assert_eq!((book.early.len(), book.settled), (1, JobId(2)));
        assert_eq!(book.jobs[&JobId(4)].lines, ["early"]);
        book.numbered(None);
        assert!(book.early.is_empty());
    }
}
