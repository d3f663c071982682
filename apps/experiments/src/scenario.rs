//! Simulated runs of scenarios, and the built-in scenarios and workloads.

use std::path::Path;
use std::time::Duration;

use springtide_actors::policy::Mode;
use springtide_cli::adaptation::check_settings;
use springtide_cli::config::load;
use springtide_cli::exit::{Exit, Failed};
use springtide_cli::format::SCHEMA;
use springtide_cli::outdir::{Artefacts, OutDir, manifest};
use springtide_cli::print::print;
use springtide_cli::run_end::RunEnd;
use springtide_runtime::config::{
    LinksConfig, PlaceSection, ScenarioConfig, Sources, WorkloadConfig,
};
use springtide_runtime::net::LinkUnit;
use springtide_simulator::GridError;
use springtide_simulator::scenario::{
    SimulationParams, SimulationResult, model, params, simulate_over,
};
use springtide_simulator::shipped::{self, BuiltinFile};

/// Maximum size of a simulated run's log in bytes.
const LOG_MAX: u64 = 1 << 30;

/// The name of the example of a file of links in `sim show`.
const LINKS: &str = "links";

/// The name of the example of a workload in `sim show`.
const WORKLOAD: &str = "workload";

/// The settings of a simulated run.
pub struct ScenarioRun<'a> {
    /// A scenario file, or the name of a built-in scenario.
    pub scenario: &'a Path,
    /// The mode of adaptation; none: the file's.
    pub mode: Option<Mode>,
    /// The seed of the random numbers.
    pub seed: u64,
    /// The interval between decisions; none: the file's.
    pub period: Option<Duration>,
    /// The form of the network.
    pub wire: LinkUnit,
    /// Whether the result is printed as one JSON object.
    pub json: bool,
    /// The directory for the files of the run.
    pub out: Option<&'a Path>,
    /// The version of this program.
    pub version: &'a str,
}

/// Simulates a scenario and prints its result.
///
/// # Errors
/// The scenario is wrong, the job does not end or ends with a wrong answer, or files cannot be
/// written.
pub fn run(order: &ScenarioRun<'_>) -> Result<(), Failed> {
    let ScenarioRun { seed, period, json, out, version, .. } = *order;
    let (config, text) = read(order.scenario)?;
    let mode = order.mode.unwrap_or_else(|| config.adaptation.mode.into());
    let settings = SimulationParams { mode, period, seed };
    check(&config, &settings)?;
    let started = std::time::Instant::now();
    let played = simulate_over(&config, &settings, order.wire.clone())
        .map_err(|error| Failed::new(exit_of(&error), error))?;
    let mut artefacts = Artefacts::of(out);
    if let Some(dir) = out {
        artefacts.add(keep(dir, &config, &text, &played, &settings, version));
    }
    let took = started.elapsed();
    let result = result(&config, &settings, &played);
    let text = || result_text(&config, &settings, &played, took);
    artefacts.print(json, result, text)?;
    match &played.ended.outcome {
        Ok(outcome) if outcome.checksum == played.answer => Ok(()),
        Ok(outcome) => Err(Failed::failure(format!(
            "the answer is {:016x}, not {:016x}: this is a bug, please report it with the scenario \
            and --seed {seed}",
            outcome.checksum, played.answer
        ))),
        Err(error) => Err(Failed::failure(error)),
    }
}

fn exit_of(error: &GridError) -> Exit {
    match error {
        GridError::NoNode { .. } | GridError::NoCoordinator { .. } => Exit::NotPlaced,
        _ => Exit::Timeout,
    }
}

/// Prints the names and descriptions of the built-in scenarios and workloads.
///
/// # Errors
/// The text cannot be written.
pub fn list() -> Result<(), Failed> {
    let line = |shipped: &BuiltinFile| -> Result<String, Failed> {
        let config = parse(shipped.name, shipped.text)?;
        Ok(format!("{:22} {}\n", shipped.name, config.about))
    };
    let workload = |shipped: &BuiltinFile| -> Result<String, Failed> {
        let sources = Sources::of_text(shipped.name, shipped.text);
        let about = load::<WorkloadConfig>(&sources)?.value.about;
        Ok(format!("{:22} {about}\n", shipped.name))
    };
    let scenarios = shipped::all().map(line).collect::<Result<String, _>>()?;
    let workloads = shipped::WORKLOADS.iter().map(workload);
    let workloads = workloads.collect::<Result<String, _>>()?;
    print(&format!(
        "Scenarios (sim run NAME):\n{scenarios}\nWorkloads (sim workload NAME):\n\
        {workloads}"
    ))
}

/// Prints a built-in scenario or workload, or an example with every key.
///
/// # Errors
/// No file has this name, or the text cannot be written.
pub fn show(name: Option<&str>) -> Result<(), Failed> {
    match name {
        None => print(&ScenarioConfig::template()),
        Some(LINKS) => print(&LinksConfig::template()),
        Some(WORKLOAD) => print(&WorkloadConfig::template()),
        Some(name) => match shipped::workload(name) {
            Some(shipped) => print(shipped.text),
            None => print(find(name)?.text),
        },
    }
}

pub(crate) fn find(name: &str) -> Result<&'static BuiltinFile, Failed> {
    shipped::find(name).ok_or_else(|| {
        Failed::usage(format!("no built-in scenario is named {name}: see `sim list`"))
    })
}

pub(crate) fn parse(name: &str, text: &str) -> Result<ScenarioConfig, Failed> {
    Ok(load::<ScenarioConfig>(&Sources::of_text(name, text))?.value)
}

/// Reads a scenario from a file, or a built-in one, with its text.
///
/// # Errors
/// No such scenario exists, or the file is wrong.
pub fn read(scenario: &Path) -> Result<(ScenarioConfig, String), Failed> {
    let name = scenario.to_string_lossy();
    // A single word without a file extension is the name of a built-in scenario.
    let word = scenario.components().count() == 1 && scenario.extension().is_none();
    if !scenario.exists() && (word || shipped::find(&name).is_some()) {
        let shipped = find(&name)?;
        return Ok((parse(shipped.name, shipped.text)?, shipped.text.to_owned()));
    }
    let loaded = load::<ScenarioConfig>(&Sources::of_process(Some(scenario)))?;
    let text = loaded.show(false);
    Ok((loaded.value, text))
}

/// Checks that a scenario's adaptation parameters are consistent.
///
/// # Errors
/// All contradictions together.
pub fn check(config: &ScenarioConfig, settings: &SimulationParams) -> Result<(), Failed> {
    let params = params(config, settings);
    let size = |place: &PlaceSection| config.processors_of(place, place.nodes.get());
    check_settings(&params, config.cluster.iter().map(size))
}

/// Writes the directory of a simulated run.
pub(crate) fn keep(
    dir: &Path,
    config: &ScenarioConfig,
    text: &str,
    played: &SimulationResult,
    settings: &SimulationParams,
    version: &str,
) -> Result<(), Failed> {
    let mut manifest = manifest(&format!("sim-{}", config.name), version, Some(settings.seed));
    manifest.mode = Some(settings.mode.word().to_owned());
    let mut out = OutDir::create(dir, &manifest, text, LOG_MAX)?;
    out.records(&played.records)?;
    out.finish(&RunEnd::of(model(&config.app).name(), &played.ended).json())
}

fn result(
    config: &ScenarioConfig,
    settings: &SimulationParams,
    played: &SimulationResult,
) -> serde_json::Value {
    let at = |(at, text): &(Duration, String)| serde_json::json!([at.as_secs_f64(), text]);
    serde_json::json!({
        "schema": SCHEMA,
        "scenario": config.name.as_str(),
        "mode": settings.mode.word(),
        "seed": settings.seed,
        "wall_s": played.wall.as_secs_f64(),
        "iterations": played.iterations,
        "nodes_over_time": played.nodes,
        "events": played.events.iter().map(at).collect::<Vec<_>>(),
        "decisions": played.actions().iter().map(at).collect::<Vec<_>>(),
        "digest": format!("{:016x}", played.digest),
        "network_events": played.network_events,
        "error": played.ended.outcome.as_ref().err().map(ToString::to_string),
    })
}

fn result_text(
    config: &ScenarioConfig,
    settings: &SimulationParams,
    played: &SimulationResult,
    took: Duration,
) -> String {
    let mut text = format!("scenario {}: {}\n", config.name, config.about);
    let mut lines: Vec<(Duration, String)> = played.said.clone();
    lines.extend(played.events.iter().map(|(at, what)| (*at, format!("--- {what}"))));
    lines.sort_by_key(|(at, _)| *at);
    for (at, what) in &lines {
        text.push_str(&format!("{:9.1} s  {what}\n", at.as_secs_f64()));
    }
    let lengths: Vec<_> = played.iterations.iter().map(|s| format!("{s:.0}")).collect();
    let nodes: Vec<_> =
        played.nodes.iter().map(|(at, nodes)| format!("{nodes} from {at:.0} s")).collect();
    text.push_str(&format!(
        "iterations  {} s\nnodes       {}\n\
        runtime     {:.0} s ({}, seed {}), simulated in {:.1} s, {:.0} events a second; digest \
        {:016x}\n",
        lengths.join(" "),
        nodes.join(", "),
        played.wall.as_secs_f64(),
        settings.mode.word(),
        settings.seed,
        took.as_secs_f64(),
        per_second(played.network_events, took),
        played.digest
    ));
    text
}

/// The number of events a second; zero if no time passed.
fn per_second(events: u64, took: Duration) -> f64 {
    if took.is_zero() { 0.0 } else { events as f64 / took.as_secs_f64() }
}
