//! One simulated run of the live solver on workers of given speeds, and its measured and forecast
//! times.
//!
//! Scenarios and decisions are really computed. The clock is the simulation's: a scenario takes a
//! time for each of its pivots, a decision one for each pivot of the master's linear program. The
//! two rates are such that the means over a run are the paper's; from scenario to scenario and from
//! iterate to iterate times vary as the work does. The speeds of workers vary by drawn factors on
//! top. The controller is given none of this: it measures, as on a real grid.

use std::collections::HashMap;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::Serialize;
use serde_json::Value;
use springtide_actors::job::JobParams;
use springtide_actors::policy::Mode;
use springtide_cli::exit::Failed;
use springtide_runtime::id::NodeId;
use springtide_runtime::net::LinkProfile;
use springtide_runtime::net::memory::MemoryConfig;
use springtide_runtime::random::SplitMix;
use springtide_runtime::work::Registry;
use springtide_simulator::machines::Machine;
use springtide_simulator::{Layout, SimulatedCluster, SimulatedGrid, simulate};
use springtide_stochastic::Solve;
use springtide_stochastic::model::TwoStage;
use springtide_stochastic::solve::worker::TimeModel;

/// The most simulated time of a run.
const TIME_MAX: Duration = Duration::from_secs(30 * 24 * 3600);
/// How often the speeds of workers are drawn.
const SPEED_INTERVAL: Duration = Duration::from_secs(10);
/// Scenarios by which a worker is first measured, in the paper.
const BENCHMARK: f64 = 25.0;
/// The most scenarios of a block where tasks are split.
const BLOCK: f64 = 10.0;

/// Where the workers are, seen from the master.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum WorkerLocation {
    /// In the master's own network.
    Pool,
    /// At another institution: 25 ms away.
    Flock,
}

impl WorkerLocation {
    fn link(self) -> LinkProfile {
        let delay = match self {
            Self::Pool => Duration::from_micros(500),
            Self::Flock => Duration::from_millis(25),
        };
        LinkProfile::default().delay(delay)
    }
}

/// How tasks are distributed.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Distribution {
    /// Ours: by earliest expected completion, split into blocks where that helps.
    Blocks,
    /// The paper's adaptive code: whole tasks by earliest expected completion.
    Whole,
    /// The same number of tasks for each worker.
    Equal,
    /// Groups of tasks by earliest expected completion.
    Groups(u32),
    /// The original code: several iterates at once, groups to the next idle worker.
    RulesOfThumb { basket: usize, groups: u32 },
    /// Ours, with several iterates at once.
    Basket(usize),
}

impl Distribution {
    /// The number of iterates under evaluation at once.
    pub fn basket(self) -> usize {
        match self {
            Self::Basket(basket) | Self::RulesOfThumb { basket, .. } => basket,
            _ => 1,
        }
    }
}

/// A run to simulate.
#[derive(Clone, Debug)]
pub(super) struct Experiment {
    pub program: &'static str,
    /// Scenarios of the paper, before they are scaled.
    pub scenarios: u64,
    pub tasks: u32,
    /// Each worker's mean seconds for one of `shares` equal parts of the scenarios.
    pub shares_s: Vec<f64>,
    /// The number of these parts.
    pub shares: u32,
    /// The master's mean seconds for a decision.
    pub decision_s: f64,
    /// Whether it starts far from the optimum: at zero, without smaller samples.
    pub cold_start: bool,
    pub distribution: Distribution,
    pub site: WorkerLocation,
    /// Whether times vary with the work; else each scenario takes the same time, and each decision.
    pub varies: bool,
    /// Coefficient of variation of a worker's speed.
    pub noise: f64,
    /// Seed of the scenarios.
    pub seed: u64,
}

/// The times of a simulated run, of the sample that was asked for, without the smaller ones before
/// it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(super) struct SimulatedTimes {
    pub iterations: u32,
    pub minutes: f64,
    /// Seconds of the master for all decisions.
    pub master_s: f64,
    /// Forecast seconds of the workers for an iterate, by the speeds known at the first one.
    pub workers_s: f64,
    /// The paper's model: all decisions, and as many iterates of `workers_s`.
    pub model_minutes: f64,
    /// The error of the model, relative to the measured time.
    pub model_error: f64,
    /// The error of the controller's forecasts, made before each iterate, over the whole run.
    pub forecast_error: f64,
    /// The mean absolute error of the forecast of one iterate.
    pub iterate_error: f64,
    /// A lower limit of the minutes: those of work that is divisible at will, by the forecasts.
    pub least_minutes: f64,
    /// The median number of workers with work.
    pub used: u64,
}

/// Pivots of a run: of a scenario and of a decision, on average.
#[derive(Clone, Copy, Debug)]
struct MeanPivots {
    scenario: f64,
    decision: f64,
}

/// What the mean pivots of a run depend on.
type WorkKey = (&'static str, u64, u32, bool, usize, u64);

/// The programs, and the mean pivots of runs, by what these depend on.
pub(super) struct Laboratory {
    pub programs: HashMap<&'static str, Arc<TwoStage>>,
    /// The part of the paper's scenarios that is drawn. Each takes longer by as much.
    pub scale: f64,
    pivots: Mutex<HashMap<WorkKey, MeanPivots>>,
}

impl Laboratory {
    pub fn new(programs: HashMap<&'static str, Arc<TwoStage>>, scale: f64) -> Self {
        Self { programs, scale, pivots: Mutex::default() }
    }

    pub fn program(&self, name: &str) -> Result<&Arc<TwoStage>, Failed> {
        let program = self.programs.get(name);
        program.ok_or_else(|| Failed::failure(format!("the program {name} was not read")))
    }

    /// The number of scenarios that stands for the paper's.
    pub fn scenarios(&self, paper: u64, tasks: u32) -> u64 {
        ((paper as f64 * self.scale) as u64).max(u64::from(tasks))
    }

    /// Simulates a run.
    ///
    /// # Errors
    /// The run fails or does not end.
    pub fn measure(&self, experiment: &Experiment) -> Result<SimulatedTimes, Failed> {
        let scenarios = self.scenarios(experiment.scenarios, experiment.tasks);
        let share = scenarios as f64 / f64::from(experiment.shares);
        let fastest = experiment.shares_s.iter().copied().fold(f64::INFINITY, f64::min);
        let (scenario_s, decision_s) = (fastest / share, experiment.decision_s);
        let benchmark = ((BENCHMARK * self.scale) as u32).max(1);
        let constant = TimeModel { scenario_s, decision_s, benchmark, ..TimeModel::default() };
        let mut time = constant;
        if experiment.varies {
            let pivots = self.mean_pivots(experiment, constant)?;
            if pivots.scenario > 0.0 {
                (time.scenario_s, time.pivot_s) = (0.0, scenario_s / pivots.scenario);
            }
            if pivots.decision > 0.0 {
                (time.decision_s, time.master_pivot_s) = (0.0, decision_s / pivots.decision);
            }
        }
        let result = self.simulate(experiment, time, experiment.noise)?;
        measurement(&result).ok_or_else(|| no_iterates(&result))
    }

    /// The mean pivots of a run. With one iterate at a time they depend on no clock; with several,
    /// the run with constant times stands for the others.
    fn mean_pivots(
        &self,
        experiment: &Experiment,
        constant: TimeModel,
    ) -> Result<MeanPivots, Failed> {
        let Experiment { program, scenarios, tasks, cold_start, distribution, seed, .. } =
            *experiment;
        let key = (program, scenarios, tasks, cold_start, distribution.basket(), seed);
        let known = || self.pivots.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(pivots) = known().get(&key) {
            return Ok(*pivots);
        }
        let result = self.simulate(experiment, constant, 0.0)?;
        let pivots = mean_pivots(&result).ok_or_else(|| no_iterates(&result))?;
        known().insert(key, pivots);
        Ok(pivots)
    }

    /// Simulates the run, and returns its result object.
    fn simulate(
        &self,
        experiment: &Experiment,
        time: TimeModel,
        noise: f64,
    ) -> Result<Value, Failed> {
        let model = self.program(experiment.program)?;
        let scenarios = self.scenarios(experiment.scenarios, experiment.tasks);
        let Experiment { distribution, cold_start, tasks, seed, .. } = *experiment;
        let splits = matches!(distribution, Distribution::Blocks | Distribution::Basket(_));
        let block = if splits { ((BLOCK * self.scale) as u64).max(1) } else { scenarios };
        let groups = match distribution {
            Distribution::Groups(groups) | Distribution::RulesOfThumb { groups, .. } => {
                Some(groups)
            }
            _ => None,
        };
        let job = Solve {
            scenarios: Some(scenarios),
            tasks: Some(tasks),
            seed,
            estimate: Some(0),
            isolate: true,
            explain: true,
            block: Some(block),
            equal_split: distribution == Distribution::Equal,
            rules_of_thumb: matches!(distribution, Distribution::RulesOfThumb { .. }),
            basket: distribution.basket(),
            groups,
            no_warm_start: cold_start,
            decision: cold_start.then(|| vec![0.0; model.first.columns.len()]),
            time_model: Some(time),
            ..Solve::of((**model).clone())
        };
        let fastest = experiment.shares_s.iter().copied().fold(f64::INFINITY, f64::min);
        let speeds: Vec<f64> =
            experiment.shares_s.iter().map(|seconds| fastest / seconds).collect();
        let place = |name: &str, nodes| SimulatedCluster {
            name: name.into(),
            nodes,
            machine: Machine { threads: 1, speed: 1.0 },
            unequal_threads: None,
        };
        let workers = u32::try_from(speeds.len()).unwrap_or(u32::MAX);
        let layout = Layout {
            clusters: vec![place("master", 1), place("workers", workers)],
            network: MemoryConfig { between: experiment.site.link(), ..MemoryConfig::default() },
            seed: 1,
            leave_within: Duration::from_secs(30),
            stoppable: false,
        };
        let ended = simulate(|| async {
            let mut registry = Registry::new();
            registry.job::<Solve>();
            let grid = SimulatedGrid::start(&layout, registry).await;
            let varying = actix_rt::spawn(vary_speeds(grid.clone(), speeds, noise, seed));
            let params = JobParams { mode: Mode::Static, ..JobParams::default() };
            let run = grid.submit(job, params, None).await.map_err(Failed::failure)?;
            let ended = run.ended(TIME_MAX).await.map_err(Failed::failure);
            varying.abort();
            ended
        })?;
        Ok(ended.ended.outcome.map_err(Failed::failure)?.result)
    }
}

fn no_iterates(result: &Value) -> Failed {
    Failed::failure(format!("the run reports no iterates: {result}"))
}

/// Sets the speeds of the workers, and draws factors of them again and again.
async fn vary_speeds(grid: Rc<SimulatedGrid>, speeds: Vec<f64>, noise: f64, seed: u64) {
    let mut random = SplitMix::with_text(seed, "speeds");
    loop {
        for (number, speed) in (1..).zip(&speeds) {
            let node = NodeId::from(format!("workers-{number}"));
            grid.machines().set_speed(&node, speed * factor(&mut random, noise));
        }
        if noise == 0.0 {
            return;
        }
        tokio::time::sleep(SPEED_INTERVAL).await;
    }
}

/// A log-normal factor with mean 1 and this coefficient of variation.
fn factor(random: &mut SplitMix, variation: f64) -> f64 {
    let variance = (1.0 + variation * variation).ln();
    let radius = (-2.0 * (1.0 - random.unit()).ln()).sqrt();
    let normal = radius * (std::f64::consts::TAU * random.unit()).cos();
    (variance.sqrt() * normal - variance / 2.0).exp()
}

/// The iterates of the last sample, and the seconds of the run at its beginning.
fn last_sample(result: &Value) -> Option<(Vec<&Value>, f64)> {
    let last = result["warm_start"].as_array()?.len() as u64;
    let all = result["controller"]["iterates"].as_array()?;
    let rows: Vec<&Value> = all.iter().filter(|row| row["phase"] == last).collect();
    let before = all.iter().filter(|row| row["phase"].as_u64().is_some_and(|phase| phase < last));
    let began = before.filter_map(|row| row["ended_s"].as_f64()).fold(0.0, f64::max);
    Some((rows, began))
}

fn mean_pivots(result: &Value) -> Option<MeanPivots> {
    let (rows, _) = last_sample(result)?;
    let mean = |key: &str| {
        let sum: f64 = rows.iter().filter_map(|row| row[key].as_f64()).sum();
        sum / rows.len().max(1) as f64
    };
    Some(MeanPivots { scenario: mean("pivots"), decision: mean("master_pivots") })
}

fn measurement(result: &Value) -> Option<SimulatedTimes> {
    let (rows, began) = last_sample(result)?;
    let number = |row: &Value, key: &str| row[key].as_f64().unwrap_or(0.0);
    let sum = |rows: &[&Value], key: &str| rows.iter().map(|row| number(row, key)).sum::<f64>();
    let ended = rows.iter().map(|row| number(row, "ended_s")).fold(0.0, f64::max);
    let minutes = (ended - began) / 60.0;
    let iterations = result["iterations"].as_u64()? as u32;
    let master_s = sum(&rows, "master_s");
    let forecast: Vec<&Value> =
        rows.iter().copied().filter(|row| row["predicted_s"].is_f64()).collect();
    let workers_s = forecast.first().map_or(f64::NAN, |row| number(row, "workers_s"));
    let model_minutes = (master_s + f64::from(iterations) * workers_s) / 60.0;
    let measured = sum(&forecast, "measured_s");
    let error = |row: &&Value| {
        (number(row, "predicted_s") / number(row, "measured_s").max(1e-9) - 1.0).abs()
    };
    let least = sum(&forecast, "fluid_s") + sum(&forecast, "master_s");
    let mut used: Vec<u64> = rows.iter().filter_map(|row| row["used"].as_u64()).collect();
    used.sort_unstable();
    Some(SimulatedTimes {
        iterations,
        minutes,
        master_s,
        workers_s,
        model_minutes,
        model_error: model_minutes / minutes - 1.0,
        forecast_error: sum(&forecast, "predicted_s") / measured - 1.0,
        iterate_error: forecast.iter().map(error).sum::<f64>() / forecast.len() as f64,
        least_minutes: least / measured * minutes,
        used: used.get(used.len() / 2).copied().unwrap_or(0),
    })
}

/// Numbers with a given mean, least and greatest: the least, and a power of evenly spread numbers
/// above it, as skewed as the mean demands.
pub(super) fn spread((mean, least, greatest): (f64, f64, f64), count: u32) -> Vec<f64> {
    let numbers = |power: f64| -> Vec<f64> {
        let even = |at: u32| f64::from(at) / f64::from(count.max(2) - 1);
        (0..count).map(|at| least + (greatest - least) * even(at).powf(power)).collect()
    };
    let (mut low, mut high) = (0.01, 100.0);
    for _ in 0..60 {
        let power: f64 = (low + high) / 2.0;
        let above = numbers(power).iter().sum::<f64>() / f64::from(count) > mean;
        if above { low = power } else { high = power }
    }
    numbers(low)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use springtide_stochastic::smps::{self, Files};

    use super::super::paper::TABLE4;
    use super::*;

    #[test]
    fn spread_numbers_have_their_mean_and_ends() {
        for row in TABLE4 {
            let (mean, least, greatest) = row.share_s;
            let all = spread(row.share_s, row.workers);
            let found = all.iter().sum::<f64>() / f64::from(row.workers);
            assert!((found / mean - 1.0).abs() < 1e-6, "{found} {mean}");
            assert!((all[0] - least).abs() < 1e-9 && (all[all.len() - 1] - greatest).abs() < 1e-9);
        }
    }

    #[test]
    fn factors_have_mean_one_and_their_variation() {
        for variation in [0.0, 0.05, 0.4] {
            let mut random = SplitMix(1);
            let all: Vec<f64> = (0..20_000).map(|_| factor(&mut random, variation)).collect();
            let mean = all.iter().sum::<f64>() / all.len() as f64;
            let squares = all.iter().map(|one| (one - mean).powi(2)).sum::<f64>();
            let found = (squares / all.len() as f64).sqrt() / mean;
            assert!((mean - 1.0).abs() < 0.02, "{mean}");
            assert!((found - variation).abs() < 0.03 * (0.1 + variation), "{found} {variation}");
        }
    }

    /// Constant times are forecast exactly; times that vary are not, and their means are as given.
    #[test]
    fn times_vary_around_the_given_means_and_forecasts_err() {
        let directory =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../stochastic/tests/data/reservoir");
        let (model, _) = smps::read(&Files::find(&directory).unwrap()).unwrap();
        let programs = [("reservoir", Arc::new(model))].into();
        let laboratory = Laboratory::new(programs, 1.0);
        let constant = Experiment {
            program: "reservoir",
            scenarios: 400,
            tasks: 20,
            shares_s: vec![5.0, 5.0, 10.0],
            shares: 3,
            decision_s: 1.0,
            cold_start: true,
            distribution: Distribution::Whole,
            site: WorkerLocation::Pool,
            varies: false,
            noise: 0.0,
            seed: 1,
        };
        let exact = laboratory.measure(&constant).unwrap();
        assert!(exact.iterate_error < 0.01, "{exact:?}");
        assert!((exact.master_s / f64::from(exact.iterations) - 1.0).abs() < 0.01, "{exact:?}");
        let varying = Experiment { varies: true, noise: 0.2, ..constant };
        let varying = laboratory.measure(&varying).unwrap();
        assert_eq!(varying.iterations, exact.iterations);
        assert!(varying.iterate_error > 0.02, "{varying:?}");
        assert!((varying.master_s / exact.master_s - 1.0).abs() < 0.02, "{varying:?} {exact:?}");
        assert!((varying.minutes / exact.minutes - 1.0).abs() < 0.5, "{varying:?} {exact:?}");
    }
}
