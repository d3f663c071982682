//! A change of a job's nodes: its subject, cause and purpose, and the states before and after it.
//! Data only.

use serde::{Deserialize, Serialize};
use springtide_base::id::{ClusterId, NodeId};
use springtide_base::processors::Processors;

/// A node or a whole cluster.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum QuarantineSubject {
    /// One node.
    Node(NodeId),
    /// All nodes of a cluster with a bad link.
    Cluster(ClusterId),
}

impl std::fmt::Display for QuarantineSubject {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            QuarantineSubject::Node(node) => write!(f, "node {node}"),
            QuarantineSubject::Cluster(cluster) => write!(f, "cluster {cluster}"),
        }
    }
}

/// Cause of a node's removal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RemovalCause {
    /// Much slower than the others.
    Slow,
    /// Its link to the other clusters is too slow for the application.
    Link,
    /// It is healthy, but the job has more processors than it can use or may have.
    Surplus,
    /// A better node replaces it.
    Replaced,
    /// It was declared dead.
    Crashed,
}

impl RemovalCause {
    /// Whether the cause lies in the node. Then it is not requested again for a while.
    pub fn is_for_cause(self) -> bool {
        matches!(self, RemovalCause::Slow | RemovalCause::Link | RemovalCause::Crashed)
    }
}

impl std::fmt::Display for RemovalCause {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            RemovalCause::Slow => "it is slow",
            RemovalCause::Link => "its link is too slow for the application",
            RemovalCause::Surplus => "the job has more processors than it can use",
            RemovalCause::Replaced => "a better node takes its place",
            RemovalCause::Crashed => "it crashed",
        })
    }
}

/// Purpose of an action.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Aim {
    /// Add nodes, since efficiency is above the band.
    Grow,
    /// Replace lost nodes.
    Refill,
    /// Remove bad nodes.
    Cure,
    /// Remove surplus nodes.
    Shrink,
    /// Remove a cluster with a bad link.
    Unlink,
    /// Replace nodes by better ones.
    Migrate,
}

/// A term of the badness formula.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Term {
    /// The term alpha / speed.
    Speed,
    /// The term beta * inter-cluster overhead.
    Link,
    /// The term gamma, for nodes in the worst cluster.
    Cluster,
}

/// Measured state of a job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Measured {
    /// Number of counted processors.
    #[serde(alias = "nodes")]
    pub processors: Processors,
    /// Weighted average efficiency, 0 to 1.
    pub efficiency: f64,
    /// Useful speed: work units per second.
    pub useful: f64,
}

/// Predicted state of the job once the actions have settled.
pub type Prediction = Measured;

/// A member that was declared dead. Excludes leaving nodes: a planned leave is not a failure.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Crash {
    /// The node that died.
    pub node: NodeId,
    /// The cluster of this node.
    pub cluster: ClusterId,
}
