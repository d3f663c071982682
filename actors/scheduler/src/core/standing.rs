//! A sender's places in a job, by which messages about jobs are judged.
//!
//! This module must not depend on the messages.

use springtide_base::id::{Epoch, JobId, NodeId, Peer};
use springtide_remote::MessageOrigin;

use super::SchedulerCore;
use crate::admit::{Places, Principal, SenderStanding, outside};
use crate::scheduler::{JobAuthority, Submit};

impl SchedulerCore {
    /// Returns the submitter of a known job.
    pub fn principal(&self, id: JobId) -> Option<&Principal> {
        if let Some(job) = self.jobs.get(&id) {
            return job.principal.as_ref();
        }
        self.submission(id)?.principal.as_ref()
    }

    /// Submission of a job that does not run.
    fn submission(&self, id: JobId) -> Option<&Submit> {
        let queued = self.queue.iter().find(|waiting| waiting.job == id);
        queued
            .map(|waiting| &*waiting.submit)
            .or_else(|| self.managing.jobs.get(&id).map(|managed| &*managed.submit))
            .or_else(|| self.returning_submit(id))
    }

    /// Last epoch of a job that restarts, and the node that it was issued to. That node may have
    /// ended the job already, and report so.
    fn former_epoch(&self, id: JobId) -> Option<&(Epoch, NodeId)> {
        if let Some(waiting) = self.queue.iter().find(|waiting| waiting.job == id) {
            return waiting.attempts.former.as_ref();
        }
        self.managing.jobs.get(&id)?.former.as_ref()
    }

    /// Returns the standing of a sender in a job.
    pub fn standing(&self, from: &MessageOrigin, id: JobId) -> SenderStanding {
        let owner = self.principal(id).is_some_and(|principal| principal.is(from));
        let places = outside(from, Some(&self.me.node)).or(Places::OWNER.when(owner));
        if let Some(job) = self.jobs.get(&id) {
            let coordinates = job.issued_to.as_ref() == Some(&from.peer.node);
            let member = self.is_member(id, &from.peer);
            let places = places.or(Places::COORDINATOR.when(coordinates));
            let places = places.or(Places::MEMBER.when(member));
            return SenderStanding {
                known: true,
                places,
                epoch: Some(job.epoch),
                is_uncertain: false,
            };
        }
        if let Some((epoch, view)) = self.returning_view(id) {
            let of = |view: &springtide_net::membership::View| {
                let coordinates = view.coordinator.as_ref() == Some(&from.peer.node);
                let member = view.members.get(&from.peer.node);
                let member = member.is_some_and(|it| it.incarnation == from.peer.incarnation);
                let current = view.epoch == epoch;
                Places::COORDINATOR.when(coordinates && current).or(Places::MEMBER.when(member))
            };
            let places = places.or(view.map_or(Places::NONE, of));
            // Its nodes are still registering.
            return SenderStanding { known: true, places, epoch: Some(epoch), is_uncertain: true };
        }
        let former = self.former_epoch(id);
        let held = former.is_some_and(|(_, node)| *node == from.peer.node);
        let places = places.or(Places::COORDINATOR.when(held));
        let (known, epoch) = (self.job_status(id).is_some(), former.map(|(epoch, _)| *epoch));
        SenderStanding { known, places, epoch, is_uncertain: false }
    }

    /// Returns who has authority over a job, and whether `node` is a member.
    pub fn authority(&self, id: JobId, node: &NodeId) -> Option<JobAuthority> {
        if let Some(job) = self.jobs.get(&id) {
            return Some(JobAuthority {
                epoch: job.epoch,
                coordinator: job.issued_to.clone(),
                client: Some(job.client.node.clone()),
                member: job.members.contains(node),
            });
        }
        if let Some((epoch, node)) = self.former_epoch(id) {
            return Some(JobAuthority {
                epoch: *epoch,
                coordinator: Some(node.clone()),
                client: self.submission(id).map(|submit| submit.client.node.clone()),
                member: false,
            });
        }
        let (epoch, view) = self.returning_view(id)?;
        let current = view.filter(|view| view.epoch == epoch);
        Some(JobAuthority {
            epoch,
            coordinator: current.and_then(|view| view.coordinator.clone()),
            client: self.returning_submit(id).map(|submit| submit.client.node.clone()),
            member: view.is_some_and(|view| view.members.contains_key(node)),
        })
    }

    /// Whether this incarnation of a node is a member of a job.
    fn is_member(&self, id: JobId, peer: &Peer) -> bool {
        let member = self.jobs.get(&id).is_some_and(|job| job.members.contains(&peer.node));
        let registration = self.nodes.get(&peer.node).and_then(|node| node.registration.as_ref());
        member
            && registration.is_some_and(|registration| registration.incarnation == peer.incarnation)
    }
}
