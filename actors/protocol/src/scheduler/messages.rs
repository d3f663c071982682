//! Messages to the scheduler from clients, sites and coordinators.
//!
//! This module must not depend on how the scheduler decides.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::PathBuf;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use springtide_base::id::{ClusterId, Epoch, Incarnation, JobId, NodeId};
use springtide_net::membership::View;
use springtide_net::net::{Address, Contact};
use springtide_remote::remote_message;

use super::{JobRequirements, JobView, Kind};
use crate::admit::Principal;
use crate::files::FileStatus;
use crate::hardware::Hardware;
use crate::job::{AssignError, JobParams};
use crate::policy::malleability::{HostCapacity, HostShare, PlacementError, PlacementPlan};
use crate::program::{ProgramDigest, ProgramError, ProgramImage};

/// Request to the scheduler ([`SCHEDULER`](crate::job::SCHEDULER)): run a job.
///
/// The answer follows when all workers have accepted the job, or when it cannot be placed. This may
/// take long, so call with a long deadline. A waiting submission is dropped when its client's link
/// goes down.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Submit {
    /// Registered name of the job's type.
    pub name: String,
    /// Encoded value of the job.
    pub body: Bytes,
    /// Fingerprint of the submitting program's registry.
    pub fingerprint: u64,
    /// Parameters of the run.
    pub params: JobParams,
    /// Nodes by cluster, each at least 1; absent: every working node.
    pub clusters: Option<BTreeMap<ClusterId, u32>>,
    /// The client, whose actor [`CLIENT`](crate::job::CLIENT) is notified about the job.
    pub client: Contact,
    /// The submitting program, for sites that can start it if their nodes run another.
    pub program: Option<PathBuf>,
    /// The submitting program, if the head's store has its file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<ProgramImage>,
    /// Required processors, if the malleability manager is to place, grow and shrink the job.
    /// `clusters` is ignored then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub need: Option<JobRequirements>,
    /// Identity of the submitter. The receiver sets it from the link's certificate, and replaces
    /// the sender's value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub principal: Option<Principal>,
}

/// Answer to a submission: the job runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobGrant {
    /// Number of the job.
    pub job: JobId,
    /// Epoch of the job's coordinator.
    pub epoch: Epoch,
    /// Node of the job's coordinator.
    pub coordinator: Contact,
    /// Members of the job.
    pub view: View,
}

/// Reasons why a submitted job does not run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum SubmitError {
    /// The grid lacks the requested nodes, now and later.
    #[error("the job cannot be placed: {reason}")]
    NotPlaced {
        /// Description of the missing resources.
        reason: String,
    },
    /// The nodes run another program, and their site cannot start the submitting one.
    #[error("the job cannot be placed: {reason}")]
    Program {
        /// Description of the nodes, and the remedy.
        reason: String,
    },
    /// The submitting program is not started on the nodes of a cluster.
    #[error("the job cannot be placed: {0}")]
    Shipping(#[source] Box<ProgramError>),
    /// A worker refused the job.
    #[error("a worker did not take the job: {0}")]
    Refused(#[source] AssignError),
    /// The job was cancelled while it waited.
    #[error("the job was cancelled: {reason}")]
    Cancelled {
        /// Reason of the cancellation.
        reason: String,
    },
    /// The scheduler could not store the job's number and epoch, so that it must not use them.
    #[error("the scheduler cannot write its store: {reason}")]
    Store {
        /// Error message of the operating system.
        reason: String,
    },
}

/// Order to the scheduler: end a job, or remove it from the queue. Unknown jobs are ignored.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CancelJob {
    /// Number of the job.
    pub job: JobId,
    /// Reason for the job's client.
    pub reason: String,
}

/// Order of a client to the scheduler: end all its waiting and running jobs, but for archived ones.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CancelClientJobs {
    /// The client that sends the order.
    pub client: NodeId,
    /// Reason for the jobs' clients.
    pub reason: String,
}

/// Question of a client to the scheduler: why does its first waiting job wait? Absent: none waits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GetWait {
    /// The client that asks.
    pub client: NodeId,
}

/// Local order to the scheduler: run a job without waiting.
///
/// The job's number is returned at once. Its client is notified of everything else, including that
/// the job cannot be placed.
#[derive(Debug, actix::Message)]
#[rtype(result = "Result<JobId, SubmitError>")]
pub struct Enqueue(pub Submit);

/// Local order of the archive to the scheduler: as [`Enqueue`], for several jobs at once.
#[derive(Debug, actix::Message)]
#[rtype(result = "Result<SubmittedJobs, SubmitError>")]
pub struct SubmissionBatch(pub Vec<Submit>);

/// Answer to a submission of several jobs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SubmittedJobs {
    /// The numbers of the submitted jobs, which are the first ones, in order.
    pub jobs: Vec<JobId>,
    /// Why the next job, and with it all later ones, is not submitted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<SubmitError>,
}

/// Local question to the scheduler: the known jobs. `None` if another scheduler has taken over.
#[derive(Clone, Copy, Debug, actix::Message)]
#[rtype(result = "Option<BTreeSet<JobId>>")]
pub struct GetKnownJobs;

/// Order of a job's owner to the scheduler: change the job's size.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResizeJob {
    /// Number of the job.
    pub job: JobId,
    /// The change of its size.
    pub by: Resize,
}

/// A change of a job's size.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Resize {
    /// Grant the job more processors when some are free.
    Grow {
        /// Number of additional processors.
        count: u32,
        /// Time limit in milliseconds, during which other jobs shrink for this one. Absent: they do
        /// not.
        #[serde(default)]
        timeout_ms: Option<u64>,
        /// Cluster to grow in; absent: any.
        #[serde(default)]
        cluster: Option<ClusterId>,
    },
    /// Take processors from the job, and limit its size to the rest.
    Shrink {
        /// Number of processors to take.
        count: u32,
    },
}

/// Answer to a resize order: the change is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResizeAck {
    /// Present number of processors.
    pub from: u32,
    /// Intended number of processors.
    pub to: u32,
}

/// Reasons why a job's size is not changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum ResizeError {
    /// The job has not started, or has ended.
    #[error("{job} is not running: `job list` shows the running jobs")]
    NotRunning {
        /// Number of the job.
        job: JobId,
    },
    /// The job was submitted with a fixed set of nodes.
    #[error("{job} has a fixed set of nodes: only jobs of `job submit` can be resized")]
    NotManaged {
        /// Number of the job.
        job: JobId,
    },
    /// The job is not malleable.
    #[error("{job} is {kind}: submit it with --kind malleable to change its size")]
    Fixed {
        /// Number of the job.
        job: JobId,
        /// Kind of the job.
        kind: Kind,
    },
    /// The size would be outside the job's bounds.
    #[error("{job} would have {to} processors, and may have {least} to {most}")]
    Bounds {
        /// Number of the job.
        job: JobId,
        /// Requested size in processors.
        to: u32,
        /// Least size in processors.
        least: u32,
        /// Greatest size in processors.
        most: u32,
    },
    /// The grid has no such cluster.
    #[error("the grid has no cluster {cluster}: see the grid's config for the names")]
    UnknownCluster {
        /// The cluster that the order names.
        cluster: ClusterId,
    },
}

/// Question to the scheduler: details of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GetJob {
    /// Number of the job.
    pub job: JobId,
}

/// Question of a job's member or client to the scheduler: who has authority over the job?
///
/// A receiver asks before it accepts a message whose sender or epoch it does not know.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GetAuthority {
    /// Number of the job.
    pub job: JobId,
    /// The node that sent a message about the job.
    pub node: NodeId,
}

/// Authority over a job.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct JobAuthority {
    /// Last issued epoch of the job.
    pub epoch: Epoch,
    /// Node that the epoch was issued to; absent while unknown to the scheduler.
    pub coordinator: Option<NodeId>,
    /// Node of the job's client.
    pub client: Option<NodeId>,
    /// Whether the node in question is a member.
    pub member: bool,
}

/// Details of a job for its owner.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JobDetail {
    /// Status of the job, unless it has ended.
    pub status: Option<JobStatus>,
    /// State in the malleability manager, if the manager has the job.
    pub view: Option<JobView>,
    /// History of the job: seconds ago and description, oldest first.
    pub history: Vec<(f64, String)>,
}

/// Question to the scheduler: where would a job with these requirements be placed?
///
/// If nowhere, the answer states the reasons.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanJob {
    /// Requirements of the job.
    pub need: JobRequirements,
}

/// Reasons why there is no plan.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, thiserror::Error)]
pub enum PlanError {
    /// The requirements are invalid.
    #[error("the job cannot be planned: {0}")]
    Need(String),
    /// No place is free now.
    #[error("{0}")]
    NoPlace(PlacementError),
}

/// Question to the scheduler: the grid's input files.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct GetFiles {}

/// The grid's input files.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GridFiles {
    /// All files, by name.
    pub files: Vec<FileStatus>,
    /// Clusters that keep files, with the processes of their file servers.
    pub servers: BTreeMap<ClusterId, Contact>,
}

/// Question to the scheduler: the status of the grid.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct GetStatus {}

/// Status of the grid.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GridStatus {
    /// Status of each site, by cluster.
    pub sites: BTreeMap<ClusterId, SiteStatus>,
    /// Waiting jobs, then running jobs.
    pub jobs: Vec<JobStatus>,
    /// Whether another scheduler has taken over, so that this one is inactive.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub superseded: bool,
    /// Hosts whose nodes have more compute threads than processors.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub crowded: Vec<CrowdedHost>,
    /// The members of the grid's head, if it has a second one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub members: Vec<HeadMember>,
}

/// A member of the head of a grid: one of two heads, or the witness.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeadMember {
    /// Name of the member.
    pub node: NodeId,
    /// What the member does.
    pub role: HeadRole,
    /// Whether it answers the head that acts.
    pub answers: bool,
    /// Index of the last record that it is known to have; absent for the witness, which stores
    /// positions alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub records: Option<u64>,
}

/// What a member of a grid's head does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HeadRole {
    /// It is the head.
    Acts,
    /// It takes over when the head is lost.
    Waits,
    /// It decides between the heads.
    Witness,
}

/// A host, or a part of it, whose nodes have more compute threads than processors.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CrowdedHost {
    /// Name of the host.
    pub host: String,
    /// Number of nodes on it.
    pub nodes: u32,
    /// Compute threads of these nodes.
    pub threads: u32,
    /// Processors that these nodes may use.
    pub processors: u32,
}

impl fmt::Display for CrowdedHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, nodes, threads, processors } = self;
        let plural = |count: &u32| if *count == 1 { "" } else { "s" };
        write!(
            f,
            "host {host} has {processors} processor{} for {threads} compute thread{} of {nodes} \
             node{}: times of work include waiting for a processor",
            plural(processors),
            plural(threads),
            plural(nodes),
        )
    }
}

impl GridStatus {
    /// Counts the nodes in a state.
    pub fn count(&self, state: NodeState) -> usize {
        self.sites.values().flat_map(|s| &s.nodes).filter(|n| n.state == state).count()
    }

    /// Counts all nodes of the grid.
    pub fn nodes(&self) -> usize {
        self.sites.values().map(|s| s.nodes.len()).sum()
    }
}

/// Status of a cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SiteStatus {
    /// Whether nodes exist only while jobs need them.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub on_demand: bool,
    /// Whether nodes join and leave by themselves. Those that have not joined are `Off`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub joins: bool,
    /// Reason why the site cannot be used now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failing: Option<String>,
    /// Nodes, ordered by name. With hosts, only those that have a share of one.
    pub nodes: Vec<NodeStatus>,
    /// Hosts whose shares nodes are given; empty: nodes have a fixed size.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hosts: Vec<HostStatus>,
}

/// Status of a host whose shares nodes are given.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostStatus {
    /// Name of the host.
    pub host: String,
    /// Number of its processors that nodes may use.
    pub processors: u32,
    /// Number of processors of nodes that are not idle.
    pub used: u32,
    /// Reason why no nodes are started on it now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub left_out: Option<String>,
}

/// Status of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeStatus {
    /// Name of the node.
    pub node: NodeId,
    /// State of the node.
    pub state: NodeState,
    /// Job that the node works for.
    pub job: Option<JobId>,
    /// Number of compute threads, once registered.
    pub threads: Option<u32>,
    /// Process id, once registered.
    pub pid: Option<u32>,
    /// Incarnation of the node, once registered.
    pub incarnation: Option<Incarnation>,
    /// Network address, once registered.
    pub address: Option<Address>,
    /// Reason why the node is lost, broken or drained.
    pub reason: Option<String>,
    /// Milliseconds until the site restarts an absent node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_try_ms: Option<u64>,
}

/// State of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NodeState {
    /// The process is being started or restarted, and has not registered.
    Starting,
    /// The node has registered, and is free.
    Idle,
    /// The node works for a job.
    Busy,
    /// The node runs a benchmark for a job that may get it.
    Measuring,
    /// The node is to be drained, and still works for a job.
    Draining,
    /// The node is empty, and out of service until undrained.
    Drained,
    /// The node was lost repeatedly. Its site retries after increasing delays.
    Broken,
    /// The node has no processor, and none is requested.
    Off,
    /// The node has a processor, and is kept for a job.
    Held,
    /// The node is being stopped, and its processor released.
    Closing,
}

/// Status of a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobStatus {
    /// Number of the job.
    pub job: JobId,
    /// Registered name of the job's type.
    pub name: String,
    /// State of the job.
    pub state: JobState,
    /// Processors of the job by cluster, including those it is releasing.
    pub sizes: BTreeMap<ClusterId, u32>,
    /// Reason why the job waits. For a running job: its open request, and why it is not granted.
    pub waits_for: Option<String>,
    /// Node of the job's coordinator, if the job runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub coordinator: Option<NodeId>,
    /// Identity of the submitter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub principal: Option<Principal>,
}

impl JobStatus {
    /// Counts the job's processors.
    pub fn processors(&self) -> u32 {
        self.sizes.values().sum()
    }
}

/// State of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum JobState {
    /// The job waits for nodes.
    Queued,
    /// The job is being assigned to its workers.
    Assigning,
    /// The job runs.
    Running,
    /// The job's nodes are being released.
    Ending,
}

/// Report of a site at its start to the scheduler: the cluster's nodes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SiteRegistration {
    /// Cluster of the site.
    pub cluster: ClusterId,
    /// Nodes that the site starts or expects.
    pub nodes: Vec<NodeId>,
    /// Whether the site can start nodes with a submitted program.
    pub starts_programs: bool,
    /// Whether the site can start nodes with a program that it receives.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub receives_programs: bool,
    /// Milliseconds for which processors are kept after use. Absent: all nodes always exist, and
    /// are not held on demand.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keep_ms: Option<u64>,
    /// Nodes that exist already, or are being started.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub stubs: BTreeSet<NodeId>,
    /// Whether the site keeps files, which its file server reports.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub files: bool,
    /// Process of the site; absent: the scheduler's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<Contact>,
    /// Whether nodes join by themselves instead of being started by the site.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub joins: bool,
    /// Compute threads of each node that the site starts; 0: unknown until the node registers.
    #[serde(default)]
    pub threads: u32,
    /// Hosts whose shares nodes are given; empty: nodes have a fixed size.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hosts: Vec<HostCapacity>,
    /// Shares of nodes in `stubs`, where the cluster has hosts.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub shares: BTreeMap<NodeId, HostShare>,
}

/// Report of a site with processors on demand: the present numbers, or why they are unknown.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SiteReport {
    /// Cluster of the site.
    pub cluster: ClusterId,
    /// Number of working processors, and how many of them other users occupy.
    pub found: Result<(u32, u32), String>,
}

/// Report of a site with processors on demand: a stub still waits for its processor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StubDelay {
    /// Node of the stub.
    pub node: NodeId,
    /// Reason that the provider states.
    pub reason: String,
}

/// Report of a site with processors on demand: a node's processor is no longer held.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct StubLoss {
    /// Node of the stub.
    pub node: NodeId,
    /// Reason of the end, with the stub's last output if there is any.
    pub reason: String,
    /// What the end says about the capacity of the cluster.
    #[serde(default, skip_serializing_if = "StubLossKind::is_end")]
    pub kind: StubLossKind,
}

/// What the loss of a stub says about the capacity of its cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StubLossKind {
    /// It has ended. If it never had a processor, none was available.
    #[default]
    Ended,
    /// The batch system answers, and refused another job: a limit is reached.
    Refused,
    /// The batch system did not answer, which says nothing.
    Unreachable,
    /// Its node exceeded its memory.
    OutOfMemory,
    /// The program of a job was not started.
    NoProgram,
}

impl StubLossKind {
    fn is_end(&self) -> bool {
        *self == Self::Ended
    }
}

/// Report of a site to the scheduler: a node has registered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeRegistration {
    /// Cluster of the node.
    pub cluster: ClusterId,
    /// Name of the node.
    pub node: NodeId,
    /// Incarnation of the node.
    pub incarnation: Incarnation,
    /// Network address of the node.
    pub address: Address,
    /// Number of compute threads.
    pub threads: u32,
    /// Fingerprint of the node's program registry.
    pub fingerprint: u64,
    /// Digest of the node's program, if the site received it for a job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub program: Option<ProgramDigest>,
    /// Process id of the node.
    pub pid: u32,
    /// Hardware of the node's host.
    #[serde(default)]
    pub hardware: Hardware,
    /// The node's present work.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub work: Option<NodeWork>,
}

/// A node's work at its registration, possibly assigned by an earlier scheduler.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeWork {
    /// Job that the node works for.
    pub job: JobId,
    /// Members of the job, reported by its coordinator and sub-coordinators.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub view: Option<View>,
}

/// Report of a site to the scheduler: a node is lost.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct NodeLoss {
    /// Name of the node.
    pub node: NodeId,
    /// Reason of the loss, with the node's last output if there is any.
    pub reason: String,
    /// Whether the site restarts it soon, so that jobs may wait for it.
    pub returns: bool,
    /// Milliseconds after this message until the site restarts it, if it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_ms: Option<u64>,
}

/// Report of a coordinator: a member was silent too long, and the job continues without it.
///
/// The site is to restart the member.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct MemberSilent {
    /// Job of the member.
    pub job: JobId,
    /// Epoch of the coordinator.
    pub epoch: Epoch,
    /// Node that is silent.
    pub node: NodeId,
    /// Incarnation of the node.
    pub incarnation: Incarnation,
    /// Description of the silence.
    pub reason: String,
    /// Cluster that observes the silence of the job's coordinator itself.
    ///
    /// The coordinator is replaced when clusters with more than half of the job's nodes report this
    /// at about the same time.
    #[serde(default)]
    pub reporting_cluster: Option<ClusterId>,
    /// Reporting node and its incarnation. The report counts while the node is a member. Absent in
    /// older versions.
    #[serde(default)]
    pub reporter: Option<(NodeId, Incarnation)>,
}

remote_message! {
    "submit" => Submit -> Result<JobGrant, SubmitError>;
    "cancel-job" => CancelJob;
    "cancel-jobs-of" => CancelClientJobs;
    "resize-job" => ResizeJob -> Result<ResizeAck, ResizeError>;
    "get-job" => GetJob -> Option<JobDetail>;
    "get-authority" => GetAuthority -> Option<JobAuthority>;
    "plan-job" => PlanJob -> Result<PlacementPlan, PlanError>;
    "get-files" => GetFiles -> GridFiles;
    "get-status" => GetStatus -> GridStatus;
    "get-wait" => GetWait -> Option<String>;
    "site-up" => SiteRegistration;
    "registered" => NodeRegistration;
    "node-lost" => NodeLoss;
    "site-polled" => SiteReport;
    "stub-gone" => StubLoss;
    "stub-waits" => StubDelay;
    "member-silent" => MemberSilent;
}
