//! The membership of a job: the versioned view that every node of the job acts on.
//!
//! No I/O. The coordinator creates views, and all other nodes follow the newest by (epoch,
//! version).

mod detector;
mod members;
mod roles;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use springtide_base::processors::Processors;

use crate::id::{ClusterId, Epoch, Incarnation, NodeId};
use crate::net::Address;

pub use detector::{Detector, Finding, SilenceLimits};
pub use members::{Members, MembersChange, RINGS};
pub use roles::ClusterCoordinators;

/// A member of a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// The incarnation of the node.
    pub incarnation: Incarnation,
    /// The cluster of the node.
    pub cluster: ClusterId,
    /// The address of the node.
    pub address: Address,
    /// The number of its compute threads.
    pub threads: u32,
    /// Whether the member leaves: it neither gets nor gives work, and holds no role.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub leaving: bool,
}

impl Member {
    /// The processors of the node.
    pub fn processors(&self) -> Processors {
        Processors::of_node(self.threads)
    }
}

/// The members of a job and the roles among them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct View {
    /// The epoch of the job's coordinator.
    pub epoch: Epoch,
    /// The number of the view, which grows within the epoch.
    pub version: u64,
    /// The members of the job.
    pub members: Members,
    /// The node that hosts the job's coordinator and runs its root.
    pub coordinator: Option<NodeId>,
    /// The node that hosts each cluster's coordinator.
    pub cluster_coordinators: ClusterCoordinators,
    /// Whether it lacks members: a [partial view](View::partial_view).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub partial: bool,
}

/// The difference between two successive views.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ViewChange {
    /// The epoch and version of the previous view.
    pub base: (Epoch, u64),
    /// The new view's epoch.
    pub epoch: Epoch,
    /// The new view's version.
    pub version: u64,
    /// The difference of the members.
    #[serde(default)]
    pub members: MembersChange,
    /// The node that hosts the job's coordinator.
    pub coordinator: Option<NodeId>,
    /// Clusters with a new coordinator's node.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub hosts: BTreeMap<ClusterId, NodeId>,
    /// Clusters that lost their members, and so their coordinator.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub dropped_clusters: Vec<ClusterId>,
}

impl View {
    /// The cluster of a member.
    pub fn cluster_of(&self, node: &NodeId) -> Option<&ClusterId> {
        self.members.get(node).map(|member| &member.cluster)
    }

    /// Whether a node is a member that does not leave.
    pub fn stays(&self, node: &NodeId) -> bool {
        self.members.get(node).is_some_and(|member| !member.leaving)
    }

    /// The members of one cluster, in order of name.
    pub fn in_cluster(&self, cluster: &ClusterId) -> std::slice::Iter<'_, NodeId> {
        self.members.of_cluster(cluster).iter()
    }

    /// The next view without these nodes.
    ///
    /// A cluster whose coordinator's node is gone gets its first remaining member, in order of
    /// name, in that role; a cluster without members gets none. The job's coordinator is not
    /// replaced here, since that requires a new epoch.
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

    /// The next view with additional members. A new cluster gets a coordinator.
    #[must_use]
    pub fn with(&self, joining: impl IntoIterator<Item = (NodeId, Member)>) -> View {
        let mut next = self.clone();
        next.version += 1;
        next.members.extend(joining);
        next.fill_roles();
        next
    }

    /// The next view in which these members leave. A cluster whose coordinator's node leaves gets
    /// another one that stays, if it has any.
    #[must_use]
    pub fn with_leaving<'a>(&self, nodes: impl IntoIterator<Item = &'a NodeId>) -> View {
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

    /// The first view of a new epoch: the members that still live, with another coordinator.
    #[must_use]
    pub fn with_coordinator(
        &self,
        epoch: Epoch,
        coordinator: &NodeId,
        is_alive: impl Fn(&NodeId, &Member) -> bool,
    ) -> View {
        let mut next = self.clone();
        (next.epoch, next.version) = (epoch, 1);
        next.members.retain(|node, member| is_alive(node, member));
        next.coordinator = Some(coordinator.clone());
        next.fill_roles();
        next
    }

    /// The first view that a node gets.
    ///
    /// For a node without a role it contains only the members of its own cluster and the nodes with
    /// roles. The rest comes from its cluster's coordinator. Otherwise each of thousands of nodes
    /// would be sent all others. A node with a role gets the whole view.
    #[must_use]
    pub fn partial_view(&self, node: &NodeId) -> View {
        let has_role = |node: &NodeId| {
            self.coordinator.as_ref() == Some(node)
                || self.cluster_coordinators.values().any(|host| host == node)
        };
        let Some(cluster) = self.cluster_of(node).filter(|_| !has_role(node)) else {
            return self.clone();
        };
        let with_roles = self.coordinator.iter().chain(self.cluster_coordinators.values());
        let nodes = self.in_cluster(cluster).chain(with_roles);
        let members = nodes.filter_map(|node| self.members.get_key_value(node));
        let members = members.map(|(node, member)| (node.clone(), member.clone())).collect();
        View { members, partial: true, ..self.clone() }
    }

    /// The change from `old` to this view.
    pub fn change_since(&self, old: &View) -> ViewChange {
        let hosts = &self.cluster_coordinators;
        let other = |(cluster, node): &(&ClusterId, &NodeId)| {
            old.cluster_coordinators.get(*cluster) != Some(*node)
        };
        let without =
            old.cluster_coordinators.keys().filter(|cluster| !hosts.contains_key(*cluster));
        ViewChange {
            base: (old.epoch, old.version),
            epoch: self.epoch,
            version: self.version,
            members: self.members.change_since(&old.members),
            coordinator: self.coordinator.clone(),
            hosts: hosts.iter().filter(other).map(|(c, n)| (c.clone(), n.clone())).collect(),
            dropped_clusters: without.cloned().collect(),
        }
    }

    /// The view after a change; `None` if the change is of another view.
    #[must_use]
    pub fn changed(&self, change: &ViewChange) -> Option<View> {
        if change.base != (self.epoch, self.version) || self.partial {
            return None;
        }
        let hosts = &self.cluster_coordinators;
        let cluster_coordinators = hosts.changed(&change.hosts, &change.dropped_clusters);
        Some(View {
            epoch: change.epoch,
            version: change.version,
            members: self.members.changed(&change.members),
            coordinator: change.coordinator.clone(),
            cluster_coordinators,
            partial: false,
        })
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
        // Staying members first: only in a cluster whose members all leave does a leaving one hold
        // the role.
        for leaving in [false, true] {
            for (node, member) in members.iter().filter(|(_, member)| member.leaving == leaving) {
                let coordinator = self.cluster_coordinators.entry(member.cluster.clone());
                coordinator.or_insert_with(|| node.clone());
            }
        }
    }

    /// Whether this view replaces `old`: a later one, or the whole of a partial one.
    ///
    /// A partial view replaces no whole one. Its holder gets the next view as a change, and would
    /// declare all members lost that the partial view lacks.
    pub fn is_newer_than(&self, old: &View) -> bool {
        let knows_all = !old.partial && !old.members.is_empty();
        let later =
            (self.epoch, self.version, !self.partial) > (old.epoch, old.version, !old.partial);
        later && !(self.partial && knows_all)
    }

    /// Adopts `new` if it is newer. Returns whether it was.
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
    use crate::state_table::{EventEffect, check};

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
        // A returning node does not get its role back.
        let again = view.without([&"a-1".into()]).with([("a-1".into(), member("a"))]);
        assert_eq!(again.cluster_coordinators[&"a".into()], "a-2".into());
    }

    #[test]
    fn a_view_and_its_change_make_the_next_one() {
        let nodes = [("a-1", "a"), ("a-2", "a"), ("b-1", "b"), ("c-1", "c")];
        let nodes = nodes.map(|(node, cluster)| (NodeId::from(node), member(cluster)));
        let mut first = View::default().with(nodes);
        first.coordinator = Some("a-1".into());
        let lost = first.without([&"b-1".into(), &"a-1".into()]);
        let moved = lost.with_coordinator(Epoch(3), &"c-1".into(), |_, _| true);
        let larger = moved.with([("d-1".into(), member("d"))]).with_leaving([&"a-2".into()]);
        let mut known = first.clone();
        for next in [&first, &lost, &moved, &larger] {
            let change = next.change_since(&known);
            if next.version != known.version {
                assert_eq!(View::default().changed(&change), None, "of another view");
            }
            known = known.changed(&change).unwrap();
            assert_eq!(known, *next);
        }
    }

    #[test]
    fn a_node_without_a_role_sees_its_cluster_and_the_roles() {
        let nodes = [("a-1", "a"), ("a-2", "a"), ("b-1", "b"), ("b-2", "b"), ("b-3", "b")];
        let nodes = nodes.map(|(node, cluster)| (NodeId::from(node), member(cluster)));
        let mut view = View::default().with(nodes);
        view.coordinator = Some("a-2".into());
        let names = |view: &View| view.members.keys().map(NodeId::to_string).collect::<Vec<_>>();
        let seen = view.partial_view(&"b-3".into());
        assert_eq!(names(&seen), ["a-1", "a-2", "b-1", "b-2", "b-3"]);
        view = view.with([("a-3".into(), member("a"))]);
        let mut seen = view.partial_view(&"b-3".into());
        assert_eq!(names(&seen), ["a-1", "a-2", "b-1", "b-2", "b-3"]);
        assert!(view.is_newer_than(&seen) && !seen.is_newer_than(&view));
        assert_eq!(seen.changed(&seen.change_since(&view)), None, "what is unknown is not changed");
        for role in ["a-1", "a-2", "b-1"] {
            assert_eq!(view.partial_view(&role.into()), view);
        }
        assert!(seen.cluster_coordinators == view.cluster_coordinators);
        // A node with a whole view does not adopt a part of a later one; a node without a view
        // does.
        let later = view.with([("d-1".into(), member("d"))]).partial_view(&"b-3".into());
        assert!(!later.is_newer_than(&view) && later.is_newer_than(&seen));
        assert!(later.is_newer_than(&View::default()));
        assert!(seen.advance(view.clone()) && seen == view);
    }

    /// The effect of a received view, by what is known and how the new one compares.
    #[test]
    fn each_view_is_adopted_or_ignored_for_a_reason() {
        use EventEffect::{Handled as H, Ignored as I};
        #[derive(Clone, Copy, Debug)]
        enum KnownView {
            Nothing,
            Part,
            All,
        }
        #[derive(Clone, Copy, Debug)]
        enum ReceivedView {
            OlderEpoch,
            OlderVersion,
            Same,
            LaterVersion,
            LaterPart,
            LaterEpoch,
        }
        const OLD: &str = "a later view is known, and the sender of an older one gets it";
        const KNOWN: &str = "it is known";
        const PART: &str = "the whole of it follows: a part would make lost of all it leaves out";
        let row = |received| match received {
            ReceivedView::OlderEpoch | ReceivedView::OlderVersion => [H, I(OLD), I(OLD)],
            ReceivedView::Same => [H, H, I(KNOWN)],
            ReceivedView::LaterVersion | ReceivedView::LaterEpoch => [H, H, H],
            ReceivedView::LaterPart => [H, H, I(PART)],
        };
        let all = [
            ReceivedView::OlderEpoch,
            ReceivedView::OlderVersion,
            ReceivedView::Same,
            ReceivedView::LaterVersion,
            ReceivedView::LaterPart,
            ReceivedView::LaterEpoch,
        ];
        let view = |epoch, version, partial| {
            let joining = [("a-1", "a"), ("b-1", "b")];
            let joining = joining.map(|(node, cluster)| (NodeId::from(node), member(cluster)));
            View { epoch: Epoch(epoch), version, partial, ..View::default().with(joining) }
        };
        check(
            all,
            [KnownView::Nothing, KnownView::Part, KnownView::All],
            row,
            |received, known_view| {
                let mut known = match known_view {
                    KnownView::Nothing => View::default(),
                    KnownView::Part => view(2, 5, true),
                    KnownView::All => view(2, 5, false),
                };
                let new = match received {
                    ReceivedView::OlderEpoch => view(1, 9, false),
                    ReceivedView::OlderVersion => view(2, 4, false),
                    ReceivedView::Same => view(2, 5, false),
                    ReceivedView::LaterVersion => view(2, 6, false),
                    ReceivedView::LaterPart => view(2, 6, true),
                    ReceivedView::LaterEpoch => view(3, 1, false),
                };
                EventEffect::seen(known.advance(new))
            },
        );
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
