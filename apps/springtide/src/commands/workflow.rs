//! `workflow`: workflows on slots of sites.

use clap::Subcommand;
use springtide_cli::exit::Failed;

use crate::operations::process::start_log;
use crate::options::GlobalArgs;
use crate::program::Program;
use crate::workflow::{check, formats, plan, run};

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
    /// Run a workflow on a grid that is up: on slots that are reserved for it, or just in time
    #[command(after_help = run::EXIT_CODES)]
    Run(Box<run::RunArgs>),
}

/// Executes a subcommand of `workflow`.
///
/// # Errors
/// Files are wrong, or there is no plan.
pub fn execute(
    command: &WorkflowCommand,
    program: &Program,
    global: &GlobalArgs,
) -> Result<(), Failed> {
    start_log(global);
    match command {
        WorkflowCommand::Check(args) => check::check(args),
        WorkflowCommand::Formats(args) => formats::formats(args),
        WorkflowCommand::Plan(args) => plan::plan(args, global.quiet),
        WorkflowCommand::Run(args) => {
            let fingerprint = program.registry.fingerprint();
            let encode = |name: &str, options: &[String]| {
                let (job, encoded) = program.encode(name, options)?;
                if !encoded.uploads.is_empty() {
                    return Err(Failed::usage(format!(
                        "{name}: a task's files are those of the workflow, and not --input"
                    )));
                }
                Ok((job.name, encoded.body))
            };
            run::run(args, &run::Programs { fingerprint, encode: &encode }, global)
        }
    }
}
