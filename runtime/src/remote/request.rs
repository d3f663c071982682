//! The caller's side: a handle on a remote actor, and a call under way.

use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use actix::dev::ToEnvelope;
use actix::{Actor, Handler};
use tokio::time::{Sleep, sleep};

use super::hub::Hub;
use super::published::{Answer, Place, Typed};
use super::{DEFAULT_DEADLINE, Refusal, RemoteError, RemoteMessage};
use crate::id::NodeId;

/// An actor of type `A` published under a name on some node, this one included. Cheap to clone; from any thread.
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
}

/// A call under way. Resolves to the actor's answer or to a typed error.
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
    Local { answer: Answer<M>, sleep: Pin<Box<Sleep>>, _place: Place },
    Failed(RemoteError),
    Done,
}

// No field is pinned in place.
impl<M: RemoteMessage> Unpin for RemoteRequest<M> {}

impl<M: RemoteMessage> RemoteRequest<M> {
    /// How long to wait for the answer, from when the message leaves; default [`DEFAULT_DEADLINE`].
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// Sends the message now, ahead of whatever is sent later. Needs tokio's context, as polling does.
    pub fn start(mut self) -> Self {
        self.launch();
        self
    }

    fn launch(&mut self) {
        let Stage::Unsent(message) = std::mem::replace(&mut self.stage, Stage::Done) else {
            return;
        };
        self.stage = match self.launch_local(message) {
            Ok(stage) => stage,
            Err(error) => Stage::Failed(error),
        };
    }

    fn launch_local(&self, message: M) -> Result<Stage<M>, RemoteError> {
        let entry = self.hub.directory.get(&self.name).ok_or_else(|| RemoteError::NoActor {
            node: self.node.clone(),
            actor: self.name.to_string(),
        })?;
        let accept = entry.get(M::NAME).ok_or_else(|| self.refused(Refusal::NotAccepted))?;
        let typed = accept.as_any().downcast_ref::<Typed<M>>().ok_or_else(|| {
            let why = "another type has this name".to_owned();
            RemoteError::Version { node: self.node.clone(), message: M::NAME, why }
        })?;
        let place = entry.place().map_err(|why| self.refused(why))?;
        let answer = typed.deliver(message);
        Ok(Stage::Local { answer, sleep: Box::pin(sleep(self.deadline)), _place: place })
    }

    fn refused(&self, why: Refusal) -> RemoteError {
        RemoteError::Refused {
            node: self.node.clone(),
            actor: self.name.to_string(),
            message: M::NAME,
            why,
        }
    }

    fn timed_out(&self) -> RemoteError {
        self.hub.counters.timeouts.fetch_add(1, Ordering::Relaxed);
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
        let outcome = match &mut this.stage {
            Stage::Local { answer, sleep, .. } => match answer.as_mut().poll(cx) {
                Poll::Ready(Ok(result)) => Ok(result),
                Poll::Ready(Err(why)) => Err(this.refused(why)),
                Poll::Pending => {
                    ready!(sleep.as_mut().poll(cx));
                    Err(this.timed_out())
                }
            },
            _ => match std::mem::replace(&mut this.stage, Stage::Done) {
                Stage::Failed(error) => Err(error),
                _ => Err(RemoteError::Closed),
            },
        };
        this.stage = Stage::Done;
        Poll::Ready(outcome)
    }
}
