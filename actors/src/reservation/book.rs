//! The grid's side of reservations: which there are, and how far each has come.
//!
//! A state machine without I/O and without a clock. What a later scheduler must know comes out as [`Note`]s, to be on disk before the
//! answer is given. Must not know what else processors are used for: whoever asks says what is free ([`Ground`]).

use std::collections::BTreeMap;
use std::time::Duration;

use springtide_runtime::id::ClusterId;

use super::{Ask, Phase, Refusal, Reservation, ReservationId, after};
use crate::policy::provisioning::{
    Booking, Denied, Skyline, Table, TableError, Terms, Time, seconds,
};

/// A site as reservations see it.
#[derive(Clone, Debug)]
pub struct Ground {
    /// What is not used by anything but reservations: jobs keep what they cannot give back.
    pub table: Table,
    /// What it asks, and what it does not grant.
    pub terms: Terms,
}

/// What must be on disk.
#[derive(Clone, Debug, PartialEq)]
pub enum Note {
    /// This.
    Keep(Reservation),
    /// It is no more.
    Drop(ReservationId),
}

/// How long steps may take.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Within {
    /// From prepare to commit.
    pub commit: Duration,
    /// From commit to confirm.
    pub confirm: Duration,
}

impl Default for Within {
    fn default() -> Self {
        Self { commit: Duration::from_secs(30), confirm: Duration::from_secs(60) }
    }
}

/// All reservations of a grid.
#[derive(Clone, Debug, Default)]
pub struct Book {
    within: Within,
    last: u64,
    all: BTreeMap<ReservationId, Reservation>,
}

impl Book {
    /// An empty one.
    pub fn new(within: Within) -> Self {
        Self { within, ..Self::default() }
    }

    /// Goes on with what a former scheduler wrote down. Leases begin anew: their holders could not renew them meanwhile. `last`: the last number
    /// that was written down, for jobs may still name it.
    pub fn recover(
        &mut self,
        found: impl IntoIterator<Item = Reservation>,
        last: ReservationId,
        now: Time,
    ) {
        self.last = self.last.max(last.0);
        for mut one in found {
            self.last = self.last.max(one.id.0);
            if let Phase::Confirmed { until } = &mut one.phase {
                *until = leased(one.lease_ms, now);
            }
            self.all.insert(one.id, one);
        }
    }

    /// What there is, by number.
    pub fn all(&self) -> &BTreeMap<ReservationId, Reservation> {
        &self.all
    }

    /// Keeps slots free for a broker for a while. Asked again with the same token, it answers the same.
    ///
    /// # Errors
    /// [`Refusal`].
    pub fn prepare(
        &mut self,
        ask: &Ask,
        ground: &BTreeMap<ClusterId, Ground>,
        now: Time,
    ) -> Result<&Reservation, Refusal> {
        if let Some(id) = self.by_token(ask.token) {
            return self.all.get(&id).ok_or(Refusal::Unknown);
        }
        ask.check().map_err(|reason| Refusal::Invalid { reason })?;
        let mut tables: BTreeMap<&ClusterId, Table> = BTreeMap::new();
        let mut cost = 0.0;
        let mut parts = ask.parts.clone();
        // What has passed is nobody's any more.
        for booking in parts.iter_mut().flat_map(|part| &mut part.bookings) {
            booking.start = booking.start.max(now.min(booking.end));
        }
        for (part, asked) in parts.iter().zip(&ask.parts) {
            let cluster = &part.cluster;
            let Some(site) = ground.get(cluster) else {
                return Err(Refusal::NoSite { cluster: cluster.clone() });
            };
            if !site.terms.advertise {
                let (cluster, why) = (cluster.clone(), Denied::NotAdvertised);
                return Err(Refusal::Denied { cluster, why });
            }
            if !tables.contains_key(cluster) {
                tables.insert(cluster, self.booked(cluster, &site.table, now));
            }
            let table = tables.get_mut(cluster).ok_or(Refusal::Unknown)?;
            let price = site.terms.price(part.start().saturating_sub(now));
            cost += part.area_s() * price.rate + price.fixed;
            for (booking, asked) in part.bookings.iter().zip(&asked.bookings) {
                if booking.end <= now {
                    let ago_s = seconds(now - booking.end);
                    return Err(Refusal::Past { cluster: cluster.clone(), ago_s });
                }
                table.book(*booking).map_err(|error| taken(cluster, *asked, &error))?;
            }
        }
        // What was offered a moment ago has become dearer by a hair where its discount was for the time ahead.
        if cost > ask.most_cost * 1.001 + 1e-9 {
            return Err(Refusal::Dearer { cost, most: ask.most_cost });
        }
        self.last += 1;
        let id = ReservationId(self.last);
        let one = Reservation {
            id,
            token: ask.token,
            name: ask.name.clone(),
            parts,
            cost,
            phase: Phase::Prepared { until: after(now, self.within.commit) },
            lease_ms: ask.lease_ms,
        };
        Ok(self.all.entry(id).or_insert(one))
    }

    /// Takes what was prepared. A site may refuse by its terms; nothing of the reservation is left then.
    ///
    /// # Errors
    /// [`Refusal::Denied`], or [`Refusal::Unknown`].
    pub fn commit(
        &mut self,
        (id, token): (ReservationId, u64),
        ground: &BTreeMap<ClusterId, Ground>,
        now: Time,
        notes: &mut Vec<Note>,
    ) -> Result<&Reservation, Refusal> {
        let until = after(now, self.within.confirm);
        let one = self.known(id, token, now)?;
        if one.is_prepared() {
            if let Err((cluster, why)) = self.granted(one, ground, now) {
                self.all.remove(&id);
                return Err(Refusal::Denied { cluster, why });
            }
            let Some(one) = self.all.get_mut(&id) else { return Err(Refusal::Unknown) };
            one.phase = Phase::Committed { until };
            notes.push(Note::Keep(one.clone()));
        }
        self.known(id, token, now)
    }

    /// Agrees, or holds on to what was agreed.
    ///
    /// # Errors
    /// [`Refusal::Unknown`].
    pub fn confirm(
        &mut self,
        (id, token): (ReservationId, u64),
        now: Time,
        notes: &mut Vec<Note>,
    ) -> Result<&Reservation, Refusal> {
        let one = self.known(id, token, now)?;
        let (phase, until) = (one.phase, leased(one.lease_ms, now));
        if one.is_prepared() {
            return Err(Refusal::Unknown); // nobody confirms what was not committed
        }
        let Some(one) = self.all.get_mut(&id) else { return Err(Refusal::Unknown) };
        one.phase = Phase::Confirmed { until };
        if let Phase::Committed { .. } = phase {
            notes.push(Note::Keep(one.clone()));
        }
        Ok(one)
    }

    /// Ends a reservation, whatever its phase; by its token, or, without one, by its number alone, which is what people have.
    ///
    /// # Errors
    /// [`Refusal::Unknown`].
    pub fn release(
        &mut self,
        id: ReservationId,
        token: Option<u64>,
        notes: &mut Vec<Note>,
    ) -> Result<Reservation, Refusal> {
        let mine = |one: &&Reservation| token.is_none_or(|token| one.token == token);
        let one = self.all.get(&id).filter(mine).cloned().ok_or(Refusal::Unknown)?;
        self.remove(id, notes);
        Ok(one)
    }

    /// Ends what has run out; returns it.
    pub fn expire(&mut self, now: Time, notes: &mut Vec<Note>) -> Vec<Reservation> {
        let over = self.all.values().filter(|one| one.until() <= now);
        let over: Vec<Reservation> = over.cloned().collect();
        for one in &over {
            self.remove(one.id, notes);
        }
        over
    }

    /// When the next runs out.
    pub fn due(&self) -> Option<Time> {
        self.all.values().map(Reservation::until).min()
    }

    /// A site's table with all reservations in it.
    pub fn booked(&self, cluster: &ClusterId, table: &Table, now: Time) -> Table {
        let mut table = table.clone();
        for (at, mut booking) in self.all.values().flat_map(Reservation::bookings) {
            booking.start = booking.start.max(now);
            if at != cluster || booking.start >= booking.end {
                continue;
            }
            // The site may have become smaller since: what is there is the reservation's.
            booking.processors = booking.processors.min(table.free(booking.start, booking.end));
            if booking.processors > 0 {
                let _ = table.book(booking);
            }
        }
        table
    }

    fn remove(&mut self, id: ReservationId, notes: &mut Vec<Note>) {
        if self.all.remove(&id).is_some_and(|one| !one.is_prepared()) {
            notes.push(Note::Drop(id));
        }
    }

    fn by_token(&self, token: u64) -> Option<ReservationId> {
        self.all.values().find(|one| one.token == token).map(|one| one.id)
    }

    /// One that has run out is not known, also if nobody has looked yet.
    fn known(&self, id: ReservationId, token: u64, now: Time) -> Result<&Reservation, Refusal> {
        let one = self.all.get(&id).filter(|one| one.token == token && one.until() > now);
        one.ok_or(Refusal::Unknown)
    }

    fn granted(
        &self,
        one: &Reservation,
        ground: &BTreeMap<ClusterId, Ground>,
        now: Time,
    ) -> Result<(), (ClusterId, Denied)> {
        let mut lines: BTreeMap<&ClusterId, Skyline> = BTreeMap::new();
        for part in &one.parts {
            lines.entry(&part.cluster).or_default();
        }
        for (at, booking) in self.all.values().flat_map(Reservation::bookings) {
            if let Some(line) = lines.get_mut(at) {
                line.give(booking.processors, booking.start, booking.end);
            }
        }
        for part in &one.parts {
            let cluster = &part.cluster;
            // A site that is gone grants nothing to anybody; what it had is kept for when it is back.
            let (Some(site), Some(line)) = (ground.get(cluster), lines.get(cluster)) else {
                continue;
            };
            let peak = part.bookings.iter().map(|b| line.most(b.start, b.end)).max();
            // By its last beginning: a moment of it that is soon opens no door to next year.
            let last = part.bookings.iter().map(|booking| booking.start).max().unwrap_or(0);
            let (ahead, all) = (last.saturating_sub(now), site.table.processors());
            site.terms
                .grants(ahead, peak.unwrap_or(0), all)
                .map_err(|why| (cluster.clone(), why))?;
        }
        Ok(())
    }
}

/// When a lease ends that is renewed now.
fn leased(lease_ms: Option<u64>, now: Time) -> Option<Time> {
    lease_ms.map(|ms| after(now, Duration::from_millis(ms)))
}

fn taken(cluster: &ClusterId, booking: Booking, error: &TableError) -> Refusal {
    let free = match error {
        TableError::TooLarge { has, .. } => *has,
        TableError::Taken { free, .. } => *free,
        TableError::Nothing { .. } => 0,
    };
    let Booking { processors, start, end } = booking;
    Refusal::Taken { cluster: cluster.clone(), processors, free, start, end }
}
