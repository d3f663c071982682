//! A node's speed from streams of units, benchmarks and loads.

use proptest::prelude::*;

use super::*;

#[path = "tests_model.rs"]
mod model;

const SECOND: Duration = Duration::from_secs(1);
const PERIOD: Duration = Duration::from_secs(10);

/// Random numbers in [0, 1).
struct UniformRandom(u64);

impl UniformRandom {
    fn unit(&mut self) -> f64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// A node busy with tasks of declared cost, and its meter, updated once a second.
struct MeteredNode {
    meter: SpeedMeter,
    now: Instant,
    threads: u32,
    dice: UniformRandom,
    /// Relative scatter of the units of one second.
    noise: f64,
}

impl MeteredNode {
    fn new(threads: u32, noise: f64, seed: u64) -> Self {
        let meter = SpeedMeter::new(threads, SpeedSettings::default());
        Self { meter, now: Instant::now(), threads, dice: UniformRandom(seed | 1), noise }
    }

    /// A second at this speed, in units per second and thread.
    fn second(&mut self, speed: f64) {
        self.now += SECOND;
        let noise = 1.0 + self.noise * 2.0 * (self.dice.unit() - 0.5);
        (0..self.threads).for_each(|_| self.meter.units(speed * noise, SECOND));
    }

    fn period(&mut self, speed: f64) -> SpeedReport {
        for _ in 0..10 {
            self.second(speed);
        }
        assert_eq!(self.meter.end_period(self.now), Ok(true));
        self.meter.report(self.now).unwrap()
    }
}

fn busy_with(foreign: f64) -> Load {
    Load { foreign_cpu_share: Some(foreign), ..Load::default() }
}

#[test]
fn units_give_the_speed_of_all_threads_with_its_error() {
    let mut node = MeteredNode::new(4, 0.2, 1);
    let mut report = node.period(1000.0);
    for _ in 0..5 {
        report = node.period(1000.0);
    }
    assert_eq!((report.spec, report.source), (SpecId::DECLARED, SpeedSource::Units));
    assert!((report.speed / 4000.0 - 1.0).abs() < 0.06, "{report:?}");
    assert!(report.relative_error > 0.01 && report.relative_error < 0.06, "{report:?}");
    assert_eq!((report.age_us, report.refused), (0, 0));
    let later = node.meter.report(node.now + PERIOD).unwrap();
    assert_eq!((later.age_us, later.speed), (10_000_000, report.speed));
    assert!(later.relative_error > 0.04 && later.relative_error < 0.08, "{later:?}");
}

/// A foreign load halves the speed at any second of a period. The new speed shows at the end of the
/// second period after it, and again when the load ends.
#[test]
fn a_foreign_load_shows_within_two_periods() {
    for noise in [0.02, 0.3, 0.5] {
        for second in 0..10 {
            for seed in 1..4 {
                let mut node = MeteredNode::new(2, noise, seed * 0x9e37_79b9);
                for _ in 0..8 {
                    node.period(500.0);
                }
                for (slow, fast) in [(250.0, 500.0), (500.0, 250.0)] {
                    for at in 0..10 {
                        node.second(if at < second { fast } else { slow });
                    }
                    node.meter.end_period(node.now).unwrap();
                    let report = node.period(slow);
                    // Nearer to the new speed than to the old one, and close where units measure it
                    // well.
                    let off = |from: f64| (report.speed / (2.0 * from)).ln().abs();
                    let near = if noise < 0.5 { 0.15 } else { off(fast) };
                    assert!(off(slow) < near, "noise {noise}, second {second}: {report:?}");
                    for _ in 0..3 {
                        node.period(slow);
                    }
                }
            }
        }
    }
}

#[test]
fn a_change_of_the_kernels_load_makes_the_past_count_for_nothing() {
    let settings = SpeedSettings::default();
    let start = Instant::now();
    let mut meter = SpeedMeter::new(1, settings);
    let spec = SpecId(7);
    let rough = |speed| SpeedMeasurement { speed, relative_error: Some(0.4) };
    meter.load(busy_with(0.0), start);
    for period in 1..9 {
        meter.benchmark(spec, rough(100.0), None, start + PERIOD * period).unwrap();
    }
    // Such a rough measurement alone moves it only in part...
    let mut alone = meter.clone();
    let now = start + PERIOD * 9;
    alone.benchmark(spec, rough(60.0), None, now).unwrap();
    assert!(alone.report(now).unwrap().speed > 75.0);
    // ... but in full if the kernel reports a changed load.
    meter.load(busy_with(0.05), now);
    meter.load(busy_with(0.5), now);
    assert!(meter.report(now).unwrap().relative_error >= 1.0);
    meter.benchmark(spec, rough(60.0), None, now).unwrap();
    let report = meter.report(now).unwrap();
    assert!((report.speed - 60.0).abs() < 3.0, "{report:?}");
    assert_eq!(report.load, busy_with(0.5));
}

#[test]
fn tasks_longer_than_a_period_are_measured_when_they_end() {
    let mut meter = SpeedMeter::new(1, SpeedSettings::default());
    let mut now = Instant::now();
    let mut known = None;
    for second in 1..=250u32 {
        now += SECOND;
        // One task of 2500 units each 25 seconds.
        if second % 25 == 0 {
            meter.units(2500.0, 25 * SECOND);
        }
        if second % 10 == 0 {
            meter.end_period(now).unwrap();
            known = meter.report(now).or(known);
            assert!(meter.report(now).is_none_or(|r| (r.speed - 100.0).abs() < 1e-6), "{known:?}");
        }
    }
    assert!(known.is_some());
    // Very long times belong to tasks without a cost.
    meter.units(100.0, 1001 * SECOND);
    meter.units(100.0, SECOND);
    meter.units(100.0, SECOND);
    meter.end_period(now).unwrap();
    assert!((meter.report(now).unwrap().speed - 100.0).abs() < 1e-6);
}

#[test]
fn nonsense_is_flagged_and_not_used() {
    let mut node = MeteredNode::new(1, 0.02, 5);
    let before = node.period(10.0);
    // No busy time: no measurement and no error.
    assert_eq!(node.meter.end_period(node.now), Ok(false));
    for bad in [f64::NAN, f64::INFINITY, -3.0] {
        node.meter.units(bad, SECOND);
        assert_eq!(node.meter.end_period(node.now), Ok(false));
        let result = node.meter.benchmark(
            SpecId(1),
            SpeedMeasurement { speed: bad, relative_error: None },
            None,
            node.now,
        );
        assert!(matches!(result, Err(InvalidSpeed::NotPositive { .. })), "{result:?}");
    }
    node.meter.units(10_000.0, SECOND);
    let error = node.meter.end_period(node.now).unwrap_err();
    assert!(
        error
            .to_string()
            .starts_with("a speed of 10000 was measured and not used: it is more than 100 times")
    );
    let after = node.meter.report(node.now).unwrap();
    assert_eq!((after.speed, after.refused), (before.speed, 7));
    assert!(after.refused > before.refused);

    // A slower speed is accepted at once, and so is the return to the earlier one.
    let slow = node.period(0.05);
    assert!((slow.speed - 0.05).abs() < 0.005, "{slow:?}");
    let back = node.period(10.0);
    assert!((back.speed - 10.0).abs() < 0.5, "{back:?}");

    // Once its past is forgotten it is accepted.
    for _ in 0..10 {
        for _ in 0..10 {
            node.second(1e6);
        }
        assert!(node.meter.end_period(node.now).is_err());
    }
    let settled = node.period(1e6);
    assert!((settled.speed / 1e6 - 1.0).abs() < 0.05, "{settled:?}");
}

#[test]
fn benchmarks_serve_until_units_come_and_when_they_stay_away() {
    let mut node = MeteredNode::new(2, 0.0, 1);
    let spec = SpecId(0xabc);
    let measured = |speed| SpeedMeasurement { speed, relative_error: Some(0.03) };
    assert_eq!(node.meter.report(node.now), None);
    node.meter.load(busy_with(0.0), node.now);
    // A joiner has only its benchmark.
    node.meter.benchmark(spec, measured(40.0), None, node.now).unwrap();
    let joined = node.meter.report(node.now).unwrap();
    assert_eq!((joined.source, joined.spec), (SpeedSource::Benchmark, spec));
    assert!((joined.speed - 40.0).abs() < 1e-9 && joined.exchange.is_none(), "{joined:?}");
    assert!(!node.meter.knows_units(node.now));

    // At work it reports units, and the value of the benchmark in units.
    let busy = node.period(500.0);
    assert_eq!((busy.source, busy.spec), (SpeedSource::Units, SpecId::DECLARED));
    let (known, ratio) = busy.exchange.unwrap();
    assert!(known == spec && (ratio - 25.0).abs() < 1e-6, "{busy:?}");
    assert!(node.meter.knows_units(node.now));

    // Idle for long under another load, it reports its benchmark in units.
    node.now += 5 * PERIOD;
    node.meter.load(busy_with(0.5), node.now);
    node.now += SECOND;
    node.meter.benchmark(spec, measured(20.0), None, node.now).unwrap();
    let idle = node.meter.report(node.now).unwrap();
    assert_eq!((idle.source, idle.spec), (SpeedSource::Benchmark, SpecId::DECLARED));
    assert!((idle.speed - 500.0).abs() < 5.0, "{idle:?}");

    // Under another specification, it is another quantity.
    node.meter.benchmark(SpecId(0xdef), measured(1e9), None, node.now).unwrap();
    let other = node.meter.report(node.now).unwrap();
    assert!(other.spec == SpecId(0xdef) && (other.speed / 1e9 - 1.0).abs() < 1e-9, "{other:?}");
}

fn report(speed: f64, spec: u64, exchange: Option<(u64, f64)>) -> SpeedReport {
    SpeedReport {
        speed,
        relative_error: 0.1,
        spec: SpecId(spec),
        source: SpeedSource::Benchmark,
        load: Load::default(),
        age_us: 0,
        exchange: exchange.map(|(spec, ratio)| (SpecId(spec), ratio)),
        refused: 0,
    }
}

#[test]
fn speeds_of_several_nodes_come_to_one_scale() {
    let compare = |reports: &[SpeedReport]| {
        let scale = Scale::from_reports(reports);
        let speeds: Vec<_> = reports.iter().map(|r| Some(scale.compare(r)?.speed)).collect();
        (scale.spec.0, speeds)
    };
    // All with one benchmark; with two; with none.
    assert_eq!(
        compare(&[report(1.0, 5, None), report(2.0, 5, None)]),
        (5, vec![Some(1.0), Some(2.0)])
    );
    let two = [report(1.0, 9, None), report(2.0, 5, None), report(3.0, 9, None)];
    assert_eq!(compare(&two), (9, vec![Some(1.0), None, Some(3.0)]));
    assert_eq!(compare(&two[..2]), (5, vec![None, Some(2.0)]));
    assert_eq!(compare(&[]), (0, vec![]));
    // Three working nodes know the value of a joiner's benchmark: the median of theirs.
    let mixed = [
        report(100.0, 0, Some((5, 10.0))),
        report(90.0, 0, Some((5, 11.0))),
        report(1.0, 0, Some((5, 900.0))),
        report(4.0, 5, None),
        report(4.0, 6, None),
    ];
    assert_eq!(compare(&mixed), (0, vec![Some(100.0), Some(90.0), Some(1.0), Some(44.0), None]));
    // Invalid reports from the network have no influence.
    let bad = [
        report(f64::NAN, 0, Some((5, 10.0))),
        report(-1.0, 0, None),
        report(7.0, 5, Some((5, f64::NAN))),
    ];
    assert_eq!(compare(&bad), (5, vec![None, None, Some(7.0)]));
}

proptest! {
    #[test]
    fn reports_survive_the_wire_and_are_checked(
        (speed, relative_error) in any::<(f64, f64)>(),
        (spec, age_us) in any::<(u64, u64)>(),
        exchange in prop::option::of((any::<u64>(), any::<f64>())),
        foreign in prop::option::of(any::<f64>()),
    ) {
        let sent = SpeedReport {
            relative_error, age_us,
            load: Load { foreign_cpu_share: foreign, ..Load::default() },
            ..report(speed, spec, exchange)
        };
        let bytes = rmp_serde::to_vec_named(&sent).unwrap();
        let received: SpeedReport = rmp_serde::from_slice(&bytes).unwrap();
        prop_assert_eq!(received.speed.to_bits(), speed.to_bits());
        match received.checked() {
            Some(good) => {
                prop_assert!(good.speed.is_finite() && good.speed > 0.0);
                prop_assert!((0.0..=2.0).contains(&good.relative_error));
                let is_valid = |(_, ratio): (SpecId, f64)| ratio.is_finite() && ratio > 0.0;
                prop_assert!(good.exchange.is_none_or(is_valid));
            }
            None => prop_assert!(!(speed > 0.0 && speed.is_finite())),
        }
        let scale = Scale::from_reports([&received]);
        prop_assert_eq!(scale.compare(&received).is_some(), received.checked().is_some());
    }

    /// Any input gives finite numbers.
    #[test]
    fn a_meter_reports_only_finite_numbers(
        steps in prop::collection::vec((0u8..5, any::<f64>(), any::<f64>(), 0u64..30_000), 1..60),
        threads in any::<u32>(),
    ) {
        let mut meter = SpeedMeter::new(threads, SpeedSettings::default());
        let mut now = Instant::now();
        for (what, a, b, millis) in steps {
            let time = Duration::from_millis(millis);
            now += time;
            match what {
                0 | 1 => meter.units(if what == 0 { a } else { a.abs().min(1e9) }, time),
                2 => {
                    meter.pace(Duration::try_from_secs_f64(a.abs()).unwrap_or(time), time);
                    let _ = meter.end_period(now);
                }
                3 => meter.load(busy_with(a), now),
                _ => {
                    let measured = SpeedMeasurement { speed: a, relative_error: Some(b) };
                    let _ = meter.benchmark(SpecId(1), measured, Some(b), now);
                }
            }
            if let Some(report) = meter.report(now) {
                prop_assert!(report.speed > 0.0 && !report.speed.is_nan(), "{:?}", report);
                let error = report.relative_error;
                prop_assert!(error >= 0.0 && error.is_finite(), "{:?}", report);
            }
        }
    }
}

#[test]
fn a_threads_counter_adds_costs_and_refuses_nonsense() {
    let counter = UnitCounter::default();
    for cost in [1.5, 0.0, f64::NAN, -1.0, f64::INFINITY, 2.0] {
        assert!(!counter.add(cost), "no sample was requested");
    }
    assert_eq!((counter.units(), counter.refused()), (3.5, 3));
    assert_eq!(counter.moments(), (3, 3.5, 6.25));
    assert_eq!(counter.take_record(), None);
    assert!(counter.add(1.0));
    counter.record(SECOND);
    assert!(!counter.add(2.0), "one note a look");
    assert_eq!(counter.take_record(), Some(SpeedPoint { units: 4.5, busy: SECOND }));
    assert_eq!(counter.take_record(), None);
}
