//! Tables of the effect of each event in each state of a state machine, for tests.
//!
//! A table has a row for each kind of event and a cell for each state. Kinds come from an
//! exhaustive match over the events, so a new event does not compile before it has a row. Each cell
//! is executed.

use std::fmt::Debug;

/// The effect of an event in a state.
#[derive(Clone, Copy, Debug)]
pub enum EventEffect {
    /// The state changes, or actions follow.
    Handled,
    /// The event is stored until it fits.
    Kept,
    /// The sender gets a typed error, on which it acts.
    Refused,
    /// The event has no effect, and no party waits for one, for this reason.
    Ignored(&'static str),
}

impl PartialEq for EventEffect {
    /// Ignores reasons, which are for readers.
    fn eq(&self, other: &Self) -> bool {
        std::mem::discriminant(self) == std::mem::discriminant(other)
    }
}

impl EventEffect {
    /// The observed effect: whether the state changed.
    pub fn seen(changed: bool) -> Self {
        if changed { Self::Handled } else { Self::Ignored("as was seen") }
    }
}

/// Defines an enum of the kinds of an enum of events, and maps events to kinds by an exhaustive
/// match.
#[macro_export]
macro_rules! event_kinds {
    ($kind:ident of $of:ident { $($name:ident $pattern:tt),* $(,)? }) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        enum $kind { $($name),* }

        impl $kind {
            const ALL: &[Self] = &[$(Self::$name),*];

            fn of(value: &$of) -> Self {
                match value {
                    $($of::$name $pattern => Self::$name),*
                }
            }
        }
    };
}

/// Executes each cell of a table and compares the effect with the table's.
///
/// # Panics
/// A cell differs, or ignores an event without a reason. The message contains all such cells.
pub fn check<K: Copy + Debug, S: Copy + Debug, const STATES: usize>(
    kinds: impl IntoIterator<Item = K>,
    states: [S; STATES],
    row: impl Fn(K) -> [EventEffect; STATES],
    mut execute: impl FnMut(K, S) -> EventEffect,
) {
    let mut wrong = Vec::new();
    for kind in kinds {
        for (state, expected) in states.into_iter().zip(row(kind)) {
            let found = execute(kind, state);
            let reason = !matches!(expected, EventEffect::Ignored(""));
            if found != expected || !reason {
                wrong.push(format!("{kind:?} in {state:?}: {expected:?}, and is {found:?}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{} cells differ:\n{}", wrong.len(), wrong.join("\n"));
}
