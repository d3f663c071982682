//! `backup` and `restore`: the head's state as one file.

use std::path::PathBuf;

use clap::{Args, ValueHint};
use serde_json::json;
use springtide_cli::dates::date;
use springtide_cli::exit::Failed;
use springtide_cli::format::{SCHEMA, many};
use springtide_cli::print::print;

use springtide_operations::backup::{BackupManifest, backup, restore};
use springtide_operations::locate::default_config;
use springtide_operations::options::GlobalArgs;
use springtide_operations::process::start_log;

/// The exit codes in the help of `restore`.
pub const EXIT_CODES: &str = "\
Exit codes: 1 a head runs, or a file cannot be read or written; 2 the file is no complete backup \
of this grid, or the grid has a state; 6 the backup is of a newer version.";

/// The options of the commands `backup` and `restore`.
#[derive(Args, Clone, Debug)]
pub struct BackupArgs {
    /// File of the backup; it contains the key of the grid's authority
    #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
    file: PathBuf,
    /// Config of the grid [default: the nearest grid.toml]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath,
          default_value_os_t = default_config(), hide_default_value = true)]
    config: PathBuf,
    /// Print the result as one JSON object
    #[arg(long)]
    json: bool,
}

/// Executes `backup`.
///
/// # Errors
/// As [`backup`].
pub fn execute(args: &BackupArgs, version: &str, global: &GlobalArgs) -> Result<(), Failed> {
    start_log(global);
    let manifest = backup(&args.config, &args.file, version)?;
    report(args, &manifest, "wrote", global)
}

/// Executes `restore`.
///
/// # Errors
/// As [`restore`].
pub fn execute_restore(args: &BackupArgs, global: &GlobalArgs) -> Result<(), Failed> {
    start_log(global);
    let manifest = restore(&args.config, &args.file)?;
    report(args, &manifest, "restored", global)
}

fn report(
    args: &BackupArgs,
    manifest: &BackupManifest,
    verb: &str,
    global: &GlobalArgs,
) -> Result<(), Failed> {
    if args.json {
        let object = json!({
            "schema": SCHEMA,
            "grid": manifest.grid,
            "made_unix_s": manifest.made_unix_s,
            "springtide": manifest.springtide,
            "files": manifest.files.len(),
        });
        return print(&format!("{object}\n"));
    }
    if !global.quiet {
        eprintln!(
            "{verb} the state of grid {} of {}: {} in {}",
            manifest.grid,
            date(u64::try_from(manifest.made_unix_s).unwrap_or(0)),
            many(manifest.files.len() as u64, "file"),
            args.file.display()
        );
    }
    Ok(())
}
