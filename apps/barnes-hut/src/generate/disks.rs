//! A disk galaxy near equilibrium, and two of them before a collision.
//!
//! A galaxy is an exponential disk with a thickness, in a Hernquist bulge and a Hernquist halo.
//! Bodies of the spheres have the velocities of the isotropic Jeans equation in the pull of all
//! three. The disk rotates at the circular speed less the asymmetric drift, with dispersions from a
//! Toomre parameter (L. Hernquist, Astrophys. J. Suppl. 86, 389, 1993). Circular speed of the disk:
//! K. C. Freeman, Astrophys. J. 160, 811, 1970. Lengths and masses of one galaxy are in its own
//! units, with G = 1.

use std::f64::consts::{PI, TAU};

use super::functions::{Bessel, exp, ln};
use super::{RandomNumbers, hernquist, on_a_parabola, turn};
use crate::bodies::Bodies;

/// A sphere: mass, scale length, outer radius, and share of the bodies.
struct Sphere {
    mass: f64,
    scale: f64,
    edge: f64,
    bodies: f64,
}

const HALO: Sphere = Sphere { mass: 0.80, scale: 0.75, edge: 6.0, bodies: 0.40 };
const BULGE: Sphere = Sphere { mass: 0.05, scale: 0.06, edge: 1.2, bodies: 0.10 };
/// The other bodies are the disk's, the visible part.
const DISK_MASS: f64 = 0.15;
/// The radius over which the disk's surface density falls by e.
const DISK_SCALE: f64 = 0.3;
const DISK_EDGE: f64 = 5.0 * DISK_SCALE;
/// The density is proportional to sech^2 (z / this).
const DISK_HEIGHT: f64 = 0.06;
/// Toomre's Q where the disk's own circular speed is highest, 2.2 scale lengths out.
const TOOMRE_Q: f64 = 1.4;

/// One disk galaxy at rest with mass 1 and disk scale length 0.3; the disk rotates once in 6 at 2.2
/// scale lengths.
pub fn disk(bodies: usize, seed: u64) -> Bodies {
    let mut all = Bodies::default();
    let here =
        GalaxyPlacement { mass: 1.0, size: 1.0, tilt: [1.0, 0.0], at: [0.0; 3], with: [0.0; 3] };
    fill(&mut all, bodies, &here, &mut RandomNumbers::new(seed));
    all.centre();
    all
}

/// Two disk galaxies on a parabolic orbit before their encounter.
///
/// The second has 0.7 of the mass of the first, and the same surface density. Both rotate in the
/// sense of the orbit, so that both grow tails.
pub fn disks(bodies: usize, seed: u64) -> Bodies {
    /// Closest approach and first distance of the centres, for point masses.
    const PERICENTRE: f64 = 0.8;
    const START: f64 = 4.5;
    const SECOND: f64 = 0.7;
    let total = 1.0 + SECOND;
    let (across, inward) = on_a_parabola(total, PERICENTRE, START);
    let split = (bodies as f64 / total).round() as usize;
    let mut dice = RandomNumbers::new(seed);
    let mut all = Bodies::default();
    let first =
        GalaxyPlacement { mass: 1.0, size: 1.0, tilt: [0.96, 0.28], at: [0.0; 3], with: [0.0; 3] };
    let second = GalaxyPlacement {
        mass: SECOND,
        size: SECOND.sqrt(),
        tilt: [0.8, -0.6],
        at: [START, 0.0, 0.0],
        with: [-inward, across, 0.0],
    };
    fill(&mut all, split, &first, &mut dice);
    fill(&mut all, bodies - split, &second, &mut dice);
    all.second = split;
    all.centre();
    all
}

/// The position, velocity and scale of a galaxy.
struct GalaxyPlacement {
    mass: f64,
    size: f64,
    /// Cosine and sine of the disk's inclination around the x axis.
    tilt: [f64; 2],
    at: [f64; 3],
    with: [f64; 3],
}

/// Adds a galaxy: its disk first, then bulge and halo.
fn fill(all: &mut Bodies, count: usize, place: &GalaxyPlacement, dice: &mut RandomNumbers) {
    let halo = (count as f64 * HALO.bodies) as usize;
    let bulge = (count as f64 * BULGE.bodies) as usize;
    let disk = count - halo - bulge;
    // Units of velocity follow from those of mass and length, as G is 1.
    let swift = (place.mass / place.size).sqrt();
    let mut add = |mut part: Bodies| {
        // Each part rests at the centre; otherwise the few heavy bodies of a halo would be off the
        // disk's centre.
        part.centre();
        for i in 0..part.len() {
            let placed = |v: [f64; 3], scale: f64, by: [f64; 3]| {
                let v = turn(v, place.tilt);
                [0, 1, 2].map(|axis| v[axis] * scale + by[axis])
            };
            let position = placed(part.position[i], place.size, place.at);
            let velocity = placed(part.velocity[i], swift, place.with);
            all.push(position, velocity, part.mass[i] * place.mass);
        }
    };
    let rotation = RotationCurve::new();
    let mut part = Bodies::default();
    for _ in 0..disk {
        let radius = disk_radius(dice.open());
        let height = 0.5 * DISK_HEIGHT * {
            let share = dice.open();
            ln(share / (1.0 - share))
        };
        let [c, s] = dice.direction_in_plane();
        let at = rotation.at(radius);
        let (out, along, up) =
            (at[1] * dice.normal(), at[0] + at[2] * dice.normal(), at[3] * dice.normal());
        let velocity = [c * out - s * along, s * out + c * along, up];
        part.push([c * radius, s * radius, height], velocity, DISK_MASS / disk as f64);
    }
    add(part);
    for (sphere, count) in [(&BULGE, bulge), (&HALO, halo)] {
        let pressure = Pressure::new(sphere);
        let within = sphere.share(sphere.edge);
        let mut part = Bodies::default();
        for _ in 0..count {
            let radius = sphere.scale * hernquist::radius(dice.open() * within);
            let [dispersion, escape] = pressure.at(radius);
            let position = dice.direction().map(|c| c * radius);
            // Bodies near the escape speed would leave.
            let velocity = loop {
                let v = [0; 3].map(|_| dispersion * dice.normal());
                let square = v[0] * v[0] + v[1] * v[1] + v[2] * v[2];
                if square < 0.9 * escape * escape {
                    break v;
                }
            };
            part.push(position, velocity, sphere.mass / count as f64);
        }
        add(part);
    }
}

impl Sphere {
    /// The share of the mass of the sphere without an edge.
    fn share(&self, radius: f64) -> f64 {
        let root = radius / (radius + self.scale);
        root * root
    }

    fn within(&self, radius: f64) -> f64 {
        self.mass * self.share(radius.min(self.edge)) / self.share(self.edge)
    }
}

/// The share of the mass of an exponential disk without an edge.
fn disk_share(radius: f64) -> f64 {
    let x = radius / DISK_SCALE;
    1.0 - (1.0 + x) * exp(-x)
}

/// The radius within which the disk has this share of its mass, by bisection.
fn disk_radius(share: f64) -> f64 {
    let wanted = share * disk_share(DISK_EDGE);
    let (mut low, mut high) = (0.0, DISK_EDGE);
    for _ in 0..50 {
        let middle = 0.5 * (low + high);
        if disk_share(middle) < wanted {
            low = middle;
        } else {
            high = middle;
        }
    }
    0.5 * (low + high)
}

/// The mass of all parts within a radius, with the disk as a sphere.
fn mass_within(radius: f64) -> f64 {
    let disk = disk_share(radius.min(DISK_EDGE)) / disk_share(DISK_EDGE);
    HALO.within(radius) + BULGE.within(radius) + DISK_MASS * disk
}

/// Values at steps of the logarithm of the radius: dispersion along an axis and escape speed.
struct Pressure {
    first: f64,
    step: f64,
    values: Vec<[f64; 2]>,
}

impl Pressure {
    const STEPS: usize = 400;

    /// The values of a sphere of this density in the pull of all parts, from its edge inwards.
    fn new(sphere: &Sphere) -> Self {
        let first = ln(sphere.scale * 1e-4);
        let step = (ln(sphere.edge) - first) / Self::STEPS as f64;
        let density = |r: f64| {
            let x = r / sphere.scale;
            1.0 / (x * (1.0 + x) * (1.0 + x) * (1.0 + x))
        };
        let pull = |r: f64| mass_within(r) / (r * r);
        // Integrals of density times pull, and of pull, from r outwards; all mass is within the
        // halo's edge.
        let mut pressure = 0.0;
        let mut depth = mass_within(HALO.edge) / HALO.edge;
        if sphere.edge < HALO.edge {
            let steps = 1000;
            let width = (HALO.edge - sphere.edge) / f64::from(steps);
            for i in 0..steps {
                depth += pull(sphere.edge + (f64::from(i) + 0.5) * width) * width;
            }
        }
        let mut values = vec![[0.0, (2.0 * depth).sqrt()]];
        let mut outer = exp(first + step * Self::STEPS as f64);
        for i in (0..Self::STEPS).rev() {
            let inner = exp(first + step * i as f64);
            let middle = 0.5 * (inner + outer);
            let width = outer - inner;
            let simpson =
                |f: &dyn Fn(f64) -> f64| width / 6.0 * (f(inner) + 4.0 * f(middle) + f(outer));
            pressure += simpson(&|r| density(r) * pull(r));
            depth += simpson(&pull);
            values.push([(pressure / density(inner)).sqrt(), (2.0 * depth).sqrt()]);
            outer = inner;
        }
        values.reverse();
        Self { first, step, values }
    }

    fn at(&self, radius: f64) -> [f64; 2] {
        let at = ((ln(radius) - self.first) / self.step).clamp(0.0, Self::STEPS as f64);
        between(&self.values, at)
    }
}

/// Values at equal steps of the radius in the disk: tangential speed, and radial, tangential and
/// vertical dispersions.
struct RotationCurve(Vec<[f64; 4]>);

impl RotationCurve {
    const STEPS: usize = 600;

    fn new() -> Self {
        let width = DISK_EDGE / Self::STEPS as f64;
        let full = DISK_MASS / disk_share(DISK_EDGE);
        let surface = |r: f64| full / (TAU * DISK_SCALE * DISK_SCALE) * exp(-r / DISK_SCALE);
        let circular_squared = |r: f64| {
            let y = 0.5 * r / DISK_SCALE;
            let Bessel { i, k } = Bessel::at(y);
            let disk = 2.0 * full / DISK_SCALE * y * y * (i[0] * k[0] - i[1] * k[1]);
            (HALO.within(r) + BULGE.within(r)) / r + disk
        };
        // Squares of the epicyclic and circular frequencies.
        let frequencies = |r: f64| {
            let change = 1e-3 * r;
            let slope =
                (circular_squared(r + change) - circular_squared(r - change)) / (2.0 * change);
            let circle = circular_squared(r) / (r * r);
            ((slope / r + 2.0 * circle).max(0.0), circle)
        };
        // The radial dispersion is proportional to the root of the surface density, flatter towards
        // the middle.
        let reference = 2.2 * DISK_SCALE;
        let critical = 3.36 * surface(reference) / frequencies(reference).0.sqrt();
        let scale = TOOMRE_Q * critical * TOOMRE_Q * critical / surface(reference);
        let at = |i: usize| {
            let r = (i as f64).max(0.1) * width;
            let soft = (r * r + 2.0 * (0.25 * DISK_SCALE) * (0.25 * DISK_SCALE)).sqrt();
            let out = scale * surface(soft);
            let (epicycle, circle) = frequencies(r);
            let ratio = epicycle / (4.0 * circle);
            let drift = 1.0 - ratio - 2.0 * r / DISK_SCALE;
            let along = (circular_squared(r) + out * drift).max(0.0);
            let up = PI * surface(r) * DISK_HEIGHT;
            [along, out, out * ratio, up].map(f64::sqrt)
        };
        Self((0..=Self::STEPS).map(at).collect())
    }

    fn at(&self, radius: f64) -> [f64; 4] {
        between(&self.0, radius / DISK_EDGE * Self::STEPS as f64)
    }
}

/// Interpolates between the values of a table.
fn between<const N: usize>(table: &[[f64; N]], at: f64) -> [f64; N] {
    let below = (at as usize).min(table.len() - 2);
    let part = at - below as f64;
    std::array::from_fn(|k| table[below][k] + (table[below + 1][k] - table[below][k]) * part)
}

#[cfg(test)]
mod tests {
    use super::super::tests::{half_mass_radius, potential_energy};
    use super::*;
    use crate::setup::{Accuracy, CellExpansion, Setup};
    use crate::simulate;

    #[test]
    fn a_disk_galaxy_is_near_virial_equilibrium() {
        let bodies = disk(6000, 5);
        let virial = -2.0 * bodies.kinetic_energy() / potential_energy(&bodies);
        assert!((virial - 1.0).abs() < 0.05, "virial ratio {virial}");
        assert!((bodies.total_mass() - 1.0).abs() < 1e-12);
        // Half of an exponential disk is within 1.68 scale lengths; slightly less of one that ends
        // at 5.
        let half = half_mass_radius(&bodies, 0..3000);
        assert!((half / DISK_SCALE - 1.6).abs() < 0.08, "{half}");
    }

    /// The root of the mean square of the height, and the share of the angular momentum of circular
    /// orbits, of these bodies.
    fn shape(bodies: &Bodies, disk: usize) -> (f64, f64) {
        let mean = |value: &dyn Fn(usize) -> f64| (0..disk).map(value).sum::<f64>() / disk as f64;
        let height = mean(&|i| bodies.position[i][2].powi(2)).sqrt();
        let rotation = mean(&|i| {
            let (x, v) = (bodies.position[i], bodies.velocity[i]);
            x[0] * v[1] - x[1] * v[0]
        });
        (height, rotation)
    }

    #[test]
    fn a_disk_is_stable_over_two_rotations() {
        let count = 3000;
        let bodies = disk(count, 3);
        let disk = count / 2;
        let before = shape(&bodies, disk);
        let half_before = half_mass_radius(&bodies, 0..disk);
        // sech^2: pi / sqrt 12 of its scale.
        assert!((before.0 / DISK_HEIGHT - 0.907).abs() < 0.05, "{before:?}");
        let accuracy = Accuracy {
            order: CellExpansion::Mono,
            theta: 0.8,
            softening: 0.05,
            leaf: 16,
            group: 64,
        };
        let setup = Setup::new(&bodies, accuracy);
        let end = simulate::run(bodies, &setup, 0.1, 120, |_, _| ()).unwrap();
        let after = shape(&end, disk);
        let half = half_mass_radius(&end, 0..disk);
        assert!((half / half_before - 1.0).abs() < 0.15, "{half_before} {half}");
        // A halo of few bodies heats a disk.
        assert!(after.0 < 2.2 * before.0, "{before:?} {after:?}");
        assert!((after.1 / before.1 - 1.0).abs() < 0.1, "{before:?} {after:?}");
    }

    #[test]
    fn two_disks_fall_towards_each_other() {
        let bodies = disks(3400, 1);
        assert_eq!((bodies.len(), bodies.second), (3400, 2000));
        assert!(bodies.momentum().iter().all(|p| p.abs() < 1e-12));
        assert!((bodies.total_mass() - 1.7).abs() < 1e-12);
        let mean = |range: std::ops::Range<usize>, column: &[[f64; 3]]| {
            range.clone().map(|i| column[i][0] * bodies.mass[i]).sum::<f64>()
                / range.map(|i| bodies.mass[i]).sum::<f64>()
        };
        let apart = mean(2000..3400, &bodies.position) - mean(0..2000, &bodies.position);
        assert!((apart - 4.5).abs() < 0.15, "{apart}");
        assert!(mean(2000..3400, &bodies.velocity) < mean(0..2000, &bodies.velocity));
    }
}
