//! Actors under their published names, and the typed way from a message to an actor's mailbox.
//!
//! Knows actix's mailboxes; must not know the network. Everything here is called from any thread.
//!
//! On bounds. actix's mailbox counts are not visible from outside, a full mailbox makes `Addr::send` hand the message
//! back into a future that is not woken again, and each clone of an `Addr` may pass one message over the limit
//! (actix#329). So the bound on remote messages is kept here: a message occupies a place of its actor from the moment it
//! is put into the mailbox until its handler has answered or its deadline has passed, and is put there through a fresh
//! clone of the address, which takes it at once and in order. Its bytes are counted until the handler has answered, deadline or not.

use std::any::Any;
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, RwLock, RwLockReadGuard, Weak};

use actix::dev::ToEnvelope;
use actix::{Actor, Addr, Handler};

use super::callee::Job;
use super::error::Refusal;
use super::hub::Hub;
use super::message::RemoteMessage;
use crate::id::Peer;
use crate::net::tls::Role;
use crate::wire::{self, Kind, WireError};

/// Messages of all callers together that one published actor may have in hand.
pub const ACTOR_IN_FLIGHT_MAX: usize = 4096;

/// Bytes of messages of all callers together that wait in one published actor's mailbox or are being handled there: 1 KiB each on
/// top of its own, and none counts as more than [`MESSAGE_WEIGHT_MAX`]. Unlike places, which are given back when a deadline has passed,
/// these are the message's until its handler has ended: an actor that handles nothing would else be sent into memory without end.
pub const ACTOR_BYTES_MAX: usize = 16 << 20;

/// What a long message counts as at most, so that one of any length is taken, and others beside it.
pub const MESSAGE_WEIGHT_MAX: usize = 1 << 20;

/// What a message takes beside its own bytes: its envelope in the mailbox and the task that waits for its handler.
const MESSAGE_OVERHEAD: usize = 1 << 10;

/// All published actors of a node.
#[derive(Default)]
pub(super) struct Directory {
    actors: RwLock<BTreeMap<String, Arc<Entry>>>,
}

impl Directory {
    pub(super) fn insert(&self, name: &str) -> Arc<Entry> {
        let entry = Arc::new(Entry::default());
        let mut actors = self.actors.write().unwrap_or_else(|e| e.into_inner());
        actors.insert(name.to_owned(), Arc::clone(&entry));
        entry
    }

    pub(super) fn remove(&self, name: &str) -> bool {
        self.actors.write().unwrap_or_else(|e| e.into_inner()).remove(name).is_some()
    }

    /// Removes the name if it still belongs to this entry.
    pub(super) fn remove_entry(&self, name: &str, entry: &Weak<Entry>) -> bool {
        let mut actors = self.actors.write().unwrap_or_else(|e| e.into_inner());
        let same =
            actors.get(name).is_some_and(|known| Weak::ptr_eq(&Arc::downgrade(known), entry));
        same && actors.remove(name).is_some()
    }

    pub(super) fn clear(&self) {
        self.actors.write().unwrap_or_else(|e| e.into_inner()).clear();
    }

    pub(super) fn get(&self, name: &str) -> Option<Arc<Entry>> {
        self.actors.read().unwrap_or_else(|e| e.into_inner()).get(name).cloned()
    }
}

/// One published actor.
#[derive(Default)]
pub(super) struct Entry {
    accepted: RwLock<BTreeMap<&'static str, Arc<dyn Accept>>>,
    in_flight: Arc<AtomicUsize>,
    /// Bytes of messages in the mailbox or being handled.
    held: Arc<AtomicUsize>,
}

impl Entry {
    fn read(&self) -> RwLockReadGuard<'_, BTreeMap<&'static str, Arc<dyn Accept>>> {
        self.accepted.read().unwrap_or_else(|e| e.into_inner())
    }

    pub(super) fn get(&self, message: &str) -> Option<Arc<dyn Accept>> {
        self.read().get(message).cloned()
    }

    pub(super) fn names(&self) -> Vec<&'static str> {
        self.read().keys().copied().collect()
    }

    /// A place among the messages the actor has in hand.
    pub(super) fn place(&self) -> Result<Place, Refusal> {
        Place::take(&self.in_flight, ACTOR_IN_FLIGHT_MAX).ok_or(Refusal::Busy)
    }

    /// Room for a message of this length.
    pub(super) fn weight(&self, len: usize) -> Option<Weight> {
        let bytes = len.saturating_add(MESSAGE_OVERHEAD).min(MESSAGE_WEIGHT_MAX);
        let fits = |held: usize| Some(held + bytes).filter(|sum| *sum <= ACTOR_BYTES_MAX);
        let taken = self.held.fetch_update(Ordering::AcqRel, Ordering::Acquire, fits);
        taken.ok().map(|_| Weight { held: Arc::clone(&self.held), bytes })
    }
}

/// One of a bounded number of places; given back when dropped.
pub(super) struct Place {
    count: Arc<AtomicUsize>,
    /// Whether over half were taken when this one was.
    pub(super) scarce: bool,
}

impl Place {
    pub(super) fn take(count: &Arc<AtomicUsize>, max: usize) -> Option<Place> {
        let taken =
            count.fetch_update(Ordering::AcqRel, Ordering::Acquire, |n| (n < max).then_some(n + 1));
        taken.ok().map(|n| Place { count: Arc::clone(count), scarce: n > max / 2 })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.count.fetch_sub(1, Ordering::AcqRel);
    }
}

/// What a message counts of [`ACTOR_BYTES_MAX`]; given back when dropped.
pub(super) struct Weight {
    held: Arc<AtomicUsize>,
    bytes: usize,
}

impl Drop for Weight {
    fn drop(&mut self) {
        self.held.fetch_sub(self.bytes, Ordering::AcqRel);
    }
}

/// A message type that a published actor accepts, with the type forgotten.
pub(super) trait Accept: Send + Sync {
    fn as_any(&self) -> &dyn Any;

    /// Decodes a message from another node, judges it, and puts it into the mailbox. In tokio's context.
    fn serve(
        &self,
        hub: &Arc<Hub>,
        from: &Sender<'_>,
        body: &[u8],
        job: Job,
    ) -> Result<(), Unserved>;
}

/// Why a message did not get into the mailbox.
pub(super) enum Unserved {
    Wire(WireError),
    Refused(Refusal),
}

/// Who sent a message from another node, as its link's certificate says.
#[derive(Clone, Copy, Debug)]
pub struct Sender<'a> {
    /// Its node, and the life that said hello.
    pub peer: &'a Peer,
    /// What its certificate lets it do; none on networks without certificates, where all is allowed.
    pub role: Option<Role>,
}

impl Sender<'_> {
    /// Whether it has one of these roles.
    ///
    /// # Errors
    /// [`Refusal::Role`].
    pub fn is(&self, roles: &[Role]) -> Result<(), Refusal> {
        match self.role {
            Some(role) if !roles.contains(&role) => Err(Refusal::Role),
            _ => Ok(()),
        }
    }

    /// Whether what a message claims of its sender holds.
    ///
    /// # Errors
    /// [`Refusal::Identity`].
    pub fn holds(&self, claim: impl FnOnce(&Peer) -> bool) -> Result<(), Refusal> {
        if claim(self.peer) { Ok(()) } else { Err(Refusal::Identity) }
    }
}

/// Who sent a message from another node: as [`Sender`], kept with the message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    /// Its node, and the incarnation that said hello.
    pub peer: Peer,
    /// The role in its certificate; none on networks without certificates.
    pub role: Option<Role>,
}

impl Origin {
    /// The origin of a sender's messages.
    pub fn of(sender: &Sender<'_>) -> Self {
        Self { peer: sender.peer.clone(), role: sender.role }
    }

    /// The same, borrowed.
    pub fn sender(&self) -> Sender<'_> {
        Sender { peer: &self.peer, role: self.role }
    }
}

/// A message from another node and its origin, for an actor that judges the message when it handles it: see
/// [`Published::accepts_judged`]. A handler that does not take it calls [`Received::refuse`] and drops its answer.
pub struct Received<M> {
    /// The sender.
    pub from: Origin,
    /// The message.
    pub message: M,
    verdict: Verdict,
}

impl<M: actix::Message> actix::Message for Received<M> {
    type Result = M::Result;
}

impl<M> Received<M> {
    /// Refuses the message. The sender gets this reason once the handler's answer is dropped.
    pub fn refuse(self, why: Refusal) {
        // A message is refused once: this takes it.
        let _ = self.verdict.0.set(why);
    }
}

#[derive(Clone, Default)]
struct Verdict(Arc<OnceLock<Refusal>>);

/// Whether a sender may send a message.
pub type Judge<M> = fn(&Sender<'_>, &M) -> Result<(), Refusal>;

/// The same with the message's type known and the actor's forgotten.
pub(super) struct Typed<M: RemoteMessage> {
    mailbox: Box<dyn Deliver<M>>,
    judge: Option<Judge<M>>,
}

trait Deliver<M: RemoteMessage>: Send + Sync {
    fn deliver(&self, message: M) -> Answer<M>;
    fn serve(&self, hub: &Arc<Hub>, from: &Sender<'_>, message: M, job: Job);
}

/// An answer to come from a local actor.
pub(super) type Answer<M> =
    Pin<Box<dyn Future<Output = Result<<M as actix::Message>::Result, Refusal>> + Send>>;

impl<M: RemoteMessage> Typed<M> {
    /// Puts the message into the mailbox, in order, at once.
    pub(super) fn deliver(&self, message: M) -> Answer<M> {
        self.mailbox.deliver(message)
    }
}

impl<M: RemoteMessage> Accept for Typed<M> {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn serve(
        &self,
        hub: &Arc<Hub>,
        from: &Sender<'_>,
        body: &[u8],
        job: Job,
    ) -> Result<(), Unserved> {
        let message = wire::decode::<M>(Kind::CALL, body).map_err(Unserved::Wire)?;
        if let Some(judge) = self.judge
            && let Err(why) = judge(from, &message)
        {
            hub.denied(&Origin::of(from), M::NAME, why);
            return Err(Unserved::Refused(why));
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
    fn deliver(&self, message: M) -> Answer<M> {
        // A fresh clone: see the note on bounds above.
        let request = self.0.clone().send(message);
        Box::pin(async move { request.await.map_err(|_| Refusal::Stopped) })
    }

    fn serve(&self, _: &Arc<Hub>, _: &Sender<'_>, message: M, job: Job) {
        let request = self.0.clone().send(message);
        // Not `spawn_local`: the endpoint's thread need not be inside a `LocalSet`.
        tokio::spawn(job.settle::<M>(async move { request.await.map_err(|_| Refusal::Stopped) }));
    }
}

/// The mailbox of an actor that judges what other nodes send it.
struct JudgedMailbox<A: Actor>(Addr<A>);

impl<A, M> Deliver<M> for JudgedMailbox<A>
where
    A: Actor + Handler<M> + Handler<Received<M>>,
    A::Context: ToEnvelope<A, M> + ToEnvelope<A, Received<M>>,
    M: RemoteMessage,
{
    fn deliver(&self, message: M) -> Answer<M> {
        let request = self.0.clone().send(message);
        Box::pin(async move { request.await.map_err(|_| Refusal::Stopped) })
    }

    fn serve(&self, hub: &Arc<Hub>, from: &Sender<'_>, message: M, job: Job) {
        let (origin, verdict) = (Origin::of(from), Verdict::default());
        let received = Received { from: origin.clone(), message, verdict: verdict.clone() };
        let (request, hub) = (self.0.clone().send(received), Arc::clone(hub));
        tokio::spawn(job.settle::<M>(async move {
            request.await.map_err(|_| match verdict.0.get() {
                Some(why) => {
                    hub.denied(&origin, M::NAME, *why);
                    *why
                }
                None => Refusal::Stopped,
            })
        }));
    }
}

/// One publication of an actor. A later actor under the same name is another publication.
#[derive(Clone)]
pub struct Publication {
    pub(super) name: String,
    pub(super) entry: Weak<Entry>,
}

/// A published actor, to be told which messages it accepts. Dropping it changes nothing.
pub struct Published<A: Actor> {
    name: String,
    entry: Arc<Entry>,
    addr: Addr<A>,
}

impl<A: Actor> Published<A> {
    pub(super) fn new(name: &str, entry: Arc<Entry>, addr: Addr<A>) -> Self {
        Self { name: name.to_owned(), entry, addr }
    }

    /// Identifies this publication, to [retract](super::Hub::retract) it.
    pub fn publication(&self) -> Publication {
        Publication { name: self.name.clone(), entry: Arc::downgrade(&self.entry) }
    }

    /// Lets other nodes send `M` to the actor, whatever their role.
    pub fn accepts<M>(self) -> Self
    where
        A: Handler<M>,
        A::Context: ToEnvelope<A, M>,
        M: RemoteMessage,
    {
        let mailbox = Box::new(Mailbox(self.addr.clone()));
        self.accept::<M>(mailbox, None)
    }

    /// Lets other nodes send `M` to the actor, which judges each when it handles it, in the order of its mailbox. What
    /// this node sends to itself reaches the actor as `M`.
    pub fn accepts_judged<M>(self) -> Self
    where
        A: Handler<M> + Handler<Received<M>>,
        A::Context: ToEnvelope<A, M> + ToEnvelope<A, Received<M>>,
        M: RemoteMessage,
    {
        let mailbox = Box::new(JudgedMailbox(self.addr.clone()));
        self.accept::<M>(mailbox, None)
    }

    /// Lets those other nodes send `M` to the actor that `judge` admits. It is called on the endpoint's thread, before the
    /// mailbox; what this node sends to itself is not judged.
    pub fn accepts_from<M>(self, judge: Judge<M>) -> Self
    where
        A: Handler<M>,
        A::Context: ToEnvelope<A, M>,
        M: RemoteMessage,
    {
        let mailbox = Box::new(Mailbox(self.addr.clone()));
        self.accept::<M>(mailbox, Some(judge))
    }

    fn accept<M>(self, mailbox: Box<dyn Deliver<M>>, judge: Option<Judge<M>>) -> Self
    where
        M: RemoteMessage,
    {
        let typed = Typed::<M> { mailbox, judge };
        let mut accepted = self.entry.accepted.write().unwrap_or_else(|e| e.into_inner());
        accepted.insert(M::NAME, Arc::new(typed));
        drop(accepted);
        self
    }
}
