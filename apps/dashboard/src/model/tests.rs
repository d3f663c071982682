//! Tests of the model with constructed snapshots.

use springtide_actors::look::{ClusterTotals, WorkerTotals};
use springtide_actors::scheduler::{NodeStatus, SiteStatus};
use springtide_runtime::id::Epoch;

use super::*;

/// A snapshot of a grid with one job, with this many clusters and workers per cluster, at this
/// time.
pub fn snapshot(clusters: u32, workers: u32, at: f64) -> GridSnapshot {
    let job = JobId(1);
    let mut snapshot = GridSnapshot::default();
    let mut look = JobSnapshot {
        elapsed_s: at,
        band: (0.3, 0.5),
        efficiency: Some((0.42, (clusters * workers).into())),
        ..JobSnapshot::default()
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
        snapshot
            .status
            .sites
            .insert(cluster.clone(), SiteStatus { nodes, ..SiteStatus::default() });
        let us = (at * 1e6) as u64;
        let worker = |node: &NodeId| WorkerSnapshot {
            node: node.clone(),
            incarnation: Incarnation(1),
            leaving: false,
            age_ms: Some(100),
            sums: WorkerTotals {
                times_us: [us * 80 / 100, us * 10 / 100, us * 5 / 100, us * 4 / 100, us / 100],
                executed: us,
                stolen: [("cluster0".into(), 3)].into(),
                running: Vec::new(),
            },
            speed: Some(2.0),
        };
        let event = names.iter().map(worker).collect();
        snapshot.workers.entry(job).or_default().insert(cluster.clone(), event);
        let sum =
            ClusterTotals { host: names.first().cloned(), workers, ..ClusterTotals::default() };
        look.clusters.insert(cluster, sum);
    }
    snapshot.status.jobs.push(JobStatus {
        job,
        name: "barnes-hut".to_owned(),
        state: JobState::Running,
        sizes: BTreeMap::new(),
        waits_for: None,
        coordinator: None,
        principal: None,
    });
    snapshot.jobs.insert(job, look);
    snapshot
}

fn fed(clusters: u32, workers: u32) -> DashboardModel {
    let mut model = DashboardModel::new("test", false);
    for second in 1..=20 {
        model.apply(f64::from(second), snapshot(clusters, workers, f64::from(second)));
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
    // In numerical order, independent of the scheduler's order.
    assert_eq!(cluster["names"], "1-12");
    let job = &tick["jobs"][0];
    assert_eq!(job["eff"], 0.42);
    assert_eq!(job["clusters"]["cluster0"]["t"], json!([80, 10, 5, 4, 1]));
    assert_eq!(job["steals"], json!([["cluster0", "cluster0", 36], ["cluster0", "cluster1", 36]]));
}

#[test]
fn names_without_numbers_are_complete() {
    let ams = ClusterId::from("ams");
    assert_eq!(ranges(&ams, &["ams-1", "ams-2", "ams-7"]), json!("1-2,7"));
    assert_eq!(ranges(&ams, &["ams-1", "ams-02"]), json!(["ams-1", "ams-02"]));
    assert_eq!(ranges(&ams, &[]), json!(""));
}

#[test]
fn a_silent_worker_keeps_its_data_and_shows_its_age() {
    let mut model = fed(1, 2);
    let mut late = snapshot(1, 2, 20.0);
    for worker in late.workers.values_mut().flat_map(BTreeMap::values_mut).flatten() {
        worker.age_ms = Some(9_000);
    }
    model.apply(29.0, late);
    let row = &model.tick()["clusters"][0]["w"][0];
    assert_eq!((&row[0], &row[7]), (&json!(80), &json!(9)));
}

#[test]
fn each_decision_is_one_event_at_its_time() {
    let mut model = DashboardModel::new("test", false);
    for second in 1_u16..=6 {
        let at = f64::from(second);
        let mut snapshot = snapshot(1, 2, at);
        let look = snapshot.jobs.get_mut(&JobId(1)).unwrap();
        let decision = |period: u64| DecisionSummary {
            at: (Epoch(1), period),
            elapsed_s: period as f64,
            sign: 1,
            text: format!("add {period}"),
            why: vec!["efficiency is above the band".to_owned()],
            ..DecisionSummary::default()
        };
        // A coordinator keeps only the last decisions.
        look.decisions = (1..=second / 2).rev().take(2).map(|n| decision(n.into())).rev().collect();
        model.apply(at, snapshot);
    }
    let adapt: Vec<_> = model.events(0).filter(|event| event.kind == "adapt").collect();
    let texts: Vec<_> = adapt.iter().map(|event| (event.at, &*event.text)).collect();
    assert_eq!(texts, [(1.0, "add 1"), (2.0, "add 2"), (3.0, "add 3")]);
    assert_eq!(model.counts().decisions, [("add", 3)].into());
    let after = adapt[1].id;
    assert!(model.events(after).all(|event| event.id > after));
}

/// The coordinator sends a picture once.
#[test]
fn a_picture_stays_until_there_is_another_or_its_job_has_ended() {
    let mut model = DashboardModel::new("g", false);
    let picture = |number: u64| JobPicture {
        number,
        name: format!("step-{number}.png"),
        bytes: vec![number as u8; 9].into(),
    };
    for (at, sent, shown) in [(1, None, 0), (2, Some(7), 7), (3, None, 7), (4, Some(8), 8)] {
        let mut next = snapshot(1, 1, f64::from(at));
        if let Some(look) = next.jobs.get_mut(&JobId(1)) {
            look.picture = sent.map(picture);
        }
        model.apply(f64::from(at), next);
        assert_eq!(model.picture(JobId(1)).map_or(0, |last| last.number), shown);
        let of_job = &model.tick()["jobs"][0]["picture"];
        match shown {
            0 => assert_eq!(*of_job, Value::Null),
            _ => assert_eq!(*of_job, json!([shown, format!("step-{shown}.png")])),
        }
    }
    model.apply(5.0, GridSnapshot::default());
    assert_eq!(model.picture(JobId(1)), None);
}

#[test]
fn memory_is_bounded() {
    let mut model = DashboardModel::new("test", false);
    let fault = |n: u32| Event::Fault { part: "x".to_owned(), what: "y".repeat(n as usize) };
    for n in 0..10_100 {
        model.record(0.0, fault(n % 900));
    }
    assert_eq!(model.events(0).count(), 10_000);
    assert_eq!((model.events(0).next().unwrap().id, model.newest()), (101, 10_100));
    let longest = model.events(0).map(|event| event.text.chars().count()).max();
    assert!(longest.unwrap() < 700);
    for second in 0..50_000 {
        model.apply(f64::from(second), snapshot(1, 1, f64::from(second)));
    }
    let points = model.history()["jobs"]["1"].as_array().unwrap().len();
    assert_eq!(points, 7200);
    assert!(model.history().to_string().len() < 400_000);
}
