//! Estimates of an expectation from samples: means, and intervals with a known confidence.
//!
//! This module does not know what is sampled.

use serde::{Deserialize, Serialize};

/// Count, mean and squared deviations of weighted numbers. A drawn number has the weight 1; one of
/// all possible numbers has its probability. Moments merged in the same order have the same bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Moments {
    /// The count of the numbers.
    pub count: u64,
    /// The sum of the weights.
    pub weight: f64,
    /// The weighted mean; 0 of no numbers.
    pub mean: f64,
    /// The weighted sum of the squared distances from the mean.
    pub squares: f64,
    /// Scenarios without recourse, which have no number.
    pub without: u64,
    /// Scenarios whose cost has no lower bound, which have no number.
    pub unbounded: u64,
}

impl Moments {
    /// Adds a number with a positive weight.
    ///
    /// Source: Welford, Note on a method for calculating corrected sums of squares and products
    /// (Technometrics 4, 1962); with weights West, Updating mean and variance estimates
    /// (Communications of the ACM 22, 1979).
    pub fn add(&mut self, number: f64, weight: f64) {
        self.count += 1;
        self.weight += weight;
        let away = number - self.mean;
        self.mean += away * weight / self.weight;
        self.squares += weight * away * (number - self.mean);
    }

    /// Adds the numbers of other moments.
    ///
    /// Source: Chan, Golub, LeVeque, Algorithms for computing the sample variance (The American
    /// Statistician 37, 1983).
    pub fn merge(&mut self, other: &Self) {
        self.without += other.without;
        self.unbounded += other.unbounded;
        if other.count == 0 {
            return;
        }
        let weight = self.weight + other.weight;
        let away = other.mean - self.mean;
        let share = other.weight / weight;
        self.mean += away * share;
        self.squares += other.squares + away * away * share * self.weight;
        self.count += other.count;
        self.weight = weight;
    }

    /// The two-sided interval of the expectation of independently drawn numbers, each of weight 1
    /// (Student); none of fewer than two.
    pub fn interval(&self, confidence: f64) -> Option<Interval> {
        let half = self.error()? * student(self.count - 1, 0.5 + 0.5 * confidence);
        let Self { count, mean, .. } = *self;
        Some(Interval { mean, low: mean - half, high: mean + half, count, confidence })
    }

    /// The one-sided interval of the expectation of numbers that are not negative: from 0 to the
    /// upper limit.
    pub fn upper_limit(&self, confidence: f64) -> Option<Interval> {
        let high = self.mean + self.error()? * student(self.count - 1, confidence);
        let Self { count, mean, .. } = *self;
        Some(Interval { mean, low: 0.0, high, count, confidence })
    }

    /// The standard error of the mean.
    fn error(&self) -> Option<f64> {
        let freedom = self.count.checked_sub(1).filter(|freedom| *freedom > 0)?;
        Some((self.squares / freedom as f64 / self.count as f64).sqrt())
    }

    /// The exact expectation, as an interval without width. The numbers are all possible ones, and
    /// their weights the probabilities. None of no numbers.
    pub fn expectation(&self) -> Option<Interval> {
        let Self { count, mean, .. } = *self;
        (count > 0).then_some(Interval { mean, low: mean, high: mean, count, confidence: 1.0 })
    }
}

/// An interval of confidence.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    /// The mean of the numbers.
    pub mean: f64,
    /// Lower end of the interval.
    pub low: f64,
    /// Upper end of the interval.
    pub high: f64,
    /// The count of the numbers.
    pub count: u64,
    /// The confidence: 1 where the numbers are all that exist.
    pub confidence: f64,
}

impl Interval {
    /// The interval of the numbers times a positive factor.
    pub fn times(self, factor: f64) -> Self {
        let Self { mean, low, high, .. } = self;
        Self { mean: mean * factor, low: low * factor, high: high * factor, ..self }
    }

    /// The interval of the numbers plus a constant.
    pub fn plus(self, constant: f64) -> Self {
        let Self { mean, low, high, .. } = self;
        Self { mean: mean + constant, low: low + constant, high: high + constant, ..self }
    }
}

/// The quantile of Student's distribution with a number of degrees of freedom, at a probability
/// from 0.5 to below 1.
fn student(freedom: u64, probability: f64) -> f64 {
    let (mut low, mut high) = (0.0, 2.0);
    while student_below(freedom, high) < probability {
        (low, high) = (high, 2.0 * high);
    }
    for _ in 0..200 {
        let middle = 0.5 * (low + high);
        if middle <= low || middle >= high {
            break;
        }
        if student_below(freedom, middle) < probability { low = middle } else { high = middle }
    }
    0.5 * (low + high)
}

/// The probability that a value of Student's distribution is below `t`, which is not negative.
fn student_below(freedom: u64, t: f64) -> f64 {
    let n = freedom as f64;
    1.0 - 0.5 * incomplete_beta(0.5 * n, 0.5, n / (n + t * t))
}

/// The regularised incomplete beta function, by its continued fraction (Lentz).
fn incomplete_beta(a: f64, b: f64, x: f64) -> f64 {
    if x <= 0.0 || x >= 1.0 {
        return x.clamp(0.0, 1.0);
    }
    if x > (a + 1.0) / (a + b + 2.0) {
        return 1.0 - incomplete_beta(b, a, 1.0 - x);
    }
    let front = (a * x.ln() + b * (-x).ln_1p() + ln_gamma(a + b) - ln_gamma(a) - ln_gamma(b)).exp();
    let away = |value: f64| if value.abs() < 1e-300 { 1e-300 } else { value };
    let (mut c, mut d) = (1.0, 1.0 / away(1.0 - (a + b) * x / (a + 1.0)));
    let mut sum = d;
    for at in 1..10_000 {
        let m = f64::from(at);
        for term in [
            m * (b - m) * x / ((a + 2.0 * m - 1.0) * (a + 2.0 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2.0 * m) * (a + 2.0 * m + 1.0)),
        ] {
            d = 1.0 / away(1.0 + term * d);
            c = away(1.0 + term / c);
            sum *= c * d;
        }
        if (c * d - 1.0).abs() < 1e-15 {
            break;
        }
    }
    front * sum / a
}

/// The logarithm of the gamma function of a positive number, by Stirling's series above 10.
fn ln_gamma(mut x: f64) -> f64 {
    let mut shift = 0.0;
    while x < 10.0 {
        shift -= x.ln();
        x += 1.0;
    }
    let inverse = 1.0 / (x * x);
    let series =
        (1.0 / 12.0 - inverse * (1.0 / 360.0 - inverse * (1.0 / 1260.0 - inverse / 1680.0))) / x;
    shift + (x - 0.5) * x.ln() - x + 0.5 * (2.0 * std::f64::consts::PI).ln() + series
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_of_students_distribution() {
        for (freedom, probability, point) in [
            (1, 0.975, 12.706_204_74),
            (4, 0.95, 2.131_846_79),
            (10, 0.975, 2.228_138_85),
            (20, 0.995, 2.845_339_71),
            (60, 0.975, 2.000_297_82),
            (999, 0.975, 1.962_341_46),
            (1_000_000, 0.975, 1.959_966_35),
        ] {
            let found = student(freedom, probability);
            assert!((found - point).abs() < 1e-6, "{freedom} {probability}: {found}");
        }
    }

    #[test]
    fn moments_of_parts_are_those_of_the_whole() {
        let mut dice = springtide_runtime::random::SplitMix(7);
        let numbers: Vec<f64> = (0..997).map(|_| 1e6 + dice.unit()).collect();
        let of = |numbers: &[f64]| {
            let mut moments = Moments::default();
            numbers.iter().for_each(|number| moments.add(*number, 1.0));
            moments
        };
        let whole = of(&numbers);
        let mean = numbers.iter().sum::<f64>() / 997.0;
        let squares: f64 = numbers.iter().map(|number| (number - mean).powi(2)).sum();
        assert!((whole.mean - mean).abs() < 1e-8 && (whole.squares / squares - 1.0).abs() < 1e-9);
        let mut merged = Moments::default();
        for part in numbers.chunks(100) {
            merged.merge(&of(part));
        }
        merged.merge(&Moments { without: 3, ..Moments::default() });
        assert_eq!((merged.count, merged.without), (997, 3));
        assert!((merged.mean - mean).abs() < 1e-8);
        assert!((merged.squares / squares - 1.0).abs() < 1e-9);
        let interval = merged.interval(0.95).unwrap().plus(1.0);
        // A uniform number has a deviation of 0.2887.
        let half = (interval.high - interval.low) / 2.0;
        assert!((half - 1.9623 * 0.2887 / 997_f64.sqrt()).abs() < 1e-3, "{interval:?}");
        assert_eq!(of(&[1.0]).interval(0.95), None);
    }

    /// The mean of all possible numbers is exact, however they are divided.
    #[test]
    fn all_numbers_tell_what_is_expected() {
        let all = [(3.0, 0.5), (-7.0, 0.125), (11.0, 0.25), (0.5, 0.125)];
        let of = |numbers: &[(f64, f64)]| {
            let mut moments = Moments::default();
            numbers.iter().for_each(|(number, weight)| moments.add(*number, *weight));
            moments
        };
        let (mean, squares) = (3.4375, 0.5 * 9.0 + 0.125 * 49.0 + 0.25 * 121.0 + 0.125 * 0.25);
        for at in 0..=all.len() {
            let mut moments = of(&all[..at]);
            moments.merge(&of(&all[at..]));
            assert!((moments.mean - mean).abs() < 1e-14 && moments.weight == 1.0, "{moments:?}");
            assert!((moments.squares - (squares - mean * mean)).abs() < 1e-13, "{moments:?}");
            let Interval { low, high, count, confidence, .. } =
                moments.expectation().unwrap().plus(1.0);
            assert!(low == high && (low - mean - 1.0).abs() < 1e-14);
            assert_eq!((count, confidence), (4, 1.0));
        }
        assert_eq!(Moments::default().expectation(), None);
    }

    /// The part of intervals that contain the expectation is near their confidence.
    #[test]
    fn intervals_hold_what_is_expected() {
        let mut dice = springtide_runtime::random::SplitMix(11);
        let holds = (0..1000).filter(|_| {
            let mut moments = Moments::default();
            (0..8).for_each(|_| moments.add((0..12).map(|_| dice.unit()).sum(), 1.0));
            let interval = moments.interval(0.95).unwrap();
            interval.low <= 6.0 && 6.0 <= interval.high
        });
        let holds = holds.count();
        assert!((930..=970).contains(&holds), "{holds}");
    }
}
