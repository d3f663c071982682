//! Replicated objects of a job. (Interface first; the store follows.)

use serde::{Deserialize, Serialize};

use crate::id::Epoch;

/// Names one part of one shared object of a job.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ObjectKey {
    /// The object's registered name.
    pub name: String,
    /// Which part of it; 0 for an object of one part.
    pub part: u32,
}

/// A version of a `Versioned` object part. Ordered.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Version {
    /// Ownership generation of its writer.
    pub epoch: Epoch,
    /// Counts up from 1 within the object part.
    pub n: u64,
}

/// What a task reads: this part in exactly this version.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Need {
    /// Which object part.
    pub key: ObjectKey,
    /// In which version.
    pub version: Version,
}
