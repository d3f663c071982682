//! Offers of a site: processors for an interval, at a price; pieces and sets of them.

use serde::{Deserialize, Serialize};

use super::Time;

/// Price of a slot, in the user's unit (by default, a processor-second).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Price {
    /// Price of each processor-second.
    pub rate: f64,
    /// Price of the slot itself, if any of it is used.
    pub fixed: f64,
}

impl Default for Price {
    fn default() -> Self {
        Self { rate: 1.0, fixed: 0.0 }
    }
}

/// Processors of a site that can be provisioned for an interval.
///
/// The paper's tuple (section 2), with the end instead of the duration.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Slot {
    /// Index of the site in the query.
    pub site: usize,
    /// Number of the processors.
    pub processors: u32,
    /// Start of the interval.
    pub start: Time,
    /// End of the interval.
    pub end: Time,
    /// Price of the slot.
    pub price: Price,
    /// Whether a part can be provisioned; else the whole or nothing.
    pub divisible: bool,
    /// Whether it can be extended beyond its end.
    pub extensible: bool,
}

impl Slot {
    /// Cost of the whole slot up to `end` (its own end or later).
    pub fn whole(&self, end: Time) -> f64 {
        cost_of(self.capacity(end), self.price.rate) + self.price.fixed
    }

    /// Cost for `used` processor-microseconds of tasks, the last of which ends at `last`.
    pub fn cost(&self, used: u128, last: Time) -> f64 {
        self.paid(used, last).map_or(0.0, |paid| cost_of(paid, self.price.rate) + self.price.fixed)
    }

    /// Processor-microseconds to pay for this use; none for an unused divisible slot.
    pub fn paid(&self, used: u128, last: Time) -> Option<u128> {
        if self.divisible { (used > 0).then_some(used) } else { Some(self.capacity(last)) }
    }

    fn capacity(&self, end: Time) -> u128 {
        let duration = end.max(self.end).saturating_sub(self.start);
        u128::from(self.processors) * u128::from(duration)
    }
}

/// Offers cut into pieces, so that a search can choose any number of processors of an offer.
///
/// A divisible offer without a fixed price costs what its tasks use. Fewer of its processors
/// therefore leave tasks to cheaper sites. Its pieces have 1, 2, 4, ... processors, and the last
/// piece has the rest. Other offers stay whole.
#[derive(Clone, Debug, PartialEq)]
pub struct SlotPieces {
    slots: Vec<Slot>,
    offers: Vec<usize>,
}

impl SlotPieces {
    /// Cuts offers. Pieces of an offer are neighbours, and sum to any number of its processors.
    pub fn cut(offers: &[Slot]) -> Self {
        let (mut slots, mut of) = (Vec::new(), Vec::new());
        for (index, offer) in offers.iter().enumerate() {
            let is_cut = offer.divisible && offer.price.fixed == 0.0;
            let mut left = offer.processors;
            let mut size = if is_cut { 1 } else { left };
            while left > 0 {
                let processors = left.min(size);
                slots.push(Slot { processors, ..offer.clone() });
                of.push(index);
                left -= processors;
                size = size.saturating_mul(2);
            }
        }
        Self { slots, offers: of }
    }

    /// Does not cut: each piece is an offer.
    pub fn whole(offers: &[Slot]) -> Self {
        Self { slots: offers.to_vec(), offers: (0..offers.len()).collect() }
    }

    /// The pieces, by offer.
    pub fn slots(&self) -> &[Slot] {
        &self.slots
    }

    /// The offer of each piece.
    pub fn offers(&self) -> &[usize] {
        &self.offers
    }

    /// Index of the offer of a piece.
    pub fn offer(&self, piece: usize) -> usize {
        self.offers[piece]
    }

    /// The offers with a piece in a set.
    pub fn offers_of(&self, pieces: &SlotSet) -> SlotSet {
        let mut offers = SlotSet::none(self.offers.last().map_or(0, |last| last + 1));
        pieces.iter().for_each(|piece| offers.set(self.offers[piece], true));
        offers
    }

    /// Number of processors of an offer in a set of pieces.
    pub fn processors_of(&self, offer: usize, pieces: &SlotSet) -> u32 {
        let of_offer = pieces.iter().filter(|piece| self.offers[*piece] == offer);
        of_offer.map(|piece| self.slots[piece].processors).sum()
    }
}

/// Cost of processor-microseconds at a rate.
pub(super) fn cost_of(time: u128, rate: f64) -> f64 {
    time as f64 / super::SECOND as f64 * rate
}

/// A set of slots, one bit each.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct SlotSet {
    words: Vec<u64>,
    count: usize,
}

impl SlotSet {
    /// The empty set of `count` slots.
    pub fn none(count: usize) -> Self {
        Self { words: vec![0; count.div_ceil(64)], count }
    }

    /// The set of all slots.
    pub fn all(count: usize) -> Self {
        let mut all = Self::none(count);
        (0..count).for_each(|slot| all.set(slot, true));
        all
    }

    /// The set of at most 64 slots whose bits are set.
    pub(super) fn of_word(word: u64, count: usize) -> Self {
        Self { words: vec![word], count }
    }

    /// Number of slots that the set may contain.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.words.iter().all(|&word| word == 0)
    }

    /// Number of slots in the set.
    pub fn ones(&self) -> usize {
        self.words.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// Whether the set contains a slot.
    pub fn has(&self, slot: usize) -> bool {
        self.words[slot / 64] >> (slot % 64) & 1 == 1
    }

    /// Adds a slot to the set, or removes it.
    pub fn set(&mut self, slot: usize, on: bool) {
        let bit = 1u64 << (slot % 64);
        if on {
            self.words[slot / 64] |= bit;
        } else {
            self.words[slot / 64] &= !bit;
        }
    }

    /// Whether another set contains all its slots.
    pub fn is_subset(&self, of: &Self) -> bool {
        self.words.iter().zip(&of.words).all(|(a, b)| a & !b == 0)
    }

    /// The slots of the set in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.count).filter(|&slot| self.has(slot))
    }
}
