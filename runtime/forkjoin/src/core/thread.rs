//! A compute thread: joins, spawns, waits, helps and sleeps.

use std::cell::{Cell, RefCell};
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use super::deque::Steal;
use super::shared::{Counts, Incoming, Injected, PoolState, ROUND, RootWork, ThreadData};
use super::slot::{Base, Frame, Header, Slot, VTable, keep_output, locate, note_panic, state};
use super::watch::WatchList;
use crate::guard::panic_text;
use crate::meter::{ThreadState, UnitCounter};
use crate::work::checkpoint::RootMarks;
use crate::work::context::Context;
use crate::work::recover::Start;
use crate::work::task::{Cause, Failure, Halt, Stop, Task};

/// The longest sleep before a thread looks for work by itself. It bounds the harm of a lost
/// wake-up; the protocol does not depend on it.
pub(super) const SLEEP_MAX: Duration = Duration::from_millis(200);

/// The number of searches for work before an idle thread sleeps.
const SEARCHES_BEFORE_SLEEP: u32 = 8;

/// A compute thread. It stays on its thread's stack.
pub(crate) struct Worker {
    shared: Arc<PoolState>,
    /// This thread's part of `shared`, which keeps it alive.
    me: NonNull<ThreadData>,
    /// The word that joins read. Usually the pool's signals; while the root runs its own code, a
    /// word that is never zero (see `round`).
    pub(super) signals: Cell<NonNull<AtomicU32>>,
    index: u32,
    random: Cell<u64>,
    /// The number of waits on this stack that took unrelated work.
    nesting: Cell<u32>,
    /// The number of halts that users' code on this thread has received.
    halts: Cell<u64>,
    /// The address half-way down the stack. Below it the thread takes no unrelated work.
    stack_watermark: usize,
    stack_bytes: usize,
    /// The watched tasks on this stack.
    pub(super) watched: RefCell<WatchList>,
    /// The last round in which the thread took part.
    pub(super) rounds: Cell<u64>,
}

enum FoundWork {
    Slot(NonNull<Header>),
    Injected(Injected),
    Root(RootWork),
}

impl Worker {
    /// # Safety
    /// There is one worker per thread index of `shared`, created and used on one thread: the owner
    /// of that index's deque.
    pub(crate) unsafe fn new(
        shared: Arc<PoolState>,
        index: u32,
        seed: u64,
        stack_bytes: usize,
    ) -> Self {
        let here = 0u8;
        let top = std::ptr::from_ref(&here) as usize;
        let me = NonNull::from(&shared.threads[index as usize]);
        Self {
            signals: Cell::new(NonNull::from(shared.signals_word())),
            shared,
            me,
            index,
            random: Cell::new(seed | 1),
            nesting: Cell::new(0),
            halts: Cell::new(0),
            stack_watermark: top.saturating_sub(stack_bytes / 2),
            stack_bytes,
            watched: RefCell::default(),
            rounds: Cell::new(0),
        }
    }

    #[inline(always)]
    pub(crate) fn shared(&self) -> &Arc<PoolState> {
        &self.shared
    }

    #[inline(always)]
    pub(crate) fn index(&self) -> u32 {
        self.index
    }

    /// The counter of work units of this thread's tasks, if they are counted.
    #[inline(always)]
    pub(crate) fn units(&self) -> Option<&UnitCounter> {
        self.me().counts.units.as_ref()
    }

    /// Records the thread's busy time when a task with a cost ends, if the meter asked for it.
    #[cold]
    pub(crate) fn note_units(&self, units: &UnitCounter) {
        let now = tokio::time::Instant::now();
        let working = Duration::from_nanos(self.me().account.snapshot(now).working_ns);
        units.note(working.saturating_sub(self.me().root_clock.spent(now)));
    }

    #[inline(always)]
    pub(super) fn me(&self) -> &ThreadData {
        // SAFETY: points into `shared`, which this worker keeps alive and whose threads never move.
        unsafe { self.me.as_ref() }
    }

    /// The signals, read after a push. The deque's store precedes this read in program order, and a
    /// sleeper's heavy fence does the rest. The light fence keeps the order of the compiler or,
    /// without asymmetric fences, of the processor.
    #[inline(always)]
    pub(crate) fn signals_after_push(&self) -> u32 {
        self.me().deque.light_fence();
        // SAFETY: points into `shared`, which this worker keeps alive, or to a static.
        unsafe { self.signals.get().as_ref() }.load(Ordering::Relaxed)
    }

    #[inline(always)]
    pub(crate) fn push(&self, slot: NonNull<Header>) -> isize {
        // SAFETY: this worker owns its deque (contract of `new`; a worker is not `Send`, for it
        // holds a `Cell`).
        unsafe { self.me().deque.push(slot) }
    }

    /// Takes the newest slot of the thread's own deque, unless it is below `floor`.
    ///
    /// Slots below belong to joins further down the stack, which take them by their place. No slot
    /// lies below a stolen one, since thieves take the oldest first. But a slot whose result came
    /// from another node leaves older ones behind.
    #[inline(always)]
    fn pop(&self, floor: isize) -> Option<NonNull<Header>> {
        // SAFETY: as in `push`.
        unsafe { self.me().deque.pop_from(floor) }
    }

    /// The place of the next slot in the thread's own deque.
    pub(crate) fn floor(&self) -> isize {
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

    // --- joining ---

    /// Runs two children of the task in `parent`; another thread or node may run the second one.
    #[inline(never)]
    pub(crate) fn join<A: Task, B: Task>(
        &self,
        parent: &Frame,
        index: u32,
        a: A,
        b: B,
    ) -> Result<(A::Output, B::Output), Stop> {
        let slot = Slot::new(b, parent, index + 1, self.index);
        let me = self.me();
        let place = self.push(slot.pointer());
        let guard = FirstGuard::<A, B> { worker: self, slot: &slot, place, first: PhantomData };
        Counts::add(&me.counts.spawned, 2);
        if (self.signals_after_push() != 0 || me.watch.is_due()) && self.handle_signals(parent)? {
            std::mem::forget(guard);
            return self.join_recovering(parent, index, a, &slot, place);
        }
        let mut context = Context::new(Frame::child(parent, index), self);
        let left = self.run_in(&context, a)?;
        std::mem::forget(guard);
        // SAFETY: this worker owns its deque, and all slots pushed after this one were taken out
        // within the call above.
        if unsafe { me.deque.pop_at(place) } {
            // SAFETY: the pointer is out of the deque, so this thread holds the slot, with its
            // task.
            let b = unsafe { slot.take_task() };
            let guard = SecondGuard { slot: &slot };
            context.renew(index + 1);
            let right = self.run_in(&context, b);
            std::mem::forget(guard);
            match right {
                Ok(right) => Ok((left, right)),
                Err(stop) => Err(self.keep_sibling::<A>(parent, index, left, stop)),
            }
        } else {
            match self.join_stolen(parent, &slot, place) {
                Ok(right) => Ok((left, right)),
                Err(stop) => Err(self.keep_sibling::<A>(parent, index, left, stop)),
            }
        }
    }

    /// Handles a join whose second child stopped after the first one finished. If the node leaves,
    /// the first one's output is kept.
    #[cold]
    #[inline(never)]
    fn keep_sibling<A: Task>(
        &self,
        parent: &Frame,
        index: u32,
        output: A::Output,
        stop: Stop,
    ) -> Stop {
        if let Cause::Halt(Halt::Leave) = *stop.0 {
            // SAFETY: the parent is the calling task.
            let (base, path) = unsafe { (parent.base(), Frame::child(parent, index).path()) };
            keep_output::<A>(base, path, &output);
        }
        stop
    }

    /// Creates a stop for the code of the task in this frame, which is on this stack.
    #[cold]
    pub(crate) fn stop(&self, halt: Halt, frame: &Frame) -> Stop {
        self.count_halt();
        if halt == Halt::Leave {
            // SAFETY: the frame is on this stack, and the frames above wait for it.
            unsafe { frame.base().record_halt(frame.path()) };
        }
        Stop::halt(halt)
    }

    /// Counts a halt that users' code on this thread receives.
    pub(crate) fn count_halt(&self) {
        self.halts.set(self.halts.get() + 1);
    }

    /// The number of halts that users' code on this thread has received.
    pub(crate) fn halts_received(&self) -> u64 {
        self.halts.get()
    }

    /// Whether a finished task of a halted tree has a valid output: the node only leaves, and no
    /// code on this thread received a halt since the count was `halts`. A task that received one
    /// may have swallowed it, so its output is not valid.
    pub(crate) fn completed_unhalted(&self, halt: Halt, halts: u64) -> bool {
        halt == Halt::Leave && self.halts.get() == halts
    }

    /// Handles the signals that a join saw. Returns whether its children may have results already,
    /// or belong to the root.
    #[cold]
    #[inline(never)]
    fn handle_signals(&self, parent: &Frame) -> Result<bool, Stop> {
        // SAFETY: the parent is the calling task.
        let halt = self.shared.handle_signals(self.index, || unsafe { parent.base() });
        if let Some(halt) = halt {
            return Err(self.stop(halt, parent));
        }
        self.take_tick(Some(parent));
        if self.shared.signals() & ROUND != 0 {
            self.join_round(true);
        }
        Ok(self.may_recover(parent) || self.is_at_root())
    }

    /// Whether a child of the calling task, in this frame, may have a result already.
    #[inline]
    pub(crate) fn may_recover(&self, parent: &Frame) -> bool {
        // SAFETY: the frame is the calling task's.
        unsafe { self.shared.may_recover(parent) }
    }

    /// Looks up the result of a task that is about to run here. If there is one, returns true, and
    /// the slot is delivered or leased.
    ///
    /// # Safety
    /// The caller holds the slot with its task in it, and this worker created it.
    pub(crate) unsafe fn lookup_cached(&self, slot: NonNull<Header>) -> bool {
        // SAFETY: by the contract.
        unsafe { self.shared.lookup_cached(self.index, slot) }
    }

    /// A join whose children may have results already, from an execution of the parent on a lost or
    /// departed node. `slot` was pushed at `place`.
    #[cold]
    #[inline(never)]
    fn join_recovering<A: Task, B: Task>(
        &self,
        parent: &Frame,
        index: u32,
        a: A,
        slot: &Slot<B>,
        place: isize,
    ) -> Result<(A::Output, B::Output), Stop> {
        let _not_root = self.leave_root();
        let guard = FirstGuard::<A, B> { worker: self, slot, place, first: PhantomData };
        let mut place = place;
        // SAFETY: this worker owns its deque, and the slot is the last that was pushed.
        let mut mine = unsafe { self.me().deque.pop_at(place) };
        // SAFETY: the pointer is out of the deque, so this thread holds the slot.
        if mine && !unsafe { self.lookup_cached(slot.pointer()) } {
            place = self.push(slot.pointer());
        } else {
            mine = false;
        }
        let first = Slot::new(a, parent, index, self.index);
        // SAFETY: no other thread has its pointer yet.
        let elsewhere = unsafe { self.lookup_cached(first.pointer()) };
        let first_guard =
            elsewhere.then(|| ReclaimGuard { worker: self, slot: first.pointer(), floor: place });
        let left = if elsewhere {
            None
        } else {
            // SAFETY: the lookup found nothing, so no other thread has the pointer, and the task is
            // in the slot.
            Some(self.run_child(unsafe { first.take_task() }, parent, index)?)
        };
        std::mem::forget(guard);
        // SAFETY: this worker owns its deque, and all slots pushed after this one were taken out
        // within the call above.
        let right = if mine && unsafe { self.me().deque.pop_at(place) } {
            let guard = SecondGuard { slot };
            // SAFETY: the pointer is out of the deque, so this thread holds the slot, with its
            // task.
            let right = self.run_child(unsafe { slot.take_task() }, parent, index + 1);
            std::mem::forget(guard);
            right
        } else {
            self.join_stolen(parent, slot, place)
        };
        let right = match (right, left) {
            (Ok(right), left) => {
                std::mem::forget(first_guard);
                let left = match left {
                    Some(left) => Ok(left),
                    None => self.join_stolen(parent, &first, place),
                };
                return match left {
                    Ok(left) => Ok((left, right)),
                    Err(stop) => Err(self.keep_sibling::<B>(parent, index + 1, right, stop)),
                };
            }
            (Err(stop), Some(left)) => self.keep_sibling::<A>(parent, index, left, stop),
            (Err(stop), None) => stop,
        };
        // `first_guard` reclaims the first child if another node has it.
        Err(right)
    }

    /// Runs one child here, unless it has a result already.
    #[cold]
    #[inline(never)]
    pub(crate) fn call_recovering<T: Task>(
        &self,
        task: T,
        parent: &Frame,
        index: u32,
    ) -> Result<T::Output, Stop> {
        let slot = Slot::new(task, parent, index, self.index);
        // SAFETY: no other thread has its pointer yet.
        if unsafe { self.lookup_cached(slot.pointer()) } {
            self.join_stolen(parent, &slot, self.floor())
        } else {
            // SAFETY: the lookup found nothing, so no other thread has the pointer, and the task is
            // in the slot.
            self.run_child(unsafe { slot.take_task() }, parent, index)
        }
    }

    /// Waits for a slot that another thread or node took.
    #[cold]
    #[inline(never)]
    fn join_stolen<B: Task>(
        &self,
        parent: &Frame,
        slot: &Slot<B>,
        floor: isize,
    ) -> Result<B::Output, Stop> {
        self.wait(slot.pointer(), floor);
        match slot.header().state.load(Ordering::Acquire) {
            state::ABANDONED => {
                // SAFETY: `wait` abandoned it, so the task is still there.
                drop(unsafe { slot.take_task() });
                self.count_not_run();
                return Err(self.halt_of(parent));
            }
            state::DELIVERED => self.count_not_run(),
            _ => {}
        }
        // SAFETY: `wait` returned, so the state is final; the outcome is taken once.
        unsafe { slot.take_outcome(self) }
    }

    #[inline(always)]
    pub(crate) fn run_child<T: Task>(
        &self,
        task: T,
        parent: &Frame,
        index: u32,
    ) -> Result<T::Output, Stop> {
        let context = Context::new(Frame::child(parent, index), self);
        self.run_in(&context, task)
    }

    #[inline(always)]
    fn run_in<T: Task>(&self, context: &Context, task: T) -> Result<T::Output, Stop> {
        self.run_watched(context, task).map_err(|stop| {
            // SAFETY: the frame is on this stack, and the frames above wait for it.
            locate(stop, T::NAME, || unsafe { context.frame().path() })
        })
    }

    /// Runs a task and, if the frame is watched, examines it when it has ended.
    #[inline(always)]
    pub(super) fn run_watched<T: Task>(
        &self,
        context: &Context,
        task: T,
    ) -> Result<T::Output, Stop> {
        let outcome = context.run_task(task);
        if !self.is_watched(context.frame()) {
            return outcome;
        }
        // By value, so that the output of an unwatched task stays in registers.
        outcome.map(|output| self.ended::<T>(context.frame(), output)).inspect_err(|_| {
            self.forget(context.frame());
        })
    }

    pub(crate) fn count_not_run(&self) {
        Counts::add(&self.me().counts.not_run, 1);
    }

    pub(super) fn count_kept(&self) {
        Counts::add(&self.me().counts.kept, 1);
    }

    pub(crate) fn count_spawned(&self, children: u64) {
        Counts::add(&self.me().counts.spawned, children);
    }

    pub(crate) fn halt_of(&self, frame: &Frame) -> Stop {
        // SAFETY: the frame is the calling task's.
        let halt = self.shared.halted(|| unsafe { frame.base() });
        self.stop(halt.unwrap_or(Halt::Cancelled), frame)
    }

    /// The common state of the root's checkpoints, if the calling task, in this frame, is the job's
    /// root.
    pub(crate) fn root_marks<'a>(&self, frame: &'a Frame) -> Option<&'a RootMarks> {
        // SAFETY: the frame is the calling task's, and a tree's base outlives its frames.
        unsafe { frame.root() }.map(|base| &base.root)
    }

    /// Stops the tree of the task in this frame.
    pub(crate) fn halt_tree(&self, frame: &Frame, reason: Halt) {
        // SAFETY: the frame is the calling task's.
        self.shared.halt_from_within(unsafe { frame.base() }, reason);
    }

    /// Returns a stop if the task in this frame must stop.
    pub(crate) fn check(&self, frame: &Frame) -> Result<(), Stop> {
        if self.shared.signals() == 0 {
            return Ok(());
        }
        // SAFETY: the frame is the calling task's.
        match self.shared.halted(|| unsafe { frame.base() }) {
            Some(halt) => Err(self.stop(halt, frame)),
            None => Ok(()),
        }
    }

    /// Reclaims a slot from other holders, or waits until they finish, then drops its contents.
    /// `floor`: as for [`Worker::wait`].
    #[cold]
    pub(crate) fn reclaim_or_drop(&self, slot: NonNull<Header>, floor: isize) {
        loop {
            // SAFETY: the slot is in a frame (or box) of this thread.
            let now = unsafe { slot.as_ref() }.state.load(Ordering::Acquire);
            if now == state::DELIVERED || now == state::ABANDONED {
                self.count_not_run();
            }
            match now {
                state::DONE | state::DELIVERED => {
                    // SAFETY: the slot is in a frame (or box) of this thread, so the frames above
                    // are alive.
                    let base = unsafe { slot.as_ref().base() };
                    // SAFETY: the state is final, so this thread holds the slot; each call drops
                    // its contents.
                    return match self.shared.halted(|| base) {
                        Some(Halt::Leave) => unsafe { VTable::save(slot, base) },
                        _ => unsafe { VTable::forget(slot) },
                    };
                }
                // SAFETY: as above.
                state::ABANDONED => return unsafe { VTable::discard(slot) },
                _ => {}
            }
            match self.pop(floor) {
                Some(popped) if popped == slot => {
                    self.count_not_run();
                    // SAFETY: removed from the deque before it was run, so this thread holds the
                    // slot, with its task.
                    return unsafe { VTable::discard(slot) };
                }
                // A newer unfinished child of this thread. Its frame is still there, or its pointer
                // would be out of the deque: so it is a spawned child. Run it; its owner will find
                // it done.
                // SAFETY: the pointer was taken out of this thread's deque.
                Some(other) => unsafe { VTable::run(other, self) },
                None => {
                    if self.shared.remove_from_injector(slot) {
                        self.count_not_run();
                        // SAFETY: removed from the injector before it was run, so this thread holds
                        // the slot, with its task.
                        return unsafe { VTable::discard(slot) };
                    }
                    if !self.shared.abandon(slot) {
                        self.sleep_until_final(slot);
                    }
                }
            }
        }
    }

    /// Sleeps until the slot can be reclaimed or is final. The thread is labelled as waiting:
    /// labelled as working, it would hide a cycle of waits.
    fn sleep_until_final(&self, slot: NonNull<Header>) {
        let ready = || {
            // SAFETY: the slot is in a frame (or box) of this thread.
            let now = unsafe { slot.as_ref() }.state.load(Ordering::Acquire);
            state::is_final(now) || now == state::QUEUED || now == state::LEASED
        };
        self.label(ThreadState::WaitLocal);
        while !ready() {
            self.shared.sleep(self.index, Some(SLEEP_MAX), false, ready);
        }
        self.label(ThreadState::Working);
    }

    // --- waiting ---

    /// Waits until the slot's state is final, and runs other tasks meanwhile. In a halted tree a
    /// leased slot is abandoned. Slots of the thread's own deque below `floor` stay there.
    #[cold]
    #[inline(never)]
    pub(crate) fn wait(&self, slot: NonNull<Header>, floor: isize) {
        // SAFETY: the slot is in a frame (or box) of this thread.
        let header = unsafe { slot.as_ref() };
        let is_final = || state::is_final(header.state.load(Ordering::Acquire));
        let _not_root = self.leave_root();
        let mut searches = 0;
        let mut waiting = false;
        let me = self.me();
        loop {
            if is_final() {
                break;
            }
            // SAFETY: the slot's parent is on this stack.
            let halted = self.shared.signals() != 0
                && self.shared.halted(|| unsafe { header.base() }).is_some();
            if halted {
                if self.shared.abandon(slot) {
                    break;
                }
                if self.shared.remove_from_injector(slot) {
                    header.state.store(state::ABANDONED, Ordering::Relaxed);
                    break;
                }
            }
            // SAFETY: the slot's parent is on this stack during this call.
            let parent = unsafe { &*header.parent };
            self.take_tick(Some(parent));
            if !halted && self.shared.signals() & ROUND != 0 {
                self.join_round(false);
            }
            let unrelated = !halted && self.may_take_unrelated();
            if let Some(found) = self.find(Some(slot), floor, unrelated) {
                if waiting {
                    self.label(ThreadState::Working);
                    waiting = false;
                    me.idle.store(false, Ordering::SeqCst);
                    me.awaits.store(0, Ordering::Release);
                }
                self.nesting.set(self.nesting.get() + 1);
                me.counts.nesting_max.fetch_max(self.nesting.get(), Ordering::Relaxed);
                // Halts that the helped task receives must not count against the waiting one.
                let halts = self.halts.get();
                self.run_above(parent, || self.execute(found));
                self.halts.set(halts);
                self.nesting.set(self.nesting.get() - 1);
                searches = 0;
                continue;
            }
            if !waiting {
                waiting = true;
                self.label(ThreadState::WaitLocal);
            }
            if searches < SEARCHES_BEFORE_SLEEP {
                searches += 1;
                std::hint::spin_loop();
                continue;
            }
            let leased = self.shared.leased_index(slot);
            me.awaits.store(leased.as_ref().map_or(0, |(index, ..)| index + 1), Ordering::Release);
            me.idle.store(unrelated, Ordering::SeqCst);
            self.shared.observer.idle();
            self.shared.sleep(self.index, Some(SLEEP_MAX), unrelated, is_final);
        }
        if waiting {
            me.idle.store(false, Ordering::SeqCst);
            me.awaits.store(0, Ordering::Release);
            self.label(ThreadState::Working);
        }
    }

    fn may_take_unrelated(&self) -> bool {
        self.nesting.get() < self.shared.nesting_bound && self.has_stack()
    }

    /// Whether half of the stack is left, enough for work unrelated to the tasks on it.
    pub(super) fn has_stack(&self) -> bool {
        let here = 0u8;
        std::ptr::from_ref(&here) as usize > self.stack_watermark
    }

    /// The lowest and highest address of the stack.
    pub(super) fn stack(&self) -> (usize, usize) {
        let half = self.stack_bytes / 2;
        (self.stack_watermark.saturating_sub(half), self.stack_watermark.saturating_add(half))
    }

    /// Bytes of stack that are left at least while [`Worker::has_stack`] holds.
    pub(super) fn stack_left(&self) -> usize {
        self.stack_bytes / 2
    }

    /// Finds something to run: in its own deque, then below the awaited slot, then anywhere if
    /// `unrelated`.
    fn find(
        &self,
        awaited: Option<NonNull<Header>>,
        floor: isize,
        unrelated: bool,
    ) -> Option<FoundWork> {
        if let Some(slot) = self.pop(floor) {
            return Some(FoundWork::Slot(slot));
        }
        if awaited.is_none()
            && let Some(root) = self.shared.take_root()
        {
            return Some(FoundWork::Root(root));
        }
        if let Some(slot) = awaited {
            if self.shared.remove_from_injector(slot) {
                return Some(FoundWork::Slot(slot));
            }
            // SAFETY: the slot is in a frame (or box) of this thread.
            let header = unsafe { slot.as_ref() };
            if header.state.load(Ordering::Acquire) == state::RUNNING {
                // Leapfrog: the thread that runs the task took it with an empty deque, so what its
                // deque contains is descended from the task.
                let holder = header.holder.load(Ordering::Relaxed) as usize;
                if let Some(thread) = self.shared.threads.get(holder)
                    && let Steal::Taken(slot) = thread.deque.steal()
                {
                    return Some(FoundWork::Slot(slot));
                }
            } else if let Some((_, _, path)) = self.shared.leased_index(slot) {
                let below = |work: &Injected| match work {
                    Injected::Incoming(task) => task.base.path.is_at_or_below(&path),
                    _ => false,
                };
                if let Some(work) = self.shared.take_injected(below) {
                    return Some(FoundWork::Injected(work));
                }
            }
        }
        if !unrelated {
            return None;
        }
        if let Some(work) = self.shared.take_any_injected(self.index) {
            return Some(FoundWork::Injected(work));
        }
        let threads = self.shared.threads.len();
        if threads > 1 {
            let start = self.next_random() as usize % threads;
            for at in 0..threads {
                let victim = (start + at) % threads;
                if victim == self.index as usize {
                    continue;
                }
                if let Steal::Taken(slot) = self.shared.threads[victim].deque.steal() {
                    Counts::add(&self.me().counts.taken_here, 1);
                    return Some(FoundWork::Slot(slot));
                }
            }
        }
        None
    }

    fn execute(&self, found: FoundWork) {
        match found {
            FoundWork::Slot(slot)
            | FoundWork::Injected(Injected::Slot(super::shared::SlotPointer(slot))) => {
                // SAFETY: the pointer was just taken out of a deque or the injector.
                unsafe { VTable::run(slot, self) };
            }
            FoundWork::Injected(Injected::Incoming(task)) => self.run_incoming(task),
            FoundWork::Root(root) => self.run_root(root),
        }
        self.shared.rest(self.index);
    }

    fn run_incoming(&self, task: Incoming) {
        let observer = self.shared.observer.clone();
        if let Some(halt) = self.shared.halted(|| &*task.base) {
            observer.finished(task.owner, task.lease, Err(Stop::halt(halt)));
            return;
        }
        let started = tokio::time::Instant::now();
        let base = &*task.base;
        base.begin(self.index);
        let frame = Frame::top(base);
        Counts::add(&self.me().counts.tops, 1);
        let halts = self.halts_received();
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            let context = Context::new(frame, self);
            let outcome = (task.run)(&task.body, &context);
            self.forget(context.frame());
            outcome
        }));
        if outcome.is_err() {
            self.clear_watch_list();
        }
        let outcome = match (self.shared.halted(|| base), outcome) {
            (Some(halt), _) if !self.completed_unhalted(halt, halts) => Err(Stop::halt(halt)),
            (_, Ok(outcome)) => outcome,
            (_, Err(panic)) => Err(Stop::failed(panic_text(&*panic), true)),
        };
        let outcome = outcome.map_err(|stop| locate(stop, base.name, || base.path.clone()));
        let time = started.elapsed();
        observer.task_ran(time);
        if outcome.is_ok() {
            observer.task_done(&task.owner, task.lease, &task.body, time);
        }
        observer.finished(task.owner, task.lease, outcome);
    }

    fn run_root(&self, root: RootWork) {
        let frame = Frame::top(&root.base);
        Counts::add(&self.me().counts.tops, 1);
        let context = Context::new(frame, self);
        let _at_root = self.enter_root();
        (root.run)(&context);
    }

    // --- the main loop ---

    /// Executes work until the pool closes.
    pub(crate) fn run(&self) {
        let me = self.me();
        let mut searches = 0;
        let mut idle = true;
        loop {
            self.take_tick(None);
            if self.shared.signals() & ROUND != 0 && !self.shared.is_closing() {
                self.join_round(false);
            }
            if let Some(found) = self.find(None, isize::MIN, true) {
                if idle {
                    idle = false;
                    me.idle.store(false, Ordering::SeqCst);
                    self.label(ThreadState::Working);
                }
                searches = 0;
                self.execute(found);
                continue;
            }
            if !idle {
                idle = true;
                self.label(ThreadState::Idle);
            }
            if self.shared.is_closing() {
                return;
            }
            if searches < SEARCHES_BEFORE_SLEEP {
                searches += 1;
                std::hint::spin_loop();
                continue;
            }
            me.idle.store(true, Ordering::SeqCst);
            self.shared.observer.idle();
            self.shared.sleep(self.index, None, true, || self.shared.has_root());
        }
    }

    pub(super) fn label(&self, state: ThreadState) {
        self.me().account.switch(state, tokio::time::Instant::now());
    }

    /// Spends modelled time: the thread counts as working while time passes.
    pub(crate) fn model(&self, time: Duration) {
        self.shared.seam.pass(self.index as usize, time);
    }
}

/// Reclaims a join's slot when the first child stops or unwinds, and notes which task panicked.
/// Dropped by value in a cold function, so that the hot path keeps its parts in registers.
struct FirstGuard<'a, A: Task, B: Task> {
    worker: &'a Worker,
    slot: &'a Slot<B>,
    place: isize,
    first: PhantomData<A>,
}

impl<A: Task, B: Task> Drop for FirstGuard<'_, A, B> {
    #[inline(always)]
    fn drop(&mut self) {
        let header = self.slot.header();
        note_unwinding(header.parent, header.index - 1, A::NAME);
        self.worker.reclaim_or_drop(self.slot.pointer(), self.place);
    }
}

/// Reclaims a slot that another thread or node has, when its sibling stops or unwinds.
struct ReclaimGuard<'a> {
    worker: &'a Worker,
    slot: NonNull<Header>,
    floor: isize,
}

impl Drop for ReclaimGuard<'_> {
    fn drop(&mut self) {
        self.worker.reclaim_or_drop(self.slot, self.floor);
    }
}

/// Notes the panic of a join's second child, whose task the owner has taken out of the slot.
struct SecondGuard<'a, B: Task> {
    slot: &'a Slot<B>,
}

impl<B: Task> Drop for SecondGuard<'_, B> {
    #[inline(always)]
    fn drop(&mut self) {
        let header = self.slot.header();
        note_unwinding(header.parent, header.index, B::NAME);
    }
}

#[cold]
#[inline(never)]
fn note_unwinding(parent: *const Frame, index: u32, name: &'static str) {
    if std::thread::panicking() {
        // SAFETY: the caller is a guard in a join of the parent, so the parent's frame is on this
        // stack.
        note_panic(|| unsafe { Frame::child(parent, index).path() }, name);
    }
}

/// A failure of the whole job, without a failing task.
pub(crate) fn job_failure(message: String) -> Failure {
    Failure {
        name: String::new(),
        path: crate::id::TaskPath::root(),
        message,
        panicked: false,
        located: true,
    }
}

/// The base of a job's root, with an empty path.
pub(crate) fn root_base(name: &'static str, start: Start) -> Arc<Base> {
    Arc::new(Base::new(crate::id::TaskPath::root(), name, start))
}

/// The body of compute thread `index`: executes work until the pool closes.
pub(crate) fn run(shared: Arc<PoolState>, index: u32, seed: u64, stack_bytes: usize) {
    // SAFETY: the pool starts one thread per index and calls this on it; the worker stays in this
    // frame.
    let worker = unsafe { Worker::new(shared, index, seed, stack_bytes) };
    worker.run();
    worker.shared.observer.ended();
}
