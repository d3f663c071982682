//! Hand-made peers over bare quinn: they send the messages of a node at the start of a link, and
//! nothing else.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use quinn::crypto::rustls::QuicClientConfig;
use quinn::{Connection, Endpoint, RecvStream, SendStream};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde::{Deserialize, Serialize};
use springtide_runtime::net::join::{JoinError, JoinToken, NewToken, join};
use springtide_runtime::net::tls::{Ca, EPHEMERAL_VALIDITY, NewKey, NodeIdentity};
use springtide_runtime::wire::{self, Frame, HEADER_LEN, Header, Kind};
use tokio::time::{Instant, timeout};

use super::helper::ProcessKind;
use super::{LONG, loopback};

/// The runtime's own message, which is not public: the golden files fix its encoding.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Hello {
    pub protocol_min: u16,
    pub protocol_max: u16,
    pub grid: String,
    pub node: String,
    pub incarnation: u64,
    pub cluster: String,
    pub dial: u64,
}

impl Hello {
    pub fn of(node: &str) -> Self {
        Self {
            protocol_min: 1,
            protocol_max: 1,
            grid: "bars".to_owned(),
            node: node.to_owned(),
            incarnation: 1,
            cluster: "bars".to_owned(),
            dial: 1,
        }
    }
}

/// TLS that presents this certificate and offers these protocols.
pub fn client(identity: &NodeIdentity, alpn: &[&[u8]]) -> quinn::ClientConfig {
    let [cert, key, ca] = identity.pem();
    let pem = |text: &str| CertificateDer::from_pem_slice(text.as_bytes()).unwrap();
    let mut roots = rustls::RootCertStore::empty();
    roots.add(pem(ca)).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_root_certificates(roots)
        .with_client_auth_cert(
            vec![pem(cert)],
            PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap(),
        )
        .unwrap();
    config.alpn_protocols = alpn.iter().map(|name| name.to_vec()).collect();
    quinn::ClientConfig::new(Arc::new(QuicClientConfig::try_from(config).unwrap()))
}

/// A link that reads only the welcome.
pub struct BareLink {
    pub conn: Connection,
    pub send: SendStream,
    pub recv: RecvStream,
    pub answer: Frame,
}

/// Connects and sends a hello.
pub async fn say_hello(
    endpoint: &Endpoint,
    config: quinn::ClientConfig,
    at: SocketAddr,
    hello: &Hello,
) -> Result<BareLink, String> {
    let connecting = endpoint.connect_with(config, at, "node.springtide").unwrap();
    let conn = connecting.await.map_err(|error| error.to_string())?;
    let said = async {
        let (mut send, mut recv) = conn.open_bi().await?;
        let frame = Frame::new(Kind::HELLO, wire::encode(Kind::HELLO, hello)?);
        send.write_all(&frame.header()).await?;
        send.write_all(&frame.body).await?;
        let mut header = [0; HEADER_LEN];
        recv.read_exact(&mut header).await?;
        let header = Header::parse(&header)?;
        let mut body = vec![0; header.len];
        recv.read_exact(&mut body).await?;
        let answer = Frame::new(header.kind, body);
        Ok::<_, Box<dyn std::error::Error>>((send, recv, answer))
    };
    let (send, recv, answer) = said.await.map_err(|error| match conn.close_reason() {
        Some(reason) => reason.to_string(),
        None => error.to_string(),
    })?;
    Ok(BareLink { conn, send, recv, answer })
}

/// A peer with a right to call, which calls repeatedly, each time as a new incarnation.
pub struct GoodPeer {
    role: ProcessKind,
    at: SocketAddr,
    identity: NodeIdentity,
    token: JoinToken,
    lives: AtomicU64,
}

impl GoodPeer {
    pub fn new(ca: &Ca, role: ProcessKind, at: SocketAddr) -> Self {
        let identity = ca.issue(&"good".into(), &"bars".into(), "node", EPHEMERAL_VALIDITY);
        let NewToken { id, secret, .. } = NewToken::draw().unwrap();
        let token = JoinToken { authority: ca.fingerprint(), id, secret };
        Self { role, at, identity: identity.unwrap(), token, lives: AtomicU64::new(1) }
    }

    /// Time from the first packet to the welcome, or to the join endpoint's answer.
    pub async fn call(&self) -> Duration {
        let life = self.lives.fetch_add(1, Ordering::Relaxed);
        if self.role == ProcessKind::Door {
            let request = NewKey::make().unwrap().request().unwrap();
            let began = Instant::now();
            let answer = join(loopback(), self.at, &self.token, request, None, LONG).await;
            assert!(matches!(answer, Err(JoinError::Refused(_))), "the door: {answer:?}");
            return began.elapsed();
        }
        let endpoint = Endpoint::client(loopback()).unwrap();
        let config = client(&self.identity, &[self.role.alpn()]);
        let hello = Hello { incarnation: life, ..Hello::of("good") };
        let began = Instant::now();
        let called = timeout(LONG, say_hello(&endpoint, config, self.at, &hello)).await;
        let odd = called.expect("an answer").unwrap_or_else(|why| panic!("call {life}: {why}"));
        let took = began.elapsed();
        assert_eq!(odd.answer.kind, Kind::WELCOME);
        odd.conn.close(1u32.into(), b"seen");
        // It closes by itself: the next call need not wait for that.
        tokio::spawn(async move { endpoint.wait_idle().await });
        took
    }
}

/// The value below which this share of the durations lies; zero if there are none.
pub fn percentile(sorted: &[Duration], share: f64) -> Duration {
    let at = (sorted.len() as f64 * share).ceil() as usize;
    sorted.get(at.saturating_sub(1)).copied().unwrap_or_default()
}
