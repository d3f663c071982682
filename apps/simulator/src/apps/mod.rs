//! Jobs that model the computation and messages of real ones.

mod model;
mod processes;

use std::collections::BTreeMap;
use std::time::Duration;

use springtide_actors::job::JobParams;
use springtide_runtime::id::ClusterId;
use springtide_runtime::work::{Job, Registry};

pub use model::{LeafPhase, ModelledJob, WorkDivision};
pub(crate) use model::{Zeros, chain, hash};
pub use processes::ModelledProcesses;

use crate::faults::Summed;
use crate::grid::GridError;
use crate::submitter::{SubmittedJob, Submitter};

/// The job of a scenario.
#[derive(Clone, Debug, PartialEq)]
pub enum AppModel {
    /// A divide-and-conquer job.
    Tree(ModelledJob),
    /// A master with workers.
    Master(Summed),
    /// Processes that take the same steps.
    Processes(ModelledProcesses),
}

impl AppModel {
    /// Registers all kinds of jobs.
    pub fn register(registry: &mut Registry) {
        registry.job::<ModelledJob>().job::<Summed>().job::<ModelledProcesses>();
    }

    /// The name of the job's kind in registries.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Tree(_) => ModelledJob::NAME,
            Self::Master(_) => Summed::NAME,
            Self::Processes(_) => <ModelledProcesses as Job>::NAME,
        }
    }

    /// The checksum that a run must have.
    pub fn answer(&self) -> u64 {
        match self {
            Self::Tree(job) => job.answer(),
            Self::Master(job) => job.answer(),
            Self::Processes(job) => job.answer(),
        }
    }

    /// The work of the whole job, if it repeats nothing.
    pub fn work(&self) -> Duration {
        match self {
            Self::Tree(job) => job.work(),
            Self::Master(job) => job.work(),
            Self::Processes(job) => job.work(),
        }
    }

    /// The same job whose work costs this share of the time.
    #[must_use]
    pub fn scaled(self, share: f64) -> Self {
        let cost = |us: u64| (us as f64 * share).round() as u64;
        match self {
            Self::Tree(job) => Self::Tree(ModelledJob {
                work_us: cost(job.work_us),
                serial_us: cost(job.serial_us),
                each_us: cost(job.each_us),
                ..job
            }),
            Self::Master(job) => Self::Master(Summed {
                block_us: cost(job.block_us),
                serial_us: cost(job.serial_us),
                ..job
            }),
            Self::Processes(job) => Self::Processes(ModelledProcesses {
                work_us: cost(job.work_us),
                serial_us: cost(job.serial_us),
                each_us: cost(job.each_us),
                ..job
            }),
        }
    }

    /// Submits the job, as [`Submitter::submit`].
    ///
    /// # Errors
    /// [`GridError`].
    pub async fn submit<'a>(
        &self,
        submitter: &'a Submitter,
        params: JobParams,
        clusters: Option<BTreeMap<ClusterId, u32>>,
    ) -> Result<SubmittedJob<'a>, GridError> {
        match self.clone() {
            Self::Tree(job) => submitter.submit(job, params, clusters).await,
            Self::Master(job) => submitter.submit(job, params, clusters).await,
            Self::Processes(job) => submitter.submit(job, params, clusters).await,
        }
    }
}
