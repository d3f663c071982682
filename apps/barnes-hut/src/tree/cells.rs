//! Cells as walks see them: how they hang together, what acts in their place, and from where on it may. Knows not what made them.

use std::ops::Range;

use super::sums::Sums;
use super::value::{Row, Value};
use crate::kernel::{Balls, LANES, Quad};
use crate::shared::Setup;

/// The cubes of the octree with at least one body, level by level, so that the children of one lie side by side in the
/// order of their bodies; the root comes first. A cube with a single child is left out in favour of that child, so a cell
/// is the smallest cube of the grid around its bodies.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cells {
    /// Centre of mass and mass.
    pub points: Vec<[f32; 4]>,
    /// The same with second moments; empty where only monopoles are asked for.
    pub quads: Vec<Quad>,
    /// How they hang together.
    pub links: Vec<Link>,
    /// The centres of mass again, a column for each axis, and beyond the last cell so many that a look at the last finds
    /// [`LANES`].
    pub(super) com: [Vec<f32>; 3],
    /// The cell is a far one where the square of the distance is above this: the square of size / theta. Where an error is
    /// asked for, it is this times a scale, which depends on the acceleration there.
    pub(super) open_below: Vec<f32>,
    /// And where it is above this too, which only matters where an error is asked for.
    never_below: Vec<f32>,
}

/// How a cell hangs together with others.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Link {
    /// Its bodies.
    pub first: u32,
    /// One after the last of its bodies.
    pub end: u32,
    /// Its first child.
    pub child: u32,
    /// How many children it has; none where it is not split further.
    pub children: u32,
}

impl Link {
    pub(crate) fn bodies(&self) -> Range<usize> {
        self.first as usize..self.end as usize
    }

    pub(crate) fn children(&self) -> Range<usize> {
        self.child as usize..self.child as usize + self.children as usize
    }
}

impl Cells {
    /// The balls around centres of mass outside of which a cell is far.
    pub(crate) fn balls(&self, scale: f32) -> Balls<'_> {
        let [x, y, z] = &self.com;
        let (radius_squared, least_squared) = (&self.open_below, &self.never_below);
        Balls { middle: [x, y, z], radius_squared, least_squared, scale }
    }

    /// See [`Value`].
    pub(crate) fn value(&self, cell: usize) -> Value {
        let far = [self.open_below[cell], self.never_below[cell]];
        Value { point: self.points[cell], quad: self.quads.get(cell).copied(), far }
    }

    /// Makes room for so many more.
    pub(crate) fn reserve(&mut self, more: usize) {
        self.points.reserve(more);
        self.quads.reserve(more);
        self.links.reserve(more);
        self.columns().for_each(|column| column.reserve(more));
    }

    /// Makes it of no cells, and keeps the room of those that there were.
    pub(super) fn clear(&mut self) {
        self.points.clear();
        self.quads.clear();
        self.links.clear();
        self.columns().for_each(Vec::clear);
    }

    /// What looks read, in columns that go beyond the last cell.
    fn columns(&mut self) -> impl Iterator<Item = &mut Vec<f32>> {
        self.com.iter_mut().chain([&mut self.open_below, &mut self.never_below])
    }

    /// Makes of this cell the first of some others, whose bodies count from its first, and puts the rest of these behind all.
    pub(crate) fn hang(&mut self, at: usize, others: &Cells, first: u32) {
        let count = self.links.len();
        self.set_value(at, &others.value(0));
        let moved = |link: &Link| {
            // There the first is no child.
            let child = if link.children == 0 { 0 } else { count as u32 + link.child - 1 };
            Link { first: first + link.first, end: first + link.end, child, ..*link }
        };
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

    /// Makes a cell's value this.
    pub(crate) fn set_value(&mut self, cell: usize, value: &Value) {
        self.points[cell] = value.point;
        for (column, &c) in self.com.iter_mut().zip(&value.point) {
            column[cell] = c;
        }
        if let (Some(of), Some(quad)) = (self.quads.get_mut(cell), value.quad) {
            *of = quad;
        }
        [self.open_below[cell], self.never_below[cell]] = value.far;
    }

    /// Balls for a rough idea: sizes of cells alone matter.
    pub(crate) fn rough_balls(&self) -> Balls<'_> {
        self.balls(0.0)
    }

    /// Sets masses, centres and moments, from the last cell, which is deepest, to the first; and where cells are far.
    pub(super) fn sum_up(&mut self, points: &[[f32; 4]], levels: &[u8], setup: &Setup) {
        let mut sums = Sums::new(levels.len(), setup, false);
        for at in (0..levels.len()).rev() {
            sums.sum(at, self.links[at].children(), &points[self.links[at].bodies()]);
        }
        self.follow(&sums, levels, setup);
    }

    /// Sets what follows from sums and levels.
    pub(crate) fn follow(&mut self, sums: &Sums, levels: &[u8], setup: &Setup) {
        self.points.clear();
        self.quads.clear();
        self.columns().for_each(Vec::clear);
        self.reserve(levels.len() + LANES);
        for (cell, &level) in levels.iter().enumerate() {
            let Value { point, quad, far } = Row::of(sums, cell, level).value(setup);
            self.points.push(point);
            self.quads.extend(quad);
            self.com.iter_mut().zip(point).for_each(|(column, c)| column.push(c));
            self.open_below.push(far[0]);
            self.never_below.push(far[1]);
        }
        let padded = levels.len() + LANES - 1;
        self.columns().for_each(|column| column.resize(padded, 0.0));
    }
}
