//! Reservations in the core: forwards requests to the manager after a poll, and protects reserved
//! nodes.
//!
//! This module must not decide which processors are free.

use std::collections::BTreeMap;

use springtide_base::id::ClusterId;
use tokio::time::Instant;

use super::SchedulerCore;
use super::event::SchedulerAction;
use crate::manager::{Manager, SiteOffer};
use crate::policy::provisioning::Time;
use crate::reservation::{
    LedgerChange, Reservation, ReservationId, ReservationRefusal, ReservationRequest,
};

/// Result of a step of an agreement: the answer, changes for the disk before it, and actions.
pub type AgreementStep =
    (Result<Reservation, ReservationRefusal>, Vec<LedgerChange>, Vec<SchedulerAction>);

impl SchedulerCore {
    /// Computes the offers of all sites now.
    pub fn slots(&mut self, now: Instant) -> (Vec<SiteOffer>, Vec<SchedulerAction>) {
        let mut out = Vec::new();
        self.poll(now, &mut out);
        (self.managing.manager.offers(), out)
    }

    /// Number of the working processors of each cluster, as of the last poll.
    pub fn working_processors(&mut self) -> BTreeMap<ClusterId, u32> {
        let offers = self.managing.manager.offers();
        offers.into_iter().map(|offer| (offer.cluster, offer.processors)).collect()
    }

    /// Prepares a reservation, which is not on disk.
    pub fn prepare(&mut self, ask: &ReservationRequest, now: Instant) -> AgreementStep {
        self.agree(now, |manager, _| manager.prepare(ask))
    }

    /// Commits a reservation. The changes must be on disk before the answer is sent.
    pub fn commit(&mut self, id: ReservationId, token: u64, now: Instant) -> AgreementStep {
        self.agree(now, |manager, notes| manager.commit(id, token, notes))
    }

    /// Confirms a reservation, or renews its lease. The changes must be on disk before the answer
    /// is sent.
    pub fn confirm(&mut self, id: ReservationId, token: u64, now: Instant) -> AgreementStep {
        self.agree(now, |manager, notes| manager.confirm(id, token, notes))
    }

    fn agree(
        &mut self,
        now: Instant,
        step: impl FnOnce(
            &mut Manager,
            &mut Vec<LedgerChange>,
        ) -> Result<Reservation, ReservationRefusal>,
    ) -> AgreementStep {
        let (mut out, mut notes) = (Vec::new(), Vec::new());
        self.poll(now, &mut out);
        let answer = step(&mut self.managing.manager, &mut notes);
        self.manage(now, &mut out);
        (answer, notes, out)
    }

    /// Ends a reservation early.
    pub fn release_reservation(
        &mut self,
        id: ReservationId,
        token: Option<u64>,
        now: Instant,
    ) -> (Result<Reservation, ReservationRefusal>, Vec<SchedulerAction>) {
        let (mut out, mut orders) = (Vec::new(), Vec::new());
        self.poll(now, &mut out);
        let answer = self.managing.manager.release(id, token, &mut orders);
        self.execute_orders(orders, now, &mut out);
        self.poll(now, &mut out);
        self.manage(now, &mut out);
        (answer, out)
    }

    /// Converts an instant to a time of the Unix epoch.
    pub fn wall(&self, now: Instant) -> Time {
        self.managing.manager.time(now)
    }

    /// Returns all reservations, by number.
    pub fn reservations(&self) -> &BTreeMap<ReservationId, Reservation> {
        self.managing.manager.reservations()
    }

    /// Number of a cluster's free processors that jobs without a time limit may have. Those that
    /// the queue waits for count, because the queue asks.
    pub(super) fn unreserved(&self, cluster: &ClusterId) -> u32 {
        let manager = &self.managing.manager;
        if !manager.has_reservations() {
            return u32::MAX;
        }
        let (mut works, mut free, mut others) = (0, 0, 0);
        for (id, node) in self.nodes.iter().filter(|(_, node)| node.cluster == *cluster) {
            let managed = self.managing.ledger.contains_key(id);
            let there = managed || node.works();
            let processors = self.booked_size(id, node);
            match (there, managed) {
                (false, _) => {}
                (true, true) => works += processors,
                (true, false) if node.is_free() => {
                    (works, free) = (works + processors, free + processors);
                }
                (true, false) => (works, others) = (works + processors, others + processors),
            }
        }
        let taken =
            others + manager.unreleasable_processors(cluster) + manager.reserved_ever(cluster);
        free.saturating_sub(manager.withheld_processors(cluster)).min(works.saturating_sub(taken))
    }

    /// Updates the manager's tables after nodes were granted to a job outside of the manager.
    pub(super) fn poll_for_reservations(&mut self, now: Instant, out: &mut Vec<SchedulerAction>) {
        if self.managing.manager.has_reservations() {
            self.poll(now, out);
        }
    }
}
