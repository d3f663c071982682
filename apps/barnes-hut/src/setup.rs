//! The constants of a run: how forces are computed, and the masses of the bodies.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::bodies::Bodies;
use crate::bounds::power_of_two_at_least;

/// The form in which a far cell acts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
pub enum CellExpansion {
    /// As a point at its centre of mass
    Mono,
    /// With its quadrupole moment: dearer, more exact
    Quad,
    /// With its quadrupole moment, and at a distance on a whole group of bodies at once: for exact
    /// forces
    Series,
}

/// The parameters of forces; see [`Setup`].
#[derive(Clone, Copy, Debug)]
pub struct Accuracy {
    /// The highest moment of a far cell.
    pub order: CellExpansion,
    /// The opening angle, as size over distance.
    pub theta: f64,
    /// The Plummer softening length in the user's unit.
    pub softening: f64,
    /// The maximum number of bodies in a leaf.
    pub leaf: u32,
    /// The maximum number of bodies in a group.
    pub group: u32,
}

/// The constants of a run: the computation of forces, and the masses. Published once.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Setup {
    /// The highest moment of a far cell.
    pub order: CellExpansion,
    /// The opening angle, as size over distance.
    pub theta: f64,
    /// The Plummer softening length in the user's unit.
    pub softening: f64,
    /// The maximum number of bodies in a leaf.
    pub leaf: u32,
    /// The maximum number of bodies in a group.
    pub group: u32,
    /// The user's mass for a mass of 1 inside the box; a power of two.
    pub mass_unit: f64,
    /// The masses of bodies as little-endian `f32`.
    #[serde(with = "serde_bytes")]
    masses: Vec<u8>,
    /// The wanted error of a cell, as a part of the acceleration there; if set, it replaces
    /// `theta`.
    #[serde(default)]
    pub error: Option<f64>,
}

impl Setup {
    /// The setup of a run over these bodies.
    pub fn new(bodies: &Bodies, accuracy: Accuracy) -> Self {
        let Accuracy { order, theta, softening, leaf, group } = accuracy;
        let total = bodies.total_mass();
        let mass_unit = if total > 0.0 { power_of_two_at_least(total) } else { 1.0 };
        let inside = bodies.mass.iter().map(|m| (m / mass_unit) as f32);
        let masses = inside.flat_map(f32::to_le_bytes).collect();
        Self { order, theta, softening, leaf, group, mass_unit, masses, error: None }
    }

    /// A setup without bodies, for callers that hold masses themselves.
    pub(crate) fn without_bodies(accuracy: Accuracy, error: Option<f64>, mass_unit: f64) -> Self {
        let none = Self::new(&Bodies::default(), accuracy);
        Self { mass_unit, error, ..none }
    }

    /// The setup with this wanted error: see [`Setup::error`].
    pub fn with_error(self, error: Option<f64>) -> Self {
        Self { error, ..self }
    }

    /// The number of bodies.
    pub fn len(&self) -> usize {
        self.masses.len() / 4
    }

    /// Whether there are no bodies.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// A body's mass in mass units.
    #[inline]
    pub(crate) fn mass(&self, body: usize) -> f32 {
        float(&self.masses[4 * body..4 * body + 4])
    }

    /// The mass of each body in mass units.
    pub(crate) fn masses(&self) -> impl ExactSizeIterator<Item = f32> + '_ {
        self.masses.chunks_exact(4).map(float)
    }
}

/// The number in four little-endian bytes.
pub(crate) fn float(bytes: &[u8]) -> f32 {
    f32::from_le_bytes(bytes.try_into().expect("four bytes"))
}
