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
    /// Half of the 99.9 % confidence interval of the mean, by the normal distribution; 0 of fewer than two.
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
        Self { mean, deviation, half_interval: 3.291 * deviation / count.sqrt() }
    }
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
