//! A worker in the assignment table: its blocks, its speed, and its expected completion.
//!
//! This module knows neither the other workers nor the reasons for assignments.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use tokio::time::Instant;

use super::BlockId;
use crate::id::NodeId;

/// A worker is late when it exceeds the expected time by this factor and this margin.
const LATE_FACTOR: f64 = 1.5;
const LATE_MARGIN: Duration = Duration::from_millis(50);
/// The multiple of its expected time after which a block without an answer counts as not started.
const SLOWNESS_MAX: f64 = 100.0;
/// Seconds: a block that a worker starts within this time counts as started, as its answer may be
/// on its way.
const STARTED_MARGIN_S: f64 = 0.02;
/// Seconds: an increase of the lag up to this margin is ordinary.
const LAG_MARGIN_S: f64 = 0.05;
/// The factor by which measurements of speed lose weight with each batch.
pub(super) const FADE: f64 = 0.5;

/// A block in a worker's queue.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct QueuedBlock {
    pub(super) block_id: BlockId,
    pub(super) units: f64,
    /// Whether the worker executed it before, in an earlier batch.
    pub(super) warm: bool,
}

/// Seconds for units of work. Later measurements have more weight.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct WorkerRate {
    pub(super) seconds: f64,
    pub(super) units: f64,
}

impl WorkerRate {
    pub(super) fn add(&mut self, seconds: f64, units: f64) {
        self.seconds += seconds;
        self.units += units;
    }

    pub(super) fn fade(&mut self) {
        self.seconds *= FADE;
        self.units *= FADE;
    }

    pub(super) fn get(&self) -> Option<f64> {
        // A positive minimum: zero seconds per unit would make any amount of work free.
        (self.units > 0.0).then(|| (self.seconds / self.units).max(1e-12))
    }
}

#[derive(Debug)]
pub(super) struct AssignedWorker {
    pub(super) node: NodeId,
    pub(super) leaving: bool,
    pub(super) queue: VecDeque<QueuedBlock>,
    /// The time since when it is idle, if it is.
    pub(super) idle_since: Instant,
    /// The estimated start of its first block.
    pub(super) since: Instant,
    /// The time at which it is late with that block.
    pub(super) late_at: Option<Instant>,
    /// The time of the first block's order, if the worker was idle until then.
    pub(super) ordered: Option<Instant>,
    /// The end of a block that is no longer needed, if it executes one.
    pub(super) busy_until: Option<Instant>,
    /// That block. Its answer still measures the worker.
    pub(super) unwanted: Option<QueuedBlock>,
    pub(super) cold: WorkerRate,
    pub(super) warm: WorkerRate,
    /// Seconds from an order to the answer, without the computation.
    pub(super) lag: f64,
    /// Whether its speed was measured.
    pub(super) known: bool,
    /// The time of its last measurement; before the first one, that of its arrival.
    pub(super) measured_at: Instant,
    /// The batches whose common part it has.
    pub(super) commons: BTreeSet<u64>,
}

/// The expected seconds per unit of a worker.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cost {
    pub(super) cold: f64,
    pub(super) warm: f64,
}

impl Cost {
    pub(super) fn of(&self, item: &QueuedBlock) -> f64 {
        item.units * if item.warm { self.warm } else { self.cold }
    }
}

impl AssignedWorker {
    pub(super) fn is_idle(&self) -> bool {
        self.queue.is_empty() && !self.leaving
    }

    /// Whether it may still execute a block that is no longer needed. The answer can be missing for
    /// good: a worker does not answer a block that was revoked before its start.
    pub(super) fn executes_unwanted(&self, cost: &Cost, now: Instant) -> bool {
        self.unwanted.is_some_and(|item| {
            now <= self.since + seconds(SLOWNESS_MAX * cost.of(&item)) + LATE_MARGIN
        })
    }

    /// Records the lag of an answer, in seconds.
    ///
    /// A link that was broken for a while is not a slow link: a lag far above the earlier ones
    /// counts as twice their mean.
    pub(super) fn record_lag(&mut self, lag: f64) {
        let lag = if self.lag > 0.0 { lag.min(2.0 * self.lag + LAG_MARGIN_S) } else { lag };
        self.lag = if self.lag > 0.0 { (self.lag + lag) / 2.0 } else { lag };
    }

    /// The expected seconds for its first block, including the lag if the worker waited for the
    /// order.
    fn expected(&self, item: &QueuedBlock, cost: &Cost) -> f64 {
        cost.of(item) + self.ordered.map_or(0.0, |_| self.lag)
    }

    /// Records the start of the first block.
    pub(super) fn start_first(&mut self, cost: &Cost, now: Instant) {
        self.since = now;
        let first = self.queue.front();
        self.late_at =
            first.map(|item| now + seconds(LATE_FACTOR * self.expected(item, cost)) + LATE_MARGIN);
    }

    /// Whether it is late. If so, extends its time by half of that spent.
    pub(super) fn was_late(&mut self, now: Instant) -> bool {
        let late = self.late_at.is_some_and(|at| at <= now);
        if late {
            let spent = now.saturating_duration_since(self.since);
            self.late_at = Some(now + spent / 2 + LATE_MARGIN);
        }
        late
    }

    /// The expected seconds until it completes its current block.
    pub(super) fn first_remaining(&self, cost: &Cost, now: Instant) -> f64 {
        let rest = |at: Instant| at.saturating_duration_since(now).as_secs_f64();
        let Some(item) = self.queue.front() else { return self.busy_until.map_or(0.0, rest) };
        let expected = self.expected(item, cost);
        let spent = now.saturating_duration_since(self.since).as_secs_f64();
        let begins = rest(self.since);
        // A late worker is expected to need half as long again.
        begins + if spent <= expected { expected - spent } else { spent / 2.0 }
    }

    /// The expected seconds until it completes all of its blocks.
    pub(super) fn remaining(&self, cost: &Cost, now: Instant) -> f64 {
        let rest: f64 = self.queue.iter().skip(1).map(|item| cost.of(item)).sum();
        self.first_remaining(cost, now) + rest
    }

    /// The number of its blocks that have started, or will before a revocation reaches it.
    pub(super) fn started(&self, cost: &Cost, now: Instant) -> usize {
        let mut begins = self.first_remaining(cost, now);
        let mut begun = self.queue.len().min(1);
        for item in self.queue.iter().skip(1) {
            if begins >= self.lag + STARTED_MARGIN_S {
                break;
            }
            begins += cost.of(item);
            begun += 1;
        }
        begun
    }
}

/// Converts seconds to a duration of at most an hour; plans are renewed before that.
pub(super) fn seconds(seconds: f64) -> Duration {
    let most = Duration::from_secs(3600);
    Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or(most).min(most)
}
