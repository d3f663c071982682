//! Draws have the paper's properties, and small comparisons have known results.

use springtide_actors::policy::provisioning::{
    BookingTable, Budget, Dag, DagTask, Edge, Method, Runtime, SECOND, Search,
};

use super::compare::{Planning, SelectionRule, best_effort, compare};
use super::load::{Copies, LoadJob, SiteLoad, TraceWindow};
use super::made::{self, Layered};
use super::{Range, Spread, sites};
use crate::workload::swf;

const PLANNING: Planning = Planning {
    search: Search::Pruned,
    budget: Budget { population: 20, iterations: 4 },
    method: Method::Heft,
    discount: None,
    seed: 1,
};

#[test]
fn draws_have_the_papers_properties() {
    let slots = made::four_sites(1);
    assert_eq!(slots.len(), made::SLOTS);
    for (site, size) in made::SITES.into_iter().enumerate() {
        let mut of_site = slots.iter().filter(|slot| slot.site == site).peekable();
        assert_eq!(of_site.peek().unwrap().start, 0);
        assert!(
            of_site
                .all(|slot| slot.start < 30_000 * SECOND && (1..=size).contains(&slot.processors))
        );
    }
    let dag = made::cybershake(288);
    assert_eq!((dag.len(), dag.edges()), (8039, 12_057));
    assert_eq!(dag.work(1), 52_460_341.0);
    assert_eq!(dag.levels().into_iter().max(), Some(4));
    let of = Layered {
        tasks: 100,
        levels: 10,
        runtime_s: 1000.0,
        transfer_s: 0.0,
        processors: 22,
        most: 430,
    };
    let dag = made::layered(&of, 3);
    assert_eq!((dag.len(), dag.levels().into_iter().max()), (100, Some(9)));
    let mean = dag.tasks().iter().map(|task| f64::from(task.processors)).sum::<f64>() / 100.0;
    assert!((18.0..26.0).contains(&mean), "{mean}");
}

#[test]
fn a_mean_and_its_deviation() {
    let spread = Spread::of(&[2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0]);
    assert!((spread.mean - 5.0).abs() < 1e-12 && (spread.deviation - 2.138_09).abs() < 1e-4);
    assert_eq!(Spread::of(&[3.0]), Spread { mean: 3.0, ..Spread::default() });
}

/// Quantiles from tables of Student's distribution: intervals of few values are far wider than
/// those of the normal one.
#[test]
fn intervals_match_tables_of_students_distribution() {
    for (count, beyond) in [
        (2, 636.619),
        (3, 31.599),
        (4, 12.924),
        (5, 8.610),
        (10, 4.781),
        (50, 3.500),
        (9999, 3.291),
    ] {
        // Half of the values are 0 and half are 1, so the deviation is known.
        let values: Vec<f64> = (0..count).map(|at| f64::from(at % 2)).collect();
        let spread = Spread::of(&values);
        let is = spread.half_interval / spread.deviation * f64::from(count).sqrt();
        assert!((is / beyond - 1.0).abs() < 3e-4, "{count}: {is}");
    }
}

/// Two tasks in sequence. Best effort submits the second when the first has ended, behind other
/// users' jobs; a plan has reserved its place.
#[test]
fn best_effort_waits_behind_others_and_a_plan_does_not() {
    let task = |name: &str| DagTask {
        name: name.to_owned(),
        processors: 4,
        runtime: Runtime::Same(10 * SECOND),
    };
    let dag =
        Dag::new(vec![task("a"), task("b")], &[Edge { from: 0, to: 1, bytes: 0 }], 1).unwrap();
    let others = [LoadJob { submit: 5 * SECOND, processors: 1, duration: 100 * SECOND }];
    let alone = best_effort(&dag, BookingTable::new(4), &[], 0);
    let behind = best_effort(&dag, BookingTable::new(4), &others, 0);
    assert_eq!((alone, behind), (20 * SECOND, 120 * SECOND));
    let load = SiteLoad { processors: 4, jobs: others.to_vec(), offered: 0.5 };
    let both = compare(&dag, &load, &[0], &[0.0, 1.0].map(SelectionRule::of), &PLANNING);
    assert_eq!(both.submissions[0].best_effort_s, 120.0);
    for planned in &both.submissions[0].planned {
        let planned = planned.unwrap();
        assert_eq!((planned.makespan_s, planned.cost), (20.0, 80.0));
    }
    assert_eq!((both.floor, both.summaries()[0].difference_s.mean), (80.0, -100.0));
}

/// A slot between two jobs that must be bought whole, and a permanently free one. The shortest plan
/// pays for the whole slot, and is not chosen if it costs too much.
#[test]
fn the_shortest_plan_is_taken_among_those_that_cost_no_more_than_allowed() {
    let task = DagTask { name: "a".to_owned(), processors: 1, runtime: Runtime::Same(50 * SECOND) };
    let dag = Dag::new(vec![task], &[], 1).unwrap();
    let jobs = [
        LoadJob { submit: 0, processors: 3, duration: 100 * SECOND },
        LoadJob { submit: 0, processors: 4, duration: 100 * SECOND },
    ];
    let load = SiteLoad { processors: 4, jobs: jobs.to_vec(), offered: 0.5 };
    let choices = [
        SelectionRule::of(0.0),
        SelectionRule::within(1.9),
        SelectionRule::within(2.1),
        SelectionRule::within(0.5),
    ];
    let found = compare(&dag, &load, &[0], &choices, &PLANNING);
    let taken: Vec<(f64, f64)> = found.submissions[0]
        .planned
        .iter()
        .map(|planned| planned.map(|planned| (planned.makespan_s, planned.cost)).unwrap())
        .collect();
    // If no plan satisfies the limit, the nearest is chosen: the cheapest.
    assert_eq!(taken, [(50.0, 100.0), (250.0, 50.0), (50.0, 100.0), (250.0, 50.0)]);
}

#[test]
fn rivals_count_plans_that_no_other_dominates() {
    let instance = sites::Instance::drawn(2);
    let budget = Budget { population: 20, iterations: 4 };
    let of = |how| instance.search(Method::Heft, how, budget, 1, false);
    let all = sites::rivals(vec![
        ("paper".into(), of(Search::PAPER)),
        ("ours".into(), of(Search::Pruned)),
    ]);
    assert!(all[1].hypervolume > all[0].hypervolume, "{all:?}");
    assert!(all.iter().all(|rival| rival.survivors <= rival.front && rival.evaluations <= 100));
    assert!(all[1].survivors > 0);
    // The cheapest plan is chosen at 1, the shortest at 0.
    let front = of(Search::Pruned).front;
    let sweep = sites::sweep(&front, &[0.0, 0.5, 1.0]);
    assert!(
        sweep.is_sorted_by(|a, b| a.1.cost_su >= b.1.cost_su && a.1.makespan_s <= b.1.makespan_s)
    );
}

/// A load has jobs of one copy, of both, or a part of the first. Overestimated runtimes leave the
/// drawn jobs the same.
#[test]
fn a_load_is_a_part_of_one_copy_or_more_than_one() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("even.swf");
    // An hour on 2 of 10 processors, ten times a day for 20 days: 1/12 of the site.
    let job = |number: u32| {
        format!("{number} {} 0 3600 2 -1 -1 2 3600 -1 1 1 1 -1 1 -1 -1 -1\n", number * 8640)
    };
    std::fs::write(&file, (0..200).map(job).collect::<String>()).unwrap();
    let trace = swf::read(&file).unwrap();
    let window = TraceWindow { days: 10, ..TraceWindow::default() };
    let copies = Copies::of(&trace, 10, window);
    let least = copies.least();
    assert!((least - 1.0 / 12.0).abs() < 1e-9);
    let count = |target: f64| copies.under(target, 1).jobs.len();
    assert_eq!((count(least), count(2.0 * least), count(9.0 * least)), (100, 200, 200));
    for (target, about) in [(0.3 * least, 30), (1.5 * least, 150)] {
        let load = copies.under(target, 1);
        assert!(load.jobs.len().abs_diff(about) < 20, "{}", load.jobs.len());
        assert!((load.offered - load.jobs.len() as f64 / 100.0 * least).abs() < 1e-9);
        let loose =
            Copies::of(&trace, 10, TraceWindow { estimate: 1.2, ..window }).under(target, 1);
        assert_eq!(loose.jobs.len(), load.jobs.len());
        assert!(
            (loose.offered - load.offered).abs() < 1e-9,
            "an overestimated runtime adds no load"
        );
        assert!(
            loose
                .jobs
                .iter()
                .zip(&load.jobs)
                .all(|(a, b)| a.submit == b.submit && a.duration > b.duration)
        );
    }
}

#[test]
fn searches_are_ranked_by_surviving_plans_over_all_draws() {
    assert_eq!(Range::of([3.0, 1.0, 2.0]), Range { median: 2.0, least: 1.0, most: 3.0 });
    assert_eq!(Range::of([]), Range::default());
    let budget = Budget { population: 20, iterations: 2 };
    let way = |name: &str, search| sites::SearchConfig {
        name: name.into(),
        method: Method::Heft,
        search,
        budget,
    };
    let ways = [way("paper", Search::PAPER), way("ours", Search::Pruned)];
    let draws = sites::compare_searches(&ways, &[4, 5, 6]);
    let standings = sites::standings(&draws);
    assert_eq!((draws.len(), standings.len()), (3, 2));
    assert_eq!(standings[1].first_in, 3);
    let left: usize = draws.iter().map(|draw| draw[1].survivors).sum();
    assert_eq!(standings[1].all_survivors, left);
    assert!(standings[1].hypervolume.least > standings[0].hypervolume.most, "{standings:?}");
    assert!(sites::standings(&[]).is_empty());
}

/// A job on all processors, then one on half of them. Half of the site is free when the first ends,
/// all when both have ended.
#[test]
fn the_time_until_half_of_a_site_is_free() {
    let job = |processors, duration| LoadJob { submit: 0, processors, duration: duration * SECOND };
    let task = DagTask { name: "a".to_owned(), processors: 1, runtime: Runtime::Same(SECOND) };
    let dag = Dag::new(vec![task], &[], 1).unwrap();
    for (jobs, free) in [
        (vec![job(4, 100), job(2, 50)], 100.0),
        (vec![job(4, 100), job(3, 50)], 150.0),
        (vec![job(2, 100)], 0.0),
    ] {
        let load = SiteLoad { processors: 4, jobs, offered: 0.5 };
        let found = compare(&dag, &load, &[0], &[SelectionRule::of(0.5)], &PLANNING);
        assert_eq!(found.half_free_s().median, free);
        assert!(found.slots().least >= 1.0);
    }
}
