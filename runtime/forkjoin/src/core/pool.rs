//! The state that a pool's compute threads share with each other and with threads outside: deques,
//! injector, leases and sleepers.

use std::collections::VecDeque;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

use super::deque::{Deque, Steal};
use super::fence::Fences;
use super::layer::ComputeThread;
use super::leases::LeaseTable;
use super::sleep::Sleep;
use super::slot::{HeldSlot, SlotHeader};
use super::sync::{AtomicBool, AtomicU32, AtomicU64, Mutex, Ordering, fence, lock};
use crate::seam::Seam;

/// Work that no deque contains.
pub enum Injected<W: ComputeThread> {
    /// A slot that was returned or put back.
    Slot(HeldSlot<W>),
    /// Work without a slot.
    Work(W::Work),
}

/// What is done with the oldest task of a deque: see [`PoolCore::take_oldest`].
pub enum Offer<W: ComputeThread, R> {
    /// The task was taken, with this result.
    Taken(R),
    /// The task was taken without a result; the search continues.
    Skipped,
    /// The task is put back, and the search continues.
    Refused(HeldSlot<W>),
}

/// Counters that a thread publishes. Only that thread writes them.
#[derive(Default)]
pub(crate) struct Counters {
    pub(crate) spawned: Counter,
    pub(crate) not_run: Counter,
    pub(crate) taken_here: Counter,
    pub(crate) nesting_max: Counter,
}

/// A counter with one writer.
#[derive(Debug, Default)]
pub struct Counter(std::sync::atomic::AtomicU64);

impl Counter {
    /// Adds as the only writer: a plain addition.
    #[inline(always)]
    pub fn add(&self, n: u64) {
        self.0.store(self.get() + n, Ordering::Relaxed);
    }

    /// Raises the counter to this value, as the only writer.
    pub(crate) fn raise(&self, n: u64) {
        self.0.store(self.get().max(n), Ordering::Relaxed);
    }

    /// The value so far.
    #[inline(always)]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Counts of a pool since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Tasks created by the pool's threads.
    pub spawned: u64,
    /// Created tasks that no thread of the pool ran: their ends were delivered, or they were
    /// dropped.
    pub not_run: u64,
    /// Tasks that a thread took from another thread of the pool.
    pub taken_here: u64,
    /// The deepest nesting of work in waits.
    pub nesting_max: u64,
}

/// The data of one thread that other threads may read.
#[repr(align(128))]
pub struct ThreadState<W: ComputeThread> {
    pub(super) deque: Deque<SlotHeader<W>>,
    pub(super) counters: Counters,
    /// The layer's data of the thread.
    pub layer: W::Shared,
    /// Whether a thread has taken the index.
    pub(super) taken: std::sync::atomic::AtomicBool,
    /// The number of injections at the last search that found only work that this thread may not
    /// start; 0 for none.
    passed_over: AtomicU64,
    /// Whether the thread looks for work of any kind.
    pub(super) idle: AtomicBool,
}

impl<W: ComputeThread> ThreadState<W> {
    /// Records whether the thread looks for work of any kind.
    pub fn set_idle(&self, idle: bool) {
        self.idle.store(idle, Ordering::SeqCst);
    }
}

/// The limits of a pool.
#[derive(Clone, Copy, Debug)]
pub struct PoolLimits {
    /// The maximum number of waits on one stack that take unrelated work.
    pub nesting_bound: u32,
    /// The first generation of lease entries.
    pub first_lease_generation: u32,
}

/// The state of a pool that does not depend on its layer.
pub struct PoolCore<W: ComputeThread> {
    sleep: Sleep,
    threads: Box<[ThreadState<W>]>,
    injector: Mutex<VecDeque<Injected<W>>>,
    /// Work that starts only on an empty stack.
    roots: Mutex<VecDeque<W::Work>>,
    /// The number of injections so far; incremented after each.
    injections: AtomicU64,
    pub(super) leases: LeaseTable<W>,
    closing: AtomicBool,
    pub(super) nesting_bound: u32,
}

impl<W: ComputeThread> PoolCore<W> {
    /// Creates the state of a pool with a thread for each element of `layers`. The threads are
    /// started by [`run_thread`](super::thread::run_thread). `signals` are the layer's first.
    pub fn new(
        layers: impl IntoIterator<Item = W::Shared>,
        seam: Arc<dyn Seam>,
        signals: u32,
        limits: PoolLimits,
    ) -> Arc<Self> {
        let fences = Fences::of_process();
        let thread = |layer| ThreadState {
            deque: Deque::new(fences),
            counters: Counters::default(),
            layer,
            taken: false.into(),
            passed_over: AtomicU64::new(0),
            idle: AtomicBool::new(false),
        };
        let threads: Box<[_]> = layers.into_iter().map(thread).collect();
        Arc::new(Self {
            sleep: Sleep::new(threads.len(), fences, seam, signals),
            threads,
            injector: Mutex::new(VecDeque::new()),
            roots: Mutex::new(VecDeque::new()),
            injections: AtomicU64::new(0),
            leases: LeaseTable::new(limits.first_lease_generation),
            closing: AtomicBool::new(false),
            nesting_bound: limits.nesting_bound,
        })
    }

    /// The threads, by index.
    #[inline(always)]
    pub fn threads(&self) -> &[ThreadState<W>] {
        &self.threads
    }

    /// The seam where the threads block.
    pub fn seam(&self) -> &Arc<dyn Seam> {
        self.sleep.seam()
    }

    /// The signals: nonzero if a join has to handle any.
    #[inline(always)]
    pub fn signals(&self) -> u32 {
        self.sleep.signals().load(Ordering::Relaxed)
    }

    /// The signals, ordered before what the caller reads next.
    pub fn signals_acquire(&self) -> u32 {
        self.sleep.signals().load(Ordering::Acquire)
    }

    pub(super) fn signals_word(&self) -> &AtomicU32 {
        self.sleep.signals()
    }

    /// Sets or clears a signal of the layer.
    pub fn signal(&self, bit: u32, on: bool) {
        if on {
            self.sleep.signals().fetch_or(bit, Ordering::SeqCst);
        } else {
            self.sleep.signals().fetch_and(!bit, Ordering::SeqCst);
        }
    }

    /// Ends each thread once its stack holds no work.
    pub fn close(&self) {
        self.closing.store(true, Ordering::SeqCst);
        self.wake_all();
    }

    /// Whether the threads end.
    pub fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Acquire)
    }

    /// The counts so far.
    pub fn counts(&self) -> Counts {
        let mut sum = Counts::default();
        for ThreadState { counters, .. } in &self.threads {
            sum.spawned += counters.spawned.get();
            sum.not_run += counters.not_run.get();
            sum.taken_here += counters.taken_here.get();
            sum.nesting_max = sum.nesting_max.max(counters.nesting_max.get());
        }
        sum
    }

    // --- sleeping and waking ---

    /// Puts a thread to sleep until it is woken, unless `ready` holds. With `any_work` the thread
    /// also wakes for any work, and stays awake while there is some. May return early.
    ///
    /// Returns the time from a wake-up for work until the thread ran.
    pub(super) fn sleep(
        &self,
        thread: u32,
        timeout: Option<Duration>,
        any_work: bool,
        ready: impl Fn() -> bool,
    ) -> Option<Duration> {
        let is_work = || self.is_closing() || self.has_work_for(thread);
        self.sleep.sleep(thread, timeout, any_work, ready, is_work)
    }

    /// Whether there is work for this thread outside its own deque. Tasks left in its own deque lie
    /// below the awaited one and wait for their own joins.
    fn has_work_for(&self, thread: u32) -> bool {
        let others = self.threads.iter().enumerate().filter(|(at, _)| *at != thread as usize);
        // A thread that stayed awake for work that it may not start would spin. It looks again when
        // more work arrives, or later by itself.
        let passed_over = self.threads[thread as usize].passed_over.load(Ordering::Relaxed);
        let injected = self.injections.load(Ordering::SeqCst) != passed_over;
        (injected && !lock(&self.injector).is_empty())
            || others.into_iter().any(|(_, t)| !t.deque.looks_empty())
    }

    /// Notifies one sleeper of new work. Returns true if instead a thief outside the pool has to be
    /// notified.
    #[must_use]
    pub fn notify(&self) -> bool {
        self.sleep.notify(|_| false)
    }

    /// Requests that one [`PoolCore::notify`] returns true when there is work for thieves outside
    /// the pool. Returns true, without a later notice, if there is some already.
    pub fn request_surplus_notice(&self) -> bool {
        self.sleep.request_remote_notice(|| {
            self.threads.iter().any(|t| !t.deque.looks_empty()) || self.returned() > 0
        })
    }

    /// Wakes `owner` after the state of one of its slots became final, or another condition of its
    /// wait true. Does nothing if it is the caller `me`.
    pub fn wake_owner(&self, owner: u32, me: Option<u32>) {
        if Some(owner) != me {
            self.sleep.wake(owner);
        }
    }

    /// Wakes all threads of the pool that are parked.
    pub fn wake_all(&self) {
        self.sleep.wake_all();
    }

    /// The approximate number of tasks that no thread runs: those in deques, and those that were
    /// returned to the pool.
    pub fn approximate_len(&self) -> usize {
        let in_deques: usize = self.threads.iter().map(|t| t.deque.approximate_len()).sum();
        in_deques + self.returned()
    }

    /// The number of tasks that were returned to the pool.
    fn returned(&self) -> usize {
        let is_slot = |work: &&Injected<W>| matches!(work, Injected::Slot(_));
        lock(&self.injector).iter().filter(is_slot).count()
    }

    /// The number of threads that look for work of any kind.
    pub fn idle_threads(&self) -> usize {
        self.threads.iter().filter(|t| t.idle.load(Ordering::SeqCst)).count()
    }

    // --- the injector ---

    /// Queues work for any thread.
    pub fn inject(&self, work: Injected<W>) {
        {
            let mut injector = lock(&self.injector);
            injector.push_back(work);
            self.injections.fetch_add(1, Ordering::SeqCst);
        }
        self.sleep.notify_injected();
    }

    /// Lets this thread sleep although the injector has work that it may not start. Wakes a thread
    /// that may, for the work may have woken this one instead. Returns true if a thief outside the
    /// pool has to be notified.
    #[must_use]
    pub(super) fn pass_over_injected(&self, thread: u32) -> bool {
        let injections = self.injections.load(Ordering::SeqCst);
        self.threads[thread as usize].passed_over.store(injections, Ordering::Relaxed);
        let is_empty = lock(&self.injector).is_empty();
        !is_empty && self.notify_of_injected(injections)
    }

    /// Notifies one sleeper, or else thieves outside the pool, of the work that the injector had
    /// after this number of injections. Returns true for the latter.
    ///
    /// No sleeper that has seen it is woken: else two threads would wake each other for ever for
    /// work that neither may start.
    #[must_use]
    fn notify_of_injected(&self, injections: u64) -> bool {
        self.sleep.notify_if_wanted(|thread| {
            let thread = &self.threads[thread as usize];
            thread.passed_over.load(Ordering::Relaxed) == injections
        })
    }

    /// Queues work that starts only on an empty stack. Above another task it could wait for results
    /// of that task, which would then be computed twice.
    pub fn inject_root(&self, root: W::Work) {
        lock(&self.roots).push_back(root);
        fence(Ordering::SeqCst);
        // A thread that waits inside a task cannot take the root, so all threads are woken.
        self.wake_all();
    }

    /// Takes a root for a thread whose stack is empty.
    pub(super) fn take_root(&self) -> Option<W::Work> {
        lock(&self.roots).pop_front()
    }

    /// Whether a root waits for a thread.
    pub(super) fn has_root(&self) -> bool {
        !lock(&self.roots).is_empty()
    }

    /// Takes any injected work that this thread may start.
    pub(super) fn take_any_injected(&self, worker: &W) -> Option<Injected<W>> {
        let passed_over = &self.threads[worker.core().index() as usize].passed_over;
        passed_over.store(0, Ordering::Relaxed);
        if !worker.is_choosy() {
            return self.take_injected(|_| true);
        }
        let injections = self.injections.load(Ordering::SeqCst);
        let mut not_now = Vec::new();
        let taken = loop {
            let work = self.take_injected(|_| true);
            if let Some(Injected::Slot(slot)) = &work
                && !worker.may_start(slot.place())
            {
                not_now.extend(work);
                continue;
            }
            break work;
        };
        if taken.is_none() && !not_now.is_empty() {
            passed_over.store(injections, Ordering::Relaxed);
        }
        // The threads that await these tasks, or others, take them; threads that searched meanwhile
        // are woken.
        let back = !not_now.is_empty();
        lock(&self.injector).extend(not_now);
        if back && self.notify_of_injected(injections) {
            worker.surplus();
        }
        taken
    }

    /// The number of entries in the injector.
    pub fn injected(&self) -> usize {
        lock(&self.injector).len()
    }

    /// Takes the first injected entry that `fits`.
    pub fn take_injected(&self, fits: impl Fn(&Injected<W>) -> bool) -> Option<Injected<W>> {
        let mut injector = lock(&self.injector);
        let at = injector.iter().position(fits)?;
        injector.remove(at)
    }

    /// Takes the first injected work without a slot that `fits`.
    pub fn take_work(&self, fits: impl Fn(&W::Work) -> bool) -> Option<W::Work> {
        match self.take_injected(|it| matches!(it, Injected::Work(work) if fits(work)))? {
            Injected::Work(work) => Some(work),
            Injected::Slot(_) => unreachable!("only work fits"),
        }
    }

    /// Removes this slot's pointer from the injector; the caller then holds the slot. Returns false
    /// if it is not there.
    pub(super) fn remove_from_injector(&self, slot: NonNull<SlotHeader<W>>) -> bool {
        self.take_injected(|work| matches!(work, Injected::Slot(held) if held.pointer() == slot))
            .is_some()
    }

    /// Takes the oldest task of some deque, or a returned one. The search starts at deque `start`.
    pub fn take_oldest<R>(
        &self,
        start: usize,
        mut offer: impl FnMut(HeldSlot<W>) -> Offer<W, R>,
    ) -> Option<R> {
        let threads = self.threads.len();
        let returned = || match self.take_injected(|work| matches!(work, Injected::Slot(_)))? {
            Injected::Slot(slot) => Some(slot),
            Injected::Work(_) => unreachable!("only slots fit"),
        };
        let stolen = |at: usize| loop {
            match self.threads[(start + at) % threads].deque.steal() {
                // SAFETY: the pointer was just taken out of the deque, so this thread holds the
                // slot, with its task.
                Steal::Taken(slot) => return Some(unsafe { HeldSlot::new(slot) }),
                Steal::Lost => {}
                Steal::Empty => return None,
            }
        };
        for at in 0..=threads {
            let found = if at == 0 { returned() } else { stolen(at - 1) };
            let Some(slot) = found else { continue };
            match offer(slot) {
                Offer::Taken(taken) => return Some(taken),
                Offer::Skipped => {}
                Offer::Refused(slot) => self.inject(Injected::Slot(slot)),
            }
        }
        None
    }
}
