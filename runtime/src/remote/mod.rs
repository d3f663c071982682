//! Remote actors: any actix actor, published under a name, takes the same messages from other nodes as from its own.
//!
//! ```ignore
//! remote_message! { "submit" => Submit -> Result<Granted, SubmitError>; }
//!
//! let hub = Hub::new(net);                                  // one a node
//! hub.publish("scheduler", scheduler_addr).accepts::<Submit>();
//! let scheduler: Remote<Scheduler> = hub.remote(&node, "scheduler");
//! let granted = scheduler.send(Submit { .. }).deadline(Duration::from_secs(5)).await?;
//! ```
//!
//! Guarantees. *At most once*: a message is never sent again. *Ordered* per sender and actor: handlers start in the
//! order in which calls were first polled (or `start`ed) and tells were made; a call and a tell keep order too. (A
//! payload over the inline limit travels in chunks and may be overtaken by shorter ones sent after it.) *An
//! answer or a typed error* for every `send`.
//!
//! Must not know what the messages mean, nor roles, jobs or tasks.

mod error;
mod hub;
mod message;
mod published;
mod request;

#[doc(hidden)]
pub use actix;

pub use error::{Refusal, RemoteError};
pub use hub::{Hub, HubStats};
pub use message::RemoteMessage;
pub use published::{ACTOR_IN_FLIGHT_MAX, Published};
pub use request::{Remote, RemoteRequest};

/// How long a call waits for its answer when the caller says nothing else.
pub const DEFAULT_DEADLINE: std::time::Duration = std::time::Duration::from_secs(30);
