//! What a site tells itself: what became of its nodes' processors, and that it is time to look. No message of these leaves the process.

use std::rc::Rc;
use std::time::Duration;

use actix::prelude::*;
use springtide_runtime::id::NodeId;

use super::keeper::End;
use super::{ASK_WITHIN, Site, Slot};
use crate::scheduler::{Drain, StubWaits};

/// A node has no processor any more.
#[derive(Message)]
#[rtype(result = "()")]
pub(super) struct Exited {
    pub(super) node: NodeId,
    pub(super) round: u64,
    pub(super) end: End,
}

/// A node's program is being started in its processor.
#[derive(Clone, Message)]
#[rtype(result = "()")]
pub(super) struct Active {
    pub(super) node: NodeId,
    pub(super) round: u64,
}

/// A node's processor will be taken from it.
#[derive(Message)]
#[rtype(result = "()")]
pub(super) struct Warned {
    pub(super) node: NodeId,
    pub(super) within: Duration,
    pub(super) reason: String,
}

/// Why a node has no processor yet.
#[derive(Message)]
#[rtype(result = "()")]
pub(super) struct Waits {
    pub(super) node: NodeId,
    pub(super) round: u64,
    pub(super) reason: String,
}

/// The scheduler has heard of the site.
#[derive(Message)]
#[rtype(result = "()")]
pub(super) struct Introduced;

/// It is time to look what there is.
#[derive(Message)]
#[rtype(result = "()")]
pub(super) struct Poll;

impl Handler<Exited> for Site {
    type Result = ();

    fn handle(&mut self, message: Exited, ctx: &mut Self::Context) {
        // Without a keeper its end was told by whoever ordered it.
        let awaited = |slot: &Slot| slot.round == message.round && slot.keeper.is_some();
        let current = self.slots.get(&message.node).is_some_and(awaited);
        if !current || self.ending {
            return;
        }
        match &message.end {
            End::Never(error) => self.never(ctx, &message.node, error),
            End::Itself(ended) => self.exited(ctx, &message.node, ended.describe()),
            End::NotRecruited(error) => {
                let reason = format!("its other program was not started: {error}");
                self.exited(ctx, &message.node, reason);
            }
            End::Ordered => {}
        }
    }
}

impl Handler<Active> for Site {
    type Result = ();

    fn handle(&mut self, Active { node, round }: Active, ctx: &mut Self::Context) {
        let Some(slot) = self.slots.get_mut(&node).filter(|slot| slot.round == round) else {
            return;
        };
        (slot.active, slot.waits, slot.unreached) = (true, None, 0);
        self.expect(ctx, node);
    }
}

impl Handler<Waits> for Site {
    type Result = ();

    fn handle(&mut self, Waits { node, round, reason }: Waits, _: &mut Self::Context) {
        let current = |slot: &&mut Slot| slot.round == round && !slot.active;
        let Some(slot) = self.slots.get_mut(&node).filter(current) else { return };
        tracing::info!("node {node} waits for its processor: {reason}");
        slot.waits = Some(reason.clone());
        self.tell(StubWaits { node, reason });
    }
}

impl Handler<Warned> for Site {
    type Result = ();

    /// Its job is asked to let it go in time.
    fn handle(&mut self, Warned { node, within, reason }: Warned, _: &mut Self::Context) {
        let Some(life) = self.slots.get(&node).and_then(|slot| slot.registered) else { return };
        let deadline_ms = Some(u64::try_from(within.as_millis()).unwrap_or(u64::MAX));
        let reason = format!("its processor will be taken away: {reason}");
        let drain = Drain { nodes: vec![node], reason, deadline_ms, life: Some(life) };
        let scheduler = self.scheduler.clone();
        actix::spawn(async move {
            // Whether it was in time the node's end tells.
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
        let then = |found, site: &mut Self, ctx: &mut Context<Self>| {
            let wait = site.polled(found);
            ctx.notify_later(Poll, wait);
        };
        ctx.spawn(asked.into_actor(self).map(then));
    }
}
