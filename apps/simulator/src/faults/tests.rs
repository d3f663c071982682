//! The loss of single messages in short cuts.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use springtide_actors::job::JobParams;
use springtide_runtime::mw::{self, Batch, BatchId, Driver, Master, Program, Settings, TaskSpec};
use springtide_runtime::net::MemoryConfig;
use springtide_runtime::work::{Checkpoint, Context, Job, Outcome, Registry, Stop};
use tokio::time::sleep;

use super::{History, Summed, Work};
use crate::grid::{Grid, simulate};

/// A master-worker job whose only task fails after a while, wherever it runs.
#[derive(Clone, Serialize, Deserialize)]
struct FailingTask {
    after: Duration,
}

struct FailingTaskDriver;

impl Driver<FailingTask> for FailingTaskDriver {
    fn begin(&mut self, master: &mut Master<'_, FailingTask>) -> Result<(), Stop> {
        let task = TaskSpec { id: 0, units: 1.0, blocks: 1, work: () };
        master.submit(Batch { common: (), tasks: vec![task] }).map(drop)
    }

    fn done(
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

    fn settings(&self) -> Settings {
        Settings { isolate: true, ..Settings::default() }
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
        cx.model(self.after)?;
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

/// A worker fails while a cut loses all that its cluster sends to the master's. The cut ends before
/// anybody counts as dead, and the job fails soon after it.
#[test]
fn a_failure_during_a_short_one_way_cut_reaches_the_master() {
    for (idle_timeout_ms, cut_ms) in [(800, 0), (800, 3000), (800, 6000), (15_000, 6000)] {
        simulate(|| async move {
            let job = FailingTask { after: Duration::from_secs(2) };
            let mut layout = History::quiet(1, &[1, 1], Work::Summed(Summed::SMALL)).layout;
            let idle_timeout = Duration::from_millis(idle_timeout_ms);
            layout.network = MemoryConfig { idle_timeout, ..layout.network };
            let mut registry = Registry::new();
            registry.job::<FailingTask>();
            let grid = Grid::start(&layout, registry).await;
            let params = JobParams { poison: 0, ..JobParams::default() };
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
