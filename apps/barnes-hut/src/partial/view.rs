//! Delta encoding of a branch for a remote subscriber, and the subscriber's decoded copy. This
//! module does not know the transport.

use std::collections::VecDeque;
use std::ops::Range;

use springtide_runtime::work::Sequential;

use super::branch::Branch;
use super::encoded_positions::{EncodedPositions, FormerViews, Reference};
use crate::delta::{unzigzag, zigzag};
use crate::setup::Setup;
use crate::smooth::{Track, put_codes, put_number, take_codes, take_number};
use crate::tree::{ABSENT, BodyTree, CellContents, CellNumbers, CellSums, Cells, LEVELS};

/// A set of remote bodies, as seen by the cells that these bodies may have to open.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Subscriber {
    /// The smallest and largest coordinates.
    pub extent: [[f32; 3]; 2],
    /// The factor of cell sizes, as seen from there.
    pub scale: f32,
}

/// The margin of the scale of a block, for scales change with accelerations.
const MARGIN: f32 = 1.05;

impl Subscriber {
    /// The sink of a block in this box with this scale.
    pub(crate) fn new(extent: [[f32; 3]; 2], scale: f32) -> Self {
        Self { extent, scale: MARGIN * scale }
    }

    /// A sink that needs all data of these sinks, of which there is at least one.
    pub(crate) fn joined(sinks: &[Self]) -> Self {
        let extent = around(sinks.iter().flat_map(|sink| sink.extent));
        let scale = sinks.iter().map(|sink| sink.scale).fold(0.0, f32::max);
        Self { extent, scale }
    }

    /// Encodes the sink, for [`Subscriber::take`].
    pub(crate) fn write(&self, to: &mut Vec<u8>) {
        let values = self.extent.iter().flatten().chain([&self.scale]);
        to.extend(values.flat_map(|value| value.to_le_bytes()));
    }

    /// Decodes a sink and advances `bytes`; none if there are too few bytes.
    pub(crate) fn take(bytes: &mut &[u8]) -> Option<Self> {
        let (sink, rest) = bytes.split_first_chunk::<{ 7 * 4 }>()?;
        *bytes = rest;
        let value = |i: usize| sink[4 * i..].first_chunk().map(|four| f32::from_le_bytes(*four));
        let three = |i: usize| Some([value(i)?, value(i + 1)?, value(i + 2)?]);
        Some(Self { extent: [three(0)?, three(3)?], scale: value(6)? })
    }

    /// The bodies of closed cells of a tree that some of these sinks may have to open.
    pub(crate) fn closed<'s>(
        sinks: impl Iterator<Item = &'s Self> + Clone,
        tree: &BodyTree,
        setup: &Setup,
    ) -> impl Iterator<Item = Range<usize>> {
        let Cells { links, .. } = &tree.cells;
        let closed = (0..links.len()).filter(|&cell| tree.is_absent(cell));
        let some = closed.filter(move |&cell| {
            let value = tree.cells.value(cell);
            let far = value.far_with_room(setup);
            sinks.clone().any(|sink| !sink.finds_far(&value.point, far))
        });
        some.map(|cell| links[cell].bodies())
    }

    /// Whether a cell at this place, which is far from a certain distance on, is far from the whole
    /// sink.
    ///
    /// A margin covers the rounding of its place and a part of its size.
    fn finds_far(&self, place: &[f32; 4], far: [f32; 2]) -> bool {
        const ROOM: f32 = 1.004;
        let [low, high] = self.extent;
        let mut square = 0.0;
        for axis in 0..3 {
            let c = place[axis];
            let outside = (low[axis] - c).max(c - high[axis]).max(0.0);
            square += outside * outside;
        }
        square > ROOM * (far[0] * self.scale).max(far[1])
    }
}

/// The smallest and largest coordinates of these places.
pub(crate) fn around(places: impl Iterator<Item = [f32; 3]>) -> [[f32; 3]; 2] {
    places.fold([[f32::INFINITY; 3], [f32::NEG_INFINITY; 3]], |[low, high], place| {
        let low = [0, 1, 2].map(|axis| low[axis].min(place[axis]));
        [low, [0, 1, 2].map(|axis| high[axis].max(place[axis]))]
    })
}

/// A cell's entry in the form of a view: the number of its children, which follow.
const CHILDREN: u8 = 0x0f;
/// Flag: the bodies of the cell are sent.
const BODIES: u8 = 0x10;
/// Flag: all bodies of the cell are sent, and its value follows from them, as for cells within
/// blocks.
const WHOLE: u8 = 0x20;

/// The code of an entry, small for frequent ones.
fn code_of(kind: u8) -> u32 {
    const LEAF: u8 = BODIES | WHOLE;
    match kind {
        0 => 0,
        LEAF => 1,
        BODIES => 2,
        _ => 3 + 2 * u32::from(8 - (kind & CHILDREN)) + u32::from(kind & WHOLE != 0),
    }
}

/// The entry with this code; none if there is none.
fn kind_of(code: u32) -> Option<u8> {
    Some(match code {
        0 => 0,
        1 => BODIES | WHOLE,
        2 => BODIES,
        3..19 => {
            let children = 8 - (code - 3) as u8 / 2;
            if code.is_multiple_of(2) { children | WHOLE } else { children }
        }
        _ => return None,
    })
}

/// Up to this number of bodies of a leaf are sent instead of its value, for they are shorter.
const AS_SHORT: usize = 4;

/// The data of a branch that a subscriber gets in each step: the values of some cells, and the
/// places of some bodies.
///
/// The choice stays the same from step to step; its *form* describes it.
#[derive(Clone, Debug)]
pub(crate) struct Subscription {
    cells: Vec<u32>,
    bodies: Vec<Range<usize>>,
    values: Track,
    places: EncodedPositions,
}

impl Subscription {
    /// The bodies of the view, and their places.
    pub(crate) fn into_places(self) -> (Vec<Range<usize>>, EncodedPositions) {
        (self.bodies, self.places)
    }

    /// The count of numbers that are sent in each step.
    pub(crate) fn numbers(&self, setup: &Setup) -> usize {
        let bodies: usize = self.bodies.iter().map(Range::len).sum();
        CellNumbers::columns(setup).len() * self.cells.len() + 3 * bodies
    }
}

impl Branch {
    /// The data that these sinks need, and its form for [`Other::read`]; none if the whole branch
    /// is far from all.
    ///
    /// It contains the children of cells that are not far from a sink, now or with bodies at their
    /// `later` places, and the bodies of such leaves. `known` gives references of bodies to the
    /// views in `past`.
    pub(crate) fn view(
        &self,
        later: &Self,
        sinks: &[Subscriber],
        (past, known): (&FormerViews<'_>, &dyn Fn(usize) -> Option<Reference>),
        setup: &Setup,
        form: &mut Vec<u8>,
    ) -> Option<Subscription> {
        let near = |cell: usize, some: &[u32]| -> Vec<u32> {
            let is_near = self.is_near(later, cell, setup);
            some.iter().copied().filter(|&i| is_near(&sinks[i as usize])).collect()
        };
        let all: Vec<u32> = (0..sinks.len() as u32).collect();
        let root = near(0, &all);
        if root.is_empty() {
            return None;
        }
        // Level by level, as cells are: the cell, the index of its first child, and its entry.
        let mut sent = vec![(0, 0, 0)];
        let mut open = VecDeque::from([root]);
        let mut at = 0;
        while let Some(near_to) = open.pop_front() {
            let cell = sent[at].0;
            let link = self.cells.links[cell];
            let opened = !near_to.is_empty();
            let children = sent.len();
            // Sums of blocks may have been sent ahead: they do not follow from the places of
            // bodies.
            let whole = if self.is_within_block(cell) { WHOLE } else { 0 };
            let kind = match link.children {
                0 if opened || link.bodies().len() <= AS_SHORT => BODIES | whole,
                1.. if opened => {
                    sent.extend(link.children().map(|child| (child, 0, 0)));
                    open.extend(link.children().map(|child| near(child, &near_to)));
                    link.children as u8
                }
                _ => 0,
            };
            (sent[at].1, sent[at].2) = (children, kind);
            at += 1;
        }
        for at in (0..sent.len()).rev() {
            let (cell, first, kind) = sent[at];
            let mut children = first..first + usize::from(kind & CHILDREN);
            let follows = !children.is_empty() && self.is_within_block(cell);
            if follows && children.all(|child| sent[child].2 & WHOLE != 0) {
                sent[at].2 |= WHOLE;
            }
        }
        let (mut cells, mut bodies) = (Vec::new(), Vec::new());
        let (mut kinds, mut levels, mut counts) = (Vec::new(), Vec::new(), Vec::new());
        let mut before = 0;
        for &(cell, _, kind) in &sent {
            let link = self.cells.links[cell];
            kinds.push(code_of(kind));
            if kind & WHOLE == 0 {
                cells.push(cell as u32);
            } else {
                let level = i32::from(self.levels[cell]);
                levels.push(zigzag(level - before));
                before = level;
            }
            if kind & CHILDREN == 0 {
                counts.push(link.end - link.first);
            }
            if kind & BODIES != 0 {
                bodies.push(link.bodies());
            }
        }
        put_number(kinds.len() as u32, form);
        [kinds, levels, counts].iter().for_each(|codes| put_codes(codes, form));
        // In order, so that the bodies of a whole cell lie together.
        bodies.sort_unstable_by_key(|bodies| bodies.start);
        self.write_masses(&bodies, form);
        let known: Vec<_> = bodies.iter().flat_map(Range::clone).map(known).collect();
        past.write(&known, form);
        let places = past.continue_from(&known)?;
        Some(Subscription {
            cells,
            bodies,
            values: Track::new(CellNumbers::columns(setup)),
            places,
        })
    }

    /// Whether a cell is not far from a sink, now or with bodies at their `later` places.
    ///
    /// A cell whose bodies were close together grows as they separate.
    fn is_near(
        &self,
        later: &Self,
        cell: usize,
        setup: &Setup,
    ) -> impl Fn(&Subscriber) -> bool + use<> {
        let values = [self.cells.value(cell), later.cells.value(cell)];
        let values = values.map(|value| (value.point, value.far_with_room(setup)));
        let count = if std::ptr::eq(self, later) { 1 } else { 2 };
        move |sink| values[..count].iter().any(|(place, far)| !sink.finds_far(place, *far))
    }

    /// Whether the branch is not far from some of these sinks, now or later; if so, it has a
    /// [view](Self::view).
    pub(crate) fn is_near_to(&self, later: &Self, sinks: &[Subscriber], setup: &Setup) -> bool {
        sinks.iter().any(self.is_near(later, 0, setup))
    }

    /// Writes the masses of bodies; a single one if all are equal.
    fn write_masses(&self, bodies: &[Range<usize>], to: &mut Vec<u8>) {
        let points = bodies.iter().flat_map(|some| &self.points[some.clone()]);
        let masses: Vec<f32> = points.map(|point| point[3]).collect();
        let Some(first) = masses.first() else { return };
        let same = masses.iter().all(|mass| mass.to_bits() == first.to_bits());
        to.push(u8::from(same));
        let some = if same { 1 } else { masses.len() };
        to.extend(masses[..some].iter().flat_map(|mass| mass.to_le_bytes()));
    }

    /// Encodes the present data of the view, for [`Other::decode`].
    pub(crate) fn encode(&self, view: &mut Subscription, setup: &Setup, to: &mut Vec<u8>) {
        let mut numbers = Vec::with_capacity(view.cells.len() * CellNumbers::columns(setup).len());
        for &cell in &view.cells {
            let cell = cell as usize;
            CellNumbers::of(&self.sums, cell, self.levels[cell]).write(setup, &mut numbers);
        }
        view.values.encode_from(expected(&view.cells, &self.cells.links, setup), numbers, to);
        let points = view.bodies.iter().flat_map(|some| &self.points[some.clone()]);
        view.places.encode(points.map(|&[x, y, z, _]| [x, y, z]), to);
    }
}

/// The predicted numbers of these cells' rows, given those before.
fn expected<'c>(
    cells: &'c [u32],
    links: &'c [CellContents],
    setup: &Setup,
) -> impl Fn(&[f32]) -> f32 + use<'c> {
    let columns = CellNumbers::columns(setup).len();
    move |known| {
        let row = known.len() / columns;
        let Some(before) = row.checked_sub(1) else { return 0.0 };
        let count = |row: usize| links[cells[row] as usize].bodies().len() as f64;
        let (before_it, known) = known[before * columns..].split_at(columns);
        CellNumbers::expected(before_it, known, count(row) / count(before))
    }
}

/// The present data of a remote branch.
#[derive(Clone, Debug)]
pub(crate) struct RemoteBranch {
    pub(super) cells: Cells,
    pub(super) levels: Vec<u8>,
    /// Cells whose values are sent; those of others follow from their bodies.
    pub(super) sent: Vec<u32>,
    pub(super) whole: Vec<bool>,
    /// The index in `points` of a cell's first body; [`ABSENT`] if its bodies are absent.
    pub(super) stored: Vec<u32>,
    pub(super) points: Vec<[f32; 4]>,
    pub(super) values: Track,
    pub(super) places: EncodedPositions,
}

impl RemoteBranch {
    /// Decodes the form of a view of a root with this number of bodies, and advances the bytes;
    /// none if it is not valid.
    ///
    /// References of the form refer to `past`.
    pub(crate) fn read(
        bodies: u32,
        form: &mut &[u8],
        past: &FormerViews<'_>,
        setup: &Setup,
    ) -> Option<Self> {
        let none = CellContents { first: 0, end: 0, child: 0, children: 0 };
        let (mut links, mut levels) = (vec![none], Vec::new());
        let count = take_number(form)? as usize;
        let kinds = take_codes(count, form)?.into_iter().map(kind_of);
        let kinds: Vec<u8> = kinds.collect::<Option<_>>()?;
        let some = |is: fn(u8) -> bool| kinds.iter().filter(|kind| is(**kind)).count();
        let mut sent = take_codes(some(|kind| kind & WHOLE != 0), form)?.into_iter();
        let mut counts = take_codes(some(|kind| kind & CHILDREN == 0), form)?.into_iter();
        let mut before = 0i32;
        for (at, &kind) in kinds.iter().enumerate() {
            let mut level = 0;
            if kind & WHOLE != 0 {
                before = before.checked_add(unzigzag(sent.next()?))?;
                level = u8::try_from(before).ok().filter(|level| u32::from(*level) <= LEVELS)?;
            }
            let children = u32::from(kind & CHILDREN);
            let child = links.len() as u32;
            let link = links.get_mut(at)?;
            (link.child, link.children) = (child, children);
            if children == 0 {
                // The first child's index is known when all entries are read.
                link.end = counts.next()?;
            }
            links.extend((0..children).map(|_| none));
            levels.push(level);
        }
        if links.len() != count {
            return None;
        }
        let whole: Vec<bool> = kinds.iter().map(|kind| kind & WHOLE != 0).collect();
        for at in (0..links.len()).rev() {
            let children = links[at].children();
            if children.is_empty() {
                if whole[at] && kinds[at] & BODIES == 0 {
                    return None;
                }
                continue;
            }
            if whole[at] && !children.clone().all(|child| whole[child]) {
                return None;
            }
            let counts = links[children].iter().map(|child| child.end);
            links[at].end = counts.into_iter().try_fold(0u32, u32::checked_add)?;
        }
        if links[0].end != bodies {
            return None;
        }
        for at in 0..links.len() {
            let mut first = links[at].first;
            for child in links[at].children() {
                let end = first + links[child].end;
                (links[child].first, links[child].end) = (first, end);
                first = end;
            }
        }
        let mut leaves: Vec<usize> =
            (0..links.len()).filter(|&at| kinds[at] & BODIES != 0).collect();
        leaves.sort_unstable_by_key(|&at| links[at].first);
        let mut stored = vec![ABSENT; links.len()];
        let mut count = 0;
        for at in leaves {
            stored[at] = count as u32;
            count += links[at].bodies().len();
        }
        for at in (0..links.len()).rev() {
            if whole[at] && links[at].children > 0 {
                stored[at] = stored[links[at].children().start];
            }
        }
        let points = read_masses(count, form)?.into_iter().map(|m| [0.0, 0.0, 0.0, m]).collect();
        let known = past.read(count, form)?;
        let (values, places) =
            (Track::new(CellNumbers::columns(setup)), past.continue_from(&known)?);
        let sent = (0..links.len() as u32).filter(|&at| !whole[at as usize]).collect();
        let mut cells = Cells::default();
        cells.links = links;
        Some(Self { cells, levels, sent, whole, stored, points, values, places })
    }

    /// Decodes the data of [`Branch::encode`] for this view and advances `bytes`. None if it is not
    /// valid; then this copy is unusable.
    pub(crate) fn decode(&mut self, bytes: &mut &[u8], setup: &Setup) -> Option<()> {
        let columns = CellNumbers::columns(setup).len();
        let Self { values, sent, cells, .. } = self;
        let first = expected(sent, &cells.links, setup);
        let rows = values.decode_from(first, columns * sent.len(), bytes).ok()?;
        self.places.decode(&mut self.points, bytes)?;
        let mut sums = CellSums::new(self.levels.len(), setup, true);
        for at in (0..self.levels.len()).rev() {
            if self.whole[at] {
                let link = self.cells.links[at];
                let first = self.stored[at] as usize;
                let bodies = &self.points[first..first + link.bodies().len()];
                sums.sum(at, link.children(), bodies);
            }
        }
        let Ok(()) = self.cells.follow(&Sequential, &sums, &self.levels, setup);
        for (&cell, row) in self.sent.iter().zip(rows.chunks_exact(columns)) {
            let value = CellNumbers::read(row, setup)?.value(setup);
            self.cells.set_value(cell as usize, &value);
        }
        Some(())
    }

    /// The last places of its bodies, for the next view.
    pub(crate) fn places(&self) -> &EncodedPositions {
        &self.places
    }

    /// The number of present cells.
    pub(crate) fn cells(&self) -> usize {
        self.levels.len()
    }

    /// The number of present bodies.
    pub(crate) fn bodies(&self) -> usize {
        self.points.len()
    }

    /// The count of numbers that are sent in each step.
    pub(crate) fn numbers(&self, setup: &Setup) -> usize {
        CellNumbers::columns(setup).len() * self.sent.len() + 3 * self.points.len()
    }
}

fn take_byte(bytes: &mut &[u8]) -> Option<u8> {
    let (&byte, rest) = bytes.split_first()?;
    *bytes = rest;
    Some(byte)
}

/// Decodes the masses of [`Branch::write_masses`], for this number of bodies.
fn read_masses(count: usize, bytes: &mut &[u8]) -> Option<Vec<f32>> {
    if count == 0 {
        return Some(Vec::new());
    }
    let same = take_byte(bytes)? != 0;
    let some = if same { 1 } else { count };
    let (masses, rest) = bytes.split_at_checked(4 * some)?;
    *bytes = rest;
    let masses: Vec<f32> =
        masses.as_chunks().0.iter().map(|four| f32::from_le_bytes(*four)).collect();
    Some(if same { vec![masses[0]; count] } else { masses })
}
