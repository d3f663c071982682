//! Why a program cannot be read from SMPS files: in which file and line, what is wrong, and what to do.
//!
//! Must not know how the files are read.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// Longest piece of a file that a message repeats, in characters.
const SHOWN_MAX: usize = 60;

/// A program cannot be read from its files.
#[derive(Debug, thiserror::Error)]
#[error("{}{}: {cause}", .file.display(), At(.line))]
pub struct SmpsError {
    /// The file or directory, as it was named.
    pub file: PathBuf,
    /// The line, from 1, where there is one.
    pub line: Option<usize>,
    /// What is wrong, and what to do.
    pub cause: Box<Cause>,
}

/// What is wrong.
#[derive(Debug, thiserror::Error)]
pub enum Cause {
    /// The system does not let it be read.
    #[error("cannot be read: {0}")]
    Unreadable(io::Error),
    /// There is no file of this kind.
    #[error(
        "no {kind} file is here: name a directory that has one (ending in {endings}), or the path of the three files without their \
         endings"
    )]
    NoFile {
        /// Core, time or stochastic.
        kind: &'static str,
        /// How such a file is named.
        endings: &'static str,
    },
    /// There are several files of one kind.
    #[error("both {} and {} are here, each a {kind} file: name the path of one model without an ending",
        shown(.first), shown(.second))]
    SeveralFiles {
        /// Core, time or stochastic.
        kind: &'static str,
        /// One of them.
        first: String,
        /// Another one.
        second: String,
    },
    /// It is larger than what is read.
    #[error("is larger than {} MiB, the most that is read", .limit >> 20)]
    TooLarge {
        /// In bytes.
        limit: u64,
    },
    /// Its text is not UTF-8.
    #[error("is not UTF-8 here: save it as UTF-8 text")]
    NotUtf8,
    /// It ends too early.
    #[error("has no ENDATA: was the file cut off?")]
    Cut,
    /// A section that is not known.
    #[error("there is no section {} here, only {known} (a line of data begins with a blank)", shown(.name))]
    UnknownSection {
        /// As it stands there.
        name: String,
        /// Those that are known.
        known: &'static str,
    },
    /// Data before the first section.
    #[error("a line of data stands before the first section: begin with {first}")]
    NoSection {
        /// The section that comes first.
        first: &'static str,
    },
    /// A line has too many fields or too few.
    #[error("a line has {} here, and must have {expected}", many(*.found, "field"))]
    Fields {
        /// How many it has.
        found: usize,
        /// What it must have.
        expected: &'static str,
    },
    /// What must be a number is none.
    #[error("{} is not a finite number", shown(.0))]
    Number(String),
    /// A row, column, period or scenario that is not there.
    #[error("there is no {kind} {}", shown(.name))]
    Unknown {
        /// Of what kind it is.
        kind: &'static str,
        /// Its name.
        name: String,
    },
    /// Something is said twice.
    #[error("{what} is given already, in line {first}: take one of them out")]
    Twice {
        /// What.
        what: String,
        /// Where it is first.
        first: usize,
    },
    /// Integer variables.
    #[error("integer variables are not supported: without {0} the linear relaxation is read")]
    Integer(&'static str),
    /// Something else that is not supported, and what to do.
    #[error("{0}")]
    Unsupported(String),
    /// It has no objective.
    #[error("has no objective: one row must be of type N")]
    NoObjective,
    /// A column's bounds cross.
    #[error("column {} has the lower bound {lower} above its upper bound {upper}", shown(.column))]
    Bounds {
        /// Its name.
        column: String,
        /// Its lower bound.
        lower: f64,
        /// Its upper bound.
        upper: f64,
    },
    /// There are not two periods.
    #[error("has {}{}, and must have 2: only programs of two stages are read", many(*.found, "period"), if *.found > 2 { " or more" } else { "" })]
    Periods {
        /// How many there are; 3 for more.
        found: usize,
    },
    /// Rows or columns are not in the order of their periods.
    #[error(
        "{kind} {} is out of the order of the periods: order the core file by periods, or list rows and columns under PERIODS EXPLICIT",
        shown(.name)
    )]
    Order {
        /// Row or column.
        kind: &'static str,
        /// Its name.
        name: String,
    },
    /// A row or column is in no period.
    #[error("{kind} {} is in no period: list it", shown(.name))]
    NoPeriod {
        /// Row or column.
        kind: &'static str,
        /// Its name.
        name: String,
    },
    /// A stage has nothing in it.
    #[error("the {stage} stage has no {what}: are its first row and column right?")]
    EmptyStage {
        /// First or second.
        stage: &'static str,
        /// Rows or columns.
        what: &'static str,
    },
    /// A first-stage row has an entry in a second-stage column.
    #[error(
        "row {} is of the first stage and column {} of the second: a first-stage row has first-stage columns only",
        shown(.row), shown(.column)
    )]
    Staircase {
        /// The row.
        row: String,
        /// The column.
        column: String,
    },
    /// A distribution that is not discrete.
    #[error(
        "{section} {} is not read, only {section} DISCRETE; continuous distributions are not read: discretise it", shown(.name)
    )]
    Distribution {
        /// The section.
        section: &'static str,
        /// The distribution.
        name: String,
    },
    /// Something is random that must not be.
    #[error(
        "{element} is random: only right-hand sides of second-stage rows and the technology matrix (first-stage columns in \
         second-stage rows) may be, as recourse is fixed"
    )]
    NotRandom {
        /// What.
        element: String,
    },
    /// A probability is none.
    #[error("{0} is not a probability: it must be from 0 to 1")]
    Probability(f64),
    /// Probabilities do not add up to 1.
    #[error("the probabilities of {element} add up to {sum}: they must add up to 1 within 1e-6")]
    Sum {
        /// Of what.
        element: String,
        /// Their sum.
        sum: f64,
    },
    /// There is more of something than is read.
    #[error("has more than {limit} {what}, the most that is read")]
    TooMany {
        /// Of what.
        what: &'static str,
        /// The most.
        limit: usize,
    },
}

impl Cause {
    pub(super) fn at(self, line: impl Into<Option<usize>>) -> Problem {
        Problem { line: line.into(), cause: Box::new(self) }
    }

    pub(super) fn unknown(kind: &'static str, name: &str) -> Self {
        Self::Unknown { kind, name: name.to_owned() }
    }
}

/// What is wrong, and where in a file that has no name yet.
#[derive(Debug)]
pub(super) struct Problem {
    pub line: Option<usize>,
    pub cause: Box<Cause>,
}

impl Problem {
    pub fn of(self, file: &Path) -> SmpsError {
        SmpsError { file: file.to_owned(), line: self.line, cause: self.cause }
    }
}

/// Something in a file that was passed over or read in a way that may surprise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// The file, as it was named.
    pub file: PathBuf,
    /// The line, from 1, where there is one.
    pub line: Option<usize>,
    /// What it is.
    pub text: String,
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}: {}", self.file.display(), At(&self.line), self.text)
    }
}

struct At<'a>(&'a Option<usize>);

impl fmt::Display for At<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(line) => write!(f, ":{line}"),
            None => Ok(()),
        }
    }
}

/// Notes of one file as they are made, up to [`NOTES_MAX`]: a damaged file could have one for every line.
pub(super) struct Notes {
    made: Vec<(Option<usize>, String)>,
    more: usize,
}

/// The most notes of one file.
const NOTES_MAX: usize = 50;

impl Notes {
    pub fn new() -> Self {
        Self { made: Vec::new(), more: 0 }
    }

    pub fn add(&mut self, line: impl Into<Option<usize>>, text: impl FnOnce() -> String) {
        match self.made.len() < NOTES_MAX {
            true => self.made.push((line.into(), text())),
            false => self.more += 1,
        }
    }

    pub fn append(&mut self, other: Self) {
        for (line, text) in other.made {
            self.add(line, || text);
        }
        self.more += other.more;
    }

    pub fn of(self, file: &Path) -> impl Iterator<Item = Note> {
        let more = (self.more > 0).then(|| (None, format!("and {} notes more", self.more)));
        let made = self.made.into_iter().chain(more);
        made.map(|(line, text)| Note { file: file.to_owned(), line, text })
    }
}

/// A piece of a file as it can stand in a message: in quotes, on one line, not too long.
pub(super) fn shown(text: &str) -> String {
    let start: String = text.chars().take(SHOWN_MAX).collect();
    let dots = if start.len() < text.len() { "..." } else { "" };
    format!("\"{}{dots}\"", start.escape_debug())
}

/// A count of things.
fn many(count: usize, thing: &str) -> String {
    format!("{count} {thing}{}", if count == 1 { "" } else { "s" })
}
