//! Blocks and roots, which follow from keys alone, in pieces and as a whole. This module does not
//! depend on bodies.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::setup::Setup;
use crate::tree::{GROUPS_A_BLOCK, LEVELS, agreeing};

/// The properties of a block that all nodes know.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct BlockInfo {
    /// The key of its first body.
    pub first: u64,
    /// The key of its last body.
    pub last: u64,
    /// The number of bodies, at least one.
    pub bodies: u32,
    /// The cost of its forces, in any unit.
    pub cost: f32,
}

/// The number of bodies of these blocks together.
pub(crate) fn bodies_of(infos: &[BlockInfo]) -> usize {
    infos.iter().map(|info| info.bodies as usize).sum()
}

/// The maximum number of bodies of a block for this maximum of a group, unless they lie at one
/// point.
pub(crate) fn most_bodies(group: u32) -> usize {
    group.max(1) as usize * GROUPS_A_BLOCK
}

/// The blocks of all keys, which are sorted, with this cost of each body.
pub(crate) fn blocks(keys: &[(u64, u32)], setup: &Setup, cost: f32) -> Vec<BlockInfo> {
    let mut blocks = pieces(keys, 0..1 << (3 * LEVELS), setup);
    blocks.iter_mut().for_each(|block| block.cost = cost * block.bodies as f32);
    blocks
}

/// The largest cubes within a range of keys that have at most the bodies of a block, for sorted
/// keys in that range. Their costs are 0.
///
/// If other nodes have the neighbouring keys, several of these, with theirs, may form one block.
pub(crate) fn pieces(keys: &[(u64, u32)], within: Range<u64>, setup: &Setup) -> Vec<BlockInfo> {
    let most = most_bodies(setup.group);
    let mut pieces = Vec::new();
    // The last is processed next, so that pieces come out in order.
    let all = 0..keys.len();
    let mut open = vec![all];
    while let Some(bodies) = open.pop() {
        let Some((first, last)) = bodies.clone().next().zip(bodies.clone().next_back()) else {
            continue;
        };
        let (first, last) = (keys[first].0, keys[last].0);
        let level = agreeing(first ^ last);
        let shift = 3 * (LEVELS - level);
        let start = first >> shift << shift;
        let inside = start >= within.start && start + ((1 << shift) - 1) < within.end;
        // The finest cubes are not cut: each owner of a part reports it, and the parts are merged.
        if level == LEVELS || inside && bodies.len() <= most {
            pieces.push(BlockInfo { first, last, bodies: bodies.len() as u32, cost: 0.0 });
            continue;
        }
        let children = octants(bodies, level, |i| keys[i].0);
        open.extend(children.into_iter().rev());
    }
    pieces
}

/// Splits consecutive elements with sorted keys by the octants of a cube of this level.
pub(super) fn octants(
    things: Range<usize>,
    level: u32,
    key: impl Fn(usize) -> u64,
) -> Vec<Range<usize>> {
    let shift = 3 * (LEVELS - 1 - level);
    let mut parts: Vec<Range<usize>> = Vec::new();
    let mut start = things.start;
    while start < things.end {
        // The first element of another octant, by bisection.
        let octant = key(start) >> shift;
        let (mut same, mut other) = (start, things.end);
        while other - same > 1 {
            let middle = same + (other - same) / 2;
            let is_same = key(middle) >> shift == octant;
            (same, other) = if is_same { (middle, other) } else { (same, middle) };
        }
        parts.push(start..other);
        start = other;
    }
    parts
}

/// The blocks that the pieces of all keys form, in order: for each, the range of its pieces.
pub(crate) fn merged(pieces: &[BlockInfo], setup: &Setup) -> Vec<Range<usize>> {
    let most = most_bodies(setup.group);
    let mut blocks = Vec::new();
    let all = 0..pieces.len();
    let mut open = vec![all];
    while let Some(some) = open.pop() {
        let (Some(first), Some(last)) = (pieces.get(some.start), pieces[some.clone()].last())
        else {
            continue;
        };
        let level = agreeing(first.first ^ last.last);
        let bodies: u64 = pieces[some.clone()].iter().map(|piece| u64::from(piece.bodies)).sum();
        if some.len() == 1 || bodies <= most as u64 || level == LEVELS {
            blocks.push(some);
            continue;
        }
        open.extend(octants(some, level, |i| pieces[i].first).into_iter().rev());
    }
    blocks
}

/// The block that several pieces form.
pub(crate) fn joined(pieces: &[BlockInfo]) -> BlockInfo {
    let (first, last) = (pieces[0].first, pieces[pieces.len() - 1].last);
    let bodies = pieces.iter().map(|piece| piece.bodies).sum();
    BlockInfo { first, last, bodies, cost: pieces.iter().map(|piece| piece.cost).sum() }
}

/// The *roots*: the largest cells whose blocks have one holder and at most `most` bodies together,
/// or that are one block.
///
/// They are in order, each with the range of its blocks. The sums of all cells above them follow
/// from theirs.
pub(crate) fn roots(
    infos: &[BlockInfo],
    most: usize,
    holder: impl Fn(usize) -> usize,
) -> Vec<Range<usize>> {
    let mut roots = Vec::new();
    let all = 0..infos.len();
    let mut open = vec![all];
    while let Some(blocks) = open.pop() {
        let Some(last) = blocks.clone().next_back() else { continue };
        // Each cell holds consecutive blocks.
        let is_small = blocks.len() == 1 || bodies_of(&infos[blocks.clone()]) <= most;
        if is_small && holder(blocks.start) == holder(last) {
            roots.push(blocks);
            continue;
        }
        let level = agreeing(infos[blocks.start].first ^ infos[last].last);
        open.extend(octants(blocks, level, |i| infos[i].first).into_iter().rev());
    }
    roots
}
