//! The door at which nodes join a grid: a token goes in, a certificate comes out.
//!
//! It is apart from the network of links, on a socket, a protocol name (`springtide-join/1`) and a certificate check of its own, so
//! that nobody without a certificate is ever let near an actor. Whether a token is good, and which name a node gets, others judge
//! ([`JoinJudge`]); what is said in which order is a state machine without I/O (`visit`).

mod caller;
mod door;
mod token;
mod visit;

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
pub use self::door::{JoinDoor, JoinLimits};
pub use self::token::{JoinToken, Minted, TokenError, matches_secret};
use crate::id::NodeId;

/// Version of the messages at the door; minors of ALPN `springtide-join/1`.
const VERSION: u16 = 1;

/// What a node that joins says, after it has seen that the grid is the one its token names.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JoinRequest {
    /// Version of the messages that the caller speaks.
    pub version: u16,
    /// Which token.
    pub token: String,
    /// Its secret.
    pub secret: String,
    /// The request for a certificate, PKCS #10 in DER. Its key alone is looked at.
    #[serde(with = "serde_bytes")]
    pub request: Vec<u8>,
    /// The name that it would have; absent: any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<NodeId>,
}

impl fmt::Debug for JoinRequest {
    /// Without the secret: this gets into logs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { version, token, node, .. } = self;
        let mut shown = f.debug_struct("JoinRequest");
        shown.field("version", version).field("token", token).field("node", node);
        shown.finish_non_exhaustive()
    }
}

/// A node has joined.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JoinGrant {
    /// Its certificate, in PEM. Who it is stands there.
    pub certificate: String,
    /// The authority's certificate, in PEM.
    pub authority: String,
    /// What of a node's config the grid says, in TOML: names, the head, links. Empty for whom that is of no use.
    #[serde(default)]
    pub config: String,
}

/// The door's no, as the caller hears it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct JoinRefused {
    /// For people.
    pub why: String,
}

/// Why nobody joined, in counters and logs. The names are part of what logs say and do not change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum JoinReason {
    /// The caller speaks another application protocol, or none.
    Alpn,
    /// The handshake failed otherwise: the caller may not trust this authority.
    Handshake,
    /// What the caller says is no request.
    BadRequest,
    /// It said nothing, or not all, in time.
    Late,
    /// Too many are at the door.
    Crowded,
    /// It speaks another version of the messages.
    Version,
    /// There is no such token.
    UnknownToken,
    /// The token's secret is another.
    WrongSecret,
    /// The token's time is over.
    ExpiredToken,
    /// The token was used as often as it may be.
    UsedUpToken,
    /// The token was revoked.
    RevokedToken,
    /// Its request for a certificate is not sound.
    BadKey,
    /// The name is another's, or none of the cluster's.
    NameTaken,
    /// The cluster has no name left to give.
    NoRoom,
    /// The grid could not do it: its files, its config.
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

/// A caller is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JoinRefusal {
    /// Why, for counters.
    pub reason: JoinReason,
    /// The same for the grid's own log: all that is known.
    pub detail: String,
    /// What the caller is told; absent: nothing but that its token is not good. Whoever has no good token learns nothing by asking.
    pub told: Option<String>,
}

impl JoinRefusal {
    /// One of which the caller learns nothing.
    pub fn closed(reason: JoinReason, detail: impl Into<String>) -> Self {
        Self { reason, detail: detail.into(), told: None }
    }

    /// One that the caller, whose token is good, is told of.
    pub fn open(reason: JoinReason, detail: impl Into<String>) -> Self {
        let detail = detail.into();
        Self { reason, told: Some(detail.clone()), detail }
    }
}

/// What every caller without a good token is told.
pub const NOT_GOOD: &str = "this token is not good here: it is unknown, used up, expired or revoked; ask whoever runs the grid for \
     another (its log says which it is)";

/// What a judgement comes to.
pub type Judging = Pin<Box<dyn Future<Output = Result<JoinGrant, JoinRefusal>> + Send>>;

/// Who says whether a caller may join, and hears who did not. Called on the door's thread.
pub trait JoinJudge: Send + Sync {
    /// Judges a request. What it takes of a token is taken when this completes, whatever becomes of the answer.
    fn judge(&self, request: JoinRequest, from: SocketAddr) -> Judging;

    /// A caller did not join; said once of each, for whatever reason.
    fn refused(&self, from: SocketAddr, refusal: &JoinRefusal);
}

/// How many callers came to what.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct JoinCounts {
    /// Those that joined.
    pub granted: u64,
    /// Those that did not, by reason.
    pub refused: BTreeMap<JoinReason, u64>,
}

/// Time for the peer to take in an answer before the connection goes.
const ANSWER_GRACE: Duration = Duration::from_secs(1);
