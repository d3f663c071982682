//! The join protocol of a grid: a node presents a token and receives a certificate.
//!
//! It is separate from the network of links: its socket, its protocol name (`springtide-join/1`)
//! and its certificate check are its own. Nodes without a certificate thus never reach an actor. A
//! [`JoinAuthorizer`] decides whether a token is valid and which name a node gets. The order of
//! messages is a state machine without I/O (`handshake`).

mod caller;
mod endpoint;
mod handshake;
mod token;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use self::caller::{JoinError, join};
pub use self::endpoint::{JoinEndpoint, JoinLimits};
pub use self::token::{JoinToken, NewToken, TokenError, matches_secret};
use crate::id::NodeId;

/// Version of the messages: the minor version of ALPN `springtide-join/1`.
const VERSION: u16 = 1;

/// The request of a joining node, sent after it has verified the grid of its token.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JoinRequest {
    /// Version of the messages that the caller speaks.
    pub version: u16,
    /// Id of the token.
    pub token: String,
    /// Secret of the token.
    pub secret: String,
    /// The certificate request, PKCS #10 in DER. Only its key is used.
    #[serde(with = "serde_bytes")]
    pub request: Vec<u8>,
    /// Requested name of the node; absent: any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<NodeId>,
}

impl fmt::Debug for JoinRequest {
    /// Without the secret, because it is written to logs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { version, token, node, .. } = self;
        let mut shown = f.debug_struct("JoinRequest");
        shown.field("version", version).field("token", token).field("node", node);
        shown.finish_non_exhaustive()
    }
}

/// The reply to a node that may join.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JoinGrant {
    /// Certificate of the node in PEM, which names it.
    pub certificate: String,
    /// Certificate of the authority in PEM.
    pub authority: String,
    /// The part of the node's configuration that the grid determines, in TOML: names, the head,
    /// links. It may be empty.
    #[serde(default)]
    pub config: String,
}

/// The refusal as the caller receives it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct JoinRefused {
    /// Reason of the refusal, for users.
    pub why: String,
}

/// The reason of a refusal, in counters and logs. Logs contain the names, so they do not change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum JoinReason {
    /// The caller speaks another application protocol, or none.
    Alpn,
    /// The handshake failed for another reason, for example because the caller does not trust this
    /// authority.
    Handshake,
    /// The caller's message is not a request.
    BadRequest,
    /// The request did not arrive completely in time.
    Late,
    /// Too many callers are under way.
    Crowded,
    /// The caller speaks another version of the messages.
    Version,
    /// No token has this id.
    UnknownToken,
    /// The token has another secret.
    WrongSecret,
    /// The token has expired.
    ExpiredToken,
    /// The token was used as often as permitted.
    UsedUpToken,
    /// The token was revoked.
    RevokedToken,
    /// The certificate request is invalid.
    BadKey,
    /// The name belongs to another node, or not to the cluster.
    NameTaken,
    /// The cluster has no free name.
    NoRoom,
    /// The grid failed, for example because of its files or its configuration.
    Failed,
}

impl fmt::Display for JoinReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Alpn => "alpn",
            Self::Handshake => "handshake",
            Self::BadRequest => "bad-request",
            Self::Late => "late",
            Self::Crowded => "crowded",
            Self::Version => "version",
            Self::UnknownToken => "unknown-token",
            Self::WrongSecret => "wrong-secret",
            Self::ExpiredToken => "expired-token",
            Self::UsedUpToken => "used-up-token",
            Self::RevokedToken => "revoked-token",
            Self::BadKey => "bad-key",
            Self::NameTaken => "name-taken",
            Self::NoRoom => "no-room",
            Self::Failed => "failed",
        })
    }
}

/// The refusal of a caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JoinRefusal {
    /// Reason, for counters and logs.
    pub reason: JoinReason,
    /// Full description, for the grid's own log.
    pub detail: String,
    /// Text for the caller. `None`: only that its token is invalid, so that callers without a valid
    /// token learn nothing.
    pub text_for_caller: Option<String>,
}

impl JoinRefusal {
    /// A refusal whose reason the caller does not learn.
    pub fn closed(reason: JoinReason, detail: impl Into<String>) -> Self {
        Self { reason, detail: detail.into(), text_for_caller: None }
    }

    /// A refusal whose reason the caller learns, because its token is valid.
    pub fn open(reason: JoinReason, detail: impl Into<String>) -> Self {
        let detail = detail.into();
        Self { reason, text_for_caller: Some(detail.clone()), detail }
    }
}

/// The text for every caller without a valid token.
pub const NOT_GOOD: &str = "this token is not valid: it is unknown, used up, expired or \
     revoked; ask the grid's operator for another (the head's log has the reason)";

/// The future decision about a caller.
pub type JoinDecision = Pin<Box<dyn Future<Output = Result<JoinGrant, JoinRefusal>> + Send>>;

/// Decides which callers may join, and receives the refusals. Called on the endpoint's thread.
pub trait JoinAuthorizer: Send + Sync {
    /// Decides about a request. When this completes, the token's use is recorded, whether or not
    /// the reply arrives.
    fn authorize(&self, request: JoinRequest, from: SocketAddr) -> JoinDecision;

    /// Reports that a caller did not join; called once per caller, for any reason.
    fn refused(&self, from: SocketAddr, refusal: &JoinRefusal);
}

/// Numbers of callers by outcome.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct JoinCounts {
    /// Callers that have joined.
    pub granted: u64,
    /// Callers that were refused, by reason.
    pub refused: BTreeMap<JoinReason, u64>,
}

/// Time for the peer to read a reply before the connection closes.
const ANSWER_GRACE: Duration = Duration::from_secs(1);
