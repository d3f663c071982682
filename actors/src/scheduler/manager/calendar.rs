//! Reservations among the manager's jobs: what is reserved is neither placed on nor grown into, malleable jobs give it back in time, and
//! jobs that belong to a reservation run on what it has.
//!
//! This is each site's local scheduler in the sense of the provisioning paper (section 4): its table has what jobs cannot give back
//! (others' nodes, rigid jobs, the minimum of malleable ones; without an end, unless they say how long they take) and all
//! reservations; what is left it advertises as slots. Malleable jobs may fill what is left, also what is reserved for later: they are
//! made to shrink in time. Must not know how a reservation is agreed on ([`Book`]).

use std::collections::BTreeMap;
use std::time::Duration;

use springtide_runtime::id::{ClusterId, JobId};
use tokio::time::Instant;

use super::Manager;
use super::books::{Job, Stage};
use super::event::{Action, Bill, Kind, Need};
use crate::policy::malleability::{Direction, Room};
use crate::policy::provisioning::{
    Booking, NEVER, SECOND, Skyline, Slot, Table, Terms, Time, from_duration, seconds,
};
use crate::reservation::{
    Ask, Book, Ground, Note, Part, Phase, Refusal, Reservation, ReservationId, Within,
};

/// Beside the times that a job has to answer and to release, shrinking takes so long.
const MARGIN: Time = 5 * SECOND;

/// What a site offers.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct SiteOffer {
    /// Which.
    pub cluster: ClusterId,
    /// Its processors that work.
    pub processors: u32,
    /// Grows whenever what is free has changed by more than that time has passed.
    pub epoch: u64,
    /// What is free, in times of the Unix epoch.
    pub slots: Vec<Slot>,
    /// Why there is none, if its terms say so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub none: Option<String>,
}

/// Reservations, and what the manager knows besides of them.
#[derive(Debug, Default)]
pub(super) struct Calendar {
    book: Book,
    /// What is reserved of each cluster, and by whom; made anew when the book changes.
    lines: BTreeMap<ClusterId, Line>,
    /// Processor-seconds on which jobs of a reservation ran.
    used_s: BTreeMap<ReservationId, f64>,
    /// What was last advertised: all that changes but by the passing of time.
    told: BTreeMap<ClusterId, (u64, Vec<Booking>)>,
}

/// A cluster's reserved processors over time.
#[derive(Debug, Default)]
struct Line {
    all: Skyline,
    each: BTreeMap<ReservationId, Skyline>,
}

impl Line {
    fn add(&mut self, id: ReservationId, booking: Booking) {
        let Booking { processors, start, end } = booking;
        self.all.give(processors, start, end);
        self.each.entry(id).or_default().give(processors, start, end);
    }

    /// What a reservation has at a time.
    fn of(&self, id: ReservationId, time: Time) -> u32 {
        self.each.get(&id).map_or(0, |line| line.free_at(time))
    }

    /// When what is reserved changes, from `from` on and before `to`.
    fn moments(&self, from: Time, to: Time) -> impl Iterator<Item = Time> {
        self.all.steps().map(|(time, _)| time).filter(move |&time| from < time && time < to)
    }
}

impl Calendar {
    pub(super) fn new(within: Within) -> Self {
        Self { book: Book::new(within), ..Self::default() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.book.all().is_empty()
    }

    fn redraw(&mut self) {
        self.lines.clear();
        for one in self.book.all().values() {
            for (cluster, booking) in one.bookings() {
                self.lines.entry(cluster.clone()).or_default().add(one.id, booking);
            }
        }
    }
}

impl Manager {
    /// A moment as a time of the Unix epoch.
    pub fn time(&self, at: Instant) -> Time {
        self.clock(at.saturating_duration_since(self.origin))
    }

    /// So long after the manager's beginning, as a time of the Unix epoch.
    fn clock(&self, passed: Duration) -> Time {
        self.settings.clock_us.saturating_add(from_duration(passed))
    }

    fn moment(&self, time: Time) -> Option<Instant> {
        let passed = time.saturating_sub(self.settings.clock_us);
        self.origin.checked_add(Duration::from_micros(passed))
    }

    /// What is reserved, and by whom.
    pub fn reservations(&self) -> &BTreeMap<ReservationId, Reservation> {
        self.calendar.book.all()
    }

    /// Whether there is any.
    pub fn has_reservations(&self) -> bool {
        !self.calendar.is_empty()
    }

    /// How long before a reservation begins jobs are made to shrink for it.
    fn look(&self) -> Time {
        from_duration(self.settings.answer_within + self.settings.release_within) + MARGIN
    }

    /// Processors of a cluster on which jobs of a reservation are.
    fn used(&self, id: ReservationId, cluster: &ClusterId) -> u32 {
        let Some(known) = self.clusters.get(cluster) else { return 0 };
        let theirs = known.jobs.iter().filter_map(|job| self.jobs.get(job));
        let theirs = theirs.filter(|job| job.need.under == Some(id));
        theirs.filter_map(|job| job.accounts.get(cluster)).map(|account| account.all()).sum()
    }

    /// Processors of a cluster on which jobs of each reservation are that has something there.
    fn uses(&self, cluster: &ClusterId, line: &Line) -> BTreeMap<ReservationId, u32> {
        line.each.keys().map(|&id| (id, self.used(id, cluster))).collect()
    }

    /// What reservations need at a time, beside what their jobs are on. What jobs have that are of reservations which are smaller by then
    /// comes back until then, if it is to come.
    fn needed_at(&self, line: &Line, uses: &BTreeMap<ReservationId, u32>, time: Time) -> u32 {
        let (mut lacks, mut comes_back) = (0, 0);
        for (&id, &used) in uses {
            let has = line.of(id, time);
            lacks += has.saturating_sub(used);
            if time > self.now {
                comes_back += used.saturating_sub(has);
            }
        }
        u32::saturating_sub(lacks, comes_back)
    }

    /// Idle processors of a cluster that are not to be touched: they are reserved now, or soon.
    pub fn withheld(&self, cluster: &ClusterId) -> u32 {
        let Some(line) = self.calendar.lines.get(cluster) else { return 0 };
        let (from, to) = (self.now, self.now.saturating_add(self.look() + 1));
        let moments = std::iter::once(from).chain(line.moments(from, to));
        let uses = self.uses(cluster, line);
        moments.map(|time| self.needed_at(line, &uses, time)).max().unwrap_or(0)
    }

    /// What is reserved at most at any time from now on.
    pub fn reserved_ever(&self, cluster: &ClusterId) -> u32 {
        self.calendar.lines.get(cluster).map_or(0, |line| line.all.most(self.now, Time::MAX))
    }

    /// Processors of a cluster that its jobs cannot give back.
    pub fn floors(&self, cluster: &ClusterId) -> u32 {
        let others = self.clusters.get(cluster).map_or(0, |known| known.others);
        let all: u32 = self.firm(cluster).iter().map(|(count, _)| count).sum();
        all.saturating_sub(others)
    }

    /// Processors of a cluster that jobs without an end cannot give back, and those of others.
    fn firm(&self, cluster: &ClusterId) -> Vec<(u32, Time)> {
        let Some(known) = self.clusters.get(cluster) else { return Vec::new() };
        let job = |id: &JobId| {
            let job = self.jobs.get(id)?;
            if let Some(under) = job.need.under
                && !self.overruns(under, cluster)
            {
                return None; // what it is on is reserved
            }
            let here = job.accounts.get(cluster).map_or(0, |account| account.all());
            let least = job.bounds(cluster).0;
            // What it has in several clusters it could give back in one or another of them, and not in each.
            let gives = job.need.kind == Kind::Malleable && job.booked() == here;
            let floor = if gives { here.min(least) } else { here };
            Some((floor, self.ends(job)))
        };
        let jobs = known.jobs.iter().filter_map(job);
        jobs.chain([(known.others, NEVER)]).filter(|(count, _)| *count > 0).collect()
    }

    /// Whether jobs of a reservation have more of a cluster than it has now, or it is over.
    fn overruns(&self, id: ReservationId, cluster: &ClusterId) -> bool {
        let line = self.calendar.lines.get(cluster);
        self.used(id, cluster) > line.map_or(0, |line| line.of(id, self.now))
    }

    /// When a job is to have ended, by what it said it needs.
    fn to_end(&self, job: &Job) -> Time {
        let begins = match job.stage {
            Stage::Running | Stage::Ending => job.started,
            _ => self.now,
        };
        begins.saturating_add(job.need.time()).min(NEVER)
    }

    /// When a job ends at the latest.
    fn ends(&self, job: &Job) -> Time {
        // One that should have ended is about to.
        self.to_end(job).max(self.now + SECOND)
    }

    /// A cluster's processors over time without reservations.
    fn table(&self, cluster: &ClusterId) -> Table {
        let known = self.clusters.get(cluster).filter(|known| known.closed.is_none());
        let mut table = Table::new(known.map_or(0, |known| known.size));
        for (count, end) in self.firm(cluster) {
            // Where nodes were lost there may be fewer than jobs believe to have.
            let processors = count.min(table.free(self.now, end));
            if processors > 0 {
                let _ = table.book(Booking { processors, start: self.now, end });
            }
        }
        table
    }

    fn ground(&self) -> BTreeMap<ClusterId, Ground> {
        let site = |cluster: &ClusterId| {
            let terms = self.terms(cluster);
            (cluster.clone(), Ground { table: self.table(cluster), terms })
        };
        self.clusters.keys().map(site).collect()
    }

    fn terms(&self, cluster: &ClusterId) -> Terms {
        self.settings.terms.get(cluster).cloned().unwrap_or_default()
    }

    /// What may be used of a cluster by a job that is to start: what reservations leave free as long as it takes; of a reservation's
    /// own job, what that has now.
    pub(super) fn available(&self, cluster: &ClusterId, need: Option<&Need>) -> u32 {
        self.available_with(cluster, need, 0)
    }

    /// The same if so many more were given back.
    pub(super) fn available_with(
        &self,
        cluster: &ClusterId,
        need: Option<&Need>,
        back: u32,
    ) -> u32 {
        let Some(known) = self.clusters.get(cluster) else { return 0 };
        let Some(line) = self.calendar.lines.get(cluster) else {
            let foreign = need.is_some_and(|need| need.under.is_some());
            return if foreign { 0 } else { known.idle() + back };
        };
        if let Some(id) = need.and_then(|need| need.under) {
            let agreed = self.reservations().get(&id);
            if !agreed.is_some_and(|one| matches!(one.phase, Phase::Confirmed { .. })) {
                return 0; // nothing runs on what may never be agreed
            }
            let has = line.of(id, self.now).saturating_sub(self.used(id, cluster));
            return (known.idle() + back).min(has);
        }
        let ends = self.now.saturating_add(need.map_or(NEVER, Need::time)).min(NEVER);
        let firm: u32 = self.firm(cluster).iter().map(|(count, _)| count).sum();
        let for_good =
            known.size.saturating_sub(firm).saturating_sub(line.all.most(self.now, ends));
        (known.idle() + back).saturating_sub(self.withheld(cluster)).min(for_good)
    }

    /// The rooms of a job that has a time or a reservation of its own are others than everybody's.
    pub(super) fn rooms_of(&self, need: &Need, rooms: &mut BTreeMap<ClusterId, Room>) {
        if !need.has_own_rooms() {
            return;
        }
        for (cluster, room) in rooms {
            room.idle = self.available(cluster, Some(need));
            if let Some(id) = need.under {
                room.closed = match self.reservations().get(&id) {
                    Some(one) if one.parts.iter().any(|part| part.cluster == *cluster) => {
                        self.clusters.get(cluster).and_then(|known| known.closed.clone())
                    }
                    Some(_) => Some(format!("{id} has nothing there")),
                    None => Some(format!("there is no {id} (any more)")),
                };
            }
        }
    }

    /// What there is in place of processors that a job has lost: it could not give those back, so that they are in no table.
    pub(super) fn to_restore(&self, cluster: &ClusterId, need: Option<&Need>) -> u32 {
        match need {
            Some(Need { under: Some(_), .. }) => self.available(cluster, need),
            _ => {
                let idle = self.clusters.get(cluster).map_or(0, |known| known.idle());
                idle.saturating_sub(self.withheld(cluster))
            }
        }
    }

    /// Jobs that must give up processors of a cluster may not decline.
    pub(super) fn must_shrink(&self, cluster: &ClusterId) -> bool {
        self.is_pledged(cluster) || self.room_for(cluster).is_some()
    }

    /// What a job of a reservation waits for, if that is its time.
    pub(super) fn own_time(&self, need: &Need) -> Option<String> {
        let id = need.under?;
        let one = self.reservations().get(&id)?;
        let begins = one.start();
        (begins > self.now).then(|| format!("{id} begins in {:.0} s", seconds(begins - self.now)))
    }

    /// Whether a job can never start, since its reservation is gone.
    pub(super) fn stranded(&self, need: &Need) -> Option<String> {
        let id = need.under?;
        let gone = !self.reservations().contains_key(&id);
        gone.then(|| format!("there is no {id} (any more): it has ended, or was released"))
    }

    /// What all sites offer. A price is that of a slot's start.
    pub fn offers(&mut self) -> Vec<SiteOffer> {
        let now = self.now;
        let clusters: Vec<ClusterId> = self.clusters.keys().cloned().collect();
        let offer = |cluster: ClusterId| {
            let terms = self.terms(&cluster);
            let free = self.table(&cluster);
            let processors = free.processors();
            let booked = self.calendar.book.booked(&cluster, &free, now);
            // What has passed is no change.
            let as_told =
                |b: &Booking| Booking { start: if b.start <= now { 0 } else { b.start }, ..*b };
            let mut told: Vec<Booking> = booked.bookings().values().map(as_told).collect();
            told.push(Booking { processors, start: 0, end: NEVER });
            let known = self.calendar.told.entry(cluster.clone()).or_default();
            if known.1 != told {
                *known = (known.0 + 1, told);
            }
            let epoch = known.0;
            let closed = self.clusters.get(&cluster).and_then(|known| known.closed.clone());
            let none = match terms.advertise {
                true => closed,
                false => Some("its terms are to advertise nothing (slots.advertise)".to_owned()),
            };
            let slots = match &none {
                // What is booked without an end is no longer to be had at any time.
                None => slots(&booked, now, &terms),
                Some(_) => Vec::new(),
            };
            SiteOffer { cluster, processors, epoch, slots, none }
        };
        clusters.into_iter().map(offer).collect()
    }

    /// Keeps slots free for a broker; see [`Book::prepare`].
    ///
    /// # Errors
    /// [`Refusal`].
    pub fn prepare(&mut self, ask: &Ask) -> Result<Reservation, Refusal> {
        let ground = self.ground();
        let one = self.calendar.book.prepare(ask, &ground, self.now)?.clone();
        self.calendar.redraw();
        Ok(one)
    }

    /// Takes what was prepared; see [`Book::commit`].
    ///
    /// # Errors
    /// [`Refusal`].
    pub fn commit(
        &mut self,
        id: (ReservationId, u64),
        notes: &mut Vec<Note>,
    ) -> Result<Reservation, Refusal> {
        let ground = self.ground();
        let answer = self.calendar.book.commit(id, &ground, self.now, notes).cloned();
        self.calendar.redraw();
        answer
    }

    /// Agrees; see [`Book::confirm`].
    ///
    /// # Errors
    /// [`Refusal`].
    pub fn confirm(
        &mut self,
        id: (ReservationId, u64),
        notes: &mut Vec<Note>,
    ) -> Result<Reservation, Refusal> {
        self.calendar.book.confirm(id, self.now, notes).cloned()
    }

    /// Ends a reservation before its time.
    ///
    /// # Errors
    /// [`Refusal`].
    pub fn release(
        &mut self,
        id: ReservationId,
        token: Option<u64>,
        out: &mut Vec<Action>,
    ) -> Result<Reservation, Refusal> {
        // Its bill says it.
        let one = self.calendar.book.release(id, token, &mut Vec::new())?;
        self.gone(&one, "it was released", out);
        Ok(one)
    }

    /// Goes on with what a former scheduler had; `last`: the last number that it wrote down.
    pub fn recover_reservations(&mut self, found: Vec<Reservation>, last: ReservationId) {
        self.calendar.book.recover(found, last, self.now);
        self.calendar.redraw();
    }

    fn gone(&mut self, one: &Reservation, why: &str, out: &mut Vec<Action>) {
        self.calendar.redraw();
        self.stirred = true;
        let used_s = self.calendar.used_s.remove(&one.id).unwrap_or(0.0);
        if one.is_prepared() {
            return; // nobody had it, and it is on no disk
        }
        let began = |b: &Booking| b.end.min(self.now).saturating_sub(b.start);
        let penalty = |part: &Part| {
            let had = part.bookings.iter().map(|b| f64::from(b.processors) * seconds(began(b)));
            (had.sum::<f64>(), self.terms(&part.cluster))
        };
        let parts: Vec<(f64, Terms)> = one.parts.iter().map(penalty).collect();
        let had_s: f64 = parts.iter().map(|(had, _)| had).sum();
        // Which part of it stood empty is not kept by site: each has its share.
        let empty = if had_s > 0.0 { (1.0 - used_s / had_s).clamp(0.0, 1.0) } else { 0.0 };
        let penalty: f64 = parts.iter().map(|(had, terms)| terms.penalty(had * empty)).sum();
        let why = format!("{why}; {used_s:.0} of {had_s:.0} processor-seconds were used");
        let (id, name, cost) = (one.id, one.name.clone(), one.cost);
        let bill = Bill { id, name, cost, penalty, used_s, had_s, why };
        out.push(Action::Unreserved(Box::new(bill)));
    }

    /// Time has passed: what was used is counted, and what has run out ends.
    pub(super) fn pass(&mut self, now: Instant, out: &mut Vec<Action>) {
        let before = self.now;
        self.now = self.time(now).max(before);
        if self.calendar.is_empty() {
            return;
        }
        // Somebody's time begins, or is over: who waits for that is looked at.
        let begins =
            |line: &Line| line.moments(before, self.now.saturating_add(1)).next().is_some();
        self.stirred |= self.calendar.lines.values().any(begins);
        let passed = seconds(self.now - before);
        let mut used: BTreeMap<ReservationId, u32> = BTreeMap::new();
        for job in self.jobs.values() {
            if let Some(id) = job.need.under.filter(|_| job.stage == Stage::Running) {
                *used.entry(id).or_default() += job.size();
            }
        }
        used.retain(|id, _| self.calendar.book.all().contains_key(id));
        for (id, count) in used {
            *self.calendar.used_s.entry(id).or_default() += f64::from(count) * passed;
        }
        for one in self.calendar.book.expire(self.now, &mut Vec::new()) {
            self.gone(&one, "it has ended", out);
        }
    }

    /// Makes jobs shrink for what is reserved, and ends those that have no right to be there any more.
    pub(super) fn keep_reservations(&mut self, out: &mut Vec<Action>) {
        self.end_late(out);
        let clusters: Vec<ClusterId> = self.calendar.lines.keys().cloned().collect();
        for cluster in clusters {
            let Some(known) = self.clusters.get(&cluster) else { continue };
            if known.closed.is_some() {
                continue;
            }
            let idle = known.idle() + self.on_the_way(&cluster);
            let lacks = self.withheld(&cluster).saturating_sub(idle);
            if lacks > 0 && !self.rounds.contains_key(&cluster) {
                self.begin(&cluster, Direction::Shrink, lacks, None);
            }
            self.evict(&cluster, out);
        }
    }

    /// For whom a cluster makes room, if it does.
    pub(super) fn room_for(&self, cluster: &ClusterId) -> Option<String> {
        let line = self.calendar.lines.get(cluster)?;
        let (from, to) = (self.now, self.now.saturating_add(self.look() + 1));
        let mut moments = std::iter::once(from).chain(line.moments(from, to));
        let idle = self.clusters.get(cluster)?.idle();
        let uses = self.uses(cluster, line);
        let when = moments.find(|&time| self.needed_at(line, &uses, time) > idle)?;
        let lacks = |id: &&ReservationId| line.of(**id, when) > self.used(**id, cluster);
        let id = line.each.keys().find(lacks)?;
        Some(match when == from {
            true => format!("{id}, which has begun"),
            false => format!("{id}, which begins in {:.0} s", seconds(when - from)),
        })
    }

    /// Jobs that run longer than they said end.
    fn end_late(&mut self, out: &mut Vec<Action>) {
        let late = |(&id, job): (&JobId, &Job)| {
            let within = Duration::from_millis(job.need.time_ms?);
            let goes_on = job.stage == Stage::Running && !job.told_to_end;
            (goes_on && self.to_end(job) <= self.now).then_some((id, within))
        };
        for (job, within) in self.jobs.iter().filter_map(late).collect::<Vec<_>>() {
            let reason = format!("it has run for the {within:?} that it said it needs");
            self.end(job, reason, out);
        }
    }

    fn end(&mut self, job: JobId, reason: String, out: &mut Vec<Action>) {
        if let Some(job) = self.jobs.get_mut(&job) {
            job.told_to_end = true;
        }
        out.push(Action::End { job, reason });
    }

    /// Jobs of reservations that are over, or have fewer processors now, go on until somebody else's time begins; then they end, those
    /// that began last first.
    fn evict(&mut self, cluster: &ClusterId, out: &mut Vec<Action>) {
        let (Some(line), Some(known)) =
            (self.calendar.lines.get(cluster), self.clusters.get(cluster))
        else {
            return;
        };
        // Nothing that runs is ended for what is only kept free for a while.
        let mut uses = self.uses(cluster, line);
        uses.retain(|id, _| !self.reservations().get(id).is_some_and(Reservation::is_prepared));
        let needed = self.needed_at(line, &uses, self.now);
        let ending = |job: &&Job| job.told_to_end;
        let there = || known.jobs.iter().filter_map(|id| Some((*id, self.jobs.get(id)?)));
        let leaving: u32 = there()
            .filter(|(_, job)| ending(job))
            .filter_map(|(_, job)| job.accounts.get(cluster))
            .map(|account| account.all())
            .sum();
        // What malleable jobs can give they are asked for first.
        let comes = self.on_the_way(cluster) + self.reclaimable(cluster, None);
        let mut lacks = needed.saturating_sub(known.idle() + comes + leaving);
        let mut over: BTreeMap<ReservationId, u32> = BTreeMap::new();
        let mut late: Vec<(Time, JobId, ReservationId, u32)> = Vec::new();
        for (id, job) in there() {
            let (Some(under), Stage::Running, false) =
                (job.need.under, &job.stage, job.told_to_end)
            else {
                continue;
            };
            let excess = self.used(under, cluster).saturating_sub(line.of(under, self.now));
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
            let reason = format!("the time of {under} is over, and another's has begun");
            self.end(job, reason, out);
        }
    }

    /// When something is due.
    pub(super) fn calendar_due(&self) -> Option<Instant> {
        let look = self.look();
        let next = |line: &Line| {
            let from = line.moments(self.now, Time::MAX).next();
            // Of what begins later than that, when it is looked at for the first time.
            let seen = line.moments(self.now.saturating_add(look), Time::MAX).next();
            from.into_iter().chain(seen.map(|time| time - look)).min()
        };
        let lines = self.calendar.lines.values().filter_map(next);
        let late = |job: &Job| {
            let runs = job.stage == Stage::Running && !job.told_to_end;
            (runs && job.need.time_ms.is_some()).then(|| self.ends(job))
        };
        let late = self.jobs.values().filter_map(late);
        let time = lines.chain(late).chain(self.calendar.book.due()).min()?;
        self.moment(time.max(self.now + 1))
    }
}

/// Slots of a table in which some processors are booked without an end: of these there is nothing to offer, and the horizon is that of all
/// others.
fn slots(table: &Table, now: Time, terms: &Terms) -> Vec<Slot> {
    let for_good: u32 =
        table.bookings().values().filter(|b| b.end >= NEVER).map(|b| b.processors).sum();
    let mut rest = Table::new(table.processors().saturating_sub(for_good));
    for booking in table.bookings().values().filter(|b| b.end < NEVER) {
        let _ = rest.book(*booking);
    }
    if rest.processors() == 0 {
        return Vec::new();
    }
    let limit = terms.most_ahead.map_or(Time::MAX, |most| now.saturating_add(most));
    let mut slots = rest.slots(0, now, |start| terms.price(start.saturating_sub(now)));
    slots.retain(|slot| slot.start <= limit);
    slots
}
