//! The effect of each event in each state of a worker and of a batch, in the assignment table.

use bytes::Bytes;
use tokio::time::Instant;

use super::assignment::{AssignmentAction, AssignmentEvent, AssignmentTable, BlockId};
use super::program::AssignmentSettings;
use crate::event_kinds;
use crate::state_table::{EventEffect, check};

event_kinds!(EventKind of AssignmentEvent {
    Joined {..}, Leaving {..}, Left {..}, Answer {..}, Submit {..}, Withdraw {..}, Tick {..},
});

/// A state of worker 1 and of batch 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TableState {
    /// There is neither.
    Nothing,
    /// The worker exists, and the batch does not.
    Idle,
    /// The worker has a block of the batch.
    Busy,
    /// The same, and the worker is leaving.
    Leaving,
    /// The batch exists, and the worker does not.
    Alone,
    /// The worker exists, and the batch has ended.
    Over,
}

const FIRST: BlockId = (1, 0, 0);

impl TableState {
    const ALL: [Self; 6] =
        [Self::Nothing, Self::Idle, Self::Busy, Self::Leaving, Self::Alone, Self::Over];

    fn table(self, now: Instant) -> AssignmentTable {
        let mut table = AssignmentTable::new(AssignmentSettings::default(), now);
        let joined = AssignmentEvent::Joined { worker: 1, node: "n1".into() };
        let submit = AssignmentEvent::Submit { batch: 1, tasks: vec![(0, 1.0, 1)] };
        if !matches!(self, Self::Nothing | Self::Alone) {
            table.handle(joined, now);
        }
        if !matches!(self, Self::Nothing | Self::Idle) {
            table.handle(submit, now);
        }
        match self {
            Self::Leaving => drop(table.handle(AssignmentEvent::Leaving { worker: 1 }, now)),
            Self::Over => drop(table.handle(answer(now), now)),
            Self::Nothing | Self::Idle | Self::Busy | Self::Alone => {}
        }
        let works = matches!(self, Self::Busy | Self::Leaving);
        assert_eq!(table.is_working(1), works, "{self:?}");
        assert_eq!(table.is_busy(), works || self == Self::Alone, "{self:?}");
        table
    }
}

fn answer(now: Instant) -> AssignmentEvent {
    let (worker, seconds, output) = (Some(1), 0.1, Bytes::new());
    AssignmentEvent::Answer { worker, block_id: FIRST, seconds, output, came_at: now }
}

fn sample(kind: EventKind, now: Instant) -> AssignmentEvent {
    match kind {
        EventKind::Joined => AssignmentEvent::Joined { worker: 1, node: "n1".into() },
        EventKind::Leaving => AssignmentEvent::Leaving { worker: 1 },
        EventKind::Left => AssignmentEvent::Left { worker: 1, died: true },
        EventKind::Answer => answer(now),
        EventKind::Submit => AssignmentEvent::Submit { batch: 2, tasks: vec![(0, 1.0, 1)] },
        EventKind::Withdraw => AssignmentEvent::Withdraw { batch: 1 },
        EventKind::Tick => AssignmentEvent::Tick,
    }
}

#[test]
fn each_event_in_each_state_is_handled_or_ignored_for_a_reason() {
    use EventEffect::{Handled as H, Ignored as I};
    const NO_WORKER: &str = "the worker was removed, and its blocks were given to others";
    const NO_BATCH: &str = "the end of the batch was reported";
    const AGAIN: &str = "the worker is leaving already";
    const STAYS: &str = "the worker is known, and stays";
    const NO_TIME: &str = "no time has passed";
    let row = |kind| match kind {
        EventKind::Joined => [H, I(STAYS), I(STAYS), H, H, I(STAYS)],
        EventKind::Leaving => [I(NO_WORKER), H, H, I(AGAIN), I(NO_WORKER), H],
        EventKind::Left => [I(NO_WORKER), H, H, H, I(NO_WORKER), H],
        // An answer to an unneeded block is counted, and measures its worker.
        EventKind::Answer => [H, H, H, H, H, H],
        EventKind::Submit => [H, H, H, H, H, H],
        EventKind::Withdraw => [I(NO_BATCH), I(NO_BATCH), H, H, H, I(NO_BATCH)],
        EventKind::Tick => [I(NO_TIME); 6],
    };
    let now = Instant::now();
    check(EventKind::ALL.iter().copied(), TableState::ALL, row, |kind, is| {
        let mut table = is.table(now);
        table.handle(AssignmentEvent::Tick, now);
        let event = sample(kind, now);
        assert_eq!(EventKind::of(&event), kind);
        let before = format!("{table:?}");
        let actions = table.handle(event, now);
        EventEffect::seen(!actions.is_empty() || format!("{table:?}") != before)
    });
}

/// A second batch with the number of one under way would leave blocks of the first unassigned.
#[test]
fn a_batch_that_is_submitted_again_is_assigned_once() {
    let now = Instant::now();
    let mut table = TableState::Busy.table(now);
    let submit = AssignmentEvent::Submit { batch: 1, tasks: vec![(0, 1.0, 1)] };
    assert_eq!(table.handle(submit, now), []);
    let done = table.handle(answer(now), now);
    assert!(done.contains(&AssignmentAction::BatchDone { batch: 1 }), "{done:?}");
    assert!(!table.is_busy());
}
