//! Bars of the specification: the paper's workloads, over the same seeds for all.

use std::time::Duration;

use springtide_actors::policy::malleability::{Direction, Policy};
use springtide_actors::scheduler::manager::{Approach, Settings};

use super::paper::{self, das3};
use super::{Costs, Ended, Outcome, Site, Users, Workload, play};

const SEEDS: std::ops::RangeInclusive<u64> = 1..=10;

/// On the whole testbed, or capped on two of its clusters, where something has to shrink.
fn workload(
    of: paper::Workload,
    approach: Approach,
    policy: Policy,
    capped: bool,
    seed: u64,
) -> Workload {
    let sites = if capped { vec![Site::new("delft", 68), Site::new("mmn", 46)] } else { das3() };
    let cap = capped.then_some(110);
    let settings = Settings { approach, policy, cap, ..Settings::default() };
    let poll = Duration::from_secs(15);
    Workload { sites, jobs: of.jobs(seed), settings, poll, costs: Costs::default(), seed }
}

fn mean(outcome: &Outcome, of: impl Fn(&Ended) -> Option<f64>) -> f64 {
    let all: Vec<f64> = outcome.jobs.iter().filter_map(of).collect();
    assert_eq!(all.len(), outcome.jobs.len(), "some jobs have not ended");
    all.iter().sum::<f64>() / all.len() as f64
}

fn stuck(outcome: &Outcome) -> usize {
    outcome.jobs.iter().filter(|job| job.most == 2).count()
}

fn wasted(outcome: &Outcome) -> f64 {
    outcome.jobs.iter().map(|job| job.taken - job.work).sum::<f64>() / 3600.0
}

fn run(
    of: paper::Workload,
    approach: Approach,
    policy: Policy,
    capped: bool,
    seed: u64,
) -> Outcome {
    let outcome = play(&workload(of, approach, policy, capped, seed));
    assert_eq!(outcome.odd, Vec::<String>::new());
    outcome
}

#[test]
fn malleable_jobs_run_faster_and_use_more_and_nobody_shrinks() {
    use paper::Workload::{Rigid, Wm, Wmr};
    for policy in [Policy::Fpsma, Policy::Egs] {
        for seed in SEEDS {
            let of = |of| run(of, Approach::Running, policy, false, seed);
            let (rigid, half, all) = (of(Rigid), of(Wmr), of(Wm));
            let exec = [&rigid, &half, &all].map(|outcome| mean(outcome, Ended::execution));
            let used = [&rigid, &half, &all].map(|outcome| mean(outcome, |job| Some(job.mean)));
            assert!(exec[2] < exec[1] && exec[1] < exec[0], "{policy}, seed {seed}: {exec:?}");
            assert!(used[0] < used[1] && used[1] < used[2], "{policy}, seed {seed}: {used:?}");
            assert!(
                exec[2] <= 0.55 * exec[0] && exec[1] <= 0.8 * exec[0],
                "{policy}, seed {seed}: {exec:?}"
            );
            assert_eq!((rigid.shrinks, half.shrinks, all.shrinks), (0, 0, 0));
            assert!(all.offers > 0 && rigid.offers == 0);
        }
    }
}

#[test]
fn under_load_each_policy_is_what_it_says() {
    use paper::Workload::{WmDense, WmrDense};
    let mut waits = [0.0, 0.0];
    for seed in SEEDS {
        let of = |of, policy| run(of, Approach::Waiting, policy, true, seed);
        let fpsma = [WmDense, WmrDense].map(|workload| of(workload, Policy::Fpsma));
        let egs = [WmDense, WmrDense].map(|workload| of(workload, Policy::Egs));
        assert!(fpsma[0].shrinks > 0 && egs[0].shrinks > 0, "seed {seed}");
        assert!(egs[0].changes.len() > fpsma[0].changes.len(), "seed {seed}");
        assert!(stuck(&egs[0]) < stuck(&fpsma[0]), "seed {seed}");
        for (sum, outcome) in waits.iter_mut().zip([&egs[0], &fpsma[0]]) {
            *sum += mean(outcome, Ended::wait);
        }
        let exec: Vec<f64> =
            fpsma.iter().chain(&egs).map(|outcome| mean(outcome, Ended::execution)).collect();
        let (least, most) = (
            exec.iter().copied().fold(f64::INFINITY, f64::min),
            exec.iter().copied().fold(0.0, f64::max),
        );
        assert!(most <= 1.35 * least, "seed {seed}: {exec:?}");
    }
    // One seed in five has it the other way round: the difference is small beside the chance of
    // one workload, and the paper has one workload.
    assert!(waits[0] > waits[1], "{waits:?}");
}

#[test]
fn the_efficiency_aware_policy_is_no_slower_and_wastes_less() {
    use paper::Workload::{WmDense, WmrDense};
    for workload in [WmDense, WmrDense] {
        for seed in SEEDS {
            let of = |policy| run(workload, Approach::Waiting, policy, true, seed);
            let others = [of(Policy::Fpsma), of(Policy::Egs)];
            let ours = of(Policy::EfficiencyAware);
            let least =
                |of: &dyn Fn(&Outcome) -> f64| others.iter().map(of).fold(f64::INFINITY, f64::min);
            let response = |outcome: &Outcome| mean(outcome, Ended::response);
            let name = workload.name();
            assert!(response(&ours) <= least(&response), "{name}, seed {seed}");
            assert!(wasted(&ours) < least(&wasted), "{name}, seed {seed}");
        }
    }
}

#[test]
fn a_slow_site_costs_an_application_nothing_while_it_waits_for_stubs() {
    let paused = |hold: u64| {
        let mut workload =
            workload(paper::Workload::Wm, Approach::Running, Policy::Fpsma, false, 1);
        workload.costs.hold = Duration::from_secs(hold);
        let outcome = play(&workload);
        outcome.jobs.iter().map(|job| job.paused / f64::from(job.changes.max(1))).sum::<f64>()
            / 300.0
    };
    let at = [0, 5, 30].map(paused);
    assert!(
        at.iter().all(|paused| (paused - at[0]).abs() < 0.2 && (paused - 4.0).abs() < 0.2),
        "{at:?}"
    );
}

#[test]
fn local_users_are_seen_and_nothing_is_given_twice() {
    for policy in [Policy::Fpsma, Policy::Egs, Policy::EfficiencyAware] {
        for seed in SEEDS {
            let mut workload =
                workload(paper::Workload::WmDense, Approach::Waiting, policy, true, seed);
            for site in &mut workload.sites {
                let hold = Duration::from_secs(300);
                site.users = Users { mean: f64::from(site.size) * 0.5, most: 8, hold };
            }
            workload.settings.reserve = 6;
            let outcome = play(&workload);
            let size: u32 = workload.sites.iter().map(|site| site.size).sum();
            assert!(outcome.jobs.iter().all(|job| job.ended.is_some()), "{policy}, seed {seed}");
            assert!(outcome.used.iter().all(|moment| moment.jobs + moment.users <= size));
            assert!(outcome.used.iter().any(|moment| moment.users > 50));
            let left = outcome.used.last().map_or(0, |moment| moment.jobs);
            assert_eq!(left, 0, "{policy}, seed {seed}: stubs are left");
            assert_eq!(outcome.odd, Vec::<String>::new());
        }
    }
}

#[test]
fn one_seed_is_one_history() {
    let workload = workload(paper::Workload::WmrDense, Approach::Waiting, Policy::Egs, true, 7);
    let (first, second) = (play(&workload), play(&workload));
    assert!(first == second);
    assert!(first.changes.iter().any(|change| change.1 == Direction::Shrink));
}
