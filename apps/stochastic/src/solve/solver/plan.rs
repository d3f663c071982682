//! The plan of a run: samples of scenarios, the phases that solve them, and the start.
//!
//! This module must not know how a phase is solved or what it finds.

use std::ops::Range;

use serde::{Deserialize, Serialize};
use springtide_runtime::random::SplitMix;

use crate::extensive::extensive_form;
use crate::lp::simplex::Pricing;
use crate::lp::{Simplex, Status};
use crate::model::TwoStage;
use crate::recession;
use crate::sample::{SampleError, Sampler, Sampling};
use crate::trust_region;

/// Scenarios of the first warm-up sample.
const WARM_SCENARIOS: u64 = 1000;
/// The ratio of the sizes of successive warm-up samples.
const WARM_GROWTH: u64 = 5;
/// Tasks of warm-up samples.
const WARM_TASKS: u32 = 100;
/// The tolerance of warm-up samples, relative to that of the main one.
const WARM_EPSILON: f64 = 10.0;

/// A sample of scenarios.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ScenarioSample {
    /// How scenarios are drawn.
    pub sampling: Sampling,
    /// The seed of the random numbers.
    pub seed: u64,
    /// The number of scenarios.
    pub scenarios: u64,
}

impl ScenarioSample {
    /// The sampler that draws the scenarios.
    ///
    /// # Errors
    /// The scenarios cannot be drawn.
    pub fn sampler(&self, model: &TwoStage) -> Result<Sampler, SampleError> {
        Sampler::new(model, self.sampling, self.seed, self.scenarios)
    }

    /// The scenarios of one of `tasks` tasks.
    pub fn range(&self, tasks: u32, task: u32) -> Range<u64> {
        part(0..self.scenarios, tasks, task)
    }
}

/// One of `parts` nearly equal parts of a range.
pub fn part(range: Range<u64>, parts: u32, at: u32) -> Range<u64> {
    let len = u128::from(range.end - range.start);
    let end = |at: u32| range.start + (len * u128::from(at) / u128::from(parts.max(1))) as u64;
    end(at)..end(at + 1)
}

/// The samples that a run solves and estimates, and its parameters.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SolvePlan {
    /// The sample to solve.
    pub sample: ScenarioSample,
    /// Its number of tasks; none: the controller chooses.
    pub tasks: Option<u32>,
    /// The most scenarios of a block; none: by their effort. Sums add blocks in their order.
    pub block: Option<u64>,
    /// Whether smaller samples are solved first.
    pub warm: bool,
    /// The first decision; none: the optimal one for the means of all random elements.
    pub start: Option<Vec<f64>>,
    /// The first radius; none: by the start.
    pub radius: Option<f64>,
    /// Parameters of the trust-region method.
    pub settings: trust_region::TrustRegionSettings,
    /// Further samples of the same size to solve, for intervals of the optimum and the gap.
    pub replications: u32,
    /// The wanted gap of the answer, relative to its cost: samples double until it is reached.
    pub gap: Option<f64>,
    /// The confidence of intervals.
    pub confidence: f64,
    /// Scenarios that estimate the cost of the decision; 0: no estimate.
    pub estimate: u64,
    /// Whether only the start is estimated and nothing is solved.
    pub only_estimate: bool,
}

/// The purpose of a phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Purpose {
    /// A smaller sample, to begin the next one near its optimum.
    Warm,
    /// The sample whose solution is the answer.
    Main,
    /// A sample for the intervals of the optimum and the gap, by number.
    Replication(u32),
    /// An estimate of the answer's cost.
    Estimate,
}

impl Purpose {
    /// The name for users.
    pub fn name(self) -> String {
        match self {
            Self::Warm => "warm-up sample".to_owned(),
            Self::Main => "sample".to_owned(),
            Self::Replication(at) => format!("replication {}", at + 1),
            Self::Estimate => "estimate".to_owned(),
        }
    }
}

/// A phase of a run: one sample, solved or evaluated.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct SolvePhase {
    pub purpose: Purpose,
    pub sample: ScenarioSample,
    /// The number of tasks; none: the controller chooses.
    pub tasks: Option<u32>,
    pub epsilon: f64,
}

impl SolvePlan {
    /// Solves a sample with all parameters at their defaults, without other samples and estimates.
    pub fn new(sample: ScenarioSample) -> Self {
        Self {
            sample,
            tasks: None,
            block: None,
            warm: false,
            start: None,
            radius: None,
            settings: trust_region::TrustRegionSettings::default(),
            replications: 0,
            gap: None,
            confidence: 0.95,
            estimate: 0,
            only_estimate: false,
        }
    }

    /// The phases of the run in their order.
    pub(super) fn phases(&self) -> Vec<SolvePhase> {
        let Self { sample, tasks, .. } = *self;
        let epsilon = self.settings.epsilon;
        let mut phases = Vec::new();
        if !self.only_estimate {
            let sampling = match sample.sampling {
                Sampling::All => Sampling::MonteCarlo,
                drawn => drawn,
            };
            let mut scenarios = WARM_SCENARIOS;
            while self.warm && scenarios.saturating_mul(2) <= sample.scenarios {
                let few = Some(tasks.unwrap_or(WARM_TASKS).min(WARM_TASKS));
                let epsilon = epsilon * WARM_EPSILON;
                let sample = ScenarioSample { sampling, scenarios, ..sample };
                phases.push(SolvePhase { purpose: Purpose::Warm, sample, tasks: few, epsilon });
                scenarios = scenarios.saturating_mul(WARM_GROWTH);
            }
            phases.push(SolvePhase { purpose: Purpose::Main, sample, tasks, epsilon });
            phases.extend(self.replicate(sample, 0));
        }
        if self.estimate > 0 {
            let seed = other_seed(sample.seed, "estimate", 0);
            let drawn =
                ScenarioSample { sampling: Sampling::MonteCarlo, seed, scenarios: self.estimate };
            // With all scenarios the cost of a decision is exact.
            let exactly = self.only_estimate && sample.sampling == Sampling::All;
            let sample = if exactly { sample } else { drawn };
            let tasks = tasks.or(Some(WARM_TASKS));
            phases.push(SolvePhase { purpose: Purpose::Estimate, sample, tasks, epsilon });
        }
        phases
    }

    /// The replications of a sample; `first` is the number of the first one.
    pub(super) fn replicate(
        &self,
        sample: ScenarioSample,
        first: u32,
    ) -> impl Iterator<Item = SolvePhase> {
        let (tasks, epsilon) = (self.tasks, self.settings.epsilon);
        (first..first + self.replications).map(move |at| {
            let sample =
                ScenarioSample { seed: other_seed(sample.seed, "replication", at), ..sample };
            SolvePhase { purpose: Purpose::Replication(at), sample, tasks, epsilon }
        })
    }
}

/// An independent seed, derived from a seed, a purpose and a number.
fn other_seed(seed: u64, purpose: &str, number: u32) -> u64 {
    // Mixed first: seeds that differ in few bits must not share the seeds of their replications.
    let mut mixed = SplitMix::with_text(SplitMix(seed).next(), purpose);
    SplitMix(mixed.next() ^ u64::from(number)).next()
}

/// Returns the optimal decision for the means of all random elements, which is the usual start.
///
/// Where that program has no optimum the decision is one of its points, or the one nearest to zero
/// within the bounds. The second value says whether it shows that the costs of the program have a
/// lower bound.
pub fn mean_decision(model: &TwoStage) -> (Vec<f64>, bool) {
    let n = model.first.cost.len();
    let problem = extensive_form(model, [(1.0, model.mean().collect())]);
    let mut simplex = Simplex::new(problem, Pricing::Steepest);
    let mut x = vec![0.0; simplex.columns()];
    let status = simplex.solve();
    if matches!(status, Status::Optimal | Status::Unbounded) {
        simplex.values(&mut x);
    }
    x.truncate(n);
    let bounds = model.first.lower.iter().zip(&model.first.upper);
    x.iter_mut().zip(bounds).for_each(|(x, (lower, upper))| *x = x.clamp(*lower, *upper));
    (x, status == Status::Optimal && recession::is_certain(model))
}
