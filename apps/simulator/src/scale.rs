//! The cost of a simulation by the number of workers, and of a heartbeat, a statistic and a steal.
//!
//! This module does not depend on the presentation of the results.

use std::time::Duration;

use serde::Serialize;
use springtide_actors::job::JobParams;
use springtide_actors::policy::Mode;
use springtide_runtime::net::{EventCounts, LinkProfile, MemoryConfig};
use springtide_runtime::wire::Kind;
use springtide_runtime::work::{Registry, thread_cpu};
use tokio::time::sleep;

use crate::apps::ModelledJob;
use crate::grid::{GridError, Layout, SimulatedCluster, SimulatedGrid, simulate};
use crate::machines::Machine;

/// Virtual time after which each worker of a loaded grid has work.
const WARM_UP: Duration = Duration::from_secs(20);
/// Monitoring period of grids in which statistics are rare.
const LONG_PERIOD: Duration = Duration::from_secs(10);
/// Monitoring period of grids that measure the cost of statistics.
const SHORT_PERIOD: Duration = Duration::from_secs(1);
/// Work of a leaf in a grid whose workers steal, so that a worker steals about once a second.
const LEAF: Duration = Duration::from_millis(700);
/// Limit on the virtual time of a run beyond its work.
const EXTRA_TIME: Duration = Duration::from_secs(600);

/// What the workers of a measured grid do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ScaleLoad {
    /// One worker computes, the others wait for work.
    Idle,
    /// All workers compute one long task. They send heartbeats and, rarely, statistics.
    Heartbeats,
    /// All workers compute one long task, and send statistics each second.
    Statistics,
    /// Each worker executes a short task in each iteration, which it steals.
    Steals,
}

/// The grid and the load of a measurement.
#[derive(Clone, Copy, Debug)]
pub struct ScaleSettings {
    /// Number of workers, over all clusters.
    pub workers: u32,
    /// Number of clusters, over which the workers are distributed evenly.
    pub clusters: u32,
    /// What the workers do.
    pub load: ScaleLoad,
    /// Virtual seconds of the load.
    pub seconds: u32,
    /// Seed of all random numbers.
    pub seed: u64,
}

/// The result of a measurement.
#[derive(Clone, Debug, Serialize)]
pub struct ScaleResult {
    /// Number of workers in all clusters.
    pub workers: u32,
    /// Number of clusters of the grid.
    pub clusters: u32,
    /// What the workers did.
    pub load: ScaleLoad,
    /// Virtual seconds of the load.
    pub virtual_s: f64,
    /// Processor seconds of the load.
    pub cpu_s: f64,
    /// Processor seconds from the start of the grid to the end of the job.
    pub total_cpu_s: f64,
    /// Events of the network, from the start of the grid to the end of the job.
    pub events: u64,
    /// Heartbeats of workers in the virtual time of the load.
    pub heartbeats: u64,
    /// Statistics of workers in the virtual time of the load.
    pub statistics: u64,
    /// Stolen tasks in the virtual time of the load.
    pub steals: u64,
    /// Digest of all messages and records: equal for equal histories.
    pub digest: u64,
}

/// The processor time of one operation of a worker, in microseconds.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct OperationCosts {
    /// A heartbeat, with its reply if it requests one.
    pub heartbeat_us: f64,
    /// The statistics of a worker for a period, up to the coordinator's decision.
    pub statistic_us: f64,
    /// A stolen task, with all requests that lead to it, and its result.
    pub steal_us: f64,
}

/// Measures the cost of each operation on grids of this size.
///
/// # Errors
/// As of [`measure`].
pub fn operation_costs(settings: &ScaleSettings) -> Result<OperationCosts, GridError> {
    let of = |load| measure(&ScaleSettings { load, ..*settings });
    let [beats, statistics, steals] =
        [of(ScaleLoad::Heartbeats)?, of(ScaleLoad::Statistics)?, of(ScaleLoad::Steals)?];
    let per = |cpu_s: f64, count: u64| 1e6 * cpu_s.max(0.0) / count.max(1) as f64;
    let heartbeat_us = per(beats.cpu_s, beats.heartbeats);
    let without_heartbeats =
        |run: &ScaleResult| run.cpu_s - run.heartbeats as f64 * heartbeat_us * 1e-6;
    let statistic_us = per(without_heartbeats(&statistics), statistics.statistics);
    let rest = without_heartbeats(&steals) - steals.statistics as f64 * statistic_us * 1e-6;
    Ok(OperationCosts { heartbeat_us, statistic_us, steal_us: per(rest, steals.steals) })
}

/// Simulates a grid under a load, and measures the processor time of this thread.
///
/// # Errors
/// The job does not run or does not end.
pub fn measure(settings: &ScaleSettings) -> Result<ScaleResult, GridError> {
    let (start, settings) = (thread_cpu(), *settings);
    simulate(|| async move {
        let mut registry = Registry::new();
        registry.job::<ModelledJob>();
        let grid = SimulatedGrid::start(&layout(&settings), registry).await;
        let run = grid.submit(job(&settings), params(&settings), None).await?;
        let is_warm = matches!(settings.load, ScaleLoad::Heartbeats | ScaleLoad::Statistics);
        sleep(if is_warm { WARM_UP } else { Duration::ZERO }).await;
        let (before, began) = (grid.network().event_counts(), thread_cpu());
        let since = tokio::time::Instant::now();
        let loaded = Duration::from_secs(settings.seconds.into());
        let at_end = async {
            sleep(loaded).await;
            (grid.network().event_counts(), thread_cpu(), since.elapsed())
        };
        let limit = WARM_UP + EXTRA_TIME + 10 * loaded;
        let ((after, ended_at, virtual_time), ended) = match settings.load {
            // The whole job is the load.
            ScaleLoad::Steals => {
                let ended = run.ended(limit).await?;
                let counts = grid.network().event_counts();
                ((counts, thread_cpu(), ended.wall), ended)
            }
            _ => {
                let (at_end, ended) = tokio::join!(at_end, run.ended(limit));
                (at_end, ended?)
            }
        };
        let virtual_s = virtual_time.as_secs_f64();
        let frames = |kind| count(&after, kind) - count(&before, kind);
        let periods = virtual_s / period(&settings).as_secs_f64();
        Ok(ScaleResult {
            workers: settings.workers,
            clusters: settings.clusters,
            load: settings.load,
            virtual_s,
            cpu_s: (ended_at - began).as_secs_f64(),
            total_cpu_s: (thread_cpu() - start).as_secs_f64(),
            events: grid.network().event_counts().events,
            heartbeats: frames(Kind::HEARTBEAT),
            statistics: (f64::from(settings.workers) * periods).round() as u64,
            steals: frames(Kind::TASK_RESULT),
            digest: grid.digest(&ended.records),
        })
    })
}

fn count(counts: &EventCounts, kind: Kind) -> u64 {
    counts.frames.get(&kind).copied().unwrap_or(0)
}

fn period(settings: &ScaleSettings) -> Duration {
    if settings.load == ScaleLoad::Statistics { SHORT_PERIOD } else { LONG_PERIOD }
}

/// The clusters of a grid, with links of 20 ms between them.
fn layout(settings: &ScaleSettings) -> Layout {
    let clusters = settings.clusters.clamp(1, settings.workers.max(1));
    let (share, rest) = (settings.workers / clusters, settings.workers % clusters);
    let cluster = |number: u32| SimulatedCluster {
        name: format!("c{number}").into(),
        nodes: share + u32::from(number < rest),
        machine: Machine { threads: 1, speed: 1.0 },
        unequal_threads: None,
    };
    let between = LinkProfile::default().delay(Duration::from_millis(10));
    Layout {
        clusters: (0..clusters).map(cluster).collect(),
        network: MemoryConfig { between, ..MemoryConfig::default() },
        seed: settings.seed,
        leave_within: Duration::from_secs(30),
        stoppable: false,
    }
}

fn params(settings: &ScaleSettings) -> JobParams {
    let stack_bytes = if cfg!(debug_assertions) { 1 << 20 } else { 1 << 17 };
    let mut params = JobParams { seed: settings.seed, stack_bytes, ..JobParams::default() };
    params.set_period(period(settings));
    params.mode = Mode::Monitor;
    params
}

fn job(settings: &ScaleSettings) -> ModelledJob {
    let workers = u64::from(settings.workers);
    let micros = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
    let loaded = Duration::from_secs(settings.seconds.into());
    let (rounds, leaves, leaf) = match settings.load {
        ScaleLoad::Idle => (1, 1, WARM_UP + loaded),
        ScaleLoad::Heartbeats | ScaleLoad::Statistics => (1, settings.workers, WARM_UP + loaded),
        ScaleLoad::Steals => (settings.seconds, settings.workers, LEAF),
    };
    let work_us = micros(leaf) * u64::from(leaves).min(workers.max(1));
    ModelledJob { rounds, leaves, work_us, ..ModelledJob::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: ScaleSettings =
        ScaleSettings { workers: 12, clusters: 3, load: ScaleLoad::Steals, seconds: 5, seed: 1 };

    #[test]
    fn each_load_has_its_operations() {
        let of = |load| measure(&ScaleSettings { load, ..SMALL }).expect("it ends");
        let (idle, beats) = (of(ScaleLoad::Idle), of(ScaleLoad::Heartbeats));
        // Nine workers send a heartbeat each 0.7 s to one of the three coordinators of clusters.
        for run in [&idle, &beats] {
            assert!((9 * 6..=9 * 9).contains(&run.heartbeats), "{run:?}");
            assert!(run.events > run.heartbeats && run.steals == 0, "{run:?}");
        }
        assert_eq!(of(ScaleLoad::Statistics).statistics, 12 * 5);
        let steals = of(ScaleLoad::Steals);
        assert!(steals.steals >= 5 * 6, "most workers steal in each iteration: {steals:?}");
        assert!(steals.virtual_s >= 5.0 * LEAF.as_secs_f64(), "{steals:?}");
    }

    #[test]
    fn a_seed_gives_one_history() {
        let [one, other] = [(); 2].map(|()| measure(&SMALL).expect("it ends"));
        assert_eq!(
            (one.digest, one.events, one.steals),
            (other.digest, other.events, other.steals)
        );
    }

    #[test]
    fn workers_are_distributed_evenly() {
        let layout = layout(&ScaleSettings { workers: 11, ..SMALL });
        let nodes: Vec<u32> = layout.clusters.iter().map(|cluster| cluster.nodes).collect();
        assert_eq!(nodes, [4, 4, 3]);
    }
}
