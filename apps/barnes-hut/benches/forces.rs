//! Forces on 1e5 bodies of a Plummer sphere with one thread: time of the tree, time of the forces,
//! and their error.
//!
//! The error is against a direct sum over all pairs. `cargo bench -p springtide-barnes-hut`; a
//! first argument sets the number of bodies.
//!
//! Prints one line for each order and theta: the best of five. This is not a test: it asserts
//! nothing.

use std::time::Instant;

use springtide_barnes_hut::forces;
use springtide_barnes_hut::generate;
use springtide_barnes_hut::options::CellExpansion;
use springtide_barnes_hut::shared::{Accuracy, Positions, Setup};

const SOFTENING: f64 = 0.01;
/// The number of bodies whose forces are compared.
const SAMPLE: usize = 1000;

fn main() {
    // Cargo passes options of its own, such as --bench.
    let mut numbers = std::env::args().skip(1).filter_map(|a| a.parse::<usize>().ok());
    let n = numbers.next().unwrap_or(100_000);
    let bodies = generate::plummer(n, 42);
    let direct = direct_sum(&bodies.position, n / SAMPLE.min(n));
    println!("Plummer sphere, {n} bodies, softening {SOFTENING}, one thread, best of 5");
    for order in [CellExpansion::Mono, CellExpansion::Quad] {
        for theta in [1.0, 0.7, 0.5] {
            for group in [64, 256, 512] {
                let accuracy = Accuracy { order, theta, softening: SOFTENING, leaf: 16, group };
                measure(&bodies, accuracy, &direct);
            }
        }
    }
}

fn measure(
    bodies: &springtide_barnes_hut::bodies::Bodies,
    accuracy: Accuracy,
    direct: &[(usize, [f64; 3])],
) {
    let setup = Setup::new(bodies, accuracy);
    let (mut build, mut compute) = (f64::INFINITY, f64::INFINITY);
    let mut result = Vec::new();
    for _ in 0..5 {
        let positions = Positions::new(&bodies.position, SOFTENING);
        let start = Instant::now();
        let tree = positions.tree(&setup).expect("made from the same bodies");
        build = start.elapsed().as_secs_f64().min(build);
        let start = Instant::now();
        let bytes = forces::all(tree);
        compute = start.elapsed().as_secs_f64().min(compute);
        let unit = setup.mass_unit / positions.side() / positions.side();
        let mut acceleration = vec![[0.0; 3]; bodies.len()];
        for (row, &body) in bytes.chunks_exact(forces::BYTES_A_BODY).zip(tree.order()) {
            acceleration[body as usize] = [0, 4, 8].map(|at| {
                let bytes = row[at..at + 4].try_into().expect("four bytes");
                f64::from(f32::from_le_bytes(bytes)) * unit
            });
        }
        result = acceleration;
    }
    let mut squares: f64 = 0.0;
    for (body, exact) in direct {
        let (mut off, mut size) = (0.0, 0.0);
        for axis in 0..3 {
            off += (result[*body][axis] - exact[axis]).powi(2);
            size += exact[axis].powi(2);
        }
        squares += off / size;
    }
    let rms = (squares / direct.len() as f64).sqrt();
    let Accuracy { order, theta, group, .. } = accuracy;
    println!(
        "{order:?} theta {theta} group {group:3}: \
         tree {:7.2} ms, forces {:8.2} ms, rms error {rms:.2e}",
        build * 1e3,
        compute * 1e3
    );
}

/// Forces on every `stride`th body by all others, in double precision.
fn direct_sum(position: &[[f64; 3]], stride: usize) -> Vec<(usize, [f64; 3])> {
    let mass = 1.0 / position.len() as f64;
    let on = |i: usize| {
        let mut sum = [0.0; 3];
        for p in position {
            let d = [0, 1, 2].map(|k| p[k] - position[i][k]);
            let square = d[0] * d[0] + d[1] * d[1] + d[2] * d[2] + SOFTENING * SOFTENING;
            let weight = mass / (square * square.sqrt());
            for k in 0..3 {
                sum[k] += weight * d[k];
            }
        }
        (i, sum)
    };
    (0..position.len()).step_by(stride).map(on).collect()
}
