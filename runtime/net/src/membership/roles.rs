//! The nodes that host the clusters' coordinators, as a value with cheap copies.
//!
//! Each node of a job keeps its view, often several times. Where many nodes share a process (the
//! simulator), equal large maps that were decoded or changed share their memory.

use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::id::{ClusterId, NodeId};

/// Smaller maps are not shared with equal ones.
const SHARED_MIN: usize = 8;
/// The maximum number of shared maps: those of the views that are in use at once.
const MAPS_MAX: usize = 64;

type Map = BTreeMap<ClusterId, NodeId>;

/// The large maps that were created last, while they are in use.
static RECENT_MAPS: Mutex<Vec<Weak<Map>>> = Mutex::new(Vec::new());

/// The node of each cluster's coordinator. A copy is cheap; the first change of a copy copies the
/// map.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct ClusterCoordinators(Arc<Map>);

impl ClusterCoordinators {
    /// The map with other nodes for some clusters, and without others.
    #[must_use]
    pub(super) fn changed(&self, hosts: &Map, dropped: &[ClusterId]) -> Self {
        if hosts.is_empty() && dropped.is_empty() {
            return self.clone();
        }
        let mut next = self.clone();
        next.retain(|cluster, _| !dropped.contains(cluster));
        next.extend(hosts.iter().map(|(cluster, node)| (cluster.clone(), node.clone())));
        next.shared()
    }

    /// The same value, in the memory of an equal one that is in use, if there is any.
    fn shared(self) -> Self {
        if self.len() < SHARED_MIN {
            return self;
        }
        // The list changes in single steps, so a poisoned lock is safe to use.
        let mut recent = RECENT_MAPS.lock().unwrap_or_else(PoisonError::into_inner);
        recent.retain(|known| known.strong_count() > 0);
        let equal = recent.iter().filter_map(Weak::upgrade).find(|known| **known == *self.0);
        if let Some(known) = equal {
            return Self(known);
        }
        recent.truncate(MAPS_MAX - 1);
        recent.insert(0, Arc::downgrade(&self.0));
        self
    }

    /// Whether both share their memory, and so are certainly equal.
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Deref for ClusterCoordinators {
    type Target = Map;

    fn deref(&self) -> &Map {
        &self.0
    }
}

impl DerefMut for ClusterCoordinators {
    fn deref_mut(&mut self) -> &mut Map {
        Arc::make_mut(&mut self.0)
    }
}

impl From<Map> for ClusterCoordinators {
    fn from(map: Map) -> Self {
        Self(Arc::new(map))
    }
}

impl std::fmt::Debug for ClusterCoordinators {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

impl Serialize for ClusterCoordinators {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        (**self).serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for ClusterCoordinators {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Map::deserialize(deserializer).map(|map| Self::from(map).shared())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(clusters: usize, node: &str) -> ClusterCoordinators {
        let host = |i| (ClusterId::from(format!("c{i}")), NodeId::from(format!("c{i}-{node}")));
        Map::from_iter((0..clusters).map(host)).into()
    }

    fn read(value: &ClusterCoordinators) -> ClusterCoordinators {
        rmp_serde::from_slice(&rmp_serde::to_vec_named(value).unwrap()).unwrap()
    }

    #[test]
    fn equal_maps_share_their_memory_and_different_ones_do_not() {
        let mine = read(&of(100, "share"));
        assert!(read(&mine).is_same(&mine) && mine == of(100, "share"));
        let other = read(&of(100, "other"));
        assert!(other != mine && !other.is_same(&mine));
        let small = read(&of(2, "share"));
        assert!(!read(&small).is_same(&small) && read(&small) == small);
        let mut changed = mine.clone();
        changed.insert("c0".into(), "c0-new".into());
        assert!(mine != changed && read(&mine).is_same(&mine), "a copy's change is not the map's");
    }

    #[test]
    fn the_same_change_of_equal_maps_gives_one_map() {
        let (one, other) = (read(&of(50, "change")), of(50, "change"));
        assert!(one.changed(&Map::new(), &[]).is_same(&one));
        let hosts = Map::from([("c3".into(), "c3-next".into())]);
        let dropped = ["c7".into()];
        let (first, second) = (one.changed(&hosts, &dropped), other.changed(&hosts, &dropped));
        assert!(first.is_same(&second));
        assert_eq!((first.len(), &first[&"c3".into()]), (49, &"c3-next".into()));
        assert!(!first.contains_key(&ClusterId::from("c7")) && one.len() == 50);
    }
}
