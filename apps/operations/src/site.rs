//! `site run`: a cluster's site as a process of its own.
//!
//! This module does not know jobs.

use std::fs;
use std::net::{SocketAddr, UdpSocket};
use std::path::Path;
use std::pin::pin;
use std::time::Duration;

use springtide_actors::enrol::{ENROLMENT, Renewal, renew_files};
use springtide_actors::head::{HEAD_CLUSTER, node_names};
use springtide_actors::incarnation;
use springtide_actors::lease::{Lease, LeaseError};
use springtide_actors::programs::ProgramStore;
use springtide_actors::site_host::{SiteEnd, SiteHost, SiteParts, site_node};
use springtide_cli::exit::{Exit, Failed, cannot};
use springtide_cli::outdir::{make_dir, write_file};
use springtide_cli::talk::Talk;
use springtide_runtime::config::{ClusterSection, GridConfig, SiteConfig, SitePlace};
use springtide_runtime::id::{ClusterId, NodeId};
use springtide_runtime::net::tls::calendar;
use springtide_runtime::net::{Address, Contact, NetConfig};
use tokio::time::interval;

use crate::grid::{self, NODE_GRACE};
use crate::grid_files;
use crate::grid_files::{Authority, LaunchPlan};
use crate::netconf;
use crate::node;
use crate::notify::Notifier;
use crate::options::GlobalArgs;
use crate::signals::{Signals, word};
use crate::site_files;
use crate::standby;

/// The file with the last address of a site.
const ADDRESS: &str = "address";
/// The file that a site locks while it runs.
const LEASE: &str = "site.lease";
/// Interval between checks for a new address of the head from `up`.
const POLL_INTERVAL: Duration = Duration::from_secs(2);

async fn head_of(site: &SiteConfig) -> Result<(Contact, SocketAddr), Failed> {
    let address = netconf::resolve_any(&site.head.address).await?;
    let contact = Contact {
        node: NodeId::from(site.head.name.as_str()),
        cluster: HEAD_CLUSTER.into(),
        address: Address::Socket(address),
    };
    Ok((contact, address))
}

/// The network settings of a site process.
fn net(config: &GridConfig, cluster: &ClusterSection, head: SocketAddr) -> NetConfig {
    let mut net = netconf::net(&config.net);
    net.bind = netconf::bind_towards(&config.net, head, false);
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

/// Sets the address of a site. Where the config takes any free port, the site's last port is
/// preferred: surviving batch jobs know no other.
fn prefer_last_port(mut net: NetConfig, dir: &Path) -> NetConfig {
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

/// Runs the site until it is ended.
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
            "{}: in the grid's config, cluster {name} has no site of its own: set `site = \"own\"` \
            in its [[cluster]] and restart `up`",
            file.display()
        )));
    };
    let dir = grid_files::absolute(file.parent().unwrap_or_else(|| Path::new("")))?;
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
                "the certificate {} is of {}/{} ({}), and the site of cluster {name} needs its \
                own: `up` issues it",
                files.certificate.display(),
                who.cluster,
                who.node,
                who.role
            ),
        ));
    }
    // Of two processes, each would adopt the other's batch jobs and cancel them at its end.
    let _lease = Lease::take(&dir.join(LEASE)).map_err(|error| match error {
        LeaseError::Held { holder, path } => Failed::failure(format!(
            "the site of cluster {name} runs already ({holder}): end it first (it holds the lock \
            {})",
            path.display()
        )),
        error => Failed::failure(error),
    })?;
    let network = netconf::emulated(&config.net)?;
    let (head, head_at) = head_of(site).await?;
    let net = prefer_last_port(net(config, cluster, head_at), &dir);
    // The lease is held, so that no other process counts.
    let own = incarnation::issue(&dir).map_err(Failed::failure)?;
    let endpoint = netconf::endpoint(net, &identity, own, network.as_ref())?;
    let Address::Socket(here) = endpoint.net.address() else {
        return Err(Failed::failure("the site has no socket address"));
    };
    let address = dir.join(ADDRESS);
    write_file(&address, here.to_string().as_bytes())?;
    let logs = dir.join("nodes");
    make_dir(&logs)?;
    let program = grid_files::this_program()?;
    let plan = LaunchPlan {
        config,
        dir: &dir,
        authority: &Authority::Elsewhere,
        program: &program,
        files: None,
        log_level: Some(global.log_level.unwrap_or(site.log.level)),
    };
    let names: Vec<NodeId> = node_names(&name, config.node_limit(cluster)).collect();
    let nodes: Result<Vec<_>, _> = names
        .iter()
        .map(|node| grid::request(&plan, cluster, node, head_at, Some(here), network.as_ref()))
        .collect();
    let programs_dir = dir.join(grid::PROGRAMS_DIR);
    let programs = ProgramStore::publish(
        grid::program_store(config, &programs_dir),
        &endpoint.net,
        &endpoint.hub,
    );
    let programs = programs.map_err(|error| cannot("use", &programs_dir, &error))?;
    let part = SiteParts {
        cluster: name.clone(),
        nodes: nodes?,
        provider: grid::provider_for(config, identity.pem()[2], cluster, &names)?,
        on_demand: grid::on_demand(config, cluster),
        keeping: grid::keeping(config, cluster),
        programs: Some(programs),
    };
    let enrolment = endpoint.hub.remote(&head.node, ENROLMENT);
    let files = names.iter().map(|node| dir.join("node").join(node.as_str())).collect();
    actix_rt::spawn(renew_files(files, calendar(), enrolment));
    standby::publish_witness(config, &name, &endpoint, &dir).await?;
    let host = SiteHost::start(endpoint, head.clone(), part);
    let renewal = Renewal { identity, dir: dir.clone(), calendar: calendar(), seed: own.0 };
    let mut expired = pin!(host.renew(renewal));
    let talk = Talk::new(global.quiet);
    talk.say(&format!("the site of cluster {name} is at {here}; Ctrl-C ends it and its nodes"));
    let mut looks = interval(POLL_INTERVAL);
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
                    SiteEnd::Superseded => "a later process of this site has replaced it",
                    SiteEnd::IncarnationTooLow { .. } => "the head knows a later incarnation of \
                     this \
                    site",
                };
                talk.say(&format!("{reason}: nodes of cluster {name} leave their jobs and end"));
                host.stop(config.work.leave_within.get(), NODE_GRACE, reason).await;
                let SiteEnd::IncarnationTooLow { known } = end else {
                    return Err(Failed::failure(format!("{reason}: only one process may have this \
                    name")));
                };
                incarnation::raise(&dir, own, known).map_err(Failed::failure)?;
                tokio::time::sleep(node::RESTART_DELAY).await;
                return Err(node::restart(None));
            }
            _ = looks.tick() => {
                // A restarted head may have another address. A failed read is repeated.
                let Ok((site, _)) = site_files::config(file) else { continue };
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
        "{}: the nodes of cluster {name} leave their jobs and end; a second Ctrl-C ends them at \
        once",
        word(exit)
    ));
    let stop = host.stop(config.work.leave_within.get(), NODE_GRACE, word(exit));
    let ended = tokio::select! {
        biased;
        _ = signals.next() => false,
        () = stop => true,
    };
    if !ended && cluster.batch_system().is_some() {
        talk.say(&format!(
            "the site ends before all batch jobs have ended: jobs still queued as springtide.{} \
            are cancelled now if the batch system answers, or end by themselves after a minute; \
            otherwise cancel them",
            config.grid
        ));
    }
    // A signal ends the site without failure.
    Ok(())
}
