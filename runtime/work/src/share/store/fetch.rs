//! Needed versions, and how they are fetched: after a grace time, from the nearest holder, one at a
//! time.
//!
//! Only a cluster's coordinator (or, if it fails, a member) asks outside the cluster: members ask
//! it, and it gets the version once and forwards it. A holder that has started to send a version to
//! the asker answers that it is coming.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use tokio::time::Instant;

use super::update::items;
use super::{Fact, FrameError, PartKey, Store, StoreAction, Ticket, Unavailable, VersionKey, plan};
use crate::id::{Epoch, NodeId};
use crate::share::api::Needed;
use crate::share::cell::{Cell, HeldVersions};
use crate::share::message::{Fetch, Message, Miss};
use crate::share::{ObjectNeed, Version};

/// The number of answers "it is coming" without a segment in between, after which another holder is
/// asked. Over a slow and busy link the first segment takes minutes, and requests to other holders
/// make the link busier.
const PROMISES_MAX: u32 = 100;

/// The maximum number of versions wanted on behalf of other nodes; further requests are answered
/// with a miss.
const PROXIED_MAX: usize = 1024;

/// The number of members of this cluster that are asked besides its coordinator and the writer.
const NEIGHBOURS_ASKED: usize = 2;

/// The maximum number of open requests of one want.
const REQUESTS_MAX: usize = 64;

/// A ticket's needs.
pub(super) struct Waiting {
    missing: BTreeSet<VersionKey>,
    held: Vec<Arc<Cell>>,
}

/// A version that is wanted and not on this node.
pub(super) struct Want {
    tickets: BTreeSet<Ticket>,
    /// The nodes that asked this one for it, with their requests.
    askers: BTreeMap<NodeId, Fetch>,
    /// The time at which the next holder is asked.
    due: Instant,
    /// The holder that is being asked.
    holder: Option<NodeId>,
    /// The open requests to holders: over a slow link an answer may arrive after another holder was
    /// asked.
    requests: VecDeque<u64>,
    /// The nodes that were asked in this round.
    asked: BTreeSet<NodeId>,
    last: Option<NodeId>,
    /// The number of rounds in which no node knew of the version.
    round: u32,
    /// The nodes whose last answer in this round was that it is coming: the version is late, not
    /// lost.
    promised: BTreeSet<NodeId>,
    promises: u32,
}

impl Want {
    fn new(due: Instant) -> Self {
        Self {
            tickets: BTreeSet::new(),
            askers: BTreeMap::new(),
            due,
            holder: None,
            requests: VecDeque::new(),
            asked: BTreeSet::new(),
            last: None,
            round: 0,
            promised: BTreeSet::new(),
            promises: 0,
        }
    }
}

impl Store {
    /// Waits for these versions on behalf of a task.
    pub fn need(
        &mut self,
        ticket: Ticket,
        needs: &[ObjectNeed],
        now: Instant,
    ) -> Result<Needed, Unavailable> {
        self.forget(ticket);
        let mut waiting = Waiting { missing: BTreeSet::new(), held: Vec::new() };
        for need in needs {
            let slot = self
                .slot(&need.key)
                .ok_or_else(|| Unavailable::Unregistered(need.key.name.clone()))?;
            match self.find(slot, need.version) {
                Some(cell) => waiting.held.push(cell),
                None => {
                    waiting.missing.insert((slot, need.version));
                }
            }
        }
        if waiting.missing.is_empty() {
            return Ok(Needed::Ready(HeldVersions(waiting.held)));
        }
        for wanted in &waiting.missing {
            let due = self.first_due(wanted, now);
            self.wants.entry(*wanted).or_insert_with(|| Want::new(due)).tickets.insert(ticket);
        }
        self.tickets.insert(ticket, waiting);
        Ok(Needed::Waiting)
    }

    /// Drops a ticket whose task no longer waits.
    pub fn forget(&mut self, ticket: Ticket) {
        let Some(waiting) = self.tickets.remove(&ticket) else { return };
        self.garbage.extend(waiting.held);
        for wanted in waiting.missing {
            if let Some(want) = self.wants.get_mut(&wanted) {
                want.tickets.remove(&ticket);
                if want.tickets.is_empty() && want.askers.is_empty() {
                    self.drop_want(&wanted);
                }
            }
        }
    }

    /// Whether a waiting task needs an object that is written in another cluster; `None` if no task
    /// waits.
    pub fn waits_wide(&self) -> Option<bool> {
        let mut slots =
            self.tickets.values().flat_map(|waiting| &waiting.missing).map(|(slot, _)| slot);
        let first = slots.next()?;
        let wide = |slot: &PartKey| self.writer(slot).is_none_or(|writer| self.is_wide(writer));
        Some(wide(first) || slots.any(wide))
    }

    /// The writer of an object part, if known.
    fn writer(&self, slot: &PartKey) -> Option<&NodeId> {
        let origin = self.parts.get(slot).and_then(|part| part.origin.as_ref());
        origin.or(self.view.coordinator.as_ref())
    }

    /// Wants the version of a delta whose predecessor is missing, to repair the gap even if no task
    /// needs it yet.
    pub(super) fn want_gap(&mut self, slot: PartKey, version: Version, now: Instant) {
        let wanted = (slot, version);
        if !self.wants.contains_key(&wanted) {
            self.drop_idle_wants(slot, version);
            let due = self.first_due(&wanted, now);
            self.wants.insert(wanted, Want::new(due));
        }
    }

    pub(super) fn is_wanted(&self, slot: PartKey, version: Version) -> bool {
        let last = Version { n: u64::MAX, ..version };
        self.wants.range((slot, version)..=(slot, last)).next().is_some()
    }

    /// The time at which the next want is due.
    pub(super) fn next_want(&self) -> Option<Instant> {
        self.wants.values().map(|want| want.due).min()
    }

    pub(super) fn ask_due(&mut self, now: Instant) {
        let due: Vec<VersionKey> = self
            .wants
            .iter()
            .filter(|(_, want)| want.due <= now)
            .map(|(wanted, _)| *wanted)
            .collect();
        for wanted in due {
            self.ask(&wanted, now);
        }
    }

    /// Records a segment of this version: wants of it, or of later versions of the epoch, wait
    /// longer.
    pub(super) fn note_progress(
        &mut self,
        slot: PartKey,
        version: Version,
        from: &NodeId,
        now: Instant,
    ) {
        let due = now + self.stall(from);
        let last = Version { n: u64::MAX, ..version };
        for want in self.wants.range_mut((slot, version)..=(slot, last)).map(|(_, want)| want) {
            want.due = want.due.max(due);
            want.promises = 0;
            want.promised.insert(from.clone());
        }
    }

    /// Handles lost nodes, in order of name, or lost messages of theirs: wants that rely on them
    /// ask the next holder at once.
    pub(super) fn lost(&mut self, nodes: &[NodeId], now: Instant) {
        debug_assert!(nodes.is_sorted());
        let is_lost = |node: &NodeId| nodes.binary_search(node).is_ok();
        let parts = &self.parts;
        for ((slot, version), want) in &mut self.wants {
            want.askers.retain(|node, _| !is_lost(node));
            let asked = want.holder.as_ref().is_some_and(is_lost);
            let partial = parts
                .get(slot)
                .and_then(|part| part.nearest_partial(*version))
                .is_some_and(|(_, partial)| is_lost(&partial.from));
            if asked || partial {
                want.due = now;
            }
        }
        // A link may be restored before the next tick.
        self.ask_due(now);
    }

    /// Handles the arrival of a version: informs the tasks and nodes that wait for it.
    pub(super) fn resolve(
        &mut self,
        slot: PartKey,
        cell: &Arc<Cell>,
        source: Option<(&NodeId, bool)>,
        now: Instant,
    ) {
        let wanted = (slot, cell.version);
        if let Some(want) = self.drop_want(&wanted) {
            for ticket in want.tickets {
                let Some(waiting) = self.tickets.get_mut(&ticket) else { continue };
                waiting.missing.remove(&wanted);
                waiting.held.push(cell.clone());
                if waiting.missing.is_empty()
                    && let Some(waiting) = self.tickets.remove(&ticket)
                {
                    self.out.push(StoreAction::Ready(ticket, HeldVersions(waiting.held)));
                }
            }
            for (node, fetch) in want.askers {
                let passed =
                    self.parts.get(&slot).is_some_and(|p| p.has_passed_on(cell.version, &node));
                if !passed {
                    self.serve(slot, cell, &node, &fetch, now);
                }
            }
            if let Some((from, true)) = source {
                self.stats.fetched += 1;
                let fact = Fact::Fetched {
                    key: self.key(slot),
                    version: cell.version,
                    from: from.clone(),
                    wide: self.is_wide(from),
                };
                self.out.push(StoreAction::Event(fact));
            }
        }
        self.drop_idle_wants(slot, cell.version);
    }

    pub(super) fn on_fetch(
        &mut self,
        from: &NodeId,
        fetch: Fetch,
        now: Instant,
    ) -> Result<(), FrameError> {
        let slot = self
            .slot(&fetch.need.key)
            .ok_or_else(|| FrameError::Object(fetch.need.key.name.clone()))?;
        let version = fetch.need.version;
        let coming = match self.find(slot, version) {
            Some(cell) => {
                let began = self
                    .parts
                    .get(&slot)
                    .and_then(|part| part.sent.get(&(version, from.clone())))
                    .map(|sent| sent.at);
                let bytes = items(&cell, fetch.have).iter().map(|(id, _)| id.len as usize).sum();
                if began.is_none_or(|began| now >= began + self.in_flight(from, bytes)) {
                    self.serve(slot, &cell, from, &fetch, now);
                    return Ok(());
                }
                true
            }
            None => self.proxy(slot, from, &fetch, now),
        };
        let miss = Miss { job: self.job, request: fetch.request, coming };
        self.send(vec![from.clone()], Message::Miss(miss));
        Ok(())
    }

    pub(super) fn on_miss(&mut self, from: &NodeId, miss: &Miss, now: Instant) {
        let Some(wanted) = self.requests.get(&miss.request).copied() else { return };
        let stall = self.stall(from);
        let Some(want) = self.wants.get_mut(&wanted) else { return };
        if miss.coming {
            want.promised.insert(from.clone());
        } else {
            want.promised.remove(from);
            want.asked.insert(from.clone());
        }
        if want.holder.as_ref() != Some(from) {
            return;
        }
        want.promises += 1;
        if miss.coming && want.promises <= PROMISES_MAX {
            want.asked.remove(from);
            want.due = now + stall;
        } else {
            self.ask(&wanted, now);
        }
    }

    /// Fetches a missing version for a member of this cluster, if this node is its coordinator.
    /// Returns whether it does so.
    fn proxy(&mut self, slot: PartKey, from: &NodeId, fetch: &Fetch, now: Instant) -> bool {
        let mine = self.my_relay() == Some(&self.me)
            && from != &self.me
            && self.view.cluster_of(from).is_some()
            && !self.is_wide(from);
        let wanted = (slot, fetch.need.version);
        if !mine || (!self.wants.contains_key(&wanted) && self.wants.len() >= PROXIED_MAX) {
            return false;
        }
        let due = match self.progress(&wanted) {
            Some(due) => due.max(now),
            None => now,
        };
        let want = self.wants.entry(wanted).or_insert_with(|| Want::new(due));
        want.askers.insert(from.clone(), fetch.clone());
        if want.holder.is_none() && want.round == 0 {
            want.due = want.due.min(due);
        }
        self.ask_due(now);
        self.wants.contains_key(&wanted)
    }

    fn serve(&mut self, slot: PartKey, cell: &Cell, to: &NodeId, fetch: &Fetch, now: Instant) {
        self.stats.fetches_served += 1;
        self.note_sent(slot, cell.version, std::slice::from_ref(to), &[], now);
        let group = [plan::ReceiverGroup { to: vec![to.clone()], below: Vec::new() }];
        for (id, payload) in items(cell, fetch.have) {
            match &fetch.partial {
                Some((partial, ranges)) if *partial == id => {
                    let count = id.count();
                    let lacking: BTreeSet<u32> =
                        ranges.iter().flat_map(|(a, b)| *a..(*b).min(count)).collect();
                    for index in lacking {
                        self.send_segment(slot, &id, &payload, index, &[], &group, fetch.request);
                    }
                }
                _ => self.spread(slot, &[(id, payload)], &[], &group, fetch.request),
            }
        }
    }

    /// Asks the next holder, starts the next round, or gives up.
    fn ask(&mut self, wanted: &VersionKey, now: Instant) {
        let (slot, version) = *wanted;
        let Some(want) = self.wants.get(wanted) else { return };
        let next = self
            .candidates(slot)
            .into_iter()
            .find(|node| !want.asked.contains(node) && !want.askers.contains_key(node));
        let Some(node) = next else {
            return self.next_round(wanted, now);
        };
        let request = self.next_request;
        self.next_request += 1;
        let due = now + self.stall(&node);
        let (have, partial) = match self.parts.get(&slot) {
            Some(part) => (
                part.before(version).map_or(0, |before| before.n),
                part.nearest_partial(version).map(|(id, partial)| (*id, partial.missing(id))),
            ),
            None => (0, None),
        };
        let fetch = Fetch {
            job: self.job,
            request,
            need: ObjectNeed { key: self.key(slot), version },
            have,
            partial,
        };
        if let Some(want) = self.wants.get_mut(wanted) {
            want.requests.push_back(request);
            if want.requests.len() > REQUESTS_MAX
                && let Some(old) = want.requests.pop_front()
            {
                self.requests.remove(&old);
            }
            want.holder = Some(node.clone());
            want.asked.insert(node.clone());
            want.last = Some(node.clone());
            want.due = due;
        }
        self.requests.insert(request, *wanted);
        self.stats.fetches_sent += 1;
        self.send(vec![node], Message::Fetch(fetch));
    }

    fn next_round(&mut self, wanted: &VersionKey, now: Instant) {
        let pause = self.jitter(self.config.backoff);
        let rounds = self.config.rounds;
        // Before the first view no node can be asked, which does not mean that none has it.
        let counts = !self.view.members.is_empty();
        let Some(want) = self.wants.get_mut(wanted) else { return };
        want.holder = None;
        want.asked.clear();
        want.promises = 0;
        want.round += u32::from(counts && std::mem::take(&mut want.promised).is_empty());
        if want.round < rounds.max(1) {
            want.due = now + pause * (1 << want.round.saturating_sub(1).min(10));
        } else {
            self.fail(wanted);
        }
    }

    fn fail(&mut self, wanted: &VersionKey) {
        let Some(want) = self.drop_want(wanted) else { return };
        let why = Unavailable::NoHolder {
            need: ObjectNeed { key: self.key(wanted.0), version: wanted.1 },
            last_asked: want.last,
        };
        for (node, fetch) in want.askers {
            let miss = Miss { job: self.job, request: fetch.request, coming: false };
            self.send(vec![node], Message::Miss(miss));
        }
        if !want.tickets.is_empty() {
            self.out.push(StoreAction::Event(Fact::FetchFailed(why.clone())));
        }
        for ticket in want.tickets {
            self.forget(ticket);
            self.out.push(StoreAction::Failed(ticket, why.clone()));
        }
    }

    /// The possible holders of a version, nearest first.
    fn candidates(&self, slot: PartKey) -> Vec<NodeId> {
        let mut nodes: Vec<&NodeId> = Vec::new();
        let origin = self.parts.get(&slot).and_then(|part| part.origin.as_ref());
        let writers: Vec<&NodeId> = origin.into_iter().chain(&self.view.coordinator).collect();
        let neighbours = self.neighbours();
        nodes.extend(self.my_relay());
        nodes.extend(writers.iter().copied().filter(|node| !self.is_wide(node)));
        // The order of neighbours differs from node to node, so that not all ask the same one.
        let start = neighbours.partition_point(|node| *node < self.me);
        let (before, after) = neighbours.split_at(start);
        nodes.extend(after.iter().chain(before).take(NEIGHBOURS_ASKED));
        nodes.extend(writers);
        nodes.extend(plan::other_relays(&self.view, self.cluster.as_ref()));
        let mut seen = BTreeSet::new();
        nodes
            .into_iter()
            .filter(|node| **node != self.me && self.view.members.contains_key(*node))
            .filter(|node| seen.insert(*node))
            .cloned()
            .collect()
    }

    /// The time at which a wanted version is fetched if it has not arrived.
    fn first_due(&self, wanted: &VersionKey, now: Instant) -> Instant {
        if let Some(due) = self.progress(wanted) {
            return due.max(now);
        }
        let wide = self.writer(&wanted.0).is_none_or(|writer| self.is_wide(writer));
        now + if wide { self.config.grace_wide } else { self.config.grace }
    }

    /// The time until which a partly received version may be awaited.
    fn progress(&self, (slot, version): &VersionKey) -> Option<Instant> {
        let (_, partial) = self.parts.get(slot)?.nearest_partial(*version)?;
        let is_member =
            self.view.members.is_empty() || self.view.members.contains_key(&partial.from);
        is_member.then(|| partial.progress + self.stall(&partial.from))
    }

    fn drop_want(&mut self, wanted: &VersionKey) -> Option<Want> {
        let want = self.wants.remove(wanted)?;
        for request in &want.requests {
            self.requests.remove(request);
        }
        Some(want)
    }

    /// Drops the wants of earlier versions for which no task or node waits.
    fn drop_idle_wants(&mut self, slot: PartKey, version: Version) {
        let first = Version { epoch: Epoch(0), n: 0 };
        let idle: Vec<VersionKey> = self
            .wants
            .range((slot, first)..(slot, version))
            .filter(|(_, want)| want.tickets.is_empty() && want.askers.is_empty())
            .map(|(wanted, _)| *wanted)
            .collect();
        for wanted in idle {
            self.drop_want(&wanted);
        }
    }
}
