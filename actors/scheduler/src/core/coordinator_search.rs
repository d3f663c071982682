//! The search for a job's next coordinator after a loss or handover, under a new epoch.
//!
//! Each attempt has an epoch of its own. A node that did not answer may have started all the same,
//! and its later messages must be refused.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use springtide_base::id::{Epoch, JobId, NodeId, TaskPath};
use springtide_work::work::LeasedTask;
use tokio::time::Instant;

use super::event::{SchedulerAction, TakeOverError};
use super::request::OpenRequest;
use super::{ActiveJob, SchedulerCore};
use crate::job::JobError;
use crate::poison::{DeadNode, PoisonVerdict};
use crate::scheduler::{HandOver, JobState, RootAdvanced, TakeOver};

/// State of a job without a coordinator.
#[derive(Debug)]
pub(super) struct CoordinatorSearch {
    /// Lost or handing-over node, and the reason.
    lost: NodeId,
    reason: String,
    /// Proposed successor of a handover; absent after a loss.
    successor: Option<NodeId>,
    /// Nodes whose attempts failed.
    tried: BTreeSet<NodeId>,
    /// Node of the present attempt.
    asked: Option<NodeId>,
    /// Members that the present attempt was sent.
    notified_members: BTreeSet<NodeId>,
    /// Whether the search waits for the verdict about the root.
    held_up: bool,
    /// Members of `tried` that did not answer.
    unanswered: BTreeSet<NodeId>,
    /// Time of the next order to the unanswered members. Set when no other candidate is left.
    retry_at: Option<Instant>,
    /// Time after which the scheduler repeats no order.
    retry_until: Instant,
}

/// Delay before the scheduler repeats an unanswered order.
const RETRY_DELAY: Duration = Duration::from_secs(1);
/// Time for which the scheduler repeats orders. A worker that has not reached the head for as long
/// ends.
const RETRY_TIMEOUT: Duration = Duration::from_secs(60);

impl CoordinatorSearch {
    /// Removes a member that the next coordinator has already released.
    pub(super) fn member_freed(&mut self, node: &NodeId) {
        self.notified_members.remove(node);
    }
}

impl SchedulerCore {
    /// Handles the loss of the coordinator's node, which is not a member any longer.
    pub(super) fn coordinator_lost(
        &mut self,
        id: JobId,
        lost: &NodeId,
        reason: &str,
        now: Instant,
        out: &mut Vec<SchedulerAction>,
    ) {
        self.seek_coordinator(id, (lost.clone(), reason.to_owned()), None, now, out);
    }

    /// Handles the handover of a coordinator whose root has stopped.
    pub(super) fn hand_over(
        &mut self,
        order: &HandOver,
        now: Instant,
        out: &mut Vec<SchedulerAction>,
    ) {
        let HandOver { job: id, epoch, to, reason } = order;
        if self.check(*id, *epoch).is_err() {
            return;
        }
        if self.jobs.get(id).is_some_and(|job| job.state == JobState::Assigning) {
            // Its root has run, so that all workers have the job: their answers are late.
            self.start_running(*id, now, out);
        }
        let coordinator = self.jobs.get(id).and_then(|job| job.view.coordinator.clone());
        // Otherwise the coordinator is lost, and another is being sought.
        let Some(from) = coordinator else { return };
        self.seek_coordinator(*id, (from, reason.clone()), Some(to.clone()), now, out);
    }

    pub(super) fn seek_coordinator(
        &mut self,
        id: JobId,
        (lost, reason): (NodeId, String),
        successor: Option<NodeId>,
        now: Instant,
        out: &mut Vec<SchedulerAction>,
    ) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        if let Some(reason) = job.cancelled.clone() {
            // The coordinator that got the order is lost, or was replaced.
            return self.fail(id, JobError::Cancelled { reason }, Some(&lost), out);
        }
        // The next coordinator requests nodes again. Unacknowledged grants are concluded.
        (job.open, job.subscription) = (OpenRequest::default(), None);
        let grants = std::mem::take(&mut job.grants);
        for grant in grants.into_keys() {
            self.grant_settled(id, grant, now, out);
        }
        let Some(job) = self.jobs.get_mut(&id) else { return };
        job.view.coordinator = None;
        // The reports concern the former coordinator.
        job.silence_reports.clear();
        let (tried, notified_members) = (BTreeSet::new(), BTreeSet::new());
        // Otherwise the root would kill more nodes during its judgement.
        let held_up = job.blame_at.is_some() && job.poison.verdict(now) != PoisonVerdict::Clean;
        job.search = Some(CoordinatorSearch {
            lost,
            reason,
            successor,
            tried,
            asked: None,
            notified_members,
            held_up,
            unanswered: BTreeSet::new(),
            retry_at: None,
            retry_until: now + RETRY_TIMEOUT,
        });
        if !held_up {
            self.find_coordinator(id, now, out);
        }
    }

    /// Records the death of a former member. If it ran the root, the root may be the cause.
    pub(super) fn member_died(
        &mut self,
        id: JobId,
        node: &NodeId,
        reason: &str,
        was_leaving: bool,
        now: Instant,
    ) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        let Some(known) = self.nodes.get(node) else { return };
        let Some(registration) = &known.registration else { return };
        let (incarnation, cluster) = (registration.incarnation, known.cluster.clone());
        let dead = DeadNode {
            node: node.clone(),
            incarnation,
            cluster,
            reason: reason.to_owned(),
            leaving: was_leaving,
        };
        let of = |n: &NodeId| self.nodes.get(n).map(|node| &node.cluster);
        let clusters: BTreeSet<_> = job.members.iter().filter_map(of).collect();
        job.poison.record_deaths([dead], |cluster| clusters.contains(cluster), now);
        if job.view.coordinator.as_ref() == Some(node) {
            let task = LeasedTask { path: TaskPath::root(), name: job.name.clone() };
            job.poison.record_held(node, incarnation, vec![task]);
            job.blame_at = Some(now);
        }
    }

    /// Records progress of a job's root. Progress beyond all earlier roots absolves the root.
    pub(super) fn root_advanced(&mut self, advanced: &RootAdvanced) {
        let RootAdvanced { job: id, epoch, reached } = advanced;
        if self.check(*id, *epoch).is_err() {
            return;
        }
        let Some(job) = self.jobs.get_mut(id) else { return };
        if job.reached.merge_max(*reached) {
            job.poison.clear(&TaskPath::root());
        }
    }

    /// Ends the jobs whose roots killed several nodes. Others continue.
    pub(super) fn blame_roots(&mut self, now: Instant, out: &mut Vec<SchedulerAction>) {
        let due = |at: Option<Instant>| at.is_some_and(|at| at <= now);
        let due = self.jobs.iter().filter(|(_, job)| due(job.blame_at)).map(|(&id, _)| id);
        for id in due.collect::<Vec<_>>() {
            let Some(job) = self.jobs.get_mut(&id) else { continue };
            job.blame_at = None;
            if job.state != JobState::Running {
                continue;
            }
            match job.poison.verdict(now) {
                PoisonVerdict::Clean => {
                    let held_up = job.search.as_mut().map(|search| &mut search.held_up);
                    if held_up.is_some_and(std::mem::take) {
                        self.find_coordinator(id, now, out);
                    }
                }
                PoisonVerdict::Wait(at) => job.blame_at = Some(at),
                PoisonVerdict::Poisoned(poisoned) => self.fail(id, poisoned.into(), None, out),
            }
        }
    }

    /// Makes the unanswered members candidates again, if no other candidate is left: the network
    /// may have lost the order or its answer.
    pub(super) fn retry_take_overs(&mut self, now: Instant, out: &mut Vec<SchedulerAction>) {
        let due = |job: &ActiveJob| job.search.as_ref()?.retry_at.filter(|at| *at <= now);
        let due = self.jobs.iter().filter(|(_, job)| due(job).is_some()).map(|(&id, _)| id);
        for id in due.collect::<Vec<_>>() {
            let search = self.jobs.get_mut(&id).and_then(|job| job.search.as_mut());
            let Some(search) = search else { continue };
            search.retry_at = None;
            let unanswered = std::mem::take(&mut search.unanswered);
            search.tried.retain(|node| !unanswered.contains(node));
            self.find_coordinator(id, now, out);
        }
    }

    /// Time at which [`Core::retry_take_overs`] is due.
    pub(super) fn take_overs_due(&self) -> Option<Instant> {
        self.jobs.values().filter_map(|job| job.search.as_ref()?.retry_at).min()
    }

    fn find_coordinator(&mut self, id: JobId, now: Instant, out: &mut Vec<SchedulerAction>) {
        let has_candidate = self.candidate(id).is_some();
        let Some(job) = self.jobs.get_mut(&id) else { return };
        let Some(search) = &mut job.search else { return };
        if job.state == JobState::Running {
            if has_candidate {
                out.push(SchedulerAction::NewEpoch { job: id, known: job.epoch });
                return;
            }
            if now < search.retry_until && !search.unanswered.is_disjoint(&job.members) {
                search.retry_at = Some(now + RETRY_DELAY);
                return;
            }
        }
        let (node, reason) = (search.lost.clone(), search.reason.clone());
        if self.lost_all(id, &node, &reason, out) {
            return;
        }
        let reason = format!("{reason}; no other node of the job could take over");
        self.fail(id, JobError::NodeLost { node, reason }, None, out);
    }

    /// Selects the next candidate. The criteria, in order:
    ///
    /// - the proposed successor
    /// - not the node that handed over
    /// - reachable
    /// - no failed attempt in its cluster, since clusters fail as a whole
    /// - a member from the start, since only the former coordinator knew whether a granted node had
    ///   joined
    /// - not under drain
    /// - not in the cluster of the lost node
    fn candidate(&self, id: JobId) -> Option<NodeId> {
        let job = self.jobs.get(&id)?;
        let search = job.search.as_ref()?;
        let home = self.nodes.get(&search.lost).map(|node| &node.cluster);
        let fits = |node: &&NodeId| !search.tried.contains(*node);
        let cluster_of = |node: &NodeId| self.nodes.get(node).map(|known| &known.cluster);
        let failed_clusters: BTreeSet<_> = search.tried.iter().filter_map(cluster_of).collect();
        job.members
            .iter()
            .filter(fits)
            .min_by_key(|node| {
                let known = self.nodes.get(*node);
                let drained = known.is_some_and(|known| known.drain.is_some());
                let near = known.map(|known| &known.cluster) == home;
                let (successor, former) = (search.successor.as_ref(), **node == search.lost);
                let granted = job.granted.contains(*node);
                let unsure = self.unreachable.contains(*node);
                let failed_cluster =
                    known.is_some_and(|known| failed_clusters.contains(&known.cluster));
                (
                    successor != Some(*node),
                    former,
                    unsure,
                    failed_cluster,
                    granted,
                    drained,
                    near,
                    (*node).clone(),
                )
            })
            .cloned()
    }

    /// Continues a takeover once its epoch is on disk.
    pub(super) fn epoch_issued(
        &mut self,
        id: JobId,
        epoch: Epoch,
        now: Instant,
        out: &mut Vec<SchedulerAction>,
    ) {
        if self.start_renewed(id, epoch) || self.restart_renewed(id, epoch, now, out) {
            return;
        }
        let Some(node) = self.candidate(id) else {
            // A restart needs a later epoch than this one, which no node uses.
            let is_sought = self.jobs.get(&id).is_some_and(|job| job.search.is_some());
            if let Some(managed) = self.managing.jobs.get_mut(&id).filter(|_| is_sought) {
                managed.epoch = managed.epoch.max(epoch);
            }
            return self.find_coordinator(id, now, out);
        };
        let Some(job) = self.jobs.get_mut(&id) else { return };
        let Some(search) = job.search.as_mut() else { return };
        (job.epoch, job.issued_to) = (epoch, Some(node.clone()));
        search.asked = Some(node.clone());
        search.tried.insert(node.clone());
        let incarnation_of = |node: &NodeId| {
            let registration = self.nodes.get(node)?.registration.as_ref()?;
            Some((node.clone(), registration.incarnation))
        };
        let members: BTreeMap<_, _> = job.members.iter().filter_map(incarnation_of).collect();
        search.notified_members = members.keys().cloned().collect();
        let (lost, reason) = (search.lost.clone(), search.reason.clone());
        let handed = search.successor.is_some() && members.contains_key(&lost);
        let elapsed = job.since.map_or(Duration::ZERO, |at| now.saturating_duration_since(at));
        let elapsed_ms = u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX);
        let order = TakeOver { job: id, epoch, members, lost, reason, handed, elapsed_ms };
        out.push(SchedulerAction::TakeOver { node, order: Box::new(order) });
    }

    /// Processes the answer to a takeover order, or its absence.
    pub(super) fn took_over(
        &mut self,
        id: JobId,
        node: &NodeId,
        answer: Result<(), TakeOverError>,
        now: Instant,
        out: &mut Vec<SchedulerAction>,
    ) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        let Some(search) = &mut job.search else { return };
        if search.asked.as_ref() != Some(node) {
            return;
        }
        search.asked = None;
        match answer {
            Ok(()) if job.members.contains(node) => {
                let notified_members = std::mem::take(&mut search.notified_members);
                job.search = None;
                job.view.coordinator = Some(node.clone());
                // The new coordinator does not know of drains.
                for member in &job.members {
                    if let Some(mark) = self.nodes.get_mut(member).and_then(|n| n.drain.as_mut()) {
                        (mark.asked, mark.not_before) = (false, None);
                    }
                }
                for lost in notified_members
                    .into_iter()
                    .filter(|notified_members| !job.members.contains(notified_members))
                {
                    let reason = "it was lost during the takeover".to_owned();
                    let coordinator = node.clone();
                    out.push(SchedulerAction::MemberLost {
                        job: id,
                        coordinator,
                        node: lost,
                        reason,
                        excused: false,
                    });
                }
            }
            Ok(()) => self.find_coordinator(id, now, out),
            Err(error) => {
                if matches!(error, TakeOverError::Unanswered(_)) {
                    search.unanswered.insert(node.clone());
                }
                out.push(SchedulerAction::ProtocolViolation {
                    what: format!("node {node} does not take {id} over: {error}"),
                });
                self.find_coordinator(id, now, out);
            }
        }
    }
}
