//! Join slots: child tasks in their parents' stack frames (spawned children: in boxes), and the
//! frames that locate them.
//!
//! # States, and the parties that may change them
//!
//! | state | meaning | next state |
//! | --- | --- | --- |
//! | `QUEUED` | a deque or the injector holds the pointer | set by the party that takes it out |
//! | `RUNNING` | a thread of this node runs the task | that thread: `DONE` |
//! | `EXPORTING` | the endpoint's thread encodes the task | `LEASED`, or `DELIVERED` on error |
//! | `LEASED` | another node holds a lease on the task | `DELIVERED`, `QUEUED`, `ABANDONED` |
//! | `DONE` | the outcome is written, the task is consumed | final; the slot is the owner's |
//! | `DELIVERED` | the outcome is written, the task remains | final; the slot is the owner's |
//! | `ABANDONED` | the owner removed the lease; the task remains | final; the slot is the owner's |
//!
//! Every change of `LEASED` happens under the lock of the lease table. A returned or reclaimed task
//! becomes `QUEUED`.
//!
//! # Why no thread accesses a slot after its frame is gone
//!
//! At most one place holds a slot's pointer at a time: a deque, the injector, the lease table, or
//! one thread. A thread dereferences the pointer only after it has removed it from its place. That
//! thread is then the only holder, so no stale pointer is ever followed.
//!
//! The owner leaves the frame only in the states `DONE`, `DELIVERED` and `ABANDONED`, or after it
//! has removed the pointer itself. A thread that finishes a slot stores the state as its last
//! access. Earlier, it reads everything that it needs afterwards, such as the thread to wake.
//!
//! A party changes the state `LEASED` only under the lease table's lock, after it has removed the
//! entry: for delivery, return or abandonment. So no writer is active once the owner has seen a
//! final state.

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
use crate::work::recover::{Identity, KeptOutput, KeptOutputs, PartialResults, Place, Start};
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

    /// Whether the state is final: no other party accesses the slot any more.
    pub(crate) fn is_final(state: u32) -> bool {
        (DONE..=ABANDONED).contains(&state)
    }
}

/// The base of a tree of tasks on this node: the job's root, or a task stolen from another node.
#[derive(Debug)]
pub(crate) struct Base {
    /// The top task's path.
    pub(crate) path: TaskPath,
    /// The top task's name.
    pub(crate) name: &'static str,
    /// The start of the job's root that the tree belongs to.
    pub(crate) start: Start,
    /// Whether this tree must stop.
    pub(crate) halted: AtomicBool,
    /// The reason of the halt; valid once `halted` is set.
    pub(crate) reason: AtomicU32,
    /// The thread that runs the top task; [`NO_THREAD`] until one starts.
    thread: AtomicU32,
    /// Partial results, kept in case the tree stops because the node leaves.
    results: Mutex<TreeResults>,
    /// State of the root's checkpoints; unused in other trees.
    pub(crate) root: RootMarks,
}

/// Partial results of an unfinished tree.
#[derive(Debug, Default)]
struct TreeResults {
    kept: KeptOutputs,
    leased: Vec<Place>,
    /// Tasks whose code received a halt. It may have swallowed the halt, so the outputs of these
    /// tasks and their ancestors are invalid.
    halted: BTreeSet<TaskPath>,
}

/// The most bytes of outputs that are kept while a tree runs. Outputs saved when it stops have no
/// limit.
const KEPT_BYTES: usize = 16 << 20;

/// The value of [`Base::thread`] for no thread.
const NO_THREAD: u32 = u32::MAX;

impl Base {
    pub(crate) fn new(path: TaskPath, name: &'static str, start: Start) -> Self {
        Self {
            path,
            name,
            start,
            halted: AtomicBool::new(false),
            reason: AtomicU32::new(0),
            thread: AtomicU32::new(NO_THREAD),
            results: Mutex::default(),
            root: RootMarks::default(),
        }
    }

    fn results(&self) -> MutexGuard<'_, TreeResults> {
        // Entries are added whole, so a poisoned lock is safe to use.
        self.results.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps the output of a finished task and drops the kept outputs of its descendants. Returns
    /// whether it is kept.
    ///
    /// Outputs of tasks at or above a halted task are refused, since they may be incomplete.
    fn keep(&self, kept: KeptOutput, bytes_max: usize) -> bool {
        let mut results = self.results();
        let halted = results.halted.range(kept.path.clone()..).next();
        let valid = halted.is_none_or(|halted| !halted.is_at_or_below(&kept.path));
        valid && results.kept.keep(kept, bytes_max)
    }

    /// Records a task of the tree that continues at another node.
    pub(crate) fn add_leased(&self, place: Place) {
        self.results().leased.push(place);
    }

    /// Records that the code of this task received a halt.
    pub(crate) fn record_halt(&self, path: TaskPath) {
        self.results().halted.insert(path);
    }

    /// The outputs kept so far, for a successor that restarts the tree while it still runs.
    pub(crate) fn kept(&self) -> Vec<KeptOutput> {
        self.results().kept.iter().cloned().collect()
    }

    /// Takes the partial results.
    pub(crate) fn take_results(&self) -> PartialResults {
        let TreeResults { kept, leased, .. } = std::mem::take(&mut *self.results());
        PartialResults { kept: kept.into_vec(), leased }
    }

    /// Records the thread that starts the top task.
    pub(crate) fn begin(&self, thread: u32) {
        self.thread.store(thread, Ordering::Relaxed);
    }

    /// The thread that runs the top task.
    pub(crate) fn thread(&self) -> Option<u32> {
        Some(self.thread.load(Ordering::Relaxed)).filter(|thread| *thread != NO_THREAD)
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

/// A running task's place in the tree. Immutable, so an exporter may traverse it while the task
/// runs. The frames above a slot are alive as long as the slot, since each waits for the one below.
///
/// It consists of two full words because every join writes two frames. A narrower store followed by
/// a wide load stalls each join by some 15 cycles (measured: 70 % of the time of `fib`).
pub(crate) struct Frame {
    /// The parent's frame, or the base for the top task of a tree.
    parent: *const (),
    /// The index among the parent's children; [`TOP`] for the top task.
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

    /// Turns this into the frame of another child of the same parent.
    #[inline(always)]
    pub(crate) fn renew(&mut self, index: u32) {
        self.index = index.into();
    }

    /// The parent's frame, or the base of the tree.
    ///
    /// # Safety
    /// The frames above are alive. This holds for a frame of the calling task, and for the parent
    /// of a slot that the caller holds.
    unsafe fn parent_or_base(&self) -> Result<&Frame, &Base> {
        // SAFETY: only `top` and `child` construct frames, and `index` distinguishes the two. The
        // parent is alive by the contract, and a base outlives every frame of its tree.
        if self.index == TOP {
            Err(unsafe { &*self.parent.cast::<Base>() })
        } else {
            Ok(unsafe { &*self.parent.cast::<Frame>() })
        }
    }

    /// The parent's frame; `None` for a tree's top task.
    ///
    /// # Safety
    /// As [`Frame::path`].
    pub(crate) unsafe fn parent(&self) -> Option<&Frame> {
        // SAFETY: by the contract.
        unsafe { self.parent_or_base() }.ok()
    }

    /// The index among the parent's children. With the frame's address it identifies the task while
    /// the parent runs.
    pub(crate) fn index(&self) -> u64 {
        self.index
    }

    /// The base of the tree, if this is the frame of the job's root.
    ///
    /// # Safety
    /// As [`Frame::path`].
    pub(crate) unsafe fn root(&self) -> Option<&Base> {
        // SAFETY: by the contract. Every other top task was a child, so its path is not empty.
        unsafe { self.parent_or_base() }.err().filter(|base| base.path.0.is_empty())
    }

    /// The base of the frame's tree.
    ///
    /// # Safety
    /// As [`Frame::path`].
    pub(crate) unsafe fn base(&self) -> &Base {
        let mut frame = self;
        loop {
            // SAFETY: by the contract.
            match unsafe { frame.parent_or_base() } {
                Ok(parent) => frame = parent,
                Err(base) => return base,
            }
        }
    }

    /// Whether the paths of this task's children have at most `depth` elements.
    ///
    /// # Safety
    /// As [`Frame::path`].
    pub(crate) unsafe fn is_above(&self, depth: usize) -> bool {
        let (mut frame, mut below) = (self, 1);
        while below <= depth {
            // SAFETY: by the contract.
            match unsafe { frame.parent_or_base() } {
                Ok(parent) => (frame, below) = (parent, below + 1),
                Err(base) => return base.path.0.len() + below <= depth,
            }
        }
        false
    }

    /// The path of the task in this frame.
    ///
    /// # Safety
    /// The frames above are alive. This holds for a frame of the calling task, and for the parent
    /// of a slot that the caller holds.
    pub(crate) unsafe fn path(&self) -> TaskPath {
        let mut indices = Vec::new();
        let mut frame = self;
        loop {
            // SAFETY: by the contract.
            match unsafe { frame.parent_or_base() } {
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

/// The operations of a slot that depend on its task's type.
pub(crate) struct VTable {
    pub(crate) name: &'static str,
    pub(crate) batch: bool,
    /// Runs the task on this worker, then writes the outcome and the final state.
    run: unsafe fn(NonNull<Header>, &Worker),
    /// Encodes the task, which stays in the slot.
    encode: unsafe fn(NonNull<Header>) -> Result<Encoded, Failure>,
    /// Writes a failure, or an outcome that arrived as bytes.
    deliver: unsafe fn(NonNull<Header>, Delivery),
    /// Drops a task that was not run.
    discard: unsafe fn(NonNull<Header>),
    /// Drops the outcome.
    forget: unsafe fn(NonNull<Header>),
    /// As `forget`, but first keeps an output in the base.
    save: unsafe fn(NonNull<Header>, &Base),
}

/// A task as it travels between nodes.
#[derive(Debug)]
pub struct Encoded {
    pub(crate) body: Bytes,
    pub(crate) needs: Vec<Need>,
    pub(crate) start: Start,
}

impl Encoded {
    /// The identity of the task with this path and name.
    pub(crate) fn identity(&self, path: TaskPath, name: &str) -> Identity {
        Identity::of(path, name, &self.body, &self.needs, self.start)
    }
}

/// The end of a leased task as the thief reports it.
pub(crate) type Delivery = Result<Bytes, Failure>;

#[repr(C)]
pub(crate) struct Header {
    pub(crate) state: AtomicU32,
    /// In `RUNNING`: the thread that runs the task, for leapfrogging. In `LEASED`: the index in the
    /// lease table.
    pub(crate) holder: AtomicU32,
    /// The thread that waits for the task.
    pub(crate) owner: u32,
    /// The index among the parent's children.
    pub(crate) index: u32,
    pub(crate) parent: *const Frame,
    pub(crate) vtable: &'static VTable,
}

impl Header {
    /// The path of the slot's task.
    ///
    /// # Safety
    /// The caller holds the slot.
    pub(crate) unsafe fn path(&self) -> TaskPath {
        // SAFETY: by the contract the slot is alive, and so are its parent's frame and the frames
        // above.
        unsafe { Frame::child(self.parent, self.index).path() }
    }

    /// The base of the slot's tree.
    ///
    /// # Safety
    /// The caller holds the slot.
    pub(crate) unsafe fn base(&self) -> &Base {
        // SAFETY: by the contract.
        unsafe { (*self.parent).base() }
    }
}

enum Completion<O> {
    Local(Result<O, Stop>),
    /// A delivery from another node, and the time of its arrival.
    Remote(Delivery, Instant),
}

#[repr(C)]
pub(crate) struct Slot<T: Task> {
    /// The first field, so that a pointer to the slot is a pointer to its header.
    header: Header,
    task: UnsafeCell<MaybeUninit<T>>,
    completion: UnsafeCell<MaybeUninit<Completion<T::Output>>>,
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
            completion: UnsafeCell::new(MaybeUninit::uninit()),
        }
    }

    /// The pointer for deques; it may be cast back to the whole slot.
    #[inline(always)]
    pub(crate) fn pointer(&self) -> NonNull<Header> {
        NonNull::from(self).cast()
    }

    #[inline(always)]
    pub(crate) fn header(&self) -> &Header {
        &self.header
    }

    /// Moves the task out of the slot.
    ///
    /// # Safety
    /// The caller holds the slot, and its task is still in it.
    #[inline(always)]
    pub(crate) unsafe fn take_task(&self) -> T {
        // SAFETY: by the contract no other thread accesses the cell, and it is initialised.
        unsafe { (*self.task.get()).assume_init_read() }
    }

    /// The outcome, decoded if it arrived as bytes. Reports to the observer how long it waited
    /// there.
    ///
    /// # Safety
    /// The caller owns the slot, its state is `DONE` or `DELIVERED`, and this is called once.
    pub(crate) unsafe fn take_outcome(&self, worker: &Worker) -> Result<T::Output, Stop> {
        if self.header.state.load(Ordering::Acquire) == state::DELIVERED {
            // SAFETY: in `DELIVERED` the task value is still there, and only the owner accesses the
            // slot.
            drop(unsafe { self.take_task() });
        }
        // SAFETY: both states mean that the outcome is written; the acquire load above orders it
        // before this read.
        match unsafe { (*self.completion.get()).assume_init_read() } {
            Completion::Local(outcome) => outcome.inspect_err(|_| worker.count_halt()),
            Completion::Remote(Err(failure), _) => Err(Stop::failure(failure)),
            Completion::Remote(Ok(body), at) => {
                worker.shared().observer.join_delayed(at.elapsed());
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
/// The caller holds the slot of the header.
unsafe fn slot<'a, T: Task>(header: NonNull<Header>) -> &'a Slot<T> {
    // SAFETY: headers in deques come from `Slot::<T>::pointer`, and the vtable belongs to the same
    // `T`.
    unsafe { header.cast::<Slot<T>>().as_ref() }
}

unsafe fn run<T: Task>(header: NonNull<Header>, worker: &Worker) {
    // SAFETY: the caller removed the pointer from its place.
    let slot = unsafe { slot::<T>(header) };
    slot.header.holder.store(worker.index(), Ordering::Relaxed);
    slot.header.state.store(state::RUNNING, Ordering::Release);
    // SAFETY: as above; a queued slot holds its task.
    let task = unsafe { slot.take_task() };
    let frame = Frame::child(slot.header.parent, slot.header.index);
    let outcome = run_caught(task, frame, worker);
    // SAFETY: only this thread may write the outcome in `RUNNING`.
    unsafe { (*slot.completion.get()).write(Completion::Local(outcome)) };
    let owner = slot.header.owner;
    slot.header.state.store(state::DONE, Ordering::SeqCst);
    // From here on the slot may be freed.
    worker.shared().wake_owner(owner, worker.index());
}

/// Runs a task at the bottom of a thread's work: catches panics and discards the outcome of a
/// halted tree.
fn run_caught<T: Task>(task: T, frame: Frame, worker: &Worker) -> Result<T::Output, Stop> {
    let context = Context::new(frame, worker);
    let halted = || {
        // SAFETY: this thread holds the task's slot, so the frames above are alive.
        worker.shared().halted(|| unsafe { context.frame().base() })
    };
    if let Some(halt) = halted() {
        return Err(worker.stop(halt, context.frame()));
    }
    let halts = worker.halts_received();
    let outcome = catch_unwind(AssertUnwindSafe(|| worker.run_watched(&context, task)));
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
        Err(panic) => Err(Stop::failed(panic_text(&*panic), true)),
    }
    .map_err(|stop| {
        // SAFETY: as above.
        locate(stop, T::NAME, || unsafe { context.frame().path() })
    })
}

/// Fills in the task that failed, unless an inner task did so already.
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
    /// The innermost task that panicked, noted while the stack unwinds through its parent's frame.
    static PANICKED: std::cell::RefCell<Option<(TaskPath, &'static str)>> =
        const { std::cell::RefCell::new(None) };
}

/// Notes the task that panics; the first note is of the innermost task and stays.
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
    // SAFETY: the caller (the exporter) removed the pointer from its place.
    let slot = unsafe { slot::<T>(header) };
    // SAFETY: a queued slot holds its task, and only the exporter accesses it.
    let task = unsafe { (*slot.task.get()).assume_init_ref() };
    let failure = |message: String, panicked| Failure {
        name: T::NAME.to_owned(),
        // SAFETY: the exporter holds the slot.
        path: unsafe { slot.header.path() },
        message,
        panicked,
        located: true,
    };
    // SAFETY: the exporter holds the slot, so the frames above it and their base are alive.
    let start = unsafe { slot.header.base() }.start;
    match catch_unwind(AssertUnwindSafe(|| (wire::encode_payload(task), task.needs()))) {
        Ok((Ok(body), needs)) => Ok(Encoded { body, needs, start }),
        Ok((Err(error), _)) => Err(failure(format!("the task does not serialise: {error}"), false)),
        Err(panic) => Err(failure(panic_text(&*panic), true)),
    }
}

unsafe fn deliver<T: Task>(header: NonNull<Header>, delivery: Delivery) {
    // SAFETY: the caller removed the lease from the table, or is the exporter.
    let slot = unsafe { slot::<T>(header) };
    // SAFETY: as above, so no other thread writes the outcome.
    unsafe { (*slot.completion.get()).write(Completion::Remote(delivery, Instant::now())) };
    slot.header.state.store(state::DELIVERED, Ordering::SeqCst);
}

unsafe fn discard<T: Task>(header: NonNull<Header>) {
    // SAFETY: the owner holds the slot, and its task is still there.
    drop(unsafe { slot::<T>(header).take_task() });
}

unsafe fn forget<T: Task>(header: NonNull<Header>) {
    // SAFETY: the owner holds the slot, its state is `DONE` or `DELIVERED`, and the outcome is
    // still there.
    let slot = unsafe { slot::<T>(header) };
    if slot.header.state.load(Ordering::Acquire) == state::DELIVERED {
        // SAFETY: in `DELIVERED` the task value is still there.
        drop(unsafe { slot.take_task() });
    }
    // SAFETY: the outcome is written in both states.
    drop(unsafe { (*slot.completion.get()).assume_init_read() });
}

/// Keeps the output of a finished task when its tree stops because the node leaves.
pub(crate) fn keep_output<T: Task>(base: &Base, path: TaskPath, output: &T::Output) {
    keep::<T>(base, path, output, usize::MAX);
}

/// Keeps the output of a finished task while its tree still runs, if there is room. Returns whether
/// it is kept.
pub(crate) fn keep_early<T: Task>(base: &Base, path: TaskPath, output: &T::Output) -> bool {
    keep::<T>(base, path, output, KEPT_BYTES)
}

fn keep<T: Task>(base: &Base, path: TaskPath, output: &T::Output, bytes_max: usize) -> bool {
    // An output that cannot be encoded cannot be sent either, so its task is computed again.
    let encode = AssertUnwindSafe(|| wire::encode_payload(output));
    let Ok(Ok(output)) = catch_unwind(encode) else { return false };
    let name = wire_name(T::NAME, T::BATCH);
    base.keep(KeptOutput { path, name, output }, bytes_max)
}

unsafe fn save<T: Task>(header: NonNull<Header>, base: &Base) {
    // SAFETY: as in `forget`.
    let slot = unsafe { slot::<T>(header) };
    // SAFETY: the outcome is written and still there, and no other thread accesses the slot.
    if let Completion::Local(Ok(output)) = unsafe { (*slot.completion.get()).assume_init_ref() } {
        // SAFETY: the owner holds the slot.
        keep_output::<T>(base, unsafe { slot.header.path() }, output);
    }
    // SAFETY: by the contract.
    unsafe { forget::<T>(header) };
}

impl VTable {
    /// # Safety
    /// The caller holds the slot and gives it up.
    pub(crate) unsafe fn run(header: NonNull<Header>, worker: &Worker) {
        // SAFETY: by the contract.
        unsafe { (header.as_ref().vtable.run)(header, worker) }
    }

    /// # Safety
    /// The caller holds the slot.
    pub(crate) unsafe fn encode(header: NonNull<Header>) -> Result<Encoded, Failure> {
        // SAFETY: by the contract.
        unsafe { (header.as_ref().vtable.encode)(header) }
    }

    /// Writes the outcome and the state `DELIVERED`. The slot may be freed afterwards, so the
    /// caller reads its owner first.
    ///
    /// # Safety
    /// The caller holds the slot and gives it up.
    pub(crate) unsafe fn deliver(header: NonNull<Header>, delivery: Delivery) {
        // SAFETY: by the contract.
        unsafe { (header.as_ref().vtable.deliver)(header, delivery) }
    }

    /// # Safety
    /// The caller owns the slot. It removed the pointer from its place, or abandoned the lease, and
    /// the task was not run.
    pub(crate) unsafe fn discard(header: NonNull<Header>) {
        // SAFETY: by the contract.
        unsafe { (header.as_ref().vtable.discard)(header) }
    }

    /// # Safety
    /// The caller owns the slot, its state is `DONE` or `DELIVERED`, and its outcome is still
    /// there.
    pub(crate) unsafe fn forget(header: NonNull<Header>) {
        // SAFETY: by the contract.
        unsafe { (header.as_ref().vtable.forget)(header) }
    }

    /// As [`VTable::forget`], but first keeps an output that this node computed in the tree's base.
    /// Outputs of other nodes are in the engine's results.
    ///
    /// # Safety
    /// As [`VTable::forget`].
    pub(crate) unsafe fn save(header: NonNull<Header>, base: &Base) {
        // SAFETY: by the contract.
        unsafe { (header.as_ref().vtable.save)(header, base) }
    }
}
