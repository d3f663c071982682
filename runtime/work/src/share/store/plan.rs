//! The broadcast plan: which node sends an update to which others. Pure functions.

use crate::id::{ClusterId, NodeId};
use crate::membership::View;

/// Receivers that get the same frame, and the nodes to which each of them forwards it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ReceiverGroup {
    pub to: Vec<NodeId>,
    pub below: Vec<NodeId>,
}

/// Splits the receivers of an update into direct ones and those below them. Few are all direct;
/// many form a tree in which no node sends more than `flat.max(fanout)` copies. Each node occurs
/// once.
pub(super) fn groups(nodes: &[NodeId], flat: usize, fanout: usize) -> Vec<ReceiverGroup> {
    if nodes.is_empty() {
        return Vec::new();
    }
    if nodes.len() <= flat.max(1) {
        return vec![ReceiverGroup { to: nodes.to_vec(), below: Vec::new() }];
    }
    let fanout = fanout.clamp(1, nodes.len());
    let (short, longer) = (nodes.len() / fanout, nodes.len() % fanout);
    let mut rest = nodes;
    (0..fanout)
        .map(|i| {
            let (chunk, after) = rest.split_at(short + usize::from(i < longer));
            rest = after;
            ReceiverGroup { to: chunk[..1].to_vec(), below: chunk[1..].to_vec() }
        })
        .collect()
}

/// The node that relays to a cluster: its coordinator, or its first member if the view names none
/// (or one that left).
pub(super) fn relay_of<'a>(view: &'a View, cluster: &ClusterId) -> Option<&'a NodeId> {
    view.cluster_coordinators
        .get(cluster)
        .filter(|node| view.cluster_of(node) == Some(cluster))
        .or_else(|| view.in_cluster(cluster).next())
}

/// The relays of all clusters but one, in order of cluster.
pub(super) fn other_relays<'a>(view: &'a View, mine: Option<&ClusterId>) -> Vec<&'a NodeId> {
    let clusters = view.members.clusters().map(|(cluster, _)| cluster);
    clusters
        .filter(|cluster| Some(*cluster) != mine)
        .filter_map(|cluster| relay_of(view, cluster))
        .collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Follows the plan from its root as the receivers do.
        #[test]
        fn each_node_gets_one_copy_and_sends_few(
            count in 0usize..300, flat in 1usize..12, fanout in 2usize..8,
        ) {
            let nodes: Vec<NodeId> = (0..count).map(|i| format!("n{i}").into()).collect();
            let mut got: BTreeMap<NodeId, usize> = BTreeMap::new();
            let mut senders = vec![nodes.clone()];
            while let Some(below) = senders.pop() {
                let mut copies = 0;
                for group in groups(&below, flat, fanout) {
                    copies += group.to.len();
                    for to in group.to {
                        *got.entry(to).or_default() += 1;
                        senders.push(group.below.clone());
                    }
                }
                prop_assert!(copies <= flat.max(fanout));
            }
            prop_assert_eq!(got.len(), count);
            prop_assert!(got.values().all(|copies| *copies == 1));
        }
    }
}
