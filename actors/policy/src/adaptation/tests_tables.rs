//! Tables of single decisions: bounds, terms, learning, migration, implausible reports.

use springtide_base::id::{ClusterId, Incarnation};
use springtide_base::processors::Processors;

use super::case::*;
use super::*;

#[test]
fn the_jobs_bounds_are_mended_at_once() {
    // expected, minimum, maximum -> asked for, removed
    for (n, requested, min, max, up, down) in [
        (4, 0, 8, None, 4, 0),
        (4, 3, 8, None, 1, 0),
        (4, 4, 8, None, 0, 0),
        (12, 0, 1, Some(10), 0, 2),
        (10, 0, 1, Some(10), 0, 0),
        (12, 0, 1, Some(4), 0, 8), // more than half: the maximum requires it
    ] {
        let mut case = PolicyTestJob::even(n, 0.4);
        case.memory.cool_until = 1000;
        (case.snapshot.min_processors, case.snapshot.max_processors) =
            (Processors(min), max.map(Processors));
        case.snapshot.requested = requested.into();
        let decision = case.decide();
        let got = (asked(&decision), removed(&decision).len());
        assert_eq!(got, (up, down), "{n} {requested} {min} {max:?}\n{}", text(&decision));
    }
    // Growth stops at the maximum.
    let mut case = PolicyTestJob::even(10, 0.9);
    case.snapshot.max_processors = Some(13.into());
    assert_eq!(asked(&case.decide()), 3);
    case.snapshot.requested = 3.into();
    (0..3).for_each(|_| assert_eq!(asked(&case.decide()), 0));
}

#[test]
fn a_minimum_is_requested_before_any_measurement() {
    let mut case = PolicyTestJob::even(4, 0.4);
    case.each(|w| w.joined = 0);
    case.snapshot.min_processors = 6.into();
    let decision = case.decide();
    assert_eq!(asked(&decision), 2);
    case.snapshot.requested = 2.into();
    let decision = case.decide();
    assert!(
        says(&decision, "no processor is measured yet (4 in their grace period"),
        "{}",
        text(&decision)
    );
}

#[test]
fn terms_end_early_after_a_better_measurement() {
    let mut case = PolicyTestJob::of(&[
        WorkerGroup("a", 12, 1.0, 0.75, 0.0),
        WorkerGroup("b", 4, 0.1, 0.75, 0.0),
    ]);
    let decision = case.decide_patiently();
    assert_eq!(removed(&decision).len(), 4);
    case.obey(&decision, 1.0).each(|w| w.overhead = 0.4);
    (0..2).for_each(|_| assert!(case.decide().actions.is_empty()));
    // (its measured speed, periods later) -> avoided
    for (speed, later, avoided) in
        [(None, 0, true), (Some(0.12), 0, true), (Some(0.16), 0, false), (None, 29, false)]
    {
        let mut case = case.clone();
        if let Some(speed) = speed {
            let own = OfferedNode { processors: Processors::ONE, speed };
            let nodes = [("b0".into(), own)].into();
            let offer = NodeOffer { free: 4.into(), nodes, ..NodeOffer::default() };
            case.snapshot.offers.insert("b".into(), offer);
        }
        case.memory.clock_s += 10.0 * f64::from(later);
        let decision = case.decide();
        let got = request(&decision).avoid_nodes.contains(&"b0".into());
        assert_eq!(got, avoided, "{speed:?} {later}\n{}", text(&decision));
        // The geometric mean of the removed speed and the limit of slowness.
        let least = (0.1 * 0.5_f64).sqrt();
        assert!(request(&decision).min_speed.is_some_and(|s| (s - least).abs() < 1e-9));
    }
}

#[test]
fn a_cluster_in_quarantine_may_be_retried_and_relaxes_requirements() {
    let mut case = PolicyTestJob::of(&[
        WorkerGroup("a", 8, 1.0, 0.8, 0.05),
        WorkerGroup("b", 8, 1.0, 0.8, 0.05),
        WorkerGroup("c", 8, 1.0, 0.9, 0.6),
    ]);
    case.uplink("a", 1e7).uplink("b", 1e7).uplink("c", 1e5);
    let decision = case.decide();
    case.obey(&decision, 1.0).each(|w| w.overhead = 0.4);
    case.memory.clock_s += 300.0;
    (0..2).for_each(|_| assert!(case.decide().actions.is_empty()));
    let decision = case.decide();
    let SchedulerRequest { waive, avoid_clusters, min_bandwidth, .. } = request(&decision);
    assert!(waive.contains(&"c".into()) && avoid_clusters.is_empty() && min_bandwidth.is_some());
    // The cluster is back, performs well, and its link is unchanged: so that bandwidth suffices.
    let back = PolicyTestJob::of(&[WorkerGroup("c", 4, 1.0, 0.4, 0.05)]);
    case.workers.extend(back.workers);
    let decision = case.decide();
    assert!(says(&decision, "least bandwidth went from 110.0 KB/s to 100.0 KB/s, by cluster c"));
    assert_eq!(case.memory.requirements.min_bandwidth, Some(1e5));
}

#[test]
fn a_removal_that_did_harm_is_unlearned() {
    // Slow, but not idle: they do half of the work.
    let mut case = PolicyTestJob::of(&[
        WorkerGroup("a", 12, 1.0, 0.8, 0.0),
        WorkerGroup("b", 12, 0.25, 0.2, 0.0),
    ]);
    let before = case.memory.weights;
    let decision = case.decide_patiently();
    assert_eq!(removed(&decision).len(), 12, "{}", text(&decision));
    assert!(case.memory.requirements.min_speed.is_some());
    case.obey(&decision, 1.0); // the others work no more than before
    (0..2).for_each(|_| assert!(case.decide().actions.is_empty()));
    let decision = case.decide();
    assert!(says(&decision, "removing bad nodes did not help"), "{}", text(&decision));
    assert!(case.memory.quarantine.is_empty());
    assert_eq!(case.memory.requirements, Requirements::default());
    assert_eq!(case.memory.weights.alpha, before.alpha / 1.25);
    assert_eq!(asked(&decision), 12);
    assert!(request(&decision).avoid_nodes.is_empty());
}

#[test]
fn weights_stay_within_bounds() {
    let settings = AdaptationSettings::default();
    for helped in [true, false] {
        let mut case = PolicyTestJob::even(4, 0.4);
        for i in 0..50u64 {
            case.memory.trial = Some(Trial {
                aim: Aim::Cure,
                tick: case.memory.tick.saturating_sub(3),
                before: Measured { processors: 8.into(), efficiency: 0.2, useful: 1.6 },
                speed: 0.0,
                prediction: Measured::default(),
                lost: if helped { 0.0 } else { 1.6 },
                removed: 4.into(),
                term: Some(if i % 2 == 0 { Term::Speed } else { Term::Link }),
                requirements: Requirements::default(),
                seen: 2,
                efficiency: 0.0,
                useful: 0.0,
                doubted: false,
                changed: 0,
            });
            case.each(|w| w.overhead = if helped { 0.6 } else { 0.9 });
            case.decide();
        }
        let Weights { alpha, beta, gamma } = case.memory.weights;
        let bound = if helped { 4.0 } else { 0.25 };
        assert_eq!((alpha, beta, gamma), (bound, 100.0 * bound, 10.0), "{settings:?}");
    }
}

#[test]
fn growth_that_did_not_help_is_not_repeated_until_conditions_change() {
    let mut case = PolicyTestJob::even(10, 0.55);
    let decision = case.decide();
    assert_eq!(asked(&decision), 3);
    case.obey(&decision, 1.0).each(|w| w.overhead = 1.0 - 0.42); // 13 nodes do what 10 did
    (0..3).for_each(|_| assert!(case.decide().actions.is_empty()));
    assert_eq!(case.memory.ceiling.map(|limit| limit.processors.get()), Some(10));
    case.each(|w| w.overhead = 0.45);
    let decision = case.decide();
    assert_eq!(asked(&decision), 0);
    assert!(says(&decision, "no growth beyond 10 processors"), "{}", text(&decision));
    case.each(|w| w.overhead = 0.2);
    assert!(asked(&case.decide()) > 0, "that is another load");
}

#[test]
fn growth_that_did_harm_is_undone() {
    // Efficiency with 13 nodes after 0.55 with 10 -> removed.
    for (efficiency, gone) in [(0.35, 3), (0.41, 0), (0.48, 0)] {
        let mut case = PolicyTestJob::even(10, 0.55);
        let decision = case.decide();
        assert_eq!(asked(&decision), 3);
        case.obey(&decision, 1.0).each(|w| w.overhead = 1.0 - efficiency);
        // One judgement removes no node.
        (0..4).for_each(|_| assert!(case.decide().actions.is_empty()));
        let decision = case.decide();
        assert_eq!(removed(&decision).len(), gone, "{efficiency}\n{}", text(&decision));
        assert_eq!(says(&decision, "with 3 processors more the job did less"), gone > 0);
    }
}

#[test]
fn migration_is_worth_it_or_not() {
    // free, their speed, elapsed, progress, maximum -> asked for
    type Row = (u32, Option<f64>, f64, Option<JobProgress>, Option<u32>, u32);
    let at = |done, total| Some(JobProgress { done, total });
    let table: [Row; 9] = [
        (4, Some(1.0), 1000.0, None, None, 4),
        (20, Some(1.0), 1000.0, None, None, 4), // only the slow ones
        (4, Some(0.25), 1000.0, None, None, 0), // not much better
        (4, None, 1000.0, None, None, 0),       // not known to be better
        (0, Some(1.0), 1000.0, None, None, 0),
        (4, Some(1.0), 10.0, None, None, 0), // as long again is too short
        (4, Some(1.0), 1000.0, at(90, Some(100)), None, 4),
        (4, Some(1.0), 1000.0, at(975, Some(1000)), None, 0),
        (4, Some(1.0), 1000.0, None, Some(14), 2),
    ];
    for (free, speed, elapsed_s, progress, max, up) in table {
        let mut case = PolicyTestJob::of(&[
            WorkerGroup("a", 8, 1.0, 0.45, 0.0),
            WorkerGroup("b", 4, 0.2, 0.45, 0.0),
        ]);
        let offer = NodeOffer { free: Processors(free), speed, ..NodeOffer::default() };
        case.snapshot.offers.insert("c".into(), offer);
        (case.snapshot.elapsed_s, case.snapshot.progress) = (elapsed_s, progress);
        case.snapshot.max_processors = max.map(Processors);
        let decision = case.decide();
        let row = format!("{free} {speed:?} {elapsed_s} {progress:?} {max:?}\n{}", text(&decision));
        assert_eq!(asked(&decision), up, "{row}");
        if up == 0 {
            continue;
        }
        assert!(request(&decision).min_speed.is_some_and(|s| s > 0.2 && s <= 1.0), "{row}");
        // They arrive, and after their grace the same number of slow nodes leaves. Without arrivals
        // no node leaves.
        let mut none = case.clone();
        for _ in 0..4 {
            assert!(removed(&none.decide()).is_empty());
        }
        assert!(none.memory.migration.is_none());
        case.obey(&decision, 1.0);
        case.decide();
        case.decide();
        let decision = case.decide();
        let gone = removed(&decision);
        assert!(gone.len() == up as usize && gone.iter().all(|n| n.starts_with('b')), "{gone:?}");
    }
}

/// Two clusters are left, one of them behind 100 kB/s with tasks of the other, which waits for
/// their results.
#[test]
fn of_two_clusters_the_one_behind_the_narrow_link_goes() {
    let with_speed = |speed: f64, a: f64, b: f64| {
        let mut case = PolicyTestJob::of(&[
            WorkerGroup("a", 6, 1.0, 1.0, 0.4),
            WorkerGroup("b", 6, speed, 1.0, 0.0),
        ]);
        case.uplink("a", a).uplink("b", b);
        case
    };
    let case = |a, b| with_speed(1.0, a, b);
    let decision = with_speed(0.5, 8e6, 1e5).decide();
    assert_eq!(cluster_removed(&decision), Some("b"), "{}", text(&decision));
    assert!(says(&decision, "another's inter-cluster overhead is 0.400"), "{}", text(&decision));
    // With equal links, the waiting cluster is to blame, and the root leaves it first.
    let decision = case(8e6, 4e6).decide();
    assert!(
        says(&decision, "cluster a is removed: its inter-cluster overhead"),
        "{}",
        text(&decision)
    );
    // Unless it has most of the speed: the other cluster may have a few long tasks.
    let decision = with_speed(0.5, 8e6, 4e6).decide();
    assert_eq!(cluster_removed(&decision), None, "{}", text(&decision));
    assert!(says(&decision, "it has 67 % of the job's speed"), "{}", text(&decision));
    // The same holds where the other cluster does work.
    let mut busy = case(8e6, 1e5);
    busy.workers.get_mut(&"b".into()).unwrap().iter_mut().for_each(|w| w.overhead = 0.7);
    let decision = busy.decide();
    assert!(
        says(&decision, "cluster a is removed: its inter-cluster overhead"),
        "{}",
        text(&decision)
    );
}

/// A link of a cluster to itself, which a report may contain, is not an uplink: a successor, whose
/// memory has none, decides alike.
#[test]
fn a_link_of_a_cluster_to_itself_is_no_uplink() {
    let link = |a: &str, b: &str, rate| LinkEstimate {
        a: a.into(),
        b: b.into(),
        bandwidth: Some(rate),
        rtt_s: None,
        age_s: 0.0,
    };
    let mut case = PolicyTestJob::of(&[WorkerGroup("a", 2, 1.0, 0.1, 0.0)]);
    case.snapshot.links = vec![link("a", "a", 5e7), link("a", "b", 1e3)];
    assert_eq!(case.snapshot.uplink(&"a".into()), Some(1e3));
}

/// A straggler on one node makes other clusters wait for it; their link must not be blamed. Found
/// with an external load on one processor.
#[test]
fn waiting_for_a_straggler_is_no_bad_link() {
    for (speed, goes) in [(0.05, "s0"), (0.9, "b")] {
        let mut case = PolicyTestJob::of(&[
            WorkerGroup("a", 3, 1.0, 0.7, 0.0),
            WorkerGroup("s", 1, speed, 0.7, 0.0),
            WorkerGroup("b", 1, 1.0, 0.85, 0.65),
        ]);
        let mut gone = Vec::new();
        for _ in 0..3 {
            let decision = case.decide();
            let doubt = says(&decision, "may come from waiting for node s0");
            assert_eq!(
                doubt && gone.is_empty(),
                speed < 0.1 && gone.is_empty(),
                "{}",
                text(&decision)
            );
            gone.extend(decision.actions.iter().filter_map(|action| match action {
                AdaptationAction::Remove { nodes, .. } => Some(nodes[0].to_string()),
                AdaptationAction::RemoveCluster { cluster, .. } => Some(cluster.to_string()),
                _ => None,
            }));
        }
        assert_eq!(gone.first().map(String::as_str), Some(goes), "speed {speed}: {gone:?}");
    }
}

/// A new node would wait for the same link as the node that it replaces.
#[test]
fn speeds_of_free_nodes_are_reduced_by_their_link() {
    for (cluster, speed, up) in [("b", 1.2, 0), ("b", 3.0, 4), ("c", 1.2, 0), ("a", 1.2, 4)] {
        let mut case = PolicyTestJob::of(&[
            WorkerGroup("a", 8, 1.0, 0.55, 0.0),
            WorkerGroup("b", 4, 1.0, 0.7, 0.4),
        ]);
        case.snapshot.elapsed_s = 1000.0;
        let offer = NodeOffer { free: 4.into(), speed: Some(speed), ..NodeOffer::default() };
        case.snapshot.offers.insert(cluster.into(), offer);
        let decision = case.decide();
        assert_eq!(asked(&decision), up, "{cluster} {speed}\n{}", text(&decision));
    }
}

#[test]
fn implausible_reports_are_clamped_flagged_and_ignored() {
    let settings = AdaptationSettings::default();
    let sane = WorkerStats {
        node: "a1".into(),
        speed: Some(1.0),
        speed_error: 0.1,
        overhead: 0.4,
        overhead_inter: 0.1,
        joined: 9,
        ..WorkerStats::default()
    };
    type Row = (fn(&mut WorkerStats), Option<Field>);
    let table: [Row; 12] = [
        (|_| {}, None),
        (|w| w.overhead = 1.004, None), // rounding error
        (|w| w.overhead = 1.5, Some(Field::Overhead)),
        (|w| w.overhead = -0.3, Some(Field::Overhead)),
        (|w| w.overhead = f64::NAN, Some(Field::Overhead)),
        (|w| w.overhead_inter = 0.7, Some(Field::Inter)), // more than the whole
        (|w| w.overhead_intra = f64::INFINITY, Some(Field::Intra)),
        (|w| w.speed = Some(100.0), Some(Field::Speed)),
        (|w| w.speed = Some(50.0), None),
        (|w| w.speed = Some(0.0), Some(Field::Speed)),
        (|w| w.speed = Some(f64::NAN), Some(Field::Speed)),
        (|w| w.speed_error = -1.0, Some(Field::SpeedError)),
    ];
    for (i, (spoil, field)) in table.into_iter().enumerate() {
        let mut history = WorkerHistory::default();
        assert_eq!(history.report(sane.clone(), &settings), None);
        assert_eq!(history.close_period(1).unwrap().age, 0);
        let mut report = sane.clone();
        spoil(&mut report);
        let odd = history.report(report, &settings);
        assert_eq!(odd.as_ref().map(|odd| odd.field), field, "row {i}");
        let counted = history.close_period(1).unwrap();
        if field.is_some() {
            assert!(odd.unwrap().to_string().contains("is used instead"));
            let last = WorkerStats { age: 1, has_worked: true, ..sane.clone() };
            assert_eq!(counted, last, "row {i}: the last report is used");
        }
        assert!((0.0..=1.0).contains(&counted.overhead));
    }
    // It may report implausible values for ever: once its last valid report is too old, it does not
    // count.
    let mut history = WorkerHistory::default();
    history.report(sane.clone(), &settings);
    let lie = WorkerStats { speed: Some(1e9), ..sane.clone() };
    for age in 0..6 {
        let counted = history.close_period(1).unwrap();
        assert_eq!((counted.age, counted.speed), (age, Some(1.0)));
        history.report(lie.clone(), &settings);
    }
    // A new incarnation starts without a history; a late report of the old one is ignored.
    let reborn = WorkerStats { incarnation: Incarnation(2), speed: Some(200.0), ..sane.clone() };
    assert_eq!(history.report(reborn, &settings), None);
    history.report(sane.clone(), &settings);
    assert_eq!(history.close_period(1).unwrap().speed, Some(200.0));
    // A node that stood still and resumes is not an implausible jump.
    let mut history = WorkerHistory::default();
    for speed in [1.0, 0.001, 1.0] {
        let report = WorkerStats { speed: Some(speed), ..sane.clone() };
        assert_eq!(history.report(report, &settings), None);
    }
}

#[test]
fn a_false_report_does_not_change_a_decision() {
    let honest = PolicyTestJob::even(12, 0.4).decide();
    let lies: [fn(&mut WorkerStats); 4] = [
        |w| w.speed = Some(1e6), // a first report beyond the others of its cluster
        |w| w.speed = Some(-1.0),
        |w| w.overhead = f64::NAN,
        |w| w.overhead = 7.0,
    ];
    for lie in lies {
        let mut case = PolicyTestJob::even(12, 0.4);
        lie(case.worker("b2"));
        let decision = case.decide();
        assert_eq!(decision.actions, honest.actions);
        assert!((decision.efficiency.unwrap() - 0.4).abs() < 1e-12);
        assert!(decision.flags.contains(&Flag::Nonsense));
        assert!(says(&decision, "node b2 reported"), "{}", text(&decision));
    }
    // A whole cluster is excluded if its numbers contradict each other or exceed all known speeds
    // by far.
    let spoil: [fn(&mut ClusterAggregate); 5] = [
        |c| c.counted = 1000.into(),
        |c| c.max_speed = f64::NAN,
        |c| c.max_speed = 1e9,
        |c| c.counted = 1.into(),
        |c| c.worst[0].inter = 3.0,
    ];
    for spoil in spoil {
        let mut case = PolicyTestJob::even(12, 0.4);
        case.snapshot.members = [("a".into(), 6.into()), ("b".into(), 6.into())].into();
        case.decide();
        case.aggregate();
        spoil(case.snapshot.clusters.get_mut(&"b".into()).unwrap());
        let decision = case.decide_as_is();
        assert!(decision.actions.is_empty(), "{}", text(&decision));
        assert!(says(&decision, "cluster b does not count in this period"), "{}", text(&decision));
        assert!((decision.efficiency.unwrap() - 0.4).abs() < 1e-12);
    }
    // If all are a thousand times as fast, the application's unit has changed.
    let mut case = PolicyTestJob::even(12, 0.4);
    case.decide();
    case.each(|w| w.speed = w.speed.map(|s| 1000.0 * s));
    let decision = case.decide();
    assert_eq!((decision.processors.get(), decision.flags.is_empty()), (12, true));
}

#[test]
fn a_request_prefers_near_clusters_in_use() {
    let mut case = PolicyTestJob::of(&[
        WorkerGroup("a", 4, 1.0, 0.2, 0.0),
        WorkerGroup("b", 4, 1.0, 0.2, 0.0),
        WorkerGroup("c", 4, 1.0, 0.2, 0.0),
        WorkerGroup("d", 4, 1.0, 0.2, 0.0),
    ]);
    for (to, rtt_s, bandwidth) in [("b", 0.04, 1e6), ("c", 0.01, 1e6), ("d", 0.04, 1e7)] {
        case.snapshot.links.push(LinkEstimate {
            a: "a".into(),
            b: to.into(),
            bandwidth: Some(bandwidth),
            rtt_s: Some(rtt_s),
            age_s: 0.0,
        });
    }
    let decision = case.decide();
    let prefer: Vec<_> = request(&decision).prefer.iter().map(ClusterId::as_str).collect();
    assert_eq!(prefer, ["a", "c", "d", "b"]);
}

#[test]
fn a_static_run_decides_nothing() {
    let mut case = PolicyTestJob::even(20, 0.9);
    case.snapshot.mode = Mode::Static;
    let decision = case.decide();
    assert_eq!(decision.reasons, [Reason::Static]);
    assert!(decision.actions.is_empty() && decision.withheld.is_empty());
}

/// With 12 workers in 3 clusters and a period of 1 s, traffic over a wide-area link may be 2 KB/s:
/// an aggregate one way, the memory the other.
#[test]
fn traffic_of_a_period_is_small() {
    let groups =
        ["cluster-a", "cluster-b", "cluster-c"].map(|c| WorkerGroup(c, 4, 0.123, 0.456, 0.0789));
    let mut case = PolicyTestJob::of(&groups);
    case.each(|w| w.speed = w.speed.map(|s| s * f64::from(w.joined)));
    case.decide();
    let aggregate = rmp_serde::to_vec_named(&case.snapshot.clusters[&"cluster-b".into()]).unwrap();
    let memory = rmp_serde::to_vec_named(&case.memory).unwrap();
    assert!(aggregate.len() + memory.len() < 1600, "{} and {}", aggregate.len(), memory.len());
}

/// With too little work, all wait for steals from other clusters. That says nothing about a node.
#[test]
fn of_healthy_nodes_the_slowest_leave_first() {
    let groups = [
        WorkerGroup("a", 4, 1.0, 0.8, 0.05),
        WorkerGroup("b", 6, 0.7, 0.8, 0.02),
        WorkerGroup("c", 2, 1.0, 0.85, 0.09),
    ];
    let mut case = PolicyTestJob::of(&groups);
    let decision = case.decide_patiently();
    let gone = removed(&decision);
    assert!(gone.len() >= 5, "{}", text(&decision));
    assert!(gone.iter().all(|node| node.starts_with('b')), "{}", text(&decision));
}

/// Two tasks occupy the two fastest processors. The others cannot take them over at that rate.
#[test]
fn the_fastest_nodes_stay_as_far_as_there_is_work() {
    let groups = [WorkerGroup("a", 6, 1.28, 1.0, 0.0), WorkerGroup("b", 4, 3.8, 1.0, 0.0)];
    for (working, overhead) in [("b3", 0.0), ("a5", 0.0), ("b3", 0.45)] {
        let mut case = PolicyTestJob::of(&groups);
        case.worker(working).overhead = overhead;
        case.worker("b2").overhead = 0.1;
        let mut gone = Vec::new();
        // Then the slower ones are slow against the mean.
        while gone.len() < 5 {
            let decision = case.decide();
            gone.extend(removed(&decision));
            case.obey(&decision, 1.0);
        }
        let left = case.workers[&"b".into()].len();
        assert!(left >= 2, "{gone:?}");
        assert!(!gone.contains(&working.to_owned()), "a busy node: {gone:?}");
    }
}
