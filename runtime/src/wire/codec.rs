//! The one gate between bytes from outside and values, and its inverse.
//!
//! Must not know streams or peers. Whoever reads bytes that came over the network reads them here: the gate holds the
//! kind's cap, a nesting depth of [`DEPTH_MAX`], and refuses trailing bytes.

use bytes::Bytes;
use rmp_serde::decode::{Deserializer, Error as DecodeError};
use rmp_serde::encode::{Error as EncodeError, Serializer};
use serde::{Deserialize as _, Serialize, de::DeserializeOwned};

use super::kind::{DATA_MAX, Encoding, Kind};

/// Deepest nesting of arrays and maps that is decoded. rmp-serde's own default of 1024 overflows the 2 MiB stack of a
/// thread in a debug build; 64 has an order of magnitude to spare.
pub const DEPTH_MAX: usize = 64;

/// Why bytes could not become a value, or a value bytes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// Longer than its kind may be. Split it, or send it as parts.
    #[error("a {what} of {len} bytes is over the cap of {cap} bytes")]
    TooLong {
        /// The kind's name, or `payload` for users' values.
        what: String,
        /// Its length in bytes.
        len: usize,
        /// The cap in bytes.
        cap: usize,
    },
    /// Arrays and maps nested deeper than [`DEPTH_MAX`].
    #[error("a {what} is nested deeper than {DEPTH_MAX} levels")]
    TooDeep {
        /// The kind's name, or `payload`.
        what: String,
    },
    /// A whole value, and then more bytes.
    #[error("a {what} has more bytes after its end")]
    Trailing {
        /// The kind's name, or `payload`.
        what: String,
    },
    /// The bytes end before the value does.
    #[error("a {what} ends early")]
    Truncated {
        /// The kind's name, or `payload`.
        what: String,
    },
    /// The bytes are not a value of the type that was asked for.
    #[error("a {what} cannot be decoded: {reason}")]
    Malformed {
        /// The kind's name, or `payload`.
        what: String,
        /// What the decoder says.
        reason: String,
    },
    /// The value cannot be written down: its `Serialize` fails.
    #[error("a {what} cannot be encoded: {reason}")]
    Unencodable {
        /// The kind's name, or `payload`.
        what: String,
        /// What the encoder says.
        reason: String,
    },
    /// The kind is not in the table.
    #[error("message kind {} is not in the table", .0.0)]
    UnknownKind(Kind),
}

/// Encodes a message as its kind's table entry says.
///
/// # Errors
/// `TooLong`, `Unencodable`, `UnknownKind`.
pub fn encode<T: Serialize + ?Sized>(kind: Kind, value: &T) -> Result<Bytes, WireError> {
    let mut buffer = Vec::with_capacity(128);
    encode_into(&mut buffer, kind, value)?;
    Ok(buffer.into())
}

/// As [`encode`], appended to a buffer that the caller uses again and again. On an error the buffer is as before.
///
/// # Errors
/// As [`encode`].
pub fn encode_into<T: Serialize + ?Sized>(
    buffer: &mut Vec<u8>,
    kind: Kind,
    value: &T,
) -> Result<(), WireError> {
    let info = kind.info().ok_or(WireError::UnknownKind(kind))?;
    append(buffer, info.name, info.cap, |out| match info.encoding {
        Encoding::Named => value.serialize(&mut Serializer::new(out).with_struct_map()),
        Encoding::Compact => value.serialize(&mut Serializer::new(out)),
    })
}

/// Encodes a user's value (a task, a result, an argument, an object) for use inside a message. Compact: both sides run
/// the same program, or the value's type keeps its fields' order.
///
/// # Errors
/// `TooLong` over [`DATA_MAX`], `Unencodable`.
pub fn encode_payload<T: Serialize + ?Sized>(value: &T) -> Result<Bytes, WireError> {
    let mut buffer = Vec::with_capacity(128);
    encode_payload_into(&mut buffer, value)?;
    Ok(buffer.into())
}

/// As [`encode_payload`], appended to a buffer. On an error the buffer is as before.
///
/// # Errors
/// As [`encode_payload`].
pub fn encode_payload_into<T: Serialize + ?Sized>(
    buffer: &mut Vec<u8>,
    value: &T,
) -> Result<(), WireError> {
    append(buffer, PAYLOAD, DATA_MAX, |out| value.serialize(&mut Serializer::new(out)))
}

/// Decodes a message: THE gate for all that comes from outside.
///
/// # Errors
/// `TooLong`, `TooDeep`, `Trailing`, `Truncated`, `Malformed`, `UnknownKind`.
pub fn decode<T: DeserializeOwned>(kind: Kind, bytes: &[u8]) -> Result<T, WireError> {
    let info = kind.info().ok_or(WireError::UnknownKind(kind))?;
    gate(info.name, info.cap, bytes)
}

/// Decodes a user's value from inside a message, through the same gate.
///
/// # Errors
/// As [`decode`], without `UnknownKind`.
pub fn decode_payload<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, WireError> {
    gate(PAYLOAD, DATA_MAX, bytes)
}

const PAYLOAD: &str = "payload";

fn append(
    buffer: &mut Vec<u8>,
    what: &str,
    cap: usize,
    write: impl FnOnce(&mut Vec<u8>) -> Result<(), EncodeError>,
) -> Result<(), WireError> {
    let start = buffer.len();
    let written = write(buffer);
    let len = buffer.len() - start;
    let failed = match written {
        Ok(()) if len <= cap => return Ok(()),
        Ok(()) => WireError::TooLong { what: what.into(), len, cap },
        Err(error) => WireError::Unencodable { what: what.into(), reason: error.to_string() },
    };
    buffer.truncate(start);
    Err(failed)
}

fn gate<T: DeserializeOwned>(what: &str, cap: usize, bytes: &[u8]) -> Result<T, WireError> {
    if bytes.len() > cap {
        return Err(WireError::TooLong { what: what.into(), len: bytes.len(), cap });
    }
    let mut decoder = Deserializer::from_read_ref(bytes);
    decoder.set_max_depth(DEPTH_MAX + 1); // the decoder refuses when its count reaches zero
    let value = T::deserialize(&mut decoder).map_err(|error| refused(what, error))?;
    // The decoder does not tell what is left. It fails to read one more marker only when nothing is: a unit reads its
    // marker and nothing below it.
    match <()>::deserialize(&mut decoder) {
        Err(DecodeError::InvalidMarkerRead(_)) => Ok(value),
        _ => Err(WireError::Trailing { what: what.into() }),
    }
}

fn refused(what: &str, error: DecodeError) -> WireError {
    let what = what.into();
    match error {
        DecodeError::DepthLimitExceeded => WireError::TooDeep { what },
        DecodeError::InvalidMarkerRead(_) | DecodeError::InvalidDataRead(_) => {
            WireError::Truncated { what }
        }
        other => WireError::Malformed { what, reason: other.to_string() },
    }
}
