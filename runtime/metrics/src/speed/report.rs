//! What a node tells of its speed, and how speeds of several nodes are brought to one scale.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::meter::Load;

/// What a speed is measured in. Speeds are comparable under one specification only.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct SpecId(pub u64);

impl SpecId {
    /// Work units as the job's tasks declare them.
    pub const DECLARED: SpecId = SpecId(0);
}

impl fmt::Display for SpecId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// Where a speed comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SpeedSource {
    /// Work units of the job's own tasks.
    Units,
    /// A benchmark.
    Benchmark,
}

/// What a node tells of its speed each period. As a named map; fields may be added.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct SpeedReport {
    /// Units of `spec` a wall-clock second, all compute threads together.
    pub speed: f64,
    /// Relative standard error of it, grown with its age.
    pub relative_error: f64,
    /// What the speed is measured in.
    pub spec: SpecId,
    /// Where it comes from.
    pub source: SpeedSource,
    /// How the node was used by others in the last period.
    #[serde(default)]
    pub load: Load,
    /// How old the newest measurement in it is.
    pub age_us: u64,
    /// Declared units a second over the speed by this benchmark, on this node, where it has had both under one load.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exchange: Option<(SpecId, f64)>,
    /// Measurements refused as nonsense so far.
    #[serde(default)]
    pub refused: u64,
}

impl SpeedReport {
    /// The report as it may be used: absent if its speed is no positive number, else with its other numbers in range. For
    /// reports from the network.
    pub fn checked(&self) -> Option<Self> {
        let usable = |value: f64| value.is_finite() && value > 0.0;
        let error = self.relative_error;
        usable(self.speed).then(|| Self {
            // What is not said is not known: an error of 1 lets it steer least.
            relative_error: if error >= 0.0 { error.min(2.0) } else { 1.0 },
            load: self.load.checked(),
            exchange: self.exchange.filter(|(_, ratio)| usable(*ratio)),
            ..*self
        })
    }
}

/// A speed on the scale on which a job's nodes are compared.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Comparable {
    /// Units of the scale a second.
    pub speed: f64,
    /// Relative standard error.
    pub relative_error: f64,
}

/// What a job's nodes are compared in, and what a unit of other specifications is in it. Made by whoever compares, from the
/// reports at hand; may be spread, so that every cluster's sums are on one scale.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Scale {
    /// The specification of the scale.
    pub spec: SpecId,
    /// For others, what one of their units is on the scale.
    pub factors: BTreeMap<SpecId, f64>,
}

impl Scale {
    /// The scale that suits these reports: declared work units if any node tells them, else the benchmark under which most
    /// nodes were measured (of equally many, the one with the lowest id, so that all choose alike). A benchmark's factor to
    /// declared units is the median over the nodes that have had both.
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

    /// A node's speed on this scale; absent where it cannot be compared.
    pub fn compare(&self, report: &SpeedReport) -> Option<Comparable> {
        let report = report.checked()?;
        let factor = if report.spec == self.spec {
            1.0
        } else {
            *self.factors.get(&report.spec).filter(|factor| factor.is_finite() && **factor > 0.0)?
        };
        let speed = report.speed * factor;
        let relative_error = report.relative_error;
        (speed.is_finite() && speed > 0.0).then_some(Comparable { speed, relative_error })
    }
}
