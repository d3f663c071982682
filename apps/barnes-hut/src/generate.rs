//! Generates bodies from a seed: Plummer and Hernquist spheres, a disk galaxy, or two galaxies
//! before an encounter.
//!
//! Only operations are used that IEEE 754 rounds exactly (no sine, power or logarithm of the
//! platform's library). So a seed gives the same bits on every machine. This module does not depend
//! on forces.

mod disks;
mod functions;
mod hernquist;

pub use disks::{disk, disks};
pub use hernquist::hernquist;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use crate::bodies::Bodies;

/// A Plummer sphere at rest in Henon units (G = M = 1, E = -1/4), without its outermost thousandth.
///
/// Source: S. J. Aarseth, M. Henon and R. Wielen, Astron. Astrophys. 37, 183 (1974).
pub fn plummer(bodies: usize, seed: u64) -> Bodies {
    const KEPT: f64 = 0.999;
    let mut dice = RandomNumbers::new(seed);
    let length = 3.0 * std::f64::consts::PI / 16.0;
    let speed = (1.0 / length).sqrt();
    let mass = 1.0 / bodies as f64;
    let mut all = Bodies::default();
    for _ in 0..bodies {
        let radius = plummer_radius(dice.open() * KEPT);
        let escape = (2.0 / (1.0 + radius * radius).sqrt()).sqrt();
        let position = dice.direction().map(|c| c * radius * length);
        let velocity = {
            let fraction = dice.plummer_speed();
            dice.direction().map(|c| c * fraction * escape * speed)
        };
        all.push(position, velocity, mass);
    }
    all.centre();
    all
}

/// Two disc galaxies on a grazing parabolic orbit, shortly before their encounter.
///
/// The second has 0.7 of the mass of the first. Both rotate in the sense of the orbit, so that both
/// grow tidal tails and bridges (A. and J. Toomre, Astrophys. J. 178, 623, 1972). The larger has
/// mass 1 and a disc of radius 1.3.
///
/// Each galaxy is a Plummer halo, a small Plummer bulge and a Kuzmin disc. Discs rotate at the
/// circular speed with some scatter. Bodies of halo and bulge start at the circular speed in a
/// random direction. That balances each shell (twice the kinetic energy is the virial), though it
/// is not an exact equilibrium.
pub fn galaxies(bodies: usize, seed: u64) -> Bodies {
    /// Closest approach and first distance of the centres, for point masses.
    const PERICENTRE: f64 = 0.9;
    const START: f64 = 3.2;
    /// The mass of the second galaxy; its size scales with the root, which preserves the surface
    /// density.
    const SECOND_MASS: f64 = 0.7;

    let mut dice = RandomNumbers::new(seed);
    let total = 1.0 + SECOND_MASS;
    let (across, inward) = on_a_parabola(total, PERICENTRE, START);
    // Angles of the discs as exact points of the circle: 16 and 37 degrees against the plane of the
    // orbit.
    let first = Galaxy { mass: 1.0, size: 1.0, tilt: [0.96, 0.28] };
    let second = Galaxy { mass: SECOND_MASS, size: SECOND_MASS.sqrt(), tilt: [0.8, -0.6] };

    let split = (bodies as f64 / total).round() as usize;
    let mut all = Bodies::default();
    first.fill(&mut all, split, [0.0; 3], [0.0; 3], &mut dice);
    let apart = [START, 0.0, 0.0];
    second.fill(&mut all, bodies - split, apart, [-inward, across, 0.0], &mut dice);
    all.second = split;
    all.centre();
    all
}

/// Velocities across and along the line between two centres on a parabolic orbit, at this distance,
/// of this total mass.
fn on_a_parabola(total: f64, pericentre: f64, distance: f64) -> (f64, f64) {
    let across = (2.0 * pericentre * total).sqrt() / distance;
    (across, (2.0 * total / distance - across * across).sqrt())
}

/// Rotates a vector around the x axis by the angle of this cosine and sine.
fn turn(v: [f64; 3], [c, s]: [f64; 2]) -> [f64; 3] {
    [v[0], c * v[1] - s * v[2], s * v[1] + c * v[2]]
}

struct Galaxy {
    mass: f64,
    size: f64,
    /// Cosine and sine of the disc's inclination around the x axis.
    tilt: [f64; 2],
}

/// Shares of the mass, shares of the bodies, and scale lengths of a galaxy of size 1. Discs get
/// most bodies, for they are the visible part.
const HALO: GalaxyPart = GalaxyPart { mass: 0.70, bodies: 0.30, scale: 0.55 };
const BULGE: GalaxyPart = GalaxyPart { mass: 0.12, bodies: 0.10, scale: 0.18 };
const DISC: GalaxyPart = GalaxyPart { mass: 0.18, bodies: 0.60, scale: 0.40 };
const DISC_EDGE: f64 = 1.3;
const DISC_THICKNESS: f64 = 0.02;
/// Scatter of the disc's velocities as a share of the circular speed.
const DISC_SCATTER: f64 = 0.08;
/// The share of the mass of halo and bulge that gets bodies; the rest is too far out to matter.
const SPHERE_KEPT: f64 = 0.9;

struct GalaxyPart {
    mass: f64,
    bodies: f64,
    scale: f64,
}

impl Galaxy {
    /// Adds the bodies of the galaxy: the disc first, then bulge and halo.
    fn fill(
        &self,
        all: &mut Bodies,
        count: usize,
        at: [f64; 3],
        with: [f64; 3],
        dice: &mut RandomNumbers,
    ) {
        let halo = (count as f64 * HALO.bodies) as usize;
        let bulge = (count as f64 * BULGE.bodies) as usize;
        let disc = count - halo - bulge;
        let mut add = |position: [f64; 3], velocity: [f64; 3], mass: f64| {
            let moved = |v: [f64; 3], by: [f64; 3]| [v[0] + by[0], v[1] + by[1], v[2] + by[2]];
            all.push(moved(self.turn(position), at), moved(self.turn(velocity), with), mass);
        };

        // Kuzmin: the mass within r is 1 - 1 / sqrt(1 + (r / scale)^2); drawn up to the edge.
        let edge = DISC_EDGE / DISC.scale;
        let within_edge = 1.0 - 1.0 / (1.0 + edge * edge).sqrt();
        for _ in 0..disc {
            let outside = 1.0 - dice.open() * within_edge;
            let radius = self.size * DISC.scale * (1.0 / (outside * outside) - 1.0).sqrt();
            let [c, s] = dice.direction_in_plane();
            let speed = self.circular_speed(radius);
            let mut scatter = || dice.normal() * DISC_SCATTER * speed;
            let (along, across, up) = (speed + scatter(), scatter(), scatter());
            let height = dice.normal() * DISC_THICKNESS * self.size;
            let velocity = [c * across - s * along, s * across + c * along, up];
            add([c * radius, s * radius, height], velocity, self.mass * DISC.mass / disc as f64);
        }
        for (part, count) in [(&BULGE, bulge), (&HALO, halo)] {
            for _ in 0..count {
                let radius = self.size * part.scale * plummer_radius(dice.open() * SPHERE_KEPT);
                let speed = self.circular_speed(radius);
                let position = dice.direction().map(|c| c * radius);
                let velocity = dice.direction().map(|c| c * speed);
                add(position, velocity, self.mass * part.mass / count as f64);
            }
        }
    }

    /// The speed of a circular orbit in the disc's plane, where all three parts have the potential
    /// -M / sqrt(r^2 + scale^2).
    fn circular_speed(&self, radius: f64) -> f64 {
        let pull = |part: &GalaxyPart| {
            let scale = part.scale * self.size;
            let square = radius * radius + scale * scale;
            self.mass * part.mass * radius * radius / (square * square.sqrt())
        };
        (pull(&HALO) + pull(&BULGE) + pull(&DISC)).sqrt()
    }

    fn turn(&self, v: [f64; 3]) -> [f64; 3] {
        turn(v, self.tilt)
    }
}

/// The radius within which a Plummer sphere of scale 1 has this share of its mass: (share^(-2/3) -
/// 1)^(-1/2).
fn plummer_radius(share: f64) -> f64 {
    let root = cube_root(share);
    1.0 / (1.0 / (root * root) - 1.0).sqrt()
}

/// The cube root of a number in (0, 1], by Newton's method from a fixed start: the same bits
/// everywhere.
fn cube_root(x: f64) -> f64 {
    // A third of the exponent, taken from the bits: within 6 % of the root, so five steps reach the
    // last bit or two.
    let mut y = f64::from_bits(x.to_bits() / 3 + 0x2a9f_7893_0000_0000);
    for _ in 0..5 {
        y -= (y * y * y - x) / (3.0 * y * y);
    }
    y
}

/// Random numbers that are the same in every version: ChaCha with 8 rounds, keyed by the seed.
struct RandomNumbers(ChaCha8Rng);

impl RandomNumbers {
    fn new(seed: u64) -> Self {
        let mut key = [0; 32];
        key[..8].copy_from_slice(&seed.to_le_bytes());
        Self(ChaCha8Rng::from_seed(key))
    }

    /// Uniform in [0, 1), 53 bits.
    fn unit(&mut self) -> f64 {
        (self.0.next_u64() >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
    }

    /// Uniform in (0, 1).
    fn open(&mut self) -> f64 {
        ((self.0.next_u64() >> 12) as f64 + 0.5) * (1.0 / (1u64 << 52) as f64)
    }

    /// A unit vector: a point of the ball, by rejection, scaled to the sphere.
    fn direction(&mut self) -> [f64; 3] {
        loop {
            let v = [0; 3].map(|_| 2.0 * self.unit() - 1.0);
            let square = v[0] * v[0] + v[1] * v[1] + v[2] * v[2];
            if square <= 1.0 && square > 1e-6 {
                return v.map(|c| c / square.sqrt());
            }
        }
    }

    /// A unit vector in the plane.
    fn direction_in_plane(&mut self) -> [f64; 2] {
        loop {
            let v = [0; 2].map(|_| 2.0 * self.unit() - 1.0);
            let square = v[0] * v[0] + v[1] * v[1];
            if square <= 1.0 && square > 1e-6 {
                return v.map(|c| c / square.sqrt());
            }
        }
    }

    /// Nearly normal with variance 1: the sum of twelve uniform numbers, less its mean.
    fn normal(&mut self) -> f64 {
        (0..12).map(|_| self.unit()).sum::<f64>() - 6.0
    }

    /// Speed as a share of the escape speed, from q^2 (1 - q^2)^(7/2) by rejection.
    fn plummer_speed(&mut self) -> f64 {
        loop {
            let q = self.unit();
            let rest = 1.0 - q * q;
            // The maximum of the density is 0.092.
            if self.unit() * 0.1 < q * q * rest * rest * rest * rest.sqrt() {
                return q;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cube_roots_are_exact_to_rounding() {
        let mut x: f64 = 1.0;
        while x > 1e-16 {
            let y = cube_root(x);
            assert!((y * y * y / x - 1.0).abs() < 1e-15, "cube root of {x} came out as {y}");
            x *= 0.83;
        }
    }

    #[test]
    fn a_seed_gives_the_same_bits_everywhere() {
        let sums = [plummer(1000, 42), plummer(1000, 43), galaxies(1000, 42)].map(|b| b.checksum());
        assert_eq!(sums, [0x4d21a6a31ff680b3, 0x0f32446d61756cde, 0x9e5dd39b9ae4825b]);
        let sums = [hernquist(1000, 42), disk(1000, 42), disks(1000, 42)].map(|b| b.checksum());
        assert_eq!(sums, [0xb41204aa7fffacdd, 0x26a833cde6775c5e, 0x2b93e0b15acd9d9c]);
    }

    /// The potential energy of all pairs, without softening.
    pub fn potential_energy(bodies: &Bodies) -> f64 {
        let mut potential = 0.0;
        for i in 0..bodies.len() {
            for j in 0..i {
                let d = [0, 1, 2].map(|k| bodies.position[i][k] - bodies.position[j][k]);
                let distance = (d[0] * d[0] + d[1] * d[1] + d[2] * d[2]).sqrt();
                potential -= bodies.mass[i] * bodies.mass[j] / distance;
            }
        }
        potential
    }

    /// The half-mass radius about the origin, of bodies of equal mass.
    pub fn half_mass_radius(bodies: &Bodies, range: std::ops::Range<usize>) -> f64 {
        let square = |p: &[f64; 3]| p[0] * p[0] + p[1] * p[1] + p[2] * p[2];
        let mut squares: Vec<f64> = bodies.position[range].iter().map(square).collect();
        squares.sort_unstable_by(f64::total_cmp);
        squares[squares.len() / 2].sqrt()
    }

    #[test]
    fn plummer_is_in_henon_units() {
        let n = 4000;
        let bodies = plummer(n, 7);
        // Virial equilibrium with E = -1/4: kinetic energy 1/4, potential energy -1/2.
        let kinetic = bodies.kinetic_energy();
        assert!((kinetic - 0.25).abs() < 0.01, "kinetic energy {kinetic}");
        let potential = potential_energy(&bodies);
        assert!((potential + 0.5).abs() < 0.02, "potential energy {potential}");
        assert!((bodies.total_mass() - 1.0).abs() < 1e-12);
    }

    #[test]
    fn galaxies_rest_as_a_whole_and_fall_towards_each_other() {
        let bodies = galaxies(5000, 1);
        assert_eq!(bodies.len(), 5000);
        assert_eq!(bodies.second, 2941);
        assert!(bodies.momentum().iter().all(|p| p.abs() < 1e-12));
        let mean = |range: std::ops::Range<usize>, column: &[[f64; 3]]| {
            range.clone().map(|i| column[i][0] * bodies.mass[i]).sum::<f64>()
                / range.map(|i| bodies.mass[i]).sum::<f64>()
        };
        let (a, b) = (0..2941, 2941..5000);
        let apart = mean(b.clone(), &bodies.position) - mean(a.clone(), &bodies.position);
        assert!((apart - 3.2).abs() < 0.1, "centres {apart} apart");
        assert!(mean(b, &bodies.velocity) < mean(a, &bodies.velocity));
        assert!((bodies.total_mass() - 1.7).abs() < 1e-12);
    }

    #[test]
    fn any_number_of_bodies_will_do() {
        for n in [1, 2, 3, 9, 17] {
            for bodies in [plummer(n, 3), galaxies(n, 3), hernquist(n, 3), disk(n, 3), disks(n, 3)]
            {
                assert_eq!(bodies.len(), n);
                assert_eq!(bodies.first_not_finite(), None, "{n} bodies");
            }
        }
    }
}
