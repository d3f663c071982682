//! Which advertised slots to provision for a workflow, and where its tasks run on them: pure decisions.
//!
//! Source: Singh, Kesselman, Deelman, *A provisioning model and its comparison with best-effort for performance-cost optimization in
//! grids*, HPDC 2007 (below: the paper). Must not know how slots are had, how tasks are run, or the time: times are [`Time`]s from an
//! origin that the caller chose.
//!
//! - [`Slot`]: processors of a site for a while at a price; sites advertise what their [`Table`] leaves free.
//! - [`Dag`]: tasks with processors, runtimes per site and data that passes between them.
//! - [`Lister`]: list schedulers on slots (HEFT, greedy, Min-Min, Max-Min): what a set of slots costs and how long the workflow takes.
//! - [`search`]: the sets of slots of which none is dominated, by the paper's genetic search or by ours; [`enumerate`] has the exact
//!   ones of small instances.
//! - [`Terms`]: what a site asks for its slots, and what it does not grant.
//! - [`Front`]: these sets, what they are worth, and which of them a trade-off, a deadline or a budget takes.
//!
//! Decided here where the paper says nothing:
//! - Times are whole microseconds, so that equal ends are equal.
//! - A slot that is chosen and not divisible is paid whole, used or not. Of a divisible one the tasks' own processor time is paid, and its
//!   fixed price once if anything runs there. A slot that is extended and not divisible is paid to its last task's end.
//! - Processors of one slot share one window, so that counts over time say all of it; of several slots each is looked at by itself.
//! - The makespan counts from the time origin, which is the submission, not from the first start.
//! - A plan on which not every task has a place is no plan: it is never in a front.

use std::time::Duration;

mod dag;
mod front;
mod list;
mod search;
mod skyline;
mod slot;
mod table;
mod terms;

pub use self::dag::{Dag, DagError, Edge, Links, Runtime, Task};
pub use self::front::{Constraint, Front, Objectives, Point, hypervolume};
pub use self::list::{Lister, Method, Outcome, Piece, Schedule, TaskPlan, Unplaced};
pub use self::search::{Budget, Found, Genome, Search, enumerate, search};
pub use self::skyline::Skyline;
pub use self::slot::{Price, Slot};
pub use self::table::{Booking, Table, TableError, advertise};
pub use self::terms::{Denied, Terms};

/// A time or a duration in microseconds from an origin that whoever asks has chosen.
pub type Time = u64;

/// So many microseconds are a second.
pub const SECOND: Time = 1_000_000;

/// After everything: the end of what has none.
pub const NEVER: Time = u64::MAX / 4;

/// Seconds as a [`Time`], rounded; what is no time (negative, not a number) is 0, and what is beyond all is [`NEVER`].
pub fn from_seconds(seconds: f64) -> Time {
    // A cast of a float saturates, and takes what is not a number for 0.
    ((seconds * SECOND as f64).round() as Time).min(NEVER)
}

/// A duration as a [`Time`]; what is beyond all is [`NEVER`].
pub fn from_duration(duration: Duration) -> Time {
    Time::try_from(duration.as_micros()).map_or(NEVER, |time| time.min(NEVER))
}

/// A [`Time`] in seconds.
pub fn seconds(time: Time) -> f64 {
    time as f64 / SECOND as f64
}

#[cfg(test)]
mod tests;
