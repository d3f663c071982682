//! What running jobs and the scheduler tell each other of nodes, and how nodes are taken out of service.
//!
//! Must not know how the scheduler decides, nor what a coordinator does with its nodes.
//!
//! A node goes through these words: it is *free* until it is in [`NodesGranted`]; from then on it is the job's, until
//! the coordinator says [`NodeFreed`], or the node or the job ends. Messages of a coordinator carry its epoch: those of
//! an older one than the job's are ignored, and answered with [`Stale`] where there is an answer.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use springtide_runtime::id::{ClusterId, Epoch, Incarnation, JobId, NodeId};
use springtide_runtime::membership::Member;
use springtide_runtime::meter::{BenchmarkSpec, Measurement, SpecId};
use springtide_runtime::net::Contact;
use springtide_runtime::remote_message;

use super::{ResizeError, Resized};
use crate::job::Reached;
use crate::policy::{Offer, Request};

/// To the scheduler, by a job's coordinator: `request.count` nodes *more* than are open already. All else replaces what
/// the open request says. It stays open until it is granted or withdrawn, or the job ends; what is granted comes as
/// [`NodesGranted`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RequestNodes {
    /// Which job.
    pub job: JobId,
    /// The coordinator's epoch.
    pub epoch: Epoch,
    /// How many more, and what of all that are open. Speeds are in the unit of `benchmark`; without one, in that of the
    /// last [`SpeedsMeasured`].
    pub request: Request,
    /// What nodes are tried out with of which no speed is known: one free node of each kind. Absent: nodes are ranked
    /// by their hardware.
    #[serde(default)]
    pub benchmark: Option<BenchmarkSpec>,
    /// Round trips from the job's root, in seconds, as far as they were measured.
    #[serde(default)]
    pub rtt_s: BTreeMap<ClusterId, f64>,
    /// Bytes per second between each cluster and the job's others, as far as they were measured.
    #[serde(default)]
    pub bandwidth: BTreeMap<ClusterId, f64>,
}

/// To the scheduler, by a job's coordinator: the job itself says that it needs so many more processors. Answered at once, if it can
/// never have them; else by nodes that are granted, or by [`GrowthRefused`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NeedNodes {
    /// Which job.
    pub job: JobId,
    /// The coordinator's epoch.
    pub epoch: Epoch,
    /// How many more.
    pub count: u32,
    /// It cannot go on without them: others shrink for it, for so many milliseconds at most.
    #[serde(default)]
    pub within_ms: Option<u64>,
    /// Tells this request from others of the job; 0: from none.
    #[serde(default)]
    pub number: u64,
}

/// To a job's coordinator, by the scheduler: what it cannot go on without it does not get.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GrowthRefused {
    /// Which job.
    pub job: JobId,
    /// Why.
    pub reason: String,
    /// That of the request; 0: it had none, for the job's owner made it.
    #[serde(default)]
    pub number: u64,
}

/// To the scheduler, by a job's coordinator: so many of the nodes that are open are not needed any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WithdrawNodes {
    /// Which job.
    pub job: JobId,
    /// The coordinator's epoch.
    pub epoch: Epoch,
    /// How many.
    pub count: u32,
}

/// How many nodes a job has asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Requested {
    /// Asked for and not yet in the coordinator's hands: those whose [`NodesGranted`] is under way are among them.
    pub open: u32,
}

/// The scheduler does not listen to this coordinator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum Stale {
    /// Another coordinates the job.
    #[error("{job} is coordinated under epoch {}, not {}: this coordinator has been replaced and must end", known.0, asked.0)]
    Epoch {
        /// Which job.
        job: JobId,
        /// Whose word was not taken.
        asked: Epoch,
        /// The job's.
        known: Epoch,
    },
    /// The node does not belong to the job.
    #[error("node {node} is no member of {job}: it must leave that job")]
    NoMember {
        /// The job.
        job: JobId,
        /// The node that asked.
        node: NodeId,
    },
    /// There is no such job, or it is being ended.
    #[error("{job} does not run (any more): its coordinator must end")]
    Over {
        /// Which.
        job: JobId,
    },
}

/// To the scheduler, by a job's coordinator: how well its nodes are used. The malleability manager gives processors to jobs that
/// use them best.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct JobEfficiency {
    /// Which job.
    pub job: JobId,
    /// The coordinator's epoch.
    pub epoch: Epoch,
    /// Its weighted average efficiency of the last period, 0 to 1.
    pub efficiency: f64,
    /// Over so many nodes.
    pub processors: u32,
}

/// To a job's coordinator, by the scheduler: so many more nodes of a cluster can be had. Answered with how many it takes; they
/// come as [`NodesGranted`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OfferGrowth {
    /// Which job.
    pub job: JobId,
    /// Where.
    pub cluster: ClusterId,
    /// How many at most.
    pub count: u32,
    /// How it came about.
    pub why: String,
}

/// To a job's coordinator, by the scheduler: let go of nodes of a cluster, the worst first. Answered with how many will go.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AskShrink {
    /// Which job.
    pub job: JobId,
    /// Where.
    pub cluster: ClusterId,
    /// How many.
    pub count: u32,
    /// It must, or they are taken from it.
    pub mandatory: bool,
    /// How long it has, in milliseconds.
    pub within_ms: u64,
    /// For what.
    pub why: String,
}

/// To the scheduler, by a job's coordinator: this node does not work for the job any more, or never did.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeFreed {
    /// Which job.
    pub job: JobId,
    /// The coordinator's epoch.
    pub epoch: Epoch,
    /// Which node.
    pub node: NodeId,
    /// Which life of it.
    pub incarnation: Incarnation,
    /// How it came about.
    pub why: Freed,
}

/// Why a node is free.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Freed {
    /// It has left in order, and its worker has ended the job.
    Left,
    /// It was granted and did not take part. Its worker is told to end the job before the node is given to anybody
    /// else.
    Refused {
        /// Why.
        reason: String,
        /// It works for this job instead. If it is no member there, it is told to end that job, too.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        busy: Option<JobId>,
    },
}

/// To the scheduler, by a job's coordinator: which nodes are free?
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GetOffers {
    /// Which job.
    pub job: JobId,
    /// The coordinator's epoch.
    pub epoch: Epoch,
}

/// To the scheduler, by a job's coordinator: where is a free node of this cluster, to measure the way there?
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GetSample {
    /// Which job.
    pub job: JobId,
    /// The coordinator's epoch.
    pub epoch: Epoch,
    /// Which cluster.
    pub cluster: ClusterId,
}

/// What a job could have.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Offers {
    /// Free nodes that run the job's program and are not wanted by a job that waits.
    pub offers: BTreeMap<ClusterId, Offer>,
    /// As in [`Requested`].
    pub open: u32,
    /// Nodes of the grid that work, free or not.
    pub existing: u32,
}

/// To the scheduler, by a job's coordinator: tell me when better nodes become free ([`BetterFree`]).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Subscribe {
    /// Which job.
    pub job: JobId,
    /// The coordinator's epoch.
    pub epoch: Epoch,
    /// Better than this, in the job's unit of speed; absent: no more.
    pub faster_than: Option<f64>,
}

/// To the scheduler, by a job's coordinator: so fast were nodes at work.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SpeedsMeasured {
    /// Which job.
    pub job: JobId,
    /// The coordinator's epoch.
    pub epoch: Epoch,
    /// The speeds' unit.
    pub spec: SpecId,
    /// All threads of a node together.
    pub speeds: BTreeMap<NodeId, f64>,
}

/// To the scheduler, by a job's coordinator: how far the job's root got, as it says itself. Whether that is further than
/// under earlier epochs the scheduler knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RootAdvanced {
    /// Which job.
    pub job: JobId,
    /// The coordinator's epoch.
    pub epoch: Epoch,
    /// How far.
    pub reached: Reached,
}

/// To a job's coordinator: these nodes are the job's. It assigns the job to them itself, or says [`NodeFreed`]. If this
/// is not delivered they go back to the pool and the request stays open.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NodesGranted {
    /// Which job.
    pub job: JobId,
    /// The nodes, best first.
    pub nodes: Vec<GrantedNode>,
    /// How many more are asked for.
    pub open: u32,
}

/// A node that a job may use.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GrantedNode {
    /// Which.
    pub node: NodeId,
    /// Its part in the view.
    pub member: Member,
    /// Its speed in the job's unit, where it, or one of its kind, was measured.
    #[serde(default)]
    pub speed: Option<f64>,
}

/// To a job's coordinator: these nodes are to leave the job, in order. One that is granted but takes no part yet is
/// freed as [`Freed::Refused`]; one that is the job's no more is none of the coordinator's concern.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AskLeave {
    /// Which job.
    pub job: JobId,
    /// Who.
    pub nodes: Vec<NodeId>,
    /// Why.
    pub reason: String,
    /// After so many milliseconds they go in any case; absent: they stay until they are freed.
    #[serde(default)]
    pub deadline_ms: Option<u64>,
}

/// To a job's coordinator: nodes faster than it subscribed to have become free.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BetterFree {
    /// Which job.
    pub job: JobId,
    /// All that is free, as in [`Offers`].
    pub offers: BTreeMap<ClusterId, Offer>,
}

/// To the scheduler, by whoever runs the grid, or by a node for itself: these nodes are to be empty. Answered when each
/// of them is (or is gone), which takes as long as the jobs need to let it go: call with a long deadline. Until
/// [`Undrain`] they get no job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Drain {
    /// Which.
    pub nodes: Vec<NodeId>,
    /// Why, for whoever looks at the grid.
    pub reason: String,
    /// After so many milliseconds they go in any case.
    #[serde(default)]
    pub deadline_ms: Option<u64>,
    /// Given by a node that drains itself because its process is to end: the drain ends with this life, so that the
    /// next one serves again.
    #[serde(default)]
    pub life: Option<Incarnation>,
}

/// To the scheduler: these nodes may get jobs again. Drains of them that are not answered yet end with an error.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Undrain {
    /// Which.
    pub nodes: Vec<NodeId>,
}

/// No job holds any of the nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Drained {
    /// They run, and are empty.
    pub empty: Vec<NodeId>,
    /// They do not run.
    pub gone: Vec<NodeId>,
}

/// Why nodes are not drained. None of a message's nodes is then.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum DrainError {
    /// It names nobody.
    #[error("no node is named: name at least one")]
    NoNodes,
    /// There is no such node.
    #[error("the grid has no node {node}: look at its status for the names")]
    UnknownNode {
        /// As it was named.
        node: NodeId,
    },
    /// A job needs them.
    #[error(
        "{job} needs {min_nodes} nodes and would have {left}: drain fewer nodes of it, wait until it ends, or cancel it first"
    )]
    BelowMinimum {
        /// Which job.
        job: JobId,
        /// Fewest that it may have.
        min_nodes: u32,
        /// What would be left.
        left: u32,
    },
    /// Somebody wants them back.
    #[error(
        "node {node} was put back into service before it was empty: drain it again if it is to go"
    )]
    Undrained {
        /// Which.
        node: NodeId,
    },
    /// The scheduler ended.
    #[error("the scheduler ended before the nodes were empty")]
    Ended,
}

/// To the scheduler, by a job's coordinator whose root has stopped in order: another node is to take its place, under a new
/// epoch. From here on this coordinator has no say.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HandOver {
    /// Which job.
    pub job: JobId,
    /// The coordinator's epoch.
    pub epoch: Epoch,
    /// Which node; if it is lost meanwhile, another is found.
    pub to: NodeId,
    /// Why.
    pub reason: String,
}

/// To a worker, by the scheduler: the node of the job's coordinator is lost, or hands the job over, and this one takes its place
/// under a new epoch. Answered when its coordinator is there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TakeOver {
    /// Which job.
    pub job: JobId,
    /// The new epoch.
    pub epoch: Epoch,
    /// The job's nodes that live.
    pub members: BTreeMap<NodeId, Incarnation>,
    /// The node that is lost, or hands over.
    pub lost: NodeId,
    /// How it was lost, or why it hands over.
    pub reason: String,
    /// It hands over, and remains a member.
    #[serde(default)]
    pub handed: bool,
    /// How long the job has run, in milliseconds.
    #[serde(default)]
    pub elapsed_ms: u64,
}

/// To a worker, by the scheduler: run this benchmark. Answered when it has, or at once if the node serves a job or
/// knows not how.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MeasureSpeed {
    /// What to run.
    pub spec: BenchmarkSpec,
}

/// To the scheduler, by a node at work: do I still belong to this job? A node that does not leaves
/// the job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConfirmMembership {
    /// The job.
    pub job: JobId,
    /// The node that asks.
    pub node: NodeId,
    /// Its incarnation.
    pub incarnation: Incarnation,
}

/// To the worker on the node of a job's coordinator, by the scheduler: what does this node do for
/// the job?
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditJob {
    /// The job.
    pub job: JobId,
}

/// What a node does for a job.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct JobAudit {
    /// The job's coordinator is there. It may be telling the job's end.
    pub coordinates: bool,
    /// The job's members, if the node takes part in the job.
    pub members: Option<BTreeSet<NodeId>>,
}

remote_message! {
    "request-nodes" => RequestNodes -> Result<Requested, Stale>;
    "need-nodes" => NeedNodes -> Result<Resized, ResizeError>;
    "growth-refused" => GrowthRefused;
    "withdraw-nodes" => WithdrawNodes -> Result<Requested, Stale>;
    "node-freed" => NodeFreed;
    "job-efficiency" => JobEfficiency;
    "offer-growth" => OfferGrowth -> u32;
    "ask-shrink" => AskShrink -> u32;
    "root-advanced" => RootAdvanced;
    "get-offers" => GetOffers -> Result<Offers, Stale>;
    "get-sample" => GetSample -> Result<Option<Contact>, Stale>;
    "subscribe" => Subscribe;
    "speeds-measured" => SpeedsMeasured;
    "nodes-granted" => NodesGranted;
    "ask-leave" => AskLeave;
    "better-free" => BetterFree;
    "drain" => Drain -> Result<Drained, DrainError>;
    "undrain" => Undrain -> Result<(), DrainError>;
    "hand-over" => HandOver -> Result<(), Stale>;
    "take-over" => TakeOver -> Result<(), String>;
    "confirm-membership" => ConfirmMembership -> Result<(), Stale>;
    "audit-job" => AuditJob -> JobAudit;
    "measure-speed" => MeasureSpeed -> Result<Measurement, String>;
}
