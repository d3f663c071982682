//! Block time steps: each body's step is the base step divided by two to the power of its rung.
//!
//! A clock of ticks within a base step determines whose step ends when. A body's rung follows from
//! its acceleration: the longest step up to eta sqrt(softening / |a|) (T. Quinn, N. Katz, J. Stadel
//! and G. Lake, arXiv:astro-ph/9710043, 1997; V. Springel, MNRAS 364, 1105, 2005, equation 34, with
//! eta = sqrt(2 eta')).
//!
//! The rung is chosen at the end of each of the body's steps. A longer step is taken only if the
//! clock is at a multiple of it. So all steps nest and end together with the base step. As is
//! customary, the choice by the acceleration at the start of a step is not symmetric in time. So
//! orbits drift, though much more slowly than by the errors of too long a base step.
//!
//! This module depends on neither velocities nor trees nor tasks.

use serde::{Deserialize, Serialize};

/// The deepest possible rung, which divides a base step into 2^20 ticks.
pub const DEEPEST: u32 = 20;

/// The rung of each body and the time within the base step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rungs {
    /// The scale of the steps.
    eta: f64,
    /// The deepest rung, whose step is one tick.
    deepest: u32,
    /// The rung of each body.
    #[serde(with = "serde_bytes")]
    rung: Vec<u8>,
    /// Ticks since the start of the base step, of 2^`deepest`.
    tick: u32,
}

impl Rungs {
    /// All bodies on rung 0 at the end of a base step; `deepest` is at most [`DEEPEST`].
    pub fn new(bodies: usize, eta: f64, deepest: u32) -> Self {
        let deepest = deepest.min(DEEPEST);
        Self { eta, deepest, rung: vec![0; bodies], tick: 1 << deepest }
    }

    /// Whether these rungs fit a run with these parameters; a checkpoint may not.
    pub fn fit(&self, bodies: usize, eta: f64, deepest: u32) -> bool {
        let same = self.rung.len() == bodies && self.eta == eta && self.deepest == deepest;
        same && self.rung.iter().all(|rung| u32::from(*rung) <= deepest) && self.tick <= self.last()
    }

    /// Whether the clock is at the end of the base step, where every body's step ends.
    pub fn at_end(&self) -> bool {
        self.tick == self.last()
    }

    /// Starts the next base step.
    pub fn begin(&mut self) {
        self.tick = 0;
    }

    /// Chooses the rung of a body whose step ends now, from the square of its acceleration.
    pub fn choose(&mut self, body: usize, acceleration_squared: f64, base: f64, softening: f64) {
        // Without a second root: step^2 |a| <= eta^2 softening.
        let limit = self.eta * self.eta * softening;
        let acceleration = acceleration_squared.sqrt();
        let mut wanted = 0;
        let mut step = base;
        // A NaN fails every comparison; the rung of a body without a valid state does not matter.
        while wanted < self.deepest && step * step * acceleration > limit {
            step *= 0.5;
            wanted += 1;
        }
        while !self.tick.is_multiple_of(self.ticks(wanted)) {
            wanted += 1;
        }
        self.rung[body] = wanted as u8;
    }

    /// Advances the clock to the next end of any body's step. Returns the time
    /// advanced, as a fraction of the base step.
    pub fn advance(&mut self) -> f64 {
        let deepest = self.rung.iter().max().copied().unwrap_or(0);
        let ticks = self.ticks(deepest.into());
        // All occupied rungs have steps that are multiples of this one.
        self.tick = (self.tick / ticks + 1) * ticks;
        f64::from(ticks) / f64::from(self.last())
    }

    /// Whether this body's step ends now.
    pub fn is_active(&self, body: usize) -> bool {
        self.tick.is_multiple_of(self.ticks(self.rung[body].into()))
    }

    /// This body's step, as a fraction of the base step.
    pub fn part(&self, body: usize) -> f64 {
        1.0 / f64::from(1u32 << self.rung[body])
    }

    /// The number of bodies on each rung, from 0 to the deepest occupied one.
    pub fn census(&self) -> Vec<u64> {
        let mut counts = vec![0; 1];
        for &rung in &self.rung {
            let rung = usize::from(rung);
            if counts.len() <= rung {
                counts.resize(rung + 1, 0);
            }
            counts[rung] += 1;
        }
        counts
    }

    fn last(&self) -> u32 {
        1 << self.deepest
    }

    fn ticks(&self, rung: u32) -> u32 {
        1 << (self.deepest - rung)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The acceleration whose criterion is a step of this length, with eta and softening of 1.
    fn pull(step: f64) -> f64 {
        (1.0 / (step * step)).powi(2)
    }

    #[test]
    fn a_rung_is_the_longest_step_that_is_not_too_long() {
        let mut rungs = Rungs::new(1, 1.0, 5);
        let table = [(1e9, 0), (1.0, 0), (0.99, 1), (0.5, 1), (0.26, 2), (0.25, 2), (1e-9, 5)];
        for (step, rung) in table {
            rungs.choose(0, pull(step), 1.0, 1.0);
            assert_eq!(rungs.rung[0], rung, "a step of {step}");
        }
        rungs.choose(0, 0.0, 1.0, 1.0);
        assert_eq!(rungs.rung[0], 0);
        rungs.choose(0, f64::NAN, 1.0, 1.0);
        assert_eq!(rungs.rung[0], 0);
    }

    #[test]
    fn a_longer_step_is_taken_where_the_clock_allows() {
        let mut rungs = Rungs::new(2, 1.0, 3);
        rungs.begin();
        rungs.choose(0, pull(0.25), 1.0, 1.0);
        rungs.choose(1, pull(1.0), 1.0, 1.0);
        assert_eq!(rungs.advance(), 0.25);
        // At a quarter, a half step would not end together with others.
        rungs.choose(0, pull(0.5), 1.0, 1.0);
        assert_eq!(rungs.part(0), 0.25);
        assert_eq!(rungs.advance(), 0.25);
        rungs.choose(0, pull(1.0), 1.0, 1.0);
        assert_eq!(rungs.part(0), 0.5);
        assert_eq!(rungs.census(), [1, 1]);
        assert!(!rungs.is_active(1));
        assert_eq!(rungs.advance(), 0.5);
        assert!(rungs.at_end() && rungs.is_active(0) && rungs.is_active(1));
    }

    proptest! {
        #[test]
        fn steps_nest_and_cover_the_whole_base_step(
            deepest in 0u32..6,
            pulls in prop::collection::vec(prop::collection::vec(0.001f64..4.0, 80), 1..12),
        ) {
            let mut rungs = Rungs::new(pulls.len(), 1.0, deepest);
            rungs.begin();
            let mut lived = vec![0.0; pulls.len()];
            let mut time = 0.0;
            let mut turn = 0;
            loop {
                for (body, pulls) in pulls.iter().enumerate() {
                    if turn == 0 || rungs.is_active(body) {
                        prop_assert_eq!(lived[body], time);
                        rungs.choose(body, pull(pulls[turn % pulls.len()]), 1.0, 1.0);
                        lived[body] += rungs.part(body);
                    }
                }
                time += rungs.advance();
                turn += 1;
                // No step ends between two stops of the clock.
                prop_assert!(lived.iter().all(|l| *l >= time));
                if rungs.at_end() {
                    break;
                }
            }
            prop_assert_eq!(time, 1.0);
            prop_assert!(lived.iter().all(|l| *l == 1.0));
            prop_assert!(rungs.fit(pulls.len(), 1.0, deepest));
        }
    }
}
