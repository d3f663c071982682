//! Values of the user that replace or complete those of a workflow's file: processors and runtimes.
//!
//! This module does not depend on the reading of workflows.

mod trace;

use std::collections::BTreeMap;
use std::path::Path;

use crate::error::{Cause, ReadError, WorkflowProblem, shown};
use crate::format::BOM;
use crate::model::Position;
use crate::read;
use crate::values::{RUNTIME_MAX_S, Scalar};

/// The columns of a table.
const COLUMNS: [&str; 6] = ["name", "runtime_s", "processors", "memory_mb", "gpus", "walltime_s"];

/// The bytes of a `memory_mb` of 1.
const MEGABYTE: f64 = 1e6;

/// Values that replace or complete those of a file.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Overrides {
    /// The number of processors of every task without one.
    pub processors: Option<u32>,
    /// The runtime in seconds of every task without one.
    pub runtime_s: Option<f64>,
    /// Replacements by key. A task takes the row with its id, otherwise its name, otherwise the
    /// name of its program.
    pub table: BTreeMap<String, Override>,
    /// A factor of every runtime from any source.
    pub runtime_scale: Option<f64>,
    /// The speed of a processor in floating-point operations a second, for tasks whose file has
    /// only their work.
    pub flop_per_s: Option<f64>,
    /// Whether runtimes may be unknown; if not, a task without one is an error.
    pub unknown_runtimes: bool,
}

/// Replacements for one task or kind of tasks.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Override {
    /// The runtime in seconds.
    pub runtime_s: Option<f64>,
    /// The number of processors.
    pub processors: Option<u32>,
    /// The memory of the whole task, in bytes.
    pub memory_bytes: Option<u64>,
    /// The number of GPUs.
    pub gpus: Option<u32>,
    /// The limit of the runtime, in seconds.
    pub walltime_s: Option<f64>,
}

impl Overrides {
    /// Adds a table: a CSV file with the columns `name`, `runtime_s` (seconds), `processors`,
    /// `memory_mb` (units of 1,000,000 bytes), `gpus` and `walltime_s` (seconds) in any order.
    ///
    /// All columns except the first may be missing or empty. The trace of a run of Nextflow is a
    /// table too: the tasks of a process give it the longest of their runtimes, and the most of
    /// their memory and processors.
    ///
    /// # Errors
    /// The file cannot be read, a line is not valid, or two lines have one name; the error has the
    /// line.
    pub fn read_table(&mut self, file: &Path) -> Result<(), ReadError> {
        read::bytes(file).and_then(|text| self.table(&text)).map_err(|problem| problem.of(file))
    }

    /// Adds a table from its text, as [`read_table`](Self::read_table) does; errors name `file`.
    ///
    /// # Errors
    /// As of [`read_table`](Self::read_table).
    pub fn parse_table(&mut self, file: &Path, text: &[u8]) -> Result<(), ReadError> {
        self.table(text).map_err(|problem| problem.of(file))
    }

    fn table(&mut self, text: &[u8]) -> Result<(), WorkflowProblem> {
        let text = text.strip_prefix(&BOM).unwrap_or(text);
        if trace::is_trace(text) {
            let rows = trace::read(text).map_err(|error| wrong(text, &error))??;
            for (name, row) in rows {
                if self.table.insert(name.clone(), row).is_some() {
                    let reason = format!("there is a line for {} already", shown(&name));
                    return Err(WorkflowProblem::value(reason, None));
                }
            }
            return Ok(());
        }
        let mut reader =
            csv::ReaderBuilder::new().trim(csv::Trim::All).comment(Some(b'#')).from_reader(text);
        let wrong = |error| wrong(text, &error);
        let header = reader.headers().map_err(wrong)?;
        let columns = columns(header, start_of_record(text, header.position()))?;
        for row in reader.records() {
            let row = row.map_err(wrong)?;
            let at = start_of_record(text, row.position());
            let field = |column: usize| {
                columns[column].and_then(|column| row.get(column)).filter(|text| !text.is_empty())
            };
            let Some(name) = field(0) else {
                return Err(WorkflowProblem::value("this line has no name of a task", at));
            };
            let wrong_value = |reason| WorkflowProblem::value(reason, at);
            let runtime_s = field(1)
                .map(|text| Scalar::text(text).seconds())
                .transpose()
                .map_err(wrong_value)?;
            if runtime_s.is_some_and(|runtime| runtime <= 0.0) {
                return Err(wrong_value("a runtime must be more than 0 s".to_owned()));
            }
            let processors = field(2)
                .map(|text| Scalar::text(text).processors())
                .transpose()
                .map_err(wrong_value)?;
            if processors.is_some_and(|count| count.is_rounded) {
                return Err(wrong_value("processors must be a whole number".to_owned()));
            }
            let memory_bytes = field(3)
                .map(|text| memory(text).ok_or_else(|| wrong_value(not_memory(text))))
                .transpose()?;
            let gpus = field(4)
                .map(|text| Scalar::text(text).count("gpus"))
                .transpose()
                .map_err(wrong_value)?;
            let walltime_s = field(5)
                .map(|text| Scalar::text(text).time("walltime", "seconds"))
                .transpose()
                .map_err(wrong_value)?;
            if walltime_s.is_some_and(|walltime| walltime <= 0.0) {
                return Err(wrong_value("a walltime must be more than 0 s".to_owned()));
            }
            let processors = processors.map(|count| count.processors);
            let row = Override { runtime_s, processors, memory_bytes, gpus, walltime_s };
            if self.table.insert(name.to_owned(), row).is_some() {
                return Err(wrong_value(format!("there is a line for {} already", shown(name))));
            }
        }
        Ok(())
    }

    /// Checks that the numbers are plausible.
    pub(crate) fn check(&self) -> Result<(), WorkflowProblem> {
        let rows = self.table.values();
        let walltimes = rows.clone().filter_map(|row| row.walltime_s);
        let runtimes =
            rows.clone().filter_map(|row| row.runtime_s).chain(self.runtime_s).chain(walltimes);
        let factors = [
            ("the scale of runtimes", self.runtime_scale),
            ("the speed in flop/s", self.flop_per_s),
        ];
        let factors =
            factors.into_iter().filter_map(|(what, factor)| Some((what, factor?, f64::MAX)));
        for (what, number, most) in
            runtimes.map(|runtime| ("a runtime", runtime, RUNTIME_MAX_S)).chain(factors)
        {
            if !(number > 0.0 && number <= most) {
                return Err(WorkflowProblem::value(
                    format!("{what} given for its tasks cannot be {number}"),
                    None,
                ));
            }
        }
        if rows
            .filter_map(|row| row.processors)
            .chain(self.processors)
            .any(|processors| processors == 0)
        {
            return Err(WorkflowProblem::value(
                "the processors given for its tasks must be at least 1",
                None,
            ));
        }
        Ok(())
    }
}

/// A memory in bytes from a number of megabytes, more than 0.
fn memory(text: &str) -> Option<u64> {
    let bytes = text.parse::<f64>().ok()? * MEGABYTE;
    (bytes >= 1.0 && bytes < u64::MAX as f64).then(|| bytes.ceil() as u64)
}

fn not_memory(text: &str) -> String {
    format!("a memory must be a number of MB of more than 0, found {}", shown(text))
}

/// The index of each of [`COLUMNS`] in the header.
fn columns(
    header: &csv::StringRecord,
    first: Position,
) -> Result<[Option<usize>; COLUMNS.len()], WorkflowProblem> {
    if header.is_empty() {
        return Err(Cause::Value(format!(
            "is empty: its first line must be {}",
            COLUMNS.join(",")
        ))
        .at(None));
    }
    let mut columns = [None; COLUMNS.len()];
    for (at, name) in header.iter().enumerate() {
        match COLUMNS.iter().position(|column| *column == name) {
            Some(column) if columns[column].is_none() => columns[column] = Some(at),
            _ => {
                let reason =
                    format!("the first line must be {}, found {}", COLUMNS.join(","), shown(name));
                return Err(WorkflowProblem::value(reason, first));
            }
        }
    }
    match columns[0] {
        Some(_) => Ok(columns),
        None => Err(WorkflowProblem::value("there is no column name", first)),
    }
}

/// The position of a CSV record.
///
/// The reader's own position is that of the blank lines and comments before the record. It does not
/// count a line feed after a carriage return.
fn start_of_record(text: &[u8], position: Option<&csv::Position>) -> Position {
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
    let ends = (0..start).filter(is_end).count();
    Position { line: u32::try_from(ends).unwrap_or(u32::MAX - 1) + 1, column: 1 }
}

fn wrong(text: &[u8], error: &csv::Error) -> WorkflowProblem {
    let at = error.position().map(|position| start_of_record(text, Some(position)));
    let reason = match error.kind() {
        csv::ErrorKind::Utf8 { .. } => return Cause::NotUtf8.at(at),
        csv::ErrorKind::UnequalLengths { expected_len, len, .. } => {
            format!("the first line has {expected_len} fields, this line has {len}")
        }
        _ => error.to_string(),
    };
    WorkflowProblem::value(reason, at)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(text: &[u8]) -> Result<Overrides, String> {
        let mut overrides = Overrides::default();
        let read = overrides.parse_table(Path::new("t.csv"), text);
        read.map(|()| overrides).map_err(|error| error.to_string())
    }

    #[test]
    fn a_table_gives_runtimes_and_processors_by_name() {
        let read = table(
            b"\xef\xbb\xbfname, runtime_s,processors\r\n# by hand\nmAdd,1.5,4\n\"a, b\",,2\nx,3,\n",
        )
        .unwrap();
        let row = |runtime_s, processors| Override { runtime_s, processors, ..Override::default() };
        assert_eq!(read.table["mAdd"], row(Some(1.5), Some(4)));
        assert_eq!(read.table["a, b"], row(None, Some(2)));
        assert_eq!(read.table["x"], row(Some(3.0), None));
        assert_eq!(table(b"processors,name\n2,a").unwrap().table["a"], row(None, Some(2)));
    }

    #[test]
    fn a_table_gives_resources() {
        let read = table(b"name,gpus,walltime_s,memory_mb\na,0,60,1.5\nb,,,\n").unwrap();
        let row = Override {
            memory_bytes: Some(1_500_000),
            gpus: Some(0),
            walltime_s: Some(60.0),
            ..Override::default()
        };
        assert_eq!((read.table["a"], read.table["b"]), (row, Override::default()));
    }

    #[test]
    fn lines_count_comments_blanks_and_every_line_end() {
        for end in ["\n", "\r\n"] {
            let lines =
                ["\u{feff}# of mine", "", "name,runtime_s", "", "# one", "a,1", "", "b,x", "c"];
            for (wrong, line) in [(8, 8), (9, 9)] {
                let rows = lines[..wrong].iter().enumerate();
                let text: Vec<_> =
                    rows.map(|(at, row)| if at == 7 && wrong > 8 { "b,2" } else { row }).collect();
                let error = table(text.join(end).as_bytes()).unwrap_err();
                assert!(error.starts_with(&format!("t.csv:{line}:1: ")), "{end:?} {error}");
            }
            let header = ["# of mine", "", "name,speed"].join(end);
            let error = table(header.as_bytes()).unwrap_err();
            assert!(error.starts_with("t.csv:3:1: the first line must be"), "{end:?} {error}");
        }
    }

    #[test]
    fn invalid_tables_are_refused_with_their_line() {
        for (text, message) in [
            (
                &b""[..],
                "t.csv: is empty: its first line must be name,runtime_s,processors,memory_mb,gpus",
            ),
            (
                b"name,runtime\n",
                "t.csv:1:1: the first line must be name,runtime_s,processors,memory_mb,gpus",
            ),
            (b"name,name\n", "t.csv:1:1: the first line"),
            (b"runtime_s\n1\n", "t.csv:1:1: there is no column name"),
            (b"name,runtime_s\na,1\n,2\n", "t.csv:3:1: this line has no name"),
            (b"name,runtime_s\na,1\na,2\n", "t.csv:3:1: there is a line for \"a\" already"),
            (b"name,runtime_s\na\n", "t.csv:2:1: the first line has 2 fields, this line has 1"),
            (
                b"name,runtime_s\na,fast\n",
                "t.csv:2:1: a runtime must be a number of seconds, found \"fast\"",
            ),
            (b"name,runtime_s\na,0\n", "t.csv:2:1: a runtime must be more than 0 s"),
            (b"name,runtime_s\na,1e300\n", "t.csv:2:1: no task has a runtime of"),
            (b"name,processors\na,0\n", "t.csv:2:1: a task's processors must be"),
            (b"name,processors\na,1.5\n", "t.csv:2:1: processors must be a whole number"),
            (b"name,processors\na,1\n\xff,1\n", "t.csv:3:1: is not UTF-8"),
            (b"name,memory_mb\na,0\n", "t.csv:2:1: a memory must be a number of MB of more than 0"),
            (b"name,memory_mb\na,nan\n", "t.csv:2:1: a memory must be a number of MB"),
            (b"name,gpus\na,0.5\n", "t.csv:2:1: gpus must be a whole number from 0"),
            (b"name,walltime_s\na,0\n", "t.csv:2:1: a walltime must be more than 0 s"),
        ] {
            let error = table(text).unwrap_err();
            assert!(error.starts_with(message), "{error}");
        }
        let error =
            Overrides::default().read_table(Path::new("/nowhere/t.csv")).unwrap_err().to_string();
        assert!(error.starts_with("/nowhere/t.csv: cannot be read: "), "{error}");
    }
}
