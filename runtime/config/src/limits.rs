//! Limits of shares, delays and rates, which several kinds of configs have.

use std::time::Duration;

use super::Checker;
use super::units::{ByteRate, Time};

/// A longer delay is a mistake of units.
const DELAY_MAX: Duration = Duration::from_secs(10);

/// Reports a rate at which nothing passes.
pub(super) fn check_rate(rate: Option<ByteRate>, path: &str, checker: &mut Checker<'_>) {
    if rate.is_some_and(|rate| !rate.carries()) {
        let reason = "nothing passes at this rate: give at least \"1B/s\", or leave it out where \
                      there is no limit";
        checker.report(path, reason);
    }
}

/// Reports an invalid share.
pub(super) fn check_share(share: Option<f64>, path: &str, checker: &mut Checker<'_>) {
    if let Some(Err(reason)) = share.map(allowed_share) {
        checker.report(path, reason);
    }
}

/// Reports an invalid delay.
pub(super) fn check_delay(rtt: Option<Time>, path: &str, checker: &mut Checker<'_>) {
    if let Some(Err(reason)) = rtt.map(allowed_delay) {
        checker.report(path, reason);
    }
}

/// Checks that a share is valid.
///
/// # Errors
/// A description of valid shares.
pub fn allowed_share(share: f64) -> Result<f64, String> {
    if (0.0..=1.0).contains(&share) {
        Ok(share)
    } else {
        Err(format!("must lie within 0 and 1, found {share}"))
    }
}

/// Checks that the delay of a link is valid.
///
/// # Errors
/// A description of valid delays.
pub fn allowed_delay(delay: Time) -> Result<Time, String> {
    if delay.get() <= DELAY_MAX {
        Ok(delay)
    } else {
        Err(format!("must be at most \"10s\", found \"{delay}\""))
    }
}
