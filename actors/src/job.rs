//! A job as the roles speak of it: what runs, how, and what comes out. Messages of more than one actor live here.
//!
//! Must not know how a role does its work.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use springtide_runtime::config::{AdaptationSection, Steal};
use springtide_runtime::id::{ClusterId, Epoch, Incarnation, JobId, NodeId, TaskPath};
use springtide_runtime::membership::View;
use springtide_runtime::meter::{BenchmarkSpec, Histograms, Statistics};
use springtide_runtime::net::{Contact, RefuseReason};
use springtide_runtime::remote_message;
use springtide_runtime::work::{CHECKPOINT_RATE, Failure, Loss, Outcome, RESULTS_BYTES};

use crate::policy::{Mode, Settings};

/// How nodes choose whom to steal from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StealMode {
    /// Cluster-aware random stealing: synchronous steals inside the cluster, and one asynchronous steal to another cluster
    /// outstanding meanwhile.
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

/// How a job is run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct JobParams {
    /// Whom to steal from.
    pub steal: StealMode,
    /// Statistics are pushed up the tree this often, in milliseconds.
    pub period_ms: u64,
    /// Seed of every random choice of the run.
    pub seed: u64,
    /// Stack of a compute thread, in bytes.
    pub stack_bytes: u64,
    /// How many waits of one stack may take unrelated work.
    pub nesting_bound: u32,
    /// Fewest nodes that it may have; 0 counts as 1.
    pub min_nodes: u32,
    /// Most that it may have; absent: no limit.
    pub max_nodes: Option<u32>,
    /// It ends when so many distinct nodes died holding the same task; 0: never.
    pub poison: u32,
    /// Bytes of finished results that each node keeps, so that they are not computed again when nodes are lost; 0: none.
    pub results_bytes: u64,
    /// Bytes a second that checkpoints of the root may come to on average; 0: no limit.
    pub checkpoint_rate: u64,
    /// How far its set of nodes is adapted.
    pub mode: Mode,
    /// By what it is adapted. `period_s` there is `period_ms` here: whoever makes these sets both.
    pub settings: Settings,
    /// The malleability manager gives it nodes and takes them.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub managed: bool,
    /// Latency histograms travel with every so many periods' reports, and with the last.
    #[serde(default = "histogram_periods", skip_serializing_if = "is_histogram_periods")]
    pub histogram_periods: u32,
}

fn histogram_periods() -> u32 {
    10
}

fn is_histogram_periods(periods: &u32) -> bool {
    *periods == histogram_periods()
}

impl JobParams {
    /// The statistics period: at least 0.1 s, whatever was asked.
    pub fn period(&self) -> Duration {
        Duration::from_millis(self.period_ms.max(100))
    }

    /// How long after its workers' a cluster's period ends, so that what they report is in it; the job's ends as long after that.
    pub fn lag(&self) -> Duration {
        (self.period() / 10).min(Duration::from_secs(1))
    }

    /// Sets how often statistics are sent: the policy goes by the same period.
    pub fn set_period(&mut self, period: Duration) {
        self.period_ms = u64::try_from(period.as_millis()).unwrap_or(u64::MAX);
        self.settings.period_s = self.period_ms as f64 / 1e3;
    }

    /// Sets how the job's nodes follow what it can use, but for the period.
    pub fn adapt(&mut self, section: &AdaptationSection) {
        self.min_nodes = section.min_nodes.get();
        self.max_nodes = section.max_nodes.map(|nodes| nodes.get());
        self.mode = section.mode.into();
        let period_s = self.settings.period_s;
        self.settings = Settings { period_s, ..Settings::from(section) };
    }

    /// Fewest nodes that the job may have.
    pub fn least_nodes(&self) -> u32 {
        self.min_nodes.max(1)
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
            min_nodes: 1,
            max_nodes: None,
            poison: 3,
            results_bytes: RESULTS_BYTES as u64,
            checkpoint_rate: CHECKPOINT_RATE,
            mode: Mode::default(),
            settings: Settings::default(),
            managed: false,
            histogram_periods: histogram_periods(),
        }
    }
}

/// A job as its workers get it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JobSpec {
    /// Which.
    pub id: JobId,
    /// Its ownership generation.
    pub epoch: Epoch,
    /// The registered name.
    pub name: String,
    /// The encoded job value.
    pub body: Bytes,
    /// Fingerprint of the submitting program's registry; a worker with another refuses.
    pub fingerprint: u64,
    /// How to run it.
    pub params: JobParams,
}

/// To a worker (published as [`WORKER`]): take part in a job. The view says which further roles the node has.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Assign {
    /// The job.
    pub spec: JobSpec,
    /// Who takes part, the receiver among them.
    pub view: View,
    /// Who submitted it: its actor [`CLIENT`] gets [`JobNote`]s and [`JobEnded`].
    pub client: Contact,
    /// The scheduler's node: its actor [`SCHEDULER`] gets [`JobOver`].
    pub scheduler: Contact,
    /// The job's benchmark, for a node that joins while the job runs: nothing is known of its speed.
    #[serde(default)]
    pub benchmark: Option<BenchmarkSpec>,
}

/// Why a worker does not take part.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum AssignError {
    /// It works for another job.
    #[error("node {node} works for {job}")]
    Busy {
        /// Which node.
        node: NodeId,
        /// For whom.
        job: JobId,
    },
    /// Its program is another.
    #[error(
        "node {node} runs another program (registry {node_fingerprint:016x}, the job's is {job_fingerprint:016x}): \
         start its nodes with the program that submits the job"
    )]
    Program {
        /// Which node.
        node: NodeId,
        /// Of its registry.
        node_fingerprint: u64,
        /// Of the job's registry.
        job_fingerprint: u64,
    },
    /// No such job in its program.
    #[error("node {node} knows no job {name}")]
    UnknownJob {
        /// Which node.
        node: NodeId,
        /// The job's name.
        name: String,
    },
    /// The system gave no threads, or the like.
    #[error("node {node} could not start the job: {reason}")]
    Failed {
        /// Which node.
        node: NodeId,
        /// Why.
        reason: String,
        /// Its link was refused, for this reason.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        refused: Option<RefuseReason>,
    },
}

impl AssignError {
    /// Whether another attempt with the same node would fail as well, whatever happens meanwhile.
    pub fn is_lasting(&self) -> bool {
        matches!(self, AssignError::Program { .. } | AssignError::UnknownJob { .. })
    }

    /// The node could not start the job.
    pub fn failed(node: &NodeId, reason: impl Into<String>) -> Self {
        AssignError::Failed { node: node.clone(), reason: reason.into(), refused: None }
    }
}

/// To a worker: the job is over, or wanted no more. Answered when its threads have stopped.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Release {
    /// Which job.
    pub job: JobId,
    /// It is over for all: a word that it may be taken, sent by its coordinator before and over a slower link, comes too late.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub over: bool,
    /// The job's epoch. An [`Assign`] of an earlier one may still be on its way over a slower link.
    #[serde(default)]
    pub epoch: Epoch,
}

/// To a worker, by its site: end the process. Answered before it ends.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Shutdown {
    /// Why, for its log.
    pub reason: String,
}

/// What a running job tells whoever submitted it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JobNote {
    /// Which job.
    pub job: JobId,
    /// Of the coordinator that says it.
    #[serde(default)]
    pub epoch: Epoch,
    /// Counts up from 0 under each epoch.
    pub seq: u64,
    /// What.
    pub what: NoteKind,
}

/// See [`JobNote`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NoteKind {
    /// The root has started on this node.
    Started {
        /// Where.
        root: NodeId,
        /// Workers that joined, by cluster.
        workers: BTreeMap<ClusterId, u32>,
    },
    /// An iteration took this long, in seconds.
    Iteration {
        /// Counts up from 0.
        index: u64,
        /// Seconds.
        seconds: f64,
    },
    /// How far the job is.
    Progress {
        /// Done so far.
        done: u64,
        /// Of how many.
        total: u64,
        /// What is counted.
        what: String,
    },
    /// A line for the user.
    Say {
        /// The line.
        text: String,
    },
    /// A file for the run's directory.
    Artifact {
        /// A plain file name.
        name: String,
        /// Its contents.
        bytes: Bytes,
    },
    /// The outcome that the job would have if it ended now.
    Preliminary {
        /// The outcome.
        outcome: Box<Outcome>,
    },
    /// What happened on a node, for the run log: records as JSON lines.
    Events {
        /// The records.
        records: Vec<springtide_runtime::event::Record>,
    },
    /// The job's outcome, before its workers are let go: should nobody be left to tell the end in order, it counts.
    Outcome {
        /// What [`JobEnded`] will say.
        outcome: Box<Outcome>,
    },
    /// The period's statistics of the whole job, for who watches.
    Period {
        /// Sum over the job, since its start.
        total: Box<Statistics>,
    },
}

/// How far a job's root got, as it says itself. Each number only ever grows while one root runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Reached {
    /// Its newest checkpoint; a root that goes on from one counts on.
    pub checkpoint: u64,
    /// Iterations since this root's own start.
    pub iterations: u64,
    /// Of its progress, the part that is done.
    pub done: u64,
}

impl Reached {
    /// Takes what is further in any respect. Returns whether something was.
    pub fn take_further(&mut self, other: Reached) -> bool {
        let further = Reached {
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
    /// It was cancelled.
    #[error("the job was cancelled: {reason}")]
    Cancelled {
        /// Why.
        reason: String,
    },
    /// The node of the job's root was lost, and no other could take its place.
    #[error("node {node} was lost: {reason}")]
    NodeLost {
        /// Which node.
        node: NodeId,
        /// What is known, with its last lines where there are any.
        reason: String,
    },
    /// So many nodes died holding one task that it is taken for the cause.
    #[error("{}", blame(task, path, holders))]
    Poison {
        /// The task's name as registered; the job's for its root.
        task: String,
        /// Where in the tree.
        path: TaskPath,
        /// The deaths that count, in order of the nodes' names.
        holders: Vec<DeadHolder>,
    },
    /// It could not be started.
    #[error("the job could not be started: {reason}")]
    Start {
        /// Why.
        reason: String,
    },
}

/// A node that died holding a task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeadHolder {
    /// Who.
    pub node: NodeId,
    /// Which life of it.
    pub incarnation: Incarnation,
    /// How it died, with its last lines where there are any.
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
         if the nodes died of something else, raise --poison (0: never)",
    );
    text
}

/// A cluster's part in a report.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ClusterReport {
    /// Its workers.
    pub workers: u32,
    /// Their sums.
    pub statistics: Statistics,
}

/// What a job used and did.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct JobReport {
    /// From the root's start to its end, in seconds.
    pub wall_s: f64,
    /// Length of each iteration, in seconds.
    pub iterations: Vec<f64>,
    /// By cluster.
    pub clusters: BTreeMap<ClusterId, ClusterReport>,
    /// Sum over the job; its latencies hold the whole run.
    pub total: Statistics,
}

impl JobReport {
    /// The run's latency histograms.
    ///
    /// # Errors
    /// If the report's latencies are malformed.
    pub fn histograms(&self) -> Result<Histograms, springtide_runtime::meter::DeltaError> {
        let mut histograms = Histograms::default();
        histograms.apply(&self.total.latencies)?;
        Ok(histograms)
    }
}

/// To the client: the job has ended. Sent after all its notes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct JobEnded {
    /// Which job.
    pub job: JobId,
    /// Of the coordinator that says it; absent: the scheduler says it.
    #[serde(default)]
    pub epoch: Option<Epoch>,
    /// How.
    pub outcome: Result<Outcome, JobError>,
    /// What it used.
    pub report: JobReport,
}

/// To the scheduler, by the job's coordinator: the job has ended and its workers are released.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct JobOver {
    /// Which job.
    pub job: JobId,
    /// Its generation.
    pub epoch: Epoch,
    /// Whether it has an outcome.
    pub ok: bool,
    /// Workers that said that they have ended; absent: all have. Others may not have been reached, or were no members any more
    /// and do not know it, and work on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<BTreeSet<NodeId>>,
}

/// To the coordinator, by the scheduler: this member is dead, by its site's word. The job goes on without it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct MemberLost {
    /// Which job.
    pub job: JobId,
    /// Who.
    pub node: NodeId,
    /// How it ended, with its last lines where there are any.
    pub reason: String,
}

/// To the coordinator, by a worker: what nodes that are members no more had of it. Told again until it is answered.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DiedHolding {
    /// Which job.
    pub job: JobId,
    /// At most [`LOSSES_MAX`](springtide_runtime::work::LOSSES_MAX) tasks in all.
    pub losses: Vec<Loss>,
}

/// To the coordinator (published as [`coordinator_name`]), by the client or the scheduler: end the job without an outcome.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Cancel {
    /// Which job.
    pub job: JobId,
    /// Why.
    pub reason: String,
}

remote_message! {
    "assign" => Assign -> Result<(), AssignError>;
    "release" => Release;
    "shutdown" => Shutdown;
    "job-note" => JobNote;
    "job-ended" => JobEnded;
    "job-over" => JobOver;
    "cancel" => Cancel;
    "member-lost" => MemberLost;
    "died-holding" => DiedHolding;
}

/// The worker's published name on every node.
pub const WORKER: &str = "worker";
/// The same actor's name for checkpoints: messages to one name keep their order, and an order to leave is not to wait until a
/// checkpoint has come over a slow link.
pub const CHECKPOINTS: &str = "worker-checkpoints";
/// The scheduler's published name on the head.
pub const SCHEDULER: &str = "scheduler";
/// The submitting side's published name.
pub const CLIENT: &str = "client";

/// The published name of a cluster's site on the head (or on the cluster's own head).
pub fn site_name(cluster: &ClusterId) -> String {
    format!("site:{cluster}")
}

/// The published name of a job's coordinator on its node.
pub fn coordinator_name(job: JobId) -> String {
    format!("coordinator:{}", job.0)
}

/// The published name of a cluster's coordinator for a job on its node.
pub fn cluster_coordinator_name(job: JobId) -> String {
    format!("cluster-coordinator:{}", job.0)
}
