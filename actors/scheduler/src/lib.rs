//! The head's decisions about jobs and nodes, as state machines.
//!
//! - [`core`]: which job gets which nodes, and what follows when one is lost. Begin at
//!   [`core::SchedulerCore`]: an [`Event`](core::SchedulerEvent) and the time in,
//!   [`Action`](core::SchedulerAction)s out.
//! - [`manager`]: how many processors a job gets, in which clusters, and which malleable jobs grow
//!   and shrink for others. The core asks it; [`manager::Manager`] has the same form.
//! - [`reservation`]: the two sides of the agreement about reserved processors.
//! - [`poison`]: which task is to blame for the deaths of nodes. Coordinators use it too.
//! - [`standby`]: which of two heads may act, and what it must have stored before it answers.
//! - [`audit`]: checks of the invariants, which end the process.
//! - `catalogue`: which cluster has which input file.
//!
//! No messages are sent here, no files are read or written, and there is no clock: callers pass the
//! time, execute the actions, and feed back what follows. So the same code runs in a head, in
//! simulations of workloads and in tests of random histories.

pub mod audit;
mod catalogue;
pub mod core;
pub mod manager;
pub mod poison;
pub mod reservation;
pub mod standby;

use springtide_policy as policy;
use springtide_protocol::{admit, files, hardware, job, program, scheduler};
