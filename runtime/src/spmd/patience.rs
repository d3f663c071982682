//! When something is said again of which nobody says that it came, though no link is known to have broken.
//!
//! Counts how often it was looked at, so it needs no clock. Must not know what was said.

/// So often it is looked at before it is said again, the first time.
const LOOKS: u32 = 5;

/// How long the oldest of what was said is waited for. Twice as long each time, for what is long may be on its way.
#[derive(Debug, Default)]
pub(crate) struct Patience {
    oldest: Option<u64>,
    looks: u32,
    again: u32,
}

impl Patience {
    /// One more look, about once a second; `oldest` is the number of what has waited longest. Whether to say it again.
    pub(crate) fn is_over(&mut self, oldest: Option<u64>) -> bool {
        if oldest.is_none() || oldest != self.oldest {
            *self = Self { oldest, ..Self::default() };
            return false;
        }
        self.looks += 1;
        if self.looks < LOOKS << self.again.min(6) {
            return false;
        }
        (self.looks, self.again) = (0, self.again + 1);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::Patience;

    #[test]
    fn what_does_not_come_is_said_again_more_and_more_rarely() {
        let mut patience = Patience::default();
        let said = |patience: &mut Patience, looks: u32, oldest: Option<u64>| {
            (0..looks).filter(|_| patience.is_over(oldest)).count()
        };
        assert_eq!(said(&mut patience, 100, None), 0);
        // After 5, 15, 35 and 75 more.
        assert_eq!(said(&mut patience, 100, Some(1)), 4);
        assert_eq!(said(&mut patience, 5, Some(2)), 0, "another begins anew");
        assert_eq!(said(&mut patience, 1, Some(2)), 1);
    }
}
