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
//! order in which calls were first polled (or `start`ed) and tells were made; a call and a tell keep order too, whatever
//! their lengths. Order is lost where a link goes down in between. *An answer or a typed error* for every `send`.
//!
//! Must not know what the messages mean, nor roles, jobs or tasks.

mod callee;
mod caller;
mod denial;
mod envelope;
mod error;
mod hub;
mod message;
mod published;
mod request;
#[cfg(test)]
mod tests;

use std::cell::RefCell;

use springtide_base::id;
use springtide_net::{net, wire};

#[doc(hidden)]
pub use actix;

pub use callee::PEER_IN_FLIGHT_MAX;
pub use denial::Denial;
pub use error::{Refusal, RemoteError};
pub use hub::{Hub, HubStats};
pub use message::RemoteMessage;
pub use published::{
    ACTOR_BYTES_MAX, ACTOR_IN_FLIGHT_MAX, Judge, MESSAGE_WEIGHT_MAX, Origin, Publication,
    Published, Received, Sender,
};
pub use request::{Remote, RemoteRequest};

/// How long a call waits for its answer when the caller says nothing else.
pub const DEFAULT_DEADLINE: std::time::Duration = std::time::Duration::from_secs(30);

/// A buffer that a thread encodes messages in before they are put into their envelope.
fn scratch<R>(f: impl FnOnce(&mut Vec<u8>) -> R) -> R {
    /// What a long message leaves behind is given back.
    const KEEP: usize = 64 << 10;
    thread_local! {
        static SCRATCH: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
    }
    // Taken out while it is used: encoding runs users' code, which may come here again.
    let mut buffer = SCRATCH.take();
    buffer.clear();
    let result = f(&mut buffer);
    if buffer.capacity() <= KEEP {
        SCRATCH.set(buffer);
    }
    result
}
