//! The state of a simulation: positions, velocities and masses in double precision, in the user's
//! units with G = 1.
//!
//! This module depends on neither trees nor files nor tasks.

use serde::{Deserialize, Serialize};

/// The largest magnitude of a coordinate, velocity or mass: its square is far from overflow in
/// double precision.
pub const LARGEST: f64 = 1e100;

/// Bodies in the order in which they were generated or read; all columns have one length.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Packed", into = "Packed")]
pub struct Bodies {
    /// Positions of the bodies, by body.
    pub position: Vec<[f64; 3]>,
    /// Velocities of the bodies, by body.
    pub velocity: Vec<[f64; 3]>,
    /// Masses of the bodies; never negative.
    pub mass: Vec<f64>,
    /// Index of the first body of the second population (the second galaxy); the number of bodies
    /// if there is only one.
    ///
    /// Pictures give the populations different colours.
    pub second: usize,
}

impl Bodies {
    /// The number of bodies.
    pub fn len(&self) -> usize {
        self.mass.len()
    }

    /// Whether there are no bodies.
    pub fn is_empty(&self) -> bool {
        self.mass.is_empty()
    }

    /// Adds one body to the first population.
    pub fn push(&mut self, position: [f64; 3], velocity: [f64; 3], mass: f64) {
        self.position.push(position);
        self.velocity.push(velocity);
        self.mass.push(mass);
        self.second = self.mass.len();
    }

    /// The sum of all masses.
    pub fn total_mass(&self) -> f64 {
        self.mass.iter().sum()
    }

    /// The sum of mass times velocity.
    pub fn momentum(&self) -> [f64; 3] {
        weighted_sum(&self.mass, &self.velocity)
    }

    /// The sum of half mass times velocity squared.
    pub fn kinetic_energy(&self) -> f64 {
        let twice = |(m, v): (&f64, &[f64; 3])| m * (v[0] * v[0] + v[1] * v[1] + v[2] * v[2]);
        0.5 * self.mass.iter().zip(&self.velocity).map(twice).sum::<f64>()
    }

    /// Moves and boosts all bodies so that the centre of mass rests at the origin. Bodies without
    /// mass are not changed.
    pub fn centre(&mut self) {
        let total = self.total_mass();
        if total <= 0.0 {
            return;
        }
        for column in [&mut self.position, &mut self.velocity] {
            let shift = weighted_sum(&self.mass, column).map(|s| s / total);
            for value in column.iter_mut() {
                *value = [value[0] - shift[0], value[1] - shift[1], value[2] - shift[2]];
            }
        }
    }

    /// A hash of the bits of every position and velocity, in order: FNV-1a with 64 bits over the
    /// little-endian bytes of x, y, z, vx, vy, vz of each body.
    pub fn checksum(&self) -> u64 {
        let bodies = self.position.iter().zip(&self.velocity);
        let values = bodies.flat_map(|(position, velocity)| position.iter().chain(velocity));
        springtide_runtime::work::checksum(values.flat_map(|value| value.to_bits().to_le_bytes()))
    }

    /// The index of the first body that no run can start with.
    ///
    /// Its position, velocity or mass is not a number of up to [`LARGEST`], or its mass is
    /// negative.
    pub fn first_bad(&self) -> Option<usize> {
        let good = |v: &[f64; 3]| v.iter().all(|c| c.abs() <= LARGEST);
        let columns = self.position.iter().zip(&self.velocity).zip(&self.mass);
        columns
            .into_iter()
            .position(|((p, v), m)| !good(p) || !good(v) || !(0.0..=LARGEST).contains(m))
    }

    /// The index of the first body with a position or velocity that is not a finite number.
    pub fn first_not_finite(&self) -> Option<usize> {
        first_not_finite(&self.position, &self.velocity)
    }
}

/// The index of the first body with a position or velocity that is not a finite number.
pub(crate) fn first_not_finite(position: &[[f64; 3]], velocity: &[[f64; 3]]) -> Option<usize> {
    let finite = |v: &[f64; 3]| v.iter().all(|c| c.is_finite());
    position.iter().zip(velocity).position(|(p, v)| !finite(p) || !finite(v))
}

/// The angular momentum of bodies.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct AngularMomentum {
    /// The sum over all bodies.
    pub sum: [f64; 3],
    /// The sum of the magnitudes of each body's.
    pub magnitudes: f64,
}

/// Sums over the motion of bodies.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Motion {
    /// The sum of mass times velocity squared.
    pub twice_kinetic: f64,
    /// The sum of mass times velocity.
    pub momentum: [f64; 3],
    /// The angular momentum about the origin.
    pub turning: AngularMomentum,
}

impl Motion {
    /// Adds a body.
    pub(crate) fn add_body(&mut self, mass: f64, x: &[f64; 3], v: &[f64; 3]) {
        let sum = turning_of(mass, x, v);
        self.add(&Self {
            twice_kinetic: mass * (v[0] * v[0] + v[1] * v[1] + v[2] * v[2]),
            momentum: v.map(|v| mass * v),
            turning: AngularMomentum { sum, magnitudes: length(sum) },
        });
    }

    /// Adds the sums over other bodies.
    pub(crate) fn add(&mut self, other: &Self) {
        self.twice_kinetic += other.twice_kinetic;
        for axis in 0..3 {
            self.momentum[axis] += other.momentum[axis];
            self.turning.sum[axis] += other.turning.sum[axis];
        }
        self.turning.magnitudes += other.turning.magnitudes;
    }
}

/// Mass times position x velocity.
pub(crate) fn turning_of(mass: f64, x: &[f64; 3], v: &[f64; 3]) -> [f64; 3] {
    [
        mass * (x[1] * v[2] - x[2] * v[1]),
        mass * (x[2] * v[0] - x[0] * v[2]),
        mass * (x[0] * v[1] - x[1] * v[0]),
    ]
}

/// The length of a vector.
pub(crate) fn length(v: [f64; 3]) -> f64 {
    (v[0] * v[0] + v[1] * v[1] + v[2] * v[2]).sqrt()
}

fn weighted_sum(mass: &[f64], column: &[[f64; 3]]) -> [f64; 3] {
    let mut sum = [0.0; 3];
    for (m, value) in mass.iter().zip(column) {
        for axis in 0..3 {
            sum[axis] += m * value[axis];
        }
    }
    sum
}

/// Bodies on the wire: seven little-endian doubles a body, so that millions travel without a call
/// of serde for each.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Packed {
    second: u64,
    #[serde(with = "serde_bytes")]
    rows: Vec<u8>,
}

const ROW: usize = 7 * 8;

impl From<Bodies> for Packed {
    fn from(bodies: Bodies) -> Self {
        let mut rows = Vec::with_capacity(bodies.len() * ROW);
        for i in 0..bodies.len() {
            for value in bodies.position[i].iter().chain(&bodies.velocity[i]) {
                rows.extend_from_slice(&value.to_le_bytes());
            }
            rows.extend_from_slice(&bodies.mass[i].to_le_bytes());
        }
        Self { second: bodies.second as u64, rows }
    }
}

/// The bytes are not whole bodies.
#[derive(Debug, thiserror::Error)]
#[error("{0} bytes of packed bodies are not a whole number of {ROW}-byte rows")]
struct NotRows(usize);

impl TryFrom<Packed> for Bodies {
    type Error = NotRows;

    fn try_from(packed: Packed) -> Result<Self, NotRows> {
        if !packed.rows.len().is_multiple_of(ROW) {
            return Err(NotRows(packed.rows.len()));
        }
        let mut bodies = Bodies::default();
        for row in packed.rows.chunks_exact(ROW) {
            let at = |i: usize| {
                let bytes = row[i * 8..i * 8 + 8].try_into().expect("eight bytes were cut");
                f64::from_le_bytes(bytes)
            };
            bodies.push([at(0), at(1), at(2)], [at(3), at(4), at(5)], at(6));
        }
        bodies.second = (packed.second as usize).min(bodies.len());
        Ok(bodies)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn two() -> Bodies {
        let mut bodies = Bodies::default();
        bodies.push([1.0, 2.0, 3.0], [0.5, 0.0, -0.5], 2.0);
        bodies.push([-1.0, 0.0, 1.0], [1.0, 2.0, 3.0], 6.0);
        bodies.second = 1;
        bodies
    }

    #[test]
    fn packing_keeps_every_bit() {
        let mut bodies = two();
        bodies.position[0] = [-0.0, f64::MIN_POSITIVE / 2.0, 1e100];
        let bytes = serde_json::to_vec(&bodies).unwrap();
        let back: Bodies = serde_json::from_slice(&bytes).unwrap();
        assert_eq!(back, bodies);
        assert_eq!(back.checksum(), bodies.checksum());
        let cut = Packed { second: 0, rows: vec![0; 55] };
        assert!(Bodies::try_from(cut).is_err());
    }

    #[test]
    fn the_first_invalid_body_is_found() {
        assert_eq!(two().first_bad(), None);
        for bad in [f64::NAN, f64::INFINITY, -1e101] {
            for column in 0..3 {
                let mut bodies = two();
                match column {
                    0 => bodies.position[1][2] = bad,
                    1 => bodies.velocity[1][0] = bad,
                    _ => bodies.mass[1] = bad,
                }
                assert_eq!(bodies.first_bad(), Some(1), "{bad} in column {column}");
            }
        }
        let mut bodies = two();
        bodies.mass = vec![0.0, -1e-9];
        assert_eq!(bodies.first_bad(), Some(1));
    }

    #[test]
    fn the_checksum_is_fnv_1a_and_sees_one_bit() {
        // No body gives the offset basis of FNV-1a. One byte more or less would change it.
        assert_eq!(Bodies::default().checksum(), 0xcbf2_9ce4_8422_2325);
        let bodies = two();
        let mut other = bodies.clone();
        other.velocity[1][2] = f64::from_bits(other.velocity[1][2].to_bits() ^ 1);
        assert_ne!(bodies.checksum(), other.checksum());
        // The value is from an independent implementation.
        assert_eq!(bodies.checksum(), 0xfe62_ab4f_1918_71b5);
    }

    #[test]
    fn centring_leaves_no_momentum() {
        let mut bodies = two();
        assert_eq!(bodies.momentum(), [7.0, 12.0, 17.0]);
        assert_eq!(bodies.kinetic_energy(), 42.5);
        let mut motion = Motion::default();
        for body in 0..2 {
            motion.add_body(bodies.mass[body], &bodies.position[body], &bodies.velocity[body]);
        }
        let Motion { momentum, twice_kinetic, turning } = motion;
        assert_eq!((momentum, twice_kinetic), ([7.0, 12.0, 17.0], 85.0));
        // 2 (1, 2, 3) x (0.5, 0, -0.5) + 6 (-1, 0, 1) x (1, 2, 3).
        assert_eq!(turning.sum, [-14.0, 28.0, -14.0]);
        assert!((turning.magnitudes - 24f64.sqrt() - 864f64.sqrt()).abs() < 1e-12);
        bodies.centre();
        for axis in 0..3 {
            assert!(bodies.momentum()[axis].abs() < 1e-14);
        }
        assert_eq!(bodies.position[0][0] - bodies.position[1][0], 2.0);
    }
}
