//! Everybody who takes part in a job, as one value that many hold: its copies share one table, with an index by cluster.
//!
//! Must not know who makes views.

use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut, Range};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::Member;
use crate::id::{ClusterId, NodeId};

/// Tables of fewer members are not looked for among those that are known.
const SMALL: usize = 64;
/// So many large tables are known at most.
const KNOWN: usize = 8;

/// The large tables that came last, as long as somebody has them. Where many nodes are in one process (the simulator) each of
/// them is told the same members: one table does for all.
static LAST: Mutex<Vec<Weak<Table>>> = Mutex::new(Vec::new());

/// The members of a job by name. A copy costs nothing; the first change of a copy copies the table.
#[derive(Clone, Default)]
pub struct Members(Arc<Table>);

#[derive(Clone, Default)]
struct Table {
    by_name: BTreeMap<NodeId, Member>,
    /// Made when it is first asked for.
    index: OnceLock<Index>,
}

#[derive(Clone, Default)]
struct Index {
    clusters: BTreeMap<ClusterId, Vec<NodeId>>,
    /// Those that were not told to leave, by cluster.
    staying: Vec<NodeId>,
    /// Where each cluster's are among them.
    ranges: BTreeMap<ClusterId, Range<usize>>,
}

impl Table {
    fn index(&self) -> &Index {
        self.index.get_or_init(|| {
            let mut index = Index::default();
            for (node, member) in &self.by_name {
                index.clusters.entry(member.cluster.clone()).or_default().push(node.clone());
            }
            for (cluster, nodes) in &index.clusters {
                let first = index.staying.len();
                let stays = |node: &&NodeId| !self.by_name[*node].leaving;
                index.staying.extend(nodes.iter().filter(stays).cloned());
                index.ranges.insert(cluster.clone(), first..index.staying.len());
            }
            index
        })
    }
}

impl Members {
    /// Those of one cluster, in order of name.
    pub fn of_cluster(&self, cluster: &ClusterId) -> &[NodeId] {
        self.0.index().clusters.get(cluster).map_or(&[], Vec::as_slice)
    }

    /// All by cluster, in order of name.
    pub fn clusters(&self) -> impl Iterator<Item = (&ClusterId, &[NodeId])> {
        self.0.index().clusters.iter().map(|(cluster, nodes)| (cluster, nodes.as_slice()))
    }

    /// Those that were not told to leave, in order of cluster and name.
    pub fn staying(&self) -> &[NodeId] {
        &self.0.index().staying
    }

    /// Where those of one cluster are among [`Members::staying`].
    pub fn staying_in(&self, cluster: &ClusterId) -> Range<usize> {
        self.0.index().ranges.get(cluster).cloned().unwrap_or_default()
    }

    /// Whether both are the same table, which makes them equal without a look.
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// The table that others have already, if these are the same members.
    fn shared(self) -> Self {
        if self.len() < SMALL {
            return self;
        }
        // The list is changed in single steps, so a poisoned lock may be used on.
        let mut last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
        last.retain(|table| table.strong_count() > 0);
        let same = |table: &Arc<Table>| table.by_name == self.0.by_name;
        if let Some(known) = last.iter().filter_map(Weak::upgrade).find(same) {
            return Self(known);
        }
        last.truncate(KNOWN - 1);
        last.insert(0, Arc::downgrade(&self.0));
        self
    }
}

impl Deref for Members {
    type Target = BTreeMap<NodeId, Member>;

    fn deref(&self) -> &Self::Target {
        &self.0.by_name
    }
}

impl DerefMut for Members {
    fn deref_mut(&mut self) -> &mut Self::Target {
        let table = Arc::make_mut(&mut self.0);
        table.index.take();
        &mut table.by_name
    }
}

impl PartialEq for Members {
    fn eq(&self, other: &Self) -> bool {
        self.is_same(other) || self.0.by_name == other.0.by_name
    }
}

impl Eq for Members {}

impl std::fmt::Debug for Members {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.by_name.fmt(f)
    }
}

impl FromIterator<(NodeId, Member)> for Members {
    fn from_iter<I: IntoIterator<Item = (NodeId, Member)>>(members: I) -> Self {
        Self::from(members.into_iter().collect::<BTreeMap<_, _>>())
    }
}

impl From<BTreeMap<NodeId, Member>> for Members {
    fn from(by_name: BTreeMap<NodeId, Member>) -> Self {
        Self(Arc::new(Table { by_name, index: OnceLock::new() }))
    }
}

impl Serialize for Members {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.by_name.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Members {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        BTreeMap::deserialize(deserializer).map(|by_name| Self::from(by_name).shared())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::Incarnation;
    use crate::net::Address;

    fn members(count: usize, life: u64) -> Members {
        let member = |i: usize| Member {
            incarnation: Incarnation(life),
            cluster: ["b", "a"][i % 2].into(),
            address: Address::Memory,
            threads: 1,
            leaving: false,
        };
        (0..count).map(|i| (NodeId::from(format!("n{i:03}")), member(i))).collect()
    }

    fn read(members: &Members) -> Members {
        let bytes = rmp_serde::to_vec_named(members).unwrap();
        rmp_serde::from_slice(&bytes).unwrap()
    }

    #[test]
    fn the_index_follows_every_change() {
        let mut mine = members(4, 1);
        let before = mine.clone();
        let names = |members: &Members, cluster: &str| {
            let of = members.of_cluster(&cluster.into());
            of.iter().map(NodeId::to_string).collect::<Vec<_>>()
        };
        assert_eq!(names(&mine, "a"), ["n001", "n003"]);
        mine.remove(&"n001".into());
        assert_eq!(
            (names(&mine, "a"), names(&mine, "b")),
            (vec!["n003".to_owned()], names(&before, "b"))
        );
        assert_eq!(names(&before, "a"), ["n001", "n003"]);
        assert_eq!(names(&mine, "c"), [""; 0]);
        let clusters: Vec<_> =
            before.clusters().map(|(id, nodes)| (id.to_string(), nodes.len())).collect();
        assert_eq!(clusters, [("a".to_owned(), 2), ("b".to_owned(), 2)]);
    }

    #[test]
    fn those_that_leave_are_in_their_cluster_and_do_not_stay() {
        let mut mine = members(5, 1);
        mine.get_mut(&"n003".into()).unwrap().leaving = true;
        let names = |nodes: &[NodeId]| nodes.iter().map(NodeId::to_string).collect::<Vec<_>>();
        assert_eq!(names(mine.of_cluster(&"a".into())), ["n001", "n003"]);
        assert_eq!(names(mine.staying()), ["n001", "n000", "n002", "n004"]);
        assert_eq!((mine.staying_in(&"a".into()), mine.staying_in(&"b".into())), (0..1, 1..4));
        assert!(mine.staying_in(&"c".into()).is_empty());
    }

    #[test]
    fn what_is_read_again_is_one_table_and_what_differs_is_another() {
        let mine = read(&members(100, 7));
        assert!(read(&mine).is_same(&mine));
        let (mut changed, later) = (mine.clone(), read(&members(100, 8)));
        assert!(!later.is_same(&mine) && later != mine);
        changed.remove(&"n005".into());
        assert!(!changed.is_same(&mine) && changed != mine && mine.len() == 100);
        assert!(read(&mine).is_same(&mine), "a copy's change is not the table's");
    }
}
