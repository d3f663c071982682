//! `ca`: the certificate authority of a grid.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Subcommand, ValueHint};
use springtide_cli::exit::{Exit, Failed, cannot};
use springtide_cli::format::{SCHEMA, seconds};
use springtide_cli::options::time;
use springtide_cli::print::print;
use springtide_runtime::id::{ClusterId, NodeId};
use springtide_runtime::net::tls::{Ca, Fingerprint, TlsError};

use springtide_operations::attach::{directory_user, grid_config, record_command};
use springtide_operations::grid_files::{HeadFile, ca_dir, dir_of, make_private_dir};
use springtide_operations::locate::default_config;
use springtide_operations::standby::check_not_waiting;

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
    /// Replace the authority of a grid by the next one, while the grid runs
    Rotate {
        /// Config of the grid [default: the nearest grid.toml]
        #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath,
              default_value_os_t = default_config(), hide_default_value = true)]
        config: PathBuf,
        /// Time for which the old and the next are trusted; the next one issues after half of it
        #[arg(long, value_name = "TIME", default_value = "24h", value_parser = time)]
        period: Duration,
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
        CaCommand::Rotate { config, period, json } => return rotate(config, *period, *json),
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

/// Shorter periods end before all nodes know the next authority.
const PERIOD_MIN: Duration = Duration::from_secs(60);

/// Begins the rotation of a grid's authority, which its head continues.
fn rotate(config: &Path, period: Duration, json: bool) -> Result<(), Failed> {
    if period < PERIOD_MIN {
        let least = seconds(PERIOD_MIN.as_secs_f64());
        return Err(Failed::usage(format!(
            "--period must be at least {least}: nodes learn of the next authority in half of it"
        )));
    }
    let grid = grid_config(config)?;
    let dir = dir_of(config, &grid);
    check_not_waiting(&grid, &dir)?;
    let user = directory_user(&grid)?;
    let next = Ca::begin_rotation(&ca_dir(&grid, &dir), period).map_err(|error| match &error {
        TlsError::Rotating { .. } => Failed::failure(error.to_string()),
        _ => error.into(),
    })?;
    let next = next.fingerprint();
    record_command(&dir, user, "ca rotate", &next.to_string());
    if json {
        let object = serde_json::json!({ "schema": SCHEMA, "sha256": next.to_string() });
        return print(&format!("{object}\n"));
    }
    let (half, all) = (seconds(period.as_secs_f64() / 2.0), seconds(period.as_secs_f64()));
    eprintln!(
        "the next authority {next} is trusted from now on, and issues certificates after {half}; \
        the old one is trusted until {all} have passed"
    );
    if HeadFile::read(&dir)?.is_none() {
        eprintln!("no head runs here as far as this host knows: these times begin when one starts");
    }
    Ok(())
}
