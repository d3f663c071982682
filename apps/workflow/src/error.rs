//! Why a workflow cannot be read: in which file, where in it, what is wrong, and what to do.
//!
//! Must not know how any format is read.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use crate::format::Format;
use crate::model::Position;

/// Longest piece of a file that a message repeats, in characters.
const SHOWN_MAX: usize = 60;

/// Longest cycle that a message names in full, in tasks.
const CYCLE_SHOWN: usize = 12;

/// A workflow, or a table of runtimes, cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("{place}: {cause}")]
pub struct ReadError {
    /// Where.
    pub place: Place,
    /// What is wrong, and what to do.
    pub cause: Box<Cause>,
}

/// A place in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The file, as it was named.
    pub file: PathBuf,
    /// Where in it, if that is known.
    pub at: Option<Position>,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.file.display().fmt(f)?;
        match self.at {
            Some(Position { line, column }) => write!(f, ":{line}:{column}"),
            None => Ok(()),
        }
    }
}

/// What is wrong.
#[derive(Debug, thiserror::Error)]
pub enum Cause {
    /// The system does not let it be read.
    #[error("cannot be read: {0}")]
    Unreadable(io::Error),
    /// It is a directory.
    #[error("is a directory: name the workflow file in it")]
    Directory,
    /// It is larger than what is read.
    #[error("is larger than {} MiB, the most that is read", limit >> 20)]
    TooLarge {
        /// In bytes.
        limit: u64,
    },
    /// There is nothing in it.
    #[error("is empty: a workflow has at least one task")]
    Empty,
    /// It describes no task.
    #[error("has no tasks: a workflow has at least one")]
    NoTasks,
    /// Its text is not UTF-8.
    #[error("is not UTF-8 here: save it as UTF-8 text")]
    NotUtf8,
    /// Its format can be told neither by its name nor by its content.
    #[error(
        "is in no format that is read: WfFormat (.json), DAX (.dax, .xml), Pegasus 5 (.yml), DOT (.dot, .gv) or \
         Springtide's own (.toml); name it so, or say the format"
    )]
    UnknownFormat,
    /// Its text does not follow the rules of its format.
    #[error("not {format}: {reason}")]
    Syntax {
        /// What it was read as.
        format: Format,
        /// What is wrong with it.
        reason: String,
    },
    /// A value is not what it must be.
    #[error("{0}")]
    Value(String),
    /// A key that Springtide's own format does not have.
    #[error("there is no key {} here{}", shown(.key), Meant(.meant))]
    UnknownKey {
        /// As it stands there.
        key: String,
        /// The nearest that there is.
        meant: Option<String>,
    },
    /// A task is a workflow of its own.
    #[error(
        "task {} is a sub-workflow ({kind}), and those are not read: put its tasks in the place of it, or read its file by \
         itself", shown(.task)
    )]
    SubWorkflow {
        /// Its id.
        task: String,
        /// The word for it in the file.
        kind: String,
    },
    /// Two tasks have one id.
    #[error("there is another task {}{}: every task needs an id of its own", shown(.id), First(.first))]
    DuplicateId {
        /// The id.
        id: String,
        /// Where the other one is.
        first: Option<Position>,
    },
    /// An edge is to a task that is not there.
    #[error("there is no task {}{}", shown(.id), Meant(.meant))]
    UnknownTask {
        /// The id that was given.
        id: String,
        /// The nearest that there is.
        meant: Option<String>,
    },
    /// A task uses a file that is not there.
    #[error("there is no [[file]] {}{}", shown(.name), Meant(.meant))]
    UnknownFile {
        /// The name that was given.
        name: String,
        /// The nearest that there is.
        meant: Option<String>,
    },
    /// A task waits for itself.
    #[error("task {} is its own parent: take that edge out", shown(.id))]
    SelfEdge {
        /// Its id.
        id: String,
    },
    /// Tasks wait for one another.
    #[error("tasks wait for one another in a circle: {}; take one of these edges out", Circle(.tasks))]
    Cycle {
        /// Their ids; each is a parent of the next, and the last of the first.
        tasks: Vec<String>,
    },
    /// It is not known how long tasks run.
    #[error("{}", NoRuntime::of(.task, *.more, *.flop))]
    NoRuntime {
        /// The first of them.
        task: String,
        /// How many others there are.
        more: usize,
        /// How much the first of them computes, in floating-point operations, where the file tells that.
        flop: Option<f64>,
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
    /// With where it is in the text.
    pub(crate) fn at(self, at: impl Into<Option<Position>>) -> Problem {
        Problem { at: at.into(), cause: Box::new(self) }
    }
}

/// What is wrong, and where in a text that has no name yet.
#[derive(Debug)]
pub(crate) struct Problem {
    pub at: Option<Position>,
    pub cause: Box<Cause>,
}

impl Problem {
    pub fn value(reason: impl Into<String>, at: impl Into<Option<Position>>) -> Self {
        Cause::Value(reason.into()).at(at)
    }

    pub fn of(self, file: &Path) -> ReadError {
        let Self { at, cause } = self;
        ReadError { place: Place { file: file.to_owned(), at }, cause }
    }
}

/// A piece of a file as it can stand in a message: in quotes, on one line, not too long.
pub(crate) fn shown(text: &str) -> String {
    let start: String = text.chars().take(SHOWN_MAX).collect();
    let dots = if start.len() < text.len() { "..." } else { "" };
    format!("\"{}{dots}\"", start.escape_debug())
}

struct Meant<'a>(&'a Option<String>);

impl fmt::Display for Meant<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(meant) => write!(f, "; did you mean {meant}?"),
            None => Ok(()),
        }
    }
}

struct First<'a>(&'a Option<Position>);

impl fmt::Display for First<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(first) => write!(f, " (in line {})", first.line),
            None => Ok(()),
        }
    }
}

struct Circle<'a>(&'a [String]);

impl fmt::Display for Circle<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for task in self.0.iter().take(CYCLE_SHOWN) {
            write!(f, "{} -> ", shown(task))?;
        }
        if let Some(left) = self.0.len().checked_sub(CYCLE_SHOWN).filter(|left| *left > 0) {
            write!(f, "{left} more -> ")?;
        }
        match self.0.first() {
            Some(first) => f.write_str(&shown(first)),
            None => Ok(()),
        }
    }
}

struct NoRuntime<'a> {
    task: &'a str,
    more: usize,
    flop: Option<f64>,
}

impl<'a> NoRuntime<'a> {
    fn of(task: &'a str, more: usize, flop: Option<f64>) -> Self {
        Self { task, more, flop }
    }
}

impl fmt::Display for NoRuntime<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "task {} has no runtime", shown(self.task))?;
        match self.more {
            0 => {}
            1 => f.write_str(", nor has 1 other")?,
            more => write!(f, ", nor have {more} others")?,
        }
        f.write_str(
            ": give one for tasks that have none, or a table with lines name,runtime_s,processors",
        )?;
        match self.flop {
            Some(flop) => write!(
                f,
                "; or, as it has a size of {flop:e} flop, the speed of a processor in flop/s"
            ),
            None => Ok(()),
        }
    }
}
