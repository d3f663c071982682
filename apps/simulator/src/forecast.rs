//! Predicts a job's run on a grid, and on the grid without one of its clusters or links.
//!
//! This module depends on neither the origin of the grid and the model nor the presentation.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use serde::Serialize;
use springtide_actors::policy::Mode;
use springtide_runtime::config::{
    BoundedInt, EventSection, Happening, Name, Pair, PlaceSection, ScenarioConfig, Time,
};
use springtide_runtime::id::ClusterId;
use springtide_runtime::net::LinkUnit;

use crate::apps::{AppModel, ModelledJob};
use crate::scenario::{SimulationParams, seconds, simulate_job};

/// The part of a grid that is left out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeftOut {
    /// Nothing: the grid as it is.
    Nothing,
    /// A cluster with all its nodes.
    Cluster(Name),
    /// The link between two clusters, which then cannot reach each other.
    Link(Pair),
}

impl fmt::Display for LeftOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nothing => f.write_str("as it is"),
            Self::Cluster(name) => write!(f, "without {name}"),
            Self::Link(Pair(a, b)) => write!(f, "without {a}-{b}"),
        }
    }
}

/// A predicted run of a job.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Prediction {
    /// The grid of the prediction, in words.
    pub grid: String,
    /// Time from the root's start to its end, seconds; absent if the job fails.
    pub runtime_s: Option<f64>,
    /// Length of each iteration, seconds.
    pub iterations: Vec<f64>,
    /// Pairs of a time in seconds and the number of nodes from then on.
    pub nodes_over_time: Vec<(f64, u32)>,
    /// Workers at the end of the job, by cluster.
    pub workers: BTreeMap<ClusterId, u32>,
    /// Decisions: pairs of seconds and actions.
    pub decisions: Vec<(f64, String)>,
    /// The reason of a failure.
    pub error: Option<String>,
}

/// The inputs of a prediction.
#[derive(Clone, Debug)]
pub struct PredictionRequest {
    /// The grid: its clusters, links and adaptation. Its section of the job is ignored.
    pub grid: ScenarioConfig,
    /// The model of the job.
    pub model: ModelledJob,
    /// The extent to which the set of nodes is adapted.
    pub mode: Mode,
    /// The seed of all random numbers.
    pub seed: u64,
    /// The kind of wire of the network.
    pub wire: LinkUnit,
}

/// Predicts the run on the grid without the given part.
pub fn predict(order: &PredictionRequest, without: &LeftOut) -> Prediction {
    let mut grid = order.grid.clone();
    leave_out(&mut grid, without);
    let mut predicted = Prediction {
        grid: without.to_string(),
        runtime_s: None,
        iterations: Vec::new(),
        nodes_over_time: Vec::new(),
        workers: BTreeMap::new(),
        decisions: Vec::new(),
        error: None,
    };
    if grid.cluster.is_empty() {
        predicted.error = Some("no cluster is left".to_owned());
        return predicted;
    }
    start_on_all_nodes(&mut grid);
    let how = SimulationParams { mode: order.mode, period: None, seed: order.seed };
    let played =
        match simulate_job(&grid, AppModel::Tree(order.model.clone()), &how, order.wire.clone()) {
            Ok(played) => played,
            Err(error) => {
                predicted.error = Some(error.to_string());
                return predicted;
            }
        };
    let report = &played.ended.report;
    predicted.iterations = report.iterations.clone();
    let workers = report.clusters.iter().map(|(name, part)| (name.clone(), part.workers));
    predicted.workers = workers.filter(|(_, workers)| *workers > 0).collect();
    predicted.nodes_over_time = played.nodes.clone();
    predicted.decisions = seconds(&played.actions());
    match &played.ended.outcome {
        Ok(_) => predicted.runtime_s = Some(report.wall_s),
        Err(error) => predicted.error = Some(error.to_string()),
    }
    predicted
}

fn leave_out(grid: &mut ScenarioConfig, without: &LeftOut) {
    match without {
        LeftOut::Nothing => {}
        LeftOut::Cluster(name) => {
            grid.cluster.retain(|place| place.name != *name);
            let named = |Pair(a, b): &Pair| a == name || b == name;
            grid.link.retain(|link| !named(&link.between));
        }
        LeftOut::Link(between) => grid.event.push(EventSection {
            at: Some(Time::default()),
            between: Some(between.clone()),
            ..EventSection::of(Happening::Cut)
        }),
    }
}

/// Starts the job on all nodes, up to the maximum number, as a job without a request of its own.
fn start_on_all_nodes(grid: &mut ScenarioConfig) {
    let mut left = grid.adaptation.max_processors.map_or(u32::MAX, BoundedInt::get);
    let mut total = 0_u32;
    let sizes = |place: &PlaceSection| -> Vec<u32> {
        (0..place.nodes.get()).map(|index| grid.threads_of(place, index)).collect()
    };
    let all: Vec<Vec<u32>> = grid.cluster.iter().map(sizes).collect();
    for (place, sizes) in grid.cluster.iter_mut().zip(all) {
        total = sizes.iter().fold(total, |sum, size| sum.saturating_add(*size));
        let mut start = 0;
        for size in sizes {
            let Some(rest) = left.checked_sub(size) else { break };
            (left, start) = (rest, start + 1);
        }
        place.start = BoundedInt::nearest(start);
    }
    // Without a cluster, too few processors may be left for the minimum of the whole grid.
    let least = grid.adaptation.min_processors.get().min(total);
    grid.adaptation.min_processors = BoundedInt::nearest(least);
}

/// The time limit of a predicted job: 100 times its recorded time, and at least an hour.
pub fn limit(recorded: Duration) -> Duration {
    (recorded * 100).max(Duration::from_secs(3600))
}
