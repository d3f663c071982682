//! The job's side of the malleability manager: how many processors it accepts, and which it
//! releases.
//!
//! Independent of other jobs and of the manager's choices.

use std::collections::BTreeSet;
use std::time::Duration;

use actix::prelude::*;
use springtide_protocol::job::NoteKind;
use springtide_protocol::names::SCHEDULER;
use springtide_protocol::receivers::Scheduler;
use springtide_protocol::scheduler::{
    AskShrink, GrowthRefused, JobEfficiency, NeedNodes, OfferGrowth, ResizeError,
};
use springtide_runtime::id::{ClusterId, Epoch, NodeId};
use springtide_runtime::membership::Member;
use springtide_runtime::processors::Processors;
use springtide_runtime::remote::RemoteError;
use springtide_runtime::wire::WireError;
use springtide_runtime::work::{JobEntry, NodeCounts};

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
    /// Number of nodes returned.
    count: u32,
}

/// Number of nodes that a job releases. The program agrees to `says`, and at most `spare` are
/// possible. In a mandatory order, the program cannot release fewer than ordered, since they would
/// be taken by force.
fn released_count(ask: &AskShrink, says: u32, spare: u32) -> u32 {
    let gives = if ask.mandatory { says.max(ask.count) } else { says };
    gives.min(spare)
}

impl Coordinator {
    /// Asks the job's own decision procedure about a number of nodes. Without one, the answer is
    /// `else_`.
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

    /// Number of these processors that the program accepts.
    pub(super) fn program_takes(&self, count: Processors) -> Processors {
        // The program decides on nodes.
        let size = self.sizes(1, None).threads.max(1);
        let nodes = count.get().div_ceil(size);
        let takes = self.program_takes_nodes(nodes, None);
        if takes == nodes { count } else { Processors(takes).saturating_mul(size) }
    }

    /// Minimum and maximum processors of the job.
    ///
    /// The malleability manager counts nodes. The bounds of its jobs are converted by the mean size
    /// of the members.
    pub(super) fn bounds(&self) -> (Processors, Option<Processors>) {
        let params = &self.spec.params;
        let (min, max) = (params.min_or_one(), params.max_processors);
        if !params.managed {
            return (min, max);
        }
        let size = self.sizes(1, None).threads.max(1);
        (min.saturating_mul(size), max.map(|max| max.saturating_mul(size)))
    }

    /// Number of these nodes that the program accepts. `cluster` is their cluster, if known.
    fn program_takes_nodes(&self, count: u32, cluster: Option<&ClusterId>) -> u32 {
        // The program returned as many of the same nodes already.
        let again = |back: &ReturnedNodes| {
            count <= back.count
                && self.changes.coming_nodes() == 0
                && back.remaining == self.staying_nodes()
        };
        if self.returned.as_ref().is_some_and(again) {
            return 0;
        }
        let has = self.sizes(self.staying().count(), None);
        let has = NodeCounts {
            nodes: has.nodes.saturating_add(self.changes.coming_nodes()),
            threads: has.threads.saturating_add(self.changes.coming().get()),
        };
        let offered = self.sizes(count as usize, cluster);
        self.program_says(|job, body| job.accept_growth(body, has, offered), count)
    }

    /// Sizes of nodes with the mean threads of this cluster's members, or of all members if the
    /// cluster has none. For all staying members, the result is exact.
    fn sizes(&self, nodes: usize, cluster: Option<&ClusterId>) -> NodeCounts {
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
        NodeCounts { nodes: count(nodes as u64), threads: count(threads) }
    }

    fn staying_nodes(&self) -> BTreeSet<NodeId> {
        self.staying().map(|(node, _)| node.clone()).collect()
    }

    /// Members that were not ordered to leave.
    fn staying(&self) -> impl Iterator<Item = (&NodeId, &Member)> {
        self.view.members.iter().filter(|(_, member)| !member.leaving)
    }

    /// Number of offered nodes that the job accepts. The predicted efficiency must stay in the
    /// band, and the program must agree. Without a measurement, only the program decides. A cluster
    /// that was removed or has a thin link is rejected.
    fn accepted_count(&self, offer: &OfferGrowth) -> u32 {
        if self.phase != CoordinatorPhase::Running || self.adaptation.keeps_out(&offer.cluster) {
            return 0;
        }
        let members = self.view.members.iter();
        let has: Processors = members.map(|(_, member)| member.processors()).sum();
        let (_, max) = self.bounds();
        let room = max.map_or(Processors::MAX, |max| max.saturating_sub(has));
        // The manager offers nodes.
        let size = self.sizes(1, Some(&offer.cluster)).threads.max(1);
        let offered = offer.count.min(room.get() / size);
        let takes = match self.adaptation.efficiency() {
            None => offered,
            Some((efficiency, processors)) => {
                let benefit = Benefit::measured(efficiency, processors.get());
                let (has, offered) = (has.get(), offered.saturating_mul(size));
                benefit.acceptable(has, offered, self.spec.params.settings.e_min) / size
            }
        };
        self.program_takes_nodes(takes, Some(&offer.cluster))
    }

    /// Members of the cluster to release, the worst first. The root's node stays.
    fn nodes_to_release(&self, ask: &AskShrink) -> Vec<NodeId> {
        if self.phase != CoordinatorPhase::Running {
            return Vec::new();
        }
        let has = u32::try_from(self.staying().count()).unwrap_or(u32::MAX);
        // Only the manager asks, and it counts nodes.
        let least = self.spec.params.min_or_one().get();
        let (all, asked) =
            (self.sizes(has as usize, None), self.sizes(ask.count as usize, Some(&ask.cluster)));
        let says = self.program_says(|job, body| job.accept_shrink(body, all, asked), ask.count);
        let count = released_count(ask, says, has.saturating_sub(least)) as usize;
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
        // Unrated nodes in descending order of name.
        here.sort_by(|a, b| rank(a).cmp(&rank(b)).then(b.cmp(a)));
        here.into_iter().take(count).cloned().collect()
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
        // The manager counts nodes.
        let processors = processors.get().div_ceil(self.sizes(1, None).threads.max(1));
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
            let count = u32::try_from(nodes.len()).unwrap_or(u32::MAX);
            self.returned = Some(ReturnedNodes { remaining, count });
        }
        self.remove(&nodes, "the program has no use for it", None, ctx);
    }
}

impl Handler<OfferGrowth> for Coordinator {
    type Result = u32;

    fn handle(&mut self, offer: OfferGrowth, _: &mut Self::Context) -> Self::Result {
        let takes = self.accepted_count(&offer);
        tracing::info!("{} of {} more nodes of {} are accepted", takes, offer.count, offer.cluster);
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
        self.remove(&nodes, &ask.why, Some(Duration::from_millis(ask.timeout_ms)), ctx);
        u32::try_from(nodes.len()).unwrap_or(u32::MAX)
    }
}

#[cfg(test)]
mod tests {
    use springtide_runtime::id::{Epoch, JobId};

    use super::{AskShrink, concerns, numbered, released_count};

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
        // The program's answer, its spare nodes, and the nodes released in an optional and in a
        // mandatory order.
        for (says, spare, may, must) in [(0, 9, 0, 3), (4, 9, 4, 4), (0, 2, 0, 2), (9, 5, 5, 5)] {
            assert_eq!(released_count(&ask(false), says, spare), may, "{says} of {spare}");
            assert_eq!(released_count(&ask(true), says, spare), must, "{says} of {spare}");
        }
    }
}
