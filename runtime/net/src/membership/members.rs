//! The members of a job, as a value with cheap copies: these share one table, with an index by
//! cluster.
//!
//! On the wire it is one byte string that contains the table in MessagePack. A node that forwards
//! it encodes it once, and a receiver need not decode a table that it knows. This module does not
//! know who creates views.

use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut, Range};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use bytes::Bytes;
use serde::de::{self, MapAccess, Visitor};
use serde::ser;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::Member;
use crate::id::{ClusterId, NodeId};
use crate::random::SplitMix;
use crate::wire::{self, Kind};

/// Smaller tables are not shared with equal ones.
const SHARED_MIN: usize = 64;
/// The maximum number of shared large tables: a job's views, and the first view of each of its
/// clusters.
const TABLES_MAX: usize = 256;

/// The large tables that were created last, while they are in use. Where many nodes share a process
/// (the simulator), each gets the same members, and all share one table.
static RECENT_TABLES: Mutex<Vec<SharedTable>> = Mutex::new(Vec::new());

/// A shared table, with the change from which it was created, if any.
struct SharedTable {
    table: Weak<MemberTable>,
    origin: Option<(Weak<MemberTable>, MembersChange)>,
}

/// The difference between two tables of members.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct MembersChange {
    /// Nodes that are no longer members.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub removed: Vec<NodeId>,
    /// Members that are new or changed.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub changed: BTreeMap<NodeId, Member>,
}

impl MembersChange {
    /// The number of members that it names.
    pub fn len(&self) -> usize {
        self.removed.len() + self.changed.len()
    }

    /// Whether it changes nothing.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The members of a job by name. A copy is cheap; the first change of a copy copies the table.
#[derive(Clone, Default)]
pub struct Members(Arc<MemberTable>);

#[derive(Clone, Default)]
struct MemberTable {
    by_name: BTreeMap<NodeId, Member>,
    /// The index, created on first use.
    index: OnceLock<Index>,
    /// The encoded form, created when it is first sent, or as received.
    encoded: OnceLock<Bytes>,
}

#[derive(Clone, Default)]
struct Index {
    clusters: BTreeMap<ClusterId, Vec<NodeId>>,
    /// The members that do not leave, by cluster.
    staying: Vec<NodeId>,
    /// The ranges of the clusters in `staying`.
    ranges: BTreeMap<ClusterId, Range<usize>>,
    /// See [`Members::ring`]; created on first use.
    rings: [OnceLock<Vec<(u64, u32)>>; RINGS],
}

/// The number of random orders of the staying members.
pub const RINGS: usize = 2;

impl MemberTable {
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
    /// The members of one cluster, in order of name.
    pub fn of_cluster(&self, cluster: &ClusterId) -> &[NodeId] {
        self.0.index().clusters.get(cluster).map_or(&[], Vec::as_slice)
    }

    /// All members by cluster, in order of name.
    pub fn clusters(&self) -> impl Iterator<Item = (&ClusterId, &[NodeId])> {
        self.0.index().clusters.iter().map(|(cluster, nodes)| (cluster, nodes.as_slice()))
    }

    /// The members that do not leave, in order of cluster and name.
    pub fn staying(&self) -> &[NodeId] {
        &self.0.index().staying
    }

    /// The range of one cluster in [`Members::staying`].
    pub fn staying_in(&self, cluster: &ClusterId) -> Range<usize> {
        self.0.index().ranges.get(cluster).cloned().unwrap_or_default()
    }

    /// A random order of the staying members, which depends on their names alone: pairs of a
    /// random number and an index in [`Members::staying`], in ascending order.
    ///
    /// The order of two members does not change when others join or leave.
    ///
    /// # Panics
    /// `ring` is not below [`RINGS`].
    pub fn ring(&self, ring: usize) -> &[(u64, u32)] {
        let index = self.0.index();
        index.rings[ring].get_or_init(|| {
            let number = |(node, at): (&NodeId, u32)| (Self::ring_number(ring, node), at);
            let mut order: Vec<_> = index.staying.iter().zip(0..).map(number).collect();
            order.sort_unstable();
            order
        })
    }

    /// The number of a node in a [random order](Members::ring).
    pub fn ring_number(ring: usize, node: &NodeId) -> u64 {
        SplitMix::with_text(ring as u64, node.as_str()).next()
    }

    /// Whether both share one table, and so are certainly equal.
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// The change from `old` to these members.
    pub fn change_since(&self, old: &Self) -> MembersChange {
        let mut change = MembersChange::default();
        if self.is_same(old) {
            return change;
        }
        self.compare(old, |node, known, member| match member {
            None => change.removed.push(node.clone()),
            Some(member) if known == Some(member) => {}
            Some(member) => drop(change.changed.insert(node.clone(), member.clone())),
        });
        change
    }

    /// The incarnations among `old` that are no longer members.
    pub fn lost_since<'a>(&'a self, old: &'a Self) -> Vec<(&'a NodeId, &'a Member)> {
        let mut lost = Vec::new();
        self.compare(old, |node, known, member| {
            let incarnation = |member: &Member| member.incarnation;
            if let Some(known) =
                known.filter(|known| member.map(incarnation) != Some(incarnation(known)))
            {
                lost.push((node, known));
            }
        });
        lost
    }

    /// Visits the nodes of both tables in order of name, with their old and new entries.
    fn compare<'a>(
        &'a self,
        old: &'a Self,
        mut visit: impl FnMut(&'a NodeId, Option<&'a Member>, Option<&'a Member>),
    ) {
        if self.is_same(old) {
            return;
        }
        let mut before = old.iter().peekable();
        for (node, member) in self.iter() {
            while let Some((gone, known)) = before.next_if(|(other, _)| *other < node) {
                visit(gone, Some(known), None);
            }
            let known = before.next_if(|(other, _)| *other == node);
            visit(node, known.map(|(_, known)| known), Some(member));
        }
        for (gone, known) in before {
            visit(gone, Some(known), None);
        }
    }

    /// The members after a change. The same change of the same table gives the same table.
    #[must_use]
    pub fn changed(&self, change: &MembersChange) -> Self {
        let apply = || {
            let mut next = self.clone();
            for node in &change.removed {
                next.remove(node);
            }
            next.extend(change.changed.iter().map(|(node, member)| (node.clone(), member.clone())));
            next
        };
        if change.is_empty() {
            return self.clone();
        }
        if self.len() < SHARED_MIN {
            return apply();
        }
        let here = Arc::downgrade(&self.0);
        let same = |(of, by): &(Weak<MemberTable>, MembersChange)| of.ptr_eq(&here) && by == change;
        let found = find_shared(|known| known.origin.as_ref().is_some_and(same));
        if let Some(table) = found {
            return table;
        }
        let next = apply();
        remember(&next, Some((here, change.clone())));
        next
    }

    /// The number of bytes of the encoded members; zero if they do not encode.
    pub fn encoded_len(&self) -> usize {
        self.encoded().map_or(0, Bytes::len)
    }

    fn encoded(&self) -> Result<&Bytes, wire::WireError> {
        if let Some(encoded) = self.0.encoded.get() {
            return Ok(encoded);
        }
        let encoded = wire::encode(Kind::CALL, &self.0.by_name)?;
        Ok(self.0.encoded.get_or_init(|| encoded))
    }

    fn decoded(bytes: &[u8]) -> Result<Self, wire::WireError> {
        // A member takes more than a byte, so a shorter table is small.
        let large = bytes.len() >= SHARED_MIN;
        let same = |known: &MemberTable| known.encoded.get().is_some_and(|of| **of == *bytes);
        if large
            && let Some(table) =
                find_shared(|known| known.table.upgrade().is_some_and(|t| same(&t)))
        {
            return Ok(table);
        }
        let by_name: BTreeMap<NodeId, Member> = wire::decode(Kind::CALL, bytes)?;
        let read = Self::from(by_name);
        if read.len() < SHARED_MIN {
            return Ok(read);
        }
        let equal = |known: &SharedTable| {
            known.table.upgrade().is_some_and(|t| t.by_name == read.0.by_name)
        };
        if let Some(table) = find_shared(equal) {
            return Ok(table);
        }
        // The received encoding may be sent on as it is.
        let _ = read.0.encoded.set(Bytes::copy_from_slice(bytes));
        remember(&read, None);
        Ok(read)
    }
}

/// The first shared large table that satisfies `is` and is still in use.
fn find_shared(is: impl Fn(&SharedTable) -> bool) -> Option<Members> {
    // The list changes in single steps, so a poisoned lock is safe to use.
    let mut last = RECENT_TABLES.lock().unwrap_or_else(PoisonError::into_inner);
    last.retain(|known| known.table.strong_count() > 0);
    last.iter().find(|known| is(known)).and_then(|known| known.table.upgrade()).map(Members)
}

fn remember(members: &Members, origin: Option<(Weak<MemberTable>, MembersChange)>) {
    let mut last = RECENT_TABLES.lock().unwrap_or_else(PoisonError::into_inner);
    last.truncate(TABLES_MAX - 1);
    last.insert(0, SharedTable { table: Arc::downgrade(&members.0), origin });
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
        Self(Arc::new(MemberTable { by_name, ..MemberTable::default() }))
    }
}

impl Serialize for Members {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(self.encoded().map_err(ser::Error::custom)?)
    }
}

impl<'de> Deserialize<'de> for Members {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(MembersReader)
    }
}

/// Decodes members from bytes, or from a map, which is the older form.
struct MembersReader;

impl<'de> Visitor<'de> for MembersReader {
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

    fn members(count: usize, incarnation: u64) -> Members {
        let member = |i: usize| Member {
            incarnation: Incarnation(incarnation),
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
    fn leaving_members_are_in_their_cluster_but_not_staying() {
        let mut mine = members(5, 1);
        mine.get_mut(&"n003".into()).unwrap().leaving = true;
        let names = |nodes: &[NodeId]| nodes.iter().map(NodeId::to_string).collect::<Vec<_>>();
        assert_eq!(names(mine.of_cluster(&"a".into())), ["n001", "n003"]);
        assert_eq!(names(mine.staying()), ["n001", "n000", "n002", "n004"]);
        assert_eq!((mine.staying_in(&"a".into()), mine.staying_in(&"b".into())), (0..1, 1..4));
        assert!(mine.staying_in(&"c".into()).is_empty());
    }

    #[test]
    fn a_change_leads_from_any_table_to_any_other() {
        for (old, new) in [(members(5, 1), members(9, 1)), (members(9, 1), members(5, 2))] {
            let mut new = new;
            new.remove(&"n002".into());
            let change = new.change_since(&old);
            assert_eq!(old.changed(&change), new);
            assert!(
                change.changed.contains_key(&NodeId::from("n008")) || change.removed.len() == 5
            );
            assert_eq!(old.change_since(&old.clone()).len(), 0);
        }
        // Large tables: the same change of the same table gives the same table; of another,
        // another.
        let (old, mut new) = (members(100, 1), members(100, 1));
        new.remove(&"n007".into());
        let change = new.change_since(&old);
        assert_eq!((change.len(), change.removed.clone()), (1, vec!["n007".into()]));
        let (first, second) = (old.changed(&change), old.clone().changed(&change));
        assert!(first == new && first.is_same(&second));
        let (other, more) = (members(100, 1), members(101, 1).change_since(&old));
        assert!(!other.changed(&change).is_same(&first));
        assert_eq!(old.changed(&more), members(101, 1));
    }

    #[test]
    fn members_decode_from_the_older_form_and_not_from_broken_bytes() {
        let mine = members(3, 1);
        let first = rmp_serde::to_vec_named(&*mine).unwrap();
        assert_eq!(rmp_serde::from_slice::<Members>(&first).unwrap(), mine);
        let bytes = mine.encoded().unwrap();
        let cut = Members::decoded(&bytes[..bytes.len() - 1]);
        assert!(matches!(cut, Err(wire::WireError::Truncated { .. })), "{cut:?}");
        assert!(rmp_serde::from_slice::<Members>(&rmp_serde::to_vec(&7).unwrap()).is_err());
    }

    #[test]
    fn equal_encodings_share_a_table_and_different_ones_do_not() {
        let mine = read(&members(100, 7));
        assert!(read(&mine).is_same(&mine));
        let (mut changed, later) = (mine.clone(), read(&members(100, 8)));
        assert!(!later.is_same(&mine) && later != mine);
        changed.remove(&"n005".into());
        assert!(!changed.is_same(&mine) && changed != mine && mine.len() == 100);
        assert!(read(&mine).is_same(&mine), "a copy's change is not the table's");
    }
}
