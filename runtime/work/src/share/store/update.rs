//! The broadcast of versions: publishes them, accepts and forwards segments, and sends versions to
//! joining nodes.

use std::sync::Arc;

use tokio::time::Instant;

use super::part::{ObjectPart, ObjectTransfer, Relay, SegmentEffect};
use super::plan::{self, ReceiverGroup};
use super::{Fact, FrameError, PartKey, Store, StoreAction};
use crate::id::NodeId;
use crate::membership::View;
use crate::share::Version;
use crate::share::cell::{Cell, Payload};
use crate::share::message::{Message, PayloadId, Update};
use crate::share::types::ObjectValue;

/// The maximum number of unfinished payloads of all objects.
const PARTIALS_MAX: usize = 256;

/// The factor on the length at which readers fold a chain, beyond which a chain without readers is
/// folded as well.
const FORCED_FOLD_FACTOR: usize = 4;

/// A payload with its identity.
pub(super) type UpdatePayload = (PayloadId, Payload);

pub(super) fn item(version: Version, delta: bool, payload: Payload) -> UpdatePayload {
    let id = PayloadId {
        version,
        delta,
        len: payload.len as u64,
        // Payloads are split at a length that fits, or were received with one.
        segment: payload.segment.try_into().unwrap_or(u32::MAX),
        sum: payload.sum,
    };
    (id, payload)
}

/// The payloads that lead to a version, for a node of the same epoch with version n = `have` (0:
/// none).
pub(super) fn items(cell: &Cell, have: u64) -> Vec<UpdatePayload> {
    let mut chain = cell.unfolded();
    if have == 0 || chain.base.n > have {
        chain = cell.chain();
    }
    let version = |n| Version { n, ..chain.base };
    let skip = if (chain.base.n..cell.version.n).contains(&have) {
        (have - chain.base.n) as usize
    } else {
        0
    };
    let mut out = Vec::new();
    if have == 0 || chain.base.n > have || have >= cell.version.n {
        out.push(item(chain.base, false, chain.whole));
    }
    for (i, delta) in chain.deltas.into_iter().enumerate().skip(skip) {
        out.push(item(version(chain.base.n + 1 + i as u64), true, delta));
    }
    out
}

impl Store {
    /// Publishes a whole value as the next version. Without its encoded form, which a node that is
    /// alone does not need, it is encoded when another node needs it.
    pub fn publish_whole(
        &mut self,
        slot: PartKey,
        whole: Option<Payload>,
        value: ObjectValue,
        now: Instant,
    ) -> Version {
        let epoch = self.view.epoch;
        let last = self.newest(slot).map(|cell| cell.version).filter(|v| v.epoch == epoch);
        let version = Version { epoch, n: last.map_or(0, |version| version.n) + 1 };
        let (ty, key) = (self.types[slot.object], self.key(slot));
        let is_needed = whole.is_some() || !self.is_alone();
        let cell = match whole {
            Some(whole) => Cell::whole(ty, key, version, whole),
            None => Cell::unencoded(ty, key, version, self.config.segment),
        };
        let cell = cell.with_value(value);
        if is_needed {
            let whole = cell.chain().whole;
            self.publish(slot, cell, item(version, false, whole), now);
        } else {
            self.publish_here(slot, cell, (false, 0), now);
        }
        version
    }

    /// Publishes a delta to `previous` as the next version. Does nothing and returns `None` if
    /// `previous` is no longer the newest or not of this epoch.
    pub fn publish_delta(
        &mut self,
        slot: PartKey,
        previous: &Arc<Cell>,
        delta: Payload,
        value: ObjectValue,
        now: Instant,
    ) -> Option<Version> {
        let newest = self.newest(slot)?;
        if !Arc::ptr_eq(&newest, previous) || previous.version.epoch != self.view.epoch {
            return None;
        }
        let cell = Cell::next(previous, delta.clone());
        let version = cell.version;
        self.publish(slot, cell.with_value(value), item(version, true, delta), now);
        Some(version)
    }

    /// Whether no other node is a member of the job.
    pub fn is_alone(&self) -> bool {
        self.view.members.len() <= 1
    }

    fn publish(&mut self, slot: PartKey, cell: Cell, item: UpdatePayload, now: Instant) {
        let version = cell.version;
        self.publish_here(slot, cell, (item.0.delta, item.0.len), now);
        let relays: Vec<NodeId> =
            plan::other_relays(&self.view, self.cluster.as_ref()).into_iter().cloned().collect();
        let near = self.neighbours();
        let groups = plan::groups(&near, self.config.flat, self.config.fanout);
        self.note_sent(slot, version, &relays, &groups, now);
        self.spread(slot, &[item], &relays, &groups, 0);
    }

    /// Makes a version present on this node, published as a delta or a whole value of this length;
    /// 0 if it is not encoded.
    fn publish_here(
        &mut self,
        slot: PartKey,
        cell: Cell,
        (delta, bytes): (bool, u64),
        now: Instant,
    ) {
        let version = cell.version;
        let part = self.parts.entry(slot).or_default();
        part.writer = true;
        part.origin = Some(self.me.clone());
        part.epoch = part.epoch.max(version.epoch);
        self.stats.published += 1;
        self.out.push(StoreAction::Event(Fact::Published {
            key: self.key(slot),
            version,
            delta,
            bytes,
        }));
        self.hold(slot, Arc::new(cell), None, now);
        self.prune(slot);
    }

    /// Sends payloads segment by segment: to relays of other clusters first, since their path is
    /// longer.
    pub(super) fn spread(
        &mut self,
        slot: PartKey,
        items: &[UpdatePayload],
        relays: &[NodeId],
        groups: &[ReceiverGroup],
        request: u64,
    ) {
        for (id, payload) in items {
            for index in 0..payload.segments.len() as u32 {
                self.send_segment(slot, id, payload, index, relays, groups, request);
            }
        }
    }

    #[allow(clippy::too_many_arguments)] // the fields of a frame, and its receivers
    pub(super) fn send_segment(
        &mut self,
        slot: PartKey,
        id: &PayloadId,
        payload: &Payload,
        index: u32,
        relays: &[NodeId],
        groups: &[ReceiverGroup],
        request: u64,
    ) {
        let Some(data) = payload.segments.get(index as usize) else { return };
        let update = Update {
            job: self.job,
            key: self.key(slot),
            id: *id,
            index,
            origin: self
                .parts
                .get(&slot)
                .and_then(|part| part.origin.clone())
                .unwrap_or_else(|| self.me.clone()),
            request,
            relay: false,
            below: Vec::new(),
            data: data.clone(),
        };
        if !relays.is_empty() {
            let message = Message::Update(Update { relay: true, ..update.clone() });
            self.send(relays.to_vec(), message);
        }
        for group in groups {
            let message = Message::Update(Update { below: group.below.clone(), ..update.clone() });
            self.send(group.to.clone(), message);
        }
    }

    pub(super) fn note_sent(
        &mut self,
        slot: PartKey,
        version: Version,
        relays: &[NodeId],
        groups: &[ReceiverGroup],
        now: Instant,
    ) {
        let Some(part) = self.parts.get_mut(&slot) else { return };
        let mut note = |to: &[NodeId], relayed| {
            let sent = ObjectTransfer { at: now, relayed };
            part.sent.extend(to.iter().map(|node| ((version, node.clone()), sent)));
        };
        note(relays, false);
        for ReceiverGroup { to, below } in groups {
            note(to, false);
            note(below, true);
        }
    }

    pub(super) fn on_update(
        &mut self,
        from: &NodeId,
        update: Update,
        now: Instant,
    ) -> Result<(), FrameError> {
        let slot =
            self.slot(&update.key).ok_or_else(|| FrameError::Object(update.key.name.clone()))?;
        let id = update.id;
        let wanted = self.is_wanted(slot, id.version);
        if !self.parts.contains_key(&slot) {
            let first = PartKey { part: 0, ..slot };
            let last = PartKey { part: u32::MAX, ..slot };
            if self.parts.range(first..=last).count() >= self.config.parts {
                return Err(FrameError::Range("too many parts"));
            }
        }
        let part = self.parts.entry(slot).or_default();
        if id.version.epoch < part.epoch.max(self.view.epoch) && !wanted {
            self.stats.stale += 1;
            let key = self.key(slot);
            self.out.push(StoreAction::Event(Fact::StaleDropped {
                key,
                version: id.version,
                from: from.clone(),
            }));
            return Ok(());
        }
        if id.version.epoch >= part.epoch {
            if id.version.epoch > part.epoch {
                part.writer = false;
            }
            part.epoch = id.version.epoch;
            part.origin = Some(update.origin.clone());
        }
        self.pass_on(slot, from, &update, now);
        let part = self.parts.entry(slot).or_default();
        if let Some(cell) = part.held.get(&id.version) {
            if cell.contradicts(&id) {
                self.stats.conflicts += 1;
                let key = self.key(slot);
                self.out.push(StoreAction::Event(Fact::Conflict {
                    key,
                    version: id.version,
                    from: from.clone(),
                }));
            } else {
                self.stats.duplicates += 1;
            }
            return Ok(());
        }
        if !wanted && part.held.keys().next().is_some_and(|oldest| id.version < *oldest) {
            self.stats.old += 1;
            return Ok(());
        }
        if id.delta && part.deltas.contains_key(&id.version) {
            self.stats.duplicates += 1;
            return Ok(());
        }
        let bytes = update.data.len();
        let request = update.request;
        let taken = part.take(from, update, self.pool.as_deref(), now);
        if !matches!(taken, SegmentEffect::Duplicate) {
            self.note_progress(slot, id.version, from, now);
        }
        match taken {
            SegmentEffect::Duplicate => self.stats.duplicates += 1,
            SegmentEffect::Partly => {
                self.assembling += bytes;
                self.make_room();
            }
            SegmentEffect::Corrupt => {
                if id.count() > 1 {
                    self.assembling -= id.len as usize - bytes;
                }
                return Err(FrameError::Range("the segments do not add up to what was announced"));
            }
            SegmentEffect::Whole(payload) => {
                if id.count() > 1 {
                    self.assembling -= id.len as usize - bytes;
                }
                self.complete(slot, &id, payload, (from, request != 0), now);
            }
        }
        Ok(())
    }

    /// Forwards a segment, if this node has the duty to.
    fn pass_on(&mut self, slot: PartKey, from: &NodeId, update: &Update, now: Instant) {
        let id = update.id;
        let duty = update.relay || !update.below.is_empty();
        let known = self.parts.get(&slot).is_some_and(|part| part.relays.contains_key(&id));
        if duty && !known {
            let mut nodes = if update.relay { self.neighbours() } else { update.below.clone() };
            nodes.retain(|node| *node != self.me && node != from && *node != update.origin);
            let groups = plan::groups(&nodes, self.config.flat, self.config.fanout);
            self.note_sent(slot, id.version, &[], &groups, now);
            self.parts.entry(slot).or_default().add_relay(id, Relay::new(groups));
        }
        let Some(relay) = self.parts.get_mut(&slot).and_then(|part| part.relays.get_mut(&id))
        else {
            return;
        };
        if !relay.take(update.index) {
            return;
        }
        let messages: Vec<(Vec<NodeId>, Update)> = relay
            .groups
            .iter()
            .map(|group| {
                let below = group.below.clone();
                let update = Update { request: 0, relay: false, below, ..update.clone() };
                (group.to.clone(), update)
            })
            .collect();
        for (to, update) in messages {
            self.send(to, Message::Update(update));
        }
    }

    /// Accepts a complete payload, and then the deltas that waited for it.
    fn complete(
        &mut self,
        slot: PartKey,
        id: &PayloadId,
        payload: Payload,
        source: (&NodeId, bool),
        now: Instant,
    ) {
        let part = self.parts.entry(slot).or_default();
        if id.delta {
            self.assembling += payload.len;
            part.deltas.insert(id.version, payload);
            // Those nearest to the kept versions can be applied first.
            while part.deltas.len() > 2 * self.config.chain.max(1) {
                if let Some((_, delta)) = part.deltas.pop_last() {
                    self.assembling -= delta.len;
                    self.stats.evicted += 1;
                }
            }
            self.apply_from(slot, id.version, source, now);
        } else {
            let cell = Cell::whole(self.types[slot.object], self.key(slot), id.version, payload);
            self.hold(slot, Arc::new(cell), Some(source), now);
            self.apply_from(slot, next(id.version), source, now);
        }
        self.prune(slot);
        self.make_room();
        let waits = self.parts.get(&slot).and_then(|part| part.deltas.keys().next_back().copied());
        if let Some(version) = waits {
            self.want_gap(slot, version, now);
        }
    }

    /// Applies the waiting deltas from this version on, as long as they are consecutive.
    fn apply_from(
        &mut self,
        slot: PartKey,
        mut version: Version,
        source: (&NodeId, bool),
        now: Instant,
    ) {
        loop {
            let part = self.parts.entry(slot).or_default();
            let Some(previous) = part.held.get(&previous(version)).cloned() else { return };
            let Some(delta) = part.deltas.remove(&version) else { return };
            self.assembling -= delta.len;
            let limit = FORCED_FOLD_FACTOR * self.config.chain.max(1);
            if previous.is_long(limit, FORCED_FOLD_FACTOR) {
                self.stats.folded += 1;
                previous.fold(self.config.segment);
                if previous.is_long(limit, FORCED_FOLD_FACTOR) {
                    // The user's type refuses, so the version cannot be built here; a fetch may
                    // bring a whole value.
                    self.stats.evicted += 1;
                    return;
                }
            }
            self.hold(slot, Arc::new(Cell::next(&previous, delta)), Some(source), now);
            version = next(version);
        }
    }

    fn hold(
        &mut self,
        slot: PartKey,
        cell: Arc<Cell>,
        source: Option<(&NodeId, bool)>,
        now: Instant,
    ) {
        let part = self.parts.entry(slot).or_default();
        part.held.insert(cell.version, cell.clone());
        if source.is_some() {
            self.stats.received += 1;
        }
        self.resolve(slot, &cell, source, now);
    }

    fn prune(&mut self, slot: PartKey) {
        let wants: Vec<Version> = self
            .wants
            .keys()
            .filter(|(wanted, _)| *wanted == slot)
            .map(|(_, version)| *version)
            .collect();
        let Some(part) = self.parts.get_mut(&slot) else { return };
        let (cells, bytes) = part.prune(self.config.keep, |version| {
            wants.iter().any(|want| want.epoch == version.epoch && *want >= version)
        });
        self.garbage.extend(cells);
        self.assembling -= bytes;
    }

    /// Keeps unfinished payloads within their bounds: drops those without progress for the longest
    /// time.
    fn make_room(&mut self) {
        loop {
            let partials: usize = self.parts.values().map(|part| part.partial.len()).sum();
            if self.assembling <= self.config.assembly && partials <= PARTIALS_MAX {
                return;
            }
            let idle = self
                .parts
                .iter()
                .flat_map(|(slot, part)| {
                    part.partial.iter().map(|(id, partial)| (partial.progress, *slot, *id))
                })
                .min();
            let dropped = match idle {
                Some((_, slot, id)) => self
                    .parts
                    .get_mut(&slot)
                    .and_then(|part| part.partial.remove(&id))
                    .map(|partial| partial.bytes),
                None => self
                    .parts
                    .values_mut()
                    .find_map(|part| part.deltas.pop_last())
                    .map(|(_, delta)| delta.len),
            };
            let Some(bytes) = dropped else { return };
            self.assembling -= bytes;
            self.stats.evicted += 1;
        }
    }

    /// Drops unfinished payloads of past epochs.
    pub(super) fn drop_old_epochs(&mut self) {
        let epoch = self.view.epoch;
        let wanted: Vec<(PartKey, u32)> =
            self.wants.keys().map(|(slot, version)| (*slot, version.epoch.0)).collect();
        for (slot, part) in &mut self.parts {
            let keep = |version: Version| {
                version.epoch >= epoch || wanted.contains(&(*slot, version.epoch.0))
            };
            let assembling = &mut self.assembling;
            part.partial.retain(|id, partial| {
                let keep = keep(id.version);
                *assembling -= if keep { 0 } else { partial.bytes };
                keep
            });
            part.deltas.retain(|version, delta| {
                let keep = keep(*version);
                *assembling -= if keep { 0 } else { delta.len };
                keep
            });
        }
    }

    /// Sends the newest versions to new members. Within a cluster its coordinator does so; for a
    /// cluster with a new coordinator, the writer. A coordinator that was a member earlier probably
    /// has them, so it gets the first segment and fetches the rest.
    pub(super) fn send_to_new_members(&mut self, old: &View, added: &[NodeId], now: Instant) {
        let slots: Vec<(PartKey, Arc<Cell>, bool)> = self
            .parts
            .iter()
            .filter_map(|(slot, part): (_, &ObjectPart)| {
                Some((*slot, part.newest()?.clone(), part.writer))
            })
            .filter(|(_, cell, _)| cell.version.epoch >= self.view.epoch)
            .collect();
        if slots.is_empty() {
            return;
        }
        let is_new = |node: &NodeId| added.binary_search(node).is_ok();
        let near: Vec<NodeId> = self.neighbours().into_iter().filter(is_new).collect();
        let relay = self.my_relay().cloned();
        let i_relay = relay.as_ref() == Some(&self.me);
        let relay_is_new = relay.is_some_and(|relay| is_new(&relay));
        let (full, known): (Vec<NodeId>, Vec<NodeId>) =
            plan::other_relays(&self.view, self.cluster.as_ref())
                .into_iter()
                .filter(|node| {
                    let before = self.view.cluster_of(node).and_then(|c| plan::relay_of(old, c));
                    before != Some(*node) || is_new(node)
                })
                .cloned()
                .partition(is_new);
        for (slot, cell, writer) in slots {
            let near: &[NodeId] = if i_relay || (writer && relay_is_new) { &near } else { &[] };
            let full: &[NodeId] = if writer { &full } else { &[] };
            let items = items(&cell, 0);
            let groups = plan::groups(near, self.config.flat, self.config.fanout);
            for (id, _) in &items {
                self.note_sent(slot, id.version, full, &groups, now);
            }
            self.spread(slot, &items, full, &groups, 0);
            if writer && let Some((id, payload)) = items.last() {
                self.send_segment(slot, id, payload, 0, &known, &[], 0);
            }
        }
    }
}

fn next(version: Version) -> Version {
    Version { n: version.n.saturating_add(1), ..version }
}

fn previous(version: Version) -> Version {
    Version { n: version.n.saturating_sub(1), ..version }
}
