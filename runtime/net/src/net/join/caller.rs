//! The client side of the join protocol: a node that joins a grid.
//!
//! It sends nothing before it has verified that the other side is the head of the grid in its
//! token.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use quinn::crypto::rustls::QuicClientConfig;
use quinn::{ConnectionError, Endpoint, TransportErrorCode, VarInt};
use tokio::time::timeout;

use super::endpoint::{ALPN_ALERT, read_frame, transport, write};
use super::{JoinGrant, JoinRefused, JoinRequest, JoinToken, VERSION};
use crate::id::NodeId;
use crate::net::tls::{SERVER_NAME, TlsError, pinned_config};
use crate::wire::{self, Frame, Kind};

/// The reason why a node did not join.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    /// No reply arrived.
    #[error(
        "no reply from {at} ({why}): is the grid up, is this its `join.bind`, and does a \
         firewall let UDP through?"
    )]
    Unreachable {
        /// Address of the join endpoint.
        at: SocketAddr,
        /// The last error of the network.
        why: String,
    },
    /// The other side is not the head of the token's grid. Nothing was sent to it.
    #[error(
        "the process at {at} is not the head of the token's grid ({why}); nothing was sent to it: \
         compare `springtide ca fingerprint` there with the token's sum, and this machine's clock \
         with the head's"
    )]
    OtherGrid {
        /// Address of the join endpoint.
        at: SocketAddr,
        /// The error of TLS.
        why: String,
    },
    /// The other side is not a join endpoint.
    #[error(
        "the address {at} is no join endpoint (`join.bind` of the grid), or one of another version"
    )]
    NoDoor {
        /// Address of the join endpoint.
        at: SocketAddr,
    },
    /// The grid refused the node.
    #[error("the grid does not let this node join: {0}")]
    Refused(String),
    /// The reply is malformed.
    #[error(
        "the answer from {at} is not understood ({why}): bring both sides to one version of \
         springtide"
    )]
    Answer {
        /// Address of the join endpoint.
        at: SocketAddr,
        /// Description of the defect.
        why: String,
    },
    /// Certificates or keys are unusable.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The local socket cannot be opened.
    #[error("cannot call from {from}: {source}")]
    Bind {
        /// The local address.
        from: SocketAddr,
        /// The error of the system.
        source: std::io::Error,
    },
}

/// Requests a certificate for the key of `request` (PKCS #10 in DER) from the join endpoint at
/// `at`.
///
/// `from` is the local address, of which only the host is used. Call it inside a tokio runtime.
///
/// # Errors
/// [`JoinError`].
pub async fn join(
    from: SocketAddr,
    at: SocketAddr,
    token: &JoinToken,
    request: Vec<u8>,
    node: Option<NodeId>,
    within: Duration,
) -> Result<JoinGrant, JoinError> {
    let from = SocketAddr::new(from.ip(), 0);
    let endpoint = Endpoint::client(from).map_err(|source| JoinError::Bind { from, source })?;
    let unreachable = |why: String| JoinError::Unreachable { at, why };
    let called = timeout(within, request_certificate(&endpoint, at, token, request, node)).await;
    endpoint.close(VarInt::from_u32(0), b"");
    // The last packets leave within a moment.
    let _ = timeout(Duration::from_millis(100), endpoint.wait_idle()).await;
    called.unwrap_or_else(|_| Err(unreachable(format!("no answer within {within:?}"))))
}

async fn request_certificate(
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
    // From here on the other side is known to be the head of the token's grid.
    let failed = |why: String| match conn.close_reason() {
        Some(error) => not_connected(at, &error),
        None => JoinError::Answer { at, why },
    };
    let (mut send, mut recv) = conn.open_bi().await.map_err(|error| not_connected(at, &error))?;
    let (id, secret) = (token.id.clone(), token.secret.clone());
    let request = JoinRequest { version: VERSION, token: id, secret, request, node };
    let body =
        wire::encode(Kind::JOIN_REQUEST, &request).map_err(|error| failed(error.to_string()))?;
    write(&mut send, &Frame::new(Kind::JOIN_REQUEST, body)).await.map_err(failed)?;
    let kinds = [Kind::JOIN_GRANT, Kind::JOIN_REFUSED];
    let frame = read_frame(&mut recv, &kinds).await.map_err(failed)?;
    let malformed = |error: wire::WireError| JoinError::Answer { at, why: error.to_string() };
    if frame.kind == Kind::JOIN_REFUSED {
        let JoinRefused { why } = wire::decode(frame.kind, &frame.body).map_err(malformed)?;
        return Err(JoinError::Refused(why));
    }
    wire::decode(Kind::JOIN_GRANT, &frame.body).map_err(malformed)
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
