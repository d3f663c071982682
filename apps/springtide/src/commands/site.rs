//! `site`: a cluster's site as a process of its own.

use std::path::PathBuf;

use clap::{Subcommand, ValueHint};
use springtide_cli::exit::Failed;
use springtide_runtime::config::Format;

use springtide_operations::options::GlobalArgs;
use springtide_operations::process::{log_to_stderr, on_arbiter};
use springtide_operations::{site, site_files};

/// The subcommands of `site`.
#[derive(Subcommand, Clone, Debug)]
pub enum SiteCommand {
    /// Run a cluster's site until it is ended: it starts the cluster's nodes and serves its files
    Run {
        /// Config of the site, as written by `up`: .springtide/GRID/site/CLUSTER/site.toml next to
        /// the grid's config
        #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
        config: PathBuf,
    },
}

/// Executes a subcommand of `site`.
///
/// # Errors
/// As [`site_files::config`] and [`site::run`].
pub fn execute(command: &SiteCommand, global: &GlobalArgs) -> Result<(), Failed> {
    let SiteCommand::Run { config } = command;
    let (site, grid) = site_files::config(config)?;
    let json = site.log.format == Format::Json;
    log_to_stderr(global.log_level.unwrap_or(site.log.level), json);
    on_arbiter(site::run(config, &site, &grid, global))
}
