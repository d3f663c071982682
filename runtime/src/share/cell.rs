//! One version of an object part: its bytes, and its value once somebody has read it.
//!
//! Must not know the network or who holds what. Decoding and folding run on the thread that asks, outside any lock of
//! the store, once.

use std::fmt;
use std::sync::{Arc, OnceLock, Weak};

use bytes::{Bytes, BytesMut};

use super::message::{PayloadId, SEGMENTS_MAX};
use super::types::{CodecError, ObjectType, Shape, Value, Versioned};
use super::{Need, ObjectKey, Version};

/// Encoded bytes as they travel: in segments of equal length, the last may be shorter.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Payload {
    /// The segments in order; an empty payload has one empty segment.
    pub segments: Vec<Bytes>,
    /// Length of all but the last.
    pub segment: usize,
    /// Length of all together.
    pub len: usize,
    /// Sum of the segments' [`digest`]s.
    pub sum: u64,
}

impl Payload {
    /// Cuts bytes into segments (views, no copies).
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

    /// All bytes in one piece: copies when there is more than one segment.
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

/// A 64-bit digest of a segment, so that pieces from different holders are put together only if they belong together.
/// Not cryptographic. Eight bytes a step; the mixing step is that of splitmix64 (Steele, Lea, Flood 2014).
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

/// How a version is held: a whole and the deltas since.
#[derive(Clone, Debug)]
pub(crate) struct Chain {
    /// The version of the whole.
    pub base: Version,
    /// The whole.
    pub whole: Payload,
    /// The deltas that make of it the versions `base.n + 1`, `base.n + 2`, and so on.
    pub deltas: Vec<Payload>,
}

impl Chain {
    /// Bytes of the deltas.
    pub fn delta_len(&self) -> usize {
        self.deltas.iter().map(|delta| delta.len).sum()
    }
}

/// One version.
pub(crate) struct Cell {
    ty: ObjectType,
    pub key: ObjectKey,
    pub version: Version,
    chain: Chain,
    /// The chain folded into a whole of this very version.
    folded: OnceLock<Payload>,
    value: OnceLock<Result<Value, CodecError>>,
    /// The version before, whose value (if read and still there) saves decoding the whole.
    previous: Weak<Cell>,
}

impl Cell {
    pub fn whole(ty: ObjectType, key: ObjectKey, version: Version, whole: Payload) -> Self {
        Self {
            ty,
            key,
            version,
            chain: Chain { base: version, whole, deltas: Vec::new() },
            folded: OnceLock::new(),
            value: OnceLock::new(),
            previous: Weak::new(),
        }
    }

    /// The version after `previous`.
    pub fn next(previous: &Arc<Cell>, delta: Payload) -> Self {
        let mut chain = previous.chain();
        chain.deltas.push(delta);
        let version = Version { n: previous.version.n + 1, ..previous.version };
        Self {
            ty: previous.ty,
            key: previous.key.clone(),
            version,
            chain,
            folded: OnceLock::new(),
            value: OnceLock::new(),
            previous: Arc::downgrade(previous),
        }
    }

    /// With its value known already: the writer has it.
    pub fn with_value(self, value: Value) -> Self {
        let _ = self.value.set(Ok(value)); // a cell just made holds none
        self
    }

    /// The shortest chain that makes this version.
    pub fn chain(&self) -> Chain {
        match self.folded.get() {
            Some(whole) => Chain { base: self.version, whole: whole.clone(), deltas: Vec::new() },
            None => self.chain.clone(),
        }
    }

    /// The chain as it came, which reaches further back than a folded one.
    pub fn unfolded(&self) -> Chain {
        self.chain.clone()
    }

    /// Whether other bytes claim to be this version. A whole beside a delta proves nothing: encodings may differ.
    pub fn contradicts(&self, id: &PayloadId) -> bool {
        let mine = match (id.delta, self.chain.deltas.last()) {
            (true, Some(delta)) => delta,
            (false, None) => &self.chain.whole,
            _ => return false,
        };
        (mine.len as u64, mine.sum) != (id.len, id.sum)
    }

    /// Whether deltas have piled up so that they should be folded: `limit` of them, or `times` the bytes of the whole.
    pub fn is_long(&self, limit: usize, times: usize) -> bool {
        self.folded.get().is_none()
            && (self.chain.deltas.len() >= limit
                || self.chain.delta_len() > times * self.chain.whole.len.max(64 << 10))
    }

    /// The value, made now if nobody has asked before.
    pub fn value(&self) -> Result<Value, CodecError> {
        self.value.get_or_init(|| self.make()).clone()
    }

    /// Encodes the value, so that later versions and fetches need no deltas before it. An object that cannot be encoded
    /// keeps its chain.
    pub fn fold(&self, segment: usize) {
        if self.chain.deltas.is_empty() || self.folded.get().is_some() {
            return;
        }
        if let Ok(value) = self.value()
            && let Ok(bytes) = (self.ty.encode)(&*value)
        {
            let _ = self.folded.set(Payload::cut(bytes, segment)); // another thread may have been first: same bytes
        }
    }

    fn make(&self) -> Result<Value, CodecError> {
        let Shape::Versioned(apply) = self.ty.shape else {
            unreachable!("cells are made of versioned objects only")
        };
        if let Some(last) = self.chain.deltas.last()
            && let Some(previous) = self.previous.upgrade()
            && let Some(Ok(value)) = previous.value.get()
        {
            return apply(&**value, &last.joined());
        }
        let mut value = (self.ty.decode)(&self.chain.whole.joined())?;
        for delta in &self.chain.deltas {
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

/// Keeps versions present: while it lives, each version it names can be read on this node.
#[derive(Clone, Debug, Default)]
pub struct Held(pub(crate) Vec<Arc<Cell>>);

impl Held {
    /// Whether this version is among those kept.
    pub fn has(&self, need: &Need) -> bool {
        self.find(&need.key.name, need.key.part, need.version).is_some()
    }

    /// Reads a version that is kept, without the store's lock. `None` where it is not among them, `V` is not its type,
    /// or it does not decode ([`Shared::try_get`](super::Shared::try_get) says why).
    pub fn get<V: Versioned>(&self, part: u32, version: Version) -> Option<Arc<V>> {
        self.find(V::NAME, part, version)?.value().ok()?.downcast().ok()
    }

    fn find(&self, name: &str, part: u32, version: Version) -> Option<&Arc<Cell>> {
        self.0
            .iter()
            .find(|cell| cell.version == version && cell.key.part == part && cell.key.name == name)
    }
}
