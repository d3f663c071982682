//! The state of one part of a versioned object on this node.
//!
//! It contains versions, waiting deltas, unfinished payloads, relay duties, and the versions sent
//! to other nodes. It makes no decision about the network.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Weak};

use bytes::Bytes;
use tokio::time::Instant;

use super::plan::ReceiverGroup;
use crate::id::{Epoch, NodeId};
use crate::net::SegmentPool;
use crate::share::Version;
use crate::share::cell::{Cell, Payload, digest};
use crate::share::message::{PayloadId, RANGES_MAX, Update};

/// The maximum number of dropped versions that are remembered while a task holds them.
const DROPPED_MAX: usize = 64;

/// The maximum number of relay duties; those of the oldest versions are dropped first.
const RELAYS_MAX: usize = 16;

#[derive(Default)]
pub(super) struct ObjectPart {
    /// The versions that this node can provide.
    pub held: BTreeMap<Version, Arc<Cell>>,
    /// The versions dropped here that tasks may still hold.
    dropped: BTreeMap<Version, Weak<Cell>>,
    /// Deltas whose previous version is missing.
    pub deltas: BTreeMap<Version, Payload>,
    pub partial: BTreeMap<PayloadId, PartialPayload>,
    pub relays: BTreeMap<PayloadId, Relay>,
    /// The versions that this node started to send, by receiver.
    pub sent: BTreeMap<(Version, NodeId), ObjectTransfer>,
    /// The writer, if known.
    pub origin: Option<NodeId>,
    /// The highest epoch in any message.
    pub epoch: Epoch,
    /// Whether this node wrote the newest version.
    pub writer: bool,
}

/// A version that is under way to a node.
#[derive(Clone, Copy, Debug)]
pub(super) struct ObjectTransfer {
    pub at: Instant,
    /// Whether it is forwarded by other nodes of this node's cluster.
    pub relayed: bool,
}

/// A payload with missing segments.
pub(super) struct PartialPayload {
    segments: BTreeMap<u32, Bytes>,
    pub bytes: usize,
    sum: u64,
    /// The time of the last segment.
    pub progress: Instant,
    /// The sender of the last segment.
    pub from: NodeId,
}

/// A duty to forward segments.
pub(super) struct Relay {
    pub groups: Vec<ReceiverGroup>,
    done: BTreeSet<u32>,
}

impl Relay {
    pub fn new(groups: Vec<ReceiverGroup>) -> Self {
        Self { groups, done: BTreeSet::new() }
    }

    /// Marks a segment as forwarded. Returns whether it was not marked yet.
    pub fn take(&mut self, index: u32) -> bool {
        self.done.insert(index)
    }

    fn is_done(&self, id: &PayloadId) -> bool {
        self.done.len() == id.count() as usize
    }
}

/// The effect of an accepted segment.
pub(super) enum SegmentEffect {
    Duplicate,
    /// More segments are missing.
    Partly,
    Whole(Payload),
    /// All segments are present, but their sum is not the announced one.
    Corrupt,
}

impl ObjectPart {
    /// The newest version on this node.
    pub fn newest(&self) -> Option<&Arc<Cell>> {
        self.held.values().next_back()
    }

    /// Returns this version, if this node can provide it.
    pub fn find(&self, version: Version) -> Option<Arc<Cell>> {
        match self.held.get(&version) {
            Some(cell) => Some(cell.clone()),
            None => self.dropped.get(&version).and_then(Weak::upgrade),
        }
    }

    /// The newest version of the same epoch before this one.
    pub fn before(&self, version: Version) -> Option<Version> {
        self.held
            .range(..version)
            .next_back()
            .map(|(held, _)| *held)
            .filter(|held| held.epoch == version.epoch)
    }

    /// The unfinished payload nearest to a version: not after it, and not before the kept versions.
    pub fn nearest_partial(&self, version: Version) -> Option<(&PayloadId, &PartialPayload)> {
        let before = self.before(version);
        self.partial.iter().rev().find(|(id, _)| {
            id.version.epoch == version.epoch && id.version <= version && Some(id.version) > before
        })
    }

    /// Adds a segment to its payload.
    pub fn take(
        &mut self,
        from: &NodeId,
        update: Update,
        pool: Option<&SegmentPool>,
        now: Instant,
    ) -> SegmentEffect {
        let Update { id, index, data, .. } = update;
        let sum = digest(index, &data);
        let data = match pool {
            Some(pool) => pool.pooled(sum, data),
            None => data,
        };
        let count = id.count();
        if count == 1 {
            if sum != id.sum {
                return SegmentEffect::Corrupt;
            }
            return SegmentEffect::Whole(payload(&id, vec![data]));
        }
        let partial = self.partial.entry(id).or_insert_with(|| PartialPayload {
            segments: BTreeMap::new(),
            bytes: 0,
            sum: 0,
            progress: now,
            from: from.clone(),
        });
        if partial.segments.contains_key(&index) {
            return SegmentEffect::Duplicate;
        }
        partial.bytes += data.len();
        partial.sum = partial.sum.wrapping_add(sum);
        partial.progress = now;
        partial.from = from.clone();
        partial.segments.insert(index, data);
        if partial.segments.len() < count as usize {
            return SegmentEffect::Partly;
        }
        let partial = self.partial.remove(&id).expect("it was put there above");
        if partial.sum != id.sum {
            return SegmentEffect::Corrupt;
        }
        SegmentEffect::Whole(payload(&id, partial.segments.into_values().collect()))
    }

    /// Adds a duty to forward a payload.
    pub fn add_relay(&mut self, id: PayloadId, relay: Relay) {
        self.relays.insert(id, relay);
        while self.relays.len() > RELAYS_MAX {
            self.relays.pop_first();
        }
    }

    /// Whether this node has forwarded a whole version to a node.
    pub fn has_passed_on(&self, version: Version, node: &NodeId) -> bool {
        self.sent.contains_key(&(version, node.clone()))
            && self.relays.iter().any(|(id, relay)| id.version == version && relay.is_done(id))
    }

    /// Drops all but the newest `keep` versions, except those that `wanted` still needs.
    ///
    /// Returns the dropped cells, so that users' values are not dropped under the store's lock, and
    /// the dropped bytes of unfinished payloads.
    pub fn prune(
        &mut self,
        keep: usize,
        wanted: impl Fn(Version) -> bool,
    ) -> (Vec<Arc<Cell>>, usize) {
        let excess = self.held.len().saturating_sub(keep.max(1));
        let old: Vec<Version> =
            self.held.keys().take(excess).copied().filter(|version| !wanted(*version)).collect();
        let mut cells = Vec::new();
        for version in old {
            if let Some(cell) = self.held.remove(&version) {
                self.dropped.insert(version, Arc::downgrade(&cell));
                cells.push(cell);
            }
        }
        self.dropped.retain(|_, cell| cell.strong_count() > 0);
        while self.dropped.len() > DROPPED_MAX {
            self.dropped.pop_first();
        }
        let Some(oldest) = self.held.keys().next().copied() else { return (cells, 0) };
        let held = &self.held;
        let mut bytes = 0;
        self.partial.retain(|id, partial| {
            let keep =
                (id.version > oldest || wanted(id.version)) && !held.contains_key(&id.version);
            bytes += if keep { 0 } else { partial.bytes };
            keep
        });
        self.deltas.retain(|version, delta| {
            let keep = (*version > oldest || wanted(*version)) && !held.contains_key(version);
            bytes += if keep { 0 } else { delta.len };
            keep
        });
        self.sent.retain(|(version, _), _| *version >= oldest);
        (cells, bytes)
    }
}

impl PartialPayload {
    /// The missing segments as ranges (first, end): at most [`RANGES_MAX`], of which the last then
    /// extends to the end.
    pub fn missing(&self, id: &PayloadId) -> Vec<(u32, u32)> {
        let mut ranges = Vec::new();
        let mut next = 0;
        for index in self.segments.keys() {
            if *index > next {
                ranges.push((next, *index));
            }
            next = index + 1;
        }
        if next < id.count() {
            ranges.push((next, id.count()));
        }
        if ranges.len() > RANGES_MAX {
            ranges.truncate(RANGES_MAX);
            ranges[RANGES_MAX - 1].1 = id.count();
        }
        ranges
    }
}

fn payload(id: &PayloadId, segments: Vec<Bytes>) -> Payload {
    Payload { segments, segment: id.segment as usize, len: id.len as usize, sum: id.sum }
}
