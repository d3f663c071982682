//! Emulated wide-area networks that are up.
//!
//! This module does not know the emulation itself.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use springtide_cli::config::load;
use springtide_cli::exit::{Exit, Failed};
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
    /// As [`RunningNetwork::start`].
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
        let mut line = place::connect(&place::socket(&self.home, &self.name)).map_err(ended)?;
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

/// A running network whose nodes run programs.
pub struct NetworkPrograms {
    home: PathBuf,
    status: Status,
}

/// A program on a node.
pub struct NodeProgram {
    /// The command, ready to start.
    pub command: Command,
    /// The program and the processes that it starts.
    within: Option<ProgramFilter>,
}

impl NetworkPrograms {
    /// Finds a network: that of this name, or the only one.
    ///
    /// # Errors
    /// There is none, or more than one.
    pub fn of(name: Option<&str>) -> Result<Self, Failed> {
        let home = home()?;
        let name = place::find_network(&home, name).map_err(failed)?;
        let status = place::status(&home, &name).map_err(failed)?;
        Ok(Self { home, status })
    }

    /// The names of all nodes.
    pub fn nodes(&self) -> impl Iterator<Item = &str> {
        self.status.nodes.iter().map(|(node, _)| node.as_str())
    }

    /// Prepares a program on a node, or on a cluster that owns a namespace.
    ///
    /// # Errors
    /// The network has no such node.
    pub fn on(&self, node: &str, command: &[String]) -> Result<NodeProgram, Failed> {
        let status = &self.status;
        let address = status.nodes.iter().find(|(other, _)| other == node);
        let address = address.map(|(_, address)| *address);
        let cluster = node.rsplit_once('-').map_or(node, |(cluster, _)| cluster);
        let unknown = |known: Vec<&str>| {
            let reason =
                format!("network {} has no {node}: it has {}", status.name, known.join(", "));
            Failed::usage(reason)
        };
        let mut spaces = Vec::new();
        let (mut within, mut hosts) = (None, None);
        if status.network == Backend::Sockets {
            if address.is_none() {
                return Err(unknown(self.nodes().collect()));
            }
        } else {
            let space = match status.ports {
                PortKind::Node => node,
                PortKind::Cluster => address.map_or(node, |_| cluster),
            };
            let Some(space) = status.spaces.iter().find(|other| other.name == space) else {
                let known = status.spaces.iter().map(|space| space.name.as_str());
                return Err(unknown(known.collect()));
            };
            if status.own_users {
                spaces.push((open_of(status, "ns/user")?, Namespace::User));
            }
            let space = open_of(status, &format!("fd/{}", space.file))?;
            within = sys::inode_of(&space).ok().map(|number| ProgramFilter::Spaces(vec![number]));
            spaces.push((space, Namespace::Net));
            let file = place::hosts(&self.home, &status.name);
            hosts = CString::new(file.into_os_string().into_encoded_bytes()).ok();
        }
        let (program, arguments) =
            command.split_first().ok_or_else(|| Failed::usage("no command"))?;
        let mut child = Command::new(program);
        child.args(arguments);
        if let Some(address) = address {
            child.env("SPRINGTIDE_WAN_ADDRESS", address.to_string());
            if let Some(table) = &status.table {
                // NetworkPrograms of other origin run as without a network.
                child.env(SHAPE, table);
                within = Some(ProgramFilter::Table(table.clone()));
                child.env("SPRINGTIDE_NET__BIND", format!("{address}:0"));
                if !is_ours(program) {
                    eprintln!(
                        "note: network {} shapes only the sockets of Springtide's own programs \
                         and of those built with its library; others run as without a network \
                         (`wan up --network router` shapes all)",
                        status.name
                    );
                }
            }
        }
        sys::run_in_namespaces(&mut child, spaces, hosts);
        Ok(NodeProgram { command: child, within })
    }

    /// Opens the connection that breaks when the network ends.
    fn stay(&self) -> Result<UnixStream, Failed> {
        let ended =
            |error: io::Error| Failed::failure(format!("network {}: {error}", self.status.name));
        let mut line =
            place::connect(&place::socket(&self.home, &self.status.name)).map_err(ended)?;
        place::write_message(&mut line, &ControlRequest::Stay).map_err(ended)?;
        Ok(line)
    }

    /// Runs a program on a node. Returns the exit code that a shell would give.
    ///
    /// # Errors
    /// The network or the node does not exist, or the program cannot be started.
    pub fn exec(&self, node: &str, command: &[String]) -> Result<u8, Failed> {
        let mut program = self.on(node, command)?;
        // NetworkPrograms in a network end with it, even if it was killed.
        let line = self.stay()?;
        let mut child = program.spawn()?;
        let pid = i32::try_from(child.id()).unwrap_or(i32::MAX);
        let within = program.within;
        std::thread::spawn(move || end_with(&line, &[pid], within.as_slice()));
        std::thread::spawn(move || pass_on(&[pid]));
        let ended = child.wait().map_err(Failed::failure)?;
        let _ = io::stdout().flush();
        Ok(shell_code(ended))
    }

    /// Runs a program on each node at the same time, and prints its lines with the node's name
    /// before them. Returns the first exit code that is not 0, in the order of the nodes.
    ///
    /// # Errors
    /// The network has ended, or the program cannot be started.
    pub fn exec_all(&self, command: &[String]) -> Result<u8, Failed> {
        let line = self.stay()?;
        let (mut children, mut within) = (Vec::new(), Vec::new());
        let width = self.nodes().map(str::len).max().unwrap_or(0);
        for node in self.nodes() {
            let mut program = self.on(node, command)?;
            program.command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
            let mut child = program.spawn()?;
            let prefix = format!("{node:width$} | ");
            let (out, err) = (child.stdout.take(), child.stderr.take());
            let readers = [
                out.map(|out| print_lines(prefix.clone(), out, false)),
                err.map(|err| print_lines(prefix, err, true)),
            ];
            children.push((child, readers));
            within.extend(program.within);
        }
        let pids = children.iter().map(|(child, _)| i32::try_from(child.id()).unwrap_or(i32::MAX));
        let pids: Vec<i32> = pids.collect();
        let ending = pids.clone();
        std::thread::spawn(move || end_with(&line, &ending, &within));
        std::thread::spawn(move || pass_on(&pids));
        let mut code = 0;
        for (mut child, readers) in children {
            let ended = child.wait().map_err(Failed::failure)?;
            for reader in readers.into_iter().flatten() {
                // A reader that panicked has printed what it could.
                let _ = reader.join();
            }
            if code == 0 {
                code = shell_code(ended);
            }
        }
        Ok(code)
    }
}

impl NodeProgram {
    /// Starts the program. The calling thread must live as long as the program.
    ///
    /// # Errors
    /// It cannot be started, with the exit code of a shell: 127 if it does not exist, else 126.
    pub fn spawn(&mut self) -> Result<Child, Failed> {
        self.command.spawn().map_err(|error| {
            let code = if error.kind() == io::ErrorKind::NotFound { 127 } else { 126 };
            let program = self.command.get_program().to_string_lossy();
            Failed::new(Exit::Program(code), format!("{program}: {error}"))
        })
    }
}

/// The exit code that a shell gives for a program's end.
pub fn shell_code(ended: ExitStatus) -> u8 {
    let code = ended.code().unwrap_or_else(|| 128 + ended.signal().unwrap_or(0));
    u8::try_from(code).unwrap_or(u8::MAX)
}

/// Prints the lines of a program's output, each with a prefix.
fn print_lines(
    prefix: String,
    from: impl io::Read + Send + 'static,
    is_error: bool,
) -> std::thread::JoinHandle<()> {
    std::thread::spawn(move || {
        for line in BufReader::new(from).split(b'\n').map_while(Result::ok) {
            let line = format!("{prefix}{}\n", String::from_utf8_lossy(&line));
            // A closed terminal is not a reason to end the programs.
            let _ = if is_error {
                io::stderr().write_all(line.as_bytes())
            } else {
                io::stdout().write_all(line.as_bytes())
            };
        }
    })
}

/// Ends programs when the network does, together with the processes that they left running: those
/// could reach no other process.
fn end_with(line: &UnixStream, pids: &[i32], within: &[ProgramFilter]) {
    let _ = place::read_message::<ControlAnswer>(line);
    pids.iter().for_each(|pid| sys::end(*pid, true));
    within.iter().flat_map(ProgramFilter::programs).for_each(|pid| sys::end(pid, true));
}

/// Whether a command is this program.
fn is_ours(program: &str) -> bool {
    let mine = std::env::current_exe().ok();
    let given = Path::new(program).file_name();
    mine.is_some_and(|mine| mine.file_name() == given)
}

/// Leaves the reaction to a signal to the programs, which the terminal signals as well: they may
/// print last lines. An ignored signal stays ignored, as under `nohup`.
fn pass_on(pids: &[i32]) {
    use tokio::signal::unix::{SignalKind, signal};
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build();
    let Ok(runtime) = runtime else { return };
    let wait = async |kind: SignalKind, passes: bool| {
        let signals = (!sys::is_ignored(kind.as_raw_value())).then(|| signal(kind));
        let Some(Ok(mut signals)) = signals else { return };
        while signals.recv().await.is_some() {
            pids.iter().filter(|_| passes).for_each(|pid| sys::end(*pid, false));
        }
    };
    runtime.block_on(async {
        tokio::join!(
            wait(SignalKind::interrupt(), false),
            wait(SignalKind::terminate(), true),
            wait(SignalKind::hangup(), true),
        )
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

/// Writes the packets of a network to a capture file, until the time is over, the network ends, or
/// `packets` are written. Returns their number.
///
/// # Errors
/// No such network is up, or it cannot capture, or the file cannot be written.
pub fn capture(
    name: Option<&str>,
    out: &Path,
    lasts: Option<Duration>,
    packets: Option<u64>,
    offered: bool,
) -> Result<u64, Failed> {
    const HEADER: usize = 24;
    const RECORD: usize = 16;
    let home = home()?;
    let name = place::find_network(&home, name).map_err(failed)?;
    let ended = |error: io::Error| Failed::failure(format!("network {name}: {error}"));
    let mut line = place::connect(&place::socket(&home, &name)).map_err(ended)?;
    place::write_message(&mut line, &ControlRequest::Capture { offered }).map_err(ended)?;
    let mut header = [0; HEADER];
    line.read_exact(&mut header[..1]).map_err(ended)?;
    if header[0] == b'{' {
        // A refusal in place of a file.
        let mut text = "{".to_owned();
        BufReader::new(&line).read_line(&mut text).map_err(ended)?;
        let reason = match serde_json::from_str(&text) {
            Ok(ControlAnswer::Failed(reason)) => reason,
            _ => format!("network {name} belongs to another version"),
        };
        return Err(Failed::usage(reason));
    }
    line.read_exact(&mut header[1..]).map_err(ended)?;
    let unwritten =
        |error: io::Error| Failed::failure(format!("cannot write {}: {error}", out.display()));
    let mut file = io::BufWriter::new(create_file(out)?);
    file.write_all(&header).map_err(unwritten)?;
    let line_end = line.try_clone().map_err(ended)?;
    std::thread::spawn(move || {
        wait_for_end(lasts);
        // The other side of the connection then ends the loop below.
        let _ = line_end.shutdown(std::net::Shutdown::Both);
    });
    let (mut from, mut written) = (BufReader::new(line), 0);
    let mut record = [0; RECORD];
    while packets.is_none_or(|most| written < most) && from.read_exact(&mut record).is_ok() {
        let len = u32::from_le_bytes([record[8], record[9], record[10], record[11]]);
        let mut packet = vec![0; usize::try_from(len).unwrap_or(usize::MAX)];
        if from.read_exact(&mut packet).is_err() {
            // The network ended within a packet: the file has whole ones.
            break;
        }
        file.write_all(&record).and_then(|()| file.write_all(&packet)).map_err(unwritten)?;
        written += 1;
    }
    file.flush().map_err(unwritten)?;
    Ok(written)
}

/// The reason why a command ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndReason {
    /// Ctrl-C.
    Interrupted,
    /// SIGTERM.
    Terminated,
    /// Its time is over.
    Timeout,
}

/// Waits for Ctrl-C, SIGTERM or the end of a time.
pub fn wait_for_end(lasts: Option<Duration>) -> EndReason {
    use tokio::signal::unix::{SignalKind, signal};
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let Ok(runtime) = runtime else { return EndReason::Terminated };
    runtime.block_on(async {
        let [Ok(mut interrupt), Ok(mut terminate)] =
            [SignalKind::interrupt(), SignalKind::terminate()].map(signal)
        else {
            return EndReason::Terminated;
        };
        let time = async {
            match lasts {
                Some(lasts) => tokio::time::sleep(lasts).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            _ = interrupt.recv() => EndReason::Interrupted,
            _ = terminate.recv() => EndReason::Terminated,
            () = time => EndReason::Timeout,
        }
    })
}

/// Splits a change such as `a,b loss=2% burst=1%/25%` into the link and its new properties.
///
/// # Errors
/// A word is unknown, or its value is not valid.
pub fn parse_change(text: &str) -> Result<(String, LinkOverrides), Failed> {
    let mut words = text.split_whitespace();
    let link = words.next().unwrap_or_default().to_owned();
    link.parse::<LinkSelector>().map_err(Failed::usage)?;
    let words: Vec<&str> = words.collect();
    if words.is_empty() {
        return Err(Failed::usage(format!("{text:?} changes nothing: add words as of `wan set`")));
    }
    let wish = LinkOverrides::of(&words).map_err(Failed::usage)?;
    Ok((link, wish.load_trace().map_err(Failed::usage)?))
}

/// Changes a link of a network. Returns what the network did.
///
/// # Errors
/// No such network is up, or it has no such link.
pub fn set(name: Option<&str>, link: &str, wish: &LinkOverrides) -> Result<ChangeResult, Failed> {
    let home = home()?;
    let name = place::find_network(&home, name).map_err(failed)?;
    let asked = link.parse::<LinkSelector>().map_err(Failed::usage)?;
    let wish = wish.clone().load_trace().map_err(Failed::usage)?;
    // Only the change is sent, because another command may change the same link.
    match place::send_request(
        &home,
        &name,
        &ControlRequest::Set { link: asked, wish: Box::new(wish) },
    ) {
        Ok(ControlAnswer::Set(outcome)) => Ok(outcome),
        Ok(_) => Err(Failed::failure(format!("network {name} belongs to another version"))),
        Err(ControlError::Refused(reason)) => Err(Failed::usage(reason)),
        Err(error) => Err(failed(error)),
    }
}
