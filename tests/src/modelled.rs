//! Jobs whose leaves take modelled time: the work is known in advance, and so is the efficiency.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use springtide_runtime::random::SplitMix;
use springtide_runtime::work::{Checkpoint, Context, Job, Outcome, Registry, Stop, Task};
use tokio::time::Instant;

/// `rounds` iterations of a binary tree of `leaves` leaves, each of 0.5 to 1.5 times `leaf_us`.
///
/// The length of a leaf is a hash of its number.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Modelled {
    /// The number of iterations.
    pub rounds: u32,
    /// The number of leaves of an iteration.
    pub leaves: u32,
    /// Mean length of a leaf, in microseconds.
    pub leaf_us: u64,
}

impl Modelled {
    /// The work of all leaves together.
    pub fn work(&self) -> Duration {
        let one: u64 = (0..self.leaves).map(|leaf| length_us(self.leaf_us, leaf)).sum();
        Duration::from_micros(one * u64::from(self.rounds))
    }

    /// The length of the longest leaf.
    pub fn longest(&self) -> Duration {
        let longest = (0..self.leaves).map(|leaf| length_us(self.leaf_us, leaf)).max();
        Duration::from_micros(longest.unwrap_or_default())
    }
}

/// A pseudo-random number from a seed.
pub fn hash(n: u32) -> u64 {
    SplitMix(n.into()).next()
}

/// Whole milliseconds, for tokio's clock rounds sleeps up to them.
fn length_us(mean_us: u64, leaf: u32) -> u64 {
    let us = mean_us / 2 + hash(leaf) % (mean_us + 1);
    us.div_ceil(1000) * 1000
}

#[derive(Serialize, Deserialize)]
struct Leaves {
    from: u32,
    to: u32,
    leaf_us: u64,
}

impl Task for Leaves {
    type Output = u64;
    const NAME: &'static str = "modelled.leaves";

    fn run(self, cx: &Context) -> Result<u64, Stop> {
        let Leaves { from, to, leaf_us } = self;
        if to - from <= 1 {
            cx.spend_modelled_time(Duration::from_micros(length_us(leaf_us, from)))?;
            return Ok(hash(from));
        }
        let middle = from + (to - from) / 2;
        let (a, b) =
            cx.join(Leaves { from, to: middle, leaf_us }, Leaves { from: middle, to, leaf_us })?;
        Ok(a.wrapping_mul(31).wrapping_add(b))
    }
}

impl Job for Modelled {
    const NAME: &'static str = "modelled";
    const ABOUT: &'static str = "leaves that take modelled time";

    fn register(registry: &mut Registry) {
        registry.task::<Leaves>();
    }

    fn run(self, cx: &Context) -> Result<Outcome, Stop> {
        self.run_from((0, 0), cx)
    }

    fn resume(self, state: Checkpoint, cx: &Context) -> Result<Outcome, Stop> {
        self.run_from(state.get()?, cx)
    }
}

impl Modelled {
    /// Runs the iterations from this one on, with the checksum of those before.
    fn run_from(self, (from, mut checksum): (u32, u64), cx: &Context) -> Result<Outcome, Stop> {
        for round in from..self.rounds {
            let sum = cx.call(Leaves { from: 0, to: self.leaves, leaf_us: self.leaf_us })?;
            checksum = checksum.wrapping_mul(7).wrapping_add(sum);
            cx.iteration_done();
            cx.checkpoint(&(round + 1, checksum))?;
        }
        Ok(Outcome { checksum, result: serde_json::Value::Null })
    }
}

/// `trees` trees of tasks that run their four parts in three steps, and consume the results of a
/// step before the next.
///
/// The leaves, 4 to the power of `depth`, are as those of [`Modelled`]. Each end of a task is
/// recorded.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Staged {
    /// The number of trees.
    pub trees: u32,
    /// The number of levels above the leaves.
    pub depth: u32,
    /// Mean length of a leaf, in microseconds.
    pub leaf_us: u64,
    /// A number that identifies the run in its process: see [`Staged::take_ended`].
    pub run: u64,
}

/// The durations of each task at each of its ends, by run, level and number.
static ENDED: Mutex<BTreeMap<(u64, u32, u32), Vec<Duration>>> = Mutex::new(BTreeMap::new());

impl Staged {
    /// The durations of each task of this run at each of its ends, by level (0: leaves) and number.
    pub fn take_ended(&self) -> BTreeMap<(u32, u32), Vec<Duration>> {
        let mut ended = ENDED.lock().unwrap_or_else(PoisonError::into_inner);
        let mut mine = ended.split_off(&(self.run, 0, 0));
        ended.append(&mut mine.split_off(&(self.run + 1, 0, 0)));
        mine.into_iter().map(|((_, level, number), times)| ((level, number), times)).collect()
    }
}

#[derive(Serialize, Deserialize)]
struct Stages {
    number: u32,
    depth: u32,
    leaf_us: u64,
    run: u64,
}

impl Stages {
    fn part(&self, part: u32) -> Self {
        Self { number: self.number * 4 + part, depth: self.depth - 1, ..*self }
    }
}

impl Task for Stages {
    type Output = u64;
    const NAME: &'static str = "modelled.stages";

    fn run(self, cx: &Context) -> Result<u64, Stop> {
        let began = Instant::now();
        let output = if self.depth == 0 {
            cx.spend_modelled_time(Duration::from_micros(length_us(self.leaf_us, self.number)))?;
            hash(self.number)
        } else {
            let first = cx.call(self.part(0))?;
            let (second, third) = cx.join(self.part(1), self.part(2))?;
            let last = cx.call(self.part(3))?;
            [first, second, third, last].iter().fold(1, |sum, x| x.wrapping_add(31 * (sum >> 5)))
        };
        let key = (self.run, self.depth, self.number);
        let mut ended = ENDED.lock().unwrap_or_else(PoisonError::into_inner);
        ended.entry(key).or_default().push(began.elapsed());
        Ok(output)
    }
}

impl Job for Staged {
    const NAME: &'static str = "staged";
    const ABOUT: &'static str = "tasks that consume results step by step";

    fn register(registry: &mut Registry) {
        registry.task::<Stages>();
    }

    fn run(self, cx: &Context) -> Result<Outcome, Stop> {
        let Staged { trees, depth, leaf_us, run } = self;
        let all = (0..trees).map(|number| Stages { number, depth, leaf_us, run });
        let outputs = cx.join_all(all)?;
        let checksum = outputs.iter().fold(0u64, |sum, x| sum.wrapping_mul(31).wrapping_add(*x));
        Ok(Outcome { checksum, result: serde_json::Value::Null })
    }
}
