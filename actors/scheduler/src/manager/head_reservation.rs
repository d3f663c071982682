//! Processors that are kept free for one job, and the requests of running jobs to grow.
//!
//! They are kept for the queue's first job, or for a running job with an urgent request.

use std::collections::BTreeMap;
use std::fmt;

use springtide_base::id::{ClusterId, JobId};
use tokio::time::Instant;

use super::accounts::{AllocationStage, JobAccount, PendingGrowth};
use super::event::{GrowthRequest, ManagerAction};
use super::{Kind, Manager};
use crate::policy::malleability::{CapacitySnapshot, Direction, place};

/// Processors that are kept free for one job until there are enough.
#[derive(Debug)]
pub(super) struct HeadReservation {
    pub(super) reserved_for: ReservedFor,
    /// Number of processors by cluster.
    pub(super) need: BTreeMap<ClusterId, u32>,
}

impl HeadReservation {
    /// Whether the processors are kept for the growth of this running job.
    fn is_for_growth(&self, id: JobId) -> bool {
        self.reserved_for == ReservedFor::Growth(id)
    }

    /// Capacities without the processors of the reservation.
    pub(super) fn taken_from(&self, snapshot: &CapacitySnapshot) -> CapacitySnapshot {
        let mut snapshot = snapshot.clone();
        for (cluster, kept) in &self.need {
            if let Some(room) = snapshot.clusters.get_mut(cluster) {
                room.idle = room.idle.saturating_sub(*kept);
            }
        }
        snapshot
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReservedFor {
    /// A job that waits for its start.
    Start(JobId),
    /// A running job with an urgent request.
    Growth(JobId),
}

impl ReservedFor {
    /// The running job, if the reservation is for growth.
    fn growing(self) -> Option<JobId> {
        match self {
            Self::Start(_) => None,
            Self::Growth(job) => Some(job),
        }
    }
}

impl fmt::Display for ReservedFor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Start(job) => write!(f, "{job}, which waits"),
            Self::Growth(job) => write!(f, "{job}, which needs more processors to continue"),
        }
    }
}

impl Manager {
    /// Keeps processors for the queue's first job, if it fits after running jobs shrink to their
    /// minimum.
    pub(super) fn reserve_for_start(&mut self, id: JobId, snapshot: &CapacitySnapshot) {
        let Some(job) = self.jobs.get(&id) else { return };
        let mut could = snapshot.clone();
        for (cluster, room) in &mut could.clusters {
            let more = self.under_release(cluster) + self.reclaimable(cluster, None);
            // Released processors may be reserved for later.
            room.idle = room.idle.saturating_add(more).min(self.available_with(
                cluster,
                Some(&job.need),
                more,
            ));
        }
        let components = job.need.least_components();
        let Ok(placed) = place(job.need.placement, &components, &could) else { return };
        let need = placed.processors_by_cluster();
        self.head_reservation =
            Some(HeadReservation { reserved_for: ReservedFor::Start(id), need });
    }

    /// Drops a reservation that no job waits for, or that cannot be fulfilled.
    pub(super) fn drop_vain_reservation(&mut self, now: Instant) {
        let Some(head_reservation) = &self.head_reservation else { return };
        let waited_for = match head_reservation.reserved_for {
            ReservedFor::Start(id) => {
                self.jobs.get(&id).is_some_and(|job| job.stage == AllocationStage::Waiting)
            }
            ReservedFor::Growth(id) => self.jobs.get(&id).is_some_and(|job| {
                let wanted = job.want.as_ref().and_then(|wanted| wanted.until);
                job.stage == AllocationStage::Running && wanted.is_some_and(|until| until > now)
            }),
        };
        let coming = |(cluster, count): (&ClusterId, &u32)| {
            let more = self.under_release(cluster)
                + self.reclaimable(cluster, head_reservation.reserved_for.growing());
            let could = self.available_to(head_reservation.reserved_for, cluster, more);
            // In a round, some jobs were not asked yet. A growing job may be able to release later.
            self.rounds.contains_key(cluster) || could >= *count
        };
        if !waited_for || !head_reservation.need.iter().all(coming) {
            self.head_reservation = None;
        }
    }

    /// Processors of a cluster for this job after a release of `back` processors. The reserve for
    /// local users and the caps limit growth, and not a job's start.
    fn available_to(&self, reserved_for: ReservedFor, cluster: &ClusterId, back: u32) -> u32 {
        match reserved_for {
            ReservedFor::Growth(_) => self.grow_value_with(cluster, back),
            ReservedFor::Start(id) => {
                let known = self.clusters.get(cluster).filter(|known| known.closed.is_none());
                let need = self.jobs.get(&id).map(|job| &job.need);
                known.map_or(0, |_| self.available_with(cluster, need, back))
            }
        }
    }

    /// Starts the shrinks that the reservation needs, and grants a running job its processors.
    pub(super) fn serve_head_reservation(&mut self, now: Instant, out: &mut Vec<ManagerAction>) {
        self.refuse_overdue(now, out);
        if self.head_reservation.is_none() {
            self.reserve_for_growth(out);
        }
        let Some(head_reservation) = &self.head_reservation else { return };
        let (reserved_for, need) = (head_reservation.reserved_for, head_reservation.need.clone());
        for (cluster, count) in need {
            if let ReservedFor::Growth(id) = reserved_for
                && self.available_to(reserved_for, &cluster, 0) >= count
            {
                self.grant_reserved(id, &cluster, count, now, out);
                continue;
            }
            let lacks = count.saturating_sub(self.available_to(
                reserved_for,
                &cluster,
                self.under_release(&cluster),
            ));
            if lacks > 0 && !self.rounds.contains_key(&cluster) {
                self.start_round(&cluster, Direction::Shrink, lacks, reserved_for.growing());
            }
        }
    }

    fn grant_reserved(
        &mut self,
        id: JobId,
        cluster: &ClusterId,
        count: u32,
        now: Instant,
        out: &mut Vec<ManagerAction>,
    ) {
        let Some(job) = self.jobs.get(&id).filter(|job| job.change.is_none()) else { return };
        let Some(PendingGrowth { want, .. }) = job.want.clone() else { return };
        // The job may have grown elsewhere. Its request stands until it has all processors.
        let count = count.min(self.growth_allowance(id, &want, cluster));
        if count > 0 {
            let why = format!("it needs more processors to continue: {count} of {cluster}");
            self.grant(id, cluster, count, why, now, out);
        }
        if let Some(head_reservation) = &mut self.head_reservation {
            head_reservation.need.remove(cluster);
            if head_reservation.need.is_empty() {
                self.head_reservation = None;
            }
        }
    }

    /// Records a running job's request to grow.
    pub(super) fn want(&mut self, id: JobId, want: GrowthRequest, now: Instant) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        let until = want.timeout.and_then(|within| now.checked_add(within));
        // The time limit does not affect the reservation.
        let same = |PendingGrowth { want: was, .. }: &PendingGrowth| {
            GrowthRequest { timeout: want.timeout, ..was.clone() } == want
        };
        if !job.want.as_ref().is_some_and(same)
            && self.head_reservation.as_ref().is_some_and(|kept| kept.is_for_growth(id))
        {
            self.head_reservation = None;
        }
        let stalled = job.want.as_ref().is_some_and(|wanted| wanted.stalled);
        job.want = (want.count > 0).then_some(PendingGrowth { want, until, stalled });
        self.dirty = true;
    }

    /// Records that a grant failed, in part or completely.
    pub(super) fn stall(&mut self, id: JobId) {
        if let Some(wanted) = self.jobs.get_mut(&id).and_then(|job| job.want.as_mut()) {
            wanted.stalled = true;
        }
    }

    /// Refuses urgent requests whose time limit has passed.
    fn refuse_overdue(&mut self, now: Instant, out: &mut Vec<ManagerAction>) {
        for &id in &self.active {
            let Some(job) = self.jobs.get_mut(&id) else { continue };
            let late = job.want.as_ref().is_some_and(|w| w.until.is_some_and(|until| until <= now));
            if late && let Some(PendingGrowth { want, .. }) = job.want.take() {
                let reason = format!("{} processors did not become available in time", want.count);
                out.push(ManagerAction::Refuse { job: id, reason });
                if self.head_reservation.as_ref().is_some_and(|kept| kept.is_for_growth(id)) {
                    self.head_reservation = None;
                }
            }
        }
    }

    /// Processors by which a job may grow in a cluster.
    fn growth_allowance(&self, id: JobId, want: &GrowthRequest, cluster: &ClusterId) -> u32 {
        let Some(job) = self.jobs.get(&id) else { return 0 };
        let Some(known) = self.clusters.get(cluster).filter(|known| known.closed.is_none()) else {
            return 0;
        };
        if !want.clusters.is_empty() && !want.clusters.contains(cluster)
            || want.excluded_clusters.contains(cluster)
        {
            return 0;
        }
        let here = job.accounts.get(cluster).map_or(0, |account| account.size);
        job.bounds(cluster).1.min(known.size).saturating_sub(here)
    }

    /// Keeps processors for an urgent request: idle ones first, then those of jobs that must
    /// shrink.
    fn reserve_for_growth(&mut self, out: &mut Vec<ManagerAction>) {
        let must = |(&id, job): (&JobId, &JobAccount)| {
            let wanted = job.want.as_ref().filter(|w| w.until.is_some() && !w.stalled)?;
            (job.stage == AllocationStage::Running && job.change.is_none())
                .then(|| (id, wanted.want.clone()))
        };
        let Some((id, want)) = self.active_jobs().find_map(must) else { return };
        let mut left = want.count;
        let mut need: BTreeMap<ClusterId, u32> = BTreeMap::new();
        let mut most: Vec<(u32, u32, ClusterId)> = Vec::new();
        for cluster in self.clusters.keys() {
            let allowed = self.growth_allowance(id, &want, cluster);
            let more = self.under_release(cluster) + self.reclaimable(cluster, Some(id));
            let idle = self.grow_value(cluster).min(allowed);
            let all = self.grow_value_with(cluster, more).min(allowed);
            most.push((idle, all, cluster.clone()));
        }
        most.sort_by(|a, b| b.0.cmp(&a.0).then(b.1.cmp(&a.1)).then_with(|| a.2.cmp(&b.2)));
        for by_idle in [true, false] {
            for (idle, all, cluster) in &most {
                let has = need.get(cluster).copied().unwrap_or(0);
                let here = if by_idle { *idle } else { *all }.saturating_sub(has).min(left);
                if here > 0 {
                    *need.entry(cluster.clone()).or_default() += here;
                    left -= here;
                }
            }
        }
        if left > 0 {
            if let Some(job) = self.jobs.get_mut(&id) {
                job.want = None;
            }
            let could = want.count - left;
            let reason = format!(
                "{} more processors are requested, but only {could} could be freed if all other \
                 jobs shrank to their minimum",
                want.count
            );
            return out.push(ManagerAction::Refuse { job: id, reason });
        }
        self.head_reservation =
            Some(HeadReservation { reserved_for: ReservedFor::Growth(id), need });
    }

    /// Grants requests without a time limit from free processors.
    pub(super) fn serve_wants(
        &mut self,
        cluster: &ClusterId,
        now: Instant,
        out: &mut Vec<ManagerAction>,
    ) {
        let wants = |(&id, job): (&JobId, &JobAccount)| {
            let wanted = job.want.as_ref().filter(|wanted| wanted.until.is_none())?;
            let asks = job.stage == AllocationStage::Running
                && job.change.is_none()
                && job.need.kind == Kind::Malleable;
            asks.then(|| (id, wanted.want.clone()))
        };
        let wants: Vec<(JobId, GrowthRequest)> = self.active_jobs().filter_map(wants).collect();
        for (id, want) in wants {
            let allowed = self.growth_allowance(id, &want, cluster);
            let count = self.grow_value(cluster).min(want.count).min(allowed);
            if count == 0 {
                continue;
            }
            let why = format!("it requested processors: {count} of {cluster}");
            self.grant(id, cluster, count, why, now, out);
        }
    }
}
