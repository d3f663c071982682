//! A master-worker job: in each iteration every task sums the values of its blocks at the last
//! iterate.
//!
//! Sums are of floating point numbers, so a sum in another order, or at another iterate, gives
//! another answer. Any method that evaluates a function in pieces and continues from the sum is
//! such a job.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use springtide_runtime::mw::{
    self, AssignmentSettings, Batch, BatchId, DispatchRule, Driver, Master, Program, TaskSpec,
};
use springtide_runtime::random::SplitMix;
use springtide_runtime::work::{Checkpoint, Context, Job, Outcome, Registry, Stop};

use crate::apps::{LeafPhase, Zeros, chain, hash};

/// Iterations of tasks that are sums.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Summed {
    /// The number of iterations.
    pub iterations: u32,
    /// The number of tasks of an iteration.
    pub tasks: u32,
    /// Iterations whose work lies in another number of tasks.
    pub then: Option<LeafPhase>,
    /// The number of blocks of a task.
    pub blocks: u32,
    /// Work of a block that is new to the worker, in microseconds; a unit is 1,000 microseconds.
    pub block_us: u64,
    /// Work of a block that the worker has done already, in percent of a new one.
    pub warm: u32,
    /// The number of iterations between two checkpoints of the master; 0: none.
    pub saves: u32,
    /// The master's own work before each iteration, in microseconds.
    pub serial_us: u64,
    /// Whether all workers get equal numbers of tasks: [`DispatchRule::Equal`].
    pub equal_split: bool,
    /// Whether the master's node has no worker: [`AssignmentSettings::isolate`].
    pub isolate: bool,
    /// Bytes that each worker gets in an iteration, besides its tasks.
    pub common_bytes: u32,
    /// Bytes of all results of an iteration.
    pub result_bytes: u32,
}

impl Summed {
    /// A small job for tests.
    pub const SMALL: Self = Self {
        iterations: 6,
        tasks: 24,
        then: None,
        blocks: 4,
        block_us: 100_000,
        warm: 100,
        saves: 1,
        serial_us: 0,
        equal_split: false,
        isolate: false,
        common_bytes: 0,
        result_bytes: 0,
    };

    fn tasks_in(&self, iteration: u32) -> u32 {
        let phase = self.then.filter(|then| (then.from..then.until).contains(&iteration));
        phase.map_or(self.tasks, |then| then.leaves).max(1)
    }

    /// Work of a new block in this iteration, in microseconds.
    fn block_us_in(&self, iteration: u32) -> u64 {
        self.block_us * u64::from(self.tasks) / u64::from(self.tasks_in(iteration))
    }

    fn block(iterate: f64, task: u32, block: u32) -> f64 {
        SplitMix(hash(task, block) ^ iterate.to_bits()).unit() / 3.0
    }

    fn next(iterate: f64, sums: impl Iterator<Item = f64>) -> f64 {
        (iterate + sums.sum::<f64>()).fract()
    }

    /// The work of the whole job, if no worker repeats a block.
    pub fn work(&self) -> Duration {
        let blocks = u64::from(self.iterations) * u64::from(self.tasks) * u64::from(self.blocks);
        Duration::from_micros(blocks * self.block_us)
    }

    /// The checksum that a run must have.
    pub fn answer(&self) -> u64 {
        let mut state = MasterState::start();
        for iteration in 0..self.iterations {
            let blocks = |task| (0..self.blocks).map(move |block| (task, block));
            let (iterate, tasks) = (state.iterate, 0..self.tasks_in(iteration));
            let sums = tasks.map(|task| {
                blocks(task).map(|(task, block)| Self::block(iterate, task, block)).sum()
            });
            state = state.then(Self::next(iterate, sums));
        }
        state.checksum
    }
}

/// The state of the master between iterations.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct MasterState {
    iteration: u32,
    iterate: f64,
    checksum: u64,
}

impl MasterState {
    fn start() -> Self {
        Self { iteration: 0, iterate: 0.5, checksum: 0 }
    }

    fn then(self, iterate: f64) -> Self {
        let (iteration, checksum) = (self.iteration + 1, chain(self.checksum, iterate.to_bits()));
        Self { iteration, iterate, checksum }
    }
}

/// What each worker gets in an iteration.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SumInput {
    iterate: f64,
    block_us: u64,
    zeros: Zeros,
}

/// The result of a block.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct BlockSum {
    sum: f64,
    zeros: Zeros,
}

/// The master's side of the job.
pub struct SumDriver {
    job: Summed,
    state: MasterState,
    batch: Option<BatchId>,
    sums: Vec<Option<f64>>,
}

impl SumDriver {
    fn submit(&mut self, master: &mut Master<'_, Summed>) -> Result<(), Stop> {
        let job = &self.job;
        master.cx().spend_modelled_time(Duration::from_micros(job.serial_us))?;
        let iteration = self.state.iteration;
        let tasks = job.tasks_in(iteration);
        self.sums = vec![None; tasks as usize];
        let block_us = job.block_us_in(iteration);
        let units = block_us as f64 / 1000.0 * f64::from(job.blocks);
        let spec = |id| TaskSpec { id, units, blocks: job.blocks, work: () };
        let tasks = (0..tasks).map(spec).collect();
        let iterate = self.state.iterate;
        let common = SumInput { iterate, block_us, zeros: Zeros(job.common_bytes) };
        self.batch = Some(master.submit(Batch { common, tasks })?);
        Ok(())
    }
}

impl Driver<Summed> for SumDriver {
    fn start(&mut self, master: &mut Master<'_, Summed>) -> Result<(), Stop> {
        let at = self.state.iteration;
        master.cx().report_text(format!("the master begins at iteration {at}"));
        if at < self.job.iterations { self.submit(master) } else { Ok(()) }
    }

    fn task_completed(
        &mut self,
        batch: BatchId,
        task: u32,
        outputs: Vec<BlockSum>,
        master: &mut Master<'_, Summed>,
    ) -> Result<(), Stop> {
        let sum = &mut self.sums[task as usize];
        if Some(batch) != self.batch || sum.is_some() {
            return Err(Stop::fail(format_args!(
                "task {task} ended twice, or belongs to no open batch"
            )));
        }
        *sum = Some(outputs.into_iter().map(|output| output.sum).sum());
        if self.sums.iter().any(Option::is_none) {
            return Ok(());
        }
        let sums = self.sums.iter().flatten().copied();
        self.state = self.state.then(Summed::next(self.state.iterate, sums));
        let cx = master.cx();
        cx.iteration_done();
        let workers = master.workers().len();
        cx.report_text(format!(
            "iteration {}, {workers} workers: {}",
            self.state.iteration,
            master.last_plan()
        ));
        if self.job.saves > 0 && self.state.iteration.is_multiple_of(self.job.saves) {
            master.checkpoint();
        }
        if self.state.iteration < self.job.iterations { self.submit(master) } else { Ok(()) }
    }

    fn outcome(&mut self) -> Option<Outcome> {
        let MasterState { iteration, checksum, .. } = self.state;
        let result = serde_json::Value::Null;
        (iteration >= self.job.iterations).then_some(Outcome { checksum, result })
    }

    fn state(&self) -> MasterState {
        self.state
    }
}

impl Program for Summed {
    const NAME: &'static str = "summed.worker";
    type Common = SumInput;
    type Work = ();
    type Output = BlockSum;
    type Worker = std::collections::BTreeSet<(u32, u32)>;
    type Driver = SumDriver;
    type State = MasterState;

    fn settings(&self) -> AssignmentSettings {
        let Self { isolate, equal_split, .. } = *self;
        // A unit is a millisecond. Histories kill nodes at random.
        let bench_units = self.block_us as f64 / 1000.0;
        let affinity = self.warm < 100;
        let dealing = if equal_split { DispatchRule::Equal } else { DispatchRule::Earliest };
        AssignmentSettings {
            isolate,
            dealing,
            bench_units,
            affinity,
            deaths: 0,
            ..AssignmentSettings::default()
        }
    }

    fn worker(&self, _: &Context) -> Result<Self::Worker, Stop> {
        Ok(Self::Worker::new())
    }

    fn driver(&self, saved: Option<MasterState>, _: &Context) -> Result<SumDriver, Stop> {
        let state = saved.unwrap_or_else(MasterState::start);
        Ok(SumDriver { job: self.clone(), state, batch: None, sums: Vec::new() })
    }

    fn execute(
        &self,
        done_blocks: &mut Self::Worker,
        input: &SumInput,
        task: u32,
        _: &(),
        block: u32,
        cx: &Context,
    ) -> Result<BlockSum, Stop> {
        let new = done_blocks.insert((task, block));
        let percent = if new { 100 } else { u64::from(self.warm) };
        cx.spend_modelled_time(Duration::from_micros(input.block_us * percent / 100))?;
        let zeros = Zeros(self.result_bytes / (self.tasks * self.blocks).max(1));
        Ok(BlockSum { sum: Self::block(input.iterate, task, block), zeros })
    }
}

impl Job for Summed {
    const NAME: &'static str = "summed";
    const ABOUT: &'static str = "a master that continues from the sums of its workers";

    fn register(registry: &mut Registry) {
        mw::register::<Self>(registry);
    }

    fn run(self, cx: &Context) -> Result<Outcome, Stop> {
        mw::run(self, cx)
    }

    fn resume(self, state: Checkpoint, cx: &Context) -> Result<Outcome, Stop> {
        mw::resume(self, state, cx)
    }
}
