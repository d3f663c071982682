//! Measures the time and the memory of forces on one thread, and the error of the forces.
//!
//! `tree_speed [bodies=100000] [order=mono,quad] [theta=0.7] [error=] [wanted=] [leaf=16]
//! [group=256] [repeats=3]`.
//!
//! Each argument except the first may be a comma-separated list, and all combinations are measured.
//!
//! - `error` is the error of cells, and replaces theta.
//! - `wanted` is the error of forces; suitable settings are found first.
//! - `save=FILE.npy` writes the bodies and ends; `input=FILE.npy` reads them from a file.
//! - `forces=PREFIX` writes the accelerations of measurement i into PREFIX.i, `f32` x, y and z of
//!   each body.
//! - `sample=N` is the number of bodies whose error is computed; 0: none.
//!
//! The bodies are a Plummer sphere (seed 42, softening 0.01). Times are seconds of this thread's
//! CPU time, the least of the repeats. They are for keys and sorting, cells, moments, making lists
//! and series, and the rest, which is the kernels. The peak is that of the same kernels on data in
//! the innermost cache, measured in the same run. The error is that of the acceleration, relative,
//! against a direct sum in double precision with the same softening on 1,000 bodies.
//!
//! Memory is the maximum growth of the process from before the tree until the forces are complete:
//! tree, lists and forces, without the bodies, in bytes a body. This is not a test: it asserts
//! nothing.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Instant;

use mimalloc::MiMalloc;
use springtide_barnes_hut::bodies::Bodies;
use springtide_barnes_hut::options::CellExpansion;
use springtide_barnes_hut::shared::{Accuracy, Positions, Setup};
use springtide_barnes_hut::{calibrate, forces, generate, read, speed, write};

/// The allocator of the `springtide` program.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

const SOFTENING: f64 = 0.01;

fn main() {
    let mut n = 100_000;
    let mut lists: BTreeMap<&str, String> = BTreeMap::from([
        ("order", "mono,quad".into()),
        ("theta", "0.7".into()),
        ("error", "".into()),
        ("wanted", "".into()),
        ("leaf", "16".into()),
        ("group", "256".into()),
        ("repeats", "3".into()),
        ("input", "".into()),
        ("save", "".into()),
        ("forces", "".into()),
        ("sample", "1000".into()),
    ]);
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    for argument in &arguments {
        match argument.split_once('=') {
            Some(("bodies", value)) => n = value.parse().expect("a number of bodies"),
            Some((name, value)) if lists.contains_key(name) => {
                lists.insert(name, value.to_owned());
            }
            _ => panic!("no such argument: {argument}"),
        }
    }
    let words = |name: &str| {
        lists[name].split(',').filter(|w| !w.is_empty()).map(str::to_owned).collect::<Vec<_>>()
    };
    let numbers = |name: &str| -> Vec<f64> {
        words(name).iter().map(|word| word.parse().expect("a number")).collect()
    };
    let repeats = numbers("repeats")[0] as usize;

    let bodies = match lists["input"].as_str() {
        "" => generate::plummer(n, 42),
        file => read::file(Path::new(file)).expect("a file of bodies"),
    };
    if !lists["save"].is_empty() {
        std::fs::write(&lists["save"], write::npy(&bodies)).expect("the file can be written");
        return;
    }
    let exact = direct_sums(&bodies, numbers("sample")[0] as usize);
    println!("{} bodies, softening {SOFTENING}, one thread", bodies.len());
    let mut peaks = [0.0; 2];
    for (code, name) in speed::instructions().into_iter().enumerate() {
        peaks = [CellExpansion::Mono, CellExpansion::Quad].map(|order| {
            // Code without instructions for the fused multiply-add is far slower.
            let rounds = if code == 0 { 100 } else { 1000 };
            let rate = |_| {
                let start = cpu();
                let count = speed::kernel(code, order, 256, 512, rounds);
                count as f64 / (cpu() - start)
            };
            (0..7).map(rate).fold(0.0, f64::max)
        });
        let [points, quads] = peaks.map(|peak| peak / 1e9);
        println!("peak of {name}: points {points:.2} G/s, quadrupoles {quads:.2} G/s");
    }
    let forces_to = lists["forces"].clone();
    let mut number = 0;
    let mut measure = |accuracy, error| {
        let forces = measure(&bodies, accuracy, error, repeats, peaks, &exact);
        if !forces_to.is_empty() {
            let bytes: Vec<u8> =
                forces.as_flattened().iter().flat_map(|c| c.to_le_bytes()).collect();
            std::fs::write(format!("{forces_to}.{number}"), bytes).expect("forces can be written");
        }
        number += 1;
    };
    println!(
        "order  theta/error leaf group |  sort  tree moments  walk kernels   all s | \
         points quads a body, series | G/s  of peak | memory |  rms      median   p99"
    );
    for wanted in numbers("wanted") {
        for group in numbers("group") {
            let (leaf, group) = (numbers("leaf")[0] as u32, group as u32);
            let any = Accuracy {
                order: CellExpansion::Mono,
                theta: 0.0,
                softening: SOFTENING,
                leaf,
                group,
            };
            let start = cpu();
            let choice = calibrate::choose(&bodies, any, wanted);
            let seconds = cpu() - start;
            println!("wanted {wanted:e}: found {:.2e} in {seconds:.2} s", choice.found);
            let accuracy = Accuracy { order: choice.order, ..any };
            measure(accuracy, Some(choice.cell_error));
        }
    }
    if !numbers("wanted").is_empty() {
        return;
    }
    for word in words("order") {
        let order = match word.as_str() {
            "mono" => CellExpansion::Mono,
            "series" => CellExpansion::Series,
            _ => CellExpansion::Quad,
        };
        let mut openings: Vec<_> = numbers("error").into_iter().map(|e| (0.0, Some(e))).collect();
        if openings.is_empty() {
            openings = numbers("theta").into_iter().map(|theta| (theta, None)).collect();
        }
        for (theta, error) in openings {
            for leaf in numbers("leaf") {
                for group in numbers("group") {
                    let (leaf, group) = (leaf as u32, group as u32);
                    let accuracy = Accuracy { order, theta, softening: SOFTENING, leaf, group };
                    measure(accuracy, error);
                }
            }
        }
    }
}

/// Measures, prints the results, and returns the accelerations in the order of the bodies.
fn measure(
    bodies: &Bodies,
    accuracy: Accuracy,
    cell_error: Option<f64>,
    repeats: usize,
    peaks: [f64; 2],
    exact: &[(usize, [f64; 3])],
) -> Vec<[f32; 3]> {
    let setup = Setup::new(bodies, accuracy).with_error(cell_error);
    let positions = Positions::new(&bodies.position, SOFTENING);
    let mut best: BTreeMap<&str, f64> = BTreeMap::new();
    let mut least = |what, seconds: f64| {
        let best = best.entry(what).or_insert(f64::INFINITY);
        *best = best.min(seconds);
    };
    let mut last = None;
    let mut memory = 0;
    for _ in 0..repeats {
        drop(last.take());
        let before = reset_peak();
        let mut start = cpu();
        let tree = speed::tree(&positions, &setup, &mut |stage| {
            let now = cpu();
            least(stage, now - start);
            start = now;
        });
        let start = cpu();
        let counts = speed::lists(&tree);
        let walked = cpu();
        let bytes = forces::accelerations(&tree, 0..tree.groups());
        least("walk", walked - start);
        least("forces", cpu() - walked);
        memory = memory.max(resident("VmHWM").saturating_sub(before));
        last = Some((tree, counts, bytes));
    }
    let (tree, counts, bytes) = last.expect("at least one repeat");
    let stage = |name| best.get(name).copied().unwrap_or(0.0);
    let [sort, cells, moments] = ["sort", "tree", "moments"].map(stage);
    let all = sort + cells + moments + stage("forces");
    let kernels = stage("forces") - stage("walk");
    let per_body = |count: u64| count as f64 / bodies.len() as f64;
    let ideal = counts.points as f64 / peaks[0] + counts.quads as f64 / peaks[1];
    let rate = (counts.points + counts.quads) as f64 / all / 1e9;

    let unit = (setup.mass_unit / positions.side() / positions.side()) as f32;
    let mut got = vec![[0.0; 3]; bodies.len()];
    for (row, &body) in bytes.chunks_exact(forces::BYTES_A_BODY).zip(tree.order()) {
        got[body as usize] = [0, 4, 8].map(|at| {
            let bytes = row[at..at + 4].try_into().expect("four bytes");
            f32::from_le_bytes(bytes) * unit
        });
    }
    let square = |v: [f64; 3]| v.iter().map(|c| c * c).sum::<f64>();
    let error = |(body, exact): &(usize, [f64; 3])| {
        let off = [0, 1, 2].map(|k| f64::from(got[*body][k]) - exact[k]);
        (square(off) / square(*exact)).sqrt()
    };
    let mut errors: Vec<f64> = exact.iter().map(error).collect();
    errors.sort_unstable_by(f64::total_cmp);
    let rms = (errors.iter().map(|e| e * e).sum::<f64>() / errors.len() as f64).sqrt();
    let [median, worst] = [50, 99].map(|percent| {
        let at = errors.len() * percent / 100;
        errors.get(at).copied().unwrap_or(f64::NAN)
    });
    let Accuracy { order, theta, leaf, group, .. } = accuracy;
    let order = format!("{order:?}");
    let theta = format!("{:.1e}", cell_error.unwrap_or(theta));
    println!(
        "{order:6} {theta:7} {leaf:4} {group:5} | \
         {sort:.3} {cells:.3} {moments:7.3} {:.3} {kernels:7.3} {all:7.3} | \
         {:6.0} {:5.0} {:11.1}   | {rate:.2} {:5.0} %  | {:6.0} | \
         {rms:.2e} {median:.2e} {worst:.2e}",
        stage("walk"),
        per_body(counts.points),
        per_body(counts.quads),
        per_body(counts.series),
        100.0 * ideal / all,
        memory as f64 / bodies.len() as f64,
    );
    got
}

/// Bytes of memory of this process, now or (`VmHWM`) at most since [`reset_peak`]; 0 if the system
/// does not report them.
fn resident(what: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(what)?.strip_prefix(':'));
    line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0) * 1024
}

/// Resets the maximum, and returns the present memory.
fn reset_peak() -> u64 {
    // If the system does not support it, the maximum counts from the start and is too large.
    let _ = std::fs::write("/proc/self/clear_refs", "5");
    resident("VmRSS")
}

/// The CPU time of this thread in seconds, by the kernel's account; without one, the time of the
/// clock.
fn cpu() -> f64 {
    // The account is updated when the thread yields its processor.
    std::thread::yield_now();
    let account = std::fs::read_to_string("/proc/thread-self/schedstat").ok();
    let ns = account.and_then(|text| text.split(' ').next()?.parse::<u64>().ok());
    static START: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
    let clock = || START.get_or_init(Instant::now).elapsed().as_secs_f64();
    ns.map_or_else(clock, |ns| ns as f64 * 1e-9)
}

/// Accelerations of evenly chosen bodies by all others, in double precision.
fn direct_sums(bodies: &Bodies, sample: usize) -> Vec<(usize, [f64; 3])> {
    let stride = (bodies.len() / sample.max(1)).max(1);
    let on = |i: usize| {
        let mut sum = [0.0; 3];
        for (p, mass) in bodies.position.iter().zip(&bodies.mass) {
            let d = [0, 1, 2].map(|k| p[k] - bodies.position[i][k]);
            let square = d[0] * d[0] + d[1] * d[1] + d[2] * d[2] + SOFTENING * SOFTENING;
            let weight = mass / (square * square.sqrt());
            for k in 0..3 {
                sum[k] += weight * d[k];
            }
        }
        (i, sum)
    };
    (0..bodies.len()).step_by(stride).take(sample).map(on).collect()
}
