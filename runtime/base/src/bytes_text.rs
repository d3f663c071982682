//! Bytes as text, and optional bytes in records and messages, for `#[serde(with = "...")]`.
//!
//! Binary formats have them as they are. Formats that people read have them as Base64 (RFC 4648),
//! a third of the length of a list of numbers.

use std::fmt;

use serde::de::{Error, SeqAccess, Visitor};
use serde::{Deserializer, Serializer};

const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Base64 (RFC 4648) of these bytes, with padding.
pub fn to_base64(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let byte = |at: usize| u32::from(group.get(at).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for digit in 0..4 {
            let is_padding = digit > group.len();
            let value = (bits >> (18 - 6 * digit)) as usize & 63;
            text.push(if is_padding { '=' } else { char::from(DIGITS[value]) });
        }
    }
    text
}

/// The bytes of a text in Base64; none if it is something else.
fn from_base64(text: &str) -> Option<Vec<u8>> {
    /// The value of each digit; 64: no digit.
    const VALUES: [u8; 256] = {
        let mut values = [64; 256];
        let mut at = 0;
        while at < 64 {
            values[DIGITS[at] as usize] = at as u8;
            at += 1;
        }
        values
    };
    let digits = text.trim_end_matches('=').as_bytes();
    let padding = text.len() - digits.len();
    if !text.len().is_multiple_of(4) || padding > 2 {
        return None;
    }
    let mut bytes = Vec::with_capacity(digits.len() * 3 / 4);
    for group in digits.chunks(4) {
        let mut bits = 0_u32;
        for digit in group {
            let value = VALUES[usize::from(*digit)];
            if value == 64 {
                return None;
            }
            bits = bits << 6 | u32::from(value);
        }
        bits <<= 6 * (4 - group.len());
        bytes.extend(&bits.to_be_bytes()[1..group.len()]);
    }
    Some(bytes)
}

/// Writes the bytes.
///
/// # Errors
/// The serializer's.
pub fn serialize<S: Serializer>(bytes: &Option<Vec<u8>>, to: S) -> Result<S::Ok, S::Error> {
    match bytes {
        None => to.serialize_none(),
        Some(bytes) if to.is_human_readable() => to.serialize_some(&to_base64(bytes)),
        Some(bytes) => to.serialize_bytes(bytes),
    }
}

/// Reads the bytes, also from a list of numbers.
///
/// # Errors
/// The deserializer's; or the text is not in Base64.
pub fn deserialize<'a, D: Deserializer<'a>>(from: D) -> Result<Option<Vec<u8>>, D::Error> {
    struct BytesVisitor;
    impl<'a> Visitor<'a> for BytesVisitor {
        type Value = Option<Vec<u8>>;

        fn expecting(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
            to.write_str("bytes, or a text in Base64")
        }

        fn visit_none<E: Error>(self) -> Result<Self::Value, E> {
            Ok(None)
        }

        fn visit_unit<E: Error>(self) -> Result<Self::Value, E> {
            Ok(None)
        }

        fn visit_bytes<E: Error>(self, bytes: &[u8]) -> Result<Self::Value, E> {
            Ok(Some(bytes.to_vec()))
        }

        fn visit_byte_buf<E: Error>(self, bytes: Vec<u8>) -> Result<Self::Value, E> {
            Ok(Some(bytes))
        }

        fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
            from_base64(text).map(Some).ok_or_else(|| E::custom("the text is not in Base64"))
        }

        fn visit_seq<A: SeqAccess<'a>>(self, mut list: A) -> Result<Self::Value, A::Error> {
            let mut bytes = Vec::new();
            while let Some(byte) = list.next_element()? {
                bytes.push(byte);
            }
            Ok(Some(bytes))
        }
    }
    from.deserialize_any(BytesVisitor)
}

#[cfg(test)]
mod tests {
    use serde::{Deserialize, Serialize};

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Holder(#[serde(with = "super")] Option<Vec<u8>>);

    /// The vectors of RFC 4648.
    #[test]
    fn text_is_base64() {
        for (bytes, text) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("fooba", "Zm9vYmE="),
            ("foobar", "Zm9vYmFy"),
        ] {
            let holder = Holder(Some(bytes.as_bytes().to_vec()));
            let json = serde_json::to_string(&holder).unwrap();
            assert_eq!(json, format!("\"{text}\""));
            assert_eq!(serde_json::from_str::<Holder>(&json).unwrap(), holder);
        }
        let all = Holder(Some((0..=255).collect()));
        let json = serde_json::to_string(&all).unwrap();
        assert_eq!(serde_json::from_str::<Holder>(&json).unwrap(), all);
        assert_eq!(serde_json::from_str::<Holder>("null").unwrap(), Holder(None));
        assert_eq!(serde_json::from_str::<Holder>("[1, 2]").unwrap(), Holder(Some(vec![1, 2])));
        for wrong in ["\"Zg=\"", "\"Zg\"", "\"Z===\"", "\"Zm9-\"", "3"] {
            serde_json::from_str::<Holder>(wrong).unwrap_err();
        }
    }
}
