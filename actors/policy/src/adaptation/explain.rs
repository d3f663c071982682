//! Explanations and replays of a run's decisions. Reads only the log.

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};
use springtide_base::id::{ClusterId, NodeId};

use super::change::QuarantineSubject;
use super::decision::{AdaptationAction, Decision};
use super::memory::Memory;
use super::reason::Reason;
use super::settings::AdaptationSettings;
use super::snapshot::Snapshot;
use super::worker::ImplausibleValue;

/// The inputs of a decision, as its event logs them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Inputs {
    /// Observed state of the job.
    pub snapshot: Snapshot,
    /// Memory before the decision.
    pub memory: Memory,
    /// Settings of the policy.
    pub settings: AdaptationSettings,
}

/// Name of the policy's decisions in the log.
pub const ADAPT: &str = "adapt";

/// A decision as it was logged.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LoggedDecision {
    /// Inputs of the decision.
    pub inputs: Inputs,
    /// Decision taken from them.
    pub decision: Decision,
}

/// A decision whose replay differs from the log.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error(
    "period {period} of epoch {epoch}: the replayed decision differs; logged {logged}, \
     now {replayed}: \
     was the run made with another version?"
)]
pub struct Divergence {
    /// Epoch of the decision.
    pub epoch: u32,
    /// Period of the decision.
    pub period: u64,
    /// The logged decision, as JSON.
    pub logged: String,
    /// The replayed decision, as JSON.
    pub replayed: String,
}

/// Replays every decision of a log, and returns their number.
///
/// # Errors
/// The first replay that differs in any bit.
pub fn replay<'a>(log: impl IntoIterator<Item = &'a LoggedDecision>) -> Result<u64, Divergence> {
    let mut count = 0;
    for LoggedDecision { inputs, decision } in log {
        let (again, _) = super::decide(&inputs.snapshot, &inputs.memory, &inputs.settings);
        // Compares text, since NaN does not equal itself.
        let text = |d: &Decision| serde_json::to_string(d).unwrap_or_else(|e| e.to_string());
        let (logged, now) = (text(decision), text(&again));
        if logged != now {
            let Snapshot { epoch, period, .. } = inputs.snapshot;
            return Err(Divergence { epoch: epoch.0, period, logged, replayed: now });
        }
        count += 1;
    }
    Ok(count)
}

/// Explains a log: for each decision with actions, a headline and its reasons.
///
/// With `at`: only the last decision up to this number of seconds of the run, with or without
/// actions.
pub fn explain(log: &[LoggedDecision], at: Option<f64>) -> Vec<String> {
    let mut lines = Vec::new();
    match at {
        Some(at) => {
            let before = log.iter().rfind(|l| l.inputs.snapshot.elapsed_s <= at);
            if let Some(logged) = before.or(log.first()) {
                explain_period(logged, &mut lines);
            }
        }
        None => {
            for logged in log.iter().filter(|l| !l.decision.decided().is_empty()) {
                explain_period(logged, &mut lines);
            }
        }
    }
    lines
}

fn explain_period(logged: &LoggedDecision, lines: &mut Vec<String>) {
    let Snapshot { period, elapsed_s, .. } = logged.inputs.snapshot;
    let mut head = format!("{elapsed_s:.1} s, period {period}: ");
    let decision = &logged.decision;
    if !decision.withheld.is_empty() {
        head.push_str("would have ");
    }
    let parts: Vec<String> = decision.decided().iter().map(describe_action).collect();
    head.push_str(&if parts.is_empty() { "changed nothing".to_owned() } else { parts.join("; ") });
    if let Some(expected) = &decision.prediction {
        let (size, efficiency) = (expected.processors, expected.efficiency);
        let _ = write!(head, " (expected: {size} at efficiency {efficiency:.2})");
    }
    lines.push(head);
    lines.extend(decision.reasons.iter().map(|reason| format!("  {reason}")));
}

/// Lists all reasons that concern a node. With `cluster`, the node's cluster, includes those that
/// concern the cluster.
pub fn explain_node(
    log: &[LoggedDecision],
    node: &NodeId,
    cluster: Option<&ClusterId>,
) -> Vec<String> {
    let mut lines = Vec::new();
    for logged in log {
        let at = logged.inputs.snapshot.elapsed_s;
        for reason in &logged.decision.reasons {
            if concerns(reason, node, cluster) {
                lines.push(format!("{at:.1} s: {reason}"));
            }
        }
    }
    lines
}

fn concerns(reason: &Reason, wanted: &NodeId, home: Option<&ClusterId>) -> bool {
    match reason {
        Reason::NodeRemoved { node, .. }
        | Reason::Stays { node, .. }
        | Reason::NodeRemovedLater { node, .. }
        | Reason::Crashed { node, .. }
        | Reason::RootStays { node }
        | Reason::Implausible { oddity: ImplausibleValue { node, .. } } => node == wanted,
        Reason::RootMoves { from, to, .. } | Reason::RootUnderWay { from, to } => {
            from == wanted || to == wanted
        }
        Reason::Quarantined { who, .. } | Reason::QuarantineEnded { who, .. } => match who {
            QuarantineSubject::Node(node) => node == wanted,
            QuarantineSubject::Cluster(cluster) => Some(cluster) == home,
        },
        Reason::LinkBad { cluster, .. }
        | Reason::LinkNotBlamed { cluster, .. }
        | Reason::LinkOfMost { cluster, .. }
        | Reason::LastCluster { cluster }
        | Reason::Measures { cluster }
        | Reason::StillSlow { cluster, .. }
        | Reason::SetAside { cluster, .. } => Some(cluster) == home,
        _ => false,
    }
}

/// Describes an action in words.
pub fn describe_action(action: &AdaptationAction) -> String {
    let names = |nodes: &[NodeId]| nodes.iter().map(NodeId::as_str).collect::<Vec<_>>().join(", ");
    match action {
        AdaptationAction::Request(request) => format!("asked for {} more", request.count.get()),
        AdaptationAction::Withdraw { count } => format!("withdrew the request for {}", count.get()),
        AdaptationAction::Remove { nodes, cause } => format!("removed {} ({cause})", names(nodes)),
        AdaptationAction::RemoveCluster { cluster, cause } => {
            format!("removed cluster {cluster} ({cause})")
        }
        AdaptationAction::MoveRoot { from, to, cluster } => {
            format!("moved the root from {from} to {to} of cluster {cluster}")
        }
        AdaptationAction::Measure { cluster } => format!("measured the way to cluster {cluster}"),
    }
}
