//! Joins: two children, of which another thread may take the second.

use std::marker::PhantomData;
use std::ptr::NonNull;

use super::frame::TaskFrame;
use super::layer::{ComputeThread, Fork, TaskContext};
use super::scope::Scope;
use super::slot::{HeldSlot, JoinSlot, SlotHeader, State};
use super::thread::{reclaim_or_drop, wait};

/// Runs two children of the task in `parent`; another thread may run the second one.
///
/// # Errors
/// The first stop of the two, or that of the layer's hooks.
#[inline(never)]
pub(super) fn join<W: ComputeThread, A: Fork<W>, B: Fork<W>>(
    worker: &W,
    parent: &TaskFrame<W>,
    index: u32,
    a: A,
    b: B,
) -> Result<(A::Output, B::Output), W::Stop> {
    let core = worker.core();
    let slot = JoinSlot::new(b, parent, index + 1, core.index());
    let me = core.me();
    let place = core.push(slot.pointer());
    let guard = FirstGuard::<W, A, B> { worker, slot: &slot, place, first: PhantomData };
    me.counters.spawned.add(2);
    if (core.signals_after_push() != 0 || worker.is_interrupted())
        && worker.handle_signals(parent)?
    {
        std::mem::forget(guard);
        return worker.run_looked_up(|| join_recovering(worker, parent, index, a, &slot, place));
    }
    let mut context = W::Context::new(Scope::new(TaskFrame::child(parent, index), worker));
    let left = a.run(&context)?;
    std::mem::forget(guard);
    if core.pop_at(place) {
        // SAFETY: the pointer is out of the deque, so this thread holds the slot, with its task.
        let b = unsafe { slot.take_task() };
        let guard = SecondGuard { slot: &slot };
        context.scope_mut().renew(index + 1);
        let right = b.run(&context);
        std::mem::forget(guard);
        match right {
            Ok(right) => Ok((left, right)),
            Err(stop) => Err(left_over::<W, A>(worker, parent, index, left, stop)),
        }
    } else {
        match join_stolen(worker, parent, &slot, place) {
            Ok(right) => Ok((left, right)),
            Err(stop) => Err(left_over::<W, A>(worker, parent, index, left, stop)),
        }
    }
}

/// Handles a join one of whose children stopped after the other one finished.
#[cold]
#[inline(never)]
fn left_over<W: ComputeThread, A: Fork<W>>(
    worker: &W,
    parent: &TaskFrame<W>,
    index: u32,
    output: A::Output,
    stop: W::Stop,
) -> W::Stop {
    A::left_over(worker, parent.child_place(index), &output, Some(&stop));
    stop
}

/// A join whose children have to be looked up. `slot` was pushed at `place`.
#[cold]
#[inline(never)]
fn join_recovering<W: ComputeThread, A: Fork<W>, B: Fork<W>>(
    worker: &W,
    parent: &TaskFrame<W>,
    index: u32,
    a: A,
    slot: &JoinSlot<W, B>,
    place: isize,
) -> Result<(A::Output, B::Output), W::Stop> {
    let core = worker.core();
    let guard = FirstGuard::<W, A, B> { worker, slot, place, first: PhantomData };
    let mut place = place;
    let mut mine = core.pop_at(place);
    // SAFETY: the pointer is out of the deque, so this thread holds the slot, with its task.
    if mine && !unsafe { lookup(worker, slot.pointer()) } {
        place = core.push(slot.pointer());
    } else {
        mine = false;
    }
    let first = JoinSlot::new(a, parent, index, core.index());
    // SAFETY: no other thread has its pointer yet.
    let elsewhere = unsafe { lookup(worker, first.pointer()) };
    let first_guard =
        elsewhere.then(|| ReclaimGuard { worker, slot: first.pointer(), floor: place });
    let left = if elsewhere {
        None
    } else {
        // SAFETY: the lookup found nothing, so no other thread has the pointer, and the task is in
        // the slot.
        Some(run_child(worker, unsafe { first.take_task() }, parent, index)?)
    };
    std::mem::forget(guard);
    let right = if mine && core.pop_at(place) {
        let guard = SecondGuard { slot };
        // SAFETY: the pointer is out of the deque, so this thread holds the slot, with its task.
        let right = run_child(worker, unsafe { slot.take_task() }, parent, index + 1);
        std::mem::forget(guard);
        right
    } else {
        join_stolen(worker, parent, slot, place)
    };
    let right = match (right, left) {
        (Ok(right), left) => {
            std::mem::forget(first_guard);
            let left = match left {
                Some(left) => Ok(left),
                None => join_stolen(worker, parent, &first, place),
            };
            return match left {
                Ok(left) => Ok((left, right)),
                Err(stop) => Err(left_over::<W, B>(worker, parent, index + 1, right, stop)),
            };
        }
        (Err(stop), Some(left)) => left_over::<W, A>(worker, parent, index, left, stop),
        (Err(stop), None) => stop,
    };
    // `first_guard` reclaims the first child if it is executed elsewhere.
    Err(right)
}

/// Looks up the result of a task that is about to run here. Returns whether the layer has it; the
/// slot is then delivered or leased.
///
/// # Safety
/// The caller holds the slot with its task in it, and this thread created it.
pub(super) unsafe fn lookup<W: ComputeThread>(worker: &W, slot: NonNull<SlotHeader<W>>) -> bool {
    // SAFETY: by the contract.
    let held = unsafe { HeldSlot::new(slot) };
    match worker.lookup(held) {
        Some(held) => {
            assert!(held.pointer() == slot, "the layer returns the slot that it got");
            false
        }
        None => true,
    }
}

/// Runs one child of the task in `parent` on this thread.
///
/// # Errors
/// The child's.
pub(super) fn call<W: ComputeThread, T: Fork<W>>(
    worker: &W,
    parent: &TaskFrame<W>,
    index: u32,
    task: T,
) -> Result<T::Output, W::Stop> {
    worker.core().me().counters.spawned.add(1);
    if worker.looks_up(parent) {
        return call_recovering(worker, task, parent, index);
    }
    run_child(worker, task, parent, index)
}

/// Runs one child here, unless it has a result already.
#[cold]
#[inline(never)]
fn call_recovering<W: ComputeThread, T: Fork<W>>(
    worker: &W,
    task: T,
    parent: &TaskFrame<W>,
    index: u32,
) -> Result<T::Output, W::Stop> {
    let core = worker.core();
    let slot = JoinSlot::new(task, parent, index, core.index());
    // SAFETY: no other thread has its pointer yet.
    if unsafe { lookup(worker, slot.pointer()) } {
        join_stolen(worker, parent, &slot, core.floor())
    } else {
        // SAFETY: the lookup found nothing, so no other thread has the pointer, and the task is in
        // the slot.
        run_child(worker, unsafe { slot.take_task() }, parent, index)
    }
}

/// Waits for a slot that another thread took, or that is executed elsewhere.
#[cold]
#[inline(never)]
fn join_stolen<W: ComputeThread, B: Fork<W>>(
    worker: &W,
    parent: &TaskFrame<W>,
    slot: &JoinSlot<W, B>,
    floor: isize,
) -> Result<B::Output, W::Stop> {
    wait(worker, slot.pointer(), floor);
    // SAFETY: `wait` returned, so the state is final; the contents are taken once.
    unsafe { take_final(worker, parent, slot) }
}

/// Takes the outcome of a slot whose state is final.
///
/// # Safety
/// The caller owns the slot, its state is final, and this is called once.
pub(super) unsafe fn take_final<W: ComputeThread, T: Fork<W>>(
    worker: &W,
    parent: &TaskFrame<W>,
    slot: &JoinSlot<W, T>,
) -> Result<T::Output, W::Stop> {
    match slot.header().state.load() {
        State::Abandoned => {
            // SAFETY: the task of an abandoned slot is still there.
            drop(unsafe { slot.take_task() });
            worker.core().count_not_run();
            return Err(worker.halt_stop(parent));
        }
        State::Delivered => worker.core().count_not_run(),
        _ => {}
    }
    // SAFETY: by the contract.
    unsafe { slot.take_outcome(worker) }
}

#[inline(always)]
fn run_child<W: ComputeThread, T: Fork<W>>(
    worker: &W,
    task: T,
    parent: &TaskFrame<W>,
    index: u32,
) -> Result<T::Output, W::Stop> {
    let context = W::Context::new(Scope::new(TaskFrame::child(parent, index), worker));
    task.run(&context)
}

/// Reclaims a join's slot when the first child stops or unwinds, and notes which task panicked.
/// Dropped by value in a cold function, so that the hot path keeps its parts in registers.
struct FirstGuard<'a, W: ComputeThread, A: Fork<W>, B: Fork<W>> {
    worker: &'a W,
    slot: &'a JoinSlot<W, B>,
    place: isize,
    first: PhantomData<A>,
}

impl<W: ComputeThread, A: Fork<W>, B: Fork<W>> Drop for FirstGuard<'_, W, A, B> {
    #[inline(always)]
    fn drop(&mut self) {
        let header = self.slot.header();
        note_unwinding::<W, A>(header, header.index - 1);
        reclaim_or_drop(self.worker, self.slot.pointer(), self.place);
    }
}

/// Reclaims a slot that another thread or node has, when its sibling stops or unwinds.
struct ReclaimGuard<'a, W: ComputeThread> {
    worker: &'a W,
    slot: NonNull<SlotHeader<W>>,
    floor: isize,
}

impl<W: ComputeThread> Drop for ReclaimGuard<'_, W> {
    fn drop(&mut self) {
        reclaim_or_drop(self.worker, self.slot, self.floor);
    }
}

/// Notes the panic of a join's second child, whose task the owner has taken out of the slot.
struct SecondGuard<'a, W: ComputeThread, B: Fork<W>> {
    slot: &'a JoinSlot<W, B>,
}

impl<W: ComputeThread, B: Fork<W>> Drop for SecondGuard<'_, W, B> {
    #[inline(always)]
    fn drop(&mut self) {
        let header = self.slot.header();
        note_unwinding::<W, B>(header, header.index);
    }
}

#[cold]
#[inline(never)]
fn note_unwinding<W: ComputeThread, T: Fork<W>>(header: &SlotHeader<W>, index: u32) {
    if std::thread::panicking() {
        T::panicked(header.parent().child_place(index));
    }
}
