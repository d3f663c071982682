//! The catalogue of events. Field names carry the units.
//!
//! Frequent facts, such as steals between threads of a node and messages, are counters in `meter`,
//! not events. A released kind or field keeps its name and meaning. New fields are optional, and
//! unknown kinds read as [`Event::Unknown`].

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::id::{ClusterId, Epoch, Incarnation, JobId, NodeId, TaskPath};
use crate::meter::{Counters, LatencySummary, Times};

/// The distance between the thief and the victim of a steal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StealScope {
    /// Both are in the same cluster.
    Local,
    /// They are in different clusters.
    Wide,
}

/// Whether an event may be dropped when the buffer is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Retention {
    /// Never dropped: decisions, and the events that explain them and the end of a run. Rare by
    /// nature.
    Always,
    /// Droppable: the oldest are dropped first, and an event records their number.
    Droppable,
}

/// A worker's use of time and its speed in an interval.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WorkerSample {
    /// Name of the worker's node.
    #[serde(rename = "n")]
    pub node: NodeId,
    /// Hundredths of the time of its threads in each of
    /// [`ThreadState::ALL`](crate::meter::ThreadState::ALL).
    #[serde(rename = "t")]
    pub time: [u8; 5],
    /// Speed in the job's unit, where it is measured.
    #[serde(rename = "v", default, skip_serializing_if = "Option::is_none")]
    pub speed: Option<f32>,
}

/// Reserved processors of a cluster in an interval.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BookingRow {
    /// Cluster of the processors.
    pub cluster: ClusterId,
    /// Number of the processors.
    pub processors: u32,
    /// Start of the interval, in microseconds of the Unix epoch.
    pub start_us: u64,
    /// End of the interval, in microseconds of the Unix epoch.
    pub end_us: u64,
}

/// The end of a task on its thief.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StolenTaskEnd {
    /// The task completed with an output.
    Done,
    /// The task failed, and with it its job.
    Failed,
    /// The task returned unfinished, because the thief leaves.
    HandedBack,
    /// The task was stopped, because no other task needs its result.
    Stopped,
}

/// An event: a decision, or a change of state.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Event {
    /// A run started: the launcher has a grid.
    RunStarted {
        /// Name of the run.
        run: String,
        /// Version of the program.
        version: String,
        /// Seed of all random numbers of the run.
        seed: Option<u64>,
        /// Requested number of nodes by cluster.
        clusters: BTreeMap<ClusterId, u32>,
    },
    /// A run ended.
    RunEnded {
        /// Whether the job succeeded.
        ok: bool,
        /// Wall time since the start.
        wall_us: u64,
        /// Reason of the failure, if the job failed.
        error: Option<String>,
    },
    /// The root of a job started.
    JobStarted {
        /// The job.
        job: JobId,
        /// Registered name of the job.
        name: String,
        /// Epoch of the job's owner.
        epoch: Epoch,
    },
    /// A job ended.
    JobEnded {
        /// The job.
        job: JobId,
        /// Whether the job succeeded.
        ok: bool,
        /// Wall time since the start.
        wall_us: u64,
        /// Checksum of the result, 16 hexadecimal digits.
        checksum: Option<String>,
        /// Reason of the failure, if the job failed.
        error: Option<String>,
    },
    /// A node registered with its site.
    NodeRegistered {
        /// The node.
        node: NodeId,
        /// Cluster of the node.
        cluster: ClusterId,
        /// Incarnation of the node.
        incarnation: Incarnation,
        /// Number of its compute threads.
        threads: u32,
        /// The job that the node works for.
        #[serde(default)]
        job: Option<JobId>,
    },
    /// A node became a member of a job.
    NodeJoined {
        /// The job.
        job: JobId,
        /// The node.
        node: NodeId,
        /// Cluster of the node.
        cluster: ClusterId,
    },
    /// A node left a job in an orderly way.
    NodeLeft {
        /// The job.
        job: JobId,
        /// The node.
        node: NodeId,
        /// Cluster of the node.
        cluster: ClusterId,
        /// Reason of the departure.
        why: String,
    },
    /// A node was declared dead.
    NodeLost {
        /// The node.
        node: NodeId,
        /// Cluster of the node.
        cluster: ClusterId,
        /// Incarnation of the node.
        incarnation: Incarnation,
        /// Reason of the declaration.
        why: String,
        /// Time without a message from the node.
        silent_us: u64,
        /// The last lines of the node's log, if its site has them.
        last_lines: Vec<String>,
    },
    /// Members or roles of a job changed.
    ViewChanged {
        /// The job.
        job: JobId,
        /// Epoch of the job's owner.
        epoch: Epoch,
        /// Version of the view within the epoch.
        version: u64,
        /// Number of members.
        members: u32,
        /// The node that runs the job's coordinator.
        coordinator: Option<NodeId>,
    },
    /// The scheduler granted nodes to a job, or resumed a job of an earlier scheduler with them.
    NodesGranted {
        /// The job.
        job: JobId,
        /// Epoch of the job's owner.
        epoch: Epoch,
        /// The nodes. No other job holds them until the scheduler records that they are free.
        nodes: Vec<NodeId>,
        /// Whether an earlier scheduler had granted them.
        resumed: bool,
    },
    /// Nodes of a job are free, or lost.
    NodesFreed {
        /// The job; absent: any job.
        job: Option<JobId>,
        /// The nodes; empty: all nodes of the job.
        nodes: Vec<NodeId>,
        /// Reason: the job is over, or the nodes released it, left it, or are lost.
        why: String,
    },
    /// The scheduler issued an epoch for a job. It is on disk.
    EpochIssued {
        /// The job.
        job: JobId,
        /// The epoch.
        epoch: Epoch,
    },
    /// The scheduler agreed to a reservation. It is on disk.
    ReservationAgreed {
        /// Number of the reservation.
        reservation: u64,
        /// Reserved processors and their intervals.
        bookings: Vec<BookingRow>,
        /// Number of working processors of each cluster with a booking.
        capacity: BTreeMap<ClusterId, u32>,
    },
    /// The scheduler refused a reservation.
    ReservationRefused {
        /// Name of the reservation.
        name: String,
        /// Reason of the refusal.
        why: String,
    },
    /// A reservation ended.
    ReservationEnded {
        /// Number of the reservation.
        reservation: u64,
        /// Reason of the end.
        why: String,
    },
    /// A link is up: both sides have accepted it.
    LinkUp {
        /// Node at the other end.
        peer: NodeId,
        /// Cluster of the peer.
        cluster: ClusterId,
        /// Measured round-trip time, if known.
        rtt_us: Option<u64>,
    },
    /// A link went down.
    LinkDown {
        /// Node at the other end.
        peer: NodeId,
        /// Reason of the disconnection.
        why: String,
    },
    /// This side refused a link.
    LinkRefused {
        /// Name of the other side if known, else its address.
        peer: String,
        /// Reason, one of a small set of words, which metrics use as a label.
        reason: String,
        /// Full description of the reason.
        detail: String,
    },
    /// A stored result at the task's path belonged to another task, with other arguments or
    /// versions of shared objects. The task was executed.
    ReuseMissed {
        /// The job.
        job: JobId,
        /// Path of the task.
        path: TaskPath,
        /// Registered name of the task.
        task: String,
    },
    /// A task went to another node.
    TaskStolen {
        /// The job.
        job: JobId,
        /// Path of the task.
        path: TaskPath,
        /// Registered name of the task.
        task: String,
        /// The victim.
        from: NodeId,
        /// The thief.
        to: NodeId,
        /// Whether the steal crossed clusters.
        scope: StealScope,
        /// Size of the serialised task.
        task_bytes: u64,
        /// The lease: an index in the victim's table, and the generation of that entry.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        lease: Option<[u32; 2]>,
        /// Incarnation of the victim, which granted the lease.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        from_incarnation: Option<Incarnation>,
    },
    /// A stolen task ended on its thief, which records this event.
    TaskEnded {
        /// The job.
        job: JobId,
        /// Path of the task.
        path: TaskPath,
        /// The victim.
        from: NodeId,
        /// The thief.
        to: NodeId,
        /// How the task ended.
        outcome: StolenTaskEnd,
    },
    /// A leased task came back unfinished.
    LeaseReturned {
        /// The job.
        job: JobId,
        /// Path of the task.
        path: TaskPath,
        /// The node that held the lease.
        holder: NodeId,
    },
    /// The owner reclaimed a leased task.
    LeaseReclaimed {
        /// The job.
        job: JobId,
        /// Path of the task.
        path: TaskPath,
        /// The node that held the lease.
        holder: NodeId,
        /// Reason: the send failed, the holder left, or the holder died.
        why: String,
    },
    /// A result was dropped, because an earlier one had arrived.
    DuplicateResult {
        /// The job.
        job: JobId,
        /// Path of the task.
        path: TaskPath,
        /// The node that sent the result.
        from: NodeId,
    },
    /// A task failed or panicked, and with it its job.
    TaskFailed {
        /// The job.
        job: JobId,
        /// Path of the task.
        path: TaskPath,
        /// Registered name of the task.
        task: String,
        /// The node that executed the task.
        node: NodeId,
        /// The error of the task, or the message of the panic.
        message: String,
        /// Whether the task panicked.
        panicked: bool,
    },
    /// A new version of a shared object was published.
    ObjectPublished {
        /// The job.
        job: JobId,
        /// Name of the object.
        object: String,
        /// Number of the object's part.
        part: u32,
        /// Epoch of the writer.
        epoch: Epoch,
        /// Version within the epoch.
        version: u64,
        /// Size of the broadcast message.
        object_bytes: u64,
        /// Whether the broadcast message was a delta.
        delta: bool,
    },
    /// A version of a shared object was fetched from a holder.
    ObjectFetched {
        /// The job.
        job: JobId,
        /// Name of the object.
        object: String,
        /// Number of the object's part.
        part: u32,
        /// Epoch of the writer.
        epoch: Epoch,
        /// Version within the epoch.
        version: u64,
        /// The holder that sent the last piece.
        from: NodeId,
        /// Whether the transfer crossed clusters.
        scope: StealScope,
    },
    /// A job completed an iteration.
    IterationDone {
        /// The job.
        job: JobId,
        /// Number of the iteration, from 0.
        iteration: u64,
        /// Wall time of the iteration.
        wall_us: u64,
        /// Details that the job reports.
        detail: serde_json::Value,
    },
    /// The progress of a job.
    Progress {
        /// The job.
        job: JobId,
        /// Number of completed units.
        done: u64,
        /// Total number of units, if known.
        total: Option<u64>,
        /// The job's name for its units, or for its current phase.
        what: String,
    },
    /// The statistics of one period.
    Period {
        /// The job.
        job: JobId,
        /// The cluster; absent for the whole job.
        cluster: Option<ClusterId>,
        /// Number of the period, from 1.
        period: u64,
        /// Number of compute threads that the statistics cover.
        threads: u32,
        /// Thread times within the period.
        times: Times,
        /// Counters within the period.
        counters: Box<Counters>,
        /// Latencies since the last report; empty in most periods.
        latencies: BTreeMap<String, LatencySummary>,
    },
    /// The workers of a cluster in an interval, whose length grows with their number.
    Workers {
        /// The job.
        job: JobId,
        /// The cluster.
        cluster: ClusterId,
        /// One row per worker.
        workers: Vec<WorkerSample>,
    },
    /// A decision was taken.
    Decision {
        /// Name of the decision.
        decision: String,
        /// Reason in one sentence.
        why: String,
        /// All inputs of the decision, so that it can be reproduced.
        inputs: serde_json::Value,
    },
    /// A fault that the system handles: a restart, a refusal, a full queue, a slow disk.
    Fault {
        /// The component that detected the fault.
        part: String,
        /// Description of the fault.
        what: String,
    },
    /// Facts were dropped because the buffer was full, since the last such record.
    Dropped {
        /// Number of dropped facts.
        facts: u64,
    },
    /// An event of a newer version, whose content is unknown.
    #[serde(other)]
    Unknown,
}

impl Event {
    /// Whether the event may be dropped when the buffer is full.
    pub fn weight(&self) -> Retention {
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
            | Event::NodesGranted { .. }
            | Event::NodesFreed { .. }
            | Event::EpochIssued { .. }
            | Event::ReservationAgreed { .. }
            | Event::ReservationRefused { .. }
            | Event::ReservationEnded { .. }
            | Event::TaskFailed { .. }
            | Event::Decision { .. }
            | Event::Dropped { .. } => Retention::Always,
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
            | Event::Unknown => Retention::Droppable,
        }
    }
}
