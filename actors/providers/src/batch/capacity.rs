//! The capacity of a cluster: its machines, less what other users hold.
//!
//! Pure.

use std::collections::{BTreeMap, BTreeSet};

use super::system::QueuedStub;
use crate::Capacity;

/// A machine as the batch system lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct BatchMachine {
    pub name: String,
    /// Number of processors in use.
    pub busy: u32,
    /// Number of processors that are free.
    pub free: u32,
    /// Memory in MiB, if it is listed.
    pub memory: Option<u64>,
    /// Whether it takes new batch jobs.
    pub usable: bool,
}

/// The requirements of one stub.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StubSize {
    /// Number of processors of it.
    pub processors: u32,
    /// Memory in MiB; none or 0 if it requests none.
    pub memory: Option<u64>,
}

/// The number of processors that a running stub has at most; none if no stub shows it.
///
/// A batch system may give more than was requested, such as whole cores or hosts.
pub(super) fn processors_given<'a>(held: impl IntoIterator<Item = &'a QueuedStub>) -> Option<u32> {
    let running = held.into_iter().filter(|job| job.state.occupies());
    running.filter_map(|job| job.processors).max()
}

/// The capacity in stubs. `held` are the stubs of this provider; all other use is that of others.
///
/// `held` must have been listed before the machines. A stub that started in between then counts as
/// another user's, and no processor is promised twice. The memory in use of others is unknown: a
/// stub that finds too little waits.
pub(super) fn capacity<'a>(
    machines: &[BatchMachine],
    held: impl IntoIterator<Item = &'a QueuedStub>,
    size: StubSize,
) -> Capacity {
    let mut stubs: BTreeMap<&str, u32> = BTreeMap::new();
    let mut seen = BTreeSet::new();
    let processors = size.processors.max(1);
    for job in held {
        if job.state.occupies() && seen.insert(&job.id) {
            *stubs.entry(job.host.as_str()).or_default() += 1;
        }
    }
    let memory = size.memory.filter(|memory| *memory > 0);
    let mut capacity = Capacity::default();
    for machine in machines {
        let ours = stubs.get(machine.name.as_str()).copied().unwrap_or(0);
        let max = match (machine.memory, memory) {
            (Some(all), Some(each)) => u32::try_from(all / each).unwrap_or(u32::MAX),
            _ => u32::MAX,
        };
        // Stubs continue on a machine that takes no new ones: they are its whole capacity.
        let (size, free) = if machine.usable {
            let total = machine.busy.saturating_add(machine.free) / processors;
            (total.min(max).max(ours), (machine.free / processors).min(max.saturating_sub(ours)))
        } else {
            (ours, 0)
        };
        capacity.size = capacity.size.saturating_add(size);
        let others = size.saturating_sub(ours).saturating_sub(free);
        capacity.others = capacity.others.saturating_add(others);
    }
    capacity
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::system::{BatchJobId, StubState};
    use super::*;

    fn machine(name: &str, busy: u32, free: u32, usable: bool) -> BatchMachine {
        BatchMachine { name: name.to_owned(), busy, free, memory: Some(4096), usable }
    }

    fn stub(id: u64, host: &str, processors: u32) -> QueuedStub {
        QueuedStub {
            id: BatchJobId::new(&id.to_string()).unwrap(),
            state: StubState::Running,
            host: host.to_owned(),
            processors: Some(processors),
            ..QueuedStub::default()
        }
    }

    fn size(processors: u32, memory: Option<u64>) -> StubSize {
        StubSize { processors, memory }
    }

    #[test]
    fn processors_of_others_are_counted() {
        let both = [machine("n1", 5, 3, true), machine("n2", 8, 0, true)];
        let held = [stub(1, "n1", 2), stub(1, "n1", 2), stub(2, "n2", 2)];
        // n1: two of its eight are ours, three are others', and one more stub of two fits.
        assert_eq!(capacity(&both, &held, size(2, None)), Capacity { size: 8, others: 5 });
        // It takes no new jobs, but the stub continues.
        let closed = [machine("n1", 5, 0, false)];
        assert_eq!(capacity(&closed, &held, size(2, None)), Capacity { size: 1, others: 0 });
    }

    #[test]
    fn whole_cores_are_counted() {
        // Each core has two threads, and a job of one thread gets both.
        let cores = [machine("n1", 8, 0, true)];
        let held: Vec<QueuedStub> = (1..=4).map(|id| stub(id, "n1", 2)).collect();
        assert_eq!(processors_given(&held), Some(2));
        assert_eq!(capacity(&cores, &held, size(2, None)), Capacity { size: 4, others: 0 });
        let waits = QueuedStub { state: StubState::Pending, ..stub(5, "", 9) };
        assert_eq!(processors_given([&waits]), None);
    }

    #[test]
    fn memory_limits_stubs() {
        let machines = [machine("n1", 2, 6, true), machine("n2", 0, 0, false)];
        assert_eq!(capacity(&machines, [], size(1, None)), Capacity { size: 8, others: 2 });
        assert_eq!(capacity(&machines, [], size(3, None)), Capacity { size: 2, others: 0 });
        let memory = Some(1300);
        assert_eq!(capacity(&machines, [], size(1, memory)), Capacity { size: 3, others: 0 });
        let one = [stub(1, "n1", 1)];
        assert_eq!(capacity(&machines, &one, size(1, memory)), Capacity { size: 3, others: 0 });
        assert_eq!(capacity(&machines, [], size(1, Some(5000))), Capacity::default());
    }

    proptest! {
        #[test]
        fn free_processors_are_never_exceeded(
            seen in prop::collection::vec((0u32..20, 0u32..20, any::<bool>()), 0..5),
            on in prop::collection::vec(0usize..5, 0..20),
            threads in 1u32..4,
        ) {
            let name = |i: usize| format!("n{i}");
            let machines: Vec<BatchMachine> = seen
                .iter()
                .enumerate()
                .map(|(i, &(busy, free, usable))| machine(&name(i), busy, free, usable))
                .collect();
            let held: Vec<QueuedStub> =
                on.iter().enumerate().map(|(id, &i)| stub(id as u64, &name(i), threads)).collect();
            let found = capacity(&machines, &held, size(threads, Some(u64::from(threads))));
            let there = held.iter().filter(|job| machines.iter().any(|m| m.name == job.host));
            let there = there.count() as u32;
            let free: u32 = machines.iter().filter(|m| m.usable).map(|m| m.free / threads).sum();
            prop_assert!(found.size >= found.others);
            prop_assert!((found.size - found.others).saturating_sub(there) <= free);
        }
    }
}
