//! Iterations of a balanced tree of tasks whose leaves take declared time: the shape of most divide-and-conquer programs.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use springtide_runtime::random::SplitMix;
use springtide_runtime::work::{Checkpoint, Context, Job, Outcome, Registry, Stop, Task};

/// `rounds` iterations of a binary tree of `leaves` leaves that take between half and one and a half times `leaf_us` of
/// work, decided by a hash of the leaf's number and round.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Tree {
    /// Iterations.
    pub rounds: u32,
    /// Leaves of each.
    pub leaves: u32,
    /// Mean work of a leaf, in microseconds.
    pub leaf_us: u64,
    /// Bytes that each leaf's result is as long as.
    pub result_bytes: u32,
}

fn hash(round: u32, leaf: u32) -> u64 {
    SplitMix(u64::from(round) << 32 | u64::from(leaf)).next()
}

impl Tree {
    fn work_us(&self, round: u32, leaf: u32) -> u64 {
        self.leaf_us / 2 + hash(round, leaf) % self.leaf_us.max(1)
    }

    /// The work of all leaves together.
    pub fn work(&self) -> Duration {
        let rounds = (0..self.rounds).flat_map(|round| (0..self.leaves).map(move |n| (round, n)));
        Duration::from_micros(rounds.map(|(round, leaf)| self.work_us(round, leaf)).sum())
    }

    /// The checksum that a run must have.
    pub fn answer(&self) -> u64 {
        (0..self.rounds).fold(0, |sum, round| {
            let all = (0..self.leaves).map(|leaf| hash(round, leaf));
            chain(sum, all.fold(0, u64::wrapping_add))
        })
    }

    fn go_on(self, (from, mut checksum): (u32, u64), cx: &Context) -> Result<Outcome, Stop> {
        for round in from..self.rounds {
            let all = Leaves { tree: self.clone(), round, from: 0, to: self.leaves };
            checksum = chain(checksum, cx.call(all)?.0);
            cx.iteration_done();
            cx.checkpoint(&(round + 1, checksum))?;
        }
        Ok(Outcome { checksum, result: serde_json::Value::Null })
    }
}

fn chain(checksum: u64, sum: u64) -> u64 {
    checksum.wrapping_mul(7).wrapping_add(sum)
}

#[derive(Serialize, Deserialize)]
struct Leaves {
    tree: Tree,
    round: u32,
    from: u32,
    to: u32,
}

impl Task for Leaves {
    type Output = (u64, Vec<u8>);
    const NAME: &'static str = "tree.leaves";

    fn cost(&self) -> Option<f64> {
        // Seconds of work of a leaf; what is divided on costs nothing itself.
        (self.to - self.from == 1).then(|| self.tree.work_us(self.round, self.from) as f64 * 1e-6)
    }

    fn run(self, cx: &Context) -> Result<Self::Output, Stop> {
        let Self { tree, round, from, to } = self;
        if to - from <= 1 {
            cx.model(Duration::from_micros(tree.work_us(round, from)))?;
            return Ok((hash(round, from), vec![0; tree.result_bytes as usize]));
        }
        let middle = from + (to - from) / 2;
        let left = Leaves { tree: tree.clone(), round, from, to: middle };
        let ((a, _), (b, rest)) = cx.join(left, Leaves { tree, round, from: middle, to })?;
        Ok((a.wrapping_add(b), rest))
    }
}

impl Job for Tree {
    const NAME: &'static str = "sim-tree";
    const ABOUT: &'static str = "iterations of a balanced tree with leaves of declared work";

    fn register(registry: &mut Registry) {
        registry.task::<Leaves>();
    }

    fn run(self, cx: &Context) -> Result<Outcome, Stop> {
        self.go_on((0, 0), cx)
    }

    fn resume(self, state: Checkpoint, cx: &Context) -> Result<Outcome, Stop> {
        self.go_on(state.get()?, cx)
    }
}
