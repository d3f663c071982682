//! The benefit of processors to a job, from a single measured efficiency without a model of the
//! job.
//!
//! A job with efficiency `E` on `n` processors is assumed to have the serial fraction `(1/E - 1) /
//! (n - 1)` (Amdahl's law solved for the measurement). This is exact at `n` by construction. Each
//! change of the job's size gives a new measurement, which corrects a wrong extrapolation.

use serde::{Deserialize, Serialize};

/// The benefit of processors to a job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Benefit {
    /// Serial fraction of the job, from 0 to 1. It is 0 for an unmeasured job.
    serial: f64,
}

/// Minimum benefit of a processor, and maximum share of a job.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct GrowthLimits {
    /// Minimum gain of a processor, as a fraction of the work of one alone.
    pub min_gain: f64,
    /// Maximum size of a job, as a multiple of an equal share of all processors for malleable jobs.
    pub max_shares: f64,
}

impl Default for GrowthLimits {
    fn default() -> Self {
        Self { min_gain: 0.03, max_shares: 2.0 }
    }
}

impl Benefit {
    /// Derives the benefit from a weighted efficiency (0 to 1) on a number of processors. One
    /// processor or an invalid efficiency gives no information.
    pub fn measured(efficiency: f64, processors: u32) -> Self {
        if processors < 2 || !efficiency.is_finite() || efficiency <= 0.0 {
            return Self::default();
        }
        let serial = (1.0 / efficiency.min(1.0) - 1.0) / f64::from(processors - 1);
        Self { serial: serial.min(1.0) }
    }

    /// Speedup on this many processors, relative to one.
    pub fn speedup(self, processors: u32) -> f64 {
        let n = f64::from(processors);
        if processors == 0 { 0.0 } else { n / (1.0 + self.serial * (n - 1.0)) }
    }

    /// Number of offered processors with which the efficiency stays at `e_min` or above; 0 if it is
    /// below already.
    pub fn acceptable(self, size: u32, offered: u32, e_min: f64) -> u32 {
        let keeps = |more: &u32| {
            let n = size.saturating_add(*more);
            self.speedup(n) >= e_min * f64::from(n)
        };
        // Efficiency decreases with each processor, so the first excess ends the search.
        (1..=offered).take_while(keeps).last().unwrap_or(0)
    }

    /// Mean gain of each additional processor, as a fraction of the work of one alone.
    pub fn gain(self, size: u32, more: u32) -> f64 {
        (self.speedup(size + more) - self.speedup(size)) / f64::from(more.max(1))
    }

    /// Mean reduction of the runtime by each additional processor, as a fraction of the runtime on
    /// one.
    pub fn saves(self, size: u32, more: u32) -> f64 {
        let takes = |n: u32| 1.0 / self.speedup(n.max(1));
        (takes(size) - takes(size + more)) / f64::from(more.max(1))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_curve_contains_the_measurement(efficiency in 0.001f64..1.0, n in 2u32..2000) {
            let benefit = Benefit::measured(efficiency, n);
            let at = benefit.speedup(n) / f64::from(n);
            // A speedup below 1 counts as 1.
            prop_assert!((at - efficiency.max(1.0 / f64::from(n))).abs() < 1e-9, "{at}");
            let (gain, before) = (benefit.gain(n, 1), benefit.gain(n - 1, 1));
            prop_assert!(gain >= -1e-9 && gain <= before + 1e-9);
            prop_assert!(benefit.saves(n, 1) <= benefit.saves(n - 1, 1) + 1e-12);
        }
    }

    #[test]
    fn invalid_measurements_give_no_information() {
        for (efficiency, n) in
            [(f64::NAN, 4), (0.0, 4), (-1.0, 4), (0.5, 1), (0.5, 0), (f64::INFINITY, 4)]
        {
            assert_eq!(Benefit::measured(efficiency, n), Benefit::default());
        }
        assert_eq!(Benefit::default().speedup(7), 7.0);
        assert_eq!(Benefit::default().speedup(0), 0.0);
    }
}
