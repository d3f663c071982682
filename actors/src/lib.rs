//! The roles of a Springtide grid as actix actors. See `ARCHITECTURE.md`.
//!
//! Decisions are pure functions; actors collect their inputs and execute them. An example: the
//! benefit of more processors to a job, derived from one measured efficiency.
//!
//! ```
//! use springtide_actors::policy::malleability::Benefit;
//!
//! // Eight processors at efficiency 0.5 have the speedup of four.
//! let benefit = Benefit::measured(0.5, 8);
//! assert!((benefit.speedup(8) - 4.0).abs() < 1e-9);
//! // It accepts nine of sixteen more: with ten its efficiency would be below 0.3.
//! assert_eq!(benefit.takes(8, 16, 0.3), 9);
//! ```

pub mod admit;
pub mod client;
pub mod cluster;
pub mod coordinator;
pub mod endpoint;
pub mod enrol;
pub mod files;
#[cfg(test)]
mod golden;
pub mod hardware;
pub mod head;
pub mod incarnation;
pub mod job;
pub mod lease;
pub mod links;
pub mod look;
pub mod node;
mod poison;
pub mod policy;
pub mod probe;
pub mod provider;
pub mod pulse;
pub mod reservation;
pub mod scheduler;
pub mod site;
pub mod site_host;
pub mod store;
pub mod supervise;
pub mod worker;
