//! The core under loom, in every order of a few steps: the deque, the states of slots and leases,
//! and the sleep protocol.
//!
//! Run with `cargo test -p springtide-forkjoin --lib --features loom loom_tests`. It is a feature
//! and no `--cfg loom`, since other crates interpret that, and would be rebuilt.
//!
//! Loom has no membarrier, so these tests use the symmetric fences. `fence.rs` proves that the
//! asymmetric ones order as much.

use std::ptr::NonNull;
use std::time::Duration;

use loom::sync::Arc;
use loom::thread;

use super::deque::{Deque, Steal};
use super::fence::Fences;
use super::frame::TaskFrame;
use super::pool::{Injected, Offer, PoolCore};
use super::sleep::{Sleep, WANTED};
use super::slot::{HeldSlot, JoinSlot, State};
use super::sync::Ordering;
use super::test_layer::{Call, Context, Tree, Worker, pool, task};
use super::thread::{run_thread, run_top};
use crate::seam::Seam;

const STACK_BYTES: usize = 1 << 20;

fn element(n: usize) -> NonNull<u32> {
    NonNull::new(std::ptr::without_provenance_mut((n + 1) * 8)).expect("not null")
}

fn steal_one(deque: &Deque<u32>) -> Option<NonNull<u32>> {
    match deque.steal() {
        Steal::Taken(taken) => Some(taken),
        Steal::Lost | Steal::Empty => None,
    }
}

/// The owner pushes two and pops two while two thieves steal once each: each element is taken once.
#[test]
fn owner_and_two_thieves_share_each_element_once() {
    // All orders of three threads are too many; those with up to two preemptions find the usual
    // errors.
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(2);
    model.check(|| {
        let deque = Arc::new(Deque::new(Fences::symmetric()));
        // SAFETY: this thread is the owner throughout.
        unsafe {
            deque.push(element(0));
            deque.push(element(1));
        }
        let thieves: Vec<_> = (0..2)
            .map(|_| {
                let deque = deque.clone();
                thread::spawn(move || steal_one(&deque))
            })
            .collect();
        let mut taken = Vec::new();
        for _ in 0..2 {
            // SAFETY: as above.
            taken.extend(unsafe { deque.pop() });
        }
        taken.extend(thieves.into_iter().filter_map(|thief| thief.join().unwrap()));
        // A lost race leaves the element there.
        // SAFETY: as above; the thieves have ended.
        taken.extend(std::iter::from_fn(|| unsafe { deque.pop() }));
        taken.sort_unstable();
        assert_eq!(taken, [element(0), element(1)]);
    });
}

/// The buffer grows while a thief reads it (loom's deque starts with room for two).
#[test]
fn growth_neither_loses_nor_duplicates_elements() {
    loom::model(|| {
        let deque = Arc::new(Deque::new(Fences::symmetric()));
        // SAFETY: this thread is the owner throughout.
        unsafe {
            deque.push(element(0));
            deque.push(element(1));
        }
        let thief = {
            let deque = deque.clone();
            thread::spawn(move || steal_one(&deque))
        };
        // SAFETY: as above.
        unsafe { deque.push(element(2)) };
        let mut taken: Vec<_> = thief.join().unwrap().into_iter().collect();
        // SAFETY: as above.
        taken.extend(std::iter::from_fn(|| unsafe { deque.pop() }));
        taken.sort_unstable();
        assert_eq!(taken, [element(0), element(1), element(2)]);
    });
}

/// `pop_at` and a thief compete for the last element: one wins, and the deque stays usable.
#[test]
fn the_last_element_has_one_winner() {
    loom::model(|| {
        let deque = Arc::new(Deque::new(Fences::symmetric()));
        // SAFETY: this thread is the owner throughout.
        let place = unsafe { deque.push(element(0)) };
        let thief = {
            let deque = deque.clone();
            thread::spawn(move || steal_one(&deque))
        };
        // SAFETY: as above.
        let popped = unsafe { deque.pop_at(place) };
        let stolen = thief.join().unwrap();
        assert!(popped != stolen.is_some());
        // SAFETY: as above.
        unsafe {
            deque.push(element(1));
            assert_eq!(deque.pop(), Some(element(1)));
            assert_eq!(deque.pop(), None);
        }
    });
}

/// Two nested joins and a thief of two elements: each place is taken once, by either side.
#[test]
fn nested_places_have_one_taker_each() {
    loom::model(|| {
        let deque = Arc::new(Deque::new(Fences::symmetric()));
        // SAFETY: this thread is the owner throughout.
        let (outer, inner) = unsafe { (deque.push(element(0)), deque.push(element(1))) };
        let thief = {
            let deque = deque.clone();
            thread::spawn(move || {
                [steal_one(&deque), steal_one(&deque)].into_iter().flatten().collect::<Vec<_>>()
            })
        };
        let mut taken = Vec::new();
        // SAFETY: as above; all elements above each place are taken.
        unsafe {
            if deque.pop_at(inner) {
                taken.push(element(1));
            }
            if deque.pop_at(outer) {
                taken.push(element(0));
            }
        }
        taken.extend(thief.join().unwrap());
        taken.sort_unstable();
        assert_eq!(taken, [element(0), element(1)]);
    });
}

/// The seam of loom's threads: each parks on a flag that `unpark` sets.
struct LoomSeam(Vec<(loom::sync::Mutex<bool>, loom::sync::Condvar)>);

impl LoomSeam {
    fn new(threads: usize) -> std::sync::Arc<Self> {
        let flag = |_| (loom::sync::Mutex::new(false), loom::sync::Condvar::new());
        std::sync::Arc::new(Self((0..threads).map(flag).collect()))
    }
}

impl Seam for LoomSeam {
    fn start(
        &self,
        _thread: usize,
        _name: String,
        _stack_bytes: usize,
        _body: Box<dyn FnOnce() + Send>,
    ) -> std::io::Result<()> {
        unreachable!("the models start their threads")
    }

    /// Blocks without a timeout, so that loom reports a lost wake-up as a deadlock.
    fn park(&self, thread: usize, _timeout: Option<Duration>) {
        let (flag, condition) = &self.0[thread];
        let mut unparked = flag.lock().unwrap();
        while !*unparked {
            unparked = condition.wait(unparked).unwrap();
        }
        *unparked = false;
    }

    fn unpark(&self, thread: usize) {
        let (flag, condition) = &self.0[thread];
        *flag.lock().unwrap() = true;
        condition.notify_one();
    }

    fn pass(&self, _thread: usize, _time: Duration) {}

    fn join(&self) {}

    fn now(&self) -> Duration {
        Duration::ZERO
    }
}

/// A push followed by a read of the signals, against a thread that falls asleep: the thread sees
/// the task, or the push sees the thread and wakes it.
#[test]
fn a_push_is_seen_by_a_sleeper_or_wakes_it() {
    loom::model(|| {
        let fences = Fences::symmetric();
        let deque = Arc::new(Deque::new(fences));
        let sleep = Arc::new(Sleep::new(1, fences, LoomSeam::new(1), 0));
        let sleeper = {
            let (deque, sleep) = (deque.clone(), sleep.clone());
            thread::spawn(move || {
                sleep.sleep(0, None, true, || false, || !deque.looks_empty());
                assert!(!deque.looks_empty(), "it is awake for the task");
            })
        };
        // SAFETY: this thread is the owner.
        unsafe { deque.push(element(0)) };
        deque.light_fence();
        if sleep.signals().load(Ordering::Relaxed) & WANTED != 0 {
            assert!(!sleep.notify(|_| false));
        }
        sleeper.join().unwrap();
        assert_eq!(sleep.signals().load(Ordering::Relaxed) & WANTED, 0);
    });
}

/// The same for a thief outside the pool: it sees the task, or the push notifies it.
#[test]
fn a_push_is_seen_by_a_remote_thief_or_notifies_it() {
    loom::model(|| {
        let fences = Fences::symmetric();
        let deque = Arc::new(Deque::new(fences));
        let sleep = Arc::new(Sleep::new(1, fences, LoomSeam::new(1), 0));
        let thief = {
            let (deque, sleep) = (deque.clone(), sleep.clone());
            thread::spawn(move || sleep.request_remote_notice(|| !deque.looks_empty()))
        };
        // SAFETY: this thread is the owner.
        unsafe { deque.push(element(0)) };
        deque.light_fence();
        let wanted = sleep.signals().load(Ordering::Relaxed) & WANTED != 0;
        let notified = wanted && sleep.notify(|_| false);
        assert!(thief.join().unwrap() || notified);
    });
}

/// Models with too many orders: those with up to this many preemptions, as many as fit in 20 s.
fn bounded(preemptions: usize) -> loom::model::Builder {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(preemptions);
    model.max_duration = Some(Duration::from_secs(20));
    model.checkpoint_interval = 100;
    model.max_branches = 100_000;
    model
}

/// A slot in the frame of this model's owner, with the pool that its leases are in.
struct Model {
    pool: std::sync::Arc<PoolCore<Worker>>,
    tree: Tree,
}

fn argument_itself(n: u64, _: &Context<'_>) -> Result<u64, &'static str> {
    Ok(n)
}

impl Model {
    fn new() -> Self {
        Self { pool: pool(1, LoomSeam::new(1)), tree: Tree::default() }
    }

    /// Calls `model` with a slot of thread 0 and the slot's only pointer.
    fn run(&self, model: impl FnOnce(&JoinSlot<Worker, Call>, HeldSlot<Worker>)) {
        let frame = TaskFrame::top(&self.tree);
        let slot = JoinSlot::new(task(argument_itself, 5), &frame, 0, 0);
        // SAFETY: no other place has the pointer.
        let held = unsafe { HeldSlot::new(slot.pointer()) };
        model(&slot, held);
    }
}

/// Waits as the owner of a slot does, without other work, until the slot is final or in the
/// injector. Returns the state.
fn wait(pool: &PoolCore<Worker>, slot: &JoinSlot<Worker, Call>) -> State {
    let state = || slot.header().state.load();
    let ready = || state().is_final() || pool.injected() > 0;
    while !ready() {
        pool.sleep(0, None, false, ready);
    }
    state()
}

/// A delivery against the owner's wait: the owner wakes, and reads the outcome that was written.
#[test]
fn a_delivered_lease_wakes_its_owner_with_the_outcome() {
    loom::model(|| {
        let model = Model::new();
        model.run(|slot, held| {
            let key = model.pool.leases().grant(held, 5);
            let pool = model.pool.clone();
            let remote = thread::spawn(move || pool.complete(key, Ok(9)));
            assert_eq!(wait(&model.pool, slot), State::Delivered);
            // SAFETY: the state is final; the contents are taken once.
            unsafe {
                drop(slot.take_task());
                assert_eq!(slot.take_delivery(), Ok(9));
            }
            assert_eq!(remote.join().unwrap(), Some(5));
        });
    });
}

/// A delivery, a return and the owner's abandonment of the same lease: one of them has the slot,
/// and the task or the outcome is in it.
#[test]
fn a_lease_ends_once() {
    bounded(3).check(|| {
        let model = Model::new();
        model.run(|slot, held| {
            let key = model.pool.leases().grant(held, 5);
            let (to_complete, to_reclaim) = (model.pool.clone(), model.pool.clone());
            let completed = thread::spawn(move || to_complete.complete(key, Ok(9)).is_some());
            let reclaimed = thread::spawn(move || to_reclaim.reclaim(key).is_some());
            let abandoned = model.pool.leases().abandon(slot.header()).is_some();
            let state =
                if abandoned { slot.header().state.load() } else { wait(&model.pool, slot) };
            // SAFETY: the state is final, or the pointer is taken out of the injector.
            unsafe {
                match state {
                    State::Delivered => {
                        drop(slot.take_task());
                        assert_eq!(slot.take_delivery(), Ok(9));
                    }
                    State::Abandoned => assert_eq!(slot.take_task().argument(), 5),
                    State::Queued => {
                        assert!(model.pool.remove_from_injector(slot.pointer()));
                        assert_eq!(slot.take_task().argument(), 5);
                    }
                    state => panic!("the wait ended in {state:?}"),
                }
            }
            let ended = [completed.join().unwrap(), reclaimed.join().unwrap(), abandoned];
            assert_eq!(ended.into_iter().filter(|ended| *ended).count(), 1);
            assert!(model.pool.leases().counts().balances());
        });
    });
}

/// An export of a queued task against its owner, who wants it back from the injector: one of them
/// gets the pointer.
#[test]
fn a_returned_task_has_one_taker() {
    loom::model(|| {
        let model = Model::new();
        model.run(|slot, held| {
            model.pool.inject(Injected::Slot(held));
            let pool = model.pool.clone();
            let exporter = thread::spawn(move || {
                pool.take_oldest(0, |held| {
                    held.export();
                    Offer::Taken(pool.leases().grant(held, 5))
                })
            });
            let mine = model.pool.remove_from_injector(slot.pointer());
            let exported = exporter.join().unwrap();
            assert_ne!(mine, exported.is_some());
            if exported.is_some() {
                assert!(model.pool.leases().abandon(slot.header()).is_some());
            }
            // SAFETY: this thread holds the slot, with its task.
            assert_eq!(unsafe { slot.take_task() }.argument(), 5);
        });
    });
}

/// Two whole compute threads: one of them runs a join, and the other one steals its second child,
/// sleeps, or both. The threads end, so no wake-up is lost.
#[test]
fn two_threads_run_a_join_and_end() {
    bounded(2).check(|| {
        let pool = pool(2, LoomSeam::new(2));
        pool.inject_root(Box::new(|worker| {
            let tree = Tree::default();
            let joined = run_top(worker, &tree, |cx| {
                cx.0.join(task(argument_itself, 5), task(argument_itself, 6))
            });
            assert_eq!(joined, Ok((Box::new(5), Box::new(6))));
            worker.0.pool().close();
        }));
        let other = {
            let pool = pool.clone();
            thread::spawn(move || run_thread(pool, 1, 2, STACK_BYTES, Worker))
        };
        run_thread(pool, 0, 1, STACK_BYTES, Worker);
        other.join().unwrap();
    });
}
