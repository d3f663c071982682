//! Messages and data of jobs that several roles share: specification, parameters, notes and
//! reports.
//!
//! This module does not know the roles' work.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use springtide_base::id::{ClusterId, Epoch, Incarnation, JobId, NodeId, TaskPath};
use springtide_base::processors::Processors;
use springtide_config::{AdaptationSection, Steal};
use springtide_metrics::{BenchmarkSpec, Histograms, Statistics};
use springtide_net::membership::View;
use springtide_net::net::{Contact, RefuseReason};
use springtide_remote::remote_message;
use springtide_work::work::{
    ArrayTask, CHECKPOINT_RATE, Failure, NodeLosses, Outcome, OutputStream, PhaseTimes,
    RESULTS_BYTES,
};

pub use crate::names::{
    CHECKPOINTS, CLIENT, SCHEDULER, WORKER, cluster_coordinator_name, coordinator_name, site_name,
};
use crate::policy::{AdaptationSettings, Mode};

/// How nodes choose their victims.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StealMode {
    /// Cluster-aware random stealing: synchronous steals inside the cluster, with one asynchronous
    /// wide-area steal outstanding.
    #[default]
    ClusterAware,
    /// Random stealing over all nodes, one steal at a time: the baseline.
    Random,
}

impl From<Steal> for StealMode {
    fn from(steal: Steal) -> Self {
        match steal {
            Steal::ClusterAware => Self::ClusterAware,
            Steal::Random => Self::Random,
        }
    }
}

/// Parameters of a job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct JobParams {
    /// Choice of victims of steals.
    pub steal: StealMode,
    /// Period of statistics, in milliseconds.
    pub period_ms: u64,
    /// Seed of every random choice of the run.
    pub seed: u64,
    /// Stack size of a compute thread, in bytes.
    pub stack_bytes: u64,
    /// Maximum number of waits on one stack that execute unrelated tasks.
    pub nesting_bound: u32,
    /// Minimum number of processors; 0 counts as 1. Of a managed job: of nodes, the manager's unit.
    #[serde(alias = "min_nodes")]
    pub min_processors: Processors,
    /// Maximum number of processors; absent: no limit. Of a managed job: of nodes.
    #[serde(alias = "max_nodes")]
    pub max_processors: Option<Processors>,
    /// Number of distinct nodes that may die holding the same task; then the job ends. 0: no limit.
    pub poison_limit: u32,
    /// Bytes of finished results that each node keeps, so that losses of nodes do not repeat them;
    /// 0: none.
    pub results_bytes: u64,
    /// Maximum mean rate of the root's checkpoints, in bytes per second; 0: no limit.
    pub checkpoint_rate: u64,
    /// Extent of the adaptation of its nodes.
    pub mode: Mode,
    /// Settings of the adaptation. Their `period_s` must equal `period_ms`; the creator sets both.
    pub settings: AdaptationSettings,
    /// Whether the malleability manager gives it nodes and takes them back.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub managed: bool,
    /// Latency histograms are sent with every n-th period's reports, and with the last.
    #[serde(default = "histogram_periods", skip_serializing_if = "is_histogram_periods")]
    pub histogram_periods: u32,
    /// Place of the job in its array, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub array: Option<ArrayTask>,
}

fn histogram_periods() -> u32 {
    10
}

fn is_histogram_periods(periods: &u32) -> bool {
    *periods == histogram_periods()
}

impl JobParams {
    /// The statistics period, at least 0.1 s.
    pub fn period(&self) -> Duration {
        Duration::from_millis(self.period_ms.max(100))
    }

    /// Delay of a cluster's period after its workers' periods, so that it includes their reports.
    /// The job's period ends after another such delay.
    pub fn lag(&self) -> Duration {
        (self.period() / 10).min(Duration::from_secs(1))
    }

    /// Sets the statistics period, which is also the policy's.
    pub fn set_period(&mut self, period: Duration) {
        self.period_ms = u64::try_from(period.as_millis()).unwrap_or(u64::MAX);
        self.settings.period_s = self.period_ms as f64 / 1e3;
    }

    /// Sets the adaptation from a config section, except the period.
    pub fn adapt(&mut self, section: &AdaptationSection) {
        self.min_processors = section.min_processors.get().into();
        self.max_processors = section.max_processors.map(|count| count.get().into());
        self.mode = section.mode.into();
        let period_s = self.settings.period_s;
        self.settings = AdaptationSettings { period_s, ..AdaptationSettings::from(section) };
    }

    /// Minimum number of processors, at least 1.
    pub fn min_or_one(&self) -> Processors {
        self.min_processors.max(Processors::ONE)
    }
}

impl Default for JobParams {
    fn default() -> Self {
        Self {
            steal: StealMode::ClusterAware,
            period_ms: 10_000,
            seed: 1,
            stack_bytes: 16 << 20,
            nesting_bound: 32,
            min_processors: Processors::ONE,
            max_processors: None,
            poison_limit: 3,
            results_bytes: RESULTS_BYTES as u64,
            checkpoint_rate: CHECKPOINT_RATE,
            mode: Mode::default(),
            settings: AdaptationSettings::default(),
            managed: false,
            histogram_periods: histogram_periods(),
            array: None,
        }
    }
}

/// Specification of a job for its workers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JobSpec {
    /// Number of the job.
    pub id: JobId,
    /// Epoch of its coordinator.
    pub epoch: Epoch,
    /// Registered name of the job.
    pub name: String,
    /// The encoded job value.
    pub body: Bytes,
    /// Fingerprint of the submitting program's registry. A worker with another one refuses.
    pub fingerprint: u64,
    /// Parameters of the job.
    pub params: JobParams,
}

/// To a worker (published as [`WORKER`]): join a job. The view determines the node's further roles.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Assign {
    /// The job to join.
    pub spec: JobSpec,
    /// The members, including the receiver.
    pub view: View,
    /// The submitter, whose actor [`CLIENT`] gets [`JobNote`]s and [`JobEndReport`].
    pub client: Contact,
    /// The scheduler's node, whose actor [`SCHEDULER`] gets [`JobEndNotice`].
    pub scheduler: Contact,
    /// The job's benchmark, for a node of unknown speed that joins a running job.
    #[serde(default)]
    pub benchmark: Option<BenchmarkSpec>,
}

/// Why a worker does not join.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum AssignError {
    /// It works for another job.
    #[error("node {node} works for {job}")]
    Busy {
        /// Node of the worker.
        node: NodeId,
        /// Its current job.
        job: JobId,
    },
    /// It runs another program.
    #[error(
        "node {node} runs another program (registry {node_fingerprint:016x}, the job's is \
         {job_fingerprint:016x}): start its nodes with the program that submits the job"
    )]
    Program {
        /// Node of the worker.
        node: NodeId,
        /// Fingerprint of its registry.
        node_fingerprint: u64,
        /// Fingerprint of the job's registry.
        job_fingerprint: u64,
    },
    /// Its program does not have this job.
    #[error("node {node} knows no job {name}")]
    UnknownJob {
        /// Node of the worker.
        node: NodeId,
        /// Name of the job.
        name: String,
    },
    /// The system refused threads or another resource.
    #[error("node {node} could not start the job: {reason}")]
    Failed {
        /// Node of the worker.
        node: NodeId,
        /// Reason of the failure.
        reason: String,
        /// Reason of its link's refusal, if it was refused.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        refused: Option<RefuseReason>,
    },
}

impl AssignError {
    /// Whether another attempt with the same node would certainly fail as well.
    pub fn is_lasting(&self) -> bool {
        matches!(self, AssignError::Program { .. } | AssignError::UnknownJob { .. })
    }

    /// The error of a node that could not start the job.
    pub fn failed(node: &NodeId, reason: impl Into<String>) -> Self {
        AssignError::Failed { node: node.clone(), reason: reason.into(), refused: None }
    }
}

/// To a worker: the job is over or withdrawn. It replies when its threads have stopped.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ReleaseWorker {
    /// The job to leave.
    pub job: JobId,
    /// Whether the job is over for all members. Then an older assignment of its coordinator, which
    /// arrives later over a slower link, is void.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub over: bool,
    /// Epoch of the job. An [`Assign`] of an earlier one may still be under way over a slower link.
    #[serde(default)]
    pub epoch: Epoch,
}

/// To a worker, by its site: end the process. It replies before the process ends.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Shutdown {
    /// Reason for its log.
    pub reason: String,
}

/// To the submitter of a job: a note of the running job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JobNote {
    /// The job of the note.
    pub job: JobId,
    /// Epoch of the sending coordinator.
    #[serde(default)]
    pub epoch: Epoch,
    /// Number of the note, from 0 under each epoch.
    pub seq: u64,
    /// Contents of the note.
    pub kind: NoteKind,
}

/// Contents of a [`JobNote`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NoteKind {
    /// The root has started on this node.
    Started {
        /// Node of the root.
        root: NodeId,
        /// Joined workers, by cluster.
        workers: BTreeMap<ClusterId, u32>,
    },
    /// An iteration has ended.
    Iteration {
        /// Number of the iteration, from 0.
        index: u64,
        /// Its duration in seconds.
        seconds: f64,
    },
    /// Progress of the job.
    Progress {
        /// Units completed so far.
        done: u64,
        /// Units in total.
        total: u64,
        /// Name of the unit.
        what: String,
    },
    /// A line for the user.
    Text {
        /// Text of the line.
        text: String,
    },
    /// A file for the run's directory.
    Artifact {
        /// A plain file name.
        name: String,
        /// Contents of the file.
        bytes: Bytes,
    },
    /// A message of the job's root, whose meaning the job defines.
    Message {
        /// The encoded message.
        body: Bytes,
    },
    /// A piece of the output of a command's process.
    Output {
        /// Rank of the process.
        rank: u32,
        /// Attempt of the process, from 1.
        attempt: u32,
        /// Number of processes of the attempt.
        processes: u32,
        /// Stream of the piece.
        stream: OutputStream,
        /// Bytes of the piece.
        bytes: Bytes,
    },
    /// Preliminary outcome, as if the job ended now.
    Preliminary {
        /// The preliminary outcome.
        outcome: Box<Outcome>,
    },
    /// Recorded events of a node, for the run log.
    Events {
        /// Records to be written as JSON lines.
        records: Vec<springtide_work::event::Record>,
    },
    /// The job's outcome, before its workers are released. It counts if no node is left to report
    /// the end.
    Outcome {
        /// The outcome of the later [`JobEndReport`].
        outcome: Box<Outcome>,
    },
    /// The period's statistics of the whole job, for observers.
    Period {
        /// Sum over the job since its start.
        total: Box<Statistics>,
        /// Number of the job's nodes.
        #[serde(default)]
        nodes: u32,
        /// The weighted average efficiency, once it is measured.
        #[serde(default)]
        efficiency: Option<f64>,
    },
}

/// Reported progress of a job's root. Each number only grows while one root runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RootProgress {
    /// Number of its newest checkpoint; a root that resumes continues the count.
    pub checkpoint: u64,
    /// Iterations since this root's own start.
    pub iterations: u64,
    /// Completed units of its progress.
    pub done: u64,
}

impl RootProgress {
    /// Merges the maximum of each number. Returns whether any has grown.
    pub fn merge_max(&mut self, other: RootProgress) -> bool {
        let further = RootProgress {
            checkpoint: self.checkpoint.max(other.checkpoint),
            iterations: self.iterations.max(other.iterations),
            done: self.done.max(other.done),
        };
        std::mem::replace(self, further) != further
    }
}

/// Why a job has no outcome.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum JobError {
    /// A task failed or panicked.
    #[error(transparent)]
    Task(#[from] Failure),
    /// The job was cancelled.
    #[error("the job was cancelled: {reason}")]
    Cancelled {
        /// Reason of the cancellation.
        reason: String,
    },
    /// The node of the job's root was lost, without a successor.
    #[error("node {node} was lost: {reason}")]
    NodeLost {
        /// The lost node.
        node: NodeId,
        /// Reason of the loss, with its last lines if any.
        reason: String,
    },
    /// A task counts as poison, since several nodes died holding it.
    #[error("{}", blame(task, path, holders))]
    Poison {
        /// Registered name of the task; the job's name for its root.
        task: String,
        /// Path of the task in the tree.
        path: TaskPath,
        /// The deaths that count, in order of the nodes' names.
        holders: Vec<DeadHolder>,
    },
    /// The job could not be started.
    #[error("the job could not be started: {reason}")]
    Start {
        /// Reason of the failure.
        reason: String,
    },
}

/// A node that died holding a task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeadHolder {
    /// Name of the node.
    pub node: NodeId,
    /// Incarnation of the node.
    pub incarnation: Incarnation,
    /// How it died, with its last lines if any.
    pub reason: String,
}

fn blame(task: &str, path: &TaskPath, holders: &[DeadHolder]) -> String {
    let nodes: BTreeSet<&NodeId> = holders.iter().map(|holder| &holder.node).collect();
    let what = if path.0.is_empty() { "the root of" } else { "task" };
    let (count, s) = (nodes.len(), if nodes.len() == 1 { "" } else { "s" });
    let mut text = format!("{count} node{s} died holding {what} {task} ({path}), so it is blamed:");
    for DeadHolder { node, reason, .. } in holders {
        text.push_str(&format!("\n  {node}: {reason}"));
    }
    text.push_str(
        "\nrun it alone with --sequential to see it fail; \
         if the nodes died of another cause, raise --poison (0: never)",
    );
    text
}

/// A cluster's part in a report.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ClusterReport {
    /// Number of its workers.
    pub workers: u32,
    /// Sums of their statistics.
    pub statistics: Statistics,
}

/// Resources and results of a job.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct JobReport {
    /// From the root's start to its end, in seconds.
    pub wall_s: f64,
    /// Length of each iteration, in seconds.
    pub iterations: Vec<f64>,
    /// Phases of the iterations, as far as the last coordinator knows them.
    #[serde(default, skip_serializing_if = "PhaseTimes::is_empty")]
    pub phases: PhaseTimes,
    /// Reports of the clusters.
    pub clusters: BTreeMap<ClusterId, ClusterReport>,
    /// Sum over the job; its latencies cover the whole run.
    pub total: Statistics,
}

impl JobReport {
    /// Returns the run's latency histograms.
    ///
    /// # Errors
    /// The report's latencies are malformed.
    pub fn histograms(&self) -> Result<Histograms, springtide_metrics::DeltaError> {
        let mut histograms = Histograms::default();
        histograms.apply(&self.total.latencies)?;
        Ok(histograms)
    }
}

/// To the client: the job has ended. Sent after all its notes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct JobEndReport {
    /// The job that ended.
    pub job: JobId,
    /// Epoch of the sending coordinator; absent if the scheduler sends it.
    #[serde(default)]
    pub epoch: Option<Epoch>,
    /// Outcome or error of the job.
    pub outcome: Result<Outcome, JobError>,
    /// Report of the job.
    pub report: JobReport,
}

/// To the scheduler, by the job's coordinator: the job has ended and its workers are released.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct JobEndNotice {
    /// The job that ended.
    pub job: JobId,
    /// Epoch of the coordinator.
    pub epoch: Epoch,
    /// Whether it has an outcome.
    pub ok: bool,
    /// Workers that confirmed their end; absent: all did. Others may be unreachable, or former
    /// members that do not know it, and may still work.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<BTreeSet<NodeId>>,
}

/// To the coordinator, by the scheduler: this member is dead according to its site. The job
/// continues without it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LostMember {
    /// The job of the member.
    pub job: JobId,
    /// Node of the dead member.
    pub node: NodeId,
    /// How it ended, with its last lines if any.
    pub reason: String,
    /// Whether no task is to blame: it was to leave, or exceeded its memory and larger nodes exist.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub excused: bool,
}

/// To the coordinator, by a worker: the tasks that its former members held. Repeated until
/// answered.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TasksHeldAtDeath {
    /// The job of the tasks.
    pub job: JobId,
    /// At most [`LOSSES_MAX`](springtide_work::work::LOSSES_MAX) tasks in all.
    pub losses: Vec<NodeLosses>,
}

/// To the coordinator (published as [`coordinator_name`]), by the client or the scheduler: end the
/// job without an outcome.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Cancel {
    /// The job to end.
    pub job: JobId,
    /// Reason of the cancellation.
    pub reason: String,
}

/// To the coordinator (published as [`coordinator_name`]), by the client: a message for the job's
/// root.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ClientMessage {
    /// The job whose root receives the message.
    pub job: JobId,
    /// Number of the message among those of this client to the job, from 1. A client sends the
    /// next message after the answer to this one. A repeated number has no effect.
    pub number: u64,
    /// The encoded message, whose meaning the job defines.
    pub body: Bytes,
}

/// Error of a [`ClientMessage`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum ClientMessageError {
    /// The root does not run on this node: it has not started, has ended, or moves.
    #[error("the job's root does not run there")]
    NotRunning,
    /// Too many messages wait for the root. The client may send the message again later.
    #[error("too many messages wait for the job's root")]
    Full,
}

remote_message! {
    "client-message" => ClientMessage -> Result<(), ClientMessageError>;
    "assign" => Assign -> Result<(), AssignError>;
    "release" => ReleaseWorker;
    "shutdown" => Shutdown;
    "job-note" => JobNote;
    "job-ended" => JobEndReport;
    "job-over" => JobEndNotice;
    "cancel" => Cancel;
    "member-lost" => LostMember;
    "died-holding" => TasksHeldAtDeath;
}
