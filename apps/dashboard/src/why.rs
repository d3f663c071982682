//! `why` and `replay`: explain a run's adaptation from its log, and repeat its decisions.
//!
//! This module does not know the policy, which explains its own decisions; this module orders them
//! among the other events.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

use serde_json::{Value, json};
use springtide_actors::policy::{self, AdaptationAction, Divergence, Reason};
use springtide_cli::exit::Failed;
use springtide_cli::format::{SCHEMA, many, seconds};
use springtide_cli::print::print;
use springtide_cli::talk::{clean, tell};
use springtide_cli::wrap;
use springtide_runtime::config::nearest;
use springtide_runtime::event::Event;
use springtide_runtime::id::{ClusterId, Epoch, NodeId};

use crate::runlog::{RunLog, TimedDecision, TimedEvent};

/// Interval within which equal events of several nodes share one line, in seconds.
const GROUP_S: f64 = 2.0;
/// Maximum number of last log lines shown for a failed node.
const LAST_LINES_MAX: usize = 5;
/// Maximum number of differences shown for a decision that differs.
const DIFFERENCES_MAX: usize = 5;

/// A question about a run.
pub struct Question<'a> {
    /// The directory of the run.
    pub run: &'a Path,
    /// Only the decision at this time, in seconds since the job's start.
    pub at: Option<f64>,
    /// Only entries about this node.
    pub node: Option<&'a str>,
    /// Whether to print the answer as one JSON object.
    pub json: bool,
}

/// Explains why a run's nodes joined and left.
///
/// # Errors
/// No run exists or its log is malformed, or it has no such node or decision.
pub fn why(question: &Question<'_>) -> Result<(), Failed> {
    let log = RunLog::read(question.run)?;
    let entries = match (question.at, question.node) {
        (None, None) => all_entries(&log),
        (at, Some(node)) => node_entries(&log, &find_node(&log, node)?, at)?,
        (Some(at), None) => {
            let taken = decision_at(&log, at)?;
            vec![decision_entry(taken), inputs_entry(taken)]
        }
    };
    if question.json {
        return print(&format!("{}\n", object(&log, &entries)));
    }
    print(&text(&entries, wrap::width()))?;
    for note in notes(&log, question) {
        tell(&note);
    }
    Ok(())
}

/// Repeats every decision of a run.
///
/// # Errors
/// No run exists, it has no decisions, or a repeated decision differs: the first of them.
pub fn replay(run: &Path) -> Result<(), Failed> {
    let log = RunLog::read(run)?;
    let decisions = log.some_decisions()?;
    let count = policy::replay(decisions.iter().map(|taken| &taken.logged))
        .map_err(|divergence| diverged(&divergence, decisions.len()))?;
    print(&format!("{} repeated: all are equal\n", many(count, "decision")))?;
    log.gap.iter().for_each(|gap| tell(gap));
    Ok(())
}

/// A line of the answer with its reasons.
#[derive(Clone, Debug, PartialEq)]
struct ExplanationLine {
    /// The time in seconds since the job's start.
    at_s: f64,
    /// The kind of the entry, for programs.
    kind: &'static str,
    /// The text in one line.
    text: String,
    /// The reasons, one sentence each.
    why: Vec<String>,
}

/// An event or a decision, in one order.
enum TimelineEntry<'a> {
    Happened(&'a TimedEvent),
    Decided(&'a TimedDecision),
}

fn steps(log: &RunLog) -> Vec<TimelineEntry<'_>> {
    let moments = log.moments.iter().map(|moment| (moment.at_s, TimelineEntry::Happened(moment)));
    let decisions = log.decisions.iter().map(|taken| (taken.at_s, TimelineEntry::Decided(taken)));
    let mut steps: Vec<_> = moments.chain(decisions).collect();
    steps.sort_by(|(a, _), (b, _)| a.total_cmp(b));
    steps.into_iter().map(|(_, step)| step).collect()
}

/// Consecutive decisions without a change.
struct UnchangedPeriods {
    at_s: f64,
    periods: (u64, u64),
    efficiency: Option<(f64, f64)>,
}

impl UnchangedPeriods {
    fn of(TimedDecision { at_s, logged }: &TimedDecision) -> Self {
        let period = logged.inputs.snapshot.period;
        let efficiency = logged.decision.efficiency.map(|e| (e, e));
        Self { at_s: *at_s, periods: (period, period), efficiency }
    }

    fn and(self, next: Self) -> Self {
        let efficiency = match (self.efficiency, next.efficiency) {
            (Some((low, high)), Some((a, b))) => Some((low.min(a), high.max(b))),
            (one, other) => one.or(other),
        };
        Self { at_s: self.at_s, periods: (self.periods.0, next.periods.1), efficiency }
    }

    fn entry(self) -> ExplanationLine {
        let (first, last) = self.periods;
        let mut text = if first == last {
            format!("period {first}: nothing was changed")
        } else {
            format!("periods {first} to {last}: nothing was changed")
        };
        match self.efficiency.map(|(low, high)| (format!("{low:.2}"), format!("{high:.2}"))) {
            Some((low, high)) if low == high => drop(write!(text, " (efficiency {low})")),
            Some((low, high)) => drop(write!(text, " (efficiency {low} to {high})")),
            None => {}
        }
        ExplanationLine { at_s: self.at_s, kind: "quiet", text, why: Vec::new() }
    }
}

/// The same event of several nodes.
struct NodeGroup {
    at_s: f64,
    last_s: f64,
    fate: Membership,
    nodes: Vec<NodeId>,
}

/// An event of a node's membership.
#[derive(Clone, Debug, PartialEq)]
enum Membership {
    Joined,
    Left(String),
    Lost(String),
}

impl Membership {
    fn of(event: &Event) -> Option<(&NodeId, Self)> {
        match event {
            Event::NodeJoined { node, .. } => Some((node, Membership::Joined)),
            Event::NodeLeft { node, why, .. } => Some((node, Membership::Left(why.clone()))),
            Event::NodeLost { node, why, .. } => Some((node, Membership::Lost(why.clone()))),
            _ => None,
        }
    }
}

impl NodeGroup {
    fn entry(self) -> ExplanationLine {
        let names: Vec<&str> = self.nodes.iter().map(NodeId::as_str).collect();
        let names = match names[..] {
            [name] => format!("node {name}"),
            _ => format!("{} nodes ({})", names.len(), names.join(", ")),
        };
        let verb = if self.nodes.len() == 1 { "was" } else { "were" };
        let (kind, text, why) = match self.fate {
            Membership::Joined => ("joined", format!("{names} joined"), String::new()),
            Membership::Left(why) => ("left", format!("{names} left in order"), why),
            Membership::Lost(why) => ("lost", format!("{names} {verb} lost"), why),
        };
        ExplanationLine { at_s: self.at_s, kind, text, why: lines(&why) }
    }
}

/// The lines of a reason, which may contain the last lines of a log.
fn lines(why: &str) -> Vec<String> {
    let lines = why.lines().map(str::trim).filter(|line| !line.is_empty());
    lines.take(1 + LAST_LINES_MAX).map(str::to_owned).collect()
}

/// All entries of a run in order of time.
fn all_entries(log: &RunLog) -> Vec<ExplanationLine> {
    let mut entries = Vec::new();
    let mut quiet: Option<UnchangedPeriods> = None;
    let mut group: Option<NodeGroup> = None;
    let mut epoch = None;
    for step in steps(log) {
        match step {
            TimelineEntry::Decided(taken) if taken.logged.decision.decided().is_empty() => {
                entries.extend(group.take().map(NodeGroup::entry));
                let next = UnchangedPeriods::of(taken);
                quiet = Some(match quiet.take() {
                    Some(before) => before.and(next),
                    None => next,
                });
            }
            TimelineEntry::Decided(taken) => {
                entries.extend(quiet.take().map(UnchangedPeriods::entry));
                entries.extend(group.take().map(NodeGroup::entry));
                entries.push(decision_entry(taken));
            }
            TimelineEntry::Happened(TimedEvent { at_s, event }) => {
                if let Some((node, fate)) = Membership::of(event) {
                    match &mut group {
                        Some(group) if group.fate == fate && at_s - group.last_s <= GROUP_S => {
                            group.last_s = *at_s;
                            group.nodes.push(node.clone());
                        }
                        group => {
                            entries.extend(quiet.take().map(UnchangedPeriods::entry));
                            entries.extend(group.take().map(NodeGroup::entry));
                            let (at_s, last_s) = (*at_s, *at_s);
                            let nodes = vec![node.clone()];
                            *group = Some(NodeGroup { at_s, last_s, fate, nodes });
                        }
                    }
                } else if let Some(entry) = job_entry(*at_s, event, &mut epoch) {
                    entries.extend(quiet.take().map(UnchangedPeriods::entry));
                    entries.extend(group.take().map(NodeGroup::entry));
                    entries.push(entry);
                }
            }
        }
    }
    entries.extend(quiet.map(UnchangedPeriods::entry));
    entries.extend(group.map(NodeGroup::entry));
    entries
}

/// The entry of an event that concerns the whole job. `epoch` is the last one shown.
fn job_entry(at_s: f64, event: &Event, epoch: &mut Option<Epoch>) -> Option<ExplanationLine> {
    let entry = |kind, text| ExplanationLine { at_s, kind, text, why: Vec::new() };
    Some(match event {
        Event::RunStarted { clusters, .. } if !clusters.is_empty() => {
            let nodes: u32 = clusters.values().sum();
            let each: Vec<_> = clusters.iter().map(|(name, n)| format!("{name} {n}")).collect();
            entry("grid", format!("a grid of {}: {}", many(nodes.into(), "node"), each.join(", ")))
        }
        Event::JobStarted { job, name, epoch: of } => {
            let again = if epoch.is_some_and(|known| known < *of) { " again" } else { "" };
            *epoch = Some(*of);
            entry("started", format!("{job} ({name}) starts{again} under epoch {}", of.0))
        }
        Event::JobEnded { job, ok, wall_us, checksum, error } => {
            let after = seconds(*wall_us as f64 / 1e6);
            let sum = checksum.as_ref().map_or(String::new(), |sum| format!(", checksum {sum}"));
            let how = if *ok { "ends well" } else { "fails" };
            let why = error.as_deref().map_or(Vec::new(), lines);
            let text = format!("{job} {how} after {after}{sum}");
            ExplanationLine { at_s, kind: "ended", text, why }
        }
        Event::ViewChanged { job, epoch: of, members, coordinator, .. } => {
            if epoch.replace(*of).is_none_or(|known| known >= *of) {
                return None; // joins and losses have entries by name
            }
            let by = coordinator.as_ref().map_or(String::new(), |node| format!(" by {node}"));
            let members = many(u64::from(*members), "node");
            entry("epoch", format!("{job} is coordinated{by} under epoch {}, with {members}", of.0))
        }
        // Decisions of the scheduler and of parts other than the policy.
        Event::Decision { decision, why, .. } => {
            ExplanationLine { at_s, kind: "order", text: decision.clone(), why: lines(why) }
        }
        _ => return None,
    })
}

/// A decision with all its reasons.
fn decision_entry(taken: &TimedDecision) -> ExplanationLine {
    let logged = &taken.logged;
    let elapsed_s = logged.inputs.snapshot.elapsed_s;
    let mut sentences =
        policy::explain(std::slice::from_ref(logged), Some(f64::INFINITY)).into_iter();
    let head = sentences.next().unwrap_or_default();
    // The time has a column of its own, on the run's clock.
    let text = head.strip_prefix(&format!("{elapsed_s:.1} s, ")).unwrap_or(&head).to_owned();
    let why = sentences.map(|line| line.trim().to_owned()).collect();
    ExplanationLine { at_s: taken.at_s, kind: "decision", text, why }
}

/// The inputs of a decision, in numbers.
fn inputs_entry(taken: &TimedDecision) -> ExplanationLine {
    let snapshot = &taken.logged.inputs.snapshot;
    let mut why = Vec::new();
    for (cluster, of) in &snapshot.clusters {
        let mut line = format!("cluster {cluster}: {}", of.counted);
        if !of.counted.is_zero() {
            let mean = |sum: f64| sum / f64::from(of.counted);
            let _ = write!(
                line,
                ", mean speed {:.3}, mean overhead {:.3}, of which {:.3} between clusters",
                mean(of.speed.value()),
                mean(of.overhead.value()),
                mean(of.inter.value())
            );
        }
        for (count, what) in
            [(of.joining, "join"), (of.leaving, "leave"), (of.silent, "are silent")]
        {
            if !count.is_zero() {
                let _ = write!(line, "; {} {what}", count.get());
            }
        }
        why.push(line);
    }
    let offered = snapshot.offers.iter().filter(|(_, offer)| !offer.free.is_zero());
    let offered: Vec<_> =
        offered.map(|(cluster, offer)| format!("{cluster} {}", offer.free.get())).collect();
    if !offered.is_empty() {
        why.push(format!("free processors: {}", offered.join(", ")));
    }
    if !snapshot.requested.is_zero() {
        why.push(format!("requested and not arrived: {}", snapshot.requested));
    }
    if let Some(root) = &snapshot.root {
        why.push(format!("the root is on node {} of cluster {}", root.node, root.cluster));
    }
    ExplanationLine {
        at_s: taken.at_s,
        kind: "seen",
        text: "inputs of the decision:".to_owned(),
        why,
    }
}

/// A time as it is printed, because people ask for the times that they read.
fn rounded(at_s: f64) -> f64 {
    (at_s * 10.0).round() / 10.0
}

/// The last decision not after this time, else the first.
fn decision_at(log: &RunLog, at: f64) -> Result<&TimedDecision, Failed> {
    let decisions = log.some_decisions()?;
    let before = decisions.iter().rfind(|taken| rounded(taken.at_s) <= at);
    Ok(before.unwrap_or(&decisions[0]))
}

fn find_node(log: &RunLog, name: &str) -> Result<NodeId, Failed> {
    if log.homes.keys().any(|node| node.as_str() == name) {
        return Ok(name.into());
    }
    let names: Vec<&str> = log.homes.keys().map(NodeId::as_str).collect();
    let hint = match nearest(name, names.iter().copied()) {
        Some(meant) => format!("did you mean {meant}?"),
        None => format!("it knows {}", names.join(", ")),
    };
    Err(Failed::usage(format!("{} knows no node {name}: {hint}", log.file.display())))
}

/// The entries about a node; with a time, those of the decision at that time.
fn node_entries(
    log: &RunLog,
    node: &NodeId,
    at: Option<f64>,
) -> Result<Vec<ExplanationLine>, Failed> {
    let home = log.homes.get(node);
    let mut entries = Vec::new();
    if let Some(at) = at {
        let taken = decision_at(log, at)?;
        entries.extend(entries_about(taken, node, home));
        if entries.is_empty() {
            let snapshot = &taken.logged.inputs.snapshot;
            let text = format!("period {} did not mention node {node}", snapshot.period);
            let at_s = taken.at_s;
            entries.push(ExplanationLine { at_s, kind: "silence", text, why: Vec::new() });
        }
        return Ok(entries);
    }
    // Sentences that differ only in numbers are shown once. The key is their words; the value their
    // position, count and last time.
    let mut again: BTreeMap<String, (usize, u32, f64)> = BTreeMap::new();
    let mut requesting: Option<&TimedDecision> = None;
    let mut member = false;
    for step in steps(log) {
        match step {
            TimelineEntry::Decided(taken) => {
                let mut entries_of_period = entries_about(taken, node, home);
                if entries_of_period.is_empty() && member {
                    entries_of_period.extend(kept_entry(taken, node));
                }
                for entry in entries_of_period {
                    let words: String =
                        entry.text.chars().filter(|c| c.is_alphabetic() || *c == ' ').collect();
                    match again.get_mut(&words) {
                        Some((_, times, last)) => (*times, *last) = (*times + 1, entry.at_s),
                        None => {
                            again.insert(words, (entries.len(), 0, entry.at_s));
                            entries.push(entry);
                        }
                    }
                }
                let requests =
                    |action: &AdaptationAction| matches!(action, AdaptationAction::Request(_));
                if taken.logged.decision.actions.iter().any(requests) {
                    requesting = Some(taken);
                }
            }
            TimelineEntry::Happened(TimedEvent { at_s, event }) => {
                let entry = match (Membership::of(event), event) {
                    (Some((who, fate)), _) if who == node => {
                        let first = *at_s <= 0.0;
                        let joined = fate == Membership::Joined;
                        member = joined;
                        let (nodes, last_s) = (vec![node.clone()], *at_s);
                        let mut entry = NodeGroup { at_s: *at_s, last_s, fate, nodes }.entry();
                        match requesting {
                            _ if !joined => {}
                            _ if first => entry.text.push_str(" as one of the first"),
                            Some(taken) => entry.why = request_reasons(taken),
                            None => {}
                        }
                        Some(entry)
                    }
                    (_, Event::Decision { decision, why, inputs })
                        if names(decision, inputs, node) =>
                    {
                        let (text, why) = (decision.clone(), lines(why));
                        Some(ExplanationLine { at_s: *at_s, kind: "order", text, why })
                    }
                    _ => None,
                };
                if let Some(entry) = entry {
                    repeated(&mut entries, std::mem::take(&mut again));
                    entries.push(entry);
                }
            }
        }
    }
    repeated(&mut entries, again);
    if !entries.iter().any(|entry| entry.kind == "decision") {
        let at_s = log.decisions.last().map_or(0.0, |taken| taken.at_s);
        let text =
            "no decision mentioned it: it was never among the worst of its cluster".to_owned();
        entries.push(ExplanationLine { at_s, kind: "silence", text, why: Vec::new() });
    }
    Ok(entries)
}

/// Adds to repeated sentences how often they were repeated.
fn repeated(entries: &mut [ExplanationLine], again: BTreeMap<String, (usize, u32, f64)>) {
    for (index, times, last_s) in again.into_values().filter(|(_, times, _)| *times > 0) {
        let times = many(times.into(), "more time");
        let _ = write!(entries[index].text, " (and {times} until {last_s:.1} s)");
    }
}

/// The reasons of a decision that concern a node.
fn entries_about(
    taken: &TimedDecision,
    node: &NodeId,
    home: Option<&ClusterId>,
) -> Vec<ExplanationLine> {
    let at_s = taken.at_s;
    let period = taken.logged.inputs.snapshot.period;
    let prefix = format!("{:.1} s: ", taken.logged.inputs.snapshot.elapsed_s);
    let sentences = policy::explain_node(std::slice::from_ref(&taken.logged), node, home);
    let only = if taken.logged.decision.withheld.is_empty() { "" } else { ", only monitored" };
    let entry = |line: String| {
        let text = line.strip_prefix(&prefix).unwrap_or(&line);
        let text = format!("period {period}{only}: {text}");
        ExplanationLine { at_s, kind: "decision", text, why: Vec::new() }
    };
    sentences.into_iter().map(entry).collect()
}

/// The entry of a node that a decision with removals does not mention.
fn kept_entry(taken: &TimedDecision, node: &NodeId) -> Option<ExplanationLine> {
    let removes = |a: &&AdaptationAction| {
        matches!(a, AdaptationAction::Remove { .. } | AdaptationAction::RemoveCluster { .. })
    };
    let removals: Vec<String> =
        taken.logged.decision.actions.iter().filter(removes).map(policy::describe_action).collect();
    let snapshot = &taken.logged.inputs.snapshot;
    let (at_s, period) = (taken.at_s, snapshot.period);
    let text =
        format!("period {period}: {}; nothing counted against node {node}", removals.join("; "));
    (!removals.is_empty()).then(|| ExplanationLine {
        at_s,
        kind: "decision",
        text,
        why: Vec::new(),
    })
}

/// The reasons for a request for nodes.
fn request_reasons(taken: &TimedDecision) -> Vec<String> {
    let snapshot = &taken.logged.inputs.snapshot;
    let mut why =
        vec![format!("nodes were asked for at {:.1} s, period {}:", taken.at_s, snapshot.period)];
    let of_size = taken.logged.decision.reasons.iter().filter(|reason| {
        matches!(
            reason,
            Reason::Efficiency { .. }
                | Reason::Above { .. }
                | Reason::BelowMinimum { .. }
                | Reason::Refilling { .. }
                | Reason::Undone { .. }
                | Reason::Migrates { .. }
                | Reason::Requested { .. }
        )
    });
    why.extend(of_size.map(ToString::to_string));
    why
}

/// Whether an order names a node.
fn names(decision: &str, inputs: &Value, node: &NodeId) -> bool {
    let part_of_name = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    let listed = inputs.get("nodes").and_then(Value::as_array);
    decision.split(|c: char| !part_of_name(c)).any(|word| word == node.as_str())
        || listed.is_some_and(|nodes| nodes.iter().any(|name| name == node.as_str()))
}

/// Formats entries for people: times in a column, reasons below their entry.
fn text(entries: &[ExplanationLine], width: Option<usize>) -> String {
    // Events before the job's start need no time.
    let time = |entry: &ExplanationLine| match entry.at_s {
        at if at < 0.0 => String::new(),
        at => format!("{at:.1} s"),
    };
    let column = entries.iter().map(|entry| time(entry).len()).max().unwrap_or(0).max(6);
    let mut out = String::new();
    for entry in entries {
        wrap::paragraph(
            &mut out,
            &format!("{:>column$}  ", time(entry)),
            &clean(&entry.text),
            width,
        );
        for why in &entry.why {
            wrap::paragraph(&mut out, &format!("{:column$}  - ", ""), &clean(why), width);
        }
    }
    out
}

fn object(log: &RunLog, entries: &[ExplanationLine]) -> Value {
    let objects: Vec<Value> = entries
        .iter()
        .map(|ExplanationLine { at_s, kind, text, why }| {
            json!({ "at_s": at_s, "kind": kind, "text": text, "why": why })
        })
        .collect();
    json!({
        "schema": SCHEMA,
        "run": log.run,
        "decisions": log.decisions.len(),
        "gap": log.gap,
        "entries": objects,
    })
}

/// Notes on the answer.
fn notes(log: &RunLog, question: &Question<'_>) -> Vec<String> {
    let mut notes = Vec::new();
    if log.decisions.is_empty() {
        notes.push(log.no_decisions());
    } else if question.at.is_none() && question.node.is_none() {
        let all = log.decisions.len() as u64;
        let changes = log.decisions.iter().filter(|t| !t.logged.decision.decided().is_empty());
        notes.push(format!(
            "{}, {} with a change; --at SECONDS shows one with its reasons, --node NODE those \
            that concern a node",
            many(all, "decision"),
            changes.count()
        ));
    } else if let (Some(at), Some(first)) = (question.at, log.decisions.first())
        && rounded(first.at_s) > at
    {
        notes.push("no decision precedes this time: this is the first".to_owned());
    }
    notes.extend(log.gap.clone());
    notes
}

/// The failure of a repeated decision that differs, with the differences.
fn diverged(divergence: &Divergence, all: usize) -> Failed {
    let Divergence { epoch, period, logged, replayed: now } = divergence;
    let parsed = |text: &str| serde_json::from_str(text).unwrap_or(Value::Null);
    let mut found = Vec::new();
    differences("", &parsed(logged), &parsed(now), &mut found);
    let more = found.len().saturating_sub(DIFFERENCES_MAX);
    found.truncate(DIFFERENCES_MAX);
    if more > 0 {
        found.push(format!("and {}", many(more as u64, "more difference")));
    }
    Failed::failure(format!(
        "period {period} of epoch {epoch} differs, the first of {all} decisions that do; was the \
        run made with another version?\n  {}",
        found.join("\n  ")
    ))
}

/// Collects the paths at which two values differ.
fn differences(path: &str, logged: &Value, now: &Value, found: &mut Vec<String>) {
    match (logged, now) {
        (Value::Object(a), Value::Object(b)) => {
            let mut keys: Vec<&String> = a.keys().chain(b.keys()).collect();
            keys.sort();
            keys.dedup();
            for key in keys {
                let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                let of = |map: &serde_json::Map<String, Value>| {
                    map.get(key).cloned().unwrap_or(Value::Null)
                };
                differences(&path, &of(a), &of(b), found);
            }
        }
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
            for (i, (a, b)) in a.iter().zip(b).enumerate() {
                differences(&format!("{path}[{i}]"), a, b, found);
            }
        }
        (Value::Array(a), Value::Array(b)) => {
            found.push(format!("{path}: logged {} entries, now {}", a.len(), b.len()));
        }
        _ if logged != now => found.push(format!("{path}: logged {logged}, now {now}")),
        _ => {}
    }
}

#[cfg(test)]
#[path = "why_tests.rs"]
mod tests;
