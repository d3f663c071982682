//! The protocol of shared objects, without I/O: events in, [`StoreAction`]s out. One store per node
//! and job.
//!
//! It knows neither threads nor locks nor sockets. It decodes no versioned value, except to fold a
//! chain of deltas without readers that exceeds its limit.

mod backlog;
mod fetch;
mod merge;
mod part;
mod plan;
mod update;

use std::any::TypeId;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

use self::backlog::Backlogs;
use self::fetch::Want;
use self::merge::MergedObject;
use self::part::ObjectPart;
use super::api::{Fact, FrameError, ShareConfig, ShareStats, Ticket, Unavailable};
use super::cell::{Cell, HeldVersions};
use super::message::{Fetch, Merge, Message, Miss, Update};
use super::types::{ObjectKind, ObjectType, ObjectTypes};
use super::{ObjectKey, Version};
use crate::checksum::checksum_from;
use crate::id::{ClusterId, JobId, NodeId};
use crate::membership::{Member, View};
use crate::net::SegmentPool;
use crate::random::SplitMix;
use crate::wire::{self, Kind};

/// An object part, identified by the index of its type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct PartKey {
    pub object: usize,
    pub part: u32,
}

/// A version of a part.
type VersionKey = (PartKey, Version);

/// An action that the store requests: an [`Action`](super::Action) with messages that are not
/// encoded yet.
#[derive(Debug)]
pub(super) enum StoreAction {
    /// The same message to several nodes, each with whether it is in another cluster.
    Send {
        to: Vec<(NodeId, bool)>,
        message: Message,
    },
    Ready(Ticket, HeldVersions),
    Failed(Ticket, Unavailable),
    Wake(Instant),
    Event(Fact),
}

pub(super) struct Store {
    me: NodeId,
    job: JobId,
    pub config: ShareConfig,
    types: Vec<ObjectType>,
    /// Where the nodes of this process keep equal segments once.
    pub pool: Option<Arc<SegmentPool>>,
    view: View,
    cluster: Option<ClusterId>,
    parts: BTreeMap<PartKey, ObjectPart>,
    merged: BTreeMap<usize, MergedObject>,
    tickets: BTreeMap<Ticket, fetch::Waiting>,
    wants: BTreeMap<VersionKey, Want>,
    requests: BTreeMap<u64, VersionKey>,
    next_request: u64,
    backlogs: Backlogs,
    /// The bytes of unfinished payloads and of waiting deltas.
    assembling: usize,
    rng: SplitMix,
    wake: Option<Instant>,
    out: Vec<StoreAction>,
    garbage: Vec<Arc<Cell>>,
    pub stats: ShareStats,
}

impl Store {
    pub fn new(me: NodeId, job: JobId, types: ObjectTypes, config: ShareConfig) -> Self {
        let types = types.into_vec();
        let merged = types
            .iter()
            .enumerate()
            .filter(|(_, ty)| matches!(ty.shape, ObjectKind::Merged(_)))
            .map(|(object, _)| (object, MergedObject::default()))
            .collect();
        // Nodes with the same seed must not back off in step.
        let rng = checksum_from(config.seed, me.as_str().bytes());
        Self {
            backlogs: Backlogs::new(config.backlog),
            me,
            job,
            config,
            types,
            pool: None,
            view: View::default(),
            cluster: None,
            parts: BTreeMap::new(),
            merged,
            tickets: BTreeMap::new(),
            wants: BTreeMap::new(),
            requests: BTreeMap::new(),
            next_request: 1,
            assembling: 0,
            rng: SplitMix(rng),
            wake: None,
            out: Vec::new(),
            garbage: Vec::new(),
            stats: ShareStats::default(),
        }
    }

    /// Removes and returns the requested actions, and cells to drop outside the lock.
    pub fn take(&mut self, now: Instant) -> (Vec<StoreAction>, Vec<Arc<Cell>>) {
        self.flush_merges(now);
        self.announce();
        (std::mem::take(&mut self.out), std::mem::take(&mut self.garbage))
    }

    /// Handles a received frame.
    pub fn frame(&mut self, from: &NodeId, kind: Kind, body: &Bytes, now: Instant) {
        if let Err(why) = self.try_frame(from, kind, body, now) {
            self.stats.refused += 1;
            self.out.push(StoreAction::Event(Fact::Refused { from: from.clone(), why }));
        }
    }

    fn try_frame(
        &mut self,
        from: &NodeId,
        kind: Kind,
        body: &Bytes,
        now: Instant,
    ) -> Result<(), FrameError> {
        match kind {
            Kind::OBJECT_UPDATE => {
                let update: Update = decode(kind, body)?;
                self.check_job(update.job)?;
                update.check()?;
                self.on_update(from, update, now)
            }
            Kind::OBJECT_FETCH => {
                let fetch: Fetch = decode(kind, body)?;
                self.check_job(fetch.job)?;
                fetch.check()?;
                self.on_fetch(from, fetch, now)
            }
            Kind::OBJECT_MISS => {
                let miss: Miss = decode(kind, body)?;
                self.check_job(miss.job)?;
                self.on_miss(from, &miss, now);
                Ok(())
            }
            Kind::OBJECT_MERGE => {
                let merge: Merge = decode(kind, body)?;
                self.check_job(merge.job)?;
                self.on_merge(from, &merge)
            }
            other => Err(FrameError::Kind(other)),
        }
    }

    /// Handles a change of the membership.
    pub fn set_view(&mut self, view: &View, now: Instant) {
        let old = self.view.clone();
        if !self.view.advance(view.clone()) {
            return;
        }
        self.cluster = self.view.cluster_of(&self.me).cloned();
        // Both are in order of name.
        let names = |members: Vec<(&NodeId, &Member)>| -> Vec<NodeId> {
            members.into_iter().map(|(node, _)| node.clone()).collect()
        };
        let lost = names(self.view.members.lost_since(&old.members));
        if !lost.is_empty() {
            // Payloads that a lost node was to relay have not arrived. Other payloads under way on
            // a slow link must not be sent again for every lost node.
            let relayed = lost.iter().any(|node| old.cluster_of(node) == self.cluster.as_ref());
            for part in self.parts.values_mut() {
                part.sent.retain(|(_, to), sent| {
                    !(lost.binary_search(to).is_ok() || relayed && sent.relayed)
                });
            }
            for node in &lost {
                self.backlogs.forget(node);
            }
            self.lost(&lost, now);
        }
        self.drop_old_epochs();
        if !self.parts.is_empty() {
            let added = names(old.members.lost_since(&self.view.members));
            self.send_to_new_members(&old, &added, now);
        }
        self.relink_merges(&old);
    }

    /// Handles the loss of the link to a node: unanswered messages to it may be lost.
    pub fn down(&mut self, node: &NodeId, now: Instant) {
        self.parts.values_mut().for_each(|part| part.sent.retain(|(_, to), _| to != node));
        self.unlink_merges(node);
        self.lost(std::slice::from_ref(node), now);
    }

    /// Keeps a message that the network did not accept or deliver.
    pub fn unsent(&mut self, to: NodeId, kind: Kind, body: Bytes, now: Instant) {
        if self.view.members.contains_key(&to) || self.view.members.is_empty() {
            self.stats.dropped += self.backlogs.push(to, kind, body, now);
        } else {
            self.stats.dropped += body.len() as u64;
        }
    }

    /// Handles all due timers.
    pub fn tick(&mut self, now: Instant) {
        self.wake = None;
        for (to, kind, body) in self.backlogs.due(now) {
            self.send(vec![to], Message::Raw(kind, body));
        }
        self.ask_due(now);
    }

    fn announce(&mut self) {
        let next =
            [self.next_want(), self.backlogs.next(), self.next_merge()].into_iter().flatten().min();
        if let Some(next) = next
            && self.wake.is_none_or(|wake| next < wake)
        {
            self.wake = Some(next);
            self.out.push(StoreAction::Wake(next));
        }
    }

    fn check_job(&self, job: JobId) -> Result<(), FrameError> {
        if job == self.job { Ok(()) } else { Err(FrameError::Job(job)) }
    }

    /// The index of the type with this name.
    pub fn object(&self, name: &str) -> Option<usize> {
        self.types.binary_search_by(|ty| ty.name.cmp(name)).ok()
    }

    /// The index of a type, if exactly this type is registered under the name.
    pub fn typed<T: 'static>(&self, name: &str) -> Option<usize> {
        self.object(name).filter(|object| self.types[*object].type_id == TypeId::of::<T>())
    }

    /// The slot of a versioned object's part.
    pub fn slot(&self, key: &ObjectKey) -> Option<PartKey> {
        let object = self.object(&key.name)?;
        matches!(self.types[object].shape, ObjectKind::Versioned(_))
            .then_some(PartKey { object, part: key.part })
    }

    fn key(&self, slot: PartKey) -> ObjectKey {
        ObjectKey { name: self.types[slot.object].name.to_owned(), part: slot.part }
    }

    /// Returns exactly this version, if it is on this node.
    pub fn find(&self, slot: PartKey, version: Version) -> Option<Arc<Cell>> {
        self.parts.get(&slot)?.find(version)
    }

    /// The newest version on this node.
    pub fn newest(&self, slot: PartKey) -> Option<Arc<Cell>> {
        self.parts.get(&slot)?.newest().cloned()
    }

    /// The newest versions of all parts.
    pub fn newest_of_all(&self) -> Vec<Arc<Cell>> {
        self.parts.values().filter_map(|part| part.newest().cloned()).collect()
    }

    /// The epoch under which this node writes.
    pub fn epoch(&self) -> crate::id::Epoch {
        self.view.epoch
    }

    fn send(&mut self, to: Vec<NodeId>, message: Message) {
        let to: Vec<(NodeId, bool)> = to
            .into_iter()
            .map(|node| {
                let wide = self.is_wide(&node);
                (node, wide)
            })
            .collect();
        if !to.is_empty() {
            self.out.push(StoreAction::Send { to, message });
        }
    }

    /// Whether a node is known to be in another cluster.
    fn is_wide(&self, node: &NodeId) -> bool {
        self.view.cluster_of(node).is_some_and(|cluster| Some(cluster) != self.cluster.as_ref())
    }

    /// The maximum time that a node takes to send one more segment, over the slowest supported
    /// link.
    fn stall(&self, node: &NodeId) -> Duration {
        let rest = if self.is_wide(node) { self.config.stall_wide } else { self.config.stall };
        rest + Duration::from_secs_f64(self.config.segment as f64 / self.rate(node))
    }

    /// The minimum rate in bytes a second of the path to a node. Links inside a cluster count as 32
    /// times as fast as the slowest between clusters.
    fn rate(&self, node: &NodeId) -> f64 {
        self.config.min_rate.max(1) as f64 * if self.is_wide(node) { 1.0 } else { 32.0 }
    }

    /// The time for which bytes may be under way to a node after this node has started to send
    /// them.
    fn in_flight(&self, to: &NodeId, bytes: usize) -> Duration {
        self.stall(to) + Duration::from_secs_f64(bytes as f64 / self.rate(to))
    }

    /// All other members of this node's cluster.
    fn neighbours(&self) -> Vec<NodeId> {
        match &self.cluster {
            Some(cluster) => {
                self.view.in_cluster(cluster).filter(|node| **node != self.me).cloned().collect()
            }
            None => Vec::new(),
        }
    }

    /// The node that relays to this node's cluster.
    fn my_relay(&self) -> Option<&NodeId> {
        plan::relay_of(&self.view, self.cluster.as_ref()?)
    }

    /// A duration between 3/4 and 5/4 of this one.
    fn jitter(&mut self, base: Duration) -> Duration {
        base.mul_f64(0.75 + 0.5 * self.rng.unit())
    }

    /// The bytes of unfinished versions, for tests of the bound.
    #[cfg(test)]
    pub fn assembling(&self) -> usize {
        self.assembling
    }
}

fn decode<T: serde::de::DeserializeOwned>(kind: Kind, body: &Bytes) -> Result<T, FrameError> {
    wire::decode_shared(kind, body).map_err(|why| FrameError::Decode { kind, why })
}
