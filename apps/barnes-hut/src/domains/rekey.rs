//! Bodies are sorted into cells anew: keys in a new box, blocks that follow from them, and domains of equal work.
//!
//! Bodies first go to whoever holds the place where they are now, along the curve; what each then has are pieces of
//! blocks, of which all learn, and so all know the blocks; then bodies go to whoever holds theirs. The blocks are those that
//! one process would find; who holds what before makes no difference to them.

use bytes::Bytes;
use springtide_runtime::spmd::Comm;
use springtide_runtime::work::Stop;

use super::Units;
use super::layout::{Layout, of_slot, slot_with};
use super::state::{Common, Domain, State};
use crate::bounds::Bounds;
use crate::partial::{Info, bodies_of, joined, merged, pieces};
use crate::shared::Setup;
use crate::tree::{LEVELS, agreeing, corner, morton};

/// A place in sides from the middle, rounded as it is shared.
pub(crate) fn inside(place: &[f64; 3], centre: [f64; 3], side: f64) -> [f32; 3] {
    [0, 1, 2].map(|axis| ((place[axis] - centre[axis]) / side) as f32)
}

/// See the head of this file. Called by all at once.
pub(crate) fn rekey(
    state: &mut State,
    layout: &Layout,
    comm: &Comm<'_>,
    setup: &Setup,
) -> Result<(), Stop> {
    let slot = layout.slot_of(comm.rank()).ok_or_else(|| Stop::fail("no place in the layout"))?;
    let numbers = state.domain.keys.iter().map(|(_, number)| *number);
    let own = Bounds::of_some(&state.domain.position, numbers, state.common.bodies);
    let bounds = comm.all_gather(&own)?.into_iter().reduce(|mut all, other| {
        all.merge(&other);
        all
    });
    let bounds = bounds.ok_or_else(|| Stop::fail("there are no processes"))?;
    let pull = Units::of(&state.common).pull();
    let (centre, side) = bounds.cube(setup.softening);
    let borders = borders(&state.common, &state.cuts, centre, side);

    let mut domain = std::mem::take(&mut state.domain);
    if let Some(near) = state.near.take() {
        let own = &state.common.infos[of_slot(&state.cuts, slot)];
        let costs = own.iter().zip(near.costs());
        let each = costs.flat_map(|(info, cost)| {
            std::iter::repeat_n(cost / info.bodies.max(1) as f32, info.bodies as usize)
        });
        domain.cost.iter_mut().zip(each).for_each(|(of, cost)| *of = cost);
        // In a box of another size all numbers are others.
        if side == state.common.side {
            let moved = [0, 1, 2].map(|axis| (state.common.centre[axis] - centre[axis]) / side);
            state.before = near.into_before(&domain.keys, moved);
        }
    }
    for (key, place) in domain.keys.iter_mut().zip(&domain.position) {
        key.0 = morton(inside(place, centre, side));
    }
    let key = |place: &[f64; 3]| morton(inside(place, centre, side));
    let holder = |_, key| borders.partition_point(|&border| border <= key) - 1;
    let domain = exchange(domain, pull, layout, comm, key, holder)?;
    let domain = domain.sorted();
    let (from, to) = (borders[slot], borders[slot + 1]);
    let mine = pieces(&domain.keys, from..to, setup, |bodies| domain.cost[bodies].iter().sum());
    let by_rank: Vec<Vec<Info>> = comm.all_gather(&mine)?;

    let of_slot_before = |slot: usize| &by_rank[layout.ranks()[slot] as usize];
    let before: usize = (0..slot).map(|slot| of_slot_before(slot).len()).sum();
    let all: Vec<Info> = (0..layout.len()).flat_map(of_slot_before).copied().collect();
    let blocks = merged(&all, setup);
    state.common.infos = blocks.iter().map(|some| joined(&all[some.clone()])).collect();
    (state.common.centre, state.common.side) = (centre, side);
    let infos = &state.common.infos;
    let kept = |border: &u64| infos.partition_point(|info| info.first < *border) as u32;
    let kept: Vec<u32> = borders.iter().map(kept).collect();
    let clusters = layout.clusters(comm.ranks_by_cluster());
    state.cuts = layout.cuts_about(&kept, infos, &clusters);
    // The holder of each body by the piece that it is in.
    let mut to = Vec::with_capacity(domain.len());
    for (i, piece) in mine.iter().enumerate() {
        let block = blocks.partition_point(|some| some.end <= before + i);
        let slot = slot_with(&state.cuts, block);
        to.extend(std::iter::repeat_n(slot, piece.bodies as usize));
    }
    let domain = exchange(domain, pull, layout, comm, key, |i, _| to[i])?;
    state.domain = domain.sorted();
    let due = bodies_of(&state.common.infos[of_slot(&state.cuts, slot)]);
    if due != state.domain.len() {
        return Err(Stop::fail(format_args!(
            "a domain has {} bodies where it should have {due}: all nodes need the same version of the program",
            state.domain.len()
        )));
    }
    Ok(())
}

/// Where each process's part of the curve begins, in keys of the new box, and its end: about where it was. In order,
/// wherever the boxes lie.
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
                // The corner of the largest cube that parts the two.
                let shift = 3 * (LEVELS - 1 - agreeing(before.last ^ after.first).min(LEVELS - 1));
                let key = after.first >> shift << shift;
                // A box that has moved by a little cuts nearly the same bodies by the same key; by the key of that place it would
                // cut others altogether, for along the curve neighbours may be far apart.
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

/// Each body goes to the process whose place along the curve `holder` tells, of its index and key; `key` is that of a place, and
/// accelerations are in units of `pull`.
fn exchange(
    domain: Domain,
    pull: f64,
    layout: &Layout,
    comm: &Comm<'_>,
    key: impl Fn(&[f64; 3]) -> u64,
    holder: impl Fn(usize, u64) -> usize,
) -> Result<Domain, Stop> {
    let mut by_rank = vec![Vec::new(); layout.len()];
    for (i, (key, _)) in domain.keys.iter().enumerate() {
        let rank = layout.ranks()[holder(i, *key)];
        domain.write_drifted(i, pull, &mut by_rank[rank as usize]);
    }
    drop(domain);
    let got = comm.all_to_all(by_rank.into_iter().map(Bytes::from).collect())?;
    let mut domain = Domain::default();
    for &rank in layout.ranks() {
        domain.read_drifted(&got[rank as usize], pull, &key)?;
    }
    Ok(domain)
}
