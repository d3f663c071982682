//! A run's decisions told in sentences, and taken again from the log. Reads what was logged and nothing else.

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};
use springtide_runtime::id::{ClusterId, NodeId};

use super::decision::{Action, Decision};
use super::memory::{Memory, Subject};
use super::reason::Reason;
use super::settings::Settings;
use super::snapshot::Snapshot;
use super::worker::Oddity;

/// All that a decision was taken from: what an event of it carries as its inputs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Inputs {
    /// What was.
    pub snapshot: Snapshot,
    /// What was remembered.
    pub memory: Memory,
    /// What was set.
    pub settings: Settings,
}

/// What decisions of the policy are called in the log.
pub const ADAPT: &str = "adapt";

/// A decision as it was logged.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Logged {
    /// From what.
    pub inputs: Inputs,
    /// What.
    pub decision: Decision,
}

/// A decision that came out different when it was taken again.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error(
    "period {period} of epoch {epoch}: the decision taken again differs; logged {logged}, now {now}: was the run made \
     with another version?"
)]
pub struct Divergence {
    /// Its epoch.
    pub epoch: u32,
    /// Its period.
    pub period: u64,
    /// As JSON.
    pub logged: String,
    /// As JSON.
    pub now: String,
}

/// Takes every decision of a log again.
///
/// # Errors
/// The first that comes out different in any bit.
pub fn replay<'a>(log: impl IntoIterator<Item = &'a Logged>) -> Result<u64, Divergence> {
    let mut count = 0;
    for Logged { inputs, decision } in log {
        let (again, _) = super::decide(&inputs.snapshot, &inputs.memory, &inputs.settings);
        // As text: a number that is none does not equal itself.
        let text = |d: &Decision| serde_json::to_string(d).unwrap_or_else(|e| e.to_string());
        let (logged, now) = (text(decision), text(&again));
        if logged != now {
            let Snapshot { epoch, period, .. } = inputs.snapshot;
            return Err(Divergence { epoch: epoch.0, period, logged, now });
        }
        count += 1;
    }
    Ok(count)
}

/// Tells a log: a headline for each decision that did something, and its reasons below. `at`: only the last decision
/// not after so many seconds of the run, with all its reasons, whatever it did.
pub fn tell(log: &[Logged], at: Option<f64>) -> Vec<String> {
    let mut lines = Vec::new();
    match at {
        Some(at) => {
            let before = log.iter().rfind(|l| l.inputs.snapshot.elapsed_s <= at);
            if let Some(logged) = before.or(log.first()) {
                told(logged, &mut lines);
            }
        }
        None => {
            for logged in log.iter().filter(|l| !l.decision.decided().is_empty()) {
                told(logged, &mut lines);
            }
        }
    }
    lines
}

fn told(logged: &Logged, lines: &mut Vec<String>) {
    let Snapshot { period, elapsed_s, .. } = logged.inputs.snapshot;
    let mut head = format!("{elapsed_s:.1} s, period {period}: ");
    let decision = &logged.decision;
    if !decision.withheld.is_empty() {
        head.push_str("would have ");
    }
    let parts: Vec<String> = decision.decided().iter().map(action).collect();
    head.push_str(&if parts.is_empty() { "changed nothing".to_owned() } else { parts.join("; ") });
    if let Some(expected) = &decision.prediction {
        let (nodes, efficiency) = (expected.nodes, expected.efficiency);
        let _ = write!(head, " (expected: {nodes} nodes at efficiency {efficiency:.2})");
    }
    lines.push(head);
    lines.extend(decision.why.iter().map(|reason| format!("  {reason}")));
}

/// All that was said of a node: why it was added, removed, or not removed. `cluster` is its cluster, where known:
/// what is said of that is told too.
pub fn tell_node(log: &[Logged], node: &NodeId, cluster: Option<&ClusterId>) -> Vec<String> {
    let mut lines = Vec::new();
    for logged in log {
        let at = logged.inputs.snapshot.elapsed_s;
        for reason in &logged.decision.why {
            if concerns(reason, node, cluster) {
                lines.push(format!("{at:.1} s: {reason}"));
            }
        }
    }
    lines
}

fn concerns(reason: &Reason, wanted: &NodeId, home: Option<&ClusterId>) -> bool {
    match reason {
        Reason::Goes { node, .. }
        | Reason::Stays { node, .. }
        | Reason::GoesLater { node, .. }
        | Reason::Crashed { node, .. }
        | Reason::RootStays { node }
        | Reason::Odd { oddity: Oddity { node, .. } } => node == wanted,
        Reason::RootMoves { from, to, .. } | Reason::RootUnderWay { from, to } => {
            from == wanted || to == wanted
        }
        Reason::Paroled { who, .. } | Reason::Released { who, .. } => match who {
            Subject::Node(node) => node == wanted,
            Subject::Cluster(cluster) => Some(cluster) == home,
        },
        Reason::LinkBad { cluster, .. }
        | Reason::LinkNotBlamed { cluster, .. }
        | Reason::LastCluster { cluster }
        | Reason::Measures { cluster }
        | Reason::StillSlow { cluster, .. }
        | Reason::SetAside { cluster, .. } => Some(cluster) == home,
        _ => false,
    }
}

/// An action in words.
pub fn action(action: &Action) -> String {
    let names = |nodes: &[NodeId]| nodes.iter().map(NodeId::as_str).collect::<Vec<_>>().join(", ");
    match action {
        Action::Request(request) => format!("asked for {} more", request.count),
        Action::Withdraw { count } => format!("withdrew the request for {count}"),
        Action::Remove { nodes, cause } => format!("removed {} ({cause})", names(nodes)),
        Action::RemoveCluster { cluster, cause } => format!("removed cluster {cluster} ({cause})"),
        Action::MoveRoot { from, to, cluster } => {
            format!("moved the root from {from} to {to} of cluster {cluster}")
        }
        Action::Measure { cluster } => format!("measured the way to cluster {cluster}"),
    }
}
