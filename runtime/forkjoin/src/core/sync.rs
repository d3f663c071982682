//! Atomics, mutexes, cells and fences of the core: std's, or loom's with the feature `loom`.

#[cfg(not(feature = "loom"))]
pub(crate) use std::hint::spin_loop;
#[cfg(not(feature = "loom"))]
pub(crate) use std::sync::atomic::{
    AtomicBool, AtomicIsize, AtomicPtr, AtomicU32, AtomicU64, Ordering, compiler_fence, fence,
};
#[cfg(not(feature = "loom"))]
pub(crate) use std::sync::{Mutex, MutexGuard};

#[cfg(feature = "loom")]
pub(crate) use loom::cell::UnsafeCell;
#[cfg(feature = "loom")]
pub(crate) use loom::hint::spin_loop;
#[cfg(feature = "loom")]
pub(crate) use loom::sync::atomic::{
    AtomicBool, AtomicIsize, AtomicPtr, AtomicU32, AtomicU64, Ordering, fence,
};
#[cfg(feature = "loom")]
pub(crate) use loom::sync::{Mutex, MutexGuard};

/// A cell with loom's interface, so that loom finds unordered accesses to its contents.
#[cfg(not(feature = "loom"))]
#[derive(Debug)]
pub(crate) struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

#[cfg(not(feature = "loom"))]
impl<T> UnsafeCell<T> {
    #[inline(always)]
    pub(crate) const fn new(value: T) -> Self {
        Self(std::cell::UnsafeCell::new(value))
    }

    #[inline(always)]
    pub(crate) fn with<R>(&self, read: impl FnOnce(*const T) -> R) -> R {
        read(self.0.get())
    }

    #[inline(always)]
    pub(crate) fn with_mut<R>(&self, write: impl FnOnce(*mut T) -> R) -> R {
        write(self.0.get())
    }
}

/// Locks a mutex. Data under the core's locks changes in single steps, so a poisoned lock is safe
/// to use.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
