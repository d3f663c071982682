//! The job: its options determine the bodies, its steps become tasks over ranges of groups, and its
//! reports go to the client.
//!
//! This module connects the numerics to the runtime. It never writes a file: snapshots and pictures
//! are artefacts.

mod substep;
mod sums;

use std::borrow::Cow;
use std::ops::Range;

use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;
use springtide_runtime::malleable;
use springtide_runtime::share::{ObjectNeed, Version, Versioned};
use springtide_runtime::work::{
    Checkpoint, Context, InputError, Job, Outcome, PhaseClock, Registry, Stop, Task,
};

use crate::bodies::Bodies;
use crate::check::ForceError;
use crate::domains::Domains;
use crate::error::SimulationError;
use crate::history::RunHistory;
use crate::options::{BarnesHut, Broadcast, Distribution, Model, OptionError};
use crate::output::{artefacts, due, line, outcome};
use crate::picture::Camera;
use crate::rungs::Rungs;
use crate::setup::Setup;
use crate::shared::{Positions, PositionsChange};
use crate::simulate::{self, InitialQuantities, Simulation, StepReport};
use crate::tree::TreeScratch;
use crate::{calibrate, check, forces, generate, read};

use substep::Substep;
use sums::AccelerationSums;

impl Versioned for Setup {
    const NAME: &'static str = "barnes-hut.setup";
    type Delta = ();

    fn apply(&self, (): ()) -> Self {
        self.clone()
    }
}

impl Versioned for Positions {
    const NAME: &'static str = "barnes-hut.positions";
    type Delta = PositionsChange;

    fn apply(&self, change: PositionsChange) -> Self {
        self.changed(change)
    }
}

/// Computes the forces on a range of groups; splits in halves down to the grain.
#[derive(Debug, Serialize, Deserialize)]
pub struct Forces {
    first_group: u32,
    last_group: u32,
    /// The number of bodies in these groups.
    bodies: u32,
    grain: u32,
    setup: Version,
    positions: Version,
}

/// Forces on consecutive bodies in the tree's order, in pieces of [`forces::compute`]'s format.
///
/// Pieces of two tasks are concatenated as a list; their bytes are never copied.
#[derive(Debug, Serialize, Deserialize)]
pub struct Pieces(Vec<ByteBuf>);

impl Pieces {
    /// Concatenates the pieces of two tasks.
    fn of_both<T: Task<Output = Self>>(cx: &Context, left: T, right: T) -> Result<Self, Stop> {
        let (mut left, right) = cx.join(left, right)?;
        left.0.extend(right.0);
        Ok(left)
    }
}

impl Task for Forces {
    type Output = Pieces;
    const NAME: &'static str = "barnes-hut.forces";

    fn run(self, cx: &Context) -> Result<Pieces, Stop> {
        let setup = cx.get::<Setup>(0, self.setup)?;
        let positions = cx.get::<Positions>(0, self.positions)?;
        let tree = positions.tree_in(cx, &setup)?;
        let groups = self.first_group as usize..self.last_group as usize;
        if groups.start > groups.end || groups.end > tree.groups() {
            return Err(Stop::fail(format_args!(
                "groups {groups:?} do not lie within the {} of the tree",
                tree.groups()
            )));
        }
        if groups.len() < 2 || tree.bodies(groups.clone()).len() <= self.grain as usize {
            return Ok(Pieces(vec![ByteBuf::from(forces::compute(tree, groups))]));
        }
        // Indices of groups and numbers of bodies fit: they come from such values.
        let middle = tree.middle(groups.clone());
        let half = |groups: Range<usize>| Forces {
            first_group: groups.start as u32,
            last_group: groups.end as u32,
            bodies: tree.bodies(groups).len() as u32,
            ..self
        };
        Pieces::of_both(cx, half(groups.start..middle), half(middle..groups.end))
    }

    fn needs(&self) -> Vec<ObjectNeed> {
        needs(self.setup, self.positions)
    }

    /// The number of bodies of a task that does not split.
    ///
    /// The cost of a body depends on its surroundings, but the mean over many tasks hardly varies.
    fn cost(&self) -> Option<f64> {
        let groups = self.last_group.saturating_sub(self.first_group);
        (groups < 2 || self.bodies <= self.grain).then(|| self.bodies.into())
    }
}

/// The shared objects of each task on a version of the positions.
fn needs(setup: Version, positions: Version) -> Vec<ObjectNeed> {
    vec![ObjectNeed::of::<Setup>(0, setup), ObjectNeed::of::<Positions>(0, positions)]
}

impl Job for BarnesHut {
    const NAME: &'static str = "barnes-hut";
    const ABOUT: &'static str =
        "N-body simulation with an octree: colliding galaxies, a Plummer sphere or your bodies";

    fn register(registry: &mut Registry) {
        registry.task::<Forces>().versioned::<Setup>().versioned::<Positions>();
        registry.task::<Substep>().task::<AccelerationSums>();
        malleable::register::<Domains>(registry);
    }

    fn prepare(&mut self) -> Result<(), InputError> {
        self.check().map_err(InputError::new)?;
        let of_domains = self.rekey_every.is_some() || self.report_every != 1;
        if self.distribution == Distribution::Replicated && of_domains {
            return Err(InputError::new(OptionError::OnlyDomains));
        }
        if let Some(file) = self.input.take() {
            self.loaded = Some(read::file(&file).map_err(InputError::new)?);
        }
        if let Some(wanted) = self.force_error.take() {
            let generated;
            let bodies = match &self.loaded {
                Some(bodies) => bodies,
                None => {
                    generated = self.generate();
                    &generated
                }
            };
            let choice = calibrate::choose(bodies, self.accuracy(), wanted);
            if !choice.reached {
                return Err(InputError::new(format!(
                    "no forces with an error of {wanted:e} were found for these bodies, the best \
                     have {:.1e}; a larger --force-error will do",
                    choice.found
                )));
            }
            self.order = choice.order;
            self.cell_error = Some(choice.cell_error);
        }
        Ok(())
    }

    fn run(mut self, cx: &Context) -> Result<Outcome, Stop> {
        self.check()?;
        if self.distribution == Distribution::Domains {
            return malleable::run(Domains::new(self), cx);
        }
        let accuracy = self.accuracy();
        let dt = self.time_step();
        let bodies = self.loaded.take().unwrap_or_else(|| self.generate());
        let camera = Camera::around(&bodies, self.picture_size).with_width(self.picture_width);
        let setup = Setup::new(&bodies, accuracy).with_error(self.cell_error);
        let rungs = self.block_steps.map(|eta| Rungs::new(bodies.len(), eta, self.max_rung));
        let simulation = Simulation::new(bodies, &setup, dt).with_rungs(rungs);
        self.run_steps(
            cx,
            setup,
            RunState { simulation, camera, history: RunHistory::new(self.steps) },
        )
    }

    fn resume(self, state: Checkpoint, cx: &Context) -> Result<Outcome, Stop> {
        self.check()?;
        if self.distribution == Distribution::Domains {
            return malleable::resume(Domains::new(self), state, cx);
        }
        let SavedRun { step, first_energy, bodies, camera, history, first, rungs } = state.get()?;
        if step == 0 || step > self.steps {
            return Err(Stop::fail(format_args!(
                "the root's checkpoint is of step {step} of a run that has {} steps",
                self.steps
            )));
        }
        let bodies = bodies.into_owned();
        let setup = Setup::new(&bodies, self.accuracy()).with_error(self.cell_error);
        let dt = self.time_step();
        let rungs = rungs.map(Cow::into_owned);
        let fit = match (self.block_steps, &rungs) {
            (Some(eta), Some(rungs)) => rungs.fit(bodies.len(), eta, self.max_rung),
            (eta, rungs) => eta.is_none() && rungs.is_none(),
        };
        if !fit {
            return Err(SimulationError::OtherRungs.into());
        }
        let first = InitialQuantities { energy: first_energy, ..first };
        let simulation = Simulation::resume(bodies, &setup, dt, step, first).with_rungs(rungs);
        let (camera, history) = (camera.into_owned(), history.into_owned());
        self.run_steps(cx, setup, RunState { simulation, camera, history })
    }

    /// The forces on fewer bodies, once, with the options that determine the cost of a force.
    ///
    /// Bodies of a file are not copied; a Plummer sphere, in its own units, represents them.
    fn benchmark(&self) -> Option<Self> {
        let (from_file, bodies) = match &self.loaded {
            Some(loaded) => (true, loaded.len()),
            None => (false, self.bodies),
        };
        let Self { seed, theta, cell_error, order, leaf, group, grain, .. } = *self;
        Some(Self {
            model: if from_file { Model::Plummer } else { self.model },
            bodies: bodies.clamp(1, BENCHMARK_BODIES),
            softening: self.softening.filter(|_| !from_file),
            steps: 0,
            snapshot_every: 0,
            picture_every: 0,
            render: 0,
            checkpoint_every: 0,
            loaded: None,
            input: None,
            dt: None,
            snapshot_format: self.snapshot_format,
            picture_size: self.picture_size,
            picture_width: None,
            broadcast: self.broadcast,
            distribution: Distribution::Replicated,
            rekey_every: None,
            report_every: 1,
            costs: self.costs,
            seed,
            theta,
            cell_error,
            force_error: None,
            order,
            leaf,
            group,
            grain,
            block_steps: None,
            max_rung: self.max_rung,
            check_forces: 0,
            check_bodies: self.check_bodies,
        })
    }
}

/// The maximum number of bodies of the benchmark.
const BENCHMARK_BODIES: usize = 8000;

/// A run between drift and forces of a step, or before the forces at its start.
struct RunState {
    simulation: Simulation,
    camera: Camera,
    history: RunHistory,
}

/// Publishes the positions to the nodes.
struct Publisher {
    how: Broadcast,
    /// The version that this root published last. A new root starts again with whole positions,
    /// also after a checkpoint.
    last: Option<Version>,
    versions: u64,
    bytes: u64,
}

impl Publisher {
    fn new(how: Broadcast) -> Self {
        Self { how, last: None, versions: 0, bytes: 0 }
    }

    /// Publishes the next positions, as a change of the last ones or whole.
    ///
    /// The change is used if there are other nodes, the last version still exists and the change is
    /// shorter.
    fn publish(&mut self, cx: &Context, next: Positions) -> Result<Version, Stop> {
        let last = self.last.filter(|_| self.how == Broadcast::Changes && !cx.is_alone());
        let last = last.and_then(|version| cx.get::<Positions>(0, version).ok());
        let (version, bytes) = match last.and_then(|last| last.change_to(&next)) {
            Some(change) => {
                let bytes = change.wire_len();
                (cx.update::<Positions>(0, change)?, bytes)
            }
            None => {
                let bytes = next.wire_len();
                (cx.put(0, next)?, bytes)
            }
        };
        self.last = Some(version);
        if !cx.is_alone() {
            self.versions += 1;
            self.bytes += bytes as u64;
        }
        Ok(version)
    }

    /// A line about the versions that other nodes received, if there were any.
    fn line(&self, bodies: usize) -> Option<String> {
        let all = self.versions * bodies as u64;
        let each = self.bytes as f64 / all.max(1) as f64;
        let versions = self.versions;
        let line = || format!("broadcast: {each:.1} bytes a body in each of {versions} versions");
        (versions > 0).then(line)
    }
}

/// The state of a [`RunState`] in a checkpoint; all else follows from it and the job.
///
/// Shared objects are not included, for they are made from the bodies.
#[derive(Serialize, Deserialize)]
struct SavedRun<'a> {
    /// The step whose forces are computed next.
    step: u64,
    first_energy: f64,
    bodies: Cow<'a, Bodies>,
    camera: Cow<'a, Camera>,
    history: Cow<'a, RunHistory>,
    /// Its energy is above, for earlier versions.
    #[serde(default)]
    first: InitialQuantities,
    #[serde(default)]
    rungs: Option<Cow<'a, Rungs>>,
}

impl BarnesHut {
    /// Generates the bodies of the model.
    pub fn generate(&self) -> Bodies {
        match self.model {
            Model::Galaxies => generate::galaxies(self.bodies, self.seed),
            Model::Plummer => generate::plummer(self.bodies, self.seed),
            Model::Hernquist => generate::hernquist(self.bodies, self.seed),
            Model::Disk => generate::disk(self.bodies, self.seed),
            Model::Disks => generate::disks(self.bodies, self.seed),
        }
    }

    /// Runs the steps from here to the end, with one child per step. A resumed run has only those
    /// of later steps.
    fn run_steps(&self, cx: &Context, setup: Setup, course: RunState) -> Result<Outcome, Stop> {
        let RunState { mut simulation, camera, mut history } = course;
        if simulation.step() == 0 {
            cx.progress(0, self.steps, "steps");
        }
        let setup = cx.put(0, setup)?;
        let mut publisher = Publisher::new(self.broadcast);
        let (clock, mut scratch) = (PhaseClock::start(cx), TreeScratch::default());
        loop {
            let next = simulation.positions(&clock)?;
            clock.lap("integrate");
            let positions = publisher.publish(cx, next)?;
            clock.lap("exchange");
            if !simulation.wants_all() {
                self.substep(cx, (&clock, &mut scratch), &mut simulation, setup, positions)?;
                simulation.advance(&clock)?;
                continue;
            }
            let mut report =
                self.forces(cx, (&clock, &mut scratch), &mut simulation, setup, positions)?;
            let step = report.step;
            if due(self.check_forces, step) {
                clock.lap("integrate");
                report.force_error = self.force_error(cx, &clock, &simulation, setup, positions)?;
                clock.lap("check");
            }
            clock.lap("integrate");
            history.push(report);
            let (bodies, time) = (simulation.bodies(), simulation.time());
            artefacts(self, &camera, bodies, (step, time), &clock, |name, bytes| {
                cx.artifact(name, bytes);
                Ok(())
            })?;
            cx.report_text(line(&report));
            clock.lap("other");
            if step > 0 {
                cx.iteration_done_in(&clock);
                cx.progress(step, self.steps, "steps");
            }
            if step >= self.steps {
                if step > 0 {
                    let line = publisher.line(simulation.bodies().len());
                    line.into_iter().for_each(|line| cx.report_text(line));
                }
                return Ok(outcome(simulation.bodies(), &history));
            }
            simulation.advance(&clock)?;
            clock.lap("integrate");
            // After the drift the accelerations are used up and need not be saved.
            let wanted = self.checkpoint_every > 0 && cx.checkpoint_wanted();
            if step > 0 && (wanted || due(self.checkpoint_every, step)) {
                cx.checkpoint(&SavedRun {
                    step: simulation.step(),
                    first_energy: simulation.first().energy,
                    bodies: Cow::Borrowed(simulation.bodies()),
                    camera: Cow::Borrowed(&camera),
                    history: Cow::Borrowed(&history),
                    first: simulation.first(),
                    rungs: simulation.rungs().map(Cow::Borrowed),
                })?;
                clock.lap("checkpoint");
            }
        }
    }

    fn forces(
        &self,
        cx: &Context,
        (clock, scratch): (&PhaseClock<'_, '_>, &mut TreeScratch),
        simulation: &mut Simulation,
        setup: Version,
        positions: Version,
    ) -> Result<StepReport, Stop> {
        let shared = cx.get::<Positions>(0, positions)?;
        let constants = cx.get::<Setup>(0, setup)?;
        let tree =
            shared.tree_by(cx, &constants, (clock, scratch), &mut |stage| clock.lap(stage))?;
        let last_group = u32::try_from(tree.groups())?;
        let bodies = u32::try_from(tree.bodies(0..tree.groups()).len())?;
        let grain = self.grain;
        let task = Forces { first_group: 0, last_group, bodies, grain, setup, positions };
        let pieces = clock.call(task)?.0;
        clock.lap("forces");
        let pieces = pieces.iter().map(|piece| piece.as_slice()).collect();
        simulation.accept(clock, &shared, &simulate::Forces { tree, pieces })
    }

    /// Computes the forces on the bodies whose steps end within a base step.
    fn substep(
        &self,
        cx: &Context,
        (clock, scratch): (&PhaseClock<'_, '_>, &mut TreeScratch),
        simulation: &mut Simulation,
        setup: Version,
        positions: Version,
    ) -> Result<(), Stop> {
        let shared = cx.get::<Positions>(0, positions)?;
        let constants = cx.get::<Setup>(0, setup)?;
        let tree =
            shared.tree_by(cx, &constants, (clock, scratch), &mut |stage| clock.lap(stage))?;
        let groups = simulation.active_groups(tree);
        let each = |group: &u32| tree.bodies(*group as usize..*group as usize + 1).len();
        let bodies = u32::try_from(groups.iter().map(each).sum::<usize>())?;
        let grain = self.grain;
        let task = Substep { groups: groups.clone(), bodies, grain, setup, positions };
        let pieces = clock.call(task)?.0;
        clock.lap("forces");
        let pieces = pieces.iter().map(|piece| piece.as_slice()).collect();
        simulation.accept_some(clock, &shared, &groups, &simulate::Forces { tree, pieces })
    }

    /// Computes the error of the forces at these positions, by a sample of the bodies.
    fn force_error(
        &self,
        cx: &Context,
        clock: &PhaseClock<'_, '_>,
        simulation: &Simulation,
        setup: Version,
        positions: Version,
    ) -> Result<Option<ForceError>, Stop> {
        let count = simulation.bodies().len();
        let sample = check::sample(count, self.check_bodies as usize, self.seed);
        let (bodies, grain) = (u32::try_from(count)?, self.grain);
        let task = AccelerationSums { sample: sample.clone(), bodies, grain, setup, positions };
        let sums: Vec<u8> = clock.call(task)?.0.into_iter().flatten().collect();
        let shared = cx.get::<Positions>(0, positions)?;
        Ok(simulation.force_error(&shared, &sample, &sums))
    }
}

#[cfg(test)]
mod tests;
