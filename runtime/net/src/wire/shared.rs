//! Decoding of long byte strings as views of the message, without a copy.

use std::cell::RefCell;
use std::fmt;

use bytes::Bytes;
use serde::de::{DeserializeOwned, Deserializer, Error, Visitor};

use super::codec::{WireError, decode};
use super::kind::Kind;

/// The length in bytes of the shortest byte string that becomes a view.
const VIEW_MIN: usize = 16 << 10;

thread_local! {
    /// The message that this thread decodes, for [`shared_bytes`]: serde passes slices alone.
    static MESSAGE: RefCell<Option<Bytes>> = const { RefCell::new(None) };
}

/// Takes the message away at the end of its decoding, also if a type's code panics.
struct MessageGuard;

impl Drop for MessageGuard {
    fn drop(&mut self) {
        MESSAGE.take();
    }
}

/// Decodes a message as [`decode`] does. Fields with [`shared_bytes`] become views of it.
///
/// # Errors
/// As [`decode`].
pub fn decode_shared<T: DeserializeOwned>(kind: Kind, message: &Bytes) -> Result<T, WireError> {
    MESSAGE.set(Some(message.clone()));
    let _guard = MessageGuard;
    decode(kind, message)
}

/// Deserializes a byte string, for `#[serde(deserialize_with)]`. If it is long, and most of the
/// message that [`decode_shared`] decodes, it is a view of the message. Otherwise it is a copy,
/// since a short view would keep a long message in memory.
///
/// # Errors
/// If the value is no byte string.
pub fn shared_bytes<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Bytes, D::Error> {
    struct SharedVisitor;

    impl<'de> Visitor<'de> for SharedVisitor {
        type Value = Bytes;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a byte string")
        }

        fn visit_bytes<E: Error>(self, bytes: &[u8]) -> Result<Bytes, E> {
            Ok(Bytes::copy_from_slice(bytes))
        }

        fn visit_borrowed_bytes<E: Error>(self, bytes: &'de [u8]) -> Result<Bytes, E> {
            Ok(MESSAGE.with_borrow(|message| match message {
                Some(message) if is_most_of(bytes, message) => message.slice_ref(bytes),
                _ => Bytes::copy_from_slice(bytes),
            }))
        }
    }

    deserializer.deserialize_bytes(SharedVisitor)
}

/// Whether the bytes are a part of the message, at least half of it, and long: short messages that
/// arrive together may share one allocation.
fn is_most_of(bytes: &[u8], message: &Bytes) -> bool {
    let (part, all) = (bytes.as_ptr_range(), message.as_ptr_range());
    let is_part = all.start <= part.start && part.end <= all.end;
    is_part && bytes.len() >= (message.len() / 2).max(VIEW_MIN)
}

#[cfg(test)]
mod tests {
    use serde::{Deserialize, Serialize};

    use super::*;
    use crate::wire::encode;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Piece {
        number: u32,
        #[serde(deserialize_with = "shared_bytes")]
        long: Bytes,
        #[serde(deserialize_with = "shared_bytes")]
        short: Bytes,
    }

    #[test]
    fn a_long_byte_string_is_a_view_and_a_short_one_a_copy() {
        let piece = Piece {
            number: 7,
            long: vec![1; VIEW_MIN].into(),
            short: Bytes::from_static(b"short"),
        };
        let message = encode(Kind::STEAL_REPLY, &piece).unwrap();
        let is_view = |bytes: &Bytes| message.as_ptr_range().contains(&bytes.as_ptr());
        let shared: Piece = decode_shared(Kind::STEAL_REPLY, &message).unwrap();
        assert_eq!(shared, piece);
        assert_eq!((is_view(&shared.long), is_view(&shared.short)), (true, false));
        // Outside of `decode_shared`, there is no message to view.
        let copied: Piece = decode(Kind::STEAL_REPLY, &message).unwrap();
        assert_eq!(copied, piece);
        assert!(!is_view(&copied.long));
        assert!(decode_shared::<Piece>(Kind::STEAL_REPLY, &message.slice(..4000)).is_err());
        assert!(MESSAGE.take().is_none(), "kept after its decoding");
    }
}
