//! Joins, spawned children and leases on real threads. Also for Miri, with smaller counts.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use super::layer::ComputeThread;
use super::leases::LeaseKey;
use super::pool::{Offer, PoolCore};
use super::test_layer::{Brief, Context, Tree, Worker, pool, task};
use super::thread::{ThreadCore, run_thread, run_top};
use crate::seam::{RealSeam, Seam};

const STACK_BYTES: usize = 1 << 20;

fn fib(n: u64, context: &Context<'_>) -> Result<u64, &'static str> {
    if n < 2 {
        return Ok(n);
    }
    let (a, b) = context.0.join(task(fib, n - 1), task(fib, n - 2))?;
    Ok(*a + *b)
}

fn fib_by_spawn(n: u64, context: &Context<'_>) -> Result<u64, &'static str> {
    if n < 2 {
        return Ok(n);
    }
    let first = context.0.spawn(task(fib_by_spawn, n - 1));
    let second = context.0.spawn(task(fib, n - 2));
    let third = context.0.call(task(fib, 2))?;
    let second = context.0.take::<super::test_layer::Call>(second)?;
    // Neither taken nor awaited by the task itself.
    context.0.spawn(task(fib, 1));
    Ok(*context.0.take::<super::test_layer::Call>(first)? + *second + *third - 1)
}

fn fail_at_zero(n: u64, context: &Context<'_>) -> Result<u64, &'static str> {
    match n {
        0 => Err("zero"),
        n if n % 2 == 0 => context.0.join(task(fib, 5), task(fail_at_zero, n - 1)).map(|_| 0),
        n => {
            context.0.spawn(task(fib, 5));
            context.0.join(task(fail_at_zero, n - 1), task(fib, 5)).map(|_| 0)
        }
    }
}

/// Runs a root on a pool of its own. `outside` runs meanwhile on this thread.
fn run<R: Send + 'static>(
    threads: usize,
    tree: Arc<Tree>,
    root: impl FnOnce(&Context<'_>) -> R + Send + 'static,
    outside: impl FnOnce(&PoolCore<Worker>),
) -> R {
    let seam = RealSeam::new();
    let pool = pool(threads, seam.clone());
    for index in 0..threads {
        let pool = pool.clone();
        let body = move || run_thread(pool, index as u32, index as u64 + 1, STACK_BYTES, Worker);
        seam.start(index, format!("test-{index}"), STACK_BYTES, Box::new(body)).unwrap();
    }
    let (sender, receiver) = mpsc::channel();
    pool.inject_root(Box::new(move |worker| {
        sender.send(run_top(worker, &tree, root)).unwrap();
    }));
    outside(&pool);
    let result = receiver.recv_timeout(Duration::from_secs(60)).unwrap();
    pool.close();
    seam.join();
    result
}

#[test]
fn joins_and_spawned_children_give_the_sequential_answer() {
    let (n, answer) = if cfg!(miri) { (7, 13) } else { (20, 6765) };
    for threads in 1..=3 {
        let joined = run(threads, Arc::default(), move |cx| fib(n, cx), |_| ());
        assert_eq!(joined, Ok(answer));
        let spawned = run(threads, Arc::default(), move |cx| fib_by_spawn(n, cx), |_| ());
        assert_eq!(spawned, Ok(answer));
    }
}

#[test]
fn a_failure_reclaims_all_siblings() {
    for threads in 1..=3 {
        for depth in 0..6 {
            let failed = run(threads, Arc::default(), move |cx| fail_at_zero(depth, cx), |_| ());
            assert_eq!(failed, Err("zero"));
        }
    }
}

fn lease_one(pool: &PoolCore<Worker>) -> (LeaseKey, u64) {
    loop {
        let taken = pool.take_oldest(0, |slot| {
            slot.export();
            let argument = slot.encode();
            assert_eq!(*slot.about(), "call");
            Offer::Taken((pool.leases().grant(slot, argument), argument))
        });
        if let Some(taken) = taken {
            return taken;
        }
        std::thread::yield_now();
    }
}

/// The first child lets the other one be taken: it waits until a lease was granted.
fn join_with_a_leased_task(cx: &Context<'_>) -> Result<u64, &'static str> {
    fn until_leased(_: u64, cx: &Context<'_>) -> Result<u64, &'static str> {
        let leases = || cx.0.worker().0.pool().leases().counts();
        while leases().granted == 0 {
            std::thread::yield_now();
        }
        Ok(0)
    }
    let (_, leased) = cx.0.join(task(until_leased, 0), task(fib, 6))?;
    Ok(*leased)
}

#[test]
fn a_leased_task_ends_by_delivery_or_return() {
    let delivered = run(1, Arc::default(), join_with_a_leased_task, |pool| {
        let (key, argument) = lease_one(pool);
        assert_eq!(argument, 6);
        assert_eq!(pool.leases().get(key, |lease| *lease), Some(6));
        assert_eq!(pool.complete(key, Ok(77)), Some(6));
        assert_eq!(pool.complete(key, Ok(78)), None, "a late duplicate");
        assert!(pool.leases().counts().balances());
    });
    assert_eq!(delivered, Ok(77));
    let failed = run(1, Arc::default(), join_with_a_leased_task, |pool| {
        let (key, _) = lease_one(pool);
        pool.complete(key, Err("elsewhere"));
    });
    assert_eq!(failed, Err("elsewhere"));
    let returned = run(1, Arc::default(), join_with_a_leased_task, |pool| {
        let (key, _) = lease_one(pool);
        assert_eq!(pool.reclaim(key), Some(6));
        assert_eq!(pool.reclaim(key), None);
        assert_eq!(pool.complete(key, Ok(78)), None);
    });
    assert_eq!(returned, Ok(8));
}

#[test]
fn a_halted_tree_abandons_its_leases() {
    let tree = Arc::new(Tree::default());
    let marks = tree.clone();
    let halted = run(1, tree.clone(), join_with_a_leased_task, move |pool| {
        let (key, _) = lease_one(pool);
        marks.halted.store(true, Ordering::SeqCst);
        pool.wake_all();
        while pool.leases().get(key, |_| ()).is_some() {
            std::thread::yield_now();
        }
        assert_eq!(pool.complete(key, Ok(78)), None, "the lease was abandoned");
        assert_eq!(pool.leases().counts().abandoned, 1);
    });
    assert_eq!(halted, Err("halted"));
    assert_eq!(tree.abandoned.load(Ordering::SeqCst), 1);
}

#[test]
fn a_spawned_child_that_is_leased_is_reclaimed_when_its_parent_fails() {
    fn spawn_and_fail(cx: &Context<'_>) -> Result<u64, &'static str> {
        cx.0.spawn(task(fib, 6));
        while cx.0.worker().0.pool().leases().counts().granted == 0 {
            std::thread::yield_now();
        }
        Err("failed")
    }
    let tree = Arc::new(Tree::default());
    let failed = run(1, tree.clone(), spawn_and_fail, |pool| {
        lease_one(pool);
    });
    assert_eq!(failed, Err("failed"));
    assert_eq!(tree.abandoned.load(Ordering::SeqCst), 1);
}

/// The oldest of three children is leased and never answered. The others are taken before and after
/// it is dropped.
#[test]
fn a_discarded_child_does_not_delay_its_parent() {
    fn spawn_and_discard(cx: &Context<'_>) -> Result<u64, &'static str> {
        let leased = cx.0.spawn(task(fib, 6));
        while cx.0.worker().0.pool().leases().counts().granted == 0 {
            std::thread::yield_now();
        }
        let (unstarted, kept) = (cx.0.spawn(task(fib, 7)), cx.0.spawn(task(fib, 8)));
        assert!(!cx.0.is_finished(leased));
        cx.0.discard(leased);
        cx.0.discard(unstarted);
        cx.0.take::<super::test_layer::Call>(kept).map(|kept| *kept)
    }
    let tree = Arc::new(Tree::default());
    let taken = run(1, tree.clone(), spawn_and_discard, |pool| {
        let (key, _) = lease_one(pool);
        while pool.leases().get(key, |_| ()).is_some() {
            std::thread::yield_now();
        }
        assert_eq!(pool.complete(key, Ok(78)), None, "the lease was abandoned");
    });
    assert_eq!(taken, Ok(21));
    assert_eq!(tree.abandoned.load(Ordering::SeqCst), 1);
}

static IS_HELPING: AtomicBool = AtomicBool::new(false);
static IS_DONE: AtomicBool = AtomicBool::new(false);
static ARRIVED: AtomicU64 = AtomicU64::new(0);

/// Waits, and runs brief tasks meanwhile; returns the index of its thread.
fn help_until_done(_: u64, cx: &Context<'_>) -> Result<u64, &'static str> {
    IS_HELPING.store(true, Ordering::SeqCst);
    let is_done = || IS_DONE.load(Ordering::SeqCst);
    while !is_done() {
        ThreadCore::help_or_sleep(cx.0.worker(), cx.0.frame(), Duration::from_secs(9), is_done);
    }
    Ok(u64::from(cx.0.worker().core().index()))
}

/// Waits for the other of two; returns the index of its thread.
fn meet(_: u64, cx: &Context<'_>) -> Result<u64, &'static str> {
    ARRIVED.fetch_add(1, Ordering::SeqCst);
    while ARRIVED.load(Ordering::SeqCst) % 2 == 1 {
        std::thread::yield_now();
    }
    Ok(u64::from(cx.0.worker().core().index()))
}

fn own_index(_: u64, cx: &Context<'_>) -> Result<u64, &'static str> {
    Ok(u64::from(cx.0.worker().core().index()))
}

#[test]
fn a_waiting_thread_runs_brief_tasks_alone() {
    let root = |cx: &Context<'_>| {
        let helper = cx.0.spawn(task(help_until_done, 0));
        while !IS_HELPING.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
        // The other thread finds these first, and must leave them to this one.
        let others = [cx.0.spawn(task(own_index, 0)), cx.0.spawn(task(own_index, 0))];
        for _ in 0..3 {
            let (a, b) = cx.0.join(Brief(task(meet, 0)), Brief(task(meet, 0))).unwrap();
            assert_ne!(a, b, "two threads run the brief tasks");
        }
        let own = u64::from(cx.0.worker().core().index());
        for other in others {
            assert_eq!(*cx.0.take::<super::test_layer::Call>(other).unwrap(), own);
        }
        IS_DONE.store(true, Ordering::SeqCst);
        cx.0.worker().core().pool().wake_all();
        *cx.0.take::<super::test_layer::Call>(helper).unwrap() != own
    };
    assert!(run(2, Arc::default(), root, |_| ()));
}

#[test]
fn one_thread_runs_each_index() {
    let pool = pool(1, RealSeam::new());
    pool.close();
    run_thread(pool.clone(), 0, 1, STACK_BYTES, Worker);
    let again = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        run_thread(pool, 0, 1, STACK_BYTES, Worker);
    }));
    assert!(again.is_err());
}
