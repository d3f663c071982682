//! Everybody who takes part in a job, as one value that many hold: its copies share one table, with an index by cluster.
//!
//! It travels as one string of bytes, which holds the table in MessagePack: whoever passes it on encodes it once, and whoever
//! gets what it has already need not read it. Must not know who makes views.

use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut, Range};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use bytes::Bytes;
use serde::de::{self, MapAccess, Visitor};
use serde::ser;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::Member;
use crate::id::{ClusterId, NodeId};
use crate::wire::{self, Kind};

/// Tables of fewer members are not looked for among those that are known.
const SMALL: usize = 64;
/// So many large tables are known at most: a job's views, and what each of its clusters sees of them at first.
const KNOWN: usize = 256;

/// The large tables that came last, as long as somebody has them. Where many nodes are in one process (the simulator) each of
/// them is told the same members: one table does for all.
static LAST: Mutex<Vec<Known>> = Mutex::new(Vec::new());

/// A table, and how it came about where it was made of another by a change.
struct Known {
    table: Weak<Table>,
    made: Option<(Weak<Table>, MembersChange)>,
}

/// What makes one table of another.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct MembersChange {
    /// No members any more.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub gone: Vec<NodeId>,
    /// New, or other than they were.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub set: BTreeMap<NodeId, Member>,
}

impl MembersChange {
    /// How many members it names.
    pub fn len(&self) -> usize {
        self.gone.len() + self.set.len()
    }

    /// Whether it changes nothing.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The members of a job by name. A copy costs nothing; the first change of a copy copies the table.
#[derive(Clone, Default)]
pub struct Members(Arc<Table>);

#[derive(Clone, Default)]
struct Table {
    by_name: BTreeMap<NodeId, Member>,
    /// Made when it is first asked for.
    index: OnceLock<Index>,
    /// As it travels: made when it is first sent, or as it came.
    encoded: OnceLock<Bytes>,
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

    /// What makes these of `old`.
    pub fn change_since(&self, old: &Self) -> MembersChange {
        let mut change = MembersChange::default();
        if self.is_same(old) {
            return change;
        }
        self.walk(old, |node, known, member| match member {
            None => change.gone.push(node.clone()),
            Some(member) if known == Some(member) => {}
            Some(member) => drop(change.set.insert(node.clone(), member.clone())),
        });
        change
    }

    /// The lives among `old` that are no members any more.
    pub fn lost_since<'a>(&'a self, old: &'a Self) -> Vec<(&'a NodeId, &'a Member)> {
        let mut lost = Vec::new();
        self.walk(old, |node, known, member| {
            let life = |member: &Member| member.incarnation;
            if let Some(known) = known.filter(|known| member.map(life) != Some(life(known))) {
                lost.push((node, known));
            }
        });
        lost
    }

    /// Goes along both in order of name: each node with what it was and what it is.
    fn walk<'a>(
        &'a self,
        old: &'a Self,
        mut see: impl FnMut(&'a NodeId, Option<&'a Member>, Option<&'a Member>),
    ) {
        if self.is_same(old) {
            return;
        }
        let mut before = old.iter().peekable();
        for (node, member) in self.iter() {
            while let Some((gone, known)) = before.next_if(|(other, _)| *other < node) {
                see(gone, Some(known), None);
            }
            let known = before.next_if(|(other, _)| *other == node);
            see(node, known.map(|(_, known)| known), Some(member));
        }
        for (gone, known) in before {
            see(gone, Some(known), None);
        }
    }

    /// These after a change. Where somebody has made the same change to the same table before, it is that one's table.
    #[must_use]
    pub fn changed(&self, change: &MembersChange) -> Self {
        let apply = || {
            let mut next = self.clone();
            for node in &change.gone {
                next.remove(node);
            }
            next.extend(change.set.iter().map(|(node, member)| (node.clone(), member.clone())));
            next
        };
        if change.is_empty() {
            return self.clone();
        }
        if self.len() < SMALL {
            return apply();
        }
        let here = Arc::downgrade(&self.0);
        let same = |(of, by): &(Weak<Table>, MembersChange)| of.ptr_eq(&here) && by == change;
        let found = known(|known| known.made.as_ref().is_some_and(same));
        if let Some(table) = found {
            return table;
        }
        let next = apply();
        remember(&next, Some((here, change.clone())));
        next
    }

    fn encoded(&self) -> Result<&Bytes, wire::WireError> {
        if let Some(encoded) = self.0.encoded.get() {
            return Ok(encoded);
        }
        let encoded = wire::encode(Kind::CALL, &self.0.by_name)?;
        Ok(self.0.encoded.get_or_init(|| encoded))
    }

    fn decoded(bytes: &[u8]) -> Result<Self, wire::WireError> {
        // The least that a member takes is more than a byte: shorter ones are small.
        let large = bytes.len() >= SMALL;
        let same = |known: &Table| known.encoded.get().is_some_and(|of| **of == *bytes);
        if large && let Some(table) = known(|known| known.table.upgrade().is_some_and(|t| same(&t)))
        {
            return Ok(table);
        }
        let by_name: BTreeMap<NodeId, Member> = wire::decode(Kind::CALL, bytes)?;
        let read = Self::from(by_name);
        if read.len() < SMALL {
            return Ok(read);
        }
        let equal =
            |known: &Known| known.table.upgrade().is_some_and(|t| t.by_name == read.0.by_name);
        if let Some(table) = known(equal) {
            return Ok(table);
        }
        // As it came is as good as in our own words.
        let _ = read.0.encoded.set(Bytes::copy_from_slice(bytes));
        remember(&read, None);
        Ok(read)
    }
}

/// The first large table that answers to this and that somebody has still.
fn known(is: impl Fn(&Known) -> bool) -> Option<Members> {
    // The list is changed in single steps, so a poisoned lock may be used on.
    let mut last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
    last.retain(|known| known.table.strong_count() > 0);
    last.iter().find(|known| is(known)).and_then(|known| known.table.upgrade()).map(Members)
}

fn remember(members: &Members, made: Option<(Weak<Table>, MembersChange)>) {
    let mut last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
    last.truncate(KNOWN - 1);
    last.insert(0, Known { table: Arc::downgrade(&members.0), made });
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
        table.encoded.take();
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
        Self(Arc::new(Table { by_name, ..Table::default() }))
    }
}

impl Serialize for Members {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(self.encoded().map_err(ser::Error::custom)?)
    }
}

impl<'de> Deserialize<'de> for Members {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Reader)
    }
}

/// Reads members as bytes; and as a map, as they travelled at first.
struct Reader;

impl<'de> Visitor<'de> for Reader {
    type Value = Members;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a job's members")
    }

    fn visit_bytes<E: de::Error>(self, bytes: &[u8]) -> Result<Members, E> {
        Members::decoded(bytes).map_err(E::custom)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Members, A::Error> {
        let mut by_name = BTreeMap::new();
        while let Some((node, member)) = map.next_entry()? {
            by_name.insert(node, member);
        }
        Ok(Members::from(by_name))
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
    fn a_change_makes_one_of_the_other_whatever_they_are() {
        for (old, new) in [(members(5, 1), members(9, 1)), (members(9, 1), members(5, 2))] {
            let mut new = new;
            new.remove(&"n002".into());
            let change = new.change_since(&old);
            assert_eq!(old.changed(&change), new);
            assert!(change.set.contains_key(&NodeId::from("n008")) || change.gone.len() == 5);
            assert_eq!(old.change_since(&old.clone()).len(), 0);
        }
        // Large ones: who makes the same change to the same table has the same table; to another, another.
        let (old, mut new) = (members(100, 1), members(100, 1));
        new.remove(&"n007".into());
        let change = new.change_since(&old);
        assert_eq!((change.len(), change.gone.clone()), (1, vec!["n007".into()]));
        let (first, second) = (old.changed(&change), old.clone().changed(&change));
        assert!(first == new && first.is_same(&second));
        let (other, more) = (members(100, 1), members(101, 1).change_since(&old));
        assert!(!other.changed(&change).is_same(&first));
        assert_eq!(old.changed(&more), members(101, 1));
    }

    #[test]
    fn members_of_the_first_form_and_broken_ones() {
        let mine = members(3, 1);
        let first = rmp_serde::to_vec_named(&*mine).unwrap();
        assert_eq!(rmp_serde::from_slice::<Members>(&first).unwrap(), mine);
        let bytes = mine.encoded().unwrap();
        let cut = Members::decoded(&bytes[..bytes.len() - 1]);
        assert!(matches!(cut, Err(wire::WireError::Truncated { .. })), "{cut:?}");
        assert!(rmp_serde::from_slice::<Members>(&rmp_serde::to_vec(&7).unwrap()).is_err());
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
