//! Tasks of a grid, and what stands on them: stealing between nodes, recovery, checkpoints, shared
//! objects, and the parallel programs of `spmd`, `malleable` and `mw`. Threads and joins are those
//! of `springtide-forkjoin`.
//!
//! Programs depend on the facade `springtide-runtime` instead.

pub mod command;
pub mod event;
pub mod malleable;
pub mod mw;
pub mod pilot;
pub mod runner;
pub mod share;
pub mod spmd;
pub mod topology;
pub mod work;

use springtide_base::{checksum, files, guard, id, memory, processors, random};
#[cfg(test)]
use springtide_base::{event_kinds, state_table};
use springtide_config as config;
use springtide_metrics as meter;
use springtide_net::{membership, net, wire};
