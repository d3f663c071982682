//! Limits on ended jobs: which of them are removed, by age and by count.
//!
//! No I/O and no clock.

use std::collections::BTreeSet;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use springtide_runtime::id::JobId;

/// Limits on the ended jobs of an archive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    /// The maximum number of ended jobs.
    pub jobs: usize,
    /// The maximum age of a job since its end.
    pub age: Duration,
}

/// An ended job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct EndedJob {
    pub(super) job: JobId,
    /// Time of the end in seconds since the Unix epoch.
    pub(super) ended_unix_s: u64,
}

/// The ended jobs that `job purge` names.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Selection {
    /// Jobs that are named by their numbers, at any age.
    #[serde(default)]
    pub jobs: BTreeSet<JobId>,
    /// Jobs that ended longer ago than this, in seconds.
    #[serde(default)]
    pub older_than_s: Option<u64>,
    /// All jobs but this number of those that ended last.
    #[serde(default)]
    pub keep: Option<usize>,
}

/// Sorts jobs by their end, newest first. Jobs that ended in the same second are in order of their
/// number.
fn newest_first(ended: &[EndedJob]) -> Vec<EndedJob> {
    let mut ended = ended.to_vec();
    ended.sort_by_key(|one| std::cmp::Reverse((one.ended_unix_s, one.job)));
    ended
}

impl Retention {
    /// Jobs that are above the count or past the age, oldest first.
    pub(super) fn expired(&self, ended: &[EndedJob], now_unix_s: u64) -> Vec<JobId> {
        let old = |one: &EndedJob| now_unix_s.saturating_sub(one.ended_unix_s) > self.age.as_secs();
        let ranked = newest_first(ended).into_iter().enumerate().rev();
        let removed = ranked.filter(|(rank, one)| *rank >= self.jobs || old(one));
        removed.map(|(_, one)| one.job).collect()
    }
}

impl Selection {
    /// The ended jobs that the selection names, oldest first. If both an age and a count are given,
    /// a job must be beyond both.
    pub(super) fn select(&self, ended: &[EndedJob], now_unix_s: u64) -> Vec<JobId> {
        let by_limit = self.older_than_s.is_some() || self.keep.is_some();
        let old = |one: &EndedJob| {
            let age = now_unix_s.saturating_sub(one.ended_unix_s);
            self.older_than_s.is_none_or(|limit| age > limit)
        };
        let ranked = newest_first(ended).into_iter().enumerate().rev();
        let removed = ranked.filter(|(rank, one)| {
            let beyond = by_limit && self.keep.is_none_or(|keep| *rank >= keep) && old(one);
            beyond || self.jobs.contains(&one.job)
        });
        removed.map(|(_, one)| one.job).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended() -> Vec<EndedJob> {
        let one = |(job, at)| EndedJob { job: JobId(job), ended_unix_s: at };
        [(1, 40), (2, 10), (3, 20), (4, 40), (5, 30)].map(one).to_vec()
    }

    fn numbers(jobs: Vec<JobId>) -> Vec<u64> {
        jobs.into_iter().map(|job| job.0).collect()
    }

    #[test]
    fn jobs_expire_by_age_or_by_count_oldest_first() {
        let removed = |jobs, age| {
            let limit = Retention { jobs, age: Duration::from_secs(age) };
            numbers(limit.expired(&ended(), 50))
        };
        assert_eq!(removed(9, 100), [0; 0]);
        assert_eq!(removed(3, 100), [2, 3]);
        assert_eq!(removed(9, 19), [2, 3, 5]);
        assert_eq!(removed(1, 29), [2, 3, 5, 1]);
        assert_eq!(removed(0, 100), [2, 3, 5, 1, 4]);
    }

    #[test]
    fn a_purge_selects_named_jobs_and_those_beyond_both_limits() {
        let removed = |jobs: &[u64], older_than_s, keep| {
            let jobs = jobs.iter().copied().map(JobId).collect();
            numbers(Selection { jobs, older_than_s, keep }.select(&ended(), 50))
        };
        assert_eq!(removed(&[], None, None), [0; 0]);
        assert_eq!(removed(&[4, 9], None, None), [4]);
        assert_eq!(removed(&[], Some(25), None), [2, 3]);
        assert_eq!(removed(&[], None, Some(2)), [2, 3, 5]);
        assert_eq!(removed(&[], Some(25), Some(4)), [2]);
        assert_eq!(removed(&[1], Some(35), None), [2, 1]);
    }
}
