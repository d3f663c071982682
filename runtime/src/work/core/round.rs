//! What a pool does beside the job's tasks, for measurements: rounds, in which every thread does a share of something
//! on its own stack; and the clock of the time that the job's root takes for itself.
//!
//! Must not know what is measured. None of it touches the path of joins: threads are led here by the word that joins
//! read anyway.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::shared::{ROUND, Shared};
use super::worker::Worker;
use crate::meter::ThreadState;

/// Whose share it is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) thread: u32,
    /// Stack that is surely left.
    pub(crate) stack_bytes: usize,
    /// Whether the thread interrupts a task for it.
    pub(crate) amid_work: bool,
}

/// What a thread does in a round. Must not panic.
pub(crate) type Share = dyn Fn(Place) + Send + Sync;

/// The round under way.
#[derive(Default)]
pub(crate) struct Round {
    /// Number of the newest round; only grows. Threads compare it with the last one they took part in.
    number: AtomicU64,
    share: Mutex<Option<Arc<Share>>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Single steps leave the data whole.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    /// Each thread does this once, at its next join or when it has nothing else to do, in [`ThreadState::Bench`];
    /// threads that are deep in their stacks do it when they have come up. [`Host::hungry`](crate::work::Host::hungry)
    /// is called after each share. Replaces the round before.
    pub(crate) fn begin_round(&self, share: Arc<Share>) {
        {
            let mut current = lock(&self.round.share);
            *current = Some(share);
            self.round.number.fetch_add(1, Ordering::SeqCst);
        }
        self.signal(ROUND, true);
        self.wake_all();
    }

    /// No thread begins its share from here on.
    pub(crate) fn end_round(&self) {
        *lock(&self.round.share) = None;
        self.signal(ROUND, false);
    }
}

impl Worker {
    /// Does this thread's share of the round that is under way, if it has not yet.
    #[cold]
    #[inline(never)]
    pub(crate) fn take_part(&self, amid_work: bool) {
        let round = &self.shared().round;
        let number = round.number.load(Ordering::Acquire);
        if number == self.rounds.get() || !self.has_stack() {
            return;
        }
        let Some(share) = lock(&round.share).clone() else { return };
        self.rounds.set(number);
        let me = self.me();
        let paused = self.leave_root();
        // It wants no work of others meanwhile.
        me.hungry.store(false, Ordering::SeqCst);
        let left = me.account.switch(ThreadState::Bench, Instant::now());
        share(Place { thread: self.index(), stack_bytes: self.stack_left(), amid_work });
        me.account.switch(left, Instant::now());
        drop(paused);
        self.shared().host.hungry();
    }
}

/// Read by joins in place of the pool's signals while the root runs its own code: never zero, so that each of the
/// root's joins takes the slow path, where the clock is stopped. All other joins pay nothing for it.
static AT_ROOT: AtomicU32 = AtomicU32::new(1);

/// How long the job's root ran its own code, between its children, on one thread.
#[derive(Debug, Default)]
pub(crate) struct RootClock(Mutex<(Duration, Option<Instant>)>);

impl RootClock {
    fn begin(&self, now: Instant) {
        lock(&self.0).1 = Some(now);
    }

    fn end(&self, now: Instant) {
        let (spent, since) = &mut *lock(&self.0);
        if let Some(since) = since.take() {
            *spent += now.saturating_duration_since(since);
        }
    }

    /// The time up to `now`.
    pub(crate) fn spent(&self, now: Instant) -> Duration {
        let (spent, since) = *lock(&self.0);
        spent + since.map_or(Duration::ZERO, |since| now.saturating_duration_since(since))
    }
}

impl Worker {
    /// Whether the calling code is the root's own.
    #[inline]
    pub(crate) fn is_at_root(&self) -> bool {
        std::ptr::eq(self.signals.get().as_ptr(), &AT_ROOT)
    }

    /// From here on this thread runs the root's own code, until the guard is dropped. Absent where nothing is measured.
    pub(crate) fn enter_root(&self) -> Option<AtRoot<'_>> {
        if !self.shared().is_metered() {
            return None;
        }
        self.at_root(true);
        Some(AtRoot { worker: self, inside: true })
    }

    /// From here on this thread runs no code of the root's own, until the guard is dropped. Absent where it does not
    /// anyway.
    #[inline]
    pub(crate) fn leave_root(&self) -> Option<AtRoot<'_>> {
        if !self.is_at_root() {
            return None;
        }
        self.at_root(false);
        Some(AtRoot { worker: self, inside: false })
    }

    #[cold]
    fn at_root(&self, inside: bool) {
        let now = Instant::now();
        if inside {
            self.signals.set(NonNull::from(&AT_ROOT));
            self.me().root_clock.begin(now);
        } else {
            self.signals.set(NonNull::from(self.shared().signals_word()));
            self.me().root_clock.end(now);
        }
    }
}

/// Undoes [`Worker::enter_root`] or [`Worker::leave_root`].
pub(crate) struct AtRoot<'a> {
    worker: &'a Worker,
    inside: bool,
}

impl Drop for AtRoot<'_> {
    fn drop(&mut self) {
        self.worker.at_root(!self.inside);
    }
}
