//! The receiving side of bulk transfers: puts chunks together, within bounds, and gives credits.
//!
//! No I/O. Whatever a peer sends leads to a payload, to a cancel, or to a typed error; never to memory over the bounds.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;

use super::message::{Begin, Cancel, Credit, Part};
use super::sender::TURNS_MAX;
use super::{BulkConfig, BulkError, Whole, is_bulk};
use crate::id::{Incarnation, NodeId, Peer};
use crate::wire::{self, Frame, Kind};

#[derive(Debug, Default)]
pub(super) struct Receiver {
    peers: BTreeMap<NodeId, Incoming>,
    /// Bytes of all transfers under way, counted whole from their beginning.
    memory: usize,
}

/// All transfers from one peer.
#[derive(Debug)]
struct Incoming {
    incarnation: Incarnation,
    transfers: BTreeMap<u64, Transfer>,
    current: Option<u64>,
    /// Last id begun: ids only count up.
    last: Option<u64>,
    /// What the transport would not take yet: credits by transfer (the last word counts), and cancels.
    credits: BTreeMap<u64, u64>,
    cancels: BTreeMap<u64, &'static str>,
}

#[derive(Debug)]
struct Transfer {
    kind: Kind,
    len: usize,
    received: usize,
    began: Duration,
    /// None: refused; its chunks are dropped until the sender's cancel comes.
    buffer: Option<Vec<u8>>,
}

impl Receiver {
    fn peer(&mut self, from: &Peer) -> &mut Incoming {
        if self.peers.get(&from.node).is_some_and(|peer| peer.incarnation != from.incarnation) {
            self.down(&from.node);
        }
        self.peers.entry(from.node.clone()).or_insert_with(|| Incoming {
            incarnation: from.incarnation,
            transfers: BTreeMap::new(),
            current: None,
            last: None,
            credits: BTreeMap::new(),
            cancels: BTreeMap::new(),
        })
    }

    pub(super) fn begin(
        &mut self,
        config: &BulkConfig,
        began: Duration,
        from: &Peer,
        begin: &Begin,
    ) -> Result<Option<Whole>, BulkError> {
        let (id, kind) = (begin.id, Kind(begin.kind));
        let memory = self.memory;
        let peer = self.peer(from);
        if peer.last.is_some_and(|last| id <= last) {
            return Err(BulkError::Id { id });
        }
        // Refused transfers count too: this bounds what a peer can make this side remember. An honest one has at most
        // its turns open, for its begins, chunks and cancels come in order.
        let max = config.transfers_max.max(TURNS_MAX);
        if peer.transfers.len() >= max {
            return Err(BulkError::TooMany { max });
        }
        peer.last = Some(id);
        peer.current = Some(id);
        let len = usize::try_from(begin.len).unwrap_or(usize::MAX);
        let cap = match kind.info() {
            Some(info) if !is_bulk(kind) => info.cap,
            _ => return Err(peer.refuse(id, len, kind, BulkError::Kind { id, kind })),
        };
        if len > cap {
            return Err(peer.refuse(id, len, kind, BulkError::TooLong { id, kind, len, cap }));
        }
        if len == 0 {
            peer.current = None;
            return Ok(Some(Whole { kind, body: Bytes::new(), began }));
        }
        if peer.open() >= config.transfers_max || memory + len > config.memory_bytes {
            let _ = peer.refuse(id, len, kind, BulkError::NoMemory { id, len });
            return Ok(None); // no fault of the peer's
        }
        // Not touched before chunks fill it; `memory` counts it from now on.
        let buffer = Some(Vec::with_capacity(len));
        peer.transfers.insert(id, Transfer { kind, len, received: 0, began, buffer });
        self.memory += len;
        Ok(None)
    }

    pub(super) fn part(&mut self, from: &Peer, part: &Part) -> Result<(), BulkError> {
        let peer = self.peer(from);
        if !peer.transfers.contains_key(&part.id) {
            peer.current = None;
            return Err(BulkError::Unknown { id: part.id });
        }
        peer.current = Some(part.id);
        Ok(())
    }

    pub(super) fn chunk(&mut self, from: &Peer, chunk: &[u8]) -> Result<Option<Whole>, BulkError> {
        let peer = self.peer(from);
        let Some(id) = peer.current else { return Err(BulkError::Stray) };
        let Some(transfer) = peer.transfers.get_mut(&id) else { return Err(BulkError::Stray) };
        if chunk.is_empty() || chunk.len() > transfer.len - transfer.received {
            let error = BulkError::Overrun { id, len: transfer.len };
            let freed = peer.drop_transfer(id);
            peer.current = None;
            peer.cancels.insert(id, "chunks do not add up to the length announced");
            self.memory -= freed;
            return Err(error);
        }
        transfer.received += chunk.len();
        let whole = transfer.received == transfer.len;
        let Some(buffer) = &mut transfer.buffer else {
            if whole {
                peer.transfers.remove(&id);
                peer.current = None;
            }
            return Ok(None);
        };
        buffer.extend_from_slice(chunk);
        peer.credits.insert(id, transfer.received as u64);
        if !whole {
            return Ok(None);
        }
        let body = Bytes::from(std::mem::take(buffer));
        let payload = Whole { kind: transfer.kind, body, began: transfer.began };
        let freed = transfer.len;
        peer.transfers.remove(&id);
        peer.current = None;
        self.memory -= freed;
        Ok(Some(payload))
    }

    /// The sender gives a transfer up, or confirms that this side did.
    pub(super) fn cancelled(&mut self, from: &Peer, id: u64) {
        let peer = self.peer(from);
        let freed = peer.drop_transfer(id);
        if peer.current == Some(id) {
            peer.current = None;
        }
        self.memory -= freed;
    }

    /// The link went down, or another life of the node speaks.
    pub(super) fn down(&mut self, node: &NodeId) {
        if let Some(peer) = self.peers.remove(node) {
            let bytes = |transfer: &Transfer| transfer.buffer.as_ref().map_or(0, |_| transfer.len);
            self.memory -= peer.transfers.values().map(bytes).sum::<usize>();
        }
    }

    /// Sends what is owed to a peer, until the transport refuses.
    pub(super) fn flush(&mut self, node: &NodeId, send: &mut dyn FnMut(Frame) -> bool) {
        let Some(peer) = self.peers.get_mut(node) else { return };
        while let Some((&id, &why)) = peer.cancels.first_key_value() {
            let cancel = Cancel { id, by_receiver: true, why: why.to_owned() };
            if !send_message(Kind::BULK_CANCEL, &cancel, send) {
                return;
            }
            peer.cancels.pop_first();
        }
        while let Some((&id, &received)) = peer.credits.first_key_value() {
            if !send_message(Kind::BULK_CREDIT, &Credit { id, received }, send) {
                return;
            }
            peer.credits.pop_first();
        }
    }

    /// Bytes counted for all transfers under way.
    #[cfg(test)]
    pub(super) fn memory(&self) -> usize {
        self.memory
    }
}

impl Incoming {
    /// Transfers that are being put together.
    fn open(&self) -> usize {
        self.transfers.values().filter(|transfer| transfer.buffer.is_some()).count()
    }

    /// Remembers that a transfer was refused, so that its chunks are dropped, and owes the sender a cancel.
    fn refuse(&mut self, id: u64, len: usize, kind: Kind, error: BulkError) -> BulkError {
        self.cancels.insert(id, error.reason());
        if len > 0 {
            let began = Duration::ZERO;
            self.transfers.insert(id, Transfer { kind, len, received: 0, began, buffer: None });
        } else {
            self.current = None;
        }
        error
    }

    /// Returns the bytes that no longer count.
    fn drop_transfer(&mut self, id: u64) -> usize {
        self.credits.remove(&id);
        match self.transfers.remove(&id) {
            Some(Transfer { buffer: Some(_), len, .. }) => len,
            _ => 0,
        }
    }
}

fn send_message<T: serde::Serialize>(
    kind: Kind,
    message: &T,
    send: &mut dyn FnMut(Frame) -> bool,
) -> bool {
    match wire::encode(kind, message) {
        Ok(body) => send(Frame::new(kind, body)),
        Err(_) => true, // integers and a short word always encode
    }
}
