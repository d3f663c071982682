//! Tests of forces on groups.

use proptest::prelude::*;

use super::*;
use crate::bodies::Bodies;
use crate::generate;
use crate::setup::{Accuracy, CellExpansion, Setup};
use crate::shared::Positions;

const EXACT: Accuracy =
    Accuracy { order: CellExpansion::Quad, theta: 0.0, softening: 0.01, leaf: 16, group: 64 };

/// Acceleration and potential of each body in the user's units, from the tree.
fn by_tree(bodies: &Bodies, accuracy: Accuracy) -> Vec<[f64; 4]> {
    by_setup(bodies, Setup::new(bodies, accuracy), accuracy)
}

fn by_setup(bodies: &Bodies, setup: Setup, accuracy: Accuracy) -> Vec<[f64; 4]> {
    let positions = Positions::new(&bodies.position, accuracy.softening);
    let tree = positions.tree(&setup).unwrap();
    let unit = setup.mass_unit / positions.side();
    let units = [unit / positions.side(), unit / positions.side(), unit / positions.side(), unit];
    let mut out = vec![[0.0; 4]; bodies.len()];
    for (row, &body) in all(tree).chunks_exact(BYTES_A_BODY).zip(tree.order()) {
        let felt = super::row(row);
        out[body as usize] = [0, 1, 2, 3].map(|k| felt[k] * units[k]);
    }
    out
}

/// Acceleration and potential from all pairs in double precision, at the exact positions and
/// masses.
fn by_pairs(bodies: &Bodies, softening: f64) -> Vec<[f64; 4]> {
    let on = |i: usize| {
        let mut sum = [0.0; 4];
        for j in (0..bodies.len()).filter(|j| *j != i) {
            let d = [0, 1, 2].map(|k| bodies.position[j][k] - bodies.position[i][k]);
            let square = d[0] * d[0] + d[1] * d[1] + d[2] * d[2] + softening * softening;
            if square > 0.0 {
                let weight = bodies.mass[j] / (square * square.sqrt());
                for k in 0..3 {
                    sum[k] += weight * d[k];
                }
                sum[3] -= weight * square;
            }
        }
        sum
    };
    (0..bodies.len()).map(on).collect()
}

fn rms(got: &[[f64; 4]], exact: &[[f64; 4]], columns: Range<usize>) -> f64 {
    let mut sum = 0.0;
    for (got, exact) in got.iter().zip(exact) {
        let off: f64 = columns.clone().map(|k| (got[k] - exact[k]).powi(2)).sum();
        sum += off / columns.clone().map(|k| exact[k].powi(2)).sum::<f64>();
    }
    (sum / exact.len() as f64).sqrt()
}

#[test]
fn theta_zero_is_the_sum_over_all_pairs() {
    for bodies in [generate::plummer(2000, 5), generate::galaxies(2000, 5)] {
        for softening in [0.0, 0.01, 0.3] {
            let exact = by_pairs(&bodies, softening);
            let got = by_tree(&bodies, Accuracy { softening, ..EXACT });
            // The error of rounding positions and sums to single precision.
            assert!(rms(&got, &exact, 0..3) < 3e-5, "{}", rms(&got, &exact, 0..3));
            assert!(rms(&got, &exact, 3..4) < 3e-6, "{}", rms(&got, &exact, 3..4));
        }
    }
}

#[test]
fn errors_match_theta_and_order() {
    let bodies = generate::plummer(5000, 9);
    let exact = by_pairs(&bodies, 0.01);
    let error = |order, theta| {
        let got = by_tree(&bodies, Accuracy { order, theta, ..EXACT });
        (rms(&got, &exact, 0..3), rms(&got, &exact, 3..4))
    };
    // Upper bounds are a third above the measured errors; lower bounds show that far cells are
    // used.
    let table = [
        (CellExpansion::Mono, 0.7, 4.5e-3, 6e-4),
        (CellExpansion::Mono, 0.5, 1.4e-3, 2e-4),
        (CellExpansion::Quad, 0.7, 1.7e-3, 1.5e-4),
        (CellExpansion::Quad, 0.5, 3.5e-4, 4e-5),
        (CellExpansion::Series, 0.7, 1.8e-3, 1.6e-4),
        (CellExpansion::Series, 0.5, 3.7e-4, 5e-5),
    ];
    for (order, theta, force, potential) in table {
        let got = error(order, theta);
        assert!(got.0 < force && got.0 > force / 10.0, "{order:?} {theta}: force {got:?}");
        assert!(got.1 < potential, "{order:?} {theta}: potential {got:?}");
    }
}

#[test]
fn errors_match_the_wanted_one() {
    for bodies in [generate::plummer(5000, 9), generate::galaxies(5000, 9)] {
        let exact = by_pairs(&bodies, 0.01);
        let error = |order, part| {
            let accuracy = Accuracy { order, ..EXACT };
            let setup = Setup::new(&bodies, accuracy).with_error(Some(part));
            rms(&by_setup(&bodies, setup, accuracy), &exact, 0..3)
        };
        // Upper bounds are above the measured errors; lower bounds show that far cells are used.
        for (order, part, bound) in [
            (CellExpansion::Mono, 3e-3, 3e-3),
            (CellExpansion::Mono, 3e-4, 6e-4),
            (CellExpansion::Quad, 2e-4, 2e-4),
            (CellExpansion::Series, 2e-4, 2e-4),
        ] {
            let got = error(order, part);
            assert!(got < bound && got > bound / 20.0, "{order:?} {part}: {got}");
        }
    }
}

#[test]
fn no_body_pulls_itself_at_the_widest_angle() {
    // All mass in two far corners: a cell that contains the group has its centre of mass far away.
    let mut bodies = generate::plummer(300, 1);
    for (i, p) in bodies.position.iter_mut().enumerate() {
        let corner = if i % 10 == 0 { 0.0 } else { 100.0 };
        *p = p.map(|c| 0.01 * c + corner);
    }
    let exact = by_pairs(&bodies, 0.01);
    let got = by_tree(&bodies, Accuracy { theta: 2.0, ..EXACT });
    assert!(rms(&got, &exact, 0..3) < 0.1, "{}", rms(&got, &exact, 0..3));
}

#[test]
fn unusual_sets_of_bodies_work() {
    let mut cases = Vec::new();
    let at = |positions: &[[f64; 3]]| {
        let mut bodies = Bodies::default();
        for p in positions {
            bodies.push(*p, [0.0; 3], 2.0);
        }
        bodies
    };
    cases.push(("one", at(&[[3.0, 4.0, 5.0]])));
    cases.push(("two", at(&[[3.0, 4.0, 5.0], [4.0, 4.0, 5.0]])));
    cases.push(("coincident", at(&[[1.0; 3], [1.0; 3], [0.0; 3], [1.0; 3]])));
    cases.push(("one point", at(&[[7.0; 3]; 100])));
    cases.push(("on a line", at(&[[0.0; 3], [1e-3, 0.0, 0.0], [1.0, 0.0, 0.0]])));
    let mut massless = at(&[[0.0; 3], [1.0; 3], [2.0, 0.0, 1.0]]);
    massless.mass = vec![0.0; 3];
    cases.push(("massless", massless));
    let mut huge = generate::plummer(200, 2);
    for p in &mut huge.position {
        *p = p.map(|c| 1e99 * c + 3e99);
    }
    cases.push(("huge", huge.clone()));
    huge.mass = vec![1e98; 200];
    cases.push(("huge and heavy", huge));
    let mut tiny = generate::plummer(200, 2);
    for p in &mut tiny.position {
        *p = p.map(|c| 1e-60 * c);
    }
    cases.push(("tiny", tiny));

    for (name, bodies) in cases {
        for (softening, theta) in [(0.0, 0.0), (0.0, 0.3), (0.05, 0.3)] {
            for (order, error) in [
                (CellExpansion::Mono, None),
                (CellExpansion::Quad, None),
                (CellExpansion::Mono, Some(1e-4)),
                (CellExpansion::Quad, Some(1e-4)),
                (CellExpansion::Series, None),
                (CellExpansion::Series, Some(1e-4)),
            ] {
                let accuracy = Accuracy { order, theta, softening, leaf: 4, group: 8 };
                let setup = Setup::new(&bodies, accuracy).with_error(error);
                let got = by_setup(&bodies, setup, accuracy);
                let exact = by_pairs(&bodies, softening);
                // If all bodies are within a millionth of the softening length, forces count as
                // zero.
                let floor = if softening > 0.0 { 1e-9 * bodies.total_mass() } else { 0.0 };
                let scale = exact
                    .iter()
                    .map(|e| [0, 1, 2].map(|k| e[k].abs()).into_iter().fold(0.0, f64::max))
                    .fold(0.0, f64::max);
                for (i, (got, exact)) in got.iter().zip(&exact).enumerate() {
                    for k in 0..3 {
                        assert!(
                            (got[k] - exact[k]).abs() <= 0.01 * scale + floor,
                            "{name}, softening {softening}, theta {theta}: body {i} feels {got:?}, \
                             not {exact:?}"
                        );
                    }
                    let off = (got[3] - exact[3]).abs();
                    assert!(off <= 0.01 * exact[3].abs(), "{name}: {got:?} {exact:?}");
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20))]
    #[test]
    fn any_split_gives_the_same_bits(
        n in 1usize..3000,
        seed in any::<u64>(),
        order in prop::sample::select(vec![
            CellExpansion::Mono,
            CellExpansion::Quad,
            CellExpansion::Series,
        ]),
        theta in 0.2f64..1.2,
        leaf in 1u32..32,
        group in 1u32..200,
        error in prop::option::of(1e-4f64..0.1),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..20),
    ) {
        let bodies = generate::galaxies(n, seed);
        let accuracy = Accuracy { order, theta, softening: 0.02, leaf, group };
        let setup = Setup::new(&bodies, accuracy).with_error(error);
        let positions = Positions::new(&bodies.position, 0.02);
        let tree = positions.tree(&setup).unwrap();
        let whole = all(tree);

        // Another node decodes the objects from the wire and splits otherwise.
        let copy: Positions =
            serde_json::from_slice(&serde_json::to_vec(&positions).unwrap()).unwrap();
        let setup: Setup = serde_json::from_slice(&serde_json::to_vec(&setup).unwrap()).unwrap();
        let tree = copy.tree(&setup).unwrap();
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(tree.groups() + 1)).collect();
        cuts.extend([0, tree.groups()]);
        cuts.sort_unstable();
        let mut parts = Vec::new();
        for range in cuts.windows(2).rev() {
            let kernels = Kernel::all();
            let kernel = kernels[parts.len() % kernels.len()];
            parts.push(compute_with(tree, range[0]..range[1], kernel, true));
        }
        parts.reverse();
        prop_assert_eq!(whole.len(), n * BYTES_A_BODY);
        prop_assert!(whole == parts.concat(), "the bits differ");
    }
}
