//! Fibonacci numbers by the slow recursion: the smallest divide-and-conquer program. Start here.
//!
//! New here: a *task* is a struct with a `run` method. The struct holds all that the task needs, so
//! that it can be sent to another node; the output of `run` is sent back. [`Context::join`] runs
//! two tasks and returns both outputs. Another thread of this node, or a node of another cluster,
//! may execute the second meanwhile; the program does not change. A *job* is what `springtide run`
//! starts: its fields are the options, `register` names its tasks, and its `run` is the root.
//!
//! Pass every [`Stop`] up with `?`: so a node can leave in the middle of the computation.

use clap::Args;
use serde::{Deserialize, Serialize};
use springtide_runtime::work::{Context, InputError, Job, Outcome, Registry, Stop, Task};

/// The job: `springtide run fib`.
#[derive(Args, Serialize, Deserialize, Clone, Debug)]
pub struct Fib {
    /// Index of the number to compute.
    #[arg(long, default_value_t = 43)]
    pub n: u32,
    /// Numbers up to this index are computed without making tasks.
    #[arg(long, default_value_t = 20)]
    pub grain: u32,
}

impl Job for Fib {
    const NAME: &'static str = "fib";
    const ABOUT: &'static str = "A Fibonacci number by the slow recursion: the smallest program";

    fn register(registry: &mut Registry) {
        registry.task::<Number>();
    }

    fn prepare(&mut self) -> Result<(), InputError> {
        InputError::check("--n", self.n, 0..=93, "larger numbers do not fit in 64 bits")?;
        InputError::check("--grain", self.grain, 1..=93, "fib(0) and fib(1) have no parts")
    }

    fn run(self, cx: &Context) -> Result<Outcome, Stop> {
        let fib = cx.call(Number { n: self.n, grain: self.grain })?;
        Ok(Outcome { checksum: fib, result: serde_json::json!({ "n": self.n, "fib": fib }) })
    }

    fn benchmark(&self) -> Option<Self> {
        Some(Fib { n: self.n.min(32), grain: self.grain })
    }
}

/// The task: the `n`-th Fibonacci number.
#[derive(Serialize, Deserialize)]
struct Number {
    n: u32,
    grain: u32,
}

impl Task for Number {
    type Output = u64;
    const NAME: &'static str = "fib.number";

    fn run(self, cx: &Context) -> Result<u64, Stop> {
        // A join costs a few nanoseconds, more than an addition. Below the grain, plain recursion
        // is faster.
        if self.n <= self.grain {
            return Ok(sequential(self.n));
        }
        let (a, b) = cx.join(
            Number { n: self.n - 1, grain: self.grain },
            Number { n: self.n - 2, grain: self.grain },
        )?;
        Ok(a + b)
    }

    /// The number of calls of the plain recursion. So a node's speed is in calls per second, and a
    /// working node needs no benchmark.
    fn cost(&self) -> Option<f64> {
        (self.n <= self.grain).then(|| {
            // fib(n + 1), by iteration.
            let (leaves, _) = (0..self.n).fold((1.0, 0.0), |(a, b): (f64, f64), _| (a + b, a));
            2.0 * leaves - 1.0
        })
    }
}

#[cfg(test)]
pub(crate) fn calls_declared(n: u32, grain: u32) -> Option<f64> {
    Number { n, grain }.cost()
}

fn sequential(n: u32) -> u64 {
    if n < 2 { n.into() } else { sequential(n - 1) + sequential(n - 2) }
}
