//! Golden bytes: the encoding of each message is compared with a committed file, so that reviews
//! show changes of the wire.
//!
//! For tests of every crate that defines messages. The files are
//! `<crate>/golden/<kind>.<name>.v1.hex`: the payload in hexadecimal, 32 bytes a line. Files of a
//! released version stay, because versions that share a grid send them.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use serde::{Serialize, de::DeserializeOwned};
use springtide_base::fuzz::{self, Target};

use super::{Encoding, Kind, WIRE_VERSION, decode, decode_payload, encode};

/// Compares the bytes of a message with its golden file, decodes the bytes of the file and encodes
/// them again.
///
/// Mutations of the bytes decode to a value or an error.
///
/// Kinds with the encoding [`Encoding::Named`] must also ignore unknown fields, which a later
/// version may send. The test inserts such a field into each map of the message.
///
/// Call it with `env!("CARGO_MANIFEST_DIR")`. With `SPRINGTIDE_BLESS=1` in the environment it
/// writes the file first.
///
/// # Panics
/// The bytes differ, the file is missing, or a mutation makes the decoder panic.
pub fn check<T: Serialize + DeserializeOwned>(crate_dir: &str, kind: Kind, name: &str, value: &T) {
    let file = path(crate_dir, kind, name);
    let bytes = encode(kind, value).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    if std::env::var_os("SPRINGTIDE_BLESS").is_some_and(|v| v == "1") {
        let folder = file.parent().expect("the path was joined from a folder and a name");
        std::fs::create_dir_all(folder)
            .and_then(|()| std::fs::write(&file, to_hex(&bytes)))
            .unwrap_or_else(|error| panic!("cannot write {}: {error}", file.display()));
    }
    let golden = read(&file);
    assert!(
        golden == bytes,
        "the wire form of {kind:?} ({name}) has changed:\n  golden {}\n  now    {}\n\
         Other versions in the same grid read the golden form. If the change is meant (a new \
         wire version), run the test with SPRINGTIDE_BLESS=1 and commit {}",
        hex(&golden),
        hex(&bytes),
        file.display()
    );
    let decoded: T = decode(kind, &golden)
        .unwrap_or_else(|error| panic!("the golden {} is not decoded: {error}", file.display()));
    let again =
        encode(kind, &decoded).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    assert!(again == bytes, "{kind:?} ({name}) changes when decoded and encoded again");
    if kind.info().is_some_and(|info| info.encoding == Encoding::Named) {
        ignores_unknown_fields::<T>(kind, name, &bytes);
    }
    let target = Target {
        name: std::any::type_name::<T>(),
        test: "--workspace --lib golden",
        words: &[],
        max_len: 64 << 10,
        found: &[],
        read: decode_again::<T>,
        allocated: None,
    };
    fuzz::run(target, vec![bytes.into()]);
}

/// Decodes a message. It is the same after it was encoded and decoded again.
fn decode_again<T: Serialize + DeserializeOwned>(bytes: &[u8]) -> Result<(), String> {
    let value: T = decode_payload(bytes).map_err(|error| error.to_string())?;
    // Calls have names of fields, without which an omitted field would shift the others.
    let encoded = encode(Kind::CALL, &value).map_err(|error| error.to_string())?;
    let again: T = decode_payload(&encoded).unwrap_or_else(|error| panic!("{error}"));
    assert!(encode(Kind::CALL, &again).is_ok_and(|again| again == encoded));
    Ok(())
}

/// A field of a later version: its key, and several values for it.
const LATER_FIELD: (&[u8], [&[u8]; 3]) =
    (b"\xa8zz-later", [b"\xc0", b"\x07", b"\x82\xa1a\x92\x01\x80\xa1b\xc4\x02xy"]);

/// Inserts an unknown field into each map of a message, as first and as last one.
///
/// A struct must ignore the field. Enum variants and tables by key are maps as well and may refuse
/// or accept it, but never as an unknown field. The outermost map is the message itself, except in
/// replies, which may be a `Result`.
fn ignores_unknown_fields<T: Serialize + DeserializeOwned>(kind: Kind, name: &str, bytes: &[u8]) {
    let mut maps = Vec::new();
    walk(bytes, 0, &mut maps);
    for map in &maps {
        for (first, value) in [true, false].into_iter().flat_map(|f| LATER_FIELD.1.map(|v| (f, v)))
        {
            let later = map.with(bytes, first, value);
            let own = map.marker == 0 && kind != Kind::REPLY;
            match decode::<T>(kind, &later) {
                Ok(value) => {
                    let again = encode(kind, &value).expect("it was encoded before");
                    assert!(
                        again == bytes || !own,
                        "{kind:?} ({name}) accepts a field that it does not know"
                    );
                }
                Err(error) => {
                    let unknown = error.to_string().contains("unknown field");
                    assert!(
                        !unknown && !own,
                        "{kind:?} ({name}) does not ignore a later version's field: {error}"
                    );
                }
            }
        }
    }
}

/// The byte range of a map in a message.
struct MapRange {
    /// Position of its marker.
    marker: usize,
    /// Position of its first key.
    begin: usize,
    /// Position after its last value.
    end: usize,
    /// Number of its entries.
    len: usize,
}

impl MapRange {
    /// The message with one additional field in this map.
    fn with(&self, bytes: &[u8], first: bool, value: &[u8]) -> Vec<u8> {
        let len = u16::try_from(self.len + 1).expect("golden messages are small").to_be_bytes();
        let fields = &bytes[self.begin..self.end];
        let later = [LATER_FIELD.0, value].concat();
        let (a, b) = if first { (&later[..], fields) } else { (fields, &later[..]) };
        [&bytes[..self.marker], &[0xde], &len, a, b, &bytes[self.end..]].concat()
    }
}

/// Walks the value at a position, collects its maps and returns the position after it. The bytes
/// are a message that this process encoded.
fn walk(bytes: &[u8], position: usize, maps: &mut Vec<MapRange>) -> usize {
    let marker = bytes[position];
    let number = |width: usize| {
        bytes[position + 1..position + 1 + width]
            .iter()
            .fold(0, |n, byte| n << 8 | usize::from(*byte))
    };
    let (begin, values, map) = match marker {
        0x80..=0x8f => (position + 1, 2 * usize::from(marker & 15), true),
        0x90..=0x9f => (position + 1, usize::from(marker & 15), false),
        0xdc => (position + 3, number(2), false),
        0xdd => (position + 5, number(4), false),
        0xde => (position + 3, 2 * number(2), true),
        0xdf => (position + 5, 2 * number(4), true),
        0xa0..=0xbf => return position + 1 + usize::from(marker & 31),
        0xc4 | 0xd9 => return position + 2 + number(1),
        0xc5 | 0xda => return position + 3 + number(2),
        0xc6 | 0xdb => return position + 5 + number(4),
        0xcc | 0xd0 => return position + 2,
        0xcd | 0xd1 => return position + 3,
        0xca | 0xce | 0xd2 => return position + 5,
        0xcb | 0xcf | 0xd3 => return position + 9,
        0xc1 | 0xc7..=0xc9 | 0xd4..=0xd8 => panic!("{marker:#x} is in no message"),
        _ => return position + 1,
    };
    let end = (0..values).fold(begin, |position, _| walk(bytes, position, maps));
    if map {
        maps.push(MapRange { marker: position, begin, end, len: values / 2 });
    }
    end
}

/// The bytes of every golden file of a crate, by kind: the corpus that [`super::fuzz`] mutates.
///
/// # Panics
/// When the folder or a file in it cannot be read.
pub fn corpus(crate_dir: &str) -> Vec<(Kind, Vec<u8>)> {
    let folder = Path::new(crate_dir).join("golden");
    let entries = std::fs::read_dir(&folder)
        .unwrap_or_else(|error| panic!("cannot list {}: {error}", folder.display()));
    let mut files: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    files.sort();
    files.retain(|file| file.extension().is_some_and(|e| e == "hex"));
    files
        .iter()
        .filter_map(|file| {
            let stem = file.file_name()?.to_str()?.split('.').next()?;
            let info = super::KINDS.iter().find(|info| info.name == stem)?;
            Some((info.kind, read(file)))
        })
        .collect()
}

fn path(crate_dir: &str, kind: Kind, name: &str) -> PathBuf {
    let kind = kind.info().unwrap_or_else(|| panic!("kind {} is not in the table", kind.0));
    Path::new(crate_dir).join("golden").join(format!("{}.{name}.v{WIRE_VERSION}.hex", kind.name))
}

fn read(file: &Path) -> Vec<u8> {
    let text = std::fs::read_to_string(file).unwrap_or_else(|error| {
        panic!(
            "cannot read {}: {error}; for a new message run the test with SPRINGTIDE_BLESS=1 \
             and commit the file",
            file.display()
        )
    });
    let digits: Vec<u32> = text
        .chars()
        .filter(|c| !c.is_whitespace())
        .map(|c| {
            c.to_digit(16).unwrap_or_else(|| panic!("{}: not hexadecimal: {c:?}", file.display()))
        })
        .collect();
    assert!(digits.len().is_multiple_of(2), "{}: an odd number of digits", file.display());
    digits.chunks_exact(2).map(|pair| (pair[0] << 4 | pair[1]) as u8).collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn to_hex(bytes: &[u8]) -> String {
    bytes.chunks(32).fold(String::new(), |text, line| text + &hex(line) + "\n")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde::{Deserialize, Serialize};

    use super::*;

    #[derive(Serialize, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Narrow {
        n: u32,
    }

    #[derive(Serialize, Deserialize)]
    struct Wide<T> {
        text: String,
        inside: Vec<Option<T>>,
        by_name: BTreeMap<String, u64>,
        which: Result<f64, ()>,
    }

    fn check_unknown_fields<T: Serialize + DeserializeOwned>(value: &T) {
        let bytes = encode(Kind::CALL, value).unwrap();
        ignores_unknown_fields::<T>(Kind::CALL, "a test", &bytes);
    }

    fn wide<T>(inside: T) -> Wide<T> {
        let by_name = BTreeMap::from([("a".repeat(300), 1 << 40)]);
        Wide { text: "x".into(), inside: vec![None, Some(inside)], by_name, which: Ok(0.5) }
    }

    #[test]
    fn structs_that_ignore_unknown_fields_pass() {
        check_unknown_fields(&wide(wide(7_u8)));
    }

    #[test]
    #[should_panic(expected = "does not ignore a later version's field")]
    fn a_message_that_refuses_unknown_fields_is_found() {
        check_unknown_fields(&Narrow { n: 1 });
    }

    #[test]
    #[should_panic(expected = "does not ignore a later version's field")]
    fn a_part_that_refuses_unknown_fields_is_found() {
        check_unknown_fields(&wide(Narrow { n: 1 }));
    }
}
