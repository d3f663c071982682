//! Job traces in the Standard Workload Format, plain or compressed with gzip, as they are found in the wild.
//!
//! The form: D. Feitelson's Parallel Workloads Archive, *The Standard Workload Format*, version 2.2: 18 numbers a line, -1 where
//! something is not known, comments behind `;`, of which those at the top may be `Key: value`. What is merely odd is read and
//! counted as a warning; what cannot be a trace is an error with its line. Must not know what is made of a trace.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

use flate2::read::MultiGzDecoder;

/// Fields of a line.
const FIELDS: usize = 18;

/// Largest trace, in bytes of text: the largest of the public ones has a third of this.
const TEXT_MAX: u64 = 1 << 30;

/// Longest time in a trace, in seconds: some 3000 years, so that times since 1970 pass.
const SECONDS_MAX: f64 = 1e11;

/// Byte order mark of a UTF-8 text.
const BOM: [u8; 3] = [0xef, 0xbb, 0xbf];

/// First bytes of what gzip has compressed.
const GZIP: [u8; 2] = [0x1f, 0x8b];

/// A trace cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum SwfError {
    /// The file cannot be read, or is no gzip although it begins like one.
    #[error("cannot read the trace {}: {source}", file.display())]
    File {
        /// Which.
        file: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A line is none of a trace.
    #[error("{}:{line}: {reason}", file.display())]
    Line {
        /// Of which file.
        file: PathBuf,
        /// From 1.
        line: usize,
        /// What is wrong with it.
        reason: String,
    },
    /// There is no job in it that could be run.
    #[error("{}: no line is a job with a size and a run time: is it a trace in the Standard Workload Format?", file.display())]
    Empty {
        /// Which file.
        file: PathBuf,
    },
}

/// What is odd about a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Oddity {
    /// A job's line stands behind that of a job which came later. Jobs are sorted.
    Unsorted,
    /// More fields than the form has. The others are not read.
    MoreFields,
    /// The processors that a job was given are not known; those that it asked for are taken.
    SizeAsked,
    /// A job's processors are not known. It is left out.
    NoSize,
    /// A job's run time is not known. It is left out.
    NoRunTime,
    /// A job's run time is 0. It stays.
    RunTimeZero,
    /// It is not known when a job came. It is left out.
    NoSubmitTime,
    /// Two jobs have the same number. Both stay.
    SameNumber,
}

impl fmt::Display for Oddity {
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
        })
    }
}

/// How often something odd was met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Met {
    /// In so many lines.
    pub times: usize,
    /// First in this one, from 1.
    pub line: usize,
}

/// A job of a trace.
#[derive(Clone, Debug, PartialEq)]
pub struct SwfJob {
    /// Its number.
    pub number: i64,
    /// When it came, since the first job that is kept.
    pub submit: Duration,
    /// How long it ran.
    pub run: Duration,
    /// On how many processors.
    pub size: u32,
    /// How long it said that it would run at most.
    pub requested: Option<Duration>,
    /// Its partition; of a grid, its site.
    pub partition: Option<i64>,
}

/// A trace.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Trace {
    /// What the top says, by key, as `MaxProcs`; of several with one key the first.
    pub header: BTreeMap<String, String>,
    /// By when they came, and those that came at once as they stand in the file.
    pub jobs: Vec<SwfJob>,
    /// What is odd.
    pub odd: BTreeMap<Oddity, Met>,
}

impl Trace {
    /// Processors of the machine: what the top says, or the largest job's where it says nothing.
    pub fn processors(&self) -> u32 {
        let said = ["MaxProcs", "MaxNodes"].into_iter().find_map(|key| self.header.get(key));
        let said = said.and_then(|text| text.split_whitespace().next()?.parse().ok());
        let largest = self.jobs.iter().map(|job| job.size).max().unwrap_or(0);
        said.unwrap_or(0).max(largest)
    }
}

/// Reads a trace.
///
/// # Errors
/// The file cannot be read, a line is none of a trace, or no job is left.
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
        let reason = format!("its text is larger than {TEXT_MAX} bytes: it is no trace");
        return Err(failed(std::io::Error::other(reason)));
    }
    parse(file, &bytes)
}

/// Reads the text of a trace, which `file` names in messages.
///
/// # Errors
/// A line is none of a trace, or no job is left.
pub fn parse(file: &Path, text: &[u8]) -> Result<Trace, SwfError> {
    let mut reader = Reader::default();
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

/// A trace while it is read.
#[derive(Default)]
struct Reader {
    line: usize,
    header: BTreeMap<String, String>,
    /// By the line's order, with the time at which each came, in seconds.
    jobs: Vec<(f64, SwfJob)>,
    latest: f64,
    numbers: std::collections::BTreeSet<i64>,
    odd: BTreeMap<Oddity, Met>,
}

impl Reader {
    fn odd(&mut self, what: Oddity) {
        self.odd.entry(what).or_insert(Met { times: 0, line: self.line }).times += 1;
    }

    fn read(&mut self, line: &[u8]) -> Result<(), String> {
        // Comments are in whatever encoding their authors had.
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
            self.odd(Oddity::MoreFields);
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
        let lacks = match () {
            () if submit < 0.0 => Some(Oddity::NoSubmitTime),
            () if run < 0.0 => Some(Oddity::NoRunTime),
            () if size < 1.0 => Some(Oddity::NoSize),
            () => None,
        };
        if let Some(lacks) = lacks {
            self.odd(lacks);
            return Ok(());
        }
        if given < 1.0 {
            self.odd(Oddity::SizeAsked);
        }
        if run == 0.0 {
            self.odd(Oddity::RunTimeZero);
        }
        if submit < self.latest {
            self.odd(Oddity::Unsorted);
        }
        self.latest = self.latest.max(submit);
        let number = job as i64;
        if !self.numbers.insert(number) {
            self.odd(Oddity::SameNumber);
        }
        let known = |field: f64| (0.0..=SECONDS_MAX).contains(&field);
        let job = SwfJob {
            number,
            submit: Duration::ZERO,
            run: Duration::from_secs_f64(run),
            size: size as u32,
            requested: known(requested).then(|| Duration::from_secs_f64(requested)),
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
        Some(Trace { header: self.header, jobs, odd: self.odd })
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
    fn what_is_odd_is_read_and_counted() {
        let trace = of(TWO).unwrap();
        let seconds = Duration::from_secs_f64;
        let told: Vec<_> =
            trace.jobs.iter().map(|job| (job.number, job.submit, job.run, job.size)).collect();
        assert_eq!(
            told,
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
            trace.odd.iter().map(|(what, met)| (*what, met.times, met.line)).collect();
        use Oddity::*;
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
    fn a_byte_order_mark_is_no_part_of_a_trace() {
        let marked = of(&format!("\u{feff}{TWO}")).unwrap();
        assert_eq!(marked, of(TWO).unwrap());
        let error = of("\u{feff}\r\n;\r\n2 3 4\r\n").unwrap_err().to_string();
        assert!(error.contains("some.swf:3: "), "{error}");
    }

    #[test]
    fn what_is_no_trace_is_told_with_its_line() {
        let job = "1 0 0 5 1 -1 -1 1 9 -1 1 1 1 -1 1 1 -1 -1";
        for (text, told) in [
            (format!("{job}\n2 3 4"), "some.swf:2: a job has 18 fields, this line has 3"),
            (job.replace(" 5 ", " five "), "some.swf:1: field 4 must be a number, found \"five\""),
            (job.replace(" 5 ", " inf "), "field 4 must be a number"),
            (job.replace(" 5 ", " 1e30 "), "no job has a run time of"),
            (job.replace(" 5 1 ", " 5 1e12 "), "no machine has the"),
            ("; nothing\n".to_owned(), "some.swf: no line is a job"),
        ] {
            let error = of(&text).unwrap_err().to_string();
            assert!(error.contains(told), "{error}");
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
        use Oddity::*;
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
                .odd
                .iter()
                // How many of the unsorted ones there are is a matter of what they are compared with.
                .map(|(what, met)| (*what, if *what == Unsorted { 0 } else { met.times }))
                .collect();
            assert_eq!(got, odd, "{name}");
        }
    }
}
