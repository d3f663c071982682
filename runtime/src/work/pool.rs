//! A node's compute threads for one job, and the two seams to the outside: `Seam` (where threads block) and `Host` (what
//! they tell the node).

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::core::cpu_clock::process_cpu;
pub(crate) use super::core::patience::Waker;
use super::core::precedence::give_way;
use super::core::round::Share;
use super::core::shared::{Export, Incoming, Injected, LeaseBook, LeaseId, RootWork, Shared};
pub use super::core::slot::Encoded;
use super::core::slot::{Base, Delivery, locate};
use super::core::worker;
use super::recover::{Identity, Place, Start};
use super::registry::{JobEntry, Registry, RunEncoded, TaskEntry};
use super::task::{Failure, Halt, Outcome, Stop};
use crate::guard::panic_text;
use crate::id::{NodeId, Peer, TaskPath};
use crate::meter::{Amount, SharedAccount, ThreadState, Times, UnitCounter, WorkCounts};
use crate::random::SplitMix;
use crate::share::Shared as Objects;
use crate::spmd::post::Post;

/// Where compute threads block: the one place. Real threads park; under virtual time the executor takes its turn.
pub trait Seam: Send + Sync {
    /// Starts a compute thread that runs `body`; `stack_bytes` is its stack's size.
    ///
    /// # Errors
    /// If the system gives no thread.
    fn start(
        &self,
        thread: usize,
        name: String,
        stack_bytes: usize,
        body: Box<dyn FnOnce() + Send>,
    ) -> std::io::Result<()>;

    /// Called on compute thread `thread`: blocks until `unpark` was called for it (also before) or the time is over. May
    /// return early.
    fn park(&self, thread: usize, timeout: Option<Duration>);

    /// Wakes `thread`, or lets its next `park` return at once.
    fn unpark(&self, thread: usize);

    /// Called on compute thread `thread`: lets modelled compute time pass; not ended by `unpark`.
    fn pass(&self, thread: usize, time: Duration);

    /// Waits until all threads have ended. Called on no compute thread.
    fn join(&self);

    /// Whether compute threads have to [rest](Self::rest).
    fn rests(&self) -> bool {
        false
    }

    /// Called on compute thread `thread`, between tasks and at their joins: may block for a while, if not `stop`.
    fn rest(&self, _thread: usize, _stop: &dyn Fn() -> bool) {}

    /// Whether what threads compute takes the time that the clock shows: then, and only then, it can be measured.
    fn is_real(&self) -> bool {
        false
    }
}

/// What a job reports while it runs.
#[derive(Clone, Debug, PartialEq)]
pub enum Note {
    /// An iteration is done.
    Iteration,
    /// How far the job is.
    Progress {
        /// Done so far.
        done: u64,
        /// Of how many.
        total: u64,
        /// What is counted.
        what: String,
    },
    /// A line for whoever watches.
    Say {
        /// The line.
        text: String,
    },
    /// A file for the run's directory.
    Artifact {
        /// Its plain name.
        name: String,
        /// Its contents.
        bytes: Bytes,
    },
    /// The outcome that the job would have if it ended now.
    Preliminary {
        /// The outcome.
        outcome: Outcome,
    },
    /// From here a new root can go on.
    Checkpoint(SavedRoot),
    /// The job wants more nodes.
    NeedNodes {
        /// How many more.
        more: u32,
        /// It cannot go on without them: in this time, or never.
        within: Option<Duration>,
    },
    /// The program has no use for these nodes: they may leave the job.
    Release {
        /// Which.
        nodes: Vec<NodeId>,
    },
}

/// A checkpoint of a job's root: what a new root needs to go on from there. Kept as a named map, so fields may be
/// added. The shared objects are not in it: [`Job::resume`](super::Job::resume) publishes them anew.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedRoot {
    /// The index of the root's next child. With it the children made after the checkpoint have the paths that they
    /// would have had, by which results of theirs are found.
    pub next_child: u32,
    /// Counts the root's checkpoints from 1; a root that was resumed counts on. One that was started anew counts from 1
    /// again, so among roots of several epochs the epoch comes first.
    pub seq: u64,
    /// The state given to [`Context::checkpoint`](super::Context::checkpoint), encoded.
    pub state: Bytes,
}

/// What the compute threads tell their node. Called on compute threads; must not block.
pub trait Host: Send + Sync {
    /// A thread found nothing to do here.
    fn hungry(&self);
    /// There is work that another node may take (asked for by `Pool::want_surplus`).
    fn surplus(&self);
    /// A task of another node has ended.
    fn finished(&self, owner: Peer, lease: LeaseId, outcome: Result<Bytes, Stop>);
    /// A leased task is no longer wanted.
    fn abandoned(&self, thief: &Peer, lease: LeaseId);
    /// The tree whose top is at `tree` stops because this node leaves; a task below it that `thief` has under a lease goes on
    /// there, for whoever runs the tree again.
    fn disowned(&self, tree: &TaskPath, thief: &Peer, lease: LeaseId, task: Identity) {
        let _ = (tree, task);
        self.abandoned(thief, lease);
    }
    /// A stolen task ran this long.
    fn task_ran(&self, time: Duration);
    /// It had these arguments and ended well.
    fn task_done(&self, owner: &Peer, lease: LeaseId, body: &Bytes, time: Duration) {
        let _ = (owner, lease, body, time);
    }
    /// A result of another node lay there so long before its task took it.
    fn join_delayed(&self, time: Duration);
    /// A sleeping thread of this node was called for work so long before it ran.
    fn woke(&self, time: Duration);
    /// A thread has taken a tick while none was told any more: see `Pool::tick`.
    fn took_tick(&self) {}
    /// The job reports.
    fn note(&self, note: Note);
    /// The job's shared objects on this node.
    fn objects(&self) -> &Objects;
    /// A task is about to run on this thread, while results of lost work are known: is its result there already? `encode` serialises it, for the
    /// comparison.
    fn recall(
        &self,
        thread: u32,
        path: &TaskPath,
        name: &str,
        encode: &dyn Fn() -> Option<Encoded>,
    ) -> Recalled {
        let _ = (thread, path, name, encode);
        Recalled::No
    }
    /// Whether this thread may begin a task that was begun before, elsewhere, and came back: not if parts of it lie further down
    /// its stack, for which it would wait.
    fn may_begin(&self, thread: u32, path: &TaskPath) -> bool {
        let _ = (thread, path);
        true
    }
    /// A task that [`Host::recall`] found elsewhere is leased to its holder under this lease.
    fn adopt(&self, holder: &Peer, lease: LeaseId, task: Identity) {
        let _ = (holder, lease, task);
    }
    /// The node's part in SPMD programs; none where a pool has no use for them.
    #[doc(hidden)]
    fn post(&self) -> Option<&Arc<Post>> {
        None
    }
    /// These nodes are to come for work that is here, whether or not they have asked for any.
    fn call(&self, nodes: &[NodeId]) {
        let _ = nodes;
    }
    /// Why the job does not get the nodes that it asked for last, once that is known.
    fn refused(&self) -> Option<String> {
        None
    }
    /// The job asks for nodes anew: what was refused before does not matter.
    fn forget_refusal(&self) {}
    /// A thread has ended, after `Pool::close`.
    fn ended(&self);
}

/// What [`Host::recall`] found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Recalled {
    /// Nothing.
    No,
    /// The encoded output.
    Here(Bytes),
    /// This node has the very task, finished or running.
    At(Peer, Identity),
}

/// Default of [`PoolConfig::work_floor`].
pub const WORK_FLOOR: Duration = Duration::from_millis(50);

/// Default of [`PoolConfig::checkpoint_rate`].
pub const CHECKPOINT_RATE: u64 = 256 << 10;

/// How a pool is made.
#[derive(Clone, Debug)]
pub struct PoolConfig {
    /// Compute threads, at least 1.
    pub threads: usize,
    /// Stack of each, in bytes. Deep recursions need it; only what is touched costs memory.
    pub stack_bytes: usize,
    /// How many waits of one stack may take unrelated work.
    pub nesting_bound: u32,
    /// Seed of the threads' choice of victims.
    pub seed: u64,
    /// Tells this life of the node from its others, in the numbers of its leases.
    pub life: u32,
    /// Modelled time that each join and spawn takes; for virtual time, in which what a task computes takes none.
    pub fork_time: Option<Duration>,
    /// Work units of tasks and the root's own time are counted: see [`Task::cost`](super::Task::cost).
    pub metered: bool,
    /// Outputs of tasks that ran so long are kept until their parents end, for the case that the node leaves; surely of
    /// those that ran three quarters of it, and of none that ran less than a quarter. 0 keeps none.
    pub work_floor: Duration,
    /// Bytes a second that the root's checkpoints may come to on average, each counted with 16 KiB more: those called for
    /// sooner are passed over. At the default a megabyte leaves every 4 s, which costs the nodes that write, carry and keep
    /// it about 1 % of one core. 0: no limit.
    pub checkpoint_rate: u64,
    /// Where input files are: see [`Context::file`](super::Context::file).
    pub files: Option<PathBuf>,
    /// Start of the threads' names.
    pub name: String,
}

impl Default for PoolConfig {
    fn default() -> Self {
        Self {
            threads: 1,
            stack_bytes: 16 << 20,
            nesting_bound: 32,
            seed: 1,
            life: 0,
            fork_time: None,
            metered: false,
            work_floor: WORK_FLOOR,
            checkpoint_rate: CHECKPOINT_RATE,
            files: None,
            name: "compute".to_owned(),
        }
    }
}

/// What a pool has counted so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolCounts {
    /// Tasks made.
    pub spawned: u64,
    /// Tasks run: every child made here whose outcome did not come from elsewhere, and the tops of trees. While the job
    /// runs, children still queued are among them.
    pub executed: u64,
    /// Tasks that a thread took from another thread of the pool.
    pub taken_here: u64,
    /// Outputs of long tasks kept until their parents end: see [`PoolConfig::work_floor`].
    pub kept: u64,
    /// Deepest nesting of work under waits.
    pub nesting_max: u32,
}

/// A node's compute threads for one job. Cheap to clone; the threads end after [`Pool::close`].
#[derive(Clone)]
pub struct Pool {
    shared: Arc<Shared>,
    /// Processor time of the process when the pool began.
    cpu_before: Duration,
}

impl Pool {
    /// Starts the threads.
    ///
    /// # Errors
    /// If the system gives no thread.
    pub fn start(
        config: &PoolConfig,
        registry: Arc<Registry>,
        seam: Arc<dyn Seam>,
        host: Arc<dyn Host>,
    ) -> std::io::Result<Self> {
        let (threads, cpu_before) = (config.threads.max(1), process_cpu());
        let shared = Self::shared(config, threads, registry, seam.clone(), host);
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
        host: Arc<dyn Host>,
    ) -> Arc<Shared> {
        let now = tokio::time::Instant::now();
        let accounts = (0..threads).map(|_| SharedAccount::new(ThreadState::Idle, now)).collect();
        let mut shared = Shared::new(accounts, seam, host, registry, config);
        if config.metered {
            shared.meter();
        }
        Arc::new(shared)
    }

    /// Runs a job to its end on the calling thread, which is a pool by itself for so long. `begun` gets that pool before,
    /// so that others can halt it.
    ///
    /// # Errors
    /// As the job's.
    pub(crate) fn run_alone(
        config: &PoolConfig,
        registry: Arc<Registry>,
        seam: Arc<dyn Seam>,
        host: Arc<dyn Host>,
        (job, body): (&JobEntry, Bytes),
        begun: impl FnOnce(&Pool),
    ) -> Result<Outcome, Stop> {
        let shared = Self::shared(config, 1, registry, seam, host);
        let pool = Self { shared, cpu_before: process_cpu() };
        begun(&pool);
        let ended = Arc::new(Mutex::new(None));
        let (tell, shared) = (ended.clone(), pool.shared.clone());
        pool.run_job(job, body, None, move |outcome| {
            *tell.lock().unwrap_or_else(PoisonError::into_inner) = Some(outcome);
            shared.close();
        });
        // The pool was made here and has no thread but this one.
        worker::run(pool.shared, 0, SplitMix(config.seed).next(), config.stack_bytes);
        let outcome = ended.lock().unwrap_or_else(PoisonError::into_inner).take();
        outcome.unwrap_or_else(|| Err(Stop::halt(Halt::Cancelled)))
    }

    /// Runs a job's root on some thread, from its start or from a checkpoint; `done` is called on that thread with its
    /// end.
    pub fn run_job(
        &self,
        job: &JobEntry,
        body: Bytes,
        resume: Option<SavedRoot>,
        done: impl FnOnce(Result<Outcome, Stop>) + Send + 'static,
    ) {
        // Nothing of it goes elsewhere, so nobody asks which start it is.
        self.run_root(worker::root_base(job.name, Start::default()), job, body, resume, done);
    }

    /// As [`Pool::run_job`], with the tree's base in the caller's hands.
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
                    (Some(halt), _) if !cx.is_whole(halt) => Err(Stop::halt(halt)),
                    (_, Ok(outcome)) => outcome,
                    (_, Err(panic)) => Err(Stop::failed(panic_text(&*panic), true)),
                };
                done(outcome.map_err(|stop| locate(stop, tree.name, TaskPath::root)));
            }),
        };
        self.shared.begin_root(root);
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

    /// What is needed to run a task of another node here.
    ///
    /// # Errors
    /// If no task of this name is registered.
    pub(crate) fn admit(
        &self,
        name: &str,
        path: TaskPath,
        start: Start,
    ) -> Result<(Arc<Base>, TaskEntry), Failure> {
        let Some(entry) = self.shared.registry.find_task(name) else {
            let mut failure = worker::job_failure(format!(
                "task {name} is not registered in this node's program: add registry.task::<..>() to Job::register"
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
        self.shared.inject(Injected::Incoming(Incoming { base, run, body, owner, lease }));
    }

    pub(crate) fn complete(&self, lease: LeaseId, delivery: Delivery) -> Option<Identity> {
        self.shared.complete(lease, delivery)
    }

    pub(crate) fn reclaim(&self, lease: LeaseId) -> bool {
        self.shared.reclaim(lease)
    }

    pub(crate) fn reclaim_from(&self, lost: impl Fn(&Peer) -> bool) -> Vec<(Peer, Identity)> {
        self.shared.reclaim_from(lost)
    }

    pub(crate) fn leased_to(&self, thief: &Peer) -> Vec<(LeaseId, TaskPath)> {
        self.shared.leased_to(thief)
    }

    /// Results are known for tasks whose paths are at most `depth` long, 0 for none: joins ask [`Host::recall`].
    pub(crate) fn recover(&self, depth: usize) {
        self.shared.recover(depth);
    }

    pub(crate) fn lease_book(&self) -> LeaseBook {
        self.shared.lease_book()
    }

    pub(crate) fn leased_task(&self, lease: LeaseId) -> Option<Identity> {
        self.shared.leased_task(lease)
    }

    pub(crate) fn leased_above(&self, path: &TaskPath, longer: Option<usize>) -> Option<Peer> {
        self.shared.leased_above(path, longer)
    }

    pub(crate) fn leased_below(&self, path: &TaskPath) -> Vec<Place> {
        self.shared.leased_below(path)
    }

    pub(crate) fn is_leased(&self, lease: LeaseId) -> bool {
        self.shared.is_leased(lease)
    }

    pub(crate) fn advances(&self, base: &Base) -> bool {
        self.shared.advances(base)
    }

    pub(crate) fn take_back(&self, owner: &Peer, path: &TaskPath) -> Option<Incoming> {
        self.shared.take_back(owner, path)
    }

    pub(crate) fn take_all_incoming(&self, fits: impl Fn(&Incoming) -> bool) -> Vec<Incoming> {
        self.shared.take_all_incoming(fits)
    }

    /// What runs now in trees of other nodes, and still will in a while, is worth keeping. To be called every half of
    /// [`PoolConfig::work_floor`] while there are such trees; after a false, not before [`Host::took_tick`].
    pub(crate) fn tick(&self) -> bool {
        self.shared.tick()
    }

    pub(crate) fn halt_tree(&self, base: &Arc<Base>, reason: Halt) {
        self.shared.halt_tree(base, reason);
    }

    /// Makes a root stop when it has left its next checkpoint.
    pub(crate) fn stop_root(&self, base: &Arc<Base>) {
        self.shared.may_halt(base);
        base.root.stop();
    }

    /// Once all halted trees have ended no join need look for them any more.
    pub(crate) fn forget_halted(&self) {
        self.shared.forget_halted();
    }

    pub(crate) fn awaited(&self) -> Vec<(LeaseId, TaskPath, Peer)> {
        self.shared.awaited()
    }

    /// How many more tasks of other nodes could start at once: threads that look for work, less what waits for them.
    pub(crate) fn appetite(&self) -> usize {
        self.shared.hungry().saturating_sub(self.shared.injected())
    }

    /// Compute threads.
    pub fn threads(&self) -> u32 {
        self.shared.threads.len() as u32
    }

    /// Asks for one call of `Host::surplus` when there is work for other nodes. True if there is some now; then none comes.
    pub(crate) fn want_surplus(&self) -> bool {
        self.shared.want_for_remote()
    }

    /// How many tasks other nodes might have now; it may be wrong by some.
    pub(crate) fn surplus(&self) -> usize {
        self.shared.looks_long()
    }

    /// Labels the threads that have nothing to do: what the node waits for meanwhile.
    pub(crate) fn label_waiting(&self, state: ThreadState) {
        const WAITING: &[ThreadState] =
            &[ThreadState::Idle, ThreadState::WaitLocal, ThreadState::WaitWide];
        let now = tokio::time::Instant::now();
        for thread in &self.shared.threads {
            thread.account.relabel(WAITING, state, now);
        }
    }

    /// The threads' time so far, summed.
    pub fn times(&self) -> Times {
        let now = tokio::time::Instant::now();
        self.shared.threads.iter().map(|t| t.account.snapshot(now)).fold(
            Times::default(),
            |mut sum, times| {
                sum += times;
                sum
            },
        )
    }

    /// Each thread's state.
    pub(crate) fn states(&self) -> impl Iterator<Item = ThreadState> {
        self.shared.threads.iter().map(|thread| thread.account.state())
    }

    /// What was computed so far, as the job declares it.
    pub(crate) fn work(&self) -> WorkCounts {
        let now = tokio::time::Instant::now();
        let (mut work, mut units, mut squares) = (WorkCounts::default(), 0.0, 0.0);
        for thread in &self.shared.threads {
            let root = thread.root_clock.spent(now).as_micros();
            work.root_us += u64::try_from(root).unwrap_or(u64::MAX);
            if let Some(counter) = &thread.counts.units {
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
        self.shared.threads.iter().filter_map(|thread| thread.counts.units.as_ref())
    }

    /// As [`Shared::begin_round`].
    pub(crate) fn begin_round(&self, share: Arc<Share>) {
        self.shared.begin_round(share);
    }

    /// As [`Shared::end_round`].
    pub(crate) fn end_round(&self) {
        self.shared.end_round();
    }

    /// Pieces of work that no thread has begun.
    pub(crate) fn queued(&self) -> usize {
        self.shared.injected()
    }

    /// The program.
    pub(crate) fn registry(&self) -> &Arc<Registry> {
        &self.shared.registry
    }

    /// Where its threads block.
    pub(crate) fn seam(&self) -> &Arc<dyn Seam> {
        &self.shared.seam
    }

    /// Processor time of the whole process since the pool began; none in virtual time.
    pub fn cpu(&self) -> Option<Duration> {
        let is_real = self.shared.seam.is_real();
        is_real.then(|| process_cpu().saturating_sub(self.cpu_before))
    }

    /// What was counted so far.
    pub fn counts(&self) -> PoolCounts {
        let mut sum = PoolCounts::default();
        for thread in &self.shared.threads {
            let counts = &thread.counts;
            sum.spawned += counts.spawned.load(Ordering::Relaxed);
            let made = counts.spawned.load(Ordering::Relaxed);
            let elsewhere = counts.not_run.load(Ordering::Relaxed);
            sum.executed +=
                counts.tops.load(Ordering::Relaxed).saturating_add(made).saturating_sub(elsewhere);
            sum.taken_here += counts.taken_here.load(Ordering::Relaxed);
            sum.kept += counts.kept.load(Ordering::Relaxed);
            sum.nesting_max = sum.nesting_max.max(counts.nesting_max.load(Ordering::Relaxed));
        }
        sum
    }

    /// Tells all work to stop at its next call into the runtime.
    pub fn halt(&self, reason: Halt) {
        self.shared.halt(reason);
    }

    /// Halts all work and lets the threads end; does not wait for them.
    pub fn close(&self) {
        self.shared.halt(Halt::Cancelled);
        self.shared.close();
    }

    /// Waits until the threads have ended, after [`Pool::close`].
    pub fn join(&self) {
        self.shared.seam.join();
    }
}

/// The seam of real threads.
#[derive(Default)]
pub struct RealSeam {
    threads: Mutex<Vec<std::thread::JoinHandle<()>>>,
}

impl RealSeam {
    /// A seam without threads yet.
    pub fn new() -> Arc<Self> {
        Arc::new(Self::default())
    }

    fn threads(&self) -> std::sync::MutexGuard<'_, Vec<std::thread::JoinHandle<()>>> {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Seam for RealSeam {
    fn start(
        &self,
        _thread: usize,
        name: String,
        stack_bytes: usize,
        body: Box<dyn FnOnce() + Send>,
    ) -> std::io::Result<()> {
        let body = move || {
            give_way();
            body();
        };
        let thread = std::thread::Builder::new().name(name).stack_size(stack_bytes).spawn(body)?;
        self.threads().push(thread);
        Ok(())
    }

    fn park(&self, _thread: usize, timeout: Option<Duration>) {
        match timeout {
            Some(timeout) => std::thread::park_timeout(timeout),
            None => std::thread::park(),
        }
    }

    fn unpark(&self, thread: usize) {
        if let Some(thread) = self.threads().get(thread) {
            thread.thread().unpark();
        }
    }

    fn pass(&self, _thread: usize, time: Duration) {
        std::thread::sleep(time);
    }

    fn is_real(&self) -> bool {
        true
    }

    fn join(&self) {
        let threads = std::mem::take(&mut *self.threads());
        for thread in threads {
            // A compute thread catches what users' code throws, so an error is the runtime's own panic, which its message
            // on stderr has told.
            drop(thread.join());
        }
    }
}
