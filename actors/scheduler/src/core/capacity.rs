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
    granted: u32,
    refusals: u32,
    last_refusal: Option<Instant>,
    valid: Duration,
    limit: Option<CapacityLimit>,
}

impl CapacityLesson {
    /// Records a refusal of another processor, while `granted` are held. Returns a new limit.
    pub(super) fn refuse(
        &mut self,
        granted: u32,
        reason: &str,
        now: Instant,
    ) -> Option<&CapacityLimit> {
        let same_attempt =
            self.last_refusal.is_some_and(|at| now.saturating_duration_since(at) < ATTEMPT);
        if self.granted != granted {
            *self = Self { granted, ..Self::default() };
        }
        self.last_refusal = Some(now);
        if same_attempt && self.refusals > 0 || self.limit.is_some() {
            return None;
        }
        self.refusals += 1;
        if self.refusals < REFUSALS_MAX {
            return None;
        }
        self.valid = (self.valid * 2).clamp(VALID_MIN, VALID_MAX);
        let until = now + self.valid;
        Some(self.limit.insert(CapacityLimit { granted, until, reason: reason.to_owned() }))
    }

    /// Records that a processor was granted. More than the limit end it.
    pub(super) fn grant(&mut self, granted: u32) {
        if granted > self.granted {
            *self = Self::default();
        }
    }

    /// Ends a limit whose time has passed. The next refusal renews it. Returns whether it ended.
    pub(super) fn expire(&mut self, now: Instant) -> bool {
        let ended = self.limit.take_if(|limit| limit.until <= now).is_some();
        if ended {
            self.refusals = REFUSALS_MAX - 1;
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
}
