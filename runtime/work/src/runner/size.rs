//! The rule by which a malleable job of runners asks for nodes and releases them. Pure.

use std::mem::discriminant;
use std::time::Duration;

/// A job without tasks releases its nodes after this time.
pub(super) const IDLE_MAX: Duration = Duration::from_secs(30);

/// What the root knows of the size of its job.
#[derive(Clone, Copy, Debug)]
pub(super) struct JobLoad {
    /// The tasks of the client that have not ended.
    pub(super) open: usize,
    /// The time without any of them.
    pub(super) idle: Duration,
    /// The threads of the job.
    pub(super) threads: u32,
    /// The last change that the root asked for, and the threads then.
    pub(super) last: Option<(SizeChange, u32)>,
}

/// A change of the job's size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SizeChange {
    /// The job asks for this number of further nodes.
    Request(u32),
    /// The job releases all nodes but the root's.
    Release,
}

/// The change that the root asks for now, if any. It asks once for each size of the job.
pub(super) fn size_change(load: &JobLoad) -> Option<SizeChange> {
    let is_new = |change: SizeChange| {
        let is_last = |(last, threads)| {
            discriminant(&last) == discriminant(&change) && threads == load.threads
        };
        !load.last.is_some_and(is_last)
    };
    // A thread of the root serves the client.
    let workers = load.threads.saturating_sub(1);
    let missing = u32::try_from(load.open).unwrap_or(u32::MAX).saturating_sub(workers);
    let change = if missing > 0 {
        SizeChange::Request(missing)
    } else if load.open == 0 && load.idle >= IDLE_MAX && load.threads > 1 {
        SizeChange::Release
    } else {
        return None;
    };
    is_new(change).then_some(change)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(open: usize, threads: u32, last: Option<(SizeChange, u32)>) -> JobLoad {
        JobLoad { open, idle: Duration::ZERO, threads, last }
    }

    #[test]
    fn a_job_asks_once_for_each_size_while_it_has_more_tasks_than_workers() {
        assert_eq!(size_change(&load(0, 1, None)), None);
        assert_eq!(size_change(&load(3, 4, None)), None);
        let first = size_change(&load(9, 4, None));
        assert_eq!(first, Some(SizeChange::Request(6)));
        let last = first.map(|change| (change, 4));
        assert_eq!(size_change(&load(12, 4, last)), None, "the size is the same");
        assert_eq!(size_change(&load(12, 5, last)), Some(SizeChange::Request(8)));
    }

    #[test]
    fn an_idle_job_releases_its_nodes_and_asks_again_with_the_next_tasks() {
        let idle = JobLoad { idle: IDLE_MAX, ..load(0, 4, Some((SizeChange::Request(6), 4))) };
        assert_eq!(size_change(&idle), Some(SizeChange::Release));
        let released = Some((SizeChange::Release, 4));
        assert_eq!(size_change(&JobLoad { last: released, ..idle }), None);
        assert_eq!(size_change(&JobLoad { threads: 1, ..idle }), None, "the root's stays");
        assert_eq!(size_change(&JobLoad { idle: IDLE_MAX / 2, ..idle }), None);
        assert_eq!(size_change(&load(8, 4, released)), Some(SizeChange::Request(5)));
    }
}
