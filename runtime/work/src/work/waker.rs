//! Wakers of compute threads that sleep until a message or a value arrives.

use std::sync::Weak;

/// A pool of threads that sleep.
pub(crate) trait WakeThread: Send + Sync {
    /// Wakes the thread of this index.
    fn wake_thread(&self, thread: u32);
}

/// Wakes a sleeping compute thread while its pool exists.
#[derive(Clone)]
pub(crate) struct Waker {
    pool: Weak<dyn WakeThread>,
    /// The index of the thread.
    pub(crate) thread: u32,
}

impl Waker {
    pub(crate) fn new(pool: Weak<dyn WakeThread>, thread: u32) -> Self {
        Self { pool, thread }
    }

    /// Wakes the thread; call it after the awaited value is stored.
    pub(crate) fn wake(&self) {
        if let Some(pool) = self.pool.upgrade() {
            pool.wake_thread(self.thread);
        }
    }
}
