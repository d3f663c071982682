//! Handshake of a link on both sides: connection, certificates, hello, welcome or refusal.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use quinn::crypto::rustls::HandshakeData;
use quinn::{
    Connection, ConnectionError, Incoming, ReadExactError, RecvStream, TransportErrorCode,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::time::timeout;

use super::machine::{Conn, ConnectionEvent};
use super::settings::Configs;
use super::{Code, ConnState, Dial, DialState, EndpointState, Greeted, PeerEntry, PeerLink, relay};
use crate::id::{Incarnation, NodeId};
use crate::net::callers::{Admission, AdmissionLimits, Callers};
use crate::net::config::{HOST_INCOMING, MAX_INCOMING, UNVALIDATED_INCOMING};
use crate::net::hello::{Expected, Hello, Refuse, Welcome, version_mismatch, version_text};
use crate::net::tls::{NodeName, Role, SERVER_NAME, VERSIONS_ALPN};
use crate::net::{Address, BAN_DURATION, LinkError, Protocols, RefuseReason, VIOLATIONS_MAX};
use crate::wire::{self, Frame, HEADER_LEN, Header, Kind};

const ADMISSION_LIMITS: AdmissionLimits = AdmissionLimits {
    unvalidated: UNVALIDATED_INCOMING,
    of_host: HOST_INCOMING,
    all: MAX_INCOMING,
};

/// Longest version text of a peer with another major version, in bytes.
const VERSIONS_MAX: usize = 200;

/// Time for the peer to read a refusal before the connection closes.
const REFUSAL_GRACE: Duration = Duration::from_secs(1);

/// Minimum downtime of a link before the peer's incarnation may be forgotten. Longer than most
/// network failures.
const FORGET: Duration = Duration::from_secs(60);

/// The reason why a connection attempt failed.
struct HandshakeFailure {
    why: LinkError,
    /// Whether a retry would fail as well.
    fatal: bool,
}

impl HandshakeFailure {
    fn transient(why: impl ToString) -> Self {
        Self { why: why.to_string().into(), fatal: false }
    }

    fn fatal(why: impl ToString) -> Self {
        Self { why: why.to_string().into(), fatal: true }
    }

    fn refused(reason: RefuseReason, why: String) -> Self {
        Self { why: LinkError::refused(reason, why), fatal: true }
    }

    fn of_connection(error: &ConnectionError) -> Self {
        // A TLS alert of either side means that certificates or protocols do not match. A retry
        // would fail as well.
        let (code, what) = match error {
            ConnectionError::TransportError(error) => (error.code, error.to_string()),
            ConnectionError::ConnectionClosed(close) => (close.error_code, error.to_string()),
            ConnectionError::VersionMismatch => {
                return Self::refused(RefuseReason::Protocol, error.to_string());
            }
            _ => return Self::transient(error),
        };
        match alert(code) {
            Some(alert) => match reason_of(alert) {
                RefuseReason::Alpn => {
                    let mine = Protocols::default();
                    let what = format!(
                        "the other side has no protocol in common with this one, which speaks \
                         springtide {mine} ({what}): is it the endpoint of a grid's links? Then \
                         bring both to one version"
                    );
                    Self::refused(RefuseReason::Alpn, what)
                }
                reason => Self::refused(reason, what),
            },
            None => Self::transient(what),
        }
    }
}

/// The TLS alert in a transport error's code (RFC 9001, 4.8).
fn alert(code: TransportErrorCode) -> Option<u8> {
    match u64::from(code) {
        code @ 0x100..=0x1ff => Some(code as u8),
        _ => None,
    }
}

/// The refusal that a TLS alert of this side stands for. Numbers: RFC 8446, 6.2.
fn reason_of(alert: u8) -> RefuseReason {
    match alert {
        116 => RefuseReason::NoCertificate,
        48 => RefuseReason::ForeignCa,
        120 => RefuseReason::Alpn,
        42..=47 | 49 | 51 => RefuseReason::BadCertificate,
        _ => RefuseReason::Other,
    }
}

impl EndpointState {
    pub(super) async fn accept_all(self: Arc<Self>) {
        while let Some(incoming) = self.endpoint.accept().await {
            let (from, validated) =
                (incoming.remote_address(), incoming.remote_address_validated());
            if self.closing.load(Ordering::Acquire) {
                incoming.refuse();
                continue;
            }
            let admission = self.handshakes().decide(ADMISSION_LIMITS, from, validated);
            match admission {
                // Fails only for a validated address.
                Admission::Retry => drop(incoming.retry()),
                Admission::Accept if self.endpoint.open_connections() <= self.max_connections() => {
                    self.handshakes().add(from);
                    self.runtime.spawn(self.clone().accept(incoming));
                }
                Admission::Accept | Admission::Refuse => {
                    incoming.refuse();
                    tracing::debug!(
                        %from,
                        "a connection is refused: too many handshakes are in progress"
                    );
                }
            }
        }
    }

    fn handshakes(&self) -> std::sync::MutexGuard<'_, Callers> {
        self.handshakes.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn configs(&self) -> Arc<Configs> {
        self.configs.read().unwrap_or_else(std::sync::PoisonError::into_inner).clone()
    }

    /// Maximum number of connections: those of known peers, plus all admitted handshakes.
    fn max_connections(&self) -> usize {
        let peers = self.peers.read().unwrap_or_else(std::sync::PoisonError::into_inner).len();
        2 * peers + MAX_INCOMING
    }

    async fn accept(self: Arc<Self>, incoming: Incoming) {
        let from = incoming.remote_address();
        self.clone().receive(incoming).await;
        self.handshakes().remove(from);
    }

    async fn receive(self: Arc<Self>, incoming: Incoming) {
        let remote = incoming.remote_address();
        let limit = self.config.connect_timeout();
        let config = self.configs().accept(self.cluster_at(remote).as_ref());
        let connecting = match incoming.accept_with(config) {
            Ok(connecting) => connecting,
            Err(error) => return self.not_connected(&error, remote),
        };
        let conn = match timeout(limit, connecting).await {
            Ok(Ok(conn)) => conn,
            Ok(Err(error)) => return self.not_connected(&error, remote),
            Err(_) => return tracing::debug!(%remote, "a handshake was not finished in time"),
        };
        let late = || Err((Refuse::new(RefuseReason::BadHello, "no hello in time"), None));
        match timeout(limit, self.read_hello(&conn)).await.unwrap_or_else(|_| late()) {
            Ok((hello, greeted)) => self.hello(hello, greeted),
            Err((refuse, control)) => {
                self.count_refused(refuse.reason, remote, &refuse.detail);
                match control {
                    Some(greeted) => self.refuse(*greeted, refuse).await,
                    None => conn.close(Code::Refused.into(), refuse.detail.as_bytes()),
                }
            }
        }
    }

    /// Records a failed connection attempt. Refusals by this side's TLS are counted here, those of
    /// the peer at its side.
    fn not_connected(&self, error: &ConnectionError, remote: SocketAddr) {
        match error {
            ConnectionError::TransportError(refused) if alert(refused.code).is_some() => {
                let reason = alert(refused.code).map_or(RefuseReason::Other, reason_of);
                self.count_refused(reason, remote, &refused.reason);
            }
            _ => tracing::debug!(%remote, %error, "a connection was not made"),
        }
    }

    /// Reads and checks the hello. A refusal comes with the streams to send it on, if they exist.
    async fn read_hello(
        &self,
        conn: &Connection,
    ) -> Result<(Hello, Greeted), (Refuse, Option<Box<Greeted>>)> {
        let without_streams = |reason, detail: String| (Refuse::new(reason, detail), None);
        // A caller that abandons the connection for another one sends no hello, but closes it with
        // that code.
        let crossed = || match conn.close_reason() {
            Some(ConnectionError::ApplicationClosed(close)) => {
                close.error_code == Code::Crossed.into()
            }
            _ => false,
        };
        let bad = |detail| {
            let reason = if crossed() { RefuseReason::Crossed } else { RefuseReason::BadHello };
            without_streams(reason, detail)
        };
        let certificate = certificate(conn).ok_or_else(|| {
            without_streams(RefuseReason::BadCertificate, "the certificate names no node".into())
        })?;
        if has_no_common_major(conn) {
            let mine = version_text(&self.me.node, self.config.protocols);
            let theirs = match conn.accept_bi().await {
                Ok((_, mut recv)) => recv.read_to_end(VERSIONS_MAX).await.unwrap_or_default(),
                Err(_) => Vec::new(),
            };
            let theirs = match String::from_utf8_lossy(&theirs) {
                said if said.is_empty() => format!("{certificate} does not say what it speaks"),
                said => said.into_owned(),
            };
            return Err(without_streams(RefuseReason::Protocol, version_mismatch(&theirs, &mine)));
        }
        let (send, mut recv) =
            conn.accept_bi().await.map_err(|error| bad(format!("no control stream: {error}")))?;
        let frame = read_frame(&mut recv).await.map_err(|why| bad(format!("no hello: {why}")))?;
        let hello: Hello = decode(Kind::HELLO, &frame).map_err(bad)?;
        let role = certificate.role_kind();
        let protocols = self.config.protocols;
        let mut greeted =
            Greeted { conn: conn.clone(), send, recv, role, protocol: protocols.min, first: None };
        let expected =
            Expected { grid: &self.grid, me: &self.me, certificate: &certificate, protocols };
        match hello.check(&expected) {
            Ok(protocol) => match self.revoked(&hello.node) {
                None => {
                    greeted.protocol = protocol;
                    Ok((hello, greeted))
                }
                Some(detail) => {
                    let refuse = Refuse::new(RefuseReason::Revoked, detail);
                    Err((refuse, Some(Box::new(greeted))))
                }
            },
            Err(refuse) => Err((refuse, Some(Box::new(greeted)))),
        }
    }

    fn hello(self: &Arc<Self>, hello: Hello, greeted: Greeted) {
        let entry = self.entry(&hello.node, &hello.cluster);
        if self.is_banned(&entry) {
            let detail = banned(&hello.node);
            self.count_refused(RefuseReason::Banned, greeted.conn.remote_address(), &detail);
            let refuse = Refuse::new(RefuseReason::Banned, detail);
            self.runtime.spawn(self.clone().refuse(greeted, refuse));
            return;
        }
        let id = Conn::Accepted(self.next_conn.fetch_add(1, Ordering::Relaxed));
        let conn = greeted.conn.clone();
        {
            let mut link = entry.lock();
            link.cluster = hello.cluster;
            self.forget_incarnation(&mut link, greeted.role, hello.incarnation);
            // Only a later incarnation itself knows its current address.
            let later = link.machine.incarnation().is_some_and(|known| known < hello.incarnation);
            if later || !link.has_address() {
                match hello.address {
                    Some(Address::Socket(is)) => (link.address, link.via) = (Some(is), None),
                    Some(Address::Relayed(relay)) => (link.address, link.via) = (None, Some(relay)),
                    Some(Address::Memory) | None => {}
                }
            }
            link.conns.insert(id, ConnState::Greeted(greeted));
        }
        if self.closing.load(Ordering::Acquire) {
            if let Some(ConnState::Greeted(greeted)) = entry.lock().conns.remove(&id) {
                let detail = format!("{} is closing", self.me.node);
                let refuse = Refuse::new(RefuseReason::Closing, detail);
                self.runtime.spawn(self.clone().refuse(greeted, refuse));
            }
            return;
        }
        let (incarnation, dial) = (hello.incarnation, hello.dial);
        self.handle_event(&entry, ConnectionEvent::Hello { conn: id, incarnation, dial });
        if relay::is_stand_in(conn.remote_address()) {
            self.yield_to_relayed(&entry, id);
        }
        // No link monitors a parked connection, so its loss must be detected here.
        if matches!(entry.lock().conns.get(&id), Some(ConnState::Greeted(_))) {
            let (shared, entry) = (self.clone(), entry.clone());
            self.runtime.spawn(async move {
                let why = conn.closed().await.to_string().into();
                let mut link = entry.lock();
                if matches!(link.conns.get(&id), Some(ConnState::Greeted(_))) {
                    link.conns.remove(&id);
                    drop(link);
                    let pending = !entry.is_empty();
                    shared.handle_event(
                        &entry,
                        ConnectionEvent::Lost { conn: id, why, orderly: false, pending },
                    );
                }
            });
        }
    }

    /// Forgets a later incarnation of a peer that presents an earlier one, if permitted and if no
    /// link was up for [`FORGET`].
    ///
    /// A peer that lost its directory cannot know what others remember of it. Processes that decide
    /// which incarnation of a node is current never forget nodes. A head holds the lease of its
    /// grid, so its current incarnation is accepted.
    fn forget_incarnation(&self, link: &mut PeerLink, role: Role, incarnation: Incarnation) {
        let is_earlier = link.machine.incarnation().is_some_and(|known| incarnation < known);
        let down = link.down_since.is_some_and(|since| since.elapsed() >= FORGET);
        if is_earlier && down && (role == Role::Head || self.config.forgets_nodes) {
            link.machine.forget_incarnation();
        }
    }

    /// Abandons a direct attempt that will probably fail, because the peer has connected through a
    /// relay and waits for its outcome.
    fn yield_to_relayed(self: &Arc<Self>, entry: &Arc<PeerEntry>, parked: Conn) {
        let mut link = entry.lock();
        let Some(dial) = link.machine.dial_before(parked) else { return };
        let hopeless = match link.conns.get(&Conn::Dialled(dial)) {
            Some(ConnState::Dialling(Dial { state, .. })) => {
                let is = |flag: &AtomicBool| flag.load(Ordering::Acquire);
                !is(&state.connected) && !is(&state.relayed)
            }
            _ => false,
        };
        if !hopeless {
            return;
        }
        // The task of the attempt detects the removal.
        link.conns.remove(&Conn::Dialled(dial));
        drop(link);
        let why = "the peer has connected through a relay".into();
        self.handle_event(entry, ConnectionEvent::Failed { dial, why, fatal: false });
    }

    /// Prepares the welcome, which precedes all other frames on the control stream.
    pub(super) fn welcome(&self, entry: &PeerEntry, conn: Conn, dials: u64) {
        if let Some(ConnState::Greeted(greeted)) = entry.lock().conns.get_mut(&conn) {
            let welcome = Welcome {
                protocol: greeted.protocol,
                node: self.me.node.clone(),
                incarnation: self.me.incarnation,
                cluster: self.me.cluster.clone(),
                dials,
            };
            greeted.first = Some(message(Kind::WELCOME, &welcome));
        }
    }

    pub(super) async fn refuse(self: Arc<Self>, greeted: Greeted, refuse: Refuse) {
        let Greeted { conn, mut send, .. } = greeted;
        let refuse = Refuse { detail: truncate_text(refuse.detail), ..refuse };
        let frame = message(Kind::REFUSE, &refuse);
        let crossed = refuse.reason == RefuseReason::Crossed;
        let code = if crossed { Code::Crossed } else { Code::Refused };
        let say = async {
            send.write_all(&frame.header()).await.ok()?;
            send.write_all(&frame.body).await.ok()?;
            send.finish().ok()?;
            send.stopped().await.ok()
        };
        let _ = timeout(REFUSAL_GRACE, say).await;
        conn.close(code.into(), refuse.detail.as_bytes());
    }

    /// Connects to a peer and reports the outcome to the link's state machine.
    pub(super) async fn dial(
        self: Arc<Self>,
        entry: Arc<PeerEntry>,
        dial: u64,
        state: Arc<DialState>,
    ) {
        let limit = self.config.connect_timeout();
        let route = self.route_to(&entry);
        state.relayed.store(route.is_some_and(relay::is_stand_in), Ordering::Release);
        let answer = match timeout(limit, self.call(&entry, route, dial, &state.connected)).await {
            Ok(answer) => answer,
            Err(_) => Err(HandshakeFailure::transient(format!(
                "no answer within {} ms",
                limit.as_millis()
            ))),
        };
        let key = Conn::Dialled(dial);
        let mut link = entry.lock();
        if !link.conns.contains_key(&key) {
            return; // abandoned meanwhile
        }
        // A peer that refuses was reached.
        let reached = answer.as_ref().map_or_else(|no| no.why.refused.is_some(), |_| true);
        let event = match answer {
            Ok((welcome, greeted)) => {
                link.cluster = welcome.cluster;
                self.forget_incarnation(&mut link, greeted.role, welcome.incarnation);
                link.conns.insert(key, ConnState::Greeted(greeted));
                let (incarnation, dials) = (welcome.incarnation, welcome.dials);
                ConnectionEvent::Welcomed { dial, incarnation, dials }
            }
            Err(HandshakeFailure { why, fatal }) => {
                link.conns.remove(&key);
                tracing::debug!(node = %entry.node, dial, %why, fatal, "dial failed");
                ConnectionEvent::Failed { dial, why, fatal }
            }
        };
        drop(link);
        if let Some(address) = route {
            self.record_attempt(&entry, relay::is_stand_in(address), reached);
        }
        self.handle_event(&entry, event);
    }

    /// The address to connect to: the node's own, or a stand-in for a relayed one.
    fn route_to(&self, entry: &PeerEntry) -> Option<SocketAddr> {
        let (address, cluster) = {
            let link = entry.lock();
            (link.address, link.cluster.clone())
        };
        let through_relay = || {
            self.relay_to(&entry.node, None)?;
            self.relay.stand_in(&entry.node)
        };
        match address {
            None => through_relay(),
            Some(address) => {
                let now = self.start.elapsed();
                let needs_relay = self.routes().needs_relay(&entry.node, &cluster, now);
                needs_relay.then(through_relay).flatten().or(Some(address))
            }
        }
    }

    /// Records the outcome of an attempt to reach a node.
    fn record_attempt(&self, entry: &PeerEntry, relayed: bool, reached: bool) {
        let cluster = entry.lock().cluster.clone();
        let now = self.start.elapsed();
        self.routes().record_attempt(&entry.node, &cluster, relayed, reached, now);
        if relayed && reached {
            tracing::info!(
                node = %entry.node,
                %cluster,
                "reached through a relay: directly it does not answer"
            );
        }
    }

    async fn call(
        &self,
        entry: &PeerEntry,
        route: Option<SocketAddr>,
        dial: u64,
        connected: &AtomicBool,
    ) -> Result<(Welcome, Greeted), HandshakeFailure> {
        if self.is_banned(entry) {
            return Err(HandshakeFailure::refused(RefuseReason::Banned, banned(&entry.node)));
        }
        if let Some(why) = self.revoked(&entry.node) {
            return Err(HandshakeFailure::refused(RefuseReason::Revoked, why));
        }
        let address = route.ok_or_else(|| HandshakeFailure::transient("no address is known"))?;
        let cluster = entry.lock().cluster.clone();
        let conn = self
            .endpoint
            .connect_with(self.configs().dial(&cluster), address, SERVER_NAME)
            .map_err(|error| HandshakeFailure::fatal(format!("{address}: {error}")))?
            .await
            .inspect_err(|error| self.not_connected(error, address))
            .map_err(|error| HandshakeFailure::of_connection(&error))?;
        connected.store(true, Ordering::Release);
        if !entry.lock().conns.contains_key(&Conn::Dialled(dial)) {
            conn.close(Code::Crossed.into(), b"abandoned");
            return Err(HandshakeFailure::transient("abandoned"));
        }
        // Nothing is sent before the certificate is checked.
        let certificate = certificate(&conn).filter(|name| name.node == entry.node);
        let Some(certificate) = certificate else {
            let detail =
                format!("{} was called at {address}, but another node replied", entry.node);
            return Err(self.reject(&conn, RefuseReason::Identity, detail));
        };
        let (mut send, mut recv) =
            conn.open_bi().await.map_err(|error| HandshakeFailure::of_connection(&error))?;
        let protocols = self.config.protocols;
        if has_no_common_major(&conn) {
            let mine = version_text(&self.me.node, protocols);
            // An error means that the other side has closed the connection with its own text.
            let _ = send.write_all(mine.as_bytes()).await;
            let _ = send.finish();
            let said = match conn.closed().await {
                ConnectionError::ApplicationClosed(close) => {
                    String::from_utf8_lossy(&close.reason).into_owned()
                }
                error => {
                    version_mismatch(&format!("{certificate} speaks another ({error})"), &mine)
                }
            };
            return Err(HandshakeFailure::refused(RefuseReason::Protocol, said));
        }
        let hello = message(
            Kind::HELLO,
            &Hello {
                protocol_min: protocols.min,
                protocol_max: protocols.max,
                grid: self.grid.clone(),
                node: self.me.node.clone(),
                incarnation: self.me.incarnation,
                cluster: self.me.cluster.clone(),
                address: Some(Address::Socket(self.address)),
                dial,
            },
        );
        let failed = |why| match conn.close_reason() {
            Some(error) => HandshakeFailure::of_connection(&error),
            None => HandshakeFailure::transient(why),
        };
        send.write_all(&hello.header()).await.map_err(|error| failed(error.to_string()))?;
        send.write_all(&hello.body).await.map_err(|error| failed(error.to_string()))?;
        let frame = read_frame(&mut recv).await.map_err(failed)?;
        if frame.kind == Kind::REFUSE {
            let refuse: Refuse =
                decode(Kind::REFUSE, &frame).map_err(HandshakeFailure::transient)?;
            conn.close(Code::Refused.into(), b"the refusal was read");
            if refuse.reason == RefuseReason::StaleIncarnation {
                self.events.superseded(&entry.node, refuse.known);
            }
            let transient = matches!(
                refuse.reason,
                RefuseReason::Crossed
                    | RefuseReason::Closing
                    | RefuseReason::BadHello
                    | RefuseReason::Banned
            );
            let why = format!("refused ({:?}): {}", refuse.reason, refuse.detail);
            return Err(HandshakeFailure {
                why: LinkError::refused(refuse.reason, why),
                fatal: !transient,
            });
        }
        let welcome: Welcome = decode(Kind::WELCOME, &frame)
            .map_err(|why| self.reject(&conn, RefuseReason::BadHello, why))?;
        welcome
            .check(&entry.node, &certificate, protocols)
            .map_err(|refuse| self.reject(&conn, refuse.reason, refuse.detail))?;
        let (role, protocol) = (certificate.role_kind(), welcome.protocol);
        Ok((welcome, Greeted { conn, send, recv, role, protocol, first: None }))
    }

    /// Rejects a node that answered a connection attempt of this side.
    fn reject(&self, conn: &Connection, reason: RefuseReason, detail: String) -> HandshakeFailure {
        self.count_refused(reason, conn.remote_address(), &detail);
        conn.close(Code::Refused.into(), detail.as_bytes());
        HandshakeFailure::refused(reason, detail)
    }
}

fn banned(node: &NodeId) -> String {
    format!(
        "{node} broke the protocol {VIOLATIONS_MAX} times recently: no link for {} s; do both \
         run the \
         same version?",
        BAN_DURATION.as_secs()
    )
}

/// Whether the sides have no major version in common, so that they can only exchange their
/// versions.
fn has_no_common_major(conn: &Connection) -> bool {
    let data = conn.handshake_data().and_then(|data| data.downcast::<HandshakeData>().ok());
    data.is_some_and(|data| data.protocol.as_deref() == Some(VERSIONS_ALPN))
}

/// The name in the peer's certificate, whose chain TLS has checked.
fn certificate(conn: &Connection) -> Option<NodeName> {
    let chain = conn.peer_identity()?.downcast::<Vec<rustls::pki_types::CertificateDer>>().ok()?;
    NodeName::of_certificate(chain.first()?)
}

/// Reads exactly one frame. Not cancel-safe: after cancellation the connection must be closed.
async fn read_frame(recv: &mut RecvStream) -> Result<Frame, String> {
    let text = |error: ReadExactError| error.to_string();
    let mut header = [0; HEADER_LEN];
    recv.read_exact(&mut header).await.map_err(text)?;
    let Header { len, kind } = Header::parse(&header).map_err(|error| error.to_string())?;
    // Only handshake messages are valid here, and their caps are small.
    if !matches!(kind, Kind::HELLO | Kind::WELCOME | Kind::REFUSE) {
        return Err(format!("a {kind:?} frame during the handshake"));
    }
    let mut body = vec![0; len];
    recv.read_exact(&mut body).await.map_err(text)?;
    Ok(Frame::new(kind, body))
}

fn decode<T: DeserializeOwned>(kind: Kind, frame: &Frame) -> Result<T, String> {
    if frame.kind != kind {
        return Err(format!("a {:?} frame instead of a {kind:?} frame", frame.kind));
    }
    wire::decode(kind, &frame.body).map_err(|error| error.to_string())
}

/// Encodes a message of this side.
pub(super) fn message<T: Serialize>(kind: Kind, value: &T) -> Frame {
    Frame::new(kind, wire::encode(kind, value).expect("names and short texts are within the cap"))
}

/// Truncates a description for users well below the cap of its message.
pub(super) fn truncate_text(mut text: String) -> String {
    const MAX: usize = 1000;
    if text.len() > MAX {
        let end = (0..=MAX).rev().find(|end| text.is_char_boundary(*end));
        text.truncate(end.unwrap_or(0));
    }
    text
}
