//! `trace`: a run as a timeline in the Trace Event format, which ui.perfetto.dev and chrome://tracing open.
//!
//! A process for the job and one for each cluster; in it a track for each node with the tasks that it had stolen, arrows from whom it
//! had them, and what share of its cluster's thread time was work. Tasks that nobody stole are counted, not recorded: they are not here.
//!
//! Must not know how a run is told on a page.

use std::collections::{BTreeMap, VecDeque};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use springtide_runtime::event::{Event, Scope, TaskEnd};
use springtide_runtime::id::{ClusterId, JobId, NodeId, TaskPath};

use crate::dashboard::leave;
use crate::exit::Failed;
use crate::runlog::Story;

/// The process of what is the job's as a whole.
const JOB: u64 = 1;
/// How long the moment is drawn in which a victim gives a task, microseconds.
const GIVES_US: i64 = 1;

/// Writes the timeline of a run, beside its log where no file is named.
///
/// # Errors
/// There is no run, its log is malformed, or the file cannot be written.
pub fn trace(run: &Path, out: Option<PathBuf>) -> Result<(), Failed> {
    let story = Story::read(run)?;
    let out = out.unwrap_or_else(|| run.join("trace.json"));
    leave(&out, &timeline(&story).to_string(), &[story])
}

/// A task on its thief, from the steal to its end there.
#[derive(Debug)]
struct Slice<'a> {
    from_us: i64,
    to_us: i64,
    task: &'a str,
    job: JobId,
    path: &'a TaskPath,
    victim: &'a NodeId,
    scope: Scope,
    bytes: u64,
    /// None where the log does not tell how it ended.
    outcome: Option<TaskEnd>,
}

impl Slice<'_> {
    /// How long it is drawn: what took no time can be seen, too.
    fn lasts_us(&self) -> i64 {
        (self.to_us - self.from_us).max(GIVES_US)
    }
}

type Key<'a> = (JobId, &'a TaskPath, &'a NodeId, &'a NodeId);

#[derive(Default)]
struct Timeline<'a> {
    events: Vec<Value>,
    slices: BTreeMap<&'a NodeId, Vec<Slice<'a>>>,
    /// Places in `slices` of tasks that have not ended.
    open: BTreeMap<Key<'a>, VecDeque<usize>>,
    /// Processes of clusters.
    clusters: BTreeMap<&'a ClusterId, u64>,
    zero_us: i64,
    dropped: u64,
}

/// The run in the Trace Event format; its times are microseconds since the first that is known.
fn timeline(story: &Story) -> Value {
    let mut timeline = Timeline::default();
    let micros = |s: f64| (s * 1e6).round() as i64;
    timeline.zero_us = story.moments.first().map_or(0, |moment| micros(moment.at_s));
    for cluster in story.homes.values() {
        let next = JOB + 1 + timeline.clusters.len() as u64;
        timeline.clusters.entry(cluster).or_insert(next);
    }
    let mut last = 0;
    for moment in &story.moments {
        let at = micros(moment.at_s) - timeline.zero_us;
        last = last.max(at);
        timeline.event(at, &moment.event, story);
    }
    for taken in &story.decisions {
        let at = micros(taken.at_s) - timeline.zero_us;
        last = last.max(at);
        let decision = &taken.logged.decision;
        if let Some(efficiency) = decision.efficiency {
            let args = json!({ "efficiency": efficiency });
            timeline.events.push(json!({ "ph": "C", "pid": JOB, "ts": at, "name": "weighted average efficiency", "args": args }));
        }
        if let Some(look) = springtide_actors::look::DecisionLook::of(&taken.logged) {
            timeline.instant(
                at,
                (JOB, 0, "g"),
                &look.text,
                json!({ "why": look.why, "withheld": look.withheld }),
            );
        }
    }
    timeline.finish(last, story)
}

impl<'a> Timeline<'a> {
    fn instant(&mut self, ts: i64, (pid, tid, scope): (u64, u64, &str), name: &str, args: Value) {
        self.events.push(json!({ "ph": "i", "pid": pid, "tid": tid, "ts": ts, "s": scope, "name": name, "args": args }));
    }

    fn event(&mut self, at: i64, event: &'a Event, story: &'a Story) {
        match event {
            Event::TaskStolen { job, path, task, from, to, scope, task_bytes } => {
                let slices = self.slices.entry(to).or_default();
                self.open.entry((*job, path, from, to)).or_default().push_back(slices.len());
                slices.push(Slice {
                    from_us: at,
                    to_us: i64::MAX,
                    task,
                    job: *job,
                    path,
                    victim: from,
                    scope: *scope,
                    bytes: *task_bytes,
                    outcome: None,
                });
            }
            Event::TaskEnded { job, path, from, to, outcome } => {
                let open = self.open.get_mut(&(*job, path, from, to)).and_then(VecDeque::pop_front);
                let slice = open.and_then(|at| self.slices.get_mut(to)?.get_mut(at));
                if let Some(slice) = slice {
                    (slice.to_us, slice.outcome) = (at, Some(*outcome));
                }
            }
            Event::IterationDone { iteration, wall_us, .. } => {
                let us = i64::try_from(*wall_us).unwrap_or(0);
                let name = format!("iteration {}", iteration + 1);
                self.events.push(json!({ "ph": "X", "pid": JOB, "tid": 1, "ts": at - us, "dur": us, "name": name, "cat": "iteration" }));
            }
            Event::JobEnded { wall_us, ok, .. } => {
                let us = i64::try_from(*wall_us).unwrap_or(0);
                self.events.push(json!({
                    "ph": "X", "pid": JOB, "tid": 0, "ts": at - us, "dur": us, "name": "job", "cat": "job", "args": { "ok": ok },
                }));
            }
            Event::Period { cluster: Some(cluster), times, .. } => {
                let pid = self.clusters.get(cluster).copied();
                let Some((pid, share)) = pid.zip(times.working_share()) else { return };
                let args = json!({ "work": (share * 1000.0).round() / 10.0 });
                self.events.push(json!({ "ph": "C", "pid": pid, "ts": at, "name": "% of thread time that is work", "args": args }));
            }
            Event::ViewChanged { members, .. } => {
                self.events.push(json!({ "ph": "C", "pid": JOB, "ts": at, "name": "members", "args": { "members": members } }));
            }
            Event::NodeLost { node, cluster, why, .. } => {
                self.end_all(node, at);
                let Some(pid) = self.clusters.get(cluster).copied() else { return };
                self.instant(at, (pid, 0, "p"), &format!("{node} is lost"), json!({ "why": why }));
            }
            Event::NodeLeft { node, cluster, why, .. } => {
                self.end_all(node, at);
                let Some(pid) = self.clusters.get(cluster).copied() else { return };
                self.instant(at, (pid, 0, "p"), &format!("{node} leaves"), json!({ "why": why }));
            }
            Event::NodeJoined { node, cluster, .. } => {
                let Some(pid) = self.clusters.get(cluster).copied() else { return };
                self.instant(at, (pid, 0, "p"), &format!("{node} joins"), Value::Null);
            }
            Event::TaskFailed { task, path, node, message, panicked, .. } => {
                let pid = story.homes.get(node).and_then(|home| self.clusters.get(home)).copied();
                let args = json!({ "path": path, "message": message, "panicked": panicked });
                self.instant(
                    at,
                    (pid.unwrap_or(JOB), 0, "g"),
                    &format!("{task} failed on {node}"),
                    args,
                );
            }
            Event::Dropped { facts } => self.dropped += facts,
            _ => {}
        }
    }

    /// What a node held that is gone ended with it.
    fn end_all(&mut self, node: &NodeId, at: i64) {
        for slice in self.slices.get_mut(node).into_iter().flatten() {
            slice.to_us = slice.to_us.min(at);
        }
        self.open.retain(|(_, _, _, to), _| *to != node);
    }

    fn finish(mut self, last: i64, story: &'a Story) -> Value {
        for slice in self.slices.values_mut().flatten().filter(|slice| slice.to_us == i64::MAX) {
            // Where facts are missing nobody knows whether it lasted: then it is shown to have begun, and no more.
            slice.to_us = if self.dropped > 0 { slice.from_us + GIVES_US } else { last };
        }
        let name = |pid: u64, tid: Option<u64>, name: &str| {
            let what = if tid.is_some() { "thread_name" } else { "process_name" };
            json!({ "ph": "M", "pid": pid, "tid": tid.unwrap_or(0), "name": what, "args": { "name": name } })
        };
        let mut out = vec![
            name(JOB, None, &format!("job of {}", story.run)),
            name(JOB, Some(1), "iterations"),
        ];
        out.extend(
            self.clusters
                .iter()
                .map(|(cluster, pid)| name(*pid, None, &format!("cluster {cluster}"))),
        );
        // The tracks of each cluster's nodes, in order of name: first those on which they give, then those of tasks.
        let mut next: BTreeMap<u64, u64> = BTreeMap::new();
        let mut track = |out: &mut Vec<Value>, pid: u64, label: &str| {
            let tid = next.entry(pid).or_insert(0);
            *tid += 1;
            out.push(name(pid, Some(*tid), label));
            *tid
        };
        let place =
            |node: &NodeId| story.homes.get(node).and_then(|home| self.clusters.get(home)).copied();
        let mut gives: BTreeMap<&NodeId, (u64, u64)> = BTreeMap::new();
        let victims = self.slices.values().flatten().map(|slice| slice.victim);
        let victims: std::collections::BTreeSet<&NodeId> = victims.collect();
        for victim in victims {
            if let Some(pid) = place(victim) {
                gives.insert(victim, (pid, track(&mut out, pid, &format!("{victim} gives"))));
            }
        }
        let mut flow = 0_u64;
        for (node, slices) in &self.slices {
            let Some(pid) = place(node) else { continue };
            let mut lanes: Vec<u64> = Vec::new();
            for (slice, lane) in slices.iter().zip(lanes_of(slices)) {
                while lanes.len() <= lane {
                    let label = if lanes.is_empty() {
                        node.to_string()
                    } else {
                        format!("{node} +{}", lanes.len())
                    };
                    lanes.push(track(&mut out, pid, &label));
                }
                let tid = lanes[lane];
                out.push(json!({
                    "ph": "X", "pid": pid, "tid": tid, "ts": slice.from_us, "dur": slice.lasts_us(),
                    "name": slice.task, "cat": "task",
                    "args": {
                        "job": slice.job, "path": slice.path, "from": slice.victim, "bytes": slice.bytes, "scope": slice.scope,
                        "outcome": slice.outcome,
                    },
                }));
                if let Some((from, at)) = gives.get(slice.victim) {
                    flow += 1;
                    let ts = slice.from_us;
                    out.push(json!({
                        "ph": "X", "pid": from, "tid": at, "ts": ts, "dur": GIVES_US, "name": format!("to {node}"), "cat": "steal",
                    }));
                    out.push(json!({ "ph": "s", "pid": from, "tid": at, "ts": ts, "id": flow, "name": "steal", "cat": "steal" }));
                    out.push(json!({
                        "ph": "f", "bp": "e", "pid": pid, "tid": tid, "ts": ts, "id": flow, "name": "steal", "cat": "steal",
                    }));
                }
            }
        }
        out.append(&mut self.events);
        json!({
            "displayTimeUnit": "ms",
            "otherData": { "run": story.run, "gap": story.gap, "facts_dropped": self.dropped },
            "traceEvents": out,
        })
    }
}

/// On which of a node's tracks each of its tasks is, which are in order of their beginnings: those that are there at one time are on
/// different ones, as few as that needs.
fn lanes_of(slices: &[Slice<'_>]) -> Vec<usize> {
    let mut ends: Vec<i64> = Vec::new();
    let place = |slice: &Slice<'_>| {
        let end = slice.from_us + slice.lasts_us();
        let free = ends.iter().position(|until| *until <= slice.from_us);
        let lane = free.unwrap_or(ends.len());
        match ends.get_mut(lane) {
            Some(until) => *until = end,
            None => ends.push(end),
        }
        lane
    };
    slices.iter().map(place).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runlog::Moment;

    fn story(events: Vec<(f64, Event)>) -> Story {
        let homes = [("a-1", "a"), ("b-1", "b")].map(|(node, home)| (node.into(), home.into()));
        Story {
            file: PathBuf::new(),
            run: "r".to_owned(),
            moments: events.into_iter().map(|(at_s, event)| Moment { at_s, event }).collect(),
            decisions: Vec::new(),
            homes: homes.into(),
            gap: None,
            manifest: None,
            result: None,
        }
    }

    fn stolen(path: u32) -> Event {
        Event::TaskStolen {
            job: JobId(1),
            path: TaskPath(vec![path]),
            task: "fib".into(),
            from: "a-1".into(),
            to: "b-1".into(),
            scope: Scope::Wide,
            task_bytes: 7,
        }
    }

    fn ended(path: u32, outcome: TaskEnd) -> Event {
        let (job, path) = (JobId(1), TaskPath(vec![path]));
        Event::TaskEnded { job, path, from: "a-1".into(), to: "b-1".into(), outcome }
    }

    #[test]
    fn stolen_tasks_are_slices_on_as_many_tracks_as_they_need() {
        let epoch = springtide_runtime::id::Epoch(1);
        let story = story(vec![
            (-0.5, Event::JobStarted { job: JobId(1), name: "j".into(), epoch }),
            (0.0, stolen(0)),
            (1.0, stolen(1)),
            (2.0, ended(0, TaskEnd::Done)),
            (2.0, stolen(2)),
            (3.0, ended(1, TaskEnd::HandedBack)),
        ]);
        let told = timeline(&story);
        assert_eq!(told["otherData"]["facts_dropped"], 0);
        let events = told["traceEvents"].as_array().unwrap();
        let tasks: Vec<_> = events.iter().filter(|event| event["cat"] == "task").collect();
        let of = |task: &Value| {
            (
                task["ts"].as_i64().unwrap(),
                task["dur"].as_i64().unwrap(),
                task["tid"].as_u64().unwrap(),
            )
        };
        let (first, second, third) = (of(tasks[0]), of(tasks[1]), of(tasks[2]));
        // From the first moment on, which is before the job.
        assert_eq!((first.0, first.1), (500_000, 2_000_000));
        assert_eq!((second.0, second.1), (1_500_000, 2_000_000));
        // To the end of what is known, for nothing says when it ended.
        assert_eq!((third.0, third.1), (2_500_000, 1_000_000));
        assert!(first.2 == third.2 && first.2 != second.2);
        assert_eq!(tasks[1]["args"]["outcome"], "handed_back");
        assert_eq!(tasks[2]["args"]["outcome"], Value::Null);
        // Each arrow begins and ends in a slice.
        for end in ["s", "f"] {
            let ends: Vec<_> = events.iter().filter(|event| event["ph"] == end).collect();
            assert_eq!(ends.len(), 3);
            for arrow in ends {
                let within = |event: &&Value| {
                    let is = |key: &str| event[key] == arrow[key];
                    let (at, from) = (arrow["ts"].as_i64(), event["ts"].as_i64());
                    event["ph"] == "X"
                        && is("pid")
                        && is("tid")
                        && from <= at
                        && at < Some(from.unwrap() + event["dur"].as_i64().unwrap())
                };
                assert!(events.iter().any(|event| within(&event)), "{arrow}");
            }
        }
    }

    #[test]
    fn what_a_lost_node_held_ends_with_it() {
        let lost = Event::NodeLost {
            node: "b-1".into(),
            cluster: "b".into(),
            incarnation: springtide_runtime::id::Incarnation(1),
            why: "silent".into(),
            silent_us: 1,
            last_lines: Vec::new(),
        };
        let told = timeline(&story(vec![
            (0.0, stolen(0)),
            (1.0, lost),
            (3.0, stolen(1)),
            (5.0, Event::Dropped { facts: 1 }),
        ]));
        let events = told["traceEvents"].as_array().unwrap();
        let tasks: Vec<_> = events.iter().filter(|event| event["cat"] == "task").collect();
        assert_eq!(tasks[0]["dur"], 1_000_000);
        // Of the other nobody knows: facts are missing.
        assert_eq!((&tasks[1]["dur"], &told["otherData"]["facts_dropped"]), (&json!(1), &json!(1)));
        assert!(events.iter().any(|event| event["name"] == "b-1 is lost"));
    }
}
