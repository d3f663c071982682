//! The scheduler: one a grid. It knows the nodes of every site, queues jobs, and hands them nodes.

pub mod core;
mod messages;

pub use messages::*;
