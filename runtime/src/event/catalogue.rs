//! The catalogue: every kind of thing that is told, with its units in the field names.
//!
//! Frequent facts (each steal between threads of a node, each message) are counters in `meter`, not events. A kind or a
//! field, once in a release, keeps its name and meaning; new fields are optional, unknown kinds read as
//! [`Event::Unknown`].

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::id::{ClusterId, Epoch, Incarnation, JobId, NodeId, TaskPath};
use crate::meter::{Counters, LatencySummary, Times};

/// Whether something stays inside a cluster or crosses a wide-area link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// Inside one cluster.
    Local,
    /// Between clusters.
    Wide,
}

/// Whether an event may be dropped when there is no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Weight {
    /// Never dropped: decisions, and what they and a run's end are explained by. Rare by nature.
    Decision,
    /// The oldest are dropped first, counted and said in the log.
    Fact,
}

/// A worker in a stretch of time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WorkerRow {
    /// Which.
    #[serde(rename = "n")]
    pub node: NodeId,
    /// Hundredths of its threads' time in each of [`ThreadState::ALL`](crate::meter::ThreadState::ALL).
    #[serde(rename = "t")]
    pub time: [u8; 5],
    /// How fast it is, in the job's unit, where that is measured.
    #[serde(rename = "v", default, skip_serializing_if = "Option::is_none")]
    pub speed: Option<f32>,
}

/// How a task ended on its thief.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TaskEnd {
    /// It has its output.
    Done,
    /// It failed, and so its job does.
    Failed,
    /// It went back unfinished, for the thief leaves.
    HandedBack,
    /// Nobody wanted it any more.
    Stopped,
}

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Event {
    /// A run began: the launcher has a grid.
    RunStarted {
        /// The run's name.
        run: String,
        /// The program's version.
        version: String,
        /// The seed of whatever is random in it.
        seed: Option<u64>,
        /// Clusters and their nodes as asked for.
        clusters: BTreeMap<ClusterId, u32>,
    },
    /// A run ended.
    RunEnded {
        /// Whether its job succeeded.
        ok: bool,
        /// From its start to here.
        wall_us: u64,
        /// Why it did not succeed.
        error: Option<String>,
    },
    /// A job's root was started.
    JobStarted {
        /// The job.
        job: JobId,
        /// Its registered name.
        name: String,
        /// Ownership generation.
        epoch: Epoch,
    },
    /// A job ended.
    JobEnded {
        /// The job.
        job: JobId,
        /// Whether it succeeded.
        ok: bool,
        /// From its start to here.
        wall_us: u64,
        /// The result's checksum, 16 hex digits.
        checksum: Option<String>,
        /// Why it did not succeed.
        error: Option<String>,
    },
    /// A node registered with its site.
    NodeRegistered {
        /// The node.
        node: NodeId,
        /// Its cluster.
        cluster: ClusterId,
        /// Which life of it.
        incarnation: Incarnation,
        /// Its compute threads.
        threads: u32,
    },
    /// A node became a member of a job.
    NodeJoined {
        /// The job.
        job: JobId,
        /// The node.
        node: NodeId,
        /// Its cluster.
        cluster: ClusterId,
    },
    /// A node left a job in order.
    NodeLeft {
        /// The job.
        job: JobId,
        /// The node.
        node: NodeId,
        /// Its cluster.
        cluster: ClusterId,
        /// Why.
        why: String,
    },
    /// A node was declared dead.
    NodeLost {
        /// The node.
        node: NodeId,
        /// Its cluster.
        cluster: ClusterId,
        /// Which life of it.
        incarnation: Incarnation,
        /// Why.
        why: String,
        /// How long it had been silent.
        silent_us: u64,
        /// The last lines of its log, where its site has them.
        last_lines: Vec<String>,
    },
    /// Members or roles of a job changed.
    ViewChanged {
        /// The job.
        job: JobId,
        /// Ownership generation.
        epoch: Epoch,
        /// The view's version in it.
        version: u64,
        /// Number of members.
        members: u32,
        /// The node that hosts the job's coordinator.
        coordinator: Option<NodeId>,
    },
    /// A link is up: both sides have said welcome.
    LinkUp {
        /// The other side.
        peer: NodeId,
        /// Its cluster.
        cluster: ClusterId,
        /// Round trip measured so far.
        rtt_us: Option<u64>,
    },
    /// A link went down.
    LinkDown {
        /// The other side.
        peer: NodeId,
        /// Why.
        why: String,
    },
    /// A link was refused, by this side.
    LinkRefused {
        /// Who asked: its name where known, else its address.
        peer: String,
        /// Why, one of a small set of words (metrics use it as a label).
        reason: String,
        /// The whole story.
        detail: String,
    },
    /// A result was known at the path of a task that was another task's (other arguments, or other versions of shared
    /// objects): the task was run.
    ReuseMissed {
        /// The job.
        job: JobId,
        /// The task.
        path: TaskPath,
        /// Its registered name.
        task: String,
    },
    /// A task went to another node.
    TaskStolen {
        /// The job.
        job: JobId,
        /// The task.
        path: TaskPath,
        /// Its registered name.
        task: String,
        /// The victim.
        from: NodeId,
        /// The thief.
        to: NodeId,
        /// Inside a cluster or between two.
        scope: Scope,
        /// The serialised task.
        task_bytes: u64,
    },
    /// A task that had been taken from another node is no longer with its thief, which tells this.
    TaskEnded {
        /// The job.
        job: JobId,
        /// The task.
        path: TaskPath,
        /// The victim.
        from: NodeId,
        /// The thief.
        to: NodeId,
        /// How it ended there.
        outcome: TaskEnd,
    },
    /// A leased task came back unfinished.
    LeaseReturned {
        /// The job.
        job: JobId,
        /// The task.
        path: TaskPath,
        /// Who held it.
        holder: NodeId,
    },
    /// A leased task was taken back by its owner.
    LeaseReclaimed {
        /// The job.
        job: JobId,
        /// The task.
        path: TaskPath,
        /// Who held it.
        holder: NodeId,
        /// Why: the send failed, the holder left, the holder died.
        why: String,
    },
    /// A result was dropped, for another had come first.
    DuplicateResult {
        /// The job.
        job: JobId,
        /// The task.
        path: TaskPath,
        /// Who sent it.
        from: NodeId,
    },
    /// A task failed or panicked: its job fails.
    TaskFailed {
        /// The job.
        job: JobId,
        /// The task.
        path: TaskPath,
        /// Its registered name.
        task: String,
        /// Where it ran.
        node: NodeId,
        /// Its error, or the panic's message.
        message: String,
        /// Whether it was a panic.
        panicked: bool,
    },
    /// A new version of a shared object was published.
    ObjectPublished {
        /// The job.
        job: JobId,
        /// The object.
        object: String,
        /// Which part of it.
        part: u32,
        /// The writer's ownership generation.
        epoch: Epoch,
        /// The version in it.
        version: u64,
        /// What was broadcast.
        object_bytes: u64,
        /// Whether that was a delta.
        delta: bool,
    },
    /// A version of a shared object was fetched from a holder.
    ObjectFetched {
        /// The job.
        job: JobId,
        /// The object.
        object: String,
        /// Which part of it.
        part: u32,
        /// The writer's ownership generation.
        epoch: Epoch,
        /// The version in it.
        version: u64,
        /// Who gave its last piece.
        from: NodeId,
        /// Inside a cluster or between two.
        scope: Scope,
    },
    /// A job finished one of its iterations.
    IterationDone {
        /// The job.
        job: JobId,
        /// Counts from 0.
        iteration: u64,
        /// How long it took.
        wall_us: u64,
        /// What the job says of it.
        detail: serde_json::Value,
    },
    /// How far a job is.
    Progress {
        /// The job.
        job: JobId,
        /// Units done.
        done: u64,
        /// Units in all, where known.
        total: Option<u64>,
        /// What the job calls its units, or what it is doing.
        what: String,
    },
    /// The numbers of one statistics period.
    Period {
        /// The job.
        job: JobId,
        /// Of one cluster; absent for the whole job.
        cluster: Option<ClusterId>,
        /// Counts from 1.
        period: u64,
        /// Compute threads behind the numbers.
        threads: u32,
        /// Thread time within the period.
        times: Times,
        /// Counted within the period.
        counters: Box<Counters>,
        /// Latencies since the ones told before; empty in most periods.
        latencies: BTreeMap<String, LatencySummary>,
    },
    /// Workers of a cluster in a stretch of time: as often as their number allows.
    Workers {
        /// The job.
        job: JobId,
        /// The cluster.
        cluster: ClusterId,
        /// Each of them.
        workers: Vec<WorkerRow>,
    },
    /// A decision was taken.
    Decision {
        /// What was decided.
        decision: String,
        /// Why, in a sentence.
        why: String,
        /// All that it was decided from, so that it can be taken again.
        inputs: serde_json::Value,
    },
    /// Something is wrong that the system copes with: a restart, a refusal, a full queue, a slow disk.
    Fault {
        /// Which part saw it.
        part: String,
        /// What it saw.
        what: String,
    },
    /// Facts were dropped here for want of room since the last such record.
    Dropped {
        /// How many.
        facts: u64,
    },
    /// An event of a newer version, whose content is not known here.
    #[serde(other)]
    Unknown,
}

impl Event {
    /// Whether it may be dropped when there is no room.
    pub fn weight(&self) -> Weight {
        match self {
            Event::RunStarted { .. }
            | Event::RunEnded { .. }
            | Event::JobStarted { .. }
            | Event::JobEnded { .. }
            | Event::NodeRegistered { .. }
            | Event::NodeJoined { .. }
            | Event::NodeLeft { .. }
            | Event::NodeLost { .. }
            | Event::ViewChanged { .. }
            | Event::TaskFailed { .. }
            | Event::Decision { .. }
            | Event::Dropped { .. } => Weight::Decision,
            Event::LinkUp { .. }
            | Event::LinkDown { .. }
            | Event::LinkRefused { .. }
            | Event::TaskStolen { .. }
            | Event::TaskEnded { .. }
            | Event::ReuseMissed { .. }
            | Event::LeaseReturned { .. }
            | Event::LeaseReclaimed { .. }
            | Event::DuplicateResult { .. }
            | Event::ObjectPublished { .. }
            | Event::ObjectFetched { .. }
            | Event::IterationDone { .. }
            | Event::Progress { .. }
            | Event::Period { .. }
            | Event::Workers { .. }
            | Event::Fault { .. }
            | Event::Unknown => Weight::Fact,
        }
    }
}
