//! The input of a decision: one period of one job, as its coordinator sees it. Data only.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use springtide_base::id::{ClusterId, Epoch, NodeId};
use springtide_base::processors::Processors;
use springtide_config as config;

use super::aggregate::ClusterAggregate;
use super::change::Crash;
use super::number::{float, is_rate, maybe_float};

/// Extent of adaptation: the paper's runtimes 1, 3 and 2.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// No measurements and no changes.
    Static,
    /// Measurements and decisions, but no changes.
    Monitor,
    /// Measurements, decisions and changes.
    #[default]
    Adaptive,
}

impl Mode {
    /// Returns the mode's name on the command line and in files.
    pub fn word(self) -> &'static str {
        match self {
            Self::Static => "static",
            Self::Monitor => "monitor",
            Self::Adaptive => "adaptive",
        }
    }

    /// Parses the mode's name.
    pub fn of_word(word: &str) -> Option<Self> {
        [Self::Static, Self::Monitor, Self::Adaptive].into_iter().find(|mode| mode.word() == word)
    }
}

impl From<config::Mode> for Mode {
    fn from(mode: config::Mode) -> Self {
        match mode {
            config::Mode::Static => Self::Static,
            config::Mode::Monitor => Self::Monitor,
            config::Mode::Adaptive => Self::Adaptive,
        }
    }
}

/// The node that holds the job's root.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RootNode {
    /// The node of the root.
    pub node: NodeId,
    /// The cluster of this node.
    pub cluster: ClusterId,
}

/// Measured properties of the link between two clusters.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LinkEstimate {
    /// The cluster at one end.
    pub a: ClusterId,
    /// The cluster at the other end.
    pub b: ClusterId,
    /// Bytes per second, from transfers above the minimum size.
    #[serde(with = "maybe_float", default)]
    pub bandwidth: Option<f64>,
    /// Round-trip time, in seconds.
    #[serde(with = "maybe_float", default)]
    pub rtt_s: Option<f64>,
    /// Seconds since the measurement.
    #[serde(with = "float", default)]
    pub age_s: f64,
}

impl LinkEstimate {
    /// Whether it is the link between these two clusters.
    pub(super) fn is_between(&self, one: &ClusterId, other: &ClusterId) -> bool {
        (&self.a, &self.b) == (one, other) || (&self.a, &self.b) == (other, one)
    }
}

/// Free nodes of a cluster, as the scheduler offers them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct NodeOffer {
    /// Number of the free nodes' processors.
    pub free: Processors,
    /// Processors of the smallest free node; 0 if unknown.
    pub smallest: Processors,
    /// The job's speed on a processor of this cluster, where measured.
    #[serde(with = "maybe_float")]
    pub speed: Option<f64>,
    /// Free nodes with a measurement of their own. The processors of the others are assumed to have
    /// the cluster's speed.
    pub nodes: BTreeMap<NodeId, OfferedNode>,
    /// Bytes per second between this cluster and the job's clusters.
    #[serde(with = "maybe_float")]
    pub bandwidth: Option<f64>,
    /// Round-trip time to the job's root, in seconds.
    #[serde(with = "maybe_float")]
    pub rtt_s: Option<f64>,
    /// Seconds since the bandwidth was measured to a free node. Absent if the bandwidth comes from
    /// the job's own past nodes there.
    #[serde(with = "maybe_float", skip_serializing_if = "Option::is_none")]
    pub measured_s: Option<f64>,
}

/// A free node whose speed was measured.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct OfferedNode {
    /// Processors of the node.
    pub processors: Processors,
    /// Speed of one of them.
    #[serde(with = "float")]
    pub speed: f64,
}

/// Progress of the job, in its own units.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct JobProgress {
    /// Iterations or units completed.
    pub done: u64,
    /// Total iterations or units, where known.
    #[serde(default)]
    pub total: Option<u64>,
}

/// One period of a job, as its coordinator sees it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Snapshot {
    /// Epoch of the deciding coordinator.
    pub epoch: Epoch,
    /// Number of the period within the epoch.
    pub period: u64,
    /// Length of the period, in seconds.
    #[serde(with = "float")]
    pub period_s: f64,
    /// Seconds since the job's start.
    #[serde(with = "float")]
    pub elapsed_s: f64,
    /// Extent of adaptation in this period.
    pub mode: Mode,
    /// Aggregates of the job's clusters.
    pub clusters: BTreeMap<ClusterId, ClusterAggregate>,
    /// Processors of each cluster's members according to the membership, where known. An aggregate
    /// with far more is not believed.
    pub members: BTreeMap<ClusterId, Processors>,
    /// Clusters whose report is overdue.
    pub late: BTreeSet<ClusterId>,
    /// Node and cluster of the root.
    pub root: Option<RootNode>,
    /// Minimum processors of the job; 0 counts as 1.
    pub min_processors: Processors,
    /// Maximum processors of the job; absent: no limit.
    pub max_processors: Option<Processors>,
    /// Processors requested and not arrived, as the *scheduler* last reported. A request that the
    /// scheduler does not know was lost, and is repeated.
    pub requested: Processors,
    /// Nodes that any party asked to leave, and that are still members, with their processors.
    pub leaving: BTreeMap<NodeId, Processors>,
    /// Crashes since the last period.
    pub crashes: Vec<Crash>,
    /// Estimates of links between clusters.
    pub links: Vec<LinkEstimate>,
    /// Free nodes, as last reported.
    pub offers: BTreeMap<ClusterId, NodeOffer>,
    /// Progress of the job, where it reports any.
    pub progress: Option<JobProgress>,
    /// Whether all processors take the job's steps together, as in an SPMD program. Then a wait for
    /// another cluster does not show whose link is slow: the fastest processes wait longest.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub synchronous: bool,
    /// Whether the root has saved a checkpoint, from which it continues on another node.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub has_checkpoints: bool,
    /// Whether the scheduler has given or reclaimed nodes on its own since the last period.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub ordered: bool,
}

impl Snapshot {
    /// Measured bandwidth of a cluster's uplink, in bytes per second.
    ///
    /// Its own estimate, else that of its best link (the worst would blame it for its partner). A
    /// value that is not a positive number counts as unknown. An estimate comes from single
    /// transfers, which share the link. So the bandwidth is at least what the uplink carries.
    pub fn uplink(&self, cluster: &ClusterId) -> Option<f64> {
        let uplink = self.clusters.get(cluster).map(|own| own.uplink).unwrap_or_default();
        // A link of a cluster to itself is not an uplink.
        let links = self.links.iter().filter(|link| link.a != link.b);
        let links = links.filter(|link| link.a == *cluster || link.b == *cluster);
        let offered = self.offers.get(cluster).and_then(|offer| offer.bandwidth);
        let valid = |rate: &f64| is_rate(*rate);
        let estimate = uplink
            .bandwidth
            .filter(valid)
            .or_else(|| links.filter_map(|link| link.bandwidth).filter(valid).reduce(f64::max))
            .or_else(|| offered.filter(valid))?;
        Some(uplink.used.filter(valid).map_or(estimate, |used| used.max(estimate)))
    }

    /// Whether a cluster is silent: other members may wait in vain for its tasks.
    pub fn is_silent(&self) -> bool {
        !self.late.is_empty() || self.members.keys().any(|id| !self.clusters.contains_key(id))
    }

    /// Measured bandwidth of the link between two clusters, in bytes per second.
    pub fn bandwidth(&self, from: &ClusterId, to: &ClusterId) -> Option<f64> {
        let link = self.links.iter().find(|link| link.is_between(from, to))?;
        link.bandwidth.filter(|rate| is_rate(*rate))
    }

    /// Round-trip time between two clusters, in seconds.
    pub fn rtt(&self, from: &ClusterId, to: &ClusterId) -> Option<f64> {
        if from == to {
            return Some(0.0);
        }
        let known = |rtt: &f64| rtt.is_finite() && *rtt >= 0.0;
        let link = self.links.iter().find(|link| link.is_between(from, to))?;
        link.rtt_s.filter(known)
    }

    /// Estimated remaining seconds at the job's average pace, where it reports its progress.
    pub fn remaining_s(&self) -> Option<f64> {
        let JobProgress { done, total } = self.progress?;
        let total = total?;
        if done == 0 || !is_rate(self.elapsed_s) {
            return None;
        }
        Some(self.elapsed_s * (total.saturating_sub(done)) as f64 / done as f64)
    }
}
