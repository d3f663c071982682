//! The solver of a run as a state machine: it solves one sample after another, each from the
//! decision of the last one, and estimates the cost of the decision. It requests evaluations, and
//! takes their results.
//!
//! - `plan`: samples, phases and the start.
//! - `request`: requests and results of tasks.
//! - `solution`: solutions of samples and verdicts.
//! - `queries`: progress, answer and intervals.
//!
//! No I/O and no clock. This module must not know who evaluates or how fast.

mod plan;
mod queries;
mod request;
mod solution;

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use self::plan::SolvePhase;
pub use self::plan::{Purpose, ScenarioSample, SolvePlan, mean_decision, part};
pub use self::queries::Estimate;
pub use self::request::{EvaluationRequest, TaskResult};
pub use self::solution::{FallingDirection, SampleSolution, Verdict};
use super::controller::{self, Workload};
use super::estimate::Moments;
use crate::model::TwoStage;
use crate::recession::{self, RecessionError};
use crate::recourse::{Recourse, RecourseError, RootChoice};
use crate::sample::{SCENARIOS_MAX, SampleError, Sampler};
use crate::scaling::Scaled;
use crate::trust_region::{
    self, IterateRecord, MethodEnd, MethodStep, RegionError, Relaxation, TrustRegion,
    TrustRegionSnapshot,
};

/// Scenarios that decide which root is best.
const ROOT_SCENARIOS: u64 = 25;
/// The least effort of a block, where its size is not given: about a millisecond.
const BLOCK_EFFORT: f64 = 400_000.0;
/// The fewest scenarios of a block, where its size is not given.
const BLOCK_LEAST: u64 = 10;
/// The first radius of a sample that follows another, relative to the largest value of its start;
/// at least 1.
const NEXT_RADIUS: f64 = 0.05;

/// Why the solver cannot continue.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SolverError {
    /// The first stage cannot be solved.
    #[error(transparent)]
    Region(#[from] RegionError),
    /// The second stage cannot be solved.
    #[error(transparent)]
    Recourse(#[from] RecourseError),
    /// The recession test cannot be done.
    #[error(transparent)]
    Recession(#[from] RecessionError),
    /// The sample cannot be drawn.
    #[error(transparent)]
    Sample(#[from] SampleError),
    /// A worker was asked for a task before it was given a sample.
    #[error("a worker has no sample")]
    NoSample,
    /// The answer failed its final check.
    #[error(
        "the answer failed its final check ({0}): look at the scaling of the program's numbers"
    )]
    Unconfirmed(String),
}

/// The state of a solver, to resume from: see [`Solver::snapshot`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SolverSnapshot {
    state: SolverState,
    region: Option<TrustRegionSnapshot>,
}

/// The state of a solver without its trust region and the results of a present estimate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct SolverState {
    phases: Vec<SolvePhase>,
    /// The index of the present phase.
    phase: usize,
    /// The number of tasks of the present phase.
    tasks: u32,
    /// The basis that scenarios are solved from.
    root: RootChoice,
    /// The most scenarios of a block.
    block: u64,
    /// The start of the next phase, and at the end the answer, in scaled units.
    x: Vec<f64>,
    /// Whether costs are known to have a lower bound.
    bounded: bool,
    solutions: Vec<SampleSolution>,
    /// Second-stage costs of the answer.
    costs: Option<Moments>,
    /// Replications of the last main sample that have no decision with recourse.
    infeasible_replications: u32,
    /// Replications of the last main sample whose costs have no lower bound.
    unbounded_replications: u32,
    /// Notes for the user since the last call of [`Solver::take_notes`].
    notes: Vec<String>,
    verdict: Option<Verdict>,
}

/// The solver of a run. It works in scaled units, and returns costs and decisions in the program's
/// own.
pub struct Solver {
    /// The program in its own units.
    model: Arc<TwoStage>,
    scaled: Scaled,
    plan: SolvePlan,
    /// The number of workers at the beginning.
    workers: usize,
    sampler: Option<Sampler>,
    region: Option<TrustRegion>,
    /// The second stage, to choose roots with.
    probe: Recourse,
    /// Costs of the present estimate, by task.
    costs: BTreeMap<u32, Moments>,
    /// Pivots of the master's linear programs since this solver was made.
    pivots: u64,
    state: SolverState,
}

impl Solver {
    /// The solver of a plan; `workers` is their number at the beginning.
    ///
    /// # Errors
    /// The second stage cannot be factored.
    pub fn new(model: Arc<TwoStage>, plan: SolvePlan, workers: usize) -> Result<Self, SolverError> {
        let scaled = Scaled::new(model.clone());
        let probe = Recourse::new(scaled.model.clone(), RootChoice::Slack)?;
        let (x, bounded) = match &plan.start {
            Some(start) => {
                (start.iter().zip(&scaled.first).map(|(x, unit)| x / unit).collect(), false)
            }
            None => mean_decision(&scaled.model),
        };
        let state = SolverState {
            phases: plan.phases(),
            phase: 0,
            tasks: 0,
            root: RootChoice::Slack,
            block: BLOCK_LEAST,
            x,
            bounded,
            solutions: Vec::new(),
            costs: None,
            infeasible_replications: 0,
            unbounded_replications: 0,
            notes: Vec::new(),
            verdict: None,
        };
        let (sampler, region, costs) = (None, None, BTreeMap::new());
        Ok(Self { model, scaled, plan, workers, sampler, region, probe, costs, pivots: 0, state })
    }

    /// The state to resume from elsewhere, without the results of a present estimate.
    pub fn snapshot(&self) -> SolverSnapshot {
        let region = self.region.as_ref().map(TrustRegion::snapshot);
        SolverSnapshot { state: self.state.clone(), region }
    }

    /// Resumes a solver of the same model and plan. Returns what to evaluate.
    ///
    /// # Errors
    /// As [`Solver::begin`].
    pub fn resume(
        &mut self,
        snapshot: SolverSnapshot,
    ) -> Result<Vec<EvaluationRequest>, SolverError> {
        let SolverSnapshot { state, region } = snapshot;
        self.state = state;
        let Some(region) = region else { return self.begin_phase() };
        let phase = self.state.phases[self.state.phase];
        self.sampler = Some(phase.sample.sampler(&self.model)?);
        let Scaled { model, .. } = &self.scaled;
        let region = TrustRegion::resume(model.first.clone(), model.offset, region);
        let open: Vec<(u32, Vec<f64>)> =
            region.open().map(|(iterate, x)| (iterate, x.to_vec())).collect();
        self.region = Some(region);
        open.into_iter().map(|(iterate, x)| self.request(iterate, x)).collect()
    }

    /// The first requests.
    ///
    /// # Errors
    /// The sample cannot be drawn, or a stage cannot be solved.
    pub fn begin(&mut self) -> Result<Vec<EvaluationRequest>, SolverError> {
        self.begin_phase()
    }

    fn begin_phase(&mut self) -> Result<Vec<EvaluationRequest>, SolverError> {
        if self.state.verdict.is_some() {
            return Ok(Vec::new());
        }
        self.enlarge();
        let Some(&phase) = self.state.phases.get(self.state.phase) else {
            let only = self.plan.only_estimate;
            self.state.verdict = Some(if only { Verdict::Evaluated } else { Verdict::Optimal });
            return Ok(Vec::new());
        };
        let sampler = phase.sample.sampler(&self.model)?;
        self.state.tasks = match phase.tasks {
            Some(tasks) => tasks,
            None => self.choose_tasks(phase, &sampler),
        };
        let most = u32::try_from(phase.sample.scenarios).unwrap_or(u32::MAX);
        self.state.tasks = self.state.tasks.min(most);
        self.sampler = Some(sampler);
        self.costs.clear();
        if phase.purpose == Purpose::Estimate {
            return Ok(vec![self.request(0, self.state.x.clone())?]);
        }
        let (first, offset) = (self.scaled.model.first.clone(), self.scaled.model.offset);
        let settings =
            trust_region::TrustRegionSettings { epsilon: phase.epsilon, ..self.plan.settings };
        let mut region =
            TrustRegion::new(first, offset, self.state.tasks as usize, &self.state.x, settings);
        if self.state.bounded {
            region = region.known_bounded();
        }
        // The answer of another sample is near.
        let near = self.state.x.iter().fold(0.0_f64, |most, x| most.max(x.abs())) * NEXT_RADIUS;
        let next = (!self.state.solutions.is_empty()).then_some(near.max(1.0));
        if let Some(radius) = self.plan.radius.or(next) {
            region = region.with_radius(radius);
        }
        let step = region.begin()?;
        self.region = Some(region);
        self.requests(vec![step])
    }

    /// Doubles the sample where a wanted gap is not reached and all replications are done.
    fn enlarge(&mut self) {
        let Some(wanted) = self.plan.gap else { return };
        let next = self.state.phases.get(self.state.phase).map(|phase| phase.purpose);
        let (None | Some(Purpose::Estimate), Some(main)) = (next, self.main()) else { return };
        let reached = self.gap().is_some_and(|gap| gap.high <= wanted * main.objective.abs());
        let scenarios = main.sample.scenarios.saturating_mul(2);
        if reached || scenarios > SCENARIOS_MAX {
            return;
        }
        let sample = ScenarioSample { scenarios, ..main.sample };
        let first = self.replications().count() as u32;
        let high = self.gap().map_or(f64::INFINITY, |gap| gap.high);
        self.state.notes.push(format!(
            "a gap of up to {high:.4} with {} scenarios, {:.4} wanted: {scenarios} scenarios next",
            main.sample.scenarios,
            wanted * main.objective.abs()
        ));
        let (tasks, epsilon) = (self.plan.tasks, self.plan.settings.epsilon);
        let main = SolvePhase { purpose: Purpose::Main, sample, tasks, epsilon };
        (self.state.infeasible_replications, self.state.unbounded_replications) = (0, 0);
        // By default as many scenarios estimate the cost as the sample has.
        let default = self.plan.estimate == self.plan.sample.scenarios;
        if let Some(Purpose::Estimate) = next
            && default
        {
            self.state.phases[self.state.phase].sample.scenarios = scenarios;
        }
        let more: Vec<SolvePhase> =
            [main].into_iter().chain(self.plan.replicate(sample, first)).collect();
        self.state.phases.splice(self.state.phase..self.state.phase, more);
    }

    /// The number of tasks; all samples after the main one have as many as that.
    fn choose_tasks(&mut self, phase: SolvePhase, sampler: &Sampler) -> u32 {
        if let Some(main) = self.main() {
            return main.tasks;
        }
        let few = 0..ROOT_SCENARIOS.min(sampler.count());
        let effort = self.probe.choose_root(&self.state.x, sampler, few).map_or(1.0, |best| best.1);
        let last = self.state.solutions.last();
        let workload = Workload {
            scenarios: phase.sample.scenarios,
            columns: self.model.first.columns.len(),
            effort,
            workers: self.workers,
            solved: last.map(|one| (one.tasks, one.iterates.len() as u32)),
        };
        let tasks = controller::choose_tasks(&workload);
        self.state.notes.push(tasks.to_string());
        tasks.tasks
    }

    fn requests(&mut self, steps: Vec<MethodStep>) -> Result<Vec<EvaluationRequest>, SolverError> {
        let mut requests = Vec::new();
        for step in steps {
            match step {
                MethodStep::Evaluate { iterate, x } => requests.push(self.request(iterate, x)?),
                MethodStep::TestRecession => requests.extend(self.test_recession()?),
                MethodStep::Done => requests.extend(self.end_sample()?),
            }
        }
        Ok(requests)
    }

    fn test_recession(&mut self) -> Result<Vec<EvaluationRequest>, SolverError> {
        let (Some(sampler), Some(region)) = (&self.sampler, &mut self.region) else {
            return Ok(Vec::new());
        };
        match recession::falling_direction(&self.scaled.model, sampler)? {
            Some(direction) => {
                let direction = times(&direction, &self.scaled.first);
                let direction = FallingDirection::FirstStage(direction);
                self.end_with(Verdict::Unbounded(direction))
            }
            None => {
                self.state.bounded |= recession::is_certain(&self.model);
                let steps = region.set_bounded()?;
                self.requests(steps)
            }
        }
    }

    /// Ends the run, or a sample that only prepares or qualifies the answer.
    fn end_with(&mut self, verdict: Verdict) -> Result<Vec<EvaluationRequest>, SolverError> {
        match self.state.phases.get(self.state.phase).map(|phase| phase.purpose) {
            Some(purpose @ (Purpose::Warm | Purpose::Replication(_))) => {
                let why = match verdict {
                    Verdict::Infeasible(_) => "infeasible: left out",
                    Verdict::Unbounded(_) => "unbounded: left out",
                    _ => "stopped at its limit of iterates",
                };
                self.state.notes.push(format!("the {} is {why}", purpose.name()));
                if matches!(purpose, Purpose::Replication(_)) {
                    match verdict {
                        Verdict::Infeasible(_) => self.state.infeasible_replications += 1,
                        Verdict::Unbounded(_) => self.state.unbounded_replications += 1,
                        _ => self.keep_solution(false)?,
                    }
                }
                self.region = None;
                self.state.phase += 1;
                self.begin_phase()
            }
            _ => {
                self.state.verdict = Some(verdict);
                self.keep_solution(false)?;
                Ok(Vec::new())
            }
        }
    }

    /// The request of an iterate. Its root is the optimal basis, at this decision, of the root
    /// choice with the least effort. The choice is made again at iterates 1, 2, 4, ...
    fn request(&mut self, iterate: u32, x: Vec<f64>) -> Result<EvaluationRequest, SolverError> {
        let phase = self.state.phases[self.state.phase];
        let mut root = Vec::new();
        if let Some(sampler) = &self.sampler {
            if iterate == 0 || iterate.is_power_of_two() {
                let few = 0..ROOT_SCENARIOS.min(sampler.count());
                let best = self.probe.choose_root(&x, sampler, few);
                let (choice, effort) = best.unwrap_or((RootChoice::Slack, BLOCK_EFFORT));
                self.state.root = choice;
                if iterate == 0 {
                    let by_effort = (BLOCK_EFFORT / effort.max(1.0)) as u64;
                    self.state.block = self.plan.block.unwrap_or(by_effort.max(BLOCK_LEAST));
                }
            }
            root = self
                .probe
                .take_root(self.state.root, &x, sampler, 0)
                .or_else(|_| self.probe.take_root(RootChoice::Slack, &x, sampler, 0))?;
        }
        let costs = phase.purpose == Purpose::Estimate;
        let (sample, tasks) = (phase.sample, self.state.tasks);
        let (phase, block) = (self.state.phase as u32, self.state.block);
        Ok(EvaluationRequest { phase, iterate, sample, tasks, block, x, root, costs })
    }

    /// The trust region has ended.
    fn end_sample(&mut self) -> Result<Vec<EvaluationRequest>, SolverError> {
        let end = self.region.as_ref().and_then(TrustRegion::end).cloned();
        match end {
            Some(MethodEnd::Infeasible(conflict)) => self.end_with(Verdict::Infeasible(conflict)),
            Some(MethodEnd::Unbounded(mut ray)) => {
                ray.direction = times(&ray.direction, &self.scaled.second);
                self.end_with(Verdict::Unbounded(FallingDirection::SecondStage(ray)))
            }
            Some(MethodEnd::IterationLimit) => self.end_with(Verdict::IterationLimit),
            Some(MethodEnd::Optimal) | None => {
                self.keep_solution(true)?;
                self.state.phase += 1;
                self.begin_phase()
            }
        }
    }

    /// Keeps the incumbent of the present sample, confirmed if it is called optimal.
    fn keep_solution(&mut self, optimal: bool) -> Result<(), SolverError> {
        let Some(mut solution) = self.present() else { return Ok(()) };
        if optimal && solution.purpose != Purpose::Warm {
            let (first, epsilon) = (&self.model.first, self.plan.settings.epsilon);
            solution.check(first, self.scaled.cost, epsilon).map_err(SolverError::Unconfirmed)?;
        }
        solution.optimal = optimal;
        let incumbent = self.region.take().and_then(|region| region.incumbent().cloned());
        if matches!(solution.purpose, Purpose::Warm | Purpose::Main) {
            self.state.x = incumbent.map_or_else(Vec::new, |incumbent| incumbent.x);
        }
        self.state.solutions.push(solution);
        Ok(())
    }

    /// The present sample as it stands: its incumbent, and what the model without a region says.
    /// None where no sample is being solved, or it has no incumbent.
    pub fn present(&self) -> Option<SampleSolution> {
        let (phase, region) = (self.state.phases.get(self.state.phase)?, self.region.as_ref()?);
        let incumbent = region.incumbent()?;
        let unit = self.scaled.cost;
        let record = |record: &IterateRecord| IterateRecord {
            cost: record.cost.map(|cost| cost * unit),
            promised: record.promised * unit,
            ..record.clone()
        };
        let iterates: Vec<IterateRecord> = region.records().iter().map(record).collect();
        let first = iterates.first();
        Some(SampleSolution {
            purpose: phase.purpose,
            sample: phase.sample,
            tasks: self.state.tasks,
            block: self.state.block,
            x: times(&incumbent.x, &self.scaled.first),
            objective: incumbent.cost * unit,
            start_cost: first
                .filter(|one| one.promised.is_infinite())
                .map(|one| one.cost.unwrap_or(f64::INFINITY)),
            relaxation: region.relaxation().map(|relaxation| self.in_own_units(relaxation)),
            optimal: false,
            iterates,
        })
    }

    fn in_own_units(&self, relaxation: Relaxation) -> Relaxation {
        let Scaled { first, rows, cost, .. } = &self.scaled;
        let per = |values: &[f64], units: &[f64]| {
            values.iter().zip(units).map(|(value, unit)| value * cost / unit).collect()
        };
        Relaxation {
            bound: relaxation.bound * cost,
            duals: per(&relaxation.duals, rows),
            reduced_costs: per(&relaxation.reduced_costs, first),
        }
    }

    /// Stops the run where it is: the incumbent becomes the answer, marked unfinished.
    ///
    /// # Errors
    /// None that a solved model has; see [`Solver::begin`].
    pub fn stop(&mut self) -> Result<(), SolverError> {
        if self.state.verdict.is_none() {
            self.state.verdict = Some(Verdict::Unfinished);
            self.keep_solution(false)?;
        }
        Ok(())
    }

    /// Takes the result of a task. One that is known already, or belongs to what is over, changes
    /// nothing. Returns what to evaluate next.
    ///
    /// # Errors
    /// As [`Solver::begin`].
    pub fn take(
        &mut self,
        phase: u32,
        iterate: u32,
        task: u32,
        result: TaskResult,
    ) -> Result<Vec<EvaluationRequest>, SolverError> {
        if phase as usize != self.state.phase || self.state.verdict.is_some() {
            return Ok(Vec::new());
        }
        match (result, &mut self.region) {
            (TaskResult::Evaluation(evaluation), Some(region)) => {
                let before = region.pivots();
                let steps = region.take(iterate, task, evaluation)?;
                self.pivots += region.pivots() - before;
                self.requests(steps)
            }
            (TaskResult::Costs(costs), None) => {
                self.costs.insert(task, costs);
                if self.costs.len() < self.state.tasks as usize {
                    return Ok(Vec::new());
                }
                let mut all = Moments::default();
                self.costs.values().for_each(|part| all.merge(part));
                self.state.costs = Some(all);
                self.state.phase += 1;
                self.begin_phase()
            }
            _ => Ok(Vec::new()),
        }
    }
}

/// Multiplies each value by its unit.
fn times(values: &[f64], units: &[f64]) -> Vec<f64> {
    values.iter().zip(units).map(|(value, unit)| value * unit).collect()
}

#[cfg(test)]
#[path = "solver_tests.rs"]
mod tests;
