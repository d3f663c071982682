//! Decides when a node runs a benchmark and for how long: a state machine without I/O or clock.
//!
//! - A node that gets its first benchmark and has no known speed, a joiner, runs it at once. A node
//!   that works since the start and counts work units waits until it is idle.
//! - Later it runs again if the kernel's load has changed, the last run was cut short, or there is
//!   another benchmark. If the kernel reports no load, it runs as often as the budget allows, as in
//!   the paper.
//! - It also runs again when the last run is older than a limit, since not every change shows in
//!   the load. The same follows when the job's efficiency is too uncertain for a decision. For
//!   these two the budget lends one run. So the limit holds where a run costs at most the overhead
//!   over that time: by default half a second in a minute, at 1 %. The mean cost stays within the
//!   overhead.
//! - An idle node runs freely. A busy one pays from a budget that grows with time. Neither repeats
//!   a benchmark while its work units give its speed: a node that is idle for a moment mostly waits
//!   for a result. If the budget does not suffice for a whole run, it waits for half a period. Then
//!   it makes a shorter run, with a larger error.
//!
//! Source: Self-adaptive applications on the grid (PPoPP 2007), section 3.2 (maximal overhead set
//! by the user; watching the load instead is its future work). It does not know the work of a
//! benchmark.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::BenchmarkGoal;
use crate::meter::load::USUAL_QUOTA_PERIOD;
use crate::meter::{Load, LoadChange, LoadThresholds, SpecId};

/// Added to the time of each wake-up. A rest of the budget below the clock's resolution would
/// otherwise wake the planner again at the same time, for ever.
const WAKE_MARGIN: Duration = Duration::from_millis(1);

/// Parameters of the planner.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BenchmarkSettings {
    /// The largest share of a busy node's wall time for benchmarks. Default: 0.01. 0: busy nodes
    /// run none.
    pub max_overhead: f64,
    /// The length of a run in periods of the quota. Default: 5. A shorter run could see only full
    /// speed or only a stop.
    pub quota_periods: u32,
    /// The most whole runs that the budget saves up. Default: 2.
    pub saved_runs: u32,
    /// The length of a statistics period. A change must show by the end of the next one.
    pub period: Duration,
    /// The age of the last run at which the next one is due; zero: no limit. Default: 60 s. Where
    /// the overhead pays for less than a run in this time, the age grows until it does.
    pub max_age: Duration,
    /// Thresholds of significant changes of load.
    pub thresholds: LoadThresholds,
}

impl Default for BenchmarkSettings {
    fn default() -> Self {
        Self {
            max_overhead: 0.01,
            quota_periods: 5,
            saved_runs: 2,
            period: Duration::from_secs(10),
            max_age: Duration::from_secs(60),
            thresholds: LoadThresholds::default(),
        }
    }
}

/// An inconsistency of benchmark settings.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum BenchmarkSettingsError {
    /// The overhead is not a valid share.
    #[error("the benchmarks' overhead is {0}; it must be a share of wall time from 0 to 0.5")]
    Overhead(f64),
    /// A run would have no length.
    #[error("a benchmark is to last 0 quota periods; give at least 1, 5 to measure well")]
    NoLength,
    /// The budget could never pay for a run.
    #[error("the budget saves 0 runs of a benchmark; give at least 1, or set the overhead to 0")]
    NoSavings,
    /// A run would exceed a period.
    #[error(
        "a period of {period:?} is shorter than a benchmark of {run:?}; lengthen the one or \
         shorten the other"
    )]
    PeriodTooShort {
        /// The length of the period.
        period: Duration,
        /// The length of a run under the usual quota.
        run: Duration,
    },
}

impl BenchmarkSettings {
    /// All inconsistencies of the settings.
    pub fn check(&self) -> Vec<BenchmarkSettingsError> {
        let mut wrong = Vec::new();
        if !(0.0..=0.5).contains(&self.max_overhead) {
            wrong.push(BenchmarkSettingsError::Overhead(self.max_overhead));
        }
        if self.quota_periods == 0 {
            wrong.push(BenchmarkSettingsError::NoLength);
        }
        if self.saved_runs == 0 {
            wrong.push(BenchmarkSettingsError::NoSavings);
        }
        let run = USUAL_QUOTA_PERIOD.saturating_mul(self.quota_periods);
        if self.period <= run {
            wrong.push(BenchmarkSettingsError::PeriodTooShort { period: self.period, run });
        }
        wrong
    }
}

/// An input of the planner.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum BenchmarkEvent {
    /// The job has this benchmark from now on.
    Spec(SpecId),
    /// The load of the stretch of time that ends now, once per period.
    ///
    /// Also needed once before the first [`BenchmarkEvent::Spec`], so that there is a load to
    /// compare with.
    Load(Load),
    /// The period of the node's quota; none if there is no quota or it is unknown.
    QuotaPeriod(Option<Duration>),
    /// No thread of the node has work of the job.
    Idle,
    /// Some thread of the node has work.
    Busy,
    /// Whether work units give the node's speed; see
    /// [`SpeedMeter::knows_units`](crate::meter::SpeedMeter::knows_units).
    KnowsUnits(bool),
    /// The job needs a new measurement: its efficiency is too uncertain for a decision.
    Uncertain,
    /// The run has ended.
    Finished {
        /// Whether it had its full length; see
        /// [`BenchmarkRun::is_complete`](super::BenchmarkRun::is_complete).
        whole: bool,
    },
    /// The run's work failed on this node. It is not repeated under this specification.
    Failed,
    /// The node leaves the job, so there are no more runs.
    Leaving,
    /// The time of [`BenchmarkAction::Wake`] has come.
    Tick,
}

/// An output of the planner.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum BenchmarkAction {
    /// Run the benchmark on all threads. Answer with [`BenchmarkEvent::Finished`] or
    /// [`BenchmarkEvent::Failed`].
    Run {
        /// The benchmark to run.
        spec: SpecId,
        /// The length of the run.
        goal: BenchmarkGoal,
        /// The reason of the run.
        reason: BenchmarkReason,
    },
    /// End the run under way; its measurements count. Answer with [`BenchmarkEvent::Finished`].
    Stop,
    /// Answer with [`BenchmarkEvent::Tick`] at this time. Replaces an earlier one.
    Wake {
        /// The time of the tick.
        at: Instant,
    },
}

/// The reason of a benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BenchmarkReason {
    /// The node's speed is unknown.
    Joined,
    /// The job has another benchmark.
    OtherSpec,
    /// The load has changed since the last run.
    Load(LoadChange),
    /// The last run was cut short.
    CutShort,
    /// The kernel does not report whether the load has changed.
    LoadUnknown,
    /// The last run is older than the limit.
    Age,
    /// The job's efficiency is too uncertain for a decision.
    Uncertain,
}

impl BenchmarkReason {
    /// Whether the budget lends a run.
    fn is_lent(self) -> bool {
        matches!(self, BenchmarkReason::Age | BenchmarkReason::Uncertain)
    }
}

impl fmt::Display for BenchmarkReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BenchmarkReason::Joined => f.write_str("nothing was known of the node's speed"),
            BenchmarkReason::OtherSpec => f.write_str("the job has another benchmark"),
            BenchmarkReason::Load(change) => write!(f, "{change}"),
            BenchmarkReason::CutShort => f.write_str("the last benchmark was cut short"),
            BenchmarkReason::LoadUnknown => {
                f.write_str("the system does not report whether its load has changed")
            }
            BenchmarkReason::Age => f.write_str("the last benchmark is too old"),
            BenchmarkReason::Uncertain => {
                f.write_str("the job's efficiency is too uncertain for a decision")
            }
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct RunningBenchmark {
    /// The time from which the budget pays; none if the run is free.
    paid_since: Option<Instant>,
    /// Whether the budget lends a whole run to it.
    is_lent: bool,
    stopping: bool,
}

#[derive(Clone, Copy, Debug)]
struct BenchmarkNeed {
    why: BenchmarkReason,
    since: Instant,
}

/// Plans a node's benchmarks in one job.
#[derive(Clone, Debug)]
pub struct BenchmarkPlanner {
    settings: BenchmarkSettings,
    quota_period: Duration,
    spec: Option<SpecId>,
    /// The specification whose work failed here.
    failed: Option<SpecId>,
    need: Option<BenchmarkNeed>,
    running: Option<RunningBenchmark>,
    busy: bool,
    knows_units: bool,
    leaving: bool,
    load: Option<Load>,
    /// The load at the start of the last run.
    measured_under: Option<Load>,
    /// The end of the last run.
    measured_at: Option<Instant>,
    /// Seconds of benchmarks that may be spent; negative after a run that exceeded its time.
    budget: f64,
    budget_at: Instant,
}

impl BenchmarkPlanner {
    /// A planner without a benchmark. Its budget is one whole run.
    pub fn new(settings: BenchmarkSettings, now: Instant) -> Self {
        let mut planner = Self {
            settings,
            quota_period: USUAL_QUOTA_PERIOD,
            spec: None,
            failed: None,
            need: None,
            running: None,
            busy: false,
            knows_units: false,
            leaving: false,
            load: None,
            measured_under: None,
            measured_at: None,
            budget: 0.0,
            budget_at: now,
        };
        planner.budget = planner.whole().as_secs_f64();
        planner
    }

    /// Handles an event, and returns the resulting actions.
    pub fn handle(&mut self, event: BenchmarkEvent, now: Instant) -> Vec<BenchmarkAction> {
        let mut out = Vec::new();
        self.fill_budget(now);
        match event {
            BenchmarkEvent::Spec(spec) if self.spec != Some(spec) => {
                let first = self.spec.is_none();
                self.spec = Some(spec);
                let why = if first { BenchmarkReason::Joined } else { BenchmarkReason::OtherSpec };
                self.need = Some(BenchmarkNeed { why, since: now });
                if !first {
                    self.stop(&mut out);
                }
            }
            BenchmarkEvent::Spec(_) | BenchmarkEvent::Tick => {}
            BenchmarkEvent::Load(load) => self.handle_load(load.checked(), now),
            BenchmarkEvent::QuotaPeriod(period) => {
                // Bounds the period against a misconfigured quota.
                let usual = period.unwrap_or(USUAL_QUOTA_PERIOD);
                self.quota_period = usual.clamp(Duration::from_millis(1), Duration::from_secs(1));
            }
            BenchmarkEvent::Idle => self.busy = false,
            BenchmarkEvent::Busy => self.busy = true,
            BenchmarkEvent::KnowsUnits(knows) => self.knows_units = knows,
            BenchmarkEvent::Uncertain => {
                if self.need.is_none() && self.running.is_none() && self.spec.is_some() {
                    self.need = Some(BenchmarkNeed { why: BenchmarkReason::Uncertain, since: now });
                }
            }
            BenchmarkEvent::Finished { whole } => self.finished(whole, now),
            BenchmarkEvent::Failed => {
                self.finished(true, now);
                // A new specification that came meanwhile is not the one that failed.
                if !matches!(self.need, Some(BenchmarkNeed { why: BenchmarkReason::OtherSpec, .. }))
                {
                    self.failed = self.spec;
                }
            }
            BenchmarkEvent::Leaving => {
                self.leaving = true;
                self.stop(&mut out);
            }
        }
        if self.running.is_some() {
            self.watch(now, &mut out);
        } else {
            let waits = self.need.is_some_and(|need| need.why != BenchmarkReason::CutShort);
            if !waits && self.is_old_at().is_some_and(|old| old <= now) {
                self.need = Some(BenchmarkNeed { why: BenchmarkReason::Age, since: now });
            }
            self.start(now, &mut out);
        }
        out
    }

    /// The time at which the last run is too old; none without a run or a limit.
    fn is_old_at(&self) -> Option<Instant> {
        let limit = self.settings.max_age;
        self.measured_at.filter(|_| !limit.is_zero()).map(|at| at + limit)
    }

    /// The full length of a run.
    fn whole(&self) -> Duration {
        self.quota_period.saturating_mul(self.settings.quota_periods.max(1))
    }

    fn overhead(&self) -> f64 {
        // Settings are checked where they are read; NaN pays for nothing.
        if self.settings.max_overhead >= 0.0 { self.settings.max_overhead.min(0.5) } else { 0.0 }
    }

    fn fill_budget(&mut self, now: Instant) {
        let passed = now.saturating_duration_since(self.budget_at).as_secs_f64();
        self.budget_at = self.budget_at.max(now);
        let most = self.whole().as_secs_f64() * f64::from(self.settings.saved_runs.max(1));
        self.budget = (self.budget + passed * self.overhead()).min(most);
    }

    fn handle_load(&mut self, load: Load, now: Instant) {
        self.load = Some(load);
        if self.measured_under.is_none() && self.need.is_none() && self.running.is_none() {
            // The first load since the run has no predecessor to compare with.
            self.measured_under = Some(load);
        }
        let change = self
            .measured_under
            .and_then(|before| load.changed_from(&before, &self.settings.thresholds));
        match (&self.need, change) {
            (None, Some(change)) => {
                self.need = Some(BenchmarkNeed { why: BenchmarkReason::Load(change), since: now });
            }
            // The load is again that of the measurement, so the known speed is valid.
            (Some(BenchmarkNeed { why: BenchmarkReason::Load(_), .. }), None)
                if self.running.is_none() =>
            {
                self.need = None;
            }
            (None, None) if !load.is_known() && self.spec.is_some() => {
                self.need = Some(BenchmarkNeed { why: BenchmarkReason::LoadUnknown, since: now });
            }
            _ => {}
        }
    }

    fn finished(&mut self, whole: bool, now: Instant) {
        let Some(running) = self.running.take() else { return };
        self.measured_at = Some(now);
        if let Some(since) = running.paid_since {
            self.budget -= now.saturating_duration_since(since).as_secs_f64();
        }
        // A need that arose during the run (another specification or load) remains.
        if !whole && self.need.is_none() {
            self.need = Some(BenchmarkNeed { why: BenchmarkReason::CutShort, since: now });
        }
    }

    fn stop(&mut self, out: &mut Vec<BenchmarkAction>) {
        if let Some(running) = &mut self.running
            && !running.stopping
        {
            running.stopping = true;
            out.push(BenchmarkAction::Stop);
        }
    }

    /// Pays for a free run from the time when the node has work, and ends a paid run with the
    /// budget.
    fn watch(&mut self, now: Instant, out: &mut Vec<BenchmarkAction>) {
        let lent = self.whole().as_secs_f64();
        let Some(running) = &mut self.running else { return };
        if running.stopping || !self.busy {
            return;
        }
        let since = *running.paid_since.get_or_insert(now);
        let budget = self.budget + if running.is_lent { lent } else { 0.0 };
        let left = budget - now.saturating_duration_since(since).as_secs_f64();
        if left <= 0.0 {
            self.stop(out);
        } else {
            out.push(BenchmarkAction::Wake { at: now + seconds(left) + WAKE_MARGIN });
        }
    }

    fn start(&mut self, now: Instant, out: &mut Vec<BenchmarkAction>) {
        let (Some(spec), Some(need)) = (self.spec, self.need) else {
            if let Some(old) = self.is_old_at().filter(|_| !self.leaving) {
                out.push(BenchmarkAction::Wake { at: old });
            }
            return;
        };
        if self.leaving || self.failed == Some(spec) {
            return;
        }
        // A repeated benchmark has a known exchange rate, so units suffice.
        let is_first = matches!(need.why, BenchmarkReason::Joined | BenchmarkReason::OtherSpec);
        if self.knows_units && !is_first {
            return;
        }
        let whole = self.whole();
        // Repeats may be long: leave room for three.
        let goal = BenchmarkGoal {
            min_length: whole,
            max_length: whole.saturating_mul(4),
            window: self.quota_period,
        };
        let joined = matches!(need.why, BenchmarkReason::Joined);
        if !self.busy || (joined && !self.knows_units) {
            // With an unknown load an idle node would run for ever, so it keeps to the budget too.
            let unlimited = !matches!(need.why, BenchmarkReason::LoadUnknown);
            if unlimited {
                self.run(spec, goal, need.why, None, out);
                return;
            }
        } else if self.knows_units || self.overhead() == 0.0 {
            return;
        }
        let (least, most) = (self.quota_period.as_secs_f64(), whole.as_secs_f64());
        // A later result would be too late for the next period's report.
        let patience = need.since + self.settings.period / 2;
        let is_lent = need.why.is_lent();
        let goal = if is_lent && self.budget >= 0.0 {
            let paid = seconds(self.budget + most);
            BenchmarkGoal { max_length: whole.max(paid).min(goal.max_length), ..goal }
        } else if self.budget >= most {
            BenchmarkGoal {
                max_length: whole.max(seconds(self.budget)).min(goal.max_length),
                ..goal
            }
        } else if now >= patience
            && self.budget >= least
            && !is_lent
            && !matches!(need.why, BenchmarkReason::CutShort | BenchmarkReason::LoadUnknown)
        {
            let length = seconds(self.budget);
            BenchmarkGoal { max_length: length, ..goal }
        } else {
            if self.overhead() > 0.0 {
                let until =
                    |enough: f64| now + seconds((enough - self.budget).max(0.0) / self.overhead());
                let shorter = until(least).max(patience);
                let at = match need.why {
                    _ if is_lent => until(0.0),
                    BenchmarkReason::CutShort | BenchmarkReason::LoadUnknown => until(most),
                    _ => until(most).min(shorter),
                };
                out.push(BenchmarkAction::Wake { at: at + WAKE_MARGIN });
            }
            return;
        };
        self.run(spec, goal, need.why, Some(now), out);
    }

    fn run(
        &mut self,
        spec: SpecId,
        goal: BenchmarkGoal,
        why: BenchmarkReason,
        paid_since: Option<Instant>,
        out: &mut Vec<BenchmarkAction>,
    ) {
        self.need = None;
        self.measured_under = self.load;
        let is_lent = why.is_lent();
        self.running = Some(RunningBenchmark { paid_since, is_lent, stopping: false });
        out.push(BenchmarkAction::Run { spec, goal, reason: why });
    }
}

/// A duration that overflows no sum with a point in time.
fn seconds(seconds: f64) -> Duration {
    const LONG: Duration = Duration::from_secs(1 << 30);
    if seconds > 0.0 {
        Duration::try_from_secs_f64(seconds).unwrap_or(LONG).min(LONG)
    } else {
        Duration::ZERO
    }
}

#[cfg(test)]
#[path = "planner_tests.rs"]
mod tests;
