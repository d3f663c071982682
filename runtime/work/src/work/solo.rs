//! Runs a job in this process alone: no network, no other nodes. For `--sequential`, tests and
//! benches.

use std::sync::mpsc;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;

use super::core::LeaseId;
use super::observer::PoolObserver;
use super::outcome::{Failure, Outcome, Stop, StopCause};
use super::pool::{Pool, PoolCounts, RealSeam, Seam};
use super::pool_config::PoolConfig;
use super::registry::{JobEntry, Registry};
use super::report::{ProgressReport, SavedRoot};
use crate::id::{JobId, NodeId, Peer};
use crate::meter::Times;
use crate::share::{ObjectAction, ShareConfig, SharedObjects as Objects};
use crate::spmd::post::Dispatcher;

/// The report of a job that ran without a grid.
#[derive(Debug)]
pub struct SoloReport {
    /// The job's outcome or failure.
    pub outcome: Result<Outcome, Failure>,
    /// The time from the root's start to its end.
    pub wall: Duration,
    /// The counters of the pool.
    pub counts: PoolCounts,
    /// The threads' time, summed.
    pub times: Times,
    /// Processor time of the process; `None` in virtual time.
    pub cpu: Option<Duration>,
}

/// The reasons why a job could not be run in this process.
#[derive(Debug, thiserror::Error)]
pub enum SoloError {
    /// No job of this name is registered.
    #[error("no job is named {0}")]
    UnknownJob(String),
    /// The system provided no thread.
    #[error("the compute threads could not be started: {0}")]
    Threads(#[from] std::io::Error),
}

/// Runs the job named `job` on a pool of this process and waits for its end. The job is encoded by
/// [`encode_job`](super::encode_job). `note` is called on compute threads.
///
/// # Errors
/// If there is no such job or the system provides no thread.
pub fn run(
    registry: Arc<Registry>,
    job: &str,
    body: Bytes,
    config: &PoolConfig,
    note: impl Fn(ProgressReport) + Send + Sync + 'static,
) -> Result<SoloReport, SoloError> {
    let entry = *registry.find_job(job).ok_or_else(|| SoloError::UnknownJob(job.to_owned()))?;
    Ok(run_entry(registry, &entry, body, None, config, note)?)
}

/// As [`run`], but from a checkpoint that an earlier run passed to its `note`. It tests that a
/// job's [`resume`](super::Job::resume) ends as an uninterrupted run.
///
/// # Errors
/// As [`run`].
pub fn resume(
    registry: Arc<Registry>,
    job: &str,
    body: Bytes,
    saved: SavedRoot,
    config: &PoolConfig,
    note: impl Fn(ProgressReport) + Send + Sync + 'static,
) -> Result<SoloReport, SoloError> {
    let entry = *registry.find_job(job).ok_or_else(|| SoloError::UnknownJob(job.to_owned()))?;
    Ok(run_entry(registry, &entry, body, Some(saved), config, note)?)
}

/// As [`run`], for a job that need not be registered.
pub(crate) fn run_entry(
    registry: Arc<Registry>,
    entry: &JobEntry,
    body: Bytes,
    saved: Option<SavedRoot>,
    config: &PoolConfig,
    note: impl Fn(ProgressReport) + Send + Sync + 'static,
) -> std::io::Result<SoloReport> {
    run_on(RealSeam::new(), registry, entry, body, saved, config, note)
}

/// As [`run_entry`], on threads of this seam.
pub(crate) fn run_on(
    seam: Arc<dyn Seam>,
    registry: Arc<Registry>,
    entry: &JobEntry,
    body: Bytes,
    saved: Option<SavedRoot>,
    config: &PoolConfig,
    note: impl Fn(ProgressReport) + Send + Sync + 'static,
) -> std::io::Result<SoloReport> {
    let threads = u32::try_from(config.threads.max(1)).unwrap_or(u32::MAX);
    let observer = Arc::new(SoloObserver::of(registry.clone(), threads, note));
    let pool = Pool::start(config, registry, seam, observer)?;
    let (sender, receiver) = mpsc::channel();
    let started = tokio::time::Instant::now();
    pool.run_job(entry, body, saved, move |outcome| {
        // The receiver waits below.
        drop(sender.send(outcome));
    });
    let outcome = receiver.recv();
    let wall = started.elapsed();
    let (counts, times, cpu) = (pool.counts(), pool.times(), pool.cpu());
    pool.close();
    pool.join();
    let outcome = match outcome {
        Ok(outcome) => outcome.map_err(into_failure),
        Err(_) => Err(into_failure(Stop::fail("the compute thread ended before the job"))),
    };
    Ok(SoloReport { outcome, wall, counts, times, cpu })
}

/// The failure behind a stop that reached the root.
pub(crate) fn into_failure(stop: Stop) -> Failure {
    match *stop.0 {
        StopCause::Failed(failure) => failure,
        StopCause::Halt(halt) => {
            super::core::worker::job_failure(format!("the job was halted: {halt:?}"))
        }
    }
}

/// The observer of a pool without a node.
pub(crate) struct SoloObserver<N> {
    registry: Arc<Registry>,
    objects: OnceLock<Objects>,
    post: Arc<Dispatcher>,
    note: N,
}

impl<N> SoloObserver<N> {
    /// Creates the observer of a pool with one thread.
    pub(crate) fn new(registry: Arc<Registry>, note: N) -> Self {
        Self::of(registry, 1, note)
    }

    pub(crate) fn of(registry: Arc<Registry>, threads: u32, note: N) -> Self {
        let post = Arc::new(Dispatcher::without_network(threads));
        Self { registry, objects: OnceLock::new(), post, note }
    }
}

impl<N: Fn(ProgressReport) + Send + Sync> PoolObserver for SoloObserver<N> {
    fn idle(&self) {}

    fn surplus(&self) {}

    fn finished(&self, _owner: Peer, _lease: LeaseId, _outcome: Result<Bytes, Stop>) {}

    fn abandoned(&self, _thief: &Peer, _lease: LeaseId) {}

    fn task_ran(&self, _time: Duration) {}

    fn join_delayed(&self, _time: Duration) {}

    fn thread_woke(&self, _time: Duration) {}

    fn note(&self, note: ProgressReport) {
        (self.note)(note);
    }

    fn ended(&self) {}

    fn post(&self) -> Option<&Arc<Dispatcher>> {
        Some(&self.post)
    }

    fn objects(&self) -> &Objects {
        // No other node exists: nothing is sent, and published values are present at once.
        self.objects.get_or_init(|| {
            let me = NodeId::from("alone");
            let types = self.registry.objects().clone();
            let carry = Arc::new(|_: ObjectAction| {});
            Objects::new(me, JobId(0), types, ShareConfig::default(), carry)
        })
    }
}

#[cfg(test)]
mod tests {
    use serde::{Deserialize, Serialize};

    use super::super::{Context, Job, Task, encode_job};
    use super::*;

    #[derive(Serialize, Deserialize)]
    struct Fib(u32);

    impl Task for Fib {
        type Output = u64;
        const NAME: &'static str = "fib";

        fn run(self, cx: &Context) -> Result<u64, Stop> {
            if self.0 < 2 {
                return Ok(self.0.into());
            }
            let (a, b) = cx.join(Fib(self.0 - 1), Fib(self.0 - 2))?;
            Ok(a + b)
        }
    }

    #[derive(Clone, Serialize, Deserialize)]
    enum Shape {
        Fib(u32),
        All(u32),
        Spawn(u32),
        Brood(u32),
        Fail(u32),
        Panic(u32),
        SpawnFail,
        Leak(u32),
        Swallow,
    }

    #[derive(Serialize, Deserialize)]
    struct Bad {
        depth: u32,
        panics: bool,
    }

    impl Task for Bad {
        type Output = u64;
        const NAME: &'static str = "bad";

        fn run(self, cx: &Context) -> Result<u64, Stop> {
            if self.depth == 0 {
                if self.panics {
                    panic!("out of cheese");
                }
                return Err(Stop::fail("out of cheese"));
            }
            let bad = Bad { depth: self.depth - 1, panics: self.panics };
            let (a, b) = if self.depth.is_multiple_of(2) {
                cx.join(Fib(12), bad)?
            } else {
                let (a, b) = cx.join(bad, Fib(12))?;
                (b, a)
            };
            Ok(a + b)
        }
    }

    #[derive(Serialize, Deserialize)]
    struct Spawner(u32);

    impl Task for Spawner {
        type Output = u64;
        const NAME: &'static str = "spawner";

        fn run(self, cx: &Context) -> Result<u64, Stop> {
            let handles: Vec<_> = (0..self.0).map(|n| cx.spawn(Fib(n % 15))).collect();
            let (a, b) = cx.join(Fib(10), Fib(11))?;
            cx.sync()?;
            let mut sum = a + b;
            for handle in handles {
                sum += handle.take()?;
            }
            Ok(sum)
        }
    }

    /// Spawns one child, joins two of its kind, and leaves the spawned child to be awaited.
    #[derive(Serialize, Deserialize)]
    struct Brood(u32);

    impl Task for Brood {
        type Output = u64;
        const NAME: &'static str = "brood";

        fn run(self, cx: &Context) -> Result<u64, Stop> {
            drop(cx.spawn(Fib(3)));
            if self.0 == 0 {
                return Ok(1);
            }
            let (a, b) = cx.join(Brood(self.0 - 1), Brood(self.0 - 1))?;
            Ok(a + b + 1)
        }
    }

    impl Job for Shape {
        const NAME: &'static str = "shape";
        const ABOUT: &'static str = "shapes of task trees";

        fn register(registry: &mut Registry) {
            registry.task::<Fib>().task::<Bad>().task::<Spawner>().task::<Brood>();
        }

        fn run(self, cx: &Context) -> Result<Outcome, Stop> {
            let checksum = match self {
                Shape::Fib(n) => cx.call(Fib(n))?,
                Shape::All(n) => cx.join_all((0..n).map(Fib))?.into_iter().sum(),
                Shape::Spawn(n) => cx.call(Spawner(n))?,
                Shape::Brood(depth) => cx.call(Brood(depth))?,
                Shape::Fail(depth) => cx.call(Bad { depth, panics: false })?,
                Shape::Panic(depth) => cx.call(Bad { depth, panics: true })?,
                Shape::SpawnFail => {
                    let ignored = cx.spawn(Bad { depth: 3, panics: false });
                    drop(ignored);
                    0
                }
                Shape::Leak(n) => {
                    for _ in 0..n {
                        let _ = cx.spawn(Fib(5));
                    }
                    u64::from(n)
                }
                Shape::Swallow => cx.call(Fib(3)).unwrap_or(0) + cx.call(Fib(4)).unwrap_or(0),
            };
            Ok(Outcome { checksum, result: serde_json::Value::Null })
        }
    }

    fn solo(shape: Shape, threads: usize) -> SoloReport {
        let mut registry = Registry::new();
        registry.job::<Shape>();
        let config = PoolConfig { threads, ..PoolConfig::default() };
        run(Arc::new(registry), "shape", encode_job(shape).unwrap(), &config, |_| {}).unwrap()
    }

    fn fib(n: u32) -> u64 {
        (0..n).fold((0, 1), |(a, b), _| (b, a + b)).0
    }

    #[test]
    fn every_shape_gives_the_sequential_answer_on_any_number_of_threads() {
        let size = if cfg!(miri) { 8 } else { 20 };
        for threads in 1..=4 {
            let answer = |shape| solo(shape, threads).outcome.unwrap().checksum;
            assert_eq!(answer(Shape::Fib(size)), fib(size));
            assert_eq!(answer(Shape::All(size)), (0..size).map(fib).sum::<u64>());
            let spawned: u64 = (0..40).map(|n| fib(n % 15)).sum();
            assert_eq!(answer(Shape::Spawn(40)), fib(10) + fib(11) + spawned);
            assert_eq!(answer(Shape::Brood(5)), 63);
            assert_eq!(answer(Shape::Leak(20)), 20);
            assert_eq!(answer(Shape::Swallow), 2 + 3);
        }
    }

    #[test]
    fn counts_follow_the_tree() {
        for threads in [1, 3] {
            let counts = solo(Shape::Fib(10), threads).counts;
            // fib(10) creates the children of 176 joins and itself; the root is executed, not
            // spawned.
            assert_eq!((counts.spawned, counts.executed), (177, 178));
        }
    }

    #[test]
    fn a_failure_names_the_failing_task_and_its_path() {
        for threads in 1..=3 {
            let failure = solo(Shape::Fail(4), threads).outcome.unwrap_err();
            assert_eq!(failure.name, "bad");
            assert_eq!(failure.path.to_string(), "/0.1.0.1.0");
            assert_eq!(failure.message, "out of cheese");
            assert!(!failure.panicked);
        }
    }

    #[test]
    fn a_panic_is_a_job_error_that_names_the_task() {
        for threads in 1..=3 {
            let failure = solo(Shape::Panic(4), threads).outcome.unwrap_err();
            assert_eq!(failure.path.to_string(), "/0.1.0.1.0");
            assert_eq!(failure.name, "bad");
            assert_eq!(failure.message, "out of cheese");
            assert!(failure.panicked);
        }
    }

    #[test]
    fn the_failure_of_an_uncollected_child_fails_the_job() {
        for threads in 1..=3 {
            let failure = solo(Shape::SpawnFail, threads).outcome.unwrap_err();
            assert_eq!(failure.name, "bad");
            assert_eq!(failure.path.to_string(), "/0.0.1.0");
        }
    }

    #[test]
    fn the_threads_time_adds_up_to_wall_time() {
        let report = solo(Shape::Fib(15), 2);
        let total = Duration::from_nanos(report.times.total_ns());
        assert!(total >= report.wall * 2, "{total:?} against {:?}", report.wall);
    }
}
