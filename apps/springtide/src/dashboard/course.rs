//! What a run's figures are drawn from: its iterations, nodes, efficiency and overheads over time, and its decisions.
//!
//! Must not know how they are drawn.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use springtide_actors::look::DecisionLook;
use springtide_actors::policy::Mode;
use springtide_runtime::event::Event;
use springtide_runtime::id::{ClusterId, NodeId};
use springtide_runtime::meter::{Counters, Times};

use crate::report::median;
use crate::runlog::Story;

/// Iterations that are told apart; beyond these a stretch has several.
const ITERATIONS: usize = 80;
/// Stretches of runs without iterations, or with more than those.
const STRETCHES: u32 = 40;

/// A number from a second on, until the next.
pub type Steps<T> = Vec<(f64, T)>;

/// A decision, or what happened to the grid, at a moment.
#[derive(Clone, Debug, PartialEq)]
pub struct Mark {
    /// Seconds since the job's start.
    pub at_s: f64,
    /// What was done, or happened.
    pub what: String,
    /// Why; empty where that is all there is to say.
    pub why: String,
    /// Nodes come (1), go (-1), or neither (0).
    pub sign: i8,
    /// It was decided; else it happened.
    pub decided: bool,
}

/// What was counted over a run: by its result, or else by its log; absent where neither knows.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Totals {
    /// Tasks that ran to their end.
    pub tasks: Option<u64>,
    /// Of these, stolen from another thread or node of the same cluster.
    pub stolen_local: Option<u64>,
    /// Of these, stolen from another cluster.
    pub stolen_wide: Option<u64>,
    /// Bytes sent between clusters.
    pub wide_bytes: Option<u64>,
    /// Processor time of the nodes, in seconds.
    pub cpu_s: Option<f64>,
}

impl Totals {
    /// Those of the object of `--json`. One that knows nothing of a number does not have it.
    fn of_result(result: &Value) -> Self {
        // Results of earlier versions had zeros for a run that had not begun.
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

    /// These, and `other` for what is absent here.
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

/// A run's course.
#[derive(Clone, Debug, Default)]
pub struct Course {
    /// What it is called.
    pub label: String,
    /// How its set of nodes was adapted, where decisions were taken.
    pub mode: Option<Mode>,
    /// Seconds from the job's start to its end, or to the last that is known.
    pub wall_s: f64,
    /// How it ended; none where its log does not tell.
    pub ended: Option<Result<Option<String>, String>>,
    /// Seconds since the job's start at the end of each iteration, and how many it took.
    pub iterations: Vec<(f64, f64)>,
    /// Members of the job.
    pub nodes: Steps<u32>,
    /// Those of each cluster.
    pub by_cluster: BTreeMap<ClusterId, Steps<u32>>,
    /// Weighted average efficiency, from 0 to 1, where it was known.
    pub efficiency: Steps<f64>,
    /// Emin and Emax.
    pub band: Option<(f64, f64)>,
    /// Share of each cluster's thread time that was no work, from 0 to 1, iteration by iteration, from their beginnings on. Of jobs
    /// without iterations, or with very many, in stretches of the run.
    pub overhead: BTreeMap<ClusterId, Steps<f64>>,
    /// Until when each of these is known.
    pub known_until: BTreeMap<ClusterId, f64>,
    /// The same of all clusters together.
    pub overall: Steps<f64>,
    /// Thread time of each cluster in all.
    pub times: BTreeMap<ClusterId, Times>,
    /// Length of each iteration in seconds: those of the result, or else of the log.
    pub iterations_s: Vec<f64>,
    /// What was counted in all.
    pub totals: Totals,
    /// What the result warns of.
    pub warnings: Vec<String>,
    /// Decisions and losses, in order of time.
    pub marks: Vec<Mark>,
}

impl Course {
    /// That of a run.
    pub fn of(story: &Story) -> Self {
        let mut course = Self { label: story.run.clone(), ..Self::default() };
        let mut members: BTreeMap<&ClusterId, BTreeSet<&NodeId>> = BTreeMap::new();
        let mut told: Vec<(f64, &ClusterId, Times)> = Vec::new();
        let mut counted: Option<Counters> = None;
        for moment in &story.moments {
            let at = moment.at_s.max(0.0);
            match &moment.event {
                Event::NodeJoined { node, cluster, .. } => {
                    let new = members.entry(cluster).or_default().insert(node);
                    course.count(new, at, cluster, &members);
                }
                Event::NodeLeft { node, cluster, .. } => {
                    let was = members.entry(cluster).or_default().remove(node);
                    course.count(was, at, cluster, &members);
                }
                Event::NodeLost { node, cluster, why, .. } => {
                    let was = members.entry(cluster).or_default().remove(node);
                    course.count(was, at, cluster, &members);
                    if was {
                        course.mark(at, format!("{node} is lost"), why.clone(), (-1, false));
                    }
                }
                Event::IterationDone { wall_us, .. } => {
                    course.iterations.push((at, *wall_us as f64 / 1e6));
                }
                Event::Period { cluster: Some(cluster), times, counters, .. } => {
                    *course.times.entry(cluster.clone()).or_default() += *times;
                    counted.get_or_insert_default().merge(counters);
                    told.push((at, cluster, *times));
                }
                Event::JobEnded { ok, wall_us, checksum, error, .. } => {
                    course.wall_s = *wall_us as f64 / 1e6;
                    let why = || error.clone().unwrap_or_else(|| "it failed".to_owned());
                    course.ended = Some(if *ok { Ok(checksum.clone()) } else { Err(why()) });
                }
                _ => {}
            }
        }
        for taken in &story.decisions {
            let (inputs, decision) = (&taken.logged.inputs, &taken.logged.decision);
            let at = taken.at_s.max(0.0);
            course.band = Some((inputs.settings.e_min, inputs.settings.e_max));
            course.efficiency.extend(decision.efficiency.map(|efficiency| (at, efficiency)));
            if let Some(look) = DecisionLook::of(&taken.logged) {
                let what = match look.withheld {
                    true => format!("would: {}", look.text),
                    false => look.text,
                };
                course.mark(at, what, look.why.join(" "), (look.sign, true));
            }
        }
        course.marks.sort_by(|a, b| a.at_s.total_cmp(&b.at_s));
        if course.ended.is_none() {
            let last = story.moments.last().map_or(0.0, |moment| moment.at_s);
            course.wall_s = story.decisions.last().map_or(last, |taken| taken.at_s.max(last));
        }
        course.take_result(story, counted.as_ref());
        course.spend(&told);
        // Members are taken away when a job is over: that is no shrinking.
        let end = course.wall_s;
        let within = |steps: &mut Steps<u32>| steps.retain(|(at, _)| *at < end);
        within(&mut course.nodes);
        course.by_cluster.values_mut().for_each(within);
        course
    }

    /// Takes totals and the end from the run's result, and what that does not know from the log.
    fn take_result(&mut self, story: &Story, counted: Option<&Counters>) {
        self.mode = story.mode();
        self.iterations_s = self.iterations.iter().map(|(_, s)| *s).collect();
        let logged = counted.map(Totals::of_counters).unwrap_or_default();
        let Some(result) = &story.result else {
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

    /// Thread time, as the clusters told it at the ends of their periods, in stretches that are longer than those: what a period is
    /// like depends on which part of an iteration it meets.
    fn spend(&mut self, told: &[(f64, &ClusterId, Times)]) {
        let ends: Vec<f64> = match self.iterations.len() {
            2..=ITERATIONS => self.iterations.iter().map(|(end, _)| *end).collect(),
            _ => {
                (1..=STRETCHES).map(|n| self.wall_s * f64::from(n) / f64::from(STRETCHES)).collect()
            }
        };
        let mut all: Vec<Times> = vec![Times::default(); ends.len()];
        let mut of: BTreeMap<&ClusterId, Vec<Times>> = BTreeMap::new();
        for (at, cluster, times) in told {
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

    /// Notes how many members there are, if that is another number than before.
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
        self.marks.push(Mark { at_s, what, why, sign, decided });
    }

    /// Seconds that nodes were held, in all: the area below their number.
    pub fn node_seconds(&self) -> f64 {
        let ends = self.nodes.iter().skip(1).map(|(at, _)| *at).chain([self.wall_s]);
        let held = self.nodes.iter().zip(ends);
        held.map(|((from, n), to)| f64::from(*n) * (to.min(self.wall_s) - from).max(0.0)).sum()
    }

    /// The mean of a number from the first moment it was known to the end, each value for as long as it held.
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

    /// How long the iteration in the middle took.
    pub fn median_iteration(&self) -> Option<f64> {
        median(self.iterations_s.clone())
    }

    /// In which iteration a moment is: 0.5 is the beginning of the first, 1.5 that of the second.
    pub fn iteration_at(&self, at_s: f64) -> Option<f64> {
        let n = self.iterations.iter().position(|(end, _)| at_s <= *end)?;
        let (end, length) = self.iterations[n];
        let into = if length > 0.0 { 1.0 - (end - at_s) / length } else { 0.0 };
        Some(n as f64 + 0.5 + into.clamp(0.0, 1.0))
    }
}

/// Several that happen in one moment are one step.
fn step(steps: &mut Steps<u32>, at: f64, n: u32) {
    match steps.last_mut() {
        Some((when, last)) if *when >= at => *last = n,
        _ => steps.push((at, n)),
    }
}

/// What share of thread time was no work.
fn overhead(times: &Times) -> Option<f64> {
    times.working_share().map(|share| 1.0 - share)
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use springtide_runtime::id::{Epoch, Incarnation, JobId};

    use super::*;
    use crate::runlog::Moment;

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

    fn course(events: Vec<(f64, Event)>) -> Course {
        Course::of(&Story {
            file: PathBuf::new(),
            run: "r".to_owned(),
            moments: events.into_iter().map(|(at_s, event)| Moment { at_s, event }).collect(),
            decisions: Vec::new(),
            homes: BTreeMap::new(),
            gap: None,
            manifest: None,
            result: None,
        })
    }

    #[test]
    fn a_log_becomes_a_course() {
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
        let course = course(vec![
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
        assert_eq!(course.nodes, [(0.0, 2), (4.0, 3), (5.0, 2)]);
        assert_eq!(course.by_cluster[&"b".into()], [(0.0, 1), (5.0, 0)]);
        assert_eq!(course.iterations, [(4.0, 4.0), (10.0, 6.0)]);
        // Of each iteration what was told in it.
        assert_eq!(course.overall, [(0.0, 0.25), (4.0, 0.75)]);
        assert_eq!(course.overhead[&"b".into()], [(4.0, 1.0)]);
        assert_eq!(
            (course.known_until[&"a".into()], course.known_until[&"b".into()]),
            (10.0, 10.0)
        );
        assert_eq!(course.times[&"a".into()].working_ns, 40);
        assert_eq!(course.ended, Some(Ok(Some("c".to_owned()))));
        assert_eq!(course.marks.len(), 1);
        assert_eq!((course.marks[0].at_s, course.marks[0].what.as_str()), (5.0, "b-1 is lost"));
        assert_eq!(course.node_seconds(), 8.0 + 3.0 + 10.0);
        assert_eq!(course.mean(&course.overall), Some((4.0 * 0.25 + 6.0 * 0.75) / 10.0));
        assert_eq!(course.median_iteration(), Some(5.0));
        assert_eq!(
            (course.iteration_at(2.0), course.iteration_at(5.5), course.iteration_at(11.0)),
            (Some(1.0), Some(1.75), None)
        );
    }

    #[test]
    fn totals_are_the_results_and_else_the_logs() {
        let counters = |tasks: u64| {
            let mut counters = Counters::default();
            (counters.tasks.executed, counters.tasks.stolen_wide) = (tasks, 1);
            Box::new(counters)
        };
        let mut told = period("a", 30, 10);
        if let Event::Period { counters: counted, .. } = &mut told {
            *counted = counters(3);
        }
        let story = |moments: Vec<(f64, Event)>, result: Option<Value>| Story {
            file: PathBuf::new(),
            run: "r".to_owned(),
            moments: moments.into_iter().map(|(at_s, event)| Moment { at_s, event }).collect(),
            decisions: Vec::new(),
            homes: BTreeMap::new(),
            gap: None,
            manifest: None,
            result,
        };
        let result = serde_json::json!({
            "ok": true, "wall_s": 4.5, "checksum": "c", "iterations": [1.0, 2.0, 6.0],
            "tasks": { "executed": 9, "stolen_local": 2, "stolen_wide": 4 }, "bytes": { "wide": 70 },
        });
        let all = Course::of(&story(vec![(2.0, told.clone())], Some(result.clone())));
        let totals = &all.totals;
        assert_eq!(
            (totals.tasks, totals.stolen_local, totals.stolen_wide),
            (Some(9), Some(2), Some(4))
        );
        assert_eq!((totals.wide_bytes, totals.cpu_s), (Some(70), None));
        assert_eq!((all.median_iteration(), all.wall_s), (Some(2.0), 4.5));
        assert_eq!((&all.ended, all.mode), (&Some(Ok(Some("c".to_owned()))), None));
        // A run that is short has nothing in its log, and one that is cut off no result.
        let short = Course::of(&story(Vec::new(), Some(result)));
        assert_eq!(short.totals, *totals);
        let cut = Course::of(&story(vec![(2.0, told)], None)).totals;
        assert_eq!((cut.tasks, cut.stolen_wide, cut.wide_bytes), (Some(3), Some(1), Some(0)));
        let neither = Course::of(&story(Vec::new(), None));
        assert_eq!(neither.totals, Totals::default());
        let early = serde_json::json!({
            "ok": false, "error": "no node", "wall_s": 0.0, "tasks": { "executed": 0 },
        });
        let early = Course::of(&story(Vec::new(), Some(early)));
        assert_eq!(
            (early.totals, early.ended),
            (Totals::default(), Some(Err("no node".to_owned())))
        );
    }

    #[test]
    fn a_run_without_iterations_is_told_in_stretches() {
        let told = (1..=400)
            .map(|n| (f64::from(n) / 10.0, period("a", u64::from(n > 200), u64::from(n <= 200))));
        let course = course(told.collect());
        assert_eq!(course.overall.len(), 40);
        assert_eq!((course.overall[19], course.overall[20]), ((19.0, 1.0), (20.0, 0.0)));
        assert!(course.ended.is_none() && course.wall_s == 40.0);
        assert_eq!(course.iterations.len() + course.marks.len(), 0);
    }

    #[test]
    fn an_empty_log_is_an_empty_course() {
        let course = course(Vec::new());
        assert_eq!(
            (course.mean(&course.overall), course.median_iteration(), course.node_seconds()),
            (None, None, 0.0)
        );
    }
}
