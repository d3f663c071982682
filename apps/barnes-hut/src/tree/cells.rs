//! The cells of a tree: their structure, their values, and the distance from which they are far.

use std::ops::Range;

use springtide_runtime::work::ParallelLoops;

use super::build::CELLS_PER_PIECE;
use super::sums::CellSums;
use super::value::{CellNumbers, CellProperties};
use crate::kernel::{Balls, LANES, Quad};
use crate::setup::{CellExpansion, Setup};

/// The cubes of the octree with at least one body, level by level; the root comes first.
///
/// The children of a cell lie side by side in the order of their bodies. A cube with a single child
/// is replaced by that child, so a cell is the smallest cube of the grid around its bodies.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cells {
    /// Centre of mass and mass.
    pub points: Vec<[f32; 4]>,
    /// Centre of mass and mass with second moments; empty with monopoles alone.
    pub quads: Vec<Quad>,
    /// The structure of the tree.
    pub links: Vec<CellContents>,
    /// The centres of mass again, a column for each axis, padded so that [`LANES`] values can be
    /// read from the last cell on.
    pub(super) com: [Vec<f32>; 3],
    /// A cell is far if the square of the distance is above this: the square of size / theta. With
    /// a wanted error, this is multiplied by a scale that depends on the acceleration.
    pub(super) open_below: Vec<f32>,
    /// The lower limit of this square of the distance, which matters only with a wanted error.
    never_below: Vec<f32>,
}

/// The bodies and children of a cell.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CellContents {
    /// The index of the first body.
    pub first: u32,
    /// One after the last of its bodies.
    pub end: u32,
    /// The index of the first child.
    pub child: u32,
    /// The number of children; 0 for a leaf.
    pub children: u32,
}

impl CellContents {
    pub(crate) fn bodies(&self) -> Range<usize> {
        self.first as usize..self.end as usize
    }

    pub(crate) fn children(&self) -> Range<usize> {
        self.child as usize..self.child as usize + self.children as usize
    }
}

/// Cells whose root replaces another cell.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Graft<'a> {
    /// The cell that is replaced.
    pub at: usize,
    /// The cells; index 0 is their root.
    pub cells: &'a Cells,
    /// The index of their first body.
    pub first: u32,
}

impl Graft<'_> {
    /// The contents of one of the cells, if those below the root begin at `index`.
    fn moved(&self, link: &CellContents, index: u32) -> CellContents {
        // The root is not a child.
        let child = if link.children == 0 { 0 } else { index + link.child - 1 };
        CellContents {
            first: self.first + link.first,
            end: self.first + link.end,
            child,
            children: link.children,
        }
    }
}

/// Removes the first items of a slice, up to this number.
pub(crate) fn first_of<'a, T>(all: &mut &'a mut [T], count: usize) -> &'a mut [T] {
    all.split_off_mut(..count.min(all.len())).unwrap_or_default()
}

impl Cells {
    /// The balls around centres of mass outside of which a cell is far.
    pub(crate) fn balls(&self, scale: f32) -> Balls<'_> {
        let [x, y, z] = &self.com;
        let (radius_squared, least_squared) = (&self.open_below, &self.never_below);
        Balls { middle: [x, y, z], radius_squared, least_squared, scale }
    }

    /// The value of a cell: see [`CellProperties`].
    pub(crate) fn value(&self, cell: usize) -> CellProperties {
        let far = [self.open_below[cell], self.never_below[cell]];
        CellProperties { point: self.points[cell], quad: self.quads.get(cell).copied(), far }
    }

    /// The columns that extend beyond the last cell.
    fn columns(&mut self) -> impl Iterator<Item = &mut Vec<f32>> {
        self.com.iter_mut().chain([&mut self.open_below, &mut self.never_below])
    }

    /// Replaces a cell by the root of other cells, and appends the rest of these; their bodies
    /// count from `first`.
    pub(crate) fn graft(&mut self, at: usize, others: &Cells, first: u32) {
        let count = self.links.len();
        self.set_value(at, &others.value(0));
        let graft = Graft { at, cells: others, first };
        let moved = |link: &CellContents| graft.moved(link, count as u32);
        let mut all = others.links.iter().map(moved);
        if let Some(root) = all.next() {
            self.links[at] = root;
        }
        self.links.extend(all);
        self.points.extend_from_slice(&others.points[1..]);
        self.quads.extend_from_slice(others.quads.get(1..).unwrap_or_default());
        let end = others.links.len();
        let of_others = others.com.iter().chain([&others.open_below, &others.never_below]);
        for (column, others) in self.columns().zip(of_others) {
            column.truncate(count);
            column.extend_from_slice(&others[1..end]);
            column.resize(count + end - 1 + LANES - 1, 0.0);
        }
    }

    /// Makes these cells, and then those of all grafts, which replace some of them. The values of
    /// the upper cells are not set.
    ///
    /// # Errors
    /// The loops must stop.
    pub(crate) fn assemble<L: ParallelLoops>(
        &mut self,
        loops: &L,
        upper: &[CellContents],
        grafts: &[Graft<'_>],
        setup: &Setup,
    ) -> Result<(), L::Stop> {
        /// The cells of a graft without its root, from this index on, to be set.
        struct Target<'a> {
            graft: &'a Graft<'a>,
            index: u32,
            links: &'a mut [CellContents],
            points: &'a mut [[f32; 4]],
            quads: &'a mut [Quad],
            columns: [&'a mut [f32]; 5],
        }
        let more: usize = grafts.iter().map(|graft| graft.cells.links.len() - 1).sum();
        self.make_room(upper.len() + more, setup);
        self.links[..upper.len()].copy_from_slice(upper);
        let mut index = upper.len() as u32;
        for graft in grafts {
            self.links[graft.at] = graft.moved(&graft.cells.links[0], index);
            index += graft.cells.links.len() as u32 - 1;
        }
        let Self { points, quads, links, com: [x, y, z], open_below, never_below } = self;
        let quads_skipped = upper.len().min(quads.len());
        let (mut links, mut points) = (&mut links[upper.len()..], &mut points[upper.len()..]);
        let mut quads = &mut quads[quads_skipped..];
        let columns = [x, y, z, open_below, never_below];
        let mut columns = columns.map(|column| &mut column[upper.len()..]);
        let mut targets = Vec::with_capacity(grafts.len());
        let mut index = upper.len() as u32;
        for graft in grafts {
            let count = graft.cells.links.len() - 1;
            let columns = columns.each_mut().map(|column| first_of(column, count));
            let (links, points) = (first_of(&mut links, count), first_of(&mut points, count));
            let quads = first_of(&mut quads, count);
            targets.push(Target { graft, index, links, points, quads, columns });
            index += count as u32;
        }
        loops.parallel_chunks(&mut targets, 1, |_, targets| {
            for Target { graft, index, links, points, quads, columns } in targets {
                let from = graft.cells;
                for (to, link) in links.iter_mut().zip(&from.links[1..]) {
                    *to = graft.moved(link, *index);
                }
                points.copy_from_slice(&from.points[1..]);
                quads.copy_from_slice(from.quads.get(1..).unwrap_or_default());
                let of = from.com.iter().chain([&from.open_below, &from.never_below]);
                for (to, of) in columns.iter_mut().zip(of) {
                    to.copy_from_slice(&of[1..from.links.len()]);
                }
            }
        })
    }

    /// Makes room for this number of cells, with any contents.
    fn make_room(&mut self, count: usize, setup: &Setup) {
        make_room(&mut self.links, count, CellContents { first: 0, end: 0, child: 0, children: 0 });
        self.make_value_room(count, setup);
    }

    /// Makes room for the values of this number of cells.
    fn make_value_room(&mut self, count: usize, setup: &Setup) {
        let has_quads = setup.order != CellExpansion::Mono;
        make_room(&mut self.points, count, [0.0; 4]);
        make_room(&mut self.quads, if has_quads { count } else { 0 }, Quad::default());
        self.columns().for_each(|column| {
            make_room(column, count + LANES - 1, 0.0);
            column[count..].fill(0.0);
        });
    }

    /// Sets the value of a cell that follows from these sums.
    pub(crate) fn set_from(&mut self, cell: usize, sums: &CellSums, level: u8, setup: &Setup) {
        self.set_value(cell, &CellNumbers::of(sums, cell, level).value(setup));
    }

    /// Sets a cell's value.
    pub(crate) fn set_value(&mut self, cell: usize, value: &CellProperties) {
        self.points[cell] = value.point;
        for (column, &c) in self.com.iter_mut().zip(&value.point) {
            column[cell] = c;
        }
        if let (Some(of), Some(quad)) = (self.quads.get_mut(cell), value.quad) {
            *of = quad;
        }
        [self.open_below[cell], self.never_below[cell]] = value.far;
    }

    /// Balls for a rough estimate, which depend on the sizes of cells alone.
    pub(crate) fn rough_balls(&self) -> Balls<'_> {
        self.balls(0.0)
    }

    /// Sets masses, centres, moments and distances, generation by generation from the deepest. The
    /// sums have room for all cells.
    ///
    /// # Errors
    /// The loops must stop.
    pub(super) fn sum_up<L: ParallelLoops>(
        &mut self,
        loops: &L,
        sums: &mut CellSums,
        points: &[[f32; 4]],
        (levels, generations): (&[u8], &[usize]),
        setup: &Setup,
    ) -> Result<(), L::Stop> {
        for generation in generations.windows(2).rev() {
            let links = &self.links;
            sums.sum_generation(loops, generation[0]..generation[1], |cell| {
                (links[cell].children(), &points[links[cell].bodies()])
            })?;
        }
        self.follow(loops, sums, levels, setup)
    }

    /// Sets all values that follow from sums and levels.
    ///
    /// # Errors
    /// The loops must stop.
    pub(crate) fn follow<L: ParallelLoops>(
        &mut self,
        loops: &L,
        sums: &CellSums,
        levels: &[u8],
        setup: &Setup,
    ) -> Result<(), L::Stop> {
        /// The values of some cells.
        struct Values<'a> {
            points: &'a mut [[f32; 4]],
            quads: &'a mut [Quad],
            /// x, y and z, and the two distances.
            columns: [&'a mut [f32]; 5],
        }
        let count = levels.len();
        let of_cell = |cell: usize| CellNumbers::of(sums, cell, levels[cell]).value(setup);
        self.make_value_room(count, setup);
        let Self { points, quads, com: [x, y, z], open_below, never_below, .. } = self;
        let mut chunks = Vec::with_capacity(count.div_ceil(CELLS_PER_PIECE));
        let mut quads = &mut quads[..];
        let mut columns = [x, y, z, open_below, never_below].map(|column| &mut column[..count]);
        for points in points.chunks_mut(CELLS_PER_PIECE) {
            let length = points.len();
            let quads = first_of(&mut quads, length);
            let columns = columns.each_mut().map(|column| first_of(column, length));
            chunks.push(Values { points, quads, columns });
        }
        loops.parallel_chunks(&mut chunks, 1, |chunk, values| {
            for Values { points, quads, columns } in values {
                for (at, to) in points.iter_mut().enumerate() {
                    let CellProperties { point, quad, far } = of_cell(chunk * CELLS_PER_PIECE + at);
                    *to = point;
                    quads.get_mut(at).zip(quad).into_iter().for_each(|(to, quad)| *to = quad);
                    let numbers = [point[0], point[1], point[2], far[0], far[1]];
                    columns.iter_mut().zip(numbers).for_each(|(to, number)| to[at] = number);
                }
            }
        })
    }
}

/// Gives a column this length, with any values. New memory that is zero already is not written.
fn make_room<T: Clone>(column: &mut Vec<T>, length: usize, zero: T) {
    if length > column.capacity() {
        *column = vec![zero; length];
    } else {
        column.resize(length, zero);
    }
}
