//! The owner's side of a run: leapfrog in double precision, energies, and a function to ask for forces.
//!
//! Knows nothing of where forces are computed. Source of the scheme (kick, drift, kick): e.g. J. S. Stadel, PhD thesis,
//! Univ. of Washington (2001), section 3.6.

use serde::{Deserialize, Serialize};

use crate::bodies::Bodies;
use crate::forces::BYTES_A_BODY;
use crate::shared::{Positions, Setup};
use crate::tree::Tree;

/// What is reported after each step, for one and the same moment.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
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

    /// Goes on with the bodies of a simulation that has [advanced](Simulation::advance) to step `step` and whose energy
    /// at the start was `first_energy`. Between drift and forces these are all that matters: the accelerations are
    /// spent. [`Simulation::accept`] the forces at [`Simulation::positions`] next.
    pub fn resume(bodies: Bodies, setup: &Setup, dt: f64, step: u64, first_energy: f64) -> Self {
        let mut simulation = Self::new(bodies, setup, dt);
        simulation.report.step = step;
        simulation.first_energy = first_energy;
        simulation
    }

    /// The energy before the first step, once its forces are in.
    pub fn first_energy(&self) -> f64 {
        self.first_energy
    }

    /// The step that the bodies are in.
    pub fn step(&self) -> u64 {
        self.report.step
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
        let potential_unit = self.mass_unit / at.side();
        let acceleration_unit = potential_unit / at.side();
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generate;
    use crate::options::{BarnesHut, Model, Order};
    use crate::shared::Accuracy;

    fn accuracy(theta: f64, softening: f64) -> Accuracy {
        Accuracy { order: Order::Quad, theta, softening, leaf: 16, group: 64 }
    }

    #[test]
    fn two_bodies_come_round() {
        // Masses 1 and 3 on a circle of diameter 2: the period is 2 pi sqrt(8 / 4).
        let speed = (4.0f64 / 2.0).sqrt();
        let mut bodies = Bodies::default();
        bodies.push([1.5, 0.0, 0.0], [0.0, 0.75 * speed, 0.0], 1.0);
        bodies.push([-0.5, 0.0, 0.0], [0.0, -0.25 * speed, 0.0], 3.0);
        let start = bodies.clone();
        let setup = Setup::new(&bodies, accuracy(0.5, 0.0));
        let off_after = |steps: u64| {
            let dt = std::f64::consts::TAU * 2f64.sqrt() / steps as f64;
            let mut worst: f64 = 0.0;
            let end = alone(start.clone(), &setup, dt, steps, |_, report| {
                worst = worst.max(report.energy_error.abs());
                assert!(report.momentum.iter().all(|p| p.abs() < 1e-6));
            });
            let end = end.unwrap();
            let off = [0, 1].map(|k| end.position[0][k] - start.position[0][k]);
            ((off[0] * off[0] + off[1] * off[1]).sqrt(), worst)
        };
        let (coarse, fine) = (off_after(100), off_after(200));
        assert!(coarse.0 < 0.02 && coarse.1 < 1e-3, "{coarse:?}");
        // Second order: half the step, a quarter of the error.
        assert!(coarse.0 / fine.0 > 3.5 && coarse.0 / fine.0 < 4.5, "{coarse:?} {fine:?}");
    }

    #[test]
    fn energy_and_momentum_are_kept() {
        let bodies = generate::plummer(3000, 11);
        let start = Bodies::clone(&bodies);
        let setup = Setup::new(&bodies, accuracy(0.5, 0.02));
        let mut reports = Vec::new();
        alone(bodies, &setup, 1.0 / 64.0, 20, |_, report| reports.push(*report)).unwrap();
        assert_eq!(reports.len(), 21);
        assert_eq!(reports[0].energy_error, 0.0);
        assert!((reports[0].energy() + 0.25).abs() < 0.02, "{:?}", reports[0]);
        assert_eq!(reports[0].kinetic, start.kinetic_energy());
        for report in &reports {
            assert!(report.energy_error.abs() < 1e-3, "{report:?}");
            // A tree's forces do not quite cancel in pairs.
            assert!(report.momentum.iter().all(|p| p.abs() < 1e-4), "{report:?}");
        }
    }

    #[test]
    fn energy_shows_the_error_of_a_step_too_long() {
        let options = BarnesHut { model: Model::Plummer, ..BarnesHut::default() };
        let bodies = generate::plummer(1000, 3);
        let setup = Setup::new(&bodies, Accuracy { softening: 0.05, ..options.accuracy() });
        let error = |dt: f64, steps| {
            let mut last = 0.0;
            alone(bodies.clone(), &setup, dt, steps, |_, report| last = report.energy_error)
                .unwrap();
            f64::abs(last)
        };
        let (short, long) = (error(1.0 / 64.0, 64), error(0.5, 2));
        assert!(short < 2e-3 && long > 5.0 * short, "{short} {long}");
    }

    #[test]
    fn a_body_that_leaves_the_range_of_numbers_is_named() {
        let mut bodies = Bodies::default();
        bodies.push([0.0; 3], [0.0; 3], 1.0);
        bodies.push([1.0, 0.0, 0.0], [1e100, 0.0, 0.0], 1.0);
        let setup = Setup::new(&bodies, accuracy(0.5, 0.0));
        let mut simulation = Simulation::new(bodies, &setup, 1e100);
        simulation.dt = 1e300;
        assert_eq!(
            simulation.advance().unwrap_err().to_string(),
            "step 1: body 1 has left the range of numbers; a smaller --dt or a larger --softening may help"
        );
    }

    #[test]
    fn a_simulation_resumed_between_drift_and_forces_goes_on_with_the_same_bits() {
        let setup = |bodies: &Bodies| Setup::new(bodies, accuracy(0.7, 0.05));
        let bodies = generate::galaxies(300, 4);
        let forces = |simulation: &mut Simulation, setup: &Setup| {
            let positions = simulation.positions();
            let tree = positions.tree(setup).unwrap();
            let bytes = crate::forces::all(tree);
            simulation.accept(&positions, &Forces { tree, pieces: vec![&bytes] }).unwrap()
        };
        let first = setup(&bodies);
        let mut whole = Simulation::new(bodies, &first, 0.1);
        forces(&mut whole, &first);
        for step in 1..=6 {
            whole.advance().unwrap();
            let there = whole.bodies().clone();
            // The setup depends on what does not change.
            let again = setup(&there);
            let mut resumed = Simulation::resume(there, &again, 0.1, step, whole.first_energy());
            assert_eq!(forces(&mut resumed, &again), forces(&mut whole, &first));
            assert_eq!(resumed.bodies(), whole.bodies());
        }
    }

    #[test]
    fn forces_for_other_bodies_are_refused() {
        let bodies = generate::plummer(10, 1);
        let setup = Setup::new(&bodies, accuracy(0.5, 0.0));
        let mut simulation = Simulation::new(bodies, &setup, 0.1);
        let positions = simulation.positions();
        let tree = positions.tree(&setup).unwrap();
        let forces = Forces { tree, pieces: vec![&[0; 16][..]; 9] };
        assert!(matches!(
            simulation.accept(&positions, &forces),
            Err(Broken::WrongForces { expected: 160, got: 144 })
        ));
        let other = Setup::new(&generate::plummer(11, 1), accuracy(0.5, 0.0));
        assert!(simulation.positions().tree(&other).is_err());
    }
}
