//! The decision: actions, their reasons and their predicted effect. Data only.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use springtide_base::id::{ClusterId, NodeId};
use springtide_base::processors::Processors;

use super::change::{Prediction, RemovalCause};
use super::reason::Reason;

/// A request to the scheduler. It states what the job *needs*; the grant may be smaller.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SchedulerRequest {
    /// Number of requested processors.
    pub count: Processors,
    /// Number of processors that the job can still use if no nodes fit `count`. A node with more
    /// processors than are wanted is given up to this number. Less than `count` counts as `count`.
    pub most: Processors,
    /// Minimum speed of each processor, in the job's unit.
    pub min_speed: Option<f64>,
    /// Minimum bandwidth of a cluster's link in bytes per second, where it is measured.
    pub min_bandwidth: Option<f64>,
    /// Preferred clusters among equals, in order: those in use, by latency and bandwidth.
    pub prefer: Vec<ClusterId>,
    /// Nodes to avoid: in quarantine, or leaving.
    pub avoid_nodes: BTreeSet<NodeId>,
    /// Clusters to avoid, in quarantine.
    pub avoid_clusters: BTreeSet<ClusterId>,
    /// Clusters to admit although their link was once measured below the minimum.
    pub waive: BTreeSet<ClusterId>,
}

/// One action of a decision. Removal is always a leave with notice: a node drains first and ends
/// afterwards.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "action", rename_all = "snake_case")]
pub enum AdaptationAction {
    /// Request processors from the scheduler.
    Request(SchedulerRequest),
    /// Withdraw requested processors that have not arrived.
    Withdraw {
        /// Number of processors to withdraw.
        count: Processors,
    },
    /// Order nodes to leave.
    Remove {
        /// Nodes to remove, worst first.
        nodes: Vec<NodeId>,
        /// Cause of the removal.
        cause: RemovalCause,
    },
    /// Order all nodes of a cluster to leave.
    RemoveCluster {
        /// Cluster to remove.
        cluster: ClusterId,
        /// Cause of the removal.
        cause: RemovalCause,
    },
    /// Move the job's root, its finished results and shared objects to another node.
    MoveRoot {
        /// Node that the root leaves.
        from: NodeId,
        /// Node that the root moves to.
        to: NodeId,
        /// Cluster of the new node.
        cluster: ClusterId,
    },
    /// Measure the bandwidth to a cluster with free nodes.
    Measure {
        /// Cluster to measure.
        cluster: ClusterId,
    },
}

impl AdaptationAction {
    /// Whether it changes the nodes of the job or the place of its root: all but a measurement.
    pub fn is_change(&self) -> bool {
        !matches!(self, AdaptationAction::Measure { .. })
    }
}

/// A notable property of a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Flag {
    /// Its actions are withheld, since the run is only monitored.
    MonitorOnly,
    /// Some reports were not believed.
    Nonsense,
    /// Nothing was decided: the snapshot is stale or was decided already.
    Fenced,
}

/// The decision of one period.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Decision {
    /// Weighted average efficiency, 0 to 1; absent if no node is measured.
    pub efficiency: Option<f64>,
    /// Number of counted processors.
    #[serde(alias = "nodes")]
    pub processors: Processors,
    /// Actions to execute, in this order.
    pub actions: Vec<AdaptationAction>,
    /// Actions withheld, in a run that is only monitored.
    pub withheld: Vec<AdaptationAction>,
    /// Predicted effect of a change of size.
    pub prediction: Option<Prediction>,
    /// Reasons of actions and of omissions.
    pub reasons: Vec<Reason>,
    /// Notable properties of the decision.
    pub flags: BTreeSet<Flag>,
}

impl Decision {
    /// Returns the decided actions, executed or withheld.
    pub fn decided(&self) -> &[AdaptationAction] {
        if self.withheld.is_empty() { &self.actions } else { &self.withheld }
    }
}
