//! Slots: a child task in its parent's stack frame (or in a box, for spawned children), and the frames that name it.
//!
//! # States, and who may change them
//!
//! | state | meaning | leaves it |
//! | --- | --- | --- |
//! | `QUEUED` | its pointer is in a deque or in the injector | whoever takes the pointer out: owner, thread, exporter |
//! | `RUNNING` | a thread of this node runs it | that thread, to `DONE` |
//! | `EXPORTING` | the endpoint's thread serialises it | that thread, to `LEASED`, `DONE` (serialising failed) or `QUEUED` |
//! | `LEASED` | another node holds it under a lease | lease lock: `DELIVERED`, `QUEUED` (returned, reclaimed), `ABANDONED` |
//! | `DONE` | the outcome is written, the task is consumed | owner |
//! | `DELIVERED` | the outcome is written, the task value is still there | owner |
//! | `ABANDONED` | the owner took it out of the lease table unfinished | owner |
//!
//! # Why a slot is never touched after its frame is gone
//!
//! A slot's pointer stands in at most one place at a time: a deque, the injector, the lease table, or a thread's hands.
//! A thread reads behind the pointer only after it took it out of that place, which makes it the only one there; so no stale
//! pointer is ever followed. The owner leaves the frame only when the state is `DONE`, `DELIVERED` or `ABANDONED`, or after it
//! took the pointer out itself. The last act of a thread that finishes a slot is the store of its state; what it needs after
//! that (whom to wake) it has read before. Changes of `LEASED` are made under the lease table's lock by whoever takes the
//! entry out, which is one of: the delivery, the return, the owner's abandon. So no writer is inside when the owner has
//! seen one of the final states.

use std::cell::UnsafeCell;
use std::collections::BTreeSet;
use std::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use tokio::time::Instant;

use super::worker::Worker;
use crate::guard::panic_text;
use crate::id::TaskPath;
use crate::share::Need;
use crate::wire;
use crate::work::checkpoint::RootMarks;
use crate::work::context::Context;
use crate::work::recover::{Identity, Kept, KeptOutputs, Left, Place, Start};
use crate::work::registry::wire_name;
use crate::work::task::{Failure, Halt, Stop, Task};

pub(crate) mod state {
    //! The values of `Header::state`.
    pub(crate) const QUEUED: u32 = 0;
    pub(crate) const RUNNING: u32 = 1;
    pub(crate) const EXPORTING: u32 = 2;
    pub(crate) const LEASED: u32 = 3;
    pub(crate) const DONE: u32 = 4;
    pub(crate) const DELIVERED: u32 = 5;
    pub(crate) const ABANDONED: u32 = 6;

    /// Whether the owner may leave, as far as others are concerned.
    pub(crate) fn is_final(state: u32) -> bool {
        (DONE..=ABANDONED).contains(&state)
    }
}

/// Where a tree of tasks starts on this node: the job's root, or a task stolen from another node.
#[derive(Debug)]
pub(crate) struct Base {
    /// The top task's path.
    pub(crate) path: TaskPath,
    /// Its name.
    pub(crate) name: &'static str,
    /// Of which start of the job's root it is.
    pub(crate) start: Start,
    /// Set when this tree alone must stop.
    pub(crate) halted: AtomicBool,
    /// Why; valid once `halted`.
    pub(crate) reason: AtomicU32,
    /// Which thread runs the top task; [`NOBODY`] before one has begun.
    thread: AtomicU32,
    /// What is kept of the tree for the case that it stops because the node leaves.
    remains: Mutex<Remains>,
    /// For the root's checkpoints; of no use in other trees.
    pub(crate) root: RootMarks,
}

/// What was done of a tree that has not ended.
#[derive(Debug, Default)]
struct Remains {
    kept: KeptOutputs,
    leased: Vec<Place>,
    /// Tasks whose code was told to stop: what they return, and those they lie in, is no answer, for they may have swallowed
    /// that.
    told: BTreeSet<TaskPath>,
}

/// Bytes of outputs kept of a tree while it runs. (What is finished when it stops is kept beside that.)
const KEPT_BYTES: usize = 16 << 20;

/// No thread: see [`Base::thread`].
const NOBODY: u32 = u32::MAX;

impl Base {
    pub(crate) fn new(path: TaskPath, name: &'static str, start: Start) -> Self {
        Self {
            path,
            name,
            start,
            halted: AtomicBool::new(false),
            reason: AtomicU32::new(0),
            thread: AtomicU32::new(NOBODY),
            remains: Mutex::default(),
            root: RootMarks::default(),
        }
    }

    fn remains(&self) -> MutexGuard<'_, Remains> {
        // Entries are added whole, so a poisoned lock may be used on.
        self.remains.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps the output of a finished task of the tree, in place of what is kept of those below it; but not if it may be no
    /// answer, as the task, or one below it, was told to stop. Whether it is kept.
    fn keep(&self, kept: Kept, bytes_max: usize) -> bool {
        let mut remains = self.remains();
        let told = remains.told.range(kept.path.clone()..).next();
        let whole = told.is_none_or(|told| !told.is_at_or_below(&kept.path));
        whole && remains.kept.keep(kept, bytes_max)
    }

    /// A task of the tree goes on at another node.
    pub(crate) fn goes_on(&self, place: Place) {
        self.remains().leased.push(place);
    }

    /// The code of this task of the tree is told to stop.
    pub(crate) fn told(&self, path: TaskPath) {
        self.remains().told.insert(path);
    }

    /// The outputs kept so far, for another that begins the tree anew while it still runs.
    pub(crate) fn kept(&self) -> Vec<Kept> {
        self.remains().kept.iter().cloned().collect()
    }

    /// What was kept.
    pub(crate) fn take_left(&self) -> Left {
        let Remains { kept, leased, .. } = std::mem::take(&mut *self.remains());
        Left { kept: kept.into_vec(), leased }
    }

    /// This thread begins with the top task.
    pub(crate) fn begin(&self, thread: u32) {
        self.thread.store(thread, Ordering::Relaxed);
    }

    /// The thread that runs the top task.
    pub(crate) fn thread(&self) -> Option<u32> {
        Some(self.thread.load(Ordering::Relaxed)).filter(|thread| *thread != NOBODY)
    }

    /// Whether this thread runs the top task.
    pub(crate) fn is_run_by(&self, thread: u32) -> bool {
        self.thread() == Some(thread)
    }

    pub(crate) fn halt(&self, reason: Halt) {
        self.reason.store(reason as u32, Ordering::Relaxed);
        self.halted.store(true, Ordering::Release);
    }

    pub(crate) fn halted(&self) -> Option<Halt> {
        self.halted.load(Ordering::Acquire).then(|| halt_of(self.reason.load(Ordering::Relaxed)))
    }
}

/// The inverse of `Halt as u32`.
pub(crate) fn halt_of(value: u32) -> Halt {
    match value {
        1 => Halt::Leave,
        2 => Halt::OwnerLost,
        _ => Halt::Cancelled,
    }
}

/// A running task's place in the tree. Immutable, so that an exporter may walk it while the task runs: the frames above a
/// slot are alive as long as the slot is, for each waits for the one below.
///
/// Two whole words, for every join writes two frames: a narrower store before a wide load stalled each join by some 15
/// cycles (measured: 70 % of fib's time).
pub(crate) struct Frame {
    /// The parent's frame; for the top task of a tree, its base.
    parent: *const (),
    /// Which child of the parent; [`TOP`] for the top task.
    index: u64,
}

const TOP: u64 = u64::MAX;

impl Frame {
    /// The frame of a tree's top task.
    pub(crate) fn top(base: &Base) -> Self {
        Self { parent: std::ptr::from_ref(base).cast(), index: TOP }
    }

    /// The frame of child `index` of the task in `parent`.
    #[inline(always)]
    pub(crate) fn child(parent: *const Frame, index: u32) -> Self {
        Self { parent: parent.cast(), index: index.into() }
    }

    /// Makes this the frame of another child of the same parent.
    #[inline(always)]
    pub(crate) fn renew(&mut self, index: u32) {
        self.index = index.into();
    }

    /// The parent's frame, or the base.
    ///
    /// # Safety
    /// The frames above are alive: true for a frame of the calling task, and for the parent of a slot in the caller's hands.
    unsafe fn up(&self) -> Result<&Frame, &Base> {
        // SAFETY: `top` and `child` are the only makers, and `index` tells which it was; alive by the contract, and a base
        // outlives every frame of its tree.
        if self.index == TOP {
            Err(unsafe { &*self.parent.cast::<Base>() })
        } else {
            Ok(unsafe { &*self.parent.cast::<Frame>() })
        }
    }

    /// The parent's frame; none for a tree's top task.
    ///
    /// # Safety
    /// As [`Frame::path`].
    pub(crate) unsafe fn parent(&self) -> Option<&Frame> {
        // SAFETY: by the contract.
        unsafe { self.up() }.ok()
    }

    /// Which child of its parent it is: together with its address, and while its parent runs, it tells it from others.
    pub(crate) fn index(&self) -> u64 {
        self.index
    }

    /// The tree's start, if this is the frame of the job's root.
    ///
    /// # Safety
    /// As [`Frame::path`].
    pub(crate) unsafe fn root(&self) -> Option<&Base> {
        // SAFETY: by the contract. The top of any other tree was a child of some task, so its path is not empty.
        unsafe { self.up() }.err().filter(|base| base.path.0.is_empty())
    }

    /// The tree's start.
    ///
    /// # Safety
    /// As [`Frame::path`].
    pub(crate) unsafe fn base(&self) -> &Base {
        let mut frame = self;
        loop {
            // SAFETY: by the contract.
            match unsafe { frame.up() } {
                Ok(parent) => frame = parent,
                Err(base) => return base,
            }
        }
    }

    /// Whether the paths of this task's children are at most `depth` long.
    ///
    /// # Safety
    /// As [`Frame::path`].
    pub(crate) unsafe fn is_above(&self, depth: usize) -> bool {
        let (mut frame, mut below) = (self, 1);
        while below <= depth {
            // SAFETY: by the contract.
            match unsafe { frame.up() } {
                Ok(parent) => (frame, below) = (parent, below + 1),
                Err(base) => return base.path.0.len() + below <= depth,
            }
        }
        false
    }

    /// The path of the task in this frame.
    ///
    /// # Safety
    /// The frames above are alive: true for a frame of the calling task, and for the parent of a slot in the caller's hands.
    pub(crate) unsafe fn path(&self) -> TaskPath {
        let mut indices = Vec::new();
        let mut frame = self;
        loop {
            // SAFETY: by the contract.
            match unsafe { frame.up() } {
                Ok(parent) => {
                    indices.push(frame.index as u32);
                    frame = parent;
                }
                Err(base) => {
                    let mut path = base.path.0.clone();
                    path.extend(indices.into_iter().rev());
                    return TaskPath(path);
                }
            }
        }
    }
}

/// What a slot can do that depends on its task's type.
pub(crate) struct VTable {
    pub(crate) name: &'static str,
    pub(crate) batch: bool,
    /// Runs the task on this worker and writes the outcome and the final state.
    run: unsafe fn(NonNull<Header>, &Worker),
    /// Serialises the task, which stays in the slot.
    encode: unsafe fn(NonNull<Header>) -> Result<Encoded, Failure>,
    /// Writes an outcome that came as bytes, or a failure.
    deliver: unsafe fn(NonNull<Header>, Delivery),
    /// Drops the task that was not run.
    discard: unsafe fn(NonNull<Header>),
    /// Drops whatever the outcome holds.
    forget: unsafe fn(NonNull<Header>),
    /// As `forget`, but an output is kept in the base first.
    save: unsafe fn(NonNull<Header>, &Base),
}

/// A task as it travels.
#[derive(Debug)]
pub struct Encoded {
    pub(crate) body: Bytes,
    pub(crate) needs: Vec<Need>,
    pub(crate) start: Start,
}

impl Encoded {
    /// Which task it is, at this place and under this name.
    pub(crate) fn identity(&self, path: TaskPath, name: &str) -> Identity {
        Identity::of(path, name, &self.body, &self.needs, self.start)
    }
}

/// A leased task's end as the thief reports it.
pub(crate) type Delivery = Result<Bytes, Failure>;

#[repr(C)]
pub(crate) struct Header {
    pub(crate) state: AtomicU32,
    /// The thread that runs it, valid in `RUNNING`: where to leapfrog.
    pub(crate) holder: AtomicU32,
    /// The thread that waits for it.
    pub(crate) owner: u32,
    /// Which child of its parent.
    pub(crate) index: u32,
    pub(crate) parent: *const Frame,
    pub(crate) vtable: &'static VTable,
}

impl Header {
    /// The task's own path.
    ///
    /// # Safety
    /// The slot is in the caller's hands.
    pub(crate) unsafe fn path(&self) -> TaskPath {
        // SAFETY: by the contract the slot, so its parent's frame and those above, are alive.
        unsafe { Frame::child(self.parent, self.index).path() }
    }

    /// Whether the slot's tree, or all work, was told to stop.
    ///
    /// # Safety
    /// The slot is in the caller's hands.
    pub(crate) unsafe fn base(&self) -> &Base {
        // SAFETY: by the contract.
        unsafe { (*self.parent).base() }
    }
}

enum Finish<O> {
    Here(Result<O, Stop>),
    /// As it came from another node, and when.
    Elsewhere(Delivery, Instant),
}

#[repr(C)]
pub(crate) struct Slot<T: Task> {
    /// First, so that a pointer to the slot is a pointer to its header.
    header: Header,
    task: UnsafeCell<MaybeUninit<T>>,
    finish: UnsafeCell<MaybeUninit<Finish<T::Output>>>,
}

impl<T: Task> Slot<T> {
    const VTABLE: VTable = VTable {
        name: T::NAME,
        batch: T::BATCH,
        run: run::<T>,
        encode: encode::<T>,
        deliver: deliver::<T>,
        discard: discard::<T>,
        forget: forget::<T>,
        save: save::<T>,
    };

    #[inline(always)]
    pub(crate) fn new(task: T, parent: *const Frame, index: u32, owner: u32) -> Self {
        Self {
            header: Header {
                state: AtomicU32::new(state::QUEUED),
                holder: AtomicU32::new(0),
                owner,
                index,
                parent,
                vtable: &Self::VTABLE,
            },
            task: UnsafeCell::new(MaybeUninit::new(task)),
            finish: UnsafeCell::new(MaybeUninit::uninit()),
        }
    }

    /// The pointer that goes into deques; it may be cast back to the whole slot.
    #[inline(always)]
    pub(crate) fn pointer(&self) -> NonNull<Header> {
        NonNull::from(self).cast()
    }

    #[inline(always)]
    pub(crate) fn header(&self) -> &Header {
        &self.header
    }

    /// Moves the task out.
    ///
    /// # Safety
    /// The slot is in the caller's hands and its task was not moved or dropped before.
    #[inline(always)]
    pub(crate) unsafe fn take_task(&self) -> T {
        // SAFETY: by the contract nobody else touches the cell, and it is initialised.
        unsafe { (*self.task.get()).assume_init_read() }
    }

    /// The outcome, decoded if it came as bytes. How long it lay there (under other work of this thread) is told.
    ///
    /// # Safety
    /// The caller owns the slot, its state is `DONE` or `DELIVERED`, and this is called once.
    pub(crate) unsafe fn take_outcome(&self, worker: &Worker) -> Result<T::Output, Stop> {
        if self.header.state.load(Ordering::Acquire) == state::DELIVERED {
            // SAFETY: in `DELIVERED` the task value is still there, and nobody but the owner touches the slot.
            drop(unsafe { self.take_task() });
        }
        // SAFETY: both states mean that the outcome is written; the acquire load above ordered it before this read.
        match unsafe { (*self.finish.get()).assume_init_read() } {
            Finish::Here(outcome) => outcome.inspect_err(|_| worker.told()),
            Finish::Elsewhere(Err(failure), _) => Err(Stop::failure(failure)),
            Finish::Elsewhere(Ok(body), at) => {
                worker.shared().host.join_delayed(at.elapsed());
                wire::decode_payload::<T::Output>(&body).map_err(|error| {
                    Stop::fail(format!(
                        "the result of a stolen {} does not decode: {error}",
                        T::NAME
                    ))
                })
            }
        }
    }
}

/// # Safety
/// The slot behind the header is in the caller's hands.
unsafe fn slot<'a, T: Task>(header: NonNull<Header>) -> &'a Slot<T> {
    // SAFETY: headers in deques come from `Slot::<T>::pointer`, and the vtable belongs to the same `T`.
    unsafe { header.cast::<Slot<T>>().as_ref() }
}

unsafe fn run<T: Task>(header: NonNull<Header>, worker: &Worker) {
    // SAFETY: the caller took the pointer out of its place.
    let slot = unsafe { slot::<T>(header) };
    slot.header.holder.store(worker.index(), Ordering::Relaxed);
    slot.header.state.store(state::RUNNING, Ordering::Release);
    // SAFETY: as above; a queued slot holds its task.
    let task = unsafe { slot.take_task() };
    let frame = Frame::child(slot.header.parent, slot.header.index);
    let outcome = run_caught(task, frame, worker);
    // SAFETY: only this thread may write the outcome in `RUNNING`.
    unsafe { (*slot.finish.get()).write(Finish::Here(outcome)) };
    let owner = slot.header.owner;
    slot.header.state.store(state::DONE, Ordering::SeqCst);
    // From here on the slot may be gone.
    worker.shared().wake_owner(owner, worker.index());
}

/// Runs a task as the top of a thread's work: panics end here, a halted tree's outcome is discarded.
fn run_caught<T: Task>(task: T, frame: Frame, worker: &Worker) -> Result<T::Output, Stop> {
    let context = Context::new(frame, worker);
    let halted = || {
        // SAFETY: the slot that this task came from is in this thread's hands, so the frames above are alive.
        worker.shared().halted(|| unsafe { context.frame().base() })
    };
    if let Some(halt) = halted() {
        return Err(worker.stop(halt, context.frame()));
    }
    let told = worker.halts_told();
    let outcome = catch_unwind(AssertUnwindSafe(|| worker.run_watched(&context, task)));
    if outcome.is_err() {
        worker.lost_sight();
    }
    if let Some(halt) = halted()
        && !worker.is_whole(halt, told)
    {
        return Err(worker.stop(halt, context.frame()));
    }
    match outcome {
        Ok(outcome) => outcome,
        Err(panic) => Err(Stop::failed(panic_text(&*panic), true)),
    }
    .map_err(|stop| {
        // SAFETY: as above.
        locate(stop, T::NAME, || unsafe { context.frame().path() })
    })
}

/// Fills in where a failure happened, unless an inner task did already.
pub(crate) fn locate(mut stop: Stop, name: &str, path: impl FnOnce() -> TaskPath) -> Stop {
    if let crate::work::task::Cause::Failed(failure) = &mut *stop.0
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
    /// The innermost task a panic came from, noted while the stack unwinds through its parent's frame.
    static PANICKED: std::cell::RefCell<Option<(TaskPath, &'static str)>> =
        const { std::cell::RefCell::new(None) };
}

/// Notes the task a panic comes from; the first note, the innermost, stays.
pub(crate) fn note_panic(path: impl FnOnce() -> TaskPath, name: &'static str) {
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

unsafe fn encode<T: Task>(header: NonNull<Header>) -> Result<Encoded, Failure> {
    // SAFETY: the caller (the exporter) took the pointer out of its place.
    let slot = unsafe { slot::<T>(header) };
    // SAFETY: a queued slot holds its task, and only the exporter is there.
    let task = unsafe { (*slot.task.get()).assume_init_ref() };
    let failure = |message: String, panicked| Failure {
        name: T::NAME.to_owned(),
        // SAFETY: the slot is in the caller's hands.
        path: unsafe { slot.header.path() },
        message,
        panicked,
        located: true,
    };
    // SAFETY: the slot is in the caller's hands, so the frames above it, and their base, are alive.
    let start = unsafe { slot.header.base() }.start;
    match catch_unwind(AssertUnwindSafe(|| (wire::encode_payload(task), task.needs()))) {
        Ok((Ok(body), needs)) => Ok(Encoded { body, needs, start }),
        Ok((Err(error), _)) => Err(failure(format!("the task does not serialise: {error}"), false)),
        Err(panic) => Err(failure(panic_text(&*panic), true)),
    }
}

unsafe fn deliver<T: Task>(header: NonNull<Header>, delivery: Delivery) {
    // SAFETY: the caller took the lease out of the table, or is the exporter.
    let slot = unsafe { slot::<T>(header) };
    // SAFETY: as above, nobody else writes the outcome.
    unsafe { (*slot.finish.get()).write(Finish::Elsewhere(delivery, Instant::now())) };
    slot.header.state.store(state::DELIVERED, Ordering::SeqCst);
}

unsafe fn discard<T: Task>(header: NonNull<Header>) {
    // SAFETY: the owner holds the slot and its task was not taken.
    drop(unsafe { slot::<T>(header).take_task() });
}

unsafe fn forget<T: Task>(header: NonNull<Header>) {
    // SAFETY: the owner holds the slot, its state is `DONE` or `DELIVERED`, and the outcome was not taken.
    let slot = unsafe { slot::<T>(header) };
    if slot.header.state.load(Ordering::Acquire) == state::DELIVERED {
        // SAFETY: in `DELIVERED` the task value is still there.
        drop(unsafe { slot.take_task() });
    }
    // SAFETY: the outcome is written in both states.
    drop(unsafe { (*slot.finish.get()).assume_init_read() });
}

/// Keeps the output of a finished task of a tree that stops because its node leaves.
pub(crate) fn keep_output<T: Task>(base: &Base, path: TaskPath, output: &T::Output) {
    keep::<T>(base, path, output, usize::MAX);
}

/// Keeps the output of a finished task of a tree that goes on, if there is room. Whether it is kept.
pub(crate) fn keep_beforehand<T: Task>(base: &Base, path: TaskPath, output: &T::Output) -> bool {
    keep::<T>(base, path, output, KEPT_BYTES)
}

fn keep<T: Task>(base: &Base, path: TaskPath, output: &T::Output, bytes_max: usize) -> bool {
    // What does not serialise cannot be stolen either, and is computed again.
    let encode = AssertUnwindSafe(|| wire::encode_payload(output));
    let Ok(Ok(output)) = catch_unwind(encode) else { return false };
    let name = wire_name(T::NAME, T::BATCH);
    base.keep(Kept { path, name, output }, bytes_max)
}

unsafe fn save<T: Task>(header: NonNull<Header>, base: &Base) {
    // SAFETY: as in `forget`.
    let slot = unsafe { slot::<T>(header) };
    // SAFETY: the outcome is written and was not taken; nobody else touches the slot.
    if let Finish::Here(Ok(output)) = unsafe { (*slot.finish.get()).assume_init_ref() } {
        // SAFETY: the slot is in the caller's hands.
        keep_output::<T>(base, unsafe { slot.header.path() }, output);
    }
    // SAFETY: by the contract.
    unsafe { forget::<T>(header) };
}

impl VTable {
    /// # Safety
    /// The slot is in the caller's hands; afterwards it is not.
    pub(crate) unsafe fn run(header: NonNull<Header>, worker: &Worker) {
        // SAFETY: by the contract.
        unsafe { (header.as_ref().vtable.run)(header, worker) }
    }

    /// # Safety
    /// The slot is in the caller's hands.
    pub(crate) unsafe fn encode(header: NonNull<Header>) -> Result<Encoded, Failure> {
        // SAFETY: by the contract.
        unsafe { (header.as_ref().vtable.encode)(header) }
    }

    /// Writes the outcome and the state `DELIVERED`; afterwards the slot may be gone. Whom to wake must be read before.
    ///
    /// # Safety
    /// The slot is in the caller's hands; afterwards it is not.
    pub(crate) unsafe fn deliver(header: NonNull<Header>, delivery: Delivery) {
        // SAFETY: by the contract.
        unsafe { (header.as_ref().vtable.deliver)(header, delivery) }
    }

    /// # Safety
    /// The caller owns the slot and took its pointer out of its place (or abandoned its lease) before the task was run.
    pub(crate) unsafe fn discard(header: NonNull<Header>) {
        // SAFETY: by the contract.
        unsafe { (header.as_ref().vtable.discard)(header) }
    }

    /// # Safety
    /// The caller owns the slot, its state is `DONE` or `DELIVERED`, and its outcome was not taken.
    pub(crate) unsafe fn forget(header: NonNull<Header>) {
        // SAFETY: by the contract.
        unsafe { (header.as_ref().vtable.forget)(header) }
    }

    /// As [`VTable::forget`]; an output that was computed on this node is kept in the tree's base. (One that came from another
    /// node is among the engine's results.)
    ///
    /// # Safety
    /// As [`VTable::forget`].
    pub(crate) unsafe fn save(header: NonNull<Header>, base: &Base) {
        // SAFETY: by the contract.
        unsafe { (header.as_ref().vtable.save)(header, base) }
    }
}
