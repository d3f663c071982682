//! The root of a runners' job: it spawns the tasks that its client sends, and reports their ends.
//!
//! The tasks are ordinary children of the root, so other threads and nodes steal them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::time::Instant;

use super::frame::{CallOutcome, FunctionCall, TaskFailure};
use super::message::{RunnerOrder, RunnerReport};
use super::report::{ReportInbox, RunnerSetup};
use super::size::{JobLoad, SizeChange, size_change};
use super::task::{CancelledTasks, RunnerObject, RunnerTask, SETUP_PART, cancelled};
use crate::command::EnvironmentVariable;
use crate::share::Version;
use crate::wire;
use crate::work::{Context, Outcome, Spawned, Stop};

/// The longest time between two orders of a client.
pub const ALIVE_INTERVAL: Duration = Duration::from_secs(5);
/// A client that sends nothing for this time is lost, and the job ends.
const SILENCE_MAX: Duration = Duration::from_secs(60);
/// The interval at which the root looks whether its node leaves, and how many threads the job has.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);
/// The most tasks that are spawned and not collected. Further ones wait in order.
const SPAWNED_MAX: usize = 1024;
/// The most bytes of values in one message to the client, after its first report.
const MESSAGE_BYTES: usize = 4 << 20;

/// The parameters of a runners' job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunnerSpec {
    /// The program of a runner and its arguments. Nodes look up a name in their `PATH`.
    pub command: Vec<String>,
    /// Variables to set in the environment that the node's process has.
    pub environment: Vec<EnvironmentVariable>,
    /// The directory in which runners start, where it exists.
    pub directory: Option<PathBuf>,
    /// The time in which a runner must be ready after its start.
    pub start_timeout: Duration,
    /// Whether the job asks for nodes while it has more tasks than processors, and releases them
    /// while it has none.
    pub is_malleable: bool,
}

/// Runs a runners' job to its end, in a job's [`run`](crate::work::Job::run).
///
/// # Errors
/// The client is lost, an order does not decode, or a halt.
pub fn run(spec: &RunnerSpec, cx: &Context) -> Result<Outcome, Stop> {
    let Some(post) = cx.post() else {
        return Err(Stop::fail("runners have no client here: submit the job to a grid"));
    };
    if !cx.is_real() {
        return Err(Stop::fail("virtual time runs no processes of the operating system"));
    }
    let me = post.me().clone();
    let inbox = ReportInbox::new(post, cx);
    let setup = RunnerSetup { spec: spec.clone(), group: inbox.group.clone() };
    let version = cx.put(SETUP_PART, RunnerObject(wire::encode_payload(&setup)?))?;
    let mut root = RunnerRoot {
        cx,
        is_malleable: spec.is_malleable,
        size: None,
        busy_at: Instant::now(),
        inbox,
        objects: BTreeMap::from([(SETUP_PART, version)]),
        waiting: VecDeque::new(),
        spawned: BTreeMap::new(),
        cancelled: BTreeSet::new(),
        reports: Vec::new(),
        report_bytes: 0,
        count: 0,
        finishes: false,
        views: None,
        threads: 0,
    };
    root.count_threads();
    let (node, cluster) = (me.node, me.cluster);
    root.report(RunnerReport::Ready { node, cluster, processors: root.threads }, 0)?;
    root.serve()?;
    Ok(Outcome { checksum: 0, result: json!({ "tasks": root.count }) })
}

struct RunnerRoot<'c, 'w> {
    cx: &'c Context<'w>,
    is_malleable: bool,
    /// The last change of the job's size that this root asked for, and the threads then.
    size: Option<(SizeChange, u32)>,
    /// The last time at which a task was open.
    busy_at: Instant,
    /// What tasks have printed, logged and reported.
    inbox: ReportInbox,
    /// The published objects by part.
    objects: BTreeMap<u32, Version>,
    waiting: VecDeque<(u64, RunnerTask)>,
    spawned: BTreeMap<u64, Spawned<'c, RunnerTask>>,
    /// Spawned tasks that the client has cancelled since the nodes last received such tasks.
    cancelled: BTreeSet<u64>,
    reports: Vec<RunnerReport>,
    report_bytes: usize,
    /// The number of tasks that have ended.
    count: u64,
    finishes: bool,
    /// The view in which `threads` was counted.
    views: Option<u64>,
    /// The compute threads of the job.
    threads: u32,
}

impl<'c> RunnerRoot<'c, '_> {
    fn serve(&mut self) -> Result<(), Stop> {
        let mut active_at = Instant::now();
        let mut progress_at = active_at;
        loop {
            for body in self.cx.take_client_messages() {
                active_at = Instant::now();
                for order in wire::decode_payload::<Vec<RunnerOrder>>(&body)? {
                    self.execute(order)?;
                }
            }
            if self.count_threads() {
                self.report(RunnerReport::Processors { processors: self.threads }, 0)?;
            }
            self.spawn_waiting();
            self.cancel_spawned()?;
            self.relay_reports()?;
            self.collect()?;
            self.send_reports()?;
            if self.finishes && self.spawned.is_empty() && self.waiting.is_empty() {
                return Ok(());
            }
            let now = Instant::now();
            self.change_size(now);
            if now >= active_at + SILENCE_MAX {
                return Err(Stop::fail(format_args!(
                    "the client of the runners has sent nothing for {SILENCE_MAX:?}"
                )));
            }
            if now >= progress_at {
                progress_at = now + CHECK_INTERVAL;
                self.cx.progress(self.count, self.count + self.open() as u64, "tasks");
            }
            if self.cx.checkpoint_wanted() {
                // The client sends its tasks again to the next root.
                self.cx.checkpoint_beside_processes(&())?;
            }
            if self.is_alone()
                && let Some((number, task)) = self.waiting.pop_front()
            {
                let outcome = self.cx.call(task)?;
                self.end(number, outcome)?;
                continue;
            }
            let ready =
                || self.cx.has_client_messages() || self.has_finished() || self.inbox.has_reports();
            self.cx.serve_for(Some(now + CHECK_INTERVAL), &ready)?;
        }
    }

    fn execute(&mut self, order: RunnerOrder) -> Result<(), Stop> {
        match order {
            RunnerOrder::Put { object: SETUP_PART, .. } => {
                return Err(Stop::fail("shared objects of clients have numbers from 1"));
            }
            RunnerOrder::Put { object, data } => {
                let version = self.cx.put(object, RunnerObject(data))?;
                self.objects.insert(object, version);
            }
            RunnerOrder::Submit { task, call } => match self.task(task, call) {
                Ok(ready) => self.waiting.push_back((task, ready)),
                Err(failure) => self.end(task, CallOutcome::Failure(failure))?,
            },
            RunnerOrder::Cancel { task } => {
                let before = self.waiting.len();
                self.waiting.retain(|(number, _)| *number != task);
                if self.waiting.len() < before {
                    self.end(task, cancelled())?;
                } else if self.spawned.contains_key(&task) {
                    self.cancelled.insert(task);
                }
            }
            RunnerOrder::Alive => {}
            RunnerOrder::Finish => self.finishes = true,
        }
        Ok(())
    }

    fn task(&self, origin: u64, call: FunctionCall) -> Result<RunnerTask, TaskFailure> {
        let mut objects = BTreeMap::from([(SETUP_PART, self.objects[&SETUP_PART])]);
        for part in call.objects.iter().chain(&call.function.object) {
            let Some(version) = self.objects.get(part) else {
                let text = format!("shared object {part} was not published");
                return Err(TaskFailure::of_runtime("UnknownObject", text));
            };
            objects.insert(*part, *version);
        }
        Ok(RunnerTask { origin, call, objects: objects.into_iter().collect() })
    }

    // --- tasks ---

    /// Whether the root's thread is the only one of the job, so that it has to compute.
    fn is_alone(&self) -> bool {
        self.threads <= 1
    }

    /// The number of tasks that have not ended.
    fn open(&self) -> usize {
        self.spawned.len() + self.waiting.len()
    }

    /// Asks for nodes, or releases them, as the tasks require.
    fn change_size(&mut self, now: Instant) {
        let open = self.open();
        if open > 0 {
            self.busy_at = now;
        }
        if !self.is_malleable {
            return;
        }
        let idle = now.saturating_duration_since(self.busy_at);
        let load = JobLoad { open, idle, threads: self.threads, last: self.size };
        let Some(change) = size_change(&load) else { return };
        self.size = Some((change, self.threads));
        match change {
            SizeChange::Request(more) => self.cx.need_nodes(more, None),
            SizeChange::Release => {
                let members = self.cx.post().map_or_else(Vec::new, |post| post.members());
                self.cx.release(members.into_iter().map(|member| member.peer.node).collect());
            }
        }
    }

    /// Counts the threads of the job. Returns whether their number has changed.
    fn count_threads(&mut self) -> bool {
        let Some(post) = self.cx.post() else { return false };
        let views = post.views();
        if self.views == Some(views) {
            return false;
        }
        self.views = Some(views);
        let members = post.members();
        let stays = members.iter().filter(|member| !member.leaving);
        let threads = stays.map(|member| member.threads).sum();
        std::mem::replace(&mut self.threads, threads) != threads
    }

    /// Lets the nodes end the spawned tasks that the client has cancelled.
    fn cancel_spawned(&mut self) -> Result<(), Stop> {
        if self.cancelled.is_empty() {
            return Ok(());
        }
        let waiting = self.waiting.iter().map(|(number, _)| *number);
        let first = self.spawned.keys().copied().chain(waiting).min().unwrap_or_default();
        let tasks = std::mem::take(&mut self.cancelled);
        self.cx.merge(CancelledTasks { first, tasks })
    }

    fn spawn_waiting(&mut self) {
        while !self.is_alone() && self.spawned.len() < SPAWNED_MAX {
            let Some((number, task)) = self.waiting.pop_front() else { return };
            self.spawned.insert(number, self.cx.spawn(task));
        }
    }

    fn has_finished(&self) -> bool {
        self.spawned.values().any(Spawned::is_finished)
    }

    /// Reports the tasks that have ended.
    fn collect(&mut self) -> Result<(), Stop> {
        // Tasks that were spawned for threads of nodes that are gone have no other thread.
        let is_ready = |spawned: &Spawned<'c, RunnerTask>| self.is_alone() || spawned.is_finished();
        let ready = self.spawned.iter().filter(|(_, spawned)| is_ready(spawned));
        let ready: Vec<u64> = ready.map(|(number, _)| *number).collect();
        for number in ready {
            let Some(spawned) = self.spawned.remove(&number) else { continue };
            let outcome = spawned.take()?;
            self.end(number, outcome)?;
        }
        Ok(())
    }

    // --- reports ---

    /// Passes on what tasks have printed, logged and reported.
    fn relay_reports(&mut self) -> Result<(), Stop> {
        for report in self.inbox.take() {
            let bytes = match &report {
                RunnerReport::Output { text, .. } | RunnerReport::Log { text, .. } => text.len(),
                _ => 0,
            };
            self.report(report, bytes)?;
        }
        Ok(())
    }

    fn end(&mut self, task: u64, outcome: CallOutcome) -> Result<(), Stop> {
        self.count += 1;
        let bytes = outcome.bytes();
        self.report(RunnerReport::Done { task, outcome }, bytes)
    }

    fn report(&mut self, report: RunnerReport, bytes: usize) -> Result<(), Stop> {
        if self.report_bytes + bytes > MESSAGE_BYTES {
            self.send_reports()?;
        }
        self.report_bytes += bytes;
        self.reports.push(report);
        Ok(())
    }

    fn send_reports(&mut self) -> Result<(), Stop> {
        if !self.reports.is_empty() {
            let reports = std::mem::take(&mut self.reports);
            self.report_bytes = 0;
            self.cx.send_to_client(wire::encode_payload(&reports)?);
        }
        Ok(())
    }
}
