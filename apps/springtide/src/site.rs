//! A cluster's site as a process of its own: what `up` writes for it, and `site run`.
//!
//! ```text
//! DIR/site/NAME/site.toml     which cluster, and where the head is
//! DIR/site/NAME/grid.toml     the grid's config
//! DIR/site/NAME/address       where it was last reached
//! DIR/site/NAME/site.lease    locked while it runs: there is one at most
//! DIR/site/NAME/node.pem ...  the site's certificate and key, and that of the authority
//! DIR/site/NAME/node/NODE/    the same of each node; its config is written by the site, which knows where it is reached
//! ```
//!
//! The directory may be copied to the cluster's machine: it holds no key of anybody else. Must not know jobs.

use std::fs;
use std::net::{SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::time::Duration;

use clap::{Subcommand, ValueHint};
use springtide_actors::enrol::{ENROLMENT, Renewal, renew_files};
use springtide_actors::head::{HEAD, HEAD_CLUSTER, node_names};
use springtide_actors::incarnation;
use springtide_actors::lease::{Lease, LeaseError};
use springtide_actors::site_host::{Part, SiteEnd, SiteHost, site_node};
use springtide_runtime::config::{
    ClusterSection, GridConfig, Provider as Whose, SiteConfig, SitePlace, Sources, load,
};
use springtide_runtime::id::{ClusterId, NodeId};
use springtide_runtime::net::tls::calendar;
use springtide_runtime::net::{Address, Contact, NetConfig};
use tokio::time::interval;

use crate::args::GlobalArgs;
use crate::exit::{Exit, Failed};
use crate::grid::{self, Authority, NODE_GRACE, Plan};
use crate::notify::Notifier;
use crate::outdir::{make_dir, write_file};
use crate::signals::{Signals, word};
use crate::talk::Talk;
use crate::{netconf, node};

/// The file with the address at which a site was last reached.
const ADDRESS: &str = "address";
/// The file that a site has locked while it runs.
const LEASE: &str = "site.lease";
/// How often it is seen whether `up` has written another address of the head.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// `site ...`
#[derive(Subcommand, Clone, Debug)]
pub enum SiteCommand {
    /// Host a cluster's site until it is told to end: it starts the cluster's nodes and serves its files
    Run {
        /// The site's config, which `up` has written: .springtide/GRID/site/CLUSTER/site.toml beside the grid's config
        #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
        config: PathBuf,
    },
}

/// The config of a cluster's site.
pub fn file_of(dir: &Path, cluster: &str) -> PathBuf {
    dir.join("site").join(cluster).join("site.toml")
}

/// Writes what a site in a process of its own needs.
///
/// # Errors
/// Files cannot be written, names do not fit.
pub fn write(plan: &Plan<'_>, cluster: &ClusterSection, head: SocketAddr) -> Result<(), Failed> {
    let name = ClusterId::from(cluster.name.as_str());
    let file = grid::absolute(&file_of(plan.dir, name.as_str()))?;
    let dir = file.parent().unwrap_or(&file);
    grid::make_private_dir(dir)?;
    plan.authority.issue(&site_node(&name), name.as_str(), "site")?.save(dir)?;
    for node in node_names(&name, cluster.nodes.get()) {
        let dir = dir.join("node").join(node.as_str());
        grid::make_private_dir(&dir)?;
        plan.authority.issue(&node, name.as_str(), "node")?.save(&dir)?;
    }
    let level = plan.log_level.unwrap_or(plan.config.log.level);
    let text = format!(
        "config_version = 1\ncluster = \"{name}\"\n[head]\nname = \"{HEAD}\"\naddress = \"{head}\"\n\
         [identity]\ncertificate = \"node.pem\"\nkey = \"node.key\"\nca = \"ca.pem\"\n\
         [log]\nlevel = \"{level}\"\nformat = \"{}\"\n",
        plan.config.log.format
    );
    // What this program writes it must be able to read.
    load::<SiteConfig>(&Sources::of_text("site.toml", &text))?;
    let mut config = plan.config.clone();
    for cluster in &mut config.cluster {
        if cluster.name.as_str() != name.as_str() {
            // It may hold what is nobody's business over there.
            cluster.env.clear();
        }
        for path in [&mut cluster.files, &mut cluster.program].into_iter().flatten() {
            *path = grid::absolute(path)?;
        }
    }
    let whole = toml::to_string(&config).map_err(Failed::failure)?;
    load::<GridConfig>(&Sources::of_text("grid.toml", &whole))?;
    for (path, text) in [(dir.join("grid.toml"), whole), (file.clone(), text)] {
        write_file(&path, text.as_bytes())?;
    }
    Ok(())
}

/// Reads a site's config, and the grid's.
///
/// # Errors
/// Every mistake in the first of them that has any.
pub fn config(file: &Path) -> Result<(SiteConfig, GridConfig), Failed> {
    // The environment speaks of the grid's config.
    let sources = |file: &Path| Sources { file: Some(file.to_owned()), ..Sources::default() };
    let site = load::<SiteConfig>(&sources(file))?.value;
    let beside = file.parent().unwrap_or_else(|| Path::new(""));
    let grid = load::<GridConfig>(&sources(&beside.join(&site.grid_config)))?.value;
    Ok((site, grid))
}

async fn head_of(site: &SiteConfig) -> Result<(Contact, SocketAddr), Failed> {
    let address = netconf::resolve(&site.head.address).await?;
    let contact = Contact {
        node: NodeId::from(site.head.name.as_str()),
        cluster: HEAD_CLUSTER.into(),
        address: Address::Socket(address),
    };
    Ok((contact, address))
}

/// The network of a site of its own.
fn net(config: &GridConfig, cluster: &ClusterSection) -> NetConfig {
    let mut net = netconf::net(&config.net);
    if let Some(bind) = cluster.site_bind {
        (net.bind, net.ports, net.advertise) = (bind, None, None);
    }
    net.advertise = cluster.site_advertise.or(net.advertise);
    let links = config.link.iter().filter_map(|link| {
        let other = link.other_end(cluster.name.as_str())?;
        Some((ClusterId::from(other.as_str()), netconf::policy(link, &config.net)))
    });
    net.links = links.collect();
    net
}

/// Where a site listens. One that takes any free port takes that of its last life, if it is free: batch jobs that have outlived it know
/// no other.
fn at_its_former_port(mut net: NetConfig, dir: &Path) -> NetConfig {
    let last = fs::read_to_string(dir.join(ADDRESS)).ok();
    let last: Option<SocketAddr> = last.and_then(|text| text.trim().parse().ok());
    if let Some(last) = last.map(|last| SocketAddr::new(net.bind.ip(), last.port()))
        && net.bind.port() == 0
        && UdpSocket::bind(last).is_ok()
    {
        (net.bind, net.ports) = (last, None);
    }
    net
}

/// Hosts the site until it is told to end.
///
/// # Errors
/// The grid has no such site, or it cannot be started.
pub async fn run(
    file: &Path,
    site: &SiteConfig,
    config: &GridConfig,
    global: &GlobalArgs,
) -> Result<(), Failed> {
    let mut signals = Signals::take()?;
    let name = ClusterId::from(site.cluster.as_str());
    let cluster = config.cluster.iter().find(|cluster| cluster.name == site.cluster);
    let Some(cluster) = cluster.filter(|cluster| cluster.site == SitePlace::Own) else {
        return Err(Failed::usage(format!(
            "{}: the grid's config gives cluster {name} no site of its own: set `site = \"own\"` of its [[cluster]] and start `up` anew",
            file.display()
        )));
    };
    let dir = grid::absolute(file.parent().unwrap_or_else(|| Path::new("")))?;
    let files = springtide_runtime::config::IdentitySection {
        certificate: dir.join(&site.identity.certificate),
        key: dir.join(&site.identity.key),
        ca: dir.join(&site.identity.ca),
    };
    let identity = node::identity(&files)?;
    let who = identity.name();
    if who.node != site_node(&name) || who.cluster != name || who.role != "site" {
        return Err(Failed::new(
            Exit::Auth,
            format!(
                "the certificate {} is of {}/{} ({}), and the site of cluster {name} needs its own: `up` issues it",
                files.certificate.display(),
                who.cluster,
                who.node,
                who.role
            ),
        ));
    }
    // Of two each would take the other's batch jobs for its own, and cancel them when it ends.
    let _lease = Lease::take(&dir.join(LEASE)).map_err(|error| match error {
        LeaseError::Held { holder, path } => Failed::failure(format!(
            "the site of cluster {name} runs already ({holder}): end it first (it has locked {})",
            path.display()
        )),
        error => Failed::failure(error),
    })?;
    let network = netconf::emulated(&config.net)?;
    let (head, head_at) = head_of(site).await?;
    let net = at_its_former_port(net(config, cluster), &dir);
    // The lease is held: no other process counts here.
    let own = incarnation::issue(&dir).map_err(Failed::failure)?;
    let endpoint = netconf::endpoint(net, &identity, own, network.as_ref())?;
    let Address::Socket(here) = endpoint.net.address() else {
        return Err(Failed::failure("the site has no socket address"));
    };
    let address = dir.join(ADDRESS);
    write_file(&address, here.to_string().as_bytes())?;
    let logs = dir.join("nodes");
    make_dir(&logs)?;
    let program = grid::this_program()?;
    let plan = Plan {
        config,
        dir: &dir,
        authority: &Authority::Elsewhere,
        program: &program,
        files: None,
        log_level: Some(global.log_level.unwrap_or(site.log.level)),
    };
    let names: Vec<NodeId> = node_names(&name, cluster.nodes.get()).collect();
    let nodes: Result<Vec<_>, _> = names
        .iter()
        .map(|node| grid::request(&plan, cluster, node, (head_at, Some(here)), network.as_ref()))
        .collect();
    let part = Part {
        cluster: name.clone(),
        nodes: nodes?,
        provider: grid::provider_for(config, identity.pem()[2], cluster, &names)?,
        on_demand: grid::on_demand(cluster),
        keeping: grid::keeping(config, cluster),
    };
    let enrolment = endpoint.hub.remote(&head.node, ENROLMENT);
    let files = names.iter().map(|node| dir.join("node").join(node.as_str())).collect();
    actix_rt::spawn(renew_files(files, calendar(), enrolment));
    let host = SiteHost::start(endpoint, head.clone(), part);
    let renewal = Renewal { identity, dir: dir.clone(), calendar: calendar(), seed: own.0 };
    let mut expired = pin!(host.renew(renewal));
    let talk = Talk::new(global.quiet);
    talk.say(&format!("the site of cluster {name} is at {here}; Ctrl-C ends it and its nodes"));
    let mut looks = interval(LOOK_EVERY);
    let mut known = head;
    let notifier = Notifier::of_env();
    notifier.ready(&format!("the site of cluster {name}"));
    notifier.keep_alive();
    let exit = loop {
        tokio::select! {
            biased;
            exit = signals.next() => break exit,
            why = &mut expired => {
                tracing::error!("{why}");
                return Err(Failed::new(Exit::Auth, why));
            }
            end = host.watch() => {
                notifier.stopping();
                let reason = match &end {
                    SiteEnd::Superseded => "a later process of this site has taken its place",
                    SiteEnd::Outnumbered { .. } => "the head knows a later incarnation of this site",
                };
                talk.say(&format!("{reason}: the nodes of cluster {name} leave their jobs and end"));
                host.stop(config.work.leave_within.get(), NODE_GRACE, reason).await;
                let SiteEnd::Outnumbered { known } = end else {
                    return Err(Failed::failure(format!("{reason}: two under one name are one too many")));
                };
                incarnation::raise(&dir, own, known).map_err(Failed::failure)?;
                tokio::time::sleep(node::ANEW_PAUSE).await;
                return Err(node::begin_again(None));
            }
            _ = looks.tick() => {
                // A head that was started anew may be elsewhere. What cannot be read now is read next time.
                let Ok((site, _)) = self::config(file) else { continue };
                let Ok((head, _)) = head_of(&site).await else { continue };
                if head != known {
                    host.learn_head(head.clone());
                    known = head;
                }
            }
        }
    };
    notifier.stopping();
    talk.say(&format!(
        "{}: the nodes of cluster {name} leave their jobs and end; a second Ctrl-C ends them at once",
        word(exit)
    ));
    let stop = host.stop(config.work.leave_within.get(), NODE_GRACE, word(exit));
    let ended = tokio::select! {
        biased;
        _ = signals.next() => false,
        () = stop => true,
    };
    if !ended && cluster.provider == Whose::Slurm {
        talk.say(&format!(
            "left before all batch jobs were seen to end: what is still in the queue under springtide.{} is cancelled \
             now if Slurm answers, ends by itself a minute later, or is ended by scancel",
            config.grid
        ));
    }
    // Being ended is what it is for.
    Ok(())
}
