//! Replicated objects of a job: versioned ones with one writer, merged ones that anybody may change.
//!
//! [`Shared`] is one node's replica of a job's objects. It must not know tasks, actors or how bytes travel: what it wants
//! done it says as [`Action`]s.
//!
//! Guarantees:
//! - A reader gets exactly the version it names or nothing; values never change once read.
//! - Duplicates, old versions and old epochs are dropped, so every message may come twice, late or out of order.
//! - Each published byte crosses from the writer's cluster to another once, unless the node that relays it there dies.
//! - What arrives unrequested or is malformed cannot make a node hold more than the limits in [`ShareConfig`].

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::id::Epoch;

mod api;
mod cell;
mod message;
mod shared;
mod store;
#[cfg(test)]
mod tests;
mod types;

pub use api::{
    Action, Fact, FrameError, Needed, ShareConfig, ShareError, ShareStats, Ticket, Unavailable,
};
pub use cell::Held;
pub use shared::Shared;
pub use types::{CodecError, Merged, ObjectTypes, Versioned};

/// Names one part of one shared object of a job.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ObjectKey {
    /// The object's registered name.
    pub name: String,
    /// Which part of it; 0 for an object of one part.
    pub part: u32,
}

impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.name, self.part)
    }
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

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.epoch.0, self.n)
    }
}

/// What a task reads: this part in exactly this version.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Need {
    /// Which object part.
    pub key: ObjectKey,
    /// In which version.
    pub version: Version,
}

impl Need {
    /// The need for a version of a part of `V`.
    pub fn of<V: Versioned>(part: u32, version: Version) -> Self {
        Self { key: ObjectKey { name: V::NAME.to_owned(), part }, version }
    }
}
