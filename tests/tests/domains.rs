//! Barnes-Hut with its bodies dealt out over a grid, in virtual time: whatever happens to processes and links, bodies end where they do
//! on one process, bit for bit.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use springtide_barnes_hut::BarnesHut;
use springtide_barnes_hut::domains::Costs;
use springtide_barnes_hut::options::{Distribution, Model, Order};
use springtide_runtime::random::SplitMix;
use springtide_runtime::work::{PoolConfig, Registry, encode_job, solo};
use springtide_tests::number;
use springtide_tests::virtual_grid::{Hands, Shape, run_scripted};
use tokio::time::sleep;

use crate::simulated::after;
use crate::spmd::cut;

/// Of a machine so slow that a step of the job below takes a second or so of one.
const COSTS: Costs =
    Costs { point: 1500.0, quad: 3000.0, entry: 1500.0, body: 2e4, cell: 1e4, key: 2e4 };

fn job(order: Order, steps: u64) -> BarnesHut {
    BarnesHut {
        model: Model::Plummer,
        bodies: 1200,
        steps,
        group: 8,
        leaf: 4,
        order,
        rekey_every: 3,
        cell_error: Some(if order == Order::Mono { 1e-2 } else { 1e-3 }),
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
    shape: &Shape,
    job: BarnesHut,
    script: impl FnOnce(Rc<Hands>) -> F + 'static,
) -> Vec<String> {
    let right = alone(&job);
    let run = run_scripted(shape, BarnesHut { costs: Some(COSTS), ..job }, script);
    let outcome = run.outcome.as_ref().unwrap_or_else(|why| panic!("{why}; {:?}", run.said));
    assert_eq!(outcome.checksum, right, "{:?}", run.said);
    run.said
}

/// Nodes come at the start, leave in order, and one is lost: domains are dealt out anew each time.
#[test]
fn domains_move_with_their_processes() {
    let script = |hands: Rc<Hands>| async move {
        after(4).await;
        hands.leave(&["c0-n01"]).await;
        after(4).await;
        hands.crash("c1-n01");
        after(2).await;
        hands.declare_lost(&["c1-n01"]);
    };
    for (seed, order) in [(1, Order::Mono), (2, Order::Quad)] {
        let said = check(&Shape::of(&[2, 2], 2, seed), job(order, 90), script);
        let anew = said.iter().any(|text| text.starts_with("the processes begin anew from step "));
        assert!(anew, "{said:?}");
        assert!(said.iter().any(|text| text.contains(" 8 processes compute")), "{said:?}");
        assert!(said.iter().any(|text| text.contains(" 6 processes compute")), "{said:?}");
        assert!(said.iter().any(|text| text.contains(" 4 processes compute")), "{said:?}");
    }
}

/// Whatever happens, in whatever order: the answer is right, and the job ends.
#[test]
fn random_histories_end_with_the_right_answer() {
    let (first, count) =
        (number("SPRINGTIDE_DOMAINS_SEED", 1), number("SPRINGTIDE_DOMAINS_COUNT", 2));
    for seed in first..first + count {
        println!("seed {seed}: SPRINGTIDE_DOMAINS_SEED={seed} SPRINGTIDE_DOMAINS_COUNT=1");
        let script = move |hands: Rc<Hands>| async move {
            let mut random = SplitMix(seed);
            // The nodes that are there, and may go.
            let mut others = hands.nodes().split_off(1);
            let mut root = hands.nodes()[0].clone();
            for _ in 0..4 {
                sleep(Duration::from_millis(random.below(9000) as u64)).await;
                let at = random.below(others.len());
                match random.below(4) {
                    0 if others.len() > 2 => {
                        let node = others.remove(at);
                        hands.leave(&[node.as_str()]).await;
                    }
                    1 if others.len() > 2 => {
                        let node = others.remove(at);
                        hands.crash(node.as_str());
                        sleep(Duration::from_millis(random.below(3000) as u64)).await;
                        hands.declare_lost(&[node.as_str()]);
                    }
                    2 => {
                        // Some are longer than links live without a word.
                        let time = [4000, 25_000][random.below(2)];
                        let time = Duration::from_millis(random.below(time) as u64);
                        cut(
                            &hands,
                            [("c0", "c1"), ("c1", "c2"), ("c0", "c2")][random.below(3)],
                            time,
                        )
                        .await;
                    }
                    _ => {
                        let node = std::mem::replace(&mut others[at], root);
                        hands.move_root(node.as_str(), random.below(2) == 0).await;
                        root = node;
                    }
                }
            }
        };
        let order = if seed % 2 == 0 { Order::Mono } else { Order::Quad };
        check(&Shape::of(&[2, 1, 1], 1 + seed as usize % 2, seed), job(order, 120), script);
    }
}
