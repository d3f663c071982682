//! The table of all message kinds: number, name, encoding and size cap.
//!
//! This module does not know the meaning of messages. The number of a kind never changes, and no
//! other message reuses it.

use std::fmt;

/// Number of a message kind on the wire.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Kind(pub u16);

/// Encoding of the payloads of a kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    /// Maps with field names. Unknown fields are ignored, so that versions can differ.
    Named,
    /// Arrays in field order, in the negotiated wire version.
    Compact,
}

/// The table entry of a kind.
#[derive(Clone, Copy, Debug)]
pub struct KindInfo {
    /// Number of the kind.
    pub kind: Kind,
    /// Name in logs and counters.
    pub name: &'static str,
    /// Encoding of its payloads.
    pub encoding: Encoding,
    /// Largest payload that is accepted, in bytes; checked before decoding.
    pub cap: usize,
}

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

/// Largest payload of a kind that may carry users' data (tasks, results, calls, objects), in bytes.
///
/// A payload longer than [`INLINE_MAX`] travels as a bulk transfer. The same cap applies to it
/// after reassembly.
pub const DATA_MAX: usize = 1 << 30;

/// Largest payload that is sent as one frame on the control and steal streams. Longer ones become
/// bulk transfers.
pub const INLINE_MAX: usize = 48 * KIB;

macro_rules! kinds {
    ($(
        $(#[$doc:meta])*
        $name:ident = $number:literal, $text:literal, $encoding:ident, $cap:expr;
    )*) => {
        impl Kind {
            $($(#[$doc])* pub const $name: Kind = Kind($number);)*
        }

        /// All kinds, by number.
        pub const KINDS: &[KindInfo] = &[
            $(KindInfo {
                kind: Kind::$name,
                name: $text,
                encoding: Encoding::$encoding,
                cap: $cap,
            },)*
        ];
    };
}

kinds! {
    /// First frame of the connecting side.
    HELLO = 1, "hello", Named, 4 * KIB;
    /// First frame of the accepting side: it accepts the link.
    WELCOME = 2, "welcome", Named, 4 * KIB;
    /// First frame of the accepting side: it refuses the link, with a reason.
    REFUSE = 3, "refuse", Named, 4 * KIB;
    /// Last frame of a side that closes the link on purpose.
    GOODBYE = 4, "goodbye", Named, 4 * KIB;
    /// A joining node's token and certificate request, sent to the join endpoint.
    JOIN_REQUEST = 8, "join-request", Named, 8 * KIB;
    /// Reply of the join endpoint: the certificate, and the configuration that the node needs.
    JOIN_GRANT = 9, "join-grant", Named, 64 * KIB;
    /// Reply of the join endpoint: a refusal.
    JOIN_REFUSED = 10, "join-refused", Named, 4 * KIB;
    /// A message to a published actor that expects an answer.
    CALL = 16, "call", Named, DATA_MAX;
    /// The answer to a call.
    REPLY = 17, "reply", Named, DATA_MAX;
    /// A message to a published actor without an answer.
    TELL = 18, "tell", Named, DATA_MAX;
    /// Heartbeat of a worker.
    HEARTBEAT = 24, "heartbeat", Compact, KIB;
    /// Acknowledgement of a heartbeat by the coordinator of the worker's cluster.
    HEARTBEAT_REPLY = 25, "heartbeat-reply", Compact, KIB;
    /// A thief's request for work.
    STEAL_REQUEST = 32, "steal-request", Compact, 16 * KIB;
    /// The victim's reply: a task, or none.
    STEAL_REPLY = 33, "steal-reply", Compact, DATA_MAX;
    /// Notice of a victim that had no task and now has one.
    WORK_HINT = 34, "work-hint", Compact, KIB;
    /// The result of a leased task.
    TASK_RESULT = 35, "task-result", Compact, DATA_MAX;
    /// A leased task that returns unfinished.
    TASK_RETURN = 36, "task-return", Compact, DATA_MAX;
    /// The owner cancels a leased task.
    TASK_ABANDON = 37, "task-abandon", Compact, KIB;
    /// Locations of results that recomputed tasks can use.
    ORPHANS = 38, "orphans", Compact, 4 * MIB;
    /// A recomputed parent adopts a result or a running task.
    ADOPT = 39, "adopt", Compact, 64 * KIB;
    /// The leases that an owner attributes to the receiver, after their link was down.
    AUDIT = 40, "audit", Compact, 4 * MIB;
    /// The state of a task on a leaving node whose owner left earlier.
    HANDOVER = 41, "handover", Compact, DATA_MAX;
    /// A message among the processes of an SPMD program, or between them and its root.
    PROCESS = 42, "process", Compact, DATA_MAX;
    /// A new version of a shared object, whole or as a delta, on its way along the broadcast plan.
    OBJECT_UPDATE = 48, "object-update", Compact, DATA_MAX;
    /// A node's request for an object, sent to a holder.
    OBJECT_FETCH = 49, "object-fetch", Compact, 4 * KIB;
    /// Reply of a holder that does not have the requested object.
    OBJECT_MISS = 50, "object-miss", Compact, 4 * KIB;
    /// A merge into a merged object.
    OBJECT_MERGE = 51, "object-merge", Compact, 4 * MIB;
    /// Start of a bulk transfer.
    BULK_BEGIN = 64, "bulk-begin", Compact, KIB;
    /// Bytes of a bulk transfer: the payload is these bytes and nothing else.
    BULK_CHUNK = 65, "bulk-chunk", Compact, 64 * KIB;
    /// The receiver processed chunks, so the sender may send more.
    BULK_CREDIT = 66, "bulk-credit", Compact, KIB;
    /// The sender or the receiver cancels a transfer.
    BULK_CANCEL = 67, "bulk-cancel", Compact, KIB;
    /// The following chunks belong to the named transfer.
    BULK_PART = 68, "bulk-part", Compact, KIB;
    /// A datagram of a link between two nodes that cannot reach each other directly.
    RELAY = 80, "relay", Compact, 72 * KIB;
}

impl Kind {
    /// The table entry of this kind, if there is one.
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
