//! Hosts of a cluster, and the division of their processors, memory and devices among nodes.
//!
//! A host runs several nodes at a time, and each has its own share of the host. Few large nodes are
//! better than many small ones: threads of a node share memory. This module does not know how nodes
//! are started.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::{Deserialize, Serialize};

/// Names of generic resources, such as `gpu`, with numbers.
pub type Devices = BTreeMap<String, u32>;

/// What nodes may use of a host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostCapacity {
    /// Name of the host, unique in its cluster.
    pub host: String,
    /// Number of processors that nodes may use.
    pub processors: u32,
    /// Memory in bytes; 0: no limit is known.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub memory: u64,
    /// Numbers of devices that nodes may use.
    #[serde(default, skip_serializing_if = "Devices::is_empty")]
    pub devices: Devices,
}

/// The part of a host that a node is given.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct HostShare {
    /// Name of the host.
    pub host: String,
    /// Positions of its processors on the host, from 0 on. Neighbours are near each other.
    pub processors: BTreeSet<u32>,
    /// Memory in bytes; 0: no limit.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub memory: u64,
    /// Positions of its devices on the host, from 0 on.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub devices: BTreeMap<String, BTreeSet<u32>>,
}

/// Requirements of each node of a job.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeNeeds {
    /// Least number of processors of a node; 0 is 1.
    #[serde(default, skip_serializing_if = "is_none")]
    pub processors: u32,
    /// Memory for each processor, in bytes; 0: any.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub memory: u64,
    /// Devices of each node.
    #[serde(default, skip_serializing_if = "Devices::is_empty")]
    pub devices: Devices,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
fn is_zero(count: &u64) -> bool {
    *count == 0
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
fn is_none(count: &u32) -> bool {
    *count == 0
}

impl NodeNeeds {
    /// Whether any share of a host meets them.
    pub fn is_met_by_all(&self) -> bool {
        self.processors <= 1 && self.memory == 0 && self.devices.values().all(|count| *count == 0)
    }

    /// Least number of processors of a node.
    pub fn least(&self) -> u32 {
        self.processors.max(1)
    }
}

impl fmt::Display for NodeNeeds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "at least {} processors each", self.least())?;
        if self.memory > 0 {
            write!(f, ", {} MiB for each processor", self.memory >> 20)?;
        }
        for (name, count) in self.devices.iter().filter(|(_, count)| **count > 0) {
            write!(f, ", {count} {name} each")?;
        }
        Ok(())
    }
}

/// The free part of a host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FreeHost {
    /// What its nodes may use together.
    pub capacity: HostCapacity,
    /// Positions of free processors, the preferred ones first.
    pub processors: Vec<u32>,
    /// Free memory in bytes; without meaning if the host's memory is unknown.
    pub memory: u64,
    /// Positions of free devices.
    pub devices: BTreeMap<String, BTreeSet<u32>>,
}

impl FreeHost {
    /// A host without nodes.
    pub fn whole(capacity: HostCapacity) -> Self {
        let positions = |count: &u32| (0..*count).collect();
        let devices = capacity.devices.iter();
        Self {
            processors: (0..capacity.processors).collect(),
            memory: capacity.memory,
            devices: devices.map(|(name, count)| (name.clone(), positions(count))).collect(),
            capacity,
        }
    }

    /// Removes a node's share from what is free.
    pub fn take(&mut self, share: &HostShare) {
        self.processors.retain(|position| !share.processors.contains(position));
        self.memory = self.memory.saturating_sub(share.memory);
        for (name, positions) in &share.devices {
            if let Some(free) = self.devices.get_mut(name) {
                free.retain(|position| !positions.contains(position));
            }
        }
    }

    /// Whether the share is free.
    pub fn has(&self, share: &HostShare) -> bool {
        let devices = |(name, positions): (&String, &BTreeSet<u32>)| {
            self.devices.get(name).is_some_and(|free| positions.is_subset(free))
        };
        share.processors.iter().all(|position| self.processors.contains(position))
            && (self.capacity.memory == 0 || share.memory <= self.memory)
            && share.devices.iter().all(devices)
    }

    /// Greatest number of processors of one node with these needs; 0 if none fits.
    fn room(&self, needs: &NodeNeeds) -> u32 {
        let has = |name: &String| self.devices.get(name).map_or(0, BTreeSet::len);
        if needs.devices.iter().any(|(name, count)| has(name) < *count as usize) {
            return 0;
        }
        let mut room = u32::try_from(self.processors.len()).unwrap_or(u32::MAX);
        if needs.memory > 0 && self.capacity.memory > 0 {
            let fit = self.memory / needs.memory;
            room = room.min(u32::try_from(fit).unwrap_or(u32::MAX));
        }
        if room < needs.least() { 0 } else { room }
    }

    /// A node of this number of processors. Without a need of memory, it gets its part of the
    /// host's.
    fn share(&self, count: u32, needs: &NodeNeeds) -> HostShare {
        let memory = match (needs.memory, self.capacity.memory) {
            (0, 0) => 0,
            (0, all) => {
                let part = all / u64::from(self.capacity.processors.max(1)) * u64::from(count);
                part.min(self.memory)
            }
            (each, _) => each.saturating_mul(u64::from(count)),
        };
        // Devices that the node is not given are named as well, so that it uses none of them.
        let devices = self.devices.iter().map(|(name, free)| {
            let count = needs.devices.get(name).copied().unwrap_or(0);
            (name.clone(), free.iter().take(count as usize).copied().collect())
        });
        HostShare {
            host: self.capacity.host.clone(),
            processors: self.processors.iter().take(count as usize).copied().collect(),
            memory,
            devices: devices.collect(),
        }
    }
}

/// Greatest number of processors that nodes with these needs can have on these hosts, with one node
/// on each host.
pub fn placeable(hosts: &[FreeHost], needs: &NodeNeeds) -> u32 {
    hosts.iter().fold(0, |sum, host| sum.saturating_add(host.room(needs)))
}

/// Divides `count` processors into as few nodes as possible, at most one on each host. Returns
/// `None` if no division meets the needs.
///
/// The last node goes to the smallest sufficient host, so that large rooms stay whole.
pub fn allocate(hosts: &[FreeHost], count: u32, needs: &NodeNeeds) -> Option<Vec<HostShare>> {
    let least = needs.least();
    let mut rooms: Vec<(u32, &FreeHost)> = hosts.iter().map(|h| (h.room(needs), h)).collect();
    rooms.retain(|(room, _)| *room > 0);
    rooms.sort_by(|(a, one), (b, other)| {
        b.cmp(a).then_with(|| one.capacity.host.cmp(&other.capacity.host))
    });
    // The fewest hosts that suffice; more would need more processors at least.
    let (mut nodes, mut sum) = (0, 0u64);
    while sum < u64::from(count) {
        sum += u64::from(rooms.get(nodes)?.0);
        nodes += 1;
    }
    if u64::from(least) * nodes as u64 > u64::from(count) {
        return None;
    }
    let mut left = count;
    let mut shares = Vec::new();
    for index in 0..nodes {
        let after = (nodes - 1 - index) as u64 * u64::from(least);
        let spare = u32::try_from(u64::from(left).saturating_sub(after)).unwrap_or(0);
        if index + 1 < nodes {
            let (room, host) = rooms[index];
            let taken = room.min(spare);
            shares.push(host.share(taken, needs));
            left -= taken;
        } else {
            let fits = rooms[index..].iter().rev().find(|(room, _)| *room >= left)?;
            shares.push(fits.1.share(left, needs));
        }
    }
    Some(shares)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn host(index: usize, processors: u32, memory: u64, gpus: u32) -> FreeHost {
        FreeHost::whole(HostCapacity {
            host: format!("h{index}"),
            processors,
            memory,
            devices: [("gpu".to_owned(), gpus)].into(),
        })
    }

    fn sizes(shares: &[HostShare]) -> Vec<(&str, usize)> {
        shares.iter().map(|share| (share.host.as_str(), share.processors.len())).collect()
    }

    #[test]
    fn few_large_nodes_are_preferred_and_large_rooms_stay_whole() {
        let hosts = [host(0, 16, 0, 0), host(1, 4, 0, 0), host(2, 8, 0, 0)];
        let any = NodeNeeds::default();
        let of = |count| allocate(&hosts, count, &any).expect("there is room");
        assert_eq!(sizes(&of(3)), [("h1", 3)]);
        assert_eq!(sizes(&of(8)), [("h2", 8)]);
        assert_eq!(sizes(&of(18)), [("h0", 16), ("h1", 2)]);
        assert_eq!(sizes(&of(28)), [("h0", 16), ("h2", 8), ("h1", 4)]);
        assert_eq!(allocate(&hosts, 29, &any), None);
        let eight = NodeNeeds { processors: 8, ..NodeNeeds::default() };
        assert_eq!(placeable(&hosts, &eight), 24);
        // The first node leaves enough for the second.
        let shares = allocate(&hosts, 20, &eight).expect("12 and 8");
        assert_eq!(sizes(&shares), [("h0", 12), ("h2", 8)]);
        assert_eq!(allocate(&hosts, 7, &eight), None);
    }

    #[test]
    fn memory_and_devices_limit_a_node() {
        let hosts = [host(0, 16, 64, 0), host(1, 16, 32, 2)];
        let needs = |memory, gpus| NodeNeeds {
            processors: 0,
            memory,
            devices: [("gpu".to_owned(), gpus)].into(),
        };
        assert_eq!(placeable(&hosts, &needs(8, 0)), 12);
        let share = &allocate(&hosts, 4, &needs(8, 1)).expect("on the second")[0];
        assert_eq!((share.host.as_str(), share.memory), ("h1", 32));
        assert_eq!(share.devices["gpu"], [0].into());
        // Without a need of memory, a node gets its part of the host's.
        let share = &allocate(&hosts, 4, &needs(0, 2)).expect("on the second")[0];
        assert_eq!(share.memory, 8);
        let mut second = hosts[1].clone();
        second.take(share);
        assert_eq!((second.processors.len(), second.memory), (12, 24));
        assert!(!second.has(share));
        assert_eq!(allocate(&[second], 1, &needs(0, 1)), None);
    }

    /// The fewest nodes of all divisions, by trial.
    fn fewest(rooms: &[u32], count: u32, least: u32) -> Option<usize> {
        let choices = 1u32 << rooms.len();
        let fits = |choice: &u32| {
            let chosen = (0..rooms.len()).filter(|index| choice >> index & 1 == 1);
            let chosen: Vec<u32> = chosen.map(|index| rooms[index]).collect();
            let all_fit = chosen.iter().all(|room| *room >= least);
            let most: u32 = chosen.iter().sum();
            all_fit && most >= count && least * chosen.len() as u32 <= count
        };
        (1..choices).filter(fits).map(|choice| choice.count_ones() as usize).min()
    }

    proptest! {
        #[test]
        fn a_division_is_found_whenever_there_is_one_and_has_the_fewest_nodes(
            rooms in proptest::collection::vec(0u32..9, 1..7), count in 1u32..30, least in 0u32..6
        ) {
            let all = rooms.iter().enumerate();
            let hosts: Vec<FreeHost> = all.map(|(i, room)| host(i, *room, 0, 0)).collect();
            let needs = NodeNeeds { processors: least, ..NodeNeeds::default() };
            let found = allocate(&hosts, count, &needs);
            prop_assert_eq!(
                found.as_ref().map(Vec::len),
                fewest(&rooms, count, least.max(1)),
                "{:?}", found
            );
            let Some(shares) = found else { return Ok(()) };
            let names: BTreeSet<&str> = shares.iter().map(|share| share.host.as_str()).collect();
            prop_assert_eq!(names.len(), shares.len(), "one node on each host");
            let sum: usize = shares.iter().map(|share| share.processors.len()).sum();
            prop_assert_eq!(sum, count as usize);
            for share in &shares {
                prop_assert!(share.processors.len() >= least.max(1) as usize);
                let of = |host: &&FreeHost| host.capacity.host == share.host;
                prop_assert!(hosts.iter().find(of).expect("a known host").has(share));
            }
        }
    }
}
