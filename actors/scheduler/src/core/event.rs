//! Inputs and outputs of the scheduler's core: data only.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use springtide_base::id::{ClusterId, Epoch, Incarnation, JobId, NodeId};
use springtide_base::processors::Processors;
use springtide_metrics::{BenchmarkSpec, SpeedMeasurement};
use springtide_net::net::Contact;

use super::choose::SelectionInput;
use super::history::HistoryLine;
use crate::files::{FetchResult, FileEntry, FilesReport};
use crate::job::{Assign, AssignError, JobError};
use crate::manager::{ManagerMemory, ReservationBill};
use crate::policy::NodeOffer;
use crate::policy::malleability::{HostShare, PlacementPlan};
use crate::policy::provisioning::Time;
use crate::program::{ProgramImage, ProgramReport};
use crate::reservation::{Reservation, ReservationId};
use crate::scheduler::{
    Drain, DrainError, DrainResult, GrantedNode, HandOver, JobAudit, JobEfficiency, JobGrant,
    MemberSilent, NodeFreed, NodeRegistration, RequestNodes, ResizeJob, RootAdvanced,
    SiteRegistration, SiteReport, SpeedsMeasured, StubDelay, StubLoss, Submit, SubmitError,
    Subscribe, TakeOver, WithdrawNodes,
};

/// Reasons why a worker does not take over a job.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TakeOverError {
    /// The worker refuses.
    #[error("{0}")]
    Refused(String),
    /// The order or its answer was lost, so that the worker may be asked again.
    #[error("{0}")]
    Unanswered(String),
}

/// Record of a job's start.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StartRecord {
    /// Placement of the job.
    pub placed: PlacementPlan,
    /// Time of the start, in microseconds of the Unix epoch.
    #[serde(default)]
    pub at: Option<Time>,
}

/// A job in the store of an earlier scheduler.
#[derive(Clone, Debug)]
pub struct RecoveredJob {
    /// Number of the job.
    pub job: JobId,
    /// Last issued epoch of the job.
    pub epoch: Epoch,
    /// Submission of the job.
    pub submit: Box<Submit>,
    /// Record of the start, if the job was started.
    pub begun: Option<StartRecord>,
    /// Greatest number of processors that its owner permits.
    pub limit: Option<u32>,
}

/// A submission with the number and the first epoch of its job.
#[derive(Clone, Debug)]
pub struct NumberedSubmission {
    /// Number of the job.
    pub job: JobId,
    /// First epoch of the job.
    pub epoch: Epoch,
    /// The submission as the client sent it.
    pub submit: Box<Submit>,
}

/// Inputs of the scheduler's core.
#[derive(Clone, Debug)]
pub enum SchedulerEvent {
    /// Sites of these clusters will register.
    Expect {
        /// Clusters of the sites.
        clusters: Vec<ClusterId>,
    },
    /// A site has registered.
    SiteUp(SiteRegistration),
    /// A site has polled its processors, or failed to.
    SitePolled(SiteReport),
    /// A stub waits for its processor.
    StubWaits(StubDelay),
    /// A stub has ended.
    StubGone(StubLoss),
    /// The store has a job of an earlier scheduler.
    Recovered(Box<RecoveredJob>),
    /// The store has these reservations, and this greatest number of all reservations.
    Reserved(Vec<Reservation>, ReservationId),
    /// The store has what the manager of an earlier scheduler had learned.
    Learned(Box<ManagerMemory>),
    /// The store has these lines of histories, oldest first. All recovered jobs are known.
    FormerHistory(Vec<HistoryLine>),
    /// A node has registered.
    Registered(NodeRegistration),
    /// A link went down. For a node that joined by itself, no site reports the loss.
    LinkDown {
        /// Node of the link.
        node: NodeId,
        /// Reason of the failure.
        why: String,
    },
    /// A site reports that a node is lost.
    NodeLost {
        /// Name of the node.
        node: NodeId,
        /// Reason of the loss.
        reason: String,
        /// Whether the site restarts the node.
        returns: bool,
    },
    /// A job's coordinator continues without a member that was silent too long.
    MemberSilent(MemberSilent),
    /// Several jobs are submitted at once. Their numbers and epochs are on disk.
    SubmitAll(Vec<NumberedSubmission>),
    /// A job is submitted. Its number and epoch are on disk.
    Submit {
        /// Number of the job.
        job: JobId,
        /// First epoch of the job.
        epoch: Epoch,
        /// The submission itself.
        submit: Box<Submit>,
    },
    /// A worker answered [`SchedulerAction::Assign`].
    Assigned {
        /// Number of the job.
        job: JobId,
        /// Epoch of the assignment.
        epoch: Epoch,
        /// Node of the worker.
        node: NodeId,
        /// Answer of the worker; a missing answer is an [`AssignError::Failed`].
        answer: Result<(), AssignError>,
    },
    /// A worker answered [`SchedulerAction::Release`], or the time limit passed.
    Released {
        /// Number of the job.
        job: JobId,
        /// Node of the worker.
        node: NodeId,
        /// Incarnation that got the order.
        incarnation: Incarnation,
        /// Whether the worker answered.
        ok: bool,
    },
    /// A job's coordinator reports that the job is over and its workers are free.
    JobOver {
        /// Number of the job.
        job: JobId,
        /// Epoch of the coordinator.
        epoch: Epoch,
        /// Workers that confirmed the end; absent: all did.
        ended: Option<BTreeSet<NodeId>>,
        /// Whether it has an outcome.
        ok: bool,
    },
    /// A job is to be cancelled.
    Cancel {
        /// Number of the job.
        job: JobId,
        /// Reason of the cancellation.
        reason: String,
    },
    /// A client cancels all its jobs.
    CancelOf {
        /// Name of the client.
        client: NodeId,
        /// Reason of the cancellation.
        reason: String,
    },
    /// A job's coordinator did not receive [`SchedulerAction::Cancel`].
    CancelFailed {
        /// Number of the job.
        job: JobId,
        /// Reason of the failure.
        reason: String,
    },
    /// The link to a node or client went up or down.
    Link {
        /// Node or client of the link.
        node: NodeId,
        /// Whether the link is up.
        up: bool,
    },
    /// A job's coordinator requests more nodes.
    Request(Box<RequestNodes>),
    /// A job's coordinator withdraws requested nodes.
    Withdraw(WithdrawNodes),
    /// A job's coordinator acknowledged [`SchedulerAction::GrantNodes`], or did not.
    GrantAcknowledged {
        /// Number of the job.
        job: JobId,
        /// Number of the grant.
        grant: u64,
        /// Whether the grant was delivered.
        ok: bool,
    },
    /// A node no longer belongs to a job.
    Freed(NodeFreed),
    /// A job's coordinator hands the job over to another node.
    HandOver(HandOver),
    /// A job's coordinator subscribes to faster nodes.
    Subscribe(Subscribe),
    /// A job's coordinator reports speeds of its nodes.
    SpeedsMeasured(SpeedsMeasured),
    /// A worker answered [`SchedulerAction::Measure`].
    Measured {
        /// Node of the worker.
        node: NodeId,
        /// Incarnation that got the order.
        incarnation: Incarnation,
        /// Answer of the worker; a missing answer is an error, too.
        answer: Result<SpeedMeasurement, String>,
    },
    /// Nodes are to be drained; answered by [`SchedulerAction::Drained`].
    Drain {
        /// Number of the drain.
        drain: u64,
        /// The order itself.
        order: Drain,
    },
    /// An earlier scheduler had drained these nodes.
    Marked {
        /// Nodes with the reasons of their drains.
        nodes: BTreeMap<NodeId, String>,
    },
    /// Nodes may get jobs again, after a [check](super::SchedulerCore::check_nodes).
    Undrain {
        /// Names of the nodes.
        nodes: Vec<NodeId>,
    },
    /// A job's coordinator did not receive [`SchedulerAction::AskLeave`].
    AskLeaveFailed {
        /// Number of the job.
        job: JobId,
        /// Nodes that were to leave.
        nodes: Vec<NodeId>,
    },
    /// The epoch of [`SchedulerAction::NewEpoch`] is on disk.
    EpochIssued {
        /// Number of the job.
        job: JobId,
        /// The new epoch, on disk.
        epoch: Epoch,
    },
    /// A worker answered [`SchedulerAction::TakeOver`], or did not.
    TakeOverAnswered {
        /// Number of the job.
        job: JobId,
        /// Node of the worker.
        node: NodeId,
        /// Success if it coordinates the job now.
        answer: Result<(), TakeOverError>,
    },
    /// A job's root has made progress.
    RootAdvanced(RootAdvanced),
    /// A job's coordinator answered [`SchedulerAction::OfferGrowth`] or
    /// [`SchedulerAction::AskShrink`], or did not.
    Answered {
        /// Number of the job.
        job: JobId,
        /// Number of the change.
        change: u64,
        /// Processors that the job accepts or will release; absent: no answer.
        count: Option<u32>,
    },
    /// A site did not receive [`SchedulerAction::CloseStubs`], and the retry is due.
    CloseFailed {
        /// Nodes of the stubs.
        nodes: Vec<NodeId>,
    },
    /// A job's coordinator has measured its efficiency.
    EfficiencyMeasured(JobEfficiency),
    /// A job's owner changes its size, after a [check](super::SchedulerCore::check_resize).
    Resize(ResizeJob),
    /// A job requests processors for itself.
    Need {
        /// The equivalent order of an owner.
        order: ResizeJob,
        /// Number of the request.
        number: u64,
    },
    /// A cluster's file server reports its files.
    FilesReported(FilesReport),
    /// A site reports a program that nodes are to start with.
    ProgramReported(ProgramReport),
    /// A file server answered [`SchedulerAction::BringFile`], or did not.
    FileFetched {
        /// Job that needs the file.
        job: JobId,
        /// Number of the fetch.
        ask: u64,
        /// The file and the result of its transfer, or the reason of the failure.
        answer: Result<(FileEntry, FetchResult), String>,
    },
    /// The node of a job's coordinator answered [`SchedulerAction::Audit`], or did not.
    Audited {
        /// Number of the job.
        job: JobId,
        /// Node that was audited.
        node: NodeId,
        /// Incarnation that was audited.
        incarnation: Incarnation,
        /// Result of the audit; absent: no answer.
        found: Option<JobAudit>,
    },
    /// The manager must know the free processors by now.
    Poll,
    /// The time of [`Core::due`](super::SchedulerCore::due) has come.
    Tick,
}

/// Outputs of the scheduler's core.
#[derive(Clone, Debug)]
pub enum SchedulerAction {
    /// Assign a job to the node's worker; feed back [`SchedulerEvent::Assigned`].
    Assign {
        /// Node of the worker.
        node: NodeId,
        /// The assignment itself.
        assign: Box<Assign>,
    },
    /// Answer the submission: all workers have the job.
    Grant(JobGrant),
    /// Answer the submission: the job does not run.
    Refuse {
        /// Number of the job.
        job: JobId,
        /// Reason of the refusal.
        error: SubmitError,
    },
    /// Order the node's worker to end the job; feed back [`SchedulerEvent::Released`].
    Release {
        /// Node of the worker.
        node: NodeId,
        /// Incarnation that gets the order.
        incarnation: Incarnation,
        /// Number of the job.
        job: JobId,
        /// Whether the job is over for all workers.
        over: bool,
        /// Epoch of the job: assignments with earlier epochs are void.
        epoch: Epoch,
    },
    /// Order the job's coordinator to end it; feed back [`SchedulerEvent::CancelFailed`] on
    /// failure.
    Cancel {
        /// Number of the job.
        job: JobId,
        /// Node of the coordinator.
        coordinator: NodeId,
        /// Reason of the cancellation.
        reason: String,
    },
    /// Notify the job's coordinator that a member is dead.
    MemberLost {
        /// Number of the job.
        job: JobId,
        /// Node of the coordinator.
        coordinator: NodeId,
        /// Node of the dead member.
        node: NodeId,
        /// Reason of the loss.
        reason: String,
        /// Whether no task is to blame for the death.
        excused: bool,
    },
    /// Notify the client that the job ended without an outcome, before all other notifications.
    Ended {
        /// Number of the job.
        job: JobId,
        /// Client of the job.
        client: Contact,
        /// Reason of the end.
        error: JobError,
    },
    /// Order the site to restart these nodes.
    Replace {
        /// Cluster of the nodes.
        cluster: ClusterId,
        /// Names of the nodes.
        nodes: Vec<NodeId>,
        /// Program to start; absent: the previous one.
        program: Option<std::path::PathBuf>,
        /// The program to start instead, if the site is to receive it.
        image: Option<ProgramImage>,
        /// Reason for the log.
        reason: String,
    },
    /// Write to disk that a job is being started, before any message about the start.
    StoreStart {
        /// Number of the job.
        job: JobId,
        /// Record of the start.
        begun: StartRecord,
    },
    /// Delete a job from the store.
    Forget {
        /// Number of the job.
        job: JobId,
    },
    /// Order the site to hold processors for these nodes. [`SchedulerEvent::Registered`] or
    /// [`SchedulerEvent::StubGone`] follows for each.
    HoldStubs {
        /// Cluster of the nodes.
        cluster: ClusterId,
        /// Names of the nodes.
        nodes: Vec<NodeId>,
        /// Their shares, where the cluster has hosts.
        shares: BTreeMap<NodeId, HostShare>,
        /// Program to start; absent: the site's own.
        program: Option<std::path::PathBuf>,
        /// The program to start instead, if the site is to receive it.
        image: Option<ProgramImage>,
        /// Reason for the log.
        reason: String,
    },
    /// Order the site to stop these nodes and release their processors.
    /// [`SchedulerEvent::StubGone`] follows for each.
    CloseStubs {
        /// Cluster of the nodes.
        cluster: ClusterId,
        /// Names of the nodes.
        nodes: Vec<NodeId>,
        /// Reason for the log.
        reason: String,
    },
    /// Notify the job's coordinator of granted nodes; feed back
    /// [`SchedulerEvent::GrantAcknowledged`].
    GrantNodes {
        /// Number of the job.
        job: JobId,
        /// Number of the grant.
        grant: u64,
        /// Node of the coordinator.
        coordinator: NodeId,
        /// The nodes, best first.
        nodes: Vec<GrantedNode>,
        /// Number of processors that are still open.
        open: Processors,
        /// Explanation of the selection, in one sentence.
        why: String,
        /// Inputs of the selection.
        case: Box<SelectionInput>,
    },
    /// Order the node's worker to run a benchmark; feed back [`SchedulerEvent::Measured`].
    Measure {
        /// Node of the worker.
        node: NodeId,
        /// Incarnation that gets the order.
        incarnation: Incarnation,
        /// Benchmark to run.
        spec: Box<BenchmarkSpec>,
    },
    /// Order the job's coordinator to let nodes leave; feed back [`SchedulerEvent::AskLeaveFailed`]
    /// on failure.
    AskLeave {
        /// Number of the job.
        job: JobId,
        /// Node of the coordinator.
        coordinator: NodeId,
        /// Nodes that must leave.
        nodes: Vec<NodeId>,
        /// Reason of the order.
        reason: String,
        /// Milliseconds until the nodes stop in any case.
        deadline_ms: Option<u64>,
    },
    /// Notify the job's coordinator of free nodes that are faster.
    BetterFree {
        /// Number of the job.
        job: JobId,
        /// Node of the coordinator.
        coordinator: NodeId,
        /// All free nodes.
        offers: BTreeMap<ClusterId, NodeOffer>,
    },
    /// Answer a drain order.
    Drained {
        /// Number of the drain.
        drain: u64,
        /// Answer to the order.
        answer: Result<DrainResult, DrainError>,
    },
    /// A job restarts: notify its client if it fails to start.
    Restart {
        /// Number of the job.
        job: JobId,
        /// Client of the job.
        client: Contact,
    },
    /// Write to disk how many processors a job's owner permits.
    Limit {
        /// Number of the job.
        job: JobId,
        /// Greatest number of processors; absent: no limit.
        most: Option<u32>,
    },
    /// Write to disk that a node is drained, or back in service.
    StoreDrain {
        /// Name of the node.
        node: NodeId,
        /// Reason of the drain; absent: the node is in service.
        reason: Option<String>,
    },
    /// Write the next epoch of a job to disk; feed back [`SchedulerEvent::EpochIssued`].
    NewEpoch {
        /// Number of the job.
        job: JobId,
        /// Last known epoch of the job.
        known: Epoch,
    },
    /// Order the node's worker to coordinate the job; feed back
    /// [`SchedulerEvent::TakeOverAnswered`].
    TakeOver {
        /// Node of the worker.
        node: NodeId,
        /// The order itself.
        order: Box<TakeOver>,
    },
    /// Offer processors to the job's coordinator; feed back [`SchedulerEvent::Answered`].
    OfferGrowth(Box<ManagerQuestion>),
    /// Order the job's coordinator to release nodes of its choice; feed back
    /// [`SchedulerEvent::Answered`].
    AskShrink {
        /// The question itself.
        asking: Box<ManagerQuestion>,
        /// Whether the job must release them.
        mandatory: bool,
        /// Time limit for the release, in milliseconds.
        within_ms: u64,
    },
    /// Notify the job's coordinator that its urgent request is refused.
    RefuseGrowth {
        /// Number of the request; 0: it has none.
        number: u64,
        /// Number of the job.
        job: JobId,
        /// Node of the coordinator.
        coordinator: NodeId,
        /// Reason of the refusal.
        reason: String,
    },
    /// Order the cluster's file server to fetch a file; feed back [`SchedulerEvent::FileFetched`].
    BringFile {
        /// Job that needs the file.
        job: JobId,
        /// Number of the fetch.
        ask: u64,
        /// The file to fetch.
        file: FileEntry,
        /// Clusters that have the file, in order of preference.
        from: Vec<ClusterId>,
        /// Cluster that needs the file.
        to: ClusterId,
    },
    /// Order the cluster's file server to cancel all fetches for a job.
    DropFiles {
        /// Number of the job.
        job: JobId,
        /// Cluster of the file server.
        cluster: ClusterId,
    },
    /// Delete an ended reservation from disk, and record its bill.
    Unreserved(Box<ReservationBill>),
    /// Ask the coordinator's node what it does for the job; feed back [`SchedulerEvent::Audited`].
    Audit {
        /// Number of the job.
        job: JobId,
        /// Node of the coordinator.
        node: NodeId,
        /// Incarnation that is asked.
        incarnation: Incarnation,
    },
    /// Log a protocol violation.
    ProtocolViolation {
        /// Description of the violation and of its handling.
        what: String,
    },
}

/// A question of the malleability manager to a job's coordinator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ManagerQuestion {
    /// Number of the job.
    pub job: JobId,
    /// Node of the coordinator.
    pub coordinator: NodeId,
    /// Number of the change.
    pub change: u64,
    /// Cluster of the processors.
    pub cluster: ClusterId,
    /// Greatest number of processors.
    pub count: u32,
    /// Time limit for the answer.
    pub within: Duration,
    /// Reason of the offer, or purpose of the release.
    pub why: String,
}
