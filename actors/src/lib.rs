//! The roles of a Springtide grid as actix actors. See `ARCHITECTURE.md`.
//!
//! - [`worker`], [`cluster`], [`coordinator`]: the roles in a job. [`scheduler`], [`enrol`],
//!   [`standby`]: the head's. [`site`], [`files`], [`programs`]: a
//!   cluster's. [`client`], [`probe`]: those of
//!   other processes.
//! - [`head`], [`site_host`], [`node`]: the assembly of a process from its roles. Begin here.
//!
//! An actor receives messages, asks a state machine or a policy, and executes the decision. The
//! messages are in `springtide-protocol`, the decisions in `springtide-policy` and
//! `springtide-scheduler`, and the nodes' programs are started by `springtide-providers`. No role
//! imports another: they address each other by the protocol's receivers. Only a role that starts
//! another names it, as the worker does with its coordinators.

pub mod admit;
pub mod audit;
pub mod client;
pub mod cluster;
pub mod coordinator;
pub mod endpoint;
pub mod enrol;
pub mod files;
pub mod head;
pub mod heartbeats;
pub mod incarnation;
pub mod lease;
pub mod links;
pub mod node;
pub mod probe;
pub mod programs;
pub mod scheduler;
pub mod singleton;
pub mod site;
pub mod site_host;
pub mod standby;
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
