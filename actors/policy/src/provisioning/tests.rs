//! Golden vectors of the specification, and invariants of every plan.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

/// A graph of Topcuoglu et al. 2002 (figure 2): 10 tasks on three processors, each its own site, at
/// one unit per second.
fn golden() -> (Dag, SiteLinks, Vec<Slot>) {
    let times = [
        [14, 16, 9],
        [13, 19, 18],
        [11, 13, 19],
        [13, 8, 17],
        [12, 13, 10],
        [13, 16, 9],
        [7, 15, 11],
        [5, 11, 14],
        [18, 12, 20],
        [21, 7, 16],
    ];
    let passes = [
        (1, 2, 18),
        (1, 3, 12),
        (1, 4, 9),
        (1, 5, 11),
        (1, 6, 14),
        (2, 8, 19),
        (2, 9, 16),
        (3, 7, 23),
        (4, 8, 27),
        (4, 9, 23),
        (5, 9, 13),
        (6, 8, 15),
        (7, 10, 17),
        (8, 10, 11),
        (9, 10, 13),
    ];
    let task = |(index, times): (usize, &[u64; 3])| DagTask {
        name: format!("T{}", index + 1),
        processors: 1,
        runtime: Runtime::BySite(times.iter().map(|time| time * SECOND).collect()),
    };
    let edge =
        |&(from, to, bytes): &(usize, usize, u64)| Edge { from: from - 1, to: to - 1, bytes };
    let edges: Vec<Edge> = passes.iter().map(edge).collect();
    let dag = Dag::new(times.iter().enumerate().map(task).collect(), &edges, 3).unwrap();
    let links = SiteLinks { other: Some((0, 1.0)), ..SiteLinks::default() };
    let slot = |site| Slot {
        site,
        processors: 1,
        start: 0,
        end: 1000 * SECOND,
        price: Price::default(),
        divisible: true,
        extensible: true,
    };
    (dag, links, (0..3).map(slot).collect())
}

#[test]
fn as_many_as_are_free_are_booked() {
    let mut table = BookingTable::new(8);
    let booking = |processors, start, end| Booking { processors, start, end };
    assert!(table.book_free(booking(6, 10, 20)).is_some());
    assert!(table.book_free(booking(6, 0, 15)).is_some(), "only two");
    assert_eq!((table.free(0, 10), table.free(10, 15), table.free(15, 20)), (6, 0, 2));
    assert_eq!(table.book_free(booking(1, 5, 15)), None, "none is free");
    assert_eq!(table.book_free(booking(1, 30, 20)), None, "an empty interval");
}

#[test]
fn heft_of_the_golden_graph() {
    let (dag, links, slots) = golden();
    let ranks = dag.ranks(&links, 3);
    let known = [108.0, 77.0, 80.0, 80.0, 69.0, 63.333, 42.667, 35.667, 44.333, 14.667];
    for (rank, known) in ranks.iter().zip(known) {
        assert!((rank - known).abs() < 5e-4, "{ranks:?}");
    }
    let mut lister = ListScheduler::new(&dag, &links, &slots, Method::Heft);
    let schedule = lister.schedule(&SlotSet::all(3)).unwrap();
    let places: Vec<_> =
        schedule.tasks.iter().map(|t| (t.start / SECOND, t.end / SECOND, t.site)).collect();
    assert_eq!(schedule.outcome.makespan, 80 * SECOND, "{places:?}");
    // For divisible slots, used time is paid.
    let used: f64 = schedule.tasks.iter().map(|task| seconds(task.end - task.start)).sum();
    assert!((schedule.outcome.cost - used).abs() < 1e-9);
    for method in Method::ALL {
        let makespan = ListScheduler::new(&dag, &links, &slots, method)
            .outcome(&SlotSet::all(3))
            .unwrap()
            .makespan;
        assert!((70 * SECOND..130 * SECOND).contains(&makespan), "{method}: {makespan}");
    }
}

/// Figure 4 as reconstructed, on 5 nodes. A is on 1 and 2 over [0, 1), B on 4 and 5 over [1, 3).
/// C is on 2 and 3 over [2, 4).
#[test]
fn the_six_slots_of_the_fourth_figure() {
    let horizon = 6;
    let windows = [
        (1, horizon, 1), // node 1
        (1, 2, 1),       // node 2
        (4, horizon, 1),
        (0, 2, 1), // node 3
        (4, horizon, 1),
        (0, 1, 2), // nodes 4 and 5
        (3, horizon, 2),
    ];
    let slots = advertise(windows, 0, horizon, |_| Price::default());
    let shape =
        |slot: &Slot| (slot.start, slot.end, slot.processors, slot.divisible, slot.extensible);
    assert_eq!(
        slots.iter().map(shape).collect::<Vec<_>>(),
        [
            (0, 1, 2, false, false),
            (0, 2, 1, false, false),
            (1, 2, 1, false, false),
            (1, 6, 1, true, true),
            (3, 6, 2, true, true),
            (4, 6, 2, true, true),
        ]
    );
    let area: u64 = slots.iter().map(|s| u64::from(s.processors) * (s.end - s.start)).sum();
    assert_eq!(area, 20);
}

#[test]
fn a_horizon_is_a_whole_day_after_the_last_end() {
    let day = 24 * 3600 * SECOND;
    let mut table = BookingTable::new(4);
    assert_eq!(table.horizon(5), 5 + day);
    table.book(Booking { processors: 1, start: 5, end: 5 + day }).unwrap();
    assert_eq!(table.horizon(5), 5 + 2 * day, "strictly after it");
    assert_eq!(table.horizon(6), 6 + day);
}

#[test]
fn a_trade_off_is_normalised_over_the_front() {
    let mut front = ParetoFront::default();
    let plan = SlotSet::none(4);
    let is = |cost, makespan| Objectives { cost, makespan: makespan * SECOND };
    assert_eq!(front.choose(0.5, &Constraint::default()), Err(None));
    assert!(front.insert(is(10.0, 100), &plan));
    for alpha in [0.0, 0.5, 1.0] {
        assert_eq!(front.choose(alpha, &Constraint::default()).unwrap().objectives, is(10.0, 100));
    }
    assert!(front.insert(is(20.0, 40), &plan) && front.insert(is(12.0, 60), &plan));
    assert!(!front.insert(is(12.0, 60), &plan), "it is there");
    assert!(!front.insert(is(13.0, 60), &plan) && !front.insert(is(f64::INFINITY, 1), &plan));
    let chosen = |alpha| front.choose(alpha, &Constraint::default()).unwrap().objectives;
    assert_eq!(
        [chosen(0.0), chosen(0.5), chosen(1.0)],
        [is(20.0, 40), is(12.0, 60), is(10.0, 100)]
    );
    // 0.5 (0.2 + 1/3) against 0.5 (0 + 1) and 0.5 (1 + 0).
    let by = |deadline, budget| Constraint { deadline, budget };
    let within = |c: Constraint| {
        front.choose(1.0, &c).map(|p| p.objectives).map_err(|p| p.map(|p| p.objectives))
    };
    assert_eq!(within(by(Some(70 * SECOND), None)), Ok(is(12.0, 60)));
    assert_eq!(
        within(by(Some(70 * SECOND), Some(11.0))),
        Err(Some(is(12.0, 60))),
        "one over by a tenth"
    );
    // A plan that is better in both objectives replaces others.
    assert!(front.insert(is(10.0, 40), &plan));
    assert_eq!(front.points().len(), 1);
    let volume = hypervolume(&front, is(20.0, 80));
    assert!((volume - 0.25).abs() < 1e-12, "{volume}");
}

#[test]
fn invalid_workflows_are_rejected() {
    let task = |name: &str| DagTask {
        name: name.to_owned(),
        processors: 1,
        runtime: Runtime::Same(SECOND),
    };
    let tasks = || ["a", "b", "c", "d"].map(task).to_vec();
    let edge = |from, to| Edge { from, to, bytes: 0 };
    let wrong =
        Dag::new(tasks(), &[edge(0, 1), edge(1, 2), edge(2, 1), edge(2, 3)], 1).unwrap_err();
    assert_eq!(wrong.to_string(), "task b waits for itself: b -> c -> b");
    assert_eq!(
        Dag::new(tasks(), &[edge(3, 3)], 1).unwrap_err().to_string(),
        "task d waits for itself: d -> d"
    );
    assert_eq!(
        Dag::new(tasks(), &[edge(0, 9)], 1).unwrap_err().to_string(),
        "an edge names task 9 of 4"
    );
    let mut none = tasks();
    none[1].processors = 0;
    assert_eq!(Dag::new(none, &[], 1).unwrap_err().to_string(), "task b: it needs no processors");
}

/// Overlapping slots together have enough processors for a task that is too large for each.
#[test]
fn slots_of_a_site_are_combined_and_extended_and_cut() {
    let task = |processors, time| DagTask {
        name: "wide".into(),
        processors,
        runtime: Runtime::Same(time * SECOND),
    };
    let slot = |site, processors, start, end, last| Slot {
        site,
        processors,
        start: start * SECOND,
        end: end * SECOND,
        price: Price::default(),
        divisible: last,
        extensible: last,
    };
    // The second is too short. At 20, the first and the third have eight processors of one site,
    // for longer than advertised.
    let slots = [
        slot(0, 5, 0, 50, true),
        slot(0, 9, 5, 30, false),
        slot(0, 4, 20, 50, true),
        slot(1, 7, 0, 99, true),
    ];
    let dag = Dag::new(vec![task(8, 100)], &[], 2).unwrap();
    let links = SiteLinks::default();
    let mut lister = ListScheduler::new(&dag, &links, &slots, Method::Heft);
    let plan = lister.schedule(&SlotSet::all(4)).unwrap();
    assert_eq!((plan.tasks[0].start, plan.tasks[0].end), (20 * SECOND, 120 * SECOND));
    assert_eq!(
        plan.tasks[0].pieces,
        [SlotPart { slot: 0, processors: 5 }, SlotPart { slot: 2, processors: 3 }]
    );
    assert_eq!(plan.outcome.cost_used, 800.0);
    assert_eq!(plan.outcome.cost, 800.0 + 9.0 * 25.0, "an indivisible chosen slot is paid");
    assert_eq!(plan.outcome.used.iter().collect::<Vec<_>>(), [0, 2]);
    let mut without = SlotSet::all(4);
    without.set(2, false);
    let why = lister.schedule(&without).unwrap_err().to_string();
    assert!(
        why.contains("task wide needs 8 processors for 100 s")
            && why.contains("at most 7 of one site"),
        "{why}"
    );
}

fn instance() -> impl Strategy<Value = (Vec<Slot>, Dag, SiteLinks)> {
    let slot = (0usize..3, 1u32..6, 0u64..60, 1u64..80, any::<[bool; 2]>(), 0u8..3).prop_map(
        |(site, processors, start, length, [divisible, extensible], fixed)| Slot {
            site,
            processors,
            start: start * SECOND,
            end: (start + length) * SECOND,
            price: Price { rate: 1.0 + f64::from(fixed) / 4.0, fixed: f64::from(fixed) },
            divisible,
            extensible,
        },
    );
    let task = (1u32..5, 1u64..20).prop_map(|(processors, time)| (processors, time * SECOND));
    let slots = proptest::collection::vec(slot, 1..12);
    let tasks = proptest::collection::vec(task, 1..12);
    let edges = proptest::collection::vec((0usize..12, 0usize..12, 0u64..5), 0..16);
    (slots, tasks, edges).prop_map(|(slots, tasks, edges)| {
        let count = tasks.len();
        let task = |(index, (processors, time)): (usize, (u32, Time))| DagTask {
            name: index.to_string(),
            processors,
            runtime: Runtime::Same(time),
        };
        let edges = edges.into_iter().map(|(a, b, bytes)| (a % count, b % count, bytes));
        let forward =
            edges.filter(|(a, b, _)| a < b).map(|(from, to, bytes)| Edge { from, to, bytes });
        let forward: Vec<Edge> = forward.collect();
        let dag = Dag::new(tasks.into_iter().enumerate().map(task).collect(), &forward, 3).unwrap();
        let links = SiteLinks { other: Some((SECOND, 1.0)), ..SiteLinks::default() };
        (slots, dag, links)
    })
}

/// Checks a schedule against slots and workflow independently, moment by moment.
fn check_schedule(slots: &[Slot], dag: &Dag, links: &SiteLinks, plan: &Schedule) {
    let mut cost = 0.0;
    for (index, slot) in slots.iter().enumerate() {
        let here: Vec<(u32, &TaskPlan)> = plan
            .tasks
            .iter()
            .flat_map(|task| task.pieces.iter().map(move |piece| (piece, task)))
            .filter(|(piece, _)| piece.slot == index)
            .map(|(piece, task)| (piece.processors, task))
            .collect();
        for (processors, task) in &here {
            assert!(*processors > 0 && task.site == slot.site && task.start >= slot.start);
            assert!(slot.extensible || task.end <= slot.end);
            let at = task.start;
            let load: u32 =
                here.iter().filter(|(_, t)| t.start <= at && at < t.end).map(|(n, _)| n).sum();
            assert!(load <= slot.processors, "slot {index} has {load} at {at}");
        }
        let used: u128 =
            here.iter().map(|(n, task)| u128::from(*n) * u128::from(task.end - task.start)).sum();
        let last = here.iter().map(|(_, task)| task.end).max().unwrap_or(0);
        assert_eq!(plan.outcome.used.has(index), !here.is_empty());
        if !here.is_empty() {
            cost += slot.cost(used, last);
        }
    }
    assert!((cost - plan.outcome.cost_used).abs() < 1e-6);
    assert!(plan.outcome.cost_used <= plan.outcome.cost + 1e-9);
    assert!(plan.outcome.cost_used >= dag.work(3) - 1e-6, "all rates are 1 or more");
    for (index, task) in plan.tasks.iter().enumerate() {
        let of = dag.task(index);
        assert_eq!(task.end - task.start, of.runtime.on(task.site));
        assert_eq!(task.pieces.iter().map(|piece| piece.processors).sum::<u32>(), of.processors);
        for &(parent, bytes) in dag.parents(index) {
            let parent = &plan.tasks[parent];
            assert!(task.start >= parent.end + links.transfer(bytes, parent.site, task.site));
        }
    }
    assert_eq!(plan.outcome.makespan, plan.tasks.iter().map(|task| task.end).max().unwrap());
}

proptest! {
    #[test]
    fn every_plan_keeps_to_slots_and_workflow(
        (slots, dag, links) in instance(),
        bits in any::<u16>(),
    ) {
        let count = slots.len();
        let mut some = SlotSet::none(count);
        (0..count).for_each(|slot| some.set(slot, bits >> slot & 1 == 1));
        for set in [some, SlotSet::all(count)] {
            for method in Method::ALL {
                let mut lister = ListScheduler::new(&dag, &links, &slots, method);
                let outcome = lister.outcome(&set);
                match lister.schedule(&set) {
                    Ok(plan) => {
                        check_schedule(&slots, &dag, &links, &plan);
                        let same = outcome.as_ref() == Some(&plan.outcome);
                        prop_assert!(same, "evaluations are independent: {:?} {:?}", outcome, plan);
                        if !lister.has_fixed_order() {
                            continue;
                        }
                        // Without unused slots the schedule is the same, at the cost of the used
                        // ones.
                        let mut lister = ListScheduler::new(&dag, &links, &slots, method);
                        let lean = lister.schedule(&plan.outcome.used).unwrap();
                        prop_assert_eq!(&lean.tasks, &plan.tasks);
                        prop_assert!((lean.outcome.cost - plan.outcome.cost_used).abs() < 1e-9);
                    }
                    Err(_) => prop_assert_eq!(outcome, None),
                }
            }
        }
    }

    #[test]
    fn a_front_contains_the_plans_that_are_not_dominated(
        points in proptest::collection::vec((0u32..12, 0u64..12), 0..40),
    ) {
        let mut front = ParetoFront::default();
        let is = |&(cost, makespan): &(u32, u64)| Objectives { cost: f64::from(cost), makespan };
        for point in &points {
            front.insert(is(point), &SlotSet::none(1));
        }
        let all: Vec<Objectives> = points.iter().map(is).collect();
        let is_best = |p: &Objectives| !all.iter().any(|q| q.dominates(p));
        let mut expected: Vec<Objectives> = all.iter().copied().filter(is_best).collect();
        expected.sort_by(|a, b| a.cost.total_cmp(&b.cost));
        expected.dedup();
        prop_assert_eq!(front.points().iter().map(|p| p.objectives).collect::<Vec<_>>(), expected);
        prop_assert_eq!(front.survivors([&front]), front.points().len());
    }

    /// Bookings never exceed the processors, jobs start as early as others allow, and slots are the
    /// rest.
    #[test]
    fn slots_are_the_rest_of_bookings(
        jobs in proptest::collection::vec((1u32..6, 1u64..30, 0u64..8, any::<bool>()), 0..30),
    ) {
        let mut table = BookingTable::new(5);
        let mut now = 0;
        for (processors, duration, later, cancel) in jobs {
            now += later;
            let epoch = table.epoch();
            let (number, start) = table.submit(processors, duration, now).unwrap();
            prop_assert!(start >= now && table.epoch() > epoch);
            if cancel {
                prop_assert!(table.end(number, now + later));
            }
            table.forget(now);
            let horizon = table.horizon(now);
            let slots = table.slots(0, now, |_| Price::default());
            prop_assert!(slots.is_sorted_by_key(|slot| slot.start));
            let bookings: Vec<Booking> = table.bookings().values().copied().collect();
            for at in now..now + 80 {
                let booked = bookings.iter().filter(|b| b.start <= at && at < b.end);
                let booked: u32 = booked.map(|b| b.processors).sum();
                let free = slots.iter().filter(|s| s.start <= at && at < s.end);
                let free: u32 = free.map(|s| s.processors).sum();
                prop_assert!(booked <= 5);
                prop_assert_eq!(free, 5 - booked, "at {}: {:?} {:?}", at, &slots, &bookings);
                prop_assert_eq!(table.free(at, at + 1), free);
            }
            let is_last = |slot: &Slot| slot.end == horizon;
            prop_assert!(slots.iter().all(|slot| is_last(slot) == slot.divisible));
            prop_assert!(slots.iter().all(|slot| slot.divisible == slot.extensible));
        }
    }
}

/// A full site: gaps before other users' bookings, and processors that become free one after the
/// other. The times are not binary fractions.
fn full_site() -> (Dag, Vec<Slot>) {
    let of = |start: u64, end: u64, last: bool| Slot {
        site: 0,
        processors: 1,
        start: start * 1_000_003,
        end: end * 1_000_003,
        price: Price::default(),
        divisible: last,
        extensible: last,
    };
    let holes = (0..40).map(|at| of(at * 5, at * 5 + 37, false));
    let last = (0..12).map(|at| of(50 + at * 20, 1000, true));
    let task = |index: u64| DagTask {
        name: index.to_string(),
        processors: 1,
        runtime: Runtime::Same(7_123_457 + index * 310_111),
    };
    (Dag::new((0..60).map(task).collect(), &[], 1).unwrap(), holes.chain(last).collect())
}

/// Where all slots have one rate and charge used time only, a workflow costs the same on all of
/// them, to the last bit. Otherwise the "cheapest" plan would be cheapest by rounding.
#[test]
fn plans_that_cost_the_same_are_equal() {
    let (dag, slots) = full_site();
    let links = SiteLinks::default();
    let mut lister = ListScheduler::new(&dag, &links, &slots, Method::Heft);
    let mut lengths = Vec::new();
    for from in 0..11 {
        let mut some = SlotSet::none(slots.len());
        (40 + from..52).for_each(|slot| some.set(slot, true));
        let outcome = lister.outcome(&some).unwrap();
        assert_eq!(outcome.cost.to_bits(), dag.work(1).to_bits(), "{from}");
        assert_eq!(outcome.cost_used.to_bits(), outcome.cost.to_bits());
        lengths.push(outcome.makespan);
    }
    assert!(lengths.is_sorted() && lengths[0] < lengths[10], "{lengths:?}");
}

/// Even with few evaluations, the pruned search finds the shortest plan without wasted cost.
#[test]
fn the_cheapest_plan_is_found_with_few_evaluations() {
    let (dag, slots) = full_site();
    let links = SiteLinks::default();
    let mut lister = ListScheduler::new(&dag, &links, &slots, Method::Heft);
    let mut last = SlotSet::none(slots.len());
    (40..52).for_each(|slot| last.set(slot, true));
    let paid_as_used = lister.outcome(&last).unwrap();
    for population in [2, 10, 100] {
        let budget = Budget { population, iterations: 1 };
        let front = search(&mut lister, Search::Pruned, budget, 1, false).front;
        let cheapest = front.choose(1.0, &Constraint::default()).unwrap().objectives;
        assert_eq!(cheapest.cost, dag.work(1));
        assert!(cheapest.makespan <= paid_as_used.makespan);
    }
}

/// On small instances the search finds the plans of exhaustive enumeration. Draws 12 instances, or
/// `SPRINGTIDE_INSTANCES`.
#[test]
fn the_search_finds_the_exact_front_of_small_instances() {
    let count = std::env::var("SPRINGTIDE_INSTANCES").map_or(12, |n| n.parse().expect("a number"));
    let mut found_all = 0;
    for seed in 0..count {
        let mut random = springtide_base::random::SplitMix::with_text(seed, "small");
        let slot = |random: &mut springtide_base::random::SplitMix| {
            let (site, start) = (random.below(3), random.below(60) as u64 * SECOND);
            Slot {
                site,
                processors: 1 + random.below(4) as u32,
                start,
                end: start + (20 + random.below(60) as u64) * SECOND,
                price: Price { rate: 1.0 + random.unit(), fixed: 0.0 },
                divisible: random.below(4) == 0,
                extensible: false,
            }
        };
        let slots: Vec<Slot> = (0..14).map(|_| slot(&mut random)).collect();
        let tasks = (0..12).map(|index| DagTask {
            name: index.to_string(),
            processors: 1 + random.below(2) as u32,
            runtime: Runtime::Same((4 + random.below(10) as u64) * SECOND),
        });
        let tasks: Vec<DagTask> = tasks.collect();
        let edges: Vec<Edge> = (3..12)
            .map(|to| Edge { from: random.below(to), to, bytes: random.below(6) as u64 })
            .collect();
        let dag = Dag::new(tasks, &edges, 3).unwrap();
        let links = SiteLinks { other: Some((0, 1.0)), ..SiteLinks::default() };
        let mut lister = ListScheduler::new(&dag, &links, &slots, Method::Heft);
        let exact = enumerate(&mut lister).front;
        let budget = Budget { population: 100, iterations: 39 };
        let ours = search(&mut lister, Search::Pruned, budget, seed, false).front;
        // Plans with a cost weight may be better than all plans of the enumeration.
        let is_reached = |point: &PlanPoint| {
            let mut found = ours.points().iter().map(|point| point.objectives);
            found.any(|found| found == point.objectives || found.dominates(&point.objectives))
        };
        found_all += u64::from(exact.points().iter().all(is_reached));
        assert!(!exact.points().is_empty() || ours.points().is_empty());
    }
    println!("all points of the exact front are reached in {found_all} of {count} instances");
    // The search is heuristic: it may miss a point in one instance of 25.
    assert!(found_all + count.div_ceil(25) >= count, "{found_all} of {count}");
}

/// With pieces of three large divisible offers, the search finds the front of exhaustive
/// enumeration. That front is better than the one of whole offers.
#[test]
fn pieces_of_divisible_offers_give_a_larger_front() {
    for seed in 0..4 {
        let mut random = springtide_base::random::SplitMix::with_text(seed, "pieces");
        let offer = |(site, rate): (usize, f64)| Slot {
            site,
            processors: 6,
            start: 0,
            end: 500 * SECOND,
            price: Price { rate, fixed: 0.0 },
            divisible: true,
            extensible: true,
        };
        let offers: Vec<Slot> = [1.0, 2.0, 4.0].into_iter().enumerate().map(offer).collect();
        let tasks: Vec<DagTask> = (0..24)
            .map(|index| {
                let base = 8 + random.below(30) as u64;
                DagTask {
                    name: index.to_string(),
                    processors: 1 + random.below(2) as u32,
                    runtime: Runtime::BySite([4, 3, 2].map(|n| base * n * SECOND / 2).to_vec()),
                }
            })
            .collect();
        let edges: Vec<Edge> =
            (8..24).map(|to| Edge { from: random.below(to), to, bytes: 1 }).collect();
        let dag = Dag::new(tasks, &edges, 3).unwrap();
        let links = SiteLinks { other: Some((0, 1.0)), ..SiteLinks::default() };
        let pieces = SlotPieces::cut(&offers);
        assert_eq!(pieces.offers(), [0, 0, 0, 1, 1, 1, 2, 2, 2]);
        let sizes: Vec<u32> = pieces.slots().iter().map(|slot| slot.processors).collect();
        assert_eq!(sizes, [1, 2, 3, 1, 2, 3, 1, 2, 3]);
        let mut lister = ListScheduler::on_pieces(&dag, &links, &pieces, Method::Heft);
        let exact = enumerate(&mut lister).front;
        let whole = enumerate(&mut ListScheduler::new(&dag, &links, &offers, Method::Heft)).front;
        let reference = Objectives { cost: 1e4, makespan: 1000 * SECOND };
        let [exact_area, whole_area] = [&exact, &whole].map(|front| hypervolume(front, reference));
        assert!(exact_area > whole_area, "seed {seed}: {exact_area} {whole_area}");
        let budget = Budget { population: 50, iterations: 9 };
        let found = search(&mut lister, Search::Pruned, budget, seed, false).front;
        let found_area = hypervolume(&found, reference);
        assert!(found_area >= 0.999 * exact_area, "seed {seed}: {found_area} of {exact_area}");
        for point in exact.points() {
            let schedule = lister.schedule(&point.slots).unwrap();
            let mut free = BTreeMap::new();
            for offer in 0..3 {
                let processors = pieces.processors_of(offer, &point.slots);
                free.insert(offer, AvailabilityProfile::new(processors, 0, NEVER));
            }
            for task in &schedule.tasks {
                for part in &task.pieces {
                    let line = free.get_mut(&pieces.offer(part.slot)).unwrap();
                    assert!(line.min_free(task.start, task.end) >= part.processors, "seed {seed}");
                    line.take(part.processors, task.start, task.end);
                }
            }
        }
    }
}
