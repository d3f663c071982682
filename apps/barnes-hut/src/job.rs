//! The job: its options become bodies, its steps become tasks over ranges of groups, its reports go to whoever watches.
//!
//! The one module that knows the runtime. It never writes a file: snapshots and pictures are handed over as artefacts.

mod substep;
mod sums;

use std::borrow::Cow;
use std::ops::Range;

use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;
use springtide_runtime::malleable;
use springtide_runtime::share::{Need, Version, Versioned};
use springtide_runtime::work::{
    Checkpoint, Context, InputError, Job, Outcome, Registry, Stop, Task,
};

use crate::bodies::Bodies;
use crate::check::ForceError;
use crate::domains::Domains;
use crate::history::History;
use crate::options::{BarnesHut, Broadcast, Distribution, Model, SnapshotFormat};
use crate::picture::Camera;
use crate::rungs::Rungs;
use crate::shared::{Change, Positions, Setup};
use crate::simulate::{self, First, Report, Simulation};
use crate::{calibrate, check, forces, gadget, generate, read, write};

use substep::Substep;
use sums::Sums;

impl Versioned for Setup {
    const NAME: &'static str = "barnes-hut.setup";
    type Delta = ();

    fn apply(&self, (): ()) -> Self {
        self.clone()
    }
}

impl Versioned for Positions {
    const NAME: &'static str = "barnes-hut.positions";
    type Delta = Change;

    fn apply(&self, change: Change) -> Self {
        self.changed(change)
    }
}

/// Computes the forces on a range of groups; splits in halves down to the grain.
#[derive(Debug, Serialize, Deserialize)]
pub struct Forces {
    first_group: u32,
    last_group: u32,
    /// Bodies in these groups.
    bodies: u32,
    grain: u32,
    setup: Version,
    positions: Version,
}

/// Forces on consecutive bodies in the tree's order, in pieces of [`forces::compute`]'s format. Pieces are put one after
/// another on the way up and never copied together.
#[derive(Debug, Serialize, Deserialize)]
pub struct Pieces(Vec<ByteBuf>);

impl Task for Forces {
    type Output = Pieces;
    const NAME: &'static str = "barnes-hut.forces";

    fn run(self, cx: &Context) -> Result<Pieces, Stop> {
        let setup = cx.get::<Setup>(0, self.setup)?;
        let positions = cx.get::<Positions>(0, self.positions)?;
        let tree = positions.tree(&setup)?;
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
        // Indices of groups and numbers of bodies fit: they come from such.
        let middle = tree.middle(groups.clone());
        let half = |groups: Range<usize>| Forces {
            first_group: groups.start as u32,
            last_group: groups.end as u32,
            bodies: tree.bodies(groups).len() as u32,
            ..self
        };
        let (mut left, right) = cx.join(half(groups.start..middle), half(middle..groups.end))?;
        left.0.extend(right.0);
        Ok(left)
    }

    fn needs(&self) -> Vec<Need> {
        vec![Need::of::<Setup>(0, self.setup), Need::of::<Positions>(0, self.positions)]
    }

    /// The bodies, where it does not split: what one costs depends on how crowded it is around it, but on the mean of many
    /// tasks little.
    fn cost(&self) -> Option<f64> {
        let groups = self.last_group.saturating_sub(self.first_group);
        (groups < 2 || self.bodies <= self.grain).then(|| self.bodies.into())
    }
}

impl Job for BarnesHut {
    const NAME: &'static str = "barnes-hut";
    const ABOUT: &'static str =
        "N-body simulation with an octree: colliding galaxies, a Plummer sphere or your bodies";

    fn register(registry: &mut Registry) {
        registry.task::<Forces>().versioned::<Setup>().versioned::<Positions>();
        registry.task::<Substep>().task::<Sums>();
        malleable::register::<Domains>(registry);
    }

    fn prepare(&mut self) -> Result<(), InputError> {
        self.check().map_err(InputError::new)?;
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
                    "no forces with an error of {wanted:e} were found for these bodies, the best have {:.1e}; a larger --force-error will do",
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
        self.go_on(cx, setup, Course { simulation, camera, history: History::new(self.steps) })
    }

    fn resume(self, state: Checkpoint, cx: &Context) -> Result<Outcome, Stop> {
        self.check()?;
        if self.distribution == Distribution::Domains {
            return malleable::resume(Domains::new(self), state, cx);
        }
        let Saved { step, first_energy, bodies, camera, history, first, rungs } = state.get()?;
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
            return Err(simulate::Broken::OtherRungs.into());
        }
        let first = First { energy: first_energy, ..first };
        let simulation = Simulation::resume(bodies, &setup, dt, step, first).with_rungs(rungs);
        let (camera, history) = (camera.into_owned(), history.into_owned());
        self.go_on(cx, setup, Course { simulation, camera, history })
    }

    /// The forces on fewer bodies, once: with the options that make them dear or cheap. Bodies of a file stay where they are;
    /// a Plummer sphere, in its own units, stands for them.
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
            rekey_every: self.rekey_every,
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

/// Most bodies of the benchmark.
const BENCHMARK_BODIES: usize = 8000;

/// A run between drift and forces of a step, or before the forces at its start.
struct Course {
    simulation: Simulation,
    camera: Camera,
    history: History,
}

/// Positions on their way to the nodes.
struct Publisher {
    how: Broadcast,
    /// What this root published last. It changes no other root's: after a checkpoint positions begin anew.
    last: Option<Version>,
    versions: u64,
    bytes: u64,
}

impl Publisher {
    fn new(how: Broadcast) -> Self {
        Self { how, last: None, versions: 0, bytes: 0 }
    }

    /// Publishes the next positions: as a change of the last ones where these are still here and that is shorter, else
    /// whole.
    fn publish(&mut self, cx: &Context, next: Positions) -> Result<Version, Stop> {
        let last = self.last.filter(|_| self.how == Broadcast::Changes);
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
        self.versions += 1;
        self.bytes += bytes as u64;
        Ok(version)
    }

    fn line(&self, bodies: usize) -> String {
        let all = self.versions * bodies as u64;
        let each = self.bytes as f64 / all.max(1) as f64;
        format!("broadcast: {each:.1} bytes a body in each of {} versions", self.versions)
    }
}

/// What a checkpoint keeps of a [`Course`]; all else follows from these and the job. Shared objects are not among them:
/// both are made from the bodies.
#[derive(Serialize, Deserialize)]
struct Saved<'a> {
    /// Whose forces come next.
    step: u64,
    first_energy: f64,
    bodies: Cow<'a, Bodies>,
    camera: Cow<'a, Camera>,
    history: Cow<'a, History>,
    /// Its energy is told above, as it was by earlier versions.
    #[serde(default)]
    first: First,
    #[serde(default)]
    rungs: Option<Cow<'a, Rungs>>,
}

impl BarnesHut {
    /// The bodies of the model.
    pub fn generate(&self) -> Bodies {
        match self.model {
            Model::Galaxies => generate::galaxies(self.bodies, self.seed),
            Model::Plummer => generate::plummer(self.bodies, self.seed),
            Model::Hernquist => generate::hernquist(self.bodies, self.seed),
            Model::Disk => generate::disk(self.bodies, self.seed),
            Model::Disks => generate::disks(self.bodies, self.seed),
        }
    }

    /// The run from here to its end. One child a step, also in a resumed run: none but those of the steps to come.
    fn go_on(&self, cx: &Context, setup: Setup, course: Course) -> Result<Outcome, Stop> {
        let Course { mut simulation, camera, mut history } = course;
        if simulation.step() == 0 {
            cx.progress(0, self.steps, "steps");
        }
        let setup = cx.put(0, setup)?;
        let mut publisher = Publisher::new(self.broadcast);
        loop {
            let positions = publisher.publish(cx, simulation.positions())?;
            if !simulation.wants_all() {
                self.substep(cx, &mut simulation, setup, positions)?;
                simulation.advance()?;
                continue;
            }
            let mut report = self.forces(cx, &mut simulation, setup, positions)?;
            let step = report.step;
            if due(self.check_forces, step) {
                report.force_error = self.force_error(cx, &simulation, setup, positions)?;
            }
            history.push(report);
            let (bodies, time) = (simulation.bodies(), simulation.time());
            artefacts(self, &camera, bodies, (step, time), |name, bytes| {
                cx.artifact(name, bytes);
                Ok(())
            })?;
            cx.say(line(&report));
            if step > 0 {
                cx.iteration_done();
                cx.progress(step, self.steps, "steps");
            }
            if step >= self.steps {
                if step > 0 {
                    cx.say(publisher.line(simulation.bodies().len()));
                }
                return Ok(outcome(simulation.bodies(), &history));
            }
            simulation.advance()?;
            // After the drift, when the accelerations are spent and need not be kept.
            let wanted = self.checkpoint_every > 0 && cx.checkpoint_wanted();
            if step > 0 && (wanted || due(self.checkpoint_every, step)) {
                cx.checkpoint(&Saved {
                    step: simulation.step(),
                    first_energy: simulation.first().energy,
                    bodies: Cow::Borrowed(simulation.bodies()),
                    camera: Cow::Borrowed(&camera),
                    history: Cow::Borrowed(&history),
                    first: simulation.first(),
                    rungs: simulation.rungs().map(Cow::Borrowed),
                })?;
            }
        }
    }

    fn forces(
        &self,
        cx: &Context,
        simulation: &mut Simulation,
        setup: Version,
        positions: Version,
    ) -> Result<Report, Stop> {
        let shared = cx.get::<Positions>(0, positions)?;
        let tree = shared.tree(&*cx.get::<Setup>(0, setup)?)?;
        let last_group = u32::try_from(tree.groups())?;
        let bodies = u32::try_from(tree.bodies(0..tree.groups()).len())?;
        let grain = self.grain;
        let task = Forces { first_group: 0, last_group, bodies, grain, setup, positions };
        let pieces = cx.call(task)?.0;
        let pieces = pieces.iter().map(|piece| piece.as_slice()).collect();
        Ok(simulation.accept(&shared, &simulate::Forces { tree, pieces })?)
    }

    /// The forces on the bodies whose steps end within a base step.
    fn substep(
        &self,
        cx: &Context,
        simulation: &mut Simulation,
        setup: Version,
        positions: Version,
    ) -> Result<(), Stop> {
        let shared = cx.get::<Positions>(0, positions)?;
        let tree = shared.tree(&*cx.get::<Setup>(0, setup)?)?;
        let groups = simulation.active_groups(tree);
        let each = |group: &u32| tree.bodies(*group as usize..*group as usize + 1).len();
        let bodies = u32::try_from(groups.iter().map(each).sum::<usize>())?;
        let grain = self.grain;
        let task = Substep { groups: groups.clone(), bodies, grain, setup, positions };
        let pieces = cx.call(task)?.0;
        let pieces = pieces.iter().map(|piece| piece.as_slice()).collect();
        Ok(simulation.accept_some(&shared, &groups, &simulate::Forces { tree, pieces })?)
    }

    /// How good the forces at these positions are, by a sample of the bodies.
    fn force_error(
        &self,
        cx: &Context,
        simulation: &Simulation,
        setup: Version,
        positions: Version,
    ) -> Result<Option<ForceError>, Stop> {
        let count = simulation.bodies().len();
        let sample = check::sample(count, self.check_bodies as usize, self.seed);
        let (bodies, grain) = (u32::try_from(count)?, self.grain);
        let task = Sums { sample: sample.clone(), bodies, grain, setup, positions };
        let sums: Vec<u8> = cx.call(task)?.0.into_iter().flatten().collect();
        let shared = cx.get::<Positions>(0, positions)?;
        Ok(simulation.force_error(&shared, &sample, &sums))
    }
}

/// Makes the snapshot and the picture of a step, where they are due, and hands them to `keep` with their names.
pub(crate) fn artefacts(
    job: &BarnesHut,
    camera: &Camera,
    bodies: &Bodies,
    (step, time): (u64, f64),
    mut keep: impl FnMut(&str, Vec<u8>) -> Result<(), Stop>,
) -> Result<(), Stop> {
    if due(job.snapshot_every, step) {
        let (extension, bytes) = match job.snapshot_format {
            SnapshotFormat::Npy => ("npy", write::npy(bodies)),
            SnapshotFormat::Csv => ("csv", write::csv(bodies)),
            SnapshotFormat::Gadget => ("gadget", gadget::write(bodies, time)?),
        };
        keep(&format!("snapshot-{step:06}.{extension}"), bytes)?;
    }
    if due(job.picture_every, step) {
        keep(&format!("density-{step:06}.png"), camera.draw(bodies)?)?;
    }
    if due(job.render, step) {
        // Numbered without gaps, as what makes films of frames wants them.
        keep(&format!("frame-{:06}.png", step / job.render), camera.draw(bodies)?)?;
    }
    Ok(())
}

pub(crate) fn line(report: &Report) -> String {
    let [x, y, z] = report.momentum;
    let mut line = format!(
        "step {}: energy {:.6} (error {:+.2e}), momentum ({x:+.2e}, {y:+.2e}, {z:+.2e}), angular momentum off by {:.1e}",
        report.step,
        report.energy(),
        report.energy_error,
        report.angular_momentum_error
    );
    if let Some(ForceError { rms, median, p99 }) = report.force_error {
        line += &format!(", forces off by {rms:.1e} rms, {median:.1e} median, {p99:.1e} p99");
    }
    line
}

/// Whether something that is done every so many steps (0: never) is to be done now.
pub(crate) fn due(every: u64, step: u64) -> bool {
    every > 0 && step.is_multiple_of(every)
}

pub(crate) fn outcome(bodies: &Bodies, history: &History) -> Outcome {
    Outcome { checksum: bodies.checksum(), result: history.result(bodies.len()) }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use bytes::Bytes;
    use springtide_runtime::work::{Failure, Note, PoolConfig, SavedRoot, encode_job, solo};

    use super::*;
    use crate::options::Order;

    fn small() -> BarnesHut {
        BarnesHut { bodies: 1500, steps: 3, grain: 64, group: 32, ..BarnesHut::default() }
    }

    fn run_from(
        body: Bytes,
        threads: usize,
        saved: Option<SavedRoot>,
    ) -> (Result<Outcome, Failure>, Vec<Note>) {
        let mut registry = Registry::new();
        registry.job::<BarnesHut>();
        let notes = Arc::new(Mutex::new(Vec::new()));
        let keep = notes.clone();
        let config = PoolConfig { threads, checkpoint_rate: 0, ..PoolConfig::default() };
        let note = move |note| keep.lock().unwrap().push(note);
        let registry = Arc::new(registry);
        let report = match saved {
            None => solo::run(registry, "barnes-hut", body, &config, note),
            Some(saved) => solo::resume(registry, "barnes-hut", body, saved, &config, note),
        };
        let notes = std::mem::take(&mut *notes.lock().unwrap());
        (report.unwrap().outcome, notes)
    }

    fn run_encoded(body: Bytes, threads: usize) -> (Outcome, Vec<Note>) {
        let (outcome, notes) = run_from(body, threads, None);
        (outcome.unwrap(), notes)
    }

    fn run(job: BarnesHut, threads: usize) -> (Outcome, Vec<Note>) {
        run_encoded(encode_job(job).unwrap(), threads)
    }

    #[test]
    fn any_number_of_threads_and_any_grain_give_the_outcome_of_one_alone() {
        let openings = [None, Some(1e-3)].into_iter();
        let kinds = openings.flat_map(|error| [(Order::Mono, error), (Order::Quad, error)]);
        for (order, cell_error) in kinds {
            let job = BarnesHut { order, cell_error, ..small() };
            let bodies = generate::galaxies(job.bodies, job.seed);
            let setup = Setup::new(&bodies, job.accuracy()).with_error(job.cell_error);
            let mut history = History::new(job.steps);
            let end = simulate::alone(bodies, &setup, job.time_step(), job.steps, |_, report| {
                history.push(*report);
            });
            let alone = outcome(&end.unwrap(), &history);
            for (threads, grain) in [(1, 1), (2, 64), (3, 1), (1, 1 << 30)] {
                let (outcome, _) = run(BarnesHut { grain, ..job.clone() }, threads);
                assert_eq!(outcome, alone, "{threads} threads, grain {grain}");
            }
        }
    }

    #[test]
    fn the_result_is_the_same_everywhere() {
        // Bits that must not change with compiler, instruction set or machine; a change of the physics changes them.
        assert_eq!(run(small(), 2).0.checksum, 0x30d9b200b7e256c1);
    }

    #[test]
    fn reports_and_artefacts_come_in_order() {
        let job = BarnesHut {
            snapshot_every: 2,
            picture_every: 3,
            render: 2,
            picture_size: 64,
            checkpoint_every: 2,
            snapshot_format: SnapshotFormat::Csv,
            ..small()
        };
        let (outcome, notes) = run(job, 2);
        let text = |note: &Note| match note {
            Note::Iteration => "iteration".to_owned(),
            Note::Progress { done, total, what } => format!("{done} of {total} {what}"),
            Note::Say { text } => text.split(':').next().unwrap_or_default().to_owned(),
            Note::Artifact { name, bytes } => {
                assert!(!bytes.is_empty());
                name.clone()
            }
            Note::Checkpoint(saved) => format!("checkpoint {}", saved.seq),
            Note::NeedNodes { more, .. } => format!("{more} more nodes"),
            Note::Release { nodes } => format!("{} nodes are not needed", nodes.len()),
        };
        let notes: Vec<_> = notes.iter().map(text).collect();
        let expected = [
            "0 of 3 steps",
            "snapshot-000000.csv",
            "density-000000.png",
            "frame-000000.png",
            "step 0",
            "step 1",
            "iteration",
            "1 of 3 steps",
            "snapshot-000002.csv",
            "frame-000001.png",
            "step 2",
            "iteration",
            "2 of 3 steps",
            "checkpoint 1",
            "density-000003.png",
            "step 3",
            "iteration",
            "3 of 3 steps",
            "broadcast",
        ];
        assert_eq!(notes, expected);
        let result = outcome.result;
        assert_eq!(result["bodies"], 1500);
        assert_eq!(result["steps"], 3);
        let error = result["energy_error"].as_f64().unwrap();
        assert!(error.abs() < 5e-3, "{error}");
        assert_eq!(result["momentum"].as_array().unwrap().len(), 3);
        assert_eq!(result["per_step"]["kinetic"].as_array().unwrap().len(), 4);
    }

    #[test]
    fn positions_are_broadcast_as_changes() {
        let job = BarnesHut { bodies: 2000, steps: 20, ..small() };
        let (whole, _) = run(BarnesHut { broadcast: Broadcast::Whole, ..job.clone() }, 2);
        let (outcome, notes) = run(job, 2);
        assert_eq!(outcome.checksum, whole.checksum);
        let broadcast = notes.iter().find_map(|note| match note {
            Note::Say { text } => text.strip_prefix("broadcast: "),
            _ => None,
        });
        let (bytes, rest) = broadcast.unwrap().split_once(' ').unwrap();
        assert_eq!(rest, "bytes a body in each of 21 versions");
        // The first of them has 12.
        let bytes: f64 = bytes.parse().unwrap();
        assert!(bytes < 7.8, "{bytes}");
    }

    fn checkpoints(notes: &[Note]) -> Vec<(usize, SavedRoot)> {
        let saved = |(at, note): (usize, &Note)| match note {
            Note::Checkpoint(saved) => Some((at, saved.clone())),
            _ => None,
        };
        notes.iter().enumerate().filter_map(saved).collect()
    }

    /// Not what says how long the broadcasts were: a resumed run begins with a whole one.
    fn is_of_the_run(note: &Note) -> bool {
        !matches!(note, Note::Say { text } if text.starts_with("broadcast: "))
    }

    /// Runs the job without checkpoints, then with one every `every` steps, then on from each of them: outcome, reports
    /// and artefacts must be those of the first.
    fn resumes_as_without_a_break(job: &BarnesHut, every: u64) {
        let body = |every| {
            let job = BarnesHut { checkpoint_every: every, ..job.clone() };
            encode_job(job).unwrap()
        };
        let (outcome, plain) = run_encoded(body(0), 1);
        assert!(checkpoints(&plain).is_empty());
        let (with, notes) = run_encoded(body(every), 2);
        assert_eq!(with, outcome);
        let all = checkpoints(&notes);
        // None after the last step: the run is over.
        assert_eq!(all.len() as u64, (job.steps - 1) / every);
        let others = notes.iter().filter(|note| !matches!(note, Note::Checkpoint(_)));
        assert!(others.filter(|n| is_of_the_run(n)).eq(plain.iter().filter(|n| is_of_the_run(n))));
        for (number, (at, saved)) in (1..).zip(&all) {
            // One child a step and one before the first.
            assert_eq!((saved.seq, u64::from(saved.next_child)), (number, number * every + 1));
            for threads in [1, 2] {
                let (again, rest) = run_from(body(every), threads, Some(saved.clone()));
                assert_eq!(again.as_ref(), Ok(&outcome), "from step {}", number * every);
                let rest = rest.iter().filter(|note| is_of_the_run(note));
                let same = rest.eq(notes[at + 1..].iter().filter(|note| is_of_the_run(note)));
                assert!(same, "from step {}, {threads} threads", number * every);
            }
        }
    }

    #[test]
    fn block_steps_have_the_same_bits_for_any_split_and_from_any_checkpoint() {
        let job = BarnesHut {
            bodies: 1000,
            model: Model::Plummer,
            block_steps: Some(0.1),
            max_rung: 4,
            check_forces: 2,
            check_bodies: 30,
            dt: Some(0.05),
            steps: 4,
            checkpoint_every: 0,
            ..small()
        };
        let (outcome, notes) = run(job.clone(), 1);
        for (threads, grain) in [(2, 64), (3, 1), (1, 1 << 30)] {
            assert_eq!(run(BarnesHut { grain, ..job.clone() }, threads).0, outcome);
        }
        // There are substeps, and not of all bodies.
        let forces = outcome.result["per_step"]["forces"].as_array().unwrap();
        let forces: Vec<u64> = forces.iter().map(|f| f.as_u64().unwrap()).collect();
        assert_eq!(forces[0], 1000);
        assert!(forces[1..].iter().all(|f| *f > 2000 && *f < 16_000), "{forces:?}");
        assert_eq!(outcome.result["force_error"]["step"], serde_json::json!([0, 2, 4]));
        let told = notes
            .iter()
            .filter(|note| matches!(note, Note::Say { text } if text.contains(", forces off by ")));
        assert_eq!(told.count(), 3);
        let plain = BarnesHut { block_steps: None, ..job.clone() };
        assert_ne!(run(plain, 1).0.checksum, outcome.checksum);

        for every in [1, 2] {
            let body = encode_job(BarnesHut { checkpoint_every: every, ..job.clone() }).unwrap();
            let (with, notes) = run_encoded(body.clone(), 2);
            assert_eq!(with, outcome);
            let all = checkpoints(&notes);
            assert_eq!(all.len() as u64, 3 / every);
            for (_, saved) in all {
                assert_eq!(run_from(body.clone(), 2, Some(saved)).0.as_ref(), Ok(&outcome));
            }
        }
    }

    #[test]
    fn a_checkpoint_with_other_rungs_is_refused() {
        let job = BarnesHut { bodies: 100, steps: 3, checkpoint_every: 1, ..small() };
        let blocks = BarnesHut { block_steps: Some(0.1), ..job.clone() };
        for (saves, goes_on) in [(&job, &blocks), (&blocks, &job)] {
            let (_, notes) = run(saves.clone(), 1);
            let (_, saved) = checkpoints(&notes).remove(0);
            let body = encode_job(goes_on.clone()).unwrap();
            let failure = run_from(body, 1, Some(saved)).0.unwrap_err();
            let expected =
                "the block time steps that were saved are not of this run; start it anew";
            assert_eq!(failure.message, expected);
        }
    }

    #[test]
    fn the_error_of_forces_is_what_theta_makes_it() {
        let error = |theta, order| {
            let job = BarnesHut { theta, order, model: Model::Plummer, steps: 0, ..small() };
            let result = run(BarnesHut { check_forces: 1, ..job }, 2).0.result;
            let value = |name: &str| result["force_error"][name][0].as_f64().unwrap();
            assert!(value("median") < value("rms") && value("rms") < value("p99"), "{result}");
            value("rms")
        };
        let exact = error(0.0, Order::Mono);
        assert!(exact < 1e-5, "{exact}");
        let (quad, mono) = (error(0.5, Order::Quad), error(0.7, Order::Mono));
        assert!(exact < quad && quad < 1e-3 && mono > 1e-3 && mono < 1e-2, "{quad} {mono}");
    }

    #[test]
    fn from_any_checkpoint_outcome_and_artefacts_are_those_of_a_run_without_a_break() {
        for model in [Model::Galaxies, Model::Plummer] {
            for order in [Order::Mono, Order::Quad] {
                for every in [1, 2, 3] {
                    let job = BarnesHut {
                        bodies: 400,
                        steps: 7,
                        model,
                        order,
                        snapshot_every: 2,
                        picture_every: 3,
                        picture_size: 48,
                        ..small()
                    };
                    resumes_as_without_a_break(&job, every);
                }
            }
        }
    }

    #[test]
    fn bodies_of_a_file_are_resumed_too() {
        // Two populations, in units of their own.
        let loaded = Some(generate::galaxies(300, 5));
        resumes_as_without_a_break(&BarnesHut { loaded, steps: 4, picture_every: 2, ..small() }, 2);
    }

    #[test]
    fn a_checkpoint_of_another_run_is_refused() {
        let job = BarnesHut { bodies: 100, steps: 6, checkpoint_every: 5, ..small() };
        let (_, notes) = run(job.clone(), 1);
        let (_, saved) = checkpoints(&notes).remove(0);
        let shorter = encode_job(BarnesHut { steps: 5, ..job.clone() }).unwrap();
        let failure = run_from(shorter, 1, Some(saved.clone())).0.unwrap_err();
        let expected = "the root's checkpoint is of step 6 of a run that has 5 steps";
        assert_eq!(failure.message, expected);
        let cut = SavedRoot { state: saved.state.slice(..saved.state.len() / 2), ..saved };
        let failure = run_from(encode_job(job).unwrap(), 1, Some(cut)).0.unwrap_err();
        assert!(failure.message.starts_with("the root's checkpoint cannot be read"), "{failure}");
    }

    #[test]
    fn a_file_travels_inside_the_job() {
        let mut bodies = generate::plummer(200, 8);
        // What every format can tell.
        for column in [&mut bodies.position, &mut bodies.velocity] {
            column.iter_mut().flatten().for_each(|c| *c = f64::from(*c as f32));
        }
        let folder = tempfile::tempdir().unwrap();
        let mut sums = Vec::new();
        for (name, bytes) in [
            ("b.npy", write::npy(&bodies)),
            ("b.csv", write::csv(&bodies)),
            ("b.gadget", gadget::write(&bodies, 0.0).unwrap()),
            ("snapshot_000", gadget::write(&bodies, 0.0).unwrap()),
        ] {
            let path = folder.path().join(name);
            std::fs::write(&path, bytes).unwrap();
            let job = BarnesHut { input: Some(path.clone()), steps: 0, ..small() };
            let body = encode_job(job).unwrap();
            // The node that runs it has no such file.
            std::fs::remove_file(path).unwrap();
            let (outcome, _) = run_encoded(body, 1);
            assert_eq!(outcome.result["steps"], 0);
            assert_eq!(outcome.result["energy_error"], 0.0);
            sums.push(outcome.checksum);
        }
        assert_eq!(sums, [bodies.checksum(); 4]);
    }

    #[test]
    fn the_benchmark_is_small_ready_to_run_and_the_same_for_all() {
        let job = BarnesHut {
            bodies: 1 << 30,
            theta: 1.1,
            order: Order::Mono,
            picture_every: 1,
            softening: Some(3.0),
            ..BarnesHut::default()
        };
        let small = job.benchmark().unwrap();
        assert_eq!(small.check(), Ok(()));
        let expected = BarnesHut {
            bodies: BENCHMARK_BODIES,
            steps: 0,
            picture_every: 0,
            checkpoint_every: 0,
            ..job.clone()
        };
        assert_eq!(small, expected);
        // Bodies from a file are in units of their own.
        let loaded = BarnesHut { loaded: Some(generate::plummer(50, 1)), ..job };
        let small = loaded.benchmark().unwrap();
        assert_eq!((small.bodies, small.model, small.softening), (50, Model::Plummer, None));
        let (outcome, notes) = run(small, 2);
        assert_eq!((outcome.result["bodies"].as_u64(), notes.len()), (Some(50), 2));
    }

    #[test]
    fn jobs_and_reports_of_earlier_versions_are_read() {
        let without = |value: serde_json::Value, names: &[&str]| {
            let serde_json::Value::Object(mut map) = value else { panic!("{value} is a map") };
            for name in names {
                assert!(map.remove(*name).is_some(), "{name}");
            }
            serde_json::Value::Object(map)
        };
        let job = BarnesHut { max_rung: 0, check_bodies: 0, ..small() };
        let earlier = without(serde_json::to_value(&job).unwrap(), NEW_OPTIONS);
        assert_eq!(serde_json::from_value::<BarnesHut>(earlier).unwrap(), job);
        let report = Report { step: 3, kinetic: 0.5, ..Report::default() };
        let new = ["angular_momentum", "angular_momentum_error", "forces", "force_error"];
        let earlier = without(serde_json::to_value(report).unwrap(), &new);
        assert_eq!(serde_json::from_value::<Report>(earlier).unwrap(), report);
    }

    /// What jobs had not from the start.
    const NEW_OPTIONS: &[&str] = &[
        "cell_error",
        "render",
        "picture_width",
        "block_steps",
        "max_rung",
        "check_forces",
        "check_bodies",
    ];

    #[test]
    fn tasks_cost_their_bodies_once() {
        let version = Version::default();
        let task = |bodies, groups: u32| Forces {
            first_group: 3,
            last_group: 3 + groups,
            bodies,
            grain: 100,
            setup: version,
            positions: version,
        };
        assert_eq!(task(100, 9).cost(), Some(100.0));
        assert_eq!(task(101, 9).cost(), None);
        assert_eq!(task(500, 1).cost(), Some(500.0));
    }

    #[test]
    fn mistakes_are_told_before_anything_starts() {
        let job = BarnesHut { theta: -1.0, ..small() };
        let message = encode_job(job).unwrap_err().message;
        assert_eq!(message, "--theta is -1; it must lie within 0 (exact sum over all pairs) and 2");
        let job = BarnesHut { input: Some("no-such-file.csv".into()), ..small() };
        let message = encode_job(job).unwrap_err().message;
        assert!(message.starts_with("no-such-file.csv: cannot be read: "), "{message}");
    }

    #[test]
    fn a_wanted_error_becomes_order_and_error_of_cells_ahead_of_the_run() {
        let job = BarnesHut { force_error: Some(2e-3), model: Model::Plummer, ..small() };
        let mut prepared = job.clone();
        prepared.prepare().unwrap();
        assert_eq!(prepared.force_error, None);
        assert!(prepared.cell_error.is_some_and(|part| part > 1e-4 && part < 0.1), "{prepared:?}");
        let with = run(BarnesHut { steps: 1, ..job }, 2).0;
        assert_eq!(with, run(BarnesHut { steps: 1, ..prepared }, 1).0);
        let loaded = Some(generate::plummer(300, 1));
        let job = BarnesHut { loaded, force_error: Some(1e-5), softening: Some(0.0), ..small() };
        assert!(encode_job(job).is_ok());
    }

    /// Bodies that are hard on a tree or on an integrator, by name.
    fn odd() -> Vec<(&'static str, Bodies)> {
        let at = |positions: &[[f64; 3]], mass: f64| {
            let mut bodies = Bodies::default();
            for p in positions {
                bodies.push(*p, [0.0; 3], mass);
            }
            bodies
        };
        let scaled = |scale: f64| {
            let mut bodies = generate::plummer(300, 1);
            for column in [&mut bodies.position, &mut bodies.velocity] {
                column.iter_mut().flatten().for_each(|c| *c *= scale);
            }
            bodies
        };
        let mut range = generate::plummer(300, 1);
        for (i, p) in range.position.iter_mut().enumerate() {
            *p = p.map(|c| c * 10f64.powi(i as i32 / 3 - 50));
        }
        let mut heavy = generate::plummer(300, 1);
        heavy.mass[17] = 1e90;
        let pair = [[0.0; 3], [1.0, 0.0, 0.0]];
        vec![
            ("one", at(&pair[..1], 1.0)),
            ("two", at(&pair, 1.0)),
            ("two of no mass", at(&pair, 0.0)),
            ("two in one place", at(&[[1.0; 3]; 2], 1.0)),
            ("all in one place", at(&[[-3.0; 3]; 700], 1.0)),
            ("many in two places", at(&[&[[0.0; 3]; 400][..], &[[1.0; 3]; 300]].concat(), 0.01)),
            ("on a line", at(&(0..500).map(|i| [f64::from(i), 0.0, 0.0]).collect::<Vec<_>>(), 1.0)),
            ("large", scaled(1e90)),
            ("small", scaled(1e-90)),
            ("over a hundred orders", range),
            ("one of all the mass", heavy),
        ]
    }

    #[test]
    fn odd_bodies_run_to_an_end_or_a_clear_error() {
        for (name, bodies) in odd() {
            for (softening, snapshot_format) in [
                (0.0, SnapshotFormat::Npy),
                (0.05, SnapshotFormat::Npy),
                (0.05, SnapshotFormat::Gadget),
            ] {
                for block_steps in [None, Some(0.1)] {
                    let job = BarnesHut {
                        loaded: Some(bodies.clone()),
                        softening: Some(softening),
                        block_steps: block_steps.filter(|_| softening > 0.0),
                        max_rung: 3,
                        check_forces: 1,
                        picture_every: 2,
                        picture_size: 16,
                        snapshot_every: 2,
                        snapshot_format,
                        steps: 2,
                        checkpoint_every: 1,
                        ..small()
                    };
                    let run = |threads| run_from(encode_job(job.clone()).unwrap(), threads, None);
                    let (outcome, _) = run(1);
                    assert_eq!(run(2).0, outcome, "{name}");
                    match outcome {
                        Ok(outcome) => assert_eq!(outcome.result["steps"], 2, "{name}"),
                        Err(failure) => {
                            let told = [
                                "has left the range of numbers; a smaller --dt or a larger --softening may help",
                                "is too large for a Gadget snapshot; choose --snapshot-format npy or other units",
                            ];
                            let clear = told.iter().any(|told| failure.message.ends_with(told));
                            assert!(clear, "{name}: {failure}");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn bodies_that_nothing_pulls_stay_where_they_are() {
        for (name, bodies) in odd() {
            if !["one", "two of no mass", "two in one place", "all in one place"].contains(&name) {
                continue;
            }
            for softening in [0.0, 0.05] {
                let job = BarnesHut {
                    loaded: Some(bodies.clone()),
                    softening: Some(softening),
                    check_forces: 1,
                    ..small()
                };
                let (outcome, _) = run(job, 2);
                assert_eq!(outcome.checksum, bodies.checksum(), "{name}");
                assert_eq!(outcome.result["energy_error"], 0.0, "{name}");
                // No body has a force that could be wrong.
                assert!(outcome.result["force_error"].is_null(), "{name}");
            }
        }
    }

    #[test]
    fn bodies_that_are_none_are_refused() {
        let mut bodies = generate::plummer(5, 1);
        bodies.mass[3] = -1.0;
        let refused = |loaded| {
            let job = BarnesHut { loaded: Some(loaded), ..small() };
            encode_job(job).unwrap_err().message
        };
        assert!(refused(bodies).starts_with("body 3 has a position or velocity that is no number"));
        assert_eq!(refused(Bodies::default()), "--bodies is 0; at least one body is needed");
    }

    #[test]
    fn one_and_two_bodies_run_through() {
        for bodies in [1, 2] {
            let models = <Model as clap::ValueEnum>::value_variants();
            for &model in models {
                let (outcome, _) = run(BarnesHut { bodies, model, ..small() }, 2);
                assert_eq!(outcome.result["bodies"], bodies);
                assert!(outcome.result["energy_error"].is_number(), "{}", outcome.result);
            }
        }
    }
}
