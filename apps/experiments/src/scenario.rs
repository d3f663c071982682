//! `sim`: grids in simulated time.
//!
//! Independent of the simulation itself.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Subcommand, ValueHint};
use springtide_actors::policy::Mode;
use springtide_runtime::config::{
    self, LinksConfig, ScenarioConfig, Sources, WorkloadConfig, load,
};
use springtide_runtime::net::Wire;
use springtide_runtime::work::Job;
use springtide_simulator::GridError;
use springtide_simulator::apps::Model;
use springtide_simulator::faults::{self, History};
use springtide_simulator::figure;
use springtide_simulator::paper::{self, Row};
use springtide_simulator::scenario::{Play, Played, params, play_over};
use springtide_simulator::shipped::{self, Shipped};

use crate::args::{time, words};
use crate::atr::{AtrArgs, atr};
use crate::exit::{Exit, Failed};
use crate::outdir::{Artefacts, OutDir, manifest};
use crate::provisioning::{ProvisioningArgs, provisioning};
use crate::report::RunEnd;
use crate::run::print;
use crate::scaling::{ScalingArgs, scaling};
use crate::whatif::{self, PredictionSettings, WhatIfArgs};
use crate::workload::{WorkloadArgs, workload};

/// Maximum size of a simulated run's log in bytes.
const LOG_MAX: u64 = 1 << 30;

/// The name of the example of a file of links in `sim show`.
const LINKS: &str = "links";

/// The name of the example of a workload in `sim show`.
const WORKLOAD: &str = "workload";

/// The subcommands of `sim`.
#[derive(Subcommand, Clone, Debug)]
pub enum SimCommand {
    /// Simulate a scenario: a grid, a job and events; or predict a recorded run on another grid
    /// (--recorded)
    Run {
        /// Scenario file, or the name of a built-in scenario (`sim list`)
        #[arg(
            value_name = "SCENARIO",
            value_hint = ValueHint::FilePath,
            required_unless_present = "recorded",
        )]
        scenario: Option<PathBuf>,
        /// Adaptation of the job's set of nodes: static, monitor or adaptive [default: the file's]
        #[arg(
            long,
            value_name = "HOW",
            value_parser = words::<config::Mode>(&["static", "monitor", "adaptive"]),
            hide_possible_values = true,
        )]
        mode: Option<config::Mode>,
        /// Random seed
        #[arg(long, value_name = "N", default_value_t = 1)]
        seed: u64,
        /// Interval between decisions on the set of nodes [default: the file's]
        #[arg(long, value_name = "TIME", value_parser = time)]
        period: Option<Duration>,
        /// Use real QUIC endpoints on simulated sockets: slower, to check the faster form
        #[arg(long)]
        quic: bool,
        /// Print the result as one JSON object
        #[arg(long)]
        json: bool,
        /// Directory for the files of the run, for `why` and `replay`
        #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
        out: Option<PathBuf>,
        #[command(flatten)]
        what_if: Box<WhatIfArgs>,
    },
    /// Simulate the paper's scenarios: static, monitored, adaptive with the paper's period and with
    /// ours, and with the best fixed set of nodes
    Paper {
        /// Only these scenarios [default: all]
        #[arg(value_name = "NAME")]
        only: Vec<String>,
        /// Interval between decisions on the set of nodes [default: as in the paper]
        #[arg(long, value_name = "TIME", value_parser = time)]
        period: Option<Duration>,
        /// Number of seeds, from 1 on
        #[arg(long, value_name = "N", default_value_t = 1)]
        seeds: u64,
        /// Print the result as one JSON object
        #[arg(long)]
        json: bool,
        /// Directory for the figures (SVG) and the result (JSON)
        #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
        out: Option<PathBuf>,
    },
    /// Simulate many jobs over many clusters; malleable ones grow and shrink by the live
    /// scheduler's decisions
    Workload(Box<WorkloadArgs>),
    /// Simulate the experiments of the provisioning paper: slots for a workflow, compared with best
    /// effort
    Provisioning(Box<ProvisioningArgs>),
    /// Simulate the tables and figures of the paper on adaptive control of ATR, with its workers'
    /// speeds
    Atr(Box<AtrArgs>),
    /// Simulate one Barnes-Hut run on growing numbers of workers, with distributed and with
    /// replicated bodies
    BarnesHut(Box<ScalingArgs>),
    /// Simulate histories of random faults on small grids; jobs must end with the right result and
    /// release all nodes
    Faults {
        /// Seeds from A up to, but not including, B
        #[arg(long, value_name = "A..B", default_value = "1..101", value_parser = seeds)]
        seeds: Range<u64>,
        /// Print the result as one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Simulate one history of random faults again, and print its events
    Replay {
        /// Seed of the history
        #[arg(value_name = "SEED")]
        seed: u64,
    },
    /// List the built-in scenarios and workloads
    List,
    /// Print the file of a built-in scenario or workload, or an example of a scenario with every
    /// key
    Show {
        /// Name of the file; `workload` for an example of a workload with every key, `links` for
        /// one of a file of links (`sim run --links`)
        #[arg(value_name = "NAME")]
        name: Option<String>,
    },
}

/// Executes a subcommand of `sim`.
///
/// # Errors
/// As the subcommand describes.
pub fn sim(command: SimCommand, version: &str) -> Result<(), Failed> {
    match command {
        SimCommand::Run { scenario, mode, seed, period, quic, json, out, what_if } => {
            let wire = if quic { Wire::quic() } else { Wire::Frames };
            let mode = mode.map(Mode::from);
            match scenario {
                Some(scenario) => {
                    run(&scenario, (mode, seed, period), wire, json, out.as_deref(), version)
                }
                None => whatif::what_if(&what_if, PredictionSettings { mode, seed, wire, json }),
            }
        }
        SimCommand::Paper { only, period, seeds, json, out } => {
            paper(&only, period, seeds.max(1), json, out.as_deref())
        }
        SimCommand::Workload(args) => workload(&args),
        SimCommand::Atr(args) => atr(&args),
        SimCommand::BarnesHut(args) => scaling(&args),
        SimCommand::Provisioning(args) => provisioning(&args),
        SimCommand::Faults { seeds, json } => faults(seeds, json),
        SimCommand::Replay { seed } => replay(seed),
        SimCommand::List => {
            let line = |shipped: &Shipped| -> Result<String, Failed> {
                let config = parse(shipped.name, shipped.text)?;
                Ok(format!("{:22} {}\n", shipped.name, config.about))
            };
            let workload = |shipped: &Shipped| -> Result<String, Failed> {
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
        SimCommand::Show { name: None } => print(&ScenarioConfig::template()),
        SimCommand::Show { name: Some(name) } if name == LINKS => print(&LinksConfig::template()),
        SimCommand::Show { name: Some(name) } if name == WORKLOAD => {
            print(&WorkloadConfig::template())
        }
        SimCommand::Show { name: Some(name) } => match shipped::workload(&name) {
            Some(shipped) => print(shipped.text),
            None => print(find(&name)?.text),
        },
    }
}

fn run(
    scenario: &Path,
    (mode, seed, period): (Option<Mode>, u64, Option<Duration>),
    wire: Wire,
    json: bool,
    out: Option<&Path>,
    version: &str,
) -> Result<(), Failed> {
    let (config, text) = read(scenario)?;
    let mode = mode.unwrap_or_else(|| config.adaptation.mode.into());
    let settings = Play { mode, period, seed };
    check(&config, &settings)?;
    let started = std::time::Instant::now();
    let played =
        play_over(&config, &settings, wire).map_err(|error| Failed::new(exit_of(&error), error))?;
    let mut artefacts = Artefacts::of(out);
    if let Some(dir) = out {
        artefacts.add(keep(dir, &config, &text, &played, &settings, version));
    }
    let result = result(&config, &settings, &played);
    let text = || result_text(&config, &settings, &played, started.elapsed());
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

fn seeds(text: &str) -> Result<Range<u64>, String> {
    let range = text.split_once("..").and_then(|(from, to)| {
        let (from, to) = (from.parse().ok()?, to.parse().ok()?);
        (from < to).then_some(from..to)
    });
    range.ok_or_else(|| "must be two numbers such as 1..101, the second above the first".to_owned())
}

fn paper(
    only: &[String],
    period: Option<Duration>,
    seeds: u64,
    json: bool,
    out: Option<&Path>,
) -> Result<(), Failed> {
    let chosen = match only.is_empty() {
        true => shipped::PAPER.iter().collect(),
        false => only.iter().map(|name| find(name)).collect::<Result<Vec<_>, _>>()?,
    };
    let configs = chosen.iter().map(|shipped| parse(shipped.name, shipped.text));
    let configs = configs.collect::<Result<Vec<_>, _>>()?;
    let orders = configs.iter().flat_map(|config| (1..=seeds).map(move |seed| (config, seed)));
    let rows = paper::rows(orders.collect(), period, |row| eprintln!("{}", line(row)))
        .map_err(Failed::failure)?;
    let calibration = configs.first().map(paper::calibration);
    let result = serde_json::json!({
        "schema": crate::report::SCHEMA,
        "calibration": calibration.map(|digest| format!("{digest:016x}")),
        "scenarios": rows,
    });
    let mut artefacts = Artefacts::of(out);
    if artefacts.are_wanted() {
        artefacts.keep("paper.json", format!("{result}\n"));
        let first: Vec<Row> = rows.iter().filter(|row| row.seed == 1).cloned().collect();
        artefacts.keep("runtimes.svg", figure::runtimes(&first).map_err(Failed::failure)?);
        for row in &first {
            let text = figure::iterations(row).map_err(Failed::failure)?;
            artefacts.keep(&format!("scenario-{}.svg", row.name), text);
        }
    }
    let head = "scenario seed   static  monitor adaptive  reduction (paper)   ours reduction   \
    best nodes  ours/best undone";
    let lines: Vec<String> = rows.iter().map(line).collect();
    let digest = calibration.unwrap_or_default();
    let text = || format!("{head}\n{}\ncalibration {digest:016x}\n", lines.join("\n"));
    artefacts.print(json, result, text)
}

/// Formats a scenario's runs as one line.
fn line(row: &Row) -> String {
    let percent = |share: f64| format!("{:.0} %", 100.0 * share);
    let paper = row.paper_reduction.map_or("-".to_owned(), percent);
    format!(
        "{:8} {:4} {:8.0} {:8.0} {:8.0}  {:>9} {:>7} {:6.0} {:>9} {:12.0} {:10.2} {:6}",
        row.name,
        row.seed,
        row.static_s,
        row.monitor_s,
        row.adaptive_s,
        percent(row.reduction),
        paper,
        row.ours.adaptive_s,
        percent(row.ours.reduction),
        row.clairvoyant_s,
        row.ours.adaptive_s / row.clairvoyant_s,
        row.undone.len() + row.ours.undone.len(),
    )
}

fn faults(seeds: Range<u64>, json: bool) -> Result<(), Failed> {
    let began = std::time::Instant::now();
    let tally = faults::run_all(seeds, |history, result| {
        if let Err(error) = result {
            eprintln!("{history}  {error}\n  again: springtide sim replay {}", history.seed);
        }
    });
    let took = began.elapsed().as_secs_f64();
    let faults::Tally { met, wrong, digests, histories, slowest } = &tally;
    if json {
        let result = serde_json::json!({
            "schema": crate::report::SCHEMA, "histories": histories, "wrong": wrong,
            "met": met.iter().map(|(what, (times, _))| (what, times)).collect::<BTreeMap<_, _>>(),
            "met_in": met
                .iter()
                .map(|(what, (_, histories))| (what, histories))
                .collect::<BTreeMap<_, _>>(),
            "slowest_s": slowest.0.as_secs_f64(),
            "digests": digests
                .iter()
                .map(|(seed, digest)| (seed, format!("{digest:016x}")))
                .collect::<BTreeMap<_, _>>(),
        });
        print(&format!("{result}\n"))?;
    } else {
        let (after, seed) = (slowest.0.as_secs_f64(), slowest.1);
        print(&format!(
            "{}{histories} histories in {took:.0} s, {} wrong; the last job ended {after:.0} s \
            after its last fault (seed {seed})\n",
            tally.lines(),
            wrong.len()
        ))?;
    }
    match wrong.is_empty() {
        true => Ok(()),
        false => Err(Failed::failure(format!("wrong: seeds {wrong:?}"))),
    }
}

fn replay(seed: u64) -> Result<(), Failed> {
    replay_one(&History::of(seed))?;
    replay_one(&History::of_brief(seed))
}

fn replay_one(history: &History) -> Result<(), Failed> {
    let run = faults::run(history);
    let said = match &run {
        Ok(run) => &run.said,
        Err(failed) => &failed.said,
    };
    let line = |(at, what): &(Duration, String)| format!("{:9.3} s  {what}\n", at.as_secs_f64());
    let lines: String = said.iter().map(line).collect();
    print(&format!("{history}{lines}"))?;
    let run = run.map_err(Failed::failure)?;
    print(&format!(
        "the right answer after {:.3} s; digest {:016x}\n",
        run.wall.as_secs_f64(),
        run.digest
    ))
}

fn find(name: &str) -> Result<&'static Shipped, Failed> {
    shipped::find(name).ok_or_else(|| {
        Failed::usage(format!("no scenario of this program is named {name}: see `sim list`"))
    })
}

fn parse(name: &str, text: &str) -> Result<ScenarioConfig, Failed> {
    Ok(load::<ScenarioConfig>(&Sources::of_text(name, text))?.value)
}

/// Reads a scenario from a file, or a built-in one, with its text.
pub(crate) fn read(scenario: &Path) -> Result<(ScenarioConfig, String), Failed> {
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

pub(crate) fn check(config: &ScenarioConfig, settings: &Play) -> Result<(), Failed> {
    let params = params(config, settings);
    crate::netconf::check_settings(&params, config.cluster.iter().map(|place| place.nodes.get()))
}

pub(crate) fn keep(
    dir: &Path,
    config: &ScenarioConfig,
    text: &str,
    played: &Played,
    settings: &Play,
    version: &str,
) -> Result<(), Failed> {
    let mut manifest = manifest(&format!("sim-{}", config.name), version, Some(settings.seed));
    manifest.mode = Some(word(settings.mode).to_owned());
    let mut out = OutDir::create(dir, &manifest, text, LOG_MAX)?;
    out.records(&played.records)?;
    out.finish(&RunEnd::of(Model::NAME, &played.ended).json())
}

/// The value of a mode on the command line.
pub(crate) fn word(mode: Mode) -> &'static str {
    mode.word()
}

fn result(config: &ScenarioConfig, settings: &Play, played: &Played) -> serde_json::Value {
    let at = |(at, text): &(Duration, String)| serde_json::json!([at.as_secs_f64(), text]);
    serde_json::json!({
        "schema": crate::report::SCHEMA,
        "scenario": config.name.as_str(),
        "mode": word(settings.mode),
        "seed": settings.seed,
        "wall_s": played.wall.as_secs_f64(),
        "iterations": played.iterations,
        "nodes_over_time": played.nodes,
        "events": played.events.iter().map(at).collect::<Vec<_>>(),
        "decisions": played.actions().iter().map(at).collect::<Vec<_>>(),
        "digest": format!("{:016x}", played.digest),
        "error": played.ended.outcome.as_ref().err().map(ToString::to_string),
    })
}

fn result_text(
    config: &ScenarioConfig,
    settings: &Play,
    played: &Played,
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
        runtime     {:.0} s ({}, seed {}), simulated in {:.1} s; digest {:016x}\n",
        lengths.join(" "),
        nodes.join(", "),
        played.wall.as_secs_f64(),
        word(settings.mode),
        settings.seed,
        took.as_secs_f64(),
        played.digest
    ));
    text
}
