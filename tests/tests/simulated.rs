//! Whole grids in virtual time, with all their actors.

use std::collections::BTreeMap;
use std::time::Duration;

use springtide_actors::job::JobParams;
use springtide_runtime::id::NodeId;
use springtide_runtime::net::MemoryConfig;
use springtide_runtime::work::Registry;
use springtide_simulator::apps::Tree;
use springtide_simulator::machines::Machine;
use springtide_simulator::{Ended, Grid, Layout, Place, simulate};
use tokio::time::sleep;

fn layout(clusters: &[u32], seed: u64) -> Layout {
    let place = |(at, nodes): (usize, &u32)| Place {
        name: format!("c{at}").into(),
        nodes: *nodes,
        machine: Machine { threads: 1, speed: 1.0 },
    };
    Layout {
        clusters: clusters.iter().enumerate().map(place).collect(),
        network: MemoryConfig::default(),
        seed,
        leave_within: Duration::from_secs(30),
    }
}

fn registry() -> Registry {
    let mut registry = Registry::new();
    registry.job::<Tree>();
    registry
}

const TREE: Tree = Tree { rounds: 6, leaves: 256, leaf_us: 100_000, result_bytes: 100 };

fn params(seed: u64) -> JobParams {
    let mut params = JobParams { seed, period_ms: 2000, ..JobParams::default() };
    params.settings.period_s = 2.0;
    params
}

/// The root's node, as it said last.
fn root(ended: &Ended) -> Vec<String> {
    let says = ended.said.iter().filter_map(|(_, text)| text.strip_prefix("the root runs on "));
    says.map(|text| text.split(',').next().unwrap_or(text).to_owned()).collect()
}

fn run(clusters: &[u32], seed: u64) -> (Ended, u64) {
    let layout = layout(clusters, seed);
    simulate(|| async move {
        let grid = Grid::start(&layout, registry()).await;
        let run = grid.submit(TREE, params(seed), None).await.expect("it is taken");
        let ended = run.ended(Duration::from_secs(3600)).await.expect("it ends");
        let digest = grid.digest(&ended.records);
        (ended, digest)
    })
}

#[test]
fn one_seed_gives_one_history_of_a_whole_grid() {
    let (first, digest) = run(&[3, 3], 1);
    let outcome = first.ended.outcome.as_ref().expect("no failure");
    assert_eq!(outcome.checksum, TREE.answer());
    assert_eq!(first.iterations.len(), 6);
    let ideal = TREE.work().as_secs_f64() / 6.0;
    let took: f64 = first.iterations.iter().sum();
    println!("{took:.1} s, ideal {ideal:.1} s; {} records", first.records.len());
    assert!(took < ideal * 1.3, "{took} s, of at least {ideal} s");
    let (again, same) = run(&[3, 3], 1);
    assert_eq!((again.wall, same), (first.wall, digest));
    assert_ne!(run(&[3, 3], 2).1, digest);
}

/// Every role of a grid dies: members, the coordinator of a cluster, the job's own, a whole cluster whose machines go off.
#[test]
fn all_roles_die_and_the_answer_is_right() {
    for seed in 1..=4 {
        let layout = layout(&[3, 3, 3], seed);
        let (ended, roots) = simulate(|| async move {
            let grid = Grid::start(&layout, registry()).await;
            let run = grid.submit(TREE, params(seed), None).await.expect("it is taken");
            let machines = grid.machines().clone();
            let node = |name: &str| NodeId::from(name);
            let first = run.granted().coordinator.node.clone();
            let script = actix_rt::spawn(async move {
                sleep(Duration::from_secs(4)).await;
                assert!(machines.kill(&node("c1-2")));
                sleep(Duration::from_secs(3)).await;
                assert!(machines.kill(&node("c1-1")));
                sleep(Duration::from_secs(5)).await;
                assert!(machines.kill(&first));
                sleep(Duration::from_secs(9)).await;
                for n in 1..=3 {
                    machines.switch_off(&node(&format!("c2-{n}")));
                }
                sleep(Duration::from_secs(30)).await;
                for n in 1..=3 {
                    machines.switch_on(&node(&format!("c2-{n}")));
                }
            });
            let ended = run.ended(Duration::from_secs(3600)).await.expect("it ends");
            script.abort();
            let roots = root(&ended);
            (ended, roots)
        });
        for (at, text) in &ended.said {
            println!("{:8.3} s  {text}", at.as_secs_f64());
        }
        let outcome = ended.ended.outcome.as_ref().expect("no failure");
        assert_eq!(outcome.checksum, TREE.answer(), "seed {seed}");
        // None of what went on was a reason to remove anybody.
        let removed = |text: &&String| text.starts_with("removed");
        let removals: Vec<_> = ended.said.iter().map(|(_, text)| text).filter(removed).collect();
        assert!(removals.is_empty(), "seed {seed}: {removals:?}");
        let distinct: BTreeMap<_, _> = roots.iter().map(|root| (root, ())).collect();
        assert!(distinct.len() > 1, "the root went on elsewhere: {roots:?}");
    }
}
