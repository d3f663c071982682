//! How the job's members change while it runs: nodes that the scheduler grants join, nodes that are told to leave do so in
//! order. Must not know why nodes come and go.

use std::collections::BTreeMap;
use std::time::Duration;

use actix::prelude::*;
use springtide_runtime::event::Event;
use springtide_runtime::id::{ClusterId, JobId, NodeId, Peer};
use springtide_runtime::membership::{Member, View};
use springtide_runtime::meter::Statistics;
use springtide_runtime::remote::{Refusal, RemoteError};

use super::{Coordinator, Phase};
use crate::job::{Assign, AssignError, NoteKind, SCHEDULER, WORKER};
use crate::scheduler::{AskLeave, Freed, GrantedNode, NodeFreed, NodesGranted, Scheduler};
use crate::worker::{FinalReport, Finish, Leave, Worker, assign_worker, send_assign};

/// A node that is told to leave without a deadline is given up after this time: by then its death would have been noticed.
const LEAVE_WITHIN: Duration = Duration::from_secs(600);
/// Beyond the deadline that a leaving node was given, its answer is waited for so long.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

/// Changes of the membership that are under way.
#[derive(Default)]
pub(super) struct Changes {
    /// Granted, and not yet told of the job.
    granted: Vec<GrantedNode>,
    /// Told of the job; their answers are awaited.
    joining: BTreeMap<NodeId, Member>,
    /// To leave as soon as they have joined, and why.
    unwanted: BTreeMap<NodeId, AskLeave>,
    /// Wanted while the job could let nobody go.
    postponed: Vec<AskLeave>,
    /// Told to leave.
    leaving: BTreeMap<NodeId, Departure>,
    /// Sums of those that have left.
    departed: BTreeMap<ClusterId, Statistics>,
}

struct Departure {
    member: Member,
    reason: String,
}

impl Changes {
    /// Granted nodes that are no members yet.
    pub(super) fn coming(&self) -> u32 {
        u32::try_from(self.granted.len() + self.joining.len()).unwrap_or(u32::MAX)
    }

    /// Whether this incarnation of a node is granted, or joins, and is no member yet.
    pub(super) fn is_coming(&self, peer: &Peer) -> bool {
        let granted = self.granted.iter().map(|granted| (&granted.node, &granted.member));
        let mut coming = granted.chain(&self.joining);
        coming.any(|(node, member)| *node == peer.node && member.incarnation == peer.incarnation)
    }

    /// What those that have left had done.
    pub(super) fn departed(&self) -> &BTreeMap<ClusterId, Statistics> {
        &self.departed
    }
}

/// Why a granted node does not take part.
struct NotTaken {
    reason: String,
    /// It works for this job.
    busy: Option<JobId>,
}

impl NotTaken {
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
    /// The scheduler has given the job more nodes.
    pub(super) fn nodes_granted(&mut self, granted: NodesGranted, ctx: &mut Context<Self>) {
        tracing::info!(nodes = granted.nodes.len(), open = granted.open, "nodes are granted");
        self.adaptation.came(granted.nodes.len());
        self.changes.granted.extend(granted.nodes);
        self.assign_granted(ctx);
    }

    /// Tells granted nodes of the job, one batch at a time: all of a batch get the same view, so that a new cluster gets one
    /// coordinator.
    fn assign_granted(&mut self, ctx: &mut Context<Self>) {
        if !self.changes.joining.is_empty() || self.changes.granted.is_empty() {
            return;
        }
        let batch: BTreeMap<NodeId, Member> = std::mem::take(&mut self.changes.granted)
            .into_iter()
            .map(|granted| (granted.node, granted.member))
            .collect();
        if self.phase != Phase::Running {
            let reason = "the job is not running".to_owned();
            for (node, member) in batch {
                self.free(
                    &node,
                    &member,
                    Freed::Refused { reason: reason.clone(), busy: None },
                    ctx,
                );
            }
            return;
        }
        let view = self.view.with(batch.clone());
        // They are strangers yet: reached where the scheduler says.
        for (node, member) in &batch {
            self.hub.net().learn_member(node, member);
        }
        let calls: Vec<_> = batch
            .keys()
            .map(|node| {
                let assign = Assign {
                    spec: self.spec.clone(),
                    view: view.glimpse(node),
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
                    Ok(Ok(answer)) => answer.map_err(|error| NotTaken::of(&error)),
                    Ok(Err(error)) => Err(NotTaken::because(error)),
                    // One that panicked has no answer.
                    Err(error) => Err(NotTaken::because(error)),
                };
                answers.push((node, answer));
            }
            answers
        };
        ctx.spawn(answers.into_actor(self).map(move |answers, coordinator, ctx| {
            coordinator.assigned(&view, answers, ctx);
        }));
    }

    /// A batch of granted nodes has answered. `told` is the view that they got.
    fn assigned(
        &mut self,
        told: &View,
        answers: Vec<(NodeId, Result<(), NotTaken>)>,
        ctx: &mut Context<Self>,
    ) {
        let mut batch = std::mem::take(&mut self.changes.joining);
        let mut joined = BTreeMap::new();
        for (node, answer) in answers {
            let Some(member) = batch.remove(&node) else { continue };
            match answer {
                Ok(()) if self.phase == Phase::Running => {
                    joined.insert(node, member);
                }
                Ok(()) => {
                    let reason = "the job has ended".to_owned();
                    self.free(&node, &member, Freed::Refused { reason, busy: None }, ctx);
                }
                Err(NotTaken { reason, busy }) => {
                    tracing::warn!(%node, reason, "a granted node does not take part");
                    // Its assignment may still be on its way: this follows it.
                    self.dismiss(&node);
                    self.free(&node, &member, Freed::Refused { reason, busy }, ctx);
                }
            }
        }
        if !joined.is_empty() {
            let names: Vec<&str> = joined.keys().map(NodeId::as_str).collect();
            let text = format!("node {} joins the job", names.join(", "));
            self.tell(NoteKind::Say { text });
            let mut view = self.view.with(joined.clone());
            // Those that joined hold `told` under its number; another view needs a higher one.
            if view != *told && view.version <= told.version {
                view.version = told.version + 1;
            }
            self.change(view, ctx);
            for node in joined.keys() {
                if let Some(asked) = self.changes.unwanted.remove(node) {
                    self.asked_to_leave(asked, ctx);
                }
            }
            self.leave_at_last(ctx);
        }
        self.assign_granted(ctx);
    }

    /// The scheduler wants nodes to leave: somebody drains them.
    pub(super) fn asked_to_leave(&mut self, asked: AskLeave, ctx: &mut Context<Self>) {
        if matches!(self.phase, Phase::Joining | Phase::HandingOver) {
            return self.changes.postponed.push(asked);
        }
        for node in &asked.nodes {
            let one = AskLeave { nodes: vec![node.clone()], ..asked.clone() };
            if let Some(at) = self.changes.granted.iter().position(|g| g.node == *node) {
                let GrantedNode { node, member, .. } = self.changes.granted.remove(at);
                let reason = asked.reason.clone();
                self.free(&node, &member, Freed::Refused { reason, busy: None }, ctx);
            } else if self.changes.joining.contains_key(node) {
                self.changes.unwanted.insert(node.clone(), one);
            }
        }
        let deadline = asked.deadline_ms.map(Duration::from_millis);
        self.remove(&asked.nodes, &asked.reason, deadline, ctx);
    }

    /// Tells members to leave in order. The node of the job's root hands the job over first: whoever asks for it to leave asks
    /// its successor again.
    pub(super) fn remove(
        &mut self,
        nodes: &[NodeId],
        reason: &str,
        deadline: Option<Duration>,
        ctx: &mut Context<Self>,
    ) {
        if self.phase != Phase::Running {
            return;
        }
        let mut root_leaves = false;
        let mut told = Vec::new();
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
            told.push(node.clone());
        }
        if !told.is_empty() {
            self.change(self.view.leaving(&told), ctx);
            let names: Vec<&str> = told.iter().map(NodeId::as_str).collect();
            let text = format!("node {} leaves the job: {reason}", names.join(", "));
            self.tell(NoteKind::Say { text });
            self.send_leaves(&told, deadline, ctx);
        }
        // After the others: none of them is to be the heir.
        if root_leaves && !self.leave_with_root(reason, deadline, ctx) {
            let text = format!(
                "the node of the job's root stays for now: no other can take its place ({reason})"
            );
            self.tell(NoteKind::Say { text });
            if let Some(node) = self.view.coordinator.clone() {
                // Somebody may join.
                let deadline_ms =
                    deadline.map(|d| u64::try_from(d.as_millis()).unwrap_or(u64::MAX));
                let (job, nodes, reason) = (self.spec.id, vec![node], reason.to_owned());
                self.changes.postponed.push(AskLeave { job, nodes, reason, deadline_ms });
            }
        }
    }

    /// Whoever was to leave when nobody could.
    pub(super) fn leave_at_last(&mut self, ctx: &mut Context<Self>) {
        for asked in std::mem::take(&mut self.changes.postponed) {
            self.asked_to_leave(asked, ctx);
        }
    }

    /// Members that a predecessor had told to leave are told again.
    pub(super) fn resume_leaves(&mut self, ctx: &mut Context<Self>) {
        let leaving = self.view.members.iter().filter(|(_, member)| member.leaving);
        let leaving: Vec<_> = leaving.map(|(n, member)| (n.clone(), member.clone())).collect();
        let mut told = Vec::new();
        for (node, member) in leaving {
            let reason = "it was told to before".to_owned();
            self.changes.leaving.insert(node.clone(), Departure { member, reason });
            told.push(node);
        }
        self.send_leaves(&told, None, ctx);
    }

    fn send_leaves(&self, told: &[NodeId], deadline: Option<Duration>, ctx: &mut Context<Self>) {
        let job = self.spec.id;
        for node in told {
            let node = node.clone();
            let deadline_ms = deadline.map(|d| u64::try_from(d.as_millis()).unwrap_or(u64::MAX));
            let remote = self.hub.remote::<Worker>(&node, WORKER);
            let within = deadline.unwrap_or(LEAVE_WITHIN).saturating_add(ANSWER_WITHIN);
            let leave = Leave { job, epoch: self.spec.epoch, deadline_ms };
            let call = remote.send(leave).deadline(within).start();
            ctx.spawn(call.into_actor(self).map(move |answer, coordinator, ctx| {
                coordinator.left(&node, answer, ctx);
            }));
        }
    }

    /// A node has left, or did not answer.
    fn left(
        &mut self,
        node: &NodeId,
        answer: Result<Option<FinalReport>, RemoteError>,
        ctx: &mut Context<Self>,
    ) {
        let Some(Departure { member, reason }) = self.changes.leaving.remove(node) else { return };
        let last = match answer {
            Ok(last) => last,
            // It takes no part in the job any more.
            Err(RemoteError::Refused { why: Refusal::NoJob, .. }) => None,
            Err(error) => {
                // If it is dead, its site or its silence says so; else it is taken for dead here and now.
                if self.view.members.contains_key(node) {
                    let reason = format!("it was told to leave and did not answer: {error}");
                    self.silent(std::slice::from_ref(node), &reason, Duration::ZERO, ctx);
                }
                return;
            }
        };
        if let Some(last) = last {
            let sum = self.changes.departed.entry(member.cluster.clone()).or_default();
            if let Err(error) = sum.merge(&last.report.statistics) {
                tracing::warn!(%node, %error, "a leaving node's last report is malformed");
            }
            self.tell(NoteKind::Events { records: last.records });
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
                // What it last said of its workers is among what those that left have said.
                self.tally.remove(&member.cluster);
                self.joined.remove(&member.cluster);
            }
            self.change(view, ctx);
        }
        self.free(node, &member, Freed::Left, ctx);
    }

    /// Ends the part of a node that was assigned the job and has not answered. Messages of this
    /// coordinator to one worker keep their order.
    fn dismiss(&self, node: &NodeId) {
        let remote = self.hub.remote::<Worker>(node, WORKER);
        let finish = Finish { job: self.spec.id, epoch: self.spec.epoch };
        if let Err(error) = remote.do_send(finish) {
            tracing::debug!(%node, %error, "a node that does not take part was not told so");
        }
    }

    /// The same of all nodes whose answers are awaited, where nobody waits any longer.
    pub(super) fn dismiss_joining(&self) {
        self.changes.joining.keys().for_each(|node| self.dismiss(node));
    }

    /// A node works for the job no more, or never did.
    pub(super) fn free(&self, node: &NodeId, member: &Member, why: Freed, ctx: &mut Context<Self>) {
        let freed = NodeFreed {
            job: self.spec.id,
            epoch: self.spec.epoch,
            node: node.clone(),
            incarnation: member.incarnation,
            why,
        };
        let remote = self.hub.remote::<Scheduler>(&self.scheduler.node, SCHEDULER);
        let node = node.clone();
        let told = async move {
            for _ in 0..3 {
                match remote.send(freed.clone()).await {
                    Ok(()) => return,
                    Err(error) => {
                        tracing::warn!(%node, %error, "the scheduler was not told of a free node");
                    }
                }
            }
        };
        ctx.spawn(told.into_actor(self));
    }
}
