//! All tasks of a pilot: which wait, which run, their limits and their logs.
//!
//! It reports what happens to tasks. It does not know how reports reach the client.

use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::io::{self, Read as _};
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

use super::directory::{NodeDirectory, TaskDirectory};
use super::message::{PilotReport, PilotTask, TaskEnd, TaskUsage};
use super::process::{EndCause, RunningTask, STDERR, STDOUT};
use crate::meter::share::memory_of_tree;
use crate::work::{OutputStream, WakeRoot};

/// The time between SIGTERM and SIGKILL.
const GRACE: Duration = Duration::from_secs(5);
/// The interval at which memory and logs of running tasks are looked at.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);
/// The most bytes of a piece of a log.
const PIECE_MAX: usize = 64 << 10;
/// The most bytes of logs that the client has not acknowledged. Further logs wait in files.
const LOGS_MAX: u64 = 8 << 20;
/// The time in which killed tasks must end.
const KILL_WAIT: Duration = Duration::from_secs(5);

/// A log of a task, which is sent in pieces.
struct LogTail {
    stream: OutputStream,
    path: PathBuf,
    file: Option<File>,
}

impl LogTail {
    /// Reads the next piece; empty if there is none at present.
    fn next(&mut self) -> Bytes {
        if self.file.is_none() {
            // The task's thread creates it, unless the stream is redirected.
            self.file = File::open(&self.path).ok();
        }
        let Some(file) = &mut self.file else { return Bytes::new() };
        let mut piece = vec![0; PIECE_MAX];
        let read = loop {
            match file.read(&mut piece) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    tracing::warn!(path = %self.path.display(), %error, "a log is not read");
                    break 0;
                }
                Ok(count) => break count,
            }
        };
        piece.truncate(read);
        piece.into()
    }
}

/// Wakes a thread when a task has ended.
#[derive(Debug, Default)]
struct EndSignal {
    has_ended: Mutex<bool>,
    changed: Condvar,
}

impl EndSignal {
    fn notify(&self) {
        *self.has_ended.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.changed.notify_all();
    }

    /// Blocks until a task has ended since the last call, at most for this time.
    fn wait(&self, time: Duration) {
        let ended = self.has_ended.lock().unwrap_or_else(PoisonError::into_inner);
        let waits = |ended: &mut bool| !*ended;
        let waited = self.changed.wait_timeout_while(ended, time, waits);
        *waited.unwrap_or_else(PoisonError::into_inner).0 = false;
    }
}

/// A task that has started.
struct TrackedTask {
    running: Arc<RunningTask>,
    /// The directory exists until the whole log was sent.
    _directory: Arc<TaskDirectory>,
    processors: u32,
    memory_max: Option<u64>,
    /// The most memory seen.
    memory_bytes: u64,
    limit_at: Option<Instant>,
    kill_at: Option<Instant>,
    logs: [LogTail; 2],
}

impl TrackedTask {
    fn end(&mut self, cause: EndCause, now: Instant) {
        self.running.end(cause);
        self.kill_at.get_or_insert(now + GRACE);
    }
}

/// The tasks of a pilot.
pub(super) struct TaskSet {
    node: Arc<NodeDirectory>,
    /// The cluster's directory of files.
    stored: Option<PathBuf>,
    processors: u32,
    wake: WakeRoot,
    ends: Arc<EndSignal>,
    waiting: VecDeque<PilotTask>,
    running: BTreeMap<u64, TrackedTask>,
    reports: Vec<PilotReport>,
    unacknowledged: u64,
    look_at: Instant,
}

impl TaskSet {
    /// No tasks, on a node with these processors. `name` is unique among the pilots of a grid.
    /// `wake` is called when a task has ended.
    ///
    /// # Errors
    /// The directory of tasks cannot be created.
    pub(super) fn new(
        name: &str,
        processors: u32,
        stored: Option<PathBuf>,
        wake: WakeRoot,
    ) -> io::Result<Self> {
        Ok(Self {
            node: Arc::new(NodeDirectory::create(name)?),
            stored,
            processors: processors.max(1),
            wake,
            ends: Arc::default(),
            waiting: VecDeque::new(),
            running: BTreeMap::new(),
            reports: Vec::new(),
            unacknowledged: 0,
            look_at: Instant::now(),
        })
    }

    /// Adds a task. A task that needs more than the node's processors fails.
    pub(super) fn add(&mut self, task: PilotTask) {
        if task.processors > self.processors {
            let reason = format!(
                "needs {} processors of one node, and this node has {}",
                task.processors, self.processors
            );
            let end = TaskEnd::Failed { exit: None, reason };
            return self.report_end(task.number, end, TaskUsage::default());
        }
        self.waiting.push_back(task);
    }

    /// Ends a task early.
    pub(super) fn end(&mut self, number: u64, now: Instant) {
        if let Some(entry) = self.running.get_mut(&number) {
            entry.end(EndCause::Cancelled, now);
        } else if let Some(at) = self.waiting.iter().position(|task| task.number == number) {
            self.waiting.remove(at);
            self.report_end(number, TaskEnd::Cancelled, TaskUsage::default());
        }
    }

    /// Records that this number of bytes of logs has arrived.
    pub(super) fn acknowledge(&mut self, bytes: u64) {
        self.unacknowledged = self.unacknowledged.saturating_sub(bytes);
    }

    /// Whether no task waits or runs.
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.running.is_empty()
    }

    /// Whether a task has ended that [`TaskSet::step`] has not reported.
    pub(super) fn has_news(&self) -> bool {
        self.unacknowledged < LOGS_MAX
            && self.running.values().any(|entry| entry.running.ended().is_some())
    }

    /// The time of the next call of [`TaskSet::step`] without news.
    pub(super) fn due(&self) -> Option<Instant> {
        (!self.running.is_empty()).then_some(self.look_at)
    }

    /// Takes the reports so far.
    pub(super) fn take_reports(&mut self) -> Vec<PilotReport> {
        std::mem::take(&mut self.reports)
    }

    /// Starts tasks for which the node has processors, applies limits, and collects logs and ends.
    pub(super) fn step(&mut self, now: Instant) {
        let look = now >= self.look_at;
        if look {
            self.look_at = now + LOOK_INTERVAL;
        }
        let mut ended = Vec::new();
        for (&number, entry) in &mut self.running {
            if entry.limit_at.is_some_and(|at| now >= at) {
                entry.end(EndCause::TimeLimit, now);
            }
            if entry.kill_at.is_some_and(|at| now >= at) {
                entry.running.kill();
            }
            if look && let Some(process) = entry.running.process_directory() {
                let used = memory_of_tree(&process);
                entry.memory_bytes = entry.memory_bytes.max(used);
                if entry.memory_max.is_some_and(|max| used > max) {
                    entry.end(EndCause::MemoryLimit { used }, now);
                }
            }
            // The end first: what is in the log after it is the whole rest.
            let end = entry.running.ended();
            let mut complete = true;
            if look || end.is_some() {
                for log in &mut entry.logs {
                    let mut more = true;
                    while more && self.unacknowledged < LOGS_MAX {
                        let bytes = log.next();
                        more = !bytes.is_empty();
                        if more {
                            self.unacknowledged += bytes.len() as u64;
                            let stream = log.stream;
                            self.reports.push(PilotReport::Log { number, stream, bytes });
                        }
                    }
                    complete &= !more;
                }
            }
            if let Some((end, mut usage)) = end.filter(|_| complete) {
                usage.memory_bytes = entry.memory_bytes;
                let end = match end {
                    TaskEnd::MemoryLimit { used } => {
                        TaskEnd::MemoryLimit { used: used.max(entry.memory_bytes) }
                    }
                    end => end,
                };
                ended.push((number, end, usage));
            }
        }
        for (number, end, usage) in ended {
            self.running.remove(&number);
            self.report_end(number, end, usage);
        }
        self.start_waiting(now);
    }

    fn start_waiting(&mut self, now: Instant) {
        let mut free = self.processors;
        self.running.values().for_each(|entry| free = free.saturating_sub(entry.processors));
        while self.waiting.front().is_some_and(|task| task.processors.max(1) <= free) {
            let Some(task) = self.waiting.pop_front() else { return };
            free -= task.processors.max(1);
            let number = task.number;
            match self.start(task, now) {
                Ok(entry) => {
                    self.reports.push(PilotReport::Started { number });
                    self.running.insert(number, entry);
                }
                Err(error) => {
                    let reason = format!("could not be prepared: {error}");
                    let end = TaskEnd::Failed { exit: None, reason };
                    self.report_end(number, end, TaskUsage::default());
                }
            }
        }
    }

    fn start(&self, task: PilotTask, now: Instant) -> io::Result<TrackedTask> {
        let directory = Arc::new(self.node.create_task(task.number)?);
        let log = |stream, name| LogTail { stream, path: directory.own(name), file: None };
        let logs = [log(OutputStream::Stdout, STDOUT), log(OutputStream::Stderr, STDERR)];
        let (processors, memory_max) = (task.processors.max(1), task.memory_bytes);
        let limit_at = task.time_limit.and_then(|limit| now.checked_add(limit));
        let (node, stored) = (self.node.clone(), self.stored.clone());
        let (wake, ends) = (self.wake.clone(), self.ends.clone());
        let running = RunningTask::start(task, node, directory.clone(), stored, move || {
            ends.notify();
            wake();
        })?;
        let (_directory, memory_bytes, kill_at) = (directory, 0, None);
        Ok(TrackedTask {
            running,
            _directory,
            processors,
            memory_max,
            memory_bytes,
            limit_at,
            kill_at,
            logs,
        })
    }

    fn report_end(&mut self, number: u64, end: TaskEnd, usage: TaskUsage) {
        self.reports.push(PilotReport::Ended { number, end, usage });
    }

    /// Ends all tasks on this thread, because the node leaves or the pilot ends. Their ends are
    /// reported.
    pub(super) fn interrupt(&mut self) {
        for task in std::mem::take(&mut self.waiting) {
            self.report_end(task.number, TaskEnd::Interrupted, TaskUsage::default());
        }
        let begun = Instant::now();
        for entry in self.running.values_mut() {
            entry.end(EndCause::Interrupted, begun);
        }
        while !self.running.is_empty() && begun.elapsed() < GRACE + KILL_WAIT {
            self.step(Instant::now());
            // No more acknowledgements arrive.
            self.unacknowledged = 0;
            if !self.running.is_empty() {
                self.ends.wait(LOOK_INTERVAL);
            }
        }
    }
}

impl Drop for TaskSet {
    fn drop(&mut self) {
        self.running.values().for_each(|entry| {
            entry.running.end(EndCause::Interrupted);
            entry.running.kill();
        });
    }
}
