//! Archive of jobs that run without a waiting client: the head is their client and stores their
//! output and outcomes.
//!
//! ```text
//! DIR/jobs.records/          submissions, outcomes and ends; the only source of answers
//! DIR/jobs/JOB/log.txt       the job's own lines
//! DIR/jobs/JOB/result.json   a copy of its result; the other files are those of a run directory
//! DIR/jobs/JOB/summary.txt   a summary of its result in plain text
//! ```
//!
//! A job without a record was never submitted. The archive acknowledges an outcome or an end once
//! it is durable, and the scheduler forgets a job only then. At its start, a head compares the
//! archive with the scheduler's jobs. Later the archive repeats this comparison at an interval, for
//! jobs that have no end. The archive keeps no file of a waiting job open, because more jobs may
//! wait than a process may open files. It has a thread of its own, because its disk may be slow. It
//! removes ended jobs and their files when they exceed the limits of the config.
//!
//! This module knows neither scheduling nor the presentation of jobs.

mod archived_job;
mod drawer;
pub mod entry;
pub mod output;
mod records;
mod retention;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use actix::prelude::*;
use serde::{Deserialize, Serialize};
use springtide_actors::admit::{
    self, AdmitsMessages, AuditOutcome, AuthorityQuery, HasRule, MessageSubject, Places, Principal,
    Rule, SenderStanding,
};
use springtide_actors::audit::AuditLog;
use springtide_actors::client::{Client, JobUpdate, Receipt};
use springtide_actors::endpoint::Endpoint;
use springtide_actors::policy::Mode;
use springtide_actors::scheduler::{
    CancelJob, GetKnownJobs, JobAuthority, Scheduler, SubmissionBatch, Submit, SubmitError,
    SubmittedJobs,
};
use springtide_cli::exit::Failed;
use springtide_cli::outdir::manifest;
use springtide_runtime::id::JobId;
use springtide_runtime::net::Contact;
use springtide_runtime::net::tls::{Role, calendar};
use springtide_runtime::remote::MessageOrigin;
use springtide_runtime::remote_message;
use springtide_runtime::work::ArrayTask;
use tokio::time::Instant;

pub use self::drawer::ArchiveReader;
pub use self::entry::{ArchiveEntry, ArchiveSettings, JobRecord, since_epoch};
pub use self::output::{OutputChunk, OutputFile};
pub use self::records::check_records;
pub use self::retention::{Retention, Selection};

use self::archived_job::{ArchivedJob, PlannedFiles};
use self::entry::LOST;
use self::records::JobRecords;
use self::retention::EndedJob;

/// The name under which the head publishes the archive.
pub const DESK: &str = "desk";

/// The error of a job without an end that the scheduler does not know.
const UNKNOWN: &str =
    "the scheduler does not know the job, and its end was not reported: submit it again";
/// Interval between removals of ended jobs that exceed the limits.
const PURGE_INTERVAL: Duration = Duration::from_secs(10);
/// Interval between comparisons of the jobs without an end with the jobs of the scheduler.
const COMPARE_INTERVAL: Duration = Duration::from_secs(2);
/// Time that a job unknown to the scheduler has until its end must be reported. The report may wait
/// for late notes.
const UNKNOWN_TIMEOUT: Duration = Duration::from_secs(15);

/// Submits a job and archives its output and outcome.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SubmitJob {
    /// The submission. The archive replaces its client by the head.
    pub submit: Submit,
    /// The job and its options as a command line.
    pub line: String,
    /// The principal whose jobs the submission may wait for; all if absent. The archive sets it to
    /// the sender, unless the sender is the operator.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub of: Option<Principal>,
}

/// Submits jobs, and archives their output and outcomes. One message holds many jobs, since each
/// message costs several waits for the disk.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SubmitJobs {
    /// The jobs in their order.
    pub groups: Vec<JobGroup>,
    /// The principal whose jobs the submission may wait for; all if absent. The archive sets it to
    /// the sender, unless the sender is the operator.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub of: Option<Principal>,
}

/// Equal jobs, or the jobs of an array.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct JobGroup {
    /// The submission of each job. The archive replaces its client by the head.
    pub submit: Submit,
    /// The job and its options as a command line.
    pub line: String,
    /// The number of equal jobs.
    pub count: u32,
    /// The places in an array, one for each job; empty: the jobs are in no array.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub array: Vec<ArrayTask>,
}

/// Most jobs of one [`SubmitJobs`].
pub const SUBMITTED_MAX: usize = 1000;

/// Asks for the submitted jobs.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ListJobs {
    /// The maximum number of ended jobs, most recent first; all if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<usize>,
    /// Only jobs of this principal. The archive sets it to the sender, unless the sender may read
    /// all jobs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub of: Option<Principal>,
}

/// Removes ended jobs and their files.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct PurgeJobs {
    /// The ended jobs to remove.
    pub selection: Selection,
    /// Only jobs of this principal. The archive sets it to the sender, unless the sender is the
    /// operator.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub of: Option<Principal>,
}

/// The result of a [`PurgeJobs`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Purged {
    /// Jobs that were removed.
    pub removed: Vec<JobId>,
    /// Named jobs that have not ended.
    pub running: Vec<JobId>,
    /// Named jobs that the archive does not know.
    pub unknown: Vec<JobId>,
    /// Jobs that could not be removed, with the reason.
    pub failed: BTreeMap<JobId, String>,
}

/// Asks for everything known about one job.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct ReadJob {
    /// The job to read.
    pub job: JobId,
    /// The maximum number of its last lines.
    pub lines: usize,
    /// Whether to return its result, if it has one. Earlier versions send no such field and expect
    /// the result.
    #[serde(default = "wants_result")]
    pub result: bool,
}

/// Asks for a part of a job's output.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct ReadOutput {
    /// The job to read.
    pub job: JobId,
    /// The file to read.
    pub file: OutputFile,
    /// The offset of the first byte.
    pub offset: u64,
}

fn wants_result() -> bool {
    true
}

remote_message! {
    "desk-submit" => SubmitJob -> Result<JobId, SubmitError>;
    "desk-submit-all" => SubmitJobs -> Result<SubmittedJobs, SubmitError>;
    "desk-list" => ListJobs -> Vec<ArchiveEntry>;
    "desk-read" => ReadJob -> Option<JobRecord>;
    "desk-purge" => PurgeJobs -> Purged;
    "desk-output" => ReadOutput -> Option<OutputChunk>;
}

/// The archive of jobs, published as [`DESK`] on a head that stays.
pub struct JobArchive {
    dir: PathBuf,
    scheduler: Addr<Scheduler>,
    me: Contact,
    config: Arc<str>,
    version: &'static str,
    log_max: u64,
    retention: Retention,
    records: JobRecords,
    jobs_table: JobTable,
    audit_log: Arc<AuditLog>,
}

/// All jobs of an archive.
#[derive(Default)]
struct JobTable {
    jobs: BTreeMap<JobId, ArchivedJob>,
    /// Submissions that have no job number yet.
    submitting: usize,
    /// The highest job number when no submission was under way. Lower numbers that `jobs` does not
    /// hold belong to no archived job.
    settled: JobId,
    /// News that arrived before the number of its job.
    early: Vec<(JobId, JobUpdate, Receipt)>,
    /// Jobs without an end that the scheduler does not know, with the time of the first such
    /// comparison.
    unknown: BTreeMap<JobId, Instant>,
}

/// A submitted job, for its entry in the archive.
struct SubmittedJob {
    job: JobId,
    name: String,
    line: String,
    principal: Option<Principal>,
    seed: u64,
    mode: Mode,
}

impl SubmittedJob {
    /// A job without a number.
    fn of(submit: &Submit, line: &str) -> Self {
        Self {
            job: JobId(0),
            name: submit.name.clone(),
            line: line.to_owned(),
            principal: submit.principal.clone(),
            seed: submit.params.seed,
            mode: submit.params.mode,
        }
    }
}

/// The archive's thread. Dropping it waits until all started work is on disk.
pub struct ArchiveThread(Option<Arbiter>);

impl Drop for ArchiveThread {
    fn drop(&mut self) {
        let Some(arbiter) = self.0.take() else { return };
        arbiter.stop();
        // An error is a panic of that thread, which is logged already.
        let _ = arbiter.join();
    }
}

impl JobArchive {
    /// Starts the archive of a head, before other processes can reach the head. Jobs of earlier
    /// heads continue if the scheduler has recovered them. `lost` holds jobs whose submission
    /// cannot be read, with the reason.
    pub fn open(
        reader: ArchiveReader,
        endpoint: &Endpoint,
        scheduler: &Addr<Scheduler>,
        recovered: &[JobId],
        lost: &BTreeMap<JobId, String>,
    ) -> ArchiveThread {
        let ArchiveReader { setting, dir, records, mut jobs, last } = reader;
        let ArchiveSettings { config, version, log_max, retention, dir: grid_dir, .. } = setting;
        for (job, archived) in
            jobs.iter_mut().filter(|(_, archived)| archived.entry.ended.is_none())
        {
            match (recovered.contains(job), lost.get(job)) {
                (true, _) => archived.resume(version, &config, log_max),
                (false, Some(why)) => archived.end_unreported(&format!(
                    "the submission cannot be read: {why}; submit it \
                    again"
                )),
                (false, None) => archived.end_unreported(LOST),
            }
        }
        let (_, mut news) = Client::publish_resuming(endpoint, recovered.iter().copied());
        let archive = Self {
            dir,
            scheduler: scheduler.clone(),
            me: endpoint.net.contact(),
            config: config.into(),
            version,
            log_max,
            retention,
            records,
            jobs_table: JobTable { jobs, settled: last, ..JobTable::default() },
            audit_log: Arc::new(AuditLog::of(&grid_dir, calendar())),
        };
        // On a thread of its own, so that the scheduler does not wait for the archive's disk.
        let thread = Arbiter::new();
        let archive = Self::start_in_arbiter(&thread.handle(), move |_| archive);
        let hub = &endpoint.hub;
        hub.publish(DESK, archive.clone())
            .accepts_judged::<SubmitJob>()
            .accepts_judged::<SubmitJobs>()
            .accepts_judged::<ListJobs>()
            .accepts_judged::<ReadJob>()
            .accepts_judged::<ReadOutput>()
            .accepts_judged::<PurgeJobs>();
        actix::spawn(async move {
            while let Some((job, news, receipt)) = news.recv().await {
                // The archive lives as long as the head.
                let _ = archive.send(ReceivedNews { job, news, receipt }).await;
            }
        });
        ArchiveThread(Some(thread))
    }

    /// Archives submitted jobs.
    ///
    /// # Errors
    /// They cannot be recorded, so that the next head would not know them.
    fn create(&mut self, jobs: Vec<SubmittedJob>) -> Result<(), Failed> {
        let now = since_epoch();
        let entry = |one: &SubmittedJob| ArchiveEntry {
            job: one.job,
            name: one.name.clone(),
            line: one.line.clone(),
            submitted_unix_s: now,
            ended: None,
            ended_unix_s: None,
            principal: one.principal.clone(),
        };
        let entries: Vec<ArchiveEntry> = jobs.iter().map(entry).collect();
        self.records.submitted(&entries)?;
        for (entry, one) in entries.into_iter().zip(jobs) {
            let mut about = manifest(&one.name, self.version, Some(one.seed));
            about.mode = Some(one.mode.word().to_owned());
            about.command = one.line.split(' ').map(str::to_owned).collect();
            let (config, log_max) = (self.config.clone(), self.log_max);
            let planned = PlannedFiles { about, config, log_max };
            let dir = self.dir.join(one.job.to_string());
            let archived = ArchivedJob::submitted(dir, entry, self.records.clone(), planned);
            self.jobs_table.jobs.insert(one.job, archived);
        }
        Ok(())
    }

    /// Submits jobs, whose number is that of `about`, to the scheduler, and archives them.
    fn submit(
        &mut self,
        submits: Vec<Submit>,
        about: Vec<SubmittedJob>,
    ) -> ResponseActFuture<Self, Result<SubmittedJobs, SubmitError>> {
        self.jobs_table.submitting += 1;
        let request = self.scheduler.send(SubmissionBatch(submits));
        let on_answer = move |answer: Result<_, MailboxError>, archive: &mut Self, _: &mut _| {
            let ended = || SubmitError::Cancelled { reason: "the scheduler ended".to_owned() };
            let answer: Result<SubmittedJobs, SubmitError> =
                answer.unwrap_or_else(|_| Err(ended()));
            let created = match &answer {
                Ok(SubmittedJobs { jobs, .. }) => {
                    let numbered = jobs.iter().zip(about);
                    let numbered = numbered.map(|(job, one)| SubmittedJob { job: *job, ..one });
                    archive.create(numbered.collect())
                }
                Err(_) => Ok(()),
            };
            let last = answer.as_ref().ok().and_then(|answer| answer.jobs.last().copied());
            archive.jobs_table.settle_submission(last);
            let answer = answer?;
            if let Err(failed) = created {
                // The next head would not know the jobs: the client gets the error now.
                let reason = failed.message;
                for &job in &answer.jobs {
                    tracing::warn!("{job} is cancelled, because it cannot be stored: {reason}");
                    archive.scheduler.do_send(CancelJob { job, reason: reason.clone() });
                }
                return Err(SubmitError::Store { reason });
            }
            Ok(answer)
        };
        Box::pin(request.into_actor(self).map(on_answer))
    }

    /// Removes the dependencies of a submission that are met. `of` is the principal whose jobs it
    /// may wait for; all if absent.
    ///
    /// # Errors
    /// The archive has no such job of this principal, or a job that must succeed has failed.
    fn resolve_dependencies(
        &self,
        submit: &mut Submit,
        of: Option<&Principal>,
    ) -> Result<(), SubmitError> {
        let Some(need) = &mut submit.need else { return Ok(()) };
        for one in std::mem::take(&mut need.after) {
            let refused = |reason: String| Err(SubmitError::NotPlaced { reason });
            let archived = self.jobs_table.jobs.get(&one.job);
            let entry = archived.map(|archived| &archived.entry);
            let Some(entry) = entry.filter(|entry| entry.is_of(of)) else {
                let job = one.job;
                return refused(format!("it waits for {job}, and you have submitted no such job"));
            };
            match &entry.ended {
                None => need.after.push(one),
                Some(end) if one.any || end.error.is_none() => {}
                Some(end) => {
                    let (job, state) = (one.job, end.word());
                    return refused(format!("it waits for the success of {job}, which is {state}"));
                }
            }
        }
        Ok(())
    }

    /// Removes ended jobs that exceed the limits.
    fn retain(&mut self) {
        let expired = self.retention.expired(&self.jobs_table.ended(None), since_epoch());
        if expired.is_empty() {
            return;
        }
        let Purged { removed, failed, .. } =
            self.jobs_table.remove(&self.dir, &self.records, expired);
        tracing::info!("{} ended jobs exceed the limits and were removed", removed.len());
        for (job, why) in failed {
            tracing::warn!("{job} exceeds the limits and cannot be removed: {why}");
        }
    }
}

impl JobTable {
    /// Removes ended jobs: their files first, so that after a crash the record still names the job.
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

    /// Removes the ended jobs that an order selects, if they belong to its principal.
    fn purge(&mut self, dir: &Path, records: &JobRecords, order: &PurgeJobs, now: u64) -> Purged {
        let (mut running, mut unknown) = (Vec::new(), Vec::new());
        let mut refused = BTreeMap::new();
        for &job in &order.selection.jobs {
            match self.jobs.get(&job).map(|archived| &archived.entry) {
                None => unknown.push(job),
                Some(entry) if !entry.is_of(order.of.as_ref()) => {
                    refused.insert(job, "another principal submitted it".to_owned());
                }
                Some(entry) if entry.ended.is_none() => running.push(job),
                Some(_) => {}
            }
        }
        let selected = order.selection.select(&self.ended(order.of.as_ref()), now);
        let mut purged = self.remove(dir, records, selected);
        purged.failed.append(&mut refused);
        Purged { running, unknown, ..purged }
    }

    /// The ended jobs of a principal, or of all principals.
    fn ended(&self, of: Option<&Principal>) -> Vec<EndedJob> {
        let entries = self.jobs.values().map(|archived| &archived.entry);
        let ended = entries.filter(|entry| entry.ended.is_some() && entry.is_of(of));
        let ended = ended.map(|entry| EndedJob {
            job: entry.job,
            ended_unix_s: entry.ended_unix_s.unwrap_or(entry.submitted_unix_s),
        });
        ended.collect()
    }

    /// The jobs of a principal, or of all: all without an end, and the last `ended` ones with an
    /// end.
    fn list(&self, ended: Option<usize>, of: Option<&Principal>) -> Vec<ArchiveEntry> {
        let all = Retention { jobs: ended.unwrap_or(usize::MAX), age: Duration::MAX };
        let hidden: BTreeSet<JobId> = all.expired(&self.ended(of), 0).into_iter().collect();
        let entries = self.jobs.values().map(|archived| &archived.entry);
        let shown = entries.filter(|entry| entry.is_of(of) && !hidden.contains(&entry.job));
        shown.cloned().collect()
    }

    /// Records that a submission got its job number, or was refused.
    fn settle_submission(&mut self, job: Option<JobId>) {
        self.submitting -= 1;
        if self.submitting == 0 {
            let known = self.jobs.last_key_value().map(|(job, _)| *job);
            self.settled = self.settled.max(job.max(known).unwrap_or_default());
        }
        for (of, news, receipt) in std::mem::take(&mut self.early) {
            self.apply_news(of, news, receipt);
        }
    }

    /// Applies news of a job. Dropping the receipt acknowledges the news, once it is on disk.
    fn apply_news(&mut self, job: JobId, news: JobUpdate, receipt: Receipt) {
        match self.jobs.get_mut(&job) {
            Some(archived) => archived.take(news),
            // The job may be one whose number is not known yet. News of other jobs is dropped.
            None if self.submitting > 0 && job > self.settled => {
                self.early.push((job, news, receipt));
            }
            None => {}
        }
    }

    /// Ends jobs that have no end and stay unknown to the scheduler.
    fn compare(&mut self, known: &BTreeSet<JobId>, now: Instant) {
        let lost = |(job, archived): &(&JobId, &ArchivedJob)| {
            archived.entry.ended.is_none() && !known.contains(job)
        };
        let lost: BTreeSet<JobId> = self.jobs.iter().filter(lost).map(|(&job, _)| job).collect();
        self.unknown.retain(|job, _| lost.contains(job));
        for job in lost {
            let since = *self.unknown.entry(job).or_insert(now);
            if now.saturating_duration_since(since) < UNKNOWN_TIMEOUT {
                continue;
            }
            self.unknown.remove(&job);
            if let Some(archived) = self.jobs.get_mut(&job) {
                tracing::warn!("the scheduler does not know {job}: the archive ends it");
                archived.end_unreported(UNKNOWN);
            }
        }
    }
}

const CLIENTS: &[Role] = &[Role::Client, Role::Head];
const VIEWERS: &[Role] = &[Role::Client, Role::Viewer, Role::Head];

impl HasRule for SubmitJob {
    const RULE: Rule = Rule { roles: CLIENTS, places: None, confirmed: false };

    fn sign(&mut self, from: &MessageOrigin) {
        self.of = visible_to(from);
        self.submit.principal = Some(Principal::of(from));
    }

    const AUDITED: bool = true;

    fn outcome(reply: &Result<JobId, SubmitError>) -> AuditOutcome {
        match reply {
            Ok(job) => AuditOutcome::of_jobs(vec![*job]),
            Err(error) => AuditOutcome::failed(error),
        }
    }
}

impl HasRule for SubmitJobs {
    const RULE: Rule = SubmitJob::RULE;

    fn sign(&mut self, from: &MessageOrigin) {
        self.of = visible_to(from);
        for group in &mut self.groups {
            group.submit.principal = Some(Principal::of(from));
        }
    }

    const AUDITED: bool = true;

    fn outcome(reply: &Result<SubmittedJobs, SubmitError>) -> AuditOutcome {
        match reply {
            Ok(SubmittedJobs { jobs, refused }) => AuditOutcome {
                jobs: jobs.clone(),
                error: refused.as_ref().map(ToString::to_string),
            },
            Err(error) => AuditOutcome::failed(error),
        }
    }
}

impl HasRule for ListJobs {
    const RULE: Rule = Rule { roles: VIEWERS, places: None, confirmed: false };

    fn sign(&mut self, from: &MessageOrigin) {
        self.of = visible_to(from);
    }
}

impl HasRule for PurgeJobs {
    const RULE: Rule = Rule { roles: CLIENTS, places: None, confirmed: false };

    fn sign(&mut self, from: &MessageOrigin) {
        self.of = visible_to(from);
    }

    const AUDITED: bool = true;

    fn outcome(reply: &Purged) -> AuditOutcome {
        let Purged { removed, running, unknown, failed } = reply;
        let mut outcome = AuditOutcome::of_jobs(removed.clone());
        let reason = |job: &JobId, why: &str| format!("{job}: {why}");
        let running = running.iter().map(|job| reason(job, "has not ended"));
        let unknown = unknown.iter().map(|job| reason(job, "is not in the archive"));
        let failed = failed.iter().map(|(job, why)| reason(job, why));
        let reasons: Vec<String> = running.chain(unknown).chain(failed).collect();
        outcome.error = (!reasons.is_empty()).then(|| reasons.join("; "));
        outcome
    }
}

/// The principal whose jobs a sender may see: its own; none for those who see all.
fn visible_to(from: &MessageOrigin) -> Option<Principal> {
    (!admit::reads_all_jobs(from)).then(|| Principal::of(from))
}

impl HasRule for ReadJob {
    const RULE: Rule = Rule {
        roles: VIEWERS,
        places: Some(Places::OWNER.or(Places::OPERATOR).or(Places::VIEWER).or(Places::HEAD)),
        confirmed: false,
    };

    fn about(&self) -> Option<MessageSubject> {
        Some(MessageSubject::of(self.job))
    }
}

impl HasRule for ReadOutput {
    const RULE: Rule = ReadJob::RULE;

    fn about(&self) -> Option<MessageSubject> {
        Some(MessageSubject::of(self.job))
    }
}

impl AdmitsMessages for JobArchive {
    fn standing(
        &mut self,
        from: &MessageOrigin,
        about: &MessageSubject,
        _: Option<&JobAuthority>,
    ) -> SenderStanding {
        let archived = self.jobs_table.jobs.get(&about.job);
        let principal = archived.and_then(|archived| archived.entry.principal.as_ref());
        let owner = principal.is_some_and(|principal| principal.is(from));
        let places = admit::outside(from, Some(&self.me.node)).or(Places::OWNER.when(owner));
        SenderStanding { known: archived.is_some(), places, ..SenderStanding::default() }
    }

    fn ask(&self, _: &MessageOrigin, _: &MessageSubject) -> Option<AuthorityQuery> {
        None
    }

    fn audit_log(&self) -> Option<&Arc<AuditLog>> {
        Some(&self.audit_log)
    }
}

springtide_actors::judged!(JobArchive);

impl Actor for JobArchive {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        self.retain();
        ctx.run_interval(PURGE_INTERVAL, |archive, _| archive.retain());
        ctx.run_interval(COMPARE_INTERVAL, |archive, ctx| {
            if archive.jobs_table.jobs.values().all(|archived| archived.entry.ended.is_some()) {
                return;
            }
            let request = archive.scheduler.send(GetKnownJobs).into_actor(archive);
            ctx.spawn(request.map(|known, archive, _| {
                // No answer: another head has taken over, and its archive keeps the jobs.
                if let Ok(Some(known)) = known {
                    archive.jobs_table.compare(&known, Instant::now());
                }
            }));
        });
    }
}

impl Handler<SubmitJob> for JobArchive {
    type Result = ResponseActFuture<Self, Result<JobId, SubmitError>>;

    fn handle(&mut self, order: SubmitJob, _: &mut Self::Context) -> Self::Result {
        let SubmitJob { mut submit, line, of } = order;
        submit.client = self.me.clone();
        if let Err(error) = self.resolve_dependencies(&mut submit, of.as_ref()) {
            return Box::pin(fut::ready(Err(error)));
        }
        let about = vec![SubmittedJob::of(&submit, &line)];
        let none = || SubmitError::Cancelled { reason: "the scheduler gave no number".to_owned() };
        let submitted = self.submit(vec![submit], about);
        Box::pin(submitted.map(move |answer, _, _| {
            let SubmittedJobs { jobs, refused } = answer?;
            jobs.first().copied().ok_or_else(|| refused.unwrap_or_else(none))
        }))
    }
}

impl Handler<SubmitJobs> for JobArchive {
    type Result = ResponseActFuture<Self, Result<SubmittedJobs, SubmitError>>;

    fn handle(&mut self, order: SubmitJobs, _: &mut Self::Context) -> Self::Result {
        let mut refused = None;
        let (mut submits, mut about) = (Vec::new(), Vec::new());
        let SubmitJobs { groups, of } = order;
        for JobGroup { mut submit, line, count, array } in groups {
            submit.client = self.me.clone();
            if let Err(error) = self.resolve_dependencies(&mut submit, of.as_ref()) {
                refused = Some(error);
                break;
            }
            let count = if array.is_empty() { count as usize } else { array.len() };
            if submits.len().saturating_add(count) > SUBMITTED_MAX {
                let reason = format!("one message submits at most {SUBMITTED_MAX} jobs");
                refused = Some(SubmitError::NotPlaced { reason });
                break;
            }
            for index in 0..count {
                let mut submit = submit.clone();
                let mut line = line.clone();
                if let (Some(place), Some(need)) = (array.get(index), &mut submit.need) {
                    need.array = Some(*place);
                    line = format!("[{}] {line}", place.index);
                }
                about.push(SubmittedJob::of(&submit, &line));
                submits.push(submit);
            }
        }
        let submitted = self.submit(submits, about);
        Box::pin(submitted.map(move |answer, _, _| {
            let answer = answer?;
            Ok(SubmittedJobs { refused: answer.refused.or(refused), ..answer })
        }))
    }
}

/// News of a job from the client.
#[derive(Message)]
#[rtype(result = "()")]
struct ReceivedNews {
    job: JobId,
    news: JobUpdate,
    receipt: Receipt,
}

impl Handler<ReceivedNews> for JobArchive {
    type Result = ();

    fn handle(&mut self, ReceivedNews { job, news, receipt }: ReceivedNews, _: &mut Self::Context) {
        self.jobs_table.apply_news(job, news, receipt);
    }
}

impl Handler<ListJobs> for JobArchive {
    type Result = MessageResult<ListJobs>;

    fn handle(&mut self, ask: ListJobs, _: &mut Self::Context) -> Self::Result {
        MessageResult(self.jobs_table.list(ask.ended, ask.of.as_ref()))
    }
}

impl Handler<PurgeJobs> for JobArchive {
    type Result = MessageResult<PurgeJobs>;

    fn handle(&mut self, order: PurgeJobs, _: &mut Self::Context) -> Self::Result {
        MessageResult(self.jobs_table.purge(&self.dir, &self.records, &order, since_epoch()))
    }
}

impl Handler<ReadJob> for JobArchive {
    type Result = MessageResult<ReadJob>;

    fn handle(&mut self, ask: ReadJob, _: &mut Self::Context) -> Self::Result {
        let ReadJob { job, lines, result } = ask;
        MessageResult(self.jobs_table.jobs.get(&job).map(|archived| archived.record(lines, result)))
    }
}

impl Handler<ReadOutput> for JobArchive {
    type Result = MessageResult<ReadOutput>;

    fn handle(&mut self, ask: ReadOutput, _: &mut Self::Context) -> Self::Result {
        let archived = self.jobs_table.jobs.get(&ask.job);
        MessageResult(archived.map(|archived| archived.read_output(ask.file, ask.offset)))
    }
}

#[cfg(test)]
mod tests;
