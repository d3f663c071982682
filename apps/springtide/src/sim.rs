//! `sim`: grids in simulated time.
//!
//! Must not know how they are simulated.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Subcommand, ValueHint};
use springtide_actors::policy::Mode;
use springtide_runtime::config::{self, ScenarioConfig, Sources, load};
use springtide_runtime::event::SCHEMA;
use springtide_simulator::scenario::{Play, Played, params, play};
use springtide_simulator::shipped::{self, Shipped};

use crate::args::{time, words};
use crate::exit::{Exit, Failed};
use crate::outdir::{OutDir, manifest};
use crate::run::print;

/// Largest log of a simulated run, in bytes.
const LOG_MAX: u64 = 1 << 30;

/// `sim ...`
#[derive(Subcommand, Clone, Debug)]
pub enum SimCommand {
    /// Play a scenario: a grid, a job and what happens to them
    Run {
        /// Its file, or the name of one that comes with this program (`sim list`)
        #[arg(value_name = "SCENARIO", value_hint = ValueHint::FilePath)]
        scenario: PathBuf,
        /// How far the job's set of nodes is adapted: static, monitor or adaptive [default: the file's]
        #[arg(long, value_name = "HOW", value_parser = words::<config::Mode>(&["static", "monitor", "adaptive"]),
              hide_possible_values = true)]
        mode: Option<config::Mode>,
        /// Of whatever is random
        #[arg(long, value_name = "N", default_value_t = 1)]
        seed: u64,
        /// How often the set of nodes is thought over [default: the file's]
        #[arg(long, value_name = "TIME", value_parser = time)]
        period: Option<Duration>,
        /// Print the result as one JSON object
        #[arg(long)]
        json: bool,
        /// Directory for what the run leaves, for `why` and `replay`
        #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
        out: Option<PathBuf>,
    },
    /// List the scenarios that come with this program
    List,
    /// Print a scenario's file: one that comes with this program, or an example with every key
    Show {
        /// Its name
        #[arg(value_name = "NAME")]
        name: Option<String>,
    },
}

/// Does it.
///
/// # Errors
/// As told.
pub fn sim(command: SimCommand, version: &str) -> Result<(), Failed> {
    match command {
        SimCommand::Run { scenario, mode, seed, period, json, out } => {
            let (config, text) = read(&scenario)?;
            let mode = mode.map_or_else(|| config.adaptation.mode.into(), Mode::from);
            let how = Play { mode, period, seed };
            check(&config, &how)?;
            let started = std::time::Instant::now();
            let played = play(&config, &how).map_err(|error| Failed::new(Exit::Timeout, error))?;
            if let Some(dir) = &out {
                keep(dir, &config, &text, &played, seed, version)?;
            }
            let result = result(&config, &how, &played);
            match json {
                true => print(&format!("{result}\n"))?,
                false => print(&told(&config, &how, &played, started.elapsed()))?,
            }
            match &played.ended.outcome {
                Ok(outcome) if outcome.checksum == played.answer => Ok(()),
                Ok(outcome) => Err(Failed::failure(format!(
                    "the answer is {:016x}, not {:016x}: this is a bug, please report it with the scenario and --seed {seed}",
                    outcome.checksum, played.answer
                ))),
                Err(error) => Err(Failed::failure(error)),
            }
        }
        SimCommand::List => {
            let line = |shipped: &Shipped| -> Result<String, Failed> {
                let config = parse(shipped.name, shipped.text)?;
                Ok(format!("{:22} {}\n", shipped.name, config.about))
            };
            let all = shipped::PAPER.iter().chain(shipped::MORE);
            print(&all.map(line).collect::<Result<String, _>>()?)
        }
        SimCommand::Show { name: None } => print(&ScenarioConfig::template()),
        SimCommand::Show { name: Some(name) } => print(find(&name)?.text),
    }
}

fn find(name: &str) -> Result<&'static Shipped, Failed> {
    shipped::find(name).ok_or_else(|| {
        Failed::usage(format!("no scenario of this program is named {name}: see `sim list`"))
    })
}

fn parse(name: &str, text: &str) -> Result<ScenarioConfig, Failed> {
    Ok(load::<ScenarioConfig>(&Sources::of_text(name, text))?.value)
}

/// A file, or one that comes with the program. Its text, too.
fn read(scenario: &Path) -> Result<(ScenarioConfig, String), Failed> {
    let name = scenario.to_string_lossy();
    if !scenario.exists()
        && let Some(shipped) = shipped::find(&name)
    {
        return Ok((parse(shipped.name, shipped.text)?, shipped.text.to_owned()));
    }
    let loaded = load::<ScenarioConfig>(&Sources::of_process(Some(scenario)))?;
    let text = loaded.show(false);
    Ok((loaded.value, text))
}

fn check(config: &ScenarioConfig, how: &Play) -> Result<(), Failed> {
    let params = params(config, how);
    crate::netconf::check_settings(&params, config.cluster.iter().map(|place| place.nodes.get()))
}

fn keep(
    dir: &Path,
    config: &ScenarioConfig,
    text: &str,
    played: &Played,
    seed: u64,
    version: &str,
) -> Result<(), Failed> {
    let manifest = manifest(&format!("sim-{}", config.name), version, Some(seed));
    let mut out = OutDir::create(dir, &manifest, text, LOG_MAX)?;
    out.records(&played.records)?;
    let checksum = played.ended.outcome.as_ref().ok().map(|outcome| outcome.checksum);
    out.finish(&serde_json::json!({
        "schema": SCHEMA,
        "checksum": checksum.map(|sum| format!("{sum:016x}")),
        "wall_s": played.wall.as_secs_f64(),
        "iterations": played.iterations,
    }))
}

fn word(mode: Mode) -> &'static str {
    match mode {
        Mode::Static => "static",
        Mode::Monitor => "monitor",
        Mode::Adaptive => "adaptive",
    }
}

fn result(config: &ScenarioConfig, how: &Play, played: &Played) -> serde_json::Value {
    let at = |(at, text): &(Duration, String)| serde_json::json!([at.as_secs_f64(), text]);
    serde_json::json!({
        "schema": crate::report::SCHEMA,
        "scenario": config.name.as_str(),
        "mode": word(how.mode),
        "seed": how.seed,
        "wall_s": played.wall.as_secs_f64(),
        "iterations": played.iterations,
        "nodes_over_time": played.nodes,
        "events": played.events.iter().map(at).collect::<Vec<_>>(),
        "decisions": played.actions().iter().map(at).collect::<Vec<_>>(),
        "digest": format!("{:016x}", played.digest),
        "error": played.ended.outcome.as_ref().err().map(ToString::to_string),
    })
}

fn told(config: &ScenarioConfig, how: &Play, played: &Played, took: Duration) -> String {
    let mut text = format!("scenario {}: {}\n", config.name, config.about);
    let mut story: Vec<(Duration, String)> = played.said.clone();
    story.extend(played.events.iter().map(|(at, what)| (*at, format!("--- {what}"))));
    story.sort_by_key(|(at, _)| *at);
    for (at, what) in &story {
        text.push_str(&format!("{:9.1} s  {what}\n", at.as_secs_f64()));
    }
    let lengths: Vec<_> = played.iterations.iter().map(|s| format!("{s:.0}")).collect();
    let nodes: Vec<_> =
        played.nodes.iter().map(|(at, nodes)| format!("{nodes} from {at:.0} s")).collect();
    text.push_str(&format!(
        "iterations  {} s\nnodes       {}\nruntime     {:.0} s ({}, seed {}), simulated in {:.1} s; digest {:016x}\n",
        lengths.join(" "),
        nodes.join(", "),
        played.wall.as_secs_f64(),
        word(how.mode),
        how.seed,
        took.as_secs_f64(),
        played.digest
    ));
    text
}
