//! Positions as changes of the former ones: bytes a body and time on one thread, by the number of
//! frames of the forecast.
//!
//! `cargo bench -p springtide-barnes-hut --bench delta`; numbers of bodies may be given (default
//! 20000 and 200000).
//!
//! Prints one line for each model, number of bodies and number of frames: the mean over ten steps
//! of the best of five times. This is not a test: it asserts only that decoding is exact.

use std::time::Instant;

use springtide_barnes_hut::delta::{self, BEFORE, PositionFrame};
use springtide_barnes_hut::loops::OneThread;
use springtide_barnes_hut::options::{BarnesHut, Model};
use springtide_barnes_hut::shared::Setup;
use springtide_barnes_hut::simulate;

const STEPS: usize = 10;
const TRIES: usize = 5;

fn main() {
    // Cargo passes options of its own, such as --bench.
    let given: Vec<usize> = std::env::args().skip(1).filter_map(|a| a.parse().ok()).collect();
    let sizes = if given.is_empty() { vec![20_000, 200_000] } else { given };
    for model in [Model::Galaxies, Model::Plummer] {
        for &bodies in &sizes {
            let frames = run(model, bodies);
            for before in 0..=BEFORE {
                measure(&format!("{model:?}, {bodies} bodies"), &frames, before);
            }
        }
    }
}

/// The positions of the first steps.
fn run(model: Model, count: usize) -> Vec<PositionFrame> {
    let job = BarnesHut { model, bodies: count, ..BarnesHut::default() };
    let bodies = job.generate();
    let setup = Setup::new(&bodies, job.accuracy());
    let mut frames = Vec::new();
    let steps = (STEPS + BEFORE) as u64;
    simulate::run(bodies, &setup, job.time_step(), steps, |simulation, _| {
        frames.push(simulation.positions(&OneThread).expect("bodies stay finite").frame().clone());
    })
    .expect("bodies of the models stay within the range of numbers");
    frames
}

fn measure(what: &str, frames: &[PositionFrame], before: usize) {
    let (mut bytes, mut encode, mut decode) = (0, 0.0, 0.0);
    for step in 1 + BEFORE..frames.len() {
        let (last, next) = (&frames[step - 1], &frames[step]);
        let past: Vec<PositionFrame> = (0..before).map(|i| frames[step - 2 - i].clone()).collect();
        let (mut encoded, mut decoded) = (f64::INFINITY, f64::INFINITY);
        for attempt in 0..TRIES {
            let start = Instant::now();
            let delta = delta::encode(last, &past, next).expect("of the same bodies");
            encoded = start.elapsed().as_secs_f64().min(encoded);
            let start = Instant::now();
            let back = delta::decode(last, &past, &delta).expect("just encoded");
            decoded = start.elapsed().as_secs_f64().min(decoded);
            assert!(back == *next, "the bits differ");
            bytes += if attempt == 0 { delta.wire_len() } else { 0 };
        }
        encode += encoded;
        decode += decoded;
    }
    let coded = ((frames.len() - 1 - BEFORE) * frames[0].len()) as f64;
    println!(
        "{what}, {} frames: {:.2} bytes a body; \
         encode {:.1} ns a body ({:.0} MB/s), decode {:.1} ns ({:.0} MB/s)",
        before + 1,
        bytes as f64 / coded,
        encode / coded * 1e9,
        12e-6 * coded / encode,
        decode / coded * 1e9,
        12e-6 * coded / decode,
    );
}
