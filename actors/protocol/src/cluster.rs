//! Messages between a job's workers, its cluster coordinators and its coordinator. Data only.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use springtide_base::id::{ClusterId, Epoch, Incarnation, JobId, NodeId};
use springtide_metrics::{
    BenchmarkSpec, LinkReport, NodeReport, PeriodMeasure, Scale, SpecId, Statistics,
};
use springtide_remote::remote_message;
use springtide_work::event::{Record, WorkerSample};

use crate::policy::{ClusterAggregate, Memory};
use crate::worker::unknown_epoch;

/// To the cluster's coordinator, by a worker: it has joined the job.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct WorkerJoinNotice {
    /// The job that was joined.
    pub job: JobId,
    /// Node of the worker.
    pub node: NodeId,
    /// Incarnation of the node.
    pub incarnation: Incarnation,
    /// Number of compute threads.
    pub threads: u32,
    /// Whether its view is partial.
    #[serde(default)]
    pub partial: bool,
}

/// To the cluster's coordinator, by a worker: its period's statistics.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct WorkerPeriod {
    /// The job of the statistics.
    pub job: JobId,
    /// The sender's view, by epoch and version.
    #[serde(default)]
    pub view: (Epoch, u64),
    /// Sums since the job's start.
    pub report: NodeReport,
    /// Measurements of the period; absent in static jobs.
    #[serde(default)]
    pub measure: Option<PeriodMeasure>,
    /// A benchmark that this worker proposes, while the job has none.
    #[serde(default)]
    pub candidate: Option<BenchmarkSpec>,
    /// The benchmark that the worker knows.
    #[serde(default)]
    pub benchmark: Option<SpecId>,
}

/// Reply to a worker's period.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct WorkerPeriodReply {
    /// Whether a benchmark was proposed; then no other is needed.
    pub proposed: bool,
    /// The job's benchmark, if the worker has another or none.
    pub benchmark: Option<BenchmarkSpec>,
    /// Number of orders to measure all speeds again.
    #[serde(skip_serializing_if = "is_zero")]
    pub measurements: u32,
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// To the coordinator: a node has been silent for too long. Sent by the node's cluster coordinator,
/// or by a worker about its cluster coordinator.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct NodeSilence {
    /// The job of the node.
    pub job: JobId,
    /// The node that is silent.
    pub node: NodeId,
    /// Length of the silence, in milliseconds.
    pub silent_ms: u64,
}

/// To the coordinator, by a cluster's coordinator: a heartbeat.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ClusterHeartbeat {
    /// The job of the cluster.
    pub job: JobId,
    /// Node of the cluster's coordinator.
    pub node: NodeId,
    /// Incarnation of the node.
    pub incarnation: Incarnation,
}

/// To the coordinator: all workers of a cluster have joined.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ClusterReady {
    /// The job that was joined.
    pub job: JobId,
    /// Cluster of the workers.
    pub cluster: ClusterId,
    /// Number of its workers.
    pub workers: u32,
}

/// To the coordinator: a cluster's aggregate of a period.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ClusterPeriod {
    /// The job of the aggregate.
    pub job: JobId,
    /// Cluster of the workers.
    pub cluster: ClusterId,
    /// The sender's view, by epoch and version. If it is older than the coordinator's, the cluster
    /// gets the new one.
    #[serde(default)]
    pub view: (Epoch, u64),
    /// Number of the aggregate; it also grows across coordinators of the cluster.
    pub seq: u64,
    /// Number of joined workers.
    pub workers: u32,
    /// Sum over the workers since the job's start, and latencies since the previous aggregate.
    pub statistics: Statistics,
    /// Aggregate for the policy; absent in static jobs.
    #[serde(default)]
    pub aggregate: Option<ClusterAggregate>,
    /// Unit of the aggregate's speeds.
    #[serde(default)]
    pub scale: Scale,
    /// Measurements of links by the cluster's nodes.
    #[serde(default)]
    pub links: LinkReport,
    /// The workers' shares of time for the run's log, when they are due.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rows: Vec<WorkerSample>,
    /// A benchmark that a worker proposes, while the job has none.
    #[serde(default)]
    pub candidate: Option<BenchmarkSpec>,
    /// The benchmark that the cluster knows.
    #[serde(default)]
    pub benchmark: Option<SpecId>,
}

/// Reply to a cluster's aggregate: everything that the clusters share, and that a successor of the
/// job's coordinator needs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ClusterPeriodReply {
    /// Memory of the policy, which determines the worst workers.
    pub memory: Option<Memory>,
    /// Unit of the speeds.
    pub scale: Scale,
    /// Whether a benchmark was proposed; then no other is needed.
    pub proposed: bool,
    /// The job's benchmark, if the cluster has another or none.
    pub benchmark: Option<BenchmarkSpec>,
    /// The only node to run it, if one is named.
    pub benchmark_node: Option<NodeId>,
}

/// To the cluster's coordinator, by a new coordinator of the job: fetches the memory of the policy.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct GetMemory {
    /// The job of the memory.
    pub job: JobId,
}

/// To a cluster's coordinator, by the job's coordinator: the memory of the policy after a decision
/// or an observation. A successor continues with it even if no period ends in between.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct StoreMemory {
    /// The job of the memory.
    pub job: JobId,
    /// Epoch of the job's coordinator.
    pub epoch: Epoch,
    /// The memory; an older one than the stored is ignored.
    pub memory: Memory,
}

impl ClusterFinalReport {
    /// The report of a cluster without joined workers.
    pub fn nothing(cluster: ClusterId) -> Self {
        let (statistics, records, without_answer) = Default::default();
        Self { cluster, workers: 0, statistics, records, without_answer }
    }
}

/// To the cluster's coordinator: the job has ended; stop the workers and send their final reports.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct FinishCluster {
    /// The job that ended.
    pub job: JobId,
    /// Epoch of the coordinator that ends it; an older one is ignored.
    #[serde(default = "unknown_epoch")]
    pub epoch: Epoch,
}

/// To a cluster's coordinator, by the job's coordinator during the job's end: a member is lost, and
/// its final report is not awaited.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FinishWithout {
    /// The job that ended.
    pub job: JobId,
    /// Epoch of the job's coordinator.
    pub epoch: Epoch,
    /// The member that is lost.
    pub node: NodeId,
}

/// Final report of a cluster.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ClusterFinalReport {
    /// Cluster of the report.
    pub cluster: ClusterId,
    /// Number of joined workers.
    pub workers: u32,
    /// Their sums, with latencies not sent yet.
    pub statistics: Statistics,
    /// Events recorded on them.
    pub records: Vec<Record>,
    /// Workers without an answer, with the reason.
    pub without_answer: BTreeMap<NodeId, String>,
}

remote_message! {
    "joined" => WorkerJoinNotice;
    "period" => WorkerPeriod -> WorkerPeriodReply;
    "silent" => NodeSilence;
    "cluster-alive" => ClusterHeartbeat;
    "cluster-joined" => ClusterReady;
    "cluster-period" => ClusterPeriod -> ClusterPeriodReply;
    "get-memory" => GetMemory -> Option<Memory>;
    "store-memory" => StoreMemory;
    "finish-cluster" => FinishCluster -> ClusterFinalReport;
    "finish-without" => FinishWithout;
}
