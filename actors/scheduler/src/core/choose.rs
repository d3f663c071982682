//! Selection of free nodes for a request: a pure function, which explains its choice.
//!
//! Source: "Self-adaptive applications on the grid" (PPoPP 2007), section 3, future work: request
//! the fastest processors instead of any, by a benchmark for the scheduler, and a minimum
//! bandwidth. The scheduler of that paper, Zorilla, prefers nearby nodes. The rules, in this order:
//!
//! 1. Excluded are avoided nodes and clusters, nodes *known* to be slower than the minimum, and
//!    clusters whose *measured* bandwidth is below the minimum. A cluster that may be tried again
//!    is not excluded. Unknown values exclude no node.
//! 2. Nodes of clusters whose measured bandwidth is below the minimum come last.
//! 3. Nodes with faster processors come first. Speeds within 5 % of the fastest of their class are
//!    equal, which is the precision of benchmarks. Nodes with a known speed precede others. The
//!    others rank by clock, reduced where threads share a core, or without the clock if any is
//!    unknown.
//! 4. Among equals, the clusters of `prefer` come first in its order. Then counts the time of a
//!    transfer by latency and bandwidth ([`LinkRanking`]), and then the name. An unknown value
//!    counts as the median of the known ones: it is neither the best nor the worst.
//!
//! 4. Nodes are taken in this order so that their processors fit the requested number
//!    ([`select_nodes`]).
//!
//! This module must not depend on the source of the data, nor on the use of the nodes.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};
use springtide_base::id::{ClusterId, NodeId};
use springtide_base::processors::{Processors, select_nodes};

use crate::hardware::Hardware;
use crate::policy::{LinkRank, LinkRanking, SchedulerRequest};

/// Relative difference below which two speeds are equal.
const EQUAL_TOLERANCE: f64 = 0.05;
/// Greatest number of nodes that an explanation lists.
const LISTED_MAX: usize = 8;

/// A free node of the grid.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FreeNode {
    /// Cluster of the node.
    pub cluster: ClusterId,
    /// Speed of all its processors in the job's unit, if it was measured on this node or one of its
    /// kind.
    pub speed: Option<f64>,
    /// Number of compute threads, one for each processor; 0 if unknown.
    pub threads: u32,
    /// Hardware of the node's host.
    pub hardware: Hardware,
}

impl FreeNode {
    /// The node's processors. A node of unknown number counts as one.
    pub fn processors(&self) -> Processors {
        Processors::of_node(self.threads)
    }

    /// The mean speed of its processors, if it is a valid one.
    fn known(&self) -> Option<f64> {
        let speed = self.speed.filter(|&speed| is_rate(speed))?;
        Some(speed / f64::from(self.processors()))
    }

    /// Share of a core that each thread has, times the clock unless `without_clock`.
    fn rating(&self, without_clock: bool) -> f64 {
        let share = match self.hardware.threads {
            0 => 1.0,
            cores => (f64::from(cores) / f64::from(self.processors())).min(1.0),
        };
        share * if without_clock { 1.0 } else { f64::from(self.hardware.mhz) }
    }
}

/// Inputs of a selection.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SelectionInput {
    /// Number of processors to select.
    pub count: Processors,
    /// Greatest number of processors, if no nodes fit `count`. Less than `count` counts as `count`.
    #[serde(default)]
    pub most: Processors,
    /// Criteria of the job's request.
    pub request: SchedulerRequest,
    /// Round-trip times from the job's root, in seconds.
    pub rtt_s: BTreeMap<ClusterId, f64>,
    /// Rates between each cluster and the job's other clusters, in bytes per second.
    pub bandwidth: BTreeMap<ClusterId, f64>,
    /// All free nodes of the grid.
    pub free: BTreeMap<NodeId, FreeNode>,
}

/// Reasons why a free node is not selected.
#[derive(Clone, Debug, PartialEq)]
pub enum NodeExclusion {
    /// The request avoids the node.
    Avoided,
    /// The request avoids the node's cluster.
    ClusterAvoided,
    /// The link carries too little, in bytes per second.
    Bandwidth {
        /// Measured rate of the link.
        has: f64,
        /// Minimum rate of the request.
        least: f64,
    },
    /// The node's processors are too slow.
    Speed {
        /// Measured speed of a processor of the node.
        has: f64,
        /// Minimum speed of the request.
        least: f64,
    },
}

impl fmt::Display for NodeExclusion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NodeExclusion::Avoided => f.write_str("the job avoids it"),
            NodeExclusion::ClusterAvoided => f.write_str("the job avoids its cluster"),
            NodeExclusion::Bandwidth { has, least } => {
                write!(f, "its cluster's link carries {has:.0} B/s, {least:.0} are needed")
            }
            NodeExclusion::Speed { has, least } => {
                write!(f, "its speed is {has:.3}, {least:.3} is needed")
            }
        }
    }
}

/// Result of a selection.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SelectionResult {
    /// Selected nodes, best first.
    pub nodes: Vec<NodeId>,
    /// Excluded free nodes, with the reasons.
    pub unfit: BTreeMap<NodeId, NodeExclusion>,
    /// Explanation in one sentence.
    pub why: String,
}

/// Selects nodes for a request.
pub fn choose(case: &SelectionInput) -> SelectionResult {
    let mut unfit = BTreeMap::new();
    let mut fit: Vec<(&NodeId, &FreeNode)> = Vec::new();
    for (id, candidate) in &case.free {
        match refuse(&case.request, &case.bandwidth, id, candidate) {
            Some(why) => {
                unfit.insert(id.clone(), why);
            }
            None => fit.push((id, candidate)),
        }
    }
    let unknown = || fit.iter().filter(|(_, candidate)| candidate.known().is_none());
    let without_clock = unknown().any(|(_, candidate)| candidate.hardware.mhz == 0);
    let value = |candidate: &FreeNode| candidate.known().unwrap_or(candidate.rating(without_clock));
    let request = &case.request;
    let links =
        LinkRanking::new(case.rtt_s.values(), case.bandwidth.values(), request.min_bandwidth);
    let link = |candidate: &FreeNode| {
        let cluster = &candidate.cluster;
        links.rank(case.rtt_s.get(cluster).copied(), case.bandwidth.get(cluster).copied())
    };
    let tier =
        |candidate: &FreeNode| (link(candidate).is_below_minimum(), candidate.known().is_none());
    fit.sort_by(|(_, a), (_, b)| tier(a).cmp(&tier(b)).then_with(|| value(b).total_cmp(&value(a))));
    let mut class = 0;
    let mut first: Option<&FreeNode> = None;
    let mut ranked: Vec<((usize, NodeRank, &NodeId), &NodeId, &FreeNode)> = Vec::new();
    for &(id, candidate) in &fit {
        let equal = first.is_some_and(|first| {
            tier(first) == tier(candidate)
                && value(candidate) >= value(first) * (1.0 - EQUAL_TOLERANCE)
        });
        if !equal {
            (class, first) = (class + 1, Some(candidate));
        }
        ranked.push(((class, rank(request, candidate, link(candidate)), id), id, candidate));
    }
    ranked.sort_by_key(|(rank, ..)| *rank);
    let sizes = ranked.iter().map(|(.., candidate)| candidate.processors());
    let selected = select_nodes(sizes, case.count, case.most.max(case.count));
    let chosen: Vec<_> = selected.into_iter().map(|at| ranked[at]).collect();
    let why = explain(case, fit.len(), without_clock, &chosen, &unfit);
    SelectionResult { nodes: chosen.into_iter().map(|(_, id, _)| id.clone()).collect(), unfit, why }
}

/// Returns why no node of a cluster fits, if so. `bandwidth` has measured rates between each
/// cluster and the job's other clusters, in bytes per second.
pub(super) fn refuse_cluster(
    request: &SchedulerRequest,
    bandwidth: &BTreeMap<ClusterId, f64>,
    cluster: &ClusterId,
) -> Option<NodeExclusion> {
    if request.avoid_clusters.contains(cluster) {
        return Some(NodeExclusion::ClusterAvoided);
    }
    let least = request.min_bandwidth.filter(|&least| is_rate(least))?;
    let has = bandwidth.get(cluster).copied().filter(|&has| is_rate(has))?;
    (has < least && !request.waive.contains(cluster))
        .then_some(NodeExclusion::Bandwidth { has, least })
}

/// Returns why a node does not fit, if so.
pub(super) fn refuse(
    request: &SchedulerRequest,
    bandwidth: &BTreeMap<ClusterId, f64>,
    id: &NodeId,
    candidate: &FreeNode,
) -> Option<NodeExclusion> {
    if request.avoid_nodes.contains(id) {
        return Some(NodeExclusion::Avoided);
    }
    if let Some(unfit) = refuse_cluster(request, bandwidth, &candidate.cluster) {
        return Some(unfit);
    }
    let least = request.min_speed.filter(|&least| is_rate(least))?;
    candidate.known().filter(|&has| has < least).map(|has| NodeExclusion::Speed { has, least })
}

/// Rank by place in the preference, then by the link. Smaller is better. Within the preference,
/// only its order counts.
type NodeRank = (usize, Option<LinkRank>);

fn rank(request: &SchedulerRequest, candidate: &FreeNode, link: LinkRank) -> NodeRank {
    match request.prefer.iter().position(|preferred| *preferred == candidate.cluster) {
        Some(place) => (place, None),
        None => (request.prefer.len(), Some(link)),
    }
}

fn explain<K>(
    case: &SelectionInput,
    fit: usize,
    without_clock: bool,
    chosen: &[(K, &NodeId, &FreeNode)],
    unfit: &BTreeMap<NodeId, NodeExclusion>,
) -> String {
    let unmeasured = || {
        let criteria = if without_clock { "cores" } else { "clock" };
        format!("not measured, by {criteria}")
    };
    let named = chosen.iter().take(LISTED_MAX).map(|(_, id, candidate)| {
        let speed =
            candidate.known().map_or_else(unmeasured, |speed| format!("speed {speed:.3} each"));
        format!("{id} ({}, {speed})", candidate.processors())
    });
    let mut names: Vec<String> = named.collect();
    if chosen.len() > LISTED_MAX {
        names.push(format!("and {} more", chosen.len() - LISTED_MAX));
    }
    let free = case.free.len();
    let mut why = if names.is_empty() {
        format!("none of {free} free nodes fits")
    } else {
        format!("of {free} free nodes {fit} fit, the best are {}", names.join(", "))
    };
    for (index, (id, unfit)) in unfit.iter().take(LISTED_MAX).enumerate() {
        why += if index == 0 { "; not " } else { ", not " };
        why += &format!("{id}: {unfit}");
    }
    if unfit.len() > LISTED_MAX {
        why += &format!(", nor {} more", unfit.len() - LISTED_MAX);
    }
    why
}

/// Whether it is positive and finite.
pub(super) fn is_rate(x: f64) -> bool {
    x > 0.0 && x.is_finite()
}
