//! `replay`: repeats a run's decisions from its log.

use std::path::PathBuf;

use clap::{Args, ValueHint};
use springtide_cli::exit::Failed;
use springtide_dashboard::why;

/// The options of the command `replay`.
#[derive(Args, Clone, Debug)]
pub struct ReplayArgs {
    /// Directory of the run: the --out of `run`
    #[arg(value_name = "RUN", value_hint = ValueHint::DirPath)]
    run: PathBuf,
}

/// Executes `replay`.
///
/// # Errors
/// As [`why::replay`].
pub fn execute(args: &ReplayArgs) -> Result<(), Failed> {
    why::replay(&args.run)
}
