//! The tree of what is here: own branches, what is known of those of others, and of the rest the sums.

use std::collections::BTreeMap;
use std::ops::Range;

use super::blocks::{Info, octants};
use super::branch::Branch;
use super::view::Other;
use crate::shared::Setup;
use crate::tree::{ABSENT, Cells, Link, Part, Sums, Tree, agreeing};

#[derive(Clone, Debug)]
enum Cell {
    /// Above roots: of these.
    Above(Range<usize>),
    /// This cell of this root.
    Within(usize, usize),
}

/// Puts together what there is: `infos` and `sums` tell of all roots, `own` are the cells of the consecutive ones from `first` on,
/// and `others` those of others that are here.
pub(crate) fn assemble(
    infos: &[Info],
    sums: &Sums,
    (first, own): (usize, &[Branch]),
    others: &BTreeMap<usize, &Other>,
    setup: &Setup,
    side: f64,
) -> Tree {
    let mut firsts = vec![0u32];
    for info in infos {
        firsts.push(firsts[firsts.len() - 1] + info.bodies);
    }
    let own_roots = first..first + own.len();
    let branch = |root: usize| own_roots.contains(&root).then(|| &own[root - first]);
    // Own bodies come first.
    let mut points: Vec<[f32; 4]> = own.iter().flat_map(|branch| &branch.points).copied().collect();
    let mut begins = BTreeMap::new();
    for (&root, other) in others {
        begins.insert(root, points.len() as u32);
        points.extend_from_slice(&other.points);
    }

    let mut cells = Cells::default();
    let (mut of, mut levels, mut stored) = (Vec::new(), Vec::new(), Vec::new());
    let mut add = |cell: Cell, links: &mut Vec<Link>, of: &mut Vec<Cell>| {
        let (bodies, level, begin) = match &cell {
            Cell::Above(roots) => {
                let (first, last) = (infos[roots.start].first, infos[roots.end - 1].last);
                (firsts[roots.start]..firsts[roots.end], agreeing(first ^ last) as u8, ABSENT)
            }
            &Cell::Within(root, at) => {
                let start = firsts[root];
                if let Some(branch) = branch(root) {
                    let Link { first: from, end, .. } = branch.cells.links[at];
                    let begin = start - firsts[first] + from;
                    (start + from..start + end, branch.levels[at], begin)
                } else if let Some(other) = others.get(&root) {
                    let Link { first: from, end, .. } = other.cells.links[at];
                    let begin = match other.stored[at] {
                        ABSENT => ABSENT,
                        begin => begins[&root] + begin,
                    };
                    (start + from..start + end, 0, begin)
                } else {
                    (start..firsts[root + 1], infos[root].level() as u8, ABSENT)
                }
            }
        };
        links.push(Link { first: bodies.start, end: bodies.end, child: 0, children: 0 });
        of.push(cell);
        levels.push(level);
        stored.push(begin);
    };
    let above = |roots: Range<usize>| match roots.len() {
        1 => Cell::Within(roots.start, 0),
        _ => Cell::Above(roots),
    };
    if !infos.is_empty() {
        add(above(0..infos.len()), &mut cells.links, &mut of);
    }
    let mut at = 0;
    while at < of.len() {
        let child = of.len();
        match of[at].clone() {
            Cell::Above(roots) => {
                let level = agreeing(infos[roots.start].first ^ infos[roots.end - 1].last);
                for part in octants(roots, level, |i| infos[i].first) {
                    add(above(part), &mut cells.links, &mut of);
                }
            }
            Cell::Within(root, cell) => {
                let links = branch(root).map(|branch| &branch.cells.links);
                let links = links.or(others.get(&root).map(|other| &other.cells.links));
                for child in links.map_or(0..0, |links| links[cell].children()) {
                    add(Cell::Within(root, child), &mut cells.links, &mut of);
                }
            }
        }
        let children = (of.len() - child) as u32;
        cells.links[at] = Link { child: child as u32, children, ..cells.links[at] };
        at += 1;
    }

    // Sums are only needed above roots, of which those within tell all that is asked for. Children of a cell above them lie together
    // among these, too.
    let is_upper = |at: &usize| !matches!(of[*at], Cell::Within(_, 1..));
    let upper: Vec<usize> = (0..of.len()).filter(is_upper).collect();
    let mut all = Sums::new(upper.len(), setup, true);
    for (to, &at) in upper.iter().enumerate().rev() {
        match of[at] {
            Cell::Above(_) => {
                let Range { start, end } = cells.links[at].children();
                let first = upper.partition_point(|&upper| upper < start);
                all.sum(to, first..first + (end - start), &[]);
            }
            Cell::Within(root, _) => match branch(root) {
                Some(branch) => all.copy(to, &branch.sums, 0),
                None => all.copy(to, sums, root),
            },
        }
    }
    let upper_levels: Vec<u8> = upper.iter().map(|&at| levels[at]).collect();
    let mut values = Cells::default();
    values.follow(&all, &upper_levels, setup);
    cells.make_room(of.len(), setup);
    for (to, &at) in upper.iter().enumerate() {
        cells.set_value(at, &values.value(to));
    }
    for (at, cell) in of.iter().enumerate() {
        let &Cell::Within(root, cell) = cell else { continue };
        if let Some(branch) = branch(root) {
            cells.set_value(at, &branch.cells.value(cell));
        } else if let Some(other) = others.get(&root) {
            cells.set_value(at, &other.cells.value(cell));
        }
    }

    let (mut groups, mut blocks) = (Vec::new(), Vec::new());
    for (root, branch) in own_roots.clone().zip(own) {
        groups.extend(branch.groups.iter().map(|from| firsts[root] + from));
        blocks.extend(branch.blocks.iter().map(|from| firsts[root] + from));
    }
    groups.push(firsts[own_roots.end]);
    blocks.push(firsts[own_roots.end]);
    let part = Some(Part { first: firsts[first] as usize, stored });
    Tree::of(setup, side, (cells, points, part), (groups, blocks))
}
