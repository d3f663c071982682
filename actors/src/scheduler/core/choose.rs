//! Which free nodes a request gets: a pure function of what is known of them, with its reasons.
//!
//! Source: "Self-adaptive applications on the grid" (PPoPP 2007), section 3, where it is future work: to ask for the
//! fastest processors instead of any, by a benchmark that is handed to the scheduler, and for a least bandwidth.
//! Zorilla, which it uses, prefers what is near. The rules, in their order:
//!
//! 1. Left out are nodes and clusters to avoid, clusters whose link is *measured* to carry less than the least
//!    bandwidth (unless they may be tried again), and nodes *known* to be slower than the least speed. What is not
//!    known is not held against anybody.
//! 2. The fastest first. Speeds within 5 % of the fastest of their class are equal: benchmarks are no more exact than
//!    that. Nodes with a known speed come before those without; these rank by clock and threads, or by threads alone if
//!    the clock of one of them is not known.
//! 3. Among equals the clusters of `prefer` in its order, then those with the lowest latency, then the highest
//!    bandwidth, then by name.
//!
//! Must not know where the knowledge comes from, nor what becomes of the nodes.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};
use springtide_runtime::id::{ClusterId, NodeId};

use crate::hardware::Hardware;
use crate::policy::Request;

/// Speeds that differ by less than this share are equal.
const EQUAL: f64 = 0.05;
/// A sentence names so many nodes at most.
const NAMED: usize = 8;

/// A free node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Candidate {
    /// Its cluster.
    pub cluster: ClusterId,
    /// Its speed, or that of its kind, in the job's unit, where it was measured.
    pub speed: Option<f64>,
    /// Its compute threads.
    pub threads: u32,
    /// Its machine.
    pub hardware: Hardware,
}

impl Candidate {
    /// Its speed, if that is one.
    fn known(&self) -> Option<f64> {
        self.speed.filter(|&speed| is_rate(speed))
    }

    /// Threads that run at once, times their clock.
    fn rating(&self, by_threads: bool) -> f64 {
        let at_once = match self.hardware.threads {
            0 => self.threads,
            processors => self.threads.min(processors),
        };
        f64::from(at_once) * if by_threads { 1.0 } else { f64::from(self.hardware.mhz) }
    }
}

/// What is chosen from.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Case {
    /// So many nodes at most.
    pub count: u32,
    /// What they must and should be.
    pub request: Request,
    /// Round trips from the job's root, in seconds.
    pub rtt_s: BTreeMap<ClusterId, f64>,
    /// Bytes per second between each cluster and the job's others.
    pub bandwidth: BTreeMap<ClusterId, f64>,
    /// The free nodes.
    pub free: BTreeMap<NodeId, Candidate>,
}

/// Why a free node is not given.
#[derive(Clone, Debug, PartialEq)]
pub enum Unfit {
    /// The request avoids it.
    Avoided,
    /// The request avoids its cluster.
    ClusterAvoided,
    /// Its link carries too little, in bytes per second.
    Bandwidth {
        /// What it was measured to carry.
        has: f64,
        /// What is needed.
        least: f64,
    },
    /// It is too slow.
    Speed {
        /// What it was measured to do.
        has: f64,
        /// What is needed.
        least: f64,
    },
}

impl fmt::Display for Unfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unfit::Avoided => f.write_str("the job avoids it"),
            Unfit::ClusterAvoided => f.write_str("the job avoids its cluster"),
            Unfit::Bandwidth { has, least } => {
                write!(f, "its cluster's link carries {has:.0} B/s, {least:.0} are needed")
            }
            Unfit::Speed { has, least } => write!(f, "its speed is {has:.3}, {least:.3} is needed"),
        }
    }
}

/// What was chosen.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Choice {
    /// The nodes, best first.
    pub nodes: Vec<NodeId>,
    /// Free nodes that do not fit, with the reason.
    pub unfit: BTreeMap<NodeId, Unfit>,
    /// All that in a sentence.
    pub why: String,
}

/// Chooses.
pub fn choose(case: &Case) -> Choice {
    let mut unfit = BTreeMap::new();
    let mut fit: Vec<(&NodeId, &Candidate)> = Vec::new();
    for (id, candidate) in &case.free {
        match refuse(&case.request, &case.bandwidth, id, candidate) {
            Some(why) => {
                unfit.insert(id.clone(), why);
            }
            None => fit.push((id, candidate)),
        }
    }
    let unknown = || fit.iter().filter(|(_, candidate)| candidate.known().is_none());
    let by_threads = unknown().any(|(_, candidate)| candidate.hardware.mhz == 0);
    let value = |candidate: &Candidate| candidate.known().unwrap_or(candidate.rating(by_threads));
    let tier = |candidate: &Candidate| candidate.known().is_none();
    fit.sort_by(|(_, a), (_, b)| tier(a).cmp(&tier(b)).then_with(|| value(b).total_cmp(&value(a))));
    let mut class = 0;
    let mut first: Option<&Candidate> = None;
    let mut ranked: Vec<((usize, Place, &NodeId), &NodeId, &Candidate)> = Vec::new();
    for &(id, candidate) in &fit {
        let equal = first.is_some_and(|first| {
            tier(first) == tier(candidate) && value(candidate) >= value(first) * (1.0 - EQUAL)
        });
        if !equal {
            (class, first) = (class + 1, Some(candidate));
        }
        ranked.push(((class, place(case, candidate), id), id, candidate));
    }
    ranked.sort_by_key(|(rank, ..)| *rank);
    ranked.truncate(case.count as usize);
    let why = explain(case, fit.len(), by_threads, &ranked, &unfit);
    Choice { nodes: ranked.into_iter().map(|(_, id, _)| id.clone()).collect(), unfit, why }
}

/// Why no node of a cluster fits, if so. `bandwidth`: bytes per second between each cluster and the job's others, as far as measured.
pub(super) fn refuse_cluster(
    request: &Request,
    bandwidth: &BTreeMap<ClusterId, f64>,
    cluster: &ClusterId,
) -> Option<Unfit> {
    if request.avoid_clusters.contains(cluster) {
        return Some(Unfit::ClusterAvoided);
    }
    let least = request.min_bandwidth.filter(|&least| is_rate(least))?;
    let has = bandwidth.get(cluster).copied().filter(|&has| is_rate(has))?;
    (has < least && !request.waive.contains(cluster)).then_some(Unfit::Bandwidth { has, least })
}

/// Why a node does not fit, if so.
pub(super) fn refuse(
    request: &Request,
    bandwidth: &BTreeMap<ClusterId, f64>,
    id: &NodeId,
    candidate: &Candidate,
) -> Option<Unfit> {
    if request.avoid_nodes.contains(id) {
        return Some(Unfit::Avoided);
    }
    if let Some(unfit) = refuse_cluster(request, bandwidth, &candidate.cluster) {
        return Some(unfit);
    }
    let least = request.min_speed.filter(|&least| is_rate(least))?;
    candidate.known().filter(|&has| has < least).map(|has| Unfit::Speed { has, least })
}

/// Smaller is better: place among the preferred, then latency, then bandwidth.
type Place = (usize, Number, Reverse<Number>);

fn place(case: &Case, candidate: &Candidate) -> Place {
    let cluster = &candidate.cluster;
    if let Some(at) = case.request.prefer.iter().position(|preferred| preferred == cluster) {
        // Their order says all.
        return (at, Number(0.0), Reverse(Number(0.0)));
    }
    let rtt = case.rtt_s.get(cluster).copied().filter(|rtt| rtt.is_finite() && *rtt >= 0.0);
    let bandwidth = case.bandwidth.get(cluster).copied().filter(|&rate| is_rate(rate));
    let (rtt, bandwidth) = (rtt.unwrap_or(f64::INFINITY), bandwidth.unwrap_or(0.0));
    (case.request.prefer.len(), Number(rtt), Reverse(Number(bandwidth)))
}

/// A float in its total order.
#[derive(Clone, Copy, Debug)]
struct Number(f64);

impl Ord for Number {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.total_cmp(&other.0)
    }
}

impl PartialOrd for Number {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Number {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Number {}

fn explain<K>(
    case: &Case,
    fit: usize,
    by_threads: bool,
    chosen: &[(K, &NodeId, &Candidate)],
    unfit: &BTreeMap<NodeId, Unfit>,
) -> String {
    let unmeasured = || match by_threads {
        true => "not measured, by threads".to_owned(),
        false => "not measured, by clock and threads".to_owned(),
    };
    let named = chosen.iter().take(NAMED).map(|(_, id, candidate)| {
        let speed = candidate.known().map_or_else(unmeasured, |speed| format!("speed {speed:.3}"));
        format!("{id} ({speed})")
    });
    let mut names: Vec<String> = named.collect();
    if chosen.len() > NAMED {
        names.push(format!("and {} more", chosen.len() - NAMED));
    }
    let free = case.free.len();
    let mut why = match names.is_empty() {
        true => format!("none of {free} free nodes fits"),
        false => format!("of {free} free nodes {fit} fit, the best are {}", names.join(", ")),
    };
    for (index, (id, unfit)) in unfit.iter().take(NAMED).enumerate() {
        why += if index == 0 { "; not " } else { ", not " };
        why += &format!("{id}: {unfit}");
    }
    if unfit.len() > NAMED {
        why += &format!(", nor {} more", unfit.len() - NAMED);
    }
    why
}

/// Whether it is a positive number.
pub(super) fn is_rate(x: f64) -> bool {
    x > 0.0 && x.is_finite()
}
