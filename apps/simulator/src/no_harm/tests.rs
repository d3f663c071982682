//! Tests of the draws, of the judge, and of the property itself.

use std::collections::BTreeMap;

use springtide_runtime::config::{App, BoundedInt, Happening};

use super::*;

/// A draw with these times: static, adaptive and on the best set.
fn times(fixed: f64, adaptive: f64, best: f64) -> DrawTimes {
    let run = |seconds| RunTime {
        seconds,
        ended: true,
        failure: None,
        wrong: false,
        actions: Vec::new(),
    };
    DrawTimes {
        draw: NoHarmDraw { seed: 1, text: String::new() },
        fixed: run(fixed),
        adaptive: run(adaptive),
        best: BestSet { nodes: vec![1], seconds: best },
    }
}

/// The criteria that do not hold, by their indices.
fn broken(all: &[DrawTimes]) -> Vec<usize> {
    let criteria = judge(all).criteria;
    (0..criteria.len()).filter(|index| !criteria[*index].holds).collect()
}

#[test]
fn each_criterion_has_its_bound() {
    let fine = || vec![times(100.0, 50.0, 50.0); 100];
    let with = |others: &[DrawTimes]| broken(&[&fine()[others.len()..], others].concat());
    assert_eq!(with(&[]), [] as [usize; 0]);
    // One draw of a hundred may lose a fifth, two may not, and none a third.
    let lost = |adaptive| times(100.0, adaptive, 100.0);
    assert_eq!(with(&[lost(120.0)]), [] as [usize; 0]);
    assert_eq!(with(&[lost(120.0), lost(120.0)]), [0]);
    assert_eq!(with(&[lost(130.0)]), [1]);
    // Doing nothing gains nothing.
    assert_eq!(broken(&vec![times(100.0, 100.0, 50.0); 100]), [2, 3]);
    assert_eq!(with(&vec![times(100.0, 90.0, 50.0); 11]), [3]);
    let mut wrong = times(100.0, 100.0, 100.0);
    wrong.adaptive.wrong = true;
    assert_eq!(with(&[wrong]), [4]);
}

#[test]
fn a_gain_is_possible_only_where_the_best_set_is_far_faster() {
    assert_eq!(times(100.0, 80.0, 70.0).gain(), None);
    assert_eq!(times(100.0, 80.0, 50.0).gain(), Some(0.4));
    assert_eq!(times(100.0, 110.0, 50.0).gain(), Some(-0.2));
}

/// Every draw is a valid scenario, and together they reach all that users have.
#[test]
fn draws_are_scenarios_and_reach_all_kinds() {
    let mut reached = BTreeMap::<String, u32>::new();
    let draws = 1000;
    for seed in 1..=draws {
        let draw = NoHarmDraw::of(seed);
        assert_eq!(draw.text, NoHarmDraw::of(seed).text);
        let config = parse("draw", &draw.text);
        let config = config.unwrap_or_else(|error| panic!("seed {seed}: {error}\n{}", draw.text));
        let mut reach = |what: String, fits: bool| {
            *reached.entry(what).or_default() += u32::from(fits);
        };
        let places = &config.cluster;
        for count in 1..=12 {
            reach(
                format!("{count} clusters"),
                places.len() == count && ![7, 9, 11].contains(&count),
            );
        }
        let app = &config.app;
        for kind in App::ALL {
            reach(format!("kind {kind}"), app.kind == *kind);
        }
        for what in Happening::ALL {
            reach(format!("event {what}"), config.event.iter().any(|event| event.what == *what));
        }
        let largest = |place: &springtide_runtime::config::PlaceSection| {
            let unequal = place.unequal_threads.clone().map_or(Vec::new(), Vec::from);
            let all = place.threads.map(BoundedInt::get).into_iter().chain(unequal);
            all.max().unwrap_or(1)
        };
        reach("a host of 100 threads".into(), places.iter().any(|place| largest(place) >= 100));
        reach("unequal hosts".into(), places.iter().any(|place| place.unequal_threads.is_some()));
        let speeds = places.iter().map(|place| place.speed);
        let (slowest, fastest) = (speeds.clone().fold(8.0, f64::min), speeds.fold(1.0, f64::max));
        assert!(fastest <= 8.0 * slowest);
        reach("speeds of a factor of 4".into(), fastest >= 4.0 * slowest);
        let free = |place: &&springtide_runtime::config::PlaceSection| {
            place.start.get() == 0 && place.later.get() < place.nodes.get()
        };
        let used = places.iter().filter(|place| place.start.get() > 0);
        let used_speed = used.map(|place| place.speed).fold(0.0, f64::max);
        reach(
            "a faster free pool".into(),
            places.iter().filter(free).any(|p| p.speed > used_speed),
        );
        reach(
            "a slower free pool".into(),
            places.iter().filter(free).any(|p| p.speed < used_speed),
        );
        let rates = places.iter().filter_map(|place| place.uplink).chain(config.wide.bandwidth);
        let rates: Vec<f64> = rates.map(|rate| rate.bytes_per_second()).collect();
        reach("a bandwidth below 1 MB/s".into(), rates.iter().any(|rate| *rate < 1e6));
        reach("a bandwidth above 500 MB/s".into(), rates.iter().any(|rate| *rate > 5e8));
        reach("an asymmetric link".into(), config.wide.bandwidth_back.is_some());
        reach("changing parallelism".into(), app.then_from.is_some());
        reach("undeclared costs".into(), !app.declared);
        reach("serial work".into(), !app.serial.get().is_zero());
        reach("data".into(), app.bodies.get() > 0);
        reach("another period".into(), config.job.period.get() != Duration::from_secs(10));
        let returns =
            |what| config.event.iter().any(|event| event.what == what && event.duration.is_some());
        reach("machines that return".into(), returns(Happening::Crash));
        reach("a flapping load".into(), config.event.iter().any(|event| event.interval.is_some()));
    }
    let rare: Vec<_> = reached.iter().filter(|(_, count)| **count < 10).collect();
    let expected: Vec<String> = [7, 9, 11].map(|count| format!("{count} clusters")).to_vec();
    let rare: Vec<String> = rare.into_iter().map(|(what, _)| what.clone()).collect();
    assert!(rare.iter().all(|what| expected.contains(what)), "{rare:?}");
}

/// The draws that the normal tests run; each takes seconds without optimisation.
const FEW: std::ops::Range<u64> = 1..4;

#[test]
fn draws_have_the_right_answers() {
    for times in run_all(FEW, |times| println!("seed {}: {}", times.draw.seed, times.ratio())) {
        let DrawTimes { draw, fixed, adaptive, best } = times;
        assert!(!fixed.wrong && !adaptive.wrong, "seed {}: a wrong answer", draw.seed);
        assert!(best.seconds <= fixed.seconds, "seed {}: {best:?}", draw.seed);
        let ratio = adaptive.seconds / fixed.seconds;
        assert!(ratio <= 1.25, "seed {}: {ratio} times as long as without adaptation", draw.seed);
    }
}

#[test]
#[ignore = "takes minutes; `sim no-harm` prints the draws that break a criterion"]
fn adaptation_does_no_harm_in_a_hundred_draws() {
    let verdict = judge(&run_all(1..101, |_| {}));
    assert!(verdict.holds(), "{verdict:#?}");
}
