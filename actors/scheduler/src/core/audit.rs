//! Reconciliation of the scheduler's state of running jobs with the actions of their nodes.
//!
//! Two questions bound the duration of a difference. The node of a job's coordinator is asked at
//! each [`AUDIT_EVERY`] ([`Action::Audit`]). A node at work asks about as often whether it still
//! belongs to its job ([`Core::confirm_member`]), and leaves the job if not.
//!
//! These inconsistencies last at most that long, plus the time of one call: a job without a
//! coordinator, an idle member, and a node that works for an ended job.

use std::collections::BTreeSet;
use std::time::Duration;

use springtide_base::id::{Incarnation, JobId, NodeId};
use tokio::time::Instant;

use super::SchedulerCore;
use super::event::SchedulerAction;
use crate::job::JobError;
use crate::scheduler::{AuthorityError, JobAudit, JobState};

/// Interval between two audits of a running job. It exceeds the start of granted nodes.
pub(super) const AUDIT_EVERY: Duration = Duration::from_secs(60);

impl SchedulerCore {
    /// Audits the coordinators' nodes of all jobs whose audit is due.
    pub(super) fn audit_jobs(&mut self, now: Instant, out: &mut Vec<SchedulerAction>) {
        for (&job, held) in &mut self.jobs {
            if held.state != JobState::Running || held.audit_at.is_none_or(|at| at > now) {
                continue;
            }
            held.audit_at = Some(now + AUDIT_EVERY);
            // A coordinator is already being sought.
            let Some(node) = held.view.coordinator.clone() else { continue };
            let Some(registration) =
                self.nodes.get(&node).and_then(|node| node.registration.as_ref())
            else {
                continue;
            };
            out.push(SchedulerAction::Audit { job, node, incarnation: registration.incarnation });
        }
    }

    /// Processes the answer to an audit.
    ///
    /// A missing answer shows nothing: the node's site, or the job's other nodes, report its loss.
    pub(super) fn audited(
        &mut self,
        id: JobId,
        node: &NodeId,
        incarnation: Incarnation,
        found: Option<JobAudit>,
        now: Instant,
        out: &mut Vec<SchedulerAction>,
    ) {
        let Some(JobAudit { coordinates, members }) = found else { return };
        let registration = self.nodes.get(node).and_then(|node| node.registration.as_ref());
        let same_life =
            registration.is_some_and(|registration| registration.incarnation == incarnation);
        let Some(job) = self.jobs.get_mut(&id) else { return };
        let coordinator = job.view.coordinator.as_ref() == Some(node);
        if job.state != JobState::Running || !coordinator || !same_life {
            return; // the answer is about an earlier state of the job
        }
        match (coordinates, members) {
            // It is reporting the job's end.
            (true, None) => {}
            (true, Some(members)) => {
                let granted: BTreeSet<&NodeId> =
                    job.grants.values().flat_map(|grant| &grant.nodes).collect();
                let idle = |node: &&NodeId| !members.contains(*node) && !granted.contains(node);
                let idle: BTreeSet<NodeId> = job.members.iter().filter(idle).cloned().collect();
                let before = std::mem::replace(&mut job.idle_members, idle.clone());
                for node in idle.intersection(&before) {
                    let what = format!(
                        "the coordinator of {id} has no member {node}: the node is released"
                    );
                    out.push(SchedulerAction::ProtocolViolation { what });
                    self.release(id, node, out);
                }
            }
            (false, Some(_)) => {
                let reason = "its coordinator ended without a handover".to_owned();
                self.seek_coordinator(id, (node.clone(), reason), None, now, out);
            }
            // The client ignores this end if it knows of another one.
            (false, None) => {
                let reason = "it ended the job, and the report of the end was lost".to_owned();
                let error = JobError::NodeLost { node: node.clone(), reason };
                self.fail(id, error, Some(node), out);
            }
        }
    }

    /// Checks that a node at work belongs to its job.
    ///
    /// # Errors
    /// [`AuthorityError::NoMember`]: the node must leave the job.
    pub fn confirm_member(
        &self,
        job: JobId,
        node: &NodeId,
        incarnation: Incarnation,
    ) -> Result<(), AuthorityError> {
        let registration = self.nodes.get(node).and_then(|node| node.registration.as_ref());
        let same_life =
            registration.is_some_and(|registration| registration.incarnation == incarnation);
        let is_member = self.jobs.get(&job).is_some_and(|held| {
            held.members.contains(node) || held.releasing.get(node) == Some(&incarnation)
        });
        let is_released = self.strays.get(node) == Some(&(job, incarnation));
        // The nodes of a returning job are not known yet.
        if self.is_returning(job) || same_life && (is_member || is_released) {
            return Ok(());
        }
        Err(AuthorityError::NoMember { job, node: node.clone() })
    }
}
