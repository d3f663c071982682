//! A pool of threads that runs closures.

use std::cell::Cell;
use std::convert::Infallible;
use std::ops::Range;
use std::panic::resume_unwind;
use std::sync::Arc;

pub use crate::core::closures::Context;
use crate::core::closures::{PoolThread, run_and_wait};
use crate::core::pool::{PoolCore, PoolLimits};
use crate::core::thread::run_thread;
use crate::loops::{ParallelLoops, halves};
use crate::seam::{RealSeam, Seam};

thread_local! {
    /// The address of the pool whose thread this is.
    static OWN_POOL: Cell<*const PoolCore<PoolThread>> = const { Cell::new(std::ptr::null()) };
}

/// The size of each thread's stack in bytes. Only accessed pages cost memory.
const STACK_BYTES: usize = if cfg!(miri) { 1 << 20 } else { 16 << 20 };

/// Threads that run fork-join computations. They end when the pool is dropped.
///
/// ```
/// use springtide_forkjoin::{Context, Pool};
///
/// fn sum(cx: &Context<'_>, numbers: &[u64]) -> u64 {
///     if numbers.len() <= 1000 {
///         return numbers.iter().sum();
///     }
///     let (left, right) = numbers.split_at(numbers.len() / 2);
///     let (a, b) = cx.join(|cx| sum(cx, left), |cx| sum(cx, right));
///     a + b
/// }
///
/// # fn main() -> std::io::Result<()> {
/// let pool = Pool::new(4)?;
/// let numbers: Vec<u64> = (1..=100_000).collect();
/// let total = pool.run(move |cx| sum(cx, &numbers));
/// assert_eq!(total, 5_000_050_000);
/// # Ok(())
/// # }
/// ```
pub struct Pool {
    core: Arc<PoolCore<PoolThread>>,
    threads: usize,
}

impl Pool {
    /// Starts a pool with this number of threads, at least one.
    ///
    /// # Errors
    /// The system provides no thread.
    pub fn new(threads: usize) -> std::io::Result<Self> {
        let seam = RealSeam::new();
        let threads = threads.max(1);
        let limits = PoolLimits { nesting_bound: 32, first_lease_generation: 0 };
        let core = PoolCore::<PoolThread>::new((0..threads).map(|_| ()), seam.clone(), 0, limits);
        let pool = Self { core, threads };
        for index in 0..threads {
            let core = pool.core.clone();
            let body = move || {
                OWN_POOL.set(Arc::as_ptr(&core));
                run_thread(core, index as u32, seed(index), STACK_BYTES, PoolThread);
            };
            seam.start(index, format!("forkjoin-{index}"), STACK_BYTES, Box::new(body))?;
        }
        Ok(pool)
    }

    /// The number of threads.
    pub fn threads(&self) -> usize {
        self.threads
    }

    /// Runs a closure on a thread of the pool and waits for its result. The closure may borrow from
    /// the caller.
    ///
    /// # Panics
    /// If the closure panics, with its panic; or on a thread of the same pool, which would wait for
    /// itself: use its [`Context`] there.
    pub fn run<F, R>(&self, root: F) -> R
    where
        F: FnOnce(&Context<'_>) -> R + Send,
        R: Send,
    {
        assert!(
            OWN_POOL.get() != Arc::as_ptr(&self.core),
            "a thread of this pool would wait for itself: call Context::join instead"
        );
        run_and_wait(&self.core, root).unwrap_or_else(|panic| resume_unwind(panic))
    }

    /// The counts of tasks so far.
    pub fn counts(&self) -> crate::Counts {
        self.core.counts()
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.core.close();
        self.core.seam().join();
    }
}

/// The loops run on the threads of the pool that have nothing else to do.
///
/// ```
/// use springtide_forkjoin::{ParallelLoops, Pool};
///
/// # fn main() -> std::io::Result<()> {
/// let pool = Pool::new(4)?;
/// let mut squares = vec![0; 100_000];
/// let Ok(sum) = pool.run(|cx| {
///     cx.parallel_chunks(&mut squares, 10_000, |first, chunk| {
///         for (square, number) in chunk.iter_mut().zip(first as u64..) {
///             *square = number * number;
///         }
///     })?;
///     let sums = cx.parallel_map(0..squares.len(), 10_000, |piece| squares[piece].iter().sum());
///     sums.map(|sums: Vec<u64>| sums.into_iter().sum::<u64>())
/// });
/// assert_eq!(sum, 333_328_333_350_000);
/// # Ok(())
/// # }
/// ```
impl ParallelLoops for Context<'_> {
    type Stop = Infallible;

    fn parallel_for(
        &self,
        range: Range<usize>,
        grain: usize,
        body: impl Fn(Range<usize>) + Sync,
    ) -> Result<(), Infallible> {
        run_pieces(self, range, grain, &body);
        Ok(())
    }
}

/// Runs the pieces of the range, in halves that another thread may take.
fn run_pieces<F: Fn(Range<usize>) + Sync>(
    cx: &Context<'_>,
    range: Range<usize>,
    grain: usize,
    body: &F,
) {
    match halves(&range, grain) {
        Some((left, right)) => {
            cx.join(
                |cx| run_pieces(cx, left, grain, body),
                |cx| run_pieces(cx, right, grain, body),
            );
        }
        None if range.is_empty() => {}
        None => body(range),
    }
}

/// The seed of a thread's random choice of victims: a different one for each thread.
fn seed(thread: usize) -> u64 {
    (thread as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    fn fib(cx: &Context<'_>, n: u32) -> u64 {
        if n < 2 {
            return n.into();
        }
        let (a, b) = cx.join(|cx| fib(cx, n - 1), |cx| fib(cx, n - 2));
        a + b
    }

    #[test]
    fn closures_borrow_from_the_frames_above() {
        let (n, answer) = if cfg!(miri) { (8, 21) } else { (22, 17_711) };
        for threads in 1..=4 {
            let pool = Pool::new(threads).unwrap();
            assert_eq!(pool.run(move |cx| fib(cx, n)), answer);
            let text = pool.run(|cx| {
                let mut words = [String::from("fork"), String::from("join")];
                let (left, right) = words.split_at_mut(1);
                cx.join(|_| left[0].push('-'), |_| right[0].push('!'));
                words.concat()
            });
            assert_eq!(text, "fork-join!");
            let (mut sums, numbers) = ((0, 0), vec![1, 2, 3, 4]);
            let (left, right) = numbers.split_at(2);
            pool.run(|cx| sums = cx.join(|_| left.iter().sum(), |_| right.iter().sum()));
            assert_eq!(sums, (3, 7));
        }
    }

    #[test]
    fn loops_have_the_same_bits_on_any_number_of_threads() {
        let count = if cfg!(miri) { 20 } else { 3000 };
        let input: Vec<f64> = (0..count).map(|i| 1.0 / (1.0 + f64::from(i))).collect();
        fn sums<L: ParallelLoops>(loops: &L, mut items: Vec<f64>) -> (Vec<f64>, f64) {
            let Ok(total) = loops.scan(&mut items, 7, 0.0, |a, b| a + b) else { panic!("stops") };
            (items, total)
        }
        let expected = sums(&crate::Sequential, input.clone());
        assert_eq!(expected.0.last(), Some(&expected.1));
        for threads in 1..=3 {
            let pool = Pool::new(threads).unwrap();
            let found = pool.run(|cx| sums(cx, input.clone()));
            assert_eq!(found, expected);
            let empty = pool.run(|cx| sums(cx, Vec::new()));
            assert_eq!(empty, (Vec::new(), 0.0));
        }
    }

    #[test]
    fn a_panic_reaches_the_caller_and_leaves_the_pool_usable() {
        let pool = Pool::new(2).unwrap();
        for side in [true, false] {
            let panicked = catch_unwind(AssertUnwindSafe(|| {
                pool.run(move |cx| {
                    let held = String::from("dropped once");
                    cx.join(
                        |cx| assert!(!side, "first after {} and {held}", fib(cx, 5)),
                        |cx| assert!(side, "second after {}", fib(cx, 5)),
                    );
                });
            }));
            let panic = panicked.unwrap_err();
            let text = panic.downcast_ref::<String>().unwrap();
            assert!(text.starts_with(if side { "first" } else { "second" }), "{text}");
            assert_eq!(pool.run(|cx| fib(cx, 6)), 8);
        }
        let nested = catch_unwind(AssertUnwindSafe(|| pool.run(|_| pool.run(|_| ()))));
        assert!(
            nested.unwrap_err().downcast_ref::<&str>().is_some_and(|text| text.contains("itself"))
        );
    }
}
