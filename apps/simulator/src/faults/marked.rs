//! A job whose root gives its tasks other arguments at each start.
//!
//! A result of another root's task lies at the same place in the tree; if it is taken for this
//! root's, the answer is wrong. A search whose root passes the best solution so far to its tasks is
//! such a job.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use springtide_runtime::random::SplitMix;
use springtide_runtime::share::Versioned;
use springtide_runtime::work::{Checkpoint, Context, Job, Outcome, Registry, Stop, Task};

use crate::apps::{chain, hash};

/// Iterations of a balanced tree of leaves.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Marked {
    /// The number of iterations.
    pub rounds: u32,
    /// The number of leaves of an iteration.
    pub leaves: u32,
    /// Mean work of a leaf, in microseconds.
    pub leaf_us: u64,
    /// Whether the root leaves checkpoints.
    pub saves: bool,
}

/// A value that a leaf returns with its number; it differs for every mark.
fn marked(mark: u64, round: u32, leaf: u32) -> u64 {
    SplitMix(mark.rotate_left(40) ^ hash(round, leaf)).next()
}

impl Marked {
    fn leaf_us(&self, round: u32, leaf: u32) -> u64 {
        self.leaf_us / 2 + hash(leaf, round) % (self.leaf_us + 1)
    }

    /// The work of the whole job.
    pub fn work(&self) -> Duration {
        let leaves =
            (0..self.rounds).flat_map(|round| (0..self.leaves).map(move |leaf| (round, leaf)));
        Duration::from_micros(leaves.map(|(round, leaf)| self.leaf_us(round, leaf)).sum())
    }

    /// The checksum that a run must have.
    pub fn answer(&self) -> u64 {
        (0..self.rounds).fold(0, |sum, round| {
            let all = (0..self.leaves).map(|leaf| hash(round, leaf));
            chain(sum, all.fold(0, u64::wrapping_add))
        })
    }

    fn run_from(self, (from, mut checksum): (u32, u64), cx: &Context) -> Result<Outcome, Stop> {
        // Each root has its own epoch. No task needs the object, so that tasks of two roots differ
        // in their arguments alone.
        let mark = u64::from(cx.put(0, MarkObject)?.epoch.0);
        for round in from..self.rounds {
            let all = MarkedLeaves { job: self.clone(), mark, round, from: 0, to: self.leaves };
            let (sum, found) = cx.call(all)?;
            let marks = (0..self.leaves).map(|leaf| marked(mark, round, leaf));
            let expected = marks.fold(0, u64::wrapping_add);
            // The marks of another root's results do not cancel out.
            let sum = sum.wrapping_add(found).wrapping_sub(expected);
            checksum = chain(checksum, sum);
            cx.iteration_done();
            if self.saves {
                cx.checkpoint(&(round + 1, checksum))?;
            }
        }
        Ok(Outcome { checksum, result: serde_json::Value::Null })
    }
}

#[derive(Debug, Serialize, Deserialize)]
struct MarkObject;

impl Versioned for MarkObject {
    const NAME: &'static str = "marked.mark";
    type Delta = ();

    fn apply(&self, (): ()) -> Self {
        Self
    }
}

#[derive(Serialize, Deserialize)]
struct MarkedLeaves {
    job: Marked,
    mark: u64,
    round: u32,
    from: u32,
    to: u32,
}

impl Task for MarkedLeaves {
    type Output = (u64, u64);
    const NAME: &'static str = "marked.leaves";

    fn run(self, cx: &Context) -> Result<Self::Output, Stop> {
        let Self { job, mark, round, from, to } = self;
        if to - from <= 1 {
            cx.spend_modelled_time(Duration::from_micros(job.leaf_us(round, from)))?;
            return Ok((hash(round, from), marked(mark, round, from)));
        }
        let middle = from + (to - from) / 2;
        let left = Self { job: job.clone(), mark, round, from, to: middle };
        let ((a, b), (c, d)) = cx.join(left, Self { job, mark, round, from: middle, to })?;
        Ok((a.wrapping_add(c), b.wrapping_add(d)))
    }
}

impl Job for Marked {
    const NAME: &'static str = "marked";
    const ABOUT: &'static str =
        "a tree of tasks whose arguments differ each time the root is started";

    fn register(registry: &mut Registry) {
        registry.task::<MarkedLeaves>().versioned::<MarkObject>();
    }

    fn run(self, cx: &Context) -> Result<Outcome, Stop> {
        self.run_from((0, 0), cx)
    }

    fn resume(self, state: Checkpoint, cx: &Context) -> Result<Outcome, Stop> {
        self.run_from(state.get()?, cx)
    }
}
