//! Messages between the scheduler and running jobs about nodes, and draining.
//!
//! This module must not depend on how the scheduler decides, nor on how a coordinator uses its
//! nodes.
//!
//! Life cycle of a node: it is *free* until a [`NodeGrant`] names it. From then on it belongs to
//! the job, until the coordinator sends [`NodeFreed`], or the node or the job ends. Messages of a
//! coordinator carry its epoch. Those with an epoch older than the job's are ignored, or answered
//! with [`AuthorityError`].

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use springtide_base::id::{ClusterId, Epoch, Incarnation, JobId, NodeId};
use springtide_base::processors::Processors;
use springtide_metrics::{BenchmarkSpec, SpecId, SpeedMeasurement};
use springtide_net::membership::Member;
use springtide_net::net::Contact;
use springtide_remote::remote_message;

use super::{ResizeAck, ResizeError};
use crate::job::RootProgress;
use crate::policy::{NodeOffer, SchedulerRequest};

/// Request of a coordinator to the scheduler: `request.count` processors *more* than are open
/// already.
///
/// All other fields replace those of the open request. The request stays open until it is granted
/// or withdrawn, or the job ends. Granted nodes follow as [`NodeGrant`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RequestNodes {
    /// Job that requests nodes.
    pub job: JobId,
    /// Epoch of the coordinator.
    pub epoch: Epoch,
    /// Number of additional processors, and the criteria for all open ones. Speeds are in the unit
    /// of `benchmark`, or of the last [`SpeedsMeasured`] without one.
    pub request: SchedulerRequest,
    /// Benchmark for nodes of unknown speed: one free node of each kind runs it. Absent: nodes are
    /// ranked by their hardware.
    #[serde(default)]
    pub benchmark: Option<BenchmarkSpec>,
    /// Measured round-trip times from the job's root, in seconds.
    #[serde(default)]
    pub rtt_s: BTreeMap<ClusterId, f64>,
    /// Measured rates between each cluster and the job's other clusters, in bytes per second.
    #[serde(default)]
    pub bandwidth: BTreeMap<ClusterId, f64>,
}

/// Request of a job itself, by its coordinator: it needs this many more processors.
///
/// The answer is an error if the job can never have them. Otherwise, granted nodes or
/// [`GrowthRefused`] follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NeedNodes {
    /// Job that requests processors.
    pub job: JobId,
    /// Epoch of the coordinator.
    pub epoch: Epoch,
    /// Number of additional processors.
    pub count: u32,
    /// Time limit in milliseconds of an urgent request, for which other jobs shrink.
    #[serde(default)]
    pub timeout_ms: Option<u64>,
    /// Number of the request among the job's; 0: unnumbered.
    #[serde(default)]
    pub number: u64,
}

/// Notification to a coordinator: an urgent request for processors is refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GrowthRefused {
    /// Job that requested processors.
    pub job: JobId,
    /// Reason of the refusal.
    pub reason: String,
    /// Number of the request; 0: the job's owner made it.
    #[serde(default)]
    pub number: u64,
}

/// Request of a coordinator to the scheduler: some of the open processors are no longer needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WithdrawNodes {
    /// Job that withdraws the request.
    pub job: JobId,
    /// Epoch of the coordinator.
    pub epoch: Epoch,
    /// Number of processors that are not needed.
    pub count: Processors,
}

/// Number of open processors of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenNodes {
    /// Requested processors that have not reached the coordinator, including those of a
    /// [`NodeGrant`] under way.
    pub open: Processors,
}

/// Reasons why the scheduler refuses a message of a coordinator or node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum AuthorityError {
    /// Another coordinator has replaced the sender.
    #[error(
        "{job} is coordinated under epoch {}, not {}: this coordinator has been replaced and must \
         end",
        known.0, asked.0
    )]
    Epoch {
        /// Number of the job.
        job: JobId,
        /// Epoch of the sender.
        asked: Epoch,
        /// Present epoch of the job.
        known: Epoch,
    },
    /// The node does not belong to the job.
    #[error("node {node} is no member of {job}: it must leave that job")]
    NoMember {
        /// Number of the job.
        job: JobId,
        /// The node that asked.
        node: NodeId,
    },
    /// The job does not exist, or is being ended.
    #[error("{job} has ended, or never ran: its coordinator must end")]
    Over {
        /// Number of the job.
        job: JobId,
    },
}

/// Report of a coordinator to the scheduler: the efficiency of its nodes.
///
/// The malleability manager gives processors to the jobs that use them best.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct JobEfficiency {
    /// Job that sends the report.
    pub job: JobId,
    /// Epoch of the coordinator.
    pub epoch: Epoch,
    /// Weighted average efficiency of the last period, from 0 to 1.
    pub efficiency: f64,
    /// Number of processors during the period.
    pub processors: u32,
}

/// Offer of the scheduler to a coordinator: more processors of a cluster are available.
///
/// The answer is the number that the job accepts. Their nodes follow as [`NodeGrant`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OfferGrowth {
    /// Job that gets the offer.
    pub job: JobId,
    /// Cluster of the processors.
    pub cluster: ClusterId,
    /// Number of offered processors.
    pub count: u32,
    /// Reason of the offer.
    pub why: String,
}

/// Order of the scheduler to a coordinator: release nodes of a cluster, the worst first.
///
/// The answer is the number of processors of the nodes that will leave.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AskShrink {
    /// Job that must shrink.
    pub job: JobId,
    /// Cluster of the nodes.
    pub cluster: ClusterId,
    /// Number of processors to release.
    pub count: u32,
    /// Whether the nodes are taken from the job if it does not release them.
    pub mandatory: bool,
    /// Time limit in milliseconds.
    pub timeout_ms: u64,
    /// Purpose of the release.
    pub why: String,
}

/// Report of a coordinator to the scheduler: a node does not work for the job, or never did.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeFreed {
    /// Number of the job.
    pub job: JobId,
    /// Epoch of the coordinator.
    pub epoch: Epoch,
    /// Node that is free.
    pub node: NodeId,
    /// Incarnation of the node.
    pub incarnation: Incarnation,
    /// Reason why it is free.
    pub why: ReleaseReason,
}

/// Reasons why a node is free.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ReleaseReason {
    /// The node left in order, and its worker ended the job.
    Left,
    /// The node was granted and did not join. Its worker must end the job before the node is
    /// granted again.
    Refused {
        /// Reason of the refusal.
        reason: String,
        /// Job that the node works for instead. If it is not a member there, it must end that job,
        /// too.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        busy: Option<JobId>,
    },
}

/// Question of a coordinator to the scheduler: which nodes are free?
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GetOffers {
    /// Job whose coordinator asks.
    pub job: JobId,
    /// Epoch of the coordinator.
    pub epoch: Epoch,
}

/// Question of a coordinator to the scheduler: a free node of a cluster, to measure its link.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GetSample {
    /// Job whose coordinator asks.
    pub job: JobId,
    /// Epoch of the coordinator.
    pub epoch: Epoch,
    /// Cluster of the node.
    pub cluster: ClusterId,
}

/// Nodes that a job could get.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Offers {
    /// Free nodes that run the job's program and are not needed by a waiting job.
    pub offers: BTreeMap<ClusterId, NodeOffer>,
    /// Number of open processors, as in [`OpenNodes`].
    pub open: Processors,
    /// Number of the processors of the grid's working nodes, free or not.
    pub existing: Processors,
}

/// Subscription of a coordinator: notify it when faster nodes become free ([`BetterFree`]).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Subscribe {
    /// Job whose coordinator subscribes.
    pub job: JobId,
    /// Epoch of the coordinator.
    pub epoch: Epoch,
    /// Speed of a processor to exceed, in the job's unit; absent: ends the subscription.
    pub faster_than: Option<f64>,
}

/// Report of a coordinator to the scheduler: measured speeds of nodes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SpeedsMeasured {
    /// Job that sends the report.
    pub job: JobId,
    /// Epoch of the coordinator.
    pub epoch: Epoch,
    /// Benchmark that defines the unit of speed.
    pub spec: SpecId,
    /// Speeds of all threads of a node together.
    pub speeds: BTreeMap<NodeId, f64>,
}

/// Report of a coordinator to the scheduler: the progress of the job's root.
///
/// The scheduler compares it with the progress under earlier epochs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RootAdvanced {
    /// Job that sends the report.
    pub job: JobId,
    /// Epoch of the coordinator.
    pub epoch: Epoch,
    /// Progress as reported by the root.
    pub reached: RootProgress,
}

/// Grant of the scheduler to a coordinator: these nodes belong to the job.
///
/// The coordinator assigns the job to them itself, or sends [`NodeFreed`]. If the message is not
/// delivered, the nodes return to the pool and the request stays open.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NodeGrant {
    /// Job that gets the nodes.
    pub job: JobId,
    /// The nodes, best first.
    pub nodes: Vec<GrantedNode>,
    /// Number of processors that are still open.
    pub open: Processors,
}

/// A node that a job may use.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GrantedNode {
    /// Name of the node.
    pub node: NodeId,
    /// Entry of the node for the view.
    pub member: Member,
    /// Speed of all its processors in the job's unit, if it was measured on this node or one of its
    /// kind.
    #[serde(default)]
    pub speed: Option<f64>,
}

impl GrantedNode {
    /// Processors of the node.
    pub fn processors(&self) -> Processors {
        self.member.processors()
    }
}

/// Order of the scheduler to a coordinator: these nodes must leave the job in order.
///
/// A granted node that has not joined yet is freed as [`ReleaseReason::Refused`]. Nodes that no
/// longer belong to the job are ignored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AskLeave {
    /// Job that loses the nodes.
    pub job: JobId,
    /// Nodes that must leave.
    pub nodes: Vec<NodeId>,
    /// Reason of the order.
    pub reason: String,
    /// Milliseconds after which the nodes stop in any case. Absent: they stay until they are freed.
    #[serde(default)]
    pub deadline_ms: Option<u64>,
}

/// Notification to a coordinator: nodes faster than its subscription have become free.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BetterFree {
    /// Job whose coordinator subscribed.
    pub job: JobId,
    /// All free nodes, as in [`Offers`].
    pub offers: BTreeMap<ClusterId, NodeOffer>,
}

/// Order of an operator, or of a node for itself, to the scheduler: drain these nodes.
///
/// The answer follows when each node is empty or gone. This takes as long as jobs need to release
/// it, so call with a long deadline. Until [`Undrain`], the nodes get no job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Drain {
    /// Nodes to be drained.
    pub nodes: Vec<NodeId>,
    /// Reason of the drain, for display.
    pub reason: String,
    /// Milliseconds after which the nodes stop in any case.
    #[serde(default)]
    pub deadline_ms: Option<u64>,
    /// Incarnation of a node that drains itself before its process ends. The drain ends with this
    /// incarnation, so that the next one serves again.
    #[serde(default)]
    pub incarnation: Option<Incarnation>,
}

/// Order to the scheduler: these nodes may get jobs again. Open drains of them fail.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Undrain {
    /// Nodes to put back into service.
    pub nodes: Vec<NodeId>,
}

/// Answer to a drain: no job has any of the nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DrainResult {
    /// Nodes that run, and are empty.
    pub empty: Vec<NodeId>,
    /// Nodes that do not run.
    pub gone: Vec<NodeId>,
}

/// Reasons why nodes are not drained. An error concerns all nodes of the order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum DrainError {
    /// The order names no node.
    #[error("no node is named: name at least one")]
    NoNodes,
    /// The grid has no such node.
    #[error("the grid has no node {node}: see its status for the names")]
    UnknownNode {
        /// The node that the order names.
        node: NodeId,
    },
    /// A job needs the nodes.
    #[error(
        "{job} needs {min} and would have {}: drain fewer of its nodes, wait until it ends, or \
         cancel it first",
        .left.get()
    )]
    BelowMinimum {
        /// Job that needs them.
        job: JobId,
        /// Minimum of the job; of a managed job, the number of nodes.
        min: Processors,
        /// Number of processors, or nodes, that would remain.
        left: Processors,
    },
    /// Another order put the nodes back into service.
    #[error(
        "node {node} was put back into service before it was empty: drain it again to remove it"
    )]
    Undrained {
        /// Node that was put back.
        node: NodeId,
    },
    /// The scheduler ended.
    #[error("the scheduler ended before the nodes were empty")]
    Ended,
}

/// Request of a coordinator whose root has stopped in order: another node takes its place.
///
/// The successor gets a new epoch. From here on, the sender has no authority.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HandOver {
    /// Job that is handed over.
    pub job: JobId,
    /// Epoch of the coordinator.
    pub epoch: Epoch,
    /// Proposed successor. If it is lost meanwhile, another is selected.
    pub to: NodeId,
    /// Reason of the handover.
    pub reason: String,
}

/// Order of the scheduler to a worker: coordinate a job under a new epoch.
///
/// The node of its coordinator is lost, or hands the job over. The answer follows when the new
/// coordinator runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TakeOver {
    /// Job that is taken over.
    pub job: JobId,
    /// New epoch of the job.
    pub epoch: Epoch,
    /// The job's live nodes.
    pub members: BTreeMap<NodeId, Incarnation>,
    /// The node that is lost, or hands the job over.
    pub lost: NodeId,
    /// Reason of the loss or handover.
    pub reason: String,
    /// Whether the predecessor hands the job over, and remains a member.
    #[serde(default)]
    pub handed: bool,
    /// Time that the job has run, in milliseconds.
    #[serde(default)]
    pub elapsed_ms: u64,
}

/// Order of the scheduler to a worker: run this benchmark.
///
/// The answer follows after the benchmark, or at once if the node works for a job or lacks the
/// benchmark.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MeasureSpeed {
    /// The benchmark to run.
    pub spec: BenchmarkSpec,
}

/// Question of a node at work: does it still belong to this job? If not, it leaves the job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConfirmMembership {
    /// Number of the job.
    pub job: JobId,
    /// The node that asks.
    pub node: NodeId,
    /// Incarnation of the node.
    pub incarnation: Incarnation,
}

/// Question of the scheduler to the coordinator's node: what does the node do for the job?
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditJob {
    /// Number of the job.
    pub job: JobId,
}

/// Answer to an audit: a node's role in a job.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct JobAudit {
    /// Whether the job's coordinator runs. It may be reporting the job's end.
    pub coordinates: bool,
    /// Members of the job, if the node takes part in it.
    pub members: Option<BTreeSet<NodeId>>,
}

remote_message! {
    "request-nodes" => RequestNodes -> Result<OpenNodes, AuthorityError>;
    "need-nodes" => NeedNodes -> Result<ResizeAck, ResizeError>;
    "growth-refused" => GrowthRefused;
    "withdraw-nodes" => WithdrawNodes -> Result<OpenNodes, AuthorityError>;
    "node-freed" => NodeFreed;
    "job-efficiency" => JobEfficiency;
    "offer-growth" => OfferGrowth -> u32;
    "ask-shrink" => AskShrink -> u32;
    "root-advanced" => RootAdvanced;
    "get-offers" => GetOffers -> Result<Offers, AuthorityError>;
    "get-sample" => GetSample -> Result<Option<Contact>, AuthorityError>;
    "subscribe" => Subscribe;
    "speeds-measured" => SpeedsMeasured;
    "nodes-granted" => NodeGrant;
    "ask-leave" => AskLeave;
    "better-free" => BetterFree;
    "drain" => Drain -> Result<DrainResult, DrainError>;
    "undrain" => Undrain -> Result<(), DrainError>;
    "hand-over" => HandOver -> Result<(), AuthorityError>;
    "take-over" => TakeOver -> Result<(), String>;
    "confirm-membership" => ConfirmMembership -> Result<(), AuthorityError>;
    "audit-job" => AuditJob -> JobAudit;
    "measure-speed" => MeasureSpeed -> Result<SpeedMeasurement, String>;
}
