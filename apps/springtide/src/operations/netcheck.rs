//! `net check`: reachability of a running grid from this host and, with `--all-pairs`, from each of
//! its nodes. Reports round trips, packet sizes, buffers and the validity of certificates, and
//! names the ports that a firewall must open.
//!
//! Independent of jobs.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};
use springtide_actors::head::HEAD_CLUSTER;
use springtide_actors::job::SCHEDULER;
use springtide_actors::probe::{self, CheckPaths, PROBER, Paths, Prober};
use springtide_actors::scheduler::{GetStatus, Scheduler};
use springtide_runtime::config::{GridConfig, Sources, load};
use springtide_runtime::id::NodeId;
use springtide_runtime::net::tls::Dates;
use springtide_runtime::net::{Address, Buffers, Contact};
use springtide_runtime::remote::Remote;

use crate::exit::{Exit, Failed};
use crate::grid;
use crate::report::{SCHEMA, seconds, size};
use crate::run::{Attachment, attach, print};

/// Timeout of a request to the scheduler.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// Timeout per path of a node that checks its paths to all others: the time of an unreachable one
/// with retries and delays.
const PATH_TIMEOUT: Duration = Duration::from_secs(40);
/// A certificate that ends within this number of days is reported.
const DAYS_LEFT_MIN: i64 = 14;

/// The results of a check.
struct CheckResults {
    /// The name of this process.
    here: NodeId,
    buffers: Option<Buffers>,
    /// Paths by source node, then by target; the reason for a source that did not answer.
    from: BTreeMap<NodeId, Result<Paths, String>>,
    /// Remaining days of certificates, by their owners.
    certificates: BTreeMap<String, i64>,
    firewall: Firewall,
}

/// The ports that a firewall must open.
struct Firewall {
    ports: String,
    head: u16,
}

/// Connects to the head and each of its nodes, and prints the results.
///
/// # Errors
/// The head or a node is unreachable, or a certificate is refused or outside its dates.
pub async fn check(file: &Path, all_pairs: bool, as_json: bool) -> Result<(), Failed> {
    let config = load::<GridConfig>(&Sources::of_process(Some(file)))?.value;
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
                    mine.paths.insert(node.node, probe::Path { error, ..Default::default() });
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
    let found = CheckResults { here, buffers, from, certificates, firewall };
    print(&if as_json { format!("{}\n", found.object()) } else { found.table() })?;
    let missing = found.missing();
    if missing.is_empty() {
        return Ok(());
    }
    let ask = found.firewall.ask();
    Err(Failed::failure(format!("not reached: {}; {ask}", missing.join(", "))))
}

/// Remaining days of the authority's certificate and of those that this host issued to nodes.
fn certificates(file: &Path, config: &GridConfig) -> Result<BTreeMap<String, i64>, Failed> {
    let dir = grid::dir_of(file, config);
    let mut files = vec![("authority".to_owned(), grid::ca_dir(config, &dir).join("ca.pem"))];
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
    fn ask(&self) -> String {
        let Self { ports, head } = self;
        format!(
            "ask whoever runs the firewall to let UDP through in both directions between all hosts \
            of the grid: to ports {ports} of the nodes (`net.ports`) and to port {head} of the \
            head"
        )
    }
}

impl CheckResults {
    fn missing(&self) -> Vec<String> {
        let mut missing = Vec::new();
        for (from, paths) in &self.from {
            match paths {
                Err(why) => missing.push(format!("{from} does not answer ({why})")),
                Ok(paths) => {
                    let lost = paths.paths.iter().filter(|(_, path)| path.error.is_some());
                    missing.extend(lost.map(|(to, _)| match *from == self.here {
                        true => to.to_string(),
                        false => format!("{to} from {from}"),
                    }));
                }
            }
        }
        missing
    }

    fn table(&self) -> String {
        let mut out = String::new();
        let nodes = self.from.values().flatten().flat_map(|paths| paths.paths.keys());
        let width = nodes.chain(self.from.keys()).map(|n| n.as_str().len()).max().unwrap_or(0);
        for (from, paths) in &self.from {
            let from = if *from == self.here { "here" } else { from.as_str() };
            match paths {
                Err(why) => drop(writeln!(out, "{from:width$}  does not answer: {why}")),
                Ok(paths) => {
                    for (to, path) in &paths.paths {
                        let _ =
                            writeln!(out, "{from:width$}  {:width$}  {}", to.as_str(), line(path));
                    }
                }
            }
        }
        if let Some(Buffers { asked, receive, send }) = self.buffers {
            let (asked, receive, send) = (size(asked), size(receive), size(send));
            let _ =
                writeln!(out, "buffers here: {receive} to receive, {send} to send ({asked} asked)");
        }
        for (name, days) in &self.certificates {
            let soon = if *days < DAYS_LEFT_MIN { ": issue another soon" } else { "" };
            let _ = writeln!(out, "certificate of {name}: {days} days left{soon}");
        }
        let _ = writeln!(out, "firewall: {}", self.firewall.ask());
        out
    }

    fn object(&self) -> Value {
        let object = |to: &NodeId, path: &probe::Path| match &path.error {
            None => json!({
                "node": to, "ok": true, "round_trip_us": path.round_trip_us, "mtu_bytes": path.mtu,
                "relayed": path.relayed,
            }),
            Some(why) => json!({ "node": to, "ok": false, "error": why }),
        };
        let all = |paths: &Paths| -> Vec<Value> {
            paths.paths.iter().map(|(to, path)| object(to, path)).collect()
        };
        let here = self.from.get(&self.here).and_then(|paths| paths.as_ref().ok());
        let others = self.from.iter().filter(|(from, _)| **from != self.here);
        let pairs: Vec<Value> = others
            .map(|(from, paths)| match paths {
                Ok(paths) => json!({
                    "from": from, "ok": true, "buffers": paths.buffers, "nodes": all(paths),
                }),
                Err(why) => json!({ "from": from, "ok": false, "error": why }),
            })
            .collect();
        let certificates: Vec<Value> = self
            .certificates
            .iter()
            .map(|(of, days)| json!({ "of": of, "days_left": days, "soon": *days < DAYS_LEFT_MIN }))
            .collect();
        json!({
            "schema": SCHEMA,
            "nodes": here.map(all),
            "pairs": pairs,
            "buffers": self.buffers,
            "certificates": certificates,
            "firewall": {
                "protocol": "udp",
                "directions": "both",
                "node_ports": self.firewall.ports,
                "head_port": self.firewall.head,
                "ask": self.firewall.ask(),
            },
        })
    }
}

fn line(path: &probe::Path) -> String {
    if let Some(why) = &path.error {
        return why.clone();
    }
    let round = path.round_trip_us.map_or("?".to_owned(), |us| seconds(us as f64 / 1e6));
    let packets = path.mtu.map_or(String::new(), |mtu| format!(", packets of {mtu} bytes"));
    let relayed = if path.relayed { ", through another node" } else { "" };
    format!("{round}{packets}{relayed}")
}
