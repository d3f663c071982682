//! `net check`: are the head and the nodes of a grid that is up reached from here, and how fast?
//!
//! Must not know jobs.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use springtide_actors::job::SCHEDULER;
use springtide_actors::scheduler::{GetStatus, Scheduler};
use springtide_runtime::config::{GridConfig, Sources, load};
use springtide_runtime::id::NodeId;
use springtide_runtime::net::Contact;
use springtide_runtime::remote::{Hub, Remote, RemoteError};
use tokio::time::Instant;

use crate::exit::Failed;
use crate::report::{SCHEMA, seconds};
use crate::run::{Attachment, attach, print};

/// How long a node may take to answer.
const WITHIN: Duration = Duration::from_secs(5);
/// Round trips measured; the shortest counts.
const ROUNDS: usize = 5;
/// A name under which no node publishes an actor: that it says so is an answer.
const NOBODY: &str = "nobody";

/// Calls the head and each of its nodes, and prints the round trips.
///
/// # Errors
/// The head or a node is not reached.
pub async fn check(file: &Path, as_json: bool) -> Result<(), Failed> {
    let config = load::<GridConfig>(&Sources::of_process(Some(file)))?;
    let Attachment { endpoint, head, .. } = attach(file, &config.value).await?;
    let scheduler: Remote<Scheduler> = endpoint.hub.remote(&head, SCHEDULER);
    let status = scheduler.send(GetStatus {}).deadline(WITHIN).await?;
    let mut found: BTreeMap<NodeId, Result<Duration, String>> = BTreeMap::new();
    found.insert(head.clone(), round_trip(&endpoint.hub, &head).await);
    for (cluster, site) in status.sites {
        for node in site.nodes {
            let round = match node.address {
                None => Err("it has not registered".to_owned()),
                Some(address) => {
                    let (node, cluster) = (node.node.clone(), cluster.clone());
                    endpoint.net.learn(Contact { node: node.clone(), cluster, address });
                    round_trip(&endpoint.hub, &node).await
                }
            };
            found.insert(node.node, round);
        }
    }
    endpoint.net.close("checked").await;
    print(&if as_json { format!("{}\n", object(&found)) } else { table(&found) })?;
    let missing: Vec<_> =
        found.iter().filter(|(_, round)| round.is_err()).map(|(node, _)| node.as_str()).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let missing = missing.join(", ");
    let ports = config.value.net.ports.map_or("any".to_owned(), |ports| ports.to_string());
    Err(Failed::failure(format!(
        "not reached: {missing}; ask whoever runs the firewall to let UDP to ports {ports} (`net.ports`) and to the head \
         through"
    )))
}

async fn round_trip(hub: &std::sync::Arc<Hub>, node: &NodeId) -> Result<Duration, String> {
    let remote: Remote<Scheduler> = hub.remote(node, NOBODY);
    let mut best = Duration::MAX;
    for _ in 0..ROUNDS {
        let asked = Instant::now();
        match remote.send(GetStatus {}).deadline(WITHIN).await {
            Ok(_) | Err(RemoteError::NoActor { .. }) => best = best.min(asked.elapsed()),
            Err(error) => return Err(error.to_string()),
        }
    }
    Ok(best)
}

fn table(found: &BTreeMap<NodeId, Result<Duration, String>>) -> String {
    let width = found.keys().map(|node| node.as_str().len()).max().unwrap_or(0);
    let line = |(node, round): (&NodeId, &Result<Duration, String>)| {
        let round = match round {
            Ok(round) => seconds(round.as_secs_f64()),
            Err(why) => why.clone(),
        };
        format!("{:width$}  {round}\n", node.as_str())
    };
    found.iter().map(line).collect()
}

fn object(found: &BTreeMap<NodeId, Result<Duration, String>>) -> Value {
    let nodes: Vec<Value> = found
        .iter()
        .map(|(node, round)| match round {
            Ok(round) => {
                json!({ "node": node, "ok": true, "round_trip_us": round.as_micros() as u64 })
            }
            Err(why) => json!({ "node": node, "ok": false, "error": why }),
        })
        .collect();
    json!({ "schema": SCHEMA, "nodes": nodes })
}
