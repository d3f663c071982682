//! What the scheduler is told and asked.
//!
//! Must not know how it decides.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::PathBuf;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use springtide_runtime::id::{ClusterId, Epoch, Incarnation, JobId, NodeId};
use springtide_runtime::membership::View;
use springtide_runtime::net::{Address, Contact};
use springtide_runtime::remote_message;

use super::manager::{JobView, Kind, Need};
use crate::admit::Principal;
use crate::files::catalogue::FileStatus;
use crate::hardware::Hardware;
use crate::job::{AssignError, JobParams};
use crate::policy::malleability::{NoPlace, Placed};

/// To the scheduler (published as [`SCHEDULER`](crate::job::SCHEDULER)): run a job. Answered when all its workers have
/// taken it, or when it cannot be placed; that may take long, so call with a long deadline. A submission whose client's link
/// goes down is dropped.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Submit {
    /// The registered name.
    pub name: String,
    /// The encoded job value.
    pub body: Bytes,
    /// Fingerprint of the submitting program's registry.
    pub fingerprint: u64,
    /// How to run it.
    pub params: JobParams,
    /// Nodes by cluster, each at least 1; absent: every node that works.
    pub clusters: Option<BTreeMap<ClusterId, u32>>,
    /// Who submits: its actor [`CLIENT`](crate::job::CLIENT) hears of the job.
    pub client: Contact,
    /// The submitting program, for sites that can start it where their nodes run another.
    pub program: Option<PathBuf>,
    /// What processors it needs, if the scheduler is to place it among others and to grow and shrink it; `clusters` is not
    /// looked at then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub need: Option<Need>,
    /// Who submits, as the receiver reads it from the certificate of the link. What a sender writes here is replaced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub principal: Option<Principal>,
}

/// A submitted job runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Granted {
    /// Which.
    pub job: JobId,
    /// Its ownership generation.
    pub epoch: Epoch,
    /// The node of its coordinator.
    pub coordinator: Contact,
    /// Who takes part.
    pub view: View,
}

/// Why a submitted job does not run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum SubmitError {
    /// The grid has not what is asked, now or later.
    #[error("the job cannot be placed: {reason}")]
    NotPlaced {
        /// Which cluster lacks what.
        reason: String,
    },
    /// The nodes run another program and their site cannot start the submitting one.
    #[error("the job cannot be placed: {reason}")]
    Program {
        /// Which nodes, and the mend.
        reason: String,
    },
    /// A worker did not take it.
    #[error("a worker did not take the job: {0}")]
    Refused(#[source] AssignError),
    /// It was cancelled while it waited.
    #[error("the job was cancelled: {reason}")]
    Cancelled {
        /// Why.
        reason: String,
    },
    /// The scheduler could not note the job's number and epoch, so it must not use them.
    #[error("the scheduler cannot write its store: {reason}")]
    Store {
        /// The system's word.
        reason: String,
    },
}

/// To the scheduler: end a job, or take it from the queue. Unknown jobs are none of its concern.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CancelJob {
    /// Which.
    pub job: JobId,
    /// Why, for whoever waits for it.
    pub reason: String,
}

/// To the scheduler, by a client: end all jobs that it has submitted and that are not the desk's, waiting or running.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CancelJobsOf {
    /// Who says so.
    pub client: NodeId,
    /// Why, for whoever waits for them.
    pub reason: String,
}

/// To the scheduler, by a client: what does its first job that does not run yet wait for? Absent: it has no such job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GetWait {
    /// The client.
    pub client: NodeId,
}

/// To the scheduler, in its own process: run a job that nobody waits for. Its number comes back at once; whatever becomes of
/// it, also that it cannot be placed, is told to the client of the submission.
#[derive(Debug, actix::Message)]
#[rtype(result = "Result<JobId, SubmitError>")]
pub struct Enqueue(pub Submit);

/// To a scheduler of this process: of which jobs is anything known? None where another has taken over.
#[derive(Clone, Copy, Debug, actix::Message)]
#[rtype(result = "Option<BTreeSet<JobId>>")]
pub struct GetKnown;

/// To the scheduler, by a job's owner: make it larger or smaller.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResizeJob {
    /// Which.
    pub job: JobId,
    /// How.
    pub by: Resize,
}

/// How a job is to change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Resize {
    /// Give it more when there are free ones.
    Grow {
        /// How many more.
        count: u32,
        /// Others shrink for it, at most for so many milliseconds.
        #[serde(default)]
        within_ms: Option<u64>,
        /// Only there.
        #[serde(default)]
        cluster: Option<ClusterId>,
    },
    /// Take some from it, and let it have no more than what is left then.
    Shrink {
        /// How many.
        count: u32,
    },
}

/// A job is being made larger or smaller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resized {
    /// Processors that it has.
    pub from: u32,
    /// Those that it is to have.
    pub to: u32,
}

/// Why a job is not made larger or smaller.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum ResizeError {
    /// It has not begun, or has ended.
    #[error("{job} does not run: `job list` shows those that do")]
    NotRunning {
        /// Which.
        job: JobId,
    },
    /// It was submitted with its nodes.
    #[error("{job} chooses its own nodes: only jobs of `job submit` are made larger and smaller")]
    NotManaged {
        /// Which.
        job: JobId,
    },
    /// It is not malleable.
    #[error("{job} is {kind}: submit it with --kind malleable if its size is to change")]
    Fixed {
        /// Which.
        job: JobId,
        /// What it is.
        kind: Kind,
    },
    /// It would be too small or too large.
    #[error("{job} would have {to} processors, and may have {least} to {most}")]
    Bounds {
        /// Which.
        job: JobId,
        /// What was asked for.
        to: u32,
        /// Fewest.
        least: u32,
        /// Most.
        most: u32,
    },
    /// There is no such cluster.
    #[error("the grid has no cluster {cluster}: look at its config for the names")]
    UnknownCluster {
        /// As it was named.
        cluster: ClusterId,
    },
}

/// To the scheduler: what of this job?
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GetJob {
    /// Which.
    pub job: JobId,
}

/// To the scheduler, by a member of a job or its client: who may speak for the job? By this a receiver judges a message whose
/// sender's place or epoch it does not know.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GetAuthority {
    /// The job.
    pub job: JobId,
    /// The node that sent a message about it.
    pub node: NodeId,
}

/// Who may speak for a job.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct JobAuthority {
    /// The last epoch that was issued.
    pub epoch: Epoch,
    /// The node to which it was issued; absent where the scheduler does not know it (yet).
    pub coordinator: Option<NodeId>,
    /// The node of the job's client.
    pub client: Option<NodeId>,
    /// Whether the node that was asked about is a member.
    pub member: bool,
}

/// A job as its owner may see it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JobDetail {
    /// Unless it has ended.
    pub status: Option<JobStatus>,
    /// As the malleability manager sees it, if it is one of its jobs and has not ended.
    pub view: Option<JobView>,
    /// What happened to it: seconds ago, and what. Oldest first.
    pub history: Vec<(f64, String)>,
}

/// To the scheduler: where would a job go that needs this? Answered with the reasons, if nowhere.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanJob {
    /// What it needs.
    pub need: Need,
}

/// Why there is no plan.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, thiserror::Error)]
pub enum PlanError {
    /// What it needs makes no sense.
    #[error("the job cannot be planned: {0}")]
    Need(String),
    /// There is no place now.
    #[error("{0}")]
    NoPlace(NoPlace),
}

/// To the scheduler: which input files are there?
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct GetFiles {}

/// The grid's input files.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GridFiles {
    /// By name.
    pub files: Vec<FileStatus>,
    /// Clusters that keep files, and where the file server of each is.
    pub servers: BTreeMap<ClusterId, Contact>,
}

/// To the scheduler: how is the grid?
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct GetStatus {}

/// The grid at a moment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GridStatus {
    /// By cluster.
    pub sites: BTreeMap<ClusterId, SiteStatus>,
    /// Jobs that wait, then those that run.
    pub jobs: Vec<JobStatus>,
    /// Another scheduler has taken over, and this one does nothing any more.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub superseded: bool,
    /// Hosts whose nodes have more compute threads than there are processors for them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub crowded: Vec<CrowdedHost>,
}

/// A host, or a part of it, whose nodes have more compute threads than processors.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CrowdedHost {
    /// Its name.
    pub host: String,
    /// How many nodes.
    pub nodes: u32,
    /// Their compute threads.
    pub threads: u32,
    /// Processors that they may use.
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
    /// Nodes in this state.
    pub fn count(&self, state: NodeState) -> usize {
        self.sites.values().flat_map(|s| &s.nodes).filter(|n| n.state == state).count()
    }

    /// All nodes.
    pub fn nodes(&self) -> usize {
        self.sites.values().map(|s| s.nodes.len()).sum()
    }
}

/// A cluster at a moment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SiteStatus {
    /// Its nodes are there only while jobs need them.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub on_demand: bool,
    /// Its nodes join and leave by themselves: those that are off have not.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub joins: bool,
    /// Why it cannot be used at the moment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failing: Option<String>,
    /// In order of name.
    pub nodes: Vec<NodeStatus>,
}

/// A node at a moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeStatus {
    /// Which.
    pub node: NodeId,
    /// What it does.
    pub state: NodeState,
    /// For which job it works.
    pub job: Option<JobId>,
    /// Its compute threads, once registered.
    pub threads: Option<u32>,
    /// Its process, once registered.
    pub pid: Option<u32>,
    /// Which life of it, once registered.
    pub incarnation: Option<Incarnation>,
    /// Where it is reached, once registered.
    pub address: Option<Address>,
    /// Why it is lost, broken or drained.
    pub reason: Option<String>,
    /// In how many milliseconds its site starts it again, of a node that is not there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_try_ms: Option<u64>,
}

/// What a node does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NodeState {
    /// Its process is being started, or restarted; it has not registered.
    Starting,
    /// Registered and free.
    Idle,
    /// Works for a job.
    Busy,
    /// Runs a benchmark for a job that may get it.
    Measuring,
    /// Is to be empty, and is not yet.
    Draining,
    /// Empty, and out of service until it is put back.
    Drained,
    /// Lost again and again. Its site tries it again after ever longer delays.
    Broken,
    /// It has no processor, and none is asked for.
    Off,
    /// It has a processor, and is kept for a job that is not given it yet.
    Held,
    /// It is being ended, and its processor given back.
    Closing,
}

/// A job at a moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobStatus {
    /// Which.
    pub job: JobId,
    /// The registered name.
    pub name: String,
    /// What it does.
    pub state: JobState,
    /// Its nodes, by cluster; those that it is giving back are still among them.
    pub sizes: BTreeMap<ClusterId, u32>,
    /// Why it waits; of one that runs, what more it asks for, and why that is not granted.
    pub waits_for: Option<String>,
    /// The node of its coordinator, if it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub coordinator: Option<NodeId>,
    /// Who submitted it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub principal: Option<Principal>,
}

impl JobStatus {
    /// All its nodes.
    pub fn nodes(&self) -> u32 {
        self.sizes.values().sum()
    }
}

/// What a job does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum JobState {
    /// Waits for nodes.
    Queued,
    /// Its workers are being told.
    Assigning,
    /// Runs.
    Running,
    /// Its nodes are being released.
    Ending,
}

/// To the scheduler, by a site at its start: these are the cluster's nodes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SiteUp {
    /// Its cluster.
    pub cluster: ClusterId,
    /// The nodes it starts, or expects.
    pub nodes: Vec<NodeId>,
    /// Whether it can start nodes with a program handed in.
    pub starts_programs: bool,
    /// Its processors are held when jobs need them, and kept for so many milliseconds after that. Absent: all nodes are always
    /// there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keep_ms: Option<u64>,
    /// Nodes of it that are there already, or are being started.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub stubs: BTreeSet<NodeId>,
    /// It keeps files: its file server tells which.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub files: bool,
    /// Where the site's process is; absent: it is the scheduler's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<Contact>,
    /// It starts no nodes: they join by themselves, and are off before and after.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub joins: bool,
}

/// To the scheduler, by a site that holds processors on demand: what there is now, or why that is not known.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SitePolled {
    /// Its cluster.
    pub cluster: ClusterId,
    /// Processors that work, and those of them that others than this grid use.
    pub found: Result<(u32, u32), String>,
}

/// To the scheduler, by a site that holds processors on demand: a stub has no processor yet, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StubWaits {
    /// Whose it is.
    pub node: NodeId,
    /// As the provider says.
    pub reason: String,
}

/// To the scheduler, by a site that holds processors on demand: a node's processor is not held any more.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct StubGone {
    /// Whose.
    pub node: NodeId,
    /// Why, with its last lines where there are any.
    pub reason: String,
}

/// To the scheduler, by a site: a node has registered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Registered {
    /// Where.
    pub cluster: ClusterId,
    /// Which.
    pub node: NodeId,
    /// Which life of it.
    pub incarnation: Incarnation,
    /// Where it is reached.
    pub address: Address,
    /// Its compute threads.
    pub threads: u32,
    /// Fingerprint of its program's registry.
    pub fingerprint: u64,
    /// Its process.
    pub pid: u32,
    /// Its machine.
    #[serde(default)]
    pub hardware: Hardware,
    /// What it works for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub work: Option<Work>,
}

/// What a node works for when it registers: its scheduler may be another than the one that gave it its work.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Work {
    /// The job.
    pub job: JobId,
    /// Who takes part, from those who coordinate the job or a cluster of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub view: Option<View>,
}

/// To the scheduler, by a site: a node is gone.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct NodeLost {
    /// Which.
    pub node: NodeId,
    /// Why, with its last lines where there are any.
    pub reason: String,
    /// Whether its site starts it again soon: jobs may wait for it.
    pub returns: bool,
    /// How long after this message its site starts it again, in milliseconds, if it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_ms: Option<u64>,
}

/// To the scheduler, by a job's coordinator: a member was silent too long and the job goes on without it. Its site is to start
/// it anew.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct MemberSilent {
    /// Which job.
    pub job: JobId,
    /// The coordinator's epoch.
    pub epoch: Epoch,
    /// Who.
    pub node: NodeId,
    /// Which life of it.
    pub incarnation: Incarnation,
    /// For how long.
    pub reason: String,
    /// Set where it is the job's coordinator's own node that is silent, and this cluster that does not hear it. The job is
    /// taken from it when clusters with more than half of its nodes say so at about the same time.
    #[serde(default)]
    pub by: Option<ClusterId>,
    /// Whoever says so for its cluster, and which life of it: it has a voice while it is a member. Absent from former versions.
    #[serde(default)]
    pub voice: Option<(NodeId, Incarnation)>,
}

remote_message! {
    "submit" => Submit -> Result<Granted, SubmitError>;
    "cancel-job" => CancelJob;
    "cancel-jobs-of" => CancelJobsOf;
    "resize-job" => ResizeJob -> Result<Resized, ResizeError>;
    "get-job" => GetJob -> Option<JobDetail>;
    "get-authority" => GetAuthority -> Option<JobAuthority>;
    "plan-job" => PlanJob -> Result<Placed, PlanError>;
    "get-files" => GetFiles -> GridFiles;
    "get-status" => GetStatus -> GridStatus;
    "get-wait" => GetWait -> Option<String>;
    "site-up" => SiteUp;
    "registered" => Registered;
    "node-lost" => NodeLost;
    "site-polled" => SitePolled;
    "stub-gone" => StubGone;
    "stub-waits" => StubWaits;
    "member-silent" => MemberSilent;
}
