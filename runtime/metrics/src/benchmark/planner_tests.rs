//! When benchmarks run: each rule by itself, and the budget over long random histories.

use proptest::prelude::*;

use super::*;

const SECOND: Duration = Duration::from_secs(1);
const SPEC: SpecId = SpecId(7);

fn quiet() -> Load {
    Load { foreign_cpu_share: Some(0.02), ..Load::default() }
}

fn hogged() -> Load {
    Load { foreign_cpu_share: Some(0.5), ..Load::default() }
}

struct Bench {
    planner: Planner,
    now: Instant,
}

impl Bench {
    fn new() -> Self {
        let now = Instant::now();
        Self { planner: Planner::new(BenchmarkSettings::default(), now), now }
    }

    /// A node that joined, measured itself, and is busy, with its whole budget of one run.
    fn at_work() -> Self {
        let mut bench = Self::new();
        bench.hear(BenchmarkEvent::Load(quiet()));
        assert_eq!(bench.reason(BenchmarkEvent::Spec(SPEC)), Some(BenchmarkReason::Joined));
        bench.now += SECOND / 2;
        assert_eq!(bench.hear(BenchmarkEvent::Finished { whole: true }), []);
        assert_eq!(bench.hear(BenchmarkEvent::Busy), []);
        bench
    }

    fn hear(&mut self, event: BenchmarkEvent) -> Vec<BenchmarkAction> {
        self.planner.handle(event, self.now)
    }

    fn reason(&mut self, event: BenchmarkEvent) -> Option<BenchmarkReason> {
        self.hear(event).into_iter().find_map(|action| match action {
            BenchmarkAction::Run { why, .. } => Some(why),
            _ => None,
        })
    }

    /// Lets time pass, answering wake-ups, up to a run; its goal.
    fn until_run(
        &mut self,
        mut actions: Vec<BenchmarkAction>,
        end: Instant,
    ) -> Option<BenchmarkGoal> {
        loop {
            match actions.as_slice() {
                [BenchmarkAction::Run { goal, .. }] => return Some(*goal),
                [BenchmarkAction::Wake { at }] if *at <= end => {
                    assert!(*at > self.now, "it wakes for nothing");
                    self.now = *at;
                    actions = self.hear(BenchmarkEvent::Tick);
                }
                _ => return None,
            }
        }
    }
}

#[test]
fn a_joiner_runs_at_once_for_five_quota_periods() {
    let mut bench = Bench::new();
    assert_eq!(bench.hear(BenchmarkEvent::QuotaPeriod(Some(SECOND / 25))), []);
    assert_eq!(bench.hear(BenchmarkEvent::Busy), []);
    let goal =
        BenchmarkGoal { at_least: SECOND / 5, at_most: SECOND * 4 / 5, stretch: SECOND / 25 };
    let run = BenchmarkAction::Run { spec: SPEC, goal, why: BenchmarkReason::Joined };
    assert_eq!(bench.hear(BenchmarkEvent::Spec(SPEC))[0], run);
    assert_eq!(bench.hear(BenchmarkEvent::Spec(SPEC)).len(), 1, "only a wake-up");
}

#[test]
fn a_node_that_works_and_tells_units_waits_with_its_first_run() {
    let mut bench = Bench::new();
    bench.hear(BenchmarkEvent::Busy);
    bench.hear(BenchmarkEvent::KnowsUnits(true));
    assert_eq!(bench.hear(BenchmarkEvent::Spec(SPEC)), []);
    assert_eq!(bench.reason(BenchmarkEvent::Load(quiet())), None);
    assert_eq!(bench.reason(BenchmarkEvent::Idle), Some(BenchmarkReason::Joined));
    // And one whose units have ended runs it then.
    let mut bench = Bench::new();
    bench.hear(BenchmarkEvent::Busy);
    bench.hear(BenchmarkEvent::KnowsUnits(true));
    bench.hear(BenchmarkEvent::Spec(SPEC));
    let why = bench.reason(BenchmarkEvent::KnowsUnits(false));
    assert_eq!(why, Some(BenchmarkReason::Joined));
}

#[test]
fn while_the_load_is_what_it_was_nothing_runs() {
    for busy in [true, false] {
        let mut bench = Bench::at_work();
        bench.hear(if busy { BenchmarkEvent::Busy } else { BenchmarkEvent::Idle });
        for period in 0..1000u32 {
            bench.now += 10 * SECOND;
            let noise = f64::from(period % 7) / 100.0;
            let load = Load { foreign_cpu_share: Some(noise), ..Load::default() };
            assert_eq!(bench.hear(BenchmarkEvent::Load(load)), []);
            assert_eq!(bench.hear(BenchmarkEvent::Tick), []);
        }
    }
}

#[test]
fn a_changed_load_is_measured_once_if_the_budget_reaches() {
    let mut bench = Bench::at_work();
    bench.now += 10 * SECOND;
    let why = bench.reason(BenchmarkEvent::Load(hogged())).unwrap();
    assert_eq!(
        why.to_string(),
        "the share of processor time that others use went from 2 % to 50 %"
    );
    bench.now += SECOND / 2;
    assert_eq!(bench.hear(BenchmarkEvent::Finished { whole: true }), []);
    for _ in 0..5 {
        bench.now += 10 * SECOND;
        assert_eq!(bench.hear(BenchmarkEvent::Load(hogged())), []);
    }
    // And again when the hog is gone.
    assert!(bench.reason(BenchmarkEvent::Load(quiet())).is_some());
}

/// A node that spent its budget hears of another load: it is measured before the period ends, if for a shorter time, and whole
/// when the budget allows.
#[test]
fn a_budget_too_small_shortens_the_run_but_does_not_put_it_off() {
    let mut bench = Bench::at_work();
    bench.now += 10 * SECOND;
    bench.reason(BenchmarkEvent::Load(hogged())).unwrap();
    bench.now += SECOND / 2;
    bench.hear(BenchmarkEvent::Finished { whole: true });
    // 0.5 + 0.11 - 0.5 s are left, and 0.1 s come by then.
    bench.now += 10 * SECOND;
    let heard = bench.now;
    let actions = bench.hear(BenchmarkEvent::Load(quiet()));
    let goal = bench.until_run(actions, heard + 10 * SECOND).unwrap();
    assert!(bench.now <= heard + 6 * SECOND, "{:?}", bench.now - heard);
    assert!(goal.at_most < goal.at_least && goal.at_most >= SECOND / 5, "{goal:?}");
    bench.now += goal.at_most;
    let ended = bench.now;
    let actions = bench.hear(BenchmarkEvent::Finished { whole: false });
    let goal = bench.until_run(actions, ended + 100 * SECOND).unwrap();
    assert!(goal.at_most >= goal.at_least, "{goal:?}");
    assert!(bench.now >= ended + 40 * SECOND, "{:?}", bench.now - ended);
}

#[test]
fn a_load_that_goes_away_again_needs_no_run() {
    let mut bench = Bench::at_work();
    bench.now += 10 * SECOND;
    bench.reason(BenchmarkEvent::Load(hogged())).unwrap();
    bench.now += SECOND / 2;
    bench.hear(BenchmarkEvent::Finished { whole: true });
    bench.now += SECOND;
    // It would wait for its budget; meanwhile the load is again the one under which the speed is known.
    assert!(matches!(
        bench.hear(BenchmarkEvent::Load(quiet()))[..],
        [BenchmarkAction::Wake { .. }]
    ));
    bench.now += SECOND;
    assert_eq!(bench.hear(BenchmarkEvent::Load(hogged())), []);
    bench.now += 100 * SECOND;
    assert_eq!(bench.hear(BenchmarkEvent::Tick), []);
}

#[test]
fn work_units_make_a_benchmark_needless_and_an_idle_node_without_runs_free() {
    let mut bench = Bench::at_work();
    bench.hear(BenchmarkEvent::KnowsUnits(true));
    bench.now += 10 * SECOND;
    assert_eq!(bench.hear(BenchmarkEvent::Load(hogged())), []);
    // Idle for a moment, it waits for a result that it would come to late.
    assert_eq!(bench.reason(BenchmarkEvent::Idle), None);
    let budget = bench.planner.budget;
    // Idle for long, it has done no units of late.
    assert!(bench.reason(BenchmarkEvent::KnowsUnits(false)).is_some());
    bench.now += SECOND / 2;
    bench.hear(BenchmarkEvent::Finished { whole: true });
    assert!(bench.planner.budget > budget, "idle time costs nothing");
    // What each unit is worth in the benchmark is found out once, whatever the units tell.
    bench.hear(BenchmarkEvent::KnowsUnits(true));
    assert_eq!(bench.reason(BenchmarkEvent::Spec(SpecId(8))), Some(BenchmarkReason::OtherSpec));
}

#[test]
fn work_that_comes_to_an_idle_node_ends_its_run_when_the_budget_is_spent() {
    let mut bench = Bench::at_work();
    bench.hear(BenchmarkEvent::Idle);
    bench.now += SECOND;
    bench.planner.budget = 0.2;
    bench.reason(BenchmarkEvent::Load(hogged())).unwrap();
    bench.now += SECOND / 10;
    let actions = bench.hear(BenchmarkEvent::Busy);
    let [BenchmarkAction::Wake { at }] = actions[..] else { panic!("{actions:?}") };
    assert!(at >= bench.now + SECOND / 5 && at < bench.now + SECOND / 4);
    bench.now = at + SECOND / 100;
    assert_eq!(bench.hear(BenchmarkEvent::Tick), [BenchmarkAction::Stop]);
    assert_eq!(bench.hear(BenchmarkEvent::Tick), [], "said once");
    let actions = bench.hear(BenchmarkEvent::Finished { whole: false });
    assert!(matches!(actions[..], [BenchmarkAction::Wake { .. }]), "{actions:?}");
    bench.now += SECOND;
    assert_eq!(bench.reason(BenchmarkEvent::Idle), Some(BenchmarkReason::CutShort));
}

#[test]
fn where_the_kernel_tells_nothing_the_budget_sets_the_pace() {
    for busy in [true, false] {
        let mut bench = Bench::new();
        bench.hear(BenchmarkEvent::Spec(SPEC));
        bench.now += SECOND / 2;
        bench.hear(BenchmarkEvent::Finished { whole: true });
        bench.hear(if busy { BenchmarkEvent::Busy } else { BenchmarkEvent::Idle });
        let (start, mut runs) = (bench.now, 0);
        for _ in 0..360 {
            bench.now += 10 * SECOND;
            if bench.reason(BenchmarkEvent::Load(Load::default())).is_some() {
                runs += 1;
                bench.now += SECOND / 2;
                bench.hear(BenchmarkEvent::Finished { whole: true });
            }
        }
        let hour = (bench.now - start).as_secs_f64();
        // Half a second each: 1 % is one in 50 s.
        let most = hour / 50.0;
        assert!(f64::from(runs) <= most + 3.0 && f64::from(runs) > 0.8 * most, "{runs} of {most}");
    }
}

#[test]
fn other_benchmarks_leaving_and_failures() {
    let mut bench = Bench::at_work();
    bench.now += 100 * SECOND;
    assert_eq!(bench.reason(BenchmarkEvent::Spec(SpecId(8))), Some(BenchmarkReason::OtherSpec));
    // A third one while the second runs: that one is of no use any more.
    assert_eq!(bench.hear(BenchmarkEvent::Spec(SpecId(9))), [BenchmarkAction::Stop]);
    bench.now += SECOND / 5;
    assert_eq!(
        bench.reason(BenchmarkEvent::Finished { whole: false }),
        Some(BenchmarkReason::OtherSpec)
    );
    // It does not work here: silence until there is another.
    bench.hear(BenchmarkEvent::Failed);
    bench.now += 100 * SECOND;
    assert_eq!(bench.hear(BenchmarkEvent::Load(hogged())), []);
    assert_eq!(bench.hear(BenchmarkEvent::Idle), []);
    assert_eq!(bench.hear(BenchmarkEvent::Load(quiet())), []);
    assert_eq!(bench.reason(BenchmarkEvent::Spec(SpecId(10))), Some(BenchmarkReason::OtherSpec));
    assert_eq!(bench.hear(BenchmarkEvent::Leaving), [BenchmarkAction::Stop]);
    bench.hear(BenchmarkEvent::Finished { whole: false });
    bench.now += 100 * SECOND;
    assert_eq!(bench.hear(BenchmarkEvent::Load(hogged())), []);
    assert_eq!(bench.hear(BenchmarkEvent::Spec(SpecId(11))), []);
    assert_eq!(bench.hear(BenchmarkEvent::Idle), []);
}

#[test]
fn contradictory_settings_are_refused_with_all_reasons() {
    assert_eq!(BenchmarkSettings::default().check(), []);
    let bad = BenchmarkSettings {
        max_overhead: f64::NAN,
        quota_periods: 0,
        saved_runs: 0,
        period: Duration::ZERO,
        thresholds: LoadThresholds::default(),
    };
    assert_eq!(bad.check().len(), 4);
    let short = BenchmarkSettings { period: SECOND / 2, ..BenchmarkSettings::default() };
    assert_eq!(
        short.check()[0].to_string(),
        "a period of 500ms is shorter than a benchmark of 500ms; lengthen the one or shorten the other"
    );
}

proptest! {
    /// Whatever happens: what a busy node spends stays within the budget, no run begins before the last has ended, and a node that
    /// wakes for something never wakes in the past.
    #[test]
    fn a_busy_node_keeps_to_its_budget(
        steps in prop::collection::vec((0u8..9, 1u64..8_000, any::<bool>()), 1..200),
        overhead in 0.0f64..0.1,
    ) {
        let settings = BenchmarkSettings { max_overhead: overhead, ..BenchmarkSettings::default() };
        let start = Instant::now();
        let (mut now, mut planner) = (start, Planner::new(settings, start));
        let (mut busy, mut running, mut spent, mut ran) = (false, None::<(Instant, BenchmarkGoal, bool)>, Duration::ZERO, 0u32);
        for (what, millis, flag) in steps {
            now += Duration::from_millis(millis);
            let event = match what {
                0 => BenchmarkEvent::Spec(SpecId(u64::from(flag))),
                1 => BenchmarkEvent::Load(if flag { quiet() } else { hogged() }),
                2 => BenchmarkEvent::Load(Load::default()),
                3 | 4 => if flag { BenchmarkEvent::Idle } else { BenchmarkEvent::Busy },
                5 => BenchmarkEvent::KnowsUnits(flag),
                _ => BenchmarkEvent::Tick,
            };
            // A run that has had its time ends by itself, before the next event.
            if let Some((began, goal, joined)) = running {
                let length = goal.at_most.min(goal.at_least);
                if now >= began + length {
                    if busy && !joined {
                        spent += length;
                        ran += 1;
                    }
                    running = None;
                    let actions = planner.handle(BenchmarkEvent::Finished { whole: length >= goal.at_least }, began + length);
                    note(&actions, began + length, &mut running);
                    if running.is_some() { continue; }
                }
            }
            match event {
                BenchmarkEvent::Idle => busy = false,
                BenchmarkEvent::Busy => busy = true,
                _ => {}
            }
            let before = running.is_some();
            let actions = planner.handle(event, now);
            let begun = actions.iter().filter(|a| matches!(a, BenchmarkAction::Run { .. })).count();
            prop_assert!(begun <= usize::from(!before), "{actions:?}");
            for action in &actions {
                if let BenchmarkAction::Wake { at } = action {
                    prop_assert!(*at > now);
                }
            }
            note(&actions, now, &mut running);
        }
        // One run saved at the start, at most two; and what runs that were begun idle took over their budget.
        let allowed = (now - start).mul_f64(overhead) + SECOND / 2 * (1 + ran.min(1)) + SECOND / 2;
        prop_assert!(spent <= allowed, "spent {spent:?} of {allowed:?}");
    }
}

fn note(
    actions: &[BenchmarkAction],
    now: Instant,
    running: &mut Option<(Instant, BenchmarkGoal, bool)>,
) {
    for action in actions {
        if let BenchmarkAction::Run { goal, why, .. } = action {
            *running = Some((now, *goal, matches!(why, BenchmarkReason::Joined)));
        }
    }
}
