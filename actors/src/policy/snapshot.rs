//! What a decision is taken from: one period of one job, as its coordinator sees it. Data only.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use springtide_runtime::config;
use springtide_runtime::id::{ClusterId, Epoch, NodeId};

use super::aggregate::ClusterAggregate;
use super::number::{float, maybe_float};

/// How far the coordinator may go. The paper's runtimes 1, 3 and 2.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// Nothing is measured and nothing changed.
    Static,
    /// All is measured and decided, nothing changed.
    Monitor,
    /// All of it.
    #[default]
    Adaptive,
}

impl Mode {
    /// The word for it on the command line and in files.
    pub fn word(self) -> &'static str {
        match self {
            Self::Static => "static",
            Self::Monitor => "monitor",
            Self::Adaptive => "adaptive",
        }
    }

    /// The mode of this word.
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

/// Where the job's root is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Root {
    /// Its node.
    pub node: NodeId,
    /// That node's cluster.
    pub cluster: ClusterId,
}

/// A node that was declared dead while it took part. One that was leaving is none of these: a planned leave is no
/// failure.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Crash {
    /// Which.
    pub node: NodeId,
    /// Where.
    pub cluster: ClusterId,
}

/// What is known of the link between two clusters.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LinkEstimate {
    /// One end.
    pub a: ClusterId,
    /// The other.
    pub b: ClusterId,
    /// Bytes per second, from transfers above the size floor.
    #[serde(with = "maybe_float", default)]
    pub bandwidth: Option<f64>,
    /// Round trip, in seconds.
    #[serde(with = "maybe_float", default)]
    pub rtt_s: Option<f64>,
    /// Seconds since it was measured.
    #[serde(with = "float", default)]
    pub age_s: f64,
}

/// Free nodes of a cluster, as the scheduler offers them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Offer {
    /// How many.
    pub free: u32,
    /// The job's speed on a node of this cluster, where it was measured.
    #[serde(with = "maybe_float")]
    pub speed: Option<f64>,
    /// Free nodes whose own speed was measured; the others are taken to have the cluster's.
    #[serde(with = "float_map")]
    pub nodes: BTreeMap<NodeId, f64>,
    /// Bytes per second between it and the job's clusters.
    #[serde(with = "maybe_float")]
    pub bandwidth: Option<f64>,
    /// Round trip to the job's root, in seconds.
    #[serde(with = "maybe_float")]
    pub rtt_s: Option<f64>,
    /// Seconds since that bandwidth was measured to a free node; absent if it is what the job had there.
    #[serde(with = "maybe_float", skip_serializing_if = "Option::is_none")]
    pub measured_s: Option<f64>,
}

mod float_map {
    use std::collections::BTreeMap;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    use springtide_runtime::id::NodeId;

    #[derive(Serialize, Deserialize)]
    #[serde(transparent)]
    struct Wrapped(#[serde(with = "super::super::number::float")] f64);

    pub fn serialize<S: Serializer>(map: &BTreeMap<NodeId, f64>, to: S) -> Result<S::Ok, S::Error> {
        to.collect_map(map.iter().map(|(node, &speed)| (node, Wrapped(speed))))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<BTreeMap<NodeId, f64>, D::Error> {
        let wrapped = BTreeMap::<NodeId, Wrapped>::deserialize(from)?;
        Ok(wrapped.into_iter().map(|(node, speed)| (node, speed.0)).collect())
    }
}

/// How far the job is, in its own units.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Progress {
    /// Iterations or units done.
    pub done: u64,
    /// Of how many, where known.
    #[serde(default)]
    pub total: Option<u64>,
}

/// One period.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Snapshot {
    /// Ownership generation of the coordinator that decides.
    pub epoch: Epoch,
    /// Counts up within the epoch.
    pub period: u64,
    /// The period's length, in seconds.
    #[serde(with = "float")]
    pub period_s: f64,
    /// Since the job's start, in seconds.
    #[serde(with = "float")]
    pub elapsed_s: f64,
    /// How far the decision may go.
    pub mode: Mode,
    /// The clusters that take part.
    pub clusters: BTreeMap<ClusterId, ClusterAggregate>,
    /// How many members each has by the membership's word, where known: a cluster that counts far more is not believed.
    pub members: BTreeMap<ClusterId, u32>,
    /// Clusters whose next word should have come by now.
    pub late: BTreeSet<ClusterId>,
    /// Where the root is.
    pub root: Option<Root>,
    /// Fewest nodes the job may have; 0 counts as 1.
    pub min_nodes: u32,
    /// Most; absent: no limit.
    pub max_nodes: Option<u32>,
    /// Nodes asked for and not arrived, as the *scheduler* last said: what it does not know of was lost and is asked
    /// anew.
    pub requested: u32,
    /// Nodes that were asked to leave, by whomever, and are not gone.
    pub leaving: BTreeSet<NodeId>,
    /// Since the last period.
    pub crashes: Vec<Crash>,
    /// Links between clusters.
    pub links: Vec<LinkEstimate>,
    /// Free nodes, as last heard.
    pub offers: BTreeMap<ClusterId, Offer>,
    /// How far the job is, where it says so.
    pub progress: Option<Progress>,
    /// The scheduler has given the job nodes by itself, or has asked for some back, since the last period.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub ordered: bool,
}

impl Snapshot {
    /// Bytes per second that a cluster's way to the others is measured to carry: its own estimate, else the best of its
    /// links (the worst would blame it for its partner). What is no positive number is not known.
    pub fn uplink(&self, cluster: &ClusterId) -> Option<f64> {
        let own = self.clusters.get(cluster).and_then(|c| c.uplink.bandwidth);
        let links = self.links.iter().filter(|link| link.a == *cluster || link.b == *cluster);
        let offered = self.offers.get(cluster).and_then(|offer| offer.bandwidth);
        own.filter(|&b| is_rate(b))
            .or_else(|| {
                links.filter_map(|link| link.bandwidth).filter(|&b| is_rate(b)).reduce(f64::max)
            })
            .or_else(|| offered.filter(|&b| is_rate(b)))
    }

    /// Whether some cluster is silent: its members' tasks may be waited for in vain.
    pub fn is_silent(&self) -> bool {
        !self.late.is_empty() || self.members.keys().any(|id| !self.clusters.contains_key(id))
    }

    /// Round trip between two clusters, in seconds.
    pub fn rtt(&self, from: &ClusterId, to: &ClusterId) -> Option<f64> {
        if from == to {
            return Some(0.0);
        }
        let between =
            |l: &&LinkEstimate| (l.a == *from && l.b == *to) || (l.a == *to && l.b == *from);
        let known = |rtt: &f64| rtt.is_finite() && *rtt >= 0.0;
        self.links.iter().find(between).and_then(|link| link.rtt_s).filter(known)
    }

    /// Seconds the job still needs at its present pace, where it says how far it is.
    pub fn remaining_s(&self) -> Option<f64> {
        let Progress { done, total } = self.progress?;
        let total = total?;
        if done == 0 || !is_rate(self.elapsed_s) {
            return None;
        }
        Some(self.elapsed_s * (total.saturating_sub(done)) as f64 / done as f64)
    }
}

/// Whether it is a positive number.
pub(super) fn is_rate(x: f64) -> bool {
    x > 0.0 && x.is_finite()
}
