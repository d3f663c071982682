//! Whole grids in virtual time: answers, determinism, what stealing achieves.

use std::time::Duration;

use springtide_classics::Queens;
use springtide_runtime::work::steal::StealPolicy;
use springtide_tests::modelled::Modelled;
use springtide_tests::virtual_grid::{Run, Shape, run};

fn two_by_two(seed: u64) -> Shape {
    Shape {
        clusters: vec![2, 2],
        threads: 1,
        round_trip: Duration::from_millis(20),
        policy: StealPolicy::ClusterAware,
        seed,
    }
}

fn queens(seed: u64) -> Run {
    run(&two_by_two(seed), Queens { size: 8, grain: 3 })
}

#[test]
fn queens_on_two_by_two_gives_the_answer_and_one_history_a_seed() {
    let first = queens(1);
    let outcome = first.outcome.expect("no failure");
    assert_eq!(outcome.result["solutions"], 92);
    assert_eq!(queens(1).hash, first.hash, "the same seed gives the same history");
    // Another process must find this hash too: see `the_history_is_the_same_in_another_process`.
    println!("hash {:016x}", first.hash);
}

/// Started by the test below, in another process.
#[test]
fn print_the_hash() {
    if let Ok(seed) = std::env::var("SPRINGTIDE_TEST_HASH_SEED") {
        println!("history={:016x}", queens(seed.parse().expect("a number")).hash);
    }
}

#[test]
fn the_history_is_the_same_in_another_process() {
    for seed in [1, 2, 3] {
        let here = format!("history={:016x}", queens(seed).hash);
        let output = std::process::Command::new(std::env::current_exe().expect("this binary"))
            .args(["virtual_time::print_the_hash", "--exact", "--nocapture"])
            .env("SPRINGTIDE_TEST_HASH_SEED", seed.to_string())
            .output()
            .expect("this binary runs again");
        let there = String::from_utf8_lossy(&output.stdout);
        assert!(there.contains(&here), "seed {seed}: here {here}, there:\n{there}");
    }
}

fn efficiency(clusters: &[u32], policy: StealPolicy, seed: u64) -> f64 {
    let shape = Shape {
        clusters: clusters.to_vec(),
        threads: 1,
        round_trip: Duration::from_millis(20),
        policy,
        seed,
    };
    let job = Modelled { rounds: 3, leaves: 2048, leaf_us: 20_000 };
    let work = job.work();
    let run = run(&shape, job);
    run.outcome.expect("no failure");
    let workers: u32 = clusters.iter().sum();
    work.as_secs_f64() / (f64::from(workers) * run.wall.as_secs_f64())
}

#[test]
fn cluster_aware_stealing_hides_wide_area_latency_and_random_stealing_does_not() {
    for seed in 1..=2 {
        let one = efficiency(&[16], StealPolicy::ClusterAware, seed);
        let aware = efficiency(&[4, 4, 4, 4], StealPolicy::ClusterAware, seed);
        let random = efficiency(&[4, 4, 4, 4], StealPolicy::Random, seed);
        println!("seed {seed}: one cluster {one:.3}, cluster-aware {aware:.3}, random {random:.3}");
        assert!(aware >= 0.9 * one, "cluster-aware {aware:.3}, one cluster {one:.3}");
    }
}
