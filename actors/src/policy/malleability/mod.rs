//! Where jobs are placed, and which of the malleable ones grow and shrink: pure decisions on counts of processors.
//!
//! Source: Buisson, Sonmez, Mohamed, Lammers, Epema, *Scheduling malleable applications in multicluster systems*,
//! CLUSTER 2007 (below: the paper). Must not know which nodes the processors are, how a job is told, or the time.
//!
//! Decided here where the paper's listings contradict their text or say nothing:
//! - The remainder of an equal shrink falls on the jobs that started *last* (the listing compares the wrong way round and
//!   then asks every job for everything).
//! - A round ends when nothing *or less than nothing* is left: a job with constraints of its own may give back more than
//!   it was asked for.
//! - Without a job there is no round; a share of nothing is no message; of two jobs that started at once the one with
//!   the smaller number is the older.
//! - Equal growth shares out the *free* processors, among the jobs that are not full; what one refuses is offered again
//!   in the next round, not in this one.
//! - A job at its bounds, or with a change under way, takes no part in a round.

mod benefit;
mod placement;
mod round;

pub use self::benefit::{Benefit, Worth};
pub use self::placement::{
    Component, Excluded, FileName, Ground, Links, NoPlace, Part, Placed, Placement, Replica, Room,
    Transfer, place,
};
pub use self::round::{Ask, Direction, Policy, Round, Runner};
