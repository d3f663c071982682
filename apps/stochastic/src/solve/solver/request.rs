//! Requests of the solver to evaluate a decision, and the results of their tasks.

use serde::{Deserialize, Serialize};

use super::ScenarioSample;
use crate::recourse::{Cut, Evaluation};
use crate::solve::estimate::Moments;

/// A request to evaluate all tasks of a sample at a decision.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EvaluationRequest {
    /// The phase that it belongs to.
    pub phase: u32,
    /// The iterate of that phase.
    pub iterate: u32,
    /// The sample of the scenarios.
    pub sample: ScenarioSample,
    /// The number of tasks that the sample is divided into.
    pub tasks: u32,
    /// The most scenarios of a block.
    pub block: u64,
    /// The decision to evaluate.
    pub x: Vec<f64>,
    /// The basis from which scenarios are solved.
    pub root: Vec<u8>,
    /// Whether costs alone are needed, without cuts.
    pub costs: bool,
}

/// The result of a task, or of a block of one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum TaskResult {
    /// A cut, or why there is none.
    Evaluation(Evaluation),
    /// Costs alone.
    Costs(Moments),
}

impl TaskResult {
    /// Adds the result of the scenarios that follow. A lack of recourse outweighs a cost without
    /// lower bound, and that outweighs cuts; of equals the first counts.
    pub fn merge(&mut self, other: Self) {
        use Evaluation::{Infeasible, Unbounded};
        match (self, other) {
            (Self::Costs(costs), Self::Costs(other)) => costs.merge(&other),
            (Self::Evaluation(own), Self::Evaluation(other)) => match (own, other) {
                (Evaluation::Cut(cut), Evaluation::Cut(other)) => Cut::add(cut, &other),
                (Infeasible(_), _) | (Unbounded(_), Unbounded(_) | Evaluation::Cut(_)) => {}
                (own, other) => *own = other,
            },
            (Self::Costs(_), Self::Evaluation(_)) | (Self::Evaluation(_), Self::Costs(_)) => {}
        }
    }
}
