//! The job's side of the malleability manager: how many processors it accepts, and which it
//! releases.
//!
//! This module knows neither other jobs nor the manager's choices.

use std::collections::BTreeSet;
use std::time::Duration;

use actix::prelude::*;
use springtide_protocol::job::NoteKind;
use springtide_protocol::names::SCHEDULER;
use springtide_protocol::receivers::Scheduler;
use springtide_protocol::scheduler::{
    AskShrink, GrowthRefused, JobEfficiency, NeedNodes, OfferGrowth, ResizeError,
};
use springtide_runtime::id::{Epoch, NodeId};
use springtide_runtime::membership::Member;
use springtide_runtime::processors::Processors;
use springtide_runtime::remote::RemoteError;
use springtide_runtime::wire::WireError;
use springtide_runtime::work::JobEntry;

use super::{Coordinator, CoordinatorPhase};
use crate::policy::malleability::Benefit;

/// The root has no use for these nodes. Local only.
#[derive(Clone, Debug, Message)]
#[rtype(result = "()")]
pub(super) struct Unneeded {
    pub(super) nodes: Vec<NodeId>,
}

/// Nodes that the program returned. The same number is not offered again to the same members: the
/// program's answers to offers consider numbers only, while it rejects nodes by size or by its own
/// state after their arrival.
pub(super) struct ReturnedNodes {
    /// The members that stayed. With other members the program may use more.
    remaining: BTreeSet<NodeId>,
    /// Number of processors returned.
    count: Processors,
}

/// Number of processors that a job is to release. The program agrees to `says`. In a mandatory
/// order, it cannot release fewer than ordered, since they would be taken by force.
fn released_count(ask: &AskShrink, says: Processors) -> Processors {
    if ask.mandatory { says.max(Processors(ask.count)) } else { says }
}

/// The first nodes, by position, that have `count` processors together. Nodes that exceed what is
/// left of `spare` stay.
fn nodes_with(sizes: &[Processors], count: Processors, spare: Processors) -> Vec<usize> {
    let (mut left, mut spare) = (count, spare);
    let mut nodes = Vec::new();
    for (index, &size) in sizes.iter().enumerate() {
        if left.is_zero() {
            break;
        }
        if let Some(rest) = spare.checked_sub(size) {
            (left, spare) = (left.saturating_sub(size), rest);
            nodes.push(index);
        }
    }
    nodes
}

impl Coordinator {
    /// Asks the job's own decision procedure about a number of processors. Without one, the answer
    /// is `default`.
    fn program_says(
        &self,
        says: impl FnOnce(&JobEntry, &[u8]) -> Result<Processors, WireError>,
        default: Processors,
    ) -> Processors {
        let Some(job) = self.registry.find_job(&self.spec.name) else { return default };
        says(job, &self.spec.body).unwrap_or_else(|error| {
            tracing::warn!(%error, "the job's decision procedure failed; the default is used");
            default
        })
    }

    /// Number of these processors that the program accepts.
    pub(super) fn program_takes(&self, count: Processors) -> Processors {
        // The program has already returned at least this many processors with the same members.
        let again = |back: &ReturnedNodes| {
            count <= back.count
                && self.changes.coming_nodes() == 0
                && back.remaining == self.staying_nodes()
        };
        if self.returned.as_ref().is_some_and(again) {
            return Processors::ZERO;
        }
        let has = self.staying_processors().saturating_add(self.changes.coming());
        self.program_says(|job, body| job.accept_growth(body, has, count), count)
    }

    /// Minimum and maximum processors of the job.
    pub(super) fn bounds(&self) -> (Processors, Option<Processors>) {
        (self.spec.params.min_or_one(), self.spec.params.max_processors)
    }

    /// Processors of members that were not ordered to leave.
    fn staying_processors(&self) -> Processors {
        self.staying().map(|(_, member)| member.processors()).sum()
    }

    fn staying_nodes(&self) -> BTreeSet<NodeId> {
        self.staying().map(|(node, _)| node.clone()).collect()
    }

    /// Members that were not ordered to leave.
    fn staying(&self) -> impl Iterator<Item = (&NodeId, &Member)> {
        self.view.members.iter().filter(|(_, member)| !member.leaving)
    }

    /// Number of offered processors that the job accepts. The predicted efficiency must stay in the
    /// band, and the program must agree. Without a measurement, only the program decides. A cluster
    /// that was removed or has a thin link is rejected.
    fn accepted_count(&self, offer: &OfferGrowth) -> Processors {
        if self.phase != CoordinatorPhase::Running || self.adaptation.keeps_out(&offer.cluster) {
            return Processors::ZERO;
        }
        let has: Processors = self.view.members.values().map(Member::processors).sum();
        let room = self.bounds().1.map_or(Processors::MAX, |max| max.saturating_sub(has));
        let offered = Processors(offer.count).min(room);
        let takes = match self.adaptation.efficiency() {
            None => offered,
            Some((efficiency, processors)) => {
                let benefit = Benefit::measured(efficiency, processors.get());
                let e_min = self.spec.params.settings.e_min;
                Processors(benefit.acceptable(has.get(), offered.get(), e_min))
            }
        };
        self.program_takes(takes)
    }

    /// Members of the cluster to release, the worst first. The root's node stays. They may have
    /// more processors than the order asks for, if the minimum permits it.
    fn nodes_to_release(&self, ask: &AskShrink) -> Vec<NodeId> {
        if self.phase != CoordinatorPhase::Running {
            return Vec::new();
        }
        let (has, asked) = (self.staying_processors(), Processors(ask.count));
        let says = self.program_says(|job, body| job.accept_shrink(body, has, asked), asked);
        let spare = has.saturating_sub(self.bounds().0);
        let worst = self.adaptation.worst_of(&ask.cluster);
        let rank =
            |node: &NodeId| worst.iter().position(|named| named == node).unwrap_or(usize::MAX);
        let mut here: Vec<(&NodeId, &Member)> = self
            .staying()
            .filter(|(node, member)| {
                member.cluster == ask.cluster && self.view.coordinator.as_ref() != Some(*node)
            })
            .collect();
        // Unrated nodes in descending order of name.
        here.sort_by(|(a, _), (b, _)| rank(a).cmp(&rank(b)).then(b.cmp(a)));
        let sizes: Vec<Processors> = here.iter().map(|(_, member)| member.processors()).collect();
        let chosen = nodes_with(&sizes, released_count(ask, says), spare);
        chosen.into_iter().map(|index| here[index].0.clone()).collect()
    }

    /// Informs the client and the root that a request for nodes was refused.
    fn refused(&self, why: &str) {
        self.engine.refuse_nodes(why);
        self.notify_client(NoteKind::Text {
            text: format!("the job does not get more nodes: {why}"),
        });
    }

    /// Reports the job's efficiency to the manager.
    pub(super) fn report_efficiency(&self, efficiency: f64, processors: Processors) {
        if !self.spec.params.managed {
            return;
        }
        let (job, epoch) = (self.spec.id, self.spec.epoch);
        let processors = processors.get();
        let report = JobEfficiency { job, epoch, efficiency, processors };
        let scheduler = self.hub.remote::<Scheduler>(&self.scheduler.node, SCHEDULER);
        let call = scheduler.send(report).start();
        actix_rt::spawn(async move {
            // The next period reports again.
            let _ = call.await;
        });
    }
}

/// The root requests more nodes. Local only.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "()")]
pub(super) struct WantNodes {
    pub(super) more: u32,
    pub(super) timeout: Option<Duration>,
}

/// Interval and maximum number of retries of a request. The scheduler learns of a job's start some
/// time after the root's start, and refuses requests until then.
const ASK_AGAIN: Duration = Duration::from_secs(1);
const ASKS_MAX: u32 = 5;

/// A number of a request that is unique in the job, over all coordinators.
fn numbered(epoch: Epoch, request: u64) -> u64 {
    u64::from(epoch.0) << 32 | (request & u64::from(u32::MAX))
}

/// Whether a refusal concerns the last request: the refusal of an earlier one may cross a later
/// request. A refusal without a number concerns every request.
fn concerns(refused: u64, last: u64) -> bool {
    refused == 0 || refused == last
}

impl Coordinator {
    /// Requests nodes from the scheduler. A later request replaces this one.
    fn want_nodes(&self, want: WantNodes, number: u64, tries: u32, ctx: &mut Context<Self>) {
        let (job, epoch, count) = (self.spec.id, self.spec.epoch, want.more);
        let within_ms = want.timeout.map(|t| u64::try_from(t.as_millis()).unwrap_or(u64::MAX));
        let scheduler = self.hub.remote::<Scheduler>(&self.scheduler.node, SCHEDULER);
        let numbered = numbered(epoch, number);
        let need = NeedNodes { job, epoch, count, timeout_ms: within_ms, number: numbered };
        let call = scheduler.send(need).start();
        let on_done = move |answer: Result<Result<_, _>, RemoteError>,
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
        ctx.spawn(call.into_actor(self).map(on_done));
    }
}

impl Handler<WantNodes> for Coordinator {
    type Result = ();

    fn handle(&mut self, want: WantNodes, ctx: &mut Self::Context) {
        // The root has use for nodes now.
        self.returned = None;
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
        let size =
            |node: &NodeId| self.view.members.get(node).map_or(Processors::ONE, Member::processors);
        let has: Processors = self.staying().map(|(node, _)| size(node)).sum();
        let mut spare = has.saturating_sub(self.bounds().0);
        // The root's node always computes.
        let here =
            |node: &&NodeId| self.view.stays(node) && self.view.coordinator.as_ref() != Some(*node);
        let mut nodes: Vec<NodeId> = nodes.iter().filter(here).cloned().collect();
        nodes.retain(|node| match spare.checked_sub(size(node)) {
            Some(left) => {
                spare = left;
                true
            }
            None => false,
        });
        if !nodes.is_empty() {
            let mut remaining = self.staying_nodes();
            remaining.retain(|node| !nodes.contains(node));
            let count = nodes.iter().map(size).sum();
            self.returned = Some(ReturnedNodes { remaining, count });
        }
        self.remove(&nodes, "the program has no use for it", None, ctx);
    }
}

impl Handler<OfferGrowth> for Coordinator {
    type Result = u32;

    fn handle(&mut self, offer: OfferGrowth, _: &mut Self::Context) -> Self::Result {
        let takes = self.accepted_count(&offer).get();
        let (count, cluster) = (offer.count, &offer.cluster);
        tracing::info!("{takes} of {count} more processors of {cluster} are accepted");
        if takes > 0 {
            self.adaptation.recent().ordered(takes);
        }
        takes
    }
}

impl Handler<AskShrink> for Coordinator {
    type Result = u32;

    fn handle(&mut self, ask: AskShrink, ctx: &mut Self::Context) -> Self::Result {
        let nodes = self.nodes_to_release(&ask);
        if !nodes.is_empty() {
            self.adaptation.recent().ordered(0);
        }
        let size = |node| self.view.members.get(node).map_or(Processors::ONE, Member::processors);
        let count: Processors = nodes.iter().map(size).sum();
        self.remove(&nodes, &ask.why, Some(Duration::from_millis(ask.timeout_ms)), ctx);
        count.get()
    }
}

#[cfg(test)]
mod tests {
    use springtide_runtime::id::{Epoch, JobId};

    use springtide_runtime::processors::Processors;

    use super::{AskShrink, concerns, nodes_with, numbered, released_count};

    #[test]
    fn a_refusal_of_an_earlier_request_does_not_concern_the_last() {
        let last = numbered(Epoch(2), 3);
        assert!(concerns(last, last));
        assert!(concerns(0, last), "the owner's order replaced it, or the head sends no numbers");
        assert!(!concerns(numbered(Epoch(2), 2), last));
        assert!(!concerns(numbered(Epoch(1), 3), last), "of the previous coordinator");
    }

    #[test]
    fn a_mandatory_order_overrides_the_program() {
        let ask = |mandatory| AskShrink {
            job: JobId(1),
            cluster: "ams".into(),
            count: 3,
            mandatory,
            timeout_ms: 5000,
            why: "a test".into(),
        };
        for (says, may, must) in [(0, 0, 3), (4, 4, 4), (2, 2, 3)] {
            assert_eq!(released_count(&ask(false), Processors(says)), Processors(may), "{says}");
            assert_eq!(released_count(&ask(true), Processors(says)), Processors(must), "{says}");
        }
    }

    #[test]
    fn whole_nodes_are_released_above_the_minimum() {
        for (sizes, count, spare, expected) in [
            (&[1, 1, 1][..], 2, 9, &[0, 1][..]),
            (&[1, 1, 1], 2, 1, &[0]),
            (&[4, 4], 3, 7, &[0]),
            (&[4, 1, 2], 3, 3, &[1, 2]),
            (&[4], 0, 9, &[]),
        ] {
            let all: Vec<Processors> = sizes.iter().map(|&size| Processors(size)).collect();
            let nodes = nodes_with(&all, Processors(count), Processors(spare));
            assert_eq!(nodes, expected, "{count} of {sizes:?}");
        }
    }
}
