//! What a site offers: processors for a while, at a price.

use serde::{Deserialize, Serialize};

use super::Time;

/// What a slot costs, in units of the user's own (one is a processor-second where nothing else is said).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Price {
    /// For each processor and second.
    pub rate: f64,
    /// Once for the slot, if anything of it is had.
    pub fixed: f64,
}

impl Default for Price {
    fn default() -> Self {
        Self { rate: 1.0, fixed: 0.0 }
    }
}

/// Processors of a site from a time on for a while, as they can be provisioned.
///
/// The paper's tuple (section 2) with the end in place of the duration.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Slot {
    /// Whose, by its index among the sites of the question.
    pub site: usize,
    /// How many processors.
    pub processors: u32,
    /// From when on.
    pub start: Time,
    /// Until when.
    pub end: Time,
    /// What it costs.
    pub price: Price,
    /// It can be had in part; else whole or not at all.
    pub divisible: bool,
    /// It can be had for longer.
    pub extensible: bool,
}

impl Slot {
    /// What the whole of it costs, if it is had until `end` (its own or later).
    pub fn whole(&self, end: Time) -> f64 {
        worth(self.capacity(end), self.price.rate) + self.price.fixed
    }

    /// What it costs if tasks use so many processor-microseconds of it, the last of them until `last`.
    pub fn cost(&self, used: u128, last: Time) -> f64 {
        self.paid(used, last).map_or(0.0, |paid| worth(paid, self.price.rate) + self.price.fixed)
    }

    /// So many processor-microseconds of it are paid then, and its fixed price; nothing of a divisible one that is not used.
    pub fn paid(&self, used: u128, last: Time) -> Option<u128> {
        match self.divisible {
            true => (used > 0).then_some(used),
            false => Some(self.capacity(last)),
        }
    }

    fn capacity(&self, end: Time) -> u128 {
        let duration = end.max(self.end).saturating_sub(self.start);
        u128::from(self.processors) * u128::from(duration)
    }
}

/// What so many processor-microseconds cost at a rate.
pub(super) fn worth(time: u128, rate: f64) -> f64 {
    time as f64 / super::SECOND as f64 * rate
}
