//! Taking nodes out of service: a drained node gets no job, and whoever drains hears when it is empty.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use springtide_runtime::id::{Incarnation, JobId, NodeId};
use tokio::time::Instant;

use super::Core;
use super::event::Action;
use super::pool::State;
use crate::scheduler::{Drain, DrainError, Drained, JobState};

/// A coordinator that could not be asked is asked again after this time.
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// A node is to be empty.
#[derive(Debug)]
pub(super) struct Mark {
    pub(super) reason: String,
    /// When it goes in any case.
    until: Option<Instant>,
    /// The mark ends with this life.
    pub(super) life: Option<Incarnation>,
    /// Whether the job that holds it was asked to let it go.
    pub(super) asked: bool,
    /// The job is not asked again before this.
    pub(super) not_before: Option<Instant>,
}

/// A drain that is not answered yet.
#[derive(Debug)]
pub(super) struct Pending {
    drain: u64,
    /// Each in the life that it had.
    nodes: BTreeMap<NodeId, Option<Incarnation>>,
    /// Those whose life was over already.
    gone: Vec<NodeId>,
}

impl Mark {
    /// Of a node that is out of service until somebody puts it back.
    pub(super) fn lasting(reason: String) -> Self {
        Self { reason, until: None, life: None, asked: false, not_before: None }
    }
}

impl Core {
    /// Whether nodes are named and known.
    ///
    /// # Errors
    /// [`DrainError::NoNodes`], [`DrainError::UnknownNode`].
    pub fn check_nodes(&self, nodes: &[NodeId]) -> Result<(), DrainError> {
        if nodes.is_empty() {
            return Err(DrainError::NoNodes);
        }
        match nodes.iter().find(|node| !self.nodes.contains_key(*node)) {
            Some(node) => Err(DrainError::UnknownNode { node: node.clone() }),
            None => Ok(()),
        }
    }

    pub(super) fn drain(&mut self, drain: u64, order: Drain, now: Instant, out: &mut Vec<Action>) {
        let checked = self.check_nodes(&order.nodes);
        let nodes: BTreeSet<NodeId> = order.nodes.into_iter().collect();
        if let Err(error) = checked.and_then(|()| self.leaves_enough(&nodes)) {
            return out.push(Action::Drained { drain, answer: Err(error) });
        }
        let until = order.deadline_ms.map(Duration::from_millis).and_then(|d| now.checked_add(d));
        let (mut waited_for, mut gone) = (BTreeMap::new(), Vec::new());
        for id in nodes {
            let Some(node) = self.nodes.get_mut(&id) else { continue };
            let life = node.life.as_ref().map(|life| life.incarnation);
            if order.life.is_some() && order.life != life {
                gone.push(id); // an earlier life's word
                continue;
            }
            let lasts = node.drain.as_ref().is_some_and(|mark| mark.life.is_none());
            node.drain = Some(Mark {
                reason: order.reason.clone(),
                until,
                life: order.life.filter(|_| !lasts),
                // Said again, it is asked again: the deadline may be another.
                asked: false,
                not_before: None,
            });
            if order.life.is_none() {
                // It lasts, whatever becomes of the node and of this scheduler.
                out.push(Action::Mark { node: id.clone(), reason: Some(order.reason.clone()) });
            }
            self.marked.insert(id.clone());
            waited_for.insert(id, life);
        }
        self.drains.push(Pending { drain, nodes: waited_for, gone });
    }

    /// Whether every job keeps its minimum without these nodes.
    fn leaves_enough(&self, nodes: &BTreeSet<NodeId>) -> Result<(), DrainError> {
        for (&id, job) in &self.jobs {
            let marked =
                |node: &&NodeId| self.nodes.get(*node).is_some_and(|node| node.drain.is_some());
            let mut staying = job.members.iter().filter(|node| !marked(node));
            if !staying.clone().any(|node| nodes.contains(node)) {
                continue; // it loses nobody whom it would not lose anyway
            }
            let left = staying.by_ref().filter(|node| !nodes.contains(*node)).count();
            let left = u32::try_from(left).unwrap_or(u32::MAX);
            if left < job.least_nodes {
                let min_nodes = job.least_nodes;
                return Err(DrainError::BelowMinimum { job: id, min_nodes, left });
            }
        }
        Ok(())
    }

    /// Puts nodes back into service. Those that are broken are started at once.
    pub(super) fn undrain(&mut self, nodes: &[NodeId], now: Instant, out: &mut Vec<Action>) {
        for id in nodes {
            let Some(node) = self.nodes.get_mut(id) else { continue };
            node.drain = None;
            if node.state == State::Broken {
                node.starts(now);
                let (cluster, nodes) = (node.cluster.clone(), vec![id.clone()]);
                let reason = "it is put back into service".to_owned();
                out.push(Action::Replace { cluster, nodes, program: None, reason });
            }
            out.push(Action::Mark { node: id.clone(), reason: None });
            self.drains.retain(|pending| {
                let without = !pending.nodes.contains_key(id);
                if !without {
                    let answer = Err(DrainError::Undrained { node: id.clone() });
                    out.push(Action::Drained { drain: pending.drain, answer });
                }
                without
            });
        }
    }

    /// Asks the jobs that hold nodes that are to be empty.
    pub(super) fn ask_leaves(&mut self, now: Instant, out: &mut Vec<Action>) {
        let mut leaves: BTreeMap<(JobId, String, Option<Instant>), Vec<NodeId>> = BTreeMap::new();
        self.marked.retain(|id| self.nodes.get(id).is_some_and(|node| node.drain.is_some()));
        for id in &self.marked {
            let Some(node) = self.nodes.get_mut(id) else { continue };
            let Some(mark) = &mut node.drain else { continue };
            mark.not_before = mark.not_before.filter(|at| *at > now);
            let State::Busy(job) = node.state else { continue };
            // While a job begins or ends it cannot be asked; if it begins, it is asked then.
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
            out.push(Action::AskLeave { job, coordinator, nodes, reason, deadline_ms });
        }
    }

    /// The coordinator could not be asked.
    pub(super) fn ask_again(&mut self, job: JobId, nodes: &[NodeId], now: Instant) {
        for id in nodes {
            let Some(node) = self.nodes.get_mut(id) else { continue };
            if node.state == State::Busy(job)
                && let Some(mark) = &mut node.drain
                && mark.asked
            {
                (mark.asked, mark.not_before) = (false, Some(now + ASK_AGAIN));
            }
        }
    }

    /// Answers the drains whose nodes are all empty.
    pub(super) fn answer_drains(&mut self, out: &mut Vec<Action>) {
        let nodes = &self.nodes;
        self.drains.retain(|pending| {
            let mut drained = Drained { gone: pending.gone.clone(), ..Drained::default() };
            for (id, life) in &pending.nodes {
                let now = nodes.get(id).filter(|node| {
                    // A later life that is in service again is another matter.
                    node.drain.is_some() || node.life.as_ref().map(|life| life.incarnation) == *life
                });
                match now {
                    // It may be about to be given to a job, which is given up then.
                    Some(node) if !node.is_empty() || node.reserved.is_some() => return true,
                    Some(node) if node.state == State::Idle => drained.empty.push(id.clone()),
                    _ => drained.gone.push(id.clone()),
                }
            }
            drained.gone.sort();
            out.push(Action::Drained { drain: pending.drain, answer: Ok(drained) });
            false
        });
    }
}
