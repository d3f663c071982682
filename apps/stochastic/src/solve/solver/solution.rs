//! The solution of a sample with the check of an optimal one, and the verdict of a run.

use serde::{Deserialize, Serialize};

use super::{Purpose, ScenarioSample};
use crate::model::Stage;
use crate::recourse::SecondStageRay;
use crate::trust_region::{Conflict, IterateRecord, Relaxation};

/// The largest violation of a first-stage row or bound by an answer, relative to its numbers.
const VIOLATION_MAX: f64 = 1e-6;

/// A sample that was solved.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SampleSolution {
    /// The purpose of the sample.
    pub purpose: Purpose,
    /// The sample of the scenarios.
    pub sample: ScenarioSample,
    /// The number of tasks that it was divided into.
    pub tasks: u32,
    /// The most scenarios of a block.
    pub block: u64,
    /// The best decision found.
    pub x: Vec<f64>,
    /// Cost of that decision.
    pub objective: f64,
    /// The cost of the decision that the sample began from, if that was evaluated: infinite if a
    /// scenario has no recourse.
    pub start_cost: Option<f64>,
    /// The model without a region: lower bound, duals and reduced costs. None where it has no lower
    /// bound.
    pub relaxation: Option<Relaxation>,
    /// Whether the model confirmed the decision.
    pub optimal: bool,
    /// The outcomes of the iterates.
    pub iterates: Vec<IterateRecord>,
}

impl SampleSolution {
    /// A lower bound of every decision's cost.
    pub fn bound(&self) -> Option<f64> {
        // What is above the cost is so by rounding.
        self.relaxation.as_ref().map(|relaxation| relaxation.bound.min(self.objective))
    }

    /// Whether this sample, optimal or not, gives a better preliminary answer than the solution of
    /// a `smaller` one that it began from.
    ///
    /// The decision of the smaller sample is the first iterate of this one. Its cost here, less the
    /// lower bound of the smaller sample, estimates the gap of that answer with its sampling error.
    /// This sample is better once its own gap is not larger than that estimate. It is better as
    /// well if the decision of the smaller sample has no finite cost here, or the smaller sample
    /// has no lower bound.
    pub(super) fn replaces(&self, smaller: &Self) -> bool {
        let (Some(start_cost), Some(smaller_bound)) = (self.start_cost, smaller.bound()) else {
            return true;
        };
        // A sample that favours the decision can cost less than the smaller sample's bound.
        let estimate = start_cost.max(smaller.objective) - smaller_bound;
        self.optimal
            || start_cost.is_infinite()
            || self.bound().is_some_and(|bound| self.objective - bound <= estimate)
    }

    /// Checks a solution that is called optimal against the program itself: the rows and bounds of
    /// the first stage, and the gap to the lower bound. Gaps are relative to `unit` and the cost.
    ///
    /// # Errors
    /// The failed check in words.
    pub(super) fn check(&self, first: &Stage, unit: f64, epsilon: f64) -> Result<(), String> {
        if let Some(violation) = first.violation(&self.x, VIOLATION_MAX) {
            return Err(violation.describe(first));
        }
        let Some(relaxation) = &self.relaxation else {
            return Err("the model has no lower bound".to_owned());
        };
        let gap = self.objective - relaxation.bound;
        if gap > (1.01 * epsilon + 1e-9) * (unit + self.objective.abs()) {
            return Err(format!("a gap of {gap:e} to the lower bound {}", relaxation.bound));
        }
        Ok(())
    }
}

/// How a run ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Verdict {
    /// The answer is optimal for its sample, within the tolerance.
    Optimal,
    /// Only the cost of a given decision was asked for.
    Evaluated,
    /// No decision meets all rows and leaves every scenario recourse.
    Infeasible(Conflict),
    /// Costs fall without end.
    Unbounded(FallingDirection),
    /// The limit of iterates was reached before an optimal decision.
    IterationLimit,
    /// The run was stopped.
    Unfinished,
}

/// A direction in which costs fall without end.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum FallingDirection {
    /// Of first-stage decisions, by column.
    FirstStage(Vec<f64>),
    /// Of the second stage of a scenario.
    SecondStage(SecondStageRay),
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::Sampling;

    fn solution(scenarios: u64, start_cost: f64, objective: f64, bound: f64) -> SampleSolution {
        let relaxation = Relaxation { bound, duals: Vec::new(), reduced_costs: Vec::new() };
        SampleSolution {
            purpose: Purpose::Warm,
            sample: ScenarioSample { sampling: Sampling::MonteCarlo, seed: 1, scenarios },
            tasks: 1,
            block: 1,
            x: vec![0.0],
            objective,
            start_cost: Some(start_cost),
            relaxation: bound.is_finite().then_some(relaxation),
            optimal: false,
            iterates: Vec::new(),
        }
    }

    /// The decision of 1,000 scenarios costs 9.3 there and 10.1 in 5,000, with a bound of 9.2.
    #[test]
    fn a_larger_sample_replaces_a_smaller_one_when_its_gap_is_smaller() {
        let smaller = solution(1000, 30.0, 9.3, 9.2);
        let larger = |objective, bound| solution(5000, 10.1, objective, bound);
        for (objective, bound, replaces) in [
            (10.1, -34.0, false),
            (10.0, 9.0, false),
            (10.0, 9.2, true),
            (9.9, 9.8, true),
            (10.1, f64::NEG_INFINITY, false),
        ] {
            assert_eq!(larger(objective, bound).replaces(&smaller), replaces, "{bound}");
        }
        // An optimal solution replaces any other.
        let optimal = SampleSolution { optimal: true, ..larger(10.1, -34.0) };
        assert!(optimal.replaces(&smaller));
        // The decision of the smaller sample lacks recourse in a scenario of the larger one.
        let infeasible = SampleSolution { start_cost: Some(f64::INFINITY), ..larger(12.0, -34.0) };
        assert!(infeasible.replaces(&smaller));
        // A smaller sample without a bound has no gap.
        assert!(larger(10.1, -34.0).replaces(&solution(1000, 30.0, 9.3, f64::NEG_INFINITY)));
        // The larger sample happens to cost less than the bound: the gap of the smaller one counts.
        let lucky = |bound| solution(5000, 9.0, 8.9, bound).replaces(&smaller);
        assert!(lucky(8.85) && !lucky(8.7));
    }
}
