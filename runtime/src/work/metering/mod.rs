//! What is measured of a node while it takes part in a job: its speed, its load, its links; and the benchmarks for it.
//!
//! Ties the parts of [`meter`](crate::meter), which have no clock and do nothing, to the pool: counts work units and
//! busy time several times a period, asks the kernel for the load once a period, and carries out what the benchmarks'
//! planner says. Driven by the engine's pump; must not know the network or the other nodes.
//!
//! Busy time is that of threads in [`ThreadState::Working`] less the time that the job's root runs its own code,
//! between its children: the root declares no cost, and the node that holds it would look slower by that share. The
//! root's clock stops at each of its calls that can run other work (see `core::round`).
//!
//! Where the clock is not that of what is computed (virtual time), the kernel is asked nothing: there is no load but what the
//! model slows work down by.

mod run;
#[cfg(test)]
mod tests;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use self::run::{Ended, Run};
use super::bench::BenchmarkError;
use super::pool::Pool;
use crate::id::{ClusterId, Peer};
use crate::meter::{
    BenchmarkAction, BenchmarkEvent, BenchmarkGoal, BenchmarkSettings, BenchmarkSpec,
    LinkEstimator, LinkSettings, Load, Mark, Offer, PeriodMeasure, Planner, Probe, Sample, Sampler,
    SamplerSettings, SpeedMeter, SpeedSettings, ThreadState, Times,
};

/// Work units are looked at so often a period: their scatter gives the speed's error.
const LOOKS_A_PERIOD: u32 = 8;

/// Round trips that are taken down in a period: each goes into every report for minutes.
const ROUND_TRIPS_A_PERIOD: usize = 16;

/// How a node is measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MeteringSettings {
    /// How measurements of speed are combined; its period is the job's statistics period.
    pub speed: SpeedSettings,
    /// When benchmarks are run.
    pub benchmark: BenchmarkSettings,
    /// Which tasks are drawn for a benchmark, where the job has none.
    pub sampler: SamplerSettings,
    /// So many tasks make a sample that can be proposed. 4.
    pub least_sample: usize,
    /// How transfers are judged.
    pub links: LinkSettings,
    /// Of the sample.
    pub seed: u64,
}

impl MeteringSettings {
    /// The defaults under this statistics period.
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
}

/// Measures one node in one job.
pub(crate) struct Metering {
    settings: MeteringSettings,
    me: ClusterId,
    state: Mutex<State>,
    /// Apart, for compute threads come to it. Absent once the job has a benchmark.
    sampler: Mutex<Option<Sampler>>,
}

struct State {
    speed: SpeedMeter,
    planner: Planner,
    links: LinkEstimator,
    /// Links whose round trips were taken down since the first of them.
    links_told: usize,
    /// Absent in virtual time.
    kernel: Option<(Probe, Sample)>,
    spec: Option<BenchmarkSpec>,
    run: Option<Arc<Run>>,
    counted: Counted,
    count_at: Instant,
    /// When the planner wants to be asked again.
    plan_at: Option<Instant>,
    period_began: Times,
    busy: Option<bool>,
    knows_units: bool,
    quota_period: Option<Duration>,
}

/// What was counted up to the last look.
#[derive(Default)]
struct Counted {
    /// By thread.
    marks: Vec<Mark>,
    refused: u64,
}

impl Metering {
    /// `real`: whether the clock is that of what threads compute. Reads the kernel's counters if so.
    pub(crate) fn new(
        settings: MeteringSettings,
        me: ClusterId,
        threads: u32,
        real: bool,
        now: Instant,
    ) -> Self {
        let kernel = real.then(|| {
            let probe = Probe::new();
            let sample = probe.sample(now);
            (probe, sample)
        });
        let state = State {
            speed: SpeedMeter::new(threads, settings.speed),
            planner: Planner::new(settings.benchmark, now),
            links: LinkEstimator::new(settings.links),
            links_told: 0,
            kernel,
            spec: None,
            run: None,
            counted: Counted::default(),
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

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Does what is due; when to come again at the latest. Also to be called whenever a thread runs out of work or gets
    /// some.
    pub(crate) fn pump(&self, pool: &Pool, now: Instant) -> Instant {
        let mut state = self.state();
        if now >= state.count_at {
            state.count(pool);
            let every = self.settings.speed.period / LOOKS_A_PERIOD;
            state.count_at = now + every.max(Duration::from_millis(1));
        }
        let mut wake = state.count_at;
        state.look_at_run(pool, now);
        let busy = state.is_busy(pool);
        if state.busy.replace(busy) != Some(busy) {
            let event = if busy { BenchmarkEvent::Busy } else { BenchmarkEvent::Idle };
            state.plan(event, pool, now);
        }
        if state.plan_at.is_some_and(|at| at <= now) {
            state.plan_at = None;
            state.plan(BenchmarkEvent::Tick, pool, now);
        }
        let look = state.run.as_ref().and_then(|run| run.look(now).err());
        for at in [state.plan_at, look].into_iter().flatten() {
            wake = wake.min(at);
        }
        wake
    }

    /// The job has this benchmark from now on; tasks are drawn no more.
    pub(crate) fn benchmark(&self, spec: BenchmarkSpec, pool: &Pool, now: Instant) {
        *lock(&self.sampler) = None;
        let id = spec.id();
        let mut state = self.state();
        state.spec = Some(spec);
        state.plan(BenchmarkEvent::Spec(id), pool, now);
    }

    /// A task of another node ran here.
    pub(crate) fn offer(&self, offer: &Offer) {
        if let Some(sampler) = &mut *lock(&self.sampler) {
            sampler.offer(offer);
        }
    }

    /// A benchmark made of tasks that ran here, once there are enough of them and if the job has none yet.
    pub(crate) fn candidate(&self) -> Option<BenchmarkSpec> {
        lock(&self.sampler).as_ref()?.spec(self.settings.least_sample)
    }

    /// A transfer from a peer is over.
    pub(crate) fn transferred(&self, from: &Peer, bytes: u64, began: Instant, ended: Instant) {
        if from.cluster != self.me {
            self.state().links.transfer(&from.cluster, &self.me, bytes, began, ended);
        }
    }

    /// A statistics period is over: what was measured in it. `round_trips` are those of the network's links that are up, by the
    /// cluster of the other end.
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
        // Each in its turn, where there are many.
        let first = state.links_told % far.len().max(1);
        let in_turn = far[first..].iter().chain(&far[..first]).take(ROUND_TRIPS_A_PERIOD);
        for (cluster, rtt) in in_turn {
            state.links.round_trip(&self.me, cluster, *rtt, now);
        }
        state.links_told = first + ROUND_TRIPS_A_PERIOD;
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

    /// No benchmark begins any more, and what runs of one ends: the node leaves the job, or the job is over.
    pub(crate) fn leave(&self, pool: &Pool, now: Instant) {
        let mut state = self.state();
        state.plan(BenchmarkEvent::Leaving, pool, now);
        if let Some(run) = &state.run {
            run.halt();
        }
    }
}

impl State {
    /// Hands on what was done since the last time.
    fn count(&mut self, pool: &Pool) {
        let mut refused = 0;
        for (i, counter) in pool.units().enumerate() {
            refused += counter.refused();
            let Some(mark) = counter.look() else { continue };
            if self.counted.marks.len() <= i {
                self.counted.marks.resize(i + 1, Mark::default());
            }
            let before = &mut self.counted.marks[i];
            let units = mark.units - before.units;
            // Where tasks of no cost alone have ended, their time counts with the next that have one.
            if units > 0.0 {
                self.speed.units(units, mark.busy.saturating_sub(before.busy));
                *before = mark;
            }
        }
        let known = std::mem::replace(&mut self.counted.refused, refused);
        if refused > known {
            let refused = refused - known;
            tracing::warn!(refused, "tasks declared a cost that is negative or no number");
        }
    }

    fn read_load(&mut self, now: Instant) -> Load {
        let Some((probe, before)) = &mut self.kernel else { return Load::default() };
        let sample = probe.sample(now);
        self.quota_period = sample.quota.map(|quota| quota.period);
        let before = std::mem::replace(before, sample);
        Load::between(&before, &sample)
    }

    /// Whether some thread has work of the job, or would if it did not run a benchmark. So has one that waits for a result: it would come
    /// to it late, and whoever waits for what it makes of it with it. (One benchmark of a second and a half at an iteration's end was an
    /// iteration half as long again, for all nodes.)
    fn is_busy(&self, pool: &Pool) -> bool {
        use ThreadState::{WaitLocal, WaitWide, Working};
        pool.states().any(|state| matches!(state, Working | WaitLocal | WaitWide))
            || pool.queued() > 0
            // Whether or not anybody is asked for work meanwhile.
            || !pool.awaited().is_empty()
            || self.run.as_ref().is_some_and(|run| run.is_amid_work())
    }

    fn look_at_run(&mut self, pool: &Pool, now: Instant) {
        let Some(ended) = self.run.as_ref().and_then(|run| run.look(now).ok()) else { return };
        let Some(run) = self.run.take() else { return };
        pool.end_round();
        let event = match ended {
            Ended::Failed(why) => {
                tracing::warn!(spec = %run.spec(), why, "the job's benchmark failed here");
                BenchmarkEvent::Failed
            }
            Ended::Measured { speed, whole } => {
                tracing::info!(spec = %run.spec(), ?speed, whole, "a benchmark was run");
                if let Some(speed) = speed
                    && let Err(nonsense) = self.speed.benchmark(run.spec(), speed, now)
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
        let run = Arc::new(Run::new(pool, work, goal, now)?);
        self.run = Some(run.clone());
        pool.begin_round(Arc::new(move |place| run.share(place)));
        Ok(())
    }

    /// Tells the planner, and does what it says.
    fn plan(&mut self, event: BenchmarkEvent, pool: &Pool, now: Instant) {
        for action in self.planner.handle(event, now) {
            match action {
                BenchmarkAction::Run { spec, goal, why } => {
                    tracing::info!(%spec, %why, length = ?goal.at_least, "a benchmark begins");
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
    // Steps under the locks leave the data whole.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
