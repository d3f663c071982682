//! The list of the tasks that a thread watches, and the words that it shares with the ticker.
//!
//! `watch` describes their use.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use springtide_forkjoin::layer::{ComputeThread, TaskFrame};

/// The word of a thread whose tick is due.
pub(super) const DUE: usize = 0;
/// The word of a thread whose list is empty.
pub(super) const NONE: usize = usize::MAX;

/// The words that one thread shares with the ticker.
pub(crate) struct ThreadWatch {
    /// Tasks in frames at or above this address are examined when they end. [`DUE`]: all of them,
    /// and the list is renewed.
    pub(super) from: AtomicUsize,
    /// The time of the tick in microseconds since the pool's start; valid in [`DUE`].
    pub(super) since_us: AtomicU64,
}

impl Default for ThreadWatch {
    fn default() -> Self {
        Self { from: AtomicUsize::new(NONE), since_us: AtomicU64::new(0) }
    }
}

impl ThreadWatch {
    /// Whether a tick is due.
    #[inline(always)]
    pub(crate) fn is_due(&self) -> bool {
        self.from.load(Ordering::Relaxed) == DUE
    }

    #[inline(always)]
    pub(super) fn covers<W: ComputeThread>(&self, frame: &TaskFrame<W>) -> bool {
        std::ptr::from_ref(frame).addr() >= self.from.load(Ordering::Relaxed)
    }

    /// Stores a tick. An earlier one that is still due stays, since the tasks of that time still
    /// run; then returns false.
    pub(super) fn set_due(&self, now_us: u64) -> bool {
        let new = !self.is_due();
        if new {
            self.since_us.store(now_us, Ordering::Relaxed);
            self.from.store(DUE, Ordering::Release);
        }
        new
    }
}

/// A task on a thread's list.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct WatchedTask {
    /// The address of its frame.
    pub(super) frame: usize,
    /// The index, which distinguishes the task from earlier children in the same frame.
    index: u64,
    since_us: u64,
}

impl WatchedTask {
    /// The task in this frame, which ran at this time.
    pub(super) fn of<W: ComputeThread>(frame: &TaskFrame<W>, since_us: u64) -> Self {
        Self { frame: std::ptr::from_ref(frame).addr(), index: frame.index(), since_us }
    }

    /// Whether it is the task in this frame.
    pub(super) fn is<W: ComputeThread>(&self, frame: &TaskFrame<W>) -> bool {
        self.frame == std::ptr::from_ref(frame).addr() && self.index == frame.index()
    }
}

/// The tasks that a thread watches.
#[derive(Default)]
pub(crate) struct WatchList {
    /// The listed tasks, outermost first. New ones are appended, and an ended task removes all
    /// after it, so every entry is on the stack.
    pub(super) tasks: Vec<WatchedTask>,
}

impl WatchList {
    /// The value of the thread's word. Nested frames usually have lower addresses, but the order is
    /// unknown where one was inlined into another.
    pub(super) fn from(&self) -> usize {
        self.tasks.iter().map(|task| task.frame).min().unwrap_or(NONE)
    }

    /// Removes an ended task. Returns the time of its tick, if it was listed.
    pub(super) fn end<W: ComputeThread>(&mut self, frame: &TaskFrame<W>) -> Option<u64> {
        let at = self.tasks.iter().rposition(|task| task.is(frame))?;
        let since_us = self.tasks[at].since_us;
        self.tasks.truncate(at);
        Some(since_us)
    }
}
