//! The unsafe core: the deque, slots in stack frames, leases, and the compute threads.
//!
//! This is the crate's only module with `unsafe`, and every block carries its proof. The ownership
//! rules that the proofs rely on stand at the top of `slot.rs`, those of frames at the top of
//! `frame.rs`, those of the deque at the top of `deque.rs`. Memory orders are tested with loom
//! (`loom_tests.rs`), aliasing with Miri.
#![allow(unsafe_code)]

pub(crate) mod closures;
pub(crate) mod cpu_clock;
mod deque;
mod fence;
#[cfg(feature = "fibers")]
pub(crate) mod fiber;
pub(crate) mod frame;
mod join;
pub(crate) mod layer;
pub(crate) mod leases;
#[cfg(all(test, feature = "loom"))]
mod loom_tests;
pub(crate) mod pool;
pub(crate) mod precedence;
pub(crate) mod scatter;
pub(crate) mod scope;
pub(crate) mod sleep;
pub(crate) mod slot;
mod sync;
#[cfg(test)]
mod test_layer;
#[cfg(all(test, not(feature = "loom")))]
mod tests;
pub(crate) mod thread;
