//! Reservations of processors at sites: what they are, and the protocol by which a broker and the grid agree on one.
//!
//! Source: Singh, Kesselman, Deelman, HPDC 2007, section 7: allocations of a plan are had all or none, by a commit in three phases after
//! SNAP (Czajkowski et al. 2002).
//!
//! 1. *Prepare*: the broker names slots that it was offered. They are kept free for it for a short time, or it hears what is in the way.
//! 2. *Commit*: it will have them. Sites may refuse by their terms. From here on the grid has it on disk.
//! 3. *Confirm*: both know. A reservation that is not confirmed in time was never made; one with a lease is confirmed again and again by
//!    whoever holds it, and ends when it was not for so long. So nothing is left of a broker that ends at whatever step.
//!
//! A broker draws a *token* for each agreement that it seeks. Whatever it says twice counts once, and a number that was given out twice,
//! which a crash of the grid can do before anything is on disk, is not mistaken.
//!
//! `book` is the grid's side and `broker` the other: state machines without I/O. Times are wall-clock microseconds of the Unix epoch, for
//! reservations outlive processes. Must not know jobs, nor how plans are made.

mod book;
mod broker;

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use springtide_runtime::id::ClusterId;

pub use self::book::{Book, Ground, Note, Within};
pub use self::broker::{Broker, Failure, Limits, News, Order};
use crate::policy::provisioning::{Booking, Denied, Time, from_duration, seconds};

/// Parts of a reservation at most, and bookings of all of them: a message has bounds.
const PARTS_MAX: usize = 2048;
const BOOKINGS_MAX: usize = 20_000;

/// A reservation's number.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct ReservationId(pub u64);

impl fmt::Display for ReservationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "reservation {}", self.0)
    }
}

/// What is had of a slot.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Part {
    /// Where.
    pub cluster: ClusterId,
    /// How many processors when.
    pub bookings: Vec<Booking>,
}

impl Part {
    /// When it begins.
    pub fn start(&self) -> Time {
        self.bookings.iter().map(|booking| booking.start).min().unwrap_or(0)
    }

    /// Processor-seconds of it.
    pub fn area_s(&self) -> f64 {
        let of = |b: &Booking| f64::from(b.processors) * seconds(b.end.saturating_sub(b.start));
        self.bookings.iter().map(of).sum()
    }
}

/// What a broker asks for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ask {
    /// Its own for this agreement, drawn at random.
    pub token: u64,
    /// For people.
    pub name: String,
    /// All of these or none.
    pub parts: Vec<Part>,
    /// It pays no more than this.
    pub most_cost: f64,
    /// It ends when it was not confirmed anew for so many milliseconds; absent: it does not end before its time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease_ms: Option<u64>,
}

impl Ask {
    /// Whether it makes sense: it may come from another program.
    ///
    /// # Errors
    /// What does not.
    pub fn check(&self) -> Result<(), String> {
        let bookings = || self.parts.iter().flat_map(|part| &part.bookings);
        if bookings().next().is_none() {
            return Err("it asks for nothing: name a cluster, processors and a time".to_owned());
        }
        let (parts, all) = (self.parts.len(), bookings().count());
        if parts > PARTS_MAX || all > BOOKINGS_MAX {
            return Err(format!(
                "it has {parts} parts with {all} bookings, and may have {PARTS_MAX} with {BOOKINGS_MAX}: reserve less at a time"
            ));
        }
        if let Some(b) = bookings().find(|b| b.processors == 0 || b.start >= b.end) {
            return Err(format!(
                "{} processors from {} s to {} s are nothing",
                b.processors,
                seconds(b.start),
                seconds(b.end)
            ));
        }
        if self.most_cost.is_nan() {
            return Err("the most that it may cost is no number".to_owned());
        }
        Ok(())
    }
}

/// How far an agreement has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "phase")]
pub enum Phase {
    /// Kept free for a while.
    Prepared {
        /// Until then.
        until: Time,
    },
    /// To be had, if it is confirmed.
    Committed {
        /// By then.
        until: Time,
    },
    /// Agreed.
    Confirmed {
        /// It ends then if it is not confirmed anew.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        until: Option<Time>,
    },
}

/// A reservation, or what may become one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Reservation {
    /// Its number.
    pub id: ReservationId,
    /// What its broker knows it by.
    pub token: u64,
    /// For people.
    pub name: String,
    /// What it has.
    pub parts: Vec<Part>,
    /// What it costs, without penalties.
    pub cost: f64,
    /// How far it has come.
    pub phase: Phase,
    /// How long it lives without being confirmed anew.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease_ms: Option<u64>,
}

impl Reservation {
    /// When the last of it ends.
    pub fn end(&self) -> Time {
        self.bookings().map(|(_, booking)| booking.end).max().unwrap_or(0)
    }

    /// When the first of it begins.
    pub fn start(&self) -> Time {
        self.bookings().map(|(_, booking)| booking.start).min().unwrap_or(0)
    }

    /// All of it, with where it is.
    pub fn bookings<'a>(&'a self) -> impl Iterator<Item = (&'a ClusterId, Booking)> {
        let of = |part: &'a Part| part.bookings.iter().map(|booking| (&part.cluster, *booking));
        self.parts.iter().flat_map(of)
    }

    /// Processors that it has of a cluster at a time.
    pub fn at(&self, cluster: &ClusterId, time: Time) -> u32 {
        let parts = self.parts.iter().filter(|part| part.cluster == *cluster);
        let bookings = parts.flat_map(|part| &part.bookings);
        bookings.filter(|b| b.start <= time && time < b.end).map(|b| b.processors).sum()
    }

    /// When it is gone, whatever happens.
    fn until(&self) -> Time {
        match self.phase {
            Phase::Prepared { until } | Phase::Committed { until } => until,
            Phase::Confirmed { until } => until.unwrap_or(Time::MAX).min(self.end()),
        }
    }

    /// Whether it is only kept free for a while: nobody relies on it.
    pub fn is_prepared(&self) -> bool {
        matches!(self.phase, Phase::Prepared { .. })
    }
}

/// Why there is no reservation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "kebab-case", tag = "because")]
pub enum Refusal {
    /// What is asked for makes no sense.
    #[error("{reason}")]
    Invalid {
        /// What does not.
        reason: String,
    },
    /// There is no such site.
    #[error("the grid has no cluster {cluster}: `slots list` shows those that there are")]
    NoSite {
        /// As it was named.
        cluster: ClusterId,
    },
    /// Somebody else has it by now.
    #[error(
        "of {processors} processors of {cluster} only {free} are free from {} s to {} s (times since 1970): ask for offers anew",
        seconds(*.start), seconds(*.end)
    )]
    Taken {
        /// Where.
        cluster: ClusterId,
        /// What is asked for.
        processors: u32,
        /// What is free throughout.
        free: u32,
        /// From when.
        start: Time,
        /// Until when.
        end: Time,
    },
    /// It is over already.
    #[error("what is asked for of {cluster} ended {ago_s:.0} s ago: ask for offers anew")]
    Past {
        /// Where.
        cluster: ClusterId,
        /// How long ago, in seconds.
        ago_s: f64,
    },
    /// It costs more than the broker pays.
    #[error("it costs {cost:.2}, and no more than {most:.2} is paid: ask for offers anew")]
    Dearer {
        /// What it costs now.
        cost: f64,
        /// What is paid.
        most: f64,
    },
    /// The site's own policy.
    #[error("{cluster} does not grant it: {why}")]
    Denied {
        /// Which.
        cluster: ClusterId,
        /// Why.
        why: Denied,
    },
    /// It has run out, or there never was one.
    #[error(
        "there is no such reservation (any more): it was not confirmed in time, has ended or was released"
    )]
    Unknown,
    /// It could not be written down.
    #[error("the scheduler cannot write its store: {reason}")]
    Store {
        /// The system's word.
        reason: String,
    },
}

fn after(now: Time, time: Duration) -> Time {
    now.saturating_add(from_duration(time))
}

#[cfg(test)]
mod tests;
#[cfg(test)]
mod tests_table;
