//! The names under which actors are published, and those of the head.

use springtide_base::id::{ClusterId, JobId, NodeId};

/// Name of the head's node.
pub const HEAD: &str = "head";
/// Cluster of the head and of clients; it has no workers.
pub const HEAD_CLUSTER: &str = "head";

/// Published name of the head's enrolment actor.
pub const ENROLMENT: &str = "enrolment";
/// Published name of the prober.
pub const PROBER: &str = "prober";
/// Published name of a process's programs for nodes: those of a store, or that of a client.
pub const PROGRAMS: &str = "programs";
/// Published name of the actor that triggers registrations.
pub const REGISTRAR: &str = "registrar";

/// Published name of the head's directory of singletons.
pub const SINGLETONS: &str = "singletons";
/// Published name of a node's host of singletons.
pub const SINGLETON_HOST: &str = "singleton-host";

/// The worker's published name on every node.
pub const WORKER: &str = "worker";
/// The same actor's name for checkpoints. Messages to one name keep their order, and an order to
/// leave must not wait for a checkpoint over a slow link.
pub const CHECKPOINTS: &str = "worker-checkpoints";
/// Published name of the scheduler on the head.
pub const SCHEDULER: &str = "scheduler";
/// Published name of the client.
pub const CLIENT: &str = "client";
/// The cluster in the certificates of users who are not operators.
pub const USERS_CLUSTER: &str = "users";

/// Name of the process of a cluster's own site. No node has this name.
pub fn site_node(cluster: &ClusterId) -> NodeId {
    NodeId::from(format!("{cluster}-site"))
}

/// Published name of a cluster's site on the head (or on the cluster's own head).
pub fn site_name(cluster: &ClusterId) -> String {
    format!("site:{cluster}")
}

/// Published name of a job's coordinator on its node.
pub fn coordinator_name(job: JobId) -> String {
    format!("coordinator:{}", job.0)
}

/// Published name of a cluster's coordinator for a job on its node.
pub fn cluster_coordinator_name(job: JobId) -> String {
    format!("cluster-coordinator:{}", job.0)
}

/// Published name of an instance of a singleton on its node.
pub fn singleton_name(name: &str, generation: u64) -> String {
    format!("singleton:{name}:{generation}")
}

/// Returns the published name of a cluster's file server.
pub fn files_name(cluster: &ClusterId) -> String {
    format!("files-{cluster}")
}
