//! When a node runs a benchmark, and for how long: a state machine without I/O and without a clock.
//!
//! - A node that has just got its first benchmark runs it at once, if nothing is known of its speed: a joiner. One that works
//!   and tells work units (it was there from the start) waits until it is idle.
//! - After that it runs again only if the kernel's load has changed since the last time, if the last run was cut short, or if the
//!   benchmark is another one. Where the kernel tells nothing, it runs as often as the budget allows, as in the paper.
//! - An idle node runs freely. A busy one pays from a budget that fills with time. Neither runs again while its work units tell its
//!   speed: one that is idle for a moment waits for a result as a rule, and others for what it makes of it. If the budget does
//!   not reach for a whole run, it waits for half a period, and then runs a shorter one, with the larger error that this has.
//!
//! Source: Self-adaptive applications on the grid (PPoPP 2007), section 3.2 (maximal overhead set by the user; to watch the load
//! instead is its future work). Must not know what is run.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::BenchmarkGoal;
use crate::meter::load::USUAL_QUOTA_PERIOD;
use crate::meter::{Load, LoadChange, LoadThresholds, SpecId};

/// How benchmarks are planned.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BenchmarkSettings {
    /// Largest share of a busy node's wall time that benchmarks may take. 0.01; 0: busy nodes run none.
    pub max_overhead: f64,
    /// A run lasts so many periods of the quota. 5: fewer would see the node at full speed or stopped, by chance.
    pub quota_periods: u32,
    /// The budget saves up to so many whole runs. 2.
    pub saved_runs: u32,
    /// Length of a statistics period: a change must show by the end of the next one.
    pub period: Duration,
    /// What counts as a change of load.
    pub thresholds: LoadThresholds,
}

impl Default for BenchmarkSettings {
    fn default() -> Self {
        Self {
            max_overhead: 0.01,
            quota_periods: 5,
            saved_runs: 2,
            period: Duration::from_secs(10),
            thresholds: LoadThresholds::default(),
        }
    }
}

/// Settings that contradict themselves.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum BenchmarkSettingsError {
    /// No share.
    #[error("the benchmarks' overhead is {0}; it must be a share of wall time from 0 to 0.5")]
    Overhead(f64),
    /// No length.
    #[error("a benchmark is to last 0 quota periods; give at least 1, 5 to measure well")]
    NoLength,
    /// Nothing could ever be saved for a run.
    #[error("the budget saves 0 runs of a benchmark; give at least 1, or set the overhead to 0")]
    NoSavings,
    /// A run would outlast a period.
    #[error(
        "a period of {period:?} is shorter than a benchmark of {run:?}; lengthen the one or shorten the other"
    )]
    PeriodTooShort {
        /// The period.
        period: Duration,
        /// A run under the usual quota.
        run: Duration,
    },
}

impl BenchmarkSettings {
    /// Everything wrong with them.
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

/// What the planner hears.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum BenchmarkEvent {
    /// The job has this benchmark from now on.
    Spec(SpecId),
    /// The load of the stretch of time that ends now, once a period; also once before the first [`BenchmarkEvent::Spec`], or the
    /// first run has nothing to be compared with.
    Load(Load),
    /// The period of the quota that the node is under; absent: none, or not known.
    QuotaPeriod(Option<Duration>),
    /// No thread of the node has work of the job.
    Idle,
    /// Some thread has.
    Busy,
    /// Whether work units tell the node's speed: [`SpeedMeter::knows_units`](crate::meter::SpeedMeter::knows_units).
    KnowsUnits(bool),
    /// The run is over.
    Finished {
        /// Whether it lasted as long as it should: [`BenchmarkRun::is_whole`](super::BenchmarkRun::is_whole).
        whole: bool,
    },
    /// The run could not be made: its work failed here. It is not tried again under this specification.
    Failed,
    /// The node leaves the job: no more runs.
    Leaving,
    /// The time of [`BenchmarkAction::Wake`] has come.
    Tick,
}

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum BenchmarkAction {
    /// Run the benchmark on all threads; feed back [`BenchmarkEvent::Finished`] or [`BenchmarkEvent::Failed`].
    Run {
        /// Which one.
        spec: SpecId,
        /// For how long.
        goal: BenchmarkGoal,
        /// Why.
        why: BenchmarkReason,
    },
    /// End the run under way; what it has measured counts. Feed back [`BenchmarkEvent::Finished`].
    Stop,
    /// Feed back [`BenchmarkEvent::Tick`] then; replaces an earlier one.
    Wake {
        /// When.
        at: Instant,
    },
}

/// Why a benchmark is run.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BenchmarkReason {
    /// Nothing is known of the node's speed.
    Joined,
    /// The job has another benchmark.
    OtherSpec,
    /// The load is another than when it last ran.
    Load(LoadChange),
    /// The last run was cut short.
    CutShort,
    /// The kernel does not tell whether the load has changed.
    LoadUnknown,
}

impl fmt::Display for BenchmarkReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BenchmarkReason::Joined => f.write_str("nothing was known of the node's speed"),
            BenchmarkReason::OtherSpec => f.write_str("the job has another benchmark"),
            BenchmarkReason::Load(change) => write!(f, "{change}"),
            BenchmarkReason::CutShort => f.write_str("the last benchmark was cut short"),
            BenchmarkReason::LoadUnknown => {
                f.write_str("the system does not tell whether its load has changed")
            }
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Running {
    /// From when on it is paid for; absent: it is free.
    paid_since: Option<Instant>,
    stopping: bool,
}

#[derive(Clone, Copy, Debug)]
struct Need {
    why: BenchmarkReason,
    since: Instant,
}

/// Plans a node's benchmarks in one job.
#[derive(Clone, Debug)]
pub struct Planner {
    settings: BenchmarkSettings,
    quota_period: Duration,
    spec: Option<SpecId>,
    /// The specification whose work failed here.
    failed: Option<SpecId>,
    need: Option<Need>,
    running: Option<Running>,
    busy: bool,
    knows_units: bool,
    leaving: bool,
    load: Option<Load>,
    /// The load when the last run began.
    measured_under: Option<Load>,
    /// Seconds of benchmark that may be spent; below zero after a run that took longer than it should.
    budget: f64,
    budget_at: Instant,
}

impl Planner {
    /// A planner that knows no benchmark yet. Its budget is one whole run.
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
            budget: 0.0,
            budget_at: now,
        };
        planner.budget = planner.whole().as_secs_f64();
        planner
    }

    /// Takes an event in.
    pub fn handle(&mut self, event: BenchmarkEvent, now: Instant) -> Vec<BenchmarkAction> {
        let mut out = Vec::new();
        self.fill_budget(now);
        match event {
            BenchmarkEvent::Spec(spec) if self.spec != Some(spec) => {
                let first = self.spec.is_none();
                self.spec = Some(spec);
                let why = if first { BenchmarkReason::Joined } else { BenchmarkReason::OtherSpec };
                self.need = Some(Need { why, since: now });
                if !first {
                    self.stop(&mut out);
                }
            }
            BenchmarkEvent::Spec(_) | BenchmarkEvent::Tick => {}
            BenchmarkEvent::Load(load) => self.hear_load(load.checked(), now),
            BenchmarkEvent::QuotaPeriod(period) => {
                // A quota period of an hour would be a mistake of somebody else's.
                let usual = period.unwrap_or(USUAL_QUOTA_PERIOD);
                self.quota_period = usual.clamp(Duration::from_millis(1), Duration::from_secs(1));
            }
            BenchmarkEvent::Idle => self.busy = false,
            BenchmarkEvent::Busy => self.busy = true,
            BenchmarkEvent::KnowsUnits(knows) => self.knows_units = knows,
            BenchmarkEvent::Finished { whole } => self.finished(whole, now),
            BenchmarkEvent::Failed => {
                self.finished(true, now);
                // If another specification came up meanwhile, it is that one's turn.
                if !matches!(self.need, Some(Need { why: BenchmarkReason::OtherSpec, .. })) {
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
            self.start(now, &mut out);
        }
        out
    }

    /// What a run should last.
    fn whole(&self) -> Duration {
        self.quota_period.saturating_mul(self.settings.quota_periods.max(1))
    }

    fn overhead(&self) -> f64 {
        // Settings are checked where they are read; a number that is none pays for nothing.
        if self.settings.max_overhead >= 0.0 { self.settings.max_overhead.min(0.5) } else { 0.0 }
    }

    fn fill_budget(&mut self, now: Instant) {
        let passed = now.saturating_duration_since(self.budget_at).as_secs_f64();
        self.budget_at = self.budget_at.max(now);
        let most = self.whole().as_secs_f64() * f64::from(self.settings.saved_runs.max(1));
        self.budget = (self.budget + passed * self.overhead()).min(most);
    }

    fn hear_load(&mut self, load: Load, now: Instant) {
        self.load = Some(load);
        if self.measured_under.is_none() && self.need.is_none() && self.running.is_none() {
            // The first load since the run: there is nothing to compare it with.
            self.measured_under = Some(load);
        }
        let change = self
            .measured_under
            .and_then(|before| load.changed_from(&before, &self.settings.thresholds));
        match (&self.need, change) {
            (None, Some(change)) => {
                self.need = Some(Need { why: BenchmarkReason::Load(change), since: now });
            }
            // It is again as it was when the speed was measured: what is known holds.
            (Some(Need { why: BenchmarkReason::Load(_), .. }), None) if self.running.is_none() => {
                self.need = None;
            }
            (None, None) if !load.is_known() && self.spec.is_some() => {
                self.need = Some(Need { why: BenchmarkReason::LoadUnknown, since: now });
            }
            _ => {}
        }
    }

    fn finished(&mut self, whole: bool, now: Instant) {
        let Some(running) = self.running.take() else { return };
        if let Some(since) = running.paid_since {
            self.budget -= now.saturating_duration_since(since).as_secs_f64();
        }
        // What came up during the run (another specification, another load) stays.
        if !whole && self.need.is_none() {
            self.need = Some(Need { why: BenchmarkReason::CutShort, since: now });
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

    /// A free run is paid for from when the node has work; a paid one ends when the budget is spent.
    fn watch(&mut self, now: Instant, out: &mut Vec<BenchmarkAction>) {
        let Some(running) = &mut self.running else { return };
        if running.stopping || !self.busy {
            return;
        }
        let since = *running.paid_since.get_or_insert(now);
        let left = self.budget - now.saturating_duration_since(since).as_secs_f64();
        if left <= 0.0 {
            self.stop(out);
        } else {
            out.push(BenchmarkAction::Wake { at: now + seconds(left) });
        }
    }

    fn start(&mut self, now: Instant, out: &mut Vec<BenchmarkAction>) {
        let (Some(spec), Some(need)) = (self.spec, self.need) else { return };
        if self.leaving || self.failed == Some(spec) {
            return;
        }
        // Of a benchmark that ran once its exchange rate is known; for the rest there are the units.
        let is_first = matches!(need.why, BenchmarkReason::Joined | BenchmarkReason::OtherSpec);
        if self.knows_units && !is_first {
            return;
        }
        let whole = self.whole();
        // Repeats may be long: three of them should have room.
        let goal = BenchmarkGoal {
            at_least: whole,
            at_most: whole.saturating_mul(4),
            stretch: self.quota_period,
        };
        let joined = matches!(need.why, BenchmarkReason::Joined);
        if !self.busy || (joined && !self.knows_units) {
            // Where nothing can be known of the load an idle node would run for ever: it keeps to the budget too.
            let unlimited = !matches!(need.why, BenchmarkReason::LoadUnknown);
            if unlimited {
                self.run(spec, goal, need.why, None, out);
                return;
            }
        } else if self.knows_units || self.overhead() == 0.0 {
            return;
        }
        let (least, most) = (self.quota_period.as_secs_f64(), whole.as_secs_f64());
        // Later, what comes of it would be too late for the next period's report.
        let patience = need.since + self.settings.period / 2;
        let goal = if self.budget >= most {
            BenchmarkGoal { at_most: whole.max(seconds(self.budget)).min(goal.at_most), ..goal }
        } else if now >= patience
            && self.budget >= least
            && !matches!(need.why, BenchmarkReason::CutShort | BenchmarkReason::LoadUnknown)
        {
            let length = seconds(self.budget);
            BenchmarkGoal { at_most: length, ..goal }
        } else {
            if self.overhead() > 0.0 {
                let until =
                    |enough: f64| now + seconds((enough - self.budget).max(0.0) / self.overhead());
                let shorter = until(least).max(patience);
                let at = match need.why {
                    BenchmarkReason::CutShort | BenchmarkReason::LoadUnknown => until(most),
                    _ => until(most).min(shorter),
                };
                // Rounding must not wake it a moment too early, again and again.
                out.push(BenchmarkAction::Wake { at: at + Duration::from_millis(1) });
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
        self.running = Some(Running { paid_since, stopping: false });
        out.push(BenchmarkAction::Run { spec, goal, why });
    }
}

/// A duration that no sum with a point in time overflows.
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
