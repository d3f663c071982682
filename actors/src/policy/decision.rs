//! What is decided: plain values that say what to do, why, and what is expected of it. Data only.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use springtide_runtime::id::{ClusterId, NodeId};

use super::memory::Measured;
use super::reason::Reason;

/// Why somebody goes, or went.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// Much slower than the others.
    Slow,
    /// Its link to the other clusters is too slow for the application.
    Link,
    /// Nothing is wrong with it: the job has more nodes than it can use, or than it may have.
    Surplus,
    /// A better node takes its place.
    Replaced,
    /// It was declared dead.
    Crashed,
}

impl Cause {
    /// Whether it says something of the node: then it is not asked for again for a while.
    pub fn is_for_cause(self) -> bool {
        matches!(self, Cause::Slow | Cause::Link | Cause::Crashed)
    }
}

impl std::fmt::Display for Cause {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Cause::Slow => "it is slow",
            Cause::Link => "its link is too slow for the application",
            Cause::Surplus => "the job has more nodes than it can use",
            Cause::Replaced => "a better node takes its place",
            Cause::Crashed => "it crashed",
        })
    }
}

/// What is asked of the scheduler. It says *what* is needed; what is granted may be less.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Request {
    /// So many nodes.
    pub count: u32,
    /// Each at least so fast, in the job's unit of speed.
    pub min_speed: Option<f64>,
    /// In clusters whose link carries so many bytes per second, as far as that was measured.
    pub min_bandwidth: Option<f64>,
    /// Among equals in these clusters, first one first: those in use, by latency and bandwidth.
    pub prefer: Vec<ClusterId>,
    /// Not these nodes: on parole, or on their way out.
    pub avoid_nodes: BTreeSet<NodeId>,
    /// None of these clusters.
    pub avoid_clusters: BTreeSet<ClusterId>,
    /// These may be tried again although their link was once measured below the minimum.
    pub waive: BTreeSet<ClusterId>,
}

/// One thing to do. Removal is always a leave with notice: drained first, ended after.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "action", rename_all = "snake_case")]
pub enum Action {
    /// Ask the scheduler for nodes.
    Request(Request),
    /// Take back what was asked for and has not arrived.
    Withdraw {
        /// So many of them.
        count: u32,
    },
    /// Tell these nodes to leave.
    Remove {
        /// Which, worst first.
        nodes: Vec<NodeId>,
        /// Why.
        cause: Cause,
    },
    /// Tell all nodes of a cluster to leave.
    RemoveCluster {
        /// Which.
        cluster: ClusterId,
        /// Why.
        cause: Cause,
    },
    /// Hand the job's root, its finished results and shared objects to another node.
    MoveRoot {
        /// From this node.
        from: NodeId,
        /// To this one.
        to: NodeId,
        /// Which is in this cluster.
        cluster: ClusterId,
    },
    /// Measure what the way to a cluster carries, whose nodes are free.
    Measure {
        /// Which.
        cluster: ClusterId,
    },
}

/// What is expected of the actions once they have settled.
pub type Prediction = Measured;

/// What a reader should notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Flag {
    /// It was decided and not done: the run is only monitored.
    MonitorOnly,
    /// Reports were not believed.
    Nonsense,
    /// The snapshot is of a former coordinator, or was decided before: nothing was decided.
    Fenced,
}

/// The decision of one period.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Decision {
    /// Weighted average efficiency, 0 to 1; absent if nobody was measured.
    pub efficiency: Option<f64>,
    /// Nodes behind it.
    pub nodes: u32,
    /// What to do, in this order.
    pub actions: Vec<Action>,
    /// What would have been done, in a run that is only monitored.
    pub withheld: Vec<Action>,
    /// What is expected of a change of size.
    pub prediction: Option<Prediction>,
    /// Why: also for what was not done.
    pub why: Vec<Reason>,
    /// What to notice.
    pub flags: BTreeSet<Flag>,
}

impl Decision {
    /// What was decided, done or not.
    pub fn decided(&self) -> &[Action] {
        if self.withheld.is_empty() { &self.actions } else { &self.withheld }
    }
}
