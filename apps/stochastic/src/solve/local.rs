//! A whole run on the calling thread, without a grid.

use std::sync::Arc;

use super::solver::{Plan, Solver, SolverError};
use super::worker::Worker;
use crate::model::TwoStage;

/// Solves a plan, task by task, and returns the solver with its verdict and solutions. The result has
/// the same bits as on a grid with the same number of tasks and a basket of one.
///
/// # Errors
/// A sample cannot be drawn, a stage cannot be solved, or the answer fails its final check.
pub fn solve(model: impl Into<Arc<TwoStage>>, plan: Plan) -> Result<Solver, SolverError> {
    let model = model.into();
    let mut solver = Solver::new(model.clone(), plan, 1)?;
    let mut worker = Worker::new(model)?;
    let mut requests = solver.begin()?;
    while let Some(request) = requests.pop() {
        for (task, result) in worker.evaluate_all(&request)? {
            requests.extend(solver.take(request.phase, request.iterate, task, result)?);
        }
    }
    Ok(solver)
}
