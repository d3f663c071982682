//! `workflow`: workflows on slots of sites, and runs of them.

use clap::Subcommand;
use springtide_cli::exit::Failed;

use springtide_operations::options::GlobalArgs;
use springtide_operations::process::start_log;
use springtide_operations::program::Program;
use springtide_workflow_engine::run::{control, history};
use springtide_workflow_engine::{check, formats, plan, run};

/// The subcommands of `workflow`.
#[derive(Subcommand, Clone, Debug)]
pub enum WorkflowCommand {
    /// Read workflows of any format, and report their contents
    Check(check::CheckArgs),
    /// List the fields of each format with their use, and the languages that are refused
    Formats(formats::FormatsArgs),
    /// Choose slots that sites offer for a workflow: the plans that none betters in both time and
    /// cost, and one of them
    #[command(after_help = plan::EXIT_CODES)]
    Plan(Box<plan::PlanArgs>),
    /// Run a workflow on a grid that is up, on reserved slots or best effort. The same command
    /// continues a run that was interrupted or failed
    #[command(after_help = run::EXIT_CODES)]
    Run(Box<run::RunArgs>),
    /// Run a workflow like `run`, by a process that no terminal holds
    #[command(after_help = run::EXIT_CODES)]
    Submit(Box<control::SubmitArgs>),
    /// Show the state of a run
    Status(control::StatusArgs),
    /// Follow a run until it ends
    Watch(control::StatusArgs),
    /// Print the output of a task
    Logs(control::LogsArgs),
    /// Write a page about a run: tasks by node, critical path, waits, failures and resources; or
    /// what ran, as a WfFormat instance or an RO-Crate
    Report(history::ReportArgs),
    /// End the process of a run; `run` or `submit` continues it later
    Cancel(control::StatusArgs),
    /// Remove a run: its files in the clusters, and its directory
    Remove(control::StatusArgs),
}

/// Executes a subcommand of `workflow`.
///
/// # Errors
/// Files are wrong, there is no plan, or a run fails.
pub fn execute(
    command: &WorkflowCommand,
    program: &Program,
    global: &GlobalArgs,
) -> Result<(), Failed> {
    start_log(global);
    let encode = |name: &str, options: &[String]| {
        let (job, encoded) = program.encode(name, options)?;
        if !encoded.uploads.is_empty() {
            return Err(Failed::usage(format!(
                "{name}: a task's files are those of the workflow, and not --input"
            )));
        }
        Ok((job.name, encoded.body))
    };
    let fingerprint = program.registry.fingerprint();
    let programs = run::Programs { fingerprint, encode: &encode };
    match command {
        WorkflowCommand::Check(args) => check::check(args),
        WorkflowCommand::Formats(args) => formats::formats(args),
        WorkflowCommand::Plan(args) => plan::plan(args, global.quiet),
        WorkflowCommand::Run(args) => run::run(args, &programs, global),
        WorkflowCommand::Submit(args) => control::submit(args, &programs),
        WorkflowCommand::Status(args) => control::status(args),
        WorkflowCommand::Watch(args) => control::watch(args),
        WorkflowCommand::Logs(args) => control::logs(args),
        WorkflowCommand::Report(args) => history::report(args),
        WorkflowCommand::Cancel(args) => control::cancel(args),
        WorkflowCommand::Remove(args) => control::remove(args),
    }
}
