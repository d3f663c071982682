//! The first nodes of a managed job: claimed at its placement, gathered, and released on failure.
//!
//! The job starts once all nodes have arrived. If one fails, all are released together. This module
//! must not decide on the placement.

use std::collections::BTreeSet;

use springtide_base::id::{JobId, NodeId};
use tokio::time::Instant;

use super::SchedulerCore;
use super::event::{SchedulerAction, StartRecord};
use super::managed::{JobStage, NodeUse};
use super::node::{PoolNode, PoolNodeState, ProgramKey};
use super::queue::QueuedJob;
use crate::job::AssignError;
use crate::manager::ManagerEvent;
use crate::policy::malleability::PlacementPlan;
use crate::scheduler::SubmitError;

impl SchedulerCore {
    pub(super) fn claim(
        &mut self,
        id: JobId,
        placed: &PlacementPlan,
        now: Instant,
        out: &mut Vec<SchedulerAction>,
    ) -> Option<ManagerEvent> {
        let mut nodes: BTreeSet<NodeId> = BTreeSet::new();
        let mut lacks = None;
        for (cluster, count) in &placed.processors_by_cluster() {
            let count = *count;
            let chosen = match lacks {
                None => self.reserve_nodes(id, cluster, count, NodeUse::Claimed, now, out),
                Some(_) => BTreeSet::new(),
            };
            let has = self.processors_of(&chosen).get();
            nodes.extend(chosen);
            if has < count {
                // If the job ends before these nodes are released, the missing ones must count as
                // lost.
                let job = self.managing.jobs.get_mut(&id)?;
                *job.lost.entry(cluster.clone()).or_default() += count - has;
                let what = if self.is_on_demand(cluster) {
                    "are available at once"
                } else {
                    "are free and run the job's program"
                };
                lacks.get_or_insert(format!(
                    "of {count} processors of {cluster}, only {has} {what}"
                ));
            }
        }
        if let Some(reason) = lacks {
            self.fail_start(id, reason, now, out);
            return self.requeue_failed(id);
        }
        let until = now + self.managing.hold_timeout;
        let placed = placed.clone();
        self.managing.jobs.get_mut(&id)?.stage = JobStage::Gathering { nodes, placed, until };
        self.gather(id, now, out);
        None
    }

    /// Starts a job when all its nodes and files have arrived; fails when a node is lost or late.
    pub(super) fn gather(&mut self, id: JobId, now: Instant, out: &mut Vec<SchedulerAction>) {
        let moving = self.files.moving(id);
        let Some(job) = self.managing.jobs.get_mut(&id) else { return };
        let JobStage::Gathering { nodes, placed, until } = &mut job.stage else { return };
        let program = ProgramKey::of(&job.submit);
        if let Some(digest) = program.digest {
            let clusters = nodes.iter().filter_map(|node| Some(&self.nodes.get(node)?.cluster));
            if self.programs.is_sent(digest, clusters) {
                // The transfer has time limits of its own.
                *until = now + self.managing.hold_timeout;
            }
        }
        let (mut coming, mut lost) = (0, None);
        let mut waits = None;
        let mut late = BTreeSet::new();
        for node in &*nodes {
            match self.nodes.get(node).filter(|node| node.reserved == Some(id)) {
                Some(PoolNode { drain: Some(_), .. }) => lost = Some(format!("{node} is drained")),
                Some(known) if known.state != PoolNodeState::Idle => {
                    coming += 1;
                    late.insert(known.cluster.clone());
                    waits = waits.or(known.reason.as_ref().map(|why| format!(": {node}: {why}")));
                }
                Some(known) if known.running(program).is_some() => {}
                Some(_) => lost = Some(format!("{node} runs another program than the job's")),
                None => {
                    let reason = self.nodes.get(node).and_then(|node| node.reason.clone());
                    let reason = reason.unwrap_or_else(|| "it is gone".to_owned());
                    lost = Some(format!("{node}: {reason}"));
                }
            }
        }
        let (all, within) = (nodes.len(), self.managing.hold_timeout);
        let waits = waits.unwrap_or_default();
        let absent = || format!("{coming} of {all} nodes have not come within {within:?}{waits}");
        if coming > 0 && *until <= now {
            lost.get_or_insert_with(absent);
        }
        if let Some(reason) = lost {
            let waited = within.saturating_sub(until.saturating_duration_since(now));
            self.fail_start(id, reason, now, out);
            for cluster in late {
                self.wait_ended(&cluster, waited, &absent(), now, out);
            }
            return;
        }
        if coming == 0 && moving {
            // The nodes wait for files, whose transfers have time limits of their own.
            *until = now + self.managing.hold_timeout;
        } else if coming == 0 {
            let nodes = nodes.iter().cloned().collect();
            let begun =
                StartRecord { placed: placed.clone(), at: Some(self.managing.manager.time(now)) };
            out.push(SchedulerAction::StoreStart { job: id, begun });
            (job.stage, job.begun) = (JobStage::Claiming, true);
            let (epoch, submit) = (job.epoch, job.submit.clone());
            self.assign(QueuedJob::new(id, epoch, submit), nodes, out);
        }
    }

    /// Fails the start of a job. The job is requeued once it holds no node.
    pub(super) fn fail_start(
        &mut self,
        id: JobId,
        reason: String,
        now: Instant,
        out: &mut Vec<SchedulerAction>,
    ) {
        if let Some(job) = self.managing.jobs.get_mut(&id) {
            job.stage = JobStage::Failing(reason);
        }
        self.cancel_move(id, out);
        self.unreserve_all(id, now, out);
    }

    pub(super) fn unreserve_all(
        &mut self,
        id: JobId,
        now: Instant,
        out: &mut Vec<SchedulerAction>,
    ) {
        let theirs = self.nodes.iter().filter(|(_, node)| node.reserved == Some(id));
        let theirs: Vec<NodeId> = theirs.map(|(node, _)| node.clone()).collect();
        for node in theirs {
            let count = self.booked_size(&node, &self.nodes[&node]);
            if self.unreserve(&node, now, out)
                && let Some(job) = self.managing.jobs.get_mut(&id)
            {
                *job.lost.entry(self.nodes[&node].cluster.clone()).or_default() += count;
            }
        }
    }

    /// Requeues a job whose start failed, once it holds no node, neither arrived nor pending.
    pub(super) fn requeue_failed(&mut self, id: JobId) -> Option<ManagerEvent> {
        let job = self.managing.jobs.get_mut(&id)?;
        let JobStage::Failing(reason) = &job.stage else { return None };
        if job.awaits_epoch || self.nodes.values().any(|node| node.reserved == Some(id)) {
            return None;
        }
        let reason = reason.clone();
        job.stage = JobStage::Waiting;
        job.lost.clear();
        let without = job.refused.keys().cloned().collect();
        self.managing.ledger.retain(|_, entry| entry.job != id);
        Some(ManagerEvent::ClaimFailed { job: id, reason, without })
    }

    /// Retries the failed start of a managed job, under a new epoch, once all its nodes are free.
    /// Returns whether it does, which excludes cancelled jobs.
    pub(super) fn retry_claim(
        &mut self,
        id: JobId,
        error: &AssignError,
        out: &mut Vec<SchedulerAction>,
    ) -> bool {
        let former = self.jobs.get(&id).and_then(|job| Some((job.epoch, job.issued_to.clone()?)));
        let Some(managed) = self.managing.jobs.get_mut(&id) else { return false };
        if managed.stage != JobStage::Claiming {
            return false;
        }
        managed.former = former;
        (managed.stage, managed.awaits_epoch) = (JobStage::Failing(error.to_string()), true);
        out.push(SchedulerAction::NewEpoch { job: id, known: managed.epoch });
        true
    }

    /// Withdraws a waiting job from the manager's queue, for the reason that its submitter gets.
    /// Returns whether it was waiting.
    pub(super) fn withdraw_managed(
        &mut self,
        id: JobId,
        error: SubmitError,
        now: Instant,
        out: &mut Vec<SchedulerAction>,
    ) -> bool {
        self.cancel_move(id, out);
        let Some(job) = self.managing.jobs.get_mut(&id) else { return false };
        let refuse = SchedulerAction::Refuse { job: id, error };
        match job.stage {
            JobStage::Waiting => {
                self.forget_managed(id);
                self.restarting.remove(&id);
                self.report(ManagerEvent::Withdraw { job: id }, now, out);
                // The client is notified first. In the reverse order, a crash would lose the end.
                out.extend([refuse, SchedulerAction::Forget { job: id }]);
                return true;
            }
            // For the manager, the job is being started: it ends, and its nodes are released.
            JobStage::Gathering { .. } => {
                job.stage = JobStage::Claiming;
                self.unreserve_all(id, now, out);
            }
            // The job does not start again once its nodes are free.
            JobStage::Failing(_) => job.stage = JobStage::Claiming,
            JobStage::Over if job.again.is_some() => job.again = None,
            _ => return false,
        }
        out.push(refuse);
        true
    }
}
