//! Values that the first of several tasks of a node builds, with the help of idle threads. Threads
//! whose tasks wait for the value do not help.

use std::fmt;
use std::sync::{Mutex, OnceLock, PoisonError};

use super::context::Context;
use super::outcome::Stop;
use super::waker::Waker;

/// A value that is built once, by the first task that needs it; other tasks wait for it.
///
/// In contrast to [`OnceLock`], the task that builds may run
/// [loops](super::ParallelLoops), and may be halted: then another task builds.
pub struct BuiltOnce<T> {
    value: OnceLock<T>,
    state: Mutex<BuildState>,
}

#[derive(Default)]
struct BuildState {
    is_building: bool,
    /// The number of attempts that have ended.
    attempts: u64,
    waiting: Vec<Waker>,
}

impl<T> BuiltOnce<T> {
    /// The value, if it is built.
    pub fn get(&self) -> Option<&T> {
        self.value.get()
    }

    /// Returns the value. If there is none, `build` computes it on this thread, without loops.
    pub fn get_or_init(&self, build: impl FnOnce() -> T) -> &T {
        self.value.get_or_init(build)
    }

    /// Returns the value. If it exists or another task of the node is building it, `build` is not
    /// called; in the latter case the caller waits.
    ///
    /// `build` may run loops, but no tasks: these could wait for the same value.
    ///
    /// # Errors
    /// The error of `build`; or a halt.
    pub fn get_or_build(
        &self,
        cx: &Context<'_>,
        build: impl FnOnce() -> Result<T, Stop>,
    ) -> Result<&T, Stop> {
        loop {
            if let Some(value) = self.get() {
                return Ok(value);
            }
            let Some(attempt) = self.claim(|| cx.waker()) else { break };
            let is_over = || self.get().is_some() || self.state().attempts != attempt;
            cx.wait_for(false, None, &is_over)?;
        }
        /// Lets another task build, also after a panic.
        struct Claim<'a, T>(&'a BuiltOnce<T>);
        impl<T> Drop for Claim<'_, T> {
            fn drop(&mut self) {
                let mut state = self.0.state();
                (state.is_building, state.attempts) = (false, state.attempts + 1);
                let waiting = std::mem::take(&mut state.waiting);
                drop(state);
                waiting.iter().for_each(Waker::wake);
            }
        }
        let _claim = Claim(self);
        // Another task may have built it between the look and the claim.
        if let Some(value) = self.get() {
            return Ok(value);
        }
        let value = build()?;
        Ok(self.value.get_or_init(|| value))
    }

    /// Claims the build. If another task builds, registers the waker and returns the attempt that
    /// it waits for.
    fn claim(&self, waker: impl FnOnce() -> Waker) -> Option<u64> {
        let mut state = self.state();
        if state.is_building {
            state.waiting.push(waker());
            return Some(state.attempts);
        }
        state.is_building = true;
        None
    }

    fn state(&self) -> std::sync::MutexGuard<'_, BuildState> {
        // Each change under the lock is one step.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> Default for BuiltOnce<T> {
    fn default() -> Self {
        Self { value: OnceLock::new(), state: Mutex::default() }
    }
}

impl<T: Clone> Clone for BuiltOnce<T> {
    fn clone(&self) -> Self {
        Self { value: self.value.clone(), state: Mutex::default() }
    }
}

impl<T: fmt::Debug> fmt::Debug for BuiltOnce<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.value.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::sync::{Arc, LazyLock};

    use serde::{Deserialize, Serialize};

    use super::super::{Job, Outcome, ParallelLoops, PoolConfig, Registry, Task, encode_job, solo};
    use super::*;

    static SUM: LazyLock<BuiltOnce<u64>> = LazyLock::new(BuiltOnce::default);
    static BUILDS: AtomicU32 = AtomicU32::new(0);

    #[derive(Serialize, Deserialize)]
    struct NeedsSum(u32);

    impl Task for NeedsSum {
        type Output = u64;
        const NAME: &'static str = "needs-sum";

        fn run(self, cx: &Context) -> Result<u64, Stop> {
            if self.0 > 1 {
                let (a, b) = cx.join(NeedsSum(self.0 / 2), NeedsSum(self.0 - self.0 / 2))?;
                return Ok(a + b);
            }
            let sum = SUM.get_or_build(cx, || {
                // The first attempt fails, and the next task that needs the value builds it.
                if BUILDS.fetch_add(1, Ordering::Relaxed) == 0 {
                    return Err(Stop::fail("the first"));
                }
                let parts =
                    cx.parallel_map(0..100_000, 1000, |piece| piece.sum::<usize>() as u64)?;
                Ok(parts.into_iter().sum())
            });
            // A failed build is the failure of one task alone.
            sum.copied().or(Ok(0))
        }
    }

    #[derive(Serialize, Deserialize)]
    struct SumJob;

    impl Job for SumJob {
        const NAME: &'static str = "sum-job";
        const ABOUT: &'static str = "for tests";

        fn register(registry: &mut Registry) {
            registry.task::<NeedsSum>();
        }

        fn run(self, cx: &Context) -> Result<Outcome, Stop> {
            let checksum = cx.call(NeedsSum(64))?;
            Ok(Outcome { checksum, result: serde_json::Value::Null })
        }
    }

    #[test]
    fn one_task_builds_and_a_failed_build_is_repeated() {
        let mut registry = Registry::new();
        registry.job::<SumJob>();
        let config = PoolConfig { threads: 4, ..PoolConfig::default() };
        let body = encode_job(SumJob).unwrap();
        let report = solo::run(Arc::new(registry), "sum-job", body, &config, |_| {}).unwrap();
        assert_eq!(report.outcome.unwrap().checksum, 63 * 4_999_950_000);
        assert_eq!(BUILDS.load(Ordering::Relaxed), 2);
        let copy = SUM.clone();
        assert_eq!((copy.get(), format!("{copy:?}")), (SUM.get(), format!("{:?}", SUM.value)));
        assert_eq!(*BuiltOnce::default().get_or_init(|| 3), 3);
    }
}
