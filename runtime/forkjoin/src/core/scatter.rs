//! Arrays that several threads write: counting sort, and new arrays.

use std::cell::Cell;
use std::mem::MaybeUninit;
use std::ops::Range;

use crate::loops::ParallelLoops;

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
/// A loop must stop; `to` then has some of the items.
///
/// # Panics
/// If a bucket is out of range, or if `item` returns different buckets for the same index.
pub fn distribute<T: Copy + Send, L: ParallelLoops>(
    loops: &L,
    buckets: usize,
    item: impl Fn(usize) -> (usize, T) + Sync,
    to: &mut [T],
) -> Result<Vec<u32>, L::Stop> {
    let count = to.len();
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
    loops.parallel_for(0..count, grain, |piece| {
        let number = piece.start / grain;
        let mut next = starts[number].clone();
        let ends = starts.get(number + 1).map_or(&firsts[1..], |of_next| &of_next[..]);
        for at in piece {
            let (bucket, value) = item(at);
            let place = next[bucket];
            assert!(place < ends[bucket], "the bucket of an item does not change");
            next[bucket] += 1;
            // SAFETY: the piece alone owns the places of this bucket from `starts[number]` up to
            // `ends`: they end where the next piece's, or the next bucket's, begin. By the
            // assertion the place is one of these, and each is used once.
            unsafe {
                shared.set(place as usize, value);
            }
        }
    })?;
    Ok(firsts)
}

/// Returns the values of `item` for all indices up to `count`, computed in pieces of this grain.
/// The memory is first touched by the threads that compute it.
///
/// # Errors
/// A loop must stop.
///
/// # Panics
/// If `item` panics.
pub fn collect<T: Send, L: ParallelLoops>(
    loops: &L,
    count: usize,
    grain: usize,
    item: impl Fn(usize) -> T + Sync,
) -> Result<Vec<T>, L::Stop> {
    let mut all = Vec::with_capacity(count);
    let places = &mut all.spare_capacity_mut()[..count];
    loops.parallel_chunks(places, grain, |first, places: &mut [MaybeUninit<T>]| {
        for (at, place) in (first..).zip(places) {
            place.write(item(at));
        }
    })?;
    // SAFETY: there is room for `count` values. The loop ended without a stop and without a panic,
    // so each piece has run, and written all of its places.
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

    #[test]
    #[should_panic(expected = "does not change")]
    fn a_bucket_that_changes_is_found() {
        let calls = std::sync::atomic::AtomicUsize::new(0);
        let item = |_| (calls.fetch_add(1, std::sync::atomic::Ordering::Relaxed) % 3, 0);
        let _ = distribute(&Sequential, 3, item, &mut [0; 10]);
    }
}
