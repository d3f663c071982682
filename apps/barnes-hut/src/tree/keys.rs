//! Morton keys: of places, of the cubes that hold them, and how they are sorted. Knows neither bodies nor cells.

/// Bits of a Morton key per axis, and so the deepest level of the tree.
pub(crate) const LEVELS: u32 = 21;

/// On how many levels, from the top, two keys agree that differ in these bits; keys fill the low 63.
pub(crate) fn agreeing(differing: u64) -> u32 {
    ((differing.leading_zeros() - 1) / 3).min(LEVELS)
}

/// The Morton key of a position within half a side of the middle: bits of x, y and z in turn, x highest.
pub(crate) fn morton(position: [f32; 3]) -> u64 {
    let mut key = 0;
    for (axis, c) in position.into_iter().enumerate() {
        // The cast saturates, so that no input leaves the grid.
        let cell = ((f64::from(c) + 0.5) * f64::from(1u32 << LEVELS)) as u32;
        key |= spread(cell.min((1 << LEVELS) - 1)) << (2 - axis);
    }
    key
}

/// The least corner of the cube with this key, in sides from the middle.
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

/// Sorts keys, equal ones by index: a radix sort from the highest digit, so that all but its first pass stay within a cache.
pub(crate) fn sort(keys: Vec<u64>) -> Vec<(u64, u32)> {
    let mut pairs: Vec<(u64, u32)> = keys.into_iter().zip(0..).collect();
    let mut space = vec![(0, 0); pairs.len()];
    sort_part(&mut pairs, &mut space, false);
    pairs
}

/// Sorts these, of which equal keys are in order, with as much space beside; to be found there if `aside`.
fn sort_part(pairs: &mut [(u64, u32)], space: &mut [(u64, u32)], aside: bool) {
    /// So many are sorted by comparing them.
    const FEW: usize = 256;
    /// Buckets of the first pass and of later ones.
    const MOST: usize = 1 << 11;
    const SOME: usize = 1 << 8;
    let Some(&(first, _)) = pairs.first() else { return };
    let differing = pairs.iter().fold(0, |bits, (key, _)| bits | (key ^ first));
    if differing == 0 || pairs.len() <= FEW {
        if differing != 0 {
            pairs.sort_unstable();
        }
        if aside {
            space.copy_from_slice(pairs);
        }
        return;
    }
    let buckets = if pairs.len() > MOST * 32 { MOST } else { SOME };
    let shift = (u64::BITS - differing.leading_zeros()).saturating_sub(buckets.ilog2());
    let bucket = |key: u64| (key >> shift) as usize & (buckets - 1);
    let mut ends = [0u32; MOST];
    let ends = &mut ends[..buckets];
    for &(key, _) in pairs.iter() {
        ends[bucket(key)] += 1;
    }
    let mut sum = 0;
    for start in ends.iter_mut() {
        sum += std::mem::replace(start, sum);
    }
    for &pair in pairs.iter() {
        let end = &mut ends[bucket(pair.0)];
        space[*end as usize] = pair;
        *end += 1;
    }
    let mut start = 0;
    for &end in ends.iter() {
        let part = start..end as usize;
        if !part.is_empty() {
            sort_part(&mut space[part.clone()], &mut pairs[part], !aside);
        }
        start = end as usize;
    }
}
