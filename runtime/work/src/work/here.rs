//! Runs a job on the calling thread and its stack, without other threads, nodes or thieves.
//!
//! It is for benchmarks on compute threads. The job gets a pool of its own and its own shared
//! objects. So nothing of it is in the node's deques, leases or counters. This module does not know
//! the purpose of the run.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::outcome::{Failure, Outcome};
use super::pool::{Pool, Seam};
use super::pool_config::PoolConfig;
use super::registry::{JobEntry, Registry};
use super::report::ProgressReport;
use super::solo::{SoloObserver, into_failure};

/// The longest sleep. No other thread wakes this one, and it executes what it waits for by itself,
/// so no wait is long. It does not park, since that would consume wake-ups meant for the compute
/// thread.
const SLEEP_MAX: Duration = Duration::from_millis(1);

/// The seam of a thread that belongs to another pool.
struct NestedSeam {
    outer: Arc<dyn Seam>,
    thread: usize,
}

impl Seam for NestedSeam {
    fn start(
        &self,
        _thread: usize,
        _name: String,
        _stack_bytes: usize,
        _body: Box<dyn FnOnce() + Send>,
    ) -> std::io::Result<()> {
        Err(std::io::ErrorKind::Unsupported.into())
    }

    fn park(&self, _thread: usize, timeout: Option<Duration>) {
        let nap = timeout.unwrap_or(SLEEP_MAX).min(SLEEP_MAX);
        if self.outer.is_real() {
            std::thread::sleep(nap)
        } else {
            self.outer.pass(self.thread, nap)
        }
    }

    fn unpark(&self, _thread: usize) {}

    fn pass(&self, _thread: usize, time: Duration) {
        self.outer.pass(self.thread, time);
    }

    fn join(&self) {}

    fn now(&self) -> Duration {
        self.outer.now()
    }

    fn rests(&self) -> bool {
        self.outer.rests()
    }

    fn rest(&self, _thread: usize, stop: &dyn Fn() -> bool) {
        self.outer.rest(self.thread, stop);
    }

    fn is_real(&self) -> bool {
        self.outer.is_real()
    }
}

/// Runs the job to its end on the calling thread and returns the outcome with the time taken. The
/// thread is thread `thread` of the seam `outer`, with `stack_bytes` of stack. `on_start` gets the
/// pool first, so that others can halt it.
///
/// # Errors
/// The job failed or was halted.
pub(crate) fn run(
    registry: &Arc<Registry>,
    entry: &JobEntry,
    body: &Bytes,
    (outer, thread, stack_bytes): (Arc<dyn Seam>, usize, usize),
    on_start: impl FnOnce(&Pool),
) -> Result<(Outcome, Duration), Failure> {
    let observer = Arc::new(SoloObserver::new(registry.clone(), |_: ProgressReport| {}));
    let config = PoolConfig { stack_bytes, ..PoolConfig::default() };
    let started = tokio::time::Instant::now();
    let work = (entry, body.clone());
    let outcome = {
        let seam = Arc::new(NestedSeam { outer, thread });
        Pool::run_alone(&config, registry.clone(), seam, observer, work, on_start)
    };
    let took = started.elapsed();
    outcome.map(|outcome| (outcome, took)).map_err(into_failure)
}

#[cfg(test)]
mod tests {
    use serde::{Deserialize, Serialize};

    use super::super::{Context, Job, RealSeam, Stop, Task, encode_job};
    use super::*;

    #[derive(Serialize, Deserialize)]
    struct Fib(u32);

    impl Task for Fib {
        type Output = u64;
        const NAME: &'static str = "fib";

        fn run(self, cx: &Context) -> Result<u64, Stop> {
            match self.0 {
                0 | 1 => Ok(self.0.into()),
                99 => panic!("no such number"),
                n => {
                    let (a, b) = cx.join(Fib(n - 1), Fib(n - 2))?;
                    Ok(a + b)
                }
            }
        }
    }

    /// A job that joins, spawns, and runs itself again on its own stack, as a compute thread does
    /// in a benchmark.
    #[derive(Clone, Serialize, Deserialize)]
    struct Nested {
        n: u32,
        deeper: u32,
        endless: bool,
    }

    impl Job for Nested {
        const NAME: &'static str = "nested";
        const ABOUT: &'static str = "for tests";

        fn register(registry: &mut Registry) {
            registry.task::<Fib>();
        }

        fn run(self, cx: &Context) -> Result<Outcome, Stop> {
            if self.endless {
                loop {
                    cx.call(Fib(10))?;
                }
            }
            let spawned = cx.spawn(Fib(self.n));
            let (a, _) = cx.join(Fib(self.n), Fib(3))?;
            let inner = match self.deeper {
                0 => 0,
                deeper => start(Nested { deeper: deeper - 1, ..self }, |_| {})?.checksum,
            };
            let checksum = inner + a + spawned.take()?;
            Ok(Outcome { checksum, result: serde_json::Value::Null })
        }
    }

    fn start(job: Nested, on_start: impl FnOnce(&Pool)) -> Result<Outcome, Failure> {
        let mut registry = Registry::new();
        registry.job::<Nested>();
        let entry = *registry.find_job("nested").unwrap();
        let body = encode_job(job).unwrap();
        run(&Arc::new(registry), &entry, &body, (RealSeam::new(), 0, 1 << 20), on_start)
            .map(|(outcome, _)| outcome)
    }

    #[test]
    fn a_job_runs_on_the_calling_stack_and_nested() {
        let job = Nested { n: 12, deeper: 0, endless: false };
        assert_eq!(start(job.clone(), |_| {}).unwrap().checksum, 2 * 144);
        assert_eq!(start(Nested { deeper: 2, ..job }, |_| {}).unwrap().checksum, 6 * 144);
    }

    #[test]
    fn a_failure_is_returned_and_leaves_no_trace() {
        let job = Nested { n: 99, deeper: 0, endless: false };
        for _ in 0..2 {
            let failure = start(job.clone(), |_| {}).unwrap_err();
            assert!(failure.panicked && failure.message == "no such number", "{failure:?}");
        }
        assert!(start(Nested { n: 3, ..job }, |_| {}).is_ok());
    }

    #[test]
    fn others_can_halt_it() {
        let job = Nested { n: 3, deeper: 0, endless: true };
        let failure = start(job, |pool| {
            let pool = pool.clone();
            std::thread::spawn(move || {
                std::thread::sleep(Duration::from_millis(5));
                pool.halt(super::super::Halt::Cancelled);
            });
        });
        assert!(failure.unwrap_err().message.contains("halted"));
    }
}
