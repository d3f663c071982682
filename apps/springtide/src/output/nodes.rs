//! Texts about nodes.

use serde_json::{Value, json};
use springtide_actors::scheduler::{DrainResult, HostStatus, NodeStatus};
use springtide_cli::dates::date;
use springtide_cli::format::SCHEMA;
use springtide_runtime::id::ClusterId;

use super::table::columns;
use springtide_operations::nodes::{NodeList, NodeRow};

fn state(row: &NodeRow) -> String {
    let state = serde_json::to_value(row.status.state).ok();
    state.as_ref().and_then(Value::as_str).unwrap_or_default().to_owned()
}

fn reason(row: &NodeRow) -> String {
    let revoked = row.revoked.as_ref().map(|why| format!("revoked: {why}"));
    let mut reason = revoked.or_else(|| row.status.reason.clone()).unwrap_or_default();
    if let Some(wait) = row.status.next_try_ms {
        reason = format!("next try in {} s: {reason}", wait.div_ceil(1000));
    }
    reason.replace('\n', " ")
}

fn until(row: &NodeRow) -> Option<String> {
    row.until.map(|until| date(u64::try_from(until).unwrap_or(0)))
}

/// The node as an object.
pub fn node_object(row: &NodeRow) -> Value {
    let NodeStatus { node, job, threads, pid, address, reason, next_try_ms, .. } = &row.status;
    json!({
        "node": node,
        "cluster": row.cluster,
        "state": row.status.state,
        "job": job,
        "threads": threads,
        "pid": pid,
        "address": address.as_ref().map(ToString::to_string),
        "certificate_until": until(row),
        "reason": reason,
        "next_try_s": next_try_ms.map(|wait| wait as f64 / 1e3),
        "revoked": row.revoked,
    })
}

/// The cells of the node in a table.
fn cells(row: &NodeRow) -> [String; 8] {
    let dash = |text: Option<String>| text.filter(|t| !t.is_empty()).unwrap_or("-".to_owned());
    let NodeStatus { node, job, threads, address, .. } = &row.status;
    [
        node.to_string(),
        row.cluster.to_string(),
        state(row),
        dash(job.map(|job| job.to_string())),
        dash(threads.map(|threads| threads.to_string())),
        dash(address.as_ref().map(ToString::to_string)),
        dash(until(row)),
        reason(row),
    ]
}

/// The nodes and hosts as the object of `--json`.
pub fn list_object(list: &NodeList) -> Value {
    let nodes: Vec<Value> = list.rows.iter().map(node_object).collect();
    let host = |(cluster, host): &(ClusterId, HostStatus)| {
        json!({
            "host": host.host,
            "cluster": cluster,
            "processors": host.processors,
            "used": host.used,
            "left_out": host.left_out,
        })
    };
    let hosts: Vec<Value> = list.hosts.iter().map(host).collect();
    json!({ "schema": SCHEMA, "nodes": nodes, "hosts": hosts })
}

/// The nodes as a table, and then the hosts, if there are any.
pub fn list_text(list: &NodeList) -> String {
    if list.hosts.is_empty() {
        return table(&list.rows);
    }
    let head = ["HOST", "CLUSTER", "PROCESSORS", "USED", "LEFT OUT"].map(str::to_owned);
    let cells = |(cluster, host): &(ClusterId, HostStatus)| {
        let left_out = host.left_out.as_deref().unwrap_or_default().replace('\n', " ");
        let (processors, used) = (host.processors.to_string(), host.used.to_string());
        [host.host.clone(), cluster.to_string(), processors, used, left_out]
    };
    let hosts: Vec<_> = std::iter::once(head).chain(list.hosts.iter().map(cells)).collect();
    if list.rows.is_empty() {
        return columns(&hosts);
    }
    format!("{}\n{}", table(&list.rows), columns(&hosts))
}

/// The nodes as a table.
fn table(rows: &[NodeRow]) -> String {
    let head =
        ["NODE", "CLUSTER", "STATE", "JOB", "THREADS", "ADDRESS", "CERTIFICATE UNTIL", "REASON"];
    let mut table = vec![head.map(str::to_owned)];
    table.extend(rows.iter().map(cells));
    columns(&table)
}

/// A node as lines.
pub fn lines(row: &NodeRow) -> String {
    let names =
        ["node", "cluster", "state", "job", "threads", "address", "certificate until", "reason"];
    let lines = names.into_iter().zip(cells(row)).filter(|(_, cell)| !cell.is_empty());
    let rows: Vec<[String; 2]> = lines.map(|(name, cell)| [name.to_owned(), cell]).collect();
    columns(&rows)
}

/// Drained nodes as lines.
pub fn drained_text(drained: &DrainResult) -> String {
    let lines = [(&drained.empty, "empty"), (&drained.gone, "gone: it does not run")];
    let width = lines.iter().flat_map(|(nodes, _)| *nodes).map(|n| n.as_str().len()).max();
    let mut out = String::new();
    for (nodes, what) in lines {
        for node in nodes {
            out += &format!("{:width$}  {what}\n", node.as_str(), width = width.unwrap_or(0));
        }
    }
    out
}

/// Drained nodes as the object of `--json`.
pub fn drained_object(drained: &DrainResult) -> Value {
    json!({ "schema": SCHEMA, "ok": true, "empty": drained.empty, "gone": drained.gone })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use springtide_actors::enrol::EnrolmentState;
    use springtide_actors::scheduler::{GridStatus, NodeState, SiteStatus};

    use super::*;
    use springtide_operations::nodes::of_status;

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
        let mut nodes = of_status(status, &EnrolmentState::default(), Path::new("/nowhere"));
        let expected = "\
NODE   CLUSTER  STATE   JOB  THREADS  ADDRESS  CERTIFICATE UNTIL  REASON
lab-1  lab      idle    -    4        -        -
lab-2  lab      off     -    -        -        -                  \
             its link is down: the peer says goodbye
lab-3  lab      broken  -    -        -        -                  \
             next try in 40 s: it ended 4 times in a row: signal: 9
";
        assert_eq!(list_text(&nodes), expected);
        assert_eq!(list_object(&nodes)["nodes"][0]["state"], "idle");
        nodes.rows.clear();
        let host = HostStatus { host: "n1".into(), processors: 16, used: 3, left_out: None };
        let failing = HostStatus { left_out: Some("no route".into()), ..host.clone() };
        nodes.hosts = vec![("lab".into(), host), ("lab".into(), failing)];
        let expected = "\
HOST  CLUSTER  PROCESSORS  USED  LEFT OUT
n1    lab      16          3
n1    lab      16          3     no route
";
        assert_eq!(list_text(&nodes), expected);
    }

    #[test]
    fn drained_nodes_are_listed() {
        let drained = DrainResult {
            empty: vec!["ams-1".into(), "ams-12".into()],
            gone: vec!["del-1".into()],
        };
        let expected = "ams-1   empty\nams-12  empty\ndel-1   gone: it does not run\n";
        assert_eq!(drained_text(&drained), expected);
        let expected =
            json!({ "schema": 1, "ok": true, "empty": ["ams-1", "ams-12"], "gone": ["del-1"] });
        assert_eq!(drained_object(&drained), expected);
    }
}
