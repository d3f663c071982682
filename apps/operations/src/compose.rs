//! Services on an emulated network, as a file describes them: starts them in order, waits until
//! they are ready, collects their logs, and ends all.
//!
//! This module knows neither the emulation itself nor the services.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use serde::Deserialize;
use springtide_cli::exit::{Exit, Failed};
use springtide_cli::outdir::{create_file, make_dir, write_file};
use springtide_runtime::config::{Name, Time};
use springtide_wan::set::LinkOverrides;
use springtide_wan::sys;

use super::network::{
    self, EndReason, NetworkPrograms, NetworkSettings, RunningNetwork, parse_change, shell_code,
};

/// Interval between two looks at the services.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Time that services get to end after SIGTERM.
const END_TIMEOUT: Duration = Duration::from_secs(3);
/// The number of last lines that a failure quotes.
const QUOTED_LINES: usize = 5;

/// A file of services on a network.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ComposeFile {
    /// The name of the network [default: the topology's].
    name: Option<Name>,
    /// A built-in topology, or a topology file relative to this file.
    topology: Option<String>,
    /// The network itself, with the keys of a topology file.
    network: Option<toml::Table>,
    /// Changes of links at the start, as of `wan set`.
    #[serde(default)]
    set: Vec<String>,
    /// The service whose end ends all others; its exit code becomes the command's.
    until: Option<Name>,
    /// The services.
    #[serde(default)]
    service: Vec<ServiceSection>,
}

/// A service: a program on a host of the network.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ServiceSection {
    name: Name,
    /// The node that runs it.
    host: String,
    /// The program and its arguments.
    command: Vec<String>,
    #[serde(default)]
    env: BTreeMap<String, String>,
    /// The services that must be ready before this one starts.
    #[serde(default)]
    after: Vec<Name>,
    /// The condition by which it is ready [default: it has started].
    ready: Option<ReadyCheck>,
    /// The time limit of the condition.
    #[serde(default = "ready_timeout")]
    ready_timeout: Time,
}

fn ready_timeout() -> Time {
    Duration::from_secs(30).into()
}

/// The condition by which a service is ready: exactly one of them.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
enum ReadyCheck {
    /// A socket on its host is bound to this port, by TCP or UDP.
    Port(u16),
    /// Its log contains this text.
    Log(String),
    /// This command, on its host, exits with 0.
    Command(Vec<String>),
}

/// A compose file that was read and checked.
pub struct ComposePlan {
    file: ComposeFile,
    changes: Vec<(String, LinkOverrides)>,
    /// The directory of the file.
    dir: PathBuf,
}

impl ComposePlan {
    /// Reads and checks a file.
    ///
    /// # Errors
    /// It cannot be read, or contains a mistake.
    pub fn read(path: &Path) -> Result<Self, Failed> {
        let wrong = |reason: String| Failed::usage(format!("{}: {reason}", path.display()));
        let text = std::fs::read_to_string(path).map_err(|error| wrong(error.to_string()))?;
        let file: ComposeFile = toml::from_str(&text).map_err(|error| wrong(error.to_string()))?;
        if file.topology.is_some() == file.network.is_some() {
            return Err(wrong("give either `topology`, or a table [network]".to_owned()));
        }
        if file.service.is_empty() {
            return Err(wrong("there is no service: add a [[service]]".to_owned()));
        }
        let mut names = BTreeSet::new();
        for service in &file.service {
            let ServiceSection { name, command, after, ready, .. } = service;
            // Each service starts after services before it, so that there is no cycle.
            if let Some(other) = after.iter().find(|other| !names.contains(*other)) {
                return Err(wrong(format!(
                    "service {name} is to start after {other}, which is no service before it"
                )));
            }
            if !names.insert(name) {
                return Err(wrong(format!("there are two services named {name}")));
            }
            let check = match ready {
                Some(ReadyCheck::Command(command)) => Some(command),
                _ => None,
            };
            if command.is_empty() || check.is_some_and(Vec::is_empty) {
                return Err(wrong(format!("service {name} has an empty command")));
            }
        }
        if let Some(until) = file.until.as_ref().filter(|until| !names.contains(until)) {
            return Err(wrong(format!("`until` names {until}, which is no service")));
        }
        let changes = file.set.iter().map(|change| parse_change(change));
        let changes = changes.collect::<Result<_, _>>().map_err(|error| wrong(error.message))?;
        let dir = path.parent().unwrap_or(Path::new("")).to_owned();
        Ok(Self { file, changes, dir })
    }

    /// The topology's file; an inline network is written into the directory of logs.
    fn topology(&self, logs: &Path) -> Result<PathBuf, Failed> {
        match (&self.file.topology, &self.file.network) {
            (Some(name), _) if network::find(name).is_some() => Ok(name.into()),
            (Some(path), _) => Ok(self.dir.join(path)),
            (None, network) => {
                let mut network = network.clone().unwrap_or_default();
                let name = self.file.name.as_ref().map_or("compose", Name::as_str);
                network.entry("name").or_insert_with(|| name.into());
                let path = logs.join("topology.toml");
                write_file(&path, network.to_string().as_bytes())?;
                Ok(path)
            }
        }
    }

    /// Starts the network and the services, and waits for their end. Returns the exit code of the
    /// service whose end ended all others, or 0 if all ended.
    ///
    /// `logs` gets a file for each service. `quiet` keeps their lines and the progress from the
    /// terminal.
    ///
    /// # Errors
    /// The network cannot be started, a service fails or is not ready in time, or a signal ends the
    /// command. All services and the network end in any case.
    pub fn up(&self, logs: &Path, settings: &NetworkSettings, quiet: bool) -> Result<u8, Failed> {
        make_dir(logs)?;
        let topology = self.topology(logs)?;
        let config = network::read(&topology)?;
        let name = self.file.name.as_ref().unwrap_or(&config.name).to_string();
        // The network outlives the services, which end with a reason of their own.
        let lasts = settings.lasts + 2 * END_TIMEOUT;
        let outliving = NetworkSettings { lasts, ..*settings };
        let _network = RunningNetwork::start_tied(&topology, &name, &outliving)?;
        for (link, wish) in &self.changes {
            network::set(Some(&name), link, wish)?;
        }
        let programs = NetworkPrograms::of(Some(&name))?;
        let (events, receiver) = mpsc::channel();
        let (signals, lasts) = (events.clone(), settings.lasts);
        thread::spawn(move || {
            let reason = network::wait_for_end(Some(lasts));
            let _ = signals.send(Event::Signal(reason));
        });
        let mut services =
            RunningServices { services: Vec::new(), programs: &programs, logs, quiet, events };
        let outcome = services.run(&self.file, &receiver);
        services.end();
        outcome
    }
}

/// Something that the main loop reacts to at once.
enum Event {
    /// A service wrote a line.
    Line,
    /// The command is asked to end.
    Signal(EndReason),
}

/// The services that were started.
struct RunningServices<'a> {
    services: Vec<RunningService>,
    programs: &'a NetworkPrograms,
    logs: &'a Path,
    quiet: bool,
    events: Sender<Event>,
}

/// A service that was started.
struct RunningService {
    section: ServiceSection,
    child: Child,
    started: Instant,
    is_ready: bool,
    /// The check that runs now.
    check: Option<Child>,
    code: Option<u8>,
    /// The text of its log, for the condition and for failures.
    text: Arc<Mutex<String>>,
}

impl RunningServices<'_> {
    fn run(&mut self, file: &ComposeFile, receiver: &Receiver<Event>) -> Result<u8, Failed> {
        let mut waiting: Vec<&ServiceSection> = file.service.iter().collect();
        loop {
            let ready: BTreeSet<&Name> = self
                .services
                .iter()
                .filter(|one| one.is_ready)
                .map(|one| &one.section.name)
                .collect();
            let (startable, rest): (Vec<_>, Vec<_>) = waiting
                .into_iter()
                .partition(|section| section.after.iter().all(|other| ready.contains(other)));
            waiting = rest;
            for section in startable {
                self.start(section)?;
            }
            self.look()?;
            if let Some(until) = &file.until {
                let ended = self.services.iter().find(|one| one.section.name == *until);
                if let Some(code) = ended.and_then(|one| one.code) {
                    return Ok(code);
                }
            } else if waiting.is_empty() && self.services.iter().all(|one| one.code.is_some()) {
                return Ok(0);
            }
            match receiver.recv_timeout(POLL_INTERVAL) {
                Ok(Event::Signal(EndReason::Interrupted)) => {
                    return Err(Failed::new(Exit::Interrupted, "interrupted: all services end"));
                }
                Ok(Event::Signal(EndReason::Terminated)) => {
                    return Err(Failed::new(Exit::Terminated, "terminated: all services end"));
                }
                Ok(Event::Signal(EndReason::Timeout)) => {
                    return Err(Failed::new(Exit::Timeout, "the time is over: all services end"));
                }
                Ok(Event::Line) | Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Ok(0),
            }
        }
    }

    fn start(&mut self, section: &ServiceSection) -> Result<(), Failed> {
        let name = &section.name;
        let about = |error: Failed| Failed {
            message: format!("service {name}: {}", error.message),
            ..error
        };
        let mut program = self.programs.on(&section.host, &section.command).map_err(about)?;
        program.command.envs(&section.env);
        // Ctrl-C asks this process alone, which ends the services in order.
        program.command.process_group(0);
        program.command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let file = create_file(&self.logs.join(format!("{name}.log")))?;
        let mut child = program.spawn().map_err(about)?;
        let text = Arc::new(Mutex::new(String::new()));
        let log = Arc::new(Mutex::new(ServiceLog {
            prefix: (!self.quiet).then(|| format!("{name} | ")),
            file,
            text: text.clone(),
            events: self.events.clone(),
        }));
        let (out, err) = (child.stdout.take(), child.stderr.take());
        // They end with the last process that holds a pipe, at the latest with the network.
        out.into_iter().for_each(|out| read_lines(log.clone(), out));
        err.into_iter().for_each(|err| read_lines(log.clone(), err));
        self.services.push(RunningService {
            section: section.clone(),
            child,
            started: Instant::now(),
            is_ready: false,
            check: None,
            code: None,
            text,
        });
        Ok(())
    }

    /// Looks which services have ended or become ready.
    fn look(&mut self) -> Result<(), Failed> {
        for service in &mut self.services {
            let name = service.section.name.clone();
            if service.code.is_none()
                && let Some(ended) = service.child.try_wait().map_err(Failed::failure)?
            {
                let code = shell_code(ended);
                service.code = Some(code);
                if !self.quiet {
                    eprintln!("service {name} ended with exit code {code}");
                }
                let was_ready = service.is_ready || service.section.ready.is_none();
                if code != 0 || !was_ready {
                    let when = if was_ready { "" } else { " before it was ready" };
                    let reason = format!(
                        "service {name} ended with exit code {code}{when}{}",
                        service.quote()
                    );
                    let code = if code == 0 { 1 } else { code };
                    return Err(Failed::new(Exit::Program(code), reason));
                }
            }
            if service.is_ready {
                continue;
            }
            if service.check_ready(self.programs)? {
                service.is_ready = true;
                if !self.quiet && service.section.ready.is_some() {
                    let time = service.started.elapsed().as_secs_f64();
                    eprintln!("service {name} is ready after {time:.1} s");
                }
                continue;
            }
            let limit = service.section.ready_timeout;
            if service.started.elapsed() > limit.get() {
                let reason = format!(
                    "service {name} is not ready after {limit}: {}{}",
                    service.section.ready.as_ref().map_or(String::new(), ReadyCheck::lacking),
                    service.quote()
                );
                return Err(Failed::new(Exit::Timeout, reason));
            }
        }
        Ok(())
    }

    /// Ends all services, the last one first: by SIGTERM, and then by SIGKILL.
    fn end(&mut self) {
        let pid = |child: &Child| i32::try_from(child.id()).unwrap_or(i32::MAX);
        for service in self.services.iter_mut().rev() {
            if let Some(check) = &mut service.check {
                // It is this process's child: no other process has its number.
                let _ = check.kill();
                let _ = check.wait();
            }
            if service.code.is_none() {
                sys::end(pid(&service.child), false);
            }
        }
        let until = Instant::now() + END_TIMEOUT;
        for service in &mut self.services {
            while matches!(service.child.try_wait(), Ok(None)) {
                if Instant::now() >= until {
                    let _ = service.child.kill();
                    let _ = service.child.wait();
                    break;
                }
                thread::sleep(POLL_INTERVAL);
            }
        }
    }
}

impl RunningService {
    fn check_ready(&mut self, programs: &NetworkPrograms) -> Result<bool, Failed> {
        match &self.section.ready {
            None => Ok(true),
            Some(ReadyCheck::Log(text)) => {
                Ok(self.text.lock().unwrap_or_else(PoisonError::into_inner).contains(text))
            }
            Some(ReadyCheck::Port(port)) => Ok(is_bound(self.child.id(), *port)),
            Some(ReadyCheck::Command(command)) => {
                if let Some(check) = &mut self.check {
                    let Some(ended) = check.try_wait().map_err(Failed::failure)? else {
                        return Ok(false);
                    };
                    self.check = None;
                    return Ok(ended.success());
                }
                let mut program = programs.on(&self.section.host, command)?;
                program.command.envs(&self.section.env);
                program.command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
                self.check = Some(program.spawn()?);
                Ok(false)
            }
        }
    }

    /// The last lines of its log, for a failure.
    fn quote(&self) -> String {
        let text = self.text.lock().unwrap_or_else(PoisonError::into_inner);
        let lines: Vec<&str> = text.lines().collect();
        let last = &lines[lines.len().saturating_sub(QUOTED_LINES)..];
        last.iter().map(|line| format!("\n    {line}")).collect()
    }
}

impl ReadyCheck {
    /// What a service lacks that is not ready.
    fn lacking(&self) -> String {
        match self {
            Self::Port(port) => format!("no socket on its host is bound to port {port}"),
            Self::Log(text) => format!("its log does not contain {text:?}"),
            Self::Command(command) => format!("`{}` does not exit with 0", command.join(" ")),
        }
    }
}

/// Whether a TCP socket listens at a port, or a UDP socket is bound to it, in the network namespace
/// of a process.
fn is_bound(pid: u32, port: u16) -> bool {
    const LISTENS: &str = "0A";
    let tables = [("tcp", true), ("tcp6", true), ("udp", false), ("udp6", false)];
    tables.into_iter().any(|(table, is_tcp)| {
        let text = std::fs::read_to_string(format!("/proc/{pid}/net/{table}")).unwrap_or_default();
        text.lines().skip(1).any(|line| {
            let mut words = line.split_whitespace().skip(1);
            let (local, state) = (words.next(), words.nth(1));
            let number = local.and_then(|local| local.rsplit_once(':'));
            let number = number.and_then(|(_, hex)| u16::from_str_radix(hex, 16).ok());
            number == Some(port) && (!is_tcp || state == Some(LISTENS))
        })
    })
}

/// The log of a service, which two threads write.
struct ServiceLog {
    /// What comes before its lines on the terminal; none if they are not printed.
    prefix: Option<String>,
    file: File,
    text: Arc<Mutex<String>>,
    events: Sender<Event>,
}

/// The maximum size of a log's text that is kept for conditions and failures, in bytes.
const TEXT_MAX: usize = 1 << 20;

fn read_lines(log: Arc<Mutex<ServiceLog>>, from: impl Read + Send + 'static) {
    thread::spawn(move || {
        for line in BufReader::new(from).split(b'\n').map_while(Result::ok) {
            let line = String::from_utf8_lossy(&line).into_owned();
            let mut log = log.lock().unwrap_or_else(PoisonError::into_inner);
            // A full disk or a closed terminal does not end the service.
            let _ = writeln!(log.file, "{line}");
            if let Some(prefix) = &log.prefix {
                let _ = writeln!(std::io::stdout(), "{prefix}{line}");
            }
            let mut text = log.text.lock().unwrap_or_else(PoisonError::into_inner);
            if text.len() > TEXT_MAX {
                text.clear();
            }
            text.push_str(&line);
            text.push('\n');
            drop(text);
            let _ = log.events.send(Event::Line);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<ComposePlan, String> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("c.toml");
        std::fs::write(&path, text).unwrap();
        ComposePlan::read(&path).map_err(|error| error.message)
    }

    #[test]
    fn files_are_read_and_mistakes_reported() {
        let service = "[[service]]\nname = \"a\"\nhost = \"a-1\"\ncommand = [\"true\"]\n";
        let plan =
            read(&format!("topology = \"pair\"\nset = [\"a,b loss=2%\"]\n{service}")).unwrap();
        assert_eq!((plan.changes.len(), plan.file.service.len()), (1, 1));
        read(&format!("{service}ready = {{ port = 5 }}\n[network]\n")).unwrap();
        for (text, part) in [
            ("", "either `topology`, or a table [network]"),
            ("topology = \"pair\"\n", "there is no service"),
            (&format!("topology = \"pair\"\nuntil = \"b\"\n{service}"), "`until` names b"),
            (&format!("topology = \"pair\"\n{service}{service}"), "two services named a"),
            (&format!("topology = \"pair\"\n{service}after = [\"b\"]\n"), "no service before it"),
            (
                &format!("topology = \"pair\"\nset = [\"a,b los=2\"]\n{service}"),
                "\"los=2\": it must",
            ),
            (&format!("topology = \"pair\"\nset = [\"a,b\"]\n{service}"), "changes nothing"),
            (&format!("topology = \"pair\"\n{service}ready = {{ pot = 1 }}\n"), "pot"),
            (&format!("topology = \"pair\"\n{service}hots = 1\n"), "hots"),
        ] {
            let error = read(text).err().unwrap_or_default();
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    #[test]
    fn bound_ports_are_found() {
        let (tcp, udp) = (
            std::net::TcpListener::bind("127.0.0.1:0").unwrap(),
            std::net::UdpSocket::bind("127.0.0.1:0").unwrap(),
        );
        let pid = std::process::id();
        assert!(is_bound(pid, tcp.local_addr().unwrap().port()));
        assert!(is_bound(pid, udp.local_addr().unwrap().port()));
        assert!(!is_bound(pid, 0));
    }
}
