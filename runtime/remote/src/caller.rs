//! The caller's side of [`RemoteRequest`](super::RemoteRequest): calls under way by id, and the
//! assignment of replies to them.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::oneshot;

use super::envelope::{Envelope, Reply, code};
use super::hub::Hub;
use super::{Refusal, RemoteError, RemoteMessage, ScratchBuffer};
use crate::id::{NodeId, Peer};
use crate::net::{Class, LinkError};
use crate::wire::{self, INLINE_MAX, Kind, WireError};

/// The untyped outcome of a call.
pub(super) enum CallOutcome {
    Reply { code: u16, body: Bytes },
    Gone(LinkError),
    Closed,
}

/// The table of all calls under way.
pub(super) struct Calls {
    closed: AtomicBool,
    table: Mutex<CallTable>,
}

struct CallTable {
    next: u64,
    waiting: BTreeMap<u64, Waiter>,
    /// By node and actor: the last message that was too long to travel inline, while it may still
    /// be in transit.
    last_long: BTreeMap<(NodeId, Arc<str>), u64>,
}

struct Waiter {
    node: NodeId,
    outcome: oneshot::Sender<CallOutcome>,
}

/// The destination of a message, and the deadline of a call.
pub(super) struct CallTarget<'a> {
    /// Node of the actor.
    pub(super) node: &'a NodeId,
    /// Published name of the actor.
    pub(super) actor: &'a Arc<str>,
    /// Time to wait for the reply; `None` for a tell.
    pub(super) deadline: Option<Duration>,
}

impl Calls {
    pub(super) fn new(first_id: u64) -> Self {
        let (waiting, last_long) = (BTreeMap::new(), BTreeMap::new());
        let table = Mutex::new(CallTable { next: first_id, waiting, last_long });
        Self { closed: AtomicBool::new(false), table }
    }

    fn lock(&self) -> MutexGuard<'_, CallTable> {
        self.table.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Forgets a call whose caller no longer waits.
    pub(super) fn forget(&self, id: u64) {
        self.lock().waiting.remove(&id);
    }

    /// Fails every call to a node whose link went down.
    pub(super) fn down(&self, node: &NodeId, why: &LinkError) {
        let mut table = self.lock();
        table.last_long.retain(|(to, _), _| to != node);
        let ids: Vec<u64> =
            table.waiting.iter().filter(|(_, w)| w.node == *node).map(|(id, _)| *id).collect();
        let gone: Vec<Waiter> = ids.iter().filter_map(|id| table.waiting.remove(id)).collect();
        drop(table);
        for waiter in gone {
            let _ = waiter.outcome.send(CallOutcome::Gone(why.clone()));
        }
    }

    /// Fails a call that the network could not deliver.
    pub(super) fn undelivered(&self, node: &NodeId, frame: &[u8]) {
        let Ok(envelope) = wire::decode::<Envelope<'_>>(Kind::CALL, frame) else { return };
        let mut table = self.lock();
        table.last_long.retain(|(to, _), id| to != node || *id != envelope.id);
        let waiter = table.waiting.remove(&envelope.id);
        drop(table);
        if let Some(waiter) = waiter {
            let _ = waiter.outcome.send(CallOutcome::Gone("the message was not delivered".into()));
        }
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    pub(super) fn close(&self) {
        let mut table = self.lock();
        // Under the lock, so that no call is added later.
        self.closed.store(true, Ordering::Release);
        let waiting = std::mem::take(&mut table.waiting);
        drop(table);
        for waiter in waiting.into_values() {
            let _ = waiter.outcome.send(CallOutcome::Closed);
        }
    }

    fn reply(&self, from: &Peer, id: u64, outcome: CallOutcome) -> bool {
        let mut table = self.lock();
        if table.waiting.get(&id).is_none_or(|waiter| waiter.node != from.node) {
            return false;
        }
        if !table.last_long.is_empty() {
            table.last_long.retain(|_, last| *last != id);
        }
        let waiter = table.waiting.remove(&id);
        drop(table);
        waiter.is_some_and(|waiter| waiter.outcome.send(outcome).is_ok())
    }
}

impl Hub {
    /// Receives a reply, on the endpoint's thread.
    pub(super) fn replied(&self, from: &Peer, frame: Bytes) {
        let (id, code, body) = match wire::decode::<Reply<'_>>(Kind::REPLY, &frame) {
            Ok(reply) => (reply.id, reply.code, frame.slice_ref(reply.body)),
            Err(error) => {
                self.count(|counters| &counters.malformed);
                return self.net.report_violation(from, &format!("a malformed reply: {error}"));
            }
        };
        if !self.calls.reply(from, id, CallOutcome::Reply { code, body }) {
            self.count(|counters| &counters.replies_late);
        }
    }

    /// Sends a message. For a call, returns its id and the receiver of its outcome.
    pub(super) fn dispatch<M: RemoteMessage>(
        &self,
        to: &CallTarget<'_>,
        message: &M,
    ) -> Result<Option<(u64, oneshot::Receiver<CallOutcome>)>, RemoteError> {
        let mut body = ScratchBuffer::take();
        let encoded = wire::encode_into(&mut body.0, Kind::CALL, message);
        self.send(to, M::NAME, encoded.map(|()| &body.0[..]))
    }

    fn send(
        &self,
        to: &CallTarget<'_>,
        message: &'static str,
        body: Result<&[u8], WireError>,
    ) -> Result<Option<(u64, oneshot::Receiver<CallOutcome>)>, RemoteError> {
        let unencodable = |error| match error {
            WireError::TooLong { len, cap, .. } => RemoteError::TooLong { message, len, cap },
            other => version(to.node, message, other.to_string()),
        };
        let body = body.map_err(unencodable)?;
        let kind = if to.deadline.is_some() { Kind::CALL } else { Kind::TELL };
        let deadline_ms = to
            .deadline
            .map(|deadline| u64::try_from(deadline.as_micros().div_ceil(1000)).unwrap_or(u64::MAX));
        // Ids are assigned under the same lock as messages are queued. Messages of two threads to
        // one actor therefore leave in the order of their ids.
        let mut table = self.calls.lock();
        if self.calls.is_closed() {
            return Err(RemoteError::Closed);
        }
        let id = table.next;
        let after = if table.last_long.is_empty() {
            None
        } else {
            table.last_long.get(&(to.node.clone(), Arc::clone(to.actor))).copied()
        };
        let envelope = Envelope { id, actor: to.actor, message, deadline_ms, after, body };
        let mut frame = Vec::with_capacity(body.len() + 96);
        wire::encode_into(&mut frame, kind, &envelope).map_err(unencodable)?;
        let long = frame.len() > INLINE_MAX;
        self.net
            .send(to.node, Class::Control, kind, frame)
            .map_err(|error| RemoteError::from_send(error, message))?;
        table.next += 1;
        if long {
            table.last_long.insert((to.node.clone(), Arc::clone(to.actor)), id);
        }
        let Some(_) = to.deadline else {
            drop(table);
            self.count(|counters| &counters.tells_out);
            return Ok(None);
        };
        let (outcome, receiver) = oneshot::channel();
        // A reply that arrives before this line waits for the lock.
        table.waiting.insert(id, Waiter { node: to.node.clone(), outcome });
        drop(table);
        self.count(|counters| &counters.calls_out);
        Ok(Some((id, receiver)))
    }

    /// Converts the outcome of a call into the caller's typed result.
    pub(super) fn typed_result<M: RemoteMessage>(
        &self,
        node: &NodeId,
        actor: &str,
        outcome: CallOutcome,
    ) -> Result<M::Result, RemoteError> {
        let body = self.encoded_result(node, actor, M::NAME, outcome)?;
        wire::decode(Kind::REPLY, &body).map_err(|error| version(node, M::NAME, error.to_string()))
    }

    /// Returns the encoded result of a call.
    fn encoded_result(
        &self,
        node: &NodeId,
        actor: &str,
        message: &'static str,
        outcome: CallOutcome,
    ) -> Result<Bytes, RemoteError> {
        let (node, actor) = (node.clone(), actor.to_owned());
        match outcome {
            CallOutcome::Closed => Err(RemoteError::Closed),
            CallOutcome::Gone(why) => {
                self.count(|counters| &counters.gone);
                Err(RemoteError::Gone { node, reason: why })
            }
            CallOutcome::Reply { code: code::DONE, body } => Ok(body),
            CallOutcome::Reply { code: code::NO_ACTOR, .. } => {
                Err(RemoteError::NoActor { node, actor })
            }
            CallOutcome::Reply { code: code::VERSION, body } => {
                Err(version(&node, message, String::from_utf8_lossy(&body).into_owned()))
            }
            CallOutcome::Reply { code: code::TOO_LONG, body } => {
                let number = |at: usize| {
                    let bytes = body.get(at..at + 8).and_then(|bytes| bytes.try_into().ok());
                    bytes.map_or(0, |bytes| u64::from_le_bytes(bytes) as usize)
                };
                Err(RemoteError::TooLong { message, len: number(0), cap: number(8) })
            }
            CallOutcome::Reply { code, .. } => {
                let why = Refusal::from_code(code);
                Err(RemoteError::Refused { node, actor, message, reason: why })
            }
        }
    }
}

fn version(node: &NodeId, message: &'static str, why: String) -> RemoteError {
    RemoteError::Version { node: node.clone(), message, reason: why }
}
