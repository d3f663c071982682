//! Divisions of equal items over processes in order of rank: bounds, overlaps of two divisions, and
//! encoding of numbers.
//!
//! This module does not know what the items are.

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use springtide_runtime::spmd::Comm;
use springtide_runtime::work::Stop;

/// A division: process `rank` holds the items from `bounds[rank]` up to `bounds[rank + 1]`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Slabs {
    bounds: Vec<u32>,
}

/// A process of a division.
#[derive(Clone, Copy, Debug)]
pub struct SlabRank<'a> {
    /// The division of the items.
    pub slabs: &'a Slabs,
    /// The rank of the process.
    pub rank: u32,
}

impl Slabs {
    /// A division that is as equal as possible.
    pub fn equal(items: u32, processes: u32) -> Self {
        let processes = processes.max(1);
        let at = |rank: u32| u64::from(items) * u64::from(rank) / u64::from(processes);
        Self { bounds: (0..=processes).map(|rank| at(rank) as u32).collect() }
    }

    /// A division in proportion to these weights. Weights that are negative or not finite count as
    /// zero.
    pub fn weighted(items: u32, weights: &[f64]) -> Self {
        let weight = |weight: &f64| if weight.is_finite() { weight.max(0.0) } else { 0.0 };
        let sum: f64 = weights.iter().map(weight).sum();
        if sum <= 0.0 || !sum.is_finite() {
            return Self::equal(items, u32::try_from(weights.len()).unwrap_or(u32::MAX));
        }
        let mut before = 0.0;
        let mut bounds = vec![0];
        for one in weights {
            before += weight(one);
            let at = (f64::from(items) * (before / sum)).round() as u32;
            bounds.push(at.clamp(bounds.last().copied().unwrap_or(0), items));
        }
        if let Some(last) = bounds.last_mut() {
            *last = items;
        }
        Self { bounds }
    }

    /// The number of processes in the division.
    pub fn processes(&self) -> u32 {
        u32::try_from(self.bounds.len().saturating_sub(1)).unwrap_or(u32::MAX)
    }

    /// The items of a process; empty if there is no such rank.
    pub fn of(&self, rank: u32) -> std::ops::Range<u32> {
        let at = |at: usize| self.bounds.get(at).or(self.bounds.last()).copied().unwrap_or(0);
        at(rank as usize)..at(rank as usize + 1)
    }

    /// The items that a process holds here and another holds under another division.
    pub fn common(&self, rank: u32, other: SlabRank<'_>) -> std::ops::Range<u32> {
        let (mine, theirs) = (self.of(rank), other.slabs.of(other.rank));
        let begin = mine.start.max(theirs.start);
        begin..mine.end.min(theirs.end).max(begin)
    }

    /// Selects those of the `numbers` of process `rank`, `width` per item, that another process
    /// holds under another division.
    pub fn share<'a>(
        &self,
        rank: u32,
        numbers: &'a [f64],
        width: usize,
        to: SlabRank<'_>,
    ) -> &'a [f64] {
        let (mine, common) = (self.of(rank), self.common(rank, to));
        let at = |n: u32| n.saturating_sub(mine.start) as usize * width;
        if common.is_empty() { &[] } else { &numbers[at(common.start)..at(common.end)] }
    }

    /// The numbers of a process of another division, from the [shares](Slabs::share) of all
    /// processes of this one in order of rank.
    ///
    /// # Errors
    /// A share has the wrong number of numbers.
    pub fn joined(
        &self,
        shares: &[Bytes],
        to: SlabRank<'_>,
        width: usize,
    ) -> Result<Vec<f64>, Stop> {
        let mut numbers = Vec::new();
        for (from, share) in (0..).zip(shares) {
            numbers.extend(unpack(share, self.common(from, to).len() * width)?);
        }
        Ok(numbers)
    }

    /// Collects all numbers in order, `width` per item, on each process in `to`. The others get
    /// none.
    ///
    /// # Errors
    /// Those of [`Comm`], or a process sends the wrong number of numbers.
    pub fn gather(
        &self,
        comm: &Comm<'_>,
        tag: u32,
        to: std::ops::Range<u32>,
        mine: &Bytes,
        width: usize,
    ) -> Result<Option<Vec<f64>>, Stop> {
        for to in to.clone() {
            comm.send(to, tag, mine.clone())?;
        }
        if !to.contains(&comm.rank()) {
            return Ok(None);
        }
        let mut all = Vec::new();
        for from in 0..comm.size() {
            all.extend(unpack(&comm.receive(from, tag)?, self.of(from).len() * width)?);
        }
        Ok(Some(all))
    }
}

/// Encodes numbers for a message.
pub fn pack(numbers: impl IntoIterator<Item = f64>) -> Bytes {
    let numbers = numbers.into_iter();
    let mut bytes = Vec::with_capacity(numbers.size_hint().0 * 8);
    for number in numbers {
        bytes.extend_from_slice(&number.to_le_bytes());
    }
    bytes.into()
}

/// Decodes `count` numbers from a message.
///
/// # Errors
/// There is another number of them.
pub fn unpack(bytes: &[u8], count: usize) -> Result<Vec<f64>, Stop> {
    let (numbers, rest) = bytes.as_chunks::<8>();
    if numbers.len() != count || !rest.is_empty() {
        return Err(Stop::fail(format_args!(
            "received {} bytes, but {count} numbers are expected: all nodes need the same version \
             of the program",
            bytes.len()
        )));
    }
    Ok(numbers.iter().map(|bytes| f64::from_le_bytes(*bytes)).collect())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn each_item_is_held_once_and_moves_once(
            items in 0..500u32,
            weights in prop::collection::vec(-1.0..9.0f64, 1..9),
            processes in 1..9u32,
        ) {
            let (from, to) = (Slabs::weighted(items, &weights), Slabs::equal(items, processes));
            for slabs in [&from, &to] {
                let all = (0..slabs.processes()).flat_map(|rank| slabs.of(rank));
                let all: Vec<u32> = all.collect();
                prop_assert_eq!(all, (0..items).collect::<Vec<_>>());
            }
            for rank in 0..to.processes() {
                let piece = |other| from.common(other, SlabRank { slabs: &to, rank });
                let pieces = (0..from.processes()).flat_map(piece);
                prop_assert_eq!(pieces.collect::<Vec<_>>(), to.of(rank).collect::<Vec<_>>());
            }
        }
    }

    #[test]
    fn shares_follow_weights_and_invalid_weights_count_as_zero() {
        let slabs = Slabs::weighted(100, &[1.0, 3.0, f64::NAN, 0.0]);
        let held: Vec<u32> = (0..4).map(|rank| slabs.of(rank).len() as u32).collect();
        assert_eq!(held, [25, 75, 0, 0]);
        assert_eq!(Slabs::weighted(9, &[0.0, f64::INFINITY, -2.0]), Slabs::equal(9, 3));
    }

    #[test]
    fn numbers_are_decoded_exactly() {
        let numbers = [0.1, -0.0, f64::MAX, 1e-310];
        let packed = pack(numbers);
        let back = unpack(&packed, 4).expect("four numbers");
        assert!(numbers.iter().zip(&back).all(|(a, b)| a.to_bits() == b.to_bits()));
        assert!(unpack(&packed, 3).is_err() && unpack(&packed[1..], 4).is_err());
    }
}
