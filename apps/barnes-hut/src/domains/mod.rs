//! The job with its bodies dealt out: each process holds a domain of neighbouring bodies, moves them, and is told by others
//! what it needs of theirs.
//!
//! Nothing is there as a whole at any place but when bodies are read, written or saved. Bodies are sorted into cells every
//! few steps (`rekey`); in between cells keep their bodies, and only what follows from places is made anew. In each step
//! every process tells all others the sums of its largest cells, and those who need more just the cells and bodies that theirs may open
//! (`near`); with these each has the part of the tree that its own forces need (`partial`), so forces
//! have the same bits whoever holds what.
//!
//! A program with processes that come and go ([`springtide_runtime::malleable`]): domains are dealt out by how fast each
//! process is, and anew when that changes. Source of the scheme: M. S. Warren and J. K. Salmon, *A parallel hashed oct-tree N-body
//! algorithm*, Supercomputing 1993.

mod begin;
mod exchange;
mod interval;
mod layout;
mod measure;
mod near;
mod past;
mod rekey;
mod report;
mod state;
mod turns;
mod wish;

use std::collections::BTreeSet;
use std::ops::Range;
use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use springtide_runtime::malleable::{Observation, ProcessInfo, Program, Strategy};
use springtide_runtime::spmd::Comm;
use springtide_runtime::work::{Outcome, Stop};

use self::begin::Begin;
pub use self::layout::Layout;
use self::layout::of_slot;
pub use self::measure::measure;
use self::near::Near;
use self::rekey::{inside, rekey};
pub use self::state::State;
use self::state::{Common, Domain, ObserverState};
use self::turns::{First as Early, Turns};
use self::wish::Wish;
use crate::bodies::{Bodies, first_not_finite};
use crate::calibrate;
use crate::forces::{BYTES_A_BODY, Lists, row};
use crate::history::RunHistory;
use crate::job::{artefacts, due, outcome};
use crate::kernel::Kernel;
use crate::loops::OneThread;
use crate::options::BarnesHut;
use crate::picture::Camera;
use crate::shared::Setup;
use crate::simulate::{InitialQuantities, SimulationError};
use crate::tree::BodyTree;

/// What each process tells all others in each step.
const ALL: u32 = 1;
/// What it tells some.
const TELL: u32 = 2;
/// Wishes for cells and bodies, told to all.
const WISH: u32 = 3;
/// Cells and bodies of which it tells them from then on.
const GRANT: u32 = 6;
/// Sums over a process's blocks, for the report.
const SUMS: u32 = 4;
/// Whole domains, for rank 0.
const WHOLE: u32 = 5;
/// Bodies that change hands as the blocks are dealt out, after a sort.
const MOVED: u32 = 7;

/// Domains are dealt out anew when the slowest process takes so many times as long as they do on average.
const UNEVEN: f64 = 1.15;

/// And when that saves at least about as many steps, in what is left, as dealing out takes.
const DEALING: f64 = 10.0;

/// Nobody looks ahead by more steps than this.
const FORESIGHT: u64 = 32;

/// What a body's own work costs, in interactions with points: to be moved, sorted, and walked for.
const BODY_COST: f64 = 150.0;

/// What it costs to tell or hear a number of others, and to put a cell into the tree.
const NUMBER_COST: f64 = 25.0;
const CELL_COST: f64 = 60.0;

/// How long it takes in a simulation, where computing takes no time of its own. In nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Costs {
    /// A pair of a body and a point that acts on it.
    pub point: f64,
    /// A pair of a body and a cell with second moments.
    pub quad: f64,
    /// Making one entry of a group's list, or taking it into the group's series.
    pub entry: f64,
    /// Moving a body, and summing it up into cells where it is, and into its block where it will be in the next step.
    pub body: f64,
    /// Putting a cell into the tree.
    pub cell: f64,
    /// Telling somebody of a number, or hearing of one.
    pub number: f64,
    /// Sorting a body into cells.
    pub key: f64,
}

/// The program. See the head of this file.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Domains {
    job: BarnesHut,
}

impl Domains {
    /// Of a job whose options were checked.
    pub fn new(job: BarnesHut) -> Self {
        Self { job }
    }

    fn setup(&self, common: &Common) -> Setup {
        let Self { job } = self;
        Setup::without_bodies(job.accuracy(), job.cell_error, common.mass_unit)
    }

    fn model(&self, comm: &Comm<'_>, time: impl Fn(&Costs) -> f64) -> Result<(), Stop> {
        match &self.job.costs {
            Some(costs) => comm.spend_modelled_time(Duration::from_nanos(time(costs) as u64)),
            None => comm.check(),
        }
    }

    /// Takes the time that telling or hearing so many numbers takes, and putting so many cells and others' bodies into trees: what goes beside
    /// forces.
    fn spend(
        &self,
        near: &mut Near,
        [numbers, cells, bodies]: [usize; 3],
        comm: &Comm<'_>,
    ) -> Result<(), Stop> {
        let [numbers, cells, bodies] = [numbers, cells, bodies].map(|count| count as f64);
        let time =
            |costs: &Costs| costs.number * numbers + costs.cell * cells + costs.body * bodies;
        let cost = NUMBER_COST * numbers + CELL_COST * cells + BODY_COST * bodies;
        near.spend(self.job.costs.as_ref().map_or(cost, time));
        self.model(comm, time)
    }

    /// Whether there is a step after this one, with the same bodies in each cell.
    fn keeps_cells(&self, common: &Common, step: u64) -> bool {
        step > 0 && step < self.job.steps && common.sorted_again > step + 1
    }

    /// The forces on the domain's bodies where they are now, in this step; returns the potential of each. Called by all at once.
    fn forces(
        &self,
        state: &mut State,
        step: u64,
        layout: &Layout,
        comm: &Comm<'_>,
    ) -> Result<Vec<f64>, Stop> {
        let slot = slot(layout, comm)?;
        let setup = self.setup(&state.common);
        let foretold = state.take_foretold(slot, &setup)?;
        let State { common, cuts, domain, near, before, sinks, .. } = state;
        let units = Units::of(common);
        let near = near.get_or_insert_with(|| {
            let at = (slot, layout.clusters(comm.ranks_by_cluster()));
            let known = (std::mem::take(before), std::mem::take(sinks));
            Near::new(common, cuts, domain, at, known, &setup)
        });
        let is_told = near.begin(foretold);
        let mut late = self.meet(near, (common, domain), is_told, step, layout, comm)?;
        // Those whose next places others are told of while the rest is computed.
        let early = |near: &Near| {
            if self.keeps_cells(common, step) { near.seen_afar(&setup) } else { Vec::new() }
        };
        let mut first = early(near);
        let blocks = near.blocks().to_vec();
        let mut felt = vec![Vec::new(); blocks.len()];
        let mut costs = vec![0f32; blocks.len()];
        let mut scales = vec![0f32; blocks.len()];
        let mut spare = near.spare.take();
        loop {
            let (tree, new) = near.tree(spare.take(), &setup, units.side);
            let tree = &*spare.insert(tree);
            self.spend(near, [0, new, 0], comm)?;
            let mut lists = Lists::new(tree, Kernel::best(), true);
            let (mut ready, mut missed, mut wanted) = (Vec::new(), Vec::new(), BTreeSet::new());
            let waits = near.waits() || late.iter().any(|(_, tag)| *tag == GRANT);
            for (block, bodies) in blocks.iter().enumerate() {
                if !felt[block].is_empty() {
                    continue;
                }
                let mut absent = Vec::new();
                lists.absent(bodies.clone(), &mut absent);
                scales[block] = lists.scale_of(bodies.clone());
                if absent.is_empty() {
                    ready.push(block);
                    continue;
                }
                missed.push(block);
                // The next look will find it again.
                let again = lists.looked_at() as f64;
                self.model(comm, |costs| costs.entry * again)?;
                let first = |cell: u32| tree.cells.links[cell as usize].first;
                wanted.extend(absent.into_iter().map(|cell| near.root_of(first(cell)) as u32));
            }
            let can_be = |first: &&Early| {
                let is =
                    |block: usize| !felt[block].is_empty() || ready.binary_search(&block).is_ok();
                first.blocks.clone().all(is)
            };
            let mut turns = Turns::new(&ready, first.iter().filter(can_be).cloned().collect());
            // What others tell in this step is not wished for.
            if !waits {
                if !wanted.is_empty() {
                    self.look_ahead(near, (common, domain), step);
                }
                let own = near.wish(tree, wanted, &missed, &scales, &setup);
                comm.share(WISH, own.write())?;
            }
            for done in 0.. {
                let advanced = turns.take(done);
                for &root in &advanced {
                    let of_next = |(i, felt)| {
                        let (acceleration, _) = units.of_felt(felt);
                        let place = next_place(domain, i, &acceleration, self.job.time_step());
                        units.point(&place, domain.mass[i])
                    };
                    let felt = rows(&felt[near.blocks_of(root)]);
                    let points: Vec<_> = near.bodies_of(root).zip(felt).map(of_next).collect();
                    near.advance(root, &points, &setup);
                }
                first.retain(|first| !advanced.contains(&first.root));
                if !advanced.is_empty() {
                    self.tell(near, false, &setup, layout, comm)?;
                }
                let Some(block) = turns.block(done) else { break };
                let groups = tree.groups_of(blocks[block].clone());
                costs[block] = self.of_block(comm, tree, &mut lists, groups, &mut felt[block])?;
                // Others wait for what this process passes on.
                if self.foretells(common, step) {
                    comm.is_share_ready(ALL)?;
                }
                if !waits {
                    comm.is_share_ready(WISH)?;
                } else if self.hear(near, &mut late, false, &setup, layout, comm)? {
                    break;
                }
            }
            if waits {
                self.hear(near, &mut late, true, &setup, layout, comm)?;
                continue;
            }
            let wishes = comm.take_shared(WISH)?;
            let wish = |rank: &u32| Wish::read(&wishes[*rank as usize]);
            let wishes = layout.ranks().iter().map(wish).collect::<Result<Vec<_>, _>>()?;
            if !wishes.iter().any(Wish::is_some) {
                break;
            }
            self.look_ahead(near, (common, domain), step);
            for message in near.grant(&wishes, &setup)? {
                self.multicast(near, GRANT, message, layout, comm)?;
            }
            let granted = (0..layout.len()).filter(|other| near.is_granted(*other, &wishes));
            let granted = granted.map(|other| (other, GRANT)).collect();
            late.extend(self.hear_near(near, granted, &setup, layout, comm)?);
            // Others look on more than before: in the first step, on all that they see.
            first = early(near);
        }
        self.hear(near, &mut late, true, &setup, layout, comm)?;
        near.spare = spare;
        near.finish(costs);
        state.foretold = near.foretold();

        let mut potential = Vec::with_capacity(domain.len());
        for (felt, of_body) in rows(&felt).zip(&mut domain.acceleration) {
            let (acceleration, depth) = units.of_felt(felt);
            *of_body = acceleration;
            potential.push(depth);
        }
        Ok(potential)
    }

    /// The forces on the groups of a block whose lists are all there; returns what they cost.
    fn of_block(
        &self,
        comm: &Comm<'_>,
        tree: &BodyTree,
        lists: &mut Lists<'_>,
        groups: Range<usize>,
        felt: &mut Vec<u8>,
    ) -> Result<f32, Stop> {
        let (mut pairs, mut entries, mut moved, mut cost) = ([0.0; 2], 0, 0, 0.0);
        for group in groups {
            let bodies = tree.bodies(group..group + 1);
            let count = bodies.len();
            let counts = lists.one_group(bodies, felt);
            if lists.is_short() {
                return Err(Stop::fail("a list is short of bodies that nobody asked for"));
            }
            let [points, quads, _] = counts;
            pairs = [pairs[0] + (count * points) as f64, pairs[1] + (count * quads) as f64];
            entries += counts.iter().sum::<usize>();
            moved += count;
            cost += calibrate::cost(counts, count) + BODY_COST * count as f64;
        }
        let time = |costs: &Costs| {
            costs.point * pairs[0] + costs.quad * pairs[1] + costs.entry * entries as f64
        };
        self.model(comm, time)?;
        let of_costs = |costs: &Costs| time(costs) + costs.body * moved as f64;
        Ok(self.job.costs.as_ref().map_or(cost, of_costs) as f32)
    }

    /// All bodies, at rank 0. Called by all at once.
    fn whole(
        &self,
        state: &State,
        layout: &Layout,
        comm: &Comm<'_>,
    ) -> Result<Option<Bodies>, Stop> {
        if comm.rank() != 0 {
            comm.send(0, WHOLE, state.domain.write(0..state.domain.len()))?;
            return Ok(None);
        }
        let mut domains = Vec::new();
        for &rank in layout.ranks().iter().filter(|&&rank| rank != 0) {
            let mut domain = Domain::default();
            domain.read(&comm.receive(rank, WHOLE)?)?;
            domains.push(domain);
        }
        let domains = domains.iter().chain([&state.domain]);
        State::whole(&state.common, domains).map(Some)
    }

    /// Snapshots and pictures that are due.
    fn show(&self, state: &State, step: u64, layout: &Layout, comm: &Comm<'_>) -> Result<(), Stop> {
        let job = &self.job;
        if ![job.snapshot_every, job.picture_every, job.render].iter().any(|&k| due(k, step)) {
            return Ok(());
        }
        if let Some((bodies, told)) = self.whole(state, layout, comm)?.zip(state.told.as_ref()) {
            let at = (step, step as f64 * self.job.time_step());
            artefacts(&self.job, &told.camera, &bodies, at, &OneThread, |name, bytes| {
                comm.artifact(name, bytes)
            })?;
        }
        Ok(())
    }
}

fn slot(layout: &Layout, comm: &Comm<'_>) -> Result<usize, Stop> {
    layout.slot_of(comm.rank()).ok_or_else(|| Stop::fail("no place in the layout"))
}

impl Program for Domains {
    const NAME: &'static str = "barnes-hut.domain";
    type State = State;
    type Layout = Layout;

    fn steps(&self) -> u64 {
        self.job.steps
    }

    fn is_checkpointed(&self) -> bool {
        self.job.checkpoint_every > 0
    }

    fn layout(&self, hands: &[ProcessInfo], now: Option<&Layout>) -> Layout {
        Layout::new(hands, now)
    }

    fn start(&self, layout: &Layout, comm: &Comm<'_>) -> Result<State, Stop> {
        let job = &self.job;
        let begin = Begin::of(job);
        let slot = slot(layout, comm)?;
        let cuts = layout.cuts(&begin.common.infos);
        let told = (comm.rank() == 0).then(|| ObserverState {
            first: InitialQuantities::default(),
            history: RunHistory::new(job.steps),
            camera: Camera::around(&begin.bodies, job.picture_size).with_width(job.picture_width),
        });
        let common = begin.common.clone();
        let domain = begin.domain(of_slot(&cuts, slot));
        let mut state = State::new(common, told, cuts, domain, (Vec::new(), None));
        let mut potential = self.forces(&mut state, 0, layout, comm)?;
        // Now it is known what each block costs, and all bodies are still here: nothing has to travel.
        let costs = state.near.as_ref().map(Near::costs).unwrap_or_default().to_vec();
        let costs = comm.all_gather(&costs)?;
        let costs = layout.ranks().iter().flat_map(|&rank| &costs[rank as usize]);
        for (info, cost) in state.common.infos.iter_mut().zip(costs) {
            info.cost = *cost;
        }
        let cuts = layout.cuts(&state.common.infos);
        let dealt_anew = cuts != state.cuts;
        if dealt_anew {
            (state.domain, state.near) = (begin.domain(of_slot(&cuts, slot)), None);
            state.cuts = cuts;
        }
        // All of a node's processes have theirs when one has heard of all others.
        comm.barrier()?;
        drop(begin);
        if dealt_anew {
            potential = self.forces(&mut state, 0, layout, comm)?;
        }
        self.report(&mut state, &potential, 0, layout, comm)?;
        self.show(&state, 0, layout, comm)?;
        Ok(state)
    }

    fn step(
        &self,
        state: &mut State,
        step: u64,
        layout: &Layout,
        comm: &Comm<'_>,
    ) -> Result<(), Stop> {
        let step = step + 1;
        let dt = self.job.time_step();
        kick(&mut state.domain, 0.5 * dt);
        let Domain { position, velocity, .. } = &mut state.domain;
        for (x, v) in position.iter_mut().zip(velocity) {
            *x = drifted(x, v, dt);
        }
        check(&state.domain, step)?;
        if step >= state.common.sorted_again {
            let setup = self.setup(&state.common);
            self.model(comm, |costs| costs.key * state.domain.len() as f64)?;
            rekey(state, (&self.job, step), layout, comm, &setup)?;
        }
        let potential = self.forces(state, step, layout, comm)?;
        kick(&mut state.domain, 0.5 * dt);
        check(&state.domain, step)?;
        self.report(state, &potential, step, layout, comm)?;
        self.show(state, step, layout, comm)
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
        match bodies.zip(state.told) {
            Some((bodies, told)) => Ok(outcome(&bodies, &told.history)),
            None => Ok(Outcome { checksum: 0, result: serde_json::Value::Null }),
        }
    }

    /// All that there are compute; anew when some have become slower than others.
    fn decide(&self, seen: &Observation, layout: Option<&Layout>) -> Strategy {
        let processes = seen.available;
        if layout.is_none() || processes != seen.processes || seen.leaving > 0 {
            return Strategy::Use { processes, release: false };
        }
        let left = seen.steps.saturating_sub(seen.point) as f64;
        match seen.unevenness() {
            Some(times) if times > UNEVEN && (times - 1.0) * left > DEALING => Strategy::Rebalance,
            _ => Strategy::Keep,
        }
    }
}

/// The time after this step in which cells keep their bodies, as far as it is worth to look ahead.
fn ahead(job: &BarnesHut, common: &Common, step: u64) -> f64 {
    let steps = common.sorted_again.saturating_sub(step).clamp(1, FORESIGHT);
    job.time_step() * steps as f64
}

/// The box, and its units: powers of two of the user's, so that nothing is rounded between them.
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
    fn points(&self, domain: &Domain) -> Vec<[f32; 4]> {
        let places = domain.position.iter().zip(&domain.mass);
        places.map(|(place, mass)| self.point(place, *mass)).collect()
    }

    /// The acceleration and the potential of what a body feels, in the user's units.
    fn of_felt(&self, felt: &[u8]) -> ([f64; 3], f64) {
        let [pull @ .., depth] = row(felt);
        (pull.map(|pull| pull * self.pull()), depth * (self.mass / self.side))
    }

    /// An acceleration of 1 in the box.
    fn pull(&self) -> f64 {
        self.mass / self.side / self.side
    }
}

/// What the bodies of these blocks feel, one after the other.
fn rows(felt: &[Vec<u8>]) -> impl Iterator<Item = &[u8]> {
    felt.iter().flat_map(|block| block.chunks_exact(BYTES_A_BODY))
}

fn kicked(velocity: &[f64; 3], acceleration: &[f64; 3], time: f64) -> [f64; 3] {
    [0, 1, 2].map(|axis| velocity[axis] + acceleration[axis] * time)
}

fn drifted(place: &[f64; 3], velocity: &[f64; 3], time: f64) -> [f64; 3] {
    [0, 1, 2].map(|axis| place[axis] + velocity[axis] * time)
}

/// Where a body will be after the next step, which it begins with this acceleration: what [`Domains::step`] does, ahead of it.
fn next_place(domain: &Domain, i: usize, acceleration: &[f64; 3], dt: f64) -> [f64; 3] {
    let velocity = kicked(&domain.velocity[i], acceleration, 0.5 * dt);
    let velocity = kicked(&velocity, acceleration, 0.5 * dt);
    drifted(&domain.position[i], &velocity, dt)
}

fn kick(domain: &mut Domain, time: f64) {
    for (v, a) in domain.velocity.iter_mut().zip(&domain.acceleration) {
        *v = kicked(v, a, time);
    }
}

fn check(domain: &Domain, step: u64) -> Result<(), SimulationError> {
    match first_not_finite(&domain.position, &domain.velocity) {
        Some(i) => Err(SimulationError::NotFinite { step, body: domain.keys[i].1 as usize }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use springtide_runtime::work::{PoolConfig, ProgressReport, Registry, encode_job, solo};

    use super::*;
    use crate::options::{CellExpansion, Distribution, Model};

    /// The checksum, the result and what was said, by as many processes as there are threads.
    fn run(job: &BarnesHut, threads: usize) -> (u64, serde_json::Value, Vec<String>) {
        let mut registry = Registry::new();
        registry.job::<BarnesHut>();
        let said = Arc::new(Mutex::new(Vec::new()));
        let keep = said.clone();
        let note = move |note| {
            if let ProgressReport::Say { text } = note
                && text.starts_with("step ")
            {
                keep.lock().unwrap().push(text);
            }
        };
        let config = PoolConfig { threads, checkpoint_rate: 0, ..PoolConfig::default() };
        let body = encode_job(job.clone()).unwrap();
        let report = solo::run(Arc::new(registry), "barnes-hut", body, &config, note).unwrap();
        let outcome = report.outcome.unwrap();
        let said = std::mem::take(&mut *said.lock().unwrap());
        (outcome.checksum, outcome.result, said)
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

    /// Whoever holds what: the same bits, and where bodies are sorted in each step those of replicated bodies.
    #[test]
    fn bodies_end_where_they_do_when_all_have_all() {
        for model in [Model::Galaxies, Model::Plummer] {
            for (order, cell_error) in [
                (CellExpansion::Quad, None),
                (CellExpansion::Mono, Some(3e-3)),
                (CellExpansion::Series, Some(3e-4)),
            ] {
                let job = BarnesHut { model, order, cell_error, rekey_every: Some(1), ..job() };
                let replicated =
                    BarnesHut { distribution: Distribution::Replicated, ..job.clone() };
                let (checksum, result, _) = run(&replicated, 2);
                let alone = run(&job, 1);
                assert_eq!(alone.0, checksum, "{model:?} {order:?}");
                let energy = |result: &serde_json::Value| result["energy"].as_f64().unwrap();
                assert!((energy(&result) / energy(&alone.1) - 1.0).abs() < 1e-12);
                for threads in [2, 5] {
                    assert!(run(&job, threads) == alone, "{model:?} {order:?} {threads}");
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
