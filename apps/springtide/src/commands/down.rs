//! `down`: ends a grid.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueHint};
use springtide_cli::exit::Failed;
use springtide_cli::options::time;

use springtide_operations::life::{down, ended_line};
use springtide_operations::locate::default_config;
use springtide_operations::options::GlobalArgs;
use springtide_operations::process::{on_arbiter, start_log};

/// The exit codes in the help.
pub const EXIT_CODES: &str = "\
Exit codes: 0 no grid runs any more; 1 the grid's head runs on another host; 4 the head has not \
ended within --timeout.";

/// The options of the command `down`.
#[derive(Args, Clone, Debug)]
pub struct DownArgs {
    /// Config of the grid [default: the nearest grid.toml]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath,
          default_value_os_t = default_config(), hide_default_value = true)]
    config: PathBuf,
    /// Maximum time to wait for the end; with --force always 10 s
    #[arg(long, value_name = "TIME", default_value = "1m", value_parser = time)]
    timeout: Duration,
    /// End nodes at once, without time to end in order
    #[arg(long)]
    force: bool,
}

/// Executes `down`.
///
/// # Errors
/// As [`down`].
pub fn execute(args: &DownArgs, global: &GlobalArgs) -> Result<(), Failed> {
    start_log(global);
    let was_up = on_arbiter(down(&args.config, args.timeout, args.force, global))?;
    if !global.quiet {
        eprintln!("{}", ended_line(&args.config, was_up));
    }
    Ok(())
}
