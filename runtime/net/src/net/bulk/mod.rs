//! Bulk transfers: payloads over the inline limit, cut into chunks under credits and put together again.
//!
//! [`Layer`] stands between [`Net`](super::Net) and a [`Transport`]; the protocol below it does no I/O. Must not know what
//! payloads mean.
//!
//! Bounds: payloads queued for one peer ([`BulkConfig::queue_bytes`], then `Full`); bytes under way to one peer (a window
//! by delay, see `window`); transfers from one peer and memory for all that are being put together (then the receiver
//! cancels the transfer, and the sender is told that it was not delivered).

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

/// Bounds of the bulk layer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct BulkConfig {
    /// Bytes of payloads that may be queued for one peer; a payload longer than this is taken when nothing else is queued.
    pub queue_bytes: usize,
    /// Most bytes under way to one peer, whatever the delay allows. Under the transport's queue for the bulk class, or
    /// the transport's refusals slow transfers down.
    pub window_bytes: usize,
    /// Transfers from one peer that are put together at once.
    pub transfers_max: usize,
    /// Bytes of all transfers that are being put together.
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

/// What a peer did wrong in a bulk transfer, or why one was given up.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BulkError {
    /// A message of the protocol did not decode.
    #[error(transparent)]
    Wire(#[from] WireError),
    /// Another kind than those of bulk transfers was handed in.
    #[error("{0:?} is no message of bulk transfers")]
    Foreign(Kind),
    /// A transfer was begun under an id that is not above the last one.
    #[error("transfer {id} begins out of order")]
    Id {
        /// The id.
        id: u64,
    },
    /// The payload's kind is unknown or may not go in bulk.
    #[error("transfer {id} carries a payload of kind {kind:?}, which does not go in bulk")]
    Kind {
        /// The id.
        id: u64,
        /// The kind.
        kind: Kind,
    },
    /// The payload is over its kind's cap.
    #[error("transfer {id} announces {len} bytes of {kind:?}, over the cap of {cap} bytes")]
    TooLong {
        /// The id.
        id: u64,
        /// The kind.
        kind: Kind,
        /// Bytes announced.
        len: usize,
        /// The cap, bytes.
        cap: usize,
    },
    /// More transfers at once than the receiver remembers.
    #[error("more than {max} transfers at once")]
    TooMany {
        /// The bound.
        max: usize,
    },
    /// The receiver has no memory to spare: no fault of the sender's.
    #[error("no room to put transfer {id} of {len} bytes together")]
    NoMemory {
        /// The id.
        id: u64,
        /// Bytes announced.
        len: usize,
    },
    /// A part of a transfer that is not under way.
    #[error("transfer {id} is not under way")]
    Unknown {
        /// The id.
        id: u64,
    },
    /// A chunk, and no transfer that it could belong to.
    #[error("a chunk without a transfer")]
    Stray,
    /// Chunks beyond the announced length, or an empty one.
    #[error("chunks of transfer {id} do not add up to the {len} bytes announced")]
    Overrun {
        /// The id.
        id: u64,
        /// Bytes announced.
        len: usize,
    },
    /// A credit for bytes that were not sent.
    #[error("a credit for {received} bytes of transfer {id}, of which {sent} were sent")]
    Credit {
        /// The id.
        id: u64,
        /// Bytes the receiver claims.
        received: usize,
        /// Bytes sent.
        sent: usize,
    },
}

impl BulkError {
    /// Whether no peer that keeps to the protocol makes it. Parts of transfers that are not under way can be what a link
    /// that went down has left, and a newer version may send kinds that this one does not know.
    pub(crate) fn is_breach(&self) -> bool {
        match self {
            BulkError::Stray
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

    /// A word for the other side's log.
    fn reason(&self) -> &'static str {
        match self {
            BulkError::Kind { .. } => "a kind that does not go in bulk",
            BulkError::TooLong { .. } => "over the cap of its kind",
            BulkError::NoMemory { .. } => "no room at the receiver",
            _ => "malformed",
        }
    }
}

/// A payload that was put together.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Whole {
    pub(crate) kind: Kind,
    pub(crate) body: Bytes,
    /// When its transfer began here, by the layer's clock.
    pub(crate) began: Duration,
}

/// What the layer has to tell above.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Told {
    /// A whole payload has come, and when its transfer began.
    Payload(Whole),
    /// A payload that was taken surely was not delivered.
    Undelivered(Undelivered),
}

/// Whether frames of this kind belong to the layer.
pub(crate) fn is_bulk(kind: Kind) -> bool {
    (Kind::BULK_BEGIN..=Kind::BULK_PART).contains(&kind)
}

/// Bulk transfers with all peers of one node, over its transport. Every method may be called from every thread; frames go
/// to the transport under the layer's lock, so that those of one peer keep their order.
#[derive(Debug)]
pub(crate) struct Layer {
    config: BulkConfig,
    start: Instant,
    sides: Mutex<Sides>,
}

#[derive(Debug)]
struct Sides {
    sender: Sender,
    receiver: Receiver,
}

impl Layer {
    /// `first_id` must differ between lives of the node: its incarnation serves.
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

    /// The moment of the layer's clock.
    pub(crate) fn moment(&self, at: Duration) -> Instant {
        self.start + at
    }

    /// Takes a payload for sending.
    ///
    /// # Errors
    /// `TooLong`, `Full`, and the transport's `Unknown` and `Closed`: nothing of it will be delivered.
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

    /// Takes in a frame for which [`is_bulk`] holds.
    ///
    /// # Errors
    /// What the peer did wrong; its link is to be closed where that is a breach.
    pub(crate) fn frame(
        &self,
        transport: &dyn Transport,
        from: &Peer,
        frame: Frame,
    ) -> Result<Option<Told>, BulkError> {
        let now = self.now();
        let mut sides = self.lock();
        let Sides { sender, receiver } = &mut *sides;
        if frame.kind == Kind::BULK_CREDIT {
            sender.lost(&from.node, transport.lost(&from.node), now);
        }
        let mut send = |class, frame| transport.send(&from.node, class, frame);
        let told = handle(sender, receiver, &self.config, now, from, frame, &mut send);
        Self::flush(receiver, transport, &from.node);
        told
    }

    fn flush(receiver: &mut Receiver, transport: &dyn Transport, node: &NodeId) {
        receiver.flush(node, &mut |frame| transport.send(node, Class::Control, frame).is_ok());
    }

    /// The transport's queue to a peer has room again after a refusal.
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

    /// A link went down: what was on its way either way is dropped. Returns the payloads that surely were not delivered;
    /// those of which everything was handed to the transport may have been, or not.
    pub(crate) fn down(&self, node: &NodeId) -> Vec<Undelivered> {
        let mut sides = self.lock();
        sides.receiver.down(node);
        sides.sender.down(node)
    }

    /// The transport gives back a frame of this layer's after its link went down. Returns the payload it was part of, if
    /// [`Layer::down`] did not know that it was not delivered.
    pub(crate) fn undelivered(&self, to: &NodeId, frame: &Frame) -> Option<Undelivered> {
        match frame.kind {
            Kind::BULK_CHUNK => self.lock().sender.returned(to, &frame.body),
            _ => None,
        }
    }

    /// Whether anything is on its way out and not yet taken in at the other side.
    pub(crate) fn is_busy(&self) -> bool {
        self.lock().sender.is_busy()
    }

    /// Bytes of payloads that may still be queued for a peer.
    pub(crate) fn room(&self, to: &NodeId) -> usize {
        self.config.queue_bytes.saturating_sub(self.lock().sender.held(to))
    }
}

/// The protocol's one entry for frames.
fn handle(
    sender: &mut Sender,
    receiver: &mut Receiver,
    config: &BulkConfig,
    now: Duration,
    from: &Peer,
    frame: Frame,
    send: sender::Send<'_>,
) -> Result<Option<Told>, BulkError> {
    let payload = |whole: Option<Whole>| whole.map(Told::Payload);
    match frame.kind {
        Kind::BULK_BEGIN => {
            let begin = wire::decode(frame.kind, &frame.body)?;
            receiver.begin(config, now, from, &begin).map(payload)
        }
        Kind::BULK_PART => {
            let part = wire::decode(frame.kind, &frame.body)?;
            receiver.part(from, &part).map(|()| None)
        }
        Kind::BULK_CHUNK => receiver.chunk(from, &frame.body).map(payload),
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
            Ok(sender.cancelled(&from.node, cancel.id, now, send).map(Told::Undelivered))
        }
        other => Err(BulkError::Foreign(other)),
    }
}
