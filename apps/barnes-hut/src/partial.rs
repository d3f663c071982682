//! A tree whose bodies lie on several nodes: each holds blocks of its own, knows the sums of all others, and has bodies of
//! those that are near.
//!
//! A *block* is the first cell on the way down that has no more bodies than the groups of a block may have together, so
//! blocks are those of the whole tree, in the order of their keys, and wherever they lie. Of keys alone follow the cells above them
//! ([`Info`] says enough of each block for that) and those within ([`Branch`]). What a node makes of these and of
//! [`Sums`] is a [`Tree`] with the cells of the whole one, in their order and with their bits, less what is in blocks
//! that are not there: forces on its own groups come out as they would on one node, or it is said which blocks are missing.
//!
//! Knows nothing of who holds which blocks, nor of messages.

use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};
use std::iter::Peekable;
use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::kernel::Quad;
use crate::options::Order;
use crate::shared::Setup;
use crate::smooth::{Track, put_number, take_number};
use crate::tree::{
    ABSENT, Builder, Cells, FAR_ZEROS, GROUPS_A_BLOCK, LEVELS, Link, Part, Sums, Tree, Value,
    agreeing,
};

/// What all nodes know of a block.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Info {
    /// Key of its first body.
    pub first: u64,
    /// Key of its last body.
    pub last: u64,
    /// Bodies; at least one.
    pub bodies: u32,
    /// What its forces cost, in any unit.
    pub cost: f32,
}

impl Info {
    /// The level of the smallest cube around its bodies.
    fn level(&self) -> u32 {
        agreeing(self.first ^ self.last)
    }
}

/// Bodies of these blocks together.
pub(crate) fn bodies_of(infos: &[Info]) -> usize {
    infos.iter().map(|info| info.bodies as usize).sum()
}

/// Most bodies of a block where a group has at most so many, unless they lie at one point.
pub(crate) fn most_bodies(group: u32) -> usize {
    group.max(1) as usize * GROUPS_A_BLOCK
}

/// The blocks of sorted keys that are all there are, with this cost for each body.
pub(crate) fn blocks(keys: &[(u64, u32)], setup: &Setup, cost: f32) -> Vec<Info> {
    pieces(keys, 0..1 << (3 * LEVELS), setup, |bodies| cost * bodies.len() as f32)
}

/// Cubes that lie within a range of keys and have no more bodies than a block, as large as may be, for sorted keys
/// within that range. Where others have the keys around it, several of these, together with theirs, may make one block.
pub(crate) fn pieces(
    keys: &[(u64, u32)],
    within: Range<u64>,
    setup: &Setup,
    mut cost: impl FnMut(Range<usize>) -> f32,
) -> Vec<Info> {
    let most = most_bodies(setup.group);
    let mut pieces = Vec::new();
    // The last is next, so that pieces come out in order.
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
        // The finest cubes are not cut: whoever has a part of one says so, and the others' parts are put to it.
        if level == LEVELS || inside && bodies.len() <= most {
            pieces.push(Info { first, last, bodies: bodies.len() as u32, cost: cost(bodies) });
            continue;
        }
        let children = octants(bodies, level, |i| keys[i].0);
        open.extend(children.into_iter().rev());
    }
    pieces
}

/// Consecutive things with sorted keys, cut by the octants of a cube of this level.
fn octants(things: Range<usize>, level: u32, key: impl Fn(usize) -> u64) -> Vec<Range<usize>> {
    let shift = 3 * (LEVELS - 1 - level);
    let mut parts: Vec<Range<usize>> = Vec::new();
    for i in things {
        match parts.last_mut() {
            Some(part) if key(part.start) >> shift == key(i) >> shift => part.end = i + 1,
            _ => parts.push(i..i + 1),
        }
    }
    parts
}

/// The blocks that pieces of all keys make, in order: of each, which pieces it is made of.
pub(crate) fn merged(pieces: &[Info], setup: &Setup) -> Vec<Range<usize>> {
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

/// One block of several pieces.
pub(crate) fn joined(pieces: &[Info]) -> Info {
    let (first, last) = (pieces[0].first, pieces[pieces.len() - 1].last);
    let bodies = pieces.iter().map(|piece| piece.bodies).sum();
    Info { first, last, bodies, cost: pieces.iter().map(|piece| piece.cost).sum() }
}

/// The largest cells whose blocks all have one holder and together no more than `most` bodies, or are but one block; in order, of each
/// which blocks it is made of. Of the sums of these *roots* all cells above them follow.
pub(crate) fn roots(
    infos: &[Info],
    most: usize,
    holder: impl Fn(usize) -> usize,
) -> Vec<Range<usize>> {
    let mut roots = Vec::new();
    let all = 0..infos.len();
    let mut open = vec![all];
    while let Some(blocks) = open.pop() {
        let Some(last) = blocks.clone().next_back() else { continue };
        // Each holds consecutive blocks.
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

/// The cells of a root; bodies and cells count from its first.
#[derive(Clone, Debug)]
pub(crate) struct Branch {
    cells: Cells,
    levels: Vec<u8>,
    /// First body of each group.
    groups: Vec<u32>,
    /// First body of each block.
    blocks: Vec<u32>,
    /// The cell of each block, in order; where blocks share a point they share one.
    tops: Vec<u32>,
    sums: Sums,
    /// Position and mass of each body, in sides of the box.
    points: Vec<[f32; 4]>,
}

/// Bodies that lie elsewhere, as those cells of others see them that have to open some of their cells.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Sink {
    /// Least and greatest coordinates.
    pub extent: [[f32; 3]; 2],
    /// What sizes of cells are multiplied by, as seen from there.
    pub scale: f32,
}

impl Sink {
    /// Whether a cell is far from all of it, and with some room.
    pub(crate) fn finds_far(&self, value: &Value) -> bool {
        const ROOM: f32 = 1.001;
        let [low, high] = self.extent;
        let mut square = 0.0;
        for axis in 0..3 {
            let c = value.point[axis];
            let outside = (low[axis] - c).max(c - high[axis]).max(0.0);
            square += outside * outside;
        }
        square > ROOM * (value.far[0] * self.scale).max(value.far[1])
    }
}

/// In the form of a view, of each cell: it has so many children, which follow.
const CHILDREN: u8 = 0x0f;
/// Its bodies are told.
const BODIES: u8 = 0x10;
/// All bodies in it are told, and its value is not, for it follows from where they are: so it is with cells within blocks.
const WHOLE: u8 = 0x20;

/// Bodies of a leaf that are told in place of its value, though nobody has to open it: they are shorter.
const AS_SHORT: usize = 4;

/// What somebody is told of a branch in each step: the values of some of its cells, and where some of its bodies are. Which these are stays
/// the same from step to step; its *form* says it.
#[derive(Clone, Debug)]
pub(crate) struct View {
    cells: Vec<u32>,
    bodies: Vec<Range<usize>>,
    values: Track,
    places: Track,
}

/// Numbers of a cell's value: point, where it is far, and second moments. Of each, how many of its lowest bits are zero.
fn numbers(setup: &Setup) -> &'static [u32] {
    const ALL: [u32; 6 + Quad::NUMBERS] = {
        let mut all = [Quad::ZEROS; 6 + Quad::NUMBERS];
        let mut i = 0;
        while i < 4 {
            all[i] = 0;
            i += 1;
        }
        all[4] = FAR_ZEROS;
        all[5] = FAR_ZEROS;
        all
    };
    if setup.order == Order::Mono { &ALL[..6] } else { &ALL }
}

/// Coordinates have no such bits.
const PLACE: &[u32] = &[0; 3];

impl View {
    /// How many numbers are told in each step.
    pub(crate) fn numbers(&self, setup: &Setup) -> usize {
        let bodies: usize = self.bodies.iter().map(Range::len).sum();
        numbers(setup).len() * self.cells.len() + 3 * bodies
    }
}

impl Branch {
    /// The cells of a root with these keys, sorted. All is zero until it is summed up.
    pub(crate) fn new(keys: &[(u64, u32)], setup: &Setup) -> Self {
        let Builder { cells, levels, groups, blocks, .. } = Builder::build(keys, setup);
        let sums = Sums::new(levels.len(), setup, true);
        let most = most_bodies(setup.group);
        let is_block = |link: &Link| link.children == 0 || link.bodies().len() <= most;
        let below = |link: &Link| if is_block(link) { 0..0 } else { link.children() };
        let mut tops: Vec<u32> =
            cells.links.iter().flat_map(below).map(|cell| cell as u32).collect();
        tops.extend(cells.links.first().map(|_| 0));
        tops.retain(|&cell| is_block(&cells.links[cell as usize]));
        tops.sort_unstable_by_key(|&cell| cells.links[cell as usize].first);
        Self { cells, levels, groups, blocks, tops, sums, points: vec![[0.0; 4]; keys.len()] }
    }

    /// Sums up all cells anew, the bodies being at these places. Where sums of blocks were told ahead, cells that are no smaller
    /// follow from those: of blocks' sums the ones from `first` on are this root's.
    pub(crate) fn sum_up(
        &mut self,
        points: &[[f32; 4]],
        ahead: Option<(&Sums, usize)>,
        setup: &Setup,
    ) {
        self.points.copy_from_slice(points);
        self.sums = Sums::new(self.levels.len(), setup, true);
        let links = &self.cells.links;
        let mut tops = self.by_cell();
        for at in (0..links.len()).rev() {
            let block = tops.next_if(|&(cell, _)| cell as usize == at).map(|(_, block)| block);
            match block.zip(ahead) {
                Some((block, (blocks, first))) => self.sums.copy(at, blocks, first + block),
                None => self.sums.sum(at, links[at].children(), &points[links[at].bodies()]),
            }
        }
        self.cells.follow(&self.sums, &self.levels, setup);
    }

    /// Cells of blocks, deepest first, and which block it is.
    fn by_cell(&self) -> Peekable<impl Iterator<Item = (u32, usize)> + use<>> {
        let mut tops: Vec<(u32, usize)> = self.tops.iter().copied().zip(0..).collect();
        tops.sort_unstable_by_key(|&(cell, _)| Reverse(cell));
        tops.into_iter().peekable()
    }

    /// Sums of the whole, as [`Sums::row`] has them, that follow from these of blocks, the ones from `first` on.
    pub(crate) fn sums_of(
        &self,
        (blocks, first): (&Sums, usize),
        setup: &Setup,
        to: &mut Vec<f32>,
    ) {
        let mut tops = self.by_cell();
        let deepest = tops.peek().map_or(0, |&(cell, _)| cell as usize);
        let mut sums = Sums::new(deepest + 1, setup, true);
        for at in (0..=deepest).rev() {
            if let Some((_, block)) = tops.next_if(|&(cell, _)| cell as usize == at) {
                sums.copy(at, blocks, first + block);
            } else if !self.is_within_block(at) {
                sums.sum(at, self.cells.links[at].children(), &[]);
            }
        }
        sums.row(0, to);
    }

    /// Whether a cell is smaller than the block that it is of.
    fn is_within_block(&self, cell: usize) -> bool {
        let Link { first, end, .. } = self.cells.links[cell];
        let link = |top: &u32| self.cells.links[*top as usize];
        let after = self.tops.partition_point(|top| link(top).first <= first);
        let top = self.tops[..after].last().map(link);
        top.is_some_and(|top| end - first < top.end - top.first)
    }

    /// Whether its bodies are at these places.
    pub(crate) fn is_at(&self, points: &[[f32; 4]]) -> bool {
        self.points == points
    }

    /// How many bodies it has.
    pub(crate) fn bodies(&self) -> usize {
        self.points.len()
    }

    /// Sums of the whole, as [`Sums::row`] has them.
    pub(crate) fn sums(&self, to: &mut Vec<f32>) {
        self.sums.row(0, to);
    }

    /// What these sinks need of it, and its form for [`Other::read`]: children of cells that are not far from one of them, now or with bodies
    /// where they are `later`, and bodies of such that have none. Nothing where the whole is far from all.
    pub(crate) fn view(
        &self,
        later: &Self,
        sinks: &[Sink],
        setup: &Setup,
        form: &mut Vec<u8>,
    ) -> Option<View> {
        // Cells whose bodies were close together grow as these part.
        let near = |cell: usize, some: &[u32]| -> Vec<u32> {
            let values = [self.cells.value(cell), later.cells.value(cell)];
            let far = |i: u32| values.iter().all(|value| sinks[i as usize].finds_far(value));
            some.iter().copied().filter(|&i| !far(i)).collect()
        };
        let all: Vec<u32> = (0..sinks.len() as u32).collect();
        let root = near(0, &all);
        if root.is_empty() {
            return None;
        }
        // Level by level, as cells are: of each that is told, which it is, where its children begin, and how it is told.
        let mut told = vec![(0, 0, 0)];
        let mut open = VecDeque::from([root]);
        let mut at = 0;
        while let Some(near_to) = open.pop_front() {
            let cell = told[at].0;
            let link = self.cells.links[cell];
            let opened = !near_to.is_empty();
            let children = told.len();
            // The sums of blocks may have been told ahead: they do not follow from where bodies are.
            let whole = if self.is_within_block(cell) { WHOLE } else { 0 };
            let kind = match link.children {
                0 if opened || link.bodies().len() <= AS_SHORT => BODIES | whole,
                1.. if opened => {
                    told.extend(link.children().map(|child| (child, 0, 0)));
                    open.extend(link.children().map(|child| near(child, &near_to)));
                    link.children as u8
                }
                _ => 0,
            };
            (told[at].1, told[at].2) = (children, kind);
            at += 1;
        }
        for at in (0..told.len()).rev() {
            let (cell, first, kind) = told[at];
            let mut children = first..first + usize::from(kind & CHILDREN);
            let follows = !children.is_empty() && self.is_within_block(cell);
            if follows && children.all(|child| told[child].2 & WHOLE != 0) {
                told[at].2 |= WHOLE;
            }
        }
        let (mut cells, mut bodies) = (Vec::new(), Vec::new());
        for &(cell, _, kind) in &told {
            let link = self.cells.links[cell];
            form.push(kind);
            if kind & WHOLE == 0 {
                cells.push(cell as u32);
            } else {
                form.push(self.levels[cell]);
            }
            if kind & CHILDREN == 0 {
                put_number(link.end - link.first, form);
            }
            if kind & BODIES != 0 {
                bodies.push(link.bodies());
            }
        }
        // In their order, so that those of a cell that is whole lie together.
        bodies.sort_unstable_by_key(|bodies| bodies.start);
        self.write_masses(&bodies, form);
        Some(View { cells, bodies, values: Track::new(numbers(setup)), places: Track::new(PLACE) })
    }

    /// The masses of bodies: once where they are all the same.
    fn write_masses(&self, bodies: &[Range<usize>], to: &mut Vec<u8>) {
        let points = bodies.iter().flat_map(|some| &self.points[some.clone()]);
        let masses: Vec<f32> = points.map(|point| point[3]).collect();
        let Some(first) = masses.first() else { return };
        let same = masses.iter().all(|mass| mass.to_bits() == first.to_bits());
        to.push(u8::from(same));
        let some = if same { 1 } else { masses.len() };
        to.extend(masses[..some].iter().flat_map(|mass| mass.to_le_bytes()));
    }

    /// Writes what the view shows now, for [`Other::hear`].
    pub(crate) fn tell(&self, view: &mut View, to: &mut Vec<u8>) {
        let mut values = Vec::new();
        for &cell in &view.cells {
            let Value { point, quad, far } = self.cells.value(cell as usize);
            values.extend(point.into_iter().chain(far));
            values.extend(quad.iter().flat_map(Quad::numbers));
        }
        view.values.tell(values, to);
        let points = view.bodies.iter().flat_map(|some| &self.points[some.clone()]);
        view.places.tell(points.flat_map(|&[x, y, z, _]| [x, y, z]).collect(), to);
    }
}

/// What is known here of a branch of somebody else.
#[derive(Clone, Debug)]
pub(crate) struct Other {
    cells: Cells,
    levels: Vec<u8>,
    /// Cells whose values are told; those of others follow from their bodies.
    told: Vec<u32>,
    whole: Vec<bool>,
    /// Where in `points` a cell's bodies begin; [`ABSENT`] if they are not here.
    stored: Vec<u32>,
    points: Vec<[f32; 4]>,
    values: Track,
    places: Track,
}

impl Other {
    /// Reads the form of a view of a root with so many bodies, and goes on behind it. Nothing if it is none.
    pub(crate) fn read(bodies: u32, form: &mut &[u8], setup: &Setup) -> Option<Self> {
        let none = Link { first: 0, end: 0, child: 0, children: 0 };
        let (mut links, mut levels, mut kinds) = (vec![none], Vec::new(), Vec::new());
        let mut at = 0;
        while at < links.len() {
            let kind = take_byte(form)?;
            let children = u32::from(kind & CHILDREN);
            let level = if kind & WHOLE != 0 { take_byte(form)? } else { 0 };
            let known = kind & !(CHILDREN | BODIES | WHOLE) == 0 && children <= 8;
            // Bodies are told of leaves alone.
            let holds = kind & BODIES == 0 || children == 0;
            if !known || !holds || u32::from(level) > LEVELS {
                return None;
            }
            (links[at].child, links[at].children) = (links.len() as u32, children);
            if children == 0 {
                // Where it begins is known when all are read.
                links[at].end = take_number(form)?;
            }
            links.extend((0..children).map(|_| none));
            levels.push(level);
            kinds.push(kind);
            at += 1;
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
        let told = (0..links.len() as u32).filter(|&at| !whole[at as usize]).collect();
        let mut cells = Cells::default();
        cells.links = links;
        let (values, places) = (Track::new(numbers(setup)), Track::new(PLACE));
        Some(Self { cells, levels, told, whole, stored, points, values, places })
    }

    /// Hears what [`Branch::tell`] wrote for this view, and goes on behind it. Nothing if it is not that: then this is of no more use.
    pub(crate) fn hear(&mut self, bytes: &mut &[u8], setup: &Setup) -> Option<()> {
        let columns = numbers(setup).len();
        let values = self.values.hear(columns * self.told.len(), bytes).ok()?;
        let places = self.places.hear(3 * self.points.len(), bytes).ok()?;
        for (point, place) in self.points.iter_mut().zip(places.as_chunks::<3>().0) {
            point[..3].copy_from_slice(place);
        }
        let mut sums = Sums::new(self.levels.len(), setup, true);
        for at in (0..self.levels.len()).rev() {
            if self.whole[at] {
                let link = self.cells.links[at];
                let first = self.stored[at] as usize;
                let bodies = &self.points[first..first + link.bodies().len()];
                sums.sum(at, link.children(), bodies);
            }
        }
        self.cells.follow(&sums, &self.levels, setup);
        for (&cell, numbers) in self.told.iter().zip(values.chunks_exact(columns)) {
            let [x, y, z, mass, far, least] = numbers.first_chunk().copied()?;
            let quad = numbers[6..].first_chunk().map(|of| Quad::of([x, y, z], mass, of));
            let value = Value { point: [x, y, z, mass], quad, far: [far, least] };
            self.cells.set_value(cell as usize, &value);
        }
        Some(())
    }

    /// How many cells of it are here.
    pub(crate) fn cells(&self) -> usize {
        self.levels.len()
    }

    /// How many of its bodies are here.
    pub(crate) fn bodies(&self) -> usize {
        self.points.len()
    }

    /// How many numbers are told in each step.
    pub(crate) fn numbers(&self, setup: &Setup) -> usize {
        numbers(setup).len() * self.told.len() + 3 * self.points.len()
    }
}

fn take_byte(bytes: &mut &[u8]) -> Option<u8> {
    let (&byte, rest) = bytes.split_first()?;
    *bytes = rest;
    Some(byte)
}

/// Reads what [`Branch::write_masses`] wrote of so many bodies.
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::bodies::Bodies;
    use crate::forces::{self, Lists};
    use crate::generate;
    use crate::kernel::Kernel;
    use crate::options::Order;
    use crate::shared::{Accuracy, Positions};
    use crate::tree::{morton, sort};

    fn sorted(bodies: &Bodies) -> (Positions, Vec<(u64, u32)>, Vec<[f32; 3]>) {
        let positions = Positions::new(&bodies.position, 0.01);
        let inside = positions.inside();
        let keys = sort(inside.iter().map(|p| morton(*p)).collect());
        (positions, keys, inside)
    }

    fn bodies(n: usize, seed: u64, same: usize) -> Bodies {
        let mut bodies = generate::galaxies(n, seed);
        for i in 0..same.min(n) {
            bodies.position[i] = bodies.position[n - 1];
        }
        bodies
    }

    fn firsts(infos: &[Info]) -> Vec<usize> {
        let first = |sum: &mut usize, info: &Info| {
            let first = *sum;
            *sum += info.bodies as usize;
            Some(first)
        };
        infos.iter().scan(0, first).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(40))]
        /// However keys are cut into ranges, the pieces of all make the blocks of the whole tree.
        #[test]
        fn pieces_make_the_blocks_of_the_whole(
            n in 1usize..4000, seed in any::<u64>(), group in 1u32..12, same in 0usize..300,
            cuts in prop::collection::vec((any::<prop::sample::Index>(), 0u32..60), 0..8),
        ) {
            let bodies = bodies(n, seed, same);
            let (positions, keys, _) = sorted(&bodies);
            let accuracy = Accuracy { order: Order::Mono, theta: 0.7, softening: 0.01, leaf: 4, group };
            let setup = Setup::new(&bodies, accuracy);
            let tree = positions.tree(&setup).unwrap();
            let whole = blocks(&keys, &setup, 1.0);
            let firsts = firsts(&whole);
            for &first in &firsts {
                // One point may be many blocks of the tree: those are one here.
                prop_assert_eq!(tree.block(first).start, first);
            }
            prop_assert_eq!(firsts.len(), (0..n).filter(|&i| {
                tree.block(i).start == i && (i == 0 || keys[i].0 != keys[i - 1].0)
            }).count());
            // Cuts at some bodies' keys, rounded.
            let mut cuts: Vec<u64> = cuts.iter().map(|(i, bits)| keys[i.index(n)].0 >> bits << bits).collect();
            cuts.extend([0, 1 << 63]);
            cuts.sort_unstable();
            let mut all = Vec::new();
            for range in cuts.windows(2) {
                let [from, to] = [range[0], range[1]].map(|cut| keys.partition_point(|key| key.0 < cut));
                all.extend(pieces(&keys[from..to], range[0]..range[1], &setup, |bodies| bodies.len() as f32));
            }
            let merged: Vec<Info> = merged(&all, &setup).into_iter().map(|some| joined(&all[some])).collect();
            prop_assert_eq!(merged, whole);
        }

        /// Forces on own bodies have the bits of those in the whole tree once all that is missing has come.
        #[test]
        fn a_part_gives_the_bits_of_the_whole(
            n in 1usize..6000, seed in any::<u64>(), group in 2u32..20, leaf in 1u32..16, same in 0usize..100,
            order in prop_oneof![Just(Order::Mono), Just(Order::Quad), Just(Order::Series)],
            error in prop::option::of(1e-4f64..0.1), theta in 0.3f64..1.2,
            from in any::<prop::sample::Index>(), to in any::<prop::sample::Index>(), most in 0usize..6000,
        ) {
            let bodies = bodies(n, seed, same);
            let setup = Setup::new(&bodies, Accuracy { order, theta, softening: 0.01, leaf, group }).with_error(error);
            let (positions, keys, inside) = sorted(&bodies);
            let whole = forces::all(positions.tree(&setup).unwrap());
            let masses = setup.masses();

            let infos = blocks(&keys, &setup, 1.0);
            let (a, b) = (from.index(infos.len()), to.index(infos.len()));
            let own = a.min(b)..a.max(b) + 1;
            let holder = |block: usize| usize::from(block >= own.start) + usize::from(block >= own.end);
            let roots = roots(&infos, most, holder);
            prop_assert!(roots.iter().flat_map(Clone::clone).eq(0..infos.len()));
            let mine = roots.iter().position(|root| holder(root.start) == 1).unwrap();
            let mine = mine..mine + roots.iter().filter(|root| holder(root.start) == 1).count();
            let infos: Vec<Info> = roots.into_iter().map(|root| joined(&infos[root])).collect();
            let mut rest = &keys[..];
            let branches = infos.iter().map(|info| {
                let (own, others) = rest.split_at(info.bodies as usize);
                rest = others;
                Branch::new(own, &setup)
            });
            let mut branches: Vec<Branch> = branches.collect();
            let point = |&(_, i): &(u64, u32)| {
                let [x, y, z] = inside[i as usize];
                [x, y, z, masses[i as usize]]
            };
            let mut points: Vec<_> = keys.iter().map(point).collect();

            let (side, none) = (positions.side(), BTreeMap::new());
            let mut sums = Sums::new(infos.len(), &setup, true);
            let (mut others, mut views) = (BTreeMap::new(), BTreeMap::new());
            for step in 0..4 {
                let mut rest = &points[..];
                for (root, branch) in branches.iter_mut().enumerate() {
                    let (own, others) = rest.split_at(branch.bodies());
                    // In the later steps, sums of blocks that were told ahead, and are not quite those of the bodies.
                    let mut ahead = Sums::new(branch.tops.len(), &setup, true);
                    let blocks = branch.tops.iter().map(|top| branch.cells.links[*top as usize].bodies());
                    for (block, bodies) in blocks.enumerate() {
                        let near = |&[x, y, z, m]: &[f32; 4]| [x + 1e-4, y - 1e-5, z, m];
                        let near: Vec<_> = own[bodies].iter().map(near).collect();
                        ahead.sum(block, 0..0, &near);
                    }
                    let ahead = (step > 1).then_some((&ahead, 0));
                    branch.sum_up(own, ahead, &setup);
                    rest = others;
                    let (mut row, mut same) = (Vec::new(), Vec::new());
                    branch.sums(&mut row);
                    if let Some(ahead) = ahead {
                        branch.sums_of(ahead, &setup, &mut same);
                        prop_assert_eq!(&row, &same);
                    }
                    prop_assert_eq!(row.len(), sums.columns().len());
                    sums.set_row(root, &row);
                }
                for (&root, view) in &mut views {
                    let root: usize = root;
                    let (mut bytes, other): (_, &mut Other) = (Vec::new(), others.get_mut(&root).unwrap());
                    prop_assert_eq!(View::numbers(view, &setup), other.numbers(&setup));
                    branches[root].tell(view, &mut bytes);
                    let mut left = &bytes[..];
                    other.hear(&mut left, &setup).unwrap();
                    prop_assert!(left.is_empty());
                }
                let mut rounds = 0;
                let tree = loop {
                    let others_here = others.iter().map(|(root, other)| (*root, other)).collect();
                    let tree = assemble(&infos, &sums, (mine.start, &branches[mine.clone()]), &others_here, &setup, side);
                    let (mut absent, mut sinks) = (Vec::new(), Vec::new());
                    let mut lists = Lists::new(&tree, Kernel::best(), true);
                    let mut at = tree.bodies(0..0).start;
                    let all = tree.bodies(0..tree.groups());
                    while at < all.end {
                        let bodies = tree.block(at);
                        lists.absent(bodies.clone(), &mut absent);
                        let mut extent = [[f32::INFINITY; 3], [f32::NEG_INFINITY; 3]];
                        for p in &points[bodies.clone()] {
                            extent[0] = [0, 1, 2].map(|axis| extent[0][axis].min(p[axis]));
                            extent[1] = [0, 1, 2].map(|axis| extent[1][axis].max(p[axis]));
                        }
                        sinks.push(Sink { extent, scale: lists.scale_of(bodies.clone()) });
                        at = bodies.end;
                    }
                    if absent.is_empty() {
                        break tree;
                    }
                    // What is far when nothing is missing may be near when something is, and its scale wrong: twice is enough.
                    rounds += 1;
                    prop_assert!(rounds <= 4, "{} cells are still missing", absent.len());
                    let missing = absent.into_iter().map(|cell| {
                        let first = tree.cells.links[cell as usize].first as usize;
                        firsts(&infos).partition_point(|&other| other <= first) - 1
                    });
                    for root in missing.collect::<std::collections::BTreeSet<_>>() {
                        let mut bytes = Vec::new();
                        let mut view = branches[root].view(&branches[root], &sinks, &setup, &mut bytes).unwrap();
                        branches[root].tell(&mut view, &mut bytes);
                        let mut left = &bytes[..];
                        let mut other = Other::read(infos[root].bodies, &mut left, &setup).unwrap();
                        other.hear(&mut left, &setup).unwrap();
                        prop_assert!(left.is_empty());
                        views.insert(root, view);
                        others.insert(root, other);
                    }
                };
                let forces = |tree: &Tree| {
                    let (mut lists, mut got) = (Lists::new(tree, Kernel::best(), true), Vec::new());
                    for group in 0..tree.groups() {
                        lists.one_group(tree.bodies(group..group + 1), &mut got);
                        assert!(!lists.is_short());
                    }
                    got
                };
                let all = tree.bodies(0..tree.groups());
                let all = all.start * forces::BYTES_A_BODY..all.end * forces::BYTES_A_BODY;
                let got = forces(&tree);
                if step == 0 {
                    prop_assert!(got == whole[all.clone()], "the bits differ");
                }
                let whole = forces(&assemble(&infos, &sums, (0, &branches), &none, &setup, side));
                prop_assert!(got == whole[all], "the bits differ in step {}", step);
                for (i, point) in points.iter_mut().enumerate() {
                    for (axis, place) in point.iter_mut().take(3).enumerate() {
                        *place += 1e-3 * ((i * 7 + axis * 13) % 11) as f32 - 5e-3;
                    }
                }
            }
        }

        /// Forms that are cut or damaged are told apart or are other forms, and never a panic.
        #[test]
        fn damaged_views_are_no_panic(
            n in 1usize..400, seed in any::<u64>(), quad in any::<bool>(), scale in 0.1f32..30.0,
            at in any::<prop::sample::Index>(), bits in 1u8.., cut in any::<prop::sample::Index>(),
        ) {
            let bodies = bodies(n, seed, 0);
            let order = if quad { Order::Quad } else { Order::Mono };
            let setup = Setup::new(&bodies, Accuracy { order, theta: 0.7, softening: 0.01, leaf: 4, group: 8 });
            let (_, keys, inside) = sorted(&bodies);
            let mut branch = Branch::new(&keys, &setup);
            let points: Vec<_> = keys.iter().map(|&(_, i)| {
                let [x, y, z] = inside[i as usize];
                [x, y, z, 1.0 + (i % 2) as f32]
            }).collect();
            branch.sum_up(&points, None, &setup);
            let sink = Sink { extent: [[0.0; 3], [0.1; 3]], scale };
            let mut bytes = Vec::new();
            let Some(mut view) = branch.view(&branch, &[sink], &setup, &mut bytes) else { return Ok(()) };
            branch.tell(&mut view, &mut bytes);
            let read = |bytes: &[u8]| {
                let mut left = bytes;
                let mut other = Other::read(n as u32, &mut left, &setup)?;
                other.hear(&mut left, &setup)
            };
            prop_assert!(read(&bytes).is_some());
            prop_assert!(read(&bytes[..cut.index(bytes.len())]).is_none());
            let at = at.index(bytes.len());
            bytes[at] ^= bits;
            let _ = read(&bytes);
        }
    }
}
