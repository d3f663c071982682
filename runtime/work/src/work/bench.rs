//! Runs a benchmark in this process, on several compute threads at once, each independent of the
//! others.
//!
//! It serves nodes without other work: joining and idle nodes, and those that a site tries out for
//! an application. Each repeat runs in a pool of its own thread, with shared objects of its own.
//! Everything it publishes or learns is discarded afterwards. So every repeat is the same work, and
//! no other part sees it. This module does not know when benchmarks are due.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use tokio::time::Instant;

use super::checkpoint::Checkpoint;
use super::context::Context;
use super::here;
use super::outcome::{Failure, Outcome, Stop};
use super::pool::Seam;
use super::pool_config::PoolConfig;
use super::registry::{JobEntry, Registry};
use crate::meter::{BenchmarkGoal, BenchmarkRun, BenchmarkSpec, BenchmarkWork, EncodedTask};
use crate::wire;

/// The reasons why a benchmark could not be run.
#[derive(Debug, thiserror::Error)]
pub enum BenchmarkError {
    /// The benchmark's work failed.
    #[error("the benchmark failed: {0}")]
    Failed(#[from] Failure),
    /// The benchmark's job is not registered.
    #[error(
        "the benchmark's job {0} is not registered in this program: \
         start the node with the program that submitted it"
    )]
    UnknownJob(String),
    /// The benchmark's tasks cannot be encoded.
    #[error("the benchmark's tasks do not serialise: {0}")]
    Encode(#[from] wire::WireError),
    /// The benchmark takes no time, so nothing can be measured.
    #[error("the benchmark takes no time")]
    Timeless,
    /// The system provided no thread.
    #[error("the benchmark's threads could not be started: {0}")]
    Threads(std::io::Error),
}

/// Runs the benchmark on threads of this seam until `goal` is met or `stop` returns true, and
/// returns the measurement.
///
/// It blocks, so the caller is on no thread of the seam. A seam with a quota makes the measurement
/// subject to it. `stop` is called between repeats. The seam has no threads before and after.
///
/// # Errors
/// If its work fails or is unknown here, or the system provides no thread.
pub fn run(
    registry: &Arc<Registry>,
    spec: &BenchmarkSpec,
    threads: u32,
    goal: BenchmarkGoal,
    seam: &Arc<dyn Seam>,
    stop: impl Fn() -> bool + Send + Sync + 'static,
) -> Result<BenchmarkRun, BenchmarkError> {
    let (entry, body) = prepare(registry, spec)?;
    let threads = threads.max(1);
    let measured = BenchmarkRun::new(goal, spec.units(), threads, Instant::now());
    let state = Mutex::new((measured, None));
    let all = Arc::new(BenchmarkThreads { registry: registry.clone(), entry, body, state, stop });
    let stack_bytes = PoolConfig::default().stack_bytes;
    for thread in 0..threads as usize {
        let (mine, place) = (all.clone(), (seam.clone(), thread, stack_bytes));
        let name = format!("bench-{thread}");
        let started = seam.start(thread, name, stack_bytes, Box::new(move || mine.share(place)));
        if let Err(error) = started {
            all.lock().1.get_or_insert(BenchmarkError::Threads(error));
        }
    }
    seam.join();
    let mut state = all.lock();
    state.1.take().map_or_else(|| Ok(state.0.clone()), Err)
}

/// The state that the threads of a benchmark share.
struct BenchmarkThreads<S> {
    registry: Arc<Registry>,
    entry: JobEntry,
    body: Bytes,
    /// The measurement, or the error.
    state: Mutex<(BenchmarkRun, Option<BenchmarkError>)>,
    stop: S,
}

impl<S: Fn() -> bool> BenchmarkThreads<S> {
    fn lock(&self) -> MutexGuard<'_, (BenchmarkRun, Option<BenchmarkError>)> {
        // Steps under the lock leave the state consistent.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Repeats the benchmark on one thread until the goal is met.
    fn share(&self, place: (Arc<dyn Seam>, usize, usize)) {
        loop {
            let outcome = here::run(&self.registry, &self.entry, &self.body, place.clone(), |_| {});
            let mut state = self.lock();
            match outcome {
                Ok((_, took)) => {
                    let more = state.0.record_repeat(place.1, took, Instant::now());
                    if !more || state.1.is_some() || (self.stop)() {
                        return;
                    }
                }
                Err(failure) => {
                    state.1.get_or_insert(failure.into());
                    return;
                }
            }
        }
    }
}

/// As [`run`], on the calling thread alone: one of this seam's, with a stack of `stack_bytes`.
///
/// # Errors
/// As [`run`]; or if the benchmark takes no time, as it may in virtual time.
pub fn run_here(
    registry: &Arc<Registry>,
    spec: &BenchmarkSpec,
    goal: BenchmarkGoal,
    seam: &Arc<dyn Seam>,
    stack_bytes: usize,
    stop: impl Fn() -> bool,
) -> Result<BenchmarkRun, BenchmarkError> {
    let (entry, body) = prepare(registry, spec)?;
    let mut measured = BenchmarkRun::new(goal, spec.units(), 1, Instant::now());
    loop {
        let place = (seam.clone(), 0, stack_bytes);
        let (_, took) = here::run(registry, &entry, &body, place, |_| {})?;
        if took.is_zero() {
            return Err(BenchmarkError::Timeless);
        }
        if !measured.record_repeat(0, took, Instant::now()) || stop() {
            return Ok(measured);
        }
    }
}

/// Prepares one repeat of the benchmark as a job.
pub(crate) fn prepare(
    registry: &Registry,
    spec: &BenchmarkSpec,
) -> Result<(JobEntry, Bytes), BenchmarkError> {
    match &spec.work {
        BenchmarkWork::Job(job) => {
            let entry = registry.find_job(&job.name);
            let unknown = || BenchmarkError::UnknownJob(job.name.clone());
            Ok((*entry.ok_or_else(unknown)?, job.body.clone()))
        }
        BenchmarkWork::Tasks(tasks) => Ok((SAMPLE, wire::encode_payload(tasks)?)),
    }
}

/// Runs a sample of tasks in sequence, as a job.
const SAMPLE: JobEntry = JobEntry {
    name: "benchmark",
    about: "a sample of tasks",
    run: run_sample,
    benchmark: |_| Ok(None),
    accept: |_, size| Ok(size.as_asked()),
};

fn run_sample(body: &[u8], _: Option<Checkpoint>, cx: &Context) -> Result<Outcome, Stop> {
    let tasks: Vec<EncodedTask> = wire::decode_payload(body)?;
    for EncodedTask { name, body } in &tasks {
        let Some(entry) = cx.registry().find_task(name) else {
            return Err(Stop::fail(format_args!(
                "task {name} is not registered in this node's program: \
                 add registry.task::<..>() to Job::register"
            )));
        };
        (entry.run)(&Bytes::copy_from_slice(body), cx)?;
    }
    Ok(Outcome { checksum: 0, result: serde_json::Value::Null })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::time::Duration;

    use serde::{Deserialize, Serialize};

    use super::super::{Job, RealSeam, Task, Throttle, ThrottledSeam, encode_job};
    use super::*;
    use crate::meter::SpecId;
    use crate::share::Merged;

    /// Spins, in two halves, and fails if it finds traces of an earlier run.
    #[derive(Clone, Serialize, Deserialize)]
    struct Spin {
        turns: u32,
        fails: bool,
    }

    #[derive(Clone, PartialEq, Serialize, Deserialize)]
    struct Trace(u32);

    impl Merged for Trace {
        const NAME: &'static str = "trace";

        fn merge(&mut self, other: &Self) {
            self.0 = self.0.max(other.0);
        }
    }

    impl Task for Spin {
        type Output = u64;
        const NAME: &'static str = "spin";

        fn run(self, cx: &Context) -> Result<u64, Stop> {
            if self.fails {
                return Err(Stop::fail("no benchmark"));
            }
            if self.turns > 1000 {
                let half = Spin { turns: self.turns / 2, fails: false };
                let (a, b) = cx.join(half.clone(), half)?;
                return Ok(a ^ b);
            }
            let mut x = 1u64;
            for turn in 0..self.turns {
                x = std::hint::black_box(x.wrapping_mul(3) ^ u64::from(turn));
            }
            Ok(x)
        }
    }

    #[derive(Clone, Serialize, Deserialize)]
    struct Spinning(Spin);

    impl Job for Spinning {
        const NAME: &'static str = "spinning";
        const ABOUT: &'static str = "for tests";

        fn register(registry: &mut Registry) {
            registry.task::<Spin>().merged::<Trace>();
        }

        fn run(self, cx: &Context) -> Result<Outcome, Stop> {
            if cx.merged::<Trace>().is_some() {
                return Err(Stop::fail("an earlier run left a trace"));
            }
            cx.merge(Trace(1))?;
            let checksum = cx.call(self.0)?;
            Ok(Outcome { checksum, result: serde_json::Value::Null })
        }

        fn benchmark(&self) -> Option<Self> {
            let turns = self.0.turns.min(10_000);
            (turns > 0).then_some(Spinning(Spin { turns, ..self.0 }))
        }
    }

    fn registry() -> Arc<Registry> {
        let mut registry = Registry::new();
        registry.job::<Spinning>();
        Arc::new(registry)
    }

    fn of_job(spin: Spin) -> Option<BenchmarkSpec> {
        let job = encode_job(Spinning(spin)).unwrap();
        registry().find_job("spinning").unwrap().benchmark(&job).unwrap()
    }

    fn real() -> Arc<dyn Seam> {
        RealSeam::new()
    }

    const GOAL: BenchmarkGoal = BenchmarkGoal {
        min_length: Duration::from_millis(20),
        max_length: Duration::from_secs(60),
        window: Duration::from_millis(2),
    };

    fn sample(fails: bool) -> BenchmarkSpec {
        let task = |turns, fails| EncodedTask {
            name: "spin".into(),
            body: wire::encode_payload(&Spin { turns, fails }).unwrap(),
        };
        let tasks = vec![task(3000, false), task(500, fails)];
        BenchmarkSpec { work: BenchmarkWork::Tasks(tasks), reference_us: 1000 }
    }

    #[test]
    fn jobs_and_samples_are_measured_on_all_threads() {
        let job = of_job(Spin { turns: 1 << 30, fails: false }).unwrap();
        assert_ne!(job.id(), SpecId::DECLARED);
        for spec in [job, sample(false)] {
            for threads in [1, 3] {
                let run = run(&registry(), &spec, threads, GOAL, &real(), || false).unwrap();
                assert!(run.repeats() >= 3 * threads, "{} repeats", run.repeats());
                let measured = run.measurement().unwrap();
                assert!(measured.speed > 0.0 && measured.speed.is_finite(), "{measured:?}");
            }
        }
        assert_eq!(of_job(Spin { turns: 0, fails: false }), None, "it has none");
    }

    /// A free node measured as a full core would attract jobs in vain. The test asserts only an
    /// upper bound of the speed, no times.
    #[test]
    fn a_node_under_a_quota_is_measured_under_it() {
        let spec = of_job(Spin { turns: 1 << 30, fails: false }).unwrap();
        let seam = |share| -> Arc<dyn Seam> {
            ThrottledSeam::new(Throttle { share: Some(share), ..Throttle::default() })
        };
        let goal = BenchmarkGoal { min_length: Duration::from_millis(300), ..GOAL };
        let speed = |share| {
            let run = run(&registry(), &spec, 1, goal, &seam(share), || false).unwrap();
            run.measurement().unwrap().speed
        };
        let (slow, fast) = (speed(0.02), speed(1.0));
        assert!(slow < 0.2 * fast, "{slow} under a fiftieth of a core, {fast} under none");
    }

    #[test]
    fn a_run_is_stopped_between_repeats() {
        let asked = Arc::new(AtomicU32::new(0));
        let goal = BenchmarkGoal { min_length: Duration::from_secs(60), ..GOAL };
        let stop = move || asked.fetch_add(1, Ordering::Relaxed) >= 4;
        let run = run(&registry(), &sample(false), 2, goal, &real(), stop).unwrap();
        assert!(
            run.repeats() >= 5 && !run.is_complete(Instant::now()),
            "{} repeats",
            run.repeats()
        );
    }

    #[test]
    fn failing_and_unknown_work_is_an_error() {
        let error_of = |spec: &BenchmarkSpec| {
            run(&registry(), spec, 2, GOAL, &real(), || false).unwrap_err().to_string()
        };
        let error = error_of(&of_job(Spin { turns: 9, fails: true }).unwrap());
        assert!(error.contains("no benchmark"), "{error}");
        let error = error_of(&sample(true));
        assert!(error.contains("no benchmark"), "{error}");
        let error = error_of(&BenchmarkSpec::of_job("other", Bytes::new()));
        assert!(error.starts_with("the benchmark's job other is not registered"), "{error}");
        let task = EncodedTask { name: "other".into(), body: Bytes::new() };
        let spec = BenchmarkSpec { work: BenchmarkWork::Tasks(vec![task]), reference_us: 1 };
        assert!(error_of(&spec).contains("task other is not registered"), "{}", error_of(&spec));
    }
}
