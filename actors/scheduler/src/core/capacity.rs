//! Capacities that refusals have taught: a batch system may grant fewer processors than it shows.
//!
//! Limits of users, exclusive hosts or threads that count as processors make some of a cluster's
//! processors unobtainable. After a few refusals in a row at the same number of granted processors,
//! this number is the cluster's limit for a time. Then one more attempt shows whether the cause has
//! ended. This module must not depend on how processors are requested.

use std::time::Duration;

use tokio::time::Instant;

/// Number of refusals in a row after which the granted number is the limit.
const REFUSALS_MAX: u32 = 3;
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
#[derive(Debug, Default)]
pub(super) struct CapacityLesson {
    /// Number of processors that were granted in the attempts before the present one.
    granted: u32,
    /// Number of attempts in a row with this number.
    refusals: u32,
    /// The present attempt: the time of its last refusal, and the least number that was granted.
    attempt: Option<(Instant, u32)>,
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
        if let Some((last, least)) = &mut self.attempt
            && now.saturating_duration_since(*last) < ATTEMPT
        {
            (*last, *least) = (now, granted.min(*least));
            if let Some(limit) = &mut self.limit {
                limit.granted = limit.granted.min(granted);
            }
            return None;
        }
        if let Some((_, least)) = self.attempt.replace((now, granted)) {
            let same = least == self.granted;
            self.refusals = if same { self.refusals + 1 } else { 1 };
            self.granted = least;
        }
        if self.limit.is_some() || self.refusals + 1 < REFUSALS_MAX {
            return None;
        }
        self.valid = (self.valid * 2).clamp(VALID_MIN, VALID_MAX);
        let (until, granted) = (now + self.valid, granted.min(self.granted));
        Some(self.limit.insert(CapacityLimit { granted, until, reason: reason.to_owned() }))
    }

    /// Records that a processor was granted. More than was granted before end the limit.
    pub(super) fn grant(&mut self, granted: u32) {
        let before = self.attempt.map_or(0, |(_, least)| least).max(self.granted);
        if granted > before {
            *self = Self::default();
        }
    }

    /// Ends a limit whose time has passed. The next refusal renews it. Returns whether it ended.
    pub(super) fn expire(&mut self, now: Instant) -> bool {
        let ended = self.limit.take_if(|limit| limit.until <= now).is_some();
        if ended {
            (self.refusals, self.attempt) = (REFUSALS_MAX - 1, None);
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
    fn three_refusals_at_the_same_number_are_a_limit_for_a_time() {
        let (mut lesson, mut now) = (CapacityLesson::default(), Instant::now());
        assert_eq!(lesson.refuse(2, "QOS", now), None);
        assert_eq!(lesson.refuse(2, "QOS", now), None, "the same attempt");
        now += MINUTE;
        assert_eq!(lesson.refuse(3, "QOS", now), None, "another number");
        now += MINUTE;
        assert_eq!(lesson.refuse(3, "QOS", now), None);
        now += MINUTE;
        let limit = lesson.refuse(3, "QOS", now).expect("the third").clone();
        assert_eq!((limit.granted, limit.until), (3, now + VALID_MIN));
        assert!(!lesson.expire(now + VALID_MIN - MINUTE));
        now += VALID_MIN;
        assert!(lesson.expire(now));
        assert_eq!(lesson.limit(), None);
        // One more refusal renews it, for twice the time.
        let limit = lesson.refuse(3, "QOS", now + MINUTE).expect("a renewal").clone();
        assert_eq!(limit.until, now + MINUTE + 2 * VALID_MIN);
        lesson.grant(3);
        assert!(lesson.limit().is_some());
        lesson.grant(4);
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
                assert_eq!(limit, (attempt == 2 && held == 8).then_some(6));
            }
            // The granted ones start, before the others end them.
            lesson.grant(6);
            now += 2 * ATTEMPT;
        }
        assert_eq!(lesson.limit().map(|limit| limit.granted), Some(6));
    }
}
