//! Options that several commands have, independent of their execution.

use std::path::PathBuf;
use std::time::Duration;

use crate::locate::default_config;
use crate::shape::GridShape;
use clap::{ArgAction, ArgMatches, Args, Command, FromArgMatches, ValueHint};
use springtide_cli::options::{keyword_parser, time};
use springtide_runtime::config::{Level, Mode, Sources, Steal};

/// Options of every command.
#[derive(Args, Clone, Debug, Default)]
pub struct GlobalArgs {
    /// Print less: no progress, no notes
    #[arg(
        id = "app.quiet",
        short = 'q',
        long = "quiet",
        global = true,
        conflicts_with = "app.verbose"
    )]
    pub quiet: bool,
    /// Print more; twice: also log lines
    #[arg(
        id = "app.verbose",
        short = 'v',
        long = "verbose",
        action = ArgAction::Count,
        global = true,
    )]
    pub verbose: u8,
    /// Log level of this process and of the nodes it starts: error, warn, info, debug or trace
    #[arg(
        id = "app.log_level",
        long = "log-level",
        value_name = "LEVEL",
        global = true,
        value_parser = keyword_parser::<Level>(&["error", "warn", "info", "debug", "trace"]),
        hide_possible_values = true,
    )]
    pub log_level: Option<Level>,
}

/// Options of `run`, in addition to those of the job.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Run options")]
pub struct RunArgs {
    /// Run on the running grid of this config [default: that of SPRINGTIDE_CONFIG; that of the
    /// nearest grid.toml if it is up; else a grid of its own]
    #[arg(
        id = "run.config",
        long = "config",
        value_name = "FILE",
        value_hint = ValueHint::FilePath,
    )]
    pub config: Option<PathBuf>,
    /// Maximum time to wait for a grid that is not up yet
    #[arg(id = "run.wait", long = "wait", value_name = "TIME", value_parser = time,
          conflicts_with_all = ["run.clusters", "run.start", "run.sequential", "run.files"])]
    pub wait: Option<Duration>,
    /// Shape of the grid to start: clusters x nodes, and threads per node
    #[arg(
        id = "run.clusters",
        long = "clusters",
        value_name = "CxN[@T]",
        conflicts_with_all = ["run.config", "run.sequential"],
    )]
    pub clusters: Option<GridShape>,
    /// Begin on C clusters with N nodes each; the job may grow into the others [default: all]
    #[arg(id = "run.start", long = "start", value_name = "CxN", value_parser = parse_start,
          conflicts_with_all = ["run.config", "run.sequential"])]
    pub start: Option<GridShape>,
    /// Adaptation of the set of nodes: static, monitor (decide and log only) or adaptive [default:
    /// adaptive]
    #[arg(
        id = "run.mode",
        long = "mode",
        value_name = "HOW",
        value_parser = keyword_parser::<Mode>(&["static", "monitor", "adaptive"]),
        hide_possible_values = true,
    )]
    pub mode: Option<Mode>,
    /// Minimum number of processors of the job [default: 1]
    #[arg(id = "run.min", long = "min", alias = "min-nodes", value_name = "N")]
    pub min: Option<u32>,
    /// Maximum number of processors of the job [default: no limit]
    #[arg(id = "run.max", long = "max", alias = "max-nodes", value_name = "N")]
    pub max: Option<u32>,
    /// Set a parameter of adaptation, such as e_min=0.4 or weights.alpha=2, by its name in
    /// the config's table of adaptation. Repeatable
    #[arg(id = "run.set", long = "set", value_name = "NAME=VALUE", value_parser = parse_setting)]
    pub set: Vec<(String, String)>,
    /// Run without a grid, on one thread of this process
    #[arg(id = "run.sequential", long = "sequential", conflicts_with = "run.config")]
    pub sequential: bool,
    /// Print the result as one JSON object
    #[arg(id = "run.json", long = "json")]
    pub json: bool,
    /// Directory for the files of the run: manifest, events, node logs, result, the job's files
    #[arg(id = "run.out", long = "out", value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub out: Option<PathBuf>,
    /// Selection of the nodes to steal from: cluster-aware, or random as the baseline
    #[arg(id = "run.steal", long = "steal", value_name = "HOW",
          value_parser = keyword_parser::<Steal>(&["cluster-aware", "random"]),
          hide_possible_values = true)]
    pub steal: Option<Steal>,
    /// Random seed of the run, for example for the selection of victims
    #[arg(id = "run.seed", long = "seed", value_name = "N")]
    pub seed: Option<u64>,
    /// Maximum time of the run, for example 90s or 10m
    #[arg(id = "run.timeout", long = "timeout", value_name = "TIME", value_parser = time)]
    pub timeout: Option<Duration>,
    /// End the job when N nodes failed while they held the same task; 0: never [default: 3]
    #[arg(id = "run.poison", long = "poison", value_name = "N")]
    pub poison: Option<u32>,
    /// Size of the finished results that each node keeps in case others fail; 0B: none [default:
    /// 64MiB]
    #[arg(id = "run.keep-results", long = "keep-results", value_name = "SIZE")]
    pub keep_results: Option<String>,
    /// Maximum mean rate of checkpoints in bytes per second; a checkpoint that would exceed it is
    /// skipped; 0B: no limit [default: 256KiB]
    #[arg(id = "run.checkpoint-rate", long = "checkpoint-rate", value_name = "SIZE")]
    pub checkpoint_rate: Option<String>,
    /// Directory of the job's input files, without --config [default: the current directory]
    #[arg(
        id = "run.files",
        long = "files",
        value_name = "DIR",
        value_hint = ValueHint::DirPath,
        conflicts_with = "run.config",
    )]
    pub files: Option<PathBuf>,
    /// Interval of statistics reports and of decisions of adaptation [default: 10s]
    #[arg(id = "run.period", long = "period", value_name = "TIME", value_parser = time)]
    pub period: Option<Duration>,
}

impl RunArgs {
    /// Overrides the config by the options of adaptation and faults.
    pub fn apply_to(&self, mut sources: Sources) -> Sources {
        for (name, value) in &self.set {
            sources = sources.with_flag("--set", &format!("adaptation.{name}"), value);
        }
        if let Some(mode) = self.mode {
            sources = sources.with_flag("--mode", "adaptation.mode", mode);
        }
        for (flag, key, number) in [
            ("--min", "adaptation.min_processors", self.min),
            ("--max", "adaptation.max_processors", self.max),
            ("--poison", "work.poison", self.poison),
        ] {
            if let Some(number) = number {
                sources = sources.with_flag(flag, key, number);
            }
        }
        for (flag, key, size) in [
            ("--keep-results", "work.results", &self.keep_results),
            ("--checkpoint-rate", "work.checkpoints", &self.checkpoint_rate),
        ] {
            if let Some(size) = size {
                sources = sources.with_flag(flag, key, size);
            }
        }
        sources
    }

    /// The directory of input files. None if the current directory is missing or no config can name
    /// it.
    pub fn input_dir(&self) -> Option<PathBuf> {
        let here = || std::env::current_dir().ok().filter(|dir| dir.to_str().is_some());
        self.files.clone().or_else(here)
    }
}

/// Parses a shape without threads, which the grid's shape has.
fn parse_start(text: &str) -> Result<GridShape, String> {
    match text.parse::<GridShape>() {
        Ok(shape) if !text.contains('@') => Ok(shape),
        _ => Err("must be clusters x nodes such as 1x2, on which the job starts".to_owned()),
    }
}

fn parse_setting(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("must be NAME=VALUE such as e_min=0.4")?;
    if name == "period_s" {
        return Err("the period is set by --period".to_owned());
    }
    Ok((name.trim().to_owned(), value.trim().to_owned()))
}

/// The subcommand of a job with `more` options. An option that the job has too gets the prefix.
pub fn with_options(
    name: &'static str,
    about: &'static str,
    augment: fn(Command) -> Command,
    prefix: &str,
    mut more: Command,
) -> Command {
    let job = Command::new(name).next_help_heading("Job options");
    let job = augment(job).about(about).long_about(None);
    let taken: Vec<String> =
        job.get_arguments().filter_map(|arg| arg.get_long()).map(str::to_owned).collect();
    let ids: Vec<_> = more.get_arguments().map(|arg| arg.get_id().clone()).collect();
    for id in ids {
        more = more.mut_arg(&id, |arg| {
            let clash = arg.get_long().filter(|long| taken.iter().any(|known| known == long));
            // Names are built once per process.
            let renamed = clash.map(|long| &*format!("{prefix}-{long}").leak());
            if let Some(long) = renamed { arg.long(long) } else { arg }
        });
    }
    let args: Vec<_> = more.get_arguments().cloned().collect();
    job.args(args).next_help_heading(None)
}

/// A job and its options that were given, as a command line.
pub fn job_line(augment: fn(Command) -> Command, name: &str, matches: &ArgMatches) -> String {
    let job = augment(Command::new("job"));
    let given = |arg: &&clap::Arg| {
        let source = matches.value_source(arg.get_id().as_str());
        source == Some(clap::parser::ValueSource::CommandLine)
    };
    let mut line = name.to_owned();
    let options = job.get_arguments().filter(given).filter(|arg| !arg.is_last_set());
    let last = job.get_arguments().filter(given).filter(|arg| arg.is_last_set());
    for arg in options.chain(last) {
        if let Some(long) = arg.get_long() {
            line += &format!(" --{long}");
        } else if arg.is_last_set() {
            line += " --";
        }
        if arg.get_action().takes_values() {
            let raw = matches.get_raw(arg.get_id().as_str()).into_iter().flatten();
            for value in raw {
                line += &format!(" {}", value.to_string_lossy());
            }
        }
    }
    line
}

/// The options of every command.
pub fn global(matches: &ArgMatches) -> GlobalArgs {
    GlobalArgs::from_arg_matches(matches).unwrap_or_default()
}

/// Options that select the grid and the form of the output.
#[derive(Args, Clone, Debug)]
pub struct GridArgs {
    /// Config of the running grid [default: the nearest grid.toml]
    #[arg(
        id = "job.config",
        long = "config",
        value_name = "FILE",
        value_hint = ValueHint::FilePath,
        default_value_os_t = default_config(),
        hide_default_value = true,
    )]
    pub config: PathBuf,
    /// Maximum time to wait for a grid that is not up yet
    #[arg(id = "job.wait-grid", long = "wait-grid", value_name = "TIME", value_parser = time)]
    pub wait_grid: Option<Duration>,
    /// Print the result as one JSON object
    #[arg(id = "job.json", long = "json")]
    pub json: bool,
}
