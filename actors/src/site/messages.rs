//! Internal messages of a site: changes of its nodes' processors, and polls. None leaves the
//! process.

use std::rc::Rc;
use std::time::Duration;

use actix::prelude::*;
use springtide_protocol::scheduler::{Drain, StubDelay, StubLossKind};
use springtide_protocol::site::MEMORY_EXIT_CODE;
use springtide_runtime::id::NodeId;

use super::keeper::StubExit;
use super::{ASK_WITHIN, NodeLifecycle, Site};

/// A node has lost its processor.
#[derive(Message)]
#[rtype(result = "()")]
pub(super) struct ProcessorLoss {
    pub(super) node: NodeId,
    pub(super) round: u64,
    pub(super) end: StubExit,
}

/// A node's program is being started in its processor.
#[derive(Clone, Message)]
#[rtype(result = "()")]
pub(super) struct ProgramStarting {
    pub(super) node: NodeId,
    pub(super) round: u64,
}

/// A node's processor will be revoked.
#[derive(Message)]
#[rtype(result = "()")]
pub(super) struct RevocationNotice {
    pub(super) node: NodeId,
    pub(super) within: Duration,
    pub(super) reason: String,
}

/// Why a node has no processor yet.
#[derive(Message)]
#[rtype(result = "()")]
pub(super) struct ProcessorPending {
    pub(super) node: NodeId,
    pub(super) round: u64,
    pub(super) reason: String,
}

/// The scheduler knows the site.
#[derive(Message)]
#[rtype(result = "()")]
pub(super) struct SiteRegistered;

/// It is time to poll the provider.
#[derive(Message)]
#[rtype(result = "()")]
pub(super) struct Poll;

impl Handler<ProcessorLoss> for Site {
    type Result = ();

    fn handle(&mut self, message: ProcessorLoss, ctx: &mut Self::Context) {
        // A processor without a keeper was ended by an order, and the sender of the order has
        // reported its end.
        let awaited = |slot: &NodeLifecycle| slot.round == message.round && slot.keeper.is_some();
        let current = self.slots.get(&message.node).is_some_and(awaited);
        if !current || self.ending {
            return;
        }
        match &message.end {
            StubExit::Never(error) => self.never(ctx, &message.node, error),
            StubExit::Itself(ended) => {
                // Batch systems put it in brackets.
                let code = format!("exit status: {MEMORY_EXIT_CODE}");
                let itself = ended.status == code || ended.status.ends_with(&format!("({code})"));
                let kind = if ended.out_of_memory || itself {
                    StubLossKind::OutOfMemory
                } else {
                    StubLossKind::Ended
                };
                self.exited(ctx, &message.node, ended.describe(), kind);
            }
            StubExit::NotRecruited(error) => {
                let reason = format!("the replacement program did not start: {error}");
                self.exited(ctx, &message.node, reason, StubLossKind::Ended);
            }
            StubExit::Ordered => {}
        }
    }
}

impl Handler<ProgramStarting> for Site {
    type Result = ();

    fn handle(
        &mut self,
        ProgramStarting { node, round }: ProgramStarting,
        ctx: &mut Self::Context,
    ) {
        let Some(slot) = self.slots.get_mut(&node).filter(|slot| slot.round == round) else {
            return;
        };
        (slot.active, slot.waits, slot.unreached) = (true, None, 0);
        self.expect(ctx, node);
    }
}

impl Handler<ProcessorPending> for Site {
    type Result = ();

    fn handle(
        &mut self,
        ProcessorPending { node, round, reason }: ProcessorPending,
        _: &mut Self::Context,
    ) {
        let current = |slot: &&mut NodeLifecycle| slot.round == round && !slot.active;
        let Some(slot) = self.slots.get_mut(&node).filter(current) else { return };
        tracing::info!("node {node} waits for its processor: {reason}");
        slot.waits = Some(reason.clone());
        self.report(StubDelay { node, reason });
    }
}

impl Handler<RevocationNotice> for Site {
    type Result = ();

    /// Orders the node's job to release it in time.
    fn handle(
        &mut self,
        RevocationNotice { node, within, reason }: RevocationNotice,
        _: &mut Self::Context,
    ) {
        let Some(incarnation) = self.slots.get(&node).and_then(|slot| slot.registered) else {
            return;
        };
        let deadline_ms = Some(u64::try_from(within.as_millis()).unwrap_or(u64::MAX));
        let reason = format!("its processor will be taken away: {reason}");
        let drain =
            Drain { nodes: vec![node], reason, deadline_ms, incarnation: Some(incarnation) };
        let scheduler = self.scheduler.clone();
        actix::spawn(async move {
            // The node's end shows whether it was in time.
            if let Ok(Err(error)) = scheduler.send(drain).deadline(within.max(ASK_WITHIN)).await {
                tracing::warn!("a node is not drained: {error}");
            }
        });
    }
}

impl Handler<Poll> for Site {
    type Result = ();

    fn handle(&mut self, _: Poll, ctx: &mut Self::Context) {
        if self.ending {
            return;
        }
        let provider = Rc::clone(&self.provider);
        let asked = async move { provider.poll().await.map_err(|error| error.to_string()) };
        let on_done = |found, site: &mut Self, ctx: &mut Context<Self>| {
            let wait = site.polled(found);
            ctx.notify_later(Poll, wait);
        };
        ctx.spawn(asked.into_actor(self).map(on_done));
    }
}
