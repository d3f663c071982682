//! The two sides of the reservation protocol: state machines without I/O.
//!
//! `book` is the grid's side and `broker` the other. Both are independent of jobs and of how plans
//! are made. The protocol is described with its data, in [`springtide_protocol::reservation`].

mod book;
mod broker;

use std::time::Duration;

pub use self::book::{LedgerChange, ReservableSite, ReservationLedger, StepTimeouts};
pub use self::broker::{Broker, BrokerAction, BrokerError, BrokerInput, BrokerLimits};
use crate::policy::provisioning::{Time, from_duration};
pub use springtide_protocol::reservation::*;

fn after(now: Time, time: Duration) -> Time {
    now.saturating_add(from_duration(time))
}

#[cfg(test)]
mod tests;
#[cfg(test)]
mod tests_table;
