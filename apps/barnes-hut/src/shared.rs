//! What the nodes share: masses and settings once, positions once a step, and the tree that each node builds from them.
//!
//! Positions travel in single precision relative to a box; these rounded positions are the ones whose forces are computed,
//! by the sequential run as well. Inside the box lengths are measured in sides of it and masses in the mass unit, both
//! powers of two, so that scaling changes no bit and single precision is far from overflow whatever units the user has.
//! Knows nothing of tasks.

use std::sync::OnceLock;

use serde::{Deserialize, Serialize};

use crate::bodies::Bodies;
use crate::options::Order;
use crate::tree::Tree;

/// What stays as it is during a run: how forces are computed, and the masses. Published once.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Setup {
    /// Highest moment of a far cell.
    pub order: Order,
    /// Opening angle.
    pub theta: f64,
    /// Plummer softening length in the user's unit.
    pub softening: f64,
    /// Most bodies in a leaf.
    pub leaf: u32,
    /// Most bodies in a group.
    pub group: u32,
    /// What a mass of 1 inside stands for in the user's unit; a power of two.
    pub mass_unit: f64,
    /// Little-endian `f32` of each body.
    #[serde(with = "serde_bytes")]
    masses: Vec<u8>,
}

/// How forces are computed; see [`Setup`].
#[derive(Clone, Copy, Debug)]
pub struct Accuracy {
    /// Highest moment of a far cell.
    pub order: Order,
    /// Opening angle.
    pub theta: f64,
    /// Plummer softening length in the user's unit.
    pub softening: f64,
    /// Most bodies in a leaf.
    pub leaf: u32,
    /// Most bodies in a group.
    pub group: u32,
}

impl Setup {
    /// The setup of a run over these bodies.
    pub fn new(bodies: &Bodies, accuracy: Accuracy) -> Self {
        let Accuracy { order, theta, softening, leaf, group } = accuracy;
        let total = bodies.total_mass();
        let mass_unit = if total > 0.0 { power_of_two_at_least(total) } else { 1.0 };
        let inside = bodies.mass.iter().map(|m| (m / mass_unit) as f32);
        let masses = inside.flat_map(f32::to_le_bytes).collect();
        Self { order, theta, softening, leaf, group, mass_unit, masses }
    }

    /// Number of bodies.
    pub fn len(&self) -> usize {
        self.masses.len() / 4
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Mass of each body in mass units.
    pub(crate) fn masses(&self) -> Vec<f32> {
        floats(&self.masses).collect()
    }
}

/// Where the bodies are: a box and, within it, positions in single precision. A new version each step.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Positions {
    /// Middle of the box in the user's unit.
    pub centre: [f64; 3],
    /// Side of the box in the user's unit; a power of two.
    pub side: f64,
    /// Little-endian `f32` x, y, z of each body in sides from the middle, so within half a side either way.
    #[serde(with = "serde_bytes")]
    inside: Vec<u8>,
    /// Built by the first task that asks, once a node.
    #[serde(skip)]
    tree: OnceLock<Tree>,
}

/// Masses and positions do not belong together.
#[derive(Debug, thiserror::Error)]
#[error("positions of {positions} bodies cannot go with masses of {masses}")]
pub struct Mismatch {
    positions: usize,
    masses: usize,
}

impl Positions {
    /// Rounds positions to single precision within the smallest box that suits.
    ///
    /// The side is no less than a millionth of the softening length, below which positions make no difference to forces.
    pub fn new(position: &[[f64; 3]], softening: f64) -> Self {
        let mut low = [f64::INFINITY; 3];
        let mut high = [f64::NEG_INFINITY; 3];
        for p in position {
            for axis in 0..3 {
                low[axis] = low[axis].min(p[axis]);
                high[axis] = high[axis].max(p[axis]);
            }
        }
        let mut centre = [0.0; 3];
        let mut extent = softening * 1e-6;
        for axis in 0..3 {
            if low[axis] <= high[axis] {
                centre[axis] = 0.5 * low[axis] + 0.5 * high[axis];
                extent = extent.max(high[axis] - low[axis]);
            }
        }
        let side = if extent > 0.0 { power_of_two_at_least(extent) } else { 1.0 };
        let mut inside = Vec::with_capacity(position.len() * 12);
        for p in position {
            for axis in 0..3 {
                let rounded = ((p[axis] - centre[axis]) / side) as f32;
                inside.extend_from_slice(&rounded.to_le_bytes());
            }
        }
        Self { centre, side, inside, tree: OnceLock::new() }
    }

    /// Number of bodies.
    pub fn len(&self) -> usize {
        self.inside.len() / 12
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Each body's position in sides from the middle of the box.
    pub(crate) fn inside(&self) -> Vec<[f32; 3]> {
        let mut values = floats(&self.inside);
        let mut all = Vec::with_capacity(self.len());
        while let (Some(x), Some(y), Some(z)) = (values.next(), values.next(), values.next()) {
            all.push([x, y, z]);
        }
        all
    }

    /// The tree over these positions; built when first asked for. A pure function of the two objects, so each node gets
    /// the same. There is one setup in a job, so the first answer holds for all.
    ///
    /// # Errors
    /// [`Mismatch`] when the setup is for another number of bodies.
    pub fn tree(&self, setup: &Setup) -> Result<&Tree, Mismatch> {
        if self.len() != setup.len() {
            return Err(Mismatch { positions: self.len(), masses: setup.len() });
        }
        Ok(self.tree.get_or_init(|| Tree::build(self, setup)))
    }
}

fn floats(bytes: &[u8]) -> impl Iterator<Item = f32> + '_ {
    bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().expect("chunks of four")))
}

/// The smallest power of two that is no less than a positive finite number, within the normal range.
fn power_of_two_at_least(value: f64) -> f64 {
    let exponent = (value.to_bits() >> 52) & 0x7ff;
    let below = f64::from_bits(exponent.clamp(1, 2045) << 52);
    if value <= below { below } else { 2.0 * below }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn powers_of_two_bound_from_above() {
        for value in [1e-300, 0.3, 0.5, 1.0, 1.0000001, 3.0, 1e10, 1e100] {
            let power = power_of_two_at_least(value);
            assert!(power >= value && power / 2.0 < value, "{value} gave {power}");
            assert_eq!(power.to_bits() << 12, 0, "{power} is a power of two");
        }
    }

    #[test]
    fn positions_are_rounded_within_their_box() {
        let position = [[1e10, -3.0, 0.1], [1e10 + 5.0, 2.0, 0.2], [1e10 + 1.0, 0.0, 0.3]];
        let shared = Positions::new(&position, 0.0);
        assert_eq!(shared.side, 8.0);
        let inside = shared.inside();
        for (p, q) in position.iter().zip(&inside) {
            for axis in 0..3 {
                assert!(q[axis].abs() <= 0.5);
                let back = shared.centre[axis] + f64::from(q[axis]) * shared.side;
                assert!((back - p[axis]).abs() < 2e-6, "{back} for {}", p[axis]);
            }
        }
        let bytes = serde_json::to_vec(&shared).unwrap();
        let copy: Positions = serde_json::from_slice(&bytes).unwrap();
        assert_eq!(copy.inside(), inside);
    }
}
