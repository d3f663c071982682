//! Predicts a job's run on a grid, and on the grid without one of its clusters or links.
//!
//! Must not know where the grid and the job's model come from, nor how a prediction is told.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use serde::Serialize;
use springtide_actors::policy::Mode;
use springtide_runtime::config::{
    EventSection, Happening, Name, Pair, PlaceSection, ScenarioConfig, Time, Whole,
};
use springtide_runtime::id::ClusterId;
use springtide_runtime::net::Wire;

use crate::apps::Model;
use crate::scenario::{Play, play_job, seconds};

/// What a grid is without.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Without {
    /// Nothing: the grid as it is.
    Nothing,
    /// A cluster.
    Cluster(Name),
    /// The link between two: they do not reach each other.
    Link(Pair),
}

impl fmt::Display for Without {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nothing => f.write_str("as it is"),
            Self::Cluster(name) => write!(f, "without {name}"),
            Self::Link(Pair(a, b)) => write!(f, "without {a}-{b}"),
        }
    }
}

/// How a job would run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Predicted {
    /// On which grid, in words.
    pub grid: String,
    /// From the root's start to its end, seconds; absent when it does not end well.
    pub runtime_s: Option<f64>,
    /// Length of each iteration, seconds.
    pub iterations: Vec<f64>,
    /// From which second on, how many nodes.
    pub nodes_over_time: Vec<(f64, u32)>,
    /// Workers at its end, by cluster.
    pub workers: BTreeMap<ClusterId, u32>,
    /// What was decided: seconds, actions.
    pub decisions: Vec<(f64, String)>,
    /// Why it does not end well.
    pub error: Option<String>,
}

/// What is to be predicted.
#[derive(Clone, Debug)]
pub struct Order {
    /// The grid: its clusters, links and adaptation. What it says of the job does not count.
    pub grid: ScenarioConfig,
    /// The job.
    pub model: Model,
    /// How far the set of nodes is adapted.
    pub mode: Mode,
    /// Of whatever is random.
    pub seed: u64,
    /// What its network carries.
    pub wire: Wire,
}

/// Predicts the run on the grid without this.
pub fn predict(order: &Order, without: &Without) -> Predicted {
    let mut grid = order.grid.clone();
    leave_out(&mut grid, without);
    let mut predicted = Predicted {
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
    begin(&mut grid);
    let how = Play { mode: order.mode, period: None, seed: order.seed };
    let played = match play_job(&grid, order.model.clone(), &how, order.wire.clone()) {
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

fn leave_out(grid: &mut ScenarioConfig, without: &Without) {
    match without {
        Without::Nothing => {}
        Without::Cluster(name) => {
            grid.cluster.retain(|place| place.name != *name);
            let named = |Pair(a, b): &Pair| a == name || b == name;
            grid.link.retain(|link| !named(&link.between));
        }
        Without::Link(between) => grid.event.push(EventSection {
            at: Some(Time::default()),
            between: Some(between.clone()),
            ..EventSection::of(Happening::Cut)
        }),
    }
}

/// The job begins on all nodes, as one that asks for none in particular does, or on as many as it may have.
fn begin(grid: &mut ScenarioConfig) {
    let mut left = grid.adaptation.max_nodes.map_or(u32::MAX, Whole::get);
    let mut total = 0_u32;
    for place in &mut grid.cluster {
        let PlaceSection { nodes, start, .. } = place;
        *start = Whole::nearest(nodes.get().min(left));
        left -= start.get();
        total = total.saturating_add(nodes.get());
    }
    // A cluster less may leave too few for what was meant for all.
    let least = grid.adaptation.min_nodes.get().min(total);
    grid.adaptation.min_nodes = Whole::nearest(least);
}

/// What a job is given until it is taken to have no end: many times what it took.
pub fn limit(recorded: Duration) -> Duration {
    (recorded * 100).max(Duration::from_secs(3600))
}
