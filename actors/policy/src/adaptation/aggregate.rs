//! Aggregation of workers' statistics by cluster and by job. This module does not know the
//! decision.
//!
//! Weighted average efficiency is `(1/n) * sum speed_i * (1 - overhead_i)` over `n` processors,
//! with speeds relative to the fastest processor. A worker with `k` processors has `k` equal terms.
//! A cluster sends `n`, `sum abs_speed * (1 - overhead)` and the speed of its fastest processor.
//! The job's efficiency is the sum of these sums over `n * max`, which equals the flat formula.
//! Sums are exact ([`ExactSum`]), so the result is independent of the division into clusters.
//!
//! # Its error
//!
//! Worker `i` does the useful work `u_i = speed_i * (1 - overhead_i)`. `r_i` is the relative error
//! of its speed, `w_i` the standard error of its overhead. Worker `f` has the fastest processors,
//! of speed `s`. The variance of an efficiency `E` over `n` processors is
//!
//! ```text
//! (sum over i != f of (u_i r_i)^2) / (n s)^2        the speeds
//!     + ((E - u_f / (n s)) r_f)^2 (1 + ln(n) / 2)   the speed that the others relate to
//!     + ((sum of speed_i w_i) / (n s))^2            the overheads
//! ```
//!
//! Of `n` equal speeds, the one that is measured as the fastest exceeds the others by chance. The
//! expected excess is at most `sqrt(2 ln(n))` standard errors, the bound of the maximum of normal
//! errors. Half of it is added to the error, so that an interval of two errors covers it.
//!
//! Errors of speeds are independent. Errors of overheads are not: one phase of the job makes all
//! workers wait. So these add up. Source: propagation of errors to first order, e.g. J. R. Taylor,
//! *An Introduction to Error Analysis*, chapter 3. A cluster sends the two sums and its fastest
//! worker, so this too is independent of the division into clusters.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use springtide_base::id::{ClusterId, NodeId};
use springtide_base::processors::Processors;

use super::memory::Memory;
use super::number::{ExactSum, Float, float, is_default, is_rate, maybe_float};
use super::settings::{AdaptationSettings, Weights};
use super::worker::{Field, IDLE_FROM, ImplausibleValue, SPEEDS, WorkerStats};

fn one_processor() -> Processors {
    Processors::ONE
}

fn is_one_processor(processors: &Processors) -> bool {
    *processors == Processors::ONE
}

/// Parameters that all cluster coordinators share, so that their worst workers are comparable. They
/// follow from the memory in each period's reply.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct SharedParameters {
    /// The learned coefficients of badness.
    pub weights: Weights,
    /// Speed of the job's fastest processor in the last period; absent before the first.
    pub max_speed: Option<f64>,
    /// Number of worst workers to report by name.
    pub named: u32,
    /// Grace of new workers, in periods.
    pub grace: u32,
    /// Periods over which overheads are averaged: one iteration of the job, or the part of a
    /// synchronous job's first step that is over.
    #[serde(default)]
    pub span: u32,
    /// Periods for which a worker without any work so far counts as joining, unless it waits for
    /// another cluster. Processes of an SPMD job start between two iterations.
    #[serde(default, skip_serializing_if = "is_default")]
    pub idle_grace: u32,
    /// Periods for which a last report counts.
    pub stale: u32,
    /// Factor of implausible speeds: [`AdaptationSettings::implausible_factor`].
    pub implausible_factor: f64,
}

impl SharedParameters {
    /// Derives the parameters from the memory and the settings.
    pub fn of(memory: &Memory, settings: &AdaptationSettings) -> Self {
        Self {
            weights: memory.weights,
            max_speed: memory.max_speed,
            named: settings.named,
            // A worker whose overheads cover less than an iteration is not comparable with the
            // others.
            grace: settings.grace().max(memory.span - 1),
            span: memory.averaged_periods(settings),
            idle_grace: memory.idle_grace(settings),
            stale: settings.stale,
            implausible_factor: settings.implausible_factor,
        }
    }
}

/// A worker that its cluster reports by name, as one of its worst or best.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(from = "RatedWorkerFields", into = "RatedWorkerFields")]
pub struct RatedWorker {
    /// Node of the worker.
    pub node: NodeId,
    /// Processors of the node.
    pub processors: Processors,
    /// Speed of all its processors together.
    pub speed: f64,
    /// Relative error of the speed.
    pub speed_error: f64,
    /// Overhead of the worker.
    pub overhead: f64,
    /// Inter-cluster overhead of the worker.
    pub inter: f64,
}

/// The fields of a [`RatedWorker`] in their order, and without names: a second of statistics must
/// fit a thin link.
#[derive(Serialize, Deserialize)]
struct RatedWorkerFields(NodeId, Processors, [Float; 4]);

impl From<RatedWorkerFields> for RatedWorker {
    fn from(RatedWorkerFields(node, processors, numbers): RatedWorkerFields) -> Self {
        let [speed, speed_error, overhead, inter] = numbers.map(|number| number.0);
        Self { node, processors, speed, speed_error, overhead, inter }
    }
}

impl From<RatedWorker> for RatedWorkerFields {
    fn from(worker: RatedWorker) -> Self {
        let RatedWorker { node, processors, speed, speed_error, overhead, inter } = worker;
        Self(node, processors, [speed, speed_error, overhead, inter].map(Float))
    }
}

impl RatedWorker {
    fn of(worker: &WorkerStats) -> Option<Self> {
        Some(Self {
            node: worker.node.clone(),
            processors: worker.processors(),
            speed: worker.speed?,
            speed_error: worker.speed_error,
            overhead: worker.overhead,
            inter: worker.overhead_inter,
        })
    }

    /// Badness without the term of the worst cluster, which is the same for all workers of a
    /// cluster.
    pub fn own_badness(&self, weights: &Weights, max_speed: f64) -> f64 {
        weights.alpha * max_speed / self.processor_speed() + weights.beta * self.inter
    }

    /// Mean speed of its processors.
    pub fn processor_speed(&self) -> f64 {
        self.speed / f64::from(self.processors)
    }

    /// Useful work per second: speed times the fraction of time worked.
    pub fn useful(&self) -> f64 {
        self.speed * (1.0 - self.overhead)
    }

    /// Speed of one processor, reduced by the inter-cluster overhead.
    pub fn effective(&self) -> f64 {
        self.processor_speed() * (1.0 - self.inter)
    }

    fn is_sound(&self) -> bool {
        let share = |x: f64| (0.0..=1.0).contains(&x);
        !self.processors.is_zero()
            && SPEEDS.contains(&self.speed)
            && share(self.speed_error)
            && share(self.overhead)
            && share(self.inter)
    }
}

/// Workers that have reported but completed no task yet. Their speed is unknown, their overhead
/// known.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct UnmeasuredWorkers {
    /// Number of their processors.
    pub processors: Processors,
    /// Sum of the processors' overheads.
    pub overhead: ExactSum,
    /// Sum of the intra-cluster overheads.
    #[serde(skip_serializing_if = "is_default")]
    pub intra: ExactSum,
    /// Sum of the inter-cluster overheads.
    #[serde(skip_serializing_if = "is_default")]
    pub inter: ExactSum,
    /// Some of them, in descending order of their inter-cluster overhead.
    pub named: Vec<UnmeasuredWorker>,
}

/// A worker of unknown speed that its cluster reports by name.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct UnmeasuredWorker {
    /// Node of the worker.
    pub node: NodeId,
    /// Processors of the node.
    #[serde(default = "one_processor", skip_serializing_if = "is_one_processor")]
    pub processors: Processors,
    /// Overhead of the worker.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub overhead: f64,
    /// Inter-cluster overhead of the worker.
    pub inter: f64,
}

fn one() -> f64 {
    1.0
}

fn is_one(value: &f64) -> bool {
    *value == 1.0
}

impl UnmeasuredWorkers {
    fn add(&mut self, worker: &WorkerStats) {
        let processors = worker.processors();
        self.processors = self.processors.saturating_add(processors);
        self.overhead.add_times(worker.overhead, processors.get());
        self.intra.add_times(worker.overhead_intra, processors.get());
        self.inter.add_times(worker.overhead_inter, processors.get());
        self.named.push(UnmeasuredWorker {
            node: worker.node.clone(),
            processors,
            overhead: worker.overhead,
            inter: worker.overhead_inter,
        });
    }

    fn is_sound(&self) -> bool {
        let most = f64::from(self.processors) * (1.0 + 1e-9);
        let share = |x: f64| (0.0..=1.0).contains(&x);
        let fits =
            |w: &UnmeasuredWorker| !w.processors.is_zero() && share(w.overhead) && share(w.inter);
        let named: Processors = self.named.iter().map(|w| w.processors).sum();
        let sums = [&self.overhead, &self.intra, &self.inter];
        sums.iter().all(|sum| sum.is_sound() && (0.0..=most).contains(&sum.value()))
            && named <= self.processors
            && self.named.iter().all(fits)
    }
}

/// Bandwidth of a cluster's link to the others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Uplink {
    /// Measured bytes per second, from transfers above the minimum size.
    #[serde(with = "maybe_float")]
    pub bandwidth: Option<f64>,
    /// Bytes per second transferred in this period.
    #[serde(with = "maybe_float")]
    pub used: Option<f64>,
}

/// The fastest counted worker: all speeds relate to its speed. Its numbers travel without names,
/// since a second of statistics must fit a thin link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(from = "[Float; 3]", into = "[Float; 3]")]
pub struct FastestWorker {
    /// Relative error of its speed.
    pub speed_error: f64,
    /// Its useful work per second.
    pub useful: f64,
    /// Its term of [`ClusterAggregate::useful_variance`].
    pub useful_variance: f64,
}

impl From<[Float; 3]> for FastestWorker {
    fn from([speed_error, useful, useful_variance]: [Float; 3]) -> Self {
        Self { speed_error: speed_error.0, useful: useful.0, useful_variance: useful_variance.0 }
    }
}

impl From<FastestWorker> for [Float; 3] {
    fn from(worker: FastestWorker) -> Self {
        [worker.speed_error, worker.useful, worker.useful_variance].map(Float)
    }
}

impl FastestWorker {
    /// Whether it precedes a worker of the same speed. So the choice is independent of the division
    /// into clusters.
    fn precedes(&self, other: &Self) -> bool {
        let by_error = self.speed_error.total_cmp(&other.speed_error);
        by_error.then(self.useful.total_cmp(&other.useful)).is_lt()
    }

    /// Replaces it by a worker that is faster, or as fast and precedes it.
    fn replace(&mut self, max_speed: &mut f64, other: Self, speed: f64) {
        if speed > *max_speed || speed == *max_speed && other.precedes(self) {
            (*self, *max_speed) = (other, speed);
        }
    }

    fn is_sound(&self) -> bool {
        let finite = |x: f64| x.is_finite() && x >= 0.0;
        (0.0..=1.0).contains(&self.speed_error)
            && finite(self.useful)
            && finite(self.useful_variance)
    }
}

/// Statistics of a cluster in one period. This is all that the coordinator gets of it, of the same
/// size for 4 workers as for 400.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ClusterAggregate {
    /// Processors that count: of workers that are measured, past their grace, not leaving.
    pub counted: Processors,
    /// Counted processors of workers with an older report.
    #[serde(skip_serializing_if = "is_default")]
    pub stale: Processors,
    /// Processors of workers in their grace period.
    #[serde(skip_serializing_if = "is_default")]
    pub joining: Processors,
    /// Sum over these processors of the fraction of the period in which they worked.
    #[serde(skip_serializing_if = "is_default")]
    pub joining_working: ExactSum,
    /// Processors of workers that leave.
    #[serde(skip_serializing_if = "is_default")]
    pub leaving: Processors,
    /// Processors of workers past their grace without a valid report.
    #[serde(skip_serializing_if = "is_default")]
    pub silent: Processors,
    /// Workers past their grace without a measured speed.
    #[serde(skip_serializing_if = "is_default")]
    #[serde(alias = "idle")]
    pub unmeasured: UnmeasuredWorkers,
    /// Processors that the job's master occupies, while it waits for its workers. A decision counts
    /// them as the mean of the others.
    #[serde(skip_serializing_if = "is_default")]
    pub serving: Processors,
    /// Counted processors with a presumed speed. Set by the decision; not sent.
    #[serde(skip)]
    pub presumed: Processors,
    /// Sum of speed * (1 - overhead) over the counted workers.
    pub useful: ExactSum,
    /// Sum of the counted workers' speeds.
    pub speed: ExactSum,
    /// Sum of the counted processors' overheads.
    pub overhead: ExactSum,
    /// Sum of the counted processors' intra-cluster overheads.
    #[serde(skip_serializing_if = "is_default")]
    pub intra: ExactSum,
    /// Sum of the counted processors' inter-cluster overheads.
    #[serde(skip_serializing_if = "is_default")]
    pub inter: ExactSum,
    /// Speed of the fastest counted processor.
    #[serde(with = "float")]
    pub max_speed: f64,
    /// The fastest counted worker.
    #[serde(skip_serializing_if = "is_default")]
    pub fastest: FastestWorker,
    /// Sum of the squared errors of the counted workers' useful work that follow from their speeds.
    #[serde(rename = "variance", skip_serializing_if = "is_default")]
    pub useful_variance: ExactSum,
    /// Sum of speed * error of the overhead over the counted workers.
    #[serde(rename = "spread", skip_serializing_if = "is_default")]
    pub overhead_error: ExactSum,
    /// The worst counted workers by the shared weights, worst first.
    #[serde(skip_serializing_if = "is_default")]
    pub worst: Vec<RatedWorker>,
    /// The two counted workers that suit the job's root best, best first.
    #[serde(skip_serializing_if = "is_default")]
    pub best: Vec<RatedWorker>,
    /// Implausible numbers of reports, at most as many as workers are named.
    #[serde(skip_serializing_if = "is_default")]
    pub odd: Vec<ImplausibleValue>,
    /// Bandwidth of the link to the other clusters.
    #[serde(skip_serializing_if = "is_default")]
    pub uplink: Uplink,
}

impl ClusterAggregate {
    /// Aggregates a cluster's workers. The caller sets [`ClusterAggregate::uplink`] and adds the
    /// implausible numbers from its histories.
    ///
    /// A first report has no past to compare with. So a node does not count if the speed of its
    /// processors is [`AdaptationSettings::implausible_factor`] times the median of at least two
    /// others.
    pub fn of(workers: &[WorkerStats], agreed: &SharedParameters) -> Self {
        let mut sum = Self::default();
        let mut counted = Vec::new();
        for worker in workers {
            let mut worker = worker.clone();
            let own = worker.processors();
            let add = |count: &mut Processors| *count = count.saturating_add(own);
            let working = if worker.age == 0 { 1.0 - worker.overhead } else { 0.0 };
            let join = |sum: &mut Self| {
                sum.joining = sum.joining.saturating_add(own);
                sum.joining_working.add_times(working, own.get());
            };
            if worker.leaving {
                add(&mut sum.leaving);
            } else if let Some((field, value)) = worker.check(None, f64::INFINITY) {
                add(&mut sum.silent);
                sum.odd.push(ImplausibleValue {
                    node: worker.node,
                    field,
                    value,
                    replacement: None,
                });
            } else if worker.joined < agreed.grace {
                join(&mut sum);
            } else if worker.age > agreed.stale {
                add(&mut sum.silent);
            } else if worker.serves() {
                add(&mut sum.serving);
            } else if worker.is_unused() && worker.joined < agreed.idle_grace {
                join(&mut sum);
            } else if worker.speed.is_none() {
                sum.unmeasured.add(&worker);
            } else {
                counted.push(worker);
            }
        }
        let mut all: Vec<f64> = counted.iter().map(WorkerStats::processor_speed).collect();
        all.sort_by(f64::total_cmp);
        if all.len() >= 3 {
            // The lower median of an even number: a single outlier is never its own reference.
            let most = agreed.implausible_factor * all[(all.len() - 1) / 2];
            counted.retain(|worker| {
                let odd = worker.processor_speed() >= most;
                if odd {
                    let (node, value) = (worker.node.clone(), worker.speed.unwrap_or(0.0));
                    sum.silent = sum.silent.saturating_add(worker.processors());
                    sum.odd.push(ImplausibleValue {
                        node,
                        field: Field::Speed,
                        value,
                        replacement: None,
                    });
                }
                !odd
            });
        }
        for worker in &counted {
            let processors = worker.processors();
            sum.counted = sum.counted.saturating_add(processors);
            if worker.age > 0 {
                sum.stale = sum.stale.saturating_add(processors);
            }
            sum.useful.add(worker.useful());
            sum.speed.add(worker.speed.unwrap_or(0.0));
            sum.overhead.add_times(worker.overhead, processors.get());
            sum.intra.add_times(worker.overhead_intra, processors.get());
            sum.inter.add_times(worker.overhead_inter, processors.get());
            let variance = worker.useful_error() * worker.useful_error();
            sum.useful_variance.add(variance);
            sum.overhead_error.add(worker.speed.unwrap_or(0.0) * worker.overhead_error);
            let fastest = FastestWorker {
                speed_error: worker.aged_error(),
                useful: worker.useful(),
                useful_variance: variance,
            };
            sum.fastest.replace(&mut sum.max_speed, fastest, worker.processor_speed());
        }
        let max_speed = agreed.max_speed.unwrap_or(sum.max_speed);
        let mut named: Vec<RatedWorker> = counted.iter().filter_map(RatedWorker::of).collect();
        let badness = |named: &RatedWorker| named.own_badness(&agreed.weights, max_speed);
        named.sort_by(|a, b| badness(b).total_cmp(&badness(a)).then_with(|| a.node.cmp(&b.node)));
        sum.worst = named.iter().take(agreed.named as usize).cloned().collect();
        let fit = |a: &RatedWorker, b: &RatedWorker| b.effective().total_cmp(&a.effective());
        named.sort_by(|a, b| fit(a, b).then_with(|| a.node.cmp(&b.node)));
        named.truncate(2);
        sum.best = named;
        let unmeasured = &mut sum.unmeasured.named;
        unmeasured.sort_by(|a, b| {
            let by_overhead = b.overhead.total_cmp(&a.overhead);
            let by_inter = b.inter.total_cmp(&a.inter);
            by_inter.then(by_overhead).then_with(|| a.node.cmp(&b.node))
        });
        unmeasured.truncate(agreed.named as usize);
        sum.odd.truncate(agreed.named as usize);
        sum
    }

    /// Processors of the members that do not leave.
    pub fn staying(&self) -> Processors {
        let unmeasured = self.unmeasured.processors;
        [self.counted, self.joining, self.silent, unmeasured, self.serving].into_iter().sum()
    }

    /// The aggregate with all speeds in another unit: `factor` is the value of the old unit in the
    /// new one. Without a factor, the counted processors are unmeasured.
    #[must_use]
    pub fn in_unit(&self, factor: Option<f64>) -> Self {
        let factor = factor.filter(|&factor| is_rate(factor));
        let Some(factor) = factor else {
            let mut unmeasured = self.unmeasured.clone();
            unmeasured.processors = unmeasured.processors.saturating_add(self.counted);
            unmeasured.overhead.merge(&self.overhead);
            unmeasured.intra.merge(&self.intra);
            unmeasured.inter.merge(&self.inter);
            return Self {
                joining: self.joining,
                joining_working: self.joining_working.clone(),
                leaving: self.leaving,
                silent: self.silent,
                unmeasured,
                serving: self.serving,
                uplink: self.uplink,
                odd: self.odd.clone(),
                ..Self::default()
            };
        };
        let rated = |workers: &[RatedWorker]| {
            let all = workers.iter().cloned();
            all.map(|worker| RatedWorker { speed: worker.speed * factor, ..worker }).collect()
        };
        Self {
            useful: self.useful.scaled(factor),
            speed: self.speed.scaled(factor),
            max_speed: self.max_speed * factor,
            fastest: FastestWorker {
                useful: self.fastest.useful * factor,
                useful_variance: self.fastest.useful_variance * factor * factor,
                ..self.fastest
            },
            useful_variance: self.useful_variance.scaled(factor * factor),
            overhead_error: self.overhead_error.scaled(factor),
            worst: rated(&self.worst),
            best: rated(&self.best),
            ..self.clone()
        }
    }

    /// Counts unmeasured processors as joining.
    fn join_unmeasured(&mut self) {
        let UnmeasuredWorkers { processors, overhead, .. } = std::mem::take(&mut self.unmeasured);
        self.joining = self.joining.saturating_add(processors);
        self.joining_working.add((f64::from(processors) - overhead.value()).max(0.0));
    }

    /// Counts unmeasured processors as processors of this speed.
    fn presume(&mut self, speed: f64, most: u32) {
        let UnmeasuredWorkers { processors, overhead, intra, inter, named: workers } =
            std::mem::take(&mut self.unmeasured);
        self.presumed = processors;
        self.counted = self.counted.saturating_add(processors);
        self.speed.add_times(speed, processors.get());
        self.useful.add(speed * (f64::from(processors) - overhead.value()).max(0.0));
        let own = [&mut self.overhead, &mut self.intra, &mut self.inter];
        own.into_iter().zip([&overhead, &intra, &inter]).for_each(|(sum, part)| sum.merge(part));
        let fastest = FastestWorker { speed_error: 1.0, ..FastestWorker::default() };
        self.fastest.replace(&mut self.max_speed, fastest, speed);
        let presumed = |UnmeasuredWorker { node, processors, overhead, inter }| RatedWorker {
            node,
            processors,
            speed: speed * f64::from(processors),
            speed_error: 1.0,
            overhead,
            inter,
        };
        // No counted worker does less than an idle one, so these precede the worst.
        let (idle, busy): (Vec<_>, Vec<_>) =
            workers.into_iter().partition(|worker| worker.overhead >= IDLE_FROM);
        self.worst.splice(0..0, idle.into_iter().map(presumed));
        self.worst.extend(busy.into_iter().map(presumed));
        self.worst.truncate(most as usize);
    }

    /// Counts the processors of the job's master as the mean of these counted ones.
    fn count_serving(&mut self, others: &JobAggregate) {
        let processors = std::mem::take(&mut self.serving);
        let n = f64::from(others.counted);
        self.counted = self.counted.saturating_add(processors);
        self.presumed = self.presumed.saturating_add(processors);
        let means = [
            (&mut self.useful, others.useful / n),
            (&mut self.speed, others.speed / n),
            (&mut self.overhead, others.overhead),
            (&mut self.intra, others.intra),
            (&mut self.inter, others.inter),
        ];
        means.into_iter().for_each(|(sum, mean)| sum.add_times(mean, processors.get()));
        self.max_speed = self.max_speed.max(others.speed / n);
    }

    /// Mean inter-cluster overhead of the counted processors; absent without any.
    pub fn mean_inter(&self) -> Option<f64> {
        (!self.counted.is_zero()).then(|| self.inter.value() / f64::from(self.counted))
    }

    /// Mean speed of the counted processors; absent without any.
    pub fn mean_speed(&self) -> Option<f64> {
        (!self.counted.is_zero()).then(|| self.speed.value() / f64::from(self.counted))
    }

    /// Whether the numbers, received from the network, are consistent with valid reports.
    pub fn is_sound(&self) -> bool {
        let n = f64::from(self.counted);
        let sums = [
            &self.useful,
            &self.speed,
            &self.overhead,
            &self.intra,
            &self.inter,
            &self.useful_variance,
            &self.overhead_error,
        ];
        let at_most =
            |sum: &ExactSum, most: f64| (0.0..=most * (1.0 + 1e-9)).contains(&sum.value());
        let link = [self.uplink.bandwidth, self.uplink.used];
        sums.iter().all(|sum| sum.is_sound())
            && if self.counted.is_zero() {
                self.max_speed == 0.0
            } else {
                SPEEDS.contains(&self.max_speed)
            }
            && at_most(&self.speed, n * self.max_speed)
            && at_most(&self.useful, self.speed.value())
            && at_most(&self.useful_variance, (n * self.max_speed).powi(2))
            && at_most(&self.overhead_error, self.speed.value())
            && self.fastest.is_sound()
            && [&self.overhead, &self.intra, &self.inter].iter().all(|sum| at_most(sum, n))
            && self.joining_working.is_sound()
            && at_most(&self.joining_working, f64::from(self.joining))
            && self.worst.iter().chain(&self.best).all(RatedWorker::is_sound)
            && self.unmeasured.is_sound()
            && link.iter().flatten().all(|rate| *rate >= 0.0 && rate.is_finite())
    }
}

/// Statistics of a job in one period: the sum over its clusters.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct JobAggregate {
    /// Number of counted processors.
    pub counted: Processors,
    /// Counted processors of workers with an older report.
    pub stale: Processors,
    /// Processors of workers in their grace period.
    pub joining: Processors,
    /// Mean fraction of the period in which these processors worked.
    pub joining_working: f64,
    /// Processors of workers that leave.
    pub leaving: Processors,
    /// Processors of workers without a valid report.
    pub silent: Processors,
    /// Counted processors with a presumed speed.
    pub presumed: Processors,
    /// Useful speed: work units per second.
    pub useful: f64,
    /// Total speed without any overhead.
    pub speed: f64,
    /// Mean overhead of the processors.
    pub overhead: f64,
    /// Mean intra-cluster overhead of the processors.
    pub intra: f64,
    /// Mean inter-cluster overhead of the processors.
    pub inter: f64,
    /// Speed of the fastest processor.
    pub max_speed: f64,
    /// The fastest worker of all clusters.
    pub fastest: FastestWorker,
    /// Variance of the useful speed that follows from the speeds of all but the fastest worker.
    pub useful_variance: f64,
    /// Standard error of the useful speed that follows from the overheads.
    pub overhead_error: f64,
}

impl JobAggregate {
    /// Sums up the clusters' aggregates.
    pub fn of<'a>(clusters: impl IntoIterator<Item = &'a ClusterAggregate>) -> Self {
        let mut all = Self::default();
        let mut sums: [ExactSum; 8] = Default::default();
        for cluster in clusters {
            all.counted = all.counted.saturating_add(cluster.counted);
            all.stale = all.stale.saturating_add(cluster.stale);
            all.joining = all.joining.saturating_add(cluster.joining);
            all.leaving = all.leaving.saturating_add(cluster.leaving);
            all.silent = all.silent.saturating_add(cluster.silent);
            all.presumed = all.presumed.saturating_add(cluster.presumed);
            all.fastest.replace(&mut all.max_speed, cluster.fastest, cluster.max_speed);
            let parts = [
                &cluster.useful,
                &cluster.speed,
                &cluster.overhead,
                &cluster.inter,
                &cluster.useful_variance,
                &cluster.overhead_error,
                &cluster.intra,
                &cluster.joining_working,
            ];
            sums.iter_mut().zip(parts).for_each(|(sum, part)| sum.merge(part));
        }
        sums[4].add(-all.fastest.useful_variance);
        let [useful, speed, overhead, inter, variance, overhead_error, intra, working] =
            sums.map(|sum| sum.value());
        (all.useful_variance, all.overhead_error) = (variance.max(0.0), overhead_error);
        let n = f64::from(all.counted.max(Processors::ONE));
        (all.useful, all.speed) = (useful, speed);
        all.joining_working = working / f64::from(all.joining.max(Processors::ONE));
        (all.overhead, all.intra, all.inter) = (overhead / n, intra / n, inter / n);
        all
    }

    /// Weighted average efficiency, 0 to 1; absent if no processor counts.
    pub fn efficiency(&self) -> Option<f64> {
        let most = f64::from(self.counted) * self.max_speed;
        (most > 0.0).then(|| (self.useful / most).min(1.0))
    }

    /// Standard error of the efficiency, as the module states it; absent if no worker counts.
    pub fn efficiency_error(&self) -> Option<f64> {
        let efficiency = self.efficiency()?;
        let most = f64::from(self.counted) * self.max_speed;
        let others = (efficiency - self.fastest.useful / most).max(0.0);
        let by_chance = (1.0 + f64::from(self.counted).ln() / 2.0).sqrt();
        let related = others * self.fastest.speed_error * by_chance;
        let overheads = self.overhead_error / most;
        let speeds = self.useful_variance.sqrt() / most;
        let error = (speeds * speeds + related * related + overheads * overheads).sqrt();
        Some(if error.is_finite() { error.min(1.0) } else { 1.0 })
    }

    /// Mean speed of the counted processors; 0 without any.
    pub fn mean_speed(&self) -> f64 {
        if self.counted.is_zero() { 0.0 } else { self.speed / f64::from(self.counted) }
    }
}

/// Counts unmeasured processors with their cluster's mean speed, else with the job's mean speed.
/// Where no speed is known, they count as joining.
///
/// Counts the master's processors as the mean of its cluster's others, else of the job's. So the
/// efficiency is that of the workers, while sizes include the master. Absent if all are measured
/// and no master serves.
pub(super) fn presumed(
    clusters: &BTreeMap<ClusterId, ClusterAggregate>,
    named: u32,
) -> Option<BTreeMap<ClusterId, ClusterAggregate>> {
    let is_unmeasured = |c: &ClusterAggregate| !c.unmeasured.processors.is_zero() && c.is_sound();
    let serves = |c: &ClusterAggregate| !c.serving.is_zero() && c.is_sound();
    if !clusters.values().any(|c| is_unmeasured(c) || serves(c)) {
        return None;
    }
    let mean = JobAggregate::of(clusters.values().filter(|c| c.is_sound())).mean_speed();
    let mut all = clusters.clone();
    if !SPEEDS.contains(&mean) {
        all.values_mut().filter(|c| c.is_sound()).for_each(ClusterAggregate::join_unmeasured);
        return Some(all);
    }
    for cluster in all.values_mut().filter(|c| is_unmeasured(c)) {
        let own = cluster.mean_speed().filter(|speed| SPEEDS.contains(speed));
        cluster.presume(own.unwrap_or(mean), named);
    }
    let job = JobAggregate::of(all.values().filter(|c| c.is_sound()));
    for cluster in all.values_mut().filter(|c| serves(c)) {
        let own = JobAggregate::of([&*cluster]);
        cluster.count_serving(if own.counted.is_zero() { &job } else { &own });
    }
    Some(all)
}

/// Excludes aggregates that must not influence a decision. Returns the valid clusters, and the
/// excluded ones with the reason.
///
/// A cluster is valid unless its numbers contradict each other, or its fastest processor reaches
/// `factor` times the fastest known speed. If all clusters exceed this factor, the application's
/// unit has changed, and all are valid.
pub(super) fn believed<'a>(
    clusters: &'a BTreeMap<ClusterId, ClusterAggregate>,
    members: &BTreeMap<ClusterId, Processors>,
    known_max: Option<f64>,
    factor: f64,
) -> (BTreeMap<&'a ClusterId, &'a ClusterAggregate>, Vec<(ClusterId, &'static str)>) {
    let mut aside = Vec::new();
    let mut good = BTreeMap::new();
    for (id, cluster) in clusters {
        // Some members may have left since the aggregate, but not more than half of them.
        let reported = u64::from(cluster.staying().get()) + u64::from(cluster.leaving.get());
        let known = members.get(id).map_or(u64::MAX, |&n| 2 * u64::from(n.get()) + 4);
        if !cluster.is_sound() {
            aside.push((id.clone(), "its numbers contradict each other"));
        } else if reported > known {
            aside.push((id.clone(), "it counts far more processors than its members have"));
        } else {
            good.insert(id, cluster);
        }
    }
    let jumps = |c: &ClusterAggregate| known_max.is_some_and(|max| c.max_speed >= factor * max);
    if good.values().any(|c| !c.counted.is_zero() && !jumps(c)) {
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
