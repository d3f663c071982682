//! What samples say of an expectation: means, and intervals that hold it with a known confidence.
//!
//! Must not know what is sampled.

use serde::{Deserialize, Serialize};

/// Count, mean and squared deviations of numbers, each of which has a weight: 1 if it was drawn, its probability if it is one of all that
/// there are. Merged in one order, it has the same bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Moments {
    /// How many numbers.
    pub count: u64,
    /// Their weights' sum.
    pub weight: f64,
    /// Their weighted mean; 0 of none.
    pub mean: f64,
    /// The weighted sum of their squared distances from it.
    pub squares: f64,
    /// Scenarios without recourse: they are none of the numbers.
    pub without: u64,
    /// Scenarios whose cost has no lower bound: they are none of the numbers.
    pub unbounded: u64,
}

impl Moments {
    /// One more, with a positive weight. (Welford: Note on a method for calculating corrected sums of squares and products, Technometrics
    /// 4, 1962; with weights West: Updating mean and variance estimates, Communications of the ACM 22, 1979.)
    pub fn add(&mut self, number: f64, weight: f64) {
        self.count += 1;
        self.weight += weight;
        let away = number - self.mean;
        self.mean += away * weight / self.weight;
        self.squares += weight * away * (number - self.mean);
    }

    /// Those of another. (Chan, Golub, LeVeque: Algorithms for computing the sample variance, The American Statistician 37, 1983.)
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

    /// The interval that holds what the numbers are expected to be with a confidence of 95 %, if they are drawn independently (Student),
    /// so that each has a weight of 1; none of fewer than two.
    pub fn interval(&self) -> Option<Interval> {
        let freedom = self.count.checked_sub(1).filter(|freedom| *freedom > 0)?;
        let error = (self.squares / freedom as f64 / self.count as f64).sqrt();
        let half = student(freedom) * error;
        let Self { count, mean, .. } = *self;
        Some(Interval { mean, low: mean - half, high: mean + half, count, confidence: 0.95 })
    }

    /// What the numbers are expected to be, if they are all that there are and their weights are their probabilities: an interval
    /// without width, which is certain. None of none.
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
    /// Its ends.
    pub low: f64,
    /// The upper one.
    pub high: f64,
    /// How many they are.
    pub count: u64,
    /// How likely it is to hold what is expected: 0.95 where numbers were drawn, 1 where they are all that there are.
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

/// The 97.5 % point of Student's distribution of so many degrees of freedom: tabulated up to 10, above by the expansion of Cornish and
/// Fisher, which is right to 2e-4 there.
fn student(freedom: u64) -> f64 {
    const FEW: [f64; 10] =
        [12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281];
    let few = usize::try_from(freedom).ok().and_then(|freedom| FEW.get(freedom.wrapping_sub(1)));
    if let Some(point) = few {
        return *point;
    }
    let (z, n) = (1.959_964_f64, freedom as f64);
    let cubic = (z * z * z + z) / 4.0;
    let fifth = (5.0 * z.powi(5) + 16.0 * z.powi(3) + 3.0 * z) / 96.0;
    let seventh = (3.0 * z.powi(7) + 19.0 * z.powi(5) + 17.0 * z.powi(3) - 15.0 * z) / 384.0;
    z + cubic / n + fifth / (n * n) + seventh / (n * n * n)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_of_students_distribution() {
        for (freedom, point) in
            [(1, 12.7062), (10, 2.2281), (11, 2.2010), (20, 2.0860), (60, 2.0003), (999, 1.9623)]
        {
            assert!((student(freedom) - point).abs() < 2e-4, "{freedom}: {}", student(freedom));
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
        let interval = merged.interval().unwrap().plus(1.0);
        // A uniform number has a deviation of 0.2887.
        let half = (interval.high - interval.low) / 2.0;
        assert!((half - 1.9623 * 0.2887 / 997_f64.sqrt()).abs() < 1e-3, "{interval:?}");
        assert_eq!(of(&[1.0]).interval(), None);
    }

    /// Of all numbers with their probabilities the mean is what is expected, and nothing is uncertain, however they are divided.
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

    /// Of a hundred intervals about as many hold the expectation as they should.
    #[test]
    fn intervals_hold_what_is_expected() {
        let mut dice = springtide_runtime::random::SplitMix(11);
        let holds = (0..1000).filter(|_| {
            let mut moments = Moments::default();
            (0..8).for_each(|_| moments.add((0..12).map(|_| dice.unit()).sum(), 1.0));
            let interval = moments.interval().unwrap();
            interval.low <= 6.0 && 6.0 <= interval.high
        });
        let holds = holds.count();
        assert!((930..=970).contains(&holds), "{holds}");
    }
}
