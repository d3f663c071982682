//! The state of the grid as the dashboard shows it: input are snapshots, output are ticks. No I/O
//! and no clock.
//!
//! All sums are made here, once for all clients: the size of a tick depends only on the number of
//! workers. Omitted parts are counted and reported. This module does not know the clients.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use serde::Serialize;
use serde_json::{Value, json};
use springtide_actors::look::{DecisionSummary, JobPicture, JobSnapshot, WorkerSnapshot};
use springtide_actors::scheduler::{GridSlots, GridStatus, JobState, JobStatus, NodeState};
use springtide_runtime::event::{Event, Record};
use springtide_runtime::id::{ClusterId, Incarnation, JobId, NodeId};
use springtide_runtime::meter::{LatencySummary, Statistics, hundredths};
use springtide_runtime::work::PhaseTime;

use crate::changes::{ChangeSubject, changes_between};
use crate::reserved;

/// Maximum number of points of a job's history at full rate; of older ones every tenth is kept.
const FINE_POINTS: usize = 3600;
/// Maximum number of those older points.
const COARSE_POINTS: usize = 3600;
/// Maximum number of events kept.
const EVENTS_MAX: usize = 10_000;
/// Maximum number of jobs in a tick: running ones, then the first waiting ones.
const JOBS_MAX: usize = 100;
/// Maximum number of running tasks of a job in a tick.
const RUNNING_MAX: usize = 64;
/// Age in seconds from which on a worker's data is shown with its age.
const STALE_S: f64 = 3.0;
/// Interval in seconds over which fractions of time are taken.
const WINDOW_S: f64 = 10.0;
/// Maximum length of a text in characters.
const TEXT_MAX: usize = 600;

/// The state of the grid at one time.
#[derive(Clone, Debug, Default)]
pub struct GridSnapshot {
    /// The nodes and jobs of the grid.
    pub status: GridStatus,
    /// The jobs that were polled.
    pub jobs: BTreeMap<JobId, JobSnapshot>,
    /// The workers of these jobs.
    pub workers: BTreeMap<JobId, BTreeMap<ClusterId, Vec<WorkerSnapshot>>>,
    /// The records of the head since the last snapshot.
    pub records: Vec<Record>,
    /// Offers and reservations, if they were polled.
    pub slots: Option<GridSlots>,
    /// The messages that the head refused, by name and reason.
    pub refused_messages: BTreeMap<(String, String), u64>,
}

/// An event that the dashboard shows.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DashboardEvent {
    /// The number of the event, counted from 1.
    pub id: u64,
    /// The time in seconds since the dashboard's (or the run's) start.
    pub at: f64,
    /// The kind: `adapt`, `member`, `failed`, `security`, `job` or `schedule`.
    pub kind: &'static str,
    /// The text in one line.
    pub text: String,
    /// The reasons, one sentence each.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub why: Vec<String>,
    /// Whether nodes join (1), leave (-1), or neither (0).
    #[serde(skip_serializing_if = "is_zero")]
    pub sign: i8,
    /// The number of the job, if it concerns one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub job: Option<u64>,
}

fn is_zero(sign: &i8) -> bool {
    *sign == 0
}

/// A point of a job's history.
#[derive(Clone, Debug, PartialEq)]
pub struct SeriesPoint {
    /// The time in seconds since the dashboard's start.
    pub at: f64,
    /// Weighted average efficiency of the job.
    pub efficiency: Option<f64>,
    /// The number of its nodes.
    pub nodes: u32,
    /// The fraction of its threads' time that is work, by cluster.
    pub working: BTreeMap<ClusterId, f64>,
}

/// Sums of a worker over the last interval, for fractions of time.
#[derive(Clone, Debug, Default)]
struct IntervalSums {
    incarnation: Incarnation,
    /// Times with the sums at them.
    marks: VecDeque<(f64, [u64; 5])>,
    time: [u8; 5],
    /// The time at which sums last grew.
    last_growth: f64,
}

impl IntervalSums {
    fn add(&mut self, at: f64, worker: &WorkerSnapshot) {
        if self.incarnation != worker.incarnation {
            *self = Self { incarnation: worker.incarnation, ..Self::default() };
        }
        let age = worker.age_ms.map_or(f64::INFINITY, |ms| ms as f64 / 1e3);
        self.last_growth = self.last_growth.max(at - age);
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

/// The shown state of a job.
#[derive(Clone, Debug, Default)]
struct ShownJob {
    look: JobSnapshot,
    windows: BTreeMap<NodeId, IntervalSums>,
    workers: BTreeMap<ClusterId, Vec<WorkerSnapshot>>,
    decided: Option<(u32, u64)>,
    fine: VecDeque<SeriesPoint>,
    coarse: VecDeque<SeriesPoint>,
    points: u64,
    picture: Option<JobPicture>,
}

/// The shown state of the grid.
#[derive(Debug)]
pub struct DashboardModel {
    grid: String,
    replay: bool,
    /// Whether the mode of adaptation is known.
    has_mode: bool,
    at: f64,
    seq: u64,
    status: GridStatus,
    jobs: BTreeMap<JobId, ShownJob>,
    slots: Option<Value>,
    events: VecDeque<DashboardEvent>,
    next_event: u64,
    /// The number of records that were dropped at their source.
    dropped: u64,
    counts: DashboardCounts,
}

/// Counters since the dashboard's start, for metrics.
#[derive(Clone, Debug, Default)]
pub struct DashboardCounts {
    /// Decisions with a change, by their action.
    pub decisions: BTreeMap<&'static str, u64>,
    /// The links that were refused, by reason.
    pub refused: BTreeMap<String, u64>,
    /// The messages that the head refused because of their sender, by name and reason.
    pub refused_messages: BTreeMap<(String, String), u64>,
}

impl DashboardModel {
    /// Creates the empty state of a grid. `replay` selects the data of an ended run.
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
            counts: DashboardCounts::default(),
        }
    }

    /// Marks the mode of adaptation as unknown.
    pub fn forget_mode(&mut self) {
        self.has_mode = false;
    }

    /// Applies a snapshot taken at this time, in seconds since the start.
    pub fn apply(&mut self, at: f64, snapshot: GridSnapshot) {
        self.at = at;
        self.seq += 1;
        let GridSnapshot { status, jobs, workers, records, slots, refused_messages } = snapshot;
        self.counts.refused_messages = refused_messages;
        if let Some(slots) = slots {
            self.slots = reserved::slots_object(&slots);
        }
        records.into_iter().for_each(|record| self.record(at, record.event));
        self.changes(at, &status);
        // Ended jobs are removed.
        self.jobs.retain(|job, _| status.jobs.iter().any(|known| known.job == *job));
        self.status = status;
        // In numerical order: the tenth after the ninth.
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
            // Windows of nodes that are missing for a short time are kept.
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

    /// The latest picture of a job.
    pub fn picture(&self, job: JobId) -> Option<&JobPicture> {
        self.jobs.get(&job)?.picture.as_ref()
    }

    fn look(&mut self, at: f64, job: JobId, mut look: JobSnapshot) {
        let shown = self.jobs.entry(job).or_default();
        shown.picture = look.picture.take().or(shown.picture.take());
        let mark = |decision: &DecisionSummary| (decision.at.0.0, decision.at.1);
        let known = shown.decided;
        let fresh: Vec<DecisionSummary> =
            look.decisions.iter().filter(|d| Some(mark(d)) > known).cloned().collect();
        shown.decided = look.decisions.back().map(mark).max(known);
        let elapsed = look.elapsed_s;
        shown.look = look;
        for decision in fresh {
            let then = (at - (elapsed - decision.elapsed_s)).clamp(0.0, at);
            self.decision(then, job, decision);
        }
    }

    /// Adds a decision of the policy.
    pub fn decision(&mut self, at: f64, job: JobId, decision: DecisionSummary) {
        let action = match decision.sign {
            1 => "add",
            -1 => "remove",
            _ => "move",
        };
        *self.counts.decisions.entry(action).or_default() += 1;
        let text = if decision.withheld {
            format!("would have: {}", decision.text)
        } else {
            decision.text
        };
        let entry = DashboardEvent {
            sign: decision.sign,
            job: Some(job.0),
            why: decision.why,
            ..entry(at, "adapt", text)
        };
        self.add_event(entry);
    }

    fn add_event(&mut self, mut entry: DashboardEvent) {
        entry.id = self.next_event;
        entry.text = cut(entry.text);
        entry.why = entry.why.into_iter().take(12).map(cut).collect();
        self.next_event += 1;
        self.events.push_back(entry);
        if self.events.len() > EVENTS_MAX {
            self.events.pop_front();
        }
    }

    /// Adds an event that a node recorded.
    pub fn record(&mut self, at: f64, event: Event) {
        let say = match event {
            Event::LinkRefused { peer, reason, detail } => {
                *self.counts.refused.entry(reason.clone()).or_default() += 1;
                entry(at, "security", format!("link of {peer} refused ({reason}): {detail}"))
            }
            Event::Fault { part, what } => entry(at, "failed", format!("{part}: {what}")),
            Event::Decision { decision, why, .. } => {
                DashboardEvent { why: vec![why], ..entry(at, "schedule", decision) }
            }
            Event::TaskFailed { job, path, task, node, message, .. } => DashboardEvent {
                job: Some(job.0),
                ..entry(at, "failed", format!("task {task} ({path}) failed on {node}: {message}"))
            },
            Event::NodeLost { node, why, .. } => {
                entry(at, "member", format!("node {node} was lost: {why}"))
            }
            Event::NodeJoined { job, node, .. } => DashboardEvent {
                job: Some(job.0),
                ..entry(at, "member", format!("node {node} joined {job}"))
            },
            Event::NodeLeft { job, node, why, .. } => DashboardEvent {
                job: Some(job.0),
                ..entry(at, "member", format!("node {node} left {job}: {why}"))
            },
            Event::JobEnded { job, ok, error, .. } => {
                let how = match (ok, error) {
                    (true, _) => "done".to_owned(),
                    (false, error) => format!("failed: {}", error.unwrap_or_default()),
                };
                DashboardEvent {
                    job: Some(job.0),
                    ..entry(at, "job", format!("{job} is over: {how}"))
                }
            }
            Event::Dropped { facts } => {
                self.dropped += facts;
                return;
            }
            _ => return,
        };
        self.add_event(say);
    }

    /// Adds events for the changes between two states.
    fn changes(&mut self, at: f64, now: &GridStatus) {
        for (about, line) in changes_between(&self.status, now) {
            let kind = match about {
                ChangeSubject::Job => "job",
                ChangeSubject::Capacity => "member",
                ChangeSubject::Failure => "failed",
            };
            self.add_event(entry(at, kind, line));
        }
    }

    /// The events with numbers above this one.
    pub fn events(&self, after: u64) -> impl Iterator<Item = &DashboardEvent> {
        let skip = self.events.partition_point(|entry| entry.id <= after);
        self.events.iter().skip(skip)
    }

    /// The number of the newest event.
    pub fn newest(&self) -> u64 {
        self.next_event - 1
    }

    /// The counters since the start.
    pub fn counts(&self) -> &DashboardCounts {
        &self.counts
    }

    /// The grid's nodes and jobs as last seen.
    pub fn status(&self) -> &GridStatus {
        &self.status
    }

    /// The running jobs in their last snapshots.
    pub fn looks(&self) -> impl Iterator<Item = &JobSnapshot> {
        self.jobs.values().map(|shown| &shown.look)
    }

    /// The current state of the grid as a JSON object.
    pub fn tick(&self) -> Value {
        let jobs: Vec<&JobStatus> = {
            let (running, waiting): (Vec<_>, Vec<_>) =
                self.status.jobs.iter().partition(|job| job.state != JobState::Queued);
            running.into_iter().chain(waiting).collect()
        };
        let shown: Vec<Value> = jobs.iter().take(JOBS_MAX).map(|job| self.job(job)).collect();
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
            "more_jobs": jobs.len().saturating_sub(JOBS_MAX),
            "clusters": clusters,
            "event": self.newest(),
            "dropped": self.dropped,
        });
        if let Some(slots) = &self.slots {
            tick["slots"] = slots.clone();
        }
        tick
    }

    /// The speed of each job's fastest worker.
    fn fastest(&self) -> BTreeMap<JobId, f64> {
        let of = |shown: &ShownJob| {
            let speeds = shown.workers.values().flatten().filter_map(|worker| worker.speed);
            speeds.fold(None, |most: Option<f64>, v| Some(most.map_or(v, |most| most.max(v))))
        };
        self.jobs.iter().filter_map(|(job, shown)| Some((*job, of(shown)?))).collect()
    }

    fn job(&self, status: &JobStatus) -> Value {
        let mut entry = json!({
            "id": status.job.0,
            "name": status.name,
            "state": status.state,
            "processors": status.processors(),
        });
        if let Some(why) = &status.waits_for {
            entry["waits"] = json!(cut(why.clone()));
        }
        let Some(shown) = self.jobs.get(&status.job) else { return entry };
        let look = &shown.look;
        let clusters: BTreeMap<&ClusterId, Value> = look
            .clusters
            .iter()
            .map(|(cluster, sum)| {
                let counters = &sum.sums.counters;
                let share = shown.shares(cluster);
                // A cluster is unknown before its first report.
                let is_known = sum.sums != Statistics::default();
                let entry = json!({
                    "n": sum.workers,
                    "t": share,
                    "tasks": is_known.then_some(counters.tasks.executed),
                    "wide": is_known.then_some(counters.bytes.wide),
                });
                (cluster, entry)
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
        let workers = || shown.workers.values().flatten();
        let running = workers().flat_map(|worker| {
            let tasks = worker.sums.running.iter();
            tasks.map(|task| json!([worker.node, task.name, task.path.to_string(), task.from]))
        });
        let count: usize = workers().map(|worker| worker.sums.running.len()).sum();
        let phases = look.phases.0.iter().map(|PhaseTime { name, wall_s, cpu_s, serial_s }| {
            json!([name, thousandth(*wall_s), cpu_s.map(thousandth), thousandth(*serial_s)])
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
            "running": running.take(RUNNING_MAX).collect::<Vec<_>>(),
            "more_running": count.saturating_sub(RUNNING_MAX),
            "lat": latencies,
            "phases": phases.collect::<Vec<_>>(),
            "picture": shown.picture.as_ref().map(|last| json!([last.number, last.name])),
            "links": links.collect::<Vec<_>>(),
            "thought": look.reasons.iter().take(6).cloned().map(cut).collect::<Vec<_>>(),
        });
        if let (Value::Object(entry), Value::Object(more)) = (&mut entry, more) {
            entry.extend(more);
        }
        entry
    }

    /// The histories of running jobs as a JSON object.
    pub fn history(&self) -> Value {
        let of = |(job, shown): (&JobId, &ShownJob)| {
            let points: Vec<Value> =
                shown.coarse.iter().chain(&shown.fine).map(SeriesPoint::json).collect();
            (job.0.to_string(), Value::Array(points))
        };
        json!({ "v": 1, "jobs": self.jobs.iter().map(of).collect::<serde_json::Map<_, _>>() })
    }
}

impl ShownJob {
    fn worker(&self, cluster: &ClusterId, node: &NodeId) -> Option<&WorkerSnapshot> {
        let workers = self.workers.get(cluster)?;
        let at = workers.binary_search_by(|worker| worker.node.cmp(node)).ok()?;
        workers.get(at)
    }

    /// Fractions of the time of a cluster's workers over the last interval, in percent.
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
        let point = SeriesPoint {
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
        // One point per second.
        if self.fine.back().is_some_and(|last| at - last.at < 0.9) {
            return;
        }
        self.points += 1;
        self.fine.push_back(point);
        if self.fine.len() > FINE_POINTS
            && let Some(old) = self.fine.pop_front()
            && self.points.is_multiple_of(10)
        {
            self.coarse.push_back(old);
            if self.coarse.len() > COARSE_POINTS {
                self.coarse.pop_front();
            }
        }
    }
}

impl SeriesPoint {
    fn json(&self) -> Value {
        let working: BTreeMap<_, _> =
            self.working.iter().map(|(cluster, share)| (cluster, thousandth(*share))).collect();
        json!([tenth(self.at), self.efficiency.map(thousandth), self.nodes, working])
    }
}

/// A worker as an array of numbers. Fractions of work, idleness, and waiting inside and between
/// clusters; the rest is benchmarks. Then the speed in percent of the fastest (-1: unknown), the
/// state, and if needed the job and the age of the data.
fn row(
    state: NodeState,
    job: Option<JobId>,
    window: Option<&IntervalSums>,
    leaving: bool,
    speed: Option<f64>,
    at: f64,
) -> Value {
    let time = window.map_or([0; 5], |window| window.time);
    let speed = speed.map_or(-1, |speed| (speed * 100.0).round().clamp(0.0, 100.0) as i64);
    let age = window.map_or(0.0, |window| (at - window.last_growth).max(0.0));
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

/// The numbers of states, as the page uses them.
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

/// The names of a cluster's nodes: numbers such as `1-3,5` if all names are numbered, else names.
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

fn entry(at: f64, kind: &'static str, text: String) -> DashboardEvent {
    DashboardEvent { id: 0, at: tenth(at), kind, text, why: Vec::new(), sign: 0, job: None }
}

fn cut(text: String) -> String {
    match text.char_indices().nth(TEXT_MAX) {
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
