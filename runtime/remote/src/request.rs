//! The caller's side: a handle to a remote actor, and a call under way.

use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::{Sleep, sleep, timeout};

use super::callee::DEADLINE_MAX;
use super::caller::{CallOutcome, CallTarget};
use super::hub::Hub;
use super::published::{Acceptor, LocalReply, Permit, PublishedActor, TypedAcceptor};
use super::{DEFAULT_DEADLINE, Receives, Refusal, RemoteError, RemoteMessage};
use crate::id::NodeId;

/// A handle to an actor published under a name on any node, including this one. Cheap to clone and
/// usable from any thread.
///
/// `A` is the actor's type, or a type that [stands for it](Receives).
///
/// A message to an actor of this node is neither encoded nor sent; the same bounds and errors
/// apply.
pub struct Remote<A> {
    hub: Arc<Hub>,
    node: NodeId,
    name: Arc<str>,
    actor: PhantomData<fn(A)>,
}

impl Hub {
    /// A handle to the actor published as `actor` on `node`, which may be this node. Nothing is
    /// sent; calls show whether the actor exists.
    pub fn remote<A>(self: &Arc<Self>, node: &NodeId, actor: &str) -> Remote<A> {
        Remote { hub: Arc::clone(self), node: node.clone(), name: actor.into(), actor: PhantomData }
    }
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

impl<A> Remote<A> {
    /// Node of the actor.
    pub fn node(&self) -> &NodeId {
        &self.node
    }

    /// Published name of the actor.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Calls the actor and returns the future of its reply. The message leaves when the future is
    /// first polled, or on [`RemoteRequest::start`]. Dropping the future abandons the call.
    pub fn send<M>(&self, message: M) -> RemoteRequest<M>
    where
        A: Receives<M>,
        M: RemoteMessage,
    {
        RemoteRequest {
            hub: Arc::clone(&self.hub),
            node: self.node.clone(),
            name: Arc::clone(&self.name),
            deadline: DEFAULT_DEADLINE,
            state: CallState::Unsent(message),
        }
    }

    /// Sends the actor a message without a reply, immediately. For bounded signals; for data use
    /// [`Remote::send`].
    ///
    /// `Ok` means that the message was queued, or for this node entered the mailbox. It may still
    /// be lost.
    ///
    /// # Errors
    /// `Full`, `Gone` (no address is known), `TooLong`, `Version` (it does not encode), `Closed`;
    /// for an actor of this node also `NoActor` and `Refused`.
    pub fn do_send<M>(&self, message: M) -> Result<(), RemoteError>
    where
        A: Receives<M>,
        M: RemoteMessage,
    {
        let target = Target { hub: &self.hub, node: &self.node, name: &self.name };
        if target.is_local() {
            let (answer, permit) = target.deliver(message)?;
            let ended = Box::pin(async move { drop(answer.await) });
            self.hub.runtime.spawn(hold_permit(ended, permit));
            return Ok(());
        }
        let outgoing = CallTarget { node: &self.node, actor: &self.name, deadline: None };
        self.hub.dispatch(&outgoing, &message).map(|_| ())
    }
}

/// Holds the permit of a message until its handler ends, but at most for the default deadline.
async fn hold_permit(ended: Pin<Box<dyn Future<Output = ()> + Send>>, permit: Permit) {
    let _ = timeout(DEFAULT_DEADLINE, ended).await;
    drop(permit);
}

/// The destination of a message.
struct Target<'a> {
    hub: &'a Arc<Hub>,
    node: &'a NodeId,
    name: &'a Arc<str>,
}

impl Target<'_> {
    fn is_local(&self) -> bool {
        self.hub.net.me().node == *self.node
    }

    /// Puts a message into the mailbox of a local actor.
    fn deliver<M: RemoteMessage>(
        &self,
        message: M,
    ) -> Result<(LocalReply<M>, Permit), RemoteError> {
        let (acceptor, entry) = self.acceptor(M::NAME)?;
        let typed = acceptor.as_any().downcast_ref::<TypedAcceptor<M>>();
        let typed = typed.ok_or_else(|| self.other_type(M::NAME))?;
        let permit = entry.permit().map_err(|why| self.refused(M::NAME, why))?;
        Ok((typed.deliver(message), permit))
    }

    /// The local actor, and its acceptor of this kind of message.
    fn acceptor(
        &self,
        message: &'static str,
    ) -> Result<(Arc<dyn Acceptor>, Arc<PublishedActor>), RemoteError> {
        if self.hub.calls.is_closed() {
            return Err(RemoteError::Closed);
        }
        let no_actor =
            || RemoteError::NoActor { node: self.node.clone(), actor: self.name.to_string() };
        let entry = self.hub.directory.get(self.name).ok_or_else(no_actor)?;
        let refused = || self.refused(message, Refusal::NotAccepted);
        Ok((entry.get(message).ok_or_else(refused)?, entry))
    }

    fn other_type(&self, message: &'static str) -> RemoteError {
        let reason = "another type is accepted under this name".to_owned();
        RemoteError::Version { node: self.node.clone(), message, reason }
    }

    fn refused(&self, message: &'static str, why: Refusal) -> RemoteError {
        RemoteError::Refused {
            node: self.node.clone(),
            actor: self.name.to_string(),
            message,
            reason: why,
        }
    }
}

/// A call under way, which resolves to the actor's reply or a typed error. Poll it inside a tokio
/// runtime.
#[must_use = "a call is sent when it is first polled: await it, or `start` it"]
pub struct RemoteRequest<M: RemoteMessage> {
    hub: Arc<Hub>,
    node: NodeId,
    name: Arc<str>,
    deadline: Duration,
    state: CallState<M>,
}

enum CallState<M: RemoteMessage> {
    Unsent(M),
    Wire { id: u64, outcome: oneshot::Receiver<CallOutcome>, sleep: Pin<Box<Sleep>> },
    Local { answer: LocalReply<M>, sleep: Pin<Box<Sleep>>, _permit: Permit },
    Failed(RemoteError),
    Done,
}

// No field is structurally pinned.
impl<M: RemoteMessage> Unpin for RemoteRequest<M> {}

impl<M: RemoteMessage> RemoteRequest<M> {
    /// Sets the time to wait for the reply, from when the message leaves; default
    /// [`DEFAULT_DEADLINE`]. The callee receives it and neither starts late messages nor sends late
    /// replies.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// Sends the message now, ahead of later messages.
    pub fn start(mut self) -> Self {
        self.launch();
        self
    }

    fn launch(&mut self) {
        self.state = match std::mem::replace(&mut self.state, CallState::Done) {
            CallState::Unsent(message) => {
                self.send_message(message).unwrap_or_else(CallState::Failed)
            }
            under_way => under_way,
        };
    }

    fn send_message(&self, message: M) -> Result<CallState<M>, RemoteError> {
        let target = self.target();
        let timer = || Box::pin(sleep(self.deadline.min(DEADLINE_MAX)));
        if target.is_local() {
            let (answer, _permit) = target.deliver(message)?;
            return Ok(CallState::Local { answer, sleep: timer(), _permit });
        }
        let deadline = Some(self.deadline);
        let outgoing = CallTarget { node: &self.node, actor: &self.name, deadline };
        match self.hub.dispatch(&outgoing, &message)? {
            Some((id, outcome)) => Ok(CallState::Wire { id, outcome, sleep: timer() }),
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
            deadline: self.deadline,
        }
    }
}

impl<M: RemoteMessage> Future for RemoteRequest<M> {
    type Output = Result<M::Result, RemoteError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        this.launch();
        let ended = match &mut this.state {
            CallState::Local { answer, sleep, .. } => match answer.as_mut().poll(cx) {
                Poll::Ready(Ok(result)) => Ok(result),
                Poll::Ready(Err(why)) => Err(this.target().refused(M::NAME, why)),
                Poll::Pending => {
                    ready!(sleep.as_mut().poll(cx));
                    Err(this.timed_out())
                }
            },
            CallState::Wire { outcome, sleep, .. } => match Pin::new(outcome).poll(cx) {
                Poll::Ready(outcome) => {
                    let outcome = outcome.unwrap_or(CallOutcome::Closed);
                    this.state = CallState::Done;
                    this.hub.typed_result::<M>(&this.node, &this.name, outcome)
                }
                Poll::Pending => {
                    ready!(sleep.as_mut().poll(cx));
                    this.forget();
                    Err(this.timed_out())
                }
            },
            _ => match std::mem::replace(&mut this.state, CallState::Done) {
                CallState::Failed(error) => Err(error),
                _ => Err(RemoteError::Closed), // polled after it was ready
            },
        };
        this.state = CallState::Done;
        Poll::Ready(ended)
    }
}

impl<M: RemoteMessage> RemoteRequest<M> {
    /// Abandons the call: a late reply is dropped and counted.
    fn forget(&mut self) {
        if let CallState::Wire { id, .. } = self.state {
            self.hub.calls.forget(id);
            self.state = CallState::Done;
        }
    }
}

impl<M: RemoteMessage> Drop for RemoteRequest<M> {
    fn drop(&mut self) {
        self.forget();
    }
}
