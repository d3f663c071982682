//! The time series of a run: iterations, nodes, efficiency and overheads over time, and decisions.
//!
//! This module does not know the drawing.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use springtide_actors::look::DecisionSummary;
use springtide_actors::policy::Mode;
use springtide_cli::format::median;
use springtide_runtime::event::Event;
use springtide_runtime::id::{ClusterId, NodeId};
use springtide_runtime::meter::{Counters, Times};

use crate::runlog::RunLog;
use crate::sentence;

/// Maximum number of iterations with values of their own; more are grouped into intervals.
const ITERATIONS: usize = 80;
/// Number of intervals of runs without iterations, or with more than that.
const INTERVALS: u32 = 40;

/// A value from each time on, until the next.
pub type Steps<T> = Vec<(f64, T)>;

/// A decision or an event of the grid.
#[derive(Clone, Debug, PartialEq)]
pub struct TimelineMark {
    /// The time in seconds since the job's start.
    pub at_s: f64,
    /// The action or event.
    pub what: String,
    /// The reason; empty if there is none.
    pub why: String,
    /// Whether nodes join (1), leave (-1), or neither (0).
    pub sign: i8,
    /// Whether it is a decision; else an event.
    pub decided: bool,
}

/// Totals of a run, from its result or else from its log; absent if neither has them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Totals {
    /// The number of completed tasks.
    pub tasks: Option<u64>,
    /// The number of those stolen from another thread or node of the same cluster.
    pub stolen_local: Option<u64>,
    /// The number of those stolen from another cluster.
    pub stolen_wide: Option<u64>,
    /// The number of bytes sent between clusters.
    pub wide_bytes: Option<u64>,
    /// Processor time of the nodes in seconds.
    pub cpu_s: Option<f64>,
}

impl Totals {
    /// The totals of a `--json` object, which omits unknown numbers.
    fn of_result(result: &Value) -> Self {
        // Results of earlier versions had zeros for a run that failed before its job began.
        if result["ok"] == false && result["wall_s"].as_f64().unwrap_or(0.0) == 0.0 {
            return Self::default();
        }
        Self {
            tasks: result["tasks"]["executed"].as_u64(),
            stolen_local: result["tasks"]["stolen_local"].as_u64(),
            stolen_wide: result["tasks"]["stolen_wide"].as_u64(),
            wide_bytes: result["bytes"]["wide"].as_u64(),
            cpu_s: result["cpu_s"].as_f64(),
        }
    }

    fn of_counters(counters: &Counters) -> Self {
        Self {
            tasks: Some(counters.tasks.executed),
            stolen_local: Some(counters.tasks.stolen_local),
            stolen_wide: Some(counters.tasks.stolen_wide),
            wide_bytes: Some(counters.bytes.wide),
            cpu_s: Some(counters.cpu_us as f64 / 1e6).filter(|s| *s > 0.0),
        }
    }

    /// These totals, completed by `other`.
    fn or(self, other: Self) -> Self {
        Self {
            tasks: self.tasks.or(other.tasks),
            stolen_local: self.stolen_local.or(other.stolen_local),
            stolen_wide: self.stolen_wide.or(other.stolen_wide),
            wide_bytes: self.wide_bytes.or(other.wide_bytes),
            cpu_s: self.cpu_s.or(other.cpu_s),
        }
    }
}

/// The time series of a run.
#[derive(Clone, Debug, Default)]
pub struct RunSeries {
    /// The name of the run.
    pub label: String,
    /// The mode of adaptation, if decisions were taken.
    pub mode: Option<Mode>,
    /// Seconds from the job's start to its end, or to the last known time.
    pub wall_s: f64,
    /// The end of the run; none if the log has none. `Ok` has the checksum, `Err` the error.
    pub ended: Option<Result<Option<String>, String>>,
    /// The end of each iteration in seconds since the job's start, and its length in seconds.
    pub iterations: Vec<(f64, f64)>,
    /// The number of the job's members.
    pub nodes: Steps<u32>,
    /// The number of members of each cluster.
    pub by_cluster: BTreeMap<ClusterId, Steps<u32>>,
    /// Weighted average efficiency, from 0 to 1, as far as known.
    pub efficiency: Steps<f64>,
    /// The efficiency band: Emin and Emax.
    pub band: Option<(f64, f64)>,
    /// Fraction of each cluster's thread time that was not work, from 0 to 1, for each iteration
    /// from its beginning on. For jobs without iterations, or with very many, for intervals of the
    /// run.
    pub overhead: BTreeMap<ClusterId, Steps<f64>>,
    /// The time up to which each cluster's overhead is known.
    pub known_until: BTreeMap<ClusterId, f64>,
    /// The same fraction for all clusters together.
    pub overall: Steps<f64>,
    /// Total thread time of each cluster.
    pub times: BTreeMap<ClusterId, Times>,
    /// Length of each iteration in seconds, from the result or else from the log.
    pub iterations_s: Vec<f64>,
    /// The totals of the run.
    pub totals: Totals,
    /// The warnings of the result.
    pub warnings: Vec<String>,
    /// Decisions and losses in order of time.
    pub marks: Vec<TimelineMark>,
}

impl RunSeries {
    /// The time series of a run's log.
    pub fn of(run_log: &RunLog) -> Self {
        let mut series = Self { label: run_log.run.clone(), ..Self::default() };
        let mut members: BTreeMap<&ClusterId, BTreeSet<&NodeId>> = BTreeMap::new();
        let mut periods: Vec<(f64, &ClusterId, Times)> = Vec::new();
        let mut counted: Option<Counters> = None;
        for moment in &run_log.moments {
            let at = moment.at_s.max(0.0);
            match &moment.event {
                Event::NodeJoined { node, cluster, .. } => {
                    let new = members.entry(cluster).or_default().insert(node);
                    series.count(new, at, cluster, &members);
                }
                Event::NodeLeft { node, cluster, .. } => {
                    let was = members.entry(cluster).or_default().remove(node);
                    series.count(was, at, cluster, &members);
                }
                Event::NodeLost { node, cluster, why, .. } => {
                    let was = members.entry(cluster).or_default().remove(node);
                    series.count(was, at, cluster, &members);
                    if was {
                        series.mark(at, format!("{node} is lost"), why.clone(), (-1, false));
                    }
                }
                Event::IterationDone { wall_us, .. } => {
                    series.iterations.push((at, *wall_us as f64 / 1e6));
                }
                Event::Period { cluster: Some(cluster), times, counters, .. } => {
                    *series.times.entry(cluster.clone()).or_default() += *times;
                    counted.get_or_insert_default().merge(counters);
                    periods.push((at, cluster, *times));
                }
                Event::JobEnded { ok, wall_us, checksum, error, .. } => {
                    series.wall_s = *wall_us as f64 / 1e6;
                    let why = || error.clone().unwrap_or_else(|| "it failed".to_owned());
                    series.ended = Some(if *ok { Ok(checksum.clone()) } else { Err(why()) });
                }
                _ => {}
            }
        }
        for taken in &run_log.decisions {
            let (inputs, decision) = (&taken.logged.inputs, &taken.logged.decision);
            let at = taken.at_s.max(0.0);
            series.band = Some((inputs.settings.e_min, inputs.settings.e_max));
            series.efficiency.extend(decision.efficiency.map(|efficiency| (at, efficiency)));
            if let Some(look) = DecisionSummary::of(&taken.logged) {
                let what = if look.withheld { format!("would: {}", look.text) } else { look.text };
                let why: Vec<String> = look.why.iter().map(String::as_str).map(sentence).collect();
                series.mark(at, what, why.join(" "), (look.sign, true));
            }
        }
        series.marks.sort_by(|a, b| a.at_s.total_cmp(&b.at_s));
        if series.ended.is_none() {
            let last = run_log.moments.last().map_or(0.0, |moment| moment.at_s);
            series.wall_s = run_log.decisions.last().map_or(last, |taken| taken.at_s.max(last));
        }
        series.take_result(run_log, counted.as_ref());
        series.add_thread_times(&periods);
        // The members of an ended job are released, which is not shrinking.
        let end = series.wall_s;
        let within = |steps: &mut Steps<u32>| steps.retain(|(at, _)| *at < end);
        within(&mut series.nodes);
        series.by_cluster.values_mut().for_each(within);
        series
    }

    /// Takes totals and the end from the run's result, and missing ones from the log.
    fn take_result(&mut self, run_log: &RunLog, counted: Option<&Counters>) {
        self.mode = run_log.mode();
        self.iterations_s = self.iterations.iter().map(|(_, s)| *s).collect();
        let logged = counted.map(Totals::of_counters).unwrap_or_default();
        let Some(result) = &run_log.result else {
            self.totals = logged;
            return;
        };
        self.totals = Totals::of_result(result).or(logged);
        let warnings = result["warnings"].as_array().into_iter().flatten();
        self.warnings = warnings.filter_map(|text| text.as_str().map(str::to_owned)).collect();
        let iterations = result["iterations"].as_array().into_iter().flatten();
        let iterations: Vec<f64> = iterations.filter_map(Value::as_f64).collect();
        if iterations.len() > self.iterations_s.len() {
            self.iterations_s = iterations;
        }
        let text = |key: &str| result[key].as_str().map(str::to_owned);
        if self.ended.is_none() {
            self.ended = match result["ok"].as_bool() {
                Some(true) => Some(Ok(text("checksum"))),
                Some(false) => Some(Err(text("error").unwrap_or_else(|| "it failed".to_owned()))),
                None => None,
            };
            let wall_s = result["wall_s"].as_f64().filter(|wall_s| *wall_s > 0.0);
            self.wall_s = wall_s.unwrap_or(self.wall_s);
        }
    }

    /// Sums thread times, which clusters report for each period, over intervals longer than a
    /// period: single periods depend on the part of an iteration that they cover.
    fn add_thread_times(&mut self, periods: &[(f64, &ClusterId, Times)]) {
        let ends: Vec<f64> = match self.iterations.len() {
            2..=ITERATIONS => self.iterations.iter().map(|(end, _)| *end).collect(),
            _ => {
                (1..=INTERVALS).map(|n| self.wall_s * f64::from(n) / f64::from(INTERVALS)).collect()
            }
        };
        let mut all: Vec<Times> = vec![Times::default(); ends.len()];
        let mut of: BTreeMap<&ClusterId, Vec<Times>> = BTreeMap::new();
        for (at, cluster, times) in periods {
            let place = ends.partition_point(|end| end < at).min(ends.len() - 1);
            all[place] += *times;
            let known = self.known_until.entry((*cluster).clone()).or_default();
            *known = known.max(ends[place]);
            of.entry(cluster).or_insert_with(|| vec![Times::default(); ends.len()])[place] +=
                *times;
        }
        let begins = || [0.0].into_iter().chain(ends.iter().copied());
        let steps = |times: &[Times]| -> Steps<f64> {
            begins()
                .zip(times)
                .filter_map(|(begin, times)| Some((begin, overhead(times)?)))
                .collect()
        };
        self.overall = steps(&all);
        self.overhead =
            of.into_iter().map(|(cluster, times)| (cluster.clone(), steps(&times))).collect();
    }

    /// Records the number of members, if it has changed.
    fn count(
        &mut self,
        changed: bool,
        at: f64,
        cluster: &ClusterId,
        members: &BTreeMap<&ClusterId, BTreeSet<&NodeId>>,
    ) {
        if !changed {
            return;
        }
        let of = |members: &BTreeSet<&NodeId>| u32::try_from(members.len()).unwrap_or(u32::MAX);
        step(&mut self.nodes, at, members.values().map(of).sum());
        let here = members.get(cluster).map_or(0, of);
        step(self.by_cluster.entry(cluster.clone()).or_default(), at, here);
    }

    fn mark(&mut self, at_s: f64, what: String, why: String, (sign, decided): (i8, bool)) {
        self.marks.push(TimelineMark { at_s, what, why, sign, decided });
    }

    /// Total seconds for which nodes were held: the area below their number.
    pub fn node_seconds(&self) -> f64 {
        let ends = self.nodes.iter().skip(1).map(|(at, _)| *at).chain([self.wall_s]);
        let held = self.nodes.iter().zip(ends);
        held.map(|((from, n), to)| f64::from(*n) * (to.min(self.wall_s) - from).max(0.0)).sum()
    }

    /// The mean of a number from its first known time to the end, weighted by the time of each
    /// value.
    pub fn mean(&self, steps: &[(f64, f64)]) -> Option<f64> {
        let ends = steps.iter().skip(1).map(|(at, _)| *at).chain([self.wall_s]);
        let spans = steps.iter().zip(ends).map(|((from, x), to)| ((to - from).max(0.0), x));
        let (time, sum) = spans.fold((0.0, 0.0), |(t, sum), (span, x)| (t + span, sum + span * x));
        match steps {
            [] => None,
            _ if time > 0.0 => Some(sum / time),
            [.., (_, last)] => Some(*last),
        }
    }

    /// The median length of an iteration in seconds.
    pub fn median_iteration(&self) -> Option<f64> {
        median(self.iterations_s.clone())
    }

    /// The iteration at a time: 0.5 is the beginning of the first, 1.5 that of the second.
    pub fn iteration_at(&self, at_s: f64) -> Option<f64> {
        let n = self.iterations.iter().position(|(end, _)| at_s <= *end)?;
        let (end, length) = self.iterations[n];
        let into = if length > 0.0 { 1.0 - (end - at_s) / length } else { 0.0 };
        Some(n as f64 + 0.5 + into.clamp(0.0, 1.0))
    }
}

/// Changes at the same time are one step.
fn step(steps: &mut Steps<u32>, at: f64, n: u32) {
    match steps.last_mut() {
        Some((when, last)) if *when >= at => *last = n,
        _ => steps.push((at, n)),
    }
}

/// The fraction of thread time that was not work.
fn overhead(times: &Times) -> Option<f64> {
    times.working_share().map(|share| 1.0 - share)
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use springtide_runtime::id::{Epoch, Incarnation, JobId};

    use super::*;
    use crate::runlog::TimedEvent;

    const JOB: JobId = JobId(1);

    fn joined(node: &str, cluster: &str) -> Event {
        Event::NodeJoined { job: JOB, node: node.into(), cluster: cluster.into() }
    }

    fn iteration(iteration: u64, s: u64) -> Event {
        Event::IterationDone {
            job: JOB,
            iteration,
            wall_us: s * 1_000_000,
            detail: serde_json::Value::Null,
        }
    }

    fn period(cluster: &str, working_ns: u64, idle_ns: u64) -> Event {
        Event::Period {
            job: JOB,
            cluster: Some(cluster.into()),
            period: 1,
            threads: 1,
            times: Times { working_ns, idle_ns, ..Times::default() },
            counters: Box::default(),
            latencies: BTreeMap::new(),
        }
    }

    fn series(events: Vec<(f64, Event)>) -> RunSeries {
        RunSeries::of(&RunLog {
            file: PathBuf::new(),
            run: "r".to_owned(),
            moments: events.into_iter().map(|(at_s, event)| TimedEvent { at_s, event }).collect(),
            decisions: Vec::new(),
            homes: BTreeMap::new(),
            gap: None,
            manifest: None,
            result: None,
        })
    }

    #[test]
    fn a_log_becomes_time_series() {
        let lost = Event::NodeLost {
            node: "b-1".into(),
            cluster: "b".into(),
            incarnation: Incarnation(1),
            why: "silent".into(),
            silent_us: 1,
            last_lines: Vec::new(),
        };
        let ended = Event::JobEnded {
            job: JOB,
            ok: true,
            wall_us: 10_000_000,
            checksum: Some("c".into()),
            error: None,
        };
        let left = |node: &str| Event::NodeLeft {
            job: JOB,
            node: node.into(),
            cluster: "a".into(),
            why: "over".into(),
        };
        let series = series(vec![
            (-0.2, Event::JobStarted { job: JOB, name: "j".into(), epoch: Epoch(1) }),
            (0.0, joined("a-1", "a")),
            (0.0, joined("b-1", "b")),
            (2.0, period("a", 30, 10)),
            (4.0, iteration(1, 4)),
            (4.0, joined("a-2", "a")),
            (5.0, lost),
            (6.0, period("a", 10, 10)),
            (7.0, period("b", 0, 20)),
            (10.0, iteration(2, 6)),
            (10.0, ended),
            (10.1, left("a-1")),
            (10.1, left("a-2")),
        ]);
        assert_eq!(series.nodes, [(0.0, 2), (4.0, 3), (5.0, 2)]);
        assert_eq!(series.by_cluster[&"b".into()], [(0.0, 1), (5.0, 0)]);
        assert_eq!(series.iterations, [(4.0, 4.0), (10.0, 6.0)]);
        // The periods of each iteration.
        assert_eq!(series.overall, [(0.0, 0.25), (4.0, 0.75)]);
        assert_eq!(series.overhead[&"b".into()], [(4.0, 1.0)]);
        assert_eq!(
            (series.known_until[&"a".into()], series.known_until[&"b".into()]),
            (10.0, 10.0)
        );
        assert_eq!(series.times[&"a".into()].working_ns, 40);
        assert_eq!(series.ended, Some(Ok(Some("c".to_owned()))));
        assert_eq!(series.marks.len(), 1);
        assert_eq!((series.marks[0].at_s, series.marks[0].what.as_str()), (5.0, "b-1 is lost"));
        assert_eq!(series.node_seconds(), 8.0 + 3.0 + 10.0);
        assert_eq!(series.mean(&series.overall), Some((4.0 * 0.25 + 6.0 * 0.75) / 10.0));
        assert_eq!(series.median_iteration(), Some(5.0));
        assert_eq!(
            (series.iteration_at(2.0), series.iteration_at(5.5), series.iteration_at(11.0)),
            (Some(1.0), Some(1.75), None)
        );
    }

    #[test]
    fn totals_come_from_the_result_or_else_the_log() {
        let counters = |tasks: u64| {
            let mut counters = Counters::default();
            (counters.tasks.executed, counters.tasks.stolen_wide) = (tasks, 1);
            Box::new(counters)
        };
        let mut periods = period("a", 30, 10);
        if let Event::Period { counters: counted, .. } = &mut periods {
            *counted = counters(3);
        }
        let run_log = |moments: Vec<(f64, Event)>, result: Option<Value>| RunLog {
            file: PathBuf::new(),
            run: "r".to_owned(),
            moments: moments.into_iter().map(|(at_s, event)| TimedEvent { at_s, event }).collect(),
            decisions: Vec::new(),
            homes: BTreeMap::new(),
            gap: None,
            manifest: None,
            result,
        };
        let result = serde_json::json!({
            "ok": true, "wall_s": 4.5, "checksum": "c", "iterations": [1.0, 2.0, 6.0],
            "tasks": { "executed": 9, "stolen_local": 2, "stolen_wide": 4 },
            "bytes": { "wide": 70 },
        });
        let all = RunSeries::of(&run_log(vec![(2.0, periods.clone())], Some(result.clone())));
        let totals = &all.totals;
        assert_eq!(
            (totals.tasks, totals.stolen_local, totals.stolen_wide),
            (Some(9), Some(2), Some(4))
        );
        assert_eq!((totals.wide_bytes, totals.cpu_s), (Some(70), None));
        assert_eq!((all.median_iteration(), all.wall_s), (Some(2.0), 4.5));
        assert_eq!((&all.ended, all.mode), (&Some(Ok(Some("c".to_owned()))), None));
        // A short run has nothing in its log, and a truncated one has no result.
        let short = RunSeries::of(&run_log(Vec::new(), Some(result)));
        assert_eq!(short.totals, *totals);
        let cut = RunSeries::of(&run_log(vec![(2.0, periods)], None)).totals;
        assert_eq!((cut.tasks, cut.stolen_wide, cut.wide_bytes), (Some(3), Some(1), Some(0)));
        let neither = RunSeries::of(&run_log(Vec::new(), None));
        assert_eq!(neither.totals, Totals::default());
        let early = serde_json::json!({
            "ok": false, "error": "no node", "wall_s": 0.0, "tasks": { "executed": 0 },
        });
        let early = RunSeries::of(&run_log(Vec::new(), Some(early)));
        assert_eq!(
            (early.totals, early.ended),
            (Totals::default(), Some(Err("no node".to_owned())))
        );
    }

    #[test]
    fn a_run_without_iterations_is_divided_into_intervals() {
        let periods = (1..=400)
            .map(|n| (f64::from(n) / 10.0, period("a", u64::from(n > 200), u64::from(n <= 200))));
        let series = series(periods.collect());
        assert_eq!(series.overall.len(), 40);
        assert_eq!((series.overall[19], series.overall[20]), ((19.0, 1.0), (20.0, 0.0)));
        assert!(series.ended.is_none() && series.wall_s == 40.0);
        assert_eq!(series.iterations.len() + series.marks.len(), 0);
    }

    #[test]
    fn an_empty_log_has_empty_series() {
        let series = series(Vec::new());
        assert_eq!(
            (series.mean(&series.overall), series.median_iteration(), series.node_seconds()),
            (None, None, 0.0)
        );
    }
}
