//! A task as other nodes know it: its type, its form on the way, its lease, and the end that they
//! deliver.

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use springtide_forkjoin::layer::LeaseKey;
use tokio::time::Instant;

use crate::id::{Peer, TaskPath};
use crate::share::ObjectNeed;
use crate::work::outcome::Failure;
use crate::work::recover::{ResultLocation, RootStart, TaskIdentity};

/// The type of a task, as far as other nodes know it.
pub(crate) struct TaskAbout {
    pub(crate) name: &'static str,
    pub(crate) batch: bool,
    /// Whether the task stays on its node: it borrows from the frame of its parent.
    pub(crate) is_local: bool,
}

/// The name of a task on the wire.
pub(crate) fn wire_name(name: &str, batch: bool) -> String {
    if batch { format!("{name}*") } else { name.to_owned() }
}

/// A task as it travels between nodes.
#[derive(Debug)]
pub struct Encoded {
    pub(crate) body: Bytes,
    pub(crate) needs: Vec<ObjectNeed>,
    pub(crate) start: RootStart,
}

impl Encoded {
    /// The identity of the task with this path and name.
    pub(crate) fn identity(&self, path: TaskPath, name: &str) -> TaskIdentity {
        TaskIdentity::of(path, name, &self.body, &self.needs, self.start)
    }
}

/// The identifier of a lease: an index in the owner's lease table and the generation of that entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct LeaseId {
    /// The index in the owner's table.
    pub index: u32,
    /// The generation: counts the uses of the entry.
    pub generation: u32,
}

impl From<LeaseKey> for LeaseId {
    fn from(LeaseKey { index, generation }: LeaseKey) -> Self {
        Self { index, generation }
    }
}

impl From<LeaseId> for LeaseKey {
    fn from(LeaseId { index, generation }: LeaseId) -> Self {
        Self { index, generation }
    }
}

/// A task with the node that holds its lease.
#[derive(Clone, Debug)]
pub(crate) struct Lease {
    pub(crate) task: TaskIdentity,
    pub(crate) thief: Peer,
}

impl Lease {
    pub(crate) fn place(&self) -> ResultLocation {
        ResultLocation { identity: self.task.clone(), holder: self.thief.clone() }
    }
}

/// A task taken out for another node.
#[derive(Debug)]
pub(crate) struct Export {
    pub(crate) lease: LeaseId,
    pub(crate) task: TaskIdentity,
    pub(crate) encoded: Encoded,
}

/// The end of a leased task as the thief reports it.
pub(crate) type DeliveredEnd = Result<Bytes, Failure>;

/// The end of a leased task, and the time of its arrival.
pub(crate) struct Delivery {
    pub(super) end: DeliveredEnd,
    pub(super) arrived: Instant,
}

impl Delivery {
    pub(crate) fn new(end: DeliveredEnd) -> Self {
        Self { end, arrived: Instant::now() }
    }
}
