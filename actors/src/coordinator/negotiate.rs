//! The job's side of the malleability manager: how many processors it takes, and which it gives back.
//!
//! Must not know other jobs, nor how the manager chooses among them.

use std::time::Duration;

use actix::prelude::*;
use springtide_runtime::id::NodeId;
use springtide_runtime::remote::RemoteError;

use super::{Coordinator, Phase};
use crate::job::{NoteKind, SCHEDULER};
use crate::policy::malleability::Benefit;
use crate::scheduler::{
    AskShrink, GrowthRefused, JobEfficiency, NeedNodes, OfferGrowth, ResizeError, Scheduler,
};

impl Coordinator {
    /// Of what is offered it takes as many as leave its efficiency, as predicted from the last one measured, in the band. One
    /// that was not measured yet takes all: nothing speaks against it.
    fn takes(&self, offer: &OfferGrowth) -> u32 {
        if self.phase != Phase::Running {
            return 0;
        }
        let has = u32::try_from(self.view.members.len()).unwrap_or(u32::MAX);
        let room = self.spec.params.max_nodes.map_or(u32::MAX, |most| most.saturating_sub(has));
        let Some((efficiency, processors)) = self.adaptation.efficiency() else {
            return offer.count.min(room);
        };
        let benefit = Benefit::measured(efficiency, processors);
        benefit.takes(has, offer.count.min(room), self.spec.params.settings.e_min)
    }

    /// Members of the cluster that go, the worst first; the node of the root stays.
    fn gives(&self, ask: &AskShrink) -> Vec<NodeId> {
        if self.phase != Phase::Running {
            return Vec::new();
        }
        let staying = self.view.members.iter().filter(|(_, member)| !member.leaving);
        let has = u32::try_from(staying.clone().count()).unwrap_or(u32::MAX);
        let least = self.spec.params.least_nodes();
        let count = ask.count.min(has.saturating_sub(least)) as usize;
        let worst = self.adaptation.worst_of(&ask.cluster);
        let rank =
            |node: &NodeId| worst.iter().position(|named| named == node).unwrap_or(usize::MAX);
        let mut here: Vec<&NodeId> = staying
            .filter(|(node, member)| {
                member.cluster == ask.cluster && self.view.coordinator.as_ref() != Some(*node)
            })
            .map(|(node, _)| node)
            .collect();
        // Of those of whom nothing is known the one with the last name goes first.
        here.sort_by(|a, b| rank(a).cmp(&rank(b)).then(b.cmp(a)));
        here.into_iter().take(count).cloned().collect()
    }

    /// The job does not get the nodes that it says it needs.
    fn refused(&self, why: &str) {
        self.tell(NoteKind::Say { text: format!("the job does not get more nodes: {why}") });
    }

    /// Tells the manager how well the nodes are used.
    pub(super) fn tell_efficiency(&self, efficiency: f64, processors: u32) {
        if !self.spec.params.managed {
            return;
        }
        let (job, epoch) = (self.spec.id, self.spec.epoch);
        let told = JobEfficiency { job, epoch, efficiency, processors };
        let scheduler = self.hub.remote::<Scheduler>(&self.scheduler.node, SCHEDULER);
        let call = scheduler.send(told).start();
        actix_rt::spawn(async move {
            // The next period tells it again.
            let _ = call.await;
        });
    }
}

/// The job's root says that it needs more nodes. Local only.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "()")]
pub(super) struct WantNodes {
    pub(super) more: u32,
    pub(super) within: Option<Duration>,
}

impl Handler<WantNodes> for Coordinator {
    type Result = ();

    fn handle(&mut self, WantNodes { more, within }: WantNodes, ctx: &mut Self::Context) {
        let (job, epoch, count) = (self.spec.id, self.spec.epoch, more);
        let within_ms = within.map(|t| u64::try_from(t.as_millis()).unwrap_or(u64::MAX));
        let scheduler = self.hub.remote::<Scheduler>(&self.scheduler.node, SCHEDULER);
        let call = scheduler.send(NeedNodes { job, epoch, count, within_ms }).start();
        let then = |answer: Result<Result<_, _>, RemoteError>, job: &mut Self, _: &mut _| {
            let why = match answer {
                Ok(Ok(_)) => return,
                Ok(Err(error)) => ResizeError::to_string(&error),
                Err(error) => error.to_string(),
            };
            job.refused(&why);
        };
        ctx.spawn(call.into_actor(self).map(then));
    }
}

impl Handler<GrowthRefused> for Coordinator {
    type Result = ();

    fn handle(&mut self, refused: GrowthRefused, _: &mut Self::Context) {
        self.refused(&refused.reason);
    }
}

impl Handler<OfferGrowth> for Coordinator {
    type Result = u32;

    fn handle(&mut self, offer: OfferGrowth, _: &mut Self::Context) -> Self::Result {
        let takes = self.takes(&offer);
        tracing::info!("{} of {} more nodes of {} are taken", takes, offer.count, offer.cluster);
        if takes > 0 {
            self.adaptation.ordered(takes);
        }
        takes
    }
}

impl Handler<AskShrink> for Coordinator {
    type Result = u32;

    fn handle(&mut self, ask: AskShrink, ctx: &mut Self::Context) -> Self::Result {
        let nodes = self.gives(&ask);
        if !nodes.is_empty() {
            self.adaptation.ordered(0);
        }
        self.remove(&nodes, &ask.why, Some(Duration::from_millis(ask.within_ms)), ctx);
        u32::try_from(nodes.len()).unwrap_or(u32::MAX)
    }
}
