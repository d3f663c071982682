//! `up` and `dev`: a grid that keeps running.

use std::path::PathBuf;

use clap::{Args, ValueHint};
use springtide_cli::exit::Failed;

use crate::operations::process::{on_arbiter, start_log};
use crate::operations::up;
use crate::options::{GlobalArgs, GridShape};

/// The options of the command `up`.
#[derive(Args, Clone, Debug)]
pub struct UpArgs {
    /// Config of the grid
    #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
    config: PathBuf,
}

/// The options of the command `dev`.
#[derive(Args, Clone, Debug)]
pub struct DevArgs {
    /// Shape: clusters x nodes, and threads per node
    #[arg(long, value_name = "CxN[@T]", default_value = "3x2")]
    clusters: GridShape,
    /// Directory for its config, certificates and logs
    #[arg(
        long,
        value_name = "DIR",
        default_value = ".springtide-dev",
        value_hint = ValueHint::DirPath,
    )]
    dir: PathBuf,
}

/// Executes `up`.
///
/// # Errors
/// As [`up::up`].
pub fn execute(args: &UpArgs, version: &'static str, global: &GlobalArgs) -> Result<(), Failed> {
    start_log(global);
    on_arbiter(up::up(&args.config, version, global))
}

/// Executes `dev`.
///
/// # Errors
/// As [`up::dev`].
pub fn execute_dev(
    args: DevArgs,
    version: &'static str,
    global: &GlobalArgs,
) -> Result<(), Failed> {
    start_log(global);
    on_arbiter(up::dev(args.clusters, args.dir, version, global))
}
