//! `node`: runs a node, joins a grid, lists nodes, drains them and returns them to service.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::{Subcommand, ValueHint};
use serde_json::json;
use springtide_cli::exit::Failed;
use springtide_cli::format::SCHEMA;
use springtide_cli::options::time;
use springtide_cli::print::print;
use springtide_runtime::config::Format;

use crate::output::nodes::{
    drained_object, drained_text, lines, list_object, list_text, node_object,
};
use springtide_operations::drain::{self, DrainRequest};
use springtide_operations::join::{self, JoinArgs};
use springtide_operations::locate::default_config;
use springtide_operations::node_state::{Health, health};
use springtide_operations::options::GlobalArgs;
use springtide_operations::process::{log_to_stderr, on_arbiter, on_runtime, start_log};
use springtide_operations::program::Program;
use springtide_operations::{node, nodes};

/// The subcommands of `node`.
#[derive(Subcommand, Clone, Debug)]
pub enum NodeCommand {
    /// Run one node until its head is lost or orders it to end
    Run {
        /// Config of the node
        #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
        config: PathBuf,
        /// End when standard input ends; the parent process holds it open
        #[arg(long, hide = true)]
        with_parent: bool,
    },
    /// Join a grid with a token: get a certificate, write the node's files, and run it
    #[command(after_help = JOIN_EXIT_CODES)]
    Join(JoinArgs),
    /// List the nodes of a running grid
    List {
        /// Config of the grid [default: the nearest grid.toml]
        #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath,
              default_value_os_t = default_config(), hide_default_value = true)]
        config: PathBuf,
        /// Print the result as one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Show the state of a node
    #[command(after_help = STATUS_EXIT_CODES)]
    Status {
        /// Name of the node
        #[arg(
            value_name = "NODE",
            required_unless_present = "of_self",
            conflicts_with = "of_self"
        )]
        node: Option<String>,
        /// Check that the node of this host with this config is registered, for health checks; it
        /// must have joined by a token
        #[arg(id = "of_self", long = "self", requires = "config")]
        of_self: bool,
        /// Config of the grid; with --self, of the node [default: the nearest grid.toml]
        #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath,
              default_value_os_t = default_config(), hide_default_value = true)]
        config: PathBuf,
        /// Print the result as one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Exclude a joined node: its certificate becomes invalid
    Revoke {
        /// Name of the node
        #[arg(value_name = "NODE")]
        node: String,
        /// Config of the grid [default: the nearest grid.toml]
        #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath,
              default_value_os_t = default_config(), hide_default_value = true)]
        config: PathBuf,
        /// Reason, shown in listings
        #[arg(long, value_name = "TEXT", default_value = "by order")]
        reason: String,
    },
    /// Drain nodes of a running grid: they get no more jobs; returns when they are empty
    #[command(after_help = DRAIN_EXIT_CODES)]
    Drain {
        /// Names of the nodes
        #[arg(value_name = "NODE", required = true)]
        nodes: Vec<String>,
        /// Config of the grid [default: the nearest grid.toml]
        #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath,
              default_value_os_t = default_config(), hide_default_value = true)]
        config: PathBuf,
        /// Deadline, for example 30s: then jobs release the nodes, and others repeat the unfinished
        /// work
        #[arg(long, value_name = "TIME", value_parser = time)]
        deadline: Option<Duration>,
        /// Reason, shown in listings [default: drained by `node drain`]
        #[arg(long, value_name = "TEXT")]
        reason: Option<String>,
        /// Print the result as one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Return drained nodes to service
    #[command(after_help = DRAIN_EXIT_CODES)]
    Undrain {
        /// Names of the nodes
        #[arg(value_name = "NODE", required = true)]
        nodes: Vec<String>,
        /// Config of the grid [default: the nearest grid.toml]
        #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath,
              default_value_os_t = default_config(), hide_default_value = true)]
        config: PathBuf,
    },
}

const JOIN_EXIT_CODES: &str = "\
Exit codes: 0 joined, and ended by order; 1 no answer, or files \
cannot be written; 2 wrong options, or no valid form of a token; 5 the token is not valid, or \
another grid answers (nothing was sent to it); 6 the address is no join endpoint, or of another \
version.";

const STATUS_EXIT_CODES: &str = "\
Exit codes: 0 the state is printed (with --self: the node is \
registered); 1 no grid is up (with --self: the node does not run, or is not registered); 2 no such \
node exists.";

const DRAIN_EXIT_CODES: &str = "\
Exit codes: 0 done; 1 no grid is up, or another command returned \
the nodes to service; 2 no such node exists; 3 a job needs the nodes; 130 interrupted: the drain \
continues, `node undrain` cancels it.";

/// Executes a subcommand of `node`.
///
/// # Errors
/// As the operation.
pub fn execute(command: NodeCommand, program: Program, global: &GlobalArgs) -> Result<(), Failed> {
    match command {
        NodeCommand::Run { config, with_parent } => run(&config, with_parent, program, global),
        NodeCommand::Join(args) => {
            // Before logging starts: the node's config sets the log level.
            let Some(config) = on_runtime(join::run(&args))? else { return Ok(()) };
            run(&config, false, program, global)
        }
        NodeCommand::List { config, json } => {
            start_log(global);
            on_arbiter(list(&config, json))
        }
        NodeCommand::Status { node, config, json, .. } => {
            start_log(global);
            match node {
                Some(node) => on_arbiter(status(&node, &config, json)),
                None => status_of_self(&config, json),
            }
        }
        NodeCommand::Revoke { node, config, reason } => {
            start_log(global);
            on_arbiter(revoke(&node, &config, &reason))
        }
        NodeCommand::Drain { nodes, config, deadline, reason, json } => {
            start_log(global);
            let reason = reason.as_deref();
            let request = DrainRequest { nodes: &nodes, file: &config, deadline, reason };
            on_arbiter(drain(request, json, global))
        }
        NodeCommand::Undrain { nodes, config } => {
            start_log(global);
            on_arbiter(drain::undrain(&nodes, &config))
        }
    }
}

fn run(
    config: &Path,
    with_parent: bool,
    program: Program,
    global: &GlobalArgs,
) -> Result<(), Failed> {
    let config = node::config(config)?;
    let json = config.log.format == Format::Json;
    log_to_stderr(global.log_level.unwrap_or(config.log.level), json);
    on_arbiter(node::run(config, with_parent, Arc::new(program.registry), program.actors))
}

async fn list(file: &Path, json: bool) -> Result<(), Failed> {
    let nodes = nodes::list(file).await?;
    if json {
        return print(&format!("{}\n", list_object(&nodes)));
    }
    print(&list_text(&nodes))
}

async fn status(node: &str, file: &Path, json: bool) -> Result<(), Failed> {
    let row = nodes::status(node, file).await?;
    if json {
        let mut object = node_object(&row);
        object["schema"] = SCHEMA.into();
        return print(&format!("{object}\n"));
    }
    print(&lines(&row))
}

fn status_of_self(file: &Path, json: bool) -> Result<(), Failed> {
    let Health { state, unhealthy } = health(file)?;
    if json {
        let object = json!({
            "schema": SCHEMA,
            "node": state.node,
            "cluster": state.cluster,
            "registered": unhealthy.is_none(),
            "pid": state.pid,
            "reason": unhealthy,
        });
        print(&format!("{object}\n"))?;
    } else if unhealthy.is_none() {
        print(&format!("{} is registered\n", state.node))?;
    }
    unhealthy.map_or(Ok(()), |unhealthy| Err(Failed::failure(unhealthy)))
}

async fn revoke(node: &str, file: &Path, reason: &str) -> Result<(), Failed> {
    let nodes::Revocation { until, is_enforced } = nodes::revoke(node, file, reason).await?;
    if is_enforced {
        eprintln!(
            "{node} is revoked: its link is closed, and it gets no new one, and no certificate; \
            its name is free again when its certificate ends, at {until}"
        );
    } else {
        eprintln!(
            "{node} is revoked, until its certificate ends at {until}: no head answers; the \
            next head will enforce it"
        );
    }
    Ok(())
}

async fn drain(request: DrainRequest<'_>, json: bool, global: &GlobalArgs) -> Result<(), Failed> {
    let drained = drain::drain(&request, global.quiet).await;
    let text = match &drained {
        Ok(drained) if json => format!("{}\n", drained_object(drained)),
        Ok(drained) => drained_text(drained),
        Err(failed) if json => {
            format!("{}\n", json!({ "schema": SCHEMA, "ok": false, "error": failed.message }))
        }
        Err(_) => String::new(),
    };
    print(&text)?;
    drained.map(drop)
}
