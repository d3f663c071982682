//! The coordinator's part in being looked at, and what of each period goes into the run's log for who looks later.
//!
//! Must not know who looks, nor why.

use std::collections::BTreeMap;

use actix::prelude::*;
use springtide_runtime::event::Event;
use springtide_runtime::id::ClusterId;
use springtide_runtime::meter::{Histograms, Statistics};

use super::{Coordinator, PoisonError, workers_by_cluster};
use crate::cluster::ClusterPeriod;
use crate::job::NoteKind;
use crate::look::{ClusterSum, JobLook, LookAtJob};

impl Coordinator {
    /// What a cluster did since its last word, and its workers.
    pub(super) fn period_of(&self, message: &ClusterPeriod) -> [Option<Event>; 2] {
        let known = self.tally.iter().find(|(cluster, _)| **cluster == message.cluster);
        let before = known.map(|(_, sums)| sums.clone()).unwrap_or_default();
        let (job, cluster) = (self.spec.id, message.cluster.clone());
        let told = &message.statistics;
        let mut latencies = Histograms::default();
        // What is malformed of them is told where they are added up.
        let summaries = latencies.apply(&told.latencies).map(|()| latencies.summaries());
        let period_s = self.spec.params.period().as_secs_f64();
        let period = Event::Period {
            job,
            cluster: Some(cluster.clone()),
            period: (self.started.elapsed().as_secs_f64() / period_s).round() as u64,
            threads: told.threads,
            times: told.times.since(&before.times),
            counters: Box::new(told.counters.since(&before.counters)),
            latencies: summaries.unwrap_or_default(),
        };
        let workers = message.rows.clone();
        let rows = (!workers.is_empty()).then_some(Event::Workers { job, cluster, workers });
        [Some(period), rows]
    }

    /// Writes it down.
    pub(super) fn record_period(&self, told: [Option<Event>; 2]) {
        told.into_iter().flatten().for_each(|event| self.recorder.record(event));
        if !self.adapts() {
            // Else they go with the period's decision.
            self.tell(NoteKind::Events { records: self.recorder.drain() });
        }
    }

    fn cluster_sums(&self) -> BTreeMap<ClusterId, ClusterSum> {
        let mut sums: BTreeMap<ClusterId, ClusterSum> = BTreeMap::new();
        for (cluster, workers) in workers_by_cluster(&self.view) {
            let host = self.view.cluster_coordinators.get(&cluster).cloned();
            sums.insert(cluster, ClusterSum { host, workers, sums: Statistics::default() });
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

impl Handler<LookAtJob> for Coordinator {
    type Result = MessageResult<LookAtJob>;

    fn handle(&mut self, look: LookAtJob, _: &mut Context<Self>) -> Self::Result {
        if look.job != self.spec.id {
            return MessageResult(None);
        }
        let mut latencies = Histograms::default();
        let summaries = latencies.apply(&self.latencies).map(|()| latencies.summaries());
        let settings = &self.spec.params.settings;
        let (progress, reached, iteration_s) = {
            let told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
            let progress = told.progress.map(|progress| (progress, told.what.clone()));
            (progress, told.reached, told.iteration_s)
        };
        MessageResult(Some(JobLook {
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
            latencies: summaries.unwrap_or_default(),
            decisions: self.thoughts.decisions.clone(),
            thought: self.thoughts.last.clone(),
            links: self.links(),
        }))
    }
}
