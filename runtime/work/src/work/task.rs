//! The interfaces that users implement: tasks, jobs, and the ways in which they stop.
//!
//! It knows nothing of threads, networks or actors.

use std::fmt;
use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::checkpoint::Checkpoint;
use super::context::Context;
use crate::id::TaskPath;
use crate::processors::Processors;
use crate::share::ObjectNeed;

/// A unit of divide-and-conquer work: plain data with a `run`.
///
/// The contract: `run` is a pure function of the task and of the shared objects it declares in
/// [`Task::needs`]. When it runs again (after a crash, on another node) it creates the same
/// children in the same order and returns an equal output.
///
/// Grain: a join costs a few nanoseconds while work stays on its node. A stolen task
/// should hold at least 0.3 ms of work inside a cluster, and 0.5 s over a 50 ms wide-area link. The
/// overhead is then below 10 %. Tasks of any size between may be offered, since the oldest and so
/// largest are stolen first.
///
/// A lock held across [`Context::join`] can deadlock: the thread may run other tasks while it
/// waits.
pub trait Task: Serialize + DeserializeOwned + Send + 'static {
    /// The value that the task returns to its parent.
    type Output: Serialize + DeserializeOwned + Send + 'static;

    /// The registered name, unique among the tasks of a program and stable between versions that
    /// share a grid.
    const NAME: &'static str;

    /// Executes the task.
    ///
    /// # Errors
    /// [`Stop`] when the task is halted or fails; return it with `?`.
    fn run(self, cx: &Context) -> Result<Self::Output, Stop>;

    /// The shared objects that this task and its descendants read. A node starts it only when it
    /// has them.
    fn needs(&self) -> Vec<ObjectNeed> {
        Vec::new()
    }

    /// The work of this task's own [`Task::run`], in units of the program's choice, without its
    /// children. So a task that only splits has none.
    ///
    /// If tasks declare it, a node's speed is measured in units a second while it works, at no
    /// cost; otherwise by benchmarks.
    ///
    /// It need only be right on average, but by the same measure in the whole job. Units should be
    /// proportional to running time. Either all tasks that do much of the work declare them, or
    /// none.
    ///
    /// It is called once before the task runs, so it should take at most a few nanoseconds.
    /// Negative, infinite and NaN costs are not counted.
    fn cost(&self) -> Option<f64> {
        None
    }

    /// Whether this is a batch of equal tasks created by [`Context::join_all`].
    #[doc(hidden)]
    const BATCH: bool = false;

    /// Whether this is a process of an SPMD program (`crate::spmd`). It has no reusable result,
    /// ends when its group releases it, and is of no use to another root.
    #[doc(hidden)]
    const PROCESS: bool = false;
}

/// A program: the root of a tree of tasks, run once on one node of its job.
pub trait Job: Serialize + DeserializeOwned + Send + 'static {
    /// The job's name on the command line.
    const NAME: &'static str;
    /// A description in one line for the list of jobs.
    const ABOUT: &'static str;

    /// Registers the tasks and shared objects that the job uses.
    fn register(registry: &mut super::Registry);

    /// Checks options and loads input files into the job. Called once on the submitting side before
    /// the start.
    ///
    /// # Errors
    /// A message that names the option, or the file with line and column, and the remedy.
    fn prepare(&mut self) -> Result<(), InputError> {
        Ok(())
    }

    /// Whether the job decides on its number of processors. Only then [`Job::accept_growth`] and
    /// [`Job::accept_shrink`] are called. Each call decodes the job, however large it is.
    const NEGOTIATES: bool = false;

    /// The number of offered processors that the running job accepts; by default all.
    ///
    /// A pure function that the job's coordinator calls. The coordinator limits the answer to
    /// `offered` and to the job's own limits. `current` is what the job has. If it panics, the
    /// default applies. Where nodes have a fixed size, the job may get up to one node more.
    fn accept_growth(&self, current: Processors, offered: Processors) -> Processors {
        let _ = current;
        offered
    }

    /// The number of processors that the running job releases when `asked` for some; by default as
    /// many. A pure function, as [`Job::accept_growth`].
    ///
    /// It may return more, if the job could not use the rest. The scheduler decides on an answer
    /// below the request.
    fn accept_shrink(&self, current: Processors, asked: Processors) -> Processors {
        let _ = current;
        asked
    }

    /// A small problem of the same kind, which measures a node's speed for this job.
    ///
    /// It should take some 5 to 50 ms on one thread and be the same on every node. It must have the
    /// options on which speed depends (precision, model). Its reports are discarded. If a job has
    /// none, a sample of its own tasks is used.
    ///
    /// Called after [`Job::prepare`]; `prepare` is not called on the returned job.
    fn benchmark(&self) -> Option<Self> {
        None
    }

    /// Runs the job's root.
    ///
    /// # Errors
    /// As [`Task::run`].
    fn run(self, cx: &Context) -> Result<Outcome, Stop>;

    /// Runs the job's root from a state that an earlier root saved with [`Context::checkpoint`].
    ///
    /// The earlier root ran on another node, or in another incarnation of this one. By default the
    /// job runs from its start and ignores the state.
    ///
    /// The contract: the outcome equals that of an uninterrupted run, and so do all reports after
    /// the checkpoint. Reports that the earlier root made after the checkpoint are repeated and
    /// should be the same (an artefact replaces the earlier one of its name).
    ///
    /// The indices of children continue from the checkpoint. Create the same children in the same
    /// order as `run` does after that point. Then each has its original path, and its results on
    /// other nodes are found and reused. Create none to restore the state: what they would compute
    /// belongs into it.
    ///
    /// Publish again all shared objects that later tasks read, since the earlier root's versions
    /// belong to an older epoch. A version that was saved in the state is invalid. Values of merged
    /// objects may be lost, too; merge again what the outcome depends on.
    ///
    /// # Errors
    /// As [`Job::run`], or if the state has another type ([`Checkpoint::get`] reports it).
    fn resume(self, state: Checkpoint, cx: &Context) -> Result<Outcome, Stop> {
        drop(state);
        // A run from the start uses the indices from the start.
        cx.number_from(0);
        self.run(cx)
    }
}

/// The result of a job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// A checksum of the results, independent of stealing; shown as 16 hex digits.
    pub checksum: u64,
    /// The job's own result object, shown under `result` by `--json`.
    pub result: serde_json::Value,
}

/// An error in a job's options or input files.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct InputError {
    /// The error, its place and the remedy.
    pub message: String,
}

impl InputError {
    /// Creates an input error with this message.
    pub fn new(message: impl fmt::Display) -> Self {
        Self { message: message.to_string() }
    }

    /// Rejects an option's value outside of `range`, with the reason `why` for the limits. For
    /// [`Job::prepare`].
    pub fn check<T: PartialOrd + fmt::Debug>(
        option: &str,
        value: T,
        range: RangeInclusive<T>,
        why: &str,
    ) -> Result<(), Self> {
        if range.contains(&value) {
            return Ok(());
        }
        let (low, high) = range.into_inner();
        Err(Self::new(format!("{option} {value:?}: give a value from {low:?} to {high:?} ({why})")))
    }
}

/// The reason why a task ends without an output: a halt or a failure.
///
/// It is opaque. The runtime halts the work (the node leaves, the job is cancelled, the owner is
/// lost), or the user's code failed. Any error converts to it by `?`.
///
/// The result of a halted context is discarded, so a swallowed halt cannot produce a wrong answer.
pub struct Stop(pub(crate) Box<StopCause>);

#[derive(Debug)]
pub(crate) enum StopCause {
    /// The runtime halts this work.
    Halt(Halt),
    /// The user's code failed.
    Failed(Failure),
}

/// The reason why the runtime halts work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Halt {
    /// The job ended or was cancelled, or another of its tasks failed.
    Cancelled,
    /// The node leaves; the work continues on another node.
    Leave,
    /// The node that owned the result is lost or no longer needs it.
    OwnerLost,
}

/// The failure of a task, and the job's error.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{}", describe(.name, .path, .message, *.panicked, *.exit))]
pub struct Failure {
    /// The failing task's name, empty if unknown.
    pub name: String,
    /// The path of the failing task.
    pub path: TaskPath,
    /// The error's text with its causes, or the panic's message.
    pub message: String,
    /// Whether the task panicked.
    pub panicked: bool,
    /// Whether `name` and `path` already identify the failing task.
    pub(crate) located: bool,
    /// The exit code of the job's command, if a process of it caused the failure. It is the last
    /// field, since compact frames have no names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit: Option<u8>,
}

/// Describes a failure. That of a command names its program, and no task.
fn describe(
    name: &str,
    path: &TaskPath,
    message: &str,
    panicked: bool,
    exit: Option<u8>,
) -> String {
    match exit {
        Some(_) => message.to_owned(),
        None if panicked => format!("task {name} at {path} panicked: {message}"),
        None => format!("task {name} at {path} failed: {message}"),
    }
}

impl Stop {
    /// Fails the job with this message and the current task's path.
    pub fn fail(message: impl fmt::Display) -> Self {
        Self::failed(message.to_string(), false)
    }

    pub(crate) fn failed(message: String, panicked: bool) -> Self {
        Self(Box::new(StopCause::Failed(Failure {
            name: String::new(),
            path: TaskPath::root(),
            message,
            panicked,
            exit: None,
            located: false,
        })))
    }

    /// Fails the job with this message, and this exit code of its command if there is one.
    pub(crate) fn fail_with_exit(message: String, exit: Option<u8>) -> Self {
        let mut stop = Self::failed(message, false);
        if let StopCause::Failed(failure) = &mut *stop.0 {
            failure.exit = exit;
        }
        stop
    }

    /// The message of a failure; a halt means that the node leaves the work.
    pub(crate) fn text(&self) -> String {
        match &*self.0 {
            StopCause::Halt(halt) => format!("the work is halted: {halt:?}"),
            StopCause::Failed(failure) => failure.message.clone(),
        }
    }

    pub(crate) fn failure(failure: Failure) -> Self {
        Self(Box::new(StopCause::Failed(failure)))
    }

    /// Puts the place before a failure's message; leaves a halt unchanged.
    pub(crate) fn within(mut self, place: impl fmt::Display) -> Self {
        if let StopCause::Failed(failure) = &mut *self.0 {
            failure.message = format!("{place}: {}", failure.message);
        }
        self
    }

    pub(crate) fn halt(halt: Halt) -> Self {
        Self(Box::new(StopCause::Halt(halt)))
    }
}

/// Converts any error to a failure of the job, with the text of its causes. `Stop` itself is no
/// `Error`, which makes this possible.
impl<E: std::error::Error> From<E> for Stop {
    #[cold]
    fn from(error: E) -> Self {
        Self::failed(error_text(&error), false)
    }
}

impl fmt::Debug for Stop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.0 {
            StopCause::Halt(halt) => write!(f, "Stop(halt: {halt:?})"),
            StopCause::Failed(failure) => write!(f, "Stop({failure})"),
        }
    }
}

/// The error and its causes in one line.
pub(crate) fn error_text(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}
