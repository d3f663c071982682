//! Counts of refused messages by name and reason, and a log with a limited rate per peer.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::error::Refusal;
use super::sender::MessageOrigin;
use crate::id::NodeId;

/// Interval in which at most one line per peer is logged.
const LOG_INTERVAL: Duration = Duration::from_secs(10);
/// Maximum number of peers whose last line is remembered.
const PEERS_MAX: usize = 1024;

/// A refused message of another node.
#[derive(Clone, Debug)]
pub struct Denial {
    /// Sender of the message.
    pub from: MessageOrigin,
    /// Name of the message.
    pub message: &'static str,
    /// Reason of the refusal.
    pub why: Refusal,
    /// Number of refusals of the same peer since its last logged line.
    pub suppressed: u64,
}

type Observer = Box<dyn Fn(&Denial) + Send + Sync>;

#[derive(Default)]
pub(super) struct Denials {
    state: Mutex<DenialCounts>,
    observer: OnceLock<Observer>,
}

#[derive(Default)]
struct DenialCounts {
    counts: BTreeMap<(&'static str, Refusal), u64>,
    /// By peer: the time of its last logged line, and the number of refusals since then.
    logged: BTreeMap<NodeId, (Instant, u64)>,
}

impl Denials {
    fn state(&self) -> MutexGuard<'_, DenialCounts> {
        // Each change is a single step, so a panic leaves the state consistent.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn observe(&self, observer: Observer) {
        // Only the first observer is kept.
        let _ = self.observer.set(observer);
    }

    pub(super) fn counts(&self) -> BTreeMap<(&'static str, Refusal), u64> {
        self.state().counts.clone()
    }

    /// Counts a refusal. If it is to be logged, returns the number of suppressed ones before it.
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

    /// Counts a message that was refused because of its sender's rights, and logs it.
    pub(super) fn record(&self, from: &MessageOrigin, message: &'static str, why: Refusal) {
        let Some(suppressed) = self.count(&from.peer.node, message, why) else { return };
        let (peer, role) = (&from.peer, from.role);
        if !why.is_denial() {
            tracing::info!(%peer, ?role, message, %why, suppressed, "a message is refused");
            return;
        }
        tracing::warn!(%peer, ?role, message, %why, suppressed, "a message is denied");
        if let Some(observer) = self.observer.get() {
            observer(&Denial { from: from.clone(), message, why, suppressed });
        }
    }
}
