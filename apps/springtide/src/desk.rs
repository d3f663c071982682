//! Jobs that nobody waits for: the head is their client, and keeps what they say and what comes of them.
//!
//! ```text
//! DIR/jobs/JOB/job.json      what was submitted
//! DIR/jobs/JOB/log.txt       the job's own lines
//! DIR/jobs/JOB/result.json   its end, with all else that a run's directory has
//! DIR/jobs/JOB/summary.txt   the same for people
//! ```
//!
//! Must not know how jobs are scheduled, nor how the command shows them.

use std::collections::{BTreeMap, VecDeque};
use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use actix::prelude::*;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use springtide_actors::admit;
use springtide_actors::client::{Client, News};
use springtide_actors::endpoint::Endpoint;
use springtide_actors::job::{JobError, NoteKind};
use springtide_actors::scheduler::{Enqueue, Scheduler, Submit, SubmitError};
use springtide_runtime::event::write_atomic;
use springtide_runtime::id::JobId;
use springtide_runtime::net::Contact;
use springtide_runtime::remote_message;

use crate::exit::Failed;
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
}

impl JobEnd {
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
    /// Its result as one object, and for people, if it has ended.
    pub result: Option<(Value, String)>,
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
    jobs: BTreeMap<JobId, Kept>,
    /// News of jobs whose number is on its way.
    early: Vec<(JobId, News)>,
}

/// A job.
struct Kept {
    entry: JobEntry,
    progress: Option<String>,
    lines: VecDeque<String>,
    dir: PathBuf,
    /// Until it has ended.
    open: Option<Open>,
}

/// Files of a job that goes on.
struct Open {
    out: OutDir,
    log: Option<File>,
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
    ///
    /// # Errors
    /// The jobs' directories cannot be written.
    pub fn open(
        drawer: Drawer,
        endpoint: &Endpoint,
        scheduler: &Addr<Scheduler>,
        recovered: &[JobId],
    ) -> Result<(), Failed> {
        let Drawer { setting, dir, mut jobs } = drawer;
        let Setting { config, version, log_max, .. } = setting;
        for (job, kept) in jobs.iter_mut().filter(|(_, kept)| kept.entry.ended.is_none()) {
            match recovered.contains(job) {
                true => kept.resume(log_max),
                false => kept.lose()?,
            }
        }
        let (_, mut news) = Client::publish_again(endpoint, recovered.iter().copied());
        let (me, early) = (endpoint.net.contact(), Vec::new());
        let scheduler = scheduler.clone();
        let desk = Self { dir, scheduler, me, config, version, log_max, jobs, early }.start();
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
        Ok(())
    }

    fn begin(&mut self, job: JobId, submit: &Submit, line: &str) -> Result<(), Failed> {
        let dir = self.dir.join(job.to_string());
        let mut about = manifest(&submit.name, self.version, Some(submit.params.seed));
        about.command = line.split(' ').map(str::to_owned).collect();
        let submitted_unix_s = since_epoch();
        let (name, line) = (submit.name.clone(), line.to_owned());
        let entry = JobEntry { job, name, line, submitted_unix_s, ended: None };
        let begun = || -> Result<Open, Failed> {
            let out = OutDir::create(&dir, &about, &self.config, self.log_max)?;
            write_entry(&dir, &entry)?;
            let path = dir.join("log.txt");
            let log = OpenOptions::new().create(true).append(true).open(&path);
            Ok(Open { out, log: Some(log.map_err(|error| cannot("write", &path, &error))?) })
        };
        let (open, failed) = match begun() {
            Ok(open) => (open, Ok(())),
            // It runs all the same, and what it says is kept in memory.
            Err(failed) => (Open { out: OutDir::none(&about), log: None }, Err(failed)),
        };
        let open = Some(open);
        let kept = Kept { entry, progress: None, lines: VecDeque::new(), dir, open };
        self.jobs.insert(job, kept);
        failed
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
}

impl Drawer {
    /// Looks what there is.
    ///
    /// # Errors
    /// The directory cannot be read or made.
    pub fn open(setting: Setting) -> Result<Self, Failed> {
        let dir = setting.dir.join("jobs");
        fs::create_dir_all(&dir).map_err(|error| cannot("make", &dir, &error))?;
        let jobs = read(&dir)?;
        Ok(Self { setting, dir, jobs })
    }

    /// Whether a job was submitted, and has no end. Of one that is not known whoever submitted it has had no answer.
    pub fn wants(&self, job: JobId) -> bool {
        self.jobs.get(&job).is_some_and(|kept| kept.entry.ended.is_none())
    }
}

/// Jobs of former heads. What is no job's is passed over.
fn read(dir: &Path) -> Result<BTreeMap<JobId, Kept>, Failed> {
    let mut jobs = BTreeMap::new();
    let all = fs::read_dir(dir).map_err(|error| cannot("read", dir, &error))?;
    for entry in all.filter_map(Result::ok) {
        let dir = entry.path();
        let Ok(bytes) = fs::read(dir.join("job.json")) else { continue };
        let Ok(entry) = serde_json::from_slice::<JobEntry>(&bytes) else {
            tracing::warn!("{} is damaged and passed over", dir.join("job.json").display());
            continue;
        };
        let text = fs::read_to_string(dir.join("log.txt")).unwrap_or_default();
        let skip = text.lines().count().saturating_sub(LINES_MAX);
        let lines = text.lines().skip(skip).map(str::to_owned).collect();
        jobs.insert(entry.job, Kept { entry, progress: None, lines, dir, open: None });
    }
    Ok(jobs)
}

impl Kept {
    /// It has ended with its head.
    fn lose(&mut self) -> Result<(), Failed> {
        let path = self.dir.join("result.json");
        let lost = Ended::early(&self.entry.name, LOST).json().to_string();
        write_atomic(&path, lost.as_bytes()).map_err(|error| cannot("write", &path, &error))?;
        self.entry.ended = Some(JobEnd { error: Some(LOST.to_owned()), cancelled: false });
        write_entry(&self.dir, &self.entry)
    }

    /// It goes on, or begins anew.
    fn resume(&mut self, log_max: u64) {
        let path = self.dir.join("log.txt");
        let log = OpenOptions::new().create(true).append(true).open(&path).ok();
        let out = OutDir::resume(&self.dir, log_max).unwrap_or_else(|failed| {
            // It runs all the same.
            tracing::warn!("{}: what happens is not written down: {failed}", self.entry.job);
            OutDir::none(&manifest(&self.entry.name, "", None))
        });
        self.open = Some(Open { out, log });
        self.say("the grid's head began anew");
    }

    fn say(&mut self, text: &str) {
        for line in text.lines() {
            if self.lines.len() == LINES_MAX {
                self.lines.pop_front();
            }
            self.lines.push_back(line.to_owned());
            if let Some(log) = self.open.as_mut().and_then(|open| open.log.as_mut())
                && let Err(error) = writeln!(log, "{line}")
            {
                tracing::warn!("{}: its lines are not written: {error}", self.entry.job);
            }
        }
    }

    fn take(&mut self, news: News) {
        let written = match news {
            News::Note(note) => self.note(*note),
            News::Ended(ended) => {
                let cancelled = matches!(ended.outcome, Err(JobError::Cancelled { .. }));
                let (ended, _) = conclude(&self.entry.name, *ended);
                self.end(&ended, cancelled)
            }
        };
        if let Err(failed) = written {
            tracing::warn!("{}: {failed}", self.entry.job);
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
                    open.out.file(&name, &bytes)?;
                }
                self.say(&format!("wrote {name}"));
            }
            NoteKind::Events { records } => {
                if let Some(open) = &mut self.open {
                    open.out.records(&records)?;
                }
            }
            NoteKind::Iteration { .. } | NoteKind::Outcome { .. } | NoteKind::Period { .. } => {}
        }
        Ok(())
    }

    fn end(&mut self, ended: &Ended, cancelled: bool) -> Result<(), Failed> {
        let error = ended.outcome.as_ref().err().cloned();
        self.entry.ended = Some(JobEnd { error, cancelled });
        self.progress = None;
        let path = self.dir.join("summary.txt");
        write_atomic(&path, ended.summary().as_bytes())
            .map_err(|error| cannot("write", &path, &error))?;
        if let Some(mut open) = self.open.take() {
            open.out.finish(&ended.json())?;
        }
        // Last: from here on it has ended, whatever becomes of the head.
        write_entry(&self.dir, &self.entry)
    }

    /// Its result, which is on disk.
    fn result(&self) -> Option<(Value, String)> {
        self.entry.ended.as_ref()?;
        let bytes = fs::read(self.dir.join("result.json")).ok()?;
        let summary = fs::read_to_string(self.dir.join("summary.txt")).unwrap_or_default();
        Some((serde_json::from_slice(&bytes).ok()?, summary))
    }
}

impl Actor for Desk {
    type Context = Context<Self>;
}

impl Handler<SubmitJob> for Desk {
    type Result = ResponseActFuture<Self, Result<JobId, SubmitError>>;

    fn handle(&mut self, order: SubmitJob, _: &mut Self::Context) -> Self::Result {
        let SubmitJob { mut submit, line } = order;
        submit.client = self.me.clone();
        let call = self.scheduler.send(Enqueue(submit.clone()));
        let then = move |answer: Result<_, MailboxError>, desk: &mut Self, _: &mut _| {
            let ended = || SubmitError::Cancelled { reason: "the scheduler ended".to_owned() };
            let job = answer.unwrap_or_else(|_| Err(ended()))?;
            if let Err(failed) = desk.begin(job, &submit, &line) {
                tracing::warn!("{job} is not written down: {failed}");
            }
            let early = std::mem::take(&mut desk.early);
            for (of, news) in early {
                match desk.jobs.get_mut(&of) {
                    Some(kept) => kept.take(news),
                    None => desk.early.push((of, news)),
                }
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
        match self.jobs.get_mut(&job) {
            Some(kept) => kept.take(news),
            None => self.early.push((job, news)),
        }
    }
}

impl Handler<ListJobs> for Desk {
    type Result = MessageResult<ListJobs>;

    fn handle(&mut self, _: ListJobs, _: &mut Self::Context) -> Self::Result {
        MessageResult(self.jobs.values().map(|kept| kept.entry.clone()).collect())
    }
}

impl Handler<ReadJob> for Desk {
    type Result = MessageResult<ReadJob>;

    fn handle(&mut self, ReadJob { job, lines }: ReadJob, _: &mut Self::Context) -> Self::Result {
        MessageResult(self.jobs.get(&job).map(|kept| JobRecord {
            entry: kept.entry.clone(),
            progress: kept.progress.clone(),
            lines:
                kept.lines.iter().skip(kept.lines.len().saturating_sub(lines)).cloned().collect(),
            result: kept.result(),
            dir: kept.dir.clone(),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_of_a_head_that_is_gone_are_known_and_end_if_nobody_has_them() {
        let temp = tempfile::tempdir().unwrap();
        let write = |job: &str, file: &str, text: &str| {
            fs::create_dir_all(temp.path().join(job)).unwrap();
            fs::write(temp.path().join(job).join(file), text).unwrap();
        };
        let entry = |job: u64, ended: Option<JobEnd>| {
            let line = "queens --size 8".to_owned();
            let entry = JobEntry {
                job: JobId(job),
                name: "queens".to_owned(),
                line,
                submitted_unix_s: 7,
                ended,
            };
            serde_json::to_string(&entry).unwrap()
        };
        write("job-1", "job.json", &entry(1, Some(JobEnd { error: None, cancelled: false })));
        write("job-1", "result.json", r#"{"ok": true}"#);
        write("job-1", "log.txt", "one\ntwo\n");
        write("job-2", "job.json", &entry(2, None));
        write("job-3", "job.json", "damaged");
        write("other", "file", "");
        for round in 0..2 {
            let mut jobs = read(temp.path()).unwrap();
            if round == 0 {
                assert!(jobs[&JobId(2)].entry.ended.is_none());
                jobs.get_mut(&JobId(2)).unwrap().lose().unwrap();
            }
            let ends: Vec<_> = jobs
                .values()
                .map(|kept| (kept.entry.job.0, kept.entry.ended.clone().unwrap().error))
                .collect();
            assert_eq!(ends, [(1, None), (2, Some(LOST.to_owned()))]);
            assert_eq!(jobs[&JobId(1)].lines, ["one", "two"]);
            let (result, _) = jobs[&JobId(2)].result().unwrap();
            assert_eq!(result["error"], LOST);
        }
    }
}
