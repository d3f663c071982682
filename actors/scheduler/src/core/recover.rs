//! Recovery of the jobs in the store after a crash of the scheduler.
//!
//! A job that had not started waits again. The nodes of a started job may still run it: they
//! register, and report the job and its view. Once the members are known, the job is a running one
//! as before. If none registers in time, the job restarts under a new epoch, which fences late
//! nodes. Nodes that work for unknown jobs must end them. This module must not depend on the format
//! of the store.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use springtide_base::id::{ClusterId, Epoch, Incarnation, JobId, NodeId};
use springtide_net::membership::View;
use tokio::time::Instant;

use super::audit::AUDIT_EVERY;
use super::event::{RecoveredJob, SchedulerAction, SchedulerEvent, StartRecord};
use super::managed::{JobStage, ManagedJob, NodeUse, reconcile_submission};
use super::node::PoolNodeState;
use super::{ActiveJob, HoldingChange, SchedulerCore};
use crate::hardware::Hardware;
use crate::job::JobError;
use crate::manager::{JobRequirements, ManagerEvent};
use crate::scheduler::{
    HandOver, JobState, JobStatus, NodeFreed, NodeRegistration, NodeWork, Submit, WithdrawNodes,
};

/// Time limit for the nodes of a running job to register again. They detect the loss of the
/// scheduler by its silence, keep searching for a new one, and stop after a minute.
pub(super) const RETURN_TIMEOUT: Duration = Duration::from_secs(45);
/// Time limit for the other nodes after the first one has registered. Then they count as lost.
pub(super) const GATHER: Duration = Duration::from_secs(5);

/// Number of losses of all nodes after which a job fails, since the job may cause the losses.
const LOSSES_MAX: u32 = 3;

/// A started job of an earlier scheduler whose live nodes are not known yet.
#[derive(Debug)]
pub(super) struct ReturningJob {
    /// Last issued epoch.
    pub(super) epoch: Epoch,
    submit: Box<Submit>,
    need: JobRequirements,
    limit: Option<u32>,
    begun: StartRecord,
    /// Newest view of any of its nodes.
    view: Option<View>,
    registered_nodes: BTreeSet<NodeId>,
    until: Instant,
    /// Whether a view is known, so that the remaining time is short.
    gathering: bool,
    /// Messages of its coordinator, which were acknowledged and are processed later.
    messages: Vec<SchedulerEvent>,
}

#[cfg(test)]
impl ReturningJob {
    /// Number of messages that wait until the job is known.
    pub(super) fn messages(&self) -> usize {
        self.messages.len()
    }
}

/// Whether a registering node may report the members of its job. It must be a member in a complete
/// view, whose epoch was issued.
fn speaks_for(view: &View, node: &NodeId, issued: Epoch) -> bool {
    !view.partial && view.members.contains_key(node) && view.epoch <= issued
}

impl SchedulerCore {
    /// Recovers a job from the store.
    pub(super) fn recovered(
        &mut self,
        found: RecoveredJob,
        now: Instant,
        out: &mut Vec<SchedulerAction>,
    ) {
        let RecoveredJob { job, epoch, submit, begun, limit } = found;
        let mut submit = submit;
        let Some(mut need) = submit.need.take() else {
            // Such jobs are never stored for recovery.
            return out.push(SchedulerAction::Forget { job });
        };
        reconcile_submission(&mut submit, &mut need);
        let Some(begun) = begun else {
            let managed = ManagedJob { limit, ..ManagedJob::waiting(epoch, submit) };
            return self.submit_managed(job, managed, need, now, out);
        };
        let until = now + RETURN_TIMEOUT;
        let returning = ReturningJob {
            epoch,
            submit,
            need,
            limit,
            begun,
            view: None,
            registered_nodes: BTreeSet::new(),
            until,
            gathering: false,
            messages: Vec::new(),
        };
        self.returning.insert(job, returning);
    }

    /// Keeps messages of a returning job's coordinator until the job is known. Returns all other
    /// events.
    pub(super) fn keep_message(&mut self, event: SchedulerEvent) -> Option<SchedulerEvent> {
        let (job, epoch) = match &event {
            SchedulerEvent::HandOver(HandOver { job, epoch, .. })
            | SchedulerEvent::Freed(NodeFreed { job, epoch, .. })
            | SchedulerEvent::Withdraw(WithdrawNodes { job, epoch, .. }) => (*job, *epoch),
            SchedulerEvent::Request(request) => (request.job, request.epoch),
            SchedulerEvent::RootAdvanced(advanced) => (advanced.job, advanced.epoch),
            SchedulerEvent::Subscribe(subscribe) => (subscribe.job, subscribe.epoch),
            SchedulerEvent::MemberSilent(silent) => (silent.job, silent.epoch),
            _ => return Some(event),
        };
        match self.returning.get_mut(&job).filter(|returning| epoch <= returning.epoch) {
            Some(returning) => {
                returning.messages.push(event);
                None
            }
            None => Some(event),
        }
    }

    /// Processes a registering node that works for a job.
    pub(super) fn register_work(
        &mut self,
        id: &NodeId,
        work: &NodeWork,
        out: &mut Vec<SchedulerAction>,
    ) {
        let closing = |node: &&mut super::PoolNode| node.state == PoolNodeState::Closing;
        let Some(node) = self.nodes.get_mut(id).filter(|node| !closing(node)) else { return };
        if let Some(returning) = self.returning.get_mut(&work.job) {
            node.state = PoolNodeState::Busy(work.job);
            returning.registered_nodes.insert(id.clone());
            let newest = |view: &View| (view.epoch, view.version);
            if let Some(view) = &work.view
                && speaks_for(view, id, returning.epoch)
                && returning.view.as_ref().map(newest) < Some(newest(view))
            {
                returning.view = Some(view.clone());
            }
            return;
        }
        if self.jobs.get(&work.job).is_some_and(|job| job.members.contains(id)) {
            node.state = PoolNodeState::Busy(work.job);
            return;
        }
        // Its job has ended or restarted, or continues without this node.
        node.state = PoolNodeState::Busy(work.job);
        let known = self.known().contains(&work.job);
        self.release_stray(work.job, id.clone(), !known, out);
    }

    /// Removes a registered node that is lost again.
    pub(super) fn returning_lost(&mut self, job: JobId, id: &NodeId) {
        if let Some(returning) = self.returning.get_mut(&job) {
            returning.registered_nodes.remove(id);
        }
    }

    /// Returning jobs of a client.
    pub(super) fn returning_of<'a>(
        &'a self,
        client: &'a NodeId,
    ) -> impl Iterator<Item = JobId> + 'a {
        let theirs =
            self.returning.iter().filter(move |(_, job)| job.submit.client.node == *client);
        theirs.map(|(&id, _)| id)
    }

    /// Whether a running job is not known again yet, so that its coordinator must wait.
    pub(super) fn is_returning(&self, id: JobId) -> bool {
        self.returning.contains_key(&id)
    }

    /// Last issued epoch of a returning job, and the newest view of its nodes.
    pub(super) fn returning_view(&self, id: JobId) -> Option<(Epoch, Option<&View>)> {
        let returning = self.returning.get(&id)?;
        Some((returning.epoch, returning.view.as_ref()))
    }

    /// The submission of a returning job.
    pub(super) fn returning_submit(&self, id: JobId) -> Option<&Submit> {
        self.returning.get(&id).map(|returning| &*returning.submit)
    }

    /// Time of the next deadline for returning jobs and nodes.
    pub(super) fn returning_due(&self) -> Option<Instant> {
        let jobs = self.returning.values().map(|job| job.until);
        jobs.chain(self.awaited.values().map(|(_, until)| *until)).min()
    }

    /// Continues jobs whose nodes have registered, restarts others, and gives up absent nodes.
    pub(super) fn process_returning(&mut self, now: Instant, out: &mut Vec<SchedulerAction>) {
        for id in self.returning.keys().copied().collect::<Vec<_>>() {
            let Some(returning) = self.returning.get_mut(&id) else { continue };
            if returning.view.is_some() && !std::mem::replace(&mut returning.gathering, true) {
                returning.until = returning.until.min(now + GATHER);
            }
            let all = returning.view.as_ref().is_some_and(|view| {
                view.members.keys().all(|node| returning.registered_nodes.contains(node))
            });
            if !all && returning.until > now && !self.none_can_return(id) {
                continue;
            }
            let Some(returning) = self.returning.remove(&id) else { continue };
            match returning.view.clone() {
                Some(view)
                    if view
                        .members
                        .keys()
                        .any(|n| self.may_be_alive(n, &returning.registered_nodes)) =>
                {
                    self.resume(id, returning, view, now, out);
                }
                _ => self.restart(id, returning, out),
            }
        }
        let late = |(_, (_, until)): &(&NodeId, &(JobId, Instant))| *until <= now;
        let late: Vec<NodeId> =
            self.awaited.iter().filter(late).map(|(node, _)| node.clone()).collect();
        for id in late {
            self.awaited.remove(&id);
            let Some(node) = self.nodes.get(&id) else { continue };
            let cluster = node.cluster.clone();
            let reason = "it did not register again".to_owned();
            if node.state == PoolNodeState::Off {
                continue;
            }
            self.node_lost(&id, &reason, true, now, out);
            out.push(SchedulerAction::Replace {
                cluster,
                nodes: vec![id],
                program: None,
                image: None,
                reason,
            });
        }
    }

    /// Whether no node can register for a job any more. All its sites have reported, and no node
    /// there is still starting.
    fn none_can_return(&self, id: JobId) -> bool {
        let Some(returning) = self.returning.get(&id) else { return false };
        let of = |cluster: &ClusterId| self.sites.get(cluster);
        let clusters: BTreeSet<&ClusterId> =
            returning.begun.placed.parts.iter().map(|part| &part.cluster).collect();
        !returning.need.spreads
            && returning.registered_nodes.is_empty()
            && clusters.iter().all(|cluster| {
                let left = |node: &NodeId| self.nodes[node].state == PoolNodeState::Starting;
                of(cluster).is_some_and(|site| !site.nodes.iter().any(left))
            })
    }

    /// Status of returning jobs, for display.
    pub(super) fn returning_statuses(&self) -> impl Iterator<Item = JobStatus> {
        self.returning.iter().map(|(&job, returning)| JobStatus {
            job,
            name: returning.submit.name.clone(),
            state: JobState::Queued,
            sizes: BTreeMap::new(),
            waits_for: Some("nodes that may have outlived the former scheduler".to_owned()),
            coordinator: None,
            principal: returning.submit.principal.clone(),
        })
    }

    /// Processes the end of a returning job. If its members are known, it counts as running first.
    pub(super) fn returning_over(
        &mut self,
        id: JobId,
        epoch: Epoch,
        now: Instant,
        out: &mut Vec<SchedulerAction>,
    ) {
        let ours = |returning: &ReturningJob| epoch == returning.epoch;
        if !self.returning.get(&id).is_some_and(ours) {
            return;
        }
        let Some(returning) = self.returning.remove(&id) else { return };
        match returning.view.clone() {
            Some(view) => self.resume(id, returning, view, now, out),
            None => self.release_returning(id, returning, true, out),
        }
    }

    /// Cancels a returning job. Returns whether the job was returning.
    pub(super) fn cancel_returning(
        &mut self,
        id: JobId,
        reason: &str,
        out: &mut Vec<SchedulerAction>,
    ) -> bool {
        let Some(returning) = self.returning.remove(&id) else { return false };
        let error = JobError::Cancelled { reason: reason.to_owned() };
        out.push(SchedulerAction::Ended {
            job: id,
            client: returning.submit.client.clone(),
            error,
        });
        self.release_returning(id, returning, true, out);
        true
    }

    /// Orders the registered nodes of a returning job to end it.
    fn release_returning(
        &mut self,
        id: JobId,
        returning: ReturningJob,
        over: bool,
        out: &mut Vec<SchedulerAction>,
    ) {
        for node in returning.registered_nodes {
            self.release_stray(id, node, over, out);
        }
        if over {
            out.push(SchedulerAction::Forget { job: id });
        }
    }

    /// Orders a node to end a job of which it is not a member.
    pub(super) fn release_stray(
        &mut self,
        id: JobId,
        node: NodeId,
        over: bool,
        out: &mut Vec<SchedulerAction>,
    ) {
        let registration = self.nodes.get(&node).and_then(|node| node.registration.as_ref());
        let Some(incarnation) = registration.map(|registration| registration.incarnation) else {
            return;
        };
        self.strays.insert(node.clone(), (id, incarnation));
        let epoch = self.epoch_of(id);
        out.push(SchedulerAction::Release { node, incarnation, job: id, over, epoch });
    }

    /// Epoch of a job; the first one for unknown jobs.
    pub fn epoch_of(&self, id: JobId) -> Epoch {
        let running = self.jobs.get(&id).map(|job| job.epoch);
        let queued = || Some(self.queue.iter().find(|waiting| waiting.job == id)?.epoch);
        running
            .or_else(queued)
            .or_else(|| Some(self.managing.jobs.get(&id)?.epoch))
            .unwrap_or_default()
    }

    /// Orders a node that refused a job to end its other job, if it is not a member there.
    pub(super) fn release_from_other(
        &self,
        node: &NodeId,
        other: JobId,
        out: &mut Vec<SchedulerAction>,
    ) {
        let Some(known) = self.nodes.get(node) else { return };
        let Some(incarnation) =
            known.registration.as_ref().map(|registration| registration.incarnation)
        else {
            return;
        };
        if self.confirm_member(other, node, incarnation).is_ok() {
            return;
        }
        let over = !self.known().contains(&other);
        let (node, epoch) = (node.clone(), self.epoch_of(other));
        out.push(SchedulerAction::Release { node, incarnation, job: other, over, epoch });
    }

    /// Restarts a returning job under a new epoch.
    fn restart(&mut self, id: JobId, returning: ReturningJob, out: &mut Vec<SchedulerAction>) {
        let (epoch, need, limit) = (returning.epoch, returning.need.clone(), returning.limit);
        let submit = returning.submit.clone();
        let holder = returning.view.as_ref().filter(|view| view.epoch == epoch);
        let former = holder.and_then(|view| Some((epoch, view.coordinator.clone()?)));
        self.release_returning(id, returning, false, out);
        let what = format!("{id} restarts: none of its nodes has registered again");
        out.push(SchedulerAction::ProtocolViolation { what });
        let job = ManagedJob { limit, begun: true, former, ..ManagedJob::waiting(epoch, submit) };
        self.managing.jobs.insert(id, job);
        self.restarting.insert(id, need);
        out.push(SchedulerAction::NewEpoch { job: id, known: epoch });
    }

    /// Submits a restarting job once its new epoch is on disk.
    pub(super) fn restart_renewed(
        &mut self,
        id: JobId,
        epoch: Epoch,
        now: Instant,
        out: &mut Vec<SchedulerAction>,
    ) -> bool {
        let Some(need) = self.restarting.remove(&id) else { return false };
        let Some(managed) = self.managing.jobs.remove(&id) else { return true };
        self.submit_managed(id, ManagedJob { epoch, ..managed }, need, now, out);
        true
    }

    /// Handles the loss of all nodes that could continue a job. Returns whether the job restarts,
    /// which the number of losses limits.
    pub(super) fn lost_all(
        &mut self,
        id: JobId,
        node: &NodeId,
        reason: &str,
        out: &mut Vec<SchedulerAction>,
    ) -> bool {
        let Some(need) = self.managing.need(id) else { return false };
        let Some(held) = self.jobs.get(&id) else { return false };
        let (epoch, issued_to) = (held.epoch, held.issued_to.clone());
        let Some(managed) = self.managing.jobs.get_mut(&id) else { return false };
        // The job did not cause the loss of a node whose owner took it away.
        let is_planned = managed.revoked.take().as_ref() == Some(node);
        let losses = managed.losses + u32::from(!is_planned);
        if managed.stage != JobStage::Running || losses >= LOSSES_MAX {
            return false;
        }
        managed.losses = losses;
        (managed.again, managed.epoch) = (Some(need), managed.epoch.max(epoch));
        managed.former = issued_to.map(|node| (epoch, node));
        out.push(SchedulerAction::Restart { job: id, client: managed.submit.client.clone() });
        let what = format!("{id} restarts because it has lost all nodes, {node} last: {reason}");
        out.push(SchedulerAction::ProtocolViolation { what });
        self.release_members(id, out);
        true
    }

    /// Restarts a job, if due, once its old state is cleared.
    pub(super) fn restart_if_due(&mut self, id: JobId, out: &mut Vec<SchedulerAction>) -> bool {
        let managed = self.managing.jobs.get_mut(&id);
        let Some((need, managed)) = managed.and_then(|m| Some((m.again.take()?, m))) else {
            return false;
        };
        let ManagedJob { epoch, losses, limit, .. } = *managed;
        let former = managed.former.take();
        let waits = ManagedJob::waiting(epoch, managed.submit.clone());
        *managed = ManagedJob { losses, limit, begun: true, former, ..waits };
        self.restarting.insert(id, need);
        out.push(SchedulerAction::NewEpoch { job: id, known: epoch });
        true
    }

    /// Continues a returning job with its live nodes.
    fn resume(
        &mut self,
        id: JobId,
        returning: ReturningJob,
        view: View,
        now: Instant,
        out: &mut Vec<SchedulerAction>,
    ) {
        let ReturningJob { epoch, submit, need, limit, begun, registered_nodes, messages, .. } =
            returning;
        let mut members = BTreeSet::new();
        let (mut late, mut gone) = (Vec::new(), Vec::new());
        for (name, member) in view.members.iter() {
            if !self.may_be_alive(name, &registered_nodes) {
                gone.push(name.clone());
                continue;
            }
            let Some(node) = self.nodes.get_mut(name) else { continue };
            members.insert(name.clone());
            if registered_nodes.contains(name) {
                continue;
            }
            // Others report it as a member.
            late.push(name.clone());
            if node.registration.is_none() {
                node.registration = Some(NodeRegistration {
                    cluster: member.cluster.clone(),
                    node: name.clone(),
                    incarnation: member.incarnation,
                    address: member.address.clone(),
                    threads: member.threads,
                    fingerprint: submit.fingerprint,
                    pid: 0,
                    hardware: Hardware::default(),
                    work: None,
                    program: submit.image.as_ref().map(|image| image.digest),
                });
            }
        }
        for node in &members {
            if let Some(node) = self.nodes.get_mut(node) {
                node.state = PoolNodeState::Busy(id);
            }
            self.book_node(node, id, NodeUse::Computing);
        }
        let nodes = members.iter().cloned().collect();
        self.holding_changes.push(HoldingChange::Resumed { job: id, epoch: view.epoch, nodes });
        let mut sizes: BTreeMap<ClusterId, u32> = BTreeMap::new();
        for node in &members {
            let known = &self.nodes[node];
            *sizes.entry(known.cluster.clone()).or_default() += self.booked_size(node, known);
        }
        let mut managed =
            ManagedJob { limit, begun: true, ..ManagedJob::waiting(epoch, submit.clone()) };
        managed.stage = JobStage::Running;
        self.managing.jobs.insert(id, managed);
        self.managing.node_needs |= !need.node.is_met_by_all();
        let mut job = ActiveJob::assigning(view.epoch, *submit, view.clone(), members.clone());
        job.state = JobState::Running;
        job.unanswered.clear();
        (job.since, job.audit_at) = (Some(now), Some(now + AUDIT_EVERY));
        self.jobs.insert(id, job);
        self.poll(now, out);
        let sizes = Box::new(sizes);
        let StartRecord { placed, at } = begun;
        let need = Box::new(need);
        self.report(ManagerEvent::Resumed { job: id, need, placed, since: at, sizes }, now, out);
        if limit.is_some() {
            self.report(ManagerEvent::SizeLimited { job: id, most: limit }, now, out);
        }
        // A node that the earlier scheduler released may still work for the job.
        for node in registered_nodes.difference(&members) {
            self.release_stray(id, node.clone(), false, out);
        }
        for node in late {
            self.awaited.insert(node, (id, now + RETURN_TIMEOUT));
        }
        // Messages from the time of recovery are processed now, in order.
        self.replay.extend(messages);
        // A takeover was under way when the scheduler died. The new coordinator may run or not, so
        // both are fenced.
        let Some(job) = self.jobs.get_mut(&id) else { return };
        let taken_over = job.epoch < epoch;
        if taken_over {
            job.epoch = epoch;
            let coordinator = job.view.coordinator.clone();
            if let Some(coordinator) = coordinator.filter(|node| members.contains(node)) {
                // It is alive, and may continue: it is asked first.
                let reason = "the scheduler died during a takeover".to_owned();
                let successor = Some(coordinator.clone());
                self.seek_coordinator(id, (coordinator, reason), successor, now, out);
            }
        }
        let reason = "it was lost when the scheduler restarted";
        let coordinator = self.jobs.get(&id).and_then(|job| job.view.coordinator.clone());
        // Otherwise a coordinator is being sought, and will get the live members.
        let Some(coordinator) = coordinator else { return };
        if gone.contains(&coordinator) {
            return self.coordinator_lost(id, &coordinator, reason, now, out);
        }
        for node in gone {
            let (coordinator, reason) = (coordinator.clone(), reason.to_owned());
            out.push(SchedulerAction::MemberLost {
                job: id,
                coordinator,
                node,
                reason,
                excused: false,
            });
        }
    }

    /// Whether a member may still work for the job: it has registered, or its process may. A node
    /// under its name that is reserved for another job is another process.
    fn may_be_alive(&self, id: &NodeId, registered_nodes: &BTreeSet<NodeId>) -> bool {
        let comes = |node: &super::PoolNode| {
            node.state == PoolNodeState::Starting && node.reserved.is_none()
        };
        registered_nodes.contains(id) || self.nodes.get(id).is_some_and(comes)
    }

    /// Processes a stray node's answer to its release.
    pub(super) fn stray_released(
        &mut self,
        id: JobId,
        node: &NodeId,
        incarnation: Incarnation,
        ok: bool,
        now: Instant,
        out: &mut Vec<SchedulerAction>,
    ) -> bool {
        if self.strays.get(node) != Some(&(id, incarnation)) {
            return false;
        }
        self.strays.remove(node);
        let Some(known) = self.nodes.get(node) else { return true };
        if known
            .registration
            .as_ref()
            .is_some_and(|registration| registration.incarnation == incarnation)
        {
            self.free(id, node, ok, now, out);
        }
        true
    }
}
