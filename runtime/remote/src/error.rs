//! Errors of remote calls.

use std::time::Duration;

use crate::id::NodeId;
use crate::net::{LinkError, RefuseReason, SendError};

/// The reason why a message to a remote actor was refused, or a call has no reply.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RemoteError {
    /// No reply within the deadline. The message may or may not have been handled.
    #[error("no answer from actor `{actor}` on {node} to `{message}` within {deadline:?}")]
    Timeout {
        /// Node of the callee.
        node: NodeId,
        /// Published name of the actor.
        actor: String,
        /// Name of the message.
        message: &'static str,
        /// The deadline that passed.
        deadline: Duration,
    },
    /// The node could not be reached, or its link went down before the reply. The message may or
    /// may not have been handled.
    #[error("node {node} is gone: {reason}")]
    Gone {
        /// Node of the callee.
        node: NodeId,
        /// The error of the network.
        reason: LinkError,
    },
    /// No actor is published under the name on the node. The message was not handled.
    #[error("no actor `{actor}` is published on {node}")]
    NoActor {
        /// Node of the callee.
        node: NodeId,
        /// The requested name.
        actor: String,
    },
    /// The callee refused the message, or stopped before its reply.
    #[error("actor `{actor}` on {node} refused `{message}`: {reason}")]
    Refused {
        /// Node of the callee.
        node: NodeId,
        /// Published name of the actor.
        actor: String,
        /// Name of the message.
        message: &'static str,
        /// Reason of the refusal.
        reason: Refusal,
    },
    /// A side could not decode a message of the other: the two run different versions of it.
    #[error(
        "`{message}` does not decode between this node and {node}: {reason}; do both run the same \
         version?"
    )]
    Version {
        /// Node of the callee.
        node: NodeId,
        /// Name of the message.
        message: &'static str,
        /// The error of the decoder.
        reason: String,
    },
    /// The message or its reply is over the size cap.
    #[error("`{message}` or its answer is {len} bytes long, over the cap of {cap} bytes")]
    TooLong {
        /// Name of the message.
        message: &'static str,
        /// Encoded length in bytes.
        len: usize,
        /// The cap in bytes.
        cap: usize,
    },
    /// The queue to the node is full. The message was not sent: send less, or drop and count.
    #[error("the queue to node {0} is full")]
    Full(NodeId),
    /// This node's endpoint or hub is closed. The message was not sent.
    #[error("this node's endpoint is closed")]
    Closed,
}

/// The reason why a callee refused a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
pub enum Refusal {
    /// Too many messages of this caller or to this actor are in flight: send fewer.
    #[error("too many messages in flight")]
    Busy,
    /// The actor has stopped, possibly before its reply.
    #[error("the actor has stopped")]
    Stopped,
    /// The actor does not accept the message from other nodes: see `Published::accepts`.
    #[error("the message is not among those it accepts")]
    NotAccepted,
    /// The sender's certificate lacks the role for the message.
    #[error(
        "the role in the sender's certificate does not allow it: `springtide token create --role \
         ROLE` or `springtide ca issue` gives another one"
    )]
    Role,
    /// The message names another node, cluster or incarnation than the certificate and hello of its
    /// link.
    #[error("the message names another sender than the certificate and hello of its link")]
    Identity,
    /// The sender's position in the job does not allow the message.
    #[error("the sender's place in the job does not allow it")]
    JobRole,
    /// The message names an epoch that was not issued to its sender.
    #[error("the epoch was not issued to the sender")]
    Epoch,
    /// Another node coordinates the job under a later epoch.
    #[error("another coordinates the job under a later epoch")]
    Stale,
    /// The receiver does not know the job.
    #[error("the receiver does not have the job")]
    NoJob,
    /// The scheduler did not confirm the sender's position in the job in time. A later attempt may
    /// succeed.
    #[error("the scheduler did not confirm the sender's place in the job in time")]
    Unconfirmed,
    /// The job belongs to another principal.
    #[error("the job was submitted by another user: its owner or the grid's operator may do this")]
    Owner,
    /// A reason that this version does not know.
    #[error("for a reason unknown to this version (code {0})")]
    Other(u16),
}

impl Refusal {
    /// Whether the sender claimed a right that it does not have. Correct senders can meet the other
    /// refusals as well.
    pub fn is_denial(self) -> bool {
        use Refusal::{Epoch, Identity, JobRole, Owner, Role};
        matches!(self, Role | Identity | JobRole | Epoch | Owner)
    }

    /// Whether the refusal concerns the sender's rights: a denial, or a message that arrived too
    /// early or too late.
    pub(super) fn concerns_rights(self) -> bool {
        self.is_denial() || matches!(self, Refusal::Stale | Refusal::NoJob | Refusal::Unconfirmed)
    }
}

impl RemoteError {
    /// The reason, if the callee refused the message.
    pub fn refusal(&self) -> Option<Refusal> {
        match self {
            RemoteError::Refused { reason: why, .. } => Some(*why),
            _ => None,
        }
    }

    /// The reason why one side refuses all communication with the other, if so: retries are
    /// useless.
    pub fn refused(&self) -> Option<RefuseReason> {
        match self {
            RemoteError::Version { .. } => Some(RefuseReason::Protocol),
            RemoteError::Gone { reason: why, .. } => why.refused,
            RemoteError::Refused { reason: Refusal::Role | Refusal::Identity, .. } => {
                Some(RefuseReason::Identity)
            }
            _ => None,
        }
    }

    /// Converts an error of the network in sending a message.
    pub(crate) fn from_send(error: SendError, message: &'static str) -> Self {
        match error {
            SendError::Unknown(node) => {
                RemoteError::Gone { node, reason: "no address is known for it".into() }
            }
            SendError::Full(node) => RemoteError::Full(node),
            SendError::TooLong { len, cap, .. } => RemoteError::TooLong { message, len, cap },
            SendError::Closed => RemoteError::Closed,
        }
    }
}
