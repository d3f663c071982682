//! The unsafe core of work stealing: the deque, slots in stack frames, leases, and the compute
//! threads.
//!
//! It uses no tokio runtime, no actix and no I/O. It reads the clock (`tokio::time::Instant`) and
//! calls out through the traits `Seam` and `PoolObserver`.
//!
//! This is the crate's only module with `unsafe`, and every block carries its proof. The ownership
//! rules that the proofs rely on stand at the top of `slot.rs`, those of the deque at the top of
//! `deque.rs`. Memory orders are tested with loom (`loom_tests.rs`), aliasing with Miri where the
//! toolchain has it.
#![allow(unsafe_code)]

pub(crate) mod children;
pub(crate) mod cpu_clock;
pub(crate) mod deque;
pub(crate) mod fence;
#[cfg(any(test, feature = "virtual-time"))]
pub(crate) mod fiber;
#[cfg(all(test, feature = "loom"))]
mod loom_tests;
pub(crate) mod patience;
pub(crate) mod precedence;
pub(crate) mod round;
pub(crate) mod shared;
pub(crate) mod slot;
pub(crate) mod sync;
pub(crate) mod watch;
#[cfg(all(test, not(feature = "loom")))]
mod watch_tests;
pub(crate) mod worker;

pub use shared::{LeaseCounts, LeaseId};
