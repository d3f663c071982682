//! `trace`: a run's timeline for ui.perfetto.dev.

use std::path::PathBuf;

use clap::{Args, ValueHint};
use springtide_cli::exit::Failed;
use springtide_dashboard::trace::trace;

/// The options of the command `trace`.
#[derive(Args, Clone, Debug)]
pub struct TraceArgs {
    /// Directory of the run: the --out of `run`
    #[arg(value_name = "RUN", value_hint = ValueHint::DirPath)]
    run: PathBuf,
    /// File to write [default: trace.json in the run's directory]
    #[arg(short, long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    out: Option<PathBuf>,
}

/// Executes `trace`.
///
/// # Errors
/// As [`trace`].
pub fn execute(args: TraceArgs) -> Result<(), Failed> {
    trace(&args.run, args.out)
}
