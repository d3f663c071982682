//! The command line: its commands and options, independent of their execution.

use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{ArgAction, ArgMatches, Args, Command, FromArgMatches, Subcommand, ValueHint};
use springtide_runtime::config::{Level, Mode, Sources, Steal, Time};

use crate::exit::EXIT_CODES;
use crate::inputs::FilesCommand;
use crate::jobs::{FileArgs, JobCommand, NeedArgs};
use crate::join::JoinArgs;
use crate::sim::SimCommand;
use crate::site::SiteCommand;
use crate::slots::{ReleaseArgs, ReserveArgs, SlotsCommand};
use crate::token::TokenCommand;
#[cfg(target_os = "linux")]
use crate::wan::WanCommand;
use crate::workflow::WorkflowCommand;

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
        value_parser = words::<Level>(&["error", "warn", "info", "debug", "trace"]),
        hide_possible_values = true,
    )]
    pub log_level: Option<Level>,
}

/// Options of `run`, in addition to those of the job.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Run options")]
pub struct RunArgs {
    /// Run on the running grid of this config [default: a grid of its own]
    #[arg(
        id = "run.config",
        long = "config",
        value_name = "FILE",
        value_hint = ValueHint::FilePath,
    )]
    pub config: Option<PathBuf>,
    /// Shape of the grid to start: clusters x nodes, and threads per node
    #[arg(
        id = "run.clusters",
        long = "clusters",
        value_name = "CxN[@T]",
        conflicts_with_all = ["run.config", "run.sequential"],
    )]
    pub clusters: Option<Shape>,
    /// Start on C clusters with N nodes each; the job may grow into the others [default: all]
    #[arg(id = "run.start", long = "start", value_name = "CxN", value_parser = parse_start,
          conflicts_with_all = ["run.config", "run.sequential"])]
    pub start: Option<Shape>,
    /// Adaptation of the set of nodes: static, monitor (decide and log only) or adaptive [default:
    /// adaptive]
    #[arg(
        id = "run.mode",
        long = "mode",
        value_name = "HOW",
        value_parser = words::<Mode>(&["static", "monitor", "adaptive"]),
        hide_possible_values = true,
    )]
    pub mode: Option<Mode>,
    /// Minimum number of nodes of the job [default: 1]
    #[arg(id = "run.min_nodes", long = "min-nodes", value_name = "N")]
    pub min_nodes: Option<u32>,
    /// Maximum number of nodes of the job [default: no limit]
    #[arg(id = "run.max_nodes", long = "max-nodes", value_name = "N")]
    pub max_nodes: Option<u32>,
    /// Set a parameter of adaptation, such as e_min=0.4 or weights.alpha=2, by its name in
    /// [adaptation] of the config. Repeatable
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
    /// Selection of victims: cluster-aware, or random as the baseline
    #[arg(id = "run.steal", long = "steal", value_name = "HOW",
          value_parser = words::<Steal>(&["cluster-aware", "random"]), hide_possible_values = true)]
    pub steal: Option<Steal>,
    /// Random seed of the run's own choices, such as of victims
    #[arg(id = "run.seed", long = "seed", value_name = "N")]
    pub seed: Option<u64>,
    /// Maximum time of the run, for example 90s or 10m
    #[arg(id = "run.timeout", long = "timeout", value_name = "TIME", value_parser = time)]
    pub timeout: Option<Duration>,
    /// End the job when N nodes failed while they held the same task; 0: never [default: 3]
    #[arg(id = "run.poison", long = "poison", value_name = "N")]
    pub poison: Option<u32>,
    /// Finished results that each node keeps in case other nodes fail; 0B: none [default: 64MiB]
    #[arg(id = "run.keep-results", long = "keep-results", value_name = "SIZE")]
    pub keep_results: Option<String>,
    /// Maximum rate of checkpoints in bytes a second; earlier checkpoints are skipped; 0B: no limit
    /// [default: 256KiB]
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
    /// Interval between reports of statistics [default: 10s]
    #[arg(id = "run.period", long = "period", value_name = "TIME", value_parser = time)]
    pub period: Option<Duration>,
}

impl RunArgs {
    /// Overrides the config by the options of adaptation and faults.
    pub fn over(&self, mut sources: Sources) -> Sources {
        for (name, value) in &self.set {
            sources = sources.with_flag("--set", &format!("adaptation.{name}"), value);
        }
        if let Some(mode) = self.mode {
            sources = sources.with_flag("--mode", "adaptation.mode", mode);
        }
        for (flag, key, number) in [
            ("--min-nodes", "adaptation.min_nodes", self.min_nodes),
            ("--max-nodes", "adaptation.max_nodes", self.max_nodes),
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

/// All commands except `run`.
#[derive(Subcommand, Clone, Debug)]
pub enum OtherCommand {
    /// Start all nodes of a grid and keep running; `run --config FILE` uses it
    Up {
        /// Config of the grid
        #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
        config: PathBuf,
    },
    /// Start a local grid for experiments, and keep running
    Dev {
        /// Shape: clusters x nodes, and threads per node
        #[arg(long, value_name = "CxN[@T]", default_value = "3x2")]
        clusters: Shape,
        /// Directory for its config, certificates and logs
        #[arg(
            long,
            value_name = "DIR",
            default_value = ".springtide-dev",
            value_hint = ValueHint::DirPath,
        )]
        dir: PathBuf,
    },
    /// Nodes: run one, join a grid, list them, drain them and return them to service
    #[command(subcommand, arg_required_else_help = true)]
    Node(NodeCommand),
    /// Join tokens: who may join a grid
    #[command(subcommand, arg_required_else_help = true)]
    Token(TokenCommand),
    /// Input files of jobs in the clusters of a running grid
    #[command(subcommand, arg_required_else_help = true)]
    Files(FilesCommand),
    /// Slots of a running grid: processors for an interval, at a price
    #[command(subcommand, arg_required_else_help = true)]
    Slots(SlotsCommand),
    /// Reserve processors of a running grid
    #[command(after_help = RESERVE_EXIT_CODES)]
    Reserve(ReserveArgs),
    /// End a reservation early
    Release(ReleaseArgs),
    /// Run a cluster's site as a process of its own
    #[command(subcommand, arg_required_else_help = true)]
    Site(SiteCommand),
    /// Explain why a run's nodes were added, removed or kept, in order of time
    Why {
        /// Directory of the run: the --out of `run`
        #[arg(value_name = "RUN", value_hint = ValueHint::DirPath)]
        run: PathBuf,
        /// Show only the decision at this time, with all its reasons: seconds since the job's start
        #[arg(long, value_name = "SECONDS", value_parser = parse_moment)]
        at: Option<f64>,
        /// Show only decisions about this node
        #[arg(long, value_name = "NODE")]
        node: Option<String>,
        /// Print the result as one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Watch a running grid in the terminal, with the dashboard's numbers
    Top {
        /// URL of the dashboard
        #[arg(value_name = "URL", value_hint = ValueHint::Url, required_unless_present = "config")]
        url: Option<String>,
        /// Config of the running grid
        #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, conflicts_with = "url")]
        config: Option<PathBuf>,
        /// File with the dashboard's token [default: `dashboard.token_file` of the config]
        #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
        token_file: Option<PathBuf>,
        /// Print one frame as text; implied if the output is no terminal
        #[arg(long)]
        once: bool,
    },
    /// Write a page about a run, or several runs side by side, for a browser without a server
    Report {
        /// Directories of the runs: the --out of `run`, or the directory of a workflow's plan
        #[arg(value_name = "RUN", value_hint = ValueHint::DirPath, required = true)]
        runs: Vec<PathBuf>,
        /// Compare the runs; implied for several runs
        #[arg(long)]
        compare: bool,
        /// File to write [default: report.html in the run's directory; for several runs
        /// compared.html here]
        #[arg(short, long, value_name = "FILE", value_hint = ValueHint::FilePath)]
        out: Option<PathBuf>,
    },
    /// Write a run's tasks, steals and decisions as a timeline for ui.perfetto.dev
    Trace {
        /// Directory of the run: the --out of `run`
        #[arg(value_name = "RUN", value_hint = ValueHint::DirPath)]
        run: PathBuf,
        /// File to write [default: trace.json in the run's directory]
        #[arg(short, long, value_name = "FILE", value_hint = ValueHint::FilePath)]
        out: Option<PathBuf>,
    },
    /// Repeat a run's decisions from its log, and fail if they differ
    Replay {
        /// Directory of the run: the --out of `run`
        #[arg(value_name = "RUN", value_hint = ValueHint::DirPath)]
        run: PathBuf,
    },
    /// Simulate grids: run scenarios, faults and forecasts in virtual time
    #[command(subcommand, arg_required_else_help = true)]
    Sim(SimCommand),
    /// Workflows of many tasks: inspect their files, and plan the slots of sites for them
    #[command(subcommand, arg_required_else_help = true)]
    Workflow(WorkflowCommand),
    /// Emulate wide-area networks on this host, for any programs
    #[cfg(target_os = "linux")]
    #[command(subcommand, arg_required_else_help = true)]
    Wan(WanCommand),
    /// Write, check and show configuration
    #[command(subcommand, arg_required_else_help = true)]
    Config(ConfigCommand),
    /// The certificate authority of a grid
    #[command(subcommand, arg_required_else_help = true)]
    Ca(CaCommand),
    /// The network between this host and a grid
    #[command(subcommand, arg_required_else_help = true)]
    Net(NetCommand),
    /// Print completions for a shell
    Completions {
        /// Shell to complete for
        shell: clap_complete::Shell,
    },
    /// Write manual pages, one for each command
    Man {
        /// Directory for the pages
        #[arg(value_name = "DIR", value_hint = ValueHint::DirPath)]
        dir: PathBuf,
    },
    /// Print the version
    Version {
        /// Print the result as one JSON object
        #[arg(long)]
        json: bool,
    },
}

/// The subcommands of `node`.
#[derive(Subcommand, Clone, Debug)]
pub enum NodeCommand {
    /// Run one node until its head is lost or orders it to end
    Run {
        /// Config of the node
        #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
        config: PathBuf,
        /// End when standard input ends; the parent process holds it open
        #[arg(long, hide = true)]
        with_parent: bool,
    },
    /// Join a grid with a token: get a certificate, write the node's files, and run it
    #[command(after_help = JOIN_EXIT_CODES)]
    Join(JoinArgs),
    /// List the nodes of a running grid
    List {
        /// Config of the grid
        #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
        config: PathBuf,
        /// Print the result as one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Show the state of a node
    #[command(after_help = STATUS_EXIT_CODES)]
    Status {
        /// Name of the node
        #[arg(
            value_name = "NODE",
            required_unless_present = "of_self",
            conflicts_with = "of_self"
        )]
        node: Option<String>,
        /// Check that the node of this host with this config is registered, for health checks; it
        /// must have joined by a token
        #[arg(id = "of_self", long = "self")]
        of_self: bool,
        /// Config of the grid; with --self, of the node
        #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
        config: PathBuf,
        /// Print the result as one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Exclude a joined node: its certificate becomes invalid
    Revoke {
        /// Name of the node
        #[arg(value_name = "NODE")]
        node: String,
        /// Config of the grid
        #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
        config: PathBuf,
        /// Reason, shown in listings
        #[arg(long, value_name = "TEXT", default_value = "by order")]
        reason: String,
    },
    /// Drain nodes of a running grid: they get no more jobs; returns when they are empty
    #[command(after_help = DRAIN_EXIT_CODES)]
    Drain {
        /// Names of the nodes
        #[arg(value_name = "NODE", required = true)]
        nodes: Vec<String>,
        /// Config of the grid
        #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
        config: PathBuf,
        /// Deadline, for example 30s: then jobs release the nodes, and others repeat the unfinished
        /// work
        #[arg(long, value_name = "TIME", value_parser = time)]
        deadline: Option<Duration>,
        /// Reason, shown in listings [default: drained by `node drain`]
        #[arg(long, value_name = "TEXT")]
        reason: Option<String>,
        /// Print the result as one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Return drained nodes to service
    #[command(after_help = DRAIN_EXIT_CODES)]
    Undrain {
        /// Names of the nodes
        #[arg(value_name = "NODE", required = true)]
        nodes: Vec<String>,
        /// Config of the grid
        #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
        config: PathBuf,
    },
}

const RESERVE_EXIT_CODES: &str = "\
Exit codes: 0 reserved; 1 no grid is up; 3 the processors are \
not available, or no such cluster exists.";

const JOIN_EXIT_CODES: &str = "\
Exit codes: 0 joined, and ended by order; 1 no answer, or files \
cannot be written; 2 wrong options, or no valid form of a token; 5 the token is not valid, or \
another grid answers (nothing was sent to it); 6 the address is no join endpoint, or of another \
version.";

const STATUS_EXIT_CODES: &str = "\
Exit codes: 0 the state is printed (with --self: the node is \
registered); 1 no grid is up (with --self: the node does not run, or is not registered); 2 no such \
node exists.";

const DRAIN_EXIT_CODES: &str = "\
Exit codes: 0 done; 1 no grid is up, or another command returned \
the nodes to service; 2 no such node exists; 3 a job needs the nodes; 130 interrupted: the drain \
continues, `node undrain` cancels it.";

/// The subcommands of `config`.
#[derive(Subcommand, Clone, Debug)]
pub enum ConfigCommand {
    /// Write a commented example
    Init {
        /// File to write; `-` is standard output
        #[arg(value_name = "FILE", default_value = "grid.toml", value_hint = ValueHint::FilePath)]
        file: PathBuf,
        /// Write a node's config instead of a grid's
        #[arg(long)]
        node: bool,
        /// Write a file of jobs instead of a grid's config
        #[arg(long, conflicts_with = "node")]
        jobs: bool,
    },
    /// Check a config and report all errors
    Check {
        /// Config to check
        #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
        file: PathBuf,
        /// The config is a node's
        #[arg(long)]
        node: bool,
    },
    /// Print the effective config: defaults, file and environment combined
    Show {
        /// Config to show [default: defaults and environment alone]
        #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
        file: Option<PathBuf>,
        /// Print the origin of each value
        #[arg(long)]
        origin: bool,
        /// The config is a node's
        #[arg(long)]
        node: bool,
    },
}

/// The subcommands of `ca`.
#[derive(Subcommand, Clone, Debug)]
pub enum CaCommand {
    /// Create a certificate authority
    Init {
        /// Directory of the authority; ca.key in it must stay secret
        #[arg(long, value_name = "DIR", default_value = "ca", value_hint = ValueHint::DirPath)]
        dir: PathBuf,
        /// Name of the grid
        #[arg(long, value_name = "NAME", default_value = "local")]
        grid: String,
    },
    /// Print the SHA-256 fingerprint of the authority's certificate, which join tokens contain
    Fingerprint {
        /// Directory of the authority, or a file with its certificate
        #[arg(
            long,
            value_name = "DIR",
            default_value = "ca",
            conflicts_with = "config",
            value_hint = ValueHint::AnyPath,
        )]
        dir: PathBuf,
        /// Use the authority of the grid of this config
        #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
        config: Option<PathBuf>,
        /// Print the result as one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Issue a certificate for a node
    Issue {
        /// Name of the node
        #[arg(value_name = "NODE")]
        node: String,
        /// Cluster of the node
        #[arg(long, value_name = "NAME")]
        cluster: String,
        /// Role: node, client, site or head
        #[arg(
            long,
            value_name = "ROLE",
            default_value = "node",
            value_parser = ["node", "client", "site", "head"],
            hide_possible_values = true,
        )]
        role: String,
        /// Directory of the authority
        #[arg(long, value_name = "DIR", default_value = "ca", value_hint = ValueHint::DirPath)]
        dir: PathBuf,
        /// Directory for node.pem, node.key and ca.pem [default: NODE]
        #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
        out: Option<PathBuf>,
        /// Validity in days
        #[arg(
            long,
            value_name = "N",
            default_value_t = 30,
            value_parser = clap::value_parser!(u64).range(1..=3650),
        )]
        days: u64,
    },
}

/// The subcommands of `net`.
#[derive(Subcommand, Clone, Debug)]
pub enum NetCommand {
    /// Connect to the head and every node of a running grid by QUIC; print round trips, packet
    /// sizes, buffers, certificate dates
    #[command(
        after_help = "Exit codes: 0 all are reachable; 1 some are not; 2 the config is wrong; 5 a \
        certificate is refused or past its date. A certificate that ends within 14 days is \
        reported and is no failure."
    )]
    Check {
        /// Config of the grid
        #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
        config: PathBuf,
        /// Also let each node connect to every other
        #[arg(long)]
        all_pairs: bool,
        /// Print the result as one JSON object
        #[arg(long)]
        json: bool,
    },
}

/// The shape of a local grid: `3x2` is three clusters of two nodes, `3x2@4` has four threads per
/// node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// The number of clusters.
    pub clusters: u32,
    /// The number of nodes per cluster.
    pub nodes: u32,
    /// The number of compute threads per node.
    pub threads: u32,
}

impl Default for Shape {
    fn default() -> Self {
        Self { clusters: 3, nodes: 2, threads: 1 }
    }
}

/// The maximum number of nodes on one host: a larger number is assumed to be a typing error.
const NODES_MAX: u32 = 512;

impl std::str::FromStr for Shape {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (grid, threads) = text.split_once('@').unwrap_or((text, "1"));
        let number = |text: &str| text.parse().ok().filter(|n| (1..=NODES_MAX).contains(n));
        let shape = grid.split_once('x').and_then(|(clusters, nodes)| {
            let (clusters, nodes) = (number(clusters)?, number(nodes)?);
            let threads = number(threads)?;
            (clusters * nodes <= NODES_MAX).then_some(Self { clusters, nodes, threads })
        });
        shape.ok_or_else(|| {
            format!(
                "must be clusters x nodes such as 3x2, or 3x2@4 with 4 threads per node, with at \
                most {NODES_MAX} nodes"
            )
        })
    }
}

impl std::fmt::Display for Shape {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}x{}", self.clusters, self.nodes)?;
        if self.threads > 1 { write!(f, "@{}", self.threads) } else { Ok(()) }
    }
}

impl Shape {
    /// The names of the clusters.
    pub fn names(&self) -> impl Iterator<Item = String> + use<> {
        const NAMES: [&str; 12] =
            ["ams", "del", "bud", "lis", "osl", "prg", "rom", "sof", "tal", "vie", "war", "zag"];
        (0..self.clusters as usize)
            .map(|n| NAMES.get(n).map_or_else(|| format!("c{}", n + 1), |name| (*name).to_owned()))
    }
}

/// Parses a shape without threads, which the grid's shape has.
fn parse_start(text: &str) -> Result<Shape, String> {
    match text.parse::<Shape>() {
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

fn parse_moment(text: &str) -> Result<f64, String> {
    let seconds = text.strip_suffix('s').unwrap_or(text).trim_end().parse::<f64>().ok();
    seconds
        .filter(|s| s.is_finite() && *s >= 0.0)
        .ok_or_else(|| "must be seconds since the job's start, such as 42.5".to_owned())
}

/// The whole command. `jobs` are the subcommands of `run`, `needs` those of `job submit` and `job
/// plan`.
pub fn command(
    name: &'static str,
    version: &'static str,
    jobs: Vec<Command>,
    needs: Vec<Command>,
) -> Command {
    let about = "Divide-and-conquer programs over many clusters";
    let run = Command::new("run")
        .about("Run a job and print its result")
        .long_about(
            "Runs a job and prints its result. Without --config it starts a grid of its own: node \
            processes on this machine, in three clusters of two nodes, which end with it.",
        )
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommand_value_name("JOB")
        .subcommand_help_heading("Jobs")
        .disable_help_subcommand(true)
        .override_usage(format!("{name} run JOB [OPTIONS]"))
        .after_help(format!(
            "`{name} run JOB --help` lists the options of a job and of the run.\n\n{EXIT_CODES}"
        ))
        .subcommands(jobs);
    let command = Command::new(name)
        .version(version)
        .subcommand_required(true)
        .arg_required_else_help(true)
        .after_help(EXIT_CODES)
        .subcommand(run)
        .subcommand(job(name, needs));
    GlobalArgs::augment_args(OtherCommand::augment_subcommands(command))
        .about(about)
        .long_about(None)
}

/// The command `job` with its subcommands.
fn job(program: &'static str, needs: Vec<Command>) -> Command {
    let submit = |name: &'static str, about: &'static str| {
        FileArgs::augment_args(Command::new(name))
            .about(about)
            .arg_required_else_help(true)
            .args_conflicts_with_subcommands(true)
            .subcommand_negates_reqs(true)
            .subcommand_value_name("JOB")
            .subcommand_help_heading("Jobs")
            .disable_help_subcommand(true)
            .override_usage(format!(
                "{program} job {name} JOB --config FILE [OPTIONS]\n       \
                {program} job {name} --file JOBS --config FILE"
            ))
            .after_help(format!(
                "`{program} job {name} JOB --help` lists the options of a job and its \
                requirements: number of processors, clusters and files."
            ))
            .subcommands(needs.clone())
    };
    let job = Command::new("job")
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommand(submit(
            "submit",
            "Submit jobs to a running grid and print their numbers, without waiting for their ends",
        ))
        .subcommand(submit(
            "plan",
            "Plan where jobs would start now, or why they could not; nothing is submitted",
        ));
    JobCommand::augment_subcommands(job)
        .about("Jobs of a running grid: submit, inspect, grow, shrink and cancel them")
}

/// The subcommand of a job, with its own options and those of the run. If both have an option of
/// the same name, the run's is called `--run-NAME`.
pub fn job_command(
    name: &'static str,
    about: &'static str,
    augment: fn(Command) -> Command,
) -> Command {
    with_options(name, about, augment, "run", RunArgs::augment_args(Command::new("run")))
}

/// The subcommand of a job with its requirements. If both have an option of the same name, the
/// requirement's is called `--job-NAME`.
pub fn requirement_command(
    name: &'static str,
    about: &'static str,
    augment: fn(Command) -> Command,
) -> Command {
    with_options(name, about, augment, "job", NeedArgs::augment_args(Command::new("need")))
}

fn with_options(
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
    for arg in job.get_arguments().filter(given) {
        if let Some(long) = arg.get_long() {
            line += &format!(" --{long}");
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes() {
        let shape = |text: &str| text.parse::<Shape>().ok();
        assert_eq!(shape("3x2"), Some(Shape::default()));
        assert_eq!(shape("1x16@4"), Some(Shape { clusters: 1, nodes: 16, threads: 4 }));
        for bad in ["", "3", "x", "0x2", "3x0", "3x2@0", "3x2@", "-1x2", "3x2x1", "1000x1", "30x30"]
        {
            assert_eq!(shape(bad), None, "{bad}");
        }
        let names: Vec<_> = Shape { clusters: 14, ..Shape::default() }.names().collect();
        assert_eq!((names[0].as_str(), names[12].as_str()), ("ams", "c13"));
        for text in ["3x2", "2x1@8"] {
            assert_eq!(text.parse::<Shape>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn options_of_adaptation_override_the_config() {
        let run = |line: &[&str]| {
            let matches = job_command("job", "A job", |command| command)
                .try_get_matches_from([&["job"], line].concat())
                .map_err(|error| error.to_string())?;
            Ok::<_, String>(RunArgs::from_arg_matches(&matches).unwrap())
        };
        let line = [
            "--start",
            "1x2",
            "--mode",
            "monitor",
            "--min-nodes",
            "2",
            "--max-nodes",
            "4",
            "--poison",
            "0",
            "--keep-results",
            "0B",
            "--checkpoint-rate",
            "1MiB",
        ];
        let set = ["--set", "e_min=0.4", "--set", "weights.alpha = 2"];
        let args = run(&[&line[..], &set].concat()).unwrap();
        assert_eq!(args.start, Some(Shape { clusters: 1, nodes: 2, threads: 1 }));
        let over = args.over(Sources::default()).overrides;
        let keys: Vec<_> =
            over.iter().map(|o| (o.flag.as_str(), o.key.as_str(), o.value.as_str())).collect();
        let expected = [
            ("--set", "adaptation.e_min", "0.4"),
            ("--set", "adaptation.weights.alpha", "2"),
            ("--mode", "adaptation.mode", "monitor"),
            ("--min-nodes", "adaptation.min_nodes", "2"),
            ("--max-nodes", "adaptation.max_nodes", "4"),
            ("--poison", "work.poison", "0"),
            ("--keep-results", "work.results", "0B"),
            ("--checkpoint-rate", "work.checkpoints", "1MiB"),
        ];
        assert_eq!(keys, expected);
        for (bad, expected) in [
            (&["--start", "1x2@4"][..], "clusters x nodes such as 1x2"),
            (&["--start", "1x2", "--config", "a"], "cannot be used with"),
            (&["--mode", "adaptve"], "'adaptive'"),
            (&["--set", "e_min"], "NAME=VALUE"),
            (&["--set", "period_s=3"], "--period"),
            (&["--min-nodes", "few"], "--min-nodes"),
        ] {
            let error = run(bad).unwrap_err();
            assert!(error.contains(expected), "{bad:?}: {error}");
        }
        assert_eq!((parse_moment("42.5"), parse_moment("7 s")), (Ok(42.5), Ok(7.0)));
        assert!(
            parse_moment("-1").is_err()
                && parse_moment("inf").is_err()
                && parse_moment("x").is_err()
        );
    }

    #[derive(Args)]
    struct Job {
        /// Random seed
        #[arg(long, default_value_t = 7)]
        seed: u64,
    }

    #[test]
    fn an_option_of_a_job_renames_the_runs_option_of_the_same_name() {
        let command = || job_command("job", "A job", Job::augment_args);
        command().debug_assert();
        let matches = command()
            .try_get_matches_from(["job", "--seed", "3", "--run-seed", "4", "--timeout", "2m"])
            .unwrap();
        assert_eq!(Job::from_arg_matches(&matches).unwrap().seed, 3);
        let run = RunArgs::from_arg_matches(&matches).unwrap();
        assert_eq!((run.seed, run.timeout), (Some(4), Some(Duration::from_secs(120))));
        assert!(!run.json && !run.sequential);
        let plain = job_command("job", "A job", |command| command);
        let matches = plain.try_get_matches_from(["job", "--seed", "4"]).unwrap();
        assert_eq!(RunArgs::from_arg_matches(&matches).unwrap().seed, Some(4));
    }

    #[test]
    fn the_command_is_valid() {
        let jobs = vec![job_command("job", "A job", Job::augment_args)];
        let needs = vec![requirement_command("job", "A job", Job::augment_args)];
        command("springtide", "1.2.3", jobs, needs).debug_assert();
    }
}
