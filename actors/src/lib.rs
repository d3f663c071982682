//! The roles of a Springtide grid, as actix actors. See `ARCHITECTURE.md`.

pub mod job;
pub mod scheduler;
pub mod store;
