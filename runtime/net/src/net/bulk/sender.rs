//! The sending side of bulk transfers: sends payloads in chunks, as the window to each peer allows.
//!
//! It does no I/O: frames go through a closure that may refuse them. Chunks are slices of the
//! payload, not copies.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use bytes::Bytes;

use super::message::{Begin, Cancel, Credit, TransferHeader};
use super::window::Window;
use super::{BulkConfig, BulkError};
use crate::id::NodeId;
use crate::net::{Class, SendError, Undelivered};
use crate::wire::{self, Frame, Kind};

/// Passes a frame to the transport.
pub(crate) type Send<'a> = &'a mut dyn FnMut(Class, Frame) -> Result<(), SendError>;

/// Maximum number of active transfers to one peer; others wait. Well below the number that a
/// receiver accepts at once.
pub(super) const ACTIVE_MAX: usize = 16;

/// Number of turns of which the oldest transfer gets one.
const TURNS_PER_ROUND: u8 = 4;

/// Longest payload that is kept after its link was lost. A longer one is unlikely to fit into the
/// transport's queue completely.
const UNCERTAIN_MAX: usize = 1 << 20;

#[derive(Debug)]
pub(super) struct Sender {
    /// Local key of the next queued transfer.
    next_key: u64,
    /// Id of the next started transfer, ascending on the wire.
    next_id: u64,
    peers: BTreeMap<NodeId, OutgoingTransfers>,
    /// Short payloads of the last lost link that the transport had received completely. It may
    /// return a part of them.
    uncertain: Vec<Undelivered>,
}

/// All transfers to one peer.
#[derive(Debug)]
struct OutgoingTransfers {
    window: Window,
    /// Transfers by local key, in the order of queueing.
    transfers: BTreeMap<u64, OutgoingTransfer>,
    /// Local keys of started transfers, by id.
    keys_by_id: BTreeMap<u64, u64>,
    /// Active transfers with bytes to send, oldest first; at most [`ACTIVE_MAX`].
    active: Vec<u64>,
    /// Transfers that wait to become active, oldest first.
    waiting: VecDeque<u64>,
    /// Number of the turn: each fourth is the oldest transfer's, the others are the shortest one's.
    ///
    /// The oldest thus gets a quarter of the link regardless of later ones, and a short one hardly
    /// waits for long ones. Pieces of one object arrive one after another.
    turn: u8,
    /// Whether the shortest waiting transfer becomes active next, or the oldest.
    shortest_next: bool,
    /// Id of the transfer whose chunks the receiver expects.
    current: Option<u64>,
    /// Bytes of all queued payloads.
    held: usize,
    in_flight: usize,
    /// Whether the transport refused a frame and will report free space.
    blocked: bool,
    /// Cancels that the transport has refused so far.
    pending_cancels: VecDeque<Frame>,
    /// Number of lost packets to the peer, as the transport counts them.
    lost: u64,
    /// Time of the last increase of `lost`.
    lost_at: Option<Duration>,
}

#[derive(Debug)]
struct OutgoingTransfer {
    kind: Kind,
    body: Bytes,
    /// Id of the transfer, once it is started.
    id: Option<u64>,
    sent: usize,
    credited: usize,
    /// For each chunk in flight: its end, its send time, and the bytes in flight at that time, with
    /// it.
    chunks: VecDeque<(usize, Duration, usize)>,
}

impl Sender {
    /// Creates a sender. `first_id` must differ between incarnations of the node.
    pub(super) fn new(first_id: u64) -> Self {
        Self { next_key: 0, next_id: first_id, peers: BTreeMap::new(), uncertain: Vec::new() }
    }

    pub(super) fn offer(
        &mut self,
        config: &BulkConfig,
        to: &NodeId,
        (kind, body): (Kind, Bytes),
        now: Duration,
        send: Send<'_>,
    ) -> Result<(), SendError> {
        let peer =
            self.peers.entry(to.clone()).or_insert_with(|| OutgoingTransfers::new(config, 0));
        if peer.held > 0 && peer.held + body.len() > config.queue_bytes {
            return Err(SendError::Full(to.clone()));
        }
        let key = self.next_key;
        self.next_key += 1;
        peer.add(key, OutgoingTransfer::new(kind, body), now);
        peer.send_available(&mut self.next_id, now, send).inspect_err(|_| {
            // Unknown or closed: nothing that was sent to this peer arrives, nor did any of this
            // payload.
            peer.remove(key);
        })
    }

    /// Sets the initial window to a peer in bytes, which is requested only for the first transfer
    /// of a link.
    pub(super) fn expect(
        &mut self,
        config: &BulkConfig,
        to: &NodeId,
        initial: impl FnOnce() -> usize,
    ) {
        if !self.peers.contains_key(to) {
            self.peers.insert(to.clone(), OutgoingTransfers::new(config, initial()));
        }
    }

    /// Records the number of lost packets to a peer, as its transport counts them; it restarts at 0
    /// with each connection.
    pub(super) fn lost(&mut self, to: &NodeId, lost: u64, now: Duration) {
        if let Some(peer) = self.peers.get_mut(to)
            && std::mem::replace(&mut peer.lost, lost) < lost
        {
            peer.lost_at = Some(now);
        }
    }

    /// Handles a credit of the receiver.
    pub(super) fn credit(
        &mut self,
        from: &NodeId,
        credit: &Credit,
        now: Duration,
        send: Send<'_>,
    ) -> Result<(), BulkError> {
        let Some(peer) = self.peers.get_mut(from) else { return Ok(()) };
        peer.credit(credit, now)?;
        // An error here leads to the loss of the link.
        let _ = peer.send_available(&mut self.next_id, now, send);
        Ok(())
    }

    /// Handles a receiver's cancel. Returns the payload, which was certainly not delivered.
    pub(super) fn cancelled(
        &mut self,
        from: &NodeId,
        id: u64,
        now: Duration,
        send: Send<'_>,
    ) -> Option<Undelivered> {
        let peer = self.peers.get_mut(from)?;
        let transfer = peer.keys_by_id.get(&id).copied().and_then(|key| peer.remove(key))?;
        // Informs the receiver, in order on the bulk stream, that no chunk follows.
        let cancel = Cancel { id, by_receiver: false, why: String::new() };
        if let Ok(body) = wire::encode(Kind::BULK_CANCEL, &cancel) {
            peer.pending_cancels.push_back(Frame::new(Kind::BULK_CANCEL, body));
        }
        let _ = peer.send_available(&mut self.next_id, now, send);
        Some((from.clone(), transfer.kind, transfer.body))
    }

    /// Continues sending: the transport has room again.
    pub(super) fn drained(&mut self, to: &NodeId, now: Duration, send: Send<'_>) {
        if let Some(peer) = self.peers.get_mut(to) {
            peer.blocked = false;
            let _ = peer.send_available(&mut self.next_id, now, send);
        }
    }

    /// Drops the transfers of a lost link. Returns payloads that the transport did not receive
    /// completely, which were certainly not delivered. The others may have been.
    pub(super) fn down(&mut self, node: &NodeId) -> Vec<Undelivered> {
        self.uncertain.clear();
        let Some(peer) = self.peers.remove(node) else { return Vec::new() };
        let mut unsent = Vec::new();
        for transfer in peer.transfers.into_values() {
            let complete = transfer.id.is_some() && transfer.sent == transfer.body.len();
            let payload = (node.clone(), transfer.kind, transfer.body);
            if !complete {
                unsent.push(payload);
            } else if payload.2.len() <= UNCERTAIN_MAX {
                self.uncertain.push(payload);
            }
        }
        unsent
    }

    /// Handles a chunk that the transport returns after [`Sender::down`]. Its payload was not
    /// delivered.
    pub(super) fn returned(&mut self, node: &NodeId, chunk: &Bytes) -> Option<Undelivered> {
        let holds = |(to, _, body): &Undelivered| {
            to == node && body.as_ptr_range().contains(&chunk.as_ptr())
        };
        let index = self.uncertain.iter().position(holds)?;
        Some(self.uncertain.swap_remove(index))
    }

    /// Whether any transfer is not completely credited.
    pub(super) fn is_busy(&self) -> bool {
        self.peers.values().any(|peer| !peer.transfers.is_empty())
    }

    /// Whether a payload of a kind is on its way to a peer.
    pub(super) fn is_sending(&self, to: &NodeId, kind: Kind) -> bool {
        let transfers = self.peers.get(to).map(|peer| &peer.transfers);
        transfers.is_some_and(|all| all.values().any(|transfer| transfer.kind == kind))
    }

    /// Number of bytes of payloads queued for a peer.
    pub(super) fn held(&self, to: &NodeId) -> usize {
        self.peers.get(to).map_or(0, |peer| peer.held)
    }

    /// Bytes in flight to a peer, and the window.
    #[cfg(test)]
    pub(super) fn window(&self, to: &NodeId) -> (usize, usize) {
        self.peers.get(to).map_or((0, 0), |peer| (peer.in_flight, peer.window.bytes()))
    }
}

impl OutgoingTransfers {
    fn new(config: &BulkConfig, first: usize) -> Self {
        Self {
            window: Window::with_initial(first, config.window_bytes),
            transfers: BTreeMap::new(),
            keys_by_id: BTreeMap::new(),
            active: Vec::new(),
            waiting: VecDeque::new(),
            turn: 0,
            shortest_next: false,
            current: None,
            held: 0,
            in_flight: 0,
            blocked: false,
            pending_cancels: VecDeque::new(),
            lost: 0,
            lost_at: None,
        }
    }

    fn add(&mut self, key: u64, transfer: OutgoingTransfer, now: Duration) {
        if self.in_flight == 0 {
            self.window.idle(now);
        }
        self.held += transfer.body.len();
        self.transfers.insert(key, transfer);
        self.waiting.push_back(key);
    }

    fn remove(&mut self, key: u64) -> Option<OutgoingTransfer> {
        let transfer = self.transfers.remove(&key)?;
        self.held -= transfer.body.len();
        self.in_flight -= transfer.sent - transfer.credited;
        self.active.retain(|other| *other != key);
        self.waiting.retain(|other| *other != key);
        if let Some(id) = transfer.id {
            self.keys_by_id.remove(&id);
            self.current = self.current.filter(|current| *current != id);
        }
        Some(transfer)
    }

    fn credit(&mut self, credit: &Credit, now: Duration) -> Result<(), BulkError> {
        // A missing transfer was cancelled while this credit was in transit.
        let Some(key) = self.keys_by_id.get(&credit.id).copied() else { return Ok(()) };
        let Some(transfer) = self.transfers.get_mut(&key) else { return Ok(()) };
        let received = usize::try_from(credit.received).unwrap_or(usize::MAX);
        if received > transfer.sent {
            return Err(BulkError::Credit { id: credit.id, received, sent: transfer.sent });
        }
        let acked = received.saturating_sub(transfer.credited);
        transfer.credited += acked;
        let mut sent = None;
        while let Some((end, sent_at, ahead)) = transfer.chunks.front()
            && *end <= received
        {
            sent = Some((*sent_at, *ahead));
            transfer.chunks.pop_front();
        }
        let finished = transfer.credited == transfer.body.len();
        if let Some(sent) = sent {
            let lossy = self.lost_at.is_some_and(|lost_at| sent.0 <= lost_at);
            self.window.credited(acked, sent, self.in_flight, lossy, now);
        }
        self.in_flight -= acked;
        if finished {
            self.remove(key);
        }
        Ok(())
    }

    fn send_available(
        &mut self,
        next: &mut u64,
        now: Duration,
        send: Send<'_>,
    ) -> Result<(), SendError> {
        match self.send_until_refused(next, now, send) {
            Err(SendError::Full(_)) => {
                self.blocked = true;
                Ok(())
            }
            other => other,
        }
    }

    fn send_until_refused(
        &mut self,
        next: &mut u64,
        now: Duration,
        send: Send<'_>,
    ) -> Result<(), SendError> {
        while !self.blocked {
            if let Some(frame) = self.pending_cancels.front() {
                send(Class::Bulk, frame.clone())?;
                self.pending_cancels.pop_front();
                continue;
            }
            self.admit();
            let Some(key) = self.turn() else { break };
            let Some(transfer) = self.transfers.get_mut(&key) else { break };
            let len = self.window.chunk().min(transfer.body.len() - transfer.sent);
            if self.in_flight > 0 && self.in_flight + len > self.window.bytes() {
                break;
            }
            let id = match transfer.id {
                Some(id) => id,
                None => {
                    let id = *next;
                    send(Class::Bulk, transfer.begin(id)?)?;
                    *next += 1;
                    transfer.id = Some(id);
                    self.keys_by_id.insert(id, key);
                    self.current = Some(id);
                    id
                }
            };
            if self.current != Some(id) {
                send(Class::Bulk, frame(Kind::BULK_PART, &TransferHeader { id })?)?;
                self.current = Some(id);
            }
            if len > 0 {
                let chunk = transfer.body.slice(transfer.sent..transfer.sent + len);
                let whole = Some(transfer.body.clone());
                send(Class::Bulk, Frame { kind: Kind::BULK_CHUNK, body: chunk, whole })?;
                transfer.sent += len;
                self.in_flight += len;
                transfer.chunks.push_back((transfer.sent, now, self.in_flight));
            }
            self.turn = (self.turn + 1) % TURNS_PER_ROUND;
            if transfer.sent == transfer.body.len() {
                self.active.retain(|other| *other != key);
                if transfer.body.is_empty() {
                    // An empty transfer has no chunks and gets no credit.
                    self.remove(key);
                }
            }
        }
        Ok(())
    }

    /// Activates waiting transfers, up to the limit.
    fn admit(&mut self) {
        while self.active.len() < ACTIVE_MAX && !self.waiting.is_empty() {
            let len = |key: &u64| self.transfers.get(key).map_or(0, |t| t.body.len());
            let shortest = if self.shortest_next {
                self.waiting.iter().enumerate().min_by_key(|(_, key)| len(key))
            } else {
                None
            };
            let Some(key) = self.waiting.remove(shortest.map_or(0, |(index, _)| index)) else {
                break;
            };
            self.active.push(key);
            self.active.sort_unstable();
            self.shortest_next = !self.shortest_next;
        }
    }

    /// The transfer whose turn it is.
    fn turn(&self) -> Option<u64> {
        let rest = |key: &u64| self.transfers.get(key).map_or(0, |t| t.body.len() - t.sent);
        match self.turn {
            0 => self.active.first().copied(),
            // Among equal ones the oldest.
            _ => self.active.iter().copied().min_by_key(rest),
        }
    }
}

impl OutgoingTransfer {
    fn new(kind: Kind, body: Bytes) -> Self {
        Self { kind, body, id: None, sent: 0, credited: 0, chunks: VecDeque::new() }
    }

    fn begin(&self, id: u64) -> Result<Frame, SendError> {
        let begin = Begin { id, kind: self.kind.0, len: self.body.len() as u64 };
        frame(Kind::BULK_BEGIN, &begin)
    }
}

fn frame<T: serde::Serialize>(kind: Kind, message: &T) -> Result<Frame, SendError> {
    // Three integers always encode and are far below the cap. Otherwise the payload could not be
    // sent.
    let body = wire::encode(kind, message).map_err(|_| SendError::Closed)?;
    Ok(Frame::new(kind, body))
}
