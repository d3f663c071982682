//! The messages about shared objects. Each names its job, so that late ones of another job are
//! refused.
//!
//! The encoding is compact. This module checks what can be checked without the store.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::api::FrameError;
use super::{ObjectKey, ObjectNeed, Version};
use crate::id::{JobId, NodeId};
use crate::wire::{DATA_MAX, Kind, WireError, encode_into, shared_bytes};

/// The maximum number of segments of a payload, which bounds the memory that an announced length
/// can claim.
pub(crate) const SEGMENTS_MAX: u64 = 1 << 16;

/// The maximum number of nodes to which a receiver must forward a frame.
const BELOW_MAX: usize = 4096;

/// The maximum number of segment ranges in a fetch; the last one then extends to the end. They fit
/// the kind's limit many times.
pub(crate) const RANGES_MAX: usize = 64;

/// The identity of one encoded form of one version: segments belong together if they agree in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct PayloadId {
    pub version: Version,
    /// Whether it is a delta to the previous version, or a whole value.
    pub delta: bool,
    /// The length of the payload.
    pub len: u64,
    /// The length of each segment but the last.
    pub segment: u32,
    /// The sum of the segments' digests.
    pub sum: u64,
}

impl PayloadId {
    /// The number of segments.
    pub fn count(&self) -> u32 {
        // `check` bounds it by SEGMENTS_MAX for all received messages.
        self.len.div_ceil(u64::from(self.segment.max(1))).max(1) as u32
    }

    fn segment_len(&self, index: u32) -> u64 {
        let segment = u64::from(self.segment);
        self.len.saturating_sub(u64::from(index) * segment).min(segment)
    }

    fn check(&self) -> Result<(), FrameError> {
        if self.version.n == 0 {
            return Err(FrameError::Range("versions count from 1"));
        }
        if self.delta && self.version.n == 1 {
            return Err(FrameError::Range("the first version cannot be a delta"));
        }
        if self.segment == 0 {
            return Err(FrameError::Range("segments of length zero"));
        }
        if self.len > DATA_MAX as u64 {
            return Err(FrameError::Range("the payload is over the limit for users' data"));
        }
        if self.len.div_ceil(u64::from(self.segment)) > SEGMENTS_MAX {
            return Err(FrameError::Range("too many segments"));
        }
        Ok(())
    }
}

/// One segment of a version, of a broadcast (request 0) or as the answer to a fetch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Update {
    pub job: JobId,
    pub key: ObjectKey,
    pub id: PayloadId,
    /// The index of the segment.
    pub index: u32,
    /// The writer, which is asked if no nearer node has the version.
    pub origin: NodeId,
    /// The number of the fetch that this answers; 0 for none.
    pub request: u64,
    /// Whether the receiver forwards it to all others of its cluster.
    pub relay: bool,
    /// The nodes to which the receiver forwards it.
    pub below: Vec<NodeId>,
    #[serde(deserialize_with = "shared_bytes")]
    pub data: Bytes,
}

impl Update {
    /// Checks that the numbers are consistent.
    pub fn check(&self) -> Result<(), FrameError> {
        self.id.check()?;
        if self.index >= self.id.count() {
            return Err(FrameError::Range("a segment index beyond the end"));
        }
        if self.data.len() as u64 != self.id.segment_len(self.index) {
            return Err(FrameError::Range("a segment of another length than announced"));
        }
        if self.below.len() > BELOW_MAX {
            return Err(FrameError::Range("too many nodes to forward it to"));
        }
        Ok(())
    }
}

/// A request of a node to a holder for a version.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Fetch {
    pub job: JobId,
    /// The number that the answer repeats; not 0.
    pub request: u64,
    pub need: ObjectNeed,
    /// The version n of the same epoch that the asker has, so that later deltas suffice; 0 for
    /// none.
    pub have: u64,
    /// The partial payload of the asker, with the missing ranges (first, end).
    pub partial: Option<(PayloadId, Vec<(u32, u32)>)>,
}

impl Fetch {
    /// Checks that the numbers are consistent.
    pub fn check(&self) -> Result<(), FrameError> {
        if self.request == 0 {
            return Err(FrameError::Range("a fetch without a request number"));
        }
        if self.need.version.n == 0 {
            return Err(FrameError::Range("versions count from 1"));
        }
        if self.partial.as_ref().is_some_and(|(_, ranges)| ranges.len() > RANGES_MAX) {
            return Err(FrameError::Range("too many ranges"));
        }
        Ok(())
    }
}

/// The answer of a holder that does not send the version.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Miss {
    pub job: JobId,
    /// The number of the request.
    pub request: u64,
    /// Whether the version is under way to the asker, or the holder fetches it for the asker: then
    /// wait instead of asking others.
    pub coming: bool,
}

/// The value of a merged object, to be merged into the receiver's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Merge {
    pub job: JobId,
    pub name: String,
    pub data: Bytes,
}

/// Any of these messages. It is encoded when it is sent: outside the store's lock, and once for all
/// receivers.
#[derive(Clone, Debug)]
pub(crate) enum Message {
    Update(Update),
    Fetch(Fetch),
    Miss(Miss),
    Merge(Merge),
    /// An encoded message that is sent again.
    Raw(Kind, Bytes),
}

impl Message {
    pub fn encode(self) -> Result<(Kind, Bytes), WireError> {
        fn write<T: Serialize>(
            kind: Kind,
            message: &T,
            room: usize,
        ) -> Result<(Kind, Bytes), WireError> {
            let mut buffer = Vec::with_capacity(room + 128);
            encode_into(&mut buffer, kind, message)?;
            Ok((kind, buffer.into()))
        }
        match self {
            Message::Update(update) => {
                let room = update.data.len() + 32 * update.below.len();
                write(Kind::OBJECT_UPDATE, &update, room)
            }
            Message::Fetch(fetch) => write(Kind::OBJECT_FETCH, &fetch, 0),
            Message::Miss(miss) => write(Kind::OBJECT_MISS, &miss, 0),
            Message::Merge(merge) => write(Kind::OBJECT_MERGE, &merge, merge.data.len()),
            Message::Raw(kind, bytes) => Ok((kind, bytes)),
        }
    }
}
