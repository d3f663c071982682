//! What each step of a reservation's protocol does in each phase, at the grid and at the broker.

use std::collections::BTreeMap;

use springtide_runtime::event_kinds;
use springtide_runtime::state_table::{Outcome, check};

use super::broker::Step;
use super::*;
use crate::policy::provisioning::{SECOND, Table, Terms};

const NOW: Time = 1_800_000_000 * SECOND;
const TOKEN: u64 = 7;

fn ground() -> BTreeMap<ClusterId, Ground> {
    let site = Ground { table: Table::new(4), terms: Terms::default() };
    [("vu".into(), site)].into()
}

fn parts() -> Vec<Part> {
    let booking = Booking { processors: 2, start: NOW, end: NOW + 60 * SECOND };
    vec![Part { cluster: "vu".into(), bookings: vec![booking] }]
}

fn ask() -> Ask {
    let (name, parts) = ("test".to_owned(), parts());
    Ask { token: TOKEN, name, parts, most_cost: 1e9, lease_ms: None }
}

/// A phase of a reservation in the grid's book.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Is {
    Unknown,
    Prepared,
    Committed,
    Confirmed,
    /// It has run out, and nobody has looked.
    Expired,
}

impl Is {
    const ALL: [Self; 5] =
        [Self::Unknown, Self::Prepared, Self::Committed, Self::Confirmed, Self::Expired];

    fn of(phase: Phase) -> Self {
        match phase {
            Phase::Prepared { .. } => Self::Prepared,
            Phase::Committed { .. } => Self::Committed,
            Phase::Confirmed { .. } => Self::Confirmed,
        }
    }

    /// A book with a reservation in this phase, its number and the time.
    fn book(self) -> (Book, ReservationId, Time) {
        let (mut book, ground, mut notes) = (Book::new(Within::default()), ground(), Vec::new());
        if self == Self::Unknown {
            return (book, ReservationId(1), NOW);
        }
        let id = book.prepare(&ask(), &ground, NOW).unwrap().id;
        if matches!(self, Self::Committed | Self::Confirmed) {
            book.commit((id, TOKEN), &ground, NOW, &mut notes).unwrap();
        }
        if self == Self::Confirmed {
            book.confirm((id, TOKEN), NOW, &mut notes).unwrap();
        }
        if self == Self::Expired {
            return (book, id, NOW + 40 * SECOND);
        }
        assert_eq!(Self::of(book.all()[&id].phase), self);
        (book, id, NOW)
    }
}

/// What a broker asks of the grid.
#[derive(Clone, Copy, Debug)]
enum Asks {
    Prepare,
    Commit,
    Confirm,
    Release,
}

#[test]
fn the_grid_answers_each_question_in_each_phase() {
    use Outcome::{Handled as H, Refused as R};
    let row = |asks| match asks {
        // Asked again it is answered as before.
        Asks::Prepare => [H, H, H, H, H],
        Asks::Commit => [R, H, H, H, R],
        Asks::Confirm => [R, R, H, H, R],
        // What has run out is there until somebody looks.
        Asks::Release => [R, H, H, H, H],
    };
    let all = [Asks::Prepare, Asks::Commit, Asks::Confirm, Asks::Release];
    check(all, Is::ALL, row, |asks, is| {
        let (mut book, id, now) = is.book();
        let (ground, mut notes) = (ground(), Vec::new());
        let of = (id, TOKEN);
        let answer = match asks {
            Asks::Prepare => book.prepare(&ask(), &ground, now).map(drop),
            Asks::Commit => book.commit(of, &ground, now, &mut notes).map(drop),
            Asks::Confirm => book.confirm(of, now, &mut notes).map(drop),
            Asks::Release => book.release(id, Some(TOKEN), &mut notes).map(drop),
        };
        if answer.is_ok() { H } else { R }
    });
}

event_kinds!(NewsKind of News {
    Begin {..}, Planned(..), Answered(..), Silent {..}, Waited {..},
});

/// A step of a broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BrokerIs {
    Idle,
    Planning,
    Preparing,
    Committing,
    Confirming,
    Over,
}

impl BrokerIs {
    const ALL: [Self; 6] = [
        Self::Idle,
        Self::Planning,
        Self::Preparing,
        Self::Committing,
        Self::Confirming,
        Self::Over,
    ];

    fn of(step: &Step) -> Self {
        match step {
            Step::Idle => Self::Idle,
            Step::Planning => Self::Planning,
            Step::Preparing => Self::Preparing,
            Step::Committing(_) => Self::Committing,
            Step::Confirming(_) => Self::Confirming,
            Step::Over => Self::Over,
        }
    }

    fn broker(self) -> Broker {
        let mut broker = Broker::new("test", None, 1, Limits::default());
        let steps = Self::ALL.iter().position(|one| *one == self).unwrap();
        let phases = [
            Phase::Prepared { until: NOW + SECOND },
            Phase::Committed { until: NOW + SECOND },
            Phase::Confirmed { until: None },
        ];
        for step in 0..steps {
            let news = match step {
                0 => News::Begin,
                1 => News::Planned(Ok((parts(), 1e9))),
                _ => News::Answered(Ok(Box::new(reservation(&broker, phases[step - 2])))),
            };
            broker.handle(news, NOW);
        }
        assert_eq!(Self::of(broker.step()), self);
        broker
    }
}

/// What the grid answers to the question that is open.
fn reservation(broker: &Broker, phase: Phase) -> Reservation {
    let (id, name, parts) = (ReservationId(1), "test".to_owned(), parts());
    Reservation { id, token: broker.token(), name, parts, cost: 1.0, phase, lease_ms: None }
}

#[test]
fn a_broker_goes_on_by_what_it_hears_in_each_step() {
    use Outcome::{Handled as H, Ignored as I};
    const ASKED: &str = "it has begun";
    const UNASKED: &str = "nothing was asked: the same order is given again";
    const OVER: &str = "the agreement has come about or failed, and nothing more is ordered";
    let row = |kind| match kind {
        NewsKind::Begin => [H, I(ASKED), I(ASKED), I(ASKED), I(ASKED), I(OVER)],
        NewsKind::Planned => [I(UNASKED), H, I(UNASKED), I(UNASKED), I(UNASKED), I(OVER)],
        NewsKind::Answered => [I(UNASKED), I(UNASKED), H, H, H, I(OVER)],
        NewsKind::Silent => [H, H, H, H, H, I(OVER)],
        NewsKind::Waited => [I(UNASKED), I(UNASKED), I(UNASKED), I(UNASKED), I(UNASKED), I(OVER)],
    };
    check(NewsKind::ALL.iter().copied(), BrokerIs::ALL, row, |kind, is| {
        let mut broker = is.broker();
        let news = match kind {
            NewsKind::Begin => News::Begin,
            NewsKind::Planned => News::Planned(Ok((parts(), 1e9))),
            NewsKind::Answered => {
                let (cluster, processors, free) = ("vu".into(), 2, 0);
                let (start, end) = (NOW, NOW + SECOND);
                News::Answered(Err(Refusal::Taken { cluster, processors, free, start, end }))
            }
            NewsKind::Silent => News::Silent,
            NewsKind::Waited => News::Waited,
        };
        assert_eq!(NewsKind::of(&news), kind);
        let before = format!("{broker:?}");
        broker.handle(news, NOW);
        Outcome::seen(format!("{broker:?}") != before)
    });
}

/// An answer of an agreement that was given up is not taken for one of today's.
#[test]
fn a_late_answer_of_another_agreement_changes_nothing() {
    for is in [BrokerIs::Preparing, BrokerIs::Committing, BrokerIs::Confirming] {
        let mut broker = is.broker();
        let late =
            Reservation { token: 1, ..reservation(&broker, Phase::Confirmed { until: None }) };
        let order = broker.handle(News::Answered(Ok(Box::new(late))), NOW);
        assert!(!matches!(order, Order::Done(_)), "{order:?}");
        assert_eq!(BrokerIs::of(broker.step()), is);
    }
}
