//! The messages of a bulk transfer. On the bulk stream, in order: begin, chunks, perhaps cancel; chunks of several
//! transfers take turns, and a part message says whose chunks follow. Credits, and cancels by the receiver, come back on
//! the control stream.
//!
//! A chunk has no fields: its payload is the bytes themselves, so that neither side copies them to add a header.

use serde::{Deserialize, Serialize};

/// A transfer begins; the chunks that follow are its own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Begin {
    /// Counts up within one life of the sender.
    pub id: u64,
    /// The kind of the whole payload.
    pub kind: u16,
    /// Length of the whole payload, bytes.
    pub len: u64,
}

/// The chunks that follow belong to this transfer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Part {
    /// Which transfer.
    pub id: u64,
}

/// The receiver has taken in so many bytes of a transfer since its beginning.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Credit {
    /// Which transfer of the one who reads this.
    pub id: u64,
    /// Bytes taken in.
    pub received: u64,
}

/// A transfer is given up, by its sender or by its receiver.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Cancel {
    /// Which transfer.
    pub id: u64,
    /// Whose word this is: false, the sender's; true, the receiver's, about a transfer of the one who reads this.
    pub by_receiver: bool,
    /// Why, for logs.
    pub why: String,
}
