//! A site's processors over time: who has how many from when until when, and what is left to offer.
//!
//! Source: the paper, section 4: conservative backfilling. Every reservation is made at the earliest time at which it delays no
//! earlier one, is not moved when others end early, and ends when it was said to. Must not know which machine a processor is.
//!
//! Processors are alike, so the table keeps counts: what is free at every moment of a time is free throughout it, for reservations are
//! given their processors anew whenever slots are advertised (an interval graph can always be coloured with as many colours as
//! intervals overlap). A reservation takes the processors that were free for the shortest time before it: that leaves the fewest slots.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::{NEVER, Price, SECOND, Skyline, Slot, Time};

/// Processors from a time to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Booking {
    /// How many.
    pub processors: u32,
    /// From when.
    pub start: Time,
    /// Until when.
    pub end: Time,
}

/// Why something is not booked.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum TableError {
    /// The site is smaller.
    #[error("{wanted} processors are asked for, and the site has {has}")]
    TooLarge {
        /// What is asked for.
        wanted: u32,
        /// What there is.
        has: u32,
    },
    /// Others have them.
    #[error("{wanted} processors are asked for, and {free} are free all that time")]
    Taken {
        /// What is asked for.
        wanted: u32,
        /// What is free throughout.
        free: u32,
    },
    /// It has no processors or no time.
    #[error("nothing is asked for: {processors} processors from {start} to {end}")]
    Nothing {
        /// How many.
        processors: u32,
        /// From when.
        start: Time,
        /// Until when.
        end: Time,
    },
}

/// Slots end at whole days from now.
const DAY: Time = 24 * 3600 * SECOND;

/// Who has a site's processors when.
#[derive(Clone, Debug)]
pub struct Table {
    processors: u32,
    bookings: BTreeMap<u64, Booking>,
    line: Skyline,
    last: u64,
    epoch: u64,
}

impl Table {
    /// Of a site with so many processors, all free.
    pub fn new(processors: u32) -> Self {
        let line = Skyline::new(processors, 0, NEVER);
        Self { processors, bookings: BTreeMap::new(), line, last: 0, epoch: 0 }
    }

    /// How many processors the site has.
    pub fn processors(&self) -> u32 {
        self.processors
    }

    /// Grows whenever what is free has changed: offers of an earlier epoch may be void.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// What is booked.
    pub fn bookings(&self) -> &BTreeMap<u64, Booking> {
        &self.bookings
    }

    /// Fewest processors free at any time of `[from, to)`.
    pub fn free(&self, from: Time, to: Time) -> u32 {
        self.line.least(from, to)
    }

    /// When so many processors are free for so long, at the earliest from `from` on.
    ///
    /// # Errors
    /// The site has not so many.
    pub fn earliest(
        &self,
        processors: u32,
        duration: Time,
        from: Time,
    ) -> Result<Time, TableError> {
        if processors > self.processors {
            return Err(TableError::TooLarge { wanted: processors, has: self.processors });
        }
        // After the last booking all are free.
        Ok(self.line.earliest(processors, duration, from, NEVER).unwrap_or(NEVER))
    }

    /// Books processors for a job as early as it delays nobody; the booking's number and when it begins.
    ///
    /// # Errors
    /// The site has not so many, or nothing is asked for.
    pub fn submit(
        &mut self,
        processors: u32,
        duration: Time,
        now: Time,
    ) -> Result<(u64, Time), TableError> {
        let start = self.earliest(processors, duration, now)?;
        let number =
            self.book(Booking { processors, start, end: start.saturating_add(duration) })?;
        Ok((number, start))
    }

    /// Books exactly this.
    ///
    /// # Errors
    /// It is not free.
    pub fn book(&mut self, booking: Booking) -> Result<u64, TableError> {
        let Booking { processors, start, end } = booking;
        if processors == 0 || start >= end {
            return Err(TableError::Nothing { processors, start, end });
        }
        if processors > self.processors {
            return Err(TableError::TooLarge { wanted: processors, has: self.processors });
        }
        let free = self.line.least(start, end);
        if free < processors {
            return Err(TableError::Taken { wanted: processors, free });
        }
        self.line.take(processors, start, end);
        self.last += 1;
        self.epoch += 1;
        self.bookings.insert(self.last, booking);
        Ok(self.last)
    }

    /// A booking ends at a time, earlier than it was made for; before its start it is as if it had never been. Returns whether there
    /// was one.
    pub fn end(&mut self, number: u64, at: Time) -> bool {
        let Some(booking) = self.bookings.get_mut(&number) else { return false };
        let from = at.max(booking.start);
        if from < booking.end {
            self.line.give(booking.processors, from, booking.end);
            self.epoch += 1;
            booking.end = from;
        }
        if booking.start == booking.end {
            self.bookings.remove(&number);
        }
        true
    }

    /// Forgets what has ended before a time.
    pub fn forget(&mut self, before: Time) {
        self.bookings.retain(|_, booking| booking.end > before);
        self.line.forget(before);
    }

    /// Until when slots are advertised: the first whole day from now after the end of every booking.
    pub fn horizon(&self, now: Time) -> Time {
        let last = self.bookings.values().map(|booking| booking.end).max().unwrap_or(now).max(now);
        now + DAY * ((last - now) / DAY + 1)
    }

    /// What is free from now on, as slots sorted by start: of those before a booking the whole or nothing can be had, those that end at
    /// the horizon can be had in part and for longer. `price` says what one that starts then costs.
    pub fn slots(&self, site: usize, now: Time, price: impl Fn(Time) -> Price) -> Vec<Slot> {
        let mut order: Vec<&Booking> = self.bookings.values().filter(|b| b.end > now).collect();
        order.sort_by_key(|booking| booking.start);
        // How many processors have been free since when.
        let mut since: BTreeMap<Time, u32> = BTreeMap::from([(now, self.processors)]);
        let mut windows = Vec::new();
        for booking in order {
            let start = booking.start.max(now);
            let mut left = booking.processors;
            while left > 0 {
                let Some((&from, count)) = since.range_mut(..=start).next_back() else { break };
                let taken = left.min(*count);
                *count -= taken;
                if *count == 0 {
                    since.remove(&from);
                }
                if from < start {
                    windows.push((from, start, taken));
                }
                left -= taken;
            }
            *since.entry(booking.end).or_default() += booking.processors - left;
        }
        let horizon = self.horizon(now);
        windows.extend(since.into_iter().map(|(from, count)| (from, horizon, count)));
        advertise(windows, site, horizon, price)
    }
}

/// Slots of windows (from, to, how many processors) in which processors are free: equal windows are one slot. Those that end at the
/// horizon are divisible and extensible, others are followed by a reservation and are neither.
pub fn advertise(
    windows: impl IntoIterator<Item = (Time, Time, u32)>,
    site: usize,
    horizon: Time,
    price: impl Fn(Time) -> Price,
) -> Vec<Slot> {
    let mut merged: BTreeMap<(Time, Time), u32> = BTreeMap::new();
    for (from, to, count) in windows {
        *merged.entry((from, to)).or_default() += count;
    }
    let slot = |((start, end), processors)| {
        let last = end == horizon;
        Slot {
            site,
            processors,
            start,
            end,
            price: price(start),
            divisible: last,
            extensible: last,
        }
    };
    merged.into_iter().map(slot).collect()
}
