//! The layer of a grid's tasks above the scheduler in `springtide-forkjoin`: leases, halts, results
//! to reuse, and measurements on compute threads.
//!
//! It uses no tokio runtime, no actix and no I/O. It reads the clock (`tokio::time::Instant`) and
//! calls out through the traits `Seam` and `PoolObserver`. Its only `unsafe` is the promise of
//! `worker.rs` to the scheduler.

mod leases;
mod measure;
mod patience;
pub(crate) mod remote_task;
pub(crate) mod round;
pub(crate) mod shared;
pub(crate) mod tree;
mod watch;
mod watch_list;
#[cfg(test)]
mod watch_tests;
pub(crate) mod worker;

pub use remote_task::LeaseId;
