//! The data types of a store's interface: actions, facts, tickets, settings, counters and errors.

use std::time::Duration;

use bytes::Bytes;
use serde::Serialize;
use tokio::time::Instant;

use super::cell::HeldVersions;
use super::types::CodecError;
use super::{ObjectKey, ObjectNeed, Version};
use crate::id::{JobId, NodeId};
use crate::net::Class;
use crate::wire::{Kind, WireError};

/// The caller's number of a task that waits for its needs, unique among the waiting ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

/// An action that the store requests. The callback given to
/// [`Shared::new`](super::SharedObjects::new) executes it, outside the store's lock, on the thread
/// that called the store.
#[derive(Debug)]
pub enum ObjectAction {
    /// Send these bytes over the network. If it answers `Full`, or returns them undelivered, call
    /// [`Shared::unsent`](super::SharedObjects::unsent).
    Send {
        /// The receiver of the message.
        to: NodeId,
        /// The class of the message.
        class: Class,
        /// The kind of the message.
        kind: Kind,
        /// The encoded message.
        body: Bytes,
    },
    /// All versions that the ticket waited for are present.
    Ready {
        /// The ticket that waited.
        ticket: Ticket,
        /// Keeps these versions present until it is dropped; keep it as long as the task.
        held: HeldVersions,
    },
    /// A version that the ticket waits for is unavailable.
    Failed {
        /// The ticket that waited.
        ticket: Ticket,
        /// The reason why it is unavailable.
        why: Unavailable,
    },
    /// Call [`Shared::tick`](super::SharedObjects::tick) at this time or soon after. Earlier and
    /// additional ticks are harmless.
    Wake(Instant),
    /// A fact for the record.
    Event(Fact),
}

/// The answer to [`Shared::need`](super::SharedObjects::need).
#[derive(Debug)]
pub enum Needed {
    /// All versions are present; as [`ObjectAction::Ready`].
    Ready(HeldVersions),
    /// [`ObjectAction::Ready`] or [`ObjectAction::Failed`] follows later.
    Waiting,
}

/// The reason why a needed version is unavailable.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unavailable {
    /// The object is not registered as a versioned one.
    #[error(
        "shared object {0} is not registered as a versioned object: \
         add `.versioned::<T>()` to the job's register"
    )]
    Unregistered(String),
    /// Every holder was asked several times.
    #[error(
        "no node could give version {} of shared object {}/{} (last asked: {})",
        .need.version, .need.key.name, .need.key.part,
        .last_asked.as_ref().map_or("no node is reachable", NodeId::as_str)
    )]
    NoHolder {
        /// The version that was needed.
        need: ObjectNeed,
        /// The node that was asked last.
        last_asked: Option<NodeId>,
    },
}

/// A fact for the event catalogue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fact {
    /// This node published a version.
    Published {
        /// The part of the object.
        key: ObjectKey,
        /// The published version.
        version: Version,
        /// Whether it is a delta.
        delta: bool,
        /// The encoded length in bytes; 0 if the value is not encoded yet.
        bytes: u64,
    },
    /// This node fetched a version from a holder.
    Fetched {
        /// The part of the object.
        key: ObjectKey,
        /// The fetched version.
        version: Version,
        /// The node that sent the last segment.
        from: NodeId,
        /// Whether the holder is in another cluster.
        wide: bool,
    },
    /// A message of an old epoch was dropped.
    StaleDropped {
        /// The part of the object.
        key: ObjectKey,
        /// The version in the message.
        version: Version,
        /// The sender of the message.
        from: NodeId,
    },
    /// Different bytes arrived for a present version: there are two writers. The first version
    /// stays.
    Conflict {
        /// The part of the object.
        key: ObjectKey,
        /// The version in conflict.
        version: Version,
        /// The sender of the second one.
        from: NodeId,
    },
    /// A frame was refused.
    Refused {
        /// The sender of the frame.
        from: NodeId,
        /// The reason for the refusal.
        why: FrameError,
    },
    /// No node could provide a version.
    FetchFailed(Unavailable),
}

/// The reason why a frame was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// It is not a message about shared objects.
    #[error("{0:?} is not a message about shared objects")]
    Kind(Kind),
    /// The body does not decode.
    #[error("cannot decode a {kind:?} message: {why}")]
    Decode {
        /// The kind of the message.
        kind: Kind,
        /// The error of the decoder.
        why: WireError,
    },
    /// It belongs to another job.
    #[error("the message is about {0}, which is not the job of this store")]
    Job(JobId),
    /// The object is not registered, or not as this kind of object.
    #[error("shared object {0:?} is not registered for this message")]
    Object(String),
    /// Lengths, counts or indices contradict each other or exceed their limits.
    #[error("a field of the message is out of range: {0}")]
    Range(&'static str),
    /// The user's type refused the value.
    #[error(transparent)]
    Value(#[from] CodecError),
}

/// The reason why a call on [`Shared`](super::SharedObjects) failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ShareError {
    /// The type is not registered.
    #[error("shared object {0} is not registered: add it in the job's register")]
    Unregistered(&'static str),
    /// `update` needs a present version as its base.
    #[error("shared object {name}/{part} has no version on this node to update: put it first")]
    NoBase {
        /// The object's name.
        name: &'static str,
        /// The part.
        part: u32,
    },
    /// The requested version is not on this node.
    #[error(
        "version {version} of shared object {name}/{part} is not on this node: \
         declare it in the task's needs"
    )]
    Absent {
        /// The object's name.
        name: &'static str,
        /// The part.
        part: u32,
        /// The version that was requested.
        version: Version,
    },
    /// Another node published versions of the same part meanwhile.
    #[error("another node writes shared object {name}/{part} too: a part has one writer")]
    Overtaken {
        /// The object's name.
        name: &'static str,
        /// The part.
        part: u32,
    },
    /// The encoded merged value exceeds the limit.
    #[error(
        "merged shared object {name} takes {len} bytes, over the limit of {max}: keep less in it"
    )]
    TooLarge {
        /// The object's name.
        name: &'static str,
        /// The encoded length in bytes.
        len: usize,
        /// The limit in bytes.
        max: usize,
    },
    /// The user's type rejected the value.
    #[error(transparent)]
    Value(#[from] CodecError),
}

/// The settings of a store. The defaults suit clusters on a LAN with links between them of some 10
/// ms and 1 MB/s or more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShareConfig {
    /// The number of newest versions of a part that are kept (at least 1). Versions in a
    /// [`HeldVersions`] are kept as well.
    pub keep: usize,
    /// The longest payload of one frame of a broadcast, in bytes. Longer ones are split, so that
    /// relays forward the first segments while later ones arrive.
    pub segment: usize,
    /// The maximum number of receivers in a cluster that get direct copies; more are reached over a
    /// tree.
    pub flat: usize,
    /// The number of copies that each node of that tree sends.
    pub fanout: usize,
    /// The time after which a missing version without progress is fetched, if its writer is in this
    /// node's cluster.
    pub grace: Duration,
    /// The same for a writer in another cluster.
    pub grace_wide: Duration,
    /// The time without a segment after which the next holder is asked, for a holder in this
    /// cluster.
    pub stall: Duration,
    /// The same for a holder in another cluster.
    pub stall_wide: Duration,
    /// The rate of the slowest supported link in bytes a second. A holder that sends a version to a
    /// node does not send it again before it can have arrived.
    pub min_rate: u64,
    /// The number of rounds over all holders before a need fails.
    pub rounds: u32,
    /// The pause before the second round; it doubles with each.
    pub backoff: Duration,
    /// The minimum interval of updates of a merged object to a node of this cluster.
    pub merge_local: Duration,
    /// The same to a node of another cluster.
    pub merge_wide: Duration,
    /// The bound in bytes on unfinished versions of all objects. Above it, the version without
    /// progress for the longest time is dropped.
    pub assembly: usize,
    /// The number of encoded deltas on a whole value after which they are folded into a new one.
    pub chain: usize,
    /// The bound in bytes on unsent messages to a node. Beyond it they are dropped and the node
    /// must fetch.
    pub backlog: usize,
    /// The maximum number of parts of an object.
    pub parts: usize,
    /// The seed of the jitter.
    pub seed: u64,
}

impl Default for ShareConfig {
    fn default() -> Self {
        Self {
            keep: 2,
            segment: 1 << 20,
            flat: 8,
            fanout: 4,
            grace: Duration::from_millis(50),
            grace_wide: Duration::from_millis(150),
            stall: Duration::from_secs(2),
            stall_wide: Duration::from_secs(10),
            min_rate: 32 << 10,
            rounds: 4,
            backoff: Duration::from_millis(500),
            merge_local: Duration::from_millis(1),
            merge_wide: Duration::from_millis(20),
            assembly: 2 << 30,
            chain: 32,
            backlog: 1 << 30,
            parts: 1 << 16,
            seed: 1,
        }
    }
}

/// The counters of a store since its creation. Bytes are those of encoded messages passed to the
/// network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ShareStats {
    /// Versions published by this node.
    pub published: u64,
    /// Versions that arrived, whole or as deltas, and were accepted.
    pub received: u64,
    /// Versions fetched from a holder.
    pub fetched: u64,
    /// Fetch requests sent to holders.
    pub fetches_sent: u64,
    /// Fetch requests answered with data.
    pub fetches_served: u64,
    /// Segments dropped because they were present already.
    pub duplicates: u64,
    /// Segments dropped because their version is older than the kept ones.
    pub old: u64,
    /// Segments dropped because their epoch is old.
    pub stale: u64,
    /// Versions that arrived with different bytes than the present ones.
    pub conflicts: u64,
    /// Frames refused as malformed or unexpected.
    pub refused: u64,
    /// Unfinished versions and waiting deltas dropped for lack of room.
    pub evicted: u64,
    /// Bytes dropped because the network had no room for them.
    pub dropped: u64,
    /// Chains of deltas folded on the calling thread, since no reader had done so.
    pub folded: u64,
    /// Merges, local or received, that changed a value.
    pub merges: u64,
    /// Updates of merged objects sent.
    pub merges_sent: u64,
    /// Bytes sent to nodes of this cluster.
    pub sent_local: u64,
    /// Bytes sent to nodes of other clusters.
    pub sent_wide: u64,
}
