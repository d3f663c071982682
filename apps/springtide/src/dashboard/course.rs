//! What a run's figures are drawn from: its iterations, nodes, efficiency and overheads over time, and its decisions.
//!
//! Must not know how they are drawn.

use std::collections::{BTreeMap, BTreeSet};

use springtide_actors::look::DecisionLook;
use springtide_actors::policy::Mode;
use springtide_runtime::event::Event;
use springtide_runtime::id::{ClusterId, NodeId};
use springtide_runtime::meter::{Counters, Times};

use crate::runlog::Story;

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
    /// Share of each cluster's thread time that was no work, from 0 to 1, period by period, at their ends.
    pub overhead: BTreeMap<ClusterId, Steps<f64>>,
    /// The same of all clusters together.
    pub overall: Steps<f64>,
    /// Thread time of each cluster in all.
    pub times: BTreeMap<ClusterId, Times>,
    /// What was counted in all.
    pub counters: Counters,
    /// Decisions and losses, in order of time.
    pub marks: Vec<Mark>,
}

impl Course {
    /// That of a run.
    pub fn of(story: &Story) -> Self {
        let mut course = Self { label: story.run.clone(), ..Self::default() };
        let mut members: BTreeMap<&ClusterId, BTreeSet<&NodeId>> = BTreeMap::new();
        // Of each cluster, what it told last: of these the whole is made up.
        let mut newest: BTreeMap<&ClusterId, Times> = BTreeMap::new();
        for moment in &story.moments {
            let at = moment.at_s.max(0.0);
            match &moment.event {
                Event::NodeJoined { node, cluster, .. } => {
                    if members.entry(cluster).or_default().insert(node) {
                        course.count(at, cluster, &members);
                    }
                }
                Event::NodeLeft { node, cluster, .. } => {
                    if members.entry(cluster).or_default().remove(node) {
                        course.count(at, cluster, &members);
                    }
                }
                Event::NodeLost { node, cluster, why, .. } => {
                    if members.entry(cluster).or_default().remove(node) {
                        course.count(at, cluster, &members);
                        course.mark(at, format!("{node} is lost"), why.clone(), (-1, false));
                    }
                }
                Event::IterationDone { wall_us, .. } => {
                    course.iterations.push((at, *wall_us as f64 / 1e6));
                }
                Event::Period { cluster: Some(cluster), times, counters, .. } => {
                    *course.times.entry(cluster.clone()).or_default() += *times;
                    course.counters.merge(counters);
                    newest.insert(cluster, *times);
                    if let Some(share) = overhead(times) {
                        course.overhead.entry(cluster.clone()).or_default().push((at, share));
                    }
                    let mut all = Times::default();
                    newest.iter().for_each(|(of, times)| {
                        // One that has gone tells nothing any more.
                        if members.get(of).is_some_and(|members| !members.is_empty()) {
                            all += *times;
                        }
                    });
                    course.overall.extend(overhead(&all).map(|share| (at, share)));
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
            course.mode = Some(inputs.snapshot.mode);
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
        // Members are taken away when a job is over: that is no shrinking.
        let end = course.wall_s;
        let within = |steps: &mut Steps<u32>| steps.retain(|(at, n)| *at < end || *n > 0);
        within(&mut course.nodes);
        course.by_cluster.values_mut().for_each(within);
        course
    }

    fn count(
        &mut self,
        at: f64,
        cluster: &ClusterId,
        members: &BTreeMap<&ClusterId, BTreeSet<&NodeId>>,
    ) {
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

    /// Of two in the middle of the iterations' lengths their mean.
    pub fn median_iteration(&self) -> Option<f64> {
        let mut lengths: Vec<f64> = self.iterations.iter().map(|(_, s)| *s).collect();
        lengths.sort_by(f64::total_cmp);
        let upper = *lengths.get(lengths.len() / 2)?;
        Some(upper.midpoint(lengths[(lengths.len() - 1) / 2]))
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
    let total = times.total_ns();
    (total > 0).then(|| 1.0 - times.working_ns as f64 / total as f64)
}
