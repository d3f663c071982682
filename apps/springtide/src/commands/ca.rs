//! `ca`: the certificate authority of a grid.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Subcommand, ValueHint};
use springtide_cli::exit::{Exit, Failed, cannot};
use springtide_cli::format::SCHEMA;
use springtide_cli::print::print;
use springtide_runtime::id::{ClusterId, NodeId};
use springtide_runtime::net::tls::{Ca, Fingerprint};

use crate::operations::attach::grid_config;
use crate::operations::grid_files::{ca_dir, dir_of, make_private_dir};

/// The subcommands of `ca`.
#[derive(Subcommand, Clone, Debug)]
pub enum CaCommand {
    /// Create a certificate authority
    Init {
        /// Directory of the authority; ca.key in it must stay secret
        #[arg(long, value_name = "DIR", default_value = "ca", value_hint = ValueHint::DirPath)]
        dir: PathBuf,
        /// Name of the grid
        #[arg(long, value_name = "NAME", default_value = "local")]
        grid: String,
    },
    /// Print the SHA-256 fingerprint of the authority's certificate, which join tokens contain
    Fingerprint {
        /// Directory of the authority, or a file with its certificate
        #[arg(
            long,
            value_name = "DIR",
            default_value = "ca",
            conflicts_with = "config",
            value_hint = ValueHint::AnyPath,
        )]
        dir: PathBuf,
        /// Use the authority of the grid of this config
        #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
        config: Option<PathBuf>,
        /// Print the result as one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Issue a certificate for a node
    Issue {
        /// Name of the node
        #[arg(value_name = "NODE")]
        node: String,
        /// Cluster of the node
        #[arg(long, value_name = "NAME")]
        cluster: String,
        /// Role: node, client, viewer, site or head; a client of the cluster `head` is an operator
        #[arg(
            long,
            value_name = "ROLE",
            default_value = "node",
            value_parser = ["node", "client", "viewer", "site", "head"],
            hide_possible_values = true,
        )]
        role: String,
        /// Directory of the authority
        #[arg(long, value_name = "DIR", default_value = "ca", value_hint = ValueHint::DirPath)]
        dir: PathBuf,
        /// Directory for node.pem, node.key and ca.pem [default: NODE]
        #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
        out: Option<PathBuf>,
        /// Validity in days
        #[arg(
            long,
            value_name = "N",
            default_value_t = 30,
            value_parser = clap::value_parser!(u64).range(1..=3650),
        )]
        days: u64,
    },
}

/// Executes a subcommand of `ca`.
///
/// # Errors
/// A certificate cannot carry a name, an authority exists already or does not exist, or files
/// cannot be written.
pub fn execute(command: &CaCommand) -> Result<(), Failed> {
    match command {
        CaCommand::Init { dir, grid } => {
            make_private_dir(dir)?;
            Ca::create(grid, dir)?;
            let shown = dir.display();
            eprintln!(
                "created the authority of grid {grid} in {shown}; {shown}/ca.key must stay secret"
            );
        }
        CaCommand::Fingerprint { dir, config, json } => {
            let at = match config {
                Some(file) => {
                    let config = grid_config(file)?;
                    ca_dir(&config, &dir_of(file, &config))
                }
                None => dir.clone(),
            };
            let file = if at.is_file() { at } else { at.join("ca.pem") };
            let pem = std::fs::read_to_string(&file).map_err(|error| {
                let Failed { exit, message } = cannot("read", &file, &error);
                Failed {
                    exit,
                    message: format!(
                        "{message}; name an authority's directory with \
                        --dir, or a grid with --config"
                    ),
                }
            })?;
            let sum = Fingerprint::of_pem(&pem)
                .map_err(|error| Failed::new(Exit::Auth, format!("{}: {error}", file.display())))?;
            return if *json {
                let object = serde_json::json!({ "schema": SCHEMA, "sha256": sum.to_string() });
                print(&format!("{object}\n"))
            } else {
                print(&format!("{sum}\n"))
            };
        }
        CaCommand::Issue { node, cluster, role, dir, out, days } => {
            let (id, cluster) = (NodeId::from(node.as_str()), ClusterId::from(cluster.as_str()));
            let validity = Duration::from_secs(days * 24 * 3600);
            let identity = Ca::load(dir)?.issue(&id, &cluster, role, validity)?;
            let out = out.clone().unwrap_or_else(|| node.into());
            make_private_dir(&out)?;
            identity.save(&out)?;
            let shown = out.display();
            eprintln!("wrote node.pem, node.key and ca.pem of {} to {shown}", identity.name());
        }
    }
    Ok(())
}
