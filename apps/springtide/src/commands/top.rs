//! `top`: the dashboard of a running grid in the terminal.

use std::path::PathBuf;

use clap::{Args, ValueHint};
use springtide_cli::exit::Failed;
use springtide_dashboard::UrlFile;
use springtide_dashboard::top::top;

use springtide_operations::attach::grid_config;
use springtide_operations::grid_files::dir_of;
use springtide_operations::locate::default_config;

/// The options of the command `top`.
#[derive(Args, Clone, Debug)]
pub struct TopArgs {
    /// URL of the dashboard
    #[arg(value_name = "URL", value_hint = ValueHint::Url)]
    url: Option<String>,
    /// Config of the running grid [default: the nearest grid.toml]
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
    let (url, own_token_file) = match args.url {
        Some(url) => (url, None),
        None => {
            let file = args.config.unwrap_or_else(default_config);
            let config = grid_config(&file)?;
            (UrlFile::read(&dir_of(&file, &config))?, config.dashboard.token_file)
        }
    };
    top(&url, args.token_file.or(own_token_file).as_deref(), args.once)
}
