//! `man`: manual pages, one for each command.

use std::path::PathBuf;

use clap::{Args, Command, ValueHint};
use springtide_cli::exit::{Failed, cannot};
use springtide_cli::outdir::make_dir;

/// The options of the command `man`.
#[derive(Args, Clone, Debug)]
pub struct ManArgs {
    /// Directory for the pages
    #[arg(value_name = "DIR", value_hint = ValueHint::DirPath)]
    dir: PathBuf,
}

/// Writes the pages of the whole `command`, under the names that `man` searches for.
///
/// # Errors
/// They cannot be written.
pub fn execute(args: &ManArgs, command: &Command) -> Result<(), Failed> {
    let dir = &args.dir;
    make_dir(dir)?;
    clap_mangen::generate_to(command.clone(), dir)
        .map_err(|error| cannot("write to", dir, &error))?;
    eprintln!(
        "wrote the manual pages to {0}; read one with `man {0}/{1}.1`",
        dir.display(),
        command.get_name()
    );
    Ok(())
}
