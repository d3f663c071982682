//! Leases: tasks that are executed elsewhere, from their export to their end.

use super::layer::ComputeThread;
use super::pool::{Injected, PoolCore};
use super::slot::{HeldSlot, SlotHeader, State};
use super::sync::{Mutex, lock};

/// The identifier of a lease: an index in the lease table and the generation of that entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseKey {
    /// The index in the table.
    pub index: u32,
    /// The generation: counts the uses of the entry.
    pub generation: u32,
}

/// Counts of the leases of a pool, by how they ended. Each ends once, so `granted` is the sum of
/// the others.
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

type LeaseEntry<W> = Option<(HeldSlot<W>, <W as ComputeThread>::Lease)>;

struct Table<W: ComputeThread> {
    /// The generation of each entry's first use.
    first: u32,
    entries: Vec<(u32, LeaseEntry<W>)>,
    free: Vec<u32>,
    /// Counts without open leases, which are counted on request.
    counts: LeaseCounts,
}

impl<W: ComputeThread> Table<W> {
    fn take(&mut self, key: LeaseKey) -> LeaseEntry<W> {
        let (generation, entry) = self.entries.get_mut(key.index as usize)?;
        if *generation != key.generation {
            return None;
        }
        let entry = entry.take()?;
        *generation = generation.wrapping_add(1);
        self.free.push(key.index);
        Some(entry)
    }

    /// The key of the lease of this slot, if there is one.
    fn find(&self, slot: &SlotHeader<W>) -> Option<LeaseKey> {
        let State::Leased { index } = slot.state.load() else { return None };
        let (generation, entry) = self.entries.get(index as usize)?;
        let (held, _) = entry.as_ref()?;
        let key = LeaseKey { index, generation: *generation };
        std::ptr::eq(held.header(), slot).then_some(key)
    }
}

/// The leases that a pool has granted.
pub struct LeaseTable<W: ComputeThread>(Mutex<Table<W>>);

impl<W: ComputeThread> LeaseTable<W> {
    /// An empty table, whose entries start with the generation `first`.
    pub(super) fn new(first: u32) -> Self {
        let (entries, free) = (Vec::new(), Vec::new());
        Self(Mutex::new(Table { first, entries, free, counts: LeaseCounts::default() }))
    }

    /// The counts of all leases so far.
    pub fn counts(&self) -> LeaseCounts {
        let table = lock(&self.0);
        let open = table.entries.iter().filter(|(_, entry)| entry.is_some()).count() as u64;
        LeaseCounts { open, ..table.counts }
    }

    /// Leases the task of a slot.
    pub fn grant(&self, slot: HeldSlot<W>, lease: W::Lease) -> LeaseKey {
        let mut table = lock(&self.0);
        table.counts.granted += 1;
        let index = table.free.pop().unwrap_or_else(|| {
            let first = table.first;
            table.entries.push((first, None));
            (table.entries.len() - 1) as u32
        });
        // Under the lock, which every party takes before it changes the state again.
        slot.header().state.lease(index);
        let (generation, entry) = &mut table.entries[index as usize];
        *entry = Some((slot, lease));
        LeaseKey { index, generation: *generation }
    }

    /// Removes a lease whose task has ended. `None` if the lease has ended before.
    fn complete(&self, key: LeaseKey) -> LeaseEntry<W> {
        let mut table = lock(&self.0);
        let entry = table.take(key)?;
        table.counts.completed += 1;
        Some(entry)
    }

    /// Removes a lease whose task was returned. `None` if the lease has ended before.
    fn reclaim(&self, key: LeaseKey) -> LeaseEntry<W> {
        let mut table = lock(&self.0);
        let entry = table.take(key)?;
        table.counts.reclaimed += 1;
        Some(entry)
    }

    /// Abandons the slot if it is leased, and returns the lease. The owner, the caller, then holds
    /// the slot again, with its task.
    pub(super) fn abandon(&self, slot: &SlotHeader<W>) -> Option<(LeaseKey, W::Lease)> {
        let mut table = lock(&self.0);
        let key = table.find(slot)?;
        let (held, lease) = table.take(key)?;
        table.counts.abandoned += 1;
        held.header().state.abandon();
        Some((key, lease))
    }

    /// Reads the lease of a slot, if it is leased.
    pub(super) fn read<R>(
        &self,
        slot: &SlotHeader<W>,
        read: impl FnOnce(LeaseKey, &W::Lease) -> R,
    ) -> Option<R> {
        let table = lock(&self.0);
        let key = table.find(slot)?;
        let (_, lease) = table.entries[key.index as usize].1.as_ref()?;
        Some(read(key, lease))
    }

    /// Reads an open lease.
    pub fn get<R>(&self, key: LeaseKey, read: impl FnOnce(&W::Lease) -> R) -> Option<R> {
        let table = lock(&self.0);
        let (generation, entry) = table.entries.get(key.index as usize)?;
        let (_, lease) = entry.as_ref().filter(|_| *generation == key.generation)?;
        Some(read(lease))
    }

    /// Reads the lease at this index, if it is open.
    pub fn at<R>(&self, index: u32, read: impl FnOnce(LeaseKey, &W::Lease) -> R) -> Option<R> {
        let table = lock(&self.0);
        let (generation, entry) = table.entries.get(index as usize)?;
        let (_, lease) = entry.as_ref()?;
        Some(read(LeaseKey { index, generation: *generation }, lease))
    }

    /// Reads all open leases, in the order of their indices.
    pub fn read_all<R>(&self, mut read: impl FnMut(LeaseKey, &W::Lease) -> Option<R>) -> Vec<R> {
        let table = lock(&self.0);
        let entries = table.entries.iter().zip(0..);
        let open = entries.filter_map(|((generation, entry), index)| {
            let (_, lease) = entry.as_ref()?;
            read(LeaseKey { index, generation: *generation }, lease)
        });
        open.collect()
    }
}

impl<W: ComputeThread> PoolCore<W> {
    /// The leases that the pool has granted.
    pub fn leases(&self) -> &LeaseTable<W> {
        &self.leases
    }

    /// Ends a lease with the end of its task, and returns it. `None` for a late duplicate: the
    /// lease has ended.
    pub fn complete(&self, key: LeaseKey, delivery: W::Delivery) -> Option<W::Lease> {
        let (slot, lease) = self.leases.complete(key)?;
        self.deliver(slot, delivery);
        Some(lease)
    }

    /// Requeues a leased task that was returned, or that was never sent. `None` if the lease has
    /// ended.
    pub fn reclaim(&self, key: LeaseKey) -> Option<W::Lease> {
        let (slot, lease) = self.leases.reclaim(key)?;
        self.requeue(slot);
        Some(lease)
    }

    /// Requeues a slot whose lease the caller has removed from the table.
    fn requeue(&self, slot: HeldSlot<W>) {
        let owner = slot.header().owner;
        slot.header().state.requeue();
        self.inject(Injected::Slot(slot));
        self.wake_owner(owner, None);
    }

    /// Writes the end of a task that the caller holds.
    pub fn deliver(&self, slot: HeldSlot<W>, delivery: W::Delivery) {
        let owner = slot.deliver(delivery);
        self.wake_owner(owner, None);
    }
}
