//! Measurements on compute threads: rounds, and the clock of the root's own time.
//!
//! In a round every thread executes one share of a measurement on its own stack. The clock measures
//! the time in which the job's root runs its own code. This module does not know what is measured.
//!
//! None of it slows the fast path of joins: threads arrive here by the word that joins read anyway.

use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use springtide_forkjoin::layer::ComputeThread;
use tokio::time::Instant;

use super::round::{RoundShare, SharePosition};
use super::shared::{PoolState, ROUND, TaskThread};
use crate::meter::ThreadState;

impl PoolState {
    /// Starts a round and replaces the previous one. Each thread executes the share once, in
    /// [`ThreadState::Bench`].
    ///
    /// It does so at its next join or when it is idle, but not while its stack is more than half
    /// full. [`PoolObserver::idle`](crate::work::PoolObserver::idle) is called after each share.
    pub(crate) fn begin_round(&self, share: Arc<RoundShare>) {
        self.round.begin(share);
        self.signal(ROUND, true);
        self.wake_all();
    }

    /// Ends the round: no thread starts its share from here on.
    pub(crate) fn end_round(&self) {
        self.round.end();
        self.signal(ROUND, false);
    }
}

impl TaskThread {
    /// Executes this thread's share of the current round, once.
    #[cold]
    #[inline(never)]
    pub(crate) fn join_round(&self, interrupts_work: bool) {
        let round = &self.shared().round;
        let number = round.number();
        if number == self.rounds.get() || !self.core().has_stack() {
            return;
        }
        let Some(share) = round.share() else { return };
        self.rounds.set(number);
        let me = self.core().me();
        let paused = self.leave_root();
        // During the share the thread accepts no other work.
        me.set_idle(false);
        let left = me.layer.account.switch(ThreadState::Bench, Instant::now());
        share(SharePosition {
            thread: self.index(),
            stack_bytes: self.core().stack_left(),
            interrupts_work,
        });
        me.layer.account.switch(left, Instant::now());
        drop(paused);
        self.shared().observer.idle();
    }
}

/// The word that joins read while the root runs its own code, instead of the pool's signals. It is
/// never zero, so each of the root's joins takes the slow path, which stops the clock. Other joins
/// cost the same as without it.
static AT_ROOT: AtomicU32 = AtomicU32::new(1);

impl TaskThread {
    /// Whether the calling code belongs to the root itself.
    #[inline]
    pub(crate) fn is_at_root(&self) -> bool {
        self.core().reads_signals_word(&AT_ROOT)
    }

    /// Marks the root's own code from here until the guard is dropped. `None` if nothing is
    /// measured.
    pub(crate) fn enter_root(&self) -> Option<RootGuard<'_>> {
        if !self.shared().is_metered() {
            return None;
        }
        self.set_at_root(true);
        Some(RootGuard { worker: self, inside: true })
    }

    /// Pauses the root's own code from here until the guard is dropped. `None` if the root's code
    /// does not run.
    #[inline]
    pub(crate) fn leave_root(&self) -> Option<RootGuard<'_>> {
        if !self.is_at_root() {
            return None;
        }
        self.set_at_root(false);
        Some(RootGuard { worker: self, inside: false })
    }

    #[cold]
    fn set_at_root(&self, inside: bool) {
        let now = Instant::now();
        if inside {
            self.core().set_signals_word(Some(&AT_ROOT));
            self.data().root_clock.begin(now);
        } else {
            self.core().set_signals_word(None);
            self.data().root_clock.end(now);
        }
    }
}

/// Undoes [`TaskThread::enter_root`] or [`TaskThread::leave_root`].
pub(crate) struct RootGuard<'a> {
    worker: &'a TaskThread,
    inside: bool,
}

impl Drop for RootGuard<'_> {
    fn drop(&mut self) {
        self.worker.set_at_root(!self.inside);
    }
}
