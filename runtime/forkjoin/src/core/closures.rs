//! The layer of closures on the threads of one process.

use std::any::Any;
use std::convert::Infallible;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::ptr::NonNull;
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

/// A closure of a caller that waits, and the places where its result is put and announced.
///
/// Both places are on the caller's stack. The closure is taken from there and is not an argument of
/// [`run`](Self::run): while a function runs, no other party may use what its arguments borrow. The
/// caller may use it once it has the message.
struct WaitedRoot<F, R> {
    root: NonNull<Option<F>>,
    result: NonNull<Option<Result<R, Panic>>>,
    sender: mpsc::Sender<()>,
}

// SAFETY: one thread at a time uses the places: the caller waits for the message, or for the drop
// of the sender, before it reads them. The closure and its result may change threads.
unsafe impl<F: Send, R: Send> Send for WaitedRoot<F, R> {}

impl<F, R> WaitedRoot<F, R>
where
    F: FnOnce(&Context<'_>) -> R,
{
    /// # Safety
    /// The places are alive, and the caller does not use them until it receives the message.
    unsafe fn run(mut self, context: &Context<'_>) {
        // SAFETY: by the contract.
        let root = unsafe { self.root.as_mut() }.take().expect("a root runs once");
        let result = catch_unwind(AssertUnwindSafe(|| root(context)));
        // SAFETY: by the contract.
        unsafe { self.result.write(Some(result)) };
        // The receiver waits.
        let _ = self.sender.send(());
    }
}

/// Runs a closure on a thread of the pool and waits for its result. The caller is not a thread of
/// this pool.
///
/// # Errors
/// The panic of the closure.
pub(crate) fn run_and_wait<F, R>(pool: &PoolCore<PoolThread>, root: F) -> Result<R, Panic>
where
    F: FnOnce(&Context<'_>) -> R + Send,
    R: Send,
{
    let (mut root, mut result) = (Some(root), None);
    let (sender, receiver) = mpsc::channel();
    let waited =
        WaitedRoot { root: NonNull::from(&mut root), result: NonNull::from(&mut result), sender };
    let run: Box<dyn FnOnce(&Context<'_>) + Send + '_> = Box::new(move |cx| {
        // SAFETY: this function waits for the message, and does not use the places before.
        unsafe { waited.run(cx) };
    });
    // SAFETY: only a lifetime is extended. The box holds pointers to this frame, which are used
    // before the message that this function waits for. If the box is dropped without a run, nothing
    // uses them.
    let run: Root = unsafe { std::mem::transmute(run) };
    pool.inject_root(run);
    receiver.recv().expect("a pool's threads run every root");
    result.expect("the result is written before the message")
}

/// A compute thread of a [`Pool`](crate::Pool).
pub(crate) struct PoolThread(pub(crate) ThreadCore<PoolThread>);

// SAFETY: the core is a field, and `Context` keeps its scope.
unsafe impl ComputeThread for PoolThread {
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

impl PoolThread {
    fn wake_sleeper(&self) {
        let surplus = self.0.pool().notify();
        debug_assert!(!surplus, "no other process asks for work");
    }
}

/// A closure as a task.
struct Closure<F>(F);

impl<F, R> Fork<PoolThread> for Closure<F>
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

    fn encode(&self, _place: Place<'_, PoolThread>) {}

    fn decode(delivery: Infallible, _worker: &PoolThread) -> Result<R, Panic> {
        match delivery {}
    }
}

/// The interface of a running closure to its pool.
pub struct Context<'w>(Scope<'w, PoolThread>);

impl<'w> TaskContext<'w, PoolThread> for Context<'w> {
    #[inline(always)]
    fn new(scope: Scope<'w, PoolThread>) -> Self {
        Self(scope)
    }

    #[inline(always)]
    fn scope_mut(&mut self) -> &mut Scope<'w, PoolThread> {
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
