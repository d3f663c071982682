//! `node run`: one node process.
//!
//! Must not know what the node does.

use std::io::Read;
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use springtide_actors::endpoint::new_incarnation;
use springtide_actors::enrol::Renewal;
use springtide_actors::hardware::Hardware;
use springtide_actors::head::HEAD_CLUSTER;
use springtide_actors::job::site_name;
use springtide_actors::node::{End, Node, NodeOptions, Served, UserActors};
use springtide_actors::site_host::site_node;
use springtide_actors::worker::WorkerConfig;
use springtide_runtime::config::{IdentitySection, NodeConfig, Sources, load};
use springtide_runtime::id::{ClusterId, Incarnation, NodeId};
use springtide_runtime::net::tls::{NodeIdentity, calendar};
use springtide_runtime::net::{Address, Contact};
use springtide_runtime::work::{Registry, Throttle};
use tokio::sync::{mpsc, oneshot, watch};

use crate::exit::{Exit, Failed};
use crate::netconf;
use crate::nodes::OwnState;
use crate::notify::Notifier;
use crate::signals::{Signals, word};

/// Before a node that was told to begins a new life, so that one that is told so each time keeps nobody busy.
const ANEW_PAUSE: Duration = Duration::from_secs(1);
/// A node that has joined says that it is well this often.
const HEALTH_EVERY: Duration = Duration::from_secs(5);
/// A certificate with no more days left than these is told of.
const WARN_DAYS: i64 = 5;

/// Reads a node's config.
///
/// # Errors
/// Every mistake in it.
pub fn config(file: &Path) -> Result<NodeConfig, Failed> {
    Ok(load::<NodeConfig>(&Sources::of_process(Some(file)))?.value)
}

/// Runs it.
///
/// # Errors
/// It could not begin, or was left alone.
pub async fn run(
    config: NodeConfig,
    with_parent: bool,
    registry: Arc<Registry>,
    actors: Option<UserActors>,
) -> Result<(), Failed> {
    let mut signals = Signals::take()?;
    let identity = identity(&config.identity).map_err(|failed| match config.renew {
        true => Failed {
            message: format!(
                "{}. This node has joined by a token: if its certificate has ended, join anew with `{} node join HOST:PORT --token \
                 TOKEN --dir DIR`, where DIR is its directory",
                failed.message,
                crate::grid::called()
            ),
            ..failed
        },
        false => failed,
    })?;
    let name = identity.name();
    if name.node.as_str() != config.node.as_str()
        || name.cluster.as_str() != config.cluster.as_str()
    {
        return Err(Failed::new(
            Exit::Auth,
            format!(
                "the certificate {} is of {}/{}, the config says {}/{}: issue the right one with `springtide ca issue`",
                config.identity.certificate.display(),
                name.cluster,
                name.node,
                config.cluster,
                config.node
            ),
        ));
    }
    let cluster = config.site.as_ref().unwrap_or(&config.cluster);
    let incarnation = config.incarnation.map_or_else(new_incarnation, Incarnation);
    let address = netconf::resolve(&config.head.address).await?;
    let head = Contact {
        node: NodeId::from(config.head.name.as_str()),
        cluster: ClusterId::from(HEAD_CLUSTER),
        address: Address::Socket(address),
    };
    let work = &config.work;
    let throttle = Throttle {
        cgroup: work.cgroup.clone(),
        share: work.share,
        share_file: work.share_file.clone(),
    };
    throttle.check().map_err(|error| Failed::usage(format!("work.cgroup: {error}")))?;
    let mut worker = match throttle.is_any() {
        true => WorkerConfig::throttled(work.threads.get(), throttle),
        false => WorkerConfig::real(work.threads.get()),
    };
    worker.files = config.files.clone();
    let of = ClusterId::from(cluster.as_str());
    let site_at = match &config.site_at {
        None => None,
        Some(at) => Some(Contact {
            node: site_node(&of),
            cluster: of.clone(),
            address: Address::Socket(netconf::resolve(at).await?),
        }),
    };
    let (registered, standing) = watch::channel(false);
    let options = NodeOptions {
        head,
        site_at,
        site: site_name(&of),
        worker,
        hardware: Hardware::of_this_machine(),
        pid: std::process::id(),
        leave_within: config.work.leave_within.get(),
        actors,
        registered: Some(registered),
        renewal: config.renew.then(|| Renewal {
            identity: identity.clone(),
            dir: config.identity.certificate.with_file_name(""),
            calendar: calendar(),
            seed: incarnation.0,
        }),
    };
    let network = netconf::emulated(&config.net)?;
    let net = netconf::node_net(&config);
    let endpoint = netconf::endpoint(net, &identity, incarnation, network.as_ref())?;
    let node = Node::start(endpoint, options, registry);
    let (end, ends) = mpsc::unbounded_channel();
    let notifier = Notifier::of_env();
    notifier.status("looks for its head");
    notifier.keep_alive();
    let who = format!("{}/{}", config.cluster, config.node);
    actix_rt::spawn(tell_manager(notifier.clone(), who, standing.clone()));
    match config.renew {
        true => drop(actix_rt::spawn(tell_health(config.clone(), standing))),
        false => drop(actix_rt::spawn(warn_of_end(identity.clone()))),
    }
    actix_rt::spawn(async move {
        let mut parent = pin!(async {
            match with_parent {
                true => parent_gone().await,
                false => std::future::pending().await,
            }
        });
        loop {
            let told = tokio::select! {
                biased;
                exit = signals.next() => End::Leave(format!("told to end by {}", word(exit))),
                // Its grid ends, or nobody is left whom it could ask.
                () = &mut parent => {
                    let reason = "whoever started it has ended, or told it to".to_owned();
                    let _ = end.send(End::Now(reason));
                    return;
                }
            };
            if end.send(told).is_err() {
                return; // it ends already
            }
        }
    });
    let served = node.serve(ends).await;
    notifier.stopping();
    if config.renew && matches!(served, Ok(Served::Dismissed)) {
        tracing::info!("begins a new life, as it was told");
        tokio::time::sleep(ANEW_PAUSE).await;
        return Err(begin_anew());
    }
    Ok(served.map(drop)?)
}

/// Runs this program anew in this process, with the same words: whoever started it need not know. Returns only if that fails.
fn begin_anew() -> Failed {
    use std::os::unix::process::CommandExt as _;
    let error = match std::env::current_exe() {
        Ok(program) => std::process::Command::new(program).args(std::env::args_os().skip(1)).exec(),
        Err(error) => error,
    };
    Failed::failure(format!(
        "this node was to begin a new life and could not: {error}; start it again"
    ))
}

/// The service manager hears that the node is ready when it is first registered, and later how it is.
async fn tell_manager(notifier: Notifier, who: String, mut standing: watch::Receiver<bool>) {
    let mut ready = false;
    loop {
        let registered = *standing.borrow_and_update();
        match (registered, ready) {
            (true, false) => notifier.ready(&format!("{who} is registered")),
            (true, true) => notifier.status(&format!("{who} is registered")),
            (false, true) => notifier.status(&format!("{who} looks for its head")),
            (false, false) => {}
        }
        ready |= registered;
        if standing.changed().await.is_err() {
            return;
        }
    }
}

/// Keeps what `node status --self` reads: when it is old, this arbiter does not run what it is given.
async fn tell_health(config: NodeConfig, mut standing: watch::Receiver<bool>) {
    let path = OwnState::path(&config);
    let mut failed = false;
    loop {
        let state = OwnState {
            schema: crate::report::SCHEMA,
            node: config.node.to_string(),
            cluster: config.cluster.to_string(),
            registered: *standing.borrow_and_update(),
            pid: std::process::id(),
            at: calendar()(),
        };
        if let Err(error) = state.write(&path)
            && !std::mem::replace(&mut failed, true)
        {
            tracing::warn!("health checks will not see this node: {}", error.message);
        }
        if let Ok(Err(_)) = tokio::time::timeout(HEALTH_EVERY, standing.changed()).await {
            return;
        }
    }
}

/// A certificate that was issued into a file is not renewed by itself: its end is told in time.
async fn warn_of_end(identity: NodeIdentity) {
    let Ok(dates) = identity.dates() else { return };
    let mut days = tokio::time::interval(Duration::from_secs(24 * 3600));
    loop {
        days.tick().await;
        let left = dates.days_left(calendar()());
        if left <= WARN_DAYS {
            tracing::warn!(
                "the certificate of {} ends in {left} days: start the grid's head and this node anew, or issue it with `ca issue`",
                identity.name().node
            );
        }
    }
}

/// The identity's files, which lie in one folder under fixed names.
///
/// # Errors
/// They do not, or cannot be read.
pub fn identity(files: &IdentitySection) -> Result<NodeIdentity, Failed> {
    let dir = files.certificate.parent().unwrap_or_else(|| Path::new(""));
    let expected =
        [(&files.certificate, "node.pem"), (&files.key, "node.key"), (&files.ca, "ca.pem")];
    for (path, name) in expected {
        if *path != dir.join(name) {
            return Err(Failed::usage(format!(
                "{}: the files of an identity are node.pem, node.key and ca.pem of one folder, as `springtide ca issue` \
                 writes them",
                path.display()
            )));
        }
    }
    Ok(NodeIdentity::load(dir)?)
}

/// Completes when standard input ends. It is read by a thread of its own, for a read that blocks cannot be taken back.
async fn parent_gone() {
    let (gone, told) = oneshot::channel();
    let read = move || {
        let mut input = std::io::stdin().lock();
        let mut rest = [0; 256];
        while matches!(input.read(&mut rest), Ok(n) if n > 0) {}
        let _ = gone.send(());
    };
    let thread = std::thread::Builder::new().name("parent".to_owned()).spawn(read);
    if let Err(error) = thread {
        // Better to end than to outlive whoever started this.
        tracing::error!("the system gives no thread to watch standard input: {error}");
        return;
    }
    let _ = told.await;
}
