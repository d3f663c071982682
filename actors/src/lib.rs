//! The roles of a Springtide grid as actix actors. See `ARCHITECTURE.md`.

pub mod client;
pub mod cluster;
pub mod coordinator;
pub mod job;
pub mod scheduler;
pub mod worker;
//! The roles of a Springtide grid, as actix actors. See `ARCHITECTURE.md`.

pub mod job;
pub mod scheduler;
pub mod store;
