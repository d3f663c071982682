//! Remote actors: an actix actor, published under a name, receives messages of other nodes as it
//! does local ones.
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
//! Guarantees:
//!
//! - *At most once*: a message is never sent again.
//! - *Order* per sender and actor: handlers start in the order in which calls were first polled (or
//!   `start`ed) and tells were made. Calls and tells of any length keep their mutual order. A link
//!   failure in between loses the order.
//! - *A reply or a typed error* for every `send`.
//!
//! This crate does not know the meaning of messages, roles, jobs or tasks.

mod callee;
mod caller;
mod denial;
mod envelope;
mod error;
mod hub;
mod message;
mod published;
mod request;
mod sender;
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
pub use message::{Receives, RemoteMessage};
pub use published::{
    ACTOR_BYTES_MAX, ACTOR_IN_FLIGHT_MAX, MESSAGE_WEIGHT_MAX, Publication, Published,
    ReceivedMessage,
};
pub use request::{Remote, RemoteRequest};
pub use sender::{MessageOrigin, Sender, SenderCheck};

/// Default time that a call waits for its reply.
pub const DEFAULT_DEADLINE: std::time::Duration = std::time::Duration::from_secs(30);

/// A buffer that each thread reuses, for encoding a message before its envelope.
struct ScratchBuffer(Vec<u8>);

thread_local! {
    static SCRATCH: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

impl ScratchBuffer {
    /// Capacity above which the buffer is freed after use.
    const CAPACITY_MAX: usize = 64 << 10;

    /// Takes the buffer, empty. Encoding runs users' code, which may take a second one.
    fn take() -> Self {
        let mut buffer = SCRATCH.take();
        buffer.clear();
        Self(buffer)
    }
}

impl Drop for ScratchBuffer {
    fn drop(&mut self) {
        if self.0.capacity() <= Self::CAPACITY_MAX {
            SCRATCH.set(std::mem::take(&mut self.0));
        }
    }
}
