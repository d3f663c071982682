//! The bytes of a segment: one line per record, with a checksum each for the header and the body.
//!
//! ```text
//! h 0000000000000011 0000003c 5f1a90ee 01c4a7b2 springtide-records/1 {"store":"scheduler",...}
//! s 0000000000000001 0000002d ........ ........ scheduler-job/1 {"job":1,...}
//! r 0000000000000012 0000002d ........ ........ scheduler-epoch/1 {"job":2,...}
//! ```
//!
//! A line consists of five fields: its kind (header, snapshot or record), its number, the body's
//! length and checksum, and the checksum of all preceding fields. The body follows: schema, version
//! and a JSON value. Numbers are hexadecimal. No other spelling of a header is accepted. This
//! module does not know files.

use serde::{Deserialize, Serialize};

use super::checksum::crc32c;
use super::{Record, RecordSchema};

/// Length of a line's header in bytes.
const HEADER: usize = 2 + 17 + 9 + 9 + 9;
/// Length of the part of the header that its own checksum covers.
const SUMMED: usize = 2 + 17 + 9 + 9;
/// Longest body in bytes: longer values are blobs.
pub(super) const BODY_MAX: usize = 64 << 20;

/// Schema of a segment's header.
const SEGMENT: RecordSchema = RecordSchema { name: "springtide-records", version: 1 };

/// The first line of a segment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SegmentHeader {
    /// Name of the store.
    pub(super) store: String,
    /// Number of the segment, which also is its file name.
    pub(super) segment: u64,
    /// Number of the last record before the segment.
    pub(super) base: u64,
    /// Number of records of the snapshot, which replace those up to `base`.
    pub(super) snapshot: u64,
}

/// Kind of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SegmentKind {
    Header,
    Snapshot,
    Record,
}

impl SegmentKind {
    fn letter(self) -> char {
        match self {
            Self::Header => 'h',
            Self::Snapshot => 's',
            Self::Record => 'r',
        }
    }
}

/// A complete line.
#[derive(Debug)]
pub(super) struct SegmentLine {
    pub(super) kind: SegmentKind,
    pub(super) record: Record,
    /// Length of the line in bytes.
    pub(super) length: usize,
}

/// The reason why bytes are not a complete line.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Flaw {
    /// The line is cut off: by a crash during its write, or because another process is writing it.
    Torn,
    /// The line is damaged, with a description.
    Damaged(String),
}

/// Encodes a record as a line.
pub(super) fn encode(kind: SegmentKind, number: u64, schema: RecordSchema, json: &[u8]) -> Vec<u8> {
    let mut body = format!("{}/{} ", schema.name, schema.version).into_bytes();
    body.extend_from_slice(json);
    body.push(b'\n');
    let mut line = header(kind, number, body.len(), crc32c(&body)).into_bytes();
    line.append(&mut body);
    line
}

/// Encodes a segment's header as a line.
pub(super) fn encode_header(header: &SegmentHeader) -> Vec<u8> {
    let json = serde_json::to_vec(header).expect("a header is a name and numbers");
    encode(SegmentKind::Header, header.base, SEGMENT, &json)
}

fn header(kind: SegmentKind, number: u64, length: usize, crc: u32) -> String {
    let summed = format!("{} {number:016x} {length:08x} {crc:08x} ", kind.letter());
    let own = crc32c(summed.as_bytes());
    format!("{summed}{own:08x} ")
}

/// Decodes the line at the start of `bytes`, which extend to the end of the file.
pub(super) fn decode(bytes: &[u8]) -> Result<SegmentLine, Flaw> {
    // After a crash a file may have its new length but not its new bytes, which then are zero. No
    // line ends with a zero, and no flipped bit turns a line's last byte into zero.
    let written = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    let cut = written < bytes.len();
    if written < HEADER {
        return Err(Flaw::Torn);
    }
    let (kind, number, length, crc) = decode_header(&bytes[..HEADER])?;
    if length > BODY_MAX {
        return Err(Flaw::Damaged(format!("its length of {length} bytes is not possible")));
    }
    let Some(body) = bytes.get(HEADER..HEADER + length) else { return Err(Flaw::Torn) };
    if crc32c(body) != crc {
        let torn = cut && written < HEADER + length;
        return Err(if torn {
            Flaw::Torn
        } else {
            Flaw::Damaged("the checksum of its value does not match".to_owned())
        });
    }
    let wrong = || Flaw::Damaged("it has no schema".to_owned());
    let text = body.strip_suffix(b"\n").and_then(|body| std::str::from_utf8(body).ok());
    let (schema, json) = text.and_then(|text| text.split_once(' ')).ok_or_else(wrong)?;
    let (name, version) = schema.split_once('/').ok_or_else(wrong)?;
    let version = version.parse().map_err(|_| wrong())?;
    let (schema, json) = (name.to_owned(), json.to_owned());
    let record = Record { number, schema, version, json };
    Ok(SegmentLine { kind, record, length: HEADER + length })
}

fn decode_header(bytes: &[u8]) -> Result<(SegmentKind, u64, usize, u32), Flaw> {
    let wrong = || Flaw::Damaged("the checksum of its header does not match".to_owned());
    let text = std::str::from_utf8(bytes).map_err(|_| wrong())?;
    let kinds = [SegmentKind::Header, SegmentKind::Snapshot, SegmentKind::Record];
    let kind = kinds.into_iter().find(|kind| text.starts_with(kind.letter())).ok_or_else(wrong)?;
    let field = |from: usize, to: usize| {
        let field = text.get(from..to).ok_or_else(wrong)?;
        u64::from_str_radix(field, 16).map_err(|_| wrong())
    };
    let (number, length, crc) = (field(2, 18)?, field(19, 27)?, field(28, SUMMED - 1)?);
    let (length, crc) = (length as usize, crc as u32);
    // Compared as text, so that another spelling of the same numbers is refused as well.
    if header(kind, number, length, crc) == text {
        Ok((kind, number, length, crc))
    } else {
        Err(wrong())
    }
}

/// Decodes a segment's header.
pub(super) fn decode_segment_header(line: &SegmentLine) -> Result<SegmentHeader, String> {
    let record = &line.record;
    if line.kind != SegmentKind::Header || record.schema != SEGMENT.name {
        return Err("it is no header of a segment of records".to_owned());
    }
    if record.version > SEGMENT.version {
        return Err(format!(
            "the segment has form {}, this program reads up to {}: use a newer springtide",
            record.version, SEGMENT.version
        ));
    }
    let header: SegmentHeader =
        serde_json::from_str(&record.json).map_err(|error| error.to_string())?;
    if header.base == record.number {
        Ok(header)
    } else {
        Err("its numbers contradict each other".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCHEMA: RecordSchema = RecordSchema { name: "test", version: 3 };

    #[test]
    fn a_line_decodes_and_each_truncation_is_torn() {
        let line = encode(SegmentKind::Record, 18, SCHEMA, br#"{"a":"b"}"#);
        let found = decode(&line).unwrap();
        assert_eq!((found.kind, found.length), (SegmentKind::Record, line.len()));
        let Record { number, schema, version, json } = found.record;
        assert_eq!((number, &*schema, version, &*json), (18, "test", 3, r#"{"a":"b"}"#));
        for cut in 0..line.len() {
            assert_eq!(decode(&line[..cut]).unwrap_err(), Flaw::Torn, "{cut}");
            // The file may have grown before its bytes were written.
            for zeros in [1, 7, 600] {
                let mut bytes = line[..cut].to_vec();
                bytes.resize(cut + zeros, 0);
                let torn = decode(&bytes).unwrap_err();
                assert_eq!(torn, Flaw::Torn, "{cut} and {zeros} zeros");
            }
        }
    }

    #[test]
    fn each_flipped_bit_of_a_line_is_damage_and_no_truncation() {
        let line = encode(SegmentKind::Record, 18, SCHEMA, br#"{"a":"b"}"#);
        for more in [&b""[..], &line] {
            for bit in 0..line.len() * 8 {
                let mut bytes = line.clone();
                bytes[bit / 8] ^= 1 << (bit % 8);
                bytes.extend_from_slice(more);
                let flaw = decode(&bytes).unwrap_err();
                assert!(matches!(flaw, Flaw::Damaged(_)), "bit {bit}: {flaw:?}");
            }
        }
    }
}
