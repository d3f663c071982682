//! Measured speeds of nodes: those of single nodes for a limited time, those of kinds permanently.
//!
//! A node's own speed is measured at work or by a benchmark. It may be lower than its kind's
//! because of other programs. The cause may end, so that the value expires after
//! [`OWN_SPEED_TTL`]. Nodes of one kind have the same processors and the same number of compute
//! threads. Speeds are comparable only under one [`Unit`].
//!
//! This module must not depend on the use of the speeds.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use springtide_base::id::{JobId, NodeId};
use springtide_metrics::SpecId;
use tokio::time::Instant;

use super::choose::is_rate;
use crate::scheduler::NodeRegistration;

/// Time after which a node's own speed expires.
pub(super) const OWN_SPEED_TTL: Duration = Duration::from_secs(60);
/// Delay before a failed benchmark is repeated on a node, or on others of an unknown kind.
const BENCHMARK_RETRY_DELAY: Duration = Duration::from_secs(60);
/// Greatest number of speeds at work that are kept of a kind.
const AT_WORK_MAX: usize = 32;
/// Greatest number of units that are kept: the last used ones.
const UNITS_MAX: usize = 64;

/// Unit of speeds. Declared work units depend on a job's tasks, so that they belong to the job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Unit {
    spec: SpecId,
    job: Option<JobId>,
}

impl Unit {
    /// The unit of a specification, as `job` uses it.
    pub(super) fn of(spec: SpecId, job: JobId) -> Self {
        Self { spec, job: (spec == SpecId::DECLARED).then_some(job) }
    }
}

/// Nodes that are equally fast, unless other programs run on them.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum SpeedClass {
    /// Nodes with these processors and this number of compute threads.
    Known { model: String, processors: u32, threads: u32 },
    /// A node without information forms a kind of its own.
    Alone(NodeId),
}

impl SpeedClass {
    pub(super) fn of(registration: &NodeRegistration) -> Self {
        let hardware = &registration.hardware;
        if hardware.model.is_empty() {
            return SpeedClass::Alone(registration.node.clone());
        }
        let (model, processors) = (hardware.model.clone(), hardware.threads);
        SpeedClass::Known { model, processors, threads: registration.threads }
    }
}

#[derive(Clone, Debug)]
struct KindSpeed {
    speed: f64,
    /// Whether the speed is from a benchmark on an idle node.
    benchmarked: bool,
    /// Last speeds at work of all nodes of the kind.
    at_work: VecDeque<f64>,
}

impl KindSpeed {
    /// Adds a speed at work. The kind's speed is the upper quartile of the last ones.
    ///
    /// The maximum would be the luckiest measurement. The mean would fall with nodes on which other
    /// programs run.
    fn add_at_work(&mut self, speed: f64) {
        if self.at_work.len() == AT_WORK_MAX {
            self.at_work.pop_front();
        }
        self.at_work.push_back(speed);
        if !self.benchmarked {
            let mut all: Vec<f64> = self.at_work.iter().copied().collect();
            all.sort_by(f64::total_cmp);
            self.speed = all[(all.len() * 3 / 4).min(all.len() - 1)];
        }
    }
}

#[derive(Debug, Default)]
struct UnitSpeeds {
    used: u64,
    kinds: BTreeMap<SpeedClass, KindSpeed>,
    nodes: BTreeMap<NodeId, (f64, Instant)>,
    /// Failed benchmarks, with the kinds of their nodes.
    failed: BTreeMap<NodeId, (SpeedClass, Instant)>,
}

fn is_lately(failed: Instant, now: Instant) -> bool {
    now.saturating_duration_since(failed) < BENCHMARK_RETRY_DELAY
}

impl UnitSpeeds {
    /// Whether the benchmark failed on this node too recently to be repeated.
    fn failed_lately(&self, node: &NodeId, now: Instant) -> bool {
        self.failed.get(node).is_some_and(|(_, at)| is_lately(*at, now))
    }

    /// The kinds of all such nodes.
    fn failed_kinds(&self, now: Instant) -> BTreeSet<&SpeedClass> {
        let failed = self.failed.values().filter(|(_, at)| is_lately(*at, now));
        failed.map(|(kind, _)| kind).collect()
    }
}

/// All known speeds.
#[derive(Debug, Default)]
pub(super) struct Speeds {
    units: BTreeMap<Unit, UnitSpeeds>,
    uses: u64,
    /// Nodes that were slower than their kind at their last measurement, in any unit.
    slow: BTreeSet<NodeId>,
}

impl Speeds {
    fn of(&mut self, unit: Unit) -> &mut UnitSpeeds {
        self.uses += 1;
        if self.units.len() >= UNITS_MAX && !self.units.contains_key(&unit) {
            let oldest =
                self.units.iter().min_by_key(|(_, known)| known.used).map(|(&unit, _)| unit);
            self.units.retain(|known, _| Some(*known) != oldest);
        }
        let known = self.units.entry(unit).or_default();
        known.used = self.uses;
        known
    }

    /// Records a node's benchmark. An invalid speed is returned as the error.
    pub(super) fn benchmarked(
        &mut self,
        unit: Unit,
        registration: &NodeRegistration,
        speed: f64,
        now: Instant,
    ) -> Result<(), f64> {
        if !is_rate(speed) {
            self.failed(unit, registration, now);
            return Err(speed);
        }
        let known = self.of(unit);
        known.nodes.insert(registration.node.clone(), (speed, now));
        let at_work = VecDeque::new();
        let new = KindSpeed { speed, benchmarked: true, at_work };
        let kind = known.kinds.entry(SpeedClass::of(registration)).or_insert(new);
        // The best result shows the hardware's speed. A result far below the speeds at work does
        // not: other programs run there.
        if kind.benchmarked || speed < kind.speed * DOUBTFUL {
            kind.speed = kind.speed.max(speed);
        } else {
            kind.speed = speed;
            kind.benchmarked = true;
        }
        known.failed.remove(&registration.node);
        self.compare(unit, registration, speed);
        Ok(())
    }

    /// Records whether a node with this speed is slowed by other programs.
    fn compare(&mut self, unit: Unit, registration: &NodeRegistration, speed: f64) {
        let kind = self.of_kind(Some(unit), registration);
        if kind.is_some_and(|kind| speed < kind * DOUBTFUL) {
            self.slow.insert(registration.node.clone());
        } else {
            self.slow.remove(&registration.node);
        }
    }

    /// Records a failed benchmark. If the node is too slow to finish in time, it is no faster than
    /// at its last measurement, which remains valid.
    pub(super) fn failed(&mut self, unit: Unit, registration: &NodeRegistration, now: Instant) {
        let known = self.of(unit);
        if let Some((_, at)) = known.nodes.get_mut(&registration.node) {
            *at = now;
        }
        known.failed.insert(registration.node.clone(), (SpeedClass::of(registration), now));
    }

    /// Records a node's speed at work. An invalid speed is returned as the error.
    pub(super) fn at_work(
        &mut self,
        unit: Unit,
        registration: &NodeRegistration,
        speed: f64,
        now: Instant,
    ) -> Result<(), f64> {
        if !is_rate(speed) {
            return Err(speed);
        }
        let known = self.of(unit);
        known.nodes.insert(registration.node.clone(), (speed, now));
        let at_work = VecDeque::new();
        let new = KindSpeed { speed, benchmarked: false, at_work };
        known.kinds.entry(SpeedClass::of(registration)).or_insert(new).add_at_work(speed);
        self.compare(unit, registration, speed);
        Ok(())
    }

    /// The node's own speed, if it was measured recently.
    pub(super) fn own(&self, unit: Option<Unit>, node: &NodeId, now: Instant) -> Option<f64> {
        let (speed, at) = self.units.get(&unit?)?.nodes.get(node)?;
        (now.saturating_duration_since(*at) < OWN_SPEED_TTL).then_some(*speed)
    }

    /// The speed of the node's kind.
    pub(super) fn of_kind(
        &self,
        unit: Option<Unit>,
        registration: &NodeRegistration,
    ) -> Option<f64> {
        Some(self.units.get(&unit?)?.kinds.get(&SpeedClass::of(registration))?.speed)
    }

    /// The node's own speed, or that of its kind.
    ///
    /// The speed is unknown after a failed benchmark. It is also unknown after the own speed of a
    /// slowed node has expired: other programs may still run there.
    pub(super) fn best(
        &self,
        unit: Option<Unit>,
        registration: &NodeRegistration,
        now: Instant,
    ) -> Option<f64> {
        let known = self.units.get(&unit?)?;
        let node = &registration.node;
        let doubtful = || known.failed_lately(node, now) || self.slow.contains(node);
        self.own(unit, node, now)
            .or_else(|| self.of_kind(unit, registration).filter(|_| !doubtful()))
    }

    /// Whether one of these nodes was slower than its kind at its last measurement.
    pub(super) fn any_slow(&self, nodes: &[NodeId]) -> bool {
        nodes.iter().any(|node| self.slow.contains(node))
    }

    /// The free nodes to measure: one of each unknown kind, and each that was slower than its kind,
    /// since the cause may have ended. `settled` are kinds that need no measurement.
    pub(super) fn to_measure<'a>(
        &self,
        unit: Unit,
        free: impl Iterator<Item = &'a NodeRegistration>,
        mut settled: BTreeSet<SpeedClass>,
        now: Instant,
    ) -> Vec<NodeId> {
        let none = UnitSpeeds::default();
        let known = self.units.get(&unit).unwrap_or(&none);
        let failed = known.failed_kinds(now);
        let mut chosen = Vec::new();
        for registration in free {
            let kind = SpeedClass::of(registration);
            let is_known = known.kinds.contains_key(&kind);
            if known.failed_lately(&registration.node, now) || (!is_known && failed.contains(&kind))
            {
                continue;
            }
            let doubtful = || {
                let Some(kind) = known.kinds.get(&kind) else { return false };
                match known.nodes.get(&registration.node) {
                    Some((speed, at)) => {
                        let old = now.saturating_duration_since(*at) >= OWN_SPEED_TTL;
                        old && *speed < kind.speed * DOUBTFUL
                    }
                    None => self.slow.contains(&registration.node),
                }
            };
            if doubtful() || (!is_known && settled.insert(kind.clone())) {
                chosen.push(registration.node.clone());
            }
        }
        chosen
    }

    /// Drops the units of an ended job.
    pub(super) fn forget(&mut self, job: JobId) {
        self.units.retain(|unit, _| unit.job != Some(job));
    }
}

/// Share of its kind's speed below which a node is slowed by other programs.
const DOUBTFUL: f64 = 0.8;
