//! The interfaces that users implement: tasks and jobs; and batches of tasks.
//!
//! It knows nothing of threads, networks or actors.

use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::checkpoint::Checkpoint;
use super::context::Context;
use super::outcome::{InputError, Outcome, Stop};
use super::registry::Registry;
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
    fn register(registry: &mut Registry);

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

/// A list of tasks of one type that splits in halves, so that a thief gets half of the rest and not
/// one task.
#[derive(Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct Batch<T>(pub(crate) Vec<T>);

impl<T: Task> Task for Batch<T> {
    type Output = Vec<T::Output>;
    const NAME: &'static str = T::NAME;
    const BATCH: bool = true;

    fn run(mut self, cx: &Context) -> Result<Self::Output, Stop> {
        match self.0.len() {
            0 => Ok(Vec::new()),
            1 => Ok(vec![cx.call(self.0.remove(0))?]),
            2 => {
                let right = self.0.remove(1);
                let (left, right) = cx.join(self.0.remove(0), right)?;
                Ok(vec![left, right])
            }
            len => {
                let right = self.0.split_off(len / 2);
                let (mut left, right) = cx.join(self, Batch(right))?;
                left.extend(right);
                Ok(left)
            }
        }
    }

    fn needs(&self) -> Vec<ObjectNeed> {
        let mut needs: Vec<ObjectNeed> = self.0.iter().flat_map(Task::needs).collect();
        needs.sort();
        needs.dedup();
        needs
    }
}
