//! `sim run --recorded`: predicts the run time of a recorded job on a grid, with and without parts
//! of the grid.
//!
//! This module does not know the simulation itself.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use clap::ValueHint;
use serde::Deserialize;
use springtide_actors::policy::Mode;
use springtide_cli::config::load;
use springtide_cli::exit::Failed;
use springtide_cli::format::{SCHEMA, seconds, size};
use springtide_cli::print::print;
use springtide_runtime::config::{
    BoundedInt, ConfigError, ConfigProblem, GridConfig, LineSection, LinksConfig, Loaded, Name,
    Pair, PlaceSection, ScenarioConfig, Sources, Time, nearest,
};
use springtide_runtime::event::{Event, RunDir, read};
use springtide_runtime::id::ClusterId;
use springtide_runtime::net::LinkUnit;
use springtide_simulator::forecast::{self, LeftOut, Prediction, PredictionRequest};
use springtide_simulator::recorded::{ClusterSums, LearnedModel, Recorded, learn};

/// Options of a prediction.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Prediction options")]
pub struct WhatIfArgs {
    /// Predict the run of a recorded job, from this directory (--out of `run` or `sim run`),
    /// instead of a scenario
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath, requires = "config",
          conflicts_with_all = ["scenario", "out", "period"])]
    pub recorded: Option<PathBuf>,
    /// Config of the grid to predict for
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, requires = "recorded")]
    pub config: Option<PathBuf>,
    /// Measured links of the grid and networks of its clusters [default: those that its config
    /// expects]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, requires = "recorded")]
    pub links: Option<PathBuf>,
    /// Also predict the grid without this cluster. Repeatable, each for a prediction of its own
    #[arg(long, value_name = "CLUSTER", requires = "recorded")]
    pub without: Vec<Name>,
    /// Also predict the grid without the link between these clusters. Repeatable
    #[arg(long, value_name = "A,B", value_parser = pair, requires = "recorded")]
    pub without_link: Vec<Pair>,
}

fn pair(text: &str) -> Result<Pair, String> {
    let (a, b) = text.split_once(',').ok_or("must be two clusters such as ams,del")?;
    Ok(Pair(a.parse()?, b.parse()?))
}

/// The settings of a prediction.
pub struct PredictionSettings {
    /// The mode of adaptation; the grid's own if absent.
    pub mode: Option<Mode>,
    /// The random seed of the simulation.
    pub seed: u64,
    /// The transport of the simulated network.
    pub wire: LinkUnit,
    /// Whether to print the prediction as one JSON object.
    pub json: bool,
}

/// The result of a prediction.
pub struct RunPrediction {
    /// The run that was recorded.
    pub run: Recorded,
    /// The model learned from the recorded run.
    pub learned: LearnedModel,
    /// The mode of adaptation.
    pub mode: Mode,
    /// The grid as it is, then each grid without a part.
    pub predicted: Vec<Prediction>,
}

/// Predicts run times and prints them.
///
/// # Errors
/// The record, the grid's config or the links are not usable.
pub fn what_if(args: &WhatIfArgs, settings: PredictionSettings) -> Result<(), Failed> {
    let (json, seed) = (settings.json, settings.seed);
    let RunPrediction { run, learned, mode, predicted } = predict(args, settings)?;
    if json {
        let object = serde_json::json!({
            "schema": SCHEMA,
            "recorded": run,
            "learned": learned,
            "mode": mode.word(),
            "seed": seed,
            "predictions": predicted,
        });
        return print(&format!("{object}\n"));
    }
    print(&prediction_text(&run, &learned, &predicted))
}

fn predict(args: &WhatIfArgs, settings: PredictionSettings) -> Result<RunPrediction, Failed> {
    let (Some(dir), Some(file)) = (&args.recorded, &args.config) else {
        return Err(Failed::usage("--recorded needs --config as well"));
    };
    let run = recorded(dir)?;
    let learned =
        learn(&run).map_err(|error| Failed::usage(format!("{}: {error}", dir.display())))?;
    let config = load::<GridConfig>(&Sources::of_process(Some(file)))?;
    let links = match &args.links {
        Some(file) => Some(load::<LinksConfig>(&Sources::of_process(Some(file)))?),
        None => None,
    };
    let grid = grid(&config.value, links.as_ref(), &learned, run.wall_s)?;
    let without = variants(args, &grid)?;
    let mode = settings.mode.unwrap_or_else(|| grid.adaptation.mode.into());
    let order = PredictionRequest {
        grid,
        model: learned.model.clone(),
        mode,
        seed: settings.seed,
        wire: settings.wire,
    };
    let predicted = without.iter().map(|without| forecast::predict(&order, without)).collect();
    Ok(RunPrediction { run, learned, mode, predicted })
}

/// Reads a recorded run from its directory.
///
/// # Errors
/// The run is incomplete, it failed, or a file is malformed.
pub fn recorded(dir: &Path) -> Result<Recorded, Failed> {
    /// The required part of `result.json`.
    #[derive(Deserialize)]
    struct Result {
        job: String,
        ok: bool,
        error: Option<String>,
        wall_s: f64,
        iterations: Vec<f64>,
        clusters: Vec<ClusterSize>,
        work: Option<BTreeMap<ClusterId, JobWork>>,
        tasks: Tasks,
        bytes: Bytes,
    }
    #[derive(Deserialize)]
    struct ClusterSize {
        name: ClusterId,
        workers: u32,
    }
    #[derive(Deserialize)]
    struct JobWork {
        working_s: f64,
        root_s: f64,
        tasks: u64,
        units: f64,
        squares: f64,
    }
    #[derive(Deserialize)]
    struct Tasks {
        executed: u64,
    }
    #[derive(Deserialize)]
    struct Bytes {
        results: Option<u64>,
    }

    let run_dir = RunDir::open(dir).map_err(Failed::usage)?;
    let file = run_dir.result();
    let text = fs::read_to_string(&file).map_err(|error| {
        let why = "the run continues, or was cut off: name a complete one";
        Failed::usage(format!("cannot read {}: {error}: {why}", file.display()))
    })?;
    let result: Result = serde_json::from_str(&text).map_err(|error| {
        let (line, column) = (error.line(), error.column());
        Failed::usage(format!("{}:{line}:{column}: no result of a run: {error}", file.display()))
    })?;
    let wrong = |why: &str| Failed::usage(format!("{}: {why}", file.display()));
    if !result.ok {
        let error = result.error.unwrap_or_default();
        return Err(wrong(&format!("the run failed ({error}): name one that succeeded")));
    }
    if result.clusters.is_empty() {
        return Err(wrong("the run had no grid (--sequential): name one with a grid"));
    }
    let old = || wrong("it does not contain the computed work: record the run with this version");
    let mut clusters: BTreeMap<ClusterId, ClusterSums> = BTreeMap::new();
    for (name, work) in result.work.ok_or_else(old)? {
        let JobWork { working_s, root_s, tasks, units, squares } = work;
        clusters.insert(
            name,
            ClusterSums { workers: 0, working_s, root_s, costed: tasks, units, squares },
        );
    }
    for ClusterSize { name, workers } in result.clusters {
        clusters.entry(name).or_default().workers = workers;
    }
    let log = read(&run_dir.events())?;
    let (mut published_bytes, mut stolen) = (0, BTreeMap::new());
    for record in &log.records {
        match &record.event {
            Event::ObjectPublished { object_bytes, .. } => published_bytes += object_bytes,
            Event::TaskStolen { path, .. } => {
                let depth = u32::try_from(path.0.len()).unwrap_or(u32::MAX);
                *stolen.entry(depth).or_default() += 1;
            }
            _ => {}
        }
    }
    Ok(Recorded {
        run: log.header.run,
        job: result.job,
        wall_s: result.wall_s,
        iterations: u32::try_from(result.iterations.len()).unwrap_or(u32::MAX),
        clusters,
        tasks: result.tasks.executed,
        published_bytes,
        result_bytes: result.bytes.results.ok_or_else(old)?,
        stolen,
    })
}

/// The grid as the simulator's scenario. An error if the file of links names an unknown cluster.
fn grid(
    config: &GridConfig,
    links: Option<&Loaded<LinksConfig>>,
    learned: &LearnedModel,
    wall_s: f64,
) -> Result<ScenarioConfig, Failed> {
    let text = "name = \"prediction\"\n[[cluster]]\nname = \"any\"\nstart = 1\n";
    let mut grid = load::<ScenarioConfig>(&Sources::of_text("a grid", text))?.value;
    let given = links.map(|links| &links.value);
    let place = |cluster: &springtide_runtime::config::ClusterSection| {
        let inside =
            given.and_then(|links| links.cluster.iter().find(|inside| inside.name == cluster.name));
        let learned = learned.speeds.get(&ClusterId::from(cluster.name.as_str()));
        let given = inside.and_then(|inside| inside.speed);
        PlaceSection {
            name: cluster.name.clone(),
            times: BoundedInt::nearest(1),
            nodes: BoundedInt::nearest(cluster.nodes.get()),
            start: BoundedInt::nearest(0),
            later: BoundedInt::nearest(0),
            speed: given.or(learned.copied()).unwrap_or(1.0),
            threads: Some(BoundedInt::nearest(config.threads_of(cluster))),
            unequal_threads: None,
            delay: inside.map_or(grid.cluster[0].delay, |inside| inside.delay),
            uplink: inside.and_then(|inside| inside.uplink),
        }
    };
    let places = config.cluster.iter().map(place).collect();
    grid.cluster = places;
    if let Some(links) = links {
        check_names(links, &grid)?;
        grid.wide = links.value.wide.clone();
        grid.link = links.value.link.clone();
    }
    for link in &config.link {
        let Pair(a, b) = &link.between;
        let same = |line: &LineSection| line.between.is_of(a.as_str(), b.as_str());
        if !grid.link.iter().any(same) {
            grid.link.push(LineSection {
                rtt: Some(link.rtt),
                bandwidth: Some(link.bandwidth),
                ..LineSection::between(link.between.clone())
            });
        }
    }
    grid.adaptation = config.adaptation.clone();
    grid.job.period = config.stats.period;
    let recorded = Duration::try_from_secs_f64(wall_s).unwrap_or_default();
    grid.job.limit = Time::from(forecast::limit(recorded));
    Ok(grid)
}

fn unknown(name: &Name, grid: &ScenarioConfig) -> Option<(String, Option<String>)> {
    let names = || grid.cluster.iter().map(|place| place.name.as_str());
    let meant = || nearest(name.as_str(), names()).map(str::to_owned);
    let known = names().any(|known| known == name.as_str());
    (!known).then(|| (format!("the grid has no cluster named \"{name}\""), meant()))
}

fn check_names(links: &Loaded<LinksConfig>, grid: &ScenarioConfig) -> Result<(), Failed> {
    let mut problems = Vec::new();
    let mut check = |name: &Name, path: String| {
        if let Some((reason, meant)) = unknown(name, grid)
            && let Some(at) = links.origin(&path)
        {
            problems.push(ConfigProblem { at, reason, meant });
        }
    };
    for (i, cluster) in links.value.cluster.iter().enumerate() {
        check(&cluster.name, format!("cluster[{i}].name"));
    }
    for (i, link) in links.value.link.iter().enumerate() {
        let Pair(a, b) = &link.between;
        [a, b].into_iter().for_each(|name| check(name, format!("link[{i}].between")));
    }
    problems.sort();
    if problems.is_empty() { Ok(()) } else { Err(ConfigError::Problems(problems).into()) }
}

/// The variants to predict: the whole grid first, then each without a part.
fn variants(args: &WhatIfArgs, grid: &ScenarioConfig) -> Result<Vec<LeftOut>, Failed> {
    let links = args
        .without_link
        .iter()
        .flat_map(|Pair(a, b)| [("--without-link", a), ("--without-link", b)]);
    for (flag, name) in args.without.iter().map(|name| ("--without", name)).chain(links) {
        if let Some((reason, meant)) = unknown(name, grid) {
            let meant = meant.map_or(String::new(), |meant| format!("; did you mean `{meant}`?"));
            return Err(Failed::usage(format!("{flag}: {reason}{meant}")));
        }
    }
    if let Some(Pair(a, _)) = args.without_link.iter().find(|Pair(a, b)| a == b) {
        return Err(Failed::usage(format!("--without-link: {a} has no link to itself")));
    }
    let clusters = args.without.iter().cloned().map(LeftOut::Cluster);
    let links = args.without_link.iter().cloned().map(LeftOut::Link);
    Ok(std::iter::once(LeftOut::Nothing).chain(clusters).chain(links).collect())
}

fn prediction_text(run: &Recorded, learned: &LearnedModel, predicted: &[Prediction]) -> String {
    let model = &learned.model;
    let micros = |us: u64| seconds(us as f64 * 1e-6);
    let leaves = if learned.leaves > u64::from(model.leaves) {
        format!("{} tasks (as {})", learned.leaves, model.leaves)
    } else {
        format!("{} tasks", model.leaves)
    };
    let estimated = if learned.declared { "" } else { " (estimated: the run counted no costs)" };
    let mut text = format!(
        "run         {} of {}\n\
        model       {} iterations of {} of one thread's work in {leaves}{estimated} and {} of the \
        root's own; each sends {} to all nodes and returns {}\n",
        run.run,
        run.job,
        model.rounds,
        micros(model.work_us),
        micros(model.serial_us),
        size(model.state_bytes.into()),
        size(model.result_bytes.into()),
    );
    if !learned.speeds.is_empty() {
        let speeds = learned.speeds.iter().map(|(name, speed)| format!("{name} {speed:.2}"));
        text.push_str(&format!("speeds      {}\n", speeds.collect::<Vec<_>>().join(", ")));
    }
    let workers: u32 = run.clusters.values().map(|part| part.workers).sum();
    let line =
        |grid: &str, runtime: &str, nodes: &str| format!("{grid:30} {runtime:>10}  {nodes}\n");
    text.push_str(&line("", "runtime", "nodes"));
    text.push_str(&line("recorded", &seconds(run.wall_s), &format!("{workers} at the end")));
    for one in predicted {
        let (runtime, nodes) = match (one.runtime_s, &one.error) {
            (Some(runtime), _) => {
                let nodes =
                    one.nodes_over_time.iter().enumerate().map(|(i, (at, nodes))| match i {
                        0 => nodes.to_string(),
                        _ => format!("{nodes} from {}", seconds(*at)),
                    });
                let at_end = one.workers.iter().map(|(name, workers)| format!("{name} {workers}"));
                let (nodes, at_end): (Vec<_>, Vec<_>) = (nodes.collect(), at_end.collect());
                (
                    seconds(runtime),
                    format!("{}; at the end {}", nodes.join(", "), at_end.join(", ")),
                )
            }
            (None, error) => ("-".to_owned(), error.clone().unwrap_or_default()),
        };
        text.push_str(&line(&one.grid, &runtime, &nodes));
    }
    text
}

#[cfg(test)]
#[path = "whatif_tests.rs"]
mod tests;
