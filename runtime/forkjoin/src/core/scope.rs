//! The scope of a running task: its frame, and its spawned children in boxed slots.

use std::any::TypeId;
use std::cell::{Cell, UnsafeCell};
use std::marker::PhantomPinned;
use std::ptr::NonNull;

use super::frame::TaskFrame;
use super::join::{self, lookup, take_final};
use super::layer::{ComputeThread, Fork};
use super::slot::{JoinSlot, SlotHeader};
use super::thread::{reclaim_or_drop, wait};

/// Ends a spawned child of the task in the frame; slots below the place stay in the deque.
type Finish<W> = unsafe fn(
    &W,
    &TaskFrame<W>,
    isize,
    NonNull<SlotHeader<W>>,
) -> Result<(), <W as ComputeThread>::Stop>;

struct Child<W: ComputeThread> {
    slot: NonNull<SlotHeader<W>>,
    task: TypeId,
    /// Waits, frees the box and returns the error of the outcome, if any.
    finish: Finish<W>,
    /// Reclaims the slot and frees the box.
    drop_child: unsafe fn(&W, isize, NonNull<SlotHeader<W>>),
}

/// The list of spawned children with its floor, boxed as a whole so that it takes one word in every
/// task's scope.
struct List<W: ComputeThread> {
    children: Vec<Option<Child<W>>>,
    /// The place of the first child in the thread's own deque; slots below belong to other tasks.
    floor: isize,
}

/// The scheduler's part of a running task's context.
///
/// It owns the task's spawned children until each is collected or dropped, oldest first. It is
/// neither `Send` nor `Sync`.
pub struct Scope<'w, W: ComputeThread> {
    frame: TaskFrame<W>,
    worker: &'w W,
    /// `None` if there are no children, as for most tasks.
    list: UnsafeCell<Option<Box<List<W>>>>,
    /// The next child's index.
    next_child: Cell<u32>,
    /// Children point to the frame, also while the scope is dropped. A mutable reference to a type
    /// that is not `Unpin` does not claim to be the only pointer.
    _pinned: PhantomPinned,
}

impl<'w, W: ComputeThread> Scope<'w, W> {
    #[inline(always)]
    pub(super) fn new(frame: TaskFrame<W>, worker: &'w W) -> Self {
        let (list, next_child) = (UnsafeCell::new(None), Cell::new(0));
        Self { frame, worker, list, next_child, _pinned: PhantomPinned }
    }

    /// Reuses the scope of a finished task for its parent's child `index`.
    #[inline(always)]
    pub(super) fn renew(&mut self, index: u32) {
        self.frame.renew(index);
        self.next_child.set(0);
    }

    /// The thread of the task.
    #[inline(always)]
    pub fn worker(&self) -> &'w W {
        self.worker
    }

    /// The frame of the task.
    #[inline(always)]
    pub fn frame(&self) -> &TaskFrame<W> {
        &self.frame
    }

    /// The index of the next child.
    pub fn next_child(&self) -> u32 {
        self.next_child.get()
    }

    /// Sets the index of the next child.
    pub fn number_from(&self, next_child: u32) {
        self.next_child.set(next_child);
    }

    #[inline(always)]
    fn indices(&self, children: u32) -> u32 {
        let index = self.next_child.get();
        self.next_child.set(index + children);
        index
    }

    /// Runs two children; another thread may run the second one.
    ///
    /// # Errors
    /// The first stop of the two, or that of the layer's hooks. Both have ended when this returns.
    #[inline(always)]
    pub fn join<A: Fork<W>, B: Fork<W>>(
        &self,
        a: A,
        b: B,
    ) -> Result<(A::Output, B::Output), W::Stop> {
        join::join(self.worker, &self.frame, self.indices(2), a, b)
    }

    /// Runs one child on this thread at once.
    ///
    /// # Errors
    /// The child's.
    #[inline]
    pub fn call<T: Fork<W>>(&self, task: T) -> Result<T::Output, W::Stop> {
        join::call(self.worker, &self.frame, self.indices(1), task)
    }

    /// The list, borrowed while no user code runs.
    #[expect(clippy::mut_from_ref, reason = "see the safety comment")]
    fn list(&self) -> &mut Option<Box<List<W>>> {
        // SAFETY: `Scope` is not `Sync` (it holds an `UnsafeCell`), and every use below ends before
        // other code runs that could access this `Scope` again.
        unsafe { &mut *self.list.get() }
    }

    /// Spawns a child. Returns its place in the list.
    pub fn spawn<T: Fork<W> + 'static>(&self, task: T) -> usize {
        let core = self.worker.core();
        let index = self.indices(1);
        let slot = Box::new(JoinSlot::new(task, &self.frame, index, core.index()));
        let slot: NonNull<SlotHeader<W>> = NonNull::from(Box::leak(slot)).cast();
        let floor = core.floor();
        let new = || Box::new(List { children: Vec::new(), floor });
        let list = &mut self.list().get_or_insert_with(new).children;
        list.push(Some(Child {
            slot,
            task: TypeId::of::<T>(),
            finish: finish::<W, T>,
            drop_child: drop_child::<W, T>,
        }));
        let at = list.len() - 1;
        core.me().counters.spawned.add(1);
        // SAFETY: no other thread has the pointer yet.
        if self.worker.looks_up(&self.frame) && unsafe { lookup(self.worker, slot) } {
            return at;
        }
        core.push(slot);
        if core.signals_after_push() != 0 {
            // The next join, sync or collect handles a halt.
            self.worker.handle_signals_of_spawn(&self.frame);
        }
        at
    }

    /// Waits for the child at this place, spawned as a `T`, and takes its outcome.
    ///
    /// # Errors
    /// The child's.
    ///
    /// # Panics
    /// If the child was taken already, or is no `T`: handles rule out both.
    pub fn take<T: Fork<W> + 'static>(&self, at: usize) -> Result<T::Output, W::Stop> {
        let child = self.list().as_mut().and_then(|list| list.children.get_mut(at)?.take());
        let child = child.expect("a handle is consumed when its child is collected");
        assert!(child.task == TypeId::of::<T>(), "a handle names the type it was spawned as");
        // SAFETY: the child was in the list, so it was not collected; by the assertion it is a `T`.
        unsafe { collect::<W, T>(self.worker, &self.frame, self.floor(), child.slot) }
    }

    /// Drops a child without its outcome. One that has not started never does, one that another
    /// node executes is abandoned, and for one on another thread this waits.
    ///
    /// # Panics
    /// If the child was taken already; handles rule that out.
    pub fn discard(&self, at: usize) {
        let child = self.list().as_mut().and_then(|list| list.children.get_mut(at)?.take());
        let child = child.expect("a handle is consumed when its child is dropped");
        // SAFETY: the child was in the list, so it was not collected.
        unsafe { (child.drop_child)(self.worker, self.floor(), child.slot) };
    }

    /// Whether the child at this place has an outcome or was taken.
    pub fn is_finished(&self, at: usize) -> bool {
        let slot =
            self.list().as_ref().and_then(|list| Some(list.children.get(at)?.as_ref()?.slot));
        // SAFETY: a slot in the list is neither collected nor dropped, so its box is alive.
        slot.is_none_or(|slot| unsafe { slot.as_ref() }.state.load().is_final())
    }

    /// Waits for all children, newest first, without taking their outcomes.
    pub fn sync(&self) {
        let mut at = self.list().as_ref().map_or(0, |list| list.children.len());
        while at > 0 {
            at -= 1;
            let slot =
                self.list().as_ref().and_then(|list| Some(list.children.get(at)?.as_ref()?.slot));
            if let Some(slot) = slot {
                wait(self.worker, slot, self.floor());
            }
        }
    }

    fn floor(&self) -> isize {
        self.list().as_ref().map_or(isize::MIN, |list| list.floor)
    }

    /// Whether any child was spawned.
    #[inline(always)]
    pub fn has_children(&self) -> bool {
        self.list().is_some()
    }

    /// The number of children that were spawned and not collected.
    pub fn open_children(&self) -> usize {
        let count = |list: &List<W>| list.children.iter().flatten().count();
        self.list().as_deref().map_or(0, count)
    }

    /// Waits for all uncollected children. Returns the first error in order of spawning.
    ///
    /// The list is removed, since the next task in this scope (a join's second child) has its own
    /// floor, and its children may lie lower.
    ///
    /// # Errors
    /// The first of the children's.
    #[cold]
    pub fn finish(&self) -> Result<(), W::Stop> {
        let mut outcome = Ok(());
        while let Some(child) = self.list().as_mut().and_then(|list| list.children.pop()) {
            if let Some(child) = child {
                // SAFETY: the child was in the list, so it was not collected.
                let finished =
                    unsafe { (child.finish)(self.worker, &self.frame, self.floor(), child.slot) };
                outcome = finished.and(outcome);
            }
        }
        *self.list() = None;
        outcome
    }
}

impl<W: ComputeThread> Drop for Scope<'_, W> {
    #[inline(always)]
    fn drop(&mut self) {
        if self.list.get_mut().is_some() {
            drop_children(self);
        }
    }
}

/// Drops all children of a task that stopped or unwinds.
#[cold]
fn drop_children<W: ComputeThread>(scope: &mut Scope<'_, W>) {
    let floor = scope.floor();
    while let Some(child) = scope.list.get_mut().as_mut().and_then(|list| list.children.pop()) {
        if let Some(child) = child {
            // SAFETY: as in `finish`.
            unsafe { (child.drop_child)(scope.worker, floor, child.slot) };
        }
    }
}

/// # Safety
/// `slot` is a spawned slot of a `T` that was neither collected nor dropped.
unsafe fn collect<W: ComputeThread, T: Fork<W>>(
    worker: &W,
    frame: &TaskFrame<W>,
    floor: isize,
    slot: NonNull<SlotHeader<W>>,
) -> Result<T::Output, W::Stop> {
    wait(worker, slot, floor);
    // SAFETY: spawned slots come from a leaked box of this type, and no other thread has the
    // pointer once the state is final.
    let slot = unsafe { Box::from_raw(slot.cast::<JoinSlot<W, T>>().as_ptr()) };
    // SAFETY: the state is final; the outcome is taken once.
    unsafe { take_final(worker, frame, &slot) }
}

/// # Safety
/// As [`collect`].
unsafe fn finish<W: ComputeThread, T: Fork<W>>(
    worker: &W,
    frame: &TaskFrame<W>,
    floor: isize,
    slot: NonNull<SlotHeader<W>>,
) -> Result<(), W::Stop> {
    // SAFETY: the slot belongs to the caller until it is collected.
    let index = unsafe { slot.as_ref() }.index;
    // SAFETY: by the contract.
    let output = unsafe { collect::<W, T>(worker, frame, floor, slot) }?;
    T::left_over(worker, frame.child_place(index), &output, None);
    Ok(())
}

/// # Safety
/// As [`collect`].
unsafe fn drop_child<W: ComputeThread, T: Fork<W>>(
    worker: &W,
    floor: isize,
    slot: NonNull<SlotHeader<W>>,
) {
    reclaim_or_drop(worker, slot, floor);
    // SAFETY: as in `collect`; `reclaim_or_drop` dropped the contents, and the cells drop nothing
    // by themselves.
    drop(unsafe { Box::from_raw(slot.cast::<JoinSlot<W, T>>().as_ptr()) });
}
