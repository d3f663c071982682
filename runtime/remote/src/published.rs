//! Published actors by name, and the typed path from a message to an actor's mailbox.
//!
//! It knows actix's mailboxes, but not the network. All functions may be called from any thread.
//!
//! Bounds: actix's mailbox counts are not visible from outside. A full mailbox makes `Addr::send`
//! return the message into a future that is not woken again. Each clone of an `Addr` may pass one
//! message over the limit (actix#329). This module therefore bounds remote messages itself. A
//! message holds a permit of its actor from its entry into the mailbox until its handler has
//! replied or its deadline has passed. A fresh clone of the address delivers it, which accepts it
//! immediately and in order. Its bytes are reserved until the handler has ended, regardless of the
//! deadline.

use std::any::Any;
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, RwLock, RwLockReadGuard, Weak};

use actix::dev::ToEnvelope;
use actix::{Actor, Addr, Handler};

use super::callee::InboundMessage;
use super::error::Refusal;
use super::hub::Hub;
use super::message::RemoteMessage;
use super::sender::{MessageOrigin, Sender, SenderCheck};
use crate::wire::{self, Kind, WireError};

/// Maximum number of messages of all callers in flight to one published actor.
pub const ACTOR_IN_FLIGHT_MAX: usize = 4096;

/// Maximum bytes of messages of all callers that wait in one published actor's mailbox or are being
/// handled.
///
/// Each message counts 1 KiB on top of its length, and at most [`MESSAGE_WEIGHT_MAX`]. Unlike
/// permits, which a deadline releases, bytes stay reserved until the handler has ended. Otherwise
/// an actor that handles nothing would accumulate messages without limit.
pub const ACTOR_BYTES_MAX: usize = 16 << 20;

/// Maximum bytes that one message counts, so that a message of any length is accepted, and others
/// at the same time.
pub const MESSAGE_WEIGHT_MAX: usize = 1 << 20;

/// Memory of a message beyond its own bytes: its envelope in the mailbox and the task that waits
/// for its handler.
const MESSAGE_OVERHEAD: usize = 1 << 10;

/// All published actors of a node, by name.
#[derive(Default)]
pub(super) struct Directory {
    actors: RwLock<BTreeMap<String, Arc<PublishedActor>>>,
}

impl Directory {
    pub(super) fn insert(&self, name: &str) -> Arc<PublishedActor> {
        let entry = Arc::new(PublishedActor::default());
        let mut actors = self.actors.write().unwrap_or_else(|e| e.into_inner());
        actors.insert(name.to_owned(), Arc::clone(&entry));
        entry
    }

    pub(super) fn remove(&self, name: &str) -> bool {
        self.actors.write().unwrap_or_else(|e| e.into_inner()).remove(name).is_some()
    }

    /// Removes the name if it still belongs to this entry.
    pub(super) fn remove_entry(&self, name: &str, entry: &Weak<PublishedActor>) -> bool {
        let mut actors = self.actors.write().unwrap_or_else(|e| e.into_inner());
        let same =
            actors.get(name).is_some_and(|known| Weak::ptr_eq(&Arc::downgrade(known), entry));
        same && actors.remove(name).is_some()
    }

    pub(super) fn clear(&self) {
        self.actors.write().unwrap_or_else(|e| e.into_inner()).clear();
    }

    pub(super) fn get(&self, name: &str) -> Option<Arc<PublishedActor>> {
        self.actors.read().unwrap_or_else(|e| e.into_inner()).get(name).cloned()
    }
}

/// One published actor.
#[derive(Default)]
pub(super) struct PublishedActor {
    accepted: RwLock<BTreeMap<&'static str, Arc<dyn Acceptor>>>,
    in_flight: Arc<AtomicUsize>,
    /// Reserved bytes of messages in the mailbox or being handled.
    reserved: Arc<AtomicUsize>,
}

impl PublishedActor {
    fn read(&self) -> RwLockReadGuard<'_, BTreeMap<&'static str, Arc<dyn Acceptor>>> {
        self.accepted.read().unwrap_or_else(|e| e.into_inner())
    }

    pub(super) fn get(&self, message: &str) -> Option<Arc<dyn Acceptor>> {
        self.read().get(message).cloned()
    }

    pub(super) fn names(&self) -> Vec<&'static str> {
        self.read().keys().copied().collect()
    }

    /// Takes a permit for a message in flight.
    pub(super) fn permit(&self) -> Result<Permit, Refusal> {
        Permit::take(&self.in_flight, ACTOR_IN_FLIGHT_MAX).ok_or(Refusal::Busy)
    }

    /// Reserves bytes for a message of this length.
    pub(super) fn reserve(&self, len: usize) -> Option<ByteReservation> {
        let bytes = len.saturating_add(MESSAGE_OVERHEAD).min(MESSAGE_WEIGHT_MAX);
        let fits = |reserved: usize| Some(reserved + bytes).filter(|sum| *sum <= ACTOR_BYTES_MAX);
        let taken = self.reserved.fetch_update(Ordering::AcqRel, Ordering::Acquire, fits);
        taken.ok().map(|_| ByteReservation { reserved: Arc::clone(&self.reserved), bytes })
    }
}

/// One of a bounded number of permits, released on drop.
pub(super) struct Permit {
    count: Arc<AtomicUsize>,
    /// Whether over half of the permits were taken at that time.
    pub(super) scarce: bool,
}

impl Permit {
    pub(super) fn take(count: &Arc<AtomicUsize>, max: usize) -> Option<Permit> {
        let taken =
            count.fetch_update(Ordering::AcqRel, Ordering::Acquire, |n| (n < max).then_some(n + 1));
        taken.ok().map(|n| Permit { count: Arc::clone(count), scarce: n > max / 2 })
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.count.fetch_sub(1, Ordering::AcqRel);
    }
}

/// The bytes of a message that count towards [`ACTOR_BYTES_MAX`], released on drop.
pub(super) struct ByteReservation {
    reserved: Arc<AtomicUsize>,
    bytes: usize,
}

impl Drop for ByteReservation {
    fn drop(&mut self) {
        self.reserved.fetch_sub(self.bytes, Ordering::AcqRel);
    }
}

/// A message type that a published actor accepts, with its type erased.
pub(super) trait Acceptor: Send + Sync {
    fn as_any(&self) -> &dyn Any;

    /// Decodes a message of another node, checks its sender and puts it into the mailbox, inside a
    /// tokio runtime.
    fn serve(
        &self,
        hub: &Arc<Hub>,
        from: &Sender<'_>,
        body: &[u8],
        job: InboundMessage,
    ) -> Result<(), ServeError>;
}

/// The reason why a message did not enter the mailbox.
pub(super) enum ServeError {
    Wire(WireError),
    Refused(Refusal),
}

/// A message from another node with its origin, for an actor that checks the sender when it handles
/// the message.
///
/// See [`Published::accepts_judged`]. A handler that refuses the message calls
/// [`ReceivedMessage::refuse`] and drops its reply.
pub struct ReceivedMessage<M> {
    /// Sender of the message.
    pub from: MessageOrigin,
    /// The message after decoding.
    pub message: M,
    verdict: JudgedMessage,
}

impl<M: actix::Message> actix::Message for ReceivedMessage<M> {
    type Result = M::Result;
}

impl<M> ReceivedMessage<M> {
    /// Refuses the message. The sender receives this reason after the handler has dropped its
    /// reply.
    pub fn refuse(self, why: Refusal) {
        // Sets the reason once, because this consumes the message.
        let _ = self.verdict.0.set(why);
    }
}

#[derive(Clone, Default)]
struct JudgedMessage(Arc<OnceLock<Refusal>>);

impl JudgedMessage {
    /// The reason why the handler dropped its reply. A refusal is recorded.
    fn refusal(&self, hub: &Hub, from: &MessageOrigin, message: &'static str) -> Refusal {
        let Some(why) = self.0.get() else { return Refusal::Stopped };
        hub.record_refusal(from, message, *why);
        *why
    }
}

/// An acceptor with the message's type, but with the actor's type erased.
pub(super) struct TypedAcceptor<M: RemoteMessage> {
    mailbox: Box<dyn Deliver<M>>,
    judge: Option<SenderCheck<M>>,
}

trait Deliver<M: RemoteMessage>: Send + Sync {
    fn deliver(&self, message: M) -> LocalReply<M>;
    fn serve(&self, hub: &Arc<Hub>, from: &Sender<'_>, message: M, job: InboundMessage);
}

/// The future reply of a local actor.
pub(super) type LocalReply<M> =
    Pin<Box<dyn Future<Output = Result<<M as actix::Message>::Result, Refusal>> + Send>>;

impl<M: RemoteMessage> TypedAcceptor<M> {
    /// Puts the message into the mailbox, immediately and in order.
    pub(super) fn deliver(&self, message: M) -> LocalReply<M> {
        self.mailbox.deliver(message)
    }
}

impl<M: RemoteMessage> Acceptor for TypedAcceptor<M> {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn serve(
        &self,
        hub: &Arc<Hub>,
        from: &Sender<'_>,
        body: &[u8],
        job: InboundMessage,
    ) -> Result<(), ServeError> {
        let message = wire::decode::<M>(Kind::CALL, body).map_err(ServeError::Wire)?;
        if let Some(judge) = self.judge
            && let Err(why) = judge(from, &message)
        {
            hub.record_refusal(&MessageOrigin::of(from), M::NAME, why);
            return Err(ServeError::Refused(why));
        }
        self.mailbox.serve(hub, from, message, job);
        Ok(())
    }
}

struct Mailbox<A: Actor>(Addr<A>);

impl<A, M> Deliver<M> for Mailbox<A>
where
    A: Actor + Handler<M>,
    A::Context: ToEnvelope<A, M>,
    M: RemoteMessage,
{
    fn deliver(&self, message: M) -> LocalReply<M> {
        // A fresh clone: see the bounds in the module's documentation.
        let request = self.0.clone().send(message);
        Box::pin(async move { request.await.map_err(|_| Refusal::Stopped) })
    }

    fn serve(&self, _: &Arc<Hub>, _: &Sender<'_>, message: M, job: InboundMessage) {
        let request = self.0.clone().send(message);
        // The endpoint's thread need not be inside a `LocalSet`, so `spawn_local` is not possible.
        let encode = job.encoder::<M>();
        tokio::spawn(job.complete(Box::pin(async move {
            request.await.map(|result| encode(&result)).map_err(|_| Refusal::Stopped)
        })));
    }
}

/// The mailbox of an actor that checks the senders of remote messages itself.
struct JudgedMailbox<A: Actor>(Addr<A>);

impl<A, M> Deliver<M> for JudgedMailbox<A>
where
    A: Actor + Handler<M> + Handler<ReceivedMessage<M>>,
    A::Context: ToEnvelope<A, M> + ToEnvelope<A, ReceivedMessage<M>>,
    M: RemoteMessage,
{
    fn deliver(&self, message: M) -> LocalReply<M> {
        let request = self.0.clone().send(message);
        Box::pin(async move { request.await.map_err(|_| Refusal::Stopped) })
    }

    fn serve(&self, hub: &Arc<Hub>, from: &Sender<'_>, message: M, job: InboundMessage) {
        let (origin, verdict) = (MessageOrigin::of(from), JudgedMessage::default());
        let received = ReceivedMessage { from: origin.clone(), message, verdict: verdict.clone() };
        let (request, hub) = (self.0.clone().send(received), Arc::clone(hub));
        let encode = job.encoder::<M>();
        tokio::spawn(job.complete(Box::pin(async move {
            let result = request.await.map(|result| encode(&result));
            result.map_err(|_| verdict.refusal(&hub, &origin, M::NAME))
        })));
    }
}

/// One publication of an actor. A later actor under the same name is another publication.
#[derive(Clone)]
pub struct Publication {
    pub(super) name: String,
    pub(super) entry: Weak<PublishedActor>,
}

/// A published actor, for the declaration of the messages that it accepts. Dropping it has no
/// effect.
pub struct Published<A: Actor> {
    name: String,
    entry: Arc<PublishedActor>,
    addr: Addr<A>,
}

impl<A: Actor> Published<A> {
    pub(super) fn new(name: &str, entry: Arc<PublishedActor>, addr: Addr<A>) -> Self {
        Self { name: name.to_owned(), entry, addr }
    }

    /// Identifies this publication, to [retract](super::Hub::retract) it.
    pub fn publication(&self) -> Publication {
        Publication { name: self.name.clone(), entry: Arc::downgrade(&self.entry) }
    }

    /// Accepts `M` from other nodes with any role.
    pub fn accepts<M>(self) -> Self
    where
        A: Handler<M>,
        A::Context: ToEnvelope<A, M>,
        M: RemoteMessage,
    {
        let mailbox = Box::new(Mailbox(self.addr.clone()));
        self.accept::<M>(mailbox, None)
    }

    /// Accepts `M` from other nodes; the actor checks each sender when it handles the message, in
    /// mailbox order. Local messages reach the actor as `M`.
    pub fn accepts_judged<M>(self) -> Self
    where
        A: Handler<M> + Handler<ReceivedMessage<M>>,
        A::Context: ToEnvelope<A, M> + ToEnvelope<A, ReceivedMessage<M>>,
        M: RemoteMessage,
    {
        let mailbox = Box::new(JudgedMailbox(self.addr.clone()));
        self.accept::<M>(mailbox, None)
    }

    /// Accepts `M` from the nodes that `judge` admits. `judge` runs on the endpoint's thread,
    /// before the mailbox; local messages are not checked.
    pub fn accepts_from<M>(self, judge: SenderCheck<M>) -> Self
    where
        A: Handler<M>,
        A::Context: ToEnvelope<A, M>,
        M: RemoteMessage,
    {
        let mailbox = Box::new(Mailbox(self.addr.clone()));
        self.accept::<M>(mailbox, Some(judge))
    }

    fn accept<M>(self, mailbox: Box<dyn Deliver<M>>, judge: Option<SenderCheck<M>>) -> Self
    where
        M: RemoteMessage,
    {
        let typed = TypedAcceptor::<M> { mailbox, judge };
        let mut accepted = self.entry.accepted.write().unwrap_or_else(|e| e.into_inner());
        accepted.insert(M::NAME, Arc::new(typed));
        drop(accepted);
        self
    }
}
