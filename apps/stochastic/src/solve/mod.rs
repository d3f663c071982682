//! The job that solves a two-stage stochastic program on a grid: `springtide solve`.
//!
//! - [`solver`]: what is solved, one sample after another, as a state machine.
//! - [`local`]: a whole run on the calling thread.
//! - [`worker`]: how a worker solves scenarios.
//! - [`driver`]: how the master distributes tasks and collects results.
//! - [`controller`]: forecasts of time, and the choices that follow from them.
//! - [`estimate`]: means and confidence intervals.
//! - [`report`]: progress, result and tables.
//!
//! This file holds the job's options and their checks.

pub mod controller;
pub mod driver;
pub mod estimate;
pub mod local;
pub mod report;
pub mod solver;
pub mod worker;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::{Args, ValueHint};
use serde::{Deserialize, Serialize};
use springtide_runtime::mw::{self, AssignmentSettings, DispatchRule, Program};
use springtide_runtime::work::{Checkpoint, Context, InputError, Job, Outcome, Registry, Stop};

use self::controller::Objective;
use self::driver::{DriverState, SolveDriver};
use self::solver::{EvaluationRequest, ScenarioSample, SolvePlan};
use self::worker::{Output, SolveMode, TaskGroup, TimeModel, Worker};
use crate::cvar::with_cvar;
use crate::export::{extensive_mps, sample_smps};
use crate::extensive::scenarios;
use crate::model::{RandomElement, TwoStage};
use crate::sample::{SCENARIOS_MAX, Sampling};
use crate::smps::{self, Files};
use crate::trust_region;

/// Scenarios that are drawn by default.
const SCENARIOS: u64 = 1000;
/// The part of an iterate's tasks after which the next one is made, with several at once.
const SIGMA: f64 = 0.7;
/// Replications that qualify each sample of a sequential run, by default.
const GAP_REPLICATIONS: u32 = 5;
/// The most scenarios of an extensive form or sample that is written.
const WRITTEN_MAX: u64 = 1_000_000;
/// The largest violation of a row or bound by a decision to evaluate, relative to its numbers.
const VIOLATION_MAX: f64 = 1e-6;

/// The job: `springtide solve MODEL`.
#[derive(Args, Serialize, Deserialize, Clone, Debug, PartialEq)]
pub struct Solve {
    /// The program: a directory with its three SMPS files (core, time, stochastic), or their common
    /// path without the endings
    #[arg(value_name = "MODEL", value_hint = ValueHint::AnyPath, required_unless_present = "core")]
    pub model: Option<PathBuf>,
    /// The core file, where the three files have no common path
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, conflicts_with = "model",
          requires_all = ["time", "stoch"])]
    pub core: Option<PathBuf>,
    /// The time file of the program
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, requires = "core")]
    pub time: Option<PathBuf>,
    /// The stochastic file of the program
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, requires = "core")]
    pub stoch: Option<PathBuf>,
    /// Scenarios to draw [default: 1000]
    #[arg(long, value_name = "N", conflicts_with = "all_scenarios")]
    pub scenarios: Option<u64>,
    /// Take every scenario with its probability
    #[arg(long)]
    pub all_scenarios: bool,
    /// Sampling method: monte-carlo or latin-hypercube
    #[arg(long, value_name = "METHOD", default_value = "monte-carlo", value_parser = sampling)]
    pub sampling: Sampling,
    /// Tasks, each of which gives one cut an iterate. With this number given, a run has the same
    /// bits on every grid [default: chosen by the model of total time]
    #[arg(long, value_name = "T")]
    pub tasks: Option<u32>,
    /// Iterates to evaluate at once; with more than one the path to the answer depends on timing
    #[arg(long, value_name = "B", default_value_t = 1)]
    pub basket: usize,
    /// Random seed of the scenarios
    #[arg(long, value_name = "S", default_value_t = 1)]
    pub seed: u64,
    /// Further samples of the same size to solve, for confidence intervals of the optimum and of
    /// the gap
    #[arg(long, value_name = "R", default_value_t = 0)]
    pub replications: u32,
    /// Enlarge the sample until the gap of the decision is at most this part of its cost, as 0.01
    /// or 1%, with the given confidence
    #[arg(long, value_name = "PART", value_parser = part,
          conflicts_with_all = ["all_scenarios", "evaluate"])]
    pub gap: Option<f64>,
    /// Confidence of all intervals, as 0.95 or 95%
    #[arg(long, value_name = "PART", default_value = "95%", value_parser = part)]
    pub confidence: f64,
    /// Minimise a weighted sum of the mean and the conditional value at risk of this level, as
    /// 0.95: the mean of the worst 5% of scenarios
    #[arg(long, value_name = "LEVEL", value_parser = part)]
    pub cvar: Option<f64>,
    /// Weight of the conditional value at risk, from 0 (mean alone) to 1
    #[arg(long, value_name = "W", default_value_t = 1.0, requires = "cvar")]
    pub weight: f64,
    /// Distribute tasks in this number of groups [default: each task by itself, split where that
    /// helps]
    #[arg(long, value_name = "G")]
    pub groups: Option<u32>,
    /// Part of an iterate's tasks that has to be back before the next iterate, with a basket of
    /// more than one [default: 0.7]
    #[arg(long, value_name = "S")]
    pub sigma: Option<f64>,
    /// Baseline: give each worker the same number of tasks, regardless of its speed
    #[arg(long)]
    pub equal_split: bool,
    /// Baseline: tasks, basket and groups by the original code's rules of thumb (100; 3 to 6; 25 to
    /// 50), each group to the next idle worker
    #[arg(long, conflicts_with_all = ["tasks", "basket", "groups"])]
    pub rules_of_thumb: bool,
    /// Objective of the run: time, or balanced:W, which weighs time against processor-hours
    /// and releases nodes that do not pay
    #[arg(long, value_name = "GOAL", default_value = "time")]
    pub objective: Objective,
    /// Report each iterate's forecast and measured time, and what equal split and the rules of
    /// thumb would have taken
    #[arg(long)]
    pub explain: bool,
    /// Relative gap at which a sample counts as solved
    #[arg(long, value_name = "E", default_value_t = 1e-5)]
    pub epsilon: f64,
    /// Maximum number of iterates of a sample
    #[arg(long, value_name = "N", default_value_t = 20_000)]
    pub iterations: u32,
    /// First radius of the trust region [default: by the start]
    #[arg(long, value_name = "D")]
    pub radius: Option<f64>,
    /// Start from the decision in this table (column,value) [default: the optimal one for the mean
    /// of all random elements]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub start: Option<PathBuf>,
    /// Solve nothing, and estimate the cost of the decision in this table; exactly with
    /// --all-scenarios
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath,
          conflicts_with_all = ["start", "replications"])]
    pub evaluate: Option<PathBuf>,
    /// Fresh scenarios that estimate the cost of the decision; 0: no estimate [default: as many as
    /// the sample has]
    #[arg(long, value_name = "N")]
    pub estimate: Option<u64>,
    /// Begin with the whole sample, without smaller ones before it
    #[arg(long)]
    pub no_warm_start: bool,
    /// Begin each second stage at its own last basis, where it is kept: fewer pivots, but the last
    /// digits depend on who solved what
    #[arg(long)]
    pub keep_bases: bool,
    /// Keep workers off the master's node while there are others
    #[arg(long)]
    pub isolate: bool,
    /// Report each task that is back
    #[arg(long)]
    pub log_tasks: bool,
    /// Maximum number of scenarios of a block; tasks are split between blocks [default: 10, and
    /// more of those that are solved fast]
    #[arg(long, value_name = "N")]
    pub block: Option<u64>,
    /// Write the extensive form of the sample to this MPS file before solving
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub write_mps: Option<PathBuf>,
    /// Write the sample to this directory as SMPS files before solving
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub write_smps: Option<PathBuf>,
    /// Keep the state of the run in this file, and resume from it if it exists
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub checkpoint: Option<PathBuf>,
    /// The program, once it is read.
    #[arg(skip)]
    pub program: Option<Arc<TwoStage>>,
    /// The start, or the decision to evaluate, once it is read.
    #[arg(skip)]
    pub decision: Option<Vec<f64>>,
    /// Notes of the reader.
    #[arg(skip)]
    pub notes: Vec<String>,
    /// The state to resume from, once it is read.
    #[arg(skip)]
    pub saved: Option<serde_bytes::ByteBuf>,
    /// Modelled time, in simulations.
    #[arg(skip)]
    pub time_model: Option<TimeModel>,
}

fn sampling(text: &str) -> Result<Sampling, String> {
    match text {
        "monte-carlo" => Ok(Sampling::MonteCarlo),
        "latin-hypercube" => Ok(Sampling::LatinHypercube),
        _ => Err("give monte-carlo or latin-hypercube".to_owned()),
    }
}

/// A number between 0 and 1, also in percent.
fn part(text: &str) -> Result<f64, String> {
    let (number, unit) = match text.trim().strip_suffix('%') {
        Some(number) => (number.trim(), 100.0),
        None => (text.trim(), 1.0),
    };
    let value = number.parse::<f64>().ok().map(|value| value / unit);
    value
        .filter(|value| *value > 0.0 && *value < 1.0)
        .ok_or_else(|| "give a number between 0 and 1, or between 0% and 100%".to_owned())
}

impl Solve {
    /// The job of a program in memory, with all options at their defaults.
    pub fn of(program: TwoStage) -> Self {
        Self {
            model: None,
            core: None,
            time: None,
            stoch: None,
            scenarios: None,
            all_scenarios: false,
            sampling: Sampling::MonteCarlo,
            tasks: None,
            basket: 1,
            seed: 1,
            replications: 0,
            gap: None,
            confidence: 0.95,
            cvar: None,
            weight: 1.0,
            groups: None,
            sigma: None,
            equal_split: false,
            rules_of_thumb: false,
            objective: Objective::Time,
            explain: false,
            epsilon: 1e-5,
            iterations: 20_000,
            radius: None,
            start: None,
            evaluate: None,
            estimate: None,
            no_warm_start: false,
            keep_bases: false,
            isolate: false,
            log_tasks: false,
            block: None,
            write_mps: None,
            write_smps: None,
            checkpoint: None,
            program: Some(Arc::new(program)),
            decision: None,
            notes: Vec::new(),
            saved: None,
            time_model: None,
        }
    }

    /// The program.
    ///
    /// # Errors
    /// The program was not read.
    pub fn model(&self) -> Result<&Arc<TwoStage>, Stop> {
        self.program
            .as_ref()
            .ok_or_else(|| Stop::fail("the program was not read: Job::prepare does that"))
    }

    /// The number of scenarios of the sample.
    fn count(&self) -> u64 {
        let all = self.program.as_ref().and_then(|program| program.scenarios());
        if self.all_scenarios {
            all.unwrap_or(u64::MAX)
        } else {
            self.scenarios.unwrap_or(SCENARIOS)
        }
    }

    fn sample(&self) -> ScenarioSample {
        let sampling = if self.all_scenarios { Sampling::All } else { self.sampling };
        ScenarioSample { sampling, seed: self.seed, scenarios: self.count() }
    }

    /// What the run does.
    ///
    /// # Errors
    /// The program was not read.
    pub fn plan(&self) -> Result<SolvePlan, Stop> {
        self.model()?;
        let scenarios = self.count();
        // The cost over all scenarios is known with the optimum.
        let known = self.all_scenarios && self.evaluate.is_none();
        let estimate = if known { 0 } else { scenarios };
        let several = self.basket > 1 || self.rules_of_thumb;
        let sigma = self.sigma.unwrap_or(if several { SIGMA } else { 1.0 });
        let replications = match self.gap {
            Some(_) if self.replications == 0 => GAP_REPLICATIONS,
            _ => self.replications,
        };
        Ok(SolvePlan {
            sample: self.sample(),
            tasks: self.tasks,
            block: self.block,
            warm: !self.no_warm_start,
            start: self.decision.clone(),
            radius: self.radius,
            settings: trust_region::TrustRegionSettings {
                epsilon: self.epsilon,
                basket: self.basket,
                sigma,
                iterations_max: self.iterations,
                ..trust_region::TrustRegionSettings::default()
            },
            replications,
            gap: self.gap,
            confidence: self.confidence,
            estimate: self.estimate.unwrap_or(estimate),
            only_estimate: self.evaluate.is_some(),
        })
    }

    fn check_options(&self) -> Result<(), InputError> {
        let positive = |option: &str, value: f64, hint: &str| {
            let wrong = !(value.is_finite() && value > 0.0);
            if wrong {
                Err(InputError::new(format_args!("{option} {value}: {hint}")))
            } else {
                Ok(())
            }
        };
        if let Some(radius) = self.radius {
            positive("--radius", radius, "give a positive number, for example 1")?;
        }
        positive("--epsilon", self.epsilon, "give a positive number, for example 1e-5")?;
        InputError::check(
            "--epsilon",
            self.epsilon,
            1e-12..=0.1,
            "costs are known to some 12 digits",
        )?;
        if let Some(sigma) = self.sigma {
            positive("--sigma", sigma, "give a number above 0, for example 0.7")?;
            InputError::check("--sigma", sigma, 0.0..=1.0, "1: all tasks")?;
        }
        if !(0.0..=1.0).contains(&self.weight) {
            return Err(InputError::new(format_args!(
                "--weight {}: give a number from 0 (mean alone) to 1",
                self.weight
            )));
        }
        InputError::check(
            "--iterations",
            self.iterations,
            1..=10_000_000,
            "a sample takes tens to hundreds",
        )?;
        InputError::check(
            "--basket",
            self.basket,
            1..=64,
            "each more costs nearly twice the iterates",
        )?;
        InputError::check("--block", self.block.unwrap_or(1), 1..=SCENARIOS_MAX, "1: a scenario")?;
        InputError::check(
            "--replications",
            self.replications,
            0..=1000,
            "each is a run of its own",
        )?;
        if self.all_scenarios && self.replications > 0 {
            return Err(InputError::new(
                "--replications with --all-scenarios: the optimum is exact, so leave \
                 --replications out",
            ));
        }
        if self.evaluate.is_some() && self.sampling != Sampling::MonteCarlo {
            return Err(InputError::new(
                "--sampling with --evaluate: costs are estimated from independent scenarios, so \
                 leave --sampling out",
            ));
        }
        if self.replications == 1 {
            return Err(InputError::new("--replications 1: an interval needs two at least"));
        }
        for (option, tasks) in [("--tasks", self.tasks), ("--groups", self.groups)] {
            if let Some(tasks) = tasks {
                InputError::check(
                    option,
                    tasks,
                    1..=100_000,
                    "the first stage has a column for each task",
                )?;
            }
        }
        if let (Some(_), true, Some(estimate)) = (&self.evaluate, self.all_scenarios, self.estimate)
        {
            return Err(InputError::new(format_args!(
                "--estimate {estimate} draws scenarios, and --evaluate with --all-scenarios draws \
                 none: leave one of --estimate and \
                 --all-scenarios out"
            )));
        }
        if self.evaluate.is_some() && self.estimate == Some(0) {
            return Err(InputError::new(
                "--evaluate with --estimate 0 is nothing to do: leave --estimate out",
            ));
        }
        Ok(())
    }

    /// Checks numbers of scenarios against the program.
    fn check_scenarios(&self, program: &TwoStage) -> Result<(), InputError> {
        let scenarios = self.count();
        if self.all_scenarios && scenarios > SCENARIOS_MAX {
            let all =
                program.scenarios().map_or("more than 2^64".to_owned(), |all| all.to_string());
            return Err(InputError::new(format_args!(
                "--all-scenarios: there are {all}, too many to take all: draw some by --scenarios N"
            )));
        }
        InputError::check("--scenarios", scenarios, 1..=SCENARIOS_MAX, "at least one")?;
        if let Some(tasks) = self.tasks.filter(|tasks| u64::from(*tasks) > scenarios) {
            return Err(InputError::new(format_args!(
                "--tasks {tasks} with {scenarios} scenarios: a task has one at least, so give \
                 --tasks {scenarios} or fewer, or \
                 --scenarios {tasks} or more"
            )));
        }
        if let Some(estimate) = self.estimate {
            InputError::check("--estimate", estimate, 0..=SCENARIOS_MAX, "0: no estimate")?;
        }
        Ok(())
    }

    /// Reads the program and the decision.
    fn read(&mut self) -> Result<Arc<TwoStage>, InputError> {
        if let Some(program) = &self.program {
            return Ok(program.clone());
        }
        let files = match (&self.model, &self.core, &self.time, &self.stoch) {
            (_, Some(core), Some(time), Some(stoch)) => Files::new(core, time, stoch),
            (Some(model), ..) => Files::find(model).map_err(InputError::new)?,
            _ => {
                let three = "give MODEL, or --core, --time and --stoch";
                return Err(InputError::new(format_args!("no program: {three}")));
            }
        };
        let (mut program, notes) = smps::read(&files).map_err(InputError::new)?;
        self.notes = notes.iter().map(ToString::to_string).collect();
        if program.places().any(|place| matches!(place, RandomElement::Recourse(..))) {
            self.notes.push(
                "the recourse matrix is random: each scenario is factored by itself, which takes \
                 longer"
                    .to_owned(),
            );
        }
        if let Some(level) = self.cvar {
            program = with_cvar(&program, level, self.weight);
        }
        if let Some(path) = self.evaluate.as_ref().or(self.start.as_ref()) {
            let decision = read_decision(&program, path)?;
            let violation = program.first.violation(&decision, VIOLATION_MAX);
            if let Some(violation) = violation.filter(|_| self.evaluate.is_some()) {
                return Err(InputError::new(format_args!(
                    "{}: the decision breaks the first stage: {}",
                    path.display(),
                    violation.describe(&program.first)
                )));
            }
            self.decision = Some(decision);
        }
        Ok(Arc::new(program))
    }

    /// Writes the sample, or its extensive form.
    fn write(&self, program: &TwoStage) -> Result<(), InputError> {
        let wanted = [&self.write_mps, &self.write_smps].into_iter().flatten().next();
        let Some(path) = wanted else { return Ok(()) };
        let sample = self.sample();
        if sample.scenarios > WRITTEN_MAX {
            return Err(InputError::new(format_args!(
                "{}: a sample of {} scenarios is too large to be written: give --scenarios \
                 {WRITTEN_MAX} or fewer",
                path.display(),
                sample.scenarios
            )));
        }
        let sampler = sample.sampler(program).map_err(InputError::new)?;
        let all = || scenarios(program, &sampler);
        let keep = |path: &Path, text: &str| {
            std::fs::write(path, text).map_err(|error| {
                InputError::new(format_args!("cannot write {}: {error}", path.display()))
            })
        };
        if let Some(path) = &self.write_mps {
            keep(path, &extensive_mps(program, all()))?;
        }
        if let Some(directory) = &self.write_smps {
            std::fs::create_dir_all(directory).map_err(|error| {
                InputError::new(format_args!("cannot make {}: {error}", directory.display()))
            })?;
            let names = ["sample.cor", "sample.tim", "sample.sto"];
            for (name, text) in names.into_iter().zip(sample_smps(program, all())) {
                keep(&directory.join(name), &text)?;
            }
        }
        Ok(())
    }

    /// Reads the state of an earlier run.
    fn read_checkpoint(&mut self) -> Result<(), InputError> {
        let Some(path) = &self.checkpoint else { return Ok(()) };
        let cannot_write = |error| {
            InputError::new(format_args!("cannot write --checkpoint {}: {error}", path.display()))
        };
        // A run must not learn at its end that its state was never kept.
        let probe = path.with_extension("probe");
        std::fs::write(&probe, []).map_err(cannot_write)?;
        std::fs::remove_file(&probe).map_err(cannot_write)?;
        match std::fs::read(path) {
            Ok(bytes) => {
                driver::read_state(&bytes, self)
                    .map_err(|why| InputError::new(format_args!("{}: {why}", path.display())))?;
                self.saved = Some(bytes.into());
                Ok(())
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
            Err(error) => {
                Err(InputError::new(format_args!("cannot read {}: {error}", path.display())))
            }
        }
    }
}

fn read_decision(program: &TwoStage, path: &Path) -> Result<Vec<f64>, InputError> {
    let text = std::fs::read_to_string(path).map_err(|error| {
        InputError::new(format_args!("cannot read {}: {error}", path.display()))
    })?;
    report::read_decision(program, &text)
        .map_err(|(line, why)| InputError::new(format_args!("{}:{line}: {why}", path.display())))
}

impl Job for Solve {
    const NAME: &'static str = "solve";
    const ABOUT: &'static str =
        "Two-stage stochastic linear programs, by sampling and a trust region";

    fn register(registry: &mut Registry) {
        mw::register::<Self>(registry);
    }

    fn prepare(&mut self) -> Result<(), InputError> {
        self.check_options()?;
        let program = self.read()?;
        self.program = Some(program.clone());
        self.check_scenarios(&program)?;
        self.write(&program)?;
        self.read_checkpoint()
    }

    fn run(self, cx: &Context) -> Result<Outcome, Stop> {
        mw::run(self, cx)
    }

    fn resume(self, state: Checkpoint, cx: &Context) -> Result<Outcome, Stop> {
        mw::resume(self, state, cx)
    }
}

impl Program for Solve {
    const NAME: &'static str = "solve.worker";
    type Common = EvaluationRequest;
    type Work = TaskGroup;
    type Output = Output;
    type Worker = Worker;
    type Driver = SolveDriver;
    type State = DriverState;

    fn settings(&self) -> AssignmentSettings {
        let Self { isolate, keep_bases, .. } = *self;
        let settings = AssignmentSettings::default();
        let dealing = match (self.equal_split, self.rules_of_thumb) {
            (true, _) => DispatchRule::Equal,
            (false, true) => DispatchRule::Queue,
            (false, false) => DispatchRule::Earliest,
        };
        let benchmark = self.time_model.map(|time| f64::from(time.benchmark));
        let bench_units = benchmark.unwrap_or(settings.bench_units);
        AssignmentSettings { isolate, dealing, affinity: keep_bases, bench_units, ..settings }
    }

    fn worker(&self, _: &Context) -> Result<Worker, Stop> {
        Ok(Worker::new(self.model()?.clone())?)
    }

    fn driver(&self, saved: Option<DriverState>, _: &Context) -> Result<SolveDriver, Stop> {
        Ok(SolveDriver::new(self.clone(), saved))
    }

    fn execute(
        &self,
        worker: &mut Worker,
        request: &EvaluationRequest,
        _: u32,
        group: &TaskGroup,
        block: u32,
        cx: &Context,
    ) -> Result<Output, Stop> {
        let mode = SolveMode { keeps_bases: self.keep_bases, time: self.time_model };
        worker.execute(&mode, request, group, block, cx)
    }
}
