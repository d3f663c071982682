//! The one table of message kinds: number, name, encoding, size cap.
//!
//! Must not know what the messages mean. A kind's number never changes and is never used again for another message.

use std::fmt;

/// A message kind's number on the wire.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Kind(pub u16);

/// How a payload of this kind is encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    /// Maps with field names; unknown fields are ignored, so that versions can differ.
    Named,
    /// Arrays in field order, under the negotiated wire version.
    Compact,
}

/// What the table says of a kind.
#[derive(Clone, Copy, Debug)]
pub struct KindInfo {
    /// The kind.
    pub kind: Kind,
    /// Its name in logs and counters.
    pub name: &'static str,
    /// How it is encoded.
    pub encoding: Encoding,
    /// Largest payload accepted, in bytes, before decoding.
    pub cap: usize,
}

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

/// Largest payload of a kind that may carry users' data (tasks, results, calls, objects), in bytes. What is longer than
/// [`INLINE_MAX`] travels as a bulk transfer, but is held to the same cap when put together again.
pub const DATA_MAX: usize = 1 << 30;

/// Largest payload sent as one frame on the control and steal streams; longer ones become bulk transfers.
pub const INLINE_MAX: usize = 48 * KIB;

macro_rules! kinds {
    ($($(#[$doc:meta])* $name:ident = $number:literal, $text:literal, $encoding:ident, $cap:expr;)*) => {
        impl Kind {
            $($(#[$doc])* pub const $name: Kind = Kind($number);)*
        }

        /// Every kind there is, by number.
        pub const KINDS: &[KindInfo] = &[
            $(KindInfo { kind: Kind::$name, name: $text, encoding: Encoding::$encoding, cap: $cap },)*
        ];
    };
}

kinds! {
    /// First frame of the connecting side.
    HELLO = 1, "hello", Named, 4 * KIB;
    /// First frame of the accepting side: the link is up.
    WELCOME = 2, "welcome", Named, 4 * KIB;
    /// First frame of the accepting side: the link is refused, with the reason.
    REFUSE = 3, "refuse", Named, 4 * KIB;
    /// Last frame of a side that closes on purpose.
    GOODBYE = 4, "goodbye", Named, 4 * KIB;
    /// At the door at which nodes join: a token, and a request for a certificate.
    JOIN_REQUEST = 8, "join-request", Named, 8 * KIB;
    /// The door's answer: the certificate, and what the node's config needs.
    JOIN_GRANT = 9, "join-grant", Named, 64 * KIB;
    /// The door's answer: no.
    JOIN_REFUSED = 10, "join-refused", Named, 4 * KIB;
    /// A message to a published actor that wants an answer.
    CALL = 16, "call", Named, DATA_MAX;
    /// The answer to a call.
    REPLY = 17, "reply", Named, DATA_MAX;
    /// A message to a published actor without an answer.
    TELL = 18, "tell", Named, DATA_MAX;
    /// A worker lives.
    ALIVE = 24, "alive", Compact, KIB;
    /// The coordinator of its cluster has heard it.
    HEARD = 25, "heard", Compact, KIB;
    /// A thief asks for work.
    STEAL_REQUEST = 32, "steal-request", Compact, 16 * KIB;
    /// The victim's answer: a task, or none.
    STEAL_REPLY = 33, "steal-reply", Compact, DATA_MAX;
    /// A victim that had none has work now.
    WORK_HINT = 34, "work-hint", Compact, KIB;
    /// The result of a leased task.
    TASK_RESULT = 35, "task-result", Compact, DATA_MAX;
    /// A leased task comes back unfinished.
    TASK_RETURN = 36, "task-return", Compact, DATA_MAX;
    /// The owner no longer wants a leased task.
    TASK_ABANDON = 37, "task-abandon", Compact, KIB;
    /// Where results are that recomputed tasks can use.
    ORPHANS = 38, "orphans", Compact, 4 * MIB;
    /// A recomputed parent takes over a result or a running task.
    ADOPT = 39, "adopt", Compact, 64 * KIB;
    /// Which leases an owner believes with the receiver, after their link was down.
    AUDIT = 40, "audit", Compact, 4 * MIB;
    /// What a leaving node has of a task whose owner left before it.
    HANDOVER = 41, "handover", Compact, DATA_MAX;
    /// Between processes of an SPMD program, and between them and its root.
    PROCESS = 42, "process", Compact, DATA_MAX;
    /// A new version of a shared object, whole or as a delta, on its way down the broadcast plan.
    OBJECT_UPDATE = 48, "object-update", Compact, DATA_MAX;
    /// A node asks a holder for an object.
    OBJECT_FETCH = 49, "object-fetch", Compact, 4 * KIB;
    /// A holder does not have what was asked.
    OBJECT_MISS = 50, "object-miss", Compact, 4 * KIB;
    /// A merge into a merged object.
    OBJECT_MERGE = 51, "object-merge", Compact, 4 * MIB;
    /// A bulk transfer begins.
    BULK_BEGIN = 64, "bulk-begin", Compact, KIB;
    /// Bytes of a bulk transfer: the payload is these bytes, with nothing around them.
    BULK_CHUNK = 65, "bulk-chunk", Compact, 64 * KIB;
    /// The receiver took chunks in; the sender may send more.
    BULK_CREDIT = 66, "bulk-credit", Compact, KIB;
    /// The sender or the receiver gives a transfer up.
    BULK_CANCEL = 67, "bulk-cancel", Compact, KIB;
    /// The chunks that follow belong to the transfer named.
    BULK_PART = 68, "bulk-part", Compact, KIB;
    /// A datagram of the link between two nodes that cannot reach each other.
    RELAY = 80, "relay", Compact, 72 * KIB;
}

impl Kind {
    /// What the table says of this kind, if it is there.
    pub fn info(self) -> Option<&'static KindInfo> {
        KINDS.iter().find(|info| info.kind == self)
    }
}

impl fmt::Debug for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.info() {
            Some(info) => f.write_str(info.name),
            None => write!(f, "kind-{}", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_unique_and_ascending() {
        assert!(KINDS.windows(2).all(|pair| pair[0].kind < pair[1].kind));
    }

    #[test]
    fn inline_payloads_fit_one_chunk() {
        assert!(INLINE_MAX <= Kind::BULK_CHUNK.info().unwrap().cap);
    }
}
