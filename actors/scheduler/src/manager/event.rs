//! Inputs and outputs of the malleability manager: data only.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use springtide_base::id::{ClusterId, JobId};

use super::JobRequirements;
use crate::policy::malleability::{FreeHost, PlacementPlan, PlacementTransfer};
use crate::policy::provisioning::Time;
use crate::reservation::ReservationId;

/// A submission of a job.
#[derive(Clone, Debug, PartialEq)]
pub struct JobSubmission {
    /// Number of the job.
    pub job: JobId,
    /// Requirements of the job.
    pub need: Box<JobRequirements>,
}

/// Inputs of the malleability manager.
#[derive(Clone, Debug, PartialEq)]
pub enum ManagerEvent {
    /// Several jobs are submitted at once.
    SubmitAll(Vec<JobSubmission>),
    /// A job that others wait for has ended.
    DependencyEnded {
        /// The ended job.
        job: JobId,
        /// Whether it has succeeded.
        ok: bool,
    },
    /// A site was polled.
    Polled {
        /// Cluster of the site.
        cluster: ClusterId,
        /// Number of working processors.
        size: u32,
        /// Processors that other users' programs occupy.
        others: u32,
        /// Number of processors if all worked. A job that needs more never fits.
        whole: u32,
    },
    /// The hosts of a cluster. The event replaces the last one about this cluster. It is needed
    /// only while a job has needs for each of its nodes.
    HostsPolled {
        /// Cluster of the hosts.
        cluster: ClusterId,
        /// What nodes do not use of them.
        free: Vec<FreeHost>,
        /// The same hosts without nodes.
        whole: Vec<FreeHost>,
    },
    /// A site cannot be polled.
    Unreachable {
        /// Cluster of the site.
        cluster: ClusterId,
        /// Reason of the failure.
        reason: String,
    },
    /// A cluster grants fewer processors than it shows, or no longer does so.
    CapacityLimited {
        /// Cluster of the processors.
        cluster: ClusterId,
        /// Description of the limit; absent: the limit has ended.
        reason: Option<String>,
    },
    /// The complete set of a file's replicas.
    Replicas {
        /// Name of the file.
        file: String,
        /// Length of the file, in bytes.
        bytes: u64,
        /// Clusters that have the file.
        clusters: BTreeSet<ClusterId>,
        /// Differences between the replicas, if any. Jobs that need such a file are not placed.
        differs: Option<String>,
    },
    /// The rate of a link was measured.
    LinkMeasured {
        /// Sending cluster of the link.
        from: ClusterId,
        /// Receiving cluster of the link.
        to: ClusterId,
        /// Rate in bytes per second.
        rate: f64,
    },
    /// A job is submitted.
    Submit {
        /// Number of the job, never used before.
        job: JobId,
        /// Requirements of the job.
        need: Box<JobRequirements>,
    },
    /// The transfers of [`ManagerAction::TransferFiles`] are complete.
    Moved {
        /// Job that needs the files.
        job: JobId,
    },
    /// The transfers failed. The job waits again, and its tries increase by one.
    MoveFailed {
        /// Job that needs the files.
        job: JobId,
        /// Reason of the failure.
        reason: String,
    },
    /// A job runs on part or all of [`ManagerAction::Claim`]; the rest of the claim is free.
    Claimed {
        /// Job that was started.
        job: JobId,
        /// Processors by cluster.
        got: BTreeMap<ClusterId, u32>,
    },
    /// A job of an earlier manager runs on these processors.
    Resumed {
        /// Number of the job.
        job: JobId,
        /// Requirements of the job.
        need: Box<JobRequirements>,
        /// Original placement of the job.
        placed: PlacementPlan,
        /// Start of the job in microseconds of the Unix epoch, if known.
        since: Option<Time>,
        /// Processors by cluster.
        sizes: Box<BTreeMap<ClusterId, u32>>,
    },
    /// A job could not be started; all claimed processors are free.
    ClaimFailed {
        /// Job that failed to start.
        job: JobId,
        /// Reason of the failure.
        reason: String,
        /// Clusters that cannot start the job: it is not placed there again.
        without: BTreeSet<ClusterId>,
    },
    /// A job's answer to [`ManagerAction::Offer`] or [`ManagerAction::Shrink`].
    Answer {
        /// Job that answers.
        job: JobId,
        /// Number of the change.
        change: u64,
        /// Processors that the job accepts or will release; absent: it did not answer.
        count: Option<u32>,
    },
    /// More processors of [`ManagerAction::Hold`] are held.
    Held {
        /// Job that the processors are held for.
        job: JobId,
        /// Number of the change.
        change: u64,
        /// Number of additional processors.
        count: u32,
    },
    /// A job gets more processors than it was to get, because nodes of a fixed size are granted as
    /// a whole. Precedes the other reports of the change.
    Enlarged {
        /// Job that the processors are for.
        job: JobId,
        /// Number of the change; absent: the start of the job.
        change: Option<u64>,
        /// Cluster of the processors.
        cluster: ClusterId,
        /// Number of additional processors.
        count: u32,
    },
    /// Processors of [`ManagerAction::Hold`] could not be held, and are free.
    NotHeld {
        /// Job that the processors were for.
        job: JobId,
        /// Number of the change.
        change: u64,
        /// Number of processors that failed.
        count: u32,
        /// Reason of the failure.
        reason: String,
    },
    /// A job computes on processors of [`ManagerAction::Recruit`].
    Grown {
        /// Job that has grown.
        job: JobId,
        /// Number of the change.
        change: u64,
        /// Number of processors in use.
        count: u32,
    },
    /// A job's processors are free, because it shrank or lost them.
    Freed {
        /// Job that computed on the processors.
        job: JobId,
        /// Cluster of the processors.
        cluster: ClusterId,
        /// Number of freed processors.
        count: u32,
        /// Whether the job released them voluntarily. Such processors are not offered to it again.
        voluntary: bool,
    },
    /// Processors of [`ManagerAction::Force`] cannot be taken, because the job cannot run without
    /// them.
    NotForced {
        /// Job that keeps the processors.
        job: JobId,
        /// Cluster of the processors.
        cluster: ClusterId,
        /// Number of processors that stay.
        count: u32,
    },
    /// A job's root has moved. The root's processor cannot be released.
    RootMoved {
        /// Job of the root.
        job: JobId,
        /// Cluster of the root; absent: the root is being restarted.
        cluster: Option<ClusterId>,
    },
    /// Processors of [`ManagerAction::Unhold`] are free.
    Unheld {
        /// Job that the processors were held for.
        job: JobId,
        /// Cluster of the processors.
        cluster: ClusterId,
        /// Number of freed processors.
        count: u32,
    },
    /// The owner of some of a job's processors will take them away. The event replaces the last one
    /// about this job and cluster, and follows each change of the counts.
    RevocationsPlanned {
        /// Job that computes on the processors.
        job: JobId,
        /// Cluster of the processors.
        cluster: ClusterId,
        /// Number of the processors that the job still has.
        count: u32,
        /// Number of these that the job keeps until replacements have joined.
        unreplaced: u32,
    },
    /// A job has measured its weighted average efficiency.
    EfficiencyMeasured {
        /// Job that measured.
        job: JobId,
        /// Efficiency, from 0 to 1.
        efficiency: f64,
        /// Number of processors during the measurement.
        processors: u32,
    },
    /// A running job requests more processors. The event replaces its last request.
    ///
    /// Processors that the job has got since must be reported here before [`ManagerEvent::Grown`].
    /// Otherwise, the manager would grant them twice.
    GrowthRequested {
        /// Job that requests processors.
        job: JobId,
        /// The request itself.
        want: GrowthRequest,
    },
    /// The next nodes of a job get more memory.
    MemoryRaised {
        /// Job of the nodes.
        job: JobId,
        /// Memory for each processor, in bytes.
        memory: u64,
    },
    /// A job's size is limited. A larger job must shrink, but not below its minimum.
    SizeLimited {
        /// Job that is limited.
        job: JobId,
        /// Greatest number of processors; absent: no limit.
        most: Option<u32>,
    },
    /// A job has ended; its processors become free one by one ([`ManagerEvent::Freed`]).
    Ended {
        /// Job that has ended.
        job: JobId,
    },
    /// A waiting job is cancelled.
    Withdraw {
        /// Job that is cancelled.
        job: JobId,
    },
    /// The time of [`Manager::due`](super::Manager::due) has come.
    Tick,
}

/// A running job's request to grow.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GrowthRequest {
    /// Number of additional processors; 0 withdraws the request.
    pub count: u32,
    /// Time after which an urgent request is refused. Other jobs shrink for an urgent one. Absent:
    /// the request is granted when processors are free.
    pub timeout: Option<Duration>,
    /// Clusters to grow in; empty: all clusters that the job may use.
    pub clusters: BTreeSet<ClusterId>,
    /// Clusters to avoid, because none of their known nodes meets the job's requirements.
    pub excluded_clusters: BTreeSet<ClusterId>,
}

/// Final statement of a reservation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ReservationBill {
    /// Number of the reservation.
    pub id: ReservationId,
    /// Name of the reservation.
    pub name: String,
    /// Agreed cost of the reservation.
    pub cost: f64,
    /// Penalty for unused processors, in addition to the cost.
    pub penalty: f64,
    /// Processor-seconds on which its jobs ran.
    pub used_s: f64,
    /// Processor-seconds that were reserved.
    pub had_s: f64,
    /// Reason why the reservation ended.
    pub why: String,
}

/// Outputs of the malleability manager.
#[derive(Clone, Debug, PartialEq)]
pub enum ManagerAction {
    /// Transfer a job's files; answered by [`ManagerEvent::Moved`] or [`ManagerEvent::MoveFailed`].
    TransferFiles {
        /// Job that needs the files.
        job: JobId,
        /// Files, with source and target clusters.
        transfers: Vec<PlacementTransfer>,
    },
    /// Start a job; answered by [`ManagerEvent::Claimed`] or [`ManagerEvent::ClaimFailed`].
    ///
    /// Transfers of its files may still be under way.
    Claim {
        /// Job to start.
        job: JobId,
        /// Placement of the job, and its reason.
        placed: PlacementPlan,
    },
    /// A job fails before its start.
    Fail {
        /// Job that fails.
        job: JobId,
        /// Reason of the failure.
        reason: String,
    },
    /// Offer processors to a job; answered by [`ManagerEvent::Answer`].
    Offer {
        /// Job that gets the offer.
        job: JobId,
        /// Number of the change.
        change: u64,
        /// Cluster of the processors.
        cluster: ClusterId,
        /// Number of offered processors.
        count: u32,
        /// Time limit for the answer.
        within: Duration,
        /// Reason of the offer.
        why: String,
    },
    /// Hold processors for a job; answered by [`ManagerEvent::Held`] and [`ManagerEvent::NotHeld`].
    Hold {
        /// Job that the processors are for.
        job: JobId,
        /// Number of the change.
        change: u64,
        /// Cluster of the processors.
        cluster: ClusterId,
        /// Number of processors.
        count: u32,
    },
    /// Give held processors to a job; answered by [`ManagerEvent::Grown`].
    Recruit {
        /// Job that gets the processors.
        job: JobId,
        /// Number of the change.
        change: u64,
        /// Cluster of the processors.
        cluster: ClusterId,
        /// Number of processors.
        count: u32,
    },
    /// Release a complete or incomplete hold; answered by [`ManagerEvent::Unheld`].
    Unhold {
        /// Job that the processors were for.
        job: JobId,
        /// Number of the change.
        change: u64,
        /// Cluster of the processors.
        cluster: ClusterId,
        /// Number of processors.
        count: u32,
        /// Reason of the release.
        reason: String,
    },
    /// Ask a job to release processors; answered by [`ManagerEvent::Answer`], and by
    /// [`ManagerEvent::Freed`] later.
    Shrink {
        /// Job that is asked.
        job: JobId,
        /// Number of the change.
        change: u64,
        /// Cluster of the processors.
        cluster: ClusterId,
        /// Number of processors.
        count: u32,
        /// Whether the job must release them.
        mandatory: bool,
        /// Time limit for the answer.
        answer_timeout: Duration,
        /// Time limit for the whole release.
        within: Duration,
        /// Purpose of the release.
        why: String,
    },
    /// Take processors from a job that did not release them in time; answered by
    /// [`ManagerEvent::Freed`].
    Force {
        /// Job that loses the processors.
        job: JobId,
        /// Cluster of the processors.
        cluster: ClusterId,
        /// Number of processors.
        count: u32,
        /// Reason of the order.
        reason: String,
    },
    /// End a running job whose time is over.
    End {
        /// Job to end.
        job: JobId,
        /// Reason of the order.
        reason: String,
    },
    /// Delete an ended reservation from disk, and record its bill.
    ReservationEnded(Box<ReservationBill>),
    /// Refuse an urgent request to grow.
    Refuse {
        /// Job whose request is refused.
        job: JobId,
        /// Reason of the refusal.
        reason: String,
    },
    /// Log a protocol violation of a job or site.
    ProtocolViolation {
        /// Description of the violation and of its handling.
        what: String,
    },
}
