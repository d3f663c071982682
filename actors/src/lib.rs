//! The roles of a Springtide grid, as actix actors. See `ARCHITECTURE.md`.

pub mod job;
pub mod scheduler;
pub mod store;
// `worker`, `cluster` and `coordinator` join the crate as soon as `client::Client` and `scheduler::Scheduler` are here.
