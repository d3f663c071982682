//! The trace of a run of Nextflow, as `-with-trace` writes it: one line for each task.
//!
//! A graph of `-with-dag` has one node for each process. So the tasks of a process are combined: a
//! process has the longest runtime, and the most memory and processors of its completed tasks.

use std::collections::BTreeMap;

use super::{Override, start_of_record};
use crate::error::{WorkflowProblem, shown};
use crate::values::{RUNTIME_MIN_S, Scalar};

/// Columns that a table of overrides does not have, of which a trace has at least one.
const COLUMNS: [&str; 3] = ["task_id", "process", "realtime"];

/// Units of time, in seconds.
const TIMES: [(&str, f64); 5] =
    [("ms", 0.001), ("d", 86_400.0), ("h", 3600.0), ("m", 60.0), ("s", 1.0)];

/// Units of memory, in bytes.
const SIZES: [(&str, f64); 5] = [
    ("TB", 1_099_511_627_776.0),
    ("GB", 1_073_741_824.0),
    ("MB", 1_048_576.0),
    ("KB", 1024.0),
    ("B", 1.0),
];

/// Whether the first line is that of a trace.
pub(super) fn is_trace(text: &[u8]) -> bool {
    let line = text.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let header = String::from_utf8_lossy(line);
    let mut columns = header.trim().split('\t');
    header.contains('\t') && columns.any(|column| COLUMNS.contains(&column))
}

type Rows = BTreeMap<String, Override>;

/// The processes of a trace, by their names.
pub(super) fn read(text: &[u8]) -> Result<Result<Rows, WorkflowProblem>, csv::Error> {
    let mut reader = csv::ReaderBuilder::new()
        .delimiter(b'\t')
        .quoting(false)
        .trim(csv::Trim::All)
        .from_reader(text);
    let header = reader.headers()?.clone();
    let column = |name: &str| header.iter().position(|column| column == name);
    let (process, name, status) = (column("process"), column("name"), column("status"));
    let (realtime, duration) = (column("realtime"), column("duration"));
    let (memory, cpus) = (column("peak_rss"), column("cpus"));
    let mut rows = Rows::new();
    for row in reader.records() {
        let row = row?;
        let at = Some(start_of_record(text, row.position()));
        let field = |column: Option<usize>| {
            column.and_then(|column| row.get(column)).filter(|text| !matches!(*text, "" | "-"))
        };
        if field(status).is_some_and(|status| !matches!(status, "COMPLETED" | "CACHED")) {
            continue;
        }
        // The name of a task is that of its process, with a tag in brackets.
        let bare = |name| Some(field(name)?.split(" (").next().unwrap_or_default());
        let Some(process) = field(process).or_else(|| bare(name)) else {
            return Ok(Err(WorkflowProblem::value("this line has no process and no name", at)));
        };
        let task = || -> Result<Override, String> {
            let time = field(realtime).or_else(|| field(duration));
            let cpus = field(cpus).map(|cpus| Scalar::text(cpus).processors()).transpose()?;
            Ok(Override {
                runtime_s: time.map(seconds).transpose()?,
                processors: cpus.map(|count| count.processors),
                memory_bytes: field(memory).map(bytes).transpose()?,
                ..Override::default()
            })
        };
        let task = match task() {
            Ok(task) => task,
            Err(reason) => return Ok(Err(WorkflowProblem::value(reason, at))),
        };
        let row = rows.entry(process.to_owned()).or_default();
        row.runtime_s = most(row.runtime_s, task.runtime_s);
        row.processors = row.processors.max(task.processors);
        row.memory_bytes = row.memory_bytes.max(task.memory_bytes);
    }
    Ok(Ok(rows))
}

fn most(a: Option<f64>, b: Option<f64>) -> Option<f64> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.max(b)),
        (a, b) => a.or(b),
    }
}

/// A time as `1h 2m 3s`, `250ms` or a number of milliseconds, in seconds.
fn seconds(text: &str) -> Result<f64, String> {
    let wrong = || format!("a time must be as \"1m 30s\" or in ms, found {}", shown(text));
    let mut sum = 0.0;
    for part in text.split_whitespace() {
        let unit = TIMES.iter().find_map(|(unit, s)| Some((part.strip_suffix(unit)?, *s)));
        let (number, unit) = unit.unwrap_or((part, 0.001));
        sum += number.parse::<f64>().map_err(|_| wrong())? * unit;
    }
    let is_valid = sum.is_finite() && sum >= 0.0;
    is_valid.then_some(sum.max(RUNTIME_MIN_S)).ok_or_else(wrong)
}

/// A memory as `3.1 MB` or a number of bytes, in bytes.
fn bytes(text: &str) -> Result<u64, String> {
    let wrong = || format!("a memory must be as \"3.1 MB\" or in bytes, found {}", shown(text));
    let unit = SIZES.iter().find_map(|(unit, bytes)| Some((text.strip_suffix(unit)?, *bytes)));
    let (number, unit) = unit.unwrap_or((text, 1.0));
    let bytes = number.trim().parse::<f64>().map_err(|_| wrong())? * unit;
    let is_valid = (0.0..u64::MAX as f64).contains(&bytes);
    is_valid.then_some(bytes.ceil() as u64).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::Overrides;
    use super::*;

    const HEADER: &str = "task_id\thash\tname\tstatus\texit\trealtime\tcpus\tpeak_rss\n";

    fn read(lines: &str) -> Result<Rows, String> {
        let mut overrides = Overrides::default();
        let text = format!("{HEADER}{lines}");
        let read = overrides.parse_table(Path::new("trace.txt"), text.as_bytes());
        read.map(|()| overrides.table).map_err(|error| error.to_string())
    }

    #[test]
    fn tasks_of_a_process_give_their_most() {
        let rows = read(
            "1\ta/1\tRNASEQ:FASTQC (A)\tCOMPLETED\t0\t1m 30s\t2\t3.5 MB\n\
             2\ta/2\tRNASEQ:FASTQC (B \"x\")\tCACHED\t0\t250ms\t4\t1 GB\n\
             3\ta/3\tRNASEQ:FASTQC (C)\tFAILED\t1\t9h\t8\t9 GB\n\
             4\ta/4\tINDEX\tCOMPLETED\t0\t-\t1\t-\n\
             5\ta/5\tRAW\tCOMPLETED\t0\t1500\t1\t4096\n",
        );
        let rows = rows.unwrap();
        assert_eq!(rows.keys().collect::<Vec<_>>(), ["INDEX", "RAW", "RNASEQ:FASTQC"]);
        let row = |runtime_s, processors, memory_bytes| Override {
            runtime_s,
            processors: Some(processors),
            memory_bytes,
            ..Override::default()
        };
        assert_eq!(rows["RNASEQ:FASTQC"], row(Some(90.0), 4, Some(1 << 30)));
        assert_eq!(rows["INDEX"], row(None, 1, None));
        assert_eq!(rows["RAW"], row(Some(1.5), 1, Some(4096)));
    }

    #[test]
    fn invalid_traces_are_refused_with_their_line() {
        for (lines, says) in [
            ("1\ta\tX\tCOMPLETED\t0\tsoon\t1\t-\n", "trace.txt:2:1: a time must be as"),
            ("1\ta\tX\tCOMPLETED\t0\t1s\t0\t-\n", "trace.txt:2:1: a task's processors must"),
            ("1\ta\tX\tCOMPLETED\t0\t1s\t1\tmuch\n", "trace.txt:2:1: a memory must be as"),
            ("1\ta\t\tCOMPLETED\t0\t1s\t1\t-\n", "trace.txt:2:1: this line has no process"),
            ("1\ta\n", "trace.txt:2:1: the first line has 8 fields, this line has 2"),
        ] {
            let error = read(lines).unwrap_err();
            assert!(error.starts_with(says), "{error}");
        }
    }
}
