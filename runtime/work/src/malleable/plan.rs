//! From a strategy to a set of processes: a pure function of the present processes.
//!
//! This module knows neither the reasons of a strategy nor its execution.

use std::collections::{BTreeMap, BTreeSet};

use super::program::Strategy;
use crate::id::{NodeId, Peer};

/// A present process: it computes, or waits to be recruited.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PresentProcess {
    pub(super) process: u32,
    pub(super) peer: Peer,
    /// Its rank, if it computes.
    pub(super) rank: Option<u32>,
    /// Whether its node is leaving.
    pub(super) leaving: bool,
}

/// One process of each node: the root's, or the computing one, else the first.
pub(super) fn first_of_nodes(present: Vec<PresentProcess>) -> Vec<PresentProcess> {
    let mut first: BTreeMap<Peer, PresentProcess> = BTreeMap::new();
    for one in present {
        let place = |one: &PresentProcess| (one.process != 0, one.rank.is_none(), one.process);
        match first.get_mut(&one.peer) {
            Some(other) if place(other) <= place(&one) => {}
            _ => _ = first.insert(one.peer.clone(), one),
        }
    }
    let mut some: Vec<PresentProcess> = first.into_values().collect();
    some.sort_by_key(|one| one.process);
    some
}

/// The next configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NextConfiguration {
    /// The processes that take part, in order of rank. The root's is the first.
    pub(super) members: Vec<u32>,
    /// Whether they get a new layout even if they are the present ones.
    pub(super) new_layout: bool,
    /// Nodes to release once the others compute.
    pub(super) release: Vec<NodeId>,
}

/// Chooses the processes that take part. The root's process, number 0, always does.
///
/// Nodes are filled one after the other, so that unneeded nodes are free as a whole. Nodes of
/// computing processes come first, by rank.
pub(super) fn plan(strategy: Strategy, present: &[PresentProcess]) -> NextConfiguration {
    let root = present.iter().find(|one| one.process == 0).map(|one| &one.peer.node);
    let usable = || present.iter().filter(|one| one.process == 0 || !one.leaving);
    let computes = |one: &&PresentProcess| one.rank.is_some();
    let mut nodes: BTreeMap<&NodeId, u32> = BTreeMap::new();
    for one in usable() {
        let rank = one.rank.unwrap_or(u32::MAX);
        nodes.entry(&one.peer.node).and_modify(|first| *first = rank.min(*first)).or_insert(rank);
    }
    let mut order: Vec<&PresentProcess> = usable().collect();
    order.sort_by_key(|one| {
        let node = &one.peer.node;
        let place = (root != Some(node), nodes.get(node).copied(), node);
        (one.process != 0, place, one.rank.unwrap_or(u32::MAX), one.process)
    });
    let now = usable().filter(computes).count();
    let (wanted, new_layout, release) = match strategy {
        // Before the start no process computes, so there is nothing to keep.
        Strategy::Keep | Strategy::Need(_) | Strategy::Rebalance if now == 0 => {
            (order.len(), true, false)
        }
        Strategy::Keep | Strategy::Need(_) => (now, false, false),
        Strategy::Rebalance => (now, true, false),
        Strategy::Use { processes, release } => (processes as usize, false, release),
    };
    let count = wanted.clamp(1, order.len().max(1)).min(order.len());
    // Keeping means the computing processes.
    let keeps = !matches!(strategy, Strategy::Use { .. }) && now > 0;
    let chosen = order.iter().filter(|one| !keeps || one.rank.is_some()).take(count);
    let members: Vec<u32> = chosen.map(|one| one.process).collect();
    let used: BTreeSet<&NodeId> = present
        .iter()
        .filter(|one| members.contains(&one.process))
        .map(|one| &one.peer.node)
        .collect();
    let unused = nodes.keys().filter(|node| !used.contains(*node));
    let release = if release { unused.map(|node| (*node).clone()).collect() } else { Vec::new() };
    NextConfiguration { members, new_layout, release }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{NextConfiguration, NodeId, Peer, PresentProcess, Strategy, first_of_nodes, plan};
    use crate::id::Incarnation;
    use std::collections::BTreeSet;

    fn present(process: u32, node: &str, rank: Option<u32>, leaving: bool) -> PresentProcess {
        let peer = Peer { node: node.into(), incarnation: Incarnation(1), cluster: "ams".into() };
        PresentProcess { process, peer, rank, leaving }
    }

    fn names(nodes: &[NodeId]) -> Vec<&str> {
        nodes.iter().map(NodeId::as_str).collect()
    }

    #[test]
    fn unneeded_nodes_are_free_as_a_whole() {
        // Two threads per node. The root is on ams-1, and five nodes have ten processes.
        let mut all = vec![present(0, "ams-1", None, false)];
        let nodes =
            ["ams-0", "ams-4", "ams-2", "ams-1", "ams-3", "ams-0", "ams-2", "ams-4", "ams-3"];
        all.extend((1..).zip(nodes).map(|(n, node)| present(n, node, None, false)));
        let power = Strategy::Use { processes: 8, release: true };
        let NextConfiguration { members, release, .. } = plan(power, &all);
        assert_eq!(members, [0, 4, 1, 6, 3, 7, 5, 9]);
        assert_eq!(names(&release), ["ams-4"]);
    }

    #[test]
    fn processes_on_leaving_nodes_go_and_computing_ones_have_priority() {
        let all = [
            present(0, "ams-0", Some(0), false),
            present(1, "ams-1", Some(1), true),
            present(2, "ams-2", Some(2), false),
            present(3, "ams-3", Some(3), false),
            present(9, "ams-1a", None, false),
        ];
        let three = plan(Strategy::Use { processes: 3, release: false }, &all);
        assert_eq!((three.members, three.release), (vec![0, 2, 3], vec![]));
        let two = plan(Strategy::Use { processes: 2, release: true }, &all);
        assert_eq!((two.members, names(&two.release)), (vec![0, 2], vec!["ams-1a", "ams-3"]));
        assert_eq!(plan(Strategy::Keep, &all).members, [0, 2, 3]);
        assert_eq!(
            plan(Strategy::Use { processes: 40, release: true }, &all).members,
            [0, 2, 3, 9]
        );
        assert_eq!(plan(Strategy::Use { processes: 0, release: false }, &all).members, [0]);
    }

    #[test]
    fn each_node_has_one_process_and_the_computing_one_stays() {
        let first = |all: &[PresentProcess]| -> Vec<u32> {
            first_of_nodes(all.to_vec()).iter().map(|one| one.process).collect()
        };
        let mut all = vec![present(0, "n0", None, false)];
        let nodes = ["n1", "n0", "n1", "n2"];
        all.extend((1..).zip(nodes).map(|(n, node)| present(n, node, None, false)));
        assert_eq!(first(&all), [0, 1, 4]);
        (all[0].rank, all[3].rank) = (Some(0), Some(1));
        assert_eq!(first(&all), [0, 3, 4]);
        (all[0].rank, all[2].rank) = (None, Some(0));
        assert_eq!(first(&all), [0, 3, 4]);
    }

    proptest! {
        /// For any processes and strategies, the root is first, and no process takes part twice or
        /// on a leaving node. No used node is released, and as many processes take part as are
        /// wanted and present.
        #[test]
        fn plans_use_present_processes(
            others in prop::collection::vec((0..6u8, any::<bool>(), any::<bool>()), 0..12),
            wanted in 0..16u32,
            kind in 0..3u8,
        ) {
            let mut all = vec![present(0, "n0", None, false)];
            let (mut rank, computes) = (1, others.iter().any(|(_, computes, _)| *computes));
            if computes {
                all[0].rank = Some(0);
            }
            for (process, (node, computes, leaving)) in (1..).zip(&others) {
                let leaving = *leaving && *node != 0;
                let takes = computes.then_some(rank);
                rank += u32::from(*computes);
                all.push(present(process, &format!("n{node}"), takes, leaving));
            }
            let strategy = match kind {
                0 => Strategy::Keep,
                1 => Strategy::Rebalance,
                _ => Strategy::Use { processes: wanted, release: true },
            };
            let NextConfiguration { members, release, .. } = plan(strategy, &all);
            prop_assert_eq!(members.first(), Some(&0));
            let unique: BTreeSet<_> = members.iter().collect();
            prop_assert_eq!(unique.len(), members.len());
            for one in &all {
                let takes_part = members.contains(&one.process);
                prop_assert!(!(takes_part && one.leaving));
                prop_assert!(!(takes_part && release.contains(&one.peer.node)));
            }
            let usable = all.iter().filter(|one| !one.leaving).count();
            if let Strategy::Use { processes, .. } = strategy {
                prop_assert_eq!(members.len(), (processes as usize).clamp(1, usable));
            }
        }
    }
}
