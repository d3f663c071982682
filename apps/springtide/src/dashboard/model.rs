//! The grid as it is shown: fed with what is seen of it, asked for ticks. No I/O, no clock.
//!
//! All sums are made here, once for all who look: a tick grows with the number of workers and with nothing else. What is cut off
//! is counted, and said. Must not know who looks, nor where from.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use serde::Serialize;
use serde_json::{Value, json};
use springtide_actors::look::{DecisionLook, JobLook, WorkerLook};
use springtide_actors::scheduler::{GridSlots, GridStatus, JobState, JobStatus, NodeState};
use springtide_runtime::event::{Event, Record};
use springtide_runtime::id::{ClusterId, Incarnation, JobId, NodeId};
use springtide_runtime::meter::{LatencySummary, Statistics, hundredths};

use super::reserved;
use crate::up::{About, happened};

/// Points of a job's history at full rate; older ones are every tenth.
const FINE: usize = 3600;
/// And of these so many.
const COARSE: usize = 3600;
/// Events that are kept.
const EVENTS: usize = 10_000;
/// Jobs that are told of: those that run, and of those that wait the first.
const JOBS: usize = 100;
/// A worker that has not been heard for so long is shown with its age, in seconds.
const STALE_S: f64 = 3.0;
/// Shares of time are those of about this long, in seconds.
const WINDOW_S: f64 = 10.0;
/// A text is cut after so many characters.
const TEXT: usize = 600;

/// What is seen at a moment.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// The grid's nodes and jobs.
    pub status: GridStatus,
    /// Jobs that were looked at.
    pub jobs: BTreeMap<JobId, JobLook>,
    /// Their workers.
    pub workers: BTreeMap<JobId, BTreeMap<ClusterId, Vec<WorkerLook>>>,
    /// What the head has recorded since the last time.
    pub records: Vec<Record>,
    /// What is offered and reserved, if it was asked for.
    pub slots: Option<GridSlots>,
    /// Messages that the head has refused, by name and reason.
    pub refused_messages: BTreeMap<(String, String), u64>,
}

/// Something to read.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Told {
    /// Counts from 1.
    pub id: u64,
    /// Seconds since the dashboard's (or the run's) start.
    pub at: f64,
    /// `adapt`, `member`, `failed`, `security`, `job`, `schedule`.
    pub kind: &'static str,
    /// In a line.
    pub text: String,
    /// Why, a sentence each.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub why: Vec<String>,
    /// Whether nodes are added or go.
    #[serde(skip_serializing_if = "is_zero")]
    pub sign: i8,
    /// Of which job.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub job: Option<u64>,
}

fn is_zero(sign: &i8) -> bool {
    *sign == 0
}

/// A point of a job's history.
#[derive(Clone, Debug, PartialEq)]
pub struct Point {
    /// Seconds since the dashboard's start.
    pub at: f64,
    /// Weighted average efficiency.
    pub efficiency: Option<f64>,
    /// Its nodes.
    pub nodes: u32,
    /// The part of its threads' time that is work, by cluster.
    pub working: BTreeMap<ClusterId, f64>,
}

/// Where a worker's sums were, so that shares are those of the last while.
#[derive(Clone, Debug, Default)]
struct Window {
    incarnation: Incarnation,
    /// At which time, and what they were.
    marks: VecDeque<(f64, [u64; 5])>,
    time: [u8; 5],
    /// When sums grew last.
    heard: f64,
}

impl Window {
    fn add(&mut self, at: f64, worker: &WorkerLook) {
        if self.incarnation != worker.incarnation {
            *self = Self { incarnation: worker.incarnation, ..Self::default() };
        }
        let age = worker.age_ms.map_or(f64::INFINITY, |ms| ms as f64 / 1e3);
        self.heard = self.heard.max(at - age);
        let sums = worker.sums.times_us;
        if self.marks.back().is_some_and(|(_, last)| *last == sums) || age.is_infinite() {
            return;
        }
        self.marks.push_back((at, sums));
        while self.marks.len() > 2 && self.marks[1].0 <= at - WINDOW_S {
            self.marks.pop_front();
        }
        let first = self.marks.front().filter(|_| self.marks.len() > 1).map_or([0; 5], |m| m.1);
        self.time = hundredths(std::array::from_fn(|at| sums[at].saturating_sub(first[at])));
    }
}

/// A job as it is shown.
#[derive(Clone, Debug, Default)]
struct Shown {
    look: JobLook,
    windows: BTreeMap<NodeId, Window>,
    workers: BTreeMap<ClusterId, Vec<WorkerLook>>,
    decided: Option<(u32, u64)>,
    fine: VecDeque<Point>,
    coarse: VecDeque<Point>,
    points: u64,
}

/// The grid as it is shown.
#[derive(Debug)]
pub struct Model {
    grid: String,
    replay: bool,
    /// It is known how sets of nodes are adapted.
    has_mode: bool,
    at: f64,
    seq: u64,
    status: GridStatus,
    jobs: BTreeMap<JobId, Shown>,
    slots: Option<Value>,
    events: VecDeque<Told>,
    next_event: u64,
    /// Records that were left out where they were made.
    dropped: u64,
    counts: Counts,
}

/// What is counted over the dashboard's life, for metrics.
#[derive(Clone, Debug, Default)]
pub struct Counts {
    /// Decisions that changed something, by what they do.
    pub decisions: BTreeMap<&'static str, u64>,
    /// Links that were refused, by reason.
    pub refused: BTreeMap<String, u64>,
    /// Messages that the head has refused for what their sender is, by name and reason.
    pub refused_messages: BTreeMap<(String, String), u64>,
}

impl Model {
    /// Of a grid of this name, of which nothing is seen yet. `replay`: it is of a run that has ended.
    pub fn new(grid: &str, replay: bool) -> Self {
        Self {
            grid: grid.to_owned(),
            replay,
            has_mode: true,
            at: 0.0,
            seq: 0,
            status: GridStatus::default(),
            jobs: BTreeMap::new(),
            slots: None,
            events: VecDeque::new(),
            next_event: 1,
            dropped: 0,
            counts: Counts::default(),
        }
    }

    /// It is not known how the sets of nodes are adapted.
    pub fn forget_mode(&mut self) {
        self.has_mode = false;
    }

    /// Takes in what is seen at this time, in seconds since the start.
    pub fn see(&mut self, at: f64, seen: Seen) {
        self.at = at;
        self.seq += 1;
        let Seen { status, jobs, workers, records, slots, refused_messages } = seen;
        self.counts.refused_messages = refused_messages;
        if let Some(slots) = slots {
            self.slots = reserved::told(&slots);
        }
        records.into_iter().for_each(|record| self.record(at, record.event));
        self.changes(at, &status);
        // What has ended is seen no more.
        self.jobs.retain(|job, _| status.jobs.iter().any(|known| known.job == *job));
        self.status = status;
        // As people count: the tenth after the ninth.
        fn number(node: &NodeId) -> (&str, u32) {
            let name = node.as_str();
            let (rest, number) = name.rsplit_once('-').unwrap_or((name, ""));
            (rest, number.parse::<u32>().unwrap_or(0))
        }
        for site in self.status.sites.values_mut() {
            site.nodes.sort_by(|a, b| number(&a.node).cmp(&number(&b.node)));
        }
        for (job, look) in jobs {
            self.look(at, job, look);
        }
        for (job, clusters) in workers {
            let Some(shown) = self.jobs.get_mut(&job) else { continue };
            for worker in clusters.values().flatten() {
                shown.windows.entry(worker.node.clone()).or_default().add(at, worker);
            }
            shown.workers.extend(clusters);
            let members = &shown.look.clusters;
            shown.workers.retain(|cluster, _| members.contains_key(cluster));
            // Those of nodes that are gone for a moment are kept.
            if shown.windows.len() > 2 * shown.workers.values().map(Vec::len).sum::<usize>() {
                let there: BTreeSet<&NodeId> =
                    shown.workers.values().flatten().map(|worker| &worker.node).collect();
                shown.windows.retain(|node, _| there.contains(node));
            }
        }
        for shown in self.jobs.values_mut() {
            shown.point(at);
        }
    }

    fn look(&mut self, at: f64, job: JobId, look: JobLook) {
        let shown = self.jobs.entry(job).or_default();
        let mark = |decision: &DecisionLook| (decision.at.0.0, decision.at.1);
        let known = shown.decided;
        let fresh: Vec<DecisionLook> =
            look.decisions.iter().filter(|d| Some(mark(d)) > known).cloned().collect();
        shown.decided = look.decisions.back().map(mark).max(known);
        let elapsed = look.elapsed_s;
        shown.look = look;
        for decision in fresh {
            let then = (at - (elapsed - decision.elapsed_s)).clamp(0.0, at);
            self.decision(then, job, decision);
        }
    }

    /// A decision was taken.
    pub fn decision(&mut self, at: f64, job: JobId, decision: DecisionLook) {
        let action = match decision.sign {
            1 => "add",
            -1 => "remove",
            _ => "move",
        };
        *self.counts.decisions.entry(action).or_default() += 1;
        let text = match decision.withheld {
            true => format!("would have: {}", decision.text),
            false => decision.text,
        };
        let told = Told {
            sign: decision.sign,
            job: Some(job.0),
            why: decision.why,
            ..told(at, "adapt", text)
        };
        self.tell(told);
    }

    fn tell(&mut self, mut told: Told) {
        told.id = self.next_event;
        told.text = cut(told.text);
        told.why = told.why.into_iter().take(12).map(cut).collect();
        self.next_event += 1;
        self.events.push_back(told);
        if self.events.len() > EVENTS {
            self.events.pop_front();
        }
    }

    /// Something that a node recorded.
    pub fn record(&mut self, at: f64, event: Event) {
        let say = match event {
            Event::LinkRefused { peer, reason, detail } => {
                *self.counts.refused.entry(reason.clone()).or_default() += 1;
                told(at, "security", format!("link of {peer} refused ({reason}): {detail}"))
            }
            Event::Fault { part, what } => told(at, "failed", format!("{part}: {what}")),
            Event::Decision { decision, why, .. } => {
                Told { why: vec![why], ..told(at, "schedule", decision) }
            }
            Event::TaskFailed { job, path, task, node, message, .. } => Told {
                job: Some(job.0),
                ..told(at, "failed", format!("task {task} ({path}) failed on {node}: {message}"))
            },
            Event::NodeLost { node, why, .. } => {
                told(at, "member", format!("node {node} was lost: {why}"))
            }
            Event::NodeJoined { job, node, .. } => {
                Told { job: Some(job.0), ..told(at, "member", format!("node {node} joined {job}")) }
            }
            Event::NodeLeft { job, node, why, .. } => Told {
                job: Some(job.0),
                ..told(at, "member", format!("node {node} left {job}: {why}"))
            },
            Event::JobEnded { job, ok, error, .. } => {
                let how = match (ok, error) {
                    (true, _) => "done".to_owned(),
                    (false, error) => format!("failed: {}", error.unwrap_or_default()),
                };
                Told { job: Some(job.0), ..told(at, "job", format!("{job} is over: {how}")) }
            }
            Event::Dropped { facts } => {
                self.dropped += facts;
                return;
            }
            _ => return,
        };
        self.tell(say);
    }

    /// What is another than it was.
    fn changes(&mut self, at: f64, now: &GridStatus) {
        for (about, line) in happened(&self.status, now) {
            let kind = match about {
                About::Job => "job",
                About::Member => "member",
                About::Failure => "failed",
            };
            self.tell(told(at, kind, line));
        }
    }

    /// What has happened, after this number.
    pub fn events(&self, after: u64) -> impl Iterator<Item = &Told> {
        let skip = self.events.partition_point(|told| told.id <= after);
        self.events.iter().skip(skip)
    }

    /// The number of the newest event.
    pub fn newest(&self) -> u64 {
        self.next_event - 1
    }

    /// What was counted.
    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    /// The grid's nodes and jobs as last seen.
    pub fn status(&self) -> &GridStatus {
        &self.status
    }

    /// Jobs that run, as last seen.
    pub fn looks(&self) -> impl Iterator<Item = &JobLook> {
        self.jobs.values().map(|shown| &shown.look)
    }

    /// The grid now, as one object.
    pub fn tick(&self) -> Value {
        let jobs: Vec<&JobStatus> = {
            let (running, waiting): (Vec<_>, Vec<_>) =
                self.status.jobs.iter().partition(|job| job.state != JobState::Queued);
            running.into_iter().chain(waiting).collect()
        };
        let shown: Vec<Value> = jobs.iter().take(JOBS).map(|job| self.job(job)).collect();
        let fastest = self.fastest();
        let sites = self.status.sites.iter();
        let clusters: Vec<Value> = sites
            .map(|(cluster, site)| {
                let names: Vec<&str> = site.nodes.iter().map(|node| node.node.as_str()).collect();
                let rows: Vec<Value> = site
                    .nodes
                    .iter()
                    .map(|node| {
                        let shown = node.job.and_then(|job| self.jobs.get(&job));
                        let window = shown.and_then(|shown| shown.windows.get(&node.node));
                        let worker = shown.and_then(|shown| shown.worker(cluster, &node.node));
                        let leaving = worker.is_some_and(|worker| worker.leaving);
                        let most = node.job.and_then(|job| fastest.get(&job));
                        let speed = worker.and_then(|worker| worker.speed).zip(most);
                        let speed = speed.map(|(speed, most)| speed / most);
                        row(node.state, node.job, window, leaving, speed, self.at)
                    })
                    .collect();
                let mut of =
                    json!({ "name": cluster, "names": ranges(cluster, &names), "w": rows });
                if let Some(why) = &site.failing {
                    of["failing"] = json!(why);
                }
                if site.on_demand {
                    of["on_demand"] = json!(true);
                }
                let why =
                    site.nodes.iter().filter_map(|node| Some((&node.node, node.reason.as_ref()?)));
                let why: BTreeMap<_, _> = why.take(8).collect();
                if !why.is_empty() {
                    of["why"] = json!(why);
                }
                of
            })
            .collect();
        let mut tick = json!({
            "v": 1,
            "seq": self.seq,
            "at": tenth(self.at),
            "grid": self.grid,
            "replay": self.replay,
            "jobs": shown,
            "more_jobs": jobs.len().saturating_sub(JOBS),
            "clusters": clusters,
            "event": self.newest(),
            "dropped": self.dropped,
        });
        if let Some(slots) = &self.slots {
            tick["slots"] = slots.clone();
        }
        tick
    }

    /// The fastest worker's speed of each job.
    fn fastest(&self) -> BTreeMap<JobId, f64> {
        let of = |shown: &Shown| {
            let speeds = shown.workers.values().flatten().filter_map(|worker| worker.speed);
            speeds.fold(None, |most: Option<f64>, v| Some(most.map_or(v, |most| most.max(v))))
        };
        self.jobs.iter().filter_map(|(job, shown)| Some((*job, of(shown)?))).collect()
    }

    fn job(&self, status: &JobStatus) -> Value {
        let mut told = json!({
            "id": status.job.0,
            "name": status.name,
            "state": status.state,
            "nodes": status.nodes(),
        });
        if let Some(why) = &status.waits_for {
            told["waits"] = json!(cut(why.clone()));
        }
        let Some(shown) = self.jobs.get(&status.job) else { return told };
        let look = &shown.look;
        let clusters: BTreeMap<&ClusterId, Value> = look
            .clusters
            .iter()
            .map(|(cluster, sum)| {
                let counters = &sum.sums.counters;
                let share = shown.shares(cluster);
                // Before a cluster's first report nothing is known of it.
                let is_known = sum.sums != Statistics::default();
                let told = json!({
                    "n": sum.workers,
                    "t": share,
                    "tasks": is_known.then_some(counters.tasks.executed),
                    "wide": is_known.then_some(counters.bytes.wide),
                });
                (cluster, told)
            })
            .collect();
        let mut steals: BTreeMap<(&ClusterId, &ClusterId), u64> = BTreeMap::new();
        for (thief, workers) in &shown.workers {
            for (victim, count) in workers.iter().flat_map(|worker| &worker.sums.stolen) {
                *steals.entry((victim, thief)).or_default() += count;
            }
        }
        let steals: Vec<_> =
            steals.into_iter().map(|((from, to), n)| json!([from, to, n])).collect();
        let latency = |l: &LatencySummary| json!([l.count, l.p50_us, l.p90_us, l.p99_us, l.max_us]);
        let latencies: BTreeMap<_, _> =
            look.latencies.iter().map(|(name, l)| (name, latency(l))).collect();
        let links = look.links.iter().take(64).map(|link| {
            let rtt = link.rtt_s.map(|s| (s * 1e4).round() / 10.0);
            json!([link.a, link.b, rtt, link.bandwidth.map(f64::round)])
        });
        let more = json!({
            "root": look.root,
            "epoch": look.epoch,
            "elapsed": tenth(look.elapsed_s),
            "mode": self.has_mode.then_some(look.mode),
            "period": look.period_s,
            "band": look.band,
            "eff": look.efficiency.map(|(efficiency, _)| thousandth(efficiency)),
            "progress": look.progress.as_ref().map(|(p, what)| json!([p.done, p.total, what])),
            "iter": [json!(look.iterations.0), json!(thousandth(look.iterations.1))],
            "clusters": clusters,
            "steals": steals,
            "lat": latencies,
            "links": links.collect::<Vec<_>>(),
            "thought": look.thought.iter().take(6).cloned().map(cut).collect::<Vec<_>>(),
        });
        if let (Value::Object(told), Value::Object(more)) = (&mut told, more) {
            told.extend(more);
        }
        told
    }

    /// A job's history, as one object; of the jobs that run, if none is named.
    pub fn history(&self) -> Value {
        let of = |(job, shown): (&JobId, &Shown)| {
            let points: Vec<Value> =
                shown.coarse.iter().chain(&shown.fine).map(Point::json).collect();
            (job.0.to_string(), Value::Array(points))
        };
        json!({ "v": 1, "jobs": self.jobs.iter().map(of).collect::<serde_json::Map<_, _>>() })
    }
}

impl Shown {
    fn worker(&self, cluster: &ClusterId, node: &NodeId) -> Option<&WorkerLook> {
        let workers = self.workers.get(cluster)?;
        let at = workers.binary_search_by(|worker| worker.node.cmp(node)).ok()?;
        workers.get(at)
    }

    /// Shares of the time of a cluster's workers over the last while, in hundredths.
    fn shares(&self, cluster: &ClusterId) -> [u8; 5] {
        let workers = self.workers.get(cluster).into_iter().flatten();
        let windows = workers.filter_map(|worker| self.windows.get(&worker.node));
        let mut sums = [0_u64; 5];
        for window in windows {
            sums.iter_mut().zip(window.time).for_each(|(sum, share)| *sum += u64::from(share));
        }
        hundredths(sums)
    }

    fn point(&mut self, at: f64) {
        let point = Point {
            at,
            efficiency: self.look.efficiency.map(|(efficiency, _)| efficiency),
            nodes: self.look.clusters.values().map(|sum| sum.workers).sum(),
            working: self
                .look
                .clusters
                .iter()
                .filter(|(_, sum)| sum.workers > 0)
                .map(|(cluster, _)| (cluster.clone(), f64::from(self.shares(cluster)[0]) / 100.0))
                .collect(),
        };
        // One a second.
        if self.fine.back().is_some_and(|last| at - last.at < 0.9) {
            return;
        }
        self.points += 1;
        self.fine.push_back(point);
        if self.fine.len() > FINE
            && let Some(old) = self.fine.pop_front()
            && self.points.is_multiple_of(10)
        {
            self.coarse.push_back(old);
            if self.coarse.len() > COARSE {
                self.coarse.pop_front();
            }
        }
    }
}

impl Point {
    fn json(&self) -> Value {
        let working: BTreeMap<_, _> =
            self.working.iter().map(|(cluster, share)| (cluster, thousandth(*share))).collect();
        json!([tenth(self.at), self.efficiency.map(thousandth), self.nodes, working])
    }
}

/// A worker as few numbers: shares of work, idleness, waiting inside and between clusters (what is left is benchmarks), speed in
/// hundredths of the fastest (-1: not known), state, and where it matters the job and the age of what is known.
fn row(
    state: NodeState,
    job: Option<JobId>,
    window: Option<&Window>,
    leaving: bool,
    speed: Option<f64>,
    at: f64,
) -> Value {
    let time = window.map_or([0; 5], |window| window.time);
    let speed = speed.map_or(-1, |speed| (speed * 100.0).round().clamp(0.0, 100.0) as i64);
    let age = window.map_or(0.0, |window| (at - window.heard).max(0.0));
    let mut row = vec![
        json!(time[0]),
        json!(time[1]),
        json!(time[2]),
        json!(time[3]),
        json!(speed),
        json!(code(state, leaving)),
    ];
    let is_stale = age > STALE_S && age.is_finite();
    if job.is_some() || is_stale {
        row.push(json!(job.map_or(0, |job| job.0)));
    }
    if is_stale {
        row.push(json!(age.round() as u64));
    }
    Value::Array(row)
}

/// States by number, as the page knows them.
fn code(state: NodeState, leaving: bool) -> u8 {
    match state {
        _ if leaving => 4,
        NodeState::Idle => 0,
        NodeState::Busy => 1,
        NodeState::Starting => 2,
        NodeState::Measuring => 3,
        NodeState::Draining => 4,
        NodeState::Drained => 5,
        NodeState::Broken => 6,
        NodeState::Off => 7,
        NodeState::Held => 8,
        NodeState::Closing => 9,
    }
}

/// Names of a cluster's nodes: `1-3,5` where they are numbered, which most are, else the names.
fn ranges(cluster: &ClusterId, names: &[&str]) -> Value {
    let number = |name: &&str| -> Option<u32> {
        let digits = name.strip_prefix(cluster.as_str())?.strip_prefix('-')?;
        digits.parse().ok().filter(|n: &u32| n.to_string() == digits)
    };
    let Some(numbers) = names.iter().map(number).collect::<Option<Vec<u32>>>() else {
        return json!(names);
    };
    let mut text = String::new();
    let mut at = 0;
    while at < numbers.len() {
        let first = at;
        while numbers.get(at + 1) == Some(&(numbers[at] + 1)) {
            at += 1;
        }
        if !text.is_empty() {
            text.push(',');
        }
        text.push_str(&numbers[first].to_string());
        if at > first {
            text.push_str(&format!("-{}", numbers[at]));
        }
        at += 1;
    }
    json!(text)
}

fn told(at: f64, kind: &'static str, text: String) -> Told {
    Told { id: 0, at: tenth(at), kind, text, why: Vec::new(), sign: 0, job: None }
}

fn cut(text: String) -> String {
    match text.char_indices().nth(TEXT) {
        Some((end, _)) => {
            format!("{} … ({} characters more)", &text[..end], text[end..].chars().count())
        }
        None => text,
    }
}

fn tenth(x: f64) -> f64 {
    (x * 10.0).round() / 10.0
}

fn thousandth(x: f64) -> f64 {
    (x * 1000.0).round() / 1000.0
}

#[cfg(test)]
pub(super) mod tests;
