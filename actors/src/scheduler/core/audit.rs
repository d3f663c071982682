//! Reconciliation: what the scheduler believes of a running job is compared with what the job's
//! nodes do.
//!
//! Two questions bound how long the two may differ. The node of a job's coordinator is asked every
//! [`AUDIT_EVERY`] ([`Action::Audit`]). A node at work asks about as often whether it still belongs
//! to its job ([`Core::confirm_member`]), and leaves the job if not. So a job without a
//! coordinator, a member that does nothing and a node that works for a finished job last at most
//! that long, and the time of one call.

use std::collections::BTreeSet;
use std::time::Duration;

use springtide_runtime::id::{Incarnation, JobId, NodeId};
use tokio::time::Instant;

use super::Core;
use super::event::Action;
use crate::job::JobError;
use crate::scheduler::{JobAudit, JobState, Stale};

/// Interval between two audits of a running job. Longer than the start of granted nodes takes.
pub(super) const AUDIT_EVERY: Duration = Duration::from_secs(60);

impl Core {
    /// Asks the coordinators' nodes of the jobs whose audit is due.
    pub(super) fn audit_jobs(&mut self, now: Instant, out: &mut Vec<Action>) {
        for (&job, held) in &mut self.jobs {
            if held.state != JobState::Running || held.audit_at.is_none_or(|at| at > now) {
                continue;
            }
            held.audit_at = Some(now + AUDIT_EVERY);
            // A job without a coordinator is being given one.
            let Some(node) = held.view.coordinator.clone() else { continue };
            let Some(life) = self.nodes.get(&node).and_then(|node| node.life.as_ref()) else {
                continue;
            };
            out.push(Action::Audit { job, node, incarnation: life.incarnation });
        }
    }

    /// The node of a job's coordinator has answered an audit. A node that was not reached says
    /// nothing: its site, or the job's other nodes, tell of its loss.
    pub(super) fn audited(
        &mut self,
        id: JobId,
        node: &NodeId,
        incarnation: Incarnation,
        found: Option<JobAudit>,
        now: Instant,
        out: &mut Vec<Action>,
    ) {
        let Some(JobAudit { coordinates, members }) = found else { return };
        let life = self.nodes.get(node).and_then(|node| node.life.as_ref());
        let same_life = life.is_some_and(|life| life.incarnation == incarnation);
        let Some(job) = self.jobs.get_mut(&id) else { return };
        let coordinator = job.view.coordinator.as_ref() == Some(node);
        if job.state != JobState::Running || !coordinator || !same_life {
            return; // about another state of the job than today's
        }
        match (coordinates, members) {
            // It is telling the job's end.
            (true, None) => {}
            (true, Some(members)) => {
                let granted: BTreeSet<&NodeId> = job.grants.values().flatten().collect();
                let idle = |node: &&NodeId| !members.contains(*node) && !granted.contains(node);
                let idle: BTreeSet<NodeId> = job.members.iter().filter(idle).cloned().collect();
                let before = std::mem::replace(&mut job.idle_members, idle.clone());
                for node in idle.intersection(&before) {
                    let what = format!("{id}'s coordinator has no member {node}: it is released");
                    out.push(Action::Odd { what });
                    self.release(id, node, out);
                }
            }
            (false, Some(_)) => {
                let reason = "its coordinator has ended without handing over".to_owned();
                self.seek_coordinator(id, (node.clone(), reason), None, now, out);
            }
            // The client ignores this end if it has another one already.
            (false, None) => {
                let reason = "it had ended the job, and the word of the end was lost".to_owned();
                let error = JobError::NodeLost { node: node.clone(), reason };
                self.fail(id, error, Some(node), out);
            }
        }
    }

    /// Whether a node at work belongs to the job that it works for.
    ///
    /// # Errors
    /// [`Stale::NoMember`]: the node is to leave the job.
    pub fn confirm_member(
        &self,
        job: JobId,
        node: &NodeId,
        incarnation: Incarnation,
    ) -> Result<(), Stale> {
        let life = self.nodes.get(node).and_then(|node| node.life.as_ref());
        let same_life = life.is_some_and(|life| life.incarnation == incarnation);
        let is_member = self.jobs.get(&job).is_some_and(|held| {
            held.members.contains(node) || held.releasing.get(node) == Some(&incarnation)
        });
        let is_released = self.strays.get(node) == Some(&(job, incarnation));
        // Whether a returning job has the node is not known yet.
        if self.is_returning(job) || same_life && (is_member || is_released) {
            return Ok(());
        }
        Err(Stale::NoMember { job, node: node.clone() })
    }
}
