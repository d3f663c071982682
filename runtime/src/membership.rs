//! Who takes part in a job: the versioned view that every node of the job acts on.
//!
//! No I/O. The coordinator makes views, everybody else follows the newest by (epoch, version).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::id::{ClusterId, Epoch, Incarnation, NodeId};
use crate::net::Address;

/// A member of a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// Which life of the node.
    pub incarnation: Incarnation,
    /// Its cluster.
    pub cluster: ClusterId,
    /// Where it is reached.
    pub address: Address,
    /// Its compute threads.
    pub threads: u32,
}

/// The members of a job and the roles among them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct View {
    /// Ownership generation of the job's coordinator.
    pub epoch: Epoch,
    /// Counts up within the epoch.
    pub version: u64,
    /// Everybody who takes part.
    pub members: BTreeMap<NodeId, Member>,
    /// The node that hosts the job's coordinator and runs its root.
    pub coordinator: Option<NodeId>,
    /// The node that hosts each cluster's coordinator.
    pub cluster_coordinators: BTreeMap<ClusterId, NodeId>,
}

impl View {
    /// The cluster of a member.
    pub fn cluster_of(&self, node: &NodeId) -> Option<&ClusterId> {
        self.members.get(node).map(|member| &member.cluster)
    }

    /// The members of one cluster, in order of name.
    pub fn in_cluster<'a>(&'a self, cluster: &'a ClusterId) -> impl Iterator<Item = &'a NodeId> {
        self.members.iter().filter(move |(_, m)| m.cluster == *cluster).map(|(node, _)| node)
    }

    /// Whether this view replaces `old`.
    pub fn is_newer_than(&self, old: &View) -> bool {
        (self.epoch, self.version) > (old.epoch, old.version)
    }

    /// Takes `new` if it is newer. Returns whether it was.
    pub fn advance(&mut self, new: View) -> bool {
        let newer = new.is_newer_than(self);
        if newer {
            *self = new;
        }
        newer
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_view_never_replaces_a_new_one() {
        let view = |epoch, version| View { epoch: Epoch(epoch), version, ..View::default() };
        let mut current = view(2, 5);
        assert!(!current.advance(view(1, 9)));
        assert!(!current.advance(view(2, 5)));
        assert!(current.advance(view(2, 6)));
        assert!(current.advance(view(3, 0)));
        assert_eq!((current.epoch, current.version), (Epoch(3), 0));
    }
}
