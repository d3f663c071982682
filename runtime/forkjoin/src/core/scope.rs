//! The spawned children of one task: boxed slots that the parent's context owns until each is
//! collected or dropped.

use std::any::TypeId;
use std::cell::UnsafeCell;
use std::ptr::NonNull;
use std::sync::atomic::Ordering;

use super::slot::state::is_final;
use super::slot::{Frame, Header, Slot, keep_output, state};
use super::worker::Worker;
use crate::work::task::{Halt, Stop, Task};

struct Child {
    slot: NonNull<Header>,
    task: TypeId,
    /// Waits, frees the box and returns the error of the outcome, if any.
    finish: unsafe fn(&Worker, &Frame, isize, NonNull<Header>) -> Result<(), Stop>,
    /// Reclaims the slot and frees the box.
    drop_child: unsafe fn(&Worker, isize, NonNull<Header>),
}

/// The spawned children of a task that are not collected, oldest first. One word if there are none,
/// as for most tasks.
pub(crate) struct Children<'w> {
    worker: &'w Worker,
    list: UnsafeCell<Option<Box<List>>>,
}

/// The list with its floor, boxed as a whole so that it takes one word in every task's context.
struct List {
    children: Vec<Option<Child>>,
    /// The place of the first child in the thread's own deque; slots below belong to other tasks.
    floor: isize,
}

impl<'w> Children<'w> {
    #[inline(always)]
    pub(crate) fn new(worker: &'w Worker) -> Self {
        Self { worker, list: UnsafeCell::new(None) }
    }

    #[inline(always)]
    pub(crate) fn worker(&self) -> &'w Worker {
        self.worker
    }

    /// The list, borrowed while no user code runs.
    #[expect(clippy::mut_from_ref, reason = "see the safety comment")]
    fn list(&self) -> &mut Option<Box<List>> {
        // SAFETY: `Children` is not `Sync` (it holds an `UnsafeCell`), and every use below ends
        // before other code runs that could access this `Children` again.
        unsafe { &mut *self.list.get() }
    }

    /// Spawns a child. Returns its place in the list.
    pub(crate) fn spawn<T: Task>(&self, parent: &Frame, index: u32, task: T) -> usize {
        let slot = Box::new(Slot::new(task, parent, index, self.worker.index()));
        let slot: NonNull<Header> = NonNull::from(Box::leak(slot)).cast();
        let floor = self.worker.floor();
        let new = || Box::new(List { children: Vec::new(), floor });
        let list = &mut self.list().get_or_insert_with(new).children;
        list.push(Some(Child {
            slot,
            task: TypeId::of::<T>(),
            finish: finish::<T>,
            drop_child: drop_child::<T>,
        }));
        let at = list.len() - 1;
        self.worker.count_spawned(1);
        // SAFETY: no other thread has the pointer yet.
        if self.worker.may_recover(parent) && unsafe { self.worker.lookup_cached(slot) } {
            return at;
        }
        self.worker.push(slot);
        if self.worker.signals_after_push() != 0 {
            // The next join, sync or collect handles a halt.
            // SAFETY: the parent is the calling task.
            self.worker.shared().handle_signals(self.worker.index(), || unsafe { parent.base() });
        }
        at
    }

    /// Waits for the child at this place, spawned as a `T`, and takes its outcome.
    ///
    /// # Panics
    /// If the child was taken already, or is no `T`: handles rule out both.
    pub(crate) fn take<T: Task>(&self, parent: &Frame, at: usize) -> Result<T::Output, Stop> {
        let child = self.list().as_mut().and_then(|list| list.children.get_mut(at)?.take());
        let child = child.expect("a handle is consumed when its child is collected");
        assert!(child.task == TypeId::of::<T>(), "a handle names the type it was spawned as");
        // SAFETY: the child was in the list, so it was not collected; by the assertion it is a `T`.
        unsafe { collect::<T>(self.worker, parent, self.floor(), child.slot) }
    }

    /// Whether the child at this place has an outcome or was taken.
    pub(crate) fn is_finished(&self, at: usize) -> bool {
        let slot =
            self.list().as_ref().and_then(|list| Some(list.children.get(at)?.as_ref()?.slot));
        // SAFETY: a slot in the list is neither collected nor dropped, so its box is alive.
        slot.is_none_or(|slot| is_final(unsafe { slot.as_ref() }.state.load(Ordering::Acquire)))
    }

    /// Waits for all children, newest first, without taking their outcomes.
    pub(crate) fn sync(&self) {
        let mut at = self.list().as_ref().map_or(0, |list| list.children.len());
        while at > 0 {
            at -= 1;
            let slot =
                self.list().as_ref().and_then(|list| Some(list.children.get(at)?.as_ref()?.slot));
            if let Some(slot) = slot {
                self.worker.wait(slot, self.floor());
            }
        }
    }

    fn floor(&self) -> isize {
        self.list().as_ref().map_or(isize::MIN, |list| list.floor)
    }

    /// Whether any child was spawned.
    #[inline(always)]
    pub(crate) fn any(&self) -> bool {
        self.list().is_some()
    }

    /// The number of children that were spawned and not collected.
    pub(crate) fn open(&self) -> usize {
        let count = |list: &List| list.children.iter().flatten().count();
        self.list().as_deref().map_or(0, count)
    }

    /// Waits for all uncollected children. Returns the first error in order of spawning.
    ///
    /// The list is removed, since the next task in this context (a join's second child) has its own
    /// floor, and its children may lie lower.
    #[cold]
    pub(crate) fn finish(&self, frame: &Frame) -> Result<(), Stop> {
        let mut outcome = Ok(());
        while let Some(child) = self.list().as_mut().and_then(|list| list.children.pop()) {
            if let Some(child) = child {
                // SAFETY: the child was in the list, so it was not collected.
                let finished =
                    unsafe { (child.finish)(self.worker, frame, self.floor(), child.slot) };
                outcome = finished.and(outcome);
            }
        }
        *self.list() = None;
        outcome
    }
}

impl Drop for Children<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        if self.list.get_mut().is_some() {
            drop_children(self);
        }
    }
}

/// Drops all children of a task that stopped or unwinds.
#[cold]
fn drop_children(children: &mut Children<'_>) {
    let floor = children.floor();
    while let Some(child) = children.list.get_mut().as_mut().and_then(|list| list.children.pop()) {
        if let Some(child) = child {
            // SAFETY: as in `finish`.
            unsafe { (child.drop_child)(children.worker, floor, child.slot) };
        }
    }
}

/// # Safety
/// `slot` is a spawned slot of a `T` that was neither collected nor dropped.
unsafe fn collect<T: Task>(
    worker: &Worker,
    frame: &Frame,
    floor: isize,
    slot: NonNull<Header>,
) -> Result<T::Output, Stop> {
    worker.wait(slot, floor);
    // SAFETY: spawned slots come from a leaked box of this type, and no other thread has the
    // pointer once the state is final.
    let slot = unsafe { Box::from_raw(slot.cast::<Slot<T>>().as_ptr()) };
    match slot.header().state.load(Ordering::Acquire) {
        state::ABANDONED => {
            // SAFETY: `wait` abandoned the slot; the task is still there.
            drop(unsafe { slot.take_task() });
            worker.count_not_run();
            return Err(worker.halt_of(frame));
        }
        state::DELIVERED => worker.count_not_run(),
        _ => {}
    }
    // SAFETY: the state is final; the outcome is taken once.
    unsafe { slot.take_outcome(worker) }
}

/// # Safety
/// As [`collect`].
unsafe fn finish<T: Task>(
    worker: &Worker,
    frame: &Frame,
    floor: isize,
    slot: NonNull<Header>,
) -> Result<(), Stop> {
    // SAFETY: the slot belongs to the caller until it is collected.
    let index = unsafe { slot.as_ref() }.index;
    // SAFETY: by the contract.
    let output = unsafe { collect::<T>(worker, frame, floor, slot) }?;
    // SAFETY: the frame is the calling task's.
    let base = unsafe { frame.base() };
    if worker.shared().halted(|| base) == Some(Halt::Leave) {
        // SAFETY: as above.
        keep_output::<T>(base, unsafe { Frame::child(frame, index).path() }, &output);
    }
    Ok(())
}

/// # Safety
/// As [`collect`].
unsafe fn drop_child<T: Task>(worker: &Worker, floor: isize, slot: NonNull<Header>) {
    worker.reclaim_or_drop(slot, floor);
    // SAFETY: as in `collect`; `reclaim_or_drop` dropped the contents, and the cells drop nothing
    // by themselves.
    drop(unsafe { Box::from_raw(slot.cast::<Slot<T>>().as_ptr()) });
}
