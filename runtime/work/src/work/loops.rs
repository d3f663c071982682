//! Loops on the compute threads of a node, inside a task.
//!
//! A loop's pieces are tasks that borrow from the frame of the loop. So they never leave the node,
//! and their results are neither kept nor looked up. They take no number of a child: how a loop is
//! cut does not change the paths of the task's children.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};

use springtide_forkjoin::ParallelLoops;
use springtide_forkjoin::layer::{Fork, Place, halves};

use super::context::Context;
use super::core::remote_task::{Delivery, Encoded, TaskAbout};
use super::core::shared::TaskThread;
use super::core::tree::path_at;
use super::outcome::{Failure, Stop};
use crate::guard::located_panic_text;

const NAME: &str = "a piece of a parallel loop";

/// A closure that runs some pieces of a loop.
struct LoopPieces<F>(F);

impl<F> Fork<TaskThread> for LoopPieces<F>
where
    F: FnOnce(&Context<'_>) -> Result<(), Stop> + Send,
{
    type Output = ();
    const ABOUT: &'static TaskAbout = &TaskAbout { name: NAME, batch: false, is_local: true };

    #[inline(always)]
    fn run(self, context: &Context<'_>) -> Result<(), Stop> {
        (self.0)(context)
    }

    fn run_taken(self, context: &Context<'_>) -> Result<(), Stop> {
        context.check()?;
        catch_unwind(AssertUnwindSafe(|| (self.0)(context)))
            .unwrap_or_else(|panic| Err(Stop::failed(located_panic_text(&*panic), true)))
    }

    /// Is not called: the layer neither exports nor looks up local tasks.
    fn encode(&self, place: Place<'_, TaskThread>) -> Result<Encoded, Failure> {
        let (name, path) = (NAME.to_owned(), path_at(place));
        let message = "a piece of a loop cannot leave its node".to_owned();
        Err(Failure { name, path, message, panicked: false, located: true, exit: None })
    }

    fn decode(_delivery: Delivery, _worker: &TaskThread) -> Result<(), Stop> {
        Err(Stop::fail("a piece of a loop has run on another node"))
    }
}

impl Context<'_> {
    /// Runs two closures on threads of this node.
    ///
    /// # Errors
    /// As [`Context::join`].
    fn join_local(
        &self,
        a: impl FnOnce(&Context<'_>) -> Result<(), Stop> + Send,
        b: impl FnOnce(&Context<'_>) -> Result<(), Stop> + Send,
    ) -> Result<(), Stop> {
        /// Counts the join until it ends, also by a panic.
        struct JoinCount<'a>(&'a AtomicUsize);
        impl Drop for JoinCount<'_> {
            fn drop(&mut self) {
                self.0.fetch_sub(1, Ordering::Relaxed);
            }
        }
        let joins = &self.worker().shared().local_joins;
        joins.fetch_add(1, Ordering::Relaxed);
        let _count = JoinCount(joins);
        self.scope().join(LoopPieces(a), LoopPieces(b)).map(|_| ())
    }
}

/// Runs the pieces of the range, in halves that another thread may take.
fn run_pieces<F: Fn(Range<usize>) + Sync>(
    cx: &Context<'_>,
    range: Range<usize>,
    grain: usize,
    body: &F,
) -> Result<(), Stop> {
    match halves(&range, grain) {
        Some((left, right)) => cx.join_local(
            |cx| run_pieces(cx, left, grain, body),
            |cx| run_pieces(cx, right, grain, body),
        ),
        None => {
            if !range.is_empty() {
                body(range);
            }
            Ok(())
        }
    }
}

/// The loops run on all compute threads of the node that have nothing else to do. The job's root
/// may be the caller; its loops count as work.
///
/// A loop ends early if the task is halted, or if its body panics on another thread.
impl ParallelLoops for Context<'_> {
    type Stop = Stop;

    fn parallel_for(
        &self,
        range: Range<usize>,
        grain: usize,
        body: impl Fn(Range<usize>) + Sync,
    ) -> Result<(), Stop> {
        self.check()?;
        let next_child = self.next_child();
        let outcome = self.as_work(|| run_pieces(self, range, grain, &body));
        self.number_from(next_child);
        outcome
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use serde::{Deserialize, Serialize};

    use super::super::{Job, Outcome, PoolConfig, Registry, Task, encode_job, solo};
    use super::*;

    /// Loops over this number of items, in pieces of this size, and panics at an item if it is
    /// given.
    #[derive(Clone, Serialize, Deserialize)]
    struct Loops {
        items: usize,
        grain: usize,
        panics_at: Option<usize>,
    }

    impl Task for Loops {
        type Output = u64;
        const NAME: &'static str = "loops";

        fn run(self, cx: &Context) -> Result<u64, Stop> {
            let Self { items, grain, panics_at } = self;
            let calls: Vec<AtomicUsize> = (0..items).map(|_| AtomicUsize::new(0)).collect();
            cx.parallel_for(0..items, grain, |piece| {
                assert!(piece.start % grain == 0 && piece.len() <= grain);
                for item in piece {
                    assert!(Some(item) != panics_at, "at the item {item}");
                    calls[item].fetch_add(1, Ordering::Relaxed);
                }
            })?;
            assert!(calls.iter().all(|calls| calls.load(Ordering::Relaxed) == 1));
            let mut numbers: Vec<u64> = (0..items as u64).collect();
            cx.parallel_chunks(&mut numbers, grain, |first, chunk| {
                assert!(chunk.iter().zip(first as u64..).all(|(number, index)| *number == index));
                chunk.iter_mut().for_each(|number| *number += 1);
            })?;
            let sums = cx.parallel_map(0..items, grain, |piece| numbers[piece].iter().sum::<u64>());
            let sum: u64 = sums?.into_iter().sum();
            assert_eq!(cx.scan(&mut numbers, grain, 0, |a, b| a + b)?, sum);
            assert_eq!(numbers.last().copied().unwrap_or(0), sum);
            Ok(sum)
        }
    }

    #[derive(Clone, Serialize, Deserialize)]
    struct LoopJob(Loops);

    impl Job for LoopJob {
        const NAME: &'static str = "loop-job";
        const ABOUT: &'static str = "for tests";

        fn register(registry: &mut Registry) {
            registry.task::<Loops>();
        }

        /// Loops in the root and in two tasks at once.
        fn run(self, cx: &Context) -> Result<Outcome, Stop> {
            let before = cx.next_child();
            let own = self.0.clone().run(cx)?;
            assert_eq!(cx.next_child(), before, "a loop takes no number of a child");
            let (left, right) = cx.join(self.0.clone(), self.0)?;
            assert_eq!([left, right], [own; 2]);
            Ok(Outcome { checksum: own, result: serde_json::Value::Null })
        }
    }

    fn run(loops: Loops, threads: usize) -> Result<u64, Failure> {
        let mut registry = Registry::new();
        registry.job::<LoopJob>();
        let config = PoolConfig { threads, ..PoolConfig::default() };
        let body = encode_job(LoopJob(loops)).unwrap();
        let report = solo::run(Arc::new(registry), "loop-job", body, &config, |_| {}).unwrap();
        report.outcome.map(|outcome| outcome.checksum)
    }

    #[test]
    fn each_piece_runs_once_on_any_number_of_threads() {
        for threads in [1, 2, 4] {
            for (items, grain) in [(0, 3), (1, 1), (7, 3), (9, 3), (1000, 7), (1000, 5000)] {
                let sum = run(Loops { items, grain, panics_at: None }, threads).unwrap();
                assert_eq!(sum, (items * (items + 1) / 2) as u64, "{items} items by {grain}");
            }
        }
    }

    #[test]
    fn a_panic_in_a_piece_fails_the_job() {
        for threads in [1, 3] {
            for panics_at in [0, 55, 99] {
                let loops = Loops { items: 100, grain: 2, panics_at: Some(panics_at) };
                let failure = run(loops, threads).unwrap_err();
                assert!(failure.panicked, "{failure}");
                assert!(failure.message.contains(&format!("at the item {panics_at}")), "{failure}");
            }
        }
    }
}
