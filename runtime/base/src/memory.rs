//! The memory of a process: its budget, and what the kernel does when memory is short.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};

/// The exit code of a shell whose command was ended by SIGKILL.
const KILLED_CODE: i32 = 137;
/// The number of SIGKILL.
const KILL_SIGNAL: i32 = 9;

/// The number of processes of this host that the kernel has ended because memory was short, in a
/// control group or in the host. None if the kernel does not count them.
#[must_use]
pub fn out_of_memory_kills() -> Option<u64> {
    kills_in(&fs::read_to_string("/proc/vmstat").ok()?)
}

fn kills_in(vmstat: &str) -> Option<u64> {
    vmstat.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok())
}

/// A watch over the kernel's kills during the life of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfMemoryWatch {
    before: Option<u64>,
}

impl OutOfMemoryWatch {
    /// Begins before the start of a process.
    #[must_use]
    pub fn begin() -> Self {
        Self { before: out_of_memory_kills() }
    }

    /// Whether the kernel has ended the process, or a child of a shell that this process is,
    /// because memory was short: by how the process ended, and by kills during its life. Another
    /// process of the host may have been the one that was killed.
    #[must_use]
    pub fn is_cause(&self, code: Option<i32>, signal: Option<i32>) -> bool {
        let was_killed = signal == Some(KILL_SIGNAL) || code == Some(KILLED_CODE);
        was_killed && self.before < out_of_memory_kills()
    }
}

/// The memory that a process may use, and whether it is short. Threads of the process share it.
#[derive(Debug)]
pub struct MemoryBudget {
    limit: u64,
    is_short: AtomicBool,
}

impl MemoryBudget {
    /// Creates a budget of this number of bytes, of which nothing is used.
    #[must_use]
    pub fn new(limit: u64) -> Self {
        Self { limit, is_short: AtomicBool::new(false) }
    }

    /// The limit in bytes.
    #[must_use]
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// Records the bytes in use. Returns whether the process was not short before, and is now.
    ///
    /// Memory is short from seven eighths of the limit on, until less than three quarters are used.
    pub fn record(&self, used: u64) -> bool {
        let short = if self.is_short() {
            used >= self.limit - self.limit / 4
        } else {
            used >= self.limit - self.limit / 8
        };
        !self.is_short.swap(short, Ordering::Relaxed) && short
    }

    /// Whether memory is short.
    #[must_use]
    pub fn is_short(&self) -> bool {
        self.is_short.load(Ordering::Relaxed)
    }

    /// A bound in bytes on one kind of data that the runtime keeps for the application: what is
    /// usual, but at most a sixteenth of the limit.
    #[must_use]
    pub fn bound(&self, usual: usize) -> usize {
        usual.min(usize::try_from(self.limit / 16).unwrap_or(usize::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_short_until_much_of_it_is_free_again() {
        let budget = MemoryBudget::new(1600);
        let seen: Vec<(bool, bool)> = [0, 1399, 1400, 1500, 1200, 1199, 1399, 1600]
            .into_iter()
            .map(|used| (budget.record(used), budget.is_short()))
            .collect();
        let (free, short, new) = ((false, false), (false, true), (true, true));
        assert_eq!(seen, [free, free, new, short, short, free, free, new]);
        assert_eq!((budget.bound(64), budget.bound(1000)), (64, 100));
    }

    #[test]
    fn kills_are_read_from_the_kernels_counters() {
        let text = "pgfault 12\noom_kill 7\noom_kill_other 9\n";
        assert_eq!(kills_in(text), Some(7));
        assert_eq!(kills_in("pgfault 12\n"), None);
    }

    #[test]
    fn only_a_kill_during_the_life_of_a_killed_process_is_the_cause() {
        let Some(now) = out_of_memory_kills() else {
            println!("skipped: the kernel does not count kills for memory");
            return;
        };
        let earlier = OutOfMemoryWatch { before: now.checked_sub(1) };
        assert!(earlier.is_cause(None, Some(9)));
        assert!(earlier.is_cause(Some(137), None));
        assert!(!earlier.is_cause(Some(1), None));
        assert!(!earlier.is_cause(None, Some(15)));
        let later = OutOfMemoryWatch { before: Some(u64::MAX) };
        assert!(!later.is_cause(None, Some(9)));
    }
}
