//! The forces of a step: what is received arrives while own forces are computed, and results are
//! sent as soon as others need them.

use std::collections::BTreeSet;
use std::ops::Range;

use springtide_runtime::work::{ParallelLoops, Stop};

use super::block_order::{BlockOrder, FirstRoot};
use super::blocks::{BlockForces, BlockWork, ListMaker};
use super::costs::Costs;
use super::essential_tree::LocallyEssentialTree;
use super::exchange::Due;
use super::request::Request;
use super::state::{Common, Domain, State};
use super::{Domains, EXPORT, REQUEST, ROOT_SUMS, StepContext, Units, next_place};
use crate::forces::BYTES_A_BODY;
use crate::setup::Setup;
use crate::tree::{BodyTree, first_of};

/// Blocks for each thread between two looks for messages. More leave threads without work for a
/// smaller part of the time, and messages wait longer: some milliseconds.
const BLOCKS_PER_LOOK: usize = 16;

/// Blocks of a piece of a loop that stores their forces.
const BLOCKS_PER_PIECE: usize = 16;

/// The data of a step's forces.
struct Work<'a> {
    common: &'a Common,
    domain: &'a Domain,
    setup: &'a Setup,
    units: Units,
    /// The bodies of each block.
    blocks: Vec<Range<usize>>,
    forces: BlockForces,
    /// Messages of this step that are still to come.
    late: BTreeSet<Due>,
    /// Roots whose next places others receive while the rest is computed.
    first: Vec<FirstRoot>,
}

/// The blocks that are not computed yet.
#[derive(Default)]
struct OpenBlocks {
    /// Those whose data is present.
    ready: Vec<usize>,
    /// Those that lack data.
    missed: Vec<usize>,
    /// The roots of that data.
    wanted: BTreeSet<u32>,
}

impl Domains {
    /// The forces on the domain's bodies at their present places; returns the potential of each.
    /// Called by all at once.
    pub(super) fn forces(
        &self,
        state: &mut State,
        at: &StepContext<'_, '_>,
    ) -> Result<Vec<f64>, Stop> {
        let setup = self.setup(&state.common);
        let predicted = state.take_predicted(at.slot, &setup)?;
        let State { common, cuts, domain, essential, before, subscribers, .. } = state;
        let essential = match essential {
            Some(essential) => essential,
            None => {
                let place = (at.slot, at.layout.clusters(at.comm.ranks_by_cluster()));
                let known = (std::mem::take(before), std::mem::take(subscribers));
                let made = LocallyEssentialTree::new(
                    &at.clock, common, cuts, domain, place, known, &setup,
                )?;
                at.clock.lap("build");
                essential.insert(made)
            }
        };
        let are_sums_known = essential.begin(predicted);
        let late = self.exchange_sums(essential, (common, domain), are_sums_known, at)?;
        at.clock.lap("exchange");
        let blocks = essential.blocks().to_vec();
        let mut work = Work {
            common,
            domain,
            setup: &setup,
            units: Units::of(common),
            forces: BlockForces::new(blocks.len()),
            blocks,
            late,
            first: self.first_roots(essential, common, &setup, at),
        };
        let mut tree = essential.spare.take();
        loop {
            let (next, new) = essential.tree(&at.clock, tree.take(), &setup, work.units.side)?;
            let present = &*tree.insert(next);
            self.spend(essential, [0, new, 0], at.comm)?;
            at.clock.lap("build");
            if self.compute_present(essential, present, &mut work, at)? {
                break;
            }
        }
        self.receive(essential, &mut work.late, true, &setup, at)?;
        at.clock.lap("exchange");
        essential.spare = tree;
        let Work { units, forces: BlockForces { rows, costs, .. }, .. } = work;
        essential.finish(costs);
        state.predicted = essential.predicted();
        let potential = accept(at, &mut state.domain, &units, &rows)?;
        at.clock.lap("forces");
        Ok(potential)
    }

    /// The roots whose next places others receive ahead of the next step.
    fn first_roots(
        &self,
        essential: &LocallyEssentialTree,
        common: &Common,
        setup: &Setup,
        at: &StepContext<'_, '_>,
    ) -> Vec<FirstRoot> {
        if self.keeps_cells(common, at.step) {
            essential.roots_for_other_clusters(setup)
        } else {
            Vec::new()
        }
    }

    /// Computes the blocks whose data is all present in this tree. Returns whether all blocks are
    /// computed; if not, more data has arrived.
    fn compute_present(
        &self,
        essential: &mut LocallyEssentialTree,
        tree: &BodyTree,
        work: &mut Work<'_>,
        at: &StepContext<'_, '_>,
    ) -> Result<bool, Stop> {
        let lists = ListMaker::new(tree);
        let state = (work.common, work.domain);
        let OpenBlocks { ready, missed, wanted } = self.look(essential, tree, &lists, work, at)?;
        let waits = essential.waits() || work.late.iter().any(|(_, tag)| *tag == EXPORT);
        // Data that is still to come in this step is not requested.
        if !waits && at.layout.len() > 1 {
            if !wanted.is_empty() {
                self.look_ahead(essential, state, at)?;
            }
            let own = essential.request(tree, wanted, &missed, &work.forces.scales, work.setup);
            at.comm.share(REQUEST, own.write())?;
        }
        at.clock.lap("walk");
        let arrived = self.take_turns(essential, &lists, ready, waits, work, at)?;
        at.clock.lap("forces");
        if waits {
            if !arrived {
                self.receive(essential, &mut work.late, true, work.setup, at)?;
                at.clock.lap("exchange");
            }
            return Ok(false);
        }
        if at.layout.len() == 1 {
            return Ok(true);
        }
        let requests = at.comm.take_shared(REQUEST)?;
        let request = |rank: &u32| Request::read(&requests[*rank as usize]);
        let requests = at.layout.ranks().iter().map(request).collect::<Result<Vec<_>, _>>()?;
        if !requests.iter().any(Request::is_some) {
            return Ok(true);
        }
        self.look_ahead(essential, state, at)?;
        for message in essential.answer(&at.clock, &requests, work.setup)? {
            self.multicast(essential, EXPORT, message, at)?;
        }
        let answered =
            (0..at.layout.len()).filter(|other| essential.is_answered(*other, &requests));
        let answered = answered.map(|other| (other, EXPORT)).collect();
        work.late.extend(self.receive_near(essential, answered, work.setup, at)?);
        at.clock.lap("exchange");
        // Others now see more than before: in the first step, all that they need.
        work.first = self.first_roots(essential, work.common, work.setup, at);
        Ok(false)
    }

    /// The blocks that are not computed yet.
    fn look(
        &self,
        essential: &LocallyEssentialTree,
        tree: &BodyTree,
        lists: &ListMaker<'_>,
        work: &mut Work<'_>,
        at: &StepContext<'_, '_>,
    ) -> Result<OpenBlocks, Stop> {
        let open = (0..work.blocks.len()).filter(|block| !work.forces.is_computed(*block));
        let open: Vec<usize> = open.collect();
        if at.layout.len() == 1 {
            return Ok(OpenBlocks { ready: open, ..OpenBlocks::default() });
        }
        let bodies: Vec<_> = open.iter().map(|block| work.blocks[*block].clone()).collect();
        let looks = lists.look(&at.clock, &bodies)?;
        let OpenBlocks { mut ready, mut missed, mut wanted } = OpenBlocks::default();
        let mut again = 0;
        for (block, look) in open.into_iter().zip(looks) {
            work.forces.scales[block] = look.scale;
            if look.absent.is_empty() {
                ready.push(block);
                continue;
            }
            missed.push(block);
            again += look.entries;
            let first = |cell: u32| tree.cells.links[cell as usize].first;
            wanted.extend(look.absent.iter().map(|&cell| essential.root_of(first(cell)) as u32));
        }
        // The next look makes these entries again.
        self.model(at.comm, |costs| costs.entry * again as f64)?;
        Ok(OpenBlocks { ready, missed, wanted })
    }

    /// Computes these blocks, and sends the next places of the first roots meanwhile. Ends early,
    /// and returns true, if all data of this step has arrived that it `waits` for.
    fn take_turns(
        &self,
        essential: &mut LocallyEssentialTree,
        lists: &ListMaker<'_>,
        ready: Vec<usize>,
        waits: bool,
        work: &mut Work<'_>,
        at: &StepContext<'_, '_>,
    ) -> Result<bool, Stop> {
        let can_be = |first: &&FirstRoot| {
            let is = |block| work.forces.is_computed(block) || ready.binary_search(&block).is_ok();
            first.blocks.clone().all(is)
        };
        let mut block_order =
            BlockOrder::new(&ready, work.first.iter().filter(can_be).cloned().collect());
        let threads = at.comm.node_threads();
        let most = match (at.layout.len(), &self.job.costs) {
            (1, None) => usize::MAX,
            (_, None) => BLOCKS_PER_LOOK * threads,
            // In a simulation the loop takes no time, and the time passes after it.
            (_, Some(_)) => threads,
        };
        let mut done = 0;
        loop {
            let advanced = block_order.take(done);
            self.advance(essential, &advanced, work, at)?;
            let blocks = block_order.blocks(done, most);
            if blocks.is_empty() {
                return Ok(false);
            }
            done += blocks.len();
            let bodies: Vec<_> = blocks.iter().map(|block| work.blocks[*block].clone()).collect();
            let results = lists.compute(&at.clock, &bodies)?;
            if results.iter().any(|result| result.is_short) {
                return Err(Stop::fail("a list lacks bodies that no process asked for"));
            }
            let time = |costs: &Costs| results.iter().map(|result| result.time(costs)).sum();
            self.model(at.comm, time)?;
            for (block, result) in blocks.iter().zip(results) {
                work.forces.costs[*block] = result.cost(self.job.costs.as_ref());
                let BlockWork { rows, .. } = result;
                work.forces.rows[*block] = rows;
            }
            if at.layout.len() == 1 {
                continue;
            }
            // Others wait for what this process passes on.
            if self.predicts(work.common, at.step) {
                at.comm.is_share_ready(ROOT_SUMS)?;
            }
            if !waits {
                at.comm.is_share_ready(REQUEST)?;
            } else if self.receive(essential, &mut work.late, false, work.setup, at)? {
                return Ok(true);
            }
        }
    }

    /// Sends the next places of these roots, on whose bodies the forces are known.
    fn advance(
        &self,
        essential: &mut LocallyEssentialTree,
        roots: &[u32],
        work: &mut Work<'_>,
        at: &StepContext<'_, '_>,
    ) -> Result<(), Stop> {
        if roots.is_empty() {
            return Ok(());
        }
        let Work { domain, units, forces, .. } = &*work;
        let dt = self.job.time_step();
        for &root in roots {
            let of_next = |(i, felt)| {
                let (acceleration, _) = units.of_felt(felt);
                units.point(&next_place(domain, i, &acceleration, dt), domain.mass[i])
            };
            let felt = rows(&forces.rows[essential.blocks_of(root)]);
            let points: Vec<_> = essential.bodies_of(root).zip(felt).map(of_next).collect();
            essential.advance(root, &points, work.setup);
        }
        work.first.retain(|first| !roots.contains(&first.root));
        self.send_updates(essential, false, work.setup, at)
    }
}

/// The rows of the bodies of these blocks, one after the other.
fn rows(blocks: &[Vec<u8>]) -> impl Iterator<Item = &[u8]> {
    blocks.iter().flat_map(|block| block.chunks_exact(BYTES_A_BODY))
}

/// Stores the accelerations of all bodies from the rows of their blocks; returns their potentials.
fn accept(
    at: &StepContext<'_, '_>,
    domain: &mut Domain,
    units: &Units,
    blocks: &[Vec<u8>],
) -> Result<Vec<f64>, Stop> {
    let mut potential = vec![0.0; domain.len()];
    let (mut accelerations, mut depths) = (&mut domain.acceleration[..], &mut potential[..]);
    let mut pieces = Vec::new();
    for blocks in blocks.chunks(BLOCKS_PER_PIECE) {
        let bodies = blocks.iter().map(Vec::len).sum::<usize>() / BYTES_A_BODY;
        let own = (first_of(&mut accelerations, bodies), first_of(&mut depths, bodies));
        pieces.push((blocks, own.0, own.1));
    }
    at.clock.parallel_chunks(&mut pieces, 1, |_, pieces| {
        for (blocks, accelerations, depths) in pieces {
            let places = accelerations.iter_mut().zip(depths.iter_mut());
            for (felt, (acceleration, depth)) in rows(blocks).zip(places) {
                (*acceleration, *depth) = units.of_felt(felt);
            }
        }
    })?;
    Ok(potential)
}
