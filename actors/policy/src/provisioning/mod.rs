//! Planning of workflows on advertised slots: which slots to provision, and where tasks run. Pure
//! decisions.
//!
//! Source: Singh, Kesselman, Deelman, *A provisioning model and its comparison with best-effort for
//! performance-cost optimization in grids*, HPDC 2007 (below: the paper). This module does not know
//! provisioning protocols, execution or clocks: a [`Time`] counts from an origin of the caller.
//!
//! - [`Slot`]: processors of a site for an interval at a price. Sites advertise the free part of
//!   their [`BookingTable`].
//! - [`Dag`]: tasks with processors, runtimes per site and data between them.
//! - [`ListScheduler`]: list schedulers on slots (HEFT, greedy, Min-Min, Max-Min). They give a
//!   set's cost and makespan.
//! - [`search`]: the sets of slots that are not dominated, by the paper's genetic search or the
//!   pruned one. [`enumerate`] gives the exact front of small instances.
//! - [`Terms`]: prices of a site's slots, and limits of its grants.
//! - [`ParetoFront`]: the Pareto front of these sets, and the choice by trade-off, deadline or
//!   budget.
//!
//! Decisions where the paper is silent:
//! - Times are whole microseconds, so that equal ends compare equal.
//! - A chosen slot that is not divisible is paid as a whole, used or not. For a divisible one, the
//!   tasks' processor time is paid, and its fixed price once if any task runs there. An extended
//!   slot that is not divisible is paid to its last task's end.
//! - Processors of one slot share one window, so that counts over time describe them fully. Several
//!   slots are considered one by one.
//! - The makespan counts from the time origin, which is the submission, not from the first start.
//! - A plan must place every task; others are never in a front.

use std::time::Duration;

mod dag;
mod front;
mod list;
mod search;
mod skyline;
mod slot;
mod table;
mod terms;

pub use self::dag::{Dag, DagError, DagTask, Edge, Runtime, SiteLinks};
pub use self::front::{Constraint, Objectives, ParetoFront, PlanPoint, hypervolume};
pub use self::list::{
    ListScheduler, Method, Schedule, ScheduleResult, SlotPart, TaskPlan, UnplacedTask,
};
pub use self::search::{Budget, Search, SearchResult, enumerate, search};
pub use self::skyline::AvailabilityProfile;
pub use self::slot::{Price, Slot, SlotPieces, SlotSet};
pub use self::table::{Booking, BookingTable, TableError, advertise};
pub use self::terms::{Denial, Terms};

/// A time or duration in microseconds, from an origin of the caller.
pub type Time = u64;

/// Microseconds in a second.
pub const SECOND: Time = 1_000_000;

/// End of an interval without an end.
pub const NEVER: Time = u64::MAX / 4;

/// Converts seconds to a [`Time`], rounded. A negative number or NaN is 0; the maximum is
/// [`NEVER`].
pub fn from_seconds(seconds: f64) -> Time {
    // A float cast saturates, and maps NaN to 0.
    ((seconds * SECOND as f64).round() as Time).min(NEVER)
}

/// Converts a duration to a [`Time`]; the maximum is [`NEVER`].
pub fn from_duration(duration: Duration) -> Time {
    Time::try_from(duration.as_micros()).map_or(NEVER, |time| time.min(NEVER))
}

/// Converts a [`Time`] to seconds.
pub fn seconds(time: Time) -> f64 {
    time as f64 / SECOND as f64
}

#[cfg(test)]
mod tests;
