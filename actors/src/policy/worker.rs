//! A worker's numbers of a period, and what of them is believed. A cluster coordinator keeps one history a worker.
//! Must not know of other workers.

use std::collections::VecDeque;
use std::fmt;
use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize};
use springtide_runtime::id::{Incarnation, NodeId};

use super::number::{float, maybe_float};
use super::settings::Settings;

/// What rounding of clocks may add to a fraction.
const SLACK: f64 = 0.01;
/// What a speed can be, in work units per second: keeps sums and ratios finite.
pub(super) const SPEEDS: RangeInclusive<f64> = 1e-18..=1e18;

/// Periods over which overheads are averaged at most.
pub(super) const SPAN_MAX: u32 = 32;

/// One worker's period. A node with several threads reports the speed of all of them together.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct WorkerStats {
    /// Which node.
    pub node: NodeId,
    /// Which life of it.
    pub incarnation: Incarnation,
    /// Its compute threads.
    pub threads: u32,
    /// Work units or benchmark runs per second, in the job's own unit; absent until measured.
    #[serde(with = "maybe_float")]
    pub speed: Option<f64>,
    /// By which fraction of it the speed may be wrong, either way.
    #[serde(with = "float")]
    pub speed_error: f64,
    /// Fraction of the period not spent on the job's work: idle, communicating, benchmarking.
    #[serde(with = "float")]
    pub overhead: f64,
    /// Of which waiting for the own cluster.
    #[serde(with = "float")]
    pub overhead_intra: f64,
    /// Of which waiting for other clusters; idle with only a steal between clusters outstanding belongs here.
    #[serde(with = "float")]
    pub overhead_inter: f64,
    /// Periods since these numbers were measured: 0 is this period.
    pub age: u32,
    /// Whole periods since it joined the job.
    pub joined: u32,
    /// Whether it was asked to leave.
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
            overhead_intra: 0.0,
            overhead_inter: 0.0,
            age: 0,
            joined: 0,
            leaving: false,
        }
    }
}

/// A field of a report.
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

/// A number that was not believed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Oddity {
    /// Whose.
    pub node: NodeId,
    /// Which number.
    pub field: Field,
    /// As reported.
    #[serde(with = "float")]
    pub value: f64,
    /// What stands in for it, if anything does: else the node does not count.
    #[serde(with = "maybe_float", default)]
    pub instead: Option<f64>,
}

impl fmt::Display for Oddity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let field = match self.field {
            Field::Speed => "speed",
            Field::SpeedError => "speed error",
            Field::Overhead => "overhead",
            Field::Intra => "intra-cluster overhead",
            Field::Inter => "inter-cluster overhead",
        };
        write!(f, "node {} reported {field} {:.4}, which cannot be: ", self.node, self.value)?;
        match self.instead {
            Some(instead) => write!(f, "{instead:.4} stands in for it"),
            None => f.write_str("the node does not count until it reports sense"),
        }
    }
}

impl WorkerStats {
    /// Clamps what may be clamped silently (rounding), and says what is nonsense.
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
        // A part cannot exceed the whole; the whole is the better known.
        if self.overhead_inter > self.overhead + SLACK {
            return Some((Field::Inter, self.overhead_inter));
        }
        self.overhead_inter = self.overhead_inter.min(self.overhead);
        self.overhead_intra = self.overhead_intra.min(self.overhead);
        if !(self.speed_error >= 0.0 && self.speed_error.is_finite()) {
            return Some((Field::SpeedError, self.speed_error));
        }
        self.speed_error = self.speed_error.min(1.0);
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

    /// What of a second of it is worked, in units of speed.
    pub(super) fn useful(&self) -> f64 {
        self.speed.unwrap_or(0.0) * (1.0 - self.overhead)
    }
}

/// What is believed of one worker, over its reports: a cluster coordinator keeps one each.
///
/// A report of nonsense counts as a missing one: the last believed report stands in for it, and grows old. So a liar,
/// or a broken clock, does not steer, whatever it says and for however long. A speed is compared with the best
/// believed one of this life, for a node that stood still for a while comes back a hundred times as fast as in that
/// while.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct History {
    last: Option<WorkerStats>,
    /// Overheads of the last periods, the newest last: in all, inside the cluster, between clusters.
    recent: VecDeque<[f64; 3]>,
    best_speed: Option<f64>,
    /// Whether a report was believed in the period that goes on.
    fresh: bool,
}

impl History {
    /// How fast it was when it last told.
    pub fn speed(&self) -> Option<f64> {
        self.last.as_ref().and_then(|last| last.speed)
    }

    /// Takes a report in. Returns what of it was nonsense; then nothing else of it is believed either.
    pub fn report(&mut self, mut new: WorkerStats, settings: &Settings) -> Option<Oddity> {
        if self.last.as_ref().is_some_and(|last| last.incarnation > new.incarnation) {
            return None;
        }
        if self.last.as_ref().is_some_and(|last| last.incarnation < new.incarnation) {
            *self = Self::default();
        }
        if let Some((field, value)) = new.check(self.best_speed, settings.nonsense_factor) {
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
                        ..WorkerStats::default()
                    };
                    self.last = Some(blank);
                    return Some(Oddity { node, field, value, instead: None });
                }
            };
            return Some(Oddity { node: new.node, field, value, instead });
        }
        if let Some(speed) = new.speed {
            self.best_speed = Some(self.best_speed.map_or(speed, |best| best.max(speed)));
        }
        self.fresh = new.age == 0;
        self.last = Some(new);
        None
    }

    /// The period is over: the numbers to count for it, overheads as means over the last `span` periods. A report that did not
    /// come is made up for by the last one, a period older. Absent if nothing was ever heard.
    pub fn close_period(&mut self, span: u32) -> Option<WorkerStats> {
        let last = self.last.as_mut()?;
        if !std::mem::take(&mut self.fresh) {
            last.age = last.age.saturating_add(1);
        }
        self.recent.push_back([last.overhead, last.overhead_intra, last.overhead_inter]);
        while self.recent.len() > SPAN_MAX as usize {
            self.recent.pop_front();
        }
        let mut counted = last.clone();
        let span = self.recent.len().min(span.max(1) as usize);
        let of =
            |i: usize| self.recent.iter().rev().take(span).map(|o| o[i]).sum::<f64>() / span as f64;
        (counted.overhead, counted.overhead_intra, counted.overhead_inter) = (of(0), of(1), of(2));
        last.joined = last.joined.saturating_add(1);
        Some(counted)
    }
}
