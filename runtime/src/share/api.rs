//! What a store tells its user and is told: actions, facts, tickets, settings, counters, errors.
//!
//! Plain data.

use std::time::Duration;

use bytes::Bytes;
use serde::Serialize;
use tokio::time::Instant;

use super::cell::Held;
use super::types::CodecError;
use super::{Need, ObjectKey, Version};
use crate::id::{JobId, NodeId};
use crate::net::Class;
use crate::wire::{Kind, WireError};

/// Names a task that waits for its needs. Chosen by the caller, unique among those that wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

/// What the store wants done. Carried out by the callback given to [`Shared::new`](super::Shared::new), outside the
/// store's lock, on whatever thread called the store.
#[derive(Debug)]
pub enum Action {
    /// Hand these bytes to the network. Where it answers `Full`, or gives them back undelivered, tell
    /// [`Shared::unsent`](super::Shared::unsent).
    Send {
        /// To whom.
        to: NodeId,
        /// On which class.
        class: Class,
        /// Which kind.
        kind: Kind,
        /// The encoded message.
        body: Bytes,
    },
    /// All that the ticket waited for is present.
    Ready {
        /// Who waited.
        ticket: Ticket,
        /// Keeps exactly these versions present until dropped: keep it as long as the task.
        held: Held,
    },
    /// What the ticket waits for cannot be had.
    Failed {
        /// Who waited.
        ticket: Ticket,
        /// Why.
        why: Unavailable,
    },
    /// Call [`Shared::tick`](super::Shared::tick) at this time or soon after. Replaces no later one: an early or
    /// additional tick does no harm.
    Wake(Instant),
    /// Something worth a record happened.
    Event(Fact),
}

/// The answer to [`Shared::need`](super::Shared::need).
#[derive(Debug)]
pub enum Needed {
    /// All is present; as [`Action::Ready`].
    Ready(Held),
    /// [`Action::Ready`] or [`Action::Failed`] comes later.
    Waiting,
}

/// Why a needed version cannot be had.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unavailable {
    /// The object is not registered as a versioned one.
    #[error(
        "shared object {0} is not registered as a versioned object: add `.versioned::<T>()` to the job's register"
    )]
    Unregistered(String),
    /// Every holder was asked, several times.
    #[error(
        "no node could give version {} of shared object {}/{} (last asked: {})",
        .need.version, .need.key.name, .need.key.part,
        .last_asked.as_ref().map_or("nobody is reachable", NodeId::as_str)
    )]
    NoHolder {
        /// What was needed.
        need: Need,
        /// Who was asked last.
        last_asked: Option<NodeId>,
    },
}

/// A fact for the event catalogue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fact {
    /// This node published a version.
    Published {
        /// Which object part.
        key: ObjectKey,
        /// Which version.
        version: Version,
        /// Whether as a delta.
        delta: bool,
        /// Encoded length, in bytes.
        bytes: u64,
    },
    /// This node fetched a version from a holder.
    Fetched {
        /// Which object part.
        key: ObjectKey,
        /// Which version.
        version: Version,
        /// From whom its last piece came.
        from: NodeId,
        /// Whether the holder is in another cluster.
        wide: bool,
    },
    /// Something under an old epoch came and was dropped.
    StaleDropped {
        /// Which object part.
        key: ObjectKey,
        /// Which version.
        version: Version,
        /// From whom.
        from: NodeId,
    },
    /// Other bytes came for a version that is here: two writers. The first stays.
    Conflict {
        /// Which object part.
        key: ObjectKey,
        /// Which version.
        version: Version,
        /// From whom.
        from: NodeId,
    },
    /// A frame was refused.
    Refused {
        /// From whom.
        from: NodeId,
        /// Why.
        why: FrameError,
    },
    /// A version could not be had from anybody.
    FetchFailed(Unavailable),
}

/// Why a frame was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// Not one of this room's kinds.
    #[error("{0:?} is not a message about shared objects")]
    Kind(Kind),
    /// It does not decode.
    #[error("cannot decode a {kind:?} message: {why}")]
    Decode {
        /// Which kind.
        kind: Kind,
        /// What the gate says.
        why: WireError,
    },
    /// It is about another job.
    #[error("the message is about {0}, which is not the job of this store")]
    Job(JobId),
    /// The object is not registered, or not as this kind of object.
    #[error("shared object {0:?} is not registered for this message")]
    Object(String),
    /// Lengths, counts or indices in it contradict each other or are over their limits.
    #[error("a field of the message is out of range: {0}")]
    Range(&'static str),
    /// The user's type refused the value.
    #[error(transparent)]
    Value(#[from] CodecError),
}

/// Why a call on [`Shared`](super::Shared) failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ShareError {
    /// The type is not registered.
    #[error("shared object {0} is not registered: add it in the job's register")]
    Unregistered(&'static str),
    /// `update` needs a present version to change.
    #[error("shared object {name}/{part} has no version on this node to update: put it first")]
    NoBase {
        /// The object's name.
        name: &'static str,
        /// The part.
        part: u32,
    },
    /// The asked version is not here.
    #[error(
        "version {version} of shared object {name}/{part} is not on this node: declare it in the task's needs"
    )]
    Absent {
        /// The object's name.
        name: &'static str,
        /// The part.
        part: u32,
        /// The version asked for.
        version: Version,
    },
    /// Another node published versions of the same part in between.
    #[error("another node writes shared object {name}/{part} too: a part has one writer")]
    Overtaken {
        /// The object's name.
        name: &'static str,
        /// The part.
        part: u32,
    },
    /// Encoded, the merged value is over the limit.
    #[error(
        "merged shared object {name} takes {len} bytes, over the limit of {max}: keep less in it"
    )]
    TooLarge {
        /// The object's name.
        name: &'static str,
        /// Its encoded length.
        len: usize,
        /// The limit.
        max: usize,
    },
    /// The user's type refused.
    #[error(transparent)]
    Value(#[from] CodecError),
}

/// Settings of a store. The defaults suit clusters on a LAN joined by links of some 10 ms and 1 MB/s or more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShareConfig {
    /// How many of the newest versions of a part are kept (at least 1). More are kept while a [`Held`] names them.
    pub keep: usize,
    /// Longest payload of one frame of a broadcast, in bytes; longer ones are cut, so that relays pass on the first
    /// piece while the rest is still coming.
    pub segment: usize,
    /// Up to so many receivers in a cluster get their copies directly; more are reached over a tree.
    pub flat: usize,
    /// Copies each node of that tree sends.
    pub fanout: usize,
    /// How long a needed version may be absent without a sign of it before it is fetched, when its writer is in this
    /// node's cluster.
    pub grace: Duration,
    /// The same, when its writer is in another cluster.
    pub grace_wide: Duration,
    /// Without a piece for so long, a holder of this cluster is given up for the next.
    pub stall: Duration,
    /// The same for a holder in another cluster.
    pub stall_wide: Duration,
    /// Slowest link to reckon with, in bytes a second: a holder that has begun to send a version to a node does not
    /// send it again before it can have arrived.
    pub min_rate: u64,
    /// So many times all holders are asked before a need fails.
    pub rounds: u32,
    /// Wait before the second round; doubles with each.
    pub backoff: Duration,
    /// Least time between two updates of a merged object to a node of this cluster.
    pub merge_local: Duration,
    /// The same to a node of another cluster.
    pub merge_wide: Duration,
    /// Bytes of unfinished versions kept, over all objects; beyond it the one that stands still longest is dropped.
    pub assembly: usize,
    /// Deltas that may lie on a whole in their encoded form before they are folded into a new whole.
    pub chain: usize,
    /// Bytes kept for a node that the network had no room for; beyond it they are dropped and the node must fetch.
    pub backlog: usize,
    /// Parts an object may have.
    pub parts: usize,
    /// Seed of the jitter.
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

/// What a store counted since it was made. Bytes are those of encoded messages handed to the network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ShareStats {
    /// Versions this node published.
    pub published: u64,
    /// Versions that came whole or as a delta and were taken in.
    pub received: u64,
    /// Versions fetched from a holder.
    pub fetched: u64,
    /// Fetch requests sent.
    pub fetches_sent: u64,
    /// Fetch requests answered with data.
    pub fetches_served: u64,
    /// Segments dropped because they were here already.
    pub duplicates: u64,
    /// Segments dropped because their version is older than what is kept.
    pub old: u64,
    /// Segments dropped because their epoch is old.
    pub stale: u64,
    /// Versions that came with other bytes than those here.
    pub conflicts: u64,
    /// Frames refused.
    pub refused: u64,
    /// Unfinished versions and waiting deltas dropped for want of room.
    pub evicted: u64,
    /// Bytes the network had no room for and that were dropped in the end.
    pub dropped: u64,
    /// Chains of deltas folded on the calling thread because no reader had done it.
    pub folded: u64,
    /// Merges, made here or received, that changed a value.
    pub merges: u64,
    /// Updates of merged objects sent.
    pub merges_sent: u64,
    /// Bytes sent to nodes of this cluster.
    pub sent_local: u64,
    /// Bytes sent to nodes of other clusters.
    pub sent_wide: u64,
}
