//! `node list`, `node status` and `node revoke`: the nodes of a grid, for people, programs and
//! health checks.
//!
//! Independent of the start and end of nodes.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use springtide_actors::enrol::{Book, RevokeError};
use springtide_actors::job::SCHEDULER;
use springtide_actors::scheduler::{GetStatus, GridStatus, NodeStatus, Scheduler};
use springtide_runtime::config::{NodeConfig, nearest};
use springtide_runtime::id::{ClusterId, NodeId};
use springtide_runtime::net::tls::{Dates, calendar};
use springtide_runtime::remote::Remote;

use crate::dates::date;
use crate::exit::Failed;
use crate::grid::{cannot, program_name};
use crate::node;
use crate::outdir::write_file;
use crate::report::SCHEMA;
use crate::run::{Attachment, attach, print};
use crate::token::{GridTokens, columns, notify_head};

/// Timeout of a request to the scheduler.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum age of a node's own state file.
const STATE_AGE_MAX: Duration = Duration::from_secs(20);

/// A node, and the end of its certificate's validity, if that is known.
struct Row {
    cluster: ClusterId,
    status: NodeStatus,
    until: Option<i64>,
    revoked: Option<String>,
}

async fn rows(file: &Path, tokens: &GridTokens) -> Result<Vec<Row>, Failed> {
    let Attachment { endpoint, head, .. } = attach(file, &tokens.config).await?;
    let scheduler: Remote<Scheduler> = endpoint.hub.remote(&head, SCHEDULER);
    let status = scheduler.send(GetStatus {}).deadline(REQUEST_TIMEOUT).await;
    endpoint.net.close("answered").await;
    let book = tokens.book.read()?;
    Ok(of_status(status?, &book, &tokens.dir))
}

fn of_status(status: GridStatus, book: &Book, dir: &Path) -> Vec<Row> {
    let mut rows = Vec::new();
    for (cluster, site) in status.sites {
        for status in site.nodes {
            let given = book.given(&status.node);
            let file = || dir.join("node").join(status.node.as_str()).join("node.pem");
            let of_file = || Dates::of_file(&file()).ok().map(|dates| dates.until);
            let until = match site.joins {
                true => given.map(|given| given.until),
                false => of_file(),
            };
            let revoked = given.and_then(|given| given.revoked.clone()).map(|it| it.reason);
            rows.push(Row { cluster: cluster.clone(), status, until, revoked });
        }
    }
    rows
}

impl Row {
    fn state(&self) -> String {
        let state = serde_json::to_value(self.status.state).ok();
        state.as_ref().and_then(Value::as_str).unwrap_or_default().to_owned()
    }

    fn reason(&self) -> String {
        let revoked = self.revoked.as_ref().map(|why| format!("revoked: {why}"));
        let mut reason = revoked.or_else(|| self.status.reason.clone()).unwrap_or_default();
        if let Some(wait) = self.status.next_try_ms {
            reason = format!("next try in {} s: {reason}", wait.div_ceil(1000));
        }
        reason.replace('\n', " ")
    }

    fn until(&self) -> Option<String> {
        self.until.map(|until| date(u64::try_from(until).unwrap_or(0)))
    }

    fn object(&self) -> Value {
        let NodeStatus { node, job, threads, pid, address, reason, next_try_ms, .. } = &self.status;
        json!({
            "node": node,
            "cluster": self.cluster,
            "state": self.status.state,
            "job": job,
            "threads": threads,
            "pid": pid,
            "address": address.as_ref().map(ToString::to_string),
            "certificate_until": self.until(),
            "reason": reason,
            "next_try_s": next_try_ms.map(|wait| wait as f64 / 1e3),
            "revoked": self.revoked,
        })
    }

    fn cells(&self) -> [String; 8] {
        let dash = |text: Option<String>| text.filter(|t| !t.is_empty()).unwrap_or("-".to_owned());
        let NodeStatus { node, job, threads, address, .. } = &self.status;
        [
            node.to_string(),
            self.cluster.to_string(),
            self.state(),
            dash(job.map(|job| job.to_string())),
            dash(threads.map(|threads| threads.to_string())),
            dash(address.as_ref().map(ToString::to_string)),
            dash(self.until()),
            self.reason(),
        ]
    }
}

fn table(rows: &[Row]) -> String {
    let head =
        ["NODE", "CLUSTER", "STATE", "JOB", "THREADS", "ADDRESS", "CERTIFICATE UNTIL", "REASON"];
    let mut cells = vec![head.map(str::to_owned)];
    cells.extend(rows.iter().map(Row::cells));
    columns(&cells)
}

/// Executes `node list`.
///
/// # Errors
/// No grid is up.
pub async fn list(file: &Path, json: bool) -> Result<(), Failed> {
    let tokens = GridTokens::of(file)?;
    let rows = rows(file, &tokens).await?;
    match json {
        true => {
            let nodes: Vec<Value> = rows.iter().map(Row::object).collect();
            print(&format!("{}\n", json!({ "schema": SCHEMA, "nodes": nodes })))
        }
        false => print(&table(&rows)),
    }
}

/// Executes `node status NODE`.
///
/// # Errors
/// No grid is up, or it has no such node.
pub async fn status(node: &str, file: &Path, json: bool) -> Result<(), Failed> {
    let tokens = GridTokens::of(file)?;
    let rows = rows(file, &tokens).await?;
    let Some(row) = rows.iter().find(|row| row.status.node.as_str() == node) else {
        return Err(unknown(node, rows.iter().map(|row| row.status.node.as_str())));
    };
    if json {
        let mut object = row.object();
        object["schema"] = SCHEMA.into();
        return print(&format!("{object}\n"));
    }
    let names =
        ["node", "cluster", "state", "job", "threads", "address", "certificate until", "reason"];
    let lines = names.into_iter().zip(row.cells()).filter(|(_, cell)| !cell.is_empty());
    let rows: Vec<[String; 2]> = lines.map(|(name, cell)| [name.to_owned(), cell]).collect();
    print(&columns(&rows))
}

fn unknown<'a>(node: &str, known: impl Iterator<Item = &'a str> + Clone) -> Failed {
    let hint = match nearest(node, known.clone()) {
        Some(meant) => format!("did you mean {meant}?"),
        None => format!("it has {}", known.collect::<Vec<_>>().join(", ")),
    };
    Failed::usage(format!("the grid has no node {node}: {hint}"))
}

/// Executes `node revoke`.
///
/// # Errors
/// No node has joined under this name, or the token store cannot be written.
pub async fn revoke(node: &str, file: &Path, reason: &str) -> Result<(), Failed> {
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
    let until = date(u64::try_from(until).unwrap_or(0));
    match notify_head(file, &tokens).await {
        true => eprintln!(
            "{node} is revoked: its link is closed, and it gets none, nor another certificate; its \
            name is free again when its certificate ends, at {until}"
        ),
        false => eprintln!(
            "{node} is revoked, until its certificate ends at {until}: no head answers; the \
            next head will enforce it"
        ),
    }
    Ok(())
}

/// The state that a joined node writes next to its certificate, for health checks on its own
/// host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OwnState {
    /// The version of the content.
    pub schema: u32,
    /// The name of the node.
    pub node: String,
    /// The cluster of the node.
    pub cluster: String,
    /// Whether its site has registered it.
    pub registered: bool,
    /// The process id of the node.
    pub pid: u32,
    /// The time of the state, in seconds since the Unix epoch.
    pub at: i64,
}

impl OwnState {
    /// The path of the file.
    pub fn path(config: &NodeConfig) -> PathBuf {
        config.identity.certificate.with_file_name("node.state.json")
    }

    /// Writes the file.
    ///
    /// # Errors
    /// The operating system reports an error.
    pub fn write(&self, path: &Path) -> Result<(), Failed> {
        write_file(path, &serde_json::to_vec(self).map_err(Failed::failure)?)
    }

    /// The reason why the node is unhealthy, if it is.
    fn unhealthy(&self, now: i64) -> Option<String> {
        let ago = now.saturating_sub(self.at);
        if ago > STATE_AGE_MAX.as_secs() as i64 {
            return Some(format!(
                "{} has written no state for {ago} s: it does not run, or hangs",
                self.node
            ));
        }
        (!self.registered).then(|| {
            format!("{} runs and is not registered: it does not reach its head", self.node)
        })
    }
}

/// Executes `node status --self`.
///
/// # Errors
/// The node does not run, or is not registered.
pub fn status_of_self(file: &Path, json: bool) -> Result<(), Failed> {
    let config = node::config(file)?;
    if !config.renew {
        return Err(Failed::usage(format!(
            "{} is not the config of a node that has joined (`renew = true`): for other nodes use \
            `node status NODE --config GRID`",
            file.display()
        )));
    }
    let path = OwnState::path(&config);
    let bytes = match fs::read(&path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return Err(Failed::failure(format!(
                "{} has not run yet: start it with `{} node run --config {}`",
                config.node,
                program_name(),
                file.display()
            )));
        }
        Err(error) => return Err(cannot("read", &path, &error)),
    };
    let state: OwnState = serde_json::from_slice(&bytes)
        .map_err(|error| Failed::failure(format!("{}: {error}", path.display())))?;
    let unhealthy = state.unhealthy(calendar()());
    if json {
        let object = json!({
            "schema": SCHEMA,
            "node": state.node,
            "cluster": state.cluster,
            "registered": unhealthy.is_none(),
            "pid": state.pid,
            "reason": unhealthy,
        });
        print(&format!("{object}\n"))?;
    } else if unhealthy.is_none() {
        print(&format!("{} is registered\n", state.node))?;
    }
    unhealthy.map_or(Ok(()), |unhealthy| Err(Failed::failure(unhealthy)))
}

#[cfg(test)]
mod tests {
    use springtide_actors::scheduler::{NodeState, SiteStatus};

    use super::*;

    #[test]
    fn nodes_are_listed_with_state_certificate_and_reason() {
        let node = |name: &str, state, reason: Option<&str>| NodeStatus {
            node: name.into(),
            state,
            job: None,
            threads: (state == NodeState::Idle).then_some(4),
            pid: None,
            incarnation: None,
            address: None,
            reason: reason.map(str::to_owned),
            next_try_ms: (state == NodeState::Broken).then_some(39_800),
        };
        let nodes = vec![
            node("lab-1", NodeState::Idle, None),
            node("lab-2", NodeState::Off, Some("its link is down:\nthe peer says goodbye")),
            node("lab-3", NodeState::Broken, Some("it ended 4 times in a row: signal: 9")),
        ];
        let site = SiteStatus { joins: true, nodes, ..SiteStatus::default() };
        let status = GridStatus { sites: [("lab".into(), site)].into(), ..GridStatus::default() };
        let rows = of_status(status, &Book::default(), Path::new("/nowhere"));
        let expected = "\
NODE   CLUSTER  STATE   JOB  THREADS  ADDRESS  CERTIFICATE UNTIL  REASON
lab-1  lab      idle    -    4        -        -
lab-2  lab      off     -    -        -        -                  \
             its link is down: the peer says goodbye
lab-3  lab      broken  -    -        -        -                  \
             next try in 40 s: it ended 4 times in a row: signal: 9
";
        assert_eq!(table(&rows), expected);
        assert_eq!(rows[0].object()["state"], "idle");
    }

    #[test]
    fn a_node_is_healthy_while_its_state_is_recent() {
        let state = |registered| OwnState {
            schema: 1,
            node: "lab-1".into(),
            cluster: "lab".into(),
            registered,
            pid: 1,
            at: 100,
        };
        assert_eq!(state(true).unhealthy(110), None);
        assert!(state(true).unhealthy(121).unwrap().contains("does not run"));
        assert!(state(false).unhealthy(110).unwrap().contains("not registered"));
        // A clock that was set back makes no node unhealthy.
        assert_eq!(state(true).unhealthy(50), None);
    }
}
