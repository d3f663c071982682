//! Growth that did harm, and measurements that say nothing yet. The cases come from drawn grids on
//! which adaptation prolonged the job.

use super::case::*;
use super::*;

/// A job without a measurement grows by a guess. If it cannot use the great node that joined, that
/// node leaves, although the job loses more than half of its processors.
#[test]
fn growth_before_any_measurement_is_undone_as_a_whole() {
    let mut case = PolicyTestJob::of(&[WorkerGroup("a", 1, 8.0, 0.1, 0.0)]);
    case.each(|w| (w.threads, w.speed, w.joined) = (2, None, 100));
    let decision = case.decide();
    assert_eq!(asked(&decision), 2, "{}", text(&decision));
    let fast = WorkerStats {
        speed: Some(8.0),
        overhead: 0.5,
        joined: 50,
        ..case.workers[&"a".into()][0].clone()
    };
    let slow = WorkerStats {
        node: "b0".into(),
        threads: 5,
        speed: Some(7.0),
        overhead: 0.9,
        ..fast.clone()
    };
    case.workers.insert("a".into(), vec![fast]);
    case.workers.insert("b".into(), vec![slow]);
    case.memory.cool_until = 0;
    let decision = case.decide_patiently();
    assert_eq!(removed(&decision), ["b0"], "{}", text(&decision));
    // After another change, growth is no guess any more, and half of the processors stay.
    assert_eq!(case.memory.size_before_guess, None);
}

/// New nodes that are slow take tasks for which all others wait: the growth is judged, and they
/// leave. Growth by such nodes is not repeated.
#[test]
fn growth_by_slow_nodes_is_judged() {
    let mut case = PolicyTestJob::even(8, 0.7);
    let decision = case.decide();
    assert_eq!(asked(&decision), 6, "{}", text(&decision));
    case.obey(&decision, 0.3);
    // Useful speed falls from 5.6 to 4.9, within the band.
    case.each(|w| w.overhead = 0.5);
    let (mut explanation, mut gone) = (String::new(), Vec::new());
    for _ in 0..12 {
        let decision = case.decide();
        explanation += &text(&decision);
        case.obey(&decision, 0.3);
        if !removed(&decision).is_empty() {
            case.each(|w| w.overhead = 0.3);
        }
        gone.extend(removed(&decision));
    }
    let new = |node: &String| node.starts_with("new");
    assert!(!gone.is_empty() && gone.iter().all(new), "{gone:?}: {explanation}");
    assert!(explanation.contains("adding nodes did not help"), "{explanation}");
    assert!(case.memory.ceiling.is_some(), "{explanation}");
}

/// A job that becomes faster without its surplus nodes does not get them back at once.
#[test]
fn a_size_at_which_nodes_delayed_each_other_is_not_tried_again() {
    for (useful_after, limited) in [(0.4, false), (0.49, true)] {
        let mut case = PolicyTestJob::even(12, 0.2);
        let decision = case.decide_patiently();
        assert_eq!(removed(&decision).len(), 6, "{}", text(&decision));
        case.obey(&decision, 1.0);
        case.each(|w| w.overhead = 1.0 - useful_after);
        let mut explanation = String::new();
        let mut wanted = 0;
        for _ in 0..8 {
            let decision = case.decide();
            explanation += &text(&decision);
            wanted += asked(&decision);
        }
        assert_eq!(case.memory.ceiling.is_some(), limited, "{explanation}");
        assert_eq!(wanted, 0, "{explanation}");
    }
}

/// The nodes of a root that moved by order get new tasks. Their first period removes no healthy
/// node.
#[test]
fn the_periods_before_an_ordered_move_of_the_root_do_not_count() {
    for moves in [false, true] {
        let mut case = PolicyTestJob::even(12, 0.2);
        case.decide();
        assert_eq!(case.memory.below, 1);
        if moves {
            case.snapshot.epoch.0 += 1;
            case.snapshot.period = 1;
            case.memory.root_move = Some(RootMove {
                from: "b0".into(),
                to: "a0".into(),
                tick: case.memory.tick,
                then_goes: false,
            });
        }
        let decision = case.decide();
        assert_eq!(removed(&decision).is_empty(), moves, "{}", text(&decision));
        assert!(!removed(&case.decide()).is_empty() || !moves);
    }
}

/// The processors of a fast cluster have nothing to do at the end of an iteration, and wait with a
/// request to another cluster outstanding. In the first iteration that does not show a bad link,
/// unless it lasts. A link that is full shows it at any time, and so does a cluster that has not
/// worked at all.
#[test]
fn an_exceptional_overhead_is_no_evidence_at_the_end_of_the_first_iteration() {
    // Complete iterations, a full link, whether the cluster has worked, bad periods before
    // -> whether it goes.
    let table = [
        (0, false, true, 0, false),
        (0, false, true, 5, true),
        (0, true, true, 0, true),
        (0, false, false, 0, true),
        (3, false, true, 0, true),
    ];
    for row @ (done, full, has_worked, below, goes) in table {
        let mut case = PolicyTestJob::of(&[
            WorkerGroup("a", 10, 1.0, 0.75, 0.02),
            WorkerGroup("b", 4, 1.0, 0.9, 0.8),
        ]);
        if !has_worked {
            case.each(|w| {
                if w.overhead_inter > 0.5 {
                    w.speed = None;
                }
            });
        }
        case.snapshot.progress = Some(JobProgress { done, total: Some(10) });
        (case.memory.clock_s, case.memory.below) = (100.0, below);
        case.memory.iterations = Some(Iterations { done, at_s: 0.0, length_s: None });
        case.aggregate();
        if full {
            let uplink = Uplink { bandwidth: Some(1e5), used: Some(9e4) };
            case.snapshot.clusters.get_mut(&"b".into()).unwrap().uplink = uplink;
        }
        let decision = case.decide_as_is();
        assert_eq!(cluster_removed(&decision) == Some("b"), goes, "{row:?}: {}", text(&decision));
    }
}
