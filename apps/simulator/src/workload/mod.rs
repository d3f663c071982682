//! Workloads of many jobs over many clusters: the live malleability manager against modelled sites
//! and applications.
//!
//! Time is simulated. Every decision and all accounts are those of the live manager
//! ([`springtide_actors::scheduler::manager`]). Three parts are modelled:
//!
//! - the duration of a job on a number of processors ([`program`]);
//! - the cost of holding, recruiting and releasing processors ([`Costs`]);
//! - local users, who take processors without a request to the scheduler ([`Users`]).

pub(crate) mod dice;
mod engine;
pub mod figures;
pub mod made;
pub mod program;
pub mod stated;
mod summary;
pub mod swf;

use std::sync::Arc;
use std::time::Duration;

use springtide_actors::policy::malleability::PlacementPolicy;
use springtide_actors::scheduler::manager::{Kind, ManagerSettings};
use springtide_runtime::id::ClusterId;

pub use self::engine::{UsageSample, WorkloadOutcome, WorkloadRecord, simulate};
pub use self::summary::WorkloadSummary;

use self::program::WorkloadProgram;

/// A cluster with its local users.
#[derive(Clone, Debug, PartialEq)]
pub struct WorkloadCluster {
    /// The name of the cluster.
    pub name: ClusterId,
    /// The number of its processors.
    pub size: u32,
    /// The local users of the cluster.
    pub users: Users,
}

impl WorkloadCluster {
    /// A cluster without local users.
    pub fn new(name: &str, size: u32) -> Self {
        Self { name: ClusterId::from(name), size, users: Users::default() }
    }
}

/// Local users of a cluster, who bypass the scheduler.
///
/// Their requests arrive at random, and wait in the site's own queue until there is room.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Users {
    /// Mean number of processors that they would use without queueing.
    pub mean: f64,
    /// Largest request; sizes are uniform from 1 to this.
    pub most: u32,
    /// Mean of the exponentially distributed duration.
    pub hold: Duration,
}

/// Durations of a job's changes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Costs {
    /// Time from the order for a processor to a stub that holds it.
    pub hold: Duration,
    /// Time from the order to release a processor until it is free.
    pub release: Duration,
    /// The longest time between two points where a job can change.
    pub point: Duration,
    /// The pause of a job at a change: recruiting, redistribution, or ending processes.
    pub pause: Duration,
}

impl Default for Costs {
    /// The costs of the model behind the specification's bars.
    fn default() -> Self {
        Self {
            hold: Duration::from_secs(8),
            release: Duration::from_millis(100),
            point: Duration::from_secs(1),
            pause: Duration::from_secs(4),
        }
    }
}

/// A job and the time of its arrival.
#[derive(Clone, Debug, PartialEq)]
pub struct Arrival {
    /// Time from the beginning of the workload.
    pub at: Duration,
    /// The kind of the job: rigid, moldable or malleable.
    pub kind: Kind,
    /// The minimum number of processors.
    pub min: u32,
    /// The maximum number of processors at the start.
    pub start: u32,
    /// The maximum number of processors.
    pub max: u32,
    /// The program of the job.
    pub program: Arc<WorkloadProgram>,
    /// A factor for all durations of the program's curve.
    pub scale: f64,
    /// The run time that its user expects, for a queue with backfilling.
    pub expected: Option<Duration>,
    /// The user of the job.
    pub user: Option<String>,
}

/// A workload, its clusters and its scheduling.
#[derive(Clone, Debug, PartialEq)]
pub struct Workload {
    /// The clusters of the workload.
    pub sites: Vec<WorkloadCluster>,
    /// The jobs, in order of their arrival.
    pub jobs: Vec<Arrival>,
    /// The policy that chooses clusters for jobs.
    pub placement: PlacementPolicy,
    /// The settings of the malleability manager.
    pub settings: ManagerSettings,
    /// The durations of changes.
    pub costs: Costs,
    /// The seed of all random numbers.
    pub seed: u64,
}

#[cfg(test)]
mod tests;
