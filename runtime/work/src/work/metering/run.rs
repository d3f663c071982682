//! A benchmark on a pool's own threads: each executes its share on its own stack, between its other
//! work.
//!
//! The pool's rounds lead threads here, and no thread waits for another. A thread that does not
//! arrive within [`ARRIVAL_TIMEOUT`] takes no part; a repeat that lasts too long is halted. This
//! module does not know when benchmarks are due.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

use crate::meter::{BenchmarkGoal, BenchmarkRun, BenchmarkSpec, SpecId, SpeedMeasurement};
use crate::work::bench::{self, BenchmarkError};
use crate::work::core::round::SharePosition;
use crate::work::here;
use crate::work::outcome::Halt;
use crate::work::pool::{Pool, Seam};
use crate::work::registry::{JobEntry, Registry};
use crate::work::thread_cpu;

/// The time within which threads must arrive to take part, and within which a stopped run must end
/// before it is halted.
const ARRIVAL_TIMEOUT: Duration = Duration::from_secs(2);

/// The result of a run.
#[derive(Debug)]
pub(super) enum RunResult {
    /// The measurement, if any, with the processor time over the wall time of its threads where
    /// known, and whether it is complete.
    Measured { speed: Option<SpeedMeasurement>, pace: Option<f64>, whole: bool },
    /// The benchmark's work failed.
    Failed(String),
}

/// A benchmark run in progress.
pub(super) struct ActiveRun {
    spec: SpecId,
    goal: BenchmarkGoal,
    units: f64,
    threads: u32,
    registry: Arc<Registry>,
    seam: Arc<dyn Seam>,
    entry: JobEntry,
    body: Bytes,
    state: Mutex<ActiveRunState>,
}

struct ActiveRunState {
    /// The time until which threads may start.
    open_until: Instant,
    /// Whether no further repeat starts.
    stopped: bool,
    /// The time at which running repeats are halted.
    halt_at: Instant,
    /// The measurement, from the first thread's arrival on.
    measured: Option<BenchmarkRun>,
    /// Processor time and wall time of all repeats so far.
    spent: (Duration, Duration),
    started: u32,
    ended: u32,
    interrupts_work: bool,
    failed: Option<String>,
    /// The pools of running repeats by thread, so that they can be halted.
    running: BTreeMap<u32, Pool>,
}

impl ActiveRun {
    /// Creates a run that this pool's threads may join from `now` on.
    ///
    /// # Errors
    /// The benchmark's work is not registered here.
    pub(super) fn new(
        pool: &Pool,
        spec: &BenchmarkSpec,
        goal: BenchmarkGoal,
        now: Instant,
    ) -> Result<Self, BenchmarkError> {
        let (entry, body) = bench::prepare(pool.registry(), spec)?;
        Ok(Self {
            spec: spec.id(),
            goal,
            units: spec.units(),
            threads: pool.threads(),
            registry: pool.registry().clone(),
            seam: pool.seam().clone(),
            entry,
            body,
            state: Mutex::new(ActiveRunState {
                open_until: now + ARRIVAL_TIMEOUT,
                stopped: false,
                halt_at: now + ARRIVAL_TIMEOUT + goal.max_length + ARRIVAL_TIMEOUT,
                measured: None,
                spent: (Duration::ZERO, Duration::ZERO),
                started: 0,
                ended: 0,
                interrupts_work: false,
                failed: None,
                running: BTreeMap::new(),
            }),
        })
    }

    fn state(&self) -> MutexGuard<'_, ActiveRunState> {
        // Steps under the lock leave the state consistent.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn spec(&self) -> SpecId {
        self.spec
    }

    /// Whether a thread interrupts its work for the benchmark.
    pub(super) fn interrupts_work(&self) -> bool {
        self.state().interrupts_work
    }

    /// Repeats the benchmark on one thread until the goal is met.
    pub(super) fn share(&self, position: SharePosition) {
        {
            let mut state = self.state();
            let now = Instant::now();
            if state.stopped || now >= state.open_until {
                return;
            }
            state.started += 1;
            state.interrupts_work |= position.interrupts_work;
            let new = || BenchmarkRun::new(self.goal, self.units, self.threads, now);
            state.measured.get_or_insert_with(new);
        }
        while self.repeat(position) {}
        self.state().ended += 1;
    }

    /// Executes one repeat. Returns whether another one follows.
    fn repeat(&self, position: SharePosition) -> bool {
        let started = |pool: &Pool| {
            let mut state = self.state();
            if state.stopped {
                pool.halt(Halt::Cancelled);
            }
            state.running.insert(position.thread, pool.clone());
        };
        let here = (self.seam.clone(), position.thread as usize, position.stack_bytes);
        let cpu = thread_cpu();
        let outcome = here::run(&self.registry, &self.entry, &self.body, here, started);
        let cpu = thread_cpu().saturating_sub(cpu);
        let mut state = self.state();
        state.running.remove(&position.thread);
        match outcome {
            // In virtual time work without declared time takes none.
            Ok((_, took)) if took.is_zero() => {
                state.failed = Some(BenchmarkError::Timeless.to_string());
                state.stopped = true;
                false
            }
            Ok((_, took)) => {
                state.spent.0 += cpu;
                state.spent.1 += took;
                let measured = state.measured.as_mut();
                let more = measured.is_some_and(|m| {
                    m.record_repeat(position.thread as usize, took, Instant::now())
                });
                more && !state.stopped
            }
            // A halted repeat gives no result.
            Err(_) if state.stopped => false,
            Err(failure) => {
                state.failed = Some(failure.to_string());
                state.stopped = true;
                false
            }
        }
    }

    /// Starts no further repeat; current ones may end.
    pub(super) fn stop(&self, now: Instant) {
        let mut state = self.state();
        state.stopped = true;
        state.halt_at = state.halt_at.min(now + ARRIVAL_TIMEOUT);
    }

    /// Halts the current repeats and starts no further one.
    pub(super) fn halt(&self) {
        let mut state = self.state();
        state.stopped = true;
        state.running.values().for_each(|pool| pool.halt(Halt::Cancelled));
    }

    /// The result of the run if it has ended.
    ///
    /// # Errors
    /// The latest time of the next call; call it also after each share.
    pub(super) fn result(&self, now: Instant) -> Result<RunResult, Instant> {
        let mut state = self.state();
        let all = state.started == self.threads;
        let closed = state.stopped || now >= state.open_until;
        if state.ended < state.started || !(all || closed) {
            if now >= state.halt_at {
                state.stopped = true;
                state.running.values().for_each(|pool| pool.halt(Halt::Cancelled));
                // A halted repeat ends at its next call into the runtime, which may take a while.
                state.halt_at = now + ARRIVAL_TIMEOUT;
            }
            let next = if closed { state.halt_at } else { state.open_until.min(state.halt_at) };
            return Err(next);
        }
        if let Some(failure) = state.failed.take() {
            return Ok(RunResult::Failed(failure));
        }
        let Some(measured) = &state.measured else {
            return Ok(RunResult::Measured { speed: None, pace: None, whole: false });
        };
        let whole = all && measured.is_complete(now) && measured.active_threads() == self.threads;
        let speed = measured
            .measurement()
            .map(|speed| self.scale_to_node(speed, measured.active_threads()));
        let (cpu, wall) = state.spent;
        let is_known = self.seam.is_real() && !cpu.is_zero() && !wall.is_zero();
        let pace = is_known.then(|| (cpu.as_secs_f64() / wall.as_secs_f64()).min(1.0));
        Ok(RunResult::Measured { speed, pace, whole })
    }

    /// The node's speed if some of its threads did not report. They are busy with similar work, so
    /// they count as equally fast; the error is unknown.
    fn scale_to_node(&self, measured: SpeedMeasurement, active_threads: u32) -> SpeedMeasurement {
        if active_threads == self.threads || active_threads == 0 {
            return measured;
        }
        let share = f64::from(self.threads) / f64::from(active_threads);
        SpeedMeasurement { speed: measured.speed * share, relative_error: None }
    }
}
