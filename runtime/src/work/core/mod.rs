//! The unsafe heart of work stealing: the deque, slots in stack frames, leases, and the thread that runs them.
//!
//! No tokio runtime, no actix, no I/O: it reads the clock (`tokio::time::Instant`) and calls out by the `Seam` and `Host`
//! traits. This is the crate's one module with `unsafe`; every block carries its proof, the ownership rules that the proofs
//! lean on stand at the top of `slot.rs`, the deque's at the top of `deque.rs`. Orders are tested with loom
//! (`loom_tests.rs`), aliasing with Miri where the toolchain has it.
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

pub use shared::{LeaseBook, LeaseId};
