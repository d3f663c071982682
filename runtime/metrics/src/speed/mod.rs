//! The speed of a node for an application: work per second of wall time, from two signals with
//! errors.
//!
//! - *Work units*: where tasks declare a cost, the completed units over the busy time of threads.
//! - *Benchmarks*: runs of a fixed small amount of work ([`crate::meter::BenchmarkSpec`]).
//!
//! Both count wall time, not processor time, for a foreign load makes the node slower. A benchmark
//! is rare, but the *pace* of the compute threads is known in every period: their processor time
//! over their busy time. So the speed of a benchmark is kept per second of processor time, and the
//! report multiplies it by the current pace. Nodes whose threads run alike then have like speeds.
//!
//! Each signal
//! is followed by a Kalman filter of a local level in the logarithm of the speed (e.g. J. Durbin
//! and S. J. Koopman, Time Series Analysis by State Space Methods, chapter 2). The speed drifts a
//! little each period, so the error grows with age and the newest measurement has the most weight.
//! A jump beyond the errors, or a change of the kernel's load, discards the past. So a foreign load
//! shows in the first period that lies wholly under it.
//!
//! Source of speed by benchmark: Self-adaptive applications on the grid (PPoPP 2007), section 3.2;
//! of counting units, the same section on regular applications.
//!
//! It knows neither the sources of measurements nor the decisions based on them.
//!
//! # Input from the engine
//!
//! [`Task::cost`](crate::work::Task::cost) is the work of a task's own `run` without its children,
//! so the costs of completed tasks add up. They are added where a task's `run` returns, to the
//! thread's own [`UnitCounter`]. For tasks without a cost the compiler removes this code.
//!
//! At least five times a period the engine samples each counter. The thread then records its busy
//! time at the end of its next task. So units and their time match for tasks of any length.
//! Busy time is [`Times::working_ns`](super::Times) without the root's own code between its
//! children. That is time without units, and would make the root's node look slower. The
//! differences of successive records go to [`SpeedMeter::units`].

mod ratio;
mod report;

use std::fmt;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::time::Instant;

pub use ratio::Ratio;
pub use report::{Scale, ScaledSpeed, SpecId, SpeedReport, SpeedSource};

use super::load::{Load, LoadThresholds};

/// The units of a thread at the end of a task, and its busy time by then.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SpeedPoint {
    /// The completed units of work.
    pub units: f64,
    /// The busy time of the thread.
    pub busy: Duration,
}

/// The work units of tasks completed on one thread. Only that thread adds and records; any thread
/// reads.
#[derive(Debug, Default)]
pub struct UnitCounter {
    /// The bits of an `f64`.
    units: AtomicU64,
    /// The sum of squares, likewise.
    squares: AtomicU64,
    tasks: AtomicU64,
    refused: AtomicU64,
    /// The number of samples requested, and the last one that the thread answered.
    looks: AtomicU32,
    answered: AtomicU32,
    mark: Mutex<Option<SpeedPoint>>,
}

impl UnitCounter {
    /// Adds the cost that a task declared before it ran. Counts a negative or infinite cost as
    /// refused.
    ///
    /// Returns whether a sample was requested since the last record; then call
    /// [`UnitCounter::record`] at once.
    #[inline]
    pub fn add(&self, cost: f64) -> bool {
        if cost >= 0.0 && cost.is_finite() {
            // There is one writer, so plain stores lose no update.
            let add = |to: &AtomicU64, more: f64| {
                let sum = f64::from_bits(to.load(Ordering::Relaxed)) + more;
                to.store(sum.to_bits(), Ordering::Relaxed);
            };
            add(&self.units, cost);
            add(&self.squares, cost * cost);
            self.tasks.store(self.tasks.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        } else {
            let refused = self.refused.load(Ordering::Relaxed);
            self.refused.store(refused.saturating_add(1), Ordering::Relaxed);
        }
        self.looks.load(Ordering::Relaxed) != self.answered.load(Ordering::Relaxed)
    }

    /// Records the end of a task and the thread's busy time.
    #[cold]
    pub fn record(&self, busy: Duration) {
        self.answered.store(self.looks.load(Ordering::Relaxed), Ordering::Relaxed);
        let mark = SpeedPoint { units: self.units(), busy };
        *self.mark.lock().unwrap_or_else(PoisonError::into_inner) = Some(mark);
    }

    /// Takes the record since the last call, if any, and requests the next one.
    pub fn take_record(&self) -> Option<SpeedPoint> {
        let mark = self.mark.lock().unwrap_or_else(PoisonError::into_inner).take();
        self.looks.fetch_add(1, Ordering::Relaxed);
        mark
    }

    /// The units of work so far.
    pub fn units(&self) -> f64 {
        f64::from_bits(self.units.load(Ordering::Relaxed))
    }

    /// The number of tasks with a cost so far, the sum of their costs, and that of their squares.
    pub fn moments(&self) -> (u64, f64, f64) {
        let squares = f64::from_bits(self.squares.load(Ordering::Relaxed));
        (self.tasks.load(Ordering::Relaxed), self.units(), squares)
    }

    /// The number of refused costs so far.
    pub fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }
}

/// Parameters of the filter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SpeedSettings {
    /// The length of a statistics period.
    pub period: Duration,
    /// The standard deviation of the drift of the speed's logarithm per period. Default: 0.1.
    pub drift: f64,
    /// The least relative error of any measurement. Default: 0.01.
    pub min_error: f64,
    /// The relative error of a measurement of unknown error. Default: 0.25.
    pub unknown_error: f64,
    /// Standard errors from the expectation beyond which a measurement is a jump, which discards
    /// the past.
    ///
    /// Default: 2. A false alarm costs only the past, but a missed one a period.
    pub jump_threshold: f64,
    /// Factor above the highest speed of the past beyond which a speed is invalid. Default: 100.
    pub invalid_factor: f64,
    /// The greatest age of a benchmark: see
    /// [`BenchmarkSettings::max_age`](crate::meter::BenchmarkSettings::max_age). Default: 60 s.
    pub max_age: Duration,
    /// The relative error that a speed gains in `max_age`. Default: 0.1. It stands for what shows
    /// in no counter, such as the processor's frequency.
    pub age_error: f64,
    /// The share of busy time below which the pace is not measured. Default: 0.2. Threads without
    /// work use processor time too, so the pace would be too high.
    pub min_pace_busy: f64,
    /// The least relative error of the pace. Default: 0.02.
    pub min_pace_error: f64,
    /// Periods of silence after which a signal has no past, so any next value is accepted. Default:
    /// 10.
    pub forget_periods: u32,
    /// Periods for which work units remain valid. Then a more precise benchmark takes their place.
    /// Default: 2.
    pub fresh_periods: u32,
    /// The share of busy time below which a period gives no measurement. Default: 0.02.
    pub min_busy: f64,
    /// Thresholds of significant changes of load.
    pub thresholds: LoadThresholds,
}

impl Default for SpeedSettings {
    fn default() -> Self {
        Self {
            period: Duration::from_secs(10),
            drift: 0.1,
            min_error: 0.01,
            unknown_error: 0.25,
            jump_threshold: 2.0,
            invalid_factor: 100.0,
            max_age: Duration::from_secs(60),
            age_error: 0.1,
            min_pace_busy: 0.2,
            min_pace_error: 0.02,
            forget_periods: 10,
            fresh_periods: 2,
            min_busy: 0.02,
            thresholds: LoadThresholds::default(),
        }
    }
}

/// A single measurement of speed.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct SpeedMeasurement {
    /// Units of work per second, of all threads of the node together.
    pub speed: f64,
    /// The relative standard error; absent if unknown.
    pub relative_error: Option<f64>,
}

/// The reason for which a measurement is not used.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum InvalidSpeed {
    /// The speed is not positive.
    #[error(
        "a speed of {speed} was measured and not used: it must be a positive number; check the \
         tasks' cost()"
    )]
    NotPositive {
        /// The measured speed.
        speed: f64,
    },
    /// The speed is too high.
    #[error(
        "a speed of {speed} was measured and not used: it is more than {factor} times {highest}, \
         the highest so far; check the tasks' cost()"
    )]
    TooFast {
        /// The measured speed.
        speed: f64,
        /// The highest speed of the past.
        highest: f64,
        /// The factor that is accepted.
        factor: f64,
    },
}

/// The filtered state of one signal.
#[derive(Clone, Copy, Debug)]
struct FilterState {
    /// The logarithm of the speed.
    ln: f64,
    /// Its variance, at `at`.
    variance: f64,
    at: Instant,
    highest: f64,
}

/// The filtered speed of a benchmark.
#[derive(Clone, Copy, Debug)]
struct BenchmarkLevel {
    spec: SpecId,
    /// Per second of processor time if the pace was known, else per second of wall time.
    level: FilterState,
    has_pace: bool,
}

/// The factor by which a task's time may exceed the remembered time.
const TASK_FACTOR_MAX: u32 = 10;

/// The age in which a speed gains its error where its age has no limit.
const USUAL_AGE: Duration = Duration::from_secs(60);

/// The multiple of the threshold of a jump beyond which it is not an outlier.
const SURE_JUMP: f64 = 2.0;

/// The greatest variance of a signal: only the order of magnitude of the speed is known.
const VARIANCE_MAX: f64 = 4.0;

impl FilterState {
    /// The variance at `now` against which a new measurement is weighed. It includes a drift that
    /// keeps the filter quick.
    fn variance_at(&self, now: Instant, settings: &SpeedSettings) -> f64 {
        let passed = now.saturating_duration_since(self.at).as_secs_f64();
        let periods = passed / settings.period.as_secs_f64().max(1e-3);
        (self.variance + settings.drift * settings.drift * periods).min(VARIANCE_MAX)
    }

    /// The variance at `now` to report: it grows with age, so that the error gains `age_error` in
    /// the greatest age.
    fn aged_variance(&self, now: Instant, settings: &SpeedSettings) -> f64 {
        let age = now.saturating_duration_since(self.at).as_secs_f64();
        let limit = Some(settings.max_age).filter(|limit| !limit.is_zero());
        let ages = age / limit.unwrap_or(USUAL_AGE).as_secs_f64();
        (self.variance + settings.age_error * settings.age_error * ages).min(VARIANCE_MAX)
    }

    fn is_forgotten(&self, now: Instant, settings: &SpeedSettings) -> bool {
        now.saturating_duration_since(self.at) > settings.period * settings.forget_periods
    }
}

/// The relative error of a rate such that twice the error covers 95 % of cases.
///
/// The scatter of a few batches is itself uncertain. The factor is the quantile of Student's
/// distribution over that of the normal one, within 3 % from 5 batches on.
fn safe_error(period: &Ratio) -> Option<f64> {
    let freedom = f64::from(period.batches().saturating_sub(1));
    period.relative_error().map(|error| error * (1.0 + 1.5 / freedom.max(1.0)))
}

/// Updates a signal by a measurement.
fn follow(
    level: &mut Option<FilterState>,
    measured: SpeedMeasurement,
    now: Instant,
    settings: &SpeedSettings,
) -> Result<(), InvalidSpeed> {
    let speed = measured.speed;
    if !(speed.is_finite() && speed > 0.0) {
        return Err(InvalidSpeed::NotPositive { speed });
    }
    let error = measured.relative_error.filter(|error| error.is_finite() && *error >= 0.0);
    let error = error.unwrap_or(settings.unknown_error).clamp(settings.min_error, 1.0);
    let fresh = FilterState { ln: speed.ln(), variance: error * error, at: now, highest: speed };
    let Some(past) = level.filter(|past| !past.is_forgotten(now, settings)) else {
        *level = Some(fresh);
        return Ok(());
    };
    if speed > past.highest * settings.invalid_factor {
        let (highest, factor) = (past.highest, settings.invalid_factor);
        return Err(InvalidSpeed::TooFast { speed, highest, factor });
    }
    let highest = past.highest.max(speed);
    let expected = past.variance_at(now, settings);
    let surprise = fresh.ln - past.ln;
    let deviation = (expected + fresh.variance).sqrt();
    *level = Some(if surprise.abs() > SURE_JUMP * settings.jump_threshold * deviation {
        FilterState { highest, ..fresh }
    } else if surprise.abs() > settings.jump_threshold * deviation {
        // It may be a jump or an outlier, so the error includes the past.
        let doubt = surprise / settings.jump_threshold;
        FilterState { highest, variance: fresh.variance.max(doubt * doubt), ..fresh }
    } else {
        let gain = expected / (expected + fresh.variance);
        let (ln, variance) = (past.ln + gain * surprise, (1.0 - gain) * expected);
        FilterState { ln, variance, at: now.max(past.at), highest }
    });
    Ok(())
}

/// Tracks a node's speed in one job. Has no clock.
#[derive(Clone, Debug)]
pub struct SpeedMeter {
    settings: SpeedSettings,
    threads: u32,
    /// The work units of this period.
    period: Ratio,
    units: Option<FilterState>,
    benchmark: Option<BenchmarkLevel>,
    /// Processor time over busy time of the compute threads in this period.
    pace_period: Ratio,
    /// The same, over the periods.
    pace: Option<FilterState>,
    /// Units per second divided by benchmark speed, when both were last known under one load.
    exchange: Option<(SpecId, f64)>,
    load: Load,
    /// The load since `load_since`, under which both signals were measured.
    steady: Option<Load>,
    load_since: Option<Instant>,
    refused: u64,
}

impl SpeedMeter {
    /// A meter without measurements, of a node with this number of compute threads.
    pub fn new(threads: u32, settings: SpeedSettings) -> Self {
        Self {
            settings,
            threads: threads.max(1),
            period: Ratio::default(),
            units: None,
            benchmark: None,
            pace_period: Ratio::default(),
            pace: None,
            exchange: None,
            load: Load::default(),
            steady: None,
            load_since: None,
            refused: 0,
        }
    }

    /// Records work units and a thread's busy time for them. Call it several times a period, for
    /// the scatter gives the error.
    ///
    /// Times far beyond the remembered time are ignored, for they belong to tasks without a cost.
    /// The limit is high, for a node slowed down to a thirtieth takes minutes for a task of
    /// seconds.
    pub fn units(&mut self, units: f64, busy: Duration) {
        let most = self.settings.period * self.settings.forget_periods.max(1) * TASK_FACTOR_MAX;
        if busy <= most && !self.period.push(units, busy) {
            self.refused = self.refused.saturating_add(1);
        }
    }

    /// Records the compute threads' processor time in a stretch of their busy time. Call it several
    /// times a period, for the scatter gives the error.
    pub fn pace(&mut self, cpu: Duration, busy: Duration) {
        self.pace_period.push(cpu.as_secs_f64(), busy);
    }

    fn end_pace(&mut self, now: Instant) {
        let period = std::mem::take(&mut self.pace_period);
        let all = self.settings.period.as_secs_f64() * f64::from(self.threads);
        let is_busy = period.time().as_secs_f64() >= all * self.settings.min_pace_busy;
        if let Some(pace) = period.rate().filter(|_| is_busy) {
            self.follow_pace(pace, safe_error(&period), now);
        }
    }

    fn follow_pace(&mut self, pace: f64, error: Option<f64>, now: Instant) {
        // A thread has one processor at most; the two clocks are read one after the other.
        let speed = pace.min(1.0);
        let relative_error = error.map(|error| error.max(self.settings.min_pace_error));
        let measured = SpeedMeasurement { speed, relative_error };
        // A pace is at most 1, however low it is at first, so it is never too high.
        let known = self.pace.map(|level| FilterState { highest: 1.0, ..level });
        self.pace = known;
        if follow(&mut self.pace, measured, now, &self.settings).is_err() {
            self.pace = known;
        }
    }

    /// Ends a period: its units become a measurement if there was enough busy time. Returns whether
    /// they did.
    ///
    /// # Errors
    /// [`InvalidSpeed`]: the measurement is counted as refused and not used.
    pub fn end_period(&mut self, now: Instant) -> Result<bool, InvalidSpeed> {
        self.end_pace(now);
        let enough =
            self.settings.period.as_secs_f64() * f64::from(self.threads) * self.settings.min_busy;
        let Some(rate) = self.period.rate().filter(|_| self.period.time().as_secs_f64() >= enough)
        else {
            // Too little for a measurement, so it counts in the next period.
            return Ok(false);
        };
        let period = std::mem::take(&mut self.period);
        let measured = SpeedMeasurement {
            speed: rate * f64::from(self.threads),
            relative_error: safe_error(&period),
        };
        let taken = follow(&mut self.units, measured, now, &self.settings);
        self.after(taken, now).map(|()| true)
    }

    /// Records the result of a benchmark, with the processor time over the wall time of its threads
    /// where known.
    ///
    /// # Errors
    /// As for [`SpeedMeter::end_period`].
    pub fn benchmark(
        &mut self,
        spec: SpecId,
        measured: SpeedMeasurement,
        pace: Option<f64>,
        now: Instant,
    ) -> Result<(), InvalidSpeed> {
        let pace = pace.filter(|pace| pace.is_finite() && *pace > 0.0).map(|pace| pace.min(1.0));
        let has_pace = pace.is_some();
        // Under another specification, or without the pace, a speed is another quantity.
        let same = |old: &BenchmarkLevel| old.spec == spec && old.has_pace == has_pace;
        let mut level = self.benchmark.filter(same).map(|old| old.level);
        let speed = measured.speed / pace.unwrap_or(1.0);
        let at_full_pace = SpeedMeasurement { speed, ..measured };
        let taken = follow(&mut level, at_full_pace, now, &self.settings);
        if let (Ok(()), Some(level)) = (&taken, level) {
            self.benchmark = Some(BenchmarkLevel { spec, level, has_pace });
            let period = self.settings.period;
            let is_old = |known: FilterState| now.saturating_duration_since(known.at) > period;
            if let Some(pace) = pace.filter(|_| self.pace.is_none_or(is_old)) {
                // The node is idle, so nothing else shows its pace.
                self.follow_pace(pace, measured.relative_error, now);
            }
        }
        self.after(taken, now)
    }

    /// The speed by the benchmark at the current pace, as its logarithm with the variance.
    fn by_benchmark(&self, now: Instant) -> Option<(SpecId, f64, f64, Instant)> {
        let BenchmarkLevel { spec, level, has_pace } = self.benchmark?;
        let (mut ln, mut variance) = (level.ln, level.aged_variance(now, &self.settings));
        if let Some(pace) = self.pace.filter(|_| has_pace) {
            ln += pace.ln;
            variance += pace.aged_variance(now, &self.settings);
        }
        Some((spec, ln, variance.min(VARIANCE_MAX), level.at))
    }

    fn after(&mut self, taken: Result<(), InvalidSpeed>, now: Instant) -> Result<(), InvalidSpeed> {
        if taken.is_err() {
            self.refused = self.refused.saturating_add(1);
            return taken;
        }
        if let (Some(units), Some((spec, benchmark, _, at))) = (self.units, self.by_benchmark(now))
        {
            let settled = |level: &FilterState| {
                self.load_since.is_none_or(|since| level.at > since)
                    && !level.is_forgotten(now, &self.settings)
            };
            // A benchmark of any age is valid while the load is unchanged, or at a known pace.
            let has_pace = self.benchmark.is_some_and(|known| known.has_pace);
            let holds = has_pace || self.load_since.is_none_or(|since| at > since);
            let ratio = (units.ln - benchmark).exp();
            if settled(&units) && holds && ratio.is_finite() && ratio > 0.0 {
                self.exchange = Some((spec, ratio));
            }
        }
        taken
    }

    /// How the node is used by others, once a period, before [`SpeedMeter::end_period`]. If that
    /// has changed, what was measured before counts for little from here on.
    pub fn load(&mut self, load: Load, now: Instant) {
        self.load = load.checked();
        let Some(steady) = self.steady else {
            self.steady = Some(self.load);
            return;
        };
        if self.load.changed_from(&steady, &self.settings.thresholds).is_some() {
            self.steady = Some(self.load);
            self.load_since = Some(now);
            for level in self.units.iter_mut().chain(&mut self.pace) {
                level.variance = VARIANCE_MAX;
            }
            if let Some(BenchmarkLevel { level, has_pace, .. }) = &mut self.benchmark {
                // At a known pace, others still share caches and execution units.
                let unknown = self.settings.unknown_error * self.settings.unknown_error;
                let changed = if *has_pace { unknown } else { VARIANCE_MAX };
                level.variance = level.variance.max(changed);
            }
        }
    }

    /// Whether the node's speed is known from work units at `now`.
    pub fn knows_units(&self, now: Instant) -> bool {
        let longest = self.settings.period * self.settings.fresh_periods;
        self.units.is_some_and(|level| now.saturating_duration_since(level.at) <= longest)
    }

    /// The node's speed at `now`; none before the first measurement.
    ///
    /// From work units if they are fresh, else from the more precise signal. A benchmark is
    /// converted to work units if this node has had both under one load.
    pub fn report(&self, now: Instant) -> Option<SpeedReport> {
        let benchmark = self.by_benchmark(now);
        let by_units = self.units.and_then(|units| {
            let variance = units.aged_variance(now, &self.settings);
            let better = benchmark.is_some_and(|(_, _, other, _)| other < variance);
            (self.knows_units(now) || !better).then_some((units, variance))
        });
        let (ln, variance, at, spec, source, factor) = match (by_units, benchmark) {
            (Some((units, variance)), _) => {
                (units.ln, variance, units.at, SpecId::DECLARED, SpeedSource::Units, 1.0)
            }
            (None, Some((spec, ln, variance, at))) => {
                let known = self.exchange.filter(|(known, _)| *known == spec);
                let (spec, factor) =
                    known.map_or((spec, 1.0), |(_, factor)| (SpecId::DECLARED, factor));
                (ln, variance, at, spec, SpeedSource::Benchmark, factor)
            }
            (None, None) => return None,
        };
        let age = now.saturating_duration_since(at).as_micros();
        let speed = ln.exp() * factor;
        (speed.is_finite() && speed > 0.0).then_some(SpeedReport {
            speed,
            relative_error: variance.sqrt(),
            spec,
            source,
            load: self.load,
            age_us: u64::try_from(age).unwrap_or(u64::MAX),
            exchange: self.exchange,
            refused: self.refused,
        })
    }
}

impl fmt::Display for SpeedSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SpeedSource::Units => "work units",
            SpeedSource::Benchmark => "a benchmark",
        })
    }
}

#[cfg(test)]
mod tests;
