//! The nodes of a running grid, and the revocation of joined ones.
//!
//! This module knows neither the start nor the end of nodes.

use std::path::Path;
use std::time::Duration;

use springtide_actors::enrol::{EnrolmentState, RevokeError};
use springtide_actors::job::SCHEDULER;
use springtide_actors::scheduler::{GetStatus, GridStatus, HostStatus, NodeStatus, Scheduler};
use springtide_cli::dates::date;
use springtide_cli::exit::Failed;
use springtide_runtime::config::nearest;
use springtide_runtime::id::{ClusterId, NodeId};
use springtide_runtime::net::tls::{Dates, calendar};
use springtide_runtime::remote::Remote;

use super::attach::{Attachment, attach, record_command};
use super::grid_files::program_name;
use super::tokens::{GridTokens, notify_head};

/// Timeout of a request to the scheduler.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// A node, and the end of its certificate's validity, if that is known.
pub struct NodeRow {
    /// The cluster of the node.
    pub cluster: ClusterId,
    /// The state of the node.
    pub status: NodeStatus,
    /// The end of its certificate in seconds since the Unix epoch, if it is known.
    pub until: Option<i64>,
    /// The reason why its certificate is revoked, if it is.
    pub revoked: Option<String>,
}

/// The nodes of a grid, and the hosts of clusters with nodes on demand.
pub struct NodeList {
    /// The nodes, by cluster and name.
    pub rows: Vec<NodeRow>,
    /// The hosts, by cluster and name.
    pub hosts: Vec<(ClusterId, HostStatus)>,
}

/// The nodes of the grid of a config file.
///
/// # Errors
/// No grid is up.
pub async fn list(file: &Path) -> Result<NodeList, Failed> {
    let tokens = GridTokens::of(file)?;
    let Attachment { endpoint, head, .. } = attach(file, &tokens.config).await?;
    let scheduler: Remote<Scheduler> = endpoint.hub.remote(&head, SCHEDULER);
    let status = scheduler.send(GetStatus {}).deadline(REQUEST_TIMEOUT).await;
    endpoint.net.close("answered").await;
    let book = tokens.book.read()?;
    Ok(of_status(status?, &book, &tokens.dir))
}

/// The rows of all nodes of a grid.
pub fn of_status(status: GridStatus, book: &EnrolmentState, dir: &Path) -> NodeList {
    let (mut rows, mut hosts) = (Vec::new(), Vec::new());
    for (cluster, site) in status.sites {
        hosts.extend(site.hosts.into_iter().map(|host| (cluster.clone(), host)));
        for status in site.nodes {
            let given = book.given(&status.node);
            let file = || dir.join("node").join(status.node.as_str()).join("node.pem");
            let of_file = || Dates::of_file(&file()).ok().map(|dates| dates.until);
            let until = if site.joins { given.map(|given| given.until) } else { of_file() };
            let revoked = given.and_then(|given| given.revoked.clone()).map(|it| it.reason);
            rows.push(NodeRow { cluster: cluster.clone(), status, until, revoked });
        }
    }
    NodeList { rows, hosts }
}

/// A node of the grid of a config file.
///
/// # Errors
/// No grid is up, or it has no such node.
pub async fn status(node: &str, file: &Path) -> Result<NodeRow, Failed> {
    let mut rows = list(file).await?.rows;
    match rows.iter().position(|row| row.status.node.as_str() == node) {
        Some(at) => Ok(rows.swap_remove(at)),
        None => Err(unknown(node, rows.iter().map(|row| row.status.node.as_str()))),
    }
}

fn unknown<'a>(node: &str, known: impl Iterator<Item = &'a str> + Clone) -> Failed {
    let hint = match nearest(node, known.clone()) {
        Some(meant) => format!("did you mean {meant}?"),
        None => format!("it has {}", known.collect::<Vec<_>>().join(", ")),
    };
    Failed::usage(format!("the grid has no node {node}: {hint}"))
}

/// The revocation of a node.
pub struct Revocation {
    /// The end of the revoked certificate, as a date.
    pub until: String,
    /// Whether a running head enforces it already.
    pub is_enforced: bool,
}

/// Revokes the certificate of a node.
///
/// # Errors
/// No node has joined under this name, or the token store cannot be written.
pub async fn revoke(node: &str, file: &Path, reason: &str) -> Result<Revocation, Failed> {
    let tokens = GridTokens::of(file)?;
    let (id, now) = (NodeId::from(node), calendar()());
    let revoked = tokens.book.change(|book| {
        book.revoke(&id, reason, now).map(|()| book.given(&id).map_or(now, |given| given.until))
    })?;
    let until = revoked.map_err(|error| {
        let RevokeError::Unknown { known, .. } = &error;
        let hint = match nearest(node, known.iter().map(NodeId::as_str)) {
            Some(meant) => format!("did you mean {meant}?"),
            None if known.is_empty() => "no node has joined this grid yet".to_owned(),
            None => format!(
                "there are {}",
                known.iter().map(NodeId::as_str).collect::<Vec<_>>().join(", ")
            ),
        };
        Failed::usage(format!(
            "{error}: {hint} (nodes that the grid starts itself are taken out of service with `{} \
            node drain`)",
            program_name()
        ))
    })?;
    let about = format!("{node}: {reason}");
    record_command(&tokens.dir, tokens.user.clone(), "node revoke", &about);
    let until = date(u64::try_from(until).unwrap_or(0));
    Ok(Revocation { until, is_enforced: notify_head(file, &tokens).await })
}
