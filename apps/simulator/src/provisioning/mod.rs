//! The experiments of the paper on provisioning: advertised slots and planned workflows against
//! best effort, in simulated time.
//!
//! Source: Singh, Kesselman, Deelman, HPDC 2007 (below: the paper), sections 3, 5, 6 and 7. The
//! planner and the site's table are the live ones (`springtide_actors::policy::provisioning`). The
//! other users' jobs are simulated. This module does not depend on the presentation of results.
//!
//! - [`made`]: drawn workflows and slots: four sites' slots, layered workflows, CyberShake of the
//!   paper's table.
//! - [`load`]: other users' jobs: a trace, and a second copy from which each job is taken with a
//!   probability.
//! - [`compare`]: one workflow at many times of a trace, best effort and provisioned.
//! - [`sites`]: the search on four sites: its front, schedulers, populations, crossover and
//!   mutation.
//!
//! A reservation is made when its task is submitted, is never moved, and ends at its declared time
//! (section 4). So a task's reservation follows from the submissions before it alone. A simulation
//! is a merge of two streams of submissions, and workflows that are submitted at different times do
//! not disturb each other.

pub mod compare;
pub mod figures;
pub mod load;
pub mod made;
pub mod sites;

/// Mean and standard deviation of a sample.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize)]
pub struct Spread {
    /// The mean of the sample.
    pub mean: f64,
    /// Standard deviation of the sample; 0 for fewer than two values.
    pub deviation: f64,
    /// Half of the 99.9 % confidence interval of the mean, by Student's distribution; 0 for fewer
    /// than two values.
    pub half_interval: f64,
}

impl Spread {
    /// Computes the spread of these values.
    pub fn of(values: &[f64]) -> Self {
        let count = values.len() as f64;
        let mean = values.iter().sum::<f64>() / count.max(1.0);
        if values.len() < 2 {
            return Self { mean, ..Self::default() };
        }
        let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
        let deviation = (squares / (count - 1.0)).sqrt();
        Self {
            mean,
            deviation,
            half_interval: student(values.len() - 1) * deviation / count.sqrt(),
        }
    }
}

/// The two-sided 0.1 % quantile of Student's distribution with these degrees of freedom.
fn student(freedom: usize) -> f64 {
    // The probability within +-tan(angle) * sqrt(freedom); exact, by Abramowitz and Stegun, 26.7.3
    // and 26.7.4.
    let probability = |angle: f64| {
        let (sine, cosine) = angle.sin_cos();
        let odd = freedom % 2 == 1;
        let (mut term, mut sum) = (if odd { cosine } else { 1.0 }, 0.0);
        let mut power = if odd { 1 } else { 0 };
        while power + 2 <= freedom {
            sum += term;
            power += 2;
            // 2/3, 4/5, ... if `freedom` is odd, otherwise 1/2, 3/4, ...
            term *= cosine * cosine * (power - 1) as f64 / power as f64;
        }
        if odd { (angle + sine * sum) * std::f64::consts::FRAC_2_PI } else { sine * sum }
    };
    let (mut low, mut high) = (0.0, std::f64::consts::FRAC_PI_2);
    for _ in 0..60 {
        let angle = (low + high) / 2.0;
        if probability(angle) < 0.999 { low = angle } else { high = angle }
    }
    low.tan() * (freedom as f64).sqrt()
}

/// Median and extremes of a number over several draws or submissions.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize)]
pub struct Range {
    /// The median; of an even count the upper of the two in the middle.
    pub median: f64,
    /// The smallest of the values.
    pub least: f64,
    /// The largest of the values.
    pub most: f64,
}

impl Range {
    /// Computes the range of these values.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Self {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        let (Some(&least), Some(&most)) = (values.first(), values.last()) else {
            return Self::default();
        };
        Self { median: values[values.len() / 2], least, most }
    }
}

#[cfg(test)]
mod tests;
