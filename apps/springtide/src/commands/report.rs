//! `report`: a page about runs, for a browser without a server.

use std::path::PathBuf;

use clap::{Args, ValueHint};
use springtide_cli::exit::Failed;
use springtide_dashboard::report::report;

/// The options of the command `report`.
#[derive(Args, Clone, Debug)]
pub struct ReportArgs {
    /// Directories of the runs: the --out of `run`, or the directory of a workflow's plan
    #[arg(value_name = "RUN", value_hint = ValueHint::DirPath, required = true)]
    runs: Vec<PathBuf>,
    /// Compare the runs; the default for several runs
    #[arg(long)]
    compare: bool,
    /// File to write [default: report.html in the run's directory; for several runs
    /// compared.html here]
    #[arg(short, long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    out: Option<PathBuf>,
}

/// Executes `report`.
///
/// # Errors
/// As [`report`].
pub fn execute(args: ReportArgs) -> Result<(), Failed> {
    report(&args.runs, args.compare, args.out)
}
