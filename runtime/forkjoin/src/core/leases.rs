//! Leases: tasks that other nodes execute, from their export to their end.

use super::*;

struct Lease {
    slot: SlotPointer,
    task: Identity,
    thief: Peer,
}

/// Counts of the leases granted by a pool, by how they ended. Each ends once, so `granted` is the
/// sum of the others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeaseCounts {
    /// Granted to another node, or to this node for a task of its own that it runs for another.
    pub granted: u64,
    /// Ended by a result or a failure.
    pub completed: u64,
    /// Reclaimed: the task was not sent, was returned, or its holder was lost.
    pub reclaimed: u64,
    /// Abandoned by the owner, which no longer needs the result.
    pub abandoned: u64,
    /// Still open: not ended.
    pub open: u64,
}

impl LeaseCounts {
    /// Whether the counts of ended and open leases add up to the granted ones.
    pub fn balances(&self) -> bool {
        self.granted == self.completed + self.reclaimed + self.abandoned + self.open
    }
}

/// The leases that a pool has granted.
#[derive(Default)]
pub(super) struct Leases {
    /// The generation of each entry's first use. It differs between incarnations of a node, so a
    /// message about a lease of an earlier one matches no current lease.
    first: u32,
    entries: Vec<(u32, Option<Lease>)>,
    free: Vec<u32>,
    /// Counts without open leases, which are counted on request.
    counts: LeaseCounts,
}

impl Leases {
    /// An empty table for this incarnation of the node.
    pub(super) fn of(first: u32) -> Self {
        Self { first, ..Self::default() }
    }

    fn take(&mut self, id: LeaseId) -> Option<Lease> {
        let (generation, lease) = self.entries.get_mut(id.index as usize)?;
        if *generation != id.generation {
            return None;
        }
        let lease = lease.take()?;
        *generation = generation.wrapping_add(1);
        self.free.push(id.index);
        Some(lease)
    }
}

impl PoolState {
    /// Takes the oldest task of some deque for `thief`; with `awaited`, only one at or below that
    /// path. The search starts at deque `start`.
    pub(crate) fn export(
        &self,
        thief: &Peer,
        awaited: Option<&TaskPath>,
        start: usize,
    ) -> Option<Export> {
        let threads = self.threads.len();
        let returned = || {
            self.take_injected(|work| matches!(work, Injected::Slot(_))).map(|work| match work {
                Injected::Slot(slot) => slot.0,
                _ => unreachable!("only slots fit"),
            })
        };
        let stolen = |at: usize| loop {
            match self.threads[(start + at) % threads].deque.steal() {
                Steal::Taken(slot) => return Some(slot),
                Steal::Lost => {}
                Steal::Empty => return None,
            }
        };
        for at in 0..=threads {
            let found = if at == 0 { returned() } else { stolen(at - 1) };
            let Some(slot) = found else { continue };
            // SAFETY: the pointer was just taken out of the deque or the injector, so this thread
            // holds the slot.
            let header = unsafe { slot.as_ref() };
            // SAFETY: as above.
            let path = unsafe { header.path() };
            if awaited.is_some_and(|awaited| !path.is_at_or_below(awaited)) {
                self.inject(Injected::Slot(SlotPointer(slot)));
                continue;
            }
            header.state.store(state::EXPORTING, Ordering::Relaxed);
            let (vtable, owner) = (header.vtable, header.owner);
            // SAFETY: as above.
            match unsafe { VTable::encode(slot) } {
                Ok(encoded) => {
                    let name = wire_name(vtable.name, vtable.batch);
                    let task = encoded.identity(path, &name);
                    let lease = self.lease(slot, task.clone(), thief.clone());
                    return Some(Export { lease, task, encoded });
                }
                Err(failure) => {
                    // SAFETY: as above; the slot is not accessed afterwards.
                    unsafe { VTable::deliver(slot, Err(failure)) };
                    self.wake_owner(owner, u32::MAX);
                }
            }
        }
        None
    }

    /// The counts of all leases so far.
    pub(crate) fn lease_counts(&self) -> LeaseCounts {
        let leases = lock(&self.leases);
        let open = leases.entries.iter().filter(|(_, lease)| lease.is_some()).count() as u64;
        LeaseCounts { open, ..leases.counts }
    }

    pub(super) fn lease(&self, slot: NonNull<Header>, task: Identity, thief: Peer) -> LeaseId {
        let mut leases = lock(&self.leases);
        leases.counts.granted += 1;
        let lease = Some(Lease { slot: SlotPointer(slot), task, thief });
        let index = match leases.free.pop() {
            Some(index) => {
                leases.entries[index as usize].1 = lease;
                index
            }
            None => {
                let first = leases.first;
                leases.entries.push((first, lease));
                (leases.entries.len() - 1) as u32
            }
        };
        let id = LeaseId { index, generation: leases.entries[index as usize].0 };
        // SAFETY: this thread holds the slot until the state is `LEASED`, and it holds the table's
        // lock until after that.
        let header = unsafe { slot.as_ref() };
        header.holder.store(index, Ordering::Relaxed);
        header.state.store(state::LEASED, Ordering::SeqCst);
        id
    }

    /// Ends a lease with an outcome and returns the task. `None` for a late duplicate: the lease
    /// has ended.
    pub(crate) fn complete(&self, id: LeaseId, delivery: Delivery) -> Option<Identity> {
        let lease = {
            let mut leases = lock(&self.leases);
            let lease = leases.take(id)?;
            leases.counts.completed += 1;
            lease
        };
        let slot = lease.slot.0;
        // SAFETY: this thread removed the lease from the table, so it holds the slot.
        let owner = unsafe { slot.as_ref() }.owner;
        // SAFETY: as above; the slot is not accessed afterwards.
        unsafe { VTable::deliver(slot, delivery) };
        self.wake_owner(owner, u32::MAX);
        Some(lease.task)
    }

    /// Requeues a leased task that the thief returned, or that was never sent. False if the lease
    /// has ended.
    pub(crate) fn reclaim(&self, id: LeaseId) -> bool {
        let lease = {
            let mut leases = lock(&self.leases);
            let Some(lease) = leases.take(id) else { return false };
            leases.counts.reclaimed += 1;
            lease
        };
        self.requeue(lease.slot);
        true
    }

    /// Reclaims all tasks leased to thieves that `lost` matches. Returns them with their holders.
    pub(crate) fn reclaim_from(&self, lost: impl Fn(&Peer) -> bool) -> Vec<(Peer, Identity)> {
        let mut taken = Vec::new();
        {
            let mut leases = lock(&self.leases);
            for index in 0..leases.entries.len() {
                let (generation, lease) = &leases.entries[index];
                if lease.as_ref().is_some_and(|lease| lost(&lease.thief)) {
                    let id = LeaseId { index: index as u32, generation: *generation };
                    taken.extend(leases.take(id));
                }
            }
            leases.counts.reclaimed += taken.len() as u64;
        }
        let requeued = taken.into_iter().map(|lease| {
            let Lease { slot, task, thief } = lease;
            self.requeue(slot);
            (thief, task)
        });
        requeued.collect()
    }

    /// Requeues a slot whose lease the caller has removed from the table.
    fn requeue(&self, slot: SlotPointer) {
        // SAFETY: the lease was removed from the table, so this thread holds the slot, until it is
        // in the injector.
        let header = unsafe { slot.0.as_ref() };
        let owner = header.owner;
        header.state.store(state::QUEUED, Ordering::SeqCst);
        self.inject(Injected::Slot(slot));
        self.wake_owner(owner, u32::MAX);
    }

    /// Abandons a leased slot. Returns true if it was leased; the owner then holds it again, with
    /// its task.
    pub(crate) fn abandon(&self, slot: NonNull<Header>) -> bool {
        // SAFETY: the caller is the owner, and the slot is in its frame.
        let header = unsafe { slot.as_ref() };
        let mut leases = lock(&self.leases);
        if header.state.load(Ordering::Acquire) != state::LEASED {
            return false;
        }
        let index = header.holder.load(Ordering::Relaxed);
        let Some((generation, Some(lease))) = leases.entries.get(index as usize) else {
            return false;
        };
        if lease.slot.0 != slot {
            return false;
        }
        let id = LeaseId { index, generation: *generation };
        let lease = leases.take(id);
        leases.counts.abandoned += u64::from(lease.is_some());
        // This precedes the store of the state: until then the slot's tree and its base are
        // certainly alive.
        // SAFETY: the slot is in the caller's frame, so the frames above are alive.
        let base = unsafe { header.base() };
        let leaves = self.halted(|| base) == Some(Halt::Leave);
        if let Some(Lease { task, thief, .. }) = &lease
            && leaves
        {
            let place = Place { identity: task.clone(), holder: thief.clone() };
            base.add_leased(place);
        }
        header.state.store(state::ABANDONED, Ordering::Release);
        drop(leases);
        match lease {
            Some(lease) if leaves => {
                self.observer.disowned(&base.path, &lease.thief, id, lease.task)
            }
            Some(lease) => self.observer.abandoned(&lease.thief, id),
            None => {}
        }
        true
    }

    /// The task under an open lease.
    pub(crate) fn leased_task(&self, id: LeaseId) -> Option<Identity> {
        let leases = lock(&self.leases);
        let (generation, lease) = leases.entries.get(id.index as usize)?;
        lease.as_ref().filter(|_| *generation == id.generation).map(|lease| lease.task.clone())
    }

    /// Whether this lease is open.
    pub(crate) fn is_leased(&self, id: LeaseId) -> bool {
        let leases = lock(&self.leases);
        let entry = leases.entries.get(id.index as usize);
        entry.is_some_and(|(generation, lease)| *generation == id.generation && lease.is_some())
    }

    /// The leased descendants of the task at `path`, with their holders.
    pub(crate) fn leased_below(&self, path: &TaskPath) -> Vec<Place> {
        let leases = lock(&self.leases);
        let all = leases.entries.iter().filter_map(|(_, lease)| lease.as_ref());
        let inside = all.filter(|l| l.task.path != *path && l.task.path.is_at_or_below(path));
        inside
            .map(|lease| Place { identity: lease.task.clone(), holder: lease.thief.clone() })
            .collect()
    }

    /// The holder of the innermost leased task that is at or above `path` and whose path is longer
    /// than `longer`.
    pub(crate) fn leased_above(&self, path: &TaskPath, longer: Option<usize>) -> Option<Peer> {
        let leases = lock(&self.leases);
        let all = leases.entries.iter().filter_map(|(_, lease)| lease.as_ref());
        let above = all.filter(|lease| path.is_at_or_below(&lease.task.path));
        let innermost = above.max_by_key(|lease| lease.task.path.0.len())?;
        (Some(innermost.task.path.0.len()) > longer).then(|| innermost.thief.clone())
    }

    /// The open leases of a node, with the tasks' paths.
    pub(crate) fn leased_to(&self, thief: &Peer) -> Vec<(LeaseId, TaskPath)> {
        let leases = lock(&self.leases);
        let entries = leases.entries.iter().enumerate();
        entries
            .filter_map(|(index, (generation, lease))| {
                let lease = lease.as_ref().filter(|lease| lease.thief == *thief)?;
                let id = LeaseId { index: index as u32, generation: *generation };
                Some((id, lease.task.path.clone()))
            })
            .collect()
    }

    /// Whether the thread that runs the tree's top task is computing: that task, or one that it
    /// took while it waits.
    pub(crate) fn is_computing(&self, base: &Base) -> bool {
        let thread = base.thread().and_then(|thread| self.threads.get(thread as usize));
        // A benchmark is short, so it counts as computing.
        let state = thread.map(|thread| thread.account.state());
        matches!(state, Some(ThreadState::Working | ThreadState::Bench))
    }

    /// The leases that threads wait for, with the tasks' paths and holders. Idle threads steal from
    /// these holders first.
    pub(crate) fn awaited(&self) -> Vec<(LeaseId, TaskPath, Peer)> {
        let leases = lock(&self.leases);
        let awaited = self.threads.iter().map(|thread| thread.awaits.load(Ordering::Acquire));
        awaited
            .filter_map(|number| {
                let index = number.checked_sub(1)?;
                let (generation, lease) = leases.entries.get(index as usize)?;
                let lease = lease.as_ref()?;
                let id = LeaseId { index, generation: *generation };
                Some((id, lease.task.path.clone(), lease.thief.clone()))
            })
            .collect()
    }

    /// The index, holder and path of a slot's lease, if it is leased.
    pub(crate) fn leased_index(&self, slot: NonNull<Header>) -> Option<(u32, Peer, TaskPath)> {
        // SAFETY: the caller is the owner, and the slot is in its frame.
        let header = unsafe { slot.as_ref() };
        let leases = lock(&self.leases);
        if header.state.load(Ordering::Acquire) != state::LEASED {
            return None;
        }
        let index = header.holder.load(Ordering::Relaxed);
        let lease = leases.entries.get(index as usize)?.1.as_ref()?;
        (lease.slot.0 == slot).then(|| (index, lease.thief.clone(), lease.task.path.clone()))
    }
}
