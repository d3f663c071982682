//! Replicated objects of a job: versioned ones with one writer, and merged ones that any node may
//! change.
//!
//! [`SharedObjects`] is one node's replica of a job's objects. It knows neither tasks nor actors
//! nor the transport: it returns [`ObjectAction`]s to execute.
//!
//! Guarantees:
//! - A reader gets exactly the version it names or nothing; a value never changes once read.
//! - Duplicates, old versions and old epochs are dropped. So every message may arrive twice, late
//!   or out of order.
//! - Each published byte is sent from the writer's cluster to another once, unless the relay there
//!   dies.
//! - Unrequested or malformed messages cannot make a node exceed the limits in [`ShareConfig`].

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::id::Epoch;

mod api;
mod cached;
mod cell;
mod message;
mod shared;
mod store;
#[cfg(test)]
mod tests;
mod types;

pub use api::{
    Fact, FrameError, Needed, ObjectAction, ShareConfig, ShareError, ShareStats, Ticket,
    Unavailable,
};
pub use cached::ObjectRef;
pub(crate) use cached::forget_kept;
pub use cell::HeldVersions;
pub use shared::SharedObjects;
pub use types::{CodecError, Merged, ObjectTypes, Versioned};

/// The name of one part of a shared object of a job.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ObjectKey {
    /// The object's registered name.
    pub name: String,
    /// The number of the part; 0 for an object of one part.
    pub part: u32,
}

impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.name, self.part)
    }
}

/// A version of a `Versioned` object part, ordered by epoch and number.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Version {
    /// The epoch of its writer.
    pub epoch: Epoch,
    /// The number of the version, from 1 within the object part.
    pub n: u64,
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.epoch.0, self.n)
    }
}

/// A part of a shared object that a task reads, in exactly this version.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ObjectNeed {
    /// The part of the object.
    pub key: ObjectKey,
    /// The version that is read.
    pub version: Version,
}

impl ObjectNeed {
    /// Creates the need for a version of a part of `V`.
    pub fn of<V: Versioned>(part: u32, version: Version) -> Self {
        Self { key: ObjectKey { name: V::NAME.to_owned(), part }, version }
    }
}
