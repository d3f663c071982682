//! `net check`: reachability of a running grid from this host and, with `--all-pairs`, from each of
//! its nodes. Reports round trips, packet sizes, buffers and the validity of certificates, and
//! names the ports that a firewall must open.
//!
//! This module does not know jobs.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, SystemTime};

use springtide_actors::head::HEAD_CLUSTER;
use springtide_actors::job::SCHEDULER;
use springtide_actors::probe::{self, CheckPaths, PROBER, Paths, Prober};
use springtide_actors::scheduler::{GetStatus, Scheduler};
use springtide_cli::exit::{Exit, Failed};
use springtide_runtime::config::GridConfig;
use springtide_runtime::id::NodeId;
use springtide_runtime::net::tls::Dates;
use springtide_runtime::net::{Address, Buffers, Contact};
use springtide_runtime::remote::Remote;

use crate::attach::{Attachment, attach, grid_config};
use crate::grid_files;

/// Timeout of a request to the scheduler.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// Timeout per path of a node that checks its paths to all others: the time of an unreachable one
/// with retries and delays.
const PATH_TIMEOUT: Duration = Duration::from_secs(40);

/// The results of a check.
pub struct CheckResults {
    /// The name of this process.
    pub here: NodeId,
    /// The buffers of this process's sockets.
    pub buffers: Option<Buffers>,
    /// Paths by source node, then by target; the reason for a source that did not answer.
    pub from: BTreeMap<NodeId, Result<Paths, String>>,
    /// Remaining days of certificates, by their owners.
    pub certificates: BTreeMap<String, i64>,
    /// The ports that a firewall must open.
    pub firewall: Firewall,
}

/// The ports that a firewall must open.
pub struct Firewall {
    /// The ports of the nodes, or `any`.
    pub ports: String,
    /// The port of the head.
    pub head: u16,
}

/// Connects to the head and each of its nodes.
///
/// # Errors
/// The head is unreachable, or a certificate is refused or outside its dates.
pub async fn check(file: &Path, all_pairs: bool) -> Result<CheckResults, Failed> {
    let config = grid_config(file)?;
    // Before any connection: a certificate outside its dates explains why nothing is reachable.
    let certificates = certificates(file, &config)?;
    let Attachment { endpoint, head, address: at, .. } = attach(file, &config).await?;
    let scheduler: Remote<Scheduler> = endpoint.hub.remote(&head, SCHEDULER);
    let status = scheduler.send(GetStatus {}).deadline(REQUEST_TIMEOUT).await?;
    let mut contacts = Vec::new();
    let mut mine = Paths { buffers: endpoint.net.buffers(), paths: BTreeMap::new() };
    let (cluster, address) = (HEAD_CLUSTER.into(), Address::Socket(at));
    contacts.push(Contact { node: head.clone(), cluster, address });
    for (cluster, site) in status.sites {
        for node in site.nodes {
            match node.address {
                Some(address) => {
                    let (node, cluster) = (node.node, cluster.clone());
                    contacts.push(Contact { node, cluster, address });
                }
                // Nodes that have not joined are not missing.
                None if site.joins => {}
                None => {
                    let error = Some("it has not registered".to_owned());
                    mine.paths
                        .insert(node.node, probe::PathMeasurement { error, ..Default::default() });
                }
            }
        }
    }
    for contact in &contacts {
        let path = probe::path(&endpoint.hub, contact.clone()).await;
        mine.paths.insert(contact.node.clone(), path);
    }
    let mut from = BTreeMap::new();
    if all_pairs {
        for source in contacts.iter().filter(|contact| contact.node != head) {
            let others: Vec<_> =
                contacts.iter().filter(|other| other.node != source.node).cloned().collect();
            let deadline = PATH_TIMEOUT * u32::try_from(others.len()).unwrap_or(u32::MAX);
            let prober: Remote<Prober> = endpoint.hub.remote(&source.node, PROBER);
            let paths = prober.send(CheckPaths { contacts: others }).deadline(deadline).await;
            from.insert(source.node.clone(), paths.map_err(|error| error.to_string()));
        }
    }
    let here = endpoint.net.me().node.clone();
    let buffers = mine.buffers;
    from.insert(here.clone(), Ok(mine));
    endpoint.net.close("checked").await;
    let firewall = Firewall {
        ports: config.net.ports.map_or("any".to_owned(), |ports| ports.to_string()),
        head: at.port(),
    };
    Ok(CheckResults { here, buffers, from, certificates, firewall })
}

/// Remaining days of the authority's certificate and of those that this host issued to nodes.
fn certificates(file: &Path, config: &GridConfig) -> Result<BTreeMap<String, i64>, Failed> {
    let dir = grid_files::dir_of(file, config);
    let mut files = vec![("authority".to_owned(), grid_files::ca_dir(config, &dir).join("ca.pem"))];
    // Nodes that were started elsewhere keep their files there.
    for entry in std::fs::read_dir(dir.join("node")).into_iter().flatten().flatten() {
        files.push((
            entry.file_name().to_string_lossy().into_owned(),
            entry.path().join("node.pem"),
        ));
    }
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let now = i64::try_from(since.as_secs()).unwrap_or(i64::MAX);
    let mut days = BTreeMap::new();
    for (name, path) in files.into_iter().filter(|(_, path)| path.exists()) {
        let dates = Dates::of_file(&path)?;
        if dates.until < now || dates.from > now {
            let shown = path.display();
            return Err(Failed::new(
                Exit::Auth,
                format!(
                    "{shown} is not valid today: issue another with `springtide ca issue`, or \
                    correct the clock"
                ),
            ));
        }
        days.insert(name, dates.days_left(now));
    }
    Ok(days)
}

impl Firewall {
    /// The request to the administrator of the firewall.
    pub fn ask(&self) -> String {
        let Self { ports, head } = self;
        format!(
            "allow UDP in the firewall in both directions between all hosts of the grid: to ports \
            {ports} of the nodes (`net.ports`) and to port {head} of the head"
        )
    }
}

impl CheckResults {
    /// Fails if a path is missing.
    ///
    /// # Errors
    /// A node was not reached, or did not answer.
    pub fn check_whole(&self) -> Result<(), Failed> {
        let missing = self.missing();
        if missing.is_empty() {
            return Ok(());
        }
        let ask = self.firewall.ask();
        Err(Failed::failure(format!("not reached: {}; {ask}", missing.join(", "))))
    }

    fn missing(&self) -> Vec<String> {
        let mut missing = Vec::new();
        for (from, paths) in &self.from {
            match paths {
                Err(why) => missing.push(format!("{from} does not answer ({why})")),
                Ok(paths) => {
                    let lost = paths.paths.iter().filter(|(_, path)| path.error.is_some());
                    missing.extend(lost.map(|(to, _)| {
                        if *from == self.here {
                            to.to_string()
                        } else {
                            format!("{to} from {from}")
                        }
                    }));
                }
            }
        }
        missing
    }
}
