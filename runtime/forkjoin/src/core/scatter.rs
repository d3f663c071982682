//! Arrays that several threads write: counting sort, and new arrays.

use std::cell::Cell;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::loops::{ParallelLoops, lock};

/// Items of a piece, of which each thread counts the buckets for itself.
const PIECE_MIN: usize = 8192;

/// A slice whose items several threads replace, none of them the same item.
struct SharedSlice<'a, T>(&'a [Cell<T>]);

// SAFETY: the only access is `set`, whose caller ensures that no two threads use the same index.
// The values come from other threads, hence `Send`.
unsafe impl<T: Send> Sync for SharedSlice<'_, T> {}

impl<T> SharedSlice<'_, T> {
    /// # Safety
    /// No other thread sets the item at this index while the slice is shared.
    ///
    /// # Panics
    /// If there is no such item.
    unsafe fn set(&self, at: usize, value: T) {
        self.0[at].set(value);
    }
}

/// Puts `to.len()` items into this number of buckets, and returns the index of each bucket's first
/// item and the number of items at the end. `item` returns the bucket and the value of an item by
/// its index; it must be pure.
///
/// # Errors
/// A loop was stopped; `to` then has some of the items.
///
/// # Panics
/// If there are more than `u32::MAX` items, or a bucket is out of range. Also if `item` returns
/// different buckets for the same index, or `loops` runs a piece twice.
pub fn distribute<T: Copy + Send, L: ParallelLoops>(
    loops: &L,
    buckets: usize,
    item: impl Fn(usize) -> (usize, T) + Sync,
    to: &mut [T],
) -> Result<Vec<u32>, L::Stop> {
    let count = to.len();
    // Sums of counts do not overflow, so that ranges of places are disjoint.
    assert!(u32::try_from(count).is_ok(), "at most {} items can be distributed", u32::MAX);
    let grain = PIECE_MIN.max(4 * buckets);
    let counts = |piece: Range<usize>| {
        let mut counts = vec![0u32; buckets];
        piece.for_each(|at| counts[item(at).0] += 1);
        counts
    };
    let mut starts: Vec<Vec<u32>> = loops.parallel_map(0..count, grain, counts)?;
    let mut firsts = Vec::with_capacity(buckets + 1);
    let mut sum = 0;
    for bucket in 0..buckets {
        firsts.push(sum);
        for of_piece in &mut starts {
            sum += std::mem::replace(&mut of_piece[bucket], sum);
        }
    }
    firsts.push(sum);
    let shared = SharedSlice(Cell::from_mut(to).as_slice_of_cells());
    let has_run: Vec<AtomicBool> = starts.iter().map(|_| AtomicBool::new(false)).collect();
    loops.parallel_for(0..count, grain, |piece| {
        let number = piece.start / grain;
        assert!(!has_run[number].swap(true, Ordering::Relaxed), "a loop runs each piece once");
        let mut next = starts[number].clone();
        let ends = starts.get(number + 1).map_or(&firsts[1..], |of_next| &of_next[..]);
        for at in piece {
            let (bucket, value) = item(at);
            let place = next[bucket];
            assert!(place < ends[bucket], "the bucket of an item does not change");
            next[bucket] += 1;
            // SAFETY: the piece of this number alone owns the places of this bucket from
            // `starts[number]` up to `ends`: they end where the next piece's, or the next
            // bucket's, begin. By the assertions it runs once, the place is one of these, and each
            // is used once.
            unsafe {
                shared.set(place as usize, value);
            }
        }
    })?;
    Ok(firsts)
}

/// Returns the values of `item` for all indices up to `count`, computed in pieces of this grain.
/// The memory is first touched by the threads that compute it. Values that were computed before a
/// stop or a panic are not dropped.
///
/// # Errors
/// A loop was stopped.
///
/// # Panics
/// If `item` panics, or if `loops` does not run each piece once.
pub fn collect<T: Send, L: ParallelLoops>(
    loops: &L,
    count: usize,
    grain: usize,
    item: impl Fn(usize) -> T + Sync,
) -> Result<Vec<T>, L::Stop> {
    let (mut all, grain) = (Vec::with_capacity(count), grain.max(1));
    let places: &mut [MaybeUninit<T>] = &mut all.spare_capacity_mut()[..count];
    // Any crate may implement the loops, so what they do is checked.
    let chunks: Vec<_> = places.chunks_mut(grain).map(|chunk| Mutex::new(Some(chunk))).collect();
    let written = AtomicUsize::new(0);
    loops.parallel_for(0..count, grain, |piece| {
        let chunk = lock(&chunks[piece.start / grain]).take();
        let chunk = chunk.expect("a loop runs each piece once");
        let (first, length) = (piece.start / grain * grain, chunk.len());
        for (at, place) in (first..).zip(chunk) {
            place.write(item(at));
        }
        written.fetch_add(length, Ordering::Release);
    })?;
    assert!(written.load(Ordering::Acquire) == count, "a loop runs each piece");
    drop(chunks);
    // SAFETY: there is room for `count` values. Each chunk was taken once and counted after all of
    // its places were written, and the counts add up to all places.
    unsafe { all.set_len(count) };
    Ok(all)
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;
    use crate::{Pool, Sequential};

    fn sorted<L: ParallelLoops>(loops: &L, items: &[u32], buckets: usize) -> (Vec<u32>, Vec<u32>) {
        let mut to = vec![0; items.len()];
        let item = |at: usize| (items[at] as usize % buckets, items[at]);
        let Ok(firsts) = distribute(loops, buckets, item, &mut to) else { panic!("it stops") };
        (to, firsts)
    }

    #[test]
    fn items_keep_their_order_in_each_bucket_on_any_number_of_threads() {
        let mut x = 7u32;
        let items: Vec<u32> = (0..if cfg!(miri) { 40 } else { 70_000 })
            .map(|_| {
                x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                x >> 8
            })
            .collect();
        for buckets in [1, 5, 64] {
            let mut expected = items.clone();
            expected.sort_by_key(|item| item % buckets);
            let (one, firsts) = sorted(&Sequential, &items, buckets as usize);
            assert_eq!(one, expected);
            assert_eq!((firsts.len(), firsts[0]), (buckets as usize + 1, 0));
            for (bucket, ends) in firsts.windows(2).enumerate() {
                let own = &one[ends[0] as usize..ends[1] as usize];
                assert!(own.iter().all(|item| item % buckets == bucket as u32));
            }
            let pool = Pool::new(3).unwrap();
            let many = pool.run(|cx| sorted(cx, &items, buckets as usize));
            assert_eq!(many, (one, firsts));
        }
        assert_eq!(sorted(&Sequential, &[], 3), (vec![], vec![0; 4]));
    }

    #[test]
    fn collected_values_are_in_order_and_dropped_once() {
        let count = if cfg!(miri) { 20 } else { 5000 };
        let pool = Pool::new(3).unwrap();
        for grain in [1, 7, 10_000] {
            let item = |at: usize| at.to_string();
            let Ok(found) = pool.run(|cx| collect(cx, count, grain, item));
            assert!(found.iter().enumerate().all(|(at, text)| *text == at.to_string()));
            assert_eq!(found.len(), count);
        }
        let Ok(none) = collect(&Sequential, 0, 3, |at| at);
        assert_eq!(none, []);
    }

    /// Runs no piece, or the first one twice.
    struct WrongLoops(bool);

    impl ParallelLoops for WrongLoops {
        type Stop = ();

        fn parallel_for(
            &self,
            range: Range<usize>,
            grain: usize,
            body: impl Fn(Range<usize>) + Sync,
        ) -> Result<(), ()> {
            if self.0 {
                let first = range.start..range.end.min(range.start + grain);
                body(first.clone());
                body(first);
            }
            Ok(())
        }
    }

    #[test]
    fn loops_that_run_pieces_wrongly_are_found() {
        for twice in [false, true] {
            let collected =
                std::panic::catch_unwind(|| collect(&WrongLoops(twice), 10, 3, |at| at));
            assert!(collected.is_err());
            let distributed = std::panic::catch_unwind(|| {
                distribute(&WrongLoops(twice), 2, |at| (at % 2, at), &mut [0; 10])
            });
            assert!(distributed.is_err());
        }
    }

    #[test]
    #[should_panic(expected = "does not change")]
    fn a_bucket_that_changes_is_found() {
        let calls = std::sync::atomic::AtomicUsize::new(0);
        let item = |_| (calls.fetch_add(1, std::sync::atomic::Ordering::Relaxed) % 3, 0);
        let _ = distribute(&Sequential, 3, item, &mut [0; 10]);
    }
}
