//! Join slots: child tasks in their parents' stack frames (spawned children: in boxes).
//!
//! # Owner and holder
//!
//! - The *owner* of a slot is the compute thread that created it in its frame, and that waits for
//!   its task. It never changes; [`SlotHeader::owner`] is its index.
//! - The *holder* of a slot is the one party that has its pointer: a deque, the injector, the lease
//!   table, or a thread. It changes with each move of the pointer. Before a final state, only
//!   the holder accesses the task.
//!
//! # States, and the parties that may change them
//!
//! | state | meaning | next state |
//! | --- | --- | --- |
//! | `QUEUED` | a deque or the injector holds the pointer | set by the party that takes it out |
//! | `RUNNING` | a thread of this pool runs the task | that thread: `DONE` |
//! | `EXPORTING` | a thread outside the pool encodes the task | `LEASED`, or `DELIVERED` on error |
//! | `LEASED` | the task is executed elsewhere | `DELIVERED`, `QUEUED`, `ABANDONED` |
//! | `DONE` | the outcome is written, the task is consumed | final; the slot is the owner's |
//! | `DELIVERED` | the outcome is written, the task remains | final; the slot is the owner's |
//! | `ABANDONED` | the owner removed the lease; the task remains | final; the slot is the owner's |
//!
//! Every change of `LEASED` happens after the lease was removed under the lock of the lease table.
//! A returned or reclaimed task becomes `QUEUED`.
//!
//! # Why no thread accesses a slot after its frame is gone
//!
//! At most one place holds a slot's pointer at a time: a deque, the injector, the lease table, or
//! one thread. A thread dereferences the pointer only after it has removed it from its place. That
//! thread is then the holder, so no stale pointer is ever followed. A value of [`HeldSlot`] proves
//! that the thread with this value is the holder, and that the task is in the slot.
//!
//! The owner leaves the frame only in the states `DONE`, `DELIVERED` and `ABANDONED`, or after it
//! has removed the pointer itself. A thread that finishes a slot stores the state as its last
//! access. Earlier, it reads everything that it needs afterwards, such as the thread to wake.
//!
//! A party changes the state `LEASED` only after it has removed the entry under the lease table's
//! lock: for delivery, return or abandonment. So no writer is active once the owner has seen a
//! final state.

use std::mem::MaybeUninit;
use std::ptr::NonNull;

use super::frame::{Place, TaskFrame};
use super::layer::{ComputeThread, Fork, TaskContext};
use super::scope::Scope;
use super::sync::{AtomicU32, Ordering, UnsafeCell};

const QUEUED: u32 = 0;
const RUNNING: u32 = 1;
const EXPORTING: u32 = 2;
const LEASED: u32 = 3;
const DONE: u32 = 4;
const DELIVERED: u32 = 5;
const ABANDONED: u32 = 6;

/// The state of a slot, as its owner reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// In a deque or the injector, or taken out of it by a party that starts.
    Queued,
    /// A party encodes the task for a lease.
    Exporting,
    /// A thread of this pool runs the task.
    Running {
        thread: u32,
    },
    /// The task is leased; the index is that in the lease table.
    Leased {
        index: u32,
    },
    Done,
    Delivered,
    Abandoned,
}

impl State {
    /// Whether the state is final: no other party accesses the slot any more.
    pub(crate) fn is_final(self) -> bool {
        matches!(self, Self::Done | Self::Delivered | Self::Abandoned)
    }
}

/// The word that the parties of a slot share, with its changes.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct SlotState {
    state: AtomicU32,
    /// In `RUNNING`: the thread that runs the task, for leapfrogging. In `LEASED`: the index in the
    /// lease table.
    location: AtomicU32,
}

impl SlotState {
    #[inline(always)]
    pub(crate) fn new() -> Self {
        Self { state: AtomicU32::new(QUEUED), location: AtomicU32::new(0) }
    }

    #[inline]
    pub(crate) fn load(&self) -> State {
        match self.state.load(Ordering::Acquire) {
            RUNNING => State::Running { thread: self.location.load(Ordering::Relaxed) },
            LEASED => State::Leased { index: self.location.load(Ordering::Relaxed) },
            DONE => State::Done,
            DELIVERED => State::Delivered,
            ABANDONED => State::Abandoned,
            EXPORTING => State::Exporting,
            _ => State::Queued,
        }
    }

    /// The holder starts the task on this thread.
    fn start(&self, thread: u32) {
        self.location.store(thread, Ordering::Relaxed);
        self.state.store(RUNNING, Ordering::Release);
    }

    /// The holder has written the outcome and gives the slot up.
    fn finish(&self) {
        self.state.store(DONE, Ordering::SeqCst);
    }

    /// The holder is about to encode the task.
    pub(super) fn export(&self) {
        self.state.store(EXPORTING, Ordering::Relaxed);
    }

    /// The holder puts the pointer into this entry of the lease table, whose lock it holds.
    pub(super) fn lease(&self, index: u32) {
        self.location.store(index, Ordering::Relaxed);
        self.state.store(LEASED, Ordering::SeqCst);
    }

    /// The holder has written a delivery and gives the slot up.
    fn deliver(&self) {
        self.state.store(DELIVERED, Ordering::SeqCst);
    }

    /// The holder, who removed the lease, is about to put the pointer into the injector.
    pub(super) fn requeue(&self) {
        self.state.store(QUEUED, Ordering::SeqCst);
    }

    /// The owner has removed the lease, or the pointer, and waits for the task no more.
    pub(super) fn abandon(&self) {
        self.state.store(ABANDONED, Ordering::Release);
    }
}

/// The operations of a slot that depend on its task's type.
struct VTable<W: ComputeThread> {
    about: &'static W::About,
    /// Runs the task on this worker, then writes the outcome and the final state.
    run: unsafe fn(NonNull<SlotHeader<W>>, &W),
    /// Encodes the task, which stays in the slot.
    encode: unsafe fn(NonNull<SlotHeader<W>>) -> W::Encoded,
    /// Writes the end of a task that was executed elsewhere.
    deliver: unsafe fn(NonNull<SlotHeader<W>>, W::Delivery),
    /// Drops a task that was not run.
    discard: unsafe fn(NonNull<SlotHeader<W>>),
    /// Drops the outcome; an output that this pool computed is first passed to the layer.
    forget: unsafe fn(NonNull<SlotHeader<W>>, &W),
}

/// The part of a slot that does not depend on its task's type.
#[repr(C)]
pub struct SlotHeader<W: ComputeThread> {
    pub(super) state: SlotState,
    /// The thread that waits for the task.
    pub(super) owner: u32,
    /// The index among the parent's children.
    pub(super) index: u32,
    parent: *const TaskFrame<W>,
    vtable: &'static VTable<W>,
}

impl<W: ComputeThread> SlotHeader<W> {
    /// The frame of the parent, which waits for the slot's task.
    pub(super) fn parent(&self) -> &TaskFrame<W> {
        // SAFETY: `JoinSlot::new` got the frame of a task that waits for the slot's task, so the
        // frame is alive as long as the slot.
        unsafe { &*self.parent }
    }

    pub(super) fn place(&self) -> Place<'_, W> {
        self.parent().child_place(self.index)
    }

    /// The description of the task's type.
    pub(super) fn about(&self) -> &'static W::About {
        self.vtable.about
    }
}

enum Completion<O, D> {
    Local(O),
    Remote(D),
}

type CompletionOf<W, T> = Completion<
    Result<<T as Fork<W>>::Output, <W as ComputeThread>::Stop>,
    <W as ComputeThread>::Delivery,
>;

#[repr(C)]
pub(super) struct JoinSlot<W: ComputeThread, T: Fork<W>> {
    /// The first field, so that a pointer to the slot is a pointer to its header.
    header: SlotHeader<W>,
    task: UnsafeCell<MaybeUninit<T>>,
    completion: UnsafeCell<MaybeUninit<CompletionOf<W, T>>>,
}

impl<W: ComputeThread, T: Fork<W>> JoinSlot<W, T> {
    const VTABLE: VTable<W> = VTable {
        about: T::ABOUT,
        run: run::<W, T>,
        encode: encode::<W, T>,
        deliver: deliver::<W, T>,
        discard: discard::<W, T>,
        forget: forget::<W, T>,
    };

    /// A slot of child `index` of the task in `parent`, owned by the thread `owner`. The parent
    /// waits for the child.
    #[inline(always)]
    pub(super) fn new(task: T, parent: &TaskFrame<W>, index: u32, owner: u32) -> Self {
        Self {
            header: SlotHeader {
                state: SlotState::new(),
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
    pub(super) fn pointer(&self) -> NonNull<SlotHeader<W>> {
        NonNull::from(self).cast()
    }

    #[inline(always)]
    pub(super) fn header(&self) -> &SlotHeader<W> {
        &self.header
    }

    /// Moves the task out of the slot.
    ///
    /// # Safety
    /// The caller holds the slot, and its task is still in it.
    #[inline(always)]
    pub(super) unsafe fn take_task(&self) -> T {
        // SAFETY: by the contract no other thread accesses the cell, and it is initialised.
        self.task.with(|task| unsafe { (*task).assume_init_read() })
    }

    /// The outcome, decoded if the task was executed elsewhere.
    ///
    /// # Safety
    /// The caller owns the slot, its state is `DONE` or `DELIVERED`, and this is called once.
    pub(super) unsafe fn take_outcome(&self, worker: &W) -> Result<T::Output, W::Stop> {
        if self.header.state.load() == State::Delivered {
            // SAFETY: in `DELIVERED` the task value is still there, and only the owner accesses the
            // slot.
            drop(unsafe { self.take_task() });
        }
        // SAFETY: both states mean that the outcome is written; the acquire load above orders it
        // before this read.
        match self.completion.with(|written| unsafe { (*written).assume_init_read() }) {
            Completion::Local(outcome) => outcome.inspect_err(|_| worker.received_stop()),
            Completion::Remote(delivery) => T::decode(delivery, worker),
        }
    }
}

#[cfg(all(test, feature = "loom"))]
impl<W: ComputeThread, T: Fork<W>> JoinSlot<W, T> {
    /// The delivered end of the task.
    ///
    /// # Safety
    /// As [`JoinSlot::take_outcome`], in `DELIVERED`.
    pub(super) unsafe fn take_delivery(&self) -> W::Delivery {
        // SAFETY: by the contract.
        match self.completion.with(|written| unsafe { (*written).assume_init_read() }) {
            Completion::Remote(delivery) => delivery,
            Completion::Local(_) => panic!("the task ran here"),
        }
    }
}

/// # Safety
/// The caller holds the slot of the header.
unsafe fn slot<'a, W: ComputeThread, T: Fork<W>>(
    header: NonNull<SlotHeader<W>>,
) -> &'a JoinSlot<W, T> {
    // SAFETY: headers in deques come from `JoinSlot::<T>::pointer`, and the vtable belongs to the
    // same `T`.
    unsafe { header.cast::<JoinSlot<W, T>>().as_ref() }
}

/// Aborts the process if it is dropped while the stack unwinds.
struct AbortGuard;

impl Drop for AbortGuard {
    fn drop(&mut self) {
        std::process::abort();
    }
}

unsafe fn run<W: ComputeThread, T: Fork<W>>(header: NonNull<SlotHeader<W>>, worker: &W) {
    // SAFETY: the caller holds the slot.
    let slot = unsafe { slot::<W, T>(header) };
    let core = worker.core();
    slot.header.state.start(core.index());
    // SAFETY: as above; a held slot has its task.
    let task = unsafe { slot.take_task() };
    let frame = TaskFrame::child(slot.header.parent, slot.header.index);
    // An unwinding stack would leave the slot without an outcome.
    let guard = AbortGuard;
    let context = W::Context::new(Scope::new(frame, worker));
    let outcome = task.run_taken(&context);
    drop(context);
    std::mem::forget(guard);
    // SAFETY: only this thread may write the outcome in `RUNNING`.
    slot.completion.with_mut(|written| unsafe { (*written).write(Completion::Local(outcome)) });
    let owner = slot.header.owner;
    slot.header.state.finish();
    // From here on the slot may be freed.
    core.pool().wake_owner(owner, Some(core.index()));
}

unsafe fn encode<W: ComputeThread, T: Fork<W>>(header: NonNull<SlotHeader<W>>) -> W::Encoded {
    // SAFETY: the caller holds the slot.
    let slot = unsafe { slot::<W, T>(header) };
    // SAFETY: a held slot has its task, and only the holder accesses it.
    slot.task.with(|task| unsafe { (*task).assume_init_ref() }.encode(slot.header.place()))
}

unsafe fn deliver<W: ComputeThread, T: Fork<W>>(
    header: NonNull<SlotHeader<W>>,
    delivery: W::Delivery,
) {
    // SAFETY: the caller holds the slot, so no other thread writes the outcome.
    let slot = unsafe { slot::<W, T>(header) };
    // SAFETY: as above.
    slot.completion.with_mut(|written| unsafe { (*written).write(Completion::Remote(delivery)) });
    slot.header.state.deliver();
}

unsafe fn discard<W: ComputeThread, T: Fork<W>>(header: NonNull<SlotHeader<W>>) {
    // SAFETY: the owner holds the slot, and its task is still there.
    drop(unsafe { slot::<W, T>(header).take_task() });
}

unsafe fn forget<W: ComputeThread, T: Fork<W>>(header: NonNull<SlotHeader<W>>, worker: &W) {
    // SAFETY: the owner holds the slot, its state is `DONE` or `DELIVERED`, and the outcome is
    // still there.
    let slot = unsafe { slot::<W, T>(header) };
    if slot.header.state.load() == State::Delivered {
        // SAFETY: in `DELIVERED` the task value is still there.
        drop(unsafe { slot.take_task() });
    }
    // SAFETY: the outcome is written in both states, and no other thread accesses the slot.
    let outcome = slot.completion.with(|written| unsafe { (*written).assume_init_read() });
    if let Completion::Local(Ok(output)) = &outcome {
        T::left_over(worker, slot.header.place(), output, None);
    }
}

/// Runs the task of a slot whose pointer the caller took out of a deque, and gives it up.
///
/// # Safety
/// The caller holds the slot, with its task.
pub(super) unsafe fn run_slot<W: ComputeThread>(header: NonNull<SlotHeader<W>>, worker: &W) {
    // SAFETY: by the contract.
    unsafe { (header.as_ref().vtable.run)(header, worker) }
}

/// Drops the task of a slot that was not run.
///
/// # Safety
/// The caller owns the slot. It removed the pointer from its place, or abandoned the lease.
pub(super) unsafe fn discard_task<W: ComputeThread>(header: NonNull<SlotHeader<W>>) {
    // SAFETY: by the contract.
    unsafe { (header.as_ref().vtable.discard)(header) }
}

/// Drops the outcome of a slot; an output that this pool computed is first passed to the layer.
///
/// # Safety
/// The caller owns the slot, its state is `DONE` or `DELIVERED`, and its outcome is still there.
pub(super) unsafe fn forget_outcome<W: ComputeThread>(header: NonNull<SlotHeader<W>>, worker: &W) {
    // SAFETY: by the contract.
    unsafe { (header.as_ref().vtable.forget)(header, worker) }
}

/// A slot that this value holds, with the task in it. If it is dropped and not given back, the
/// parent of the task waits forever.
#[must_use = "a task waits for the slot"]
pub struct HeldSlot<W: ComputeThread>(NonNull<SlotHeader<W>>);

// SAFETY: the value is the only one that gives access to the slot, and tasks, their outputs and
// deliveries are `Send`. The frames and the tree that it reads are immutable and `Sync`.
unsafe impl<W: ComputeThread> Send for HeldSlot<W> {}

impl<W: ComputeThread> HeldSlot<W> {
    /// # Safety
    /// The caller holds the slot of the pointer, with its task, and gives it to this value.
    pub(super) unsafe fn new(pointer: NonNull<SlotHeader<W>>) -> Self {
        Self(pointer)
    }

    pub(super) fn pointer(&self) -> NonNull<SlotHeader<W>> {
        self.0
    }

    pub(super) fn header(&self) -> &SlotHeader<W> {
        // SAFETY: a held slot is alive.
        unsafe { self.0.as_ref() }
    }

    /// The description of the task's type.
    pub fn about(&self) -> &'static W::About {
        self.header().about()
    }

    /// The place of the task in its tree.
    pub fn place(&self) -> Place<'_, W> {
        self.header().place()
    }

    /// Encodes the task, which stays in the slot.
    pub fn encode(&self) -> W::Encoded {
        // SAFETY: the slot is held, with its task.
        unsafe { (self.header().vtable.encode)(self.0) }
    }

    /// Marks the task as about to be leased.
    pub fn export(&self) {
        self.header().state.export();
    }

    /// Runs the task on this thread.
    pub(super) fn run(self, worker: &W) {
        // SAFETY: the slot is held, with its task.
        unsafe { run_slot(self.0, worker) }
    }

    /// Writes the end of the task and gives the slot up. Returns its owner, who has to be woken.
    pub(super) fn deliver(self, delivery: W::Delivery) -> u32 {
        let owner = self.header().owner;
        // SAFETY: the slot is held; it is not accessed afterwards.
        unsafe { (self.header().vtable.deliver)(self.0, delivery) };
        owner
    }
}
