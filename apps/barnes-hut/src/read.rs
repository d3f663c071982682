//! Reads bodies from CSV files with a header, from NumPy's `.npy` files, and from snapshots of
//! [`crate::gadget`].
//!
//! Every error names the file, the place and the reason. The `.npy` reader accepts the few forms
//! that make sense here, checks lengths before it allocates, and does not recurse. Source of the
//! format: numpy/lib/format.py. This module does not depend on options.

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use crate::bodies::{Bodies, LARGEST};
use crate::gadget;

/// The columns in the order of `.npy` files and snapshots.
pub const COLUMNS: [&str; 7] = ["x", "y", "z", "vx", "vy", "vz", "m"];

/// A file of bodies is not valid.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}{place}: {reason}", file.display())]
pub struct FileError {
    /// The path of the file.
    pub file: PathBuf,
    /// The place of the mistake.
    pub place: FilePosition,
    /// The kind of the mistake.
    pub reason: Reason,
}

/// A place in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FilePosition {
    /// The file as a whole.
    Whole,
    /// A line of a CSV file, from 1.
    Line(u64),
    /// A line of a CSV file, and the name of a column.
    Cell(u64, &'static str),
    /// A row of an array, from 0 as in NumPy, and the name of a column.
    Row(usize, &'static str),
}

impl fmt::Display for FilePosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FilePosition::Whole => Ok(()),
            FilePosition::Line(line) => write!(f, ":{line}"),
            FilePosition::Cell(line, column) => write!(f, ":{line}: column {column}"),
            FilePosition::Row(row, column) => write!(f, ": row {row}, column {column}"),
        }
    }
}

/// The reason why a file of bodies is not valid.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Reason {
    /// The system cannot read the file.
    #[error("cannot be read: {0}")]
    Unreadable(String),
    /// The file has none of the known extensions, and no known header.
    #[error(
        "the name ends neither in .csv nor in .npy and it begins as no Gadget snapshot, so the \
         format is not known; rename the file"
    )]
    UnknownFormat,
    /// The file has not even a header.
    #[error("is empty; a header line x,y,z,vx,vy,vz,m and a line for each body are expected")]
    Empty,
    /// The file has only a header.
    #[error("has no bodies; at least one is needed")]
    NoBodies,
    /// A column is missing.
    #[error("column {0} is missing; the header needs x,y,z,vx,vy,vz,m in any order")]
    MissingColumn(&'static str),
    /// A column occurs twice.
    #[error("column {0} is there twice; keep one")]
    DuplicateColumn(&'static str),
    /// A column is unknown.
    #[error("column {0:?} is not known; the header may have x,y,z,vx,vy,vz,m only")]
    UnknownColumn(String),
    /// A row is too short or too long.
    #[error("has {got} fields where the header has {expected}")]
    FieldCount {
        /// The number of fields in the row.
        got: u64,
        /// The number of fields in the header.
        expected: u64,
    },
    /// The text is not a number.
    #[error("{0:?} is not a number")]
    NotANumber(String),
    /// A number is not finite.
    #[error("{0} is not a finite number")]
    NotFinite(String),
    /// A number is too large to square.
    #[error("{0} is too large; at most 1e100 is allowed, choose another unit")]
    TooLarge(String),
    /// A negative mass.
    #[error("the mass {0} is negative; masses must be zero or more")]
    NegativeMass(String),
    /// The bytes are not text.
    #[error("is not UTF-8 text")]
    NotText,
    /// The file does not start like an array file.
    #[error("is not a NumPy array file (it does not start with \\x93NUMPY)")]
    NotNpy,
    /// The version of the format is unknown.
    #[error("has version {0}.{1} of the .npy format; 1.0, 2.0 and 3.0 can be read")]
    NpyVersion(u8, u8),
    /// The header cannot be parsed.
    #[error("has a header that cannot be understood: {0}")]
    NpyHeader(&'static str),
    /// The elements have another type.
    #[error("has elements of type {0}; save it as float64 or float32 (<f8, <f4)")]
    NpyType(String),
    /// The array has another shape.
    #[error("has shape {0}; (n, 7) with columns x, y, z, vx, vy, vz, m is expected")]
    NpyShape(String),
    /// The columns are stored one after the other.
    #[error("is stored by columns (fortran_order); save numpy.ascontiguousarray of it")]
    NpyFortran,
    /// The file ends too early.
    #[error("is cut short: {expected} bytes are expected, {got} are there")]
    Truncated {
        /// The expected number of bytes, of the data or of the header.
        expected: u64,
        /// The actual number of bytes.
        got: u64,
    },
    /// The file does not start like a Gadget snapshot.
    #[error(
        "is no Gadget snapshot: it begins neither with a record of 256 bytes (format 1) nor with \
         the name HEAD (format 2), in little-endian order"
    )]
    NotGadget,
    /// The two lengths of a record differ.
    #[error(
        "has a record at byte {0} whose lengths before and after it differ; the file is damaged"
    )]
    GadgetRecord(u64),
    /// A block is missing.
    #[error("has no block {0}")]
    GadgetMissing(&'static str),
    /// A block has another size than the header states.
    #[error("has {got} bytes in its block {block}, which are not {values} numbers of 4 or 8 bytes")]
    GadgetBlock {
        /// The name of the block.
        block: &'static str,
        /// The size of the block, in bytes.
        got: u64,
        /// The expected count of numbers.
        values: u64,
    },
    /// The file is a part of a snapshot.
    #[error("is one of the {0} files of a snapshot; join them into one")]
    GadgetFiles(u32),
    /// The file belongs to a cosmological run.
    #[error(
        "is of redshift {0}, so its coordinates are comoving; save physical ones with redshift 0"
    )]
    GadgetComoving(String),
    /// The file continues after the last element.
    #[error("has {0} bytes too many after its last element")]
    TooLong(u64),
}

/// Reads bodies from a `.csv` or `.npy` file, or from a Gadget snapshot with any name.
///
/// # Errors
/// [`FileError`] for the first mistake in the file.
pub fn file(path: &Path) -> Result<Bodies, FileError> {
    let wrong = |(place, reason)| FileError { file: path.to_path_buf(), place, reason };
    let extension = path.extension().map(|e| e.to_string_lossy().to_ascii_lowercase());
    let mut bytes = Vec::new();
    File::open(path)
        .and_then(|mut file| file.read_to_end(&mut bytes))
        .map_err(|e| wrong((FilePosition::Whole, Reason::Unreadable(e.to_string()))))?;
    let bodies = match extension.as_deref() {
        Some("csv") => csv(&bytes),
        Some("npy") => npy(&bytes),
        Some("gadget") => gadget::read(&bytes),
        _ if gadget::is_snapshot(&bytes) => gadget::read(&bytes),
        _ => Err((FilePosition::Whole, Reason::UnknownFormat)),
    };
    bodies.map_err(wrong)
}

pub(crate) type Mistake = (FilePosition, Reason);

/// Parses the text of a CSV file.
///
/// # Errors
/// The place and the reason of the first mistake.
pub fn csv(bytes: &[u8]) -> Result<Bodies, Mistake> {
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    if bytes.iter().all(u8::is_ascii_whitespace) {
        return Err((FilePosition::Whole, Reason::Empty));
    }
    let mut reader = ::csv::ReaderBuilder::new()
        .has_headers(false)
        .trim(::csv::Trim::All)
        .comment(Some(b'#'))
        .from_reader(bytes);
    let mut column_of = [None; 7];
    let mut bodies = Bodies::default();
    let mut header = true;
    for row in reader.records() {
        let row = row.map_err(|error| csv_mistake(bytes, &error))?;
        if std::mem::take(&mut header) {
            let wrong =
                |reason| (FilePosition::Line(line_of_record(bytes, row.position())), reason);
            for (i, name) in row.iter().enumerate() {
                let Some(column) = COLUMNS.iter().position(|c| *c == name) else {
                    return Err(wrong(Reason::UnknownColumn(name.to_owned())));
                };
                if column_of[column].replace(i).is_some() {
                    return Err(wrong(Reason::DuplicateColumn(COLUMNS[column])));
                }
            }
            if let Some(missing) = column_of.iter().position(Option::is_none) {
                return Err(wrong(Reason::MissingColumn(COLUMNS[missing])));
            }
            continue;
        }
        let mut values = [0.0; 7];
        for (column, from) in column_of.iter().enumerate() {
            let text = from.and_then(|i| row.get(i)).unwrap_or_default();
            let value = text.parse().map_err(|_| Reason::NotANumber(text.to_owned()));
            values[column] = value.and_then(|value| allowed(value, column)).map_err(|reason| {
                (FilePosition::Cell(line_of_record(bytes, row.position()), COLUMNS[column]), reason)
            })?;
        }
        push(&mut bodies, values);
    }
    some(bodies)
}

/// The line of a CSV record, from 1.
///
/// The reader's own position is that of the blank lines and comments before the record. It does not
/// count a line feed after a carriage return.
fn line_of_record(text: &[u8], position: Option<&::csv::Position>) -> u64 {
    let mut start = position.map_or(0, |at| at.byte() as usize).min(text.len());
    loop {
        match text[start..] {
            [b'\r' | b'\n', ..] => start += 1,
            [b'#', ..] => {
                let end = text[start..].iter().position(|byte| *byte == b'\n');
                start = end.map_or(text.len(), |length| start + length);
            }
            _ => break,
        }
    }
    let is_end = |at: &usize| match text[*at] {
        b'\n' => true,
        b'\r' => text.get(at + 1) != Some(&b'\n'),
        _ => false,
    };
    1 + (0..start).filter(is_end).count() as u64
}

fn csv_mistake(text: &[u8], error: &::csv::Error) -> Mistake {
    let line = line_of_record(text, error.position());
    let reason = match error.kind() {
        ::csv::ErrorKind::UnequalLengths { expected_len, len, .. } => {
            Reason::FieldCount { got: *len, expected: *expected_len }
        }
        ::csv::ErrorKind::Utf8 { .. } => Reason::NotText,
        _ => Reason::Unreadable(error.to_string()),
    };
    (FilePosition::Line(line), reason)
}

/// Parses the bytes of a `.npy` file.
///
/// # Errors
/// The place and the reason of the first mistake.
pub fn npy(bytes: &[u8]) -> Result<Bodies, Mistake> {
    let whole = |reason| (FilePosition::Whole, reason);
    if bytes.is_empty() {
        return Err(whole(Reason::Truncated { expected: 10, got: 0 }));
    }
    let Some(rest) = bytes.strip_prefix(b"\x93NUMPY") else {
        return Err(whole(Reason::NotNpy));
    };
    let cut = |expected: usize| {
        whole(Reason::Truncated { expected: expected as u64, got: bytes.len() as u64 })
    };
    let (length, start) = match *rest {
        [1, 0, a, b, ..] => (usize::from(u16::from_le_bytes([a, b])), 10),
        [2 | 3, 0, a, b, c, d, ..] => (u32::from_le_bytes([a, b, c, d]) as usize, 12),
        [major, minor, ..] if !matches!((major, minor), (1..=3, 0)) => {
            return Err(whole(Reason::NpyVersion(major, minor)));
        }
        _ => return Err(cut(12)),
    };
    let end = start + length;
    let header = bytes.get(start..end).ok_or_else(|| cut(end))?;
    let header = std::str::from_utf8(header).map_err(|_| whole(Reason::NotText))?;
    let header = NpyHeader::parse(header).map_err(whole)?;
    let data = &bytes[end..];

    let wide = match header.kind.as_str() {
        "<f8" | "=f8" => true,
        "<f4" | "=f4" => false,
        other => return Err(whole(Reason::NpyType(other.to_owned()))),
    };
    let rows = match header.shape[..] {
        [rows, 7] => rows,
        _ => {
            let sizes: Vec<_> = header.shape.iter().map(u64::to_string).collect();
            let comma = if sizes.len() == 1 { "," } else { "" };
            return Err(whole(Reason::NpyShape(format!("({}{comma})", sizes.join(", ")))));
        }
    };
    // A single column has the same order either way.
    if header.fortran && rows > 1 {
        return Err(whole(Reason::NpyFortran));
    }
    let size = if wide { 8 } else { 4 };
    let expected = rows.saturating_mul(7 * size);
    let got = data.len() as u64;
    if got < expected {
        return Err(whole(Reason::Truncated { expected, got }));
    }
    if got > expected {
        return Err(whole(Reason::TooLong(got - expected)));
    }

    let mut bodies = Bodies::default();
    for (row, cells) in data.chunks_exact(7 * size as usize).enumerate() {
        let mut values = [0.0; 7];
        for (column, cell) in cells.chunks_exact(size as usize).enumerate() {
            let value = match *cell {
                [a, b, c, d] => f64::from(f32::from_le_bytes([a, b, c, d])),
                [a, b, c, d, e, f, g, h] => f64::from_le_bytes([a, b, c, d, e, f, g, h]),
                _ => unreachable!("cells are of four or eight bytes"),
            };
            values[column] = check(value, column, FilePosition::Row(row, COLUMNS[column]))?;
        }
        push(&mut bodies, values);
    }
    some(bodies)
}

/// The contents of a `.npy` header.
#[derive(Debug, Default)]
struct NpyHeader {
    kind: String,
    fortran: bool,
    shape: Vec<u64>,
}

impl NpyHeader {
    /// Parses `{'descr': '<f8', 'fortran_order': False, 'shape': (3, 7), }`, with keys in any
    /// order.
    fn parse(text: &str) -> Result<Self, Reason> {
        let bad = Reason::NpyHeader;
        let mut header = NpyHeader::default();
        let (mut kind, mut fortran, mut shape) = (false, false, false);
        let mut rest = text.trim().strip_prefix('{').ok_or(bad("no opening brace"))?.trim_start();
        while !rest.starts_with('}') {
            let (key, after) = quoted(rest).ok_or(bad("a quoted key is expected"))?;
            let after = after.trim_start().strip_prefix(':').ok_or(bad("a colon is expected"))?;
            let after = after.trim_start();
            rest = match key {
                "descr" => {
                    kind = true;
                    if after.starts_with('[') {
                        return Err(Reason::NpyType("record".to_owned()));
                    }
                    let (value, after) = quoted(after).ok_or(bad("descr is no string"))?;
                    value.clone_into(&mut header.kind);
                    after
                }
                "fortran_order" => {
                    fortran = true;
                    if let Some(after) = after.strip_prefix("True") {
                        header.fortran = true;
                        after
                    } else {
                        after
                            .strip_prefix("False")
                            .ok_or(bad("fortran_order is not True or False"))?
                    }
                }
                "shape" => {
                    shape = true;
                    let inner = after.strip_prefix('(').ok_or(bad("shape is no tuple"))?;
                    let (inner, after) = inner.split_once(')').ok_or(bad("shape is no tuple"))?;
                    header.shape = inner
                        .split(',')
                        .map(str::trim)
                        .filter(|part| !part.is_empty())
                        .map(|part| part.trim_end_matches('L').parse())
                        .collect::<Result<_, _>>()
                        .map_err(|_| bad("shape is not made of sizes"))?;
                    after
                }
                _ => return Err(bad("an unknown key")),
            };
            rest = rest.trim_start();
            rest = match rest.strip_prefix(',') {
                Some(after) => after.trim_start(),
                None if rest.starts_with('}') => rest,
                None => return Err(bad("a comma is expected")),
            };
        }
        if kind && fortran && shape { Ok(header) } else { Err(bad("a key is missing")) }
    }
}

/// The text between quotes at the start, and the text after them.
fn quoted(text: &str) -> Option<(&str, &str)> {
    let quote = text.chars().next().filter(|c| matches!(c, '\'' | '"'))?;
    text[1..].split_once(quote)
}

pub(crate) fn check(value: f64, column: usize, place: FilePosition) -> Result<f64, Mistake> {
    allowed(value, column).map_err(|reason| (place, reason))
}

fn allowed(value: f64, column: usize) -> Result<f64, Reason> {
    if !value.is_finite() {
        return Err(Reason::NotFinite(value.to_string()));
    }
    if value.abs() > LARGEST {
        return Err(Reason::TooLarge(format!("{value:e}")));
    }
    if column == 6 && value < 0.0 {
        return Err(Reason::NegativeMass(value.to_string()));
    }
    Ok(value)
}

pub(crate) fn push(bodies: &mut Bodies, [x, y, z, vx, vy, vz, m]: [f64; 7]) {
    bodies.push([x, y, z], [vx, vy, vz], m);
}

pub(crate) fn some(bodies: Bodies) -> Result<Bodies, Mistake> {
    if bodies.is_empty() { Err((FilePosition::Whole, Reason::NoBodies)) } else { Ok(bodies) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::generate;
    use crate::write;

    #[test]
    fn columns_may_come_in_any_order_with_spaces_and_comments() {
        let text =
            "\u{feff} m, x,y ,z,vz,vy,vx\n# two bodies\n2,1,-2,3e0,6,5,4\r\n\n0,0,0,0,0,0,-0\n";
        let bodies = csv(text.as_bytes()).unwrap();
        assert_eq!(bodies.position, [[1.0, -2.0, 3.0], [0.0; 3]]);
        assert_eq!(bodies.velocity[0], [4.0, 5.0, 6.0]);
        assert_eq!(bodies.mass, [2.0, 0.0]);
        assert_eq!(bodies.second, 2);
    }

    /// A `.npy` file with this header and these values.
    fn array(header: &str, values: &[f64]) -> Vec<u8> {
        let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
        bytes.extend((header.len() as u16).to_le_bytes());
        bytes.extend(header.as_bytes());
        bytes.extend(values.iter().flat_map(|v| v.to_le_bytes()));
        bytes
    }

    fn message(name: &str, contents: &[u8]) -> String {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(name);
        std::fs::write(&path, contents).unwrap();
        let text = file(&path).unwrap_err().to_string();
        text.replace(&format!("{}/", folder.path().display()), "")
    }

    #[test]
    fn every_mistake_in_csv_is_named() {
        let table: &[(&str, &str)] = &[
            (
                "",
                "b.csv: is empty; a header line x,y,z,vx,vy,vz,m and a line for each body are \
                 expected",
            ),
            (
                "  \n \n",
                "b.csv: is empty; a header line x,y,z,vx,vy,vz,m and a line for each body are \
                 expected",
            ),
            ("x,y,z,vx,vy,vz,m\n", "b.csv: has no bodies; at least one is needed"),
            (
                "x,y,z,vx,vy,m\n1,2,3,4,5,6\n",
                "b.csv:1: column vz is missing; the header needs x,y,z,vx,vy,vz,m in any order",
            ),
            (
                "1,2,3,4,5,6,7\n",
                "b.csv:1: column \"1\" is not known; the header may have x,y,z,vx,vy,vz,m only",
            ),
            ("x,y,z,vx,vy,vz,m,x\n", "b.csv:1: column x is there twice; keep one"),
            (
                "x,y,z,vx,vy,vz,m\n0,0,0,0,0,0,1\n0,0,0,0,0,0\n",
                "b.csv:3: has 6 fields where the header has 7",
            ),
            (
                "x,y,z,vx,vy,vz,m\n0,0,0,0,0,0,1\n0,zero,0,0,0,0,1\n",
                "b.csv:3: column y: \"zero\" is not a number",
            ),
            ("m,y,z,vx,vy,vz,x\n,0,0,0,0,0,1\n", "b.csv:2: column m: \"\" is not a number"),
            (
                "x,y,z,vx,vy,vz,m\nNaN,0,0,0,0,0,1\n",
                "b.csv:2: column x: NaN is not a finite number",
            ),
            (
                "x,y,z,vx,vy,vz,m\n0,0,0,0,-inf,0,1\n",
                "b.csv:2: column vy: -inf is not a finite number",
            ),
            (
                "x,y,z,vx,vy,vz,m\n0,0,0,0,0,1e999,1\n",
                "b.csv:2: column vz: inf is not a finite number",
            ),
            (
                "x,y,z,vx,vy,vz,m\n0,0,-1e101,0,0,0,1\n",
                "b.csv:2: column z: -1e101 is too large; at most 1e100 is allowed, choose another \
                 unit",
            ),
            (
                "x,y,z,vx,vy,vz,m\n0,0,0,0,0,0,-1.5\n",
                "b.csv:2: column m: the mass -1.5 is negative; masses must be zero or more",
            ),
        ];
        for (text, expected) in table {
            assert_eq!(&message("b.csv", text.as_bytes()), expected, "for {text:?}");
        }
        assert_eq!(
            message("b.csv", b"x,y,z,vx,vy,vz,m\n0,0,0,\xff,0,0,1\n"),
            "b.csv:2: is not UTF-8 text"
        );
    }

    #[test]
    fn lines_count_comments_blanks_and_every_line_end() {
        let mistakes = [
            ("0,0,0,0,0,0,bad", ": column m"),
            ("0,0", ": has 2"),
            ("0,0,0,0,0,0,-1", ": column m"),
        ];
        for end in ["\n", "\r\n"] {
            for (mistake, said) in mistakes {
                let head =
                    ["\u{feff}# of mine", "", "x,y,z,vx,vy,vz,m", "0,0,0,0,0,0,1", "", "# one"];
                for before in 3..=head.len() {
                    let lines = [&head[..before], &[mistake, ""]].concat();
                    let text = message("b.csv", lines.join(end).as_bytes());
                    let expected = format!("b.csv:{}{said}", before + 1);
                    assert!(text.starts_with(&expected), "{end:?}: {text}, not {expected}");
                }
            }
            let text = ["# of mine", "", "x,speed"].join(end);
            let text = message("b.csv", text.as_bytes());
            assert!(text.starts_with("b.csv:3: column \"speed\""), "{text}");
        }
    }

    #[test]
    fn every_mistake_in_npy_is_named() {
        let good = "{'descr': '<f8', 'fortran_order': False, 'shape': (1, 7), }\n";
        let row = [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0];
        let with = |from: &str, to: &str| {
            assert!(good.contains(from));
            array(&good.replace(from, to), &row)
        };
        let changed = |column: usize, value: f64| {
            let mut row = row;
            row[column] = value;
            array(good, &row)
        };
        let mut version = array(good, &row);
        version[6] = 9;
        let shape = |shape: &str| {
            format!(
                "b.npy: has shape {shape}; (n, 7) with columns x, y, z, vx, vy, vz, m is expected"
            )
        };
        let kind = |kind: &str| {
            format!("b.npy: has elements of type {kind}; save it as float64 or float32 (<f8, <f4)")
        };
        let header = |what: &str| format!("b.npy: has a header that cannot be understood: {what}");
        let table = [
            (vec![], "b.npy: is cut short: 10 bytes are expected, 0 are there".to_owned()),
            (
                b"x,y,z".to_vec(),
                "b.npy: is not a NumPy array file (it does not start with \\x93NUMPY)".to_owned(),
            ),
            (
                version,
                "b.npy: has version 9.0 of the .npy format; 1.0, 2.0 and 3.0 can be read"
                    .to_owned(),
            ),
            (
                array(good, &row)[..9].to_vec(),
                "b.npy: is cut short: 12 bytes are expected, 9 are there".to_owned(),
            ),
            (
                array(good, &row)[..40].to_vec(),
                "b.npy: is cut short: 70 bytes are expected, 40 are there".to_owned(),
            ),
            (
                array(good, &row[..6]),
                "b.npy: is cut short: 56 bytes are expected, 48 are there".to_owned(),
            ),
            (
                array(good, &[row, row].concat()),
                "b.npy: has 56 bytes too many after its last element".to_owned(),
            ),
            (
                with("(1, 7)", "(99999999999999999, 7)"),
                "b.npy: is cut short: 5599999999999999944 bytes are expected, 56 are there"
                    .to_owned(),
            ),
            (with("(1, 7)", "(7, 1)"), shape("(7, 1)")),
            (with("(1, 7)", "(7,)"), shape("(7,)")),
            (with("(1, 7)", "()"), shape("()")),
            (with("(1, 7)", "(1, 7, 1)"), shape("(1, 7, 1)")),
            (with("'<f8'", "'>f8'"), kind(">f8")),
            (with("'<f8'", "'<i8'"), kind("<i8")),
            (with("'<f8'", "[('x', '<f8')]"), kind("record")),
            (
                array(
                    &good.replace("False", "True").replace("(1, 7)", "(2, 7)"),
                    &[row, row].concat(),
                ),
                "b.npy: is stored by columns (fortran_order); save numpy.ascontiguousarray of it"
                    .to_owned(),
            ),
            (with("{", ""), header("no opening brace")),
            (with("'descr':", "'descr'"), header("a colon is expected")),
            (with("'descr'", "descr"), header("a quoted key is expected")),
            (with("'descr'", "'other'"), header("an unknown key")),
            (with("'<f8'", "8"), header("descr is no string")),
            (with("False", "No"), header("fortran_order is not True or False")),
            (with("(1, 7)", "[1, 7]"), header("shape is no tuple")),
            (with("(1, 7)", "(1, -7)"), header("shape is not made of sizes")),
            (with("False,", "False"), header("a comma is expected")),
            (with("'descr': '<f8', ", ""), header("a key is missing")),
            (
                array(&good.replace("(1, 7)", "(0, 7)"), &[]),
                "b.npy: has no bodies; at least one is needed".to_owned(),
            ),
            (changed(2, f64::NAN), "b.npy: row 0, column z: NaN is not a finite number".to_owned()),
            (
                changed(6, -2.0),
                "b.npy: row 0, column m: the mass -2 is negative; masses must be zero or more"
                    .to_owned(),
            ),
        ];
        for (bytes, expected) in table {
            assert_eq!(message("b.npy", &bytes), expected);
        }
    }

    #[test]
    fn unknown_files_are_named() {
        assert_eq!(
            message("bodies.txt", b"1"),
            "bodies.txt: the name ends neither in .csv nor in .npy and it begins as no Gadget \
             snapshot, so the format is not known; rename the file"
        );
        let missing = file(Path::new("/no/such/bodies.csv")).unwrap_err().to_string();
        assert!(
            missing.starts_with("/no/such/bodies.csv: cannot be read: No such file"),
            "{missing}"
        );
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("folder.npy");
        std::fs::create_dir(&path).unwrap();
        assert!(matches!(file(&path).unwrap_err().reason, Reason::Unreadable(_)));
    }

    #[test]
    fn arrays_of_single_precision_and_other_versions_are_read() {
        let header = "{\"shape\": (2L, 7), 'fortran_order': False, 'descr': '<f4'}";
        let values: Vec<f32> = (0..14).map(|v| v as f32 / 8.0).collect();
        let mut bytes = b"\x93NUMPY\x02\x00".to_vec();
        bytes.extend((header.len() as u32).to_le_bytes());
        bytes.extend(header.as_bytes());
        bytes.extend(values.iter().flat_map(|v| v.to_le_bytes()));
        let bodies = npy(&bytes).unwrap();
        assert_eq!(bodies.position[1], [0.875, 1.0, 1.125]);
        assert_eq!(bodies.mass, [0.75, 1.625]);
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(
            noise in prop::collection::vec(any::<u8>(), 0..200),
            at in any::<prop::sample::Index>(),
            csv_too in any::<bool>(),
        ) {
            let bodies = generate::plummer(3, 1);
            let mut bytes = if csv_too { write::csv(&bodies) } else { write::npy(&bodies) };
            let at = at.index(bytes.len());
            bytes.splice(at..(at + noise.len() / 2).min(bytes.len()), noise.iter().copied());
            // Some of these are still valid files; most are not. The test is that each ends.
            drop((csv(&bytes), npy(&bytes), csv(&noise), npy(&noise)));
        }
    }
}
