//! The only decoder of bytes from outside, and the encoder that matches it.
//!
//! All code that reads bytes from the network decodes them here. The decoder enforces the size cap
//! of the kind and a nesting depth of [`DEPTH_MAX`], and refuses trailing bytes. This module knows
//! neither streams nor peers.

use bytes::Bytes;
use rmp_serde::encode::{Error as EncodeError, Serializer};
use serde::{Deserialize, Serialize};

use super::kind::{DATA_MAX, Encoding, Kind};
use super::reader::{ReadError, Reader};
use super::scan::{FrameDefect, scan};

/// Greatest nesting depth of arrays and maps that is decoded.
///
/// Decoding is recursive, and a depth of 1024 overflows the 2 MiB stack of a thread in a debug
/// build. A depth of 64 leaves a margin of an order of magnitude.
pub const DEPTH_MAX: usize = 64;

/// The reason why bytes do not decode to a value, or a value does not encode.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// The payload is longer than the cap of its kind. Split it, or send it in parts.
    #[error("a {what} of {len} bytes is over the cap of {cap} bytes")]
    TooLong {
        /// The name of the kind, or `payload` for users' values.
        what: String,
        /// Length of the payload in bytes.
        len: usize,
        /// The cap in bytes.
        cap: usize,
    },
    /// Arrays and maps nested deeper than [`DEPTH_MAX`].
    #[error("a {what} is nested deeper than {DEPTH_MAX} levels")]
    TooDeep {
        /// The name of the kind, or `payload`.
        what: String,
    },
    /// Bytes follow a complete value.
    #[error("a {what} has {extra} bytes after its end")]
    Trailing {
        /// The name of the kind, or `payload`.
        what: String,
        /// Number of bytes after the value.
        extra: usize,
    },
    /// The bytes end before the value does.
    #[error("a {what} ends early")]
    Truncated {
        /// The name of the kind, or `payload`.
        what: String,
    },
    /// The bytes are not a value of the requested type.
    #[error("a {what} cannot be decoded: {reason}")]
    Malformed {
        /// The name of the kind, or `payload`.
        what: String,
        /// The error of the decoder.
        reason: String,
    },
    /// The value cannot be encoded: its `Serialize` fails.
    #[error("a {what} cannot be encoded: {reason}")]
    Unencodable {
        /// The name of the kind, or `payload`.
        what: String,
        /// The error of the encoder.
        reason: String,
    },
    /// The kind is not in the table.
    #[error("message kind {} is not in the table", .0.0)]
    UnknownKind(Kind),
}

/// Encodes a message in the encoding of its kind.
///
/// # Errors
/// `TooLong`, `Unencodable`, `UnknownKind`.
pub fn encode<T: Serialize + ?Sized>(kind: Kind, value: &T) -> Result<Bytes, WireError> {
    let mut buffer = Vec::with_capacity(128);
    encode_into(&mut buffer, kind, value)?;
    Ok(buffer.into())
}

/// Encodes a message as [`encode`] does, and appends it to a buffer that the caller reuses. After
/// an error the buffer is unchanged.
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

/// Encodes a user's value (a task, a result, an argument, an object) for use inside a message.
///
/// The encoding is compact: both sides run the same program, or the type keeps the order of its
/// fields.
///
/// # Errors
/// `TooLong` over [`DATA_MAX`], `Unencodable`.
pub fn encode_payload<T: Serialize + ?Sized>(value: &T) -> Result<Bytes, WireError> {
    let mut buffer = Vec::with_capacity(128);
    encode_payload_into(&mut buffer, value)?;
    Ok(buffer.into())
}

/// Encodes a value as [`encode_payload`] does, and appends it to a buffer. After an error the
/// buffer is unchanged.
///
/// # Errors
/// As [`encode_payload`].
pub fn encode_payload_into<T: Serialize + ?Sized>(
    buffer: &mut Vec<u8>,
    value: &T,
) -> Result<(), WireError> {
    append(buffer, PAYLOAD, DATA_MAX, |out| value.serialize(&mut Serializer::new(out)))
}

/// Appends a user's value to a buffer as maps with field names, for programs in other languages.
/// [`decode_payload`] decodes it. After an error the buffer is unchanged.
///
/// # Errors
/// As [`encode_payload`].
pub fn encode_named_into<T: Serialize + ?Sized>(
    buffer: &mut Vec<u8>,
    value: &T,
) -> Result<(), WireError> {
    append(buffer, PAYLOAD, DATA_MAX, |out| {
        value.serialize(&mut Serializer::new(out).with_struct_map())
    })
}

/// Decodes a message. All bytes from outside pass through this function or [`decode_payload`].
///
/// # Errors
/// `TooLong`, `TooDeep`, `Trailing`, `Truncated`, `Malformed`, `UnknownKind`.
pub fn decode<'a, T: Deserialize<'a>>(kind: Kind, bytes: &'a [u8]) -> Result<T, WireError> {
    let info = kind.info().ok_or(WireError::UnknownKind(kind))?;
    decode_checked(info.name, info.cap, bytes)
}

/// Decodes a user's value from inside a message, with the same checks as [`decode`].
///
/// # Errors
/// As [`decode`], without `UnknownKind`.
pub fn decode_payload<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, WireError> {
    decode_checked(PAYLOAD, DATA_MAX, bytes)
}

/// Decodes a value that this host has stored, of any length, with the other checks of [`decode`].
///
/// # Errors
/// As [`decode`], without `UnknownKind` and `TooLong`.
pub fn decode_stored<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, WireError> {
    decode_checked("stored value", usize::MAX, bytes)
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
    check_written(buffer, start, what, cap, written)
}

/// Checks what was appended to a buffer, and takes it back if it is not valid.
fn check_written(
    buffer: &mut Vec<u8>,
    start: usize,
    what: &str,
    cap: usize,
    written: Result<(), EncodeError>,
) -> Result<(), WireError> {
    let len = buffer.len() - start;
    let failed = match written {
        Ok(()) if len <= cap => return Ok(()),
        Ok(()) => WireError::TooLong { what: what.into(), len, cap },
        Err(error) => WireError::Unencodable { what: what.into(), reason: error.to_string() },
    };
    buffer.truncate(start);
    Err(failed)
}

fn decode_checked<'a, T: Deserialize<'a>>(
    what: &str,
    cap: usize,
    bytes: &'a [u8],
) -> Result<T, WireError> {
    check(what, cap, bytes)?;
    T::deserialize(&mut Reader::new(bytes)).map_err(|error| decode_error(what, error))
}

/// Checks a payload before it is decoded.
fn check(what: &str, cap: usize, bytes: &[u8]) -> Result<(), WireError> {
    if bytes.len() > cap {
        return Err(WireError::TooLong { what: what.into(), len: bytes.len(), cap });
    }
    scan(bytes).map_err(|fault| scan_error(what, fault))
}

fn scan_error(what: &str, fault: FrameDefect) -> WireError {
    let what = what.into();
    match fault {
        FrameDefect::TooDeep => WireError::TooDeep { what },
        FrameDefect::Truncated => WireError::Truncated { what },
        FrameDefect::Trailing(extra) => WireError::Trailing { what, extra },
        FrameDefect::Reserved => {
            WireError::Malformed { what, reason: "a byte that starts no MessagePack value".into() }
        }
    }
}

fn decode_error(what: &str, error: ReadError) -> WireError {
    let what = what.into();
    match error {
        ReadError::Truncated => WireError::Truncated { what },
        ReadError::Other(reason) => WireError::Malformed { what, reason },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
    struct CodecSample {
        name: String,
        #[serde(with = "serde_bytes")]
        data: Vec<u8>,
        maybe: Option<u32>,
        tree: Tree,
    }

    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
    enum Tree {
        Leaf(f64),
        Not(Box<Tree>),
        Both { left: Box<Tree>, right: Box<Tree> },
        Many(Vec<Tree>),
        None,
    }

    fn tree() -> impl Strategy<Value = Tree> {
        let leaf = prop_oneof![Just(Tree::None), (-1e9..1e9).prop_map(Tree::Leaf)];
        leaf.prop_recursive(6, 40, 4, |child| {
            prop_oneof![
                child.clone().prop_map(|t| Tree::Not(Box::new(t))),
                (child.clone(), child.clone())
                    .prop_map(|(l, r)| Tree::Both { left: Box::new(l), right: Box::new(r) }),
                prop::collection::vec(child, 0..4).prop_map(Tree::Many),
            ]
        })
    }

    fn sample() -> impl Strategy<Value = CodecSample> {
        (".*", prop::collection::vec(any::<u8>(), 0..300), any::<Option<u32>>(), tree())
            .prop_map(|(name, data, maybe, tree)| CodecSample { name, data, maybe, tree })
    }

    proptest! {
        #[test]
        fn values_survive_encoding_and_decoding(value in sample()) {
            for kind in [Kind::HELLO, Kind::CALL, Kind::STEAL_REPLY] {
                let bytes = encode(kind, &value).unwrap();
                prop_assert_eq!(&decode::<CodecSample>(kind, &bytes).unwrap(), &value);
            }
            let bytes = encode_payload(&value).unwrap();
            prop_assert_eq!(&decode_payload::<CodecSample>(&bytes).unwrap(), &value);
        }

        #[test]
        fn truncated_or_extended_messages_are_refused(
            value in sample(),
            cut: prop::sample::Index,
            more in prop::collection::vec(any::<u8>(), 1..20),
        ) {
            for kind in [Kind::CALL, Kind::STEAL_REPLY] {
                let bytes = encode(kind, &value).unwrap();
                let short = &bytes[..cut.index(bytes.len())];
                let refused =
                    matches!(decode::<CodecSample>(kind, short), Err(WireError::Truncated { .. }));
                prop_assert!(refused);
                let long = [&bytes[..], &more].concat();
                let refused =
                    matches!(decode::<CodecSample>(kind, &long), Err(WireError::Trailing { .. }));
                prop_assert!(refused);
            }
        }

        #[test]
        fn buffers_are_appended_to_and_restored(
            value in sample(),
            before in prop::collection::vec(any::<u8>(), 0..9),
        ) {
            let mut buffer = before.clone();
            encode_into(&mut buffer, Kind::CALL, &value).unwrap();
            prop_assert_eq!(&buffer[..before.len()], &before[..]);
            prop_assert_eq!(&buffer[before.len()..], &encode(Kind::CALL, &value).unwrap()[..]);
            buffer.truncate(before.len());
            prop_assert!(encode_into(&mut buffer, Kind(999), &value).is_err());
            let cap = Kind::HELLO.info().unwrap().cap;
            let too_long = encode_into(&mut buffer, Kind::HELLO, &vec![0u8; cap + 1]);
            prop_assert!(matches!(too_long, Err(WireError::TooLong { .. })), "{:?}", too_long);
            prop_assert_eq!(&buffer, &before);
        }
    }

    #[test]
    fn the_cap_is_checked_before_decoding() {
        let info = Kind::HELLO.info().unwrap();
        let junk = vec![0xc1; info.cap + 1];
        let error = decode::<CodecSample>(Kind::HELLO, &junk).unwrap_err();
        let expected =
            WireError::TooLong { what: "hello".into(), len: info.cap + 1, cap: info.cap };
        assert_eq!(error, expected);
    }

    /// Nests each container at the allowed depth, one level deeper, and as deep as a frame allows.
    /// Debug builds run this on the 2 MiB stack of a test thread.
    #[test]
    fn nesting_is_bounded() {
        #[derive(Debug, PartialEq, Serialize, Deserialize)]
        struct Nest(Vec<Nest>);

        let nests = |levels: usize| {
            let mut bytes = vec![0x91; levels - 1];
            bytes.push(0x90);
            bytes
        };
        assert!(decode_payload::<Nest>(&nests(DEPTH_MAX)).is_ok());
        let too_deep = Err(WireError::TooDeep { what: "payload".into() });
        assert_eq!(decode_payload::<Nest>(&nests(DEPTH_MAX + 1)), too_deep);
        assert_eq!(decode_payload::<Nest>(&nests(1 << 20)), too_deep);

        let shapes: [&[u8]; 3] = [b"\x81\xa3Not", b"\x81\xa4Many\x91", b"\x81\xa4Both\x92"];
        for shape in shapes {
            let bomb = shape.repeat(100_000);
            let refused = decode_payload::<Tree>(&bomb).unwrap_err();
            assert_eq!(refused, WireError::TooDeep { what: "payload".into() }, "{shape:?}");
        }
        for marker in [0x91, 0x81, 0xd4, 0xc7] {
            let refused = decode_payload::<serde_json::Value>(&vec![marker; 1 << 20]);
            assert!(refused.is_err(), "{marker:#x}");
        }
    }

    #[test]
    fn announced_lengths_are_not_trusted() {
        for marker in [0xdb, 0xc6, 0xdd, 0xdf] {
            let bomb = [marker, 0xff, 0xff, 0xff, 0xff, 1, 2, 3];
            assert!(decode_payload::<Vec<u64>>(&bomb).is_err());
            assert!(decode_payload::<serde_bytes::ByteBuf>(&bomb).is_err());
            assert!(decode_payload::<serde_json::Value>(&bomb).is_err());
        }
    }

    #[test]
    fn named_messages_ignore_unknown_fields() {
        #[derive(Serialize)]
        struct New {
            a: u32,
            later: &'static str,
        }
        #[derive(Debug, PartialEq, Deserialize)]
        struct Old {
            a: u32,
        }
        let bytes = encode(Kind::CALL, &New { a: 7, later: "x" }).unwrap();
        assert_eq!(decode::<Old>(Kind::CALL, &bytes), Ok(Old { a: 7 }));
        let bytes = encode(Kind::STEAL_REPLY, &New { a: 7, later: "x" }).unwrap();
        assert!(matches!(
            decode::<Old>(Kind::STEAL_REPLY, &bytes),
            Err(WireError::Malformed { .. })
        ));
    }
}
