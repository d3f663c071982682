//! `names`: what the completions of a shell ask for.

use std::path::PathBuf;

use clap::{Args, ValueHint};
use springtide_cli::exit::Failed;
use springtide_cli::print::print;

use springtide_operations::locate::default_config;
use springtide_operations::names::{NameKind, names};
use springtide_operations::process::on_arbiter;

/// The options of the command `names`.
#[derive(Args, Clone, Debug)]
pub struct NamesArgs {
    /// Kind of things that the names belong to
    #[arg(value_name = "WHAT")]
    kind: NameKind,
    /// Config of the grid
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath,
          default_value_os_t = default_config(), hide_default_value = true)]
    config: PathBuf,
}

/// Executes `names`.
///
/// # Errors
/// The names cannot be printed.
pub fn execute(args: &NamesArgs) -> Result<(), Failed> {
    let found = on_arbiter(async { Ok(names(args.kind, &args.config).await) })?;
    print(&found.iter().map(|name| format!("{name}\n")).collect::<String>())
}
