//! Texts of a check of the network.

use std::fmt::Write;

use serde_json::{Value, json};
use springtide_actors::probe::{self, Paths};
use springtide_cli::format::{SCHEMA, seconds, size};
use springtide_runtime::id::NodeId;
use springtide_runtime::net::Buffers;

use springtide_operations::netcheck::CheckResults;

/// A certificate that ends within this number of days is reported.
const DAYS_LEFT_MIN: i64 = 14;

/// The results as lines.
pub fn table(found: &CheckResults) -> String {
    let mut out = String::new();
    let nodes = found.from.values().flatten().flat_map(|paths| paths.paths.keys());
    let width = nodes.chain(found.from.keys()).map(|n| n.as_str().len()).max().unwrap_or(0);
    for (from, paths) in &found.from {
        let from = if *from == found.here { "here" } else { from.as_str() };
        match paths {
            Err(why) => drop(writeln!(out, "{from:width$}  does not answer: {why}")),
            Ok(paths) => {
                for (to, path) in &paths.paths {
                    let _ = writeln!(out, "{from:width$}  {:width$}  {}", to.as_str(), line(path));
                }
            }
        }
    }
    if let Some(Buffers { asked, receive, send }) = found.buffers {
        let (asked, receive, send) = (size(asked), size(receive), size(send));
        let _ = writeln!(out, "buffers here: {receive} to receive, {send} to send ({asked} asked)");
    }
    for (name, days) in &found.certificates {
        let soon = if *days < DAYS_LEFT_MIN { ": issue another soon" } else { "" };
        let _ = writeln!(out, "certificate of {name}: {days} days left{soon}");
    }
    let _ = writeln!(out, "firewall: {}", found.firewall.ask());
    out
}

/// The object of `--json`.
pub fn object(found: &CheckResults) -> Value {
    let object = |to: &NodeId, path: &probe::PathMeasurement| match &path.error {
        None => json!({
            "node": to, "ok": true, "round_trip_us": path.round_trip_us, "mtu_bytes": path.mtu,
            "relayed": path.relayed,
        }),
        Some(why) => json!({ "node": to, "ok": false, "error": why }),
    };
    let all = |paths: &Paths| -> Vec<Value> {
        paths.paths.iter().map(|(to, path)| object(to, path)).collect()
    };
    let here = found.from.get(&found.here).and_then(|paths| paths.as_ref().ok());
    let others = found.from.iter().filter(|(from, _)| **from != found.here);
    let pairs: Vec<Value> = others
        .map(|(from, paths)| match paths {
            Ok(paths) => json!({
                "from": from, "ok": true, "buffers": paths.buffers, "nodes": all(paths),
            }),
            Err(why) => json!({ "from": from, "ok": false, "error": why }),
        })
        .collect();
    let certificates: Vec<Value> = found
        .certificates
        .iter()
        .map(|(of, days)| json!({ "of": of, "days_left": days, "soon": *days < DAYS_LEFT_MIN }))
        .collect();
    json!({
        "schema": SCHEMA,
        "nodes": here.map(all),
        "pairs": pairs,
        "buffers": found.buffers,
        "certificates": certificates,
        "firewall": {
            "protocol": "udp",
            "directions": "both",
            "node_ports": found.firewall.ports,
            "head_port": found.firewall.head,
            "ask": found.firewall.ask(),
        },
    })
}

fn line(path: &probe::PathMeasurement) -> String {
    if let Some(why) = &path.error {
        return why.clone();
    }
    let round = path.round_trip_us.map_or("?".to_owned(), |us| seconds(us as f64 / 1e6));
    let packets = path.mtu.map_or(String::new(), |mtu| format!(", packets of {mtu} bytes"));
    let relayed = if path.relayed { ", through another node" } else { "" };
    format!("{round}{packets}{relayed}")
}
