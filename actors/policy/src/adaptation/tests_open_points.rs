//! Tables for each point that the specification's B6 lists as open or contradictory, by its number.

use springtide_base::id::Epoch;
use springtide_base::processors::Processors;

use super::case::*;
use super::*;

/// Point 1: the size. It moves to the middle of the band (0.4) at constant useful capacity: upwards
/// to the last whole node, at most doubling, at most halving.
#[test]
fn open_point_1_size() {
    let table = [
        // nodes, efficiency, asked for, removed
        (8, 0.82, 8, 0),
        (8, 1.0, 8, 0),
        (10, 0.6, 5, 0),
        (36, 0.51, 9, 0),
        (36, 0.5, 0, 0),
        (36, 0.4, 0, 0),
        (36, 0.3, 0, 0),
        (36, 0.29, 0, 10),
        (36, 0.25, 0, 13), // 22.5 is rounded to 23
        (36, 0.2, 0, 18),
        (36, 0.01, 0, 18),
        (1, 1.0, 1, 0),
        (1, 0.56, 0, 0), // with two nodes it would be 0.28
        (1, 0.1, 0, 0),
        (2, 0.28, 0, 1),
        (3, 0.29, 0, 1),
    ];
    for (n, efficiency, up, down) in table {
        let mut case = PolicyTestJob::even(n, efficiency);
        let first = case.decide();
        assert!(removed(&first).is_empty(), "one bad period removes no node");
        let decision = case.decide();
        let got = (asked(&first), removed(&decision).len() as u32);
        let measured = decision.efficiency.unwrap();
        assert!((measured - efficiency).abs() < 1e-12, "{measured} for {efficiency}");
        assert_eq!(got, (up, down), "{n} nodes at {efficiency}\n{}", text(&decision));
    }
}

/// Point 2: at 35 % after a removal, the paper's scenarios add nodes and its text does not. The
/// policy grows to the last good capacity while efficiency is above Emin, as a setting.
#[test]
fn open_point_2_refill_after_a_loss() {
    let good = Capacity { processors: 36.into(), speed: 36.0 };
    let lost = Refill { to: good, cause: RemovalCause::Link, undo: false, tick: 0 };
    let table = [
        // nodes, efficiency, lost capacity, asked for
        (24, 0.35, Some(lost.clone()), 12),
        (24, 0.31, Some(lost.clone()), 12),
        (24, 0.48, Some(lost.clone()), 12),
        (24, 0.6, Some(lost.clone()), 12), // above the band both rules ask: the larger counts
        (12, 0.4, Some(lost.clone()), 12), // at most doubling
        (24, 0.35, None, 0),               // nothing was lost: the paper's scenario 4
        (36, 0.35, Some(lost.clone()), 0), // the capacity is restored
        (24, 0.29, Some(lost.clone()), 0), // not below the band
    ];
    for (n, efficiency, refill, up) in table {
        let mut case = PolicyTestJob::even(n, efficiency);
        case.memory.refill = refill.clone();
        let decision = case.decide();
        assert_eq!(asked(&decision), up, "{n} at {efficiency} {refill:?}\n{}", text(&decision));
    }
    // At higher speeds, fewer nodes are missing.
    let mut case = PolicyTestJob::of(&[
        WorkerGroup("a", 12, 2.0, 0.6, 0.0),
        WorkerGroup("b", 12, 1.0, 0.6, 0.0),
    ]);
    case.memory.refill =
        Some(Refill { to: Capacity { processors: 36.into(), speed: 39.0 }, ..lost });
    let decision = case.decide();
    assert_eq!(asked(&decision), 2, "{}", text(&decision));
    // A crash starts a replacement, from the capacity of the last good period, unless the setting
    // is off.
    for refill in [true, false] {
        let mut case = PolicyTestJob::even(20, 0.4);
        case.settings.refill = refill;
        case.decide();
        assert_eq!(case.memory.last_good, Some(Capacity { processors: 20.into(), speed: 20.0 }));
        case.workers.get_mut(&"b".into()).unwrap().clear();
        let crash = |i| Crash { node: format!("b{i}").as_str().into(), cluster: "b".into() };
        case.snapshot.crashes = (0..10).map(crash).collect();
        let decision = case.decide();
        assert_eq!(asked(&decision), if refill { 10 } else { 0 }, "{}", text(&decision));
        assert!(says(&decision, "node b3 of cluster b crashed"));
    }
}

/// Point 3: `n` terms, not `n + 1`. Efficiency jumps when the fastest node leaves, which is not a
/// success.
#[test]
fn open_point_3_the_sum_and_the_jump() {
    let mut case = PolicyTestJob::of(&[
        WorkerGroup("a", 1, 4.0, 0.5, 0.0),
        WorkerGroup("a", 3, 1.0, 0.5, 0.0),
    ]);
    let decision = case.decide();
    assert_eq!(decision.efficiency, Some((4.0 * 0.5 + 3.0 * 0.5) / (4.0 * 4.0)));
    // The fast node leaves: efficiency rises from 0.22 to 0.5, and useful speed falls from 3.5 to
    // 1.5.
    let mut trial = Trial {
        aim: Aim::Shrink,
        tick: 0,
        before: Measured { processors: 4.into(), efficiency: 0.22, useful: 3.5 },
        speed: 0.0,
        prediction: Measured { processors: 3.into(), efficiency: 1.0, useful: 3.5 },
        lost: 2.0,
        removed: 1.into(),
        term: None,
        requirements: Requirements::default(),
        seen: 1,
        efficiency: 0.5,
        useful: 1.5,
        doubted: false,
        changed: 0,
    };
    let mut without = PolicyTestJob::of(&[WorkerGroup("a", 3, 1.0, 0.5, 0.0)]);
    without.memory.tick = 4;
    without.memory.trial = Some(trial.clone());
    let decision = without.decide();
    assert!(says(&decision, "removing surplus nodes did not help"), "{}", text(&decision));
    assert!(says(&decision, "the removal is undone: 1 processor is wanted back"));
    // If the others had taken over its work, it would have helped, regardless of efficiency.
    trial.useful = 3.4;
    let mut taken = PolicyTestJob::of(&[WorkerGroup("a", 3, 1.2, 0.05, 0.0)]);
    taken.memory.tick = 4;
    taken.memory.trial = Some(trial);
    let decision = taken.decide();
    assert!(says(&decision, "removing surplus nodes helped"), "{}", text(&decision));
}

/// Point 4: a small healthy cluster is not the worst. Slow nodes are removed in all clusters.
#[test]
fn open_point_4_a_small_cluster_is_not_a_bad_one() {
    let mut case = PolicyTestJob::of(&[
        WorkerGroup("a", 10, 1.0, 0.75, 0.02),
        WorkerGroup("b", 10, 1.0, 0.75, 0.02),
        WorkerGroup("b", 4, 0.2, 0.75, 0.02),
        WorkerGroup("c", 1, 1.0, 0.75, 0.02), // by the sum of speeds the worst by far: 14 / 1
    ]);
    let decision = case.decide_patiently();
    assert_eq!(removed(&decision), ["b10", "b11", "b12", "b13"], "{}", text(&decision));
    // A single node with a much worse link is the worst cluster, and a bad node.
    let mut case = PolicyTestJob::of(&[
        WorkerGroup("a", 10, 1.0, 0.78, 0.02),
        WorkerGroup("c", 1, 1.0, 0.78, 0.24),
    ]);
    let decision = case.decide_patiently();
    assert_eq!(removed(&decision), ["c0"], "{}", text(&decision));
    assert!(says(&decision, "link 24.00, cluster 10.00"), "{}", text(&decision));
}

/// Point 5: in the paper, too little work and overloaded nodes look alike. Here bad nodes are
/// removed for cause and alone. Without bad nodes, some are removed without blame; if that does
/// harm, it is undone and not repeated.
#[test]
fn open_point_5_too_little_work_or_overloaded_nodes() {
    let mut overloaded = PolicyTestJob::of(&[
        WorkerGroup("a", 12, 1.0, 0.75, 0.02),
        WorkerGroup("b", 12, 0.1, 0.75, 0.02),
    ]);
    let decision = overloaded.decide_patiently();
    assert_eq!(removed(&decision).len(), 12);
    assert!(removed(&decision).iter().all(|node| node.starts_with('b')));
    assert_eq!(overloaded.memory.quarantine.len(), 12);

    let mut idle = PolicyTestJob::even(24, 0.25);
    let decision = idle.decide_patiently();
    assert_eq!(removed(&decision).len(), 9);
    assert!(idle.memory.quarantine.is_empty() && idle.memory.refill.is_none());
    // In the cool-down nothing else happens, even at low efficiency.
    idle.obey(&decision, 1.0);
    for left in [2, 1] {
        let decision = idle.decide();
        assert!(decision.actions.is_empty());
        assert!(says(&decision, &format!("needs {left} more period")), "{}", text(&decision));
    }
    // The others did not take over the work of the nine: the removal is undone, also below the
    // band.
    let decision = idle.decide();
    assert!(says(&decision, "removing surplus nodes did not help"), "{}", text(&decision));
    let expected = "no shrinking below 24 processors until the efficiency changes";
    assert!(says(&decision, expected), "{}", text(&decision));
    assert_eq!(asked(&decision), 9);
    idle.obey(&decision, 1.0);
    // It is not repeated without new evidence.
    for _ in 0..50 {
        let decision = idle.decide();
        assert!(removed(&decision).is_empty(), "{}", text(&decision));
    }
    assert!(idle.memory.weights.gamma < 10.0 || idle.memory.weights == Weights::default());
    // Much worse efficiency is a change of conditions: then it is repeated.
    idle.each(|w| w.overhead = 0.95);
    let decision = idle.decide();
    assert!(!removed(&decision).is_empty(), "{}", text(&decision));
}

/// Point 6: idle time with only an inter-cluster steal outstanding is charged to the link. Too
/// little work makes it high everywhere. Then no link is to blame, unless a measurement says so.
#[test]
fn open_point_6_waiting_for_other_clusters_alone_is_no_bad_link() {
    let even = [
        WorkerGroup("a", 8, 1.0, 0.8, 0.5),
        WorkerGroup("b", 8, 1.0, 0.8, 0.5),
        WorkerGroup("c", 8, 1.0, 0.8, 0.45),
    ];
    let mut case = PolicyTestJob::of(&even);
    let decision = case.decide();
    assert_eq!(cluster_removed(&decision), None);
    assert!(says(&decision, "which suggests too little work"), "{}", text(&decision));
    assert_eq!(case.memory.requirements, Requirements::default());
    // An exceptional cluster is removed after one bad period.
    let mut case = PolicyTestJob::of(&[even[0], even[1], WorkerGroup("c", 8, 1.0, 0.8, 0.78)]);
    assert_eq!(cluster_removed(&case.decide()), Some("c"));
    // Its link is measured to be full.
    let mut case = PolicyTestJob::of(&even);
    case.aggregate();
    case.snapshot.clusters.get_mut(&"b".into()).unwrap().uplink =
        Uplink { bandwidth: Some(1e5), used: Some(0.9e5) };
    let decision = case.decide_as_is();
    assert_eq!(cluster_removed(&decision), Some("b"));
    assert!(says(&decision, "its link is full"), "{}", text(&decision));
    // Its link is below the application's learned minimum.
    let mut case = PolicyTestJob::of(&even);
    case.memory.requirements.min_bandwidth = Some(1e6);
    case.uplink("c", 1e5).uplink("a", 1e7).uplink("b", 1e7);
    let decision = case.decide();
    assert_eq!(cluster_removed(&decision), Some("c"));
    // The paper's rule is a setting.
    let mut case = PolicyTestJob::of(&even);
    case.settings.cluster_exceptional = 0.0;
    assert!(cluster_removed(&case.decide()).is_some());
    // Above Emin no cluster is removed for its link.
    let mut case = PolicyTestJob::of(&[
        WorkerGroup("a", 8, 1.0, 0.3, 0.0),
        WorkerGroup("c", 4, 1.0, 0.7, 0.7),
    ]);
    assert_eq!(cluster_removed(&case.decide()), None);
}

/// Point 7: joining nodes are not judged before their grace ends, and leaving nodes do not count.
#[test]
fn open_point_7_joining_and_leaving_nodes_do_not_count() {
    let mut case = PolicyTestJob::even(10, 0.4);
    case.worker("b0").joined = 1;
    *case.worker("b0") =
        WorkerStats { speed: Some(0.001), overhead: 1.0, ..case.worker("b0").clone() };
    *case.worker("b1") =
        WorkerStats { leaving: true, overhead: 1.0, speed: Some(9.0), ..case.worker("b1").clone() };
    case.snapshot.leaving.insert("b1".into(), Processors::ONE);
    let decision = case.decide();
    assert_eq!(decision.processors, 8.into());
    assert!((decision.efficiency.unwrap() - 0.4).abs() < 1e-12);
    assert!(
        says(&decision, "1 joining, not counted, 1 leaving, not counted"),
        "{}",
        text(&decision)
    );
    // A node that was asked to leave is never chosen again, even before its report shows it (C26).
    let mut case = PolicyTestJob::of(&[
        WorkerGroup("a", 6, 1.0, 0.7, 0.0),
        WorkerGroup("b", 6, 0.1, 0.7, 0.0),
    ]);
    case.snapshot.leaving.extend(["b0", "b1"].map(|node| (node.into(), Processors::ONE)));
    case.memory.leaving_since_s = Some(-100.0); // beyond the maximum wait
    let decision = case.decide_patiently();
    assert_eq!(removed(&decision), ["b2", "b3", "b4", "b5"], "{}", text(&decision));
}

/// Point 8: bandwidth comes from transfers above the meter's minimum size. An unknown bandwidth
/// teaches nothing. A bandwidth that suffices for a staying cluster cannot be too low.
#[test]
fn open_point_8_minimum_bandwidth() {
    let groups = [
        WorkerGroup("a", 8, 1.0, 0.8, 0.05),
        WorkerGroup("b", 8, 1.0, 0.8, 0.05),
        WorkerGroup("c", 8, 1.0, 0.9, 0.6),
    ];
    // Links of a, b, c; known before; learned.
    type Row = ([Option<f64>; 3], Option<f64>, Option<f64>);
    let table: [Row; 6] = [
        ([Some(1e7), Some(1e7), Some(1e5)], None, Some(1.1e5)),
        ([Some(1e7), Some(1e7), None], None, None),
        ([None, None, Some(1e5)], None, Some(1.1e5)),
        ([Some(1e7), Some(0.9e5), Some(1e5)], None, None),
        ([Some(1e7), Some(1e7), Some(1e5)], Some(5e5), Some(5e5)),
        ([Some(1e7), Some(1.15e5), Some(1e5)], None, Some(1.035e5)),
    ];
    for (links, before, learned) in table {
        let mut case = PolicyTestJob::of(&groups);
        case.memory.requirements.min_bandwidth = before;
        for (cluster, link) in ["a", "b", "c"].into_iter().zip(links) {
            link.into_iter().for_each(|b| {
                case.uplink(cluster, b);
            });
        }
        let decision = case.decide();
        assert_eq!(cluster_removed(&decision), Some("c"), "{}", text(&decision));
        let got = case.memory.requirements.min_bandwidth;
        let near = |a: f64, b: f64| (a - b).abs() < 1e-6 * b;
        let same = got.zip(learned).map_or(got == learned, |(a, b)| near(a, b));
        assert!(same, "{links:?}: {got:?} instead of {learned:?}");
        // The next request carries it to the scheduler, and avoids the cluster.
        case.obey(&decision, 1.0).each(|w| w.overhead = 0.3);
        case.decide();
        case.decide();
        let decision = case.decide();
        assert_eq!(request(&decision).min_bandwidth, got);
        assert!(request(&decision).avoid_clusters.contains(&"c".into()));
    }
}

/// Point 9: the job's minimum, the last cluster and the root's node.
#[test]
fn open_point_9_never_removed() {
    // The minimum, in a removal of nodes.
    let mut case = PolicyTestJob::even(10, 0.1);
    case.snapshot.min_processors = 8.into();
    let decision = case.decide_patiently();
    assert_eq!(removed(&decision).len(), 2);
    assert!(says(&decision, "3 processors should have gone and stayed: the job must have 8"));
    // The minimum, in a removal of a cluster: replacements from other clusters come first.
    let groups = [WorkerGroup("a", 6, 1.0, 0.8, 0.05), WorkerGroup("c", 4, 1.0, 0.9, 0.6)];
    let mut case = PolicyTestJob::of(&groups);
    case.snapshot.min_processors = 8.into();
    let decision = case.decide();
    assert_eq!((cluster_removed(&decision), asked(&decision)), (None, 2), "{}", text(&decision));
    assert!(request(&decision).avoid_clusters.contains(&"c".into()));
    // Where the maximum leaves no room for replacements, the cluster stays.
    let mut case = PolicyTestJob::of(&groups);
    (case.snapshot.min_processors, case.snapshot.max_processors) = (10.into(), Some(10.into()));
    assert!(case.decide().actions.is_empty());
    // The last cluster is not removed.
    let mut case = PolicyTestJob::of(&[WorkerGroup("a", 6, 1.0, 0.9, 0.6)]);
    let decision = case.decide();
    assert!(
        says(&decision, "cluster a was not removed: it is the last one"),
        "{}",
        text(&decision)
    );
    // A cluster of joining nodes only does not count as another cluster.
    let mut case = PolicyTestJob::of(&[
        WorkerGroup("a", 6, 1.0, 0.9, 0.6),
        WorkerGroup("b", 6, 1.0, 0.9, 0.0),
    ]);
    case.workers.get_mut(&"b".into()).unwrap().iter_mut().for_each(|w| w.joined = 0);
    case.root("b0");
    assert_eq!(cluster_removed(&case.decide()), None);
    // The root's node: if it is healthy, another node is removed...
    let mut case = PolicyTestJob::even(4, 0.2);
    case.worker("a0").overhead_inter = 0.05;
    case.worker("a1").overhead_inter = 0.05;
    let decision = case.decide_patiently();
    assert!(!removed(&decision).contains(&"a0".to_owned()), "{}", text(&decision));
    // ...and if it is bad, the root moves to another cluster.
    let mut case = PolicyTestJob::of(&[
        WorkerGroup("a", 2, 0.1, 0.8, 0.0),
        WorkerGroup("a", 6, 1.0, 0.8, 0.0),
        WorkerGroup("b", 4, 1.0, 0.8, 0.0),
    ]);
    let decision = case.decide_patiently();
    assert_eq!(removed(&decision), ["a1"], "{}", text(&decision));
    assert!(says(&decision, "node a0 was not removed yet: it holds the job's root, which moves"));
    let moves = |action: &AdaptationAction| match action {
        AdaptationAction::MoveRoot { from, cluster, .. } => {
            from.as_str() == "a0" && cluster.as_str() == "b"
        }
        _ => false,
    };
    let moved = decision.actions.iter().any(moves);
    assert!(moved, "{:?}", decision.actions);
    // It moves to the cluster whose uplink suffices, not to the one that worked most in a period
    // without work for all.
    let narrow = |done: f64| {
        let mut case = PolicyTestJob::of(&[
            WorkerGroup("a", 2, 0.1, 0.8, 0.0),
            WorkerGroup("a", 6, 1.0, 0.8, 0.0),
            WorkerGroup("b", 4, 1.0, 1.0, 0.0),
            WorkerGroup("c", 4, 1.0, 1.0 - done, 0.0),
        ]);
        case.uplink("b", 4e6).uplink("c", 1e5);
        case.decide_patiently()
    };
    for done in [0.0, 0.01, 0.5] {
        let decision = narrow(done);
        let to = decision.actions.iter().find_map(|action| match action {
            AdaptationAction::MoveRoot { cluster, .. } => Some(cluster.as_str()),
            _ => None,
        });
        assert_eq!(to, Some("b"), "{}", text(&decision));
    }
    // The root's cluster: first the root moves, and nothing else happens until it has arrived.
    let mut case = PolicyTestJob::of(&[
        WorkerGroup("a", 4, 1.0, 0.9, 0.6),
        WorkerGroup("b", 4, 1.0, 0.8, 0.05),
    ]);
    let decision = case.decide();
    assert!(
        matches!(&decision.actions[..], [AdaptationAction::MoveRoot { .. }]),
        "{:?}",
        decision.actions
    );
    let decision = case.decide();
    assert!(decision.actions.is_empty() && says(&decision, "moving from node a0 to node b0"));
    case.root("b0");
    assert_eq!(cluster_removed(&case.decide()), Some("a"));
    // Its node is drained.
    let mut case = PolicyTestJob::even(6, 0.4);
    case.snapshot.leaving.insert("a0".into(), Processors::ONE);
    let decision = case.decide();
    assert!(moves_root_to(&decision, "b0"));
    assert!(says(&decision, "its node was asked to leave"));
    // In a single cluster it moves within it; on a single node it stays, with a reason.
    let mut case = PolicyTestJob::of(&[WorkerGroup("a", 3, 1.0, 0.6, 0.0)]);
    case.snapshot.leaving.insert("a0".into(), Processors::ONE);
    assert!(moves_root_to(&case.decide(), "a1"));
    let mut case = PolicyTestJob::of(&[WorkerGroup("a", 1, 1.0, 0.6, 0.0)]);
    case.snapshot.leaving.insert("a0".into(), Processors::ONE);
    assert!(says(&case.decide(), "the job's root stays on node a0"));
}

/// Point 10: the meter bounds the cost of benchmarks; their error counts in favour of the node.
#[test]
fn open_point_10_the_benchmarks_error() {
    for (error, goes) in [(0.0, true), (0.1, true), (0.5, false)] {
        let mut case = PolicyTestJob::of(&[
            WorkerGroup("a", 10, 1.0, 0.75, 0.0),
            WorkerGroup("b", 2, 0.4, 0.75, 0.0),
        ]);
        // Slow is below half of the mean: 0.45.
        case.each(|w| w.speed_error = error);
        let decision = case.decide_patiently();
        let bad = decision
            .reasons
            .iter()
            .any(|r| matches!(r, Reason::NodeRemoved { cause: RemovalCause::Slow, .. }));
        assert_eq!(bad, goes, "{error}\n{}", text(&decision));
    }
}

/// After the loss of the root's node, the cluster that waited longest must not be removed for its
/// link. While a cluster is silent, healthy nodes must not be removed as surplus.
#[test]
fn no_node_is_removed_during_a_recovery() {
    let waits = [WorkerGroup("a", 4, 1.0, 0.8, 0.02), WorkerGroup("b", 4, 1.0, 0.9, 0.7)];
    let crash = |case: &mut PolicyTestJob| {
        let (node, cluster) = ("b9".into(), "b".into());
        case.snapshot.crashes.push(Crash { node, cluster });
    };
    let mut calm = PolicyTestJob::of(&waits);
    assert_eq!(cluster_removed(&calm.decide()), Some("b"));
    for lose in [crash as fn(&mut PolicyTestJob), |case| case.snapshot.epoch = Epoch(2)] {
        let mut case = PolicyTestJob::of(&waits);
        case.settings.refill = false;
        // The job has run for a while.
        case.memory.tick = 7;
        (case.memory.epoch, case.memory.period) = (Epoch(1), 99);
        lose(&mut case);
        for left in (1..=u64::from(case.settings.cool_down) + 1).rev() {
            let decision = case.decide();
            assert!(decision.actions.is_empty(), "{}", text(&decision));
            assert!(says(&decision, &format!("for {left} more period")), "{}", text(&decision));
            assert_eq!(case.memory.below, 0);
        }
        assert_eq!(cluster_removed(&case.decide()), Some("b"));
    }
    // A root that moved by order causes no recovery.
    let mut case = PolicyTestJob::of(&waits);
    (case.memory.epoch, case.memory.period, case.memory.tick) = (Epoch(1), 99, 7);
    let (from, to) = ("b0".into(), "a0".into());
    case.memory.root_move = Some(RootMove { from, to, tick: 6, then_goes: false });
    case.snapshot.epoch = Epoch(2);
    assert_eq!(cluster_removed(&case.decide()), Some("b"));
    // Silent members block removals as long as they are silent.
    let mut case = PolicyTestJob::of(&[WorkerGroup("a", 4, 1.0, 0.9, 0.02)]);
    case.snapshot.members = [("a".into(), 4.into()), ("c".into(), 3.into())].into();
    for _ in 0..5 {
        let decision = case.decide();
        assert!(removed(&decision).is_empty() && says(&decision, "are silent"));
    }
    case.snapshot.members = [("a".into(), 4.into())].into();
    case.snapshot.late = ["a".into()].into();
    assert!(says(&case.decide(), "are silent"));
    case.snapshot.late.clear();
    assert!(!removed(&case.decide_patiently()).is_empty());
}

/// The transfers that a full link is estimated from share it.
#[test]
fn a_link_carries_at_least_what_it_carries() {
    let mut case = PolicyTestJob::even(4, 0.5);
    case.uplink("c0", 9.7e3);
    case.aggregate();
    let cluster = case.snapshot.clusters.keys().next().cloned().expect("there is a cluster");
    let uplink = |case: &mut PolicyTestJob, used: Option<f64>| {
        case.snapshot.clusters.get_mut(&cluster).expect("it is there").uplink.used = used;
        case.snapshot.uplink(&cluster)
    };
    case.snapshot.links[0].a = cluster.clone();
    assert_eq!(uplink(&mut case, Some(57e3)), Some(57e3));
    assert_eq!(uplink(&mut case, Some(1e3)), Some(9.7e3));
    assert_eq!(uplink(&mut case, Some(f64::NAN)), Some(9.7e3));
    // What was carried says nothing of a link without an estimate.
    case.snapshot.links.clear();
    assert_eq!(uplink(&mut case, Some(57e3)), None);
}
