//! `files`: input files of jobs in the directories of a grid's clusters.

use std::path::PathBuf;

use clap::{Subcommand, ValueHint};
use springtide_cli::exit::Failed;
use springtide_cli::format::size;
use springtide_cli::print::print;
use springtide_runtime::id::ClusterId;

use crate::output::files::{list_object, list_text};
use springtide_operations::inputs::{FetchedFile, fetch_to, list, put_into, remove};
use springtide_operations::locate::default_config;
use springtide_operations::options::GlobalArgs;
use springtide_operations::process::{on_arbiter, start_log};

/// The subcommands of `files`.
#[derive(Subcommand, Clone, Debug)]
pub enum FilesCommand {
    /// List files with their lengths and clusters
    List {
        /// Config of the grid [default: the nearest grid.toml]
        #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath,
              default_value_os_t = default_config(), hide_default_value = true)]
        config: PathBuf,
        /// Print the result as one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Copy a file of this host into a cluster's directory
    Put {
        /// Path of the file
        #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
        file: PathBuf,
        /// Cluster to copy to
        #[arg(long, value_name = "NAME")]
        cluster: String,
        /// Name of the file there [default: its own name]
        #[arg(long = "as", value_name = "NAME")]
        name: Option<String>,
        /// Config of the grid [default: the nearest grid.toml]
        #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath,
              default_value_os_t = default_config(), hide_default_value = true)]
        config: PathBuf,
    },
    /// Remove files from all clusters
    Remove {
        /// Names of the files; those that begin with wf- and belong to no running workflow remain
        /// from a killed one
        #[arg(value_name = "NAME", required = true)]
        names: Vec<String>,
        /// Config of the grid [default: the nearest grid.toml]
        #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath,
              default_value_os_t = default_config(), hide_default_value = true)]
        config: PathBuf,
    },
    /// Copy a cluster's file to this host
    Fetch {
        /// Name of the file
        #[arg(value_name = "NAME")]
        name: String,
        /// Cluster to copy from [default: the first that has it]
        #[arg(long, value_name = "NAME")]
        cluster: Option<String>,
        /// Path to write [default: its name, in this directory]
        #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
        out: Option<PathBuf>,
        /// Config of the grid [default: the nearest grid.toml]
        #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath,
              default_value_os_t = default_config(), hide_default_value = true)]
        config: PathBuf,
    },
}

/// Executes a subcommand of `files`.
///
/// # Errors
/// No grid is up, it has no such file or cluster, or a file cannot be read or written.
pub fn execute(command: FilesCommand, global: &GlobalArgs) -> Result<(), Failed> {
    start_log(global);
    on_arbiter(by_command(command, global.quiet))
}

async fn by_command(command: FilesCommand, quiet: bool) -> Result<(), Failed> {
    match command {
        FilesCommand::List { config, json } => {
            let files = list(&config).await?;
            print(&if json { list_object(&files) } else { list_text(&files) })
        }
        FilesCommand::Put { file, cluster, name, config } => {
            let cluster = ClusterId::from(cluster.as_str());
            let entry = put_into(&config, &file, &cluster, name.as_deref(), quiet).await?;
            if !quiet {
                eprintln!("{} ({}) is in {cluster}", entry.name, size(entry.bytes));
            }
            Ok(())
        }
        FilesCommand::Remove { names, config } => remove(&config, &names).await,
        FilesCommand::Fetch { name, cluster, out, config } => {
            let out = out.unwrap_or_else(|| PathBuf::from(&name));
            let cluster = cluster.map(|name| ClusterId::from(name.as_str()));
            let FetchedFile { cluster, entry } =
                fetch_to(&config, &name, cluster, &out, quiet).await?;
            if !quiet {
                eprintln!("{} ({}) is from {cluster}", out.display(), size(entry.bytes));
            }
            Ok(())
        }
    }
}
