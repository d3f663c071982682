//! The messages of a bulk transfer.
//!
//! The bulk stream carries, in order: begin, chunks and possibly cancel. Chunks of several
//! transfers alternate, and a part message names the transfer of the following chunks. Credits, and
//! cancels by the receiver, return on the control stream.
//!
//! A chunk has no fields: its payload is the bytes themselves, so that neither side copies them to
//! add a header.

use serde::{Deserialize, Serialize};

/// Starts a transfer; the following chunks belong to it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Begin {
    /// Id of the transfer, ascending within one incarnation of the sender.
    pub id: u64,
    /// Kind of the whole payload.
    pub kind: u16,
    /// Length of the whole payload in bytes.
    pub len: u64,
}

/// Names the transfer of the following chunks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TransferHeader {
    /// Id of the transfer.
    pub id: u64,
}

/// Reports the bytes of a transfer that the receiver has processed since its start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Credit {
    /// Id of the transfer, as its sender assigned it.
    pub id: u64,
    /// Number of processed bytes.
    pub received: u64,
}

/// Cancels a transfer, by its sender or by its receiver.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Cancel {
    /// Id of the transfer.
    pub id: u64,
    /// Whether the receiver cancels; `id` is then that of the transfer's sender.
    pub by_receiver: bool,
    /// Reason, for the log.
    pub why: String,
}
