//! Reservations at the scheduler: what is asked of the manager's table, with clusters polled first, and what jobs without an end leave of
//! reserved clusters. Must not decide what is free.

use std::collections::BTreeMap;

use springtide_runtime::id::ClusterId;
use tokio::time::Instant;

use super::Core;
use super::event::Action;
use crate::policy::provisioning::Time;
use crate::reservation::{Ask, Note, Refusal, Reservation, ReservationId};
use crate::scheduler::manager::{Manager, SiteOffer};

/// How far an agreement is, what must be on disk before that is told, and what follows from it.
pub type Agreed = (Result<Reservation, Refusal>, Vec<Note>, Vec<Action>);

impl Core {
    /// What all sites offer now.
    pub fn slots(&mut self, now: Instant) -> (Vec<SiteOffer>, Vec<Action>) {
        let mut out = Vec::new();
        self.poll(now, &mut out);
        (self.managing.manager.offers(), out)
    }

    /// Keeps slots free for a broker. Nothing of that is on disk.
    pub fn prepare(&mut self, ask: &Ask, now: Instant) -> Agreed {
        self.agree(now, |manager, _| manager.prepare(ask))
    }

    /// Takes what was prepared. What is noted must be on disk before it is answered.
    pub fn commit(&mut self, id: (ReservationId, u64), now: Instant) -> Agreed {
        self.agree(now, |manager, notes| manager.commit(id, notes))
    }

    /// Agrees, or holds on to what was agreed. What is noted must be on disk before it is answered.
    pub fn confirm(&mut self, id: (ReservationId, u64), now: Instant) -> Agreed {
        self.agree(now, |manager, notes| manager.confirm(id, notes))
    }

    fn agree(
        &mut self,
        now: Instant,
        step: impl FnOnce(&mut Manager, &mut Vec<Note>) -> Result<Reservation, Refusal>,
    ) -> Agreed {
        let (mut out, mut notes) = (Vec::new(), Vec::new());
        self.poll(now, &mut out);
        let answer = step(&mut self.managing.manager, &mut notes);
        self.manage(now, &mut out);
        (answer, notes, out)
    }

    /// Ends a reservation before its time.
    ///
    /// # Errors
    /// [`Refusal`].
    pub fn release_reservation(
        &mut self,
        id: ReservationId,
        token: Option<u64>,
        now: Instant,
    ) -> (Result<Reservation, Refusal>, Vec<Action>) {
        let (mut out, mut orders) = (Vec::new(), Vec::new());
        self.poll(now, &mut out);
        let answer = self.managing.manager.release(id, token, &mut orders);
        self.follow(orders, now, &mut out);
        self.poll(now, &mut out);
        self.manage(now, &mut out);
        (answer, out)
    }

    /// A moment as a time of the Unix epoch.
    pub fn wall(&self, now: Instant) -> Time {
        self.managing.manager.time(now)
    }

    /// What is reserved.
    pub fn reservations(&self) -> &BTreeMap<ReservationId, Reservation> {
        self.managing.manager.reservations()
    }

    /// Free nodes of a cluster that jobs without an end may have. What the queue waits for is among them: it is what asks.
    pub(super) fn unreserved(&self, cluster: &ClusterId) -> u32 {
        let manager = &self.managing.manager;
        if !manager.has_reservations() {
            return u32::MAX;
        }
        let (mut works, mut free, mut others) = (0, 0, 0);
        for (id, node) in self.nodes.iter().filter(|(_, node)| node.cluster == *cluster) {
            let managed = self.managing.ledger.contains_key(id);
            let there = managed || node.works();
            works += u32::from(there);
            free += u32::from(there && !managed && node.is_free());
            others += u32::from(there && !managed && !node.is_free());
        }
        let taken = others + manager.floors(cluster) + manager.reserved_ever(cluster);
        free.saturating_sub(manager.withheld(cluster)).min(works.saturating_sub(taken))
    }

    /// Nodes were given to a job that is none of the manager's: its tables are to know before more are.
    pub(super) fn heed_reservations(&mut self, now: Instant, out: &mut Vec<Action>) {
        if self.managing.manager.has_reservations() {
            self.poll(now, out);
        }
    }
}
