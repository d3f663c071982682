//! A model of a bulk-synchronous program: in each step every process computes its items and
//! exchanges its part of the bodies with all others.
//!
//! Shares follow the measured speeds, as those of real programs (`apps/malleable`). The answer does
//! not depend on the number of processes.

use std::ops::Range;
use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use springtide_runtime::malleable::{Malleable, Observation, ProcessInfo, Program, Strategy};
use springtide_runtime::spmd::Comm;
use springtide_runtime::wire;
use springtide_runtime::work::{Outcome, Stop};

use super::model::{LeafPhase, Zeros, chain, hash};

/// The ratio of the slowest step time to the mean above which the shares are rebalanced.
const REBALANCE_RATIO: f64 = 1.15;
/// The tag of the exchanged bodies.
const BODIES_TAG: u32 = 1;
/// The length of an encoded sum.
const SUM_BYTES: usize = 8;

/// A bulk-synchronous job of modelled steps.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ModelledProcesses {
    /// The number of steps.
    pub steps: u32,
    /// The number of items that the processes share.
    pub items: u32,
    /// Steps in which only the first processes have work.
    pub then: Option<LeafPhase>,
    /// Work of all items in a step, in microseconds.
    pub work_us: u64,
    /// Work of rank 0 alone in each step, in microseconds.
    pub serial_us: u64,
    /// Work of each process in each step apart from its items, in microseconds.
    pub each_us: u64,
    /// Bytes that all processes together send to each process in a step.
    pub exchanged_bytes: u32,
    /// Bytes of the whole state.
    pub state_bytes: u32,
}

/// The state of a process: the bytes of its items, and the checksum of all steps.
#[derive(Debug, Serialize, Deserialize)]
pub struct ProcessPart {
    bytes: Zeros,
    checksum: u64,
}

/// The items of each process: those from `bounds[rank]` up to `bounds[rank + 1]`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ItemShares {
    bounds: Vec<u32>,
}

impl ItemShares {
    fn weighted(items: u32, weights: &[f64]) -> Self {
        let sum: f64 = weights.iter().sum();
        let mut before = 0.0;
        let mut bounds = vec![0];
        for weight in weights {
            before += weight;
            let bound = (f64::from(items) * (before / sum)).round() as u32;
            bounds.push(bound.clamp(bounds.last().copied().unwrap_or(0), items));
        }
        if let Some(last) = bounds.last_mut() {
            *last = items;
        }
        Self { bounds }
    }

    fn of(&self, rank: u32) -> Range<u32> {
        let bound =
            |at: usize| self.bounds.get(at).or(self.bounds.last()).copied().unwrap_or_default();
        bound(rank as usize)..bound(rank as usize + 1)
    }
}

impl ModelledProcesses {
    fn sum(&self, step: u64, items: Range<u32>) -> u64 {
        items.fold(0, |sum, item| sum.wrapping_add(hash(step as u32, item)))
    }

    /// Bytes of these items, of a total of all.
    fn bytes_of(&self, items: &Range<u32>, total: u32) -> u32 {
        let bytes = u64::from(total) * u64::from(items.end.saturating_sub(items.start));
        (bytes / u64::from(self.items.max(1))) as u32
    }

    /// The time that a process with this share of the items computes in a step.
    fn step_us(&self, step: u64, rank: u32, processes: u32, items: &Range<u32>) -> u64 {
        let phase = self.then.filter(|then| (then.from..then.until).contains(&(step as u32)));
        let divided = match phase.map(|then| then.leaves.clamp(1, processes)) {
            Some(busy) if rank < busy => self.work_us / u64::from(busy),
            Some(_) => 0,
            None => {
                let share = f64::from(items.len() as u32) / f64::from(self.items.max(1));
                (self.work_us as f64 * share) as u64
            }
        };
        divided + self.each_us
    }

    /// The work of the whole job, without what each process repeats.
    pub fn work(&self) -> Duration {
        Duration::from_micros(u64::from(self.steps) * (self.work_us + self.serial_us))
    }

    /// The checksum that a run must have.
    pub fn answer(&self) -> u64 {
        (0..u64::from(self.steps)).fold(0, |sum, step| chain(sum, self.sum(step, 0..self.items)))
    }
}

impl Program for ModelledProcesses {
    const NAME: &'static str = "processes.process";
    type State = ProcessPart;
    type Layout = ItemShares;

    fn steps(&self) -> u64 {
        self.steps.into()
    }

    /// Shares by the measured speeds in items a second. A process without a measurement counts as
    /// average.
    fn layout(&self, hands: &[ProcessInfo], now: Option<&ItemShares>) -> ItemShares {
        let speed = |hand: &ProcessInfo| {
            let items = now.zip(hand.previous_rank).map(|(now, rank)| now.of(rank).len())?;
            let pace = hand.pace.filter(|pace| items > 0 && pace.step_s > 0.0)?;
            Some(items as f64 / pace.step_s)
        };
        let speeds: Vec<Option<f64>> = hands.iter().map(speed).collect();
        let known: Vec<f64> = speeds.iter().flatten().copied().collect();
        let mean = known.iter().sum::<f64>() / known.len().max(1) as f64;
        let average = if known.is_empty() { 1.0 } else { mean };
        let weights: Vec<f64> = speeds.iter().map(|speed| speed.unwrap_or(average)).collect();
        ItemShares::weighted(self.items, &weights)
    }

    fn decide(&self, observation: &Observation, layout: Option<&ItemShares>) -> Strategy {
        let processes = self.usable(observation.available);
        if layout.is_none() || processes != observation.processes || observation.leaving > 0 {
            return Strategy::Use { processes, release: true };
        }
        match observation.unevenness() {
            // In these steps the time of a process does not follow its share.
            _ if self.then.is_some_and(|then| observation.point >= u64::from(then.from)) => {
                Strategy::Keep
            }
            Some(ratio) if ratio > REBALANCE_RATIO => Strategy::Rebalance,
            _ => Strategy::Keep,
        }
    }

    fn start(&self, layout: &ItemShares, comm: &Comm<'_>) -> Result<ProcessPart, Stop> {
        let bytes = self.bytes_of(&layout.of(comm.rank()), self.state_bytes);
        Ok(ProcessPart { bytes: Zeros(bytes), checksum: 0 })
    }

    fn step(
        &self,
        part: &mut ProcessPart,
        step: u64,
        layout: &ItemShares,
        comm: &Comm<'_>,
    ) -> Result<(), Stop> {
        let items = layout.of(comm.rank());
        let time = self.step_us(step, comm.rank(), comm.size(), &items);
        comm.spend_modelled_time(Duration::from_micros(time))?;
        let mut message = self.sum(step, items.clone()).to_le_bytes().to_vec();
        message.resize(SUM_BYTES + self.bytes_of(&items, self.exchanged_bytes) as usize, 0);
        comm.share(BODIES_TAG, message)?;
        let mut sum = 0_u64;
        for message in comm.take_shared(BODIES_TAG)? {
            let Some(bytes) = message.first_chunk::<SUM_BYTES>() else {
                return Err(Stop::fail("a process sent no sum"));
            };
            sum = sum.wrapping_add(u64::from_le_bytes(*bytes));
        }
        part.checksum = chain(part.checksum, sum);
        if comm.rank() == 0 {
            comm.spend_modelled_time(Duration::from_micros(self.serial_us))?;
        }
        Ok(())
    }

    fn split_state(
        &self,
        part: &ProcessPart,
        (from, rank): (&ItemShares, u32),
        (to, other): (&ItemShares, u32),
    ) -> Result<Bytes, Stop> {
        let (mine, theirs) = (from.of(rank), to.of(other));
        let common = mine.start.max(theirs.start)..mine.end.min(theirs.end);
        let bytes = Zeros(self.bytes_of(&common, self.state_bytes));
        let piece = ProcessPart { bytes, checksum: part.checksum };
        Ok(wire::encode_payload(&piece)?)
    }

    fn join_state(
        &self,
        pieces: &[Bytes],
        _: &ItemShares,
        (to, rank): (&ItemShares, u32),
    ) -> Result<ProcessPart, Stop> {
        let Some(first) = pieces.first() else { return Err(Stop::fail("there is no state")) };
        let ProcessPart { checksum, .. } = wire::decode_payload(first)?;
        let bytes = Zeros(self.bytes_of(&to.of(rank), self.state_bytes));
        Ok(ProcessPart { bytes, checksum })
    }

    fn finish(&self, part: ProcessPart, _: &ItemShares, _: &Comm<'_>) -> Result<Outcome, Stop> {
        Ok(Outcome { checksum: part.checksum, result: serde_json::Value::Null })
    }
}

impl Malleable for ModelledProcesses {
    const JOB: &'static str = "processes";
    const ABOUT: &'static str = "processes that take the same steps of declared work";

    /// Processes beyond the number of items would be idle.
    fn usable(&self, processes: u32) -> u32 {
        processes.min(self.items.max(1))
    }

    /// A step of 20 ms.
    fn benchmark(&self) -> Option<Self> {
        Some(Self { steps: 1, items: 1, work_us: 20_000, ..Self::default() })
    }
}

#[cfg(test)]
mod tests {
    use springtide_runtime::spmd::StepRate;

    use super::*;

    const JOB: ModelledProcesses = ModelledProcesses {
        steps: 3,
        items: 90,
        then: Some(LeafPhase { from: 1, until: 2, leaves: 2 }),
        work_us: 9000,
        serial_us: 0,
        each_us: 0,
        exchanged_bytes: 100,
        state_bytes: 900,
    };

    #[test]
    fn shares_follow_the_measured_speeds_and_cover_all_items() {
        let now = ItemShares::weighted(90, &[1.0; 3]);
        let hand = |rank, step_s| ProcessInfo {
            previous_rank: Some(rank),
            threads: 1,
            pace: Some(StepRate { step_s, foreign: None }),
            location: None,
        };
        let hands = [hand(0, 1.0), hand(1, 2.0), hand(2, 1.0), ProcessInfo::default()];
        let shares = JOB.layout(&hands, Some(&now));
        let held: Vec<usize> = (0..4).map(|rank| shares.of(rank).len()).collect();
        assert_eq!((held.iter().sum::<usize>(), held[0] > held[1]), (90, true), "{held:?}");
    }

    #[test]
    fn a_phase_leaves_the_first_processes_all_work() {
        let items = 0..30;
        let times = |step| [0, 1, 2].map(|rank| JOB.step_us(step, rank, 3, &items));
        assert_eq!((times(0), times(1)), ([3000; 3], [4500, 4500, 0]));
    }
}
