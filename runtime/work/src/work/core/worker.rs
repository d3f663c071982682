//! The layer of a grid's tasks above the scheduler: what a compute thread of a node does with
//! tasks.

use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use springtide_forkjoin::layer::{
    Activity, Awaited, ComputeThread, Fork, HeldSlot, LeaseKey, Place, ThreadClock, ThreadCore,
    run_thread, run_top,
};
use tokio::time::Instant;

use super::remote_task::{Delivery, Encoded, Lease, TaskAbout};
use super::shared::{
    Incoming, PoolState, ROUND, RootWork, TaskFrame, TaskThread, ThreadData, TopWork,
};
use super::tree::{Base, keep_output, path_at, path_of, root_of};
use crate::guard::located_panic_text;
use crate::id::TaskPath;
use crate::meter::{ThreadState, UnitCounter};
use crate::share::forget_kept;
use crate::wire;
use crate::work::checkpoint::RootMarks;
use crate::work::context::{Context, Run};
use crate::work::outcome::{Failure, Halt, Stop, StopCause};
use crate::work::task::Task;

// SAFETY: the core is a field, and `Context` keeps its scope.
#[allow(unsafe_code)]
unsafe impl ComputeThread for TaskThread {
    type Shared = ThreadData;
    type Tree = Base;
    type Context<'w> = Context<'w>;
    type Stop = Stop;
    type About = TaskAbout;
    type Encoded = Result<Encoded, Failure>;
    type Delivery = Delivery;
    type Lease = Lease;
    type Work = TopWork;

    #[inline(always)]
    fn core(&self) -> &ThreadCore<Self> {
        &self.core
    }

    #[inline(always)]
    fn is_interrupted(&self) -> bool {
        self.data().watch.is_due()
    }

    #[cold]
    #[inline(never)]
    fn handle_signals(&self, parent: &TaskFrame) -> Result<bool, Stop> {
        if let Some(halt) = self.shared.handle_signals(self.index(), || parent.tree()) {
            return Err(self.stop(halt, parent));
        }
        self.take_tick(Some(parent));
        if self.shared.signals() & ROUND != 0 {
            self.join_round(true);
        }
        // The root's joins take the slow path, which stops its clock.
        Ok(self.shared.may_recover(parent) || self.is_at_root())
    }

    fn handle_signals_of_spawn(&self, parent: &TaskFrame) {
        self.shared.handle_signals(self.index(), || parent.tree());
    }

    #[inline]
    fn looks_up(&self, parent: &TaskFrame) -> bool {
        self.shared.may_recover(parent)
    }

    fn lookup(&self, slot: HeldSlot<Self>) -> Option<HeldSlot<Self>> {
        if slot.about().is_local {
            return Some(slot);
        }
        self.shared.lookup_cached(self.index(), slot)
    }

    fn run_looked_up<R>(&self, run: impl FnOnce() -> R) -> R {
        let _not_root = self.leave_root();
        run()
    }

    fn is_halted(&self, frame: &TaskFrame) -> bool {
        self.shared.signals() != 0 && self.shared.halted(|| frame.tree()).is_some()
    }

    fn halt_stop(&self, frame: &TaskFrame) -> Stop {
        let halt = self.shared.halted(|| frame.tree());
        self.stop(halt.unwrap_or(Halt::Cancelled), frame)
    }

    fn received_stop(&self) {
        self.count_halt();
    }

    fn abandoned(&self, parent: &TaskFrame, key: LeaseKey, lease: Lease) {
        let base = parent.tree();
        let observer = &self.shared.observer;
        if self.shared.halted(|| base) == Some(Halt::Leave) {
            base.add_leased(lease.place());
            observer.disowned(&base.path, &lease.thief, key.into(), lease.task);
        } else {
            observer.abandoned(&lease.thief, key.into());
        }
    }

    fn wait(&self, wait: impl FnOnce()) {
        let _not_root = self.leave_root();
        wait();
    }

    fn poll(&self, waiting: Option<(&TaskFrame, bool)>) {
        self.take_tick(waiting.map(|(frame, _)| frame));
        let stops = waiting.map_or_else(|| self.shared.is_closing(), |(_, halted)| halted);
        if self.shared.signals() & ROUND != 0 && !stops {
            self.join_round(false);
        }
    }

    fn switch(&self, activity: Activity) {
        self.label(match activity {
            Activity::Working => ThreadState::Working,
            Activity::Waiting => ThreadState::WaitLocal,
            Activity::Idle => ThreadState::Idle,
        });
        if activity == Activity::Working {
            self.data().awaits.store(0, Ordering::Release);
        }
    }

    fn run_above(&self, waiting: &TaskFrame, run: impl FnOnce()) {
        // Halts that the helped task receives must not count against the waiting one.
        let halts = self.halts.get();
        run();
        self.halts.set(halts);
        // The tree of the waiting task may have been halted meanwhile, and its tick may have been
        // spent on other work.
        self.watch_if_leaving(Some(waiting));
    }

    fn find_below(&self, awaited: &Awaited<'_, Self>) -> Option<TopWork> {
        let path = awaited.lease(|_, lease| lease.task.path.clone())?;
        let below = |task: &Incoming| task.base.path.is_at_or_below(&path);
        self.shared.take_incoming(below).map(TopWork::Incoming)
    }

    fn is_brief(&self, about: &TaskAbout) -> bool {
        about.is_local
    }

    fn is_choosy(&self) -> bool {
        self.shared.recovers()
    }

    fn may_start(&self, place: Place<'_, Self>) -> bool {
        self.shared.observer.may_start(self.index(), &path_at(place))
    }

    fn run_work(&self, work: TopWork) {
        match work {
            TopWork::Incoming(task) => self.run_incoming(task),
            TopWork::Root(root) => self.run_root(root),
        }
    }

    fn rest(&self) {
        self.shared.rest(self.index());
    }

    fn idle(&self, awaited: Option<&Awaited<'_, Self>>) {
        if let Some(awaited) = awaited {
            let leased = awaited.lease(|key, _| key.index + 1).unwrap_or(0);
            self.data().awaits.store(leased, Ordering::Release);
        } else {
            forget_kept();
        }
        self.shared.observer.idle();
    }

    fn woke(&self, delay: Duration) {
        self.shared.observer.thread_woke(delay);
    }

    fn surplus(&self) {
        self.shared.observer.surplus();
    }
}

impl<T: Task> Fork<TaskThread> for Run<T> {
    type Output = T::Output;
    const ABOUT: &'static TaskAbout =
        &TaskAbout { name: T::NAME, batch: T::BATCH, is_local: false };

    #[inline(always)]
    fn run(self, context: &Context<'_>) -> Result<T::Output, Stop> {
        let outcome = context.worker().run_watched(context, self.0);
        outcome.map_err(|stop| locate(stop, T::NAME, || path_of(context.frame())))
    }

    /// Also discards the outcome of a halted tree.
    fn run_taken(self, context: &Context<'_>) -> Result<T::Output, Stop> {
        let worker = context.worker();
        let halted = || worker.shared.halted(|| context.frame().tree());
        if let Some(halt) = halted() {
            return Err(worker.stop(halt, context.frame()));
        }
        let halts = worker.halts_received();
        let outcome = catch_unwind(AssertUnwindSafe(|| worker.run_watched(context, self.0)));
        if outcome.is_err() {
            worker.clear_watch_list();
        }
        if let Some(halt) = halted()
            && !worker.completed_unhalted(halt, halts)
        {
            return Err(worker.stop(halt, context.frame()));
        }
        match outcome {
            Ok(outcome) => outcome,
            Err(panic) => Err(Stop::failed(located_panic_text(&*panic), true)),
        }
        .map_err(|stop| locate(stop, T::NAME, || path_of(context.frame())))
    }

    fn encode(&self, place: Place<'_, TaskThread>) -> Result<Encoded, Failure> {
        let failure = |message: String, panicked| Failure {
            name: T::NAME.to_owned(),
            path: path_at(place),
            message,
            panicked,
            located: true,
            exit: None,
        };
        let start = place.tree().start;
        match catch_unwind(AssertUnwindSafe(|| (wire::encode_payload(&self.0), self.0.needs()))) {
            Ok((Ok(body), needs)) => Ok(Encoded { body, needs, start }),
            Ok((Err(error), _)) => {
                Err(failure(format!("the task does not serialise: {error}"), false))
            }
            Err(panic) => Err(failure(located_panic_text(&*panic), true)),
        }
    }

    /// Reports to the observer how long the outcome waited here.
    fn decode(delivery: Delivery, worker: &TaskThread) -> Result<T::Output, Stop> {
        let body = delivery.end.map_err(Stop::failure)?;
        worker.shared.observer.join_delayed(delivery.arrived.elapsed());
        wire::decode_payload(&body).map_err(|error| {
            Stop::fail(format!("the result of a stolen {} does not decode: {error}", T::NAME))
        })
    }

    /// If the node leaves, the output is kept. Outputs of other nodes are in the engine's results.
    fn left_over(
        worker: &TaskThread,
        place: Place<'_, TaskThread>,
        output: &T::Output,
        stop: Option<&Stop>,
    ) {
        let base = place.tree();
        let leaves = match stop {
            Some(stop) => matches!(*stop.0, StopCause::Halt(Halt::Leave)),
            None => worker.shared.halted(|| base) == Some(Halt::Leave),
        };
        if leaves {
            keep_output(base, path_at(place), Self::ABOUT, output);
        }
    }

    fn panicked(place: Place<'_, TaskThread>) {
        note_panic(|| path_at(place), T::NAME);
    }
}

impl TaskThread {
    #[inline(always)]
    pub(crate) fn shared(&self) -> &Arc<PoolState> {
        &self.shared
    }

    #[inline(always)]
    pub(crate) fn index(&self) -> u32 {
        self.core.index()
    }

    #[inline(always)]
    pub(super) fn data(&self) -> &ThreadData {
        &self.core.me().layer
    }

    /// The counter of work units of this thread's tasks, if they are counted.
    #[inline(always)]
    pub(crate) fn units(&self) -> Option<&UnitCounter> {
        self.data().units.as_ref()
    }

    /// Records the thread's busy time when a task with a cost ends, if the meter asked for it.
    #[cold]
    pub(crate) fn note_units(&self, units: &UnitCounter) {
        let now = Instant::now();
        let working = Duration::from_nanos(self.data().account.snapshot(now).working_ns);
        units.record(working.saturating_sub(self.data().root_clock.spent(now)));
    }

    /// Creates a stop for the code of the task in this frame, which is on this stack.
    #[cold]
    pub(crate) fn stop(&self, halt: Halt, frame: &TaskFrame) -> Stop {
        self.count_halt();
        if halt == Halt::Leave {
            frame.tree().record_halt(path_of(frame));
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

    pub(super) fn count_kept(&self) {
        self.data().kept.add(1);
    }

    /// The common state of the root's checkpoints, if the calling task, in this frame, is the job's
    /// root.
    pub(crate) fn root_marks<'a>(&self, frame: &'a TaskFrame) -> Option<&'a RootMarks> {
        root_of(frame).map(|base| &base.root)
    }

    /// Stops the tree of the task in this frame.
    pub(crate) fn halt_tree(&self, frame: &TaskFrame, reason: Halt) {
        self.shared.halt_from_within(frame.tree(), reason);
    }

    /// Returns a stop if the task in this frame must stop.
    pub(crate) fn check(&self, frame: &TaskFrame) -> Result<(), Stop> {
        if self.shared.signals() == 0 {
            return Ok(());
        }
        match self.shared.halted(|| frame.tree()) {
            Some(halt) => Err(self.stop(halt, frame)),
            None => Ok(()),
        }
    }

    fn run_incoming(&self, task: Incoming) {
        let observer = &self.shared.observer;
        let base = &*task.base;
        if let Some(halt) = self.shared.halted(|| base) {
            observer.finished(task.owner, task.lease, Err(Stop::halt(halt)));
            return;
        }
        let started = Instant::now();
        base.begin(self.index());
        self.data().tops.add(1);
        let halts = self.halts_received();
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            run_top(self, base, |context| {
                let outcome = (task.run)(&task.body, context);
                self.forget(context.frame());
                outcome
            })
        }));
        if outcome.is_err() {
            self.clear_watch_list();
        }
        let outcome = match (self.shared.halted(|| base), outcome) {
            (Some(halt), _) if !self.completed_unhalted(halt, halts) => Err(Stop::halt(halt)),
            (_, Ok(outcome)) => outcome,
            (_, Err(panic)) => Err(Stop::failed(located_panic_text(&*panic), true)),
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
        self.data().tops.add(1);
        run_top(self, &root.base, |context| {
            let _at_root = self.enter_root();
            (root.run)(context);
        });
    }

    pub(super) fn label(&self, state: ThreadState) {
        self.data().account.switch(state, Instant::now());
    }

    /// Spends modelled time: the thread counts as working while time passes.
    pub(crate) fn model(&self, time: Duration) {
        self.shared.seam().pass(self.index() as usize, time);
    }
}

/// Fills in the task that failed, unless an inner task did so already.
pub(crate) fn locate(mut stop: Stop, name: &str, path: impl FnOnce() -> TaskPath) -> Stop {
    if let StopCause::Failed(failure) = &mut *stop.0
        && !failure.located
    {
        failure.located = true;
        if let Some((path, name)) = failing_task_of_panic(failure.panicked) {
            failure.path = path;
            failure.name = name.to_owned();
        } else {
            failure.path = path();
            failure.name = name.to_owned();
        }
    }
    stop
}

thread_local! {
    /// The innermost task that panicked, noted while the stack unwinds through its parent's frame.
    static PANICKED: RefCell<Option<(TaskPath, &'static str)>> = const { RefCell::new(None) };
}

/// Notes the task that panics; the first note is of the innermost task and stays.
fn note_panic(path: impl FnOnce() -> TaskPath, name: &'static str) {
    PANICKED.with_borrow_mut(|noted| {
        if noted.is_none() {
            *noted = Some((path(), name));
        }
    });
}

fn failing_task_of_panic(panicked: bool) -> Option<(TaskPath, &'static str)> {
    let noted = PANICKED.with_borrow_mut(Option::take);
    if panicked { noted } else { None }
}

/// A failure of the whole job, without a failing task.
pub(crate) fn job_failure(message: String) -> Failure {
    Failure {
        name: String::new(),
        path: TaskPath::root(),
        message,
        panicked: false,
        located: true,
        exit: None,
    }
}

/// The body of compute thread `index`: executes work until the pool closes.
pub(crate) fn run(shared: Arc<PoolState>, index: u32, seed: u64, stack_bytes: usize) {
    let observer = shared.observer.clone();
    let pool = shared.core().clone();
    if shared.seam().is_real()
        && let Some(clock) = ThreadClock::of_this_thread()
    {
        // Each index has one thread, so the cell is empty.
        let _ = shared.threads()[index as usize].layer.cpu.set(clock);
    }
    run_thread(pool, index, seed, stack_bytes, |core| TaskThread {
        core,
        shared,
        halts: Cell::new(0),
        watched: RefCell::default(),
        rounds: Cell::new(0),
    });
    observer.ended();
}
