//! `status`: whether a grid is up.

use std::path::PathBuf;

use clap::{Args, ValueHint};
use springtide_cli::exit::Failed;
use springtide_cli::print::print;

use crate::output::life::{life_object, life_text};
use springtide_operations::life::status;
use springtide_operations::locate::default_config;
use springtide_operations::options::GlobalArgs;
use springtide_operations::process::{on_arbiter, start_log};

/// The exit codes in the help.
pub const EXIT_CODES: &str = "\
Exit codes: 0 the grid is up; 1 no grid runs, it is still starting, or its head does not answer; \
3 the grid is up without a part of its nodes.";

/// The options of the command `status`.
#[derive(Args, Clone, Debug)]
pub struct StatusArgs {
    /// Config of the grid [default: the nearest grid.toml]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath,
          default_value_os_t = default_config(), hide_default_value = true)]
    config: PathBuf,
    /// Print the result as one JSON object
    #[arg(long)]
    json: bool,
}

/// Executes `status`.
///
/// # Errors
/// As [`status`]; or the grid is not up.
pub fn execute(args: &StatusArgs, global: &GlobalArgs) -> Result<(), Failed> {
    start_log(global);
    let life = on_arbiter(status(&args.config))?;
    print(&if args.json { life_object(&life) } else { life_text(&life) })?;
    // The text has said why.
    let exit = life.state.exit();
    if exit == springtide_cli::exit::Exit::Ok { Ok(()) } else { Err(Failed::new(exit, "")) }
}
