//! One version of an object part: its encoded bytes, and its value after the first read.
//!
//! It knows neither the network nor the holders. Decoding and folding happen once, on the thread
//! that asks, outside the store's lock.

use std::fmt;
use std::sync::{Arc, OnceLock, Weak};

use bytes::{Bytes, BytesMut};

use super::message::{PayloadId, SEGMENTS_MAX};
use super::types::{CodecError, ObjectKind, ObjectType, ObjectValue, Versioned};
use super::{ObjectKey, ObjectNeed, Version};

/// Encoded bytes as they travel: in segments of equal length, of which the last may be shorter.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Payload {
    /// The segments in order; an empty payload has one empty segment.
    pub segments: Vec<Bytes>,
    /// The length of all segments but the last.
    pub segment: usize,
    /// The total length in bytes.
    pub len: usize,
    /// The sum of the segments' [`digest`]s.
    pub sum: u64,
}

impl Payload {
    /// Splits bytes into segments (views, no copies).
    pub fn cut(bytes: Bytes, segment: usize) -> Self {
        let segment = segment.max(1).max(bytes.len().div_ceil(SEGMENTS_MAX as usize));
        let count = bytes.len().div_ceil(segment).max(1);
        let segments: Vec<Bytes> = (0..count)
            .map(|i| bytes.slice(i * segment..bytes.len().min((i + 1) * segment)))
            .collect();
        let sum = segments
            .iter()
            .enumerate()
            .fold(0u64, |sum, (i, bytes)| sum.wrapping_add(digest(i as u32, bytes)));
        Self { segments, segment, len: bytes.len(), sum }
    }

    /// All bytes in one buffer; copies if there are several segments.
    pub fn joined(&self) -> Bytes {
        match &self.segments[..] {
            [one] => one.clone(),
            many => {
                let mut all = BytesMut::with_capacity(self.len);
                many.iter().for_each(|bytes| all.extend_from_slice(bytes));
                all.freeze()
            }
        }
    }
}

/// A 64-bit digest of a segment, so that segments from different holders are combined only if they
/// belong together.
///
/// It is not cryptographic. It processes eight bytes a step; the final mixing is that of splitmix64
/// (Steele, Lea, Flood 2014).
pub(crate) fn digest(index: u32, bytes: &[u8]) -> u64 {
    const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
    let mut state = (u64::from(index) << 32) ^ bytes.len() as u64;
    let mut words = bytes.chunks_exact(8);
    for word in &mut words {
        let word = u64::from_le_bytes(word.try_into().expect("chunks of exactly eight bytes"));
        state = (state.rotate_left(29) ^ word).wrapping_mul(ODD);
        state ^= state >> 32;
    }
    let mut last = [0; 8];
    last[..words.remainder().len()].copy_from_slice(words.remainder());
    state = (state.rotate_left(29) ^ u64::from_le_bytes(last)).wrapping_mul(ODD);
    state = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    state ^ (state >> 31)
}

/// The encoded whole value of a version. A node that is alone encodes it when another node needs
/// it.
#[derive(Clone, Debug)]
enum WholeValue {
    Encoded(Payload),
    /// The value is in the cell; it is cut into segments of this length.
    Unencoded(usize, OnceLock<Payload>),
}

/// The encoded form of a version: a whole value and the deltas since.
#[derive(Clone, Debug)]
pub(crate) struct Chain {
    /// The version of the whole value.
    pub base: Version,
    /// The encoded whole value.
    pub whole: Payload,
    /// The deltas that lead to the versions `base.n + 1`, `base.n + 2`, and so on.
    pub deltas: Vec<Payload>,
}

/// One version of an object part.
pub(crate) struct Cell {
    ty: ObjectType,
    pub key: ObjectKey,
    pub version: Version,
    /// The version of the whole value, the value, and the deltas since: see [`Chain`].
    base: Version,
    whole: WholeValue,
    deltas: Vec<Payload>,
    /// The chain folded into a whole value of this version.
    folded: OnceLock<Payload>,
    value: OnceLock<Result<ObjectValue, CodecError>>,
    /// The previous version. Its value, if it is read and still present, makes decoding the whole
    /// value unnecessary.
    previous: Weak<Cell>,
}

impl Cell {
    pub fn whole(ty: ObjectType, key: ObjectKey, version: Version, whole: Payload) -> Self {
        Self::new(ty, key, version, WholeValue::Encoded(whole))
    }

    /// A version without a value, which is encoded when another node needs it, in segments of this
    /// length. [`with_value`](Self::with_value) sets the value.
    pub fn unencoded(ty: ObjectType, key: ObjectKey, version: Version, segment: usize) -> Self {
        Self::new(ty, key, version, WholeValue::Unencoded(segment, OnceLock::new()))
    }

    fn new(ty: ObjectType, key: ObjectKey, version: Version, whole: WholeValue) -> Self {
        let (folded, value, previous) = (OnceLock::new(), OnceLock::new(), Weak::new());
        let (base, deltas) = (version, Vec::new());
        Self { ty, key, version, base, whole, deltas, folded, value, previous }
    }

    /// Encodes the value now, if it was not encoded before. Takes long for large values.
    pub fn encode(&self) {
        self.encoded();
    }

    /// The encoded whole value, encoded now if it was not before.
    fn encoded(&self) -> &Payload {
        match &self.whole {
            WholeValue::Encoded(payload) => payload,
            WholeValue::Unencoded(segment, encoded) => encoded.get_or_init(|| {
                let bytes = self.value().and_then(|value| (self.ty.encode)(&*value));
                let bytes = bytes.unwrap_or_else(|error| {
                    // Who decodes it fails with the name of the object.
                    tracing::error!(object = %self.key, %error, "a shared object is not encoded");
                    Bytes::new()
                });
                Payload::cut(bytes, *segment)
            }),
        }
    }

    /// The version after `previous`, by a delta.
    pub fn next(previous: &Arc<Cell>, delta: Payload) -> Self {
        let mut chain = previous.chain();
        chain.deltas.push(delta);
        let version = Version { n: previous.version.n + 1, ..previous.version };
        let whole = WholeValue::Encoded(chain.whole);
        let cell = Self::new(previous.ty, previous.key.clone(), version, whole);
        Self { base: chain.base, deltas: chain.deltas, previous: Arc::downgrade(previous), ..cell }
    }

    /// Sets the value, which the writer has already.
    pub fn with_value(self, value: ObjectValue) -> Self {
        let _ = self.value.set(Ok(value)); // a new cell has no value
        self
    }

    /// The shortest chain that leads to this version.
    pub fn chain(&self) -> Chain {
        match self.folded.get() {
            Some(whole) => Chain { base: self.version, whole: whole.clone(), deltas: Vec::new() },
            None => self.unfolded(),
        }
    }

    /// The received chain, which starts earlier than a folded one.
    pub fn unfolded(&self) -> Chain {
        Chain { base: self.base, whole: self.encoded().clone(), deltas: self.deltas.clone() }
    }

    /// Whether the payload contradicts this version. A whole value and a delta are not comparable,
    /// since encodings may differ.
    pub fn contradicts(&self, id: &PayloadId) -> bool {
        let mine = match (id.delta, self.deltas.last()) {
            (true, Some(delta)) => delta,
            (false, None) => self.encoded(),
            _ => return false,
        };
        (mine.len as u64, mine.sum) != (id.len, id.sum)
    }

    /// Whether the deltas should be folded: there are `limit` of them, or their bytes are `times`
    /// those of the whole value.
    pub fn is_long(&self, limit: usize, times: usize) -> bool {
        let delta_len = || self.deltas.iter().map(|delta| delta.len).sum::<usize>();
        self.folded.get().is_none()
            && !self.deltas.is_empty()
            && (self.deltas.len() >= limit
                || delta_len() > times * self.encoded().len.max(64 << 10))
    }

    /// The value, decoded by the first call.
    pub fn value(&self) -> Result<ObjectValue, CodecError> {
        self.value.get_or_init(|| self.make()).clone()
    }

    /// Encodes the value, so that later versions and fetches need no earlier deltas. An object that
    /// cannot be encoded keeps its chain.
    pub fn fold(&self, segment: usize) {
        if self.deltas.is_empty() || self.folded.get().is_some() {
            return;
        }
        if let Ok(value) = self.value()
            && let Ok(bytes) = (self.ty.encode)(&*value)
        {
            // Another thread may have set it already, to the same bytes.
            let _ = self.folded.set(Payload::cut(bytes, segment));
        }
    }

    fn make(&self) -> Result<ObjectValue, CodecError> {
        let ObjectKind::Versioned(apply) = self.ty.shape else {
            unreachable!("cells are made of versioned objects only")
        };
        if let Some(last) = self.deltas.last()
            && let Some(previous) = self.previous.upgrade()
            && let Some(Ok(value)) = previous.value.get()
        {
            return apply(&**value, &last.joined());
        }
        let mut value = (self.ty.decode)(&self.encoded().joined())?;
        for delta in &self.deltas {
            value = apply(&*value, &delta.joined())?;
        }
        Ok(value)
    }
}

impl fmt::Debug for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.key, self.version)
    }
}

/// Keeps versions present: while it exists, each of its versions can be read on this node.
#[derive(Clone, Debug, Default)]
pub struct HeldVersions(pub(crate) Vec<Arc<Cell>>);

impl HeldVersions {
    /// Whether this version is kept.
    pub fn has(&self, need: &ObjectNeed) -> bool {
        self.find(&need.key.name, need.key.part, need.version).is_some()
    }

    /// Reads a kept version without the store's lock. `None` if it is not kept, has another type
    /// than `V`, or does not decode ([`Shared::try_get`](super::SharedObjects::try_get) returns the
    /// reason).
    pub fn get<V: Versioned>(&self, part: u32, version: Version) -> Option<Arc<V>> {
        self.find(V::NAME, part, version)?.value().ok()?.downcast().ok()
    }

    fn find(&self, name: &str, part: u32, version: Version) -> Option<&Arc<Cell>> {
        self.0
            .iter()
            .find(|cell| cell.version == version && cell.key.part == part && cell.key.name == name)
    }
}
