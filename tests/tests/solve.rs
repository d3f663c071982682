//! Stochastic programs on whole grids in virtual time: the same iterates, bit for bit, for all
//! workers, speeds and failures; and times as predicted.

use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use serde_json::Value;
use springtide_runtime::work::{Outcome, Registry};
use springtide_simulator::machines::Machine;
use springtide_simulator::{Layout, SimulatedCluster, SimulatedGrid, simulate};
use springtide_stochastic::Solve;
use springtide_stochastic::smps::{self, Files};
use springtide_stochastic::solve::worker::TimeModel;
use springtide_tests::virtual_grid::{Controls, VirtualGridConfig, run_scripted};

use crate::simulated::{after, drain_after, layout, params, quiet, root_and_another};

/// A millisecond per scenario, and as much per decision.
const TIME: TimeModel = time_model(0.001, 0.001);

/// Constant seconds of a scenario and of a decision.
const fn time_model(scenario_s: f64, decision_s: f64) -> TimeModel {
    TimeModel { scenario_s, pivot_s: 0.0, decision_s, master_pivot_s: 0.0, benchmark: 25 }
}

/// A small program of the repository's own.
fn program(name: &str) -> Solve {
    let directory =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../apps/stochastic/tests/data").join(name);
    let files = Files::find(&directory).unwrap_or_else(|error| panic!("{error}"));
    let (model, _) = smps::read(&files).unwrap_or_else(|error| panic!("{error}"));
    Solve { time_model: Some(TIME), tasks: Some(16), block: Some(10), ..Solve::of(model) }
}

/// 3 s of one worker per iterate.
fn job() -> Solve {
    Solve { scenarios: Some(3000), estimate: Some(500), ..program("plants") }
}

fn outcome(
    shape: &VirtualGridConfig,
    job: &Solve,
    script: impl FnOnce(Rc<Controls>) -> futures_of::Done + 'static,
) -> Outcome {
    let run = run_scripted(shape, job.clone(), script);
    run.outcome.clone().unwrap_or_else(|why| panic!("{why}; {:?}", run.said))
}

mod futures_of {
    //! A script of any kind.
    use std::future::Future;
    use std::pin::Pin;

    pub type Done = Pin<Box<dyn Future<Output = ()>>>;
}

/// The part of an outcome that does not depend on time.
fn answer(outcome: &Outcome) -> (u64, Value) {
    let mut result = outcome.result.clone();
    if let Some(object) = result.as_object_mut() {
        object.remove("controller");
        object.remove("groups");
        object.remove("summary");
    }
    (outcome.checksum, result)
}

fn alone(job: &Solve) -> (u64, Value) {
    answer(&outcome(&VirtualGridConfig::of(&[1], 1, 1), job, |_| Box::pin(async {})))
}

#[test]
fn the_answer_has_the_same_bits_on_every_grid() {
    for name in ["plants", "farm", "reservoir"] {
        let job = Solve { scenarios: Some(300), replications: 2, ..program(name) };
        let right = alone(&job);
        assert!(right.1["gap"].as_f64().is_some_and(|gap| gap <= 1e-5), "{:?}", right.1);
        for (clusters, threads, seed) in [(&[2, 1][..], 2, 1), (&[4, 4, 4], 1, 2)] {
            let got =
                answer(&outcome(&VirtualGridConfig::of(clusters, threads, seed), &job, |_| {
                    Box::pin(async {})
                }));
            assert_eq!(got, right, "{name} {clusters:?}");
        }
        for other in [
            Solve { groups: Some(5), ..job.clone() },
            Solve { equal_split: true, ..job.clone() },
            Solve { isolate: true, explain: true, ..job.clone() },
        ] {
            let got = answer(&outcome(&VirtualGridConfig::of(&[3, 2], 1, 3), &other, |_| {
                Box::pin(async {})
            }));
            assert_eq!(got, right, "{name} {:?} {}", other.groups, other.equal_split);
        }
    }
}

/// Nodes leave, die, and return during the run; a link breaks; the master moves.
#[test]
fn losses_and_moves_change_no_bit() {
    let job = job();
    let right = alone(&job);
    for seed in 1..=2 {
        let script = |controls: Rc<Controls>| -> futures_of::Done {
            Box::pin(async move {
                after(2).await;
                controls.leave(&["c0-n01"]).await;
                controls.crash("c1-n00");
                after(1).await;
                controls.declare_lost(&["c1-n00"]);
                let (a, b) = ("c0".into(), "c1".into());
                controls.network.partition(&a, &b, true);
                after(2).await;
                controls.network.partition(&a, &b, false);
                after(1).await;
                controls.move_root("c1-n01", true).await;
            })
        };
        let got = answer(&outcome(&VirtualGridConfig::of(&[3, 3], 1, seed), &job, script));
        assert_eq!(got, right, "seed {seed}");
    }
}

fn registry() -> Registry {
    let mut registry = Registry::new();
    registry.job::<Solve>();
    registry
}

fn submitted(layout: &Layout, job: &Solve, faults: bool) -> Outcome {
    simulate(|| async move {
        let grid = SimulatedGrid::start(layout, registry()).await;
        let run = grid.submit(job.clone(), quiet(1), None).await.expect("it is taken");
        if faults {
            let (root, other) = root_and_another(&run);
            actix_rt::spawn(drain_after(grid.clone(), 3, vec![other.clone()]));
            let grid = grid.clone();
            actix_rt::spawn(async move {
                after(6).await;
                grid.machines().kill(&root);
            });
        }
        let ended = run.ended(Duration::from_secs(3600)).await.expect("it ends");
        ended.ended.outcome.unwrap_or_else(|why| panic!("{why}; {:?}", ended.said))
    })
}

/// The master's node is killed, another drained: a new master continues after the last iterate.
#[test]
fn a_killed_master_continues_to_the_same_bits() {
    let job = job();
    assert_eq!(answer(&submitted(&layout(&[3, 3], 1), &job, true)), alone(&job));
}

fn of_speeds(speeds: &[(u32, f64)]) -> Layout {
    let place = |(at, (nodes, speed)): (usize, &(u32, f64))| SimulatedCluster {
        name: format!("c{at}").into(),
        nodes: *nodes,
        machine: Machine { threads: 1, speed: *speed },
        unequal_threads: None,
    };
    Layout { clusters: speeds.iter().enumerate().map(place).collect(), ..layout(&[1], 1) }
}

fn number(outcome: &Outcome, key: &str) -> f64 {
    let found = &outcome.result["controller"][key];
    found.as_f64().unwrap_or_else(|| panic!("{key} in {}", outcome.result))
}

/// Speeds from one to seven: the time is the predicted one within a tenth, and an equal split takes
/// three times as long.
#[test]
fn the_predicted_time_is_the_measured_one() {
    let layout = of_speeds(&[(1, 7.0), (10, 7.0), (6, 5.0), (3, 1.0)]);
    let job = Solve { scenarios: Some(20_000), tasks: Some(100), isolate: true, ..job() };
    let job = Solve {
        no_warm_start: true,
        estimate: Some(0),
        time_model: Some(time_model(0.03, 0.1)),
        ..job
    };
    let ours = submitted(&layout, &job, false);
    let even = submitted(&layout, &Solve { equal_split: true, ..job }, false);
    assert_eq!(answer(&ours), answer(&even));
    for one in [&ours, &even] {
        assert!(number(one, "error").abs() < 0.1, "{}", one.result["controller"]);
    }
    let (ours_s, even_s) = (number(&ours, "seconds"), number(&even, "seconds"));
    println!("{}", ours.result["controller"]);
    assert!(even_s > 3.0 * ours_s, "{even_s} {ours_s}");
    assert!(number(&ours, "measured_s") < 1.1 * number(&ours, "fluid_s"));
    // The time of an equal split is predicted too.
    let predicted = number(&ours, "equal_split_s") / number(&ours, "predicted_iterates");
    let was = number(&even, "measured_s") / number(&even, "predicted_iterates");
    assert!((predicted / was - 1.0).abs() < 0.15, "{predicted} {was}");
}

/// More workers than a quarter of the tasks: tasks are split into blocks.
#[test]
fn many_workers_share_few_tasks() {
    let layout = of_speeds(&[(20, 1.0), (20, 2.0)]);
    let job = Solve {
        scenarios: Some(4000),
        tasks: Some(40),
        isolate: true,
        no_warm_start: true,
        ..job()
    };
    let job = Solve { time_model: Some(time_model(0.05, 0.01)), estimate: Some(0), ..job };
    let ended = submitted(&layout, &job, false);
    assert!(
        number(&ended, "measured_s") < 1.1 * number(&ended, "fluid_s"),
        "{}",
        ended.result["controller"]
    );
}

/// While nodes join a running job, the prediction of each iterate stays right.
#[test]
fn the_prediction_holds_while_nodes_join() {
    let job = Solve {
        scenarios: Some(20_000),
        tasks: Some(100),
        no_warm_start: true,
        estimate: Some(0),
        epsilon: 1e-9,
        // With so small an initial region it takes a while.
        radius: Some(1e-3),
        ..job()
    };
    let job = Solve { time_model: Some(time_model(0.01, 0.05)), ..job };
    let ended = simulate(|| async move {
        let grid = SimulatedGrid::start(&layout(&[8, 8], 1), registry()).await;
        let some = [("c0".into(), 4)].into();
        let run = grid.submit(job, params(1), Some(some)).await.expect("it is taken");
        let ended = run.ended(Duration::from_secs(7200)).await.expect("it ends");
        let joined = ended.said.iter().filter(|(_, text)| text.contains("joins the job")).count();
        assert!(joined > 0, "{:?}", ended.said);
        ended.ended.outcome.unwrap_or_else(|why| panic!("{why}"))
    });
    println!("{}", ended.result["controller"]);
    assert!(number(&ended, "error").abs() < 0.1, "{}", ended.result["controller"]);
}

/// A balanced objective releases nodes whose cost exceeds their benefit.
#[test]
fn a_balanced_objective_releases_slow_nodes() {
    let layout = of_speeds(&[(1, 4.0), (4, 4.0), (4, 0.2)]);
    let job = Solve { scenarios: Some(20_000), no_warm_start: true, estimate: Some(0), ..job() };
    let ended = simulate(|| async move {
        let job = Solve { objective: "balanced:0.5".parse().expect("it is one"), ..job };
        let grid = SimulatedGrid::start(&layout, registry()).await;
        let run = grid.submit(job, quiet(1), None).await.expect("it is taken");
        run.ended(Duration::from_secs(3600)).await.expect("it ends")
    });
    ended.ended.outcome.as_ref().unwrap_or_else(|why| panic!("{why}"));
    let said = |word: &str| ended.said.iter().filter(|(_, text)| text.contains(word)).count();
    assert!(said(": an iterate of") == 1, "{:?}", ended.said);
    assert!(said("has no use for c2-") >= 1, "{:?}", ended.said);
}

/// A basket of more than one ends at the same cost.
#[test]
fn a_basket_ends_at_the_same_cost() {
    let job = Solve { scenarios: Some(300), epsilon: 1e-8, ..program("plants") };
    let right = alone(&job).1["objective"].as_f64().expect("a number");
    for (basket, sigma, seed) in [(3, 0.5, 1), (6, 0.3, 2)] {
        let job = Solve { basket, sigma: Some(sigma), ..job.clone() };
        let got = outcome(&VirtualGridConfig::of(&[3, 2], 1, seed), &job, |_| Box::pin(async {}));
        let got = got.result["objective"].as_f64().expect("a number");
        assert!((got - right).abs() < 1e-6 * (1.0 + right.abs()), "{got} {right}");
    }
    let thumb = Solve { rules_of_thumb: true, tasks: None, ..job };
    let got = outcome(&VirtualGridConfig::of(&[3, 2], 1, 3), &thumb, |_| Box::pin(async {}));
    assert_eq!(got.result["basket"], 3);
    let got = got.result["objective"].as_f64().expect("a number");
    assert!((got - right).abs() < 1e-6 * (1.0 + right.abs()), "{got} {right}");
}
