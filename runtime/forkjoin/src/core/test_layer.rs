//! A layer for tests: tasks are functions of a number, and some are executed "elsewhere".

use std::sync::Arc;

use super::frame::{Place, TaskFrame};
use super::layer::{ComputeThread, Fork, TaskContext};
use super::pool::{PoolCore, PoolLimits};
use super::scope::Scope;
use super::thread::ThreadCore;
use crate::seam::Seam;

pub(super) struct Worker(pub(super) ThreadCore<Worker>);

pub(super) struct Context<'w>(pub(super) Scope<'w, Worker>);

impl<'w> TaskContext<'w, Worker> for Context<'w> {
    fn new(scope: Scope<'w, Worker>) -> Self {
        Self(scope)
    }

    fn scope_mut(&mut self) -> &mut Scope<'w, Worker> {
        &mut self.0
    }
}

/// The number of abandoned tasks, and the flag that halts the tree.
#[derive(Default)]
pub(super) struct Tree {
    pub(super) abandoned: std::sync::atomic::AtomicU32,
    pub(super) halted: std::sync::atomic::AtomicBool,
}

type Root = Box<dyn FnOnce(&Worker) + Send>;

// SAFETY: the core is a field, and `Context` keeps its scope.
unsafe impl ComputeThread for Worker {
    type Shared = ();
    type Tree = Tree;
    type Context<'w> = Context<'w>;
    type Stop = &'static str;
    type About = &'static str;
    type Encoded = u64;
    type Delivery = Result<u64, &'static str>;
    type Lease = u64;
    type Work = Root;

    fn core(&self) -> &ThreadCore<Self> {
        &self.0
    }

    fn handle_signals(&self, _parent: &TaskFrame<Self>) -> Result<bool, &'static str> {
        let _no_process_asks = self.0.pool().notify();
        Ok(false)
    }

    fn handle_signals_of_spawn(&self, _parent: &TaskFrame<Self>) {
        let _no_process_asks = self.0.pool().notify();
    }

    fn is_halted(&self, frame: &TaskFrame<Self>) -> bool {
        frame.tree().halted.load(std::sync::atomic::Ordering::SeqCst)
    }

    fn halt_stop(&self, _frame: &TaskFrame<Self>) -> &'static str {
        "halted"
    }

    fn abandoned(&self, parent: &TaskFrame<Self>, _key: super::leases::LeaseKey, _lease: u64) {
        parent.tree().abandoned.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
    }

    fn is_brief(&self, about: &&'static str) -> bool {
        *about == Brief::ABOUT
    }

    fn run_work(&self, root: Root) {
        root(self);
    }
}

/// A task with an argument on the heap, so that Miri finds one that is dropped twice or never.
pub(super) struct Call(pub(super) fn(u64, &Context<'_>) -> Result<u64, &'static str>, Box<u64>);

pub(super) fn task(run: fn(u64, &Context<'_>) -> Result<u64, &'static str>, argument: u64) -> Call {
    Call(run, Box::new(argument))
}

#[cfg(feature = "loom")]
impl Call {
    pub(super) fn argument(&self) -> u64 {
        *self.1
    }
}

impl Fork<Worker> for Call {
    type Output = Box<u64>;
    const ABOUT: &'static &'static str = &"call";

    fn run(self, context: &Context<'_>) -> Result<Box<u64>, &'static str> {
        let output = (self.0)(*self.1, context)?;
        context.0.finish()?;
        Ok(Box::new(output))
    }

    fn run_taken(self, context: &Context<'_>) -> Result<Box<u64>, &'static str> {
        self.run(context)
    }

    fn encode(&self, _place: Place<'_, Worker>) -> u64 {
        *self.1
    }

    fn decode(delivery: Result<u64, &'static str>, _: &Worker) -> Result<Box<u64>, &'static str> {
        delivery.map(Box::new)
    }
}

/// A task that a waiting thread may run.
pub(super) struct Brief(pub(super) Call);

impl Brief {
    const ABOUT: &'static str = "brief";
}

impl Fork<Worker> for Brief {
    type Output = Box<u64>;
    const ABOUT: &'static &'static str = &Brief::ABOUT;

    fn run(self, context: &Context<'_>) -> Result<Box<u64>, &'static str> {
        self.0.run(context)
    }

    fn run_taken(self, context: &Context<'_>) -> Result<Box<u64>, &'static str> {
        self.0.run(context)
    }

    fn encode(&self, place: Place<'_, Worker>) -> u64 {
        self.0.encode(place)
    }

    fn decode(
        delivery: Result<u64, &'static str>,
        worker: &Worker,
    ) -> Result<Box<u64>, &'static str> {
        Call::decode(delivery, worker)
    }
}

/// The state of a pool without threads.
pub(super) fn pool(threads: usize, seam: Arc<dyn Seam>) -> Arc<PoolCore<Worker>> {
    let limits = PoolLimits { nesting_bound: 32, first_lease_generation: 7 };
    PoolCore::new((0..threads).map(|_| ()), seam, 0, limits)
}
