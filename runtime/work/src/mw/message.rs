//! Messages between master and workers: the bodies of orders and answers. Data only.
//!
//! This module knows neither programs' contents nor the transport.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

/// An order to a worker. Runs are queued; the other orders take effect on receipt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) enum BlockOrder {
    /// The common part of a batch, sent before its first task.
    Common { batch: u64, body: Bytes },
    /// Appends blocks of a task to the worker's queue.
    Run(BlockRun),
    /// Removes these blocks from the queue, unless they have started: others execute them.
    Revoke { batch: u64, task: u32, from: u32, to: u32 },
    /// Drops everything of a batch.
    Forget { batch: u64 },
}

/// Blocks of a task to execute.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct BlockRun {
    pub(super) batch: u64,
    /// The index of the task in the batch.
    pub(super) task: u32,
    /// The program's number of the task.
    pub(super) id: u32,
    pub(super) from: u32,
    /// The end of the range of blocks, exclusive.
    pub(super) to: u32,
    /// Units of work of each block.
    pub(super) units: f64,
    /// The task's input, encoded.
    pub(super) work: Bytes,
}

/// The result of one block. It identifies the block in full, so duplicates count once.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct BlockResult {
    pub(super) batch: u64,
    pub(super) task: u32,
    pub(super) block: u32,
    /// The time that the block took.
    pub(super) seconds: f64,
    pub(super) output: Bytes,
}
