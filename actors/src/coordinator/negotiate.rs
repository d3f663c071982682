//! The job's side of the malleability manager: how many processors it takes, and which it gives back.
//!
//! Must not know other jobs, nor how the manager chooses among them.

use std::collections::BTreeSet;
use std::time::Duration;

use actix::prelude::*;
use springtide_runtime::id::{ClusterId, Epoch, NodeId};
use springtide_runtime::membership::Member;
use springtide_runtime::remote::RemoteError;
use springtide_runtime::wire::WireError;
use springtide_runtime::work::{JobEntry, Sizes};

use super::{Coordinator, Phase};
use crate::job::{NoteKind, SCHEDULER};
use crate::policy::malleability::Benefit;
use crate::scheduler::{
    AskShrink, GrowthRefused, JobEfficiency, NeedNodes, OfferGrowth, ResizeError, Scheduler,
};

/// The program has no use for these nodes: the job's root says so. Local only.
#[derive(Clone, Debug, Message)]
#[rtype(result = "()")]
pub(super) struct Unneeded {
    pub(super) nodes: Vec<NodeId>,
}

/// What the program has given back, for it had no use for it: it is not to be offered that again, for it would go the same way.
/// What the program says to offers is about numbers alone; nodes of several sizes, and its own state, it sees when they are there.
pub(super) struct GivenBack {
    /// The members that stayed. Among others it may have use for more.
    left: BTreeSet<NodeId>,
    /// How many nodes it gave back.
    count: u32,
}

/// How many nodes a job gives, which `says` so many and has so many `spare`. What it must give and does not is taken from it without
/// order, so it is not asked about that; it may give more.
fn given(ask: &AskShrink, says: u32, spare: u32) -> u32 {
    let gives = if ask.mandatory { says.max(ask.count) } else { says };
    gives.min(spare)
}

impl Coordinator {
    /// What the job's own decision procedure says of a number of nodes; one that cannot be asked has nothing to say.
    fn program_says(
        &self,
        says: impl FnOnce(&JobEntry, &[u8]) -> Result<u32, WireError>,
        else_: u32,
    ) -> u32 {
        let Some(job) = self.registry.find_job(&self.spec.name) else { return else_ };
        says(job, &self.spec.body).unwrap_or_else(|error| {
            tracing::warn!(%error, "the job's decision procedure is not asked");
            else_
        })
    }

    /// Of so many more nodes as many as the program would take; of which cluster they are, if that is known.
    pub(super) fn program_takes(&self, count: u32, cluster: Option<&ClusterId>) -> u32 {
        // As many of these same nodes it has given back already.
        let again = |back: &GivenBack| {
            count <= back.count && self.changes.coming() == 0 && back.left == self.staying_nodes()
        };
        if self.given_back.as_ref().is_some_and(again) {
            return 0;
        }
        let has = self.sizes(self.staying().count(), None);
        let coming = self.sizes(self.changes.coming() as usize, None);
        let has = Sizes {
            nodes: has.nodes.saturating_add(coming.nodes),
            threads: has.threads.saturating_add(coming.threads),
        };
        let offered = self.sizes(count as usize, cluster);
        self.program_says(|job, body| job.accept_growth(body, has, offered), count)
    }

    /// So many nodes, with threads as the members of this cluster have on average, or all where it has none. (Of all that stay it
    /// is as many as they have.)
    fn sizes(&self, nodes: usize, cluster: Option<&ClusterId>) -> Sizes {
        let of = |cluster: Option<&ClusterId>| {
            let here = self.staying().filter(|(_, m)| cluster.is_none_or(|c| m.cluster == *c));
            here.fold((0, 0), |(n, threads), (_, m)| (n + 1, threads + u64::from(m.threads)))
        };
        let (members, threads) = match of(cluster) {
            (0, _) => of(None),
            some => some,
        };
        let threads = (threads * nodes as u64).div_ceil(members.max(1));
        let count = |n: u64| u32::try_from(n).unwrap_or(u32::MAX);
        Sizes { nodes: count(nodes as u64), threads: count(threads) }
    }

    fn staying_nodes(&self) -> BTreeSet<NodeId> {
        self.staying().map(|(node, _)| node.clone()).collect()
    }

    /// Members that were not told to leave.
    fn staying(&self) -> impl Iterator<Item = (&NodeId, &Member)> {
        self.view.members.iter().filter(|(_, member)| !member.leaving)
    }

    /// Of what is offered it takes as many as leave its efficiency, as predicted from the last one measured, in the band, and as
    /// many of these as the program takes. One that was not measured yet takes what the program does: nothing else speaks against it.
    /// Of a cluster that it has removed, or whose link it knows to be too thin, it takes nothing.
    fn takes(&self, offer: &OfferGrowth) -> u32 {
        if self.phase != Phase::Running || self.adaptation.keeps_out(&offer.cluster) {
            return 0;
        }
        let has = u32::try_from(self.view.members.len()).unwrap_or(u32::MAX);
        let room = self.spec.params.max_nodes.map_or(u32::MAX, |most| most.saturating_sub(has));
        let takes = match self.adaptation.efficiency() {
            None => offer.count.min(room),
            Some((efficiency, processors)) => {
                let benefit = Benefit::measured(efficiency, processors);
                benefit.takes(has, offer.count.min(room), self.spec.params.settings.e_min)
            }
        };
        self.program_takes(takes, Some(&offer.cluster))
    }

    /// Members of the cluster that go, the worst first; the node of the root stays.
    fn gives(&self, ask: &AskShrink) -> Vec<NodeId> {
        if self.phase != Phase::Running {
            return Vec::new();
        }
        let has = u32::try_from(self.staying().count()).unwrap_or(u32::MAX);
        let least = self.spec.params.least_nodes();
        let (all, asked) =
            (self.sizes(has as usize, None), self.sizes(ask.count as usize, Some(&ask.cluster)));
        let says = self.program_says(|job, body| job.accept_shrink(body, all, asked), ask.count);
        let count = given(ask, says, has.saturating_sub(least)) as usize;
        let worst = self.adaptation.worst_of(&ask.cluster);
        let rank =
            |node: &NodeId| worst.iter().position(|named| named == node).unwrap_or(usize::MAX);
        let mut here: Vec<&NodeId> = self
            .staying()
            .filter(|(node, member)| {
                member.cluster == ask.cluster && self.view.coordinator.as_ref() != Some(*node)
            })
            .map(|(node, _)| node)
            .collect();
        // Of those of whom nothing is known the one with the last name goes first.
        here.sort_by(|a, b| rank(a).cmp(&rank(b)).then(b.cmp(a)));
        here.into_iter().take(count).cloned().collect()
    }

    /// The job does not get the nodes that it says it needs: who watches it is told, and its root.
    fn refused(&self, why: &str) {
        self.engine.refuse_nodes(why);
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

/// The scheduler hears that a job runs some time after its root has begun, and until then refuses it as one that does not: it is
/// asked again after this time, so often.
const ASK_AGAIN: Duration = Duration::from_secs(1);
const ASKS_MAX: u32 = 5;

/// How a coordinator numbers what it asks for, so that no two of the job's have the same.
fn numbered(epoch: Epoch, request: u64) -> u64 {
    u64::from(epoch.0) << 32 | (request & u64::from(u32::MAX))
}

/// Whether a refusal is of the request of this number, the last one: that of an earlier one may cross a later one. What has no number
/// takes the place of every request.
fn concerns(refused: u64, last: u64) -> bool {
    refused == 0 || refused == last
}

impl Coordinator {
    /// Asks the scheduler for nodes. What is asked for later takes the place of this.
    fn want_nodes(&self, want: WantNodes, number: u64, tries: u32, ctx: &mut Context<Self>) {
        let (job, epoch, count) = (self.spec.id, self.spec.epoch, want.more);
        let within_ms = want.within.map(|t| u64::try_from(t.as_millis()).unwrap_or(u64::MAX));
        let scheduler = self.hub.remote::<Scheduler>(&self.scheduler.node, SCHEDULER);
        let numbered = numbered(epoch, number);
        let need = NeedNodes { job, epoch, count, within_ms, number: numbered };
        let call = scheduler.send(need).start();
        let then = move |answer: Result<Result<_, _>, RemoteError>,
                         job: &mut Self,
                         ctx: &mut Context<Self>| {
            if number != job.wants {
                return;
            }
            let why = match answer {
                Ok(Ok(_)) => return,
                Ok(Err(ResizeError::NotRunning { .. })) if tries < ASKS_MAX => {
                    ctx.run_later(ASK_AGAIN, move |job, ctx| {
                        if number == job.wants {
                            job.want_nodes(want, number, tries + 1, ctx);
                        }
                    });
                    return;
                }
                Ok(Err(error)) => ResizeError::to_string(&error),
                Err(error) => error.to_string(),
            };
            job.refused(&why);
        };
        ctx.spawn(call.into_actor(self).map(then));
    }
}

impl Handler<WantNodes> for Coordinator {
    type Result = ();

    fn handle(&mut self, want: WantNodes, ctx: &mut Self::Context) {
        // It has use for them now.
        self.given_back = None;
        self.wants += 1;
        self.want_nodes(want, self.wants, 1, ctx);
    }
}

impl Handler<GrowthRefused> for Coordinator {
    type Result = ();

    fn handle(&mut self, refused: GrowthRefused, _: &mut Self::Context) {
        if concerns(refused.number, numbered(self.spec.epoch, self.wants)) {
            self.refused(&refused.reason);
        }
    }
}

impl Handler<Unneeded> for Coordinator {
    type Result = ();

    fn handle(&mut self, Unneeded { nodes }: Unneeded, ctx: &mut Self::Context) {
        let has = self.staying().count();
        let most = has.saturating_sub(self.spec.params.least_nodes() as usize);
        // The node of the root computes in any case.
        let here =
            |node: &&NodeId| self.view.stays(node) && self.view.coordinator.as_ref() != Some(*node);
        let nodes: Vec<NodeId> = nodes.iter().filter(here).take(most).cloned().collect();
        if !nodes.is_empty() {
            let mut left = self.staying_nodes();
            left.retain(|node| !nodes.contains(node));
            let count = u32::try_from(nodes.len()).unwrap_or(u32::MAX);
            self.given_back = Some(GivenBack { left, count });
        }
        self.remove(&nodes, "the program has no use for it", None, ctx);
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

#[cfg(test)]
mod tests {
    use springtide_runtime::id::{Epoch, JobId};

    use super::{AskShrink, concerns, given, numbered};

    #[test]
    fn a_refusal_of_an_earlier_request_is_none_of_the_last() {
        let last = numbered(Epoch(2), 3);
        assert!(concerns(last, last));
        assert!(
            concerns(0, last),
            "the owner's order took its place, or the head tells no numbers"
        );
        assert!(!concerns(numbered(Epoch(2), 2), last));
        assert!(!concerns(numbered(Epoch(1), 3), last), "that of the coordinator before");
    }

    #[test]
    fn what_must_be_given_is_given_whatever_the_program_says() {
        let ask = |mandatory| AskShrink {
            job: JobId(1),
            cluster: "ams".into(),
            count: 3,
            mandatory,
            within_ms: 5000,
            why: "a test".into(),
        };
        // What the program says, what it can spare, and what it gives if it may, and if it must.
        for (says, spare, may, must) in [(0, 9, 0, 3), (4, 9, 4, 4), (0, 2, 0, 2), (9, 5, 5, 5)] {
            assert_eq!(given(&ask(false), says, spare), may, "{says} of {spare}");
            assert_eq!(given(&ask(true), says, spare), must, "{says} of {spare}");
        }
    }
}
