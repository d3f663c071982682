//! What the developer of a master-worker program writes.
//!
//! Must not know how workers are found, nor how work reaches them.

use serde::{Serialize, de::DeserializeOwned};

use super::root::Master;
use crate::id::{ClusterId, NodeId};
use crate::work::{Context, Outcome, Stop};

/// A master-worker program: what workers and master need to begin, and what a worker does.
///
/// The contract: what [`execute`](Program::execute) returns is a function of the batch's common part, the task and the block alone,
/// whichever worker does it, and however often. Workers come and go, a block may be done twice, and whose result comes first is the
/// one that counts. So what a worker keeps from one task to the next ([`Program::Worker`]) may make it faster, but must not change what
/// it finds.
pub trait Program: Clone + Serialize + DeserializeOwned + Send + Sync + 'static {
    /// Its workers' name in failures and logs, unique among the tasks of a program.
    const NAME: &'static str;

    /// What all tasks of a batch share: sent once to each worker that gets any of them.
    type Common: Serialize + DeserializeOwned + Send + Sync + 'static;
    /// What one task is told besides.
    type Work: Serialize + DeserializeOwned + Send + Sync + 'static;
    /// What comes of one block of a task.
    type Output: Serialize + DeserializeOwned + Send + 'static;
    /// What a worker keeps while it lives.
    type Worker;
    /// The master's side.
    type Driver: Driver<Self>;
    /// What a checkpoint of the master holds.
    type State: Serialize + DeserializeOwned;

    /// How work is given out. Asked once, on the master's node.
    fn settings(&self) -> Settings {
        Settings::default()
    }

    /// A worker begins, on its thread.
    ///
    /// # Errors
    /// The program's own, which fail the job; or a halt.
    fn worker(&self, cx: &Context) -> Result<Self::Worker, Stop>;

    /// The master begins: anew, or from what an earlier one left at a checkpoint.
    ///
    /// # Errors
    /// The program's own, which fail the job; or a halt.
    fn driver(&self, saved: Option<Self::State>, cx: &Context) -> Result<Self::Driver, Stop>;

    /// Does one block of a task: `task` is the number that the driver gave it, `block` counts from 0. A node that is to leave leaves
    /// after the block that it does, so one should take seconds and no minutes.
    ///
    /// # Errors
    /// The program's own, which fail the job; or a halt: pass it up.
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

/// The master's side of a program: it submits batches of tasks and takes what comes of them, on the thread of the job's root. While
/// its code runs, workers go on with what they have.
pub trait Driver<P: Program> {
    /// Submits the first work: also that of which a checkpoint says that it was not done.
    ///
    /// # Errors
    /// The program's own, which fail the job; or a halt.
    fn begin(&mut self, master: &mut Master<'_, P>) -> Result<(), Stop>;

    /// A task is done: what came of its blocks, in their order. Tasks are done in any order, each once; so what is to be the same in
    /// each run adds them up by their numbers.
    ///
    /// # Errors
    /// As [`Driver::begin`].
    fn done(
        &mut self,
        batch: BatchId,
        task: u32,
        outputs: Vec<P::Output>,
        master: &mut Master<'_, P>,
    ) -> Result<(), Stop>;

    /// The end of the job, once there is one. Asked after each of the calls above.
    fn outcome(&mut self) -> Option<Outcome>;

    /// What a new master is to begin from: asked after a call in which it said [`Master::checkpoint`]. Tasks that are not done then
    /// are not part of it: what the new one needs of them it submits again.
    fn state(&self) -> P::State;
}

/// Names a batch that was submitted: each by a number of its own, the later the higher.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BatchId(pub(super) u64);

impl BatchId {
    /// The number: the first batch of a master has 1.
    pub fn number(self) -> u64 {
        self.0
    }
}

/// Tasks that are submitted together, and given out together.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Batch<C, W> {
    /// What they share.
    pub common: C,
    /// The tasks.
    pub tasks: Vec<TaskSpec<W>>,
}

/// A task.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TaskSpec<W> {
    /// What it is: a task of another batch with this number is of the same kind, and a worker that did one may be faster with the
    /// other. Each number once in a batch.
    pub id: u32,
    /// How much work it is, in units of the program's choice: scenarios, cells, kilometres.
    pub units: f64,
    /// Into how many equal parts it can be split, at least 1.
    pub blocks: u32,
    /// What it is told.
    pub work: W,
}

/// By which rule tasks go to workers. All but the first are baselines to compare with: they know no speeds, split no task, take back
/// nothing and do nothing twice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Dealing {
    /// One task at a time to the worker with the earliest expected completion, by measured speeds.
    #[default]
    Earliest,
    /// Each worker gets as many tasks as any other at once, as if all were equally fast.
    Equal,
    /// Whoever has nothing to do gets the next task, who has waited longest first: as masters do that keep a queue.
    Queue,
}

/// How work is given out.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// No worker computes on the master's node while others are there, so that the master is never late for them. (Another job never
    /// does: a node has one job at a time.) False.
    pub isolate: bool,
    /// A worker whose speed is not known is first given work of so many units, where there is as much; by that its speed is measured
    /// before it gets more. 25.
    pub bench_units: f64,
    /// A worker that did a task before is taken to be as fast with it as it has been with such. True.
    pub affinity: bool,
    /// Who has nothing to do may do once more what another is late with: what comes first counts. True.
    pub copies: bool,
    /// By which rule tasks go to workers. [`Dealing::Earliest`].
    pub dealing: Dealing,
    /// A task that so many workers' nodes died of, one after the other, fails the job by its name; 0: none does. 3.
    pub deaths: u32,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            isolate: false,
            bench_units: 25.0,
            affinity: true,
            copies: true,
            dealing: Dealing::Earliest,
            deaths: 3,
        }
    }
}

/// A worker as the master sees it.
#[derive(Clone, Debug, PartialEq)]
pub struct WorkerView {
    /// Its number, each its own.
    pub id: u32,
    /// Its node.
    pub node: NodeId,
    /// The node's cluster.
    pub cluster: ClusterId,
    /// Seconds that a unit takes it, of tasks that it did not do before; absent until that was measured.
    pub cold_s: Option<f64>,
    /// The same, of tasks that it did before.
    pub warm_s: Option<f64>,
    /// Units that it has and has not answered.
    pub waiting: f64,
    /// Its node is to leave, so it gets no more.
    pub leaving: bool,
}
