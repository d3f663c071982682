//! How fast nodes are, as far as somebody measured it: of single nodes for a while, of their kind for good.
//!
//! A node's own speed was measured while it worked for a job or ran a benchmark; it may be lower than its kind's
//! because something else runs there, which is why it is forgotten after [`FRESH`]: what was wrong then may be over.
//! Nodes of one kind have the same processors and as many compute threads. Speeds are comparable only under one
//! [`Unit`].
//!
//! Must not know what the speeds are used for.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use springtide_runtime::id::{JobId, NodeId};
use springtide_runtime::meter::SpecId;
use tokio::time::Instant;

use super::choose::is_rate;
use crate::scheduler::Registered;

/// A node's own speed counts for so long.
pub(super) const FRESH: Duration = Duration::from_secs(60);
/// After a benchmark failed on a node it is not tried again there for so long, nor on its kind unless that is known.
const RETRY: Duration = Duration::from_secs(60);
/// So many speeds at work are remembered of a kind.
const MOST_AT_WORK: usize = 32;
/// So many units are remembered, the last used ones.
const MOST_UNITS: usize = 64;

/// What speeds are measured in. Declared work units mean what one job's tasks declare, so they are the job's own.
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

/// Nodes that are equally fast as long as nothing else runs on them.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    /// These processors and so many compute threads.
    Known { model: String, processors: u32, threads: u32 },
    /// A node that does not tell is of its own kind.
    Alone(NodeId),
}

impl Kind {
    pub(super) fn of(life: &Registered) -> Self {
        let hardware = &life.hardware;
        if hardware.model.is_empty() {
            return Kind::Alone(life.node.clone());
        }
        let (model, processors) = (hardware.model.clone(), hardware.threads);
        Kind::Known { model, processors, threads: life.threads }
    }
}

#[derive(Clone, Debug)]
struct Of {
    speed: f64,
    /// By a benchmark of its own, on an idle node.
    benchmarked: bool,
    /// The last speeds at work, of whatever node.
    at_work: VecDeque<f64>,
}

impl Of {
    /// What most of the undisturbed reach: of the last speeds the one that a quarter exceeds. (The highest ever would be the luckiest
    /// measurement; the mean falls with nodes on which something else runs.)
    fn worked(&mut self, speed: f64) {
        if self.at_work.len() == MOST_AT_WORK {
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
struct InUnit {
    used: u64,
    kinds: BTreeMap<Kind, Of>,
    nodes: BTreeMap<NodeId, (f64, Instant)>,
    /// Benchmarks that failed, with the kind of their node.
    failed: BTreeMap<NodeId, (Kind, Instant)>,
}

fn is_lately(failed: Instant, now: Instant) -> bool {
    now.saturating_duration_since(failed) < RETRY
}

impl InUnit {
    /// Whether the benchmark failed on this node so lately that it is not tried again.
    fn failed_lately(&self, node: &NodeId, now: Instant) -> bool {
        self.failed.get(node).is_some_and(|(_, at)| is_lately(*at, now))
    }

    /// The kinds of all such nodes.
    fn kinds_failed(&self, now: Instant) -> BTreeSet<&Kind> {
        let failed = self.failed.values().filter(|(_, at)| is_lately(*at, now));
        failed.map(|(kind, _)| kind).collect()
    }
}

/// All that is known.
#[derive(Debug, Default)]
pub(super) struct Speeds {
    units: BTreeMap<Unit, InUnit>,
    uses: u64,
    /// Nodes that were slower than their kind when they were measured last, in whatever unit.
    slow: BTreeSet<NodeId>,
}

impl Speeds {
    fn of(&mut self, unit: Unit) -> &mut InUnit {
        self.uses += 1;
        if self.units.len() >= MOST_UNITS && !self.units.contains_key(&unit) {
            let oldest =
                self.units.iter().min_by_key(|(_, known)| known.used).map(|(&unit, _)| unit);
            self.units.retain(|known, _| Some(*known) != oldest);
        }
        let known = self.units.entry(unit).or_default();
        known.used = self.uses;
        known
    }

    /// A node has run the benchmark. What is no speed is told back.
    pub(super) fn benchmarked(
        &mut self,
        unit: Unit,
        life: &Registered,
        speed: f64,
        now: Instant,
    ) -> Result<(), f64> {
        if !is_rate(speed) {
            self.failed(unit, life, now);
            return Err(speed);
        }
        let known = self.of(unit);
        known.nodes.insert(life.node.clone(), (speed, now));
        let at_work = VecDeque::new();
        let new = Of { speed, benchmarked: true, at_work };
        let kind = known.kinds.entry(Kind::of(life)).or_insert(new);
        // The best of them is what the hardware can do. What is far from what others reach at work is no measure of it: something
        // else runs there.
        if kind.benchmarked || speed < kind.speed * DOUBTFUL {
            kind.speed = kind.speed.max(speed);
        } else {
            kind.speed = speed;
            kind.benchmarked = true;
        }
        known.failed.remove(&life.node);
        self.compare(unit, life, speed);
        Ok(())
    }

    /// Whether a node that had this speed has something else to do.
    fn compare(&mut self, unit: Unit, life: &Registered, speed: f64) {
        let kind = self.of_kind(Some(unit), life);
        if kind.is_some_and(|kind| speed < kind * DOUBTFUL) {
            self.slow.insert(life.node.clone());
        } else {
            self.slow.remove(&life.node);
        }
    }

    /// The benchmark could not be run on a node. If it is too slow to finish in time, then it is no faster than when it was
    /// measured last: that holds on.
    pub(super) fn failed(&mut self, unit: Unit, life: &Registered, now: Instant) {
        let known = self.of(unit);
        if let Some((_, at)) = known.nodes.get_mut(&life.node) {
            *at = now;
        }
        known.failed.insert(life.node.clone(), (Kind::of(life), now));
    }

    /// A node had this speed at work. What is no speed is told back.
    pub(super) fn at_work(
        &mut self,
        unit: Unit,
        life: &Registered,
        speed: f64,
        now: Instant,
    ) -> Result<(), f64> {
        if !is_rate(speed) {
            return Err(speed);
        }
        let known = self.of(unit);
        known.nodes.insert(life.node.clone(), (speed, now));
        let at_work = VecDeque::new();
        let new = Of { speed, benchmarked: false, at_work };
        known.kinds.entry(Kind::of(life)).or_insert(new).worked(speed);
        self.compare(unit, life, speed);
        Ok(())
    }

    /// The node's own speed, if it was measured lately.
    pub(super) fn own(&self, unit: Option<Unit>, node: &NodeId, now: Instant) -> Option<f64> {
        let (speed, at) = self.units.get(&unit?)?.nodes.get(node)?;
        (now.saturating_duration_since(*at) < FRESH).then_some(*speed)
    }

    /// The speed of nodes like this one.
    pub(super) fn of_kind(&self, unit: Option<Unit>, life: &Registered) -> Option<f64> {
        Some(self.units.get(&unit?)?.kinds.get(&Kind::of(life))?.speed)
    }

    /// The node's own, else that of its kind; but nobody knows the speed of one on which the benchmark has just failed.
    pub(super) fn best(&self, unit: Option<Unit>, life: &Registered, now: Instant) -> Option<f64> {
        let known = self.units.get(&unit?)?;
        let failed = || known.failed_lately(&life.node, now);
        self.own(unit, &life.node, now).or_else(|| self.of_kind(unit, life).filter(|_| !failed()))
    }

    /// Whether one of these nodes was slower than its kind when it was measured last.
    pub(super) fn doubts_any(&self, nodes: &[NodeId]) -> bool {
        nodes.iter().any(|node| self.slow.contains(node))
    }

    /// Of these free nodes those that are to be measured: one of each kind of which nothing is known, and each that was
    /// once slower than its kind, for that may be over. `settled` are kinds that need not be measured.
    pub(super) fn to_measure<'a>(
        &self,
        unit: Unit,
        free: impl Iterator<Item = &'a Registered>,
        mut settled: BTreeSet<Kind>,
        now: Instant,
    ) -> Vec<NodeId> {
        let none = InUnit::default();
        let known = self.units.get(&unit).unwrap_or(&none);
        let failed = known.kinds_failed(now);
        let mut chosen = Vec::new();
        for life in free {
            let kind = Kind::of(life);
            let is_known = known.kinds.contains_key(&kind);
            if known.failed_lately(&life.node, now) || (!is_known && failed.contains(&kind)) {
                continue;
            }
            let doubtful = || {
                let Some(kind) = known.kinds.get(&kind) else { return false };
                match known.nodes.get(&life.node) {
                    Some((speed, at)) => {
                        let old = now.saturating_duration_since(*at) >= FRESH;
                        old && *speed < kind.speed * DOUBTFUL
                    }
                    None => self.slow.contains(&life.node),
                }
            };
            if doubtful() || (!is_known && settled.insert(kind.clone())) {
                chosen.push(life.node.clone());
            }
        }
        chosen
    }

    /// A job has ended: its own units mean nothing any more.
    pub(super) fn forget(&mut self, job: JobId) {
        self.units.retain(|unit, _| unit.job != Some(job));
    }
}

/// A node below this share of its kind's speed had something else to do.
const DOUBTFUL: f64 = 0.8;
