//! Which tasks have run for long: their outputs are kept while their parents run, so that they are not computed again
//! if the node leaves. (A join's finished child is kept on the way up; what its parent has already consumed is not
//! there any more.)
//!
//! Nobody reads a clock when a task begins or ends. Every half of the floor a tick tells each thread a time; the thread
//! takes it to its next join or to the next end of a task, whichever comes first, and writes down which tasks are on
//! its stack. It took the tick before it began anything else, so all of those ran already at that time. A task that is
//! found on the list when it ends has run at least since then: it is kept if that is a quarter of the floor. So a task
//! that runs for three quarters of the floor is always kept, where ticks come in time, and none that runs for less than
//! a quarter. A tick that no thread has taken is as good as a later one: while all threads compute long tasks, none is
//! told, and the first that takes the last one asks for more.
//!
//! # What it costs
//!
//! A join compares one word of its thread's three times: a predictable branch each, on a cache line that it writes
//! anyway. A tick costs each thread a walk over the frames that are new on its stack since the tick before: a few ns
//! each, so about 1 us of every 25 ms. The outputs of tasks of a quarter of the floor and more are serialised, at most
//! two in 12.5 ms of a thread's time where tasks have two children.
//!
//! Must not know what is kept or where. The list holds addresses to compare, none that is followed, so that an entry
//! which is out of date can keep a task's output in vain and do no other harm.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering, fence};

use super::shared::Shared;
use super::slot::{Frame, keep_beforehand, keep_output};
use super::worker::Worker;
use crate::work::task::{Halt, Task};

/// The word of a thread to which a tick was told.
const DUE: usize = 0;
/// The word of a thread that has no task on its list.
const NONE: usize = usize::MAX;

/// Stacks begin about where their threads' workers do.
const SLACK_BYTES: usize = 4096;

/// What one thread and the tick's share.
pub(crate) struct Watch {
    /// Tasks in frames at this address and above are looked at when they end; [`DUE`]: all, and the list is renewed.
    from: AtomicUsize,
    /// When that was told, in microseconds since the pool's start; valid in [`DUE`].
    since_us: AtomicU64,
}

impl Default for Watch {
    fn default() -> Self {
        Self { from: AtomicUsize::new(NONE), since_us: AtomicU64::new(0) }
    }
}

impl Watch {
    /// Whether a tick was told and not taken yet.
    #[inline(always)]
    pub(crate) fn is_due(&self) -> bool {
        self.from.load(Ordering::Relaxed) == DUE
    }

    #[inline(always)]
    fn looks_at(&self, frame: &Frame) -> bool {
        std::ptr::from_ref(frame).addr() >= self.from.load(Ordering::Relaxed)
    }

    /// A tick. One that was not taken yet stays, for what ran then is running; false then.
    fn tell(&self, now_us: u64) -> bool {
        let news = !self.is_due();
        if news {
            self.since_us.store(now_us, Ordering::Relaxed);
            self.from.store(DUE, Ordering::Release);
        }
        news
    }
}

/// A task on a thread's list.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Seen {
    /// Address of its frame.
    frame: usize,
    /// Tells it from the child before it, whose frame was there too.
    index: u64,
    since_us: u64,
}

impl Seen {
    fn is(&self, frame: &Frame) -> bool {
        self.frame == std::ptr::from_ref(frame).addr() && self.index == frame.index()
    }
}

/// A thread's list.
#[derive(Default)]
pub(crate) struct Watched {
    /// Outermost first. What is new comes to its end, and an ended task takes those after it along, so all that is
    /// there is on the stack.
    seen: Vec<Seen>,
    /// Tasks that wait, on this stack, for what others have, while it runs something else above them.
    waiting: Vec<NonNull<Frame>>,
}

impl Watched {
    /// Where the word must be: nested frames mostly have lower addresses, but where one was inlined into the other
    /// nobody knows.
    fn from(&self) -> usize {
        self.seen.iter().map(|seen| seen.frame).min().unwrap_or(NONE)
    }

    /// The task in this frame has ended: since when it was on the list.
    fn end(&mut self, frame: &Frame) -> Option<u64> {
        let at = self.seen.iter().rposition(|seen| seen.is(frame))?;
        let since_us = self.seen[at].since_us;
        self.seen.truncate(at);
        Some(since_us)
    }
}

impl Shared {
    /// A tick: what runs now and will still run a while is worth keeping. False if no thread has taken the one before: a
    /// further one says nothing until [`Host::took_tick`](crate::work::pool::Host::took_tick).
    pub(crate) fn tick(&self) -> bool {
        let now_us = self.now_us();
        let tell = || self.threads.iter().fold(false, |news, t| t.watch.tell(now_us) | news);
        if tell() {
            return true;
        }
        self.ticks_rest.store(true, Ordering::Relaxed);
        // Pairs with the fence in `Worker::look`: the thread sees that ticks rest, or this sees that it took the last.
        fence(Ordering::SeqCst);
        tell()
    }

    /// A tree was told to stop as its node leaves: what ends from now on without being told that is kept. To be called
    /// after the tree was marked.
    pub(super) fn watch_leaving(&self) {
        if self.keep_least_us.is_some() {
            // Pairs with the fence in `Worker::look`: the thread sees the mark, or this sees what the thread stored.
            fence(Ordering::SeqCst);
            self.tick();
        }
    }
}

impl Worker {
    /// Whether the task in this frame, which has ended, is to be looked at.
    #[inline(always)]
    pub(super) fn watches(&self, frame: &Frame) -> bool {
        self.me().watch.looks_at(frame)
    }

    /// Takes the tick, if one was told: before anything begins that did not run then. `frame` is the calling task's, if
    /// there is one.
    #[inline]
    pub(crate) fn take_tick(&self, frame: Option<&Frame>) {
        if self.me().watch.is_due() {
            self.look(frame);
        }
    }

    /// Renews the list.
    #[cold]
    #[inline(never)]
    fn look(&self, frame: Option<&Frame>) {
        let watch = &self.me().watch;
        if watch.from.load(Ordering::Acquire) != DUE {
            return;
        }
        let since_us = watch.since_us.load(Ordering::Relaxed);
        let mut watched = self.watched.borrow_mut();
        // Innermost first, up to what is on the list already.
        let mut new: Vec<Seen> = Vec::new();
        // SAFETY: `wait` puts a frame there for as long as it runs something above it, on this stack.
        let waiting = watched.waiting.iter().rev().map(|frame| unsafe { frame.as_ref() });
        'stack: for inner in frame.into_iter().chain(waiting) {
            // SAFETY: a task's frame on this stack that has not ended, and those above wait for it.
            let of_root = unsafe { inner.base() }.path.0.is_empty();
            // The root's own tree is never given back.
            if of_root {
                continue;
            }
            let mut next = Some(inner);
            while let Some(frame) = next.filter(|frame| self.is_on_stack(frame)) {
                if watched.seen.last().is_some_and(|last| last.is(frame)) {
                    break 'stack;
                }
                let address = std::ptr::from_ref(frame).addr();
                new.push(Seen { frame: address, index: frame.index(), since_us });
                // SAFETY: as above.
                next = unsafe { frame.parent() };
            }
        }
        // A waiting task and what runs above it may have tasks in common.
        let mut addresses = std::collections::BTreeSet::new();
        let new = new.into_iter().rev().filter(|seen| addresses.insert(seen.frame));
        watched.seen.extend(new);
        watch.from.swap(watched.from(), Ordering::SeqCst);
        // Pairs with the fences in `Shared::watch_leaving` and `Shared::tick`.
        fence(Ordering::SeqCst);
        drop(watched);
        self.watch_if_leaving(frame);
        let rest = &self.shared().ticks_rest;
        if !watch.is_due() && rest.load(Ordering::Relaxed) && rest.swap(false, Ordering::Relaxed) {
            self.shared().host.took_tick();
        }
    }

    /// All that ends from here on is looked at, if the calling task's tree stops because the node leaves.
    fn watch_if_leaving(&self, frame: Option<&Frame>) {
        let leaves = |frame: &Frame| {
            // SAFETY: the calling task's frame, on this stack, and those above wait for it.
            self.shared().halted(|| unsafe { frame.base() }) == Some(Halt::Leave)
        };
        if self.shared().keep_least_us.is_some() && frame.is_some_and(leaves) {
            self.me().watch.tell(self.shared().now_us());
        }
    }

    /// A task has ended well. If it ran for long, or its tree stops as the node leaves, its output is kept.
    #[cold]
    #[inline(never)]
    pub(super) fn ended<T: Task>(&self, frame: &Frame, output: T::Output) -> T::Output {
        self.take_tick(Some(frame));
        let since_us = self.forget(frame);
        let Some(least_us) = self.shared().keep_least_us else { return output };
        // SAFETY: the caller's frame, on this stack, and those above wait for it.
        let base = unsafe { frame.base() };
        // SAFETY: as above.
        let path = || unsafe { frame.path() };
        match self.shared().halted(|| base) {
            Some(Halt::Leave) => keep_output::<T>(base, path(), &output),
            Some(_) => {}
            None => {
                let lasted = since_us.map_or(0, |us| self.shared().now_us().saturating_sub(us));
                let long = since_us.is_some() && lasted >= least_us;
                if long && keep_beforehand::<T>(base, path(), &output) {
                    self.count_kept();
                }
            }
        }
        output
    }

    /// The task in this frame has ended: since when it was on the list.
    pub(super) fn forget(&self, frame: &Frame) -> Option<u64> {
        let mut watched = self.watched.borrow_mut();
        let since_us = watched.end(frame)?;
        self.set_from(watched.from());
        Some(since_us)
    }

    /// Users' code unwound through frames of this stack. Those that remain get on the list again at the next tick.
    #[cold]
    pub(super) fn lost_sight(&self) {
        self.watched.borrow_mut().seen.clear();
        self.set_from(NONE);
    }

    /// A tick that was told meanwhile stays.
    fn set_from(&self, from: usize) {
        let word = &self.me().watch.from;
        let now = word.load(Ordering::Relaxed);
        if now != DUE {
            // Lost to a tick alone.
            let _ = word.compare_exchange(now, from, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    /// Runs something of others' above the task in this frame, which waits.
    pub(super) fn above<R>(&self, waiting: &Frame, run: impl FnOnce() -> R) -> R {
        /// Takes the frame out again, whatever happens above.
        struct Above<'a>(&'a Worker);
        impl Drop for Above<'_> {
            fn drop(&mut self) {
                self.0.watched.borrow_mut().waiting.pop();
            }
        }
        self.watched.borrow_mut().waiting.push(NonNull::from(waiting));
        let above = Above(self);
        let result = run();
        drop(above);
        // Its tree may have been told to stop, and this thread have taken that for something else.
        self.watch_if_leaving(Some(waiting));
        result
    }

    fn is_on_stack(&self, frame: &Frame) -> bool {
        let (low, high) = self.stack();
        (low..high + SLACK_BYTES).contains(&std::ptr::from_ref(frame).addr())
    }
}
