//! The layer of closures on the threads of one process.

use std::any::Any;
use std::convert::Infallible;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::mpsc;

use super::frame::{Place, TaskFrame};
use super::layer::{ComputeThread, Fork, TaskContext};
use super::pool::PoolCore;
use super::scope::Scope;
use super::thread::{ThreadCore, run_top};

/// A panic of a closure.
type Panic = Box<dyn Any + Send>;

/// A closure that starts on an empty stack.
pub(crate) type Root = Box<dyn FnOnce(&Context<'_>) + Send>;

/// A closure of a caller that waits, and the way back for its result. A drop drops the closure
/// first, and so all that it borrows, before the caller learns that there is no result.
struct WaitedRoot<F, R> {
    root: F,
    sender: mpsc::Sender<Result<R, Panic>>,
}

impl<F, R> WaitedRoot<F, R>
where
    F: FnOnce(&Context<'_>) -> R,
{
    fn run(self, context: &Context<'_>) {
        let Self { root, sender } = self;
        let result = catch_unwind(AssertUnwindSafe(|| root(context)));
        // The receiver waits.
        drop(sender.send(result));
    }
}

/// Runs a closure on a thread of a pool, which is not the caller, and waits for its result.
///
/// # Errors
/// The panic of the closure.
pub(crate) fn run_and_wait<F, R>(pool: &PoolCore<Worker>, root: F) -> Result<R, Panic>
where
    F: FnOnce(&Context<'_>) -> R + Send,
    R: Send,
{
    let (sender, receiver) = mpsc::channel();
    let waited = WaitedRoot { root, sender };
    let root: Box<dyn FnOnce(&Context<'_>) + Send + '_> = Box::new(move |cx| waited.run(cx));
    // SAFETY: only the lifetime of the borrows of `root` is extended, and they end before this
    // function returns. It returns, also by a panic, only after `recv`. `WaitedRoot::run` consumes
    // the closure before it sends the result. Without a result, the sender is dropped after the
    // closure, in the order of the fields.
    let root: Root = unsafe { std::mem::transmute(root) };
    pool.inject_root(root);
    receiver.recv().expect("a pool's threads run every root")
}

/// A compute thread of a [`Pool`](crate::Pool).
pub(crate) struct Worker(pub(crate) ThreadCore<Worker>);

// SAFETY: the core is a field, and `Context` keeps its scope.
unsafe impl ComputeThread for Worker {
    type Shared = ();
    type Tree = ();
    type Context<'w> = Context<'w>;
    type Stop = Panic;
    type About = ();
    type Encoded = ();
    type Delivery = Infallible;
    type Lease = Infallible;
    type Work = Root;

    #[inline(always)]
    fn core(&self) -> &ThreadCore<Self> {
        &self.0
    }

    fn handle_signals(&self, _parent: &TaskFrame<Self>) -> Result<bool, Panic> {
        self.wake_sleeper();
        Ok(false)
    }

    fn handle_signals_of_spawn(&self, _parent: &TaskFrame<Self>) {
        self.wake_sleeper();
    }

    fn halt_stop(&self, _frame: &TaskFrame<Self>) -> Panic {
        unreachable!("only leased tasks are abandoned, and this layer has no leases")
    }

    fn run_work(&self, root: Root) {
        run_top(self, &(), |context| root(context));
    }
}

impl Worker {
    fn wake_sleeper(&self) {
        let surplus = self.0.pool().notify();
        debug_assert!(!surplus, "no other process asks for work");
    }
}

/// A closure as a task.
struct Closure<F>(F);

impl<F, R> Fork<Worker> for Closure<F>
where
    F: FnOnce(&Context<'_>) -> R + Send,
    R: Send,
{
    type Output = R;
    const ABOUT: &'static () = &();

    #[inline(always)]
    fn run(self, context: &Context<'_>) -> Result<R, Panic> {
        Ok((self.0)(context))
    }

    fn run_taken(self, context: &Context<'_>) -> Result<R, Panic> {
        catch_unwind(AssertUnwindSafe(|| (self.0)(context)))
    }

    fn encode(&self, _place: Place<'_, Worker>) {}

    fn decode(delivery: Infallible, _worker: &Worker) -> Result<R, Panic> {
        match delivery {}
    }
}

/// The interface of a running closure to its pool.
pub struct Context<'w>(Scope<'w, Worker>);

impl<'w> TaskContext<'w, Worker> for Context<'w> {
    #[inline(always)]
    fn new(scope: Scope<'w, Worker>) -> Self {
        Self(scope)
    }

    #[inline(always)]
    fn scope_mut(&mut self) -> &mut Scope<'w, Worker> {
        &mut self.0
    }
}

impl Context<'_> {
    /// Runs two closures, the second possibly on another thread, and returns both results.
    ///
    /// Both have ended when this returns. A lock held across it can deadlock: the thread may run
    /// other closures while it waits.
    ///
    /// # Panics
    /// If a closure panics, with its panic.
    #[inline(always)]
    pub fn join<A, B, RA, RB>(&self, a: A, b: B) -> (RA, RB)
    where
        A: FnOnce(&Context<'_>) -> RA + Send,
        B: FnOnce(&Context<'_>) -> RB + Send,
        RA: Send,
        RB: Send,
    {
        match self.0.join(Closure(a), Closure(b)) {
            Ok(results) => results,
            Err(panic) => resume_unwind(panic),
        }
    }

    /// The index of the thread that runs the closure.
    pub fn thread(&self) -> u32 {
        self.0.worker().core().index()
    }
}
