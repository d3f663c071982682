//! The traits that users implement for shared objects, and the registry that maps names to codecs.
//!
//! It knows neither nodes nor locations of versions nor the network.

use std::any::{Any, TypeId};
use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use serde::{Serialize, de::DeserializeOwned};

use crate::guard::call_user_code;
use crate::wire::{self, WireError};

/// An object with one writer: every change creates a new version, which all nodes of the job get.
///
/// The contract: `apply` is a pure function of the value and the delta. So all nodes that apply the
/// same deltas to the same value hold equal values.
pub trait Versioned: Serialize + DeserializeOwned + Send + Sync + 'static {
    /// The registered name, unique among the shared objects of a program.
    const NAME: &'static str;

    /// A change from one version to the next, smaller on the wire than the whole value. Use `()` if
    /// there is none.
    type Delta: Serialize + DeserializeOwned + Send + 'static;

    /// Returns the next version.
    fn apply(&self, delta: Self::Delta) -> Self;
}

/// An object that any node may change: a bound, a maximum, a set that only grows. It has no
/// versions; all nodes converge to the merge of all values.
///
/// The contract: `merge` is commutative, associative and idempotent (min, max, union), and
/// `PartialEq` shows whether a merge changed the value. An encoded value has at most 4 MiB less a
/// kilobyte.
pub trait Merged: Serialize + DeserializeOwned + Clone + Send + Sync + PartialEq + 'static {
    /// The registered name, unique among the shared objects of a program.
    const NAME: &'static str;

    /// Merges `other` into this value.
    fn merge(&mut self, other: &Self);
}

/// A value of a registered type.
pub(crate) type ObjectValue = Arc<dyn Any + Send + Sync>;

/// The reason why a value could not be decoded, encoded, applied or merged.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CodecError {
    /// The bytes are not a value of the type.
    #[error("cannot decode a {what} of shared object {name}: {why}")]
    Decode {
        /// The object's name.
        name: &'static str,
        /// `value` or `delta`.
        what: &'static str,
        /// The error of the decoder.
        why: WireError,
    },
    /// The value cannot be encoded.
    #[error("cannot encode a {what} of shared object {name}: {why}")]
    Encode {
        /// The object's name.
        name: &'static str,
        /// `value` or `delta`.
        what: &'static str,
        /// The error of the encoder.
        why: WireError,
    },
    /// The user's `apply`, `merge`, serialise or deserialise panicked.
    #[error("the code of shared object {name} panicked: {why}")]
    Panicked {
        /// The object's name.
        name: &'static str,
        /// The panic's message.
        why: String,
    },
}

type Decode = fn(&[u8]) -> Result<ObjectValue, CodecError>;
type Encode = fn(&(dyn Any + Send + Sync)) -> Result<Bytes, CodecError>;
type Apply = fn(&(dyn Any + Send + Sync), &[u8]) -> Result<ObjectValue, CodecError>;
/// Returns `None` if the merge changes nothing.
type Merge = fn(
    &(dyn Any + Send + Sync),
    &(dyn Any + Send + Sync),
) -> Result<Option<ObjectValue>, CodecError>;

/// The kind of a registered object, with the operations of that kind.
#[derive(Clone, Copy)]
pub(crate) enum ObjectKind {
    Versioned(Apply),
    Merged(Merge),
}

/// A registered type with its type erased.
#[derive(Clone, Copy)]
pub(crate) struct ObjectType {
    pub name: &'static str,
    pub type_id: TypeId,
    pub decode: Decode,
    pub encode: Encode,
    pub shape: ObjectKind,
}

/// The shared object types of a program, by name.
#[derive(Clone, Default)]
pub struct ObjectTypes {
    types: BTreeMap<&'static str, ObjectType>,
}

impl ObjectTypes {
    /// Creates an empty registry of types.
    pub fn new() -> Self {
        Self::default()
    }

    /// Registers a versioned object's type. A repeated registration of the same type has no effect.
    ///
    /// # Panics
    /// If another type has the name, which is an error in the program.
    pub fn versioned<V: Versioned>(&mut self) -> &mut Self {
        self.add(ObjectType {
            name: V::NAME,
            type_id: TypeId::of::<V>(),
            decode: |bytes| guarded(V::NAME, || decode::<V>(V::NAME, "value", bytes)).map(erase),
            encode: |value| encode(V::NAME, "value", known::<V>(value)),
            shape: ObjectKind::Versioned(|value, delta| {
                let value = known::<V>(value);
                guarded(V::NAME, || Ok(value.apply(decode::<V::Delta>(V::NAME, "delta", delta)?)))
                    .map(erase)
            }),
        })
    }

    /// Registers a merged object's type. A repeated registration of the same type has no effect.
    ///
    /// # Panics
    /// If another type has the name, which is an error in the program.
    pub fn merged<M: Merged>(&mut self) -> &mut Self {
        self.add(ObjectType {
            name: M::NAME,
            type_id: TypeId::of::<M>(),
            decode: |bytes| guarded(M::NAME, || decode::<M>(M::NAME, "value", bytes)).map(erase),
            encode: |value| encode(M::NAME, "value", known::<M>(value)),
            shape: ObjectKind::Merged(|value, other| {
                let (old, other) = (known::<M>(value), known::<M>(other));
                guarded(M::NAME, || {
                    let mut new = old.clone();
                    new.merge(other);
                    Ok((new != *old).then_some(new))
                })
                .map(|changed| changed.map(erase))
            }),
        })
    }

    /// The registered names with `v` (versioned) or `m` (merged), in order, for a program's
    /// fingerprint.
    pub fn names(&self) -> impl Iterator<Item = (&'static str, char)> + '_ {
        self.types.values().map(|ty| {
            (ty.name, if matches!(ty.shape, ObjectKind::Versioned(_)) { 'v' } else { 'm' })
        })
    }

    pub(crate) fn into_vec(self) -> Vec<ObjectType> {
        self.types.into_values().collect()
    }

    fn add(&mut self, ty: ObjectType) -> &mut Self {
        let known = self.types.entry(ty.name).or_insert(ty);
        assert!(
            known.type_id == ty.type_id,
            "two types are registered as shared object {:?}: give one of them another NAME",
            ty.name
        );
        self
    }
}

fn erase<T: Any + Send + Sync>(value: T) -> ObjectValue {
    Arc::new(value)
}

/// Downcasts a value. The store keys values by the index of their registered type, so the type
/// always matches.
fn known<T: 'static>(value: &(dyn Any + Send + Sync)) -> &T {
    value.downcast_ref().expect("values are kept under their own registered type")
}

fn decode<T: DeserializeOwned>(
    name: &'static str,
    what: &'static str,
    bytes: &[u8],
) -> Result<T, CodecError> {
    wire::decode_payload(bytes).map_err(|why| CodecError::Decode { name, what, why })
}

/// Encodes a user's value or delta.
pub(crate) fn encode<T: Serialize>(
    name: &'static str,
    what: &'static str,
    value: &T,
) -> Result<Bytes, CodecError> {
    guarded(name, || {
        wire::encode_payload(value).map_err(|why| CodecError::Encode { name, what, why })
    })
}

/// Runs the user's code and catches its panic. On the endpoint's thread a panic would end the node.
pub(crate) fn guarded<T>(
    name: &'static str,
    code: impl FnOnce() -> Result<T, CodecError>,
) -> Result<T, CodecError> {
    call_user_code(code).unwrap_or_else(|why| Err(CodecError::Panicked { name, why }))
}
