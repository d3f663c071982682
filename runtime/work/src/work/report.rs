//! Reports of a running job to its client, and the checkpoints among them.

use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::outcome::Outcome;
use super::phase_times::PhaseTimes;
use crate::id::NodeId;

/// A report of a running job.
#[derive(Clone, Debug, PartialEq)]
pub enum ProgressReport {
    /// An iteration has ended.
    Iteration,
    /// The phases of the iteration that ends next.
    Phases(PhaseTimes),
    /// The progress of the job.
    Progress {
        /// The amount done so far.
        done: u64,
        /// The total amount.
        total: u64,
        /// The unit of both amounts.
        what: String,
    },
    /// All processors of the job take each of its steps together, and wait for each other in it.
    Synchronous,
    /// A line of text for the user.
    Say {
        /// The text of the line.
        text: String,
    },
    /// A file for the run directory.
    Artifact {
        /// The file's plain name.
        name: String,
        /// The file's contents.
        bytes: Bytes,
    },
    /// A piece of the output of a command's process.
    Output {
        /// The rank of the process.
        rank: u32,
        /// The attempt of the process, from 1.
        attempt: u32,
        /// The number of processes of the attempt.
        processes: u32,
        /// The stream of the piece.
        stream: OutputStream,
        /// The bytes of the piece.
        bytes: Bytes,
    },
    /// A message to the job's client.
    ClientMessage {
        /// The encoded message, whose meaning the job defines.
        body: Bytes,
    },
    /// The outcome that the job would have if it ended now.
    Preliminary {
        /// The preliminary outcome.
        outcome: Outcome,
    },
    /// A checkpoint from which another root can continue.
    Checkpoint(SavedRoot),
    /// The job requests more nodes.
    NeedNodes {
        /// The number of additional nodes.
        more: u32,
        /// The time within which the job needs them; `None`: it can continue without them.
        within: Option<Duration>,
    },
    /// The program no longer needs these nodes: they may leave the job.
    Release {
        /// The names of the nodes.
        nodes: Vec<NodeId>,
    },
}

/// An output stream of a command's process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OutputStream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// A checkpoint of a job's root: the state from which another root continues.
///
/// It is stored as a named map, so fields may be added. It does not contain the shared objects:
/// [`Job::resume`](super::Job::resume) publishes them again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedRoot {
    /// The index of the root's next child. With it, children created after the checkpoint get their
    /// original paths, by which their results are found.
    pub next_child: u32,
    /// The number of the checkpoint, from 1. A resumed root continues the count, and a restarted
    /// one begins at 1. So among roots of several epochs the epoch is compared first.
    pub seq: u64,
    /// The state given to [`Context::checkpoint`](super::Context::checkpoint), encoded.
    pub state: Bytes,
}
