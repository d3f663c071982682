//! A model of a job: iterations that send a state to all nodes and divide their work into a tree of
//! tasks.
//!
//! Leaves take declared time. Tasks compute nothing, but the answer is checkable: each task returns
//! a number. The structure is that of real jobs (Barnes-Hut: `apps/barnes-hut`). Messages have the
//! length of theirs and consist of zeros, of which nodes keep the length alone.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde::de::{Deserializer, Error, Visitor};
use serde::ser::Serializer;
use serde::{Deserialize, Serialize};
use springtide_runtime::random::SplitMix;
use springtide_runtime::share::{ObjectNeed, Version, Versioned};
use springtide_runtime::work::{Checkpoint, Context, Job, Outcome, Registry, Stop, Task};

/// The way work is divided.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum WorkDivision {
    /// In two halves.
    #[default]
    Even,
    /// At a random place.
    Uneven,
}

/// Iterations with another number of leaves, which limits how far the job can be divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeafPhase {
    /// The first such iteration, from 0.
    pub from: u32,
    /// The first later iteration with the usual number.
    pub until: u32,
    /// The number of leaves in these iterations.
    pub leaves: u32,
}

/// A job of modelled iterations.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ModelledJob {
    /// The way work is divided.
    pub shape: WorkDivision,
    /// The number of iterations.
    pub rounds: u32,
    /// The number of leaves of an iteration.
    pub leaves: u32,
    /// Iterations with another number of leaves.
    pub then: Option<LeafPhase>,
    /// Mean work of all leaves of an iteration, in microseconds.
    pub work_us: u64,
    /// The largest deviation of a leaf from the mean, in thousandths of it.
    pub spread: u32,
    /// Work of the root alone in each iteration, in microseconds.
    pub serial_us: u64,
    /// Work of each node before its first task of an iteration, in microseconds; needs a state.
    pub each_us: u64,
    /// Bytes of the state that all nodes need in each iteration; 0: no state.
    pub state_bytes: u32,
    /// Bytes of an iteration's result, of all leaves together.
    pub result_bytes: u32,
    /// Bytes of a checkpoint.
    pub checkpoint_bytes: u32,
    /// Whether leaves keep their cost to themselves, as tasks of unknown length do.
    pub undeclared: bool,
}

/// The number that a leaf returns.
pub(crate) fn hash(round: u32, leaf: u32) -> u64 {
    SplitMix(u64::from(round) << 32 | u64::from(leaf)).next()
}

impl ModelledJob {
    fn leaves_in(&self, round: u32) -> u32 {
        let other = self.then.filter(|then| (then.from..then.until).contains(&round));
        other.map_or(self.leaves, |then| then.leaves).max(1)
    }

    fn leaf_us(&self, round: u32, leaf: u32) -> u64 {
        let mean = self.work_us / u64::from(self.leaves_in(round));
        let swing = mean.saturating_mul(self.spread.min(1000).into()) / 1000;
        mean - swing + hash(round, leaf) % (2 * swing + 1)
    }

    /// The work of the whole job.
    pub fn work(&self) -> Duration {
        let leaves = (0..self.rounds)
            .flat_map(|round| (0..self.leaves_in(round)).map(move |leaf| (round, leaf)));
        let divided: u64 = leaves.map(|(round, leaf)| self.leaf_us(round, leaf)).sum();
        Duration::from_micros(divided + u64::from(self.rounds) * self.serial_us)
    }

    /// The checksum that a run must have.
    pub fn answer(&self) -> u64 {
        (0..self.rounds).fold(0, |sum, round| {
            let all = (0..self.leaves_in(round)).map(|leaf| hash(round, leaf));
            chain(sum, all.fold(0, u64::wrapping_add))
        })
    }

    fn run_from(self, (from, mut checksum): (u32, u64), cx: &Context) -> Result<Outcome, Stop> {
        cx.progress(from.into(), self.rounds.into(), "iterations");
        for round in from..self.rounds {
            let state = match self.state_bytes {
                0 => None,
                bytes => Some(cx.put(0, IterationState::new(bytes))?),
            };
            let to = self.leaves_in(round);
            let all = ModelLeaves { model: self.clone(), round, from: 0, to, state };
            checksum = chain(checksum, cx.call(all)?.0);
            cx.spend_modelled_time(Duration::from_micros(self.serial_us))?;
            cx.iteration_done();
            cx.progress(u64::from(round) + 1, self.rounds.into(), "iterations");
            cx.checkpoint(&(round + 1, checksum, Zeros(self.checkpoint_bytes)))?;
        }
        Ok(Outcome { checksum, result: serde_json::Value::Null })
    }
}

/// Adds an iteration's sum to a checksum.
pub(crate) fn chain(checksum: u64, sum: u64) -> u64 {
    checksum.wrapping_mul(7).wrapping_add(sum)
}

/// Zeros on the wire, represented by their number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Zeros(pub(crate) u32);

impl Serialize for Zeros {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(&vec![0; self.0 as usize])
    }
}

impl<'de> Deserialize<'de> for Zeros {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Length;
        impl Visitor<'_> for Length {
            type Value = Zeros;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("bytes")
            }

            fn visit_bytes<E: Error>(self, bytes: &[u8]) -> Result<Zeros, E> {
                u32::try_from(bytes.len()).map(Zeros).map_err(E::custom)
            }
        }
        deserializer.deserialize_bytes(Length)
    }
}

/// The state that all nodes need in an iteration.
#[derive(Debug, Serialize, Deserialize)]
struct IterationState {
    content: Zeros,
    /// Whether this node has prepared itself for the state.
    #[serde(skip)]
    is_ready: AtomicBool,
}

impl IterationState {
    fn new(bytes: u32) -> Self {
        Self { content: Zeros(bytes), is_ready: AtomicBool::new(false) }
    }
}

impl Versioned for IterationState {
    const NAME: &'static str = "model.state";
    type Delta = ();

    fn apply(&self, (): ()) -> Self {
        Self::new(self.content.0)
    }
}

#[derive(Serialize, Deserialize)]
struct ModelLeaves {
    model: ModelledJob,
    round: u32,
    from: u32,
    to: u32,
    state: Option<Version>,
}

impl ModelLeaves {
    fn middle(&self) -> u32 {
        let count = self.to - self.from;
        match self.model.shape {
            WorkDivision::Even => self.from + count / 2,
            WorkDivision::Uneven => {
                let place = hash(self.round ^ self.from.rotate_left(16), self.to);
                // At most `count` - 1, so it fits.
                self.from + 1 + (place % u64::from(count - 1)) as u32
            }
        }
    }
}

impl Task for ModelLeaves {
    /// The sum of the leaves' numbers, and their result bytes.
    type Output = (u64, Zeros);
    const NAME: &'static str = "model.leaves";

    fn cost(&self) -> Option<f64> {
        // Seconds of work of a leaf; a task that divides its work costs nothing itself.
        let declares = self.to - self.from == 1 && !self.model.undeclared;
        declares.then(|| self.model.leaf_us(self.round, self.from) as f64 * 1e-6)
    }

    fn needs(&self) -> Vec<ObjectNeed> {
        self.state.into_iter().map(|version| ObjectNeed::of::<IterationState>(0, version)).collect()
    }

    fn run(self, cx: &Context) -> Result<Self::Output, Stop> {
        if let Some(version) = self.state {
            let state = cx.get::<IterationState>(0, version)?;
            if !state.is_ready.swap(true, Ordering::Relaxed) {
                cx.spend_modelled_time(Duration::from_micros(self.model.each_us))?;
            }
        }
        if self.to - self.from <= 1 {
            cx.spend_modelled_time(Duration::from_micros(
                self.model.leaf_us(self.round, self.from),
            ))?;
            let bytes = self.model.result_bytes / self.model.leaves_in(self.round);
            return Ok((hash(self.round, self.from), Zeros(bytes)));
        }
        let middle = self.middle();
        let Self { model, round, from, to, state } = self;
        let left = Self { model: model.clone(), round, from, to: middle, state };
        let right = Self { model, round, from: middle, to, state };
        let ((a, some), (b, more)) = cx.join(left, right)?;
        Ok((a.wrapping_add(b), Zeros(some.0.saturating_add(more.0))))
    }
}

impl Job for ModelledJob {
    const NAME: &'static str = "model";
    const ABOUT: &'static str = "iterations of a tree of tasks with leaves of declared work";

    fn register(registry: &mut Registry) {
        registry.task::<ModelLeaves>().versioned::<IterationState>();
    }

    fn run(self, cx: &Context) -> Result<Outcome, Stop> {
        self.run_from((0, 0), cx)
    }

    fn resume(self, state: Checkpoint, cx: &Context) -> Result<Outcome, Stop> {
        let (round, checksum, Zeros(_)) = state.get()?;
        self.run_from((round, checksum), cx)
    }

    /// A leaf without a state, of 20 ms.
    fn benchmark(&self) -> Option<Self> {
        Some(Self { rounds: 1, leaves: 1, work_us: 20_000, ..Self::default() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zeros_are_a_length_in_memory_and_bytes_on_the_wire() {
        let bytes = springtide_runtime::wire::encode_payload(&Zeros(300)).unwrap();
        assert!(bytes.len() > 300);
        let back: Zeros = springtide_runtime::wire::decode_payload(&bytes).unwrap();
        assert_eq!(back, Zeros(300));
    }

    #[test]
    fn leaves_keep_to_their_spread_and_parts_are_never_empty() {
        let model = ModelledJob {
            shape: WorkDivision::Uneven,
            rounds: 2,
            leaves: 100,
            work_us: 1_000_000,
            spread: 500,
            ..ModelledJob::default()
        };
        for leaf in 0..100 {
            assert!((5_000..=15_000).contains(&model.leaf_us(0, leaf)));
        }
        let work = model.work().as_secs_f64();
        assert!((work - 2.0).abs() < 0.2, "{work}");
        for (from, to) in [(0, 2), (0, 100), (5, 17), (98, 100)] {
            let leaves = ModelLeaves { model: model.clone(), round: 1, from, to, state: None };
            let middle = leaves.middle();
            assert!(from < middle && middle < to, "{from}..{middle}..{to}");
        }
    }
}
