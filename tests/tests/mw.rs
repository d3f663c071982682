//! A master and workers on whole grids in virtual time: the answer is that of one thread, bit for
//! bit, for all joins, leaves and losses.

use std::rc::Rc;
use std::time::Duration;

use springtide_runtime::work::Registry;
use springtide_simulator::faults::{self, FaultHistory, Summed};
use springtide_simulator::machines::Machine;
use springtide_simulator::{CompletedRun, Layout, SimulatedCluster, SimulatedGrid, simulate};
use springtide_tests::judged::judge_history;
use springtide_tests::number;
use springtide_tests::virtual_grid::{Controls, RunOutcome, VirtualGridConfig, run_scripted};

use crate::simulated::{after, drain_after, layout, params, quiet, root_and_another};

/// About 20 s on six threads.
const JOB: Summed = Summed { iterations: 10, tasks: 12, ..Summed::SMALL };

fn scripted<F: Future<Output = ()> + 'static>(
    shape: &VirtualGridConfig,
    job: Summed,
    script: impl FnOnce(Rc<Controls>) -> F + 'static,
) -> RunOutcome {
    let right = job.answer();
    let run = run_scripted(shape, job, script);
    let outcome = run.outcome.as_ref().unwrap_or_else(|why| panic!("{why}; {:?}", run.said));
    assert_eq!(outcome.checksum, right, "{:?}", run.said);
    run
}

/// The number of times that a master started.
fn masters(said: &[String]) -> usize {
    said.iter().filter(|text| text.starts_with("the master begins")).count()
}

/// Seconds of work done by all nodes, over those of the job.
fn work_share(run: &RunOutcome, job: &Summed) -> f64 {
    run.total.times.working_ns as f64 * 1e-9 / job.work().as_secs_f64()
}

#[test]
fn all_threads_but_the_masters_work_and_one_seed_gives_one_history() {
    let once = |seed| {
        let run = scripted(&VirtualGridConfig::of(&[3, 2], 2, seed), JOB, |_| async {});
        // Nine workers have 48 blocks of a tenth of a second.
        let least = JOB.work().as_secs_f64() / 9.0;
        let took = run.wall.as_secs_f64();
        assert!(took < 1.25 * least + 1.0, "{took} {least} {:?}", run.said);
        assert!(work_share(&run, &JOB) < 1.1, "{}", work_share(&run, &JOB));
        run.hash
    };
    assert_eq!(once(1), once(1));
    assert_ne!(once(2), once(3));
}

/// Alone, the master does all work itself. If its node has more threads, these work, isolated or
/// not.
#[test]
fn a_grid_of_one_node_is_enough() {
    for (threads, isolate) in [(1, false), (1, true), (3, true)] {
        let job = Summed { isolate, iterations: 3, ..JOB };
        let run = scripted(&VirtualGridConfig::of(&[1], threads, 1), job.clone(), |_| async {});
        let workers = threads.max(2) - 1;
        let least = job.work().as_secs_f64() / workers as f64;
        assert!(run.wall.as_secs_f64() < 1.2 * least + 1.0, "{:?}", run.wall);
    }
}

/// An isolated master's node does not compute while there are others.
#[test]
fn an_isolated_masters_node_does_not_compute() {
    for isolate in [false, true] {
        let job = Summed { isolate, ..JOB };
        let script = move |controls: Rc<Controls>| async move {
            after(8).await;
            let here = controls.statistics(&"c0-n00".into()).times.working_ns as f64 * 1e-9;
            assert_eq!(here < 0.5, isolate, "{here}");
        };
        scripted(&VirtualGridConfig::of(&[2, 2], 2, 1), job, script);
    }
}

/// Nodes leave in order: none stays longer than a block, and no work is repeated.
#[test]
fn nodes_leave_after_the_block_that_they_do() {
    for seed in 1..=3 {
        let script = |controls: Rc<Controls>| async move {
            after(3).await;
            let took = controls.leave(&["c0-n01", "c1-n00"]).await;
            assert!(took.iter().all(|took| *took < Duration::from_millis(1500)), "{took:?}");
            after(3).await;
            controls.leave(&["c1-n01"]).await;
        };
        let run = scripted(&VirtualGridConfig::of(&[3, 2], 1, seed), JOB, script);
        assert_eq!(masters(&run.said), 1);
        assert!(work_share(&run, &JOB) < 1.05, "{}", work_share(&run, &JOB));
    }
}

/// All nodes except the master's leave, and the master continues alone.
#[test]
fn the_master_goes_on_alone_when_all_others_have_left() {
    let script = |controls: Rc<Controls>| async move {
        after(3).await;
        controls.leave(&["c0-n01", "c1-n00"]).await;
    };
    let job = Summed { iterations: 4, ..JOB };
    let run = scripted(&VirtualGridConfig::of(&[2, 1], 1, 1), job, script);
    assert_eq!(masters(&run.said), 1);
}

/// The work of lost nodes is repeated by others, and no other work is.
#[test]
fn lost_nodes_cost_what_they_had() {
    for seed in 1..=3 {
        let script = |controls: Rc<Controls>| async move {
            for node in ["c0-n01", "c0-n02"] {
                after(3).await;
                controls.crash(node);
                after(1).await;
                controls.declare_lost(&[node]);
            }
        };
        let run = scripted(&VirtualGridConfig::of(&[3, 2], 1, seed), JOB, script);
        assert_eq!(masters(&run.said), 1);
        assert!(work_share(&run, &JOB) < 1.15, "{}", work_share(&run, &JOB));
    }
}

/// A link breaks for a while, with orders and answers on it. No work starts again, and other nodes
/// do the work behind the link meanwhile.
#[test]
fn no_node_waits_for_a_broken_link() {
    for cut in [2, 20] {
        let script = move |controls: Rc<Controls>| async move {
            after(3).await;
            let (a, b) = ("c0".into(), "c1".into());
            controls.network.partition(&a, &b, true);
            after(cut).await;
            controls.network.partition(&a, &b, false);
        };
        let job = Summed { iterations: 20, ..JOB };
        let run = scripted(&VirtualGridConfig::of(&[3, 2], 1, 1), job.clone(), script);
        assert_eq!(masters(&run.said), 1);
        // Two of four workers are useless for this time.
        let most = job.work().as_secs_f64() / 4.0 * 1.3 + cut as f64 / 2.0 + 3.0;
        assert!(run.wall.as_secs_f64() < most, "{:?} {most}: {:?}", run.wall, run.said);
    }
}

/// A node is taken for dead and returns in the same incarnation: its results count, unless others
/// have them already.
#[test]
fn a_node_that_was_taken_for_dead_works_again() {
    let script = |controls: Rc<Controls>| async move {
        after(3).await;
        controls.declare_lost(&["c1-n00"]);
        after(2).await;
        controls.readmit(&["c1-n00"]);
    };
    let run = scripted(&VirtualGridConfig::of(&[2, 2], 1, 1), JOB, script);
    assert_eq!(masters(&run.said), 1);
}

/// The master moves to another node at a checkpoint, or at once, and continues after the last saved
/// iteration.
#[test]
fn the_master_moves_and_the_program_goes_on() {
    for at_checkpoint in [true, false] {
        let script = move |controls: Rc<Controls>| async move {
            after(6).await;
            controls.move_root("c1-n00", at_checkpoint).await;
        };
        let job = Summed { iterations: 20, ..JOB };
        let run = scripted(&VirtualGridConfig::of(&[2, 2], 1, 1), job, script);
        let began: Vec<&String> =
            run.said.iter().filter(|text| text.starts_with("the master begins")).collect();
        assert!(began.len() == 2 && !began[1].ends_with(" 0"), "{:?}", run.said);
    }
}

fn registry() -> Registry {
    let mut registry = Registry::new();
    registry.job::<Summed>();
    registry
}

fn check(ended: &CompletedRun, job: &Summed) {
    let outcome =
        ended.ended.outcome.as_ref().unwrap_or_else(|why| panic!("{why}; {:?}", ended.said));
    assert_eq!(outcome.checksum, job.answer(), "{:?}", ended.said);
}

fn of_speeds(speeds: &[(u32, f64)], seed: u64) -> Layout {
    let place = |(at, (nodes, speed)): (usize, &(u32, f64))| SimulatedCluster {
        name: format!("c{at}").into(),
        nodes: *nodes,
        machine: Machine { threads: 1, speed: *speed },
        unequal_threads: None,
    };
    let clusters = speeds.iter().enumerate().map(place).collect();
    Layout { clusters, ..layout(&[1], seed) }
}

/// Speeds from one to seven: iterations take little more than perfectly divisible work, and equal
/// shares take three times as long.
#[test]
fn a_grid_of_unequal_nodes_is_used_as_it_is() {
    let speeds = [(1, 7.0), (8, 7.0), (4, 6.0), (2, 1.0)];
    let job = |equal_split| Summed {
        iterations: 12,
        tasks: 60,
        blocks: 5,
        block_us: 500_000,
        equal_split,
        isolate: true,
        ..Summed::SMALL
    };
    let run = |job: Summed| {
        let layout = of_speeds(&speeds, 1);
        simulate(|| async move {
            let grid = SimulatedGrid::start(&layout, registry()).await;
            let run = grid.submit(job.clone(), quiet(1), None).await.expect("it is taken");
            let ended = run.ended(Duration::from_secs(3600)).await.expect("it ends");
            check(&ended, &job);
            ended
        })
    };
    let mean = |ended: &CompletedRun| ended.iterations[6..].iter().sum::<f64>() / 6.0;
    let (ours, even) = (run(job(false)), run(job(true)));
    // The master's node, one of speed 7, does nothing.
    let bound = 60.0 * 5.0 * 0.5 / (8.0 * 7.0 + 4.0 * 6.0 + 2.0);
    let (ours_s, even_s) = (mean(&ours), mean(&even));
    println!("{ours_s:.3} s, bound {bound:.3} s, equal shares {even_s:.3} s");
    assert!(ours_s < 1.15 * bound, "{ours_s} {bound} {:?}", ours.said);
    assert!(even_s > 3.0 * ours_s, "{even_s} {ours_s}");
}

/// Others repeat the block of a very slow worker. The job does not wait for it in the end.
#[test]
fn a_job_ends_while_a_slow_worker_executes_a_block_in_vain() {
    let job = Summed { iterations: 2, tasks: 8, blocks: 1, block_us: 7_000_000, ..Summed::SMALL };
    let layout = of_speeds(&[(3, 7.0), (1, 0.01)], 1);
    simulate(|| async move {
        let grid = SimulatedGrid::start(&layout, registry()).await;
        let run = grid.submit(job.clone(), quiet(1), None).await.expect("it is taken");
        let ended = run.ended(Duration::from_secs(3600)).await.expect("it ends");
        check(&ended, &job);
        // The slow worker needs 700 s for its block, the others one second.
        assert!(ended.wall < Duration::from_secs(60), "{:?} {:?}", ended.wall, ended.said);
    });
}

/// A node's process dies, then the master's: a new master continues from the last checkpoint.
#[test]
fn a_program_outlives_a_node_and_the_masters_node() {
    let job = Summed { iterations: 30, ..JOB };
    simulate(|| async move {
        let grid = SimulatedGrid::start(&layout(&[3, 3], 1), registry()).await;
        let run = grid.submit(job.clone(), quiet(1), None).await.expect("it is taken");
        let (root, other) = root_and_another(&run);
        {
            let grid = grid.clone();
            actix_rt::spawn(async move {
                for node in [other, root] {
                    after(8).await;
                    grid.machines().kill(&node);
                }
            });
        }
        let ended = run.ended(Duration::from_secs(3600)).await.expect("it ends");
        check(&ended, &job);
        let began: Vec<_> =
            ended.said.iter().filter(|(_, text)| text.starts_with("the master begins")).collect();
        assert!(began.len() == 2 && !began[1].1.ends_with(" 0"), "{:?}", ended.said);
    });
}

/// A worker's node and the master's are drained: the master continues elsewhere from its state, and
/// no iteration is repeated.
#[test]
fn a_drained_master_goes_on_elsewhere() {
    let job = Summed { iterations: 30, ..JOB };
    simulate(|| async move {
        let grid = SimulatedGrid::start(&layout(&[2, 2], 1), registry()).await;
        let run = grid.submit(job.clone(), quiet(1), None).await.expect("it is taken");
        let (root, other) = root_and_another(&run);
        let drained = actix_rt::spawn(drain_after(grid.clone(), 8, vec![root, other]));
        let ended = run.ended(Duration::from_secs(3600)).await.expect("it ends");
        check(&ended, &job);
        drained.await.expect("no panic");
        assert_eq!(ended.iterations.len() as u32, job.iterations, "{:?}", ended.said);
    });
}

/// Speeds are known from scenarios done per busy second, without a benchmark: adaptation adds
/// useful nodes.
#[test]
fn adaptation_adds_nodes_to_a_busy_program() {
    let job = Summed { iterations: 120, tasks: 60, ..JOB };
    simulate(|| async move {
        let grid = SimulatedGrid::start(&layout(&[6, 6], 1), registry()).await;
        let some = [("c0".into(), 3)].into();
        let run = grid.submit(job.clone(), params(1), Some(some)).await.expect("it is taken");
        let ended = run.ended(Duration::from_secs(3600)).await.expect("it ends");
        check(&ended, &job);
        let joined = ended.said.iter().filter(|(_, text)| text.contains("joins the job")).count();
        let last = ended.iterations[110..].iter().sum::<f64>() / 10.0;
        let first = ended.iterations[0];
        assert!(joined > 0 && last < 0.6 * first, "{joined} {first} {last} {:?}", ended.said);
    });
}

/// `SPRINGTIDE_MASTER_HISTORIES=1000 SPRINGTIDE_MASTER_HISTORIES_SEED=1`: the number of drawn fault
/// histories of a master and its workers.
#[test]
fn masters_and_workers_survive_fault_histories() {
    let first = number("SPRINGTIDE_MASTER_HISTORIES_SEED", 1);
    let seeds = first..first + number("SPRINGTIDE_MASTER_HISTORIES", 40);
    let alone = seeds.end - seeds.start == 1;
    let wrong = seeds.filter(|seed| {
        let history = FaultHistory::of_master(*seed);
        let (wrong, said) = match faults::run(&history) {
            Ok(report) => {
                let verdict = judge_history(&history, &report);
                let sound = verdict.faults.is_empty();
                ((!sound).then(|| verdict.to_string()), report.said)
            }
            Err(failed) => (Some(failed.violation.to_string()), failed.said),
        };
        if let Some(wrong) = &wrong {
            println!("{history}  {wrong}");
        }
        for (at, text) in said.iter().filter(|_| alone) {
            println!("{:9.3} s  {text}", at.as_secs_f64());
        }
        wrong.is_some()
    });
    let wrong: Vec<u64> = wrong.collect();
    let replay =
        "SPRINGTIDE_MASTER_HISTORIES=1 SPRINGTIDE_MASTER_HISTORIES_SEED=<one of them> replays it";
    assert!(wrong.is_empty(), "{wrong:?}: {replay}");
}
