//! The receiving side of bulk transfers: reassembles chunks within bounds, and sends credits.
//!
//! It does no I/O. Each frame of a peer leads to a payload, a cancel or a typed error, and never to
//! memory over the bounds.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;

use super::message::{Begin, Cancel, Credit, TransferHeader};
use super::sender::ACTIVE_MAX;
use super::{BulkConfig, BulkError, ReceivedPayload, is_bulk};
use crate::id::{Incarnation, NodeId, Peer};
use crate::wire::{self, Frame, Kind};

#[derive(Debug, Default)]
pub(super) struct Receiver {
    peers: BTreeMap<NodeId, IncomingTransfers>,
    /// Bytes of all incoming transfers, counted in full from their start.
    memory: usize,
}

/// All transfers from one peer.
#[derive(Debug)]
struct IncomingTransfers {
    incarnation: Incarnation,
    transfers: BTreeMap<u64, IncomingTransfer>,
    current: Option<u64>,
    /// The last id, which later ones must exceed.
    last: Option<u64>,
    /// Credits by transfer that the transport has refused so far. Only the latest of each counts.
    credits: BTreeMap<u64, u64>,
    /// Cancels by transfer that the transport has refused so far, with the reasons.
    cancels: BTreeMap<u64, &'static str>,
}

#[derive(Debug)]
struct IncomingTransfer {
    kind: Kind,
    len: usize,
    received: usize,
    began: Duration,
    content: ReceivedContent,
}

/// The chunks of a transfer that have arrived.
#[derive(Debug)]
enum ReceivedContent {
    /// Refused; chunks are dropped until the sender's cancel arrives.
    Refused,
    /// The chunks so far, one after another.
    Copied(Vec<u8>),
    /// The sender's payload, which this process has in memory.
    Shared(Bytes),
}

impl IncomingTransfer {
    fn is_refused(&self) -> bool {
        matches!(self.content, ReceivedContent::Refused)
    }
}

impl Receiver {
    fn peer(&mut self, from: &Peer) -> &mut IncomingTransfers {
        if self.peers.get(&from.node).is_some_and(|peer| peer.incarnation != from.incarnation) {
            self.down(&from.node);
        }
        self.peers.entry(from.node.clone()).or_insert_with(|| IncomingTransfers {
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
    ) -> Result<Option<ReceivedPayload>, BulkError> {
        let (id, kind) = (begin.id, Kind(begin.kind));
        let memory = self.memory;
        let peer = self.peer(from);
        if peer.last.is_some_and(|last| id <= last) {
            return Err(BulkError::Id { id });
        }
        // Refused transfers count as well, which bounds the memory that a peer can occupy. A
        // correct peer has at most its active transfers open, because its begins, chunks and
        // cancels arrive in order.
        let max = config.transfers_max.max(ACTIVE_MAX);
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
            return Ok(Some(ReceivedPayload { kind, body: Bytes::new(), began }));
        }
        if peer.open() >= config.transfers_max || memory + len > config.memory_bytes {
            let _ = peer.refuse(id, len, kind, BulkError::NoMemory { id, len });
            return Ok(None); // not an error of the peer
        }
        // The first chunk allocates the memory; `memory` counts it from now on.
        let content = ReceivedContent::Copied(Vec::new());
        peer.transfers.insert(id, IncomingTransfer { kind, len, received: 0, began, content });
        self.memory += len;
        Ok(None)
    }

    pub(super) fn part(&mut self, from: &Peer, part: &TransferHeader) -> Result<(), BulkError> {
        let peer = self.peer(from);
        if !peer.transfers.contains_key(&part.id) {
            peer.current = None;
            return Err(BulkError::Unknown { id: part.id });
        }
        peer.current = Some(part.id);
        Ok(())
    }

    pub(super) fn chunk(
        &mut self,
        from: &Peer,
        frame: &Frame,
    ) -> Result<Option<ReceivedPayload>, BulkError> {
        let chunk = &frame.body;
        let peer = self.peer(from);
        let Some(id) = peer.current else { return Err(BulkError::ChunkWithoutTransfer) };
        let Some(transfer) = peer.transfers.get_mut(&id) else {
            return Err(BulkError::ChunkWithoutTransfer);
        };
        if chunk.is_empty() || chunk.len() > transfer.len - transfer.received {
            let error = BulkError::Overrun { id, len: transfer.len };
            let freed = peer.drop_transfer(id);
            peer.current = None;
            peer.cancels.insert(id, "chunks do not add up to the length announced");
            self.memory -= freed;
            return Err(error);
        }
        let whole = frame.whole.as_ref().filter(|whole| whole.len() == transfer.len);
        match (&mut transfer.content, whole) {
            (ReceivedContent::Refused | ReceivedContent::Shared(_), _) => {}
            (content, Some(whole)) if transfer.received == 0 => {
                *content = ReceivedContent::Shared(whole.clone());
            }
            (ReceivedContent::Copied(buffer), _) => {
                buffer.reserve_exact(transfer.len - transfer.received);
                buffer.extend_from_slice(chunk);
            }
        }
        transfer.received += chunk.len();
        if !transfer.is_refused() {
            peer.credits.insert(id, transfer.received as u64);
        }
        if transfer.received < transfer.len {
            return Ok(None);
        }
        peer.current = None;
        let Some(transfer) = peer.transfers.remove(&id) else { return Ok(None) };
        let body = match transfer.content {
            ReceivedContent::Refused => return Ok(None),
            ReceivedContent::Copied(buffer) => buffer.into(),
            ReceivedContent::Shared(whole) => whole,
        };
        self.memory -= transfer.len;
        Ok(Some(ReceivedPayload { kind: transfer.kind, body, began: transfer.began }))
    }

    /// Handles the sender's cancel of a transfer, or its confirmation of a refusal.
    pub(super) fn cancelled(&mut self, from: &Peer, id: u64) {
        let peer = self.peer(from);
        let freed = peer.drop_transfer(id);
        if peer.current == Some(id) {
            peer.current = None;
        }
        self.memory -= freed;
    }

    /// Drops the transfers of a peer whose link was lost or whose incarnation changed.
    pub(super) fn down(&mut self, node: &NodeId) {
        if let Some(peer) = self.peers.remove(node) {
            let open = peer.transfers.values().filter(|transfer| !transfer.is_refused());
            self.memory -= open.map(|transfer| transfer.len).sum::<usize>();
        }
    }

    /// Sends pending cancels and credits to a peer, until the transport refuses.
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

    /// Number of bytes counted for all incoming transfers.
    #[cfg(test)]
    pub(super) fn memory(&self) -> usize {
        self.memory
    }
}

impl IncomingTransfers {
    /// Number of transfers under reassembly.
    fn open(&self) -> usize {
        self.transfers.values().filter(|transfer| !transfer.is_refused()).count()
    }

    /// Records a refused transfer, whose chunks are then dropped, and queues a cancel for the
    /// sender.
    fn refuse(&mut self, id: u64, len: usize, kind: Kind, error: BulkError) -> BulkError {
        self.cancels.insert(id, error.reason());
        if len > 0 {
            let (began, content) = (Duration::ZERO, ReceivedContent::Refused);
            self.transfers.insert(id, IncomingTransfer { kind, len, received: 0, began, content });
        } else {
            self.current = None;
        }
        error
    }

    /// Drops a transfer and returns the bytes that no longer count.
    fn drop_transfer(&mut self, id: u64) -> usize {
        self.credits.remove(&id);
        let removed = self.transfers.remove(&id).filter(|transfer| !transfer.is_refused());
        removed.map_or(0, |transfer| transfer.len)
    }
}

fn send_message<T: serde::Serialize>(
    kind: Kind,
    message: &T,
    send: &mut dyn FnMut(Frame) -> bool,
) -> bool {
    match wire::encode(kind, message) {
        Ok(body) => send(Frame::new(kind, body)),
        Err(_) => true, // integers and a short text always encode
    }
}
