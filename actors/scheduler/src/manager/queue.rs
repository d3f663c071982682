//! The placement queue: which waiting jobs start, and which may never fit.

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use springtide_base::id::{ClusterId, JobId};
use tokio::time::Instant;

use super::JobRequirements;
use super::accounts::{AllocationStage, JobAccount};
use super::backfill::{StartPlan, UNKNOWN_TIME};
use super::event::ManagerAction;
use super::head_reservation::ReservedFor;
use super::hold::{ArrayUsage, held_back};
use super::shares::ShareHoldings;
use super::waiting::{Candidates, Place, WaitingNeed};
use super::{Approach, Manager};
use crate::policy::malleability::{
    CapacitySnapshot, ClusterCapacity, Component, MalleableJob, PlacementError, PlacementPlan,
    PlacementPolicy, PlacementTransfer, place,
};
use crate::policy::provisioning::{NEVER, Time};

/// Capacities by which waiting jobs are explained at one moment.
///
/// The first explanation computes them, and later ones reuse them. They are valid until the next
/// event.
#[derive(Debug, Default)]
pub struct GridOutlook(OnceCell<SnapshotCapacities>);

#[derive(Debug)]
struct SnapshotCapacities {
    all: CapacitySnapshot,
    /// Capacities for jobs other than that with the reservation, if there is one.
    others: Option<CapacitySnapshot>,
    arrays: ArrayUsage,
    /// What users and projects have, if any of them has a limit.
    holdings: Option<ShareHoldings>,
}

/// What the result of a scan depends on, apart from the waiting jobs.
struct ScanInputs {
    snapshot: CapacitySnapshot,
    /// Processors that are kept for one job.
    kept: Option<(ReservedFor, BTreeMap<ClusterId, u32>)>,
}

/// The inputs of the last scan, if it placed no job, and nothing has changed since but the time.
#[derive(Default)]
pub(super) struct LastScan(Option<ScanInputs>);

/// Prints nothing: the inputs only save work, and whether they are kept is not a state of the
/// manager.
impl fmt::Debug for LastScan {
    fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
        Ok(())
    }
}

impl Manager {
    pub(super) fn submit(
        &mut self,
        id: JobId,
        need: JobRequirements,
        now: Instant,
        out: &mut Vec<ManagerAction>,
    ) {
        if self.jobs.contains_key(&id) {
            return out.push(ManagerAction::ProtocolViolation {
                what: format!("{id} was submitted twice"),
            });
        }
        if need.spreads {
            self.spreading.insert(id);
        }
        for dependency in &need.after {
            self.dependents.entry(dependency.job).or_default().insert(id);
        }
        let vain_from = self.vain_scans;
        self.queue.push_back(id, WaitingNeed::of(&need));
        self.jobs.insert(id, JobAccount { vain_from, ..JobAccount::waiting(need) });
        self.next_scan.get_or_insert(now + self.settings.scan_interval);
        self.dirty = true;
    }

    /// Scans the queue from head to tail, if due: at intervals, after a poll, and when processors
    /// become free. A regular scan that finds no place counts as a try. Returns whether jobs may
    /// have been examined.
    pub(super) fn scan(
        &mut self,
        now: Instant,
        polled: bool,
        out: &mut Vec<ManagerAction>,
    ) -> bool {
        let regular = self.next_scan.is_some_and(|at| at <= now);
        if !regular && !polled && !self.dirty {
            return false;
        }
        let was_dirty = std::mem::take(&mut self.dirty);
        self.drop_vain_reservation(now);
        if self.queue.is_empty() {
            self.next_scan = None;
            return false;
        }
        let mut snapshot = self.capacities_now();
        if !was_dirty && !self.is_start_due() && self.repeats_scan(&snapshot) {
            if regular {
                self.leave_out_scans(now, 1);
            }
            return false;
        }
        let inputs = snapshot.clone();
        let (mut has_changed, mut has_own) = (false, false);
        let mut summary = CapacitySummary::at(&snapshot);
        let whole = self.settings.approach == Approach::Waiting && self.head_reservation.is_none();
        let mut head = None;
        let mut arrays = self.array_usage();
        let mut plan = self.start_plan();
        let mut holdings = self.share_holdings();
        // Jobs that do not fit may have other effects on the scan until these are excluded.
        let must_examine_all = holdings.is_some()
            || self.has_reservations()
            || self.settings.max_tries.is_some()
            || self.examines_all();
        let mut reserved =
            self.head_reservation.as_ref().and_then(|kept| match kept.reserved_for {
                ReservedFor::Start(id) => Some(id),
                ReservedFor::Growth(_) => None,
            });
        let mut vain = VainRequests::default();
        self.order_queue();
        let mut place: Option<Place> = None;
        let mut candidates: Option<Candidates> = None;
        loop {
            let next = match (&mut candidates, place) {
                (Some(candidates), _) => {
                    candidates.next(&self.queue, summary.most_idle, summary.most_size)
                }
                (None, Some(at))
                    if !must_examine_all
                        && head.is_some()
                        && reserved.is_none()
                        && plan.as_ref().is_none_or(StartPlan::is_complete) =>
                {
                    let CapacitySummary { most_idle, most_size, .. } = summary;
                    let rest = self.queue.candidates(at, most_idle, most_size);
                    candidates.insert(rest).next(&self.queue, most_idle, most_size)
                }
                (None, at) => self.queue.after(at),
            };
            let Some((at, id)) = next else { break };
            place = Some(at);
            let Some(job) = self.jobs.get(&id) else { continue };
            if let Some(reason) = self.lost_reservation(&job.need) {
                self.forget(id);
                out.push(ManagerAction::Fail { job: id, reason });
                has_changed = true;
                continue;
            }
            if !job.need.after.is_empty() || arrays.is_full(&job.need) {
                self.exempt_from_try(id, regular); // it is held back
                continue;
            }
            let own = job.need.reservation.is_some();
            let has_own_capacities = self.has_own_capacities(&job.need);
            has_own |= has_own_capacities;
            let is_reserved = reserved == Some(id);
            if is_reserved {
                reserved = None;
            }
            // An explanation costs more than this first test, so that it is made only for final
            // failures.
            let cannot_fit_now = !has_own_capacities
                && summary.cannot_fit_now(&job.need)
                && !summary.may_never_fit(&job.need, &snapshot);
            let kept = plan.as_mut().and_then(|plan| plan.withdraw(id));
            let exceeds = holdings.as_ref().and_then(|held| self.exceeded_limit(&job.need, held));
            let is_plain = plan.is_some() && !has_own_capacities && !is_reserved;
            let request = is_plain.then(|| self.request_of(&job.need)).flatten();
            if kept.is_some() {
                vain = VainRequests::default(); // its former reservation may leave place for it
            }
            let is_vain = request.is_some_and(|request| vain.covers(request))
                && !summary.may_never_fit(&job.need, &snapshot);
            let tried = (!cannot_fit_now && exceeds.is_none() && !is_vain)
                .then(|| self.try_place(&job.need, is_reserved, &snapshot, plan.as_ref()));
            match tried {
                Some(Ok(placed)) => {
                    let is_early = job.need.starts_early;
                    if let Some(plan) = plan.as_mut().filter(|_| !own || is_early) {
                        let time = match self.predicted_time(&job.need) {
                            NEVER => UNKNOWN_TIME,
                            time => time,
                        };
                        plan.start(&placed, self.now.saturating_add(time).min(NEVER));
                    }
                    if let Some(held) = &mut holdings {
                        held.add(&job.need, &placed);
                    }
                    if placed.transfers.is_empty() && !own {
                        for part in &placed.parts {
                            if let Some(room) = snapshot.clusters.get_mut(&part.cluster) {
                                room.idle = room.idle.saturating_sub(part.count);
                            }
                        }
                        summary = CapacitySummary::at(&snapshot);
                    }
                    if is_reserved {
                        self.head_reservation = None;
                        vain = VainRequests::default();
                    }
                    arrays.add(Some(&job.need));
                    self.placed(id, placed, now, out);
                    if own && is_early {
                        // It may have processors that are not reserved.
                        snapshot = self.capacities_now();
                        summary = CapacitySummary::at(&snapshot);
                    }
                    has_changed = true;
                    continue;
                }
                Some(Err(no)) if no.can_never_fit => {
                    self.forget(id);
                    out.push(ManagerAction::Fail { job: id, reason: no.to_string() });
                    has_changed = true;
                    continue;
                }
                Some(Err(_)) => vain.add(request),
                None => {}
            }
            if own || exceeds.is_some() {
                // It waits for its reservation, or for its user's other jobs.
                self.exempt_from_try(id, regular);
                continue;
            }
            if let Some(plan) = plan.as_mut().filter(|plan| plan.takes_reservation()) {
                let time = self.predicted_time(&job.need);
                plan.reserve(id, &job.need, time, kept, &self.open_capacities(&snapshot));
            }
            head.get_or_insert(id);
            if is_reserved {
                // Running jobs shrink for it.
                self.exempt_from_try(id, regular);
                self.queue.move_to_front(id);
                continue;
            }
            let tries = self.tries(job) + u32::from(regular);
            if regular && self.settings.max_tries.is_some_and(|limit| tries > limit) {
                let why = self.explain_wait(id, job, &GridOutlook::default());
                self.forget(id);
                let reason = format!("no place was found in {tries} tries: {why}");
                out.push(ManagerAction::Fail { job: id, reason });
                if head == Some(id) {
                    head = None;
                }
            }
        }
        self.vain_scans = self.vain_scans.saturating_add(u32::from(regular));
        self.planned_starts = plan.map(|plan| plan.starts).unwrap_or_default();
        if regular || self.queue.is_empty() {
            self.next_scan = (!self.queue.is_empty()).then(|| now + self.settings.scan_interval);
        }
        if let Some(head) = head.filter(|_| whole) {
            self.reserve_for_start(head, &snapshot);
        }
        let repeats = !has_changed && !has_own && self.settings.max_tries.is_none();
        let inputs = repeats.then(|| ScanInputs { snapshot: inputs, kept: self.kept_for() });
        self.last_scan = LastScan(inputs);
        true
    }

    /// Does not count a regular scan as a try of a job.
    fn exempt_from_try(&mut self, id: JobId, regular: bool) {
        if let Some(job) = self.jobs.get_mut(&id).filter(|_| regular) {
            job.vain_from = job.vain_from.saturating_add(1);
        }
    }

    /// A request for processors in any one cluster, if the job makes no other.
    fn request_of(&self, need: &JobRequirements) -> Option<(u32, Time)> {
        match WaitingNeed::of(need) {
            WaitingNeed::Processors(count) if need.components[0].files.is_empty() => {
                Some((count, self.predicted_time(need)))
            }
            _ => None,
        }
    }

    /// Whether a waiting job was expected to have started by now.
    pub(super) fn is_start_due(&self) -> bool {
        self.planned_starts.values().any(|start| start.at <= self.now)
    }

    /// Whether the capacities for a job differ from those for others.
    fn has_own_capacities(&self, need: &JobRequirements) -> bool {
        need.reservation.is_some()
            || !need.node.is_met_by_all()
            || need.has_own_capacities() && self.has_reservations()
    }

    /// The capacities without closures for a time: waiting jobs may start there later.
    fn open_capacities(&self, snapshot: &CapacitySnapshot) -> CapacitySnapshot {
        let mut snapshot = snapshot.clone();
        for (cluster, room) in &mut snapshot.clusters {
            room.closed = self.clusters.get(cluster).and_then(|known| known.closed.clone());
        }
        snapshot
    }

    fn kept_for(&self) -> Option<(ReservedFor, BTreeMap<ClusterId, u32>)> {
        self.head_reservation.as_ref().map(|kept| (kept.reserved_for, kept.need.clone()))
    }

    /// Whether a scan with these capacities would find no place, like the last one.
    fn repeats_scan(&self, snapshot: &CapacitySnapshot) -> bool {
        let last = self.last_scan.0.as_ref();
        last.is_some_and(|last| last.snapshot == *snapshot && last.kept == self.kept_for())
    }

    /// Counts regular scans that would find no place as tries of all waiting jobs, but for the one
    /// for which processors are kept. The last of them is at `now`.
    pub(super) fn leave_out_scans(&mut self, now: Instant, count: u32) {
        self.vain_scans = self.vain_scans.saturating_add(count);
        let kept = self.head_reservation.as_ref().map(|kept| kept.reserved_for);
        if let Some(ReservedFor::Start(id)) = kept
            && let Some(job) = self.jobs.get_mut(&id)
        {
            job.vain_from = job.vain_from.saturating_add(count);
        }
        self.next_scan = Some(now + self.settings.scan_interval);
    }

    /// The number of scans that found no place for a job.
    pub(super) fn tries(&self, job: &JobAccount) -> u32 {
        match job.stage {
            // Scans do not try a job that waits for others.
            AllocationStage::Waiting if job.need.after.is_empty() => {
                job.tries + self.vain_scans.saturating_sub(job.vain_from)
            }
            _ => job.tries,
        }
    }

    /// Places a job on the capacities without the processors that are kept for another.
    fn try_place(
        &self,
        need: &JobRequirements,
        is_reserved: bool,
        snapshot: &CapacitySnapshot,
        plan: Option<&StartPlan>,
    ) -> Result<PlacementPlan, PlacementError> {
        let delays_others = !is_reserved && need.reservation.is_none();
        let head_reservation = self.head_reservation.as_ref().filter(|_| delays_others);
        let plan = plan.filter(|plan| plan.has_reservations() && delays_others);
        if head_reservation.is_none() && plan.is_none() && !self.has_own_capacities(need) {
            return place(need.placement, &need.components, snapshot);
        }
        let mut snapshot = snapshot.clone();
        self.adjust_capacities(need, &mut snapshot.clusters);
        if let Some(plan) = plan {
            let end = self.now.saturating_add(self.predicted_time(need)).min(NEVER);
            plan.limit(&mut snapshot, end);
        }
        let placed = match head_reservation {
            Some(head_reservation) => {
                place(need.placement, &need.components, &head_reservation.taken_from(&snapshot))
            }
            None => place(need.placement, &need.components, &snapshot),
        };
        placed.map_err(|no| no.explain_by_node_needs(&need.node))
    }

    fn snapshot_now(&self) -> SnapshotCapacities {
        let all = self.capacities_now();
        let others = self
            .head_reservation
            .as_ref()
            .map(|head_reservation| head_reservation.taken_from(&all));
        let (arrays, holdings) = (self.array_usage(), self.share_holdings());
        SnapshotCapacities { all, others, arrays, holdings }
    }

    /// Explains why a job waits.
    pub(super) fn explain_wait(
        &self,
        id: JobId,
        job: &JobAccount,
        snapshot: &GridOutlook,
    ) -> String {
        let is_reserved = self.head_reservation.as_ref().is_some_and(|head_reservation| {
            head_reservation.reserved_for == ReservedFor::Start(id)
        });
        let SnapshotCapacities { all, others, arrays, holdings } =
            snapshot.0.get_or_init(|| self.snapshot_now());
        if let Some(why) = held_back(&job.need, arrays) {
            return why;
        }
        if let Some(when) = self.reservation_wait(&job.need) {
            return when;
        }
        let exceeds = |held| self.exceeded_limit(&job.need, held);
        if let Some(exceeded) = holdings.as_ref().and_then(exceeds) {
            return exceeded;
        }
        let capacities = others.as_ref().filter(|_| !is_reserved).unwrap_or(all);
        let tried = if self.has_own_capacities(&job.need) {
            self.try_place(&job.need, is_reserved, all, None)
        } else {
            place(job.need.placement, &job.need.components, capacities)
        };
        let plan = self.explain_plan(id);
        let limits: Vec<&str> =
            self.clusters.values().filter_map(|known| known.limited.as_deref()).collect();
        let why = match (tried, is_reserved, &self.head_reservation) {
            (Ok(placed), ..) => {
                plan.unwrap_or_else(|| format!("it is about to start ({})", placed.why))
            }
            (Err(no), true, _) => format!("{no}; running jobs are making room for it"),
            (Err(no), false, Some(head_reservation)) => {
                format!("{no}; processors are kept for {}", head_reservation.reserved_for)
            }
            (Err(no), false, None) => match plan {
                Some(plan) => format!("{no}; {plan}"),
                None => no.to_string(),
            },
        };
        if limits.is_empty() { why } else { format!("{why}; {}", limits.join("; ")) }
    }

    fn placed(
        &mut self,
        id: JobId,
        placed: PlacementPlan,
        now: Instant,
        out: &mut Vec<ManagerAction>,
    ) {
        let seconds: f64 = placed.transfers.iter().map(|transfer| transfer.seconds).sum();
        let ahead = self.settings.claim_ahead;
        let vain_scans = self.vain_scans;
        let Some(job) = self.jobs.get_mut(&id) else { return };
        job.why = placed.why.clone();
        job.tries += vain_scans.saturating_sub(job.vain_from);
        self.active.insert(id);
        self.queue.remove(id);
        if placed.transfers.is_empty() {
            return self.claim(id, placed, out);
        }
        // Without a measured rate, the processors are claimed when the files have arrived.
        let start =
            Duration::try_from_secs_f64(seconds).ok().and_then(|takes| now.checked_add(takes));
        let claim_at = start.map(|start| start.checked_sub(ahead).unwrap_or(now).max(now));
        out.push(ManagerAction::TransferFiles { job: id, transfers: placed.transfers.clone() });
        job.stage = AllocationStage::Placed { placed, claim_at };
    }

    fn claim(&mut self, id: JobId, placed: PlacementPlan, out: &mut Vec<ManagerAction>) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        job.stage = AllocationStage::Claiming;
        job.set_bounds(&placed);
        for part in &placed.parts {
            if let Some((known, account)) = self.account(id, &part.cluster) {
                account.pending += part.count;
                known.booked += part.count;
            }
        }
        out.push(ManagerAction::Claim { job: id, placed });
    }

    /// Processes the arrival of a placed job's files.
    pub(super) fn moved(&mut self, id: JobId, now: Instant, out: &mut Vec<ManagerAction>) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        let AllocationStage::Placed { placed, claim_at } = &mut job.stage else { return };
        *claim_at = Some(now);
        for PlacementTransfer { file, to, .. } in &placed.transfers {
            if let Some(replica) = self.snapshot.files.get_mut(file) {
                replica.clusters.insert(to.clone());
            }
        }
        self.claim_due(now, out);
    }

    /// Processes the failure of a placed job's transfers.
    pub(super) fn move_failed(
        &mut self,
        id: JobId,
        reason: &str,
        now: Instant,
        out: &mut Vec<ManagerAction>,
    ) {
        // If the processors are claimed already, the driver reports a failed claim.
        if self.jobs.get(&id).is_some_and(|job| matches!(job.stage, AllocationStage::Placed { .. }))
        {
            let why = format!("its files could not be moved: {reason}");
            self.requeue(id, &why, now, out);
        }
    }

    /// Claims the processors of placed jobs that are due, or requeues the jobs if they are taken.
    pub(super) fn claim_due(&mut self, now: Instant, out: &mut Vec<ManagerAction>) {
        let due = |(&id, job): (&JobId, &JobAccount)| match &job.stage {
            AllocationStage::Placed { placed, claim_at: Some(at) } if *at <= now => {
                Some((id, placed.clone()))
            }
            _ => None,
        };
        let due: Vec<(JobId, PlacementPlan)> = self.active_jobs().filter_map(due).collect();
        for (id, placed) in due {
            let needed = placed.processors_by_cluster();
            let need = self.jobs.get(&id).map(|job| &job.need);
            let there = |(cluster, count): (&ClusterId, &u32)| {
                let known = self.clusters.get(cluster);
                let available = self.available(cluster, need);
                known.is_some_and(|known| known.closed.is_none() && available >= *count)
            };
            if needed.iter().all(there) {
                self.claim(id, placed, out);
            } else {
                self.requeue(id, "its processors were taken while its files were moved", now, out);
            }
        }
    }

    /// Puts a job at the queue's tail, and counts a try.
    fn requeue(&mut self, id: JobId, why: &str, now: Instant, out: &mut Vec<ManagerAction>) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        job.tries += 1;
        if self.settings.max_tries.is_some_and(|limit| job.tries > limit) {
            let reason = format!("no place was found in {} tries: {why}", job.tries);
            self.forget(id);
            return out.push(ManagerAction::Fail { job: id, reason });
        }
        (job.stage, job.why) = (AllocationStage::Waiting, why.to_owned());
        job.bounds.clear();
        job.vain_from = self.vain_scans;
        self.active.remove(&id);
        self.queue.push_back(id, WaitingNeed::of(&job.need));
        self.next_scan.get_or_insert(now + self.settings.scan_interval);
    }

    pub(super) fn claimed(&mut self, id: JobId, got: &BTreeMap<ClusterId, u32>, now: Instant) {
        let started = self.time(now);
        let Some(job) = self.jobs.get_mut(&id).filter(|job| job.stage == AllocationStage::Claiming)
        else {
            return;
        };
        (job.stage, job.started) = (AllocationStage::Running, started);
        let clusters: Vec<ClusterId> = job.accounts.keys().cloned().collect();
        for cluster in clusters {
            let Some((known, account)) = self.account(id, &cluster) else { continue };
            let count = got.get(&cluster).copied().unwrap_or(0).min(account.pending);
            known.subtract_booked(account.pending - count);
            (account.pending, account.size) = (0, count);
        }
        self.dirty = true;
    }

    /// Adds a running job that an earlier manager placed.
    pub(super) fn resumed(
        &mut self,
        id: JobId,
        need: JobRequirements,
        placed: &PlacementPlan,
        since: Option<Time>,
        sizes: &BTreeMap<ClusterId, u32>,
    ) {
        if self.jobs.contains_key(&id) {
            return;
        }
        if need.spreads {
            self.spreading.insert(id);
        }
        // Clocks of machines may differ: the start is not in the future.
        let started = since.unwrap_or(self.now).min(self.now);
        let mut job =
            JobAccount { stage: AllocationStage::Running, started, ..JobAccount::waiting(need) };
        job.why = "it was running when the scheduler restarted".to_owned();
        job.set_bounds(placed);
        self.jobs.insert(id, job);
        self.active.insert(id);
        for (cluster, size) in sizes {
            self.clusters.entry(cluster.clone()).or_default();
            if let Some((known, account)) = self.account(id, cluster) {
                account.size += size;
                known.booked += size;
            }
        }
        self.dirty = true;
    }

    /// Limits a job to other clusters than these. A component that has no other one keeps its own.
    pub(super) fn restrict(&mut self, id: JobId, without: &BTreeSet<ClusterId>) {
        let all: BTreeSet<ClusterId> = self.clusters.keys().cloned().collect();
        let Some(job) = self.jobs.get_mut(&id).filter(|_| !without.is_empty()) else { return };
        for one in &mut job.need.components {
            let own = if one.clusters.is_empty() { &all } else { &one.clusters };
            let others: BTreeSet<ClusterId> = own.difference(without).cloned().collect();
            if !others.is_empty() {
                one.clusters = others;
            }
        }
    }

    pub(super) fn claim_failed(
        &mut self,
        id: JobId,
        reason: &str,
        now: Instant,
        out: &mut Vec<ManagerAction>,
    ) {
        let Some(job) = self.jobs.get_mut(&id).filter(|job| job.stage == AllocationStage::Claiming)
        else {
            return;
        };
        for (cluster, account) in std::mem::take(&mut job.accounts) {
            if let Some(known) = self.clusters.get_mut(&cluster) {
                known.subtract_booked(account.all());
                known.jobs.remove(&id);
            }
        }
        // The next scan retries it. An immediate attempt would probably fail again.
        self.requeue(id, reason, now, out);
    }

    pub(super) fn withdraw(&mut self, id: JobId) {
        let Some(job) = self.jobs.get(&id) else { return };
        if matches!(job.stage, AllocationStage::Waiting | AllocationStage::Placed { .. }) {
            self.forget(id);
            self.dirty = true;
        }
    }

    /// Whether processors of a cluster are kept for a job.
    pub(super) fn is_kept(&self, cluster: &ClusterId) -> bool {
        self.head_reservation
            .as_ref()
            .is_some_and(|head_reservation| head_reservation.need.contains_key(cluster))
    }

    /// Processors of a cluster that jobs are releasing.
    pub(super) fn under_release(&self, cluster: &ClusterId) -> u32 {
        let Some(known) = self.clusters.get(cluster) else { return 0 };
        known.jobs.iter().filter_map(|id| self.jobs.get(id)).map(|job| job.owes(cluster)).sum()
    }

    /// Processors of a cluster that malleable jobs could release now.
    pub(super) fn reclaimable(&self, cluster: &ClusterId, but: Option<JobId>) -> u32 {
        let others = self.runners(cluster).into_iter().filter(|runner| Some(runner.job) != but);
        others.map(|MalleableJob { size, min, .. }| size.saturating_sub(min)).sum()
    }
}

/// Requests without a place in a scan of the queue with backfilling: the processors in one cluster,
/// and the predicted time.
///
/// A scan only takes processors, apart from withdrawn reservations. So a request for as many or
/// more processors and as much time or more finds no place, either.
#[derive(Debug, Default)]
struct VainRequests(Vec<(u32, Time)>);

impl VainRequests {
    fn covers(&self, (count, time): (u32, Time)) -> bool {
        self.0.iter().any(|(least, shortest)| *least <= count && *shortest <= time)
    }

    fn add(&mut self, request: Option<(u32, Time)>) {
        let Some((count, time)) = request else { return };
        self.0.retain(|(least, shortest)| *least < count || *shortest < time);
        self.0.push((count, time));
    }
}

/// Totals and maxima of the capacities, for a fast first test.
struct CapacitySummary {
    most_idle: u32,
    all_idle: u64,
    /// Largest possible size of a cluster. A closed cluster may have any size.
    most_size: u64,
    all_sizes: u64,
}

impl CapacitySummary {
    fn at(snapshot: &CapacitySnapshot) -> Self {
        let open = || {
            snapshot.clusters.values().filter(|room| room.closed.is_none()).map(|room| room.idle)
        };
        let sizes = || snapshot.clusters.values().map(ClusterCapacity::size_max);
        Self {
            most_idle: open().max().unwrap_or(0),
            all_idle: open().map(u64::from).sum(),
            most_size: sizes().max().unwrap_or(0),
            all_sizes: sizes().sum(),
        }
    }

    /// Whether a job certainly finds no place now.
    fn cannot_fit_now(&self, need: &JobRequirements) -> bool {
        match need.placement {
            PlacementPolicy::FlexibleClusterMinimisation => self.all_idle < u64::from(need.least()),
            _ => need.components.iter().any(|one| one.min > self.most_idle),
        }
    }

    /// Whether a job may never find a place.
    fn may_never_fit(&self, need: &JobRequirements, snapshot: &CapacitySnapshot) -> bool {
        let named = |one: &Component| {
            let clusters = one.clusters.iter().filter_map(|cluster| snapshot.clusters.get(cluster));
            clusters.map(ClusterCapacity::size_max).max().unwrap_or(0)
        };
        let too_small = |one: &Component| {
            let largest = if one.clusters.is_empty() { self.most_size } else { named(one) };
            u64::from(one.min) > largest
        };
        match need.placement {
            PlacementPolicy::FlexibleClusterMinimisation => {
                let any_named = need.components.iter().any(|one| !one.clusters.is_empty());
                any_named || self.all_sizes < u64::from(need.least())
            }
            _ => {
                let sum: u64 = need.components.iter().map(|one| u64::from(one.min)).sum();
                sum > self.all_sizes || need.components.iter().any(too_small)
            }
        }
    }
}
