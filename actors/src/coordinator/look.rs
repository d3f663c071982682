//! The coordinator's answers to inspection, and the records of each period for later inspection.
//!
//! This module does not know the inspecting process.

use std::collections::{BTreeMap, VecDeque};

use actix::prelude::*;
use springtide_protocol::job::NoteKind;
use springtide_protocol::look::{ClusterTotals, DecisionSummary, InspectJob, JobSnapshot};
use springtide_runtime::event::{Event, WorkerSample};
use springtide_runtime::id::ClusterId;
use springtide_runtime::meter::Statistics;

use super::{Coordinator, PoisonError, workers_by_cluster};
use crate::policy::LoggedDecision;

/// Maximum number of decisions with changes to report.
const DECISIONS: usize = 32;
/// Decisions that a coordinator keeps for inspection.
#[derive(Debug, Default)]
pub(super) struct DecisionHistory {
    decisions: VecDeque<DecisionSummary>,
    last: Vec<String>,
}

impl DecisionHistory {
    pub(super) fn take_in(&mut self, logged: &LoggedDecision) {
        self.last = logged.decision.reasons.iter().map(ToString::to_string).collect();
        self.decisions.extend(DecisionSummary::of(logged));
        let over = self.decisions.len().saturating_sub(DECISIONS);
        self.decisions.drain(..over);
    }
}

impl Coordinator {
    /// Records of a cluster's work since its last report, and of its workers.
    pub(super) fn period_of(
        &mut self,
        cluster: &ClusterId,
        sums: &Statistics,
        workers: Vec<WorkerSample>,
    ) -> Vec<Event> {
        let (job, before) = (self.spec.id, self.tally.latest(cluster).cloned());
        let period_s = self.spec.params.period().as_secs_f64();
        let mut events = Vec::new();
        let is_inherited = self.inherited.remove(cluster);
        // The predecessor has recorded an unknown part of the work before this coordinator.
        if before.is_some() || !is_inherited {
            let before = before.unwrap_or_default();
            events.push(Event::Period {
                job,
                cluster: Some(cluster.clone()),
                period: (self.started.elapsed().as_secs_f64() / period_s).round() as u64,
                threads: sums.threads,
                times: sums.times.since(&before.times),
                counters: Box::new(sums.counters.since(&before.counters)),
                // Malformed ones are reported where they are summed.
                latencies: sums.latencies.summaries().unwrap_or_default(),
            });
        }
        if !workers.is_empty() {
            events.push(Event::Workers { job, cluster: cluster.clone(), workers });
        }
        events
    }

    /// Records the events of a period.
    pub(super) fn record_period(&self, events: Vec<Event>) {
        events.into_iter().for_each(|event| self.recorder.record(event));
        if !self.adapts() {
            // In adaptive jobs, they are sent with the period's decision.
            self.notify_client(NoteKind::Events { records: self.recorder.drain() });
        }
    }

    fn cluster_sums(&self) -> BTreeMap<ClusterId, ClusterTotals> {
        let mut sums: BTreeMap<ClusterId, ClusterTotals> = BTreeMap::new();
        for (cluster, workers) in workers_by_cluster(&self.view) {
            let host = self.view.cluster_coordinators.get(&cluster).cloned();
            sums.insert(cluster, ClusterTotals { host, workers, sums: Statistics::default() });
        }
        for (cluster, statistics) in self.tally.iter() {
            sums.entry(cluster.clone()).or_default().sums = statistics.clone();
        }
        for (cluster, left) in self.changes.departed() {
            let sums = &mut sums.entry(cluster.clone()).or_default().sums;
            sums.counters.merge(&left.counters);
            sums.times += left.times;
        }
        sums
    }
}

impl Handler<InspectJob> for Coordinator {
    type Result = MessageResult<InspectJob>;

    fn handle(&mut self, look: InspectJob, _: &mut Context<Self>) -> Self::Result {
        if look.job != self.spec.id {
            return MessageResult(None);
        }
        let settings = &self.spec.params.settings;
        let (progress, reached, iteration_s, phases, picture) = {
            let root = self.root_progress.lock().unwrap_or_else(PoisonError::into_inner);
            let progress = root.progress.map(|progress| (progress, root.unit.clone()));
            let picture = root
                .picture
                .as_ref()
                .filter(|last| look.picture.is_some_and(|known| known != last.number));
            (progress, root.reached, root.iteration_s, root.phases.clone(), picture.cloned())
        };
        MessageResult(Some(JobSnapshot {
            epoch: self.view.epoch,
            view: self.view.version,
            root: self.view.coordinator.clone(),
            elapsed_s: self.started.elapsed().as_secs_f64(),
            mode: self.spec.params.mode,
            period_s: self.spec.params.period().as_secs_f64(),
            band: (settings.e_min, settings.e_max),
            efficiency: self.adaptation.efficiency(),
            progress,
            iterations: (reached.iterations, iteration_s),
            clusters: self.cluster_sums(),
            latencies: self.latencies.summaries().unwrap_or_default(),
            decisions: self.decision_history.decisions.clone(),
            reasons: self.decision_history.last.clone(),
            links: self.links(),
            phases,
            picture,
        }))
    }
}
