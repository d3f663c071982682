//! Heartbeats inside a cluster, as frames of a few bytes. Data only.

use serde::{Deserialize, Serialize};
use springtide_base::id::{Epoch, JobId};

/// A worker's heartbeat. The link identifies its sender and incarnation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Heartbeat {
    /// The job of both nodes.
    pub job: JobId,
    /// Epoch of the sender's view.
    pub epoch: Epoch,
    /// Version within the epoch.
    pub version: u64,
    /// Whether the sender's view is partial.
    pub partial: bool,
    /// Whether it requests a reply.
    pub asks: bool,
}

/// Reply of the cluster's coordinator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeartbeatReply {
    /// The job of both nodes.
    pub job: JobId,
    /// Whether the receiver is a member; if not, it was declared dead.
    pub member: bool,
}
