//! The rate of work over time from batches, and its error.
//!
//! Source of the error: the ratio estimator of survey sampling, e.g. W. G. Cochran, Sampling
//! Techniques (1977), chapter 6. It does not know the quantities.

use std::time::Duration;

/// Work per second, from batches of work and their times.
///
/// The rate is all work over all time, so long batches have more weight. Its error is from the
/// scatter of the batches around it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Ratio {
    batches: u32,
    work: f64,
    seconds: f64,
    work_squared: f64,
    product: f64,
    seconds_squared: f64,
}

impl Ratio {
    /// Adds a batch. Returns false, and adds nothing, if the work is negative or not finite, or
    /// took no time.
    pub fn push(&mut self, work: f64, took: Duration) -> bool {
        let seconds = took.as_secs_f64();
        if !(work >= 0.0 && work.is_finite() && seconds > 0.0) {
            return false;
        }
        self.batches = self.batches.saturating_add(1);
        self.work += work;
        self.seconds += seconds;
        self.work_squared += work * work;
        self.product += work * seconds;
        self.seconds_squared += seconds * seconds;
        true
    }

    /// The number of batches added.
    pub fn batches(&self) -> u32 {
        self.batches
    }

    /// The total time of all batches.
    pub fn time(&self) -> Duration {
        Duration::try_from_secs_f64(self.seconds).unwrap_or(Duration::MAX)
    }

    /// Units of work per second; none if there was none, or the sums overflow.
    pub fn rate(&self) -> Option<f64> {
        let rate = self.work / self.seconds;
        (rate.is_finite() && rate > 0.0).then_some(rate)
    }

    /// The relative standard error of the rate; none for fewer than two batches.
    pub fn relative_error(&self) -> Option<f64> {
        let rate = self.rate()?;
        if self.batches < 2 {
            return None;
        }
        let count = f64::from(self.batches);
        // The sum of (work - rate * seconds)^2; rounding may make it slightly negative.
        let scatter =
            self.work_squared - 2.0 * rate * self.product + rate * rate * self.seconds_squared;
        let error = (count / (count - 1.0) * scatter.max(0.0)).sqrt() / self.work;
        error.is_finite().then_some(error)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn equal_batches_leave_no_error() {
        let mut ratio = Ratio::default();
        assert_eq!((ratio.rate(), ratio.relative_error()), (None, None));
        assert!(ratio.push(30.0, Duration::from_secs(10)));
        assert_eq!((ratio.rate(), ratio.relative_error()), (Some(3.0), None));
        // Twice the time and twice the work give the same rate.
        assert!(ratio.push(60.0, Duration::from_secs(20)));
        assert_eq!(ratio.rate(), Some(3.0));
        assert!(ratio.relative_error().unwrap() < 1e-6);
        assert_eq!((ratio.batches(), ratio.time()), (2, Duration::from_secs(30)));
    }

    #[test]
    fn invalid_values_are_not_added() {
        let mut ratio = Ratio::default();
        for (work, millis) in [(f64::NAN, 5), (f64::INFINITY, 5), (-1.0, 5), (1.0, 0)] {
            assert!(!ratio.push(work, Duration::from_millis(millis)), "{work} in {millis} ms");
        }
        assert_eq!(ratio, Ratio::default());
        for _ in 0..9 {
            ratio.push(f64::MAX, Duration::from_secs(1));
        }
        assert_eq!((ratio.rate(), ratio.relative_error()), (None, None));
    }

    proptest! {
        /// The reported error is the actual one: over many runs of one experiment the rates scatter
        /// by it.
        #[test]
        fn the_reported_error_is_the_actual_error(seed in any::<u64>()) {
            let mut state = seed | 1;
            let mut unit = || {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                (state >> 11) as f64 / (1u64 << 53) as f64
            };
            let (mut squares, mut reported) = (0.0, 0.0);
            let runs = 400;
            for _ in 0..runs {
                let mut ratio = Ratio::default();
                for _ in 0..20 {
                    let seconds = 0.5 + unit();
                    let work = 100.0 * seconds * (0.7 + 0.6 * unit());
                    ratio.push(work, Duration::from_secs_f64(seconds));
                }
                squares += (ratio.rate().unwrap() / 100.0 - 1.0).powi(2);
                reported += ratio.relative_error().unwrap();
            }
            let actual = (squares / f64::from(runs)).sqrt();
            let reported = reported / f64::from(runs);
            prop_assert!((actual / reported - 1.0).abs() < 0.25, "{actual}, reported {reported}");
        }

        #[test]
        fn results_are_finite(
            batches in prop::collection::vec((any::<f64>(), any::<u64>()), 0..9),
        ) {
            let mut ratio = Ratio::default();
            for (work, nanos) in batches {
                ratio.push(work, Duration::from_nanos(nanos));
            }
            prop_assert!(ratio.rate().is_none_or(|rate| rate.is_finite() && rate > 0.0));
            let is_valid = |error: f64| error.is_finite() && error >= 0.0;
            prop_assert!(ratio.relative_error().is_none_or(is_valid));
        }
    }
}
