//! The grid's side of reservations: all reservations and the progress of each.
//!
//! A state machine without I/O and without a clock. Each [`LedgerChange`] must be on disk before
//! the answer is sent, so that the next scheduler recovers it. This module does not know other uses
//! of processors: the caller supplies the free ones ([`ReservableSite`]).

use std::collections::BTreeMap;
use std::time::Duration;

use springtide_base::id::ClusterId;

use super::{
    Reservation, ReservationId, ReservationPhase, ReservationRefusal, ReservationRequest, after,
};
use crate::policy::provisioning::{
    AvailabilityProfile, Booking, BookingTable, Denial, TableError, Terms, Time, seconds,
};

/// A site's capacity and terms, as reservations see them.
#[derive(Clone, Debug)]
pub struct ReservableSite {
    /// Processors that only reservations use. Jobs keep the processors that they cannot release.
    pub table: BookingTable,
    /// Prices of the site, and the limits of its grants.
    pub terms: Terms,
}

/// A change that must be written to disk.
#[derive(Clone, Debug, PartialEq)]
pub enum LedgerChange {
    /// Write this reservation.
    Keep(Reservation),
    /// Delete this reservation.
    Drop(ReservationId),
}

/// Time limits of the protocol's steps.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepTimeouts {
    /// Time from prepare to commit.
    pub commit: Duration,
    /// Time from commit to confirm.
    pub confirm: Duration,
}

impl Default for StepTimeouts {
    fn default() -> Self {
        Self { commit: Duration::from_secs(30), confirm: Duration::from_secs(60) }
    }
}

/// All reservations of a grid.
#[derive(Clone, Debug, Default)]
pub struct ReservationLedger {
    timeouts: StepTimeouts,
    last_id: u64,
    all: BTreeMap<ReservationId, Reservation>,
}

impl ReservationLedger {
    /// Creates an empty ledger.
    pub fn new(timeouts: StepTimeouts) -> Self {
        Self { timeouts, ..Self::default() }
    }

    /// Restores the reservations that an earlier scheduler wrote to disk.
    ///
    /// Leases start again, because their holders could not renew them in between. `last_id` is the
    /// greatest number ever written, since jobs may still name it.
    pub fn recover(
        &mut self,
        found: impl IntoIterator<Item = Reservation>,
        last_id: ReservationId,
        now: Time,
    ) {
        self.last_id = self.last_id.max(last_id.0);
        for mut reservation in found {
            self.last_id = self.last_id.max(reservation.id.0);
            if let ReservationPhase::Confirmed { until } = &mut reservation.phase {
                *until = leased(reservation.lease_ms, now);
            }
            self.all.insert(reservation.id, reservation);
        }
    }

    /// All reservations, by number.
    pub fn all(&self) -> &BTreeMap<ReservationId, Reservation> {
        &self.all
    }

    /// Keeps slots free for a broker for a short time. A repeated token gets the same answer.
    pub fn prepare(
        &mut self,
        ask: &ReservationRequest,
        sites: &BTreeMap<ClusterId, ReservableSite>,
        now: Time,
    ) -> Result<&Reservation, ReservationRefusal> {
        if let Some(id) = self.by_token(ask.token) {
            return self.all.get(&id).ok_or(ReservationRefusal::Unknown);
        }
        ask.validate().map_err(|reason| ReservationRefusal::Invalid { reason })?;
        let mut tables: BTreeMap<&ClusterId, BookingTable> = BTreeMap::new();
        let mut cost = 0.0;
        let mut parts = ask.parts.clone();
        // Past time is not reserved.
        for booking in parts.iter_mut().flat_map(|part| &mut part.bookings) {
            booking.start = booking.start.max(now.min(booking.end));
        }
        for (part, asked) in parts.iter().zip(&ask.parts) {
            let cluster = &part.cluster;
            let Some(site) = sites.get(cluster) else {
                return Err(ReservationRefusal::NoSite { cluster: cluster.clone() });
            };
            if !site.terms.advertise {
                let (cluster, why) = (cluster.clone(), Denial::NotAdvertised);
                return Err(ReservationRefusal::Denied { cluster, why });
            }
            if !tables.contains_key(cluster) {
                tables.insert(cluster, self.booked(cluster, &site.table, now));
            }
            let table = tables.get_mut(cluster).ok_or(ReservationRefusal::Unknown)?;
            let price = site.terms.price(part.start().saturating_sub(now));
            cost += part.area_s() * price.rate + price.fixed;
            for (booking, asked) in part.bookings.iter().zip(&asked.bookings) {
                if booking.end <= now {
                    let ago_s = seconds(now - booking.end);
                    return Err(ReservationRefusal::Past { cluster: cluster.clone(), ago_s });
                }
                table.book(*booking).map_err(|error| taken(cluster, *asked, &error))?;
            }
        }
        // The tolerance covers discounts for early booking, which shrink between offer and request.
        if cost > ask.max_cost * 1.001 + 1e-9 {
            return Err(ReservationRefusal::TooExpensive { cost, most: ask.max_cost });
        }
        self.last_id += 1;
        let id = ReservationId(self.last_id);
        let reservation = Reservation {
            id,
            token: ask.token,
            name: ask.name.clone(),
            parts,
            cost,
            phase: ReservationPhase::Prepared { until: after(now, self.timeouts.commit) },
            lease_ms: ask.lease_ms,
            owner: ask.owner.clone(),
        };
        Ok(self.all.entry(id).or_insert(reservation))
    }

    /// Commits a prepared reservation. A site may deny it by its terms, which removes the
    /// reservation.
    pub fn commit(
        &mut self,
        id: ReservationId,
        token: u64,
        sites: &BTreeMap<ClusterId, ReservableSite>,
        now: Time,
        changes: &mut Vec<LedgerChange>,
    ) -> Result<&Reservation, ReservationRefusal> {
        let until = after(now, self.timeouts.confirm);
        let reservation = self.known(id, token, now)?;
        if reservation.is_prepared() {
            if let Err((cluster, why)) = self.granted(reservation, sites, now) {
                self.all.remove(&id);
                return Err(ReservationRefusal::Denied { cluster, why });
            }
            let Some(reservation) = self.all.get_mut(&id) else {
                return Err(ReservationRefusal::Unknown);
            };
            reservation.phase = ReservationPhase::Committed { until };
            changes.push(LedgerChange::Keep(reservation.clone()));
        }
        self.known(id, token, now)
    }

    /// Confirms a committed reservation, or renews the lease of a confirmed one.
    pub fn confirm(
        &mut self,
        id: ReservationId,
        token: u64,
        now: Time,
        changes: &mut Vec<LedgerChange>,
    ) -> Result<&Reservation, ReservationRefusal> {
        let reservation = self.known(id, token, now)?;
        let (phase, until) = (reservation.phase, leased(reservation.lease_ms, now));
        if reservation.is_prepared() {
            // Only a committed reservation can be confirmed.
            return Err(ReservationRefusal::Unknown);
        }
        let Some(reservation) = self.all.get_mut(&id) else {
            return Err(ReservationRefusal::Unknown);
        };
        reservation.phase = ReservationPhase::Confirmed { until };
        if let ReservationPhase::Committed { .. } = phase {
            changes.push(LedgerChange::Keep(reservation.clone()));
        }
        Ok(reservation)
    }

    /// Ends a reservation in any phase. Without a token, the number alone identifies it, for users.
    pub fn release(
        &mut self,
        id: ReservationId,
        token: Option<u64>,
        changes: &mut Vec<LedgerChange>,
    ) -> Result<Reservation, ReservationRefusal> {
        let mine =
            |reservation: &&Reservation| token.is_none_or(|token| reservation.token == token);
        let reservation =
            self.all.get(&id).filter(mine).cloned().ok_or(ReservationRefusal::Unknown)?;
        self.remove(id, changes);
        Ok(reservation)
    }

    /// Ends all expired reservations, and returns them.
    pub fn expire(&mut self, now: Time, changes: &mut Vec<LedgerChange>) -> Vec<Reservation> {
        let expired = self.all.values().filter(|reservation| reservation.until() <= now);
        let expired: Vec<Reservation> = expired.cloned().collect();
        for reservation in &expired {
            self.remove(reservation.id, changes);
        }
        expired
    }

    /// Time at which the next reservation expires.
    pub fn due(&self) -> Option<Time> {
        self.all.values().map(Reservation::until).min()
    }

    /// A site's table with all reservations booked.
    pub fn booked(&self, cluster: &ClusterId, table: &BookingTable, now: Time) -> BookingTable {
        let mut table = table.clone();
        for (at, mut booking) in self.all.values().flat_map(Reservation::bookings) {
            booking.start = booking.start.max(now);
            if at != cluster || booking.start >= booking.end {
                continue;
            }
            // The site may have shrunk since: the reservation gets the processors that remain.
            booking.processors = booking.processors.min(table.free(booking.start, booking.end));
            if booking.processors > 0 {
                let _ = table.book(booking);
            }
        }
        table
    }

    /// Checks the numbers and tokens of all reservations.
    ///
    /// # Errors
    /// Description of the first inconsistency.
    pub fn audit(&self) -> Result<(), String> {
        let mut tokens = BTreeMap::new();
        for (id, reservation) in &self.all {
            if reservation.id != *id || id.0 > self.last_id {
                let (has, last) = (reservation.id, self.last_id);
                return Err(format!("{id:?} has the number {has:?}, and {last} was the last"));
            }
            if let Some(other) = tokens.insert(reservation.token, id) {
                return Err(format!("{other:?} and {id:?} have the same token"));
            }
        }
        Ok(())
    }

    fn remove(&mut self, id: ReservationId, changes: &mut Vec<LedgerChange>) {
        if self.all.remove(&id).is_some_and(|reservation| !reservation.is_prepared()) {
            changes.push(LedgerChange::Drop(id));
        }
    }

    fn by_token(&self, token: u64) -> Option<ReservationId> {
        self.all
            .values()
            .find(|reservation| reservation.token == token)
            .map(|reservation| reservation.id)
    }

    /// An expired reservation is unknown, even if `expire` has not removed it yet.
    fn known(
        &self,
        id: ReservationId,
        token: u64,
        now: Time,
    ) -> Result<&Reservation, ReservationRefusal> {
        let reservation = self
            .all
            .get(&id)
            .filter(|reservation| reservation.token == token && reservation.until() > now);
        reservation.ok_or(ReservationRefusal::Unknown)
    }

    fn granted(
        &self,
        reservation: &Reservation,
        sites: &BTreeMap<ClusterId, ReservableSite>,
        now: Time,
    ) -> Result<(), (ClusterId, Denial)> {
        let mut profiles: BTreeMap<&ClusterId, AvailabilityProfile> = BTreeMap::new();
        for part in &reservation.parts {
            profiles.entry(&part.cluster).or_default();
        }
        for (at, booking) in self.all.values().flat_map(Reservation::bookings) {
            if let Some(profile) = profiles.get_mut(at) {
                profile.give(booking.processors, booking.start, booking.end);
            }
        }
        for part in &reservation.parts {
            let cluster = &part.cluster;
            // An unknown site denies nothing. Its reservations stay until the site returns.
            let (Some(site), Some(profile)) = (sites.get(cluster), profiles.get(cluster)) else {
                continue;
            };
            let peak = part.bookings.iter().map(|b| profile.max_free(b.start, b.end)).max();
            // The last start counts. A first booking that starts soon must not admit one in the far
            // future.
            let last_start = part.bookings.iter().map(|booking| booking.start).max().unwrap_or(0);
            let (ahead, all) = (last_start.saturating_sub(now), site.table.processors());
            site.terms
                .grants(ahead, peak.unwrap_or(0), all)
                .map_err(|why| (cluster.clone(), why))?;
        }
        Ok(())
    }
}

/// End of a lease that is renewed at `now`.
fn leased(lease_ms: Option<u64>, now: Time) -> Option<Time> {
    lease_ms.map(|ms| after(now, Duration::from_millis(ms)))
}

fn taken(cluster: &ClusterId, booking: Booking, error: &TableError) -> ReservationRefusal {
    let free = match error {
        TableError::TooLarge { has, .. } => *has,
        TableError::Taken { free, .. } => *free,
        TableError::Nothing { .. } => 0,
    };
    let Booking { processors, start, end } = booking;
    ReservationRefusal::Taken { cluster: cluster.clone(), processors, free, start, end }
}
