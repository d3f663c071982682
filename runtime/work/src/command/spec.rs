//! The description of a command: what its processes run, and by which rules.
//!
//! Data only, independent of nodes.

use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

/// The most bytes that a command's processes may read from standard input.
pub const STDIN_MAX: usize = 1 << 20;

/// The longest time between SIGTERM and SIGKILL. A head waits 20 s for a node that leaves a job.
pub const GRACE_MAX: Duration = Duration::from_secs(15);

/// The part of a job that gets one process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ProcessUnit {
    /// The whole job: one process, on its first node.
    Job,
    /// Each node.
    #[default]
    Node,
    /// Each processor of each node.
    Processor,
}

impl ProcessUnit {
    /// The words of the units, as an option has them.
    pub const WORDS: &'static [(&'static str, Self)] =
        &[("job", Self::Job), ("node", Self::Node), ("processor", Self::Processor)];
}

/// An input file of a command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommandInput {
    /// Its name in the clusters' directories of files.
    pub stored: String,
    /// Its name in the directory in which the processes run.
    pub name: String,
}

/// A command: the program that each process of a job runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CommandSpec {
    /// The program: an absolute path, a name that each node looks up in its `PATH`, or the name of
    /// an input after `./`.
    pub program: String,
    /// The arguments of the program.
    pub arguments: Vec<String>,
    /// Variables to set in the environment that a node's process has.
    #[serde(default)]
    pub environment: Vec<EnvironmentVariable>,
    /// The directory in which the processes run; a new one for each node if absent.
    #[serde(default)]
    pub directory: Option<PathBuf>,
    /// The directory of the submission, for the environment alone.
    #[serde(default)]
    pub submit_directory: Option<PathBuf>,
    /// What each process reads from standard input, at most [`STDIN_MAX`] bytes.
    #[serde(default)]
    pub stdin: Option<Bytes>,
    /// Files that lie in the directory in which the processes run.
    #[serde(default)]
    pub inputs: Vec<CommandInput>,
    /// The part of the job that gets one process.
    #[serde(default)]
    pub unit: ProcessUnit,
    /// The number of starts after the first one, for losses of nodes.
    #[serde(default)]
    pub restarts: u32,
    /// The time between SIGTERM and SIGKILL, at most [`GRACE_MAX`].
    #[serde(default)]
    pub grace: Duration,
}

/// A variable of an environment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EnvironmentVariable {
    /// The name of the variable.
    pub name: String,
    /// The value of the variable.
    pub value: String,
}
