//! Placement of jobs, and growth and shrinking of malleable jobs: pure decisions on counts of
//! processors.
//!
//! Source: Buisson, Sonmez, Mohamed, Lammers, Epema, *Scheduling malleable applications in
//! multicluster systems*, CLUSTER 2007 (below: the paper). This module does not know nodes,
//! messages or time.
//!
//! Decisions where the paper's listings contradict its text or are silent:
//! - The remainder of an equal shrink falls on the jobs that started *last*. (The listing compares
//!   in the wrong direction, and then asks every job for the whole amount.)
//! - A round ends when the rest is zero *or negative*: a job with constraints of its own may
//!   release more than requested.
//! - There is no round without jobs, and no message for a share of zero. Of two jobs with the same
//!   start, the one with the smaller number is older.
//! - Equal growth distributes the *free* processors among the jobs below their maximum. Refused
//!   processors are offered again in the next round, not in this one.
//! - A job at its bounds, or with a change under way, does not take part in a round.

mod benefit;
mod hosts;
mod packing;
mod placement;
mod round;

pub use self::benefit::{Benefit, GrowthLimits};
pub use self::hosts::{Devices, FreeHost, HostCapacity, HostShare, NodeNeeds, allocate, placeable};
pub use self::placement::{
    CapacitySnapshot, ClusterBandwidths, ClusterCapacity, Component, ExclusionReason, FileName,
    FileReplicas, PlacedPart, PlacementError, PlacementPlan, PlacementPolicy, PlacementTransfer,
    place,
};
pub use self::round::{Direction, MalleableJob, Policy, ResizeRequest, Round};
