//! Draining: a drained node gets no job, and the drain is answered when the node is empty.
//!
//! The owner of a processor may announce that it takes the processor away, at the end of a batch
//! job's time or before a pre-emption. Such a *revocation* is never refused. The manager fetches a
//! replacement first, and the job is asked to release the node once the replacement has joined. If
//! none has joined, the job is asked at half of the announced time, so that it can move its work.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use springtide_base::id::{ClusterId, Incarnation, JobId, NodeId};
use tokio::time::Instant;

use super::SchedulerCore;
use super::event::SchedulerAction;
use super::managed::{LedgerEntry, NodeUse};
use super::node::{DrainMark, PoolNodeState};
use crate::scheduler::{Drain, DrainError, DrainResult, JobState};

/// Delay before an order to a coordinator is repeated.
const REPEAT_DELAY: Duration = Duration::from_secs(1);

/// Processors of a job in a cluster that their owner will take away.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct PlannedRevocations {
    /// Number of processors that the job still has.
    pub(super) count: u32,
    /// Number of these that wait for replacements.
    pub(super) unreplaced: u32,
}

/// A drain order that is not answered yet.
#[derive(Debug)]
pub(super) struct PendingDrain {
    drain: u64,
    /// Nodes with their incarnations at the time of the order.
    nodes: BTreeMap<NodeId, Option<Incarnation>>,
    /// Nodes whose incarnation had already ended.
    gone: Vec<NodeId>,
}

impl SchedulerCore {
    /// Checks that the nodes exist, and that there is at least one.
    pub fn check_nodes(&self, nodes: &[NodeId]) -> Result<(), DrainError> {
        if nodes.is_empty() {
            return Err(DrainError::NoNodes);
        }
        match nodes.iter().find(|node| !self.nodes.contains_key(*node)) {
            Some(node) => Err(DrainError::UnknownNode { node: node.clone() }),
            None => Ok(()),
        }
    }

    pub(super) fn drain(
        &mut self,
        drain: u64,
        order: Drain,
        now: Instant,
        out: &mut Vec<SchedulerAction>,
    ) {
        let checked = self.check_nodes(&order.nodes);
        let nodes: BTreeSet<NodeId> = order.nodes.into_iter().collect();
        // A revocation takes place in any case.
        let is_revocation = order.incarnation.is_some() && order.deadline_ms.is_some();
        let enough = || if is_revocation { Ok(()) } else { self.leaves_enough(&nodes) };
        if let Err(error) = checked.and_then(|()| enough()) {
            return out.push(SchedulerAction::Drained { drain, answer: Err(error) });
        }
        let until = order.deadline_ms.map(Duration::from_millis).and_then(|d| now.checked_add(d));
        let (mut waited_for, mut gone) = (BTreeMap::new(), Vec::new());
        for id in nodes {
            let Some(node) = self.nodes.get_mut(&id) else { continue };
            let incarnation =
                node.registration.as_ref().map(|registration| registration.incarnation);
            if order.incarnation.is_some() && order.incarnation != incarnation {
                gone.push(id); // sent by an earlier incarnation
                continue;
            }
            let lasts = node.drain.as_ref().is_some_and(|mark| mark.incarnation.is_none());
            let mark = DrainMark {
                until,
                incarnation: order.incarnation.filter(|_| !lasts),
                // A repeated drain asks the job again, because the deadline may differ.
                ..DrainMark::lasting(order.reason.clone())
            };
            let replace_until = mark.replacement_time(node.drain.as_ref(), now);
            node.drain = Some(DrainMark { replace_until, ..mark });
            if order.incarnation.is_none() {
                // The drain outlasts the node's process and this scheduler.
                out.push(SchedulerAction::StoreDrain {
                    node: id.clone(),
                    reason: Some(order.reason.clone()),
                });
            }
            self.marked.insert(id.clone());
            waited_for.insert(id, incarnation);
        }
        self.drains.push(PendingDrain { drain, nodes: waited_for, gone });
    }

    /// Checks that every job keeps its minimum without these nodes.
    fn leaves_enough(&self, nodes: &BTreeSet<NodeId>) -> Result<(), DrainError> {
        for (&id, job) in &self.jobs {
            let marked =
                |node: &&NodeId| self.nodes.get(*node).is_some_and(|node| node.drain.is_some());
            let mut staying = job.members.iter().filter(|node| !marked(node));
            if !staying.clone().any(|node| nodes.contains(node)) {
                continue; // the job loses no additional node
            }
            let left = staying.by_ref().filter(|node| !nodes.contains(*node));
            let left = self.processors_of(left);
            if left < job.least {
                return Err(DrainError::BelowMinimum { job: id, min: job.least, left });
            }
        }
        Ok(())
    }

    /// Puts nodes back into service. Broken nodes are restarted at once.
    pub(super) fn undrain(
        &mut self,
        nodes: &[NodeId],
        now: Instant,
        out: &mut Vec<SchedulerAction>,
    ) {
        for id in nodes {
            let Some(node) = self.nodes.get_mut(id) else { continue };
            node.drain = None;
            if node.state == PoolNodeState::Broken {
                node.mark_starting(now);
                let (cluster, nodes) = (node.cluster.clone(), vec![id.clone()]);
                let reason = "it is back in service".to_owned();
                out.push(SchedulerAction::Replace {
                    cluster,
                    nodes,
                    program: None,
                    image: None,
                    reason,
                });
            }
            out.push(SchedulerAction::StoreDrain { node: id.clone(), reason: None });
            self.drains.retain(|pending| {
                let without = !pending.nodes.contains_key(id);
                if !without {
                    let answer = Err(DrainError::Undrained { node: id.clone() });
                    out.push(SchedulerAction::Drained { drain: pending.drain, answer });
                }
                without
            });
        }
    }

    /// Orders jobs to release nodes under drain.
    pub(super) fn order_leaves(&mut self, now: Instant, out: &mut Vec<SchedulerAction>) {
        let mut leaves: BTreeMap<(JobId, String, Option<Instant>), Vec<NodeId>> = BTreeMap::new();
        self.marked.retain(|id| self.nodes.get(id).is_some_and(|node| node.drain.is_some()));
        for id in &self.marked {
            let Some(node) = self.nodes.get_mut(id) else { continue };
            let Some(mark) = &mut node.drain else { continue };
            mark.not_before = mark.not_before.filter(|at| *at > now);
            mark.replace_until = mark.replace_until.filter(|at| *at > now);
            let PoolNodeState::Busy(job) = node.state else { continue };
            // Only the manager fetches replacements.
            mark.replace_until = mark.replace_until.filter(|_| self.managing.has(job));
            if mark.replace_until.is_some() {
                continue;
            }
            // A job cannot be asked while it starts or ends. A starting job is asked later.
            let holds = self
                .jobs
                .get(&job)
                .is_some_and(|held| held.state == JobState::Running && held.members.contains(id));
            if holds && !mark.asked && mark.not_before.is_none() {
                mark.asked = true;
                leaves.entry((job, mark.reason.clone(), mark.until)).or_default().push(id.clone());
            }
        }
        for ((job, reason, until), nodes) in leaves {
            let held = self.jobs.get(&job).and_then(|held| held.view.coordinator.clone());
            let Some(coordinator) = held else { continue };
            let left = until.map(|until| until.saturating_duration_since(now).as_millis());
            let deadline_ms = left.map(|left| u64::try_from(left).unwrap_or(u64::MAX));
            out.push(SchedulerAction::AskLeave { job, coordinator, nodes, reason, deadline_ms });
        }
    }

    /// Counts the processors of running managed jobs that will be taken away.
    pub(super) fn planned_revocations(&self) -> BTreeMap<(JobId, ClusterId), PlannedRevocations> {
        let mut all: BTreeMap<(JobId, ClusterId), PlannedRevocations> = BTreeMap::new();
        for id in &self.marked {
            let Some(node) = self.nodes.get(id) else { continue };
            let Some(mark) = node.drain.as_ref().filter(|mark| mark.is_revocation()) else {
                continue;
            };
            let Some(LedgerEntry { job, used: NodeUse::Computing, processors }) =
                self.managing.ledger.get(id)
            else {
                continue;
            };
            let planned = all.entry((*job, node.cluster.clone())).or_default();
            planned.count += processors;
            if mark.replace_until.is_some() {
                planned.unreplaced += processors.saturating_sub(mark.replaced);
            }
        }
        all
    }

    /// Records that a job has got processors: they replace those that will be taken away first.
    /// The root's node comes last, so that no node that leaves soon becomes its successor.
    pub(super) fn replacements_joined(&mut self, id: JobId, count: u32) {
        let root = self.jobs.get(&id).and_then(|job| job.view.coordinator.as_ref());
        let mut waiting: Vec<(bool, Instant, NodeId)> = Vec::new();
        for node in &self.marked {
            let Some(known) = self.nodes.get(node) else { continue };
            let until = known.drain.as_ref().and_then(|mark| mark.replace_until);
            if let Some(until) = until.filter(|_| known.state == PoolNodeState::Busy(id)) {
                waiting.push((root == Some(node), until, node.clone()));
            }
        }
        waiting.sort();
        let mut left = count;
        for (.., node) in waiting {
            let Some(known) = self.nodes.get(&node) else { continue };
            let size = self.booked_size(&node, known);
            if let Some(mark) = self.nodes.get_mut(&node).and_then(|node| node.drain.as_mut()) {
                let now = left.min(size.saturating_sub(mark.replaced));
                (left, mark.replaced) = (left - now, mark.replaced + now);
                if mark.replaced >= size {
                    mark.replace_until = None;
                }
            }
        }
    }

    /// Schedules a repetition after an undelivered order.
    pub(super) fn repeat_ask_leave(&mut self, job: JobId, nodes: &[NodeId], now: Instant) {
        for id in nodes {
            let Some(node) = self.nodes.get_mut(id) else { continue };
            if node.state == PoolNodeState::Busy(job)
                && let Some(mark) = &mut node.drain
                && mark.asked
            {
                (mark.asked, mark.not_before) = (false, Some(now + REPEAT_DELAY));
            }
        }
    }

    /// Answers the drains whose nodes are all empty.
    pub(super) fn answer_drains(&mut self, out: &mut Vec<SchedulerAction>) {
        let nodes = &self.nodes;
        self.drains.retain(|pending| {
            let mut drained = DrainResult { gone: pending.gone.clone(), ..DrainResult::default() };
            for (id, incarnation) in &pending.nodes {
                let now = nodes.get(id).filter(|node| {
                    // A later incarnation that is back in service does not count.
                    node.drain.is_some()
                        || node.registration.as_ref().map(|registration| registration.incarnation)
                            == *incarnation
                });
                match now {
                    // A node that is reserved for a starting job is not empty until that start
                    // fails.
                    Some(node) if !node.is_empty() || node.reserved.is_some() => return true,
                    Some(node) if node.state == PoolNodeState::Idle => {
                        drained.empty.push(id.clone())
                    }
                    _ => drained.gone.push(id.clone()),
                }
            }
            drained.gone.sort();
            out.push(SchedulerAction::Drained { drain: pending.drain, answer: Ok(drained) });
            false
        });
    }
}
