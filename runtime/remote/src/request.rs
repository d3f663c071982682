//! The caller's side: a handle on a remote actor, and a call under way.

use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use actix::dev::ToEnvelope;
use actix::{Actor, Handler};
use tokio::sync::oneshot;
use tokio::time::{Sleep, sleep, timeout};

use super::callee::FOREVER;
use super::caller::{Outcome, Outgoing};
use super::hub::Hub;
use super::published::{Answer, Place, Typed};
use super::{DEFAULT_DEADLINE, Refusal, RemoteError, RemoteMessage};
use crate::id::NodeId;

/// An actor of type `A` published under a name on some node, this one included. Cheap to clone; from any thread.
///
/// A message to an actor of this node does not travel, nor is it encoded; it takes the same bounds and ends in the same
/// errors.
pub struct Remote<A> {
    pub(super) hub: Arc<Hub>,
    pub(super) node: NodeId,
    pub(super) name: Arc<str>,
    pub(super) actor: PhantomData<fn(A)>,
}

impl<A> Clone for Remote<A> {
    fn clone(&self) -> Self {
        Self {
            hub: Arc::clone(&self.hub),
            node: self.node.clone(),
            name: Arc::clone(&self.name),
            actor: PhantomData,
        }
    }
}

impl<A> std::fmt::Debug for Remote<A> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}@{}", self.name, self.node)
    }
}

impl<A: Actor> Remote<A> {
    /// Its node.
    pub fn node(&self) -> &NodeId {
        &self.node
    }

    /// The name it is published under.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Calls the actor: a future of its answer. The message leaves when the future is first polled (or on
    /// [`RemoteRequest::start`]); dropping the future forgets the call.
    pub fn send<M>(&self, message: M) -> RemoteRequest<M>
    where
        A: Handler<M>,
        A::Context: ToEnvelope<A, M>,
        M: RemoteMessage,
    {
        RemoteRequest {
            hub: Arc::clone(&self.hub),
            node: self.node.clone(),
            name: Arc::clone(&self.name),
            deadline: DEFAULT_DEADLINE,
            stage: Stage::Unsent(message),
        }
    }

    /// Tells the actor something, now, without an answer. `Ok` says that the message was queued (or, for this node, is in
    /// the mailbox), not that it arrives. For bounded signals; for data use [`Remote::send`].
    ///
    /// # Errors
    /// `Full`, `Gone` (no address is known), `TooLong`, `Version` (it does not encode), `Closed`; for an actor of this node
    /// `NoActor` and `Refused` too.
    pub fn do_send<M>(&self, message: M) -> Result<(), RemoteError>
    where
        A: Handler<M>,
        A::Context: ToEnvelope<A, M>,
        M: RemoteMessage,
    {
        let target = Target { hub: &self.hub, node: &self.node, name: &self.name };
        if target.is_local() {
            let (answer, place) = target.deliver(message)?;
            self.hub.runtime.spawn(async move {
                // The place is held until the handler is done, but not for ever.
                let _ = timeout(DEFAULT_DEADLINE, answer).await;
                drop(place);
            });
            return Ok(());
        }
        let outgoing = Outgoing { node: &self.node, actor: &self.name, deadline: None };
        self.hub.dispatch(&outgoing, &message).map(|_| ())
    }
}

/// A published actor to which a message goes.
struct Target<'a> {
    hub: &'a Arc<Hub>,
    node: &'a NodeId,
    name: &'a Arc<str>,
}

impl Target<'_> {
    fn is_local(&self) -> bool {
        self.hub.net.me().node == *self.node
    }

    /// Puts a message into the mailbox of an actor of this node.
    fn deliver<M: RemoteMessage>(&self, message: M) -> Result<(Answer<M>, Place), RemoteError> {
        if self.hub.calls.is_closed() {
            return Err(RemoteError::Closed);
        }
        let no_actor =
            || RemoteError::NoActor { node: self.node.clone(), actor: self.name.to_string() };
        let entry = self.hub.directory.get(self.name).ok_or_else(no_actor)?;
        let refused = |why| self.refused::<M>(why);
        let accept = entry.get(M::NAME).ok_or_else(|| refused(Refusal::NotAccepted))?;
        let typed = accept.as_any().downcast_ref::<Typed<M>>().ok_or_else(|| {
            let why = "another type is accepted under this name".to_owned();
            RemoteError::Version { node: self.node.clone(), message: M::NAME, why }
        })?;
        let place = entry.place().map_err(refused)?;
        Ok((typed.deliver(message), place))
    }

    fn refused<M: RemoteMessage>(&self, why: Refusal) -> RemoteError {
        RemoteError::Refused {
            node: self.node.clone(),
            actor: self.name.to_string(),
            message: M::NAME,
            why,
        }
    }
}

/// A call under way. Resolves to the actor's answer or to a typed error. To be polled in tokio's context.
#[must_use = "a call is sent when it is first polled: await it, or `start` it"]
pub struct RemoteRequest<M: RemoteMessage> {
    hub: Arc<Hub>,
    node: NodeId,
    name: Arc<str>,
    deadline: Duration,
    stage: Stage<M>,
}

enum Stage<M: RemoteMessage> {
    Unsent(M),
    Wire { id: u64, outcome: oneshot::Receiver<Outcome>, sleep: Pin<Box<Sleep>> },
    Local { answer: Answer<M>, sleep: Pin<Box<Sleep>>, _place: Place },
    Failed(RemoteError),
    Done,
}

// No field is pinned in place.
impl<M: RemoteMessage> Unpin for RemoteRequest<M> {}

impl<M: RemoteMessage> RemoteRequest<M> {
    /// How long to wait for the answer, from when the message leaves; default [`DEFAULT_DEADLINE`]. It travels with the
    /// call: the callee does not begin what is late, nor send its answer.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// Sends the message now, ahead of whatever is sent later.
    pub fn start(mut self) -> Self {
        self.launch();
        self
    }

    fn launch(&mut self) {
        self.stage = match std::mem::replace(&mut self.stage, Stage::Done) {
            Stage::Unsent(message) => self.launched(message).unwrap_or_else(Stage::Failed),
            under_way => under_way,
        };
    }

    fn launched(&self, message: M) -> Result<Stage<M>, RemoteError> {
        let target = self.target();
        let patience = || Box::pin(sleep(self.deadline.min(FOREVER)));
        if target.is_local() {
            let (answer, _place) = target.deliver(message)?;
            return Ok(Stage::Local { answer, sleep: patience(), _place });
        }
        let deadline = Some(self.deadline);
        let outgoing = Outgoing { node: &self.node, actor: &self.name, deadline };
        match self.hub.dispatch(&outgoing, &message)? {
            Some((id, outcome)) => Ok(Stage::Wire { id, outcome, sleep: patience() }),
            None => Err(RemoteError::Closed), // only tells have no outcome
        }
    }

    fn target(&self) -> Target<'_> {
        Target { hub: &self.hub, node: &self.node, name: &self.name }
    }

    fn timed_out(&self) -> RemoteError {
        self.hub.count(|counters| &counters.timeouts);
        RemoteError::Timeout {
            node: self.node.clone(),
            actor: self.name.to_string(),
            message: M::NAME,
            after: self.deadline,
        }
    }
}

impl<M: RemoteMessage> Future for RemoteRequest<M> {
    type Output = Result<M::Result, RemoteError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        this.launch();
        let ended = match &mut this.stage {
            Stage::Local { answer, sleep, .. } => match answer.as_mut().poll(cx) {
                Poll::Ready(Ok(result)) => Ok(result),
                Poll::Ready(Err(why)) => Err(this.target().refused::<M>(why)),
                Poll::Pending => {
                    ready!(sleep.as_mut().poll(cx));
                    Err(this.timed_out())
                }
            },
            Stage::Wire { outcome, sleep, .. } => match Pin::new(outcome).poll(cx) {
                Poll::Ready(outcome) => {
                    let outcome = outcome.unwrap_or(Outcome::Closed);
                    this.stage = Stage::Done;
                    this.hub.conclude::<M>(&this.node, &this.name, outcome)
                }
                Poll::Pending => {
                    ready!(sleep.as_mut().poll(cx));
                    this.forget();
                    Err(this.timed_out())
                }
            },
            _ => match std::mem::replace(&mut this.stage, Stage::Done) {
                Stage::Failed(error) => Err(error),
                _ => Err(RemoteError::Closed), // polled after it was ready
            },
        };
        this.stage = Stage::Done;
        Poll::Ready(ended)
    }
}

impl<M: RemoteMessage> RemoteRequest<M> {
    /// A late answer will be dropped and counted.
    fn forget(&mut self) {
        if let Stage::Wire { id, .. } = self.stage {
            self.hub.calls.forget(id);
            self.stage = Stage::Done;
        }
    }
}

impl<M: RemoteMessage> Drop for RemoteRequest<M> {
    fn drop(&mut self) {
        self.forget();
    }
}
