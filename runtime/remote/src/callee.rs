//! The callee's side: delivers messages from other nodes to mailboxes, and sends the replies.
//!
//! Messages in flight are bounded per peer ([`PEER_IN_FLIGHT_MAX`]) and per actor, by number and by
//! bytes. So are messages that wait for an earlier, longer one ([`HELD_MAX`], [`HELD_BYTES_MAX`]).
//! Above the bounds, calls are refused; tells, which are messages without a reply, are dropped and
//! counted.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use serde::Serialize;
use tokio::time::{Instant, sleep, sleep_until, timeout_at};

use super::envelope::{Envelope, Reply, code};
use super::hub::Hub;
use super::published::{ByteReservation, Permit, ServeError};
use super::sender::Sender;
use super::{DEFAULT_DEADLINE, Refusal, RemoteMessage, ScratchBuffer};
use crate::id::{Incarnation, NodeId, Peer};
use crate::net::{Class, SendError};
use crate::wire::{self, INLINE_MAX, Kind, WireError};

/// Maximum number of messages of one peer in flight.
pub const PEER_IN_FLIGHT_MAX: usize = 1024;

/// Maximum number of messages of one peer that wait for an earlier, longer one.
const HELD_MAX: usize = 1024;

/// Maximum bytes of these messages. A single longer message may wait as well.
const HELD_BYTES_MAX: usize = 4 << 20;

/// First pause before a reply is offered again to a full queue.
const RETRY: Duration = Duration::from_millis(1);
const RETRY_MAX: Duration = Duration::from_millis(256);

/// Longest effective deadline, because a longer one overflows the clock of some systems.
pub(super) const DEADLINE_MAX: Duration = Duration::from_secs(365 * 86_400);

/// The state of all peers that call.
#[derive(Default)]
pub(super) struct Callers(Mutex<BTreeMap<NodeId, Caller>>);

/// The state of one incarnation of a peer.
struct Caller {
    incarnation: Incarnation,
    link: Arc<CallerLink>,
    /// The last message to each actor that arrived as a bulk transfer.
    long: BTreeMap<String, u64>,
    /// By actor and message id: messages that wait, and the id of the message that each follows.
    held: BTreeMap<String, BTreeMap<u64, (u64, HeldMessage)>>,
    held_count: usize,
    held_bytes: usize,
}

/// A message that has arrived, not yet decoded.
#[derive(Clone)]
struct HeldMessage {
    kind: Kind,
    body: Bytes,
    arrived: Instant,
}

impl HeldMessage {
    fn envelope(&self) -> Result<Envelope<'_>, WireError> {
        wire::decode(self.kind, &self.body)
    }

    fn deadline(&self, envelope: &Envelope<'_>) -> Instant {
        deadline(envelope, self.arrived)
    }
}

/// A link to one incarnation of a peer. Replies go only to the link of their call, because another
/// incarnation may have used the same ids.
struct CallerLink {
    alive: AtomicBool,
    in_flight: Arc<AtomicUsize>,
}

impl Callers {
    fn with<R>(&self, peer: &Peer, f: impl FnOnce(&mut Caller) -> R) -> R {
        let mut callers = self.0.lock().unwrap_or_else(|e| e.into_inner());
        let caller = callers.entry(peer.node.clone()).or_insert_with(|| Caller::new(peer));
        if caller.incarnation != peer.incarnation {
            caller.link.alive.store(false, Ordering::Release);
            *caller = Caller::new(peer);
        }
        f(caller)
    }

    /// Discards the state of a peer whose link went down.
    pub(super) fn down(&self, node: &NodeId) {
        let mut callers = self.0.lock().unwrap_or_else(|e| e.into_inner());
        if let Some(caller) = callers.remove(node) {
            caller.link.alive.store(false, Ordering::Release);
        }
    }
}

impl Caller {
    fn new(peer: &Peer) -> Self {
        Self {
            incarnation: peer.incarnation,
            link: Arc::new(CallerLink { alive: AtomicBool::new(true), in_flight: Arc::default() }),
            long: BTreeMap::new(),
            held: BTreeMap::new(),
            held_count: 0,
            held_bytes: 0,
        }
    }

    fn has_received(&self, actor: &str, id: u64) -> bool {
        self.long.get(actor).is_some_and(|last| *last >= id)
    }

    /// Records the arrival of a message that was too long to travel inline.
    fn record_long(&mut self, actor: &str, id: u64) {
        match self.long.get_mut(actor) {
            Some(last) => *last = id.max(*last),
            None => {
                self.long.insert(actor.to_owned(), id);
            }
        }
    }

    /// Removes the first message to an actor that need not wait any more.
    fn next_ready(&mut self, actor: &str) -> Option<(u64, HeldMessage)> {
        let last = *self.long.get(actor)?;
        let id = *self.held.get(actor)?.iter().find(|(_, (after, _))| *after <= last)?.0;
        Some((id, self.take(actor, id)?))
    }

    fn take(&mut self, actor: &str, id: u64) -> Option<HeldMessage> {
        let held = self.held.get_mut(actor)?;
        let (_, message) = held.remove(&id)?;
        if held.is_empty() {
            self.held.remove(actor);
        }
        self.held_count -= 1;
        self.held_bytes -= message.body.len();
        Some(message)
    }
}

/// The right and the obligation to reply to a call.
pub(super) struct ReplyTicket {
    hub: Arc<Hub>,
    peer: NodeId,
    link: Arc<CallerLink>,
    id: u64,
    deadline: Instant,
    permits: Option<Permits>,
}

/// A message that is about to enter a mailbox.
pub(super) enum InboundMessage {
    Call(ReplyTicket),
    Tell(Permits),
}

/// The permits of a message in flight: one of its sender and one of its actor.
pub(super) struct Permits {
    _peer_permit: Permit,
    _actor_permit: Permit,
    /// The reservation of its bytes, held until its handler has ended.
    reservation: ByteReservation,
    /// Whether over half of the permits of either are taken. If so, the deadline releases the
    /// permits. Otherwise they wait for the handler, which saves a timer per message; handlers that
    /// never end then hold at most half of the permits.
    scarce: bool,
}

/// A handler's future reply, encoded. It is boxed so that the code below is compiled once, and not
/// for each type of message.
pub(super) type HandlerReply = Pin<Box<dyn Future<Output = Result<Bytes, Refusal>> + Send>>;

impl InboundMessage {
    /// Encodes a handler's result, for the reply to a call.
    pub(super) fn encoder<M: RemoteMessage>(&self) -> impl FnOnce(&M::Result) -> Bytes + use<M> {
        let call = match self {
            InboundMessage::Call(ticket) => Some(ticket.id),
            InboundMessage::Tell(_) => None,
        };
        move |result| call.map_or_else(Bytes::new, |id| encode_result(id, result))
    }

    /// Waits for the handler and sends its reply, if the message is a call.
    pub(super) async fn complete(self, mut answer: HandlerReply) {
        let (deadline, scarce) = match &self {
            InboundMessage::Call(ticket) => {
                (ticket.deadline, ticket.permits.as_ref().is_some_and(|p| p.scarce))
            }
            InboundMessage::Tell(permits) => (Instant::now() + DEFAULT_DEADLINE, permits.scarce),
        };
        // The rarely used branches are boxed to keep this future small.
        let answer = if scarce {
            match Box::pin(timeout_at(deadline, &mut answer)).await {
                Ok(answer) => answer,
                Err(_) => return Box::pin(self.await_late_handler(answer)).await,
            }
        } else {
            answer.await
        };
        let InboundMessage::Call(ticket) = self else { return };
        let frame = answer.unwrap_or_else(|why| encode_without_result(ticket.id, why.code(), &[]));
        if ticket.offer(&frame).is_err() {
            Box::pin(ticket.retry_offer(frame)).await;
        }
    }

    /// Releases the permits after the deadline, but keeps the byte reservation until the handler
    /// has ended.
    async fn await_late_handler(self, answer: HandlerReply) {
        let permits = match self {
            InboundMessage::Call(ReplyTicket { hub, permits, .. }) => {
                hub.count(|counters| &counters.answers_dropped);
                permits
            }
            InboundMessage::Tell(permits) => Some(permits),
        };
        let reservation = permits.map(|permits| permits.reservation);
        let _ = answer.await;
        drop(reservation);
    }
}

/// Encodes the reply to call `id` with a result, or with the reason why the result cannot be
/// encoded.
fn encode_result<T: Serialize>(id: u64, result: &T) -> Bytes {
    let mut body = ScratchBuffer::take();
    let encoded = wire::encode_into(&mut body.0, Kind::REPLY, result);
    encode_reply(id, encoded.map(|()| &body.0[..]))
}

fn encode_reply(id: u64, body: Result<&[u8], WireError>) -> Bytes {
    body.and_then(|body| encode(id, code::DONE, body)).unwrap_or_else(|error| match error {
        WireError::TooLong { len, cap, .. } => {
            let mut body = (len as u64).to_le_bytes().to_vec();
            body.extend_from_slice(&(cap as u64).to_le_bytes());
            encode_without_result(id, code::TOO_LONG, &body)
        }
        error => encode_without_result(id, code::VERSION, error.to_string().as_bytes()),
    })
}

/// Encodes a reply without a result.
fn encode_without_result(id: u64, code: u16, body: &[u8]) -> Bytes {
    encode(id, code, body).expect("two numbers and a few bytes encode and are under the cap")
}

fn encode(id: u64, code: u16, body: &[u8]) -> Result<Bytes, WireError> {
    let mut frame = Vec::with_capacity(body.len() + 32);
    wire::encode_into(&mut frame, Kind::REPLY, &Reply { id, code, body })?;
    Ok(frame.into())
}

impl ReplyTicket {
    /// Offers the reply to the network, unless it is late or the caller is gone. An error means
    /// that the queue is full.
    fn offer(&self, frame: &Bytes) -> Result<(), SendError> {
        if !self.link.alive.load(Ordering::Acquire) || Instant::now() > self.deadline {
            self.hub.count(|counters| &counters.answers_dropped);
            return Ok(());
        }
        let sent = self.hub.net.send(&self.peer, Class::Control, Kind::REPLY, frame.clone());
        match sent {
            Err(error @ SendError::Full(_)) => Err(error),
            Err(_) => {
                self.hub.count(|counters| &counters.answers_dropped);
                Ok(())
            }
            Ok(()) => Ok(()),
        }
    }

    /// Offers the reply repeatedly while the queue is full.
    async fn retry_offer(self, frame: Bytes) {
        let mut pause = RETRY;
        loop {
            sleep(pause).await;
            pause = (pause * 2).min(RETRY_MAX);
            if self.offer(&frame).is_ok() {
                return;
            }
        }
    }

    /// Replies without a result: immediately if the network accepts it, else in the background.
    fn refuse(self, code: u16, body: &[u8]) {
        self.hub.count(|counters| &counters.refused_in);
        let frame = encode_without_result(self.id, code, body);
        if self.offer(&frame).is_err() {
            tokio::spawn(self.retry_offer(frame));
        }
    }
}

impl Hub {
    /// Receives a call or a tell, on the endpoint's thread.
    pub(super) fn receive(self: &Arc<Self>, from: &Peer, kind: Kind, body: Bytes) {
        let message = HeldMessage { kind, body, arrived: Instant::now() };
        let envelope = match message.envelope() {
            Ok(envelope) => envelope,
            Err(error) => {
                self.count(|counters| &counters.malformed);
                return self
                    .net
                    .report_violation(from, &format!("a malformed message to an actor: {error}"));
            }
        };
        self.count(|counters| match envelope.deadline_ms {
            Some(_) => &counters.calls_in,
            None => &counters.tells_in,
        });
        if let Some(after) = envelope.after
            && self.directory.get(envelope.actor).is_some()
            && !self.callers.with(from, |caller| caller.has_received(envelope.actor, after))
        {
            return self.hold(from, after, &envelope, message.clone());
        }
        self.serve(from, &envelope, &message);
    }

    /// Holds a message until its predecessor has arrived or its deadline has passed.
    fn hold(
        self: &Arc<Self>,
        from: &Peer,
        after: u64,
        envelope: &Envelope<'_>,
        message: HeldMessage,
    ) {
        let (id, actor) = (envelope.id, envelope.actor.to_owned());
        let held = self.callers.with(from, |caller| {
            let len = message.body.len();
            let fits = caller.held_bytes == 0 || caller.held_bytes + len <= HELD_BYTES_MAX;
            let room = fits && caller.held_count < HELD_MAX;
            if room {
                caller.held_count += 1;
                caller.held_bytes += len;
                let held = caller.held.entry(actor.clone()).or_default();
                held.insert(id, (after, message.clone()));
            }
            room
        });
        if !held {
            return self.refuse(from, envelope, message.arrived, code::BUSY, &[]);
        }
        let (hub, from, deadline) = (Arc::clone(self), from.clone(), message.deadline(envelope));
        tokio::spawn(async move {
            sleep_until(deadline).await;
            let late = hub.callers.with(&from, |caller| caller.take(&actor, id));
            if late.is_some() {
                // The preceding message is lost or late, so this one would be out of order.
                hub.count(|counters| &counters.late_in);
            }
        });
    }

    /// Delivers a message to its actor, then the messages that waited for it.
    fn serve(self: &Arc<Self>, from: &Peer, envelope: &Envelope<'_>, message: &HeldMessage) {
        self.deliver(from, envelope, message.arrived);
        if message.body.len() <= INLINE_MAX || self.directory.get(envelope.actor).is_none() {
            return;
        }
        self.callers.with(from, |caller| caller.record_long(envelope.actor, envelope.id));
        while let Some((id, held)) =
            self.callers.with(from, |caller| caller.next_ready(envelope.actor))
        {
            if let Ok(envelope) = held.envelope() {
                self.deliver(from, &envelope, held.arrived);
                if held.body.len() > INLINE_MAX {
                    self.callers.with(from, |caller| caller.record_long(envelope.actor, id));
                }
            }
        }
    }

    fn deliver(self: &Arc<Self>, from: &Peer, envelope: &Envelope<'_>, arrived: Instant) {
        let refuse = |code, body: &[u8]| self.refuse(from, envelope, arrived, code, body);
        let Some(entry) = self.directory.get(envelope.actor) else {
            return refuse(code::NO_ACTOR, &[]);
        };
        let Some(accept) = entry.get(envelope.message) else {
            return refuse(code::NOT_ACCEPTED, &[]);
        };
        let link = self.callers.with(from, |caller| Arc::clone(&caller.link));
        let permits = Permit::take(&link.in_flight, PEER_IN_FLIGHT_MAX).zip(entry.permit().ok());
        let permits = permits.zip(entry.reserve(envelope.body.len()));
        let Some(((peer, actor), reservation)) = permits else { return refuse(code::BUSY, &[]) };
        let scarce = peer.scarce || actor.scarce;
        let permits = Permits { _peer_permit: peer, _actor_permit: actor, reservation, scarce };
        let deadline = deadline(envelope, arrived);
        if deadline <= Instant::now() {
            return self.count(|counters| &counters.late_in);
        }
        let job = match envelope.deadline_ms {
            Some(_) => InboundMessage::Call(ReplyTicket {
                hub: Arc::clone(self),
                peer: from.node.clone(),
                link,
                id: envelope.id,
                deadline,
                permits: Some(permits),
            }),
            None => InboundMessage::Tell(permits),
        };
        let sender = Sender { peer: from, role: self.net.role(&from.node) };
        match accept.serve(self, &sender, envelope.body, job) {
            Ok(()) => {}
            Err(ServeError::Wire(error)) => refuse(code::VERSION, error.to_string().as_bytes()),
            Err(ServeError::Refused(why)) => refuse(why.code(), &[]),
        }
    }

    /// Replies to a call with a refusal; drops and counts a tell.
    fn refuse(
        self: &Arc<Self>,
        from: &Peer,
        envelope: &Envelope<'_>,
        arrived: Instant,
        code: u16,
        body: &[u8],
    ) {
        if envelope.deadline_ms.is_none() {
            tracing::debug!(
                peer = %from,
                actor = envelope.actor,
                message = envelope.message,
                code,
                "a tell is dropped"
            );
            return self.count(|counters| &counters.tells_dropped);
        }
        let ticket = ReplyTicket {
            hub: Arc::clone(self),
            peer: from.node.clone(),
            link: self.callers.with(from, |caller| Arc::clone(&caller.link)),
            id: envelope.id,
            deadline: deadline(envelope, arrived),
            permits: None,
        };
        ticket.refuse(code, body);
    }
}

fn deadline(envelope: &Envelope<'_>, arrived: Instant) -> Instant {
    let wait = envelope.deadline_ms.map_or(DEFAULT_DEADLINE, Duration::from_millis);
    arrived + wait.min(DEADLINE_MAX)
}
