//! The state that a pool's compute threads share with the endpoint's thread: deques, injector,
//! leases and sleepers.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::deque::{Deque, Steal};
use super::fence::Fences;
use super::round::{RootClock, Round};
use super::slot::{Base, Delivery, Encoded, Frame, Header, VTable, halt_of, state};
use super::watch::Watch;
use crate::id::{Peer, TaskPath};
use crate::meter::{SharedAccount, ThreadState, UnitCounter};
use crate::work::pool::{CachedResult, PoolConfig, PoolObserver, Seam};
use crate::work::recover::{Identity, Place};
use crate::work::registry::{Registry, wire_name};
use crate::work::task::Halt;

mod leases;

pub use self::leases::LeaseCounts;
use self::leases::Leases;

/// All work must stop.
const HALT: u32 = 1;
/// A thread sleeps or a remote thief waits, and must be notified of new work.
const WANTED: u32 = 2;
/// A tree was halted.
const TREE_HALTED: u32 = 4;

/// Forks take modelled time: see `PoolConfig::fork_time`.
const MODELLED: u32 = 8;

/// Results are known, here or on other nodes, that new tasks may reuse: see [`PoolState::recover`].
const RECOVER: u32 = 16;

/// Each thread has a share of a round to do: see [`PoolState::begin_round`].
pub(crate) const ROUND: u32 = 32;

/// Compute threads pause between tasks: see [`Seam::rest`].
const RESTS: u32 = 64;

/// The identifier of a lease: an index in the owner's lease table and the generation of that entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct LeaseId {
    /// The index in the owner's table.
    pub index: u32,
    /// The generation: counts the uses of the entry.
    pub generation: u32,
}

/// A task taken out for another node.
#[derive(Debug)]
pub(crate) struct Export {
    pub(crate) lease: LeaseId,
    pub(crate) task: Identity,
    pub(crate) encoded: Encoded,
}

/// A task of another node that waits for a thread.
pub(crate) struct Incoming {
    pub(crate) base: Arc<Base>,
    pub(crate) run: fn(&Bytes, &crate::work::Context) -> Result<Bytes, crate::work::Stop>,
    pub(crate) body: Bytes,
    /// The node that gets the result; `lease` is the lease there.
    pub(crate) owner: Peer,
    pub(crate) lease: LeaseId,
}

/// Work that no deque contains.
pub(crate) enum Injected {
    /// A slot of this node that was returned or put back.
    Slot(SlotPointer),
    /// A task of another node.
    Incoming(Incoming),
}

/// A job's root: the top of a tree that has no slot.
pub(crate) struct RootWork {
    pub(crate) base: Arc<Base>,
    pub(crate) run: Box<dyn FnOnce(&crate::work::Context) + Send>,
}

/// A slot's pointer in the injector.
pub(crate) struct SlotPointer(pub(crate) NonNull<Header>);

// SAFETY: only the thread that took the pointer out of the injector dereferences it (see
// `slot.rs`), and tasks and their outputs are `Send`.
unsafe impl Send for SlotPointer {}

#[derive(Default)]
struct Sleepers {
    threads: Vec<u32>,
    remote: bool,
}

/// Counters that a thread publishes. Only that thread writes them.
#[derive(Default)]
pub(crate) struct Counts {
    pub(crate) spawned: AtomicU64,
    /// Children created here but not run here: their outcomes came from other nodes, or they were
    /// dropped.
    pub(crate) not_run: AtomicU64,
    /// Tops of trees run here: the root, and tasks of other nodes.
    pub(crate) tops: AtomicU64,
    /// Tasks taken from another thread of this node.
    pub(crate) taken_here: AtomicU64,
    /// The deepest nesting of waits that took unrelated work.
    pub(crate) nesting_max: AtomicU32,
    /// Outputs of long tasks that were kept while their parents ran.
    pub(crate) kept: AtomicU64,
    /// Work units of the tasks that ended here; `None` if they are not counted.
    pub(crate) units: Option<UnitCounter>,
}

impl Counts {
    /// Adds as the only writer: a plain addition.
    #[inline(always)]
    pub(crate) fn add(counter: &AtomicU64, n: u64) {
        counter.store(counter.load(Ordering::Relaxed) + n, Ordering::Relaxed);
    }
}

#[repr(align(128))]
pub(crate) struct ThreadData {
    pub(crate) deque: Deque<Header>,
    pub(crate) counts: Counts,
    pub(crate) watch: Watch,
    pub(crate) account: SharedAccount,
    pub(crate) root_clock: RootClock,
    asleep: AtomicBool,
    /// The time of a wake-up for work, in microseconds since the pool's start, plus one; 0 for
    /// none.
    called_us: AtomicU64,
    /// The index of the awaited lease, plus one; 0 for none.
    pub(crate) awaits: AtomicU32,
    /// The number of injections at the last search that found only work that this thread may not
    /// start; 0 for none.
    passed_over: AtomicU64,
    /// Whether the thread looks for work of any kind.
    pub(crate) idle: AtomicBool,
}

#[repr(align(128))]
struct Signals(AtomicU32);

pub(crate) struct PoolState {
    signals: Signals,
    fences: Fences,
    pub(crate) threads: Box<[ThreadData]>,
    injector: Mutex<VecDeque<Injected>>,
    /// Roots of jobs that wait for a thread.
    roots: Mutex<VecDeque<RootWork>>,
    /// The number of injections so far; incremented after each.
    injections: AtomicU64,
    sleepers: Mutex<Sleepers>,
    leases: Mutex<Leases>,
    halt_reason: AtomicU32,
    /// Unfinished trees that were halted, or that a task of their own may halt.
    halted: Mutex<Vec<Weak<Base>>>,
    /// The greatest length of the paths of tasks with known results; valid with `RECOVER`.
    recover_depth: AtomicU32,
    closing: AtomicBool,
    pub(crate) round: Round,
    pub(crate) seam: Arc<dyn Seam>,
    pub(crate) observer: Arc<dyn PoolObserver>,
    pub(crate) registry: Arc<Registry>,
    pub(crate) nesting_bound: u32,
    /// See [`PoolConfig::checkpoint_rate`].
    pub(crate) checkpoint_rate: u64,
    /// See [`PoolConfig::files`].
    pub(crate) files: Option<PathBuf>,
    /// Tasks that ran at least this long, in microseconds, are kept: see `watch`. `None` if none is
    /// kept.
    pub(crate) keep_least_us: Option<u64>,
    /// Whether ticks pause until a thread has taken the last one.
    pub(super) ticks_rest: AtomicBool,
    fork_time: Duration,
    start: Instant,
}

/// Locks a mutex. Data under these locks changes in single steps, so a poisoned lock is safe to
/// use.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl PoolState {
    pub(crate) fn new(
        accounts: Vec<SharedAccount>,
        seam: Arc<dyn Seam>,
        observer: Arc<dyn PoolObserver>,
        registry: Arc<Registry>,
        config: &PoolConfig,
    ) -> Self {
        let PoolConfig { nesting_bound, fork_time, work_floor, checkpoint_rate, .. } = *config;
        let fences = Fences::of_process();
        let threads = accounts
            .into_iter()
            .map(|account| ThreadData {
                deque: Deque::new(fences),
                counts: Counts::default(),
                watch: Watch::default(),
                account,
                root_clock: RootClock::default(),
                asleep: AtomicBool::new(false),
                called_us: AtomicU64::new(0),
                awaits: AtomicU32::new(0),
                passed_over: AtomicU64::new(0),
                idle: AtomicBool::new(false),
            })
            .collect();
        Self {
            signals: Signals(AtomicU32::new(
                fork_time.map_or(0, |_| MODELLED) | if seam.rests() { RESTS } else { 0 },
            )),
            fences,
            threads,
            injector: Mutex::default(),
            roots: Mutex::default(),
            injections: AtomicU64::new(0),
            sleepers: Mutex::default(),
            leases: Mutex::new(Leases::of(config.first_lease_generation)),
            halt_reason: AtomicU32::new(0),
            halted: Mutex::default(),
            recover_depth: AtomicU32::new(0),
            closing: AtomicBool::new(false),
            round: Round::default(),
            seam,
            observer,
            registry,
            nesting_bound,
            checkpoint_rate,
            files: config.files.clone(),
            keep_least_us: (!work_floor.is_zero()).then(|| (work_floor / 4).as_micros() as u64),
            ticks_rest: AtomicBool::new(false),
            fork_time: fork_time.unwrap_or_default(),
            start: Instant::now(),
        }
    }

    /// The word that joins read once: nonzero if anything needs handling.
    #[inline(always)]
    pub(crate) fn signals(&self) -> u32 {
        self.signals.0.load(Ordering::Relaxed)
    }

    /// Sets or clears one of the signals.
    pub(crate) fn signal(&self, bit: u32, on: bool) {
        if on {
            self.signals.0.fetch_or(bit, Ordering::SeqCst);
        } else {
            self.signals.0.fetch_and(!bit, Ordering::SeqCst);
        }
    }

    /// Counts work units and the root's own time from the start on.
    pub(crate) fn meter(&mut self) {
        self.threads
            .iter_mut()
            .for_each(|thread| thread.counts.units = Some(UnitCounter::default()));
    }

    /// Whether work units and the root's own time are counted.
    pub(crate) fn is_metered(&self) -> bool {
        self.threads.iter().any(|thread| thread.counts.units.is_some())
    }

    pub(crate) fn signals_word(&self) -> &AtomicU32 {
        &self.signals.0
    }

    /// Microseconds since the pool's start.
    pub(crate) fn now_us(&self) -> u64 {
        self.start.elapsed().as_micros() as u64
    }

    // --- halting ---

    /// Stops all work of the pool.
    pub(crate) fn halt(&self, reason: Halt) {
        self.halt_reason.store(reason as u32, Ordering::Relaxed);
        self.signals.0.fetch_or(HALT, Ordering::SeqCst);
        self.wake_all();
    }

    /// Stops one tree.
    pub(crate) fn halt_tree(&self, base: &Arc<Base>, reason: Halt) {
        self.may_halt(base);
        self.halt_from_within(base, reason);
    }

    /// Registers a tree that one of its own tasks may stop.
    pub(crate) fn may_halt(&self, base: &Arc<Base>) {
        lock(&self.halted).push(Arc::downgrade(base));
    }

    /// Stops the tree of the calling task, which [`PoolState::may_halt`] has registered.
    pub(crate) fn halt_from_within(&self, base: &Base, reason: Halt) {
        // Under the lock, so that `forget_halted` sees the mark or keeps the tree.
        let halted = lock(&self.halted);
        base.halt(reason);
        self.signals.0.fetch_or(TREE_HALTED, Ordering::SeqCst);
        drop(halted);
        if reason == Halt::Leave {
            self.watch_leaving();
        }
        self.wake_all();
    }

    /// Clears the signal for halted trees once all of them have ended.
    pub(crate) fn forget_halted(&self) {
        if self.signals() & TREE_HALTED == 0 {
            return;
        }
        let mut halted = lock(&self.halted);
        halted.retain(|base| base.strong_count() > 0);
        if halted.is_empty() {
            self.signals.0.fetch_and(!TREE_HALTED, Ordering::SeqCst);
        }
    }

    /// The reason of the halt if work under this base must stop.
    pub(crate) fn halted<'a>(&self, base: impl FnOnce() -> &'a Base) -> Option<Halt> {
        let signals = self.signals.0.load(Ordering::Acquire);
        if signals & HALT != 0 {
            return Some(halt_of(self.halt_reason.load(Ordering::Relaxed)));
        }
        if signals & TREE_HALTED != 0 { base().halted() } else { None }
    }

    pub(crate) fn is_halted(&self) -> bool {
        self.signals() & HALT != 0
    }

    /// Ends each thread once its stack holds no work.
    pub(crate) fn close(&self) {
        self.closing.store(true, Ordering::SeqCst);
        self.wake_all();
    }

    pub(crate) fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Acquire)
    }

    // --- reusing results of lost or returned work ---

    /// Announces results for tasks whose paths have at most `depth` elements; 0 for none. While
    /// there are some, every join looks up its children.
    pub(crate) fn recover(&self, depth: usize) {
        self.recover_depth.store(u32::try_from(depth).unwrap_or(u32::MAX), Ordering::Relaxed);
        if depth > 0 {
            self.signals.0.fetch_or(RECOVER, Ordering::SeqCst);
        } else {
            self.signals.0.fetch_and(!RECOVER, Ordering::SeqCst);
        }
    }

    /// Whether a child of the task in this frame may have a result already.
    ///
    /// # Safety
    /// The frame is the calling task's.
    pub(crate) unsafe fn may_recover(&self, frame: &Frame) -> bool {
        // SAFETY: by the contract.
        self.signals() & RECOVER != 0
            && unsafe { frame.is_above(self.recover_depth.load(Ordering::Relaxed) as usize) }
    }

    /// Looks up the result of a task that is about to run on this thread. If one exists, returns
    /// true: the slot is then delivered, or leased to the node that has the task.
    ///
    /// # Safety
    /// The caller owns and holds the slot, with its task in it.
    pub(crate) unsafe fn lookup_cached(&self, thread: u32, slot: NonNull<Header>) -> bool {
        // SAFETY: by the contract.
        let header = unsafe { slot.as_ref() };
        let name = wire_name(header.vtable.name, header.vtable.batch);
        // SAFETY: as above.
        let path = unsafe { header.path() };
        // A task that does not encode fails where it runs.
        // SAFETY: as above.
        let encode = || unsafe { VTable::encode(slot) }.ok();
        match self.observer.lookup_cached(thread, &path, &name, &encode) {
            CachedResult::Missing => false,
            CachedResult::Local(output) => {
                // SAFETY: as above; the caller, its owner, finds the final state.
                unsafe { VTable::deliver(slot, Ok(output)) };
                true
            }
            CachedResult::Remote(holder, task) => {
                let lease = self.lease(slot, task.clone(), holder.clone());
                self.observer.adopt(&holder, lease, task);
                true
            }
        }
    }

    // --- sleeping and waking ---

    /// Puts a thread to sleep until it is woken, unless `ready` holds. With `any_work` the thread
    /// also wakes for any work, and stays awake while there is some. May return early.
    pub(crate) fn sleep(
        &self,
        thread: u32,
        timeout: Option<Duration>,
        any_work: bool,
        ready: impl Fn() -> bool,
    ) {
        let me = &self.threads[thread as usize];
        if any_work {
            lock(&self.sleepers).threads.push(thread);
            self.signals.0.fetch_or(WANTED, Ordering::SeqCst);
        }
        me.asleep.store(true, Ordering::SeqCst);
        // Pairs with the light fence between a push and its read of the signals. It also pairs with
        // the store of a final state and the waker's read of `asleep`, both sequentially
        // consistent.
        self.fences.heavy();
        fence(Ordering::SeqCst);
        if !ready() && !(any_work && (self.is_closing() || self.has_work_for(thread))) {
            self.seam.park(thread as usize, timeout);
            let called_us = me.called_us.swap(0, Ordering::Relaxed);
            if called_us > 0 {
                let now_us = self.now_us() + 1;
                self.observer.thread_woke(Duration::from_micros(now_us.saturating_sub(called_us)));
            }
        }
        me.asleep.store(false, Ordering::SeqCst);
        if any_work {
            let mut sleepers = lock(&self.sleepers);
            sleepers.threads.retain(|other| *other != thread);
            self.clear_wanted(&sleepers);
        }
    }

    fn clear_wanted(&self, sleepers: &Sleepers) {
        if sleepers.threads.is_empty() && !sleepers.remote {
            self.signals.0.fetch_and(!WANTED, Ordering::SeqCst);
        }
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

    /// Notifies one sleeper of new work, or else the waiting thieves of other nodes.
    #[cold]
    pub(crate) fn notify(&self) {
        self.call_unless(|_| false);
    }

    /// Notifies as [`PoolState::notify`], but no sleeper that has `seen` the work. Otherwise two
    /// threads would wake each other forever for work that neither may start.
    fn call_unless(&self, seen: impl Fn(&ThreadData) -> bool) {
        let mut sleepers = lock(&self.sleepers);
        let new = |thread: &u32| !seen(&self.threads[*thread as usize]);
        if let Some(at) = sleepers.threads.iter().rposition(new) {
            let thread = sleepers.threads.remove(at);
            self.clear_wanted(&sleepers);
            drop(sleepers);
            self.call(thread);
        } else if sleepers.remote {
            sleepers.remote = false;
            self.clear_wanted(&sleepers);
            drop(sleepers);
            self.observer.surplus();
        }
    }

    /// Handles the signals that a join saw: wakes sleepers, and returns the reason if the task must
    /// stop.
    pub(crate) fn handle_signals<'a>(
        &self,
        thread: u32,
        base: impl FnOnce() -> &'a Base,
    ) -> Option<Halt> {
        let signals = self.signals();
        if signals & WANTED != 0 {
            self.notify();
        }
        if signals & MODELLED != 0 {
            self.seam.pass(thread as usize, self.fork_time);
        }
        if signals & RESTS != 0 {
            self.rest(thread);
        }
        self.halted(base)
    }

    /// Pauses the thread if compute threads have to rest.
    pub(crate) fn rest(&self, thread: u32) {
        if self.signals() & RESTS != 0 {
            // Halted work stops now, and rests the next time.
            let stop = || self.signals() & (HALT | TREE_HALTED) != 0;
            self.seam.rest(thread as usize, &stop);
        }
    }

    /// Wakes a sleeping thread because there is work.
    fn call(&self, thread: u32) {
        let now_us = self.now_us() + 1;
        self.threads[thread as usize].called_us.store(now_us, Ordering::Relaxed);
        self.seam.unpark(thread as usize);
    }

    /// The approximate number of tasks that other nodes might steal.
    pub(crate) fn approximate_len(&self) -> usize {
        self.threads.iter().map(|t| t.deque.approximate_len()).sum()
    }

    /// Requests one call of `PoolObserver::surplus` when there is work for other nodes. Returns
    /// true, without a later call, if there is some already.
    pub(crate) fn request_remote_notice(&self) -> bool {
        {
            let mut sleepers = lock(&self.sleepers);
            sleepers.remote = true;
            self.signals.0.fetch_or(WANTED, Ordering::SeqCst);
        }
        self.fences.heavy();
        let there = self.threads.iter().any(|t| !t.deque.looks_empty());
        if there {
            let mut sleepers = lock(&self.sleepers);
            sleepers.remote = false;
            self.clear_wanted(&sleepers);
        }
        there
    }

    /// Wakes `owner` after the state of one of its slots became final.
    pub(crate) fn wake_owner(&self, owner: u32, me: u32) {
        if owner == me {
            return;
        }
        // Between the caller's store of the state and this read: pairs with the fence in `sleep`.
        fence(Ordering::SeqCst);
        if self.threads[owner as usize].asleep.load(Ordering::SeqCst) {
            self.seam.unpark(owner as usize);
        }
    }

    pub(crate) fn wake_all(&self) {
        for thread in 0..self.threads.len() {
            self.seam.unpark(thread);
        }
    }

    /// The number of threads that look for work of any kind.
    pub(crate) fn idle_threads(&self) -> usize {
        self.threads.iter().filter(|t| t.idle.load(Ordering::SeqCst)).count()
    }

    // --- the injector ---

    pub(crate) fn inject(&self, work: Injected) {
        {
            let mut injector = lock(&self.injector);
            injector.push_back(work);
            self.injections.fetch_add(1, Ordering::SeqCst);
        }
        fence(Ordering::SeqCst);
        if self.signals() & WANTED != 0 {
            let thread = lock(&self.sleepers).threads.pop();
            if let Some(thread) = thread {
                self.call(thread);
            }
        }
    }

    /// Queues a job's root, which starts only on an empty stack. Above another task it could wait
    /// for results of that task, which would then be computed twice.
    pub(crate) fn begin_root(&self, root: RootWork) {
        lock(&self.roots).push_back(root);
        fence(Ordering::SeqCst);
        // A thread that waits inside a task cannot take the root, so all threads are woken.
        self.wake_all();
    }

    /// Takes a root for a thread whose stack is empty.
    pub(crate) fn take_root(&self) -> Option<RootWork> {
        lock(&self.roots).pop_front()
    }

    /// Whether a root waits for a thread.
    pub(crate) fn has_root(&self) -> bool {
        !lock(&self.roots).is_empty()
    }

    /// Takes any injected work that this thread may start.
    pub(crate) fn take_any_injected(&self, thread: u32) -> Option<Injected> {
        let passed_over = &self.threads[thread as usize].passed_over;
        passed_over.store(0, Ordering::Relaxed);
        if self.signals() & RECOVER == 0 {
            return self.take_injected(|_| true);
        }
        let injections = self.injections.load(Ordering::SeqCst);
        let mut not_now = Vec::new();
        let taken = loop {
            let work = self.take_injected(|_| true);
            if let Some(Injected::Slot(slot)) = &work {
                // SAFETY: the pointer was just taken out of the injector, so this thread holds the
                // slot.
                let path = unsafe { slot.0.as_ref().path() };
                if !self.observer.may_start(thread, &path) {
                    not_now.extend(work);
                    continue;
                }
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
        if back && self.signals() & WANTED != 0 {
            self.call_unless(|thread| thread.passed_over.load(Ordering::Relaxed) == injections);
        }
        taken
    }

    /// The number of entries in the injector.
    pub(crate) fn injected(&self) -> usize {
        lock(&self.injector).len()
    }

    /// Takes the first injected entry that `fits`.
    pub(crate) fn take_injected(&self, fits: impl Fn(&Injected) -> bool) -> Option<Injected> {
        let mut injector = lock(&self.injector);
        let at = injector.iter().position(fits)?;
        injector.remove(at)
    }

    /// Removes this slot's pointer from the injector. Returns false if it is not there.
    pub(crate) fn remove_from_injector(&self, slot: NonNull<Header>) -> bool {
        self.take_injected(|work| matches!(work, Injected::Slot(other) if other.0 == slot))
            .is_some()
    }

    /// Returns an unstarted task to its owner, which waits for it.
    pub(crate) fn take_back(&self, owner: &Peer, path: &TaskPath) -> Option<Incoming> {
        let fits = |work: &Injected| {
            matches!(work, Injected::Incoming(task)
                if task.owner == *owner && task.base.path == *path)
        };
        match self.take_injected(fits) {
            Some(Injected::Incoming(task)) => Some(task),
            _ => None,
        }
    }

    /// Takes every unstarted task of other nodes that `fits`.
    pub(crate) fn take_all_incoming(&self, fits: impl Fn(&Incoming) -> bool) -> Vec<Incoming> {
        let mut taken = Vec::new();
        while let Some(Injected::Incoming(task)) =
            self.take_injected(|work| matches!(work, Injected::Incoming(task) if fits(task)))
        {
            taken.push(task);
        }
        taken
    }
}
