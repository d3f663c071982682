//! A worker's statistics of a period, and their validation. A cluster coordinator keeps one history
//! for each worker. This module does not know other workers.

use std::collections::VecDeque;
use std::fmt;
use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize};
use springtide_base::id::{Incarnation, NodeId};
use springtide_base::processors::Processors;

use super::number::{float, maybe_float};
use super::settings::AdaptationSettings;

/// Tolerance for rounding of clocks, in a fraction.
const SLACK: f64 = 0.01;
/// Plausible speeds, in work units per second. The range keeps sums and ratios finite.
pub(super) const SPEEDS: RangeInclusive<f64> = 1e-18..=1e18;

/// Relative drift of a speed in a period without a report, as a standard deviation.
const DRIFT: f64 = 0.1;

/// Windows whose differences give the error of an overhead.
const WINDOWS: usize = 8;

/// Maximum periods over which overheads are averaged.
pub(super) const SPAN_MAX: u32 = 4096;

/// Minimum overhead of an idle worker.
pub(super) const IDLE_FROM: f64 = 0.9;

/// Maximum parts in which the averaged periods are kept.
const PARTS_MAX: u32 = 32;

/// Sums over successive periods of a worker.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct PeriodSums {
    /// Number of periods.
    periods: u32,
    /// Time that does not serve, in periods.
    time: f64,
    /// Overheads, in periods: total, intra-cluster and inter-cluster.
    overheads: [f64; 3],
}

impl PeriodSums {
    fn add(&mut self, other: &Self) {
        self.periods += other.periods;
        self.time += other.time;
        self.overheads.iter_mut().zip(other.overheads).for_each(|(sum, own)| *sum += own);
    }
}

/// Statistics of one worker in one period. A node with several processors reports the sum of their
/// speeds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct WorkerStats {
    /// Node of the worker.
    pub node: NodeId,
    /// Incarnation of this node.
    pub incarnation: Incarnation,
    /// Number of compute threads, one for each processor; 0 if it is unknown.
    pub threads: u32,
    /// Work units or benchmark runs per second, in the job's own unit; absent until measured.
    #[serde(with = "maybe_float")]
    pub speed: Option<f64>,
    /// Relative error of the speed, either way.
    #[serde(with = "float")]
    pub speed_error: f64,
    /// Fraction of the period not spent on the job's work: idle, communicating, benchmarking.
    #[serde(with = "float")]
    pub overhead: f64,
    /// Standard error of the overhead as a mean over its window: its scatter between windows.
    #[serde(with = "float")]
    pub overhead_error: f64,
    /// Part of it that waits for the own cluster.
    #[serde(with = "float")]
    pub overhead_intra: f64,
    /// Part of it that waits for other clusters. Includes idle time with only an inter-cluster
    /// steal outstanding.
    #[serde(with = "float")]
    pub overhead_inter: f64,
    /// Fraction of its threads' time in which the job's master waited for workers. The overheads
    /// are fractions of the rest.
    #[serde(with = "float")]
    pub serving: f64,
    /// Whether the worker has worked in some period so far.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub has_worked: bool,
    /// Age of these numbers in periods; 0 is this period.
    pub age: u32,
    /// Whole periods since the node joined the job.
    pub joined: u32,
    /// Whether the node was asked to leave.
    pub leaving: bool,
}

impl Default for WorkerStats {
    fn default() -> Self {
        Self {
            node: "".into(),
            incarnation: Incarnation::default(),
            threads: 1,
            speed: None,
            speed_error: 0.0,
            overhead: 0.0,
            overhead_error: 0.0,
            overhead_intra: 0.0,
            overhead_inter: 0.0,
            serving: 0.0,
            has_worked: false,
            age: 0,
            joined: 0,
            leaving: false,
        }
    }
}

/// A field of a worker's report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Field {
    /// [`WorkerStats::speed`].
    Speed,
    /// [`WorkerStats::speed_error`].
    SpeedError,
    /// [`WorkerStats::overhead`].
    Overhead,
    /// [`WorkerStats::overhead_intra`].
    Intra,
    /// [`WorkerStats::overhead_inter`].
    Inter,
}

/// An implausible number of a worker's report.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ImplausibleValue {
    /// Node that reported it.
    pub node: NodeId,
    /// Field with the number.
    pub field: Field,
    /// The value as reported.
    #[serde(with = "float")]
    pub value: f64,
    /// The value used instead. If absent, the node does not count.
    #[serde(with = "maybe_float", default)]
    pub replacement: Option<f64>,
}

impl fmt::Display for ImplausibleValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let field = match self.field {
            Field::Speed => "speed",
            Field::SpeedError => "speed error",
            Field::Overhead => "overhead",
            Field::Intra => "intra-cluster overhead",
            Field::Inter => "inter-cluster overhead",
        };
        write!(f, "node {} reported {field} {:.4}, which is impossible: ", self.node, self.value)?;
        match self.replacement {
            Some(instead) => write!(f, "{instead:.4} is used instead"),
            None => f.write_str("the node does not count until it reports plausible values"),
        }
    }
}

impl WorkerStats {
    /// Clamps rounding errors silently, and returns the first implausible field.
    pub(super) fn check(&mut self, best_speed: Option<f64>, factor: f64) -> Option<(Field, f64)> {
        for (field, value) in [
            (Field::Overhead, &mut self.overhead),
            (Field::Intra, &mut self.overhead_intra),
            (Field::Inter, &mut self.overhead_inter),
        ] {
            if !(*value >= -SLACK && *value <= 1.0 + SLACK) {
                return Some((field, *value));
            }
            *value = value.clamp(0.0, 1.0);
        }
        // A part cannot exceed the whole; the whole is known better.
        if self.overhead_inter > self.overhead + SLACK {
            return Some((Field::Inter, self.overhead_inter));
        }
        self.overhead_inter = self.overhead_inter.min(self.overhead);
        self.overhead_intra = self.overhead_intra.min(self.overhead);
        if !(self.speed_error >= 0.0 && self.speed_error.is_finite()) {
            return Some((Field::SpeedError, self.speed_error));
        }
        self.speed_error = self.speed_error.min(1.0);
        // Computed here, not measured: a value out of range is not a fault of the node.
        self.overhead_error =
            if self.overhead_error >= 0.0 { self.overhead_error.min(1.0) } else { 1.0 };
        let speed = self.speed?;
        let jump = best_speed.is_some_and(|best| speed >= factor * best);
        (!SPEEDS.contains(&speed) || jump).then_some((Field::Speed, speed))
    }

    fn get(&self, field: Field) -> Option<f64> {
        match field {
            Field::Speed => self.speed,
            Field::SpeedError => Some(self.speed_error),
            Field::Overhead => Some(self.overhead),
            Field::Intra => Some(self.overhead_intra),
            Field::Inter => Some(self.overhead_inter),
        }
    }

    /// Processors of the worker's node.
    pub fn processors(&self) -> Processors {
        Processors::of_node(self.threads)
    }

    /// Whether the worker has had no work so far, and does not wait for another cluster.
    pub(super) fn is_unused(&self) -> bool {
        let waits_wide = self.overhead_inter >= self.overhead / 2.0;
        !self.has_worked && self.overhead >= IDLE_FROM && !waits_wide
    }

    /// Whether the job's master occupies all of its processors, and waits for workers more than it
    /// works.
    pub(super) fn serves(&self) -> bool {
        let processors = f64::from(self.processors());
        self.serving * processors > processors - 0.5
    }

    /// Mean speed of its processors; 0 until measured.
    pub(super) fn processor_speed(&self) -> f64 {
        self.speed.unwrap_or(0.0) / f64::from(self.processors())
    }

    /// Standard error of the useful work that follows from that of the speed. A report from an
    /// earlier period has a larger one.
    pub(super) fn useful_error(&self) -> f64 {
        self.useful() * self.aged_error()
    }

    /// Relative error of the speed, with the drift since the report.
    pub(super) fn aged_error(&self) -> f64 {
        let drift = DRIFT * DRIFT * f64::from(self.age);
        (self.speed_error * self.speed_error + drift).sqrt().min(1.0)
    }

    /// Useful work per second: speed times the fraction of time worked.
    pub(super) fn useful(&self) -> f64 {
        self.speed.unwrap_or(0.0) * (1.0 - self.overhead)
    }
}

/// Validated statistics of one worker over its reports. A cluster coordinator keeps one for each
/// worker.
///
/// An implausible report counts as a missing one: the last valid report replaces it and ages. So a
/// false report or a broken clock never steers a decision. Speeds are compared with the best valid
/// one of this incarnation: a node that stood still for a while returns at a hundred times that
/// speed.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct WorkerHistory {
    last: Option<WorkerStats>,
    /// Overheads of the last periods in parts of about equal length, the newest last.
    recent: VecDeque<PeriodSums>,
    /// Mean overheads of the last windows, the newest last, and the periods in a window.
    windows: (u32, VecDeque<f64>),
    best_speed: Option<f64>,
    has_worked: bool,
    /// Whether a valid report arrived in the current period.
    fresh: bool,
}

impl WorkerHistory {
    /// Speed of the worker by its last valid report.
    pub fn speed(&self) -> Option<f64> {
        self.last.as_ref().and_then(|last| last.speed)
    }

    /// Forgets the speeds of earlier reports, since later ones are in another unit.
    pub fn forget_speeds(&mut self) {
        self.best_speed = None;
        if let Some(last) = &mut self.last {
            last.speed = None;
        }
    }

    /// Adds a report. Returns its first implausible number; then the rest of the report is
    /// discarded too.
    pub fn report(
        &mut self,
        mut new: WorkerStats,
        settings: &AdaptationSettings,
    ) -> Option<ImplausibleValue> {
        if self.last.as_ref().is_some_and(|last| last.incarnation > new.incarnation) {
            return None;
        }
        if self.last.as_ref().is_some_and(|last| last.incarnation < new.incarnation) {
            *self = Self::default();
        }
        if let Some((field, value)) = new.check(self.best_speed, settings.implausible_factor) {
            let instead = match &mut self.last {
                Some(last) => {
                    (last.joined, last.leaving) = (new.joined, new.leaving);
                    last.get(field)
                }
                None => {
                    let WorkerStats { node, incarnation, threads, joined, leaving, .. } = new;
                    let blank = WorkerStats {
                        node: node.clone(),
                        incarnation,
                        threads,
                        joined,
                        leaving,
                        age: 1,
                        ..WorkerStats::default()
                    };
                    self.last = Some(blank);
                    return Some(ImplausibleValue { node, field, value, replacement: None });
                }
            };
            return Some(ImplausibleValue { node: new.node, field, value, replacement: instead });
        }
        if let Some(speed) = new.speed {
            self.best_speed = Some(self.best_speed.map_or(speed, |best| best.max(speed)));
        }
        self.fresh = new.age == 0;
        self.last = Some(new);
        None
    }

    /// Adds the mean overhead of a window, and returns the standard error of such a mean.
    ///
    /// It is from the median of the differences between successive windows, which one change of the
    /// job does not move. Zero while there are fewer than three differences.
    fn window_error(&mut self, span: u32, overhead: f64) -> f64 {
        if self.windows.0 != span {
            self.windows = (span, VecDeque::new());
        }
        let windows = &mut self.windows.1;
        let length = span.div_ceil(PARTS_MAX);
        // One window for each part, so that there are few.
        if self.recent.back().is_none_or(|part| part.periods >= length) {
            windows.push_back(overhead);
        }
        let lag = span.div_ceil(length) as usize;
        while windows.len() > lag + WINDOWS {
            windows.pop_front();
        }
        let mut changes: Vec<f64> =
            windows.iter().zip(windows.iter().skip(lag)).map(|(a, b)| (b - a).abs()).collect();
        if changes.len() < 3 {
            return 0.0;
        }
        changes.sort_by(f64::total_cmp);
        // For normal errors the median of |a - b| is 0.954 standard deviations of one of the two.
        let scatter = changes[(changes.len() - 1) / 2] / 0.954;
        // No share with this mean has a larger standard deviation.
        scatter.min((overhead * (1.0 - overhead)).max(0.0).sqrt())
    }

    /// Adds a period, and returns the sums over the last `span` periods, as far as there are
    /// reports. In long spans, the oldest part may exceed the span.
    fn add_period(&mut self, period: PeriodSums, span: u32) -> PeriodSums {
        let length = span.div_ceil(PARTS_MAX);
        match self.recent.back_mut().filter(|part| part.periods < length) {
            Some(part) => part.add(&period),
            None => self.recent.push_back(period),
        }
        let mut sums = PeriodSums::default();
        let mut kept = 0;
        for part in self.recent.iter().rev() {
            if sums.periods >= span {
                break;
            }
            sums.add(part);
            kept += 1;
        }
        // The job's iterations may become longer.
        let most = self.recent.len().min((PARTS_MAX as usize).max(kept));
        self.recent.drain(..self.recent.len() - most);
        sums
    }

    /// Closes the period and returns its statistics, with overheads as means over the last `span`
    /// periods.
    ///
    /// The last report replaces a missing one and ages by a period. Absent if no report ever
    /// arrived.
    pub fn close_period(&mut self, span: u32) -> Option<WorkerStats> {
        let last = self.last.as_mut()?;
        if !std::mem::take(&mut self.fresh) {
            last.age = last.age.saturating_add(1);
        }
        let WorkerStats { overhead, overhead_intra, overhead_inter, serving, .. } = *last;
        let time = 1.0 - serving;
        let overheads = [overhead, overhead_intra, overhead_inter].map(|share| share * time);
        self.has_worked |= overhead < IDLE_FROM;
        let mut counted = WorkerStats { has_worked: self.has_worked, ..last.clone() };
        let span = span.clamp(1, SPAN_MAX);
        let mean = self.add_period(PeriodSums { periods: 1, time, overheads }, span);
        let share = |sum: f64| if mean.time > 0.0 { (sum / mean.time).min(1.0) } else { 0.0 };
        [counted.overhead, counted.overhead_intra, counted.overhead_inter] =
            mean.overheads.map(share);
        counted.serving = 1.0 - mean.time / f64::from(mean.periods);
        counted.overhead_error = self.window_error(span, counted.overhead);
        let Some(last) = self.last.as_mut() else { return Some(counted) };
        last.joined = last.joined.saturating_add(1);
        Some(counted)
    }
}
