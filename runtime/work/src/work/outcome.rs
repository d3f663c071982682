//! The ends of tasks and jobs: an outcome, a halt or a failure; and the errors of a job's input.

use std::fmt;
use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize};

use crate::id::TaskPath;

/// The result of a job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// A checksum of the results, independent of stealing; shown as 16 hex digits.
    pub checksum: u64,
    /// The job's own result object, shown under `result` by `--json`.
    pub result: serde_json::Value,
}

/// An error in a job's options or input files.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct InputError {
    /// The error, its place and the remedy.
    pub message: String,
}

impl InputError {
    /// Creates an input error with this message.
    pub fn new(message: impl fmt::Display) -> Self {
        Self { message: message.to_string() }
    }

    /// Rejects an option's value outside of `range`, with the reason `why` for the limits. For
    /// [`Job::prepare`](super::Job::prepare).
    pub fn check<T: PartialOrd + fmt::Debug>(
        option: &str,
        value: T,
        range: RangeInclusive<T>,
        why: &str,
    ) -> Result<(), Self> {
        if range.contains(&value) {
            return Ok(());
        }
        let (low, high) = range.into_inner();
        Err(Self::new(format!("{option} {value:?}: give a value from {low:?} to {high:?} ({why})")))
    }
}

/// The reason why a task ends without an output: a halt or a failure.
///
/// It is opaque. The runtime halts the work (the node leaves, the job is cancelled, the owner is
/// lost), or the user's code failed. Any error converts to it by `?`.
///
/// The result of a halted context is discarded, so a swallowed halt cannot produce a wrong answer.
pub struct Stop(pub(crate) Box<StopCause>);

#[derive(Debug)]
pub(crate) enum StopCause {
    /// The runtime halts this work.
    Halt(Halt),
    /// The user's code failed.
    Failed(Failure),
}

/// The reason why the runtime halts work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Halt {
    /// The job ended or was cancelled, or another of its tasks failed.
    Cancelled,
    /// The node leaves; the work continues on another node.
    Leave,
    /// The node that owned the result is lost or no longer needs it.
    OwnerLost,
}

/// The failure of a task, and the job's error.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{}", describe(.name, .path, .message, *.panicked, *.exit))]
pub struct Failure {
    /// The failing task's name, empty if unknown.
    pub name: String,
    /// The path of the failing task.
    pub path: TaskPath,
    /// The error's text with its causes, or the panic's message.
    pub message: String,
    /// Whether the task panicked.
    pub panicked: bool,
    /// Whether `name` and `path` already identify the failing task.
    pub(crate) located: bool,
    /// The exit code of the job's command, if a process of it caused the failure. It is the last
    /// field, since compact frames have no names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit: Option<u8>,
}

/// Describes a failure. That of a command names its program, and no task.
fn describe(
    name: &str,
    path: &TaskPath,
    message: &str,
    panicked: bool,
    exit: Option<u8>,
) -> String {
    match exit {
        Some(_) => message.to_owned(),
        None if panicked => format!("task {name} at {path} panicked: {message}"),
        None => format!("task {name} at {path} failed: {message}"),
    }
}

impl Stop {
    /// Fails the job with this message and the current task's path.
    pub fn fail(message: impl fmt::Display) -> Self {
        Self::failed(message.to_string(), false)
    }

    pub(crate) fn failed(message: String, panicked: bool) -> Self {
        Self(Box::new(StopCause::Failed(Failure {
            name: String::new(),
            path: TaskPath::root(),
            message,
            panicked,
            exit: None,
            located: false,
        })))
    }

    /// Fails the job with this message, and this exit code of its command if there is one.
    pub(crate) fn fail_with_exit(message: String, exit: Option<u8>) -> Self {
        let mut stop = Self::failed(message, false);
        if let StopCause::Failed(failure) = &mut *stop.0 {
            failure.exit = exit;
        }
        stop
    }

    /// The message of a failure; a halt means that the node leaves the work.
    pub(crate) fn text(&self) -> String {
        match &*self.0 {
            StopCause::Halt(halt) => format!("the work is halted: {halt:?}"),
            StopCause::Failed(failure) => failure.message.clone(),
        }
    }

    pub(crate) fn failure(failure: Failure) -> Self {
        Self(Box::new(StopCause::Failed(failure)))
    }

    /// Puts the place before a failure's message; leaves a halt unchanged.
    pub(crate) fn within(mut self, place: impl fmt::Display) -> Self {
        if let StopCause::Failed(failure) = &mut *self.0 {
            failure.message = format!("{place}: {}", failure.message);
        }
        self
    }

    pub(crate) fn halt(halt: Halt) -> Self {
        Self(Box::new(StopCause::Halt(halt)))
    }
}

/// Converts any error to a failure of the job, with the text of its causes. `Stop` itself is no
/// `Error`, which makes this possible.
impl<E: std::error::Error> From<E> for Stop {
    #[cold]
    fn from(error: E) -> Self {
        Self::failed(error_text(&error), false)
    }
}

impl fmt::Debug for Stop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.0 {
            StopCause::Halt(halt) => write!(f, "Stop(halt: {halt:?})"),
            StopCause::Failed(failure) => write!(f, "Stop({failure})"),
        }
    }
}

/// The error and its causes in one line.
pub(crate) fn error_text(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}
