//! A site's processors over time: bookings, and free slots to advertise.
//!
//! Source: the paper, section 4: conservative backfilling. Every reservation starts at the earliest
//! time that delays no earlier one. It does not move when others end early, and ends as declared.
//!
//! Processors are interchangeable, so the table keeps counts. If a count is free at every moment of
//! an interval, it is free throughout. Reservations are assigned to processors when slots are
//! advertised (an interval graph has a colouring with as many colours as intervals overlap). A
//! reservation takes the processors with the shortest free time before it, which leaves the fewest
//! slots.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::{AvailabilityProfile, NEVER, Price, SECOND, Slot, Time};

/// Processors for an interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Booking {
    /// Number of the processors.
    pub processors: u32,
    /// Start of the interval.
    pub start: Time,
    /// End of the interval.
    pub end: Time,
}

/// Why a booking is refused.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum TableError {
    /// The site has too few processors.
    #[error("{wanted} processors are requested, and the site has {has}")]
    TooLarge {
        /// Number of processors requested.
        wanted: u32,
        /// Number of processors of the site.
        has: u32,
    },
    /// Other bookings occupy the processors.
    #[error("{wanted} processors are requested, and {free} are free for the whole time")]
    Taken {
        /// Number of processors requested.
        wanted: u32,
        /// Number free throughout the interval.
        free: u32,
    },
    /// The request has no processors or no duration.
    #[error("the request is empty: {processors} processors from {start} to {end}")]
    Nothing {
        /// Number of processors requested.
        processors: u32,
        /// Start of the interval.
        start: Time,
        /// End of the interval.
        end: Time,
    },
}

/// Slots end at multiples of this from now.
const DAY: Time = 24 * 3600 * SECOND;

/// A site's bookings over time.
#[derive(Clone, Debug)]
pub struct BookingTable {
    processors: u32,
    bookings: BTreeMap<u64, Booking>,
    line: AvailabilityProfile,
    last: u64,
    epoch: u64,
}

impl BookingTable {
    /// Creates the table of a site with all processors free.
    pub fn new(processors: u32) -> Self {
        let line = AvailabilityProfile::new(processors, 0, NEVER);
        Self { processors, bookings: BTreeMap::new(), line, last: 0, epoch: 0 }
    }

    /// Number of the site's processors.
    pub fn processors(&self) -> u32 {
        self.processors
    }

    /// Version of the free processors: it grows with each change. Offers of an earlier one may be
    /// void.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// All current bookings, by number.
    pub fn bookings(&self) -> &BTreeMap<u64, Booking> {
        &self.bookings
    }

    /// Minimum of free processors over `[from, to)`.
    pub fn free(&self, from: Time, to: Time) -> u32 {
        self.line.min_free(from, to)
    }

    /// The earliest start from `from` on with enough free processors for the duration.
    ///
    /// # Errors
    /// The site has too few processors.
    pub fn earliest(
        &self,
        processors: u32,
        duration: Time,
        from: Time,
    ) -> Result<Time, TableError> {
        if processors > self.processors {
            return Err(TableError::TooLarge { wanted: processors, has: self.processors });
        }
        // After the last booking, all processors are free.
        Ok(self.line.earliest(processors, duration, from, NEVER).unwrap_or(NEVER))
    }

    /// Books processors at the earliest time that delays no other booking. Returns the booking's
    /// number and start.
    ///
    /// # Errors
    /// The site has too few processors, or the request is empty.
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

    /// Books exactly this interval.
    ///
    /// # Errors
    /// The processors are not free.
    pub fn book(&mut self, booking: Booking) -> Result<u64, TableError> {
        let Booking { processors, start, end } = booking;
        if processors == 0 || start >= end {
            return Err(TableError::Nothing { processors, start, end });
        }
        if processors > self.processors {
            return Err(TableError::TooLarge { wanted: processors, has: self.processors });
        }
        let free = self.line.min_free(start, end);
        if free < processors {
            return Err(TableError::Taken { wanted: processors, free });
        }
        self.line.take(processors, start, end);
        self.last += 1;
        self.epoch += 1;
        self.bookings.insert(self.last, booking);
        Ok(self.last)
    }

    /// Books as many of these processors as are free over the whole interval. Returns the booking's
    /// number; none if no processor is free, or the interval is empty.
    pub fn book_free(&mut self, booking: Booking) -> Option<u64> {
        let processors = booking.processors.min(self.free(booking.start, booking.end));
        self.book(Booking { processors, ..booking }).ok()
    }

    /// Ends a booking early. An end before its start deletes it. Returns whether the booking
    /// exists.
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

    /// Deletes bookings that ended before a time.
    pub fn forget(&mut self, before: Time) {
        self.bookings.retain(|_, booking| booking.end > before);
        self.line.forget(before);
    }

    /// End of advertised slots: the first whole day from now after the end of every booking.
    pub fn horizon(&self, now: Time) -> Time {
        let last = self.bookings.values().map(|booking| booking.end).max().unwrap_or(now).max(now);
        now + DAY * ((last - now) / DAY + 1)
    }

    /// Free processors from now on, as slots sorted by start. `price` gives the price by start.
    ///
    /// Slots before a booking are neither divisible nor extensible; slots up to the horizon are
    /// both.
    pub fn slots(&self, site: usize, now: Time, price: impl Fn(Time) -> Price) -> Vec<Slot> {
        let mut order: Vec<&Booking> = self.bookings.values().filter(|b| b.end > now).collect();
        order.sort_by_key(|booking| booking.start);
        // Number of free processors, by the time since which they are free.
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

/// Builds slots from windows of free processors (from, to, count), merging equal windows. Slots up
/// to the horizon are divisible and extensible; others precede a reservation and are neither.
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
