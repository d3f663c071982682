//! The interface below [`Net`](super::Net): ordered, bounded streams of frames between nodes, one
//! per class.
//!
//! QUIC and the in-memory network implement it. This module knows neither the meaning of frames nor
//! bulk transfers.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::segments::SegmentPool;
use super::tls::{NodeIdentity, Role, TlsError};
use super::{Address, Class, Contact, LinkPolicy, SendError};
use crate::id::{ClusterId, Incarnation, NodeId, Peer};
use crate::wire::Frame;

/// A network below [`Net`](super::Net). Every method may be called from every thread and none
/// blocks.
pub(crate) trait Transport: Send + Sync {
    /// This node, as it identifies itself to peers.
    fn me(&self) -> &Peer;

    /// The address under which others reach this node.
    fn address(&self) -> Address;

    /// Starts to accept links and to report [`Events`]. Called once, on the endpoint's thread, when
    /// the receiver is ready.
    fn start(&self);

    /// Sets the address of a node, and its incarnation if known. Contacts of earlier incarnations
    /// are ignored.
    ///
    /// A link to another address or to an earlier incarnation is closed. Its queue is kept, except
    /// for bulk transfers, which are returned as undelivered, and the node is contacted again.
    /// Otherwise no link is opened.
    fn learn(&self, contact: Contact, incarnation: Option<Incarnation>);

    /// Forgets a node's address and closes its link; its queue is returned as undelivered.
    fn forget(&self, node: &NodeId);

    /// Queues a frame and opens the link if there is none. Ordered per peer and class, delivered at
    /// most once.
    ///
    /// # Errors
    /// `Unknown`, `Full` (nothing was queued; `Events::drained` follows), `Closed`.
    fn send(&self, to: &NodeId, class: Class, frame: Frame) -> Result<(), SendError>;

    /// Free bytes in the queue to a peer in a class, with headers. 0 for an unknown peer.
    fn room(&self, to: &NodeId, class: Class) -> usize;

    /// The role in the certificate of a node whose link is up; `None` without a link or without
    /// certificates.
    fn role(&self, _node: &NodeId) -> Option<Role> {
        None
    }

    /// Sizes of the socket's buffers, if there is a socket and the system reports them.
    fn buffers(&self) -> Option<Buffers> {
        None
    }

    /// Policy of the link to a node, if the settings name its cluster.
    fn expected(&self, _node: &NodeId) -> Option<LinkPolicy> {
        None
    }

    /// Policy of links to a cluster, if the settings name it.
    fn expected_of(&self, _cluster: &ClusterId) -> Option<LinkPolicy> {
        None
    }

    /// The known nodes of a network in which a name suffices to reach a node. `None` if addresses
    /// are needed.
    fn known_by_name(&self) -> Option<Vec<NodeId>> {
        None
    }

    /// The pool of object segments that the nodes of this process share; `None` where each node has
    /// a process of its own.
    fn segments(&self) -> Option<Arc<SegmentPool>> {
        None
    }

    /// Statistics of current and former links, in order of node.
    fn links(&self) -> Vec<LinkStats>;

    /// Payload bytes sent to each node so far, in any order.
    fn bytes_out(&self) -> Vec<(NodeId, u64)> {
        let bytes = |link: &LinkStats| link.classes.values().map(|class| class.bytes_out).sum();
        self.links().into_iter().map(|link| (link.peer.node.clone(), bytes(&link))).collect()
    }

    /// Number of packets to a node that were retransmitted on the current connection; 0 for a
    /// network without loss.
    fn lost(&self, _to: &NodeId) -> u64 {
        0
    }

    /// Measured round-trip times of the links that are up, smoothed, with the cluster of the other
    /// end; in any order.
    fn round_trips(&self) -> Vec<(ClusterId, Duration)> {
        let up = self.links().into_iter().filter(|link| link.state == LinkState::Up);
        up.filter_map(|link| Some((link.peer.cluster, link.rtt?))).collect()
    }

    /// Sets the relay of each cluster, where the network needs relays.
    fn set_relays(&self, _relays: &BTreeMap<ClusterId, NodeId>) {}

    /// Number of datagrams that this node relayed for other nodes' links.
    fn relayed_datagrams(&self) -> u64 {
        0
    }

    /// Numbers of links that this side refused, by reason.
    fn refused(&self) -> RefusedCounts;

    /// Uses a new certificate of the same node for links that are opened from now on. Links that
    /// are up stay. Does nothing without certificates.
    ///
    /// # Errors
    /// [`TlsError`]; the old certificate stays in use.
    fn renew(&self, _identity: &NodeIdentity) -> Result<(), TlsError> {
        Ok(())
    }

    /// Replaces the revoked certificates, by node and with a reason. Such nodes get no link, and
    /// their links are closed.
    fn revoke(&self, _nodes: &BTreeMap<NodeId, String>) {}

    /// Handles a protocol violation inside a peer's frames as one in the frames themselves: closes
    /// the link and records a strike. [`Events::struck`] follows. On the endpoint's thread.
    fn report_violation(&self, peer: &Peer, why: &str);

    /// Refuses new frames, sends queued ones for a limited time, says goodbye and closes every
    /// link.
    fn close(&self, reason: &str);

    /// Completes when [`Transport::close`] has finished.
    fn closed(&self) -> Pin<Box<dyn Future<Output = ()> + Send>>;
}

/// The receiver of a transport's events. The endpoint's thread calls it, so it must return quickly.
/// The transport holds no lock during a call, so that the receiver may send.
pub(crate) trait Events: Send + Sync {
    /// A frame has arrived. Ordered per peer and class.
    fn frame(&self, from: &Peer, class: Class, frame: Frame);

    /// The final receiver of these events, for repeated calls: finding it for each frame costs as
    /// much as a small frame. `None`: call this one.
    fn receiver(&self) -> Option<Arc<dyn Events>> {
        None
    }

    /// A link is up: both sides have sent hello and welcome. Precedes all frames of the link.
    fn up(&self, peer: &Peer);

    /// A link went down: frames written to it may be lost. Follows all frames of the link. Also
    /// called if a node could not be reached at all; its incarnation is then the last known one, or
    /// 0.
    fn down(&self, peer: &Peer, why: &LinkError);

    /// A queue that had refused frames is at most half full.
    fn drained(&self, to: &NodeId, class: Class);

    /// A peer violated the protocol and its link was closed; `banned`: its links are refused for
    /// [`BAN`](super::BAN).
    fn struck(&self, _peer: &Peer, _why: &str, _banned: bool) {}

    /// A peer knows a later incarnation of this node. `known` is absent if the peer runs an older
    /// version.
    fn superseded(&self, _peer: &NodeId, _known: Option<Incarnation>) {}

    /// A queued frame will not be sent and was certainly not delivered. Follows `down`.
    fn undelivered(&self, to: &NodeId, class: Class, frame: Frame);
}

/// The reason why a link went down or could not be opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkError {
    /// The reason, if one side refused the link. `None`: it was lost, closed in an orderly way, or
    /// not answered.
    pub refused: Option<RefuseReason>,
    /// Description of the reason, for users.
    pub text: String,
}

impl LinkError {
    /// A refusal by one side.
    pub fn refused(reason: RefuseReason, text: impl Into<String>) -> Self {
        Self { refused: Some(reason), text: text.into() }
    }
}

impl<T: Into<String>> From<T> for LinkError {
    /// A reason other than a refusal.
    fn from(text: T) -> Self {
        Self { refused: None, text: text.into() }
    }
}

impl std::fmt::Display for LinkError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

/// The state of a link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LinkState {
    /// Not open; the next frame opens it.
    #[default]
    Idle,
    /// An attempt to open it is under way.
    Connecting,
    /// A delay before the next attempt to open it.
    Backoff,
    /// Open: both sides have sent hello and welcome.
    Up,
}

/// Sizes of a socket's buffers in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Buffers {
    /// Requested for each direction.
    pub asked: u64,
    /// Granted size of the receive buffer.
    pub receive: u64,
    /// Granted size of the send buffer.
    pub send: u64,
}

/// Traffic of one class over a link, in both directions. Bytes are payload; each frame has a header
/// of 8 bytes on top.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClassStats {
    /// Number of frames written.
    pub frames_out: u64,
    /// Number of payload bytes written.
    pub bytes_out: u64,
    /// Number of frames read.
    pub frames_in: u64,
    /// Number of payload bytes read.
    pub bytes_in: u64,
    /// Number of frames in the send queue.
    pub queued_frames: u64,
    /// Number of bytes in the send queue, with headers.
    pub queued_bytes: u64,
    /// Number of frames refused because the queue was full.
    pub full: u64,
    /// Number of queued frames returned because the link could not be opened.
    pub dropped: u64,
}

/// Statistics of the link to one peer. Counters cover all its connections since the endpoint was
/// opened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkStats {
    /// The peer; incarnation 0 before the first link.
    pub peer: Peer,
    /// State of the link.
    pub state: LinkState,
    /// Smoothed round-trip time of the current connection, if measured.
    pub rtt: Option<Duration>,
    /// Path MTU of the current connection in bytes of UDP payload. It grows while larger packets
    /// are probed. `None` without a connection, and in memory.
    #[serde(default)]
    pub mtu: Option<u16>,
    /// Whether another node relays the current connection, because there is no direct path.
    #[serde(default)]
    pub relayed: bool,
    /// Minor protocol version of the current connection, which determines the encoding of compact
    /// messages. `None` without a connection, and in memory.
    #[serde(default)]
    pub protocol: Option<u16>,
    /// Traffic of the link by class.
    pub classes: BTreeMap<Class, ClassStats>,
    /// Number of times the link came up after the first.
    pub reconnects: u64,
    /// Number of skipped frames of unknown kinds.
    pub unknown_kinds: u64,
    /// Number of protocol violations of the peer, each of which closed the link.
    #[serde(default)]
    pub strikes: u64,
}

/// The reason why a link is refused. The names are on the wire and in counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RefuseReason {
    /// The peer presented no certificate.
    NoCertificate,
    /// The peer's certificate is not from this grid's authority.
    ForeignCa,
    /// The peer's certificate is expired, malformed, or does not name a node.
    BadCertificate,
    /// The peer speaks another application protocol than `springtide/1`.
    Alpn,
    /// The sides have no protocol version in common.
    Protocol,
    /// The peer belongs to another grid.
    Grid,
    /// The hello names another node or cluster than the certificate, or the node is not the called
    /// one.
    Identity,
    /// A later incarnation of the node is known.
    StaleIncarnation,
    /// The peer's first frame was not a hello, or did not arrive in time.
    BadHello,
    /// Both sides opened a connection simultaneously and the other one stays, or the attempt was
    /// abandoned.
    Crossed,
    /// The peer violated the protocol repeatedly: see [`super::BAN_DURATION`].
    Banned,
    /// The endpoint is closing.
    Closing,
    /// The peer's certificate was revoked.
    Revoked,
    /// A reason of a newer version, unknown to this one.
    #[serde(other)]
    Other,
}

/// Numbers of links that this side refused, by reason.
pub type RefusedCounts = BTreeMap<RefuseReason, u64>;
