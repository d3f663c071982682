//! The state of a pool and of its threads, as far as it is about tasks of a grid: halts, and
//! results to reuse. The scheduler's part is [`PoolCore`].

use std::cell::{Cell, RefCell};
use std::ops::Deref;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use bytes::Bytes;
use springtide_forkjoin::Seam;
use springtide_forkjoin::layer::{
    self, Counter, HeldSlot, PoolCore, PoolLimits, ThreadClock, ThreadCore, WANTED,
};
use tokio::time::Instant;

use super::remote_task::{Delivery, Lease, LeaseId, wire_name};
use super::round::{RootClock, Round};
use super::tree::{Base, halt_of, is_above, path_at};
use super::watch_list::{ThreadWatch, WatchList};
use crate::id::{Peer, TaskPath};
use crate::meter::{SharedAccount, UnitCounter};
use crate::work::context::Context;
use crate::work::observer::{CachedResult, PoolObserver};
use crate::work::outcome::Halt;
use crate::work::pool_config::{ArrayTask, PoolConfig};
use crate::work::registry::{Registry, RunEncoded};
use crate::work::waker::WakeThread;

// The first bit of the signals is the scheduler's.
const _: () = assert!(WANTED == 1);
/// All work must stop.
const HALT: u32 = 2;
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

/// A task of another node that waits for a thread.
pub(crate) struct Incoming {
    pub(crate) base: Arc<Base>,
    pub(crate) run: RunEncoded,
    pub(crate) body: Bytes,
    /// The node that gets the result; `lease` is the lease there.
    pub(crate) owner: Peer,
    pub(crate) lease: LeaseId,
}

/// A job's root: the top of a tree that has no slot.
pub(crate) struct RootWork {
    pub(crate) base: Arc<Base>,
    pub(crate) run: Box<dyn FnOnce(&Context) + Send>,
}

/// Work that has no slot on this node.
pub(crate) enum TopWork {
    /// A task of another node.
    Incoming(Incoming),
    /// A job's root.
    Root(RootWork),
}

/// The data of one thread that other threads may read.
pub(crate) struct ThreadData {
    /// Tops of trees run here: the root, and tasks of other nodes.
    pub(crate) tops: Counter,
    /// Outputs of long tasks that were kept while their parents ran.
    pub(crate) kept: Counter,
    /// Work units of the tasks that ended here; `None` if they are not counted.
    pub(crate) units: Option<UnitCounter>,
    pub(crate) watch: ThreadWatch,
    pub(crate) account: SharedAccount,
    pub(crate) root_clock: RootClock,
    /// The clock of the thread's processor time, once it runs; none in virtual time.
    pub(crate) cpu: OnceLock<ThreadClock>,
    /// The index of the awaited lease, plus one; 0 for none.
    pub(crate) awaits: AtomicU32,
}

/// A compute thread of a node.
pub(crate) struct TaskThread {
    pub(super) core: ThreadCore<TaskThread>,
    pub(super) shared: Arc<PoolState>,
    /// The number of halts that users' code on this thread has received.
    pub(super) halts: Cell<u64>,
    /// The watched tasks on this stack.
    pub(super) watched: RefCell<WatchList>,
    /// The last round in which the thread took part.
    pub(super) rounds: Cell<u64>,
}

/// The frame of a running task.
pub(crate) type TaskFrame = layer::TaskFrame<TaskThread>;

/// The state that the threads of a pool share.
pub(crate) struct PoolState {
    core: Arc<PoolCore<TaskThread>>,
    halt_reason: AtomicU32,
    /// Unfinished trees that were halted, or that a task of their own may halt.
    halted: Mutex<Vec<Weak<Base>>>,
    /// The greatest length of the paths of tasks with known results; valid with `RECOVER`.
    recover_depth: AtomicU32,
    /// The number of unfinished joins of tasks that stay on the node: at most as many of the
    /// queued tasks are not for other nodes.
    pub(crate) local_joins: AtomicUsize,
    pub(crate) round: Round,
    pub(crate) observer: Arc<dyn PoolObserver>,
    pub(crate) registry: Arc<Registry>,
    /// See [`PoolConfig::checkpoint_rate`].
    pub(crate) checkpoint_rate: u64,
    /// See [`PoolConfig::files`].
    pub(crate) files: Option<PathBuf>,
    /// The job's place in its array.
    pub(crate) array: Option<ArrayTask>,
    /// The number of processors without which a job of fixed size does not start.
    pub(crate) processors_min: u32,
    /// Tasks that ran at least this long, in microseconds, are kept: see `watch`. `None` if none is
    /// kept.
    pub(crate) keep_least_us: Option<u64>,
    /// Whether ticks pause until a thread has taken the last one.
    pub(super) ticks_rest: AtomicBool,
    is_metered: bool,
    fork_time: Duration,
    start: Instant,
}

/// Locks a mutex. Data under these locks changes in single steps, so a poisoned lock is safe to
/// use.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Deref for PoolState {
    type Target = PoolCore<TaskThread>;

    #[inline(always)]
    fn deref(&self) -> &PoolCore<TaskThread> {
        &self.core
    }
}

impl WakeThread for PoolState {
    fn wake_thread(&self, thread: u32) {
        self.wake_owner(thread, None);
    }
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
        let threads = accounts.into_iter().map(|account| ThreadData {
            tops: Counter::default(),
            kept: Counter::default(),
            units: config.metered.then(UnitCounter::default),
            watch: ThreadWatch::default(),
            account,
            root_clock: RootClock::default(),
            cpu: OnceLock::new(),
            awaits: AtomicU32::new(0),
        });
        let signals = fork_time.map_or(0, |_| MODELLED) | if seam.rests() { RESTS } else { 0 };
        let limits =
            PoolLimits { nesting_bound, first_lease_generation: config.first_lease_generation };
        Self {
            core: PoolCore::new(threads, seam, signals, limits),
            halt_reason: AtomicU32::new(0),
            halted: Mutex::default(),
            recover_depth: AtomicU32::new(0),
            local_joins: AtomicUsize::new(0),
            round: Round::default(),
            observer,
            registry,
            checkpoint_rate,
            files: config.files.clone(),
            array: config.array,
            processors_min: config.processors_min,
            keep_least_us: (!work_floor.is_zero()).then(|| (work_floor / 4).as_micros() as u64),
            ticks_rest: AtomicBool::new(false),
            is_metered: config.metered,
            fork_time: fork_time.unwrap_or_default(),
            start: Instant::now(),
        }
    }

    /// The scheduler's part.
    pub(crate) fn core(&self) -> &Arc<PoolCore<TaskThread>> {
        &self.core
    }

    /// Whether work units and the root's own time are counted.
    pub(crate) fn is_metered(&self) -> bool {
        self.is_metered
    }

    /// Microseconds since the pool's start.
    pub(crate) fn now_us(&self) -> u64 {
        self.start.elapsed().as_micros() as u64
    }

    // --- halting ---

    /// Stops all work of the pool.
    pub(crate) fn halt(&self, reason: Halt) {
        self.halt_reason.store(reason as u32, Ordering::Relaxed);
        self.signal(HALT, true);
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
        self.signal(TREE_HALTED, true);
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
            self.signal(TREE_HALTED, false);
        }
    }

    /// The reason of the halt if work under this base must stop.
    pub(crate) fn halted<'a>(&self, base: impl FnOnce() -> &'a Base) -> Option<Halt> {
        let signals = self.signals_acquire();
        if signals & HALT != 0 {
            return Some(halt_of(self.halt_reason.load(Ordering::Relaxed)));
        }
        if signals & TREE_HALTED != 0 { base().halted() } else { None }
    }

    pub(crate) fn is_halted(&self) -> bool {
        self.signals() & HALT != 0
    }

    // --- reusing results of lost or returned work ---

    /// Announces results for tasks whose paths have at most `depth` elements; 0 for none. While
    /// there are some, every join looks up its children.
    pub(crate) fn recover(&self, depth: usize) {
        self.recover_depth.store(u32::try_from(depth).unwrap_or(u32::MAX), Ordering::Relaxed);
        self.signal(RECOVER, depth > 0);
    }

    /// Whether results are known that new tasks may reuse.
    pub(crate) fn recovers(&self) -> bool {
        self.signals() & RECOVER != 0
    }

    /// Whether a child of the task in this frame may have a result already.
    pub(crate) fn may_recover(&self, frame: &TaskFrame) -> bool {
        self.recovers() && is_above(frame, self.recover_depth.load(Ordering::Relaxed) as usize)
    }

    /// Looks up the result of a task that is about to run on this thread. Returns the slot if there
    /// is none. Else the slot is delivered, or leased to the node that has the task.
    pub(crate) fn lookup_cached(
        &self,
        thread: u32,
        slot: HeldSlot<TaskThread>,
    ) -> Option<HeldSlot<TaskThread>> {
        let about = slot.about();
        let name = wire_name(about.name, about.batch);
        let path = path_at(slot.place());
        // A task that does not encode fails where it runs.
        let encode = || slot.encode().ok();
        match self.observer.lookup_cached(thread, &path, &name, &encode) {
            CachedResult::Missing => return Some(slot),
            // The caller, its owner, finds the final state.
            CachedResult::Local(output) => self.deliver(slot, Delivery::new(Ok(output))),
            CachedResult::Remote(holder, task) => {
                let lease = Lease { task: task.clone(), thief: holder.clone() };
                let id = self.leases().grant(slot, lease).into();
                self.observer.adopt(&holder, id, task);
            }
        }
        None
    }

    /// As [`Pool::thread_cpu`](crate::work::pool::Pool::thread_cpu).
    pub(crate) fn compute_cpu(&self) -> Option<Duration> {
        self.threads().iter().map(|thread| thread.layer.cpu.get()?.read()).sum()
    }

    // --- signals ---

    /// Handles the signals that a join saw: wakes sleepers, and returns the reason if the task must
    /// stop.
    pub(crate) fn handle_signals<'a>(
        &self,
        thread: u32,
        base: impl FnOnce() -> &'a Base,
    ) -> Option<Halt> {
        let signals = self.signals();
        if signals & WANTED != 0 && self.notify() {
            self.observer.surplus();
        }
        if signals & MODELLED != 0 {
            self.seam().pass(thread as usize, self.fork_time);
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
            self.seam().rest(thread as usize, &stop);
        }
    }

    // --- tasks of other nodes ---

    /// Takes the first unstarted task of another node that `fits`.
    pub(crate) fn take_incoming(&self, fits: impl Fn(&Incoming) -> bool) -> Option<Incoming> {
        match self.take_work(|work| matches!(work, TopWork::Incoming(task) if fits(task)))? {
            TopWork::Incoming(task) => Some(task),
            TopWork::Root(_) => unreachable!("only incoming tasks fit"),
        }
    }

    /// Returns an unstarted task to its owner, which waits for it.
    pub(crate) fn take_back(&self, owner: &Peer, path: &TaskPath) -> Option<Incoming> {
        self.take_incoming(|task| task.owner == *owner && task.base.path == *path)
    }

    /// Takes every unstarted task of other nodes that `fits`.
    pub(crate) fn take_all_incoming(&self, fits: impl Fn(&Incoming) -> bool) -> Vec<Incoming> {
        std::iter::from_fn(|| self.take_incoming(&fits)).collect()
    }
}
