//! Measurements of a node while it takes part in a job: its speed, load and links, and the
//! benchmarks for these.
//!
//! It connects the parts of [`meter`](crate::meter), which have no clock and no effects, to the
//! pool. Several times a period it counts work units and busy time, and once a period it reads the
//! kernel's load. It also executes the actions of the benchmark planner. The engine's pump drives
//! it; it knows neither the network nor other nodes.
//!
//! Busy time is the time of threads in [`ThreadState::Working`] without the time in which the job's
//! root runs its own code, between its children. The root declares no cost, so its node would
//! otherwise look slower by that share. The root's clock stops at each of its calls that can run
//! other work (see `core::round`).
//!
//! The pace of the compute threads is read with the work units: their processor time over their
//! busy time. It updates the speed of a benchmark in every period, and costs two clocks a thread.
//!
//! In virtual time the kernel is not read: the only load is the slowdown of the model.

mod run;
#[cfg(test)]
mod tests;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use self::run::{ActiveRun, RunResult};
use super::bench::BenchmarkError;
use super::pool::Pool;
use crate::id::{ClusterId, Peer};
use crate::meter::{
    BenchmarkAction, BenchmarkEvent, BenchmarkGoal, BenchmarkOffer, BenchmarkPlanner,
    BenchmarkSettings, BenchmarkSpec, LinkEstimator, LinkSettings, Load, LoadReader, LoadSample,
    PeriodMeasure, Sampler, SamplerSettings, SpeedMeter, SpeedPoint, SpeedSettings, ThreadState,
    Times,
};

/// The number of counts of work units in a period; their variance gives the error of the speed.
const COUNTS_PER_PERIOD: u32 = 8;

/// The maximum number of round trips that are recorded in a period, since each is in every report
/// for minutes.
const ROUND_TRIPS_PER_PERIOD: usize = 16;

/// The settings of a node's measurements.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MeteringSettings {
    /// The combination of speed measurements; its period is the job's statistics period.
    pub speed: SpeedSettings,
    /// The times of benchmarks.
    pub benchmark: BenchmarkSettings,
    /// The selection of tasks for a benchmark, if the job has none.
    pub sampler: SamplerSettings,
    /// The minimum number of tasks in a proposed sample; 4 by default.
    pub least_sample: usize,
    /// The evaluation of transfers.
    pub links: LinkSettings,
    /// The seed of the random sample.
    pub seed: u64,
}

impl MeteringSettings {
    /// The default settings for this statistics period.
    pub fn new(period: Duration, seed: u64) -> Self {
        Self {
            speed: SpeedSettings { period, ..SpeedSettings::default() },
            benchmark: BenchmarkSettings { period, ..BenchmarkSettings::default() },
            sampler: SamplerSettings::default(),
            least_sample: 4,
            links: LinkSettings::default(),
            seed,
        }
    }

    /// These settings with this greatest age of a benchmark; zero: no limit.
    #[must_use]
    pub fn with_max_age(mut self, max_age: Duration) -> Self {
        self.speed.max_age = max_age;
        self.benchmark.max_age = max_age;
        self
    }
}

/// The measurements of one node in one job.
pub(crate) struct Metering {
    settings: MeteringSettings,
    me: ClusterId,
    state: Mutex<MeteringState>,
    /// Under a lock of its own, since compute threads use it. `None` once the job has a benchmark.
    sampler: Mutex<Option<Sampler>>,
}

struct MeteringState {
    speed: SpeedMeter,
    planner: BenchmarkPlanner,
    links: LinkEstimator,
    /// The index of the first link whose round trip is recorded next, for fair turns.
    next_link: usize,
    /// The source of the load, with the last sample; `None` in virtual time.
    kernel: Option<(LoadReader, LoadSample)>,
    spec: Option<BenchmarkSpec>,
    run: Option<Arc<ActiveRun>>,
    last_counts: LastCounts,
    count_at: Instant,
    /// The time of the planner's next tick.
    plan_at: Option<Instant>,
    period_began: Times,
    busy: Option<bool>,
    knows_units: bool,
    quota_period: Option<Duration>,
}

/// The counts at the last reading.
#[derive(Default)]
struct LastCounts {
    /// The last mark of each thread.
    marks: Vec<SpeedPoint>,
    refused: u64,
    /// Processor time and busy time of all threads, where known.
    pace: Option<(Duration, Duration)>,
}

impl Metering {
    /// Starts the measurements. `real`: whether computing takes time on the clock; then the
    /// kernel's counters are read.
    pub(crate) fn new(
        settings: MeteringSettings,
        me: ClusterId,
        threads: u32,
        real: bool,
        now: Instant,
    ) -> Self {
        let kernel = real.then(|| {
            let probe = LoadReader::new();
            let sample = probe.sample(now);
            (probe, sample)
        });
        let state = MeteringState {
            speed: SpeedMeter::new(threads, settings.speed),
            planner: BenchmarkPlanner::new(settings.benchmark, now),
            links: LinkEstimator::new(settings.links),
            next_link: 0,
            kernel,
            spec: None,
            run: None,
            last_counts: LastCounts::default(),
            count_at: now,
            plan_at: None,
            period_began: Times::default(),
            busy: None,
            knows_units: false,
            quota_period: None,
        };
        let sampler = Sampler::new(settings.sampler, settings.seed);
        Self { settings, me, state: Mutex::new(state), sampler: Mutex::new(Some(sampler)) }
    }

    fn state(&self) -> MutexGuard<'_, MeteringState> {
        lock(&self.state)
    }

    /// Handles what is due. Returns the latest time of the next call; call it also when a thread
    /// gets work or runs out of it.
    pub(crate) fn pump(&self, pool: &Pool, now: Instant) -> Instant {
        let mut state = self.state();
        if now >= state.count_at {
            state.count(pool);
            let every = self.settings.speed.period / COUNTS_PER_PERIOD;
            state.count_at = now + every.max(Duration::from_millis(1));
        }
        let mut wake = state.count_at;
        state.check_run(pool, now);
        let busy = state.is_busy(pool);
        if state.busy.replace(busy) != Some(busy) {
            let event = if busy { BenchmarkEvent::Busy } else { BenchmarkEvent::Idle };
            state.plan(event, pool, now);
        }
        if state.plan_at.is_some_and(|at| at <= now) {
            state.plan_at = None;
            state.plan(BenchmarkEvent::Tick, pool, now);
        }
        let look = state.run.as_ref().and_then(|run| run.result(now).err());
        for at in [state.plan_at, look].into_iter().flatten() {
            wake = wake.min(at);
        }
        wake
    }

    /// Sets the job's benchmark and ends the sampling of tasks.
    pub(crate) fn benchmark(&self, spec: BenchmarkSpec, pool: &Pool, now: Instant) {
        *lock(&self.sampler) = None;
        let id = spec.id();
        let mut state = self.state();
        state.spec = Some(spec);
        state.plan(BenchmarkEvent::Spec(id), pool, now);
    }

    /// Offers a task of another node that ran here for the sample.
    pub(crate) fn offer(&self, offer: &BenchmarkOffer) {
        if let Some(sampler) = &mut *lock(&self.sampler) {
            sampler.offer(offer);
        }
    }

    /// A benchmark made of tasks that ran here, once there are enough, if the job has none.
    pub(crate) fn candidate(&self) -> Option<BenchmarkSpec> {
        lock(&self.sampler).as_ref()?.spec(self.settings.least_sample)
    }

    /// Records a transfer from a peer that has ended.
    pub(crate) fn transferred(&self, from: &Peer, bytes: u64, began: Instant, ended: Instant) {
        if from.cluster != self.me {
            self.state().links.transfer(&from.cluster, &self.me, bytes, began, ended);
        }
    }

    /// Measures the node's speed again, since the job's efficiency is too uncertain for a decision.
    pub(crate) fn measure_again(&self, pool: &Pool, now: Instant) {
        self.state().plan(BenchmarkEvent::Uncertain, pool, now);
    }

    /// Ends a statistics period and returns its measurements. `round_trips` are those of the
    /// network's live links, with the clusters of the peers.
    pub(crate) fn end_period(
        &self,
        pool: &Pool,
        round_trips: &[(ClusterId, Duration)],
        now: Instant,
    ) -> PeriodMeasure {
        let mut state = self.state();
        state.count(pool);
        let load = state.read_load(now);
        state.speed.load(load, now);
        if let Err(nonsense) = state.speed.end_period(now) {
            tracing::warn!("{nonsense}");
        }
        let knows = state.speed.knows_units(now);
        if std::mem::replace(&mut state.knows_units, knows) != knows {
            state.plan(BenchmarkEvent::KnowsUnits(knows), pool, now);
        }
        if state.kernel.is_some() {
            let period = state.quota_period;
            state.plan(BenchmarkEvent::QuotaPeriod(period), pool, now);
            state.plan(BenchmarkEvent::Load(load), pool, now);
        }
        let far: Vec<_> = round_trips.iter().filter(|(cluster, _)| *cluster != self.me).collect();
        // In turns, if there are many.
        let first = state.next_link % far.len().max(1);
        let in_turn = far[first..].iter().chain(&far[..first]).take(ROUND_TRIPS_PER_PERIOD);
        for (cluster, rtt) in in_turn {
            state.links.round_trip(&self.me, cluster, *rtt, now);
        }
        state.next_link = first + ROUND_TRIPS_PER_PERIOD;
        let times = pool.times();
        let began = std::mem::replace(&mut state.period_began, times);
        PeriodMeasure {
            speed: state.speed.report(now),
            times: times.since(&began),
            threads: pool.threads(),
            links: state.links.report(now),
            load,
        }
    }

    /// Starts no further benchmark and ends the current one, since the node leaves the job or the
    /// job ends.
    pub(crate) fn leave(&self, pool: &Pool, now: Instant) {
        let mut state = self.state();
        state.plan(BenchmarkEvent::Leaving, pool, now);
        if let Some(run) = &state.run {
            run.halt();
        }
    }
}

impl MeteringState {
    /// Reports the work since the last count to the speed meter.
    fn count(&mut self, pool: &Pool) {
        let mut refused = 0;
        for (i, counter) in pool.units().enumerate() {
            refused += counter.refused();
            let Some(mark) = counter.take_record() else { continue };
            if self.last_counts.marks.len() <= i {
                self.last_counts.marks.resize(i + 1, SpeedPoint::default());
            }
            let before = &mut self.last_counts.marks[i];
            let units = mark.units - before.units;
            // If only tasks without a cost ended, their time counts with the next that has one.
            if units > 0.0 {
                self.speed.units(units, mark.busy.saturating_sub(before.busy));
                *before = mark;
            }
        }
        self.count_pace(pool);
        let known = std::mem::replace(&mut self.last_counts.refused, refused);
        if refused > known {
            let refused = refused - known;
            tracing::warn!(refused, "tasks declared a cost that is negative or no number");
        }
    }

    /// Reports the threads' processor time since the last count to the speed meter.
    fn count_pace(&mut self, pool: &Pool) {
        let times = pool.times();
        let busy = Duration::from_nanos(times.working_ns.saturating_add(times.bench_ns));
        let now = pool.thread_cpu().map(|cpu| (cpu, busy));
        let before = std::mem::replace(&mut self.last_counts.pace, now);
        if let (Some(before), Some(now)) = (before, now) {
            self.speed.pace(now.0.saturating_sub(before.0), now.1.saturating_sub(before.1));
        }
    }

    fn read_load(&mut self, now: Instant) -> Load {
        let Some((probe, before)) = &mut self.kernel else { return Load::default() };
        let sample = probe.sample(now);
        self.quota_period = sample.quota.map(|quota| quota.period);
        let before = std::mem::replace(before, sample);
        Load::between(&before, &sample)
    }

    /// Whether some thread has work of the job, or would have without a benchmark. A thread that
    /// waits for a result counts as well: with a benchmark it would get the result late, and so
    /// would those that wait for its own. A benchmark of 1.5 s at an iteration's end made the
    /// iteration half as long again, for all nodes.
    fn is_busy(&self, pool: &Pool) -> bool {
        use ThreadState::{WaitLocal, WaitWide, Working};
        pool.states().any(|state| matches!(state, Working | WaitLocal | WaitWide))
            || pool.queued() > 0
            // Whether or not requests for work are outstanding.
            || !pool.awaited().is_empty()
            || self.run.as_ref().is_some_and(|run| run.interrupts_work())
    }

    fn check_run(&mut self, pool: &Pool, now: Instant) {
        let Some(ended) = self.run.as_ref().and_then(|run| run.result(now).ok()) else { return };
        let Some(run) = self.run.take() else { return };
        pool.end_round();
        let event = match ended {
            RunResult::Failed(why) => {
                tracing::warn!(spec = %run.spec(), why, "the job's benchmark failed here");
                BenchmarkEvent::Failed
            }
            RunResult::Measured { speed, pace, whole } => {
                tracing::info!(spec = %run.spec(), ?speed, ?pace, whole, "a benchmark was run");
                if let Some(speed) = speed
                    && let Err(nonsense) = self.speed.benchmark(run.spec(), speed, pace, now)
                {
                    tracing::warn!("{nonsense}");
                }
                BenchmarkEvent::Finished { whole }
            }
        };
        self.plan(event, pool, now);
    }

    fn begin(
        &mut self,
        goal: BenchmarkGoal,
        pool: &Pool,
        now: Instant,
    ) -> Result<(), BenchmarkError> {
        // The planner knows of none before there is one, and means the newest.
        let Some(work) = &self.spec else { return Ok(()) };
        let run = Arc::new(ActiveRun::new(pool, work, goal, now)?);
        self.run = Some(run.clone());
        pool.begin_round(Arc::new(move |position| run.share(position)));
        Ok(())
    }

    /// Passes an event to the planner and executes its actions.
    fn plan(&mut self, event: BenchmarkEvent, pool: &Pool, now: Instant) {
        for action in self.planner.handle(event, now) {
            match action {
                BenchmarkAction::Run { spec, goal, reason: why } => {
                    tracing::info!(%spec, %why, length = ?goal.min_length, "a benchmark starts");
                    if let Err(error) = self.begin(goal, pool, now) {
                        tracing::warn!(%error, "the benchmark cannot be run");
                        return self.plan(BenchmarkEvent::Failed, pool, now);
                    }
                }
                BenchmarkAction::Stop => {
                    if let Some(run) = &self.run {
                        run.stop(now);
                    }
                }
                BenchmarkAction::Wake { at } => self.plan_at = Some(at),
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Steps under the locks leave the data consistent.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
