//! `node run`: one node process.
//!
//! This module does not know the node's work.

use std::io::Read;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use springtide_actors::enrol::Renewal;
use springtide_actors::hardware::Hardware;
use springtide_actors::head::HEAD_CLUSTER;
use springtide_actors::incarnation::{self, IncarnationError};
use springtide_actors::job::site_name;
use springtide_actors::node::{EndKind, EndOrder, NodeOptions, RunningNode, UserActors};
use springtide_actors::site_host::site_node;
use springtide_actors::worker::WorkerConfig;
use springtide_cli::config::load;
use springtide_cli::exit::{Exit, Failed};
use springtide_runtime::config::{HostShareSection, IdentitySection, NodeConfig, Sources};
use springtide_runtime::id::{ClusterId, Incarnation, NodeId};
use springtide_runtime::memory::MemoryBudget;
use springtide_runtime::meter::share::{bind_to_positions, memory_in_use};
use springtide_runtime::net::tls::{NodeIdentity, calendar};
use springtide_runtime::net::{Address, Contact};
use springtide_runtime::work::{Registry, Throttle};
use tokio::sync::{mpsc, oneshot, watch};

use crate::grid_files;
use crate::netconf;
use crate::node_state::OwnState;
use crate::notify::Notifier;
use crate::reach::diagnose;
use crate::signals::{Signals, word};

/// Delay before an ordered restart; bounds the rate of a restart loop.
pub const RESTART_DELAY: Duration = Duration::from_secs(1);
/// Interval between updates of a joined node's state file.
const HEALTH_INTERVAL: Duration = Duration::from_secs(5);

/// Reads a node's config.
///
/// # Errors
/// All mistakes in the config.
pub fn config(file: &Path) -> Result<NodeConfig, Failed> {
    Ok(load::<NodeConfig>(&Sources::of_process(Some(file)))?.value)
}

/// Runs a node.
///
/// # Errors
/// The node cannot start, or has lost its head.
pub async fn run(
    config: NodeConfig,
    with_parent: bool,
    registry: Arc<Registry>,
    actors: Option<UserActors>,
) -> Result<(), Failed> {
    let mut signals = Signals::take()?;
    let identity = identity(&config.identity).map_err(|failed| {
        if config.renew {
            Failed {
                message: format!(
                    "{}. This node has joined by a token: if its certificate has ended, join again \
                with `{} node join HOST:PORT --token TOKEN --dir DIR`, where DIR is its directory",
                    failed.message,
                    grid_files::program_name()
                ),
                ..failed
            }
        } else {
            failed
        }
    })?;
    let name = identity.name();
    if name.node.as_str() != config.node.as_str()
        || name.cluster.as_str() != config.cluster.as_str()
    {
        return Err(Failed::new(
            Exit::Auth,
            format!(
                "the certificate {} is of {}/{}, the config has {}/{}: issue the right one with \
                `springtide ca issue`",
                config.identity.certificate.display(),
                name.cluster,
                name.node,
                config.cluster,
                config.node
            ),
        ));
    }
    let cluster = config.site.as_ref().unwrap_or(&config.cluster);
    let dir = config.identity.certificate.with_file_name("");
    let numbers = IncarnationCounter::of(&config, &dir)?;
    let incarnation = numbers.own;
    let address = netconf::resolve_any(&config.head.address).await?;
    let head = Contact {
        node: NodeId::from(config.head.name.as_str()),
        cluster: ClusterId::from(HEAD_CLUSTER),
        address: Address::Socket(address),
    };
    let memory = use_share(&config.share)?;
    let work = &config.work;
    let throttle = Throttle {
        cgroup: work.cgroup.clone(),
        share: work.share,
        share_file: work.share_file.clone(),
    };
    throttle.check().map_err(|error| Failed::usage(format!("work.cgroup: {error}")))?;
    let mut worker = if throttle.is_any() {
        WorkerConfig::throttled(work.threads.get(), throttle)
    } else {
        WorkerConfig::real(work.threads.get())
    };
    worker.files = config.files.clone();
    worker.memory = memory;
    let of = ClusterId::from(cluster.as_str());
    let site_at = match &config.site_at {
        None => None,
        Some(at) => Some(Contact {
            node: site_node(&of),
            cluster: of.clone(),
            address: Address::Socket(netconf::resolve(at).await?),
        }),
    };
    let (registered, is_registered) = watch::channel(false);
    let options = NodeOptions {
        head,
        site_at,
        site: site_name(&of),
        worker,
        hardware: Hardware::of_this_machine(),
        pid: std::process::id(),
        leave_timeout: config.work.leave_within.get(),
        actors,
        registered: Some(registered),
        renewal: Some(Renewal {
            identity: identity.clone(),
            dir,
            calendar: calendar(),
            seed: incarnation.0,
        }),
        waits_for_head: config.renew,
    };
    let network = netconf::emulated(&config.net)?;
    let net = netconf::node_net(&config);
    let bind = net.bind.ip();
    let endpoint = netconf::endpoint(net, &identity, incarnation, network.as_ref())?;
    actix_rt::spawn(netconf::follow_head(
        endpoint.net.clone(),
        options.head.clone(),
        config.head.address.clone(),
    ));
    let node = RunningNode::start(endpoint, options, registry);
    let (end, ends) = mpsc::unbounded_channel();
    let notifier = Notifier::of_env();
    notifier.status("connects to its head");
    notifier.keep_alive();
    let who = format!("{}/{}", config.cluster, config.node);
    actix_rt::spawn(report_to_manager(notifier.clone(), who, is_registered.clone()));
    // The way through an emulated network is not that of this host.
    if network.is_none() {
        actix_rt::spawn(explain_silence(bind, address, is_registered.clone()));
    }
    if config.renew {
        actix_rt::spawn(write_health(config.clone(), is_registered));
    }
    actix_rt::spawn(async move {
        let mut parent = pin!(async {
            if with_parent { parent_ended().await } else { std::future::pending().await }
        });
        loop {
            let end_kind = tokio::select! {
                biased;
                exit = signals.next() => {
                    EndOrder::Leave(format!("ordered to end by {}", word(exit)))
                }
                // The parent ends with the grid, or leaves the node without control.
                () = &mut parent => {
                    let reason = "its parent process has ended, or closed the input".to_owned();
                    let _ = end.send(EndOrder::Now(reason));
                    return;
                }
            };
            if end.send(end_kind).is_err() {
                return; // the node is ending already
            }
        }
    });
    let served = node.serve(ends).await;
    notifier.stopping();
    let known = match served? {
        EndKind::Dismissed if config.renew => None,
        EndKind::IncarnationTooLow { known } => Some(known),
        EndKind::Ended | EndKind::Dismissed => return Ok(()),
    };
    let next = match known {
        Some(known) => numbers.raise(known)?,
        None => numbers.next(None),
    };
    tracing::info!("restarts as a new incarnation");
    tokio::time::sleep(RESTART_DELAY).await;
    Err(restart(next))
}

/// Time without a registration after which a node looks for the reason.
const SILENCE: Duration = Duration::from_secs(1);
/// Interval between later looks.
const SILENCE_INTERVAL: Duration = Duration::from_secs(10);

/// Interval at which a node looks at its memory.
const MEMORY_INTERVAL: Duration = Duration::from_millis(100);

/// Binds the process to its processors. Watches its memory, and ends it when it exceeds its limit.
fn use_share(share: &HostShareSection) -> Result<Option<Arc<MemoryBudget>>, Failed> {
    if let Some(positions) = share.positions() {
        match bind_to_positions(&positions) {
            Ok(Some(numbers)) => tracing::info!("bound to processors {numbers:?}"),
            Ok(None) => tracing::warn!(
                "not bound to processors: this host has fewer than position {:?} needs",
                positions.last()
            ),
            Err(error) => tracing::warn!("not bound to processors: {error}"),
        }
    }
    let Some(limit) = share.memory else { return Ok(None) };
    let budget = Arc::new(MemoryBudget::new(limit.bytes()));
    let watched = budget.clone();
    let watch = move || {
        loop {
            let used = memory_in_use();
            if used > limit.bytes() {
                // The site looks at the exit code, and shows the last lines of this log.
                tracing::error!(
                    "the node and its programs use {} MiB of memory, and may use {limit}: it ends",
                    used >> 20
                );
                std::process::exit(Exit::Memory.code().into());
            }
            if watched.record(used) {
                tracing::warn!(
                    "the node and its programs use {} MiB of {limit} of memory: it asks for tasks \
                    of other nodes only when it has none, and keeps no results for them",
                    used >> 20
                );
            }
            std::thread::sleep(MEMORY_INTERVAL);
        }
    };
    let started = std::thread::Builder::new().name("memory".to_owned()).spawn(watch);
    started.map_err(|error| Failed::failure(format!("a thread does not start: {error}")))?;
    Ok(Some(budget))
}

/// The incarnation numbers of a node: counted in a file next to its certificate, or set by its
/// config.
struct IncarnationCounter {
    own: Incarnation,
    /// The directory of the counter. None if the config sets the number, or if the directory is not
    /// writable.
    dir: Option<PathBuf>,
}

impl IncarnationCounter {
    fn of(config: &NodeConfig, dir: &Path) -> Result<Self, Failed> {
        if let Some(given) = config.incarnation {
            return Ok(Self { own: Incarnation(given), dir: None });
        }
        match incarnation::issue(dir) {
            Ok(own) => Ok(Self { own, dir: Some(dir.to_owned()) }),
            Err(error @ IncarnationError::Io { .. }) => {
                tracing::warn!(
                    "incarnations are not counted ({error}): this one may be below an earlier one; \
                    its site reports that"
                );
                Ok(Self { own: incarnation::only(), dir: None })
            }
            Err(error) => Err(Failed::failure(error)),
        }
    }

    /// Makes the next process exceed `known`. Returns its number if no counter exists.
    fn raise(&self, known: Option<Incarnation>) -> Result<Option<Incarnation>, Failed> {
        match &self.dir {
            Some(dir) => {
                incarnation::raise(dir, self.own, known).map_err(Failed::failure)?;
                Ok(None)
            }
            None => Ok(self.next(known)),
        }
    }

    /// The number of the next process, if no counter exists.
    fn next(&self, known: Option<Incarnation>) -> Option<Incarnation> {
        let above = known.unwrap_or(self.own).max(self.own);
        self.dir.is_none().then(|| incarnation::after(above))
    }
}

/// Replaces this process by a new run of this program with the same arguments; its parent need not
/// know. Returns only on failure. `incarnation` is the new number, if no counter exists.
pub fn restart(incarnation: Option<Incarnation>) -> Failed {
    use std::os::unix::process::CommandExt as _;
    let again = |program| {
        let mut command = std::process::Command::new(program);
        command.args(std::env::args_os().skip(1));
        if let Some(Incarnation(number)) = incarnation {
            command.env("SPRINGTIDE_INCARNATION", number.to_string());
        }
        command.exec()
    };
    let error = std::env::current_exe().map_or_else(|error| error, again);
    Failed::failure(format!("this process failed to restart: {error}; start it again"))
}

/// Logs why the head does not answer, before the site reports that this node has not registered.
async fn explain_silence(bind: IpAddr, head: SocketAddr, mut is_registered: watch::Receiver<bool>) {
    let mut said = None;
    let mut wait = SILENCE;
    loop {
        let registered = is_registered.wait_for(|registered| *registered);
        if tokio::time::timeout(wait, registered).await.is_ok() {
            return; // or the node ends
        }
        let why = diagnose(bind, head).await;
        if let Some(why) = why.as_ref().filter(|_| why != said) {
            tracing::warn!("{why}");
        }
        (said, wait) = (why, SILENCE_INTERVAL);
    }
}

/// Tells the service manager that the node is ready when it first registers, and its state after
/// that.
async fn report_to_manager(
    notifier: Notifier,
    who: String,
    mut is_registered: watch::Receiver<bool>,
) {
    let mut ready = false;
    loop {
        let registered = *is_registered.borrow_and_update();
        match (registered, ready) {
            (true, false) => notifier.ready(&format!("{who} is registered")),
            (true, true) => notifier.status(&format!("{who} is registered")),
            (false, true) => notifier.status(&format!("{who} connects to its head")),
            (false, false) => {}
        }
        ready |= registered;
        if is_registered.changed().await.is_err() {
            return;
        }
    }
}

/// Writes the file that `node status --self` reads. An old file shows that this arbiter is blocked.
async fn write_health(config: NodeConfig, mut is_registered: watch::Receiver<bool>) {
    let path = OwnState::path(&config);
    let mut failed = false;
    loop {
        let state = OwnState {
            schema: springtide_cli::format::SCHEMA,
            node: config.node.to_string(),
            cluster: config.cluster.to_string(),
            registered: *is_registered.borrow_and_update(),
            pid: std::process::id(),
            at: calendar()(),
        };
        if let Err(error) = state.write(&path)
            && !std::mem::replace(&mut failed, true)
        {
            tracing::warn!("health checks cannot see this node: {}", error.message);
        }
        if let Ok(Err(_)) = tokio::time::timeout(HEALTH_INTERVAL, is_registered.changed()).await {
            return;
        }
    }
}

/// Loads the identity's files, which lie in one directory under fixed names.
///
/// # Errors
/// They have other places, or cannot be read.
pub fn identity(files: &IdentitySection) -> Result<NodeIdentity, Failed> {
    let dir = files.certificate.parent().unwrap_or_else(|| Path::new(""));
    let expected =
        [(&files.certificate, "node.pem"), (&files.key, "node.key"), (&files.ca, "ca.pem")];
    for (path, name) in expected {
        if *path != dir.join(name) {
            return Err(Failed::usage(format!(
                "{}: the files of an identity are node.pem, node.key and ca.pem in one directory, \
                as `springtide ca issue` writes them",
                path.display()
            )));
        }
    }
    Ok(NodeIdentity::load(dir)?)
}

/// Completes when standard input ends. A thread of its own reads it, because a blocking read cannot
/// be cancelled.
async fn parent_ended() {
    let (sender, receiver) = oneshot::channel();
    let read = move || {
        let mut input = std::io::stdin().lock();
        let mut rest = [0; 256];
        while matches!(input.read(&mut rest), Ok(n) if n > 0) {}
        let _ = sender.send(());
    };
    let thread = std::thread::Builder::new().name("parent".to_owned()).spawn(read);
    if let Err(error) = thread {
        // Better to end than to outlive the parent.
        tracing::error!("cannot create a thread to watch standard input: {error}");
        return;
    }
    let _ = receiver.await;
}
