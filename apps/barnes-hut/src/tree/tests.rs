//! Tests of the structure of trees, and of keys, sums and roots.

use proptest::prelude::*;
use springtide_runtime::forkjoin::Pool;

use super::keys::{sort_by, spread};
use super::value::fifth_root;
use super::*;
use crate::bodies::Bodies;
use crate::generate;
use crate::setup::Accuracy;

fn tree(bodies: &Bodies, leaf: u32, group: u32) -> BodyTree {
    let accuracy =
        Accuracy { order: CellExpansion::Quad, theta: 0.7, softening: 0.01, leaf, group };
    BodyTree::build(&Positions::new(&bodies.position, 0.01), &Setup::new(bodies, accuracy))
}

proptest! {
    #[test]
    fn keys_are_sorted_and_equal_ones_keep_their_order(
        lengths in prop::collection::vec((0u32..64, 0usize..700), 0..12),
        seed in any::<u64>(),
        bits in 15..=u64::BITS,
    ) {
        // Runs of keys that differ in their lowest bits only, or in many.
        let mut next = seed;
        let mut keys = Vec::new();
        for (bits, length) in lengths {
            let run = next;
            for _ in 0..length {
                next = next.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                keys.push((run ^ (next >> 1 >> (63 - bits))) >> 1);
            }
        }
        let mut wanted: Vec<(u64, u32)> = keys.iter().copied().zip(0..).collect();
        wanted.sort_unstable();
        let mut scratch = SortScratch::default();
        let Ok(Sorted { order, prefixes }) = sort_by(&Sequential, &keys, bits, &mut scratch);
        prop_assert_eq!(&sorted_pairs(&keys), &wanted);
        prop_assert!(order.iter().copied().eq(wanted.iter().map(|pair| pair.1)));
        // Cells depend on the levels on which neighbours agree, and the octants below.
        for at in 1..prefixes.len() {
            let level = agreeing(wanted[at - 1].0 ^ wanted[at].0);
            prop_assert_eq!(agreeing(prefixes[at - 1] ^ prefixes[at]), level);
            if level < LEVELS {
                let octant = |key: u64| key >> (3 * (LEVELS - 1 - level));
                prop_assert_eq!(octant(prefixes[at - 1]), octant(wanted[at - 1].0));
                prop_assert_eq!(octant(prefixes[at]), octant(wanted[at].0));
            }
        }
    }
}

/// Every loop over these bodies has several pieces, and some parts of the keys are large.
#[test]
fn trees_have_the_same_bits_on_any_number_of_threads() {
    let mut bodies = generate::plummer(60_000, 3);
    // A distant body makes the box large, so that nearly all keys have the same first digit.
    bodies.push([1e4; 3], [0.0; 3], 1e-6);
    for _ in 0..100 {
        bodies.push([0.25; 3], [0.0; 3], 1e-6);
    }
    let accuracy =
        Accuracy { order: CellExpansion::Quad, theta: 0.7, softening: 0.01, leaf: 16, group: 256 };
    let setup = Setup::new(&bodies, accuracy);
    let positions = Positions::new(&bodies.position, 0.01);
    let alone = BodyTree::build(&positions, &setup);
    assert!(
        alone.order.iter().map(|i| *i as usize).collect::<std::collections::BTreeSet<_>>().len()
            == bodies.len()
    );
    for threads in [2, 3] {
        let pool = Pool::new(threads).unwrap();
        let mut scratch = TreeScratch::default();
        let (rounded, tree) = pool.run(|cx| {
            let Ok(rounded) = Positions::rounded(cx, &bodies.position, 0.01);
            let Ok(tree) =
                BodyTree::build_in_stages(cx, &rounded, &setup, &mut scratch, &mut |_| {});
            (rounded, tree)
        });
        assert_eq!(rounded.frame(), positions.frame());
        // All fields of a tree are numbers, which are equal if their texts are.
        assert!(format!("{tree:?}") == format!("{alone:?}"), "{threads} threads");
    }
}

#[test]
fn fifth_roots_are_exact_to_rounding() {
    let mut x: f64 = 1e30;
    while x > 1e-190 {
        let y = fifth_root(x);
        assert!((y * y * y * y * y / x - 1.0).abs() < 1e-14, "fifth root of {x} came out as {y}");
        x *= 0.83;
    }
    assert_eq!(fifth_root(0.0), 0.0);
}

#[test]
fn spreading_puts_each_bit_at_three_times_its_place() {
    for bit in 0..LEVELS {
        assert_eq!(spread(1 << bit), 1 << (3 * bit));
    }
    assert_eq!(morton([-0.5, -0.5, -0.5]), 0);
    assert_eq!(morton([0.5, 0.5, 0.5]), (1 << 63) - 1);
    assert_eq!(morton([0.0, -0.5, -0.5]), 1 << 62);
    for key in [0, 1, 1 << 62, 0x0123_4567_89ab_cdef] {
        assert_eq!(morton(corner(key).map(|c| c as f32)), key);
    }
    assert_eq!(morton([f32::NAN, f32::INFINITY, f32::NEG_INFINITY]), spread((1 << 21) - 1) << 1);
}

/// The invariants of every tree.
fn check(tree: &BodyTree, bodies: usize, leaf: u32, group: u32) {
    let mut seen = tree.order().to_vec();
    seen.sort_unstable();
    assert!(seen.iter().copied().eq(0..bodies as u32), "each body once");
    assert_eq!(tree.bodies(0..tree.groups()), 0..bodies);
    for g in 0..tree.groups() {
        let count = tree.bodies(g..g + 1).len();
        assert!(count >= 1 && count <= group as usize, "group {g} has {count} bodies");
    }
    let cells = &tree.cells;
    let mut children = 0;
    for i in 0..cells.links.len() {
        let own = cells.links[i].bodies();
        let points = &tree.points[own.clone()];
        let mass: f64 = points.iter().map(|p| f64::from(p[3])).sum();
        // Rounded in each cell on the way up.
        let bound = f64::from(f32::EPSILON) * f64::from(LEVELS) * mass;
        assert!((mass - f64::from(cells.points[i][3])).abs() <= bound, "cell {i}");
        let size = cells.open_below[i].sqrt() * 0.7;
        let farthest = cells.points[i][..3].iter().fold(0f32, |most, x| most.max(x.abs()));
        let half = size.max(farthest * 2f32.powi(-17)) * 2f32.powi(-12);
        for axis in 0..3 {
            let low = points.iter().map(|p| p[axis]).fold(f32::INFINITY, f32::min);
            let high = points.iter().map(|p| p[axis]).fold(f32::NEG_INFINITY, f32::max);
            assert!(high - low <= size * 1.000001, "cell {i} is {size}");
            let com = cells.points[i][axis];
            assert_eq!(cells.com[axis][i], com);
            // Rounded to steps.
            assert!(mass == 0.0 || (low - half <= com && com <= high + half), "cell {i}");
        }
        children += cells.links[i].children().len();
        if cells.links[i].children().is_empty() {
            assert!(points.len() <= leaf as usize || size <= 1e-6, "cell {i}");
        } else {
            let mut end = own.start;
            for child in cells.links[i].children() {
                assert!(child > i && child < cells.links.len());
                assert_eq!(cells.links[child].first as usize, end);
                end = cells.links[child].end as usize;
            }
            assert_eq!(end, own.end, "children of cell {i} hold its bodies");
        }
    }
    assert_eq!(children + 1, cells.links.len().max(1), "each cell but the root is one's child");
    // Blocks consist of whole groups.
    let mut end = 0;
    for g in 0..tree.groups() {
        let (group, block) = (tree.bodies(g..g + 1), tree.block(tree.bodies(g..g + 1).start));
        assert!(block.start <= group.start && group.end <= block.end, "group {g}");
        assert!(block.start == end || group.start > block.start);
        end = if group.end == block.end { block.end } else { end };
    }
    assert_eq!(end, bodies, "blocks hold all bodies");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn a_tree_satisfies_its_invariants(
        n in 1usize..6000, seed in any::<u64>(), leaf in 1u32..40, group in 1u32..300,
        same in 0usize..50,
    ) {
        let mut bodies = generate::plummer(n, seed);
        for i in 0..same.min(n) {
            bodies.position[i] = bodies.position[n - 1];
        }
        check(&tree(&bodies, leaf, group), n, leaf, group);
    }

    #[test]
    fn splitting_leaves_no_side_empty(seed in any::<u64>(), a in 0usize..1000, b in 0usize..1000) {
        let tree = tree(&generate::plummer(3000, seed), 8, 64);
        let (a, b) = (a % tree.groups(), b % tree.groups());
        let (first, last) = (a.min(b), a.max(b) + 1);
        if last - first >= 2 {
            let middle = tree.middle(first..last);
            prop_assert!(first < middle && middle < last);
        }
    }
}

#[test]
fn moments_are_those_of_the_bodies() {
    let tree = tree(&generate::plummer(500, 3), 4, 32);
    for (i, quad) in tree.cells.quads.iter().enumerate() {
        let mut direct = [0.0; 6];
        for p in &tree.points[tree.cells.links[i].bodies()] {
            let d = [0, 1, 2].map(|k| f64::from(p[k]) - f64::from(tree.cells.points[i][k]));
            let m = f64::from(p[3]);
            let pairs = [(0, 0), (1, 1), (2, 2), (0, 1), (0, 2), (1, 2)];
            for (k, (i, j)) in pairs.into_iter().enumerate() {
                direct[k] += m * d[i] * d[j];
            }
        }
        let moments = quad.moments();
        let mass = f64::from(tree.cells.points[i][3]);
        let square = f64::from(tree.cells.open_below[i]) * 0.49;
        for k in 0..6 {
            // Rounded to steps, about a place that is rounded itself.
            let bound = 1.001 * (2f64.powi(-12) + 3.0 * 2f64.powi(-24)) * mass * square;
            assert!((direct[k] - moments[k]).abs() < bound, "{direct:?} {moments:?}");
        }
    }
}

#[test]
fn one_point_and_no_body() {
    let mut bodies = Bodies::default();
    check(&tree(&bodies, 16, 64), 0, 16, 64);
    for _ in 0..200 {
        bodies.push([3.0, 4.0, 5.0], [0.0; 3], 1.0);
    }
    check(&tree(&bodies, 16, 64), 200, 16, 64);
}
