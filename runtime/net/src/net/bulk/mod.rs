//! Bulk transfers: payloads over the inline limit, sent in chunks under credits and reassembled.
//!
//! [`BulkTransfers`] stands between [`Net`](super::Net) and a [`Transport`]; the protocol below it
//! does no I/O. This module does not know the meaning of payloads.
//!
//! Bounds: payloads queued for one peer ([`BulkConfig::queue_bytes`], then `Full`); bytes in flight
//! to one peer (a delay-based window, see `window`); transfers from one peer; and memory for all
//! incoming transfers. At the last two bounds the receiver cancels the transfer, and the sender
//! reports it as undelivered.

mod message;
mod receiver;
mod sender;
#[cfg(test)]
mod tests;
mod window;

use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use self::receiver::Receiver;
use self::sender::Sender;
use super::{Class, SendError, Transport, Undelivered};
use crate::id::{NodeId, Peer};
use crate::wire::{self, Frame, Kind, WireError};

/// Bounds of bulk transfers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct BulkConfig {
    /// Maximum bytes of payloads in the queue of one peer. A longer payload is accepted if the
    /// queue is empty.
    pub queue_bytes: usize,
    /// Maximum bytes in flight to one peer, regardless of the delay. It must stay below the
    /// transport's queue for the bulk class, whose refusals slow transfers down.
    pub window_bytes: usize,
    /// Maximum number of incoming transfers from one peer at once.
    pub transfers_max: usize,
    /// Maximum bytes of all incoming transfers.
    pub memory_bytes: usize,
}

impl Default for BulkConfig {
    fn default() -> Self {
        Self {
            queue_bytes: 1 << 30,
            window_bytes: 16 << 20, // 80 ms at 200 MB/s
            transfers_max: 64,
            memory_bytes: 2 << 30,
        }
    }
}

/// A peer's error in a bulk transfer, or the reason why a transfer was cancelled.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BulkError {
    /// A message of the protocol did not decode.
    #[error(transparent)]
    Wire(#[from] WireError),
    /// The frame's kind does not belong to bulk transfers.
    #[error("{0:?} is no message of bulk transfers")]
    Foreign(Kind),
    /// The id of a new transfer is not above the last one.
    #[error("transfer {id} begins out of order")]
    Id {
        /// Id of the transfer.
        id: u64,
    },
    /// The payload's kind is unknown or not allowed in bulk transfers.
    #[error("transfer {id} carries a payload of kind {kind:?}, which does not go in bulk")]
    Kind {
        /// Id of the transfer.
        id: u64,
        /// Kind of the payload.
        kind: Kind,
    },
    /// The payload is longer than the cap of its kind.
    #[error("transfer {id} announces {len} bytes of {kind:?}, over the cap of {cap} bytes")]
    TooLong {
        /// Id of the transfer.
        id: u64,
        /// Kind of the payload.
        kind: Kind,
        /// Announced length in bytes.
        len: usize,
        /// Cap of the kind in bytes.
        cap: usize,
    },
    /// There are more transfers at once than the receiver tracks.
    #[error("more than {max} transfers at once")]
    TooMany {
        /// Maximum number of transfers.
        max: usize,
    },
    /// The receiver has no free memory. The sender did nothing wrong.
    #[error("no room to put transfer {id} of {len} bytes together")]
    NoMemory {
        /// Id of the transfer.
        id: u64,
        /// Announced length in bytes.
        len: usize,
    },
    /// A part message names an unknown transfer.
    #[error("transfer {id} is not under way")]
    Unknown {
        /// Id of the transfer.
        id: u64,
    },
    /// A chunk arrived without a current transfer.
    #[error("a chunk without a transfer")]
    ChunkWithoutTransfer,
    /// A chunk is empty or exceeds the announced length.
    #[error("chunks of transfer {id} do not add up to the {len} bytes announced")]
    Overrun {
        /// Id of the transfer.
        id: u64,
        /// Announced length in bytes.
        len: usize,
    },
    /// A credit covers bytes that were not sent.
    #[error("a credit for {received} bytes of transfer {id}, of which {sent} were sent")]
    Credit {
        /// Id of the transfer.
        id: u64,
        /// Bytes that the receiver claims.
        received: usize,
        /// Bytes that were sent.
        sent: usize,
    },
}

impl BulkError {
    /// Whether the peer violated the protocol. Parts of unknown transfers are none, because a lost
    /// link may leave them. Unknown kinds are none, because a newer version may send them.
    pub(crate) fn is_breach(&self) -> bool {
        match self {
            BulkError::ChunkWithoutTransfer
            | BulkError::Unknown { .. }
            | BulkError::Kind { .. }
            | BulkError::NoMemory { .. } => false,
            BulkError::Wire(_)
            | BulkError::Foreign(_)
            | BulkError::Id { .. }
            | BulkError::TooLong { .. }
            | BulkError::TooMany { .. }
            | BulkError::Overrun { .. }
            | BulkError::Credit { .. } => true,
        }
    }

    /// The reason in the message to the other side, for its log.
    fn reason(&self) -> &'static str {
        match self {
            BulkError::Kind { .. } => "a kind that does not go in bulk",
            BulkError::TooLong { .. } => "over the cap of its kind",
            BulkError::NoMemory { .. } => "no room at the receiver",
            _ => "malformed",
        }
    }
}

/// A reassembled payload.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ReceivedPayload {
    pub(crate) kind: Kind,
    pub(crate) body: Bytes,
    /// Start of its transfer at this side, by the layer's clock.
    pub(crate) began: Duration,
}

/// An event that the layer reports to its user.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum BulkEvent {
    /// A complete payload has arrived.
    Payload(ReceivedPayload),
    /// A queued payload was certainly not delivered.
    Undelivered(Undelivered),
}

/// Whether frames of this kind belong to bulk transfers.
pub(crate) fn is_bulk(kind: Kind) -> bool {
    (Kind::BULK_BEGIN..=Kind::BULK_PART).contains(&kind)
}

/// The bulk transfers of one node with all peers, over its transport.
///
/// Every method may be called from every thread. Frames enter the transport under the layer's lock,
/// so that those of one peer keep their order.
#[derive(Debug)]
pub(crate) struct BulkTransfers {
    config: BulkConfig,
    start: Instant,
    sides: Mutex<Sides>,
}

#[derive(Debug)]
struct Sides {
    sender: Sender,
    receiver: Receiver,
}

impl BulkTransfers {
    /// Creates the layer. `first_id` must differ between incarnations of the node: the incarnation
    /// itself serves.
    pub(crate) fn new(config: BulkConfig, first_id: u64) -> Self {
        let sides = Sides { sender: Sender::new(first_id), receiver: Receiver::default() };
        Self { config, start: Instant::now(), sides: Mutex::new(sides) }
    }

    fn lock(&self) -> MutexGuard<'_, Sides> {
        self.sides.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn now(&self) -> Duration {
        self.start.elapsed()
    }

    /// Converts a time of the layer's clock.
    pub(crate) fn moment(&self, at: Duration) -> Instant {
        self.start + at
    }

    /// Queues a payload for sending.
    ///
    /// # Errors
    /// `TooLong`, `Full`, and the transport's `Unknown` and `Closed`: nothing of the payload will
    /// be delivered.
    pub(crate) fn send(
        &self,
        transport: &dyn Transport,
        to: &NodeId,
        kind: Kind,
        body: Bytes,
    ) -> Result<(), SendError> {
        let cap = kind.info().map_or(0, |info| info.cap);
        if body.len() > cap {
            return Err(SendError::TooLong { kind, len: body.len(), cap });
        }
        let mut send = |class, frame| transport.send(to, class, frame);
        let now = self.now();
        let mut sides = self.lock();
        let first = || transport.expected(to).map_or(0, |policy| policy.bulk_start());
        sides.sender.expect(&self.config, to, first);
        sides.sender.offer(&self.config, to, (kind, body), now, &mut send)?;
        Ok(())
    }

    /// Processes a frame for which [`is_bulk`] holds.
    ///
    /// # Errors
    /// The peer's error; its link is to be closed if [`BulkError::is_breach`] holds.
    pub(crate) fn frame(
        &self,
        transport: &dyn Transport,
        from: &Peer,
        frame: Frame,
    ) -> Result<Option<BulkEvent>, BulkError> {
        let now = self.now();
        let mut sides = self.lock();
        let Sides { sender, receiver } = &mut *sides;
        if frame.kind == Kind::BULK_CREDIT {
            sender.lost(&from.node, transport.lost(&from.node), now);
        }
        let mut send = |class, frame| transport.send(&from.node, class, frame);
        let event = handle(sender, receiver, &self.config, now, from, frame, &mut send);
        Self::flush(receiver, transport, &from.node);
        event
    }

    fn flush(receiver: &mut Receiver, transport: &dyn Transport, node: &NodeId) {
        receiver.flush(node, &mut |frame| transport.send(node, Class::Control, frame).is_ok());
    }

    /// Continues sending: the transport's queue to a peer has room again after a refusal.
    pub(crate) fn drained(&self, transport: &dyn Transport, to: &NodeId, class: Class) {
        let now = self.now();
        let mut sides = self.lock();
        match class {
            Class::Bulk => {
                let mut send = |class, frame| transport.send(to, class, frame);
                sides.sender.drained(to, now, &mut send);
            }
            Class::Control => Self::flush(&mut sides.receiver, transport, to),
            Class::Steal => {}
        }
    }

    /// Drops the transfers of a lost link, in both directions.
    ///
    /// Returns the payloads that were certainly not delivered. A payload that the transport
    /// received completely may have been delivered.
    pub(crate) fn down(&self, node: &NodeId) -> Vec<Undelivered> {
        let mut sides = self.lock();
        sides.receiver.down(node);
        sides.sender.down(node)
    }

    /// Handles a frame that the transport returns after its link was lost. Returns its payload, if
    /// [`BulkTransfers::down`] did not return it.
    pub(crate) fn undelivered(&self, to: &NodeId, frame: &Frame) -> Option<Undelivered> {
        match frame.kind {
            Kind::BULK_CHUNK => self.lock().sender.returned(to, &frame.body),
            _ => None,
        }
    }

    /// Whether any outgoing transfer is not completely credited.
    pub(crate) fn is_busy(&self) -> bool {
        self.lock().sender.is_busy()
    }

    /// Whether a payload of a kind is on its way to a peer: queued, or not completely credited.
    pub(crate) fn is_sending(&self, to: &NodeId, kind: Kind) -> bool {
        self.lock().sender.is_sending(to, kind)
    }

    /// Number of bytes of payloads that may still be queued for a peer.
    pub(crate) fn room(&self, to: &NodeId) -> usize {
        self.config.queue_bytes.saturating_sub(self.lock().sender.held(to))
    }
}

/// Processes a frame of the protocol.
fn handle(
    sender: &mut Sender,
    receiver: &mut Receiver,
    config: &BulkConfig,
    now: Duration,
    from: &Peer,
    frame: Frame,
    send: sender::Send<'_>,
) -> Result<Option<BulkEvent>, BulkError> {
    let payload = |whole: Option<ReceivedPayload>| whole.map(BulkEvent::Payload);
    match frame.kind {
        Kind::BULK_BEGIN => {
            let begin = wire::decode(frame.kind, &frame.body)?;
            receiver.begin(config, now, from, &begin).map(payload)
        }
        Kind::BULK_PART => {
            let part = wire::decode(frame.kind, &frame.body)?;
            receiver.part(from, &part).map(|()| None)
        }
        Kind::BULK_CHUNK => receiver.chunk(from, &frame).map(payload),
        Kind::BULK_CREDIT => {
            let credit = wire::decode(frame.kind, &frame.body)?;
            sender.credit(&from.node, &credit, now, send).map(|()| None)
        }
        Kind::BULK_CANCEL => {
            let cancel: message::Cancel = wire::decode(frame.kind, &frame.body)?;
            tracing::debug!(peer = %from, id = cancel.id, why = cancel.why, "bulk cancel");
            if !cancel.by_receiver {
                receiver.cancelled(from, cancel.id);
                return Ok(None);
            }
            Ok(sender.cancelled(&from.node, cancel.id, now, send).map(BulkEvent::Undelivered))
        }
        other => Err(BulkError::Foreign(other)),
    }
}
