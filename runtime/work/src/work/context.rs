//! The interface between a running task and the runtime.

use std::marker::PhantomData;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde::Serialize;
use springtide_forkjoin::layer::{Scope, TaskContext};
use tokio::time::Instant;

use super::checkpoint::{Checkpoint, RootMarks};
use super::core::shared::{TaskFrame, TaskThread};
use super::observer::PoolObserver;
use super::outcome::{Halt, Outcome, Stop};
use super::pool_config::ArrayTask;
use super::registry::Registry;
use super::report::{ProgressReport, SavedRoot};
use super::task::{Batch, Task};
use super::waker::Waker;
use crate::files::check_name;
use crate::id::NodeId;
use crate::meter::{ThreadState, UnitCounter};
use crate::share::{Merged, ObjectRef, Version, Versioned};
use crate::spmd::post::Dispatcher;
use crate::wire;

/// The name of the artefact with a job's state, from which a later run resumes. The command writes
/// it to the file of its option `--checkpoint`, for jobs that have that option.
pub const STATE_ARTIFACT: &str = "checkpoint";

/// The interface of a running task to the runtime: children, shared objects, reports.
///
/// It is neither `Send` nor `Sync`, and user code never owns it, since it represents this task on
/// this thread.
pub struct Context<'w>(Scope<'w, TaskThread>);

impl<'w> TaskContext<'w, TaskThread> for Context<'w> {
    #[inline(always)]
    fn new(scope: Scope<'w, TaskThread>) -> Self {
        Self(scope)
    }

    #[inline(always)]
    fn scope_mut(&mut self) -> &mut Scope<'w, TaskThread> {
        &mut self.0
    }
}

impl<'w> Context<'w> {
    #[inline(always)]
    pub(crate) fn frame(&self) -> &TaskFrame {
        self.0.frame()
    }

    /// The scheduler's part of the context.
    #[inline(always)]
    pub(super) fn scope(&self) -> &Scope<'w, TaskThread> {
        &self.0
    }

    #[inline(always)]
    pub(super) fn worker(&self) -> &'w TaskThread {
        self.0.worker()
    }

    /// Runs the context's task, and waits for its remaining children before it ends.
    #[inline(always)]
    pub(crate) fn run_task<T: Task>(&self, task: T) -> Result<T::Output, Stop> {
        // For tasks that declare no cost the compiler removes this.
        let units = self.worker().units();
        let cost = units.and_then(|_| task.cost());
        let output = task.run(self)?;
        if let (Some(units), Some(cost)) = (units, cost) {
            self.add_units(units, cost);
        }
        if self.0.has_children() {
            self.0.finish()?;
        }
        Ok(output)
    }

    #[inline(always)]
    fn add_units(&self, units: &UnitCounter, cost: f64) {
        if units.add(cost) {
            self.worker().note_units(units);
        }
    }

    /// Rests now if the thread is [throttled](super::Throttle), so that the rest counts as part of
    /// the work.
    pub(crate) fn rest(&self) {
        let worker = self.worker();
        worker.shared().rest(worker.index());
    }

    /// Counts work that ended here outside of a task, like a task's [`cost`](Task::cost).
    pub(crate) fn count_units(&self, cost: f64) {
        if let Some(units) = self.worker().units() {
            self.add_units(units, cost);
        }
    }

    /// The registry of the program's tasks and jobs.
    pub(crate) fn registry(&self) -> &'w Registry {
        &self.worker().shared().registry
    }

    /// Checks in debug builds that a task's type is registered, if the registry is strict. Release
    /// builds do not, since a join costs only a few nanoseconds.
    #[inline(always)]
    fn check_created<T: Task>(&self) -> Result<(), Stop> {
        // Batches are made only of tasks that were checked.
        if cfg!(debug_assertions) && !T::BATCH {
            return self.registry().check_created::<T>();
        }
        Ok(())
    }

    /// Starts the root, from a checkpoint if there is one, and returns the checkpoint's state.
    pub(crate) fn begin_root(&self, saved: Option<SavedRoot>) -> Option<Checkpoint> {
        let seq = saved.as_ref().map_or(0, |saved| saved.seq);
        if let Some(marks) = self.worker().root_marks(self.frame()) {
            marks.begin(seq, self.worker().halts_received());
        }
        let SavedRoot { next_child, state, .. } = saved?;
        self.number_from(next_child);
        Some(Checkpoint::new(state))
    }

    /// Whether the root of a halted tree ended without receiving the halt.
    pub(crate) fn completed_unhalted(&self, halt: Halt) -> bool {
        let halts = self.worker().halts_received();
        let marks = self.worker().root_marks(self.frame());
        halt == Halt::Leave && marks.is_some_and(|marks| !marks.halted_since(halts))
    }

    /// Sets the index of the next child.
    pub(crate) fn number_from(&self, next_child: u32) {
        self.0.number_from(next_child);
    }

    /// Waits for the root's remaining children.
    pub(crate) fn finish_root(&self) -> Result<(), Stop> {
        self.0.finish()
    }

    /// Runs two tasks, the second possibly on another thread or node, and returns both outputs.
    ///
    /// # Errors
    /// The first [`Stop`] of the two, or a halt. Both have ended when this returns.
    #[inline(always)]
    pub fn join<A: Task, B: Task>(&self, a: A, b: B) -> Result<(A::Output, B::Output), Stop> {
        self.check_created::<A>()?;
        self.check_created::<B>()?;
        self.0.join(Run(a), Run(b))
    }

    /// The index of the next child.
    pub(super) fn next_child(&self) -> u32 {
        self.0.next_child()
    }

    /// Runs all tasks, in halves that may be stolen whole, and returns their outputs in order.
    ///
    /// # Errors
    /// As [`Context::join`].
    pub fn join_all<T: Task>(
        &self,
        tasks: impl IntoIterator<Item = T>,
    ) -> Result<Vec<T::Output>, Stop> {
        self.check_created::<T>()?;
        Batch(tasks.into_iter().collect()).run(self)
    }

    /// Runs one child task on this thread at once: for the last of several children.
    ///
    /// # Errors
    /// As the task's.
    pub fn call<T: Task>(&self, task: T) -> Result<T::Output, Stop> {
        self.check()?;
        self.check_created::<T>()?;
        self.worker().take_tick(Some(self.frame()));
        let _not_root = self.worker().leave_root();
        self.0.call(Run(task))
    }

    /// Queues a child task; [`Spawned::take`] returns its output.
    ///
    /// When this task's `run` returns, the runtime waits for children that were not taken. A spawn
    /// costs a heap allocation; prefer `join` for a fixed number of children.
    pub fn spawn<T: Task>(&self, task: T) -> Spawned<'_, T> {
        let at = self.0.spawn(Run(task));
        Spawned { at, scope: &self.0, task: PhantomData }
    }

    /// Waits for all children spawned so far.
    ///
    /// # Errors
    /// A halt. A child's own failure is returned by [`Spawned::take`], or when this task's `run`
    /// returns.
    pub fn sync(&self) -> Result<(), Stop> {
        self.0.sync();
        self.check()
    }

    /// A point at which a long task without children can be halted.
    ///
    /// # Errors
    /// A halt; return it with `?`.
    pub fn check(&self) -> Result<(), Stop> {
        self.worker().check(self.frame())
    }

    /// Spends modelled compute time: the thread sleeps (in virtual time under simulation) and
    /// counts as working.
    ///
    /// The time passes as in code that computes without calls into the runtime: a halt ends it no
    /// earlier, and a task that then ends has a valid output.
    ///
    /// # Errors
    /// A halt before that time.
    pub fn spend_modelled_time(&self, time: Duration) -> Result<(), Stop> {
        self.check()?;
        self.worker().model(time);
        Ok(())
    }

    /// Saves a state from which another root continues if this one is lost with its node or moves.
    ///
    /// The other root is started by [`Job::resume`](super::Job::resume) with the last state that
    /// arrived. Call this only in the root, where the state alone determines the rest: between two
    /// iterations, as often as is convenient.
    ///
    /// The state is encoded at once, while no task of the job runs, and is sent to other clusters.
    /// Calls that exceed [`PoolConfig::checkpoint_rate`](super::PoolConfig::checkpoint_rate), given
    /// the size of the last state, are skipped, except a [wanted](Self::checkpoint_wanted) one.
    ///
    /// A halted root first saves its state and stops then. The state is not saved if one of the
    /// root's calls received the halt, since the root may have continued with a wrong value.
    ///
    /// # Errors
    /// If a task calls this; if spawned children are not collected, since no later root could
    /// collect them; if the state cannot be encoded; or a halt.
    pub fn checkpoint<S: Serialize + ?Sized>(&self, state: &S) -> Result<(), Stop> {
        let Some(marks) = self.worker().root_marks(self.frame()) else {
            return Err(Stop::fail(
                "a task called for a checkpoint: only the job's root can be resumed, \
                 so call Context::checkpoint in Job::run and Job::resume alone",
            ));
        };
        let open = self.0.open_children();
        if open > 0 {
            return Err(Stop::fail(format_args!(
                "a checkpoint was called for while {open} of the root's spawned children \
                 are not collected: collect each by Spawned::take before Context::checkpoint"
            )));
        }
        self.save_state(marks, state)
    }

    /// As [`Context::checkpoint`], while spawned processes run. They belong to this root alone; a
    /// root that resumes from here does not collect them.
    pub(crate) fn checkpoint_beside_processes<S: Serialize>(&self, state: &S) -> Result<(), Stop> {
        match self.worker().root_marks(self.frame()) {
            Some(marks) => self.save_state(marks, state),
            None => self.check(),
        }
    }

    /// Whether a checkpoint at this time is saved; false in a task.
    pub(crate) fn checkpoint_due(&self) -> bool {
        let now_us = self.worker().shared().now_us();
        self.worker().root_marks(self.frame()).is_some_and(|marks| marks.due(now_us))
    }

    fn save_state<S: Serialize + ?Sized>(&self, marks: &RootMarks, state: &S) -> Result<(), Stop> {
        if marks.halted_since(self.worker().halts_received()) {
            self.check()?;
        }
        let shared = self.worker().shared();
        let now_us = shared.now_us();
        if !marks.due(now_us) {
            return self.check();
        }
        let state = wire::encode_payload(state).map_err(|error| {
            Stop::fail(format_args!("the state given to Context::checkpoint: {error}"))
        })?;
        marks.record(now_us, state.len(), shared.checkpoint_rate);
        let (next_child, seq) = (self.0.next_child(), marks.next());
        self.report(ProgressReport::Checkpoint(SavedRoot { next_child, seq, state }));
        if marks.stops() {
            self.worker().halt_tree(self.frame(), Halt::Leave);
        }
        self.check()
    }

    /// Whether the root moves at its next checkpoint. A root with rare checkpoints then makes one
    /// at once, to avoid a long wait. False in a task.
    pub fn checkpoint_wanted(&self) -> bool {
        self.worker().root_marks(self.frame()).is_some_and(RootMarks::stops)
    }

    // --- shared objects ---

    /// Publishes the next version of a part of a shared object to all nodes of the job, as a whole
    /// value.
    ///
    /// # Errors
    /// If the type is not registered or cannot be encoded; or a halt, since a halted task publishes
    /// nothing.
    pub fn put<V: Versioned>(&self, part: u32, value: V) -> Result<Version, Stop> {
        self.check()?;
        Ok(self.observer().objects().put(part, value)?)
    }

    /// Publishes the next version of a part of a shared object as a change of the current one.
    ///
    /// # Errors
    /// If the type is not registered, there is no current version, or the change cannot be encoded;
    /// or a halt.
    pub fn update<V: Versioned>(&self, part: u32, delta: V::Delta) -> Result<Version, Stop> {
        self.check()?;
        Ok(self.observer().objects().update::<V>(part, delta)?)
    }

    /// Returns a part of a shared object in this version; present if the task declared it in
    /// `needs`.
    ///
    /// The first read of a version by a thread takes some microseconds, a later one some 15 ns,
    /// on any number of threads.
    ///
    /// # Errors
    /// If it is not on this node: the message says to declare it.
    pub fn get<V: Versioned>(&self, part: u32, version: Version) -> Result<ObjectRef<V>, Stop> {
        Ok(self.observer().objects().try_get::<V>(part, version)?)
    }

    /// Whether no other node is a member of the job at this moment. A change of an object is then
    /// not worth its encoding.
    pub fn is_alone(&self) -> bool {
        self.observer().objects().is_alone()
    }

    /// Merges a value into a merged object; other nodes receive it soon.
    ///
    /// # Errors
    /// If the type is not registered or cannot be encoded.
    pub fn merge<M: Merged>(&self, value: M) -> Result<(), Stop> {
        self.observer().objects().merge(value)?;
        Ok(())
    }

    /// The merge of all values of a merged object that have reached this node, if any.
    pub fn merged<M: Merged>(&self) -> Option<ObjectRef<M>> {
        self.observer().objects().merged::<M>()
    }

    // --- input files ---

    /// The path of the input file of this name on this node; the file is not opened.
    ///
    /// It is in the cluster's directory for files (`cluster.files` in the grid's configuration), or
    /// in the directory that the run was given. A submitted job names the files it needs, and
    /// starts where they are or after they have been moved there.
    ///
    /// # Errors
    /// The name is not a plain name, the node has no such directory, or the file is not there. The
    /// message says which.
    pub fn input_file(&self, name: &str) -> Result<PathBuf, Stop> {
        check_name(name)?;
        let Some(dir) = &self.worker().shared().files else {
            return Err(Stop::fail(format_args!(
                "the input file {name} cannot be looked for: this node has no directory for \
                 files; set `files` of its [[cluster]], or run the job with --files DIR"
            )));
        };
        let path = dir.join(name);
        if path.is_file() {
            return Ok(path);
        }
        let dir = dir.display();
        Err(Stop::fail(format_args!(
            "the input file {name} is not in {dir}: put it there, or submit the job with \
             --file {name}, which moves it there"
        )))
    }

    /// The directory for input files of this node's cluster, where a job may also place files for
    /// others. Write them under another name first, one that starts with a dot, and then rename
    /// them.
    ///
    /// # Errors
    /// The node has no such directory: the message says what to do.
    pub fn input_dir(&self) -> Result<PathBuf, Stop> {
        self.worker().shared().files.clone().ok_or_else(|| {
            Stop::fail("this node has no directory for files; set `files` of its [[cluster]]")
        })
    }

    // --- messages from and to the job's client ---

    /// Takes the messages that the job's client has sent to this root, in order.
    pub(crate) fn take_client_messages(&self) -> Vec<Bytes> {
        let waker = self.waker();
        self.observer().take_client_messages(Arc::new(move || waker.wake()))
    }

    /// Whether the job's client has sent messages that this root has not taken.
    pub(crate) fn has_client_messages(&self) -> bool {
        self.observer().has_client_messages()
    }

    /// Sends a message to the job's client. Messages arrive in order.
    pub(crate) fn send_to_client(&self, body: Bytes) {
        self.report(ProgressReport::ClientMessage { body });
    }

    // --- reports for the job's client ---

    /// Reports the end of one iteration of the job; the runtime times them.
    pub fn iteration_done(&self) {
        self.report(ProgressReport::Iteration);
    }

    /// Reports the job's progress: `done` of `total` units named `what`.
    pub fn progress(&self, done: u64, total: u64, what: &str) {
        self.report(ProgressReport::Progress { done, total, what: what.to_owned() });
    }

    /// Reports that all processors of the job take each of its steps together.
    pub(crate) fn report_synchronous(&self) {
        self.report(ProgressReport::Synchronous);
    }

    /// Reports a line of text for the user.
    pub fn report_text(&self, text: impl Into<String>) {
        self.report(ProgressReport::Say { text: text.into() });
    }

    /// Writes a file to the run directory. `name` is a plain file name.
    pub fn artifact(&self, name: &str, bytes: Vec<u8>) {
        self.report(ProgressReport::Artifact { name: name.to_owned(), bytes: bytes.into() });
    }

    /// Passes a piece of the output of a command's process on to the client.
    pub(crate) fn report_output(&self, piece: ProgressReport) {
        self.report(piece);
    }

    /// The job's place in its array, if it has one.
    pub fn array_task(&self) -> Option<ArrayTask> {
        self.worker().shared().array
    }

    /// The number of processors without which a job of fixed size does not start.
    pub(crate) fn processors_min(&self) -> u32 {
        self.worker().shared().processors_min
    }

    /// The number of compute threads of this node.
    pub(crate) fn threads(&self) -> u32 {
        u32::try_from(self.worker().shared().threads().len()).unwrap_or(u32::MAX)
    }

    /// Publishes the outcome that the job would have if it ended now. The client keeps the last one
    /// for a job that is ended early, or lost.
    pub fn report_preliminary(&self, outcome: Outcome) {
        self.report(ProgressReport::Preliminary { outcome });
    }

    /// Requests more nodes, for a part of the job that needs them; the last request counts.
    ///
    /// Without `within`, a malleable job (`job submit`) gets them when they are free. Adaptation
    /// makes such requests by itself.
    ///
    /// With `within` the job cannot continue without them. The scheduler shrinks other jobs for it,
    /// down to their needs. If it cannot, the job's owner learns the reason within this time, and
    /// the root by [`Context::refused`].
    ///
    /// Alone, without a grid, it has no effect.
    pub fn need_nodes(&self, more: u32, within: Option<Duration>) {
        self.observer().clear_refusal();
        self.report(ProgressReport::NeedNodes { more, within });
    }

    /// The reason why the root's last [request](Context::need_nodes) for nodes is refused, once
    /// known.
    ///
    /// It is known at once if the job can never have them, else within the given time. `None`
    /// otherwise, on nodes without the root, and where the root has moved after the request.
    pub fn refused(&self) -> Option<String> {
        self.observer().refused()
    }

    /// Sends a report to the node, unless another root has replaced this one.
    pub(super) fn report(&self, note: ProgressReport) {
        if !self.worker().root_marks(self.frame()).is_some_and(RootMarks::is_detached) {
            self.observer().note(note);
        }
    }

    /// Releases these nodes, which the program no longer needs: they may leave the job.
    pub(crate) fn release(&self, nodes: Vec<NodeId>) {
        self.report(ProgressReport::Release { nodes });
    }

    /// Announces spawned processes soon to nodes that have threads without one; see
    /// [`Dispatcher::nodes_to_call`].
    pub(crate) fn call_free_nodes(&self) {
        self.observer().call_free_nodes();
    }

    /// The node's part in SPMD programs; `None` if the pool does not support them.
    pub(crate) fn post(&self) -> Option<Arc<Dispatcher>> {
        self.observer().post().cloned()
    }

    /// A waker of this thread.
    pub(crate) fn waker(&self) -> Waker {
        let pool = Arc::downgrade(self.worker().shared());
        Waker::new(pool, self.worker().index())
    }

    /// Waits until something is `ready` or until this time; returns whether it is ready. The party
    /// that makes it ready wakes the thread with [`Context::waker`].
    pub(crate) fn wait_for(
        &self,
        wide: bool,
        until: Option<Instant>,
        ready: &dyn Fn() -> bool,
    ) -> Result<bool, Stop> {
        let state = if wide { ThreadState::WaitWide } else { ThreadState::WaitLocal };
        self.worker().wait_for(self.frame(), state, until, ready)
    }

    /// As [`Context::wait_for`], but the thread counts as idle.
    pub(crate) fn idle_for(
        &self,
        until: Option<Instant>,
        ready: &dyn Fn() -> bool,
    ) -> Result<bool, Stop> {
        self.worker().wait_for(self.frame(), ThreadState::Idle, until, ready)
    }

    /// As [`Context::idle_for`], but the thread runs pieces of the node's parallel loops meanwhile.
    pub(crate) fn help_for(
        &self,
        until: Option<Instant>,
        ready: &dyn Fn() -> bool,
    ) -> Result<bool, Stop> {
        self.worker().help_for(self.frame(), until, ready)
    }

    /// As [`Context::wait_for`], for a master that waits for its workers.
    pub(crate) fn serve_for(
        &self,
        until: Option<Instant>,
        ready: &dyn Fn() -> bool,
    ) -> Result<bool, Stop> {
        self.worker().serve_for(self.frame(), until, ready)
    }

    /// Runs the root's own part of parallel work, which counts as a task's work.
    pub(crate) fn as_work<R>(&self, what: impl FnOnce() -> R) -> R {
        let _not_root = self.worker().leave_root();
        what()
    }

    /// Processor time of this node's compute threads so far; `None` in virtual time, or where the
    /// system does not report it.
    pub(super) fn compute_cpu(&self) -> Option<Duration> {
        self.worker().shared().compute_cpu()
    }

    /// Whether computing takes time on the clock.
    pub(crate) fn is_real(&self) -> bool {
        self.worker().shared().seam().is_real()
    }

    fn observer(&self) -> &'w dyn PoolObserver {
        &*self.worker().shared().observer
    }
}

/// A task of the program as a task of the scheduler.
pub(crate) struct Run<T>(pub(crate) T);

/// A spawned child; see [`Context::spawn`].
#[must_use = "the child's output is taken with `take`"]
pub struct Spawned<'c, T> {
    at: usize,
    scope: &'c Scope<'c, TaskThread>,
    task: PhantomData<*const T>,
}

impl<T: Task> Spawned<'_, T> {
    /// Waits for the child and takes its output.
    ///
    /// # Errors
    /// The child's, or a halt.
    pub fn take(self) -> Result<T::Output, Stop> {
        if cfg!(debug_assertions) {
            self.scope.worker().shared().registry.check_created::<T>()?;
        }
        self.scope.take::<Run<T>>(self.at)
    }

    /// Drops the child without its output, and does not wait for another node.
    pub(crate) fn discard(self) {
        self.scope.discard(self.at);
    }

    /// Whether the child has ended, so that [`Spawned::take`] returns at once.
    pub(crate) fn is_finished(&self) -> bool {
        self.scope.is_finished(self.at)
    }
}
