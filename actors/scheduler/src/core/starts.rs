//! The start of a job, which tolerates losses of nodes.
//!
//! A start lasts from the selection of the nodes until each of them has accepted the job. A member
//! that is lost meanwhile is left out. When all others have answered, the coordinator is notified
//! of the loss as if it had happened right after the start.
//!
//! If the coordinator is lost, or too few members remain, the job is assigned again under a new
//! epoch. Members of the failed attempt are released first. This module must not select nodes.

use std::collections::{BTreeMap, BTreeSet};

use springtide_base::id::{Epoch, JobId, NodeId};
use springtide_base::processors::Processors;
use tokio::time::Instant;

use super::audit::AUDIT_EVERY;
use super::event::SchedulerAction;
use super::queue::QueuedJob;
use super::{ActiveJob, SchedulerCore};
use crate::job::{AssignError, JobError};
use crate::poison::{PoisonDetector, PoisonVerdict};
use crate::scheduler::{JobGrant, JobState, Submit, SubmitError};

/// Number of failed attempts after which a job is refused. The job itself may be what kills
/// its nodes.
const ATTEMPTS_MAX: u32 = 8;

/// The failed attempts to start a job.
#[derive(Debug, Default)]
pub(super) struct Attempts {
    /// Number of failed attempts.
    pub(super) failed: u32,
    /// Coordinators of failed attempts. They coordinate again only if no other node can.
    pub(super) coordinators: BTreeSet<NodeId>,
    /// Epoch of the last attempt, and the node that it was issued to.
    pub(super) former: Option<(Epoch, NodeId)>,
    /// Deaths of nodes that held the root.
    poison: Option<PoisonDetector>,
}

/// The part of a job's state that only its start needs.
#[derive(Debug)]
pub(super) struct Start {
    /// The submission, for another attempt.
    submit: Box<Submit>,
    /// Earlier attempts.
    attempts: Attempts,
    /// Lost members, with the reasons. The coordinator does not know of the losses yet.
    lost: BTreeMap<NodeId, String>,
    /// Number of requested nodes that it starts without.
    missing: usize,
}

impl Start {
    /// Creates the state of a start. `missing` is the number of requested nodes that it lacks.
    pub(super) fn new(submit: Box<Submit>, attempts: Attempts, missing: usize) -> Self {
        Self { submit, attempts, lost: BTreeMap::new(), missing }
    }

    /// Deaths from earlier attempts that count against the job's root.
    pub(super) fn take_poison(&mut self) -> Option<PoisonDetector> {
        self.attempts.poison.take()
    }
}

impl SchedulerCore {
    /// Processes a worker's answer to an assignment, or its absence.
    pub(super) fn assignment_answered(
        &mut self,
        (id, epoch): (JobId, Epoch),
        node: &NodeId,
        answer: Result<(), AssignError>,
        now: Instant,
        out: &mut Vec<SchedulerAction>,
    ) {
        if let Err(AssignError::Busy { job: other, .. }) = &answer {
            self.release_from_other(node, *other, out);
        }
        let Some(job) = self.jobs.get_mut(&id).filter(|job| job.epoch == epoch) else { return };
        if !job.unanswered.remove(node) || job.state != JobState::Assigning {
            return;
        }
        match answer {
            Ok(()) => self.start_if_answered(id, now, out),
            Err(error) if error.is_lasting() => {
                out.push(SchedulerAction::Refuse { job: id, error: SubmitError::Refused(error) });
                self.release_members(id, out);
            }
            Err(error) => {
                // The worker may have accepted the job, and its answer was lost.
                self.release(id, node, out);
                self.lost_at_start(id, node, error, now, out);
            }
        }
    }

    /// Processes the loss of a member during the start.
    pub(super) fn lost_at_start(
        &mut self,
        id: JobId,
        node: &NodeId,
        error: AssignError,
        now: Instant,
        out: &mut Vec<SchedulerAction>,
    ) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        let coordinates = job.view.coordinator.as_ref() == Some(node);
        let job = self.jobs.get(&id);
        let suffice = job.is_some_and(|job| self.processors_of(&job.members) >= job.least);
        let Some(job) = self.jobs.get_mut(&id) else { return };
        if !coordinates && suffice {
            if let Some(start) = &mut job.start {
                let reason = match error {
                    AssignError::Failed { reason, .. } => reason,
                    error => error.to_string(),
                };
                start.lost.insert(node.clone(), reason);
            }
            return self.start_if_answered(id, now, out);
        }
        if self.managing.has(id) {
            if !self.retry_claim(id, &error, out) {
                out.push(SchedulerAction::Refuse { job: id, error: SubmitError::Refused(error) });
            }
            return self.release_members(id, out);
        }
        self.requeue_start(id, node, error, now, out);
    }

    /// Starts a job once all remaining members have accepted it.
    pub(super) fn start_if_answered(
        &mut self,
        id: JobId,
        now: Instant,
        out: &mut Vec<SchedulerAction>,
    ) {
        let assigning =
            |job: &ActiveJob| job.state == JobState::Assigning && job.unanswered.is_empty();
        if self.jobs.get(&id).is_some_and(assigning) {
            self.start_running(id, now, out);
        }
    }

    /// Makes a job run: answers its submission, and notifies its coordinator of lost members.
    pub(super) fn start_running(
        &mut self,
        id: JobId,
        now: Instant,
        out: &mut Vec<SchedulerAction>,
    ) {
        let size = self.jobs.get(&id).map_or(Processors::ONE, |job| self.mean_processors(job));
        let Some(job) = self.jobs.get_mut(&id) else { return };
        let Some(coordinator) = job.view.coordinator.clone() else { return };
        job.unanswered.clear();
        job.state = JobState::Running;
        (job.since, job.audit_at) = (Some(now), Some(now + AUDIT_EVERY));
        let (mut lost, mut missing) = (BTreeMap::new(), 0);
        if let Some(start) = job.start.take() {
            missing = start.missing;
            if start.submit.clusters.is_none() && !self.managing.has(id) {
                missing += start.lost.len();
            }
            lost = start.lost;
        }
        if !lost.is_empty() {
            job.view = job.view.without(lost.keys());
        }
        // Missing nodes are granted when they arrive, as if the coordinator had requested them.
        let missing = size.saturating_mul(u32::try_from(missing).unwrap_or(u32::MAX));
        (job.open.count, job.open.most) = (missing, missing);
        if let Some(granted) = grant(id, job) {
            out.push(SchedulerAction::Grant(granted));
        }
        for (node, reason) in lost {
            let coordinator = coordinator.clone();
            out.push(SchedulerAction::MemberLost {
                job: id,
                coordinator,
                node,
                reason,
                excused: false,
            });
        }
    }

    /// Puts a job whose start failed at `node` back at the head of the queue, under a new epoch.
    fn requeue_start(
        &mut self,
        id: JobId,
        node: &NodeId,
        error: AssignError,
        now: Instant,
        out: &mut Vec<SchedulerAction>,
    ) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        let poisoned = match job.poison.verdict(now) {
            PoisonVerdict::Poisoned(poisoned) => Some(JobError::from(poisoned).to_string()),
            PoisonVerdict::Clean | PoisonVerdict::Wait(_) => None,
        };
        let failed = job.start.as_ref().map_or(ATTEMPTS_MAX, |start| start.attempts.failed + 1);
        if poisoned.is_some() || failed >= ATTEMPTS_MAX {
            let last = error.to_string();
            let reason = poisoned.unwrap_or(format!("its start failed {failed} times: {last}"));
            out.push(SchedulerAction::Refuse { job: id, error: SubmitError::NotPlaced { reason } });
            return self.release_members(id, out);
        }
        let Some(mut job) = self.jobs.remove(&id) else { return };
        let Some(Start { submit, mut attempts, .. }) = job.start.take() else { return };
        (attempts.failed, attempts.former) = (failed, job.issued_to.map(|node| (job.epoch, node)));
        if job.view.coordinator.as_ref() == Some(node) {
            attempts.coordinators.insert(node.clone());
        }
        attempts.poison = Some(job.poison);
        out.push(SchedulerAction::ProtocolViolation {
            what: format!("{id} is assigned again: {error}"),
        });
        let mut waiting = QueuedJob::new(id, job.epoch, submit);
        (waiting.attempts, waiting.awaits_epoch) = (attempts, true);
        waiting.waits_for = format!("another start: {error}");
        self.queue.push_front(waiting);
        // Members that were released earlier answer with the job's number as well.
        self.strays.extend(
            job.releasing.into_iter().map(|(node, registration)| (node, (id, registration))),
        );
        for member in job.members {
            self.release_stray(id, member, false, out);
        }
        out.push(SchedulerAction::NewEpoch { job: id, known: job.epoch });
    }

    /// Explains why the first job of a client that does not run yet waits.
    pub fn wait_of(&self, client: &NodeId) -> Option<String> {
        let queued = self.queue.iter().find(|waiting| waiting.submit.client.node == *client);
        if let Some(waiting) = queued {
            if let Some(sent) = self.sent_program(&waiting.submit) {
                return Some(sent);
            }
            return Some(match waiting.waits_for.as_str() {
                "" => "the jobs before it".to_owned(),
                reason => reason.to_owned(),
            });
        }
        let starts =
            |job: &&ActiveJob| job.client.node == *client && job.state == JobState::Assigning;
        if let Some(job) = self.jobs.values().find(starts) {
            let (left, all) = (job.unanswered.len(), job.members.len());
            let some: Vec<&str> = job.unanswered.iter().take(3).map(NodeId::as_str).collect();
            return Some(format!("{left} of {all} nodes to begin: {}", some.join(", ")));
        }
        let of = |(_, submit): &(JobId, &Submit)| submit.client.node == *client;
        let (job, _) = self.managing.waiting().find(of)?;
        self.job_status(job)?.waits_for
    }

    /// Applies a new epoch to a job that is assigned again. Returns whether such a job exists.
    pub(super) fn start_renewed(&mut self, id: JobId, epoch: Epoch) -> bool {
        let mut queue = self.queue.iter_mut();
        if let Some(waiting) = queue.find(|waiting| waiting.job == id && waiting.awaits_epoch) {
            (waiting.epoch, waiting.awaits_epoch) = (epoch, false);
            return true;
        }
        match self.managing.jobs.get_mut(&id).filter(|managed| managed.awaits_epoch) {
            Some(managed) => {
                (managed.epoch, managed.awaits_epoch) = (epoch, false);
                true
            }
            None => false,
        }
    }
}

pub(super) fn grant(id: JobId, job: &ActiveJob) -> Option<JobGrant> {
    let node = job.view.coordinator.clone()?;
    let member = job.view.members.get(&node)?;
    let (cluster, address) = (member.cluster.clone(), member.address.clone());
    let coordinator = springtide_net::net::Contact { node, cluster, address };
    Some(JobGrant { job: id, epoch: job.epoch, coordinator, view: job.view.clone() })
}
