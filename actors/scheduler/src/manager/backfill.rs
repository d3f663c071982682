//! Backfilling: predicted starts of waiting jobs, and the jobs that may start before them.
//!
//! The ends of running jobs are predicted by their expected run times. The first jobs without a
//! place get reservations at the earliest times at which they fit. A later job starts at once only
//! on processors that no reservation needs before its own predicted end. A reservation is kept from
//! one scan of the queue to the next. It moves only to an earlier time, unless jobs run longer than
//! predicted.
//!
//! Sources: Lifka, *The ANL/IBM SP scheduling system*, JSSPP 1995 (EASY); Mu'alem and Feitelson,
//! *Utilization, predictability, workloads, and user runtime estimates in scheduling the IBM SP2
//! with backfilling*, TPDS 2001 (conservative).

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use serde::{Deserialize, Serialize};
use springtide_base::id::{ClusterId, JobId};
use springtide_config::QueueDiscipline;

use super::accounts::{AllocationStage, JobAccount};
use super::{Approach, JobRequirements, Kind, Manager};
use crate::policy::malleability::{CapacitySnapshot, PlacementPlan, place};
use crate::policy::provisioning::{Booking, BookingTable, NEVER, SECOND, Time, from_duration};

/// Number of waiting jobs that get reservations under conservative backfilling.
const RESERVATIONS_MAX: usize = if cfg!(test) { 2 } else { 100 };
/// Number of run times that are kept of a program, and of programs.
const RUNS_MAX: usize = 32;
const PROGRAMS_MAX: usize = 1000;
/// Number of runs of a program from which a run time is predicted.
const RUNS_MIN: usize = 3;
/// Share of a program's runs that are at most as long as the prediction.
const QUANTILE: f64 = 0.9;
/// Least predicted time to a job's end.
const REMAINING_MIN: Time = SECOND;
/// Predicted time to the end of a job that has just started and of which nothing is known.
pub(super) const UNKNOWN_TIME: Time = 60 * SECOND;

/// A predicted start of a waiting job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PlannedStart {
    pub at: Time,
    /// Number of reserved processors by cluster.
    pub processors: BTreeMap<ClusterId, u32>,
}

/// Run times of programs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RunTimes(BTreeMap<String, VecDeque<Time>>);

impl RunTimes {
    pub(super) fn record(&mut self, program: &str, time: Time) {
        if !self.0.contains_key(program) && self.0.len() >= PROGRAMS_MAX {
            self.0.pop_first();
        }
        let runs = self.0.entry(program.to_owned()).or_default();
        if runs.len() >= RUNS_MAX {
            runs.pop_front();
        }
        runs.push_back(time);
    }

    /// The run time that most runs of the program did not exceed; absent after few runs.
    pub(super) fn predict(&self, program: &str) -> Option<Time> {
        let mut runs: Vec<Time> = self.0.get(program)?.iter().copied().collect();
        runs.sort_unstable();
        let rank = (runs.len() as f64 * QUANTILE).ceil() as usize;
        (runs.len() >= RUNS_MIN).then(|| runs[rank.clamp(1, runs.len()) - 1])
    }
}

/// Numbers of a reservation's bookings in the tables.
type ReservedBookings = Vec<(ClusterId, u64)>;

/// Predicted use of the clusters during a scan of the queue.
#[derive(Debug)]
pub(super) struct StartPlan {
    now: Time,
    reservations_max: usize,
    tables: BTreeMap<ClusterId, BookingTable>,
    /// Reservations of the last scan, with their bookings.
    kept: BTreeMap<JobId, (Time, ReservedBookings)>,
    pub starts: BTreeMap<JobId, PlannedStart>,
}

impl StartPlan {
    /// Reduces capacities to those that delay no reservation if used from now on until the end.
    pub fn limit(&self, snapshot: &mut CapacitySnapshot, end: Time) {
        for (cluster, room) in &mut snapshot.clusters {
            let free = self.tables.get(cluster).map_or(0, |table| table.free(self.now, end));
            room.idle = room.idle.min(free);
        }
    }

    /// Whether some job has a reservation.
    pub fn has_reservations(&self) -> bool {
        !self.starts.is_empty() || !self.kept.is_empty()
    }

    /// Keeps a reservation of the last scan, if its processors are still predicted to be free.
    fn keep(&mut self, id: JobId, start: &PlannedStart, duration: Time) {
        let end = start.at.saturating_add(duration).min(NEVER);
        let free = |(cluster, count): (&ClusterId, &u32)| {
            self.tables.get(cluster).is_some_and(|table| table.free(start.at, end) >= *count)
        };
        if start.at > self.now && start.processors.iter().all(free) {
            let bookings = self.book(&start.processors, start.at, end);
            self.kept.insert(id, (start.at, bookings));
        }
    }

    /// Withdraws a job's reservation of the last scan, before a new one. Returns its time.
    pub fn withdraw(&mut self, id: JobId) -> Option<Time> {
        let (at, bookings) = self.kept.remove(&id)?;
        for (cluster, number) in bookings {
            if let Some(table) = self.tables.get_mut(&cluster) {
                table.end(number, 0);
            }
        }
        Some(at)
    }

    /// Whether the other jobs neither get nor have reservations.
    pub fn is_complete(&self) -> bool {
        !self.takes_reservation() && self.kept.is_empty()
    }

    /// Whether another job gets a reservation.
    pub fn takes_reservation(&self) -> bool {
        self.starts.len() < self.reservations_max
    }

    /// Books processors, as far as the predictions left them free.
    fn book(
        &mut self,
        processors: &BTreeMap<ClusterId, u32>,
        start: Time,
        end: Time,
    ) -> ReservedBookings {
        let mut bookings = Vec::new();
        for (cluster, &count) in processors {
            let Some(table) = self.tables.get_mut(cluster) else { continue };
            if let Some(number) = table.book_free(Booking { processors: count, start, end }) {
                bookings.push((cluster.clone(), number));
            }
        }
        bookings
    }

    /// Books the processors of a job that starts now.
    pub fn start(&mut self, placed: &PlacementPlan, end: Time) {
        self.book(&placed.processors_by_cluster(), self.now, end);
    }

    /// Reserves the earliest place for a job. It may be now, if other jobs are about to release
    /// the processors.
    pub fn reserve(
        &mut self,
        id: JobId,
        need: &JobRequirements,
        duration: Time,
        kept: Option<Time>,
        snapshot: &CapacitySnapshot,
    ) {
        let ends = self.tables.values().flat_map(|table| table.bookings().values());
        let mut times: BTreeSet<Time> =
            ends.flat_map(|booking| [booking.start, booking.end]).collect();
        times.extend(kept.into_iter().chain([self.now]));
        let components = need.least_components();
        for start in times.into_iter().filter(|&time| time >= self.now && time < NEVER) {
            let end = start.saturating_add(duration).min(NEVER);
            let mut then = snapshot.clone();
            for (cluster, room) in &mut then.clusters {
                room.idle = self.tables.get(cluster).map_or(0, |table| table.free(start, end));
            }
            if let Ok(placed) = place(need.placement, &components, &then) {
                let processors = placed.processors_by_cluster();
                self.book(&processors, start, end);
                self.starts.insert(id, PlannedStart { at: start, processors });
                return;
            }
        }
    }
}

impl Manager {
    /// The predicted use of the clusters, if the queue's discipline needs it.
    pub(super) fn start_plan(&self) -> Option<StartPlan> {
        let reservations_max = match self.settings.queue {
            QueueDiscipline::Koala => return None,
            QueueDiscipline::Easy => 1,
            QueueDiscipline::Conservative => RESERVATIONS_MAX,
        };
        let table = |cluster: &ClusterId| (cluster.clone(), self.predicted_table(cluster));
        let tables = self.clusters.keys().map(table).collect();
        let (kept, starts) = Default::default();
        let mut plan = StartPlan { now: self.now, reservations_max, tables, kept, starts };
        let mut former: Vec<(&JobId, &PlannedStart)> = self.planned_starts.iter().collect();
        former.sort_by_key(|(id, start)| (start.at, **id));
        for (id, start) in former {
            if let Some(job) = self.jobs.get(id) {
                plan.keep(*id, start, self.predicted_time(&job.need));
            }
        }
        Some(plan)
    }

    /// A cluster's processors over time, by predicted ends of jobs.
    fn predicted_table(&self, cluster: &ClusterId) -> BookingTable {
        let Some(known) = self.clusters.get(cluster) else { return BookingTable::new(0) };
        let mut table = BookingTable::new(known.size);
        let job = |id: &JobId| {
            let job = self.jobs.get(id)?;
            if job.stage == AllocationStage::Ending {
                return None; // its processors are about to become free
            }
            let here = job.accounts.get(cluster).map_or(0, |account| account.all());
            // Malleable jobs shrink for waiting ones, if these have precedence.
            let shrinks = job.need.kind == Kind::Malleable
                && self.settings.approach == Approach::Waiting
                && job.booked() == here;
            let count = if shrinks { here.min(job.bounds(cluster).0) } else { here };
            Some((count, self.predicted_end(job)))
        };
        let jobs = known.jobs.iter().filter_map(job).chain([(known.others, NEVER)]);
        for (processors, end) in jobs {
            table.book_free(Booking { processors, start: self.now, end });
        }
        for booking in self.reserved_bookings(cluster) {
            table.book_free(Booking { start: booking.start.max(self.now), ..booking });
        }
        table
    }

    /// The predicted run time of a job; [`NEVER`] if nothing is known of it.
    pub(super) fn predicted_time(&self, need: &JobRequirements) -> Time {
        let expected = need
            .expected_ms
            .map(|ms| from_duration(std::time::Duration::from_millis(ms)).max(REMAINING_MIN));
        let learned = || self.memory.run_times.predict(need.program.as_deref()?);
        let limit = need.time_ms.is_some().then(|| need.time());
        expected.or(limit).or_else(learned).unwrap_or(NEVER)
    }

    /// The predicted end of a job that has processors. A job of which nothing is known is predicted
    /// to run half as long again. A job that runs longer than predicted is predicted to exceed its
    /// time by as much again.
    fn predicted_end(&self, job: &JobAccount) -> Time {
        let started = match job.stage {
            AllocationStage::Running => job.started,
            _ => self.now,
        };
        let elapsed = self.now.saturating_sub(started);
        let time = self.predicted_time(&job.need);
        match time {
            NEVER => self.now + (elapsed / 2).max(UNKNOWN_TIME),
            time if time > elapsed => started.saturating_add(time),
            time => self.now + (elapsed - time).max(REMAINING_MIN),
        }
    }

    /// Explains a job's planned start, or the plan that it must not delay.
    pub(super) fn explain_plan(&self, id: JobId) -> Option<String> {
        let seconds = |at: Time| at.saturating_sub(self.now) as f64 / SECOND as f64;
        if let Some(start) = self.planned_starts.get(&id) {
            let where_to: Vec<String> = start
                .processors
                .iter()
                .map(|(cluster, count)| format!("{count} of {cluster}"))
                .collect();
            let (places, wait) = (where_to.join(" and "), seconds(start.at));
            return Some(format!(
                "{places} are reserved for it in about {wait:.0} s, when running jobs are expected \
                 to end"
            ));
        }
        let (first, start) = self.planned_starts.iter().min_by_key(|(_, start)| start.at)?;
        let wait = seconds(start.at);
        Some(format!("it must not delay {first}, which is to start in about {wait:.0} s"))
    }
}
