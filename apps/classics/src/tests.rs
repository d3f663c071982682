//! The answers of the jobs: known values, the same on any number of threads, and errors of invalid
//! options.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use clap::{Args, Command};
use proptest::prelude::*;
use springtide_runtime::work::solo;
use springtide_runtime::work::{Job, Outcome, PoolConfig, ProgressReport, Registry, encode_job};

use super::cities::Map;
use super::*;

/// The job with these options, as parsed from a command line.
fn parse<J: Job + Args>(options: &str) -> J {
    let command = J::augment_args(Command::new(J::NAME));
    let words = std::iter::once(J::NAME).chain(options.split_whitespace());
    J::from_arg_matches(&command.get_matches_from(words)).unwrap()
}

/// Runs a job alone, and returns its outcome and files.
fn run<J: Job + Args>(options: &str, threads: usize) -> (Outcome, BTreeMap<String, Bytes>) {
    let mut registry = Registry::new();
    registry.job::<J>();
    let files = Arc::new(Mutex::new(BTreeMap::new()));
    let kept = files.clone();
    let note = move |note| {
        if let ProgressReport::Artifact { name, bytes } = note {
            kept.lock().unwrap().insert(name, bytes);
        }
    };
    let config = PoolConfig { threads, ..PoolConfig::default() };
    let job = encode_job(parse::<J>(options)).unwrap();
    let report = solo::run(Arc::new(registry), J::NAME, job, &config, note).unwrap();
    let files = files.lock().unwrap().clone();
    (report.outcome.unwrap_or_else(|failure| panic!("{} {options}: {failure}", J::NAME)), files)
}

/// The outcome, checked to be the same on one to four threads.
fn same<J: Job + Args>(options: &str) -> Outcome {
    let (first, files) = run::<J>(options, 1);
    for threads in 2..=4 {
        let (outcome, others) = run::<J>(options, threads);
        assert_eq!(outcome, first, "{} {options} on {threads} threads", J::NAME);
        assert_eq!(others, files, "files of {} {options} on {threads} threads", J::NAME);
    }
    first
}

fn refusal<J: Job + Args>(options: &str) -> String {
    encode_job(parse::<J>(options)).expect_err(options).message
}

#[test]
fn options_have_defaults_that_pass() {
    for check in [
        || encode_job(parse::<Fib>("")),
        || encode_job(parse::<Queens>("")),
        || encode_job(parse::<Integrate>("")),
        || encode_job(parse::<Tsp>("")),
        || encode_job(parse::<Raytracer>("")),
    ] {
        check().unwrap();
    }
}

#[test]
fn invalid_options_are_refused_with_the_valid_ones() {
    assert_eq!(
        refusal::<Fib>("--n 94"),
        "--n 94: give a value from 0 to 93 (larger numbers do not fit in 64 bits)"
    );
    for (message, start) in [
        (refusal::<Fib>("--grain 0"), "--grain 0: give a value from 1"),
        (refusal::<Queens>("--size 0"), "--size 0: give a value from 1 to 27"),
        (refusal::<Queens>("--size 32"), "--size 32: give a value from 1 to 27"),
        (refusal::<Queens>("--grain 99"), "--grain 99: give a value from 0 to 27"),
        (refusal::<Integrate>("--tolerance 0"), "--tolerance 0.0: give a value from 1e-14"),
        (refusal::<Integrate>("--tolerance NaN"), "--tolerance NaN: give a value from"),
        (refusal::<Integrate>("--grain 0"), "--grain 0.0: give a value from 1"),
        (refusal::<Tsp>("--cities 2"), "--cities 2: give a value from 3"),
        (refusal::<Raytracer>("--width 0"), "--width 0: give a value from 1"),
        (refusal::<Raytracer>("--height 20000"), "--height 20000: give a value from 1"),
        (refusal::<Raytracer>("--samples 0"), "--samples 0: give a value from 1"),
        (refusal::<Raytracer>("--grain 0"), "--grain 0: give a value from 1"),
    ] {
        assert!(message.starts_with(start), "{message}");
    }
}

#[test]
fn fib_gives_fibonacci_numbers_for_any_grain() {
    let mut numbers = (0, 1);
    for n in 0..=20 {
        for grain in [1, 4, 30] {
            let (outcome, _) = run::<Fib>(&format!("--n {n} --grain {grain}"), 1);
            assert_eq!(outcome.checksum, numbers.0, "fib({n}), grain {grain}");
        }
        numbers = (numbers.1, numbers.0 + numbers.1);
    }
    assert_eq!(same::<Fib>("--n 27 --grain 3").result["fib"], 196_418);
}

#[test]
fn queens_counts_are_the_known_ones_for_any_grain() {
    // OEIS A000170.
    for (size, solutions) in (1..).zip([1, 0, 0, 2, 10, 4, 40, 92, 352, 724]) {
        for grain in [0, 3, 11] {
            let (outcome, _) = run::<Queens>(&format!("--size {size} --grain {grain}"), 2);
            assert_eq!(outcome.checksum, solutions, "{size} queens, grain {grain}");
        }
    }
    assert_eq!(same::<Queens>("--size 10 --grain 5").result["solutions"], 724);
}

#[test]
fn the_area_is_that_of_the_closed_form() {
    let area = |(place, width): (f64, f64)| {
        width * (((1.0 - place) / width).atan() + (place / width).atan())
    };
    let exact: f64 = integrate::PEAKS.into_iter().map(area).sum();
    for tolerance in [1e-4, 1e-6, 1e-9] {
        for grain in [1.0, 100.0, 1e6] {
            let options = format!("--tolerance {tolerance} --grain {grain}");
            let (outcome, _) = run::<Integrate>(&options, 1);
            let area = outcome.result["area"].as_f64().unwrap();
            assert_eq!(area.to_bits(), outcome.checksum);
            assert!((area - exact).abs() < tolerance, "{options}: {area}, exactly {exact}");
        }
    }
}

#[test]
fn the_area_does_not_depend_on_grain_or_threads() {
    let fine = same::<Integrate>("--tolerance 1e-10 --grain 10");
    assert_eq!(same::<Integrate>("--tolerance 1e-10 --grain 1000"), fine);
    assert!(fine.result["steps"].as_u64().unwrap() > 100_000, "{}", fine.result);
}

/// The shortest tour, the first among equals, by exhaustive search.
fn shortest(map: &Map, tour: &mut Vec<u8>) -> (u32, Vec<u8>) {
    let open = map.open(tour);
    if open.is_empty() {
        return (map.lower_bound(tour, &[]), tour.clone());
    }
    let through = |city| {
        tour.push(city);
        let best = shortest(map, tour);
        tour.pop();
        best
    };
    open.into_iter().map(through).min().unwrap()
}

#[test]
fn tours_are_those_of_an_exhaustive_search() {
    for cities in 3..=9 {
        for seed in 0..3 {
            let (length, tour) = shortest(&Map::random(cities, seed), &mut vec![0]);
            for grain in [0, 4, 9] {
                let options = format!("--cities {cities} --seed {seed} --grain {grain}");
                let result = run::<Tsp>(&options, 2).0.result;
                assert_eq!(
                    result,
                    serde_json::json!({ "length": length, "tour": tour }),
                    "{options}"
                );
            }
        }
    }
}

#[test]
fn tours_do_not_depend_on_grain_or_threads() {
    let fine = same::<Tsp>("--cities 13 --grain 3");
    assert_eq!(same::<Tsp>("--cities 13 --grain 9"), fine);
}

proptest! {
    #[test]
    fn no_tour_is_shorter_than_its_bound(
        cities in 3..12u8,
        seed: u64,
        order in Just((1..12).collect::<Vec<u8>>()).prop_shuffle(),
    ) {
        let map = Map::random(cities, seed);
        let tour: Vec<u8> =
            std::iter::once(0).chain(order.into_iter().filter(|&city| city < cities)).collect();
        let length = map.lower_bound(&tour, &[]);
        let mut before = 0;
        for visited in 1..=tour.len() {
            let (begin, rest) = tour.split_at(visited);
            let least = map.lower_bound(begin, rest);
            // The bound must not fall as the tour grows.
            prop_assert!(before <= least && least <= length, "{before}, {least}, {length}");
            before = least;
        }
    }
}

fn decode(file: &[u8]) -> (u32, u32, Vec<u8>) {
    let decoder = png::Decoder::new(std::io::Cursor::new(file));
    let mut reader = decoder.read_info().unwrap();
    let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
    let info = reader.next_frame(&mut pixels).unwrap();
    assert_eq!((info.color_type, info.bit_depth), (png::ColorType::Rgb, png::BitDepth::Eight));
    pixels.truncate(info.buffer_size());
    (info.width, info.height, pixels)
}

#[test]
fn the_picture_shows_sky_floor_and_spheres() {
    let (outcome, files) = run::<Raytracer>("--width 160 --height 90 --samples 2", 2);
    let (width, height, pixels) = decode(&files["raytracer.png"]);
    assert_eq!((width, height), (160, 90));
    assert_eq!(springtide_runtime::work::checksum(pixels.iter().copied()), outcome.checksum);
    let at = |x: usize, y: usize| <[u8; 3]>::try_from(&pixels[3 * (160 * y + x)..][..3]).unwrap();
    let [red, _, blue] = at(150, 3);
    assert!(blue > red, "the sky is blue: {:?}", at(150, 3));
    let all = (0..160 * 90).map(|i| at(i % 160, i / 160));
    let redness = |[red, green, blue]: &[u8; 3]| i32::from(*red) - i32::from(*green.max(blue));
    let reddest = all.max_by_key(redness).unwrap();
    assert!(redness(&reddest) > 80, "one sphere is red: {reddest:?}");
    let floor: Vec<u8> = (0..160).map(|x| at(x, 86)[1]).collect();
    let (dark, bright) = (floor.iter().min().unwrap(), floor.iter().max().unwrap());
    assert!(*dark < 110 && *bright > 180, "the floor is chequered: {dark} to {bright}");
}

#[test]
fn the_picture_does_not_depend_on_grain_or_threads() {
    let rows = same::<Raytracer>("--width 50 --height 31 --samples 2 --grain 1");
    assert_eq!(same::<Raytracer>("--width 50 --height 31 --samples 2 --grain 7"), rows);
}

/// The same bits on every machine. A change here is a change of a job, or of arithmetic that must
/// not change.
#[test]
fn checksums_are_the_recorded_ones() {
    let sums = [
        run::<Integrate>("--tolerance 1e-9", 1).0.checksum,
        run::<Raytracer>("--width 64 --height 36 --samples 2", 1).0.checksum,
    ];
    assert_eq!(sums.map(|sum| format!("{sum:016x}")), ["3fd34342a945af66", "cf6f2fca430c9e4e"]);
}

/// Checks that the benchmark of the job with these options has the options `small`, and that it
/// runs.
fn benchmark<J: Job + Args>(options: &str, small: &str) {
    let mut job = parse::<J>(options);
    job.prepare().unwrap();
    let mut bench = job.benchmark().unwrap();
    let body = springtide_runtime::wire::encode_payload(&bench).unwrap();
    let expected = springtide_runtime::wire::encode_payload(&parse::<J>(small)).unwrap();
    assert_eq!(body, expected, "{} {options}", J::NAME);
    bench.prepare().unwrap();
    run::<J>(small, 1);
}

#[test]
fn benchmarks_are_small_problems_of_the_same_kind() {
    benchmark::<Fib>("--n 60 --grain 22", "--n 32 --grain 22");
    benchmark::<Fib>("--n 9", "--n 9");
    benchmark::<Queens>("--size 17 --grain 13", "--size 12 --grain 8");
    benchmark::<Queens>("--size 20 --grain 3", "--size 12 --grain 0");
    benchmark::<Queens>("--size 6 --grain 4", "--size 6 --grain 4");
    benchmark::<Integrate>("--grain 500", "--tolerance 3e-10 --grain 500");
    benchmark::<Tsp>("--cities 30 --seed 4", "--cities 14 --seed 4");
    benchmark::<Raytracer>("--samples 2", "--samples 2 --width 192 --height 108");
    benchmark::<Raytracer>("--samples 16 --width 8", "--samples 16 --width 8 --height 13");
}

proptest! {
    /// The declared calls of a Fibonacci task are those of its recursion.
    #[test]
    fn fib_declares_its_calls(n in 0u32..22, grain in 1u32..22) {
        fn calls(n: u32) -> u64 {
            if n < 2 { 1 } else { 1 + calls(n - 1) + calls(n - 2) }
        }
        let declared = fib::calls_declared(n, grain);
        prop_assert_eq!(declared, (n <= grain).then(|| calls(n) as f64));
    }
}
