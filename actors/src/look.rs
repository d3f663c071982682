//! What a job's roles tell whoever shows the grid to people: asked for, never pushed, so that a grid that nobody watches pays
//! nothing for it.
//!
//! Data only; must not know how it is shown. The head asks the job's coordinator (O(clusters)) and each cluster's (O(its
//! workers)); a cluster's coordinator that is asked glances at its workers, so that what it tells is a second old and not a
//! period. Who stops asking ends it.

use std::collections::{BTreeMap, VecDeque};

use serde::{Deserialize, Serialize};
use springtide_runtime::id::{ClusterId, Epoch, Incarnation, JobId, NodeId};
use springtide_runtime::meter::{LatencySummary, Statistics, ThreadState};
use springtide_runtime::remote_message;

use crate::policy::{Action, LinkEstimate, Logged, Mode, Progress, action};

/// To a job's coordinator, by whoever shows it: how is the job?
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LookAtJob {
    /// Which.
    pub job: JobId,
}

/// To a cluster's coordinator: how are the workers?
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LookAtCluster {
    /// Of which job.
    pub job: JobId,
}

/// To a worker, by its cluster's coordinator: what have you done so far?
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Glance {
    /// For which job.
    pub job: JobId,
}

remote_message! {
    "look-at-job" => LookAtJob -> Option<JobLook>;
    "look-at-cluster" => LookAtCluster -> Option<ClusterLook>;
    "glance" => Glance -> Option<WorkerSums>;
}

/// A job as its coordinator sees it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct JobLook {
    /// Its ownership generation.
    pub epoch: Epoch,
    /// The view's version in it.
    pub view: u64,
    /// The node of its root.
    pub root: Option<NodeId>,
    /// Since its start, in seconds.
    pub elapsed_s: f64,
    /// How far its set of nodes is adapted.
    pub mode: Mode,
    /// The statistics period in seconds.
    pub period_s: f64,
    /// The band that efficiency is kept in.
    pub band: (f64, f64),
    /// Weighted average efficiency as last measured, and over how many nodes.
    pub efficiency: Option<(f64, u32)>,
    /// How far it says that it is, and in what.
    pub progress: Option<(Progress, String)>,
    /// Iterations that it has told of, and how long the last took, in seconds.
    pub iterations: (u64, f64),
    /// Its clusters.
    pub clusters: BTreeMap<ClusterId, ClusterSum>,
    /// Of its whole life.
    pub latencies: BTreeMap<String, LatencySummary>,
    /// The latest decisions that changed something, or would have, in order.
    pub decisions: VecDeque<DecisionLook>,
    /// What was thought in the last period.
    pub thought: Vec<String>,
    /// Links between its clusters, as they are believed to be.
    pub links: Vec<LinkEstimate>,
}

/// A cluster's part in a job.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ClusterSum {
    /// The node of its coordinator; absent when it has no members any more.
    pub host: Option<NodeId>,
    /// Its members.
    pub workers: u32,
    /// What it has done since the job's start, those that left included.
    pub sums: Statistics,
}

/// A decision in short.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct DecisionLook {
    /// The coordinator's epoch, and the period in it.
    pub at: (Epoch, u64),
    /// Seconds since the job's start.
    pub elapsed_s: f64,
    /// Weighted average efficiency by which it was taken.
    pub efficiency: Option<f64>,
    /// Whether nodes are added (1), go (-1), or neither (0).
    pub sign: i8,
    /// It was only thought: the job is monitored.
    pub withheld: bool,
    /// What is done.
    pub text: String,
    /// Why, a sentence each.
    pub why: Vec<String>,
}

impl DecisionLook {
    /// A logged decision in short; none if nothing was to be done.
    pub fn of(logged: &Logged) -> Option<Self> {
        let (snapshot, decision) = (&logged.inputs.snapshot, &logged.decision);
        let actions = decision.decided();
        let shown = actions.iter().filter(|action| !matches!(action, Action::Measure { .. }));
        let texts: Vec<String> = shown.clone().map(action).collect();
        if texts.is_empty() {
            return None;
        }
        let sign = |action: &Action| match action {
            Action::Request(_) => 1,
            Action::Withdraw { .. } | Action::Remove { .. } | Action::RemoveCluster { .. } => -1,
            Action::MoveRoot { .. } | Action::Measure { .. } => 0,
        };
        Some(Self {
            at: (snapshot.epoch, snapshot.period),
            elapsed_s: snapshot.elapsed_s,
            efficiency: decision.efficiency,
            sign: shown.map(sign).find(|sign| *sign != 0).unwrap_or(0),
            withheld: !decision.withheld.is_empty(),
            text: texts.join("; "),
            why: decision.why.iter().map(ToString::to_string).collect(),
        })
    }
}

/// The workers of a cluster as its coordinator sees them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ClusterLook {
    /// In order of name.
    pub workers: Vec<WorkerLook>,
}

/// A worker as its cluster's coordinator sees it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WorkerLook {
    /// Which.
    #[serde(rename = "n")]
    pub node: NodeId,
    /// Which life of it.
    #[serde(rename = "i")]
    pub incarnation: Incarnation,
    /// It is to leave.
    #[serde(rename = "l", default)]
    pub leaving: bool,
    /// Milliseconds since it was last heard of; absent before its first word.
    #[serde(rename = "a", default)]
    pub age_ms: Option<u64>,
    /// What it has done.
    #[serde(rename = "w", default)]
    pub sums: WorkerSums,
    /// How fast it is, in the job's unit.
    #[serde(rename = "v", default, skip_serializing_if = "Option::is_none")]
    pub speed: Option<f64>,
}

/// What a worker has done for a job since it joined.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct WorkerSums {
    /// Microseconds of its threads in each of [`ThreadState::ALL`].
    #[serde(rename = "t")]
    pub times_us: [u64; 5],
    /// Tasks run to their end.
    #[serde(rename = "e")]
    pub executed: u64,
    /// Of these, stolen from nodes of each cluster.
    #[serde(rename = "s")]
    pub stolen: BTreeMap<ClusterId, u64>,
}

impl WorkerSums {
    /// Of a node's statistics.
    pub fn of(statistics: &Statistics, stolen: BTreeMap<ClusterId, u64>) -> Self {
        let times_us = ThreadState::ALL.map(|state| statistics.times.get(state) / 1000);
        Self { times_us, executed: statistics.counters.tasks.executed, stolen }
    }

    /// Whether it is of a later moment than the other, of the same life.
    pub fn is_later(&self, other: &Self) -> bool {
        self.times_us.iter().sum::<u64>() > other.times_us.iter().sum()
    }
}
