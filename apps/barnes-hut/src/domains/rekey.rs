//! Sorts bodies into cells again: keys in a new box, blocks that follow from them, and domains of
//! equal work.
//!
//! Bodies first travel to the process of their present place along the curve. The bodies of each
//! process then form pieces of blocks. All processes receive all pieces, and so know all blocks.
//! Then bodies travel to the process of their block. The blocks do not depend on the distribution
//! before.
//!
//! With the pieces all processes receive their reach, by the accelerations of the step before. So
//! most exports follow without a request.

use std::collections::BTreeSet;
use std::ops::Range;

use bytes::Bytes;
use serde_bytes::ByteBuf;
use springtide_runtime::work::{ParallelLoops, Stop};

use super::interval::{next_sort, summed_motion};
use super::layout::{of_slot, slot_with};
use super::state::{Common, Domain, State, Unsound};
use super::{MOVED, StepContext, Units, ahead, drifted};
use crate::bodies::length;
use crate::bounds::CubeBounds;
use crate::forces::scale_by;
use crate::loops::BODIES_PER_PIECE;
use crate::options::BarnesHut;
use crate::partial::{BlockInfo, Subscriber, around, bodies_of, joined, merged, pieces};
use crate::setup::Setup;
use crate::tree::{LEVELS, agreeing, corner, first_of, morton};

/// Pieces of blocks in one piece of a loop.
const PIECES_PER_PIECE: usize = 64;

/// A place in sides from the middle, rounded as it is shared.
pub(crate) fn inside(place: &[f64; 3], centre: [f64; 3], side: f64) -> [f32; 3] {
    [0, 1, 2].map(|axis| ((place[axis] - centre[axis]) / side) as f32)
}

/// Sorts the bodies in this step: see the head of this file. All processes call it together. The
/// interval until the next sort follows from the velocities.
pub(super) fn rekey(
    state: &mut State,
    job: &BarnesHut,
    at: &StepContext<'_, '_>,
    setup: &Setup,
) -> Result<(), Stop> {
    let StepContext { step, layout, comm, ref clock, slot } = *at;
    let Domain { position, keys, .. } = &state.domain;
    let own = clock.parallel_map(0..keys.len(), BODIES_PER_PIECE, |piece| {
        let numbers = keys[piece.clone()].iter().map(|(_, number)| *number);
        CubeBounds::of_some(&position[piece], numbers, state.common.bodies)
    })?;
    let none = || CubeBounds::of_some(&[], std::iter::empty(), state.common.bodies);
    let own = own.into_iter().reduce(|mut all, other| {
        all.merge(&other);
        all
    });
    let own = own.unwrap_or_else(none);
    let own_blocks = &state.common.infos[of_slot(&state.cuts, slot)];
    let scales = (state.common.side, job.time_step());
    let moved = summed_motion(clock, own_blocks, &state.domain.velocity, scales, setup)?;
    let all = comm.all_gather(&(own, moved))?.into_iter().reduce(|mut all, other| {
        all.0.merge(&other.0);
        all.1 += other.1;
        all
    });
    let (bounds, moved) = all.ok_or_else(|| Stop::fail("there are no processes"))?;
    state.common.sorted_again = next_sort(job, step, moved, state.common.bodies);
    let ahead = ahead(job, &state.common, step);
    let pull = Units::of(&state.common).pull();
    let (centre, side) = bounds.cube(setup.softening);
    let borders = borders(&state.common, &state.cuts, centre, side);

    let mut domain = std::mem::take(&mut state.domain);
    if let Some(essential) = state.essential.take() {
        let own = &state.common.infos[of_slot(&state.cuts, slot)];
        set_costs(clock, &mut domain.cost, own, essential.costs())?;
        // A box of another size changes all numbers.
        if side == state.common.side {
            let moved = [0, 1, 2].map(|axis| (state.common.centre[axis] - centre[axis]) / side);
            state.before = essential.into_previous(&domain.keys, moved);
        }
    }
    let key = |place: &[f64; 3]| morton(inside(place, centre, side));
    let Domain { keys, position, .. } = &mut domain;
    clock.parallel_chunks(keys, BODIES_PER_PIECE, |first, keys| {
        for ((code, _), place) in keys.iter_mut().zip(&position[first..]) {
            *code = key(place);
        }
    })?;
    let holder = |_, key| borders.partition_point(|&border| border <= key) - 1;
    if layout.len() > 1 {
        let parts = domain.part(clock, pull, (slot, layout.len()), holder)?;
        let mut by_rank = vec![Bytes::new(); layout.len()];
        for (part, rank) in parts.into_iter().zip(layout.ranks()) {
            by_rank[*rank as usize] = part.into();
        }
        for part in comm.all_to_all(by_rank)? {
            domain.read_drifted(&part, pull, key)?;
        }
    }
    let mut domain = domain.sorted(clock)?;
    let (from, to) = (borders[slot], borders[slot + 1]);
    let mut mine = pieces(&domain.keys, from..to, setup);
    let mut first = 0;
    let bodies = mine.iter().map(|piece| {
        first += piece.bodies as usize;
        first - piece.bodies as usize..first
    });
    let bodies: Vec<_> = bodies.collect();
    clock.parallel_chunks(&mut mine, PIECES_PER_PIECE, |first, pieces| {
        for (piece, bodies) in pieces.iter_mut().zip(&bodies[first..]) {
            piece.cost = domain.cost[bodies.clone()].iter().sum();
        }
    })?;
    let mut subscribers = Vec::new();
    if layout.len() > 1 {
        let inside = |place: &[f64; 3]| inside(place, centre, side);
        let each = clock.parallel_map(0..bodies.len(), PIECES_PER_PIECE, |pieces| {
            let mut some = Vec::new();
            for bodies in &bodies[pieces] {
                subscriber(&domain, bodies.clone(), ahead, inside, pull, setup).write(&mut some);
            }
            some
        })?;
        subscribers = each.concat();
    }
    let received = comm.all_gather(&(mine, ByteBuf::from(subscribers)))?;

    let by_slot = || layout.ranks().iter().map(|rank| &received[*rank as usize]);
    let all: Vec<BlockInfo> = by_slot().flat_map(|(pieces, _)| pieces).copied().collect();
    // The process of each piece.
    let had =
        by_slot().enumerate().flat_map(|(slot, (pieces, _))| pieces.iter().map(move |_| slot));
    let had: Vec<usize> = had.collect();
    let blocks = merged(&all, setup);
    state.subscribers = subscribers_of(
        &blocks,
        by_slot().flat_map(|(_, subscribers)| subscribers.iter().copied()),
    )?;
    state.common.infos = blocks.iter().map(|some| joined(&all[some.clone()])).collect();
    (state.common.centre, state.common.side) = (centre, side);
    let infos = &state.common.infos;
    let kept = |border: &u64| infos.partition_point(|info| info.first < *border) as u32;
    let kept: Vec<u32> = borders.iter().map(kept).collect();
    let clusters = layout.clusters(comm.ranks_by_cluster());
    state.cuts = layout.cuts_about(&kept, infos, &clusters);
    if layout.len() > 1 {
        // The next process of each body, by its piece.
        let mut to = Vec::with_capacity(domain.len());
        let (mut comes_from, mut block) = (BTreeSet::new(), 0);
        for (piece, (info, &had)) in all.iter().zip(&had).enumerate() {
            block += usize::from(blocks[block].end <= piece);
            let holder = slot_with(&state.cuts, block);
            if had == slot {
                to.extend(std::iter::repeat_n(holder, info.bodies as usize));
            } else if holder == slot {
                comes_from.insert(had);
            }
        }
        // All processes know which of them send bodies: mostly few.
        let parts = domain.part(clock, pull, (slot, layout.len()), |i, _| to[i])?;
        let parts = parts.into_iter().zip(layout.ranks());
        for (part, rank) in parts.filter(|(part, _)| !part.is_empty()) {
            comm.send(*rank, MOVED, part)?;
        }
        for other in comes_from {
            domain.read_drifted(&comm.receive(layout.ranks()[other], MOVED)?, pull, key)?;
        }
        domain = domain.sorted(clock)?;
    }
    state.domain = domain;
    let due = bodies_of(&state.common.infos[of_slot(&state.cuts, slot)]);
    if due != state.domain.len() {
        return Err(Stop::fail(format_args!(
            "a domain has {} bodies where it should have {due}: all nodes need the same version of \
             the program",
            state.domain.len()
        )));
    }
    Ok(())
}

/// Sets the cost of each body to its part of the cost of its block.
fn set_costs<L: ParallelLoops>(
    loops: &L,
    bodies: &mut [f32],
    blocks: &[BlockInfo],
    costs: &[f32],
) -> Result<(), L::Stop> {
    let mut rest = bodies;
    let mut each = Vec::with_capacity(blocks.len());
    for (info, cost) in blocks.iter().zip(costs) {
        let own = first_of(&mut rest, info.bodies as usize);
        each.push((own, cost / info.bodies.max(1) as f32));
    }
    loops.parallel_chunks(&mut each, PIECES_PER_PIECE, |_, blocks| {
        blocks.iter_mut().for_each(|(bodies, cost)| bodies.fill(*cost));
    })
}

/// The extent of these bodies inside the box, now and after the time `ahead`, and their approximate
/// reach.
fn subscriber(
    domain: &Domain,
    bodies: Range<usize>,
    ahead: f64,
    inside: impl Fn(&[f64; 3]) -> [f32; 3],
    pull: f64,
    setup: &Setup,
) -> Subscriber {
    let places = bodies.clone().flat_map(|i| {
        let place = &domain.position[i];
        [*place, drifted(place, &domain.velocity[i], ahead)]
    });
    let acceleration = |i: usize| length(domain.acceleration[bodies.start + i]) / pull;
    let scale = scale_by(acceleration, bodies.len(), setup);
    Subscriber::new(around(places.map(|place| inside(&place))), scale)
}

/// The subscribers of blocks from those of their pieces, encoded in order; none if there are none.
fn subscribers_of(
    blocks: &[Range<usize>],
    pieces: impl Iterator<Item = u8>,
) -> Result<Vec<Subscriber>, Unsound> {
    let bytes: Vec<u8> = pieces.collect();
    let mut rest = &bytes[..];
    let mut all = Vec::new();
    while !rest.is_empty() {
        all.push(Subscriber::take(&mut rest).ok_or(UNSOUND)?);
    }
    let of_block =
        |some: &Range<usize>| all.get(some.clone()).map(Subscriber::joined).ok_or(UNSOUND);
    if all.is_empty() { Ok(all) } else { blocks.iter().map(of_block).collect() }
}

const UNSOUND: Unsound = Unsound { what: "places of blocks" };

/// The first key of each process's part of the curve in the new box, and the end of the curve. The
/// parts are about the former ones, and in order for any two boxes.
fn borders(old: &Common, cuts: &[u32], centre: [f64; 3], side: f64) -> Vec<u64> {
    let mut borders = vec![0];
    for &cut in &cuts[1..cuts.len() - 1] {
        let last = borders[borders.len() - 1];
        let cut = cut as usize;
        let border = match (cut.checked_sub(1).map(|before| old.infos[before]), old.infos.get(cut))
        {
            (None, _) => 0,
            (_, None) => 1 << (3 * LEVELS),
            (Some(before), Some(after)) => {
                // The corner of the largest cube that separates the two.
                let shift = 3 * (LEVELS - 1 - agreeing(before.last ^ after.first).min(LEVELS - 1));
                let key = after.first >> shift << shift;
                // In a box that has moved a little, the same key separates nearly the same bodies.
                // The key of the same place would separate others, because neighbours may be far
                // apart along the curve.
                if side == old.side {
                    key
                } else {
                    let place = corner(key);
                    let place = [0, 1, 2].map(|axis| old.centre[axis] + place[axis] * old.side);
                    morton(inside(&place, centre, side))
                }
            }
        };
        borders.push(border.max(last));
    }
    borders.push(1 << (3 * LEVELS));
    borders
}
