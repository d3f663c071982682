//! The caller's side of the door: a node that joins.
//!
//! It says nothing before it has seen that whoever answers is the head of the grid that its token names.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use quinn::crypto::rustls::QuicClientConfig;
use quinn::{ConnectionError, Endpoint, TransportErrorCode, VarInt};
use tokio::time::timeout;

use super::door::{ALPN_ALERT, read_frame, transport, write};
use super::{JoinGrant, JoinRefused, JoinRequest, JoinToken, VERSION};
use crate::id::NodeId;
use crate::net::tls::{SERVER_NAME, TlsError, pinned_config};
use crate::wire::{self, Frame, Kind};

/// Why a node did not join.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    /// Nobody answers.
    #[error(
        "nobody answers at {at} ({why}): is the grid up, is this its `join.bind`, and does a firewall let UDP through?"
    )]
    Unreachable {
        /// Where it was tried.
        at: SocketAddr,
        /// The last word of the network.
        why: String,
    },
    /// Whoever answers is not the grid that the token is for. Nothing was said.
    #[error(
        "who answers at {at} is not the head of the grid that this token is for ({why}); nothing was said to it: compare \
         `springtide ca fingerprint` there with the token's sum, and this machine's clock with the head's"
    )]
    OtherGrid {
        /// Where it was tried.
        at: SocketAddr,
        /// What TLS says.
        why: String,
    },
    /// It is no door of a grid.
    #[error(
        "what listens at {at} is no door at which nodes join (`join.bind` of the grid), or one of another version"
    )]
    NoDoor {
        /// Where it was tried.
        at: SocketAddr,
    },
    /// The grid says no.
    #[error("the grid does not let this node join: {0}")]
    Refused(String),
    /// What it answers makes no sense.
    #[error(
        "the answer from {at} is not understood ({why}): bring both sides to one version of springtide"
    )]
    Answer {
        /// Where it was tried.
        at: SocketAddr,
        /// What is wrong with it.
        why: String,
    },
    /// Certificates or keys are not usable.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// This side's socket.
    #[error("cannot call from {from}: {source}")]
    Bind {
        /// From where.
        from: SocketAddr,
        /// The system's word.
        source: std::io::Error,
    },
}

/// Asks the door at `at` for a certificate for the key of `request` (PKCS #10 in DER), calling from this host of this machine.
/// To be called inside a tokio runtime.
///
/// # Errors
/// [`JoinError`].
pub async fn join(
    (from, at): (SocketAddr, SocketAddr),
    token: &JoinToken,
    request: Vec<u8>,
    node: Option<NodeId>,
    within: Duration,
) -> Result<JoinGrant, JoinError> {
    let from = SocketAddr::new(from.ip(), 0);
    let endpoint = Endpoint::client(from).map_err(|source| JoinError::Bind { from, source })?;
    let unreachable = |why: String| JoinError::Unreachable { at, why };
    let called = timeout(within, ask(&endpoint, at, token, request, node)).await;
    endpoint.close(VarInt::from_u32(0), b"");
    // The last packets are on their way in a moment.
    let _ = timeout(Duration::from_millis(100), endpoint.wait_idle()).await;
    called.unwrap_or_else(|_| Err(unreachable(format!("no answer within {within:?}"))))
}

async fn ask(
    endpoint: &Endpoint,
    at: SocketAddr,
    token: &JoinToken,
    request: Vec<u8>,
    node: Option<NodeId>,
) -> Result<JoinGrant, JoinError> {
    let unusable = |_| rustls::Error::General("no cipher suite for QUIC's first packets".into());
    let crypto = QuicClientConfig::try_from(pinned_config(token.authority)?);
    let crypto = crypto.map_err(|error| JoinError::Tls(unusable(error).into()))?;
    let mut config = quinn::ClientConfig::new(Arc::new(crypto));
    config.transport_config(Arc::new(transport()));
    let conn = endpoint
        .connect_with(config, at, SERVER_NAME)
        .map_err(|error| JoinError::Unreachable { at, why: error.to_string() })?
        .await
        .map_err(|error| not_connected(at, &error))?;
    // From here on the other side is the head of the grid that the token names.
    let lost = |why: String| match conn.close_reason() {
        Some(error) => not_connected(at, &error),
        None => JoinError::Answer { at, why },
    };
    let (mut send, mut recv) = conn.open_bi().await.map_err(|error| not_connected(at, &error))?;
    let (id, secret) = (token.id.clone(), token.secret.clone());
    let request = JoinRequest { version: VERSION, token: id, secret, request, node };
    let body =
        wire::encode(Kind::JOIN_REQUEST, &request).map_err(|error| lost(error.to_string()))?;
    write(&mut send, &Frame::new(Kind::JOIN_REQUEST, body)).await.map_err(lost)?;
    let kinds = [Kind::JOIN_GRANT, Kind::JOIN_REFUSED];
    let frame = read_frame(&mut recv, &kinds).await.map_err(lost)?;
    let wrong = |error: wire::WireError| JoinError::Answer { at, why: error.to_string() };
    if frame.kind == Kind::JOIN_REFUSED {
        let JoinRefused { why } = wire::decode(frame.kind, &frame.body).map_err(wrong)?;
        return Err(JoinError::Refused(why));
    }
    wire::decode(Kind::JOIN_GRANT, &frame.body).map_err(wrong)
}

fn not_connected(at: SocketAddr, error: &ConnectionError) -> JoinError {
    let code = |code: TransportErrorCode| match u64::from(code) {
        ALPN_ALERT => JoinError::NoDoor { at },
        0x100..=0x1ff => JoinError::OtherGrid { at, why: error.to_string() },
        _ => JoinError::Unreachable { at, why: error.to_string() },
    };
    match error {
        ConnectionError::TransportError(error) => code(error.code),
        ConnectionError::ConnectionClosed(close) => code(close.error_code),
        ConnectionError::VersionMismatch => JoinError::NoDoor { at },
        _ => JoinError::Unreachable { at, why: error.to_string() },
    }
}
