//! How workers' numbers add up to a cluster's and the job's: by cluster coordinators and by the decision. Must not
//! know what is decided.
//!
//! Weighted average efficiency is `(1/n) * sum speed_i * (1 - overhead_i)` with speeds relative to the fastest. A
//! cluster sends `n`, `sum abs_speed * (1 - overhead)` and its fastest worker's speed; the job's is the sum of the
//! sums over `n * max`, which is the flat formula: sums are exact ([`ExactSum`]), so no bit depends on who is in
//! which cluster.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use springtide_runtime::id::{ClusterId, NodeId};
use springtide_runtime::meter::is_default;

use super::memory::Memory;
use super::number::{ExactSum, float, maybe_float};
use super::settings::{Settings, Weights};
use super::worker::{Field, Oddity, SPEEDS, WorkerStats};

/// More workers than a cluster has, said by one gone mad, must not take the time here.
const IDLE_MAX: u32 = 1 << 16;

/// What all cluster coordinators must agree on for their worst workers to be comparable: it follows from the memory
/// that comes with each period's answer.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Agreed {
    /// The learned coefficients.
    pub weights: Weights,
    /// The fastest worker's speed in the last period; absent before the first.
    pub max_speed: Option<f64>,
    /// Workers to name.
    pub named: u32,
    /// Periods of grace.
    pub grace: u32,
    /// Periods over which overheads are averaged: one iteration of the job.
    #[serde(default)]
    pub span: u32,
    /// Periods for which a last report counts.
    pub stale: u32,
    /// See [`Settings::nonsense_factor`].
    pub nonsense_factor: f64,
}

impl Agreed {
    /// As it follows from what was learned and set.
    pub fn of(memory: &Memory, settings: &Settings) -> Self {
        Self {
            weights: memory.weights,
            max_speed: memory.max_speed,
            named: settings.named,
            // Whose overheads do not cover an iteration yet is not to be compared with those whose do.
            grace: settings.grace().max(memory.span - 1),
            span: memory.span,
            stale: settings.stale,
            nonsense_factor: settings.nonsense_factor,
        }
    }
}

/// A worker that its cluster names, as one of its worst or best.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Named {
    /// Which node.
    pub node: NodeId,
    /// Its speed.
    #[serde(with = "float")]
    pub speed: f64,
    /// By which fraction that may be wrong.
    #[serde(with = "float", default)]
    pub speed_error: f64,
    /// Its overhead.
    #[serde(with = "float")]
    pub overhead: f64,
    /// Its inter-cluster overhead.
    #[serde(with = "float")]
    pub inter: f64,
}

impl Named {
    fn of(worker: &WorkerStats) -> Option<Self> {
        Some(Self {
            node: worker.node.clone(),
            speed: worker.speed?,
            speed_error: worker.speed_error,
            overhead: worker.overhead,
            inter: worker.overhead_inter,
        })
    }

    /// The badness formula without the worst cluster's term, which is the same for all of a cluster.
    pub fn own_badness(&self, weights: &Weights, max_speed: f64) -> f64 {
        weights.alpha * max_speed / self.speed + weights.beta * self.inter
    }

    /// What of a second of it is worked, in units of speed.
    pub fn useful(&self) -> f64 {
        self.speed * (1.0 - self.overhead)
    }

    /// Its speed as far as its link lets it be used.
    pub fn effective(&self) -> f64 {
        self.speed * (1.0 - self.inter)
    }

    fn is_sound(&self) -> bool {
        let share = |x: f64| (0.0..=1.0).contains(&x);
        SPEEDS.contains(&self.speed)
            && share(self.speed_error)
            && share(self.overhead)
            && share(self.inter)
    }
}

/// Workers that have reported and not worked yet: how fast they are is not known, that they wait is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Idle {
    /// How many.
    pub workers: u32,
    /// Compute threads of theirs.
    pub threads: u32,
    /// Sum of their overheads.
    pub overhead: ExactSum,
    /// Sum of their intra-cluster overheads.
    #[serde(skip_serializing_if = "is_default")]
    pub intra: ExactSum,
    /// Sum of their inter-cluster overheads.
    #[serde(skip_serializing_if = "is_default")]
    pub inter: ExactSum,
    /// Some of them with their inter-cluster overhead, those with most first.
    pub named: Vec<(NodeId, f64)>,
}

impl Idle {
    /// From this overhead on a worker whose speed is not known has nothing to do: before, it is just about to be measured.
    const FROM: f64 = 0.9;

    fn add(&mut self, worker: &WorkerStats) {
        self.workers += 1;
        self.threads = self.threads.saturating_add(worker.threads);
        self.overhead.add(worker.overhead);
        self.intra.add(worker.overhead_intra);
        self.inter.add(worker.overhead_inter);
        self.named.push((worker.node.clone(), worker.overhead_inter));
    }

    fn is_sound(&self) -> bool {
        let most = f64::from(self.workers) * (1.0 + 1e-9);
        let share = |(_, inter): &(NodeId, f64)| (0.0..=1.0).contains(inter);
        let sums = [&self.overhead, &self.intra, &self.inter];
        sums.iter().all(|sum| sum.is_sound() && (0.0..=most).contains(&sum.value()))
            && self.named.len() <= self.workers as usize
            && self.named.iter().all(share)
    }
}

/// What is known of a cluster's way to the others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Uplink {
    /// Bytes per second that it was measured to carry, from transfers above the size floor.
    #[serde(with = "maybe_float")]
    pub bandwidth: Option<f64>,
    /// Bytes per second that went through it in this period.
    #[serde(with = "maybe_float")]
    pub used: Option<f64>,
}

/// One cluster's period: all that the coordinator gets of it, of the same size for 4 workers as for 400.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ClusterAggregate {
    /// Workers that count: measured, past their grace, not leaving.
    pub counted: u32,
    /// Of which with a last report instead of this period's.
    #[serde(skip_serializing_if = "is_default")]
    pub stale: u32,
    /// Workers in their grace period.
    #[serde(skip_serializing_if = "is_default")]
    pub joining: u32,
    /// Workers that leave.
    #[serde(skip_serializing_if = "is_default")]
    pub leaving: u32,
    /// Workers past their grace without a report that counts.
    #[serde(skip_serializing_if = "is_default")]
    pub silent: u32,
    /// Workers past their grace that have not worked yet.
    #[serde(skip_serializing_if = "is_default")]
    pub idle: Idle,
    /// Of those that count: so many are only presumed to be as fast as others. By whoever decides; not on the wire.
    #[serde(skip)]
    pub presumed: u32,
    /// Compute threads of those that count.
    pub threads: u32,
    /// Sum of speed * (1 - overhead) over those that count.
    pub useful: ExactSum,
    /// Sum of their speeds.
    pub speed: ExactSum,
    /// Sum of their overheads.
    pub overhead: ExactSum,
    /// Sum of their intra-cluster overheads.
    #[serde(skip_serializing_if = "is_default")]
    pub intra: ExactSum,
    /// Sum of their inter-cluster overheads.
    #[serde(skip_serializing_if = "is_default")]
    pub inter: ExactSum,
    /// The fastest one's speed.
    #[serde(with = "float")]
    pub max_speed: f64,
    /// The worst of them by the agreed weights, worst first.
    #[serde(skip_serializing_if = "is_default")]
    pub worst: Vec<Named>,
    /// The two of them best fit to hold the job's root, best first.
    #[serde(skip_serializing_if = "is_default")]
    pub best: Vec<Named>,
    /// Reports that were not believed, at most as many as workers are named.
    #[serde(skip_serializing_if = "is_default")]
    pub odd: Vec<Oddity>,
    /// The way to the other clusters.
    #[serde(skip_serializing_if = "is_default")]
    pub uplink: Uplink,
}

impl ClusterAggregate {
    /// Adds a cluster's workers up. The caller fills in [`ClusterAggregate::uplink`] and what its histories found odd.
    ///
    /// A node whose speed a thread is [`Settings::nonsense_factor`] times the median of at least two others' does not
    /// count: a first report has no past to be compared with.
    pub fn of(workers: &[WorkerStats], agreed: &Agreed) -> Self {
        let mut sum = Self::default();
        let mut counted = Vec::new();
        for worker in workers {
            let mut worker = worker.clone();
            if worker.leaving {
                sum.leaving += 1;
            } else if let Some((field, value)) = worker.check(None, f64::INFINITY) {
                sum.silent += 1;
                sum.odd.push(Oddity { node: worker.node, field, value, instead: None });
            } else if worker.joined < agreed.grace {
                sum.joining += 1;
            } else if worker.age > agreed.stale {
                sum.silent += 1;
            } else if worker.speed.is_none() {
                match worker.overhead >= Idle::FROM {
                    true => sum.idle.add(&worker),
                    false => sum.joining += 1,
                }
            } else {
                counted.push(worker);
            }
        }
        let per_thread = |w: &WorkerStats| w.speed.unwrap_or(0.0) / f64::from(w.threads.max(1));
        let mut all: Vec<f64> = counted.iter().map(per_thread).collect();
        all.sort_by(f64::total_cmp);
        if all.len() >= 3 {
            // Of an even number the lower one: a single outlier is never its own measure.
            let most = agreed.nonsense_factor * all[(all.len() - 1) / 2];
            counted.retain(|worker| {
                let odd = per_thread(worker) >= most;
                if odd {
                    let (node, value) = (worker.node.clone(), worker.speed.unwrap_or(0.0));
                    sum.silent += 1;
                    sum.odd.push(Oddity { node, field: Field::Speed, value, instead: None });
                }
                !odd
            });
        }
        for worker in &counted {
            sum.counted += 1;
            sum.stale += u32::from(worker.age > 0);
            sum.threads = sum.threads.saturating_add(worker.threads);
            sum.useful.add(worker.useful());
            sum.speed.add(worker.speed.unwrap_or(0.0));
            sum.overhead.add(worker.overhead);
            sum.intra.add(worker.overhead_intra);
            sum.inter.add(worker.overhead_inter);
            sum.max_speed = sum.max_speed.max(worker.speed.unwrap_or(0.0));
        }
        let max_speed = agreed.max_speed.unwrap_or(sum.max_speed);
        let mut named: Vec<Named> = counted.iter().filter_map(Named::of).collect();
        let badness = |named: &Named| named.own_badness(&agreed.weights, max_speed);
        named.sort_by(|a, b| badness(b).total_cmp(&badness(a)).then_with(|| a.node.cmp(&b.node)));
        sum.worst = named.iter().take(agreed.named as usize).cloned().collect();
        let fit = |a: &Named, b: &Named| b.effective().total_cmp(&a.effective());
        named.sort_by(|a, b| fit(a, b).then_with(|| a.node.cmp(&b.node)));
        named.truncate(2);
        sum.best = named;
        let idle = &mut sum.idle.named;
        idle.sort_by(|a, b| b.1.total_cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
        idle.truncate(agreed.named as usize);
        sum.odd.truncate(agreed.named as usize);
        sum
    }

    /// Everybody who takes part and does not leave.
    pub fn staying(&self) -> u32 {
        let others = [self.joining, self.silent, self.idle.workers];
        others.into_iter().fold(self.counted, u32::saturating_add)
    }

    /// Counts those that have not worked yet as workers of this speed.
    fn presume(&mut self, speed: f64, named: u32) {
        let Idle { workers, threads, overhead, intra, inter, named: idle } =
            std::mem::take(&mut self.idle);
        self.presumed = workers;
        self.counted = self.counted.saturating_add(workers);
        self.threads = self.threads.saturating_add(threads);
        // What they may have done in the rest of their time is not known either.
        (0..workers.min(IDLE_MAX)).for_each(|_| self.speed.add(speed));
        let own = [&mut self.overhead, &mut self.intra, &mut self.inter];
        own.into_iter().zip([&overhead, &intra, &inter]).for_each(|(sum, part)| sum.merge(part));
        self.max_speed = self.max_speed.max(speed);
        let presumed =
            |(node, inter)| Named { node, speed, speed_error: 1.0, overhead: 1.0, inter };
        // Nobody does less.
        self.worst.splice(0..0, idle.into_iter().map(presumed));
        self.worst.truncate(named as usize);
    }

    /// Mean inter-cluster overhead of those that count; absent if none does.
    pub fn mean_inter(&self) -> Option<f64> {
        (self.counted > 0).then(|| self.inter.value() / f64::from(self.counted))
    }

    /// Mean speed of those that count; absent if none does.
    pub fn mean_speed(&self) -> Option<f64> {
        (self.counted > 0).then(|| self.speed.value() / f64::from(self.counted))
    }

    /// Whether it can have come from believed reports: it crossed the wire.
    pub fn is_sound(&self) -> bool {
        let n = f64::from(self.counted);
        let sums = [&self.useful, &self.speed, &self.overhead, &self.intra, &self.inter];
        let at_most =
            |sum: &ExactSum, most: f64| (0.0..=most * (1.0 + 1e-9)).contains(&sum.value());
        let link = [self.uplink.bandwidth, self.uplink.used];
        sums.iter().all(|sum| sum.is_sound())
            && if self.counted == 0 {
                self.max_speed == 0.0
            } else {
                SPEEDS.contains(&self.max_speed)
            }
            && at_most(&self.speed, n * self.max_speed)
            && at_most(&self.useful, self.speed.value())
            && [&self.overhead, &self.intra, &self.inter].iter().all(|sum| at_most(sum, n))
            && self.worst.iter().chain(&self.best).all(Named::is_sound)
            && self.idle.is_sound()
            && link.iter().flatten().all(|rate| *rate >= 0.0 && rate.is_finite())
    }
}

/// The job's period: the sum over its clusters.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Overall {
    /// Workers that count.
    pub counted: u32,
    /// Of which with an older report.
    pub stale: u32,
    /// Workers in their grace period.
    pub joining: u32,
    /// Workers that leave.
    pub leaving: u32,
    /// Workers without a report that counts.
    pub silent: u32,
    /// Of those that count: with a presumed speed.
    pub presumed: u32,
    /// Useful speed: work units per second.
    pub useful: f64,
    /// Speed if there were no overhead.
    pub speed: f64,
    /// Mean overhead.
    pub overhead: f64,
    /// Mean inter-cluster overhead.
    pub inter: f64,
    /// The fastest one's speed.
    pub max_speed: f64,
}

impl Overall {
    /// Adds clusters up.
    pub fn of<'a>(clusters: impl IntoIterator<Item = &'a ClusterAggregate>) -> Self {
        let mut all = Self::default();
        let mut sums: [ExactSum; 4] = Default::default();
        for cluster in clusters {
            all.counted = all.counted.saturating_add(cluster.counted);
            all.stale = all.stale.saturating_add(cluster.stale);
            all.joining = all.joining.saturating_add(cluster.joining);
            all.leaving = all.leaving.saturating_add(cluster.leaving);
            all.silent = all.silent.saturating_add(cluster.silent);
            all.presumed = all.presumed.saturating_add(cluster.presumed);
            all.max_speed = all.max_speed.max(cluster.max_speed);
            let parts = [&cluster.useful, &cluster.speed, &cluster.overhead, &cluster.inter];
            sums.iter_mut().zip(parts).for_each(|(sum, part)| sum.merge(part));
        }
        let [useful, speed, overhead, inter] = sums.map(|sum| sum.value());
        let n = f64::from(all.counted.max(1));
        (all.useful, all.speed) = (useful, speed);
        (all.overhead, all.inter) = (overhead / n, inter / n);
        all
    }

    /// Weighted average efficiency, 0 to 1; absent if nobody counts.
    pub fn efficiency(&self) -> Option<f64> {
        let most = f64::from(self.counted) * self.max_speed;
        (most > 0.0).then(|| (self.useful / most).min(1.0))
    }

    /// Mean speed of those that count; 0 if nobody does.
    pub fn mean_speed(&self) -> f64 {
        if self.counted == 0 { 0.0 } else { self.speed / f64::from(self.counted) }
    }
}

/// Counts workers that have not worked yet as such that wait, of the mean speed of their cluster or else of all. Nobody is
/// presumed to be of any speed where none is known. Absent if that changes nothing.
pub(super) fn presumed(
    clusters: &BTreeMap<ClusterId, ClusterAggregate>,
    named: u32,
) -> Option<BTreeMap<ClusterId, ClusterAggregate>> {
    let idle = |c: &ClusterAggregate| c.idle.workers > 0 && c.is_sound();
    if !clusters.values().any(idle) {
        return None;
    }
    let mean = Overall::of(clusters.values().filter(|c| c.is_sound())).mean_speed();
    if !SPEEDS.contains(&mean) {
        return None;
    }
    let mut all = clusters.clone();
    for cluster in all.values_mut().filter(|c| idle(c)) {
        let own = cluster.mean_speed().filter(|speed| SPEEDS.contains(speed));
        cluster.presume(own.unwrap_or(mean), named);
    }
    Some(all)
}

/// Sets aside what a decision must not be steered by. Returns the clusters that count, and those that do not with
/// why.
///
/// A cluster counts unless its numbers contradict each other, or its fastest node is said to be `factor` times as
/// fast as any that was known before while others are not: if all are, the application's unit has changed, and they
/// are believed.
pub(super) fn believed<'a>(
    clusters: &'a BTreeMap<ClusterId, ClusterAggregate>,
    members: &BTreeMap<ClusterId, u32>,
    known_max: Option<f64>,
    factor: f64,
) -> (BTreeMap<&'a ClusterId, &'a ClusterAggregate>, Vec<(ClusterId, &'static str)>) {
    let mut aside = Vec::new();
    let mut good = BTreeMap::new();
    for (id, cluster) in clusters {
        // Members may have gone since it counted; but not most of them and more.
        let told = u64::from(cluster.staying()) + u64::from(cluster.leaving);
        let known = members.get(id).map_or(u64::MAX, |&n| 2 * u64::from(n) + 4);
        if !cluster.is_sound() {
            aside.push((id.clone(), "its numbers contradict each other"));
        } else if told > known {
            aside.push((id.clone(), "it counts far more workers than are members"));
        } else {
            good.insert(id, cluster);
        }
    }
    let jumps = |c: &ClusterAggregate| known_max.is_some_and(|max| c.max_speed >= factor * max);
    if good.values().any(|c| c.counted > 0 && !jumps(c)) {
        good.retain(|id, cluster| {
            let jumps = jumps(cluster);
            if jumps {
                aside.push(((*id).clone(), "its speed exceeds all that was known beyond belief"));
            }
            !jumps
        });
    }
    (good, aside)
}
