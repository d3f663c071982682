//! The job that solves a two-stage stochastic program on a grid: `springtide solve`.
//!
//! - [`solver`]: what is solved, one sample after the other, as a state machine.
//! - [`worker`]: how a worker solves scenarios.
//! - [`driver`]: how the master gives work out and takes it in.
//! - [`controller`]: what was expected, and what follows from that.
//! - [`estimate`]: means and intervals.
//! - [`local`]: a whole run on the calling thread.
//! - [`report`]: what a run tells.
//!
//! This file is the job's options, and what is checked of them. Must not know how any of that is done.

pub mod controller;
pub mod solver;
pub mod driver;
pub mod estimate;
pub mod local;
pub mod report;
pub mod worker;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::{Args, ValueHint};
use serde::{Deserialize, Serialize};
use springtide_runtime::mw::{self, Dealing, Program, Settings};
use springtide_runtime::work::{Checkpoint, Context, InputError, Job, Outcome, Registry, Stop};

use self::controller::Objective;
use self::solver::{Plan, Request, Sample};
use self::driver::{Driving, State};
use self::worker::{Output, Pace, Ways, Work, Worker};
use crate::lp::simplex::Pricing;
use crate::lp::{Problem, Simplex, Status};
use crate::model::TwoStage;
use crate::trust_region;
use crate::sample::{SCENARIOS_MAX, Sampling};
use crate::smps::{self, Files};

/// Scenarios that are drawn where nothing is said.
const SCENARIOS: u64 = 1000;
/// The part of an iterate's tasks after which the next one is made, where several are evaluated at once.
const SIGMA: f64 = 0.7;

/// The job: `springtide solve MODEL`.
#[derive(Args, Serialize, Deserialize, Clone, Debug, PartialEq)]
pub struct Solve {
    /// The program: a directory with its three SMPS files (core, time, stochastic), or their common path without the endings
    #[arg(value_name = "MODEL", value_hint = ValueHint::AnyPath)]
    pub model: PathBuf,
    /// Scenarios that are drawn [default: 1000]
    #[arg(long, value_name = "N", conflicts_with = "all_scenarios")]
    pub scenarios: Option<u64>,
    /// Take every scenario that there is, with its probability
    #[arg(long)]
    pub all_scenarios: bool,
    /// How they are drawn: monte-carlo or latin-hypercube
    #[arg(long, value_name = "HOW", default_value = "monte-carlo", value_parser = drawn)]
    pub sampling: Sampling,
    /// Tasks: of each iterate each gives one cut. With a number given, a run has the same bits on every grid [default: by the model of
    /// total time, from the sizes of the program and the grid]
    #[arg(long, value_name = "T")]
    pub tasks: Option<u32>,
    /// Iterates that are evaluated at once; with more than one the way to the answer depends on who is back first
    #[arg(long, value_name = "B", default_value_t = 1)]
    pub basket: usize,
    /// Seed of the scenarios
    #[arg(long, value_name = "S", default_value_t = 1)]
    pub seed: u64,
    /// More samples of the same size that are solved, for an interval of the optimum
    #[arg(long, value_name = "R", default_value_t = 0)]
    pub replications: u32,
    /// Give tasks out in so many groups, each whole [default: each task by itself, and split where that helps]
    #[arg(long, value_name = "G")]
    pub groups: Option<u32>,
    /// The part of an iterate's tasks that has to be back before the next is made, with a basket of more than one [default: 0.7]
    #[arg(long, value_name = "S")]
    pub sigma: Option<f64>,
    /// Give each worker as many tasks as any other, however fast: a baseline
    #[arg(long)]
    pub equal_split: bool,
    /// Tasks, basket and groups by the original code's rules of thumb (100; 3 to 6; 25 to 50), and each group to whoever has nothing to do,
    /// however fast: a baseline
    #[arg(long, conflicts_with_all = ["tasks", "basket", "groups"])]
    pub rules_of_thumb: bool,
    /// What to be good at: time, or balanced:W, which weighs time against processor-hours and lets nodes go that are not worth it
    #[arg(long, value_name = "WHAT", default_value = "time")]
    pub objective: Objective,
    /// Tell of each iterate what it was expected to take, what it took, and what it would have with equal split and the rules of thumb
    #[arg(long)]
    pub explain: bool,
    /// Stop when no decision nearby can be better by more than this part of the cost
    #[arg(long, value_name = "E", default_value_t = 1e-5)]
    pub epsilon: f64,
    /// The first radius of the trust region [default: by the start]
    #[arg(long, value_name = "D")]
    pub radius: Option<f64>,
    /// Begin at the decision of this table (column,value) [default: the best one for what is expected]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub start: Option<PathBuf>,
    /// Solve nothing, and estimate what the decision of this table costs; with --all-scenarios tell it exactly
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath,
          conflicts_with_all = ["start", "replications"])]
    pub evaluate: Option<PathBuf>,
    /// Scenarios, other than those that it was found by, by which the cost of the decision is estimated; 0: none [default: as many]
    #[arg(long, value_name = "N")]
    pub estimate: Option<u64>,
    /// Begin with the whole sample, and not with smaller ones
    #[arg(long)]
    pub no_warm_start: bool,
    /// Begin each second stage at its own last basis where it is kept: fewer pivots, but the answer's last digits depend on who did what
    #[arg(long)]
    pub keep_bases: bool,
    /// No worker computes on the master's node while there are others
    #[arg(long)]
    pub isolate: bool,
    /// Say a line of each task that is back
    #[arg(long)]
    pub log_tasks: bool,
    /// Scenarios of a block at most: tasks can be split into blocks [default: 10, and more of those that are solved fast]
    #[arg(long, value_name = "N")]
    pub block: Option<u64>,
    /// The program, as it was read.
    #[arg(skip)]
    pub program: Option<Arc<TwoStage>>,
    /// Where to begin, or what to estimate, as it was read.
    #[arg(skip)]
    pub decision: Option<Vec<f64>>,
    /// Modelled time, in simulations.
    #[arg(skip)]
    pub pace: Option<Pace>,
}

fn drawn(text: &str) -> Result<Sampling, String> {
    match text {
        "monte-carlo" => Ok(Sampling::MonteCarlo),
        "latin-hypercube" => Ok(Sampling::LatinHypercube),
        _ => Err("give monte-carlo or latin-hypercube".to_owned()),
    }
}

impl Solve {
    /// Of a program that is here, and is not read from files, with what an empty command line says.
    pub fn of(program: TwoStage) -> Self {
        Self {
            model: PathBuf::new(),
            scenarios: None,
            all_scenarios: false,
            sampling: Sampling::MonteCarlo,
            tasks: None,
            basket: 1,
            seed: 1,
            replications: 0,
            groups: None,
            sigma: None,
            equal_split: false,
            rules_of_thumb: false,
            objective: Objective::Time,
            explain: false,
            epsilon: 1e-5,
            radius: None,
            start: None,
            evaluate: None,
            estimate: None,
            no_warm_start: false,
            keep_bases: false,
            isolate: false,
            log_tasks: false,
            block: None,
            program: Some(Arc::new(program)),
            decision: None,
            pace: None,
        }
    }

    /// The program.
    ///
    /// # Errors
    /// It was not read.
    pub fn model(&self) -> Result<&Arc<TwoStage>, Stop> {
        self.program
            .as_ref()
            .ok_or_else(|| Stop::fail("the program was not read: Job::prepare does that"))
    }

    /// How many scenarios the sample has.
    fn count(&self) -> u64 {
        let all = self.program.as_ref().and_then(|program| program.scenarios());
        match self.all_scenarios {
            true => all.unwrap_or(u64::MAX),
            false => self.scenarios.unwrap_or(SCENARIOS),
        }
    }

    /// What the run does.
    ///
    /// # Errors
    /// The program was not read.
    pub fn plan(&self) -> Result<Plan, Stop> {
        self.model()?;
        let scenarios = self.count();
        let sampling = if self.all_scenarios { Sampling::All } else { self.sampling };
        // What all scenarios cost the optimum is known when that is.
        let known = self.all_scenarios && self.evaluate.is_none();
        let estimate = if known { 0 } else { scenarios };
        let several = self.basket > 1 || self.rules_of_thumb;
        let sigma = self.sigma.unwrap_or(if several { SIGMA } else { 1.0 });
        Ok(Plan {
            sample: Sample { sampling, seed: self.seed, scenarios },
            tasks: self.tasks,
            block: self.block,
            warm: !self.no_warm_start,
            start: self.decision.clone(),
            radius: self.radius,
            settings: trust_region::Settings {
                epsilon: self.epsilon,
                basket: self.basket,
                sigma,
                ..trust_region::Settings::default()
            },
            replications: self.replications,
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
                "--estimate {estimate} draws scenarios, and --evaluate with --all-scenarios draws none: leave one of --estimate and \
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

    /// Checks what is said of scenarios against the program.
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
                "--tasks {tasks} with {scenarios} scenarios: a task has one at least, so give --tasks {scenarios} or fewer, or \
                 --scenarios {tasks} or more"
            )));
        }
        if let Some(estimate) = self.estimate {
            InputError::check("--estimate", estimate, 0..=SCENARIOS_MAX, "0: no estimate")?;
        }
        Ok(())
    }
}

/// A first stage that has no decision is told of before anything is started.
fn check_first_stage(program: &TwoStage, files: &Files) -> Result<(), InputError> {
    let first = &program.first;
    let mut problem = Problem::new(&vec![0.0; first.cost.len()], &first.lower, &first.upper);
    problem.add_rows(&first.matrix, &first.rhs, &first.below, &first.above);
    let mut simplex = Simplex::new(problem, Pricing::Steepest);
    if simplex.solve() != Status::Infeasible {
        return Ok(());
    }
    let rows = simplex.ray().iter().zip(&first.rows).filter(|(ray, _)| ray.abs() > 1e-9);
    let named: Vec<&str> = rows.map(|(_, name)| name.as_str()).collect();
    let line = named.first().and_then(|name| smps::line_of_row(&files.core, name));
    let place = line.map_or(String::new(), |line| format!(":{line}"));
    let shown = named.iter().take(5).copied().collect::<Vec<_>>().join(", ");
    Err(InputError::new(format_args!(
        "{}{place}: no first-stage decision meets all rows: {shown} exclude each other within the columns' bounds; see their \
         right-hand sides and bounds",
        files.core.display()
    )))
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
        if let Some(program) = self.program.clone() {
            return self.check_scenarios(&program);
        }
        let files = Files::find(&self.model).map_err(InputError::new)?;
        let (program, _) = smps::read(&files).map_err(InputError::new)?;
        check_first_stage(&program, &files)?;
        if let Some(path) = self.evaluate.as_ref().or(self.start.as_ref()) {
            self.decision = Some(read_decision(&program, path)?);
        }
        let program = Arc::new(program);
        self.program = Some(program.clone());
        self.check_scenarios(&program)
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
    type Common = Request;
    type Work = Work;
    type Output = Output;
    type Worker = Worker;
    type Driver = Driving;
    type State = State;

    fn settings(&self) -> Settings {
        let Self { isolate, keep_bases, .. } = *self;
        let settings = Settings::default();
        let dealing = match (self.equal_split, self.rules_of_thumb) {
            (true, _) => Dealing::Equal,
            (false, true) => Dealing::Queue,
            (false, false) => Dealing::Earliest,
        };
        let bench_units = self.pace.map_or(settings.bench_units, |pace| f64::from(pace.bench));
        Settings { isolate, dealing, affinity: keep_bases, bench_units, ..settings }
    }

    fn worker(&self, _: &Context) -> Result<Worker, Stop> {
        Ok(Worker::new(self.model()?.clone())?)
    }

    fn driver(&self, saved: Option<State>, _: &Context) -> Result<Driving, Stop> {
        Ok(Driving::new(self.clone(), saved))
    }

    fn execute(
        &self,
        worker: &mut Worker,
        request: &Request,
        _: u32,
        work: &Work,
        block: u32,
        cx: &Context,
    ) -> Result<Output, Stop> {
        let ways = Ways { keeps_bases: self.keep_bases, pace: self.pace };
        worker.execute(&ways, request, work, block, cx)
    }
}
