//! Replay of an ended run from its log on the dashboard's page: constructed snapshots at several
//! times go through the same model as those of a running grid.
//!
//! This module does not know the presentation.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};
use springtide_actors::look::{
    ClusterTotals, DecisionSummary, JobSnapshot, WorkerSnapshot, WorkerTotals,
};
use springtide_actors::policy::JobProgress;
use springtide_actors::scheduler::{JobState, JobStatus, NodeState, NodeStatus, SiteStatus};
use springtide_runtime::event::{Event, WorkerSample};
use springtide_runtime::id::{ClusterId, Incarnation, JobId, NodeId};
use springtide_runtime::work::PhaseTimes;

use crate::model::{DashboardModel, GridSnapshot};
use crate::runlog::{RunLog, TimedDecision};

/// Maximum number of frames.
const FRAMES_MAX: usize = 400;
/// Maximum size of the frames in bytes.
const BYTES_MAX: usize = 1_200_000;
/// Maximum number of events in a report; of more, the first ones, and the number of others.
const EVENTS_MAX: usize = 3000;
/// Unit of the progress of a job that reports none.
const ITERATIONS: &str = "iterations";

/// The frames of a run in the page's format: `ticks`, `events`, and missing parts.
pub fn frames(run_log: &RunLog) -> Value {
    let end_s = end(run_log);
    let mut frames = FRAMES_MAX.min((end_s / 0.5).ceil() as usize).max(2);
    loop {
        let (ticks, model) = play(run_log, end_s, frames);
        let bytes: usize = ticks.iter().map(|tick| tick.to_string().len()).sum();
        if bytes > BYTES_MAX && frames > 10 {
            // Fewer frames, so that they fit: runs with many workers have fewer.
            frames = (frames * BYTES_MAX / bytes).clamp(10, frames - 1);
            continue;
        }
        let events: Vec<_> = model.events(0).take(EVENTS_MAX).collect();
        let more = model.newest() as usize - events.len();
        return json!({
            "v": 1, "run": run_log.run, "ticks": ticks, "events": events, "more_events": more,
            "gap": run_log.gap,
        });
    }
}

fn end(run_log: &RunLog) -> f64 {
    let moments = run_log.moments.last().map_or(0.0, |moment| moment.at_s);
    run_log.decisions.last().map_or(moments, |taken| taken.at_s.max(moments)).max(1.0)
}

enum ReplayEntry<'a> {
    Event(&'a Event),
    Decision(&'a TimedDecision),
}

fn play(run_log: &RunLog, end_s: f64, frames: usize) -> (Vec<Value>, DashboardModel) {
    let moments = run_log.moments.iter().map(|m| (m.at_s.max(0.0), ReplayEntry::Event(&m.event)));
    let decisions = run_log.decisions.iter().map(|d| (d.at_s.max(0.0), ReplayEntry::Decision(d)));
    let mut steps: Vec<_> = moments.chain(decisions).collect();
    steps.sort_by(|(a, _), (b, _)| a.total_cmp(b));
    let mut steps = steps.into_iter().peekable();
    let mut stage = ReplayState::new(run_log);
    let mut ticks = Vec::new();
    for frame in 0..frames {
        let at = end_s * (frame + 1) as f64 / frames as f64;
        while let Some((when, step)) = steps.next_if(|(when, _)| *when <= at) {
            match step {
                ReplayEntry::Event(event) => stage.event(when, event),
                ReplayEntry::Decision(taken) => stage.decision(when, taken),
            }
        }
        ticks.push(stage.tick(at));
    }
    (ticks, stage.model)
}

/// The state of the run at one time.
struct ReplayState<'a> {
    run_log: &'a RunLog,
    model: DashboardModel,
    job: JobId,
    name: String,
    look: JobSnapshot,
    over: bool,
    members: BTreeMap<ClusterId, BTreeMap<NodeId, WorkerSnapshot>>,
    /// Former members that have left.
    left: BTreeSet<NodeId>,
    /// The last report of a cluster's workers.
    reported_s: BTreeMap<ClusterId, f64>,
}

impl<'a> ReplayState<'a> {
    fn new(run_log: &'a RunLog) -> Self {
        let mut look = JobSnapshot::default();
        let mut model = DashboardModel::new(&run_log.run, true);
        match run_log.mode() {
            Some(mode) => look.mode = mode,
            None => model.forget_mode(),
        }
        Self {
            run_log,
            model,
            job: JobId(0),
            name: String::new(),
            look,
            over: false,
            members: BTreeMap::new(),
            left: BTreeSet::new(),
            reported_s: BTreeMap::new(),
        }
    }

    fn member(&mut self, cluster: &ClusterId, node: &NodeId) -> &mut WorkerSnapshot {
        self.left.remove(node);
        let new = || WorkerSnapshot {
            node: node.clone(),
            incarnation: Incarnation(0),
            leaving: false,
            age_ms: None,
            sums: WorkerTotals::default(),
            speed: None,
        };
        self.members.entry(cluster.clone()).or_default().entry(node.clone()).or_insert_with(new)
    }

    fn event(&mut self, at: f64, event: &Event) {
        self.model.record(at, event.clone());
        match event {
            Event::JobStarted { job, name, epoch } => {
                (self.job, self.look.epoch) = (*job, *epoch);
                self.name.clone_from(name);
            }
            Event::JobEnded { .. } => self.over = true,
            Event::NodeJoined { node, cluster, .. } => drop(self.member(cluster, node)),
            Event::NodeLeft { node, cluster, .. } | Event::NodeLost { node, cluster, .. } => {
                if let Some(members) = self.members.get_mut(cluster)
                    && members.remove(node).is_some()
                {
                    self.left.insert(node.clone());
                }
            }
            Event::ViewChanged { coordinator, .. } => self.look.root.clone_from(coordinator),
            Event::Period {
                cluster: Some(cluster), threads, times, counters, latencies, ..
            } => {
                let sum = self.look.clusters.entry(cluster.clone()).or_default();
                sum.sums.threads = *threads;
                sum.sums.times += *times;
                sum.sums.counters.merge(counters);
                self.look.latencies.extend(latencies.iter().map(|(name, l)| (name.clone(), *l)));
            }
            Event::Workers { cluster, workers, .. } => self.rows(at, cluster, workers),
            Event::IterationDone { iteration, wall_us, detail, .. } => {
                self.look.iterations = (iteration + 1, *wall_us as f64 / 1e6);
                self.look.phases.add(&PhaseTimes::from_json(detail));
            }
            Event::TaskStolen { from, to, .. } => {
                let homes = &self.run_log.homes;
                if let (Some(from), Some(home)) = (homes.get(from), homes.get(to)) {
                    let (from, home) = (from.clone(), home.clone());
                    let members = self.members.entry(home).or_default();
                    if let Some(thief) = members.get_mut(to) {
                        *thief.sums.stolen.entry(from).or_default() += 1;
                    }
                }
            }
            _ => {}
        }
    }

    fn rows(&mut self, at: f64, cluster: &ClusterId, rows: &[WorkerSample]) {
        let since = at - self.reported_s.insert(cluster.clone(), at).unwrap_or(0.0);
        for row in rows {
            let worker = self.member(cluster, &row.node);
            let hundredth_us = since.max(0.0) * 1e4;
            worker.sums.times_us.iter_mut().zip(row.time).for_each(|(sum, share)| {
                *sum += (f64::from(share) * hundredth_us) as u64;
            });
            worker.speed = row.speed.map(f64::from);
            worker.age_ms = Some(0);
        }
    }

    fn decision(&mut self, at: f64, taken: &TimedDecision) {
        let (snapshot, decision) = (&taken.logged.inputs.snapshot, &taken.logged.decision);
        let settings = &taken.logged.inputs.settings;
        self.look.mode = snapshot.mode;
        self.look.period_s = snapshot.period_s;
        self.look.band = (settings.e_min, settings.e_max);
        self.look.efficiency =
            decision.efficiency.map(|e| (e, decision.processors)).or(self.look.efficiency);
        self.look.progress = snapshot.progress.map(|progress| (progress, String::new()));
        self.look.links.clone_from(&snapshot.links);
        self.look.reasons = decision.reasons.iter().map(ToString::to_string).collect();
        for cluster in snapshot.members.keys() {
            self.look.clusters.entry(cluster.clone()).or_default();
        }
        if let Some(look) = DecisionSummary::of(&taken.logged) {
            self.model.decision(at, self.job, look);
        }
    }

    fn tick(&mut self, at: f64) -> Value {
        self.look.elapsed_s = at;
        for (cluster, members) in &self.members {
            let sum: &mut ClusterTotals = self.look.clusters.entry(cluster.clone()).or_default();
            sum.workers = u32::try_from(members.len()).unwrap_or(u32::MAX);
        }
        // Decisions have the progress that the job reports itself.
        let is_counted = self.look.progress.as_ref().is_none_or(|(_, unit)| unit == ITERATIONS);
        if is_counted && self.look.iterations.0 > 0 {
            let progress = JobProgress { done: self.look.iterations.0, total: None };
            self.look.progress = Some((progress, ITERATIONS.to_owned()));
        }
        let mut snapshot = GridSnapshot::default();
        for (node, cluster) in &self.run_log.homes {
            let is_member = self.members.get(cluster).is_some_and(|of| of.contains_key(node));
            let state = match (is_member, self.left.contains(node)) {
                (true, _) => NodeState::Busy,
                (false, true) => NodeState::Off,
                (false, false) => NodeState::Idle,
            };
            let status = NodeStatus {
                node: node.clone(),
                state,
                job: is_member.then_some(self.job),
                threads: None,
                pid: None,
                incarnation: None,
                address: None,
                reason: None,
                next_try_ms: None,
            };
            let site: &mut SiteStatus = snapshot.status.sites.entry(cluster.clone()).or_default();
            site.nodes.push(status);
        }
        let state = if self.over { JobState::Ending } else { JobState::Running };
        let sizes = self.look.clusters.iter().map(|(c, sum)| (c.clone(), sum.workers)).collect();
        let (job, name) = (self.job, self.name.clone());
        let (waits_for, coordinator, principal) = (None, None, None);
        let status = JobStatus { job, name, state, sizes, waits_for, coordinator, principal };
        snapshot.status.jobs.push(status);
        snapshot.jobs.insert(self.job, self.look.clone());
        let workers = self.members.iter();
        let workers = workers.map(|(c, of)| (c.clone(), of.values().cloned().collect())).collect();
        snapshot.workers.insert(self.job, workers);
        self.model.apply(at, snapshot);
        self.model.tick()
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use springtide_runtime::id::Epoch;

    use super::*;
    use crate::runlog::TimedEvent;

    #[test]
    fn the_last_frame_has_all_iterations() {
        let job = JobId(1);
        let started = Event::JobStarted { job, name: "heat".to_owned(), epoch: Epoch(1) };
        let detail = Value::Null;
        let done = |iteration| Event::IterationDone {
            job,
            iteration,
            wall_us: 100_000,
            detail: detail.clone(),
        };
        let iterations = (0..40).map(|n| (0.1 * (n + 1) as f64, done(n)));
        let moments = [(0.0, started)].into_iter().chain(iterations);
        let run_log = RunLog {
            file: PathBuf::new(),
            run: "r".to_owned(),
            moments: moments.map(|(at_s, event)| TimedEvent { at_s, event }).collect(),
            decisions: Vec::new(),
            homes: BTreeMap::new(),
            gap: None,
            manifest: None,
            result: None,
        };
        let frames = frames(&run_log);
        let counts: Vec<_> = frames["ticks"]
            .as_array()
            .unwrap()
            .iter()
            .map(|tick| tick["jobs"][0]["progress"][0].clone())
            .collect();
        assert_eq!(counts.last(), Some(&json!(40)), "{counts:?}");
        assert_eq!(frames["ticks"][0]["jobs"][0]["progress"][2], ITERATIONS);
    }
}
