//! `sim`: grids in simulated time.

use std::ops::Range;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Subcommand, ValueHint};
use springtide_actors::policy::Mode;
use springtide_cli::exit::Failed;
use springtide_cli::options::{keyword_parser, time};
use springtide_experiments::atr::{AtrArgs, atr};
use springtide_experiments::faults;
use springtide_experiments::no_harm::no_harm;
use springtide_experiments::paper::paper;
use springtide_experiments::provisioning::{ProvisioningArgs, provisioning};
use springtide_experiments::scale::{ScaleArgs, scale};
use springtide_experiments::scaling::{ScalingArgs, scaling};
use springtide_experiments::scenario::{self, ScenarioRun};
use springtide_experiments::whatif::{self, PredictionSettings, WhatIfArgs};
use springtide_experiments::workload::{WorkloadArgs, workload};
use springtide_runtime::config;
use springtide_runtime::net::LinkUnit;

use springtide_operations::options::GlobalArgs;
use springtide_operations::process::start_log;

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
            value_parser = keyword_parser::<config::Mode>(&["static", "monitor", "adaptive"]),
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
    /// Simulate random grids, jobs and faults: static, adaptive, and on the best fixed set of
    /// nodes; adaptation must do no harm
    NoHarm {
        /// Seeds from A up to, but not including, B
        #[arg(long, value_name = "A..B", default_value = "1..101", value_parser = seeds)]
        seeds: Range<u64>,
        /// Print the result as one JSON object
        #[arg(long)]
        json: bool,
        /// Directory for the scenario files of all draws
        #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
        out: Option<PathBuf>,
    },
    /// Simulate one history of random faults again, and print its events
    Replay {
        /// Seed of the history
        #[arg(value_name = "SEED")]
        seed: u64,
    },
    /// Measure the simulator itself: processor time, memory and events by the number of workers
    Scale(Box<ScaleArgs>),
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
pub fn execute(command: SimCommand, version: &str, global: &GlobalArgs) -> Result<(), Failed> {
    start_log(global);
    match command {
        SimCommand::Run { scenario, mode, seed, period, quic, json, out, what_if } => {
            let wire = if quic { LinkUnit::quic() } else { LinkUnit::Frames };
            let mode = mode.map(Mode::from);
            match scenario {
                Some(scenario) => scenario::run(&ScenarioRun {
                    scenario: &scenario,
                    mode,
                    seed,
                    period,
                    wire,
                    json,
                    out: out.as_deref(),
                    version,
                }),
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
        SimCommand::Faults { seeds, json } => faults::faults(seeds, json),
        SimCommand::NoHarm { seeds, json, out } => no_harm(seeds, json, out.as_deref()),
        SimCommand::Replay { seed } => faults::replay(seed),
        SimCommand::Scale(args) => scale(&args),
        SimCommand::List => scenario::list(),
        SimCommand::Show { name } => scenario::show(name.as_deref()),
    }
}

fn seeds(text: &str) -> Result<Range<u64>, String> {
    let range = text.split_once("..").and_then(|(from, to)| {
        let (from, to) = (from.parse().ok()?, to.parse().ok()?);
        (from < to).then_some(from..to)
    });
    range.ok_or_else(|| "must be two numbers such as 1..101, the second above the first".to_owned())
}
