//! The model of a job that a recorded run shows: what it would compute and send on other nodes.
//!
//! Must not know files, nor how a prediction is made of it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use springtide_runtime::id::ClusterId;

use crate::apps::{Model, Shape};

/// More leaves an iteration than this only make a simulation longer: what is stolen is far larger.
pub const LEAVES_MAX: u64 = 4096;

/// How much leaves differ where the job declares no costs.
const SPREAD: f64 = 0.5;

/// What is known of a run: sums over it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Recorded {
    /// Its name.
    pub run: String,
    /// The job's.
    pub job: String,
    /// From the root's start to its end, seconds.
    pub wall_s: f64,
    /// How many iterations it told of.
    pub iterations: u32,
    /// By cluster.
    pub clusters: BTreeMap<ClusterId, Part>,
    /// Tasks that were run.
    pub tasks: u64,
    /// Bytes of shared objects that were published.
    pub published_bytes: u64,
    /// Bytes of results of stolen tasks.
    pub result_bytes: u64,
    /// Tasks of other nodes that were taken, by how deep they lie under the root.
    pub stolen: BTreeMap<u32, u64>,
}

/// What is known of a cluster's part in a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Part {
    /// Nodes at its end.
    pub workers: u32,
    /// Thread time at work, seconds.
    pub working_s: f64,
    /// Of this, the root's own between its children.
    pub root_s: f64,
    /// Tasks with a declared cost.
    pub costed: u64,
    /// Their costs.
    pub units: f64,
    /// The squares of them.
    pub squares: f64,
}

impl Part {
    fn busy_s(&self) -> f64 {
        (self.working_s - self.root_s).max(0.0)
    }
}

/// A run that no model can be made of.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum RecordedError {
    /// Nothing was computed by tasks.
    #[error(
        "the recorded run computed nothing in tasks ({busy_s:.3} s): record a whole run of the job on a grid, with --out"
    )]
    NoWork {
        /// Seconds at work outside of the root's own code.
        busy_s: f64,
    },
}

/// A job's model, and how fast the clusters that it was seen on are.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Learned {
    /// The model. Speed 1 is the mean of the recorded run.
    pub model: Model,
    /// Of those whose work can be told from its declared costs.
    pub speeds: BTreeMap<ClusterId, f64>,
    /// Leaves of an iteration as they were: the model may have fewer.
    pub leaves: u64,
    /// Whether costs were declared, from which leaves and speeds are known; else they are guessed.
    pub declared: bool,
}

/// Makes a model of a run.
///
/// # Errors
/// [`RecordedError`].
pub fn learn(run: &Recorded) -> Result<Learned, RecordedError> {
    let sum = |of: fn(&Part) -> f64| run.clusters.values().map(of).sum::<f64>();
    let busy_s = sum(Part::busy_s);
    if busy_s.is_nan() || busy_s < 1e-3 {
        return Err(RecordedError::NoWork { busy_s });
    }
    let units = sum(|part| part.units);
    let costed: u64 = run.clusters.values().map(|part| part.costed).sum();
    let declared = units > 0.0 && costed > 0;
    let mean_speed = units / busy_s;
    let speed = |part: &Part| part.units / part.busy_s() / mean_speed;
    // One thread's few tasks say little.
    let enough = |part: &Part| part.busy_s() > 0.01 * busy_s && part.units > 0.0;
    let speeds: BTreeMap<ClusterId, f64> = run
        .clusters
        .iter()
        .filter(|(_, part)| declared && enough(part))
        .map(|(cluster, part)| (cluster.clone(), speed(part)))
        .collect();
    let serial: f64 = run
        .clusters
        .iter()
        .map(|(cluster, part)| part.root_s * speeds.get(cluster).copied().unwrap_or(1.0))
        .sum();
    let rounds = run.iterations.max(1);
    // Of a binary tree's tasks half are leaves.
    let all_leaves = if declared { costed } else { run.tasks.div_ceil(2) };
    let leaves = (all_leaves / u64::from(rounds)).max(1);
    let modelled = leaves.min(LEAVES_MAX);
    let each = |seconds: f64| (seconds / f64::from(rounds) * 1e6).round() as u64;
    let spread = match declared {
        true => spread(costed as f64, units, sum(|part| part.squares), leaves / modelled),
        false => SPREAD,
    };
    Ok(Learned {
        model: Model {
            shape: Shape::Even,
            rounds,
            leaves: modelled as u32,
            then: None,
            work_us: each(busy_s),
            spread: (spread * 1000.0).round() as u32,
            serial_us: each(serial),
            each_us: 0,
            state_bytes: bytes(run.published_bytes as f64 / f64::from(rounds)),
            result_bytes: bytes(run.result_bytes as f64 / shares(run).max(1e-6)),
            checkpoint_bytes: 0,
        },
        speeds,
        leaves,
        declared,
    })
}

fn bytes(count: f64) -> u32 {
    count.round() as u32 // saturates
}

/// Half the width of a uniform distribution of this variance, as a share of its mean; of leaves that are each put together
/// of `merged` of them.
fn spread(count: f64, sum: f64, squares: f64, merged: u64) -> f64 {
    let mean = sum / count;
    let variance = (squares / count - mean * mean).max(0.0) / (merged.max(1) as f64);
    ((3.0 * variance).sqrt() / mean).clamp(0.0, 1.0)
}

/// Iterations' worth of results that were sent: a task at depth 1 is a whole iteration's, and each step down is half of one.
fn shares(run: &Recorded) -> f64 {
    let share = |depth: u32| 0.5_f64.powi(depth.saturating_sub(1).min(1000) as i32);
    run.stolen.iter().map(|(depth, count)| share(*depth) * *count as f64).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(working_s: f64, root_s: f64, costed: u64, units: f64) -> Part {
        // All of one size.
        let squares = if costed == 0 { 0.0 } else { units * units / costed as f64 };
        Part { workers: 2, working_s, root_s, costed, units, squares }
    }

    #[test]
    fn sums_become_a_model() {
        let mut run = Recorded {
            wall_s: 30.0,
            iterations: 10,
            tasks: 2000,
            published_bytes: 120_000,
            result_bytes: 60_000,
            stolen: [(1, 1), (2, 3), (3, 4)].into(),
            ..Recorded::default()
        };
        // The second is twice as fast: 40 s of its time are 80 of the first's.
        run.clusters.insert("a".into(), part(41.0, 1.0, 400, 4000.0));
        run.clusters.insert("b".into(), part(40.0, 0.0, 800, 8000.0));
        let learned = learn(&run).unwrap();
        let model = &learned.model;
        assert_eq!((model.rounds, model.leaves, model.spread), (10, 120, 0));
        assert_eq!((model.work_us, model.serial_us), (8_000_000, 66_667));
        assert_eq!((model.state_bytes, model.result_bytes), (12_000, 17_143));
        let speeds = &learned.speeds;
        assert!((speeds[&"b".into()] / speeds[&"a".into()] - 2.0).abs() < 1e-9, "{speeds:?}");
        // 40 s at 2/3 and 40 s at 4/3 are 80 s at 1.
        assert!((40.0 * speeds[&"a".into()] + 40.0 * speeds[&"b".into()] - 80.0).abs() < 1e-9);
    }

    #[test]
    fn without_costs_leaves_are_half_of_the_tasks_and_without_work_there_is_no_model() {
        let mut run = Recorded { tasks: 2_000_001, ..Recorded::default() };
        assert!(matches!(learn(&run), Err(RecordedError::NoWork { .. })));
        run.clusters.insert("a".into(), part(4.0, 0.5, 0, 0.0));
        let learned = learn(&run).unwrap();
        assert_eq!((learned.leaves, learned.model.leaves), (1_000_001, 4096));
        assert_eq!((learned.model.rounds, learned.model.spread), (1, 500));
        assert!(learned.speeds.is_empty() && !learned.declared);
    }

    #[test]
    fn what_differs_uniformly_has_the_spread_that_it_was_made_with() {
        let costs: Vec<f64> = (0..=1000).map(|i| 5.0 + 10.0 * f64::from(i) / 1000.0).collect();
        let squares = costs.iter().map(|cost| cost * cost).sum();
        let found = spread(costs.len() as f64, costs.iter().sum(), squares, 1);
        assert!((found - 0.5).abs() < 0.01, "{found}");
    }
}
