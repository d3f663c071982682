//! Reservations in the scheduler's actor: requests of brokers, and their answers.
//!
//! Changes are on disk before the answer is sent. This module must not decide anything.

use actix::prelude::*;
use springtide_protocol::reservation::{Reservation, ReservationRefusal};
use springtide_runtime::event::{BookingRow, Event as GridEvent};
use springtide_runtime::id::ClusterId;
use tokio::time::Instant;

use super::core::{AgreementStep, SchedulerAction};
use super::manager::ReservationBill;
use super::{
    CommitSlots, ConfirmSlots, GetSlots, GridSlots, PrepareSlots, ReleaseSlots, Scheduler,
};
use crate::reservation::LedgerChange;

impl Scheduler {
    fn execute_after(&mut self, ctx: &mut Context<Self>, actions: Vec<SchedulerAction>) {
        self.set_timer(ctx);
        self.execute(ctx, actions.into());
    }

    /// Writes changes to disk before brokers rely on them.
    ///
    /// # Errors
    /// The store failed, so that the reservation is not binding.
    fn store_changes(&mut self, notes: &[LedgerChange]) -> Result<(), ReservationRefusal> {
        let written = notes.iter().try_for_each(|note| match note {
            LedgerChange::Keep(one) => self.store.record_reservation(one),
            LedgerChange::Drop(id) => self.store.delete_reservation(*id),
        });
        written.map_err(|error| {
            self.store_failed(&error);
            ReservationRefusal::Store { reason: error.to_string() }
        })
    }

    fn finish_agreement(
        &mut self,
        ctx: &mut Context<Self>,
        (answer, notes, actions): AgreementStep,
    ) -> Result<Reservation, ReservationRefusal> {
        let written = self.store_changes(&notes);
        self.execute_after(ctx, actions);
        match (written, answer) {
            (Err(refusal), Ok(one)) => {
                let (_, actions) =
                    self.core.release_reservation(one.id, Some(one.token), Instant::now());
                self.execute_after(ctx, actions);
                Err(refusal)
            }
            (_, answer) => answer,
        }
    }

    /// Deletes an ended reservation from the store, and records its bill.
    pub(super) fn end_reservation(&mut self, bill: &ReservationBill) {
        let written = self.store.delete_reservation(bill.id);
        self.check_write(written);
        self.recorder
            .record(GridEvent::ReservationEnded { reservation: bill.id.0, why: bill.why.clone() });
        self.recorder.record(GridEvent::Decision {
            decision: format!(
                "{} ({}) ends: it costs {:.2}, plus {:.2} for unused processors",
                bill.id, bill.name, bill.cost, bill.penalty
            ),
            why: bill.why.clone(),
            inputs: serde_json::to_value(bill).unwrap_or_default(),
        });
    }

    fn record_agreement(&mut self, one: &Reservation) {
        let bookings = one.bookings().map(|(cluster, booking)| BookingRow {
            cluster: cluster.clone(),
            processors: booking.processors,
            start_us: booking.start,
            end_us: booking.end,
        });
        let bookings: Vec<BookingRow> = bookings.collect();
        let booked = |cluster: &ClusterId| bookings.iter().any(|row| row.cluster == *cluster);
        let capacity =
            self.core.working_processors().into_iter().filter(|(cluster, _)| booked(cluster));
        let capacity = capacity.collect();
        let reservation = one.id.0;
        let agreed = GridEvent::ReservationAgreed { reservation, bookings, capacity };
        self.recorder.record(agreed);
        self.recorder.record(GridEvent::Decision {
            decision: format!("agree to {} ({})", one.id, one.name),
            why: "a broker requested it".to_owned(),
            inputs: serde_json::to_value(one).unwrap_or_default(),
        });
    }
}

impl Handler<GetSlots> for Scheduler {
    type Result = MessageResult<GetSlots>;

    fn handle(&mut self, _: GetSlots, ctx: &mut Self::Context) -> Self::Result {
        let (sites, actions) = self.core.slots(Instant::now());
        let reservations = self.core.reservations().values().cloned().collect();
        let now = self.core.wall(Instant::now());
        self.execute_after(ctx, actions);
        MessageResult(GridSlots { now, sites, reservations, links: self.expected_links.clone() })
    }
}

impl Handler<PrepareSlots> for Scheduler {
    type Result = Result<Reservation, ReservationRefusal>;

    fn handle(
        &mut self,
        PrepareSlots { ask }: PrepareSlots,
        ctx: &mut Self::Context,
    ) -> Self::Result {
        let answer = self.core.prepare(&ask, Instant::now());
        let answer = self.finish_agreement(ctx, answer);
        if let Err(refusal) = &answer {
            let (name, why) = (ask.name, refusal.to_string());
            self.recorder.record(GridEvent::ReservationRefused { name, why });
        }
        answer
    }
}

impl Handler<CommitSlots> for Scheduler {
    type Result = Result<Reservation, ReservationRefusal>;

    fn handle(&mut self, message: CommitSlots, ctx: &mut Self::Context) -> Self::Result {
        let answer = self.core.commit(message.id, message.token, Instant::now());
        self.finish_agreement(ctx, answer)
    }
}

impl Handler<ConfirmSlots> for Scheduler {
    type Result = Result<Reservation, ReservationRefusal>;

    fn handle(&mut self, message: ConfirmSlots, ctx: &mut Self::Context) -> Self::Result {
        let answer = self.core.confirm(message.id, message.token, Instant::now());
        let new = !answer.1.is_empty();
        let answer = self.finish_agreement(ctx, answer);
        if let (true, Ok(one)) = (new, &answer) {
            self.record_agreement(one);
        }
        answer
    }
}

impl Handler<ReleaseSlots> for Scheduler {
    type Result = Result<Reservation, ReservationRefusal>;

    fn handle(&mut self, message: ReleaseSlots, ctx: &mut Self::Context) -> Self::Result {
        if let Some(reservation) = self.core.reservations().get(&message.id) {
            reservation.admit(message.by.as_ref())?;
        }
        let (answer, actions) =
            self.core.release_reservation(message.id, message.token, Instant::now());
        self.execute_after(ctx, actions);
        answer
    }
}
