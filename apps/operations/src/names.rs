//! Names that a shell completes: nodes and jobs of a grid, and emulated networks.
//!
//! A shell waits for them while a user types, so that they are best effort.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use springtide_actors::head::node_names;
use springtide_cli::exit::Failed;
use springtide_runtime::id::ClusterId;
use tokio::time::timeout;

use super::attach::grid_config;
use super::jobs::{JobClient, JobList};
use super::nodes;

/// Time that a shell waits for a grid.
const LIMIT: Duration = Duration::from_secs(2);
/// The maximum number of ended jobs.
const ENDED_MAX: usize = 50;

/// The kind of things that names belong to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum NameKind {
    /// The nodes of a grid.
    Nodes,
    /// The jobs of a grid.
    Jobs,
    /// The emulated networks of this host.
    Networks,
}

/// The names of a kind. None if the grid does not answer.
pub async fn names(kind: NameKind, config: &Path) -> Vec<String> {
    let found = match kind {
        NameKind::Nodes => node_list(config).await,
        NameKind::Jobs => job_list(config).await,
        NameKind::Networks => networks(),
    };
    found.unwrap_or_default()
}

/// The nodes of a running grid, or those of its config.
async fn node_list(file: &Path) -> Result<Vec<String>, Failed> {
    if let Ok(Ok(found)) = timeout(LIMIT, nodes::list(file)).await {
        let rows = found.rows.into_iter();
        return Ok(rows.map(|row| row.status.node.to_string()).collect());
    }
    let config = grid_config(file)?;
    let of = |cluster: &_| {
        let cluster: &springtide_runtime::config::ClusterSection = cluster;
        let name = ClusterId::from(cluster.name.as_str());
        node_names(&name, config.node_limit(cluster)).map(|node| node.to_string()).collect()
    };
    let clusters: Vec<Vec<String>> = config.cluster.iter().map(of).collect();
    Ok(clusters.concat())
}

async fn job_list(file: &Path) -> Result<Vec<String>, Failed> {
    let listed = async {
        let client = JobClient::attach(file).await?;
        let found = client.list(Some(ENDED_MAX)).await;
        client.close().await;
        found
    };
    let Ok(found) = timeout(LIMIT, listed).await else { return Ok(Vec::new()) };
    let JobList { entries, live, .. } = found?;
    let jobs = entries.iter().map(|entry| entry.job).chain(live.iter().map(|status| status.job));
    let jobs: BTreeSet<_> = jobs.collect();
    Ok(jobs.iter().rev().map(ToString::to_string).collect())
}

#[cfg(target_os = "linux")]
fn networks() -> Result<Vec<String>, Failed> {
    let home = super::network::home()?;
    springtide_wan::place::running_networks(&home).map_err(super::network::failed)
}

#[cfg(not(target_os = "linux"))]
fn networks() -> Result<Vec<String>, Failed> {
    Ok(Vec::new())
}
