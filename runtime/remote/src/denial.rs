//! Refused messages: their counts by name and reason, and a log whose rate is limited per peer.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::error::Refusal;
use super::hub::Hub;
use super::published::Origin;
use crate::id::NodeId;

/// At most one line per peer is logged in this time.
const LOG_INTERVAL: Duration = Duration::from_secs(10);
/// Peers whose last line is remembered.
const PEERS_MAX: usize = 1024;

/// A message of another node that was refused.
#[derive(Clone, Debug)]
pub struct Denial {
    /// The sender.
    pub from: Origin,
    /// The message's name.
    pub message: &'static str,
    /// The reason.
    pub why: Refusal,
    /// Refusals of the same peer that were not logged since its last line.
    pub suppressed: u64,
}

type Observer = Box<dyn Fn(&Denial) + Send + Sync>;

#[derive(Default)]
pub(super) struct Denials {
    state: Mutex<State>,
    observer: OnceLock<Observer>,
}

#[derive(Default)]
struct State {
    counts: BTreeMap<(&'static str, Refusal), u64>,
    /// By peer: when its last line was logged, and how many refusals followed.
    logged: BTreeMap<NodeId, (Instant, u64)>,
}

impl Denials {
    fn state(&self) -> MutexGuard<'_, State> {
        // Each change is a single step.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn observe(&self, observer: Observer) {
        // The first observer stays.
        let _ = self.observer.set(observer);
    }

    pub(super) fn counts(&self) -> BTreeMap<(&'static str, Refusal), u64> {
        self.state().counts.clone()
    }

    /// Counts a refusal. Returns how many were suppressed before it, if it is to be logged.
    fn count(&self, node: &NodeId, message: &'static str, why: Refusal) -> Option<u64> {
        let (now, mut state) = (Instant::now(), self.state());
        *state.counts.entry((message, why)).or_default() += 1;
        if let Some((last, suppressed)) = state.logged.get_mut(node)
            && now.saturating_duration_since(*last) < LOG_INTERVAL
        {
            *suppressed += 1;
            return None;
        }
        if state.logged.len() >= PEERS_MAX {
            let recent = |at: &Instant| now.saturating_duration_since(*at) < LOG_INTERVAL;
            state.logged.retain(|_, (last, _)| recent(last));
            if state.logged.len() >= PEERS_MAX {
                return None;
            }
        }
        let before = state.logged.insert(node.clone(), (now, 0));
        Some(before.map_or(0, |(_, suppressed)| suppressed))
    }
}

impl Hub {
    /// Counts a message that was refused for what its sender is, and logs it.
    pub(super) fn denied(&self, from: &Origin, message: &'static str, why: Refusal) {
        if !why.is_judgement() {
            return;
        }
        match why.is_denial() {
            true => self.count(|counters| &counters.denied_in),
            false => self.count(|counters| &counters.outdated_in),
        }
        let Some(suppressed) = self.denials.count(&from.peer.node, message, why) else { return };
        let (peer, role) = (&from.peer, from.role);
        if !why.is_denial() {
            tracing::info!(%peer, ?role, message, %why, suppressed, "a message is refused");
            return;
        }
        tracing::warn!(%peer, ?role, message, %why, suppressed, "a message is denied");
        if let Some(observer) = self.denials.observer.get() {
            observer(&Denial { from: from.clone(), message, why, suppressed });
        }
    }
}
