//! The join endpoint: QUIC without client certificates, one stream per connection, one frame in
//! each direction.
//!
//! This module does not know tokens. Threads: all code runs on the runtime in which the endpoint
//! was opened.

use std::net::{SocketAddr, UdpSocket};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use quinn::crypto::rustls::QuicServerConfig;
use quinn::{
    Connection, ConnectionError, Endpoint, IdleTimeout, Incoming, RecvStream, SendStream,
    TransportConfig, VarInt,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::runtime::Handle;
use tokio::time::{Instant, timeout, timeout_at};

use super::handshake::{HandshakeAction, HandshakeEvent, JoinHandshake};
use super::{
    ANSWER_GRACE, JoinAuthorizer, JoinCounts, JoinReason, JoinRefusal, JoinRefused, JoinRequest,
};
use crate::net::NetError;
use crate::net::callers::{Admission, AdmissionLimits, Callers};
use crate::net::quic::{ALL_INCOMING_BYTES, INCOMING_BYTES, raise_buffers};
use crate::net::tls::{NodeIdentity, TlsError};
use crate::wire::{self, Frame, HEADER_LEN, Header, Kind};

/// Maximum number of connections that wait for admission.
const WAITING_MAX: usize = 64;
/// Flow-control window in bytes; no message of the protocol is longer.
const WINDOW: u32 = 80 << 10;

/// Initial round-trip estimate, of which three pass before a first packet counts as lost, as among
/// nodes. With quinn's own estimate it takes a second.
const FIRST_RTT: Duration = Duration::from_millis(100);
/// Requested size of the socket's buffers in bytes. With the system's default a burst of foreign
/// packets displaces those of others.
const SOCKET_BUFFER: usize = 1 << 20;

/// Limits of a join endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JoinLimits {
    /// Maximum number of callers at once, of which one host may have half; others are refused.
    pub max_callers: usize,
    /// Time after which a caller without a reply is disconnected.
    pub timeout: Duration,
}

impl Default for JoinLimits {
    fn default() -> Self {
        Self { max_callers: 32, timeout: Duration::from_secs(10) }
    }
}

/// An open join endpoint, which closes when it is dropped.
pub struct JoinEndpoint {
    shared: Arc<EndpointState>,
    address: SocketAddr,
}

struct EndpointState {
    endpoint: Endpoint,
    judge: Arc<dyn JoinAuthorizer>,
    limits: JoinLimits,
    /// Callers under way, by host.
    callers: Mutex<Callers>,
    counts: Mutex<JoinCounts>,
}

impl JoinEndpoint {
    /// Opens the endpoint with this certificate, which must be a head's. Call it inside a tokio
    /// runtime.
    ///
    /// # Errors
    /// [`NetError`].
    pub fn open(
        bind: SocketAddr,
        identity: &NodeIdentity,
        judge: Arc<dyn JoinAuthorizer>,
        limits: JoinLimits,
    ) -> Result<Self, NetError> {
        let runtime = Handle::try_current().map_err(|_| NetError::Runtime)?;
        let failed = |source| NetError::Bind { address: bind.to_string(), source };
        let socket = UdpSocket::bind(bind).map_err(failed)?;
        raise_buffers(&socket, SOCKET_BUFFER);
        let (server, timers) = (Some(config(identity)?), Arc::new(quinn::TokioRuntime));
        let endpoint = Endpoint::new(quinn::EndpointConfig::default(), server, socket, timers);
        let endpoint = endpoint.map_err(failed)?;
        let address = endpoint.local_addr().map_err(failed)?;
        let (callers, counts) = (Mutex::default(), Mutex::default());
        let shared = Arc::new(EndpointState { endpoint, judge, limits, callers, counts });
        runtime.spawn(shared.clone().listen());
        Ok(Self { shared, address })
    }

    /// Address of the endpoint.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Numbers of callers by outcome so far.
    pub fn counts(&self) -> JoinCounts {
        self.shared.counts().clone()
    }

    #[cfg(test)]
    pub(super) fn callers(&self) -> usize {
        self.shared.callers().all()
    }

    /// Uses this certificate from now on.
    ///
    /// # Errors
    /// The certificate is unusable.
    pub fn renew(&self, identity: &NodeIdentity) -> Result<(), TlsError> {
        self.shared.endpoint.set_server_config(Some(config(identity)?));
        Ok(())
    }
}

impl Drop for JoinEndpoint {
    fn drop(&mut self) {
        self.shared.endpoint.close(VarInt::from_u32(0), b"the join endpoint closes");
    }
}

fn config(identity: &NodeIdentity) -> Result<quinn::ServerConfig, TlsError> {
    let unusable = |_| rustls::Error::General("no cipher suite for QUIC's first packets".into());
    let crypto = QuicServerConfig::try_from(identity.door_config()?).map_err(unusable)?;
    let mut config = quinn::ServerConfig::with_crypto(Arc::new(crypto));
    config.transport_config(Arc::new(transport())).migration(false).max_incoming(WAITING_MAX);
    config.incoming_buffer_size(INCOMING_BYTES).incoming_buffer_size_total(ALL_INCOMING_BYTES);
    Ok(config)
}

/// Transport settings of both sides: one stream, small windows and no keep-alive.
pub(super) fn transport() -> TransportConfig {
    let idle = IdleTimeout::try_from(Duration::from_secs(10)).expect("10 s are a valid timeout");
    let mut transport = TransportConfig::default();
    transport
        .max_concurrent_bidi_streams(VarInt::from_u32(1))
        .max_concurrent_uni_streams(VarInt::from_u32(0))
        .max_idle_timeout(Some(idle))
        .stream_receive_window(VarInt::from_u32(WINDOW))
        .receive_window(VarInt::from_u32(WINDOW))
        .send_window(u64::from(WINDOW))
        .initial_rtt(FIRST_RTT)
        .datagram_receive_buffer_size(None);
    transport
}

impl JoinLimits {
    fn admission_limits(&self) -> AdmissionLimits {
        let all = self.max_callers;
        AdmissionLimits { unvalidated: all.div_ceil(4), of_host: all.div_ceil(2), all }
    }
}

impl EndpointState {
    fn counts(&self) -> std::sync::MutexGuard<'_, JoinCounts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn callers(&self) -> std::sync::MutexGuard<'_, Callers> {
        self.callers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn refused(&self, from: SocketAddr, refusal: &JoinRefusal) {
        *self.counts().refused.entry(refusal.reason).or_default() += 1;
        let JoinRefusal { reason, detail, .. } = refusal;
        tracing::warn!(%reason, %from, detail, "a joining node is refused");
        self.judge.refused(from, refusal);
    }

    async fn listen(self: Arc<Self>) {
        while let Some(incoming) = self.endpoint.accept().await {
            let (from, validated) =
                (incoming.remote_address(), incoming.remote_address_validated());
            let limits = self.limits.admission_limits();
            let admission = self.callers().decide(limits, from, validated);
            match admission {
                Admission::Accept => {
                    self.callers().add(from);
                    tokio::spawn(self.clone().receive(incoming));
                }
                // Fails only for a validated address.
                Admission::Retry => drop(incoming.retry()),
                Admission::Refuse => {
                    incoming.refuse();
                    let why = {
                        let callers = self.callers();
                        let (all, of_host) = (callers.all(), callers.of_host(from));
                        format!("{all} callers are under way, {of_host} of them from this host")
                    };
                    self.refused(from, &JoinRefusal::closed(JoinReason::Crowded, why));
                }
            }
        }
    }

    async fn receive(self: Arc<Self>, incoming: Incoming) {
        let from = incoming.remote_address();
        let deadline = Instant::now() + self.limits.timeout;
        match timeout_at(deadline, incoming).await {
            Ok(Ok(conn)) => self.serve(&conn, from, deadline).await,
            Ok(Err(error)) => {
                let reason = match &error {
                    ConnectionError::TransportError(refused)
                        if u64::from(refused.code) == ALPN_ALERT =>
                    {
                        JoinReason::Alpn
                    }
                    _ => JoinReason::Handshake,
                };
                self.refused(from, &JoinRefusal::closed(reason, error.to_string()));
            }
            Err(_) => {
                let why = "the handshake was not finished in time";
                self.refused(from, &JoinRefusal::closed(JoinReason::Late, why));
            }
        }
        self.callers().remove(from);
    }

    async fn serve(&self, conn: &Connection, from: SocketAddr, deadline: Instant) {
        let mut handshake = JoinHandshake::default();
        let mut send = None;
        let request = async {
            let (answer, mut recv) = conn.accept_bi().await.map_err(|_| HandshakeEvent::Gone)?;
            send = Some(answer);
            read::<JoinRequest>(&mut recv, Kind::JOIN_REQUEST)
                .await
                .map_err(|why| HandshakeEvent::Received(Err(why)))
        };
        let event = match timeout_at(deadline, request).await {
            Ok(Ok(request)) => HandshakeEvent::Received(Ok(request)),
            Ok(Err(event)) => event,
            Err(_) => HandshakeEvent::Late,
        };
        let mut actions = handshake.handle(event);
        while !actions.is_empty() {
            let mut next = Vec::new();
            for action in actions {
                match action {
                    HandshakeAction::Judge(request) => {
                        let judged = async {
                            tokio::select! {
                                biased;
                                judged = self.judge.authorize(request, from) => {
                                    HandshakeEvent::Judged(judged)
                                }
                                _ = conn.closed() => HandshakeEvent::Gone,
                            }
                        };
                        let event =
                            timeout_at(deadline, judged).await.unwrap_or(HandshakeEvent::Late);
                        next.extend(handshake.handle(event));
                    }
                    HandshakeAction::Grant(grant) => {
                        answer(send.as_mut(), Kind::JOIN_GRANT, &grant).await;
                    }
                    HandshakeAction::Refuse(why) => {
                        answer(send.as_mut(), Kind::JOIN_REFUSED, &JoinRefused { why }).await;
                    }
                    HandshakeAction::Granted => self.counts().granted += 1,
                    HandshakeAction::Refused(refusal) => self.refused(from, &refusal),
                    HandshakeAction::Close => {}
                }
            }
            actions = next;
        }
        conn.close(VarInt::from_u32(0), b"");
    }
}

/// QUIC's code of the TLS alert "no application protocol" (RFC 9001, 4.8; RFC 8446, 6.2).
pub(super) const ALPN_ALERT: u64 = 0x100 + 120;

/// Sends the reply and waits briefly for its acknowledgement.
async fn answer<T: Serialize>(send: Option<&mut SendStream>, kind: Kind, value: &T) {
    let Some(send) = send else { return };
    let Ok(body) = wire::encode(kind, value) else {
        return tracing::error!(?kind, "a reply of the join endpoint is over the cap of its kind");
    };
    // An error means that the caller is gone.
    let _ = timeout(ANSWER_GRACE, async {
        write(send, &Frame::new(kind, body)).await?;
        send.stopped().await.map_err(|error| error.to_string())
    })
    .await;
}

/// Writes the single frame of a side.
pub(super) async fn write(send: &mut SendStream, frame: &Frame) -> Result<(), String> {
    send.write_all(&frame.header()).await.map_err(|error| error.to_string())?;
    send.write_all(&frame.body).await.map_err(|error| error.to_string())?;
    send.finish().map_err(|error| error.to_string())
}

/// Reads one frame of this kind.
pub(super) async fn read<T: DeserializeOwned>(
    recv: &mut RecvStream,
    kind: Kind,
) -> Result<T, String> {
    let frame = read_frame(recv, &[kind]).await?;
    wire::decode(kind, &frame.body).map_err(|error| error.to_string())
}

/// Reads one frame of these kinds. A frame over its cap is not read.
pub(super) async fn read_frame(recv: &mut RecvStream, kinds: &[Kind]) -> Result<Frame, String> {
    let mut header = [0; HEADER_LEN];
    recv.read_exact(&mut header).await.map_err(|error| error.to_string())?;
    let Header { len, kind } = Header::parse(&header).map_err(|error| error.to_string())?;
    let cap = kind.info().map_or(0, |info| info.cap);
    if !kinds.contains(&kind) || len > cap {
        return Err(format!("an unexpected {kind:?} frame of {len} bytes"));
    }
    let mut body = vec![0; len];
    recv.read_exact(&mut body).await.map_err(|error| error.to_string())?;
    Ok(Frame::new(kind, body))
}
