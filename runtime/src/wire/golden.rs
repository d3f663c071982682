//! Golden bytes: each message's encoding is compared with a committed file, so that a change of the wire shows in review.
//!
//! For tests only, in every crate that defines messages. Files are `<crate>/golden/<kind>.<name>.v1.hex`: the payload
//! in hexadecimal, 32 bytes a line.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use serde::{Serialize, de::DeserializeOwned};

use super::{Kind, WIRE_VERSION, decode, encode};

/// Compares a message's bytes with its golden file, decodes the file's bytes and encodes them again.
///
/// Call it with `env!("CARGO_MANIFEST_DIR")`. With `SPRINGTIDE_BLESS=1` in the environment the file is written instead.
///
/// # Panics
/// When the bytes differ or the file is missing: this is an assertion.
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
         Other versions in the same grid read the golden form. If the change is meant (a new wire version), \
         run the test with SPRINGTIDE_BLESS=1 and commit {}",
        hex(&golden),
        hex(&bytes),
        file.display()
    );
    let decoded: T = decode(kind, &golden)
        .unwrap_or_else(|error| panic!("the golden {} is not decoded: {error}", file.display()));
    let again =
        encode(kind, &decoded).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    assert!(again == bytes, "{kind:?} ({name}) changes when decoded and encoded again");
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
            "cannot read {}: {error}; for a new message run the test with SPRINGTIDE_BLESS=1 and commit the file",
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
