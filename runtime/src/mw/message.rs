//! What the master tells its workers, and what these answer: the bodies of orders and answers. Data only.
//!
//! Must not know what programs put into them, nor how they travel.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

/// What a worker is told. Orders are carried out one after the other, each as it comes but for work, which is queued.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) enum Order {
    /// What all tasks of a batch share, before the first of them.
    Common { batch: u64, body: Bytes },
    /// Blocks of a task, after what it has.
    Run(Run),
    /// These blocks are somebody else's, if they are not begun.
    Revoke { batch: u64, task: u32, from: u32, to: u32 },
    /// Nothing of a batch is wanted any more.
    Forget { batch: u64 },
}

/// Blocks of a task to be done.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Run {
    pub(super) batch: u64,
    /// Its place in the batch.
    pub(super) task: u32,
    /// The program's own number of it.
    pub(super) id: u32,
    pub(super) from: u32,
    /// The first that is not meant.
    pub(super) to: u32,
    /// Of each block.
    pub(super) units: f64,
    /// What the program tells of it.
    pub(super) work: Bytes,
}

/// What came of one block. It names all that it is the result of, so it counts once, whoever says it and however often.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Answer {
    pub(super) batch: u64,
    pub(super) task: u32,
    pub(super) block: u32,
    /// How long it took.
    pub(super) seconds: f64,
    pub(super) output: Bytes,
}
