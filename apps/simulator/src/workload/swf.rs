//! Job traces in the Standard Workload Format, plain or compressed with gzip.
//!
//! Source: D. Feitelson's Parallel Workloads Archive, *The Standard Workload Format*, version 2.2.
//! A line has 18 numbers, with -1 for unknown values. Comments follow `;`, and those at the top may
//! be `Key: value`. Unusual lines are read and counted as warnings; a line that cannot be part of a
//! trace is an error. This module does not depend on the use of the trace.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

use flate2::read::MultiGzDecoder;

/// The number of fields of a line.
const FIELDS: usize = 18;

/// The maximum size of a trace, in bytes of text: three times the largest public one.
const TEXT_MAX: u64 = 1 << 30;

/// The longest time in a trace, in seconds: some 3000 years, so that times since 1970 are valid.
const SECONDS_MAX: f64 = 1e11;

/// The byte order mark of a UTF-8 text.
const BOM: [u8; 3] = [0xef, 0xbb, 0xbf];

/// The first bytes of a gzip file.
const GZIP: [u8; 2] = [0x1f, 0x8b];

/// Failure to read a trace.
#[derive(Debug, thiserror::Error)]
pub enum SwfError {
    /// The file cannot be read, or has a gzip header and is not gzip.
    #[error("cannot read the trace {}: {source}", file.display())]
    File {
        /// The path of the trace.
        file: PathBuf,
        /// The error of the system or the decoder.
        source: std::io::Error,
    },
    /// A line is not part of a trace.
    #[error("{}:{line}: {reason}", file.display())]
    Line {
        /// The path of the trace.
        file: PathBuf,
        /// The number of the line, from 1.
        line: usize,
        /// The mistake of the line.
        reason: String,
    },
    /// The trace contains no job that could run.
    #[error(
        "{}: no line is a job with a size and a run time: is it a trace in the Standard Workload \
         Format?",
        file.display()
    )]
    Empty {
        /// The path of the trace.
        file: PathBuf,
    },
}

/// A warning about a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TraceWarning {
    /// A job's line follows that of a job with a later submit time. Jobs are sorted.
    Unsorted,
    /// A line has more fields than the format. The others are ignored.
    MoreFields,
    /// The allocated processors are unknown; the requested ones are used.
    SizeAsked,
    /// The processors of a job are unknown. The job is skipped.
    NoSize,
    /// The run time of a job is unknown. The job is skipped.
    NoRunTime,
    /// The run time of a job is 0. The job is kept.
    RunTimeZero,
    /// The submit time of a job is unknown. The job is skipped.
    NoSubmitTime,
    /// Two jobs have the same number. Both are kept.
    SameNumber,
    /// A line is a part of a job that was checkpointed or swapped out (status 2 to 4). The job has
    /// a line of its own, so that the part is skipped.
    Part,
}

impl fmt::Display for TraceWarning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unsorted => "submitted before the job above (sorted)",
            Self::MoreFields => "more than 18 fields (the others are not read)",
            Self::SizeAsked => "the processors given are not known (taken: those asked for)",
            Self::NoSize => "no processors (left out)",
            Self::NoRunTime => "no run time (left out)",
            Self::RunTimeZero => "a run time of 0 s (kept)",
            Self::NoSubmitTime => "no submit time (left out)",
            Self::SameNumber => "another job's number (kept)",
            Self::Part => "a part of a job that has a line of its own (left out)",
        })
    }
}

/// The number of occurrences of a warning, and the first one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Occurrences {
    /// The number of lines with the warning.
    pub times: usize,
    /// The first line with the warning, from 1.
    pub line: usize,
}

/// A job of a trace.
#[derive(Clone, Debug, PartialEq)]
pub struct SwfJob {
    /// The number of the job.
    pub number: i64,
    /// Submit time, since the first job that is kept.
    pub submit: Duration,
    /// The run time of the job.
    pub run: Duration,
    /// The number of processors.
    pub size: u32,
    /// The requested time limit of the job.
    pub requested: Option<Duration>,
    /// The number of the job's user.
    pub user: Option<i64>,
    /// The partition of the job; in a grid's trace, its site.
    pub partition: Option<i64>,
}

/// The jobs and the header of a trace.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Trace {
    /// The header by key, such as `MaxProcs`; the first of several values with one key.
    pub header: BTreeMap<String, String>,
    /// The jobs by submit time; jobs with one time keep the order of the file.
    pub jobs: Vec<SwfJob>,
    /// The warnings about the trace.
    pub warnings: BTreeMap<TraceWarning, Occurrences>,
}

impl Trace {
    /// The processors of the machine by the header, or those of the largest job if there is no
    /// header.
    pub fn processors(&self) -> u32 {
        let said = ["MaxProcs", "MaxNodes"].into_iter().find_map(|key| self.header.get(key));
        let said = said.and_then(|text| text.split_whitespace().next()?.parse().ok());
        let largest = self.jobs.iter().map(|job| job.size).max().unwrap_or(0);
        said.unwrap_or(0).max(largest)
    }
}

/// Reads a trace from a file.
///
/// # Errors
/// The file cannot be read, a line is not part of a trace, or no job is left.
pub fn read(file: &Path) -> Result<Trace, SwfError> {
    let failed = |source| SwfError::File { file: file.to_owned(), source };
    let mut bytes = Vec::new();
    File::open(file).map_err(failed)?.take(TEXT_MAX + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.starts_with(&GZIP) {
        let mut text = Vec::new();
        let decoder = MultiGzDecoder::new(bytes.as_slice());
        decoder.take(TEXT_MAX + 1).read_to_end(&mut text).map_err(failed)?;
        bytes = text;
    }
    if bytes.len() as u64 > TEXT_MAX {
        let reason = format!("its text is larger than {TEXT_MAX} bytes, the limit of a trace");
        return Err(failed(std::io::Error::other(reason)));
    }
    parse(file, &bytes)
}

/// Parses the text of a trace; errors name `file`.
///
/// # Errors
/// A line is not part of a trace, or no job is left.
pub fn parse(file: &Path, text: &[u8]) -> Result<Trace, SwfError> {
    let mut reader = SwfParser::default();
    let text = text.strip_prefix(&BOM).unwrap_or(text);
    for (at, line) in text.split(|byte| *byte == b'\n').enumerate() {
        reader.line = at + 1;
        reader.read(line).map_err(|reason| SwfError::Line {
            file: file.to_owned(),
            line: at + 1,
            reason,
        })?;
    }
    reader.trace().ok_or_else(|| SwfError::Empty { file: file.to_owned() })
}

/// The state of a parser.
#[derive(Default)]
struct SwfParser {
    line: usize,
    header: BTreeMap<String, String>,
    /// The jobs in order of lines, with their submit times in seconds.
    jobs: Vec<(f64, SwfJob)>,
    latest: f64,
    numbers: std::collections::BTreeSet<i64>,
    odd: BTreeMap<TraceWarning, Occurrences>,
}

impl SwfParser {
    fn odd(&mut self, what: TraceWarning) {
        self.odd.entry(what).or_insert(Occurrences { times: 0, line: self.line }).times += 1;
    }

    fn read(&mut self, line: &[u8]) -> Result<(), String> {
        // Comments may have any encoding.
        let line = String::from_utf8_lossy(line);
        let line = line.trim();
        match line.strip_prefix(';') {
            Some(comment) => self.comment(comment),
            None if line.is_empty() => {}
            None => self.job(line)?,
        }
        Ok(())
    }

    fn comment(&mut self, comment: &str) {
        if let Some((key, value)) = comment.trim_start_matches(';').split_once(':') {
            let (key, value) = (key.trim().to_owned(), value.trim().to_owned());
            self.header.entry(key).or_insert(value);
        }
    }

    fn job(&mut self, line: &str) -> Result<(), String> {
        let mut fields = [-1.0; FIELDS];
        let mut found = 0;
        for text in line.split_whitespace() {
            if let Some(field) = fields.get_mut(found) {
                *field = number(text).ok_or_else(|| {
                    let text: String = text.chars().take(40).collect();
                    format!(
                        "field {} must be a number, found \"{}\"",
                        found + 1,
                        text.escape_default()
                    )
                })?;
            }
            found += 1;
        }
        if found < FIELDS {
            return Err(format!(
                "a job has {FIELDS} fields, this line has {found}: was the file cut off?"
            ));
        }
        if found > FIELDS {
            self.odd(TraceWarning::MoreFields);
        }
        let [job, submit, _, run, given, _, _, asked, requested, ..] = fields;
        let size = if given >= 1.0 { given } else { asked };
        for (what, seconds) in [("submit time", submit), ("run time", run)] {
            if seconds > SECONDS_MAX {
                return Err(format!("no job has a {what} of {seconds} s"));
            }
        }
        if size > f64::from(u32::MAX) {
            return Err(format!("no machine has the {size} processors of this job"));
        }
        let status = fields[10];
        let warning = match () {
            () if (2.0..=4.0).contains(&status) => Some(TraceWarning::Part),
            () if submit < 0.0 => Some(TraceWarning::NoSubmitTime),
            () if run < 0.0 => Some(TraceWarning::NoRunTime),
            () if size < 1.0 => Some(TraceWarning::NoSize),
            () => None,
        };
        if let Some(warning) = warning {
            self.odd(warning);
            return Ok(());
        }
        if given < 1.0 {
            self.odd(TraceWarning::SizeAsked);
        }
        if run == 0.0 {
            self.odd(TraceWarning::RunTimeZero);
        }
        if submit < self.latest {
            self.odd(TraceWarning::Unsorted);
        }
        self.latest = self.latest.max(submit);
        let number = job as i64;
        if !self.numbers.insert(number) {
            self.odd(TraceWarning::SameNumber);
        }
        let known = |field: f64| (0.0..=SECONDS_MAX).contains(&field);
        let job = SwfJob {
            number,
            submit: Duration::ZERO,
            run: Duration::from_secs_f64(run),
            size: size as u32,
            requested: (requested > 0.0 && known(requested))
                .then(|| Duration::from_secs_f64(requested)),
            user: known(fields[11]).then_some(fields[11] as i64),
            partition: known(fields[15]).then_some(fields[15] as i64),
        };
        self.jobs.push((submit, job));
        Ok(())
    }

    fn trace(mut self) -> Option<Trace> {
        self.jobs.sort_by(|(a, _), (b, _)| a.total_cmp(b));
        let first = self.jobs.first()?.0;
        let since = |(submit, job): (f64, SwfJob)| SwfJob {
            submit: Duration::from_secs_f64(submit - first),
            ..job
        };
        let jobs = self.jobs.into_iter().map(since).collect();
        Some(Trace { header: self.header, jobs, warnings: self.odd })
    }
}

fn number(text: &str) -> Option<f64> {
    text.parse().ok().filter(|number: &f64| number.is_finite())
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    const TWO: &str = "; Computer: a cluster\n;  MaxProcs: 64 of them\n; says nothing\n\
        7 100 3 60 4 -1 -1 8 600 -1 1 1 1 -1 1 2 -1 -1\n\
        \n\
        8\t40\t-1\t0.5\t-1\t-1\t-1\t2\t-1\t-1\t-1\t-1\t-1\t-1\t-1\t-1\t-1\t-1\t0\r\n\
        7 90 -1 -1 4 -1 -1 8 600 -1 1 1 1 -1 1 1 -1 -1\n\
        9 90 -1 10 -1 -1 -1 -1 600 -1 1 1 1 -1 1 1 -1 -1\n\
        10 -1 -1 10 1 -1 -1 -1 600 -1 1 1 1 -1 1 1 -1 -1\n\
        7 120 -1 0 1 -1 -1 -1 600 -1 1 1 1 -1 1 1 -1 -1";

    fn of(text: &str) -> Result<Trace, SwfError> {
        parse(Path::new("some.swf"), text.as_bytes())
    }

    #[test]
    fn warnings_are_counted() {
        let trace = of(TWO).unwrap();
        let seconds = Duration::from_secs_f64;
        let found: Vec<_> =
            trace.jobs.iter().map(|job| (job.number, job.submit, job.run, job.size)).collect();
        assert_eq!(
            found,
            [
                (8, seconds(0.0), seconds(0.5), 2),
                (7, seconds(60.0), seconds(60.0), 4),
                (7, seconds(80.0), seconds(0.0), 1)
            ]
        );
        assert_eq!(trace.jobs[1].requested, Some(seconds(600.0)));
        assert_eq!((trace.jobs[0].requested, trace.jobs[1].partition), (None, Some(2)));
        assert_eq!((trace.processors(), &*trace.header["Computer"]), (64, "a cluster"));
        let odd: Vec<_> =
            trace.warnings.iter().map(|(what, met)| (*what, met.times, met.line)).collect();
        use TraceWarning::*;
        assert_eq!(
            odd,
            [
                (Unsorted, 1, 6),
                (MoreFields, 1, 6),
                (SizeAsked, 1, 6),
                (NoSize, 1, 8),
                (NoRunTime, 1, 7),
                (RunTimeZero, 1, 10),
                (NoSubmitTime, 1, 9),
                (SameNumber, 1, 10)
            ]
        );
    }

    #[test]
    fn a_byte_order_mark_is_ignored() {
        let marked = of(&format!("\u{feff}{TWO}")).unwrap();
        assert_eq!(marked, of(TWO).unwrap());
        let error = of("\u{feff}\r\n;\r\n2 3 4\r\n").unwrap_err().to_string();
        assert!(error.contains("some.swf:3: "), "{error}");
    }

    #[test]
    fn errors_name_the_line() {
        let job = "1 0 0 5 1 -1 -1 1 9 -1 1 1 1 -1 1 1 -1 -1";
        for (text, found) in [
            (format!("{job}\n2 3 4"), "some.swf:2: a job has 18 fields, this line has 3"),
            (job.replace(" 5 ", " five "), "some.swf:1: field 4 must be a number, found \"five\""),
            (job.replace(" 5 ", " inf "), "field 4 must be a number"),
            (job.replace(" 5 ", " 1e30 "), "no job has a run time of"),
            (job.replace(" 5 1 ", " 5 1e12 "), "no machine has the"),
            ("; nothing\n".to_owned(), "some.swf: no line is a job"),
        ] {
            let error = of(&text).unwrap_err().to_string();
            assert!(error.contains(found), "{error}");
        }
        let none = read(Path::new("/nowhere/at/all.swf")).unwrap_err().to_string();
        assert!(none.starts_with("cannot read the trace /nowhere/at/all.swf: "), "{none}");
    }

    #[test]
    fn a_compressed_trace_is_the_same_and_a_broken_one_an_error() {
        let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        packed.write_all(TWO.as_bytes()).unwrap();
        let packed = packed.finish().unwrap();
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(&packed).unwrap();
        assert_eq!(read(file.path()).unwrap(), of(TWO).unwrap());
        file.as_file().set_len(packed.len() as u64 - 9).unwrap();
        let error = read(file.path()).unwrap_err();
        assert!(matches!(error, SwfError::File { .. }), "{error}");
    }

    #[test]
    fn traces_from_the_wild() {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data/traces");
        if !dir.exists() {
            eprintln!("skipped: there are no traces at {}", dir.display());
            return;
        }
        use TraceWarning::*;
        for (name, jobs, processors, odd) in [
            ("KTH-SP2-1996-2.1-cln", 28_475, 100, vec![(NoSize, 1), (RunTimeZero, 8)]),
            ("LCG-2005", 188_041, 24_515, vec![(RunTimeZero, 521)]),
            (
                "Theta-2022-23387",
                23_387,
                4392,
                vec![(Unsorted, 0), (MoreFields, 23_387), (SizeAsked, 23_387)],
            ),
            ("lublin_256", 10_000, 256, vec![]),
        ] {
            let trace = read(&dir.join(format!("{name}.swf.gz"))).unwrap();
            assert_eq!((trace.jobs.len(), trace.processors()), (jobs, processors), "{name}");
            assert!(trace.jobs.is_sorted_by_key(|job| job.submit), "{name}");
            let got: Vec<_> = trace
                .warnings
                .iter()
                // The number of unsorted lines depends on the comparison.
                .map(|(what, met)| (*what, if *what == Unsorted { 0 } else { met.times }))
                .collect();
            assert_eq!(got, odd, "{name}");
        }
    }
}
