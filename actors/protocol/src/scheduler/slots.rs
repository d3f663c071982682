//! Messages between brokers and the scheduler about slots and reservations. Data only.

use serde::{Deserialize, Serialize};
use springtide_base::id::ClusterId;
use springtide_remote::remote_message;

use crate::admit::Principal;
use crate::policy::provisioning::{Slot, Time};
use crate::reservation::{Reservation, ReservationId, ReservationRefusal, ReservationRequest};

/// Question to the scheduler: the offered slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GetSlots {}

/// The slots of all sites.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GridSlots {
    /// Time of the offer, in microseconds of the Unix epoch, by the head's clock.
    pub now: Time,
    /// Offers, one for each site.
    pub sites: Vec<SiteOffer>,
    /// All reservations at that time.
    pub reservations: Vec<Reservation>,
    /// Expected links between clusters, from the grid's config.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub links: Vec<GridLink>,
}

/// Offer of a site: its free slots.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SiteOffer {
    /// Cluster of the site.
    pub cluster: ClusterId,
    /// Number of working processors.
    pub processors: u32,
    /// Number of changes of the free slots, without the passing of time.
    pub epoch: u64,
    /// Free slots, in times of the Unix epoch.
    pub slots: Vec<Slot>,
    /// Reason why there are no slots, if the terms or a failure exclude them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub none: Option<String>,
}

/// A link between two clusters.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GridLink {
    /// One end of the link.
    pub a: ClusterId,
    /// The other end of the link.
    pub b: ClusterId,
    /// One-way latency, in seconds.
    pub latency_s: f64,
    /// Rate, in bytes per second.
    pub bytes_per_s: f64,
}

/// Request of a broker to the scheduler: prepare a reservation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PrepareSlots {
    /// Request for the reservation.
    pub ask: ReservationRequest,
}

/// Request of a broker to the scheduler: commit a prepared reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommitSlots {
    /// Number of the reservation.
    pub id: ReservationId,
    /// The broker's token of the agreement.
    pub token: u64,
}

/// Request of a broker to the scheduler: confirm a committed reservation, or renew its lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConfirmSlots {
    /// Number of the reservation.
    pub id: ReservationId,
    /// The broker's token of the agreement.
    pub token: u64,
}

/// Order to the scheduler: end a reservation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReleaseSlots {
    /// Number of the reservation.
    pub id: ReservationId,
    /// The broker's token of the agreement; absent: the number suffices.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<u64>,
    /// The sender, which the scheduler writes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<Principal>,
}

remote_message! {
    "get-slots" => GetSlots -> GridSlots;
    "prepare-slots" => PrepareSlots -> Result<Reservation, ReservationRefusal>;
    "commit-slots" => CommitSlots -> Result<Reservation, ReservationRefusal>;
    "confirm-slots" => ConfirmSlots -> Result<Reservation, ReservationRefusal>;
    "release-slots" => ReleaseSlots -> Result<Reservation, ReservationRefusal>;
}
