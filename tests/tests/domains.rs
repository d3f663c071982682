//! Barnes-Hut with domains over a grid, in virtual time: for all faults of processes and links, the
//! bodies have the bits of one process.

use std::rc::Rc;
use std::sync::Arc;

use springtide_barnes_hut::BarnesHut;
use springtide_barnes_hut::domains::Costs;
use springtide_barnes_hut::options::{CellExpansion, Distribution, Model};
use springtide_runtime::work::{PoolConfig, Registry, encode_job, solo};
use springtide_tests::number;
use springtide_tests::virtual_grid::{Controls, VirtualGridConfig, run_scripted};

use crate::simulated::after;
use crate::spmd::history;

/// Costs of a machine so slow that a step of the job below takes one about a second.
const COSTS: Costs = Costs {
    point: 1500.0,
    quad: 3000.0,
    entry: 1500.0,
    body: 2e4,
    cell: 1e4,
    number: 1e3,
    key: 2e4,
};

fn job(order: CellExpansion, steps: u64) -> BarnesHut {
    BarnesHut {
        model: Model::Plummer,
        bodies: 1200,
        steps,
        group: 8,
        leaf: 4,
        order,
        rekey_every: Some(5),
        cell_error: Some(if order == CellExpansion::Mono { 1e-2 } else { 1e-3 }),
        distribution: Distribution::Domains,
        ..BarnesHut::default()
    }
}

/// The answer of one process.
fn alone(job: &BarnesHut) -> u64 {
    let mut registry = Registry::new();
    registry.job::<BarnesHut>();
    let body = encode_job(job.clone()).expect("the job is right");
    let config = PoolConfig::default();
    let alone = solo::run(Arc::new(registry), "barnes-hut", body, &config, |_| {});
    alone.expect("it runs").outcome.expect("no failure").checksum
}

fn check<F: Future<Output = ()> + 'static>(
    shape: &VirtualGridConfig,
    job: BarnesHut,
    script: impl FnOnce(Rc<Controls>) -> F + 'static,
) -> Vec<String> {
    let right = alone(&job);
    let run = run_scripted(shape, BarnesHut { costs: Some(COSTS), ..job }, script);
    let outcome = run.outcome.as_ref().unwrap_or_else(|why| panic!("{why}; {:?}", run.said));
    assert_eq!(outcome.checksum, right, "{:?}", run.said);
    run.said
}

/// Nodes join at the start, leave in order, and one is lost: domains are redistributed each time.
#[test]
fn domains_move_with_their_processes() {
    let script = |controls: Rc<Controls>| async move {
        after(4).await;
        controls.leave(&["c0-n01"]).await;
        after(4).await;
        controls.crash("c1-n01");
        after(2).await;
        controls.declare_lost(&["c1-n01"]);
    };
    for (seed, order) in [(1, CellExpansion::Mono), (2, CellExpansion::Quad)] {
        let said = check(&VirtualGridConfig::of(&[3, 3], 2, seed), job(order, 90), script);
        let restarted =
            said.iter().any(|text| text.starts_with("the processes restart from step "));
        assert!(restarted, "{said:?}");
        for processes in ["6 processes compute", "5 processes compute", "4 processes compute"] {
            assert!(said.iter().any(|text| text.contains(processes)), "{said:?}");
        }
    }
}

/// For any events in any order: the answer is right, and the job ends.
#[test]
fn random_histories_end_with_the_right_answer() {
    let (first, count) =
        (number("SPRINGTIDE_DOMAINS_SEED", 1), number("SPRINGTIDE_DOMAINS_COUNT", 2));
    for seed in first..first + count {
        println!("seed {seed}: SPRINGTIDE_DOMAINS_SEED={seed} SPRINGTIDE_DOMAINS_COUNT=1");
        let script = move |controls| history(controls, seed, 4, 9000);
        let order = if seed % 2 == 0 { CellExpansion::Mono } else { CellExpansion::Quad };
        check(
            &VirtualGridConfig::of(&[2, 1, 1], 1 + seed as usize % 2, seed),
            job(order, 120),
            script,
        );
    }
}
