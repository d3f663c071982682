//! Workflows and slots that are drawn from a seed by the paper's descriptions.

use springtide_actors::policy::provisioning::{
    Dag, DagTask, Edge, Price, Runtime, SECOND, SiteLinks, Slot, from_seconds,
};

use crate::workload::dice::RandomSource;

/// The processors of the paper's four sites.
pub const SITES: [u32; 4] = [10, 20, 30, 40];

/// The number of slots of the paper's four sites within 30,000 s.
pub const SLOTS: usize = 124;

/// The parameters of a layered workflow.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Layered {
    /// The number of tasks.
    pub tasks: usize,
    /// The number of levels; a task has parents in the level above it.
    pub levels: usize,
    /// Mean runtime, seconds; uniform from 0.5 to 1.5 times the mean.
    pub runtime_s: f64,
    /// Mean transfer between sites, seconds; uniform from 0 to twice the mean.
    pub transfer_s: f64,
    /// Mean processors of a task; uniform from 1 to twice the mean less 1.
    pub processors: u32,
    /// The maximum number of processors of a task.
    pub most: u32,
}

/// Links on which one byte takes a microsecond, so that transfers can be given as times.
pub fn links() -> SiteLinks {
    SiteLinks { other: Some((0, SECOND as f64)), ..SiteLinks::default() }
}

/// Draws a layered workflow from a seed.
pub fn layered(of: &Layered, seed: u64) -> Dag {
    let mut dice = RandomSource::new(seed, 11);
    let level = |task: usize| task * of.levels / of.tasks.max(1);
    let mut tasks = Vec::with_capacity(of.tasks);
    let mut edges = Vec::new();
    for index in 0..of.tasks {
        let processors = 1 + (dice.unit() * f64::from(2 * of.processors - 1)) as u32;
        tasks.push(DagTask {
            name: format!("t{index}"),
            processors: processors.min(of.most.max(1)),
            runtime: Runtime::Same(from_seconds(of.runtime_s * (0.5 + dice.unit()))),
        });
        let above: Vec<usize> =
            (0..index).filter(|&other| level(other) + 1 == level(index)).collect();
        if above.is_empty() {
            continue;
        }
        let count = 1 + (dice.unit() * 3.0) as usize;
        for _ in 0..count {
            let from = above[(dice.unit() * above.len() as f64) as usize];
            let bytes = from_seconds(of.transfer_s * 2.0 * dice.unit());
            edges.push(Edge { from, to: index, bytes });
        }
    }
    // Parents are in the level above alone, so there is no cycle, and every task has processors.
    Dag::new(tasks, &edges, 1).expect("a layered workflow is one")
}

/// CyberShake by the paper's table 1 and figure 8: 8,039 tasks in five levels.
///
/// Tasks wider than `most` have `most` processors (the paper's machine has 430 for tasks of 288).
pub fn cybershake(most: u32) -> Dag {
    const PAIRS: usize = 4017;
    let task = |name: &str, seconds: u64, processors: u32| DagTask {
        name: name.to_owned(),
        processors: processors.min(most),
        runtime: Runtime::Same(seconds * SECOND),
    };
    let mut tasks = vec![
        task("fd_grid_xyz", 1, 1),
        task("preSGT", 300, 1),
        task("fd_grid_cvm", 2100, 288),
        task("pmvl_chk1", 86_400, 288),
        task("pmvl_chk2", 86_400, 288),
    ];
    let edge = |from, to| Edge { from, to, bytes: 0 };
    let mut edges = vec![edge(0, 1), edge(0, 2)];
    edges.extend([3, 4].into_iter().flat_map(|chk| [edge(1, chk), edge(2, chk)]));
    for pair in 0..PAIRS {
        let synth = tasks.len();
        tasks.push(task(&format!("synthSGT_{pair}"), 519, 1));
        tasks.push(task(&format!("peakValCal_{pair}"), 1, 1));
        edges.extend([edge(3, synth), edge(4, synth), edge(synth, synth + 1)]);
    }
    Dag::new(tasks, &edges, 1).expect("the paper's workflow is one")
}

/// Draws slots of the paper's four sites.
///
/// At each site slots arrive from 0 to 30,000 s with a mean distance of 1,000 s. They have a mean
/// duration of 1,000 s and from 1 to all processors of the site. The draw is repeated until the
/// number of slots is the paper's.
pub fn four_sites(seed: u64) -> Vec<Slot> {
    let mut dice = RandomSource::new(seed, 12);
    loop {
        let mut slots = Vec::new();
        for (site, &size) in SITES.iter().enumerate() {
            let mut start = 0.0;
            while start < 30_000.0 {
                let processors = 1 + (dice.unit() * f64::from(size)) as u32;
                let duration = dice.exponential(1000.0);
                slots.push(Slot {
                    site,
                    processors,
                    start: from_seconds(start),
                    end: from_seconds(start + duration.max(1.0)),
                    price: Price::default(),
                    divisible: false,
                    extensible: false,
                });
                start += dice.exponential(1000.0);
            }
        }
        if slots.len() == SLOTS {
            return slots;
        }
    }
}
