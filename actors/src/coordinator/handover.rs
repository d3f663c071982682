//! Handover of the coordinator's role and the job's root to another node, since its own node leaves
//! or the policy moves it.
//!
//! The root stops at its next checkpoint, so that no work is repeated. Without one in time it stops
//! at once, and other nodes continue its tasks. A root without calls to the runtime cannot stop,
//! and is abandoned. Then the successor receives the handover state, and the scheduler makes it
//! coordinator under a new epoch.
//!
//! This module knows neither the decision to move nor the successor's start (`succeed`).

use std::time::Duration;

use actix::prelude::*;
use springtide_protocol::job::{JobError, NoteKind};
use springtide_protocol::names::{SCHEDULER, WORKER};
use springtide_protocol::receivers::{Scheduler, Worker};
use springtide_protocol::scheduler::HandOver;
use springtide_protocol::worker::{HandoverState, PrepareSuccessor};
use springtide_runtime::id::{ClusterId, NodeId};
use springtide_runtime::work::{RootResults, StopRoot};
use tokio::time::Instant;

use super::{Coordinator, CoordinatorPhase};

/// Minimum wait for a checkpoint.
const PATIENCE: Duration = Duration::from_secs(5);
/// Minimum wait for a checkpoint, in multiples of the longest interval between two.
const PATIENCE_STRETCHES: u32 = 2;
/// Maximum time for a root to stop without a checkpoint.
const STOP_WITHIN: Duration = Duration::from_secs(5);
/// Maximum time for the successor to accept the handover state.
const BEQUEATH_WITHIN: Duration = Duration::from_secs(60);
/// Attempts to inform the scheduler, and the timeout of each.
const ASK_TIMES: u32 = 3;
const ASK_WITHIN: Duration = Duration::from_secs(5);

/// A move of the root to another node.
pub(super) struct PendingMove {
    to: NodeId,
    reason: String,
}

impl Coordinator {
    /// Moves the job's root and this role to another node. Without a checkpoint within half of
    /// `deadline`, the root moves without one. Returns whether it moves.
    pub(super) fn move_root(
        &mut self,
        to: &NodeId,
        reason: &str,
        deadline: Option<Duration>,
        ctx: &mut Context<Self>,
    ) -> bool {
        let me = self.view.coordinator.clone();
        if self.phase != CoordinatorPhase::Running || me.as_ref() == Some(to) {
            return false;
        }
        let patience = self.patience().min(deadline.map_or(Duration::MAX, |within| within / 2));
        if self.moving.is_none() {
            if !self.view.stays(to) {
                return false;
            }
            let from = me.unwrap_or_else(|| "".into());
            let text = format!("the job's root moves from node {from} to {to}: {reason}");
            self.notify_client(NoteKind::Text { text });
            self.moving = Some(PendingMove { to: to.clone(), reason: reason.to_owned() });
            self.engine.stop_root(&StopRoot::AtCheckpoint);
        }
        let stop_within = STOP_WITHIN.min(deadline.map_or(Duration::MAX, |within| within / 4));
        // A repeated order may have another deadline.
        ctx.run_later(patience, move |coordinator, ctx| {
            coordinator.stop_root_now(stop_within, ctx)
        });
        true
    }

    /// Moves the root off this leaving node, to any suitable node. Returns whether it moves.
    pub(super) fn leave_with_root(
        &mut self,
        reason: &str,
        deadline: Option<Duration>,
        ctx: &mut Context<Self>,
    ) -> bool {
        let to = self
            .moving
            .as_ref()
            .map(|moving| moving.to.clone())
            .or_else(|| self.default_successor());
        to.is_some_and(|to| self.move_root(&to, reason, deadline, ctx))
    }

    /// The default successor: a node of the largest other cluster, else another node of its own.
    fn default_successor(&self) -> Option<NodeId> {
        let me = self.view.coordinator.as_ref()?;
        let home = self.view.cluster_of(me)?;
        let stay = |cluster: &ClusterId| {
            let all = self.view.in_cluster(cluster);
            all.filter(|node| *node != me && self.view.stays(node)).cloned().collect::<Vec<_>>()
        };
        let clusters = self.view.cluster_coordinators.keys();
        let stay = clusters.map(|cluster| (cluster != home, stay(cluster)));
        let best = stay.filter(|(_, nodes)| !nodes.is_empty()).max_by_key(|(other, nodes)| {
            // Of equals, the first by name.
            (*other, nodes.len(), std::cmp::Reverse(nodes.first().cloned()))
        });
        best.and_then(|(_, nodes)| nodes.into_iter().next())
    }

    /// The chosen node, or another if it is lost or leaves.
    fn successor_or(&self, chosen: &NodeId) -> Option<NodeId> {
        if self.view.stays(chosen) { Some(chosen.clone()) } else { self.default_successor() }
    }

    fn patience(&self) -> Duration {
        match self.checkpoints.longest_stretch(Instant::now()) {
            Some(stretch) => PATIENCE.max(stretch.saturating_mul(PATIENCE_STRETCHES)),
            None => PATIENCE,
        }
    }

    /// Stops the root without a checkpoint, after the wait for one.
    fn stop_root_now(&mut self, stop_within: Duration, ctx: &mut Context<Self>) {
        if self.phase != CoordinatorPhase::Running {
            return;
        }
        let to = self.moving.as_ref().and_then(|moving| self.successor_or(&moving.to));
        if let (Some(moving), Some(to)) = (&mut self.moving, to) {
            tracing::info!(%to, "the root moves without a checkpoint");
            moving.to = to.clone();
            self.engine.stop_root(&StopRoot::Now { successor: to });
            ctx.run_later(stop_within, |coordinator, ctx| coordinator.abandon_root(ctx));
        }
    }

    /// Abandons a root that does not stop, since it makes no calls to the runtime.
    fn abandon_root(&mut self, ctx: &mut Context<Self>) {
        if self.phase != CoordinatorPhase::Running || self.moving.is_none() {
            return;
        }
        if let Some(left) = self.engine.detach_root() {
            tracing::info!("the root makes no calls and is abandoned");
            self.root_stopped(left, ctx);
        }
    }

    /// Hands over after the root has stopped.
    pub(super) fn root_stopped(&mut self, mut left: RootResults, ctx: &mut Context<Self>) {
        let Some(PendingMove { to, reason }) = self.moving.take() else {
            let reason = "its root stopped without an order".to_owned();
            return self.end(Err(JobError::Start { reason }), ctx);
        };
        if self.phase != CoordinatorPhase::Running {
            return;
        }
        self.phase = CoordinatorPhase::HandingOver;
        let root = self.checkpoints.last().cloned();
        if let Some(kept) = &root {
            left.forget_before(kept.saved.next_child);
        }
        let (job, epoch) = (self.spec.id, self.spec.epoch);
        let Some(to) = self.successor_or(&to) else { return self.resume_here(left, ctx) };
        let memory = self.adaptation.memory().clone();
        let bequest = HandoverState { epoch, memory, root, left: left.clone() };
        let worker = self.hub.remote::<Worker>(&to, WORKER);
        let bequeath =
            worker.send(PrepareSuccessor { job, bequest }).deadline(BEQUEATH_WITHIN).start();
        let scheduler = self.hub.remote::<Scheduler>(&self.scheduler.node, SCHEDULER);
        let handed = async move {
            if let Err(error) = bequeath.await {
                // The successor may be lost; the scheduler then finds another, which gathers the
                // state.
                tracing::warn!(%to, %error, "the successor did not accept the handover state");
            }
            let order = HandOver { job, epoch, to, reason };
            for _ in 0..ASK_TIMES {
                match scheduler.send(order.clone()).deadline(ASK_WITHIN).await {
                    Ok(Ok(())) => return Ok(true),
                    Ok(Err(stale)) => {
                        tracing::info!("{stale}");
                        return Ok(false);
                    }
                    Err(error) => {
                        tracing::warn!(%error, "the handover did not reach the scheduler")
                    }
                }
                tokio::time::sleep(ASK_WITHIN).await;
            }
            Err(())
        };
        ctx.spawn(handed.into_actor(self).map(move |handed, coordinator, ctx| match handed {
            // The view of the new epoch ends this actor: see `StopReplaced`.
            Ok(true) => {}
            Ok(false) => ctx.stop(),
            Err(()) => coordinator.resume_here(left, ctx),
        }));
    }

    /// Resumes the root on this node, since it cannot move.
    fn resume_here(&mut self, left: RootResults, ctx: &mut Context<Self>) {
        if self.phase != CoordinatorPhase::HandingOver {
            return;
        }
        let text = "the job's root cannot move now and continues on its node".to_owned();
        self.notify_client(NoteKind::Text { text });
        let root = self.checkpoints.last().cloned();
        self.engine.inherit_root(left);
        self.start_root(root, ctx);
        self.process_postponed_leaves(ctx);
    }
}
