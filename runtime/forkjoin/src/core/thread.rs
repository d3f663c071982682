//! A compute thread: waits, helps, steals and sleeps.

use std::cell::{Cell, RefCell};
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

use super::deque::Steal;
use super::frame::TaskFrame;
use super::layer::{Activity, ComputeThread, TaskContext};
use super::leases::LeaseKey;
use super::pool::{Injected, PoolCore, ThreadState};
use super::scope::Scope;
use super::slot::{HeldSlot, SlotHeader, State, discard_task, forget_outcome, run_slot};
use super::sync::{AtomicU32, Ordering, spin_loop};

/// The longest sleep before a thread looks for work by itself. It bounds the harm of a lost
/// wake-up; the protocol does not depend on it.
pub const SLEEP_MAX: Duration = Duration::from_millis(200);

/// The number of searches for work before an idle thread sleeps.
const SEARCHES_BEFORE_SLEEP: u32 = if cfg!(feature = "loom") { 1 } else { 8 };

/// The scheduler's part of a compute thread. It stays on its thread.
pub struct ThreadCore<W: ComputeThread> {
    pool: Arc<PoolCore<W>>,
    /// This thread's part of `pool`, which keeps it alive.
    me: NonNull<ThreadState<W>>,
    /// The word that joins read: the pool's signals, or a word of the layer.
    signals: Cell<NonNull<AtomicU32>>,
    index: u32,
    random: Cell<u64>,
    /// The number of waits on this stack that took unrelated work.
    nesting: Cell<u32>,
    /// The address half-way down the stack. Below it the thread takes no unrelated work.
    stack_watermark: usize,
    stack_bytes: usize,
    /// Tasks on this stack that wait for a child which runs elsewhere, while the thread runs other
    /// work above them.
    waiting: RefCell<Vec<NonNull<TaskFrame<W>>>>,
}

enum FoundWork<W: ComputeThread> {
    Slot(NonNull<SlotHeader<W>>),
    Injected(Injected<W>),
    Root(W::Work),
}

/// A slot that a thread waits for.
pub struct Awaited<'a, W: ComputeThread> {
    pool: &'a PoolCore<W>,
    slot: &'a SlotHeader<W>,
}

impl<W: ComputeThread> Awaited<'_, W> {
    /// Reads the lease of the slot's task, if it is leased.
    pub fn lease<R>(&self, read: impl FnOnce(LeaseKey, &W::Lease) -> R) -> Option<R> {
        self.pool.leases().read(self.slot, read)
    }
}

/// Runs thread `index` of a pool until the pool closes. `build` adds the layer's part.
///
/// `seed` is that of the random choice of victims, and `stack_bytes` the size of the stack.
///
/// # Panics
/// If a thread of the pool has this index already.
pub fn run_thread<W: ComputeThread>(
    pool: Arc<PoolCore<W>>,
    index: u32,
    seed: u64,
    stack_bytes: usize,
    build: impl FnOnce(ThreadCore<W>) -> W,
) {
    let me = &pool.threads()[index as usize];
    assert!(!me.taken.swap(true, Ordering::SeqCst), "thread {index} of the pool runs already");
    let here = 0u8;
    let top = std::ptr::from_ref(&here) as usize;
    let core = ThreadCore {
        me: NonNull::from(me),
        signals: Cell::new(NonNull::from(pool.signals_word())),
        pool,
        index,
        random: Cell::new(seed | 1),
        nesting: Cell::new(0),
        stack_watermark: top.saturating_sub(stack_bytes / 2),
        stack_bytes,
        waiting: RefCell::default(),
    };
    run(&build(core));
}

impl<W: ComputeThread> ThreadCore<W> {
    /// The pool of the thread.
    #[inline(always)]
    pub fn pool(&self) -> &Arc<PoolCore<W>> {
        &self.pool
    }

    /// The index of the thread in its pool.
    #[inline(always)]
    pub fn index(&self) -> u32 {
        self.index
    }

    /// The thread's part of the pool's state.
    #[inline(always)]
    pub fn me(&self) -> &ThreadState<W> {
        // SAFETY: points into `pool`, which this value keeps alive and whose threads never move.
        unsafe { self.me.as_ref() }
    }

    /// Lets joins on this thread read this word in place of the pool's signals; `None`: the pool's
    /// signals again. A word that is never zero sends every join to the layer.
    pub fn set_signals_word(&self, word: Option<&'static AtomicU32>) {
        let word = word.unwrap_or_else(|| self.pool.signals_word());
        self.signals.set(NonNull::from(word));
    }

    /// Whether joins on this thread read this word.
    #[inline]
    pub fn reads_signals_word(&self, word: &'static AtomicU32) -> bool {
        std::ptr::eq(self.signals.get().as_ptr(), word)
    }

    /// The signals, read after a push. The deque's store precedes this read in program order, and a
    /// sleeper's heavy fence does the rest. The light fence keeps the order of the compiler or,
    /// without asymmetric fences, of the processor.
    #[inline(always)]
    pub(super) fn signals_after_push(&self) -> u32 {
        self.me().deque.light_fence();
        // SAFETY: points into `pool`, which this value keeps alive, or to a static.
        unsafe { self.signals.get().as_ref() }.load(Ordering::Relaxed)
    }

    #[inline(always)]
    pub(super) fn push(&self, slot: NonNull<SlotHeader<W>>) -> isize {
        // SAFETY: this thread owns its deque: `run_thread` gives each index to one thread, and the
        // value stays there, for it is not `Send`.
        unsafe { self.me().deque.push(slot) }
    }

    /// Takes the newest slot of the thread's own deque, unless it is below `floor`.
    ///
    /// Slots below belong to joins further down the stack, which take them by their place. No slot
    /// lies below a stolen one, since thieves take the oldest first. But a slot that was delivered
    /// leaves older ones behind.
    #[inline(always)]
    fn pop(&self, floor: isize) -> Option<NonNull<SlotHeader<W>>> {
        // SAFETY: as in `push`.
        unsafe { self.me().deque.pop_from(floor) }
    }

    /// Takes the slot that was pushed to this place. Returns whether it was still there. All slots
    /// pushed after it were taken out before.
    #[inline(always)]
    pub(super) fn pop_at(&self, place: isize) -> bool {
        // SAFETY: as in `push`; the callers pass the places of their joins, innermost first.
        unsafe { self.me().deque.pop_at(place) }
    }

    /// The place of the next slot in the thread's own deque.
    pub(super) fn floor(&self) -> isize {
        self.me().deque.bottom()
    }

    fn next_random(&self) -> u64 {
        // xorshift64*, which is good enough to choose a victim.
        let mut x = self.random.get();
        x ^= x >> 12;
        x ^= x << 25;
        x ^= x >> 27;
        self.random.set(x);
        x.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    pub(super) fn count_not_run(&self) {
        self.me().counters.not_run.add(1);
    }

    /// Sleeps until the pool wakes this thread, unless `ready` holds. May return early. The party
    /// that makes it ready calls [`PoolCore::wake_owner`] afterwards.
    pub fn sleep(&self, timeout: Duration, ready: impl Fn() -> bool) {
        // Nothing wakes a thread for work that it does not look for.
        let _delay = self.pool.sleep(self.index, Some(timeout), false, ready);
    }

    /// Sleeps as [`sleep`](Self::sleep), but first runs a brief task of another thread if there is
    /// one, and also wakes for such tasks. Runs at most one task.
    ///
    /// Other tasks that it finds in deques go to the injector, for threads that may run them.
    pub fn help_or_sleep(
        worker: &W,
        waiting: &TaskFrame<W>,
        timeout: Duration,
        ready: impl Fn() -> bool,
    ) {
        let core = worker.core();
        if let Some(slot) = steal_brief(worker) {
            worker.switch(Activity::Working);
            worker.run_above(waiting, || execute_above(worker, waiting, FoundWork::Slot(slot)));
            return;
        }
        if core.pool.pass_over_injected(core.index) {
            worker.surplus();
        }
        let delay = core.pool.sleep(core.index, Some(timeout), true, ready);
        delay.into_iter().for_each(|delay| worker.woke(delay));
    }

    fn may_take_unrelated(&self) -> bool {
        self.nesting.get() < self.pool.nesting_bound && self.has_stack()
    }

    /// Whether half of the stack is left, enough for work unrelated to the tasks on it.
    pub fn has_stack(&self) -> bool {
        let here = 0u8;
        std::ptr::from_ref(&here) as usize > self.stack_watermark
    }

    /// The lowest and highest address of the stack.
    pub fn stack(&self) -> (usize, usize) {
        let half = self.stack_bytes / 2;
        (self.stack_watermark.saturating_sub(half), self.stack_watermark.saturating_add(half))
    }

    /// Bytes of stack that are left at least while [`ThreadCore::has_stack`] holds.
    pub fn stack_left(&self) -> usize {
        self.stack_bytes / 2
    }

    /// Calls `visit` with the frames of the tasks that wait on this stack below other work,
    /// innermost first, until it returns false.
    pub fn visit_waiting(&self, mut visit: impl FnMut(&TaskFrame<W>) -> bool) {
        for frame in self.waiting.borrow().iter().rev() {
            // SAFETY: `execute_above` keeps a frame there only while it runs something above it, on
            // this stack.
            if !visit(unsafe { frame.as_ref() }) {
                return;
            }
        }
    }
}

/// Runs the top task of a tree in a new context. The layer's `run` must not keep what belongs to
/// the context.
pub fn run_top<W: ComputeThread, R>(
    worker: &W,
    tree: &W::Tree,
    run: impl FnOnce(&W::Context<'_>) -> R,
) -> R {
    let context = W::Context::new(Scope::new(TaskFrame::top(tree), worker));
    run(&context)
}

fn state_of<W: ComputeThread>(slot: NonNull<SlotHeader<W>>) -> State {
    // SAFETY: the callers pass slots in frames (or boxes) of their thread.
    unsafe { slot.as_ref() }.state.load()
}

/// Abandons the slot if it is leased; the caller, its owner, then holds it, with its task.
fn abandon<W: ComputeThread>(worker: &W, slot: &SlotHeader<W>) -> bool {
    match worker.core().pool.leases().abandon(slot) {
        Some((key, lease)) => {
            worker.abandoned(slot.parent(), key, lease);
            true
        }
        None => false,
    }
}

/// Reclaims a slot of this thread from other holders, or waits until they finish, then drops its
/// contents. `floor`: as for [`wait`].
#[cold]
pub(super) fn reclaim_or_drop<W: ComputeThread>(
    worker: &W,
    slot: NonNull<SlotHeader<W>>,
    floor: isize,
) {
    let core = worker.core();
    loop {
        let now = state_of(slot);
        if matches!(now, State::Delivered | State::Abandoned) {
            core.count_not_run();
        }
        match now {
            // SAFETY: the state is final, so this thread holds the slot; the call drops its
            // contents.
            State::Done | State::Delivered => return unsafe { forget_outcome(slot, worker) },
            // SAFETY: as above; the task is still there.
            State::Abandoned => return unsafe { discard_task(slot) },
            _ => {}
        }
        match core.pop(floor) {
            Some(popped) if popped == slot => {
                core.count_not_run();
                // SAFETY: removed from the deque before it was run, so this thread holds the slot,
                // with its task.
                return unsafe { discard_task(slot) };
            }
            // A newer unfinished child of this thread. Its frame is still there, or its pointer
            // would be out of the deque: so it is a spawned child. Run it; its owner will find it
            // done.
            // SAFETY: the pointer was taken out of this thread's deque.
            Some(other) => unsafe { run_slot(other, worker) },
            None => {
                if core.pool.remove_from_injector(slot) {
                    core.count_not_run();
                    // SAFETY: removed from the injector before it was run, so this thread holds the
                    // slot, with its task.
                    return unsafe { discard_task(slot) };
                }
                // SAFETY: the slot is in a frame (or box) of this thread.
                if !abandon(worker, unsafe { slot.as_ref() }) {
                    sleep_until_final(worker, slot);
                }
            }
        }
    }
}

/// Sleeps until the slot can be reclaimed or is final. The thread counts as waiting: as working, it
/// would hide a cycle of waits.
fn sleep_until_final<W: ComputeThread>(worker: &W, slot: NonNull<SlotHeader<W>>) {
    let ready = || {
        let now = state_of(slot);
        now.is_final() || matches!(now, State::Queued | State::Leased { .. })
    };
    worker.switch(Activity::Waiting);
    while !ready() {
        worker.core().sleep(SLEEP_MAX, ready);
    }
    worker.switch(Activity::Working);
}

/// Waits until the slot's state is final, and runs other tasks meanwhile. In a halted tree a leased
/// slot is abandoned. Slots of the thread's own deque below `floor` stay there.
#[cold]
#[inline(never)]
pub(super) fn wait<W: ComputeThread>(worker: &W, slot: NonNull<SlotHeader<W>>, floor: isize) {
    // SAFETY: the slot is in a frame (or box) of this thread.
    let header = unsafe { slot.as_ref() };
    worker.wait(|| wait_for_slot(worker, header, slot, floor));
}

fn wait_for_slot<W: ComputeThread>(
    worker: &W,
    header: &SlotHeader<W>,
    slot: NonNull<SlotHeader<W>>,
    floor: isize,
) {
    let core = worker.core();
    let me = core.me();
    let is_final = || header.state.load().is_final();
    let is_brief = worker.is_brief(header.about());
    let parent = header.parent();
    let awaited = Awaited { pool: &core.pool, slot: header };
    let mut searches = 0;
    let mut waiting = false;
    while !is_final() {
        let halted = worker.is_halted(parent);
        if halted {
            if abandon(worker, header) {
                break;
            }
            if core.pool.remove_from_injector(slot) {
                header.state.abandon();
                break;
            }
        }
        worker.poll(Some((parent, halted)));
        let unrelated = !halted && !is_brief && core.may_take_unrelated();
        if let Some(found) = find(worker, Some((&awaited, slot)), floor, unrelated) {
            if std::mem::take(&mut waiting) {
                worker.switch(Activity::Working);
                me.set_idle(false);
            }
            core.nesting.set(core.nesting.get() + 1);
            me.counters.nesting_max.raise(core.nesting.get().into());
            worker.run_above(parent, || execute_above(worker, parent, found));
            core.nesting.set(core.nesting.get() - 1);
            searches = 0;
            continue;
        }
        if !waiting {
            waiting = true;
            worker.switch(Activity::Waiting);
        }
        if searches < SEARCHES_BEFORE_SLEEP {
            searches += 1;
            spin_loop();
            continue;
        }
        me.set_idle(unrelated);
        worker.idle(Some(&awaited));
        let delay = core.pool.sleep(core.index, Some(SLEEP_MAX), unrelated, is_final);
        delay.into_iter().for_each(|delay| worker.woke(delay));
    }
    if waiting {
        me.set_idle(false);
        worker.switch(Activity::Working);
    }
}

/// Finds something to run: in the thread's own deque, then below the awaited slot, then anywhere if
/// `unrelated`.
fn find<W: ComputeThread>(
    worker: &W,
    awaited: Option<(&Awaited<'_, W>, NonNull<SlotHeader<W>>)>,
    floor: isize,
    unrelated: bool,
) -> Option<FoundWork<W>> {
    let core = worker.core();
    let pool = &core.pool;
    if let Some(slot) = core.pop(floor) {
        return Some(FoundWork::Slot(slot));
    }
    if let Some((awaited, slot)) = awaited {
        if pool.remove_from_injector(slot) {
            return Some(FoundWork::Slot(slot));
        }
        match awaited.slot.state.load() {
            // Leapfrog: the thread that runs the task took it with an empty deque, so what its
            // deque contains is descended from the task.
            State::Running { thread } => {
                if let Some(thread) = pool.threads().get(thread as usize)
                    && let Steal::Taken(slot) = thread.deque.steal()
                {
                    // SAFETY: the pointer was just taken out of the deque, so this thread holds the
                    // slot, with its task.
                    let held = unsafe { HeldSlot::new(slot) };
                    // The other thread may have older tasks of its own, if it waits for a child.
                    if worker.is_brief(awaited.slot.about()) && !worker.is_brief(held.about()) {
                        pool.inject(Injected::Slot(held));
                    } else {
                        return Some(FoundWork::Slot(slot));
                    }
                }
            }
            State::Leased { .. } => {
                if let Some(work) = worker.find_below(awaited) {
                    return Some(FoundWork::Injected(Injected::Work(work)));
                }
            }
            _ => {}
        }
    } else if let Some(root) = pool.take_root() {
        return Some(FoundWork::Root(root));
    }
    if !unrelated {
        return None;
    }
    if let Some(work) = pool.take_any_injected(worker) {
        return Some(FoundWork::Injected(work));
    }
    steal_any(worker).map(FoundWork::Slot)
}

/// Takes the oldest task of some other thread.
fn steal_any<W: ComputeThread>(worker: &W) -> Option<NonNull<SlotHeader<W>>> {
    let core = worker.core();
    let threads = core.pool.threads().len();
    let start = core.next_random() as usize % threads;
    for at in 0..threads {
        let victim = (start + at) % threads;
        if victim == core.index as usize {
            continue;
        }
        if let Steal::Taken(slot) = core.pool.threads()[victim].deque.steal() {
            core.me().counters.taken_here.add(1);
            return Some(slot);
        }
    }
    None
}

/// Takes a brief task of another thread; other tasks that lie above it go to the injector.
fn steal_brief<W: ComputeThread>(worker: &W) -> Option<NonNull<SlotHeader<W>>> {
    let pool = &worker.core().pool;
    while let Some(slot) = steal_any(worker) {
        // SAFETY: the pointer was just taken out of a deque, so this thread holds the slot, with
        // its task.
        let held = unsafe { HeldSlot::new(slot) };
        if worker.is_brief(held.about()) {
            return Some(slot);
        }
        pool.inject(Injected::Slot(held));
    }
    None
}

fn execute<W: ComputeThread>(worker: &W, found: FoundWork<W>) {
    match found {
        // SAFETY: the pointer was just taken out of a deque or the injector.
        FoundWork::Slot(slot) => unsafe { run_slot(slot, worker) },
        FoundWork::Injected(Injected::Slot(slot)) => slot.run(worker),
        FoundWork::Injected(Injected::Work(work)) | FoundWork::Root(work) => worker.run_work(work),
    }
    worker.rest();
}

/// Executes unrelated work above the waiting task in this frame.
fn execute_above<W: ComputeThread>(worker: &W, waiting: &TaskFrame<W>, found: FoundWork<W>) {
    /// Removes the frame again, also when the work above panics.
    struct PopGuard<'a, W: ComputeThread>(&'a ThreadCore<W>);
    impl<W: ComputeThread> Drop for PopGuard<'_, W> {
        fn drop(&mut self) {
            self.0.waiting.borrow_mut().pop();
        }
    }
    let core = worker.core();
    core.waiting.borrow_mut().push(NonNull::from(waiting));
    let _guard = PopGuard(core);
    execute(worker, found);
}

/// Executes work until the pool closes.
fn run<W: ComputeThread>(worker: &W) {
    let core = worker.core();
    let me = core.me();
    let mut searches = 0;
    let mut idle = true;
    loop {
        worker.poll(None);
        if let Some(found) = find(worker, None, isize::MIN, true) {
            if idle {
                idle = false;
                me.set_idle(false);
                worker.switch(Activity::Working);
            }
            searches = 0;
            execute(worker, found);
            continue;
        }
        if !idle {
            idle = true;
            worker.switch(Activity::Idle);
        }
        if core.pool.is_closing() {
            return;
        }
        if searches < SEARCHES_BEFORE_SLEEP {
            searches += 1;
            spin_loop();
            continue;
        }
        me.set_idle(true);
        worker.idle(None);
        let delay = core.pool.sleep(core.index, None, true, || core.pool.has_root());
        delay.into_iter().for_each(|delay| worker.woke(delay));
    }
}
