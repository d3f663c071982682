//! Atomics and fences of the core: std's, or loom's under `--cfg loom`.

#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicIsize, AtomicPtr, Ordering, compiler_fence, fence};

#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicIsize, AtomicPtr, Ordering, fence};
