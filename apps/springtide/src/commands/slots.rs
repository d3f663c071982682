//! `slots`: the slots of a running grid.

use clap::Subcommand;
use springtide_cli::exit::Failed;
use springtide_cli::print::print;

use crate::output::slots::text;
use springtide_cli::print::print_early_failure;
use springtide_operations::attach::wait_for_grid;
use springtide_operations::options::{GlobalArgs, GridArgs};
use springtide_operations::process::{on_arbiter, start_log};
use springtide_operations::slots::{list, offers_json};

/// Subcommands of the command `slots`.
#[derive(Subcommand, Clone, Debug)]
pub enum SlotsCommand {
    /// List slots and reservations; with --json in the format that `workflow plan --slots` reads
    List(GridArgs),
}

/// Executes a subcommand of `slots`.
///
/// # Errors
/// No grid is up.
pub fn execute(command: &SlotsCommand, global: &GlobalArgs) -> Result<(), Failed> {
    start_log(global);
    let SlotsCommand::List(args) = command;
    on_arbiter(async {
        let listed = async {
            wait_for_grid(&args.config, args.wait_grid).await?;
            list(&args.config).await
        };
        match listed.await {
            Ok(found) if args.json => print(&offers_json(&found)?),
            Ok(found) => print(&text(&found)),
            Err(failed) => print_early_failure(args.json, None, failed),
        }
    })
}
