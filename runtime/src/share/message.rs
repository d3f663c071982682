//! The messages about shared objects. Compact; every one names its job, so that late ones of another job are refused.
//!
//! Must not know the store: here is only what can be checked without it.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::api::FrameError;
use super::{Need, ObjectKey, Version};
use crate::id::{JobId, NodeId};
use crate::wire::{DATA_MAX, Kind, WireError, encode_into};

/// Segments a payload may have: bounds what an announced length makes a receiver keep.
pub(crate) const SEGMENTS_MAX: u64 = 1 << 16;

/// Nodes a frame may ask its receiver to reach.
const BELOW_MAX: usize = 4096;

/// Ranges of segments a fetch may name; what lies between the last and the end is then asked for as well. They fit the
/// kind's cap many times.
pub(crate) const RANGES_MAX: usize = 64;

/// One encoded form of one version: what segments must agree in to belong together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct PayloadId {
    pub version: Version,
    /// A delta to the version before, or the whole.
    pub delta: bool,
    /// Length of the payload.
    pub len: u64,
    /// Length of each segment but the last.
    pub segment: u32,
    /// Sum of the segments' digests.
    pub sum: u64,
}

impl PayloadId {
    /// How many segments there are.
    pub fn count(&self) -> u32 {
        // `check` holds it under SEGMENTS_MAX for all that comes from outside.
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
            return Err(FrameError::Range("segments of no length"));
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

/// One segment of a version, on its way down the broadcast plan (request 0) or as the answer to a fetch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Update {
    pub job: JobId,
    pub key: ObjectKey,
    pub id: PayloadId,
    /// Which segment.
    pub index: u32,
    /// The writer: who is asked when nobody nearer has it.
    pub origin: NodeId,
    /// The request this answers; 0 for none.
    pub request: u64,
    /// The receiver passes it on to all others of its cluster.
    pub relay: bool,
    /// The receiver passes it on to these.
    pub below: Vec<NodeId>,
    pub data: Bytes,
}

impl Update {
    /// Whether its numbers agree with each other.
    pub fn check(&self) -> Result<(), FrameError> {
        self.id.check()?;
        if self.index >= self.id.count() {
            return Err(FrameError::Range("a segment behind the end"));
        }
        if self.data.len() as u64 != self.id.segment_len(self.index) {
            return Err(FrameError::Range("a segment of another length than announced"));
        }
        if self.below.len() > BELOW_MAX {
            return Err(FrameError::Range("too many nodes to pass it on to"));
        }
        Ok(())
    }
}

/// A node asks a holder for a version.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Fetch {
    pub job: JobId,
    /// Echoed in the answer; not 0.
    pub request: u64,
    pub need: Need,
    /// The asker has version n of the same epoch, so the deltas after it would do; 0 for none.
    pub have: u64,
    /// The asker has all of this but the ranges (first, behind last).
    pub partial: Option<(PayloadId, Vec<(u32, u32)>)>,
}

impl Fetch {
    /// Whether its numbers agree with each other.
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

/// A holder does not have what was asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Miss {
    pub job: JobId,
    /// Which request.
    pub request: u64,
    /// It is on its way to the asker, or the asked node has begun to get it for the asker: wait, do not ask others.
    pub coming: bool,
}

/// The value of a merged object, to be merged into the receiver's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Merge {
    pub job: JobId,
    pub name: String,
    pub data: Bytes,
}

/// Any of them, to be encoded when it is sent: outside the store's lock, and once for all that get the same.
#[derive(Clone, Debug)]
pub(crate) enum Message {
    Update(Update),
    Fetch(Fetch),
    Miss(Miss),
    Merge(Merge),
    /// Encoded before.
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
