//! The cost of the simulator: processor time, memory and events by the number of workers.

use std::process::Command;

use clap::{Args, ValueEnum};
use serde_json::{Value, json};
use springtide_cli::exit::Failed;
use springtide_cli::format::SCHEMA;
use springtide_cli::outdir::Artefacts;
use springtide_simulator::scale::{
    OperationCosts, ScaleLoad, ScaleSettings, measure, operation_costs,
};

/// The number of workers of a cluster, unless the number of clusters is given.
const WORKERS_PER_CLUSTER: u32 = 100;

/// Options of `sim scale`.
#[derive(Args, Clone, Debug)]
pub struct ScaleArgs {
    /// Numbers of workers with one thread, one run each
    #[arg(
        long,
        value_name = "N,N,...",
        value_delimiter = ',',
        default_value = "250,500,1000,2000",
        value_parser = clap::value_parser!(u32).range(1..=100_000),
    )]
    workers: Vec<u32>,
    /// Number of clusters [default: one for each hundred workers]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    clusters: Option<u32>,
    /// What the workers do
    #[arg(long, value_name = "WHAT", value_enum, default_value_t = Load::Steals)]
    load: Load,
    /// Virtual seconds of the load
    #[arg(
        long,
        value_name = "N",
        default_value_t = 60,
        value_parser = clap::value_parser!(u32).range(1..=86_400),
    )]
    seconds: u32,
    /// Print the processor time of a heartbeat, a statistic and a steal, on the first number of
    /// workers
    #[arg(long)]
    costs: bool,
    /// Random seed
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Print the result as one JSON object
    #[arg(long)]
    json: bool,
}

/// What the workers of a measured grid do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "kebab-case")]
enum Load {
    /// One worker computes, the others wait for work
    Idle,
    /// All workers compute one long task
    Heartbeats,
    /// All workers compute one long task, and send statistics each second
    Statistics,
    /// Each worker steals a short task in each iteration
    Steals,
}

impl From<Load> for ScaleLoad {
    fn from(load: Load) -> Self {
        match load {
            Load::Idle => Self::Idle,
            Load::Heartbeats => Self::Heartbeats,
            Load::Statistics => Self::Statistics,
            Load::Steals => Self::Steals,
        }
    }
}

/// Measures the simulator and prints a row for each number of workers.
///
/// Each row of several is measured by a process of its own, so that its memory is its own.
///
/// # Errors
/// A simulation fails, a process cannot be started, or the text cannot be written.
pub fn scale(args: &ScaleArgs) -> Result<(), Failed> {
    let rows = match args.workers[..] {
        [workers] if !args.costs => vec![row(args, workers)?],
        _ => {
            let rows = args.workers.iter().map(|workers| row_of_process(args, *workers));
            rows.collect::<Result<_, _>>()?
        }
    };
    let first = args.workers.first().copied().filter(|_| args.costs);
    let costs = first.map(|workers| operation_costs(&settings(args, workers)));
    let costs = costs.transpose().map_err(Failed::failure)?;
    let result = json!({ "schema": SCHEMA, "runs": rows, "costs": costs });
    Artefacts::of(None).print(args.json, result, || text(&rows, costs.as_ref()))
}

fn settings(args: &ScaleArgs, workers: u32) -> ScaleSettings {
    let clusters = args.clusters.unwrap_or(workers.div_ceil(WORKERS_PER_CLUSTER));
    let (load, seconds, seed) = (args.load.into(), args.seconds, args.seed);
    ScaleSettings { workers, clusters, load, seconds, seed }
}

/// Measures a number of workers in this process.
fn row(args: &ScaleArgs, workers: u32) -> Result<Value, Failed> {
    let result = measure(&settings(args, workers)).map_err(Failed::failure)?;
    let mut row = serde_json::to_value(&result).map_err(Failed::failure)?;
    row["digest"] = json!(format!("{:016x}", result.digest));
    row["memory_mb"] = json!(peak_memory_mb());
    row["events_per_s"] = json!(result.events as f64 / result.total_cpu_s.max(1e-9));
    Ok(row)
}

/// Measures a number of workers in a process of its own.
fn row_of_process(args: &ScaleArgs, workers: u32) -> Result<Value, Failed> {
    let settings = settings(args, workers);
    let load = args.load.to_possible_value();
    let load = load.as_ref().map_or("", |value| value.get_name());
    let program = std::env::current_exe()
        .map_err(|error| Failed::failure(format!("this program is not found: {error}")))?;
    let options = [
        ("--workers", workers.to_string()),
        ("--clusters", settings.clusters.to_string()),
        ("--load", load.to_owned()),
        ("--seconds", args.seconds.to_string()),
        ("--seed", args.seed.to_string()),
    ];
    let mut command = Command::new(program);
    command.args(["sim", "scale", "--json"]);
    command.args(options.iter().flat_map(|(name, value)| [*name, value.as_str()]));
    let about = |error: String| Failed::failure(format!("{workers} workers: {error}"));
    let output = command.output().map_err(|error| about(error.to_string()))?;
    if !output.status.success() {
        return Err(about(String::from_utf8_lossy(&output.stderr).trim().to_owned()));
    }
    let result: Value =
        serde_json::from_slice(&output.stdout).map_err(|error| about(error.to_string()))?;
    let row = result["runs"].get(0).cloned();
    row.ok_or_else(|| about("its process printed no result".to_owned()))
}

/// The largest resident memory of this process so far, in MB; none where the system does not
/// report it.
fn peak_memory_mb() -> Option<f64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: f64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kib * 1024.0 / 1e6)
}

fn text(rows: &[Value], costs: Option<&OperationCosts>) -> String {
    let mut text = "workers clusters  virtual    cpu s  memory MB     events  events/s  \
                    heartbeats  statistics   steals  steals/worker/s\n"
        .to_owned();
    let number = |row: &Value, key: &str| row[key].as_f64().unwrap_or_default();
    for row in rows {
        let of = |key| number(row, key);
        let memory = row["memory_mb"].as_f64().map_or(String::new(), |mb| format!("{mb:.0}"));
        text.push_str(&format!(
            "{:7} {:8} {:6.1} s {:8.2} {memory:>10} {:10} {:9.0} {:11} {:11} {:8} {:16.2}\n",
            of("workers"),
            of("clusters"),
            of("virtual_s"),
            of("total_cpu_s"),
            of("events"),
            of("events_per_s"),
            of("heartbeats"),
            of("statistics"),
            of("steals"),
            of("steals") / of("workers").max(1.0) / of("virtual_s").max(1e-9),
        ));
    }
    if let Some(costs) = costs {
        text.push_str(&format!(
            "a heartbeat takes {:.1} us, a statistic {:.1} us, a steal {:.1} us\n",
            costs.heartbeat_us, costs.statistic_us, costs.steal_us
        ));
    }
    text
}
