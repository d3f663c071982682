//! The reported speed of a node, and the common scale of several nodes' speeds.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::meter::Load;

/// The quantity of a speed. Speeds are comparable under one specification only.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct SpecId(pub u64);

impl SpecId {
    /// Work units as declared by the job's tasks.
    pub const DECLARED: SpecId = SpecId(0);
}

impl fmt::Display for SpecId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// The source of a speed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SpeedSource {
    /// Work units of the job's own tasks.
    Units,
    /// A benchmark of the node.
    Benchmark,
}

/// The speed of a node, as reported each period. Encoded as a named map, to which fields may be
/// added.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct SpeedReport {
    /// Units of `spec` per second of wall time, of all compute threads together.
    pub speed: f64,
    /// The relative standard error, which grows with age.
    pub relative_error: f64,
    /// The quantity of the speed.
    pub spec: SpecId,
    /// The source of the speed.
    pub source: SpeedSource,
    /// The use of the node by other programs in the last period.
    #[serde(default)]
    pub load: Load,
    /// The age of the newest measurement in it, in microseconds.
    pub age_us: u64,
    /// Declared units per second divided by the speed by this benchmark, if the node has had both
    /// under one load.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exchange: Option<(SpecId, f64)>,
    /// The number of measurements refused so far.
    #[serde(default)]
    pub refused: u64,
}

impl SpeedReport {
    /// The report with its values in range; none if the speed is not positive. For reports from the
    /// network.
    pub fn checked(&self) -> Option<Self> {
        let usable = |value: f64| value.is_finite() && value > 0.0;
        let error = self.relative_error;
        usable(self.speed).then(|| Self {
            // An unknown error becomes 1, so that it has the least influence.
            relative_error: if error >= 0.0 { error.min(2.0) } else { 1.0 },
            load: self.load.checked(),
            exchange: self.exchange.filter(|(_, ratio)| usable(*ratio)),
            ..*self
        })
    }
}

/// A speed on the common scale of a job's nodes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ScaledSpeed {
    /// Units of the scale per second.
    pub speed: f64,
    /// The relative standard error.
    pub relative_error: f64,
}

/// The common scale of a job's nodes, with the factors of other specifications.
///
/// Computed from the reports at hand. It may be distributed, so that all clusters' sums use one
/// scale.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Scale {
    /// The specification of the scale.
    pub spec: SpecId,
    /// For each other specification, the value of its unit on the scale.
    pub factors: BTreeMap<SpecId, f64>,
}

impl Scale {
    /// The scale for these reports: declared work units if any node reports them, else the most
    /// frequent benchmark.
    ///
    /// Ties go to the lowest id, so that all choose alike. A benchmark's factor to declared units
    /// is the median over the nodes that have had both.
    pub fn from_reports<'a>(reports: impl IntoIterator<Item = &'a SpeedReport>) -> Self {
        let mut counts: BTreeMap<SpecId, usize> = BTreeMap::new();
        let mut ratios: BTreeMap<SpecId, Vec<f64>> = BTreeMap::new();
        for report in reports.into_iter().filter_map(SpeedReport::checked) {
            *counts.entry(report.spec).or_default() += 1;
            if let Some((spec, ratio)) = report.exchange {
                ratios.entry(spec).or_default().push(ratio);
            }
        }
        if counts.contains_key(&SpecId::DECLARED) {
            let factors = ratios.into_iter().map(|(spec, mut ratios)| {
                let middle = ratios.len() / 2;
                let (_, &mut median, _) = ratios.select_nth_unstable_by(middle, f64::total_cmp);
                (spec, median)
            });
            return Self { spec: SpecId::DECLARED, factors: factors.collect() };
        }
        let most = counts.iter().rev().max_by_key(|(_, count)| **count);
        Self { spec: most.map_or(SpecId::DECLARED, |(spec, _)| *spec), factors: BTreeMap::new() }
    }

    /// A node's speed on this scale; none if it is not comparable.
    pub fn compare(&self, report: &SpeedReport) -> Option<ScaledSpeed> {
        let report = report.checked()?;
        let factor = if report.spec == self.spec {
            1.0
        } else {
            *self.factors.get(&report.spec).filter(|factor| factor.is_finite() && **factor > 0.0)?
        };
        let speed = report.speed * factor;
        let relative_error = report.relative_error;
        (speed.is_finite() && speed > 0.0).then_some(ScaledSpeed { speed, relative_error })
    }
}
