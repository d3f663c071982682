//! Searches the best fixed set of nodes of a drawn scenario: from the free pool, with the same
//! faults, joined at the start at no cost.

use std::collections::BTreeSet;

use springtide_runtime::config::{BoundedInt, PlaceSection, ScenarioConfig};

use super::{RunTime, run_static};

/// The maximum number of sets that are run.
const TRIALS_MAX: usize = 6;
/// A set is better only if its time is at most this part of the best one so far.
const BETTER: f64 = 0.95;
/// A cluster whose bandwidth is below this, in bytes a second, is also left out.
const NARROW: f64 = 2e6;

/// The number of nodes of each cluster, in the order of the file.
pub type NodeSet = Vec<u32>;

/// The best fixed set that was found, and its time.
#[derive(Clone, Debug)]
pub struct BestSet {
    /// The number of nodes of each cluster.
    pub nodes: NodeSet,
    /// The time of the run on them, in seconds.
    pub seconds: f64,
}

/// Nodes of a cluster that are available from the start on.
fn available(place: &PlaceSection) -> u32 {
    place.nodes.get() - place.later.get()
}

/// The sets that are tried first, the most promising before the others.
fn first_sets(config: &ScenarioConfig) -> Vec<NodeSet> {
    let places = &config.cluster;
    let power = |place: &PlaceSection| {
        f64::from(config.processors_of(place, available(place))) * place.speed
    };
    let all_that = |fits: &dyn Fn(&PlaceSection) -> bool| -> NodeSet {
        places.iter().map(|place| if fits(place) { available(place) } else { 0 }).collect()
    };
    let fastest = places.iter().map(|place| place.speed).fold(0.0, f64::max);
    let strongest = places.iter().map(power).fold(0.0, f64::max);
    let is_named = |place: &PlaceSection| {
        config.event.iter().any(|event| event.cluster.as_ref() == Some(&place.name))
    };
    let is_narrow =
        |place: &PlaceSection| place.uplink.is_some_and(|rate| rate.bytes_per_second() < NARROW);
    vec![
        all_that(&|_| true),
        all_that(&|place| !is_narrow(place) && !is_named(place)),
        all_that(&|place| power(place) == strongest),
        all_that(&|place| place.speed >= 0.5 * fastest && !is_narrow(place)),
        places.iter().map(|place| available(place).div_ceil(2)).collect(),
    ]
}

/// Searches the best set, from the initial one, whose time is known.
///
/// A trial ends when it is not clearly better than the best set so far.
pub fn search(config: &ScenarioConfig, seed: u64, initial: f64) -> BestSet {
    let start: NodeSet = config.cluster.iter().map(|place| place.start.get()).collect();
    let mut best = BestSet { nodes: start.clone(), seconds: initial };
    let mut tried = BTreeSet::from([start.clone()]);
    let mut trials = 0;
    let mut consider = |nodes: NodeSet, best: &mut BestSet| {
        let is_empty = nodes.iter().all(|count| *count == 0);
        if trials == TRIALS_MAX || is_empty || !tried.insert(nodes.clone()) {
            return;
        }
        trials += 1;
        let mut fixed = config.clone();
        for (place, count) in fixed.cluster.iter_mut().zip(&nodes) {
            place.start = BoundedInt::nearest(*count);
        }
        if let RunTime { seconds, ended: true, .. } =
            run_static(&fixed, seed, Some(BETTER * best.seconds))
        {
            *best = BestSet { nodes, seconds };
        }
    };
    for nodes in first_sets(config) {
        consider(nodes, &mut best);
    }
    for (index, place) in config.cluster.iter().enumerate() {
        for count in [0, start[index], available(place)] {
            let mut nodes = best.nodes.clone();
            nodes[index] = count;
            consider(nodes, &mut best);
        }
    }
    best
}
