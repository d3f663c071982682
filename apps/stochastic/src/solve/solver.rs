//! The solver of a run as a state machine: it solves one sample after another, each from where the last
//! one ended, and estimates the cost of the decision. It says what to evaluate, and takes the results.
//!
//! No I/O and no clock. It knows neither who evaluates nor how fast.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use springtide_runtime::random::SplitMix;

use super::controller::{self, Outlook};
use super::estimate::{Interval, Moments};
use crate::extensive::extensive_form;
use crate::lp::simplex::Pricing;
use crate::lp::{Simplex, Status};
use crate::model::TwoStage;
use crate::recession::{self, RecessionError};
use crate::recourse::{Cut, Evaluation, Recourse, RecourseError, RootChoice, SecondStageRay};
use crate::sample::{SCENARIOS_MAX, SampleError, Sampler, Sampling};
use crate::scaling::Scaled;
use crate::trust_region::{
    self, Conflict, End, IterateRecord, RegionError, Relaxation, Step, TrustRegion,
    TrustRegionSnapshot,
};

/// Scenarios of the first warm-up sample, and how much larger each next one is.
const WARM_FIRST: u64 = 1000;
const WARM_TIMES: u64 = 5;
/// Tasks of warm-up samples.
const WARM_TASKS: u32 = 100;
/// How much larger the tolerance of warm-up samples is.
const WARM_EPSILON: f64 = 10.0;
/// Scenarios that tell which root is best.
const ROOT_SCENARIOS: u64 = 25;
/// The least effort of a block, where its size is not given: about a millisecond.
const BLOCK_EFFORT: f64 = 400_000.0;
/// The fewest scenarios of a block, where its size is not given.
const BLOCK_LEAST: u64 = 10;
/// The first radius of a sample that follows another, relative to the largest value of its start; at
/// least 1.
const NEXT_RADIUS: f64 = 0.05;
/// The largest violation of a first-stage row or bound by an answer, relative to its numbers.
const VIOLATION_MAX: f64 = 1e-6;

/// A sample of scenarios.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// How scenarios are drawn.
    pub sampling: Sampling,
    /// The random seed.
    pub seed: u64,
    /// The number of scenarios.
    pub scenarios: u64,
}

impl Sample {
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

/// What a run does.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// The sample to solve.
    pub sample: Sample,
    /// Its number of tasks; none: the controller chooses.
    pub tasks: Option<u32>,
    /// The most scenarios of a block, none: by their effort. Sums are made of blocks in their order.
    pub block: Option<u64>,
    /// Whether smaller samples are solved first.
    pub warm: bool,
    /// The first decision; none: the optimal one for the means of all random elements.
    pub start: Option<Vec<f64>>,
    /// The first radius; none: by the start.
    pub radius: Option<f64>,
    /// Parameters of the trust-region method.
    pub settings: trust_region::Settings,
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

/// A phase of a run: one sample, solved or evaluated.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Phase {
    pub(super) purpose: Purpose,
    pub(super) sample: Sample,
    tasks: Option<u32>,
    epsilon: f64,
}

impl Plan {
    /// Solves a sample with all parameters at their defaults, without other samples and estimates.
    pub fn new(sample: Sample) -> Self {
        Self {
            sample,
            tasks: None,
            block: None,
            warm: false,
            start: None,
            radius: None,
            settings: trust_region::Settings::default(),
            replications: 0,
            gap: None,
            confidence: 0.95,
            estimate: 0,
            only_estimate: false,
        }
    }

    pub(super) fn phases(&self) -> Vec<Phase> {
        let Self { sample, tasks, .. } = *self;
        let epsilon = self.settings.epsilon;
        let mut phases = Vec::new();
        if !self.only_estimate {
            let sampling = match sample.sampling {
                Sampling::All => Sampling::MonteCarlo,
                drawn => drawn,
            };
            let mut scenarios = WARM_FIRST;
            while self.warm && scenarios.saturating_mul(2) <= sample.scenarios {
                let few = Some(tasks.unwrap_or(WARM_TASKS).min(WARM_TASKS));
                let epsilon = epsilon * WARM_EPSILON;
                let sample = Sample { sampling, scenarios, ..sample };
                phases.push(Phase { purpose: Purpose::Warm, sample, tasks: few, epsilon });
                scenarios = scenarios.saturating_mul(WARM_TIMES);
            }
            phases.push(Phase { purpose: Purpose::Main, sample, tasks, epsilon });
            phases.extend(self.replicate(sample, 0));
        }
        if self.estimate > 0 {
            let seed = other_seed(sample.seed, "estimate", 0);
            let drawn = Sample { sampling: Sampling::MonteCarlo, seed, scenarios: self.estimate };
            // With all scenarios the cost of a decision is exact.
            let exactly = self.only_estimate && sample.sampling == Sampling::All;
            let sample = if exactly { sample } else { drawn };
            let tasks = tasks.or(Some(WARM_TASKS));
            phases.push(Phase { purpose: Purpose::Estimate, sample, tasks, epsilon });
        }
        phases
    }

    /// The replications of a sample; `first` is the number of the first one.
    fn replicate(&self, sample: Sample, first: u32) -> impl Iterator<Item = Phase> {
        let (tasks, epsilon) = (self.tasks, self.settings.epsilon);
        (first..first + self.replications).map(move |at| {
            let sample = Sample { seed: other_seed(sample.seed, "replication", at), ..sample };
            Phase { purpose: Purpose::Replication(at), sample, tasks, epsilon }
        })
    }
}

fn other_seed(seed: u64, what: &str, at: u32) -> u64 {
    SplitMix::of(SplitMix(seed ^ u64::from(at)).next(), what).next()
}

/// A request to evaluate all tasks of a sample at a decision.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Request {
    /// The phase that it belongs to.
    pub phase: u32,
    /// The iterate of that phase.
    pub iterate: u32,
    /// The sample.
    pub sample: Sample,
    /// The number of tasks that the sample is divided into.
    pub tasks: u32,
    /// The most scenarios of a block.
    pub block: u64,
    /// The decision.
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
    /// Adds the result of the scenarios that follow. A lack of recourse outweighs a cost without lower
    /// bound, and that outweighs cuts; of equals the first counts.
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

/// A sample that was solved.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SampleSolution {
    /// What the sample is for.
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

/// The solver cannot go on.
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

/// The state of a solver, to resume from elsewhere.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Saved {
    phases: Vec<Phase>,
    at: usize,
    tasks: u32,
    region: Option<TrustRegionSnapshot>,
    choice: RootChoice,
    block: u64,
    x: Vec<f64>,
    solutions: Vec<SampleSolution>,
    costs: Option<Moments>,
    notes: Vec<String>,
    verdict: Option<Verdict>,
}

/// The solver of a run. All it works with is in scaled units; what it returns of costs and decisions is in
/// the program's own.
pub struct Solver {
    /// The program in its own units.
    model: Arc<TwoStage>,
    scaled: Scaled,
    plan: Plan,
    phases: Vec<Phase>,
    workers: usize,
    at: usize,
    /// Tasks of the present phase.
    tasks: u32,
    sampler: Option<Sampler>,
    region: Option<TrustRegion>,
    probe: Recourse,
    choice: RootChoice,
    block: u64,
    /// The start of the next phase, and at the end the answer.
    x: Vec<f64>,
    /// Whether costs are known to have a lower bound.
    bounded: bool,
    /// Results of the present estimate, by task.
    parts: BTreeMap<u32, Moments>,
    solutions: Vec<SampleSolution>,
    /// Second-stage costs of the answer.
    costs: Option<Moments>,
    notes: Vec<String>,
    verdict: Option<Verdict>,
}

impl Solver {
    /// The solver of a plan; `workers` is their number at the beginning.
    ///
    /// # Errors
    /// The second stage cannot be factored.
    pub fn new(model: Arc<TwoStage>, plan: Plan, workers: usize) -> Result<Self, SolverError> {
        let scaled = Scaled::new(model.clone());
        let probe = Recourse::new(scaled.model.clone(), RootChoice::Slack)?;
        let (x, bounded) = match &plan.start {
            Some(start) => {
                (start.iter().zip(&scaled.first).map(|(x, unit)| x / unit).collect(), false)
            }
            None => mean_decision(&scaled.model),
        };
        Ok(Self {
            phases: plan.phases(),
            model,
            scaled,
            plan,
            workers,
            at: 0,
            tasks: 0,
            sampler: None,
            region: None,
            probe,
            choice: RootChoice::Slack,
            block: BLOCK_LEAST,
            x,
            bounded,
            parts: BTreeMap::new(),
            solutions: Vec::new(),
            costs: None,
            notes: Vec::new(),
            verdict: None,
        })
    }

    /// The state to resume from elsewhere, without the results of a present estimate.
    pub fn saved(&self) -> Saved {
        Saved {
            phases: self.phases.clone(),
            at: self.at,
            tasks: self.tasks,
            region: self.region.as_ref().map(TrustRegion::snapshot),
            choice: self.choice,
            block: self.block,
            x: self.x.clone(),
            solutions: self.solutions.clone(),
            costs: self.costs,
            notes: self.notes.clone(),
            verdict: self.verdict.clone(),
        }
    }

    /// Resumes a solver of the same model and plan. Returns what to evaluate.
    ///
    /// # Errors
    /// As [`Solver::begin`].
    pub fn resume(&mut self, saved: Saved) -> Result<Vec<Request>, SolverError> {
        let Saved { phases, at, tasks, region, choice, block, x, solutions, .. } = saved;
        let (costs, notes, verdict) = (saved.costs, saved.notes, saved.verdict);
        self.phases = phases;
        (self.at, self.tasks, self.choice, self.block, self.x) = (at, tasks, choice, block, x);
        (self.solutions, self.costs, self.notes) = (solutions, costs, notes);
        self.verdict = verdict;
        let Some(region) = region else { return self.begin_phase() };
        self.sampler = Some(self.phases[self.at].sample.sampler(&self.model)?);
        let region =
            TrustRegion::resume(self.scaled.model.first.clone(), self.scaled.model.offset, region);
        let open: Vec<(u32, Vec<f64>)> =
            region.open().map(|(iterate, x)| (iterate, x.to_vec())).collect();
        self.region = Some(region);
        open.into_iter().map(|(iterate, x)| self.request(iterate, x)).collect()
    }

    /// The first requests.
    ///
    /// # Errors
    /// The sample cannot be drawn, or a stage cannot be solved.
    pub fn begin(&mut self) -> Result<Vec<Request>, SolverError> {
        self.begin_phase()
    }

    fn begin_phase(&mut self) -> Result<Vec<Request>, SolverError> {
        if self.verdict.is_some() {
            return Ok(Vec::new());
        }
        self.enlarge();
        let Some(&phase) = self.phases.get(self.at) else {
            let only = self.plan.only_estimate;
            self.verdict = Some(if only { Verdict::Evaluated } else { Verdict::Optimal });
            return Ok(Vec::new());
        };
        let sampler = phase.sample.sampler(&self.model)?;
        self.tasks = match phase.tasks {
            Some(tasks) => tasks,
            None => self.choose_tasks(phase, &sampler),
        };
        let most = u32::try_from(phase.sample.scenarios).unwrap_or(u32::MAX);
        self.tasks = self.tasks.min(most);
        self.sampler = Some(sampler);
        self.parts.clear();
        if phase.purpose == Purpose::Estimate {
            return Ok(vec![self.request(0, self.x.clone())?]);
        }
        let (first, offset) = (self.scaled.model.first.clone(), self.scaled.model.offset);
        let settings = trust_region::Settings { epsilon: phase.epsilon, ..self.plan.settings };
        let mut region = TrustRegion::new(first, offset, self.tasks as usize, &self.x, settings);
        if self.bounded {
            region = region.known_bounded();
        }
        // The answer of another sample is near.
        let near = self.x.iter().fold(0.0_f64, |most, x| most.max(x.abs())) * NEXT_RADIUS;
        let next = (!self.solutions.is_empty()).then_some(near.max(1.0));
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
        let next = self.phases.get(self.at).map(|phase| phase.purpose);
        let (None | Some(Purpose::Estimate), Some(main)) = (next, self.main()) else { return };
        let reached = self.gap().is_some_and(|gap| gap.high <= wanted * main.objective.abs());
        let scenarios = main.sample.scenarios.saturating_mul(2);
        if reached || scenarios > SCENARIOS_MAX {
            return;
        }
        let sample = Sample { scenarios, ..main.sample };
        let first = self.replications().count() as u32;
        let high = self.gap().map_or(f64::INFINITY, |gap| gap.high);
        self.notes.push(format!(
            "a gap of up to {high:.4} with {} scenarios: {scenarios} scenarios next",
            main.sample.scenarios
        ));
        let (tasks, epsilon) = (self.plan.tasks, self.plan.settings.epsilon);
        let main = Phase { purpose: Purpose::Main, sample, tasks, epsilon };
        let more: Vec<Phase> =
            [main].into_iter().chain(self.plan.replicate(sample, first)).collect();
        self.phases.splice(self.at..self.at, more);
    }

    /// The number of tasks; all samples after the main one have as many as that.
    fn choose_tasks(&mut self, phase: Phase, sampler: &Sampler) -> u32 {
        if let Some(main) = self.main() {
            return main.tasks;
        }
        let few = 0..ROOT_SCENARIOS.min(sampler.count());
        let effort = self.probe.choose_root(&self.x, sampler, few).map_or(1.0, |best| best.1);
        let last = self.solutions.last();
        let outlook = Outlook {
            scenarios: phase.sample.scenarios,
            columns: self.model.first.columns.len(),
            effort,
            workers: self.workers,
            solved: last.map(|one| (one.tasks, one.iterates.len() as u32)),
        };
        let tasks = controller::choose_tasks(&outlook);
        self.notes.push(tasks.to_string());
        tasks.tasks
    }

    fn requests(&mut self, steps: Vec<Step>) -> Result<Vec<Request>, SolverError> {
        let mut requests = Vec::new();
        for step in steps {
            match step {
                Step::Evaluate { iterate, x } => requests.push(self.request(iterate, x)?),
                Step::TestRecession => requests.extend(self.test_recession()?),
                Step::Done => requests.extend(self.end_sample()?),
            }
        }
        Ok(requests)
    }

    fn test_recession(&mut self) -> Result<Vec<Request>, SolverError> {
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
                self.bounded |= recession::is_certain(&self.model);
                let steps = region.set_bounded()?;
                self.requests(steps)
            }
        }
    }

    /// Ends the run, or a sample that only prepares or qualifies the answer.
    fn end_with(&mut self, verdict: Verdict) -> Result<Vec<Request>, SolverError> {
        match self.phases.get(self.at).map(|phase| phase.purpose) {
            Some(purpose @ (Purpose::Warm | Purpose::Replication(_))) => {
                let why = match verdict {
                    Verdict::Infeasible(_) => "infeasible",
                    Verdict::Unbounded(_) => "unbounded",
                    _ => "stopped at its limit of iterates",
                };
                self.notes.push(format!("{purpose:?} sample {why}: left out"));
                self.region = None;
                self.at += 1;
                self.begin_phase()
            }
            _ => {
                self.verdict = Some(verdict);
                self.keep_solution(false)?;
                Ok(Vec::new())
            }
        }
    }

    /// The request of an iterate. Its root is the optimal basis at the decision itself for what proved
    /// best, which is chosen again after 1, 2, 4, ... iterates.
    fn request(&mut self, iterate: u32, x: Vec<f64>) -> Result<Request, SolverError> {
        let phase = self.phases[self.at];
        let mut root = Vec::new();
        if let Some(sampler) = &self.sampler {
            if iterate == 0 || iterate.is_power_of_two() {
                let few = 0..ROOT_SCENARIOS.min(sampler.count());
                let best = self.probe.choose_root(&x, sampler, few);
                let (choice, effort) = best.unwrap_or((RootChoice::Slack, BLOCK_EFFORT));
                self.choice = choice;
                if iterate == 0 {
                    let by_effort = (BLOCK_EFFORT / effort.max(1.0)) as u64;
                    self.block = self.plan.block.unwrap_or(by_effort.max(BLOCK_LEAST));
                }
            }
            root = self
                .probe
                .take_root(self.choice, &x, sampler, 0)
                .or_else(|_| self.probe.take_root(RootChoice::Slack, &x, sampler, 0))?;
        }
        let costs = phase.purpose == Purpose::Estimate;
        let (sample, tasks) = (phase.sample, self.tasks);
        let (phase, block) = (self.at as u32, self.block);
        Ok(Request { phase, iterate, sample, tasks, block, x, root, costs })
    }

    /// The trust region has ended.
    fn end_sample(&mut self) -> Result<Vec<Request>, SolverError> {
        let end = self.region.as_ref().and_then(TrustRegion::end).cloned();
        match end {
            Some(End::Infeasible(conflict)) => self.end_with(Verdict::Infeasible(conflict)),
            Some(End::Unbounded(mut ray)) => {
                ray.direction = times(&ray.direction, &self.scaled.second);
                self.end_with(Verdict::Unbounded(FallingDirection::SecondStage(ray)))
            }
            Some(End::IterationLimit) => self.end_with(Verdict::IterationLimit),
            Some(End::Optimal) | None => {
                self.keep_solution(true)?;
                self.at += 1;
                self.begin_phase()
            }
        }
    }

    /// Keeps the incumbent of the present sample, confirmed if it is called optimal.
    fn keep_solution(&mut self, optimal: bool) -> Result<(), SolverError> {
        let Some(mut solution) = self.present() else { return Ok(()) };
        if optimal && solution.purpose != Purpose::Warm {
            self.confirm(&solution)?;
        }
        solution.optimal = optimal;
        let incumbent = self.region.take().and_then(|region| region.incumbent().cloned());
        if matches!(solution.purpose, Purpose::Warm | Purpose::Main) {
            self.x = incumbent.map_or_else(Vec::new, |incumbent| incumbent.x);
        }
        self.solutions.push(solution);
        Ok(())
    }

    /// The present sample as it stands: its incumbent, and what the model without a region says. None
    /// where no sample is being solved, or it has no incumbent.
    pub fn present(&self) -> Option<SampleSolution> {
        let (phase, region) = (self.phases.get(self.at)?, self.region.as_ref()?);
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
            tasks: self.tasks,
            block: self.block,
            x: times(&incumbent.x, &self.scaled.first),
            objective: incumbent.cost * unit,
            start_cost: first.filter(|one| one.promised.is_infinite()).and_then(|one| one.cost),
            relaxation: region.relaxation().map(|relaxation| self.in_own_units(relaxation)),
            optimal: false,
            iterates,
        })
    }

    /// Checks an answer against the program itself: the rows and bounds of the first stage, and the gap
    /// to the bound of the model without a region.
    fn confirm(&self, solution: &SampleSolution) -> Result<(), SolverError> {
        let fail = |why: String| Err(SolverError::Unconfirmed(why));
        if let Some(violation) = self.model.first.violation(&solution.x, VIOLATION_MAX) {
            return fail(violation.describe(&self.model.first));
        }
        let Some(relaxation) = &solution.relaxation else {
            return fail("the model has no lower bound".to_owned());
        };
        let (gap, epsilon) = (solution.objective - relaxation.bound, self.plan.settings.epsilon);
        if gap > (1.01 * epsilon + 1e-9) * (self.scaled.cost + solution.objective.abs()) {
            return fail(format!("a gap of {gap:e} to the lower bound {}", relaxation.bound));
        }
        Ok(())
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
        if self.verdict.is_none() {
            self.verdict = Some(Verdict::Unfinished);
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
    ) -> Result<Vec<Request>, SolverError> {
        if phase as usize != self.at || self.verdict.is_some() {
            return Ok(Vec::new());
        }
        match (result, &mut self.region) {
            (TaskResult::Evaluation(evaluation), Some(region)) => {
                let steps = region.take(iterate, task, evaluation)?;
                self.requests(steps)
            }
            (TaskResult::Costs(costs), None) => {
                self.parts.insert(task, costs);
                if self.parts.len() < self.tasks as usize {
                    return Ok(Vec::new());
                }
                let mut all = Moments::default();
                self.parts.values().for_each(|part| all.merge(part));
                self.costs = Some(all);
                self.at += 1;
                self.begin_phase()
            }
            _ => Ok(Vec::new()),
        }
    }

    // --- what is known ---

    /// The program, in its own units.
    pub fn model(&self) -> &TwoStage {
        &self.model
    }

    /// How the run ended; none while it runs.
    pub fn verdict(&self) -> Option<&Verdict> {
        self.verdict.as_ref()
    }

    /// Whether the run has ended.
    pub fn is_done(&self) -> bool {
        self.verdict.is_some()
    }

    /// Whether the results of a request still count.
    pub fn wants(&self, phase: u32, iterate: u32) -> bool {
        let open = |region: &TrustRegion| region.open().any(|(open, _)| open == iterate);
        phase as usize == self.at && !self.is_done() && self.region.as_ref().is_none_or(open)
    }

    /// The purpose of the present phase.
    pub fn purpose(&self) -> Option<Purpose> {
        self.phases.get(self.at).map(|phase| phase.purpose).filter(|_| !self.is_done())
    }

    /// The trust-region method, while a sample is being solved.
    pub fn region(&self) -> Option<&TrustRegion> {
        self.region.as_ref()
    }

    /// The samples that were solved, in order.
    pub fn solutions(&self) -> &[SampleSolution] {
        &self.solutions
    }

    /// The solution of the main sample, of several the last.
    pub fn main(&self) -> Option<&SampleSolution> {
        self.solutions.iter().rev().find(|one| one.purpose == Purpose::Main)
    }

    /// One scaled unit of cost, which gaps are relative to where costs are near zero.
    pub fn unit(&self) -> f64 {
        self.scaled.cost
    }

    /// Notes of decisions since the last call.
    pub fn take_notes(&mut self) -> Vec<String> {
        std::mem::take(&mut self.notes)
    }

    /// The answer as it stands: the incumbent of the present sample, or the solution of the main one, or
    /// of the last warm-up sample. None where a proof or an estimate is the answer.
    pub fn answer(&self) -> Option<SampleSolution> {
        if matches!(
            self.verdict,
            Some(Verdict::Infeasible(_) | Verdict::Unbounded(_) | Verdict::Evaluated)
        ) {
            return None;
        }
        let present = self.present().filter(|one| !matches!(one.purpose, Purpose::Replication(_)));
        let mut last = self.solutions.iter().rev();
        let warm = || last.find(|one| one.purpose == Purpose::Warm).cloned();
        present.or_else(|| self.main().cloned()).or_else(warm)
    }

    /// The last decision.
    pub fn x(&self) -> Vec<f64> {
        times(&self.x, &self.scaled.first)
    }

    /// The cost of the present sample's incumbent, and the least cost that the model promises around it.
    pub fn progress(&self) -> Option<(f64, f64)> {
        let region = self.region.as_ref()?;
        let unit = self.scaled.cost;
        Some((region.incumbent()?.cost * unit, region.promised() * unit))
    }

    /// The estimated cost of the decision, over scenarios that it was not optimised for or over all that
    /// exist. Its counts of scenarios without recourse or without lower bound make the cost infinite.
    pub fn estimate(&self) -> Option<Estimate> {
        let costs = self.costs?;
        let phase = self.phases.iter().find(|phase| phase.purpose == Purpose::Estimate)?;
        let interval = match phase.sample.sampling {
            Sampling::All => costs.expectation(),
            Sampling::MonteCarlo | Sampling::LatinHypercube => costs.interval(self.plan.confidence),
        };
        let scaled = &self.scaled;
        let first = scaled.model.first.cost.iter().zip(&self.x).map(|(cost, x)| cost * x);
        let constant = scaled.model.offset + first.sum::<f64>();
        let own = |one: Interval| one.plus(constant).times(scaled.cost);
        let finite = costs.without == 0 && costs.unbounded == 0;
        Some(Estimate {
            interval: interval.filter(|_| finite).map(own),
            scenarios: phase.sample.scenarios,
            infeasible: costs.without,
            unbounded: costs.unbounded,
        })
    }

    /// The interval of the optimum's lower bound, from the optima of replications: their expectation is
    /// below the optimum.
    ///
    /// Source: Mak, Morton, Wood: Monte Carlo bounding techniques for determining solution quality in
    /// stochastic programs (Operations Research Letters 24, 1999).
    pub fn lower_bound(&self) -> Option<Interval> {
        let mut moments = Moments::default();
        let bounds = self.replications_of_main().filter_map(SampleSolution::bound);
        bounds.for_each(|bound| moments.add(bound, 1.0));
        moments.interval(self.plan.confidence)
    }

    /// The one-sided interval, from 0, of the answer's gap to the optimum by common random numbers: in
    /// each replication the cost of the answer, less the lower bound of the same scenarios (multiple
    /// replications procedure).
    ///
    /// Source: as [`Solver::lower_bound`].
    pub fn gap(&self) -> Option<Interval> {
        let mut moments = Moments::default();
        for one in self.replications_of_main() {
            if let (Some(cost), Some(bound)) = (one.start_cost, one.bound()) {
                moments.add((cost - bound).max(0.0), 1.0);
            }
        }
        moments.upper_limit(self.plan.confidence)
    }

    fn replications(&self) -> impl Iterator<Item = &SampleSolution> {
        let all = self.solutions.iter();
        all.filter(|one| matches!(one.purpose, Purpose::Replication(_)))
    }

    /// The replications of the last main sample: they have its size and follow it.
    fn replications_of_main(&self) -> impl Iterator<Item = &SampleSolution> {
        let main = self.solutions.iter().rposition(|one| one.purpose == Purpose::Main);
        let after = self.solutions[main.map_or(0, |main| main + 1)..].iter();
        after.filter(|one| matches!(one.purpose, Purpose::Replication(_)))
    }
}

fn times(values: &[f64], units: &[f64]) -> Vec<f64> {
    values.iter().zip(units).map(|(value, unit)| value * unit).collect()
}

/// The estimated cost of a decision.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// The interval of its expected cost; none where that is infinite, or too few scenarios tell.
    pub interval: Option<Interval>,
    /// The number of scenarios.
    pub scenarios: u64,
    /// The scenarios without recourse.
    pub infeasible: u64,
    /// The scenarios whose cost has no lower bound.
    pub unbounded: u64,
}

/// The optimal decision for the means of all random elements, which is the usual start, and whether it
/// shows that the costs of the program have a lower bound. Where that program has no optimum the
/// decision is one of its points, or the one nearest to zero within the bounds.
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

#[cfg(test)]
#[path = "solver_tests.rs"]
mod tests;
