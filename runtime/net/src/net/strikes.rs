//! How often a peer may break the protocol before its links are refused for a while.
//!
//! Pure: times are since any fixed start. Must not know what was broken.

use std::collections::VecDeque;
use std::time::Duration;

/// So many strikes ...
pub const STRIKES: usize = 3;
/// ... within this time lead to a ban ...
pub const STRIKES_WITHIN: Duration = Duration::from_secs(60);
/// ... of this length.
pub const BAN: Duration = Duration::from_secs(60);

/// One peer's record.
#[derive(Debug, Default)]
pub(crate) struct Strikes {
    /// The latest, at most [`STRIKES`].
    at: VecDeque<Duration>,
    banned_until: Option<Duration>,
    count: u64,
}

impl Strikes {
    /// Notes one. Returns whether it leads to a ban.
    pub fn strike(&mut self, now: Duration) -> bool {
        self.count += 1;
        self.at.push_back(now);
        self.at.retain(|at| now.saturating_sub(*at) < STRIKES_WITHIN);
        let banned = self.at.len() >= STRIKES;
        if banned {
            self.at.clear();
            self.banned_until = Some(now + BAN);
        }
        banned
    }

    pub fn is_banned(&self, now: Duration) -> bool {
        self.banned_until.is_some_and(|until| now < until)
    }

    /// All there ever were.
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
        let mut strikes = Strikes::default();
        assert!(!strikes.strike(at(0)) && !strikes.strike(at(59)));
        assert!(!strikes.strike(at(60)), "the first is a minute ago");
        assert!(!strikes.is_banned(at(60)));
        assert!(strikes.strike(at(100)));
        assert!(strikes.is_banned(at(100)) && strikes.is_banned(at(159)));
        assert!(!strikes.is_banned(at(160)));
        assert!(!strikes.strike(at(160)), "afterwards it counts anew");
        assert_eq!(strikes.count(), 5);
    }
}
