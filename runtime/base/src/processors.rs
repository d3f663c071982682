//! Counts of processors, the unit of all sizes of jobs and of all requests for resources.

use std::fmt;
use std::iter::Sum;

use serde::{Deserialize, Serialize};

/// A number of processors.
///
/// A processor is a core that a node may use, with one compute thread. A node is where some
/// processors are. On the wire and in files it is a plain number. All arithmetic is checked or
/// saturating, since counts come from the network.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Processors(pub u32);

impl Processors {
    /// The count of an empty set.
    pub const ZERO: Self = Self(0);
    /// One processor, the least that a node has.
    pub const ONE: Self = Self(1);
    /// The greatest count. It stands for "no limit" in comparisons.
    pub const MAX: Self = Self(u32::MAX);

    /// The processors of a node with this number of compute threads. A node whose number is
    /// unknown (0) counts as one processor.
    pub fn of_node(threads: u32) -> Self {
        Self(threads.max(1))
    }

    /// The count as a number.
    pub fn get(self) -> u32 {
        self.0
    }

    /// Whether there is no processor.
    pub fn is_zero(self) -> bool {
        self.0 == 0
    }

    /// The sum; absent if it exceeds the greatest count.
    pub fn checked_add(self, other: Self) -> Option<Self> {
        self.0.checked_add(other.0).map(Self)
    }

    /// The difference; absent if `other` is greater.
    pub fn checked_sub(self, other: Self) -> Option<Self> {
        self.0.checked_sub(other.0).map(Self)
    }

    /// The sum, at most [`Processors::MAX`].
    pub fn saturating_add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }

    /// The difference, at least [`Processors::ZERO`].
    pub fn saturating_sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }

    /// The product, at most [`Processors::MAX`].
    pub fn saturating_mul(self, factor: u32) -> Self {
        Self(self.0.saturating_mul(factor))
    }
}

impl fmt::Display for Processors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} processor{}", self.0, if self.0 == 1 { "" } else { "s" })
    }
}

impl From<u32> for Processors {
    fn from(count: u32) -> Self {
        Self(count)
    }
}

impl From<Processors> for f64 {
    fn from(count: Processors) -> Self {
        f64::from(count.0)
    }
}

impl Sum for Processors {
    fn sum<I: Iterator<Item = Self>>(counts: I) -> Self {
        counts.fold(Self::ZERO, Self::saturating_add)
    }
}

/// Selects nodes so that their processors come near to a wanted number. Returns their positions in
/// ascending order.
///
/// `sizes` are the nodes' processors in order of preference. First each node is taken that fits
/// into what is still wanted. If processors are still wanted then, one greater node is taken: the
/// smallest that brings the sum nearer to `wanted`, or any if no node was taken before. The sum
/// never exceeds `most`.
///
/// Where each node has one processor, these are the first `wanted` nodes, at most `most`.
pub fn select_nodes(
    sizes: impl IntoIterator<Item = Processors>,
    wanted: Processors,
    most: Processors,
) -> Vec<usize> {
    let mut left = Processors(wanted.0.min(most.0));
    let mut room = most;
    let mut selected = Vec::new();
    let mut greater: Option<(usize, Processors)> = None;
    for (index, size) in sizes.into_iter().enumerate() {
        if left.is_zero() {
            break;
        }
        if size <= left {
            left = left.saturating_sub(size);
            room = room.saturating_sub(size);
            selected.push(index);
        } else if greater.is_none_or(|(_, least)| size < least) {
            greater = Some((index, size));
        }
    }
    if let Some((index, size)) = greater.filter(|_| !left.is_zero()) {
        let nearer = size < left.saturating_mul(2);
        if size <= room && (nearer || selected.is_empty()) {
            selected.push(index);
            selected.sort_unstable();
        }
    }
    selected
}

/// Selects nodes that have a wanted number of processors together, or all if there are too few.
/// Returns their positions in ascending order.
///
/// `sizes` are the nodes' processors in order of preference. Each node is taken that fits into what
/// is still wanted, and then the smallest of the others that covers the rest.
pub fn cover_with_nodes(
    sizes: impl IntoIterator<Item = Processors>,
    wanted: Processors,
) -> Vec<usize> {
    let mut left = wanted;
    let (mut selected, mut others) = (Vec::new(), Vec::new());
    for (index, size) in sizes.into_iter().enumerate() {
        if left.is_zero() {
            break;
        }
        match left.checked_sub(size) {
            Some(rest) => {
                left = rest;
                selected.push(index);
            }
            None => others.push((size, index)),
        }
    }
    // Each of the others is greater than what was wanted when it was reached.
    if let Some((_, index)) = others.into_iter().min().filter(|_| !left.is_zero()) {
        selected.push(index);
        selected.sort_unstable();
    }
    selected
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn select(sizes: &[u32], wanted: u32, most: u32) -> Vec<u32> {
        let all = sizes.iter().map(|&size| Processors(size));
        let selected = select_nodes(all, Processors(wanted), Processors(most));
        selected.into_iter().map(|index| sizes[index]).collect()
    }

    #[test]
    fn nodes_cover_what_is_wanted() {
        for (sizes, wanted, expected) in [
            (&[1, 1, 1][..], 2, &[1, 1][..]),
            (&[4, 4, 4], 5, &[4, 4]),
            (&[16, 4, 8], 5, &[4, 8]),
            (&[16, 8], 5, &[8]),
            (&[2, 2], 9, &[2, 2]),
            (&[], 1, &[]),
        ] {
            let all = sizes.iter().map(|&size| Processors(size));
            let selected = cover_with_nodes(all, Processors(wanted));
            let selected: Vec<u32> = selected.into_iter().map(|index| sizes[index]).collect();
            assert_eq!(selected, expected, "{wanted} of {sizes:?}");
        }
    }

    #[test]
    fn nodes_fit_what_is_wanted() {
        for (sizes, wanted, most, expected) in [
            (&[1, 1, 1][..], 2, 2, &[1, 1][..]),
            (&[1, 1, 1], 9, 2, &[1, 1]),
            (&[64, 8, 8, 2], 10, 100, &[8, 2]),
            (&[64], 1, 100, &[64]),
            (&[64, 32], 1, 100, &[32]),
            (&[64], 1, 63, &[]),
            (&[4, 16], 10, 100, &[4]),
            (&[4, 11], 10, 100, &[4, 11]),
            (&[4, 11], 10, 14, &[4]),
            (&[8, 8], 8, 8, &[8]),
            (&[3, 3], 0, 9, &[]),
            (&[], 5, 9, &[]),
        ] {
            assert_eq!(select(sizes, wanted, most), expected, "{wanted} to {most} of {sizes:?}");
        }
    }

    #[test]
    fn arithmetic_never_wraps() {
        let (one, max) = (Processors::ONE, Processors::MAX);
        assert_eq!(
            (max.saturating_add(one), Processors::ZERO.saturating_sub(one)),
            (max, 0.into())
        );
        assert_eq!((max.checked_add(one), Processors::ZERO.checked_sub(one)), (None, None));
        assert_eq!([max, max].into_iter().sum::<Processors>(), max);
        assert_eq!(Processors::of_node(0), one);
        assert_eq!(
            (one.to_string(), Processors(2).to_string()),
            ("1 processor".into(), "2 processors".into())
        );
        assert_eq!(serde_json::to_string(&Processors(7)).unwrap(), "7");
    }

    proptest! {
        /// The sum stays within the bound. It overshoots only if it is nearer to the wanted number
        /// than without the greater node, or if that node is the only one.
        #[test]
        fn a_selection_overshoots_only_where_that_is_nearer(
            sizes in prop::collection::vec(1u32..130, 0..20),
            wanted in 0u32..300,
            more in 0u32..300,
        ) {
            let most = wanted + more;
            let selected = select(&sizes, wanted, most);
            let sum: u32 = selected.iter().sum();
            prop_assert!(sum <= most);
            if sum > wanted {
                let greatest = *selected.iter().max().unwrap();
                let without = wanted - (sum - greatest);
                prop_assert!(selected.len() == 1 || sum - wanted < without);
            }
            if sum < wanted {
                let rest = wanted - sum;
                let mut left = sizes.clone();
                for taken in &selected {
                    let at = left.iter().position(|size| size == taken).unwrap();
                    left.remove(at);
                }
                prop_assert!(left.iter().all(|&size| size > rest), "{sizes:?}: {selected:?}");
            }
        }

        /// Nodes of one processor are selected in their order.
        #[test]
        fn equal_nodes_are_counted(nodes in 0usize..40, wanted in 0u32..60, most in 0u32..60) {
            let selected =
                select_nodes(vec![Processors::ONE; nodes], Processors(wanted), Processors(most));
            let expected = nodes.min(wanted.min(most) as usize);
            prop_assert_eq!(selected, (0..expected).collect::<Vec<_>>());
        }
    }
}
