//! A whole run on the calling thread, without a grid, and its measured times.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::solver::{EvaluationRequest, SolvePlan, Solver, SolverError, part};
use super::worker::{Output, TaskGroup, Worker};
use crate::model::TwoStage;

/// A step of a run, with its measured time.
pub enum LocalStep<'a> {
    /// A group of tasks was evaluated.
    Evaluation(&'a EvaluationRequest, &'a Output, Duration),
    /// The master stored the results of a group, and needs more before it decides.
    Update(&'a EvaluationRequest, Duration),
    /// The master decided, with a number of pivots of its linear program.
    Decision(&'a EvaluationRequest, u64, Duration),
}

/// Solves a plan, and returns the solver with its verdict and solutions. The result has the same
/// bits as on a grid with the same number of tasks and a basket of one.
///
/// # Errors
/// A sample cannot be drawn, a stage cannot be solved, or the answer fails its final check.
pub fn solve(model: impl Into<Arc<TwoStage>>, plan: SolvePlan) -> Result<Solver, SolverError> {
    solve_in_steps(model, plan, 1, |_| {})
}

/// As [`solve`], with the tasks of each request in `groups` groups; calls `observe` after each
/// step.
///
/// # Errors
/// As [`solve`].
pub fn solve_in_steps(
    model: impl Into<Arc<TwoStage>>,
    plan: SolvePlan,
    groups: u32,
    mut observe: impl FnMut(LocalStep<'_>),
) -> Result<Solver, SolverError> {
    let model = model.into();
    let mut solver = Solver::new(model.clone(), plan, 1)?;
    let mut worker = Worker::new(model)?;
    let mut requests = solver.begin()?;
    while let Some(request) = requests.pop() {
        let EvaluationRequest { phase, iterate, tasks, .. } = request;
        let groups = groups.clamp(1, tasks);
        for group in 0..groups {
            let range = part(0..u64::from(tasks), groups, group);
            let range = range.start as u32..range.end as u32;
            let began = Instant::now();
            let output =
                worker.evaluate(&request, &TaskGroup { tasks: range, by_blocks: false })?;
            observe(LocalStep::Evaluation(&request, &output, began.elapsed()));
            let (began, pivots) = (Instant::now(), solver.pivots());
            let mut decided = false;
            for (task, result) in output.parts {
                let next = solver.take(phase, iterate, task, result)?;
                decided |= !next.is_empty() || !solver.wants(phase, iterate);
                requests.extend(next);
            }
            let time = began.elapsed();
            observe(if decided {
                LocalStep::Decision(&request, solver.pivots() - pivots, time)
            } else {
                LocalStep::Update(&request, time)
            });
        }
    }
    Ok(solver)
}
