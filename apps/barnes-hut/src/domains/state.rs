//! The state of a process between two steps: the bodies of its domain, and the properties of all
//! blocks.
//!
//! The locally essential tree ([`super::essential_tree`]) is neither redistributed nor saved. This
//! module does not send messages.

use std::ops::Range;

use bytes::Bytes;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_bytes::ByteBuf;
use springtide_runtime::wire;
use springtide_runtime::work::{ParallelLoops, Stop, collect};

use super::essential_tree::LocallyEssentialTree;
use super::layout::{Layout, of_slot};
use super::previous::PreviousViews;
use super::{drifted, kicked};
use crate::bodies::{Bodies, first_not_finite};
use crate::exact::ExactSum;
use crate::history::RunHistory;
use crate::loops::BODIES_PER_PIECE;
use crate::partial::{BlockInfo, Subscriber, bodies_of};
use crate::picture::Camera;
use crate::setup::Setup;
use crate::simulate::InitialQuantities;
use crate::tree::{CellSums, LEVELS, SortScratch, Sorted, sort};

/// Data from another process is not valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} came that are none: all nodes need the same version of the program")]
pub(crate) struct Unsound {
    /// The kind of data.
    pub what: &'static str,
}

/// The state that is the same in all processes. It changes only when bodies are sorted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Common {
    /// The centre and side of the box in which keys were made, in the user's unit.
    pub centre: [f64; 3],
    pub side: f64,
    /// The mass that is 1 in sums, in the user's unit.
    pub mass_unit: f64,
    /// The number of all bodies.
    pub bodies: u64,
    /// The second group of bodies: see [`Bodies::second`].
    pub second: u64,
    /// Summaries of all blocks, in tree order.
    pub infos: Vec<BlockInfo>,
    /// The step of the next sort.
    #[serde(default)]
    pub sorted_again: u64,
}

/// The data of rank 0 for the run's output.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ObserverState {
    pub first: InitialQuantities,
    pub history: RunHistory,
    pub camera: Camera,
}

/// Sums over bodies, for a report that is not complete.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Summed {
    pub step: u64,
    pub sums: Vec<ExactSum>,
    /// Whether they are over all bodies, and not those of the own domain.
    pub is_all: bool,
}

/// Bodies in the order of their keys.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Domain {
    /// The key at the last sort, and the number among all bodies.
    pub keys: Vec<(u64, u32)>,
    pub position: Vec<[f64; 3]>,
    pub velocity: Vec<[f64; 3]>,
    pub acceleration: Vec<[f64; 3]>,
    pub mass: Vec<f64>,
    /// The approximate cost of the forces on each.
    pub cost: Vec<f32>,
}

/// Key and number of a body that another process holds now. It is sorted after all others.
const MOVED: (u64, u32) = ((1 << (3 * LEVELS)) - 1, u32::MAX);

/// The length of a body in bytes: number, cost, place, velocity and mass.
const BODY: usize = 4 + 4 + 7 * 8;
/// Its length between a drift and the next forces. Its key follows from its place. Its
/// acceleration, which has single precision, predicts its next place.
const DRIFTED: usize = BODY + 3 * 4;
/// Its length at other times.
const ROW: usize = BODY + 8 + 3 * 8;

impl Domain {
    pub(crate) fn len(&self) -> usize {
        self.keys.len()
    }

    /// These of the bodies, in this order.
    fn picked<L: ParallelLoops>(&self, loops: &L, order: &[u32]) -> Result<Self, L::Stop> {
        fn column<T: Copy + Send + Sync, L: ParallelLoops>(
            loops: &L,
            of: &[T],
            order: &[u32],
        ) -> Result<Vec<T>, L::Stop> {
            collect(loops, order.len(), BODIES_PER_PIECE, |at| of[order[at] as usize])
        }
        Ok(Self {
            keys: column(loops, &self.keys, order)?,
            position: column(loops, &self.position, order)?,
            velocity: column(loops, &self.velocity, order)?,
            acceleration: column(loops, &self.acceleration, order)?,
            mass: column(loops, &self.mass, order)?,
            cost: column(loops, &self.cost, order)?,
        })
    }

    /// Kicks all bodies for the first time, and then lets them drift for the second. Returns the
    /// number among all bodies of one whose place or velocity is not finite, if there is any.
    pub(crate) fn advance<L: ParallelLoops>(
        &mut self,
        loops: &L,
        [kick, drift]: [f64; 2],
    ) -> Result<Option<u32>, L::Stop> {
        let Self { keys, position, velocity, acceleration, .. } = self;
        let mut pieces: Vec<_> = position
            .chunks_mut(BODIES_PER_PIECE)
            .zip(velocity.chunks_mut(BODIES_PER_PIECE))
            .zip(acceleration.chunks(BODIES_PER_PIECE))
            .map(|((position, velocity), acceleration)| (position, velocity, acceleration, None))
            .collect();
        loops.parallel_chunks(&mut pieces, 1, |piece, pieces| {
            for (position, velocity, acceleration, not_finite) in pieces {
                let bodies = position.iter_mut().zip(&mut **velocity).zip(&**acceleration);
                for ((x, v), a) in bodies {
                    *v = kicked(v, a, kick);
                    if drift != 0.0 {
                        *x = drifted(x, v, drift);
                    }
                }
                let found = first_not_finite(position, velocity);
                *not_finite = found.map(|at| piece * BODIES_PER_PIECE + at);
            }
        })?;
        Ok(pieces.into_iter().find_map(|(.., not_finite)| not_finite).map(|at| keys[at].1))
    }

    /// Encodes these bodies.
    pub(crate) fn write(&self, bodies: Range<usize>) -> Vec<u8> {
        let mut out = vec![0; bodies.len() * ROW];
        let (rows, _) = out.as_chunks_mut::<ROW>();
        for (i, row) in bodies.zip(rows) {
            let (body, rest) = row.split_at_mut(BODY);
            self.write_body(i, body);
            let bits = [self.keys[i].0].into_iter();
            let bits = bits.chain(self.acceleration[i].map(f64::to_bits));
            put_words(bits.map(u64::to_le_bytes), rest);
        }
        out
    }

    /// Encodes a body without its key; accelerations are in units of `pull`.
    pub(crate) fn write_drifted(&self, i: usize, pull: f64, out: &mut Vec<u8>) {
        let mut row = [0; DRIFTED];
        let (body, rest) = row.split_at_mut(BODY);
        self.write_body(i, body);
        put_words(self.acceleration[i].map(|a| ((a / pull) as f32).to_le_bytes()), rest);
        out.extend_from_slice(&row);
    }

    fn write_body(&self, i: usize, row: &mut [u8]) {
        let (head, rest) = row.split_at_mut(8);
        put_words([self.keys[i].1.to_le_bytes(), self.cost[i].to_le_bytes()], head);
        let places = self.position[i].into_iter().chain(self.velocity[i]);
        put_words(places.chain([self.mass[i]]).map(f64::to_le_bytes), rest);
    }

    /// Appends the bodies that [`Domain::write`] encoded.
    ///
    /// # Errors
    /// The bytes are not those of whole bodies.
    pub(crate) fn read(&mut self, bytes: &[u8]) -> Result<(), Unsound> {
        self.read_rows(bytes, ROW, |row, _| {
            let [key, acceleration @ ..] = numbers::<4>(&row[BODY..]).map(f64::to_bits);
            (key, acceleration.map(f64::from_bits))
        })
    }

    /// Appends bodies that [`Domain::write_drifted`] encoded; `key` returns that of a place.
    ///
    /// # Errors
    /// The bytes are not those of whole bodies.
    pub(crate) fn read_drifted(
        &mut self,
        bytes: &[u8],
        pull: f64,
        key: impl Fn(&[f64; 3]) -> u64,
    ) -> Result<(), Unsound> {
        self.read_rows(bytes, DRIFTED, |row, place| {
            let inside = row[BODY..].as_chunks().0;
            let a = |axis: usize| f64::from(f32::from_le_bytes(inside[axis])) * pull;
            (key(place), [0, 1, 2].map(a))
        })
    }

    fn read_rows(
        &mut self,
        bytes: &[u8],
        length: usize,
        rest: impl Fn(&[u8], &[f64; 3]) -> (u64, [f64; 3]),
    ) -> Result<(), Unsound> {
        if !bytes.len().is_multiple_of(length) {
            return Err(Unsound { what: "bodies" });
        }
        for row in bytes.chunks_exact(length) {
            let four = |at: usize| row[at..at + 4].try_into().expect("rows were cut");
            let [x, y, z, u, v, w, mass] = numbers(&row[8..]);
            let (key, acceleration) = rest(row, &[x, y, z]);
            self.keys.push((key, u32::from_le_bytes(four(0))));
            self.cost.push(f32::from_le_bytes(four(4)));
            self.position.push([x, y, z]);
            self.velocity.push([u, v, w]);
            self.acceleration.push(acceleration);
            self.mass.push(mass);
        }
        Ok(())
    }

    /// Encodes the bodies that belong to other places along the curve, for each of the `slots`.
    /// [`sorted`](Self::sorted) then removes them. `holder` returns the place of a body's process
    /// from its index and key; `slot` is the own place. Accelerations are in units of `pull`.
    pub(crate) fn part<L: ParallelLoops>(
        &mut self,
        loops: &L,
        pull: f64,
        (slot, slots): (usize, usize),
        holder: impl Fn(usize, u64) -> usize + Sync,
    ) -> Result<Vec<Vec<u8>>, L::Stop> {
        let keys = &self.keys;
        let moved = loops.parallel_map(0..keys.len(), BODIES_PER_PIECE, |piece| {
            let of = piece.map(|i| (i, holder(i, keys[i].0)));
            of.filter(|(_, to)| *to != slot).collect::<Vec<_>>()
        })?;
        let mut parts = vec![Vec::new(); slots];
        for (i, to) in moved.into_iter().flatten() {
            self.write_drifted(i, pull, &mut parts[to]);
            self.keys[i] = MOVED;
        }
        Ok(parts)
    }

    /// The same bodies in the order of their keys and, of equal ones, numbers. Those that have
    /// [moved](Self::part) are removed.
    pub(crate) fn sorted<L: ParallelLoops>(self, loops: &L) -> Result<Self, L::Stop> {
        let Self { keys, .. } = &self;
        let count = keys.len();
        let seen = loops.parallel_map(0..count, BODIES_PER_PIECE, |piece| {
            let moved = keys[piece.clone()].iter().filter(|key| **key == MOVED).count();
            (keys[piece.start..count.min(piece.end + 1)].is_sorted(), moved)
        })?;
        let moved: usize = seen.iter().map(|(_, moved)| moved).sum();
        if moved == 0 && seen.iter().all(|(is_sorted, _)| *is_sorted) {
            return Ok(self);
        }
        let codes = collect(loops, count, BODIES_PER_PIECE, |at| keys[at].0)?;
        let mut scratch = SortScratch::default();
        let Sorted { mut order, prefixes } = sort(loops, &codes, &mut scratch)?;
        let ends = count.saturating_sub(1);
        let has_same = loops.parallel_map(0..ends, BODIES_PER_PIECE, |piece| {
            prefixes[piece.start..piece.end + 1].windows(2).any(|pair| pair[0] == pair[1])
        })?;
        if has_same.contains(&true) {
            let mut rest = &mut order[..];
            for same in prefixes.chunk_by(|a, b| a == b) {
                let (order, others) = std::mem::take(&mut rest).split_at_mut(same.len());
                order.sort_unstable_by_key(|&i| keys[i as usize].1);
                rest = others;
            }
        }
        self.picked(loops, &order[..count - moved])
    }
}

/// Writes words of the same length one after the other.
fn put_words<const N: usize>(words: impl IntoIterator<Item = [u8; N]>, to: &mut [u8]) {
    to.as_chunks_mut().0.iter_mut().zip(words).for_each(|(to, word)| *to = word);
}

/// The first doubles of a row.
fn numbers<const N: usize>(row: &[u8]) -> [f64; N] {
    let mut all = [0.0; N];
    for (value, bytes) in all.iter_mut().zip(row.as_chunks().0) {
        *value = f64::from_le_bytes(*bytes);
    }
    all
}

/// The state of a process.
#[derive(Debug)]
pub struct State {
    pub(crate) common: Common,
    /// The data for the output, at rank 0.
    pub(crate) observer: Option<ObserverState>,
    /// The first block of each process.
    pub(crate) cuts: Vec<u32>,
    pub(crate) domain: Domain,
    /// The predicted sums of own blocks for the next step, if there are any: see
    /// [`super::essential_tree`].
    pub(crate) predicted: Vec<f32>,
    /// The sums for the report of the last step.
    pub(crate) summed: Option<Summed>,
    /// The locally essential tree, once it is needed.
    pub(crate) essential: Option<LocallyEssentialTree>,
    /// The former exports and imports after a sort, until they are needed.
    pub(crate) before: PreviousViews,
    /// All blocks as subscribers after a sort, until they are needed.
    pub(crate) subscribers: Vec<Subscriber>,
}

/// A piece of a state, or the whole.
#[derive(Serialize, Deserialize)]
struct Piece {
    common: Option<Common>,
    observer: Option<ObserverState>,
    rows: ByteBuf,
    predicted: Vec<f32>,
    summed: Option<Summed>,
}

impl State {
    /// A state without a tree; predicted sums and report sums are those of the step before.
    pub(crate) fn new(
        common: Common,
        observer: Option<ObserverState>,
        cuts: Vec<u32>,
        domain: Domain,
        (predicted, summed): (Vec<f32>, Option<Summed>),
    ) -> Self {
        let (essential, before, subscribers) = (None, PreviousViews::default(), Vec::new());
        Self { common, observer, cuts, domain, predicted, summed, essential, before, subscribers }
    }

    /// The piece of this state for a process of another layout.
    pub(crate) fn give(
        &self,
        (from, rank): (&Layout, u32),
        (to, other): (&Layout, u32),
    ) -> Result<Bytes, Stop> {
        let (Some(mine), Some(theirs)) = (from.slot_of(rank), to.slot_of(other)) else {
            return Err(Stop::fail("a layout does not know its processes"));
        };
        let infos = &self.common.infos;
        let (mine, theirs) = (of_slot(&self.cuts, mine), of_slot(&to.cuts(infos), theirs));
        let (start, end) = (mine.start.max(theirs.start), mine.end.min(theirs.end));
        let (bodies, predicted) = if start < end {
            let first = bodies_of(&infos[mine.start..start]);
            let columns = self.predicted.len() / mine.len();
            let predicted = (start - mine.start) * columns..(end - mine.start) * columns;
            (first..first + bodies_of(&infos[start..end]), self.predicted[predicted].to_vec())
        } else {
            (0..0, Vec::new())
        };
        // Rank 0 sends the common state.
        let common = (rank == 0).then(|| self.common.clone());
        let observer = if rank == 0 && other == 0 { self.observer.clone() } else { None };
        let rows = ByteBuf::from(self.domain.write(bodies));
        let summed = self.summed.clone().filter(|_| other == 0);
        if common.is_none() && rows.is_empty() && summed.is_none() {
            return Ok(Bytes::new());
        }
        Ok(wire::encode_payload(&Piece { common, observer, rows, predicted, summed })?)
    }

    /// The state of a process, from the pieces of all processes of another layout.
    pub(crate) fn take(pieces: &[Bytes], from: &Layout, to: &Layout) -> Result<Self, Stop> {
        let (mut common, mut observer, mut domain) = (None, None, Domain::default());
        let (mut predicted, mut summed) = (Vec::new(), None::<Summed>);
        for &rank in from.ranks() {
            let Some(piece) = pieces.get(rank as usize).filter(|piece| !piece.is_empty()) else {
                continue;
            };
            let piece: Piece = wire::decode_payload(piece)?;
            common = common.or(piece.common);
            observer = observer.or(piece.observer);
            domain.read(&piece.rows)?;
            predicted.extend(piece.predicted);
            if let Some(of_one) = piece.summed {
                let all = summed.get_or_insert_with(|| Summed {
                    step: of_one.step,
                    sums: vec![ExactSum::default(); of_one.sums.len()],
                    is_all: true,
                });
                all.sums.iter_mut().zip(&of_one.sums).for_each(|(sum, of_one)| sum.merge(of_one));
            }
        }
        let common = common.ok_or_else(|| Stop::fail("pieces of a state have no head"))?;
        let cuts = to.cuts(&common.infos);
        Ok(Self::new(common, observer, cuts, domain, (predicted, summed)))
    }

    /// Takes the predicted sums of the blocks of this place along the curve, if there are any.
    pub(crate) fn take_predicted(
        &mut self,
        slot: usize,
        setup: &Setup,
    ) -> Result<Option<CellSums>, Unsound> {
        let rows = std::mem::take(&mut self.predicted);
        if rows.is_empty() {
            return Ok(None);
        }
        let sums = CellSums::of_rows(of_slot(&self.cuts, slot).len(), &rows, setup);
        sums.map(Some).ok_or(Unsound { what: "sums of blocks" })
    }

    /// The bodies of each block of this place along the curve, by index in the domain.
    pub(crate) fn blocks(&self, slot: usize) -> Vec<Range<usize>> {
        let mut first = 0;
        let infos = &self.common.infos[of_slot(&self.cuts, slot)];
        infos
            .iter()
            .map(|info| {
                let bodies = first..first + info.bodies as usize;
                first = bodies.end;
                bodies
            })
            .collect()
    }

    /// The bodies in their own order, from those of all domains.
    pub(crate) fn whole<'d>(
        common: &Common,
        domains: impl Iterator<Item = &'d Domain> + Clone,
    ) -> Result<Bodies, Stop> {
        let count = domains.clone().map(Domain::len).sum::<usize>();
        if count as u64 != common.bodies {
            return Err(Stop::fail(format_args!(
                "there are {count} bodies where there were {}",
                common.bodies
            )));
        }
        let mut bodies = Bodies {
            position: vec![[0.0; 3]; count],
            velocity: vec![[0.0; 3]; count],
            mass: vec![0.0; count],
            second: common.second as usize,
        };
        for domain in domains {
            for (i, &(_, number)) in domain.keys.iter().enumerate() {
                let number = number as usize;
                if number >= count {
                    return Err(Stop::fail(format_args!("there is no body {number} of {count}")));
                }
                bodies.position[number] = domain.position[i];
                bodies.velocity[number] = domain.velocity[i];
                bodies.mass[number] = domain.mass[i];
            }
        }
        Ok(bodies)
    }
}

/// Saves the state of the only process.
impl Serialize for State {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let rows = ByteBuf::from(self.domain.write(0..self.domain.len()));
        let (common, observer) = (Some(self.common.clone()), self.observer.clone());
        let (predicted, summed) = (self.predicted.clone(), self.summed.clone());
        Piece { common, observer, rows, predicted, summed }.serialize(to)
    }
}

impl<'de> Deserialize<'de> for State {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        use serde::de::Error;
        let Piece { common, observer, rows, predicted, summed } = Piece::deserialize(from)?;
        let common = common.ok_or_else(|| D::Error::missing_field("common"))?;
        let mut domain = Domain::default();
        domain.read(&rows).map_err(D::Error::custom)?;
        let cuts = vec![0, common.infos.len() as u32];
        Ok(Self::new(common, observer, cuts, domain, (predicted, summed)))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use springtide_runtime::work::Sequential;

    use super::*;

    proptest! {
        /// The order is that of keys and, at one place, of numbers. Each body keeps its data.
        #[test]
        fn bodies_are_sorted_by_key_and_number(
            keys in prop::collection::vec((0u64..40, 0u64..2), 0..300),
            numbers in Just((0..300).collect::<Vec<u32>>()).prop_shuffle(),
        ) {
            let mut domain = Domain::default();
            for ((high, low), number) in keys.into_iter().zip(numbers) {
                let of = f64::from(number);
                domain.keys.push((high << 57 | low, number));
                domain.position.push([of; 3]);
                domain.velocity.push([of + 0.25; 3]);
                domain.acceleration.push([of + 0.5; 3]);
                domain.mass.push(of + 0.75);
                domain.cost.push(number as f32);
            }
            let mut keys = domain.keys.clone();
            keys.sort_unstable();
            let Ok(sorted) = domain.sorted(&Sequential);
            prop_assert_eq!(&sorted.keys, &keys);
            for (i, of) in keys.into_iter().map(|(_, number)| f64::from(number)).enumerate() {
                prop_assert_eq!(sorted.position[i], [of; 3]);
                prop_assert_eq!(sorted.velocity[i], [of + 0.25; 3]);
                prop_assert_eq!(sorted.acceleration[i], [of + 0.5; 3]);
                prop_assert_eq!(sorted.mass[i], of + 0.75);
                prop_assert_eq!(f64::from(sorted.cost[i]), of);
            }
        }
    }
}
