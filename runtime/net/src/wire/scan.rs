//! Validates MessagePack bytes without building a value: one complete value, nested no deeper than
//! allowed.
//!
//! This module does not know types. Decoding is recursive, so that a frame of a few kilobytes could
//! overflow the stack, which cannot be caught. Format: the MessagePack specification of 2013.

use super::codec::DEPTH_MAX;

/// A defect of the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FrameDefect {
    /// Arrays and maps nested deeper than [`DEPTH_MAX`].
    TooDeep,
    /// The bytes end before the value does.
    Truncated,
    /// A complete value, followed by this number of bytes.
    Trailing(usize),
    /// A byte that starts no value.
    Reserved,
}

/// Checks each marker once, without recursion and without allocation.
pub(super) fn scan(bytes: &[u8]) -> Result<(), FrameDefect> {
    // Number of missing values in each open array or map. A map counts keys and values.
    let mut open = [0u64; DEPTH_MAX];
    let mut depth = 0;
    let mut position = 0;
    loop {
        let marker = *bytes.get(position).ok_or(FrameDefect::Truncated)?;
        position += 1;
        let mut children = 0;
        let skip = match marker {
            0x00..=0x7f | 0xe0..=0xff | 0xc0 | 0xc2 | 0xc3 => 0,
            0x80..=0x8f => {
                children = 2 * u64::from(marker & 0x0f);
                0
            }
            0x90..=0x9f => {
                children = u64::from(marker & 0x0f);
                0
            }
            0xa0..=0xbf => usize::from(marker & 0x1f),
            0xc1 => return Err(FrameDefect::Reserved),
            0xc4 | 0xd9 => length(bytes, &mut position, 1)?,
            0xc5 | 0xda => length(bytes, &mut position, 2)?,
            0xc6 | 0xdb => length(bytes, &mut position, 4)?,
            0xc7 => length(bytes, &mut position, 1)? + 1,
            0xc8 => length(bytes, &mut position, 2)? + 1,
            0xc9 => length(bytes, &mut position, 4)? + 1,
            0xcc | 0xd0 => 1,
            0xcd | 0xd1 => 2,
            0xca | 0xce | 0xd2 => 4,
            0xcb | 0xcf | 0xd3 => 8,
            0xd4..=0xd8 => 1 + (1 << (marker - 0xd4)),
            0xdc | 0xdd => {
                children = length(bytes, &mut position, if marker == 0xdc { 2 } else { 4 })? as u64;
                0
            }
            0xde | 0xdf => {
                children =
                    2 * length(bytes, &mut position, if marker == 0xde { 2 } else { 4 })? as u64;
                0
            }
        };
        if skip > bytes.len() - position {
            return Err(FrameDefect::Truncated);
        }
        position += skip;
        if matches!(marker, 0x80..=0x9f | 0xdc..=0xdf) {
            *open.get_mut(depth).ok_or(FrameDefect::TooDeep)? = children;
            depth += 1;
        } else if depth > 0 {
            open[depth - 1] -= 1;
        }
        // A complete array or map closes, and counts as one value of its parent.
        while depth > 0 && open[depth - 1] == 0 {
            depth -= 1;
            if depth > 0 {
                open[depth - 1] -= 1;
            }
        }
        if depth == 0 {
            return if position == bytes.len() {
                Ok(())
            } else {
                Err(FrameDefect::Trailing(bytes.len() - position))
            };
        }
    }
}

fn length(bytes: &[u8], position: &mut usize, width: usize) -> Result<usize, FrameDefect> {
    let digits = bytes.get(*position..*position + width).ok_or(FrameDefect::Truncated)?;
    *position += width;
    Ok(digits.iter().fold(0, |n, digit| n << 8 | usize::from(*digit)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn markers_have_the_length_that_the_encoder_writes() {
        use rmp_serde::to_vec;
        let values = [
            serde_json::json!(null),
            serde_json::json!([true, false, 1, -1, 127, 128, 255, 256, 65535, 65536, 1u64 << 40]),
            serde_json::json!([-32, -33, -128, -129, -32769, -(1i64 << 40), 1.5]),
            serde_json::json!([
                "",
                "a".repeat(31),
                "a".repeat(32),
                "a".repeat(256),
                "a".repeat(70000)
            ]),
            serde_json::json!(vec![0; 15]),
            serde_json::json!(vec![0; 16]),
            serde_json::json!(vec![vec![1; 3]; 70000]),
            serde_json::json!({"a": {"b": [], "c": {}}, "d": [[[1]]]}),
        ];
        for value in values {
            let bytes = to_vec(&value).unwrap();
            assert_eq!(scan(&bytes), Ok(()));
            assert_eq!(scan(&bytes[..bytes.len() - 1]), Err(FrameDefect::Truncated));
            assert_eq!(scan(&[&bytes[..], &[0xc0]].concat()), Err(FrameDefect::Trailing(1)));
        }
        for len in [0, 1, 255, 256, 65535, 65536] {
            let bytes = to_vec(serde_bytes::Bytes::new(&vec![7; len])).unwrap();
            assert_eq!(scan(&bytes), Ok(()), "{len}");
        }
        assert_eq!(scan(&[0xca, 0, 0, 0, 0]), Ok(()));
        for (marker, len) in [(0xd4, 1), (0xd5, 2), (0xd6, 4), (0xd7, 8), (0xd8, 16)] {
            assert_eq!(scan(&[vec![marker], vec![0; len + 1]].concat()), Ok(()));
            assert_eq!(scan(&[vec![marker], vec![0; len]].concat()), Err(FrameDefect::Truncated));
        }
        assert_eq!(scan(&[0xc7, 2, 9, 1, 1]), Ok(()));
        assert_eq!(scan(&[0xc8, 0, 2, 9, 1, 1]), Ok(()));
        assert_eq!(scan(&[0xc9, 0, 0, 0, 2, 9, 1, 1]), Ok(()));
        assert_eq!(scan(&[0xc1]), Err(FrameDefect::Reserved));
        assert_eq!(scan(&[]), Err(FrameDefect::Truncated));
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = scan(&bytes);
        }
    }
}
