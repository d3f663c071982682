//! `runner`: tasks of programs in other languages.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::{Args, Subcommand, ValueHint};
use springtide_cli::exit::Failed;
use springtide_cli::options::time;
use springtide_cli::print::print;
use springtide_runtime::command::EnvironmentVariable;
use springtide_runtime::runner::{RunnerSpec, check_runner};

use springtide_operations::options::GlobalArgs;
use springtide_operations::process::{on_arbiter, start_log};
use springtide_operations::program::Program;
use springtide_operations::runner::{BridgeRequest, bridge};
use springtide_operations::shape::GridShape;

/// The subcommands of `runner`.
#[derive(Subcommand, Clone, Debug)]
pub enum RunnerCommand {
    /// Run tasks that a client sends on standard input, and write their ends to standard output.
    /// Packages such as that for Python start it
    Client(ClientArgs),
    /// Hold a runner against the protocol
    Check(CheckArgs),
}

/// The runner's program and its surroundings.
#[derive(Args, Clone, Debug)]
pub struct RunnerArgs {
    /// Program of a runner and its arguments, after two hyphens
    #[arg(value_name = "PROGRAM", last = true, required = true)]
    command: Vec<String>,
    /// Variable of the runners' environment; without a value, that of this process. Repeatable
    #[arg(long = "env", value_name = "NAME[=VALUE]", value_parser = parse_variable)]
    environment: Vec<EnvironmentVariable>,
    /// Directory in which runners start, on hosts that have it
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    chdir: Option<PathBuf>,
    /// Maximum time from the start of a runner until it is ready
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = time)]
    start_timeout: Duration,
}

/// The options of `runner client`.
#[derive(Args, Clone, Debug)]
pub struct ClientArgs {
    /// Run on the running grid of this config [default: a grid of its own]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    config: Option<PathBuf>,
    /// Shape of the grid to start: clusters x nodes, and threads per node
    #[arg(long, value_name = "CxN[@T]", default_value = "3x2", conflicts_with = "config")]
    clusters: GridShape,
    /// Least number of processors of the job on a running grid
    #[arg(long, value_name = "N", default_value = "1", requires = "config",
        value_parser = clap::value_parser!(u32).range(1..))]
    min: u32,
    /// Greatest number of processors of the job on a running grid [default: all]
    #[arg(long, value_name = "N", requires = "config",
        value_parser = clap::value_parser!(u32).range(1..))]
    max: Option<u32>,
    #[command(flatten)]
    runner: RunnerArgs,
}

/// The options of `runner check`.
#[derive(Args, Clone, Debug)]
pub struct CheckArgs {
    #[command(flatten)]
    runner: RunnerArgs,
}

fn parse_variable(text: &str) -> Result<EnvironmentVariable, String> {
    let (name, value) = match text.split_once('=') {
        Some((name, value)) => (name, value.to_owned()),
        // The arguments of a process are visible to all users of its host; its environment is not.
        None => match std::env::var(text) {
            Ok(value) => (text, value),
            Err(error) => return Err(format!("the value of {text:?} is not known: {error}")),
        },
    };
    if name.is_empty() || text.contains('\0') {
        return Err("must be NAME=VALUE such as LANG=C, or the NAME of a variable".to_owned());
    }
    Ok(EnvironmentVariable { name: name.to_owned(), value })
}

impl RunnerArgs {
    fn spec(self, is_malleable: bool) -> Result<RunnerSpec, Failed> {
        if let Some(bad) = self.command.iter().find(|word| word.contains('\0')) {
            return Err(Failed::usage(format!("{bad:?} contains a zero byte")));
        }
        Ok(RunnerSpec {
            command: self.command,
            environment: self.environment,
            directory: self.chdir,
            start_timeout: self.start_timeout,
            is_malleable,
        })
    }
}

/// Executes a subcommand of `runner`.
///
/// # Errors
/// The grid or the job fails, or a runner does not conform.
pub fn execute(
    command: RunnerCommand,
    program: Program,
    global: &GlobalArgs,
) -> Result<(), Failed> {
    start_log(global);
    match command {
        RunnerCommand::Client(args) => {
            let request = BridgeRequest {
                shape: args.clusters,
                spec: args.runner.spec(args.config.is_some())?,
                config: args.config,
                processors: (args.min, args.max),
                registry: Arc::new(program.registry),
                log_level: global.log_level,
            };
            on_arbiter(bridge(request))
        }
        RunnerCommand::Check(args) => {
            let checks = check_runner(&args.runner.spec(false)?);
            for check in &checks {
                let end = check.failure.as_ref().map_or("ok".to_owned(), |it| format!("no: {it}"));
                print(&format!("{}: {end}\n", check.name))?;
            }
            let failed = checks.iter().filter(|check| check.failure.is_some()).count();
            if failed == 0 {
                return Ok(());
            }
            let all = checks.len();
            Err(Failed::failure(format!(
                "the runner fails {failed} of {all} parts of the protocol"
            )))
        }
    }
}
