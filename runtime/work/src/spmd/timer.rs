//! Decides when to repeat an unacknowledged message although no broken link is known.
//!
//! It counts checks, so it needs no clock. It does not know the messages.

/// Checks before the first repetition.
const CHECKS: u32 = 5;

/// The wait for the oldest unacknowledged message. It doubles with each repetition, for a long
/// message may still be on its way.
#[derive(Debug, Default)]
pub(crate) struct RetryTimer {
    oldest: Option<u64>,
    checks: u32,
    retries: u32,
}

impl RetryTimer {
    /// Records one check, about once a second. `oldest` is the number of the oldest unacknowledged
    /// message. Returns whether to repeat.
    pub(crate) fn is_due(&mut self, oldest: Option<u64>) -> bool {
        if oldest.is_none() || oldest != self.oldest {
            *self = Self { oldest, ..Self::default() };
            return false;
        }
        self.checks += 1;
        if self.checks < CHECKS << self.retries.min(6) {
            return false;
        }
        (self.checks, self.retries) = (0, self.retries + 1);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::RetryTimer;

    #[test]
    fn repetitions_become_less_and_less_frequent() {
        let mut timer = RetryTimer::default();
        let due = |timer: &mut RetryTimer, checks: u32, oldest: Option<u64>| {
            (0..checks).filter(|_| timer.is_due(oldest)).count()
        };
        assert_eq!(due(&mut timer, 100, None), 0);
        // After 5, 15, 35 and 75 further checks.
        assert_eq!(due(&mut timer, 100, Some(1)), 4);
        assert_eq!(due(&mut timer, 5, Some(2)), 0, "a new oldest message starts over");
        assert_eq!(due(&mut timer, 1, Some(2)), 1);
    }
}
