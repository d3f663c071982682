//! Nodes on machines that are reached by ssh.
//!
//! A node's files (config, certificate, key, the authority's certificate) are brought by one ssh command, over its standard
//! input; a second starts the node there. The standard input of that one is the node's life, as with a local child: when
//! whoever started it ends, however it ends, so does the connection, and the node takes that as the order to end. So nothing
//! outlives its head, and there is nothing to take over. Where a line is cut in silence, this side ends the connection after
//! some seconds; the other may take hours to notice, and there the node ends by itself when it has not heard the head for long.
//!
//! The directory with the files goes when the node does. Where the node was not started, one more connection is to take it
//! away, tried once and after the failure was told; what it does not reach, or the head's end cuts short, lies there until the
//! node's next life under this head is brought.
//!
//! Must not know jobs, nor what a node does with its files.

mod shell;
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

use springtide_runtime::config::{NodeConfig, Sources, SshHost, SshHostsError, SshSection, load};
use springtide_runtime::id::NodeId;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::process::{ChildStdout, Command};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use self::shell::{Brought, Place, STARTED};
use super::local::Process;
use super::words::check_env;
use super::{Ended, LocalFuture, NodeRequest, Provider, ProviderError, Stub, StubId, StubNews};
use crate::incarnation;

/// So many connections to one machine are being opened at once: an sshd refuses at random above 10 (its `MaxStartups`).
const DOOR: usize = 6;
/// A silent connection is probed this often, in seconds, and is dead when so many probes were not answered.
const PROBES: (u32, u32) = (5, 3);
/// What a shell may say before a node starts, in bytes.
const NOISE_MAX: u64 = 64 << 10;
/// How much of what ssh said goes into an error, in characters.
const SAID_MAX: usize = 1000;
/// What ssh ends with when its connection fails.
const CONNECTION: &str = "exit status: 255";

/// Why nodes cannot be had by ssh.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SshError {
    /// The hosts are wrong, or too few.
    #[error(transparent)]
    Hosts(#[from] SshHostsError),
    /// The directory cannot be told to a shell.
    #[error("`ssh.dir` {0:?} must be a path in UTF-8 without NUL")]
    Dir(PathBuf),
}

/// Starts nodes on machines that are reached by ssh. All are held as long as the site is there. Of a `hold` that fails, or is
/// dropped before it completes, no node is left; what was brought for it is taken away after that, if its machine is reached.
#[derive(Clone)]
pub struct SshProvider {
    shared: Rc<Shared>,
}

struct Shared {
    command: PathBuf,
    options: Vec<String>,
    dir: String,
    answer_within: Duration,
    /// Where each node runs.
    hosts: BTreeMap<NodeId, Arc<Machine>>,
    /// Counts lives of nodes, so that each has a directory of its own.
    lives: Cell<u64>,
}

/// A host, and who may go in at once.
struct Machine {
    host: SshHost,
    door: Semaphore,
}

/// What was brought to a machine, a key among it, for a node that has not started: dropped, it has it taken away. A node that has
/// takes it away itself.
struct Lying<'a> {
    shared: &'a Shared,
    machine: &'a Arc<Machine>,
    place: &'a Place,
    /// There is nothing to take away, or nobody to be told to.
    settled: bool,
}

impl Drop for Lying<'_> {
    fn drop(&mut self) {
        // Without a runtime the head has ended.
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        if self.settled {
            return;
        }
        let machine = self.machine.clone();
        let (script, life) = (shell::forget(self.place), self.place.file(""));
        let told = self.shared.telling(&machine.host, script);
        // Once: the node is brought anew before long, which takes away what is left of its former lives.
        runtime.spawn(async move {
            let _inside = machine.door.acquire().await;
            if let Err(error) = told.await {
                let host = &machine.host.name;
                tracing::warn!(%error, "a node did not start, and its key may still be in {life} on {host}");
            }
        });
    }
}

impl SshProvider {
    /// Starts these nodes on the section's hosts: each host gets as many as it takes, host after host in the order of their
    /// names.
    ///
    /// # Errors
    /// [`SshError`]: a host is not written as hosts are, or there are not places enough.
    pub fn new(section: &SshSection, nodes: &[NodeId]) -> Result<Self, SshError> {
        let hosts = section.hosts_for(nodes.len() as u64)?;
        let dir = section.dir.to_str().filter(|dir| !dir.contains('\0'));
        let dir = dir.ok_or_else(|| SshError::Dir(section.dir.clone()))?;
        let mut left = nodes.iter();
        let mut taken = BTreeMap::new();
        for host in hosts {
            let places = usize::try_from(host.places).unwrap_or(usize::MAX);
            let machine = Arc::new(Machine { host, door: Semaphore::new(DOOR) });
            taken.extend(left.by_ref().take(places).map(|node| (node.clone(), machine.clone())));
        }
        let shared = Shared {
            command: section.command.clone(),
            options: section.options.iter().map(|(key, value)| format!("{key}={value}")).collect(),
            dir: shell::directory(dir),
            answer_within: section.answer_within.get(),
            hosts: taken,
            lives: Cell::new(0),
        };
        Ok(Self { shared: Rc::new(shared) })
    }

    /// Starts a node; it is there, or none is.
    async fn start(&self, request: &NodeRequest) -> Result<(Process, Arc<Machine>), ProviderError> {
        let shared = &self.shared;
        let Some(machine) = shared.hosts.get(&request.node) else {
            let reason = format!("no host of `ssh.hosts` was given node {}", request.node);
            return Err(shared.refused(reason));
        };
        // It is never closed.
        let _inside = machine.door.acquire().await;
        shared.lives.set(shared.lives.get() + 1);
        let life = format!("{}-{}", std::process::id(), shared.lives.get());
        let (place, files) = gathered(request, &shared.dir, &life)
            .map_err(|reason| shared.refused(format!("node {}: {reason}", request.node)))?;
        let mut lying = Lying { shared, machine, place: &place, settled: false };
        if let Err(error) = shared.telling(&machine.host, shell::bring(&place, &files)).await {
            // Who was not reached just now is not reached in a moment, and most likely has nothing.
            lying.settled = is_away(&error);
            return Err(error);
        }

        let mut command = shared.ssh(&machine.host, &place.start());
        command.stdout(Stdio::piped());
        let mut process = Process::spawn(command, &request.log, |_| {})?;
        let shown = || shared.shown(&machine.host, &format!("sh {}", place.file("start.sh")));
        let begun = async {
            match process.output() {
                Some(output) => has_started(output).await,
                None => false,
            }
        };
        match timeout(shared.answer_within, begun).await {
            Ok(true) => {
                lying.settled = true;
                Ok((process, machine.clone()))
            }
            // Its output ended, so it is about to.
            Ok(false) => {
                let Ended { how, last_lines } = process.end(shared.answer_within).await;
                let said = last_lines.join("\n");
                Err(ProviderError::Failed { command: shown(), how: told(&how, machine), said })
            }
            Err(_) => {
                process.kill();
                process.wait().await;
                Err(ProviderError::Hung { command: shown(), after: shared.answer_within })
            }
        }
    }
}

impl Shared {
    /// The ssh command that has a host's shell do this.
    fn ssh(&self, host: &SshHost, what: &str) -> Command {
        let mut command = Command::new(&self.command);
        // Nobody is there who could answer a question; no terminal, agent or display goes along.
        command.args(["-T", "-a", "-x", "-o", "BatchMode=yes"]);
        // Of an option that is given twice ssh takes the first: the user's go before what is a default here.
        command.args(self.options.iter().flat_map(|option| ["-o", option]));
        let (every, missed) = PROBES;
        let connect = self.answer_within.as_secs().max(1);
        for option in [
            format!("ConnectTimeout={connect}"),
            format!("ServerAliveInterval={every}"),
            format!("ServerAliveCountMax={missed}"),
            // A connection that others share would end with theirs.
            "ControlPath=none".to_owned(),
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

    /// The same as one would type it; the options are in the config.
    fn shown(&self, host: &SshHost, what: &str) -> String {
        let user = host.user.as_ref().map(|user| format!("{user}@")).unwrap_or_default();
        let port = host.port.map(|port| format!("-p {port} ")).unwrap_or_default();
        format!("{} {port}{user}{} {what}", self.command.display(), host.host)
    }

    fn refused(&self, reason: String) -> ProviderError {
        let source = io::Error::new(io::ErrorKind::InvalidInput, reason);
        ProviderError::Start { program: self.command.clone(), source }
    }

    /// Has a host's shell run a script that it gets on its standard input. Nothing is done before this is awaited.
    fn telling(
        &self,
        host: &SshHost,
        script: String,
    ) -> impl Future<Output = Result<(), ProviderError>> + Send + use<> {
        let mut command = self.ssh(host, "exec sh");
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
        command.process_group(0).kill_on_drop(true);
        let (program, shown) = (self.command.clone(), self.shown(host, "sh"));
        let after = self.answer_within;
        async move {
            let started = command.spawn();
            let mut child = started.map_err(|source| ProviderError::Start { program, source })?;
            let input = child.stdin.take();
            let write = async {
                if let Some(mut input) = input {
                    // Who ends before all is read says why, or does by its exit code.
                    let _ = input.write_all(script.as_bytes()).await;
                }
            };
            let both = async { tokio::join!(write, child.wait_with_output()).1 };
            let Ok(ended) = timeout(after, both).await else {
                return Err(ProviderError::Hung { command: shown, after });
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

/// Whether a command failed because its machine was not reached.
fn is_away(error: &ProviderError) -> bool {
    match error {
        ProviderError::Failed { how, .. } => how == CONNECTION,
        _ => true,
    }
}

/// The end of what a command said, fit to be shown.
fn end_of(said: &[u8]) -> String {
    let text = String::from_utf8_lossy(said);
    let plain = |c: &char| !c.is_control() || *c == '\n';
    let text: Vec<char> = text.trim().chars().filter(plain).collect();
    text[text.len().saturating_sub(SAID_MAX)..].iter().collect()
}

/// How a connection ended: ssh's own code stands for the connection, all others are the node's.
fn told(how: &str, machine: &Machine) -> String {
    match how {
        CONNECTION => format!("{how}: the connection to {} failed or was lost", machine.host.name),
        _ => how.to_owned(),
    }
}

/// Reads what the other side's shell says until it says that the node is being started; false when it ends without. What
/// follows is read and dropped, so that nobody there is kept from writing.
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
    // It ends with the connection.
    tokio::spawn(async move { tokio::io::copy(&mut rest, &mut tokio::io::sink()).await });
    true
}

/// A node's files as they are to be over there, and where.
fn gathered(request: &NodeRequest, dir: &str, life: &str) -> Result<(Place, Vec<Brought>), String> {
    let cannot = |path: &Path, error: io::Error| format!("cannot read {}: {error}", path.display());
    let read = |path: &Path| std::fs::read_to_string(path).map_err(|error| cannot(path, error));
    let program = request.program.to_str().filter(|program| !program.contains('\0'));
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
    let place = Place::new(dir, request.node.as_str(), &config.head.address.to_string(), life);

    let mut files = Vec::new();
    let mut sources = sources;
    let mut bring = |key: &str, path: &Path, name: &'static str| {
        files.push(Brought { name, text: read(path)? });
        let sources_now = std::mem::take(&mut sources);
        sources = sources_now.with_flag("ssh.dir", key, place.file(name));
        Ok::<(), String>(())
    };
    bring("identity.certificate", &config.identity.certificate, "node.pem")?;
    bring("identity.key", &config.identity.key, "node.key")?;
    bring("identity.ca", &config.identity.ca, "ca.pem")?;
    if let Some(shape) = &config.net.shape {
        bring("net.shape", shape, "net.links")?;
    }
    let text = read_config(&sources)?.show(false);
    files.push(Brought { name: "node.toml", text });
    // The directory over there is new each time: the numbers are counted here, where all of them are known.
    let counted = request.config.parent().unwrap_or_else(|| Path::new("."));
    let last = incarnation::issue(counted).map_err(|error| error.to_string())?;
    files.push(Brought { name: incarnation::FILE, text: format!("{}\n", last.0) });
    // By a loopback address nobody reaches another machine.
    let open = config.net.advertise.is_none() && config.net.shape.is_none();
    let reached = (open && config.net.bind.ip().is_loopback()).then(|| config.net.bind.port());
    let text = shell::start(&place, program, &request.env, reached);
    files.push(Brought { name: "start.sh", text });
    Ok((place, files))
}

impl Provider for SshProvider {
    fn hold<'a>(
        &'a self,
        request: &'a NodeRequest,
    ) -> LocalFuture<'a, Result<Box<dyn Stub>, ProviderError>> {
        Box::pin(async move {
            let (process, machine) = self.start(request).await?;
            let stub = SshStub { provider: self.clone(), machine, process, told: false };
            Ok(Box::new(stub) as Box<dyn Stub>)
        })
    }

    /// A program is a path over there, and is not brought.
    fn starts_programs(&self) -> bool {
        false
    }
}

/// A node behind a connection.
struct SshStub {
    provider: SshProvider,
    machine: Arc<Machine>,
    /// The ssh command.
    process: Process,
    /// That it is active was said.
    told: bool,
}

impl SshStub {
    fn explained(&self, ended: Ended) -> Ended {
        Ended { how: told(&ended.how, &self.machine), ..ended }
    }
}

impl Stub for SshStub {
    fn id(&self) -> Option<StubId> {
        self.process.pid().map(|pid| StubId(format!("{}/{pid}", self.machine.host.name)))
    }

    fn last_lines(&self) -> Vec<String> {
        self.process.last_lines()
    }

    fn news(&mut self) -> LocalFuture<'_, StubNews> {
        Box::pin(async {
            if !std::mem::replace(&mut self.told, true) {
                return StubNews::Active;
            }
            let ended = self.process.wait().await;
            StubNews::Ended(self.explained(ended))
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

    fn release(&mut self, grace: Duration) -> LocalFuture<'_, Ended> {
        Box::pin(async move {
            let ended = self.process.end(grace).await;
            self.explained(ended)
        })
    }

    /// Ends the connection, by which the node's standard input ends. One that hangs is killed when the node is started anew.
    fn kill(&mut self) {
        self.process.kill();
    }

    /// It ends all the same: its connection does.
    fn leave(self: Box<Self>) {}
}
