//! Learns the model of a job from a recorded run, to predict its computation and messages on other
//! nodes.
//!
//! This module depends on neither files nor the use of the model.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use springtide_runtime::id::ClusterId;

use crate::apps::{ModelledJob, WorkDivision};

/// The maximum number of leaves of an iteration. More only lengthen a simulation, as stolen tasks
/// are far larger.
pub const LEAVES_MAX: u64 = 4096;

/// The spread of leaves if the job declares no costs.
const SPREAD: f64 = 0.5;

/// Sums over a recorded run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Recorded {
    /// The name of the run.
    pub run: String,
    /// The name of the job.
    pub job: String,
    /// Time from the root's start to its end, seconds.
    pub wall_s: f64,
    /// The number of iterations that the job reported.
    pub iterations: u32,
    /// Each cluster's part, by cluster.
    pub clusters: BTreeMap<ClusterId, ClusterSums>,
    /// The number of executed tasks.
    pub tasks: u64,
    /// Bytes of published shared objects.
    pub published_bytes: u64,
    /// Bytes of results of stolen tasks.
    pub result_bytes: u64,
    /// The number of stolen tasks by their depth below the root.
    pub stolen: BTreeMap<u32, u64>,
}

/// Sums over a cluster's part in a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ClusterSums {
    /// Nodes at the end of the run.
    pub workers: u32,
    /// Thread time at work, seconds.
    pub working_s: f64,
    /// The part of this time that the root spent between its children.
    pub root_s: f64,
    /// The number of tasks with a declared cost.
    pub costed: u64,
    /// The sum of the declared costs.
    pub units: f64,
    /// The sum of the squares of the declared costs.
    pub squares: f64,
}

impl ClusterSums {
    fn busy_s(&self) -> f64 {
        (self.working_s - self.root_s).max(0.0)
    }
}

/// Failure to learn a model from a run.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum RecordedError {
    /// No task computed anything.
    #[error(
        "the recorded run computed nothing in tasks ({busy_s:.3} s): record a whole run of the \
         job on a grid, with --out"
    )]
    NoWork {
        /// Seconds of work outside of the root's own code.
        busy_s: f64,
    },
}

/// The model of a job, and the speeds of the clusters of the recorded run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LearnedModel {
    /// The model. Speed 1 is the mean of the recorded run.
    pub model: ModelledJob,
    /// The speeds of clusters that can be derived from declared costs.
    pub speeds: BTreeMap<ClusterId, f64>,
    /// Leaves of a recorded iteration; the model may have fewer.
    pub leaves: u64,
    /// Whether the job declared costs; otherwise leaves and speeds are guessed.
    pub declared: bool,
}

/// Learns a model from a recorded run.
///
/// # Errors
/// [`RecordedError`].
pub fn learn(run: &Recorded) -> Result<LearnedModel, RecordedError> {
    let sum = |of: fn(&ClusterSums) -> f64| run.clusters.values().map(of).sum::<f64>();
    let busy_s = sum(ClusterSums::busy_s);
    if busy_s.is_nan() || busy_s < 1e-3 {
        return Err(RecordedError::NoWork { busy_s });
    }
    let units = sum(|part| part.units);
    let costed: u64 = run.clusters.values().map(|part| part.costed).sum();
    let declared = units > 0.0 && costed > 0;
    let mean_speed = units / busy_s;
    let speed = |part: &ClusterSums| part.units / part.busy_s() / mean_speed;
    // A thread's few tasks are too few for an estimate.
    let enough = |part: &ClusterSums| part.busy_s() > 0.01 * busy_s && part.units > 0.0;
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
    // Half of a binary tree's tasks are leaves.
    let all_leaves = if declared { costed } else { run.tasks.div_ceil(2) };
    let leaves = (all_leaves / u64::from(rounds)).max(1);
    let modelled = leaves.min(LEAVES_MAX);
    let each = |seconds: f64| (seconds / f64::from(rounds) * 1e6).round() as u64;
    let spread = if declared {
        spread(costed as f64, units, sum(|part| part.squares), leaves / modelled)
    } else {
        SPREAD
    };
    Ok(LearnedModel {
        model: ModelledJob {
            shape: WorkDivision::Even,
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
            undeclared: false,
        },
        speeds,
        leaves,
        declared,
    })
}

fn bytes(count: f64) -> u32 {
    count.round() as u32 // saturates
}

/// Half the width of a uniform distribution of this variance, as a share of its mean.
///
/// Each leaf of the model merges `merged` recorded leaves.
fn spread(count: f64, sum: f64, squares: f64, merged: u64) -> f64 {
    let mean = sum / count;
    let variance = (squares / count - mean * mean).max(0.0) / (merged.max(1) as f64);
    ((3.0 * variance).sqrt() / mean).clamp(0.0, 1.0)
}

/// The number of iterations whose results were sent: a task at depth 1 is a whole iteration, and
/// each level halves it.
fn shares(run: &Recorded) -> f64 {
    let share = |depth: u32| 0.5_f64.powi(depth.saturating_sub(1).min(1000) as i32);
    run.stolen.iter().map(|(depth, count)| share(*depth) * *count as f64).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(working_s: f64, root_s: f64, costed: u64, units: f64) -> ClusterSums {
        // All tasks have one size.
        let squares = if costed == 0 { 0.0 } else { units * units / costed as f64 };
        ClusterSums { workers: 2, working_s, root_s, costed, units, squares }
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
        // The second cluster is twice as fast: 40 s of its time are 80 s of the first one's.
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
    fn the_spread_of_uniform_costs_is_recovered() {
        let costs: Vec<f64> = (0..=1000).map(|i| 5.0 + 10.0 * f64::from(i) / 1000.0).collect();
        let squares = costs.iter().map(|cost| cost * cost).sum();
        let found = spread(costs.len() as f64, costs.iter().sum(), squares, 1);
        assert!((found - 0.5).abs() < 0.01, "{found}");
    }
}
