//! The store for all threads of a node: compute threads read and write, the endpoint's thread feeds it frames.

use std::sync::Arc;

use bytes::Bytes;

use super::{
    Action, Merged, Need, Needed, ObjectTypes, ShareConfig, ShareError, ShareStats, Ticket,
    Unavailable, Version, Versioned,
};
use crate::id::{JobId, NodeId};
use crate::membership::View;
use crate::wire::Kind;

/// Carries out actions. Called outside the store's lock, so it may call the store; on any thread, so it must be quick.
pub type Carry = Arc<dyn Fn(Action) + Send + Sync>;

/// One node's replica of a job's shared objects. Cheap to clone, usable from every thread.
#[derive(Clone)]
pub struct Shared(());

impl Shared {
    /// An empty replica for a node of a job.
    pub fn new(
        me: NodeId,
        job: JobId,
        types: ObjectTypes,
        config: ShareConfig,
        carry: Carry,
    ) -> Self {
        let _ = (me, job, types, config, carry);
        todo!()
    }

    /// Publishes the next version, whole, and starts its broadcast. Encodes on this thread.
    pub fn put<V: Versioned>(&self, part: u32, value: V) -> Result<Version, ShareError> {
        let _ = (part, value);
        todo!()
    }

    /// Publishes the next version as a change of the newest here.
    pub fn update<V: Versioned>(&self, part: u32, delta: V::Delta) -> Result<Version, ShareError> {
        let _ = (part, delta);
        todo!()
    }

    /// Exactly this version, if it is here. The first reader on a node decodes it.
    pub fn get<V: Versioned>(&self, part: u32, version: Version) -> Option<Arc<V>> {
        self.try_get(part, version).ok()
    }

    /// As [`Shared::get`], saying why not.
    pub fn try_get<V: Versioned>(&self, part: u32, version: Version) -> Result<Arc<V>, ShareError> {
        let _ = (part, version);
        todo!()
    }

    /// The newest version here, if any.
    pub fn latest<V: Versioned>(&self, part: u32) -> Option<Version> {
        let _ = part;
        todo!()
    }

    /// Merges a value into the object: readers on this node see it at once, other nodes soon. Returns whether it
    /// changed the object.
    pub fn merge<M: Merged>(&self, value: M) -> Result<bool, ShareError> {
        let _ = value;
        todo!()
    }

    /// The merge of all that has come so far; `None` before anything has. A few nanoseconds while nothing changes.
    pub fn merged<M: Merged>(&self) -> Option<Arc<M>> {
        todo!()
    }

    /// A task waits for these versions. A ticket that was there before is replaced.
    pub fn need(&self, ticket: Ticket, needs: &[Need]) -> Result<Needed, Unavailable> {
        let _ = (ticket, needs);
        todo!()
    }

    /// Nobody waits for this ticket any more.
    pub fn forget(&self, ticket: Ticket) {
        let _ = ticket;
        todo!()
    }

    /// A frame of one of the kinds `OBJECT_*` has come.
    pub fn frame(&self, from: &NodeId, kind: Kind, body: Bytes) {
        let _ = (from, kind, body);
        todo!()
    }

    /// The job's membership. Older views than the last are ignored.
    pub fn view(&self, view: &View) {
        let _ = view;
        todo!()
    }

    /// The network had no room for this, or gives it back undelivered: it is sent again later.
    pub fn unsent(&self, to: NodeId, kind: Kind, body: Bytes) {
        let _ = (to, kind, body);
        todo!()
    }

    /// Does what is due. To be called when an [`Action::Wake`] asks for it.
    pub fn tick(&self) {
        todo!()
    }

    /// What was counted so far.
    pub fn stats(&self) -> ShareStats {
        todo!()
    }
}
