//! Tests of the outputs that are kept of halted trees, in virtual time: by cases, and for random
//! trees.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use proptest::prelude::*;
use serde::{Deserialize, Serialize};
use tokio::task::LocalSet;
use tokio::time::{Instant, sleep};

use super::LeaseId;
use crate::id::{Incarnation, Peer, TaskPath};
use crate::wire;
use crate::work::outcome::{Halt, Stop};
use crate::work::pool::Pool;
use crate::work::pool_config::{PoolConfig, WORK_FLOOR};
use crate::work::report::ProgressReport;
use crate::work::solo::SoloObserver;
use crate::work::task::Task;
use crate::work::{Context, Registry, RootStart, VirtualSeam};

/// A step of a task; a task executes its steps in order.
#[derive(Clone, Debug, Serialize, Deserialize)]
enum WatchStep {
    /// Computes for this many milliseconds and checks for a halt.
    Own(u64),
    /// Computes for this many milliseconds without a call into the runtime.
    Blind(u64),
    Call(SteppedTask),
    Join(SteppedTask, SteppedTask),
    /// Spawned before the next steps, collected after the last.
    Spawn(SteppedTask),
    /// Spawned and collected at once.
    Take(SteppedTask),
    /// As `Call`, but ignores an error.
    Swallow(SteppedTask),
    /// Fails with an error of users' code.
    Fail,
}

use WatchStep::{Blind, Call, Fail, Join, Own, Spawn, Swallow, Take};

#[derive(Clone, Debug, Serialize, Deserialize)]
struct SteppedTask(Vec<WatchStep>);

/// A task with its steps, its path and the number of the test run.
#[derive(Serialize, Deserialize)]
struct WatchedRun {
    node: SteppedTask,
    path: TaskPath,
    run: u64,
}

/// The running times of tasks that returned an output, by test run and path.
static ENDED: Mutex<BTreeMap<(u64, TaskPath), Duration>> = Mutex::new(BTreeMap::new());

impl Task for WatchedRun {
    type Output = TaskPath;
    const NAME: &'static str = "run";

    fn run(self, cx: &Context) -> Result<TaskPath, Stop> {
        let WatchedRun { node, path, run } = self;
        let began = Instant::now();
        let mut next = 0;
        let mut child = |node| {
            next += 1;
            WatchedRun { node, path: path.child(next - 1), run }
        };
        let mut spawned = Vec::new();
        for step in node.0 {
            match step {
                Own(ms) => {
                    cx.worker().model(Duration::from_millis(ms));
                    cx.check()?;
                }
                Blind(ms) => cx.worker().model(Duration::from_millis(ms)),
                Call(node) => drop(cx.call(child(node))?),
                Join(a, b) => drop(cx.join(child(a), child(b))?),
                Spawn(node) => spawned.push(cx.spawn(child(node))),
                Take(node) => drop(cx.spawn(child(node)).take()?),
                Swallow(node) => drop(cx.call(child(node))),
                Fail => return Err(Stop::fail("it was to fail")),
            }
        }
        for handle in spawned {
            handle.take()?;
        }
        ENDED.lock().unwrap().insert((run, path.clone()), began.elapsed());
        Ok(path)
    }
}

fn peer() -> Peer {
    Peer { node: "owner".into(), incarnation: Incarnation(1), cluster: "c".into() }
}

/// Runs a stolen tree with its top at `/7`, halts it at this time, and returns the kept paths when
/// it has stopped.
fn stopped_after(ms: u64, steps: Vec<WatchStep>, threads: usize, run: u64) -> Vec<TaskPath> {
    let runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = { runtime }.enable_time().start_paused(true).build().unwrap();
    LocalSet::new().block_on(&runtime, async move {
        let mut registry = Registry::new();
        registry.task::<WatchedRun>();
        let registry = Arc::new(registry);
        let observer = Arc::new(SoloObserver::new(registry.clone(), |_: ProgressReport| {}));
        let config = PoolConfig { threads, stack_bytes: 1 << 20, ..PoolConfig::default() };
        let pool = Pool::start(&config, registry, VirtualSeam::new(), observer).unwrap();
        let ticks = Rc::new(Cell::new(true));
        let (here, more) = (pool.clone(), ticks.clone());
        tokio::task::spawn_local(async move {
            while more.get() {
                here.tick();
                sleep(WORK_FLOOR / 2).await;
            }
        });
        // So that the start does not coincide with a tick.
        sleep(Duration::from_millis(3)).await;
        let path = TaskPath(vec![7]);
        let body =
            wire::encode_payload(&WatchedRun { node: SteppedTask(steps), path: path.clone(), run });
        let (base, enter) = pool.admit("run", path, RootStart::default()).unwrap();
        let lease = LeaseId { index: 0, generation: 0 };
        pool.enter(base.clone(), enter.run, peer(), lease, body.unwrap());
        sleep(Duration::from_millis(ms)).await;
        pool.halt_tree(&base, Halt::Leave);
        // Longer than any tree takes to stop.
        sleep(Duration::from_secs(20)).await;
        ticks.set(false);
        assert_eq!(Arc::strong_count(&base), 1, "the tree has ended and released its base");
        let left = base.take_results();
        assert_eq!(left.leased, []);
        let kept = left.kept.into_iter().map(|kept| {
            assert_eq!(wire::decode_payload::<TaskPath>(&kept.output).unwrap(), kept.path);
            kept.path
        });
        let kept = kept.collect();
        pool.close();
        kept
    })
}

fn leaf(ms: u64) -> SteppedTask {
    SteppedTask(vec![Own(ms)])
}

#[test]
fn outputs_of_long_tasks_are_kept_until_their_parents_end() {
    let cases: Vec<(&str, Vec<WatchStep>, &[&str])> = vec![
        ("consumed before", vec![Call(leaf(100)), Call(leaf(1000))], &["/7.0"]),
        ("short", vec![Call(leaf(5)), Call(leaf(1000))], &[]),
        (
            "a join's finished sibling, short as it is",
            vec![Call(leaf(100)), Join(leaf(5), leaf(1000))],
            &["/7.0", "/7.1"],
        ),
        (
            "in place of those below it",
            vec![
                Call(SteppedTask(vec![Call(leaf(60)), Join(leaf(60), leaf(60))])),
                Call(leaf(1000)),
            ],
            &["/7.0"],
        ),
        (
            "of an unfinished one",
            vec![Call(SteppedTask(vec![Call(leaf(60)), Call(leaf(5)), Call(leaf(1000))]))],
            &["/7.0.0"],
        ),
        (
            "long together",
            vec![Call(SteppedTask((0..20).map(|_| Call(leaf(5))).collect())), Call(leaf(1000))],
            &["/7.0"],
        ),
        ("the first of a join", vec![Join(leaf(100), leaf(5)), Call(leaf(1000))], &["/7.0"]),
        ("the second of a join", vec![Join(leaf(5), leaf(100)), Call(leaf(1000))], &["/7.1"]),
        ("spawned", vec![Call(SteppedTask(vec![Spawn(leaf(60))])), Call(leaf(1000))], &["/7.0"]),
        (
            "spawned and collected before",
            vec![Take(leaf(60)), Take(leaf(5)), Call(leaf(1000))],
            &["/7.0"],
        ),
        (
            "spawned and not collected yet; the newest run first",
            vec![Spawn(leaf(400)), Spawn(leaf(5)), Spawn(leaf(60))],
            &["/7.1", "/7.2"],
        ),
        ("after long code of the parent's own", vec![Own(210), Call(leaf(5)), Own(1000)], &[]),
        (
            "whole when the tree had stopped",
            vec![Call(SteppedTask(vec![Blind(400)])), Own(1)],
            &["/7.0"],
        ),
        (
            "short and whole",
            vec![Blind(295), Call(SteppedTask(vec![Blind(10)])), Own(1)],
            &["/7.0"],
        ),
        (
            "no answer, for it may have swallowed the stop",
            vec![Call(SteppedTask(vec![Swallow(leaf(1000)), Blind(50)])), Own(1)],
            &[],
        ),
        (
            "nor as a finished sibling",
            vec![Join(SteppedTask(vec![Swallow(leaf(1000))]), leaf(1000))],
            &[],
        ),
        (
            "long, of a join's second that spawns as the first did",
            vec![
                Join(SteppedTask(vec![Spawn(leaf(5))]), SteppedTask(vec![Spawn(leaf(60))])),
                Call(leaf(1000)),
            ],
            &["/7.1"],
        ),
        (
            "not in the place of one that failed",
            vec![Swallow(SteppedTask(vec![Own(100), Fail])), Call(leaf(5)), Call(leaf(1000))],
            &[],
        ),
    ];
    for (at, (what, steps, expected)) in cases.into_iter().enumerate() {
        // Within the first 300 ms only the last step runs after the others.
        let kept = stopped_after(300, steps, 1, at as u64);
        let kept: Vec<String> = kept.iter().map(TaskPath::to_string).collect();
        assert_eq!(kept, expected, "{what}");
    }
}

fn steps(depth: u32) -> BoxedStrategy<Vec<WatchStep>> {
    let own = prop_oneof![(0..40u64).prop_map(Own), (0..90u64).prop_map(Blind)];
    if depth == 0 {
        return prop::collection::vec(own, 0..3).boxed();
    }
    let node = || steps(depth - 1).prop_map(SteppedTask);
    let step = prop_oneof![
        own,
        node().prop_map(Call),
        (node(), node()).prop_map(|(a, b)| Join(a, b)),
        node().prop_map(Spawn),
        node().prop_map(Take),
    ];
    prop::collection::vec(step, 0..4).boxed()
}

static RUNS: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(1000);

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    /// Every ended task of at least three quarters of the floor is kept, by itself or in an
    /// ancestor; and every kept task has ended.
    #[test]
    fn no_output_of_a_long_task_is_lost(
        steps in steps(4),
        ms in 1..1500u64,
        threads in 1..4usize,
    ) {
        let run = RUNS.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let kept = stopped_after(ms, steps, threads, run);
        let ended = std::mem::take(&mut *ENDED.lock().unwrap());
        let (ended, others): (BTreeMap<_, _>, _) =
            ended.into_iter().partition(|((of, _), _)| *of == run);
        ENDED.lock().unwrap().extend(others);
        let ended: BTreeMap<_, _> =
            ended.into_iter().map(|((_, path), time)| (path, time)).collect();
        for path in &kept {
            prop_assert!(ended.contains_key(path), "{} has not ended", path);
        }
        let top = TaskPath(vec![7]);
        if ended.contains_key(&top) {
            return Ok(());
        }
        for (path, time) in ended.iter().filter(|(_, time)| **time >= WORK_FLOOR * 3 / 4) {
            let is_kept = kept.iter().any(|kept| path.is_at_or_below(kept));
            prop_assert!(is_kept, "{} ran for {:?}; kept: {:?}", path, time, kept);
        }
    }
}
