//! State tables of the reservation protocol: each step in each phase, at the grid and at the
//! broker.

use std::collections::BTreeMap;

use springtide_base::event_kinds;
use springtide_base::id::ClusterId;
use springtide_base::state_table::{EventEffect, check};

use super::broker::BrokerStep;
use super::*;
use crate::policy::provisioning::{Booking, BookingTable, SECOND, Terms};

const NOW: Time = 1_800_000_000 * SECOND;
const TOKEN: u64 = 7;

fn sites() -> BTreeMap<ClusterId, ReservableSite> {
    let site = ReservableSite { table: BookingTable::new(4), terms: Terms::default() };
    [("vu".into(), site)].into()
}

fn parts() -> Vec<ReservedSlot> {
    let booking = Booking { processors: 2, start: NOW, end: NOW + 60 * SECOND };
    vec![ReservedSlot { cluster: "vu".into(), bookings: vec![booking] }]
}

fn ask() -> ReservationRequest {
    let (name, parts) = ("test".to_owned(), parts());
    ReservationRequest { token: TOKEN, name, parts, max_cost: 1e9, lease_ms: None, owner: None }
}

/// A phase of a reservation in the grid's ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LedgerPhase {
    Unknown,
    Prepared,
    Committed,
    Confirmed,
    /// Expired, and not yet removed.
    Expired,
}

impl LedgerPhase {
    const ALL: [Self; 5] =
        [Self::Unknown, Self::Prepared, Self::Committed, Self::Confirmed, Self::Expired];

    fn of(phase: ReservationPhase) -> Self {
        match phase {
            ReservationPhase::Prepared { .. } => Self::Prepared,
            ReservationPhase::Committed { .. } => Self::Committed,
            ReservationPhase::Confirmed { .. } => Self::Confirmed,
        }
    }

    /// A ledger with a reservation in this phase, its number and the time.
    fn book(self) -> (ReservationLedger, ReservationId, Time) {
        let (mut book, sites, mut changes) =
            (ReservationLedger::new(StepTimeouts::default()), sites(), Vec::new());
        if self == Self::Unknown {
            return (book, ReservationId(1), NOW);
        }
        let id = book.prepare(&ask(), &sites, NOW).unwrap().id;
        if matches!(self, Self::Committed | Self::Confirmed) {
            book.commit(id, TOKEN, &sites, NOW, &mut changes).unwrap();
        }
        if self == Self::Confirmed {
            book.confirm(id, TOKEN, NOW, &mut changes).unwrap();
        }
        if self == Self::Expired {
            return (book, id, NOW + 40 * SECOND);
        }
        assert_eq!(Self::of(book.all()[&id].phase), self);
        (book, id, NOW)
    }
}

/// A broker's requests to the grid.
#[derive(Clone, Copy, Debug)]
enum BrokerRequest {
    Prepare,
    Commit,
    Confirm,
    Release,
}

#[test]
fn grid_answers_each_request_in_each_phase() {
    use EventEffect::{Handled as H, Refused as R};
    let row = |request| match request {
        // A repeated request gets the same answer.
        BrokerRequest::Prepare => [H, H, H, H, H],
        BrokerRequest::Commit => [R, H, H, H, R],
        BrokerRequest::Confirm => [R, R, H, H, R],
        // An expired reservation exists until it is removed.
        BrokerRequest::Release => [R, H, H, H, H],
    };
    let all = [
        BrokerRequest::Prepare,
        BrokerRequest::Commit,
        BrokerRequest::Confirm,
        BrokerRequest::Release,
    ];
    check(all, LedgerPhase::ALL, row, |request, phase| {
        let (mut book, id, now) = phase.book();
        let (sites, mut changes) = (sites(), Vec::new());
        let of = (id, TOKEN);
        let answer = match request {
            BrokerRequest::Prepare => book.prepare(&ask(), &sites, now).map(drop),
            BrokerRequest::Commit => book.commit(of.0, of.1, &sites, now, &mut changes).map(drop),
            BrokerRequest::Confirm => book.confirm(of.0, of.1, now, &mut changes).map(drop),
            BrokerRequest::Release => book.release(id, Some(TOKEN), &mut changes).map(drop),
        };
        if answer.is_ok() { H } else { R }
    });
}

event_kinds!(NewsKind of BrokerInput {
    Begin {..}, Planned(..), Answered(..), Silent {..}, Waited {..},
});

/// A step of a broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BrokerPhase {
    Idle,
    Planning,
    Preparing,
    Committing,
    Confirming,
    Over,
}

impl BrokerPhase {
    const ALL: [Self; 6] = [
        Self::Idle,
        Self::Planning,
        Self::Preparing,
        Self::Committing,
        Self::Confirming,
        Self::Over,
    ];

    fn of(step: &BrokerStep) -> Self {
        match step {
            BrokerStep::Idle => Self::Idle,
            BrokerStep::Planning => Self::Planning,
            BrokerStep::Preparing => Self::Preparing,
            BrokerStep::Committing(_) => Self::Committing,
            BrokerStep::Confirming(_) => Self::Confirming,
            BrokerStep::Over => Self::Over,
        }
    }

    fn broker(self) -> Broker {
        let mut broker = Broker::new("test", None, 1, BrokerLimits::default());
        let steps = Self::ALL.iter().position(|one| *one == self).unwrap();
        let phases = [
            ReservationPhase::Prepared { until: NOW + SECOND },
            ReservationPhase::Committed { until: NOW + SECOND },
            ReservationPhase::Confirmed { until: None },
        ];
        for step in 0..steps {
            let news = match step {
                0 => BrokerInput::Begin,
                1 => BrokerInput::Planned(Ok((parts(), 1e9))),
                _ => BrokerInput::Answered(Ok(Box::new(reservation(&broker, phases[step - 2])))),
            };
            broker.handle(news, NOW);
        }
        assert_eq!(Self::of(broker.step()), self);
        broker
    }
}

/// The grid's answer to the present request.
fn reservation(broker: &Broker, phase: ReservationPhase) -> Reservation {
    let (id, name, parts) = (ReservationId(1), "test".to_owned(), parts());
    Reservation {
        id,
        token: broker.token(),
        name,
        parts,
        cost: 1.0,
        phase,
        lease_ms: None,
        owner: None,
    }
}

#[test]
fn broker_handles_each_input_in_each_step() {
    use EventEffect::{Handled as H, Ignored as I};
    const ASKED: &str = "the broker has started";
    const UNASKED: &str = "no such answer is due: the same order follows again";
    const OVER: &str = "the agreement is complete or has failed, and no order follows";
    let row = |kind| match kind {
        NewsKind::Begin => [H, I(ASKED), I(ASKED), I(ASKED), I(ASKED), I(OVER)],
        NewsKind::Planned => [I(UNASKED), H, I(UNASKED), I(UNASKED), I(UNASKED), I(OVER)],
        NewsKind::Answered => [I(UNASKED), I(UNASKED), H, H, H, I(OVER)],
        NewsKind::Silent => [H, H, H, H, H, I(OVER)],
        NewsKind::Waited => [I(UNASKED), I(UNASKED), I(UNASKED), I(UNASKED), I(UNASKED), I(OVER)],
    };
    check(NewsKind::ALL.iter().copied(), BrokerPhase::ALL, row, |kind, phase| {
        let mut broker = phase.broker();
        let news = match kind {
            NewsKind::Begin => BrokerInput::Begin,
            NewsKind::Planned => BrokerInput::Planned(Ok((parts(), 1e9))),
            NewsKind::Answered => {
                let (cluster, processors, free) = ("vu".into(), 2, 0);
                let (start, end) = (NOW, NOW + SECOND);
                BrokerInput::Answered(Err(ReservationRefusal::Taken {
                    cluster,
                    processors,
                    free,
                    start,
                    end,
                }))
            }
            NewsKind::Silent => BrokerInput::Silent,
            NewsKind::Waited => BrokerInput::Waited,
        };
        assert_eq!(NewsKind::of(&news), kind);
        let before = format!("{broker:?}");
        broker.handle(news, NOW);
        EventEffect::seen(format!("{broker:?}") != before)
    });
}

/// An answer to an abandoned agreement is not taken for one to the present agreement.
#[test]
fn late_answer_of_another_agreement_is_ignored() {
    for phase in [BrokerPhase::Preparing, BrokerPhase::Committing, BrokerPhase::Confirming] {
        let mut broker = phase.broker();
        let late = Reservation {
            token: 1,
            ..reservation(&broker, ReservationPhase::Confirmed { until: None })
        };
        let order = broker.handle(BrokerInput::Answered(Ok(Box::new(late))), NOW);
        assert!(!matches!(order, BrokerAction::Done(_)), "{order:?}");
        assert_eq!(BrokerPhase::of(broker.step()), phase);
    }
}
