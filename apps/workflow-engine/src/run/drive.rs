//! Executes the actions of a run's [`Flow`] on a grid.
//!
//! It must not decide which task starts where.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;
use std::time::Duration;

use springtide_actors::client::JobUpdate;
use springtide_actors::files::FetchResult;
use springtide_actors::job::{JobEndReport, JobError, JobParams, NoteKind, coordinator_name};
use springtide_actors::policy::Mode;
use springtide_actors::policy::provisioning::seconds;
use springtide_actors::reservation::ReservationId;
use springtide_actors::scheduler::manager::{JobRequirements, Kind};
use springtide_actors::scheduler::{
    CancelClientJobs, CancelJob, GetStatus, GridStatus, JobGrant, JobState, JobStatus, Scheduler,
    Submit, SubmitError,
};
use springtide_cli::exit::{Exit, Failed};
use springtide_cli::outdir::make_dir;
use springtide_cli::talk::Talk;
use springtide_runtime::id::{ClusterId, JobId, NodeId};
use springtide_runtime::pilot::{
    PilotOrder, PilotReport, PilotSpec, TaskEnd, TaskRecord, TaskUsage, decode_reports,
};
use springtide_runtime::remote::{Remote, RemoteError};
use springtide_runtime::work::{Job as _, OutputStream, encode_job};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::directory::{RunDirectory, TaskName, log_path};
use super::external_inputs::ExternalInput;
use super::flow::{Flow, FlowAction, FlowEvent};
use super::journal::JournalEntry;
use super::pilot_job::{WorkflowPilot, send_orders};
use super::pilots::{PilotId, PilotNode, PlacedTask, WantedNode};
use super::reserve::Reserver;
use super::spec::RunSpec;
use super::staging::{COPIES_MAX, COPY_INTERVAL, Staging, path_below, unpack_directory};
use super::table::TaskLimits;
use super::{Prepared, table::TaskState};
use crate::shown;
use springtide_operations::agree::now;
use springtide_operations::attach::Attachment;
use springtide_operations::inputs::{fetch, put};
use springtide_operations::netconf;

/// Timeout of an answer that takes no work.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// A pilot or job may wait this long for its nodes.
const QUEUE_TIMEOUT: Duration = Duration::from_secs(30 * 24 * 3600);
/// The time in which cancelled jobs must end.
const CANCEL_TIMEOUT: Duration = Duration::from_secs(10);
/// The interval at which the head is asked which jobs it knows.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);
/// The longest time for which the head may be silent.
const SILENCE_MAX: Duration = Duration::from_secs(90);
/// The interval at which the display is updated.
const DISPLAY_INTERVAL: Duration = Duration::from_millis(200);
/// The time after which a pilot without tasks and orders ends by itself.
const PILOT_IDLE_LIMIT: Duration = Duration::from_secs(120);
/// The most bytes of a log's end in a message.
const LOG_END_MAX: usize = 2000;
/// The most running tasks that the display names.
const SHOWN_MAX: usize = 3;
/// The most tasks that a message names, besides one more.
const NAMED_MAX: usize = 5;

/// The part of a run that a job of the grid executes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum JobRole {
    Pilot(PilotId),
    Task(u64),
}

/// The answer to the submission of a job.
type Submitted = (JobRole, Result<Result<JobGrant, SubmitError>, RemoteError>);

/// What a task of this process reports to the driver.
enum DriveEvent {
    Submitted(Submitted),
    /// The inputs of an attempt are in its cluster, with the transfers that brought them.
    Staged {
        number: u64,
        cluster: ClusterId,
        result: Result<Vec<(usize, FetchResult)>, String>,
    },
    /// Orders do not reach a pilot.
    PilotUnreachable {
        pilot: PilotId,
        reason: String,
    },
    /// The head's status, if it answered.
    Status(Option<Box<GridStatus>>),
}

/// A pilot whose job runs.
struct PilotLink {
    job: JobId,
    orders: mpsc::UnboundedSender<PilotOrder>,
}

/// A run on a grid.
pub struct Drive<'a> {
    prepared: &'a Prepared,
    spec: &'a RunSpec,
    attachment: &'a mut Attachment,
    scheduler: Remote<Scheduler>,
    directory: &'a mut RunDirectory,
    staging: Rc<Staging>,
    flow: Flow,
    reserver: Reserver,
    roles: BTreeMap<JobId, JobRole>,
    /// Updates of jobs whose submission is not answered yet.
    early: BTreeMap<JobId, Vec<JobUpdate>>,
    links: BTreeMap<PilotId, PilotLink>,
    /// Pilots that were submitted and are not needed any more.
    unneeded: BTreeSet<PilotId>,
    events: (mpsc::UnboundedSender<DriveEvent>, mpsc::UnboundedReceiver<DriveEvent>),
    /// Jobs that the head did not know the last time.
    unknown: BTreeSet<JobId>,
    silent_since: Option<Instant>,
    /// The node of each task's last attempt.
    nodes: BTreeMap<usize, NodeId>,
    talk: Talk,
    /// When the display was last updated.
    displayed: Option<Instant>,
}

impl<'a> Drive<'a> {
    /// Creates a run that has not begun.
    pub fn new(
        prepared: &'a Prepared,
        spec: &'a RunSpec,
        attachment: &'a mut Attachment,
        directory: &'a mut RunDirectory,
        staging: Rc<Staging>,
        flow: Flow,
        talk: Talk,
    ) -> Self {
        let scheduler = attachment.scheduler();
        Self {
            prepared,
            spec,
            scheduler: scheduler.clone(),
            attachment,
            directory,
            staging,
            flow,
            reserver: Reserver::new(scheduler),
            roles: BTreeMap::new(),
            early: BTreeMap::new(),
            links: BTreeMap::new(),
            unneeded: BTreeSet::new(),
            events: mpsc::unbounded_channel(),
            unknown: BTreeSet::new(),
            silent_since: None,
            nodes: BTreeMap::new(),
            talk,
            displayed: None,
        }
    }

    /// The decisions so far.
    pub fn flow(&self) -> &Flow {
        &self.flow
    }

    /// The reservations so far.
    pub fn reserver(&self) -> &Reserver {
        &self.reserver
    }

    /// Runs the tasks. Returns when nothing runs any more.
    ///
    /// # Errors
    /// The head is gone, no plan exists, or a file cannot be written.
    pub async fn run(&mut self) -> Result<(), Failed> {
        self.upload().await?;
        let check = self.check_jobs();
        let ran = self.run_tasks().await;
        check.abort();
        ran
    }

    async fn run_tasks(&mut self) -> Result<(), Failed> {
        let mut actions: VecDeque<FlowAction> = self.flow.handle(FlowEvent::Tick, now()).into();
        loop {
            while let Some(action) = actions.pop_front() {
                match action {
                    FlowAction::Over { reason: None } => return Ok(()),
                    FlowAction::Over { reason: Some(reason) } => {
                        return Err(Failed::failure(reason));
                    }
                    FlowAction::Plan { tasks, reason } => {
                        let event = self.plan(tasks, &reason).await?;
                        actions.extend(self.flow.handle(event, now()));
                    }
                    action => self.execute(action)?,
                }
            }
            for event in self.next_events().await? {
                actions.extend(self.flow.handle(event, now()));
            }
        }
    }

    /// Reserves slots for tasks.
    ///
    /// # Errors
    /// The first plan fails, or the journal cannot be written.
    async fn plan(&mut self, tasks: BTreeSet<usize>, reason: &str) -> Result<FlowEvent, Failed> {
        let is_first = self.flow.plans() == 1;
        if !is_first {
            let count = tasks.len();
            self.talk.say(&format!("{count} tasks are planned again: {reason}"));
        }
        self.talk.wait_for("reserving slots");
        let (prepared, spec, staging) = (self.prepared, self.spec, self.staging.clone());
        match self.reserver.plan(prepared, spec, &staging, &tasks, reason).await {
            Ok((agreed, entry, text)) => {
                self.talk.say(&text);
                self.directory.journal.add(&entry)?;
                Ok(FlowEvent::Agreed(agreed))
            }
            Err(failed) if !is_first => Ok(FlowEvent::PlanFailed { tasks, reason: failed.message }),
            Err(failed) => Err(failed),
        }
    }

    fn execute(&mut self, action: FlowAction) -> Result<(), Failed> {
        match action {
            FlowAction::SubmitPilot { pilot, wanted } => self.submit_pilot(pilot, wanted)?,
            FlowAction::Say(text) => self.talk.say(&text),
            FlowAction::FinishPilot { pilot } => match self.links.get(&pilot) {
                Some(link) => drop(link.orders.send(PilotOrder::Finish)),
                None => drop(self.unneeded.insert(pilot)),
            },
            FlowAction::Stage { pilot, number, files, cluster } => {
                self.stage((pilot, number), &files, cluster);
            }
            FlowAction::Run { pilot, number, placed, limits } => {
                self.run_task(pilot, number, placed, limits);
            }
            FlowAction::SubmitJob { number, task, cluster, reservation } => {
                self.submit_job(number, task, (cluster, reservation));
            }
            FlowAction::Completed { placed, cluster, usage } => {
                self.record_completed(placed, cluster, usage)?;
            }
            FlowAction::Failed { placed, reason, usage, again } => {
                self.record_failed(placed, &reason, usage, again)?;
            }
            FlowAction::Plan { .. } | FlowAction::Over { .. } => {}
        }
        Ok(())
    }

    // --- waiting ---

    /// Waits until something happens.
    async fn next_events(&mut self) -> Result<Vec<FlowEvent>, Failed> {
        self.display();
        let at = now();
        let due = self.flow.due(at).map(|due| Instant::now() + Duration::from_micros(due - at));
        let due = due.unwrap_or_else(|| Instant::now() + Duration::from_secs(3600));
        loop {
            tokio::select! {
                biased;
                Some((job, update, _)) = self.attachment.news() => {
                    return self.job_update(job, update);
                }
                Some(event) = self.events.1.recv() => return self.drive_event(event),
                (reservation, reason) = self.reserver.lost() => {
                    return Ok(vec![FlowEvent::ReservationLost { reservation, reason }]);
                }
                () = sleep_until(due) => return Ok(vec![FlowEvent::Tick]),
                () = sleep(DISPLAY_INTERVAL) => self.talk.tick(),
            }
        }
    }

    /// Shows how many tasks are completed, what runs where, and an estimate.
    fn display(&mut self) {
        if self.displayed.is_some_and(|at| at.elapsed() < DISPLAY_INTERVAL) {
            return;
        }
        self.displayed = Some(Instant::now());
        let counts = self.flow.table().counts();
        let pilots = self.flow.pilots();
        let ready = pilots.iter().filter(|(_, pilot)| pilot.node.is_some()).count();
        let nodes = springtide_cli::format::plural(ready as u64, "node");
        let mut text = format!("{} run on {ready} {nodes}", counts.active);
        if ready == 0 && pilots.submitted() > 0 {
            text.push_str(", waiting for nodes");
        }
        let at = |(task, cluster): (usize, Option<&ClusterId>)| {
            let id = shown(&self.spec.steps[task].id);
            cluster.map_or(id.clone(), |cluster| format!("{id} in {cluster}"))
        };
        let mut running: Vec<String> = self.flow.running().take(SHOWN_MAX).map(at).collect();
        let others = self.flow.running().count() - running.len();
        if others > 0 {
            running.push(format!("{others} more"));
        }
        if !running.is_empty() {
            text.push_str(&format!(": {}", running.join(", ")));
        }
        if counts.failed > 0 {
            text.push_str(&format!("; {} failed", counts.failed));
        }
        // Tasks may run longer than their runtimes say.
        if let Some(left) = self.flow.remaining(now()).filter(|left| *left > 0) {
            let left = springtide_cli::format::seconds(seconds(left));
            text.push_str(&format!("; about {left} left"));
        }
        let total = self.flow.table().steps().len() as u64;
        self.talk.omit_estimate();
        self.talk.set_facts(&text);
        self.talk.progress(counts.completed as u64, total, "tasks");
    }

    fn drive_event(&mut self, event: DriveEvent) -> Result<Vec<FlowEvent>, Failed> {
        match event {
            DriveEvent::Submitted((role, answer)) => self.submitted(role, answer),
            DriveEvent::Staged { number, cluster, result } => {
                let result = match result {
                    Ok(transfers) => Ok(self.record_staged(number, &cluster, transfers)?),
                    Err(reason) => Err(reason),
                };
                Ok(vec![FlowEvent::Staged { number, result }])
            }
            DriveEvent::PilotUnreachable { pilot, reason } => Ok(self.abandon(pilot, &reason)),
            DriveEvent::Status(status) => self.status(status),
        }
    }

    /// An update of a job of this client.
    fn job_update(&mut self, job: JobId, update: JobUpdate) -> Result<Vec<FlowEvent>, Failed> {
        let Some(&role) = self.roles.get(&job) else {
            self.early.entry(job).or_default().push(update);
            return Ok(Vec::new());
        };
        match (role, update) {
            (JobRole::Pilot(pilot), JobUpdate::Note(note)) => match *note {
                NoteKind::Message { body } => self.pilot_reports(pilot, &body),
                _ => Ok(Vec::new()),
            },
            (JobRole::Pilot(pilot), JobUpdate::Ended(ended)) => {
                self.forget(job);
                let reason = match ended.outcome {
                    Ok(_) => "its node leaves".to_owned(),
                    Err(error) => error.to_string(),
                };
                Ok(vec![FlowEvent::PilotEnded { pilot, reason, impossible: false }])
            }
            (JobRole::Task(_), JobUpdate::Note(_)) => Ok(Vec::new()),
            (JobRole::Task(number), JobUpdate::Ended(ended)) => {
                self.forget(job);
                Ok(vec![self.job_ended(number, *ended)])
            }
        }
    }

    fn forget(&mut self, job: JobId) {
        if let Some(JobRole::Pilot(pilot)) = self.roles.remove(&job) {
            self.links.remove(&pilot);
        }
    }

    fn pilot_reports(&mut self, pilot: PilotId, body: &[u8]) -> Result<Vec<FlowEvent>, Failed> {
        let reports = decode_reports(body)
            .map_err(|error| Failed::failure(format!("a pilot's report is damaged: {error}")))?;
        let (mut events, mut log_bytes) = (Vec::new(), 0);
        for report in reports {
            match report {
                PilotReport::Ready { .. } if self.is_ready(pilot) => {
                    // The job has started again on another node, where its tasks are not known.
                    return Ok(self.abandon(pilot, "its node was lost"));
                }
                PilotReport::Ready { node, cluster, host, processors } => {
                    let node = PilotNode { node, cluster, host, processors };
                    events.push(FlowEvent::PilotReady { pilot, node });
                }
                PilotReport::Started { number } => {
                    let node = self.flow.pilots().get(pilot).and_then(|it| it.node.clone());
                    let place = node.map(|node| (node.cluster, node.node)).unzip();
                    self.record_started(number, place)?;
                    events.push(FlowEvent::Started { number });
                }
                PilotReport::Log { number, stream, bytes } => {
                    log_bytes += bytes.len() as u64;
                    if let Some(placed) = self.flow.attempt(number) {
                        let id = self.spec.steps[placed.task].id.as_str();
                        let task = TaskName { task: placed.task, id };
                        self.directory.add_log(task, placed.attempt, stream, &bytes)?;
                    }
                }
                PilotReport::Ended { number, end, usage } => {
                    events.push(FlowEvent::Ended { number, end, usage, cluster: None });
                }
            }
        }
        if log_bytes > 0
            && let Some(link) = self.links.get(&pilot)
        {
            // The pilot may have ended.
            let _ = link.orders.send(PilotOrder::AcknowledgeLogs { bytes: log_bytes });
        }
        Ok(events)
    }

    fn is_ready(&self, pilot: PilotId) -> bool {
        self.flow.pilots().get(pilot).is_some_and(|pilot| pilot.node.is_some())
    }

    /// Ends the job of a pilot that is of no use any more.
    fn abandon(&mut self, pilot: PilotId, reason: &str) -> Vec<FlowEvent> {
        let Some(link) = self.links.get(&pilot) else { return Vec::new() };
        let job = link.job;
        self.cancel(job, reason);
        self.forget(job);
        vec![FlowEvent::PilotEnded { pilot, reason: reason.to_owned(), impossible: false }]
    }

    /// Records the start of an attempt, and its node.
    fn record_started(
        &mut self,
        number: u64,
        (cluster, node): (Option<ClusterId>, Option<NodeId>),
    ) -> Result<(), Failed> {
        let Some(placed) = self.flow.attempt(number) else { return Ok(()) };
        self.nodes.extend(node.clone().map(|node| (placed.task, node)));
        let task = self.spec.steps[placed.task].id.clone();
        let (at_s, attempt) = (seconds(now()), placed.attempt);
        self.directory.journal.add(&JournalEntry::Started { at_s, task, attempt, cluster, node })
    }

    // --- the head ---

    /// Asks the head repeatedly which jobs it knows: a new head does not report the ends of jobs
    /// that it does not know.
    fn check_jobs(&self) -> tokio::task::JoinHandle<()> {
        let (scheduler, events) = (self.scheduler.clone(), self.events.0.clone());
        tokio::task::spawn_local(async move {
            loop {
                sleep(CHECK_INTERVAL).await;
                let status = scheduler.send(GetStatus {}).deadline(REQUEST_TIMEOUT).await.ok();
                if events.send(DriveEvent::Status(status.map(Box::new))).is_err() {
                    return;
                }
            }
        })
    }

    /// The head's status. A job that it does not know twice in a row has ended.
    fn status(&mut self, status: Option<Box<GridStatus>>) -> Result<Vec<FlowEvent>, Failed> {
        let Some(status) = status else {
            let since = *self.silent_since.get_or_insert_with(Instant::now);
            if since.elapsed() >= SILENCE_MAX {
                return Err(Failed::failure(format!(
                    "the grid's head has not answered for {SILENCE_MAX:?}: start it again, and \
                     continue the run with the same command"
                )));
            }
            return Ok(Vec::new());
        };
        self.silent_since = None;
        let known: BTreeSet<JobId> = status.jobs.iter().map(|job| job.job).collect();
        let missing: BTreeSet<JobId> =
            self.roles.keys().filter(|job| !known.contains(job)).copied().collect();
        let over: Vec<JobId> = missing.intersection(&self.unknown).copied().collect();
        self.unknown = missing;
        let mut events = Vec::new();
        for job in over {
            let reason = format!("the head does not know {job} any more");
            let role = self.roles.get(&job).copied();
            self.forget(job);
            events.extend(role.map(|role| self.lost(role, reason)));
        }
        // A pilot that was ready and waits for a node again has lost its tasks.
        let waits = |job: &&JobStatus| matches!(job.state, JobState::Queued | JobState::Assigning);
        let again: Vec<PilotId> = status
            .jobs
            .iter()
            .filter(waits)
            .filter_map(|job| match self.roles.get(&job.job) {
                Some(JobRole::Pilot(pilot)) if self.is_ready(*pilot) => Some(*pilot),
                _ => None,
            })
            .collect();
        for pilot in again {
            events.extend(self.abandon(pilot, "its node was lost"));
        }
        // Pilots of this run wait without a number, and are as many as the table says.
        let waiting = status.jobs.iter().filter(|job| job.state == JobState::Queued).count();
        let others = waiting > self.flow.pilots().submitted();
        events.push(FlowEvent::OthersWait(others));
        Ok(events)
    }

    fn lost(&self, role: JobRole, reason: String) -> FlowEvent {
        match role {
            JobRole::Pilot(pilot) => FlowEvent::PilotEnded { pilot, reason, impossible: false },
            JobRole::Task(number) => FlowEvent::Ended {
                number,
                end: TaskEnd::Interrupted,
                usage: TaskUsage::default(),
                cluster: None,
            },
        }
    }

    // --- submissions ---

    fn submit(
        &self,
        role: JobRole,
        (name, body): (&'static str, bytes::Bytes),
        need: JobRequirements,
    ) {
        let mut params: JobParams = netconf::job_params(&self.prepared.config);
        params.mode = Mode::Static;
        params.min_processors = need.components[0].min.into();
        params.max_processors = Some(need.max[0].into());
        let submit = Submit {
            name: name.to_owned(),
            body,
            fingerprint: self.prepared.fingerprint,
            params,
            clusters: None,
            client: self.attachment.endpoint.net.contact(),
            program: std::env::current_exe().ok(),
            need: Some(need),
            principal: None,
            image: None,
        };
        let (scheduler, events) = (self.scheduler.clone(), self.events.0.clone());
        tokio::task::spawn_local(async move {
            let answer = scheduler.send(submit).deadline(QUEUE_TIMEOUT).await;
            // The run may be over.
            let _ = events.send(DriveEvent::Submitted((role, answer)));
        });
    }

    /// Requirements of processors in clusters with files, if the run has any.
    fn requirements(
        &self,
        processors: u32,
        (cluster, reservation): (Option<ClusterId>, Option<ReservationId>),
    ) -> JobRequirements {
        let mut need = JobRequirements::one(Kind::Rigid, processors, processors, processors);
        need.placement = self.prepared.config.scheduling.placement;
        need.components[0].clusters = match cluster {
            Some(cluster) => [cluster].into(),
            None if self.spec.has_files => self.staging.clusters(),
            None => BTreeSet::new(),
        };
        // It ends with the reservation, unless a task takes longer.
        need.expected_ms = reservation.and_then(|id| self.reserver.remaining_ms(id));
        // A reservation is a latest start.
        (need.reservation, need.starts_early) = (reservation, reservation.is_some());
        need
    }

    fn submit_pilot(&self, pilot: PilotId, wanted: WantedNode) -> Result<(), Failed> {
        let workflow = self.prepared.read.name();
        let job = WorkflowPilot { workflow, spec: PilotSpec { idle_limit: PILOT_IDLE_LIMIT } };
        let place = (wanted.cluster, wanted.reservation);
        let mut need = self.requirements(wanted.processors, place);
        need.node.processors = wanted.processors;
        need.node.memory = wanted.memory_bytes;
        if wanted.gpus > 0 {
            need.node.devices.insert("gpu".to_owned(), wanted.gpus);
        }
        self.submit(JobRole::Pilot(pilot), (WorkflowPilot::NAME, encode_job(job)?), need);
        Ok(())
    }

    fn submit_job(
        &self,
        number: u64,
        task: usize,
        place: (Option<ClusterId>, Option<ReservationId>),
    ) {
        let Some((name, body)) = self.spec.tasks[task].job.clone() else { return };
        let need = self.requirements(self.spec.steps[task].processors, place);
        self.submit(JobRole::Task(number), (name, body), need);
    }

    fn submitted(
        &mut self,
        role: JobRole,
        answer: Result<Result<JobGrant, SubmitError>, RemoteError>,
    ) -> Result<Vec<FlowEvent>, Failed> {
        let granted = match answer {
            Ok(Ok(granted)) => granted,
            Ok(Err(error)) => {
                let impossible = matches!(
                    error,
                    SubmitError::NotPlaced { .. }
                        | SubmitError::Program { .. }
                        | SubmitError::Shipping(_)
                );
                return Ok(vec![self.refused(role, error.to_string(), impossible)]);
            }
            Err(error) => return Ok(vec![self.refused(role, error.to_string(), false)]),
        };
        let job = granted.job;
        self.roles.insert(job, role);
        let mut events = Vec::new();
        match role {
            JobRole::Pilot(pilot) => {
                self.attachment.endpoint.net.learn(granted.coordinator.clone());
                let hub = &self.attachment.endpoint.hub;
                let coordinator = hub.remote(&granted.coordinator.node, &coordinator_name(job));
                let (orders, receiver) = mpsc::unbounded_channel();
                let tell = self.events.0.clone();
                tokio::task::spawn_local(async move {
                    if let Err(reason) = send_orders(coordinator, job, receiver).await {
                        // The run may be over.
                        let _ = tell.send(DriveEvent::PilotUnreachable { pilot, reason });
                    }
                });
                if self.unneeded.remove(&pilot) {
                    // The receiver was made above.
                    let _ = orders.send(PilotOrder::Finish);
                }
                self.links.insert(pilot, PilotLink { job, orders });
            }
            JobRole::Task(number) => {
                let first = granted.view.members.iter().next();
                let place = first.map(|(node, member)| (member.cluster.clone(), node.clone()));
                self.record_started(number, place.unzip())?;
                events.push(FlowEvent::Started { number });
            }
        }
        for update in self.early.remove(&job).unwrap_or_default() {
            events.extend(self.job_update(job, update)?);
        }
        Ok(events)
    }

    fn refused(&self, role: JobRole, reason: String, impossible: bool) -> FlowEvent {
        match role {
            JobRole::Pilot(pilot) => FlowEvent::PilotEnded { pilot, reason, impossible },
            JobRole::Task(number) => {
                let end = if impossible && self.prepared.args.best_effort {
                    TaskEnd::Failed { exit: None, reason }
                } else {
                    TaskEnd::Interrupted
                };
                FlowEvent::Ended { number, end, usage: TaskUsage::default(), cluster: None }
            }
        }
    }

    fn job_ended(&self, number: u64, ended: JobEndReport) -> FlowEvent {
        let usage = TaskUsage { wall_s: ended.report.wall_s, ..TaskUsage::default() };
        let end = match ended.outcome {
            Ok(_) => TaskEnd::Completed,
            Err(
                JobError::Start { .. } | JobError::NodeLost { .. } | JobError::Cancelled { .. },
            ) => TaskEnd::Interrupted,
            Err(JobError::Task(failure)) => {
                TaskEnd::Failed { exit: None, reason: format!("failed: {}", failure.message) }
            }
            Err(error) => TaskEnd::Failed { exit: None, reason: format!("failed: {error}") },
        };
        FlowEvent::Ended { number, end, usage, cluster: None }
    }

    fn cancel(&self, job: JobId, reason: &str) {
        let (scheduler, reason) = (self.scheduler.clone(), reason.to_owned());
        tokio::task::spawn_local(async move {
            let _ = scheduler.send(CancelJob { job, reason }).deadline(REQUEST_TIMEOUT).await;
        });
    }

    /// Cancels all jobs of this process. Those that are not reached end with its link.
    async fn cancel_all(&self, reason: String) {
        let client = self.attachment.endpoint.net.me().node.clone();
        let order = CancelClientJobs { client, reason };
        let _ = self.scheduler.send(order).deadline(REQUEST_TIMEOUT).await;
    }

    // --- tasks ---

    fn run_task(&self, pilot: PilotId, number: u64, placed: PlacedTask, limits: TaskLimits) {
        let run_task = &self.spec.tasks[placed.task];
        let mut task = run_task.task.clone();
        task.number = number;
        (task.time_limit, task.memory_bytes) = (limits.time, limits.memory_bytes);
        if !task.outputs.is_empty() {
            let content = serde_json::json!({ "task": self.spec.steps[placed.task].id });
            task.record = Some(TaskRecord {
                stored: run_task.record.clone(),
                content: content.to_string().into(),
            });
        }
        if let Some(link) = self.links.get(&pilot) {
            // A pilot that has ended interrupts its tasks.
            let _ = link.orders.send(PilotOrder::Run(Box::new(task)));
        }
    }

    fn stage(
        &self,
        (pilot, number): (PilotId, u64),
        files: &[(usize, Vec<ClusterId>)],
        cluster: ClusterId,
    ) {
        let named = |(file, clusters): &(usize, Vec<ClusterId>)| {
            (self.spec.stored[*file].clone(), clusters.clone())
        };
        let indices: Vec<usize> = files.iter().map(|(file, _)| *file).collect();
        let files: Vec<(String, Vec<ClusterId>)> = files.iter().map(named).collect();
        let (staging, events) = (self.staging.clone(), self.events.0.clone());
        // A pilot that has ended interrupts its tasks.
        let Some(job) = self.links.get(&pilot).map(|link| link.job) else { return };
        tokio::task::spawn_local(async move {
            let result = staging.bring(job, files, &cluster).await;
            let result = result.map(|transfers| indices.into_iter().zip(transfers).collect());
            // The run may be over.
            let _ = events.send(DriveEvent::Staged { number, cluster, result });
        });
    }

    /// Records the transfers of files that were not in the cluster yet.
    fn record_staged(
        &mut self,
        number: u64,
        cluster: &ClusterId,
        transfers: Vec<(usize, FetchResult)>,
    ) -> Result<(), Failed> {
        let Some(placed) = self.flow.attempt(number) else { return Ok(()) };
        for (file, transfer) in transfers {
            let Some(from) = transfer.from else { continue };
            self.directory.journal.add(&JournalEntry::Staged {
                at_s: seconds(now()),
                task: self.spec.steps[placed.task].id.clone(),
                file: self.prepared.read.workflow.files[file].name.clone(),
                from,
                cluster: cluster.clone(),
                bytes: transfer.bytes,
                seconds: transfer.seconds,
            })?;
        }
        Ok(())
    }

    fn record_completed(
        &mut self,
        placed: PlacedTask,
        cluster: Option<ClusterId>,
        usage: TaskUsage,
    ) -> Result<(), Failed> {
        let times = &self.flow.times()[placed.task];
        let at_s = seconds(times.end.unwrap_or_else(now));
        let start_s = times.start.map_or(at_s - usage.wall_s, seconds);
        let entry = JournalEntry::Completed {
            at_s,
            task: self.spec.steps[placed.task].id.clone(),
            key: self.spec.tasks[placed.task].key.clone(),
            attempt: placed.attempt,
            start_s,
            cluster,
            node: self.nodes.get(&placed.task).cloned(),
            wall_s: usage.wall_s,
            cpu_s: usage.cpu_s,
            memory_bytes: usage.memory_bytes,
        };
        self.directory.journal.add(&entry)?;
        // The file may replace one of an interrupted attempt.
        for file in &self.spec.step_files[placed.task].outputs {
            self.staging.forget_entry(&self.spec.stored[*file]);
        }
        if let Some(cache) = &mut self.directory.cache {
            cache.add(&entry)?;
        }
        Ok(())
    }

    fn record_failed(
        &mut self,
        placed: PlacedTask,
        reason: &str,
        usage: TaskUsage,
        again: bool,
    ) -> Result<(), Failed> {
        let id = self.spec.steps[placed.task].id.clone();
        let times = &self.flow.times()[placed.task];
        let at_s = seconds(now());
        let ran = usage.wall_s > 0.0;
        let entry = JournalEntry::Failed {
            at_s,
            task: id.clone(),
            attempt: placed.attempt,
            start_s: ran.then_some(at_s - usage.wall_s),
            cluster: times.cluster.clone(),
            reason: reason.to_owned(),
            again,
        };
        self.directory.journal.add(&entry)?;
        let next = if again { "; it is tried again" } else { "" };
        self.talk.say(&format!("task {id} {reason}{next}"));
        Ok(())
    }

    /// The end of the log of a task's last attempt, for a message.
    fn log_end(&self, task: usize) -> String {
        let attempt = self.flow.table().attempts(task);
        let task = TaskName { task, id: self.spec.steps[task].id.as_str() };
        for stream in [OutputStream::Stderr, OutputStream::Stdout] {
            let path = log_path(self.directory.path(), task, attempt, stream);
            let Ok(bytes) = std::fs::read(&path) else { continue };
            let end = &bytes[bytes.len().saturating_sub(LOG_END_MAX)..];
            let plain = |c: &char| !c.is_control() || *c == '\n';
            let text: String = String::from_utf8_lossy(end).chars().filter(plain).collect();
            if !text.trim().is_empty() {
                return format!("; the end of {}:\n{}\n", path.display(), text.trim_end());
            }
        }
        String::new()
    }

    // --- files ---

    /// Copies external inputs to the first cluster with a directory of files, unless a cluster has
    /// them.
    async fn upload(&mut self) -> Result<(), Failed> {
        let Some(cluster) = self.staging.clusters().into_iter().next() else { return Ok(()) };
        let Some(server) = self.staging.server(&cluster).cloned() else { return Ok(()) };
        for (&file, ExternalInput { path, entry }) in &self.prepared.external_inputs {
            let stored = &self.spec.stored[file];
            let mut entry = entry.clone();
            entry.name.clone_from(stored);
            self.staging.add_entry(entry.clone());
            if self.flow.locations(file).is_empty() {
                put(&server, path, &entry, &mut self.talk).await?;
                self.flow.add_location(file, cluster.clone());
            }
        }
        Ok(())
    }

    /// Copies results of completed tasks to their places.
    ///
    /// # Errors
    /// A file cannot be written, or a cluster does not answer.
    pub async fn fetch_results(&mut self) -> Result<(), Failed> {
        let Some(dir) = &self.prepared.args.fetch else { return Ok(()) };
        for &file in &self.spec.results {
            let name = &self.prepared.read.workflow.files[file].name;
            let writer = self.spec.writers[file];
            let is_written =
                writer.is_some_and(|task| *self.flow.table().state(task) == TaskState::Completed);
            if !is_written || self.prepared.fetched.contains(name) {
                continue;
            }
            let clusters: Vec<ClusterId> = self.flow.locations(file).iter().cloned().collect();
            let stored = &self.spec.stored[file];
            let server = clusters.iter().find_map(|cluster| self.staging.server(cluster)).cloned();
            let Some(server) = server else {
                return Err(Failed::failure(format!("{name}: no cluster has it")));
            };
            let path = path_below(dir, name);
            if let Some(parent) = path.parent() {
                make_dir(parent)?;
            }
            let is_directory = self.prepared.read.workflow.files[file].is_directory();
            let archive = self.directory.path().join(format!("result-{file}.tar"));
            let target = if is_directory { &archive } else { &path };
            let mut tries = 0;
            loop {
                let entry = self.staging.entry(stored, &clusters).await;
                let entry = entry.map_err(|reason| Failed::failure(format!("{name}: {reason}")))?;
                match fetch(&server, &entry, target, &mut self.talk).await {
                    Ok(_) => break,
                    Err(failed) if tries >= COPIES_MAX => return Err(failed),
                    // An attempt of a killed process may have replaced it meanwhile.
                    Err(_) => self.staging.forget_entry(stored),
                }
                tries += 1;
                sleep(COPY_INTERVAL).await;
            }
            if is_directory {
                unpack_directory(archive, &path).await?;
            }
            let (at_s, file) = (seconds(now()), name.clone());
            self.directory.journal.add(&JournalEntry::Fetched { at_s, file, path })?;
        }
        Ok(())
    }

    /// Ends what runs, and releases what is reserved.
    pub async fn leave(&mut self, failed: Option<&Failed>) {
        for link in self.links.values() {
            // Those that have ended need no order.
            let _ = link.orders.send(PilotOrder::Finish);
        }
        if let Some(failed) = failed {
            self.talk.wait_for("ending tasks");
            self.cancel_all(format!("its workflow has ended: {}", failed.message)).await;
        }
        let ended = async {
            while !self.roles.is_empty() {
                let Some((job, update, _)) = self.attachment.news().await else { return };
                if let JobUpdate::Ended(_) = update {
                    self.forget(job);
                }
            }
        };
        let _ = timeout(CANCEL_TIMEOUT, ended).await;
        if failed.is_none() && self.flow.pilots().submitted() > 0 {
            self.cancel_all("its workflow is complete".to_owned()).await;
        }
        self.reserver.release().await;
    }

    /// Removes the run's files from the clusters.
    pub async fn remove_files(&self) {
        let records = self.spec.tasks.iter().map(|task| task.record.clone());
        // Placeholders do not read external inputs, which have no stored names then.
        let files = self.spec.stored.iter().filter(|name| !name.is_empty()).cloned();
        let names: Vec<String> = files.chain(records).collect();
        self.staging.remove(&names).await;
    }

    /// Ends the display of progress.
    pub fn end_display(&mut self) {
        self.talk.done();
    }

    /// The end of the log of the first failed task, for the end of a message.
    pub fn failure_log(&self) -> Option<String> {
        let (failed, _) = self.flow.failures();
        failed.first().map(|(task, _)| self.log_end(*task))
    }

    /// The names of tasks, of which many are counted.
    fn names(&self, tasks: &[usize]) -> String {
        let named = if tasks.len() <= NAMED_MAX + 1 { tasks.len() } else { NAMED_MAX };
        let names = tasks.iter().take(named).map(|task| shown(&self.spec.steps[*task].id));
        let mut names: Vec<String> = names.collect();
        if named < tasks.len() {
            names.push(format!("{} more", tasks.len() - named));
        }
        match names.pop() {
            Some(last) if !names.is_empty() => format!("{} and {last}", names.join(", ")),
            last => last.unwrap_or_default(),
        }
    }

    /// The error of a run with failed tasks, if any failed.
    pub fn failure(&self) -> Option<Failed> {
        let (failed, skipped) = self.flow.failures();
        let (first, reason) = failed.first()?;
        let id = &self.spec.steps[*first].id;
        let mut text = format!("task {id} {reason}");
        if failed.len() > 1 {
            let others: Vec<usize> = failed.iter().skip(1).map(|(task, _)| *task).collect();
            text.push_str(&format!("; {} failed too", self.names(&others)));
        }
        if !skipped.is_empty() {
            let them = if failed.len() == 1 { "it" } else { "these" };
            let s = if skipped.len() == 1 { "s" } else { "" };
            let names = self.names(&skipped);
            text.push_str(&format!("; {names} depend{s} on {them} and did not run"));
        }
        Some(Failed::new(Exit::Failure, text))
    }
}
