//! The configuration of a pool of compute threads.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The default of [`PoolConfig::work_floor`].
pub const WORK_FLOOR: Duration = Duration::from_millis(50);

/// The default of [`PoolConfig::checkpoint_rate`].
pub const CHECKPOINT_RATE: u64 = 256 << 10;

/// The configuration of a pool.
#[derive(Clone, Debug)]
pub struct PoolConfig {
    /// The number of compute threads, at least 1.
    pub threads: usize,
    /// The size of each stack in bytes. Deep recursions need it; only accessed pages cost memory.
    pub stack_bytes: usize,
    /// The maximum number of waits on one stack that take unrelated work.
    pub nesting_bound: u32,
    /// The seed of the threads' random choice of victims.
    pub seed: u64,
    /// The first generation of lease entries, which differs between incarnations of the node.
    pub first_lease_generation: u32,
    /// Modelled time of each join and spawn, for virtual time, in which computing takes none.
    pub fork_time: Option<Duration>,
    /// Whether work units of tasks and the root's own time are counted: see
    /// [`Task::cost`](super::Task::cost).
    pub metered: bool,
    /// The running time from which outputs are kept until the parent task ends, in case the node
    /// leaves. Tasks of three quarters of it are certainly kept, tasks below a quarter never. 0
    /// keeps none.
    pub work_floor: Duration,
    /// The maximum average rate of the root's checkpoints, in bytes a second; each counts 16 KiB
    /// more. Checkpoints that come sooner are skipped. 0: no limit.
    ///
    /// At the default, a megabyte is sent every 4 s. This costs the nodes that write, forward and
    /// store it about 1 % of one core.
    pub checkpoint_rate: u64,
    /// The directory of input files: see [`Context::input_file`](super::Context::input_file).
    pub files: Option<PathBuf>,
    /// The job's place in its array, if it has one.
    pub array: Option<ArrayTask>,
    /// The number of processors without which a job of fixed size does not start.
    pub processors_min: u32,
    /// The prefix of the threads' names.
    pub name: String,
}

impl Default for PoolConfig {
    fn default() -> Self {
        Self {
            threads: 1,
            stack_bytes: 16 << 20,
            nesting_bound: 32,
            seed: 1,
            first_lease_generation: 0,
            fork_time: None,
            metered: false,
            work_floor: WORK_FLOOR,
            checkpoint_rate: CHECKPOINT_RATE,
            files: None,
            array: None,
            processors_min: 1,
            name: "compute".to_owned(),
        }
    }
}

/// A job's place in a job array: jobs that differ in their index alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArrayTask {
    /// Identifies the array; jobs of one array have the same number, which is random.
    pub id: u64,
    /// The index of this job.
    pub index: u32,
    /// The lowest index of the array.
    pub first: u32,
    /// The highest index of the array.
    pub last: u32,
    /// The number of jobs of the array.
    pub count: u32,
    /// The maximum number of the array's jobs that have processors at the same time; absent: no
    /// limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
}
