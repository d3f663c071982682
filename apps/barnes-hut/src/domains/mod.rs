//! The distribution of bodies over processes, one on each node: each holds a domain of neighbouring
//! bodies, moves them, and receives from others what its forces need of theirs.
//!
//! All bodies are in one place only when they are read, written or saved. They are sorted into
//! cells every few steps (`rekey`); in between cells keep their bodies, and their sums follow the
//! places. In each step every process sends the sums of its largest cells to all others. Those that
//! need more receive just the cells and bodies that their own may open. With these each has its
//! locally essential tree (`essential_tree`, `partial`), so forces have the same bits for any
//! distribution.
//!
//! Within a process all work runs in loops on the threads of the node; only messages are coded and
//! decoded by one thread. It is a [malleable program](springtide_runtime::malleable): the domains
//! follow the speeds of the processes. Source of the scheme: M. S. Warren and J. K. Salmon, *A
//! parallel hashed oct-tree N-body algorithm*, Supercomputing 1993.

mod begin;
mod block_order;
mod blocks;
mod costs;
mod essential_tree;
mod exchange;
mod forces;
mod interval;
mod layout;
mod measure;
mod previous;
mod rekey;
mod report;
mod request;
mod state;

use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use springtide_runtime::malleable::{Observation, Placement, ProcessInfo, Program, Strategy};
use springtide_runtime::spmd::Comm;
use springtide_runtime::work::{Outcome, ParallelLoops, PhaseClock, Stop, collect};

use self::begin::Begin;
pub use self::costs::Costs;
use self::costs::{BODY_COST, CELL_COST, NUMBER_COST};
use self::essential_tree::LocallyEssentialTree;
pub use self::layout::Layout;
use self::layout::of_slot;
pub use self::measure::measure;
use self::rekey::{inside, rekey};
pub use self::state::State;
use self::state::{Common, Domain, ObserverState};
use crate::bodies::Bodies;
use crate::error::SimulationError;
use crate::forces::row;
use crate::history::RunHistory;
use crate::loops::BODIES_PER_PIECE;
use crate::options::BarnesHut;
use crate::output::{artefacts, due, outcome};
use crate::picture::Camera;
use crate::setup::Setup;
use crate::simulate::InitialQuantities;

/// The tag of sums that each process sends to all others in each step.
const ROOT_SUMS: u32 = 1;
/// The tag of cells and bodies for those that need them.
const UPDATE: u32 = 2;
/// The tag of requests for cells and bodies, sent to all.
const REQUEST: u32 = 3;
/// The tag of new exports of cells and bodies.
const EXPORT: u32 = 6;
/// The tag of sums over a process's blocks, for the report.
const REPORT_SUMS: u32 = 4;
/// The tag of whole domains, for rank 0.
const WHOLE_DOMAIN: u32 = 5;
/// The tag of bodies that change hands after a sort.
const MOVED: u32 = 7;

/// Domains are distributed again when the slowest process takes this many times the mean time.
const UNEVEN: f64 = 1.15;

/// The cost of a new distribution, in steps: it has to save at least that.
const DISTRIBUTION_COST: f64 = 10.0;

/// The maximum number of steps for which places are predicted.
const FORESIGHT: u64 = 32;

/// The program: see the head of this file.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Domains {
    job: BarnesHut,
    /// One process on each node, except in tests.
    placement: Placement,
}

/// What a process works with in one step.
struct StepContext<'a, 'c> {
    step: u64,
    layout: &'a Layout,
    comm: &'a Comm<'c>,
    /// Runs the loops, and measures the phases.
    clock: PhaseClock<'a, 'c>,
    /// The process's place along the curve.
    slot: usize,
}

impl<'a, 'c> StepContext<'a, 'c> {
    fn new(step: u64, layout: &'a Layout, comm: &'a Comm<'c>) -> Result<Self, Stop> {
        let slot = layout.slot_of(comm.rank());
        let slot = slot.ok_or_else(|| Stop::fail("no place in the layout"))?;
        Ok(Self { step, layout, comm, clock: comm.start_phase_clock(), slot })
    }

    /// The rank of the process at this place along the curve.
    fn rank_at(&self, slot: usize) -> u32 {
        self.layout.ranks()[slot]
    }

    /// The places of all other processes along the curve.
    fn others(&self) -> impl Iterator<Item = usize> {
        let own = self.slot;
        (0..self.layout.len()).filter(move |other| *other != own)
    }
}

impl Domains {
    /// Of a job whose options were checked.
    pub fn new(job: BarnesHut) -> Self {
        Self { job, placement: Placement::EachNode }
    }

    fn setup(&self, common: &Common) -> Setup {
        let job = &self.job;
        Setup::without_bodies(job.accuracy(), job.cell_error, common.mass_unit)
    }

    /// Takes the modelled time of work that all threads of the node share.
    fn model(&self, comm: &Comm<'_>, time: impl Fn(&Costs) -> f64) -> Result<(), Stop> {
        match &self.job.costs {
            Some(costs) => {
                let time = time(costs) / comm.node_threads() as f64;
                comm.spend_modelled_time(Duration::from_nanos(time as u64))
            }
            None => comm.check(),
        }
    }

    /// Takes the time of work other than forces: sending or receiving numbers, and putting cells
    /// and others' bodies into trees.
    fn spend(
        &self,
        essential: &mut LocallyEssentialTree,
        [numbers, cells, bodies]: [usize; 3],
        comm: &Comm<'_>,
    ) -> Result<(), Stop> {
        let [numbers, cells, bodies] = [numbers, cells, bodies].map(|count| count as f64);
        let time =
            |costs: &Costs| costs.number * numbers + costs.cell * cells + costs.body * bodies;
        let cost = NUMBER_COST * numbers + CELL_COST * cells + BODY_COST * bodies;
        essential.spend(self.job.costs.as_ref().map_or(cost, time));
        self.model(comm, time)
    }

    /// Whether there is a step after this one, with the same bodies in each cell.
    fn keeps_cells(&self, common: &Common, step: u64) -> bool {
        step > 0 && step < self.job.steps && common.sorted_again > step + 1
    }

    /// All bodies, at rank 0. Called by all at once.
    fn whole(
        &self,
        state: &State,
        layout: &Layout,
        comm: &Comm<'_>,
    ) -> Result<Option<Bodies>, Stop> {
        if comm.rank() != 0 {
            comm.send(0, WHOLE_DOMAIN, state.domain.write(0..state.domain.len()))?;
            return Ok(None);
        }
        let mut domains = Vec::new();
        for &rank in layout.ranks().iter().filter(|&&rank| rank != 0) {
            let mut domain = Domain::default();
            domain.read(&comm.receive(rank, WHOLE_DOMAIN)?)?;
            domains.push(domain);
        }
        let domains = domains.iter().chain([&state.domain]);
        State::whole(&state.common, domains).map(Some)
    }

    /// Writes snapshots and pictures that are due.
    fn write_outputs(&self, state: &State, at: &StepContext<'_, '_>) -> Result<(), Stop> {
        let (job, step) = (&self.job, at.step);
        if ![job.snapshot_every, job.picture_every, job.render].iter().any(|&k| due(k, step)) {
            return Ok(());
        }
        let whole = self.whole(state, at.layout, at.comm)?;
        if let Some((bodies, observer)) = whole.zip(state.observer.as_ref()) {
            let time = (step, step as f64 * self.job.time_step());
            artefacts(&self.job, &observer.camera, &bodies, time, &at.clock, |name, bytes| {
                at.comm.artifact(name, bytes)
            })?;
        }
        at.clock.lap("output");
        Ok(())
    }
}

impl Program for Domains {
    const NAME: &'static str = "barnes-hut.domain";
    type State = State;
    type Layout = Layout;

    fn steps(&self) -> u64 {
        self.job.steps
    }

    fn placement(&self) -> Placement {
        self.placement
    }

    fn is_checkpointed(&self) -> bool {
        self.job.checkpoint_every > 0
    }

    fn layout(&self, processes: &[ProcessInfo], now: Option<&Layout>) -> Layout {
        Layout::new(processes, now)
    }

    fn start(&self, layout: &Layout, comm: &Comm<'_>) -> Result<State, Stop> {
        let job = &self.job;
        let begin = Begin::of(job);
        let at = StepContext::new(0, layout, comm)?;
        let cuts = layout.cuts(&begin.common.infos);
        let observer = (comm.rank() == 0).then(|| ObserverState {
            first: InitialQuantities::default(),
            history: RunHistory::new(job.steps),
            camera: Camera::around(&begin.bodies, job.picture_size).with_width(job.picture_width),
        });
        let common = begin.common.clone();
        let domain = begin.domain(of_slot(&cuts, at.slot));
        let mut state = State::new(common, observer, cuts, domain, (Vec::new(), None));
        let mut potential = self.forces(&mut state, &at)?;
        // The costs of all blocks are known now, and all bodies are still here: none has to travel.
        let costs =
            state.essential.as_ref().map(LocallyEssentialTree::costs).unwrap_or_default().to_vec();
        let costs = comm.all_gather(&costs)?;
        let costs = layout.ranks().iter().flat_map(|&rank| &costs[rank as usize]);
        for (info, cost) in state.common.infos.iter_mut().zip(costs) {
            info.cost = *cost;
        }
        let cuts = layout.cuts(&state.common.infos);
        let is_changed = cuts != state.cuts;
        if is_changed {
            (state.domain, state.essential) = (begin.domain(of_slot(&cuts, at.slot)), None);
            state.cuts = cuts;
        }
        // All of a node's processes have theirs when one has received from all others.
        comm.barrier()?;
        drop(begin);
        if is_changed {
            potential = self.forces(&mut state, &at)?;
        }
        self.report(&mut state, &potential, &at)?;
        self.write_outputs(&state, &at)?;
        Ok(state)
    }

    fn step(
        &self,
        state: &mut State,
        step: u64,
        layout: &Layout,
        comm: &Comm<'_>,
    ) -> Result<(), Stop> {
        let at = StepContext::new(step + 1, layout, comm)?;
        let dt = self.job.time_step();
        state.domain.advance(&at.clock, [0.5 * dt, dt]).and_then(|found| check(found, &at))?;
        at.clock.lap("integrate");
        if at.step >= state.common.sorted_again {
            let setup = self.setup(&state.common);
            self.model(comm, |costs| costs.key * state.domain.len() as f64)?;
            rekey(state, &self.job, &at, &setup)?;
            at.clock.lap("sort");
        }
        let potential = self.forces(state, &at)?;
        state.domain.advance(&at.clock, [0.5 * dt, 0.0]).and_then(|found| check(found, &at))?;
        at.clock.lap("integrate");
        self.report(state, &potential, &at)?;
        at.clock.lap("report");
        self.write_outputs(state, &at)?;
        comm.report_phases(&at.clock);
        Ok(())
    }

    fn split_state(
        &self,
        state: &State,
        from: (&Layout, u32),
        to: (&Layout, u32),
    ) -> Result<Bytes, Stop> {
        state.give(from, to)
    }

    fn join_state(
        &self,
        pieces: &[Bytes],
        from: &Layout,
        to: (&Layout, u32),
    ) -> Result<State, Stop> {
        State::take(pieces, from, to.0)
    }

    fn finish(&self, mut state: State, layout: &Layout, comm: &Comm<'_>) -> Result<Outcome, Stop> {
        self.conclude(&mut state, layout, comm)?;
        let bodies = self.whole(&state, layout, comm)?;
        match bodies.zip(state.observer) {
            Some((bodies, observer)) => Ok(outcome(&bodies, &observer.history)),
            None => Ok(Outcome { checksum: 0, result: serde_json::Value::Null }),
        }
    }

    /// Uses all processes, and distributes the domains again when some have become slower than
    /// others.
    fn decide(&self, seen: &Observation, layout: Option<&Layout>) -> Strategy {
        let processes = seen.available;
        if layout.is_none() || processes != seen.processes || seen.leaving > 0 {
            return Strategy::Use { processes, release: false };
        }
        let left = seen.steps.saturating_sub(seen.point) as f64;
        match seen.unevenness() {
            Some(times) if times > UNEVEN && (times - 1.0) * left > DISTRIBUTION_COST => {
                Strategy::Rebalance
            }
            _ => Strategy::Keep,
        }
    }
}

/// The time after this step in which cells keep their bodies, up to the greatest foresight; 0 if
/// bodies are sorted in the next step.
fn ahead(job: &BarnesHut, common: &Common, step: u64) -> f64 {
    let last = common.sorted_again.saturating_sub(1).min(job.steps);
    job.time_step() * last.saturating_sub(step).min(FORESIGHT) as f64
}

/// The box and its units, which are powers of two of the user's, so that conversions are exact.
struct Units {
    centre: [f64; 3],
    side: f64,
    mass: f64,
}

impl Units {
    fn of(&Common { centre, side, mass_unit, .. }: &Common) -> Self {
        Self { centre, side, mass: mass_unit }
    }

    fn inside(&self, place: &[f64; 3]) -> [f32; 3] {
        inside(place, self.centre, self.side)
    }

    /// A body in the box.
    fn point(&self, place: &[f64; 3], mass: f64) -> [f32; 4] {
        let [x, y, z] = self.inside(place);
        [x, y, z, (mass / self.mass) as f32]
    }

    /// All of a domain's bodies in the box.
    fn points<L: ParallelLoops>(
        &self,
        loops: &L,
        domain: &Domain,
    ) -> Result<Vec<[f32; 4]>, L::Stop> {
        collect(loops, domain.len(), BODIES_PER_PIECE, |i| {
            self.point(&domain.position[i], domain.mass[i])
        })
    }

    /// The acceleration and the potential of a body in the user's units, from its row.
    fn of_felt(&self, felt: &[u8]) -> ([f64; 3], f64) {
        let [pull @ .., depth] = row(felt);
        (pull.map(|pull| pull * self.pull()), depth * (self.mass / self.side))
    }

    /// An acceleration of 1 in the box.
    fn pull(&self) -> f64 {
        self.mass / self.side / self.side
    }
}

fn kicked(velocity: &[f64; 3], acceleration: &[f64; 3], time: f64) -> [f64; 3] {
    [0, 1, 2].map(|axis| velocity[axis] + acceleration[axis] * time)
}

fn drifted(place: &[f64; 3], velocity: &[f64; 3], time: f64) -> [f64; 3] {
    [0, 1, 2].map(|axis| place[axis] + velocity[axis] * time)
}

/// The place of a body after the next step, which begins with this acceleration: the result of
/// [`Domains::step`], ahead of it.
fn next_place(domain: &Domain, i: usize, acceleration: &[f64; 3], dt: f64) -> [f64; 3] {
    let velocity = kicked(&domain.velocity[i], acceleration, 0.5 * dt);
    let velocity = kicked(&velocity, acceleration, 0.5 * dt);
    drifted(&domain.position[i], &velocity, dt)
}

fn check(not_finite: Option<u32>, at: &StepContext<'_, '_>) -> Result<(), Stop> {
    match not_finite {
        Some(body) => Err(SimulationError::NotFinite { step: at.step, body: body as usize }.into()),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use springtide_runtime::malleable;
    use springtide_runtime::work::{
        Context, Job, PoolConfig, ProgressReport, Registry, encode_job, solo,
    };

    use super::*;
    use crate::options::{Distribution, Model};
    use crate::setup::CellExpansion;

    /// A job that runs the program with this placement of its processes.
    #[derive(Clone, Serialize, Deserialize)]
    struct PlacedJob {
        job: BarnesHut,
        placement: Placement,
    }

    impl Job for PlacedJob {
        const NAME: &'static str = "placed-domains";
        const ABOUT: &'static str = "for tests";

        fn register(registry: &mut Registry) {
            malleable::register::<Domains>(registry);
        }

        fn run(self, cx: &Context) -> Result<Outcome, Stop> {
            malleable::run(Domains { job: self.job, placement: self.placement }, cx)
        }
    }

    /// The checksum, the result and the lines of the steps.
    type Output = (u64, serde_json::Value, Vec<String>);

    fn run_job<J: Job>(job: J, threads: usize) -> Output {
        let mut registry = Registry::new();
        registry.job::<J>();
        let said = Arc::new(Mutex::new(Vec::new()));
        let keep = said.clone();
        let on_report = move |report| {
            if let ProgressReport::Say { text } = report
                && text.starts_with("step ")
            {
                keep.lock().unwrap().push(text);
            }
        };
        let config = PoolConfig { threads, checkpoint_rate: 0, ..PoolConfig::default() };
        let body = encode_job(job).unwrap();
        let report = solo::run(Arc::new(registry), J::NAME, body, &config, on_report).unwrap();
        let outcome = report.outcome.unwrap();
        let said = std::mem::take(&mut *said.lock().unwrap());
        (outcome.checksum, outcome.result, said)
    }

    /// Runs with this number of processes, each on a thread of its own.
    fn run(job: &BarnesHut, threads: usize) -> Output {
        run_job(PlacedJob { job: job.clone(), placement: Placement::EachThread }, threads)
    }

    /// Runs with one process that has this number of threads.
    fn run_shared(job: &BarnesHut, threads: usize) -> Output {
        run_job(job.clone(), threads)
    }

    fn job() -> BarnesHut {
        BarnesHut {
            bodies: 4000,
            steps: 5,
            group: 16,
            leaf: 8,
            rekey_every: Some(2),
            distribution: Distribution::Domains,
            ..BarnesHut::default()
        }
    }

    /// Any distribution gives the same bits. If bodies are sorted in each step, they are those of
    /// replicated bodies.
    #[test]
    fn bodies_end_where_they_do_when_all_have_all() {
        for model in [Model::Galaxies, Model::Plummer] {
            for (order, cell_error) in [
                (CellExpansion::Quad, None),
                (CellExpansion::Mono, Some(3e-3)),
                (CellExpansion::Series, Some(3e-4)),
            ] {
                let job = BarnesHut { model, order, cell_error, rekey_every: Some(1), ..job() };
                let replicated = BarnesHut {
                    distribution: Distribution::Replicated,
                    rekey_every: None,
                    ..job.clone()
                };
                let (checksum, result, _) = run_shared(&replicated, 2);
                let alone = run(&job, 1);
                assert_eq!(alone.0, checksum, "{model:?} {order:?}");
                let energy = |result: &serde_json::Value| result["energy"].as_f64().unwrap();
                assert!((energy(&result) / energy(&alone.1) - 1.0).abs() < 1e-12);
                for threads in [2, 5] {
                    assert!(run(&job, threads) == alone, "{model:?} {order:?} {threads}");
                    assert!(run_shared(&job, threads) == alone, "{model:?} {order:?} {threads}");
                }
            }
        }
    }

    #[test]
    fn cells_that_keep_their_bodies_make_no_difference_between_processes() {
        for rekey_every in [None, Some(0), Some(2), Some(3)] {
            let job = BarnesHut { rekey_every, steps: 7, model: Model::Plummer, ..job() };
            let alone = run(&job, 1);
            for threads in [3, 4] {
                assert!(run(&job, threads) == alone, "every {rekey_every:?}, {threads}");
                assert!(run_shared(&job, threads) == alone, "every {rekey_every:?}, {threads}");
            }
            let error = alone.1["energy_error"].as_f64().unwrap().abs();
            assert!(error < 1e-4, "{error}");
        }
    }

    #[test]
    fn few_bodies_have_domains_too() {
        for bodies in [1, 2, 50] {
            let job = BarnesHut { bodies, ..job() };
            assert!(run(&job, 1) == run(&job, 3), "{bodies}");
        }
    }
}
