//! Indirect probes, as in SWIM: before a silent member counts as dead, other members are asked
//! whether they reach it.
//!
//! A line between two clusters may be cut while a third cluster reaches both. Then no member is
//! dead, and work continues through relays. This module does not know the consequences.

use std::sync::Arc;
use std::time::Duration;

use springtide_protocol::names::WORKER;
use springtide_protocol::receivers::Worker;
use springtide_protocol::worker::ProbeMember;
use springtide_runtime::id::{ClusterId, Incarnation, JobId, NodeId};
use springtide_runtime::membership::View;
use springtide_runtime::remote::Hub;

/// Number of members asked at a time.
const PROXIES: usize = 3;
/// Time to wait for a proxy's answer.
const ANSWER_WITHIN: Duration = Duration::from_millis(2500);

/// The members to ask about `target`: coordinators of third clusters first, since a cut is between
/// two clusters. `round` varies the choice.
fn proxies(view: &View, me: &NodeId, target: &NodeId, round: usize) -> Vec<NodeId> {
    let ends = [view.cluster_of(me), view.cluster_of(target)];
    let apart = |(cluster, _): &(&ClusterId, &NodeId)| !ends.contains(&Some(*cluster));
    let thirds = view.cluster_coordinators.iter().filter(apart).map(|(_, node)| node);
    let mut all: Vec<&NodeId> = thirds.collect();
    if all.len() < PROXIES {
        // Then members of the two clusters themselves.
        let others = view.members.keys().filter(|node| *node != me && *node != target);
        let others: Vec<&NodeId> = others.filter(|node| !all.contains(node)).collect();
        let lacking = PROXIES - all.len();
        let count = others.len().max(1);
        all.extend((0..lacking.min(others.len())).map(|at| others[(round * lacking + at) % count]));
        return all.into_iter().cloned().collect();
    }
    let count = all.len();
    (0..PROXIES).map(|at| all[(round * PROXIES + at) % count].clone()).collect()
}

/// Asks other members of the view whether they reach this incarnation of a member. The questions
/// are under way when this returns.
pub(crate) fn probe_indirectly(
    hub: &Arc<Hub>,
    job: JobId,
    view: &View,
    (target, incarnation): (&NodeId, Incarnation),
    round: usize,
) -> impl Future<Output = bool> + 'static + use<> {
    let probe = ProbeMember { job, node: target.clone(), incarnation };
    let ask = |proxy: NodeId| {
        hub.remote::<Worker>(&proxy, WORKER).send(probe.clone()).deadline(ANSWER_WITHIN).start()
    };
    let me = &hub.net().me().node;
    let calls: Vec<_> = proxies(view, me, target, round).into_iter().map(ask).collect();
    async move {
        for call in calls {
            if matches!(call.await, Ok(true)) {
                return true;
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use springtide_runtime::membership::Member;
    use springtide_runtime::net::Address;

    use super::*;

    fn view(members: &[(&str, &str)]) -> View {
        let member = |cluster: &str| Member {
            incarnation: Incarnation(1),
            cluster: cluster.into(),
            address: Address::Memory,
            threads: 1,
            leaving: false,
        };
        View::default()
            .with(members.iter().map(|(node, cluster)| ((*node).into(), member(cluster))))
    }

    #[test]
    fn third_clusters_are_asked_in_turn_then_others() {
        let all = [("a-1", "a"), ("a-2", "a"), ("b-1", "b"), ("c-1", "c"), ("c-2", "c")];
        let (me, target) = (NodeId::from("a-1"), NodeId::from("b-1"));
        // The coordinator of the third cluster each time, and the others in turn.
        let asked = |view: &View, round| proxies(view, &me, &target, round);
        assert_eq!(asked(&view(&all), 0), ["c-1", "a-2", "c-2"].map(NodeId::from));
        assert_eq!(asked(&view(&all[..3]), 0), ["a-2"].map(NodeId::from));
        assert_eq!(asked(&view(&[("a-1", "a"), ("b-1", "b")]), 5), []);
        let names: Vec<String> = ('a'..='h').map(|cluster| format!("{cluster}-1")).collect();
        let many: Vec<(&str, &str)> = names.iter().map(|name| (&name[..], &name[..1])).collect();
        assert_eq!(asked(&view(&many), 0), ["c-1", "d-1", "e-1"].map(NodeId::from));
        assert_eq!(asked(&view(&many), 1), ["f-1", "g-1", "h-1"].map(NodeId::from));
    }
}
