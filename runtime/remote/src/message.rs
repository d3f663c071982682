//! The trait of messages to remote actors.

use actix::dev::ToEnvelope;
use actix::{Actor, Handler, Message};
use serde::{Serialize, de::DeserializeOwned};

/// A message to an actor on another node: an actix message with a name on the wire, whose value and
/// result are serialisable.
///
/// [`remote_message!`](crate::remote_message) writes the impl.
pub trait RemoteMessage:
    actix::Message<Result: Serialize + DeserializeOwned + Send + 'static>
    + Serialize
    + DeserializeOwned
    + Send
    + 'static
{
    /// Name on the wire, unique among the messages of one actor and stable between versions that
    /// share a grid.
    const NAME: &'static str;
}

/// A receiver of messages of type `M`: an actor with a handler, or a type that stands for one.
///
/// [`receiver!`](crate::receiver) declares a type that stands for an actor. A sender then depends
/// on the messages, and not on the crate of the actor.
pub trait Receives<M> {}

impl<A, M> Receives<M> for A
where
    A: Actor + Handler<M>,
    A::Context: ToEnvelope<A, M>,
    M: Message,
{
}

/// Declares a type without values that stands for an actor in a sender's
/// [`Remote`](crate::Remote), with the messages that the actor receives.
#[macro_export]
macro_rules! receiver {
    ($(#[$doc:meta])* $name:ident: $($message:ty),+ $(,)?) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug)]
        pub enum $name {}

        $(impl $crate::Receives<$message> for $name {})+

        impl $name {
            /// Names of the messages on the wire.
            pub const MESSAGES: &'static [&'static str] =
                &[$(<$message as $crate::RemoteMessage>::NAME),+];
        }
    };
}

/// Implements [`actix::Message`] and [`RemoteMessage`] for types.
///
/// For example, `remote_message! { "submit" => Submit -> Result<JobGrant, SubmitError>; }`. The
/// type and its result must be serde types.
#[macro_export]
macro_rules! remote_message {
    (@one $name:literal, $message:ident) => {
        $crate::remote_message!(@one $name, $message, ());
    };
    (@one $name:literal, $message:ident, $result:ty) => {
        impl $crate::actix::Message for $message {
            type Result = $result;
        }
        impl $crate::RemoteMessage for $message {
            const NAME: &'static str = $name;
        }
    };
    ($($name:literal => $message:ident $(-> $result:ty)?);+ $(;)?) => {
        $($crate::remote_message!(@one $name, $message $(, $result)?);)+
    };
}
