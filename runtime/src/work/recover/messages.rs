//! What nodes say to each other after a loss or about a leave. Compact encoding; golden bytes in `runtime/golden`.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::Identity;
use crate::id::{Epoch, JobId, Peer, TaskPath};
use crate::work::LeaseId;

/// These results are, or are being computed, at `holder`. Sent to every node of the job: inside a cluster directly, to
/// another cluster once, whose coordinator's node passes it on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Orphans {
    /// Which job.
    pub job: JobId,
    /// The sender's view of the job's ownership.
    pub epoch: Epoch,
    /// Who has them.
    pub holder: Peer,
    /// What.
    pub tasks: Vec<Identity>,
}

/// A recomputed parent takes over a result, or a task that still runs: report under this lease.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Adopt {
    /// Which job.
    pub job: JobId,
    /// Of the sender's table.
    pub lease: LeaseId,
    /// Which task; the answer is its result, now or when it has ended, or its return if it is not there.
    pub task: Identity,
}

/// After a link was down: these leases of mine I believe with you. What is not there any more is answered by its result,
/// if that is still kept, else by its return.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Audit {
    /// Which job.
    pub job: JobId,
    /// The leases with their tasks' paths.
    pub leases: Vec<(LeaseId, TaskPath)>,
}

/// A result that comes with a returned task, or word of where one is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kept {
    /// Of which task.
    pub task: Identity,
    /// What.
    pub what: KeptWhat,
}

/// See [`Kept`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum KeptWhat {
    /// The encoded output.
    Output(Bytes),
    /// It is there, finished or running.
    At(Peer),
}
