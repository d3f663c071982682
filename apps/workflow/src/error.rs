//! Errors of reading a workflow, each with its file, its place, the mistake and a remedy.
//!
//! This module does not depend on the reading of formats.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use crate::foreign::ForeignFormat;
use crate::format::Format;
use crate::model::Position;

/// The maximum length of a quoted piece of a file in a message, in characters.
const SHOWN_MAX: usize = 60;

/// The maximum number of tasks of a cycle that a message lists.
const CYCLE_SHOWN: usize = 12;

/// A workflow, or a table of runtimes, cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("{place}: {cause}")]
pub struct ReadError {
    /// The place of the mistake.
    pub place: TextPosition,
    /// The mistake and its remedy.
    pub cause: Box<Cause>,
}

/// A place in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TextPosition {
    /// The path of the file, as the caller named it.
    pub file: PathBuf,
    /// The position in the file, if it is known.
    pub at: Option<Position>,
}

impl fmt::Display for TextPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.file.display().fmt(f)?;
        match self.at {
            Some(Position { line, column }) => write!(f, ":{line}:{column}"),
            None => Ok(()),
        }
    }
}

/// The kind of a mistake.
#[derive(Debug, thiserror::Error)]
pub enum Cause {
    /// The system cannot read the file.
    #[error("cannot be read: {0}")]
    Unreadable(io::Error),
    /// The path is a directory.
    #[error("is a directory: name the workflow file in it")]
    Directory,
    /// The file exceeds the limit of size.
    #[error("is larger than {} MiB, the most that is read", limit >> 20)]
    TooLarge {
        /// The limit, in bytes.
        limit: u64,
    },
    /// The file is empty.
    #[error("is empty: a workflow has at least one task")]
    Empty,
    /// The file describes no task.
    #[error("has no tasks: a workflow has at least one")]
    NoTasks,
    /// The text is not UTF-8.
    #[error("is not UTF-8 here: save it as UTF-8 text")]
    NotUtf8,
    /// Neither the name nor the content of the file determines its format.
    #[error(
        "is in no format that is read: WfFormat (.json), DAX (.dax, .xml), Pegasus 5 (.yml), DOT \
         (.dot, .gv) or Springtide's own (.toml); name it so, or say the format"
    )]
    UnknownFormat,
    /// The file is in another language of workflows.
    #[error("is {}, which is not read: {}", .0.name, .0.remedy)]
    ForeignFormat(&'static ForeignFormat),
    /// The text violates the syntax of its format.
    #[error("not {format}: {reason}")]
    Syntax {
        /// The format that the text was parsed as.
        format: Format,
        /// The violation of the syntax.
        reason: String,
    },
    /// A value is not valid.
    #[error("{0}")]
    Value(String),
    /// Springtide's own format has no such key.
    #[error("there is no key {} here{}", shown(.key), Suggestion(.meant))]
    UnknownKey {
        /// The key in the file.
        key: String,
        /// The most similar known key.
        meant: Option<String>,
    },
    /// A task is a workflow of its own.
    #[error(
        "task {} is a sub-workflow ({kind}), and those are not read: put its tasks in the place of \
         it, or read its file by itself", shown(.task)
    )]
    SubWorkflow {
        /// The id of the task.
        task: String,
        /// The word for it in the file.
        kind: String,
    },
    /// Two tasks have one id.
    #[error(
        "there is another task {}{}: every task needs an id of its own",
        shown(.id),
        FirstPosition(.first)
    )]
    DuplicateId {
        /// The id of both tasks.
        id: String,
        /// The position of the other task.
        first: Option<Position>,
    },
    /// An edge refers to an unknown task.
    #[error("there is no task {}{}", shown(.id), Suggestion(.meant))]
    UnknownTask {
        /// The id in the edge.
        id: String,
        /// The most similar known id.
        meant: Option<String>,
    },
    /// A task uses an unknown file.
    #[error("there is no [[file]] {}{}", shown(.name), Suggestion(.meant))]
    UnknownFile {
        /// The name in the task.
        name: String,
        /// The most similar known name.
        meant: Option<String>,
    },
    /// A task is its own parent.
    #[error("task {} is its own parent: take that edge out", shown(.id))]
    SelfEdge {
        /// The id of the task.
        id: String,
    },
    /// Tasks depend on one another in a cycle.
    #[error(
        "tasks wait for one another in a circle: {}; take one of these edges out",
        Circle(.tasks)
    )]
    Cycle {
        /// The ids of the tasks; each is a parent of the next, and the last of the first.
        tasks: Vec<String>,
    },
    /// The runtimes of tasks are unknown.
    #[error("{}", NoRuntime::of(.task, *.more, *.flop))]
    NoRuntime {
        /// The id of the first such task.
        task: String,
        /// The number of other such tasks.
        more: usize,
        /// The work of the first one in floating-point operations, if the file has it.
        flop: Option<f64>,
    },
    /// The file exceeds a limit.
    #[error("has more than {limit} {what}, the most that is read")]
    TooMany {
        /// The limited quantity.
        what: &'static str,
        /// The limit of the quantity.
        limit: usize,
    },
}

impl Cause {
    /// Adds the position in the text.
    pub(crate) fn at(self, at: impl Into<Option<Position>>) -> WorkflowProblem {
        WorkflowProblem { at: at.into(), cause: Box::new(self) }
    }
}

/// A mistake and its position, in a text without a name.
#[derive(Debug)]
pub(crate) struct WorkflowProblem {
    pub at: Option<Position>,
    pub cause: Box<Cause>,
}

impl WorkflowProblem {
    pub fn value(reason: impl Into<String>, at: impl Into<Option<Position>>) -> Self {
        Cause::Value(reason.into()).at(at)
    }

    pub fn of(self, file: &Path) -> ReadError {
        let Self { at, cause } = self;
        ReadError { place: TextPosition { file: file.to_owned(), at }, cause }
    }
}

/// Quotes a piece of a file for a message: on one line, and not too long.
pub(crate) fn shown(text: &str) -> String {
    let start: String = text.chars().take(SHOWN_MAX).collect();
    let dots = if start.len() < text.len() { "..." } else { "" };
    format!("\"{}{dots}\"", start.escape_debug())
}

struct Suggestion<'a>(&'a Option<String>);

impl fmt::Display for Suggestion<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(meant) => write!(f, "; did you mean {meant}?"),
            None => Ok(()),
        }
    }
}

struct FirstPosition<'a>(&'a Option<Position>);

impl fmt::Display for FirstPosition<'_> {
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
