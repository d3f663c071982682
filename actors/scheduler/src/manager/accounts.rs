//! Accounts of processors: counts by job and cluster.
//!
//! This module must not depend on what jobs request. A processor is *booked*, in one account, from
//! its promise to a job until it is reported free. It passes through these parts of the account:
//!
//! - `pending`: it is offered to the job, claimed or held for it, until the job uses or refuses it.
//! - `size`: the job computes on it, until the job releases or loses it, or ends.
//! - `releasing`: it was held, and is given back unused, until it is reported free.
//!
//! To *offer* asks a malleable job whether it takes processors; to *grant* gives them without a
//! question. To *hold* obtains them from the cluster's site, and to *recruit* makes the job compute
//! on them.

use std::collections::{BTreeMap, BTreeSet};

use springtide_base::id::{ClusterId, JobId};
use tokio::time::Instant;

use super::JobRequirements;
use super::event::GrowthRequest;
use crate::audit::{Shortfall, subtract};
use crate::policy::malleability::{Benefit, Direction, FreeHost, PlacementPlan, PlacementPolicy};
use crate::policy::provisioning::Time;

/// Capacity and use of a cluster.
#[derive(Debug, Default)]
pub(super) struct ClusterUsage {
    pub(super) size: u32,
    /// Processors in use by other users' programs.
    pub(super) others: u32,
    /// Number of processors if all worked.
    pub(super) whole: u32,
    /// Processors in accounts of jobs: the sum of their parts in this cluster.
    pub(super) booked: u32,
    /// Reason why the cluster cannot be used.
    pub(super) closed: Option<String>,
    /// Free parts of its hosts, for jobs with needs for each node.
    pub(super) free_hosts: Vec<FreeHost>,
    /// Its hosts without nodes.
    pub(super) whole_hosts: Vec<FreeHost>,
    /// Description of a limit below the processors that it shows.
    pub(super) limited: Option<String>,
    /// Jobs with an account in this cluster.
    pub(super) jobs: BTreeSet<JobId>,
    /// The first count of this cluster that would have become negative.
    pub(super) shortfall: Option<Shortfall>,
}

impl ClusterUsage {
    pub(super) fn idle(&self) -> u32 {
        self.size.saturating_sub(self.others).saturating_sub(self.booked)
    }

    /// Subtracts from the booked processors.
    pub(super) fn subtract_booked(&mut self, count: u32) {
        subtract(&mut self.booked, count, &mut self.shortfall, || {
            "the booked processors".to_owned()
        });
    }
}

/// A job's processors in a cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ClusterAccount {
    /// Processors that it computes on.
    pub(super) size: u32,
    /// Processors that are offered to it, claimed or held for it.
    pub(super) pending: u32,
    /// Held processors that are being released.
    pub(super) releasing: u32,
    /// Largest offer at this size of which it took nothing, plus processors that it released
    /// itself.
    pub(super) refused: u32,
    /// Whether it declined a voluntary release.
    pub(super) declined: bool,
    /// Processors of `size` that their owner will take away.
    pub(super) to_be_revoked: u32,
    /// Processors of `to_be_revoked` that wait for replacements.
    pub(super) unreplaced: u32,
}

impl ClusterAccount {
    pub(super) fn all(&self) -> u32 {
        self.size + self.pending + self.releasing
    }

    /// Processors that it computes on and will keep.
    pub(super) fn lasting(&self) -> u32 {
        self.size.saturating_sub(self.to_be_revoked)
    }

    /// Subtracts from the processors that the job computes on. `cluster` is the account's.
    pub(super) fn subtract_size(&mut self, count: u32, cluster: &mut ClusterUsage) {
        subtract(&mut self.size, count, &mut cluster.shortfall, || "a job's processors".to_owned());
    }

    /// Subtracts from the processors that are offered, claimed or held.
    pub(super) fn subtract_pending(&mut self, count: u32, cluster: &mut ClusterUsage) {
        let name = || "the processors that a job gets".to_owned();
        subtract(&mut self.pending, count, &mut cluster.shortfall, name);
    }

    /// Subtracts from the processors that are being released.
    pub(super) fn subtract_releasing(&mut self, count: u32, cluster: &mut ClusterUsage) {
        let name = || "the held processors that a job releases".to_owned();
        subtract(&mut self.releasing, count, &mut cluster.shortfall, name);
    }
}

/// Stage of a job.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum AllocationStage {
    /// The job has no place.
    Waiting,
    /// The job has a place, and its files are being transferred. Its processors are not claimed
    /// yet.
    Placed {
        placed: PlacementPlan,
        claim_at: Option<Instant>,
    },
    /// The job is being started.
    Claiming,
    Running,
    /// The job has ended, and its processors are being freed.
    Ending,
}

/// State of a job.
#[derive(Debug)]
pub(super) struct JobAccount {
    pub(super) need: JobRequirements,
    pub(super) stage: AllocationStage,
    /// Number of scans that found no place for it, without those that were left out since
    /// [`vain_from`](Self::vain_from).
    pub(super) tries: u32,
    /// The manager's number of scans left out when it began to wait.
    pub(super) vain_from: u32,
    /// Reason why it waits, or its last change.
    pub(super) why: String,
    /// Start of the job.
    pub(super) started: Time,
    pub(super) accounts: BTreeMap<ClusterId, ClusterAccount>,
    /// Bounds of its size by cluster, from its placement.
    pub(super) bounds: BTreeMap<ClusterId, (u32, u32)>,
    pub(super) change: Option<PendingResize>,
    pub(super) benefit: Benefit,
    /// Last reported efficiency.
    pub(super) efficiency: Option<f64>,
    /// Efficiency at its last refusal of processors. They are offered again once the efficiency is
    /// higher by [`REFUSAL_RESET`](super::REFUSAL_RESET).
    pub(super) refusal_efficiency: Option<f64>,
    pub(super) want: Option<PendingGrowth>,
    /// Limit of its size, set by its owner.
    pub(super) limit: Option<u32>,
    /// Cluster of its root.
    pub(super) root: Option<ClusterId>,
    /// Whether it was ordered to end because its time is over.
    pub(super) end_ordered: bool,
}

/// A job's request to grow, with its time limit.
#[derive(Clone, Debug)]
pub(super) struct PendingGrowth {
    pub(super) want: GrowthRequest,
    pub(super) until: Option<Instant>,
    /// Whether the last grant failed. Another attempt waits for the next poll.
    pub(super) stalled: bool,
}

/// A change of a job's size that is under way.
#[derive(Clone, Debug)]
pub(super) struct PendingResize {
    pub(super) number: u64,
    pub(super) cluster: ClusterId,
    pub(super) step: ResizeStep,
    pub(super) began: Instant,
    /// Time limit of the present step.
    pub(super) until: Instant,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ResizeStep {
    /// This many processors were offered.
    Offered(u32),
    /// `held` of `of` processors are held for it.
    Acquiring { held: u32, of: u32 },
    /// It got this many processors and must use them.
    Recruiting(u32),
    /// It was asked for `count` processors, and freed some before it answered.
    Asked { count: u32, mandatory: bool, freed: u32 },
    /// It must free this many more processors, including those it promised voluntarily.
    Releasing { owes: u32 },
}

impl ResizeStep {
    pub(super) fn direction(self) -> Direction {
        match self {
            Self::Offered(_) | Self::Acquiring { .. } | Self::Recruiting(_) => Direction::Grow,
            Self::Asked { .. } | Self::Releasing { .. } => Direction::Shrink,
        }
    }
}

impl JobAccount {
    pub(super) fn waiting(need: JobRequirements) -> Self {
        Self {
            need,
            stage: AllocationStage::Waiting,
            tries: 0,
            vain_from: 0,
            why: String::new(),
            started: 0,
            accounts: BTreeMap::new(),
            bounds: BTreeMap::new(),
            change: None,
            benefit: Benefit::default(),
            efficiency: None,
            refusal_efficiency: None,
            want: None,
            limit: None,
            root: None,
            end_ordered: false,
        }
    }

    /// Sets the bounds of its size from a placement.
    pub(super) fn set_bounds(&mut self, placed: &PlacementPlan) {
        self.bounds.clear();
        for part in &placed.parts {
            let (min, most) = self.bounds.entry(part.cluster.clone()).or_default();
            *min += self.need.components[part.component].min;
            *most = most.saturating_add(self.need.max[part.component]);
        }
    }

    /// Processors that it computes on.
    pub(super) fn size(&self) -> u32 {
        self.accounts.values().map(|account| account.size).sum()
    }

    pub(super) fn booked(&self) -> u32 {
        self.accounts.values().map(ClusterAccount::all).sum()
    }

    /// Least and greatest size in a cluster, at the present sizes in other clusters.
    pub(super) fn bounds(&self, cluster: &ClusterId) -> (u32, u32) {
        let (min, most) = self.needs(cluster);
        let Some(limit) = self.limit else { return (min, most) };
        let here = self.accounts.get(cluster).map_or(0, |account| account.size);
        (min, most.min(limit.saturating_sub(self.size() - here)))
    }

    /// The same without the owner's limit.
    fn needs(&self, cluster: &ClusterId) -> (u32, u32) {
        let as_one = self.need.spreads
            || self.need.placement == PlacementPolicy::FlexibleClusterMinimisation;
        if !as_one {
            return self.bounds.get(cluster).copied().unwrap_or_default();
        }
        if !self.need.spreads && !self.bounds.contains_key(cluster) {
            return (0, 0);
        }
        let here = self.accounts.get(cluster).map_or(0, |account| account.size);
        let elsewhere = self.size() - here;
        let roots = u32::from(self.root.as_ref() == Some(cluster)).min(here);
        (
            self.need.least().saturating_sub(elsewhere).max(roots),
            self.need.greatest().saturating_sub(elsewhere),
        )
    }

    /// Processors of a cluster that it promised to release, or is releasing.
    pub(super) fn owes(&self, cluster: &ClusterId) -> u32 {
        let releasing = self.accounts.get(cluster).map_or(0, |account| account.releasing);
        let ending = self.accounts.get(cluster).map_or(0, |account| account.size);
        match &self.change {
            _ if self.stage == AllocationStage::Ending => releasing + ending,
            Some(PendingResize {
                cluster: c, step: ResizeStep::Releasing { owes, .. }, ..
            }) if c == cluster => releasing + owes,
            Some(PendingResize {
                cluster: c,
                step: ResizeStep::Asked { count, freed, .. },
                ..
            }) if c == cluster => releasing + count.saturating_sub(*freed),
            _ => releasing,
        }
    }
}
