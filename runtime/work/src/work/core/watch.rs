//! Outputs of long tasks, kept while their parents run, so that they survive when the node leaves.
//!
//! A join's finished child is kept on the way up. But an output that its parent has already
//! consumed is gone by then, so it is kept here.
//!
//! # How long tasks are found
//!
//! No clock is read when a task starts or ends. Every half of the floor (`PoolConfig::work_floor`)
//! a tick stores a time for each thread. The thread takes the tick at its next join or at the next
//! end of a task, and lists the tasks on its stack. It takes the tick before it starts anything
//! else, so all of these already ran at that time.
//!
//! A task that is on the list when it ends has run at least since its tick. It is kept if that time
//! is a quarter of the floor or more. So with timely ticks every task of three quarters of the
//! floor is kept, and none shorter than a quarter.
//!
//! A tick that no thread has taken serves as well as a later one. While all threads compute long
//! tasks, no ticks are sent. The first thread that takes the last one requests more.
//!
//! # Cost
//!
//! A join compares one word of its thread three times: a predictable branch each, on a cache line
//! that it writes anyway. For each tick a thread visits the frames that are new on its stack: a few
//! ns each, so about 1 us in 25 ms. Outputs of tasks of a quarter of the floor and more are
//! encoded. With two children per task these are at most two in 12.5 ms of a thread's time.
//!
//! # Safety
//!
//! The module knows neither what is kept nor where. The [list](super::watch_list) holds addresses
//! for comparison and never dereferences them. A stale entry can only cause one output to be kept
//! in vain.

use std::sync::atomic::{Ordering, fence};

use springtide_forkjoin::layer::{ComputeThread, Fork};

use super::shared::{PoolState, TaskFrame, TaskThread};
use super::tree::{keep_early, keep_output, path_of};
use super::watch_list::{DUE, NONE, WatchedTask};
use crate::work::context::Run;
use crate::work::outcome::Halt;
use crate::work::task::Task;

/// Tolerance at the ends of a stack, which starts near the frame of its thread's worker.
const STACK_TOLERANCE_BYTES: usize = 4096;

impl PoolState {
    /// Sends a tick to each thread, so that tasks which run now and continue for a while are kept.
    /// Returns false if no thread has taken the previous one: then call it again only after
    /// [`PoolObserver::tick_taken`](crate::work::observer::PoolObserver::tick_taken).
    pub(crate) fn tick(&self) -> bool {
        let now_us = self.now_us();
        let send =
            || self.threads().iter().fold(false, |new, t| t.layer.watch.set_due(now_us) | new);
        if send() {
            return true;
        }
        self.ticks_rest.store(true, Ordering::Relaxed);
        // Pairs with the fence in `Worker::renew_watch_list`: the thread sees that ticks pause, or
        // this sees that the thread took the last one.
        fence(Ordering::SeqCst);
        send()
    }

    /// Watches all tasks after a tree was halted because its node leaves: those that end without
    /// receiving the halt are kept. The tree must already be marked.
    pub(super) fn watch_leaving(&self) {
        if self.keep_least_us.is_some() {
            // Pairs with the fence in `Worker::renew_watch_list`: the thread sees the mark, or this
            // sees the thread's store.
            fence(Ordering::SeqCst);
            self.tick();
        }
    }
}

impl TaskThread {
    /// Whether the ended task in this frame must be examined.
    #[inline(always)]
    pub(super) fn is_watched(&self, frame: &TaskFrame) -> bool {
        self.data().watch.covers(frame)
    }

    /// Takes a due tick, before anything starts that did not run at the tick. `frame` is the frame
    /// of the calling task, if any.
    #[inline]
    pub(crate) fn take_tick(&self, frame: Option<&TaskFrame>) {
        if self.data().watch.is_due() {
            self.renew_watch_list(frame);
        }
    }

    /// Renews the list.
    #[cold]
    #[inline(never)]
    fn renew_watch_list(&self, frame: Option<&TaskFrame>) {
        let watch = &self.data().watch;
        if watch.from.load(Ordering::Acquire) != DUE {
            return;
        }
        let since_us = watch.since_us.load(Ordering::Relaxed);
        let mut watched = self.watched.borrow_mut();
        // Innermost first, up to the first task that is listed already.
        let mut new: Vec<WatchedTask> = Vec::new();
        let mut list = |inner: &TaskFrame| {
            // The root's own tree is never returned.
            if inner.tree().path.0.is_empty() {
                return true;
            }
            let mut next = Some(inner);
            while let Some(frame) = next.filter(|frame| self.is_on_stack(frame)) {
                if watched.tasks.last().is_some_and(|last| last.is(frame)) {
                    return false;
                }
                new.push(WatchedTask::of(frame, since_us));
                next = frame.parent();
            }
            true
        };
        if frame.is_none_or(&mut list) {
            self.core().visit_waiting(list);
        }
        // A waiting task and the task that runs above it may share ancestors.
        let mut addresses = std::collections::BTreeSet::new();
        let new = new.into_iter().rev().filter(|task| addresses.insert(task.frame));
        watched.tasks.extend(new);
        watch.from.swap(watched.from(), Ordering::SeqCst);
        // Pairs with the fences in `PoolState::watch_leaving` and `PoolState::tick`.
        fence(Ordering::SeqCst);
        drop(watched);
        self.watch_if_leaving(frame);
        let rest = &self.shared().ticks_rest;
        if !watch.is_due() && rest.load(Ordering::Relaxed) && rest.swap(false, Ordering::Relaxed) {
            self.shared().observer.tick_taken();
        }
    }

    /// Watches all tasks that end from here on, if the calling task's tree stops because the node
    /// leaves.
    pub(super) fn watch_if_leaving(&self, frame: Option<&TaskFrame>) {
        let leaves = |frame: &TaskFrame| self.shared().halted(|| frame.tree()) == Some(Halt::Leave);
        if self.shared().keep_least_us.is_some() && frame.is_some_and(leaves) {
            self.data().watch.set_due(self.shared().now_us());
        }
    }

    /// Handles the successful end of a task. Its output is kept if it ran long, or if its tree
    /// stops because the node leaves.
    #[cold]
    #[inline(never)]
    pub(super) fn ended<T: Task>(&self, frame: &TaskFrame, output: T::Output) -> T::Output {
        self.take_tick(Some(frame));
        let since_us = self.forget(frame);
        let Some(least_us) = self.shared().keep_least_us else { return output };
        let base = frame.tree();
        let path = || path_of(frame);
        let about = <Run<T> as Fork<TaskThread>>::ABOUT;
        match self.shared().halted(|| base) {
            Some(Halt::Leave) => keep_output(base, path(), about, &output),
            Some(_) => {}
            None => {
                let lasted = since_us.map_or(0, |us| self.shared().now_us().saturating_sub(us));
                let long = since_us.is_some() && lasted >= least_us;
                if long && keep_early(base, path(), about, &output) {
                    self.count_kept();
                }
            }
        }
        output
    }

    /// Removes the ended task in this frame. Returns the time of its tick, if it was listed.
    pub(super) fn forget(&self, frame: &TaskFrame) -> Option<u64> {
        let mut watched = self.watched.borrow_mut();
        let since_us = watched.end(frame)?;
        self.set_from(watched.from());
        Some(since_us)
    }

    /// Clears the list after a panic unwound frames of this stack. The remaining tasks are listed
    /// again at the next tick.
    #[cold]
    pub(super) fn clear_watch_list(&self) {
        self.watched.borrow_mut().tasks.clear();
        self.set_from(NONE);
    }

    /// Sets the thread's word, unless a tick is due.
    fn set_from(&self, from: usize) {
        let word = &self.data().watch.from;
        let now = word.load(Ordering::Relaxed);
        if now != DUE {
            // Only a concurrent tick makes this fail, and the tick then stays.
            let _ = word.compare_exchange(now, from, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    fn is_on_stack(&self, frame: &TaskFrame) -> bool {
        let (low, high) = self.core().stack();
        (low..high + STACK_TOLERANCE_BYTES).contains(&std::ptr::from_ref(frame).addr())
    }
}
