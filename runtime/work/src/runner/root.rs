//! The root of a runners' job: it spawns the tasks that its client sends, and reports their ends.
//!
//! The tasks are ordinary children of the root, so other threads and nodes steal them.

use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::time::Instant;

use super::frame::{CallOutcome, FunctionCall, TaskFailure};
use super::message::{RunnerOrder, RunnerReport};
use super::task::{RunnerObject, RunnerTask, SPEC_PART};
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
    let body = wire::encode_payload(spec)?;
    let version = cx.put(SPEC_PART, RunnerObject(body))?;
    let mut root = RunnerRoot {
        cx,
        objects: BTreeMap::from([(SPEC_PART, version)]),
        waiting: VecDeque::new(),
        spawned: BTreeMap::new(),
        reports: Vec::new(),
        report_bytes: 0,
        count: 0,
        finishes: false,
        views: None,
        threads: 0,
    };
    root.update_threads();
    let (node, cluster) = (me.node, me.cluster);
    root.report(RunnerReport::Ready { node, cluster, processors: root.threads }, 0)?;
    root.serve()?;
    Ok(Outcome { checksum: 0, result: json!({ "tasks": root.count }) })
}

struct RunnerRoot<'c, 'w> {
    cx: &'c Context<'w>,
    /// The published objects by part.
    objects: BTreeMap<u32, Version>,
    waiting: VecDeque<(u64, RunnerTask)>,
    spawned: BTreeMap<u64, Spawned<'c, RunnerTask>>,
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
        loop {
            for body in self.cx.take_client_messages() {
                active_at = Instant::now();
                for order in wire::decode_payload::<Vec<RunnerOrder>>(&body)? {
                    self.execute(order)?;
                }
            }
            self.update_threads();
            self.spawn_waiting();
            self.collect()?;
            self.send_reports()?;
            if self.finishes && self.spawned.is_empty() && self.waiting.is_empty() {
                return Ok(());
            }
            let now = Instant::now();
            if now >= active_at + SILENCE_MAX {
                return Err(Stop::fail(format_args!(
                    "the client of the runners has sent nothing for {SILENCE_MAX:?}"
                )));
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
            let ready = || self.cx.has_client_messages() || self.has_finished();
            self.cx.serve_for(Some(now + CHECK_INTERVAL), &ready)?;
        }
    }

    fn execute(&mut self, order: RunnerOrder) -> Result<(), Stop> {
        match order {
            RunnerOrder::Put { object: SPEC_PART, .. } => {
                return Err(Stop::fail("shared objects of clients have numbers from 1"));
            }
            RunnerOrder::Put { object, data } => {
                let version = self.cx.put(object, RunnerObject(data))?;
                self.objects.insert(object, version);
            }
            RunnerOrder::Submit { task, call } => match self.task(call) {
                Ok(ready) => self.waiting.push_back((task, ready)),
                Err(failure) => self.end(task, CallOutcome::Failure(failure))?,
            },
            RunnerOrder::Cancel { task } => {
                let before = self.waiting.len();
                self.waiting.retain(|(number, _)| *number != task);
                if self.waiting.len() < before {
                    let text = "the client cancelled the task before it started";
                    let failure = TaskFailure::of_runtime("Cancelled", text);
                    self.end(task, CallOutcome::Failure(failure))?;
                }
            }
            RunnerOrder::Alive => {}
            RunnerOrder::Finish => self.finishes = true,
        }
        Ok(())
    }

    fn task(&self, call: FunctionCall) -> Result<RunnerTask, TaskFailure> {
        let mut objects = BTreeMap::from([(SPEC_PART, self.objects[&SPEC_PART])]);
        for part in call.objects.iter().chain(&call.function.object) {
            let Some(version) = self.objects.get(part) else {
                let text = format!("shared object {part} was not published");
                return Err(TaskFailure::of_runtime("UnknownObject", text));
            };
            objects.insert(*part, *version);
        }
        Ok(RunnerTask { call, objects: objects.into_iter().collect() })
    }

    // --- tasks ---

    /// Whether the root's thread is the only one of the job, so that it has to compute.
    fn is_alone(&self) -> bool {
        self.threads <= 1
    }

    fn update_threads(&mut self) {
        let Some(post) = self.cx.post() else { return };
        let views = post.views();
        if self.views != Some(views) {
            let members = post.members();
            let stays = members.iter().filter(|member| !member.leaving);
            self.threads = stays.map(|member| member.threads).sum();
            self.views = Some(views);
        }
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
