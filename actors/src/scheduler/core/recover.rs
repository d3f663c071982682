//! After a crash of the scheduler: jobs that its store still has come back.
//!
//! A job that had not been started waits again. Of one that had, the nodes may live and go on with it: they register, and
//! say so, and when it is known who takes part the job is a running one as before. If nobody comes in time it begins anew, under an
//! epoch that fences whoever may come later. Nodes that work for a job of which nothing is known are told to end it. Must not know
//! how anything is stored.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use springtide_runtime::id::{ClusterId, Epoch, Incarnation, JobId, NodeId};
use springtide_runtime::membership::View;
use tokio::time::Instant;

use super::audit::AUDIT_EVERY;
use super::event::{Action, Begun, Event, Recovered};
use super::managed::{Managed, Stage, Use};
use super::pool::State;
use super::{Core, Job};
use crate::hardware::Hardware;
use crate::job::JobError;
use crate::scheduler::manager::{Event as News, Need};
use crate::scheduler::{
    HandOver, JobState, JobStatus, NodeFreed, Registered, Submit, WithdrawNodes, Work,
};

/// Nodes of a job that was running are waited for so long. They notice that the former scheduler is gone by silence, look for a new
/// one all the time, and give up after a minute.
pub(super) const RETURN_WITHIN: Duration = Duration::from_secs(45);
/// When the first of them is there, the others follow within this time, or are lost.
pub(super) const GATHER: Duration = Duration::from_secs(5);

/// A job that has lost all its nodes begins anew; after so many losses it fails, for it may be what they die of.
const LOSSES_MAX: u32 = 3;

/// A job of which it is not known yet whether its nodes live.
#[derive(Debug)]
pub(super) struct Returning {
    /// The last one issued.
    epoch: Epoch,
    submit: Box<Submit>,
    need: Need,
    limit: Option<u32>,
    begun: Begun,
    /// The newest that any of its nodes has.
    view: Option<View>,
    came: BTreeSet<NodeId>,
    until: Instant,
    /// A view is known: the others are not waited for much longer.
    gathering: bool,
    /// What its coordinator said meanwhile: it has been taken at its word.
    words: Vec<Event>,
}

#[cfg(test)]
impl Returning {
    /// How many events are kept until the job is known.
    pub(super) fn words(&self) -> usize {
        self.words.len()
    }
}

/// Whether a node that registers may tell the scheduler who takes part in its job: it is a member in a whole view, whose epoch is
/// one that was issued.
fn speaks_for(view: &View, node: &NodeId, issued: Epoch) -> bool {
    !view.partial && view.members.contains_key(node) && view.epoch <= issued
}

impl Core {
    /// The store still has a job.
    pub(super) fn recovered(&mut self, found: Recovered, now: Instant, out: &mut Vec<Action>) {
        let Recovered { job, epoch, submit, begun, limit } = found;
        let mut submit = submit;
        let Some(need) = submit.need.take() else {
            // Nobody submits such a one to be kept.
            return out.push(Action::Forget { job });
        };
        submit.params.managed = true;
        submit.params.min_nodes = submit.params.min_nodes.max(need.least());
        let Some(begun) = begun else {
            let managed = Managed { limit, ..Managed::waiting(epoch, submit) };
            return self.submit_managed(job, managed, need, now, out);
        };
        let until = now + RETURN_WITHIN;
        let returning = Returning {
            epoch,
            submit,
            need,
            limit,
            begun,
            view: None,
            came: BTreeSet::new(),
            until,
            gathering: false,
            words: Vec::new(),
        };
        self.returning.insert(job, returning);
    }

    /// Keeps what the coordinator of a returning job says until the job is known. Gives back what is of no such job.
    pub(super) fn keep_word(&mut self, event: Event) -> Option<Event> {
        let (job, epoch) = match &event {
            Event::HandOver(HandOver { job, epoch, .. })
            | Event::Freed(NodeFreed { job, epoch, .. })
            | Event::Withdraw(WithdrawNodes { job, epoch, .. }) => (*job, *epoch),
            Event::Request(request) => (request.job, request.epoch),
            Event::RootAdvanced(advanced) => (advanced.job, advanced.epoch),
            Event::Subscribe(subscribe) => (subscribe.job, subscribe.epoch),
            Event::MemberSilent(silent) => (silent.job, silent.epoch),
            _ => return Some(event),
        };
        match self.returning.get_mut(&job).filter(|returning| epoch <= returning.epoch) {
            Some(returning) => {
                returning.words.push(event);
                None
            }
            None => Some(event),
        }
    }

    /// A node that registers works for a job.
    pub(super) fn works_for(&mut self, id: &NodeId, work: &Work, out: &mut Vec<Action>) {
        let closing = |node: &&mut super::Node| node.state == State::Closing;
        let Some(node) = self.nodes.get_mut(id).filter(|node| !closing(node)) else { return };
        if let Some(returning) = self.returning.get_mut(&work.job) {
            node.state = State::Busy(work.job);
            returning.came.insert(id.clone());
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
            node.state = State::Busy(work.job);
            return;
        }
        // Its job is over, or began anew, or this node was given up for it.
        node.state = State::Busy(work.job);
        let known = self.known().contains(&work.job);
        self.release_stray(work.job, id.clone(), !known, out);
    }

    /// A node that had come back is lost after all.
    pub(super) fn lost_again(&mut self, job: JobId, id: &NodeId) {
        if let Some(returning) = self.returning.get_mut(&job) {
            returning.came.remove(id);
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

    /// Whether a running job is not known again yet: its coordinator is to have patience.
    pub(super) fn is_returning(&self, id: JobId) -> bool {
        self.returning.contains_key(&id)
    }

    /// The last epoch that was issued for a returning job, and the newest view of its nodes.
    pub(super) fn returning_view(&self, id: JobId) -> Option<(Epoch, Option<&View>)> {
        let returning = self.returning.get(&id)?;
        Some((returning.epoch, returning.view.as_ref()))
    }

    /// The submission of a returning job.
    pub(super) fn returning_submit(&self, id: JobId) -> Option<&Submit> {
        self.returning.get(&id).map(|returning| &*returning.submit)
    }

    /// Jobs whose nodes may come back.
    pub(super) fn returning_due(&self) -> Option<Instant> {
        let jobs = self.returning.values().map(|job| job.until);
        jobs.chain(self.awaited.values().map(|(_, until)| *until)).min()
    }

    /// Goes on with jobs whose nodes are there, begins others anew, and gives up nodes that do not come back.
    pub(super) fn return_jobs(&mut self, now: Instant, out: &mut Vec<Action>) {
        for id in self.returning.keys().copied().collect::<Vec<_>>() {
            let Some(returning) = self.returning.get_mut(&id) else { continue };
            if returning.view.is_some() && !std::mem::replace(&mut returning.gathering, true) {
                returning.until = returning.until.min(now + GATHER);
            }
            let all = returning
                .view
                .as_ref()
                .is_some_and(|view| view.members.keys().all(|node| returning.came.contains(node)));
            if !all && returning.until > now && !self.nobody_left(id) {
                continue;
            }
            let Some(returning) = self.returning.remove(&id) else { continue };
            match returning.view.clone() {
                Some(view) if view.members.keys().any(|n| self.may_live(n, &returning.came)) => {
                    self.resume(id, returning, view, now, out);
                }
                _ => self.begin_anew(id, returning, out),
            }
        }
        let late = |(_, (_, until)): &(&NodeId, &(JobId, Instant))| *until <= now;
        let late: Vec<NodeId> =
            self.awaited.iter().filter(late).map(|(node, _)| node.clone()).collect();
        for id in late {
            self.awaited.remove(&id);
            let Some(node) = self.nodes.get(&id) else { continue };
            let cluster = node.cluster.clone();
            let reason = "it did not come back to the scheduler".to_owned();
            if node.state == State::Off {
                continue;
            }
            self.lost(&id, &reason, true, now, out);
            out.push(Action::Replace { cluster, nodes: vec![id], program: None, reason });
        }
    }

    /// Where all sites have said what there is, and no node of a job's clusters is left that may work for it, nobody is waited for.
    fn nobody_left(&self, id: JobId) -> bool {
        let Some(returning) = self.returning.get(&id) else { return false };
        let of = |cluster: &ClusterId| self.sites.get(cluster);
        let clusters: BTreeSet<&ClusterId> =
            returning.begun.placed.parts.iter().map(|part| &part.cluster).collect();
        !returning.need.spreads
            && returning.came.is_empty()
            && clusters.iter().all(|cluster| {
                let left = |node: &NodeId| self.nodes[node].state == State::Starting;
                of(cluster).is_some_and(|site| !site.nodes.iter().any(left))
            })
    }

    /// What a returning job is, for people.
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

    /// A job that is returning has ended before it was known again. Returns whether it is one that runs now.
    pub(super) fn returned_over(
        &mut self,
        id: JobId,
        epoch: Epoch,
        now: Instant,
        out: &mut Vec<Action>,
    ) {
        let ours = |returning: &Returning| epoch == returning.epoch;
        if !self.returning.get(&id).is_some_and(ours) {
            return;
        }
        let Some(returning) = self.returning.remove(&id) else { return };
        match returning.view.clone() {
            Some(view) => self.resume(id, returning, view, now, out),
            None => self.drop_returning(id, returning, true, out),
        }
    }

    /// A job that is returning is not wanted any more. Returns whether it was returning.
    pub(super) fn cancel_returning(
        &mut self,
        id: JobId,
        reason: &str,
        out: &mut Vec<Action>,
    ) -> bool {
        let Some(returning) = self.returning.remove(&id) else { return false };
        let error = JobError::Cancelled { reason: reason.to_owned() };
        out.push(Action::Ended { job: id, client: returning.submit.client.clone(), error });
        self.drop_returning(id, returning, true, out);
        true
    }

    /// What came of a job ends it.
    fn drop_returning(
        &mut self,
        id: JobId,
        returning: Returning,
        over: bool,
        out: &mut Vec<Action>,
    ) {
        for node in returning.came {
            self.release_stray(id, node, over, out);
        }
        if over {
            out.push(Action::Forget { job: id });
        }
    }

    /// Tells a node that works for a job without being a member of it to end that.
    pub(super) fn release_stray(
        &mut self,
        id: JobId,
        node: NodeId,
        over: bool,
        out: &mut Vec<Action>,
    ) {
        let life = self.nodes.get(&node).and_then(|node| node.life.as_ref());
        let Some(incarnation) = life.map(|life| life.incarnation) else { return };
        self.strays.insert(node.clone(), (id, incarnation));
        let epoch = self.epoch_of(id);
        out.push(Action::Release { node, incarnation, job: id, over, epoch });
    }

    /// The epoch of a job; the first where nothing is known of it.
    fn epoch_of(&self, id: JobId) -> Epoch {
        let running = self.jobs.get(&id).map(|job| job.epoch);
        let queued = || Some(self.queue.iter().find(|waiting| waiting.job == id)?.epoch);
        running
            .or_else(queued)
            .or_else(|| Some(self.managing.jobs.get(&id)?.epoch))
            .unwrap_or_default()
    }

    /// A node refuses a job, for it works for another one of which it is no member: it is to end
    /// that.
    pub(super) fn release_from_other(&self, node: &NodeId, other: JobId, out: &mut Vec<Action>) {
        let Some(known) = self.nodes.get(node) else { return };
        let Some(incarnation) = known.life.as_ref().map(|life| life.incarnation) else { return };
        if self.confirm_member(other, node, incarnation).is_ok() {
            return;
        }
        let over = !self.known().contains(&other);
        let (node, epoch) = (node.clone(), self.epoch_of(other));
        out.push(Action::Release { node, incarnation, job: other, over, epoch });
    }

    /// A job begins again from its start, under a new epoch.
    fn begin_anew(&mut self, id: JobId, returning: Returning, out: &mut Vec<Action>) {
        let (epoch, need, limit) = (returning.epoch, returning.need.clone(), returning.limit);
        let submit = returning.submit.clone();
        let holder = returning.view.as_ref().filter(|view| view.epoch == epoch);
        let former = holder.and_then(|view| Some((epoch, view.coordinator.clone()?)));
        self.drop_returning(id, returning, false, out);
        let what = format!("{id} begins anew: none of its nodes came back");
        out.push(Action::Odd { what });
        let job = Managed { limit, begun: true, former, ..Managed::waiting(epoch, submit) };
        self.managing.jobs.insert(id, job);
        self.anew.insert(id, need);
        out.push(Action::NewEpoch { job: id, known: epoch });
    }

    /// The epoch of a job that begins anew is on disk.
    pub(super) fn began_anew(
        &mut self,
        id: JobId,
        epoch: Epoch,
        now: Instant,
        out: &mut Vec<Action>,
    ) -> bool {
        let Some(need) = self.anew.remove(&id) else { return false };
        let Some(managed) = self.managing.jobs.remove(&id) else { return true };
        self.submit_managed(id, Managed { epoch, ..managed }, need, now, out);
        true
    }

    /// A job has lost all nodes that could go on with it. Returns whether it begins anew: it does unless that has happened too
    /// often.
    pub(super) fn lost_all(
        &mut self,
        id: JobId,
        node: &NodeId,
        reason: &str,
        out: &mut Vec<Action>,
    ) -> bool {
        let Some(need) = self.managing.need(id) else { return false };
        let Some(held) = self.jobs.get(&id) else { return false };
        let (epoch, issued_to) = (held.epoch, held.issued_to.clone());
        let Some(managed) = self.managing.jobs.get_mut(&id) else { return false };
        if managed.stage != Stage::Running || managed.losses + 1 >= LOSSES_MAX {
            return false;
        }
        managed.losses += 1;
        (managed.again, managed.epoch) = (Some(need), epoch);
        managed.former = issued_to.map(|node| (epoch, node));
        out.push(Action::Anew { job: id, client: managed.submit.client.clone() });
        let what =
            format!("{id} begins anew, for it has lost its nodes, {node} the last: {reason}");
        out.push(Action::Odd { what });
        self.release_members(id, out);
        true
    }

    /// Nothing is left of a job: if it is to begin anew, it does.
    pub(super) fn begin_again(&mut self, id: JobId, out: &mut Vec<Action>) -> bool {
        let managed = self.managing.jobs.get_mut(&id);
        let Some((need, managed)) = managed.and_then(|m| Some((m.again.take()?, m))) else {
            return false;
        };
        let Managed { epoch, losses, limit, .. } = *managed;
        let former = managed.former.take();
        let waits = Managed::waiting(epoch, managed.submit.clone());
        *managed = Managed { losses, limit, begun: true, former, ..waits };
        self.anew.insert(id, need);
        out.push(Action::NewEpoch { job: id, known: epoch });
        true
    }

    /// A job runs: these are its nodes.
    fn resume(
        &mut self,
        id: JobId,
        returning: Returning,
        view: View,
        now: Instant,
        out: &mut Vec<Action>,
    ) {
        let Returning { epoch, submit, need, limit, begun, came, words, .. } = returning;
        let mut members = BTreeSet::new();
        let (mut late, mut gone) = (Vec::new(), Vec::new());
        for (name, member) in view.members.iter() {
            if !self.may_live(name, &came) {
                gone.push(name.clone());
                continue;
            }
            let Some(node) = self.nodes.get_mut(name) else { continue };
            members.insert(name.clone());
            if came.contains(name) {
                continue;
            }
            // It is known from the others that it takes part.
            late.push(name.clone());
            if node.life.is_none() {
                node.life = Some(Registered {
                    cluster: member.cluster.clone(),
                    node: name.clone(),
                    incarnation: member.incarnation,
                    address: member.address.clone(),
                    threads: member.threads,
                    fingerprint: submit.fingerprint,
                    pid: 0,
                    hardware: Hardware::default(),
                    work: None,
                });
            }
        }
        for node in &members {
            if let Some(node) = self.nodes.get_mut(node) {
                node.state = State::Busy(id);
            }
            self.managing.ledger.insert(node.clone(), (id, Use::Computes));
        }
        let mut sizes: BTreeMap<ClusterId, u32> = BTreeMap::new();
        for node in &members {
            *sizes.entry(self.nodes[node].cluster.clone()).or_default() += 1;
        }
        let mut managed = Managed { limit, begun: true, ..Managed::waiting(epoch, submit.clone()) };
        managed.stage = Stage::Running;
        self.managing.jobs.insert(id, managed);
        let mut job = Job::assigning(view.epoch, *submit, view.clone(), members.clone());
        job.state = JobState::Running;
        job.unanswered.clear();
        (job.since, job.audit_at) = (Some(now), Some(now + AUDIT_EVERY));
        self.jobs.insert(id, job);
        self.poll(now, out);
        let sizes = Box::new(sizes);
        let Begun { placed, at } = begun;
        let need = Box::new(need);
        self.tell(News::Resumed { job: id, need, placed, since: at, sizes }, now, out);
        if limit.is_some() {
            self.tell(News::Limit { job: id, most: limit }, now, out);
        }
        // Who was released by the former scheduler and is no member works on.
        for node in came.difference(&members) {
            self.release_stray(id, node.clone(), false, out);
        }
        for node in late {
            self.awaited.insert(node, (id, now + RETURN_WITHIN));
        }
        // What was said while the job was not known counts now, in its order.
        self.replay.extend(words);
        // Another was being made coordinator when the scheduler died: whether it is one nobody can know, so both are fenced.
        let Some(job) = self.jobs.get_mut(&id) else { return };
        let taken_over = job.epoch < epoch;
        if taken_over {
            job.epoch = epoch;
            let coordinator = job.view.coordinator.clone();
            if let Some(coordinator) = coordinator.filter(|node| members.contains(node)) {
                // It lives, and may go on: it is the first to be asked.
                let reason = "the scheduler died while another was to take its place".to_owned();
                let heir = Some(coordinator.clone());
                self.seek_coordinator(id, (coordinator, reason), heir, now, out);
            }
        }
        let reason = "it was gone when the scheduler came back";
        let coordinator = self.jobs.get(&id).and_then(|job| job.view.coordinator.clone());
        // Else one is being sought, which is told of those that live.
        let Some(coordinator) = coordinator else { return };
        if gone.contains(&coordinator) {
            return self.coordinator_lost(id, &coordinator, reason, now, out);
        }
        for node in gone {
            let (coordinator, reason) = (coordinator.clone(), reason.to_owned());
            out.push(Action::MemberLost { job: id, coordinator, node, reason });
        }
    }

    /// Whether a member of a job may be at work for it: it has come back, or the process that it was may still come. What is there under
    /// its name for somebody else is another.
    fn may_live(&self, id: &NodeId, came: &BTreeSet<NodeId>) -> bool {
        let comes = |node: &super::Node| node.state == State::Starting && node.reserved.is_none();
        came.contains(id) || self.nodes.get(id).is_some_and(comes)
    }

    /// A node that worked for a job of which nothing is known has ended that, or has not.
    pub(super) fn stray_released(
        &mut self,
        id: JobId,
        node: &NodeId,
        incarnation: Incarnation,
        ok: bool,
        now: Instant,
        out: &mut Vec<Action>,
    ) -> bool {
        if self.strays.get(node) != Some(&(id, incarnation)) {
            return false;
        }
        self.strays.remove(node);
        let Some(known) = self.nodes.get(node) else { return true };
        if known.life.as_ref().is_some_and(|life| life.incarnation == incarnation) {
            self.free(id, node, ok, now, out);
        }
        true
    }
}
