//! Measured times of a run with one worker on one thread: Table 2 and Figures 3 and 6.
//!
//! Times are those of this machine, so they differ from run to run; pivots do not.

use std::sync::Arc;

use serde::Serialize;
use springtide_cli::exit::Failed;
use springtide_runtime::wire::encode_payload;
use springtide_stochastic::model::TwoStage;
use springtide_stochastic::sample::Sampling;
use springtide_stochastic::solve::local::{LocalStep, solve_in_steps};
use springtide_stochastic::solve::solver::{EvaluationRequest, ScenarioSample, SolvePlan};
use springtide_stochastic::solve::worker::{TaskGroup, Worker};
use tokio::time::Instant;

/// Mean, extremes and coefficient of variation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(super) struct ProfileSummary {
    pub count: usize,
    pub mean: f64,
    pub min: f64,
    pub max: f64,
    /// Standard deviation over the mean.
    pub variation: f64,
}

impl ProfileSummary {
    pub fn of(all: &[f64]) -> Self {
        if all.is_empty() {
            return Self::default();
        }
        let mean = all.iter().sum::<f64>() / all.len() as f64;
        let variance = all.iter().map(|one| (one - mean).powi(2)).sum::<f64>() / all.len() as f64;
        Self {
            count: all.len(),
            mean,
            min: all.iter().copied().fold(f64::INFINITY, f64::min),
            max: all.iter().copied().fold(f64::NEG_INFINITY, f64::max),
            variation: if mean > 0.0 { variance.sqrt() / mean } else { 0.0 },
        }
    }
}

/// A run to profile.
#[derive(Clone, Copy, Debug)]
pub(super) struct ProfileRun {
    pub scenarios: u64,
    pub tasks: u32,
    pub groups: u32,
    pub seed: u64,
    /// Whether it starts at zero, without smaller samples.
    pub cold_start: bool,
}

/// The measured times of the main sample of a run.
#[derive(Clone, Debug, Default)]
pub(super) struct Profile {
    pub iterations: u32,
    /// Seconds of the master to store the results of a group.
    pub updates_s: Vec<f64>,
    /// Seconds of the master for each decision.
    pub decisions_s: Vec<f64>,
    /// Pivots of each decision.
    pub decision_pivots: Vec<u64>,
    /// Seconds of the worker for each group.
    pub evaluations_s: Vec<f64>,
    /// The greatest size of a request and of a group's results, bytes.
    pub message_bytes: (usize, usize),
    /// The request of each decision.
    pub requests: Vec<EvaluationRequest>,
}

impl ProfileRun {
    /// Solves the sample, and measures each step.
    ///
    /// # Errors
    /// The solver fails.
    pub fn profile(&self, model: &Arc<TwoStage>) -> Result<Profile, Failed> {
        let Self { scenarios, tasks, groups, seed, cold_start } = *self;
        let sample = ScenarioSample { sampling: Sampling::MonteCarlo, seed, scenarios };
        let start = cold_start.then(|| vec![0.0; model.first.columns.len()]);
        let plan =
            SolvePlan { tasks: Some(tasks), warm: !cold_start, start, ..SolvePlan::new(sample) };
        let mut profile = Profile::default();
        let bytes = |result: Result<bytes::Bytes, _>| result.map_or(0, |bytes| bytes.len());
        solve_in_steps(model.clone(), plan, groups, |step| {
            let request = match step {
                LocalStep::Evaluation(request, ..)
                | LocalStep::Update(request, _)
                | LocalStep::Decision(request, ..) => request,
            };
            if request.sample != sample {
                return;
            }
            match step {
                LocalStep::Evaluation(request, output, time) => {
                    profile.evaluations_s.push(time.as_secs_f64());
                    let (request_max, output_max) = &mut profile.message_bytes;
                    *request_max = bytes(encode_payload(request)).max(*request_max);
                    *output_max = bytes(encode_payload(output)).max(*output_max);
                }
                LocalStep::Update(_, time) => profile.updates_s.push(time.as_secs_f64()),
                LocalStep::Decision(request, pivots, time) => {
                    profile.iterations += 1;
                    profile.decisions_s.push(time.as_secs_f64());
                    profile.decision_pivots.push(pivots);
                    profile.requests.push(request.clone());
                }
            }
        })
        .map_err(Failed::failure)?;
        Ok(profile)
    }
}

/// Seconds and pivots of groups of a number of scenarios.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct GroupTimes {
    /// Scenarios of a group.
    pub scenarios: u64,
    pub seconds: ProfileSummary,
    pub pivots: ProfileSummary,
}

/// Measures groups of several sizes at some decisions of a run.
///
/// # Errors
/// The solver fails.
pub(super) fn group_times(
    model: &Arc<TwoStage>,
    requests: &[EvaluationRequest],
    sizes: &[u64],
) -> Result<Vec<GroupTimes>, Failed> {
    let mut worker = Worker::new(model.clone()).map_err(Failed::failure)?;
    let mut times = Vec::new();
    for scenarios in sizes.iter().copied() {
        let (mut seconds, mut pivots) = (Vec::new(), Vec::new());
        for request in requests {
            let groups = (request.sample.scenarios / scenarios).max(1);
            let request = EvaluationRequest {
                tasks: u32::try_from(groups).unwrap_or(u32::MAX),
                ..request.clone()
            };
            for task in 0..request.tasks {
                let group = TaskGroup { tasks: task..task + 1, by_blocks: false };
                let began = Instant::now();
                let output = worker.evaluate(&request, &group).map_err(Failed::failure)?;
                seconds.push(began.elapsed().as_secs_f64());
                pivots.push(output.pivots as f64);
            }
        }
        let (seconds, pivots) = (ProfileSummary::of(&seconds), ProfileSummary::of(&pivots));
        times.push(GroupTimes { scenarios, seconds, pivots });
    }
    Ok(times)
}

/// The slope and the intercept of the line through points with the least squares of relative
/// errors, and the greatest relative error.
pub(super) fn line(points: &[(f64, f64)]) -> (f64, f64, f64) {
    let sum = |of: &dyn Fn(f64, f64) -> f64| points.iter().map(|(x, y)| of(*x, *y)).sum::<f64>();
    // Weights 1 / y^2 make errors relative.
    let weight = |y: f64| 1.0 / (y * y).max(f64::MIN_POSITIVE);
    let (w, wx) = (sum(&|_, y| weight(y)), sum(&|x, y| weight(y) * x));
    let (wy, wxx) = (sum(&|_, y| weight(y) * y), sum(&|x, y| weight(y) * x * x));
    let wxy = sum(&|x, y| weight(y) * x * y);
    let slope = (w * wxy - wx * wy) / (w * wxx - wx * wx);
    let intercept = (wy - slope * wx) / w;
    let error = |(x, y): &(f64, f64)| ((intercept + slope * x) / y - 1.0).abs();
    (slope, intercept, points.iter().map(error).fold(0.0, f64::max))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn summaries_and_lines_of_known_numbers() {
        let summary = ProfileSummary::of(&[1.0, 3.0]);
        assert_eq!((summary.mean, summary.min, summary.max), (2.0, 1.0, 3.0));
        assert_eq!((summary.count, summary.variation), (2, 0.5));
        assert_eq!(ProfileSummary::of(&[]), ProfileSummary::default());
        let points: Vec<(f64, f64)> = (1..9).map(f64::from).map(|x| (x, 2.0 + 3.0 * x)).collect();
        let (slope, intercept, error) = line(&points);
        assert!((slope - 3.0).abs() < 1e-9 && (intercept - 2.0).abs() < 1e-9 && error < 1e-9);
        let bent: Vec<(f64, f64)> = (1..9).map(f64::from).map(|x| (x, x * x)).collect();
        assert!(line(&bent).2 > 0.1);
    }
}
