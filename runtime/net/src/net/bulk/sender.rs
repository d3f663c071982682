//! The sending side of bulk transfers: cuts payloads into chunks, as the window to each peer allows.
//!
//! No I/O: frames go through a closure that may refuse them. Chunks are slices of the payload, not copies.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use bytes::Bytes;

use super::message::{Begin, Cancel, Credit, Part};
use super::window::Window;
use super::{BulkConfig, BulkError};
use crate::id::NodeId;
use crate::net::{Class, SendError, Undelivered};
use crate::wire::{self, Frame, Kind};

/// Hands a frame to the transport.
pub(crate) type Send<'a> = &'a mut dyn FnMut(Class, Frame) -> Result<(), SendError>;

/// Transfers to one peer that take turns; the rest wait. Well under what a receiver takes at once.
pub(super) const TURNS_MAX: usize = 16;

/// Of so many turns one is the oldest transfer's.
const TURNS_A_ROUND: u8 = 4;

/// Longest payload remembered after its link went down. A longer one was hardly all in the transport's queue.
const LIMBO_MAX: usize = 1 << 20;

#[derive(Debug)]
pub(super) struct Sender {
    /// Of the next transfer that is offered: local.
    next_key: u64,
    /// Of the next one that is begun: on the wire, ascending.
    next_id: u64,
    peers: BTreeMap<NodeId, Outgoing>,
    /// Short payloads of the link that went down last, of which the transport had everything: it may give a part back.
    limbo: Vec<Undelivered>,
}

/// All transfers to one peer.
#[derive(Debug)]
struct Outgoing {
    window: Window,
    /// In the order in which they were offered.
    transfers: BTreeMap<u64, Transfer>,
    /// Those that were begun, by their number on the wire.
    begun: BTreeMap<u64, u64>,
    /// Transfers with bytes to send that take turns, oldest first; at most [`TURNS_MAX`].
    turns: Vec<u64>,
    /// Those that wait to take turns, oldest first.
    waiting: VecDeque<u64>,
    /// Counts turns: every fourth is the oldest one's, the others the shortest one's. So the oldest gets a quarter of the link
    /// whatever comes after it, a short one hardly waits for what is long, and pieces of one thing come one after another.
    turn: u8,
    /// Whether the shortest of those that wait takes turns next, or the oldest.
    shortest_next: bool,
    /// Whose chunks the receiver expects, by its number on the wire.
    current: Option<u64>,
    /// Bytes of the payloads held.
    held: usize,
    under_way: usize,
    /// The transport refused a frame and will tell when it drained.
    blocked: bool,
    /// Cancels that the transport would not take.
    owed: VecDeque<Frame>,
    /// Packets to the peer that were lost, as the transport counts them, and when that was last seen to grow.
    lost: u64,
    lost_at: Option<Duration>,
}

#[derive(Debug)]
struct Transfer {
    kind: Kind,
    body: Bytes,
    /// Its number on the wire, once it was begun.
    id: Option<u64>,
    sent: usize,
    credited: usize,
    /// Of each chunk under way: its end, when it was sent, and how much was under way to the peer then, with it.
    marks: VecDeque<(usize, Duration, usize)>,
}

impl Sender {
    /// Ids start at `first_id`, so that the ids of two lives of a node differ.
    pub(super) fn new(first_id: u64) -> Self {
        Self { next_key: 0, next_id: first_id, peers: BTreeMap::new(), limbo: Vec::new() }
    }

    pub(super) fn offer(
        &mut self,
        config: &BulkConfig,
        to: &NodeId,
        (kind, body): (Kind, Bytes),
        now: Duration,
        send: Send<'_>,
    ) -> Result<(), SendError> {
        let peer = self.peers.entry(to.clone()).or_insert_with(|| Outgoing::new(config, 0));
        if peer.held > 0 && peer.held + body.len() > config.queue_bytes {
            return Err(SendError::Full(to.clone()));
        }
        let key = self.next_key;
        self.next_key += 1;
        peer.add(key, Transfer::new(kind, body), now);
        peer.pump(&mut self.next_id, now, send).inspect_err(|_| {
            // Unknown or closed: nothing sent to this peer arrives, so nothing of this payload did.
            peer.remove(key);
        })
    }

    /// What the path to a peer is expected to take at once, in bytes; asked for only when the first transfer of a link
    /// begins.
    pub(super) fn expect(
        &mut self,
        config: &BulkConfig,
        to: &NodeId,
        first: impl FnOnce() -> usize,
    ) {
        if !self.peers.contains_key(to) {
            self.peers.insert(to.clone(), Outgoing::new(config, first()));
        }
    }

    /// So many packets to a peer were lost so far, as its transport counts them (from 0 again for a new connection).
    pub(super) fn lost(&mut self, to: &NodeId, lost: u64, now: Duration) {
        if let Some(peer) = self.peers.get_mut(to)
            && std::mem::replace(&mut peer.lost, lost) < lost
        {
            peer.lost_at = Some(now);
        }
    }

    /// The receiver took chunks in.
    pub(super) fn credit(
        &mut self,
        from: &NodeId,
        credit: &Credit,
        now: Duration,
        send: Send<'_>,
    ) -> Result<(), BulkError> {
        let Some(peer) = self.peers.get_mut(from) else { return Ok(()) };
        peer.credit(credit, now)?;
        // An error here shows in the link's going down.
        let _ = peer.pump(&mut self.next_id, now, send);
        Ok(())
    }

    /// The receiver gives a transfer up. Returns the payload, which surely was not delivered.
    pub(super) fn cancelled(
        &mut self,
        from: &NodeId,
        id: u64,
        now: Duration,
        send: Send<'_>,
    ) -> Option<Undelivered> {
        let peer = self.peers.get_mut(from)?;
        let transfer = peer.begun.get(&id).copied().and_then(|key| peer.remove(key))?;
        // Tells the receiver, in order on the bulk stream, that no chunk of it follows.
        let cancel = Cancel { id, by_receiver: false, why: String::new() };
        if let Ok(body) = wire::encode(Kind::BULK_CANCEL, &cancel) {
            peer.owed.push_back(Frame::new(Kind::BULK_CANCEL, body));
        }
        let _ = peer.pump(&mut self.next_id, now, send);
        Some((from.clone(), transfer.kind, transfer.body))
    }

    /// The transport has room again.
    pub(super) fn drained(&mut self, to: &NodeId, now: Duration, send: Send<'_>) {
        if let Some(peer) = self.peers.get_mut(to) {
            peer.blocked = false;
            let _ = peer.pump(&mut self.next_id, now, send);
        }
    }

    /// The link went down. Returns the payloads of which not all was handed to the transport: they surely were not
    /// delivered. The others may have been.
    pub(super) fn down(&mut self, node: &NodeId) -> Vec<Undelivered> {
        self.limbo.clear();
        let Some(peer) = self.peers.remove(node) else { return Vec::new() };
        let mut unsent = Vec::new();
        for transfer in peer.transfers.into_values() {
            let whole = transfer.id.is_some() && transfer.sent == transfer.body.len();
            let payload = (node.clone(), transfer.kind, transfer.body);
            if !whole {
                unsent.push(payload);
            } else if payload.2.len() <= LIMBO_MAX {
                self.limbo.push(payload);
            }
        }
        unsent
    }

    /// The transport gives a chunk back, after [`Sender::down`]: the payload it is a slice of was not delivered.
    pub(super) fn returned(&mut self, node: &NodeId, chunk: &Bytes) -> Option<Undelivered> {
        let holds = |(to, _, body): &Undelivered| {
            to == node && body.as_ptr_range().contains(&chunk.as_ptr())
        };
        let at = self.limbo.iter().position(holds)?;
        Some(self.limbo.swap_remove(at))
    }

    /// Whether any transfer is not yet credited whole.
    pub(super) fn is_busy(&self) -> bool {
        self.peers.values().any(|peer| !peer.transfers.is_empty())
    }

    /// Bytes of payloads held for a peer.
    pub(super) fn held(&self, to: &NodeId) -> usize {
        self.peers.get(to).map_or(0, |peer| peer.held)
    }

    /// Bytes under way to a peer, and the window.
    #[cfg(test)]
    pub(super) fn window(&self, to: &NodeId) -> (usize, usize) {
        self.peers.get(to).map_or((0, 0), |peer| (peer.under_way, peer.window.bytes()))
    }
}

impl Outgoing {
    fn new(config: &BulkConfig, first: usize) -> Self {
        Self {
            window: Window::starting_at(first, config.window_bytes),
            transfers: BTreeMap::new(),
            begun: BTreeMap::new(),
            turns: Vec::new(),
            waiting: VecDeque::new(),
            turn: 0,
            shortest_next: false,
            current: None,
            held: 0,
            under_way: 0,
            blocked: false,
            owed: VecDeque::new(),
            lost: 0,
            lost_at: None,
        }
    }

    fn add(&mut self, key: u64, transfer: Transfer, now: Duration) {
        if self.under_way == 0 {
            self.window.idle(now);
        }
        self.held += transfer.body.len();
        self.transfers.insert(key, transfer);
        self.waiting.push_back(key);
    }

    fn remove(&mut self, key: u64) -> Option<Transfer> {
        let transfer = self.transfers.remove(&key)?;
        self.held -= transfer.body.len();
        self.under_way -= transfer.sent - transfer.credited;
        self.turns.retain(|other| *other != key);
        self.waiting.retain(|other| *other != key);
        if let Some(id) = transfer.id {
            self.begun.remove(&id);
            self.current = self.current.filter(|current| *current != id);
        }
        Some(transfer)
    }

    fn credit(&mut self, credit: &Credit, now: Duration) -> Result<(), BulkError> {
        // A transfer that is gone was cancelled while this credit was on its way.
        let Some(key) = self.begun.get(&credit.id).copied() else { return Ok(()) };
        let Some(transfer) = self.transfers.get_mut(&key) else { return Ok(()) };
        let received = usize::try_from(credit.received).unwrap_or(usize::MAX);
        if received > transfer.sent {
            return Err(BulkError::Credit { id: credit.id, received, sent: transfer.sent });
        }
        let acked = received.saturating_sub(transfer.credited);
        transfer.credited += acked;
        let mut sent = None;
        while let Some((end, at, ahead)) = transfer.marks.front()
            && *end <= received
        {
            sent = Some((*at, *ahead));
            transfer.marks.pop_front();
        }
        let finished = transfer.credited == transfer.body.len();
        if let Some(sent) = sent {
            let lossy = self.lost_at.is_some_and(|lost_at| sent.0 <= lost_at);
            self.window.credited(acked, sent, self.under_way, lossy, now);
        }
        self.under_way -= acked;
        if finished {
            self.remove(key);
        }
        Ok(())
    }

    fn pump(&mut self, next: &mut u64, now: Duration, send: Send<'_>) -> Result<(), SendError> {
        match self.push(next, now, send) {
            Err(SendError::Full(_)) => {
                self.blocked = true;
                Ok(())
            }
            other => other,
        }
    }

    fn push(&mut self, next: &mut u64, now: Duration, send: Send<'_>) -> Result<(), SendError> {
        while !self.blocked {
            if let Some(frame) = self.owed.front() {
                send(Class::Bulk, frame.clone())?;
                self.owed.pop_front();
                continue;
            }
            self.admit();
            let Some(key) = self.turn() else { break };
            let Some(transfer) = self.transfers.get_mut(&key) else { break };
            let len = self.window.chunk().min(transfer.body.len() - transfer.sent);
            if self.under_way > 0 && self.under_way + len > self.window.bytes() {
                break;
            }
            let id = match transfer.id {
                Some(id) => id,
                None => {
                    let id = *next;
                    send(Class::Bulk, transfer.begin(id)?)?;
                    *next += 1;
                    transfer.id = Some(id);
                    self.begun.insert(id, key);
                    self.current = Some(id);
                    id
                }
            };
            if self.current != Some(id) {
                send(Class::Bulk, frame(Kind::BULK_PART, &Part { id })?)?;
                self.current = Some(id);
            }
            if len > 0 {
                let chunk = transfer.body.slice(transfer.sent..transfer.sent + len);
                send(Class::Bulk, Frame::new(Kind::BULK_CHUNK, chunk))?;
                transfer.sent += len;
                self.under_way += len;
                transfer.marks.push_back((transfer.sent, now, self.under_way));
            }
            self.turn = (self.turn + 1) % TURNS_A_ROUND;
            if transfer.sent == transfer.body.len() {
                self.turns.retain(|other| *other != key);
                if transfer.body.is_empty() {
                    // Its begin is all there is of it: no credit comes.
                    self.remove(key);
                }
            }
        }
        Ok(())
    }

    /// Who waits takes turns, as far as there is room.
    fn admit(&mut self) {
        while self.turns.len() < TURNS_MAX && !self.waiting.is_empty() {
            let len = |key: &u64| self.transfers.get(key).map_or(0, |t| t.body.len());
            let shortest = match self.shortest_next {
                true => self.waiting.iter().enumerate().min_by_key(|(_, key)| len(key)),
                false => None,
            };
            let Some(key) = self.waiting.remove(shortest.map_or(0, |(at, _)| at)) else { break };
            self.turns.push(key);
            self.turns.sort_unstable();
            self.shortest_next = !self.shortest_next;
        }
    }

    /// Whose turn it is.
    fn turn(&self) -> Option<u64> {
        let rest = |key: &u64| self.transfers.get(key).map_or(0, |t| t.body.len() - t.sent);
        match self.turn {
            0 => self.turns.first().copied(),
            // Of equals the oldest.
            _ => self.turns.iter().copied().min_by_key(rest),
        }
    }
}

impl Transfer {
    fn new(kind: Kind, body: Bytes) -> Self {
        Self { kind, body, id: None, sent: 0, credited: 0, marks: VecDeque::new() }
    }

    fn begin(&self, id: u64) -> Result<Frame, SendError> {
        let begin = Begin { id, kind: self.kind.0, len: self.body.len() as u64 };
        frame(Kind::BULK_BEGIN, &begin)
    }
}

fn frame<T: serde::Serialize>(kind: Kind, message: &T) -> Result<Frame, SendError> {
    // Three integers always encode and are far under the cap; were they not, the payload cannot be sent.
    let body = wire::encode(kind, message).map_err(|_| SendError::Closed)?;
    Ok(Frame::new(kind, body))
}
