//! `wan`: emulated wide-area networks.
//!
//! Independent of the emulation itself.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clap::{Subcommand, ValueHint};
use springtide_runtime::config::{Line, Name, Rate, Sources, Time, TopologyConfig, load, profiles};
use springtide_runtime::net::LinkProfile;
use springtide_runtime::topology::Topology;
use springtide_runtime::work::Registry;
use springtide_wan::hold::{Order, SHAPE, Within, hold};
use springtide_wan::place::{self, Answer, Carries, PlaceError, Request, Status};
use springtide_wan::router::{Change, PortOf};
use springtide_wan::set::{Link, Wish};
use springtide_wan::shipped::{Shipped, TOPOLOGIES};
use springtide_wan::sys::{self, Space};

use crate::args::{GlobalArgs, time, words};
use crate::exit::Failed;
use crate::live::{self, LiveArgs};
use crate::outdir::create_file;
use crate::run::print;

/// Timeout of a network's start. A network of forty nodes takes a second.
const START_TIMEOUT: Duration = Duration::from_secs(20);

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
            value_parser = words::<Carries>(&["router", "kernel", "sockets"]),
            hide_possible_values = true,
        )]
        network: Carries,
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
    },
    /// End a network and the programs that run in it
    Down {
        /// Name of the network [default: the only one that is up]
        #[arg(value_name = "NAME")]
        name: Option<String>,
    },
    /// Show running networks, their links and their traffic
    Status {
        /// Name of the network [default: the only one that is up]
        #[arg(value_name = "NAME")]
        name: Option<String>,
        /// Print the result as one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Run any program on a node; its exit code becomes this command's
    Exec {
        /// Name of the network [default: the only one that is up]
        #[arg(long, value_name = "NAME")]
        wan: Option<String>,
        /// Node to run on; or the cluster, if clusters own the namespaces
        #[arg(value_name = "NODE")]
        node: String,
        /// Program and its arguments; SPRINGTIDE_WAN_ADDRESS is its node's address
        #[arg(
            value_name = "CMD",
            required = true,
            trailing_var_arg = true,
            allow_hyphen_values = true
        )]
        command: Vec<String>,
    },
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
        /// profile=NAME, rtt=50ms, jitter=5ms, loss=0.01, bandwidth=1MB/s (or none), queue=250000
        /// (bytes), reorder=true; or down, or up. As in a topology file: a profile sets all of a
        /// link except other given values, and the rates and queue of an uplink
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
        #[arg(value_parser = words::<Carries>(&["router", "kernel", "sockets"]))]
        network: Carries,
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

/// Executes a subcommand of `wan`.
///
/// # Errors
/// As the subcommand describes.
pub fn wan(
    command: WanCommand,
    registry: Arc<Registry>,
    version: &str,
    global: &GlobalArgs,
) -> Result<(), Failed> {
    match command {
        WanCommand::Doctor { json } => crate::doctor::doctor(json),
        WanCommand::Report { runs, figures, json } => {
            crate::live_report::report(&runs, figures.as_deref(), json)
        }
        WanCommand::Run(args) => live::run(&args, registry, version, global),
        WanCommand::Up { topology, name, network, per, seed, partial, lasts } => {
            let clusters = network == Carries::Kernel;
            let per = match per.as_deref() {
                Some("node") if clusters => {
                    let reason = "with the kernel's queues, each cluster has one namespace: omit \
                    --per, or use `--network router`";
                    return Err(Failed::usage(reason));
                }
                Some("cluster") => PortOf::Cluster,
                None if clusters => PortOf::Cluster,
                _ => PortOf::Node,
            };
            up(&topology, name, &NetworkSettings { network, per, seed, lasts, partial })
        }
        WanCommand::Down { name } => down(name.as_deref()),
        WanCommand::Status { name, json } => status(name.as_deref(), json),
        WanCommand::Exec { wan, node, command } => exec(wan.as_deref(), &node, &command),
        WanCommand::Set { wan, link, what } => set(wan.as_deref(), &link, &what),
        WanCommand::Profiles => print(&profiles_text()),
        WanCommand::List => {
            let line = |shipped: &Shipped| -> Result<String, Failed> {
                let config = parse(&Sources::of_text(shipped.name, shipped.text))?;
                Ok(format!("{:18} {}\n", shipped.name, config.about))
            };
            print(&TOPOLOGIES.iter().map(line).collect::<Result<String, _>>()?)
        }
        WanCommand::Show { name: None } => print(&TopologyConfig::template()),
        WanCommand::Show { name: Some(name) } => match find(&name) {
            Some(shipped) => print(shipped.text),
            None => {
                Err(Failed::usage(format!("no built-in topology is named {name}: see `wan list`")))
            }
        },
        WanCommand::Table { topology } => print(&Topology::of(&read(&topology)?).table()),
        WanCommand::Hold { topology, name, network, per, seed, lasts_ms, partial, tied } => {
            let topology = Topology::of(&read(&topology)?);
            let ports = if per == "cluster" { PortOf::Cluster } else { PortOf::Node };
            let lasts = Duration::from_millis(lasts_ms);
            let order = Order { name, topology, network, ports, seed, lasts, partial, tied };
            // The network survives the end of its terminal.
            sys::leave_session().map_err(Failed::failure)?;
            hold(order, &home()?, || {
                // The parent process waits for this line.
                let _ = print("ready\n");
            })
            .map_err(Failed::failure)
        }
    }
}

fn find(name: &str) -> Option<&'static Shipped> {
    TOPOLOGIES.iter().find(|shipped| shipped.name == name)
}

fn parse(sources: &Sources) -> Result<TopologyConfig, Failed> {
    Ok(load::<TopologyConfig>(sources)?.value)
}

/// Reads a topology from a file, or a built-in one.
fn read(topology: &Path) -> Result<TopologyConfig, Failed> {
    match find(&topology.to_string_lossy()).filter(|_| !topology.exists()) {
        Some(shipped) => parse(&Sources::of_text(shipped.name, shipped.text)),
        None => parse(&Sources::of_process(Some(topology))),
    }
}

/// The failure that a network's error becomes.
pub fn failed(error: PlaceError) -> Failed {
    match error {
        PlaceError::NotUp { .. } | PlaceError::None | PlaceError::Several(_) => {
            Failed::usage(error)
        }
        error => Failed::failure(error),
    }
}

fn home() -> Result<PathBuf, Failed> {
    place::home().map_err(failed)
}

/// The settings of a network.
#[derive(Clone, Copy, Debug)]
pub struct NetworkSettings {
    /// The emulation of the network.
    pub network: Carries,
    /// The owners of namespaces: nodes or clusters.
    pub per: PortOf,
    /// The random seed of losses and jitter.
    pub seed: u64,
    /// The time after which the network ends.
    pub lasts: Duration,
    /// Whether to accept missing features of the kernel.
    pub partial: bool,
}

/// The maximum number of a network's shortcomings printed at its start.
const NOTES: usize = 3;

fn up(file: &Path, name: Option<Name>, settings: &NetworkSettings) -> Result<(), Failed> {
    let config = read(file)?;
    let name = name.unwrap_or_else(|| config.name.clone()).to_string();
    let network = Network::start(file, &name, settings)?;
    let status = network.status()?;
    let first: Vec<String> =
        status.nodes.iter().take(4).map(|(node, address)| format!("{node} {address}")).collect();
    let more = if status.nodes.len() > first.len() { ", .." } else { "" };
    let mut text = format!(
        "network {name} is up: {} nodes ({}{more}), for {}\n",
        status.nodes.len(),
        first.join(", "),
        Time::from(settings.lasts)
    );
    if let Some(table) = &status.table {
        text += &format!(
            "programs of Springtide use it with `wan exec NODE springtide ...`, or with this line \
            in a grid's config\n    net.shape = {}\n",
            toml::Value::from(table.display().to_string())
        );
    }
    for note in status.notes.iter().take(NOTES) {
        text += &format!("{note}\n");
    }
    match status.notes.len().saturating_sub(NOTES) {
        0 => {}
        more => text += &format!("and {more} more: see `wan status {name}`\n"),
    }
    print(&text)
}

/// A network that this process started.
pub struct Network {
    home: PathBuf,
    name: String,
    /// The pipe that keeps a tied network up: its holder reads from it.
    keep_alive: Option<ChildStdin>,
    /// Whether the network is to end.
    is_ending: Arc<AtomicBool>,
}

impl Network {
    /// Starts a network and waits until it is usable.
    ///
    /// # Errors
    /// A network of this name is up, or it cannot be started; nothing remains.
    pub fn start(file: &Path, name: &str, settings: &NetworkSettings) -> Result<Self, Failed> {
        let home = home()?;
        hold_apart(&home, file, name, settings, false)?;
        Ok(Self { home, name: name.to_owned(), keep_alive: None, is_ending: Arc::default() })
    }

    /// Starts a network that ends with this process, even if the process is killed.
    ///
    /// # Errors
    /// As [`Network::start`].
    pub fn start_tied(file: &Path, name: &str, settings: &NetworkSettings) -> Result<Self, Failed> {
        let home = home()?;
        let keep_alive = hold_apart(&home, file, name, settings, true)?;
        Ok(Self { home, name: name.to_owned(), keep_alive, is_ending: Arc::default() })
    }

    /// The state of the network.
    ///
    /// # Errors
    /// The network has ended.
    pub fn status(&self) -> Result<Status, Failed> {
        place::status(&self.home, &self.name).map_err(failed)
    }

    /// Lets the network remove these control groups and this folder, should this process end
    /// without doing so. Should the network end first, this process is asked to end: its nodes
    /// cannot reach each other any longer.
    ///
    /// # Errors
    /// The network has ended.
    pub fn tie(&self, groups: Vec<PathBuf>, folder: PathBuf) -> Result<(), Failed> {
        let ended =
            |error: std::io::Error| Failed::failure(format!("network {}: {error}", self.name));
        let mut line = UnixStream::connect(place::socket(&self.home, &self.name)).map_err(ended)?;
        let pid = std::process::id();
        place::say(&mut line, &Request::Tie { pid, groups, folder }).map_err(ended)?;
        place::hear::<Answer>(&line).map_err(ended)?;
        let (name, is_ending) = (self.name.clone(), self.is_ending.clone());
        std::thread::spawn(move || {
            let _ = place::hear::<Answer>(&line);
            if is_ending.load(Ordering::Acquire) {
                return;
            }
            tracing::error!("network {name} has ended, which ends the run");
            sys::end(i32::try_from(pid).unwrap_or(i32::MAX), false);
        });
        Ok(())
    }

    /// Changes links of the network.
    ///
    /// # Errors
    /// The network has ended, or has no such cluster.
    pub fn change(&self, changes: &[Change]) -> Result<(), Failed> {
        let answer = place::ask(&self.home, &self.name, &Request::Change(changes.to_vec()));
        answer.map(drop).map_err(failed)
    }

    /// The user namespace of the network, if it has its own.
    ///
    /// # Errors
    /// The network has ended.
    pub fn users(&self) -> Result<Option<OwnedFd>, Failed> {
        let status = self.status()?;
        if status.own_users { open_of(&status, "ns/user").map(Some) } else { Ok(None) }
    }

    /// The network namespaces, by the names of their clusters or nodes.
    ///
    /// # Errors
    /// The network has ended.
    pub fn spaces(&self) -> Result<BTreeMap<String, OwnedFd>, Failed> {
        let status = self.status()?;
        let spaces = status.spaces.iter();
        let open = spaces.map(|space| {
            Ok((space.name.clone(), open_of(&status, &format!("fd/{}", space.file))?))
        });
        open.collect()
    }
}

impl Drop for Network {
    /// Ends a tied network in order.
    fn drop(&mut self) {
        self.is_ending.store(true, Ordering::Release);
        if self.keep_alive.is_some() {
            let _ = place::ask(&self.home, &self.name, &Request::Down);
        }
    }
}

/// Opens a file of the process that holds a network.
fn open_of(status: &Status, what: &str) -> Result<OwnedFd, Failed> {
    let path = format!("/proc/{}/{what}", status.pid);
    std::fs::File::open(&path)
        .map(OwnedFd::from)
        .map_err(|error| Failed::failure(format!("{path}: {error}")))
}

/// Starts the process that holds a network, and waits until the network is up.
fn hold_apart(
    home: &Path,
    file: &Path,
    name: &str,
    settings: &NetworkSettings,
    tied: bool,
) -> Result<Option<ChildStdin>, Failed> {
    if place::all(home).map_err(failed)?.iter().any(|other| other == name) {
        return Err(Failed::usage(format!(
            "a network named {name} is up: end it with `wan down {name}`, or choose another --name"
        )));
    }
    let log = place::log(home, name);
    let said = create_file(&log)?;
    let this = std::env::current_exe().map_err(Failed::failure)?;
    let per = if settings.per == PortOf::Cluster { "cluster" } else { "node" };
    let mut holder = Command::new(this)
        .args(["wan", "hold"])
        .arg(file)
        .args([name, settings.network.word(), per, &settings.seed.to_string()])
        .arg(settings.lasts.as_millis().to_string())
        .args(settings.partial.then_some("--partial"))
        .args(tied.then_some("--tied"))
        .stdin(if tied { Stdio::piped() } else { Stdio::null() })
        .stdout(Stdio::piped())
        .stderr(said)
        .spawn()
        .map_err(Failed::failure)?;
    let keep_alive = holder.stdin.take();
    let stdout = holder.stdout.take();
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let mut line = String::new();
        let read = stdout.map(|stdout| BufReader::new(stdout).read_line(&mut line));
        let _ = sender.send(matches!(read, Some(Ok(count)) if count > 0));
    });
    if !receiver.recv_timeout(START_TIMEOUT).unwrap_or(false) {
        // The process may be stuck. No effect if it has ended.
        let _ = holder.kill();
        let _ = holder.wait();
        let why = std::fs::read_to_string(&log).unwrap_or_default();
        let _ = std::fs::remove_file(&log);
        let why = why.trim().trim_start_matches("springtide: ").to_owned();
        let why = if why.is_empty() { "no reason was given".to_owned() } else { why };
        let other = match settings.network {
            Carries::Router => {
                "; `wan doctor` says what this host supports; programs of Springtide can use \
                `--network sockets` on every host"
            }
            Carries::Kernel => {
                "; `wan doctor` says what this host supports; `--network router` needs no queues \
                of the kernel"
            }
            Carries::Sockets => "",
        };
        return Err(Failed::failure(format!("network {name} is not up: {why}{other}")));
    }
    Ok(keep_alive)
}

fn down(name: Option<&str>) -> Result<(), Failed> {
    let home = home()?;
    let name = place::choose(&home, name).map_err(failed)?;
    place::ask(&home, &name, &Request::Down).map_err(failed)?;
    print(&format!("network {name} is down\n"))
}

fn status(name: Option<&str>, json: bool) -> Result<(), Failed> {
    let home = home()?;
    let name = place::choose(&home, name).map_err(failed)?;
    let status = place::status(&home, &name).map_err(failed)?;
    if json {
        let mut value = serde_json::to_value(&status).map_err(Failed::failure)?;
        value["schema"] = 1.into();
        return print(&format!("{value}\n"));
    }
    print(&status_text(&status))
}

fn rate(rate: Option<u64>) -> String {
    rate.map_or("-".to_owned(), |rate| format!("{} kB/s", rate as f64 / 1e3))
}

fn status_text(status: &Status) -> String {
    let mut text = format!(
        "network {}: {} nodes by {}, ends in {:.0} s",
        status.name,
        status.nodes.len(),
        status.network.word(),
        status.left_s,
    );
    text += &match (status.late_us, &status.table) {
        (Some([half, most, latest]), _) => {
            format!(
                "; late by {half:.0} us (half), {most:.0} us (99 of 100), {latest:.0} us \
                (maximum)\n"
            )
        }
        (None, Some(table)) => {
            format!("; net.shape = {}\n", toml::Value::from(table.display().to_string()))
        }
        (None, None) => "\n".to_owned(),
    };
    for note in &status.notes {
        text += &format!("{note}\n");
    }
    if status.unroutable + status.refused > 0 {
        text += &format!(
            "{} packets without a receiver, {} refused by Linux\n",
            status.unroutable, status.refused
        );
    }
    text += &format!(
        "{:24} {:>10} {:>9} {:>7} {:>12} {:>10} {:>12} {:>8}\n",
        "link", "delay", "jitter", "loss", "rate", "packets", "bytes", "lost"
    );
    for line in &status.lines {
        let LinkProfile { delay_us, jitter_us, loss, rate: limit, up, .. } = &line.profile;
        let name = if line.from == line.to {
            format!("{} inside", line.from)
        } else {
            format!("{}>{}", line.from, line.to)
        };
        let (ms, percent) = (|us: &u64| format!("{} ms", *us as f64 / 1e3), loss * 100.0);
        let state = if line.cut || !up { "  down" } else { "" };
        text += &format!(
            "{name:24} {:>10} {:>9} {percent:>5.2} % {:>12} {:>10} {:>12} {:>8}{state}\n",
            ms(delay_us),
            ms(jitter_us),
            rate(*limit),
            line.counts.packets,
            line.counts.bytes,
            line.counts.lost
        );
    }
    for stub in &status.stubs {
        let way = if stub.up { "out of" } else { "into" };
        text += &format!("{way} {}: {}\n", stub.cluster, rate(stub.profile.rate));
    }
    text
}

fn exec(name: Option<&str>, node: &str, command: &[String]) -> Result<(), Failed> {
    let home = home()?;
    let name = place::choose(&home, name).map_err(failed)?;
    let status = place::status(&home, &name).map_err(failed)?;
    let address = status.nodes.iter().find(|(other, _)| other == node).map(|(_, address)| *address);
    let cluster = node.rsplit_once('-').map_or(node, |(cluster, _)| cluster);
    let unknown = |known: Vec<&str>| {
        let reason = format!("network {name} has no {node}: it has {}", known.join(", "));
        Failed::usage(reason)
    };
    let mut spaces = Vec::new();
    let mut within = None;
    if status.network == Carries::Sockets {
        if address.is_none() {
            return Err(unknown(status.nodes.iter().map(|(node, _)| node.as_str()).collect()));
        }
    } else {
        let space = match status.ports {
            PortOf::Node => node,
            PortOf::Cluster => address.map_or(node, |_| cluster),
        };
        let Some(space) = status.spaces.iter().find(|other| other.name == space) else {
            return Err(unknown(status.spaces.iter().map(|space| space.name.as_str()).collect()));
        };
        if status.own_users {
            spaces.push((open_of(&status, "ns/user")?, Space::User));
        }
        let space = open_of(&status, &format!("fd/{}", space.file))?;
        within = sys::number_of(&space).ok().map(|number| Within::Spaces(vec![number]));
        spaces.push((space, Space::Net));
    }
    let (program, arguments) = command.split_first().ok_or_else(|| Failed::usage("no command"))?;
    let mut child = Command::new(program);
    child.args(arguments);
    if let Some(address) = address {
        child.env("SPRINGTIDE_WAN_ADDRESS", address.to_string());
        if let Some(table) = &status.table {
            // Programs of other origin run as without a network.
            child.env(SHAPE, table);
            within = Some(Within::Table(table.clone()));
            child.env("SPRINGTIDE_NET__BIND", format!("{address}:0"));
            if !is_ours(program) {
                eprintln!(
                    "note: network {name} shapes only the sockets of Springtide's own programs and \
                    of those built with its library; others run as without a network (`wan up \
                    --network router` shapes all)"
                );
            }
        }
    }
    sys::run_in(&mut child, spaces);
    // Programs in a network end with it, even if it was killed.
    let ended = |error: std::io::Error| Failed::failure(format!("network {name}: {error}"));
    let mut line = UnixStream::connect(place::socket(&home, &name)).map_err(ended)?;
    place::say(&mut line, &Request::Stay).map_err(ended)?;
    let mut child = child.spawn().map_err(|error| Failed::usage(format!("{program}: {error}")))?;
    let pid = i32::try_from(child.id()).unwrap_or(i32::MAX);
    std::thread::spawn(move || {
        let _ = place::hear::<Answer>(&line);
        sys::end(pid, true);
        // Processes that the program left running end, too: they could reach no other process.
        within.iter().flat_map(Within::programs).for_each(|pid| sys::end(pid, true));
    });
    std::thread::spawn(move || pass_on(pid));
    let ended = child.wait().map_err(Failed::failure)?;
    let _ = std::io::stdout().flush();
    match (ended.code(), ended.signal()) {
        (Some(0), _) => Ok(()),
        (Some(code), _) => std::process::exit(code),
        (None, signal) => std::process::exit(128 + signal.unwrap_or(0)),
    }
}

/// Whether a command is this program.
fn is_ours(program: &str) -> bool {
    let mine = std::env::current_exe().ok();
    let given = Path::new(program).file_name();
    mine.is_some_and(|mine| mine.file_name() == given)
}

/// Leaves the reaction to a signal to the program, which the terminal signals as well: the program
/// may print last lines.
fn pass_on(pid: i32) {
    use tokio::signal::unix::{SignalKind, signal};
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build();
    let Ok(runtime) = runtime else { return };
    runtime.block_on(async {
        let kinds = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()];
        let [Ok(mut interrupt), Ok(mut terminate), Ok(mut hangup)] = kinds.map(signal) else {
            return;
        };
        loop {
            tokio::select! {
                biased;
                _ = terminate.recv() => sys::end(pid, false),
                _ = hangup.recv() => sys::end(pid, false),
                _ = interrupt.recv() => {}
            }
        }
    });
}

fn set(name: Option<&str>, link: &str, what: &[String]) -> Result<(), Failed> {
    let home = home()?;
    let name = place::choose(&home, name).map_err(failed)?;
    let wish = Wish::of(what).map_err(Failed::usage)?;
    let asked = link.parse::<Link>().map_err(Failed::usage)?;
    // Only the change is sent, because another command may change the same link.
    let request = Request::Set { link: asked, wish: wish.clone() };
    match place::ask(&home, &name, &request) {
        Ok(Answer::Set(outcome)) => {
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
        Ok(_) => Err(Failed::failure(format!("network {name} belongs to another version"))),
        Err(PlaceError::Refused(reason)) => Err(Failed::usage(reason)),
        Err(error) => Err(failed(error)),
    }
}

fn profiles_text() -> String {
    let rate = |rate: Option<Rate>| rate.map_or("-".to_owned(), |rate| rate.to_string());
    let row = |[name, rtt, jitter, loss, out, back]: [&str; 6]| {
        format!("{name:25} {rtt:>7} {jitter:>7} {loss:>8} {out:>12} {back:>12}\n")
    };
    let mut text = row(["profile", "rtt", "jitter", "loss", "bandwidth", "back"]);
    for profile in profiles() {
        let line = Line::from(profile);
        let time = |time: Duration| Time::from(time).to_string();
        let loss = format!("{} %", (line.loss * 1e4).round() / 100.0);
        let (out, back) = (rate(line.bandwidth), rate(line.bandwidth_back));
        let (rtt, jitter) = (time(line.rtt), time(line.jitter));
        text += &row([&profile.name, &rtt, &jitter, &loss, &out, &back]);
        text += &format!("    {}\n", profile.why);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_topology_is_reported_and_profiles_are_listed() {
        let wan = |command| {
            let registry = Arc::new(Registry::new());
            wan(command, registry, "1", &GlobalArgs::default())
        };
        let missing = wan(WanCommand::Table { topology: "no-such.toml".into() }).unwrap_err();
        assert!(missing.message.contains("no-such.toml"), "{}", missing.message);
        let unknown = wan(WanCommand::Show { name: Some("pairr".into()) }).unwrap_err();
        assert!(unknown.message.contains("`wan list`"), "{}", unknown.message);
        assert_eq!(read(Path::new("pair")).unwrap().cluster.len(), 2);
        let answer = profiles_text();
        assert!(
            answer.lines().any(|line| line.starts_with("wan-50 ") && line.contains("50ms")),
            "{answer}"
        );
    }
}
