//! The experiments of the paper on provisioning: advertised slots and planned workflows against best effort, in simulated time.
//!
//! Source: Singh, Kesselman, Deelman, HPDC 2007 (below: the paper), sections 3, 5, 6 and 7. The planner and the site's table are the
//! live ones (`springtide_actors::policy::provisioning`); what is simulated is the other users' jobs. Must not know how results are shown.
//!
//! - [`made`]: workflows and slots that are drawn: four sites' slots, layered workflows, CyberShake of the paper's table.
//! - [`load`]: other users' jobs: a trace, and a second copy of it of which each job comes by a probability.
//! - [`compare`]: one workflow at many moments of a trace, best effort and provisioned.
//! - [`sites`]: the search itself on four sites: its front, schedulers, populations, crossover, mutation.
//!
//! Reservations are made when a task is submitted, are never moved, and end when they were said to (section 4), so that what a
//! task gets follows from the submissions before it alone: a simulation is a merge of two streams of submissions, and a
//! workflow that is submitted at one moment does not disturb one that is submitted at another.

pub mod compare;
pub mod figures;
pub mod load;
pub mod made;
pub mod sites;

/// Mean and standard deviation.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize)]
pub struct Spread {
    /// Mean.
    pub mean: f64,
    /// Standard deviation of a sample; 0 of fewer than two.
    pub deviation: f64,
    /// Half of the 99.9 % confidence interval of the mean, by Student's distribution; 0 of fewer than two.
    pub half_interval: f64,
}

impl Spread {
    /// Of these.
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

/// What Student's distribution with so many degrees of freedom is beyond, on either side, by a probability of 0.1 %.
fn student(freedom: usize) -> f64 {
    // Within +-tan(angle) * sqrt(freedom); after Abramowitz and Stegun, 26.7.3 and 26.7.4, which are exact.
    let within = |angle: f64| {
        let (sine, cosine) = angle.sin_cos();
        let odd = freedom % 2 == 1;
        let (mut term, mut sum) = (if odd { cosine } else { 1.0 }, 0.0);
        let mut power = if odd { 1 } else { 0 };
        while power + 2 <= freedom {
            sum += term;
            power += 2;
            // 2/3, 4/5, ... where it is odd, 1/2, 3/4, ... else.
            term *= cosine * cosine * (power - 1) as f64 / power as f64;
        }
        if odd { (angle + sine * sum) * std::f64::consts::FRAC_2_PI } else { sine * sum }
    };
    let (mut low, mut high) = (0.0, std::f64::consts::FRAC_PI_2);
    for _ in 0..60 {
        let angle = (low + high) / 2.0;
        if within(angle) < 0.999 { low = angle } else { high = angle }
    }
    low.tan() * (freedom as f64).sqrt()
}

/// A number over several draws or submissions.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize)]
pub struct Range {
    /// Its median (of an even count the upper of both in the middle).
    pub median: f64,
    /// Least.
    pub least: f64,
    /// Most.
    pub most: f64,
}

impl Range {
    /// Of these.
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
