//! Emulated wide-area networks that are up.
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

use springtide_cli::config::load;
use springtide_cli::exit::Failed;
use springtide_cli::outdir::create_file;
use springtide_runtime::config::{Sources, TopologyConfig};
use springtide_wan::hold::{ProgramFilter, SHAPE};
use springtide_wan::place::{self, Backend, ControlAnswer, ControlError, ControlRequest, Status};
use springtide_wan::router::{PortKind, RouterChange};
use springtide_wan::set::{ChangeResult, LinkOverrides, LinkSelector};
use springtide_wan::shipped::{BuiltinFile, TOPOLOGIES};
use springtide_wan::sys::{self, Namespace};

/// Timeout of a network's start. A network of forty nodes takes a second.
const START_TIMEOUT: Duration = Duration::from_secs(20);

/// The built-in topology of a name.
pub fn find(name: &str) -> Option<&'static BuiltinFile> {
    TOPOLOGIES.iter().find(|shipped| shipped.name == name)
}

/// Parses a topology.
///
/// # Errors
/// All mistakes in it.
pub fn parse(sources: &Sources) -> Result<TopologyConfig, Failed> {
    Ok(load::<TopologyConfig>(sources)?.value)
}

/// Reads a topology from a file, or a built-in one.
///
/// # Errors
/// The file cannot be read or is wrong.
pub fn read(topology: &Path) -> Result<TopologyConfig, Failed> {
    match find(&topology.to_string_lossy()).filter(|_| !topology.exists()) {
        Some(shipped) => parse(&Sources::of_text(shipped.name, shipped.text)),
        None => parse(&Sources::of_process(Some(topology))),
    }
}

/// The failure that a network's error becomes.
pub fn failed(error: ControlError) -> Failed {
    match error {
        ControlError::NotUp { .. } | ControlError::None | ControlError::Several(_) => {
            Failed::usage(error)
        }
        error => Failed::failure(error),
    }
}

/// The directory of the networks that are up.
///
/// # Errors
/// It cannot be determined.
pub fn home() -> Result<PathBuf, Failed> {
    place::networks_dir().map_err(failed)
}

/// The settings of a network.
#[derive(Clone, Copy, Debug)]
pub struct NetworkSettings {
    /// The emulation of the network.
    pub network: Backend,
    /// The owners of namespaces: nodes or clusters.
    pub per: PortKind,
    /// The random seed of losses and jitter.
    pub seed: u64,
    /// The time after which the network ends.
    pub lasts: Duration,
    /// Whether to accept missing features of the kernel.
    pub partial: bool,
}

/// A network that this process started.
pub struct RunningNetwork {
    home: PathBuf,
    name: String,
    /// The pipe that keeps a tied network up: its holder reads from it.
    keep_alive: Option<ChildStdin>,
    /// Whether the network is to end.
    is_ending: Arc<AtomicBool>,
}

impl RunningNetwork {
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
        place::write_message(&mut line, &ControlRequest::Tie { pid, groups, folder })
            .map_err(ended)?;
        place::read_message::<ControlAnswer>(&line).map_err(ended)?;
        let (name, is_ending) = (self.name.clone(), self.is_ending.clone());
        std::thread::spawn(move || {
            let _ = place::read_message::<ControlAnswer>(&line);
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
    pub fn change(&self, changes: &[RouterChange]) -> Result<(), Failed> {
        let answer =
            place::send_request(&self.home, &self.name, &ControlRequest::Change(changes.to_vec()));
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

impl Drop for RunningNetwork {
    /// Ends a tied network in order.
    fn drop(&mut self) {
        self.is_ending.store(true, Ordering::Release);
        if self.keep_alive.is_some() {
            let _ = place::send_request(&self.home, &self.name, &ControlRequest::Down);
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
    if place::running_networks(home).map_err(failed)?.iter().any(|other| other == name) {
        return Err(Failed::usage(format!(
            "a network named {name} is up: end it with `wan down {name}`, or choose another --name"
        )));
    }
    let log = place::log(home, name);
    let said = create_file(&log)?;
    let this = std::env::current_exe().map_err(Failed::failure)?;
    let per = if settings.per == PortKind::Cluster { "cluster" } else { "node" };
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
            Backend::Router => {
                "; `wan doctor` says what this host supports; programs of Springtide can use \
                `--network sockets` on every host"
            }
            Backend::Kernel => {
                "; `wan doctor` says what this host supports; `--network router` needs no queues \
                of the kernel"
            }
            Backend::Sockets => "",
        };
        return Err(Failed::failure(format!("network {name} is not up: {why}{other}")));
    }
    Ok(keep_alive)
}

/// Runs a program on a node of a network, and ends this process with the program's exit code.
///
/// # Errors
/// The network or the node does not exist, or the program cannot be started.
pub fn exec(name: Option<&str>, node: &str, command: &[String]) -> Result<(), Failed> {
    let home = home()?;
    let name = place::find_network(&home, name).map_err(failed)?;
    let status = place::status(&home, &name).map_err(failed)?;
    let address = status.nodes.iter().find(|(other, _)| other == node).map(|(_, address)| *address);
    let cluster = node.rsplit_once('-').map_or(node, |(cluster, _)| cluster);
    let unknown = |known: Vec<&str>| {
        let reason = format!("network {name} has no {node}: it has {}", known.join(", "));
        Failed::usage(reason)
    };
    let mut spaces = Vec::new();
    let mut within = None;
    if status.network == Backend::Sockets {
        if address.is_none() {
            return Err(unknown(status.nodes.iter().map(|(node, _)| node.as_str()).collect()));
        }
    } else {
        let space = match status.ports {
            PortKind::Node => node,
            PortKind::Cluster => address.map_or(node, |_| cluster),
        };
        let Some(space) = status.spaces.iter().find(|other| other.name == space) else {
            return Err(unknown(status.spaces.iter().map(|space| space.name.as_str()).collect()));
        };
        if status.own_users {
            spaces.push((open_of(&status, "ns/user")?, Namespace::User));
        }
        let space = open_of(&status, &format!("fd/{}", space.file))?;
        within = sys::inode_of(&space).ok().map(|number| ProgramFilter::Spaces(vec![number]));
        spaces.push((space, Namespace::Net));
    }
    let (program, arguments) = command.split_first().ok_or_else(|| Failed::usage("no command"))?;
    let mut child = Command::new(program);
    child.args(arguments);
    if let Some(address) = address {
        child.env("SPRINGTIDE_WAN_ADDRESS", address.to_string());
        if let Some(table) = &status.table {
            // Programs of other origin run as without a network.
            child.env(SHAPE, table);
            within = Some(ProgramFilter::Table(table.clone()));
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
    sys::run_in_namespaces(&mut child, spaces);
    // Programs in a network end with it, even if it was killed.
    let ended = |error: std::io::Error| Failed::failure(format!("network {name}: {error}"));
    let mut line = UnixStream::connect(place::socket(&home, &name)).map_err(ended)?;
    place::write_message(&mut line, &ControlRequest::Stay).map_err(ended)?;
    let mut child = child.spawn().map_err(|error| Failed::usage(format!("{program}: {error}")))?;
    let pid = i32::try_from(child.id()).unwrap_or(i32::MAX);
    std::thread::spawn(move || {
        let _ = place::read_message::<ControlAnswer>(&line);
        sys::end(pid, true);
        // Processes that the program left running end, too: they could reach no other process.
        within.iter().flat_map(ProgramFilter::programs).for_each(|pid| sys::end(pid, true));
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

/// Ends a network, or the only one that is up. Returns its name.
///
/// # Errors
/// No such network is up.
pub fn down(name: Option<&str>) -> Result<String, Failed> {
    let home = home()?;
    let name = place::find_network(&home, name).map_err(failed)?;
    place::send_request(&home, &name, &ControlRequest::Down).map_err(failed)?;
    Ok(name)
}

/// The state of a network, or of the only one that is up.
///
/// # Errors
/// No such network is up.
pub fn status(name: Option<&str>) -> Result<Status, Failed> {
    let home = home()?;
    let name = place::find_network(&home, name).map_err(failed)?;
    place::status(&home, &name).map_err(failed)
}

/// Changes a link of a network. Returns what the network did.
///
/// # Errors
/// No such network is up, or it has no such link.
pub fn set(name: Option<&str>, link: &str, wish: &LinkOverrides) -> Result<ChangeResult, Failed> {
    let home = home()?;
    let name = place::find_network(&home, name).map_err(failed)?;
    let asked = link.parse::<LinkSelector>().map_err(Failed::usage)?;
    // Only the change is sent, because another command may change the same link.
    match place::send_request(
        &home,
        &name,
        &ControlRequest::Set { link: asked, wish: wish.clone() },
    ) {
        Ok(ControlAnswer::Set(outcome)) => Ok(outcome),
        Ok(_) => Err(Failed::failure(format!("network {name} belongs to another version"))),
        Err(ControlError::Refused(reason)) => Err(Failed::usage(reason)),
        Err(error) => Err(failed(error)),
    }
}
