//! What a worker is told by the job's roles, and what it answers. Data only.

use serde::{Deserialize, Serialize};
use springtide_runtime::event::Record;
use springtide_runtime::id::{Epoch, JobId};
use springtide_runtime::membership::{View, ViewChange};
use springtide_runtime::meter::NodeReport;
use springtide_runtime::remote_message;
use springtide_runtime::work::{RootLeft, SavedRoot};

use crate::policy::Memory;

/// Of a message that does not say it, from a program that knows of none.
pub(crate) fn newest() -> Epoch {
    Epoch(u32::MAX)
}

/// To a worker: the members have changed.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct NewView {
    /// Which job.
    pub job: JobId,
    /// The members from now on.
    pub view: View,
}

/// To a worker: how the members have changed. Answered by whether it knew the view of which this is a change, or a later one; if
/// not, it needs the whole.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ChangeView {
    /// Which job.
    pub job: JobId,
    /// The change.
    pub change: ViewChange,
}

/// To a worker, by its cluster's coordinator: the job has ended. The answer comes when its threads have stopped.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Finish {
    /// Which job.
    pub job: JobId,
    /// Of the coordinator that ends it: a former one is not heard.
    #[serde(default = "newest")]
    pub epoch: Epoch,
}

/// To a worker, by the job's coordinator: leave the job in order. Answered when nothing of it is left here; by then the view says
/// that this node leaves.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Leave {
    /// Which job.
    pub job: JobId,
    /// Of the coordinator that wants it: a former one is not heard.
    #[serde(default = "newest")]
    pub epoch: Epoch,
    /// After so many milliseconds it goes in any case, and what it still runs is run elsewhere; absent: when it is done.
    #[serde(default)]
    pub deadline_ms: Option<u64>,
}

/// A checkpoint of a job's root, and under which epoch that ran.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptRoot {
    /// The epoch.
    pub epoch: Epoch,
    /// The checkpoint.
    pub saved: SavedRoot,
    /// How many iterations the root had told of.
    #[serde(default)]
    pub iterations: u64,
}

/// What a coordinator that hands its job over leaves to its heir.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Bequest {
    /// The coordinator's epoch.
    pub epoch: Epoch,
    /// What it has learned.
    pub memory: Memory,
    /// Where the root goes on; absent: from its start.
    #[serde(default)]
    pub root: Option<KeptRoot>,
    /// What is finished, or runs elsewhere, of a root that did not stop at a checkpoint.
    #[serde(default)]
    pub left: RootLeft,
}

/// To a worker, by the job's coordinator: this node will be asked to take its place.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Bequeath {
    /// Which job.
    pub job: JobId,
    /// With what.
    pub bequest: Bequest,
}

/// To a worker, by the job's coordinator: keep this checkpoint, unless there is a newer one here.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeepRoot {
    /// Which job.
    pub job: JobId,
    /// The checkpoint.
    pub kept: KeptRoot,
}

/// To a worker, by a new coordinator of the job: which checkpoint is kept here? Answered at once, however large that is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FindRoot {
    /// Which job.
    pub job: JobId,
}

/// Which checkpoint a node keeps: the greater, the newer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct RootMark {
    /// Under which epoch the root ran.
    pub epoch: Epoch,
    /// Its number.
    pub seq: u64,
}

impl KeptRoot {
    /// Which it is.
    pub fn mark(&self) -> RootMark {
        RootMark { epoch: self.epoch, seq: self.saved.seq }
    }
}

/// To a worker that keeps the newest, by a new coordinator of the job: that checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GetRoot {
    /// Which job.
    pub job: JobId,
}

/// A worker's last word on a job.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct FinalReport {
    /// Its numbers, latencies among them.
    pub report: NodeReport,
    /// What happened on it.
    pub records: Vec<Record>,
}

remote_message! {
    "new-view" => NewView;
    "change-view" => ChangeView -> bool;
    "finish" => Finish -> Option<FinalReport>;
    "leave" => Leave -> Option<FinalReport>;
    "keep-root" => KeepRoot;
    "find-root" => FindRoot -> Option<RootMark>;
    "get-root" => GetRoot -> Option<KeptRoot>;
    "bequeath" => Bequeath;
}
