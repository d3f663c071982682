//! Reservations at the scheduler's door: what brokers ask and are answered. What must be on disk is, before the answer goes out.
//!
//! Must not decide anything.

use actix::prelude::*;
use serde::{Deserialize, Serialize};
use springtide_runtime::event::Event as Told;
use springtide_runtime::remote_message;
use tokio::time::Instant;

use super::Scheduler;
use super::core::{Action, Agreed};
use super::manager::{Bill, SiteOffer};
use crate::policy::provisioning::Time;
use crate::reservation::{Ask, Note, Refusal, Reservation, ReservationId};

/// To the scheduler: which slots are offered?
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GetSlots {}

/// The slots of all sites.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GridSlots {
    /// When, in microseconds of the Unix epoch by the head's clock.
    pub now: Time,
    /// By site.
    pub sites: Vec<SiteOffer>,
    /// What is reserved already.
    pub reservations: Vec<Reservation>,
    /// Bytes per second between two clusters and seconds one way, as the grid's config expects them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub links: Vec<GridLink>,
}

/// A link between two clusters.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GridLink {
    /// From here, and there.
    pub a: springtide_runtime::id::ClusterId,
    /// To there, and here.
    pub b: springtide_runtime::id::ClusterId,
    /// Seconds one way.
    pub latency_s: f64,
    /// Bytes per second.
    pub bytes_per_s: f64,
}

/// To the scheduler, by a broker: keep this free for me.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PrepareSlots {
    /// What.
    pub ask: Ask,
}

/// To the scheduler, by a broker: I will have what was prepared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommitSlots {
    /// Which.
    pub id: ReservationId,
    /// By which it knows it.
    pub token: u64,
}

/// To the scheduler, by a broker: I know that it was committed, or: I am there still.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConfirmSlots {
    /// Which.
    pub id: ReservationId,
    /// By which it knows it.
    pub token: u64,
}

/// To the scheduler: end this reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReleaseSlots {
    /// Which.
    pub id: ReservationId,
    /// By which its broker knows it; absent: whoever has its number may.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<u64>,
}

remote_message! {
    "get-slots" => GetSlots -> GridSlots;
    "prepare-slots" => PrepareSlots -> Result<Reservation, Refusal>;
    "commit-slots" => CommitSlots -> Result<Reservation, Refusal>;
    "confirm-slots" => ConfirmSlots -> Result<Reservation, Refusal>;
    "release-slots" => ReleaseSlots -> Result<Reservation, Refusal>;
}

impl Scheduler {
    fn after(&mut self, ctx: &mut Context<Self>, actions: Vec<Action>) {
        self.set_timer(ctx);
        self.carry_out(ctx, actions.into());
    }

    /// Puts on disk what brokers may rely on.
    ///
    /// # Errors
    /// It is not there: nobody may rely on it.
    fn write_down(&mut self, notes: &[Note]) -> Result<(), Refusal> {
        let written = notes.iter().try_for_each(|note| match note {
            Note::Keep(one) => self.store.reserved(one),
            Note::Drop(id) => self.store.unreserved(*id),
        });
        written.map_err(|error| {
            self.store_failed(&error);
            Refusal::Store { reason: error.to_string() }
        })
    }

    fn agreed(
        &mut self,
        ctx: &mut Context<Self>,
        (answer, notes, actions): Agreed,
    ) -> Result<Reservation, Refusal> {
        let written = self.write_down(&notes);
        self.after(ctx, actions);
        match (written, answer) {
            (Err(refusal), Ok(one)) => {
                let (_, actions) =
                    self.core.release_reservation(one.id, Some(one.token), Instant::now());
                self.after(ctx, actions);
                Err(refusal)
            }
            (_, answer) => answer,
        }
    }

    /// A reservation is no more: a later scheduler is not to know it.
    pub(super) fn unreserved(&mut self, bill: &Bill) {
        let noted = self.store.unreserved(bill.id);
        self.noted(noted);
        self.recorder.record(Told::Decision {
            decision: format!(
                "{} ({}) ends: it costs {:.2}, and {:.2} for what was not used",
                bill.id, bill.name, bill.cost, bill.penalty
            ),
            why: bill.why.clone(),
            inputs: serde_json::to_value(bill).unwrap_or_default(),
        });
    }

    fn note_agreed(&self, one: &Reservation) {
        self.recorder.record(Told::Decision {
            decision: format!("agree to {} ({})", one.id, one.name),
            why: "a broker asked for it".to_owned(),
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
        self.after(ctx, actions);
        MessageResult(GridSlots { now, sites, reservations, links: self.expected_links.clone() })
    }
}

impl Handler<PrepareSlots> for Scheduler {
    type Result = Result<Reservation, Refusal>;

    fn handle(
        &mut self,
        PrepareSlots { ask }: PrepareSlots,
        ctx: &mut Self::Context,
    ) -> Self::Result {
        let answer = self.core.prepare(&ask, Instant::now());
        self.agreed(ctx, answer)
    }
}

impl Handler<CommitSlots> for Scheduler {
    type Result = Result<Reservation, Refusal>;

    fn handle(&mut self, word: CommitSlots, ctx: &mut Self::Context) -> Self::Result {
        let answer = self.core.commit((word.id, word.token), Instant::now());
        self.agreed(ctx, answer)
    }
}

impl Handler<ConfirmSlots> for Scheduler {
    type Result = Result<Reservation, Refusal>;

    fn handle(&mut self, word: ConfirmSlots, ctx: &mut Self::Context) -> Self::Result {
        let answer = self.core.confirm((word.id, word.token), Instant::now());
        let new = !answer.1.is_empty();
        let answer = self.agreed(ctx, answer);
        if let (true, Ok(one)) = (new, &answer) {
            self.note_agreed(one);
        }
        answer
    }
}

impl Handler<ReleaseSlots> for Scheduler {
    type Result = Result<Reservation, Refusal>;

    fn handle(&mut self, word: ReleaseSlots, ctx: &mut Self::Context) -> Self::Result {
        let (answer, actions) = self.core.release_reservation(word.id, word.token, Instant::now());
        self.after(ctx, actions);
        answer
    }
}
