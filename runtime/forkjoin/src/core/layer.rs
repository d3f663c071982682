//! The seam between the scheduler and the layer above it.
//!
//! The scheduler decides where and when tasks run. The layer decides what a task is, how it travels
//! to another process, when work is halted, and what is recorded. [`pool`](crate::pool) is the
//! layer of closures on the threads of one process.
//!
//! Generic code is compiled for each layer, so a hook with an empty body costs nothing. The hooks
//! on the path of every join are marked.

use std::time::Duration;

use super::frame::{Place, TaskFrame};
use super::leases::LeaseKey;
use super::scope::Scope;
use super::slot::HeldSlot;
use super::thread::{Awaited, ThreadCore};

/// The activity of a compute thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activity {
    /// It runs tasks.
    Working,
    /// It waits for a task, and found no work.
    Waiting,
    /// It runs no task, and found no work.
    Idle,
}

/// A compute thread of a layer, with the hooks by which the scheduler calls the layer. All of them
/// run on that thread.
///
/// # Safety
/// [`core`](Self::core) always returns the core that the value was built from, and each
/// [`TaskContext`] keeps the scope that it was built from.
pub unsafe trait ComputeThread: Sized + 'static {
    /// The layer's part of the data that a pool keeps for each thread.
    type Shared: Send + Sync;
    /// The layer's data of a tree of tasks.
    type Tree: Sync;
    /// The interface of a running task to the layer.
    type Context<'w>: TaskContext<'w, Self>;
    /// The reason why a task ends without an output.
    type Stop: Send;
    /// A description of a type of tasks.
    type About: Sync + 'static;
    /// A task in the form in which it leaves the process.
    type Encoded;
    /// The end of a task that was executed elsewhere, in the form in which it arrives.
    type Delivery: Send;
    /// The holder of a task that is executed elsewhere.
    type Lease: Send;
    /// Work that has no slot: roots, and tasks that come from elsewhere.
    type Work: Send;

    /// The scheduler's part of the thread.
    fn core(&self) -> &ThreadCore<Self>;

    /// Whether a join has to call [`handle_signals`](Self::handle_signals), although the pool has
    /// no signals. Called by every join.
    #[inline(always)]
    fn is_interrupted(&self) -> bool {
        false
    }

    /// Handles signals that a join of the task in `parent` saw. Returns whether its children have
    /// to be looked up.
    ///
    /// # Errors
    /// The task must stop.
    fn handle_signals(&self, parent: &TaskFrame<Self>) -> Result<bool, Self::Stop>;

    /// Handles signals that the task in `parent` saw when it spawned a child.
    fn handle_signals_of_spawn(&self, parent: &TaskFrame<Self>);

    /// Whether children of the task in this frame have to be looked up.
    fn looks_up(&self, _parent: &TaskFrame<Self>) -> bool {
        false
    }

    /// Runs the children of a join that have to be looked up.
    fn run_looked_up<R>(&self, run: impl FnOnce() -> R) -> R {
        run()
    }

    /// Looks up the result of a task that is about to run on this thread. Returns the slot, or
    /// `None` after the layer has delivered or leased it.
    fn lookup(&self, slot: HeldSlot<Self>) -> Option<HeldSlot<Self>> {
        Some(slot)
    }

    /// Whether the task in this frame must stop.
    fn is_halted(&self, _frame: &TaskFrame<Self>) -> bool {
        false
    }

    /// The stop of the task in this frame, one of whose children was abandoned.
    fn halt_stop(&self, frame: &TaskFrame<Self>) -> Self::Stop;

    /// A task on this stack receives the stop of a child that another thread ran.
    fn received_stop(&self) {}

    /// A task with this lease was abandoned; it was a child of the task in `parent`.
    fn abandoned(&self, _parent: &TaskFrame<Self>, _key: LeaseKey, _lease: Self::Lease) {}

    /// Runs a wait of the thread.
    fn wait(&self, wait: impl FnOnce()) {
        wait();
    }

    /// Handles what is due between two tasks. `waiting` is the frame of the task that waits, with
    /// whether it is halted.
    fn poll(&self, _waiting: Option<(&TaskFrame<Self>, bool)>) {}

    /// The thread's activity changes.
    fn switch(&self, _activity: Activity) {}

    /// Runs other work above the waiting task in this frame.
    fn run_above(&self, _waiting: &TaskFrame<Self>, run: impl FnOnce()) {
        run();
    }

    /// Takes injected work that the awaited task waits for.
    fn find_below(&self, _awaited: &Awaited<'_, Self>) -> Option<Self::Work> {
        None
    }

    /// Whether a wait for a task of this type runs only what the task consists of: it is short, and
    /// other work would bury it.
    fn is_brief(&self, _about: &Self::About) -> bool {
        false
    }

    /// Whether [`may_start`](Self::may_start) has to be called.
    fn is_choosy(&self) -> bool {
        false
    }

    /// Whether this thread may start a task that was returned to the pool.
    fn may_start(&self, _place: Place<'_, Self>) -> bool {
        true
    }

    /// Runs work that has no slot. It must not unwind.
    fn run_work(&self, work: Self::Work);

    /// Pauses between tasks, if the thread has to.
    fn rest(&self) {}

    /// The thread found no work and is about to sleep.
    fn idle(&self, _awaited: Option<&Awaited<'_, Self>>) {}

    /// The thread runs this long after it was woken for work.
    fn woke(&self, _delay: Duration) {}

    /// There is work that another process may take, as
    /// [`PoolCore::request_surplus_notice`](super::pool::PoolCore::request_surplus_notice)
    /// requested.
    fn surplus(&self) {}
}

/// The interface of a running task to its layer.
pub trait TaskContext<'w, W: ComputeThread> {
    /// Creates the context of a task.
    fn new(scope: Scope<'w, W>) -> Self;

    /// The scope that the context was created from.
    fn scope_mut(&mut self) -> &mut Scope<'w, W>;
}

/// A task of a layer.
pub trait Fork<W: ComputeThread>: Send + Sized {
    /// The value that the task returns to its parent.
    type Output: Send;

    /// The description of this type of tasks.
    const ABOUT: &'static W::About;

    /// Runs the task.
    ///
    /// # Errors
    /// The task ends without an output.
    fn run(self, context: &W::Context<'_>) -> Result<Self::Output, W::Stop>;

    /// Runs the task on a thread that took it. A panic that it does not catch aborts the process.
    ///
    /// # Errors
    /// The task ends without an output.
    fn run_taken(self, context: &W::Context<'_>) -> Result<Self::Output, W::Stop>;

    /// Encodes the task.
    fn encode(&self, place: Place<'_, W>) -> W::Encoded;

    /// Decodes the end of the task.
    ///
    /// # Errors
    /// The task ended without an output, or its output does not decode.
    fn decode(delivery: W::Delivery, worker: &W) -> Result<Self::Output, W::Stop>;

    /// An output that no task takes, because a task above stops, for this reason if it is known.
    fn left_over(
        _worker: &W,
        _place: Place<'_, W>,
        _output: &Self::Output,
        _stop: Option<&W::Stop>,
    ) {
    }

    /// The task at this place panics, and the stack unwinds.
    fn panicked(_place: Place<'_, W>) {}
}
