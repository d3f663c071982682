//! The interface of a master-worker program.
//!
//! This module knows neither how workers are found nor how work reaches them.

use serde::{Serialize, de::DeserializeOwned};

use super::root::Master;
use crate::id::{ClusterId, NodeId};
use crate::work::{Context, Outcome, Stop};

/// A master-worker program: the data of workers and master, and the execution of a block.
///
/// The contract: the result of [`execute`](Program::execute) depends only on the batch's common
/// part, the task and the block. A block may be executed several times and by any worker, and its
/// first result counts. State that a worker keeps between tasks ([`Program::Worker`]) may make it
/// faster, but must not change its results.
pub trait Program: Clone + Serialize + DeserializeOwned + Send + Sync + 'static {
    /// The name of the workers in failures and logs, unique among the tasks of a program.
    const NAME: &'static str;

    /// The input that all tasks of a batch share. Each worker that gets one of them receives it
    /// once.
    type Common: Serialize + DeserializeOwned + Send + Sync + 'static;
    /// The input of one task.
    type Work: Serialize + DeserializeOwned + Send + Sync + 'static;
    /// The result of one block of a task.
    type Output: Serialize + DeserializeOwned + Send + 'static;
    /// The state that a worker keeps between tasks.
    type Worker;
    /// The master's side of the program.
    type Driver: Driver<Self>;
    /// The contents of the master's checkpoints.
    type State: Serialize + DeserializeOwned;

    /// How work is assigned. Called once, on the master's node.
    fn settings(&self) -> AssignmentSettings {
        AssignmentSettings::default()
    }

    /// Creates the state of a worker, on its thread.
    ///
    /// # Errors
    /// The program's own errors, which fail the job; or a halt.
    fn worker(&self, cx: &Context) -> Result<Self::Worker, Stop>;

    /// Creates the driver: a new one, or one that continues from an earlier master's checkpoint.
    ///
    /// # Errors
    /// The program's own errors, which fail the job; or a halt.
    fn driver(&self, saved: Option<Self::State>, cx: &Context) -> Result<Self::Driver, Stop>;

    /// Executes one block of a task: `task` is the driver's number of it, and `block` counts from
    /// 0.
    ///
    /// A node that leaves the job first completes its block, so a block should take seconds, not
    /// minutes.
    ///
    /// # Errors
    /// The program's own errors, which fail the job; or a halt: pass it up.
    fn execute(
        &self,
        worker: &mut Self::Worker,
        common: &Self::Common,
        task: u32,
        work: &Self::Work,
        block: u32,
        cx: &Context,
    ) -> Result<Self::Output, Stop>;
}

/// The master's side of a program: it submits batches of tasks and receives their results.
///
/// It runs on the thread of the job's root. Workers continue while it runs.
pub trait Driver<P: Program> {
    /// Submits the first work, including tasks that a checkpoint lists as not done.
    ///
    /// # Errors
    /// The program's own errors, which fail the job; or a halt.
    fn start(&mut self, master: &mut Master<'_, P>) -> Result<(), Stop>;

    /// Handles a completed task. `outputs` are the results of its blocks, in order.
    ///
    /// Tasks complete in any order, each once. A result that must not depend on the order combines
    /// the outputs by task number.
    ///
    /// # Errors
    /// As for [`Driver::start`].
    fn task_completed(
        &mut self,
        batch: BatchId,
        task: u32,
        outputs: Vec<P::Output>,
        master: &mut Master<'_, P>,
    ) -> Result<(), Stop>;

    /// Returns the outcome of the job once it is complete. Called after each call of the methods
    /// above.
    fn outcome(&mut self) -> Option<Outcome>;

    /// The state from which a new master continues, after a call of [`Master::checkpoint`].
    ///
    /// It contains no unfinished tasks: the new master submits those that it needs again.
    fn state(&self) -> P::State;
}

/// Identifies a submitted batch. Later batches have greater numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BatchId(pub(super) u64);

impl BatchId {
    /// The number of the batch; the first of a master has 1.
    pub fn number(self) -> u64 {
        self.0
    }
}

/// Tasks that are submitted and assigned together.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Batch<C, W> {
    /// The common input of the tasks.
    pub common: C,
    /// The tasks of the batch.
    pub tasks: Vec<TaskSpec<W>>,
}

/// A task of a batch.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TaskSpec<W> {
    /// The program's number of the task, unique within the batch.
    ///
    /// Tasks with one number in different batches are of one kind: a worker that executed one may
    /// be faster with the other.
    pub id: u32,
    /// The amount of work, in a unit of the program's choice: scenarios, cells, kilometres.
    pub units: f64,
    /// The number of equal parts into which it can be split, at least 1.
    pub blocks: u32,
    /// The input of the task.
    pub work: W,
}

/// The rule that assigns tasks to workers.
///
/// All but the first are baselines for comparisons: they use no speeds, split no tasks, reassign
/// nothing and execute nothing twice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DispatchRule {
    /// Assigns one task at a time to the worker with the earliest expected completion.
    #[default]
    Earliest,
    /// Assigns the same number of tasks to each worker at once, independent of its speed.
    Equal,
    /// Assigns the next task to the worker that has been idle longest, as a central queue does.
    Queue,
}

/// How work is assigned to workers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AssignmentSettings {
    /// Whether the master's node runs no worker while other nodes do, so that the master is never
    /// delayed by one. Default: false. (A node has only one job at a time.)
    pub isolate: bool,
    /// The units of the first work of a worker of unknown speed, as far as available. They
    /// measure its speed before it gets more. Default: 25.
    pub bench_units: f64,
    /// Whether a worker that executed a task before is expected to be faster with it, as measured.
    /// Default: true.
    pub affinity: bool,
    /// Whether an idle worker may repeat a block that another is late with. A worker whose
    /// measurement is older than a minute may also repeat a block that waits for another. The first
    /// result counts. Default: true.
    pub copies: bool,
    /// The rule that assigns tasks to workers. Default: [`DispatchRule::Earliest`].
    pub dealing: DispatchRule,
    /// The number of successive deaths of nodes after which a task fails the job; 0: never.
    /// Default: 3.
    pub deaths: u32,
}

impl Default for AssignmentSettings {
    fn default() -> Self {
        Self {
            isolate: false,
            bench_units: 25.0,
            affinity: true,
            copies: true,
            dealing: DispatchRule::Earliest,
            deaths: 3,
        }
    }
}

/// A worker as the master sees it.
#[derive(Clone, Debug, PartialEq)]
pub struct WorkerView {
    /// The number of the worker, never reused.
    pub id: u32,
    /// The node of the worker.
    pub node: NodeId,
    /// The cluster of the node.
    pub cluster: ClusterId,
    /// Seconds per unit for tasks that it did not execute before; none until measured.
    pub cold_s: Option<f64>,
    /// Seconds per unit for tasks that it executed before; none until measured.
    pub warm_s: Option<f64>,
    /// Units of work that it has not answered.
    pub waiting: f64,
    /// Whether its node is leaving, so it gets no more work.
    pub leaving: bool,
}
