//! Runs of a scenario with and without adaptation, and on the best fixed set of nodes.
//!
//! This module does not depend on the presentation of the results.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::Serialize;
use springtide_actors::policy::Mode;
use springtide_runtime::config::{BoundedInt, EventSection, Happening, Pair, ScenarioConfig};
use springtide_runtime::event::Event;
use springtide_runtime::id::NodeId;
use springtide_runtime::random::SplitMix;

use crate::grid::GridError;
use crate::scenario::{SimulationParams, SimulationResult, seconds, simulate};

/// A change counts as undone if it is taken back within this number of periods.
const UNDONE_WITHIN: u32 = 5;

/// The number of iterations under constant conditions that suffices to predict the length of all.
const SETTLED_ITERATIONS: f64 = 4.0;

/// The number of nodes by cluster.
pub type Nodes = BTreeMap<String, u32>;

/// The results of all runs of a scenario.
#[derive(Clone, Debug, Serialize)]
pub struct ScenarioResults {
    /// The name of the scenario.
    pub name: String,
    /// The description of the scenario.
    pub about: String,
    /// The seed of all random numbers.
    pub seed: u64,
    /// The monitoring period, seconds.
    pub period_s: f64,
    /// Runtime on the initial nodes, seconds.
    pub static_s: f64,
    /// Runtime with measurements and decisions that are not executed, seconds.
    pub monitor_s: f64,
    /// Runtime of the adaptive run, seconds.
    pub adaptive_s: f64,
    /// 1 - adaptive / static.
    pub reduction: f64,
    /// The reduction that the paper reports.
    pub paper_reduction: Option<f64>,
    /// Length of each iteration, seconds.
    pub iterations: Iterations,
    /// Nodes of the adaptive run: pairs of a time in seconds and the number from then on.
    pub nodes_over_time: Vec<(f64, u32)>,
    /// Runtime with the best fixed set of nodes from the first event on, seconds.
    pub clairvoyant_s: f64,
    /// The best fixed set of nodes.
    pub clairvoyant_nodes: Nodes,
    /// Decisions of the adaptive run: pairs of seconds and actions.
    pub decisions: Vec<(f64, String)>,
    /// Changes of the grid in the adaptive run: pairs of seconds and text.
    pub events: Vec<(f64, String)>,
    /// Changes that the adaptive run took back within five periods.
    pub undone: Vec<String>,
    /// Results of the adaptive run with the default monitoring period.
    pub ours: DefaultPeriodResults,
}

/// The lengths of a scenario's iterations: see [`ScenarioResults::iterations`].
#[derive(Clone, Debug, Serialize)]
pub struct Iterations {
    /// Iterations of the static run, seconds.
    #[serde(rename = "static")]
    pub fixed: Vec<f64>,
    /// Iterations of the adaptive run, seconds.
    pub adaptive: Vec<f64>,
}

/// Results with the default monitoring period: see [`ScenarioResults::ours`].
#[derive(Clone, Debug, Serialize)]
pub struct DefaultPeriodResults {
    /// The monitoring period, seconds.
    pub period_s: f64,
    /// Runtime of the run, seconds.
    pub adaptive_s: f64,
    /// 1 - adaptive / static.
    pub reduction: f64,
    /// Length of each iteration, seconds.
    pub iterations: Vec<f64>,
    /// Pairs of a time in seconds and the number of nodes from then on.
    pub nodes_over_time: Vec<(f64, u32)>,
    /// Decisions: pairs of seconds and actions.
    pub decisions: Vec<(f64, String)>,
    /// Changes that were taken back within five periods.
    pub undone: Vec<String>,
}

/// Failure of a scenario's run.
#[derive(Debug, thiserror::Error)]
pub enum PaperError {
    /// The simulation failed.
    #[error("scenario {0}: {1}")]
    Grid(String, #[source] GridError),
    /// The scenario's job failed.
    #[error("scenario {0}: the job failed: {1}")]
    Failed(String, String),
    /// The job ended with a wrong answer.
    #[error(
        "scenario {0}: the answer is {found:016x}, not {expected:016x}",
        found = .1,
        expected = .2
    )]
    Answer(String, u64, u64),
}

/// A digest of the calibrated part of the paper's scenarios: the job and the links.
pub fn calibration(config: &ScenarioConfig) -> u64 {
    let uplinks: Vec<_> = config.cluster.iter().map(|place| &place.uplink).collect();
    let text = serde_json::json!([config.app, config.wide, uplinks.first()]).to_string();
    SplitMix::with_text(0, &text).0
}

/// Simulates a scenario and checks the answer.
fn simulate_checked(
    config: &ScenarioConfig,
    how: &SimulationParams,
) -> Result<SimulationResult, PaperError> {
    let name = || config.name.to_string();
    let played = simulate(config, how).map_err(|error| PaperError::Grid(name(), error))?;
    match &played.ended.outcome {
        Ok(outcome) if outcome.checksum == played.answer => Ok(played),
        Ok(outcome) => Err(PaperError::Answer(name(), outcome.checksum, played.answer)),
        Err(error) => Err(PaperError::Failed(name(), error.to_string())),
    }
}

/// Simulates a scenario in all modes, with the given monitoring period and with the default one.
///
/// `best` is the best fixed set of nodes where it is known; otherwise this function searches for
/// it.
///
/// # Errors
/// [`PaperError`].
pub fn row(
    config: &ScenarioConfig,
    period: Duration,
    seed: u64,
    best: Option<&Nodes>,
) -> Result<ScenarioResults, PaperError> {
    let of = |mode, period| {
        simulate_checked(config, &SimulationParams { mode, period: Some(period), seed })
    };
    let fixed = of(Mode::Static, period)?;
    let monitor = of(Mode::Monitor, period)?;
    let adaptive = of(Mode::Adaptive, period)?;
    let own = config.job.period.get();
    let ours = of(Mode::Adaptive, own)?;
    let (clairvoyant_s, clairvoyant_nodes) = clairvoyant(config, &fixed, seed, best)?;
    let reduction =
        |run: &SimulationResult| 1.0 - run.wall.as_secs_f64() / fixed.wall.as_secs_f64();
    Ok(ScenarioResults {
        name: config.name.to_string(),
        about: config.about.clone(),
        seed,
        period_s: period.as_secs_f64(),
        static_s: fixed.wall.as_secs_f64(),
        monitor_s: monitor.wall.as_secs_f64(),
        adaptive_s: adaptive.wall.as_secs_f64(),
        reduction: reduction(&adaptive),
        paper_reduction: config.paper.reduction,
        nodes_over_time: adaptive.nodes.clone(),
        clairvoyant_s,
        clairvoyant_nodes,
        decisions: seconds(&adaptive.actions()),
        events: seconds(&adaptive.events),
        undone: undone(&adaptive, period),
        ours: DefaultPeriodResults {
            period_s: own.as_secs_f64(),
            adaptive_s: ours.wall.as_secs_f64(),
            reduction: reduction(&ours),
            nodes_over_time: ours.nodes.clone(),
            decisions: seconds(&ours.actions()),
            undone: undone(&ours, own),
            iterations: ours.iterations,
        },
        iterations: Iterations { fixed: fixed.iterations, adaptive: adaptive.iterations },
    })
}

/// Simulates scenarios with the given seeds, several at a time; rows have the order of `orders`.
///
/// Without `period`, each scenario has the paper's monitoring period. `tell` gets each row when it
/// is complete. The best fixed set of nodes is searched for with a scenario's first seed alone. It
/// depends on the nodes and on their events, so the other seeds reuse it.
///
/// # Errors
/// The first error among the scenarios.
pub fn rows(
    orders: Vec<(&ScenarioConfig, u64)>,
    period: Option<Duration>,
    tell: impl Fn(&ScenarioResults) + Sync,
) -> Result<Vec<ScenarioResults>, PaperError> {
    let play = |config: &ScenarioConfig, seed, best: Option<&Nodes>| {
        let papers = config.paper.period.unwrap_or(config.job.period).get();
        row(config, period.unwrap_or(papers), seed, best).inspect(&tell)
    };
    let is_first = |at: &usize| {
        let (config, _) = orders[*at];
        orders[..*at].iter().all(|(other, _)| other.name != config.name)
    };
    let (first, others): (Vec<usize>, Vec<usize>) = (0..orders.len()).partition(is_first);
    let mut rows = BTreeMap::new();
    let done = crate::on_all_cores(&first, |at| play(orders[*at].0, orders[*at].1, None));
    for (at, row) in first.into_iter().zip(done) {
        rows.insert(at, row?);
    }
    let best: BTreeMap<_, _> =
        rows.values().map(|row| (row.name.clone(), row.clairvoyant_nodes.clone())).collect();
    let done = crate::on_all_cores(&others, |at| {
        let (config, seed) = orders[*at];
        play(config, seed, best.get(config.name.as_str()))
    });
    for (at, row) in others.into_iter().zip(done) {
        rows.insert(at, row?);
    }
    Ok(rows.into_values().collect())
}

/// Changes that a run took back within five periods: nodes that joined and left, or left and
/// joined, by its own decision.
pub fn undone(run: &SimulationResult, period: Duration) -> Vec<String> {
    let within = (UNDONE_WITHIN * period).as_secs_f64();
    // By node: the time and kind of its last change that the policy decided.
    let mut last = BTreeMap::<NodeId, (f64, bool)>::new();
    let mut undone = Vec::new();
    for (at, event) in run.events_by_time() {
        let (node, came) = match event {
            Event::NodeJoined { node, .. } => (node, true),
            Event::NodeLeft { node, .. } => (node, false),
            // A loss is not the policy's decision.
            Event::NodeLost { node, .. } => {
                last.remove(node);
                continue;
            }
            _ => continue,
        };
        if at <= 0.0 {
            continue;
        }
        if let Some((before, _)) =
            last.get(node).filter(|(before, was)| *was != came && at - before < within)
            && !run.was_claimed(node, *before, at)
        {
            let (first, then) = if came { ("left", "came back") } else { ("came", "left") };
            undone.push(format!("{node} {first} at {before:.0} s and {then} at {at:.0} s"));
        }
        last.insert(node.clone(), (at, came));
    }
    undone
}

/// Runtime with the best fixed set of nodes from the first event on, where additional nodes cost no
/// time.
///
/// Clusters that no event names are used whole: another node as fast as the rest lengthens no run.
/// Slow ones are tried with and without.
/// Of each cluster that an event names, all nodes are tried or none.
/// If no event follows later, a few iterations suffice to predict the length of all.
fn clairvoyant(
    config: &ScenarioConfig,
    fixed: &SimulationResult,
    seed: u64,
    known: Option<&Nodes>,
) -> Result<(f64, Nodes), PaperError> {
    let first = fixed.events.iter().map(|(at, _)| at.as_secs_f64()).reduce(f64::min);
    let switch = first.unwrap_or(0.0);
    let done = iterations_done(&fixed.iterations, switch);
    let all = f64::from(config.app.iterations.get());
    let left = (all - done).max(0.0);
    let settled = fixed.events.iter().all(|(at, _)| at.as_secs_f64() <= switch);
    let most = if settled { SETTLED_ITERATIONS } else { all };
    let whole = left.ceil().clamp(1.0, most);
    let skipped = (all - left.ceil()).max(0.0) as u32;
    let mut best: Option<(f64, Nodes)> = None;
    let mut tried = BTreeSet::new();
    for nodes in known.map_or_else(|| candidate_sets(config), |nodes| vec![nodes.clone()]) {
        if nodes.values().all(|count| *count == 0) || !tried.insert(nodes.clone()) {
            continue;
        }
        let rest = remaining_scenario(config, (switch, skipped), &nodes, whole as u32);
        let how = SimulationParams { mode: Mode::Static, period: None, seed };
        let Ok(run) = simulate_checked(&rest, &how) else { continue };
        let total = switch + run.wall.as_secs_f64() * left / whole;
        if best.as_ref().is_none_or(|(least, _)| total < *least) {
            best = Some((total, nodes));
        }
    }
    Ok(best.unwrap_or_else(|| (fixed.wall.as_secs_f64(), Nodes::new())))
}

/// The number of iterations, with fractions, that are done after the given seconds.
fn iterations_done(iterations: &[f64], at: f64) -> f64 {
    let (mut begun, mut done) = (0.0, 0.0);
    for length in iterations {
        if begun + length > at {
            // The event at `at` lengthens this iteration, so the mean of the earlier ones is used.
            let usual = if done > 0.0 { begun / done } else { *length };
            return done + ((at - begun) / usual).min(1.0);
        }
        begun += length;
        done += 1.0;
    }
    done
}

/// Sets of nodes to try, by cluster.
fn candidate_sets(config: &ScenarioConfig) -> Vec<Nodes> {
    let named = |name: &str| {
        config.event.iter().any(|event| {
            let between = event.between.iter().flat_map(|Pair(a, b)| [a, b]);
            event.cluster.iter().chain(between).any(|cluster| cluster.as_str() == name)
        })
    };
    let mut sets = vec![BTreeMap::new()];
    for place in &config.cluster {
        let name = place.name.as_str();
        let nodes = place.nodes.get();
        let there = nodes - place.later.get();
        let counts = match named(name) {
            false if place.speed >= fastest_speed(config) * 0.5 => vec![there],
            false => vec![0, there],
            true => vec![0, nodes],
        };
        let with = |set: &BTreeMap<String, u32>| {
            let set = set.clone();
            let with = move |count: &u32| {
                let mut set = set.clone();
                set.insert(name.to_owned(), *count);
                set
            };
            counts.iter().map(with).collect::<Vec<_>>()
        };
        sets = sets.iter().flat_map(with).collect();
    }
    sets
}

fn fastest_speed(config: &ScenarioConfig) -> f64 {
    config.cluster.iter().map(|place| place.speed).fold(0.0, f64::max)
}

/// The given iterations of the scenario from the second `switch` on, on the given nodes, after
/// `skipped` iterations.
fn remaining_scenario(
    config: &ScenarioConfig,
    (switch, skipped): (f64, u32),
    nodes: &Nodes,
    iterations: u32,
) -> ScenarioConfig {
    let mut rest = config.clone();
    rest.app.iterations = BoundedInt::nearest(iterations);
    rest.adaptation.min_processors = BoundedInt::nearest(1);
    for place in &mut rest.cluster {
        let count = nodes.get(place.name.as_str()).copied().unwrap_or(0);
        place.start = BoundedInt::nearest(count);
        // A clairvoyant run has these nodes from the start on.
        place.later = BoundedInt::nearest(place.later.get().min(place.nodes.get() - count));
    }
    let earlier = |event: &mut EventSection| {
        event.at = event.at.map(|at| at.saturating_sub(Duration::from_secs_f64(switch)));
        if let Some(iteration) = event.iteration.map(BoundedInt::get) {
            match iteration.checked_sub(skipped).filter(|iteration| *iteration > 0) {
                Some(iteration) => event.iteration = Some(BoundedInt::nearest(iteration)),
                None => (event.iteration, event.at) = (None, Some(Default::default())),
            }
        }
    };
    rest.event.iter_mut().for_each(earlier);
    // Nodes that are in use from the start need not be freed.
    rest.event.retain(|event| event.what != Happening::Free);
    rest
}
