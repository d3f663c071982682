//! Jobs with phases, workers that have not worked yet, and measurements of unused links. The cases
//! come from simulations of the paper's scenarios with short periods.

use springtide_base::id::{ClusterId, Incarnation};

use super::case::*;
use super::*;

fn worker(overheads: [f64; 3]) -> WorkerStats {
    let [overhead, overhead_intra, overhead_inter] = overheads;
    let speed = Some(1.0);
    WorkerStats {
        node: "a0".into(),
        speed,
        overhead,
        overhead_intra,
        overhead_inter,
        joined: 50,
        ..WorkerStats::default()
    }
}

#[test]
fn overheads_are_means_over_an_iteration() {
    let mut history = WorkerHistory::default();
    let settings = AdaptationSettings::default();
    // Busy for six periods, idle for four, repeatedly.
    let mut last = None;
    for period in 0..25 {
        let idle = if period % 10 < 6 { 0.0 } else { 1.0 };
        assert_eq!(history.report(worker([idle, 0.0, 0.5 * idle]), &settings), None);
        last = history.close_period(10);
    }
    let last = last.unwrap();
    assert!((last.overhead - 0.4).abs() < 1e-9 && (last.overhead_inter - 0.2).abs() < 1e-9);
    // Each period alone shows its phase.
    assert_eq!(history.close_period(1).unwrap().overhead, 0.0);
    // A new incarnation starts without a history.
    let restarted = WorkerStats { incarnation: Incarnation(1), ..worker([0.8, 0.0, 0.0]) };
    assert_eq!(history.report(restarted, &settings), None);
    assert_eq!(history.close_period(10).unwrap().overhead, 0.8);
}

#[test]
fn the_length_of_iterations_is_learned() {
    let mut case = PolicyTestJob::even(20, 0.45);
    let mut spans = Vec::new();
    for period in 0..40u64 {
        // From period 20 on, iterations take half as long.
        let done = if period < 20 { period / 8 } else { 2 + (period - 16) / 4 };
        case.snapshot.progress = Some(JobProgress { done, total: Some(100) });
        case.decide();
        spans.push(case.memory.span);
    }
    // The first one is known to half a period.
    assert_eq!((spans[7], spans[16], spans[39]), (1, 9, 4), "{spans:?}");
    // Of iterations of six fifths of a period, one ends in each of four periods and two in the
    // fifth. So one period does not represent them.
    let mut case = PolicyTestJob::even(20, 0.45);
    let mut spans = Vec::new();
    for period in 0..30u64 {
        let done = (period as f64 / 1.2) as u64;
        case.snapshot.progress = Some(JobProgress { done, total: Some(100) });
        case.decide();
        spans.push(case.memory.span);
    }
    assert!(spans[10..].iter().all(|span| *span == 2), "{spans:?}");
    // A first iteration of almost two periods does not count as one: it started before the first
    // period's end.
    let mut case = PolicyTestJob::even(20, 0.45);
    for done in [0, 1] {
        case.snapshot.progress = Some(JobProgress { done, total: Some(100) });
        case.decide();
    }
    assert_eq!(case.memory.span, 2);
    // A job without a total of units does not iterate.
    let mut case = PolicyTestJob::even(20, 0.45);
    for done in [1, 1, 1, 2, 2, 2, 3] {
        case.snapshot.progress = Some(JobProgress { done, total: None });
        case.decide();
    }
    assert_eq!(case.memory.span, 1);
}

/// Statistics over the old, longer span cover an iteration, too. Those over a shorter one do not.
#[test]
fn only_longer_iterations_defer_a_decision() {
    for (from, to, waits) in [(3, 1, false), (1, 3, true)] {
        let mut case = PolicyTestJob::even(20, 0.45);
        let (mut done, mut changes) = (0, 0);
        for period in 0..40 {
            let length = if period < 20 { from } else { to };
            done += u64::from(period % length == 0);
            case.snapshot.progress = Some(JobProgress { done, total: Some(100) });
            let known = case.memory.span;
            case.decide();
            if period >= 20 && case.memory.span != known {
                changes += 1;
                assert_eq!(case.memory.cool_until >= case.memory.tick, waits, "{from} to {to}");
            }
        }
        assert!(changes > 0, "{from} to {to}");
    }
}

/// In its first iteration a job shows its parallel phase, then its sequential one: neither
/// represents the job.
#[test]
fn before_the_first_iteration_is_over_a_job_grows_once_and_does_not_shrink() {
    let mut case = PolicyTestJob::even(20, 0.9);
    case.snapshot.progress = Some(JobProgress { done: 0, total: Some(10) });
    let decision = case.decide();
    assert_eq!(asked(&decision), 20, "{}", text(&decision));
    case.obey(&decision, 1.0);
    for _ in 0..5 {
        let decision = case.decide();
        assert_eq!(asked(&decision), 0, "{}", text(&decision));
    }
    case.each(|w| w.overhead = 0.98);
    for _ in 0..8 {
        let decision = case.decide();
        assert!(decision.actions.is_empty(), "{}", text(&decision));
    }
    assert!(says(&case.decide(), "until the job's first iteration has shown"));
    // A slow node is slow in every phase.
    case.worker("a3").speed = Some(0.2);
    assert_eq!(removed(&case.decide()), ["a3"]);
}

/// The end of the current iteration is mixed after a removal: only the next iteration represents
/// the new nodes.
#[test]
fn judgement_waits_for_a_whole_iteration_after_a_change() {
    let mut case = PolicyTestJob::of(&[
        WorkerGroup("a", 10, 1.0, 0.6, 0.01),
        WorkerGroup("b", 10, 1.0, 0.6, 0.01),
    ]);
    let decide = |case: &mut PolicyTestJob, period: u64| {
        case.snapshot.progress = Some(JobProgress { done: period / 8, total: Some(100) });
        case.decide()
    };
    for period in 0..27 {
        assert!(decide(&mut case, period).actions.is_empty(), "{period}");
    }
    // A crash in the middle of the fourth iteration.
    case.snapshot.crashes = vec![Crash { node: "b9".into(), cluster: "b".into() }];
    case.each(|w| w.overhead = 0.95);
    let waited = (27..80).find(|period| !removed(&decide(&mut case, *period)).is_empty());
    // Three iterations are complete; at the end of the fifth, in period 40, one whole iteration is
    // known.
    assert_eq!(waited, Some(40));
    // A slow node is detected in the middle of an iteration, too.
    let mut case = PolicyTestJob::of(&[
        WorkerGroup("a", 10, 1.0, 0.6, 0.01),
        WorkerGroup("b", 10, 1.0, 0.6, 0.01),
    ]);
    (0..27).for_each(|period| drop(decide(&mut case, period)));
    case.memory.iteration_from = 9;
    case.memory.iteration_tick = 1000;
    case.each(|w| w.overhead = 0.95);
    case.worker("b3").speed = Some(0.1);
    (27..28).for_each(|period| drop(decide(&mut case, period)));
    let decision = decide(&mut case, 28);
    assert_eq!(removed(&decision), ["b3"], "{}", text(&decision));
    assert!(says(&decision, "until a whole iteration has shown"));
}

/// Ten nodes behind an uplink so thin that none has received its input yet. They count as waiting
/// for other clusters, and the growth that added them is not judged by it.
#[test]
fn workers_without_work_count_as_waiting() {
    let groups = [WorkerGroup("a", 10, 1.0, 0.05, 0.01), WorkerGroup("b", 10, 1.0, 1.0, 1.0)];
    let mut case = PolicyTestJob::of(&groups);
    case.each(|w| {
        if w.overhead == 1.0 {
            w.speed = None;
        }
    });
    let decision = case.decide();
    assert_eq!(
        (decision.processors.get(), decision.efficiency.map(|e| (e * 1000.0).round())),
        (20, Some(475.0))
    );
    assert!(says(&decision, "10 with a presumed speed"), "{}", text(&decision));
    // The others wait for the tasks of these nodes only.
    case.each(|w| {
        if w.speed.is_some() {
            (w.overhead, w.overhead_inter) = (0.9, 0.5);
        }
    });
    let decision = case.decide();
    assert_eq!(cluster_removed(&decision), Some("b"), "{}", text(&decision));
    // A worker that is busy but has not completed a task counts with the work of its time.
    let mut case = PolicyTestJob::of(&groups);
    case.each(|w| {
        if w.overhead == 1.0 {
            (w.speed, w.overhead, w.overhead_inter) = (None, 0.5, 0.1);
        }
    });
    let decision = case.decide();
    assert_eq!(
        (decision.processors.get(), decision.efficiency.map(|e| (e * 1000.0).round())),
        (20, Some(725.0))
    );
    // Where no speed is known, none is presumed.
    case.each(|w| (w.speed, w.overhead) = (None, 1.0));
    assert_eq!(case.decide().efficiency, None);
}

/// A master that waits for its workers computes nothing, and its processor is not idle. Two nodes
/// are a master and a busy worker, so the job grows.
#[test]
fn a_serving_master_counts_as_the_mean_of_the_workers() {
    let mut case = PolicyTestJob::of(&[
        WorkerGroup("a", 2, 1.0, 0.1, 0.0),
        WorkerGroup("b", 3, 1.0, 0.4, 0.2),
    ]);
    let efficiency = |case: &mut PolicyTestJob| {
        let decision = case.clone().decide();
        (decision.processors.get(), decision.efficiency.map(|e| (e * 1000.0).round()))
    };
    assert_eq!(efficiency(&mut case), (5, Some(720.0)));
    let serve = |w: &mut WorkerStats| (w.serving, w.speed, w.overhead) = (0.97, None, 0.0);
    serve(case.worker("a0"));
    assert_eq!(efficiency(&mut case), (5, Some(720.0)), "a1 stands for a0");
    // Where no other node of its cluster counts, the job's mean stands for it.
    case.worker("a1").joined = 0;
    assert_eq!(efficiency(&mut case), (4, Some(600.0)));
    // One of four processors serves: the others' overhead is the node's own.
    let like = WorkerStats { node: "a0".into(), ..case.worker("b0").clone() };
    let (threads, speed) = (4, Some(4.0));
    *case.worker("a0") =
        WorkerStats { threads, speed, overhead: 0.5, serving: 0.25, ..like.clone() };
    assert_eq!(efficiency(&mut case), (7, Some(543.0)), "(4 * 0.5 + 3 * 0.6) / 7");
    // A master that waits less than it works is a worker like others.
    *case.worker("a0") = WorkerStats { overhead: 0.2, serving: 0.4, ..like };
    assert_eq!(efficiency(&mut case), (4, Some(650.0)));
    let mut two = PolicyTestJob::of(&[WorkerGroup("a", 2, 1.0, 0.05, 0.0)]);
    serve(two.worker("a0"));
    assert_eq!(asked(&two.decide()), 2);
    // Without any worker, nothing is measured.
    two.workers.values_mut().for_each(|list| list.truncate(1));
    assert_eq!(two.decide().efficiency, None);
}

#[test]
fn growth_is_not_judged_while_a_link_is_suspect() {
    let mut case = PolicyTestJob::of(&[
        WorkerGroup("a", 10, 1.0, 0.1, 0.01),
        WorkerGroup("b", 10, 1.0, 0.1, 0.01),
    ]);
    let decision = case.decide();
    assert!(asked(&decision) > 0);
    case.obey(&decision, 1.0);
    case.each(|w| {
        let far = w.node.as_str().starts_with('b');
        (w.overhead, w.overhead_inter) = if far { (1.0, 1.0) } else { (0.8, 0.3) };
    });
    let explanation: String = (0..4).map(|_| text(&case.decide())).collect();
    assert!(explanation.contains("whether adding nodes helped is unknown"), "{explanation}");
    assert!(!explanation.contains("did not help"), "{explanation}");
}

/// A cluster in quarantine for its link is neither excluded longer than the link is bad nor tried
/// in vain.
#[test]
fn the_link_of_a_cluster_in_quarantine_is_measured() {
    let mut case = PolicyTestJob::without_b();
    // Its free nodes, and the measured bandwidth to them.
    let offer = |bandwidth, measured_s| NodeOffer {
        free: 4.into(),
        bandwidth: Some(bandwidth),
        measured_s,
        ..NodeOffer::default()
    };
    let b = ClusterId::from("b");
    case.snapshot.offers.insert(b.clone(), offer(1e5, None));
    let (mut asked, mut tried) = (Vec::new(), Vec::new());
    for period in 1..=95u32 {
        let decision = case.decide();
        if decision.actions.contains(&AdaptationAction::Measure { cluster: b.clone() }) {
            asked.push(period);
            case.snapshot.offers.insert(b.clone(), offer(1.1e5, Some(5.0)));
        }
        let requests = decision.actions.iter().filter_map(|a| match a {
            AdaptationAction::Request(request) => Some(request),
            _ => None,
        });
        tried.extend(requests.filter(|r| !r.avoid_clusters.contains(&b)).map(|_| period));
    }
    // Measured every minute; the terms (300 s, 600 s) are renewed without a try.
    assert_eq!(asked[..4], [6, 12, 18, 24], "{asked:?}");
    assert_eq!(tried, Vec::<u32>::new());
    // The link is better: the cluster is requested again at once.
    case.snapshot.offers.insert(b.clone(), offer(1e6, Some(5.0)));
    case.each(|w| (w.overhead, w.overhead_inter) = (0.1, 0.01));
    let decision = (0..12).map(|_| case.decide()).find(|d| super::case::asked(d) > 0).unwrap();
    assert!(!request(&decision).avoid_clusters.contains(&b), "{}", text(&decision));
    assert!(request(&decision).waive.contains(&b));
}

/// A cluster that was removed before its link was measured must not return after its term with the
/// same link. Found in the paper's scenario 3 with real nodes.
#[test]
fn an_unmeasured_link_is_measured_after_its_removal() {
    let groups = [WorkerGroup("a", 10, 1.0, 0.55, 0.01), WorkerGroup("b", 4, 1.0, 0.95, 0.9)];
    let tried = |carries: f64| {
        let mut case = PolicyTestJob::of(&groups);
        case.uplink("a", 1e6);
        case.each(|w| w.overhead = w.overhead.max(0.8));
        let decision = case.decide();
        assert_eq!(cluster_removed(&decision), Some("b"), "{}", text(&decision));
        case.obey(&decision, 1.0);
        case.each(|w| (w.overhead, w.overhead_inter) = (0.1, 0.01));
        let b = ClusterId::from("b");
        case.snapshot
            .offers
            .insert(b.clone(), NodeOffer { free: 4.into(), ..NodeOffer::default() });
        let (mut explanation, mut tried) = (String::new(), false);
        for _ in 1..=30u32 {
            let decision = case.decide();
            if decision.actions.contains(&AdaptationAction::Measure { cluster: b.clone() }) {
                let (bandwidth, measured_s) = (Some(carries), Some(5.0));
                let offer =
                    NodeOffer { free: 4.into(), bandwidth, measured_s, ..NodeOffer::default() };
                case.snapshot.offers.insert(b.clone(), offer);
            }
            explanation += &text(&decision);
            tried |= decision.actions.iter().any(
                |a| matches!(a, AdaptationAction::Request(r) if !r.avoid_clusters.contains(&b)),
            );
        }
        (tried, explanation)
    };
    // The term of 300 s ends after 30 periods of ten seconds.
    let (again, explanation) = tried(1e5);
    let renewed = explanation.contains("cluster b stays in quarantine for 600 s");
    assert!(!again && renewed, "{explanation}");
    // A bandwidth equal to the others' cannot be the cause of the removal: the term ends.
    let (again, explanation) = tried(9e5);
    assert!(again && !explanation.contains("stays in quarantine"), "{explanation}");
}

/// An external load starts just after growth. It neither counts against the growth, nor do the
/// consequences remain when undoing the growth does harm.
#[test]
fn growth_is_not_to_blame_for_a_node_that_became_slow() {
    let grown = || {
        let mut case = PolicyTestJob::even(4, 0.7);
        let decision = case.decide();
        assert!(asked(&decision) > 0, "{}", text(&decision));
        case.obey(&decision, 1.0);
        case
    };
    for speed in [0.1, 0.4] {
        let mut case = grown();
        case.each(|w| w.overhead = 0.7);
        case.worker("b1").speed = Some(speed);
        let explanation: String = (0..4).map(|_| text(&case.decide())).collect();
        assert!(explanation.contains("whether adding nodes helped is unknown"), "{explanation}");
        assert_eq!(case.memory.ceiling, None);
    }

    // All nodes are slower than before, the new ones too, at the same efficiency: the job is in
    // another phase.
    let mut case = grown();
    case.each(|w| w.speed = w.speed.map(|speed| speed * 0.5));
    let explanation: String = (0..6).map(|_| text(&case.decide())).collect();
    assert!(explanation.contains("adding nodes helped"), "{explanation}");
    assert_eq!(case.memory.ceiling, None, "{explanation}");

    // The load reduces the useful speed before it reduces the measured speed.
    let mut case = grown();
    case.each(|w| w.overhead = 0.7);
    let explanation: String = (0..3).map(|_| text(&case.decide())).collect();
    assert!(explanation.contains("a second check decides"), "{explanation}");
    case.worker("b1").speed = Some(0.1);
    let decisions: Vec<_> = (0..3).map(|_| case.decide()).collect();
    let explanation: String = decisions.iter().map(text).collect();
    assert!(explanation.contains("whether adding nodes helped is unknown"), "{explanation}");
    assert_eq!(case.memory.ceiling, None, "{explanation}");
    assert!(decisions.iter().flat_map(removed).all(|node| node == "b1"), "{explanation}");

    // No node looks slow, but the useful speed falls.
    let mut case = grown();
    case.each(|w| w.overhead = 0.7);
    let (mut explanation, mut undone) = (String::new(), false);
    for _ in 0..12 {
        let decision = case.decide();
        explanation += &text(&decision);
        if !removed(&decision).is_empty() {
            assert!(case.memory.ceiling.is_some(), "{explanation}");
            undone = true;
            case.obey(&decision, 1.0);
            // Now it is clear that the growth was not the cause.
            case.each(|w| w.overhead = 0.85);
        }
    }
    assert!(undone && explanation.contains("did not help"), "{explanation}");
    assert_eq!(case.memory.ceiling, None, "{explanation}");
}

/// A job at its maximum has no room for both a slow node and its replacement: the slow one leaves
/// first.
#[test]
fn a_job_at_its_maximum_replaces_a_slow_node() {
    // The slow one's speed, whether a node is free, efficiency -> whether it goes.
    let table =
        [(0.2, 1, 0.45, true), (0.2, 1, 0.7, true), (0.2, 0, 0.45, false), (0.6, 1, 0.45, false)];
    for (speed, free, efficiency, goes) in table {
        let waits = 1.0 - efficiency;
        let mut case = PolicyTestJob::of(&[
            WorkerGroup("a", 4, 1.0, waits, 0.0),
            WorkerGroup("b", 1, speed, waits, 0.0),
        ]);
        let offer = NodeOffer { free: free.into(), speed: Some(1.0), ..NodeOffer::default() };
        case.snapshot.offers.insert("a".into(), offer);
        case.snapshot.max_processors = Some(5.into());
        let decision = case.decide();
        let explanation = text(&decision);
        let row = format!("{speed} {free} {efficiency}: {explanation}");
        assert_eq!(removed(&decision) == ["b0"], goes, "{row}");
        assert_eq!(asked(&decision), 0);
        assert_eq!(says(&decision, "replaced by better free ones"), goes, "{explanation}");
        if !goes {
            continue;
        }
        case.obey(&decision, 1.0);
        let asks = (0..6).map(|_| case.decide()).find(|decision| asked(decision) > 0);
        let asks = asks.expect("what is lost is replaced");
        assert_eq!(asked(&asks), 1, "{}", text(&asks));
        // It is requested again if it is as fast as the others.
        assert!(
            case.memory
                .quarantine
                .iter()
                .any(|e| e.subject == QuarantineSubject::Node("b0".into()))
        );
    }
}
