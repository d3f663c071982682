//! What a running task sees of the runtime.

use std::cell::Cell;
use std::marker::PhantomData;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use tokio::time::Instant;

use super::batch::Batch;
use super::checkpoint::{Checkpoint, RootMarks};
use super::core::children::Children;
use super::core::slot::Frame;
use super::core::worker::Worker;
use super::pool::{Note, SavedRoot, Waker};
use super::registry::Registry;
use super::task::{Halt, Outcome, Stop, Task};
use crate::files::check_name;
use crate::id::NodeId;
use crate::meter::{ThreadState, UnitCounter};
use crate::share::{Merged, Version, Versioned};
use crate::spmd::post::Post;
use crate::wire;

/// Name of the artifact that holds a job's state for a later run to resume from. The command writes it
/// to the file that its option `--checkpoint` names, for jobs that have that option.
pub const STATE_ARTIFACT: &str = "checkpoint";

/// A running task's way to the runtime: children, shared objects, reports. Neither `Send` nor `Sync`, and never owned by
/// user code: it stands for this task on this thread.
pub struct Context<'w> {
    frame: Frame,
    children: Children<'w>,
    /// The next child's index.
    next_child: Cell<u32>,
}

impl<'w> Context<'w> {
    #[inline(always)]
    pub(crate) fn new(frame: Frame, worker: &'w Worker) -> Self {
        Self { frame, children: Children::new(worker), next_child: Cell::new(0) }
    }

    /// Makes the context of a finished task that of its parent's child `index`. Nobody walks the frame meanwhile: all
    /// below the finished task has ended.
    #[inline(always)]
    pub(crate) fn renew(&mut self, index: u32) {
        self.frame.renew(index);
        self.next_child.set(0);
    }

    #[inline(always)]
    pub(crate) fn frame(&self) -> &Frame {
        &self.frame
    }

    #[inline(always)]
    pub(super) fn worker(&self) -> &'w Worker {
        self.children.worker()
    }

    #[inline(always)]
    fn indices(&self, children: u32) -> u32 {
        let index = self.next_child.get();
        self.next_child.set(index + children);
        index
    }

    /// Runs the task that this context was made for: its remaining children are waited for before it ends.
    #[inline(always)]
    pub(crate) fn run_task<T: Task>(&self, task: T) -> Result<T::Output, Stop> {
        // Of tasks that declare no cost nothing of this is left.
        let units = self.worker().units();
        let cost = units.and_then(|_| task.cost());
        let output = task.run(self)?;
        if let (Some(units), Some(cost)) = (units, cost) {
            self.add_units(units, cost);
        }
        if self.children.any() {
            self.children.finish(&self.frame)?;
        }
        Ok(output)
    }

    #[inline(always)]
    fn add_units(&self, units: &UnitCounter, cost: f64) {
        if units.add(cost) {
            self.worker().note_units(units);
        }
    }

    /// Lets the thread rest now, if it is one that is slowed down ([`Throttle`](super::Throttle)): what it owes for its work counts as
    /// part of the work then.
    pub(crate) fn rest(&self) {
        let worker = self.worker();
        worker.shared().rest(worker.index());
    }

    /// Work of so many units has ended here that is no task of its own: it counts as a task's [`cost`](Task::cost) does.
    pub(crate) fn count_units(&self, cost: f64) {
        if let Some(units) = self.worker().units() {
            self.add_units(units, cost);
        }
    }

    /// The program's tasks and jobs.
    pub(crate) fn registry(&self) -> &'w Registry {
        &self.worker().shared().registry
    }

    /// The root begins, from this checkpoint if there is one: its state is returned.
    pub(crate) fn begin_root(&self, saved: Option<SavedRoot>) -> Option<Checkpoint> {
        let seq = saved.as_ref().map_or(0, |saved| saved.seq);
        if let Some(marks) = self.worker().root_marks(&self.frame) {
            marks.begin(seq, self.worker().halts_told());
        }
        let SavedRoot { next_child, state, .. } = saved?;
        self.number_from(next_child);
        Some(Checkpoint::new(state))
    }

    /// Whether the root, which has ended in a halted tree, ran to its true end all the same.
    pub(crate) fn is_whole(&self, halt: Halt) -> bool {
        let told = self.worker().halts_told();
        let marks = self.worker().root_marks(&self.frame);
        halt == Halt::Leave && marks.is_some_and(|marks| !marks.was_told(told))
    }

    /// The next child gets this index.
    pub(crate) fn number_from(&self, next_child: u32) {
        self.next_child.set(next_child);
    }

    /// Waits for the root's remaining children.
    pub(crate) fn finish_root(&self) -> Result<(), Stop> {
        self.children.finish(&self.frame)
    }

    /// Runs two tasks, the second possibly on another thread or node, and returns both outputs.
    ///
    /// # Errors
    /// The first [`Stop`] of the two, or a halt. Both have ended when this returns.
    #[inline(always)]
    pub fn join<A: Task, B: Task>(&self, a: A, b: B) -> Result<(A::Output, B::Output), Stop> {
        self.worker().join(&self.frame, self.indices(2), a, b)
    }

    /// Runs all tasks, in halves that may be stolen whole, and returns their outputs in order.
    ///
    /// # Errors
    /// As [`Context::join`].
    pub fn join_all<T: Task>(
        &self,
        tasks: impl IntoIterator<Item = T>,
    ) -> Result<Vec<T::Output>, Stop> {
        Batch(tasks.into_iter().collect()).run(self)
    }

    /// Runs one child task here and now: for the last of several children.
    ///
    /// # Errors
    /// As the task's.
    pub fn call<T: Task>(&self, task: T) -> Result<T::Output, Stop> {
        self.check()?;
        self.worker().take_tick(Some(&self.frame));
        self.worker().count_spawned(1);
        let _not_root = self.worker().leave_root();
        if self.worker().may_recover(&self.frame) {
            return self.worker().call_recovering(task, &self.frame, self.indices(1));
        }
        self.worker().run_child(task, &self.frame, self.indices(1))
    }

    /// Queues a child task; its output is taken by [`Spawned::take`]. Children not taken are waited for when this task's
    /// `run` returns. Costs a heap allocation; prefer `join` where the number of children is fixed.
    pub fn spawn<T: Task>(&self, task: T) -> Spawned<'_, T> {
        let at = self.children.spawn(&self.frame, self.indices(1), task);
        Spawned { at, context: &self.children, frame: &self.frame, task: PhantomData }
    }

    /// Waits for all children spawned so far.
    ///
    /// # Errors
    /// A halt. A child's own failure is returned by [`Spawned::take`], or when this task's `run` returns.
    pub fn sync(&self) -> Result<(), Stop> {
        self.children.sync();
        self.check()
    }

    /// A point at which a long task that makes no children can be told to stop.
    ///
    /// # Errors
    /// A halt: pass it up.
    pub fn check(&self) -> Result<(), Stop> {
        self.worker().check(&self.frame)
    }

    /// Spends modelled compute time: the thread sleeps (in virtual time under simulation) and counts as working.
    ///
    /// # Errors
    /// A halt that came meanwhile.
    pub fn model(&self, time: Duration) -> Result<(), Stop> {
        self.worker().model(time);
        self.check()
    }

    /// Leaves this state behind: should the root be lost with its node, or move to another, a new one is started by
    /// [`Job::resume`](super::Job::resume) with the last state that arrived. For the root alone, at a point where the
    /// state is all that matters for what comes: between two iterations, as often as is convenient. The state is serialised
    /// here and now, while no task of the job runs, and crosses to other clusters; so calls that come sooner than the last
    /// state's size allows at [`PoolConfig::checkpoint_rate`](super::PoolConfig::checkpoint_rate) are passed over, but for
    /// the one that is [wanted](Self::checkpoint_wanted).
    ///
    /// A root that was told to stop before it called has its state saved first and stops then, unless one of its own
    /// calls was told before: what it made of that is no state to go on from.
    ///
    /// # Errors
    /// In a task; while children are spawned and not collected, for nobody could collect them after that point; if the
    /// state does not serialise; or a halt.
    pub fn checkpoint<S: Serialize + ?Sized>(&self, state: &S) -> Result<(), Stop> {
        let Some(marks) = self.worker().root_marks(&self.frame) else {
            return Err(Stop::fail(
                "a task called for a checkpoint: only the job's root can be resumed, so call Context::checkpoint in \
                 Job::run and Job::resume alone",
            ));
        };
        let open = self.children.open();
        if open > 0 {
            return Err(Stop::fail(format_args!(
                "a checkpoint was called for while {open} of the root's spawned children are not collected: collect \
                 each by Spawned::take before Context::checkpoint"
            )));
        }
        self.leave_state(marks, state)
    }

    /// As [`Context::checkpoint`], beside spawned processes that run: they belong to this root alone, and are not collected by one
    /// that goes on from here.
    pub(crate) fn checkpoint_beside_processes<S: Serialize>(&self, state: &S) -> Result<(), Stop> {
        match self.worker().root_marks(&self.frame) {
            Some(marks) => self.leave_state(marks, state),
            None => self.check(),
        }
    }

    /// Whether a state that is left now is saved; false in a task.
    pub(crate) fn checkpoint_due(&self) -> bool {
        let now_us = self.worker().shared().now_us();
        self.worker().root_marks(&self.frame).is_some_and(|marks| marks.due(now_us))
    }

    fn leave_state<S: Serialize + ?Sized>(&self, marks: &RootMarks, state: &S) -> Result<(), Stop> {
        if marks.was_told(self.worker().halts_told()) {
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
        marks.left(now_us, state.len(), shared.checkpoint_rate);
        let (next_child, seq) = (self.next_child.get(), marks.next());
        self.tell(Note::Checkpoint(SavedRoot { next_child, seq, state }));
        if marks.stops() {
            self.worker().halt_tree(&self.frame, Halt::Leave);
        }
        self.check()
    }

    /// Whether the root stops at its next checkpoint, for it is to go on elsewhere: one that leaves checkpoints rarely leaves one
    /// now, so that nobody waits. False in a task.
    pub fn checkpoint_wanted(&self) -> bool {
        self.worker().root_marks(&self.frame).is_some_and(RootMarks::stops)
    }

    // --- shared objects ---

    /// Publishes the next version of a part of a shared object to all nodes of the job, whole.
    ///
    /// # Errors
    /// If the type is not registered, or does not serialise; or a halt: what a task says that was told to stop is not heard.
    pub fn put<V: Versioned>(&self, part: u32, value: V) -> Result<Version, Stop> {
        self.check()?;
        Ok(self.host().objects().put(part, value)?)
    }

    /// Publishes the next version of a part of a shared object as a change of the current one.
    ///
    /// # Errors
    /// If the type is not registered, there is no current version, or the change does not serialise; or a halt.
    pub fn update<V: Versioned>(&self, part: u32, delta: V::Delta) -> Result<Version, Stop> {
        self.check()?;
        Ok(self.host().objects().update::<V>(part, delta)?)
    }

    /// A part of a shared object in this version; present if the task declared it in `needs`.
    ///
    /// # Errors
    /// If it is not there: the message says to declare it.
    pub fn get<V: Versioned>(&self, part: u32, version: Version) -> Result<Arc<V>, Stop> {
        Ok(self.host().objects().try_get::<V>(part, version)?)
    }

    /// Merges a value into a merged object; nodes learn of it soon.
    ///
    /// # Errors
    /// If the type is not registered, or does not serialise.
    pub fn merge<M: Merged>(&self, value: M) -> Result<(), Stop> {
        self.host().objects().merge(value)?;
        Ok(())
    }

    /// The merge of all values of a merged object that this node knows of, if any.
    ///
    pub fn merged<M: Merged>(&self) -> Option<Arc<M>> {
        self.host().objects().merged::<M>()
    }

    // --- input files ---

    /// Where the input file of this name is on this node: in the directory of its cluster that the grid's config names
    /// (`cluster.files`), or in the one that the run was given. It is not opened. A job that is submitted says which files
    /// it needs, and is started where they are, or when they have been moved there.
    ///
    /// # Errors
    /// It is no plain name, the node has no such directory, or the file is not there: the message says which.
    pub fn file(&self, name: &str) -> Result<PathBuf, Stop> {
        check_name(name)?;
        let Some(dir) = &self.worker().shared().files else {
            return Err(Stop::fail(format_args!(
                "the input file {name} cannot be looked for: this node has no directory for files; set `files` of its \
                 [[cluster]], or run the job with --files DIR"
            )));
        };
        let path = dir.join(name);
        if path.is_file() {
            return Ok(path);
        }
        let dir = dir.display();
        Err(Stop::fail(format_args!(
            "the input file {name} is not in {dir}: put it there, or submit the job with --file {name}, which moves it there"
        )))
    }

    /// The directory of this node's cluster in which input files are, and into which a job may put files for others: under another
    /// name first, one that begins with a dot, and then renamed.
    ///
    /// # Errors
    /// The node has none: the message says what to do.
    pub fn files_dir(&self) -> Result<PathBuf, Stop> {
        self.worker().shared().files.clone().ok_or_else(|| {
            Stop::fail("this node has no directory for files; set `files` of its [[cluster]]")
        })
    }

    // --- reports; they reach whoever watches the job ---

    /// One iteration of the job is done; the runtime times them.
    pub fn iteration_done(&self) {
        self.tell(Note::Iteration);
    }

    /// How far the job is.
    pub fn progress(&self, done: u64, total: u64, what: &str) {
        self.tell(Note::Progress { done, total, what: what.to_owned() });
    }

    /// A line for whoever watches.
    pub fn say(&self, text: impl Into<String>) {
        self.tell(Note::Say { text: text.into() });
    }

    /// A file for the run's directory. `name` is a plain file name.
    pub fn artifact(&self, name: &str, bytes: Vec<u8>) {
        self.tell(Note::Artifact { name: name.to_owned(), bytes: bytes.into() });
    }

    /// Publishes the outcome that the job would have if it ended now. The client keeps the last one for
    /// a job that is ended early, or lost.
    pub fn preliminary(&self, outcome: Outcome) {
        self.tell(Note::Preliminary { outcome });
    }

    /// Asks for more nodes, for a part of the job that needs them. Without `within` the job gets them when they are free, if it is
    /// one that the scheduler makes larger and smaller (`job submit`); so adaptation asks, too, by itself. With it the job *cannot
    /// go on without them*: other jobs are made smaller for it, down to what they need, or the job's owner is told within this time
    /// why not, and the root by [`Context::refused`]. Asked again, the last word counts. Alone, without a grid, nothing happens.
    pub fn need_nodes(&self, more: u32, within: Option<Duration>) {
        self.host().forget_refusal();
        self.tell(Note::NeedNodes { more, within });
    }

    /// Why the job does not get the nodes that the root of it [asked for](Context::need_nodes) last, once that is known: at once,
    /// if it can never have them, else within the time that was given. Absent otherwise; on other nodes than the root's; and
    /// where a root has moved to since it asked.
    pub fn refused(&self) -> Option<String> {
        self.host().refused()
    }

    /// Tells the node something, unless this is a root that another has taken the place of.
    fn tell(&self, note: Note) {
        if !self.worker().root_marks(&self.frame).is_some_and(RootMarks::is_left_behind) {
            self.host().note(note);
        }
    }

    /// The program has no use for these nodes: they may leave the job.
    pub(crate) fn release(&self, nodes: Vec<NodeId>) {
        self.tell(Note::Release { nodes });
    }

    /// These nodes are to come for tasks that were spawned here. A node asks few others for work, and of these none may have any of
    /// the root's own children, which are all the work there is of a program that makes no others.
    pub(crate) fn call_nodes(&self, nodes: &[NodeId]) {
        self.host().call(nodes);
    }

    /// The node's part in SPMD programs.
    pub(crate) fn post(&self) -> Option<Arc<Post>> {
        self.host().post().cloned()
    }

    /// Wakes this thread.
    pub(crate) fn waker(&self) -> Waker {
        Waker::new(self.worker().shared(), self.worker().index())
    }

    /// Waits until something is `ready`, of which [`Context::waker`] is woken, or until this time. Whether it is.
    pub(crate) fn wait_for(
        &self,
        wide: bool,
        until: Option<Instant>,
        ready: &dyn Fn() -> bool,
    ) -> Result<bool, Stop> {
        let state = if wide { ThreadState::WaitWide } else { ThreadState::WaitLocal };
        self.worker().wait_for(&self.frame, state, until, ready)
    }

    /// As [`Context::wait_for`], by one that has nothing to do until then: it counts as idle.
    pub(crate) fn idle_for(
        &self,
        until: Option<Instant>,
        ready: &dyn Fn() -> bool,
    ) -> Result<bool, Stop> {
        self.worker().wait_for(&self.frame, ThreadState::Idle, until, ready)
    }

    /// What the root does as one of many, in place of a task: it counts as work.
    pub(crate) fn as_work<R>(&self, what: impl FnOnce() -> R) -> R {
        let _not_root = self.worker().leave_root();
        what()
    }

    /// Whether what is computed takes the time that the clock shows.
    pub(crate) fn is_real(&self) -> bool {
        self.worker().shared().seam.is_real()
    }

    fn host(&self) -> &'w dyn super::pool::Host {
        &*self.worker().shared().host
    }
}

/// A spawned child. See [`Context::spawn`].
#[must_use = "the child's output is taken with `take`"]
pub struct Spawned<'c, T> {
    at: usize,
    context: &'c Children<'c>,
    frame: &'c Frame,
    task: PhantomData<*const T>,
}

impl<T: Task> Spawned<'_, T> {
    /// Waits for the child and takes its output.
    ///
    /// # Errors
    /// The child's, or a halt.
    pub fn take(self) -> Result<T::Output, Stop> {
        self.context.take::<T>(self.frame, self.at)
    }

    /// Whether the child has ended, so that [`Spawned::take`] returns without a wait.
    pub(crate) fn is_finished(&self) -> bool {
        self.context.is_finished(self.at)
    }
}
