//! Messages of a job's roles to workers, and their replies. Data only.

use serde::{Deserialize, Serialize};
use springtide_base::id::{Epoch, Incarnation, JobId, NodeId};
use springtide_metrics::NodeReport;
use springtide_net::membership::{View, ViewChange};
use springtide_remote::remote_message;
use springtide_work::event::Record;
use springtide_work::work::{RootResults, SavedRoot};

use crate::policy::Memory;

/// Default epoch of a message from an older program that does not send one.
pub fn unknown_epoch() -> Epoch {
    Epoch(u32::MAX)
}

/// To a worker: the members have changed.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct NewView {
    /// The job of the view.
    pub job: JobId,
    /// The view to install.
    pub view: View,
}

/// To a worker: a change of the members. The reply is whether it knew the view that the change
/// applies to, or a later one; otherwise it needs the whole view.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ChangeView {
    /// The job of the view.
    pub job: JobId,
    /// Change of the view.
    pub change: ViewChange,
}

/// To a worker, by its cluster's coordinator: the job has ended. It replies when its threads have
/// stopped.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Finish {
    /// The job that ended.
    pub job: JobId,
    /// Epoch of the coordinator that ends it; an older one is ignored.
    #[serde(default = "unknown_epoch")]
    pub epoch: Epoch,
}

/// To a worker, by the job's coordinator: leave the job in order. It replies when it has handed
/// everything back. By then the view marks this node as leaving.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Leave {
    /// The job to leave.
    pub job: JobId,
    /// Epoch of the coordinator; an older one is ignored.
    #[serde(default = "unknown_epoch")]
    pub epoch: Epoch,
    /// Milliseconds after which it leaves in any case, and its tasks are executed elsewhere.
    /// Absent: when its tasks are done.
    #[serde(default)]
    pub deadline_ms: Option<u64>,
}

/// A checkpoint of a job's root, with the epoch of the root.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RootCheckpoint {
    /// Epoch of the root.
    pub epoch: Epoch,
    /// State of the root.
    pub saved: SavedRoot,
    /// Number of iterations that the root had reported.
    #[serde(default)]
    pub iterations: u64,
}

/// State that a coordinator hands over to its successor.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct HandoverState {
    /// Epoch of the coordinator.
    pub epoch: Epoch,
    /// Memory of the policy.
    pub memory: Memory,
    /// Checkpoint of the root; absent: the root restarts.
    #[serde(default)]
    pub root: Option<RootCheckpoint>,
    /// Tasks finished or running elsewhere, of a root that stopped without a checkpoint.
    #[serde(default)]
    pub left: RootResults,
}

/// To a worker, by the job's coordinator: handover state, since this node will be made its
/// successor.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PrepareSuccessor {
    /// The job handed over.
    pub job: JobId,
    /// Handover state of the coordinator.
    pub bequest: HandoverState,
}

/// To a worker, by the job's coordinator: keep this checkpoint, unless there is a newer one here.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoreCheckpoint {
    /// The job of the checkpoint.
    pub job: JobId,
    /// The checkpoint to keep.
    pub kept: RootCheckpoint,
}

/// To a worker, by a new coordinator of the job: which checkpoint does it keep? The reply is
/// immediate, independent of the checkpoint's size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FindCheckpoint {
    /// The job of the checkpoint.
    pub job: JobId,
}

/// Identifies a checkpoint. Newer ones are greater.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct CheckpointId {
    /// Epoch of the root.
    pub epoch: Epoch,
    /// Number of the checkpoint.
    pub seq: u64,
}

impl RootCheckpoint {
    /// Returns the checkpoint's identification.
    pub fn mark(&self) -> CheckpointId {
        CheckpointId { epoch: self.epoch, seq: self.saved.seq }
    }
}

/// To a worker with the newest checkpoint, by a new coordinator of the job: fetches the checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GetCheckpoint {
    /// The job of the checkpoint.
    pub job: JobId,
}

/// Final report of a worker on a job.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct FinalReport {
    /// Final statistics, including latencies.
    pub report: NodeReport,
    /// Events recorded on it.
    pub records: Vec<Record>,
}

/// To a worker: does this incarnation of a member take part in the job? A worker of another node
/// forwards the question to the member.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProbeMember {
    /// The job of both members.
    pub job: JobId,
    /// The member in question.
    pub node: NodeId,
    /// Its incarnation in the sender's view.
    pub incarnation: Incarnation,
}

remote_message! {
    "new-view" => NewView;
    "change-view" => ChangeView -> bool;
    "finish" => Finish -> Option<FinalReport>;
    "leave" => Leave -> Option<FinalReport>;
    "keep-root" => StoreCheckpoint;
    "find-root" => FindCheckpoint -> Option<CheckpointId>;
    "get-root" => GetCheckpoint -> Option<RootCheckpoint>;
    "bequeath" => PrepareSuccessor;
    "probe-member" => ProbeMember -> bool;
}
