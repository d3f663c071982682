//! The roles of a Springtide grid as actix actors. See `ARCHITECTURE.md`.
//!
//! Decisions are pure functions, in `springtide-policy`; actors collect their inputs and execute them.

pub mod admit;
pub mod client;
pub mod cluster;
pub mod coordinator;
pub mod endpoint;
pub mod enrol;
pub mod files;
pub mod head;
pub mod incarnation;
pub mod lease;
pub mod links;
pub mod node;
pub mod probe;
pub mod pulse;
pub mod scheduler;
pub mod site;
pub mod site_host;
pub mod store;
pub mod supervise;
pub mod worker;
mod worker_calls;

pub use springtide_policy as policy;
pub use springtide_protocol::{hardware, job, look};
pub use springtide_providers as provider;

/// The protocol of reservations: its data and its two sides.
pub mod reservation {
    pub use springtide_protocol::reservation::*;
    pub use springtide_scheduler::reservation::*;
}
