//! A node's compute threads for one job.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use springtide_forkjoin::layer::{Injected, LeaseCounts, process_cpu};
pub use springtide_forkjoin::{RealSeam, Seam};

use super::core::remote_task::{DeliveredEnd, Export, LeaseId};
use super::core::round::RoundShare;
use super::core::shared::{Incoming, PoolState, RootWork, TopWork};
use super::core::tree::{Base, root_base};
use super::core::worker::{self, locate};
use super::observer::PoolObserver;
use super::outcome::{Failure, Halt, Outcome, Stop};
use super::pool_config::PoolConfig;
use super::recover::{ResultLocation, RootStart, TaskIdentity};
use super::registry::{JobEntry, RegisteredTask, Registry, RunEncoded};
use super::report::SavedRoot;
use crate::guard::located_panic_text;
use crate::id::{Peer, TaskPath};
use crate::meter::{Amount, SharedAccount, ThreadState, Times, UnitCounter, WorkCounts};
use crate::random::SplitMix;

/// Counters of a pool since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolCounts {
    /// Tasks created by the pool's threads.
    pub spawned: u64,
    /// Tasks run: children created here whose outcome came from no other node, and tops of trees.
    /// While the job runs, it includes queued children.
    pub executed: u64,
    /// Tasks that a thread took from another thread of the pool.
    pub taken_here: u64,
    /// Outputs of long tasks kept until their parents ended: see [`PoolConfig::work_floor`].
    pub kept: u64,
    /// The deepest nesting of work in waits.
    pub nesting_max: u32,
}

/// A node's compute threads for one job. Cheap to clone; the threads end after [`Pool::close`].
#[derive(Clone)]
pub struct Pool {
    shared: Arc<PoolState>,
    /// Processor time of the process at the pool's start.
    cpu_before: Duration,
}

impl Pool {
    /// Starts a pool and its threads.
    ///
    /// # Errors
    /// The system provides no thread.
    pub fn start(
        config: &PoolConfig,
        registry: Arc<Registry>,
        seam: Arc<dyn Seam>,
        observer: Arc<dyn PoolObserver>,
    ) -> std::io::Result<Self> {
        let (threads, cpu_before) = (config.threads.max(1), process_cpu());
        let shared = Self::shared(config, threads, registry, seam.clone(), observer);
        for index in 0..threads {
            let shared_here = shared.clone();
            let seed = SplitMix(config.seed ^ ((index as u64) << 32)).next();
            let stack_bytes = config.stack_bytes;
            let body = Box::new(move || worker::run(shared_here, index as u32, seed, stack_bytes));
            let name = format!("{}-{index}", config.name);
            if let Err(error) = seam.start(index, name, stack_bytes, body) {
                shared.close();
                return Err(error);
            }
        }
        Ok(Self { shared, cpu_before })
    }

    fn shared(
        config: &PoolConfig,
        threads: usize,
        registry: Arc<Registry>,
        seam: Arc<dyn Seam>,
        observer: Arc<dyn PoolObserver>,
    ) -> Arc<PoolState> {
        let now = tokio::time::Instant::now();
        let accounts = (0..threads).map(|_| SharedAccount::new(ThreadState::Idle, now)).collect();
        Arc::new(PoolState::new(accounts, seam, observer, registry, config))
    }

    /// Runs a job to its end on the calling thread, as a pool of its own. `on_start` gets the pool
    /// first, so that others can halt it.
    ///
    /// # Errors
    /// As the job's.
    pub(crate) fn run_alone(
        config: &PoolConfig,
        registry: Arc<Registry>,
        seam: Arc<dyn Seam>,
        observer: Arc<dyn PoolObserver>,
        (job, body): (&JobEntry, Bytes),
        on_start: impl FnOnce(&Pool),
    ) -> Result<Outcome, Stop> {
        let shared = Self::shared(config, 1, registry, seam, observer);
        let pool = Self { shared, cpu_before: process_cpu() };
        on_start(&pool);
        let ended = Arc::new(Mutex::new(None));
        let (outcome_slot, shared) = (ended.clone(), pool.shared.clone());
        pool.run_job(job, body, None, move |outcome| {
            *outcome_slot.lock().unwrap_or_else(PoisonError::into_inner) = Some(outcome);
            shared.close();
        });
        // This function created the pool, and this thread is its only one.
        worker::run(pool.shared, 0, SplitMix(config.seed).next(), config.stack_bytes);
        let outcome = ended.lock().unwrap_or_else(PoisonError::into_inner).take();
        outcome.unwrap_or_else(|| Err(Stop::halt(Halt::Cancelled)))
    }

    /// Runs a job's root on some thread, from its start or from a checkpoint; `done` is called on
    /// that thread with the outcome.
    pub fn run_job(
        &self,
        job: &JobEntry,
        body: Bytes,
        resume: Option<SavedRoot>,
        done: impl FnOnce(Result<Outcome, Stop>) + Send + 'static,
    ) {
        // No task leaves the node, so the start's identity does not matter.
        self.run_root(root_base(job.name, RootStart::default()), job, body, resume, done);
    }

    /// As [`Pool::run_job`], with a base that the caller created.
    pub(crate) fn run_root(
        &self,
        base: Arc<Base>,
        job: &JobEntry,
        body: Bytes,
        resume: Option<SavedRoot>,
        done: impl FnOnce(Result<Outcome, Stop>) + Send + 'static,
    ) {
        let run = job.run;
        let shared = self.shared.clone();
        let tree = base.clone();
        let root = RootWork {
            base: base.clone(),
            run: Box::new(move |cx| {
                let outcome = catch_unwind(AssertUnwindSafe(|| {
                    let outcome = run(&body, cx.begin_root(resume), cx)?;
                    cx.finish_root()?;
                    Ok(outcome)
                }));
                let outcome = match (shared.halted(|| &tree), outcome) {
                    (Some(halt), _) if !cx.completed_unhalted(halt) => Err(Stop::halt(halt)),
                    (_, Ok(outcome)) => outcome,
                    (_, Err(panic)) => Err(Stop::failed(located_panic_text(&*panic), true)),
                };
                done(outcome.map_err(|stop| locate(stop, tree.name, TaskPath::root)));
            }),
        };
        self.shared.inject_root(TopWork::Root(root));
    }

    /// Takes the oldest task for `thief`; with `awaited`, only one at or below that path.
    pub(crate) fn export(
        &self,
        thief: &Peer,
        awaited: Option<&TaskPath>,
        start: usize,
    ) -> Option<Export> {
        if self.shared.is_halted() { None } else { self.shared.export(thief, awaited, start) }
    }

    /// Looks up the program of another node's task, and creates the base of its tree.
    ///
    /// # Errors
    /// No task of this name is registered.
    pub(crate) fn admit(
        &self,
        name: &str,
        path: TaskPath,
        start: RootStart,
    ) -> Result<(Arc<Base>, RegisteredTask), Failure> {
        let Some(entry) = self.shared.registry.find_task(name) else {
            let mut failure = worker::job_failure(format!(
                "task {name} is not registered in this node's program: \
                 add registry.task::<..>() to Job::register"
            ));
            failure.name = name.to_owned();
            failure.path = path;
            return Err(failure);
        };
        Ok((Arc::new(Base::new(path, entry.name, start)), entry))
    }

    /// Queues a task of another node.
    pub(crate) fn enter(
        &self,
        base: Arc<Base>,
        run: RunEncoded,
        owner: Peer,
        lease: LeaseId,
        body: Bytes,
    ) {
        let task = Incoming { base, run, body, owner, lease };
        self.shared.inject(Injected::Work(TopWork::Incoming(task)));
    }

    pub(crate) fn complete(&self, lease: LeaseId, end: DeliveredEnd) -> Option<TaskIdentity> {
        self.shared.complete_lease(lease, end)
    }

    /// Requeues the task of an open lease. Returns its holder and the task.
    pub(crate) fn reclaim(&self, lease: LeaseId) -> Option<(Peer, TaskIdentity)> {
        self.shared.reclaim(lease.into()).map(|lease| (lease.thief, lease.task))
    }

    pub(crate) fn reclaim_from(
        &self,
        lost: impl Fn(&Peer, &TaskIdentity) -> bool,
    ) -> Vec<(Peer, TaskIdentity)> {
        self.shared.reclaim_from(lost)
    }

    pub(crate) fn leased_to(&self, thief: &Peer) -> Vec<(LeaseId, TaskPath)> {
        self.shared.leased_to(thief)
    }

    /// Announces results for tasks whose paths have at most `depth` elements; 0 for none. Joins
    /// look them up with [`PoolObserver::lookup_cached`].
    pub(crate) fn recover(&self, depth: usize) {
        self.shared.recover(depth);
    }

    pub(crate) fn lease_counts(&self) -> LeaseCounts {
        self.shared.leases().counts()
    }

    pub(crate) fn leased_task(&self, lease: LeaseId) -> Option<TaskIdentity> {
        self.shared.leased_task(lease)
    }

    pub(crate) fn leased_above(&self, path: &TaskPath, longer: Option<usize>) -> Option<Peer> {
        self.shared.leased_above(path, longer)
    }

    pub(crate) fn leased_below(&self, path: &TaskPath) -> Vec<ResultLocation> {
        self.shared.leased_below(path)
    }

    pub(crate) fn is_leased(&self, lease: LeaseId) -> bool {
        self.shared.is_leased(lease)
    }

    pub(crate) fn is_computing(&self, base: &Base) -> bool {
        self.shared.is_computing(base)
    }

    pub(crate) fn take_back(&self, owner: &Peer, path: &TaskPath) -> Option<Incoming> {
        self.shared.take_back(owner, path)
    }

    pub(crate) fn take_incoming(&self, fits: impl Fn(&Incoming) -> bool) -> Option<Incoming> {
        self.shared.take_incoming(fits)
    }

    pub(crate) fn take_all_incoming(&self, fits: impl Fn(&Incoming) -> bool) -> Vec<Incoming> {
        self.shared.take_all_incoming(fits)
    }

    /// Sends a tick, so that outputs of long tasks in trees of other nodes are kept.
    ///
    /// Call it every half of [`PoolConfig::work_floor`] while there are such trees. After it
    /// returned false, call it only after [`PoolObserver::tick_taken`].
    pub(crate) fn tick(&self) -> bool {
        self.shared.tick()
    }

    pub(crate) fn halt_tree(&self, base: &Arc<Base>, reason: Halt) {
        self.shared.halt_tree(base, reason);
    }

    /// Halts a root after its next checkpoint.
    pub(crate) fn stop_root(&self, base: &Arc<Base>) {
        self.shared.may_halt(base);
        base.root.stop();
    }

    /// Clears the signal for halted trees once all of them have ended.
    pub(crate) fn forget_halted(&self) {
        self.shared.forget_halted();
    }

    pub(crate) fn awaited(&self) -> Vec<(LeaseId, TaskPath, Peer)> {
        self.shared.awaited()
    }

    /// The number of further tasks of other nodes that could start at once: idle threads less
    /// waiting tasks.
    pub(crate) fn free_capacity(&self) -> usize {
        self.shared.idle_threads().saturating_sub(self.shared.injected())
    }

    /// The number of compute threads.
    pub fn threads(&self) -> u32 {
        self.shared.threads().len() as u32
    }

    /// Requests one call of `PoolObserver::surplus` when there is work for other nodes. Returns
    /// true, without a later call, if there is some already.
    pub(crate) fn request_surplus_notice(&self) -> bool {
        self.shared.request_surplus_notice() && self.surplus() > 0
    }

    /// The approximate number of tasks that other nodes might steal.
    pub(crate) fn surplus(&self) -> usize {
        let local = self.shared.local_joins.load(Ordering::Relaxed);
        self.shared.approximate_len().saturating_sub(local)
    }

    /// Sets the state of the waiting threads, which tells what the node waits for.
    pub(crate) fn label_waiting(&self, state: ThreadState) {
        const WAITING: &[ThreadState] =
            &[ThreadState::Idle, ThreadState::WaitLocal, ThreadState::WaitWide];
        let now = tokio::time::Instant::now();
        for thread in self.shared.threads() {
            thread.layer.account.relabel(WAITING, state, now);
        }
    }

    /// The threads' times so far, summed.
    pub fn times(&self) -> Times {
        let now = tokio::time::Instant::now();
        self.shared.threads().iter().map(|t| t.layer.account.snapshot(now)).fold(
            Times::default(),
            |mut sum, times| {
                sum += times;
                sum
            },
        )
    }

    /// Processor time of the compute threads so far, summed. `None` in virtual time, where the
    /// system does not report it, and before the start or after the end of a thread.
    pub(crate) fn thread_cpu(&self) -> Option<Duration> {
        self.shared.compute_cpu()
    }

    /// Each thread's state.
    pub(crate) fn states(&self) -> impl Iterator<Item = ThreadState> {
        self.shared.threads().iter().map(|thread| thread.layer.account.state())
    }

    /// The computed work so far, in the units that the job declares.
    pub(crate) fn work(&self) -> WorkCounts {
        let now = tokio::time::Instant::now();
        let (mut work, mut units, mut squares) = (WorkCounts::default(), 0.0, 0.0);
        for thread in self.shared.threads() {
            let root = thread.layer.root_clock.spent(now).as_micros();
            work.root_us += u64::try_from(root).unwrap_or(u64::MAX);
            if let Some(counter) = &thread.layer.units {
                let (tasks, more, more_squares) = counter.moments();
                work.tasks += tasks;
                units += more;
                squares += more_squares;
            }
        }
        (work.units, work.squares) = (Amount::new(units), Amount::new(squares));
        work
    }

    /// The threads' counters of work units; none where they are not counted.
    pub(crate) fn units(&self) -> impl Iterator<Item = &UnitCounter> {
        self.shared.threads().iter().filter_map(|thread| thread.layer.units.as_ref())
    }

    /// As [`PoolState::begin_round`].
    pub(crate) fn begin_round(&self, share: Arc<RoundShare>) {
        self.shared.begin_round(share);
    }

    /// As [`PoolState::end_round`].
    pub(crate) fn end_round(&self) {
        self.shared.end_round();
    }

    /// The number of tasks that no thread has started.
    pub(crate) fn queued(&self) -> usize {
        self.shared.injected()
    }

    /// The registry of the program.
    pub(crate) fn registry(&self) -> &Arc<Registry> {
        &self.shared.registry
    }

    /// The seam where the threads block.
    pub(crate) fn seam(&self) -> &Arc<dyn Seam> {
        self.shared.seam()
    }

    /// Processor time of the whole process since the pool's start; `None` in virtual time.
    pub fn cpu(&self) -> Option<Duration> {
        let is_real = self.shared.seam().is_real();
        is_real.then(|| process_cpu().saturating_sub(self.cpu_before))
    }

    /// The counters so far.
    pub fn counts(&self) -> PoolCounts {
        let counts = self.shared.counts();
        let threads = || self.shared.threads().iter().map(|thread| &thread.layer);
        let tops: u64 = threads().map(|thread| thread.tops.get()).sum();
        PoolCounts {
            spawned: counts.spawned,
            executed: tops.saturating_add(counts.spawned).saturating_sub(counts.not_run),
            taken_here: counts.taken_here,
            kept: threads().map(|thread| thread.kept.get()).sum(),
            nesting_max: counts.nesting_max as u32,
        }
    }

    /// Halts all work at its next call into the runtime.
    pub fn halt(&self, reason: Halt) {
        self.shared.halt(reason);
    }

    /// Halts all work and ends the threads, without waiting for them.
    pub fn close(&self) {
        self.shared.halt(Halt::Cancelled);
        self.shared.close();
    }

    /// Waits until the threads have ended, after [`Pool::close`].
    pub fn join(&self) {
        self.shared.seam().join();
    }
}
