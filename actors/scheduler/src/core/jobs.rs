//! Ends of jobs, and losses of their nodes.

use std::collections::BTreeSet;
use std::time::Duration;

use springtide_base::id::{Epoch, Incarnation, JobId, NodeId};
use tokio::time::Instant;

use super::event::SchedulerAction;
use super::managed::ManagedJob;
use super::node::{DrainMark, PoolNodeState};
use super::queue::QueuedJob;
use super::request::OpenRequest;
use super::starts::grant;
use super::{ActiveJob, HoldingChange, SchedulerCore};
use crate::job::{AssignError, JobError};
use crate::scheduler::{JobState, MemberSilent, NodeFreed, ReleaseReason, SubmitError};

/// Time within which reports about a silent coordinator count together.
const VOTE_WINDOW: Duration = Duration::from_secs(10);

impl SchedulerCore {
    pub(super) fn node_lost(
        &mut self,
        id: &NodeId,
        reason: &str,
        returns: bool,
        now: Instant,
        out: &mut Vec<SchedulerAction>,
    ) {
        // This incarnation is awaited no longer.
        self.awaited.remove(id);
        let Some(cluster) = self.nodes.get(id).map(|node| node.cluster.clone()) else { return };
        let on_demand = self.is_on_demand(&cluster);
        let Some(node) = self.nodes.get_mut(id) else { return };
        let before = node.state;
        let was_leaving = node.drain.is_some();
        let was_revoked = node.drain.as_ref().is_some_and(DrainMark::is_revocation);
        node.lost_at = None;
        match (returns, on_demand) {
            // A node that joined by itself may or may not return.
            _ if node.joins => node.turn_off(None),
            (true, _) => node.mark_starting(now),
            (false, true) => node.turn_off(None),
            (false, false) => node.state = PoolNodeState::Broken,
        }
        node.reason = Some(reason.to_owned());
        let PoolNodeState::Busy(job) = before else { return };
        let (node, lost) = (id.clone(), reason.to_owned());
        self.holding_changes.push(HoldingChange::Lost { job, node, reason: lost });
        let Some(held) = self.jobs.get_mut(&job) else { return self.returning_lost(job, id) };
        if !held.remove_node(id) {
            return self.end_if_empty(job); // it was being released
        }
        self.member_died(job, id, reason, was_leaving, now);
        if let Some(managed) = self.managing.jobs.get_mut(&job) {
            managed.revoked = was_revoked.then(|| id.clone());
        }
        let Some(held) = self.jobs.get_mut(&job) else { return };
        if let (JobState::Running, Some(coordinator)) = (held.state, &held.view.coordinator)
            && coordinator != id
        {
            let (coordinator, node) = (coordinator.clone(), id.clone());
            out.push(SchedulerAction::MemberLost {
                job,
                coordinator,
                node,
                reason: reason.to_owned(),
                excused: was_leaving,
            });
            return;
        }
        match held.state {
            JobState::Running if held.view.coordinator.is_some() => {
                self.coordinator_lost(job, id, reason, now, out);
            }
            // A coordinator is already being sought, and will be sent the live members.
            JobState::Running => {}
            JobState::Assigning => {
                self.lost_at_start(job, id, AssignError::failed(id, reason), now, out);
            }
            JobState::Ending | JobState::Queued => self.release_members(job, out),
        }
    }

    /// Restarts a silent member. The job already has a new view without it.
    pub(super) fn member_silent(
        &mut self,
        silent: MemberSilent,
        now: Instant,
        out: &mut Vec<SchedulerAction>,
    ) {
        let MemberSilent {
            job,
            epoch,
            node: id,
            incarnation,
            reason,
            reporting_cluster: by,
            reporter: voice,
        } = silent;
        let Some(held) = self.jobs.get_mut(&job).filter(|held| held.epoch == epoch) else { return };
        let Some(node) = self.nodes.get_mut(&id) else { return };
        let this_life = node
            .registration
            .as_ref()
            .is_some_and(|registration| registration.incarnation == incarnation);
        if node.state != PoolNodeState::Busy(job) || !this_life {
            return;
        }
        let coordinates = held.view.coordinator.as_ref() == Some(&id);
        if coordinates != by.is_some() {
            return; // members must not report the coordinator, and others must not report members
        }
        if let Some(cluster) = by {
            let of = |n: &NodeId| self.nodes.get(n).map(|node| &node.cluster);
            let incarnation_of = |n: &NodeId| {
                self.nodes
                    .get(n)?
                    .registration
                    .as_ref()
                    .map(|registration| registration.incarnation)
            };
            // A member that the coordinator has removed does not hear it either, but has no vote. A
            // later incarnation may be a member again.
            let has_voice = |(node, reporter): &(NodeId, Incarnation)| {
                held.members.contains(node) && incarnation_of(node) == Some(*reporter)
            };
            if voice.is_some_and(|voice| !has_voice(&voice)) {
                return;
            }
            held.silence_reports
                .retain(|_, (_, at)| now.saturating_duration_since(*at) <= VOTE_WINDOW);
            let reporters = held.members.iter().filter(|n| of(n) == Some(&cluster));
            held.silence_reports
                .extend(reporters.filter_map(|n| Some((n.clone(), (incarnation_of(n)?, now)))));
            // Members whose links to the scheduler are down cannot vote. They may be lost with the
            // coordinator, and a new epoch would not reach them.
            let others =
                held.members.iter().filter(|n| **n != id && !self.unreachable.contains(*n));
            let reports = |n: &&NodeId| {
                held.silence_reports
                    .get(*n)
                    .is_some_and(|(spoke, _)| incarnation_of(n) == Some(*spoke))
            };
            let (reporting, all) = (others.clone().filter(reports).count(), others.count());
            if 2 * reporting <= all {
                return;
            }
        }
        let Some(node) = self.nodes.get_mut(&id) else { return };
        held.remove_node(&id);
        match node.joins {
            // If the node is alive, it is ordered to restart.
            true => node.turn_off(None),
            false => node.mark_starting(now),
        }
        node.reason = Some(reason.clone());
        let cluster = node.cluster.clone();
        let lost = HoldingChange::Lost { job, node: id.clone(), reason: reason.clone() };
        self.holding_changes.push(lost);
        let was_leaving = self.nodes.get(&id).is_some_and(|node| node.drain.is_some());
        self.member_died(job, &id, &reason, was_leaving, now);
        let nodes = vec![id.clone()];
        out.push(SchedulerAction::Replace {
            cluster,
            nodes,
            program: None,
            image: None,
            reason: reason.clone(),
        });
        match (self.jobs.get(&job).map(|held| held.state), coordinates) {
            (Some(JobState::Assigning), true) => {
                self.lost_at_start(job, &id, AssignError::failed(&id, reason), now, out);
            }
            // The coordinator sent this report itself.
            (Some(JobState::Assigning), false) => self.start_if_answered(job, now, out),
            (_, true) => self.coordinator_lost(job, &id, &reason, now, out),
            (_, false) => self.end_if_empty(job),
        }
    }

    /// Processes a coordinator's report that it does not need a node, or never had it.
    pub(super) fn node_freed(
        &mut self,
        freed: &NodeFreed,
        now: Instant,
        out: &mut Vec<SchedulerAction>,
    ) {
        let NodeFreed { job: id, epoch, node, incarnation, why } = freed;
        if self.check(*id, *epoch).is_err() {
            return;
        }
        let Some(job) = self.jobs.get_mut(id) else { return };
        let Some(known) = self.nodes.get_mut(node) else { return };
        let this_life = known
            .registration
            .as_ref()
            .is_some_and(|registration| registration.incarnation == *incarnation);
        let holds = job.state != JobState::Ending && job.members.contains(node);
        if known.state != PoolNodeState::Busy(*id) || !this_life || !holds {
            return; // the report is outdated
        }
        if job.view.coordinator.as_ref() == Some(node) {
            let what = format!(
                "the coordinator of {id} reports its own node {node} as free: the report is ignored"
            );
            return out.push(SchedulerAction::ProtocolViolation { what });
        }
        // The coordinator has received this grant, even if its acknowledgement was lost.
        job.grants.values_mut().for_each(|grant| grant.nodes.retain(|granted| granted != node));
        if let Some(search) = &mut job.search {
            search.member_freed(node);
        }
        match why {
            ReleaseReason::Left => {
                job.remove_node(node);
                known.mark_idle(now);
                self.managing.let_go.insert(node.clone());
                self.start_if_answered(*id, now, out);
            }
            ReleaseReason::Refused { busy, .. } => {
                if let Some(other) = busy {
                    self.release_from_other(node, *other, out);
                }
                self.release(*id, node, out);
            }
        }
    }

    /// Ends a job from here: notifies its client, and releases the remaining members. `gone` is the
    /// member whose loss is the cause.
    pub(super) fn fail(
        &mut self,
        id: JobId,
        error: JobError,
        gone: Option<&NodeId>,
        out: &mut Vec<SchedulerAction>,
    ) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        match job.state {
            JobState::Ending | JobState::Queued => {}
            JobState::Assigning => {
                let error = SubmitError::Cancelled { reason: error.to_string() };
                out.push(SchedulerAction::Refuse { job: id, error });
            }
            JobState::Running => {
                out.push(SchedulerAction::Ended {
                    job: id,
                    client: job.client.clone(),
                    error: error.clone(),
                });
                let coordinator = job.view.coordinator.clone();
                if let Some(coordinator) = coordinator.filter(|node| Some(node) != gone) {
                    out.push(SchedulerAction::Cancel {
                        job: id,
                        coordinator,
                        reason: error.to_string(),
                    });
                }
            }
        }
        self.release_members(id, out);
    }

    pub(super) fn release_members(&mut self, id: JobId, out: &mut Vec<SchedulerAction>) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        job.end();
        for node in job.members.clone() {
            self.release(id, &node, out);
        }
        self.end_if_empty(id);
    }

    /// Orders a member to end the job. The node is free after its answer.
    pub(super) fn release(&mut self, id: JobId, node: &NodeId, out: &mut Vec<SchedulerAction>) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        let Some(registration) = self.nodes.get(node).and_then(|node| node.registration.as_ref())
        else {
            return;
        };
        let incarnation = registration.incarnation;
        job.remove_node(node);
        job.releasing.insert(node.clone(), incarnation);
        let over = job.state == JobState::Ending && !self.managing.starts_again(id);
        let (node, epoch) = (node.clone(), job.epoch);
        out.push(SchedulerAction::Release { node, incarnation, job: id, over, epoch });
    }

    pub(super) fn released(
        &mut self,
        id: JobId,
        node: &NodeId,
        incarnation: Incarnation,
        ok: bool,
        now: Instant,
        out: &mut Vec<SchedulerAction>,
    ) {
        if self.stray_released(id, node, incarnation, ok, now, out) {
            return;
        }
        let Some(job) = self.jobs.get_mut(&id) else { return };
        if job.releasing.get(node) != Some(&incarnation) {
            return; // it was lost in the meantime
        }
        job.releasing.remove(node);
        self.end_if_empty(id);
        self.free(id, node, ok, now, out);
    }

    /// Frees a node that has ended its job, or restarts it if it has not.
    pub(super) fn free(
        &mut self,
        id: JobId,
        node: &NodeId,
        ok: bool,
        now: Instant,
        out: &mut Vec<SchedulerAction>,
    ) {
        let Some(known) = self.nodes.get_mut(node) else { return };
        if known.state != PoolNodeState::Busy(id) {
            return;
        }
        if ok {
            known.mark_idle(now);
        } else {
            self.restart_node(node, format!("it did not release {id}"), now, out);
        }
    }

    /// Orders the site to restart a node that cannot be used as it is.
    pub(super) fn restart_node(
        &mut self,
        id: &NodeId,
        reason: String,
        now: Instant,
        out: &mut Vec<SchedulerAction>,
    ) {
        let Some(node) = self.nodes.get_mut(id) else { return };
        node.mark_starting(now);
        node.reason = Some(reason.clone());
        let cluster = node.cluster.clone();
        out.push(SchedulerAction::Replace {
            cluster,
            nodes: vec![id.clone()],
            program: None,
            image: None,
            reason,
        });
    }

    /// Processes a coordinator's report that it has ended the job and notified its client.
    ///
    /// In each state but `Running`, the report overtakes another message: the last answer to the
    /// assignment, a release, or the loss of all nodes. Nodes outside of `ended` are released, and
    /// are free after their answers.
    pub(super) fn job_over(
        &mut self,
        id: JobId,
        epoch: Epoch,
        ended: Option<&BTreeSet<NodeId>>,
        now: Instant,
        out: &mut Vec<SchedulerAction>,
    ) {
        self.returning_over(id, epoch, now, out);
        if self.over_while_waiting(id, epoch, now, out) {
            return;
        }
        // A coordinator with an older epoch was replaced: the job continues without it. Later
        // epochs were not issued.
        let Some(job) = self.jobs.get_mut(&id).filter(|job| epoch == job.epoch) else { return };
        match job.state {
            // All workers took part before the root started: their answers are late.
            JobState::Assigning => self.start_running(id, now, out),
            JobState::Ending => return self.prevent_restart(id, out),
            JobState::Running | JobState::Queued => {}
        }
        let Some(job) = self.jobs.get_mut(&id) else { return };
        job.end();
        for node in job.members.clone() {
            let has_ended = ended.is_none_or(|ended| ended.contains(&node));
            if job.granted.contains(&node) || !has_ended {
                continue;
            }
            job.remove_node(&node);
            if let Some(node) = self.nodes.get_mut(&node)
                && node.state == PoolNodeState::Busy(id)
            {
                node.mark_idle(now);
            }
        }
        // A node that was granted late may have accepted the job after its coordinator forgot it.
        // Unreachable nodes may still work for it. Both would refuse the next job.
        for node in job.members.clone() {
            self.release(id, &node, out);
        }
        self.end_if_empty(id);
    }

    /// Removes a job from the queue that waits for a restart but has ended for its client.
    fn over_while_waiting(
        &mut self,
        id: JobId,
        epoch: Epoch,
        now: Instant,
        out: &mut Vec<SchedulerAction>,
    ) -> bool {
        let failed = |waiting: &QueuedJob| waiting.job == id && waiting.attempts.failed > 0;
        if let Some(at) = self.queue.iter().position(failed) {
            // An attempt to start it that seemed to fail has succeeded.
            self.queue.remove(at);
            let reason = "its coordinator has ended it already".to_owned();
            out.push(SchedulerAction::Refuse { job: id, error: SubmitError::Cancelled { reason } });
            return true;
        }
        let had = |job: &ManagedJob| job.begun && epoch <= job.epoch;
        let waits = self.managing.waits(id).is_some() && !self.jobs.contains_key(&id);
        if !waits || !self.managing.jobs.get(&id).is_some_and(had) {
            return false;
        }
        let reason = "its coordinator has ended it already".to_owned();
        self.withdraw_managed(id, SubmitError::Cancelled { reason }, now, out);
        true
    }

    /// Prevents the restart of a job that has ended for its client while its nodes are being
    /// released. The answers to the releases show which nodes are free.
    fn prevent_restart(&mut self, id: JobId, out: &mut Vec<SchedulerAction>) {
        if !self.managing.starts_again(id) {
            return; // it is being ended already, and its submission is answered
        }
        self.managing.prevent_restart(id);
        if let Some(granted) = self.jobs.get(&id).and_then(|job| grant(id, job)) {
            out.push(SchedulerAction::Grant(granted));
        }
    }

    pub(super) fn end_if_empty(&mut self, id: JobId) {
        let Some(job) = self.jobs.get(&id) else { return };
        if job.state == JobState::Ending && job.members.is_empty() && job.releasing.is_empty() {
            self.jobs.remove(&id);
            self.speeds.forget(id);
        }
    }

    pub(super) fn cancel(
        &mut self,
        id: JobId,
        reason: &str,
        now: Instant,
        out: &mut Vec<SchedulerAction>,
    ) {
        let error = SubmitError::Cancelled { reason: reason.to_owned() };
        if self.withdraw_managed(id, error, now, out) || self.cancel_returning(id, reason, out) {
            return;
        }
        if let Some(at) = self.queue.iter().position(|waiting| waiting.job == id) {
            self.queue.remove(at);
            let error = SubmitError::Cancelled { reason: reason.to_owned() };
            out.push(SchedulerAction::Refuse { job: id, error });
            return;
        }
        let Some(job) = self.jobs.get_mut(&id) else { return };
        match (job.state, job.view.coordinator.clone()) {
            (JobState::Ending, _) => {}
            (JobState::Running, Some(coordinator)) => {
                job.cancelled = Some(reason.to_owned());
                out.push(SchedulerAction::Cancel {
                    job: id,
                    coordinator,
                    reason: reason.to_owned(),
                });
            }
            _ => self.fail(id, JobError::Cancelled { reason: reason.to_owned() }, None, out),
        }
    }

    /// Ends a job whose coordinator did not receive the cancellation. The job may have lost that
    /// coordinator, and wait for a restart.
    pub(super) fn cancel_failed(
        &mut self,
        id: JobId,
        reason: String,
        now: Instant,
        out: &mut Vec<SchedulerAction>,
    ) {
        let runs = |job: &ActiveJob| job.state != JobState::Ending;
        if self.jobs.get(&id).is_some_and(runs) {
            return self.fail(id, JobError::Cancelled { reason }, None, out);
        }
        self.cancel(id, &reason, now, out);
    }

    /// Ends the jobs of a client that is gone. Their nodes are ordered to end them at once, even if
    /// coordinators are still trying to notify the client.
    pub(super) fn client_lost(
        &mut self,
        client: &NodeId,
        now: Instant,
        out: &mut Vec<SchedulerAction>,
    ) {
        let reason = "the process that submitted it is gone";
        if *client != self.me.node {
            let theirs =
                |job: &ActiveJob| job.client.node == *client && job.state == JobState::Running;
            let running = self.jobs.iter().filter(|(_, job)| theirs(job));
            for id in running.map(|(&id, _)| id).collect::<Vec<_>>() {
                if let Some(coordinator) = self.jobs[&id].view.coordinator.clone() {
                    let reason = reason.to_owned();
                    out.push(SchedulerAction::Cancel { job: id, coordinator, reason });
                }
                self.release_members(id, out);
            }
        }
        self.cancel_jobs_of(client, reason, now, out);
    }

    /// Clients with jobs that end with them. They exclude the scheduler's own process.
    pub fn waiting_clients(&self) -> BTreeSet<NodeId> {
        let queued = self.queue.iter().map(|waiting| &waiting.submit.client.node);
        let started = self.jobs.values().filter(|job| job.state != JobState::Ending);
        let managed = self.managing.waiting().map(|(_, submit)| &submit.client.node);
        let all = queued.chain(started.map(|job| &job.client.node)).chain(managed);
        all.filter(|client| **client != self.me.node).cloned().collect()
    }

    /// Ends all jobs of a client.
    pub(super) fn cancel_jobs_of(
        &mut self,
        client: &NodeId,
        reason: &str,
        now: Instant,
        out: &mut Vec<SchedulerAction>,
    ) {
        let queued = self.queue.iter().filter(|w| w.submit.client.node == *client).map(|w| w.job);
        let running = self.jobs.iter().filter(|(_, j)| j.client.node == *client).map(|(&id, _)| id);
        let waiting = self.managing.waiting_of(client).chain(self.returning_of(client));
        let theirs: Vec<JobId> = queued.chain(running).chain(waiting).collect();
        for job in theirs {
            self.cancel(job, reason, now, out);
        }
    }
}

impl ActiveJob {
    /// Removes a node from the job. Returns whether it was a member, and not being released.
    fn remove_node(&mut self, node: &NodeId) -> bool {
        self.unanswered.remove(node);
        self.granted.remove(node);
        self.releasing.remove(node);
        self.members.remove(node)
    }

    /// Starts the job's end, which voids all requests of its coordinator.
    fn end(&mut self) {
        self.state = JobState::Ending;
        self.open = OpenRequest::default();
        self.audit_at = None;
        self.grants.clear();
        self.subscription = None;
    }
}
