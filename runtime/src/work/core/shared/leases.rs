//! Shared, continued: tasks that other nodes run, from their export to their end.

use super::*;

struct Lease {
    slot: SlotPointer,
    task: Identity,
    thief: Peer,
}

/// Every lease that was ever granted here, and how it ended. Each ends once: what was granted is the sum of the others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeaseBook {
    /// Granted to another node, or to this one for a task of its own that it runs for another.
    pub granted: u64,
    /// Ended by a result or a failure.
    pub completed: u64,
    /// Taken back: the task was not sent, came back, or its holder was lost.
    pub reclaimed: u64,
    /// Given up, for nobody wants the result.
    pub abandoned: u64,
    /// Not ended yet.
    pub open: u64,
}

impl LeaseBook {
    /// Whether each lease ended once, or not yet.
    pub fn balances(&self) -> bool {
        self.granted == self.completed + self.reclaimed + self.abandoned + self.open
    }
}

/// The leases that a pool has granted.
#[derive(Default)]
pub(super) struct Leases {
    /// The generation of every place's first use. No two lives of a node have the same: what is said of a lease of a former life
    /// must not be taken for a word about this one's.
    first: u32,
    entries: Vec<(u32, Option<Lease>)>,
    free: Vec<u32>,
    /// Without those that are open, which are counted when somebody asks.
    book: LeaseBook,
}

impl Leases {
    /// None yet, in this life of the node.
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

impl Shared {
    /// Takes the oldest task of some deque for `thief`; with `awaited`, only one at or below that path. `start` says
    /// which deque is looked at first.
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
            // SAFETY: the pointer was just taken out of the deque or the injector: the slot is in our hands.
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
                    // SAFETY: as above; nothing of the slot is used afterwards.
                    unsafe { VTable::deliver(slot, Err(failure)) };
                    self.wake_owner(owner, u32::MAX);
                }
            }
        }
        None
    }

    /// All leases so far, and how they ended.
    pub(crate) fn lease_book(&self) -> LeaseBook {
        let leases = lock(&self.leases);
        let open = leases.entries.iter().filter(|(_, lease)| lease.is_some()).count() as u64;
        LeaseBook { open, ..leases.book }
    }

    pub(super) fn lease(&self, slot: NonNull<Header>, task: Identity, thief: Peer) -> LeaseId {
        let mut leases = lock(&self.leases);
        leases.book.granted += 1;
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
        // SAFETY: the slot is in our hands until the state says `LEASED`, and the table's lock is held until after that.
        let header = unsafe { slot.as_ref() };
        header.holder.store(index, Ordering::Relaxed);
        header.state.store(state::LEASED, Ordering::SeqCst);
        id
    }

    /// A leased task has ended; which it was. `None` if the lease is not, or no longer, there: a late duplicate.
    pub(crate) fn complete(&self, id: LeaseId, delivery: Delivery) -> Option<Identity> {
        let lease = {
            let mut leases = lock(&self.leases);
            let lease = leases.take(id)?;
            leases.book.completed += 1;
            lease
        };
        let slot = lease.slot.0;
        // SAFETY: we took the lease out of the table, so the slot is in our hands.
        let owner = unsafe { slot.as_ref() }.owner;
        // SAFETY: as above; nothing of the slot is used afterwards.
        unsafe { VTable::deliver(slot, delivery) };
        self.wake_owner(owner, u32::MAX);
        Some(lease.task)
    }

    /// A leased task comes back unfinished (returned by the thief, or never sent): queued again. False if the lease is
    /// not there.
    pub(crate) fn reclaim(&self, id: LeaseId) -> bool {
        let lease = {
            let mut leases = lock(&self.leases);
            let Some(lease) = leases.take(id) else { return false };
            leases.book.reclaimed += 1;
            lease
        };
        self.requeue(lease.slot);
        true
    }

    /// Takes back everything leased to a thief that `lost` matches. Returns what it was, and who had it.
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
            leases.book.reclaimed += taken.len() as u64;
        }
        let requeued = taken.into_iter().map(|lease| {
            let Lease { slot, task, thief } = lease;
            self.requeue(slot);
            (thief, task)
        });
        requeued.collect()
    }

    /// The slot must have been leased, and its lease taken out of the table by the caller.
    fn requeue(&self, slot: SlotPointer) {
        // SAFETY: the lease was taken out of the table, so the slot is in our hands; it goes into the injector whole.
        let header = unsafe { slot.0.as_ref() };
        let owner = header.owner;
        header.state.store(state::QUEUED, Ordering::SeqCst);
        self.inject(Injected::Slot(slot));
        self.wake_owner(owner, u32::MAX);
    }

    /// The owner gives up a leased slot. True if it was leased; then it is the owner's again, with its task in it.
    pub(crate) fn abandon(&self, slot: NonNull<Header>) -> bool {
        // SAFETY: the caller is the owner, in whose frame the slot is.
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
        leases.book.abandoned += u64::from(lease.is_some());
        // Before the state: until then the slot's tree, and with it its base, is alive for sure.
        // SAFETY: the slot is in the caller's frame, so those above are alive.
        let base = unsafe { header.base() };
        let leaves = self.halted(|| base) == Some(Halt::Leave);
        if let Some(Lease { task, thief, .. }) = &lease
            && leaves
        {
            let place = Place { identity: task.clone(), holder: thief.clone() };
            base.goes_on(place);
        }
        header.state.store(state::ABANDONED, Ordering::Release);
        drop(leases);
        match lease {
            Some(lease) if leaves => self.host.disowned(&base.path, &lease.thief, id, lease.task),
            Some(lease) => self.host.abandoned(&lease.thief, id),
            None => {}
        }
        true
    }

    /// The task under a lease that is still in the table.
    pub(crate) fn leased_task(&self, id: LeaseId) -> Option<Identity> {
        let leases = lock(&self.leases);
        let (generation, lease) = leases.entries.get(id.index as usize)?;
        lease.as_ref().filter(|_| *generation == id.generation).map(|lease| lease.task.clone())
    }

    /// Whether this lease is still in the table.
    pub(crate) fn is_leased(&self, id: LeaseId) -> bool {
        let leases = lock(&self.leases);
        let entry = leases.entries.get(id.index as usize);
        entry.is_some_and(|(generation, lease)| *generation == id.generation && lease.is_some())
    }

    /// The leased tasks inside one, and who has them.
    pub(crate) fn leased_below(&self, path: &TaskPath) -> Vec<Place> {
        let leases = lock(&self.leases);
        let all = leases.entries.iter().filter_map(|(_, lease)| lease.as_ref());
        let inside = all.filter(|l| l.task.path != *path && l.task.path.is_at_or_below(path));
        inside
            .map(|lease| Place { identity: lease.task.clone(), holder: lease.thief.clone() })
            .collect()
    }

    /// Who has the innermost leased task that is this one or holds it, of those with paths longer than this.
    pub(crate) fn leased_above(&self, path: &TaskPath, longer: Option<usize>) -> Option<Peer> {
        let leases = lock(&self.leases);
        let all = leases.entries.iter().filter_map(|(_, lease)| lease.as_ref());
        let above = all.filter(|lease| path.is_at_or_below(&lease.task.path));
        let innermost = above.max_by_key(|lease| lease.task.path.0.len())?;
        (Some(innermost.task.path.0.len()) > longer).then(|| innermost.thief.clone())
    }

    /// What is leased to a node: under which leases, and the tasks' paths.
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

    /// Whether the thread that runs a tree's top task computes something: that task, or what it took on top of a wait.
    pub(crate) fn advances(&self, base: &Base) -> bool {
        let thread = base.thread().and_then(|thread| self.threads.get(thread as usize));
        // A benchmark ends soon.
        let state = thread.map(|thread| thread.account.state());
        matches!(state, Some(ThreadState::Working | ThreadState::Bench))
    }

    /// The leases that threads wait for, with the tasks' paths and their holders, from which idle
    /// threads steal first.
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

    /// The path of a slot that waits under a lease, if it does.
    pub(crate) fn leased_index(&self, slot: NonNull<Header>) -> Option<(u32, Peer, TaskPath)> {
        // SAFETY: the caller is the owner, in whose frame the slot is.
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
