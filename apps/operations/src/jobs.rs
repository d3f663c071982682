//! The jobs of a running grid: submission, plans, state, changes.
//!
//! This module does not know scheduling.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use serde_json::Value;
use springtide_actors::admit::Principal;
use springtide_actors::job::JobParams;
use springtide_actors::policy::Mode;
use springtide_actors::policy::malleability::PlacementPlan;
use springtide_actors::scheduler::manager::JobPhase;
use springtide_actors::scheduler::{
    CancelJob, GetFiles, GetJob, GetStatus, JobDependency, JobDetail, JobState, JobStatus,
    PlanError, PlanJob, Resize, ResizeAck, ResizeError, ResizeJob, Scheduler, Submit,
    SubmittedJobs,
};
use springtide_cli::exit::{Exit, Failed};
use springtide_cli::format::seconds;
use springtide_cli::talk::Talk;
use springtide_runtime::config::GridConfig;
use springtide_runtime::id::{ClusterId, JobId};
use springtide_runtime::remote::{Refusal, Remote, RemoteError, RemoteMessage, RemoteRequest};
use springtide_runtime::work::ArrayTask;
use tokio::time::{Instant, sleep};

use super::attach::{Attachment, attach, attach_by};
use super::desk::output::CHUNK_MAX;
use super::desk::{
    ArchiveEntry, DESK, JobArchive, JobGroup, JobRecord, ListJobs, OutputChunk, OutputFile,
    PurgeJobs, Purged, ReadJob, ReadOutput, SUBMITTED_MAX, Selection, SubmitJobs,
};
use super::inputs;
use super::needs::JobRequest;
use super::netconf;
use super::programs::OwnProgram;
use super::run::is_of_lost_head;
use super::signals::{Signals, word};
use crate::program::Upload;

/// Timeout of a request that the head answers at once.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// Time in which a second head takes over, and answers.
const TAKEOVER_TIMEOUT: Duration = Duration::from_secs(60);
/// Timeout of the submission of a message of jobs, each of which the head stores.
const SUBMIT_TIMEOUT: Duration = Duration::from_secs(60);
/// Bytes of jobs after which a message holds no more.
const SUBMIT_BYTES: usize = 512 << 10;
/// Bytes of a submission without its body, about.
const SUBMIT_OVERHEAD: usize = 2 << 10;
/// Interval between queries while the command waits for a job.
const POLL_INTERVAL: Duration = Duration::from_millis(200);
/// Time that a cancelled job has to end.
const CANCEL_TIMEOUT: Duration = Duration::from_secs(30);
/// Timeout of a purge, which may remove many jobs.
const PURGE_TIMEOUT: Duration = Duration::from_secs(120);
/// The maximum number of failures that a plan prints in full.
const FAILURES_MAX: usize = 10;

/// A number of lines above the maximum that the head keeps.
const ALL_LINES: usize = 1_000_000;

/// State of a job that the scheduler has forgotten and whose end has not reached the archive yet.
pub const END_PENDING: &str = "ending";

/// The state of a job, from the archive and from the scheduler.
pub struct JobInfo {
    /// The number of the job.
    pub job: JobId,
    /// What the archive knows of it.
    pub record: Option<JobRecord>,
    /// What the scheduler knows of it.
    pub detail: Option<JobDetail>,
}

impl JobInfo {
    /// The reason for the job's state: its error, else its reason to wait or the last scheduling
    /// decision.
    pub fn why(&self) -> Option<String> {
        let end = self.record.as_ref().and_then(|record| record.entry.ended.as_ref());
        let detail = self.detail.as_ref();
        let view = detail.and_then(|detail| detail.view.as_ref());
        let waits = || detail.and_then(|detail| detail.status.as_ref()?.waits_for.clone());
        let why = end.and_then(|end| end.error.clone());
        let why = why.or_else(|| view.map(|view| view.reason.clone())).or_else(waits);
        why.filter(|why| !why.is_empty())
    }

    /// The reason to wait of a job that has no further details.
    pub fn waits_for(&self) -> Option<&String> {
        let detail = self.detail.as_ref().filter(|detail| detail.view.is_none())?;
        detail.status.as_ref()?.waits_for.as_ref().filter(|what| !what.is_empty())
    }

    /// The principal that submitted the job.
    pub fn principal(&self) -> Option<&Principal> {
        let kept = self.record.as_ref().and_then(|record| record.entry.principal.as_ref());
        let status = self.detail.as_ref().and_then(|detail| detail.status.as_ref());
        kept.or_else(|| status?.principal.as_ref())
    }

    /// Whether the job has ended.
    pub fn has_ended(&self) -> bool {
        let record = self.record.as_ref();
        record.map_or(self.state() == "over", |record| record.entry.ended.is_some())
    }

    /// The state in one word, as the list of jobs shows it.
    pub fn state(&self) -> &'static str {
        let ended = self.record.as_ref().and_then(|record| record.entry.ended.as_ref());
        if let Some(end) = ended {
            return end.word();
        }
        let detail = self.detail.as_ref();
        let view = detail.and_then(|detail| detail.view.as_ref());
        match (view, detail.and_then(|detail| detail.status.as_ref())) {
            (Some(view), _) => phase(view.phase),
            (None, Some(status)) => state(status.state),
            (None, None) if self.record.is_some() => END_PENDING,
            (None, None) => "over",
        }
    }

    /// The result of the job.
    ///
    /// # Errors
    /// It has not ended, has no result here, or the result cannot be read.
    pub fn into_result(self) -> Result<JobResult, Failed> {
        let job = self.job;
        let Some(record) = self.record else { return Err(not_submitted(job)) };
        let Some(end) = record.entry.ended else {
            return Err(Failed::failure(format!("{job} has not ended: wait for it with --wait")));
        };
        if let Some(why) = &record.unreadable {
            let text =
                format!("{job} has ended ({}), and its result cannot be read: {why}", end.word());
            return Err(Failed::failure(text));
        }
        let Some((object, summary)) = record.result else {
            let (word, dir) = (end.word(), record.dir.display());
            let error = end.error.map_or_else(String::new, |error| format!(": {error}"));
            return Err(Failed::failure(format!(
                "{job} has ended ({word}{error}), and its result could not be written to {dir}: \
                see the log of its head"
            )));
        };
        let exit = end.exit();
        let failed = end.error.map(|error| Failed::new(exit, error));
        Ok(JobResult { object, summary, unwritten: record.unwritten, failed })
    }
}

/// A phase in one word.
pub fn phase(phase: JobPhase) -> &'static str {
    match phase {
        JobPhase::Waiting => "waiting",
        JobPhase::Placed => "placed",
        JobPhase::Claiming => "starting",
        JobPhase::Running => "running",
        JobPhase::Growing => "growing",
        JobPhase::Shrinking => "shrinking",
        JobPhase::Ending => "ending",
    }
}

/// A state of the scheduler in one word.
pub fn state(state: JobState) -> &'static str {
    match state {
        JobState::Queued => "waiting",
        JobState::Assigning => "starting",
        JobState::Running => "running",
        JobState::Ending => "ending",
    }
}

/// The jobs of a grid.
pub struct JobList {
    /// The entries of the archive.
    pub entries: Vec<ArchiveEntry>,
    /// The jobs that the scheduler knows.
    pub live: Vec<JobStatus>,
    /// Whether earlier ended jobs are hidden.
    pub has_more: bool,
}

/// The result of a job, for people and for programs.
#[derive(Debug)]
pub struct JobResult {
    /// The object of `--json`.
    pub object: Value,
    /// The summary for people.
    pub summary: String,
    /// The reason why it is not stored, if so.
    pub unwritten: Option<String>,
    /// The failure of the job, if it failed.
    pub failed: Option<Failed>,
}

/// Jobs that were submitted.
pub struct Submission {
    /// The numbers of the jobs.
    pub numbers: Vec<JobId>,
    /// The failure that kept the others from being submitted.
    pub failed: Option<Failed>,
}

/// Submits jobs without waiting for their ends. `submitted` receives each number and command line,
/// and `sending` the state of the program's transfer to the head.
///
/// # Errors
/// No grid is up. A job that the head refuses ends the submission, after those before it.
pub async fn submit(
    file: &Path,
    config: &GridConfig,
    fingerprint: u64,
    jobs: Vec<JobRequest>,
    mut submitted: impl FnMut(JobId, &str),
    sending: impl FnMut(&str),
) -> Result<Submission, Failed> {
    let attachment = attach(file, config).await?;
    let Attachment { endpoint, head, .. } = &attachment;
    let archive: Remote<JobArchive> = endpoint.hub.remote(head, DESK);
    let own = OwnProgram::new(endpoint, head, fingerprint);
    let uploaded = async {
        let jobs = upload(&attachment, jobs).await?;
        Ok((jobs, own.offer(sending).await?))
    };
    let (jobs, image) = match uploaded.await {
        Ok(uploaded) => uploaded,
        Err(failed) => {
            endpoint.net.close("not submitted").await;
            return Err(failed);
        }
    };
    let count = |job: &JobRequest| job.array.len().max(1);
    let all: usize = jobs.iter().map(count).sum();
    let (mut numbers, mut failed_at) = (Vec::new(), None);
    let group = |job: &JobRequest| {
        let mut params: JobParams = netconf::job_params(config);
        if job.is_fixed {
            params.mode = Mode::Static;
        }
        params.min_processors = job.need.least().into();
        params.max_processors = Some(job.need.greatest().into());
        let submit = Submit {
            name: job.name.to_owned(),
            body: job.encoded.body.clone(),
            fingerprint,
            params,
            clusters: None,
            client: endpoint.net.contact(),
            program: std::env::current_exe().ok(),
            need: Some(job.need.clone()),
            principal: None,
            image: image.clone(),
        };
        JobGroup { submit, line: job.line.clone(), count: 1, array: Vec::new() }
    };
    let (mut named, mut left) = (BTreeMap::<String, Vec<JobId>>::new(), VecDeque::from(jobs));
    let mut pending = VecDeque::new();
    loop {
        if pending.is_empty() {
            pending = messages(&take_independent(&mut left, &named), group).into();
        }
        let Some((groups, lines, labels)) = pending.pop_front() else { break };
        let call = archive.send(SubmitJobs { groups, of: None }).deadline(SUBMIT_TIMEOUT);
        let mut count = 0;
        let refused = match call.await {
            Ok(Ok(SubmittedJobs { jobs, refused })) => {
                for ((job, line), label) in jobs.iter().zip(&lines).zip(labels) {
                    submitted(*job, line);
                    if let Some(label) = label {
                        named.entry(label).or_default().push(*job);
                    }
                }
                count = jobs.len();
                numbers.extend(jobs);
                match refused {
                    Some(refused) => Failed::from(refused),
                    None => continue,
                }
            }
            Ok(Err(refused)) => Failed::from(refused),
            // The head may have received the jobs, while its answer was lost.
            Err(error) => {
                let was_refused = error.refusal().is_some();
                let failed = Failed::from(error);
                let text = "`job list` shows whether it was submitted";
                if was_refused {
                    failed
                } else {
                    Failed { message: format!("{}; {text}", failed.message), ..failed }
                }
            }
        };
        let line = lines.get(count).map(String::as_str).unwrap_or_default();
        failed_at = Some(after_some_submitted(refused, line, numbers.len(), all));
        break;
    }
    endpoint.net.close("submitted").await;
    Ok(Submission { numbers, failed: failed_at })
}

/// Takes the first jobs, up to one that waits for a job among them. Those that they wait for have
/// numbers in `named`.
fn take_independent(
    left: &mut VecDeque<JobRequest>,
    named: &BTreeMap<String, Vec<JobId>>,
) -> Vec<JobRequest> {
    let can_start = |job: &JobRequest| job.after.iter().all(|(label, _)| named.contains_key(label));
    let count = left.iter().take_while(|job| can_start(job)).count();
    let mut taken: Vec<JobRequest> = left.drain(..count).collect();
    for job in &mut taken {
        for (label, any) in std::mem::take(&mut job.after) {
            let jobs = named.get(&label).into_iter().flatten();
            job.need.after.extend(jobs.map(|&job| JobDependency { job, any }));
        }
    }
    taken
}

/// Jobs of one message: the groups, and the command line and label of each job.
type JobMessage = (Vec<JobGroup>, Vec<String>, Vec<Option<String>>);

/// The messages that submit these jobs. Equal jobs that follow each other form one group.
fn messages(jobs: &[JobRequest], group: impl Fn(&JobRequest) -> JobGroup) -> Vec<JobMessage> {
    let mut all = Vec::new();
    let (mut groups, mut lines, mut bytes) = (Vec::<JobGroup>::new(), Vec::new(), 0);
    let mut labels = Vec::new();
    let mut last: Option<&JobRequest> = None;
    for job in jobs {
        let places: Vec<Option<ArrayTask>> = match job.array.len() {
            0 => vec![None],
            _ => job.array.iter().copied().map(Some).collect(),
        };
        for place in places {
            if lines.len() == SUBMITTED_MAX || bytes > SUBMIT_BYTES {
                all.push((
                    std::mem::take(&mut groups),
                    std::mem::take(&mut lines),
                    std::mem::take(&mut labels),
                ));
                (bytes, last) = (0, None);
            }
            match groups.last_mut().filter(|_| last == Some(job)) {
                Some(known) => known.count += 1,
                None => {
                    groups.push(group(job));
                    bytes += job.encoded.body.len() + SUBMIT_OVERHEAD;
                    last = Some(job);
                }
            }
            if let Some(known) = groups.last_mut() {
                known.array.extend(place);
            }
            let index = place.map_or_else(String::new, |place| format!("[{}] ", place.index));
            lines.push(format!("{index}{}", job.line));
            labels.push(job.label.clone());
        }
    }
    if !lines.is_empty() {
        all.push((groups, lines, labels));
    }
    all
}

/// Copies the files of jobs into a cluster's directory, unless a cluster has them already, and adds
/// them to the jobs' requirements.
async fn upload(
    attachment: &Attachment,
    mut jobs: Vec<JobRequest>,
) -> Result<Vec<JobRequest>, Failed> {
    if jobs.iter().all(|job| job.encoded.uploads.is_empty()) {
        return Ok(jobs);
    }
    let grid = attachment.scheduler().send(GetFiles {}).deadline(REQUEST_TIMEOUT).await?;
    let mut done = BTreeSet::new();
    for job in &mut jobs {
        for Upload { path, name } in std::mem::take(&mut job.encoded.uploads) {
            for component in &mut job.need.components {
                component.files.push(name.clone());
            }
            if !done.insert(name.clone()) || grid.files.iter().any(|file| file.name == name) {
                continue;
            }
            let may_be = |cluster: &ClusterId| {
                let clusters = job.need.components.iter().map(|one| &one.clusters);
                clusters.clone().any(|set| set.is_empty() || set.contains(cluster))
            };
            let found = grid.servers.keys().find(|cluster| may_be(cluster));
            let Some(cluster) = found.or_else(|| grid.servers.keys().next()) else {
                return Err(Failed::usage(format!(
                    "--input {}: no cluster of the grid keeps files: set `files` in a [[cluster]]",
                    path.display()
                )));
            };
            let server = inputs::server(attachment, &grid, cluster)?;
            let entry = inputs::summed(&path, &name).await?;
            inputs::put(&server, &path, &entry, &mut Talk::new(true)).await?;
        }
    }
    Ok(jobs)
}

/// Plans where jobs would start now, each alone.
///
/// # Errors
/// No grid is up, or its head does not answer.
pub async fn plan(
    file: &Path,
    config: &GridConfig,
    jobs: Vec<JobRequest>,
) -> Result<Vec<JobPlan>, Failed> {
    let attachment = attach(file, config).await?;
    let scheduler = attachment.scheduler();
    let planned = async {
        let mut plans = Vec::new();
        for JobRequest { line, need, .. } in jobs {
            plans.push((line, scheduler.send(PlanJob { need }).deadline(REQUEST_TIMEOUT).await?));
        }
        Ok(plans)
    };
    let plans = planned.await;
    attachment.endpoint.net.close("submitted").await;
    plans
}

/// The plan of a job with its command line, or the reason why it has no place.
pub type JobPlan = (String, Result<PlacementPlan, PlanError>);

/// A connection to a grid for questions about its jobs.
pub struct JobClient {
    attachment: Attachment,
    archive: Remote<JobArchive>,
    scheduler: Remote<Scheduler>,
}

impl JobClient {
    /// Connects to the grid of a config file.
    ///
    /// # Errors
    /// No grid is up.
    pub async fn attach(file: &Path) -> Result<Self, Failed> {
        let attachment = attach_by(file).await?;
        let archive = attachment.endpoint.hub.remote(&attachment.head, DESK);
        let scheduler = attachment.scheduler();
        Ok(Self { attachment, archive, scheduler })
    }

    /// The state of a job.
    ///
    /// # Errors
    /// The grid does not know it.
    pub async fn job_info(&self, job: JobId, lines: usize) -> Result<JobInfo, Failed> {
        let job_info = self.find(job, lines, false).await?;
        if job_info.record.is_none() && job_info.detail.is_none() {
            return Err(Failed::usage(format!("the grid has no {job}: `job list` shows its jobs")));
        }
        Ok(job_info)
    }

    /// Returns the state of a job. A former job without a record and without scheduler state has
    /// ended.
    async fn find(&self, job: JobId, lines: usize, result: bool) -> Result<JobInfo, Failed> {
        let ask = ReadJob { job, lines, result };
        let record = self.patiently(|| self.archive.send(ask).deadline(REQUEST_TIMEOUT)).await?;
        let detail = || self.scheduler.send(GetJob { job }).deadline(REQUEST_TIMEOUT);
        let detail = self.patiently(detail).await;
        // The scheduler has forgotten an ended job, and knows its owner no more.
        let is_forgotten = |error: &RemoteError| error.refusal() == Some(Refusal::NoJob);
        let detail = match detail {
            Err(error) if is_forgotten(&error) => None,
            detail => detail?,
        };
        Ok(JobInfo { job, record, detail })
    }

    /// Asks the head. While a second one may take over, a lost question is repeated.
    async fn patiently<M: RemoteMessage>(
        &self,
        ask: impl Fn() -> RemoteRequest<M>,
    ) -> Result<M::Result, RemoteError> {
        let until = Instant::now() + TAKEOVER_TIMEOUT;
        loop {
            match ask().await {
                Err(error)
                    if self.attachment.has_second_head
                        && is_of_lost_head(&error)
                        && Instant::now() < until =>
                {
                    sleep(POLL_INTERVAL).await;
                }
                answer => return answer,
            }
        }
    }

    /// Closes the connection to the grid.
    pub async fn close(self) {
        self.attachment.endpoint.net.close("answered").await;
    }

    /// The jobs that have not ended, and the `last` ended ones; all ended ones without a number.
    ///
    /// # Errors
    /// The head does not answer.
    pub async fn list(&self, last: Option<usize>) -> Result<JobList, Failed> {
        // One more than is shown, to detect that there are more.
        let ended = last.map(|last| last.saturating_add(1));
        let ask = ListJobs { ended, ..ListJobs::default() };
        let jobs = self.archive.send(ask).deadline(REQUEST_TIMEOUT).await?;
        let (entries, has_more) = match last {
            Some(last) => last_ended(jobs, last),
            None => (jobs, false),
        };
        let status = self.scheduler.send(GetStatus {}).deadline(REQUEST_TIMEOUT).await?;
        Ok(JobList { entries, live: status.jobs, has_more })
    }

    /// Removes ended jobs and their files.
    ///
    /// # Errors
    /// The head does not answer.
    pub async fn purge(&self, selection: Selection) -> Result<Purged, Failed> {
        let call = self.archive.send(PurgeJobs { selection, of: None });
        Ok(call.deadline(PURGE_TIMEOUT).await?)
    }

    /// Changes the size of a running job.
    ///
    /// # Errors
    /// The job does not run, or its bounds exclude the size.
    pub async fn resize(&self, job: JobId, by: Resize) -> Result<ResizeAck, Failed> {
        let call = self.scheduler.send(ResizeJob { job, by });
        let error = match call.deadline(REQUEST_TIMEOUT).await? {
            Ok(done) => return Ok(done),
            Err(error) => error,
        };
        let exit = match &error {
            ResizeError::Bounds { .. } => Exit::NotPlaced,
            ResizeError::NotRunning { .. } => {
                return Err(not_resizable(&self.job_info(job, 0).await?));
            }
            _ => Exit::Usage,
        };
        Err(Failed::new(exit, error))
    }

    /// Cancels a job and waits for its end. Returns its state.
    ///
    /// # Errors
    /// The job has ended already, ends otherwise, or does not end in time.
    pub async fn cancel(&self, job: JobId) -> Result<&'static str, Failed> {
        let known = match self.job_info(job, 0).await {
            Ok(job_info) if job_info.has_ended() => {
                let state = job_info.state();
                return Err(Failed::failure(format!("{job} has ended already: it is {state}")));
            }
            Err(failed) if failed.exit != Exit::Auth => return Err(failed),
            known => known,
        };
        // Also after a refused question, so that the audit log has a refusal of this command.
        let order = || {
            let reason = "cancelled by `job cancel`".to_owned();
            self.scheduler.send(CancelJob { job, reason }).deadline(REQUEST_TIMEOUT)
        };
        let cancelled = self.patiently(order).await;
        let job_info = known?;
        cancelled?;
        let wait = self.ended(job_info, Some(CANCEL_TIMEOUT), "ends without further action");
        let state = wait.await?.state();
        if !matches!(state, "cancelled" | "over") {
            let text = format!("{job} ended before it could be cancelled: it is {state}");
            return Err(Failed::failure(text));
        }
        Ok(state)
    }

    /// The state of a job with its result; with `wait`, once it has ended.
    ///
    /// # Errors
    /// The grid does not know the job, or it does not end in time.
    pub async fn with_result(
        &self,
        job: JobId,
        wait: bool,
        timeout: Option<Duration>,
    ) -> Result<JobInfo, Failed> {
        let mut job_info = self.job_info(job, 0).await?;
        if wait {
            job_info = self.ended(job_info, timeout, "continues; `job cancel` ends it").await?;
        }
        if job_info.has_ended() { self.find(job, 0, true).await } else { Ok(job_info) }
    }

    /// The state of a job with the last lines of its output; all without a number.
    ///
    /// # Errors
    /// The grid does not know the job, or the job was not submitted by `job submit`.
    pub async fn logs(&self, job: JobId, lines: Option<usize>) -> Result<JobRecord, Failed> {
        let job_info = self.job_info(job, lines.unwrap_or(ALL_LINES)).await?;
        job_info.record.ok_or_else(|| not_submitted(job))
    }

    /// A part of a job's output.
    ///
    /// # Errors
    /// The grid does not know the job, it was not submitted by `job submit`, or the file cannot be
    /// read.
    pub async fn output(
        &self,
        job: JobId,
        file: OutputFile,
        offset: u64,
    ) -> Result<OutputChunk, Failed> {
        let ask = ReadOutput { job, file, offset };
        let chunk = self.archive.send(ask).deadline(REQUEST_TIMEOUT).await?;
        let Some(chunk) = chunk else {
            self.job_info(job, 0).await?;
            return Err(not_submitted(job));
        };
        match &chunk.unreadable {
            Some(why) => Err(Failed::failure(format!("the output of {job} cannot be read: {why}"))),
            None => Ok(chunk),
        }
    }

    /// Passes a job's output to `print`, from its last `lines` on or from its start. With `follow`,
    /// until the job has ended.
    ///
    /// # Errors
    /// As for [`JobClient::output`], a signal, or the error of `print`.
    pub async fn read_output(
        &self,
        job: JobId,
        file: OutputFile,
        lines: Option<usize>,
        follow: bool,
        mut print: impl FnMut(&[u8]) -> Result<(), Failed>,
    ) -> Result<(), Failed> {
        let mut signals = Signals::take()?;
        let mut offset = 0;
        if let Some(lines) = lines {
            let length = self.output(job, file, u64::MAX).await?.length;
            let start = length.saturating_sub(CHUNK_MAX as u64);
            let chunk = self.output(job, file, start).await?;
            let end = &chunk.bytes[..];
            offset = start + (end.len() - last_lines(end, lines).len()) as u64;
        }
        loop {
            let chunk = self.output(job, file, offset).await?;
            if !chunk.bytes.is_empty() {
                print(&chunk.bytes)?;
                offset += chunk.bytes.len() as u64;
                continue;
            }
            if !follow || chunk.has_ended {
                return Ok(());
            }
            tokio::select! {
                biased;
                exit = signals.next() => {
                    return Err(Failed::new(exit, format!("{}: {job} continues", word(exit))));
                }
                () = sleep(POLL_INTERVAL) => {}
            }
        }
    }

    /// Waits for a job's end. `if_aborted` describes the job's state if the wait ends early.
    async fn ended(
        &self,
        mut job_info: JobInfo,
        limit: Option<Duration>,
        if_aborted: &str,
    ) -> Result<JobInfo, Failed> {
        let mut signals = Signals::take()?;
        let (began, job) = (Instant::now(), job_info.job);
        while !job_info.has_ended() {
            if let Some(limit) = limit.filter(|limit| began.elapsed() >= *limit) {
                let limit = seconds(limit.as_secs_f64());
                let text = format!("{job} has not ended after {limit}: it {if_aborted}");
                return Err(Failed::new(Exit::Timeout, text));
            }
            tokio::select! {
                biased;
                exit = signals.next() => {
                    return Err(Failed::new(exit, format!("{}: {job} {if_aborted}", word(exit))));
                }
                () = sleep(POLL_INTERVAL) => {}
            }
            job_info = self.find(job, 0, false).await?;
        }
        Ok(job_info)
    }
}

/// The last lines of a text.
fn last_lines(text: &[u8], lines: usize) -> &[u8] {
    let body = text.strip_suffix(b"\n").unwrap_or(text);
    let ends = body.iter().enumerate().rev().filter(|(_, byte)| **byte == b'\n');
    match lines.checked_sub(1) {
        None => &[],
        Some(before) => ends.map(|(at, _)| &text[at + 1..]).nth(before).unwrap_or(text),
    }
}

/// Adds to a failed submission how many jobs were submitted before it.
pub fn after_some_submitted(failed: Failed, line: &str, before: usize, all: usize) -> Failed {
    if all == 1 {
        return failed;
    }
    let message = format!("{before} of {all} jobs were submitted; then {line}: {}", failed.message);
    Failed { message, ..failed }
}

/// Fails if any of these plans found no place.
pub fn check_plans(plans: &[JobPlan]) -> Result<(), Failed> {
    let failures = || plans.iter().filter_map(|(line, plan)| Some((line, plan.as_ref().err()?)));
    let Some((_, first)) = failures().next() else { return Ok(()) };
    if plans.len() == 1 {
        return Err(Failed::new(Exit::NotPlaced, first));
    }
    let count = failures().count();
    let mut text = format!("{count} of {} jobs cannot start now:", plans.len());
    for (line, error) in failures().take(FAILURES_MAX) {
        let _ = write!(text, "\n  {line}: {error}");
    }
    if count > FAILURES_MAX {
        let _ = write!(text, "\n  and {} more", count - FAILURES_MAX);
    }
    Err(Failed::new(Exit::NotPlaced, text))
}

/// The jobs without those that ended before the last `count`, and whether there are any such jobs.
pub fn last_ended(jobs: Vec<ArchiveEntry>, count: usize) -> (Vec<ArchiveEntry>, bool) {
    let mut ended: Vec<(u64, JobId)> = jobs
        .iter()
        .filter(|entry| entry.ended.is_some())
        .map(|entry| (entry.ended_unix_s.unwrap_or(entry.submitted_unix_s), entry.job))
        .collect();
    ended.sort_unstable();
    let hidden: BTreeSet<JobId> = ended.iter().rev().skip(count).map(|(_, job)| *job).collect();
    let shown = jobs.into_iter().filter(|entry| !hidden.contains(&entry.job)).collect();
    (shown, !hidden.is_empty())
}

/// The failure of a purge that did not remove all named jobs.
pub fn not_purged(purged: &Purged) -> Option<Failed> {
    let Purged { running, unknown, failed, .. } = purged;
    if let Some(job) = unknown.first() {
        let text = format!("the grid has no {job}: `job list --all` shows its jobs");
        return Some(Failed::usage(text));
    }
    if let Some(job) = running.first() {
        let text = format!("{job} has not ended: end it first with `job cancel`");
        return Some(Failed::failure(text));
    }
    let (job, why) = failed.first_key_value()?;
    Some(Failed::failure(format!("{job} cannot be removed: {why}")))
}

/// The failure to resize a job that does not run.
pub fn not_resizable(job_info: &JobInfo) -> Failed {
    let (job, state) = (job_info.job, job_info.state());
    Failed::failure(if job_info.has_ended() {
        format!("{job} has ended: it is {state}")
    } else {
        let why = job_info.why().map_or_else(String::new, |why| format!(" ({why})"));
        format!("{job} is {state}{why}: its size can be changed when it runs")
    })
}

fn not_submitted(job: JobId) -> Failed {
    let text = format!(
        "{job} was not submitted by `job submit`: only the client that ran it has \
    its result"
    );
    Failed::usage(text)
}
