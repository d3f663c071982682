//! Leases: tasks that other nodes execute, from their export to their end.

use springtide_forkjoin::layer::Offer;

use super::remote_task::{DeliveredEnd, Delivery, Export, Lease, LeaseId, wire_name};
use super::shared::PoolState;
use super::tree::{Base, path_at};
use crate::id::{Peer, TaskPath};
use crate::meter::ThreadState;
use crate::work::recover::{ResultLocation, TaskIdentity};

impl PoolState {
    /// Takes the oldest task of some deque for `thief`; with `awaited`, only one at or below that
    /// path. The search starts at deque `start`.
    pub(crate) fn export(
        &self,
        thief: &Peer,
        awaited: Option<&TaskPath>,
        start: usize,
    ) -> Option<Export> {
        self.take_oldest(start, |slot| {
            if slot.about().is_local {
                return Offer::Refused(slot);
            }
            let path = path_at(slot.place());
            if awaited.is_some_and(|awaited| !path.is_at_or_below(awaited)) {
                return Offer::Refused(slot);
            }
            slot.export();
            let about = slot.about();
            match slot.encode() {
                Ok(encoded) => {
                    let task = encoded.identity(path, &wire_name(about.name, about.batch));
                    let lease = Lease { task: task.clone(), thief: thief.clone() };
                    let lease = self.leases().grant(slot, lease).into();
                    Offer::Taken(Export { lease, task, encoded })
                }
                Err(failure) => {
                    self.deliver(slot, Delivery::new(Err(failure)));
                    Offer::Skipped
                }
            }
        })
    }

    /// Ends a lease with an outcome and returns the task. `None` for a late duplicate: the lease
    /// has ended.
    pub(crate) fn complete_lease(&self, id: LeaseId, end: DeliveredEnd) -> Option<TaskIdentity> {
        self.complete(id.into(), Delivery::new(end)).map(|lease| lease.task)
    }

    /// Reclaims all leased tasks that `lost` matches. Returns them with their holders.
    pub(crate) fn reclaim_from(
        &self,
        lost: impl Fn(&Peer, &TaskIdentity) -> bool,
    ) -> Vec<(Peer, TaskIdentity)> {
        let of_lost = |key, lease: &Lease| lost(&lease.thief, &lease.task).then_some(key);
        let keys = self.leases().read_all(of_lost);
        let leases = keys.into_iter().filter_map(|key| self.reclaim(key));
        leases.map(|Lease { task, thief }| (thief, task)).collect()
    }

    /// The task under an open lease.
    pub(crate) fn leased_task(&self, id: LeaseId) -> Option<TaskIdentity> {
        self.leases().get(id.into(), |lease| lease.task.clone())
    }

    /// Whether this lease is open.
    pub(crate) fn is_leased(&self, id: LeaseId) -> bool {
        self.leases().get(id.into(), |_| ()).is_some()
    }

    /// The leased descendants of the task at `path`, with their holders.
    pub(crate) fn leased_below(&self, path: &TaskPath) -> Vec<ResultLocation> {
        self.leases().read_all(|_, lease| {
            let leased = &lease.task.path;
            (leased != path && leased.is_at_or_below(path)).then(|| lease.place())
        })
    }

    /// The holder of the innermost leased task that is at or above `path` and whose path is longer
    /// than `longer`.
    pub(crate) fn leased_above(&self, path: &TaskPath, longer: Option<usize>) -> Option<Peer> {
        let above = self.leases().read_all(|_, lease| {
            let leased = &lease.task.path;
            path.is_at_or_below(leased).then(|| (leased.0.len(), lease.thief.clone()))
        });
        let (length, thief) = above.into_iter().max_by_key(|(length, _)| *length)?;
        (Some(length) > longer).then_some(thief)
    }

    /// The open leases of a node, with the tasks' paths.
    pub(crate) fn leased_to(&self, thief: &Peer) -> Vec<(LeaseId, TaskPath)> {
        self.leases().read_all(|key, lease| {
            (lease.thief == *thief).then(|| (key.into(), lease.task.path.clone()))
        })
    }

    /// Whether the thread that runs the tree's top task is computing: that task, or one that it
    /// took while it waits.
    pub(crate) fn is_computing(&self, base: &Base) -> bool {
        let thread = base.thread().and_then(|thread| self.threads().get(thread as usize));
        // A benchmark is short, so it counts as computing.
        let state = thread.map(|thread| thread.layer.account.state());
        matches!(state, Some(ThreadState::Working | ThreadState::Bench))
    }

    /// The leases that threads wait for, with the tasks' paths and holders. Idle threads steal from
    /// these holders first.
    pub(crate) fn awaited(&self) -> Vec<(LeaseId, TaskPath, Peer)> {
        let awaited = self.threads().iter().filter_map(|thread| {
            let number = thread.layer.awaits.load(std::sync::atomic::Ordering::Acquire);
            let index = number.checked_sub(1)?;
            self.leases()
                .at(index, |key, lease| (key.into(), lease.task.path.clone(), lease.thief.clone()))
        });
        awaited.collect()
    }
}
