//! Tasks and closures on threads of this process, without nodes.

use std::sync::{Arc, Mutex, Once, OnceLock, PoisonError};

use springtide_runtime::forkjoin;
use springtide_runtime::guard::note_panic_place;
use springtide_runtime::work::{
    Job, OutputAssembler, OutputError, PoolConfig, ProgressReport, Registry, Task, TaskJob,
    encode_job, solo,
};

use super::Error;

/// Runs a task on this number of threads of this process, and waits for its output. Nothing is sent
/// and no task needs to be registered.
///
/// ```
/// # use springtide::prelude::*;
/// #[derive(serde::Serialize, serde::Deserialize)]
/// struct Fib(u32);
///
/// impl Task for Fib {
///     type Output = u64;
///     const NAME: &'static str = "fib";
///
///     fn run(self, cx: &Context) -> Result<u64, Stop> {
///         if self.0 < 2 {
///             return Ok(self.0.into());
///         }
///         let (a, b) = cx.join(Fib(self.0 - 1), Fib(self.0 - 2))?;
///         Ok(a + b)
///     }
/// }
///
/// assert_eq!(springtide::run(Fib(20), 2).unwrap(), 6765);
/// ```
///
/// # Errors
/// [`Error::Task`] if the task fails or panics; [`Error::Start`] without threads.
pub fn run<T: Task>(task: T, threads: usize) -> Result<T::Output, Error> {
    note_panic_places();
    let body = encode_job(TaskJob { tasks: vec![task] })
        .map_err(|error| Error::Config { reason: error.to_string() })?;
    let mut registry = Registry::new();
    registry.job::<TaskJob<T>>();
    let messages = Arc::new(Mutex::new(Vec::new()));
    let received = messages.clone();
    let config = PoolConfig { threads: threads.max(1), ..PoolConfig::default() };
    let name = TaskJob::<T>::NAME;
    let ended = solo::run(Arc::new(registry), name, body, &config, move |report| {
        if let ProgressReport::ClientMessage { body } = report {
            received.lock().unwrap_or_else(PoisonError::into_inner).push(body);
        }
    });
    let ended = ended.map_err(|error| Error::Start { reason: error.to_string() })?;
    let outcome = ended.outcome.map_err(Error::of_failure)?;
    let mut output = OutputAssembler::default();
    for message in messages.lock().unwrap_or_else(PoisonError::into_inner).iter() {
        output.add(message)?;
    }
    let output = output.finish::<T>(&outcome)?.pop();
    output.ok_or(OutputError::Incomplete { received: 0 }.into())
}

/// Makes panics of tasks carry their file, line and column.
fn note_panic_places() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            note_panic_place(info);
            usual(info);
        }));
    });
}

/// Runs two closures on the threads of this process, as many as it has processors, and returns
/// both results. The closures may borrow, and nothing is allocated or sent. Inside them,
/// `Context::join` divides further.
///
/// ```
/// use springtide::JoinContext;
///
/// fn sum(cx: &JoinContext<'_>, numbers: &[u64]) -> u64 {
///     if numbers.len() <= 1000 {
///         return numbers.iter().sum();
///     }
///     let (left, right) = numbers.split_at(numbers.len() / 2);
///     let (a, b) = cx.join(|cx| sum(cx, left), |cx| sum(cx, right));
///     a + b
/// }
///
/// let numbers: Vec<u64> = (1..=100_000).collect();
/// let (left, right) = numbers.split_at(50_000);
/// let (a, b) = springtide::join(|cx| sum(cx, left), |cx| sum(cx, right));
/// assert_eq!(a + b, 5_000_050_000);
/// ```
///
/// # Panics
/// If a closure panics, with its panic; if the threads cannot be started; or if a closure calls
/// this function instead of `Context::join`.
pub fn join<A, B, RA, RB>(a: A, b: B) -> (RA, RB)
where
    A: FnOnce(&forkjoin::Context<'_>) -> RA + Send,
    B: FnOnce(&forkjoin::Context<'_>) -> RB + Send,
    RA: Send,
    RB: Send,
{
    static POOL: OnceLock<forkjoin::Pool> = OnceLock::new();
    let pool = POOL.get_or_init(|| {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        match forkjoin::Pool::new(threads) {
            Ok(pool) => pool,
            Err(error) => panic!("the threads for join cannot be started: {error}"),
        }
    });
    pool.run(|cx| cx.join(a, b))
}

#[cfg(test)]
mod tests {
    use serde::{Deserialize, Serialize};
    use springtide_runtime::work::{Context, Stop};

    use super::*;

    /// The sum of the numbers up to this one. It fails at 13 and panics at 14.
    #[derive(Serialize, Deserialize)]
    struct Triangle(u64);

    impl Task for Triangle {
        type Output = (u64, String);
        const NAME: &'static str = "triangle";

        fn run(self, cx: &Context) -> Result<Self::Output, Stop> {
            match self.0 {
                0 => Ok((0, String::new())),
                13 => Err(Stop::fail("no luck")),
                14 => panic!("too much"),
                n => {
                    let (below, text) = cx.call(Triangle(n - 1))?;
                    Ok((below + n, text + "+"))
                }
            }
        }
    }

    #[test]
    fn a_task_runs_in_this_process() {
        assert_eq!(run(Triangle(4), 2).unwrap(), (10, "++++".to_owned()));
        let Err(Error::Task { failure }) = run(Triangle(13), 1) else { panic!("it fails") };
        assert_eq!((failure.message.as_str(), failure.panicked), ("no luck", false));
        let Err(Error::Task { failure }) = run(Triangle(14), 1) else { panic!("it panics") };
        let place = "too much (apps/springtide/src/embed/local.rs:";
        assert!(failure.panicked && failure.message.starts_with(place), "{failure}");
    }
}
