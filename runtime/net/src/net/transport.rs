//! What a network must do for [`Net`](super::Net): ordered, bounded, per-class streams of frames between nodes.
//!
//! Two of them exist: QUIC and the in-memory network. Must not know what frames mean, nor bulk transfers.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::tls::{NodeIdentity, Role, TlsError};
use super::{Address, Class, Contact, LinkPolicy, SendError};
use crate::id::{ClusterId, Incarnation, NodeId, Peer};
use crate::wire::Frame;

/// A network below [`Net`](super::Net). Every method may be called from every thread and none blocks.
pub(crate) trait Transport: Send + Sync {
    /// This node, as it presents itself.
    fn me(&self) -> &Peer;

    /// Where others reach this node.
    fn address(&self) -> Address;

    /// Begins to take links and to tell [`Events`]. Called once, on the endpoint's thread, when the receiver is ready.
    fn start(&self);

    /// Notes where a node is reached, and in which life if that is known; replaces what was known, but for an earlier
    /// life's. A link to another address, or to an earlier life, is closed; what is queued is kept (but bulk transfers,
    /// which are given back) and the node dialled anew. Else opens nothing.
    fn learn(&self, contact: Contact, life: Option<Incarnation>);

    /// Forgets a node's address and closes its link; what is queued to it is given back.
    fn forget(&self, node: &NodeId);

    /// Queues a frame; opens the link when there is none. Ordered per peer and class, delivered at most once.
    ///
    /// # Errors
    /// `Unknown`, `Full` (nothing was queued; `Events::drained` follows), `Closed`.
    fn send(&self, to: &NodeId, class: Class, frame: Frame) -> Result<(), SendError>;

    /// Bytes that may still be queued to a peer in a class: headers count. 0 for an unknown peer.
    fn room(&self, to: &NodeId, class: Class) -> usize;

    /// What the certificate of a node whose link is up lets it do; none without a link, and where there are no
    /// certificates.
    fn role(&self, _node: &NodeId) -> Option<Role> {
        None
    }

    /// The socket's buffers, where there is one and the system tells.
    fn buffers(&self) -> Option<Buffers> {
        None
    }

    /// What is expected of the link to a node, where the settings name its cluster.
    fn expected(&self, _node: &NodeId) -> Option<LinkPolicy> {
        None
    }

    /// The same of links to a cluster.
    fn expected_of(&self, _cluster: &ClusterId) -> Option<LinkPolicy> {
        None
    }

    /// Where a name suffices to reach a node: those that it was told of or has had a link with. None where addresses are needed.
    fn known_by_name(&self) -> Option<Vec<NodeId>> {
        None
    }

    /// The links there are or were, in order of node.
    fn links(&self) -> Vec<LinkStats>;

    /// Payload bytes sent to each node so far, in any order.
    fn bytes_out(&self) -> Vec<(NodeId, u64)> {
        let bytes = |link: &LinkStats| link.classes.values().map(|class| class.bytes_out).sum();
        self.links().into_iter().map(|link| (link.peer.node.clone(), bytes(&link))).collect()
    }

    /// Packets to this node that were lost and sent again, on the connection there is now; 0 where the network loses none.
    fn lost(&self, _to: &NodeId) -> u64 {
        0
    }

    /// Smoothed round trips of the links that are up, as far as measured, by the cluster of the other end; in any order.
    fn round_trips(&self) -> Vec<(ClusterId, Duration)> {
        let up = self.links().into_iter().filter(|link| link.state == LinkState::Up);
        up.filter_map(|link| Some((link.peer.cluster, link.rtt?))).collect()
    }

    /// Which node of each cluster others may be reached through, where the network needs that.
    fn gates(&self, _gates: &BTreeMap<ClusterId, NodeId>) {}

    /// Datagrams of other nodes' links that went through this one.
    fn passed_on(&self) -> u64 {
        0
    }

    /// Links refused by this side, by reason.
    fn refused(&self) -> RefusedCounts;

    /// Shows this certificate, of the same node, in links that are opened from now on; those that are up stay. Does nothing where
    /// there are no certificates.
    ///
    /// # Errors
    /// [`TlsError`]; the former one is shown on.
    fn renew(&self, _identity: &NodeIdentity) -> Result<(), TlsError> {
        Ok(())
    }

    /// Whose certificates are not valid any more, and why: they get no link, and those that they have are closed. Replaces what
    /// was said before.
    fn revoke(&self, _nodes: &BTreeMap<NodeId, String>) {}

    /// A peer broke the protocol inside its frames: closes the link that they came over with this reason, and notes a
    /// strike, as for broken frames themselves. [`Events::struck`] follows. On the endpoint's thread.
    fn breach(&self, peer: &Peer, why: &str);

    /// Refuses new frames, sends what is queued (for a short, stated time), says goodbye and closes every link.
    fn close(&self, reason: &str);

    /// Completes when [`Transport::close`] has done its work.
    fn closed(&self) -> Pin<Box<dyn Future<Output = ()> + Send>>;
}

/// What a transport tells its user. Called on the endpoint's thread; must be quick. Never called while the transport
/// holds a lock, so that it may send from within.
pub(crate) trait Events: Send + Sync {
    /// A frame has come. Ordered per peer and class.
    fn frame(&self, from: &Peer, class: Class, frame: Frame);

    /// Whom these events reach in the end, to be held for as many frames as one read brings: finding it each time costs as
    /// much as a small frame does. `None`: tell these themselves.
    fn receiver(&self) -> Option<Arc<dyn Events>> {
        None
    }

    /// A link is up: both sides have said hello and welcome. Before any frame of that link.
    fn up(&self, peer: &Peer);

    /// A link went down: frames written to it may be lost. After every frame of that link. Also told when a node could
    /// not be reached at all; its incarnation is then the last known, or 0.
    fn down(&self, peer: &Peer, why: &Why);

    /// A queue that had refused is under half again.
    fn drained(&self, to: &NodeId, class: Class);

    /// A peer broke the protocol and lost its link for it; `banned`: once too often, and its links are refused for
    /// [`BAN`](super::BAN).
    fn struck(&self, _peer: &Peer, _why: &str, _banned: bool) {}

    /// A peer knows a later incarnation of this node. `known` is absent where a former version refused.
    fn superseded(&self, _peer: &NodeId, _known: Option<Incarnation>) {}

    /// A frame that was queued will not be sent, and surely was not delivered. Follows `down`.
    fn undelivered(&self, to: &NodeId, class: Class, frame: Frame);
}

/// Why a link went down, or could not be had.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Why {
    /// One side refused it, for this reason; none: it was lost, ended in order, or nobody answered.
    pub refused: Option<RefuseReason>,
    /// For people.
    pub text: String,
}

impl Why {
    /// A refusal.
    pub fn refused(reason: RefuseReason, text: impl Into<String>) -> Self {
        Self { refused: Some(reason), text: text.into() }
    }
}

impl<T: Into<String>> From<T> for Why {
    /// No refusal.
    fn from(text: T) -> Self {
        Self { refused: None, text: text.into() }
    }
}

impl std::fmt::Display for Why {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

/// What state a link is in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LinkState {
    /// Not open; the next frame opens it.
    #[default]
    Idle,
    /// Being opened.
    Connecting,
    /// Waits before the next attempt to open it.
    Backoff,
    /// Both sides have said hello and welcome.
    Up,
}

/// Buffers of a socket, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Buffers {
    /// Asked for each direction.
    pub asked: u64,
    /// Granted for receiving.
    pub receive: u64,
    /// Granted for sending.
    pub send: u64,
}

/// Traffic of one class over a link, in both directions. Bytes are payload; headers are 8 bytes a frame on top.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClassStats {
    /// Frames written.
    pub frames_out: u64,
    /// Payload bytes written.
    pub bytes_out: u64,
    /// Frames read.
    pub frames_in: u64,
    /// Payload bytes read.
    pub bytes_in: u64,
    /// Frames waiting to be written.
    pub queued_frames: u64,
    /// Bytes waiting to be written, with headers.
    pub queued_bytes: u64,
    /// Frames not taken because the queue was full.
    pub full: u64,
    /// Queued frames given back unsent because the link could not be had.
    pub dropped: u64,
}

/// What is known of the link to one peer. Counters run over all connections of this endpoint's life.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkStats {
    /// The peer; incarnation 0 before the first link.
    pub peer: Peer,
    /// Its state.
    pub state: LinkState,
    /// Smoothed round trip of the current connection, once one was measured on it.
    pub rtt: Option<Duration>,
    /// Largest packet that the path of the current connection was seen to carry, in bytes of UDP payload; it grows while
    /// larger ones are tried. None without a connection, and in memory.
    #[serde(default)]
    pub mtu: Option<u16>,
    /// Whether the current connection goes through another node, because the two cannot reach each other.
    #[serde(default)]
    pub relayed: bool,
    /// The minor version of the protocol that both sides of the current connection speak, and so the form in which the other side reads
    /// what is compact. None without a connection, and in memory.
    #[serde(default)]
    pub protocol: Option<u16>,
    /// Traffic by class.
    pub classes: BTreeMap<Class, ClassStats>,
    /// Times the link came up after the first.
    pub reconnects: u64,
    /// Frames of unknown kinds that were skipped.
    pub unknown_kinds: u64,
    /// Times the peer broke the protocol and lost its link for it.
    #[serde(default)]
    pub strikes: u64,
}

/// Why a link is refused. The names are on the wire and in counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RefuseReason {
    /// The peer showed no certificate.
    NoCertificate,
    /// The peer's certificate is not from this grid's authority.
    ForeignCa,
    /// The peer's certificate is expired, malformed, or does not name a node.
    BadCertificate,
    /// The peer speaks another application protocol than `springtide/1`.
    Alpn,
    /// No protocol version in common.
    Protocol,
    /// The peer is of another grid.
    Grid,
    /// The hello names another node or cluster than the certificate, or not the node that was dialled.
    Identity,
    /// A later life of the node is known.
    StaleIncarnation,
    /// The peer said something else than a hello, or nothing in time.
    BadHello,
    /// Both sides opened a connection at once, and the other one stays; or it is a connection given up since.
    Crossed,
    /// The peer broke the protocol several times of late: see [`BAN`](super::BAN).
    Banned,
    /// The endpoint is closing.
    Closing,
    /// The peer's certificate was revoked.
    Revoked,
    /// A reason that a newer version gave and this one does not know.
    #[serde(other)]
    Other,
}

/// Links refused by this side, by reason.
pub type RefusedCounts = BTreeMap<RefuseReason, u64>;
