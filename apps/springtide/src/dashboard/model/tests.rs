//! The model, fed by hand.

use springtide_actors::look::{ClusterSum, WorkerSums};
use springtide_actors::scheduler::{NodeStatus, SiteStatus};
use springtide_runtime::id::Epoch;

use super::*;

/// A grid of so many clusters with so many workers each, all of one job, after so many seconds.
pub fn seen(clusters: u32, workers: u32, at: f64) -> Seen {
    let job = JobId(1);
    let mut seen = Seen::default();
    let mut look = JobLook {
        elapsed_s: at,
        band: (0.3, 0.5),
        efficiency: Some((0.42, clusters * workers)),
        ..JobLook::default()
    };
    for c in 0..clusters {
        let cluster = ClusterId::from(format!("cluster{c}"));
        let names = (1..=workers).map(|n| NodeId::from(format!("{cluster}-{n}")));
        let mut names: Vec<NodeId> = names.collect();
        names.sort();
        let node = |node: &NodeId| NodeStatus {
            node: node.clone(),
            state: NodeState::Busy,
            job: Some(job),
            threads: Some(1),
            pid: Some(1),
            incarnation: Some(Incarnation(1)),
            address: None,
            reason: None,
            next_try_ms: None,
        };
        let nodes = names.iter().map(node).collect();
        seen.status.sites.insert(cluster.clone(), SiteStatus { nodes, ..SiteStatus::default() });
        let us = (at * 1e6) as u64;
        let worker = |node: &NodeId| WorkerLook {
            node: node.clone(),
            incarnation: Incarnation(1),
            leaving: false,
            age_ms: Some(100),
            sums: WorkerSums {
                times_us: [us * 80 / 100, us * 10 / 100, us * 5 / 100, us * 4 / 100, us / 100],
                executed: us,
                stolen: [("cluster0".into(), 3)].into(),
            },
            speed: Some(2.0),
        };
        let told = names.iter().map(worker).collect();
        seen.workers.entry(job).or_default().insert(cluster.clone(), told);
        let sum = ClusterSum { host: names.first().cloned(), workers, ..ClusterSum::default() };
        look.clusters.insert(cluster, sum);
    }
    seen.status.jobs.push(JobStatus {
        job,
        name: "barnes-hut".to_owned(),
        state: JobState::Running,
        sizes: BTreeMap::new(),
        waits_for: None,
        coordinator: None,
        principal: None,
    });
    seen.jobs.insert(job, look);
    seen
}

fn fed(clusters: u32, workers: u32) -> Model {
    let mut model = Model::new("test", false);
    for second in 1..=20 {
        model.see(f64::from(second), seen(clusters, workers, f64::from(second)));
    }
    model
}

#[test]
fn a_tick_of_400_workers_is_short() {
    let tick = fed(4, 100).tick().to_string();
    assert!(tick.len() <= 10_000, "{} bytes", tick.len());
}

#[test]
fn workers_are_few_numbers_and_their_names_a_range() {
    let tick = fed(2, 12).tick();
    let cluster = &tick["clusters"][1];
    assert_eq!(cluster["w"][0], json!([80, 10, 5, 4, 100, 1, 1]));
    // As people count, whatever order the scheduler has them in.
    assert_eq!(cluster["names"], "1-12");
    let job = &tick["jobs"][0];
    assert_eq!(job["eff"], 0.42);
    assert_eq!(job["clusters"]["cluster0"]["t"], json!([80, 10, 5, 4, 1]));
    assert_eq!(job["steals"], json!([["cluster0", "cluster0", 36], ["cluster0", "cluster1", 36]]));
}

#[test]
fn names_that_are_no_numbers_are_told_whole() {
    let ams = ClusterId::from("ams");
    assert_eq!(ranges(&ams, &["ams-1", "ams-2", "ams-7"]), json!("1-2,7"));
    assert_eq!(ranges(&ams, &["ams-1", "ams-02"]), json!(["ams-1", "ams-02"]));
    assert_eq!(ranges(&ams, &[]), json!(""));
}

#[test]
fn who_is_not_heard_is_shown_with_its_age_and_keeps_what_is_known() {
    let mut model = fed(1, 2);
    let mut late = seen(1, 2, 20.0);
    for worker in late.workers.values_mut().flat_map(BTreeMap::values_mut).flatten() {
        worker.age_ms = Some(9_000);
    }
    model.see(29.0, late);
    let row = &model.tick()["clusters"][0]["w"][0];
    assert_eq!((&row[0], &row[7]), (&json!(80), &json!(9)));
}

#[test]
fn each_decision_is_told_once_and_at_its_time() {
    let mut model = Model::new("test", false);
    for second in 1_u16..=6 {
        let at = f64::from(second);
        let mut seen = seen(1, 2, at);
        let look = seen.jobs.get_mut(&JobId(1)).unwrap();
        let decision = |period: u64| DecisionLook {
            at: (Epoch(1), period),
            elapsed_s: period as f64,
            sign: 1,
            text: format!("add {period}"),
            why: vec!["efficiency is above the band".to_owned()],
            ..DecisionLook::default()
        };
        // A coordinator keeps the last few.
        look.decisions = (1..=second / 2).rev().take(2).map(|n| decision(n.into())).rev().collect();
        model.see(at, seen);
    }
    let adapt: Vec<_> = model.events(0).filter(|told| told.kind == "adapt").collect();
    let texts: Vec<_> = adapt.iter().map(|told| (told.at, &*told.text)).collect();
    assert_eq!(texts, [(1.0, "add 1"), (2.0, "add 2"), (3.0, "add 3")]);
    assert_eq!(model.counts().decisions, [("add", 3)].into());
    let after = adapt[1].id;
    assert!(model.events(after).all(|told| told.id > after));
}

#[test]
fn what_is_kept_is_bounded() {
    let mut model = Model::new("test", false);
    let fault = |n: u32| Event::Fault { part: "x".to_owned(), what: "y".repeat(n as usize) };
    for n in 0..10_100 {
        model.record(0.0, fault(n % 900));
    }
    assert_eq!(model.events(0).count(), 10_000);
    assert_eq!((model.events(0).next().unwrap().id, model.newest()), (101, 10_100));
    let longest = model.events(0).map(|told| told.text.chars().count()).max();
    assert!(longest.unwrap() < 700);
    for second in 0..50_000 {
        model.see(f64::from(second), seen(1, 1, f64::from(second)));
    }
    let points = model.history()["jobs"]["1"].as_array().unwrap().len();
    assert_eq!(points, 7200);
    assert!(model.history().to_string().len() < 400_000);
}
