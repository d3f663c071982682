//! How well and how fast slots are searched: the instance of the specification, and CyberShake.
//!
//! `cargo bench -p springtide-policy --bench provisioning [-- DIR]`. `DIR` has `e1.json` and
//! `cybershake-varied.json` (made for the project, not part of it); without them nothing is
//! measured. A test reports how often the search finds the exact front of small instances.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::Value;
use springtide_base::random::SplitMix;
use springtide_policy::provisioning::{
    Budget, Dag, DagTask, Edge, ListScheduler, Method, Objectives, Price, Runtime, SECOND, Search,
    SiteLinks, Slot, SlotSet, from_seconds, hypervolume, search, seconds,
};

fn main() {
    let dir = std::env::args().skip(1).find(|word| !word.starts_with('-'));
    let dir = dir.map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data/provisioning"),
        PathBuf::from,
    );
    match read(&dir.join("e1.json")) {
        Some(instance) => four_sites(&instance),
        None => println!("skipped: no e1.json in {}", dir.display()),
    }
    match read(&dir.join("cybershake-varied.json")) {
        Some(instance) => cybershake(&instance),
        None => println!("skipped: no cybershake-varied.json in {}", dir.display()),
    }
}

fn read(path: &Path) -> Option<Value> {
    serde_json::from_str(&std::fs::read_to_string(path).ok()?).ok()
}

fn number(value: &Value) -> f64 {
    value.as_f64().expect("a number")
}

fn median(mut values: Vec<f64>) -> (f64, f64, f64) {
    values.sort_by(f64::total_cmp);
    (values[values.len() / 2], values[0], values[values.len() - 1])
}

/// The paper's first experiment, as the specification drew it.
fn four_sites(instance: &Value) {
    let slot = |slot: &Value| {
        let start = from_seconds(number(&slot["start"]));
        Slot {
            site: slot["site"].as_u64().expect("a site") as usize,
            processors: slot["processors"].as_u64().expect("processors") as u32,
            start,
            end: start + from_seconds(number(&slot["duration"])),
            price: Price::default(),
            divisible: false,
            extensible: false,
        }
    };
    let slots: Vec<Slot> = instance["slots"].as_array().expect("slots").iter().map(slot).collect();
    let all = instance["tasks"].as_array().expect("tasks");
    let task = |task: &Value| DagTask {
        name: task["id"].to_string(),
        processors: task["processors"].as_u64().expect("processors") as u32,
        runtime: Runtime::Same(from_seconds(number(&task["runtime"]))),
    };
    // A byte takes a microsecond: a transfer of s seconds has s million bytes.
    let edges: Vec<Edge> = all
        .iter()
        .enumerate()
        .flat_map(|(to, task)| {
            task["parents"].as_array().expect("parents").iter().map(move |p| (to, p))
        })
        .map(|(to, parent)| Edge {
            from: parent["id"].as_u64().expect("an id") as usize,
            to,
            bytes: from_seconds(number(&parent["transfer"])),
        })
        .collect();
    let dag = Dag::new(all.iter().map(task).collect(), &edges, 4).expect("a workflow");
    let links = SiteLinks { other: Some((0, SECOND as f64)), ..SiteLinks::default() };
    let mut lister = ListScheduler::new(&dag, &links, &slots, Method::Heft);
    let everything = lister.outcome(&SlotSet::all(slots.len())).expect("a plan");
    println!(
        "four sites: {} slots for {:.0}, work {:.1}, shortest {:.3} s \
         (specification: 1948699, 9524.7, 1499.069)",
        slots.len(),
        everything.cost,
        dag.work(4),
        seconds(everything.makespan)
    );
    for (what, share) in [("all slots", 1.0), ("half of them", 0.5), ("a tenth", 0.1)] {
        let mut random = SplitMix(1);
        let sets: Vec<SlotSet> = (0..64)
            .map(|_| {
                let mut set = SlotSet::none(slots.len());
                (0..slots.len()).for_each(|slot| set.set(slot, random.unit() < share));
                set
            })
            .collect();
        let rounds = 50;
        let began = Instant::now();
        for _ in 0..rounds {
            for set in &sets {
                std::hint::black_box(lister.outcome(set));
            }
        }
        let each = began.elapsed() / (rounds * sets.len() as u32);
        println!("  one evaluation, {what}: {:.1} us (bar 50)", each.as_secs_f64() * 1e6);
    }
    let reference = Objectives { cost: 1e6, makespan: 10_000 * SECOND };
    let rows = [
        (Search::PAPER, 10, 9, ""),
        (Search::PAPER, 50, 34, "bar 0.75"),
        (Search::PAPER, 100, 39, ""),
        (Search::Pruned, 10, 9, "bar 0.834"),
        (Search::Pruned, 100, 39, "bar 0.8401 in 0.3 s"),
        (Search::Pruned, 100, 199, ""),
    ];
    for (how, population, iterations, bar) in rows {
        let mut volumes = Vec::new();
        let mut took = Vec::new();
        let mut sizes = Vec::new();
        let mut cheapest = Vec::new();
        for seed in 1..=9 {
            let began = Instant::now();
            let found = search(&mut lister, how, Budget { population, iterations }, seed, false);
            took.push(began.elapsed().as_secs_f64());
            volumes.push(hypervolume(&found.front, reference));
            sizes.push(found.front.points().len() as f64);
            cheapest.push(found.front.points()[0].objectives.cost / 3600.0);
        }
        let (volume, least, most) = median(volumes);
        println!(
            "  {how:?} {population} x {}: hypervolume {volume:.5} [{least:.5}, {most:.5}] of 9 \
             seeds, {:.0} plans, cheapest {:.2} SU, {:.3} s  {bar}",
            iterations + 1,
            median(sizes).0,
            median(cheapest).0,
            median(took).0,
        );
    }
}

fn cybershake(instance: &Value) {
    let all = instance["tasks"].as_array().expect("tasks");
    let mut edges = Vec::new();
    let task = |(to, task): (usize, &Value)| {
        for parent in task[2].as_array().expect("parents") {
            edges.push(Edge { from: parent.as_u64().expect("an id") as usize, to, bytes: 0 });
        }
        DagTask {
            name: to.to_string(),
            processors: task[1].as_u64().expect("processors") as u32,
            runtime: Runtime::Same(from_seconds(number(&task[0]))),
        }
    };
    let tasks: Vec<DagTask> = all.iter().enumerate().map(task).collect();
    let dag = Dag::new(tasks, &edges, 1).expect("a workflow");
    let slot = |processors| Slot {
        site: 0,
        processors,
        start: 0,
        end: 24 * 3600 * SECOND,
        price: Price::default(),
        divisible: true,
        extensible: true,
    };
    let links = SiteLinks::default();
    for (what, slots) in [
        ("one slot of 430", vec![slot(430)]),
        ("eleven (300 and ten of 13)", std::iter::once(300).chain([13; 10]).map(slot).collect()),
    ] {
        let mut lister = ListScheduler::new(&dag, &links, &slots, Method::Heft);
        let took = (0..20).map(|_| {
            let began = Instant::now();
            let outcome = std::hint::black_box(lister.outcome(&SlotSet::all(slots.len())));
            (began.elapsed(), outcome.expect("a plan").makespan)
        });
        let took: Vec<(Duration, u64)> = took.collect();
        let makespan = seconds(took[0].1);
        let (middle, least, most) =
            median(took.iter().map(|(t, _)| t.as_secs_f64() * 1e3).collect());
        println!(
            "CyberShake, {} tasks, {what}: HEFT {middle:.2} ms [{least:.2}, {most:.2}] \
             (bar 10), makespan {makespan:.2} s (specification: 179912.45)",
            dag.len()
        );
        for how in [Search::PAPER, Search::Pruned] {
            let began = Instant::now();
            let budget = Budget { population: 10, iterations: 10 };
            let found = search(&mut lister, how, budget, 1, false);
            println!(
                "  {how:?} 10 x 10: {} evaluations, {:.2} s (bar 2; the paper's 336)",
                found.evaluations,
                began.elapsed().as_secs_f64()
            );
        }
    }
}
