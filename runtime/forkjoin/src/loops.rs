//! Loops whose iterations run on several threads.
//!
//! An implementation provides [`ParallelLoops::parallel_for`]; the other loops follow from it. Each
//! loop cuts its range into pieces of the same length, at the same places for any number of
//! threads. So a sum over the results of the pieces, in their order, has the same bits everywhere.

use std::convert::Infallible;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Runs the iterations of loops on one or several threads of this process.
pub trait ParallelLoops {
    /// The reason why a loop ends early.
    type Stop;

    /// Calls `body` once for each piece of the range, possibly on several threads concurrently.
    /// Pieces start at multiples of `grain` from the range's start, and have that length; the last
    /// one may be shorter.
    ///
    /// A piece should take at least some 10 us: each costs some 50 ns, and a wake-up of a sleeping
    /// thread some microseconds. A grain of 0 counts as 1.
    ///
    /// # Errors
    /// The loop was stopped, for example because its task was halted. Some pieces have not run
    /// then, and no further piece starts.
    ///
    /// # Panics
    /// If `body` panics on the calling thread. A panic on another thread is a panic or an error, as
    /// the implementation defines.
    fn parallel_for(
        &self,
        range: Range<usize>,
        grain: usize,
        body: impl Fn(Range<usize>) + Sync,
    ) -> Result<(), Self::Stop>;

    /// Calls `map` for each piece of the range, as [`parallel_for`](Self::parallel_for), and
    /// returns its results in the order of the pieces.
    ///
    /// # Errors
    /// As [`parallel_for`](Self::parallel_for).
    ///
    /// # Panics
    /// As [`parallel_for`](Self::parallel_for), for `map`.
    fn parallel_map<R: Send>(
        &self,
        range: Range<usize>,
        grain: usize,
        map: impl Fn(Range<usize>) -> R + Sync,
    ) -> Result<Vec<R>, Self::Stop> {
        let (start, grain) = (range.start, grain.max(1));
        let results: Vec<_> = (0..range.len().div_ceil(grain)).map(|_| Mutex::new(None)).collect();
        self.parallel_for(range, grain, |piece| {
            let place = &results[(piece.start - start) / grain];
            let result = map(piece);
            *lock(place) = Some(result);
        })?;
        let taken = |place: Mutex<Option<R>>| {
            let result = place.into_inner().unwrap_or_else(PoisonError::into_inner);
            result.expect("a loop that has ended ran each piece")
        };
        Ok(results.into_iter().map(taken).collect())
    }

    /// Calls `change` once for each piece of `grain` items, of which the last may be shorter, with
    /// the index of its first item; possibly on several threads concurrently.
    ///
    /// # Errors
    /// As [`parallel_for`](Self::parallel_for).
    ///
    /// # Panics
    /// As [`parallel_for`](Self::parallel_for), for `change`.
    fn parallel_chunks<T: Send>(
        &self,
        items: &mut [T],
        grain: usize,
        change: impl Fn(usize, &mut [T]) + Sync,
    ) -> Result<(), Self::Stop> {
        let (count, grain) = (items.len(), grain.max(1));
        let chunks: Vec<_> = items.chunks_mut(grain).map(|chunk| Mutex::new(Some(chunk))).collect();
        self.parallel_for(0..count, grain, |piece| {
            let chunk = lock(&chunks[piece.start / grain]).take();
            change(piece.start, chunk.expect("each piece runs once"));
        })
    }

    /// Replaces each item by the sum of itself and all items before it, and returns the sum of all
    /// items. `add` must be associative, and `zero` its neutral element. The addition of
    /// floating-point numbers is only nearly associative. The result then depends on `grain`, but
    /// not on the number of threads.
    ///
    /// # Errors
    /// As [`parallel_for`](Self::parallel_for).
    ///
    /// # Panics
    /// As [`parallel_for`](Self::parallel_for), for `add`.
    fn scan<T: Copy + Send + Sync>(
        &self,
        items: &mut [T],
        grain: usize,
        zero: T,
        add: impl Fn(T, T) -> T + Sync,
    ) -> Result<T, Self::Stop> {
        let grain = grain.max(1);
        let mut before = {
            let items = &*items;
            let sum = |piece: Range<usize>| items[piece].iter().copied().fold(zero, &add);
            self.parallel_map(0..items.len(), grain, sum)?
        };
        let mut sum = zero;
        for of_piece in &mut before {
            let next = add(sum, *of_piece);
            *of_piece = sum;
            sum = next;
        }
        self.parallel_chunks(items, grain, |first, piece| {
            let mut sum = before[first / grain];
            for item in piece {
                sum = add(sum, *item);
                *item = sum;
            }
        })?;
        Ok(items.last().copied().unwrap_or(zero))
    }
}

/// A panic that poisons a lock ends the loop, so the value under the lock is not used.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs loops on the calling thread, piece by piece.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sequential;

impl ParallelLoops for Sequential {
    type Stop = Infallible;

    fn parallel_for(
        &self,
        range: Range<usize>,
        grain: usize,
        body: impl Fn(Range<usize>) + Sync,
    ) -> Result<(), Infallible> {
        let grain = grain.max(1);
        for start in range.clone().step_by(grain) {
            body(start..range.end.min(start.saturating_add(grain)));
        }
        Ok(())
    }
}

/// Halves a range between two pieces; `None` if it is one piece or empty.
pub fn halves(range: &Range<usize>, grain: usize) -> Option<(Range<usize>, Range<usize>)> {
    let pieces = range.len().div_ceil(grain.max(1));
    let middle = range.start + pieces / 2 * grain.max(1);
    (pieces > 1).then_some((range.start..middle, middle..range.end))
}
