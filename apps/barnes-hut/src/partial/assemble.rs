//! Assembles the tree of all present data: own branches, the known parts of remote ones, and sums
//! of the rest.

use std::collections::BTreeMap;
use std::ops::Range;

use springtide_runtime::work::Sequential;

use super::blocks::{BlockInfo, octants};
use super::branch::Branch;
use super::view::RemoteBranch;
use crate::shared::Setup;
use crate::tree::{ABSENT, BodyTree, CellContents, CellSums, Cells, TreePart, agreeing};

/// Assembles a tree from the present data; the memory is that of a tree `before`, if there is one.
///
/// `infos` and `sums` describe all roots. `own` are the cells of consecutive roots from `first` on,
/// and `others` the present cells of remote roots. Cells above roots come first, level by level,
/// then those of each root.
pub(crate) fn assemble(
    before: Option<BodyTree>,
    infos: &[BlockInfo],
    sums: &CellSums,
    (first, own): (usize, &[Branch]),
    others: &BTreeMap<usize, &RemoteBranch>,
    setup: &Setup,
    side: f64,
) -> BodyTree {
    let mut firsts = vec![0u32];
    for info in infos {
        firsts.push(firsts[firsts.len() - 1] + info.bodies);
    }
    let own_roots = first..first + own.len();
    let branch = |root: usize| own_roots.contains(&root).then(|| &own[root - first]);

    // The range of roots of each cell that is above roots, or is one.
    let all = 0..infos.len();
    let mut upper = if infos.is_empty() { Vec::new() } else { vec![all] };
    let (mut links, mut levels) = (Vec::new(), Vec::new());
    while let Some(roots) = upper.get(links.len()).cloned() {
        let level = agreeing(infos[roots.start].first ^ infos[roots.end - 1].last);
        let child = upper.len();
        if roots.len() > 1 {
            upper.extend(octants(roots.clone(), level, |i| infos[i].first));
        }
        let children = (upper.len() - child) as u32;
        let (first, end) = (firsts[roots.start], firsts[roots.end]);
        links.push(CellContents { first, end, child: child as u32, children });
        levels.push(level as u8);
    }
    // Only their sums are needed: cells within roots come with all other data.
    let mut of_upper = CellSums::new(upper.len(), setup, true);
    for (at, roots) in upper.iter().enumerate().rev() {
        match (roots.len(), branch(roots.start)) {
            (1, Some(branch)) => of_upper.copy(at, &branch.sums, 0),
            (1, None) => of_upper.copy(at, sums, roots.start),
            _ => of_upper.sum(at, links[at].children(), &[]),
        }
    }
    let (mut cells, mut points, mut stored) = before.map(BodyTree::into_room).unwrap_or_default();
    let Ok(()) = cells.follow(&Sequential, &of_upper, &levels, setup);
    cells.links.extend(links);

    let of_own = own.iter().map(|branch| (branch.levels.len(), branch.points.len()));
    let of_others = others.values().map(|other| (other.cells(), other.bodies()));
    let (more, bodies) =
        of_own.chain(of_others).fold((0, 0), |(a, b), (cells, bodies)| (a + cells, b + bodies));
    cells.reserve(more);
    stored.resize(upper.len(), ABSENT);
    stored.reserve(more);
    points.reserve(bodies);
    // Own bodies come first.
    own.iter().for_each(|branch| points.extend_from_slice(&branch.points));
    for (at, roots) in upper.iter().enumerate().filter(|(_, roots)| roots.len() == 1) {
        let (root, bodies) = (roots.start, firsts[roots.start]);
        if let Some(branch) = branch(root) {
            cells.graft(at, &branch.cells, bodies);
            let begin = bodies - firsts[first];
            stored[at] = begin;
            stored.extend(branch.cells.links[1..].iter().map(|link| begin + link.first));
        } else if let Some(other) = others.get(&root) {
            hang(other, (at, bodies), &mut cells, &mut points, &mut stored);
        }
    }

    let (mut groups, mut blocks) = (Vec::new(), Vec::new());
    for (root, branch) in own_roots.clone().zip(own) {
        groups.extend(branch.groups.iter().map(|from| firsts[root] + from));
        blocks.extend(branch.blocks.iter().map(|from| firsts[root] + from));
    }
    groups.push(firsts[own_roots.end]);
    blocks.push(firsts[own_roots.end]);
    let part = Some(TreePart { first: firsts[first] as usize, stored });
    BodyTree::of(setup, side, (cells, points, part), (groups, blocks))
}

/// Adds data of a remote root that arrived after the assembly, to the cell with these bodies.
pub(crate) fn add(tree: &mut BodyTree, bodies: Range<usize>, other: &RemoteBranch) {
    let BodyTree { cells, points, part, .. } = tree;
    let Some(TreePart { stored, .. }) = part else { return };
    let mut at = 0;
    while cells.links[at].bodies() != bodies {
        let holds = |&cell: &usize| cells.links[cell].bodies().contains(&bodies.start);
        let Some(child) = cells.links[at].children().find(holds) else { return };
        at = child;
    }
    hang(other, (at, bodies.start as u32), cells, points, stored);
}

/// Replaces a cell by the cells of a remote root, whose first body is `first`.
fn hang(
    other: &RemoteBranch,
    (at, first): (usize, u32),
    cells: &mut Cells,
    points: &mut Vec<[f32; 4]>,
    stored: &mut Vec<u32>,
) {
    cells.graft(at, &other.cells, first);
    let begin = points.len() as u32;
    let moved = |&at: &u32| if at == ABSENT { ABSENT } else { begin + at };
    let mut all = other.stored.iter().map(moved);
    stored[at] = all.next().unwrap_or(ABSENT);
    stored.extend(all);
    points.extend_from_slice(&other.points);
}
