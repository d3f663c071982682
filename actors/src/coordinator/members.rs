//! Changes of a running job's members: granted nodes join, and leaving nodes leave in order. This
//! module does not know the reasons.

use std::collections::BTreeMap;
use std::time::Duration;

use actix::prelude::*;
use springtide_protocol::job::{Assign, AssignError, NoteKind};
use springtide_protocol::names::{SCHEDULER, WORKER};
use springtide_protocol::receivers::{Scheduler, Worker};
use springtide_protocol::scheduler::{AskLeave, GrantedNode, NodeFreed, NodeGrant, ReleaseReason};
use springtide_protocol::worker::{FinalReport, Finish, Leave};
use springtide_runtime::event::Event;
use springtide_runtime::id::{ClusterId, JobId, NodeId, Peer};
use springtide_runtime::membership::{Member, View};
use springtide_runtime::meter::Statistics;
use springtide_runtime::processors::Processors;
use springtide_runtime::remote::{Refusal, RemoteError};

use super::{Coordinator, CoordinatorPhase};
use crate::worker_calls::{assign_worker, send_assign};

/// The time after which an unanswered order to leave without a deadline is repeated.
const LEAVE_REPEAT: Duration = Duration::from_secs(600);
/// Additional wait for the answer of a leaving node beyond its deadline.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

/// Changes of the membership under way.
#[derive(Default)]
pub(super) struct MembershipChanges {
    /// Granted nodes that are not assigned yet.
    granted: Vec<GrantedNode>,
    /// Assigned nodes with an outstanding answer.
    joining: BTreeMap<NodeId, Member>,
    /// Joining nodes that are to leave as soon as they have joined.
    unwanted: BTreeMap<NodeId, AskLeave>,
    /// Orders to leave that arrived when no node could leave.
    postponed: Vec<AskLeave>,
    /// Members that were ordered to leave.
    leaving: BTreeMap<NodeId, Departure>,
    /// Statistics of departed nodes.
    departed: BTreeMap<ClusterId, Statistics>,
}

struct Departure {
    member: Member,
    reason: String,
}

impl MembershipChanges {
    /// Sizes of the granted nodes that are not members yet.
    fn coming_sizes(&self) -> impl Iterator<Item = Processors> {
        let granted = self.granted.iter().map(GrantedNode::processors);
        granted.chain(self.joining.values().map(Member::processors))
    }

    /// Processors of the granted nodes that are not members yet.
    pub(super) fn coming(&self) -> Processors {
        self.coming_sizes().sum()
    }

    /// Number of granted nodes that are not members yet.
    pub(super) fn coming_nodes(&self) -> u32 {
        u32::try_from(self.coming_sizes().count()).unwrap_or(u32::MAX)
    }

    /// Whether this incarnation of a node is granted or joining.
    pub(super) fn is_coming(&self, peer: &Peer) -> bool {
        let granted = self.granted.iter().map(|granted| (&granted.node, &granted.member));
        let mut coming = granted.chain(&self.joining);
        coming.any(|(node, member)| *node == peer.node && member.incarnation == peer.incarnation)
    }

    /// Statistics of departed nodes.
    pub(super) fn departed(&self) -> &BTreeMap<ClusterId, Statistics> {
        &self.departed
    }
}

/// Why a granted node does not join.
struct AssignFailure {
    reason: String,
    /// The job that it works for, if any.
    busy: Option<JobId>,
}

impl AssignFailure {
    fn of(error: &AssignError) -> Self {
        let busy = match error {
            AssignError::Busy { job, .. } => Some(*job),
            _ => None,
        };
        Self { reason: error.to_string(), busy }
    }

    fn because(error: impl ToString) -> Self {
        Self { reason: error.to_string(), busy: None }
    }
}

impl Coordinator {
    /// Accepts nodes that the scheduler grants.
    pub(super) fn nodes_granted(&mut self, granted: NodeGrant, ctx: &mut Context<Self>) {
        tracing::info!(nodes = granted.nodes.len(), open = %granted.open, "nodes are granted");
        self.adaptation.recent().arrived(granted.nodes.len());
        self.changes.granted.extend(granted.nodes);
        self.assign_granted(ctx);
    }

    /// Assigns granted nodes to the job, one batch at a time. All nodes of a batch get the same
    /// view, so that a new cluster gets one coordinator.
    fn assign_granted(&mut self, ctx: &mut Context<Self>) {
        if !self.changes.joining.is_empty() || self.changes.granted.is_empty() {
            return;
        }
        let batch: BTreeMap<NodeId, Member> = std::mem::take(&mut self.changes.granted)
            .into_iter()
            .map(|granted| (granted.node, granted.member))
            .collect();
        if self.phase != CoordinatorPhase::Running {
            let reason = "the job is not running".to_owned();
            for (node, member) in batch {
                self.free(
                    &node,
                    &member,
                    ReleaseReason::Refused { reason: reason.clone(), busy: None },
                    ctx,
                );
            }
            return;
        }
        let view = self.view.with(batch.clone());
        // The network learns their addresses from the scheduler.
        for (node, member) in &batch {
            self.hub.net().learn_member(node, member);
        }
        let calls: Vec<_> = batch
            .keys()
            .map(|node| {
                let assign = Assign {
                    spec: self.spec.clone(),
                    view: view.partial_view(node),
                    client: self.client.clone(),
                    scheduler: self.scheduler.clone(),
                    benchmark: self.adaptation.benchmark(),
                };
                let remote = self.hub.remote::<Worker>(node, WORKER);
                let first = send_assign(&remote, assign.clone());
                (node.clone(), actix_rt::spawn(assign_worker(remote, first, assign, || true)))
            })
            .collect();
        self.changes.joining = batch;
        let answers = async move {
            let mut answers = Vec::new();
            for (node, call) in calls {
                let answer = match call.await {
                    Ok(Ok(answer)) => answer.map_err(|error| AssignFailure::of(&error)),
                    Ok(Err(error)) => Err(AssignFailure::because(error)),
                    // A call that panicked has no answer.
                    Err(error) => Err(AssignFailure::because(error)),
                };
                answers.push((node, answer));
            }
            answers
        };
        ctx.spawn(answers.into_actor(self).map(move |answers, coordinator, ctx| {
            coordinator.assigned(&view, answers, ctx);
        }));
    }

    /// Handles the answers of a batch. `batch_view` is the view that it received.
    fn assigned(
        &mut self,
        batch_view: &View,
        answers: Vec<(NodeId, Result<(), AssignFailure>)>,
        ctx: &mut Context<Self>,
    ) {
        let mut batch = std::mem::take(&mut self.changes.joining);
        let mut joined = BTreeMap::new();
        for (node, answer) in answers {
            let Some(member) = batch.remove(&node) else { continue };
            match answer {
                Ok(()) if self.phase == CoordinatorPhase::Running => {
                    joined.insert(node, member);
                }
                Ok(()) => {
                    let reason = "the job has ended".to_owned();
                    self.free(&node, &member, ReleaseReason::Refused { reason, busy: None }, ctx);
                }
                Err(AssignFailure { reason, busy }) => {
                    tracing::warn!(%node, reason, "a granted node does not join");
                    // Its assignment may still be under way; this message follows it.
                    self.dismiss(&node);
                    self.free(&node, &member, ReleaseReason::Refused { reason, busy }, ctx);
                }
            }
        }
        if !joined.is_empty() {
            let names: Vec<&str> = joined.keys().map(NodeId::as_str).collect();
            let text = format!("node {} joins the job", names.join(", "));
            self.notify_client(NoteKind::Text { text });
            let mut view = self.view.with(joined.clone());
            // The new members have `batch_view` under its version; a different view needs a higher
            // one.
            if view != *batch_view && view.version <= batch_view.version {
                view.version = batch_view.version + 1;
            }
            self.change(view, ctx);
            for node in joined.keys() {
                if let Some(asked) = self.changes.unwanted.remove(node) {
                    self.asked_to_leave(asked, ctx);
                }
            }
            self.process_postponed_leaves(ctx);
        }
        self.assign_granted(ctx);
    }

    /// Handles the scheduler's order that nodes leave: they are being drained.
    pub(super) fn asked_to_leave(&mut self, asked: AskLeave, ctx: &mut Context<Self>) {
        if matches!(self.phase, CoordinatorPhase::Joining | CoordinatorPhase::HandingOver) {
            return self.changes.postponed.push(asked);
        }
        for node in &asked.nodes {
            let one = AskLeave { nodes: vec![node.clone()], ..asked.clone() };
            if let Some(at) = self.changes.granted.iter().position(|g| g.node == *node) {
                let GrantedNode { node, member, .. } = self.changes.granted.remove(at);
                let reason = asked.reason.clone();
                self.free(&node, &member, ReleaseReason::Refused { reason, busy: None }, ctx);
            } else if self.changes.joining.contains_key(node) {
                self.changes.unwanted.insert(node.clone(), one);
            }
        }
        let deadline = asked.deadline_ms.map(Duration::from_millis);
        self.remove(&asked.nodes, &asked.reason, deadline, ctx);
    }

    /// Orders members to leave. The root's node first hands the job over, and the order is repeated
    /// to its successor.
    pub(super) fn remove(
        &mut self,
        nodes: &[NodeId],
        reason: &str,
        deadline: Option<Duration>,
        ctx: &mut Context<Self>,
    ) {
        if self.phase != CoordinatorPhase::Running {
            return;
        }
        let mut root_leaves = false;
        let mut notified = Vec::new();
        for node in nodes {
            let Some(member) = self.view.members.get(node).filter(|member| !member.leaving) else {
                continue;
            };
            if self.view.coordinator.as_ref() == Some(node) {
                root_leaves = true;
                continue;
            }
            let departure = Departure { member: member.clone(), reason: reason.to_owned() };
            self.changes.leaving.insert(node.clone(), departure);
            notified.push(node.clone());
        }
        if !notified.is_empty() {
            self.change(self.view.with_leaving(&notified), ctx);
            let names: Vec<&str> = notified.iter().map(NodeId::as_str).collect();
            let text = format!("node {} leaves the job: {reason}", names.join(", "));
            self.notify_client(NoteKind::Text { text });
            self.send_leaves(&notified, deadline, ctx);
        }
        // Follows the other leaves, so that none of them becomes the successor.
        if root_leaves && !self.leave_with_root(reason, deadline, ctx) {
            let text = format!(
                "the root's node stays for now: no other node can take its place ({reason})"
            );
            self.notify_client(NoteKind::Text { text });
            if let Some(node) = self.view.coordinator.clone() {
                // A node may join later.
                let deadline_ms =
                    deadline.map(|d| u64::try_from(d.as_millis()).unwrap_or(u64::MAX));
                let (job, nodes, reason) = (self.spec.id, vec![node], reason.to_owned());
                self.changes.postponed.push(AskLeave { job, nodes, reason, deadline_ms });
            }
        }
    }

    /// Processes the leaves that were postponed.
    pub(super) fn process_postponed_leaves(&mut self, ctx: &mut Context<Self>) {
        for asked in std::mem::take(&mut self.changes.postponed) {
            self.asked_to_leave(asked, ctx);
        }
    }

    /// Repeats the predecessor's orders to leave.
    pub(super) fn resume_leaves(&mut self, ctx: &mut Context<Self>) {
        let leaving = self.view.members.iter().filter(|(_, member)| member.leaving);
        let leaving: Vec<_> = leaving.map(|(n, member)| (n.clone(), member.clone())).collect();
        let mut notified = Vec::new();
        for (node, member) in leaving {
            let reason = "it was ordered to leave before the change of coordinator".to_owned();
            self.changes.leaving.insert(node.clone(), Departure { member, reason });
            notified.push(node);
        }
        self.send_leaves(&notified, None, ctx);
    }

    fn send_leaves(
        &self,
        notified: &[NodeId],
        deadline: Option<Duration>,
        ctx: &mut Context<Self>,
    ) {
        let job = self.spec.id;
        for node in notified {
            let node = node.clone();
            let deadline_ms = deadline.map(|d| u64::try_from(d.as_millis()).unwrap_or(u64::MAX));
            let remote = self.hub.remote::<Worker>(&node, WORKER);
            let within = deadline.unwrap_or(LEAVE_REPEAT).saturating_add(ANSWER_WITHIN);
            let leave = Leave { job, epoch: self.spec.epoch, deadline_ms };
            let call = remote.send(leave).deadline(within).start();
            ctx.spawn(call.into_actor(self).map(move |answer, coordinator, ctx| {
                let is_leaving = coordinator.changes.leaving.contains_key(&node);
                match answer {
                    // Its work may take hours. If it is dead, its silence shows that.
                    Err(RemoteError::Timeout { .. }) if deadline.is_none() && is_leaving => {
                        coordinator.send_leaves(&[node], None, ctx);
                    }
                    answer => coordinator.left(&node, answer, ctx),
                }
            }));
        }
    }

    /// Handles the answer of a leaving node, or its absence.
    fn left(
        &mut self,
        node: &NodeId,
        answer: Result<Option<FinalReport>, RemoteError>,
        ctx: &mut Context<Self>,
    ) {
        let Some(Departure { member, reason }) = self.changes.leaving.remove(node) else { return };
        let last = match answer {
            Ok(last) => last,
            // The node has left the job already.
            Err(RemoteError::Refused { reason: Refusal::NoJob, .. }) => None,
            Err(error) => {
                // A dead node is also reported by its site or its silence; otherwise it is declared
                // dead here.
                if self.view.members.contains_key(node) {
                    let reason = format!("it was ordered to leave and did not answer: {error}");
                    self.declare_dead(std::slice::from_ref(node), &reason, Duration::ZERO, ctx);
                }
                return;
            }
        };
        if let Some(last) = last {
            let sum = self.changes.departed.entry(member.cluster.clone()).or_default();
            if let Err(error) = sum.merge(&last.report.statistics) {
                tracing::warn!(%node, %error, "a leaving node's last report is malformed");
            }
            self.notify_client(NoteKind::Events { records: last.records });
        }
        self.recorder.record(Event::NodeLeft {
            job: self.spec.id,
            node: node.clone(),
            cluster: member.cluster.clone(),
            why: reason,
        });
        if self.view.members.contains_key(node) {
            let view = self.view.without([node]);
            if !view.cluster_coordinators.contains_key(&member.cluster) {
                // The cluster's last statistics are part of the departed nodes' statistics.
                self.tally.remove(&member.cluster);
                self.joined.remove(&member.cluster);
            }
            self.change(view, ctx);
        }
        self.free(node, &member, ReleaseReason::Left, ctx);
    }

    /// Ends the part of a node that was assigned and has not answered. Messages of this coordinator
    /// to one worker stay in order.
    fn dismiss(&self, node: &NodeId) {
        let remote = self.hub.remote::<Worker>(node, WORKER);
        let finish = Finish { job: self.spec.id, epoch: self.spec.epoch };
        if let Err(error) = remote.do_send(finish) {
            tracing::debug!(%node, %error, "the end did not reach a node that did not join");
        }
    }

    /// Dismisses all nodes with an outstanding answer.
    pub(super) fn dismiss_joining(&self) {
        self.changes.joining.keys().for_each(|node| self.dismiss(node));
    }

    /// Informs the scheduler that a node does not work for the job.
    pub(super) fn free(
        &self,
        node: &NodeId,
        member: &Member,
        why: ReleaseReason,
        ctx: &mut Context<Self>,
    ) {
        let freed = NodeFreed {
            job: self.spec.id,
            epoch: self.spec.epoch,
            node: node.clone(),
            incarnation: member.incarnation,
            why,
        };
        let remote = self.hub.remote::<Scheduler>(&self.scheduler.node, SCHEDULER);
        let node = node.clone();
        let sending = async move {
            for _ in 0..3 {
                match remote.send(freed.clone()).await {
                    Ok(()) => return,
                    Err(error) => {
                        tracing::warn!(%node, %error, "a freed node was not reported");
                    }
                }
            }
        };
        ctx.spawn(sending.into_actor(self));
    }
}
