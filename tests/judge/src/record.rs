//! Records of logs as JSON values, and the files that contain them.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::{Rule, Verdict};

/// The recorder of a record: the name and incarnation of a node.
pub(crate) type Recorder = (String, u64);

/// A record of a log.
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    /// The recorder: node and incarnation.
    pub recorder: Recorder,
    /// The sequence number of the recorder.
    pub seq: u64,
    /// The event, an object with its kind.
    pub event: Value,
    /// The line of the log.
    pub line: String,
}

impl Record {
    pub(crate) fn kind(&self) -> &str {
        self.text("kind")
    }

    /// A text of the event; empty if it is absent.
    pub(crate) fn text(&self, field: &str) -> &str {
        self.event.get(field).and_then(Value::as_str).unwrap_or_default()
    }

    pub(crate) fn number(&self, field: &str) -> Option<u64> {
        self.event.get(field).and_then(Value::as_u64)
    }

    pub(crate) fn flag(&self, field: &str) -> bool {
        self.event.get(field).and_then(Value::as_bool).unwrap_or_default()
    }

    /// The numbers of a list; empty if it is absent.
    pub(crate) fn numbers(&self, field: &str) -> Vec<u64> {
        let list = self.event.get(field).and_then(Value::as_array);
        list.into_iter().flatten().filter_map(Value::as_u64).collect()
    }

    /// The texts of a list; empty if it is absent.
    pub(crate) fn texts(&self, field: &str) -> Vec<String> {
        let list = self.event.get(field).and_then(Value::as_array);
        list.into_iter().flatten().filter_map(|text| Some(text.as_str()?.to_owned())).collect()
    }
}

/// The reason why a log cannot be read.
#[derive(Debug)]
pub enum ReadError {
    /// A file cannot be read.
    File(PathBuf, std::io::Error),
    /// A line is not a JSON object.
    Line(String, serde_json::Error),
    /// The directory has no log.
    NoLog(PathBuf),
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path, error) => write!(f, "cannot read {}: {error}", path.display()),
            Self::Line(line, error) => write!(f, "no JSON: {error}: {line}"),
            Self::NoLog(dir) => write!(
                f,
                "{} has no log: name a directory with events.jsonl or scheduler.events.jsonl",
                dir.display()
            ),
        }
    }
}

impl std::error::Error for ReadError {}

/// Parses lines to records, without duplicates, in order of recorders and sequence numbers.
/// Recorders are in the order of their first lines.
pub(crate) fn parse<L: AsRef<str>>(
    lines: impl IntoIterator<Item = L>,
    verdict: &mut Verdict,
) -> Result<Vec<Record>, ReadError> {
    let mut order: BTreeMap<Recorder, usize> = BTreeMap::new();
    let mut records: BTreeMap<(usize, u64), Record> = BTreeMap::new();
    for line in lines {
        let line = line.as_ref().trim();
        if line.is_empty() {
            continue;
        }
        let value: Value = serde_json::from_str(line)
            .map_err(|error| ReadError::Line(line.chars().take(200).collect(), error))?;
        let Some(record) = record(&value, line) else { continue };
        let next = order.len();
        let place = *order.entry(record.recorder.clone()).or_insert(next);
        match records.get(&(place, record.seq)) {
            Some(known) if known.event != record.event => {
                let what = format!("{:?} recorded number {} twice", record.recorder, record.seq);
                verdict.fault(Rule::ConflictingRecords, what, &[known, &record]);
            }
            Some(_) => {}
            None => drop(records.insert((place, record.seq), record)),
        }
    }
    Ok(records.into_values().collect())
}

/// Header, end and truncation lines are not records.
fn record(value: &Value, line: &str) -> Option<Record> {
    let node = value.get("node")?.as_str()?.to_owned();
    let recorder = (node, value.get("incarnation")?.as_u64()?);
    let (seq, event) = (value.get("seq")?.as_u64()?, value.get("event")?.clone());
    Some(Record { recorder, seq, event, line: line.to_owned() })
}

/// The lines of all logs of a directory, older files first.
pub(crate) fn read_dir(dir: &Path) -> Result<Vec<String>, ReadError> {
    let rotated = (1..).map(|number| dir.join(format!("scheduler.events.{number}.jsonl")));
    let mut files: Vec<PathBuf> = rotated.take_while(|path| path.exists()).collect();
    files.reverse();
    files.extend(["scheduler.events.jsonl", "events.jsonl"].map(|name| dir.join(name)));
    files.retain(|path| path.exists());
    if files.is_empty() {
        return Err(ReadError::NoLog(dir.to_owned()));
    }
    let mut lines = Vec::new();
    for path in files {
        let text = fs::read_to_string(&path).map_err(|error| ReadError::File(path, error))?;
        // A killed writer may leave an incomplete last line.
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        lines.extend(whole.lines().map(str::to_owned));
    }
    Ok(lines)
}

/// The result of a run, if the run has one.
pub(crate) fn read_result(path: &Path) -> Result<Option<Value>, ReadError> {
    if !path.exists() {
        return Ok(None);
    }
    let text = fs::read_to_string(path).map_err(|error| ReadError::File(path.to_owned(), error))?;
    let value = serde_json::from_str(&text).map_err(|error| ReadError::Line(text, error))?;
    Ok(Some(value))
}
