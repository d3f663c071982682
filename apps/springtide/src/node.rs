//! `node run`: one node process.
//!
//! Must not know what the node does.

use std::io::Read;
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;

use springtide_actors::endpoint::new_incarnation;
use springtide_actors::hardware::Hardware;
use springtide_actors::head::HEAD_CLUSTER;
use springtide_actors::job::site_name;
use springtide_actors::node::{End, Node, NodeOptions, UserActors};
use springtide_actors::site_host::site_node;
use springtide_actors::worker::WorkerConfig;
use springtide_runtime::config::{IdentitySection, NodeConfig, Sources, load};
use springtide_runtime::id::{ClusterId, Incarnation, NodeId};
use springtide_runtime::net::tls::NodeIdentity;
use springtide_runtime::net::{Address, Contact};
use springtide_runtime::work::{Registry, Throttle};
use tokio::sync::{mpsc, oneshot};

use crate::exit::{Exit, Failed};
use crate::netconf;
use crate::signals::{Signals, word};

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
    let identity = identity(&config.identity)?;
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
    let options = NodeOptions {
        head,
        site_at,
        site: site_name(&of),
        worker,
        hardware: Hardware::of_this_machine(),
        pid: std::process::id(),
        leave_within: config.work.leave_within.get(),
        actors,
    };
    let network = netconf::emulated(&config.net)?;
    let net = netconf::node_net(&config);
    let endpoint = netconf::endpoint(net, &identity, incarnation, network.as_ref())?;
    let node = Node::start(endpoint, options, registry);
    let (end, ends) = mpsc::unbounded_channel();
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
    Ok(node.serve(ends).await?)
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
