//! A benchmark on a pool's own threads: each does its share on its own stack, between what it does otherwise.
//!
//! Whoever has the pool leads threads here; nobody waits for anybody. A thread that never comes by is not waited for
//! longer than [`LATECOMERS`]; a repeat that lasts too long is halted. Must not know when benchmarks are due.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

use crate::meter::{BenchmarkGoal, BenchmarkRun, BenchmarkSpec, Measurement, SpecId};
use crate::work::bench::{self, BenchmarkError};
use crate::work::core::round::Place;
use crate::work::here;
use crate::work::pool::{Pool, Seam};
use crate::work::registry::{JobEntry, Registry};
use crate::work::task::Halt;

/// Threads that have not come by so long after they were called take no part; and what is told to end is halted after
/// so long.
const LATECOMERS: Duration = Duration::from_secs(2);

/// What came of a run.
#[derive(Debug)]
pub(super) enum Ended {
    /// What was measured, if anything was, and whether it was all that should be.
    Measured { speed: Option<Measurement>, whole: bool },
    /// Its work failed.
    Failed(String),
}

/// A run under way.
pub(super) struct Run {
    spec: SpecId,
    goal: BenchmarkGoal,
    units: f64,
    threads: u32,
    registry: Arc<Registry>,
    seam: Arc<dyn Seam>,
    entry: JobEntry,
    body: Bytes,
    state: Mutex<State>,
}

struct State {
    /// Until then threads may begin.
    open_until: Instant,
    /// No further repeat begins.
    stopped: bool,
    /// Then what still runs is halted.
    halt_at: Instant,
    /// From the first thread's coming on.
    measured: Option<BenchmarkRun>,
    begun: u32,
    ended: u32,
    amid_work: bool,
    failed: Option<String>,
    /// What threads run just now, to be halted.
    running: BTreeMap<u32, Pool>,
}

impl Run {
    /// A run that this pool's threads may come to from `now` on.
    ///
    /// # Errors
    /// If its work is not known here.
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
            state: Mutex::new(State {
                open_until: now + LATECOMERS,
                stopped: false,
                halt_at: now + LATECOMERS + goal.at_most + LATECOMERS,
                measured: None,
                begun: 0,
                ended: 0,
                amid_work: false,
                failed: None,
                running: BTreeMap::new(),
            }),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Steps under the lock leave the state whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn spec(&self) -> SpecId {
        self.spec
    }

    /// Whether a thread interrupts its work for it.
    pub(super) fn is_amid_work(&self) -> bool {
        self.state().amid_work
    }

    /// A thread's share: repeats until there are enough.
    pub(super) fn share(&self, place: Place) {
        {
            let mut state = self.state();
            let now = Instant::now();
            if state.stopped || now >= state.open_until {
                return;
            }
            state.begun += 1;
            state.amid_work |= place.amid_work;
            let new = || BenchmarkRun::new(self.goal, self.units, self.threads, now);
            state.measured.get_or_insert_with(new);
        }
        while self.repeat(place) {}
        self.state().ended += 1;
    }

    /// Whether to repeat again.
    fn repeat(&self, place: Place) -> bool {
        let begun = |pool: &Pool| {
            let mut state = self.state();
            if state.stopped {
                pool.halt(Halt::Cancelled);
            }
            state.running.insert(place.thread, pool.clone());
        };
        let here = (self.seam.clone(), place.thread as usize, place.stack_bytes);
        let outcome = here::run(&self.registry, &self.entry, &self.body, here, begun);
        let mut state = self.state();
        state.running.remove(&place.thread);
        match outcome {
            // In virtual time what declares no work takes no time.
            Ok((_, took)) if took.is_zero() => {
                state.failed = Some(BenchmarkError::Timeless.to_string());
                state.stopped = true;
                false
            }
            Ok((_, took)) => {
                let measured = state.measured.as_mut();
                let more = measured
                    .is_some_and(|m| m.repeated(place.thread as usize, took, Instant::now()));
                more && !state.stopped
            }
            // Halted, so that it says nothing.
            Err(_) if state.stopped => false,
            Err(failure) => {
                state.failed = Some(failure.to_string());
                state.stopped = true;
                false
            }
        }
    }

    /// No repeat begins from here on; those under way may still end.
    pub(super) fn stop(&self, now: Instant) {
        let mut state = self.state();
        state.stopped = true;
        state.halt_at = state.halt_at.min(now + LATECOMERS);
    }

    /// Nothing of it goes on: repeats under way are halted.
    pub(super) fn halt(&self) {
        let mut state = self.state();
        state.stopped = true;
        state.running.values().for_each(|pool| pool.halt(Halt::Cancelled));
    }

    /// What has come of it, or when to look again at the latest (and after each share).
    pub(super) fn look(&self, now: Instant) -> Result<Ended, Instant> {
        let mut state = self.state();
        let all = state.begun == self.threads;
        let closed = state.stopped || now >= state.open_until;
        if state.ended < state.begun || !(all || closed) {
            if now >= state.halt_at {
                state.stopped = true;
                state.running.values().for_each(|pool| pool.halt(Halt::Cancelled));
                // It ends at its next call into the runtime, which may be a while.
                state.halt_at = now + LATECOMERS;
            }
            let next = if closed { state.halt_at } else { state.open_until.min(state.halt_at) };
            return Err(next);
        }
        if let Some(failure) = state.failed.take() {
            return Ok(Ended::Failed(failure));
        }
        let Some(measured) = &state.measured else {
            return Ok(Ended::Measured { speed: None, whole: false });
        };
        let whole = all && measured.is_whole(now) && measured.heard() == self.threads;
        let speed = measured.measurement().map(|speed| self.of_all(speed, measured.heard()));
        Ok(Ended::Measured { speed, whole })
    }

    /// The node's speed, where some of its threads were not heard: they were busy with something as hard, so they are
    /// thought to be as fast as the others; how far that is off nobody knows.
    fn of_all(&self, measured: Measurement, heard: u32) -> Measurement {
        if heard == self.threads || heard == 0 {
            return measured;
        }
        let share = f64::from(self.threads) / f64::from(heard);
        Measurement { speed: measured.speed * share, relative_error: None }
    }
}
