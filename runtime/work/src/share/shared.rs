//! The replica for all threads of a node: compute threads read and write, and the endpoint's thread
//! handles frames.
//!
//! Encoding, decoding, applying and folding run on the thread that asks, outside the lock. Only
//! bookkeeping happens under the lock, and merges of merged objects, which are small.

use std::any::Any;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use tokio::time::Instant;

use super::cached::{self, ObjectRef, ValueSource};
use super::cell::Payload;
use super::store::{PartKey, Store, StoreAction};
use super::types::{encode, guarded};
use super::{
    Merged, Needed, ObjectAction, ObjectNeed, ObjectTypes, ShareConfig, ShareError, ShareStats,
    Ticket, Unavailable, Version, Versioned,
};
use crate::id::{JobId, NodeId};
use crate::membership::View;
use crate::net::{Class, SegmentPool};
use crate::wire::{INLINE_MAX, Kind};

/// The callback that executes actions. It is called outside the store's lock, so it may call the
/// store; and on any thread, so it must be quick.
pub type ActionHandler = Arc<dyn Fn(ObjectAction) + Send + Sync>;

/// The number of attempts of an update when other versions come in between.
const UPDATE_TRIES: usize = 3;

/// One node's replica of a job's shared objects. Cheap to clone, usable from every thread.
///
/// Set the membership ([`SharedObjects::view`]) before the first version is published: its epoch
/// becomes the version's, and versions of older epochs are refused.
#[derive(Clone)]
pub struct SharedObjects(Arc<ReplicaState>);

struct ReplicaState {
    /// Distinguishes stores in the threads' caches.
    id: u64,
    store: Mutex<Store>,
    /// Held while a version is created, so that this node's writers take turns.
    writing: Mutex<()>,
    /// Counts the changes of merged objects.
    merges: OwnLine<AtomicU64>,
    sent_local: AtomicU64,
    sent_wide: AtomicU64,
    handler: ActionHandler,
}

/// A value on cache lines of its own: writes to its neighbours do not slow its readers down.
#[repr(align(128))]
struct OwnLine<T>(T);

impl SharedObjects {
    /// Creates an empty replica for a node of a job.
    pub fn new(
        me: NodeId,
        job: JobId,
        types: ObjectTypes,
        config: ShareConfig,
        handler: ActionHandler,
    ) -> Self {
        static IDS: AtomicU64 = AtomicU64::new(0);
        Self(Arc::new(ReplicaState {
            id: IDS.fetch_add(1, Ordering::Relaxed),
            store: Mutex::new(Store::new(me, job, types, config)),
            writing: Mutex::new(()),
            merges: OwnLine(AtomicU64::new(0)),
            sent_local: AtomicU64::new(0),
            sent_wide: AtomicU64::new(0),
            handler,
        }))
    }

    /// Keeps segments that other nodes of this process have as well in this pool.
    pub(crate) fn set_pool(&self, pool: Arc<SegmentPool>) {
        self.store().pool = Some(pool);
    }

    /// Publishes the next version as a whole value and starts its broadcast. Encodes on this
    /// thread; waits for another writer on this node, never for the network. On the only node of
    /// the job, later versions than the first are encoded when another node joins or asks for them.
    ///
    /// # Errors
    /// `Unregistered`; `Value` if it is encoded, and does not encode or takes more than
    /// [`DATA_MAX`](crate::wire::DATA_MAX) bytes.
    pub fn put<V: Versioned>(&self, part: u32, value: V) -> Result<Version, ShareError> {
        let slot = self.slot::<V>(part)?;
        let _writing = lock(&self.0.writing);
        self.put_value(slot, value)
    }

    fn put_value<V: Versioned>(&self, slot: PartKey, value: V) -> Result<Version, ShareError> {
        // The first version is encoded in any case, so that an error of the type shows at once.
        let (is_needed, segment) = {
            let store = self.store();
            (!store.is_alone() || store.newest(slot).is_none(), store.config.segment)
        };
        let whole = if is_needed {
            Some(Payload::cut(encode(V::NAME, "value", &value)?, segment))
        } else {
            None
        };
        let value = Arc::new(value);
        Ok(self.with(|store, now| store.publish_whole(slot, whole, value, now)))
    }

    /// Publishes the next version as a change of the newest on this node. If the newest is of an
    /// older epoch, the whole value is published.
    ///
    /// # Errors
    /// `Unregistered`; `NoBase` before the first `put`; `Overtaken` if another node writes the same
    /// part; `Value` if the delta does not encode or `apply` panics.
    pub fn update<V: Versioned>(&self, part: u32, delta: V::Delta) -> Result<Version, ShareError> {
        let slot = self.slot::<V>(part)?;
        let _writing = lock(&self.0.writing);
        let bytes = encode(V::NAME, "delta", &delta)?;
        let mut delta = Some(delta);
        for _ in 0..UPDATE_TRIES {
            let (base, epoch, segment, chain) = {
                let store = self.store();
                (store.newest(slot), store.epoch(), store.config.segment, store.config.chain)
            };
            let base = base.ok_or(ShareError::NoBase { name: V::NAME, part })?;
            base.encode();
            let old = typed::<V>(base.value()?);
            // The first attempt uses the delta itself, later ones a copy decoded from its bytes.
            let delta = match delta.take() {
                Some(delta) => delta,
                None => crate::wire::decode_payload(&bytes).map_err(|why| {
                    super::CodecError::Decode { name: V::NAME, what: "delta", why }
                })?,
            };
            let new = guarded(V::NAME, || Ok(old.apply(delta)))?;
            if base.version.epoch != epoch {
                return self.put_value(slot, new);
            }
            let payload = Payload::cut(bytes.clone(), segment);
            let new: Arc<V> = Arc::new(new);
            let published =
                self.with(|store, now| store.publish_delta(slot, &base, payload, new, now));
            if let Some(version) = published {
                self.fold(slot, version, chain, segment);
                return Ok(version);
            }
        }
        Err(ShareError::Overtaken { name: V::NAME, part })
    }

    /// Returns exactly this version, if it is on this node. The first reader on a node decodes it.
    pub fn get<V: Versioned>(&self, part: u32, version: Version) -> Option<ObjectRef<V>> {
        self.try_get(part, version).ok()
    }

    /// As [`SharedObjects::get`], with the reason for a failure.
    ///
    /// The first read of a version by a thread takes a lock. Later ones look the value up among
    /// the last that the thread has read.
    ///
    /// # Errors
    /// `Unregistered`, `Absent`, or `Value` if it does not decode.
    #[inline]
    pub fn try_get<V: Versioned>(
        &self,
        part: u32,
        version: Version,
    ) -> Result<ObjectRef<V>, ShareError> {
        let find = || self.find(part, version).map(Some);
        let found = cached::read(self.0.id, ValueSource::Version(part, version), find)?;
        Ok(found.unwrap_or_else(|| unreachable!("a version has a value")))
    }

    fn find<V: Versioned>(&self, part: u32, version: Version) -> Result<Arc<V>, ShareError> {
        let slot = self.slot::<V>(part)?;
        let (cell, chain, segment) = {
            let store = self.store();
            (store.find(slot, version), store.config.chain, store.config.segment)
        };
        let cell = cell.ok_or(ShareError::Absent { name: V::NAME, part, version })?;
        let value = typed::<V>(cell.value()?);
        if cell.is_long(chain, 1) {
            cell.fold(segment);
        }
        Ok(value)
    }

    /// Whether no other node is a member of the job.
    pub fn is_alone(&self) -> bool {
        self.store().is_alone()
    }

    /// The newest version on this node, if any.
    pub fn latest<V: Versioned>(&self, part: u32) -> Option<Version> {
        let slot = self.slot::<V>(part).ok()?;
        self.store().newest(slot).map(|cell| cell.version)
    }

    /// Merges a value into the object: readers on this node see it at once, other nodes soon.
    /// Returns whether it changed the object.
    ///
    /// # Errors
    /// `Unregistered`; `TooLarge` if the encoded merge takes over 4 MiB less a kilobyte (it then
    /// stays on this node); `Value` if the type's code fails.
    pub fn merge<M: Merged>(&self, value: M) -> Result<bool, ShareError> {
        let object = self.object::<M>(M::NAME)?;
        self.with(|store, _| store.merge(object, Arc::new(value)))
    }

    /// The merge of all values received so far; `None` without any. While nothing changes it reads
    /// a counter, and looks the value up among the last that the thread has read.
    #[inline]
    pub fn merged<M: Merged>(&self) -> Option<ObjectRef<M>> {
        // Read before the value: after a change in between the next call looks it up again.
        let merges = self.0.merges.0.load(Ordering::Acquire);
        let find = || -> Result<_, ShareError> {
            let object = self.object::<M>(M::NAME)?;
            Ok(self.store().merged(object).map(typed::<M>))
        };
        cached::read(self.0.id, ValueSource::Merges(merges), find).ok().flatten()
    }

    /// Waits for these versions on behalf of a task. An existing ticket of this number is replaced.
    ///
    /// The answer `Waiting` is followed by [`ObjectAction::Ready`] or [`ObjectAction::Failed`],
    /// possibly on another thread before this call returns. So register the ticket before the call.
    ///
    /// # Errors
    /// `Unregistered`.
    pub fn need(&self, ticket: Ticket, needs: &[ObjectNeed]) -> Result<Needed, Unavailable> {
        self.with(|store, now| store.need(ticket, needs, now))
    }

    /// Whether a waiting task needs an object that is written in another cluster. `None` if no task
    /// waits.
    pub fn waits_wide(&self) -> Option<bool> {
        self.store().waits_wide()
    }

    /// Drops a ticket whose task no longer waits.
    pub fn forget(&self, ticket: Ticket) {
        self.with(|store, _| store.forget(ticket));
    }

    /// Handles a frame of one of the kinds `OBJECT_*`. An error is reported as
    /// [`Fact::Refused`](super::Fact::Refused).
    pub fn frame(&self, from: &NodeId, kind: Kind, body: Bytes) {
        self.with(|store, now| store.frame(from, kind, &body, now));
    }

    /// Sets the job's membership. Older views than the last are ignored.
    pub fn view(&self, view: &View) {
        // Values that this node has published alone are encoded outside the lock, for others will
        // need them.
        if view.members.len() > 1 {
            let newest = self.store().newest_of_all();
            newest.iter().for_each(|cell| cell.encode());
        }
        self.with(|store, now| store.set_view(view, now));
    }

    /// Handles the loss of the link to a node: messages to it may be lost.
    pub fn down(&self, node: &NodeId) {
        self.with(|store, now| store.down(node, now));
    }

    /// Returns a message that the network had no room for, or did not deliver. It is sent again
    /// later.
    pub fn unsent(&self, to: NodeId, kind: Kind, body: Bytes) {
        self.with(|store, now| store.unsent(to, kind, body, now));
    }

    /// Handles all due timers. Call it when an [`ObjectAction::Wake`] asks for it.
    pub fn tick(&self) {
        self.with(|store, now| store.tick(now));
    }

    /// The counters so far.
    pub fn stats(&self) -> ShareStats {
        ShareStats {
            sent_local: self.0.sent_local.load(Ordering::Relaxed),
            sent_wide: self.0.sent_wide.load(Ordering::Relaxed),
            ..self.store().stats
        }
    }

    /// The bytes of unfinished versions.
    #[cfg(test)]
    pub(super) fn assembling(&self) -> usize {
        self.store().assembling()
    }

    fn store(&self) -> MutexGuard<'_, Store> {
        lock(&self.0.store)
    }

    /// Calls the store and then, outside its lock, executes the requested actions.
    fn with<T>(&self, call: impl FnOnce(&mut Store, Instant) -> T) -> T {
        let now = Instant::now();
        let (answer, (out, garbage)) = {
            let mut store = self.store();
            let merges = store.stats.merges;
            let answer = call(&mut store, now);
            if store.stats.merges != merges {
                self.0.merges.0.fetch_add(1, Ordering::Release);
            }
            (answer, store.take(now))
        };
        drop(garbage);
        for out in out {
            self.execute(out);
        }
        answer
    }

    fn execute(&self, out: StoreAction) {
        let handler = &self.0.handler;
        match out {
            StoreAction::Send { to, message } => {
                let Ok((kind, body)) = message.encode() else {
                    // Every message respects its kind's limit when it is created. A refused one
                    // still counts as dropped by the network.
                    self.store().stats.dropped += 1;
                    return;
                };
                let class = if body.len() > INLINE_MAX { Class::Bulk } else { Class::Control };
                for (to, wide) in to {
                    let sent = if wide { &self.0.sent_wide } else { &self.0.sent_local };
                    sent.fetch_add(body.len() as u64, Ordering::Relaxed);
                    handler(ObjectAction::Send { to, class, kind, body: body.clone() });
                }
            }
            StoreAction::Ready(ticket, held) => handler(ObjectAction::Ready { ticket, held }),
            StoreAction::Failed(ticket, why) => handler(ObjectAction::Failed { ticket, why }),
            StoreAction::Wake(at) => handler(ObjectAction::Wake(at)),
            StoreAction::Event(fact) => handler(ObjectAction::Event(fact)),
        }
    }

    /// Folds a version with many deltas.
    fn fold(&self, slot: PartKey, version: Version, chain: usize, segment: usize) {
        let cell = self.store().find(slot, version);
        if let Some(cell) = cell
            && cell.is_long(chain, 1)
        {
            cell.fold(segment);
        }
    }

    fn slot<V: Versioned>(&self, part: u32) -> Result<PartKey, ShareError> {
        Ok(PartKey { object: self.object::<V>(V::NAME)?, part })
    }

    /// The index of a type, if exactly this type is registered under the name.
    fn object<T: 'static>(&self, name: &'static str) -> Result<usize, ShareError> {
        self.store().typed::<T>(name).ok_or(ShareError::Unregistered(name))
    }
}

fn typed<T: Send + Sync + 'static>(value: Arc<dyn Any + Send + Sync>) -> Arc<T> {
    value.downcast().unwrap_or_else(|_| unreachable!("values are kept under their own type"))
}

/// Locks a mutex. A panic under the lock can only come from a user's `drop` or `eq`, and the store
/// stays consistent enough to continue.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
