//! Workloads of many jobs over many clusters: the live malleability manager
//! ([`springtide_actors::scheduler::manager`]) against modelled sites and applications, in simulated time.
//!
//! What is live: every decision, and the books. What is modelled: how long a job takes on so many processors
//! ([`program`]), what holding, recruiting and releasing processors costs ([`Costs`]), and local users, who take processors
//! without asking anybody here ([`Users`]).

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

use springtide_actors::policy::malleability::Placement;
use springtide_actors::scheduler::manager::{Kind, Settings};
use springtide_runtime::id::ClusterId;

pub use self::engine::{Ended, Moment, Outcome, play};
pub use self::summary::Summary;

use self::program::Program;

/// A cluster.
#[derive(Clone, Debug, PartialEq)]
pub struct Site {
    /// Its name.
    pub name: ClusterId,
    /// Its processors.
    pub size: u32,
    /// Who else uses them.
    pub users: Users,
}

impl Site {
    /// One that nobody else uses.
    pub fn new(name: &str, size: u32) -> Self {
        Self { name: ClusterId::from(name), size, users: Users::default() }
    }
}

/// Local users of a cluster, who bypass the scheduler: their requests come at random, and wait in the site's own queue while
/// there is no room.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Users {
    /// Processors that they use on the average, if they never had to wait.
    pub mean: f64,
    /// Most processors of a request; requests are evenly from 1 to this.
    pub most: u32,
    /// For how long, on the average (exponentially).
    pub hold: Duration,
}

/// What changes of jobs cost.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Costs {
    /// From the order for a processor to a stub that holds it.
    pub hold: Duration,
    /// From the order for a released processor to its being free.
    pub release: Duration,
    /// A job comes to a point where it can change at least so often.
    pub point: Duration,
    /// A job computes nothing for so long when it changes: recruiting, redistribution, or giving up processes.
    pub pause: Duration,
}

impl Default for Costs {
    /// Those of the model that the bars come from.
    fn default() -> Self {
        Self {
            hold: Duration::from_secs(8),
            release: Duration::from_millis(100),
            point: Duration::from_secs(1),
            pause: Duration::from_secs(4),
        }
    }
}

/// A job and when it comes.
#[derive(Clone, Debug, PartialEq)]
pub struct Arrival {
    /// From the beginning.
    pub at: Duration,
    /// What can change.
    pub kind: Kind,
    /// Fewest processors.
    pub min: u32,
    /// Most that it starts with.
    pub start: u32,
    /// Most.
    pub max: u32,
    /// What it computes.
    pub program: Arc<Program>,
    /// It takes so many times as long as the program's curve says.
    pub scale: f64,
}

/// A workload and what it runs on.
#[derive(Clone, Debug, PartialEq)]
pub struct Workload {
    /// The clusters.
    pub sites: Vec<Site>,
    /// The jobs, by the time at which they come.
    pub jobs: Vec<Arrival>,
    /// How clusters are chosen for them.
    pub placement: Placement,
    /// How they are managed.
    pub settings: Settings,
    /// What changes cost.
    pub costs: Costs,
    /// Of all that is random.
    pub seed: u64,
}

#[cfg(test)]
mod tests;
