//! Jobs that nobody waits for: the head is their client, and keeps what they say and what comes of them.
//!
//! ```text
//! DIR/jobs.records/          what was submitted, what came of it: all that the desk answers from
//! DIR/jobs/JOB/log.txt       the job's own lines
//! DIR/jobs/JOB/result.json   a copy of its result, with all else that a run's directory has
//! DIR/jobs/JOB/summary.txt   the same for people
//! ```
//!
//! A job without a record was never submitted. An outcome or an end is acknowledged when it is
//! durable here, and the scheduler forgets a job only then. A head that begins compares both, and
//! the desk looks again and again whether the scheduler still knows what has no end. No file of a
//! job that waits is open: there may be far more of them than a process may have files open. The
//! desk has a thread of its own, for its disk may be slow. Ended jobs are removed with their files
//! when they are past the limits of the config.
//!
//! Must not know how jobs are scheduled, nor how the command shows them.

mod drawer;
mod kept;
mod records;
mod retention;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use actix::prelude::*;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use springtide_actors::admit::{
    self, About, Asking, Judges, Places, Principal, Rule, Ruled, Standing,
};
use springtide_actors::client::{Client, News, Receipt};
use springtide_actors::endpoint::Endpoint;
use springtide_actors::scheduler::{
    CancelJob, Enqueue, GetKnown, JobAuthority, Scheduler, Submit, SubmitError,
};
use springtide_runtime::id::JobId;
use springtide_runtime::net::Contact;
use springtide_runtime::net::tls::Role;
use springtide_runtime::remote::Origin;
use springtide_runtime::remote_message;
use tokio::time::Instant;

pub use self::drawer::Drawer;
pub use self::retention::{Retention, Selection};

use self::kept::Kept;
use self::records::JobRecords;
use self::retention::EndedJob;
use crate::exit::{Exit, Failed};
use crate::outdir::manifest;
use crate::report::Ended;

/// The desk's name on the head.
pub const DESK: &str = "desk";

/// What a job without an end has, when its head has gone.
const LOST: &str = "the grid ended before the job did: submit it again";
/// What one has that the scheduler does not know.
const UNKNOWN: &str =
    "the scheduler does not know the job, and nobody has told its end: submit it again";
/// Interval between looks for ended jobs that are past the limits.
const PURGE_INTERVAL: Duration = Duration::from_secs(10);
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
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ListJobs {
    /// At most this number of ended jobs, the last ones; all, if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<usize>,
    /// Only jobs of this principal. The desk sets it to the sender, unless that is the operator.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub of: Option<Principal>,
}

/// To the desk: remove ended jobs, with their files.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct PurgeJobs {
    /// Which.
    pub selection: Selection,
    /// Only jobs of this principal. The desk sets it to the sender, unless that is the operator.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub of: Option<Principal>,
}

/// What became of a [`PurgeJobs`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Purged {
    /// Jobs that were removed.
    pub removed: Vec<JobId>,
    /// Jobs that were named and have not ended.
    pub running: Vec<JobId>,
    /// Jobs that were named and are not known.
    pub unknown: Vec<JobId>,
    /// Jobs that could not be removed, and why.
    pub failed: BTreeMap<JobId, String>,
}

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
    "desk-purge" => PurgeJobs -> Purged;
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
    /// When, in seconds since the Unix epoch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_unix_s: Option<u64>,
    /// Who submitted it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub principal: Option<Principal>,
}

impl JobEntry {
    /// Whether this principal submitted it; every job is of all.
    fn is_of(&self, of: Option<&Principal>) -> bool {
        of.is_none() || self.principal.as_ref() == of
    }
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
        let error = ended.error().map(str::to_owned);
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
    /// Why its result cannot be read, if it is damaged.
    #[serde(default)]
    pub unreadable: Option<String>,
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
    retention: Retention,
    records: JobRecords,
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
    /// How long ended jobs are kept.
    pub retention: Retention,
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
    /// scheduler has it still. `lost`: jobs whose submission cannot be read, and why.
    pub fn open(
        drawer: Drawer,
        endpoint: &Endpoint,
        scheduler: &Addr<Scheduler>,
        recovered: &[JobId],
        lost: &BTreeMap<JobId, String>,
    ) -> DeskThread {
        let Drawer { setting, dir, records, mut jobs, last } = drawer;
        let Setting { config, version, log_max, retention, .. } = setting;
        for (job, kept) in jobs.iter_mut().filter(|(_, kept)| kept.entry.ended.is_none()) {
            match (recovered.contains(job), lost.get(job)) {
                (true, _) => kept.resume(log_max),
                (false, Some(why)) => kept
                    .lose(&format!("what was submitted cannot be read: {why}; or submit it again")),
                (false, None) => kept.lose(LOST),
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
            retention,
            records,
            book: Book { jobs, settled: last, ..Book::default() },
        };
        // The scheduler's need not wait for this one's disk.
        let thread = Arbiter::new();
        let desk = Self::start_in_arbiter(&thread.handle(), move |_| desk);
        let hub = &endpoint.hub;
        hub.publish(DESK, desk.clone())
            .accepts_judged::<SubmitJob>()
            .accepts_judged::<ListJobs>()
            .accepts_judged::<ReadJob>()
            .accepts_judged::<PurgeJobs>();
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
        about.mode = Some(submit.params.mode.word().to_owned());
        about.command = line.split(' ').map(str::to_owned).collect();
        let (name, line) = (submit.name.clone(), line.to_owned());
        let entry = JobEntry {
            job,
            name,
            line,
            submitted_unix_s: since_epoch(),
            ended: None,
            ended_unix_s: None,
            principal: submit.principal.clone(),
        };
        let records = self.records.clone();
        let with = (&*self.config, self.log_max);
        let kept = Kept::begin(dir, entry, records, &about, with)?;
        self.book.jobs.insert(job, kept);
        Ok(())
    }

    /// Removes jobs that are past the limits.
    fn retain(&mut self) {
        let expired = self.retention.expired(&self.book.ended(None), since_epoch());
        if expired.is_empty() {
            return;
        }
        let Purged { removed, failed, .. } = self.book.remove(&self.dir, &self.records, expired);
        tracing::info!("{} ended jobs are past the limits and are removed", removed.len());
        for (job, why) in failed {
            tracing::warn!("{job} is past the limits and cannot be removed: {why}");
        }
    }
}

impl Book {
    /// Removes ended jobs: their files first, so that a crash between leaves a job to remove again.
    fn remove(&mut self, dir: &Path, records: &JobRecords, jobs: Vec<JobId>) -> Purged {
        let mut purged = Purged::default();
        for job in jobs {
            match std::fs::remove_dir_all(dir.join(job.to_string())) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    purged.failed.insert(job, error.to_string());
                }
                _ => purged.removed.push(job),
            }
        }
        if purged.removed.is_empty() {
            return purged;
        }
        match records.purged(&purged.removed) {
            Ok(()) => purged.removed.iter().for_each(|job| drop(self.jobs.remove(job))),
            Err(error) => {
                let failed = std::mem::take(&mut purged.removed).into_iter();
                purged.failed.extend(failed.map(|job| (job, error.to_string())));
            }
        }
        purged
    }

    /// Removes the ended jobs that an order names, as far as they are of its principal.
    fn purge(&mut self, dir: &Path, records: &JobRecords, order: &PurgeJobs, now: u64) -> Purged {
        let (mut running, mut unknown) = (Vec::new(), Vec::new());
        let mut refused = BTreeMap::new();
        for &job in &order.selection.jobs {
            match self.jobs.get(&job).map(|kept| &kept.entry) {
                None => unknown.push(job),
                Some(entry) if !entry.is_of(order.of.as_ref()) => {
                    refused.insert(job, "another principal submitted it".to_owned());
                }
                Some(entry) if entry.ended.is_none() => running.push(job),
                Some(_) => {}
            }
        }
        let selected = order.selection.of(&self.ended(order.of.as_ref()), now);
        let mut purged = self.remove(dir, records, selected);
        purged.failed.append(&mut refused);
        Purged { running, unknown, ..purged }
    }

    /// The ended jobs of a principal, or of all.
    fn ended(&self, of: Option<&Principal>) -> Vec<EndedJob> {
        let entries = self.jobs.values().map(|kept| &kept.entry);
        let ended = entries.filter(|entry| entry.ended.is_some() && entry.is_of(of));
        let ended = ended.map(|entry| EndedJob {
            job: entry.job,
            ended_unix_s: entry.ended_unix_s.unwrap_or(entry.submitted_unix_s),
        });
        ended.collect()
    }

    /// The jobs of a principal, or of all: those without an end, and the last ones that have one.
    fn list(&self, ended: Option<usize>, of: Option<&Principal>) -> Vec<JobEntry> {
        let all = Retention { jobs: ended.unwrap_or(usize::MAX), age: Duration::MAX };
        let hidden: BTreeSet<JobId> = all.expired(&self.ended(of), 0).into_iter().collect();
        let entries = self.jobs.values().map(|kept| &kept.entry);
        let shown = entries.filter(|entry| entry.is_of(of) && !hidden.contains(&entry.job));
        shown.cloned().collect()
    }

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

/// Seconds since the Unix epoch.
pub fn since_epoch() -> u64 {
    // Only people read it.
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

const CLIENTS: &[Role] = &[Role::Client, Role::Head];

impl Ruled for SubmitJob {
    const RULE: Rule = Rule { roles: CLIENTS, places: None, confirmed: false };

    fn sign(&mut self, from: &Origin) {
        self.submit.principal = Some(Principal::of(from));
    }
}

impl Ruled for ListJobs {
    const RULE: Rule = Rule { roles: CLIENTS, places: None, confirmed: false };

    fn sign(&mut self, from: &Origin) {
        self.of = visible_to(from);
    }
}

impl Ruled for PurgeJobs {
    const RULE: Rule = Rule { roles: CLIENTS, places: None, confirmed: false };

    fn sign(&mut self, from: &Origin) {
        self.of = visible_to(from);
    }
}

/// The principal to whose jobs a sender is confined: its own, unless it is the operator.
fn visible_to(from: &Origin) -> Option<Principal> {
    (!admit::is_operator(from)).then(|| Principal::of(from))
}

impl Ruled for ReadJob {
    const RULE: Rule = Rule {
        roles: CLIENTS,
        places: Some(Places::OWNER.or(Places::OPERATOR).or(Places::HEAD)),
        confirmed: false,
    };

    fn about(&self) -> Option<About> {
        Some(About::of(self.job))
    }
}

impl Judges for Desk {
    fn standing(&mut self, from: &Origin, about: &About, _: Option<&JobAuthority>) -> Standing {
        let kept = self.book.jobs.get(&about.job);
        let principal = kept.and_then(|kept| kept.entry.principal.as_ref());
        let owner = principal.is_some_and(|principal| principal.is(from));
        let places = admit::outside(from, Some(&self.me.node)).or(Places::OWNER.when(owner));
        Standing { known: kept.is_some(), places, ..Standing::default() }
    }

    fn ask(&self, _: &Origin, _: &About) -> Option<Asking> {
        None
    }
}

springtide_actors::judged!(Desk);

impl Actor for Desk {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        self.retain();
        ctx.run_interval(PURGE_INTERVAL, |desk, _| desk.retain());
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

    fn handle(&mut self, ask: ListJobs, _: &mut Self::Context) -> Self::Result {
        MessageResult(self.book.list(ask.ended, ask.of.as_ref()))
    }
}

impl Handler<PurgeJobs> for Desk {
    type Result = MessageResult<PurgeJobs>;

    fn handle(&mut self, order: PurgeJobs, _: &mut Self::Context) -> Self::Result {
        MessageResult(self.book.purge(&self.dir, &self.records, &order, since_epoch()))
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
mod tests;
