//! Runs a benchmark in this process: on so many threads at once, each for itself.
//!
//! For nodes that have no other work: joiners, idle nodes, and those that a site tries out for an application. Each repeat
//! runs alone, on a pool of one thread with shared objects of its own: whatever a repeat publishes or learns is gone with it,
//! so that every repeat is the same work, and nobody outside sees any of it. Knows nothing of when benchmarks are due.

use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use tokio::time::Instant;

use super::checkpoint::Checkpoint;
use super::context::Context;
use super::here;
use super::pool::{PoolConfig, Seam};
use super::registry::{JobEntry, Registry};
use super::solo;
use super::task::{Failure, Outcome, Stop};
use crate::meter::{BenchmarkGoal, BenchmarkRun, BenchmarkSpec, BenchmarkWork, EncodedTask};
use crate::wire;

/// Why a benchmark could not be run.
#[derive(Debug, thiserror::Error)]
pub enum BenchmarkError {
    /// Its work failed.
    #[error("the benchmark failed: {0}")]
    Failed(#[from] Failure),
    /// Its job is not registered.
    #[error(
        "the benchmark's job {0} is not registered in this program: start the node with the program that submitted it"
    )]
    UnknownJob(String),
    /// Its tasks do not serialise.
    #[error("the benchmark's tasks do not serialise: {0}")]
    Encode(#[from] wire::WireError),
    /// Nothing can be measured.
    #[error("the benchmark takes no time")]
    Timeless,
    /// The system gave no thread.
    #[error("the benchmark's threads could not be started: {0}")]
    Threads(std::io::Error),
}

/// Runs the benchmark as long as `goal` says, or until `stop` is true, and returns what was measured; blocks. `stop` is asked
/// between repeats.
///
/// # Errors
/// If its work fails or is not known here, or there is no thread.
pub fn run(
    registry: &Arc<Registry>,
    spec: &BenchmarkSpec,
    threads: u32,
    goal: BenchmarkGoal,
    stop: impl Fn() -> bool + Sync,
) -> Result<BenchmarkRun, BenchmarkError> {
    let (entry, body) = prepare(registry, spec)?;
    let threads = threads.max(1);
    let measured = BenchmarkRun::new(goal, spec.units(), threads, Instant::now());
    let state = Mutex::new((measured, None::<BenchmarkError>));
    let lock = || state.lock().unwrap_or_else(PoisonError::into_inner);
    let repeat = |thread: u32| {
        loop {
            let config = PoolConfig { name: format!("bench-{thread}"), ..PoolConfig::default() };
            let outcome =
                solo::run_entry(registry.clone(), &entry, body.clone(), None, &config, |_| {})
                    .map_err(BenchmarkError::Threads)
                    .and_then(|report| Ok((report.wall, report.outcome.map(drop)?)));
            let mut state = lock();
            match outcome {
                Ok((took, ())) => {
                    let more = state.0.repeated(thread as usize, took, Instant::now());
                    if !more || state.1.is_some() || stop() {
                        return;
                    }
                }
                Err(error) => {
                    state.1.get_or_insert(error);
                    return;
                }
            }
        }
    };
    std::thread::scope(|scope| {
        for thread in 1..threads {
            let repeat = &repeat;
            let started = std::thread::Builder::new().spawn_scoped(scope, move || repeat(thread));
            if let Err(error) = started {
                lock().1.get_or_insert(BenchmarkError::Threads(error));
            }
        }
        repeat(0);
    });
    match state.into_inner().unwrap_or_else(PoisonError::into_inner) {
        (_, Some(error)) => Err(error),
        (measured, None) => Ok(measured),
    }
}

/// As [`run`], on the calling thread alone, which is one of this seam's and has a stack of this size.
///
/// # Errors
/// As [`run`]'s; or if it takes no time, which in virtual time it may.
pub fn run_here(
    registry: &Arc<Registry>,
    spec: &BenchmarkSpec,
    goal: BenchmarkGoal,
    (seam, stack_bytes): (&Arc<dyn Seam>, usize),
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
        if !measured.repeated(0, took, Instant::now()) || stop() {
            return Ok(measured);
        }
    }
}

/// One repeat of the benchmark as a job to run.
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

/// Runs a sample of tasks, one after another, as a job.
const SAMPLE: JobEntry = JobEntry {
    name: "benchmark",
    about: "a sample of tasks",
    run: run_sample,
    benchmark: |_| Ok(None),
};

fn run_sample(body: &[u8], _: Option<Checkpoint>, cx: &Context) -> Result<Outcome, Stop> {
    let tasks: Vec<EncodedTask> = wire::decode_payload(body)?;
    for EncodedTask { name, body } in &tasks {
        let Some(entry) = cx.registry().find_task(name) else {
            return Err(Stop::fail(format_args!(
                "task {name} is not registered in this node's program: add registry.task::<..>() to Job::register"
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

    use super::super::{Job, Task, encode_job};
    use super::*;
    use crate::meter::SpecId;
    use crate::share::Merged;

    /// Spins, in two halves, and fails if it finds what an earlier run has left.
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
                return Err(Stop::fail("somebody was here before"));
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

    const GOAL: BenchmarkGoal = BenchmarkGoal {
        at_least: Duration::from_millis(20),
        at_most: Duration::from_secs(60),
        stretch: Duration::from_millis(2),
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
                let run = run(&registry(), &spec, threads, GOAL, || false).unwrap();
                assert!(run.repeats() >= 3 * threads, "{} repeats", run.repeats());
                let measured = run.measurement().unwrap();
                assert!(measured.speed > 0.0 && measured.speed.is_finite(), "{measured:?}");
            }
        }
        assert_eq!(of_job(Spin { turns: 0, fails: false }), None, "it has none");
    }

    #[test]
    fn a_run_is_stopped_between_repeats() {
        let asked = AtomicU32::new(0);
        let goal = BenchmarkGoal { at_least: Duration::from_secs(60), ..GOAL };
        let stop = || asked.fetch_add(1, Ordering::Relaxed) >= 4;
        let run = run(&registry(), &sample(false), 2, goal, stop).unwrap();
        assert!(run.repeats() >= 5 && !run.is_whole(Instant::now()), "{} repeats", run.repeats());
    }

    #[test]
    fn work_that_fails_or_is_unknown_is_told() {
        let told = |spec: &BenchmarkSpec| {
            run(&registry(), spec, 2, GOAL, || false).unwrap_err().to_string()
        };
        let error = told(&of_job(Spin { turns: 9, fails: true }).unwrap());
        assert!(error.contains("no benchmark"), "{error}");
        let error = told(&sample(true));
        assert!(error.contains("no benchmark"), "{error}");
        let error = told(&BenchmarkSpec::of_job("other", Bytes::new()));
        assert!(error.starts_with("the benchmark's job other is not registered"), "{error}");
        let task = EncodedTask { name: "other".into(), body: Bytes::new() };
        let spec = BenchmarkSpec { work: BenchmarkWork::Tasks(vec![task]), reference_us: 1 };
        assert!(told(&spec).contains("task other is not registered"), "{}", told(&spec));
    }
}
