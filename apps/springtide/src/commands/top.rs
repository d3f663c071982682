//! `top`: the dashboard of a running grid in the terminal.

use std::path::PathBuf;

use clap::{Args, ValueHint};
use springtide_cli::exit::Failed;
use springtide_dashboard::UrlFile;
use springtide_dashboard::top::top;

use crate::operations::attach::grid_config;
use crate::operations::grid_files::dir_of;

/// The options of the command `top`.
#[derive(Args, Clone, Debug)]
pub struct TopArgs {
    /// URL of the dashboard
    #[arg(value_name = "URL", value_hint = ValueHint::Url, required_unless_present = "config")]
    url: Option<String>,
    /// Config of the running grid
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, conflicts_with = "url")]
    config: Option<PathBuf>,
    /// File with the dashboard's token [default: `dashboard.token_file` of the config]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    token_file: Option<PathBuf>,
    /// Print one frame as text; the default if the output is not a terminal
    #[arg(long)]
    once: bool,
}

/// Executes `top`.
///
/// # Errors
/// The config is wrong, no dashboard runs, or as [`top`].
pub fn execute(args: TopArgs) -> Result<(), Failed> {
    let (url, own_token_file) = match (args.url, &args.config) {
        (None, Some(file)) => {
            let config = grid_config(file)?;
            (Some(UrlFile::read(&dir_of(file, &config))?), config.dashboard.token_file)
        }
        (url, _) => (url, None),
    };
    let url = url.ok_or_else(|| {
        Failed::usage(
            "no dashboard is given: add --config grid.toml or its URL \
            http://HOST:PORT/",
        )
    })?;
    top(&url, args.token_file.or(own_token_file).as_deref(), args.once)
}
