//! Who takes part in a job: the versioned view that every node of the job acts on.
//!
//! No I/O. The coordinator makes views, everybody else follows the newest by (epoch, version).

mod detector;
mod members;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::id::{ClusterId, Epoch, Incarnation, NodeId};
use crate::net::Address;

pub use detector::{Detector, Finding, Patience};
pub use members::Members;

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
    /// It was told to leave: nobody asks it for work or offers it any, and it holds no role.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub leaving: bool,
}

/// The members of a job and the roles among them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct View {
    /// Ownership generation of the job's coordinator.
    pub epoch: Epoch,
    /// Counts up within the epoch.
    pub version: u64,
    /// Everybody who takes part.
    pub members: Members,
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

    /// Whether a node is a member that was not told to leave.
    pub fn stays(&self, node: &NodeId) -> bool {
        self.members.get(node).is_some_and(|member| !member.leaving)
    }

    /// The members of one cluster, in order of name.
    pub fn in_cluster(&self, cluster: &ClusterId) -> std::slice::Iter<'_, NodeId> {
        self.members.of_cluster(cluster).iter()
    }

    /// The next view without these nodes. A cluster whose coordinator's node is gone gets its first living member in order of
    /// name in that role; a cluster without members gets none. The job's coordinator is not replaced here: that takes a new
    /// epoch.
    #[must_use]
    pub fn without<'a>(&self, gone: impl IntoIterator<Item = &'a NodeId>) -> View {
        let mut next = self.clone();
        next.version += 1;
        for node in gone {
            next.members.remove(node);
        }
        next.fill_roles();
        next
    }

    /// The next view with these members too. A cluster that is new gets a coordinator.
    #[must_use]
    pub fn with(&self, joining: impl IntoIterator<Item = (NodeId, Member)>) -> View {
        let mut next = self.clone();
        next.version += 1;
        next.members.extend(joining);
        next.fill_roles();
        next
    }

    /// The next view in which these members leave. A cluster whose coordinator's node leaves gets another one in that role, if
    /// it has any that stays.
    #[must_use]
    pub fn leaving<'a>(&self, nodes: impl IntoIterator<Item = &'a NodeId>) -> View {
        let mut next = self.clone();
        next.version += 1;
        for node in nodes {
            if let Some(member) = next.members.get_mut(node) {
                member.leaving = true;
            }
        }
        next.fill_roles();
        next
    }

    /// The first view under a new epoch: of these members those that live still, with another node in the coordinator's role.
    #[must_use]
    pub fn succeeded(
        &self,
        epoch: Epoch,
        coordinator: &NodeId,
        lives: impl Fn(&NodeId, &Member) -> bool,
    ) -> View {
        let mut next = self.clone();
        (next.epoch, next.version) = (epoch, 1);
        next.members.retain(|node, member| lives(node, member));
        next.coordinator = Some(coordinator.clone());
        next.fill_roles();
        next
    }

    fn fill_roles(&mut self) {
        let members = &self.members;
        let stays = |cluster: &ClusterId| {
            let remains = |node: &NodeId| members.get(node).is_some_and(|member| !member.leaving);
            members.of_cluster(cluster).iter().any(remains)
        };
        self.cluster_coordinators.retain(|cluster, node| {
            let holder = members.get(node).filter(|member| member.cluster == *cluster);
            holder.is_some_and(|holder| !holder.leaving || !stays(cluster))
        });
        // Those that stay first: only a cluster of which all leave has one that leaves in the role.
        for leaving in [false, true] {
            for (node, member) in members.iter().filter(|(_, member)| member.leaving == leaving) {
                let coordinator = self.cluster_coordinators.entry(member.cluster.clone());
                coordinator.or_insert_with(|| node.clone());
            }
        }
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

    fn member(cluster: &str) -> Member {
        let incarnation = Incarnation(1);
        let (address, leaving) = (Address::Memory, false);
        Member { incarnation, cluster: cluster.into(), address, threads: 1, leaving }
    }

    #[test]
    fn each_cluster_with_members_has_one_of_them_as_coordinator() {
        let joining = [("a-1", "a"), ("a-2", "a"), ("b-1", "b"), ("b-2", "b")];
        let joining = joining.map(|(node, cluster)| (NodeId::from(node), member(cluster)));
        let view = View::default().with(joining);
        assert_eq!(view.cluster_coordinators[&"a".into()], "a-1".into());
        let next = view.without([&"a-1".into(), &"b-2".into()]);
        assert_eq!(next.cluster_coordinators[&"a".into()], "a-2".into());
        assert_eq!(next.cluster_coordinators[&"b".into()], "b-1".into());
        assert!(next.is_newer_than(&view));
        let next = next.without([&"a-2".into()]);
        assert!(!next.cluster_coordinators.contains_key(&"a".into()));
        // One that comes back does not take its role back.
        let again = view.without([&"a-1".into()]).with([("a-1".into(), member("a"))]);
        assert_eq!(again.cluster_coordinators[&"a".into()], "a-2".into());
    }

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
