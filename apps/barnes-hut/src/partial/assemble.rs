//! Assembles the tree of all present data: own branches, the known parts of remote ones, and sums
//! of the rest.

use std::collections::BTreeMap;
use std::ops::Range;

use springtide_runtime::work::ParallelLoops;

use super::blocks::{BlockInfo, octants};
use super::branch::Branch;
use super::view::RemoteBranch;
use crate::setup::Setup;
use crate::tree::{
    ABSENT, BodyTree, CellContents, CellSums, Cells, Graft, TreePart, agreeing, first_of,
};

/// Assembles a tree from the present data; the memory is that of a tree `before`, if there is one.
///
/// `infos` and `sums` describe all roots. `own` are the cells of consecutive roots from `first` on,
/// and `others` the present cells of remote roots. Cells above roots come first, level by level,
/// then those of each root.
///
/// # Errors
/// The loops must stop.
pub(crate) fn assemble<L: ParallelLoops>(
    loops: &L,
    before: Option<BodyTree>,
    (infos, sums): (&[BlockInfo], &CellSums),
    (first, own): (usize, &[Branch]),
    others: &BTreeMap<usize, &RemoteBranch>,
    (setup, side): (&Setup, f64),
) -> Result<BodyTree, L::Stop> {
    let mut firsts = vec![0u32];
    for info in infos {
        firsts.push(firsts[firsts.len() - 1] + info.bodies);
    }
    let own_roots = first..first + own.len();
    let branch = |root: usize| own_roots.contains(&root).then(|| &own[root - first]);
    let Upper { roots, links, levels } = Upper::of(infos, &firsts);
    // Only their sums are needed: cells within roots come with all other data.
    let mut of_upper = CellSums::new(roots.len(), setup, true);
    for (at, roots) in roots.iter().enumerate().rev() {
        match (roots.len(), branch(roots.start)) {
            (1, Some(branch)) => of_upper.copy(at, &branch.sums, 0),
            (1, None) => of_upper.copy(at, sums, roots.start),
            _ => of_upper.sum(at, links[at].children(), &[]),
        }
    }

    /// The data of a root.
    struct RootData<'a> {
        graft: Graft<'a>,
        points: &'a [[f32; 4]],
        /// The index of each cell's first body in `points`; none if it is that of the cell.
        stored: Option<&'a [u32]>,
        /// The index of the first point in the tree.
        begin: u32,
    }
    // Own bodies come first.
    let mut end = firsts[own_roots.end] - firsts[first];
    let mut data = Vec::new();
    for (at, roots) in roots.iter().enumerate().filter(|(_, roots)| roots.len() == 1) {
        let bodies = firsts[roots.start];
        if let Some(branch) = branch(roots.start) {
            let graft = Graft { at, cells: &branch.cells, first: bodies };
            let begin = bodies - firsts[first];
            data.push(RootData { graft, points: &branch.points, stored: None, begin });
        } else if let Some(other) = others.get(&roots.start) {
            let graft = Graft { at, cells: &other.cells, first: bodies };
            let RemoteBranch { points, stored, .. } = other;
            data.push(RootData { graft, points, stored: Some(stored), begin: end });
            end += points.len() as u32;
        }
    }
    let grafts: Vec<Graft<'_>> = data.iter().map(|data| data.graft).collect();
    let (mut cells, mut points, mut stored) = before.map(BodyTree::into_room).unwrap_or_default();
    cells.assemble(loops, &links, &grafts, setup)?;
    for (at, level) in levels.iter().enumerate() {
        cells.set_from(at, &of_upper, *level, setup);
    }
    for graft in &grafts {
        cells.set_value(graft.at, &graft.cells.value(0));
    }

    points.resize(end as usize, [0.0; 4]);
    stored.resize(cells.links.len(), ABSENT);
    stored[..links.len()].fill(ABSENT);
    let mut rest = &mut stored[links.len()..];
    let mut indices = Vec::with_capacity(data.len());
    for data in &data {
        indices.push(first_of(&mut rest, data.graft.cells.links.len() - 1));
    }
    let index = |data: &RootData<'_>, cell: usize| match data.stored {
        None => data.begin + data.graft.cells.links[cell].first,
        Some(stored) if stored[cell] == ABSENT => ABSENT,
        Some(stored) => data.begin + stored[cell],
    };
    loops.parallel_chunks(&mut indices, 1, |at, indices| {
        for (data, indices) in data[at..].iter().zip(indices) {
            indices.iter_mut().zip(1..).for_each(|(to, cell)| *to = index(data, cell));
        }
    })?;
    for data in &data {
        stored[data.graft.at] = index(data, 0);
    }
    data.sort_unstable_by_key(|data| data.begin);
    let mut rest = &mut points[..];
    let mut copies = Vec::with_capacity(data.len());
    for data in &data {
        copies.push((first_of(&mut rest, data.points.len()), data.points));
    }
    loops.parallel_chunks(&mut copies, 1, |_, copies| {
        copies.iter_mut().for_each(|(to, from)| to.copy_from_slice(from));
    })?;

    let (mut groups, mut blocks) = (Vec::new(), Vec::new());
    for (root, branch) in own_roots.clone().zip(own) {
        groups.extend(branch.groups.iter().map(|from| firsts[root] + from));
        blocks.extend(branch.blocks.iter().map(|from| firsts[root] + from));
    }
    groups.push(firsts[own_roots.end]);
    blocks.push(firsts[own_roots.end]);
    let part = Some(TreePart { first: firsts[first] as usize, stored });
    Ok(BodyTree::of(setup, side, (cells, points, part), (groups, blocks)))
}

/// The cells above roots, and those of the roots themselves, level by level.
struct Upper {
    /// The roots in each cell.
    roots: Vec<Range<usize>>,
    links: Vec<CellContents>,
    levels: Vec<u8>,
}

impl Upper {
    /// The cells above these roots, the first of whose bodies have these indices.
    fn of(infos: &[BlockInfo], firsts: &[u32]) -> Self {
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
        Self { roots: upper, links, levels }
    }
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
