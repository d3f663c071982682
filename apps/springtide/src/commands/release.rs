//! `release`: ends a reservation early.

use std::path::PathBuf;

use clap::{Args, ValueHint};
use springtide_actors::reservation::ReservationId;
use springtide_cli::exit::Failed;

use springtide_operations::locate::default_config;
use springtide_operations::options::GlobalArgs;
use springtide_operations::process::{on_arbiter, start_log};
use springtide_operations::slots::release;

/// The options of `release`.
#[derive(Args, Clone, Debug)]
pub struct ReleaseArgs {
    /// Number of the reservation
    #[arg(value_name = "N")]
    pub reservation: u64,
    /// Config of the running grid [default: the nearest grid.toml]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath,
          default_value_os_t = default_config(), hide_default_value = true)]
    pub config: PathBuf,
}

/// Executes `release`.
///
/// # Errors
/// As [`release`].
pub fn execute(args: &ReleaseArgs, global: &GlobalArgs) -> Result<(), Failed> {
    start_log(global);
    on_arbiter(release(&args.config, ReservationId(args.reservation)))
}
