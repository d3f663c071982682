//! The owner's side of a run: leapfrog in double precision, with one step for all bodies or block
//! time steps, and its conserved quantities.
//!
//! These are energy, momentum and angular momentum. This module does not depend on the place where
//! forces are computed. Source of the scheme (kick, drift, kick): for example J. S. Stadel, PhD
//! thesis, Univ. of Washington (2001), section 3.6. With block time steps: [`crate::rungs`].

use std::sync::atomic::{AtomicU32, Ordering};

use serde::{Deserialize, Serialize};

use crate::bodies::{Bodies, Motion, first_not_finite, length};
use crate::check::{self, ForceError};
pub use crate::error::SimulationError;
use crate::forces::{self, BYTES_A_BODY};
use crate::loops::{BODIES_PER_PIECE, Loops, OneThread};
use crate::rungs::Rungs;
use crate::setup::Setup;
use crate::shared::Positions;
use crate::tree::BodyTree;

/// The quantities that are reported after each step, all at one time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StepReport {
    /// The number of completed steps.
    pub step: u64,
    /// The sum of half mass times velocity squared.
    pub kinetic: f64,
    /// Half the sum of mass times potential, by the tree.
    pub potential: f64,
    /// The sum of mass times velocity.
    pub momentum: [f64; 3],
    /// (energy - first energy) / |first energy|; the difference itself if the first energy is zero.
    pub energy_error: f64,
    /// The sum of mass times position x velocity, about the origin.
    #[serde(default)]
    pub angular_momentum: [f64; 3],
    /// |angular momentum - the initial one| / initial sum of mass times |position x velocity|.
    ///
    /// The denominator is not zero if bodies move, while the angular momentum of a sphere may be.
    #[serde(default)]
    pub angular_momentum_error: f64,
    /// The number of forces computed in the step.
    ///
    /// With block time steps it includes bodies that share a group with one whose step ended, each
    /// as often as it was computed.
    #[serde(default)]
    pub forces: u64,
    /// The error of the forces, if it was checked.
    #[serde(default)]
    pub force_error: Option<ForceError>,
}

impl StepReport {
    /// Kinetic and potential energy.
    pub fn energy(&self) -> f64 {
        self.kinetic + self.potential
    }
}

/// The initial values of conserved quantities.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct InitialQuantities {
    /// Kinetic and potential energy.
    pub energy: f64,
    /// The angular momentum: see [`StepReport::angular_momentum`].
    pub angular_momentum: [f64; 3],
    /// The unit of its error: the sum of mass times |position x velocity|.
    pub turning: f64,
}

impl InitialQuantities {
    /// The values of [`StepReport::energy_error`] and [`StepReport::angular_momentum_error`] for
    /// these quantities.
    pub(crate) fn errors(&self, energy: f64, angular_momentum: [f64; 3]) -> [f64; 2] {
        let or_one = |scale: f64| if scale == 0.0 { 1.0 } else { scale.abs() };
        let off = [0, 1, 2].map(|k| angular_momentum[k] - self.angular_momentum[k]);
        [(energy - self.energy) / or_one(self.energy), length(off) / or_one(self.turning)]
    }
}

/// A simulation of bodies in motion.
#[derive(Debug)]
pub struct Simulation {
    bodies: Bodies,
    /// The acceleration of each body at the end of its last step.
    acceleration: Vec<[f64; 3]>,
    dt: f64,
    softening: f64,
    mass_unit: f64,
    first: InitialQuantities,
    report: StepReport,
    /// The rungs with block time steps; without, all bodies have one step.
    rungs: Option<Rungs>,
    /// Forces computed since the base step began.
    forces: u64,
    scratch: ForceScratch,
}

/// Memory in which each step's forces are accepted.
#[derive(Debug, Default)]
struct ForceScratch {
    /// The rows of all pieces side by side, so that they are found by their index.
    rows: Vec<[u8; BYTES_A_BODY]>,
    /// The index of each body in the tree's order.
    places: Vec<AtomicU32>,
}

/// Forces on bodies in the tree's order, in one or more pieces of [`crate::forces::compute`]'s
/// format.
pub struct Forces<'a> {
    /// The tree that defines the order.
    pub tree: &'a BodyTree,
    /// The pieces of the forces.
    pub pieces: Vec<&'a [u8]>,
}

impl Simulation {
    /// A simulation before its first step; `setup` must have been made from these bodies.
    ///
    /// The next call must be [`Simulation::accept`], with the forces at [`Simulation::positions`].
    pub fn new(bodies: Bodies, setup: &Setup, dt: f64) -> Self {
        let acceleration = vec![[0.0; 3]; bodies.len()];
        let (softening, mass_unit) = (setup.softening, setup.mass_unit);
        let (first, report) = (InitialQuantities::default(), StepReport::default());
        Self {
            bodies,
            acceleration,
            dt,
            softening,
            mass_unit,
            first,
            report,
            rungs: None,
            forces: 0,
            scratch: ForceScratch::default(),
        }
    }

    /// Uses block time steps, if rungs are given: `dt` is the longest step.
    pub fn with_rungs(self, rungs: Option<Rungs>) -> Self {
        Self { rungs, ..self }
    }

    /// Continues a simulation that has [advanced](Simulation::advance) from the end of a step into
    /// step `step`.
    ///
    /// `first` has its initial values. Between drift and forces the bodies and rungs are the whole
    /// state; the accelerations are used up. The next call must accept the forces at
    /// [`Simulation::positions`].
    pub fn resume(
        bodies: Bodies,
        setup: &Setup,
        dt: f64,
        step: u64,
        first: InitialQuantities,
    ) -> Self {
        let mut simulation = Self::new(bodies, setup, dt);
        simulation.report.step = step;
        simulation.first = first;
        simulation
    }

    /// The initial values of conserved quantities, once the first forces are accepted.
    pub fn first(&self) -> InitialQuantities {
        self.first
    }

    /// The number of the present step.
    pub fn step(&self) -> u64 {
        self.report.step
    }

    /// The time since the start at the end of the present step.
    pub fn time(&self) -> f64 {
        self.report.step as f64 * self.dt
    }

    /// The rungs of the bodies, with block time steps.
    pub fn rungs(&self) -> Option<&Rungs> {
        self.rungs.as_ref()
    }

    /// The positions whose forces are needed, rounded as they are shared.
    ///
    /// # Errors
    /// The loops must stop.
    pub fn positions<L: Loops>(&self, loops: &L) -> Result<Positions, L::Stop> {
        Positions::rounded(loops, &self.bodies.position, self.softening)
    }

    /// Whether the forces on all bodies are needed now, by [`Simulation::accept`].
    ///
    /// If not, those of [`Simulation::active_groups`] are needed, by [`Simulation::accept_some`].
    pub fn wants_all(&self) -> bool {
        self.rungs.as_ref().is_none_or(Rungs::at_end)
    }

    /// The groups of the tree with a body whose forces are needed, in ascending order.
    pub fn active_groups(&self, tree: &BodyTree) -> Vec<u32> {
        let active = |group: &usize| {
            let bodies = &tree.order()[tree.bodies(*group..group + 1)];
            bodies.iter().any(|&body| self.is_active(body as usize))
        };
        (0..tree.groups()).filter(active).map(|group| group as u32).collect()
    }

    /// Does half a kick for steps that begin, and the drift; bodies are then at the places of the
    /// next forces.
    ///
    /// # Errors
    /// [`SimulationError::NotFinite`], or the loops must stop.
    pub fn advance<L: Loops>(&mut self, loops: &L) -> Result<(), L::Stop> {
        let begins = self.wants_all();
        if begins {
            self.report.step += 1;
            self.forces = 0;
            if let Some(rungs) = &mut self.rungs {
                rungs.begin();
            }
            self.choose_rungs();
        }
        let Self { bodies, acceleration, dt, rungs, .. } = self;
        let dt = *dt;
        let time = rungs.as_mut().map_or(1.0, Rungs::advance) * dt;
        let part = |body: usize| rungs.as_ref().map_or(1.0, |rungs| rungs.part(body));
        let Bodies { position, velocity, .. } = bodies;
        let mut chunks: Vec<_> = position
            .chunks_mut(BODIES_PER_PIECE)
            .zip(velocity.chunks_mut(BODIES_PER_PIECE))
            .map(|(position, velocity)| (position, velocity, None))
            .collect();
        loops.parallel_chunks(&mut chunks, 1, |chunk, chunks| {
            let first = chunk * BODIES_PER_PIECE;
            for (position, velocity, not_finite) in chunks {
                for (at, (x, v)) in position.iter_mut().zip(&mut **velocity).enumerate() {
                    if begins {
                        kick(v, &acceleration[first + at], half(part(first + at), dt));
                    }
                    for axis in 0..3 {
                        x[axis] += v[axis] * time;
                    }
                }
                *not_finite = first_not_finite(position, velocity).map(|at| first + at);
            }
        })?;
        let found = chunks.iter().find_map(|(.., not_finite)| *not_finite);
        self.check(found)?;
        Ok(())
    }

    /// Accepts the forces on all bodies at these positions, and completes the step by the other
    /// half kick.
    ///
    /// There is no kick before the first step.
    ///
    /// # Errors
    /// [`SimulationError::WrongForces`], [`SimulationError::NotFinite`], or the loops must stop.
    pub fn accept<L: Loops>(
        &mut self,
        loops: &L,
        at: &Positions,
        forces: &Forces,
    ) -> Result<StepReport, L::Stop> {
        let (twice_potential, motion) = self.take_all(loops, at, forces)?;
        let Motion { twice_kinetic, momentum, turning } = motion;
        self.report.kinetic = 0.5 * twice_kinetic;
        self.report.potential = 0.5 * twice_potential;
        self.report.momentum = momentum;
        self.report.angular_momentum = turning.sum;
        self.report.forces = self.forces;
        let energy = self.report.energy();
        if self.report.step == 0 {
            self.first = InitialQuantities {
                energy,
                angular_momentum: turning.sum,
                turning: turning.magnitudes,
            };
        }
        [self.report.energy_error, self.report.angular_momentum_error] =
            self.first.errors(energy, turning.sum);
        Ok(self.report)
    }

    /// Accepts the forces on the bodies of [these groups](Simulation::active_groups).
    ///
    /// Bodies whose steps end now do the second half kick of the old step and the first of the
    /// next.
    ///
    /// # Errors
    /// [`SimulationError::WrongForces`], [`SimulationError::NotFinite`], or the loops must stop.
    pub fn accept_some<L: Loops>(
        &mut self,
        loops: &L,
        at: &Positions,
        groups: &[u32],
        forces: &Forces,
    ) -> Result<(), L::Stop> {
        self.take_some(at, forces, groups)?;
        self.kick_active(loops)?;
        self.choose_rungs();
        self.kick_active(loops)?;
        let Bodies { position, velocity, .. } = &self.bodies;
        let found = loops.parallel_map(0..position.len(), BODIES_PER_PIECE, |piece| {
            let found = first_not_finite(&position[piece.clone()], &velocity[piece.clone()]);
            found.map(|body| piece.start + body)
        })?;
        self.check(found.into_iter().flatten().next())?;
        Ok(())
    }

    /// The error of the last forces; `exact` has those on the bodies of the sample, in
    /// [`check::exact`]'s format.
    pub fn force_error(&self, at: &Positions, sample: &[u32], exact: &[u8]) -> Option<ForceError> {
        let unit = self.mass_unit / at.side() / at.side();
        check::compare(sample.iter().zip(exact.chunks_exact(check::BYTES_A_BODY)).map(
            |(&body, row)| {
                let value = |at: usize| {
                    let bytes = row[at..at + 8].try_into().expect("eight bytes were cut");
                    f64::from_le_bytes(bytes) * unit
                };
                (self.acceleration[body as usize], [value(0), value(8), value(16)])
            },
        ))
    }

    /// The present state of the bodies.
    pub fn bodies(&self) -> &Bodies {
        &self.bodies
    }

    /// Stores the accelerations of all bodies, and ends their steps. Returns the sum of mass times
    /// potential, and the sums over their motion.
    fn take_all<L: Loops>(
        &mut self,
        loops: &L,
        at: &Positions,
        forces: &Forces,
    ) -> Result<(f64, Motion), L::Stop> {
        let order = forces.tree.order();
        forces.check(order.len(), self.bodies.len())?;
        let [acceleration_unit, potential_unit] = self.units(at);
        let ForceScratch { rows, places } = &mut self.scratch;
        rows.resize(order.len(), [0; BYTES_A_BODY]);
        places.resize_with(order.len(), AtomicU32::default);
        let mut rest = &mut rows[..];
        let mut copies = Vec::with_capacity(forces.pieces.len());
        for piece in &forces.pieces {
            let (of_piece, _) = piece.as_chunks::<BYTES_A_BODY>();
            let to = rest.split_off_mut(..of_piece.len());
            copies.push((of_piece, to.expect("the pieces have a row for each body")));
        }
        loops.parallel_chunks(&mut copies, 1, |_, copies| {
            copies.iter_mut().for_each(|(from, to)| to.copy_from_slice(from));
        })?;
        let (rows, places) = (&*rows, &*places);
        loops.parallel_for(0..order.len(), BODIES_PER_PIECE, |piece| {
            for (body, at) in order[piece.clone()].iter().zip(piece) {
                places[*body as usize].store(at as u32, Ordering::Relaxed);
            }
        })?;
        /// The sums over the bodies of a chunk.
        #[derive(Default)]
        struct ChunkSums {
            twice_potential: f64,
            motion: Motion,
            not_finite: Option<usize>,
        }
        let (ends, dt, rungs) = (self.report.step > 0, self.dt, &self.rungs);
        let part = |body: usize| rungs.as_ref().map_or(1.0, |rungs| rungs.part(body));
        let Bodies { position, velocity, mass, .. } = &mut self.bodies;
        let (position, mass) = (&*position, &*mass);
        let mut chunks: Vec<_> = self
            .acceleration
            .chunks_mut(BODIES_PER_PIECE)
            .zip(velocity.chunks_mut(BODIES_PER_PIECE))
            .map(|(acceleration, velocity)| (acceleration, velocity, ChunkSums::default()))
            .collect();
        loops.parallel_chunks(&mut chunks, 1, |chunk, chunks| {
            for (acceleration, velocity, sums) in chunks {
                let first = chunk * BODIES_PER_PIECE;
                // A loop of its own: rows lie anywhere, and a short loop waits for many at once.
                for (a, body) in acceleration.iter_mut().zip(first..) {
                    let place = places[body].load(Ordering::Relaxed);
                    let [x, y, z, potential] = forces::row(&rows[place as usize]);
                    *a = [x, y, z].map(|pull| pull * acceleration_unit);
                    sums.twice_potential += mass[body] * (potential * potential_unit);
                }
                for ((a, v), body) in acceleration.iter().zip(&mut **velocity).zip(first..) {
                    if ends {
                        kick(v, a, half(part(body), dt));
                    }
                    sums.motion.add_body(mass[body], &position[body], v);
                }
                let found = first_not_finite(&position[first..][..velocity.len()], velocity);
                sums.not_finite = found.map(|at| first + at);
            }
        })?;
        let (mut twice_potential, mut motion, mut found) = (0.0, Motion::default(), None);
        for (.., sums) in &chunks {
            twice_potential += sums.twice_potential;
            motion.add(&sums.motion);
            found = found.or(sums.not_finite);
        }
        self.forces += order.len() as u64;
        self.check(found)?;
        Ok((twice_potential, motion))
    }

    /// Stores the accelerations of the bodies of these groups.
    fn take_some(
        &mut self,
        at: &Positions,
        forces: &Forces,
        groups: &[u32],
    ) -> Result<(), SimulationError> {
        let tree = forces.tree;
        let order = |group: &u32| {
            let group = *group as usize;
            &tree.order()[tree.bodies(group..group + 1)]
        };
        let due: usize = groups.iter().map(|group| order(group).len()).sum();
        forces.check(due, self.bodies.len())?;
        let [acceleration_unit, _] = self.units(at);
        let rows = forces.pieces.iter().flat_map(|piece| piece.chunks_exact(BYTES_A_BODY));
        for (row, &body) in rows.zip(groups.iter().flat_map(order)) {
            let [x, y, z, _] = forces::row(row);
            self.acceleration[body as usize] = [x, y, z].map(|pull| pull * acceleration_unit);
        }
        self.forces += due as u64;
        Ok(())
    }

    /// The user's units of acceleration and potential for those of the box: powers of two, so
    /// products are exact.
    fn units(&self, at: &Positions) -> [f64; 2] {
        let potential = self.mass_unit / at.side();
        [potential / at.side(), potential]
    }

    fn is_active(&self, body: usize) -> bool {
        self.rungs.as_ref().is_none_or(|rungs| rungs.is_active(body))
    }

    /// Chooses the next step of each body whose step ends now.
    fn choose_rungs(&mut self) {
        if let Some(rungs) = &mut self.rungs {
            for (body, a) in self.acceleration.iter().enumerate() {
                if rungs.is_active(body) {
                    let square = a[0] * a[0] + a[1] * a[1] + a[2] * a[2];
                    rungs.choose(body, square, self.dt, self.softening);
                }
            }
        }
    }

    /// Half of a kick for each body whose step begins or ends now, with block time steps.
    fn kick_active<L: Loops>(&mut self, loops: &L) -> Result<(), L::Stop> {
        let Self { bodies, acceleration, dt, rungs: Some(rungs), .. } = self else { return Ok(()) };
        loops.parallel_chunks(&mut bodies.velocity, BODIES_PER_PIECE, |first, velocity| {
            for (body, v) in (first..).zip(velocity) {
                if rungs.is_active(body) {
                    kick(v, &acceleration[body], half(rungs.part(body), *dt));
                }
            }
        })
    }

    /// Returns an error if there is a body without finite numbers.
    fn check(&self, not_finite: Option<usize>) -> Result<(), SimulationError> {
        let step = self.report.step;
        not_finite.map_or(Ok(()), |body| Err(SimulationError::NotFinite { step, body }))
    }
}

/// Half of a body's step, which is this part of the base step.
fn half(part: f64, base: f64) -> f64 {
    0.5 * (part * base)
}

fn kick(velocity: &mut [f64; 3], acceleration: &[f64; 3], time: f64) {
    for axis in 0..3 {
        velocity[axis] += acceleration[axis] * time;
    }
}

impl Forces<'_> {
    /// Checks that there are rows for this number of bodies, and a tree of all.
    fn check(&self, due: usize, bodies: usize) -> Result<(), SimulationError> {
        let expected = due * BYTES_A_BODY;
        let got = self.pieces.iter().map(|piece| piece.len()).sum();
        let whole = self.pieces.iter().all(|piece| piece.len().is_multiple_of(BYTES_A_BODY));
        if got == expected && whole && self.tree.order().len() == bodies {
            return Ok(());
        }
        Err(SimulationError::WrongForces { expected, got })
    }
}

/// Accelerations of the bodies of these groups (ascending), in [`crate::forces::compute`]'s format
/// without potentials.
///
/// The result for a group does not depend on the other groups.
///
/// # Panics
/// Panics if there is no such group in the tree.
pub fn accelerations(tree: &BodyTree, groups: &[u32]) -> Vec<u8> {
    let mut bytes = Vec::new();
    // Neighbours share lists, so they are computed together.
    for row in groups.chunk_by(|a, b| a + 1 == *b) {
        if let (Some(first), Some(last)) = (row.first(), row.last()) {
            let range = *first as usize..*last as usize + 1;
            bytes.append(&mut crate::forces::accelerations(tree, range));
        }
    }
    bytes
}

/// Runs `steps` steps on this thread; calls `each` before the first step and after every step.
///
/// # Errors
/// [`SimulationError`].
pub fn run(
    bodies: Bodies,
    setup: &Setup,
    dt: f64,
    steps: u64,
    each: impl FnMut(&Simulation, &StepReport),
) -> Result<Bodies, SimulationError> {
    run_simulation(Simulation::new(bodies, setup, dt), setup, steps, each)
}

/// Runs a simulation before its first step: see [`run`].
///
/// # Errors
/// [`SimulationError`].
pub fn run_simulation(
    mut simulation: Simulation,
    setup: &Setup,
    steps: u64,
    mut each: impl FnMut(&Simulation, &StepReport),
) -> Result<Bodies, SimulationError> {
    loop {
        let positions = simulation.positions(&OneThread)?;
        let tree = positions.tree(setup).expect("the setup was made from these bodies");
        if simulation.wants_all() {
            let bytes = crate::forces::all(tree);
            let forces = Forces { tree, pieces: vec![&bytes] };
            let report = simulation.accept(&OneThread, &positions, &forces)?;
            each(&simulation, &report);
            if report.step >= steps {
                return Ok(simulation.bodies);
            }
        } else {
            let groups = simulation.active_groups(tree);
            let bytes = accelerations(tree, &groups);
            let forces = Forces { tree, pieces: vec![&bytes] };
            simulation.accept_some(&OneThread, &positions, &groups, &forces)?;
        }
        simulation.advance(&OneThread)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generate;
    use crate::options::{BarnesHut, Model};
    use crate::setup::{Accuracy, CellExpansion};

    fn accuracy(theta: f64, softening: f64) -> Accuracy {
        Accuracy { order: CellExpansion::Quad, theta, softening, leaf: 16, group: 64 }
    }

    #[test]
    fn two_bodies_return_after_a_period() {
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
            let end = run(start.clone(), &setup, dt, steps, |_, report| {
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
    fn energy_and_momentum_are_conserved() {
        let bodies = generate::plummer(3000, 11);
        let start = Bodies::clone(&bodies);
        let setup = Setup::new(&bodies, accuracy(0.5, 0.02));
        let mut reports = Vec::new();
        run(bodies, &setup, 1.0 / 64.0, 20, |_, report| reports.push(*report)).unwrap();
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
            run(bodies.clone(), &setup, dt, steps, |_, report| last = report.energy_error).unwrap();
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
            simulation.advance(&OneThread).unwrap_err().to_string(),
            "step 1: body 1 has left the range of numbers; a smaller --dt or a larger \
             --softening may help"
        );
    }

    #[test]
    fn a_simulation_resumed_between_drift_and_forces_has_the_same_bits() {
        let setup = |bodies: &Bodies| Setup::new(bodies, accuracy(0.7, 0.05));
        let bodies = generate::galaxies(300, 4);
        let forces = |simulation: &mut Simulation, setup: &Setup| {
            let positions = simulation.positions(&OneThread).unwrap();
            let tree = positions.tree(setup).unwrap();
            let bytes = crate::forces::all(tree);
            simulation
                .accept(&OneThread, &positions, &Forces { tree, pieces: vec![&bytes] })
                .unwrap()
        };
        let first = setup(&bodies);
        let mut whole = Simulation::new(bodies, &first, 0.1);
        forces(&mut whole, &first);
        for step in 1..=6 {
            whole.advance(&OneThread).unwrap();
            let there = whole.bodies().clone();
            // The setup depends on constants alone.
            let again = setup(&there);
            let mut resumed = Simulation::resume(there, &again, 0.1, step, whole.first());
            assert_eq!(forces(&mut resumed, &again), forces(&mut whole, &first));
            assert_eq!(resumed.bodies(), whole.bodies());
        }
    }

    /// Masses 1 and 1 that approach to a twentieth of their largest distance: the work is at the
    /// pericentre.
    fn eccentric() -> Bodies {
        let mut bodies = Bodies::default();
        // Semi-major axis 1, eccentricity 0.9, at the apocentre.
        let speed = 0.5 * (2.0f64 * (2.0 / 1.9 - 1.0)).sqrt();
        bodies.push([0.95, 0.0, 0.0], [0.0, speed, 0.0], 1.0);
        bodies.push([-0.95, 0.0, 0.0], [0.0, -speed, 0.0], 1.0);
        bodies
    }

    /// The largest error of energy and the forces computed, in a run to time `end` in base steps of
    /// `dt`.
    fn course(
        bodies: &Bodies,
        softening: f64,
        dt: f64,
        end: f64,
        rungs: Option<(f64, u32)>,
    ) -> (f64, u64, u64) {
        // Groups of one body: forces are computed for active bodies alone.
        let accuracy = Accuracy { group: 1, ..accuracy(0.3, softening) };
        let setup = Setup::new(bodies, accuracy);
        let rungs = rungs.map(|(eta, deepest)| Rungs::new(bodies.len(), eta, deepest));
        let simulation = Simulation::new(bodies.clone(), &setup, dt).with_rungs(rungs);
        let (mut worst, mut forces) = (0.0, 0);
        let steps = (end / dt).round() as u64;
        let end = run_simulation(simulation, &setup, steps, |_, report| {
            worst = f64::max(worst, report.energy_error.abs());
            forces += report.forces;
        });
        (worst, forces, end.unwrap().checksum())
    }

    #[test]
    fn with_one_rung_block_steps_have_the_bits_of_one_step_for_all() {
        for bodies in [generate::galaxies(500, 3), generate::plummer(500, 3)] {
            let plain = course(&bodies, 0.05, 0.03, 0.3, None);
            // No halving is allowed, or none is needed.
            for rungs in [(1e-3, 0), (1e9, 6)] {
                assert_eq!(course(&bodies, 0.05, 0.03, 0.3, Some(rungs)), plain);
            }
            // All halve twice: the same steps, reported at every fourth only.
            let (_, forces, bits) = course(&bodies, 0.05, 0.12, 0.36, Some((1e-9, 2)));
            let (_, plain_forces, plain_bits) = course(&bodies, 0.05, 0.03, 0.36, None);
            assert_eq!((bits, forces), (plain_bits, plain_forces));
        }
    }

    #[test]
    fn at_equal_work_block_steps_keep_the_energy_better() {
        let period = std::f64::consts::TAU / 2f64.sqrt();
        let bodies = eccentric();
        let (blocks, work, _) = course(&bodies, 1e-3, period / 32.0, 4.0 * period, Some((0.3, 10)));
        let per_period = (work as f64 / 8.0).ceil();
        let (plain, more, _) = course(&bodies, 1e-3, period / per_period, 4.0 * period, None);
        assert!(more >= work && blocks < 0.2 * plain, "{blocks} {plain}: {work} {more} forces");
    }
    #[test]
    fn forces_for_other_bodies_are_refused() {
        let bodies = generate::plummer(10, 1);
        let setup = Setup::new(&bodies, accuracy(0.5, 0.0));
        let mut simulation = Simulation::new(bodies, &setup, 0.1);
        let positions = simulation.positions(&OneThread).unwrap();
        let tree = positions.tree(&setup).unwrap();
        let forces = Forces { tree, pieces: vec![&[0; 16][..]; 9] };
        assert!(matches!(
            simulation.accept(&OneThread, &positions, &forces),
            Err(SimulationError::WrongForces { expected: 160, got: 144 })
        ));
        let other = Setup::new(&generate::plummer(11, 1), accuracy(0.5, 0.0));
        assert!(simulation.positions(&OneThread).unwrap().tree(&other).is_err());
    }
}
