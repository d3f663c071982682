//! Forces on groups of bodies: one list of interactions a group, in single precision relative to the group's middle.
//!
//! A cell is far from a group when its size is less than theta times the distance from its centre of mass to the nearest point
//! of the box around the group's bodies, so that the text-book criterion holds for each of them; a cell that holds bodies
//! of the group is never far, whatever theta. What comes out for a group depends on the tree alone: its list has the tree's
//! order, sums within a chunk of the list are in single precision and across chunks in double.
//!
//! Knows nothing of tasks. Source of the scheme: J. E. Barnes, J. Comput. Phys. 87, 161 (1990); of the quadrupole of a
//! softened point: the second term of the Taylor series of 1 / sqrt(d^2 + eps^2), trace included.

use std::ops::Range;

use crate::kernel::{CHUNK, Kernel, LANES, Lanes, POINT_BLIND, Quad, Sums};
use crate::tree::Tree;

/// Bytes a body in the output of [`compute`]: acceleration x, y, z and potential as little-endian `f32`, in units of the
/// box. Single precision suffices: it is three orders finer than what theta leaves, and sums over bodies are in double.
pub const BYTES_A_BODY: usize = 16;

/// Forces on the bodies of these groups, [`BYTES_A_BODY`] each, in the tree's order.
///
/// # Panics
/// If the range does not lie within the tree's groups.
pub fn compute(tree: &Tree, groups: Range<usize>) -> Vec<u8> {
    compute_with(tree, groups, Kernel::best())
}

/// Forces on all bodies: what one thread does alone.
pub fn all(tree: &Tree) -> Vec<u8> {
    compute(tree, 0..tree.groups())
}

pub(crate) fn compute_with(tree: &Tree, groups: Range<usize>, kernel: Kernel) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(tree.bodies(groups.clone()).len() * BYTES_A_BODY);
    let mut lists = Lists::default();
    for group in groups {
        lists.one_group(tree, tree.bodies(group..group + 1), kernel, &mut bytes);
    }
    bytes
}

/// Lists of one group; kept from group to group for their memory.
#[derive(Default)]
pub(crate) struct Lists {
    /// Bodies and cells that act as points: position relative to the group's middle, and mass.
    points: Vec<[f32; 4]>,
    /// Far cells with their second moments.
    quads: Vec<Quad>,
    /// The group's bodies, relative to its middle, padded to whole lanes.
    sinks: Vec<Lanes>,
    /// What they feel.
    sums: Vec<Sums>,
}

impl Lists {
    /// Makes the lists for the group of these bodies; returns how many entries of each kind there are.
    pub(crate) fn fill(&mut self, tree: &Tree, bodies: Range<usize>) -> (usize, usize) {
        let members = &tree.points[bodies.clone()];
        let mut low = [f32::INFINITY; 3];
        let mut high = [f32::NEG_INFINITY; 3];
        for p in members {
            for axis in 0..3 {
                low[axis] = low[axis].min(p[axis]);
                high[axis] = high[axis].max(p[axis]);
            }
        }
        let middle = [0, 1, 2].map(|axis| 0.5 * (low[axis] + high[axis]));

        self.sinks.clear();
        for chunk in members.chunks(LANES) {
            let mut lanes = [[0.0; LANES]; 3];
            for (i, p) in chunk.iter().enumerate() {
                for axis in 0..3 {
                    lanes[axis][i] = p[axis] - middle[axis];
                }
            }
            self.sinks.push(lanes);
        }
        self.walk(tree, &bodies, low.map(f64::from), high.map(f64::from), middle);
        (self.points.len(), self.quads.len())
    }

    fn one_group(&mut self, tree: &Tree, bodies: Range<usize>, kernel: Kernel, out: &mut Vec<u8>) {
        self.fill(tree, bodies.clone());
        let members = &tree.points[bodies];
        self.sums.clear();
        self.sums.resize(self.sinks.len(), [[0.0; LANES]; 4]);
        let eps = tree.softening_squared;
        for chunk in self.points.chunks(CHUNK) {
            kernel.points(chunk, &self.sinks, eps, &mut self.sums);
        }
        for chunk in self.quads.chunks(CHUNK / 4) {
            kernel.quads(chunk, &self.sinks, eps, &mut self.sums);
        }

        // A body is in its own list: it does not pull itself, but its own potential, as the kernel rounds it, has to go.
        let cube = eps * eps.sqrt();
        let own = |mass: f32| if cube > POINT_BLIND { mass / cube * eps } else { 0.0 };
        for (i, p) in members.iter().enumerate() {
            let sum = &self.sums[i / LANES];
            let lane = i % LANES;
            for component in &sum[..3] {
                out.extend_from_slice(&(component[lane] as f32).to_le_bytes());
            }
            let potential = sum[3][lane] + f64::from(own(p[3]));
            out.extend_from_slice(&(potential as f32).to_le_bytes());
        }
    }

    /// Fills the lists, walking the tree once in its order.
    fn walk(
        &mut self,
        tree: &Tree,
        bodies: &Range<usize>,
        low: [f64; 3],
        high: [f64; 3],
        middle: [f32; 3],
    ) {
        self.points.clear();
        self.quads.clear();
        let origin = middle.map(f64::from);
        let mut at = 0;
        while let Some(cell) = tree.cells.get(at) {
            if cell.mass <= 0.0 {
                at = cell.next as usize;
                continue;
            }
            let outside = cell.end as usize <= bodies.start || cell.first as usize >= bodies.end;
            let mut distance = 0.0;
            for axis in 0..3 {
                let c = cell.com[axis];
                let d = (low[axis] - c).max(c - high[axis]).max(0.0);
                distance += d * d;
            }
            if outside && distance > cell.open_below {
                let [x, y, z] = [0, 1, 2].map(|axis| (cell.com[axis] - origin[axis]) as f32);
                let mass = cell.mass as f32;
                match tree.moments.get(at) {
                    Some(moments) if cell.end - cell.first > 1 => {
                        self.quads.push(Quad::new([x, y, z], mass, moments));
                    }
                    _ => self.points.push([x, y, z, mass]),
                }
                at = cell.next as usize;
            } else if cell.leaf {
                for p in &tree.points[cell.first as usize..cell.end as usize] {
                    self.points.push([p[0] - middle[0], p[1] - middle[1], p[2] - middle[2], p[3]]);
                }
                at = cell.next as usize;
            } else {
                at += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::bodies::Bodies;
    use crate::generate;
    use crate::options::Order;
    use crate::shared::{Accuracy, Positions, Setup};

    const EXACT: Accuracy =
        Accuracy { order: Order::Quad, theta: 0.0, softening: 0.01, leaf: 16, group: 64 };

    /// Acceleration and potential of each body in the user's units, from the tree.
    fn by_tree(bodies: &Bodies, accuracy: Accuracy) -> Vec<[f64; 4]> {
        let setup = Setup::new(bodies, accuracy);
        let positions = Positions::new(&bodies.position, accuracy.softening);
        let tree = positions.tree(&setup).unwrap();
        let unit = setup.mass_unit / positions.side();
        let units =
            [unit / positions.side(), unit / positions.side(), unit / positions.side(), unit];
        let mut out = vec![[0.0; 4]; bodies.len()];
        for (row, &body) in all(tree).chunks_exact(BYTES_A_BODY).zip(tree.order()) {
            out[body as usize] = [0, 1, 2, 3].map(|k| {
                let bytes = row[4 * k..4 * k + 4].try_into().unwrap();
                f64::from(f32::from_le_bytes(bytes)) * units[k]
            });
        }
        out
    }

    /// The same from all pairs in double precision, at the positions and masses as given.
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
                // What rounding of positions and sums to single precision leaves.
                assert!(rms(&got, &exact, 0..3) < 3e-5, "{}", rms(&got, &exact, 0..3));
                assert!(rms(&got, &exact, 3..4) < 3e-6, "{}", rms(&got, &exact, 3..4));
            }
        }
    }

    #[test]
    fn errors_are_what_theta_and_order_promise() {
        let bodies = generate::plummer(5000, 9);
        let exact = by_pairs(&bodies, 0.01);
        let error = |order, theta| {
            let got = by_tree(&bodies, Accuracy { order, theta, ..EXACT });
            (rms(&got, &exact, 0..3), rms(&got, &exact, 3..4))
        };
        // Upper bounds a third above what is measured; lower bounds show that far cells are used at all.
        let table = [
            (Order::Mono, 0.7, 4.5e-3, 6e-4),
            (Order::Mono, 0.5, 1.4e-3, 2e-4),
            (Order::Quad, 0.7, 1.7e-3, 1.5e-4),
            (Order::Quad, 0.5, 3.5e-4, 4e-5),
        ];
        for (order, theta, force, potential) in table {
            let got = error(order, theta);
            assert!(got.0 < force && got.0 > force / 10.0, "{order:?} {theta}: force {got:?}");
            assert!(got.1 < potential, "{order:?} {theta}: potential {got:?}");
        }
    }

    #[test]
    fn no_body_pulls_itself_at_the_widest_angle() {
        // All mass in two far corners: a cell that holds the group has its centre of mass far away.
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
    fn odd_sets_of_bodies_work() {
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
                for order in [Order::Mono, Order::Quad] {
                    let accuracy = Accuracy { order, theta, softening, leaf: 4, group: 8 };
                    let got = by_tree(&bodies, accuracy);
                    let exact = by_pairs(&bodies, softening);
                    // Where all bodies are within a millionth of the softening length, forces count as none.
                    let floor = if softening > 0.0 { 1e-9 * bodies.total_mass() } else { 0.0 };
                    let scale = exact
                        .iter()
                        .map(|e| [0, 1, 2].map(|k| e[k].abs()).into_iter().fold(0.0, f64::max))
                        .fold(0.0, f64::max);
                    for (i, (got, exact)) in got.iter().zip(&exact).enumerate() {
                        for k in 0..3 {
                            assert!(
                                (got[k] - exact[k]).abs() <= 0.01 * scale + floor,
                                "{name}, softening {softening}, theta {theta}: body {i} feels {got:?}, not {exact:?}"
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
            quad in any::<bool>(),
            theta in 0.2f64..1.2,
            leaf in 1u32..32,
            group in 1u32..200,
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..20),
        ) {
            let bodies = generate::galaxies(n, seed);
            let order = if quad { Order::Quad } else { Order::Mono };
            let accuracy = Accuracy { order, theta, softening: 0.02, leaf, group };
            let setup = Setup::new(&bodies, accuracy);
            let positions = Positions::new(&bodies.position, 0.02);
            let tree = positions.tree(&setup).unwrap();
            let whole = all(tree);

            // Another node has the objects from the wire and splits otherwise.
            let copy: Positions =
                serde_json::from_slice(&serde_json::to_vec(&positions).unwrap()).unwrap();
            let setup: Setup = serde_json::from_slice(&serde_json::to_vec(&setup).unwrap()).unwrap();
            let tree = copy.tree(&setup).unwrap();
            let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(tree.groups() + 1)).collect();
            cuts.extend([0, tree.groups()]);
            cuts.sort_unstable();
            let mut parts = Vec::new();
            for range in cuts.windows(2).rev() {
                parts.push(compute_with(tree, range[0]..range[1], Kernel::Portable));
            }
            parts.reverse();
            prop_assert_eq!(whole.len(), n * BYTES_A_BODY);
            prop_assert!(whole == parts.concat(), "the bits differ");
        }
    }
}
