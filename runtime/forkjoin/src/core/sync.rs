//! Atomics and fences of the core: std's, or loom's with the feature `loom`.

#[cfg(not(feature = "loom"))]
pub(crate) use std::sync::atomic::{AtomicIsize, AtomicPtr, Ordering, compiler_fence, fence};

#[cfg(feature = "loom")]
pub(crate) use loom::sync::atomic::{AtomicIsize, AtomicPtr, Ordering, fence};
