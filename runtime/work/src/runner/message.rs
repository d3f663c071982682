//! Orders of a client to the root of its runners' job, and reports of the root. Data only.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::frame::{CallOutcome, FunctionCall};
use crate::id::{ClusterId, NodeId};
use crate::wire::{self, WireError};

/// An order of the client to the root.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RunnerOrder {
    /// Publish a shared object.
    Put {
        /// The number of the object, from 1.
        object: u32,
        /// Its bytes.
        data: Bytes,
    },
    /// Run a task.
    Submit {
        /// The number of the task among those of the client.
        task: u64,
        /// The function and its arguments.
        call: FunctionCall,
    },
    /// Do not run a task, or end it if it has started.
    Cancel {
        /// The task.
        task: u64,
    },
    /// The client is there. A client sends an order at least every
    /// [`ALIVE_INTERVAL`](super::ALIVE_INTERVAL).
    Alive,
    /// End the job once all tasks have ended.
    Finish,
}

/// A report of the root to the client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RunnerReport {
    /// A root has started. It knows nothing of an earlier root's objects and tasks.
    Ready {
        /// The node of the root.
        node: NodeId,
        /// The cluster of the node.
        cluster: ClusterId,
        /// The processors of the job.
        processors: u32,
    },
    /// A task has ended.
    Done {
        /// The task.
        task: u64,
        /// Its end.
        outcome: CallOutcome,
    },
    /// Lines that a runner has written to its standard output or standard error.
    Output {
        /// The node of the runner.
        node: NodeId,
        /// Whole lines; bytes that are not UTF-8 are replaced.
        text: String,
    },
    /// A log record of a task.
    Log {
        /// The node of the task.
        node: NodeId,
        /// The level: `error`, `warn`, `info` or `debug`.
        level: String,
        /// The text of the record.
        text: String,
    },
    /// The progress of a task, or of one of its descendants.
    Progress {
        /// The node of the task.
        node: NodeId,
        /// The task of the client.
        task: u64,
        /// The amount done so far.
        done: u64,
        /// The total amount.
        total: u64,
        /// The unit of both amounts.
        what: String,
    },
    /// The job has grown or shrunk.
    Processors {
        /// The processors of the job.
        processors: u32,
    },
}

/// Encodes orders for one message to a root.
///
/// # Errors
/// The orders are too long.
pub fn encode_orders(orders: &[RunnerOrder]) -> Result<Bytes, WireError> {
    wire::encode_payload(&orders)
}

/// Decodes the reports in one message of a root.
///
/// # Errors
/// The bytes are not reports.
pub fn decode_reports(body: &[u8]) -> Result<Vec<RunnerReport>, WireError> {
    wire::decode_payload(body)
}
