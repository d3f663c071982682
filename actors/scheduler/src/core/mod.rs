//! The scheduler's decisions: which nodes a job gets, and the consequences of failures.
//!
//! A state machine without I/O and without a clock: events and the time in, actions out. It must
//! not depend on how actions are executed. The driver returns the answer of each action that has
//! one, also a failure, and feeds [`SchedulerEvent::Tick`] at [`SchedulerCore::due`].
//!
//! A job waits in the queue until all nodes of its submission are free. While it runs, its
//! coordinator requests and releases nodes. At most one job holds a node, from the node's selection
//! until it is reported free. The coordinator reports nodes that left in order; the workers report
//! all others themselves.

mod audit;
mod capacity;
mod choose;
mod claims;
mod coordinator_search;
mod dependencies;
mod drain;
mod event;
mod files;
mod history;
mod hosts;
mod jobs;
mod managed;
mod node;
mod owner;
mod pool;
mod programs;
mod queue;
mod recover;
mod request;
mod reserve;
mod resize;
mod sites;
mod speeds;
mod standing;
mod starts;
mod stubs;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use springtide_base::id::{ClusterId, Epoch, Incarnation, JobId, NodeId};
use springtide_base::processors::Processors;
use springtide_net::membership::View;
use springtide_net::net::Contact;
use tokio::time::Instant;

pub use self::choose::{FreeNode, NodeExclusion, SelectionInput, SelectionResult, choose};
pub use self::event::{
    ManagerQuestion, NumberedSubmission, RecoveredJob, SchedulerAction, SchedulerEvent,
    StartRecord, TakeOverError,
};
pub use self::history::HistoryLine;
pub use self::reserve::AgreementStep;

use self::coordinator_search::CoordinatorSearch;
use self::drain::PendingDrain;
use self::files::InputFiles;
use self::managed::ManagerState;
use self::node::{PoolNode, ProgramKey, crowded};
use self::pool::ClusterPool;
use self::programs::ProgramTransfers;
use self::queue::QueuedJob;
use self::recover::ReturningJob;
use self::request::{OpenGrant, OpenRequest, Subscription};
use self::speeds::{Speeds, Unit};
use self::starts::Start;
use super::manager::{GridOutlook, JobRequirements, ManagerSettings};
use crate::admit::Principal;
use crate::audit::{Auditor, Shortfall};
use crate::job::RootProgress;
use crate::poison::PoisonDetector;

/// Time limit after which no node works for an ended job, and no job outlives its coordinator.
///
/// A node that is left at work leaves its job in this time, and a job whose coordinator has
/// vanished ends. The time covers an audit, an unanswered release, and the node's restart.
pub const RECONCILED_WITHIN: Duration = Duration::from_secs(100);
use crate::scheduler::{
    GridStatus, JobState, JobStatus, SiteReport, SiteStatus, StubDelay, Submit,
};

/// A job that has nodes.
#[derive(Debug)]
struct ActiveJob {
    name: String,
    state: JobState,
    client: Contact,
    view: View,
    epoch: Epoch,
    /// Node that the epoch was issued to.
    issued_to: Option<NodeId>,
    principal: Option<Principal>,
    program: ProgramKey,
    /// Minimum of processors; of nodes, if the manager manages it.
    least: Processors,
    /// Maximum of processors.
    max: Option<Processors>,
    /// Nodes that belong to the job.
    members: BTreeSet<NodeId>,
    /// Members that were granted while the job ran. Only its coordinator knows whether they joined.
    granted: BTreeSet<NodeId>,
    /// Members that have not answered the assignment.
    unanswered: BTreeSet<NodeId>,
    /// Nodes that were ordered to end the job and have not answered.
    releasing: BTreeMap<NodeId, Incarnation>,
    /// Open request of its coordinator.
    open: OpenRequest,
    /// Grants that the coordinator has not acknowledged.
    grants: BTreeMap<u64, OpenGrant>,
    /// Unit of its coordinator's speeds.
    unit: Option<Unit>,
    subscription: Option<Subscription>,
    /// State of the search for a coordinator after the loss of its node.
    search: Option<CoordinatorSearch>,
    /// Time of the order to its first coordinator.
    since: Option<Instant>,
    /// Members whose clusters do not hear the coordinator, with incarnation and time of the report.
    silence_reports: BTreeMap<NodeId, (Incarnation, Instant)>,
    /// State of its start, until it runs.
    start: Option<Start>,
    /// Nodes that died while they held its root, for the detection of poison.
    poison: PoisonDetector,
    /// Time of the check whether the root is to blame.
    blame_at: Option<Instant>,
    /// Furthest progress of its roots.
    reached: RootProgress,
    /// Time of the next audit of its coordinator's node.
    audit_at: Option<Instant>,
    /// Reason of its cancellation while it ran. No successor continues a cancelled job.
    cancelled: Option<String>,
    /// Members that its coordinator did not list at the last audit.
    idle_members: BTreeSet<NodeId>,
}

impl ActiveJob {
    fn assigning(epoch: Epoch, submit: Submit, view: View, members: BTreeSet<NodeId>) -> Self {
        let program = ProgramKey::of(&submit);
        Self {
            state: JobState::Assigning,
            issued_to: view.coordinator.clone(),
            principal: submit.principal,
            view,
            epoch,
            program,
            least: submit.params.min_or_one(),
            max: submit.params.max_processors,
            name: submit.name,
            client: submit.client,
            unanswered: members.clone(),
            members,
            granted: BTreeSet::new(),
            releasing: BTreeMap::new(),
            open: OpenRequest::default(),
            grants: BTreeMap::new(),
            unit: None,
            subscription: None,
            search: None,
            since: None,
            silence_reports: BTreeMap::new(),
            start: None,
            poison: PoisonDetector::patient(submit.params.poison_limit),
            blame_at: None,
            reached: RootProgress::default(),
            audit_at: None,
            cancelled: None,
            idle_members: BTreeSet::new(),
        }
    }

    fn status(&self, id: JobId, nodes: &BTreeMap<NodeId, PoolNode>) -> JobStatus {
        let mut sizes = BTreeMap::new();
        for node in self.members.iter().chain(self.releasing.keys()) {
            let node = &nodes[node];
            *sizes.entry(node.cluster.clone()).or_default() += node.processors().get();
        }
        JobStatus {
            job: id,
            name: self.name.clone(),
            state: self.state,
            sizes,
            waits_for: self.open.waits_for(),
            coordinator: self.view.coordinator.clone(),
            principal: self.principal.clone(),
        }
    }

    /// Number of processors that are requested, and have not reached the coordinator.
    fn asked(&self, nodes: &BTreeMap<NodeId, PoolNode>) -> Processors {
        let under_way = self.grants.values().flat_map(|grant| &grant.nodes);
        let under_way = under_way.filter_map(|node| nodes.get(node)).map(PoolNode::processors);
        self.open.count.saturating_add(under_way.sum())
    }
}

/// State of the scheduler.
#[derive(Debug)]
pub struct SchedulerCore {
    me: Contact,
    sites: BTreeMap<ClusterId, ClusterPool>,
    nodes: BTreeMap<NodeId, PoolNode>,
    queue: VecDeque<QueuedJob>,
    jobs: BTreeMap<JobId, ActiveJob>,
    speeds: Speeds,
    drains: Vec<PendingDrain>,
    /// Nodes under drain, and some that have returned to service.
    marked: BTreeSet<NodeId>,
    /// Nodes and clients whose links are down.
    unreachable: BTreeSet<NodeId>,
    /// Number of the last grant.
    last_grant: u64,
    /// Jobs of the malleability manager.
    managing: ManagerState,
    /// Jobs of an earlier scheduler whose nodes may be alive.
    returning: BTreeMap<JobId, ReturningJob>,
    /// The last time at which there was a returning job.
    returning_at: Option<Instant>,
    /// Jobs that restart, until their new epoch is on disk.
    restarting: BTreeMap<JobId, JobRequirements>,
    /// Members of recovered jobs that have not registered again, and until when they may.
    awaited: BTreeMap<NodeId, (JobId, Instant)>,
    /// Nodes that must end a job to which they do not belong.
    strays: BTreeMap<NodeId, (JobId, Incarnation)>,
    /// Input files of jobs.
    files: InputFiles,
    /// Programs that jobs bring.
    programs: ProgramTransfers,
    /// Drains of an earlier scheduler, until the nodes are known.
    marks: BTreeMap<NodeId, String>,
    /// Events about recovered jobs that were still unknown, for a replay.
    replay: VecDeque<SchedulerEvent>,
    auditor: Auditor,
    /// The first count that would have become negative.
    shortfall: Option<Shortfall>,
    /// The last jobs that have succeeded.
    succeeded: BTreeSet<JobId>,
    /// Changes that no action reports, for the log.
    holding_changes: Vec<HoldingChange>,
}

/// A change of the nodes that a job holds, for the log.
#[derive(Debug, PartialEq, Eq)]
pub enum HoldingChange {
    /// A job lost a node.
    Lost {
        /// The job.
        job: JobId,
        /// The lost node.
        node: NodeId,
        /// Reason of the loss.
        reason: String,
    },
    /// A job of an earlier scheduler continues with its nodes.
    Resumed {
        /// The job.
        job: JobId,
        /// Epoch of its coordinator.
        epoch: Epoch,
        /// Its nodes that may be alive.
        nodes: Vec<NodeId>,
    },
}

impl SchedulerCore {
    /// Creates a scheduler at `me` that knows no site yet.
    pub fn new(me: Contact, settings: ManagerSettings, now: Instant) -> Self {
        Self {
            me,
            sites: BTreeMap::new(),
            nodes: BTreeMap::new(),
            queue: VecDeque::new(),
            jobs: BTreeMap::new(),
            speeds: Speeds::default(),
            drains: Vec::new(),
            marked: BTreeSet::new(),
            unreachable: BTreeSet::new(),
            last_grant: 0,
            managing: ManagerState::new(settings, now),
            returning: BTreeMap::new(),
            returning_at: None,
            restarting: BTreeMap::new(),
            awaited: BTreeMap::new(),
            strays: BTreeMap::new(),
            files: InputFiles::default(),
            programs: ProgramTransfers::default(),
            marks: BTreeMap::new(),
            replay: VecDeque::new(),
            auditor: Auditor::default(),
            shortfall: None,
            succeeded: BTreeSet::new(),
            holding_changes: Vec::new(),
        }
    }

    /// Processes an event that happened at `now`, and returns the resulting actions.
    ///
    /// # Panics
    /// The state is inconsistent.
    pub fn handle(&mut self, event: SchedulerEvent, now: Instant) -> Vec<SchedulerAction> {
        self.auditor.record(&event);
        let mut out = Vec::new();
        if let Some(event) = self.keep_message(event) {
            self.process(event, now, &mut out);
        }
        while let Some(event) = self.replay.pop_front() {
            self.process(event, now, &mut out);
        }
        self.settle_dependencies(now, &mut out);
        let mut auditor = std::mem::take(&mut self.auditor);
        auditor.audit("scheduler", self.shortfall.as_ref(), || self.check_ledger());
        self.auditor = auditor;
        out
    }

    fn process(&mut self, event: SchedulerEvent, now: Instant, out: &mut Vec<SchedulerAction>) {
        match event {
            SchedulerEvent::SiteUp(site) => self.site_up(&site, now, out),
            SchedulerEvent::SitePolled(SiteReport { cluster, found }) => {
                self.site_polled(&cluster, found, now, out);
            }
            SchedulerEvent::Expect { clusters } => self.expect(clusters, now, out),
            SchedulerEvent::Recovered(found) => self.recovered(*found, now, out),
            SchedulerEvent::StubWaits(StubDelay { node, reason }) => self.stub_waits(&node, reason),
            SchedulerEvent::StubGone(gone) => self.stub_gone(&gone, now, out),
            SchedulerEvent::Registered(registration) => self.registered(registration, now, out),
            SchedulerEvent::NodeLost { node, reason, returns } => {
                self.node_lost(&node, &reason, returns, now, out)
            }
            SchedulerEvent::Submit { job, epoch, submit } => {
                self.submit_all(vec![NumberedSubmission { job, epoch, submit }], now, out);
            }
            SchedulerEvent::SubmitAll(all) => self.submit_all(all, now, out),
            SchedulerEvent::Assigned { job, epoch, node, answer } => {
                self.assignment_answered((job, epoch), &node, answer, now, out);
            }
            SchedulerEvent::Released { job, node, incarnation, ok } => {
                self.released(job, &node, incarnation, ok, now, out)
            }
            SchedulerEvent::JobOver { job, epoch, ended, ok } => {
                self.record_success(job, epoch, ok);
                self.job_over(job, epoch, ended.as_ref(), now, out);
            }
            SchedulerEvent::Cancel { job, reason } => self.cancel(job, &reason, now, out),
            SchedulerEvent::CancelOf { client, reason } => {
                self.cancel_jobs_of(&client, &reason, now, out)
            }
            SchedulerEvent::CancelFailed { job, reason } => {
                self.cancel_failed(job, reason, now, out)
            }
            SchedulerEvent::MemberSilent(silent) => self.member_silent(silent, now, out),
            SchedulerEvent::Link { node, up: true } => {
                self.site_link(&node, true, now);
                self.joined_link(&node, None, now);
                self.unreachable.remove(&node);
            }
            SchedulerEvent::Link { node, up: false } => {
                self.site_link(&node, false, now);
                self.client_lost(&node, now, out);
                self.unreachable.insert(node);
            }
            SchedulerEvent::LinkDown { node, why } => self.joined_link(&node, Some(why), now),
            SchedulerEvent::Request(request) => self.request(*request, now, out),
            SchedulerEvent::Withdraw(withdraw) => self.withdraw(withdraw),
            SchedulerEvent::GrantAcknowledged { job, grant, ok } => {
                self.grant_acknowledged(job, grant, ok, now, out)
            }
            SchedulerEvent::Freed(freed) => self.node_freed(&freed, now, out),
            SchedulerEvent::Subscribe(subscribe) => self.subscribe(subscribe, out),
            SchedulerEvent::SpeedsMeasured(speeds) => self.record_speeds(speeds, now, out),
            SchedulerEvent::Measured { node, incarnation, answer } => {
                self.measured(&node, incarnation, answer, now, out)
            }
            SchedulerEvent::Drain { drain, order } => self.drain(drain, order, now, out),
            SchedulerEvent::Marked { nodes } => self.marks = nodes,
            SchedulerEvent::Undrain { nodes } => self.undrain(&nodes, now, out),
            SchedulerEvent::AskLeaveFailed { job, nodes } => {
                self.repeat_ask_leave(job, &nodes, now)
            }
            SchedulerEvent::HandOver(order) => self.hand_over(&order, now, out),
            SchedulerEvent::EpochIssued { job, epoch } => self.epoch_issued(job, epoch, now, out),
            SchedulerEvent::TakeOverAnswered { job, node, answer } => {
                self.took_over(job, &node, answer, now, out);
            }
            SchedulerEvent::RootAdvanced(advanced) => self.root_advanced(&advanced),
            SchedulerEvent::Answered { job, change, count } => {
                self.report_answer(job, change, count, now, out);
            }
            SchedulerEvent::EfficiencyMeasured(report) => self.report_efficiency(report, now, out),
            SchedulerEvent::Resize(order) => self.resize(&order, 0, now, out),
            SchedulerEvent::Need { order, number } => self.resize(&order, number, now, out),
            SchedulerEvent::FilesReported(here) => self.files_reported(here, now, out),
            SchedulerEvent::FileFetched { job, ask, answer } => {
                self.file_fetched(job, ask, answer, now, out);
            }
            SchedulerEvent::ProgramReported(report) => self.program_reported(report, now, out),
            SchedulerEvent::CloseFailed { nodes } => self.repeat_close(nodes, out),
            SchedulerEvent::Reserved(found, last) => {
                self.managing.manager.recover_reservations(found, last);
            }
            SchedulerEvent::Learned(memory) => self.managing.manager.recover_memory(*memory),
            SchedulerEvent::FormerHistory(lines) => self.restore_history(lines, now),
            SchedulerEvent::Audited { job, node, incarnation, found } => {
                self.audited(job, &node, incarnation, found, now, out);
            }
            SchedulerEvent::Poll => self.poll(now, out),
            SchedulerEvent::Tick => {}
        }
        self.blame_roots(now, out);
        self.retry_take_overs(now, out);
        self.audit_jobs(now, out);
        self.process_returning(now, out);
        self.check_sites(now, out);
        self.check_joined(now, out);
        self.manage(now, out);
        self.start_fetches(now, out);
        // Jobs in the queue precede requests of running jobs.
        self.serve_queue(now, out);
        self.serve_requests(now, out);
        self.order_leaves(now, out);
        self.answer_drains(out);
        self.notify_subscribers(now, out);
        self.close_idle(now, out);
    }

    /// Returns the changes of held nodes since the last call.
    pub fn take_holding_changes(&mut self) -> Vec<HoldingChange> {
        std::mem::take(&mut self.holding_changes)
    }

    /// Time at which [`SchedulerEvent::Tick`] is due, if no other event comes first.
    pub fn due(&self) -> Option<Instant> {
        let audits = self.jobs.values().filter_map(|job| job.audit_at);
        audits.chain(self.work_due()).min()
    }

    /// The same without audits.
    fn work_due(&self) -> Option<Instant> {
        let opens =
            self.jobs.values().flat_map(|job| [job.open.not_before, job.open.measure_until]);
        let marked = self.marked.iter().filter_map(|node| self.nodes.get(node));
        let marks = marked.filter_map(|node| node.drain.as_ref());
        let blames = self.jobs.values().map(|job| job.blame_at);
        let marks = marks.flat_map(|mark| [mark.not_before, mark.replace_until]);
        let all = opens.chain(marks).chain(blames);
        let own = [
            self.managing.due(),
            self.files.due(),
            self.site_check_due(),
            self.joined_due(),
            self.close_due(),
            self.returning_due(),
            self.rest_due(),
            self.take_overs_due(),
        ];
        all.chain(own).flatten().min()
    }

    /// Returns the status of the grid.
    pub fn status(&self) -> GridStatus {
        let mut sites: BTreeMap<ClusterId, SiteStatus> = BTreeMap::new();
        for (cluster, site) in &self.sites {
            let (on_demand, failing) = (site.on_demand.is_some(), self.failing(cluster));
            let (joins, nodes, hosts) = (site.joins, Vec::new(), self.host_statuses(cluster));
            sites.insert(cluster.clone(), SiteStatus { on_demand, joins, failing, nodes, hosts });
        }
        for (cluster, node) in self.node_statuses() {
            sites.entry(cluster.clone()).or_default().nodes.push(node);
        }
        let queued = self.queue.iter().map(QueuedJob::status);
        let (managing, outlook) = (&self.managing, GridOutlook::default());
        let managed = managing
            .waiting()
            .map(|(job, submit)| managing.status(job, submit, &outlook, self.sent_program(submit)));
        let running = self.jobs.iter().map(|(&id, job)| job.status(id, &self.nodes));
        let returning = self.returning_statuses();
        let jobs = queued.chain(managed).chain(returning).chain(running).collect();
        let crowded = crowded(self.nodes.values());
        GridStatus { sites, jobs, crowded, ..GridStatus::default() }
    }

    /// Returns all jobs that have not ended.
    pub fn known(&self) -> BTreeSet<JobId> {
        let queued = self.queue.iter().map(|waiting| waiting.job);
        let others = self.jobs.keys().chain(self.managing.jobs.keys()).chain(self.returning.keys());
        queued.chain(others.copied()).collect()
    }

    /// Status of one job.
    fn job_status(&self, id: JobId) -> Option<JobStatus> {
        if let Some(job) = self.jobs.get(&id) {
            return Some(job.status(id, &self.nodes));
        }
        let queued = self.queue.iter().find(|waiting| waiting.job == id).map(QueuedJob::status);
        queued
            .or_else(|| {
                let submit = self.managing.waits(id)?;
                let sent = self.sent_program(submit);
                Some(self.managing.status(id, submit, &GridOutlook::default(), sent))
            })
            .or_else(|| self.returning_statuses().find(|status| status.job == id))
    }
}

#[cfg(test)]
mod tests;
