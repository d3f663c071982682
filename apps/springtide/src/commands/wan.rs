//! `wan`: emulated wide-area networks.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::{Subcommand, ValueHint};
use springtide_cli::exit::Failed;
use springtide_cli::format::plural;
use springtide_cli::options::{keyword_parser, time};
use springtide_cli::print::print;
use springtide_experiments::live_report;
use springtide_runtime::config::{Name, Sources, TopologyConfig};
use springtide_runtime::topology::Topology;
use springtide_wan::hold::{NetworkSpec, hold};
use springtide_wan::place::Backend;
use springtide_wan::router::PortKind;
use springtide_wan::set::LinkOverrides;
use springtide_wan::shipped::{BuiltinFile, TOPOLOGIES};
use springtide_wan::sys;

use crate::output::network::{profiles_text, status_text, up_text};
use springtide_operations::compose::ComposePlan;
use springtide_operations::doctor::doctor;
use springtide_operations::live::{self, LiveArgs};
use springtide_operations::network::{self, NetworkPrograms, NetworkSettings, RunningNetwork};
use springtide_operations::options::GlobalArgs;
use springtide_operations::process::start_log;
use springtide_operations::program::Program;

/// The subcommands of `wan`.
#[derive(Subcommand, Clone, Debug)]
pub enum WanCommand {
    /// Start a network with the delays, losses and rates of a topology
    Up {
        /// Topology file, or the name of a built-in topology (`wan list`)
        #[arg(value_name = "TOPOLOGY", value_hint = ValueHint::FilePath)]
        topology: PathBuf,
        /// Name of the network [default: the topology's]
        #[arg(long, value_name = "NAME")]
        name: Option<Name>,
        /// Emulation: a router between network namespaces, the kernel's queues between them (needs
        /// tc, and netem for all but rates), or the nodes' own sockets. Sockets need no rights, and
        /// serve only programs of Springtide
        #[arg(
            long,
            value_name = "WHAT",
            default_value = "router",
            value_parser = keyword_parser::<Backend>(&["router", "kernel", "sockets"]),
            hide_possible_values = true,
        )]
        network: Backend,
        /// Owner of a namespace: each node, or each cluster, whose nodes share it [default: node;
        /// with the kernel, cluster]
        #[arg(
            long,
            value_name = "WHAT",
            value_parser = ["node", "cluster"],
            hide_possible_values = true,
        )]
        per: Option<String>,
        /// Random seed of losses and jitter, except the kernel's
        #[arg(long, value_name = "N", default_value_t = 1)]
        seed: u64,
        /// With the kernel: accept a network without the features that this kernel lacks
        #[arg(long)]
        partial: bool,
        /// End the network after this time
        #[arg(long = "for", value_name = "TIME", default_value = "1h", value_parser = time)]
        lasts: Duration,
        /// Change a link at the start, as `wan set`: "A,B loss=2% burst=1%/25%". May be repeated
        #[arg(long, value_name = "CHANGE")]
        set: Vec<String>,
    },
    /// End a network and the programs that run in it
    Down {
        /// Name of the network [default: the only one that is up]
        #[arg(value_name = "NAME")]
        name: Option<String>,
        /// Name of the network, as in other commands
        #[arg(long, value_name = "NAME", conflicts_with = "name")]
        wan: Option<String>,
    },
    /// Show running networks, their links and their traffic
    Status {
        /// Name of the network [default: the only one that is up]
        #[arg(value_name = "NAME")]
        name: Option<String>,
        /// Name of the network, as in other commands
        #[arg(long, value_name = "NAME", conflicts_with = "name")]
        wan: Option<String>,
        /// Print the result as one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Run any program on a node; the exit code is that of a shell: the program's, 126, 127, or
    /// 128 and the signal
    Exec {
        /// Name of the network [default: the only one that is up]
        #[arg(long, value_name = "NAME")]
        wan: Option<String>,
        /// Run on all nodes at the same time, without NODE. Each line of output begins with its
        /// node. The exit code is the first that is not 0
        #[arg(long)]
        all: bool,
        /// Node to run on; or the cluster, if clusters own the namespaces
        #[arg(value_name = "NODE", required = true)]
        node: String,
        /// Program and its arguments; SPRINGTIDE_WAN_ADDRESS is its node's address, and names of
        /// nodes resolve (not with sockets)
        #[arg(
            value_name = "CMD",
            required_unless_present = "all",
            trailing_var_arg = true,
            allow_hyphen_values = true
        )]
        command: Vec<String>,
    },
    /// Write the packets of a network to a file that tcpdump and Wireshark read
    Capture {
        /// Name of the network [default: the only one that is up]
        #[arg(value_name = "NAME")]
        name: Option<String>,
        /// File to write
        #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
        out: PathBuf,
        /// Stop after this time [default: at Ctrl-C, or when the network ends]
        #[arg(long = "for", value_name = "TIME", value_parser = time)]
        lasts: Option<Duration>,
        /// Stop after this number of packets
        #[arg(long, value_name = "N")]
        packets: Option<u64>,
        /// Capture packets as their senders offer them, with those that are lost, instead of as
        /// they arrive
        #[arg(long)]
        offered: bool,
    },
    /// Run services on a network of their own, as a file describes them
    #[command(subcommand, arg_required_else_help = true)]
    Compose(ComposeCommand),
    /// Test which emulations this host supports, with the reasons if it lacks any
    Doctor {
        /// Print the result as one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Run a scenario with live node processes over an emulated network, on slowed processors
    Run(LiveArgs),
    /// Compare live runs: times, the paper's reductions, simulated times
    Report {
        /// Directories of runs (`wan run --out`), or with runs below them
        #[arg(value_name = "DIR", required = true, value_hint = ValueHint::DirPath)]
        runs: Vec<PathBuf>,
        /// Directory for a figure (SVG) of each scenario
        #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
        figures: Option<PathBuf>,
        /// Print the result as one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Change a link while programs run
    Set {
        /// Name of the network [default: the only one that is up]
        #[arg(long, value_name = "NAME")]
        wan: Option<String>,
        /// `A,B`: the link between two clusters, both directions; `A>B`: one direction; `A`: a
        /// cluster's uplink, both directions; `A>`: outgoing; `>A`: incoming
        #[arg(value_name = "LINK")]
        link: String,
        /// profile=NAME, rtt=50ms (or delay=25ms, one way), jitter=5ms, loss=2%, bandwidth=1MB/s,
        /// queue=250000 (bytes), reorder=true; or down, or up. Of lines: burst=1%/25% (share of
        /// packets that begin a burst, and that end it), duplicate=1%, corrupt=0.1%,
        /// reorder=2%/10ms (this share comes so much later), trace=FILE (Mahimahi's format). Of
        /// all links: schedule=10MB/s:5s,1MB/s:2s. Of a cluster: nat=endpoint-independent or
        /// nat=endpoint-dependent, firewall=on. `none` ends a bandwidth, burst, reorder, trace,
        /// schedule or nat. As in a topology file: a profile sets all of a link except other given
        /// values, and the rates and queue of an uplink
        #[arg(value_name = "WHAT", required = true)]
        what: Vec<String>,
    },
    /// List the built-in link profiles, with their purposes
    Profiles,
    /// List the built-in topologies
    List,
    /// Print a topology file: a built-in one, or an example with every key
    Show {
        /// Name of the topology
        #[arg(value_name = "NAME")]
        name: Option<String>,
    },
    /// Print a topology as the table that `netem-scripts/kernel.sh` reads
    Table {
        /// Topology file, or the name of a built-in topology
        #[arg(value_name = "TOPOLOGY", value_hint = ValueHint::FilePath)]
        topology: PathBuf,
    },
    /// Hold a network, as started by `wan up`
    #[command(hide = true)]
    Hold {
        /// Topology file of the network
        topology: PathBuf,
        /// Name of the network
        name: String,
        /// Emulation of the network
        #[arg(value_parser = keyword_parser::<Backend>(&["router", "kernel", "sockets"]))]
        network: Backend,
        /// Owner of a namespace
        #[arg(value_parser = ["node", "cluster"])]
        per: String,
        /// Random seed of losses and jitter
        seed: u64,
        /// Time until the network ends, in milliseconds
        lasts_ms: u64,
        /// Whether to accept missing features of the kernel
        #[arg(long)]
        partial: bool,
        /// Whether to end with standard input
        #[arg(long)]
        tied: bool,
    },
}

/// The subcommands of `wan compose`.
#[derive(Subcommand, Clone, Debug)]
pub enum ComposeCommand {
    /// Start the network and the services, wait until they are ready, print and collect their logs.
    /// All end with Ctrl-C, with a service that fails, or with the service that `until` names,
    /// whose exit code becomes this command's
    Up {
        /// File of the network and its services
        #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
        file: PathBuf,
        /// Directory for a log of each service
        #[arg(
            long,
            value_name = "DIR",
            default_value = "wan-logs",
            value_hint = ValueHint::DirPath,
        )]
        logs: PathBuf,
        /// Random seed of losses, jitter and impairments
        #[arg(long, value_name = "N", default_value_t = 1)]
        seed: u64,
        /// End all after this time
        #[arg(long = "for", value_name = "TIME", default_value = "1h", value_parser = time)]
        lasts: Duration,
    },
}

/// Executes a subcommand of `wan`.
///
/// # Errors
/// As the subcommand describes.
pub fn execute(command: WanCommand, program: Program, global: &GlobalArgs) -> Result<(), Failed> {
    start_log(global);
    match command {
        WanCommand::Compose(ComposeCommand::Up { file, logs, seed, lasts }) => {
            let plan = ComposePlan::read(&file)?;
            let (network, per) = (Backend::Router, PortKind::Node);
            let settings = NetworkSettings { network, per, seed, lasts, partial: false };
            end_as(plan.up(&logs, &settings, global.quiet)?)
        }
        WanCommand::Doctor { json } => {
            let Some(report) = doctor()? else { return Ok(()) };
            print(&if json { format!("{}\n", report.object()) } else { report.table() })?;
            report.check_any()
        }
        WanCommand::Report { runs, figures, json } => {
            live_report::report(&runs, figures.as_deref(), json)
        }
        WanCommand::Run(args) => {
            live::run(&args, Arc::new(program.registry), program.version, global)
        }
        WanCommand::Up { topology, name, network: kind, per, seed, partial, lasts, set } => {
            let clusters = kind == Backend::Kernel;
            let per = match per.as_deref() {
                Some("node") if clusters => {
                    let reason = "with the kernel's queues, each cluster has one namespace: omit \
                    --per, or use `--network router`";
                    return Err(Failed::usage(reason));
                }
                Some("cluster") => PortKind::Cluster,
                None if clusters => PortKind::Cluster,
                _ => PortKind::Node,
            };
            let settings = NetworkSettings { network: kind, per, seed, lasts, partial };
            up(&topology, name, &settings, &set)
        }
        WanCommand::Down { name, wan } => {
            let name = network::down(name.or(wan).as_deref())?;
            print(&format!("network {name} is down\n"))
        }
        WanCommand::Status { name, wan, json } => status(name.or(wan).as_deref(), json),
        WanCommand::Exec { wan, all: false, node, command } => {
            end_as(NetworkPrograms::of(wan.as_deref())?.exec(&node, &command)?)
        }
        WanCommand::Exec { wan, all: true, node, mut command } => {
            // The first word is not a node then, but the program.
            command.insert(0, node);
            end_as(NetworkPrograms::of(wan.as_deref())?.exec_all(&command)?)
        }
        WanCommand::Capture { name, out, lasts, packets, offered } => {
            let count = network::capture(name.as_deref(), &out, lasts, packets, offered)?;
            print(&format!("{count} {} in {}\n", plural(count, "packet"), out.display()))
        }
        WanCommand::Set { wan, link, what } => set(wan.as_deref(), &link, &what),
        WanCommand::Profiles => print(&profiles_text()),
        WanCommand::List => {
            let line = |shipped: &BuiltinFile| -> Result<String, Failed> {
                let config = network::parse(&Sources::of_text(shipped.name, shipped.text))?;
                Ok(format!("{:18} {}\n", shipped.name, config.about))
            };
            print(&TOPOLOGIES.iter().map(line).collect::<Result<String, _>>()?)
        }
        WanCommand::Show { name: None } => print(&TopologyConfig::template()),
        WanCommand::Show { name: Some(name) } => match network::find(&name) {
            Some(shipped) => print(shipped.text),
            None => {
                Err(Failed::usage(format!("no built-in topology is named {name}: see `wan list`")))
            }
        },
        WanCommand::Table { topology } => {
            print(&Topology::from_config(&network::read(&topology)?).table())
        }
        WanCommand::Hold { topology, name, network: kind, per, seed, lasts_ms, partial, tied } => {
            let topology = Topology::from_config(&network::read(&topology)?);
            let ports = if per == "cluster" { PortKind::Cluster } else { PortKind::Node };
            let lasts = Duration::from_millis(lasts_ms);
            let order =
                NetworkSpec { name, topology, network: kind, ports, seed, lasts, partial, tied };
            // The network survives the end of its terminal.
            sys::leave_session().map_err(Failed::failure)?;
            hold(order, &network::home()?, || {
                // The parent process waits for this line.
                let _ = print("ready\n");
            })
            .map_err(Failed::failure)
        }
    }
}

/// Ends the process with the exit code of a program.
fn end_as(code: u8) -> Result<(), Failed> {
    match code {
        0 => Ok(()),
        code => std::process::exit(code.into()),
    }
}

fn up(
    file: &Path,
    name: Option<Name>,
    settings: &NetworkSettings,
    changes: &[String],
) -> Result<(), Failed> {
    let config = network::read(file)?;
    let name = name.unwrap_or_else(|| config.name.clone()).to_string();
    let changes = changes.iter().map(|change| network::parse_change(change));
    let changes = changes.collect::<Result<Vec<_>, _>>()?;
    let running = RunningNetwork::start(file, &name, settings)?;
    for (link, wish) in changes {
        if let Err(error) = network::set(Some(&name), &link, &wish) {
            // A network without the changes is not the one that was asked for.
            network::down(Some(&name))?;
            return Err(error);
        }
    }
    let status = running.status()?;
    print(&up_text(&status, settings.lasts))
}

fn status(name: Option<&str>, json: bool) -> Result<(), Failed> {
    let status = network::status(name)?;
    if json {
        let mut value = serde_json::to_value(&status).map_err(Failed::failure)?;
        value["schema"] = 1.into();
        return print(&format!("{value}\n"));
    }
    print(&status_text(&status))
}

fn set(name: Option<&str>, link: &str, what: &[String]) -> Result<(), Failed> {
    let wish = LinkOverrides::of(what).map_err(Failed::usage)?;
    let outcome = network::set(name, link, &wish)?;
    let mut text = format!("{link}: {}\n", what.join(" "));
    let is_down = outcome.links.iter().any(|(_, profile)| !profile.up);
    if is_down && wish.up.is_none() {
        text += &format!("{link} is down: `up` restores it\n");
    }
    if outcome.flaps && wish.profile.is_none() {
        text += &format!(
            "{link} goes up and down by its profile: `up`, `down` or another \
            profile ends that\n"
        );
    }
    for lack in &outcome.lacks {
        eprintln!("warning: {lack}");
    }
    print(&text)
}

#[cfg(test)]
mod tests {
    use springtide_runtime::work::Registry;

    use super::*;

    #[test]
    fn an_unknown_topology_is_reported_and_profiles_are_listed() {
        let wan = |command| {
            let registry = Registry::new();
            let (jobs, actors) = (Vec::new(), None);
            let program = Program { name: "springtide", version: "1", registry, jobs, actors };
            execute(command, program, &GlobalArgs::default())
        };
        let missing = wan(WanCommand::Table { topology: "no-such.toml".into() }).unwrap_err();
        assert!(missing.message.contains("no-such.toml"), "{}", missing.message);
        let unknown = wan(WanCommand::Show { name: Some("pairr".into()) }).unwrap_err();
        assert!(unknown.message.contains("`wan list`"), "{}", unknown.message);
        assert_eq!(network::read(Path::new("pair")).unwrap().cluster.len(), 2);
        let answer = profiles_text();
        assert!(
            answer.lines().any(|line| line.starts_with("wan-50 ") && line.contains("50ms")),
            "{answer}"
        );
    }
}
