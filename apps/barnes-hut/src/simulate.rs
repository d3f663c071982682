//! The owner's side of a run: leapfrog in double precision, energies, and a function to ask for forces.
//!
//! Knows nothing of where forces are computed. Source of the scheme (kick, drift, kick): e.g. J. S. Stadel, PhD thesis,
//! Univ. of Washington (2001), section 3.6.

use crate::bodies::Bodies;
use crate::forces::BYTES_A_BODY;
use crate::shared::{Positions, Setup};
use crate::tree::Tree;

/// What is reported after each step, for one and the same moment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Report {
    /// Steps done.
    pub step: u64,
    /// Sum of half mass times velocity squared.
    pub kinetic: f64,
    /// Half the sum of mass times potential, as the tree gives it.
    pub potential: f64,
    /// Sum of mass times velocity.
    pub momentum: [f64; 3],
    /// (energy - first energy) / |first energy|; the difference itself where the first energy is zero.
    pub energy_error: f64,
}

impl Report {
    /// Kinetic and potential energy.
    pub fn energy(&self) -> f64 {
        self.kinetic + self.potential
    }
}

/// Bodies in motion.
#[derive(Debug)]
pub struct Simulation {
    bodies: Bodies,
    /// Of each body, at the present positions.
    acceleration: Vec<[f64; 3]>,
    dt: f64,
    softening: f64,
    mass_unit: f64,
    first_energy: f64,
    report: Report,
}

/// Why a simulation cannot start or go on.
#[derive(Debug, thiserror::Error)]
pub enum Broken {
    /// A position or velocity is no number any more.
    #[error(
        "step {step}: body {body} has left the range of numbers; a smaller --dt or a larger --softening may help"
    )]
    NotFinite {
        /// In this step (0: before the first).
        step: u64,
        /// Index of the first such body.
        body: usize,
    },
    /// Forces came for another number of bodies.
    #[error("forces of {got} bytes came where {expected} were due")]
    WrongForces {
        /// Bytes due.
        expected: usize,
        /// Bytes that came.
        got: usize,
    },
}

/// Forces on all bodies in the tree's order, in one or more pieces of [`crate::forces::compute`]'s format.
pub struct Forces<'a> {
    /// The order.
    pub tree: &'a Tree,
    /// The pieces.
    pub pieces: Vec<&'a [u8]>,
}

impl Simulation {
    /// Bodies before their first step. `setup` must have been made from them. [`Simulation::accept`] the forces at
    /// [`Simulation::positions`] next.
    pub fn new(bodies: Bodies, setup: &Setup, dt: f64) -> Self {
        let acceleration = vec![[0.0; 3]; bodies.len()];
        let report =
            Report { step: 0, kinetic: 0.0, potential: 0.0, momentum: [0.0; 3], energy_error: 0.0 };
        let (softening, mass_unit) = (setup.softening, setup.mass_unit);
        Self { bodies, acceleration, dt, softening, mass_unit, first_energy: 0.0, report }
    }

    /// The positions whose forces are wanted, rounded as they are shared.
    pub fn positions(&self) -> Positions {
        Positions::new(&self.bodies.position, self.softening)
    }

    /// Half a kick and the drift: bodies are now where the forces of the next [`Simulation::accept`] act.
    ///
    /// # Errors
    /// [`Broken::NotFinite`].
    pub fn advance(&mut self) -> Result<(), Broken> {
        self.kick();
        for (x, v) in self.bodies.position.iter_mut().zip(&self.bodies.velocity) {
            for axis in 0..3 {
                x[axis] += v[axis] * self.dt;
            }
        }
        self.report.step += 1;
        self.check()
    }

    /// Takes the forces at these positions and, but before the first step, does the other half kick.
    ///
    /// # Errors
    /// [`Broken::WrongForces`], [`Broken::NotFinite`].
    pub fn accept(&mut self, at: &Positions, forces: &Forces) -> Result<Report, Broken> {
        let expected = self.bodies.len() * BYTES_A_BODY;
        let got = forces.pieces.iter().map(|piece| piece.len()).sum();
        if got != expected || forces.tree.order().len() != self.bodies.len() {
            return Err(Broken::WrongForces { expected, got });
        }
        // From units of the box to the user's: powers of two, so exact.
        let potential_unit = self.mass_unit / at.side;
        let acceleration_unit = potential_unit / at.side;
        let mut twice_potential = 0.0;
        let rows = forces.pieces.iter().flat_map(|piece| piece.chunks_exact(BYTES_A_BODY));
        for (row, &body) in rows.zip(forces.tree.order()) {
            let value = |i: usize| {
                let bytes = row[4 * i..4 * i + 4].try_into().expect("four bytes were cut");
                f64::from(f32::from_le_bytes(bytes))
            };
            let body = body as usize;
            self.acceleration[body] = [0, 1, 2].map(|axis| value(axis) * acceleration_unit);
            twice_potential += self.bodies.mass[body] * (value(3) * potential_unit);
        }
        if self.report.step > 0 {
            self.kick();
        }
        self.check()?;
        self.report.kinetic = self.bodies.kinetic_energy();
        self.report.potential = 0.5 * twice_potential;
        self.report.momentum = self.bodies.momentum();
        let energy = self.report.energy();
        if self.report.step == 0 {
            self.first_energy = energy;
        }
        let scale = if self.first_energy == 0.0 { 1.0 } else { self.first_energy.abs() };
        self.report.energy_error = (energy - self.first_energy) / scale;
        Ok(self.report)
    }

    /// The bodies as they are.
    pub fn bodies(&self) -> &Bodies {
        &self.bodies
    }

    fn kick(&mut self) {
        let half = 0.5 * self.dt;
        for (v, a) in self.bodies.velocity.iter_mut().zip(&self.acceleration) {
            for axis in 0..3 {
                v[axis] += a[axis] * half;
            }
        }
    }

    fn check(&self) -> Result<(), Broken> {
        match self.bodies.first_not_finite() {
            Some(body) => Err(Broken::NotFinite { step: self.report.step, body }),
            None => Ok(()),
        }
    }
}

/// Runs `steps` steps on this thread and calls `each` after the forces before the first and after every step.
///
/// # Errors
/// [`Broken`].
pub fn alone(
    bodies: Bodies,
    setup: &Setup,
    dt: f64,
    steps: u64,
    mut each: impl FnMut(&Simulation, &Report),
) -> Result<Bodies, Broken> {
    let mut simulation = Simulation::new(bodies, setup, dt);
    for step in 0..=steps {
        if step > 0 {
            simulation.advance()?;
        }
        let positions = simulation.positions();
        let tree = positions.tree(setup).expect("the setup was made from these bodies");
        let bytes = crate::forces::all(tree);
        let report = simulation.accept(&positions, &Forces { tree, pieces: vec![&bytes] })?;
        each(&simulation, &report);
    }
    Ok(simulation.bodies)
}
