//! The data of measurements on compute threads: the current round, and the clock of the root's own
//! time. `measure` describes their use.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// The position of one share: its thread, and the stack it may use.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SharePosition {
    pub(crate) thread: u32,
    /// Bytes of stack that the share may use.
    pub(crate) stack_bytes: usize,
    /// Whether the share interrupts a task.
    pub(crate) interrupts_work: bool,
}

/// The part of one thread in a round. It must not panic.
pub(crate) type RoundShare = dyn Fn(SharePosition) + Send + Sync;

/// The current round.
#[derive(Default)]
pub(crate) struct Round {
    /// The number of the newest round. It only grows; threads compare it with their last round.
    number: AtomicU64,
    share: Mutex<Option<Arc<RoundShare>>>,
}

impl Round {
    /// Starts a round and replaces the previous one.
    pub(super) fn begin(&self, share: Arc<RoundShare>) {
        let mut current = lock(&self.share);
        *current = Some(share);
        self.number.fetch_add(1, Ordering::SeqCst);
    }

    /// Ends the round.
    pub(super) fn end(&self) {
        *lock(&self.share) = None;
    }

    /// The number of the newest round.
    pub(super) fn number(&self) -> u64 {
        self.number.load(Ordering::Acquire)
    }

    /// The share of each thread, unless the round has ended.
    pub(super) fn share(&self) -> Option<Arc<RoundShare>> {
        lock(&self.share).clone()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Each critical section is a single step, so a poisoned lock is safe to use.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The time in which the job's root ran its own code, between its children, on one thread.
#[derive(Debug, Default)]
pub(crate) struct RootClock(Mutex<(Duration, Option<Instant>)>);

impl RootClock {
    pub(super) fn begin(&self, now: Instant) {
        lock(&self.0).1 = Some(now);
    }

    pub(super) fn end(&self, now: Instant) {
        let (spent, since) = &mut *lock(&self.0);
        if let Some(since) = since.take() {
            *spent += now.saturating_duration_since(since);
        }
    }

    /// The root's own time up to `now`.
    pub(crate) fn spent(&self, now: Instant) -> Duration {
        let (spent, since) = *lock(&self.0);
        spent + since.map_or(Duration::ZERO, |since| now.saturating_duration_since(since))
    }
}
