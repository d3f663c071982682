//! A Hernquist sphere in equilibrium, from its distribution function.
//!
//! The density 1 / (r (r + 1)^3) is that of an elliptical galaxy or of a halo with a cusp;
//! velocities are isotropic. Source of density and distribution function: L. Hernquist, Astrophys.
//! J. 356, 359 (1990), equations 2 and 17.

use super::functions::arcsin;
use super::{RandomNumbers, plummer_radius};
use crate::bodies::Bodies;

/// The scale length at which the energy is -1/4 with G = M = 1: the energy is -M^2 / (12 a).
const LENGTH: f64 = 1.0 / 3.0;
/// The share of the mass that gets bodies: up to 199 scale lengths.
const KEPT: f64 = 0.99;

/// A Hernquist sphere at rest in Henon units (G = M = 1, E = -1/4), without its outermost
/// hundredth.
///
/// Half of the mass is within 0.8.
pub fn hernquist(bodies: usize, seed: u64) -> Bodies {
    let mut dice = RandomNumbers::new(seed);
    let speed = (1.0 / LENGTH).sqrt();
    let mass = 1.0 / bodies as f64;
    let mut all = Bodies::default();
    for _ in 0..bodies {
        let radius = radius(dice.open() * KEPT);
        let escape = (2.0 / (1.0 + radius)).sqrt();
        let fraction = fraction_of_escape_speed(radius, &mut dice);
        let position = dice.direction().map(|c| c * radius * LENGTH);
        let velocity = dice.direction().map(|c| c * fraction * escape * speed);
        all.push(position, velocity, mass);
    }
    all.centre();
    all
}

/// The radius within which a Hernquist sphere of scale 1 has this share of its mass: the root of
/// the share is r / (1 + r).
pub fn radius(share: f64) -> f64 {
    let root = share.sqrt();
    root / (1.0 - root)
}

/// Speed as a share u of the escape speed at this radius, from u^2 f(E) by rejection.
///
/// With q^2 = -E the distribution function is g(q) / (1 - q^2)^(5/2), and 1 - q^2 is
/// (r + u^2) / (1 + r). The factor u^2 / (r + u^2)^(5/2) is drawn exactly, as are the radii of a
/// Plummer sphere of scale sqrt(r). g grows with q, so it is at most that of a body at rest. At
/// least a tenth of the draws are accepted.
fn fraction_of_escape_speed(radius: f64, dice: &mut RandomNumbers) -> f64 {
    let depth = 1.0 / (1.0 + radius);
    let within = depth * depth.sqrt();
    let most = g(depth.sqrt());
    loop {
        let u = radius.sqrt() * plummer_radius(dice.open() * within);
        let q = (depth * (1.0 - u * u).max(0.0)).sqrt();
        if dice.unit() * most < g(q) {
            return u;
        }
    }
}

/// The distribution function without constant factors, times (1 - q^2)^(5/2).
fn g(q: f64) -> f64 {
    let square = q * q;
    3.0 * arcsin(q)
        + q * (1.0 - square).max(0.0).sqrt()
            * (1.0 - 2.0 * square)
            * (8.0 * square * square - 8.0 * square - 3.0)
}

#[cfg(test)]
mod tests {
    use super::super::tests::{half_mass_radius, potential_energy};
    use super::*;

    #[test]
    fn hernquist_is_in_henon_units_and_in_equilibrium() {
        let bodies = hernquist(6000, 7);
        let kinetic = bodies.kinetic_energy();
        let potential = potential_energy(&bodies);
        // A hundredth less mass outside is a hundredth more within: 1 / 0.99 and its square.
        assert!((kinetic - 0.2525).abs() < 0.01, "kinetic energy {kinetic}");
        assert!((potential + 0.51).abs() < 0.02, "potential energy {potential}");
        let virial = -2.0 * kinetic / potential;
        assert!((virial - 1.0).abs() < 0.04, "virial ratio {virial}");
        // (1 + sqrt 2) / 3 of the whole; a hundredth is omitted.
        let half = half_mass_radius(&bodies, 0..6000);
        let expected = LENGTH * radius(0.5 * KEPT);
        assert!((half / expected - 1.0).abs() < 0.04, "half of the mass within {half}");
        assert!((bodies.total_mass() - 1.0).abs() < 1e-12);
    }

    /// Equation 10 of the source, without a black hole: the dispersion along one axis.
    fn dispersion(r: f64) -> f64 {
        let r1 = 1.0 + r;
        let terms = 25.0 + 52.0 * r + 42.0 * r * r + 12.0 * r * r * r;
        (12.0 * r * r1.powi(3) * (r1 / r).ln() - r / r1 * terms) / 12.0
    }

    #[test]
    fn speeds_have_the_dispersion_that_balances_each_shell() {
        let mut dice = RandomNumbers::new(3);
        for radius in [0.003, 0.03, 0.3, 3.0, 30.0] {
            let draws = 20_000;
            let mut sum = 0.0;
            for _ in 0..draws {
                let u = fraction_of_escape_speed(radius, &mut dice);
                assert!(u < 1.0);
                sum += u * u * 2.0 / (1.0 + radius);
            }
            let got = sum / f64::from(draws) / 3.0;
            let expected = dispersion(radius);
            assert!((got / expected - 1.0).abs() < 0.03, "{got} for {expected} at {radius}");
        }
    }

    #[test]
    fn the_bound_of_the_rejection_grows() {
        let mut last = 0.0;
        for i in 60..=1000 {
            let now = g(f64::from(i) / 1000.0);
            assert!(now >= last, "{i}");
            last = now;
        }
    }
}
