//! What a processor more or less means to a job: from one measured efficiency, no model of the job is needed.
//!
//! A job that runs at efficiency `E` on `n` processors behaves like one with a serial share of `(1/E - 1) / (n - 1)`
//! (Amdahl's law solved for what was measured). That is true at `n` by construction, and judged anew whenever the job
//! has another size; a guess that was wrong is corrected by the next measurement.

use serde::{Deserialize, Serialize};

/// What a job gains by processors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Benefit {
    /// As if so much of it could not be shared out, from 0 to 1. Of a job that was not measured nothing is known to be so.
    serial: f64,
}

/// What a processor has to bring.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Worth {
    /// A processor is given only where it adds at least so much of what one does alone.
    pub least_gain: f64,
    /// No job grows beyond so many times an equal share of all processors that malleable jobs have or could have.
    pub most_shares: f64,
}

impl Default for Worth {
    fn default() -> Self {
        Self { least_gain: 0.03, most_shares: 2.0 }
    }
}

impl Benefit {
    /// Of a job that ran at this (weighted) efficiency, from 0 to 1, on so many processors. One processor, or nonsense,
    /// tells nothing.
    pub fn measured(efficiency: f64, processors: u32) -> Self {
        if processors < 2 || !efficiency.is_finite() || efficiency <= 0.0 {
            return Self::default();
        }
        let serial = (1.0 / efficiency.min(1.0) - 1.0) / f64::from(processors - 1);
        Self { serial: serial.min(1.0) }
    }

    /// How many processors that do nothing but work this many are worth.
    pub fn speedup(self, processors: u32) -> f64 {
        let n = f64::from(processors);
        if processors == 0 { 0.0 } else { n / (1.0 + self.serial * (n - 1.0)) }
    }

    /// How many of the processors offered leave the efficiency at `e_min` or above: none if it is below it already.
    pub fn takes(self, size: u32, offered: u32, e_min: f64) -> u32 {
        let keeps = |more: &u32| {
            let n = size.saturating_add(*more);
            self.speedup(n) >= e_min * f64::from(n)
        };
        // It falls with each: the first that is too many ends it.
        (1..=offered).take_while(keeps).last().unwrap_or(0)
    }

    /// What each of so many processors adds, as a part of what one does alone.
    pub fn gain(self, size: u32, more: u32) -> f64 {
        (self.speedup(size + more) - self.speedup(size)) / f64::from(more.max(1))
    }

    /// By how much each of so many processors shortens what the job takes alone, as a part of that.
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
        fn a_curve_goes_through_what_was_measured(efficiency in 0.001f64..1.0, n in 2u32..2000) {
            let benefit = Benefit::measured(efficiency, n);
            let at = benefit.speedup(n) / f64::from(n);
            // Worse than not at all parallel is taken for that.
            prop_assert!((at - efficiency.max(1.0 / f64::from(n))).abs() < 1e-9, "{at}");
            prop_assert!(benefit.gain(n, 1) >= -1e-9 && benefit.gain(n, 1) <= benefit.gain(n - 1, 1) + 1e-9);
            prop_assert!(benefit.saves(n, 1) <= benefit.saves(n - 1, 1) + 1e-12);
        }
    }

    #[test]
    fn nonsense_says_nothing() {
        for (efficiency, n) in
            [(f64::NAN, 4), (0.0, 4), (-1.0, 4), (0.5, 1), (0.5, 0), (f64::INFINITY, 4)]
        {
            assert_eq!(Benefit::measured(efficiency, n), Benefit::default());
        }
        assert_eq!(Benefit::default().speedup(7), 7.0);
        assert_eq!(Benefit::default().speedup(0), 0.0);
    }
}
