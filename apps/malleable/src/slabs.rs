//! Runs of equal things that processes hold in order of rank: where each begins, what of one run lies in another, and how numbers
//! travel.
//!
//! Must not know what the things are.

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use springtide_runtime::work::Stop;

/// Process `rank` holds those from `bounds[rank]` up to `bounds[rank + 1]`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Slabs {
    bounds: Vec<u32>,
}

impl Slabs {
    /// As equal as they can be.
    pub fn equal(things: u32, processes: u32) -> Self {
        let processes = processes.max(1);
        let at = |rank: u32| u64::from(things) * u64::from(rank) / u64::from(processes);
        Self { bounds: (0..=processes).map(|rank| at(rank) as u32).collect() }
    }

    /// In proportion to these weights; those that are no positive number count as nothing.
    pub fn weighted(things: u32, weights: &[f64]) -> Self {
        let weight = |weight: &f64| if weight.is_finite() { weight.max(0.0) } else { 0.0 };
        let sum: f64 = weights.iter().map(weight).sum();
        if sum <= 0.0 || !sum.is_finite() {
            return Self::equal(things, u32::try_from(weights.len()).unwrap_or(u32::MAX));
        }
        let mut before = 0.0;
        let mut bounds = vec![0];
        for one in weights {
            before += weight(one);
            let at = (f64::from(things) * (before / sum)).round() as u32;
            bounds.push(at.clamp(bounds.last().copied().unwrap_or(0), things));
        }
        if let Some(last) = bounds.last_mut() {
            *last = things;
        }
        Self { bounds }
    }

    /// How many processes there are.
    pub fn processes(&self) -> u32 {
        u32::try_from(self.bounds.len().saturating_sub(1)).unwrap_or(u32::MAX)
    }

    /// What a process holds; of one that is not there nothing.
    pub fn of(&self, rank: u32) -> std::ops::Range<u32> {
        let at = |at: usize| self.bounds.get(at).or(self.bounds.last()).copied().unwrap_or(0);
        at(rank as usize)..at(rank as usize + 1)
    }

    /// What a process holds of what another holds under another division.
    pub fn common(&self, rank: u32, other: (&Slabs, u32)) -> std::ops::Range<u32> {
        let (mine, theirs) = (self.of(rank), other.0.of(other.1));
        let begin = mine.start.max(theirs.start);
        begin..mine.end.min(theirs.end).max(begin)
    }
}

/// Numbers as they travel.
pub fn pack(numbers: impl IntoIterator<Item = f64>) -> Bytes {
    let numbers = numbers.into_iter();
    let mut bytes = Vec::with_capacity(numbers.size_hint().0 * 8);
    for number in numbers {
        bytes.extend_from_slice(&number.to_le_bytes());
    }
    bytes.into()
}

/// So many numbers that came.
///
/// # Errors
/// If there are not so many.
pub fn unpack(bytes: &[u8], count: usize) -> Result<Vec<f64>, Stop> {
    let (numbers, rest) = bytes.as_chunks::<8>();
    if numbers.len() != count || !rest.is_empty() {
        return Err(Stop::fail(format_args!(
            "{} bytes came where {count} numbers were to come: all nodes need the same version of the program",
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
        fn every_thing_is_held_once_and_moves_once(
            things in 0..500u32,
            weights in prop::collection::vec(-1.0..9.0f64, 1..9),
            processes in 1..9u32,
        ) {
            let (from, to) = (Slabs::weighted(things, &weights), Slabs::equal(things, processes));
            for slabs in [&from, &to] {
                let all: Vec<u32> = (0..slabs.processes()).flat_map(|rank| slabs.of(rank)).collect();
                prop_assert_eq!(all, (0..things).collect::<Vec<_>>());
            }
            for rank in 0..to.processes() {
                let pieces = (0..from.processes()).flat_map(|other| from.common(other, (&to, rank)));
                prop_assert_eq!(pieces.collect::<Vec<_>>(), to.of(rank).collect::<Vec<_>>());
            }
        }
    }

    #[test]
    fn shares_follow_weights_and_bad_weights_are_none() {
        let slabs = Slabs::weighted(100, &[1.0, 3.0, f64::NAN, 0.0]);
        let held: Vec<u32> = (0..4).map(|rank| slabs.of(rank).len() as u32).collect();
        assert_eq!(held, [25, 75, 0, 0]);
        assert_eq!(Slabs::weighted(9, &[0.0, f64::INFINITY, -2.0]), Slabs::equal(9, 3));
    }

    #[test]
    fn numbers_travel_whole() {
        let numbers = [0.1, -0.0, f64::MAX, 1e-310];
        let packed = pack(numbers);
        let back = unpack(&packed, 4).expect("four numbers");
        assert!(numbers.iter().zip(&back).all(|(a, b)| a.to_bits() == b.to_bits()));
        assert!(unpack(&packed, 3).is_err() && unpack(&packed[1..], 4).is_err());
    }
}
