//! What a message to a remote actor must be.

use serde::{Serialize, de::DeserializeOwned};

/// A message that can be sent to an actor on another node: an actix message with a name on the wire, whose value and
/// result can be encoded.
///
/// [`remote_message!`](crate::remote_message) writes the impl.
pub trait RemoteMessage:
    actix::Message<Result: Serialize + DeserializeOwned + Send + 'static>
    + Serialize
    + DeserializeOwned
    + Send
    + 'static
{
    /// Its name on the wire: unique among the messages one actor accepts, stable between versions that share a grid.
    const NAME: &'static str;
}

/// Makes types remote messages: `remote_message! { "submit" => Submit -> Result<Granted, SubmitError>; }` implements
/// [`actix::Message`] and [`RemoteMessage`] for `Submit`. The type and its result must be serde types.
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
