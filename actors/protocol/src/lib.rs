//! The messages between the roles of a Springtide grid, and the rules who may send them.
//!
//! - A module for each receiver, with its messages and their replies: [`scheduler`], [`site`],
//!   [`node`], [`worker`], [`cluster`], [`files`], [`program`], [`enrol`], [`probe`]. [`job`] has
//!   those about a job as a whole, and [`look`] those of observers.
//! - [`names`]: the names under which the receivers are published.
//! - [`receivers`]: types that stand for the receivers where a sender addresses them.
//! - [`admit`]: the rule of each message. `admit/matrix.txt` shows the consequences of the rules
//!   for each role and place.
//! - [`reservation`], [`hardware`], [`heartbeat`]: data that messages carry, and heartbeats.
//!
//! Begin at [`admit::RULES`], the list of all messages. The golden bytes in `golden/` must decode
//! in later versions; a change of the wire shows there.
//!
//! Data only: no actors and no decisions. A sender needs this crate, not the receiver's.

pub mod admit;
pub mod cluster;
pub mod enrol;
pub mod files;
#[cfg(test)]
mod golden;
pub mod hardware;
pub mod heartbeat;
pub mod job;
pub mod look;
pub mod names;
pub mod node;
pub mod probe;
pub mod program;
pub mod receivers;
pub mod reservation;
pub mod scheduler;
pub mod singleton;
pub mod site;
pub mod worker;

use springtide_policy as policy;
