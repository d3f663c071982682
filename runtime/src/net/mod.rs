//! The one way to the network: a handle over QUIC or over an in-memory network.
//!
//! Must not know what frames mean, nor roles, jobs or tasks.

use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::id::{ClusterId, NodeId, Peer};
use crate::wire::Kind;

/// Where a node is reached: its own address, or through another node. Relays come later without a new address form.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Address {
    /// A socket address to connect to.
    Socket(std::net::SocketAddr),
    /// In memory: the name alone suffices.
    Memory,
    /// Through the named node.
    Via(NodeId),
}

/// What one must know to reach a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Contact {
    /// Its name.
    pub node: NodeId,
    /// Its cluster.
    pub cluster: ClusterId,
    /// Where it is reached.
    pub address: Address,
}

/// Traffic class: an ordered stream each, per peer and direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Class {
    /// Calls, answers, statistics.
    Control,
    /// Steals and results.
    Steal,
    /// Large payloads, in chunks under credits.
    Bulk,
}

/// What the network tells its user. Called on the endpoint's thread; must be quick.
pub trait Inbox: Send + Sync {
    /// A whole payload has come (bulk transfers put together). `from` is the peer as its certificate and hello say.
    fn frame(&self, from: &Peer, kind: Kind, body: Bytes);
    /// A link is up: both sides have said hello and welcome.
    fn up(&self, _peer: &Peer) {}
    /// A link went down.
    fn down(&self, _peer: &Peer, _why: &str) {}
}

/// Why a payload was not taken for sending. Nothing of it was sent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// No address is known for the node.
    #[error("no address is known for node {0}")]
    Unknown(NodeId),
    /// The queue to the node is full: slow down, or drop and count.
    #[error("the queue to node {0} is full")]
    Full(NodeId),
    /// The payload is over its kind's cap.
    #[error("a {kind:?} payload of {len} bytes is over the cap of {cap} bytes")]
    TooLong {
        /// Which kind.
        kind: Kind,
        /// Its length.
        len: usize,
        /// The kind's cap.
        cap: usize,
    },
    /// The endpoint is closed.
    #[error("the endpoint is closed")]
    Closed,
}

/// A payload that was taken for sending but is not known to have been delivered when its link went down: given back so
/// that a stolen task can be reclaimed at once.
pub type Undelivered = (NodeId, Kind, Bytes);

/// The handle: cheap to clone, usable from every thread.
#[derive(Clone)]
pub struct Net(Arc<dyn Backend>);

pub(crate) trait Backend: Send + Sync {
    fn me(&self) -> &Peer;
    fn send(&self, to: &NodeId, class: Class, kind: Kind, body: Bytes) -> Result<(), SendError>;
}

impl Net {
    /// This node.
    pub fn me(&self) -> &Peer {
        self.0.me()
    }

    /// Takes a payload for sending; never blocks.
    ///
    /// # Errors
    /// [`SendError`]: nothing was sent.
    pub fn send(
        &self,
        to: &NodeId,
        class: Class,
        kind: Kind,
        body: Bytes,
    ) -> Result<(), SendError> {
        self.0.send(to, class, kind, body)
    }
}
