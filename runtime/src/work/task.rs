//! What users write: tasks, jobs, and how they stop.
//!
//! Knows nothing of threads, networks or actors.

use std::fmt;
use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::checkpoint::Checkpoint;
use super::context::Context;
use super::registry::Sizes;
use crate::id::TaskPath;
use crate::share::Need;

/// A unit of divide-and-conquer work: plain data with a `run`.
///
/// The contract: `run` is a pure function of the task and of the shared objects it declares in [`Task::needs`]; run again
/// (after a crash, on another node) it makes the same children in the same order and returns an equal output.
///
/// Grain: a join costs a few nanoseconds while work stays on its node. A task stolen by another node should hold at least
/// 0.3 ms of work inside a cluster and 0.5 s over a 50 ms wide-area link for under 10 % overhead; tasks of any size between
/// may be offered, for the oldest and so largest are stolen first.
///
/// A lock held across [`Context::join`] can deadlock: the thread may run other tasks while it waits.
pub trait Task: Serialize + DeserializeOwned + Send + 'static {
    /// What it returns to its parent.
    type Output: Serialize + DeserializeOwned + Send + 'static;

    /// Its registered name, unique among the tasks of a program and stable between versions that share a grid.
    const NAME: &'static str;

    /// Does the work.
    ///
    /// # Errors
    /// [`Stop`] when told to stop or when the work failed; pass it up with `?`.
    fn run(self, cx: &Context) -> Result<Self::Output, Stop>;

    /// The shared objects this task and all below it read. It is not started on a node before they are there.
    fn needs(&self) -> Vec<Need> {
        Vec::new()
    }

    /// How much work its own [`Task::run`] is, in units of the program's choice, without that of the children it makes; so a
    /// task that only splits has none. Where tasks declare it, a node's speed is measured in units a second while it works,
    /// at no cost; where they do not, by benchmarks.
    ///
    /// It need be right on average only, but by the same measure all over the job: units should be proportional to running
    /// time, and either all tasks that do much of the work declare them or none. Asked once before the task runs, so it should
    /// take no more than a few nanoseconds. Negative and infinite costs and those that are no number are not counted.
    fn cost(&self) -> Option<f64> {
        None
    }

    /// Whether this is a run of equal tasks made by [`Context::join_all`].
    #[doc(hidden)]
    const BATCH: bool = false;

    /// Whether this is a process of an SPMD program (`crate::spmd`): it has no result that others could use, ends when its
    /// group lets it go, and is of no use to another root.
    #[doc(hidden)]
    const PROCESS: bool = false;
}

/// A program: the root of a tree of tasks, run once on one node of its job.
pub trait Job: Serialize + DeserializeOwned + Send + 'static {
    /// Its name on the command line.
    const NAME: &'static str;
    /// One line for the list of jobs.
    const ABOUT: &'static str;

    /// Names the tasks and shared objects that the job uses.
    fn register(registry: &mut super::Registry);

    /// Called once on the submitting side before anything starts: checks options and loads input files into the job.
    ///
    /// # Errors
    /// A message that names the option or the file, line and column, and how to mend it.
    fn prepare(&mut self) -> Result<(), InputError> {
        Ok(())
    }

    /// Whether the job has something to say of its number of nodes: only then [`Job::accept_growth`] and
    /// [`Job::accept_shrink`] are asked, for which the job is decoded each time, however large it is.
    const NEGOTIATES: bool = false;

    /// How many of the nodes that are offered to the running job it takes: a pure function, asked by the job's coordinator, which
    /// holds the answer to `offered` and to the job's own limits. `current` is what it has; how many threads nodes have that are
    /// offered is known by those that it has of the same cluster, if any. By default all: nothing of the job's own is against
    /// it. If it panics, that is its answer, too.
    fn accept_growth(&self, current: Sizes, offered: Sizes) -> u32 {
        let _ = current;
        offered.nodes
    }

    /// How many nodes the running job gives up when so many are asked for: a pure function, as [`Job::accept_growth`]. It may be
    /// more, where the job could not use what would be left; what is less is for who asks to judge. By default as many.
    fn accept_shrink(&self, current: Sizes, asked: Sizes) -> u32 {
        let _ = current;
        asked.nodes
    }

    /// A small problem of the same kind, to measure by it how fast a node is for this job: some 5 to 50 ms on one thread, the
    /// same on every node, with the options on which speed depends (precision, model). What it reports goes nowhere. Where a
    /// job has none, a sample of its own tasks is used.
    ///
    /// Called on a job that [`Job::prepare`] has seen; `prepare` is not called on what it returns.
    fn benchmark(&self) -> Option<Self> {
        None
    }

    /// Runs the job's root.
    ///
    /// # Errors
    /// As [`Task::run`].
    fn run(self, cx: &Context) -> Result<Outcome, Stop>;

    /// Runs the job's root from a state that an earlier root left behind by [`Context::checkpoint`], on another node,
    /// or in another life of it. By default the job runs from its start, and the state is of no use.
    ///
    /// The contract: the outcome is that of a run without a break, and so is all that is reported after the checkpoint;
    /// what the earlier root reported between the checkpoint and its end is reported again, and should be the same (an
    /// artefact takes the place of the earlier one of its name).
    ///
    /// The children made here are numbered on from where the earlier root was at the checkpoint. So as long as the same
    /// children are made in the same order as `run` makes them after that point, each has the path it would have had,
    /// and results of it that other nodes keep are found and used again. Make none to get back to the state: what they
    /// would compute belongs into it.
    ///
    /// Shared objects have to be published anew, all that the tasks to come will read, for the earlier root's versions
    /// are of an older epoch: a version that was saved in the state names nothing here. Values of merged objects may be
    /// lost, too; merge again what the outcome depends on.
    ///
    /// # Errors
    /// As [`Job::run`], or if the state is none of this job's ([`Checkpoint::get`] says so).
    fn resume(self, state: Checkpoint, cx: &Context) -> Result<Outcome, Stop> {
        drop(state);
        // From its start, so with the numbers of its start.
        cx.number_from(0);
        self.run(cx)
    }
}

/// What a job ends with.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// Equal for equal results, whatever was stolen; shown as 16 hex digits.
    pub checksum: u64,
    /// The job's own result object, shown under `result` by `--json`.
    pub result: serde_json::Value,
}

/// A job's options or input files are wrong.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct InputError {
    /// What is wrong, where, and how to mend it.
    pub message: String,
}

impl InputError {
    /// An input error with this message.
    pub fn new(message: impl fmt::Display) -> Self {
        Self { message: message.to_string() }
    }

    /// Refuses an option's value outside of `range`, saying `why` it ends there: for [`Job::prepare`].
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

/// Why a task ends without an output. Opaque: either the runtime halts the work (the node leaves, the job is cancelled, the
/// owner is lost) or the user's code failed. Any error turns into it by `?`.
///
/// Once a context has been halted its result is discarded whatever `run` returns, so a swallowed halt cannot become an
/// answer.
pub struct Stop(pub(crate) Box<Cause>);

#[derive(Debug)]
pub(crate) enum Cause {
    /// The runtime halts this work.
    Halt(Halt),
    /// The user's code failed.
    Failed(Failure),
}

/// Why the runtime halts work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Halt {
    /// The job ended or was cancelled, or another of its tasks failed.
    Cancelled,
    /// The node leaves; the work goes on elsewhere.
    Leave,
    /// The node that owned the result is lost or no longer wants it.
    OwnerLost,
}

/// A task failed: the job's error.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("task {name} at {path} {}: {message}", if *.panicked { "panicked" } else { "failed" })]
pub struct Failure {
    /// The failing task's name, empty where not known.
    pub name: String,
    /// The failing task.
    pub path: TaskPath,
    /// The error's text with its causes, or the panic's message.
    pub message: String,
    /// Whether it was a panic.
    pub panicked: bool,
    /// Whether `name` and `path` are already those of the failing task.
    pub(crate) located: bool,
}

impl Stop {
    /// Fails the job with this message and the current task's path.
    pub fn fail(message: impl fmt::Display) -> Self {
        Self::failed(message.to_string(), false)
    }

    pub(crate) fn failed(message: String, panicked: bool) -> Self {
        Self(Box::new(Cause::Failed(Failure {
            name: String::new(),
            path: TaskPath::root(),
            message,
            panicked,
            located: false,
        })))
    }

    pub(crate) fn failure(failure: Failure) -> Self {
        Self(Box::new(Cause::Failed(failure)))
    }

    /// A failure says where it happened, before its message; a halt is what it is.
    pub(crate) fn within(mut self, place: impl fmt::Display) -> Self {
        if let Cause::Failed(failure) = &mut *self.0 {
            failure.message = format!("{place}: {}", failure.message);
        }
        self
    }

    pub(crate) fn halt(halt: Halt) -> Self {
        Self(Box::new(Cause::Halt(halt)))
    }
}

/// Any error fails the job, with the text of its causes. (`Stop` itself is no `Error`, so that this is possible.)
impl<E: std::error::Error> From<E> for Stop {
    #[cold]
    fn from(error: E) -> Self {
        Self::failed(error_text(&error), false)
    }
}

impl fmt::Debug for Stop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.0 {
            Cause::Halt(halt) => write!(f, "Stop(halt: {halt:?})"),
            Cause::Failed(failure) => write!(f, "Stop({failure})"),
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
