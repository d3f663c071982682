//! Why a remote call has no answer.

use std::time::Duration;

use crate::id::NodeId;
use crate::net::{RefuseReason, SendError, Why};

/// Why a message to a remote actor was not taken, or a call has no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RemoteError {
    /// No answer within the deadline. The message may or may not have been handled.
    #[error("no answer from actor `{actor}` on {node} to `{message}` within {after:?}")]
    Timeout {
        /// The callee's node.
        node: NodeId,
        /// The actor's published name.
        actor: String,
        /// The message's name.
        message: &'static str,
        /// The deadline.
        after: Duration,
    },
    /// The node could not be reached, or its link went down before the answer came. The message may or may not have
    /// been handled.
    #[error("node {node} is gone: {why}")]
    Gone {
        /// The callee's node.
        node: NodeId,
        /// What the network said.
        why: Why,
    },
    /// No actor is published under that name on that node. The message was not handled.
    #[error("no actor `{actor}` is published on {node}")]
    NoActor {
        /// The callee's node.
        node: NodeId,
        /// The name asked for.
        actor: String,
    },
    /// The callee did not handle the message, or stopped while it did.
    #[error("actor `{actor}` on {node} refused `{message}`: {why}")]
    Refused {
        /// The callee's node.
        node: NodeId,
        /// The actor's published name.
        actor: String,
        /// The message's name.
        message: &'static str,
        /// Why.
        why: Refusal,
    },
    /// One side could not decode what the other sent: the two run different versions of the message.
    #[error(
        "`{message}` does not decode between this node and {node}: {why}; do both run the same version?"
    )]
    Version {
        /// The callee's node.
        node: NodeId,
        /// The message's name.
        message: &'static str,
        /// The decoder's words.
        why: String,
    },
    /// The message, or its answer, is over the size cap; encoded as `len` bytes.
    #[error("`{message}` or its answer is {len} bytes long, over the cap of {cap} bytes")]
    TooLong {
        /// The message's name.
        message: &'static str,
        /// Encoded length, bytes.
        len: usize,
        /// The cap, bytes.
        cap: usize,
    },
    /// The queue to the node is full: slow down, or drop and count. The message was not sent.
    #[error("the queue to node {0} is full")]
    Full(NodeId),
    /// This node's endpoint or hub is closed. The message was not sent.
    #[error("this node's endpoint is closed")]
    Closed,
}

/// Why a callee refused a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
pub enum Refusal {
    /// As many messages as are allowed (from this caller, or to this actor) are being handled: slow down.
    #[error("too many messages in flight")]
    Busy,
    /// The actor has stopped, or stopped before it answered.
    #[error("the actor has stopped")]
    Stopped,
    /// The actor is published without this message: see `Published::accepts`.
    #[error("the message is not among those it accepts")]
    NotAccepted,
    /// The sender's certificate has not the role that the message takes.
    #[error(
        "the role in this node's certificate does not allow it: issue one of the right role with `springtide ca issue`"
    )]
    Role,
    /// The message claims to be from another node, cluster or life than the certificate and hello of its link name.
    #[error("the message names another sender than the certificate and hello of its link")]
    Identity,
    /// The sender has no place in the job that lets it send the message.
    #[error("the sender's place in the job does not allow it")]
    Place,
    /// The message names an epoch that was not issued to its sender.
    #[error("the epoch was not issued to the sender")]
    Epoch,
    /// The sender held the job under an earlier epoch; another coordinates it now.
    #[error("another coordinates the job under a later epoch")]
    Stale,
    /// The receiver does not have the job.
    #[error("the receiver does not have the job")]
    NoJob,
    /// The scheduler did not confirm the sender's place in the job in time. A later attempt may succeed.
    #[error("the scheduler did not confirm the sender's place in the job in time")]
    Unconfirmed,
    /// The job belongs to another principal.
    #[error("the job was submitted by another user: its owner or the grid's operator may do this")]
    Owner,
    /// A reason this version does not know.
    #[error("for a reason unknown to this version (code {0})")]
    Other(u16),
}

impl Refusal {
    /// Whether the sender claimed a right that it does not have. Other refusals happen to honest senders as well.
    pub fn is_denial(self) -> bool {
        use Refusal::{Epoch, Identity, Owner, Place, Role};
        matches!(self, Role | Identity | Place | Epoch | Owner)
    }

    /// Whether the sender's rights were judged at all: a denial, or a word that came too late or too early.
    pub(super) fn is_judgement(self) -> bool {
        self.is_denial() || matches!(self, Refusal::Stale | Refusal::NoJob | Refusal::Unconfirmed)
    }
}

impl RemoteError {
    /// The callee's refusal, if it refused the message.
    pub fn refusal(&self) -> Option<Refusal> {
        match self {
            RemoteError::Refused { why, .. } => Some(*why),
            _ => None,
        }
    }

    /// Why one side refuses to speak with the other, if it does: to try again is in vain.
    pub fn refused(&self) -> Option<RefuseReason> {
        match self {
            RemoteError::Version { .. } => Some(RefuseReason::Protocol),
            RemoteError::Gone { why, .. } => why.refused,
            RemoteError::Refused { why: Refusal::Role | Refusal::Identity, .. } => {
                Some(RefuseReason::Identity)
            }
            _ => None,
        }
    }

    /// Maps a refusal of the network to send a message.
    pub(crate) fn from_send(error: SendError, message: &'static str) -> Self {
        match error {
            SendError::Unknown(node) => {
                RemoteError::Gone { node, why: "no address is known for it".into() }
            }
            SendError::Full(node) => RemoteError::Full(node),
            SendError::TooLong { len, cap, .. } => RemoteError::TooLong { message, len, cap },
            SendError::Closed => RemoteError::Closed,
        }
    }
}
