//! A master-worker program: a master distributes ranges of numbers, and workers count the primes in
//! them.
//!
//! ```text
//! cargo run --release -p springtide --example workers -- run count --below 3000000 --clusters 2x2
//! ```
//!
//! A task has blocks, so that the runtime can split it over workers. The result of a block depends
//! on the block alone, and the master sums by the tasks' numbers. So the result is the
//! same when workers join, leave or fail.

use std::process::ExitCode;

use clap::Args;
use serde::{Deserialize, Serialize};
use springtide_runtime::mw::{self, Batch, BatchId, Driver, Master, Program, TaskSpec};
use springtide_runtime::work::{Checkpoint, Context, InputError, Job, Outcome, Registry, Stop};

/// The job. Its fields are the options.
#[derive(Args, Serialize, Deserialize, Clone)]
struct Count {
    /// Upper limit of the numbers
    #[arg(long, default_value_t = 1_000_000)]
    below: u64,
    /// Number of tasks
    #[arg(long, default_value_t = 20)]
    tasks: u32,
}

/// The number of blocks of each task.
const BLOCKS: u32 = 8;

impl Job for Count {
    const NAME: &'static str = "count";
    const ABOUT: &'static str = "Primes, counted by master and workers";

    fn register(registry: &mut Registry) {
        mw::register::<Self>(registry);
    }

    fn prepare(&mut self) -> Result<(), InputError> {
        InputError::check("--tasks", self.tasks, 1..=10_000, "each needs a message")
    }

    fn run(self, cx: &Context) -> Result<Outcome, Stop> {
        mw::run(self, cx)
    }

    fn resume(self, state: Checkpoint, cx: &Context) -> Result<Outcome, Stop> {
        mw::resume(self, state, cx)
    }
}

impl Program for Count {
    const NAME: &'static str = "count.worker";
    type Common = ();
    type Work = ();
    type Output = u64;
    type Worker = ();
    type Driver = Counting;
    type State = Vec<Option<u64>>;

    fn worker(&self, _: &Context) -> Result<(), Stop> {
        Ok(())
    }

    fn driver(&self, saved: Option<Self::State>, _: &Context) -> Result<Counting, Stop> {
        let found = saved.unwrap_or_else(|| vec![None; self.tasks as usize]);
        Ok(Counting { job: self.clone(), found })
    }

    /// Executes one block of a task.
    fn execute(
        &self,
        _: &mut (),
        _: &(),
        task: u32,
        _: &(),
        block: u32,
        cx: &Context,
    ) -> Result<u64, Stop> {
        cx.check()?;
        let parts = u64::from(self.tasks * BLOCKS);
        let part = u64::from(task * BLOCKS + block);
        let range = self.below * part / parts..self.below * (part + 1) / parts;
        Ok(range.filter(|&n| is_prime(n)).count() as u64)
    }
}

/// The master's side.
struct Counting {
    job: Count,
    /// Results by task, of completed tasks.
    found: Vec<Option<u64>>,
}

impl Driver<Count> for Counting {
    /// Submits all tasks; after a loss of the master, those that the checkpoint does not list as
    /// done.
    fn start(&mut self, master: &mut Master<'_, Count>) -> Result<(), Stop> {
        let units = self.job.below as f64 / f64::from(self.job.tasks * BLOCKS);
        let open = (0..self.job.tasks).filter(|&task| self.found[task as usize].is_none());
        let tasks = open.map(|id| TaskSpec { id, units, blocks: BLOCKS, work: () }).collect();
        master.submit(Batch { common: (), tasks }).map(drop)
    }

    fn task_completed(
        &mut self,
        _: BatchId,
        task: u32,
        outputs: Vec<u64>,
        master: &mut Master<'_, Count>,
    ) -> Result<(), Stop> {
        self.found[task as usize] = Some(outputs.iter().sum());
        master.checkpoint();
        Ok(())
    }

    fn outcome(&mut self) -> Option<Outcome> {
        let all: Option<Vec<u64>> = self.found.iter().copied().collect();
        let primes: u64 = all?.iter().sum();
        Some(Outcome { checksum: primes, result: serde_json::json!({ "primes": primes }) })
    }

    fn state(&self) -> Vec<Option<u64>> {
        self.found.clone()
    }
}

fn is_prime(n: u64) -> bool {
    n > 1 && (2..).take_while(|d| d * d <= n).all(|d| !n.is_multiple_of(d))
}

fn main() -> ExitCode {
    springtide::App::new("workers", "1.0").job::<Count>().main()
}
