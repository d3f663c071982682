//! Inspection of a job's roles by programs that show the grid. Data is requested, never pushed, so
//! that a grid without viewers has no cost.
//!
//! Data only. The head asks the job's coordinator (O(clusters)) and each cluster's coordinator
//! (O(its workers)). An inspected cluster coordinator queries its workers, so that its data is a
//! second old rather than a period. It stops without further requests.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use springtide_base::id::{ClusterId, Epoch, Incarnation, JobId, NodeId, TaskPath};
use springtide_base::processors::Processors;
use springtide_metrics::{LatencySummary, Statistics, ThreadState};
use springtide_remote::remote_message;
use springtide_work::work::PhaseTimes;

use crate::policy::{
    AdaptationAction, JobProgress, LinkEstimate, LoggedDecision, Mode, describe_action,
};

/// To a job's coordinator: returns the state of the job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InspectJob {
    /// The job to inspect.
    pub job: JobId,
    /// Number of the picture that the sender has. The answer contains another one if there is one.
    /// Absent: no picture is requested.
    #[serde(default)]
    pub picture: Option<u64>,
}

/// To a cluster's coordinator: returns the state of the workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InspectCluster {
    /// The job to inspect.
    pub job: JobId,
}

/// To a worker, by its cluster's coordinator: returns its totals.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueryWorker {
    /// The job to inspect.
    pub job: JobId,
}

remote_message! {
    "look-at-job" => InspectJob -> Option<JobSnapshot>;
    "look-at-cluster" => InspectCluster -> Option<ClusterSnapshot>;
    "glance" => QueryWorker -> Option<WorkerTotals>;
}

/// State of a job according to its coordinator.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct JobSnapshot {
    /// Epoch of the coordinator.
    pub epoch: Epoch,
    /// Version of the view within the epoch.
    pub view: u64,
    /// Node of its root.
    pub root: Option<NodeId>,
    /// Seconds since its start.
    pub elapsed_s: f64,
    /// Extent of its adaptation.
    pub mode: Mode,
    /// Statistics period in seconds.
    pub period_s: f64,
    /// Band of the efficiency.
    pub band: (f64, f64),
    /// Last measured weighted average efficiency, and its number of processors.
    pub efficiency: Option<(f64, Processors)>,
    /// Reported progress, and its unit.
    pub progress: Option<(JobProgress, String)>,
    /// Number of reported iterations, and the duration of the last one in seconds.
    pub iterations: (u64, f64),
    /// Clusters of the job.
    pub clusters: BTreeMap<ClusterId, ClusterTotals>,
    /// Latencies over its whole life.
    pub latencies: BTreeMap<String, LatencySummary>,
    /// Latest decisions with actions, executed or withheld, in order.
    pub decisions: VecDeque<DecisionSummary>,
    /// Reasons of the last period's decision.
    pub reasons: Vec<String>,
    /// Estimates of the links between its clusters.
    pub links: Vec<LinkEstimate>,
    /// Times of the phases of all iterations on the root's node, if the job measures them.
    pub phases: PhaseTimes,
    /// The latest picture, if it was requested.
    pub picture: Option<JobPicture>,
}

/// The longest picture that a coordinator keeps for inspection, in bytes.
pub const PICTURE_BYTES_MAX: usize = 2 << 20;

/// A picture that a job has written: a file in PNG format.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JobPicture {
    /// Number of the picture, from 1.
    pub number: u64,
    /// Name of the file.
    pub name: String,
    /// Contents of the file.
    pub bytes: Bytes,
}

/// A cluster's part in a job.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ClusterTotals {
    /// Node of its coordinator; absent without members.
    pub host: Option<NodeId>,
    /// Number of its members.
    pub workers: u32,
    /// Statistics since the job's start, including those of departed nodes.
    pub sums: Statistics,
}

/// Summary of a decision.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct DecisionSummary {
    /// The coordinator's epoch, and the period in it.
    pub at: (Epoch, u64),
    /// Seconds since the job's start.
    pub elapsed_s: f64,
    /// Weighted average efficiency at the decision.
    pub efficiency: Option<f64>,
    /// Whether nodes are added (1), removed (-1), or neither (0).
    pub sign: i8,
    /// Whether it is withheld, since the job is monitored.
    pub withheld: bool,
    /// Description of the actions.
    pub text: String,
    /// Its reasons, one sentence each.
    pub why: Vec<String>,
}

impl DecisionSummary {
    /// Summarises a logged decision; none if it has no actions.
    pub fn of(logged: &LoggedDecision) -> Option<Self> {
        let (snapshot, decision) = (&logged.inputs.snapshot, &logged.decision);
        let actions = decision.decided();
        let shown =
            actions.iter().filter(|action| !matches!(action, AdaptationAction::Measure { .. }));
        let texts: Vec<String> = shown.clone().map(describe_action).collect();
        if texts.is_empty() {
            return None;
        }
        let sign = |action: &AdaptationAction| match action {
            AdaptationAction::Request(_) => 1,
            AdaptationAction::Withdraw { .. }
            | AdaptationAction::Remove { .. }
            | AdaptationAction::RemoveCluster { .. } => -1,
            AdaptationAction::MoveRoot { .. } | AdaptationAction::Measure { .. } => 0,
        };
        Some(Self {
            at: (snapshot.epoch, snapshot.period),
            elapsed_s: snapshot.elapsed_s,
            efficiency: decision.efficiency,
            sign: shown.map(sign).find(|sign| *sign != 0).unwrap_or(0),
            withheld: !decision.withheld.is_empty(),
            text: texts.join("; "),
            why: decision.reasons.iter().map(ToString::to_string).collect(),
        })
    }
}

/// State of a cluster's workers according to its coordinator.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ClusterSnapshot {
    /// The workers in order of name.
    pub workers: Vec<WorkerSnapshot>,
}

/// State of a worker according to its cluster's coordinator.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WorkerSnapshot {
    /// Node of the worker.
    #[serde(rename = "n")]
    pub node: NodeId,
    /// Incarnation of the node.
    #[serde(rename = "i")]
    pub incarnation: Incarnation,
    /// Whether it is leaving.
    #[serde(rename = "l", default)]
    pub leaving: bool,
    /// Milliseconds since its last report; absent before the first.
    #[serde(rename = "a", default)]
    pub age_ms: Option<u64>,
    /// Its totals since it joined.
    #[serde(rename = "w", default)]
    pub sums: WorkerTotals,
    /// Its speed, in the job's unit.
    #[serde(rename = "v", default, skip_serializing_if = "Option::is_none")]
    pub speed: Option<f64>,
}

/// Totals of a worker for a job since it joined.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct WorkerTotals {
    /// Microseconds of its threads in each of [`ThreadState::ALL`].
    #[serde(rename = "t")]
    pub times_us: [u64; 5],
    /// Number of completed tasks.
    #[serde(rename = "e")]
    pub executed: u64,
    /// Number of these stolen from each cluster.
    #[serde(rename = "s")]
    pub stolen: BTreeMap<ClusterId, u64>,
    /// Tasks of other nodes that run there at the time of a query, at most
    /// [`RUNNING_TASKS_MAX`].
    #[serde(rename = "r", skip_serializing_if = "Vec::is_empty")]
    pub running: Vec<HeldTask>,
}

/// The maximum number of running tasks in the answer of a worker.
pub const RUNNING_TASKS_MAX: usize = 8;

/// A task that runs on a node which has stolen it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldTask {
    /// Name of the task's type.
    #[serde(rename = "n")]
    pub name: String,
    /// Path of the task in its job.
    #[serde(rename = "p")]
    pub path: TaskPath,
    /// Node that the task was stolen from.
    #[serde(rename = "f")]
    pub from: NodeId,
}

impl WorkerTotals {
    /// Extracts the totals from a node's statistics.
    pub fn of(statistics: &Statistics, stolen: BTreeMap<ClusterId, u64>) -> Self {
        let times_us = ThreadState::ALL.map(|state| statistics.times.get(state) / 1000);
        let executed = statistics.counters.tasks.executed;
        Self { times_us, executed, stolen, running: Vec::new() }
    }

    /// Whether it is later than another one of the same incarnation.
    pub fn is_later(&self, other: &Self) -> bool {
        self.times_us.iter().sum::<u64>() > other.times_us.iter().sum()
    }
}
