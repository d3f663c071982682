//! Histories that failed once, by name, and the loss of single messages in short cuts.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use springtide_actors::job::JobParams;
use springtide_runtime::mw::{
    self, AssignmentSettings, Batch, BatchId, Driver, Master, Program, TaskSpec,
};
use springtide_runtime::net::MemoryConfig;
use springtide_runtime::work::{Checkpoint, Context, Job, Outcome, Registry, Stop};
use tokio::time::sleep;

use super::{Fault, FaultHistory, HistoryJob, Summed, run};
use crate::grid::{SimulatedGrid, simulate};

/// A master-worker job whose only task fails after a while, wherever it runs.
#[derive(Clone, Serialize, Deserialize)]
struct FailingTask {
    after: Duration,
}

struct FailingTaskDriver;

impl Driver<FailingTask> for FailingTaskDriver {
    fn start(&mut self, master: &mut Master<'_, FailingTask>) -> Result<(), Stop> {
        let task = TaskSpec { id: 0, units: 1.0, blocks: 1, work: () };
        master.submit(Batch { common: (), tasks: vec![task] }).map(drop)
    }

    fn task_completed(
        &mut self,
        _: BatchId,
        _: u32,
        _: Vec<()>,
        _: &mut Master<'_, FailingTask>,
    ) -> Result<(), Stop> {
        Ok(())
    }

    fn outcome(&mut self) -> Option<Outcome> {
        None
    }

    fn state(&self) {}
}

impl Program for FailingTask {
    const NAME: &'static str = "failing-task.worker";
    type Common = ();
    type Work = ();
    type Output = ();
    type Worker = ();
    type Driver = FailingTaskDriver;
    type State = ();

    fn settings(&self) -> AssignmentSettings {
        AssignmentSettings { isolate: true, ..AssignmentSettings::default() }
    }

    fn worker(&self, _: &Context) -> Result<(), Stop> {
        Ok(())
    }

    fn driver(&self, _: Option<()>, _: &Context) -> Result<FailingTaskDriver, Stop> {
        Ok(FailingTaskDriver)
    }

    fn execute(
        &self,
        (): &mut (),
        (): &(),
        _: u32,
        (): &(),
        _: u32,
        cx: &Context,
    ) -> Result<(), Stop> {
        cx.spend_modelled_time(self.after)?;
        Err(Stop::fail("the task fails"))
    }
}

impl Job for FailingTask {
    const NAME: &'static str = "failing-task";
    const ABOUT: &'static str = "a master and one task that fails";

    fn register(registry: &mut Registry) {
        mw::register::<Self>(registry);
    }

    fn run(self, cx: &Context) -> Result<Outcome, Stop> {
        mw::run(self, cx)
    }

    fn resume(self, state: Checkpoint, cx: &Context) -> Result<Outcome, Stop> {
        mw::resume(self, state, cx)
    }
}

/// A worker fails while a cut loses all messages from its cluster to the master's. The cut ends
/// before any member counts as dead, and the job fails soon after it.
#[test]
fn a_failure_during_a_short_one_way_cut_reaches_the_master() {
    for (idle_timeout_ms, cut_ms) in [(800, 0), (800, 3000), (800, 6000), (15_000, 6000)] {
        simulate(|| async move {
            let job = FailingTask { after: Duration::from_secs(2) };
            let mut layout =
                FaultHistory::quiet(1, &[1, 1], HistoryJob::Summed(Summed::SMALL)).layout;
            let idle_timeout = Duration::from_millis(idle_timeout_ms);
            layout.network = MemoryConfig { idle_timeout, ..layout.network };
            let mut registry = Registry::new();
            registry.job::<FailingTask>();
            let grid = SimulatedGrid::start(&layout, registry).await;
            let params = JobParams { poison_limit: 0, ..JobParams::default() };
            let run = grid.submit(job, params, None).await.expect("the grid takes the job");
            sleep(Duration::from_millis(1500)).await;
            let (root, other) = match run.granted().coordinator.node.as_str() {
                "c0-1" => ("c0", "c1"),
                _ => ("c1", "c0"),
            };
            let line = &layout.network.between;
            grid.network().set_link(&other.into(), &root.into(), line.clone().up(false));
            sleep(Duration::from_millis(cut_ms)).await;
            grid.network().set_link(&other.into(), &root.into(), line.clone());
            let ended = run.ended(Duration::from_secs(60)).await.expect("the job ends");
            let error = ended.ended.outcome.expect_err("the task fails").to_string();
            assert!(error.contains("the task fails"), "{error}");
        });
    }
}

/// The kinds of jobs for which histories are drawn.
#[derive(Clone, Copy, Debug)]
enum HistoryKind {
    Tree,
    Master,
    Brief,
}

impl HistoryKind {
    fn history(self, seed: u64) -> FaultHistory {
        match self {
            Self::Tree => FaultHistory::of(seed),
            Self::Master => FaultHistory::of_master(seed),
            Self::Brief => FaultHistory::of_brief(seed),
        }
    }
}

/// Drawn histories that failed once, and what each showed.
const ONCE_WRONG: &[(HistoryKind, u64, &str)] = &[
    (
        HistoryKind::Tree,
        700_086,
        "a successor that drains is cut off from all other clusters, and one of those is off",
    ),
    (
        HistoryKind::Tree,
        1_000_764,
        "a cluster kept the view of a lost coordinator, and others reached it for the new one",
    ),
    (
        HistoryKind::Tree,
        1_001_233,
        "the same, where the former coordinator moved the root and drained",
    ),
    (
        HistoryKind::Brief,
        226,
        "a successor was cancelled while it gathered and started a root, whose engine stayed",
    ),
    (HistoryKind::Brief, 539, "the same, where all jobs end at once"),
    (HistoryKind::Brief, 940_150, "the same, in the third cluster"),
    (HistoryKind::Brief, 940_839, "the same, where each job has a part of the clusters"),
    (
        HistoryKind::Brief,
        758,
        "two ends of a simulated link passed over each other's attempts after a one-way cut",
    ),
    (
        HistoryKind::Master,
        55,
        "the same, while a master-worker job starts: a worker never returned its task",
    ),
    (
        HistoryKind::Master,
        1517,
        "the order to take a job over was lost in a cut: the job failed though a node lived",
    ),
];

#[test]
fn drawn_histories_that_once_ended_wrong_end_well() {
    for (drawn, seed, shown) in ONCE_WRONG {
        let history = drawn.history(*seed);
        if let Err(failed) = run(&history) {
            panic!("{drawn:?} history, once: {shown}\n{history}  {failed}\n{:#?}", failed.said);
        }
    }
}

/// A link is cut permanently while a third cluster reaches both ends. The simulated network has no
/// relays, so the job ends without one of the two clusters.
#[test]
fn a_cut_for_good_between_two_clusters_does_not_hold_up_a_job() {
    for (seed, a, b) in [(1, "c0", "c1"), (2, "c0", "c1"), (3, "c1", "c2"), (4, "c1", "c2")] {
        let cut = Fault::Cut(a.into(), b.into(), Duration::from_secs(36_000));
        let job = FaultHistory::of(700_086).job;
        let history = FaultHistory::quiet(seed, &[2, 2, 1], job).at(1000, cut);
        if let Err(failed) = run(&history) {
            panic!("{history}  {failed}\n{:#?}", failed.said);
        }
    }
}

/// A worker behind a one-way cut returns its task once the link is back.
///
/// From the start of a master-worker job on, its master's cluster does not reach a worker's for 20
/// s. A cut of both directions ends before that. Both ends of the link dial meanwhile.
#[test]
fn a_worker_behind_a_one_way_cut_of_the_start_returns_its_task() {
    for seed in 1..=4 {
        let (tasks, blocks, block_us) = (4, 1, 60_000);
        let job = Summed { iterations: 1, tasks, blocks, block_us, ..Summed::SMALL };
        let mut history = FaultHistory::quiet(seed, &[1; 6], HistoryJob::Summed(job));
        history.layout.clusters[3].machine.threads = 2;
        history.layout.network.idle_timeout = Duration::from_millis(800);
        let one_way = Duration::from_millis(20_306);
        let history = history
            .at_start(169, Fault::OneWay("c0".into(), "c4".into(), one_way))
            .at(3609, Fault::Cut("c4".into(), "c0".into(), Duration::from_millis(8509)));
        if let Err(failed) = run(&history) {
            panic!("{history}  {failed}\n{:#?}", failed.said);
        }
    }
}
