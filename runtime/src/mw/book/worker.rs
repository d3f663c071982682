//! A worker as the book knows it: what it has, how fast it is, and when it will be through.
//!
//! Must not know other workers, nor who gives it what.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use tokio::time::Instant;

use super::Place;
use crate::id::NodeId;

/// It is late when it takes so many times as long as expected, and this longer.
const LATE: f64 = 1.5;
const LATE_BY: Duration = Duration::from_millis(50);
/// What a worker begins within this time it is taken to have begun: its answers are on their way.
const SOON: f64 = 0.02;
/// Answers that come so many seconds later than before are nothing special.
const LAG_LEAST: f64 = 0.05;
/// What is known of a speed counts so much less with each batch that comes after it.
pub(super) const FADES: f64 = 0.5;

/// A block that a worker has.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Item {
    pub(super) place: Place,
    pub(super) units: f64,
    /// It did it before, in an earlier batch.
    pub(super) warm: bool,
}

/// Seconds for so many units, of which the later count more.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Rate {
    pub(super) seconds: f64,
    pub(super) units: f64,
}

impl Rate {
    pub(super) fn add(&mut self, seconds: f64, units: f64) {
        self.seconds += seconds;
        self.units += units;
    }

    pub(super) fn fade(&mut self) {
        self.seconds *= FADES;
        self.units *= FADES;
    }

    pub(super) fn get(&self) -> Option<f64> {
        // What takes no time at all (nothing does) would take none of any amount.
        (self.units > 0.0).then(|| (self.seconds / self.units).max(1e-12))
    }
}

#[derive(Debug)]
pub(super) struct Worker {
    pub(super) node: NodeId,
    pub(super) leaving: bool,
    pub(super) queue: VecDeque<Item>,
    /// Since when it has nothing to do, where it has nothing.
    pub(super) idle_since: Instant,
    /// When it began the first of them, as far as is known.
    pub(super) since: Instant,
    /// When it is late with it.
    pub(super) late_at: Option<Instant>,
    /// It had nothing to do until then, and got this.
    pub(super) ordered: Option<Instant>,
    /// Until then it does something that nobody wants any more.
    pub(super) busy_until: Option<Instant>,
    /// What that is: its answer tells how fast the worker is, though all others are through with it.
    pub(super) unwanted: Option<Item>,
    pub(super) cold: Rate,
    pub(super) warm: Rate,
    /// Seconds between an order and the answer to it, besides what it computes.
    pub(super) lag: f64,
    /// Its speed was measured.
    pub(super) known: bool,
    /// Batches of which it has the common part.
    pub(super) commons: BTreeSet<u64>,
}

/// What a unit is expected to take a worker, in seconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cost {
    pub(super) cold: f64,
    pub(super) warm: f64,
}

impl Cost {
    pub(super) fn of(&self, item: &Item) -> f64 {
        item.units * if item.warm { self.warm } else { self.cold }
    }
}

impl Worker {
    pub(super) fn is_idle(&self) -> bool {
        self.queue.is_empty() && !self.leaving
    }

    /// It answered so many seconds after it was ordered to, besides what it computed. A link that broke and is back again is not taken for
    /// a slow one: what is much longer than ever before counts as twice that.
    pub(super) fn answers_after(&mut self, lag: f64) {
        let lag = if self.lag > 0.0 { lag.min(2.0 * self.lag + LAG_LEAST) } else { lag };
        self.lag = if self.lag > 0.0 { (self.lag + lag) / 2.0 } else { lag };
    }

    /// Seconds that it is expected to take for its first block, from the order on if it waited for that.
    fn expected(&self, item: &Item, cost: &Cost) -> f64 {
        cost.of(item) + self.ordered.map_or(0.0, |_| self.lag)
    }

    /// It is taken to begin the first block that it has now.
    pub(super) fn begins(&mut self, cost: &Cost, now: Instant) {
        self.since = now;
        let first = self.queue.front();
        self.late_at = first.map(|item| now + seconds(LATE * self.expected(item, cost)) + LATE_BY);
    }

    /// Whether it is late by now. If so, it has half as long again before it is late once more.
    pub(super) fn was_late(&mut self, now: Instant) -> bool {
        let late = self.late_at.is_some_and(|at| at <= now);
        if late {
            let spent = now.saturating_duration_since(self.since);
            self.late_at = Some(now + spent / 2 + LATE_BY);
        }
        late
    }

    /// Seconds until it is through with the block that it does.
    pub(super) fn first_left(&self, cost: &Cost, now: Instant) -> f64 {
        let rest = |at: Instant| at.saturating_duration_since(now).as_secs_f64();
        let Some(item) = self.queue.front() else { return self.busy_until.map_or(0.0, rest) };
        let expected = self.expected(item, cost);
        let spent = now.saturating_duration_since(self.since).as_secs_f64();
        let begins = rest(self.since);
        // One that is late is thought to need half as long again.
        begins + if spent <= expected { expected - spent } else { spent / 2.0 }
    }

    /// Seconds until it is through with all that it has.
    pub(super) fn left(&self, cost: &Cost, now: Instant) -> f64 {
        let rest: f64 = self.queue.iter().skip(1).map(|item| cost.of(item)).sum();
        self.first_left(cost, now) + rest
    }

    /// How many of its blocks it has begun, or will have before it could hear otherwise.
    pub(super) fn begun(&self, cost: &Cost, now: Instant) -> usize {
        let mut begins = self.first_left(cost, now);
        let mut begun = self.queue.len().min(1);
        for item in self.queue.iter().skip(1) {
            if begins >= self.lag + SOON {
                break;
            }
            begins += cost.of(item);
            begun += 1;
        }
        begun
    }
}

/// Times that are too long for a clock are as long as an hour: it is looked again before.
pub(super) fn seconds(seconds: f64) -> Duration {
    let most = Duration::from_secs(3600);
    Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or(most).min(most)
}
