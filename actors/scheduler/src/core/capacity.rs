//! Capacities that refusals have taught: a batch system may grant fewer processors than it shows.
//!
//! Limits of users, exclusive hosts or threads that count as processors make some of a cluster's
//! processors unobtainable. After a few refusals in a row of more than was granted before, this
//! number is the cluster's limit for a time. Then one more attempt shows whether the cause has
//! ended. This module must not depend on how processors are requested.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

/// Number of refused attempts in a row after which the granted number is the limit.
const REFUSALS_MAX: usize = 3;
/// First and longest time for which a limit is valid. It doubles with each repetition.
const VALID_MIN: Duration = Duration::from_secs(600);
const VALID_MAX: Duration = Duration::from_secs(2 * 3600);
/// Refusals within this time belong to one attempt.
const ATTEMPT: Duration = Duration::from_secs(1);

/// A limit that refusals have shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CapacityLimit {
    /// Number of processors that were granted.
    pub(super) granted: u32,
    /// Time of the next attempt to get more.
    pub(super) until: Instant,
    /// The last reason of a refusal.
    pub(super) reason: String,
}

/// What refusals have shown of a cluster.
///
/// Nodes leave at the end of their walltime, so that the number of granted processors varies
/// between two attempts. An attempt therefore counts with the most that were granted since the
/// attempt before it.
#[derive(Debug, Default)]
pub(super) struct CapacityLesson {
    /// Number of processors that were granted in each of the last refused attempts, newest last.
    refused: VecDeque<u32>,
    /// The present attempt: the time of its last refusal, and what was granted before its first.
    attempt: Option<(Instant, u32)>,
    /// Largest number that was granted since the present attempt.
    granted: u32,
    /// Time for which jobs have waited for processors that did not come, in attempts that ended
    /// early, and the end of the last of them.
    waited: Option<(Duration, Instant)>,
    valid: Duration,
    limit: Option<CapacityLimit>,
}

impl CapacityLesson {
    /// Records a refusal of another processor, while `granted` are held. Returns a new limit.
    ///
    /// Of several processors that are requested together, some may be refused. The last refusal of
    /// an attempt shows how many were granted.
    pub(super) fn refuse(
        &mut self,
        granted: u32,
        reason: &str,
        now: Instant,
    ) -> Option<&CapacityLimit> {
        match (&mut self.attempt, self.refused.back_mut()) {
            (Some((last, before)), Some(least))
                if now.saturating_duration_since(*last) < ATTEMPT =>
            {
                *last = now;
                *least = granted.min(*least).max(*before);
            }
            _ => {
                let before = std::mem::take(&mut self.granted);
                self.attempt = Some((now, before));
                self.refused.push_back(granted.max(before));
                if self.refused.len() > REFUSALS_MAX {
                    self.refused.pop_front();
                }
            }
        }
        self.waited = None;
        let last = *self.refused.back()?;
        let before = *self.refused.iter().rev().skip(1).max()?;
        if self.refused.len() < REFUSALS_MAX || last > before {
            return None;
        }
        match &mut self.limit {
            None => {
                self.valid = (self.valid * 2).clamp(VALID_MIN, VALID_MAX);
                let (granted, until, reason) = (before, now + self.valid, reason.to_owned());
                self.limit = Some(CapacityLimit { granted, until, reason });
            }
            Some(limit) if before < limit.granted => limit.granted = before,
            Some(_) => return None,
        }
        self.limit.as_ref()
    }

    /// Records that a job's start ended after it had waited for processors that did not come.
    /// Returns whether this and earlier waits together are as long as one that counts as a refusal.
    pub(super) fn wait_ended(&mut self, waited: Duration, enough: Duration, now: Instant) -> bool {
        let recent =
            |(_, last): &(Duration, Instant)| now.saturating_duration_since(*last) < VALID_MIN;
        let before = self.waited.filter(recent).map_or(Duration::ZERO, |(waited, _)| waited);
        let waited = before + waited;
        self.waited = Some((waited, now));
        waited >= enough
    }

    /// Records that a processor was granted, of `granted` in all. More than were granted before
    /// end the limit.
    pub(super) fn grant(&mut self, granted: u32) {
        self.granted = self.granted.max(granted);
        if self.refused.iter().max().is_some_and(|most| granted > *most) {
            *self = Self { granted, ..Self::default() };
        }
    }

    /// Ends a limit whose time has passed. The next refusal renews it. Returns whether it ended.
    pub(super) fn expire(&mut self, now: Instant) -> bool {
        let ended = self.limit.take_if(|limit| limit.until <= now).is_some();
        if ended {
            self.attempt = None;
        }
        ended
    }

    /// The present limit.
    pub(super) fn limit(&self) -> Option<&CapacityLimit> {
        self.limit.as_ref()
    }

    /// Forgets everything: the cluster has changed.
    pub(super) fn forget(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    #[test]
    fn three_refusals_of_more_than_before_are_a_limit_for_a_time() {
        let (mut lesson, mut now) = (CapacityLesson::default(), Instant::now());
        assert_eq!(lesson.refuse(2, "QOS", now), None);
        assert_eq!(lesson.refuse(2, "QOS", now), None, "the same attempt");
        now += MINUTE;
        assert_eq!(lesson.refuse(3, "QOS", now), None);
        now += MINUTE;
        assert_eq!(lesson.refuse(4, "QOS", now), None, "more than before");
        now += MINUTE;
        let limit = lesson.refuse(3, "QOS", now).expect("no more than before").clone();
        assert_eq!((limit.granted, limit.until), (4, now + VALID_MIN));
        assert!(!lesson.expire(now + VALID_MIN - MINUTE));
        now += VALID_MIN;
        assert!(lesson.expire(now));
        assert_eq!(lesson.limit(), None);
        // One more refusal renews it, for twice the time.
        let limit = lesson.refuse(4, "QOS", now + MINUTE).expect("a renewal").clone();
        assert_eq!(limit.until, now + MINUTE + 2 * VALID_MIN);
        // Fewer can be had than that: the limit becomes lower.
        assert_eq!(lesson.refuse(2, "QOS", now + 2 * MINUTE), None);
        assert_eq!(lesson.refuse(2, "QOS", now + 3 * MINUTE), None);
        let limit = lesson.refuse(2, "QOS", now + 4 * MINUTE).expect("a lower one").clone();
        assert_eq!((limit.granted, limit.until), (2, now + MINUTE + 2 * VALID_MIN));
        lesson.grant(2);
        assert!(lesson.limit().is_some());
        lesson.grant(3);
        assert_eq!(lesson.limit(), None);
    }

    /// Of nine processors that are requested together, three are refused: six can be had, although
    /// the first refusal comes while eight are held or requested.
    #[test]
    fn the_last_refusal_of_an_attempt_counts() {
        let (mut lesson, mut now) = (CapacityLesson::default(), Instant::now());
        for attempt in 0..3 {
            for held in [8, 7, 6] {
                let limit = lesson.refuse(held, "QOS", now).map(|limit| limit.granted);
                assert_eq!(limit, (attempt == 2 && held == 6).then_some(6));
            }
            // The granted ones start, before the others end them.
            lesson.grant(6);
            now += 2 * ATTEMPT;
        }
        assert_eq!(lesson.limit().map(|limit| limit.granted), Some(6));
    }

    /// Six can be had, but some of them have just left whenever more are refused.
    #[test]
    fn an_attempt_counts_with_the_most_that_were_granted() {
        let (mut lesson, mut now) = (CapacityLesson::default(), Instant::now());
        let mut limit = None;
        for (granted, left) in [(5, 4), (6, 5), (6, 3), (5, 5)] {
            assert_eq!(limit, None);
            lesson.grant(granted);
            now += MINUTE;
            limit = lesson.refuse(left, "QOS", now).map(|limit| limit.granted);
        }
        assert_eq!(limit, Some(6));
    }

    /// Waits that planned leaves cut short count together, unless they are long apart.
    #[test]
    fn short_waits_add_up() {
        let (mut lesson, mut now) = (CapacityLesson::default(), Instant::now());
        let mut wait = |lesson: &mut CapacityLesson, pause: Duration| {
            now += pause;
            lesson.wait_ended(MINUTE / 3, MINUTE, now)
        };
        assert!(!wait(&mut lesson, MINUTE));
        assert!(!wait(&mut lesson, MINUTE));
        lesson.grant(1);
        assert!(wait(&mut lesson, MINUTE));
        lesson.refuse(1, "QOS", Instant::now());
        assert!(!wait(&mut lesson, MINUTE));
        assert!(!wait(&mut lesson, VALID_MIN));
        assert!(!wait(&mut lesson, MINUTE));
        assert!(wait(&mut lesson, MINUTE));
    }
}
