//! The times of benchmarks: each rule alone, and the budget over long random histories.

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
    planner: BenchmarkPlanner,
    now: Instant,
}

impl Bench {
    fn new() -> Self {
        let now = Instant::now();
        Self { planner: BenchmarkPlanner::new(BenchmarkSettings::default(), now), now }
    }

    /// A busy node after its first measurement, with the full budget of one run.
    fn at_work() -> Self {
        Self::with(BenchmarkSettings::default())
    }

    /// The same under these settings.
    fn with(settings: BenchmarkSettings) -> Self {
        let now = Instant::now();
        let mut bench = Self { planner: BenchmarkPlanner::new(settings, now), now };
        bench.handle(BenchmarkEvent::Load(quiet()));
        assert_eq!(bench.reason(BenchmarkEvent::Spec(SPEC)), Some(BenchmarkReason::Joined));
        bench.now += SECOND / 2;
        assert_eq!(bench.handle(BenchmarkEvent::Finished { whole: true }), []);
        assert_eq!(bench.handle(BenchmarkEvent::Busy), []);
        bench
    }

    /// The actions, without the wake-up at which the last run is too old.
    fn handle(&mut self, event: BenchmarkEvent) -> Vec<BenchmarkAction> {
        let mut actions = self.planner.handle(event, self.now);
        let old = self.planner.is_old_at().map(|at| BenchmarkAction::Wake { at });
        actions.retain(|action| Some(*action) != old);
        actions
    }

    fn reason(&mut self, event: BenchmarkEvent) -> Option<BenchmarkReason> {
        self.handle(event).into_iter().find_map(|action| match action {
            BenchmarkAction::Run { reason: why, .. } => Some(why),
            _ => None,
        })
    }

    /// Advances time and answers wake-ups until a run, and returns its goal.
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
                    actions = self.handle(BenchmarkEvent::Tick);
                }
                _ => return None,
            }
        }
    }
}

#[test]
fn a_joiner_runs_at_once_for_five_quota_periods() {
    let mut bench = Bench::new();
    assert_eq!(bench.handle(BenchmarkEvent::QuotaPeriod(Some(SECOND / 25))), []);
    assert_eq!(bench.handle(BenchmarkEvent::Busy), []);
    let goal =
        BenchmarkGoal { min_length: SECOND / 5, max_length: SECOND * 4 / 5, window: SECOND / 25 };
    let run = BenchmarkAction::Run { spec: SPEC, goal, reason: BenchmarkReason::Joined };
    assert_eq!(bench.handle(BenchmarkEvent::Spec(SPEC))[0], run);
    assert_eq!(bench.handle(BenchmarkEvent::Spec(SPEC)).len(), 1, "only a wake-up");
}

#[test]
fn a_node_that_works_and_tells_units_waits_with_its_first_run() {
    let mut bench = Bench::new();
    bench.handle(BenchmarkEvent::Busy);
    bench.handle(BenchmarkEvent::KnowsUnits(true));
    assert_eq!(bench.handle(BenchmarkEvent::Spec(SPEC)), []);
    assert_eq!(bench.reason(BenchmarkEvent::Load(quiet())), None);
    assert_eq!(bench.reason(BenchmarkEvent::Idle), Some(BenchmarkReason::Joined));
    // A node whose units have ended runs it then.
    let mut bench = Bench::new();
    bench.handle(BenchmarkEvent::Busy);
    bench.handle(BenchmarkEvent::KnowsUnits(true));
    bench.handle(BenchmarkEvent::Spec(SPEC));
    let why = bench.reason(BenchmarkEvent::KnowsUnits(false));
    assert_eq!(why, Some(BenchmarkReason::Joined));
}

#[test]
fn while_the_load_is_what_it_was_only_age_repeats_a_run() {
    for busy in [true, false] {
        let mut bench = Bench::at_work();
        bench.handle(if busy { BenchmarkEvent::Busy } else { BenchmarkEvent::Idle });
        let (mut last, mut runs) = (bench.now, 0u32);
        for period in 0..1000u32 {
            bench.now += 10 * SECOND;
            let noise = f64::from(period % 7) / 100.0;
            let load = Load { foreign_cpu_share: Some(noise), ..Load::default() };
            let actions = bench.handle(BenchmarkEvent::Load(load));
            let Some(BenchmarkAction::Run { reason, .. }) = actions.first() else {
                assert_eq!(actions, []);
                continue;
            };
            assert_eq!(*reason, BenchmarkReason::Age);
            assert!(bench.now - last >= 60 * SECOND && bench.now - last <= 70 * SECOND);
            runs += 1;
            bench.now += SECOND / 2;
            last = bench.now;
            bench.handle(BenchmarkEvent::Finished { whole: true });
        }
        assert!(runs > 100, "{runs}");
        let mut bench = Bench::with(BenchmarkSettings {
            max_age: Duration::ZERO,
            ..BenchmarkSettings::default()
        });
        bench.handle(if busy { BenchmarkEvent::Busy } else { BenchmarkEvent::Idle });
        for period in 0..1000u32 {
            bench.now += 10 * SECOND;
            let noise = f64::from(period % 7) / 100.0;
            let load = Load { foreign_cpu_share: Some(noise), ..Load::default() };
            assert_eq!(bench.handle(BenchmarkEvent::Load(load)), []);
            assert_eq!(bench.handle(BenchmarkEvent::Tick), []);
        }
    }
}

/// A budget that is spent lends one run, and no second one before it is paid back.
#[test]
fn an_old_or_uncertain_speed_is_measured_beyond_the_budget() {
    for uncertain in [true, false] {
        let mut bench = Bench::at_work();
        bench.planner.budget = 0.0;
        if uncertain {
            assert_eq!(bench.reason(BenchmarkEvent::Uncertain), Some(BenchmarkReason::Uncertain));
        } else {
            bench.planner.measured_at = Some(bench.now - 61 * SECOND);
            assert_eq!(bench.reason(BenchmarkEvent::Tick), Some(BenchmarkReason::Age));
        }
        // The run under way is not cut short by the empty budget.
        bench.now += SECOND / 4;
        assert!(!bench.handle(BenchmarkEvent::Tick).contains(&BenchmarkAction::Stop));
        bench.now += SECOND / 4;
        bench.handle(BenchmarkEvent::Finished { whole: true });
        assert!(bench.planner.budget >= -0.5 && bench.planner.budget < -0.49);
        let asked = bench.now;
        let actions = bench.handle(BenchmarkEvent::Uncertain);
        bench.until_run(actions, asked + 60 * SECOND).unwrap();
        assert!(bench.now - asked >= 49 * SECOND, "{:?}", bench.now - asked);
    }
    // Without an overhead a busy node runs none, and work units make them needless.
    let mut bench =
        Bench::with(BenchmarkSettings { max_overhead: 0.0, ..BenchmarkSettings::default() });
    bench.now += 1000 * SECOND;
    assert_eq!(bench.reason(BenchmarkEvent::Uncertain), None);
    let mut bench = Bench::at_work();
    bench.handle(BenchmarkEvent::KnowsUnits(true));
    bench.now += 1000 * SECOND;
    assert_eq!(bench.reason(BenchmarkEvent::Uncertain), None);
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
    assert_eq!(bench.handle(BenchmarkEvent::Finished { whole: true }), []);
    for _ in 0..5 {
        bench.now += 10 * SECOND;
        assert_eq!(bench.handle(BenchmarkEvent::Load(hogged())), []);
    }
    // It runs again when the foreign load ends.
    assert!(bench.reason(BenchmarkEvent::Load(quiet())).is_some());
}

/// A node without budget gets another load. It is measured before the period ends by a shorter run,
/// and by a whole one when the budget allows.
#[test]
fn a_budget_too_small_shortens_the_run_but_does_not_put_it_off() {
    let mut bench = Bench::at_work();
    bench.now += 10 * SECOND;
    bench.reason(BenchmarkEvent::Load(hogged())).unwrap();
    bench.now += SECOND / 2;
    bench.handle(BenchmarkEvent::Finished { whole: true });
    // 0.5 + 0.11 - 0.5 s are left, and 0.1 s are added by then.
    bench.now += 10 * SECOND;
    let changed_at = bench.now;
    let actions = bench.handle(BenchmarkEvent::Load(quiet()));
    let goal = bench.until_run(actions, changed_at + 10 * SECOND).unwrap();
    assert!(bench.now <= changed_at + 6 * SECOND, "{:?}", bench.now - changed_at);
    assert!(goal.max_length < goal.min_length && goal.max_length >= SECOND / 5, "{goal:?}");
    bench.now += goal.max_length;
    let ended = bench.now;
    let actions = bench.handle(BenchmarkEvent::Finished { whole: false });
    let goal = bench.until_run(actions, ended + 100 * SECOND).unwrap();
    assert!(goal.max_length >= goal.min_length, "{goal:?}");
    assert!(bench.now >= ended + 40 * SECOND, "{:?}", bench.now - ended);
}

#[test]
fn a_load_that_goes_away_again_needs_no_run() {
    let mut bench = Bench::at_work();
    bench.now += 10 * SECOND;
    bench.reason(BenchmarkEvent::Load(hogged())).unwrap();
    bench.now += SECOND / 2;
    bench.handle(BenchmarkEvent::Finished { whole: true });
    bench.now += SECOND;
    // It waits for its budget; meanwhile the load is again that of the known speed.
    assert!(matches!(
        bench.handle(BenchmarkEvent::Load(quiet()))[..],
        [BenchmarkAction::Wake { .. }]
    ));
    bench.now += SECOND;
    assert_eq!(bench.handle(BenchmarkEvent::Load(hogged())), []);
    bench.now += 50 * SECOND;
    assert_eq!(bench.handle(BenchmarkEvent::Tick), []);
}

#[test]
fn work_units_make_a_benchmark_needless_and_an_idle_node_without_runs_free() {
    let mut bench = Bench::at_work();
    bench.handle(BenchmarkEvent::KnowsUnits(true));
    bench.now += 10 * SECOND;
    assert_eq!(bench.handle(BenchmarkEvent::Load(hogged())), []);
    // An idle moment: it waits for a result that a benchmark would delay.
    assert_eq!(bench.reason(BenchmarkEvent::Idle), None);
    let budget = bench.planner.budget;
    // A long idle time: it has completed no units recently.
    assert!(bench.reason(BenchmarkEvent::KnowsUnits(false)).is_some());
    bench.now += SECOND / 2;
    bench.handle(BenchmarkEvent::Finished { whole: true });
    assert!(bench.planner.budget > budget, "idle time costs nothing");
    // The value of a unit in the benchmark is determined once, independent of later units.
    bench.handle(BenchmarkEvent::KnowsUnits(true));
    assert_eq!(bench.reason(BenchmarkEvent::Spec(SpecId(8))), Some(BenchmarkReason::OtherSpec));
}

#[test]
fn work_that_comes_to_an_idle_node_ends_its_run_when_the_budget_is_spent() {
    let mut bench = Bench::at_work();
    bench.handle(BenchmarkEvent::Idle);
    bench.now += SECOND;
    bench.planner.budget = 0.2;
    bench.reason(BenchmarkEvent::Load(hogged())).unwrap();
    bench.now += SECOND / 10;
    let actions = bench.handle(BenchmarkEvent::Busy);
    let [BenchmarkAction::Wake { at }] = actions[..] else { panic!("{actions:?}") };
    assert!(at >= bench.now + SECOND / 5 && at < bench.now + SECOND / 4);
    bench.now = at + SECOND / 100;
    assert_eq!(bench.handle(BenchmarkEvent::Tick), [BenchmarkAction::Stop]);
    assert_eq!(bench.handle(BenchmarkEvent::Tick), [], "said once");
    let actions = bench.handle(BenchmarkEvent::Finished { whole: false });
    assert!(matches!(actions[..], [BenchmarkAction::Wake { .. }]), "{actions:?}");
    bench.now += SECOND;
    assert_eq!(bench.reason(BenchmarkEvent::Idle), Some(BenchmarkReason::CutShort));
}

/// Seed 6140 of the drawn grids: with a billionth of a second left, the planner was to be woken at
/// once, again and again, and virtual time stood still.
#[test]
fn a_rest_of_the_budget_below_the_clocks_resolution_wakes_later() {
    let mut bench = Bench::at_work();
    bench.handle(BenchmarkEvent::Idle);
    bench.now += SECOND;
    bench.planner.budget = 1e-10;
    bench.reason(BenchmarkEvent::Load(hogged())).unwrap();
    let actions = bench.handle(BenchmarkEvent::Busy);
    let [BenchmarkAction::Wake { at }] = actions[..] else { panic!("{actions:?}") };
    assert!(at > bench.now);
    bench.now = at;
    assert_eq!(bench.handle(BenchmarkEvent::Tick), [BenchmarkAction::Stop]);
}

#[test]
fn where_the_kernel_tells_nothing_the_budget_sets_the_pace() {
    for busy in [true, false] {
        let mut bench = Bench::new();
        bench.handle(BenchmarkEvent::Spec(SPEC));
        bench.now += SECOND / 2;
        bench.handle(BenchmarkEvent::Finished { whole: true });
        bench.handle(if busy { BenchmarkEvent::Busy } else { BenchmarkEvent::Idle });
        let (start, mut runs) = (bench.now, 0);
        for _ in 0..360 {
            bench.now += 10 * SECOND;
            if bench.reason(BenchmarkEvent::Load(Load::default())).is_some() {
                runs += 1;
                bench.now += SECOND / 2;
                bench.handle(BenchmarkEvent::Finished { whole: true });
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
    // A third specification ends the run of the second.
    assert_eq!(bench.handle(BenchmarkEvent::Spec(SpecId(9))), [BenchmarkAction::Stop]);
    bench.now += SECOND / 5;
    assert_eq!(
        bench.reason(BenchmarkEvent::Finished { whole: false }),
        Some(BenchmarkReason::OtherSpec)
    );
    // It fails here: no run until there is another.
    bench.handle(BenchmarkEvent::Failed);
    bench.now += 100 * SECOND;
    assert_eq!(bench.handle(BenchmarkEvent::Load(hogged())), []);
    assert_eq!(bench.handle(BenchmarkEvent::Idle), []);
    assert_eq!(bench.handle(BenchmarkEvent::Load(quiet())), []);
    assert_eq!(bench.reason(BenchmarkEvent::Spec(SpecId(10))), Some(BenchmarkReason::OtherSpec));
    assert_eq!(bench.handle(BenchmarkEvent::Leaving), [BenchmarkAction::Stop]);
    bench.handle(BenchmarkEvent::Finished { whole: false });
    bench.now += 100 * SECOND;
    assert_eq!(bench.handle(BenchmarkEvent::Load(hogged())), []);
    assert_eq!(bench.handle(BenchmarkEvent::Spec(SpecId(11))), []);
    assert_eq!(bench.handle(BenchmarkEvent::Idle), []);
}

#[test]
fn contradictory_settings_are_refused_with_all_reasons() {
    assert_eq!(BenchmarkSettings::default().check(), []);
    let bad = BenchmarkSettings {
        max_overhead: f64::NAN,
        quota_periods: 0,
        saved_runs: 0,
        period: Duration::ZERO,
        max_age: Duration::ZERO,
        thresholds: LoadThresholds::default(),
    };
    assert_eq!(bad.check().len(), 4);
    let short = BenchmarkSettings { period: SECOND / 2, ..BenchmarkSettings::default() };
    assert_eq!(
        short.check()[0].to_string(),
        "a period of 500ms is shorter than a benchmark of 500ms; lengthen the one or shorten the \
         other"
    );
}

proptest! {
    /// In any history a busy node stays within its budget, no run starts before the previous one
    /// ends, and no wake-up is in the past.
    #[test]
    fn a_busy_node_keeps_to_its_budget(
        steps in prop::collection::vec((0u8..9, 1u64..8_000, any::<bool>()), 1..200),
        overhead in 0.0f64..0.1,
    ) {
        let settings = BenchmarkSettings { max_overhead: overhead, ..BenchmarkSettings::default() };
        let start = Instant::now();
        let (mut now, mut planner) = (start, BenchmarkPlanner::new(settings, start));
        let (mut busy, mut spent, mut ran) = (false, Duration::ZERO, 0u32);
        let mut running = None::<(Instant, BenchmarkGoal, bool)>;
        for (what, millis, flag) in steps {
            now += Duration::from_millis(millis);
            let event = match what {
                0 => BenchmarkEvent::Spec(SpecId(u64::from(flag))),
                1 => BenchmarkEvent::Load(if flag { quiet() } else { hogged() }),
                2 => BenchmarkEvent::Load(Load::default()),
                3 | 4 => if flag { BenchmarkEvent::Idle } else { BenchmarkEvent::Busy },
                5 if flag => BenchmarkEvent::Uncertain,
                5 => BenchmarkEvent::KnowsUnits(millis % 2 == 0),
                _ => BenchmarkEvent::Tick,
            };
            // A run of full length ends by itself before the next event.
            if let Some((began, goal, joined)) = running {
                let length = goal.max_length.min(goal.min_length);
                if now >= began + length {
                    if busy && !joined {
                        spent += length;
                        ran += 1;
                    }
                    running = None;
                    let finished = BenchmarkEvent::Finished { whole: length >= goal.min_length };
                    let actions = planner.handle(finished, began + length);
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
        // One run saved at the start, at most two, one lent, and the excess of runs that started
        // idle.
        let allowed = (now - start).mul_f64(overhead) + SECOND / 2 * (2 + ran.min(1)) + SECOND / 2;
        prop_assert!(spent <= allowed, "spent {spent:?} of {allowed:?}");
    }
}

fn note(
    actions: &[BenchmarkAction],
    now: Instant,
    running: &mut Option<(Instant, BenchmarkGoal, bool)>,
) {
    for action in actions {
        if let BenchmarkAction::Run { goal, reason: why, .. } = action {
            *running = Some((now, *goal, matches!(why, BenchmarkReason::Joined)));
        }
    }
}
