//! `completions`: completions for a shell.

use clap::{Args, Command};
use springtide_cli::exit::Failed;
use springtide_cli::print::print;

/// The options of the command `completions`.
#[derive(Args, Clone, Debug)]
pub struct CompletionsArgs {
    /// Shell to complete for
    shell: clap_complete::Shell,
}

/// Executes `completions` for the whole `command`.
///
/// # Errors
/// The text cannot be written.
pub fn execute(
    args: &CompletionsArgs,
    name: &'static str,
    mut command: Command,
) -> Result<(), Failed> {
    let mut out = Vec::new();
    clap_complete::generate(args.shell, &mut command, name, &mut out);
    print(&String::from_utf8_lossy(&out))
}
