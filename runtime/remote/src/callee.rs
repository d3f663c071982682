//! The callee's side: messages from other nodes on their way to a mailbox, and answers on their way back.
//!
//! Bounds: calls in hand per peer ([`PEER_IN_FLIGHT_MAX`]) and per actor, by number and by bytes; messages that wait for an earlier,
//! longer one ([`HELD_MAX`], [`HELD_BYTES_MAX`]). What is over them is refused (calls) or dropped and counted (tells).

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use tokio::time::{Instant, sleep, sleep_until, timeout_at};

use super::envelope::{Envelope, Reply, code};
use super::hub::Hub;
use super::published::{Place, Sender, Unserved, Weight};
use super::{DEFAULT_DEADLINE, Refusal, RemoteMessage};
use crate::id::{Incarnation, NodeId, Peer};
use crate::net::{Class, SendError};
use crate::wire::{self, INLINE_MAX, Kind, WireError};

/// Messages of one peer that may be in hand at once.
pub const PEER_IN_FLIGHT_MAX: usize = 1024;

/// Messages of one peer that may wait for an earlier, longer one.
const HELD_MAX: usize = 1024;

/// Their bytes; a longer one is held when nothing else is.
const HELD_BYTES_MAX: usize = 4 << 20;

/// First pause before an answer is offered again to a full queue.
const RETRY: Duration = Duration::from_millis(1);
const RETRY_MAX: Duration = Duration::from_millis(256);

/// Longest deadline that counts: more does not fit the clock on every system.
pub(super) const FOREVER: Duration = Duration::from_secs(365 * 86_400);

/// What is remembered of the peers that call.
#[derive(Default)]
pub(super) struct Callers(Mutex<BTreeMap<NodeId, Caller>>);

/// A peer over one life of the link to it.
struct Caller {
    incarnation: Incarnation,
    link: Arc<Link>,
    /// By actor: the last message that came as a bulk transfer, and what waits for one (by id: that it waits for, and
    /// itself).
    long: BTreeMap<String, u64>,
    held: BTreeMap<String, BTreeMap<u64, (u64, Held)>>,
    held_count: usize,
    held_bytes: usize,
}

/// A message as it came.
#[derive(Clone)]
struct Held {
    kind: Kind,
    body: Bytes,
    arrived: Instant,
}

impl Held {
    fn envelope(&self) -> Result<Envelope<'_>, WireError> {
        wire::decode(self.kind, &self.body)
    }

    fn deadline(&self, envelope: &Envelope<'_>) -> Instant {
        deadline(envelope, self.arrived)
    }
}

/// One life of a link to a peer: answers to calls that came over it go nowhere else, for another life of the peer may
/// have given the same ids.
struct Link {
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

    /// The link went down.
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
            link: Arc::new(Link { alive: AtomicBool::new(true), in_flight: Arc::default() }),
            long: BTreeMap::new(),
            held: BTreeMap::new(),
            held_count: 0,
            held_bytes: 0,
        }
    }

    fn has(&self, actor: &str, id: u64) -> bool {
        self.long.get(actor).is_some_and(|last| *last >= id)
    }

    /// A message came that was too long to travel in line.
    fn came(&mut self, actor: &str, id: u64) {
        match self.long.get_mut(actor) {
            Some(last) => *last = id.max(*last),
            None => {
                self.long.insert(actor.to_owned(), id);
            }
        }
    }

    /// Takes out the first message of an actor's that need not wait any more.
    fn next(&mut self, actor: &str) -> Option<(u64, Held)> {
        let last = *self.long.get(actor)?;
        let id = *self.held.get(actor)?.iter().find(|(_, (after, _))| *after <= last)?.0;
        Some((id, self.take(actor, id)?))
    }

    fn take(&mut self, actor: &str, id: u64) -> Option<Held> {
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

/// The right, and the duty, to answer a call.
pub(super) struct Ticket {
    hub: Arc<Hub>,
    peer: NodeId,
    link: Arc<Link>,
    id: u64,
    deadline: Instant,
    places: Option<Places>,
}

/// A message on its way into a mailbox.
pub(super) enum Job {
    Call(Ticket),
    Tell(Places),
}

/// What a message in hand occupies: a place of its sender's and one of its actor's.
pub(super) struct Places {
    _peer: Place,
    _actor: Place,
    /// Its bytes, which stay its own until its handler has ended.
    weight: Weight,
    /// Over half of either are taken: a place is to be given back when the deadline has passed. Else it may wait for the
    /// handler, which saves a timer a message; handlers that never end then hold half of the places at most.
    scarce: bool,
}

impl Job {
    /// Waits for the handler and answers, if an answer is wanted.
    pub(super) async fn settle<M: RemoteMessage>(
        self,
        answer: impl Future<Output = Result<M::Result, Refusal>>,
    ) {
        let (deadline, scarce) = match &self {
            Job::Call(ticket) => {
                (ticket.deadline, ticket.places.as_ref().is_some_and(|p| p.scarce))
            }
            Job::Tell(places) => (Instant::now() + DEFAULT_DEADLINE, places.scarce),
        };
        // What is rarely needed is boxed, so that this future stays small.
        let answer = match scarce {
            true => {
                let mut answer = Box::pin(answer);
                match Box::pin(timeout_at(deadline, &mut answer)).await {
                    Ok(answer) => answer,
                    Err(_) => return self.outlive(answer).await,
                }
            }
            false => answer.await,
        };
        let Job::Call(ticket) = self else { return };
        let frame = match answer {
            Ok(result) => ticket.result::<M>(&result),
            Err(why) => ticket.plain(why.code(), &[]),
        };
        if ticket.offer(&frame).is_err() {
            Box::pin(ticket.insist(frame)).await;
        }
    }

    /// Its deadline has passed: its places are others', but what it holds in the mailbox is there until its handler has ended.
    async fn outlive<T>(self, answer: impl Future<Output = T>) {
        let places = match self {
            Job::Call(Ticket { hub, places, .. }) => {
                hub.count(|counters| &counters.answers_dropped);
                places
            }
            Job::Tell(places) => Some(places),
        };
        let weight = places.map(|places| places.weight);
        let _ = answer.await;
        drop(weight);
    }
}

impl Ticket {
    /// The answer with a result, or with the reason why there is none.
    fn result<M: RemoteMessage>(&self, result: &M::Result) -> Bytes {
        let encoded = super::scratch(|body| {
            wire::encode_into(body, Kind::REPLY, result)?;
            self.encode(code::DONE, body)
        });
        encoded.unwrap_or_else(|error| match error {
            WireError::TooLong { len, cap, .. } => {
                let mut body = (len as u64).to_le_bytes().to_vec();
                body.extend_from_slice(&(cap as u64).to_le_bytes());
                self.plain(code::TOO_LONG, &body)
            }
            error => self.plain(code::VERSION, error.to_string().as_bytes()),
        })
    }

    /// The answer without a result.
    fn plain(&self, code: u16, body: &[u8]) -> Bytes {
        self.encode(code, body).expect("two numbers and a few bytes encode and are under the cap")
    }

    fn encode(&self, code: u16, body: &[u8]) -> Result<Bytes, WireError> {
        let mut frame = Vec::with_capacity(body.len() + 32);
        wire::encode_into(&mut frame, Kind::REPLY, &Reply { id: self.id, code, body })?;
        Ok(frame.into())
    }

    /// Offers the answer to the network, unless it is late or its caller is gone. An error: the queue is full.
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

    /// Offers the answer again and again to a queue that is full.
    async fn insist(self, frame: Bytes) {
        let mut pause = RETRY;
        loop {
            sleep(pause).await;
            pause = (pause * 2).min(RETRY_MAX);
            if self.offer(&frame).is_ok() {
                return;
            }
        }
    }

    /// Answers without a result: at once when the network takes it, else in the background.
    fn refuse(self, code: u16, body: &[u8]) {
        self.hub.count(|counters| &counters.refused_in);
        let frame = self.plain(code, body);
        if self.offer(&frame).is_err() {
            tokio::spawn(self.insist(frame));
        }
    }
}

impl Hub {
    /// Takes in a call or a tell. On the endpoint's thread.
    pub(super) fn incoming(self: &Arc<Self>, from: &Peer, kind: Kind, body: Bytes) {
        let message = Held { kind, body, arrived: Instant::now() };
        let envelope = match message.envelope() {
            Ok(envelope) => envelope,
            Err(error) => {
                self.count(|counters| &counters.malformed);
                return self.net.breach(from, &format!("a message to an actor: {error}"));
            }
        };
        self.count(|counters| match envelope.deadline_ms {
            Some(_) => &counters.calls_in,
            None => &counters.tells_in,
        });
        if let Some(after) = envelope.after
            && self.directory.get(envelope.actor).is_some()
            && !self.callers.with(from, |caller| caller.has(envelope.actor, after))
        {
            return self.hold(from, after, &envelope, message.clone());
        }
        self.serve(from, &envelope, &message);
    }

    /// Keeps a message until the one that it follows has come, or its deadline has passed.
    fn hold(self: &Arc<Self>, from: &Peer, after: u64, envelope: &Envelope<'_>, message: Held) {
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
                // The message before it is lost or late; without it this one would come out of order.
                hub.count(|counters| &counters.late_in);
            }
        });
    }

    /// Hands a message to its actor, and then those that waited for it.
    fn serve(self: &Arc<Self>, from: &Peer, envelope: &Envelope<'_>, message: &Held) {
        self.hand_over(from, envelope, message.arrived);
        if message.body.len() <= INLINE_MAX || self.directory.get(envelope.actor).is_none() {
            return;
        }
        self.callers.with(from, |caller| caller.came(envelope.actor, envelope.id));
        while let Some((id, next)) = self.callers.with(from, |caller| caller.next(envelope.actor)) {
            if let Ok(envelope) = next.envelope() {
                self.hand_over(from, &envelope, next.arrived);
                if next.body.len() > INLINE_MAX {
                    self.callers.with(from, |caller| caller.came(envelope.actor, id));
                }
            }
        }
    }

    fn hand_over(self: &Arc<Self>, from: &Peer, envelope: &Envelope<'_>, arrived: Instant) {
        let refuse = |code, body: &[u8]| self.refuse(from, envelope, arrived, code, body);
        let Some(entry) = self.directory.get(envelope.actor) else {
            return refuse(code::NO_ACTOR, &[]);
        };
        let Some(accept) = entry.get(envelope.message) else {
            return refuse(code::NOT_ACCEPTED, &[]);
        };
        let link = self.callers.with(from, |caller| Arc::clone(&caller.link));
        let places = Place::take(&link.in_flight, PEER_IN_FLIGHT_MAX).zip(entry.place().ok());
        let places = places.zip(entry.weight(envelope.body.len()));
        let Some(((peer, actor), weight)) = places else { return refuse(code::BUSY, &[]) };
        let scarce = peer.scarce || actor.scarce;
        let places = Places { _peer: peer, _actor: actor, weight, scarce };
        let deadline = deadline(envelope, arrived);
        if deadline <= Instant::now() {
            return self.count(|counters| &counters.late_in);
        }
        let job = match envelope.deadline_ms {
            Some(_) => Job::Call(Ticket {
                hub: Arc::clone(self),
                peer: from.node.clone(),
                link,
                id: envelope.id,
                deadline,
                places: Some(places),
            }),
            None => Job::Tell(places),
        };
        let sender = Sender { peer: from, role: self.net.role(&from.node) };
        match accept.serve(self, &sender, envelope.body, job) {
            Ok(()) => {}
            Err(Unserved::Wire(error)) => refuse(code::VERSION, error.to_string().as_bytes()),
            Err(Unserved::Refused(why)) => refuse(why.code(), &[]),
        }
    }

    /// Answers a call without a result; counts a tell.
    fn refuse(
        self: &Arc<Self>,
        from: &Peer,
        envelope: &Envelope<'_>,
        arrived: Instant,
        code: u16,
        body: &[u8],
    ) {
        if envelope.deadline_ms.is_none() {
            tracing::debug!(peer = %from, actor = envelope.actor, message = envelope.message, code, "a tell is dropped");
            return self.count(|counters| &counters.tells_dropped);
        }
        let ticket = Ticket {
            hub: Arc::clone(self),
            peer: from.node.clone(),
            link: self.callers.with(from, |caller| Arc::clone(&caller.link)),
            id: envelope.id,
            deadline: deadline(envelope, arrived),
            places: None,
        };
        ticket.refuse(code, body);
    }
}

fn deadline(envelope: &Envelope<'_>, arrived: Instant) -> Instant {
    let wait = envelope.deadline_ms.map_or(DEFAULT_DEADLINE, Duration::from_millis);
    arrived + wait.min(FOREVER)
}
