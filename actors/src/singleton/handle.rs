//! The handle of an actor that exists once in a grid.

use std::fmt;
use std::marker::PhantomData;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use springtide_protocol::names::{SINGLETONS, singleton_name};
use springtide_protocol::receivers::SingletonDirectory;
use springtide_protocol::singleton::{FindSingleton, FindSingletonError, SingletonPlace};
use springtide_runtime::id::NodeId;
use springtide_runtime::remote::{
    DEFAULT_DEADLINE, Hub, Receives, Refusal, Remote, RemoteError, RemoteMessage,
};

/// Time for the head to find or create an instance. It may ask several nodes.
const FIND_WITHIN: Duration = Duration::from_secs(15);

/// Why a singleton did not answer a message.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SingletonError {
    /// The instance that this handle has used has ended, and there is another one on this node,
    /// with a new state. The message was not sent: tell the actor what it must know, and send the
    /// message again.
    #[error("the singleton `{name}` was created again on {node}, and its state is new")]
    StateIsNew {
        /// Name of the singleton.
        name: String,
        /// Node of the new instance.
        node: NodeId,
    },
    /// There is no instance, and none could be created. The message was not sent.
    #[error("{reason}")]
    NotFound {
        /// The problem, and what to do.
        reason: String,
    },
    /// The call failed. The message may have been handled, unless the error says otherwise.
    #[error(transparent)]
    Call(#[from] RemoteError),
}

impl From<FindSingletonError> for SingletonError {
    fn from(error: FindSingletonError) -> Self {
        Self::NotFound { reason: error.to_string() }
    }
}

/// A handle to an actor that exists once in a grid. All clones share what they know of the actor.
pub struct Singleton<A> {
    hub: Arc<Hub>,
    head: NodeId,
    name: Arc<str>,
    fingerprint: u64,
    known: Arc<Mutex<KnownInstance>>,
    actor: PhantomData<fn(A)>,
}

/// What a handle knows of its actor.
#[derive(Default)]
struct KnownInstance {
    /// The instance that is used. Absent: the head is asked first.
    place: Option<SingletonPlace>,
    /// Generation of the last instance that may have handled a message.
    used: Option<u64>,
    /// Generation of the last instance, if it did not answer.
    silent: Option<u64>,
}

impl<A> Clone for Singleton<A> {
    fn clone(&self) -> Self {
        Self {
            hub: Arc::clone(&self.hub),
            head: self.head.clone(),
            name: Arc::clone(&self.name),
            fingerprint: self.fingerprint,
            known: Arc::clone(&self.known),
            actor: PhantomData,
        }
    }
}

impl<A> fmt::Debug for Singleton<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Singleton({})", self.name)
    }
}

impl<A> Singleton<A> {
    /// A handle to the singleton of this name of the program with this fingerprint. Nothing is
    /// sent.
    pub fn new(hub: &Arc<Hub>, head: &NodeId, name: &str, fingerprint: u64) -> Self {
        let (hub, head, name) = (Arc::clone(hub), head.clone(), name.into());
        Self { hub, head, name, fingerprint, known: Arc::default(), actor: PhantomData }
    }

    /// Sends a message, and returns the actor's answer. The first message creates the actor, if it
    /// does not exist yet.
    ///
    /// # Errors
    /// [`SingletonError`]. After [`SingletonError::Call`], the next message finds out whether the
    /// actor still exists.
    pub async fn send<M>(&self, message: M) -> Result<M::Result, SingletonError>
    where
        A: Receives<M>,
        M: RemoteMessage,
    {
        self.send_within(message, DEFAULT_DEADLINE).await
    }

    /// Sends a message as [`Singleton::send`] does, and waits for the answer at most this time.
    /// Finding the actor takes a time of its own.
    ///
    /// # Errors
    /// As [`Singleton::send`].
    pub async fn send_within<M>(
        &self,
        message: M,
        deadline: Duration,
    ) -> Result<M::Result, SingletonError>
    where
        A: Receives<M>,
        M: RemoteMessage,
    {
        let place = self.place().await?;
        let name = singleton_name(&self.name, place.generation);
        let actor: Remote<A> = self.hub.remote(&place.contact.node, &name);
        let answer = actor.send(message).deadline(deadline).await;
        let mut known = self.known();
        // Another call may have found that this instance has ended.
        if known.place.as_ref() == Some(&place) {
            if !matches!(answer, Err(RemoteError::NoActor { .. })) {
                known.used = Some(place.generation);
            }
            if answer.as_ref().is_err_and(may_have_ended) {
                (known.place, known.silent) = (None, Some(place.generation));
            }
        }
        drop(known);
        Ok(answer?)
    }

    /// The node of the actor. It is created, if it does not exist yet.
    ///
    /// # Errors
    /// As [`Singleton::send`].
    pub async fn node(&self) -> Result<NodeId, SingletonError> {
        Ok(self.place().await?.contact.node)
    }

    /// The instance to use.
    async fn place(&self) -> Result<SingletonPlace, SingletonError> {
        let silent = {
            let known = self.known();
            if let Some(place) = &known.place {
                return Ok(place.clone());
            }
            known.silent
        };
        let directory: Remote<SingletonDirectory> = self.hub.remote(&self.head, SINGLETONS);
        let (name, fingerprint) = (self.name.to_string(), self.fingerprint);
        let ask = FindSingleton { name: name.clone(), fingerprint, silent };
        let place = directory.send(ask).deadline(FIND_WITHIN).await??;
        self.hub.net().learn(place.contact.clone());
        let mut known = self.known();
        (known.place, known.silent) = (Some(place.clone()), None);
        if known.used.take_if(|used| *used != place.generation).is_some() {
            return Err(SingletonError::StateIsNew { name, node: place.contact.node });
        }
        Ok(place)
    }

    fn known(&self) -> MutexGuard<'_, KnownInstance> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether an actor that caused this error may have ended.
fn may_have_ended(error: &RemoteError) -> bool {
    matches!(
        error,
        RemoteError::Timeout { .. }
            | RemoteError::Gone { .. }
            | RemoteError::NoActor { .. }
            | RemoteError::Refused { reason: Refusal::Stopped, .. }
    )
}
