//! `why` and `replay`: a run's adaptation told in sentences from its log, and its decisions taken again.
//!
//! Must not know how decisions are taken: the policy tells its own, this puts them among what happened.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

use serde_json::{Value, json};
use springtide_actors::policy::{self, Action, Divergence, Reason};
use springtide_runtime::config::nearest;
use springtide_runtime::event::Event;
use springtide_runtime::id::{ClusterId, Epoch, NodeId};

use crate::exit::Failed;
use crate::report::{SCHEMA, many, seconds};
use crate::run::print;
use crate::runlog::{Moment, Story, Taken};
use crate::talk::{clean, tell};
use crate::wrap;

/// What happens to several nodes within this time is told in one line, in seconds.
const TOGETHER_S: f64 = 2.0;
/// Of a dead node's last words so many lines are told.
const LAST_LINES: usize = 5;
/// Of a decision that came out different so many differences are told.
const DIFFERENCES: usize = 5;

/// What is asked.
pub struct Question<'a> {
    /// The run's directory.
    pub run: &'a Path,
    /// Only the decision at this moment, in seconds since the job's start.
    pub at: Option<f64>,
    /// Only what concerns this node.
    pub node: Option<&'a str>,
    /// Whether the answer is one JSON object.
    pub json: bool,
}

/// Tells why a run's nodes came and went.
///
/// # Errors
/// There is no run or its log is malformed; there is no such node, or no decision where one is asked for.
pub fn why(question: &Question<'_>) -> Result<(), Failed> {
    let story = Story::read(question.run)?;
    let entries = match (question.at, question.node) {
        (None, None) => whole(&story),
        (at, Some(node)) => of_node(&story, &known(&story, node)?, at)?,
        (Some(at), None) => {
            let taken = decision_at(&story, at)?;
            vec![at_moment(taken), seen(taken)]
        }
    };
    if question.json {
        return print(&format!("{}\n", object(&story, &entries)));
    }
    print(&text(&entries, wrap::width()))?;
    for note in notes(&story, question) {
        tell(&note);
    }
    Ok(())
}

/// Takes every decision of a run again.
///
/// # Errors
/// There is no run, it has no decisions, or one comes out different: the first of them.
pub fn replay(run: &Path) -> Result<(), Failed> {
    let story = Story::read(run)?;
    let decisions = story.some_decisions()?;
    let count = policy::replay(decisions.iter().map(|taken| &taken.logged))
        .map_err(|divergence| diverged(&divergence, decisions.len()))?;
    print(&format!("{} taken again: all came out the same\n", many(count, "decision")))?;
    story.gap.iter().for_each(|gap| tell(gap));
    Ok(())
}

/// Something that is told.
#[derive(Clone, Debug, PartialEq)]
struct Entry {
    /// When: seconds since the job's start.
    at_s: f64,
    /// What kind of thing, for programs.
    kind: &'static str,
    /// What, in a line.
    text: String,
    /// Why, a sentence each.
    why: Vec<String>,
}

/// What happened or was decided, in one order.
enum Step<'a> {
    Happened(&'a Moment),
    Decided(&'a Taken),
}

fn steps(story: &Story) -> Vec<Step<'_>> {
    let moments = story.moments.iter().map(|moment| (moment.at_s, Step::Happened(moment)));
    let decisions = story.decisions.iter().map(|taken| (taken.at_s, Step::Decided(taken)));
    let mut steps: Vec<_> = moments.chain(decisions).collect();
    steps.sort_by(|(a, _), (b, _)| a.total_cmp(b));
    steps.into_iter().map(|(_, step)| step).collect()
}

/// Decisions in a row that changed nothing.
struct Quiet {
    at_s: f64,
    periods: (u64, u64),
    efficiency: Option<(f64, f64)>,
}

impl Quiet {
    fn of(Taken { at_s, logged }: &Taken) -> Self {
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

    fn entry(self) -> Entry {
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
        Entry { at_s: self.at_s, kind: "quiet", text, why: Vec::new() }
    }
}

/// The same thing that happened to several nodes.
struct Group {
    at_s: f64,
    last_s: f64,
    fate: Fate,
    nodes: Vec<NodeId>,
}

/// What happened to a node.
#[derive(Clone, Debug, PartialEq)]
enum Fate {
    Joined,
    Left(String),
    Lost(String),
}

impl Fate {
    fn of(event: &Event) -> Option<(&NodeId, Self)> {
        match event {
            Event::NodeJoined { node, .. } => Some((node, Fate::Joined)),
            Event::NodeLeft { node, why, .. } => Some((node, Fate::Left(why.clone()))),
            Event::NodeLost { node, why, .. } => Some((node, Fate::Lost(why.clone()))),
            _ => None,
        }
    }
}

impl Group {
    fn entry(self) -> Entry {
        let names: Vec<&str> = self.nodes.iter().map(NodeId::as_str).collect();
        let names = match names[..] {
            [name] => format!("node {name}"),
            _ => format!("{} nodes ({})", names.len(), names.join(", ")),
        };
        let verb = if self.nodes.len() == 1 { "was" } else { "were" };
        let (kind, text, why) = match self.fate {
            Fate::Joined => ("joined", format!("{names} joined"), String::new()),
            Fate::Left(why) => ("left", format!("{names} left in order"), why),
            Fate::Lost(why) => ("lost", format!("{names} {verb} lost"), why),
        };
        Entry { at_s: self.at_s, kind, text, why: lines(&why) }
    }
}

/// A reason that may have the last lines of a log below it.
fn lines(why: &str) -> Vec<String> {
    let lines = why.lines().map(str::trim).filter(|line| !line.is_empty());
    lines.take(1 + LAST_LINES).map(str::to_owned).collect()
}

/// All of a run: each change, and what happened, in order of time.
fn whole(story: &Story) -> Vec<Entry> {
    let mut entries = Vec::new();
    let mut quiet: Option<Quiet> = None;
    let mut group: Option<Group> = None;
    let mut epoch = None;
    for step in steps(story) {
        match step {
            Step::Decided(taken) if taken.logged.decision.decided().is_empty() => {
                entries.extend(group.take().map(Group::entry));
                let next = Quiet::of(taken);
                quiet = Some(match quiet.take() {
                    Some(before) => before.and(next),
                    None => next,
                });
            }
            Step::Decided(taken) => {
                entries.extend(quiet.take().map(Quiet::entry));
                entries.extend(group.take().map(Group::entry));
                entries.push(at_moment(taken));
            }
            Step::Happened(Moment { at_s, event }) => {
                if let Some((node, fate)) = Fate::of(event) {
                    match &mut group {
                        Some(group) if group.fate == fate && at_s - group.last_s <= TOGETHER_S => {
                            group.last_s = *at_s;
                            group.nodes.push(node.clone());
                        }
                        group => {
                            entries.extend(quiet.take().map(Quiet::entry));
                            entries.extend(group.take().map(Group::entry));
                            let (at_s, last_s) = (*at_s, *at_s);
                            *group = Some(Group { at_s, last_s, fate, nodes: vec![node.clone()] });
                        }
                    }
                } else if let Some(entry) = happened(*at_s, event, &mut epoch) {
                    entries.extend(quiet.take().map(Quiet::entry));
                    entries.extend(group.take().map(Group::entry));
                    entries.push(entry);
                }
            }
        }
    }
    entries.extend(quiet.map(Quiet::entry));
    entries.extend(group.map(Group::entry));
    entries
}

/// What concerns the whole job. `epoch`: the last that was told.
fn happened(at_s: f64, event: &Event, epoch: &mut Option<Epoch>) -> Option<Entry> {
    let entry = |kind, text| Entry { at_s, kind, text, why: Vec::new() };
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
            Entry { at_s, kind: "ended", text, why }
        }
        Event::ViewChanged { job, epoch: of, members, coordinator, .. } => {
            if epoch.replace(*of).is_none_or(|known| known >= *of) {
                return None; // who joins and leaves is told by name
            }
            let by = coordinator.as_ref().map_or(String::new(), |node| format!(" by {node}"));
            let members = many(u64::from(*members), "node");
            entry("epoch", format!("{job} is coordinated{by} under epoch {}, with {members}", of.0))
        }
        // The scheduler's, and others' than the policy's.
        Event::Decision { decision, why, .. } => {
            Entry { at_s, kind: "order", text: decision.clone(), why: lines(why) }
        }
        _ => return None,
    })
}

/// A decision with all its reasons.
fn at_moment(taken: &Taken) -> Entry {
    let logged = &taken.logged;
    let elapsed_s = logged.inputs.snapshot.elapsed_s;
    let mut told = policy::tell(std::slice::from_ref(logged), Some(f64::INFINITY)).into_iter();
    let head = told.next().unwrap_or_default();
    // The time has a column of its own, and is that of the run's one clock.
    let text = head.strip_prefix(&format!("{elapsed_s:.1} s, ")).unwrap_or(&head).to_owned();
    let why = told.map(|line| line.trim().to_owned()).collect();
    Entry { at_s: taken.at_s, kind: "decision", text, why }
}

/// What a decision was taken from, in numbers.
fn seen(taken: &Taken) -> Entry {
    let snapshot = &taken.logged.inputs.snapshot;
    let mut why = Vec::new();
    for (cluster, of) in &snapshot.clusters {
        let mut line = format!("cluster {cluster}: {}", many(of.counted.into(), "node"));
        if of.counted > 0 {
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
            if count > 0 {
                let _ = write!(line, "; {count} {what}");
            }
        }
        why.push(line);
    }
    let offered = snapshot.offers.iter().filter(|(_, offer)| offer.free > 0);
    let offered: Vec<_> =
        offered.map(|(cluster, offer)| format!("{cluster} {}", offer.free)).collect();
    if !offered.is_empty() {
        why.push(format!("free nodes: {}", offered.join(", ")));
    }
    if snapshot.requested > 0 {
        why.push(format!("asked for and not there: {}", snapshot.requested));
    }
    if let Some(root) = &snapshot.root {
        why.push(format!("the root is on node {} of cluster {}", root.node, root.cluster));
    }
    Entry { at_s: taken.at_s, kind: "seen", text: "it was decided from:".to_owned(), why }
}

/// A time as it is shown: people ask for what they read.
fn shown(at_s: f64) -> f64 {
    (at_s * 10.0).round() / 10.0
}

/// The last decision not after this moment, else the first.
fn decision_at(story: &Story, at: f64) -> Result<&Taken, Failed> {
    let decisions = story.some_decisions()?;
    let before = decisions.iter().rfind(|taken| shown(taken.at_s) <= at);
    Ok(before.unwrap_or(&decisions[0]))
}

fn known(story: &Story, name: &str) -> Result<NodeId, Failed> {
    if story.homes.keys().any(|node| node.as_str() == name) {
        return Ok(name.into());
    }
    let names: Vec<&str> = story.homes.keys().map(NodeId::as_str).collect();
    let hint = match nearest(name, names.iter().copied()) {
        Some(meant) => format!("did you mean {meant}?"),
        None => format!("it knows {}", names.join(", ")),
    };
    Err(Failed::usage(format!("{} knows no node {name}: {hint}", story.file.display())))
}

/// What is told of a node; with a moment, by the decision then.
fn of_node(story: &Story, node: &NodeId, at: Option<f64>) -> Result<Vec<Entry>, Failed> {
    let home = story.homes.get(node);
    let mut entries = Vec::new();
    if let Some(at) = at {
        let taken = decision_at(story, at)?;
        entries.extend(said_of(taken, node, home));
        if entries.is_empty() {
            let snapshot = &taken.logged.inputs.snapshot;
            let text = format!("period {} said nothing of node {node}", snapshot.period);
            let at_s = taken.at_s;
            entries.push(Entry { at_s, kind: "silence", text, why: Vec::new() });
        }
        return Ok(entries);
    }
    // A sentence that comes again with other numbers is told once: by its words, where it stands and how often it came.
    let mut again: BTreeMap<String, (usize, u32, f64)> = BTreeMap::new();
    let mut asked: Option<&Taken> = None;
    let mut member = false;
    for step in steps(story) {
        match step {
            Step::Decided(taken) => {
                let mut said = said_of(taken, node, home);
                if said.is_empty() && member {
                    said.extend(not_blamed(taken, node));
                }
                for entry in said {
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
                let requests = |action: &Action| matches!(action, Action::Request(_));
                if taken.logged.decision.actions.iter().any(requests) {
                    asked = Some(taken);
                }
            }
            Step::Happened(Moment { at_s, event }) => {
                let entry = match (Fate::of(event), event) {
                    (Some((who, fate)), _) if who == node => {
                        let first = *at_s <= 0.0;
                        let joined = fate == Fate::Joined;
                        member = joined;
                        let (nodes, last_s) = (vec![node.clone()], *at_s);
                        let mut entry = Group { at_s: *at_s, last_s, fate, nodes }.entry();
                        match asked {
                            _ if !joined => {}
                            _ if first => entry.text.push_str(" as one of the first"),
                            Some(taken) => entry.why = why_asked(taken),
                            None => {}
                        }
                        Some(entry)
                    }
                    (_, Event::Decision { decision, why, inputs })
                        if names(decision, inputs, node) =>
                    {
                        let (text, why) = (decision.clone(), lines(why));
                        Some(Entry { at_s: *at_s, kind: "order", text, why })
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
        let at_s = story.decisions.last().map_or(0.0, |taken| taken.at_s);
        let text =
            "no decision spoke of it: it was never among the worst of its cluster".to_owned();
        entries.push(Entry { at_s, kind: "silence", text, why: Vec::new() });
    }
    Ok(entries)
}

/// Says of sentences that came again how often.
fn repeated(entries: &mut [Entry], again: BTreeMap<String, (usize, u32, f64)>) {
    for (index, times, last_s) in again.into_values().filter(|(_, times, _)| *times > 0) {
        let times = many(times.into(), "more time");
        let _ = write!(entries[index].text, " (and {times} until {last_s:.1} s)");
    }
}

/// The reasons of a decision that concern a node.
fn said_of(taken: &Taken, node: &NodeId, home: Option<&ClusterId>) -> Vec<Entry> {
    let at_s = taken.at_s;
    let period = taken.logged.inputs.snapshot.period;
    let prefix = format!("{:.1} s: ", taken.logged.inputs.snapshot.elapsed_s);
    let told = policy::tell_node(std::slice::from_ref(&taken.logged), node, home);
    let only = if taken.logged.decision.withheld.is_empty() { "" } else { ", only monitored" };
    let entry = |line: String| {
        let text = line.strip_prefix(&prefix).unwrap_or(&line);
        let text = format!("period {period}{only}: {text}");
        Entry { at_s, kind: "decision", text, why: Vec::new() }
    };
    told.into_iter().map(entry).collect()
}

/// Said of a node about which a decision that removed others is silent.
fn not_blamed(taken: &Taken, node: &NodeId) -> Option<Entry> {
    let removes = |a: &&Action| matches!(a, Action::Remove { .. } | Action::RemoveCluster { .. });
    let removals: Vec<String> =
        taken.logged.decision.actions.iter().filter(removes).map(policy::action).collect();
    let snapshot = &taken.logged.inputs.snapshot;
    let (at_s, period) = (taken.at_s, snapshot.period);
    let text =
        format!("period {period}: {}; nothing spoke against node {node}", removals.join("; "));
    (!removals.is_empty()).then(|| Entry { at_s, kind: "decision", text, why: Vec::new() })
}

/// Why nodes were asked for.
fn why_asked(taken: &Taken) -> Vec<String> {
    let snapshot = &taken.logged.inputs.snapshot;
    let mut why =
        vec![format!("nodes were asked for at {:.1} s, period {}:", taken.at_s, snapshot.period)];
    let of_size = taken.logged.decision.why.iter().filter(|reason| {
        matches!(
            reason,
            Reason::Efficiency { .. }
                | Reason::Above { .. }
                | Reason::BelowMinimum { .. }
                | Reason::Refilling { .. }
                | Reason::Undone { .. }
                | Reason::Migrates { .. }
                | Reason::Asked { .. }
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

/// For people: the times in a column, reasons below what they are of.
fn text(entries: &[Entry], width: Option<usize>) -> String {
    // What was before the job's start needs no time.
    let time = |entry: &Entry| match entry.at_s {
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

fn object(story: &Story, entries: &[Entry]) -> Value {
    let told: Vec<Value> = entries
        .iter()
        .map(|Entry { at_s, kind, text, why }| {
            json!({ "at_s": at_s, "kind": kind, "text": text, "why": why })
        })
        .collect();
    json!({
        "schema": SCHEMA,
        "run": story.run,
        "decisions": story.decisions.len(),
        "gap": story.gap,
        "told": told,
    })
}

/// What is to be known beside the answer.
fn notes(story: &Story, question: &Question<'_>) -> Vec<String> {
    let mut notes = Vec::new();
    if story.decisions.is_empty() {
        notes.push(story.no_decisions());
    } else if question.at.is_none() && question.node.is_none() {
        let all = story.decisions.len() as u64;
        let changes = story.decisions.iter().filter(|t| !t.logged.decision.decided().is_empty());
        notes.push(format!(
            "{}, {} with a change; --at SECONDS tells one with its reasons, --node NODE what concerns a node",
            many(all, "decision"),
            changes.count()
        ));
    } else if let (Some(at), Some(first)) = (question.at, story.decisions.first())
        && shown(first.at_s) > at
    {
        notes.push("there was no decision before: this is the first".to_owned());
    }
    notes.extend(story.gap.clone());
    notes
}

/// The failure of a decision that came out different, with what differs in it.
fn diverged(divergence: &Divergence, all: usize) -> Failed {
    let Divergence { epoch, period, logged, now } = divergence;
    let parsed = |text: &str| serde_json::from_str(text).unwrap_or(Value::Null);
    let mut found = Vec::new();
    differences("", &parsed(logged), &parsed(now), &mut found);
    let more = found.len().saturating_sub(DIFFERENCES);
    found.truncate(DIFFERENCES);
    if more > 0 {
        found.push(format!("and {}", many(more as u64, "more difference")));
    }
    Failed::failure(format!(
        "period {period} of epoch {epoch} came out different, the first of {all} decisions that does; was the run made with \
         another version?\n  {}",
        found.join("\n  ")
    ))
}

/// The places in which two values differ.
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
