//! Reservations among the manager's jobs.
//!
//! No job is placed on reserved processors or grows into them, and malleable jobs release them in
//! time. Jobs that belong to a reservation run on its processors.
//!
//! This module is each site's local scheduler in the sense of the provisioning paper (section 4).
//! Its table has all reservations, and all processors that jobs cannot release: foreign nodes,
//! rigid jobs, and the minimum of malleable jobs. Jobs without a time limit occupy theirs forever.
//! The remaining processors are advertised as slots.
//!
//! Malleable jobs may use the remaining processors, even if reserved for later, and shrink in time.
//! This module must not depend on the reservation protocol ([`ReservationLedger`]).

use std::collections::BTreeMap;
use std::time::Duration;

use springtide_base::id::{ClusterId, JobId};
use tokio::time::Instant;

use super::Manager;
use super::accounts::{AllocationStage, ClusterUsage, JobAccount};
use super::event::{ManagerAction, ReservationBill};
use super::{JobRequirements, Kind, SiteOffer};
use crate::policy::malleability::{ClusterCapacity, Direction, placeable};
use crate::policy::provisioning::{
    AvailabilityProfile, Booking, BookingTable, NEVER, SECOND, Slot, Terms, Time, from_duration,
    seconds,
};
use crate::reservation::{
    LedgerChange, ReservableSite, Reservation, ReservationId, ReservationLedger, ReservationPhase,
    ReservationRefusal, ReservationRequest, ReservedSlot, StepTimeouts,
};

/// Time that shrinking takes in addition to the time limits for answer and release.
const MARGIN: Time = 5 * SECOND;

/// Reservations, and the manager's knowledge of them.
#[derive(Debug, Default)]
pub(super) struct ReservationCalendar {
    ledger: ReservationLedger,
    /// Reserved processors of each cluster; rebuilt when the ledger changes.
    profiles: BTreeMap<ClusterId, ReservedProfile>,
    /// Processor-seconds on which jobs of a reservation ran.
    used_s: BTreeMap<ReservationId, f64>,
    /// Last advertised bookings with their epoch, independent of the present time.
    advertised: BTreeMap<ClusterId, (u64, Vec<Booking>)>,
}

/// A cluster's reserved processors over time, in total and by reservation.
#[derive(Debug, Default)]
struct ReservedProfile {
    all: AvailabilityProfile,
    each: BTreeMap<ReservationId, AvailabilityProfile>,
}

impl ReservedProfile {
    fn add(&mut self, id: ReservationId, booking: Booking) {
        let Booking { processors, start, end } = booking;
        self.all.give(processors, start, end);
        self.each.entry(id).or_default().give(processors, start, end);
    }

    /// Processors of a reservation at a time.
    fn of(&self, id: ReservationId, time: Time) -> u32 {
        self.each.get(&id).map_or(0, |profile| profile.free_at(time))
    }

    /// Times of changes after `from` and before `to`.
    fn change_times(&self, from: Time, to: Time) -> impl Iterator<Item = Time> {
        self.all.steps().map(|(time, _)| time).filter(move |&time| from < time && time < to)
    }
}

impl ReservationCalendar {
    pub(super) fn new(timeouts: StepTimeouts) -> Self {
        Self { ledger: ReservationLedger::new(timeouts), ..Self::default() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.ledger.all().is_empty()
    }

    /// Checks the ledger, and that the profiles have its bookings.
    pub(super) fn audit(&self) -> Result<(), String> {
        self.ledger.audit()?;
        let all = self.ledger.all();
        let mut profiles = self
            .profiles
            .iter()
            .flat_map(|(cluster, profile)| profile.each.keys().map(move |id| (cluster, *id)));
        match profiles.find(|(_, id)| !all.contains_key(id)) {
            Some((cluster, id)) => {
                Err(format!("{cluster} has processors of {id:?}, and no such reservation exists"))
            }
            None => Ok(()),
        }
    }

    fn rebuild(&mut self) {
        self.profiles.clear();
        for one in self.ledger.all().values() {
            for (cluster, booking) in one.bookings() {
                self.profiles.entry(cluster.clone()).or_default().add(one.id, booking);
            }
        }
    }
}

impl Manager {
    /// Converts an instant to a time of the Unix epoch.
    pub fn time(&self, at: Instant) -> Time {
        self.clock(at.saturating_duration_since(self.origin))
    }

    /// Converts a time since the manager's start to a time of the Unix epoch.
    fn clock(&self, passed: Duration) -> Time {
        self.settings.clock_us.saturating_add(from_duration(passed))
    }

    pub(super) fn instant_of(&self, time: Time) -> Option<Instant> {
        let passed = time.saturating_sub(self.settings.clock_us);
        self.origin.checked_add(Duration::from_micros(passed))
    }

    /// Returns all reservations, by number.
    pub fn reservations(&self) -> &BTreeMap<ReservationId, Reservation> {
        self.calendar.ledger.all()
    }

    /// Whether any reservation exists.
    pub fn has_reservations(&self) -> bool {
        !self.calendar.is_empty()
    }

    /// Time before the start of a reservation at which jobs must begin to shrink.
    fn lookahead(&self) -> Time {
        from_duration(self.settings.answer_timeout + self.settings.release_timeout) + MARGIN
    }

    /// Processors of a cluster that jobs of a reservation occupy.
    fn used(&self, id: ReservationId, cluster: &ClusterId) -> u32 {
        let Some(known) = self.clusters.get(cluster) else { return 0 };
        let theirs = known.jobs.iter().filter_map(|job| self.jobs.get(job));
        let theirs = theirs.filter(|job| job.need.reservation == Some(id));
        theirs.filter_map(|job| job.accounts.get(cluster)).map(|account| account.all()).sum()
    }

    /// Occupied processors of a cluster, by reservation with bookings there.
    fn occupied_by_reservation(
        &self,
        cluster: &ClusterId,
        profile: &ReservedProfile,
    ) -> BTreeMap<ReservationId, u32> {
        profile.each.keys().map(|&id| (id, self.used(id, cluster))).collect()
    }

    /// Processors that reservations need at a time, in addition to those that their jobs occupy.
    ///
    /// For a future time, processors of shrinking reservations count as returned by then.
    fn needed_at(
        &self,
        profile: &ReservedProfile,
        uses: &BTreeMap<ReservationId, u32>,
        time: Time,
    ) -> u32 {
        let (mut lacks, mut comes_back) = (0, 0);
        for (&id, &used) in uses {
            let has = profile.of(id, time);
            lacks += has.saturating_sub(used);
            if time > self.now {
                comes_back += used.saturating_sub(has);
            }
        }
        u32::saturating_sub(lacks, comes_back)
    }

    /// Number of idle processors of a cluster that are reserved now or soon.
    pub fn withheld_processors(&self, cluster: &ClusterId) -> u32 {
        self.withheld(cluster, None)
    }

    /// Number of idle processors of a cluster that other reservations need now or soon.
    pub(super) fn withheld_for_others(&self, cluster: &ClusterId, id: ReservationId) -> u32 {
        self.withheld(cluster, Some(id))
    }

    fn withheld(&self, cluster: &ClusterId, except: Option<ReservationId>) -> u32 {
        let Some(profile) = self.calendar.profiles.get(cluster) else { return 0 };
        let (from, to) = (self.now, self.now.saturating_add(self.lookahead() + 1));
        let change_times = std::iter::once(from).chain(profile.change_times(from, to));
        let mut uses = self.occupied_by_reservation(cluster, profile);
        uses.retain(|id, _| Some(*id) != except);
        change_times.map(|time| self.needed_at(profile, &uses, time)).max().unwrap_or(0)
    }

    /// Greatest number of reserved processors at any time from now on.
    pub fn reserved_ever(&self, cluster: &ClusterId) -> u32 {
        self.calendar
            .profiles
            .get(cluster)
            .map_or(0, |profile| profile.all.max_free(self.now, Time::MAX))
    }

    /// Number of a cluster's processors that its jobs cannot release.
    pub fn unreleasable_processors(&self, cluster: &ClusterId) -> u32 {
        let others = self.clusters.get(cluster).map_or(0, |known| known.others);
        let all: u32 = self.unreleasable(cluster).iter().map(|(count, _)| count).sum();
        all.saturating_sub(others)
    }

    /// Processors of a cluster that jobs cannot release, with the end of each, and those of other
    /// users.
    fn unreleasable(&self, cluster: &ClusterId) -> Vec<(u32, Time)> {
        let Some(known) = self.clusters.get(cluster) else { return Vec::new() };
        let job = |id: &JobId| {
            let job = self.jobs.get(id)?;
            if let Some(under) = job.need.reservation
                && !self.exceeds(under, cluster)
            {
                return None; // its processors are reserved
            }
            let here = job.accounts.get(cluster).map_or(0, |account| account.all());
            let least = job.bounds(cluster).0;
            // A job in several clusters can release its excess once, not in each of them.
            let gives = job.need.kind == Kind::Malleable && job.booked() == here;
            let floor = if gives { here.min(least) } else { here };
            Some((floor, self.latest_end(job)))
        };
        let jobs = known.jobs.iter().filter_map(job);
        jobs.chain([(known.others, NEVER)]).filter(|(count, _)| *count > 0).collect()
    }

    /// Bookings of all reservations of a cluster.
    pub(super) fn reserved_bookings(&self, cluster: &ClusterId) -> Vec<Booking> {
        let all = self.calendar.ledger.all().values().flat_map(|one| one.bookings());
        all.filter(|(of, _)| *of == cluster).map(|(_, booking)| booking).collect()
    }

    /// Whether jobs of a reservation occupy more processors of a cluster than it has now.
    fn exceeds(&self, id: ReservationId, cluster: &ClusterId) -> bool {
        let profile = self.calendar.profiles.get(cluster);
        self.used(id, cluster) > profile.map_or(0, |profile| profile.of(id, self.now))
    }

    /// End of a job by its time limit.
    fn limit_end(&self, job: &JobAccount) -> Time {
        self.end_after(job, job.need.time())
    }

    /// Expected end of a job, by its time limit. For a job of a reservation, its expected run time
    /// counts too: it would otherwise occupy its processors forever.
    fn expected_end(&self, job: &JobAccount) -> Time {
        let expected = job.need.expected_ms.filter(|_| job.need.reservation.is_some());
        let expected = expected.map(|ms| from_duration(Duration::from_millis(ms)));
        self.end_after(job, job.need.time().min(expected.unwrap_or(NEVER)))
    }

    fn end_after(&self, job: &JobAccount, time: Time) -> Time {
        let begins = match job.stage {
            AllocationStage::Running | AllocationStage::Ending => job.started,
            _ => self.now,
        };
        begins.saturating_add(time).min(NEVER)
    }

    /// Latest end of a job.
    fn latest_end(&self, job: &JobAccount) -> Time {
        // An overdue job is about to end.
        self.expected_end(job).max(self.now + SECOND)
    }

    /// A cluster's processors over time, without reservations.
    fn table(&self, cluster: &ClusterId) -> BookingTable {
        let known = self.clusters.get(cluster).filter(|known| known.closed.is_none());
        let mut table = BookingTable::new(known.map_or(0, |known| known.size));
        for (count, end) in self.unreleasable(cluster) {
            // After node losses, there may be fewer processors than accounts have.
            table.book_free(Booking { processors: count, start: self.now, end });
        }
        table
    }

    fn reservable_sites(&self) -> BTreeMap<ClusterId, ReservableSite> {
        let site = |cluster: &ClusterId| {
            let terms = self.terms(cluster);
            (cluster.clone(), ReservableSite { table: self.table(cluster), terms })
        };
        self.clusters.keys().map(site).collect()
    }

    fn terms(&self, cluster: &ClusterId) -> Terms {
        self.settings.terms.get(cluster).cloned().unwrap_or_default()
    }

    /// Processors of a cluster that a starting job may use.
    ///
    /// For a job of a reservation, these are the reservation's present processors. One that starts
    /// early may also use what other reservations do not need now or soon. For others,
    /// these are the processors that reservations leave free for the job's whole time.
    pub(super) fn available(&self, cluster: &ClusterId, need: Option<&JobRequirements>) -> u32 {
        self.available_with(cluster, need, 0)
    }

    /// The same after a release of `back` processors.
    pub(super) fn available_with(
        &self,
        cluster: &ClusterId,
        need: Option<&JobRequirements>,
        back: u32,
    ) -> u32 {
        let Some(known) = self.clusters.get(cluster) else { return 0 };
        let Some(profile) = self.calendar.profiles.get(cluster) else {
            let foreign = need.is_some_and(|need| need.reservation.is_some());
            return if foreign { 0 } else { known.idle().saturating_add(back) };
        };
        if let Some(id) = need.and_then(|need| need.reservation) {
            let agreed = self.reservations().get(&id);
            if !agreed.is_some_and(|one| matches!(one.phase, ReservationPhase::Confirmed { .. })) {
                return 0; // no job runs on an unconfirmed reservation
            }
            let has = profile.of(id, self.now).saturating_sub(self.used(id, cluster));
            let idle = known.idle().saturating_add(back);
            if need.is_some_and(|need| need.starts_early) {
                let others = self.withheld_for_others(cluster, id);
                return idle.min(has.max(idle.saturating_sub(others)));
            }
            return idle.min(has);
        }
        let ends = self.now.saturating_add(need.map_or(NEVER, JobRequirements::time)).min(NEVER);
        let firm: u32 = self.unreleasable(cluster).iter().map(|(count, _)| count).sum();
        let for_good =
            known.size.saturating_sub(firm).saturating_sub(profile.all.max_free(self.now, ends));
        known
            .idle()
            .saturating_add(back)
            .saturating_sub(self.withheld_processors(cluster))
            .min(for_good)
    }

    /// Adjusts the capacities for a job with a time limit, a reservation, or needs for each node.
    pub(super) fn adjust_capacities(
        &self,
        need: &JobRequirements,
        clusters: &mut BTreeMap<ClusterId, ClusterCapacity>,
    ) {
        if !need.has_own_capacities() {
            return;
        }
        for (cluster, room) in clusters {
            room.idle = self.available(cluster, Some(need));
            let known = self.clusters.get(cluster);
            let is_known = |known: &&ClusterUsage| !known.whole_hosts.is_empty();
            if let Some(known) = known.filter(is_known).filter(|_| !need.node.is_met_by_all()) {
                let size_max = placeable(&known.whole_hosts, &need.node);
                room.idle = room.idle.min(placeable(&known.free_hosts, &need.node));
                room.size = room.size.min(size_max);
                room.nominal_size = room.nominal_size.min(size_max);
            }
            if let Some(id) = need.reservation {
                room.closed = match self.reservations().get(&id) {
                    Some(one) if one.parts.iter().any(|part| part.cluster == *cluster) => {
                        self.clusters.get(cluster).and_then(|known| known.closed.clone())
                    }
                    Some(_) => Some(format!("{id} has no processors there")),
                    None => Some(format!("{id} does not exist, or has ended")),
                };
            }
        }
    }

    /// Idle processors that may replace a job's lost ones. Tables do not contain lost processors.
    pub(super) fn restorable(&self, cluster: &ClusterId, need: Option<&JobRequirements>) -> u32 {
        match need {
            Some(JobRequirements { reservation: Some(_), .. }) => self.available(cluster, need),
            _ => {
                let idle = self.clusters.get(cluster).map_or(0, |known| known.idle());
                idle.saturating_sub(self.withheld_processors(cluster))
            }
        }
    }

    /// Whether jobs of a cluster may not decline to shrink.
    pub(super) fn must_shrink(&self, cluster: &ClusterId) -> bool {
        self.is_kept(cluster) || self.lacking_reservation(cluster).is_some()
    }

    /// The wait for the start of the job's reservation, if that is the reason why it waits.
    pub(super) fn reservation_wait(&self, need: &JobRequirements) -> Option<String> {
        let id = need.reservation?;
        let one = self.reservations().get(&id)?;
        let begins = one.start();
        (begins > self.now).then(|| format!("{id} starts in {:.0} s", seconds(begins - self.now)))
    }

    /// The reason why a job can never start, if its reservation has ended.
    pub(super) fn lost_reservation(&self, need: &JobRequirements) -> Option<String> {
        let id = need.reservation?;
        let gone = !self.reservations().contains_key(&id);
        gone.then(|| format!("{id} does not exist: it has ended, or was released"))
    }

    /// Computes the offers of all sites. Each price is that of the slot's start.
    pub fn offers(&mut self) -> Vec<SiteOffer> {
        let now = self.now;
        let clusters: Vec<ClusterId> = self.clusters.keys().cloned().collect();
        let offer = |cluster: ClusterId| {
            let terms = self.terms(&cluster);
            let free = self.table(&cluster);
            let processors = free.processors();
            let booked = self.calendar.ledger.booked(&cluster, &free, now);
            // The passing of time alone is not a change.
            let as_advertised =
                |b: &Booking| Booking { start: if b.start <= now { 0 } else { b.start }, ..*b };
            let mut advertised: Vec<Booking> =
                booked.bookings().values().map(as_advertised).collect();
            advertised.push(Booking { processors, start: 0, end: NEVER });
            let known = self.calendar.advertised.entry(cluster.clone()).or_default();
            if known.1 != advertised {
                *known = (known.0 + 1, advertised);
            }
            let epoch = known.0;
            let closed = self.clusters.get(&cluster).and_then(|known| known.closed.clone());
            let none = if terms.advertise {
                closed
            } else {
                Some("its terms exclude offers (slots.advertise)".to_owned())
            };
            let slots = match &none {
                // Processors that are booked forever are in no slot.
                None => slots(&booked, now, &terms),
                Some(_) => Vec::new(),
            };
            SiteOffer { cluster, processors, epoch, slots, none }
        };
        clusters.into_iter().map(offer).collect()
    }

    /// Prepares a reservation; see [`ReservationLedger::prepare`].
    pub fn prepare(&mut self, ask: &ReservationRequest) -> Result<Reservation, ReservationRefusal> {
        let reservable_sites = self.reservable_sites();
        self.settled.0 = None;
        let one = self.calendar.ledger.prepare(ask, &reservable_sites, self.now)?.clone();
        self.calendar.rebuild();
        Ok(one)
    }

    /// Commits a reservation; see [`ReservationLedger::commit`].
    pub fn commit(
        &mut self,
        id: ReservationId,
        token: u64,
        changes: &mut Vec<LedgerChange>,
    ) -> Result<Reservation, ReservationRefusal> {
        let reservable_sites = self.reservable_sites();
        let answer =
            self.calendar.ledger.commit(id, token, &reservable_sites, self.now, changes).cloned();
        self.calendar.rebuild();
        answer
    }

    /// Confirms a reservation; see [`ReservationLedger::confirm`].
    pub fn confirm(
        &mut self,
        id: ReservationId,
        token: u64,
        changes: &mut Vec<LedgerChange>,
    ) -> Result<Reservation, ReservationRefusal> {
        self.calendar.ledger.confirm(id, token, self.now, changes).cloned()
    }

    /// Ends a reservation early.
    pub fn release(
        &mut self,
        id: ReservationId,
        token: Option<u64>,
        out: &mut Vec<ManagerAction>,
    ) -> Result<Reservation, ReservationRefusal> {
        self.settled.0 = None;
        // `Action::Unreserved` deletes the reservation from disk.
        let one = self.calendar.ledger.release(id, token, &mut Vec::new())?;
        self.finish_reservation(&one, "it was released", out);
        Ok(one)
    }

    /// Restores the reservations of an earlier scheduler. `last` is the greatest number on disk.
    pub fn recover_reservations(&mut self, found: Vec<Reservation>, last: ReservationId) {
        self.settled.0 = None;
        self.calendar.ledger.recover(found, last, self.now);
        self.calendar.rebuild();
    }

    fn finish_reservation(&mut self, one: &Reservation, why: &str, out: &mut Vec<ManagerAction>) {
        self.calendar.rebuild();
        self.dirty = true;
        let used_s = self.calendar.used_s.remove(&one.id).unwrap_or(0.0);
        if one.is_prepared() {
            return; // it was not binding, and is on no disk
        }
        let began = |b: &Booking| b.end.min(self.now).saturating_sub(b.start);
        let penalty = |part: &ReservedSlot| {
            let had = part.bookings.iter().map(|b| f64::from(b.processors) * seconds(began(b)));
            (had.sum::<f64>(), self.terms(&part.cluster))
        };
        let parts: Vec<(f64, Terms)> = one.parts.iter().map(penalty).collect();
        let had_s: f64 = parts.iter().map(|(had, _)| had).sum();
        // Unused processors are not recorded by site: each site has a proportional part.
        let empty = if had_s > 0.0 { (1.0 - used_s / had_s).clamp(0.0, 1.0) } else { 0.0 };
        let penalty: f64 = parts.iter().map(|(had, terms)| terms.penalty(had * empty)).sum();
        let why = format!("{why}; {used_s:.0} of {had_s:.0} processor-seconds were used");
        let (id, name, cost) = (one.id, one.name.clone(), one.cost);
        let bill = ReservationBill { id, name, cost, penalty, used_s, had_s, why };
        out.push(ManagerAction::ReservationEnded(Box::new(bill)));
    }

    /// Advances the time: counts the use of reservations, and ends expired ones.
    pub(super) fn advance_time(&mut self, now: Instant, out: &mut Vec<ManagerAction>) {
        let before = self.now;
        self.now = self.time(now).max(before);
        self.charge_shares();
        if self.calendar.is_empty() {
            return;
        }
        // A booking starts or ends: waiting jobs may find a place.
        let begins = |profile: &ReservedProfile| {
            profile.change_times(before, self.now.saturating_add(1)).next().is_some()
        };
        self.dirty |= self.calendar.profiles.values().any(begins);
        let passed = seconds(self.now - before);
        let mut used: BTreeMap<ReservationId, u32> = BTreeMap::new();
        for (_, job) in self.active_jobs() {
            if let Some(id) = job.need.reservation.filter(|_| job.stage == AllocationStage::Running)
            {
                *used.entry(id).or_default() += job.size();
            }
        }
        used.retain(|id, _| self.calendar.ledger.all().contains_key(id));
        for (id, count) in used {
            *self.calendar.used_s.entry(id).or_default() += f64::from(count) * passed;
        }
        for one in self.calendar.ledger.expire(self.now, &mut Vec::new()) {
            self.finish_reservation(&one, "it has ended", out);
        }
    }

    /// Makes jobs shrink for reservations, and ends jobs without a right to their processors.
    pub(super) fn keep_reservations(&mut self, out: &mut Vec<ManagerAction>) {
        self.end_overdue(out);
        let clusters: Vec<ClusterId> = self.calendar.profiles.keys().cloned().collect();
        for cluster in clusters {
            let Some(known) = self.clusters.get(&cluster) else { continue };
            if known.closed.is_some() {
                continue;
            }
            let idle = known.idle() + self.under_release(&cluster);
            let lacks = self.withheld_processors(&cluster).saturating_sub(idle);
            if lacks > 0 && !self.rounds.contains_key(&cluster) {
                self.start_round(&cluster, Direction::Shrink, lacks, None);
            }
            self.end_excess_jobs(&cluster, out);
        }
    }

    /// The reservation that a cluster's jobs must shrink for, if any.
    pub(super) fn lacking_reservation(&self, cluster: &ClusterId) -> Option<String> {
        let profile = self.calendar.profiles.get(cluster)?;
        let (from, to) = (self.now, self.now.saturating_add(self.lookahead() + 1));
        let mut change_times = std::iter::once(from).chain(profile.change_times(from, to));
        let idle = self.clusters.get(cluster)?.idle();
        let uses = self.occupied_by_reservation(cluster, profile);
        let when = change_times.find(|&time| self.needed_at(profile, &uses, time) > idle)?;
        let lacks = |id: &&ReservationId| profile.of(**id, when) > self.used(**id, cluster);
        let id = profile.each.keys().find(lacks)?;
        Some(if when == from {
            format!("{id}, which has started")
        } else {
            format!("{id}, which starts in {:.0} s", seconds(when - from))
        })
    }

    /// Ends jobs that exceed their time limit.
    fn end_overdue(&mut self, out: &mut Vec<ManagerAction>) {
        let late = |(&id, job): (&JobId, &JobAccount)| {
            let within = Duration::from_millis(job.need.time_ms?);
            let running = job.stage == AllocationStage::Running && !job.end_ordered;
            (running && self.limit_end(job) <= self.now).then_some((id, within))
        };
        for (job, within) in self.active_jobs().filter_map(late).collect::<Vec<_>>() {
            let reason = format!("the job has reached its time limit of {within:?}");
            self.order_end(job, reason, out);
        }
    }

    fn order_end(&mut self, job: JobId, reason: String, out: &mut Vec<ManagerAction>) {
        if let Some(job) = self.jobs.get_mut(&job) {
            job.end_ordered = true;
        }
        out.push(ManagerAction::End { job, reason });
    }

    /// Ends jobs of ended or smaller reservations when another reservation needs their processors.
    ///
    /// Until then, they keep running. The job that started last ends first.
    fn end_excess_jobs(&mut self, cluster: &ClusterId, out: &mut Vec<ManagerAction>) {
        let (Some(profile), Some(known)) =
            (self.calendar.profiles.get(cluster), self.clusters.get(cluster))
        else {
            return;
        };
        // A prepared reservation does not end running jobs.
        let mut uses = self.occupied_by_reservation(cluster, profile);
        uses.retain(|id, _| !self.reservations().get(id).is_some_and(Reservation::is_prepared));
        let needed = self.needed_at(profile, &uses, self.now);
        let ending = |job: &&JobAccount| job.end_ordered;
        let there = || known.jobs.iter().filter_map(|id| Some((*id, self.jobs.get(id)?)));
        let leaving: u32 = there()
            .filter(|(_, job)| ending(job))
            .filter_map(|(_, job)| job.accounts.get(cluster))
            .map(|account| account.all())
            .sum();
        // Malleable jobs are asked first.
        let comes = self.under_release(cluster) + self.reclaimable(cluster, None);
        let mut lacks =
            needed.saturating_sub(known.idle().saturating_add(comes).saturating_add(leaving));
        let mut over: BTreeMap<ReservationId, u32> = BTreeMap::new();
        let mut late: Vec<(Time, JobId, ReservationId, u32)> = Vec::new();
        for (id, job) in there() {
            let (Some(under), AllocationStage::Running, false) =
                (job.need.reservation, &job.stage, job.end_ordered)
            else {
                continue;
            };
            let excess = self.used(under, cluster).saturating_sub(profile.of(under, self.now));
            over.insert(under, excess);
            let size = job.accounts.get(cluster).map_or(0, |account| account.size);
            late.push((job.started, id, under, size));
        }
        late.sort_by(|a, b| b.0.cmp(&a.0).then(b.1.cmp(&a.1)));
        for (_, job, under, size) in late {
            let excess = over.entry(under).or_default();
            if lacks == 0 || *excess == 0 || size == 0 {
                continue;
            }
            *excess = excess.saturating_sub(size);
            lacks = lacks.saturating_sub(size);
            let reason = format!("{under} has ended, and another reservation has started");
            self.order_end(job, reason, out);
        }
    }

    /// Time of the next change.
    pub(super) fn calendar_due(&self) -> Option<Instant> {
        let lookahead = self.lookahead();
        let next = |profile: &ReservedProfile| {
            let from = profile.change_times(self.now, Time::MAX).next();
            // Time at which jobs must begin to shrink for a later booking.
            let seen = profile.change_times(self.now.saturating_add(lookahead), Time::MAX).next();
            from.into_iter().chain(seen.map(|time| time - lookahead)).min()
        };
        let profiles = self.calendar.profiles.values().filter_map(next);
        let late = |(_, job): (&JobId, &JobAccount)| {
            let runs = job.stage == AllocationStage::Running && !job.end_ordered;
            (runs && job.need.time_ms.is_some()).then(|| self.limit_end(job).max(self.now + SECOND))
        };
        let late = self.active_jobs().filter_map(late);
        let time = profiles.chain(late).chain(self.calendar.ledger.due()).min()?;
        self.instant_of(time.max(self.now + 1))
    }
}

/// Slots of a table, without the processors that are booked forever.
fn slots(table: &BookingTable, now: Time, terms: &Terms) -> Vec<Slot> {
    let for_good: u32 =
        table.bookings().values().filter(|b| b.end >= NEVER).map(|b| b.processors).sum();
    let mut rest = BookingTable::new(table.processors().saturating_sub(for_good));
    for booking in table.bookings().values().filter(|b| b.end < NEVER) {
        let _ = rest.book(*booking);
    }
    if rest.processors() == 0 {
        return Vec::new();
    }
    let limit = terms.ahead_max.map_or(Time::MAX, |most| now.saturating_add(most));
    let mut slots = rest.slots(0, now, |start| terms.price(start.saturating_sub(now)));
    slots.retain(|slot| slot.start <= limit);
    slots
}
