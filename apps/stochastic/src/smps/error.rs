//! Errors and notes of the reader: file, line, what is wrong and what to do.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// Longest excerpt of a file in a message, in characters.
const QUOTE_MAX: usize = 60;

/// Largest number of notes for one file: a damaged file could have one for every line.
const NOTES_MAX: usize = 50;

/// A program cannot be read from its files.
#[derive(Debug, thiserror::Error)]
#[error("{}{}: {cause}", .file.display(), LineSuffix(*.line))]
pub struct SmpsError {
    /// The file or directory, as the caller named it.
    pub file: PathBuf,
    /// The line, from 1, if the error belongs to one.
    pub line: Option<usize>,
    /// What is wrong, and what to do.
    pub cause: Box<SmpsErrorKind>,
}

/// What is wrong with a file.
#[derive(Debug, thiserror::Error)]
pub enum SmpsErrorKind {
    /// The operating system refuses to open or read it.
    #[error("cannot be read: {0}")]
    Unreadable(io::Error),
    /// A directory or common path lacks a file.
    #[error(
        "no {kind} file is here: name a directory that has one (ending in {endings}), the common \
         path of the three files without endings, or each file by itself"
    )]
    NoFile {
        /// Core, time or stochastic.
        kind: &'static str,
        /// The endings of such files.
        endings: &'static str,
    },
    /// A directory has several files of one kind.
    #[error(
        "both {} and {} are here, each a {kind} file: name the common path of one program's files \
         without an ending, or each file by itself",
        quote(.first), quote(.second)
    )]
    SeveralFiles {
        /// Core, time or stochastic.
        kind: &'static str,
        /// The first file by name.
        first: String,
        /// The second file by name.
        second: String,
    },
    /// The file exceeds [`TEXT_MAX`](super::TEXT_MAX).
    #[error("is larger than {} MiB, the largest size that is read", .limit >> 20)]
    TooLarge {
        /// In bytes.
        limit: u64,
    },
    /// The file has no section at all.
    #[error("has no section: it must begin with {first}")]
    Empty {
        /// The first section of such a file.
        first: &'static str,
    },
    /// The file ends inside a line.
    #[error(
        "the file ends in this line, without ENDATA, and is probably incomplete: copy it again, or \
         add ENDATA"
    )]
    Truncated,
    /// A section that does not exist.
    #[error(
        "there is no section {} in this file, only {known} (indent lines of data by a blank)",
        quote(.name)
    )]
    UnknownSection {
        /// Its name in the file.
        name: String,
        /// The names of sections, in order.
        known: String,
    },
    /// Data before the first section or before the line that it belongs to.
    #[error("this line of data must follow {expected}")]
    NoSection {
        /// The missing line or section.
        expected: &'static str,
    },
    /// A line has too many or too few fields.
    #[error("the line has {}, but must have {expected}", count(*.found, "field"))]
    Fields {
        /// Number of fields in the line.
        found: usize,
        /// The expected number and meaning.
        expected: &'static str,
    },
    /// A field is not a finite number.
    #[error("{} is not a finite number", quote(.0))]
    Number(String),
    /// A row, column, period or scenario that does not exist.
    #[error("there is no {kind} {}", quote(.name))]
    Unknown {
        /// Row, column, period or scenario.
        kind: &'static str,
        /// Its name.
        name: String,
    },
    /// Two lines give the same item, with different values.
    #[error("{what} is already given in line {first}: remove one of the two")]
    Duplicate {
        /// The item.
        what: String,
        /// The first line that gives it.
        first: usize,
    },
    /// Integer variables.
    #[error("integer variables are not supported: remove {0} to read the linear relaxation")]
    Integer(&'static str),
    /// Another feature that is not supported, with a remedy if there is one.
    #[error("{0}")]
    Unsupported(String),
    /// A name in a stochastic file has two meanings.
    #[error("{} is {one} and {other}: rename one of the two", quote(.name))]
    Ambiguous {
        /// The name.
        name: String,
        /// What it may mean.
        one: &'static str,
        /// What else it may mean.
        other: &'static str,
    },
    /// No row of type N.
    #[error("has no objective: one row must be of type N")]
    NoObjective,
    /// A lower bound exceeds the upper bound.
    #[error(
        "column {} has the lower bound {lower}, which exceeds its upper bound {upper}",
        quote(.column)
    )]
    Bounds {
        /// Name of the column.
        column: String,
        /// Its lower bound.
        lower: f64,
        /// Its upper bound.
        upper: f64,
    },
    /// The number of periods is not 2.
    #[error(
        "has {}{}, but must have 2: only two-stage programs are supported",
        count(.names.len(), "period"), List(.names)
    )]
    Periods {
        /// Names of the periods, in order.
        names: Vec<String>,
    },
    /// The core file is not in the order of the periods.
    #[error(
        "{kind} {} is out of the order of the periods: order the core file by periods, or list \
         rows and columns under PERIODS EXPLICIT",
        quote(.name)
    )]
    Order {
        /// Row or column.
        kind: &'static str,
        /// Its name.
        name: String,
    },
    /// An explicit time file omits a row or column.
    #[error("{kind} {} has no period: add it to the {section} section", quote(.name))]
    NoPeriod {
        /// Row or column.
        kind: &'static str,
        /// Its name.
        name: String,
        /// The section that lacks it.
        section: &'static str,
    },
    /// A stage lacks rows or columns.
    #[error("the {stage} stage has no {what}: check the first row and column of each period")]
    EmptyStage {
        /// First or second.
        stage: &'static str,
        /// Rows or columns.
        what: &'static str,
    },
    /// A first-stage row has an entry in a second-stage column.
    #[error(
        "row {} belongs to the first stage and column {} to the second: first-stage rows may have \
         entries in first-stage columns only",
        quote(.row), quote(.column)
    )]
    Staircase {
        /// Name of the row.
        row: String,
        /// Name of the column.
        column: String,
    },
    /// A distribution other than DISCRETE.
    #[error(
        "{section} {} is not supported, only {section} DISCRETE: replace a continuous distribution \
         by a discrete one, such as a sample of it",
        quote(.name)
    )]
    Distribution {
        /// The section.
        section: String,
        /// The distribution.
        name: String,
    },
    /// An element varies that must be certain.
    #[error(
        "{element} is random: only right-hand sides, costs and matrix entries of the second stage \
         may be random (write a random bound as a row)"
    )]
    NotRandom {
        /// The element.
        element: String,
    },
    /// A probability outside [0, 1].
    #[error("{0} is not a probability: it must be from 0 to 1")]
    Probability(f64),
    /// The probabilities of a distribution do not sum to 1.
    #[error("the probabilities of {element} sum to {sum}, but must sum to 1 within 1e-3")]
    Sum {
        /// The random element, block or scenarios.
        element: String,
        /// The sum.
        sum: f64,
    },
    /// The file exceeds a limit of the reader.
    #[error("has more than {limit} {what}, the largest number that is read")]
    TooMany {
        /// The counted items.
        what: &'static str,
        /// The limit.
        limit: usize,
    },
}

impl SmpsErrorKind {
    pub(super) fn at(self, line: impl Into<Option<usize>>) -> LineError {
        LineError { line: line.into(), cause: Box::new(self) }
    }

    pub(super) fn unknown(kind: &'static str, name: &str) -> Self {
        Self::Unknown { kind, name: name.to_owned() }
    }
}

/// An error and its line, before the file's name is added.
#[derive(Debug)]
pub(super) struct LineError {
    line: Option<usize>,
    cause: Box<SmpsErrorKind>,
}

impl LineError {
    pub fn in_file(self, file: &Path) -> SmpsError {
        SmpsError { file: file.to_owned(), line: self.line, cause: self.cause }
    }
}

/// Something in a file that the reader ignores, or reads in a way that may surprise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadNote {
    /// The file, as the caller named it.
    pub file: PathBuf,
    /// The line, from 1, if the note belongs to one.
    pub line: Option<usize>,
    /// Text of the note.
    pub text: String,
}

impl fmt::Display for ReadNote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}: {}", self.file.display(), LineSuffix(self.line), self.text)
    }
}

struct LineSuffix(Option<usize>);

impl fmt::Display for LineSuffix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.map_or(Ok(()), |line| write!(f, ":{line}"))
    }
}

/// Names in parentheses, at most eight of them; nothing if there are none.
struct List<'a>(&'a [String]);

impl fmt::Display for List<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<String> = self.0.iter().take(8).map(|name| quote(name)).collect();
        match names.len() {
            0 => Ok(()),
            all if all == self.0.len() => write!(f, " ({})", names.join(", ")),
            _ => write!(f, " ({}, ...)", names.join(", ")),
        }
    }
}

/// The notes of one file, at most [`NOTES_MAX`] and a count of the others.
#[derive(Default)]
pub(super) struct Notes {
    kept: Vec<(Option<usize>, String)>,
    dropped: usize,
}

impl Notes {
    pub fn add(&mut self, line: impl Into<Option<usize>>, text: impl FnOnce() -> String) {
        if self.kept.len() < NOTES_MAX {
            self.kept.push((line.into(), text()))
        } else {
            self.dropped += 1
        }
    }

    pub fn in_file(self, file: &Path) -> impl Iterator<Item = ReadNote> {
        let more = (self.dropped > 0).then(|| (None, format!("{} more notes", self.dropped)));
        let all = self.kept.into_iter().chain(more);
        all.map(|(line, text)| ReadNote { file: file.to_owned(), line, text })
    }
}

/// An excerpt of a file for a message: in quotes, escaped, shortened.
pub(super) fn quote(text: &str) -> String {
    let start: String = text.chars().take(QUOTE_MAX).collect();
    let dots = if start.len() < text.len() { "..." } else { "" };
    format!("\"{}{dots}\"", start.escape_debug())
}

/// A number and a noun in singular or plural.
fn count(count: usize, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}
