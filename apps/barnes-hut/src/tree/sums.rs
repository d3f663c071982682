//! Sums over the bodies of cells.

use std::ops::Range;

use springtide_runtime::work::ParallelLoops;

use super::build::CELLS_PER_PIECE;
use super::cells::first_of;

use crate::setup::{CellExpansion, Setup};
use crate::smooth::ColumnCoding;

/// Second moments of the mass about the centre of mass: xx, yy, zz, xy, xz, yz.
pub(super) type Moments = [f32; 6];

/// Large leaves of a piece, such as blocks.
const LEAVES_PER_PIECE: usize = 16;

/// The smallest and largest coordinates of no bodies.
const EMPTY_EXTENT: [[f32; 3]; 2] = [[f32::INFINITY; 3], [f32::NEG_INFINITY; 3]];

/// Sums over the bodies of cells, from which all other properties of a cell follow.
///
/// They are computed in double precision, and rounded in each cell, so that the cells above follow
/// from few bytes.
#[derive(Clone, Debug, Default)]
pub(crate) struct CellSums {
    /// Centre of mass and mass.
    pub(super) points: Vec<[f32; 4]>,
    /// Sums of mass times the square of the distance from the centre of mass, for a wanted error
    /// without quadrupoles. Quadrupoles have it as their trace.
    pub(super) spreads: Vec<f32>,
    /// The second moments, with quadrupoles.
    pub(super) moments: Vec<Moments>,
    /// The smallest and largest coordinates of the bodies, if these may have left their cubes.
    extents: Vec<[[f32; 3]; 2]>,
}

/// The sums of one cell: see [`CellSums`].
struct SumsOfCell {
    point: [f32; 4],
    spread: f32,
    moments: Moments,
    extent: [[f32; 3]; 2],
}

/// The sums of some cells, to be set; kinds that are not kept are empty.
struct OwnSums<'a> {
    points: &'a mut [[f32; 4]],
    spreads: &'a mut [f32],
    moments: &'a mut [Moments],
    extents: &'a mut [[[f32; 3]; 2]],
}

impl<'a> OwnSums<'a> {
    /// Removes the first cells, up to this number.
    fn take(&mut self, count: usize) -> Self {
        Self {
            points: first_of(&mut self.points, count),
            spreads: first_of(&mut self.spreads, count),
            moments: first_of(&mut self.moments, count),
            extents: first_of(&mut self.extents, count),
        }
    }

    fn set(&mut self, at: usize, sums: &SumsOfCell) {
        self.points[at] = sums.point;
        self.spreads.get_mut(at).into_iter().for_each(|spread| *spread = sums.spread);
        self.moments.get_mut(at).into_iter().for_each(|moments| *moments = sums.moments);
        self.extents.get_mut(at).into_iter().for_each(|extent| *extent = sums.extent);
    }
}

/// The sums of all cells from a first one on.
struct SumsBelow<'a> {
    first: usize,
    has_spreads: bool,
    has_moments: bool,
    has_extents: bool,
    points: &'a [[f32; 4]],
    spreads: &'a [f32],
    moments: &'a [Moments],
    extents: &'a [[[f32; 3]; 2]],
}

impl SumsBelow<'_> {
    /// The sums of a cell over its children, or over its bodies if it is a leaf.
    fn of_cell(&self, children: Range<usize>, bodies: &[[f32; 4]]) -> SumsOfCell {
        // A leaf has an empty range, which need not lie among these cells.
        let first = self.first.min(children.start);
        let children = children.start - first..children.end - first;
        let mut mass = 0.0;
        let mut com = [0.0; 3];
        let mut add = |[x, y, z, m]: [f64; 4]| {
            mass += m;
            com = [com[0] + m * x, com[1] + m * y, com[2] + m * z];
        };
        if children.is_empty() {
            bodies.iter().for_each(|p| add(p.map(f64::from)));
        } else {
            self.points[children.clone()].iter().for_each(|p| add(p.map(f64::from)));
        }
        if mass > 0.0 {
            com = com.map(|c| c / mass);
        }
        let point = [com[0], com[1], com[2], mass].map(|sum| sum as f32);
        // About the rounded place, which other nodes receive.
        com = [0, 1, 2].map(|axis| f64::from(point[axis]));
        let mut sums = SumsOfCell { point, spread: 0.0, moments: [0.0; 6], extent: EMPTY_EXTENT };
        if self.has_spreads {
            let away = |p: [f32; 4]| {
                let [x, y, z, m] = p.map(f64::from);
                let [x, y, z] = [x - com[0], y - com[1], z - com[2]];
                m * (x * x + y * y + z * z)
            };
            let sum: f64 = if children.is_empty() {
                bodies.iter().map(|p| away(*p)).sum()
            } else {
                let of = |child| f64::from(self.spreads[child]) + away(self.points[child]);
                children.clone().map(of).sum()
            };
            sums.spread = sum as f32;
        }
        if self.has_moments {
            let mut sum = [0.0; 6];
            let mut add = |p: [f32; 4], moments: &Moments| {
                let [px, py, pz, m] = p.map(f64::from);
                let [x, y, z] = [px - com[0], py - com[1], pz - com[2]];
                let products = [x * x, y * y, z * z, x * y, x * z, y * z];
                for k in 0..6 {
                    sum[k] += f64::from(moments[k]) + m * products[k];
                }
            };
            if children.is_empty() {
                bodies.iter().for_each(|p| add(*p, &[0.0; 6]));
            } else {
                let children = children.clone();
                children.for_each(|child| add(self.points[child], &self.moments[child]));
            }
            sums.moments = sum.map(|sum| sum as f32);
        }
        if self.has_extents {
            let [mut low, mut high] = EMPTY_EXTENT;
            let mut add = |from: [f32; 3], to: [f32; 3]| {
                low = [0, 1, 2].map(|k| low[k].min(from[k]));
                high = [0, 1, 2].map(|k| high[k].max(to[k]));
            };
            if children.is_empty() {
                bodies.iter().for_each(|&[x, y, z, _]| add([x, y, z], [x, y, z]));
            } else {
                self.extents[children].iter().for_each(|&[from, to]| add(from, to));
            }
            sums.extent = [low, high];
        }
        sums
    }
}

impl CellSums {
    /// Zero sums of this number of cells; `moved` says whether bodies may have left their cubes.
    pub(crate) fn new(count: usize, setup: &Setup, moved: bool) -> Self {
        let mut sums = Self::default();
        sums.resize(count, setup, moved);
        sums
    }

    /// Makes room for this number of cells; the sums of those that were there before are not
    /// defined.
    pub(super) fn resize(&mut self, count: usize, setup: &Setup, moved: bool) {
        let quad = setup.order != CellExpansion::Mono;
        let if_kept = |kept: bool| if kept { count } else { 0 };
        self.points.resize(count, [0.0; 4]);
        self.spreads.resize(if_kept(setup.error.is_some() && !quad), 0.0);
        self.moments.resize(if_kept(quad), [0.0; 6]);
        self.extents.resize(if_kept(moved), EMPTY_EXTENT);
    }

    /// The sums of cells without children, whose `bodies` may have left their cubes.
    ///
    /// # Errors
    /// The loops must stop.
    pub(crate) fn of_leaves<'p, L: ParallelLoops>(
        loops: &L,
        count: usize,
        bodies: impl Fn(usize) -> &'p [[f32; 4]] + Sync,
        setup: &Setup,
    ) -> Result<Self, L::Stop> {
        let mut sums = Self::new(count, setup, true);
        sums.sum_cells(loops, 0..count, LEAVES_PER_PIECE, |cell| (0..0, bodies(cell)))?;
        Ok(sums)
    }

    /// Sums up a cell from its children's sums, or from its bodies if it is a leaf. Children come
    /// after their cell.
    pub(crate) fn sum(&mut self, at: usize, children: Range<usize>, bodies: &[[f32; 4]]) {
        let (mut own, below) = self.split(at..at + 1);
        own.set(0, &below.of_cell(children, bodies));
    }

    /// Sums up the cells of a generation, whose children are the cells after them.
    ///
    /// # Errors
    /// The loops must stop.
    pub(super) fn sum_generation<'p, L: ParallelLoops>(
        &mut self,
        loops: &L,
        cells: Range<usize>,
        of: impl Fn(usize) -> (Range<usize>, &'p [[f32; 4]]) + Sync,
    ) -> Result<(), L::Stop> {
        self.sum_cells(loops, cells, CELLS_PER_PIECE, of)
    }

    fn sum_cells<'p, L: ParallelLoops>(
        &mut self,
        loops: &L,
        cells: Range<usize>,
        grain: usize,
        of: impl Fn(usize) -> (Range<usize>, &'p [[f32; 4]]) + Sync,
    ) -> Result<(), L::Stop> {
        let first = cells.start;
        let (mut own, below) = self.split(cells);
        let mut chunks = Vec::new();
        while !own.points.is_empty() {
            chunks.push(own.take(grain));
        }
        loops.parallel_chunks(&mut chunks, 1, |chunk, sums| {
            for sums in sums {
                for at in 0..sums.points.len() {
                    let (children, bodies) = of(first + chunk * grain + at);
                    sums.set(at, &below.of_cell(children, bodies));
                }
            }
        })
    }

    /// The sums of these cells, and those of all after them.
    fn split(&mut self, cells: Range<usize>) -> (OwnSums<'_>, SumsBelow<'_>) {
        fn parts<T>(all: &mut [T], cells: Range<usize>) -> (&mut [T], &[T]) {
            if all.is_empty() {
                return (&mut [], &[]);
            }
            let (own, below) = all[cells.start..].split_at_mut(cells.len());
            (own, below)
        }
        let (points, points_below) = parts(&mut self.points, cells.clone());
        let (spreads, spreads_below) = parts(&mut self.spreads, cells.clone());
        let (moments, moments_below) = parts(&mut self.moments, cells.clone());
        let (extents, extents_below) = parts(&mut self.extents, cells.clone());
        let below = SumsBelow {
            first: cells.end,
            has_spreads: !spreads.is_empty(),
            has_moments: !moments.is_empty(),
            has_extents: !extents.is_empty(),
            points: points_below,
            spreads: spreads_below,
            moments: moments_below,
            extents: extents_below,
        };
        (OwnSums { points, spreads, moments, extents }, below)
    }

    /// Copies a cell's sums from others of the same kinds.
    pub(crate) fn copy(&mut self, at: usize, from: &Self, other: usize) {
        self.points[at] = from.points[other];
        if !self.spreads.is_empty() {
            self.spreads[at] = from.spreads[other];
        }
        if !self.moments.is_empty() {
            self.moments[at] = from.moments[other];
        }
        if !self.extents.is_empty() {
            self.extents[at] = from.extents[other];
        }
    }

    /// The coding of each number of a cell's row.
    pub(crate) fn columns(&self) -> &'static [ColumnCoding] {
        const MOST: usize = 4 + 1 + 6 + 6;
        let some = [!self.spreads.is_empty(), !self.moments.is_empty(), !self.extents.is_empty()];
        let more: usize =
            some.into_iter().zip([1, 6, 6]).map(|(is, of)| usize::from(is) * of).sum();
        &[ColumnCoding::InOrder; MOST][..4 + more]
    }

    /// Appends the numbers of a cell; their count depends only on the kinds of sums.
    pub(crate) fn row(&self, at: usize, to: &mut Vec<f32>) {
        to.extend(self.points[at]);
        to.extend(self.spreads.get(at));
        to.extend(self.moments.get(at).into_iter().flatten());
        to.extend(self.extents.get(at).into_iter().flatten().flatten());
    }

    /// The numbers of all cells: see [`CellSums::row`].
    pub(crate) fn rows(&self) -> Vec<f32> {
        let mut rows = Vec::new();
        (0..self.points.len()).for_each(|at| self.row(at, &mut rows));
        rows
    }

    /// Parses the sums of this number of moved cells from [`CellSums::rows`]; none if the length is
    /// wrong.
    pub(crate) fn of_rows(count: usize, rows: &[f32], setup: &Setup) -> Option<Self> {
        let mut sums = Self::new(count, setup, true);
        let columns = sums.columns().len();
        for (at, row) in rows.chunks(columns).enumerate().take(count) {
            sums.set_row(at, row);
        }
        (rows.len() == count * columns).then_some(sums)
    }

    /// Sets a cell's sums from the numbers of [`CellSums::row`].
    pub(crate) fn set_row(&mut self, at: usize, row: &[f32]) {
        let all = self.points[at].iter_mut().chain(self.spreads.get_mut(at));
        let all = all.chain(self.moments.get_mut(at).into_iter().flatten());
        let all = all.chain(self.extents.get_mut(at).into_iter().flatten().flatten());
        all.zip(row).for_each(|(of, number)| *of = *number);
    }

    /// The size of a cell: the side of its level's cube or, if its bodies may have moved, of the
    /// cube that contains them.
    pub(super) fn size(&self, at: usize, level: u8) -> f64 {
        let side = f64::from_bits((1023 - u64::from(level)) << 52);
        let Some([low, high]) = self.extents.get(at) else { return side };
        let extent = |axis: usize| f64::from(high[axis]) - f64::from(low[axis]);
        (0..3).map(extent).fold(side, f64::max)
    }
}
