//! A coordinator gives its role, and the job's root, to another node: its own is to leave, or the policy moves it.
//!
//! The root stops when it has left its next checkpoint, so that nothing is computed twice; if none comes in time, at once, and what
//! other nodes run of it goes on. One that makes no call for long, and so does not hear that it should stop, is left behind. Then the
//! heir gets what is left, and the scheduler makes it coordinator under a new epoch.
//!
//! Must not know who decides that the root moves, nor how an heir begins (`succeed`).

use std::time::Duration;

use actix::prelude::*;
use springtide_runtime::id::{ClusterId, NodeId};
use springtide_runtime::work::{RootLeft, StopRoot};
use tokio::time::Instant;

use super::{Coordinator, Phase};
use crate::job::{JobError, NoteKind, SCHEDULER, WORKER};
use crate::scheduler::{HandOver, Scheduler};
use crate::worker::{Bequeath, Bequest, Worker};

/// A checkpoint is waited for so long at least,
const PATIENCE: Duration = Duration::from_secs(5);
/// and at least so many times as long as the longest time between two was.
const PATIENCE_STRETCHES: u32 = 2;
/// A root that was told to stop at once has so long to do so.
const STOP_WITHIN: Duration = Duration::from_secs(5);
/// The heir may take so long to take what is left.
const BEQUEATH_WITHIN: Duration = Duration::from_secs(60);
/// The scheduler is asked so often, and has so long each time.
const ASK_TIMES: u32 = 3;
const ASK_WITHIN: Duration = Duration::from_secs(5);

/// The root is on its way to another node.
pub(super) struct Moving {
    to: NodeId,
    reason: String,
}

impl Coordinator {
    /// Moves the job's root, and this role, to another node. Within `deadline` a checkpoint must come, else it moves without.
    /// Returns whether it does.
    pub(super) fn move_root(
        &mut self,
        to: &NodeId,
        reason: &str,
        deadline: Option<Duration>,
        ctx: &mut Context<Self>,
    ) -> bool {
        let me = self.view.coordinator.clone();
        if self.phase != Phase::Running || me.as_ref() == Some(to) {
            return false;
        }
        let patience = self.patience().min(deadline.map_or(Duration::MAX, |within| within / 2));
        if self.moving.is_none() {
            if !self.view.stays(to) {
                return false;
            }
            let from = me.unwrap_or_else(|| "".into());
            let text = format!("the job's root moves from node {from} to {to}: {reason}");
            self.tell(NoteKind::Say { text });
            self.moving = Some(Moving { to: to.clone(), reason: reason.to_owned() });
            self.engine.stop_root(&StopRoot::AtCheckpoint);
        }
        let stop_within = STOP_WITHIN.min(deadline.map_or(Duration::MAX, |within| within / 4));
        // Said again, the deadline may be another.
        ctx.run_later(patience, move |coordinator, ctx| coordinator.hurry_root(stop_within, ctx));
        true
    }

    /// The node of this coordinator is to leave: moves the root to wherever it fits. Returns whether it does.
    pub(super) fn leave_with_root(
        &mut self,
        reason: &str,
        deadline: Option<Duration>,
        ctx: &mut Context<Self>,
    ) -> bool {
        let to = self.moving.as_ref().map(|moving| moving.to.clone()).or_else(|| self.heir());
        to.is_some_and(|to| self.move_root(&to, reason, deadline, ctx))
    }

    /// Where the root goes if nobody says: to the largest other cluster, else to another node of its own.
    fn heir(&self) -> Option<NodeId> {
        let me = self.view.coordinator.as_ref()?;
        let home = self.view.cluster_of(me)?;
        let stay = |cluster: &ClusterId| {
            let all = self.view.in_cluster(cluster);
            all.filter(|node| *node != me && self.view.stays(node)).cloned().collect::<Vec<_>>()
        };
        let clusters = self.view.cluster_coordinators.keys();
        let stay = clusters.map(|cluster| (cluster != home, stay(cluster)));
        let best = stay.filter(|(_, nodes)| !nodes.is_empty()).max_by_key(|(other, nodes)| {
            // Of equals the first by name.
            (*other, nodes.len(), std::cmp::Reverse(nodes.first().cloned()))
        });
        best.and_then(|(_, nodes)| nodes.into_iter().next())
    }

    /// The chosen node, or another if it is gone by now, or leaves.
    fn heir_or(&self, chosen: &NodeId) -> Option<NodeId> {
        if self.view.stays(chosen) { Some(chosen.clone()) } else { self.heir() }
    }

    fn patience(&self) -> Duration {
        match self.checkpoints.longest_stretch(Instant::now()) {
            Some(stretch) => PATIENCE.max(stretch.saturating_mul(PATIENCE_STRETCHES)),
            None => PATIENCE,
        }
    }

    /// No checkpoint came in time.
    fn hurry_root(&mut self, stop_within: Duration, ctx: &mut Context<Self>) {
        if self.phase != Phase::Running {
            return;
        }
        let to = self.moving.as_ref().and_then(|moving| self.heir_or(&moving.to));
        if let (Some(moving), Some(to)) = (&mut self.moving, to) {
            tracing::info!(%to, "the root leaves no checkpoint and moves as it is");
            moving.to = to.clone();
            self.engine.stop_root(&StopRoot::Now { heir: to });
            ctx.run_later(stop_within, |coordinator, ctx| coordinator.leave_root_behind(ctx));
        }
    }

    /// The root does not stop: it makes no call. Its heir does not wait for it.
    fn leave_root_behind(&mut self, ctx: &mut Context<Self>) {
        if self.phase != Phase::Running || self.moving.is_none() {
            return;
        }
        if let Some(left) = self.engine.leave_root_behind() {
            tracing::info!("the root makes no call and is left behind");
            self.root_stopped(left, ctx);
        }
    }

    /// The root has stopped, to go on elsewhere.
    pub(super) fn root_stopped(&mut self, mut left: RootLeft, ctx: &mut Context<Self>) {
        let Some(Moving { to, reason }) = self.moving.take() else {
            let reason = "its root was stopped, and nobody had asked for that".to_owned();
            return self.end(Err(JobError::Start { reason }), ctx);
        };
        if self.phase != Phase::Running {
            return;
        }
        self.phase = Phase::HandingOver;
        let root = self.checkpoints.last().cloned();
        if let Some(kept) = &root {
            left.forget_before(kept.saved.next_child);
        }
        let (job, epoch) = (self.spec.id, self.spec.epoch);
        let Some(to) = self.heir_or(&to) else { return self.go_on_here(left, ctx) };
        let memory = self.adaptation.memory().clone();
        let bequest = Bequest { epoch, memory, root, left: left.clone() };
        let worker = self.hub.remote::<Worker>(&to, WORKER);
        let bequeath = worker.send(Bequeath { job, bequest }).deadline(BEQUEATH_WITHIN).start();
        let scheduler = self.hub.remote::<Scheduler>(&self.scheduler.node, SCHEDULER);
        let handed = async move {
            if let Err(error) = bequeath.await {
                // It may be lost; the scheduler finds another then, which gathers what it can.
                tracing::warn!(%to, %error, "the job's heir did not take what is left");
            }
            let order = HandOver { job, epoch, to, reason };
            for _ in 0..ASK_TIMES {
                match scheduler.send(order.clone()).deadline(ASK_WITHIN).await {
                    Ok(Ok(())) => return Ok(true),
                    Ok(Err(stale)) => {
                        tracing::info!("{stale}");
                        return Ok(false);
                    }
                    Err(error) => tracing::warn!(%error, "the scheduler was not told of the heir"),
                }
                tokio::time::sleep(ASK_WITHIN).await;
            }
            Err(())
        };
        ctx.spawn(handed.into_actor(self).map(move |handed, coordinator, ctx| match handed {
            // The view of the new epoch ends this actor: see `Replaced`.
            Ok(true) => {}
            Ok(false) => ctx.stop(),
            Err(()) => coordinator.go_on_here(left, ctx),
        }));
    }

    /// The root cannot go elsewhere: it goes on where it is.
    fn go_on_here(&mut self, left: RootLeft, ctx: &mut Context<Self>) {
        if self.phase != Phase::HandingOver {
            return;
        }
        let text = "the job's root cannot move now: it goes on where it is".to_owned();
        self.tell(NoteKind::Say { text });
        let root = self.checkpoints.last().cloned();
        self.engine.inherit_root(left);
        self.start_root(root, ctx);
        self.leave_at_last(ctx);
    }
}
