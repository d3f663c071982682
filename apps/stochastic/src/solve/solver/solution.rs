//! The solution of a sample with the check of an optimal one, and the verdict of a run.

use serde::{Deserialize, Serialize};

use super::{Purpose, Sample};
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
    /// The sample.
    pub sample: Sample,
    /// The number of tasks that it was divided into.
    pub tasks: u32,
    /// The most scenarios of a block.
    pub block: u64,
    /// The best decision.
    pub x: Vec<f64>,
    /// Its cost.
    pub objective: f64,
    /// The cost of the decision that the sample began from, if that was evaluated.
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
