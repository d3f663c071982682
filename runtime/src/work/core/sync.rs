//! Atomics and fences of the core: std's, or loom's under `--cfg springtide_loom`.

#[cfg(not(springtide_loom))]
pub(crate) use std::sync::atomic::{AtomicIsize, AtomicPtr, Ordering, compiler_fence, fence};

#[cfg(springtide_loom)]
pub(crate) use loom::sync::atomic::{AtomicIsize, AtomicPtr, Ordering, fence};
