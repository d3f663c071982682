//! `version`: the version of this program and of its jobs.

use clap::Args;
use springtide_cli::exit::Failed;
use springtide_cli::format::SCHEMA;
use springtide_cli::print::print;

use springtide_operations::program::Program;

/// The options of the command `version`.
#[derive(Args, Clone, Debug)]
pub struct VersionArgs {
    /// Print the result as one JSON object
    #[arg(long)]
    json: bool,
}

/// Executes `version`.
///
/// # Errors
/// The text cannot be written.
pub fn execute(args: &VersionArgs, program: &Program) -> Result<(), Failed> {
    let fingerprint = format!("{:016x}", program.registry.fingerprint());
    let Program { name, version, .. } = program;
    if args.json {
        let object = serde_json::json!({
            "schema": SCHEMA, "name": name, "version": version, "registry": fingerprint,
        });
        return print(&format!("{object}\n"));
    }
    print(&format!("{name} {version} (registry {fingerprint})\n"))
}
