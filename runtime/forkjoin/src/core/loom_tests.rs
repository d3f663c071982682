//! The deque and the sleep handshake under loom, in every order of a few steps.
//!
//! Run with `cargo test -p springtide-runtime --lib --features loom loom_tests`. It is a feature
//! and no `--cfg loom`, since tokio interprets that, and every dependency would be rebuilt.
//!
//! Loom has no membarrier, so these tests use the symmetric fences. `fence.rs` proves that the
//! asymmetric ones order as much.

use std::ptr::NonNull;

use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, AtomicU32, Ordering, fence};
use loom::thread;

use super::deque::{Deque, Steal};
use super::fence::Fences;

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

/// A push followed by a read of the signals, against a sleeper that announces itself and then reads
/// the deque: one of the two sees the other (`PoolState::sleep` and `Worker::signals_after_push`).
#[test]
fn a_push_is_seen_by_a_sleeper_or_sees_it() {
    loom::model(|| {
        let fences = Fences::symmetric();
        let deque = Arc::new(Deque::new(fences));
        let wanted = Arc::new(AtomicU32::new(0));
        let sleeper = {
            let (deque, wanted) = (deque.clone(), wanted.clone());
            thread::spawn(move || {
                wanted.fetch_or(1, Ordering::SeqCst);
                fences.heavy();
                !deque.looks_empty()
            })
        };
        // SAFETY: this thread is the owner.
        unsafe { deque.push(element(0)) };
        fences.light();
        let saw_sleeper = wanted.load(Ordering::Relaxed) != 0;
        let sleeper_saw = sleeper.join().unwrap();
        assert!(saw_sleeper || sleeper_saw);
    });
}

/// The store of a final state and a read of `asleep`, against an owner that falls asleep and then
/// reads the state (`PoolState::wake_owner` and `PoolState::sleep`).
#[test]
fn a_finished_slot_wakes_its_owner_or_is_seen() {
    loom::model(|| {
        let state = Arc::new(AtomicU32::new(0));
        let asleep = Arc::new(AtomicBool::new(false));
        let finisher = {
            let (state, asleep) = (state.clone(), asleep.clone());
            thread::spawn(move || {
                state.store(4, Ordering::SeqCst);
                fence(Ordering::SeqCst);
                asleep.load(Ordering::SeqCst)
            })
        };
        asleep.store(true, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        let seen = state.load(Ordering::Acquire) == 4;
        let woken = finisher.join().unwrap();
        assert!(seen || woken);
    });
}
