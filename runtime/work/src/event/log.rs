//! The run log: a bounded JSONL file with a header line, records and an end line; writer and
//! reader.
//!
//! It knows which events may be dropped, but not their meaning. The caller's thread writes one
//! batch per period, which takes well under a millisecond on a local disk.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::catalogue::Retention;
use super::record::Record;

/// Version of the log's format. A reader refuses a newer one.
pub const SCHEMA: u32 = 1;

/// Longest line that is read, in bytes. It bounds the reader's memory if the file is not a log.
const LINE_MAX: u64 = 16 << 20;

/// The first line of the log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogHeader {
    /// [`SCHEMA`] of the writer.
    pub schema: u32,
    /// Name of the run.
    pub run: String,
    /// Start time in microseconds since the Unix epoch, by the launcher's clock; only for display.
    pub started_unix_us: u64,
    /// Version of the program that wrote it.
    pub version: String,
}

/// A line between or after records, so that the log states each gap.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum GapLine {
    /// From here on facts are omitted: the size cap was reached.
    Truncated { max_bytes: u64 },
    /// The writer closed the log in an orderly way.
    End { records: u64, facts_left_out: u64 },
}

/// An error in reading or writing a log.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The file cannot be opened, read or written.
    #[error("run log {}: cannot {operation}: {source}", file.display())]
    Io {
        /// Path of the log.
        file: PathBuf,
        /// The failed operation.
        operation: &'static str,
        /// The error of the system.
        source: std::io::Error,
    },
    /// A line is invalid.
    #[error("run log {}, line {line}: {reason}", file.display())]
    Line {
        /// Path of the log.
        file: PathBuf,
        /// Number of the line, from 1.
        line: u64,
        /// Description of the defect.
        reason: String,
    },
}

/// The only writer of a run's log.
///
/// Each [`RunLog::append`] reaches the operating system before it returns; [`RunLog::finish`]
/// reaches the disk. Above `max_bytes` facts are omitted and counted, while decisions are still
/// written.
#[derive(Debug)]
pub struct RunLog {
    file: File,
    path: PathBuf,
    max_bytes: u64,
    bytes: u64,
    records: u64,
    facts_left_out: u64,
}

impl RunLog {
    /// Creates a log. Facts are written until it reaches `max_bytes`.
    ///
    /// # Errors
    /// [`LogError::Io`], also if the file exists: a log is never overwritten.
    pub fn create(path: &Path, header: &LogHeader, max_bytes: u64) -> Result<Self, LogError> {
        let file = File::create_new(path).map_err(|source| LogError::Io {
            file: path.to_owned(),
            operation: "make it",
            source,
        })?;
        let path = path.to_owned();
        let mut log = Self { file, path, max_bytes, bytes: 0, records: 0, facts_left_out: 0 };
        log.write(&line(header))?;
        Ok(log)
    }

    /// Resumes a log whose writer has died, and removes its last incomplete line.
    ///
    /// # Errors
    /// [`LogError::Io`], also if the file does not exist.
    pub fn resume(path: &Path, max_bytes: u64) -> Result<Self, LogError> {
        let io = |what, source| LogError::Io { file: path.to_owned(), operation: what, source };
        let file = File::options().read(true).write(true).open(path);
        let mut file = file.map_err(|source| io("open it", source))?;
        let (mut bytes, mut lines, mut buffer) = (0, 0, Vec::new());
        let mut reader = BufReader::new(&file);
        loop {
            buffer.clear();
            let read = reader.by_ref().take(LINE_MAX).read_until(b'\n', &mut buffer);
            if read.map_err(|source| io("read it", source))? == 0 || !buffer.ends_with(b"\n") {
                break;
            }
            bytes += buffer.len() as u64;
            lines += 1;
        }
        file.set_len(bytes)
            .and_then(|()| file.seek(SeekFrom::End(0)))
            .map_err(|source| io("cut it", source))?;
        let path = path.to_owned();
        // The first line is the header.
        let records = u64::saturating_sub(lines, 1);
        Ok(Self { file, path, max_bytes, bytes, records, facts_left_out: 0 })
    }

    /// Writes a batch of records.
    ///
    /// # Errors
    /// [`LogError::Io`], for example a full disk: the log contains nothing of the batch and still
    /// ends with a complete line. A later append may succeed.
    pub fn append(&mut self, records: &[Record]) -> Result<(), LogError> {
        let mut batch = Vec::new();
        let (mut written, mut left_out) = (0, 0);
        for record in records {
            let record_line = line(record);
            let size = self.bytes + (batch.len() + record_line.len()) as u64;
            if record.event.weight() == Retention::Droppable && size > self.max_bytes {
                if self.facts_left_out + left_out == 0 {
                    batch.extend(line(&GapLine::Truncated { max_bytes: self.max_bytes }));
                }
                left_out += 1;
            } else {
                batch.extend(record_line);
                written += 1;
            }
        }
        self.write(&batch)?;
        self.records += written;
        self.facts_left_out += left_out;
        Ok(())
    }

    /// Writes the end line and syncs the file to disk.
    ///
    /// # Errors
    /// [`LogError::Io`].
    pub fn finish(mut self) -> Result<(), LogError> {
        let end = GapLine::End { records: self.records, facts_left_out: self.facts_left_out };
        self.write(&line(&end))?;
        let synced = self.file.sync_all();
        synced.map_err(|source| LogError::Io { file: self.path, operation: "sync it", source })
    }

    /// Number of facts that were omitted because of the size cap.
    pub fn facts_left_out(&self) -> u64 {
        self.facts_left_out
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), LogError> {
        if let Err(source) = self.file.write_all(bytes) {
            // Removes an incomplete line. If that fails as well, the reader reports the truncated
            // line.
            let _ = self.file.set_len(self.bytes);
            let _ = self.file.seek(SeekFrom::Start(self.bytes));
            return Err(LogError::Io { file: self.path.clone(), operation: "write to it", source });
        }
        self.bytes += bytes.len() as u64;
        Ok(())
    }
}

fn line(value: &impl Serialize) -> Vec<u8> {
    let mut bytes = serde_json::to_vec(value).expect("lines are plain data with string keys");
    bytes.push(b'\n');
    bytes
}

/// The contents of a log.
#[derive(Debug)]
pub struct ReadLog {
    /// First line of the log.
    pub header: LogHeader,
    /// The records in order of (node, incarnation, seq), without duplicates.
    pub records: Vec<Record>,
    /// Number of duplicate records.
    pub duplicates: u64,
    /// Number of facts that the writer omitted because of its size cap. Only a lower bound of 1 if
    /// the log was not closed.
    pub facts_left_out: u64,
    /// Whether the writer closed the log.
    pub complete: bool,
    /// The error of an incomplete last line, which is omitted: the writer was killed.
    pub cut: Option<LogError>,
}

/// A line after the header.
#[derive(Deserialize)]
#[serde(untagged)]
enum LogLine {
    Record(Box<Record>),
    Mark(GapLine),
}

/// Reads a log.
///
/// # Errors
/// The file cannot be read, is empty, has a newer schema, or has a malformed line other than an
/// incomplete last one.
pub fn read(path: &Path) -> Result<ReadLog, LogError> {
    let io = |what| move |source| LogError::Io { file: path.to_owned(), operation: what, source };
    let mut reader = BufReader::new(File::open(path).map_err(io("open it"))?);
    let mut number = 0;
    let mut next = || -> Result<Option<(u64, Vec<u8>)>, LogError> {
        let mut bytes = Vec::new();
        (&mut reader).take(LINE_MAX).read_until(b'\n', &mut bytes).map_err(io("read it"))?;
        number += 1;
        Ok((!bytes.is_empty()).then_some((number, bytes)))
    };
    let bad = |line, reason: String| LogError::Line { file: path.to_owned(), line, reason };

    let (_, first) = next()?.ok_or_else(|| bad(1, "the file is empty".into()))?;
    let header = header(&first).map_err(|reason| bad(1, reason))?;
    let mut log = ReadLog {
        header,
        records: Vec::new(),
        duplicates: 0,
        facts_left_out: 0,
        complete: false,
        cut: None,
    };
    while let Some((number, bytes)) = next()? {
        let parsed = serde_json::from_slice::<LogLine>(bytes.trim_ascii_end());
        if !bytes.ends_with(b"\n") {
            let reason = if bytes.len() as u64 == LINE_MAX {
                return Err(bad(number, format!("the line is longer than {LINE_MAX} bytes")));
            } else {
                "the last line is cut off; it is left out".to_string()
            };
            log.cut = Some(bad(number, reason));
            break;
        }
        match parsed {
            Ok(_) if log.complete => {
                return Err(bad(number, "there is a line after the end line".into()));
            }
            Ok(LogLine::Record(record)) => log.records.push(*record),
            Ok(LogLine::Mark(GapLine::Truncated { .. })) => log.facts_left_out = 1,
            Ok(LogLine::Mark(GapLine::End { records, facts_left_out })) => {
                if records != log.records.len() as u64 {
                    let found = log.records.len();
                    let reason =
                        format!("the end line counts {records} records, {found} are there");
                    return Err(bad(number, reason));
                }
                log.complete = true;
                log.facts_left_out = facts_left_out;
            }
            Err(_) => {
                // The error of the untagged enum is empty, that of the record is specific.
                let reason = match serde_json::from_slice::<Record>(bytes.trim_ascii_end()) {
                    Err(error) => format!("not a record: {}", in_line(&error)),
                    Ok(_) => "not a record".into(),
                };
                return Err(bad(number, reason));
            }
        }
    }
    let before = log.records.len();
    log.records.sort_by(|a, b| a.order().cmp(&b.order()));
    log.records.dedup_by(|a, b| a.order() == b.order());
    log.duplicates = (before - log.records.len()) as u64;
    Ok(log)
}

/// The error's text with the column, but without the line, because the parser sees a single line.
fn in_line(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let text = text.split_once(" at line ").map_or(text.as_str(), |(text, _)| text);
    format!("{text}, at column {}", error.column())
}

fn header(bytes: &[u8]) -> Result<LogHeader, String> {
    #[derive(Deserialize)]
    struct LogSchema {
        schema: u32,
    }
    let bytes = bytes.trim_ascii_end();
    let not = |error| format!("not the header of a run log: {}", in_line(&error));
    let LogSchema { schema } = serde_json::from_slice(bytes).map_err(not)?;
    if schema > SCHEMA {
        return Err(format!(
            "the log has schema {schema}, this program reads up to {SCHEMA}: use a newer springtide"
        ));
    }
    serde_json::from_slice(bytes).map_err(not)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use proptest::prelude::*;

    use super::super::record::tests::{decision, fact, record};
    use super::*;

    fn header() -> LogHeader {
        LogHeader { schema: SCHEMA, run: "r".into(), started_unix_us: 5, version: "0.1.0".into() }
    }

    fn written(max_bytes: u64, records: &[Record]) -> (tempfile::TempDir, PathBuf, Vec<u8>) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("events.jsonl");
        let mut log = RunLog::create(&path, &header(), max_bytes).unwrap();
        records.chunks(3).for_each(|batch| log.append(batch).unwrap());
        log.finish().unwrap();
        let bytes = fs::read(&path).unwrap();
        (dir, path, bytes)
    }

    fn some_records() -> Vec<Record> {
        let mut records: Vec<Record> = (1..6).map(|n| record("b", n, fact(n))).collect();
        records.extend((1..4).map(|n| record("a", n, decision(n))));
        records
    }

    #[test]
    fn records_come_back_in_order_and_once() {
        let mut records = some_records();
        records.push(record("b", 2, fact(2)));
        let (_dir, path, _) = written(u64::MAX, &records);
        let log = read(&path).unwrap();
        let order: Vec<_> = log.records.iter().map(|r| (r.node.as_str(), r.seq)).collect();
        let expected =
            [("a", 1), ("a", 2), ("a", 3), ("b", 1), ("b", 2), ("b", 3), ("b", 4), ("b", 5)];
        assert_eq!(order, expected);
        assert_eq!((log.header, log.duplicates, log.facts_left_out), (header(), 1, 0));
        assert!(log.complete && log.cut.is_none());
    }

    #[test]
    fn a_log_truncated_at_any_byte_can_be_resumed() {
        let records = some_records();
        let (dir, path, bytes) = written(u64::MAX, &records);
        let ends = bytes.iter().enumerate().filter(|(_, byte)| **byte == b'\n').map(|(at, _)| at);
        let header_end = ends.clone().next().unwrap();
        for cut in header_end + 1..bytes.len() {
            fs::write(&path, &bytes[..cut]).unwrap();
            let whole = ends.clone().filter(|end| *end < cut).count() - 1;
            let mut log = RunLog::resume(&path, u64::MAX).unwrap();
            log.append(&[record("c", 1, fact(1))]).unwrap();
            log.finish().unwrap();
            let log = read(&path).unwrap();
            assert_eq!(log.records.len(), whole + 1, "cut at {cut}");
            assert!(log.complete, "cut at {cut}");
        }
        assert!(RunLog::resume(&dir.path().join("none"), 1).is_err());
    }

    #[test]
    fn the_size_cap_omits_facts_only_and_is_reported() {
        let (_dir, path, bytes) = written(400, &some_records());
        let text = String::from_utf8(bytes).unwrap();
        assert_eq!(text.matches(r#"{"truncated":{"max_bytes":400}}"#).count(), 1, "{text}");
        let log = read(&path).unwrap();
        assert_eq!(log.records.iter().filter(|r| r.event.weight() == Retention::Always).count(), 3);
        assert!(log.facts_left_out > 0);
        assert_eq!(log.records.len() as u64 + log.facts_left_out, 8);
    }

    #[test]
    fn a_log_truncated_at_any_byte_reads_up_to_the_cut() {
        let (_dir, path, bytes) = written(u64::MAX, &some_records());
        let first = bytes.iter().position(|&b| b == b'\n').unwrap() + 1;
        for cut in first..bytes.len() {
            fs::write(&path, &bytes[..cut]).unwrap();
            let log = read(&path).unwrap_or_else(|error| panic!("cut at {cut}: {error}"));
            let whole = bytes[..cut].iter().filter(|&&b| b == b'\n').count() - 1;
            assert_eq!(log.records.len(), whole, "cut at {cut}");
            assert_eq!(log.cut.is_some(), bytes[cut - 1] != b'\n', "cut at {cut}");
            assert!(!log.complete);
        }
    }

    #[test]
    fn each_defect_is_reported_with_its_line() {
        let (_dir, path, bytes) = written(u64::MAX, &some_records());
        let text = String::from_utf8(bytes).unwrap();
        let file = path.display().to_string();
        let cases = [
            (String::new(), "line 1: the file is empty"),
            (
                "{}\n".into(),
                "line 1: not the header of a run log: missing field `schema`, at column 2",
            ),
            (
                text.replace(r#""schema":1"#, r#""schema":2"#),
                "line 1: the log has schema 2, this program reads up to 1: use a newer springtide",
            ),
            (
                text.replacen(r#""seq":2"#, r#""seq":-2"#, 1),
                "line 3: not a record: invalid value: integer `-2`, expected u64, at column 36",
            ),
            (format!("{text}{{}}\n"), "line 11: not a record: missing field `node`, at column 2"),
            (
                text.replacen(r#""records":8"#, r#""records":9"#, 1),
                "line 10: the end line counts 9 records, 8 are there",
            ),
        ];
        for (text, expected) in cases {
            fs::write(&path, text).unwrap();
            let message = read(&path).unwrap_err().to_string();
            assert_eq!(message, format!("run log {file}, {expected}"));
        }
    }

    #[test]
    fn a_log_is_never_overwritten() {
        let (_dir, path, bytes) = written(u64::MAX, &some_records());
        assert!(matches!(RunLog::create(&path, &header(), 9), Err(LogError::Io { .. })));
        assert_eq!(fs::read(&path).unwrap(), bytes);
    }

    proptest! {
        #[test]
        fn no_file_panics_the_reader(
            noise in prop::collection::vec(any::<u8>(), 0..300),
            at in any::<prop::sample::Index>(),
        ) {
            let (_dir, path, mut bytes) = written(u64::MAX, &some_records());
            fs::write(&path, &noise).unwrap();
            let _ = read(&path);
            let at = at.index(bytes.len());
            bytes.splice(at..at, noise);
            fs::write(&path, &bytes).unwrap();
            let _ = read(&path);
        }
    }
}
