//! The requirements of a job, and its state in the malleability manager. Data only.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use springtide_base::files::check_name;
use springtide_base::id::{ClusterId, JobId};
pub use springtide_config::JobKind as Kind;

use springtide_work::work::ArrayTask;

use crate::policy::malleability::{Component, NodeNeeds, PlacementPolicy};
use crate::policy::provisioning::{NEVER, Time, from_duration};
use crate::reservation::ReservationId;

/// Greatest number of components of a job. A placement examines each of them.
pub const COMPONENTS_MAX: usize = 10_000;

/// Greatest number of jobs that a job may wait for.
pub const DEPENDENCIES_MAX: usize = 1000;

/// A job that must end before another one starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct JobDependency {
    /// The job that must end.
    pub job: JobId,
    /// Whether any end counts; otherwise the job must succeed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub any: bool,
}

/// Requirements of a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobRequirements {
    /// Whether the job's size can change.
    pub kind: Kind,
    /// Placement policy of the job.
    pub placement: PlacementPolicy,
    /// Components of the job, at least one.
    pub components: Vec<Component>,
    /// Greatest number of processors of each component, at least its start. For rigid jobs, its
    /// start.
    pub max: Vec<u32>,
    /// Whether the job may grow in clusters where it has no processors.
    pub spreads: bool,
    /// Reservation that the job runs on exclusively.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reservation: Option<ReservationId>,
    /// Whether the job may start before its reservation, on processors that no other reservation
    /// needs.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub starts_early: bool,
    /// Time limit in milliseconds, after which the job is ended. A job without one is assumed to
    /// run forever.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time_ms: Option<u64>,
    /// Expected run time in milliseconds, by which a queue with backfilling plans. The job may run
    /// longer. Without it, the plan uses the time limit, or earlier runs of the program.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected_ms: Option<u64>,
    /// Program of the job. Jobs of one program are expected to run equally long.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub program: Option<String>,
    /// User of the job, as the scheduler has authenticated them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Project of the job, by its submitter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub project: Option<String>,
    /// Jobs that must end before this one starts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub after: Vec<JobDependency>,
    /// Place of the job in its array, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub array: Option<ArrayTask>,
    /// Requirements of each of its nodes.
    #[serde(default, skip_serializing_if = "NodeNeeds::is_met_by_all")]
    pub node: NodeNeeds,
}

impl JobRequirements {
    /// Creates requirements of one component that may run in any cluster.
    pub fn one(kind: Kind, min: u32, start: u32, most: u32) -> Self {
        let (clusters, files) = (BTreeSet::new(), Vec::new());
        let components = vec![Component { min, max_at_start: start, clusters, files }];
        let placement = PlacementPolicy::default();
        let most = vec![most];
        Self {
            kind,
            placement,
            components,
            max: most,
            spreads: false,
            reservation: None,
            starts_early: false,
            time_ms: None,
            expected_ms: None,
            program: None,
            user: None,
            project: None,
            after: Vec::new(),
            array: None,
            node: NodeNeeds::default(),
        }
    }

    /// Time limit of the job; [`NEVER`] without one.
    pub fn time(&self) -> Time {
        self.time_ms.map_or(NEVER, |ms| from_duration(Duration::from_millis(ms)))
    }

    /// Whether the capacities differ from other jobs', because of a reservation, a time limit or
    /// needs for each node.
    pub fn has_own_capacities(&self) -> bool {
        self.reservation.is_some() || self.time_ms.is_some() || !self.node.is_met_by_all()
    }

    /// Checks the requirements, which may come from another program.
    ///
    /// # Errors
    /// The reason why the requirements are invalid.
    pub fn check(&self) -> Result<(), String> {
        if self.components.is_empty() || self.components.len() != self.max.len() {
            let (parts, most) = (self.components.len(), self.max.len());
            return Err(format!("the job has {parts} components, but greatest sizes of {most}"));
        }
        if self.components.len() > COMPONENTS_MAX {
            let parts = self.components.len();
            return Err(format!("the job has {parts} components, more than {COMPONENTS_MAX}"));
        }
        for (i, (one, most)) in self.components.iter().zip(&self.max).enumerate() {
            if one.min == 0 || one.min > one.max_at_start || one.max_at_start > *most {
                let (min, start) = (one.min, one.max_at_start);
                return Err(format!(
                    "component {} has min {min}, start {start} and most {most}: each must be at \
                     least the one before, and the first at least 1",
                    i + 1
                ));
            }
        }
        if self.reservation.is_some() && (self.kind == Kind::Malleable || self.spreads) {
            return Err("a job on a reservation cannot change its size: make it rigid or moldable"
                .to_owned());
        }
        if self.after.len() > DEPENDENCIES_MAX {
            let count = self.after.len();
            return Err(format!("the job waits for {count} jobs, more than {DEPENDENCIES_MAX}"));
        }
        if let Some(at) = self.components.iter().position(|one| one.min < self.node.least()) {
            let (min, least) = (self.components[at].min, self.node.least());
            return Err(format!(
                "component {} has at least {min} processors, and each node needs {least}: raise \
                 its minimum",
                at + 1
            ));
        }
        if self.array.is_some_and(|array| array.limit == Some(0)) {
            return Err(
                "at most 0 jobs of the array may run at a time: state at least 1".to_owned()
            );
        }
        if self.time_ms == Some(0) {
            return Err("the job's time limit is zero: state a positive one, or none".to_owned());
        }
        if self.spreads && self.components.iter().any(|one| !one.files.is_empty()) {
            return Err("the job needs files, so it cannot grow into clusters without them: turn \
                 spreading off"
                .to_owned());
        }
        let files = self.components.iter().flat_map(|one| &one.files);
        if let Some(error) = files.filter_map(|file| check_name(file).err()).next() {
            return Err(error.to_string());
        }
        if self.components.iter().try_fold(0u32, |sum, one| sum.checked_add(one.min)).is_none() {
            return Err("the components need more than 2^32 processors in total".to_owned());
        }
        Ok(())
    }

    /// The components at their minimum sizes.
    pub fn least_components(&self) -> Vec<Component> {
        let at_least = |one: &Component| Component { max_at_start: one.min, ..one.clone() };
        self.components.iter().map(at_least).collect()
    }

    /// Greatest number of processors of all components together.
    pub fn greatest(&self) -> u32 {
        self.max.iter().fold(0, |sum, most| sum.saturating_add(*most))
    }

    /// Least number of processors of all components together.
    pub fn least(&self) -> u32 {
        self.components.iter().map(|one| one.min).sum()
    }
}

/// Public state of a job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JobView {
    /// Phase of the job.
    pub phase: JobPhase,
    /// Whether the job's size can change.
    pub kind: Kind,
    /// Least number of processors of the job.
    pub least: u32,
    /// Greatest number of processors that the job may have now.
    pub most: u32,
    /// Greatest number of processors that the job can use.
    pub useful: u32,
    /// Processors on which the job computes, by cluster.
    pub sizes: BTreeMap<ClusterId, u32>,
    /// Number of scans that found no place for the job.
    pub tries: u32,
    /// Reason why the job waits, or its last change.
    pub reason: String,
}

/// Phase of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum JobPhase {
    /// The job waits for a place.
    Waiting,
    /// The job has a place, and its files are being transferred.
    Placed,
    /// The job is being started.
    Claiming,
    /// The job runs, and its size is constant.
    Running,
    /// The job runs, and is getting processors.
    Growing,
    /// The job runs, and is releasing processors.
    Shrinking,
    /// The job has ended, and its processors are being freed.
    Ending,
}
