//! Morton keys of places and cubes, and their sorting. This module depends on neither bodies nor
//! cells.

use std::ops::Range;

/// Bits of a Morton key per axis, which is the deepest level of the tree.
pub(crate) const LEVELS: u32 = 21;

/// The number of levels, from the top, on which two keys agree that differ in these bits; keys have
/// the low 63 bits.
pub(crate) fn agreeing(differing: u64) -> u32 {
    ((differing.leading_zeros() - 1) / 3).min(LEVELS)
}

/// The Morton key of a position within half a side of the middle: bits of x, y and z in turn, x
/// highest.
pub(crate) fn morton(position: [f32; 3]) -> u64 {
    let mut key = 0;
    for (axis, c) in position.into_iter().enumerate() {
        // The cast saturates, so that no input leaves the grid.
        let cell = ((f64::from(c) + 0.5) * f64::from(1u32 << LEVELS)) as u32;
        key |= spread(cell.min((1 << LEVELS) - 1)) << (2 - axis);
    }
    key
}

/// The lowest corner of the cube with this key, in sides from the middle.
pub(crate) fn corner(key: u64) -> [f64; 3] {
    [2, 1, 0].map(|first| {
        let cell: u64 = (0..LEVELS).map(|bit| (key >> (3 * bit + first) & 1) << bit).sum();
        cell as f64 / f64::from(1u32 << LEVELS) - 0.5
    })
}

/// Moves bit i of a 21-bit number to bit 3 i.
pub(super) fn spread(bits: u32) -> u64 {
    let mut x = u64::from(bits);
    x = (x | x << 32) & 0x001f_0000_0000_ffff;
    x = (x | x << 16) & 0x001f_0000_ff00_00ff;
    x = (x | x << 8) & 0x100f_00f0_0f00_f00f;
    x = (x | x << 4) & 0x10c3_0c30_c30c_30c3;
    (x | x << 2) & 0x1249_2492_4924_9249
}

/// Bodies in the order of their keys.
pub(crate) struct Sorted {
    /// Body indices in the order of their keys; equal keys keep the order of indices.
    pub order: Vec<u32>,
    /// The keys in that order, cut to the levels that distinguish them from their neighbours; lower
    /// bits are zero. Equal prefixes belong to equal keys.
    pub prefixes: Vec<u64>,
}

/// Bits of the first digit, whole levels.
const FIRST: u32 = 12;
/// The number of bits of a key.
const BITS: u32 = 3 * LEVELS;

/// Sorts keys, equal ones by index.
///
/// It is a radix sort from the highest digit, of words that hold an index and as much of the
/// remaining key as fits. So all passes but the first stay within a cache, and few words have equal
/// key bits.
pub(crate) fn sort(keys: &[u64]) -> Sorted {
    sort_by(keys, u64::BITS)
}

/// Sorts keys by words with this number of bits, which exceeds that of an index.
pub(super) fn sort_by(keys: &[u64], bits: u32) -> Sorted {
    let index = usize::BITS - keys.len().leading_zeros();
    let kept = (bits - index).min(BITS - FIRST) / 3 * 3;
    let left_out = BITS - FIRST - kept;
    let first = |key: u64| (key >> (BITS - FIRST)) as usize;
    let mut ends = [0u32; 1 << FIRST];
    let mut words = vec![0; keys.len()];
    let word = |(i, &key): (usize, &u64)| {
        let rest = key >> left_out & ((1 << kept) - 1);
        (first(key), rest << index | i as u64)
    };
    distribute(keys.iter().enumerate().map(word), &mut ends, &mut words);
    let mut order = vec![0; keys.len()];
    let largest = ranges(&ends).map(|part| part.len()).max().unwrap_or(0);
    let mut space = vec![0; largest];
    for (digit, part) in ranges(&ends).enumerate() {
        let words = &mut words[part.clone()];
        sort_part(words, &mut space[..part.len()], index, false);
        let (mut before, mut alike) = (u64::MAX, false);
        for (word, i) in words.iter_mut().zip(&mut order[part.clone()]) {
            *i = (*word & ((1 << index) - 1)) as u32;
            let rest = *word >> index;
            alike |= rest == before;
            before = rest;
            *word = ((digit as u64) << kept | rest) << left_out;
        }
        if alike && left_out > 0 {
            sort_equal_prefixes(words, &mut order[part], keys);
        }
    }
    Sorted { order, prefixes: words }
}

/// Sorts keys with equal prefixes by their whole keys, and corrects the prefixes.
fn sort_equal_prefixes(prefixes: &mut [u64], order: &mut [u32], keys: &[u64]) {
    let mut rest = order;
    let mut pairs: Vec<(u64, u32)> = Vec::new();
    for run in prefixes.chunk_by_mut(|a, b| a == b) {
        let (order, others) = rest.split_at_mut(run.len());
        rest = others;
        if run.len() > 1 {
            pairs.clear();
            pairs.extend(order.iter().map(|&i| (keys[i as usize], i)));
            pairs.sort_unstable();
            for ((prefix, i), pair) in run.iter_mut().zip(order).zip(&pairs) {
                (*prefix, *i) = *pair;
            }
        }
    }
}

/// Distributes words into their empty buckets, in order, and computes where each bucket ends.
fn distribute(words: impl Iterator<Item = (usize, u64)> + Clone, ends: &mut [u32], to: &mut [u64]) {
    words.clone().for_each(|(bucket, _)| ends[bucket] += 1);
    let mut sum = 0;
    for end in ends.iter_mut() {
        sum += std::mem::replace(end, sum);
    }
    for (bucket, word) in words {
        let end = &mut ends[bucket];
        to[*end as usize] = word;
        *end += 1;
    }
}

/// The consecutive ranges with these ends.
fn ranges(ends: &[u32]) -> impl Iterator<Item = Range<usize>> {
    let mut start = 0;
    ends.iter().map(move |&end| std::mem::replace(&mut start, end as usize)..end as usize)
}

/// Sorts words by their upper bits; the lowest `index` bits break ties and are in order already.
///
/// `space` has the size of `words` and gets the result if `aside`.
fn sort_part(words: &mut [u64], space: &mut [u64], index: u32, aside: bool) {
    /// Up to this number of words are sorted by comparison.
    const COMPARISON_MAX: usize = 64;
    /// The maximum number of bits of a digit.
    const DIGIT_BITS_MAX: u32 = 11;
    let Some(&first) = words.first() else { return };
    let differing = words.iter().fold(0, |bits, word| bits | (word ^ first));
    let top = u64::BITS - differing.leading_zeros();
    if top <= index || words.len() <= COMPARISON_MAX {
        if top > index {
            words.sort_unstable();
        }
        if aside {
            space.copy_from_slice(words);
        }
        return;
    }
    // About sixteen words per bucket.
    let digit = (words.len().ilog2() - 4).min(DIGIT_BITS_MAX).min(top - index);
    let shift = top - digit;
    let bucket = |word: u64| (word >> shift) as usize & ((1 << digit) - 1);
    let mut ends = [0u32; 1 << DIGIT_BITS_MAX];
    let ends = &mut ends[..1 << digit];
    distribute(words.iter().map(|&word| (bucket(word), word)), ends, space);
    for part in ranges(ends) {
        sort_part(&mut space[part.clone()], &mut words[part], index, !aside);
    }
}

/// Sorted keys with their original indices.
pub(crate) fn sorted_pairs(keys: &[u64]) -> Vec<(u64, u32)> {
    sort(keys).order.into_iter().map(|i| (keys[i as usize], i)).collect()
}
