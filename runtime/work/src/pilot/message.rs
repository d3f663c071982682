//! Orders to a pilot, and its reports. Data only.

use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::command::EnvironmentVariable;
use crate::id::{ClusterId, NodeId};
use crate::wire::{self, WireError};

use crate::work::OutputStream;

/// A file that a task reads or writes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskFile {
    /// Its name in the cluster's directory of files.
    pub stored: String,
    /// Its path in the task's directory. One that ends with a slash is a directory, which is stored
    /// [packed](super::pack).
    pub name: String,
    /// Its length in bytes, for an output of a [placeholder](TaskProgram::Placeholder).
    #[serde(default)]
    pub bytes: u64,
}

/// What a task runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum TaskProgram {
    /// A program.
    Command {
        /// An absolute path, a name that the node looks up in its `PATH`, or the name of an input
        /// after `./`.
        program: String,
        /// The arguments of the program.
        arguments: Vec<String>,
    },
    /// No program: the task waits and then writes outputs of zeros.
    Placeholder {
        /// The wait in seconds.
        seconds: f64,
    },
}

/// A record that a pilot stores with the outputs of a completed task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskRecord {
    /// Its name in the cluster's directory of files.
    pub stored: String,
    /// The bytes of the record.
    pub content: Bytes,
}

/// A task of a pilot.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PilotTask {
    /// The number of the task among those of its client. A later attempt has another number.
    pub number: u64,
    /// What the task runs.
    pub program: TaskProgram,
    /// Variables to set in the environment that the node's process has.
    pub environment: Vec<EnvironmentVariable>,
    /// Files that the task reads.
    pub inputs: Vec<TaskFile>,
    /// Files that the task must write.
    pub outputs: Vec<TaskFile>,
    /// The path in the task's directory of its standard input; nothing if absent.
    pub stdin: Option<String>,
    /// The path in the task's directory of its standard output; the task's log if absent.
    pub stdout: Option<String>,
    /// The path in the task's directory of its standard error; the task's log if absent.
    pub stderr: Option<String>,
    /// Processors of the node that the task needs.
    pub processors: u32,
    /// The most memory of the task, in bytes. A task that uses more is ended.
    pub memory_bytes: Option<u64>,
    /// The longest running time. A task that takes longer is ended.
    pub time_limit: Option<Duration>,
    /// The most bytes of an output.
    pub output_bytes_max: u64,
    /// The record of the task's completion, if its node has a directory of files.
    pub record: Option<TaskRecord>,
}

/// An order of the client to a pilot.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum PilotOrder {
    /// Run a task.
    Run(Box<PilotTask>),
    /// End a task, whether it runs or waits. Its end is reported.
    End {
        /// The task to end.
        number: u64,
    },
    /// This number of bytes of tasks' logs has arrived. A pilot keeps back logs that exceed a limit
    /// until then.
    AcknowledgeLogs {
        /// The number of bytes.
        bytes: u64,
    },
    /// End the pilot once all its tasks have ended.
    Finish,
}

/// The end of a task.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum TaskEnd {
    /// The task has ended well, and its outputs are in the cluster's directory.
    Completed,
    /// The task failed.
    Failed {
        /// The exit code of its program, as a shell has it; absent if another reason failed it.
        exit: Option<u8>,
        /// The predicate of a sentence about the task.
        reason: String,
    },
    /// The task ran longer than its limit.
    TimeLimit,
    /// The task used more memory than its limit, or the kernel ended it because memory was short.
    MemoryLimit {
        /// The most bytes that it was seen to use.
        used: u64,
    },
    /// The client ended the task.
    Cancelled,
    /// The node leaves the pilot.
    Interrupted,
}

/// The resources that a task used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TaskUsage {
    /// Seconds from the start of its program to the end of it.
    pub wall_s: f64,
    /// Processor time of its processes in seconds, without those that it left running.
    pub cpu_s: f64,
    /// The most memory that its processes had in use, in bytes; 0 if it was too short to measure.
    pub memory_bytes: u64,
}

/// A report of a pilot.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum PilotReport {
    /// The pilot is ready for orders.
    Ready {
        /// Its node.
        node: NodeId,
        /// The cluster of the node.
        cluster: ClusterId,
        /// The name of its host.
        host: String,
        /// The processors of its node.
        processors: u32,
    },
    /// A task has started.
    Started {
        /// The task.
        number: u64,
    },
    /// A piece of a task's log.
    Log {
        /// The task.
        number: u64,
        /// The stream of the piece.
        stream: OutputStream,
        /// The bytes of the piece.
        bytes: Bytes,
    },
    /// A task has ended. Its whole log precedes this report.
    Ended {
        /// The task.
        number: u64,
        /// How it ended.
        end: TaskEnd,
        /// What it used.
        usage: TaskUsage,
    },
}

/// Encodes orders for one message to a pilot.
///
/// # Errors
/// An order does not encode.
pub fn encode_orders(orders: &[PilotOrder]) -> Result<Bytes, WireError> {
    wire::encode_payload(&orders)
}

/// Decodes the reports in one message of a pilot.
///
/// # Errors
/// The bytes are not reports.
pub fn decode_reports(body: &[u8]) -> Result<Vec<PilotReport>, WireError> {
    wire::decode_payload(body)
}
