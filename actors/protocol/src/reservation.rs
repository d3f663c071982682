//! Reservations of processors at sites, and the protocol by which a broker and the grid agree on
//! one.
//!
//! Source: Singh, Kesselman, Deelman, HPDC 2007, section 7. All allocations of a plan are granted,
//! or none. The commit protocol has three phases and follows SNAP (Czajkowski et al. 2002).
//!
//! 1. *Prepare*: the broker names offered slots. The grid keeps them free for a short time, or
//!    answers with the obstacle.
//! 2. *Commit*: the broker accepts the slots. Sites may refuse by their terms. From this step on,
//!    the reservation is on disk.
//! 3. *Confirm*: both sides know of the agreement. A reservation that is not confirmed in time is
//!    void. A reservation with a lease ends unless its holder confirms it repeatedly. A broker that
//!    fails at any step leaves nothing behind.
//!
//! A broker draws a *token* for each agreement. Repeated messages of one token count once. A grid
//! that crashes before it writes may issue a number twice; the token distinguishes the two
//! reservations.
//!
//! Times are wall-clock microseconds of the Unix epoch, because reservations outlive processes.
//! Data only.

use std::fmt;

use serde::{Deserialize, Serialize};

use springtide_base::id::ClusterId;

use crate::admit::Principal;
use crate::policy::provisioning::{Booking, Denial, NEVER, Time, seconds};

/// Limits of a request, which bound its message: parts, and bookings of all parts together.
const PARTS_MAX: usize = 2048;
const BOOKINGS_MAX: usize = 20_000;

/// Number of a reservation, unique in a grid.
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

/// Bookings of one slot in a reservation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ReservedSlot {
    /// The cluster of the slot.
    pub cluster: ClusterId,
    /// Processors and their intervals.
    pub bookings: Vec<Booking>,
}

impl ReservedSlot {
    /// Start of the first booking.
    pub fn start(&self) -> Time {
        self.bookings.iter().map(|booking| booking.start).min().unwrap_or(0)
    }

    /// Processor-seconds of all bookings.
    pub fn area_s(&self) -> f64 {
        let of = |b: &Booking| f64::from(b.processors) * seconds(b.end.saturating_sub(b.start));
        self.bookings.iter().map(of).sum()
    }
}

/// A broker's request for a reservation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ReservationRequest {
    /// Random number that identifies the agreement.
    pub token: u64,
    /// Name for display only.
    pub name: String,
    /// The parts, granted all together or not at all.
    pub parts: Vec<ReservedSlot>,
    /// Highest cost that the broker accepts.
    pub max_cost: f64,
    /// Lease in milliseconds: without a confirmation for this time, the reservation ends. Absent:
    /// it lasts until its last booking ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease_ms: Option<u64>,
    /// The sender, which the scheduler writes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<Principal>,
}

impl ReservationRequest {
    /// Checks the request, which may come from another program.
    ///
    /// # Errors
    /// The reason why the request is invalid.
    pub fn validate(&self) -> Result<(), String> {
        let bookings = || self.parts.iter().flat_map(|part| &part.bookings);
        if bookings().next().is_none() {
            return Err(
                "the request has no bookings: name a cluster, processors and a time".to_owned()
            );
        }
        let (parts, all) = (self.parts.len(), bookings().count());
        if parts > PARTS_MAX || all > BOOKINGS_MAX {
            return Err(format!(
                "the request has {parts} parts with {all} bookings; the limits are {PARTS_MAX} and \
                 {BOOKINGS_MAX}: divide the request"
            ));
        }
        if let Some(b) = bookings().find(|b| b.processors == 0 || b.start >= b.end) {
            return Err(format!(
                "a booking of {} processors from {} s to {} s is empty: processors and duration \
                 must be positive",
                b.processors,
                seconds(b.start),
                seconds(b.end)
            ));
        }
        if let Some(b) = bookings().find(|b| b.end > NEVER) {
            let end = seconds(b.end);
            return Err(format!("a booking ends at {end} s, after the last time of a reservation"));
        }
        if self.max_cost.is_nan() {
            return Err("the highest cost is not a number".to_owned());
        }
        Ok(())
    }
}

/// Progress of an agreement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "phase")]
pub enum ReservationPhase {
    /// The slots are kept free for a short time.
    Prepared {
        /// End of this phase, unless the broker commits.
        until: Time,
    },
    /// The broker accepted the slots and must confirm.
    Committed {
        /// End of this phase, unless the broker confirms.
        until: Time,
    },
    /// The agreement stands.
    Confirmed {
        /// End of the lease, unless the broker renews it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        until: Option<Time>,
    },
}

/// A reservation, agreed or in preparation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Reservation {
    /// Number of the reservation.
    pub id: ReservationId,
    /// The broker's token of the agreement.
    pub token: u64,
    /// Name for display only.
    pub name: String,
    /// Reserved processors, by slot.
    pub parts: Vec<ReservedSlot>,
    /// Cost of the reservation, without penalties.
    pub cost: f64,
    /// Progress of the agreement.
    pub phase: ReservationPhase,
    /// Lease in milliseconds; absent: no lease.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease_ms: Option<u64>,
    /// The principal that requested it, who may use and release it, as operators may. Absent: all
    /// may.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<Principal>,
}

impl Reservation {
    /// Checks that a principal may use or release the reservation.
    ///
    /// # Errors
    /// It belongs to another principal.
    pub fn admit(&self, by: Option<&Principal>) -> Result<(), ReservationRefusal> {
        match (&self.owner, by) {
            (Some(owner), Some(by)) if owner != by && !by.is_operator() => {
                Err(ReservationRefusal::Foreign { id: self.id, owner: owner.clone() })
            }
            _ => Ok(()),
        }
    }

    /// End of the last booking.
    pub fn end(&self) -> Time {
        self.bookings().map(|(_, booking)| booking.end).max().unwrap_or(0)
    }

    /// Start of the first booking.
    pub fn start(&self) -> Time {
        self.bookings().map(|(_, booking)| booking.start).min().unwrap_or(0)
    }

    /// Iterates over all bookings with their clusters.
    pub fn bookings<'a>(&'a self) -> impl Iterator<Item = (&'a ClusterId, Booking)> {
        let of =
            |part: &'a ReservedSlot| part.bookings.iter().map(|booking| (&part.cluster, *booking));
        self.parts.iter().flat_map(of)
    }

    /// Returns the reserved processors of a cluster at a time.
    pub fn processors_at(&self, cluster: &ClusterId, time: Time) -> u32 {
        let parts = self.parts.iter().filter(|part| part.cluster == *cluster);
        let bookings = parts.flat_map(|part| &part.bookings);
        bookings.filter(|b| b.start <= time && time < b.end).map(|b| b.processors).sum()
    }

    /// Latest time at which the reservation exists, unless it is renewed or advances.
    pub fn until(&self) -> Time {
        match self.phase {
            ReservationPhase::Prepared { until } | ReservationPhase::Committed { until } => until,
            ReservationPhase::Confirmed { until } => until.unwrap_or(Time::MAX).min(self.end()),
        }
    }

    /// Whether the reservation is only prepared, so that it is not binding yet.
    pub fn is_prepared(&self) -> bool {
        matches!(self.phase, ReservationPhase::Prepared { .. })
    }
}

/// Reasons why the grid refuses a reservation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "kebab-case", tag = "because")]
pub enum ReservationRefusal {
    /// The request is invalid.
    #[error("{reason}")]
    Invalid {
        /// Reason why it is invalid.
        reason: String,
    },
    /// The grid has no such cluster.
    #[error("the grid has no cluster {cluster}: `slots list` shows the clusters")]
    NoSite {
        /// The cluster that the request names.
        cluster: ClusterId,
    },
    /// Too few processors are free, for example because of another reservation.
    #[error(
        "of {processors} processors of {cluster}, only {free} are free from {} s to {} s (since \
         1970): request new offers",
        seconds(*.start), seconds(*.end)
    )]
    Taken {
        /// Cluster of the booking.
        cluster: ClusterId,
        /// Processors that the booking asks for.
        processors: u32,
        /// Processors that are free during the whole interval.
        free: u32,
        /// Start of the booking.
        start: Time,
        /// End of the booking.
        end: Time,
    },
    /// A booking ended in the past.
    #[error("a requested slot of {cluster} ended {ago_s:.0} s ago: request new offers")]
    Past {
        /// Cluster of the booking.
        cluster: ClusterId,
        /// Seconds since the booking ended.
        ago_s: f64,
    },
    /// The reservation costs more than the broker accepts.
    #[error("the cost is {cost:.2}, and the limit is {most:.2}: request new offers")]
    TooExpensive {
        /// Cost at the present prices.
        cost: f64,
        /// Highest cost that the broker accepts.
        most: f64,
    },
    /// The site's policy denies the reservation.
    #[error("{cluster} denies the reservation: {why}")]
    Denied {
        /// Cluster of the site.
        cluster: ClusterId,
        /// Reason of the denial.
        why: Denial,
    },
    /// The reservation does not exist, or exists no longer.
    #[error(
        "the reservation does not exist: it was not confirmed in time, has ended or was released"
    )]
    Unknown,
    /// Another principal requested the reservation.
    #[error("{id} belongs to {owner}: only its owner and operators may use or release it")]
    Foreign {
        /// Number of the reservation.
        id: ReservationId,
        /// The principal that requested it.
        owner: Principal,
    },
    /// The scheduler's store failed.
    #[error("the scheduler cannot write its store: {reason}")]
    Store {
        /// Error message of the operating system.
        reason: String,
    },
}
