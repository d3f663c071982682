//! The commands: one file a command, with its options, its call of an operation, and its output.
//!
//! This file knows all of them; they do not know each other.

mod audit;
mod backup;
mod ca;
mod completions;
mod config;
mod down;
mod files;
mod job;
mod man;
mod names;
mod net;
mod node;
mod release;
mod replay;
mod report;
mod reserve;
mod run;
mod runner;
mod sim;
mod site;
mod slots;
mod status;
mod token;
mod top;
mod trace;
mod up;
mod version;
#[cfg(target_os = "linux")]
mod wan;
mod why;
mod workflow;

use clap::{ArgMatches, Args, Command, FromArgMatches, Subcommand};
use springtide_cli::exit::{EXIT_CODES, Failed};

use self::audit::AuditArgs;
use self::backup::BackupArgs;
use self::ca::CaCommand;
use self::completions::CompletionsArgs;
use self::config::ConfigCommand;
use self::down::DownArgs;
use self::files::FilesCommand;
use self::man::ManArgs;
use self::names::NamesArgs;
use self::net::NetCommand;
use self::node::NodeCommand;
use self::release::ReleaseArgs;
use self::replay::ReplayArgs;
use self::report::ReportArgs;
use self::reserve::ReserveArgs;
use self::runner::RunnerCommand;
use self::sim::SimCommand;
use self::site::SiteCommand;
use self::slots::SlotsCommand;
use self::status::StatusArgs;
use self::token::TokenCommand;
use self::top::TopArgs;
use self::trace::TraceArgs;
use self::up::{DevArgs, UpArgs};
use self::version::VersionArgs;
#[cfg(target_os = "linux")]
use self::wan::WanCommand;
use self::why::WhyArgs;
use self::workflow::WorkflowCommand;
use springtide_operations::options::{GlobalArgs, global};
use springtide_operations::program::{JobDefinition, Program};

/// All commands except `run` and `job`.
#[derive(Subcommand, Clone, Debug)]
pub enum OtherCommand {
    /// Start all nodes of a grid and keep running; `run --config FILE` uses it
    #[command(after_help = up::EXIT_CODES)]
    Up(UpArgs),
    /// End a grid and the nodes that it started
    #[command(after_help = down::EXIT_CODES)]
    Down(DownArgs),
    /// Show whether a grid is up, its head, clusters and jobs
    #[command(after_help = status::EXIT_CODES)]
    Status(StatusArgs),
    /// Start a local grid for experiments, and keep running
    Dev(DevArgs),
    /// Nodes: run one, join a grid, list them, drain them and return them to service
    #[command(subcommand, arg_required_else_help = true)]
    Node(NodeCommand),
    /// Join tokens, which admit nodes to a grid: create, list and revoke them
    #[command(subcommand, arg_required_else_help = true)]
    Token(TokenCommand),
    /// Input files of jobs: put, list, fetch and remove them on a running grid
    #[command(subcommand, arg_required_else_help = true)]
    Files(FilesCommand),
    /// Slots that a running grid offers: processors for an interval, at a price
    #[command(subcommand, arg_required_else_help = true)]
    Slots(SlotsCommand),
    /// Reserve processors of a running grid
    #[command(after_help = reserve::EXIT_CODES)]
    Reserve(ReserveArgs),
    /// End a reservation early
    Release(ReleaseArgs),
    /// Run a cluster's site as a process of its own
    #[command(subcommand, arg_required_else_help = true)]
    Site(SiteCommand),
    /// Explain why a run's nodes were added, removed or kept, in order of time
    Why(WhyArgs),
    /// Watch a running grid in the terminal, with the dashboard's numbers
    Top(TopArgs),
    /// Write a page for a browser about one run, or about several runs side by side
    Report(ReportArgs),
    /// Write a run's tasks, steals and decisions as a timeline for ui.perfetto.dev
    Trace(TraceArgs),
    /// Repeat a run's decisions from its log, and fail if they differ
    Replay(ReplayArgs),
    /// Simulate grids: run scenarios, faults and forecasts in virtual time
    #[command(subcommand, arg_required_else_help = true)]
    Sim(SimCommand),
    /// Workflows of many tasks: inspect their files, plan them on slots, and run them
    #[command(subcommand, arg_required_else_help = true)]
    Workflow(WorkflowCommand),
    /// Tasks of programs in other languages: serve a client, check a runner
    #[command(subcommand, arg_required_else_help = true)]
    Runner(RunnerCommand),
    /// Emulate wide-area networks on this host, for any programs
    #[cfg(target_os = "linux")]
    #[command(subcommand, arg_required_else_help = true)]
    Wan(WanCommand),
    /// Write, check and show configuration
    #[command(subcommand, arg_required_else_help = true)]
    Config(ConfigCommand),
    /// List the commands that a grid received: who gave them, and their outcomes
    Audit(AuditArgs),
    /// Write the head's state into one file, also while the grid runs
    Backup(BackupArgs),
    /// Restore the head's state from a backup, before `up`
    #[command(after_help = backup::EXIT_CODES)]
    Restore(BackupArgs),
    /// The certificate authority of a grid
    #[command(subcommand, arg_required_else_help = true)]
    Ca(CaCommand),
    /// Check the network between this host and a grid
    #[command(subcommand, arg_required_else_help = true)]
    Net(NetCommand),
    /// Print names that the completions of a shell ask for
    #[command(hide = true)]
    Names(NamesArgs),
    /// Print completions for a shell, also of the names of nodes, jobs and networks
    Completions(CompletionsArgs),
    /// Write manual pages, one for each command
    Man(ManArgs),
    /// Print the version
    Version(VersionArgs),
}

/// The definition of a program's command line.
pub fn command_line(program: &Program) -> Command {
    let all = program.jobs.iter();
    let command = |job: &JobDefinition| run::job_command(job.name, job.about, job.augment);
    let need = |job: &JobDefinition| job::requirement_command(job.name, job.about, job.augment);
    let (jobs, needs) = (all.clone().map(command).collect(), all.clone().map(need).collect());
    let whole = Command::new(program.name)
        .version(program.version)
        .subcommand_required(true)
        .arg_required_else_help(true)
        .after_help(EXIT_CODES)
        .subcommand(run::command(program.name, jobs))
        .subcommand(job::command(program.name, needs));
    GlobalArgs::augment_args(OtherCommand::augment_subcommands(whole))
        .about("Divide-and-conquer programs over many clusters")
        .long_about(None)
        .subcommands(all.filter(|job| job.is_command).map(command))
}

/// Executes a command line of a program.
///
/// # Errors
/// As the command.
pub fn execute(program: Program, matches: &ArgMatches) -> Result<(), Failed> {
    match matches.subcommand() {
        Some(("run", matches)) => match matches.subcommand() {
            Some((name, matches)) => return run::execute(program, name, matches, false),
            None => return Err(Failed::usage("no job is given: see `run --help`")),
        },
        Some(("job", matches)) => return job::execute(&program, matches, &global(matches)),
        Some((name, matches))
            if program.jobs.iter().any(|job| job.is_command && job.name == name) =>
        {
            return run::execute(program, name, matches, true);
        }
        _ => {}
    }
    let global = &global(matches);
    let command = OtherCommand::from_arg_matches(matches)
        .map_err(|error| Failed::usage(error.to_string().trim_end()))?;
    match command {
        OtherCommand::Audit(args) => audit::execute(&args, global),
        OtherCommand::Backup(args) => backup::execute(&args, program.version, global),
        OtherCommand::Restore(args) => backup::execute_restore(&args, global),
        OtherCommand::Up(args) => up::execute(&args, program.about(), global),
        OtherCommand::Down(args) => down::execute(&args, global),
        OtherCommand::Status(args) => status::execute(&args, global),
        OtherCommand::Dev(args) => up::execute_dev(args, program.about(), global),
        OtherCommand::Node(command) => node::execute(command, program, global),
        OtherCommand::Token(command) => token::execute(command, global),
        OtherCommand::Files(command) => files::execute(command, global),
        OtherCommand::Slots(command) => slots::execute(&command, global),
        OtherCommand::Reserve(args) => reserve::execute(&args, global),
        OtherCommand::Release(args) => release::execute(&args, global),
        OtherCommand::Site(command) => site::execute(&command, global),
        OtherCommand::Why(args) => why::execute(&args),
        OtherCommand::Top(args) => top::execute(args),
        OtherCommand::Report(args) => report::execute(args),
        OtherCommand::Trace(args) => trace::execute(args),
        OtherCommand::Replay(args) => replay::execute(&args),
        OtherCommand::Sim(command) => sim::execute(command, program.version, global),
        OtherCommand::Runner(command) => runner::execute(command, program, global),
        OtherCommand::Workflow(command) => workflow::execute(&command, &program, global),
        #[cfg(target_os = "linux")]
        OtherCommand::Wan(command) => wan::execute(command, program, global),
        OtherCommand::Config(command) => config::execute(&command),
        OtherCommand::Ca(command) => ca::execute(&command),
        OtherCommand::Net(command) => net::execute(&command, global),
        OtherCommand::Completions(args) => {
            completions::execute(&args, program.name, command_line(&program))
        }
        OtherCommand::Names(args) => names::execute(&args),
        OtherCommand::Man(args) => man::execute(&args, &command_line(&program)),
        OtherCommand::Version(args) => version::execute(&args, &program),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use springtide_operations::program::EncodedJob;

    #[derive(Args)]
    struct SeedOption {
        /// Random seed
        #[arg(long, default_value_t = 7)]
        seed: u64,
    }

    #[test]
    fn the_command_is_valid() {
        let job = |name, is_command| JobDefinition {
            name,
            about: "A job",
            augment: SeedOption::augment_args,
            encode: |_| Ok(EncodedJob::default()),
            is_fixed: false,
            is_command,
        };
        let program = Program {
            name: "springtide",
            version: "1.2.3",
            registry: springtide_runtime::work::Registry::new(),
            jobs: vec![job("job-a", false), job("job-b", true)],
            actors: None,
        };
        command_line(&program).debug_assert();
    }
}
