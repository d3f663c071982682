//! The cluster coordinator's answers to inspection. During inspections it queries its workers.
//!
//! This module does not know the inspecting process.

use std::collections::BTreeMap;
use std::time::Duration;

use actix::prelude::*;
use springtide_protocol::look::{
    ClusterSnapshot, InspectCluster, QueryWorker, WorkerSnapshot, WorkerTotals,
};
use springtide_protocol::names::WORKER;
use springtide_protocol::receivers::Worker;
use springtide_runtime::event::WorkerSample;
use springtide_runtime::id::{Incarnation, NodeId};
use springtide_runtime::meter::{Statistics, Times};
use tokio::time::Instant;

use super::ClusterCoordinator;

/// Minimum interval between queries of workers, independent of the number of inspections.
const GLANCE_EVERY: Duration = Duration::from_millis(900);
/// Maximum number of workers in a query; larger clusters are queried in parts.
const GLANCES: usize = 256;
/// Timeout of a worker's answer.
const GLANCE_WITHIN: Duration = Duration::from_secs(2);

/// Maximum bytes per second of the rows of a cluster's workers to the job's coordinator.
const ROWS_RATE: f64 = 128.0;
/// Minimum interval between rows, in periods.
const ROWS_EVERY: u32 = 4;
/// Approximate size of a row on the wire.
const ROW_BYTES: f64 = 32.0;

/// Knowledge of workers beyond their reports.
#[derive(Default)]
pub(super) struct WorkerTable {
    /// Time of the last query.
    glanced: Option<Instant>,
    /// Last node of that query.
    last: Option<NodeId>,
    seen: BTreeMap<NodeId, KnownWorker>,
    rows: Rows,
}

struct KnownWorker {
    incarnation: Incarnation,
    updated: Instant,
    sums: WorkerTotals,
}

impl WorkerTable {
    /// The workers to query now.
    fn turn(&mut self, members: &[NodeId], now: Instant) -> Vec<NodeId> {
        if self.glanced.is_some_and(|at| now < at + GLANCE_EVERY) {
            return Vec::new();
        }
        self.glanced = Some(now);
        let after = self.last.as_ref().map_or(0, |last| members.partition_point(|n| n <= last));
        let turn = members[after..].iter().chain(&members[..after]).take(GLANCES);
        let turn: Vec<NodeId> = turn.cloned().collect();
        self.last = turn.last().cloned();
        turn
    }

    /// Deletes a former member.
    pub(super) fn forget(&mut self, node: &NodeId) {
        self.seen.remove(node);
    }

    /// Adds a report. Reports lack the victims of steals and the running tasks, so those of the
    /// last query stay.
    pub(super) fn record_report(
        &mut self,
        node: &NodeId,
        incarnation: Incarnation,
        statistics: &Statistics,
    ) {
        let seen = self.seen.get(node).filter(|seen| seen.incarnation == incarnation);
        let sums = seen.map(|seen| seen.sums.clone()).unwrap_or_default();
        let WorkerTotals { stolen, running, .. } = sums;
        let sums = WorkerTotals { running, ..WorkerTotals::of(statistics, stolen) };
        self.update(node, incarnation, sums, Instant::now());
    }

    fn update(&mut self, node: &NodeId, incarnation: Incarnation, sums: WorkerTotals, at: Instant) {
        match self.seen.get_mut(node) {
            Some(seen) if seen.incarnation > incarnation => {}
            // The report is a sign of life only.
            Some(seen) if seen.incarnation == incarnation && !sums.is_later(&seen.sums) => {
                seen.updated = at;
            }
            _ => {
                drop(self.seen.insert(node.clone(), KnownWorker { incarnation, updated: at, sums }))
            }
        }
    }
}

/// A worker with its times since the job's start and its speed.
type WorkerTimes<'a> = (&'a NodeId, Times, Option<f64>);

/// Rows of workers for the run's log. Their rate is at most [`ROWS_RATE`], so that the
/// coordinator's input is independent of the number of workers.
#[derive(Debug, Default)]
struct Rows {
    shown: BTreeMap<NodeId, Times>,
    /// Time since the last rows, in seconds and periods.
    since: (f64, u32),
}

impl Rows {
    /// Ends a period of this length. `workers` contains their times since the job's start and their
    /// speeds.
    fn period(&mut self, period_s: f64, workers: &[WorkerTimes<'_>]) -> Vec<WorkerSample> {
        self.since = (self.since.0 + period_s, self.since.1 + 1);
        if self.since.1 < ROWS_EVERY || self.since.0 * ROWS_RATE < workers.len() as f64 * ROW_BYTES
        {
            return Vec::new();
        }
        self.since = (0.0, 0);
        let before = std::mem::take(&mut self.shown);
        let row = |&(node, times, speed): &WorkerTimes<'_>| {
            let since = before.get(node).map_or(times, |before| times.since(before));
            self.shown.insert(node.clone(), times);
            WorkerSample {
                node: node.clone(),
                time: since.percent(),
                speed: speed.map(|v| v as f32),
            }
        };
        workers.iter().map(row).collect()
    }
}

impl ClusterCoordinator {
    /// Speed of a worker in the job's unit.
    fn speed(&self, node: &NodeId) -> Option<f64> {
        self.measured.get(node).and_then(|measured| measured.history.speed())
    }

    /// Rows of the workers for the run's log, in periods in which they are due.
    pub(super) fn rows(&mut self, period_s: f64) -> Vec<WorkerSample> {
        let workers = self.tally.iter().map(|(node, sums)| (node, sums.times, self.speed(node)));
        let workers: Vec<WorkerTimes<'_>> = workers.collect();
        self.looked.rows.period(period_s, &workers)
    }

    fn glance(&mut self, ctx: &mut Context<Self>) {
        let members: Vec<NodeId> = self.members().into_iter().collect();
        for node in self.looked.turn(&members, Instant::now()) {
            let Some(incarnation) = self.view.members.get(&node).map(|member| member.incarnation)
            else {
                continue;
            };
            let remote = self.hub.remote::<Worker>(&node, WORKER);
            let glance = QueryWorker { job: self.spec.id };
            let request = remote.send(glance).deadline(GLANCE_WITHIN).start();
            ctx.spawn(request.into_actor(self).map(move |answer, cluster, _| {
                // A worker without an answer is shown with the age of its last data.
                if let Ok(Some(sums)) = answer {
                    cluster.looked.update(&node, incarnation, sums, Instant::now());
                }
            }));
        }
    }
}

impl Handler<InspectCluster> for ClusterCoordinator {
    type Result = MessageResult<InspectCluster>;

    fn handle(&mut self, look: InspectCluster, ctx: &mut Context<Self>) -> Self::Result {
        if look.job != self.spec.id {
            return MessageResult(None);
        }
        self.glance(ctx);
        let now = Instant::now();
        let members = self.view.in_cluster(&self.cluster);
        let worker = |node: &NodeId| {
            let member = self.view.members.get(node)?;
            let seen = self.looked.seen.get(node);
            let seen = seen.filter(|seen| seen.incarnation == member.incarnation);
            let age = seen.map(|seen| now.saturating_duration_since(seen.updated).as_millis());
            Some(WorkerSnapshot {
                node: node.clone(),
                incarnation: member.incarnation,
                leaving: member.leaving,
                age_ms: age.map(|ms| u64::try_from(ms).unwrap_or(u64::MAX)),
                sums: seen.map(|seen| seen.sums.clone()).unwrap_or_default(),
                speed: self.speed(node),
            })
        };
        MessageResult(Some(ClusterSnapshot { workers: members.filter_map(worker).collect() }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_cluster_is_queried_in_parts_and_at_intervals() {
        let members: Vec<NodeId> = (0..300).map(|n| NodeId::from(format!("ams-{n:03}"))).collect();
        let mut looked = WorkerTable::default();
        let start = Instant::now();
        assert_eq!(looked.turn(&members, start), members[..256]);
        assert!(looked.turn(&members, start + GLANCE_EVERY / 2).is_empty());
        let next = looked.turn(&members, start + GLANCE_EVERY);
        assert_eq!(next[..44], members[256..]);
        assert_eq!(next[44..], members[..212]);
        assert!(looked.turn(&[], start + 2 * GLANCE_EVERY).is_empty());
    }

    #[test]
    fn the_latest_report_counts_for_any_source() {
        let (node, at) = (NodeId::from("a"), Instant::now());
        let sums = |us: u64| WorkerTotals { times_us: [us, 0, 0, 0, 0], ..WorkerTotals::default() };
        let mut looked = WorkerTable::default();
        let known = |looked: &WorkerTable| {
            (looked.seen[&node].sums.times_us[0], looked.seen[&node].updated)
        };
        looked.update(&node, Incarnation(1), sums(5), at);
        let later = at + Duration::from_secs(1);
        looked.update(&node, Incarnation(1), sums(4), later);
        assert_eq!(known(&looked), (5, later), "an older report is only a sign of life");
        looked.update(&node, Incarnation(2), sums(1), later);
        looked.update(&node, Incarnation(1), sums(9), at);
        assert_eq!(known(&looked), (1, later), "reports of an old incarnation are ignored");
    }

    fn times(working_ns: u64, idle_ns: u64) -> Times {
        Times { working_ns, idle_ns, ..Times::default() }
    }

    #[test]
    fn rows_cover_the_time_since_the_last_and_fit_the_rate() {
        let names: Vec<NodeId> = (1..=16).map(|n| NodeId::from(format!("ams-{n}"))).collect();
        let mut rows = Rows::default();
        let at = |worked: u64| -> Vec<WorkerTimes<'_>> {
            names.iter().map(|node| (node, times(worked, 1000), Some(2.0))).collect()
        };
        // 16 workers take 512 bytes, the budget of 4 s. Every fourth period suffices for any length
        // of periods.
        for period_s in [1.0, 10.0] {
            assert!((0..3).all(|_| rows.period(period_s, &at(500)).is_empty()));
            let due = rows.period(period_s, &at(1000));
            assert_eq!((due.len(), due[0].speed), (16, Some(2.0)));
            if period_s == 1.0 {
                assert_eq!(due[0].time, [50, 50, 0, 0, 0]);
            }
        }
        assert!((0..7).all(|_| rows.period(0.5, &at(2000)).is_empty()));
        assert_eq!(rows.period(0.5, &at(3000))[15].time, [100, 0, 0, 0, 0]);
    }
}
