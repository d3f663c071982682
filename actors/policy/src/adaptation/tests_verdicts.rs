//! Actions that wait for the verdict on the last one, and decisions before the first measurement.

use springtide_base::id::ClusterId;

use super::case::{PolicyTestJob, WorkerGroup, asked, cluster_removed, removed, says, text};
use super::*;

/// Decides until an action, at most this many periods.
fn decide_until_action(case: &mut PolicyTestJob, periods: u32) -> Decision {
    for _ in 1..periods {
        let decision = case.decide();
        if !decision.actions.is_empty() {
            return decision;
        }
    }
    case.decide()
}

#[test]
fn growth_waits_for_the_verdict_on_the_last_growth() {
    // Ten processors at 0.9 become twenty at 0.9, or at 0.55: too little to be sure in one period.
    for (overhead, needed) in [(0.1, 1), (0.45, 2)] {
        let mut case = PolicyTestJob::even(10, 0.9);
        let first = case.decide();
        assert_eq!(asked(&first), 10, "{}", text(&first));
        case.obey(&first, 1.0).each(|w| w.overhead = overhead);
        case.worker("new0").joined = 0;
        let waiting: Vec<Decision> = (0..5).map(|_| case.decide()).collect();
        assert!(waiting.iter().all(|decision| asked(decision) == 0));
        assert!(says(&waiting[4], "until it is known whether adding nodes helped"));
        case.worker("new0").joined = 50;
        let periods = (1..5).find(|_| asked(&case.decide()) > 0);
        assert_eq!(periods, Some(needed), "at overhead {overhead}");
    }
}

#[test]
fn a_verdict_that_growth_helped_ends_the_cool_down() {
    let mut case = PolicyTestJob::even(10, 0.9);
    let first = case.decide();
    case.obey(&first, 1.0);
    // The verdict needs two whole periods, the cool-down a third one.
    assert_eq!(asked(&case.decide()), 0);
    let second = case.decide();
    assert!(says(&second, "adding nodes helped") && asked(&second) == 20, "{}", text(&second));
    // While the statistics reflect a loss, the size stays in spite of a verdict.
    let mut case = PolicyTestJob::even(10, 0.9);
    let first = case.decide();
    case.obey(&first, 1.0);
    case.decide();
    case.memory.unsettled_until = case.memory.tick + 2;
    assert_eq!(asked(&case.decide()), 0);
}

/// Three times, twenty nodes have work for ten, for a minute each, and then for all.
#[test]
fn a_job_with_phases_keeps_its_nodes_once_it_needed_them_again() {
    let mut case = PolicyTestJob::even(20, 0.45);
    case.decide();
    let mut removals = Vec::new();
    for _ in 0..3 {
        case.each(|w| w.overhead = 0.9);
        let mut phase = Vec::new();
        for _ in 0..6 {
            let decision = case.decide();
            phase.extend(removed(&decision));
            case.obey(&decision, 1.0);
        }
        removals.push(phase.len());
        case.each(|w| w.overhead = 0.2);
        for _ in 0..12 {
            let decision = case.decide();
            case.obey(&decision, 1.0);
            if asked(&decision) > 0 {
                case.each(|w| w.overhead = 0.55);
            }
        }
    }
    assert_eq!(removals[1..], [0, 0], "{removals:?}");
    assert!(removals[0] >= 10, "{removals:?}");
    // In a phase that is far longer than the first one, the others leave.
    case.each(|w| w.overhead = 0.9);
    let decision = decide_until_action(&mut case, 40);
    assert!(!removed(&decision).is_empty(), "{}", text(&decision));
    // Bad nodes do not wait for that.
    let mut case = PolicyTestJob::even(20, 0.1);
    case.memory.surplus.wait_s = 600.0;
    assert!(says(
        &case.decide_patiently(),
        "no healthy node was removed: efficiency must be low for 600 s"
    ));
    case.worker("b3").speed = Some(0.2);
    let decision = decide_until_action(&mut case, 2);
    assert_eq!(removed(&decision), ["b3"], "{}", text(&decision));
}

#[test]
fn a_removal_is_judged_together_with_its_replacement() {
    let groups = [WorkerGroup("a", 10, 1.0, 0.7, 0.0), WorkerGroup("b", 6, 0.1, 0.7, 0.0)];
    let mut case = PolicyTestJob::of(&groups);
    let cure = case.decide_patiently();
    assert_eq!(removed(&cure).len(), 6, "{}", text(&cure));
    case.obey(&cure, 1.0);
    // One of the nodes takes its time, so there is no verdict yet.
    case.snapshot.leaving.insert("b0".into(), 1.into());
    let refill = decide_until_action(&mut case, 4);
    case.snapshot.leaving.clear();
    assert!(asked(&refill) > 0, "{}", text(&refill));
    assert!(!says(&refill, "is unknown"), "{}", text(&refill));
    case.obey(&refill, 1.0);
    let explanation: String = (0..6).map(|_| text(&case.decide())).collect();
    assert!(explanation.contains("removing bad nodes helped"), "{explanation}");
    assert!(!explanation.contains("is unknown"), "{explanation}");
}

#[test]
fn a_subject_whose_removal_did_harm_stays_until_it_is_clearly_worse() {
    let mut case = PolicyTestJob::of(&[
        WorkerGroup("a", 10, 1.0, 0.7, 0.1),
        WorkerGroup("b", 10, 1.0, 0.8, 0.6),
    ]);
    let unlink = case.decide();
    assert_eq!(cluster_removed(&unlink), Some("b"), "{}", text(&unlink));
    let all = case.workers.clone();
    case.obey(&unlink, 1.0);
    // The others take over none of the work.
    let undone = decide_until_action(&mut case, 8);
    assert!(says(&undone, "did not help") && asked(&undone) > 0, "{}", text(&undone));
    case.workers = all;
    for _ in 0..20 {
        let decision = case.decide();
        assert_eq!(cluster_removed(&decision), None, "{}", text(&decision));
    }
    assert!(says(&case.decide(), "cluster b stays, although its link"));
    case.each(|w| {
        if w.overhead == 0.8 {
            (w.overhead, w.overhead_inter) = (0.95, 0.9);
        }
    });
    let decision = decide_until_action(&mut case, 4);
    assert_eq!(cluster_removed(&decision), Some("b"), "{}", text(&decision));
}

#[test]
fn a_busy_job_grows_before_its_first_measurement() {
    let unmeasured = |overhead| {
        let mut case = PolicyTestJob::of(&[WorkerGroup("a", 4, 1.0, overhead, 0.0)]);
        case.each(|w| (w.speed, w.joined) = (None, 0));
        case
    };
    let mut busy = unmeasured(0.05);
    let decision = busy.decide();
    assert_eq!(asked(&decision), 4, "{}", text(&decision));
    assert!(says(&decision, "worked 95 % of their time"), "{}", text(&decision));
    assert!(!says(&decision, "nothing was decided"), "{}", text(&decision));
    assert_eq!(asked(&unmeasured(0.6).decide()), 0);
    // A worker without a report is not known to be busy.
    let mut partly = unmeasured(0.0);
    ["a0", "a1", "a2"].iter().for_each(|node| partly.worker(node).age = 1);
    assert_eq!(asked(&partly.decide()), 0);
    // A job that iterates grows once, others again after the cool-down.
    for (progress, again) in [(None, 4), (Some(JobProgress { done: 0, total: Some(9) }), 0)] {
        let mut case = unmeasured(0.05);
        case.snapshot.progress = progress;
        assert_eq!(asked(&case.decide()), 4);
        assert_eq!((0..4).map(|_| asked(&case.decide())).sum::<u32>(), again);
    }
}

#[test]
fn a_link_stands_out_among_others_that_are_bad_as_well() {
    let groups = |inter| {
        [
            WorkerGroup("a", 10, 1.0, 0.9, 0.67),
            WorkerGroup("b", 10, 1.0, 0.9, 0.67),
            WorkerGroup("c", 10, 1.0, 0.95, inter),
        ]
    };
    let removed = |inter| {
        let decision = PolicyTestJob::of(&groups(inter)).decide();
        cluster_removed(&decision).map(str::to_owned)
    };
    assert_eq!(removed(0.85), Some("c".to_owned()));
    assert_eq!(removed(0.72), None);
    // The fastest processes of a synchronous job wait longest, so their wait blames no link.
    let mut synchronous = PolicyTestJob::of(&groups(0.85));
    synchronous.snapshot.synchronous = true;
    assert_eq!(cluster_removed(&synchronous.decide()), None);
    // A full link is evidence there as well.
    synchronous.uplink("c", 1e6).aggregate();
    let full = Uplink { bandwidth: Some(1e6), used: Some(9e5) };
    synchronous.snapshot.clusters.get_mut(&"c".into()).expect("a cluster").uplink = full;
    assert_eq!(cluster_removed(&synchronous.decide_as_is()), Some("c"));
}

#[test]
fn only_a_measurement_since_the_removal_ends_a_quarantine() {
    let mut case = PolicyTestJob::without_b();
    for _ in 0..3 {
        case.decide();
    }
    // A wide link of the same cluster to a third one.
    let bandwidth = Some(1e8);
    let offer = NodeOffer { free: 4.into(), bandwidth, ..NodeOffer::default() };
    case.snapshot.offers.insert("b".into(), offer.clone());
    assert!(!says(&case.decide(), "it was measured better"));
    let (cluster, memory) = (ClusterId::from("b"), &mut case.memory);
    memory.record_probe(&cluster, 1e8, 0.0);
    case.each(|w| w.overhead = 0.1);
    let explanation: String = (0..8).map(|_| text(&case.decide())).collect();
    assert!(explanation.contains("it was measured better"), "{explanation}");
}

#[test]
fn the_size_stays_while_an_iteration_is_overdue() {
    let mut case = PolicyTestJob::even(20, 0.9);
    let mut done = 0;
    case.snapshot.max_processors = Some(20.into());
    for period in 0..12 {
        done = period / 2;
        case.snapshot.progress = Some(JobProgress { done, total: Some(100) });
        case.decide();
    }
    case.each(|w| w.overhead = 0.98);
    for _ in 0..30 {
        case.snapshot.progress = Some(JobProgress { done, total: Some(100) });
        case.decide();
    }
    assert!(case.workers.values().flatten().count() == 20);
    let decision = case.decide();
    assert!(removed(&decision).is_empty(), "{}", text(&decision));
    assert!(says(&decision, "until a whole iteration has shown"), "{}", text(&decision));
}

#[test]
fn a_new_process_of_a_long_step_counts_as_joining() {
    let progress = |done| Some(JobProgress { done, total: Some(9) });
    let mut case = PolicyTestJob::even(8, 0.9);
    case.snapshot.synchronous = true;
    for step in 0..3 {
        case.snapshot.progress = progress(step);
        (0..10).for_each(|_| drop(case.decide()));
    }
    let idle = |w: &mut WorkerStats, joined| (w.speed, w.overhead, w.joined) = (None, 1.0, joined);
    idle(case.worker("a0"), 8);
    // A benchmark is not work of the job.
    idle(case.worker("a1"), 8);
    case.worker("a1").speed = Some(1.0);
    case.aggregate();
    assert_eq!(case.snapshot.clusters[&"a".into()].joining, 2.into());
    // After whole steps without work it is idle.
    idle(case.worker("a0"), 40);
    case.aggregate();
    let aggregate = &case.snapshot.clusters[&"a".into()];
    assert_eq!((aggregate.joining, aggregate.unmeasured.processors), (1.into(), 1.into()));
}

#[test]
fn speeds_of_different_units_are_never_mixed() {
    let mut case = PolicyTestJob::of(&[
        WorkerGroup("a", 4, 50.0, 0.2, 0.1),
        WorkerGroup("b", 2, 1.0, 0.5, 0.2),
    ]);
    case.aggregate();
    let (a, b) = (&case.snapshot.clusters[&"a".into()], &case.snapshot.clusters[&"b".into()]);
    let efficiency = |a: &ClusterAggregate| JobAggregate::of([a, b]).efficiency();
    // A unit of a is a fiftieth of one of b, so all processors are equal.
    let converted = a.in_unit(Some(0.02));
    assert!(converted.is_sound());
    assert!((efficiency(&converted).unwrap() - (4.0 * 0.8 + 2.0 * 0.5) / 6.0).abs() < 1e-12);
    let unknown = a.in_unit(None);
    assert_eq!((unknown.counted, unknown.staying()), (0.into(), 4.into()));
    assert_eq!(efficiency(&unknown), Some(0.5));
    // The decision presumes the speeds of the others, and keeps the measured overheads.
    case.snapshot.clusters = [("a".into(), unknown), ("b".into(), b.clone())].into();
    let decision = case.decide_as_is();
    assert_eq!(decision.processors, 6.into());
    assert!((decision.efficiency.unwrap() - (4.0 * 0.8 + 2.0 * 0.5) / 6.0).abs() < 1e-12);
}

#[test]
fn a_memory_is_converted_to_a_new_unit_or_forgets_speeds() {
    let mut case = PolicyTestJob::of(&[
        WorkerGroup("a", 10, 1.0, 0.7, 0.0),
        WorkerGroup("b", 6, 0.1, 0.7, 0.0),
    ]);
    let cure = case.decide_patiently();
    assert_eq!(removed(&cure).len(), 6, "{}", text(&cure));
    let before = case.memory.clone();
    let trial = before.trial.clone().expect("a trial");
    let mut converted = before.clone();
    converted.change_unit(Some(4.0));
    assert_eq!(converted.max_speed, before.max_speed.map(|speed| 4.0 * speed));
    assert_eq!(converted.quarantine[0].measured, Some(0.4));
    let now = converted.trial.clone().expect("it is kept");
    assert_eq!((now.lost, now.before.useful), (4.0 * trial.lost, 4.0 * trial.before.useful));
    assert_eq!(now.before.efficiency, trial.before.efficiency);
    converted.change_unit(Some(0.25));
    assert_eq!(converted, before);
    let mut forgotten = before.clone();
    forgotten.change_unit(None);
    assert_eq!((forgotten.max_speed, forgotten.trial), (None, None));
    assert_eq!(forgotten.quarantine[0].measured, None);
    assert_eq!(forgotten.quarantine[0].until_s, before.quarantine[0].until_s);
}

#[test]
fn overheads_are_means_over_iterations_of_any_length() {
    let settings = AdaptationSettings::default();
    // A step of 600 periods works in the first 400. Serving time does not count.
    for (serving, span) in [(0.0, 600), (0.5, 600), (0.0, 30), (0.0, 4000)] {
        let mut history = WorkerHistory::default();
        let mut last = None;
        for period in 0..6 * span {
            let works = period % span < 2 * span / 3;
            let overhead = if works { 0.1 } else { 1.0 };
            let stats = WorkerStats { overhead, serving, speed: Some(1.0), ..Default::default() };
            assert_eq!(history.report(stats, &settings), None);
            last = history.close_period(span);
        }
        let last = last.expect("it reported");
        assert!((last.overhead - 0.4).abs() < 0.02, "{} over {span}", last.overhead);
        assert!((last.serving - serving).abs() < 1e-9);
        assert!(last.overhead_error < 0.02, "{}", last.overhead_error);
    }
}
