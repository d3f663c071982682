//! The trait of messages to remote actors.

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

/// Implements [`actix::Message`] and [`RemoteMessage`] for types.
///
/// For example, `remote_message! { "submit" => Submit -> Result<Granted, SubmitError>; }`. The type
/// and its result must be serde types.
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
