//! What each event does in each state of a worker and of a batch, in the master's table.

use bytes::Bytes;
use tokio::time::Instant;

use super::book::{Action, Book, Event, Place};
use super::program::Settings;
use crate::event_kinds;
use crate::state_table::{Outcome, check};

event_kinds!(EventKind of Event {
    Here {..}, Leaving {..}, Gone {..}, Answer {..}, Submit {..}, Withdraw {..}, Tick {..},
});

/// A state of worker 1, and of batch 1 with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Is {
    /// Neither is there.
    Nothing,
    /// The worker is there, the batch is not.
    Idle,
    /// The worker has a block of the batch.
    Busy,
    /// The same, and it is to leave.
    Leaving,
    /// The batch is there, the worker is not.
    Alone,
    /// The worker is there, and the batch is over.
    Over,
}

const FIRST: Place = (1, 0, 0);

impl Is {
    const ALL: [Self; 6] =
        [Self::Nothing, Self::Idle, Self::Busy, Self::Leaving, Self::Alone, Self::Over];

    fn book(self, now: Instant) -> Book {
        let mut book = Book::new(Settings::default(), now);
        let here = Event::Here { worker: 1, node: "n1".into() };
        let submit = Event::Submit { batch: 1, tasks: vec![(0, 1.0, 1)] };
        if !matches!(self, Self::Nothing | Self::Alone) {
            book.handle(here, now);
        }
        if !matches!(self, Self::Nothing | Self::Idle) {
            book.handle(submit, now);
        }
        match self {
            Self::Leaving => drop(book.handle(Event::Leaving { worker: 1 }, now)),
            Self::Over => drop(book.handle(answer(now), now)),
            Self::Nothing | Self::Idle | Self::Busy | Self::Alone => {}
        }
        let works = matches!(self, Self::Busy | Self::Leaving);
        assert_eq!(book.works(1), works, "{self:?}");
        assert_eq!(book.is_busy(), works || self == Self::Alone, "{self:?}");
        book
    }
}

fn answer(now: Instant) -> Event {
    let (worker, seconds, output) = (Some(1), 0.1, Bytes::new());
    Event::Answer { worker, place: FIRST, seconds, output, came_at: now }
}

fn sample(kind: EventKind, now: Instant) -> Event {
    match kind {
        EventKind::Here => Event::Here { worker: 1, node: "n1".into() },
        EventKind::Leaving => Event::Leaving { worker: 1 },
        EventKind::Gone => Event::Gone { worker: 1, died: true },
        EventKind::Answer => answer(now),
        EventKind::Submit => Event::Submit { batch: 2, tasks: vec![(0, 1.0, 1)] },
        EventKind::Withdraw => Event::Withdraw { batch: 1 },
        EventKind::Tick => Event::Tick,
    }
}

#[test]
fn each_event_in_each_state_is_handled_or_ignored_for_a_reason() {
    use Outcome::{Handled as H, Ignored as I};
    const NO_WORKER: &str = "the worker was removed, and its blocks were given to others";
    const NO_BATCH: &str = "the end of the batch was told when it was over";
    const AGAIN: &str = "the worker leaves already";
    const STAYS: &str = "the worker is known, and stays";
    const NO_TIME: &str = "no time has passed";
    let row = |kind| match kind {
        EventKind::Here => [H, I(STAYS), I(STAYS), H, H, I(STAYS)],
        EventKind::Leaving => [I(NO_WORKER), H, H, I(AGAIN), I(NO_WORKER), H],
        EventKind::Gone => [I(NO_WORKER), H, H, H, I(NO_WORKER), H],
        // An answer to a block that nobody wants is counted, and measures its worker.
        EventKind::Answer => [H, H, H, H, H, H],
        EventKind::Submit => [H, H, H, H, H, H],
        EventKind::Withdraw => [I(NO_BATCH), I(NO_BATCH), H, H, H, I(NO_BATCH)],
        EventKind::Tick => [I(NO_TIME); 6],
    };
    let now = Instant::now();
    check(EventKind::ALL.iter().copied(), Is::ALL, row, |kind, is| {
        let mut book = is.book(now);
        book.handle(Event::Tick, now);
        let event = sample(kind, now);
        assert_eq!(EventKind::of(&event), kind);
        let before = format!("{book:?}");
        let actions = book.handle(event, now);
        Outcome::seen(!actions.is_empty() || format!("{book:?}") != before)
    });
}

/// A batch under a number that is under way would leave the blocks of the former one to nobody.
#[test]
fn a_batch_that_is_submitted_again_is_dealt_out_once() {
    let now = Instant::now();
    let mut book = Is::Busy.book(now);
    let submit = Event::Submit { batch: 1, tasks: vec![(0, 1.0, 1)] };
    assert_eq!(book.handle(submit, now), []);
    let done = book.handle(answer(now), now);
    assert!(done.contains(&Action::Over { batch: 1 }), "{done:?}");
    assert!(!book.is_busy());
}
