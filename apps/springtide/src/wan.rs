//! `wan`: emulated wide-area networks.
//!
//! Must not know how they are emulated.

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

/// A network of forty nodes takes a second at most.
const UP_WITHIN: Duration = Duration::from_secs(20);

/// `wan ...`
#[derive(Subcommand, Clone, Debug)]
pub enum WanCommand {
    /// Start a network that delays, loses and limits as the topology says
    Up {
        /// Its file, or the name of one that comes with this program (`wan list`)
        #[arg(value_name = "TOPOLOGY", value_hint = ValueHint::FilePath)]
        topology: PathBuf,
        /// Its name [default: the topology's]
        #[arg(long, value_name = "NAME")]
        name: Option<Name>,
        /// What carries it: a router between network namespaces, the kernel's own queues between them (needs tc, and for all but rates netem),
        /// or the nodes' own sockets (needs no rights; for programs of Springtide's alone)
        #[arg(long, value_name = "WHAT", default_value = "router", value_parser = words::<Carries>(&["router", "kernel", "sockets"]),
              hide_possible_values = true)]
        network: Carries,
        /// Who has a namespace: each node, or each cluster, whose nodes then share one [default: node; by the kernel, cluster]
        #[arg(long, value_name = "WHAT", value_parser = ["node", "cluster"], hide_possible_values = true)]
        per: Option<String>,
        /// Of losses and jitter, but for the kernel's
        #[arg(long, value_name = "N", default_value_t = 1)]
        seed: u64,
        /// By the kernel: take a network that lacks what this one cannot do, rather than none
        #[arg(long)]
        partial: bool,
        /// It ends by itself after this time
        #[arg(long = "for", value_name = "TIME", default_value = "1h", value_parser = time)]
        lasts: Duration,
    },
    /// End a network, with the programs that run in it
    Down {
        /// Which [default: the only one that is up]
        #[arg(value_name = "NAME")]
        name: Option<String>,
    },
    /// Show what networks are up, what their links are like, and what they carried
    Status {
        /// Which [default: the only one that is up]
        #[arg(value_name = "NAME")]
        name: Option<String>,
        /// Print it as one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Run a program on a node: any program. Its exit code is this command's
    Exec {
        /// In which network [default: the only one that is up]
        #[arg(long, value_name = "NAME")]
        wan: Option<String>,
        /// The node; where clusters have the namespaces, the cluster
        #[arg(value_name = "NODE")]
        node: String,
        /// The program and its arguments. SPRINGTIDE_WAN_ADDRESS is its node's address
        #[arg(
            value_name = "CMD",
            required = true,
            trailing_var_arg = true,
            allow_hyphen_values = true
        )]
        command: Vec<String>,
    },
    /// Try what this machine can do for emulated networks, and say why not
    Doctor {
        /// Print it as one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Play a scenario with live node processes over an emulated network, on processors that are slowed down
    Run(LiveArgs),
    /// Show live runs side by side: times, the paper's reductions, what simulated time predicts
    Report {
        /// Directories of runs (`wan run --out`), or with runs below them
        #[arg(value_name = "DIR", required = true, value_hint = ValueHint::DirPath)]
        runs: Vec<PathBuf>,
        /// Directory for a figure (SVG) of each scenario
        #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
        figures: Option<PathBuf>,
        /// Print it as one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Change a link while programs run
    Set {
        /// In which network [default: the only one that is up]
        #[arg(long, value_name = "NAME")]
        wan: Option<String>,
        /// `A,B`: the line between two clusters, both ways; `A>B`: one way; `A`: a cluster's uplink, both ways; `A>`: out of it; `>A`: into it
        #[arg(value_name = "LINK")]
        link: String,
        /// profile=NAME, rtt=50ms, jitter=5ms, loss=0.01, bandwidth=1MB/s (or none), queue=250000 (bytes), reorder=true; or down, or up.
        /// As in a topology's file: a profile is all of a line but for what else is given, and of an uplink its rates and its queue
        #[arg(value_name = "WHAT", required = true)]
        what: Vec<String>,
    },
    /// List the link profiles that come with this program, and why each exists
    Profiles,
    /// List the topologies that come with this program
    List,
    /// Print a topology's file: one that comes with this program, or an example with every key
    Show {
        /// Its name
        #[arg(value_name = "NAME")]
        name: Option<String>,
    },
    /// Print a topology as the table that `netem-scripts/kernel.sh` reads
    Table {
        /// Its file, or the name of one that comes with this program
        #[arg(value_name = "TOPOLOGY", value_hint = ValueHint::FilePath)]
        topology: PathBuf,
    },
    /// Hold a network: what `wan up` starts
    #[command(hide = true)]
    Hold {
        /// Its file
        topology: PathBuf,
        /// Its name
        name: String,
        /// What carries it
        #[arg(value_parser = words::<Carries>(&["router", "kernel", "sockets"]))]
        network: Carries,
        /// Who has a namespace
        #[arg(value_parser = ["node", "cluster"])]
        per: String,
        /// Of losses and jitter
        seed: u64,
        /// It ends after so many milliseconds
        lasts_ms: u64,
        /// Rather than none
        #[arg(long)]
        partial: bool,
        /// It ends with its standard input
        #[arg(long)]
        tied: bool,
    },
}

/// Does it.
///
/// # Errors
/// As told.
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
                    let reason = "the kernel's networks have a namespace for each cluster: leave out --per, or use `--network router`";
                    return Err(Failed::usage(reason));
                }
                Some("cluster") => PortOf::Cluster,
                None if clusters => PortOf::Cluster,
                _ => PortOf::Node,
            };
            up(&topology, name, &How { network, per, seed, lasts, partial })
        }
        WanCommand::Down { name } => down(name.as_deref()),
        WanCommand::Status { name, json } => status(name.as_deref(), json),
        WanCommand::Exec { wan, node, command } => exec(wan.as_deref(), &node, &command),
        WanCommand::Set { wan, link, what } => set(wan.as_deref(), &link, &what),
        WanCommand::Profiles => print(&told_profiles()),
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
            None => Err(Failed::usage(format!(
                "no topology of this program is named {name}: see `wan list`"
            ))),
        },
        WanCommand::Table { topology } => print(&Topology::of(&read(&topology)?).table()),
        WanCommand::Hold { topology, name, network, per, seed, lasts_ms, partial, tied } => {
            let topology = Topology::of(&read(&topology)?);
            let ports = if per == "cluster" { PortOf::Cluster } else { PortOf::Node };
            let lasts = Duration::from_millis(lasts_ms);
            let order = Order { name, topology, network, ports, seed, lasts, partial, tied };
            // Whatever ends the terminal does not end it.
            sys::leave_session().map_err(Failed::failure)?;
            hold(order, &home()?, || {
                // Whoever started it waits for this.
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

/// A file, or one that comes with the program.
fn read(topology: &Path) -> Result<TopologyConfig, Failed> {
    match find(&topology.to_string_lossy()).filter(|_| !topology.exists()) {
        Some(shipped) => parse(&Sources::of_text(shipped.name, shipped.text)),
        None => parse(&Sources::of_process(Some(topology))),
    }
}

/// A failure of a network.
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

/// What a network is to be made of.
#[derive(Clone, Copy, Debug)]
pub struct How {
    /// What carries it.
    pub network: Carries,
    /// Who has a namespace.
    pub per: PortOf,
    /// Of losses and jitter.
    pub seed: u64,
    /// It ends by itself after this time.
    pub lasts: Duration,
    /// Whether one that lacks what the kernel cannot do is taken.
    pub partial: bool,
}

/// So many of a network's shortcomings are told when it comes up.
const NOTES: usize = 3;

fn up(file: &Path, name: Option<Name>, how: &How) -> Result<(), Failed> {
    let config = read(file)?;
    let name = name.unwrap_or_else(|| config.name.clone()).to_string();
    let network = Network::start(file, &name, how)?;
    let status = network.status()?;
    let first: Vec<String> =
        status.nodes.iter().take(4).map(|(node, address)| format!("{node} {address}")).collect();
    let more = if status.nodes.len() > first.len() { ", .." } else { "" };
    let mut text = format!(
        "network {name} is up: {} nodes ({}{more}), for {}\n",
        status.nodes.len(),
        first.join(", "),
        Time::from(how.lasts)
    );
    if let Some(table) = &status.table {
        text += &format!(
            "programs of Springtide's take it with `wan exec NODE springtide ...`, or where a grid's file has\n    net.shape = {}\n",
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

/// A network that was started.
pub struct Network {
    home: PathBuf,
    name: String,
    /// What keeps it, if it ends with this process: its holder reads from it.
    keeps: Option<ChildStdin>,
    /// It is to end.
    over: Arc<AtomicBool>,
}

impl Network {
    /// Starts one, and waits until it can be used.
    ///
    /// # Errors
    /// One of this name is up, or it cannot be had; nothing is left.
    pub fn start(file: &Path, name: &str, how: &How) -> Result<Self, Failed> {
        let home = home()?;
        hold_apart(&home, file, name, how, false)?;
        Ok(Self { home, name: name.to_owned(), keeps: None, over: Arc::default() })
    }

    /// Starts one that ends with this process, however that ends.
    ///
    /// # Errors
    /// As [`Network::start`].
    pub fn start_tied(file: &Path, name: &str, how: &How) -> Result<Self, Failed> {
        let home = home()?;
        let keeps = hold_apart(&home, file, name, how, true)?;
        Ok(Self { home, name: name.to_owned(), keeps, over: Arc::default() })
    }

    /// What it is, and how it does.
    ///
    /// # Errors
    /// It is gone.
    pub fn status(&self) -> Result<Status, Failed> {
        place::status(&self.home, &self.name).map_err(failed)
    }

    /// Lets it remove these groups and this folder when this process has ended without doing so. Should the network end before, then
    /// this process is asked to end, too: its nodes cannot reach each other any more.
    ///
    /// # Errors
    /// It is gone.
    pub fn tie(&self, groups: Vec<PathBuf>, folder: PathBuf) -> Result<(), Failed> {
        let gone =
            |error: std::io::Error| Failed::failure(format!("network {}: {error}", self.name));
        let mut line = UnixStream::connect(place::socket(&self.home, &self.name)).map_err(gone)?;
        let pid = std::process::id();
        place::say(&mut line, &Request::Tie { pid, groups, folder }).map_err(gone)?;
        place::hear::<Answer>(&line).map_err(gone)?;
        let (name, over) = (self.name.clone(), self.over.clone());
        std::thread::spawn(move || {
            let _ = place::hear::<Answer>(&line);
            if over.load(Ordering::Acquire) {
                return;
            }
            tracing::error!("network {name} has ended: so does the run");
            sys::end(i32::try_from(pid).unwrap_or(i32::MAX), false);
        });
        Ok(())
    }

    /// Changes its links.
    ///
    /// # Errors
    /// It is gone, or has no such cluster.
    pub fn change(&self, changes: &[Change]) -> Result<(), Failed> {
        let told = place::ask(&self.home, &self.name, &Request::Change(changes.to_vec()));
        told.map(drop).map_err(failed)
    }

    /// Its space of users, if it has one of its own.
    ///
    /// # Errors
    /// It is gone.
    pub fn users(&self) -> Result<Option<OwnedFd>, Failed> {
        let status = self.status()?;
        if status.own_users { open_of(&status, "ns/user").map(Some) } else { Ok(None) }
    }

    /// Its spaces, by the name of the cluster or node that each is of.
    ///
    /// # Errors
    /// It is gone.
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
    /// One that is tied ends in order.
    fn drop(&mut self) {
        self.over.store(true, Ordering::Release);
        if self.keeps.is_some() {
            let _ = place::ask(&self.home, &self.name, &Request::Down);
        }
    }
}

/// A file of the process that holds a network.
fn open_of(status: &Status, what: &str) -> Result<OwnedFd, Failed> {
    let path = format!("/proc/{}/{what}", status.pid);
    std::fs::File::open(&path)
        .map(OwnedFd::from)
        .map_err(|error| Failed::failure(format!("{path}: {error}")))
}

/// Starts the process that holds a network, and waits until it does.
fn hold_apart(
    home: &Path,
    file: &Path,
    name: &str,
    how: &How,
    tied: bool,
) -> Result<Option<ChildStdin>, Failed> {
    if place::all(home).map_err(failed)?.iter().any(|other| other == name) {
        return Err(Failed::usage(format!(
            "a network named {name} is up: end it with `wan down {name}`, or give this one another --name"
        )));
    }
    let log = place::log(home, name);
    let said = create_file(&log)?;
    let this = std::env::current_exe().map_err(Failed::failure)?;
    let per = if how.per == PortOf::Cluster { "cluster" } else { "node" };
    let mut holder = Command::new(this)
        .args(["wan", "hold"])
        .arg(file)
        .args([name, how.network.word(), per, &how.seed.to_string()])
        .arg(how.lasts.as_millis().to_string())
        .args(how.partial.then_some("--partial"))
        .args(tied.then_some("--tied"))
        .stdin(if tied { Stdio::piped() } else { Stdio::null() })
        .stdout(Stdio::piped())
        .stderr(said)
        .spawn()
        .map_err(Failed::failure)?;
    let keeps = holder.stdin.take();
    let stdout = holder.stdout.take();
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let mut line = String::new();
        let read = stdout.map(|stdout| BufReader::new(stdout).read_line(&mut line));
        let _ = tell.send(matches!(read, Some(Ok(count)) if count > 0));
    });
    if !told.recv_timeout(UP_WITHIN).unwrap_or(false) {
        // It may be stuck; if it has ended, this does nothing.
        let _ = holder.kill();
        let _ = holder.wait();
        let why = std::fs::read_to_string(&log).unwrap_or_default();
        let _ = std::fs::remove_file(&log);
        let why = why.trim().trim_start_matches("springtide: ").to_owned();
        let why = if why.is_empty() { "it did not say why".to_owned() } else { why };
        let other = match how.network {
            Carries::Router => {
                "; `wan doctor` says what this machine can do, and programs of Springtide's need nothing of it with `--network sockets`"
            }
            Carries::Kernel => {
                "; `wan doctor` says what this machine can do; `--network router` needs nothing of its kernel's queues"
            }
            Carries::Sockets => "",
        };
        return Err(Failed::failure(format!("network {name} is not up: {why}{other}")));
    }
    Ok(keeps)
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
    print(&told(&status))
}

fn rate(rate: Option<u64>) -> String {
    rate.map_or("-".to_owned(), |rate| format!("{} kB/s", rate as f64 / 1e3))
}

fn told(status: &Status) -> String {
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
                "; late by {half:.0} us (half), {most:.0} us (99 of 100), {latest:.0} us (the latest)\n"
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
            "{} packets for nobody, {} not taken by Linux\n",
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
            // What knows nothing of it runs as without a network.
            child.env(SHAPE, table);
            within = Some(Within::Table(table.clone()));
            child.env("SPRINGTIDE_NET__BIND", format!("{address}:0"));
            if !is_ours(program) {
                eprintln!(
                    "note: network {name} shapes the sockets of Springtide's own programs, of those built with its library, and of no \
                     others: these run as without a network (`wan up --network router` shapes all)"
                );
            }
        }
    }
    sys::run_in(&mut child, spaces);
    // What runs in a network ends with it, also when that was killed.
    let gone = |error: std::io::Error| Failed::failure(format!("network {name}: {error}"));
    let mut line = UnixStream::connect(place::socket(&home, &name)).map_err(gone)?;
    place::say(&mut line, &Request::Stay).map_err(gone)?;
    let mut child = child.spawn().map_err(|error| Failed::usage(format!("{program}: {error}")))?;
    let pid = i32::try_from(child.id()).unwrap_or(i32::MAX);
    std::thread::spawn(move || {
        let _ = place::hear::<Answer>(&line);
        sys::end(pid, true);
        // What it has started, and left behind, too: it could reach nobody any more.
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

/// Leaves it to a program of `wan exec` what to do when both are told to end: it may have something to say. The terminal tells both.
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
    // What changes is said, not what it becomes: somebody else may be setting the same link.
    let request = Request::Set { link: asked, wish: wish.clone() };
    match place::ask(&home, &name, &request) {
        Ok(Answer::Set(outcome)) => {
            let mut text = format!("{link}: {}\n", what.join(" "));
            let is_down = outcome.links.iter().any(|(_, profile)| !profile.up);
            if is_down && wish.up.is_none() {
                text += &format!("{link} is down: `up` lets it carry again\n");
            }
            if outcome.flaps && wish.profile.is_none() {
                text +=
                    &format!("{link} comes and goes: `up`, `down` or another profile ends that\n");
            }
            for lack in &outcome.lacks {
                eprintln!("warning: {lack}");
            }
            print(&text)
        }
        Ok(_) => Err(Failed::failure(format!("network {name} is another version's"))),
        Err(PlaceError::Refused(reason)) => Err(Failed::usage(reason)),
        Err(error) => Err(failed(error)),
    }
}

fn told_profiles() -> String {
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
    fn a_topology_that_is_not_there_is_told_and_those_that_come_along_are() {
        let wan = |command| {
            let registry = Arc::new(Registry::new());
            wan(command, registry, "1", &GlobalArgs::default())
        };
        let missing = wan(WanCommand::Table { topology: "no-such.toml".into() }).unwrap_err();
        assert!(missing.message.contains("no-such.toml"), "{}", missing.message);
        let unknown = wan(WanCommand::Show { name: Some("pairr".into()) }).unwrap_err();
        assert!(unknown.message.contains("`wan list`"), "{}", unknown.message);
        assert_eq!(read(Path::new("pair")).unwrap().cluster.len(), 2);
        let told = told_profiles();
        assert!(
            told.lines().any(|line| line.starts_with("wan-50 ") && line.contains("50ms")),
            "{told}"
        );
    }
}
