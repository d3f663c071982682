//! `net`: the network between this host and a grid.

use std::path::PathBuf;

use clap::{Subcommand, ValueHint};
use springtide_cli::exit::Failed;
use springtide_cli::print::print;

use crate::output::paths::{object, table};
use springtide_operations::locate::default_config;
use springtide_operations::netcheck::check;
use springtide_operations::options::GlobalArgs;
use springtide_operations::process::{on_arbiter, start_log};

/// The subcommands of `net`.
#[derive(Subcommand, Clone, Debug)]
pub enum NetCommand {
    /// Connect to the head and every node of a running grid by QUIC; print round trips, packet
    /// sizes, buffers, certificate dates
    #[command(
        after_help = "Exit codes: 0 all are reachable; 1 some are not; 2 the config is wrong; 5 a \
        certificate is refused or past its date. A certificate that ends within 14 days is \
        reported and is no failure."
    )]
    Check {
        /// Config of the grid [default: the nearest grid.toml]
        #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath,
              default_value_os_t = default_config(), hide_default_value = true)]
        config: PathBuf,
        /// Also let each node connect to every other
        #[arg(long)]
        all_pairs: bool,
        /// Print the result as one JSON object
        #[arg(long)]
        json: bool,
    },
}

/// Executes a subcommand of `net`.
///
/// # Errors
/// The head or a node is unreachable, or a certificate is refused or outside its dates.
pub fn execute(command: &NetCommand, global: &GlobalArgs) -> Result<(), Failed> {
    start_log(global);
    let NetCommand::Check { config, all_pairs, json } = command;
    on_arbiter(async {
        let found = check(config, *all_pairs).await?;
        print(&if *json { format!("{}\n", object(&found)) } else { table(&found) })?;
        found.check_whole()
    })
}
