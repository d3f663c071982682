//! What the history of a run shows: its critical path, its waits, and the resources of each kind
//! of task.
//!
//! Functions of a [`RunHistory`] without I/O.

use std::collections::BTreeMap;

use super::attempts::{AttemptEnd, RunHistory, TaskAttempt, TaskOutcome};

/// A task on the critical path, with the parts of the time since its last parent's end, in
/// seconds. The parts of all steps add up to the time until the path's end.
#[derive(Clone, Debug, PartialEq)]
pub struct PathStep {
    /// Index of the task.
    pub task: usize,
    /// Index of the attempt that completed it.
    pub attempt: usize,
    /// The end of its last parent, or the begin of the run.
    pub ready_s: f64,
    /// Running time of the attempt that completed it.
    pub run_s: f64,
    /// Time of its earlier attempts.
    pub failed_s: f64,
    /// Time of transfers of its files.
    pub staging_s: f64,
    /// Time in which no process ran the run.
    pub stopped_s: f64,
    /// Other time: it waited for a node.
    pub node_wait_s: f64,
    /// Time from the end of its first parent to the end of its last one.
    pub parent_wait_s: f64,
}

/// The critical path of a run: from the task that was completed last, back to the parent that
/// ended last, to a task without parents. First to last; empty if no task was completed.
pub fn critical_path(history: &RunHistory) -> Vec<PathStep> {
    let completed =
        (0..history.tasks.len()).filter_map(|task| Some((task, end_of(history, task)?)));
    let mut next = completed.max_by(|a, b| a.1.total_cmp(&b.1)).map(|(task, _)| task);
    let staged = staged_by_task(history);
    let mut path = Vec::new();
    while let Some(task) = next {
        let Some(step) = step(history, task, &staged) else { break };
        path.push(step);
        let ends = history.tasks[task].parents.iter();
        let ends = ends.filter_map(|&parent| Some((parent, end_of(history, parent)?)));
        next = ends.max_by(|a, b| a.1.total_cmp(&b.1)).map(|(parent, _)| parent);
    }
    path.reverse();
    path
}

/// The end of a task, if it was completed.
fn end_of(history: &RunHistory, task: usize) -> Option<f64> {
    history.completion(task).map(|attempt| attempt.end_s)
}

/// The end and duration of each task's transfers.
fn staged_by_task(history: &RunHistory) -> BTreeMap<usize, Vec<(f64, f64)>> {
    let mut staged: BTreeMap<usize, Vec<(f64, f64)>> = BTreeMap::new();
    for transfer in &history.transfers {
        staged.entry(transfer.task).or_default().push((transfer.at_s, transfer.seconds));
    }
    staged
}

fn step(
    history: &RunHistory,
    task: usize,
    staged: &BTreeMap<usize, Vec<(f64, f64)>>,
) -> Option<PathStep> {
    let attempts = &history.tasks[task].attempts;
    let attempt = *attempts.iter().rev().find(|&&at| history.attempts[at].is_completed())?;
    let start_s = history.attempts[attempt].start_s?;
    let parents = history.tasks[task].parents.iter();
    let ends: Vec<f64> = parents.filter_map(|&parent| end_of(history, parent)).collect();
    let first = ends.iter().copied().fold(f64::INFINITY, f64::min);
    let last = ends.iter().copied().fold(history.begun_s(), f64::max);
    // A parent's end may be recorded after the start of its child's program.
    let ready_s = last.min(start_s);
    let gap_s = start_s - ready_s;
    let earlier = attempts.iter().filter(|&&at| at < attempt).map(|&at| &history.attempts[at]);
    let failed_s = earlier.fold(0.0, |sum, earlier| {
        sum + overlap((earlier.start_s.unwrap_or(earlier.end_s), earlier.end_s), (ready_s, start_s))
    });
    let stops = history.processes.windows(2).map(|pair| (pair[0].1, pair[1].0));
    let stopped_s = stops.fold(0.0, |sum, stop| sum + overlap(stop, (ready_s, start_s)));
    let rest_s = (gap_s - failed_s - stopped_s).max(0.0);
    let transfers = staged.get(&task).into_iter().flatten();
    let staging_s = transfers
        .filter(|(at_s, _)| (ready_s..=start_s).contains(at_s))
        .fold(0.0, |sum, (_, seconds)| sum + seconds)
        .min(rest_s);
    Some(PathStep {
        task,
        attempt,
        ready_s,
        run_s: history.attempts[attempt].duration_s(),
        failed_s,
        staging_s,
        stopped_s,
        node_wait_s: rest_s - staging_s,
        parent_wait_s: if ends.is_empty() { 0.0 } else { (last - first).max(0.0) },
    })
}

/// The length of the common part of two intervals.
fn overlap(a: (f64, f64), b: (f64, f64)) -> f64 {
    (a.1.min(b.1) - a.0.max(b.0)).max(0.0)
}

/// The time from which an attempt could run: its parents are completed, its earlier attempts have
/// ended, and a process runs the run.
pub fn ready_s(history: &RunHistory, at: usize) -> f64 {
    let attempt = &history.attempts[at];
    let begun = history.processes.get(attempt.process).map_or(0.0, |process| process.0);
    let ready = free_s(history, attempt.task, at).max(begun);
    ready.min(attempt.start_s.unwrap_or(attempt.end_s))
}

/// The last end of the parents of a task, and of its attempts before this one; at least the begin
/// of the run.
fn free_s(history: &RunHistory, task: usize, before: usize) -> f64 {
    let task = &history.tasks[task];
    let ends = task.parents.iter().filter_map(|&parent| end_of(history, parent));
    let earlier = task.attempts.iter().filter(|&&other| other < before);
    let earlier = earlier.map(|&other| history.attempts[other].end_s);
    ends.chain(earlier).fold(history.begun_s(), f64::max)
}

/// The intervals in which tasks were ready and did not run, also those that have not started.
/// They include times without a process.
pub fn waiting(history: &RunHistory) -> Vec<(f64, f64)> {
    let is_completed = |parent: &usize| {
        let outcome = history.tasks[*parent].outcome;
        matches!(outcome, TaskOutcome::Completed | TaskOutcome::Cached)
    };
    let started = history.attempts.iter().enumerate().filter_map(|(at, attempt)| {
        let start_s = attempt.start_s?;
        Some((free_s(history, attempt.task, at).min(start_s), start_s))
    });
    let unstarted = history.tasks.iter().enumerate().filter(|(_, task)| {
        let is_open = task.attempts.is_empty() && task.outcome == TaskOutcome::Unfinished;
        is_open && task.parents.iter().all(is_completed)
    });
    let unstarted = unstarted.map(|(task, _)| (free_s(history, task, 0), history.last_s()));
    started.chain(unstarted).collect()
}

/// The time of an attempt from ready to start, in seconds; none if it did not start.
pub fn wait_s(history: &RunHistory, at: usize) -> Option<f64> {
    Some(history.attempts[at].start_s? - ready_s(history, at))
}

/// Percentiles of a set of values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Percentiles {
    /// Number of the values.
    pub count: usize,
    /// Half of the values are at most this.
    pub p50: f64,
    /// 90 % of the values are at most this.
    pub p90: f64,
    /// 99 % of the values are at most this.
    pub p99: f64,
    /// The largest of the values.
    pub max: f64,
}

impl Percentiles {
    /// Of values, by the nearest rank; none of no values.
    pub fn of(mut values: Vec<f64>) -> Option<Self> {
        values.sort_by(f64::total_cmp);
        let count = values.len();
        let rank = |share: f64| ((share * count as f64).ceil() as usize).clamp(1, count) - 1;
        let max = *values.last()?;
        let (p50, p90, p99) = (values[rank(0.5)], values[rank(0.9)], values[rank(0.99)]);
        Some(Self { count, p50, p90, p99, max })
    }
}

/// The resources that the tasks of a kind asked for and used.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct KindUsage {
    /// Name of the kind.
    pub kind: String,
    /// Number of its tasks.
    pub tasks: usize,
    /// Number of completed attempts.
    pub completed: usize,
    /// Number of failed attempts.
    pub failed: usize,
    /// The least and the most processors of a task.
    pub processors: (u32, u32),
    /// Sum of the running times in seconds.
    pub wall_s: f64,
    /// The longest running time in seconds.
    pub longest_s: f64,
    /// The highest time limit in seconds; none if a task has none.
    pub time_limit_s: Option<f64>,
    /// Sum of the processor times in seconds.
    pub cpu_s: f64,
    /// Sum of the running times times processors, in seconds.
    pub processor_s: f64,
    /// The most memory of a task in bytes; 0 if unknown.
    pub memory_bytes: u64,
    /// The highest memory limit in bytes; none if a task has none.
    pub memory_limit_bytes: Option<u64>,
    /// The waits of its attempts from ready to start, in seconds.
    pub waits_s: Vec<f64>,
}

impl KindUsage {
    /// The processor time as a share of the running time of all processors.
    pub fn efficiency(&self) -> Option<f64> {
        (self.processor_s > 0.0).then(|| self.cpu_s / self.processor_s)
    }
}

/// The resources of each kind of task; the kinds with most processor-seconds come first.
pub fn usage(history: &RunHistory) -> Vec<KindUsage> {
    let mut kinds: BTreeMap<&str, KindUsage> = BTreeMap::new();
    for (index, task) in history.tasks.iter().enumerate() {
        let limits = limits(history, index);
        let kind = kinds.entry(&task.kind).or_insert_with(|| KindUsage {
            kind: task.kind.clone(),
            processors: (task.processors, task.processors),
            time_limit_s: limits.0,
            memory_limit_bytes: limits.1,
            ..KindUsage::default()
        });
        kind.tasks += 1;
        kind.processors.0 = kind.processors.0.min(task.processors);
        kind.processors.1 = kind.processors.1.max(task.processors);
        kind.time_limit_s = kind.time_limit_s.zip(limits.0).map(|(a, b)| a.max(b));
        kind.memory_limit_bytes = kind.memory_limit_bytes.zip(limits.1).map(|(a, b)| a.max(b));
        for &at in &task.attempts {
            kind.waits_s.extend(wait_s(history, at));
            add_attempt(kind, &history.attempts[at], task.processors);
        }
    }
    let mut kinds: Vec<KindUsage> = kinds.into_values().collect();
    kinds.sort_by(|a, b| b.processor_s.total_cmp(&a.processor_s).then(a.kind.cmp(&b.kind)));
    kinds
}

fn add_attempt(kind: &mut KindUsage, attempt: &TaskAttempt, processors: u32) {
    match attempt.end {
        AttemptEnd::Completed { wall_s, cpu_s, memory_bytes } => {
            kind.completed += 1;
            kind.wall_s += wall_s;
            kind.longest_s = kind.longest_s.max(wall_s);
            kind.cpu_s += cpu_s;
            kind.processor_s += wall_s * f64::from(processors);
            kind.memory_bytes = kind.memory_bytes.max(memory_bytes);
        }
        AttemptEnd::Failed { .. } => kind.failed += 1,
        AttemptEnd::Lost | AttemptEnd::Running => {}
    }
}

/// The limits of a task's first attempt: time in seconds, and memory in bytes.
fn limits(history: &RunHistory, task: usize) -> (Option<f64>, Option<u64>) {
    let source = history.source.as_ref();
    // Placeholders have only the limits of the options.
    let pretends = source.is_some_and(|source| source.pretend.is_some());
    let tasks = history.workflow.as_ref().map(|read| &read.workflow.tasks);
    let own = tasks.ok().and_then(|tasks| tasks.get(task)).map(|task| task.resources);
    let own = own.filter(|_| !pretends).unwrap_or_default();
    (
        own.walltime_s.or(source.and_then(|source| source.time_limit_s)),
        own.memory_bytes.or(source.and_then(|source| source.memory_bytes)),
    )
}
