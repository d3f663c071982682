//! Protocol violations of a peer, and the ban that follows repeated ones.
//!
//! Pure: times count from any fixed start. This module does not know the kind of violation.

use std::collections::VecDeque;
use std::time::Duration;

/// Number of violations within [`VIOLATION_WINDOW`] that cause a ban.
pub const VIOLATIONS_MAX: usize = 3;
/// Interval within which [`VIOLATIONS_MAX`] violations cause a ban.
pub const VIOLATION_WINDOW: Duration = Duration::from_secs(60);
/// Duration of a ban after [`VIOLATIONS_MAX`] violations.
pub const BAN_DURATION: Duration = Duration::from_secs(60);

/// The violations of one peer.
#[derive(Debug, Default)]
pub(crate) struct Violations {
    /// Times of the latest violations, at most [[`VIOLATIONS_MAX`]].
    times: VecDeque<Duration>,
    banned_until: Option<Duration>,
    count: u64,
}

impl Violations {
    /// Records a violation. Returns whether it causes a ban.
    pub fn strike(&mut self, now: Duration) -> bool {
        self.count += 1;
        self.times.push_back(now);
        self.times.retain(|time| now.saturating_sub(*time) < VIOLATION_WINDOW);
        let banned = self.times.len() >= VIOLATIONS_MAX;
        if banned {
            self.times.clear();
            self.banned_until = Some(now + BAN_DURATION);
        }
        banned
    }

    pub fn is_banned(&self, now: Duration) -> bool {
        self.banned_until.is_some_and(|until| now < until)
    }

    /// Total number of violations.
    pub fn count(&self) -> u64 {
        self.count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_within_a_minute_are_a_ban_of_a_minute() {
        let at = Duration::from_secs;
        let mut strikes = Violations::default();
        assert!(!strikes.strike(at(0)) && !strikes.strike(at(59)));
        assert!(!strikes.strike(at(60)), "the first is a minute ago");
        assert!(!strikes.is_banned(at(60)));
        assert!(strikes.strike(at(100)));
        assert!(strikes.is_banned(at(100)) && strikes.is_banned(at(159)));
        assert!(!strikes.is_banned(at(160)));
        assert!(!strikes.strike(at(160)), "the count restarts after a ban");
        assert_eq!(strikes.count(), 5);
    }
}
