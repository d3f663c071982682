//! How fast a node is for this application: work done a wall-clock second, from two signals, each with its error.
//!
//! - *Work units*: where tasks declare a cost, the units done over the time in which threads were busy with them.
//! - *Benchmarks*: runs of a fixed small piece of work ([`crate::meter::BenchmarkSpec`]).
//!
//! Both count wall time, not processor time: what others take from the node makes it slower. Each signal is followed by a
//! Kalman filter of a local level in the logarithm of the speed (e.g. J. Durbin and S. J. Koopman, Time Series Analysis by
//! State Space Methods, chapter 2): the speed is thought to drift a little each period, so that the error grows with age and
//! the newest measurement counts most; a jump beyond what the errors explain, or a change of the kernel's load, makes the
//! past count for nothing. So a foreign load shows in the first period that lies wholly under it.
//!
//! Source of speed by benchmark: Self-adaptive applications on the grid (PPoPP 2007), section 3.2; of counting units, the
//! same section on regular applications.
//!
//! Must not know where measurements come from, nor what is decided by them.
//!
//! # What the engine feeds
//!
//! [`Task::cost`](crate::work::Task::cost) is the work of a task's own `run` without its children, so the costs of the tasks
//! that ended add up. The place to add them is where a task's `run` returns, into the thread's own [`UnitCounter`]; for tasks
//! without a cost the compiler leaves nothing of it. At least five times a period the engine looks at each counter, which
//! makes the thread note how long it has been busy when its next task ends: so units and the time they took belong together,
//! however long a task is. Busy is [`Times::working_ns`](super::Times), less the time that a job's root spends in its own
//! code, between its children: that is time without units, and the node that holds the root would look slower by that share.
//! What lies between two notes goes to [`SpeedMeter::units`].

mod ratio;
mod report;

use std::fmt;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::time::Instant;

pub use ratio::Ratio;
pub use report::{Comparable, Scale, SpecId, SpeedReport, SpeedSource};

use super::load::{Load, LoadThresholds};

/// What a thread had done at the end of a task, and how long it had been busy by then.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Mark {
    /// Units.
    pub units: f64,
    /// Time.
    pub busy: Duration,
}

/// Work units of the tasks that ended on one thread. That thread alone adds and notes; any thread reads.
#[derive(Debug, Default)]
pub struct UnitCounter {
    /// Bits of an `f64`.
    units: AtomicU64,
    /// The same of the squares.
    squares: AtomicU64,
    tasks: AtomicU64,
    refused: AtomicU64,
    /// How often somebody looked, and which look the thread answered last.
    looks: AtomicU32,
    answered: AtomicU32,
    mark: Mutex<Option<Mark>>,
}

impl UnitCounter {
    /// Adds the cost that a task had declared before it ran. A cost that is negative or no finite number is counted as refused.
    /// Returns whether somebody has looked since the last note: then [`UnitCounter::note`] is to be called at once.
    #[inline]
    pub fn add(&self, cost: f64) -> bool {
        if cost >= 0.0 && cost.is_finite() {
            // One writer: no update is lost, and plain stores suffice.
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

    /// A task has ended, and the thread has been busy for so long.
    #[cold]
    pub fn note(&self, busy: Duration) {
        self.answered.store(self.looks.load(Ordering::Relaxed), Ordering::Relaxed);
        let mark = Mark { units: self.units(), busy };
        *self.mark.lock().unwrap_or_else(PoisonError::into_inner) = Some(mark);
    }

    /// What was noted since the last look, if anything was; and asks for the next note.
    pub fn look(&self) -> Option<Mark> {
        let mark = self.mark.lock().unwrap_or_else(PoisonError::into_inner).take();
        self.looks.fetch_add(1, Ordering::Relaxed);
        mark
    }

    /// Units so far.
    pub fn units(&self) -> f64 {
        f64::from_bits(self.units.load(Ordering::Relaxed))
    }

    /// Tasks with a cost so far, the sum of their costs, and that of their squares.
    pub fn moments(&self) -> (u64, f64, f64) {
        let squares = f64::from_bits(self.squares.load(Ordering::Relaxed));
        (self.tasks.load(Ordering::Relaxed), self.units(), squares)
    }

    /// Costs refused so far.
    pub fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }
}

/// How measurements are combined.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SpeedSettings {
    /// Length of a statistics period.
    pub period: Duration,
    /// Standard deviation of the drift of the speed's logarithm in a period. 0.1.
    pub drift: f64,
    /// No measurement is thought better than this relative error. 0.01.
    pub least_error: f64,
    /// Relative error of a measurement that does not know its own. 0.25.
    pub unknown_error: f64,
    /// A measurement so many standard errors off what was expected is a jump: the past is dropped. 2: a false alarm costs
    /// nothing but the past, a missed one a period.
    pub jump: f64,
    /// A speed more than so many times the highest of its past is nonsense. 100.
    pub nonsense: f64,
    /// A signal silent for so many periods has no past: whatever comes next is believed. 10.
    pub forget: u32,
    /// Work units count as the node's speed for so many periods after the last ones; then a better known benchmark does. 2.
    pub fresh: u32,
    /// Periods with less busy time than this share of all threads' time give no measurement. 0.02.
    pub least_busy: f64,
    /// What counts as a change of load.
    pub thresholds: LoadThresholds,
}

impl Default for SpeedSettings {
    fn default() -> Self {
        Self {
            period: Duration::from_secs(10),
            drift: 0.1,
            least_error: 0.01,
            unknown_error: 0.25,
            jump: 2.0,
            nonsense: 100.0,
            forget: 10,
            fresh: 2,
            least_busy: 0.02,
            thresholds: LoadThresholds::default(),
        }
    }
}

/// A speed that was measured once.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measurement {
    /// Units of work a second, all threads of the node together.
    pub speed: f64,
    /// Relative standard error; absent if not known.
    pub relative_error: Option<f64>,
}

/// A measurement that is not used.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum Nonsense {
    /// No speed at all.
    #[error(
        "a speed of {speed} was measured and not used: it must be a positive number; look at the tasks' cost()"
    )]
    NotPositive {
        /// What was measured.
        speed: f64,
    },
    /// Too fast to be true.
    #[error(
        "a speed of {speed} was measured and not used: it is more than {factor} times {highest}, the highest so far; \
         look at the tasks' cost()"
    )]
    TooFast {
        /// What was measured.
        speed: f64,
        /// Its past's highest.
        highest: f64,
        /// How many times that is believed.
        factor: f64,
    },
}

/// One signal as it is believed to be.
#[derive(Clone, Copy, Debug)]
struct Level {
    /// Logarithm of the speed.
    ln: f64,
    /// Variance of that, at `at`.
    variance: f64,
    at: Instant,
    highest: f64,
}

/// A task may take so many times longer than what is looked back on.
const LONGEST: u32 = 10;

/// A signal's past does not say more than this: the error of a speed of which nothing is known but its order of magnitude.
const WIDE_OPEN: f64 = 4.0;

impl Level {
    /// Its variance at `now`, grown by the drift since it was measured.
    fn variance_at(&self, now: Instant, settings: &SpeedSettings) -> f64 {
        let passed = now.saturating_duration_since(self.at).as_secs_f64();
        let periods = passed / settings.period.as_secs_f64().max(1e-3);
        (self.variance + settings.drift * settings.drift * periods).min(WIDE_OPEN)
    }

    fn is_forgotten(&self, now: Instant, settings: &SpeedSettings) -> bool {
        now.saturating_duration_since(self.at) > settings.period * settings.forget
    }
}

/// Takes a measurement into a signal.
fn follow(
    level: &mut Option<Level>,
    measured: Measurement,
    now: Instant,
    settings: &SpeedSettings,
) -> Result<(), Nonsense> {
    let speed = measured.speed;
    if !(speed.is_finite() && speed > 0.0) {
        return Err(Nonsense::NotPositive { speed });
    }
    let error = measured.relative_error.filter(|error| error.is_finite() && *error >= 0.0);
    let error = error.unwrap_or(settings.unknown_error).clamp(settings.least_error, 1.0);
    let fresh = Level { ln: speed.ln(), variance: error * error, at: now, highest: speed };
    let Some(past) = level.filter(|past| !past.is_forgotten(now, settings)) else {
        *level = Some(fresh);
        return Ok(());
    };
    if speed > past.highest * settings.nonsense {
        let (highest, factor) = (past.highest, settings.nonsense);
        return Err(Nonsense::TooFast { speed, highest, factor });
    }
    let highest = past.highest.max(speed);
    let expected = past.variance_at(now, settings);
    let surprise = fresh.ln - past.ln;
    *level = Some(if surprise.abs() > settings.jump * (expected + fresh.variance).sqrt() {
        Level { highest, ..fresh }
    } else {
        let gain = expected / (expected + fresh.variance);
        let (ln, variance) = (past.ln + gain * surprise, (1.0 - gain) * expected);
        Level { ln, variance, at: now.max(past.at), highest }
    });
    Ok(())
}

/// Follows a node's speed in one job. Has no clock.
#[derive(Clone, Debug)]
pub struct SpeedMeter {
    settings: SpeedSettings,
    threads: u32,
    /// Work units of this period.
    period: Ratio,
    units: Option<Level>,
    benchmark: Option<(SpecId, Level)>,
    /// Units a second over benchmark speed, of the last time both were known under one load.
    exchange: Option<(SpecId, f64)>,
    load: Load,
    /// The load under which both signals' measurements since `load_since` were made.
    steady: Option<Load>,
    load_since: Option<Instant>,
    refused: u64,
}

impl SpeedMeter {
    /// A meter of a node with so many compute threads that knows nothing yet.
    pub fn new(threads: u32, settings: SpeedSettings) -> Self {
        Self {
            settings,
            threads: threads.max(1),
            period: Ratio::default(),
            units: None,
            benchmark: None,
            exchange: None,
            load: Load::default(),
            steady: None,
            load_since: None,
            refused: 0,
        }
    }

    /// So many work units took a thread `busy`. To be told several times a period, for the scatter gives the error.
    ///
    /// Units that took many times longer than is ever looked back on are not used: that time went to tasks without a cost. Not
    /// fewer: a node slowed down to a thirtieth takes minutes for a task of seconds.
    pub fn units(&mut self, units: f64, busy: Duration) {
        let most = self.settings.period * self.settings.forget.max(1) * LONGEST;
        if busy <= most && !self.period.push(units, busy) {
            self.refused = self.refused.saturating_add(1);
        }
    }

    /// The period ends: its units become a measurement, if there was busy time enough. Returns whether they did.
    ///
    /// # Errors
    /// [`Nonsense`]: the measurement is counted as refused and not used.
    pub fn end_period(&mut self, now: Instant) -> Result<bool, Nonsense> {
        let enough =
            self.settings.period.as_secs_f64() * f64::from(self.threads) * self.settings.least_busy;
        let Some(rate) = self.period.rate().filter(|_| self.period.time().as_secs_f64() >= enough)
        else {
            // Too little to tell, but not nothing: it counts in the next period.
            return Ok(false);
        };
        let period = std::mem::take(&mut self.period);
        let measured = Measurement {
            speed: rate * f64::from(self.threads),
            relative_error: period.relative_error(),
        };
        let taken = follow(&mut self.units, measured, now, &self.settings);
        self.after(taken, now).map(|()| true)
    }

    /// A benchmark ran.
    ///
    /// # Errors
    /// As [`SpeedMeter::end_period`].
    pub fn benchmark(
        &mut self,
        spec: SpecId,
        measured: Measurement,
        now: Instant,
    ) -> Result<(), Nonsense> {
        // Under another specification a speed is another quantity.
        let mut level = self.benchmark.filter(|(old, _)| *old == spec).map(|(_, level)| level);
        let taken = follow(&mut level, measured, now, &self.settings);
        if let (Ok(()), Some(level)) = (&taken, level) {
            self.benchmark = Some((spec, level));
        }
        self.after(taken, now)
    }

    fn after(&mut self, taken: Result<(), Nonsense>, now: Instant) -> Result<(), Nonsense> {
        if taken.is_err() {
            self.refused = self.refused.saturating_add(1);
            return taken;
        }
        if let (Some(units), Some((spec, benchmark))) = (self.units, self.benchmark) {
            let settled = |level: &Level| {
                self.load_since.is_none_or(|since| level.at > since)
                    && !level.is_forgotten(now, &self.settings)
            };
            // A benchmark holds as long as the load does, however old.
            let holds = self.load_since.is_none_or(|since| benchmark.at > since);
            let ratio = (units.ln - benchmark.ln).exp();
            if settled(&units) && holds && ratio.is_finite() && ratio > 0.0 {
                self.exchange = Some((spec, ratio));
            }
        }
        taken
    }

    /// How the node is used by others, once a period, before [`SpeedMeter::end_period`]. If that has changed, what was
    /// measured before counts for little from here on.
    pub fn load(&mut self, load: Load, now: Instant) {
        self.load = load.checked();
        let Some(steady) = self.steady else {
            self.steady = Some(self.load);
            return;
        };
        if self.load.changed_from(&steady, &self.settings.thresholds).is_some() {
            self.steady = Some(self.load);
            self.load_since = Some(now);
            for level in
                self.units.iter_mut().chain(self.benchmark.as_mut().map(|(_, level)| level))
            {
                level.variance = WIDE_OPEN;
            }
        }
    }

    /// Whether the node's speed is known from work units at `now`.
    pub fn knows_units(&self, now: Instant) -> bool {
        let longest = self.settings.period * self.settings.fresh;
        self.units.is_some_and(|level| now.saturating_duration_since(level.at) <= longest)
    }

    /// What is known of the node's speed at `now`; absent before the first measurement.
    ///
    /// Work units where they are fresh; else the signal that is better known by now. A benchmark is told in work units where
    /// this node has once had both under one load.
    pub fn report(&self, now: Instant) -> Option<SpeedReport> {
        let variance = |level: &Level| level.variance_at(now, &self.settings);
        let by_units = self.units.filter(|units| {
            let better = |(_, b): &(SpecId, Level)| variance(b) < variance(units);
            self.knows_units(now) || !self.benchmark.as_ref().is_some_and(better)
        });
        let (level, spec, source, factor) = match (by_units, self.benchmark) {
            (Some(units), _) => (units, SpecId::DECLARED, SpeedSource::Units, 1.0),
            (None, Some((spec, level))) => {
                match self.exchange.filter(|(known, _)| *known == spec) {
                    Some((_, factor)) => (level, SpecId::DECLARED, SpeedSource::Benchmark, factor),
                    None => (level, spec, SpeedSource::Benchmark, 1.0),
                }
            }
            (None, None) => return None,
        };
        let age = now.saturating_duration_since(level.at).as_micros();
        let speed = level.ln.exp() * factor;
        (speed.is_finite() && speed > 0.0).then_some(SpeedReport {
            speed,
            relative_error: variance(&level).sqrt(),
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
