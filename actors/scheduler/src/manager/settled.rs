//! Polls that change nothing.
//!
//! Sites are polled at intervals, even without changes. A cluster is *settled* after a poll that
//! repeated the last figures and had no effect. Until another event, further such polls have no
//! effect, either, and the manager ignores them. The regular scans of the queue in this time would
//! repeat the last one. They are counted as tries when the next event arrives.

use std::collections::BTreeSet;
use std::fmt;

use springtide_base::id::ClusterId;
use tokio::time::Instant;

use super::{Manager, ManagerEvent};

/// The settled clusters, if there are any.
#[derive(Default)]
pub(super) struct SettledClusters(pub Option<Settled>);

/// Prints nothing: the clusters only save work, and are not a state of the manager.
impl fmt::Debug for SettledClusters {
    fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
        Ok(())
    }
}

pub(super) struct Settled {
    clusters: BTreeSet<ClusterId>,
    /// Time from which polls may have an effect, even without another event; absent: never.
    pub until: Option<Instant>,
}

impl Manager {
    /// Whether polls of all clusters have no effect if they repeat the last figures, until another
    /// event or [`due`](Self::due).
    pub fn is_settled(&self) -> bool {
        self.settled.0.as_ref().is_some_and(|settled| settled.clusters.len() == self.clusters.len())
    }

    /// Whether an event repeats what the manager knows of a cluster.
    pub(super) fn is_known(&self, event: &ManagerEvent) -> bool {
        match event {
            ManagerEvent::HostsPolled { cluster, free, whole } => self
                .clusters
                .get(cluster)
                .is_some_and(|known| known.free_hosts == *free && known.whole_hosts == *whole),
            ManagerEvent::CapacityLimited { cluster, reason } => {
                self.clusters.get(cluster).is_some_and(|known| known.limited == *reason)
            }
            _ => false,
        }
    }

    /// Whether an event has no effect at this time.
    pub(super) fn changes_nothing(&self, event: &ManagerEvent, now: Instant) -> bool {
        let Some(settled) = &self.settled.0 else { return false };
        if settled.until.is_some_and(|until| until <= now) {
            return false;
        }
        match event {
            ManagerEvent::Polled { cluster, size, others, whole } => {
                settled.clusters.contains(cluster)
                    && self.clusters.get(cluster).is_some_and(|known| {
                        let figures = (*size, *others, (*whole).max(*size));
                        (known.size, known.others, known.whole) == figures
                    })
            }
            ManagerEvent::Tick => true,
            _ => false,
        }
    }

    /// Ends the settled time before an event that may have an effect. After a poll, the caller
    /// decides ([`settle`](Self::settle)).
    pub(super) fn unsettle(&mut self, event: &ManagerEvent, now: Instant) {
        let Some(settled) = self.settled.0.take() else { return };
        self.count_repeated_scans(settled.until.map_or(now, |until| until.min(now)));
        if matches!(event, ManagerEvent::Polled { .. }) {
            self.settled.0 =
                Some(settled).filter(|settled| settled.until.is_none_or(|at| at > now));
        }
    }

    /// Counts the regular scans before a time, which would repeat the last one.
    pub(super) fn count_repeated_scans(&mut self, until: Instant) {
        let Some(next) = self.next_scan.filter(|next| *next < until) else { return };
        let interval = self.settings.scan_interval;
        let passed = (until - next).as_nanos().saturating_sub(1);
        let count = passed.checked_div(interval.as_nanos()).unwrap_or(0) + 1;
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        self.leave_out_scans(next + interval.saturating_mul(count - 1), count);
    }

    /// Processes the end of a poll. `had_effect` covers the figures, the actions and the scan.
    pub(super) fn settle(&mut self, cluster: ClusterId, had_effect: bool) {
        let may_differ = had_effect
            || self.dirty
            || !self.rounds.is_empty()
            || self.has_reservations()
            || self.is_start_due()
            || self.active_jobs().any(|(_, job)| job.want.is_some());
        if may_differ || self.examines_all() {
            self.settled.0 = None;
            return;
        }
        let planned = self.planned_starts.values().map(|start| start.at).min();
        let planned = planned.and_then(|at| self.instant_of(at));
        let until = self.due_of_jobs().into_iter().chain(planned).chain(self.calendar_due()).min();
        let mut clusters =
            self.settled.0.take().map(|settled| settled.clusters).unwrap_or_default();
        clusters.insert(cluster);
        self.settled.0 = Some(Settled { clusters, until });
    }

    /// Whether the manager takes no short cut, for comparison.
    pub(super) fn examines_all(&self) -> bool {
        #[cfg(test)]
        return self.examines_all;
        #[cfg(not(test))]
        false
    }
}
