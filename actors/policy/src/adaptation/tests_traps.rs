//! The traps of the specification's C that concern decisions, by number; each occurred in another
//! system.

use springtide_base::id::Epoch;
use springtide_base::processors::Processors;

use super::case::*;
use super::*;

/// C21: a decision never both grows and shrinks; outstanding requests are withdrawn first.
#[test]
fn trap_21_never_both() {
    let mut case = PolicyTestJob::even(20, 0.2);
    case.snapshot.requested = 7.into();
    let decision = case.decide_patiently();
    assert!(matches!(
        &decision.actions[..],
        [AdaptationAction::Withdraw { count: Processors(7) }, AdaptationAction::Remove { .. }]
    ));
    // Within the band, requests under way are not needed.
    let mut case = PolicyTestJob::even(20, 0.45);
    case.snapshot.requested = 3.into();
    let decision = case.decide();
    assert!(
        matches!(&decision.actions[..], [AdaptationAction::Withdraw { count: Processors(3) }]),
        "{}",
        text(&decision)
    );
}

/// C22: nodes are removed by badness, not by idleness.
#[test]
fn trap_22_idle_is_not_bad() {
    let mut case = PolicyTestJob::even(8, 0.25);
    case.worker("b3").overhead = 1.0; // no work in this period
    case.worker("b1").overhead_inter = 0.03;
    case.worker("b2").overhead_inter = 0.02;
    let decision = case.decide_patiently();
    assert_eq!(removed(&decision)[..2], ["b1", "b2"], "{}", text(&decision));
}

/// C23: a request that the scheduler does not know was lost, and is repeated; a known one is not.
/// C29: nodes under way count.
#[test]
fn traps_23_and_29_plans_are_compared_with_the_scheduler() {
    for (requested, joining, up) in
        [(0, 0, 10), (10, 0, 0), (4, 0, 6), (0, 4, 6), (6, 4, 0), (50, 0, 0)]
    {
        let mut case = PolicyTestJob::even(20, 0.6);
        case.snapshot.requested = requested.into();
        let like = case.worker("a0").clone();
        for i in 0..joining {
            let node = format!("new{i}").as_str().into();
            let worker = WorkerStats { node, joined: 0, speed: None, ..like.clone() };
            case.workers.get_mut(&"a".into()).unwrap().push(worker);
        }
        let decision = case.decide();
        assert_eq!(asked(&decision), up, "{requested} {joining}\n{}", text(&decision));
    }
    // Each lost request is repeated after the cool-down.
    let mut case = PolicyTestJob::even(20, 0.6);
    let asks: Vec<u32> = (0..7).map(|_| asked(&case.decide())).collect();
    assert_eq!(asks, [10, 0, 0, 10, 0, 0, 10]);
    // An unmet request stays while nothing that fits is free. Then it is withdrawn, and made from
    // current knowledge.
    let mut case = PolicyTestJob::even(20, 0.6);
    case.decide();
    case.snapshot.requested = 10.into();
    for _ in 0..30 {
        let decision = case.decide();
        assert!(decision.actions.is_empty(), "{}", text(&decision));
    }
    let offer = NodeOffer { free: 4.into(), ..NodeOffer::default() };
    case.snapshot.offers.insert("c".into(), offer);
    let decision = case.decide();
    assert_eq!(asked(&decision), 0);
    assert!(says(&decision, "it stayed unmet too long"), "{}", text(&decision));
    case.snapshot.requested = 0.into();
    assert_eq!(asked(&case.decide()), 10);
}

/// C24: a coordinator of an older epoch decides nothing, and no period is decided twice.
#[test]
fn trap_24_epochs_fence() {
    let mut case = PolicyTestJob::even(20, 0.6);
    case.decide();
    let memory = case.memory.clone();
    for (epoch, period, word) in [(0, 500, "the coordinator of epoch 0"), (1, 100, "period 100")] {
        let mut late = case.clone();
        (late.snapshot.epoch, late.snapshot.period) = (Epoch(epoch), period);
        let decision = late.decide();
        assert!(decision.actions.is_empty() && decision.flags.contains(&Flag::Fenced));
        assert!(says(&decision, word), "{}", text(&decision));
        assert_eq!(late.memory, memory, "and remembers nothing");
    }
    (case.snapshot.epoch, case.snapshot.period) = (Epoch(2), 1);
    assert!(!case.decide().flags.contains(&Flag::Fenced));
}

/// C25: a leaving node is not a target, neither of the root nor of a request.
#[test]
fn trap_25_leaving_nodes_are_no_targets() {
    let mut case = PolicyTestJob::even(6, 0.8);
    case.snapshot.leaving.extend(["a0", "b0"].map(|node| (node.into(), Processors::ONE)));
    let decision = case.decide();
    assert!(
        matches!(&decision.actions[0], AdaptationAction::MoveRoot { to, .. } if to.as_str() == "b1")
    );
    let avoid = &request(&decision).avoid_nodes;
    assert!(avoid.contains(&"a0".into()) && avoid.contains(&"b0".into()));
}

/// C27: no action near the job's end, when the last nodes hold results.
#[test]
fn trap_27_the_tail_is_left_alone() {
    for (done, total, left_alone) in
        [(99, Some(100), true), (98, Some(100), false), (50, Some(100), false), (99, None, false)]
    {
        let mut case = PolicyTestJob::even(20, 0.1);
        case.snapshot.progress = Some(JobProgress { done, total });
        case.snapshot.elapsed_s = 1485.0;
        let decision = case.decide_patiently();
        assert_eq!(removed(&decision).is_empty(), left_alone, "{done} of {total:?}");
        assert_eq!(says(&decision, "the job ends in about"), left_alone);
    }
}

/// C28: a leaving node that is declared dead has not crashed. One crash is forgiven, the second is
/// not.
#[test]
fn trap_28_a_planned_leave_is_no_crash() {
    let mut case = PolicyTestJob::even(20, 0.4);
    case.snapshot.leaving.insert("b9".into(), Processors::ONE);
    case.snapshot.crashes = vec![Crash { node: "b9".into(), cluster: "b".into() }];
    let decision = case.decide();
    assert!(!says(&decision, "crashed") && case.memory.quarantine.is_empty());
    for terms in [0, 1] {
        let mut case = case.clone();
        case.snapshot.leaving.clear();
        for _ in 0..=terms {
            case.snapshot.crashes = vec![Crash { node: "b8".into(), cluster: "b".into() }];
            case.decide();
        }
        case.each(|w| w.overhead = 0.2);
        (0..4).for_each(|_| case.memory.cool_until = 0);
        let decision = case.decide();
        let avoided = request(&decision).avoid_nodes.contains(&"b8".into());
        assert_eq!(avoided, terms == 1, "{}", text(&decision));
    }
}

/// A change by the scheduler is not judged as the policy's action, starts no cool-down and is not a
/// loss.
#[test]
fn changes_by_the_scheduler_are_no_actions_of_the_policy() {
    let mut case = PolicyTestJob::even(20, 0.8);
    let tries = (0..8).any(|_| {
        case.decide();
        case.memory.trial.is_some()
    });
    assert!(tries, "{:?}", case.memory);
    let mut alone = case.clone();
    alone.decide();
    case.snapshot.ordered = true;
    let decision = case.decide();
    assert!(says(&decision, "another event interfered"), "{}", text(&decision));
    assert!(case.memory.cool_until == alone.memory.cool_until && case.memory.refill.is_none());
    // Growth is not banned: the next attempt is like the first.
    assert!(case.memory.ceiling.is_none() && case.memory.floor.is_none());
}

/// While leaving nodes hand back their tasks, the others have no work: that is not a surplus. But a
/// node that never leaves does not block removals for ever.
#[test]
fn leaving_nodes_delay_removals_for_a_limited_time() {
    let mut case = PolicyTestJob::even(20, 0.15);
    case.snapshot.leaving.extend(["b8", "b9"].map(|node| (node.into(), Processors::ONE)));
    let patient = (60.0 / case.snapshot.period_s).ceil() as u32;
    for _ in 0..patient {
        let decision = case.decide();
        assert!(
            removed(&decision).is_empty() && says(&decision, "still leaving"),
            "{}",
            text(&decision)
        );
    }
    let gone = (0..10).any(|_| !removed(&case.decide()).is_empty());
    assert!(gone, "they do not hold it up for ever");
    // The nodes are gone: the band applies again.
    let mut case = PolicyTestJob::even(20, 0.15);
    case.snapshot.leaving.insert("b9".into(), Processors::ONE);
    case.decide();
    case.snapshot.leaving.clear();
    let gone = (0..10).any(|_| !removed(&case.decide()).is_empty());
    assert!(gone);
}

/// C30: durations of tasks are not an input. C31 and C26: a removal is a leave with notice, by its
/// executor. C34: one bad node does not make its cluster bad.
#[test]
fn trap_34_one_bad_node_does_not_remove_its_cluster() {
    let mut case = PolicyTestJob::of(&[
        WorkerGroup("a", 8, 1.0, 0.75, 0.02),
        WorkerGroup("b", 7, 1.0, 0.75, 0.02),
        WorkerGroup("b", 1, 1.0, 0.95, 0.9),
    ]);
    let decision = case.decide_patiently();
    assert_eq!(removed(&decision), ["b7"], "{}", text(&decision));
    // Of several clusters that wait for one bad link, only the one behind it is removed.
    let mut case = PolicyTestJob::of(&[
        WorkerGroup("a", 8, 1.0, 0.85, 0.3),
        WorkerGroup("b", 8, 1.0, 0.85, 0.3),
        WorkerGroup("c", 8, 1.0, 0.9, 0.8),
    ]);
    assert_eq!(cluster_removed(&case.decide()), Some("c"));
}
