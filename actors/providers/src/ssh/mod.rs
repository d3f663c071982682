//! Nodes on machines that are reached by ssh.
//!
//! One ssh command brings a node's files (config, certificate, key, the authority's certificate)
//! over its standard input; a second one starts the node. The node ends with the second command's
//! standard input, as a local child does. When its launcher ends in any way, the connection closes,
//! and the node ends. So no node outlives its head, and there is nothing to take over.
//!
//! If a line is cut silently, this side closes the connection after some seconds. The other side
//! may notice only after hours; there the node ends by itself when the head is silent for long.
//!
//! Without a path of the program there, this program is copied to the machine once: see [`copy`].
//! The user's configuration of ssh applies where it does no harm: see `SSH_DIRECTIVES`.
//!
//! The directory with the files is removed when the node ends. If the node did not start, another
//! connection removes it, once, after the failure was reported. Files that this does not reach stay
//! until the node is started again under this head.
//!
//! This module knows neither jobs nor the files' use.

mod copy;
mod shell;
#[cfg(test)]
mod sshd_tests;
#[cfg(test)]
mod tests;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use springtide_base::id::NodeId;
use springtide_config::{
    NodeConfig, Sources, SshHost, SshHostsError, SshSection, load, unattended_options,
};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::process::{ChildStdout, Command};
use tokio::sync::{Mutex, OnceCell, Semaphore};
use tokio::time::timeout;

use self::copy::LocalProgram;
use self::shell::{RemoteDirectory, RemoteFile, STARTED};
use super::local::PipedProcess;
use super::words::check_env;
use super::{
    LocalFuture, NodeRequest, ProgramDelivery, Provider, ProviderError, ShippedFile, Stub, StubEnd,
    StubEvent, StubId,
};
use springtide_base::incarnation;

/// Maximum number of connections to one machine that open at once. An sshd refuses at random above
/// 10 (its `MaxStartups`).
const OPENING_MAX: usize = 6;
/// Interval of probes of a silent connection, in seconds, and the number of unanswered probes after
/// which it is dead.
const PROBES: (u32, u32) = (5, 3);
/// Maximum output of a shell before a node starts, in bytes.
const NOISE_MAX: u64 = 64 << 10;
/// Maximum length of ssh's output in an error, in characters.
const SAID_MAX: usize = 1000;
/// Time limit of ssh's answer about its version.
const VERSION_TIMEOUT: Duration = Duration::from_secs(5);
/// ssh's exit code for a failed connection.
const CONNECTION: &str = "exit status: 255";

/// Why nodes cannot be started by ssh.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SshError {
    /// The hosts are invalid, or too few.
    #[error(transparent)]
    Hosts(#[from] SshHostsError),
    /// The directory cannot be passed to a shell.
    #[error("`ssh.dir` {0:?} must be a path in UTF-8 without NUL")]
    Dir(PathBuf),
}

/// Starts nodes on machines that are reached by ssh, and holds them for the site's life. A `hold`
/// that fails or is dropped leaves no node. Its files are removed afterwards, if the machine is
/// reachable.
#[derive(Clone)]
pub struct SshProvider {
    shared: Rc<SharedState>,
}

struct SharedState {
    command: PathBuf,
    /// Version of ssh, once asked for; none if it does not say that of OpenSSH.
    version: OnceCell<Option<(u32, u32)>>,
    options: Vec<String>,
    /// The program to copy, if machines have none of their own.
    program: Option<LocalProgram>,
    dir: String,
    answer_timeout: Duration,
    /// Host of each node, where it is fixed.
    hosts: BTreeMap<NodeId, Arc<SshMachine>>,
    /// Hosts by name, where the scheduler chooses that of each node.
    chosen: BTreeMap<String, Arc<SshMachine>>,
    /// Number of started processes, so that each has its own directory.
    started: Cell<u64>,
}

/// A host, with a limit of opening connections.
struct SshMachine {
    host: SshHost,
    opening: Semaphore,
    /// Path of the copied program there, once it is.
    copied: OnceCell<String>,
    /// Held while a user's program is copied, so that its other nodes find it.
    copying: Mutex<()>,
}

impl SshMachine {
    fn new(host: SshHost) -> Arc<Self> {
        let (opening, copied) = (Semaphore::new(OPENING_MAX), OnceCell::new());
        Arc::new(Self { host, opening, copied, copying: Mutex::new(()) })
    }
}

/// Files brought for a node that has not started, including a key. Dropping this removes them. A
/// started node removes them itself.
struct BroughtFiles<'a> {
    shared: &'a SharedState,
    machine: &'a Arc<SshMachine>,
    directory: &'a RemoteDirectory,
    /// Whether there is nothing to remove, or the machine is unreachable.
    settled: bool,
}

impl Drop for BroughtFiles<'_> {
    fn drop(&mut self) {
        // Without a runtime, the head has ended.
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        if self.settled {
            return;
        }
        let machine = self.machine.clone();
        let (script, process) = (shell::remove(self.directory), self.directory.file(""));
        let removal = self.shared.run_script(&machine.host, script);
        // Once: the next start of the node removes the files of earlier ones.
        runtime.spawn(async move {
            let _inside = machine.opening.acquire().await;
            if let Err(error) = removal.await {
                let host = &machine.host.name;
                tracing::warn!(
                    %error,
                    "a node did not start, and its key may still be in {process} on {host}"
                );
            }
        });
    }
}

impl SshProvider {
    /// Assigns these nodes to the section's hosts: each host gets up to its number of places, in
    /// the order of the hosts' names.
    ///
    /// # Errors
    /// [`SshError`] if a host is malformed, or there are too few places.
    pub fn new(section: &SshSection, nodes: &[NodeId]) -> Result<Self, SshError> {
        let hosts = section.hosts_for(nodes.len() as u64)?;
        let mut left = nodes.iter();
        let mut taken = BTreeMap::new();
        for host in hosts {
            let places = usize::try_from(host.places).unwrap_or(usize::MAX);
            let machine = SshMachine::new(host);
            taken.extend(left.by_ref().take(places).map(|node| (node.clone(), machine.clone())));
        }
        Self::with_hosts(section, taken, BTreeMap::new())
    }

    /// Starts nodes on the section's hosts while jobs need them. The scheduler chooses the host of
    /// each.
    ///
    /// # Errors
    /// [`SshError`] if a host is malformed, or there is none.
    pub fn on_demand(section: &SshSection) -> Result<Self, SshError> {
        let hosts = section.hosts_for(0)?.into_iter();
        let hosts = hosts.map(|host| (host.name.clone(), SshMachine::new(host))).collect();
        Self::with_hosts(section, BTreeMap::new(), hosts)
    }

    fn with_hosts(
        section: &SshSection,
        hosts: BTreeMap<NodeId, Arc<SshMachine>>,
        chosen: BTreeMap<String, Arc<SshMachine>>,
    ) -> Result<Self, SshError> {
        let dir = section.dir.to_str().filter(|dir| !dir.contains('\0'));
        let dir = dir.ok_or_else(|| SshError::Dir(section.dir.clone()))?;
        let shared = SharedState {
            command: section.command.clone(),
            version: OnceCell::new(),
            program: None,
            options: section.options.iter().map(|(key, value)| format!("{key}={value}")).collect(),
            dir: shell::remote_path(dir),
            answer_timeout: section.answer_timeout.get(),
            hosts,
            chosen,
            started: Cell::new(0),
        };
        Ok(Self { shared: Rc::new(shared) })
    }

    /// Copies this program to machines, instead of using the path in requests.
    pub fn copying(mut self, program: PathBuf) -> Self {
        // Nothing else has a new provider.
        if let Some(shared) = Rc::get_mut(&mut self.shared) {
            shared.program = Some(LocalProgram::new(program));
        }
        self
    }

    /// Starts a node. After a failure, no node is left.
    async fn start(
        &self,
        request: &NodeRequest,
    ) -> Result<(PipedProcess, Arc<SshMachine>), ProviderError> {
        let shared = &self.shared;
        let chosen = || shared.chosen.get(request.host.as_ref()?);
        let Some(machine) = shared.hosts.get(&request.node).or_else(chosen) else {
            let reason = format!("`ssh.hosts` has no host for node {}", request.node);
            return Err(shared.refused(reason));
        };
        // The semaphore is never closed.
        let _inside = machine.opening.acquire().await;
        shared.ask_version().await;
        let copied = match (&request.shipped, &shared.program) {
            (Some(shipped), _) => {
                Some(shared.copy_shipped(machine, &request.program, shipped).await?)
            }
            (None, Some(program)) => Some(shared.copy(machine, program).await?.to_owned()),
            (None, None) => None,
        };
        shared.started.set(shared.started.get() + 1);
        let process = format!("{}-{}", std::process::id(), shared.started.get());
        let (directory, files) =
            collect_files(request, &shared.dir, &process, copied.as_deref())
                .map_err(|reason| shared.refused(format!("node {}: {reason}", request.node)))?;
        let mut brought = BroughtFiles { shared, machine, directory: &directory, settled: false };
        if let Err(error) = shared.run_script(&machine.host, shell::bring(&directory, &files)).await
        {
            // A machine that is unreachable now is so in a moment too, and probably has no files.
            brought.settled = is_away(&error);
            return Err(error);
        }

        let mut command = shared.ssh(&machine.host, &directory.start());
        command.stdout(Stdio::piped());
        let mut process = PipedProcess::spawn(command, &request.log, |_| {})?;
        let shown = || shared.shown(&machine.host, &format!("sh {}", directory.file("start.sh")));
        let begun = async {
            match process.output() {
                Some(output) => has_started(output).await,
                None => false,
            }
        };
        match timeout(shared.answer_timeout, begun).await {
            Ok(true) => {
                brought.settled = true;
                Ok((process, machine.clone()))
            }
            // Its output ended, so it is about to end.
            Ok(false) => {
                let StubEnd { status: how, last_lines, .. } =
                    process.end(shared.answer_timeout).await;
                let said = last_lines.join("\n");
                Err(ProviderError::Failed {
                    command: shown(),
                    how: describe_end(&how, machine),
                    said,
                })
            }
            Err(_) => {
                process.kill();
                process.wait().await;
                Err(ProviderError::Timeout { command: shown(), after: shared.answer_timeout })
            }
        }
    }
}

impl SharedState {
    /// The ssh command that runs a shell command on a host.
    fn ssh(&self, host: &SshHost, what: &str) -> Command {
        let mut command = Command::new(&self.command);
        // ssh uses the first of repeated options: the fixed ones, those of the grid's config, the
        // defaults, and then the user's configuration.
        let version = self.version.get().copied().flatten();
        let options = unattended_options(version);
        command.args(options.iter().chain(&self.options).flat_map(|option| ["-o", option]));
        let (interval, missed) = PROBES;
        let connect = self.answer_timeout.as_secs().max(1);
        for option in [
            format!("ConnectTimeout={connect}"),
            format!("ServerAliveInterval={interval}"),
            format!("ServerAliveCountMax={missed}"),
            "LogLevel=INFO".to_owned(),
        ] {
            command.args(["-o", &option]);
        }
        if let Some(port) = host.port {
            command.args(["-p", &port.to_string()]);
        }
        if let Some(user) = &host.user {
            command.args(["-l", user]);
        }
        command.args(["--", &host.host, what]);
        command
    }

    /// Asks ssh for its version, once. Earlier versions refuse options of later ones.
    async fn ask_version(&self) {
        let ask = async {
            let mut command = Command::new(&self.command);
            command.arg("-V").stdin(Stdio::null()).kill_on_drop(true);
            let ended = timeout(VERSION_TIMEOUT, command.output()).await.ok()?.ok()?;
            let said = [ended.stdout, ended.stderr].concat();
            version_of(&String::from_utf8_lossy(&said))
        };
        self.version.get_or_init(|| ask).await;
    }

    /// The command as a user would type it, without the options of the config.
    fn shown(&self, host: &SshHost, what: &str) -> String {
        let user = host.user.as_ref().map(|user| format!("{user}@")).unwrap_or_default();
        let port = host.port.map(|port| format!("-p {port} ")).unwrap_or_default();
        format!("{} {port}{user}{} {what}", self.command.display(), host.host)
    }

    fn refused(&self, reason: String) -> ProviderError {
        let source = io::Error::new(io::ErrorKind::InvalidInput, reason);
        ProviderError::Start { program: self.command.clone(), source }
    }

    /// Runs a script on a host, sent over standard input. It starts when awaited.
    fn run_script(
        &self,
        host: &SshHost,
        script: String,
    ) -> impl Future<Output = Result<(), ProviderError>> + Send + use<> {
        let mut command = self.ssh(host, "exec sh");
        command.stdin(Stdio::piped());
        self.run(command, self.shown(host, "sh"), script, self.answer_timeout)
    }

    /// Runs a command, which gets the script if its standard input is a pipe.
    fn run(
        &self,
        mut command: Command,
        shown: String,
        script: String,
        after: Duration,
    ) -> impl Future<Output = Result<(), ProviderError>> + Send + use<> {
        command.stdout(Stdio::null()).stderr(Stdio::piped());
        command.process_group(0).kill_on_drop(true);
        let program = self.command.clone();
        async move {
            let started = command.spawn();
            let mut child = started.map_err(|source| ProviderError::Start { program, source })?;
            let input = child.stdin.take();
            let write = async {
                if let Some(mut input) = input {
                    // A shell that ends early explains that by its output or exit code.
                    let _ = input.write_all(script.as_bytes()).await;
                }
            };
            let both = async { tokio::join!(write, child.wait_with_output()).1 };
            let Ok(ended) = timeout(after, both).await else {
                return Err(ProviderError::Timeout { command: shown, after });
            };
            let (how, said) = match ended {
                Ok(ended) if ended.status.success() => return Ok(()),
                Ok(ended) => (ended.status.to_string(), end_of(&ended.stderr)),
                Err(error) => (error.to_string(), String::new()),
            };
            Err(ProviderError::Failed { command: shown, how, said })
        }
    }
}

/// The version in the answer of `ssh -V`, as in "OpenSSH_9.2p1".
fn version_of(said: &str) -> Option<(u32, u32)> {
    fn number(text: &str) -> Option<(u32, &str)> {
        let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        Some((text[..end].parse().ok()?, &text[end..]))
    }
    // A prefix of some systems, as in "OpenSSH_for_Windows_9.5p1".
    let after = &said[said.find("OpenSSH_")?..];
    let (major, rest) = number(&after[after.find(|c: char| c.is_ascii_digit())?..])?;
    let (minor, _) = number(rest.strip_prefix('.')?)?;
    Some((major, minor))
}

/// Whether a command failed since its machine is unreachable.
fn is_away(error: &ProviderError) -> bool {
    match error {
        ProviderError::Failed { how, .. } => how == CONNECTION,
        _ => true,
    }
}

/// The end of a command's output, without control characters.
fn end_of(said: &[u8]) -> String {
    let text = String::from_utf8_lossy(said);
    let plain = |c: &char| !c.is_control() || *c == '\n';
    let text: Vec<char> = text.trim().chars().filter(plain).collect();
    text[text.len().saturating_sub(SAID_MAX)..].iter().collect()
}

/// Describes the end of a connection: ssh's own code means the connection, others come from the
/// node.
fn describe_end(how: &str, machine: &SshMachine) -> String {
    match how {
        CONNECTION => format!("{how}: the connection to {} failed or was lost", machine.host.name),
        _ => how.to_owned(),
    }
}

/// Reads the remote shell's output until it reports the node's start; false if it ends before.
/// Later output is read and dropped, so that the writer never blocks.
async fn has_started(output: ChildStdout) -> bool {
    let mut lines = BufReader::new(output.take(NOISE_MAX));
    let mut line = Vec::new();
    loop {
        line.clear();
        match lines.read_until(b'\n', &mut line).await {
            Ok(0) | Err(_) => return false,
            Ok(_) if line.trim_ascii_end() == STARTED.as_bytes() => break,
            Ok(_) => {}
        }
    }
    let mut rest = lines.into_inner().into_inner();
    // The task ends with the connection.
    tokio::spawn(async move { tokio::io::copy(&mut rest, &mut tokio::io::sink()).await });
    true
}

/// Collects a node's files for the remote machine, and their directory.
fn collect_files(
    request: &NodeRequest,
    dir: &str,
    process: &str,
    copied: Option<&str>,
) -> Result<(RemoteDirectory, Vec<RemoteFile>), String> {
    let cannot = |path: &Path, error: io::Error| format!("cannot read {}: {error}", path.display());
    let read = |path: &Path| std::fs::read_to_string(path).map_err(|error| cannot(path, error));
    let own = || request.program.to_str().filter(|program| !program.contains('\0'));
    let program = copied.or_else(own);
    let program = program.ok_or_else(|| {
        format!("`cluster.program` {:?} must be a path in UTF-8 without NUL", request.program)
    })?;
    check_env(&request.env)?;
    let given = read(&request.config)?;
    let name = request.config.display().to_string();
    let read_config = |sources: &Sources| {
        load::<NodeConfig>(sources).map_err(|error| format!("its config is wrong: {error}"))
    };
    let sources = Sources::of_text(&name, &given);
    let config = read_config(&sources)?.value;
    let directory = RemoteDirectory::new(
        dir,
        request.node.as_str(),
        &config.head.address.first().to_string(),
        process,
    );

    let mut files = Vec::new();
    let mut sources = sources;
    let mut bring = |key: &str, path: &Path, name: &'static str| {
        files.push(RemoteFile { name, text: read(path)? });
        let sources_now = std::mem::take(&mut sources);
        sources = sources_now.with_flag("ssh.dir", key, directory.file(name));
        Ok::<(), String>(())
    };
    bring("identity.certificate", &config.identity.certificate, "node.pem")?;
    bring("identity.key", &config.identity.key, "node.key")?;
    bring("identity.ca", &config.identity.ca, "ca.pem")?;
    if let Some(shape) = &config.net.shape {
        bring("net.shape", shape, "net.links")?;
    }
    let text = read_config(&sources)?.show(false);
    files.push(RemoteFile { name: "node.toml", text });
    // The remote directory is new each time, so incarnations are counted here.
    let counted = request.config.parent().unwrap_or_else(|| Path::new("."));
    let last = incarnation::issue(counted).map_err(|error| error.to_string())?;
    files.push(RemoteFile { name: incarnation::FILE, text: format!("{}\n", last.0) });
    // A loopback address is unreachable from other machines.
    let open = config.net.advertise.is_none() && config.net.shape.is_none();
    let reached = (open && config.net.bind.ip().is_loopback()).then(|| config.net.bind.port());
    let text = shell::start(&directory, program, &request.env, reached);
    files.push(RemoteFile { name: "start.sh", text });
    Ok((directory, files))
}

impl Provider for SshProvider {
    fn hold<'a>(
        &'a self,
        request: &'a NodeRequest,
    ) -> LocalFuture<'a, Result<Box<dyn Stub>, ProviderError>> {
        Box::pin(async move {
            let (process, machine) = self.start(request).await?;
            let stub = SshStub { provider: self.clone(), machine, process, reported_active: false };
            Ok(Box::new(stub) as Box<dyn Stub>)
        })
    }

    /// A path that a submitter names is that of another machine.
    fn starts_programs(&self) -> bool {
        false
    }

    fn delivery(&self) -> ProgramDelivery {
        ProgramDelivery::Copies
    }
}

/// A node behind an ssh connection.
struct SshStub {
    provider: SshProvider,
    machine: Arc<SshMachine>,
    /// The ssh command's process.
    process: PipedProcess,
    /// Whether its start was reported.
    reported_active: bool,
}

impl SshStub {
    fn explained(&self, ended: StubEnd) -> StubEnd {
        StubEnd { status: describe_end(&ended.status, &self.machine), ..ended }
    }
}

impl Stub for SshStub {
    fn id(&self) -> Option<StubId> {
        self.process.pid().map(|pid| StubId(format!("{}/{pid}", self.machine.host.name)))
    }

    fn last_lines(&self) -> Vec<String> {
        self.process.last_lines()
    }

    fn news(&mut self) -> LocalFuture<'_, StubEvent> {
        Box::pin(async {
            if !std::mem::replace(&mut self.reported_active, true) {
                return StubEvent::Active;
            }
            let ended = self.process.wait().await;
            StubEvent::Ended(self.explained(ended))
        })
    }

    fn recruit<'a>(
        &'a mut self,
        request: &'a NodeRequest,
        grace: Duration,
    ) -> LocalFuture<'a, Result<(), ProviderError>> {
        Box::pin(async move {
            self.process.end(grace).await;
            (self.process, self.machine) = self.provider.start(request).await?;
            Ok(())
        })
    }

    fn release(&mut self, grace: Duration) -> LocalFuture<'_, StubEnd> {
        Box::pin(async move {
            let ended = self.process.end(grace).await;
            self.explained(ended)
        })
    }

    /// Closes the connection, and with it the node's standard input. A hanging node is killed at
    /// its next start.
    fn kill(&mut self) {
        self.process.kill();
    }

    /// It ends as well, since its connection closes.
    fn leave(self: Box<Self>) {}
}
