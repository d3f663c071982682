//! Morton keys of places and cubes, and their sorting. This module depends on neither bodies nor
//! cells.

use std::ops::Range;

use springtide_runtime::work::{ParallelLoops, Sequential, distribute};

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
pub(crate) struct Sorted<'a> {
    /// Body indices in the order of their keys; equal keys keep the order of indices.
    pub order: Vec<u32>,
    /// The keys in that order, cut to the levels that distinguish them from their neighbours; lower
    /// bits are zero. Equal prefixes belong to equal keys.
    pub prefixes: &'a [u64],
}

/// Memory that one sort after the other uses: new memory would have to be zeroed by one thread.
#[derive(Debug, Default)]
pub(crate) struct SortScratch {
    words: Vec<u64>,
    spare: Vec<u64>,
}

/// Bits of the first digit, whole levels.
const FIRST: u32 = 12;
/// The number of bits of a key.
const BITS: u32 = 3 * LEVELS;

/// Sorts keys, equal ones by index.
///
/// It is a radix sort from the highest digit, of words that hold an index and as much of the
/// remaining key as fits. So all passes but the first stay within a cache, and few words have equal
/// key bits. All threads take part in the passes over large ranges of words, and each sorts small
/// ranges alone.
///
/// # Errors
/// The loops must stop.
pub(crate) fn sort<'a, L: ParallelLoops>(
    loops: &L,
    keys: &[u64],
    scratch: &'a mut SortScratch,
) -> Result<Sorted<'a>, L::Stop> {
    sort_by(loops, keys, u64::BITS, scratch)
}

/// Consecutive words with the same upper bits.
struct Part {
    words: Range<usize>,
    /// The first digit of their keys.
    first_digit: u64,
    /// Whether the words are in the spare scratch.
    is_in_spare: bool,
}

/// Some parts that one thread sorts, with their scratch.
struct SortBatch<'a> {
    parts: &'a [Part],
    words: &'a mut [u64],
    spare: &'a mut [u64],
    order: &'a mut [u32],
}

/// More words than these are moved by all threads, and up to about this number sorted by one.
const SORTED_BY_ONE: usize = 16 << 10;

/// Sorts keys by words with this number of bits, which exceeds that of an index.
pub(super) fn sort_by<'a, L: ParallelLoops>(
    loops: &L,
    keys: &[u64],
    bits: u32,
    scratch: &'a mut SortScratch,
) -> Result<Sorted<'a>, L::Stop> {
    let index = usize::BITS - keys.len().leading_zeros();
    let kept = (bits - index).min(BITS - FIRST) / 3 * 3;
    let left_out = BITS - FIRST - kept;
    let word = |at: usize| {
        let rest = keys[at] >> left_out & ((1 << kept) - 1);
        ((keys[at] >> (BITS - FIRST)) as usize, rest << index | at as u64)
    };
    let SortScratch { words, spare } = scratch;
    words.resize(keys.len(), 0);
    spare.resize(keys.len(), 0);
    let mut order = vec![0; keys.len()];
    let firsts = distribute(loops, 1 << FIRST, word, words)?;
    let mut parts = Vec::new();
    for (first_digit, words_of_digit) in ranges(&firsts).enumerate() {
        let first_digit = first_digit as u64;
        let part = Part { words: words_of_digit, first_digit, is_in_spare: false };
        split_large(loops, part, [&mut *words, &mut *spare], index, &mut parts)?;
    }
    let mut batches = Vec::new();
    let (mut words_left, mut spare_left, mut order_left) =
        (&mut words[..], &mut spare[..], &mut order[..]);
    let mut rest = &parts[..];
    while !rest.is_empty() {
        let start = rest[0].words.start;
        let count = rest.partition_point(|part| part.words.end - start <= SORTED_BY_ONE).max(1);
        let (some, others) = rest.split_at(count);
        let length = some[count - 1].words.end - start;
        let (words, spare, order);
        (words, words_left) = words_left.split_at_mut(length);
        (spare, spare_left) = spare_left.split_at_mut(length);
        (order, order_left) = order_left.split_at_mut(length);
        batches.push(SortBatch { parts: some, words, spare, order });
        rest = others;
    }
    loops.parallel_chunks(&mut batches, 1, |_, some| {
        for batch in some {
            batch.sort(keys, index, kept, left_out);
        }
    })?;
    Ok(Sorted { order, prefixes: words })
}

/// Appends a part or, if it is large, the parts of it that differ in the next digit.
fn split_large<L: ParallelLoops>(
    loops: &L,
    part: Part,
    [words, spare]: [&mut [u64]; 2],
    index: u32,
    parts: &mut Vec<Part>,
) -> Result<(), L::Stop> {
    if part.words.len() <= SORTED_BY_ONE {
        if !part.words.is_empty() {
            parts.push(part);
        }
        return Ok(());
    }
    let Part { words: range, first_digit, is_in_spare } = part;
    let (from, to) =
        if is_in_spare { (&mut *spare, &mut *words) } else { (&mut *words, &mut *spare) };
    let from = &from[range.clone()];
    let differing =
        loops.parallel_map(0..from.len(), SORTED_BY_ONE, |piece| differing(&from[piece]));
    // Pieces may agree within themselves and differ from each other.
    let of_firsts =
        from.iter().step_by(SORTED_BY_ONE).fold(0, |bits, word| bits | (word ^ from[0]));
    let differing = differing?.into_iter().fold(of_firsts, |all, bits| all | bits);
    let top = u64::BITS - differing.leading_zeros();
    if top <= index {
        parts.push(Part { words: range, first_digit, is_in_spare });
        return Ok(());
    }
    let digit = digit_bits(from.len(), top - index);
    let shift = top - digit;
    let bucket = |at: usize| ((from[at] >> shift) as usize & ((1 << digit) - 1), from[at]);
    let firsts = distribute(loops, 1 << digit, bucket, &mut to[range.clone()])?;
    for bucket in ranges(&firsts) {
        let words_of_bucket = range.start + bucket.start..range.start + bucket.end;
        let part = Part { words: words_of_bucket, first_digit, is_in_spare: !is_in_spare };
        split_large(loops, part, [&mut *words, &mut *spare], index, parts)?;
    }
    Ok(())
}

impl SortBatch<'_> {
    /// Sorts the parts, and replaces their words by the keys' prefixes.
    fn sort(&mut self, keys: &[u64], index: u32, kept: u32, left_out: u32) {
        let start = self.parts[0].words.start;
        for Part { words, first_digit, is_in_spare } in self.parts {
            let here = words.start - start..words.end - start;
            let order = &mut self.order[here.clone()];
            let (words, spare) = (&mut self.words[here.clone()], &mut self.spare[here]);
            if *is_in_spare {
                sort_part(spare, words, index, true);
            } else {
                sort_part(words, spare, index, false);
            }
            let (mut before, mut alike) = (u64::MAX, false);
            for (word, i) in words.iter_mut().zip(&mut *order) {
                *i = (*word & ((1 << index) - 1)) as u32;
                let rest = *word >> index;
                alike |= rest == before;
                before = rest;
                *word = (first_digit << kept | rest) << left_out;
            }
            if alike && left_out > 0 {
                sort_equal_prefixes(words, order, keys);
            }
        }
    }
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

/// Distributes words into their empty buckets, in order, and computes the first word of each bucket
/// and the number of words at the end.
fn distribute_sequentially(
    words: &[u64],
    bucket: impl Fn(u64) -> usize,
    firsts: &mut [u32],
    to: &mut [u64],
) {
    words.iter().for_each(|word| firsts[bucket(*word) + 1] += 1);
    let mut sum = 0;
    for first in firsts.iter_mut() {
        sum += *first;
        *first = sum;
    }
    for word in words {
        let next = &mut firsts[bucket(*word)];
        to[*next as usize] = *word;
        *next += 1;
    }
    // Each entry is now the end of its bucket, which is the first of the next one.
    firsts.rotate_right(1);
    firsts[0] = 0;
}

/// The consecutive ranges with these first indices.
fn ranges(firsts: &[u32]) -> impl Iterator<Item = Range<usize>> {
    firsts.windows(2).map(|ends| ends[0] as usize..ends[1] as usize)
}

/// The bits in which some words differ from the first one.
fn differing(words: &[u64]) -> u64 {
    words.iter().fold(0, |bits, word| bits | (word ^ words[0]))
}

/// The maximum number of bits of a digit.
const DIGIT_BITS_MAX: u32 = 11;

/// The number of bits of the next digit: about sixteen words have each value.
fn digit_bits(words: usize, left: u32) -> u32 {
    (words.ilog2() - 4).min(DIGIT_BITS_MAX).min(left)
}

/// Sorts words by their upper bits; the lowest `index` bits break ties and are in order already.
///
/// `space` has the size of `words` and gets the result if `aside`.
fn sort_part(words: &mut [u64], space: &mut [u64], index: u32, aside: bool) {
    /// Up to this number of words are sorted by comparison.
    const COMPARISON_MAX: usize = 64;
    if words.is_empty() {
        return;
    }
    let top = u64::BITS - differing(words).leading_zeros();
    if top <= index || words.len() <= COMPARISON_MAX {
        if top > index {
            words.sort_unstable();
        }
        if aside {
            space.copy_from_slice(words);
        }
        return;
    }
    let digit = digit_bits(words.len(), top - index);
    let shift = top - digit;
    let bucket = |word: u64| (word >> shift) as usize & ((1 << digit) - 1);
    let mut firsts = [0u32; (1 << DIGIT_BITS_MAX) + 1];
    let firsts = &mut firsts[..(1 << digit) + 1];
    distribute_sequentially(words, bucket, firsts, space);
    for part in ranges(firsts) {
        sort_part(&mut space[part.clone()], &mut words[part], index, !aside);
    }
}

/// Sorted keys with their original indices.
pub(crate) fn sorted_pairs(keys: &[u64]) -> Vec<(u64, u32)> {
    let mut scratch = SortScratch::default();
    let Ok(sorted) = sort(&Sequential, keys, &mut scratch);
    sorted.order.into_iter().map(|i| (keys[i as usize], i)).collect()
}
