//! `trace`: a run as a timeline in the Trace Event format, for ui.perfetto.dev and
//! chrome://tracing.
//!
//! The job is a process, and so is each cluster. A node has tracks with its stolen tasks, and
//! arrows from their victims. Each cluster shows which fraction of its thread time was work. Tasks
//! that were not stolen are counted but not recorded, so that they are missing here.
//!
//! This module does not know the presentation of runs on pages.

use std::collections::{BTreeMap, VecDeque};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use springtide_cli::exit::Failed;
use springtide_runtime::event::{Event, StealScope, StolenTaskEnd};
use springtide_runtime::id::{ClusterId, JobId, NodeId, TaskPath};

use crate::report::write_page;
use crate::runlog::RunLog;

/// The process id of events that concern the whole job.
const JOB: u64 = 1;
/// Length of the slice in which a victim gives a task, in microseconds.
const GIVE_US: i64 = 1;

/// Writes the timeline of a run, next to its log if no file is given.
///
/// # Errors
/// No run exists, its log is malformed, or the file cannot be written.
pub fn trace(run: &Path, out: Option<PathBuf>) -> Result<(), Failed> {
    let log = RunLog::read(run)?;
    let out = out.unwrap_or_else(|| run.join("trace.json"));
    write_page(&out, &timeline(&log).to_string(), &[log])
}

/// A stolen task on its thief, from the steal to the task's end.
#[derive(Debug)]
struct Slice<'a> {
    from_us: i64,
    to_us: i64,
    task: &'a str,
    job: JobId,
    path: &'a TaskPath,
    victim: &'a NodeId,
    scope: StealScope,
    bytes: u64,
    /// None if the log does not contain the end.
    outcome: Option<StolenTaskEnd>,
}

impl Slice<'_> {
    /// The drawn length; at least one microsecond, so that the slice is visible.
    fn duration_us(&self) -> i64 {
        (self.to_us - self.from_us).max(GIVE_US)
    }
}

type Key<'a> = (JobId, &'a TaskPath, &'a NodeId, &'a NodeId);

#[derive(Default)]
struct TraceBuilder<'a> {
    events: Vec<Value>,
    slices: BTreeMap<&'a NodeId, Vec<Slice<'a>>>,
    /// Indices in `slices` of tasks that have not ended.
    open: BTreeMap<Key<'a>, VecDeque<usize>>,
    /// The process ids of clusters.
    clusters: BTreeMap<&'a ClusterId, u64>,
    zero_us: i64,
    dropped: u64,
}

/// The run in the Trace Event format. Times are microseconds since the first event.
fn timeline(log: &RunLog) -> Value {
    let mut timeline = TraceBuilder::default();
    let micros = |s: f64| (s * 1e6).round() as i64;
    timeline.zero_us = log.moments.first().map_or(0, |moment| micros(moment.at_s));
    for cluster in log.homes.values() {
        let next = JOB + 1 + timeline.clusters.len() as u64;
        timeline.clusters.entry(cluster).or_insert(next);
    }
    let mut last = 0;
    for moment in &log.moments {
        let at = micros(moment.at_s) - timeline.zero_us;
        last = last.max(at);
        timeline.event(at, &moment.event, log);
    }
    for taken in &log.decisions {
        let at = micros(taken.at_s) - timeline.zero_us;
        last = last.max(at);
        let decision = &taken.logged.decision;
        if let Some(efficiency) = decision.efficiency {
            let args = json!({ "efficiency": efficiency });
            let event = json!({
                "ph": "C", "pid": JOB, "ts": at, "name": "weighted average efficiency",
                "args": args,
            });
            timeline.events.push(event);
        }
        if let Some(look) = springtide_actors::look::DecisionSummary::of(&taken.logged) {
            timeline.instant(
                at,
                (JOB, 0, "g"),
                &look.text,
                json!({ "why": look.why, "withheld": look.withheld }),
            );
        }
    }
    timeline.finish(last, log)
}

impl<'a> TraceBuilder<'a> {
    fn instant(&mut self, ts: i64, (pid, tid, scope): (u64, u64, &str), name: &str, args: Value) {
        self.events.push(json!({
            "ph": "i", "pid": pid, "tid": tid, "ts": ts, "s": scope, "name": name, "args": args,
        }));
    }

    fn event(&mut self, at: i64, event: &'a Event, log: &'a RunLog) {
        match event {
            Event::TaskStolen { job, path, task, from, to, scope, task_bytes, .. } => {
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
                self.events.push(json!({
                    "ph": "X", "pid": JOB, "tid": 1, "ts": at - us, "dur": us, "name": name,
                    "cat": "iteration",
                }));
            }
            Event::JobEnded { wall_us, ok, .. } => {
                let us = i64::try_from(*wall_us).unwrap_or(0);
                self.events.push(json!({
                    "ph": "X", "pid": JOB, "tid": 0, "ts": at - us, "dur": us, "name": "job",
                    "cat": "job",
                    "args": { "ok": ok },
                }));
            }
            Event::Period { cluster: Some(cluster), times, .. } => {
                let pid = self.clusters.get(cluster).copied();
                let Some((pid, share)) = pid.zip(times.working_share()) else { return };
                let args = json!({ "work": (share * 1000.0).round() / 10.0 });
                self.events.push(json!({
                    "ph": "C", "pid": pid, "ts": at, "name": "% of thread time that is work",
                    "args": args,
                }));
            }
            Event::ViewChanged { members, .. } => {
                let args = json!({ "members": members });
                self.events.push(
                    json!({ "ph": "C", "pid": JOB, "ts": at, "name": "members", "args": args }),
                );
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
                let pid = log.homes.get(node).and_then(|home| self.clusters.get(home)).copied();
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

    /// Tasks of a lost node end with the node.
    fn end_all(&mut self, node: &NodeId, at: i64) {
        for slice in self.slices.get_mut(node).into_iter().flatten() {
            slice.to_us = slice.to_us.min(at);
        }
        self.open.retain(|(_, _, _, to), _| *to != node);
    }

    fn finish(mut self, last: i64, log: &'a RunLog) -> Value {
        for slice in self.slices.values_mut().flatten().filter(|slice| slice.to_us == i64::MAX) {
            // If events were dropped, the end is unknown: the slice shows only the beginning.
            slice.to_us = if self.dropped > 0 { slice.from_us + GIVE_US } else { last };
        }
        let name = |pid: u64, tid: Option<u64>, name: &str| {
            let what = if tid.is_some() { "thread_name" } else { "process_name" };
            let (tid, args) = (tid.unwrap_or(0), json!({ "name": name }));
            json!({ "ph": "M", "pid": pid, "tid": tid, "name": what, "args": args })
        };
        let mut out =
            vec![name(JOB, None, &format!("job of {}", log.run)), name(JOB, Some(1), "iterations")];
        out.extend(
            self.clusters
                .iter()
                .map(|(cluster, pid)| name(*pid, None, &format!("cluster {cluster}"))),
        );
        // The tracks of each cluster's nodes, by name: first those of given tasks, then those of
        // stolen tasks.
        let mut next: BTreeMap<u64, u64> = BTreeMap::new();
        let mut track = |out: &mut Vec<Value>, pid: u64, label: &str| {
            let tid = next.entry(pid).or_insert(0);
            *tid += 1;
            out.push(name(pid, Some(*tid), label));
            *tid
        };
        let place =
            |node: &NodeId| log.homes.get(node).and_then(|home| self.clusters.get(home)).copied();
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
                    "ph": "X", "pid": pid, "tid": tid, "ts": slice.from_us,
                    "dur": slice.duration_us(),
                    "name": slice.task, "cat": "task",
                    "args": {
                        "job": slice.job, "path": slice.path, "from": slice.victim,
                        "bytes": slice.bytes,
                        "scope": slice.scope,
                        "outcome": slice.outcome,
                    },
                }));
                if let Some((from, at)) = gives.get(slice.victim) {
                    flow += 1;
                    let ts = slice.from_us;
                    out.push(json!({
                        "ph": "X", "pid": from, "tid": at, "ts": ts, "dur": GIVE_US,
                        "name": format!("to {node}"), "cat": "steal",
                    }));
                    out.push(json!({
                        "ph": "s", "pid": from, "tid": at, "ts": ts, "id": flow, "name": "steal",
                        "cat": "steal",
                    }));
                    out.push(json!({
                        "ph": "f", "bp": "e", "pid": pid, "tid": tid, "ts": ts, "id": flow,
                        "name": "steal", "cat": "steal",
                    }));
                }
            }
        }
        out.append(&mut self.events);
        json!({
            "displayTimeUnit": "ms",
            "otherData": { "run": log.run, "gap": log.gap, "facts_dropped": self.dropped },
            "traceEvents": out,
        })
    }
}

/// Assigns each of a node's tasks, in order of their beginnings, to a track. Concurrent tasks are
/// on different tracks, with as few tracks as possible.
fn lanes_of(slices: &[Slice<'_>]) -> Vec<usize> {
    let mut ends: Vec<i64> = Vec::new();
    let place = |slice: &Slice<'_>| {
        let end = slice.from_us + slice.duration_us();
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
    use crate::runlog::TimedEvent;

    fn log(events: Vec<(f64, Event)>) -> RunLog {
        let homes = [("a-1", "a"), ("b-1", "b")].map(|(node, home)| (node.into(), home.into()));
        RunLog {
            file: PathBuf::new(),
            run: "r".to_owned(),
            moments: events.into_iter().map(|(at_s, event)| TimedEvent { at_s, event }).collect(),
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
            scope: StealScope::Wide,
            task_bytes: 7,
            lease: None,
            from_incarnation: None,
        }
    }

    fn ended(path: u32, outcome: StolenTaskEnd) -> Event {
        let (job, path) = (JobId(1), TaskPath(vec![path]));
        Event::TaskEnded { job, path, from: "a-1".into(), to: "b-1".into(), outcome }
    }

    #[test]
    fn stolen_tasks_are_slices_on_as_many_tracks_as_they_need() {
        let epoch = springtide_runtime::id::Epoch(1);
        let log = log(vec![
            (-0.5, Event::JobStarted { job: JobId(1), name: "j".into(), epoch }),
            (0.0, stolen(0)),
            (1.0, stolen(1)),
            (2.0, ended(0, StolenTaskEnd::Done)),
            (2.0, stolen(2)),
            (3.0, ended(1, StolenTaskEnd::HandedBack)),
        ]);
        let trace = timeline(&log);
        assert_eq!(trace["otherData"]["facts_dropped"], 0);
        let events = trace["traceEvents"].as_array().unwrap();
        let tasks: Vec<_> = events.iter().filter(|event| event["cat"] == "task").collect();
        let of = |task: &Value| {
            (
                task["ts"].as_i64().unwrap(),
                task["dur"].as_i64().unwrap(),
                task["tid"].as_u64().unwrap(),
            )
        };
        let (first, second, third) = (of(tasks[0]), of(tasks[1]), of(tasks[2]));
        // From the first event on, which precedes the job.
        assert_eq!((first.0, first.1), (500_000, 2_000_000));
        assert_eq!((second.0, second.1), (1_500_000, 2_000_000));
        // To the last event, because no event ends the task.
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
    fn tasks_of_a_lost_node_end_with_it() {
        let lost = Event::NodeLost {
            node: "b-1".into(),
            cluster: "b".into(),
            incarnation: springtide_runtime::id::Incarnation(1),
            why: "silent".into(),
            silent_us: 1,
            last_lines: Vec::new(),
        };
        let trace = timeline(&log(vec![
            (0.0, stolen(0)),
            (1.0, lost),
            (3.0, stolen(1)),
            (5.0, Event::Dropped { facts: 1 }),
        ]));
        let events = trace["traceEvents"].as_array().unwrap();
        let tasks: Vec<_> = events.iter().filter(|event| event["cat"] == "task").collect();
        assert_eq!(tasks[0]["dur"], 1_000_000);
        // The end of the other task is unknown, because events were dropped.
        let dropped = &trace["otherData"]["facts_dropped"];
        assert_eq!((&tasks[1]["dur"], dropped), (&json!(1), &json!(1)));
        assert!(events.iter().any(|event| event["name"] == "b-1 is lost"));
    }
}
