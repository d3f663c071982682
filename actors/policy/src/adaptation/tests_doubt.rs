//! The error of an efficiency, and decisions under it.

use proptest::prelude::*;
use springtide_base::random::SplitMix;

use super::case::{PolicyTestJob, asked, removed, says, text};
use super::*;

/// Workers with errors of speeds and overheads, and their clusters.
fn workers() -> impl Strategy<Value = Vec<(u8, WorkerStats)>> {
    let speed = prop_oneof![3 => 1.0f64..10.0, 1 => Just(10.0)];
    let one = (0u8..5, speed, 0.0f64..1.0, 0.0f64..0.4, 0.0f64..0.3, 0u32..3);
    prop::collection::vec(one, 1..50).prop_map(|all| {
        let worker = |(i, (cluster, speed, overhead, speed_error, overhead_error, age))| {
            let stats = WorkerStats {
                node: format!("n{i:03}").as_str().into(),
                speed: Some(speed),
                speed_error,
                overhead,
                overhead_error,
                age,
                joined: 9,
                ..WorkerStats::default()
            };
            (cluster, stats)
        };
        all.into_iter().enumerate().map(worker).collect()
    })
}

fn aggregate(workers: &[WorkerStats]) -> ClusterAggregate {
    let settings = AdaptationSettings::default();
    ClusterAggregate::of(workers, &SharedParameters::of(&Memory::new(&settings), &settings))
}

/// Random numbers of the normal distribution with mean 0 and variance 1.
fn normal(dice: &mut SplitMix) -> f64 {
    (0..12).map(|_| dice.unit()).sum::<f64>() - 6.0
}

proptest! {
    /// The error is the same to the bit for any division into clusters, and equals the module's
    /// formula up to rounding.
    #[test]
    fn the_error_of_clusters_is_the_flat_one(workers in workers()) {
        let all: Vec<WorkerStats> = workers.iter().map(|(_, worker)| worker.clone()).collect();
        let flat = JobAggregate::of([&aggregate(&all)]);
        let clusters: Vec<ClusterAggregate> = (0..5)
            .map(|id| {
                let own = workers.iter().filter(|(cluster, _)| *cluster == id);
                aggregate(&own.map(|(_, worker)| worker.clone()).collect::<Vec<_>>())
            })
            .collect();
        prop_assert!(clusters.iter().all(ClusterAggregate::is_sound), "{clusters:?}");
        let tree = JobAggregate::of(clusters.iter().rev());
        prop_assert_eq!(&tree, &flat);
        let error = tree.efficiency_error().unwrap();
        prop_assert_eq!(error.to_bits(), flat.efficiency_error().unwrap().to_bits());

        let relative = |w: &WorkerStats| (w.speed_error.powi(2) + 0.01 * f64::from(w.age)).sqrt();
        let useful = |w: &WorkerStats| w.speed.unwrap() * (1.0 - w.overhead);
        let max = all.iter().map(|w| w.speed.unwrap()).fold(0.0, f64::max);
        let order = |a: &WorkerStats, b: &WorkerStats| {
            relative(a).total_cmp(&relative(b)).then(useful(a).total_cmp(&useful(b)))
        };
        // Of several equally fast workers, the one with the least error.
        let fastest = all
            .iter()
            .filter(|w| w.speed == Some(max))
            .min_by(|a, b| order(a, b))
            .unwrap();
        let most = all.len() as f64 * max;
        let efficiency = all.iter().map(useful).sum::<f64>() / most;
        let squares = |w: &WorkerStats| (useful(w) * relative(w)).powi(2);
        let speeds = all.iter().map(squares).sum::<f64>() - squares(fastest);
        let by_chance = (1.0 + (all.len() as f64).ln() / 2.0).sqrt();
        let related = (efficiency - useful(fastest) / most) * relative(fastest) * by_chance;
        let overheads: f64 =
            all.iter().map(|w| w.speed.unwrap() * w.overhead_error).sum::<f64>() / most;
        let expected =
            (speeds.max(0.0) / (most * most) + related * related + overheads * overheads).sqrt();
        prop_assert!((error - expected.min(1.0)).abs() < 1e-9, "{error} {expected}");
    }

}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// The interval of two standard errors includes the true efficiency in nine of ten cases, for
    /// drawn nodes and measurements.
    #[test]
    fn the_interval_includes_the_true_efficiency(
        seed in any::<u64>(), n in 2u32..40, spread in 1.0f64..8.0, error in 0.01f64..0.15,
    ) {
        let mut dice = SplitMix(seed);
        let (mut within, runs) = (0, 200);
        for _ in 0..runs {
            let mut true_workers = Vec::new();
            for i in 0..n {
                let speed = spread.powf(dice.unit());
                let overhead = dice.unit();
                true_workers.push(WorkerStats {
                    node: format!("n{i}").as_str().into(),
                    speed: Some(speed),
                    overhead,
                    joined: 9,
                    ..WorkerStats::default()
                });
            }
            let measured: Vec<WorkerStats> = true_workers
                .iter()
                .map(|worker| WorkerStats {
                    speed: worker.speed.map(|speed| speed * (error * normal(&mut dice)).exp()),
                    speed_error: error,
                    ..worker.clone()
                })
                .collect();
            let truth = JobAggregate::of([&aggregate(&true_workers)]).efficiency().unwrap();
            let all = JobAggregate::of([&aggregate(&measured)]);
            let off = (all.efficiency().unwrap() - truth).abs();
            within += u32::from(off <= 2.0 * all.efficiency_error().unwrap());
        }
        prop_assert!(f64::from(within) >= 0.9 * f64::from(runs), "{within} of {runs}");
    }
}

proptest! {
    /// No action follows from an efficiency whose interval includes the bound. A doubt that lasts
    /// orders one measurement and ends with the decision, within a stated time.
    #[test]
    fn a_doubtful_efficiency_is_measured_and_then_decided(
        period_s in 1.0f64..200.0, shrinks in any::<bool>(), doubt_s in 0.0f64..60.0,
        near in 0.001f64..0.05, monitored in any::<bool>(),
    ) {
        let efficiency = if shrinks { 0.3 - near } else { 0.5 + near };
        let mut job = PolicyTestJob::even(12, efficiency);
        job.settings.period_s = period_s;
        job.settings.doubt_s = doubt_s;
        job.snapshot.period_s = period_s;
        job.snapshot.mode = if monitored { Mode::Monitor } else { Mode::Adaptive };
        job.each(|worker| worker.speed_error = 0.2);
        let decided = |decision: &Decision| {
            decision.decided().iter().any(AdaptationAction::is_change)
        };
        let (mut waited_s, mut measured) = (0.0, 0);
        loop {
            let before = job.memory.measurements;
            let decision = job.decide();
            measured += job.memory.measurements - before;
            let doubtful = decision.reasons.iter().find_map(|reason| match reason {
                Reason::Doubtful { decides, .. } => Some(*decides),
                _ => None,
            });
            prop_assert!(doubtful.is_some(), "{}", text(&decision));
            prop_assert!(!decided(&decision) || doubtful == Some(true), "{}", text(&decision));
            if decided(&decision) {
                break;
            }
            waited_s += period_s;
            // The patience of a removal starts with the doubt.
            let most = doubt_s + 6.0 * period_s;
            prop_assert!(waited_s <= most, "{waited_s} s: {}", text(&decision));
        }
        if period_s <= doubt_s {
            prop_assert!(waited_s >= doubt_s, "{waited_s}");
            prop_assert_eq!(measured, 1);
        } else {
            prop_assert_eq!(measured, 0);
        }
        // With exact speeds the same efficiency is decided at once.
        let mut exact = PolicyTestJob::even(12, efficiency);
        exact.each(|worker| worker.speed_error = 0.0);
        exact.memory.below = 5;
        prop_assert!(decided(&exact.decide()));
    }

    /// The error of an overhead is its scatter between windows. Phases within an iteration do not
    /// count, and one lasting change of the job moves it little.
    #[test]
    fn the_error_of_an_overhead_is_its_scatter(
        seed in any::<u64>(), span in 1u32..6, noise in 0.002f64..0.05, step in any::<bool>(),
    ) {
        let mut dice = SplitMix(seed);
        let mut history = WorkerHistory::default();
        let settings = AdaptationSettings::default();
        let mut errors = Vec::new();
        for period in 0..200u32 {
            // A sequential and several parallel phases.
            let phase = if period % span == 0 && span > 1 { 0.6 } else { 0.2 };
            let level = if step && period % 50 > 25 { 0.15 } else { 0.0 };
            let overhead = (phase + level + noise * normal(&mut dice)).clamp(0.0, 1.0);
            let worker =
                WorkerStats { speed: Some(1.0), overhead, joined: 9, ..WorkerStats::default() };
            prop_assert_eq!(history.report(worker, &settings), None);
            let closed = history.close_period(span).unwrap();
            if period >= 20 && (!step || period % 25 > 20) {
                errors.push(closed.overhead_error);
            }
        }
        let expected = noise / f64::from(span).sqrt();
        let mean = errors.iter().sum::<f64>() / errors.len() as f64;
        prop_assert!(mean > 0.35 * expected && mean < 2.0 * expected, "{mean}, not {expected}");
    }
}

#[test]
fn a_doubt_says_what_it_waits_for() {
    let mut job = PolicyTestJob::even(10, 0.29);
    job.settings.bad_periods = 1;
    job.each(|worker| worker.speed_error = 0.1);
    let said: Vec<String> = (0..3).map(|_| text(&job.decide())).collect();
    for (text, part) in said.iter().zip([
        "which does not exclude the bound of 0.30: the size stays, and all speeds are measured",
        "which does not exclude the bound of 0.30: the size stays for now",
        "the wait for new measurements is over, and the estimate decides",
    ]) {
        assert!(text.contains("efficiency is 0.29 +- 0."), "{text}");
        assert!(text.contains(part), "{part} is not in {text}");
    }
}

#[test]
fn a_doubt_ends_with_an_action_or_with_a_clear_efficiency() {
    let mut job = PolicyTestJob::even(10, 0.52);
    job.each(|worker| worker.speed_error = 0.2);
    let first = job.decide();
    assert!(says(&first, "does not exclude the bound of 0.50") && asked(&first) == 0);
    assert!(job.memory.doubt.is_some());
    // Better measurements end it.
    job.each(|worker| worker.speed_error = 0.001);
    let second = job.decide();
    assert!(job.memory.doubt.is_none(), "{}", text(&second));
    // Within the band no decision depends on the bound, and a clear efficiency ends the doubt.
    let mut job = PolicyTestJob::even(10, 0.31);
    job.each(|worker| worker.speed_error = 0.2);
    let inside = job.decide();
    assert!(!says(&inside, "does not exclude") && removed(&inside).is_empty());
    job.memory.doubt = Some(Doubt { since_s: 0.0, measured_s: None });
    job.each(|worker| worker.speed_error = 0.0);
    job.decide();
    assert!(job.memory.doubt.is_none());
}
